"""The problem `explain` solves: instances read and labelled, constraints bound, options checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.classifiers import Classifier
from lapace.constraints import Constraint, System, fixed, parse_all
from lapace.constraints.projection import NodeAllowance
from lapace.errors import InputError, check_integer, did_you_mean
from lapace.explainer.fit import Fitted
from lapace.instances import LabelledInstances, read_instances
from lapace.result import PICKS
from lapace.schema import Schema

__all__ = ["Problem", "Search", "make_problem"]

OPTIONS = {"enforce": ("exact", "naive", "latent")}
MAX_STARTS = 100  # of an instance; more are not different from each other


@dataclass(frozen=True)
class Search:
    """How to search for counterfactuals.

    Attributes:
        steps: Grid steps from an instance to a prototype.
        picks: Which picks are computed: `nearest`, `best`, `first`, `middle`, `last`. A pick that
            is left out costs no queries.
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


@dataclass(frozen=True)
class Problem:
    """Everything a search needs to know; each stage returns what it found and changes nothing here.

    Attributes:
        fitted: What `fit` learned.
        classifier: The classifier, counting the rows of this call alone.
        instances: The instances, read and labelled.
        system: The rules and constraints, bound to the columns.
        search: How to search.
        costs: Weight of a change, for some columns.
        confidence: The least probability of the target.
        plausibility: The least density percentile among training rows of the target.
        max_queries: Rows the classifier may be queried about; None for no limit.
        threads: How many search at the same time.
        turn: Held while the classifier is queried, where several threads search.
        nodes: What the solver of constraints may spend on each instance, and has spent.
    """

    fitted: Fitted
    classifier: Classifier
    instances: LabelledInstances
    system: System
    search: Search = Search()
    costs: Mapping[str, float] | None = None
    confidence: float | None = None
    plausibility: float | None = None
    max_queries: int | None = None
    threads: int = 1
    turn: AbstractContextManager[Any] = field(default_factory=nullcontext)
    nodes: NodeAllowance = field(default_factory=lambda: NodeAllowance(Search().max_nodes))

    @property
    def schema(self) -> Schema:
        """The columns, widened by levels that only these instances have."""
        return self.instances.schema

    @cached_property
    def weights(self) -> Floats:
        """One per column, for distances."""
        return self.schema.weights(self.costs)

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

    def wants(self, instance: Ints, label: Ints) -> Bools:
        """Whether labels are targets of instances: (instances, labels)."""
        original, target = (
            codes[instance, None]
            for codes in (self.instances.label_code, self.instances.target_code)
        )
        wanted: Bools = np.where(target >= 0, label == target, label != original)
        return wanted

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
    threads: int = 1,
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
        threads: How many search at the same time.
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
    if search is not None and search.n_endpoints and fitted.recipe.follows_paper:
        raise InputError(
            "The paper's recipe has no sampled endpoints. Leave n_endpoints out, or fit with "
            "recipe='default'."
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
    search = search or Search()
    return Problem(
        fitted,
        classifier,
        instances,
        system,
        search,
        finite,
        confidence,
        plausibility,
        threads=threads,
        nodes=NodeAllowance(search.max_nodes),
    )


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
