"""Answers that are, or start from, the nearest training rows: NNCE and DRCE."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.baselines.ground import Asked, Found, Ground, Kinds, between, ground_of, number, whole
from lapace.metrics import distances
from lapace.result import Counterfactuals
from lapace.schema import Schema

__all__ = ["DRCE", "NNCE"]


def rows_for(asked: Asked, label: int, target: int) -> Bools:
    """Which training rows are what instances of a label with this target want."""
    codes = asked.ground.codes
    good: Bools = codes == target if target >= 0 else codes != label
    return good


@dataclass(eq=False)
class NNCE:
    r"""The nearest training row that the classifier labels as wanted.

    $$x' = \arg\min_{x_i : M(x_i) = y'} d(x, x_i)$$

    Attributes:
        classifier: Anything that predicts.
        schema: What the columns are, where inferring is not enough; as in `Explainer`.
        seed: Not used: nothing here is random.

    Examples:
        >>> table = [{"age": age} for age in range(20, 60)]
        >>> say = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> NNCE(say).fit(table).counterfactuals([{"age": 30}], target="yes").rows
        [{'age': 40}]
    """

    classifier: Any
    _: KW_ONLY
    schema: Kinds = field(default=None, repr=False)
    seed: int = 0

    def fit(self, train: Any) -> NNCE:
        """Asks the classifier about the training rows."""
        self.ground_ = Ground.of(self.classifier, train, self.schema)
        return self

    def counterfactuals(self, instances: Any, *, target: Any = None) -> Counterfactuals:
        """One row for everyone who can have one."""
        return self.find(instances, target=target).answers

    def find(self, instances: Any, *, target: Any = None) -> Found:
        """The same, with the reasons of those who have none."""
        asked = ground_of(self).meet(instances, target)
        return asked.answered(*nearest_rows(asked))


def nearest_rows(asked: Asked) -> tuple[Floats, Ints]:
    """For everyone tried the nearest training row they want, and who has it."""
    cells, instance = [np.empty((0, len(asked.schema.features)))], [np.empty(0, dtype=np.int64)]
    for group, label, target in asked.wishes():
        rows = asked.ground.rows[rows_for(asked, label, target)]
        _, which = asked.nearest(group, rows, 1)
        if which.size:
            cells.append(rows[which[:, 0]])
            instance.append(group)
    return np.concatenate(cells), np.concatenate(instance)


@dataclass(eq=False)
class DRCE:
    r"""Several near and different answers that hardly move when the instance does.

    Of the training rows labelled as wanted, those at most $(1 + \alpha)$ times as far as the
    nearest are candidates. A diverse few of them are chosen greedily, the nearest first, then
    always the one farthest from those already chosen. Each is moved towards the instance by binary
    search for as long as the classifier agrees.

    Attributes:
        classifier: Anything that predicts.
        schema: What the columns are, where inferring is not enough; as in `Explainer`.
        seed: Not used: nothing here is random.
        count: Answers per instance, at most: there may be fewer candidates.
        alpha: How much farther than the nearest a candidate may be.
        candidates: How many of the nearest are looked at.
        halvings: Steps of the binary search; 0 leaves the training rows as they are.

    Examples:
        >>> table = [{"age": age} for age in range(20, 60, 3)]
        >>> say = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> method = DRCE(say, halvings=0).fit(table)
        >>> method.counterfactuals([{"age": 30}], target="yes").rows
        [{'age': 41}, {'age': 44}]
        >>> DRCE(say).fit(table).counterfactuals([{"age": 30}], target="yes").rows
        [{'age': 40}]
    """

    classifier: Any
    _: KW_ONLY
    schema: Kinds = field(default=None, repr=False)
    seed: int = 0
    count: int = 5
    alpha: float = 0.5
    candidates: int = 200
    halvings: int = 10

    def __post_init__(self) -> None:
        whole("count", self.count)
        number("alpha", self.alpha, 0)
        whole("candidates", self.candidates)
        whole("halvings", self.halvings, 0)

    def fit(self, train: Any) -> DRCE:
        """Asks the classifier about the training rows."""
        self.ground_ = Ground.of(self.classifier, train, self.schema)
        return self

    def counterfactuals(self, instances: Any, *, target: Any = None) -> Counterfactuals:
        """Up to `count` different rows for everyone who can have one."""
        return self.find(instances, target=target).answers

    def find(self, instances: Any, *, target: Any = None) -> Found:
        """The same, with the reasons of those who have none."""
        asked = ground_of(self).meet(instances, target)
        cells, instance = [np.empty((0, len(asked.schema.features)))], [np.empty(0, dtype=np.int64)]
        for group, label, wish in asked.wishes():
            rows = asked.ground.rows[rows_for(asked, label, wish)]
            far, which = asked.nearest(group, rows, self.candidates)
            for i, one in enumerate(group.tolist() if which.size else ()):
                near = rows[which[i, far[i] <= (1 + self.alpha) * far[i, 0] + 1e-12]]
                cells.append(near[diverse(asked.schema, near, self.count)])
                instance.append(np.full(len(cells[-1]), one))
        closer = towards(asked, np.concatenate(cells), np.concatenate(instance), self.halvings)
        return asked.answered(*_each_once(closer, np.concatenate(instance)))


def diverse(schema: Schema, rows: Floats, count: int) -> Ints:
    """Positions of up to `count` rows: the first, then always the farthest from those chosen.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> diverse(schema, np.array([[0.0], [0.25], [2.5], [1.25]]), 3)
        array([0, 2, 3])
    """
    chosen = [0]
    apart = distances(schema, rows[:1], rows)[0]  # (n,) distance to the nearest row chosen
    while len(chosen) < min(count, len(rows)):
        chosen.append(int(apart.argmax()))
        apart = np.minimum(apart, distances(schema, rows[chosen[-1] :][:1], rows)[0])
    return np.array(chosen, dtype=np.int64)


def towards(asked: Asked, cells: Floats, instance: Ints, halvings: int) -> Floats:
    """Rows moved towards the instances they are for by binary search, as far as they stay wanted."""
    instances, best = asked.instances[instance], cells.copy()
    low, high = np.zeros(len(cells)), np.ones(len(cells))
    for _ in range(halvings if len(cells) else 0):
        middle = (low + high) / 2
        tried = between(asked.schema, instances, cells, middle)
        good = asked.says(tried, instance)
        high, low = np.where(good, middle, high), np.where(good, low, middle)
        best[good] = tried[good]
    return best


def _each_once(cells: Floats, instance: Ints) -> tuple[Floats, Ints]:
    """Rows an instance has twice, once."""
    both = np.ascontiguousarray(
        np.column_stack([instance, np.where(np.isnan(cells), np.nan, cells)])
    )
    keys = (both + 0.0).view(np.dtype((np.void, both.strides[0]))).ravel()
    first = np.sort(np.unique(keys, return_index=True)[1])
    return cells[first], instance[first]
