"""Array types used all over the library, slices of long arrays, and groups of equal elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Bools",
    "Floats",
    "Ints",
    "batches",
    "distinct",
    "first_of_each",
    "matches",
    "places_in_groups",
]

Bools: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


def batches(rows: int, size: int, width: int = 1) -> Iterator[slice]:
    """Yields slices that cover all rows, each of about `size` cells, and of one row at least.

    Examples:
        >>> list(batches(5, 6, width=3))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    step = max(1, size // max(1, width))
    return (slice(start, start + step) for start in range(0, rows, step))


def first_of_each(group: Ints, *keys: NDArray[np.generic]) -> Ints:
    """Returns the position of the least element of each group by the keys, compared in order.

    Examples:
        >>> first_of_each(np.array([7, 3, 7]), np.array([2.0, 5.0, 1.0]))
        array([1, 2])
    """
    order = np.lexsort((*reversed(keys), group))
    first: Ints = order[np.unique(group[order], return_index=True)[1]]
    return first


def places_in_groups(group: Ints) -> Ints:
    """Returns the place of each element within its group; groups are in order.

    Examples:
        >>> places_in_groups(np.array([3, 3, 3, 7, 7]))
        array([0, 1, 2, 0, 1])
    """
    places: Ints = np.arange(len(group)) - np.searchsorted(group, group)
    return places


def distinct(rows: Floats) -> tuple[Ints, Ints]:
    """Returns where each distinct row occurs first, and which of these each row equals, bit by bit.

    Examples:
        >>> first, which = distinct(np.array([[2.5, 0.0], [1.5, 0.0], [2.5, 0.0]]))
        >>> first[which].tolist()
        [0, 1, 0]
    """
    rows = np.ascontiguousarray(rows)
    keys = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel()
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    return first, which.ravel()


def matches(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Returns all index pairs (i, j) with a[i] == b[j], by i and then by j.

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
