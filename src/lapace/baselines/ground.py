"""What every baseline stands on: the training rows, the instances, and the question between them.

`Ground` is what `fit` leaves behind: the distinct training rows on the schema's lattice and what
the classifier says of each. `Ground.meet` reads instances and their targets; `Asked.answered` asks
the classifier about the rows a method proposes, exactly as they will be returned, and keeps those
that are what the instance wants and not the instance. Whoever is left without a row gets a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.classifiers import Classifier, wrap
from lapace.errors import ClassifierError, InputError, NotFittedError
from lapace.metrics import distances
from lapace.result import Counterfactuals
from lapace.schema import Feature, Reading, Schema

__all__ = ["ANY_OTHER", "Asked", "Found", "Ground", "ground_of", "unanswered"]

Kinds: TypeAlias = Schema | Mapping[str, str | Feature] | None

ANY_OTHER = "any-other"
BLOCK = 4_000_000  # distances held at once: 32 MB
PATIENCE = 200  # rows a classifier may raise on, one by one, before it is taken to be broken
NOTHING = "Nothing was found that the classifier labels as wanted."


class Found(NamedTuple):
    """Answers, and why some instances have none.

    Attributes:
        answers: The rows, every one of them what the instance wants.
        reasons: For everyone without a row, by position in the query, why.
    """

    answers: Counterfactuals
    reasons: dict[int, str]


def unanswered(answers: Counterfactuals) -> Ints:
    """Positions of the instances who have no answer that is ok.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> instances, row, instance = np.array([[0.0], [1.25]]), np.array([[2.5]]), np.array([1])
        >>> unanswered(Counterfactuals.of(schema, instances, row, instance, valid=np.array([True])))
        array([0])
    """
    return np.setdiff1d(np.arange(len(answers.instances)), answers.instance[answers.ok])


# ------------------------------------------------------------------------------------------------
# Training rows


@dataclass(frozen=True)
class Ground:
    """The training rows and what the classifier says of them.

    Rows that answers may not be (a category too rare to be proposed, a number outside the bounds
    of a schema that was handed over) are left out.

    Attributes:
        schema: The columns.
        classifier: The black box.
        rows: Distinct training rows, in order of first appearance.
        counts: How often each occurs.
        codes: The classifier's label of each.
        probability: Of each label, (n, labels); None where the classifier offers none.
    """

    schema: Schema
    classifier: Classifier
    rows: Floats = field(repr=False)
    counts: Ints = field(repr=False)
    codes: Ints = field(repr=False)
    probability: Floats | None = field(repr=False)

    @classmethod
    def of(cls, classifier: Any, train: Any, schema: Kinds) -> Ground:
        """Reads the training table and asks the classifier about its rows, once."""
        known = schema if isinstance(schema, Schema) else Schema.infer(train, schema)
        reading = known.read(train)
        if reading.problems:
            raise InputError(min(reading.problems.items())[1])
        known = reading.schema  # rare categories are in the rows all the same, and have names
        rows, counts = _distinct(reading.cells)
        snapped = known.snap(rows)
        proposed = ~(known.changed(rows, snapped) | _unproposed(known, rows)).any(axis=1)
        if not proposed.any():
            raise InputError("No training row lies within the schema's bounds and categories.")
        asked = wrap(classifier, known)
        rows, counts = snapped[proposed], counts[proposed]
        codes = asked.fit_labels(rows)
        return cls(known, asked, rows, counts, codes, asked.predict_proba(rows))

    def meet(self, instances: Any, target: Any) -> Asked:
        """Reads instances, asks the classifier about them, and settles what each one wants."""
        reading = self.schema.read(instances)
        classifier = self.classifier.with_fresh_count()
        reasons = dict(reading.problems)
        label = np.full(len(reading.cells), -1, dtype=np.int64)
        good = np.array([i for i in range(len(label)) if i not in reasons], dtype=np.int64)
        codes, trouble = _labels(classifier, reading.cells[good], reading.schema, self.rows[:1])
        label[good] = codes
        reasons |= {int(good[i]): text for i, text in trouble.items()}
        wanted = _targets(classifier, target, label)
        there = (label == wanted) & (label >= 0)
        for i in np.flatnonzero(there).tolist():
            reasons[i] = f"The classifier says {classifier.labels[label[i]]!r} already."
        tried = np.flatnonzero((label >= 0) & ~there)
        return Asked(self, classifier, reading, label, wanted, tried, dict(sorted(reasons.items())))


def ground_of(method: Any) -> Ground:
    """What a method's `fit` left behind."""
    ground: Ground | None = getattr(method, "ground_", None)
    if ground is None:
        raise NotFittedError(
            f"This {type(method).__name__} knows nothing yet. Call fit(train) first."
        )
    return ground


def _distinct(cells: Floats) -> tuple[Floats, Ints]:
    """The different rows, in order of first appearance, and how often each occurs."""
    rows = np.ascontiguousarray(np.where(np.isnan(cells), np.nan, cells) + 0.0)
    if not rows.size:
        raise InputError("The training table has no rows.")
    keys = rows.view(np.dtype((np.void, rows.strides[0]))).ravel()
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    order = np.argsort(first)
    return rows[first[order]], counts[order].astype(np.int64)


