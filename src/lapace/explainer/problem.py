"""The problem `explain` solves: instances read and labelled, constraints bound, options checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.classifier import Classifier, query_rows
from lapace.constraints import Constraint, Shorthand, System, parse_all
from lapace.errors import InputError, check_integer, did_you_mean, warn
from lapace.explainer.fit import Fitted
from lapace.result import ANY_OTHER, PICKS, Explanation
from lapace.schema import Reading, Schema
from lapace.table import as_coded, read, spelling

__all__ = [
    "ANY_OTHER",
    "MAX_QUERIES",
    "InstanceRows",
    "LabelledInstances",
    "Problem",
    "Search",
    "make_problem",
    "read_instances",
]

ENFORCE = ("exact", "latent")
MAX_QUERIES = 50_000  # rows why-not may query, where the caller sets no other budget
NAMED = 3  # learned rules that a warning names
MAX_STARTS = 100  # starts of an instance; more are not different from each other
TARGETS = f'give one label, a sequence with one label per instance, or "{ANY_OTHER}"'


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
        enforce: How constraints are enforced. `exact` projects rows; `latent` corrects latent
            points instead, by the paper's gradient descent: there a row may violate a constraint
            (and says so).

    Examples:
        >>> Search(steps=5, n_starts=3).steps
        5
    """

    steps: int = 20
    picks: tuple[str, ...] = PICKS
    n_best: int = 3
    n_starts: int = 7
    stable: bool = True
    enforce: Literal["exact", "latent"] = "exact"

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
                hint = did_you_mean(pick, PICKS)
                raise InputError(f"There is no pick {pick!r}. There are: {', '.join(PICKS)}.{hint}")
        object.__setattr__(self, "picks", tuple(pick for pick in PICKS if pick in picks))
        if self.enforce not in ENFORCE:
            hint = did_you_mean(self.enforce, ENFORCE)
            raise InputError(f"enforce is {self.enforce!r}; it is 'exact' or 'latent'.{hint}")


class InstanceRows(NamedTuple):
    """Rows for instances, and what each has to keep where it is made minimal.

    Attributes:
        cells: The rows.
        instance: The instance each is for, by position in the query.
        margin: Whether each has to keep a margin, beside being ok.
    """

    cells: Floats
    instance: Ints
    margin: Bools

    @classmethod
    def of(cls, cells: Floats, instance: Ints, *, margin: bool = False) -> InstanceRows:
        """Returns rows that all have to keep the same."""
        return cls(cells, instance, np.full(len(instance), margin))


