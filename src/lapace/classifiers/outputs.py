"""What models return, validated and converted in one place.

A model may be an object in this process, an ONNX graph or an HTTP service; its labels and
probabilities are read by the same functions, whose errors begin with the model's name.
`ExternalModel` gives a graph or a service the interface of a scikit-learn classifier.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Floats, Ints
from lapace.errors import ClassifierError, InputError

Label: TypeAlias = str | int | bool

FEW_LABELS = 1024  # whole numbers in a range as narrow as this are counted rather than looked up


class ModelOutput(NamedTuple):
    """What a model returned for some rows.

    Attributes:
        labels: One per row.
        probability: One column per class, or None.
        classes: The labels of these columns, in order, where the model names them.
    """

    labels: Sequence[Any] | NDArray[Any]
    probability: Floats | None = None
    classes: tuple[Label, ...] | None = None


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
        self._lock = threading.Lock()
        self._classes: tuple[Label, ...] | None = None
        self._has_probability: bool | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ExternalModel, (self._query,)

    def __repr__(self) -> str:
        return f"ExternalModel({self._query!r})"

    def query(self, frame: Any) -> ModelOutput:
        """Labels and, where there are any, probabilities, from one call of the model."""
        output = self._query(frame)
        with self._lock:
            if self._has_probability is None or output.probability is None:
                self._has_probability = output.probability is not None
            if output.classes is not None:
                if self._classes is not None and self._classes != output.classes:
                    raise ClassifierError(
                        f"The classifier gave probabilities of {list(output.classes)} and before "
                        f"of {list(self._classes)}. The classes and their order must not change."
                    )
                self._classes = output.classes
        return output

    def predict(self, frame: Any) -> Any:
        """One label per row."""
        return self.query(frame).labels

    # Properties, so that `hasattr` is False for what the model has not been seen to offer.

    @property
    def classes_(self) -> tuple[Label, ...]:
        """The classes in the order of the probabilities' columns, once a query returned them."""
        if self._classes is None:
            raise AttributeError("The classes are not known.")
        return self._classes

    @property
    def predict_proba(self) -> Callable[[Any], Any]:
        """One row of probabilities per row, once a query returned some."""
        if not self._has_probability:
            raise AttributeError("The model returned no probabilities.")
        return self._predict_proba

    def _predict_proba(self, frame: Any) -> Any:
        probability = self.query(frame).probability
        if probability is None:
            raise ClassifierError("The classifier gave probabilities before, and now gives none.")
        return probability


def predict_method(model: Any, subject: str = "The classifier is") -> Callable[[Any], Any]:
    """A model's `predict`, or the model itself if it is a callable; anything else is refused."""
    for method in (getattr(model, "predict", None), model):
        if callable(method) and not isinstance(model, type):
            found: Callable[[Any], Any] = method
            return found
    what = f"an object of type {type(model).__name__}"
    if isinstance(model, type):
        what = f"the class {model.__name__}"
    hint = " Load a file or an address with lapace.classifiers.load_classifier."
    raise InputError(
        f"{subject} {what}. It has to be a fitted object with `predict`, or a callable that takes "
        f"rows and returns labels.{hint if isinstance(model, str | PathLike) else ''}"
    )


# ------------------------------------------------------------------------------------------------
# Labels


def distinct_labels(
    values: Any, rows: int, model: str = "The classifier"
) -> tuple[list[Label], Ints]:
    """The distinct labels a model returned for so many rows, and each row's position in them.

    Examples:
        >>> labels, position = distinct_labels(["no", "yes", "no"], 3)
        >>> labels, position.tolist()
        (['no', 'yes'], [0, 1, 0])
    """
    array = as_array(values, model)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 2 and len(array) == rows:
        raise ClassifierError(
            f"{model} returned {array.shape[1]} values for each row, as if they were "
            "probabilities. It has to return one label per row; offer probabilities through an "
            "object with `predict` and `predict_proba`."
        )
    if array.ndim != 1 or len(array) != rows:
        what = f"{len(array):,} labels" if array.ndim == 1 else f"an array of shape {array.shape}"
        raise ClassifierError(
            f"{model} returned {what} for {rows:,} rows. It has to return one label per row, in "
            "the rows' order."
        )
    if array.dtype.kind in "biu" and len(array):
        low = int(array.min())
        if int(array.max()) - low < FEW_LABELS:  # without a loop over rows
            place = array.astype(object if low >= 2**62 else np.int64) - low
            seen = np.bincount(place.astype(np.int64)) > 0
            kind = bool if array.dtype.kind == "b" else int
            few: list[Label] = [kind(low + k) for k in np.flatnonzero(seen).tolist()]
            return few, (np.cumsum(seen) - 1)[place.astype(np.int64)]
    found: dict[Any, int] = {}
    try:
        position = [found.setdefault(value, len(found)) for value in array.tolist()]
    except TypeError:  # one is not hashable, so it is no label
        for value in array.tolist():
            as_label(value, model)
        raise
    return [as_label(value, model) for value in found], np.array(position, dtype=np.int64)


def as_label(value: Any, model: str = "The classifier") -> Label:
    """One label as a Python value; 1.0 becomes 1, as some libraries return it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        if value.is_integer():
            return int(value)
        raise ClassifierError(
            f"{model} returned {value!r}, a fraction, as a label. If it returns probabilities or a "
            "score, wrap it in a callable that returns labels."
        )
    raise ClassifierError(
        f"{model} returned {short(repr(value))} as a label; a label has to be text, a whole "
        "number or a boolean."
    )


def as_classes(value: Any) -> tuple[Label, ...] | None:
    """A JSON list of at least two distinct labels; None for anything else."""
    if not isinstance(value, list) or not all(isinstance(c, str | int) for c in value):
        return None
    return tuple(value) if len(set(value)) == len(value) > 1 else None


# ------------------------------------------------------------------------------------------------
# Probabilities


def as_probability(
    values: Any, rows: int, width: int, model: str = "The classifier", hint: str = ""
) -> Floats:
    """A model's probabilities as numbers, (rows, width)."""
    array = as_array(values, model)
    try:
        if array.shape == (rows, width):
            return array.astype(np.float64)
    except (TypeError, ValueError):
        pass  # not numbers
    raise ClassifierError(
        f"{model} returned probabilities of shape {array.shape} and type {array.dtype} for "
        f"{rows:,} rows and {width} classes. They have to be numbers, one row per row and one "
        f"column per class.{hint}"
    )


def are_probabilities(scores: Floats, tolerance: float) -> bool:
    """Whether no score is negative and every row sums to one; a network's logits do not."""
    return bool(
        np.isfinite(scores).all()
        and (scores > -1e-3).all()  # rounded in single precision
        and (np.abs(scores.sum(axis=1) - 1) < tolerance).all()
    )


# ------------------------------------------------------------------------------------------------
# Arrays and texts


def as_array(values: Any, model: str = "The classifier") -> NDArray[Any]:
    """Lists, series, tensors and arrays of any library as a numpy array."""
    if hasattr(values, "detach"):  # a tensor that may be on a device or carry gradients
        values = values.detach().cpu()
    try:
        # Lists as objects: numpy would turn [1, "a"] into text.
        return np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    except Exception as error:  # ragged lists, or whatever else a callable may return
        raise ClassifierError(
            f"{model} returned a {type(values).__name__} that is not one label per row: {error}"
        ) from error


def short(text: str, most: int = 120) -> str:
    """A text on one line, without control characters, cut after `most` of them."""
    text = "".join(c for c in " ".join(text.split()) if c.isprintable())
    return text if len(text) <= most else f"{text[:most]}…"
