"""The labels and probabilities that models return, checked and converted in one place.

A model may be an object in this process, an ONNX graph or an HTTP service: its outputs are read by
the same functions, whose errors begin with the model's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Floats, Ints
from lapace.errors import ClassifierError, InputError

__all__ = [
    "Label",
    "ModelOutput",
    "as_array",
    "as_label",
    "as_probability",
    "decision_scores",
    "distinct_labels",
    "log_odds",
    "log_scores",
    "predict_method",
    "score_odds",
    "short",
]

Label: TypeAlias = str | int | bool

LEAST = 1e-4  # probabilities below it count as it in log-odds


class ModelOutput(NamedTuple):
    """The labels and probabilities that a model returns for some rows in one call.

    Attributes:
        labels: One per row.
        probability: One column per class, or None.
        classes: The labels of these columns, in order, where the model names them.
    """

    labels: Sequence[Any] | NDArray[Any]
    probability: Floats | None = None
    classes: tuple[Label, ...] | None = None


def predict_method(model: Any, subject: str = "The classifier is") -> Callable[[Any], Any]:
    """Returns a model's `predict`, or the model itself if it is a callable.

    Args:
        model: The model.
        subject: How the error begins, where it is neither.
    """
    method: Callable[[Any], Any] = getattr(model, "predict", model)
    if callable(method) and not isinstance(model, type):
        return method
    what = f"an object of type {type(model).__name__}"
    if isinstance(model, type):
        what = f"the class {model.__name__}"
    hint = " Load a file or an address with lapace.loaders.load_classifier."
    raise InputError(
        f"{subject} {what}. It has to be a fitted object with `predict`, or a callable that takes "
        f"rows and returns labels.{hint if isinstance(model, str | PathLike) else ''}"
    )


def distinct_labels(
    values: Any, rows: int, model: str = "The classifier"
) -> tuple[list[Label], Ints]:
    """Returns the distinct labels among a model's outputs, and each row's position in them.

    Args:
        values: The labels a model returned.
        rows: How many rows it was called with.
        model: How errors name it.

    Examples:
        >>> labels, position = distinct_labels(["no", "yes", "no"], 3)
        >>> labels, position.tolist()
        (['no', 'yes'], [0, 1, 0])
    """
    array = as_array(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (rows,):
        what = f"{len(array):,} labels" if array.ndim == 1 else f"an array of shape {array.shape}"
        raise ClassifierError(
            f"{model} returned {what} for {rows:,} rows. It has to return one label per row, in "
            "the rows' order; probabilities go through an object with `predict` and "
            "`predict_proba`."
        )
    if array.dtype.kind in "biu":
        distinct, position = np.unique(array, return_inverse=True)
        return distinct.tolist(), position
    places: dict[Label, int] = {}
    labels = (as_label(value, model) for value in array.tolist())
    each = [places.setdefault(label, len(places)) for label in labels]
    return list(places), np.array(each, dtype=np.int64)


def as_label(value: Any, model: str = "The classifier") -> Label:
    """Returns one label as a Python value; 1.0 becomes 1, as some libraries return it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    hint = (
        " lapace.classifier.from_probability(model, ['no', 'yes']) makes labels of probabilities, "
        "lapace.classifier.binned(model, edges) of other numbers."
    )
    raise ClassifierError(
        f"{model} returned {short(repr(value))} as a label; a label has to be text, a whole "
        f"number or a boolean.{hint if isinstance(value, float) and math.isfinite(value) else ''}"
    )


def as_probability(values: Any, rows: int, width: int, model: str = "The classifier") -> Floats:
    """Returns a model's probabilities as numbers, (rows, width).

    Args:
        values: The probabilities a model returned.
        rows: How many rows it was called with.
        width: How many classes it has.
        model: How the error names it.
    """
    array = as_array(values)
    try:
        if array.shape == (rows, width):
            return array.astype(np.float64)
    except (TypeError, ValueError):
        pass  # not numbers
    raise ClassifierError(
        f"{model} returned probabilities of shape {array.shape} and type {array.dtype} for "
        f"{rows:,} rows and {width} classes. They have to be numbers, one row per row and one "
        "column per class, which an attribute `classes_` may name in order."
    )


def log_odds(probability: Floats, codes: Ints) -> Floats:
    """Returns the log-odds of each row's label against the likeliest other label.

    Args:
        probability: Of each label, (n, labels); NaN where unknown.
        codes: The label of each row, as a position.

    Examples:
        >>> log_odds(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]), np.array([0, 1])).round(2)
        array([ 0.69, -2.08])
    """
    return score_odds(log_scores(probability), codes)


def log_scores(probability: Floats) -> Floats:
    """Returns log-probabilities as scores for `score_odds`; very small ones count as `LEAST`."""
    scores: Floats = np.log(np.maximum(probability, LEAST))
    return scores


def score_odds(scores: Floats, codes: Ints) -> Floats:
    """Returns how far each row's label is above the best other label, by scores.

    Args:
        scores: Of each label, (n, labels): log-probabilities, or decision values; NaN if unknown.
        codes: The label of each row, as a position.
    """
    rows, others = np.arange(len(codes)), scores.copy()
    own = scores[rows, codes]
    others[rows, codes] = -np.inf
    odds: Floats = own - others.max(axis=1)
    return odds


def decision_scores(values: Any, rows: int, width: int) -> Floats | None:
    """Returns what a `decision_function` returned as scores of labels, (rows, width).

    With two labels it is one value a row, the second label's odds; with more a column a label. Any
    other shape says nothing about single labels: None.

    Examples:
        >>> decision_scores([1.5, -0.5], 2, 2).tolist()
        [[-0.75, 0.75], [0.25, -0.25]]
    """
    try:
        array = as_array(values).astype(np.float64)
    except (TypeError, ValueError):
        return None
    if width == 2 and array.shape in ((rows,), (rows, 1)):
        half = array.reshape(rows) / 2
        return np.stack([-half, half], axis=1)
    return array if width > 2 and array.shape == (rows, width) else None


def as_array(values: Any) -> NDArray[Any]:
    """Returns lists, series, tensors and arrays of any library as a numpy array."""
    if hasattr(values, "detach"):  # a tensor that may be on a device or carry gradients
        values = values.detach().cpu()
    # Lists as objects: numpy would turn [1, "a"] into text.
    try:
        return np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    except (TypeError, ValueError) as error:
        raise ClassifierError(
            f"The classifier returned a {type(values).__name__} that is no array: {error}"
        ) from None


def short(text: str, most: int = 120) -> str:
    """Returns a text on one line, without control characters, cut after `most` characters."""
    text = "".join(c for c in " ".join(text.split()) if c.isprintable())
    return text if len(text) <= most else f"{text[:most]}…"
