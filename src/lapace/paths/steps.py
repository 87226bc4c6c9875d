"""Rows on lines as they were evaluated: where they lie, what they are, and the verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints

__all__ = ["Steps", "rows_differ"]


class Steps(NamedTuple):
    """Evaluated rows, of any leading shape: one per line, or a matrix (lines, steps).

    Attributes:
        tau: Position on the line, 0 the instance, 1 the endpoint.
        cells: The row, after projection.
        predicted: The classifier's label, as a position among the labels; -1 where unknown.
        valid: 1 where the classifier predicts the target, 0 where not, -1 where it was not queried.
        feasible: Whether every constraint holds.
        probability: Of the target; NaN where unknown.
    """

    tau: Floats
    cells: Floats
    predicted: Ints
    valid: NDArray[np.int8]
    feasible: Bools
    probability: Floats

    @property
    def ok(self) -> Bools:
        """Valid and feasible."""
        ok: Bools = (self.valid == 1) & self.feasible
        return ok

    def take(self, *index: Any) -> Steps:
        """A selection, indexed as numpy arrays are."""
        return Steps(*(column[index] for column in self.columns))

    def reshape(self, *shape: int) -> Steps:
        """The same rows under another leading shape."""
        lead = self.tau.ndim
        return Steps(*(c.reshape(*shape, *c.shape[lead:]) for c in self.columns))

    def write(self, index: Any, other: Steps) -> None:
        """Overwrites a selection with other rows."""
        for column, theirs in zip(self.columns, other.columns, strict=True):
            column[index] = theirs

    @classmethod
    def join(cls, parts: Sequence[Steps], axis: int = 1) -> Steps:
        """Concatenates matrices of steps along an axis."""
        columns = zip(*(part.columns for part in parts), strict=True)
        return cls(*(np.concatenate(same, axis=axis) for same in columns))

    @property
    def columns(self) -> list[Any]:
        """All fields in order; typed Any since the arrays differ in dtype."""
        return list(self)


def rows_differ(a: Floats, b: Floats) -> Bools:
    """Whether rows differ in any cell; missing equals missing."""
    unlike: Bools = ((a != b) & ~(np.isnan(a) & np.isnan(b))).any(axis=-1)
    return unlike
