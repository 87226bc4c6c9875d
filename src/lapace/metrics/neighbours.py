"""Distances between many rows at once, nearest neighbours, and rows as input of tree models."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from lapace.arrays import Floats, Ints, batches
from lapace.schema import Schema

BLOCK = 4_000_000  # distances held at once while neighbours are searched: 32 MB
CHUNK = 50_000  # pairs whose distance is computed at once: 40 MB for a hundred columns


def kneighbors(
    schema: Schema,
    cells: Floats,
    rows: Floats,
    k: int = 1,
    *,
    exclude_self: bool = False,
    weights: Floats | None = None,
) -> tuple[Floats, Ints]:
    """Distances to the k nearest rows, ascending, and their positions, (m, k) each.

    Searched block by block, so that memory stays flat: 300,000 rows among 10,000 need no more
    than 100 among 48,000.

    Args:
        schema: What the columns are.
        cells: The rows whose neighbours are searched.
        rows: The rows searched among.
        k: How many; fewer where there are fewer rows.
        exclude_self: `cells` and `rows` are the same rows, and none is its own neighbour.
        weights: One factor per column, as from `Schema.weights`.

    Examples:
        >>> rows = np.array([[0.0], [1.25], [2.5], [10.0]])
        >>> kneighbors(Schema.infer(rows), np.array([[0.5]]), rows, k=2)
        (array([[0.1 , 0.15]]), array([[0, 1]]))
    """
    k = max(0, min(k, len(rows) - exclude_self))
    found, index = np.empty((len(cells), k)), np.empty((len(cells), k), dtype=np.int64)
    for part in batches(len(cells) if k else 0, BLOCK, len(rows)):
        block = schema.pairwise_distances(cells[part], rows, weights)  # (size, n)
        if exclude_self:
            np.fill_diagonal(block[:, part.start :], math.inf)
        found[part], index[part] = smallest(block, k)
    return found, index


def smallest(values: Floats, k: int) -> tuple[Floats, Ints]:
    """The k smallest values of each row, ascending, and their positions; ties by position.

    Examples:
        >>> smallest(np.array([[3.0, 1.0, 2.0, 1.0]]), 3)
        (array([[1., 1., 2.]]), array([[1, 3, 2]]))
    """
    index = np.sort(np.argpartition(values, k - 1, axis=1)[:, :k], axis=1)
    largest = np.take_along_axis(values, index, axis=1).max(1, keepdims=True, initial=-math.inf)
    for i in np.flatnonzero((values <= largest).sum(axis=1) > k):  # which of equals are among the k
        places = np.flatnonzero(values[i] <= largest[i])
        index[i] = np.sort(places[np.argsort(values[i, places], kind="stable")[:k]])
    order = np.argsort(np.take_along_axis(values, index, axis=1), axis=1, kind="stable")
    index = np.take_along_axis(index, order, axis=1)
    return np.take_along_axis(values, index, axis=1), index


def pair_distances(schema: Schema, a: Floats, b: Floats, i: Ints, j: Ints) -> Floats:
    """Distance of a[i] to b[j], pair by pair, a chunk at a time."""
    found = np.empty(len(i))
    for chunk in batches(len(i), CHUNK):
        found[chunk] = schema.gaps(a[i[chunk]], b[j[chunk]]).sum(axis=1)
    return found


def distinct_rows(cells: Floats) -> tuple[Ints, Ints]:
    """Positions at which each different row occurs first, ascending, and how often it occurs.

    Missing equals missing.

    Examples:
        >>> distinct_rows(np.array([[2.5], [np.nan], [0.5], [2.5], [np.nan]]))
        (array([0, 1, 2]), array([2, 2, 1]))
    """
    # One bit pattern for each of NaN and zero, so that equal rows have equal bytes: sorting rows
    # as bytes is many times faster than np.unique(axis=0).
    rows = np.ascontiguousarray(np.where(np.isnan(cells), np.nan, cells) + 0.0)
    keys = rows.view(np.dtype((np.void, rows.strides[0]))).ravel()
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    order = np.argsort(first)
    return first[order], counts[order]


def tree_columns(schema: Schema, cells: Floats) -> Floats:
    """Rows as input of tree models: one layout for all rows of a schema.

    Missing numbers are -1, under all others; of a wide block missing and unseen are all zeros.
    """
    blocks = []
    for feature, column in zip(schema.features, cells.T, strict=True):
        if feature.numeric or len(feature.categories) <= 2:
            u = (column - feature.lower) / feature.span if feature.numeric else column
            blocks.append(np.where(np.isnan(u), -1.0, u)[:, None])
        else:
            blocks.append((column[:, None] == np.arange(len(feature.categories))).astype(float))
    return np.concatenate(blocks, axis=1)  # (n, width)


def mean(values: ArrayLike) -> float:
    """The mean of the values that are not NaN; of none NaN, without numpy's warning.

    Examples:
        >>> mean([1.0, 1.0, 7.0, np.nan]), mean([])
        (3.0, nan)
    """
    known = _known(values)
    return float(known.mean()) if known.size else math.nan


def median(values: ArrayLike) -> float:
    """The median of the values that are not NaN: LOF has a long tail, so look at both.

    Examples:
        >>> median([1.0, 1.0, 7.0, np.nan])
        1.0
    """
    known = _known(values)
    return float(np.median(known)) if known.size else math.nan


def _known(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    return array[~np.isnan(array)]


def join(schema: Schema, other: Schema) -> Schema:
    """The schema widened by the levels only the other has; its own codes stay as they are."""
    features = tuple(
        replace(ours, extra=ours.extra + tuple(v for v in theirs.extra if v not in ours.levels))
        for ours, theirs in zip(schema.features, other.features, strict=True)
    )
    return replace(schema, features=features)


def recode(cells: Floats, old: Schema, new: Schema) -> Floats:
    """Cells of one schema in the codes of another that has all its levels."""
    result = cells.copy()
    for i, (before, after) in enumerate(zip(old.features, new.features, strict=True)):
        if before.extra and before.levels != after.levels[: len(before.levels)]:
            codes = np.array([*map(after.levels.index, before.levels), math.nan])
            result[:, i] = codes[np.where(np.isnan(cells[:, i]), -1, cells[:, i]).astype(int)]
    return result
