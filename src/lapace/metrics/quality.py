"""Metrics of counterfactuals: validity, distance, sparsity, diversity, plausibility."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.ensemble import IsolationForest

from lapace.arrays import Bools, Floats, matches
from lapace.metrics.neighbours import (
    distinct_rows,
    kneighbors,
    mean,
    pair_distances,
    tree_columns,
)
from lapace.result import Counterfactuals
from lapace.schema import Schema


class Share(NamedTuple):
    """A share of the instances tried (with at least one such counterfactual), and of all rows.

    Examples:
        >>> Share(instances=1.0, counterfactuals=0.5).instances
        1.0
    """

    instances: float
    counterfactuals: float


def validity(counterfactuals: Counterfactuals, tried: ArrayLike | None = None) -> Share:
    """Share of instances tried with a valid counterfactual, and of counterfactuals valid.

    instances = |{i tried : some counterfactual of i is valid}| / |tried|,
    counterfactuals = valid / all.

    Args:
        counterfactuals: Of any method.
        tried: Positions of the instances tried. Left out: those with a counterfactual, which is
            right for a method that returns its best row where it fails. One that returns nothing
            for those instances needs it, or its failures are not counted.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> instances, cells = np.array([[0.0], [0.5]]), np.array([[1.0], [2.0]])
        >>> instance, valid = np.array([0, 0]), np.array([True, False])
        >>> found = Counterfactuals.of(schema, instances, cells, instance, valid=valid)
        >>> validity(found)
        Share(instances=1.0, counterfactuals=0.5)
        >>> validity(found, tried=[0, 1])
        Share(instances=0.5, counterfactuals=0.5)
    """
    valid = counterfactuals.valid
    return Share(_instances_with(counterfactuals, valid, tried), mean(valid))


def satisfaction(
    counterfactuals: Counterfactuals,
    check: Callable[[Floats, Floats], ArrayLike] | None = None,
    tried: ArrayLike | None = None,
) -> Share:
    """Share of instances with a valid, feasible counterfactual; of counterfactuals feasible.

    instances = |{i tried : some counterfactual of i is valid and feasible}| / |tried|,
    counterfactuals = feasible / all.

    Args:
        counterfactuals: Of any method.
        check: `check(cells, originals)`, one flag per row, to be used instead of `feasible`; the
            originals are the instances' rows.
        tried: As in `validity`.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> instances, cells = np.array([[0.5]]), np.array([[1.0], [0.0]])
        >>> instance, valid = np.array([0, 0]), np.array([False, True])
        >>> found = Counterfactuals.of(schema, instances, cells, instance, valid=valid)
        >>> satisfaction(found)
        Share(instances=1.0, counterfactuals=1.0)
        >>> satisfaction(found, check=lambda rows, originals: rows[:, 0] >= originals[:, 0])
        Share(instances=0.0, counterfactuals=0.5)
    """
    feasible = counterfactuals.feasible
    if check is not None:
        originals = counterfactuals.instances[counterfactuals.instance]
        feasible = np.asarray(check(counterfactuals.cells, originals), dtype=bool)
    ok = counterfactuals.valid & feasible
    return Share(_instances_with(counterfactuals, ok, tried), mean(feasible))


def _instances_with(found: Counterfactuals, flags: Bools, tried: ArrayLike | None) -> float:
    """Share of the instances tried that have a flagged counterfactual."""
    instances = np.unique(found.instance if tried is None else np.asarray(tried, dtype=np.int64))
    return mean(np.isin(instances, found.instance[flags]))


def proximity(counterfactuals: Counterfactuals) -> float:
    """Mean distance of the counterfactuals to their instances: mean_j d(x_i(j), x'_j).

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> instances, cells = np.array([[0.0]]), np.array([[1.25], [2.5]])
        >>> instance, valid = np.array([0, 0]), np.array([True, True])
        >>> proximity(Counterfactuals.of(schema, instances, cells, instance, valid=valid))
        0.5
    """
    originals = counterfactuals.instances[counterfactuals.instance]
    return mean(counterfactuals.schema.distance(originals, counterfactuals.cells))


def range_proximity(counterfactuals: Counterfactuals) -> float:
    """Mean distance with numbers' changes over their ranges, `Schema.range_distance`: the paper's.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> instances, cells = np.array([[0.0]]), np.array([[1.25], [2.5]])
        >>> instance, valid = np.array([0, 0]), np.array([True, True])
        >>> range_proximity(Counterfactuals.of(schema, instances, cells, instance, valid=valid))
        0.75
    """
    originals = counterfactuals.instances[counterfactuals.instance]
    return mean(counterfactuals.schema.range_distance(originals, counterfactuals.cells))


def sparsity(counterfactuals: Counterfactuals) -> float:
    """Mean number of features a counterfactual changes, at each column's resolution.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0, 0.5], [1.25, 1.5], [2.5, 3.25]]))
        >>> instances, cells = np.array([[0.0, 0.5]]), np.array([[1.25, 0.5], [2.5, 1.5]])
        >>> instance, valid = np.array([0, 0]), np.array([True, True])
        >>> sparsity(Counterfactuals.of(schema, instances, cells, instance, valid=valid))
        1.5
    """
    return mean(counterfactuals.changed)


def number_share(counterfactuals: Counterfactuals) -> float:
    """Share of the total distance that falls on numeric columns; the rest falls on categories.

    Sum of the distance's terms over counterfactuals and numeric (continuous, ordinal) columns,
    over the sum of all terms; NaN when nothing changed.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0, 0.0], [1.25, 1.0], [2.5, 1.0]]))
        >>> instances, cells = np.array([[0.0, 0.0]]), np.array([[2.5, 1.0]])
        >>> instance, valid = np.array([0]), np.array([True])
        >>> number_share(Counterfactuals.of(schema, instances, cells, instance, valid=valid))
        0.4
    """
    schema, originals = counterfactuals.schema, counterfactuals.instances[counterfactuals.instance]
    gaps = schema.gaps(originals, counterfactuals.cells)  # (m, d)
    total = float(gaps.sum())
    return float(gaps[:, schema.numeric].sum()) / total if total else math.nan


def diversity(counterfactuals: Counterfactuals) -> float:
    """Mean distance between an instance's counterfactuals, over instances with two or more.

    mean_i [ 2 / (m_i (m_i - 1)) sum_{j<l} d(x'_ij, x'_il) ]; NaN where each instance has one.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> instances, cells = np.array([[0.0], [0.5]]), np.array([[1.25], [2.5], [2.0]])
        >>> instance, valid = np.array([0, 0, 1]), np.array([True, True, True])
        >>> found = Counterfactuals.of(schema, instances, cells, instance, valid=valid)
        >>> round(diversity(found), 3)
        0.333
    """
    instance, cells = counterfactuals.instance, counterfactuals.cells
    i, j = matches(instance, instance)
    i, j = i[i < j], j[i < j]
    between = pair_distances(counterfactuals.schema, cells, cells, i, j)
    _, group = np.unique(instance[i], return_inverse=True)
    return mean(np.bincount(group, weights=between) / np.bincount(group))


def spread(schema: Schema, cells: Floats) -> float:
    """Mean distance over all pairs of rows: the diversity of a set of prototypes.

    2 / (n (n - 1)) sum_{j<l} d(x_j, x_l); NaN for fewer than two rows.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> round(spread(schema, np.array([[0.0], [1.25], [2.5]])), 3)
        0.444
    """
    i, j = np.triu_indices(len(cells), k=1)
    return mean(pair_distances(schema, cells, cells, i, j))


def recrossing(valid: ArrayLike) -> float:
    """Share of the paths reaching the target that leave it again.

    Args:
        valid: (paths, steps) flags in order of tau, true where the classifier says target; None,
            NaN or -1 marks a step that was not queried, which is skipped.

    Returns:
        The paths with a false after their first true, among those with a true; NaN when none has.

    Examples:
        >>> recrossing([[False, True, True], [False, True, False], [False, False, False]])
        0.5
    """
    flags = np.asarray(valid, dtype=np.float64)  # (paths, steps), None becomes NaN
    if not flags.size:
        return math.nan
    reached = np.logical_or.accumulate(flags == 1, axis=1)
    left = (reached & (flags == 0)).any(axis=1)
    return mean(left[reached[:, -1]])


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
        kept = rows[distinct_rows(rows)[0]]
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

    def lof_of_rows(self) -> Floats:
        """Local outlier factors of the rows compared with, each among the others.

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
