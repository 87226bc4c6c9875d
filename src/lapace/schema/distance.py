"""The distance between rows, the effort of a counterfactual, and the nearest rows.

The distance is a sum over the columns. A number counts by the share of the training rows that its
change passes, and at least by its change over the usual range: neither a long tail nor an empty
stretch is free. A change of category counts 1, missing against present 1, a derived column nothing.

The effort of a counterfactual is its distance from its instance and a charge for each change: few
changes are preferred. Between two rows there is only distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial.distance import cdist

from lapace.arrays import Bools, Floats, Ints, batches
from lapace.schema.features import Feature

if TYPE_CHECKING:
    from lapace.schema import Schema

__all__ = ["CHARGE", "Distance", "kneighbors", "smallest"]

CHARGE = 0.2  # effort of a change, beside its distance

BLOCK = 4_000_000  # distances held at once while neighbours are searched: 32 MB


class Distance:
    """The parts of the distance that single columns have, and distances of all pairs of rows.

    Args:
        features: The columns.

    Examples:
        >>> ranks = (0.0, 10.0, 20.0, 1000.0), (0.2, 0.5, 0.7, 0.9)
        >>> x = Feature("x", "continuous", lower=0.0, upper=1e3, ranks=ranks, usual=100.0)
        >>> Distance([x]).coordinates(np.array([[-50.0], [0.0], [15.0], [1000.0]])).ravel()
        array([-0.3,  0.2,  0.6, 10.5])
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self.features = features
        self.numeric = np.array([f.numeric for f in features], dtype=bool)
        self.counted: Bools = np.array([f.derived is None for f in features], dtype=bool)
        self.spans = np.array([f.span if f.numeric else 1.0 for f in features])
        self.widths = self.spans.copy()  # what a change is counted over, beside ranks
        self._low = np.array([f.lower if f.numeric else 0.0 for f in features])
        self._high = self._low.copy()  # beyond them a coordinate grows by the change over the width
        self._ranks: list[tuple[int, Floats, Floats]] = []
        for i, feature in enumerate(features):
            if feature.ranks[0]:
                values, ranks = map(np.array, feature.ranks)
                self.widths[i] = feature.usual or feature.span
                rises = np.maximum(np.diff(ranks), np.diff(values) / self.widths[i])
                self._ranks.append((i, values, ranks[0] + np.cumsum([0.0, *rises])))
                self._low[i], self._high[i] = values[0], values[-1]
        # The first code without a place in an order: 0 for categories.
        places = [len(f.categories) if f.kind == "ordinal" else np.inf for f in features]
        self._unordered = np.where(self.numeric, places, 0.0)

    def coordinates(self, cells: Floats) -> Floats:
        """Returns the coordinates of numbers: (..., d).

        The difference of two numbers' coordinates is their part of the distance. From one training
        value to the next a coordinate rises by the share of the rows passed or by the change over
        the usual range, whichever is more. Categories keep their codes, and missing stays NaN.
        """
        coordinates: Floats = (cells - np.clip(cells, self._low, self._high)) / self.widths
        for i, values, places in self._ranks if cells.size else ():
            coordinates[..., i] += np.interp(cells[..., i], values, places)
        return coordinates

    def gaps(self, a: Floats, b: Floats) -> Floats:
        """Returns each column's part of the distance between cells: (..., d)."""
        if not self._ranks:
            return self.range_gaps(a, b)
        return self._gaps(a, b, np.abs(self.coordinates(a) - self.coordinates(b)))

    def range_gaps(self, a: Floats, b: Floats) -> Floats:
        """Returns `gaps` in which a number counts by its change over the range: (..., d)."""
        return self._gaps(a, b, np.abs(a - b) / self.spans)

    def _gaps(self, a: Floats, b: Floats, apart: Floats) -> Floats:
        """Overwrites the gaps of cells without a place in an order by 0 or 1."""
        first, missing = self._unordered, np.isnan(apart)
        np.copyto(apart, a != b, where=(a >= first) | (b >= first))
        if missing.any():
            np.copyto(apart, np.isnan(a) != np.isnan(b), where=missing)
        return apart * self.counted

    def pairwise(self, a: Floats, b: Floats, weights: Floats | None = None) -> Floats:
        """Returns the distance of every row of `a` to every row of `b`, (n, m), without (n, m, d).

        With u and v the coordinates of the numbers of a and b, missing ones set to 0, and g and h
        the flags of the missing: sum |u - v| + sum (1 - g)(1 - |u|) h + sum g (1 - h)(1 - |v|),
        plus the number of category columns that differ. The middle sums turn the |u| that a missing
        cell's 0 adds to the first into the 1 it should be. An ordinal in which a row has a level
        unseen in training is compared as in `gaps`.
        """
        total = np.zeros((len(a), len(b)))
        if not total.size:
            return total
        weight: Floats = self.counted * (np.float64(1) if weights is None else weights)
        categorical = np.flatnonzero(~self.numeric)
        if len(categorical):
            # As a product of one-hot rows: ten times as fast as comparing codes.
            same = self._one_hot(a, weight) @ self._one_hot(b, np.ones_like(weight)).T
            total += weight[categorical].sum() - same
        unseen = self.numeric & ((a >= self._unordered).any(0) | (b >= self._unordered).any(0))
        for i in np.flatnonzero(unseen).tolist():
            one = Distance(self.features[i : i + 1])
            total += one.gaps(a[:, None, [i]], b[None, :, [i]])[..., 0] * weight[i]
        columns = np.flatnonzero(self.numeric & ~unseen)
        if len(columns):
            u, v = (self.coordinates(cells)[:, columns] for cells in (a, b))
            g, h = np.isnan(u), np.isnan(v)
            u, v = np.where(g, 0.0, u), np.where(h, 0.0, v)
            plain = weights is None and self.counted.all()
            total += cdist(u, v, "cityblock", w=None if plain else weight[columns])
            some = g.any(axis=0) | h.any(axis=0)
            if some.any():
                to_one_u = ~g * (1 - np.abs(u)) * weight[columns]
                to_one_v = ~h * (1 - np.abs(v)) * weight[columns]
                total += to_one_u[:, some] @ h[:, some].T + g[:, some] @ to_one_v[:, some].T
        return total

    def _one_hot(self, cells: Floats, weight: Floats) -> Floats:
        """Returns category columns one-hot, with a place for missing, times their weights."""
        blocks = [np.empty((len(cells), 0))]
        for i in np.flatnonzero(~self.numeric).tolist():
            # Missing is -1: the code after the last level may be a level of a wider schema.
            codes = np.where(np.isnan(cells[:, i]), -1, cells[:, i])
            levels = np.arange(-1, len(self.features[i].levels))
            blocks.append((codes[:, None] == levels) * weight[i])
        return np.concatenate(blocks, axis=1)  # (n, levels)


