"""Evaluated rows on lines: their positions, their cells and the verdicts on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints

__all__ = ["Steps", "join_rows", "rows_differ", "take_rows"]

R = TypeVar("R", bound=tuple[Any, ...])  # a named tuple of columns, arrays or `Steps`


class Steps(NamedTuple):
    """Evaluated rows, of any leading shape: one per line, or a matrix (lines, steps).

    Attributes:
        tau: Position on the line, 0 the instance, 1 the endpoint.
        cells: The row, after projection.
        predicted: The classifier's label, as a position among the labels; -1 where unknown.
        valid: 1 where the classifier predicts the target, 0 where not, -1 where it was not queried.
        feasible: Whether every constraint holds.
        probability: The probability of the target; NaN where unknown.
        odds: The log-odds of the label that is meant, against the next label; NaN where unknown.
    """

    tau: Floats
    cells: Floats
    predicted: Ints
    valid: NDArray[np.int8]
    feasible: Bools
    probability: Floats
    odds: Floats

    @property
    def ok(self) -> Bools:
        """Valid and feasible."""
        ok: Bools = (self.valid == 1) & self.feasible
        return ok

    def take(self, *index: Any) -> Steps:
        """Selects steps, indexed as numpy arrays are."""
        return Steps(*(column[index] for column in self.columns))

    def reshape(self, *shape: int) -> Steps:
        """Returns the same rows under another leading shape."""
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
    """Returns whether rows differ in any cell; missing equals missing."""
    differ: Bools = ((a != b) & ~(np.isnan(a) & np.isnan(b))).any(axis=-1)
    return differ


def take_rows(table: R, rows: Any) -> R:
    """Selects some rows of every column of a named tuple."""
    columns = [c.take(rows) if isinstance(c, Steps) else c[rows] for c in table]
    taken: R = cast(Any, type(table))(*columns)
    return taken


def join_rows(parts: Sequence[R]) -> R:
    """Puts the rows of several named tuples of one kind together."""
    columns = [
        Steps.join(same, axis=0) if isinstance(same[0], Steps) else np.concatenate(same)
        for same in zip(*parts, strict=True)
    ]
    joined: R = cast(Any, type(parts[0]))(*columns)
    return joined
