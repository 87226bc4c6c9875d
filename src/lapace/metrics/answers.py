"""Did it work, how far is it, is there a choice: what answers say by themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lapace.arrays import Bools, Floats
from lapace.metrics.space import matches, mean, pair_distances
from lapace.result import Counterfactuals
from lapace.schema import Schema


class Share(NamedTuple):
    """A share counted two ways: of the instances tried (at least one such answer), of the answers.

    Examples:
        >>> Share(instances=1.0, answers=0.5).instances
        1.0
    """

    instances: float
    answers: float


def validity(answers: Counterfactuals, tried: ArrayLike | None = None) -> Share:
    """Share of instances tried with at least one valid answer, and share of answers valid.

    instances = |{i tried : some answer of i is valid}| / |tried|, answers = valid / all answers.

    Args:
        answers: Any method's answers.
        tried: Positions of the instances tried. Left out: those with an answer row, which is right
            for a method that returns its best row for whoever it failed. One that returns nothing
            for them has to be told, or its failures go unseen.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> instances, cells = np.array([[0.0], [0.5]]), np.array([[1.0], [2.0]])
        >>> instance, valid = np.array([0, 0]), np.array([True, False])
        >>> answers = Counterfactuals.of(schema, instances, cells, instance, valid=valid)
        >>> validity(answers)
        Share(instances=1.0, answers=0.5)
        >>> validity(answers, tried=[0, 1])
        Share(instances=0.5, answers=0.5)
    """
    return Share(_answered(answers, answers.valid, tried), mean(answers.valid))


def satisfaction(
    answers: Counterfactuals,
    check: Callable[[Floats, Floats], ArrayLike] | None = None,
    tried: ArrayLike | None = None,
) -> Share:
    """Share of instances with a valid answer that keeps every constraint, and of answers that do.

    instances = |{i tried : some answer of i is valid and feasible}| / |tried|,
    answers = feasible / all answers.

    Args:
        answers: Any method's answers.
        check: `check(cells, originals)`, one flag per row, asked anew; the originals are the
            instances's own rows. Left out: the answers' own `feasible`.
        tried: As in `validity`.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> instances, cells = np.array([[0.5]]), np.array([[1.0], [0.0]])
        >>> instance, valid = np.array([0, 0]), np.array([False, True])
        >>> answers = Counterfactuals.of(schema, instances, cells, instance, valid=valid)
        >>> satisfaction(answers)
        Share(instances=1.0, answers=1.0)
        >>> satisfaction(answers, check=lambda rows, own: rows[:, 0] >= own[:, 0])
        Share(instances=0.0, answers=0.5)
    """
    feasible = answers.feasible
    if check is not None:
        feasible = np.asarray(check(answers.cells, _originals(answers)), dtype=bool)
    return Share(_answered(answers, answers.valid & feasible, tried), mean(feasible))


def _answered(answers: Counterfactuals, good: Bools, tried: ArrayLike | None) -> float:
    instances = np.unique(answers.instance if tried is None else np.asarray(tried, dtype=np.int64))
    return mean(np.isin(instances, answers.instance[good]))


def _originals(answers: Counterfactuals) -> Floats:
    """The instance's own row beside every answer."""
    rows: Floats = answers.instances[answers.instance]  # (m, d)
    return rows


def proximity(answers: Counterfactuals) -> float:
    """Mean distance of the answers to the instances they are for: mean_j d(x_who(j), x'_j).

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> instances, cells = np.array([[0.0]]), np.array([[1.25], [2.5]])
        >>> instance, valid = np.array([0, 0]), np.array([True, True])
        >>> proximity(Counterfactuals.of(schema, instances, cells, instance, valid=valid))
        0.75
    """
    return mean(answers.schema.gaps(_originals(answers), answers.cells).sum(axis=1))


def sparsity(answers: Counterfactuals) -> float:
    """Mean number of features an answer changes, at each column's resolution.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0, 0.5], [1.25, 1.5], [2.5, 3.25]]))
        >>> instances, cells = np.array([[0.0, 0.5]]), np.array([[1.25, 0.5], [2.5, 1.5]])
        >>> instance, valid = np.array([0, 0]), np.array([True, True])
        >>> sparsity(Counterfactuals.of(schema, instances, cells, instance, valid=valid))
        1.5
    """
    return mean(answers.schema.changed(_originals(answers), answers.cells).sum(axis=1))


def number_share(answers: Counterfactuals) -> float:
    """Share of all the distance gone that falls on numbers; the rest falls on categories.

    Sum of the distance's terms over answers and numeric (continuous, ordinal) columns, over the
    sum of all terms; NaN when nothing changed.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0, 0.0], [1.25, 1.0], [2.5, 1.0]]))
        >>> instances, cells = np.array([[0.0, 0.0]]), np.array([[2.5, 1.0]])
        >>> instance, valid = np.array([0]), np.array([True])
        >>> number_share(Counterfactuals.of(schema, instances, cells, instance, valid=valid))
        0.5
    """
    gaps = answers.schema.gaps(_originals(answers), answers.cells)  # (m, d)
    total = float(gaps.sum())
    return float(gaps[:, answers.schema.numeric].sum()) / total if total else math.nan


def diversity(answers: Counterfactuals) -> float:
    """Mean distance between an instance's answers, averaged over instances with two or more.

    mean_i [ 2 / (m_i (m_i - 1)) sum_{j<l} d(x'_ij, x'_il) ]; NaN where everybody has one answer.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> instances, cells = np.array([[0.0], [0.5]]), np.array([[1.25], [2.5], [2.0]])
        >>> instance, valid = np.array([0, 0, 1]), np.array([True, True, True])
        >>> diversity(Counterfactuals.of(schema, instances, cells, instance, valid=valid))
        0.5
    """
    i, j = matches(answers.instance, answers.instance)
    i, j = i[i < j], j[i < j]
    between = pair_distances(answers.schema, answers.cells, answers.cells, i, j)
    _, instance = np.unique(answers.instance[i], return_inverse=True)
    return mean(np.bincount(instance, weights=between) / np.bincount(instance))


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

    A path is a row of flags in order of tau, true where the classifier says target; None, NaN
    or -1 marks a step nobody asked about and is passed over. Counted are the paths with a false
    after their first true, among those with a true; NaN when none has.

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
