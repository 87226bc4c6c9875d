"""Metrics of counterfactuals: validity, distance, sparsity, diversity."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lapace.arrays import Bools, Floats, Ints, batches, matches
from lapace.result import Counterfactuals
from lapace.schema import Schema

CHUNK = 50_000  # pairs whose distance is computed at once: 40 MB for a hundred columns


class Share(NamedTuple):
    """A share of the instances tried, and of all counterfactuals.

    An instance counts where at least one of its counterfactuals does.

    Examples:
        >>> Share(instances=1.0, counterfactuals=0.5).instances
        1.0
    """

    instances: float
    counterfactuals: float


def validity(counterfactuals: Counterfactuals, tried: ArrayLike | None = None) -> Share:
    """Returns the share of instances with a valid counterfactual, and of counterfactuals valid.

    instances = |{i tried : some counterfactual of i is valid}| / |tried|,
    counterfactuals = valid / all.

    Args:
        counterfactuals: Counterfactuals of any method.
        tried: Positions of the instances tried, by default those with a counterfactual. A method
            that returns nothing where it fails needs it, or its failures are not counted.

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


def satisfaction(counterfactuals: Counterfactuals, tried: ArrayLike | None = None) -> Share:
    """Returns the share of instances with an ok counterfactual, and of counterfactuals feasible.

    instances = |{i tried : some counterfactual of i is valid and feasible}| / |tried|,
    counterfactuals = feasible / all.

    Args:
        counterfactuals: Counterfactuals of any method.
        tried: Positions of the instances tried, as in `validity`.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> instances, cells = np.array([[0.5]]), np.array([[1.0], [0.0]])
        >>> instance, valid = np.array([0, 0]), np.array([False, True])
        >>> satisfaction(Counterfactuals.of(schema, instances, cells, instance, valid=valid))
        Share(instances=1.0, counterfactuals=1.0)
    """
    instances = _instances_with(counterfactuals, counterfactuals.ok, tried)
    return Share(instances, mean(counterfactuals.feasible))


def _instances_with(rows: Counterfactuals, flags: Bools, tried: ArrayLike | None) -> float:
    """Returns the share of the instances tried that have a flagged counterfactual."""
    instances = np.unique(rows.instance if tried is None else np.asarray(tried, dtype=np.int64))
    return mean(np.isin(instances, rows.instance[flags]))


def proximity(counterfactuals: Counterfactuals) -> float:
    """Returns the mean distance of counterfactuals to their instances: mean_j d(x_i(j), x'_j).

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
    """Returns the mean `Schema.range_distance`: numbers' changes over ranges, as in the paper.

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
    """Returns the mean number of features that a counterfactual changes.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0, 0.5], [1.25, 1.5], [2.5, 3.25]]))
        >>> instances, cells = np.array([[0.0, 0.5]]), np.array([[1.25, 0.5], [2.5, 1.5]])
        >>> instance, valid = np.array([0, 0]), np.array([True, True])
        >>> sparsity(Counterfactuals.of(schema, instances, cells, instance, valid=valid))
        1.5
    """
    return mean(counterfactuals.changed)


def number_share(counterfactuals: Counterfactuals) -> float:
    """Returns the share of the total distance that falls on numeric columns, not categories.

    It is the sum of the distance's terms over counterfactuals and numeric (continuous, ordinal)
    columns, over the sum of all terms; NaN when nothing changed.

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
    """Returns the mean distance between an instance's counterfactuals.

    mean_i [ 2 / (m_i (m_i - 1)) sum_{j<l} d(x'_ij, x'_il) ]; over instances
    with two or more; NaN where each instance has one.

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


def pair_distances(schema: Schema, a: Floats, b: Floats, i: Ints, j: Ints) -> Floats:
    """Returns the distance of a[i] to b[j], pair by pair, a chunk at a time."""
    distances = np.empty(len(i))
    for chunk in batches(len(i), CHUNK):
        distances[chunk] = schema.gaps(a[i[chunk]], b[j[chunk]]).sum(axis=1)
    return distances


def mean(values: ArrayLike) -> float:
    """Returns the mean of the values that are not NaN; NaN where there is none.

    Examples:
        >>> mean([1.0, 1.0, 7.0, np.nan]), mean([])
        (3.0, nan)
    """
    present = _present(values)
    return float(present.mean()) if present.size else math.nan


def median(values: ArrayLike) -> float:
    """Returns the median of the values that are not NaN; NaN where there is none.

    Examples:
        >>> median([1.0, 1.0, 7.0, np.nan])
        1.0
    """
    present = _present(values)
    return float(np.median(present)) if present.size else math.nan


def _present(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    return array[~np.isnan(array)]
