"""Do the answers look like rows the classifier gives the target?"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.ensemble import IsolationForest

from lapace.arrays import Floats
from lapace.metrics.space import distinct, mean, median, nearest, search, tree_columns
from lapace.result import Counterfactuals
from lapace.schema import Schema


@dataclass(frozen=True)
class Plausibility:
    """How much rows look like those the classifier gives one label.

    Made once from those rows, then asked as often as wanted; what is costly is computed when
    first needed and kept. Scores are one number per row asked, NaN where there is nothing (for
    LOF and the forest: fewer than two distinct rows) to compare with.

    Attributes:
        schema: Whose distance.
        rows: The rows compared with, all different.
        neighbours: How many LOF looks at (fewer where there are fewer rows).
        seed: Of the isolation forest.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> usual = Plausibility.of(schema, np.linspace(0.0, 1.0, 41)[:, None])
        >>> near, far = usual.lof(np.array([[0.51], [2.4]]))
        >>> bool(near < 1.1 < far)
        True
    """

    schema: Schema
    rows: Floats = field(repr=False)
    neighbours: int = 20
    seed: int = 0

    @classmethod
    def of(
        cls,
        schema: Schema,
        rows: Floats,
        *,
        neighbours: int = 20,
        most: int | None = 20_000,
        seed: int = 0,
    ) -> Plausibility:
        """Keeps the *distinct* rows: repeated ones have infinite density and LOF explodes.

        Args:
            schema: Whose distance.
            rows: Cells of the rows the classifier gives the label.
            neighbours: How many LOF looks at.
            most: Of more distinct rows, a random sample of this size: LOF compares each row with
                each. None keeps all.
            seed: Of that sample and of the isolation forest.

        Examples:
            >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
            >>> len(Plausibility.of(schema, np.array([[0.5], [0.5], [1.0]])).rows)
            2
        """
        kept = distinct(rows)
        if most is not None and len(kept) > most:
            kept = np.random.default_rng(seed).choice(kept, most, replace=False, shuffle=False)
        return cls(schema, kept, neighbours, seed)

    def lof(self, cells: Floats) -> Floats:
        """Local outlier factor, novelty mode, by `Schema.distance`: 1 inside, larger outside.

        With N(x) the k nearest rows, reach(x, o) = max(d(x, o), d(o, its k-th neighbour)) and
        lrd(x) = 1 / mean_{o in N(x)} reach(x, o):  LOF(x) = mean_{o in N(x)} lrd(o) / lrd(x).

        Examples:
            >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
            >>> usual = Plausibility.of(schema, np.linspace(0.0, 2.5, 101)[:, None])
            >>> usual.lof(np.array([[1.26]])).round(1)
            array([1.])
        """
        if len(self.rows) < 2:
            return np.full(len(cells), math.nan)
        kth, lrd = self._local
        distances, index = search(self.schema, cells, self.rows, self._k)  # (m, k)
        scores: Floats = lrd[index].mean(axis=1) / _reachability(distances, kth[index])
        return scores

    def isolation(self, cells: Floats) -> Floats:
        """Isolation-forest score 2^(-mean path length / c(n)): about 0.4 usual, towards 1 odd.

        Examples:
            >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
            >>> usual = Plausibility.of(schema, np.linspace(0.0, 1.0, 41)[:, None])
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
            >>> Plausibility.of(schema, np.array([[0.0], [2.5]])).knn(np.array([[0.5]]), k=1)
            array([0.2])
        """
        if not len(self.rows):
            return np.full(len(cells), math.nan)
        distances: Floats = nearest(self.schema, cells, self.rows, k).mean(axis=1)
        return distances

    @property
    def _k(self) -> int:
        return min(self.neighbours, len(self.rows) - 1)

    @cached_property
    def _local(self) -> tuple[Floats, Floats]:
        """Each row's distance to its k-th neighbour, and its local reachability density."""
        distances, index = search(self.schema, self.rows, self.rows, self._k, others=True)  # (n, k)
        kth = distances[:, -1]
        return kth, _reachability(distances, kth[index])

    @cached_property
    def _forest(self) -> Any:
        return IsolationForest(random_state=self.seed).fit(tree_columns(self.schema, self.rows))


def _reachability(distances: Floats, kth: Floats) -> Floats:
    """Local reachability density: one over the mean reach. The tiny term is scikit-learn's."""
    density: Floats = 1.0 / (np.maximum(distances, kth).mean(axis=1) + 1e-10)
    return density


class Typical(NamedTuple):
    """Mean and median of scores; NaN when there are none.

    Examples:
        >>> Typical(mean=1.5, median=1.0).median
        1.0
    """

    mean: float
    median: float


def typical(scores: ArrayLike) -> Typical:
    """Mean and median over the scores that are known: LOF has a long tail, so look at both.

    Examples:
        >>> typical([1.0, 1.0, 7.0, np.nan])
        Typical(mean=3.0, median=1.0)
    """
    known = np.asarray(scores, dtype=np.float64)
    known = known[~np.isnan(known)]
    return Typical(mean(known), median(known))


def density(answers: Counterfactuals) -> Typical:
    """Mean and median of the answers' latent density, in percentiles among training rows.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> row, instance = np.array([[1.25]]), np.array([0])
        >>> known = {"valid": np.array([True]), "density": np.array([40.0])}
        >>> density(Counterfactuals.of(schema, row, row, instance, **known)).mean
        40.0
    """
    return typical(answers.density)
