"""Decisions made of what a model predicts: ranges of a number, a probability, another threshold.

`binned` makes a classifier of a regressor, `from_probability` one of a model that predicts the
probability of one label, `threshold` one with another threshold than 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from lapace.arrays import Floats
from lapace.classifiers.outputs import Label, as_array, as_label, predict_method
from lapace.errors import ClassifierError, InputError, check_number

__all__ = [
    "BinnedRegressor",
    "ProbabilityModel",
    "ThresholdClassifier",
    "binned",
    "decision_thresholds",
    "from_probability",
    "threshold",
]


class BinnedRegressor:
    """A regressor as a classifier: its labels are the ranges its predictions fall into.

    Attributes:
        regressor: As given.
        edges: The upper end of every range but the last.
        classes_: The labels, lowest range first.
    """

    def __init__(self, regressor: Any, edges: Sequence[float], labels: Sequence[str] = ()) -> None:
        self.regressor = regressor
        self.edges = tuple(edges)
        self.classes_ = tuple(labels) or _range_labels(self.edges)
        self._predict = predict_method(regressor, "The regressor is")

    def predict(self, rows: Any) -> Any:
        """The label of the range that each prediction falls into."""
        found = as_array(self._predict(rows), "The regressor")
        try:
            numbers = found.astype(np.float64).reshape(len(found))
        except (TypeError, ValueError):
            raise ClassifierError(
                f"The regressor returned an array of shape {found.shape} and type {found.dtype}. "
                "It has to return one number per row."
            ) from None
        if np.isnan(numbers).any():
            raise ClassifierError("The regressor returned NaN for a row.")
        return np.array(self.classes_, dtype=object)[np.searchsorted(self.edges, numbers)]


def binned(regressor: Any, edges: Sequence[float], labels: Sequence[str] = ()) -> BinnedRegressor:
    """A regressor as a classifier, for counterfactuals that bring its prediction into a range.

    Args:
        regressor: A fitted object with `predict`, or a callable, that returns a number per row.
        edges: Where one range ends and the next begins, rising: an edge belongs to the range below.
        labels: A label for each range, lowest first; by default `<= 200`, `> 200, <= 400`,
            `> 400`.

    Examples:
        >>> price = binned(lambda rows: rows.sum(axis=1), [200, 400])
        >>> price.predict(np.array([[150.0, 50.0], [150.0, 90.0], [300.0, 200.0]])).tolist()
        ['<= 200', '> 200, <= 400', '> 400']
    """
    numbers = [check_number("an edge", edge) for edge in edges]
    if not numbers or any(b <= a for a, b in pairwise(numbers)):
        raise InputError(f"edges are {list(edges)}; they must be one or more rising numbers.")
    if labels and (len(labels) != len(numbers) + 1 or len(set(labels)) < len(labels)):
        raise InputError(
            f"There are {len(labels)} labels for {len(numbers) + 1} ranges; give each its own."
        )
    return BinnedRegressor(regressor, numbers, labels)


def _range_labels(edges: Sequence[float]) -> tuple[str, ...]:
    texts = [f"{edge:g}" if abs(edge) < 1e6 else f"{edge:.0f}" for edge in edges]
    between = [f"> {low}, <= {high}" for low, high in pairwise(texts)]
    return (f"<= {texts[0]}", *between, f"> {texts[-1]}")


class ProbabilityModel:
    """A model that predicts the probability of one of two labels, as a classifier.

    Attributes:
        model: As given.
        classes_: Both labels; the second is the one whose probability is predicted.
    """

    def __init__(self, model: Any, labels: Sequence[Label]) -> None:
        self.model = model
        self.classes_ = tuple(labels)
        self._predict = predict_method(model, "The model is")

    def predict_proba(self, rows: Any) -> Any:
        """The probabilities of both labels, (n, 2)."""
        found = as_array(self._predict(rows), "The model").astype(np.float64)
        second = found.reshape(len(found))
        if not ((second >= -1e-6) & (second <= 1 + 1e-6)).all():
            raise ClassifierError(
                "The model returned numbers that are not between 0 and 1. It has to return the "
                f"probability of {self.classes_[1]!r}, one per row."
            )
        return np.stack([1.0 - second, second], axis=1)

    def predict(self, rows: Any) -> Any:
        """The second label where its probability is over a half."""
        second = self.predict_proba(rows)[:, 1] > 0.5
        return np.array(self.classes_, dtype=object)[second.astype(np.int64)]


def from_probability(model: Any, labels: Sequence[Label]) -> ProbabilityModel:
    """A model that predicts a probability, as a classifier: statsmodels' results, a sigmoid.

    Args:
        model: An object with `predict`, or a callable, that returns a number from 0 to 1 per row.
        labels: Two labels; the number is the probability of the second.

    Examples:
        >>> risk = from_probability(lambda rows: rows[:, 0] / 10, ["safe", "risky"])
        >>> risk.predict(np.array([[2.0], [7.0]])).tolist()
        ['safe', 'risky']
    """
    if len(labels) != 2 or labels[0] == labels[1]:
        raise InputError(f"labels are {list(labels)}; there must be two that differ.")
    return ProbabilityModel(model, labels)


class ThresholdClassifier:
    """A classifier of two labels that predicts one of them from another probability on than 0.5.

    Attributes:
        classifier: As given.
        threshold: The probability of `positive` from which it is predicted.
        positive: The label.
        classes_: Both labels, as the classifier has them.
    """

    def __init__(self, classifier: Any, threshold: float, positive: Any = None) -> None:
        if not callable(getattr(classifier, "predict_proba", None)):
            raise InputError("A threshold needs a classifier with predict_proba.")
        classes = [as_label(v) for v in as_array(getattr(classifier, "classes_", ())).tolist()]
        if len(classes) != 2:
            raise InputError(
                f"A threshold decides between two labels; the classifier's classes_ has "
                f"{len(classes)}."
            )
        self.classifier = classifier
        self.threshold = check_number("threshold", threshold, 0, 1)
        self.classes_ = classes
        self.positive: Label = classes[1] if positive is None else as_label(positive)
        if self.positive not in classes:
            raise InputError(f"{self.positive!r} is not one of the labels {classes}.")

    def predict_proba(self, rows: Any) -> Any:
        """The classifier's probabilities, as they are."""
        return self.classifier.predict_proba(rows)

    def predict(self, rows: Any) -> Any:
        """`positive` where its probability reaches the threshold, else the other label."""
        found = as_array(self.predict_proba(rows), "The classifier").astype(np.float64)
        place = self.classes_.index(self.positive)
        reached = found[:, place] >= self.threshold
        labels = np.array(self.classes_, dtype=object)
        return labels[np.where(reached, place, 1 - place)]