def _unproposed(schema: Schema, cells: Floats) -> Bools:
    """Cells with a level that is kept but never proposed."""
    most = [len(f.categories) if f.extra else np.inf for f in schema.features]
    odd: Bools = cells >= np.array(most)
    return odd


def _labels(
    classifier: Classifier, cells: Floats, schema: Schema, usual: Floats
) -> tuple[Ints, dict[int, str]]:
    """Labels of rows, -1 where the classifier raises; halves find the rows it raises on.

    One that raises on all of them, and on a usual row as well, is at fault itself.
    """
    labels = np.full(len(cells), -1, dtype=np.int64)
    trouble: dict[int, str] = {}
    parts = [np.arange(len(cells))] if len(cells) else []
    while parts:
        part = parts.pop()
        try:
            labels[part] = classifier.predict(cells[part], schema)
        except ClassifierError as error:
            if len(trouble) >= PATIENCE:
                raise
            if len(part) == 1:
                trouble[int(part[0])] = str(error)
            else:
                parts += np.array_split(part, 2)
    if len(trouble) == len(cells) > 0:
        classifier.predict(usual, schema)
    return labels, trouble


def _targets(classifier: Classifier, target: Any, label: Ints) -> Ints:
    """The label each instance wants; -1 for any other than their own."""
    labels = classifier.labels
    if target is None:
        if len(labels) > 2:
            raise InputError(
                f"There are {len(labels)} labels, so the target must be named: one of "
                f"{', '.join(map(repr, labels))}, one for each instance, or {ANY_OTHER!r}."
            )
        return np.where(label < 0, -1, 1 - label)
    if isinstance(target, str) and target == ANY_OTHER and ANY_OTHER not in labels:
        return np.full(len(label), -1, dtype=np.int64)
    if isinstance(target, str) or not hasattr(target, "__len__"):
        return np.full(len(label), classifier.code(target), dtype=np.int64)
    if len(target) != len(label):
        raise InputError(f"There are {len(target)} targets for {len(label)} instances.")
    return np.array([classifier.code(t) for t in target], dtype=np.int64)


# ------------------------------------------------------------------------------------------------
# Instances


