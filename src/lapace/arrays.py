"""Array types used all over the library, and pairs of equal elements."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bools", "Floats", "Ints", "matches"]

Bools: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


def matches(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """All index pairs (i, j) with a[i] == b[j], by i and then by j.

    Examples:
        >>> i, j = matches(np.array([7, 5]), np.array([5, 7, 7]))
        >>> i.tolist(), j.tolist()
        ([0, 0, 1], [1, 2, 0])
    """
    order = np.argsort(b, kind="stable")
    low, high = (np.searchsorted(b[order], a, side) for side in ("left", "right"))
    counts = high - low
    i = np.repeat(np.arange(len(a)), counts)
    within = np.arange(len(i)) - np.repeat(np.cumsum(counts) - counts, counts)
    return i, order[np.repeat(low, counts) + within]
