"""What all baselines share: the training rows, the instances of a query, and the rows accepted.

`TrainingIndex` is what `fit` keeps: the distinct training rows and the classifier's label of each.
`TrainingIndex.problem` reads the instances, targets and constraints of a query. A method proposes
rows for them; `BaselineProblem.accepted` queries the classifier about these rows, exactly as they
will be returned, and keeps the counterfactuals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.classifiers import Classifier
from lapace.constraints import Constraint, System
from lapace.errors import InputError, NotFittedError
from lapace.instances import LabelledInstances, query_rows, read_instances
from lapace.result import Counterfactuals
from lapace.schema import Feature, Schema

__all__ = ["BaselineProblem", "TrainingIndex", "problem_of", "unanswered"]

SchemaLike: TypeAlias = Schema | Mapping[str, str | Feature] | None
Constraints: TypeAlias = str | Constraint | Iterable[str | Constraint]

BLOCK = 4_000_000  # distances held at once: 32 MB
MAX_REFUSED = 200  # proposed rows the classifier may raise on before its error is passed on


def unanswered(counterfactuals: Counterfactuals) -> Ints:
    """Positions of the instances without a counterfactual that is ok.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> instances, row, instance = np.array([[0.0], [1.25]]), np.array([[2.5]]), np.array([1])
        >>> unanswered(Counterfactuals.of(schema, instances, row, instance, valid=np.array([True])))
        array([0])
    """
    answered = counterfactuals.instance[counterfactuals.ok]
    return np.setdiff1d(np.arange(len(counterfactuals.instances)), answered)


@dataclass(frozen=True)
class TrainingIndex:
    """The training rows that may be proposed, and what the classifier predicts for them.

    Left out are rows with a category too rare to be proposed, or with a number outside the bounds
    of a schema that was handed over.

    Attributes:
        schema: The columns.
        classifier: The classifier.
        rows: Distinct training rows, in order of first appearance.
        counts: How often each occurs.
        codes: The classifier's label of each, as a position in its labels.
        probability: Of each label, (n, labels); None where the classifier offers none.
    """

    schema: Schema
    classifier: Classifier
    rows: Floats = field(repr=False)
    counts: Ints = field(repr=False)
    codes: Ints = field(repr=False)
    probability: Floats | None = field(repr=False)

    @classmethod
    def of(cls, classifier: Any, X: Any, schema: SchemaLike) -> TrainingIndex:
        """Reads the training table and queries the classifier about its rows."""
        reading = (schema if isinstance(schema, Schema) else Schema.infer(X, schema)).read(X)
        if reading.problems:
            raise InputError(min(reading.problems.items())[1])
        if not len(reading.cells):
            raise InputError("The training table has no rows.")
        schema = reading.schema  # with names for rare categories too, which some rows have
        first, counts = distinct_rows(reading.cells)
        rows = reading.cells[first]
        snapped = schema.snap(rows)
        proposed = ~(schema.changed(rows, snapped) | has_extra_level(schema, rows)).any(axis=1)
        if not proposed.any():
            raise InputError("No training row lies within the schema's bounds and categories.")
        rows, wrapped = snapped[proposed], Classifier(classifier, schema)
        codes = wrapped.fit_labels(rows)
        return cls(schema, wrapped, rows, counts[proposed], codes, wrapped.predict_proba(rows))

    def problem(self, X: Any, target: Any, constraints: Constraints = ()) -> BaselineProblem:
        """Reads the instances of a query and binds its constraints."""
        instances = read_instances(X, self.schema, self.classifier, target, known_row=self.rows[:1])
        system = System.of(constraints, instances.schema, check=False)
        return BaselineProblem(self, instances, system)


def problem_of(method: Any, X: Any, target: Any, constraints: Constraints) -> BaselineProblem:
    """The query of a fitted method."""
    training: TrainingIndex | None = getattr(method, "training_", None)
    if training is None:
        name = type(method).__name__
        raise NotFittedError(f"This {name} is not fitted yet. Call fit(X) first.")
    return training.problem(X, target, constraints)


@dataclass(frozen=True)
class BaselineProblem:
    """One query of a baseline.

    Attributes:
        training: The training rows.
        instances: The instances with their labels and targets.
        system: The constraints.
    """

    training: TrainingIndex
    instances: LabelledInstances
    system: System

    @property
    def schema(self) -> Schema:
        """The columns, widened by levels that only the instances have."""
        return self.instances.schema

    @property
    def cells(self) -> Floats:
        """The rows of all instances."""
        return self.instances.cells

    @property
    def goal(self) -> str:
        """What a counterfactual has to be, in words."""
        return "labelled as the target" + " and feasible" * (len(self.system) > 0)

    @cached_property
    def tried(self) -> Ints:
        """Positions of the instances to explain: with a label, and not the target's."""
        known = self.instances
        return np.flatnonzero((known.label_code >= 0) & ~known.already_target)

    def groups(self) -> Iterator[tuple[Ints, Bools]]:
        """The instances to explain, grouped by which training rows are candidates for them.

        A candidate has the target's label and satisfies the constraints. Where those refer to the
        instance, each instance is a group of its own.

        Yields:
            Positions of instances, and whether each training row is a candidate.
        """
        known, training = self.instances, self.training
        label, target = known.label_code[self.tried], known.target_code[self.tried]
        same = np.where(target >= 0, target, len(training.classifier.labels) + label)
        if self.system.mentions_original:
            same = self.tried
        for key in np.unique(same):
            group = self.tried[same == key]
            first = np.full(len(training.rows), group[0])
            candidate = known.reaches_target(training.codes, first)
            yield group, candidate & self.system.feasible(training.rows, self.cells[first])

    def accepts(self, cells: Floats, instance: Ints) -> Bools:
        """Whether each row is a counterfactual of its instance: different, feasible and valid.

        A row that the classifier raises on is not.
        """
        original = self.cells[instance]
        accepted = self.schema.changed(original, cells).any(axis=1)
        accepted &= self.system.feasible(cells, original)
        some = np.flatnonzero(accepted)
        codes, _ = self._query(cells[some], probability=False)
        accepted[some] = self.instances.reaches_target(codes, instance[some])
        return accepted

    def evaluate(self, cells: Floats, instance: Ints, **known: Any) -> Counterfactuals:
        """Rows as `Counterfactuals`: queried exactly as they are, constraints checked.

        Args:
            cells: The rows.
            instance: The position of the instance each is for.
            known: Further columns, such as `tau`.
        """
        codes, probability = self._query(cells, probability=True)
        original = self.cells[instance]
        changed = self.schema.changed(original, cells).any(axis=1)
        return Counterfactuals.of(
            self.schema,
            self.cells,
            cells,
            instance,
            valid=changed & self.instances.reaches_target(codes, instance),
            feasible=self.system.feasible(cells, original),
            label=np.array([*self.training.classifier.labels, None], dtype=object)[codes],
            probability=self.instances.target_probability(probability, instance),
            template=self.instances.reading.template,
            ids=self.instances.reading.ids,
            **known,
        )

    def accepted(
        self, cells: Floats, instance: Ints, reasons: Mapping[int, str] | None = None
    ) -> Counterfactuals:
        """Of the rows proposed those that are ok, by instance, and reasons for the others.

        Args:
            cells: The rows, on the schema's lattice.
            instance: The position of the instance each is for.
            reasons: Why some instances have no row, where the method knows.
        """
        order = np.argsort(instance, kind="stable")
        found = self.evaluate(cells[order], instance[order])
        found = found.where(found.ok)
        known, labels = self.instances, self.training.classifier.labels
        why = dict.fromkeys(self.tried.tolist(), f"No row {self.goal} was found.")
        why |= {**(reasons or {}), **known.malformed}
        for i in np.flatnonzero(known.already_target).tolist():
            why[i] = f"The classifier predicts {labels[known.label_code[i]]!r} already."
        return replace(found, reasons={i: why[i] for i in unanswered(found).tolist()})

    def stacked(self, parts: Sequence[tuple[Floats, Ints]]) -> tuple[Floats, Ints]:
        """Rows and the instances they are for, put together from parts of both."""
        none = np.empty((0, len(self.schema.features))), np.empty(0, dtype=np.int64)
        cells, instance = zip(none, *parts, strict=True)
        return np.concatenate(cells), np.concatenate(instance)

    def _query(self, cells: Floats, *, probability: bool) -> tuple[Ints, Floats]:
        known_row = self.training.rows[:1]
        return query_rows(
            self.training.classifier,
            cells,
            self.schema,
            known_row=known_row,
            probability=probability,
            max_refused=MAX_REFUSED,
        )[:2]

    def nearest(self, instance: Ints, rows: Floats, k: int) -> tuple[Floats, Ints]:
        """For each instance the k nearest of `rows`: distances, ascending, and which; (n, k) each.

        Fewer columns where there are fewer rows. Of equally near rows the earlier comes first.
        """
        k = min(k, len(rows))
        found, which = np.empty((len(instance), k)), np.empty((len(instance), k), dtype=np.int64)
        for part in blocks(len(instance) if k else 0, len(rows)):
            distance = self.schema.pairwise_distances(self.cells[instance[part]], rows)
            found[part], which[part] = smallest(distance, k)
        return found, which


