"""A classifier that decides by another threshold than 0.5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lapace.classifier.outputs import Label, as_array, as_label
from lapace.errors import InputError, check_number

__all__ = ["ThresholdClassifier", "inner_model", "threshold"]


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
    """Returns the model that a `ThresholdClassifier` calls; any other model as it is."""
    return model.classifier if isinstance(model, ThresholdClassifier) else model
