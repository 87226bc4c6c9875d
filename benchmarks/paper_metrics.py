"""Metrics that only the experiments use: of sampled rows, of paths, of perturbed instances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.ensemble import RandomForestClassifier

from lapace.arrays import Floats, Ints, matches
from lapace.metrics import mean
from lapace.result import Counterfactuals
from lapace.schema import Schema


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


@dataclass(frozen=True)
class Utility:
    """Accuracy on held-out rows of a forest trained on real and on synthetic rows (TSTR).

    Attributes:
        real: Accuracy after training on real rows.
        synthetic: Accuracy after training on synthetic rows.
        balanced_real: Balanced accuracy (mean recall of the test labels), real.
        balanced_synthetic: Balanced accuracy, synthetic.
    """

    real: float
    synthetic: float
    balanced_real: float
    balanced_synthetic: float

    @property
    def gap(self) -> float:
        """Accuracy lost by training on synthetic rows: real - synthetic."""
        return self.real - self.synthetic

    @property
    def balanced_gap(self) -> float:
        """Balanced accuracy lost by training on synthetic rows."""
        return self.balanced_real - self.balanced_synthetic


def utility(
    schema: Schema,
    real: tuple[Floats, ArrayLike],
    synthetic: tuple[Floats, ArrayLike],
    test: tuple[Floats, ArrayLike],
    *,
    trees: int = 100,
    random_state: int = 0,
    max_depth: int | None = None,
) -> Utility:
    """Train on synthetic, test on real (TSTR): can synthetic rows replace real ones?

    A random forest is trained on the real and one on the synthetic rows; both predict held-out
    rows that carry the classifier's labels. NaN for a side without rows.

    Args:
        schema: What the columns are.
        real: Cells and labels of real training rows.
        synthetic: Cells and labels of synthetic rows.
        test: Cells and labels of held-out rows.
        trees: Of each forest.
        random_state: Of each forest.
        max_depth: Of each forest; None for full depth.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> rows = np.linspace(0.0, 2.5, 40)[:, None]
        >>> labels = rows[:, 0] > 1.25
        >>> utility(schema, (rows, labels), (rows, ~labels), (rows, labels), trees=5).gap
        1.0
    """
    cells, expected = test
    sides = [Agreement(math.nan, {}), Agreement(math.nan, {})]
    for k, (train, labels) in enumerate((real, synthetic)):
        if len(train) and len(cells):
            forest = RandomForestClassifier(trees, max_depth=max_depth, random_state=random_state)
            forest.fit(tree_columns(schema, train), np.asarray(labels))
            sides[k] = agreement(expected, forest.predict(tree_columns(schema, cells)))
    balanced = [mean(list(side.by_label.values())) for side in sides]
    return Utility(*(side.overall for side in sides), *balanced)


class Agreement(NamedTuple):
    """How often the classifier says what was asked for, overall and for each label asked for."""

    overall: float
    by_label: dict[Any, float]


def agreement(expected: ArrayLike, predicted: ArrayLike) -> Agreement:
    """Share of rows with predicted = expected, and per expected label, which imbalance would hide.

    Examples:
        >>> agreement(["no", "no", "no", "yes"], ["no", "no", "no", "no"])
        Agreement(overall=0.75, by_label={'no': 1.0, 'yes': 0.0})
    """
    expected, predicted = np.asarray(expected), np.asarray(predicted)
    same = np.asarray(expected == predicted, dtype=bool)
    labels, codes = np.unique(expected, return_inverse=True)
    by_label = {label: mean(same[codes == k]) for k, label in enumerate(labels.tolist())}
    return Agreement(mean(same), by_label)


def spread(schema: Schema, cells: Floats) -> float:
    """Mean distance over all pairs of rows: the diversity of a set of prototypes.

    2 / (n (n - 1)) sum_{j<l} d(x_j, x_l); NaN for fewer than two rows.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> round(spread(schema, np.array([[0.0], [1.25], [2.5]])), 3)
        0.684
    """
    i, j = np.triu_indices(len(cells), k=1)
    return mean(schema.distance(cells[i], cells[j]))


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
        by_instance: The max-set-distance of every instance, mean over rounds; NaN without any.
    """

    distance: float
    set_distance: float
    max_set_distance: float
    compared: int
    flipped: int
    lost: int
    by_instance: tuple[float, ...] = ()


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
        0.103
    """
    moved = np.zeros((len(after), len(before.instances)), dtype=bool)
    if flipped is not None:
        moved[:] = np.asarray(flipped, dtype=bool)
    old = before.where(before.ok)
    answered = np.isin(np.arange(len(before.instances)), old.instance)
    found, which, lost = [np.empty((0, 3))], [np.empty(0, dtype=np.int64)], 0
    for new, left_out in zip(after, moved, strict=True):
        schema = join(before.schema, new.schema)
        counted = answered & ~left_out
        kept = old.where(counted[old.instance])
        other = new.where(new.ok & counted[new.instance])
        cells = recode(other.cells, new.schema, schema)
        rows, shared = _set_distances(schema, kept.cells, kept.instance, cells, other.instance)
        found.append(rows)
        which.append(shared)
        lost += int(counted.sum()) - len(rows)
    single, both, farthest = np.concatenate(found).T
    owner, count = np.concatenate(which), len(before.instances)
    rounds = np.bincount(owner, minlength=count)
    sums = np.bincount(owner, farthest, minlength=count)
    each = np.where(rounds > 0, sums / np.maximum(1, rounds), math.nan)
    return InputRobustness(
        distance=mean(single),
        set_distance=mean(both),
        max_set_distance=mean(farthest),
        compared=len(both),
        flipped=int((moved & answered).sum()),
        lost=lost,
        by_instance=tuple(each.tolist()),
    )


def join(schema: Schema, other: Schema) -> Schema:
    """Returns a schema widened by the levels that only another one has; its codes stay."""
    features = tuple(
        replace(ours, extra=ours.extra + tuple(v for v in theirs.extra if v not in ours.levels))
        for ours, theirs in zip(schema.features, other.features, strict=True)
    )
    return replace(schema, features=features)


def recode(cells: Floats, old: Schema, new: Schema) -> Floats:
    """Returns cells of one schema in the codes of another that has all its levels."""
    result = cells.copy()
    for i, (before, after) in enumerate(zip(old.features, new.features, strict=True)):
        if before.extra and before.levels != after.levels[: len(before.levels)]:
            codes = np.array([*map(after.levels.index, before.levels), math.nan])
            result[:, i] = codes[np.where(np.isnan(cells[:, i]), -1, cells[:, i]).astype(int)]
    return result


def _set_distances(
    schema: Schema, a: Floats, instance_a: Ints, b: Floats, instance_b: Ints
) -> tuple[Floats, Ints]:
    """One line per instance with rows in both: single distance or NaN, set and max-set; and who."""
    i, j = matches(instance_a, instance_b)
    between = schema.distance(a[i], b[j])
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
    return np.column_stack([np.where(single, farthest, math.nan), average, farthest]), shared


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
    same = np.abs(tidy - result) <= 1e-6 * schema.metric.spans
    return np.where(same & (result != cells), tidy, result)
