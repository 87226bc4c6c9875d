"""A classifier that lives outside this process' Python: one question, one answer.

What is behind the door (a network in a file, a service at an address) is a callable from a frame to
an `ModelOutput`; `ExternalModel` gives it the face every other classifier has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Floats
from lapace.errors import ClassifierError
from lapace.table import Coded, Column

__all__ = ["ExternalModel", "ModelOutput", "python_values"]


class ModelOutput(NamedTuple):
    """What came back about some rows.

    Attributes:
        labels: One per row.
        probability: One column per class, or None.
        classes: What the columns stand for, where that is known.
    """

    labels: Sequence[Any] | NDArray[Any]
    probability: Floats | None = None
    classes: tuple[str | int | bool, ...] | None = None


class ExternalModel:
    """A classifier from outside, with `predict`, and `predict_proba` once it has shown any.

    Thread-safe, and copied by opening it again.

    Args:
        ask: Takes a frame, returns an `ModelOutput`.

    Examples:
        >>> model = ExternalModel(lambda rows: ModelOutput([row["age"] > 40 for row in rows]))
        >>> model.predict([{"age": 31}, {"age": 44}])
        [False, True]
        >>> hasattr(model, "predict_proba")
        False
    """

    def __init__(self, ask: Callable[[Any], ModelOutput]) -> None:
        self.ask = ask
        self._lock = threading.Lock()
        self._classes: tuple[str | int | bool, ...] | None = None
        self._probable: bool | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ExternalModel, (self.ask,)

    def __repr__(self) -> str:
        return f"ExternalModel({self.ask!r})"

    def answer(self, frame: Any) -> ModelOutput:
        """Labels and, where there are any, probabilities, with one question."""
        answer = self.ask(frame)
        with self._lock:
            if self._probable is None or answer.probability is None:
                self._probable = answer.probability is not None
            if answer.classes is not None:
                if self._classes is not None and self._classes != answer.classes:
                    raise ClassifierError(
                        f"The classifier gave probabilities of {list(answer.classes)} and before "
                        f"of {list(self._classes)}. The classes and their order must not change."
                    )
                self._classes = answer.classes
        return answer

    def predict(self, frame: Any) -> Any:
        """One label per row."""
        return self.answer(frame).labels

    # Properties, so that neither is there before it is known: `hasattr` tells the truth.

    @property
    def classes_(self) -> tuple[str | int | bool, ...]:
        """The classes in the order of the probabilities' columns, once they are known."""
        if self._classes is None:
            raise AttributeError("The classes are not known.")
        return self._classes

    @property
    def predict_proba(self) -> Callable[[Any], Any]:
        """One row of probabilities per row, once an answer has had some."""
        if not self._probable:
            raise AttributeError("No probabilities were given.")
        return self._probabilities

    def _probabilities(self, frame: Any) -> Any:
        found = self.answer(frame).probability
        if found is None:
            raise ClassifierError(
                "The classifier gave probabilities before, and now it gives none."
            )
        return found


def python_values(column: Column) -> list[Any]:
    """A column's cells as plain Python values; None is missing.

    Examples:
        >>> python_values(Column("integer", np.array([2.0, np.nan])))
        [2, None]
    """
    values = column.values
    if isinstance(values, Coded):
        levels = np.array([*values.levels, None], dtype=object)
        found: list[Any] = levels[values.codes].tolist()
        return found
    whole = column.kind == "integer"
    return [None if v != v else int(v) if whole else v for v in values.tolist()]  # noqa: PLR0124
