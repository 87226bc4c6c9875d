"""RobX: an answer moved to where the classifier stays sure of it when it is shaken."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.baselines.ground import Asked, Found, Ground, Kinds, between, ground_of, number, whole
from lapace.baselines.nearest import nearest_rows, rows_for
from lapace.result import Counterfactuals
from lapace.schema import Schema

__all__ = ["RobXCE", "stability"]

ROWS = 100_000  # shaken rows asked about at once
TYPICAL = 200  # rows whose stability sets the threshold where none is given
POOL = 20  # nearest rows looked at first for stable ones; four times as many each time
WIDEST = 1280  # and at most


@dataclass(eq=False)
class RobXCE:
    r"""The nearest answer moved towards stable rows until it is stable itself.

    Counterfactual stability is what the classifier says of a row's surroundings, less its spread:

    $$R(x) = \bar m - \sqrt{\tfrac1K \sum_k (m_k - \bar m)^2}, \qquad
      m_k = M(x + \sigma \epsilon_k), \quad \epsilon_k \sim \mathcal N(0, I)$$

    with M the probability of the target (the label, 0 or 1, where the classifier offers no
    probabilities). The base answer is `NNCE`'s. It moves in a straight line towards each of the
    nearest training rows that are labelled as wanted and stable, and stops where it is valid and
    stable; the stop nearest to the instance is the answer.

    Attributes:
        classifier: Anything that predicts.
        schema: What the columns are, where inferring is not enough; as in `Explainer`.
        seed: Of the noise.
        threshold: The stability an answer must have; None: the median of the training rows
            labelled as wanted.
        sigma: The noise, as a share of each number's range; categories are not shaken.
        samples: K.
        neighbours: Stable rows moved towards.
        steps: Stops on each line.

    Examples:
        >>> table = [{"age": age} for age in range(20, 60)]
        >>> say = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> instance = [{"age": 30}]
        >>> RobXCE(say, threshold=0.0).fit(table).counterfactuals(instance, target="yes").rows
        [{'age': 40}]
        >>> RobXCE(say, threshold=0.9).fit(table).counterfactuals(instance, target="yes").rows
        [{'age': 49}]
    """

    classifier: Any
    _: KW_ONLY
    schema: Kinds = field(default=None, repr=False)
    seed: int = 0
    threshold: float | None = None
    sigma: float = 0.1
    samples: int = 100
    neighbours: int = 5
    steps: int = 10

    def __post_init__(self) -> None:
        if self.threshold is not None:
            number("threshold", self.threshold, -1, 1)
        number("sigma", self.sigma, 0)
        whole("samples", self.samples)
        whole("neighbours", self.neighbours)
        whole("steps", self.steps)

    def fit(self, train: Any) -> RobXCE:
        """Asks the classifier about the training rows."""
        self.ground_ = Ground.of(self.classifier, train, self.schema)
        return self

    def counterfactuals(self, instances: Any, *, target: Any = None) -> Counterfactuals:
        """One row for everyone who can have one."""
        return self.find(instances, target=target).answers

    def find(self, instances: Any, *, target: Any = None) -> Found:
        """The same, with the reasons of those who have none."""
        asked = ground_of(self).meet(instances, target)
        base, owner = nearest_rows(asked)
        start = np.full(asked.instances.shape, np.nan)
        start[owner] = base
        cells, instance = [np.empty((0, len(asked.schema.features)))], [np.empty(0, dtype=np.int64)]
        reasons: dict[int, str] = {}
        for group, label, wish in asked.wishes():
            rows = asked.ground.rows[rows_for(asked, label, wish)]
            if not len(rows):
                continue
            shaker = _Shaker(asked, rows, int(group[0]), self._noise(asked.schema), self.sigma)
            threshold = self.threshold
            if threshold is None:
                threshold = shaker.typical(np.random.default_rng(self.seed))
            near = shaker.stable(group, self.neighbours, threshold)  # (n, neighbours), -1 for none
            line, place = np.nonzero(near >= 0)
            one, end = group[line], rows[near[line, place]]
            stop = self._walk(asked, start[one], end, one, threshold)
            far = asked.schema.gaps(asked.instances[one], stop).sum(axis=1)
            order = np.lexsort((far, one))
            best = order[np.unique(one[order], return_index=True)[1]]
            cells.append(stop[best])
            instance.append(one[best])
            alone = np.setdiff1d(group, one)
            reasons |= dict.fromkeys(alone.tolist(), _unstable(threshold))
        return asked.answered(np.concatenate(cells), np.concatenate(instance), reasons)

    def _noise(self, schema: Schema) -> Floats:
        """The same shaking for every row, so that rows compare."""
        rng = np.random.default_rng(self.seed)
        return rng.standard_normal((self.samples, len(schema.features)))

    def _walk(
        self, asked: Asked, start: Floats, end: Floats, instance: Ints, threshold: float
    ) -> Floats:
        """On each line the first stop that is valid and stable; the end is both."""
        noise, stop = self._noise(asked.schema), end.copy()
        going = np.arange(len(end))
        for share in np.arange(self.steps) / self.steps:
            here = between(asked.schema, start[going], end[going], np.full(len(going), share))
            good = asked.says(here, instance[going])
            some = np.flatnonzero(good)
            sure = stability(asked, here[some], instance[going[some]], noise, self.sigma)
            good[some] = sure >= threshold
            stop[going[good]] = here[good]
            going = going[~good]
        return stop


def _unstable(threshold: float) -> str:
    return (
        f"None of the nearest rows labelled as wanted has a stability of {threshold:.3g}. Lower "
        "the threshold or sigma."
    )


@dataclass
class _Shaker:
    """Training rows instances want, and the stability of those that have been asked about."""

    asked: Asked
    rows: Floats
    anyone: int  # what one instance of the group wants, all do
    noise: Floats
    sigma: float

    def __post_init__(self) -> None:
        self.known = np.full(len(self.rows), np.nan)

    def of(self, which: Ints) -> Floats:
        """Stability of some of the rows."""
        new = np.unique(which[np.isnan(self.known[which])])
        instance = np.full(len(new), self.anyone)
        self.known[new] = stability(self.asked, self.rows[new], instance, self.noise, self.sigma)
        found: Floats = self.known[which]
        return found

    def typical(self, rng: np.random.Generator) -> float:
        """The median stability of the rows."""
        some = np.arange(len(self.rows))
        if len(some) > TYPICAL:
            some = rng.choice(len(some), TYPICAL, replace=False)
        return float(np.median(self.of(some)))

    def stable(self, instance: Ints, count: int, threshold: float) -> Ints:
        """For each instance the nearest stable rows, (n, count), -1 where there are fewer.

        More and more of the nearest rows are asked about, for those who have none yet.
        """
        found = np.full((len(instance), count), -1, dtype=np.int64)
        left, pool = np.arange(len(instance)), POOL
        while len(left):
            _, near = self.asked.nearest(instance[left], self.rows, pool)  # (left, pool)
            good: Bools = self.of(near.ravel()).reshape(near.shape) >= threshold
            first = np.argsort(~good, axis=1, kind="stable")[:, :count]  # good ones, nearest first
            picked = np.take_along_axis(near, first, axis=1)
            held = np.take_along_axis(good, first, axis=1)
            found[left, : first.shape[1]] = np.where(held, picked, -1)
            left = left[~good.any(axis=1)]
            if pool >= min(WIDEST, len(self.rows)):
                break
            pool *= 4
        return found


def stability(asked: Asked, cells: Floats, instance: Ints, noise: Floats, sigma: float) -> Floats:
    """Counterfactual stability of rows for instances: mean less spread of the score around them.

    Args:
        asked: Whom they are for, and the classifier.
        cells: The rows, (n, d).
        instance: For whom each is.
        noise: Standard normal, (samples, d).
        sigma: The noise's share of each number's range.
    """
    found = np.empty(len(cells))
    size = max(1, ROWS // len(noise))
    for start in range(0, len(cells), size):
        part = slice(start, start + size)
        shaken = _shaken(asked.schema, cells[part], noise, sigma)  # (size * samples, d)
        owner = np.repeat(instance[part], len(noise))
        probability = asked.classifier.predict_proba(shaken, asked.schema)
        if probability is None:
            codes = asked.classifier.predict(shaken, asked.schema)
            score = asked.wanted(codes, owner).astype(np.float64)
        else:
            score = asked.score(probability, owner)
        each = score.reshape(-1, len(noise))
        found[part] = each.mean(axis=1) - each.std(axis=1)
    return found


def _shaken(schema: Schema, cells: Floats, noise: Floats, sigma: float) -> Floats:
    """Each row with each line of the noise on its numbers, on the lattice: rows of a row together.

    Levels an ordinal does not know, missing cells and categories stay as they are.
    """
    numeric = schema.numeric
    lower = np.array([schema.features[i].lower for i in numeric])
    upper = np.array([schema.features[i].upper for i in numeric])
    ordinal = np.array([schema.features[i].kind == "ordinal" for i in numeric], dtype=bool)
    rows = np.repeat(cells, len(noise), axis=0)
    own = rows[:, numeric]
    moved = own + np.tile(noise[:, numeric], (len(cells), 1)) * sigma * schema.spans[numeric]
    odd = ordinal & (own > upper)
    rows[:, numeric] = np.where(odd, own, np.clip(moved, lower, upper))
    return schema.snap(rows)
