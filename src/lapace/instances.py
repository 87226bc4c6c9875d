"""Reads instances and queries the classifier about them, once for explainer and baselines alike."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.classifiers import Classifier
from lapace.errors import ClassifierError, InputError, RowsError
from lapace.result import ANY_OTHER
from lapace.schema import Reading, Schema

__all__ = ["ANY_OTHER", "LabelledInstances", "query_rows", "read_instances"]

TARGETS = f'give one label, a sequence with one label per instance, or "{ANY_OTHER}"'


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
        >>> from lapace.classifiers import Classifier
        >>> table = [{"age": age} for age in range(20, 60)]
        >>> schema = Schema.infer(table)
        >>> predict = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> classifier = Classifier(predict, schema)
        >>> codes = classifier.fit_labels(schema.cells(table))
        >>> known = schema.cells(table[:1])
        >>> found = read_instances([{"age": 30}, {"age": "?"}], schema, classifier, known_row=known)
        >>> found.label_code.tolist(), found.target_code.tolist(), list(found.malformed)
        ([0, -1], [1, -1], [1])
    """
    reading = schema.read(X)
    count = len(reading.cells)
    readable = np.setdiff1d(np.arange(count), list(reading.problems)).astype(np.int64)
    label, probability = np.full(count, -1), np.full((count, len(classifier.labels)), np.nan)
    label[readable], probability[readable], refused = query_rows(
        classifier, reading.cells[readable], reading.schema, known_row=known_row
    )
    malformed = dict(reading.problems) | {int(readable[i]): why for i, why in refused.items()}
    targets = _target_codes(target, label, classifier)
    return LabelledInstances(reading, label, probability, targets, dict(sorted(malformed.items())))


def query_rows(
    classifier: Classifier,
    cells: Floats,
    schema: Schema,
    *,
    known_row: Floats,
    max_refused: int | None = None,
) -> tuple[Ints, Floats, dict[int, str]]:
    """Queries the classifier in one call; where it raises, halves find the rows it raises on.

    A row is refused once the classifier has raised twice on it alone, and answered in between: a
    service that fails for a moment and recovers has nothing against the row.

    Args:
        classifier: The classifier, its labels known.
        cells: The rows, (n, d).
        schema: The columns, with every level the rows have.
        known_row: Cells of a row, (1, d), that the classifier is known to accept. If it raises on
            this row too, the classifier itself is broken and its error is passed on.
        max_refused: Rows the classifier may raise on before its error is passed on.

    Returns:
        Label codes, -1 for a row it raises on; probabilities of each label, (n, labels), NaN
        where unknown; and the errors, by row.
    """
    codes, found = np.full(len(cells), -1), np.full((len(cells), len(classifier.labels)), np.nan)
    refused: dict[int, str] = {}
    parts, again = [np.arange(len(cells))] if len(cells) else [], -1
    while parts:
        part = parts.pop()
        try:
            codes[part], known = classifier.query(cells[part], schema)
            found[part] = np.nan if known is None else known
        except RowsError as error:
            refused |= {int(part[i]): why for i, why in error.rows.items()}
            left = np.delete(part, [*error.rows])
            parts += [left] if len(left) else []
            if max_refused is not None and len(refused) > max_refused:
                raise
        except ClassifierError as error:
            try:
                classifier.query(known_row, schema)
            except ClassifierError:
                raise error from None
            if len(part) > 1:
                parts += reversed(np.array_split(part, 2))
                continue
            if again != part[0]:
                again = part[0]
                parts.append(part)
                continue
            refused[int(part[0])] = str(error)
            if max_refused is not None and len(refused) > max_refused:
                raise
    return codes, found, refused


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
    return classifier.code(target)