def blocks(count: int, width: int) -> Iterator[slice]:
    """Slices of `count` rows, each small enough for a matrix of `width` columns."""
    size = max(1, BLOCK // max(1, width))
    return (slice(start, start + size) for start in range(0, count, size))


def smallest(values: Floats, k: int) -> tuple[Floats, Ints]:
    """The k smallest values of each row, ascending, and their positions; ties by position.

    Examples:
        >>> smallest(np.array([[3.0, 1.0, 2.0, 1.0]]), 3)
        (array([[1., 1., 2.]]), array([[1, 3, 2]]))
    """
    if k < values.shape[1] // 8:
        # All that are no larger than the k-th, so that ties are cut by position, not by chance.
        bound = np.partition(values, k - 1, axis=1)[:, k - 1 : k]
        which = np.empty((len(values), k), dtype=np.int64)
        for i, near in enumerate(values <= bound):
            places = np.flatnonzero(near)
            which[i] = places[np.argsort(values[i, places], kind="stable")[:k]]
    else:
        which = np.argsort(values, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(values, which, axis=1), which


# ------------------------------------------------------------------------------------------------
# Rows


def distinct_rows(cells: Floats) -> tuple[Ints, Ints]:
    """Positions at which each distinct row occurs first, ascending, and how often it occurs."""
    plain = np.ascontiguousarray(np.where(np.isnan(cells), np.nan, cells) + 0.0)  # one NaN, one 0
    keys = plain.view(np.dtype((np.void, plain.strides[0]))).ravel()
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    order = np.argsort(first)
    return first[order].astype(np.int64), counts[order].astype(np.int64)


def has_extra_level(schema: Schema, cells: Floats) -> Bools:
    """Whether each cell holds a level that is kept where it occurs, but never proposed."""
    known = [len(f.categories) if f.extra else np.inf for f in schema.features]
    extra: Bools = cells >= np.array(known)
    return extra


def interpolate(schema: Schema, start: Floats, end: Floats, share: Floats) -> Floats:
    """Rows at a share of the line from `start` (0) to `end` (1), on the schema's lattice.

    Numbers change in proportion; a category, or a cell missing on one side, changes at one half,
    which is where rounding an encoded row would change it. A cell equal at both ends stays.

    Examples:
        >>> schema = Schema.infer([{"age": 20 + i % 50, "home": "ab"[i % 2]} for i in range(100)])
        >>> start, end = np.array([[20.0, 0.0]]), np.array([[41.0, 1.0]])
        >>> interpolate(schema, start, end, np.array([0.4]))
        array([[28., 0.]])
    """
    share = share[:, None]
    ordered = np.array([f.numeric for f in schema.features]) & ~has_extra_level(schema, start)
    ordered &= ~has_extra_level(schema, end) & ~np.isnan(start) & ~np.isnan(end)
    moved = start + share * (np.where(ordered, end, start) - start)
    rows = schema.snap(np.where(ordered, moved, np.where(share >= 0.5, end, start)))
    rows = np.where(share >= 1, end, rows)
    return np.where(schema.changed(start, end), rows, start)
