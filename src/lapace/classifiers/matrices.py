"""Models that take a matrix of the columns as they are, so that no frame has to be built."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from lapace.arrays import Floats
from lapace.classifiers.outputs import predict_method
from lapace.errors import InputError

__all__ = ["MatrixClassifier", "on_arrays"]


class MatrixClassifier:
    """A model queried with a matrix instead of a frame.

    Attributes:
        model: As given.
        device: Where tensors are made; None for numpy arrays.
        classes_: The model's, where it has them.
    """

    def __init__(self, model: Any, device: str | None = None) -> None:
        self.model, self.device = model, device
        self._predict = predict_method(model)
        if (classes := getattr(model, "classes_", None)) is not None:
            self.classes_ = classes
        if callable(getattr(model, "predict_proba", None)):
            self.predict_proba = self._predict_proba

    def predict(self, rows: Floats) -> Any:
        """The model's labels."""
        return _as_numpy(self._predict(self._matrix(rows)))

    def _predict_proba(self, rows: Floats) -> Any:
        return _as_numpy(self.model.predict_proba(self._matrix(rows)))

    def _matrix(self, rows: Floats) -> Any:
        if self.device is None:
            return rows
        torch = import_module("torch")  # by name: what reads results must work without it
        return torch.as_tensor(rows, dtype=torch.float32).to(self.device)


def on_arrays(model: Any, *, device: str | None = None) -> MatrixClassifier:
    """A model that takes a matrix of the raw columns, (n, d), in the training table's order.

    Numbers are as in the table, missing ones NaN, dates the days since 1970; a category is its
    position among `schema.features[i].levels`, also as a number. No frame is built for a query.

    Args:
        model: An object with `predict`, and `predict_proba` if it has any, or a callable that
            returns labels.
        device: Hand over float32 tensors of torch on this device, such as `cuda`, rather than
            numpy arrays of float64; it may return tensors.

    Examples:
        >>> rich = on_arrays(lambda rows: rows[:, 0] > 1000)
        >>> rich.predict(np.array([[900.0], [1100.0]])).tolist()
        [False, True]
    """
    if isinstance(model, MatrixClassifier):
        raise InputError("The model is one of on_arrays already. Hand it over as it is.")
    return MatrixClassifier(model, device)


def _as_numpy(found: Any) -> Any:
    """A tensor as an array; anything else as it is."""
    return found.detach().cpu().numpy() if hasattr(found, "detach") else np.asarray(found)
