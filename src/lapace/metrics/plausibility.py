"""Plausibility: do counterfactuals look like rows of the target class?"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.ensemble import IsolationForest

from lapace.arrays import Floats
from lapace.metrics.neighbours import distinct, kneighbors, tree_columns
from lapace.schema import Schema


class Plausibility:
    """How much rows look like those the classifier gives one label.

    What is costly is computed when first needed and kept. Scores are one number per row, NaN
    where there is nothing (for LOF and the isolation forest: fewer than two distinct rows) to
    compare with.

    Attributes:
        schema: What the columns are.
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
            schema: What the columns are.
            rows: Cells of the rows the classifier gives the label.
            n_neighbors: Of LOF (fewer where there are fewer rows).
            max_rows: Of more distinct rows, a random sample of this size is kept: LOF compares
                each row with each. None keeps all.
            random_state: Of that sample and of the isolation forest.
        """
        kept = distinct(rows)
        if max_rows is not None and len(kept) > max_rows:
            rng = np.random.default_rng(random_state)
            kept = rng.choice(kept, max_rows, replace=False, shuffle=False)
        self.schema, self.rows, self._random_state = schema, kept, random_state
        self._k = min(n_neighbors, len(kept) - 1)

    def lof(self, cells: Floats) -> Floats:
        """Local outlier factor, novelty mode, by `Schema.distance`: 1 inside, larger outside.

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

    def isolation(self, cells: Floats) -> Floats:
        """Isolation-forest score 2^(-mean path length / c(n)): about 0.4 usual, towards 1 odd.

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
        """Mean distance to the k nearest rows (to all of them where there are fewer).

        Examples:
            >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
            >>> Plausibility(schema, np.array([[0.0], [2.5]])).knn(np.array([[0.5]]), k=1)
            array([0.2])
        """
        if not len(self.rows):
            return np.full(len(cells), math.nan)
        distances, _ = kneighbors(self.schema, cells, self.rows, k)
        means: Floats = distances.mean(axis=1)
        return means

    @cached_property
    def _local(self) -> tuple[Floats, Floats]:
        """Each row's distance to its k-th neighbour, and its local reachability density."""
        rows = self.rows
        distances, index = kneighbors(self.schema, rows, rows, self._k, exclude_self=True)  # (n, k)
        kth = distances[:, -1]
        return kth, _reachability(distances, kth[index])

    @cached_property
    def _forest(self) -> Any:
        forest = IsolationForest(random_state=self._random_state)
        return forest.fit(tree_columns(self.schema, self.rows))


def _reachability(distances: Floats, kth: Floats) -> Floats:
    """Local reachability density: one over the mean reach. The tiny term is scikit-learn's."""
    density: Floats = 1.0 / (np.maximum(distances, kth).mean(axis=1) + 1e-10)
    return density
