"""FACE: the end of the cheapest path through training rows.

A row is worth recommending if training rows lead to it. FACE (Poyiadzi et al., 2020) joins each
training row to its nearest ones, makes steps through sparse regions expensive, and searches the
cheapest path from the instance to a row that the classifier labels as the target with confidence,
in a region that is not sparse.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from benchmarks.baselines.problem import (
    BaselineProblem,
    Constraints,
    SchemaLike,
    TrainingIndex,
    interpolate,
)
from lapace.arrays import Bools, Floats, Ints, batches, first_of_each
from lapace.result import Counterfactuals
from lapace.schema import Schema
from lapace.schema.distance import BLOCK, kneighbors, smallest

SAMPLE = 500  # rows whose neighbours set the bandwidth


@dataclass(frozen=True)
class DensityGraph:
    r"""Training rows joined to their nearest neighbours, edges weighted by length and density.

    With d the distance, n rows counted as often as they occur, and a bandwidth h, the density is a
    kernel estimate in (0, 1], and an edge costs its length times the negative log density on it:

    $$\hat p(x) = \frac1n \sum_i e^{-d(x, x_i) / h}, \qquad
      w_{ij} = d(x_i, x_j) \cdot \tfrac12 \big( -\log \hat p(x_i) - \log \hat p(x_j) \big)$$

    The density at the middle of an edge is taken as the geometric mean of its two ends', because
    there is no row in the middle between two categories.

    Attributes:
        rows: The rows, (n, d).
        kept: Their positions among the training rows.
        counts: How often each occurs.
        sparsity: $-\log \hat p$ of each.
        weights: Of the edges, (n, n), sparse and symmetric.
        bandwidth: h, the median distance to the k-th neighbour.
        neighbours: k.
    """

    rows: Floats = field(repr=False)
    kept: Ints = field(repr=False)
    counts: Floats = field(repr=False)
    sparsity: Floats = field(repr=False)
    weights: Any = field(repr=False)
    bandwidth: float
    neighbours: int

    @classmethod
    def of(
        cls, training: TrainingIndex, neighbours: int, max_rows: int, random_state: int
    ) -> DensityGraph:
        """Joins the training rows; of more than `max_rows`, a random sample."""
        rng, kept = np.random.default_rng(random_state), np.arange(len(training.rows))
        if len(kept) > max_rows:
            kept = np.sort(rng.choice(len(kept), max_rows, replace=False))
        rows, counts = training.rows[kept], training.counts[kept].astype(np.float64)
        k = max(1, min(neighbours, len(rows) - 1))
        some = np.arange(len(rows))
        if len(rows) > SAMPLE:
            some = rng.choice(len(rows), SAMPLE, replace=False)
        # Each row is its own nearest: the k-th other one is at position k.
        near, _ = kneighbors(training.schema, rows[some], rows, k + 1)
        bandwidth = float(np.median(near[:, -1])) or 1.0
        alone = cls(rows, kept, counts, np.zeros(len(rows)), None, bandwidth, k)
        distance, which, sparsity = alone.neighbourhood(training.schema, rows, exclude_self=True)
        start = np.repeat(np.arange(len(rows)), which.shape[1])
        weights = _edges(start, which.ravel(), distance.ravel(), sparsity)
        weights = _connected(training.schema, rows, sparsity, weights)
        return cls(rows, kept, counts, sparsity, weights, bandwidth, k)

    def neighbourhood(
        self, schema: Schema, cells: Floats, *, exclude_self: bool = False
    ) -> tuple[Floats, Ints, Floats]:
        """Distances to the k nearest rows, which they are, (n, k) each, and -log density, (n,)."""
        k = min(self.neighbours, len(self.rows) - exclude_self)
        distance, sparsity = np.empty((len(cells), k)), np.empty(len(cells))
        which = np.empty((len(cells), k), dtype=np.int64)
        for part in batches(len(cells), BLOCK, len(self.rows)):
            block = schema.metric.pairwise(cells[part], self.rows)  # (size, n)
            kernel = np.exp(-block / self.bandwidth) @ self.counts / self.counts.sum()
            sparsity[part] = -np.log(np.maximum(kernel, 1e-300))  # of a row far from all others
            if exclude_self:
                np.fill_diagonal(block[:, part.start :], np.inf)
            distance[part], which[part] = smallest(block, k)
        return distance, which, np.maximum(sparsity, 1e-12)


def _edges(start: Ints, end: Ints, distance: Floats, sparsity: Floats) -> Any:
    """Edges in both directions, weighted by their length and the density on them."""
    weight = distance * (sparsity[start] + sparsity[end]) / 2
    shape = (len(sparsity), len(sparsity))
    one_way = csr_array((weight, (start, end)), shape=shape)
    return one_way.maximum(one_way.T).tocsr()


def _connected(schema: Schema, rows: Floats, sparsity: Floats, weights: Any) -> Any:
    """The graph in one piece: every smaller component gets its shortest edge to another.

    Categories tear a nearest-neighbour graph apart: rows of a rare combination are neighbours of
    each other only.
    """
    while True:
        count, component = connected_components(weights, directed=False)
        if count == 1:
            return weights
        small = np.flatnonzero(component != np.bincount(component).argmax())
        distance, end = np.empty(len(small)), np.empty(len(small), dtype=np.int64)
        for part in batches(len(small), BLOCK, len(rows)):
            block = schema.metric.pairwise(rows[small[part]], rows)
            block[component[small[part], None] == component] = np.inf
            end[part], distance[part] = block.argmin(axis=1), block.min(axis=1)
        first = first_of_each(component[small], distance)
        bridges = _edges(small[first], end[first], distance[first], sparsity)
        weights = weights.maximum(bridges).tocsr()


class CheapestPaths(NamedTuple):
    """The cheapest path of each instance that has one.

    Attributes:
        instance: The instance each path starts from.
        cells: The row it ends in.
        nodes: The graph's rows it passes, in order, the end included.
        cost: The sum of its edges' weights.
    """

    instance: Ints
    cells: Floats
    nodes: list[Ints]
    cost: Floats


@dataclass(eq=False)
class FACE:
    """The end of the cheapest path from the instance through training rows.

    The kernel-density variant on a nearest-neighbour graph; `DensityGraph` has the formula. The
    path ends in a training row that is labelled as the target with at least the required
    confidence, in a region that is not among the sparsest. Constraints hold for that row, not for
    the rows on the way.

    Attributes:
        classifier: Anything that predicts.
        schema: What the columns are, where inferring is not enough; as in `Explainer`.
        random_state: Of the sample of rows, where there are too many.
        neighbours: Rows that each row, and each instance, is joined to.
        confidence: The least probability of the target at a path's end; ignored where the
            classifier offers no probabilities.
        density: The share of training rows, from the sparsest region on, where no path may end.
        max_rows: Rows in the graph, at most.

    Examples:
        >>> table = [{"age": age} for age in range(20, 60)]
        >>> predict = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> method = FACE(predict, neighbours=2).fit(table)
        >>> method.counterfactuals([{"age": 37}], target="yes").rows
        [{'age': 40}]
    """

    classifier: Any
    _: KW_ONLY
    schema: SchemaLike = field(default=None, repr=False)
    random_state: int = 0
    neighbours: int = 20
    confidence: float = 0.75
    density: float = 0.1
    max_rows: int = 20_000

    def fit(self, X: Any) -> FACE:
        """Queries the classifier about the training rows and joins them."""
        self.training_ = TrainingIndex.of(self.classifier, X, self.schema)
        self.graph_ = DensityGraph.of(
            self.training_, self.neighbours, self.max_rows, self.random_state
        )
        return self

    def counterfactuals(
        self, X: Any, *, target: Any = None, constraints: Constraints = ()
    ) -> Counterfactuals:
        """One row per instance, where there is one; `reasons` has the others."""
        problem = BaselineProblem.of(self, X, target, constraints)
        found = self.cheapest_paths(problem)
        reason = (
            "No valid and feasible training row in a dense region has a confidence of "
            f"{self.confidence:g}. Lower confidence or density."
        )
        return problem.accepted([(found.cells, found.instance)], reason)

    def cheapest_paths(self, problem: BaselineProblem) -> CheapestPaths:
        """The cheapest path of each instance.

        Edges cost the same in both directions, so one search from all possible ends at once gives
        every row's cost to its cheapest end; each instance then only has to choose a first edge.
        """
        graph = self.graph_
        instance, nodes, cost = [], [], []
        for group, candidate in problem.groups():
            endpoints = np.flatnonzero(self._may_end(problem, int(group[0]), candidate))
            if not len(endpoints):
                continue
            remaining, predecessor, _ = dijkstra(
                graph.weights, indices=endpoints, min_only=True, return_predecessors=True
            )
            distance, near, sparsity = graph.neighbourhood(problem.schema, problem.cells[group])
            first = distance * (sparsity[:, None] + graph.sparsity[near]) / 2
            total = first + remaining[near]  # (n, k)
            best = total.argmin(axis=1)[:, None]
            cost += np.take_along_axis(total, best, axis=1).ravel().tolist()
            starts = np.take_along_axis(near, best, axis=1).ravel().tolist()
            nodes += [_follow(predecessor, start) for start in starts]
            instance += group.tolist()
        endpoints = np.array([path[-1] for path in nodes], dtype=np.int64)
        found = np.array(instance, dtype=np.int64)
        return CheapestPaths(found, graph.rows[endpoints], nodes, np.array(cost))

    def _may_end(self, problem: BaselineProblem, instance: int, candidate: Bools) -> Bools:
        """Returns in which rows of the graph a path of this instance, or of its group, may end."""
        graph, probability = self.graph_, problem.training.probability
        may = candidate[graph.kept]
        if probability is not None:
            same = np.full(len(may), instance)
            target = problem.instances.target_probability(probability[graph.kept], same)
            may &= target >= self.confidence
        if self.density > 0:
            may &= graph.sparsity <= np.quantile(graph.sparsity, 1 - self.density)
        return may


def _follow(predecessor: Ints, row: int) -> Ints:
    """The rows from one to its end, given what comes before each on the way from the end."""
    path = [row]
    while predecessor[path[-1]] >= 0:
        path.append(int(predecessor[path[-1]]))
    return np.array(path, dtype=np.int64)


# ------------------------------------------------------------------------------------------------
# Paths, to compare with latent ones (E3)


def face_path(
    face: FACE,
    X: Any,
    *,
    target: Any = None,
    constraints: Constraints = (),
    steps: int = 20,
    greedy: bool = False,
) -> Counterfactuals:
    """A path of evenly spaced points from each instance to FACE's counterfactual.

    The points lie on a straight line, or are greedy hops through training rows: each leads to the
    nearest row among those close enough to the counterfactual to arrive in time; after hop t of T
    at most (1 - t/T) of the whole distance may remain.

    Args:
        face: Fitted.
        X: The instances.
        target: As in `FACE.counterfactuals`.
        constraints: Every point is projected onto them before the classifier is queried.
        steps: Points of each path; the last is the counterfactual.
        greedy: Hops through training rows instead of a straight line.

    Returns:
        Every point, ok or not, with `tau` its place on the path.

    Examples:
        >>> table = [{"age": age} for age in range(20, 60)]
        >>> predict = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> face = FACE(predict, neighbours=2).fit(table)
        >>> line = face_path(face, [{"age": 30}], target="yes", steps=5)
        >>> line.cells.ravel(), line.valid.tolist()
        (array([32., 34., 36., 38., 40.]), [False, False, False, False, True])
        >>> face_path(face, [{"age": 30}], target="yes", steps=4, greedy=True).cells.ravel()
        array([33., 35., 38., 40.])
    """
    problem = BaselineProblem.of(face, X, target, constraints)
    found = face.cheapest_paths(problem)
    instance = np.repeat(found.instance, steps)
    tau = np.tile(np.arange(1, steps + 1) / steps, len(found.instance))
    if greedy:
        cells = _greedy_hops(problem, found, face.graph_.rows, steps)
    else:
        end = np.repeat(found.cells, steps, axis=0)
        cells = interpolate(problem.schema, problem.cells[instance], end, tau)
    if len(problem.system):
        cells = problem.system.project(cells, problem.cells[instance]).cells
    return problem.evaluate(cells, instance, tau=tau)


def _greedy_hops(
    problem: BaselineProblem, found: CheapestPaths, rows: Floats, steps: int
) -> Floats:
    """The rows of greedy paths to FACE's counterfactuals, path by path."""
    schema, cells = problem.schema, np.empty((len(found.instance), steps, rows.shape[1]))
    for part in batches(len(cells), BLOCK, len(rows)):
        here = problem.cells[found.instance[part]]
        remaining = schema.metric.pairwise(found.cells[part], rows)  # (size, n)
        whole = schema.gaps(here, found.cells[part]).sum(axis=1)
        for step in range(1, steps + 1):
            in_time = remaining <= whole[:, None] * (1 - step / steps) + 1e-9
            distance = np.where(in_time, schema.metric.pairwise(here, rows), np.inf)
            # A hop changes the row, unless there is nowhere else to go.
            hop = np.where(distance <= 1e-12, np.inf, distance)
            stuck = ~np.isfinite(hop).any(axis=1)
            here = rows[np.where(stuck, distance.argmin(axis=1), hop.argmin(axis=1))]
            cells[part, step - 1] = here
    return cells.reshape(-1, rows.shape[1])
