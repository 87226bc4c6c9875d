"""Metrics of counterfactuals: pure functions on cells and `Counterfactuals`.

Only `evaluate` and `votes` also take the user's models and tables. Every
distance is `Schema.distance`, unweighted: a number's change counts the share of the training rows
that it passes (0.16 is a change past 16% of them), a category change 1, missing against present 1.
Only `range_distance` of `evaluate` takes a number's change over its range, as the paper does.

A share or mean over nothing (no counterfactuals, no instance tried, one row where a pair is
needed) is NaN: never 0, never a warning. Shares run from 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lapace.arrays import Bools, Floats, Ints, distinct, matches
from lapace.classifier import Classifier
from lapace.result import Counterfactuals
from lapace.schema import Schema
from lapace.schema.distance import kneighbors

__all__ = [
    "Plausibility",
    "distinct_rows",
    "diversity",
    "evaluate",
    "kneighbors",
    "mean",
    "median",
    "proximity",
    "satisfaction",
    "sparsity",
    "validity",
    "votes",
]


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
        >>> round(proximity(Counterfactuals.of(schema, instances, cells, instance, valid=valid)), 3)
        0.769
    """
    originals = counterfactuals.instances[counterfactuals.instance]
    return mean(counterfactuals.schema.distance(originals, counterfactuals.cells))


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
        0.513
    """
    instance, cells = counterfactuals.instance, counterfactuals.cells
    i, j = matches(instance, instance)
    i, j = i[i < j], j[i < j]
    between = counterfactuals.schema.distance(cells[i], cells[j])
    _, group = np.unique(instance[i], return_inverse=True)
    return mean(np.bincount(group, weights=between) / np.bincount(group))


class Plausibility:
    """Local outlier factors of rows among the rows of one label.

    Neighbours are computed when first needed and kept. Factors are NaN where there are fewer than
    two rows to compare with.

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
            random_state: Seed of that sample.
        """
        kept = rows[distinct_rows(rows)[0]]
        if max_rows is not None and len(kept) > max_rows:
            rng = np.random.default_rng(random_state)
            kept = rng.choice(kept, max_rows, replace=False, shuffle=False)
        self.schema, self.rows = schema, kept
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

    @cached_property
    def _local(self) -> tuple[Floats, Floats]:
        """The distance of each row to its k-th neighbour, and its local reachability density."""
        rows = self.rows
        distances, index = kneighbors(self.schema, rows, rows, self._k, exclude_self=True)  # (n, k)
        kth = distances[:, -1]
        return kth, _reachability(distances, kth[index])


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
    # One bit pattern for each of NaN and zero, so that equal rows have equal bits.
    first, which = distinct(np.where(np.isnan(cells), np.nan, cells) + 0.0)
    order = np.argsort(first)
    return first[order], np.bincount(which, minlength=len(first))[order]


# ------------------------------------------------------------------------------------------------
# All that apply, in one call


def evaluate(
    counterfactuals: Counterfactuals,
    *,
    classifier: Any,
    reference: Any,
    tried: ArrayLike | None = None,
    retrained: Sequence[Any] = (),
) -> dict[str, float]:
    """Returns all metrics that apply, by name.

    `validity` and `satisfaction` are of all counterfactuals, everything else of those that are ok.
    Plausibility is measured among the reference rows that have the counterfactual's label, which
    for an ok one is the target; targets may differ between instances.

    | always | |
    |---|---|
    | `validity`, `valid_counterfactuals` | share of instances with a valid one, of all rows |
    | `satisfaction`, `feasible_counterfactuals` | instances with an ok one, rows feasible |
    | `distance`, `changed` | mean distance, mean number of features changed |
    | `range_distance` | mean distance with numbers' changes over their ranges, as in the paper |
    | `lof`, `lof_median` | local outlier factor, 20 neighbours |
    | `density`, `density_median` | share of the label's rows that are less dense; or NaN |
    | `diversity` | NaN where each instance has one counterfactual |
    | `training_distance`, `copies` | median distance to the nearest reference row, share at 0 |
    | **with** `retrained` | `model_robustness`, the mean of `votes` |

    Args:
        counterfactuals: The rows of a pick or of another method.
        classifier: The user's model, or a wrapped one (whose query count does not change).
        reference: The training table. The classifier is queried about each of its rows.
        tried: Positions of the instances tried, as in `validity`.
        retrained: Models trained again.

    Examples:
        >>> rows = np.linspace(0.0, 2.5, 11)[:, None]
        >>> schema, instance, valid = Schema.infer(rows), np.array([0]), np.array([True])
        >>> found = Counterfactuals.of(schema, rows[:1], rows[[5]], instance, valid=valid)
        >>> values = evaluate(found, classifier=lambda rows: rows[:, 0] > 1, reference=rows)
        >>> values["validity"], round(values["distance"], 3), values["range_distance"]
        (1.0, 0.524, 0.5)
    """
    reading = counterfactuals.schema.read(reference).checked()
    train = reading.cells
    counterfactuals = replace(counterfactuals, schema=reading.schema)  # with the table's own levels
    ok = counterfactuals.where(counterfactuals.ok)
    labels = classifier.labels if isinstance(classifier, Classifier) else ()
    model = classifier.model if isinstance(classifier, Classifier) else classifier
    asked = Classifier(model, reading.schema, labels)
    codes = asked.predict(train) if labels else asked.fit_labels(train)
    valid, feasible = validity(counterfactuals, tried), satisfaction(counterfactuals, tried)
    ok_codes, lof = asked.predict(ok.cells, ok.schema), np.full(len(ok), math.nan)
    for code in np.unique(ok_codes):
        among = Plausibility(ok.schema, train[codes == code])
        lof[ok_codes == code] = among.lof(ok.cells[ok_codes == code])
    to_training = kneighbors(ok.schema, ok.cells, train)[0].ravel()
    # Only picks of a path have a density: that of a part would speak for all.
    density = ok.density[: 0 if np.isnan(ok.density).any() else None]
    values = {
        "validity": valid.instances,
        "valid_counterfactuals": valid.counterfactuals,
        "satisfaction": feasible.instances,
        "feasible_counterfactuals": feasible.counterfactuals,
        "distance": proximity(ok),
        "range_distance": mean(ok.schema.by_range().distance(ok.instances[ok.instance], ok.cells)),
        "changed": sparsity(ok),
        "density": mean(density),
        "density_median": median(density),
        "diversity": diversity(ok),
        "lof": mean(lof),
        "lof_median": median(lof),
        "training_distance": median(to_training),
        "copies": mean(to_training == 0),
    }
    if retrained:
        values["model_robustness"] = mean(votes(ok, asked, retrained))
    return values


def votes(
    counterfactuals: Counterfactuals, classifier: Classifier, retrained: Sequence[Any]
) -> Bools:
    """Returns whether each retrained classifier gives each counterfactual its present label.

    Args:
        counterfactuals: Counterfactuals, of which valid ones have the target as their label.
        classifier: The classifier they were made for, its labels known.
        retrained: Models of the same kind of rows.

    Returns:
        Flags, (models, counterfactuals).

    Examples:
        >>> rows = np.linspace(0.0, 2.5, 11)[:, None]
        >>> schema, instance, valid = Schema.infer(rows), np.array([0, 0]), np.array([True, True])
        >>> found = Counterfactuals.of(schema, rows[:1], rows[[5, 9]], instance, valid=valid)
        >>> classifier = Classifier(lambda rows: rows[:, 0] > 1, schema, labels=(False, True))
        >>> votes(found, classifier, [lambda rows: rows[:, 0] > 2])
        array([[False,  True]])
    """
    schema, cells = counterfactuals.schema, counterfactuals.cells
    agree = np.zeros((len(retrained), len(cells)), dtype=bool)
    if not agree.size:
        return agree
    expected = _labels(classifier, cells, schema)
    for row, model in zip(agree, retrained, strict=True):
        # A model trained on other rows may know labels the first never gave.
        known = (*classifier.labels, *np.asarray(getattr(model, "classes_", ())).tolist())
        row[:] = _labels(Classifier(model, schema, known), cells, schema) == expected
    return agree


def _labels(classifier: Classifier, cells: Floats, schema: Schema) -> NDArray[Any]:
    return np.array(classifier.labels, dtype=object)[classifier.predict(cells, schema)]
