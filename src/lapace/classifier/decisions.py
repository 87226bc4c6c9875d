"""Classifiers made of other models.

`binned` makes one of a regressor, `from_probability` one of a model that predicts the probability
of one label, `threshold` one with another threshold than 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from lapace.classifier.outputs import Label, as_array, as_label, predict_method
from lapace.errors import ClassifierError, InputError, check_number

__all__ = ["ThresholdClassifier", "binned", "from_probability", "inner_model", "threshold"]


@dataclass(frozen=True, eq=False)
class BinnedRegressor:
    """A regressor as a classifier: its labels are the ranges its predictions fall into.

    Attributes:
        regressor: An object with `predict`, or a callable.
        edges: The upper end of every range but the last.
        classes_: The labels, lowest range first.
    """

    regressor: Any
    edges: tuple[float, ...]
    classes_: tuple[str, ...]

    def predict(self, rows: Any) -> Any:
        """Returns the label of the range that each prediction falls into."""
        returned = as_array(predict_method(self.regressor)(rows))
        try:
            numbers = returned.astype(np.float64).reshape(len(returned))
        except (TypeError, ValueError):
            numbers = np.array([np.nan])
        if np.isnan(numbers).any():
            raise ClassifierError(
                f"The regressor returned NaN, or an array of shape {returned.shape} and type "
                f"{returned.dtype}. It has to return one number per row."
            )
        return np.array(self.classes_, dtype=object)[np.searchsorted(self.edges, numbers)]


def binned(regressor: Any, edges: Sequence[float], labels: Sequence[str] = ()) -> BinnedRegressor:
    """Returns a regressor as a classifier, for counterfactuals that reach a range of predictions.

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
    predict_method(regressor, "The regressor is")
    numbers = tuple(check_number("an edge", edge) for edge in edges)
    if not numbers or any(b <= a for a, b in pairwise(numbers)):
        raise InputError(f"edges are {list(edges)}; they must be one or more rising numbers.")
    if labels and (len(labels) != len(numbers) + 1 or len(set(labels)) < len(labels)):
        raise InputError(
            f"There are {len(labels)} labels for {len(numbers) + 1} ranges; give each its own."
        )
    texts = [f"{edge:g}" if abs(edge) < 1e6 else f"{edge:.0f}" for edge in numbers]
    between = [f"> {low}, <= {high}" for low, high in pairwise(texts)]
    ranges = (f"<= {texts[0]}", *between, f"> {texts[-1]}")
    return BinnedRegressor(regressor, numbers, tuple(labels) or ranges)


@dataclass(frozen=True, eq=False)
class ProbabilityModel:
    """A model that predicts the probability of one of two labels, as a classifier.

    Attributes:
        model: An object with `predict`, or a callable.
        classes_: Both labels; the second is the one whose probability is predicted.
    """

    model: Any
    classes_: tuple[Label, ...]

    def predict_proba(self, rows: Any) -> Any:
        """Returns the probabilities of both labels, (n, 2)."""
        returned = as_array(predict_method(self.model)(rows)).astype(np.float64)
        second = returned.reshape(len(returned))
        if not ((second >= -1e-6) & (second <= 1 + 1e-6)).all():
            raise ClassifierError(
                "The model returned numbers that are not between 0 and 1. It has to return the "
                f"probability of {self.classes_[1]!r}, one per row."
            )
        return np.stack([1.0 - second, second], axis=1)

    def predict(self, rows: Any) -> Any:
        """Returns the second label where its probability is over a half, else the first."""
        second = self.predict_proba(rows)[:, 1] > 0.5
        return np.array(self.classes_, dtype=object)[second.astype(np.int64)]


def from_probability(model: Any, labels: Sequence[Label]) -> ProbabilityModel:
    """Returns a model of a probability (statsmodels' results, a sigmoid) as a classifier.

    Args:
        model: An object with `predict`, or a callable, that returns a number from 0 to 1 per row.
        labels: Two labels; the number is the probability of the second.

    Examples:
        >>> risk = from_probability(lambda rows: rows[:, 0] / 10, ["safe", "risky"])
        >>> risk.predict(np.array([[2.0], [7.0]])).tolist()
        ['safe', 'risky']
    """
    predict_method(model, "The model is")
    if len(labels) != 2 or labels[0] == labels[1]:
        raise InputError(f"labels are {list(labels)}; there must be two that differ.")
    return ProbabilityModel(model, tuple(labels))


@dataclass(frozen=True, eq=False)
class ThresholdClassifier:
    """A classifier of two labels that predicts one of them from another probability on than 0.5.

    Attributes:
        classifier: A classifier with `predict_proba`.
        threshold: The probability of `positive` from which it is predicted.
        positive: The label.
        classes_: Both labels, as the classifier has them.
    """

    classifier: Any
    threshold: float
    positive: Label
    classes_: tuple[Label, ...]

    def predict_proba(self, rows: Any) -> Any:
        """Returns the classifier's probabilities, as they are."""
        return self.classifier.predict_proba(rows)

    def predict(self, rows: Any) -> Any:
        """Returns `positive` where its probability reaches the threshold, else the other label."""
        column = self.classes_.index(self.positive)
        probability = as_array(self.predict_proba(rows)).astype(np.float64)
        reached = probability[:, column] >= self.threshold
        return np.array(self.classes_, dtype=object)[np.where(reached, column, 1 - column)]


def threshold(classifier: Any, value: float, positive: Any = None) -> ThresholdClassifier:
    """Returns a classifier that decides by another threshold than 0.5.

    `FixedThresholdClassifier` of scikit-learn does the same. `confidence=` is in the classifier's
    own probabilities. The margin that `best` asks for is counted from where the classifier decides,
    which `fit` finds for classifiers of any class.

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
    if not callable(getattr(classifier, "predict_proba", None)):
        raise InputError("A threshold needs a classifier with predict_proba.")
    classes = tuple(as_label(v) for v in as_array(getattr(classifier, "classes_", ())).tolist())
    if len(classes) != 2:
        raise InputError(
            f"A threshold decides between two labels; the classifier's classes_ has {len(classes)}."
        )
    label = classes[1] if positive is None else as_label(positive)
    if label not in classes:
        raise InputError(f"{label!r} is not one of the labels {list(classes)}.")
    number = check_number("threshold", value, 0, 1)
    return ThresholdClassifier(classifier, number, label, classes)


def inner_model(model: Any) -> Any:
    """Returns the model that a classifier of this module calls; any other model as it is."""
    if isinstance(model, BinnedRegressor):
        return model.regressor
    if isinstance(model, ProbabilityModel):
        return model.model
    return model.classifier if isinstance(model, ThresholdClassifier) else model
