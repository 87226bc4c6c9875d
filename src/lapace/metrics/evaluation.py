"""What it cost, and all the metrics that apply, in one call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from lapace.arrays import Bools, Floats, Ints
from lapace.classifiers import Classifier, wrap
from lapace.errors import InputError
from lapace.metrics.answers import (
    diversity,
    number_share,
    proximity,
    recrossing,
    satisfaction,
    sparsity,
    validity,
)
from lapace.metrics.generator import privacy
from lapace.metrics.plausibility import Plausibility, density, typical
from lapace.metrics.robustness import input_robustness, model_robustness
from lapace.metrics.space import join, mean, median, nearest, recode
from lapace.result import Counterfactuals
from lapace.schema import Schema


class _Counts(Protocol):
    @property
    def n_queries(self) -> int: ...


@dataclass
class Spent:
    """What a block of code cost, filled in when the block ends.

    Attributes:
        seconds: Wall-clock time.
        n_queries: Rows the classifier was asked about; 0 when none was given.

    Examples:
        >>> Spent(seconds=3.0, n_queries=600).per(instances=50)
        Spent(seconds=6.0, n_queries=1200.0)
    """

    seconds: float = math.nan
    n_queries: float = 0

    def per(self, instances: int, of: int = 100) -> Spent:
        """The same per 100 instances, as the paper has it; NaN per nobody.

        Examples:
            >>> Spent(seconds=1.0).per(instances=200).seconds
            0.5
        """
        if not instances:
            return Spent(math.nan, math.nan)
        return Spent(self.seconds * of / instances, self.n_queries * of / instances)


@contextmanager
def spending(classifier: _Counts | None = None) -> Iterator[Spent]:
    """Times a block and counts the rows a (wrapped) classifier is asked about in it.

    Examples:
        >>> with spending() as spent:
        ...     _ = sum(range(1000))
        >>> spent.seconds > 0, spent.n_queries
        (True, 0)
    """
    spent = Spent()
    before, start = 0 if classifier is None else classifier.n_queries, perf_counter()
    try:
        yield spent
    finally:
        spent.seconds = perf_counter() - start
        spent.n_queries = 0 if classifier is None else classifier.n_queries - before


@dataclass(frozen=True)
class Reference:
    """A training table with what the classifier says of it: prepared once, compared with often.

    Attributes:
        schema: The columns, widened by what only these rows have.
        classifier: The classifier, its labels known.
        cells: The rows.
        codes: Their labels, as positions in the classifier's.
        seed: Of everything random in `Plausibility`.

    Examples:
        >>> rows = np.linspace(0.0, 2.5, 11)[:, None]
        >>> reference = Reference.of(rows, lambda rows: rows[:, 0] > 1, Schema.infer(rows))
        >>> len(reference.rows_of(1)), len(reference.plausibility(0).rows)
        (6, 5)
    """

    schema: Schema
    classifier: Classifier
    cells: Floats = field(repr=False)
    codes: Ints = field(repr=False)
    seed: int = 0

    @classmethod
    def of(cls, table: Any, classifier: Any, schema: Schema, seed: int = 0) -> Reference:
        """Reads the table and asks the classifier about each row once.

        Args:
            table: The training rows, a table of any kind that can be read.
            classifier: The user's own model, or a wrapped one (its count is left alone).
            schema: Of the answers to be compared.
            seed: Of everything random in `Plausibility`.

        Examples:
            >>> rows = np.linspace(0.0, 2.5, 11)[:, None]
            >>> reference = Reference.of(rows, lambda rows: rows[:, 0] > 1, Schema.infer(rows))
            >>> reference.classifier.labels, reference.codes.tolist()
            ((False, True), [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
        """
        schema, cells = _read(table, schema)
        if isinstance(classifier, Classifier) and classifier.labels:
            box = wrap(classifier.model, schema, classifier.labels)
            return cls(schema, box, cells, box.predict(cells), seed)
        box = wrap(classifier.model if isinstance(classifier, Classifier) else classifier, schema)
        return cls(schema, box, cells, box.fit_labels(cells), seed)

    def rows_of(self, code: int) -> Floats:
        """The rows the classifier gives one label.

        Examples:
            >>> rows = np.linspace(0.0, 2.5, 6)[:, None]
            >>> Reference.of(rows, lambda rows: rows[:, 0] > 1, Schema.infer(rows)).rows_of(0)
            array([[0. ], [0.5], [1. ]])
        """
        rows: Floats = self.cells[self.codes == code]
        return rows

    def plausibility(self, code: int) -> Plausibility:
        """What rows of one label look like; the same object each time, so its work is kept.

        Examples:
            >>> rows = np.linspace(0.0, 2.5, 6)[:, None]
            >>> reference = Reference.of(rows, lambda rows: rows[:, 0] > 1, Schema.infer(rows))
            >>> reference.plausibility(1) is reference.plausibility(1)
            True
        """
        return self._plausibility[code]

    @cached_property
    def _plausibility(self) -> tuple[Plausibility, ...]:
        labels = range(len(self.classifier.labels))
        return tuple(Plausibility.of(self.schema, self.rows_of(k), seed=self.seed) for k in labels)


def votes(answers: Counterfactuals, classifier: Classifier, retrained: Sequence[Any]) -> Bools:
    """Which retrained classifiers still give each answer the label the classifier gives it.

    Args:
        answers: Valid answers; others are held to the label they have, not the one wanted.
        classifier: The classifier they were made for, its labels known.
        retrained: Models of the same kind of rows.

    Returns:
        (models, answers) flags, for `model_robustness`.

    Examples:
        >>> rows = np.linspace(0.0, 2.5, 11)[:, None]
        >>> reference = Reference.of(rows, lambda rows: rows[:, 0] > 1, Schema.infer(rows))
        >>> instance, valid = np.array([0, 0]), np.array([True, True])
        >>> answers = Counterfactuals.of(reference.schema, rows[:1], rows[[5, 9]], instance, valid=valid)
        >>> votes(answers, reference.classifier, [lambda rows: rows[:, 0] > 2])
        array([[False,  True]])
    """
    schema, cells = answers.schema, answers.cells
    found = np.zeros((len(retrained), len(cells)), dtype=bool)
    if not found.size:
        return found
    wanted = _labels(classifier, cells, schema)
    for row, model in zip(found, retrained, strict=True):
        # A model trained on other rows may know labels the first never gave; they are not it.
        known = np.asarray(getattr(model, "classes_", ())).tolist()
        row[:] = _labels(wrap(model, schema, (*classifier.labels, *known)), cells, schema) == wanted
    return found


def evaluate(
    answers: Counterfactuals,
    *,
    reference: Any,
    classifier: Any = None,
    tried: ArrayLike | None = None,
    held_out: Any = None,
    retrained: Sequence[Any] = (),
    again: Sequence[Counterfactuals] = (),
    steps: ArrayLike | None = None,
    spent: Spent | None = None,
) -> dict[str, float]:
    """All metrics that apply, by name.

    `validity` and `satisfaction` look at all answers, everything else at those that are ok. An
    answer's plausibility is judged among the reference rows the classifier gives the answer's own
    label, which for an ok answer is the label wanted; instances may want different ones.

    | always | |
    |---|---|
    | `validity`, `valid_answers` | share of instances with a valid answer, of answers valid |
    | `satisfaction`, `feasible_answers` | instances with an ok answer, answers within constraints |
    | `distance`, `changed` | mean distance, mean number of features changed |
    | `number_share`, `category_share` | where the change falls |
    | `lof`, `lof_median` | local outlier factor, 20 neighbours |
    | `isolation`, `knn_distance` | isolation-forest score, mean distance to 5 nearest rows |
    | `density`, `density_median` | percentile of latent density; NaN where unknown |
    | `diversity` | NaN where everybody has one answer |
    | `training_distance`, `copies` | median distance to the nearest reference row, share at 0 |
    | **with** `held_out` | `held_out_distance`, `held_out_copies`, `privacy_ratio` |
    | **with** `retrained` | `model_robustness` |
    | **with** `again` | `input_distance`, `input_set_distance`, `input_max_set_distance` |
    | | and the counts `input_compared`, `input_flipped`, `input_lost` |
    | **with** `steps` | `recrossing` |
    | **with** `spent` | `seconds`, `rows_asked` |

    Args:
        answers: What a pick or a baseline returned.
        reference: The training table, or a `Reference`, which saves work when used again.
        classifier: The model; needed unless `reference` is a `Reference`.
        tried: Positions of the instances tried, as in `validity`.
        held_out: Rows of the same kind that nothing was fitted on.
        retrained: Models trained again.
        again: Answers for the same instances slightly perturbed, a round each. Whose own label
            flips is found by asking the classifier.
        steps: Valid flags along paths, as in `recrossing`.
        spent: What the answers cost.

    Examples:
        >>> rows = np.linspace(0.0, 2.5, 11)[:, None]
        >>> instance, valid = np.array([0]), np.array([True])
        >>> answers = Counterfactuals.of(Schema.infer(rows), rows[:1], rows[[5]], instance, valid=valid)
        >>> found = evaluate(answers, classifier=lambda rows: rows[:, 0] > 1, reference=rows)
        >>> found["validity"], found["distance"], found["copies"]
        (1.0, 0.5, 1.0)
    """
    if not isinstance(reference, Reference):
        if classifier is None:
            raise InputError("A table says nothing about labels: hand over the classifier too.")
        reference = Reference.of(reference, classifier, answers.schema)
    answers = _recoded(answers, join(reference.schema, answers.schema))
    good = answers.where(answers.ok)
    found = _worked(answers, tried) | _quality(good) | _likeness(good, reference)
    if held_out is not None:
        _, fresh = _read(held_out, good.schema)
        kept = privacy(good.schema, good.cells, reference.cells, fresh)
        found["held_out_distance"] = kept.held_out
        found["held_out_copies"] = kept.held_out_copies
        found["privacy_ratio"] = kept.ratio
    if retrained:
        kept_valid = votes(good, reference.classifier, retrained)
        found["model_robustness"] = model_robustness(kept_valid).mean
    if again:
        found |= _moved(answers, again, reference)
    if steps is not None:
        found["recrossing"] = recrossing(steps)
    if spent is not None:
        found |= {"seconds": spent.seconds, "rows_asked": float(spent.n_queries)}
    return found


def _worked(answers: Counterfactuals, tried: ArrayLike | None) -> dict[str, float]:
    valid, feasible = validity(answers, tried), satisfaction(answers, tried=tried)
    return {
        "validity": valid.instances,
        "valid_answers": valid.answers,
        "satisfaction": feasible.instances,
        "feasible_answers": feasible.answers,
    }


def _quality(good: Counterfactuals) -> dict[str, float]:
    on_numbers, latent = number_share(good), density(good)
    return {
        "distance": proximity(good),
        "changed": sparsity(good),
        "number_share": on_numbers,
        "category_share": 1.0 - on_numbers,
        "density": latent.mean,
        "density_median": latent.median,
        "diversity": diversity(good),
    }


def _likeness(good: Counterfactuals, reference: Reference) -> dict[str, float]:
    codes = reference.classifier.predict(good.cells, good.schema)
    lof, isolation, knn = (np.full(len(good), math.nan) for _ in range(3))
    for code in np.unique(codes):
        here, usual = codes == code, reference.plausibility(code)
        lof[here] = usual.lof(good.cells[here])
        isolation[here] = usual.isolation(good.cells[here])
        knn[here] = usual.knn(good.cells[here])
    to_training = nearest(good.schema, good.cells, reference.cells).ravel()
    return {
        "lof": typical(lof).mean,
        "lof_median": typical(lof).median,
        "isolation": typical(isolation).mean,
        "knn_distance": typical(knn).mean,
        "training_distance": median(to_training),
        "copies": mean(to_training == 0),
    }


def _moved(
    answers: Counterfactuals, again: Sequence[Counterfactuals], reference: Reference
) -> dict[str, float]:
    tried = np.unique(answers.instance)
    flipped = np.zeros((len(again), len(answers.instances)), dtype=bool)
    own = reference.classifier.predict(answers.instances[tried], answers.schema)
    for row, perturbed in zip(flipped, again, strict=True):
        instances = perturbed.instances[tried]
        row[tried] = reference.classifier.predict(instances, perturbed.schema) != own
    found = input_robustness(answers, again, flipped)
    return {f"input_{name}": float(value) for name, value in found._asdict().items()}


def _labels(classifier: Classifier, cells: Floats, schema: Schema) -> Any:
    return np.array(classifier.labels, dtype=object)[classifier.predict(cells, schema)]


def _read(table: Any, schema: Schema) -> tuple[Schema, Floats]:
    reading = schema.read(table)
    if reading.problems:
        raise InputError(min(reading.problems.items())[1])
    return reading.schema, reading.cells


def _recoded(answers: Counterfactuals, schema: Schema) -> Counterfactuals:
    instances = recode(answers.instances, answers.schema, schema)
    cells = recode(answers.cells, answers.schema, schema)
    return replace(answers, schema=schema, instances=instances, cells=cells)
