"""What all baselines share: the training rows, the instances of a query, and the rows accepted.

`TrainingIndex` is what `fit` keeps: the distinct training rows and the classifier's label of each.
`BaselineProblem` holds the instances, targets and constraints of a query. A method proposes
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
from lapace.classifier import Classifier, query_rows
from lapace.constraints import Constraint, System
from lapace.errors import InputError
from lapace.explainer import NotFittedError
from lapace.explainer.problem import LabelledInstances, read_instances
from lapace.metrics import distinct_rows
from lapace.result import Counterfactuals
from lapace.schema import Feature, Override, Schema
from lapace.schema.distance import kneighbors

SchemaLike: TypeAlias = Schema | Mapping[str, Override] | None
Constraints: TypeAlias = str | Constraint | Iterable[str | Constraint]

MAX_REFUSED = 200  # proposed rows the classifier may raise on before its error is passed on


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
        known = schema if isinstance(schema, Schema) else Schema.infer(X, schema)
        reading = known.read(X).checked()
        if not len(reading.cells):
            raise InputError("The training table has no rows.")
        schema = reading.schema  # with names for rare categories too, which some rows have
        first, counts = distinct_rows(reading.cells)
        rows = reading.cells[first]
        snapped = schema.snap(rows)
        proposed = ~(schema.differs(rows, snapped) | schema.coding.unseen(rows)).any(axis=1)
        if not proposed.any():
            raise InputError("No training row lies within the schema's bounds and categories.")
        rows, wrapped = snapped[proposed], Classifier(classifier, schema)
        codes = wrapped.fit_labels(rows)
        probability = wrapped.query(rows).probability
        return cls(schema, wrapped, rows, counts[proposed], codes, probability)


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

    @classmethod
    def of(cls, method: Any, X: Any, target: Any, constraints: Constraints = ()) -> BaselineProblem:
        """Reads the instances of a query to a fitted method and binds its constraints."""
        training: TrainingIndex | None = getattr(method, "training_", None)
        if training is None:
            name = type(method).__name__
            raise NotFittedError(f"This {name} is not fitted yet. Call fit(X) first.")
        schema, classifier, known_row = training.schema, training.classifier, training.rows[:1]
        instances = read_instances(X, schema, classifier, target, known_row=known_row)
        return cls(training, instances, System.of(constraints, instances.schema, check=False))

    @property
    def schema(self) -> Schema:
        """The columns, widened by levels that only the instances have."""
        return self.instances.schema

    @property
    def cells(self) -> Floats:
        """The rows of all instances."""
        return self.instances.cells

    @cached_property
    def tried(self) -> Ints:
        """Positions of the instances to explain: with a label, and not the target's."""
        known = self.instances
        return np.flatnonzero((known.label_code >= 0) & ~known.already_target)

    def groups(self) -> Iterator[tuple[Ints, Bools]]:
        """The instances to explain, grouped by which training rows are candidates for them.

        A candidate has the target's label and satisfies the constraints. Where those refer to the
        instance, each instance is a group of its own. Groups without a candidate are left out.

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
            candidate &= self.system.feasible(training.rows, self.cells[first])
            if candidate.any():
                yield group, candidate

    def nearest(self, count: int) -> Iterator[tuple[Ints, Floats, Floats, Ints]]:
        """Searches the candidates that are closest to each instance, group by group.

        Yields:
            Positions of instances, the candidates of all of them, and the distances and positions
            of the `count` closest candidates, the closest first.
        """
        for group, candidate in self.groups():
            rows = self.training.rows[candidate]
            yield group, rows, *kneighbors(self.schema, self.cells[group], rows, count)

    def evaluate(self, cells: Floats, instance: Ints, **known: Any) -> Counterfactuals:
        """Returns rows as `Counterfactuals`: queried exactly as they are, constraints checked.

        A row that is the instance itself, or that the classifier raises on, is not valid.

        Args:
            cells: The rows.
            instance: The position of the instance each is for.
            known: Further columns, such as `tau`.
        """
        training, instances, original = self.training, self.instances, self.cells[instance]
        known_row, limit = training.rows[:1], MAX_REFUSED
        cells = self.schema.derive(cells, original)
        found, _ = query_rows(
            training.classifier, cells, self.schema, known_row=known_row, max_refused=limit
        )
        changed = self.schema.changed(original, cells).any(axis=1)
        return Counterfactuals.of(
            self.schema,
            self.cells,
            cells,
            instance,
            valid=changed & instances.reaches_target(found.codes, instance),
            feasible=self.system.feasible(cells, original)
            & self.schema.derived.derivable(cells, original),
            label=np.array([*training.classifier.labels, None], dtype=object)[found.codes],
            probability=instances.target_probability(found.probability, instance),
            template=instances.reading.template,
            ids=instances.reading.ids,
            **known,
        )

    def accepted(
        self,
        proposed: Sequence[tuple[Floats, Ints]],
        reason: str = "No valid and feasible row was found.",
        reasons: Mapping[int, str] | None = None,
    ) -> Counterfactuals:
        """Returns the proposed rows that are ok, by instance, with reasons for instances without.

        Args:
            proposed: Rows on the schema's lattice, and the positions of the instances they are for.
            reason: Why an instance has no row.
            reasons: Why some have none, where the method knows better.
        """
        none = np.empty((0, len(self.schema.features))), np.empty(0, dtype=np.int64)
        cells, instance = map(np.concatenate, zip(none, *proposed, strict=True))
        order = np.argsort(instance, kind="stable")
        found = self.evaluate(cells[order], instance[order])
        found = found.where(found.ok)
        known, labels = self.instances, self.training.classifier.labels
        why = dict.fromkeys(self.tried.tolist(), reason)
        why |= {**(reasons or {}), **known.malformed}
        for i in np.flatnonzero(known.already_target).tolist():
            why[i] = f"The classifier predicts {labels[known.label_code[i]]!r} already."
        missing = sorted(set(range(len(known))) - set(found.instance.tolist()))
        return replace(found, reasons={i: why[i] for i in missing})


def number_bounds(features: Sequence[Feature]) -> Floats:
    """Lower and upper bounds of each column's numbers, (2, d); infinite for categories."""
    return np.array([(f.lower, f.upper) if f.numeric else (-np.inf, np.inf) for f in features]).T


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
    numeric = np.array([f.numeric for f in schema.features])
    ordered = numeric & ~schema.coding.unseen(np.fmax(start, end)) & ~np.isnan(start + end)
    moved = np.where(ordered, start + share * (end - start), np.where(share >= 0.5, end, start))
    rows = np.where(share >= 1, end, schema.snap(moved))
    return np.where(schema.changed(start, end), rows, start)
