"""Rows made to obey, then shown to the classifier."""

from __future__ import annotations

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.classifiers import Classifier, Prediction
from lapace.errors import ClassifierError
from lapace.explainer.problem import Instances, Question
from lapace.paths import Steps

__all__ = ["Judge", "refuse_if_gone"]


PATIENCE = 200  # rows of paths a classifier may raise on before it is taken to be broken


def refuse_if_gone(
    classifier: Classifier, known: Instances, instance: Ints, error: ClassifierError
) -> None:
    """A classifier that refuses whom it has judged is gone: asking on would take for ever."""
    try:
        classifier.query(known.reading.cells[instance[:1]], known.reading.schema)
    except ClassifierError:
        raise error from None


class Judge:
    """Makes rows obey, then asks the classifier: is it the label the line is for?"""

    def __init__(
        self,
        classifier: Classifier,
        known: Instances,
        instance: Ints,
        label: Ints,
        question: Question,
    ) -> None:
        self.classifier = classifier
        self.known = known
        self.instance = instance  # (lines,)
        self.any_other = known.target[instance] < 0  # (lines,)
        self.own = known.label[instance]
        self.label = label
        self.question = question
        self.refused = 0  # rows the classifier raised on

    def __call__(self, tau: Floats, cells: Floats, lines: Ints) -> Steps:
        """The rows as they may be offered, judged, given the line each lies on."""
        cells, feasible = self.obeying(cells, lines)
        valid, probability = self._verdict(self._ask(cells), lines)
        return Steps.of(tau, cells, valid, feasible, probability)

    def as_it_is(self, cells: Floats, lines: Ints) -> Steps:
        """Rows judged without moving them."""
        feasible = self.known.system.feasible(cells, self.known.reading.cells[self.instance[lines]])
        valid, probability = self._verdict(self._ask(cells), lines)
        return Steps.of(np.zeros(len(cells)), cells, valid, feasible, probability)

    def _ask(self, cells: Floats) -> Prediction:
        """What the classifier says; a row it raises on alone is no answer, and costs no other."""
        try:
            with self.known.timed("classifier"):
                return self.classifier.query(cells, self.known.reading.schema)
        except ClassifierError as error:
            refuse_if_gone(self.classifier, self.known, self.instance, error)
            self.refused += len(cells) == 1
            if self.refused > PATIENCE:
                raise
            if len(cells) == 1:
                nothing = np.full((1, len(self.classifier.labels)), np.nan)
                known = nothing if self.classifier.has_probability else None
                return Prediction(np.array([-1]), known)
        half = len(cells) // 2
        left, right = self._ask(cells[:half]), self._ask(cells[half:])
        codes = np.concatenate([left.codes, right.codes])
        if left.probability is None or right.probability is None:
            return Prediction(codes, None)
        return Prediction(codes, np.concatenate([left.probability, right.probability]))

    def obeying(self, cells: Floats, lines: Ints) -> tuple[Floats, Bools]:
        """The rows moved to where every constraint holds; who cannot is remembered."""
        if not len(self.known.system):
            return cells, np.ones(len(cells), dtype=bool)
        if self.question.enforce == "latent":  # the paper's gradient, and nothing after it
            instances = self.known.reading.cells[self.instance[lines]]
            return cells, self.known.system.feasible(cells, instances)
        instance, impossible = self.instance[lines], self.known.impossible
        possible = np.flatnonzero(
            ~np.isin(instance, list(impossible))
        )  # the others are proved already
        instances = self.known.reading.cells[instance[possible]]
        with self.known.timed("constraints"):
            moved = self.known.system.project(cells[possible], instances, costs=self.question.costs)
        impossible.update(instance[possible][moved.proved_infeasible].tolist())
        cells, feasible = cells.copy(), np.zeros(len(cells), dtype=bool)
        cells[possible], feasible[possible] = moved.cells, moved.feasible
        return cells, feasible

    def _verdict(self, found: Prediction, lines: Ints) -> tuple[Bools, Floats]:
        """What the classifier's answer means for the lines it was asked for."""
        other, own, label = self.any_other[lines], self.own[lines], self.label[lines]
        valid = np.where(other, found.codes != own, found.codes == label) & (found.codes >= 0)
        rows, each = np.arange(len(lines)), found.probability
        if each is None:
            return valid, np.full(len(lines), np.nan)
        probability = np.where(other, 1.0 - each[rows, own], each[rows, label])
        if self.question.confidence is not None:
            valid &= probability >= self.question.confidence
        return valid, probability
