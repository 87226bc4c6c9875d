"""Models outside of this process's Python, an ONNX graph or an HTTP service, as classifiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lapace.classifier.outputs import Label, ModelOutput, as_probability, distinct_labels
from lapace.errors import ClassifierError

TOLERANCE = 0.01  # how far a row's probabilities may be from summing to one


class ExternalModel:
    """A graph or a service as a classifier: `predict`, and `predict_proba` if it has any.

    Thread-safe, and copied by loading it again.

    Args:
        query: Takes a frame, returns a `ModelOutput`.

    Examples:
        >>> model = ExternalModel(lambda rows: ModelOutput([row["age"] > 40 for row in rows]))
        >>> model.predict([{"age": 31}, {"age": 44}])
        [False, True]
        >>> hasattr(model, "predict_proba")
        False
    """

    def __init__(self, query: Callable[[Any], ModelOutput]) -> None:
        self._query = query
        self._classes: tuple[Label, ...] | None = None
        self._has_probability: bool | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ExternalModel, (self._query,)

    def __repr__(self) -> str:
        return f"ExternalModel({self._query!r})"

    def predict_both(self, frame: Any) -> ModelOutput:
        """Returns labels and, where there are any, probabilities, from one call of the model."""
        output = self._query(frame)
        if self._has_probability is None or output.probability is None:
            self._has_probability = output.probability is not None
        if self._classes not in (None, output.classes) and output.classes is not None:
            raise ClassifierError(
                f"The classifier gave probabilities of {list(output.classes)} and before of "
                f"{list(self._classes or ())}. The classes and their order must not change."
            )
        self._classes = output.classes or self._classes
        return output

    def predict(self, frame: Any) -> Any:
        """Returns one label per row."""
        return self.predict_both(frame).labels

    # Properties, so that `hasattr` is False for what the model has not been seen to offer.

    @property
    def classes_(self) -> tuple[Label, ...]:
        """The classes in the order of the probabilities' columns, once a query returned them."""
        if self._classes is None:
            raise AttributeError("The classes are not known.")
        return self._classes

    @property
    def predict_proba(self) -> Callable[[Any], Any]:
        """A function that returns a row's probabilities, once a query returned some."""
        if not self._has_probability:
            raise AttributeError("The model returned no probabilities.")
        return lambda frame: self.predict_both(frame).probability


def as_classes(value: Any) -> tuple[Label, ...] | None:
    """Returns a JSON list of at least two distinct labels as a tuple, None for anything else."""
    if not isinstance(value, list) or not all(isinstance(c, str | int) for c in value):
        return None
    return tuple(value) if len(set(value)) == len(value) > 1 else None


def as_output(
    labels: Any, scores: Any, classes: Sequence[Label] | None, rows: int, model: str
) -> ModelOutput:
    """Returns a model's labels and scores as a checked `ModelOutput`.

    Args:
        labels: One per row; None if the class of the highest score is the label.
        scores: One column per class, or None. They are kept only if they are probabilities: no
            score is negative and every row sums to one, which a network's logits do not.
        classes: The labels of these columns, where they are known.
        rows: How many rows the model was called with.
        model: How errors name it.
    """
    probability = None
    if scores is not None:
        width = np.shape(scores)[-1] if classes is None else len(classes)
        numbers = as_probability(scores, rows, width, model)
        if labels is None and np.isnan(numbers).any():
            row = int(np.flatnonzero(np.isnan(numbers).any(axis=1))[0])
            raise ClassifierError(f"{model} gives NaN for row {row}: no class is the highest.")
        if labels is None and classes is not None:
            labels = [classes[i] for i in numbers.argmax(axis=1)]
        sums = np.abs(numbers.sum(axis=1) - 1)
        if np.isfinite(numbers).all() and (numbers > -1e-3).all() and (sums < TOLERANCE).all():
            probability = numbers
    distinct, position = distinct_labels(labels, rows, model)
    columns = None if classes is None else tuple(classes)
    return ModelOutput([distinct[i] for i in position], probability, columns)
