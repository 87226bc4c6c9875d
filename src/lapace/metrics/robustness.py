"""Do the answers last when the classifier is retrained, and when the instance moves a little?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from lapace.arrays import Floats, Ints
from lapace.metrics.space import join, matches, mean, pair_distances, recode
from lapace.result import Counterfactuals
from lapace.schema import Schema


@dataclass(frozen=True)
class ModelRobustness:
    """How answers fare with retrained classifiers.

    Attributes:
        mean: Share of (classifier, answer) pairs in which the answer is still valid.
        by_model: That share for each classifier, (R,).
        by_answer: For each answer, the share of classifiers that still accept it, (m,).
        low: Lower end of that share's confidence interval, (m,).
        high: Its upper end, (m,).

    Examples:
        >>> model_robustness([[True, False], [True, True]]).by_answer
        array([1. , 0.5])
    """

    mean: float
    by_model: Floats = field(repr=False)
    by_answer: Floats = field(repr=False)
    low: Floats = field(repr=False)
    high: Floats = field(repr=False)


def model_robustness(votes: ArrayLike, confidence: float = 0.95) -> ModelRobustness:
    """Robustness to model changes, from who still says target.

    Per answer, s of R classifiers agree, p = s / R, and with z the normal quantile of the
    confidence the Wilson interval is (p + z²/2R ± z sqrt(p (1 - p)/R + z²/4R²)) / (1 + z²/R).

    Args:
        votes: (R, m) flags, from `votes`: retrained classifier r gives answer j its target.
        confidence: Of the interval around each answer's share.

    Examples:
        >>> found = model_robustness([[True, False]] * 20)
        >>> found.mean, found.low.round(2), found.high.round(2)
        (0.5, array([0.84, 0.  ]), array([1.  , 0.16]))
    """
    flags = np.asarray(votes, dtype=bool)  # (R, m)
    models, count = flags.shape
    if not flags.size:
        by_model, by_answer = np.full(models, math.nan), np.full(count, math.nan)
        return ModelRobustness(math.nan, by_model, by_answer, by_answer, by_answer)
    p, z2 = flags.mean(axis=0), float(ndtri(0.5 + confidence / 2)) ** 2
    centre = p + z2 / (2 * models)
    half = np.sqrt(z2 * p * (1 - p) / models + z2**2 / (4 * models**2))
    low, high = (np.clip((centre + s * half) / (1 + z2 / models), 0, 1) for s in (-1, 1))
    return ModelRobustness(mean(flags), flags.mean(axis=1), p, low, high)


class InputRobustness(NamedTuple):
    """How answers move when the instance moves a little.

    Means over comparisons, one per instance and perturbation; 0 is perfectly stable.

    Attributes:
        distance: Between old and new answer where there is one of each; NaN where never.
        set_distance: ½ mean over old of the nearest new + ½ mean over new of the nearest old.
        max_set_distance: The larger of the two directed farthest-nearest distances.
        compared: Comparisons made.
        flipped: Left out, because the perturbed instance's own label differs.
        lost: Left out, because the perturbed instance got no answer.

    Examples:
        >>> InputRobustness(0.1, 0.1, 0.1, compared=99, flipped=1, lost=0).flipped
        1
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
    """Robustness to input changes: old answers against those for perturbed instances.

    For an instance's old answers A and new answers B, with d(a, B) = min_b d(a, b):
    set distance = ½ mean_a d(a, B) + ½ mean_b d(b, A) (Leofante and Potyka, 2024), and
    max-set-distance = max(max_a d(a, B), max_b d(b, A)). Only ok answers are compared.

    Args:
        before: The answers for the instances as they are.
        after: For each round of perturbation, the answers for the same instances in the same order.
        flipped: (rounds, instances) flags: perturbed, the instance's own label is another.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> instance, instance, valid = np.array([[0.0]]), np.array([0]), np.array([True])
        >>> old = Counterfactuals.of(schema, instance, np.array([[1.0]]), instance, valid=valid)
        >>> new = Counterfactuals.of(schema, instance, np.array([[1.5]]), instance, valid=valid)
        >>> round(input_robustness(old, [old, new]).distance, 3)
        0.1
    """
    moved = np.zeros((len(after), len(before.instances)), dtype=bool)
    if flipped is not None:
        moved[:] = np.asarray(flipped, dtype=bool)
    old, instance = before.cells[before.ok], before.instance[before.ok]
    answered = np.zeros(len(before.instances), dtype=bool)
    answered[instance] = True
    found, lost = [np.empty((0, 3))], 0
    for answers, left_out in zip(after, moved, strict=True):
        schema = join(before.schema, answers.schema)
        theirs = recode(answers.cells, answers.schema, schema)
        here = answered & ~left_out
        keep, other = here[instance], answers.ok & here[answers.instance]
        rows = _set_distances(
            schema, old[keep], instance[keep], theirs[other], answers.instance[other]
        )
        found.append(rows)
        lost += int(here.sum()) - len(rows)
    single, both, farthest = np.concatenate(found).T
    return InputRobustness(
        distance=mean(single[~np.isnan(single)]),
        set_distance=mean(both),
        max_set_distance=mean(farthest),
        compared=len(both),
        flipped=int((moved & answered).sum()),
        lost=lost,
    )


