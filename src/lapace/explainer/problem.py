"""The problem `explain` solves: instances read and labelled, constraints bound, options checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints
from lapace.classifiers import Classifier
from lapace.constraints import Constraint, System, fixed, parse_all
from lapace.errors import InputError, check_integer, did_you_mean
from lapace.explainer.fit import Fitted
from lapace.instances import LabelledInstances, read_instances
from lapace.paths import join_rows, take_rows
from lapace.result import PICKS, Explanation
from lapace.schema import Schema
from lapace.table import read, spelling
from lapace.table.frames import as_coded

__all__ = ["Candidates", "Problem", "Search", "make_problem"]

OPTIONS = {"enforce": ("exact", "naive", "latent")}
MAX_STARTS = 100  # of an instance; more are not different from each other


@dataclass(frozen=True)
class Search:
    """How to search for counterfactuals.

    Attributes:
        steps: Grid steps from an instance to a prototype.
        picks: Which picks are computed: `nearest`, `best`, `first`, `middle`, `last`. Fewer picks
            take fewer queries.
        n_best: How many different ways `best` looks for.
        n_starts: How many rows each search for `nearest` and for `best` starts from, 100 at most.
        stable: Take as `first` the start of the last unbroken run of ok steps; False: the first ok
            step of all, as in the paper.
        enforce: How constraints are enforced. `exact` corrects latent points, then projects rows;
            `naive` only projects rows; `latent` only corrects latent points, by the paper's
            gradient descent: there a row may violate a constraint (and says so).

    Examples:
        >>> Search(steps=5, n_starts=3).steps
        5
    """

    steps: int = 20
    picks: tuple[str, ...] = PICKS
    n_best: int = 3
    n_starts: int = 10
    stable: bool = True
    enforce: Literal["exact", "naive", "latent"] = "exact"

    def __post_init__(self) -> None:
        """Refuses settings that cannot work."""
        object.__setattr__(self, "steps", check_integer("steps", self.steps, 2))
        object.__setattr__(self, "n_best", check_integer("n_best", self.n_best))
        n_starts = check_integer("n_starts", self.n_starts, 1, MAX_STARTS)
        object.__setattr__(self, "n_starts", n_starts)
        if not isinstance(self.stable, bool):
            raise InputError(f"stable is {self.stable!r}; it is True or False.")
        picks = (self.picks,) if isinstance(self.picks, str) else tuple(self.picks)
        for pick in picks:
            if pick not in PICKS:
                hint = did_you_mean(pick, PICKS) if isinstance(pick, str) else ""
                raise InputError(f"There is no pick {pick!r}. There are: {', '.join(PICKS)}.{hint}")
        object.__setattr__(self, "picks", tuple(pick for pick in PICKS if pick in picks))
        for name, options in OPTIONS.items():
            value = getattr(self, name)
            if value not in options:
                listed = ", ".join(map(repr, options[:-1])) + f" or {options[-1]!r}"
                hint = did_you_mean(value, options) if isinstance(value, str) else ""
                raise InputError(f"{name} is {value!r}; it is {listed}.{hint}")


class Candidates(NamedTuple):
    """Rows to be considered for instances.

    Attributes:
        cells: The rows.
        instance: The instance each is for, by position in the query.
        pick: The pick each is for, `nearest` or `best`; empty for both.
    """

    cells: Floats
    instance: Ints
    pick: NDArray[np.str_]

    @classmethod
    def of(cls, cells: Floats, instance: Ints, pick: str = "") -> Candidates:
        """Rows for one pick, or for both."""
        return cls(cells, instance, np.full(len(instance), pick, dtype="<U7"))

    @classmethod
    def join(cls, parts: Sequence[Candidates]) -> Candidates:
        """Puts rows together."""
        return join_rows(parts)

    def take(self, rows: Bools | Ints) -> Candidates:
        """Selects some of the rows."""
        return take_rows(self, rows)


@dataclass(frozen=True)
class Problem:
    """Everything a search needs to know; nothing in it changes.

    Attributes:
        fitted: What `fit` learned.
        classifier: The classifier, counting the rows of this call alone.
        instances: The instances, read and labelled.
        system: The rules and constraints, bound to the columns.
        search: How to search.
        costs: Weight of a change, for some columns.
        confidence: The least probability of the target.
        plausibility: The least density percentile among training rows of the target.
        candidates: Rows to be considered too.
    """

    fitted: Fitted
    classifier: Classifier
    instances: LabelledInstances
    system: System
    search: Search = Search()
    costs: Mapping[str, float] | None = None
    confidence: float | None = None
    plausibility: float | None = None
    candidates: Candidates | None = None

    @property
    def schema(self) -> Schema:
        """The columns, widened by levels that only these instances have."""
        return self.instances.schema

    @cached_property
    def weights(self) -> Floats:
        """One per column, for distances."""
        return self.schema.weights(self.costs)

    def distances(self, cells: Floats, instance: Ints) -> Floats:
        """Distances of rows from the instances they are for."""
        far: Floats = self.schema.gaps(self.instances.cells[instance], cells) @ self.weights
        return far

    @cached_property
    def already_target(self) -> Bools:
        """Instances that have the target already, with the required confidence."""
        already = self.instances.already_target
        if self.confidence is None:
            return already
        target = np.maximum(self.instances.target_code, 0)
        reached = self.instances.probability[np.arange(len(target)), target]
        return already & (reached >= self.confidence)

    @cached_property
    def tried(self) -> Ints:
        """Positions of the instances searched for: labelled, and without the target."""
        return np.flatnonzero((self.instances.label_code >= 0) & ~self.already_target)

    @cached_property
    def without_constraints(self) -> Problem | None:
        """The same problem under the explainer's rules alone; None where there is nothing more."""
        rules = set(self.fitted.rules)
        added = [c for c in self.system.constraints if c not in rules]
        return replace(self, system=self.system.without(added)) if added else None

    def with_search(self, **settings: Any) -> Problem:
        """The same problem, searched in another way."""
        return replace(self, search=replace(self.search, **settings))