def kneighbors(
    schema: Schema,
    cells: Floats,
    rows: Floats,
    k: int = 1,
    *,
    exclude_self: bool = False,
    weights: Floats | None = None,
) -> tuple[Floats, Ints]:
    """Returns the distances to the k nearest rows, ascending, and their positions, (m, k) each.

    It searches block by block, so that memory stays flat: 300,000 rows among 10,000 need no more
    than 100 among 48,000.

    Args:
        schema: What the columns are.
        cells: The rows whose neighbours are searched.
        rows: The rows searched among.
        k: How many; fewer where there are fewer rows.
        exclude_self: `cells` and `rows` are the same rows, and none is its own neighbour.
        weights: One factor per column, as from `Schema.weights`.

    Examples:
        >>> from lapace.schema import Schema
        >>> rows = np.array([[0.0], [1.25], [2.5], [10.0]])
        >>> kneighbors(Schema.infer(rows), np.array([[0.5]]), rows, k=2)
        (array([[0.1 , 0.15]]), array([[0, 1]]))
    """
    k = max(0, min(k, len(rows) - exclude_self))
    nearest, index = np.empty((len(cells), k)), np.empty((len(cells), k), dtype=np.int64)
    for part in batches(len(cells) if k else 0, BLOCK, len(rows)):
        block = schema.metric.pairwise(cells[part], rows, weights)  # (size, n)
        if exclude_self:
            np.fill_diagonal(block[:, part.start :], math.inf)
        nearest[part], index[part] = smallest(block, k)
    return nearest, index


def smallest(values: Floats, k: int) -> tuple[Floats, Ints]:
    """Returns the k smallest values of each row, ascending, and their positions; ties by position.

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
