"""Robustness: do counterfactuals survive retrained classifiers and small input changes?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest

from lapace.arrays import Bools, Floats, Ints, matches
from lapace.classifiers import Classifier
from lapace.metrics.neighbours import join, mean, pair_distances, recode
from lapace.result import Counterfactuals
from lapace.schema import Schema


def votes(
    counterfactuals: Counterfactuals, classifier: Classifier, retrained: Sequence[Any]
) -> Bools:
    """Which retrained classifiers give each counterfactual the label the classifier gives it.

    Args:
        counterfactuals: Valid ones; of others the label they have is compared, not the target.
        classifier: The classifier they were made for, its labels known.
        retrained: Models of the same kind of rows.

    Returns:
        (models, counterfactuals) flags, for `model_robustness`.

    Examples:
        >>> rows = np.linspace(0.0, 2.5, 11)[:, None]
        >>> schema, instance, valid = Schema.infer(rows), np.array([0, 0]), np.array([True, True])
        >>> found = Counterfactuals.of(schema, rows[:1], rows[[5, 9]], instance, valid=valid)
        >>> classifier = Classifier(lambda rows: rows[:, 0] > 1, schema, labels=(False, True))
        >>> votes(found, classifier, [lambda rows: rows[:, 0] > 2])
        array([[False,  True]])
    """
    schema, cells = counterfactuals.schema, counterfactuals.cells
    found = np.zeros((len(retrained), len(cells)), dtype=bool)
    if not found.size:
        return found
    expected = _labels(classifier, cells, schema)
    for row, model in zip(found, retrained, strict=True):
        # A model trained on other rows may know labels the first never gave.
        known = (*classifier.labels, *np.asarray(getattr(model, "classes_", ())).tolist())
        row[:] = _labels(Classifier(model, schema, known), cells, schema) == expected
    return found


def _labels(classifier: Classifier, cells: Floats, schema: Schema) -> NDArray[Any]:
    return np.array(classifier.labels, dtype=object)[classifier.predict(cells, schema)]


class ModelRobustness(NamedTuple):
    """How many retrained classifiers still accept counterfactuals.

    Attributes:
        mean: Share of (classifier, counterfactual) pairs with the counterfactual still valid.
        by_model: That share for each classifier, (R,).
        by_counterfactual: For each counterfactual, the share of classifiers that accept it, (m,).
        low: Lower end of that share's confidence interval, (m,).
        high: Its upper end, (m,).
    """

    mean: float
    by_model: Floats
    by_counterfactual: Floats
    low: Floats
    high: Floats


def model_robustness(votes: ArrayLike, confidence: float = 0.95) -> ModelRobustness:
    """Robustness to model changes, with a Wilson interval for each counterfactual.

    Args:
        votes: (R, m) flags, from `votes`: retrained classifier r gives counterfactual j its target.
        confidence: Of the interval around each counterfactual's share.

    Examples:
        >>> found = model_robustness([[True, False]] * 20)
        >>> found.mean, found.low.round(2), found.high.round(2)
        (0.5, array([0.84, 0.  ]), array([1.  , 0.16]))
    """
    flags = np.asarray(votes, dtype=bool)  # (R, m)
    models, count = flags.shape
    if not flags.size:
        by_model, unknown = np.full(models, math.nan), np.full(count, math.nan)
        return ModelRobustness(math.nan, by_model, unknown, unknown, unknown)
    tests = (binomtest(accepting, models) for accepting in range(models + 1))
    bounds = np.array([test.proportion_ci(confidence, method="wilson") for test in tests])
    low, high = bounds[flags.sum(axis=0)].T
    return ModelRobustness(mean(flags), flags.mean(axis=1), flags.mean(axis=0), low, high)


class InputRobustness(NamedTuple):
    """How far counterfactuals move when the instance moves a little.

    Means over comparisons, one per instance and perturbation; 0 is perfectly stable.

    Attributes:
        distance: Between old and new where there is one of each; NaN where there never is.
        set_distance: ½ mean over old of the nearest new + ½ mean over new of the nearest old.
        max_set_distance: The larger of the two directed farthest-nearest distances.
        compared: Comparisons made.
        flipped: Left out, because the perturbed instance's label differs.
        lost: Left out, because the perturbed instance has no ok counterfactual.
    """

    distance: float
    set_distance: float
    max_set_distance: float
    compared: int
    flipped: int
    lost: int


def input_robustness(
    before: Counterfactuals, after: Sequence[Counterfactuals], flipped: ArrayLike | None = None
) -> InputRobustness:
    """Robustness to input changes: counterfactuals against those of perturbed instances.

    For an instance's old counterfactuals A and new ones B, with d(a, B) = min_b d(a, b):
    set distance = ½ mean_a d(a, B) + ½ mean_b d(b, A) (Leofante and Potyka, 2024), and
    max-set-distance = max(max_a d(a, B), max_b d(b, A)). Only ok rows are compared.

    Args:
        before: The counterfactuals of the instances as they are.
        after: For each round of perturbation, those of the same instances in the same order.
        flipped: (rounds, instances) flags: the perturbed instance has another label.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> rows, instance, valid = np.array([[0.0]]), np.array([0]), np.array([True])
        >>> old = Counterfactuals.of(schema, rows, np.array([[1.0]]), instance, valid=valid)
        >>> new = Counterfactuals.of(schema, rows, np.array([[1.5]]), instance, valid=valid)
        >>> round(input_robustness(old, [old, new]).distance, 3)
        0.067
    """
    moved = np.zeros((len(after), len(before.instances)), dtype=bool)
    if flipped is not None:
        moved[:] = np.asarray(flipped, dtype=bool)
    old = before.where(before.ok)
    answered = np.isin(np.arange(len(before.instances)), old.instance)
    found, lost = [np.empty((0, 3))], 0
    for new, left_out in zip(after, moved, strict=True):
        schema = join(before.schema, new.schema)
        counted = answered & ~left_out
        kept = old.where(counted[old.instance])
        other = new.where(new.ok & counted[new.instance])
        cells = recode(other.cells, new.schema, schema)
        rows = _set_distances(schema, kept.cells, kept.instance, cells, other.instance)
        found.append(rows)
        lost += int(counted.sum()) - len(rows)
    single, both, farthest = np.concatenate(found).T
    return InputRobustness(
        distance=mean(single),
        set_distance=mean(both),
        max_set_distance=mean(farthest),
        compared=len(both),
        flipped=int((moved & answered).sum()),
        lost=lost,
    )


def _set_distances(
    schema: Schema, a: Floats, instance_a: Ints, b: Floats, instance_b: Ints
) -> Floats:
    """One line per instance with rows in both: single distance or NaN, set and max-set."""
    i, j = matches(instance_a, instance_b)
    between = pair_distances(schema, a, b, i, j)
    shared = np.unique(instance_a[i])
    average, farthest = np.zeros(len(shared)), np.zeros(len(shared))
    single = np.ones(len(shared), dtype=bool)
    for instance, index in ((instance_a, i), (instance_b, j)):
        closest = np.full(len(instance), math.inf)
        np.minimum.at(closest, index, between)
        both = np.isin(instance, shared)
        group = np.searchsorted(shared, instance[both])
        counts = np.bincount(group, minlength=len(shared))
        average += np.bincount(group, closest[both], minlength=len(shared)) / counts / 2
        np.maximum.at(farthest, group, closest[both])
        single &= counts == 1
    return np.column_stack([np.where(single, farthest, math.nan), average, farthest])


def perturb(schema: Schema, cells: Floats, rng: np.random.Generator, scale: float = 0.02) -> Floats:
    """Instances moved a little: max-norm at most `scale`, in units of each column's range.

    Each number present moves independently by a uniform draw from [-scale, scale] * range; on a
    column with a resolution, from the lattice steps within that interval, so whole numbers stay
    whole and a column whose step is larger does not move. A value inside the training range stays
    inside. Categories and missing cells stay as they are.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0, 3.0], [50.0, 3.5], [100.0, 4.0]]))
        >>> instances = np.array([[50.0, np.nan]] * 3)
        >>> perturb(schema, instances, np.random.default_rng(0)).tolist()
        [[51.0, nan], [48.0, nan], [52.0, nan]]
    """
    columns = [schema.features[i] for i in schema.numeric]
    original = cells[:, schema.numeric]  # (n, p)
    span, step, lower, upper = (
        np.array([getattr(f, name) for f in columns], dtype=np.float64)
        for name in ("span", "resolution", "lower", "upper")
    )
    draw = rng.uniform(0, 1, original.shape)
    steps = np.floor(scale * span / np.where(step > 0, step, 1.0) + 1e-9)
    on_lattice = (np.floor(draw * (2 * steps + 1)) - steps) * step
    shift = np.where(step > 0, on_lattice, (2 * draw - 1) * scale * span)
    # A level unseen in training has no neighbours to move to.
    ordinal = np.array([f.kind == "ordinal" for f in columns], dtype=bool)
    shift = np.where(ordinal & (original > upper), 0.0, shift)
    result = cells.copy()
    result[:, schema.numeric] = np.clip(
        original + shift, np.minimum(lower, original), np.maximum(upper, original)
    )
    # 0.1 + 0.2 is not 0.3: snapped where that changes the value by no more than rounding.
    tidy = schema.snap(result)
    same = np.abs(tidy - result) <= 1e-6 * schema.spans
    return np.where(same & (result != cells), tidy, result)