def make_problem(
    fitted: Fitted,
    classifier: Classifier,
    X: Any,
    *,
    target: Any = None,
    constraints: Sequence[str | Constraint] = (),
    costs: Mapping[str, float] | None = None,
    confidence: float | None = None,
    plausibility: float | None = None,
    search: Search | None = None,
    candidates: Any = None,
) -> Problem:
    """Reads and labels instances, and checks what is wanted of them.

    Args:
        fitted: What `fit` learned.
        classifier: The classifier, with a fresh count of queries.
        X: The instances, as a table.
        target: As in `Explainer.explain`; likewise the others.
        constraints: Beside the rules kept in `fitted`.
        costs: Infinity becomes a `fixed` constraint.
        confidence: Needs a classifier with probabilities.
        plausibility: A density percentile.
        search: How to search.
        candidates: An explanation, or a table with a column `instance`.
    """
    if search is not None and not isinstance(search, Search):
        raise InputError(f"search is {search!r}; it must be a Search, such as Search(steps=10).")
    weights = _checked_costs(costs)
    if confidence is not None:
        if not (_is_number(confidence) and 0 < confidence <= 1):
            raise InputError(f"confidence is {confidence!r}; it is a probability, over 0 to 1.")
        if not classifier.has_probability:
            raise InputError(
                "confidence needs a classifier with predict_proba, and this one has none. Leave it "
                "out."
            )
    if plausibility is not None and not (_is_number(plausibility) and 0 <= plausibility < 100):
        raise InputError(
            f"plausibility is {plausibility!r}; it is a percentile among training rows, from 0 to "
            "below 100."
        )
    known = fitted.prototypes[0].cells[None]
    instances = read_instances(X, fitted.schema, classifier, target, known_row=known)
    for code in np.unique(instances.target_code[instances.target_code >= 0]):
        if target is not None and not fitted.of_label(int(code)):
            raise InputError(
                f"There is no valid prototype of label {fitted.labels[code]!r}: it had too few "
                "training rows, or the classifier accepted none. The report says which."
            )
    immutable = [fixed(name) for name, cost in weights.items() if cost == np.inf]
    finite = {name: cost for name, cost in weights.items() if cost != np.inf}
    instances.schema.weights(finite)  # refuses unknown columns and negative costs
    system = bind_constraints((*fitted.rules, *parse_all(constraints), *immutable), instances)
    return Problem(
        fitted,
        classifier,
        instances,
        system,
        search or Search(),
        finite,
        confidence,
        plausibility,
        None if candidates is None else read_candidates(candidates, instances),
    )


