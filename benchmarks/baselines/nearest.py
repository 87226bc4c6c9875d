"""NNCE, DRCE and RobX: training rows near the instance that the classifier labels as the target.

NNCE returns the nearest one, DRCE moves several towards the instance, RobX moves the nearest to
where the classifier's output is stable under noise, or returns the nearest row that is.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from benchmarks.baselines.problem import (
    BaselineProblem,
    Constraints,
    SchemaLike,
    TrainingIndex,
    interpolate,
    number_bounds,
)
from lapace.arrays import Floats, Ints, batches, first_of_each
from lapace.metrics import distinct_rows
from lapace.result import Counterfactuals
from lapace.schema import Schema
from lapace.schema.distance import kneighbors

ROWS = 100_000  # perturbed rows queried at once
SAMPLE = 200  # rows whose stability sets the threshold where none is given
POOL = 20  # nearest rows searched first for stable ones; four times as many each time
MAX_POOL = 1280


@dataclass(eq=False)
class NNCE:
    r"""The nearest training row that the classifier labels as the target.

    $$x' = \arg\min_{x_i : M(x_i) = y'} d(x, x_i)$$

    Attributes:
        classifier: Anything that predicts.
        schema: What the columns are, where inferring is not enough; as in `Explainer`.
        random_state: Not used: nothing here is random.

    Examples:
        >>> table = [{"age": age} for age in range(20, 60)]
        >>> predict = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> NNCE(predict).fit(table).counterfactuals([{"age": 30}], target="yes").rows
        [{'age': 40}]
    """

    classifier: Any
    _: KW_ONLY
    schema: SchemaLike = field(default=None, repr=False)
    random_state: int = 0

    def fit(self, X: Any) -> NNCE:
        """Queries the classifier about the training rows."""
        self.training_ = TrainingIndex.of(self.classifier, X, self.schema)
        return self

    def counterfactuals(
        self, X: Any, *, target: Any = None, constraints: Constraints = ()
    ) -> Counterfactuals:
        """One row per instance, where there is one; `reasons` has the others."""
        problem = BaselineProblem.of(self, X, target, constraints)
        found = problem.nearest(1)
        return problem.accepted([(rows[which[:, 0]], group) for group, rows, _, which in found])


@dataclass(eq=False)
class DRCE:
    r"""Several near and diverse counterfactuals that hardly move when the instance does.

    Candidates are the training rows labelled as the target and at most $(1 + \alpha)$ times as far
    away as the nearest. From the nearest on, one is chosen if it is at least $\beta$ times as far
    from every one chosen as the nearest is from the instance. Each is moved towards the instance by
    binary search while the classifier still predicts the target.

    Attributes:
        classifier: Anything that predicts.
        schema: What the columns are, where inferring is not enough; as in `Explainer`.
        random_state: Not used: nothing here is random.
        count: Counterfactuals per instance, at most: there may be fewer candidates.
        alpha: How much farther than the nearest a candidate may be.
        apart: β, the least distance between those chosen, in units of the nearest's distance.
        from_instance: Choose, after the nearest, rows at least $(1 + \beta)$ times as far from the
            instance instead, as the library RobustX does.
        candidates: How many of the nearest rows are considered.
        halvings: Steps of the binary search; 0 leaves the training rows as they are.

    Examples:
        >>> table = [{"age": age} for age in range(20, 60, 3)]
        >>> predict = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> method = DRCE(predict, halvings=0).fit(table)
        >>> method.counterfactuals([{"age": 30}], target="yes").rows
        [{'age': 41}, {'age': 44}]
        >>> DRCE(predict).fit(table).counterfactuals([{"age": 30}], target="yes").rows
        [{'age': 40}]
    """

    classifier: Any
    _: KW_ONLY
    schema: SchemaLike = field(default=None, repr=False)
    random_state: int = 0
    count: int = 5
    alpha: float = 0.5
    apart: float = 0.25
    from_instance: bool = False
    candidates: int = 200
    halvings: int = 10

    def fit(self, X: Any) -> DRCE:
        """Queries the classifier about the training rows."""
        self.training_ = TrainingIndex.of(self.classifier, X, self.schema)
        return self

    def counterfactuals(
        self, X: Any, *, target: Any = None, constraints: Constraints = ()
    ) -> Counterfactuals:
        """Up to `count` different rows per instance; `reasons` has those without."""
        problem = BaselineProblem.of(self, X, target, constraints)
        proposed = []
        for group, rows, distance, which in problem.nearest(self.candidates):
            for i, instance in enumerate(group.tolist()):
                near = rows[which[i, distance[i] <= (1 + self.alpha) * distance[i, 0] + 1e-12]]
                if self.from_instance:
                    far = distance[i, : len(near)] >= (1 + self.apart) * distance[i, 0]
                    far[0] = True
                    chosen = near[far][: self.count]
                else:
                    least = self.apart * distance[i, 0]
                    chosen = near[far_enough(problem.schema, near, self.count, least)]
                proposed.append((chosen, np.full(len(chosen), instance)))
        return problem.accepted(_moved_closer(problem, proposed, self.halvings))


def far_enough(schema: Schema, rows: Floats, count: int, least: float) -> Ints:
    """Positions of up to `count` rows, from the first on, each at least so far from those before.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]])).by_range()
        >>> far_enough(schema, np.array([[0.0], [0.25], [1.0], [2.5]]), 2, least=0.25)
        array([0, 2])
    """
    between = schema.metric.pairwise(rows, rows)  # (n, n)
    chosen: list[int] = []
    for k in range(len(rows)):
        if len(chosen) < count and (between[k, chosen] >= least).all():
            chosen.append(k)
    return np.array(chosen, dtype=np.int64)


def _moved_closer(
    problem: BaselineProblem, proposed: list[tuple[Floats, Ints]], halvings: int
) -> list[tuple[Floats, Ints]]:
    """Rows moved towards their instances by binary search, as far as they stay counterfactuals."""
    if not proposed:
        return []
    end, instance = (np.concatenate(part) for part in zip(*proposed, strict=True))
    start, best = problem.cells[instance], end.copy()
    low, high = np.zeros(len(end)), np.ones(len(end))
    for _ in range(halvings):
        middle = (low + high) / 2
        cells = interpolate(problem.schema, start, end, middle)
        ok = problem.evaluate(cells, instance).ok
        high, low = np.where(ok, middle, high), np.where(ok, low, middle)
        best[ok] = cells[ok]
    first, _ = distinct_rows(np.column_stack([instance, best]))
    return [(best[first], instance[first])]


@dataclass(eq=False)
class RobXCE:
    r"""The nearest counterfactual moved towards stable training rows until it is stable itself.

    Counterfactual stability is the mean of the classifier's output around a row, less its spread:

    $$R(x) = \bar m - \sqrt{\tfrac1K \sum_k (m_k - \bar m)^2}, \qquad
      m_k = M(x + \sigma \epsilon_k), \quad \epsilon_k \sim \mathcal N(0, I)$$

    with M the probability of the target (the label, 0 or 1, where the classifier offers no
    probabilities). The start is `NNCE`'s counterfactual. It moves in a straight line towards each
    of the nearest training rows that are labelled as the target and stable, and stops where it is
    valid and stable; of these stops the one nearest to the instance is returned.

    Attributes:
        classifier: Anything that predicts.
        schema: What the columns are, where inferring is not enough; as in `Explainer`.
        random_state: Of the noise.
        threshold: The least stability of a counterfactual; None: the median of the training rows
            labelled as the target.
        sigma: The noise, as a share of each number's range; categories get none.
        samples: K.
        neighbours: Stable rows moved towards.
        steps: Stops on each line.

    Examples:
        >>> table = [{"age": age} for age in range(20, 60)]
        >>> predict = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> instance = [{"age": 30}]
        >>> RobXCE(predict, threshold=0.0).fit(table).counterfactuals(instance, target="yes").rows
        [{'age': 40}]
        >>> RobXCE(predict, threshold=0.9).fit(table).counterfactuals(instance, target="yes").rows
        [{'age': 49}]
    """

    classifier: Any
    _: KW_ONLY
    schema: SchemaLike = field(default=None, repr=False)
    random_state: int = 0
    threshold: float | None = None
    sigma: float = 0.1
    samples: int = 100
    neighbours: int = 5
    steps: int = 10

    def fit(self, X: Any) -> RobXCE:
        """Queries the classifier about the training rows."""
        self.training_ = TrainingIndex.of(self.classifier, X, self.schema)
        return self

    def counterfactuals(
        self, X: Any, *, target: Any = None, constraints: Constraints = ()
    ) -> Counterfactuals:
        """One row per instance, where there is one; `reasons` has the others."""
        problem = BaselineProblem.of(self, X, target, constraints)
        proposed = []
        for group, rows, _, nearest in problem.nearest(1):
            threshold = self.threshold
            if threshold is None:
                threshold = self._median_stability(problem, rows, group[0])
            near = self._nearest_stable(problem, rows, group, threshold)  # (n, neighbours)
            line, place = np.nonzero(near >= 0)
            instance, end = group[line], rows[near[line, place]]
            start = rows[nearest[line, 0]]
            stop = self._first_stable(problem, start, end, instance, threshold)
            distance = problem.schema.gaps(problem.cells[instance], stop).sum(axis=1)
            best = first_of_each(instance, distance)
            proposed.append((stop[best], instance[best]))
        level = "the median of training rows" if self.threshold is None else f"{self.threshold:g}"
        reason = f"No valid and feasible row nearby has a stability of {level}"
        return problem.accepted(proposed, f"{reason}. Lower threshold or sigma.")

    def stability(self, problem: BaselineProblem, cells: Floats, instance: Ints) -> Floats:
        """R of rows, each with the target of an instance."""
        # The same noise for every row, so that rows compare.
        rng, width = np.random.default_rng(self.random_state), cells.shape[1]
        noise = rng.standard_normal((self.samples, width))
        classifier, found = problem.training.classifier, np.empty(len(cells))
        for part in batches(len(cells), ROWS, self.samples):
            rows = _perturbed(problem.schema, cells[part], noise * self.sigma)
            owner = np.repeat(instance[part], self.samples)
            codes, probability, _ = classifier.query(rows, problem.schema)
            if probability is None:
                output = problem.instances.reaches_target(codes, owner).astype(np.float64)
            else:
                output = problem.instances.target_probability(probability, owner)
            each = output.reshape(-1, self.samples)
            found[part] = each.mean(axis=1) - each.std(axis=1)
        return found

    def _median_stability(self, problem: BaselineProblem, rows: Floats, instance: int) -> float:
        """The median stability of rows, or of a sample of them, with an instance's target."""
        if len(rows) > SAMPLE:
            rng = np.random.default_rng(self.random_state)
            rows = rows[rng.choice(len(rows), SAMPLE, replace=False)]
        return float(np.median(self.stability(problem, rows, np.full(len(rows), instance))))

    def _nearest_stable(
        self, problem: BaselineProblem, rows: Floats, group: Ints, threshold: float
    ) -> Ints:
        """For each instance the nearest stable rows, (n, neighbours), -1 where there are fewer.

        For instances without any, more and more of the nearest rows are evaluated.
        """
        found = np.full((len(group), self.neighbours), -1, dtype=np.int64)
        left, pool = np.arange(len(group)), POOL
        while len(left):
            _, near = kneighbors(problem.schema, problem.cells[group[left]], rows, pool)
            which, place = np.unique(near, return_inverse=True)
            target = np.full(len(which), group[0])  # all of the group have the same target
            stable = self.stability(problem, rows[which], target) >= threshold
            stable = stable[place].reshape(near.shape)  # (left, pool)
            first = np.argsort(~stable, axis=1, kind="stable")[:, : self.neighbours]
            near = np.take_along_axis(np.where(stable, near, -1), first, axis=1)
            found[left, : near.shape[1]] = near
            left = left[~stable.any(axis=1)]
            if pool >= min(MAX_POOL, len(rows)):
                break
            pool *= 4
        return found

    def _first_stable(
        self, problem: BaselineProblem, start: Floats, end: Floats, instance: Ints, threshold: float
    ) -> Floats:
        """On each line the first stop that is a counterfactual and stable; the end is both."""
        stop, left = end.copy(), np.arange(len(end))
        for share in np.arange(self.steps) / self.steps:
            cells = interpolate(problem.schema, start[left], end[left], np.full(len(left), share))
            ok = problem.evaluate(cells, instance[left]).ok
            ok[ok] = self.stability(problem, cells[ok], instance[left[ok]]) >= threshold
            stop[left[ok]] = cells[ok]
            left = left[~ok]
        return stop


@dataclass(eq=False)
class RobXRows(RobXCE):
    """The nearest training row labelled as the target whose stability reaches a threshold.

    RobX without its walk: `RobXCE` has the formula of stability.

    Examples:
        >>> table = [{"age": age} for age in range(20, 60)]
        >>> predict = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> RobXRows(predict, threshold=0.9).fit(table).counterfactuals(
        ...     [{"age": 30}], target="yes"
        ... ).rows
        [{'age': 49}]
    """

    neighbours: int = 1
    steps: int = 0


def _perturbed(schema: Schema, cells: Floats, noise: Floats) -> Floats:
    """Each row with each line of the noise on its numbers, on the lattice; (n * samples, d).

    Unknown levels of an ordinal, missing cells and categories stay as they are.

    Args:
        schema: The columns.
        cells: The rows, (n, d).
        noise: As a share of each number's range, (samples, d).
    """
    span = np.array([f.span if f.numeric else 0.0 for f in schema.features])
    rows = np.repeat(cells, len(noise), axis=0)
    shift = np.tile(noise * span, (len(cells), 1))
    moved = np.clip(rows + shift, *number_bounds(schema.features))
    return schema.snap(np.where(schema.coding.unseen(rows), rows, moved))