def threshold(classifier: Any, value: float, positive: Any = None) -> ThresholdClassifier:
    """A classifier that decides by another threshold than 0.5.

    `FixedThresholdClassifier` of scikit-learn does the same, and is understood as well: margins and
    `confidence=` are in the classifier's own probabilities, and the margin that `best` asks for is
    counted from the threshold.

    Args:
        classifier: Fitted, with `predict_proba` and two `classes_`.
        value: The probability from which `positive` is predicted.
        positive: The label; by default the second of `classes_`.

    Examples:
        >>> from sklearn.linear_model import LogisticRegression
        >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), ["no", "no", "yes", "yes"]
        >>> careful = threshold(LogisticRegression().fit(X, y), 0.9)
        >>> careful.predict(X).tolist()
        ['no', 'no', 'no', 'no']
    """
    return ThresholdClassifier(classifier, value, positive)


def decision_thresholds(model: Any, labels: Sequence[Label]) -> Floats | None:
    """For each of two labels, the probability from which it is predicted; None where unknown.

    Known are `threshold`'s classifiers and scikit-learn's with a fixed or tuned threshold.
    """
    value: Any
    if isinstance(model, ThresholdClassifier):
        value, positive = model.threshold, model.positive
    elif type(model).__name__ in ("FixedThresholdClassifier", "TunedThresholdClassifierCV"):
        value = getattr(model, "best_threshold_", getattr(model, "threshold", "auto"))
        value = 0.5 if value == "auto" else float(value)
        chosen = getattr(model, "pos_label", None)
        positive = as_label(model.classes_[1] if chosen is None else chosen)
        if getattr(model, "response_method", "auto") == "decision_function":
            return None
    else:
        return None
    if len(labels) != 2 or positive not in labels:
        return None
    found: Floats = np.where([label == positive for label in labels], value, 1.0 - value)
    return found