@dataclass(frozen=True)
class Asked:
    """Instances, what the classifier says of them, and what they want.

    Attributes:
        ground: The training rows.
        classifier: The black box, with a count of its own.
        reading: The instances's rows, and the schema widened by what only they have.
        label: What the classifier says of each; -1 where it cannot say.
        target: What each wants; -1 for any other label.
        tried: Positions of those an answer is looked for.
        reasons: Why the others are not tried.
    """

    ground: Ground
    classifier: Classifier
    reading: Reading
    label: Ints
    target: Ints
    tried: Ints
    reasons: dict[int, str]

    @property
    def schema(self) -> Schema:
        """The columns, widened by what only these instances have."""
        return self.reading.schema

    @property
    def instances(self) -> Floats:
        """Everyone's cells."""
        return self.reading.cells

    def wishes(self) -> list[tuple[Ints, int, int]]:
        """Those tried, grouped by (instances, label, target): what they want, they want alike."""
        pairs = np.stack([self.label[self.tried], self.target[self.tried]], axis=1)
        pairs[pairs[:, 1] >= 0, 0] = -1  # their own label matters only where any other will do
        kinds, which = np.unique(pairs, axis=0, return_inverse=True)
        return [
            (self.tried[which.ravel() == k], int(label), int(target))
            for k, (label, target) in enumerate(kinds.tolist())
        ]

    def wanted(self, codes: Ints, instance: Ints) -> Bools:
        """Whether labels are what instances want; label -1 is nobody's wish."""
        target = self.target[instance]
        good: Bools = np.where(target >= 0, codes == target, codes != self.label[instance])
        good &= codes >= 0
        return good

    def score(self, probability: Floats, instance: Ints) -> Floats:
        """The probability of what instances want: of the target, or of any label but their own."""
        rows, target = np.arange(len(instance)), self.target[instance]
        own = np.maximum(self.label[instance], 0)
        some: Floats = probability[rows, np.maximum(target, 0)]
        return np.where(target >= 0, some, 1.0 - probability[rows, own])

    def says(self, cells: Floats, instance: Ints) -> Bools:
        """Whether the classifier, asked about these rows for these instances, says what they want.

        A row that is the instance is not what they want, and neither is one the classifier raises
        on.
        """
        new = self.schema.changed(self.instances[instance], cells).any(axis=1)
        good = np.zeros(len(cells), dtype=bool)
        some = np.flatnonzero(new)
        codes, _ = _labels(self.classifier, cells[some], self.schema, self.ground.rows[:1])
        good[some] = self.wanted(codes, instance[some])
        return good

    def far(self, cells: Floats, rows: Floats) -> Floats:
        """`Schema.distance` of each of `cells` to each of `rows`, (n, m).

        Levels of an ordinal that training does not know have no place in its order: the rows that
        have one are compared column by column.
        """
        found = distances(self.schema, cells, rows)
        ordered = [i for i, f in enumerate(self.schema.features) if f.kind == "ordinal" and f.extra]
        odd = _unproposed(self.schema, cells)[:, ordered].any(axis=1)
        for i in np.flatnonzero(odd).tolist():
            found[i] = self.schema.gaps(cells[i], rows).sum(axis=1)
        return found

    def nearest(self, instance: Ints, rows: Floats, k: int) -> tuple[Floats, Ints]:
        """For each instance the k nearest of `rows`: distances, ascending, and which; (n, k) each.

        Fewer columns where there are fewer rows. Of equally near rows the earlier comes first.
        """
        k = min(k, len(rows))
        found, which = np.empty((len(instance), k)), np.empty((len(instance), k), dtype=np.int64)
        size = max(1, BLOCK // max(1, len(rows)))
        for start in range(0, len(instance) if k else 0, size):
            part = slice(start, start + size)
            far = self.far(self.instances[instance[part]], rows)  # (size, m)
            found[part], which[part] = smallest(far, k)
        return found, which

    def answered(
        self, cells: Floats, instance: Ints, reasons: Mapping[int, str] | None = None
    ) -> Found:
        """Rows proposed for instances as answers: asked about as they are, kept where they hold.

        Args:
            cells: The rows, on the lattice.
            instance: For whom each is.
            reasons: Why some of those tried have no row, where the method knows.
        """
        order = np.argsort(instance, kind="stable")
        cells, instance = cells[order], instance[order]
        good = self.says(cells, instance)
        cells, instance = cells[good], instance[good]
        probability = self.classifier.predict_proba(cells, self.schema)
        known: dict[str, Any] = {}
        if probability is not None:
            known["probability"] = self.score(probability, instance)
        answers = Counterfactuals.of(
            self.schema,
            self.instances,
            cells,
            instance,
            valid=np.ones(len(instance), dtype=bool),
            template=self.reading.template,
            **known,
        )
        told = {**dict.fromkeys(self.tried.tolist(), NOTHING), **(reasons or {}), **self.reasons}
        return Found(answers, {int(i): told[int(i)] for i in unanswered(answers)})


# ------------------------------------------------------------------------------------------------
# Rows between rows


def smallest(values: Floats, k: int) -> tuple[Floats, Ints]:
    """The k least of each row, ascending, and where they stand; the earlier of equals first.

    Examples:
        >>> smallest(np.array([[3.0, 1.0, 2.0, 1.0]]), 3)
        (array([[1., 1., 2.]]), array([[1, 3, 2]]))
    """
    if k < values.shape[1] // 8:
        # All that are no farther than the k-th, so that ties are cut by position, not by chance.
        bound = np.partition(values, k - 1, axis=1)[:, k - 1 : k]
        which = np.empty((len(values), k), dtype=np.int64)
        for i, near in enumerate(values <= bound):
            places = np.flatnonzero(near)
            which[i] = places[np.argsort(values[i, places], kind="stable")[:k]]
    else:
        which = np.argsort(values, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(values, which, axis=1), which


def between(schema: Schema, start: Floats, end: Floats, share: Floats) -> Floats:
    """Rows on the way from `start` (share 0) to `end` (share 1), on the lattice.

    Numbers go in proportion; a category, or a cell missing on one side, changes at half way, which
    is where rounding an encoded row would change it. A cell that is the same at both ends stays.

    Examples:
        >>> schema = Schema.infer([{"age": 20 + i % 50, "home": "ab"[i % 2]} for i in range(100)])
        >>> here, there = np.array([[20.0, 0.0]]), np.array([[41.0, 1.0]])
        >>> between(schema, here, there, np.array([0.4]))
        array([[28., 0.]])
    """
    share = share[:, None]
    ordered = np.array([f.numeric for f in schema.features]) & ~_unproposed(schema, start)
    ordered &= ~_unproposed(schema, end) & ~np.isnan(start) & ~np.isnan(end)
    going = start + share * (np.where(ordered, end, start) - start)
    rows = schema.snap(np.where(ordered, going, np.where(share >= 0.5, end, start)))
    rows = np.where(share >= 1, end, rows)
    return np.where(schema.changed(start, end), rows, start)


def whole(name: str, value: Any, least: int = 1) -> int:
    """A setting that has to be a whole number, or a sentence that says so."""
    try:
        number = None if isinstance(value, bool | np.bool_) else index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise InputError(f"{name} is {value!r}; it must be a whole number from {least} on.")
    return number


def number(name: str, value: Any, low: float, high: float = np.inf) -> float:
    """A setting that has to be a number in a range, or a sentence that says so."""
    fine = isinstance(value, int | float | np.number) and not isinstance(value, bool | np.bool_)
    if not (fine and low <= value <= high):
        upto = "on" if high == np.inf else f"to {high:g}"
        raise InputError(f"{name} is {value!r}; it must be a number from {low:g} {upto}.")
    return float(value)
