"""Metrics of counterfactuals by themselves: validity, distance, sparsity, diversity."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lapace.arrays import Bools, Floats
from lapace.metrics.neighbours import matches, mean, pair_distances
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


def _gaps(found: Counterfactuals) -> Floats:
    """Each column's part of the distance between counterfactuals and their instances, (m, d)."""
    return found.schema.gaps(found.instances[found.instance], found.cells)


def proximity(counterfactuals: Counterfactuals) -> float:
    """Mean distance of the counterfactuals to their instances: mean_j d(x_i(j), x'_j).

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> instances, cells = np.array([[0.0]]), np.array([[1.25], [2.5]])
        >>> instance, valid = np.array([0, 0]), np.array([True, True])
        >>> proximity(Counterfactuals.of(schema, instances, cells, instance, valid=valid))
        0.75
    """
    return mean(_gaps(counterfactuals).sum(axis=1))


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
        0.5
    """
    gaps = _gaps(counterfactuals)
    total = float(gaps.sum())
    return float(gaps[:, counterfactuals.schema.numeric].sum()) / total if total else math.nan


def diversity(counterfactuals: Counterfactuals) -> float:
    """Mean distance between an instance's counterfactuals, over instances with two or more.

    mean_i [ 2 / (m_i (m_i - 1)) sum_{j<l} d(x'_ij, x'_il) ]; NaN where each instance has one.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> instances, cells = np.array([[0.0], [0.5]]), np.array([[1.25], [2.5], [2.0]])
        >>> instance, valid = np.array([0, 0, 1]), np.array([True, True, True])
        >>> diversity(Counterfactuals.of(schema, instances, cells, instance, valid=valid))
        0.5
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
        0.667
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