def read_candidates(candidates: Any, instances: LabelledInstances) -> Candidates:
    """Reads rows to be considered: every pick of an earlier explanation, or a table's rows.

    Args:
        candidates: An `Explanation` of the same instances in the same order, or a table with their
            columns and a column `instance`: the id of the instance, or its position where the
            instances have no ids.
        instances: The instances of the query.
    """
    if isinstance(candidates, Explanation):
        return _candidates_of(candidates, instances)
    table = read(candidates)
    if "instance" not in table.columns:
        raise InputError(
            "candidates need a column 'instance': the id of the instance each row is for, or its "
            "position, counted from 0."
        )
    ids = instances.reading.ids
    names = range(len(instances)) if ids is None else ids
    column = as_coded(table.columns["instance"].values)
    if (column.codes < 0).any():
        raise InputError("candidates have a row without an instance.")
    named = np.array([spelling(column.levels[code]) for code in column.codes], dtype=object)
    places: dict[str, list[int]] = {}
    for k, name in enumerate(names):  # several instances may share an id
        places.setdefault(spelling(name), []).append(k)
    pairs = [(k, place) for k, name in enumerate(named) for place in places.get(name, ())]
    row, position = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    unknown = np.setdiff1d(np.arange(len(named)), row)
    if len(unknown):
        first = named[unknown[0]]
        raise InputError(f"candidates name an instance that is not in the query: {first!r}.")
    reading = instances.schema.read(candidates).checked()
    if reading.schema != instances.schema:
        raise InputError("candidates have a category that neither training nor the instances have.")
    return Candidates.of(reading.cells[row], position)


def _candidates_of(explanation: Explanation, instances: LabelledInstances) -> Candidates:
    """The rows of every pick of an explanation of the same instances."""
    levels = [
        [feature.levels for feature in s.features] for s in (explanation.schema, instances.schema)
    ]
    same = explanation.schema.names == instances.schema.names and levels[0] == levels[1]
    if not same or not np.array_equal(explanation.instances, instances.cells, equal_nan=True):
        raise InputError("candidates are an explanation of other instances than those of X.")
    picks = [getattr(explanation, pick)() for pick in (*explanation.minimal, *explanation.picked)]
    parts = [Candidates.of(part.cells, part.instance) for part in picks]
    return Candidates.join([Candidates.of(instances.cells[:0], np.zeros(0, np.int64)), *parts])


def bind_constraints(
    constraints: Sequence[str | Constraint], instances: LabelledInstances
) -> System:
    """Binds constraints to the columns; refuses those that no row at all can satisfy.

    Where instances have values outside what training saw, more may be feasible for them than the
    schema says, and feasibility is decided for each instance instead.
    """
    schema, cells = instances.schema, instances.cells
    numbers = [i for i, feature in enumerate(schema.features) if not feature.categories]
    lower, upper = (
        np.array([getattr(schema.features[i], end) for i in numbers]) for end in ("lower", "upper")
    )
    beyond = (cells[:, numbers] < lower) | (cells[:, numbers] > upper)
    unseen = bool(beyond.any()) or any(feature.extra for feature in schema.features)
    return System.of(constraints, schema, check=not unseen)


def _checked_costs(costs: Mapping[str, float] | None) -> Mapping[str, float]:
    if costs is not None and not isinstance(costs, Mapping):
        raise InputError("costs are given by column, such as {'income': 2.0}.")
    for name, cost in (costs or {}).items():
        if not _is_number(cost):
            raise InputError(f"The cost of '{name}' is {cost!r}; it must be a number.")
    return costs or {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