def _set_distances(schema: Schema, a: Floats, who_a: Ints, b: Floats, who_b: Ints) -> Floats:
    """One row per instance with answers in both: single distance or NaN, set and max-set."""
    i, j = matches(who_a, who_b)
    between = pair_distances(schema, a, b, i, j)
    shared = np.unique(who_a[i])
    average, farthest = np.zeros(len(shared)), np.zeros(len(shared))
    single = np.ones(len(shared), dtype=bool)
    for instance, index in ((who_a, i), (who_b, j)):
        closest = np.full(len(instance), math.inf)
        np.minimum.at(closest, index, between)
        there = np.isin(instance, shared)
        one = np.searchsorted(shared, instance[there])
        counts = np.bincount(one, minlength=len(shared))
        average += np.bincount(one, closest[there], minlength=len(shared)) / counts / 2
        np.maximum.at(farthest, one, closest[there])
        single &= counts == 1
    return np.column_stack([np.where(single, farthest, math.nan), average, farthest])


def perturb(schema: Schema, cells: Floats, rng: np.random.Generator, scale: float = 0.02) -> Floats:
    """Instances moved a little: max-norm at most `scale`, in units of each column's range.

    Each number present moves, on its own, by a uniform draw from [-scale, scale] * span; on a
    column with a resolution, from the lattice steps within that interval, so whole numbers stay
    whole and a column whose step is larger does not move. Nobody leaves the training range who
    was in it. Categories and missing cells stay as they are.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0, 3.0], [50.0, 3.5], [100.0, 4.0]]))
        >>> instances = np.array([[50.0, np.nan]] * 3)
        >>> perturb(schema, instances, np.random.default_rng(0)).tolist()
        [[51.0, nan], [48.0, nan], [52.0, nan]]
    """
    columns = [schema.features[i] for i in schema.numeric]
    own = cells[:, schema.numeric]  # (n, p)
    span, step, lower, upper = (
        np.array([getattr(f, name) for f in columns], dtype=np.float64)
        for name in ("span", "resolution", "lower", "upper")
    )
    draw = rng.uniform(0, 1, own.shape)
    steps = np.floor(scale * span / np.where(step > 0, step, 1.0) + 1e-9)
    on_lattice = (np.floor(draw * (2 * steps + 1)) - steps) * step
    shift = np.where(step > 0, on_lattice, (2 * draw - 1) * scale * span)
    # A level unknown to training has no neighbours to move to.
    level = np.array([f.kind == "ordinal" for f in columns], dtype=bool)
    shift = np.where(level & (own > upper), 0.0, shift)
    moved = np.clip(own + shift, np.minimum(lower, own), np.maximum(upper, own))
    result = cells.copy()
    result[:, schema.numeric] = moved
    # 0.1 + 0.2 is not 0.3: write the number an instance would, where that is all snapping does.
    tidy = schema.snap(result)
    same = np.abs(tidy - result) <= 1e-6 * schema.spans
    return np.where(same & (result != cells), tidy, result)
