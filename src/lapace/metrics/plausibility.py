"""Plausibility of rows, and how near rows come to training rows."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from sklearn.ensemble import IsolationForest

from lapace.arrays import Floats, Ints
from lapace.metrics.quality import mean, median
from lapace.schema import Schema
from lapace.schema.distance import kneighbors


class Plausibility:
    """Scores of how much rows look like the rows of one label.

    Neighbours and forest are computed when first needed and kept. A score is one number per row,
    NaN where there are no rows (for LOF and the isolation forest: fewer than two) to compare with.

    Attributes:
        schema: The columns.
        rows: The rows compared with, all different: repeated ones have infinite density, and LOF
            explodes.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> usual = Plausibility(schema, np.linspace(0.0, 1.0, 41)[:, None])
        >>> near, far = usual.lof(np.array([[0.51], [2.4]]))
        >>> bool(near < 1.1 < far)
        True
    """

    def __init__(
        self,
        schema: Schema,
        rows: Floats,
        *,
        n_neighbors: int = 20,
        max_rows: int | None = 20_000,
        random_state: int = 0,
    ) -> None:
        """Keeps the distinct rows.

        Args:
            schema: The columns.
            rows: Cells of the rows to which the classifier gives the label.
            n_neighbors: Neighbours of LOF; fewer where there are fewer rows.
            max_rows: Size of the random sample that is kept of more distinct rows: LOF compares
                each row with each. None keeps all.
            random_state: Seed of that sample and of the isolation forest.
        """
        kept = rows[distinct_rows(rows)[0]]
        if max_rows is not None and len(kept) > max_rows:
            rng = np.random.default_rng(random_state)
            kept = rng.choice(kept, max_rows, replace=False, shuffle=False)
        self.schema, self.rows, self._random_state = schema, kept, random_state
        self._k = min(n_neighbors, len(kept) - 1)

    def lof(self, cells: Floats) -> Floats:
        """Returns local outlier factors by `Schema.distance`: 1 inside, larger outside.

        With N(x) the k nearest rows, reach(x, o) = max(d(x, o), d(o, its k-th neighbour)) and
        lrd(x) = 1 / mean_{o in N(x)} reach(x, o):  LOF(x) = mean_{o in N(x)} lrd(o) / lrd(x).

        Examples:
            >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
            >>> usual = Plausibility(schema, np.linspace(0.0, 2.5, 101)[:, None])
            >>> usual.lof(np.array([[1.26]])).round(1)
            array([1.])
        """
        if len(self.rows) < 2:
            return np.full(len(cells), math.nan)
        kth, lrd = self._local
        distances, index = kneighbors(self.schema, cells, self.rows, self._k)  # (m, k)
        scores: Floats = lrd[index].mean(axis=1) / _reachability(distances, kth[index])
        return scores

    def lof_of_rows(self) -> Floats:
        """Returns local outlier factors of the rows compared with, each among the others.

        Examples:
            >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
            >>> usual = Plausibility(schema, np.linspace(0.0, 2.5, 101)[:, None])
            >>> float(np.median(usual.lof_of_rows()).round(1))
            1.0
        """
        if len(self.rows) < 2:
            return np.full(len(self.rows), math.nan)
        _, lrd = self._local
        _, index = kneighbors(self.schema, self.rows, self.rows, self._k, exclude_self=True)
        scores: Floats = lrd[index].mean(axis=1) / lrd
        return scores

    def isolation(self, cells: Floats) -> Floats:
        """Returns isolation-forest scores 2^(-mean path length / c(n)): 0.4 usual, towards 1 odd.

        Examples:
            >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
            >>> usual = Plausibility(schema, np.linspace(0.0, 1.0, 41)[:, None])
            >>> near, far = usual.isolation(np.array([[0.51], [2.4]]))
            >>> bool(near < far)
            True
        """
        if len(self.rows) < 2 or not len(cells):
            return np.full(len(cells), math.nan)
        scores: Floats = -self._forest.score_samples(tree_columns(self.schema, cells))
        return scores

    def knn(self, cells: Floats, k: int = 5) -> Floats:
        """Returns mean distances to the k nearest rows, or to all where there are fewer.

        Examples:
            >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
            >>> Plausibility(schema, np.array([[0.0], [2.5]])).knn(np.array([[0.5]]), k=1).round(3)
            array([0.133])
        """
        if not len(self.rows):
            return np.full(len(cells), math.nan)
        distances, _ = kneighbors(self.schema, cells, self.rows, k)
        means: Floats = distances.mean(axis=1)
        return means

    @cached_property
    def _local(self) -> tuple[Floats, Floats]:
        """The distance of each row to its k-th neighbour, and its local reachability density."""
        rows = self.rows
        distances, index = kneighbors(self.schema, rows, rows, self._k, exclude_self=True)  # (n, k)
        kth = distances[:, -1]
        return kth, _reachability(distances, kth[index])

    @cached_property
    def _forest(self) -> Any:
        forest = IsolationForest(random_state=self._random_state)
        return forest.fit(tree_columns(self.schema, self.rows))


def _reachability(distances: Floats, kth: Floats) -> Floats:
    """Returns local reachability densities, 1 / mean reach. The tiny term is scikit-learn's."""
    density: Floats = 1.0 / (np.maximum(distances, kth).mean(axis=1) + 1e-10)
    return density


def distinct_rows(cells: Floats) -> tuple[Ints, Ints]:
    """Returns the position at which each distinct row occurs first, ascending, and its count.

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
    """Returns rows as input of tree models: one layout for all rows of a schema.

    A missing number is -1, below all others. A missing or unseen category is a block of zeros.
    """
    blocks = []
    for feature, column in zip(schema.features, cells.T, strict=True):
        if feature.numeric or len(feature.categories) <= 2:
            u = (column - feature.lower) / feature.span if feature.numeric else column
            blocks.append(np.where(np.isnan(u), -1.0, u)[:, None])
        else:
            blocks.append((column[:, None] == np.arange(len(feature.categories))).astype(float))
    return np.concatenate(blocks, axis=1)  # (n, width)


class Privacy(NamedTuple):
    """Distances of rows to training rows, beside those of held-out rows.

    Attributes:
        distance: Median distance of the rows to the nearest training row.
        held_out: Median distance of held-out rows to the nearest training row.
        ratio: distance / held_out; well under 1 the rows give training rows away. NaN if both are
            0, infinite if only held_out is.
        copies: Share of the rows that are exact copies of a training row.
        held_out_copies: Share of the held-out rows that are.
    """

    distance: float
    held_out: float
    ratio: float
    copies: float
    held_out_copies: float


def privacy(schema: Schema, cells: Floats, train: Floats, held_out: Floats) -> Privacy:
    """Compares the distances of rows and of held-out rows to the nearest training row.

    With D(x) = min over training rows t of d(x, t): medians of D, their ratio, shares of D = 0.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5], [5.0]]))
        >>> train, held_out = np.array([[0.0], [2.5]]), np.array([[0.0], [1.25]])
        >>> privacy(schema, np.array([[0.625]]), train, held_out)
        Privacy(distance=0.125, held_out=0.125, ratio=1.0, copies=0.0, held_out_copies=0.5)
    """
    ours, theirs = (kneighbors(schema, rows, train)[0].ravel() for rows in (cells, held_out))
    middle, usual = median(ours), median(theirs)
    ratio = middle / usual if usual else math.inf if middle > 0 else math.nan
    return Privacy(middle, usual, ratio, mean(ours == 0), mean(theirs == 0))