@dataclass(frozen=True)
class LabelledInstances:
    """The instances of one query: their rows, what the classifier predicts and the targets.

    Attributes:
        reading: The rows, and the schema widened by levels that only they have.
        label_code: The classifier's label of each, as a position in its labels; -1 if malformed.
        probability: Of each label, (n, labels); NaN where unknown.
        target_code: The target of each, as a position in the labels; -1 for any other label.
        malformed: Position to reason, for instances that cannot be explained: a row the schema
            cannot read, or one the classifier raises on.
    """

    reading: Reading
    label_code: Ints
    probability: Floats
    target_code: Ints
    malformed: Mapping[int, str]

    def __len__(self) -> int:
        return len(self.reading.cells)

    @property
    def schema(self) -> Schema:
        """The columns, widened by levels that only these instances have."""
        return self.reading.schema

    @property
    def cells(self) -> Floats:
        """The rows, (n, d)."""
        return self.reading.cells

    @property
    def already_target(self) -> Bools:
        """Whether the classifier predicts each instance's target already."""
        same: Bools = (self.label_code >= 0) & (self.label_code == self.target_code)
        return same

    def reaches_target(self, codes: Ints, instance: Ints) -> Bools:
        """Whether each label (-1: unknown, never) is the target of the instance it is for."""
        target = self.target_code[instance]
        other = codes != self.label_code[instance]
        reached: Bools = np.where(target >= 0, codes == target, other) & (codes >= 0)
        return reached

    def wants(self, codes: Ints, instance: Ints) -> Bools:
        """Whether each label is one that each instance wants: (instances, labels)."""
        each = np.tile(codes, len(instance)), np.repeat(instance, len(codes))
        return self.reaches_target(*each).reshape(len(instance), len(codes))

    def label_reached(self, codes: Ints, instance: Ints) -> Ints:
        """The label each row is meant to have: the target, or for any other the one predicted."""
        target = self.target_code[instance]
        return np.where(target >= 0, target, np.maximum(codes, 0))

    def target_probability(self, probability: Floats, instance: Ints) -> Floats:
        """Each row's probability of the target; for any other, of all labels but the original.

        Args:
            probability: Of each label, (n, labels).
            instance: The instance each row is for, (n,).
        """
        target, original = self.target_code[instance], self.label_code[instance]
        rows = np.arange(len(instance))
        other = 1.0 - probability[rows, original]
        return np.where(target >= 0, probability[rows, target], other)


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
        plausibility: The least density: a share of the training rows of the target.
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
    candidates: InstanceRows | None = None

    @property
    def schema(self) -> Schema:
        """The columns, widened by levels that only these instances have."""
        return self.instances.schema

    @cached_property
    def weights(self) -> Floats:
        """One weight per column, for distances."""
        return self.schema.weights(self.costs)

    def distances(self, cells: Floats, instance: Ints) -> Floats:
        """Distances of rows from the instances they are for."""
        gaps = self.schema.gaps(self.instances.cells[instance], cells)
        # Not a matrix product: its last digit depends on the number of rows.
        far: Floats = (gaps * self.weights).sum(axis=1)
        return far

    def change_efforts(self, cells: Floats, instance: Ints) -> Floats:
        """Each change's part of the effort of rows; 0 where a cell is the instance's: (n, d)."""
        return self.schema.change_efforts(self.instances.cells[instance], cells, self.weights)

    def efforts(self, cells: Floats, instance: Ints) -> Floats:
        """Efforts of rows: their distances from the instances, and a charge for each change."""
        efforts: Floats = self.change_efforts(cells, instance).sum(axis=1)
        return efforts

    @cached_property
    def asks_margin(self) -> bool:
        """Whether rows of `best` keep a margin: of odds or refits, unless `confidence` is given."""
        return self.confidence is None and self.fitted.survival.is_known

    def feasible(self, cells: Floats, instance: Ints) -> Bools:
        """Whether rows satisfy every constraint and their derived columns can be computed."""
        originals = self.instances.cells[instance]
        feasible: Bools = self.system.feasible(cells, originals)
        return feasible & self.schema.derived.derivable(cells, originals)

    @cached_property
    def already_target(self) -> Bools:
        """Instances that have the target already, with the required confidence."""
        already, target = self.instances.already_target, self.instances.target_code
        if self.confidence is None:
            return already
        reached = self.instances.probability[np.arange(len(target)), np.maximum(target, 0)]
        return already & (reached >= self.confidence)

    @cached_property
    def tried(self) -> Ints:
        """Positions of the instances searched for: labelled, and without the target."""
        return np.flatnonzero((self.instances.label_code >= 0) & ~self.already_target)

    @cached_property
    def under_rules(self) -> Problem:
        """The same problem under the explainer's rules alone."""
        rules = set(self.fitted.rules)
        added = [c for c in self.system.constraints if c not in rules]
        return replace(self, system=self.system.without(added)) if added else self


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
        plausibility: The least density, a share from 0 to below 1.
        search: How to search.
        candidates: An explanation, or a table with a column `instance`.
    """
    if search is not None and not isinstance(search, Search):
        raise InputError(f"search is {search!r}; it must be a Search, such as Search(steps=10).")
    weights = _checked_costs(costs)
    if confidence is not None:
        if not (_is_number(confidence) and 0 < confidence <= 1):
            raise InputError(
                f"confidence is {confidence!r}; it is a probability between 0 "
                "and 1: for 90% write 0.9."
            )
        if not classifier.has_probability:
            raise InputError(
                "confidence needs a classifier with predict_proba, and this one has none. Leave it "
                "out."
            )
    if plausibility is not None and not (_is_number(plausibility) and 0 <= plausibility < 1):
        raise InputError(
            f"plausibility is {plausibility!r}; it is a share between 0 and 1: for the 5th "
            "percentile write 0.05."
        )
    accepted_row = fitted.prototypes[0].cells[None]
    instances = read_instances(X, fitted.schema, classifier, target, known_row=accepted_row)
    for code in np.unique(instances.target_code[instances.target_code >= 0]):
        if target is not None and not fitted.of_label(int(code)):
            raise InputError(
                f"There is no valid prototype of label {fitted.labels[code]!r}: it had too few "
                "training rows, or the classifier accepted none. The report says which."
            )
    immutable = [Shorthand("fixed", (name,)) for name, cost in weights.items() if cost == np.inf]
    finite = {name: cost for name, cost in weights.items() if cost != np.inf}
    instances.schema.weights(finite)  # refuses unknown columns and negative costs
    return Problem(
        fitted,
        classifier,
        instances,
        _bind((*fitted.rules, *parse_all(constraints), *immutable), instances),
        search or Search(),
        finite,
        confidence,
        plausibility,
        None if candidates is None else read_candidates(candidates, instances),
    )


def _bind(constraints: Sequence[str | Constraint], instances: LabelledInstances) -> System:
    """Binds constraints to the columns; refuses those that no row at all can satisfy.

    Where instances have values outside what training saw, more may be feasible for them than the
    schema says, and feasibility is decided for each instance instead.
    """
    unseen = False
    for feature, values in zip(instances.schema.features, instances.cells.T, strict=True):
        beyond = (values < feature.lower) | (values > feature.upper)
        unseen |= bool(feature.extra) or (not feature.categories and bool(beyond.any()))
    system = System.of(constraints, instances.schema, check=not unseen, settle=True)
    broken = {
        f"'{bound.constraint}'": ~bound.applies(instances.schema, instances.cells)
        for bound in system.bound
        if bound.learned
    }
    texts = [text for text, rows in broken.items() if rows.any()]
    if texts:
        count, more = int(np.any(list(broken.values()), axis=0).sum()), len(texts) - NAMED
        warn(
            f"{count} of {len(instances)} instances break rules learned from the training table. "
            "Their counterfactuals need not keep these rules: "
            f"{', '.join(texts[:NAMED])}{f' and {more} more' if more > 0 else ''}."
        )
    return system


def _checked_costs(costs: Mapping[str, float] | None) -> Mapping[str, float]:
    if costs is not None and not isinstance(costs, Mapping):
        raise InputError("costs are given by column, such as {'income': 2.0}.")
    for name, cost in (costs or {}).items():
        if not _is_number(cost):
            raise InputError(f"The cost of '{name}' is {cost!r}; it must be a number.")
    return costs or {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def read_instances(
    X: Any, schema: Schema, classifier: Classifier, target: Any = None, *, known_row: Floats
) -> LabelledInstances:
    """Reads a table of instances, queries the classifier about them and parses the targets.

    Args:
        X: The instances, as a table of any kind that `table` reads.
        schema: The columns of the training table.
        classifier: The classifier, its labels known.
        target: A label, a sequence with one label per instance, or `"any-other"`; with two
            classes it may be None: the other one.
        known_row: Cells of a row, (1, d), that the classifier is known to accept.

    Raises:
        InputError: The table or the target cannot be used.
        ClassifierError: The classifier raises on the instances and on `known_row` too.

    Examples:
        >>> from lapace.classifier import Classifier, query_rows
        >>> table = [{"age": age} for age in range(20, 60)]
        >>> schema = Schema.infer(table)
        >>> predict = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> classifier = Classifier(predict, schema)
        >>> codes = classifier.fit_labels(schema.cells(table))
        >>> known = schema.cells(table[:1])
        >>> rows = [{"age": 30}, {"age": "?"}]
        >>> instances = read_instances(rows, schema, classifier, known_row=known)
        >>> instances.label_code.tolist(), instances.target_code.tolist()
        ([0, -1], [1, -1])
        >>> list(instances.malformed)
        [1]
    """
    reading = schema.read(X)
    count = len(reading.cells)
    readable = np.setdiff1d(np.arange(count), list(reading.problems)).astype(np.int64)
    label, probability = np.full(count, -1), np.full((count, len(classifier.labels)), np.nan)
    found, refused = query_rows(
        classifier, reading.cells[readable], reading.schema, known_row=known_row
    )
    label[readable], probability[readable] = found.codes, found.probability
    malformed = dict(reading.problems) | {int(readable[i]): why for i, why in refused.items()}
    targets = _target_codes(target, label, classifier)
    return LabelledInstances(reading, label, probability, targets, dict(sorted(malformed.items())))


def _target_codes(target: Any, label: Ints, classifier: Classifier) -> Ints:
    """The target of each instance as a position in the labels; -1 for any other."""
    labels, count = classifier.labels, len(label)
    if target is None:
        if len(labels) > 2:
            raise InputError(
                f"There are {len(labels)} labels, so the target must be named: one of "
                f"{', '.join(map(repr, labels))}, one for each instance, or {ANY_OTHER!r}."
            )
        return np.where(label < 0, -1, 1 - label)
    if isinstance(target, Set | Mapping):
        raise InputError(f"target is a {type(target).__name__}, which has no order; {TARGETS}.")
    dimensions = len(getattr(target, "shape", (0,)))
    if dimensions > 1:
        raise InputError(
            f"target is a {type(target).__name__} with {dimensions} dimensions; {TARGETS}."
        )
    if isinstance(target, str) or not dimensions or not hasattr(target, "__len__"):
        return np.full(count, _target_code(target, classifier))
    if len(target) != count:
        raise InputError(f"There are {len(target)} targets for {count} instances; {TARGETS}.")
    return np.array([_target_code(each, classifier) for each in target], dtype=np.int64)


def _target_code(target: Any, classifier: Classifier) -> int:
    if isinstance(target, str) and target == ANY_OTHER and ANY_OTHER not in classifier.labels:
        return -1
    if isinstance(target, str) and target == "opposite" and target not in classifier.labels:
        raise InputError(
            "The classifier never predicts 'opposite'. With two labels leave target out; with more "
            f"write target={ANY_OTHER!r}."
        )
    return classifier.code(target)


def read_candidates(candidates: Any, instances: LabelledInstances) -> InstanceRows:
    """Reads rows to be considered: every pick of an earlier explanation, or a table's rows.

    Args:
        candidates: An `Explanation` of the same instances in the same order, or a table with their
            columns and a column `instance`: the id of the instance, or its position where the
            instances have no ids.
        instances: The instances of the query.
    """
    if isinstance(candidates, Explanation):
        return _rows_of(candidates, instances)
    table = read(candidates)
    if "instance" not in table.columns:
        raise InputError(
            "candidates need a column 'instance': the id of the instance each row is for, or its "
            "position, counted from 0."
        )
    column = as_coded(table.columns["instance"].values)
    if (column.codes < 0).any():
        raise InputError("candidates have a row without an instance.")
    ids = instances.reading.ids
    positions: dict[str, list[int]] = {}
    for i, name in enumerate(range(len(instances)) if ids is None else ids):
        positions.setdefault(spelling(name), []).append(i)  # several instances may share an id
    pairs = []
    for row, code in enumerate(column.codes):
        name = spelling(column.levels[code])
        if name not in positions:
            raise InputError(f"candidates name an instance that is not in the query: {name!r}.")
        pairs += [(row, i) for i in positions[name]]
    rows, instance = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    reading = instances.schema.read(candidates).checked()
    if reading.schema != instances.schema:
        raise InputError("candidates have a category that neither training nor the instances have.")
    return InstanceRows.of(reading.cells[rows], instance)


def _rows_of(explanation: Explanation, instances: LabelledInstances) -> InstanceRows:
    """The rows of every pick of an explanation of the same instances."""
    levels = [
        [(feature.name, feature.levels) for feature in schema.features]
        for schema in (explanation.schema, instances.schema)
    ]
    same = np.array_equal(explanation.instances, instances.cells, equal_nan=True)
    if levels[0] != levels[1] or not same:
        raise InputError("candidates are an explanation of other instances than those of X.")
    on_path = [getattr(explanation, pick)() for pick in explanation.picked]
    picks = [*explanation.minimal.values(), *on_path]
    return InstanceRows.of(
        np.concatenate([instances.cells[:0], *(pick.cells for pick in picks)]),
        np.concatenate([np.zeros(0, np.int64), *(pick.instance for pick in picks)]),
    )
