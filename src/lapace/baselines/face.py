"""FACE: the end of the cheapest walk through training rows, and two paths made of it.

A row is worth recommending if there are instances on the way to it. FACE (Poyiadzi et al., 2020)
joins each training row to its nearest ones, makes steps through empty regions dear, and looks for
the cheapest walk from the instance to a row the classifier is sure of in a region that is not empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from lapace.arrays import Bools, Floats, Ints
from lapace.baselines.ground import (
    BLOCK,
    Asked,
    Found,
    Ground,
    Kinds,
    between,
    ground_of,
    number,
    smallest,
    whole,
)
from lapace.baselines.nearest import rows_for
from lapace.metrics import distances
from lapace.result import Counterfactuals
from lapace.schema import Schema

__all__ = ["FACE", "face_greedy", "face_interpolate"]

Obey: TypeAlias = Callable[[Floats, Floats], Floats]

SAMPLE = 500  # rows whose neighbours set the bandwidth


@dataclass(frozen=True)
class Graph:
    r"""Training rows joined to their neighbours.

    With d the distance, n rows counted as often as they occur, and a bandwidth h, the density is a
    kernel estimate in (0, 1], and a step costs its length times how empty its way is:

    $$\hat p(x) = \frac1n \sum_i e^{-d(x, x_i) / h}, \qquad
      w_{ij} = d(x_i, x_j) \cdot \tfrac12 \big( -\log \hat p(x_i) - \log \hat p(x_j) \big)$$

    The density half way is taken as the geometric mean of the two ends': between two categories
    there is no half way.

    Attributes:
        rows: The rows, (n, d).
        counts: How often each occurs.
        empty: $-\log \hat p$ of each.
        weights: Of the steps, (n, n), symmetric.
        bandwidth: h, the median distance to the k-th neighbour.
        neighbours: k.
        kept: Positions of the rows among the ground's.
    """

    rows: Floats = field(repr=False)
    counts: Floats = field(repr=False)
    empty: Floats = field(repr=False)
    weights: Any = field(repr=False)
    bandwidth: float
    neighbours: int
    kept: Ints = field(repr=False)

    @classmethod
    def of(cls, ground: Ground, neighbours: int, most: int, seed: int) -> Graph:
        """Joins the training rows; of more than `most`, a random sample."""
        rng, kept = np.random.default_rng(seed), np.arange(len(ground.rows))
        if len(kept) > most:
            kept = np.sort(rng.choice(len(kept), most, replace=False))
        rows, counts = ground.rows[kept], ground.counts[kept].astype(np.float64)
        k = max(1, min(neighbours, len(rows) - 1))
        some = np.arange(len(rows))
        if len(rows) > SAMPLE:
            some = rng.choice(len(rows), SAMPLE, replace=False)
        # The row itself is its own nearest: the k-th other one stands at position k.
        near, _ = smallest(distances(ground.schema, rows[some], rows), min(k + 1, len(rows)))
        bandwidth = float(np.median(near[:, -1])) or 1.0
        far, which, empty = _around(ground.schema, rows, counts, k, bandwidth)
        start = np.repeat(np.arange(len(rows)), which.shape[1])
        weights = _joined(start, which.ravel(), far.ravel(), empty)
        weights = _bridged(ground.schema, rows, empty, weights)
        return cls(rows, counts, empty, weights, bandwidth, k, kept)

    def enter(self, asked: Asked, instance: Ints) -> tuple[Floats, Ints]:
        """What the first step costs instances, to each of their nearest rows, and which; (n, k)."""
        cost = np.empty((len(instance), min(self.neighbours, len(self.rows))))
        which = np.empty(cost.shape, dtype=np.int64)
        size = max(1, BLOCK // len(self.rows))
        for begin in range(0, len(instance), size):
            part = slice(begin, begin + size)
            far = asked.far(asked.instances[instance[part]], self.rows)  # (size, n)
            empty = -_log_density(far, self.counts, self.bandwidth)
            near, which[part] = smallest(far, cost.shape[1])
            cost[part] = near * (empty[:, None] + self.empty[which[part]]) / 2
        return cost, which


def _log_density(far: Floats, counts: Floats, bandwidth: float) -> Floats:
    kernel = np.exp(-far / bandwidth) @ counts / counts.sum()
    logs: Floats = np.log(np.maximum(kernel, 1e-300))  # of an instance far from everybody
    return logs


def _around(
    schema: Schema, rows: Floats, counts: Floats, k: int, bandwidth: float
) -> tuple[Floats, Ints, Floats]:
    """Each row's distances to its k nearest others, which they are, and how empty it is there."""
    k = min(k, len(rows) - 1)
    far = np.empty((len(rows), k))
    which, empty = np.empty((len(rows), k), dtype=np.int64), np.empty(len(rows))
    size = max(1, BLOCK // len(rows))
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        block = distances(schema, rows[part], rows)  # (size, n)
        empty[part] = -_log_density(block, counts, bandwidth)
        if k:
            np.fill_diagonal(block[:, start:], np.inf)
            far[part], which[part] = smallest(block, k)
    return far, which, np.maximum(empty, 1e-12)


def _joined(start: Ints, end: Ints, far: Floats, empty: Floats) -> Any:
    """Steps both ways, each weighted by its length and how empty its way is."""
    weight = far * (empty[start] + empty[end]) / 2
    one_way = csr_array(coo_array((weight, (start, end)), shape=(len(empty), len(empty))))
    return one_way.maximum(one_way.T).tocsr()


def _bridged(schema: Schema, rows: Floats, empty: Floats, weights: Any) -> Any:
    """The graph made one: every island gets its shortest step to a row elsewhere.

    Categories tear a nearest-neighbour graph apart: rows of a rare combination are each other's
    neighbours and nobody else's.
    """
    while True:
        count, island = connected_components(weights, directed=False)
        if count == 1:
            return weights
        sizes = np.bincount(island)
        small = np.flatnonzero(island != sizes.argmax())
        far, end = np.empty(len(small)), np.empty(len(small), dtype=np.int64)
        size = max(1, BLOCK // len(rows))
        for begin in range(0, len(small), size):
            part = slice(begin, begin + size)
            block = distances(schema, rows[small[part]], rows)
            block[island[small[part], None] == island] = np.inf
            end[part] = block.argmin(axis=1)
            far[part] = block.min(axis=1)
        order = np.lexsort((far, island[small]))
        first = order[np.unique(island[small][order], return_index=True)[1]]
        bridges = _joined(small[first], end[first], far[first], empty)
        weights = weights.maximum(bridges).tocsr()


class _Walks(NamedTuple):
    """Where the cheapest walks lead.

    Attributes:
        instance: Who has one.
        cells: The rows they end in.
        ways: For each the graph's rows it passes, in order, the end included.
        cost: What each costs.
        reasons: Why the others have none.
    """

    instance: Ints
    cells: Floats
    ways: list[Ints]
    cost: Floats
    reasons: dict[int, str]


@dataclass(eq=False)
class FACE:
    """The end of the cheapest walk from the instance through training rows.

    The kernel-density variant on a nearest-neighbour graph; `Graph` has the formula. The walk ends
    in a training row that is labelled as wanted, with at least the confidence asked for, in a
    region that is not among the emptiest.

    Attributes:
        classifier: Anything that predicts.
        schema: What the columns are, where inferring is not enough; as in `Explainer`.
        seed: Of the sample of rows, where there are too many.
        neighbours: Rows each row, and each instance, is joined to.
        confidence: The least probability of the target where the walk ends. A classifier without
            probabilities is taken at its word.
        density: The share of training rows, from the emptiest region on, where no walk may end.
        most: Rows in the graph, at most.

    Examples:
        >>> table = [{"age": age} for age in range(20, 60)]
        >>> say = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> method = FACE(say, neighbours=2).fit(table)
        >>> method.counterfactuals([{"age": 37}], target="yes").rows
        [{'age': 40}]
        >>> method.paths([{"age": 37}], target="yes")[0].ravel()
        array([37., 38., 39., 40.])
    """

    classifier: Any
    _: KW_ONLY
    schema: Kinds = field(default=None, repr=False)
    seed: int = 0
    neighbours: int = 20
    confidence: float = 0.75
    density: float = 0.1
    most: int = 20_000

    def __post_init__(self) -> None:
        whole("neighbours", self.neighbours)
        number("confidence", self.confidence, 0, 1)
        number("density", self.density, 0, 1)
        whole("most", self.most, 2)

    def fit(self, train: Any) -> FACE:
        """Asks the classifier about the training rows and joins them."""
        self.ground_ = Ground.of(self.classifier, train, self.schema)
        self.graph_ = Graph.of(self.ground_, self.neighbours, self.most, self.seed)
        return self

    def counterfactuals(self, instances: Any, *, target: Any = None) -> Counterfactuals:
        """One row for everyone who can have one."""
        return self.find(instances, target=target).answers

    def find(self, instances: Any, *, target: Any = None) -> Found:
        """The same, with the reasons of those who have none."""
        asked = ground_of(self).meet(instances, target)
        walks = self.walk(asked)
        return asked.answered(walks.cells, walks.instance, walks.reasons)

    def paths(self, instances: Any, *, target: Any = None) -> dict[int, Floats]:
        """For everyone who has an answer the whole walk, as cells: the instance, then rows."""
        asked = ground_of(self).meet(instances, target)
        walks = self.walk(asked)
        found = {}
        for instance, way in zip(walks.instance.tolist(), walks.ways, strict=True):
            own, rows = asked.instances[instance][None], self.graph_.rows[way]
            twin = not asked.schema.changed(own, rows[:1]).any()  # a row like the instance
            found[instance] = np.concatenate([own, rows[twin:]])
        return found

    def walk(self, asked: Asked) -> _Walks:
        """The cheapest walk of everyone tried.

        Costs are the same both ways, so one search from all ends at once tells what it costs every
        row to get to its cheapest end; each instance then only has to choose a first step.
        """
        graph = self.graph_
        instance, ends, ways, cost = [], [], [], []
        reasons: dict[int, str] = {}
        for group, label, target in asked.wishes():
            goals = np.flatnonzero(self._ends(asked, label, target))
            if not len(goals):
                reasons |= dict.fromkeys(group.tolist(), _no_end(self.confidence))
                continue
            left, before, _ = dijkstra(
                graph.weights, indices=goals, min_only=True, return_predecessors=True
            )
            first, near = graph.enter(asked, group)
            total = first + left[near]  # (n, k)
            best = total.argmin(axis=1)
            for i, one in enumerate(group.tolist()):
                way = _follow(before, int(near[i, best[i]]))
                instance.append(one)
                ways.append(way)
                ends.append(way[-1])
                cost.append(total[i, best[i]])
        end = graph.rows[np.array(ends, dtype=np.int64)]
        return _Walks(np.array(instance, dtype=np.int64), end, ways, np.array(cost), reasons)

    def _ends(self, asked: Asked, label: int, target: int) -> Bools:
        """Which of the graph's rows a walk may end in."""
        graph, probability = self.graph_, asked.ground.probability
        good = rows_for(asked, label, target)[graph.kept]
        if probability is not None:
            some = probability[graph.kept]
            score = some[:, target] if target >= 0 else 1.0 - some[:, label]
            good &= score >= self.confidence
        if self.density > 0:
            good &= graph.empty <= np.quantile(graph.empty, 1 - self.density)
        return good


def _no_end(confidence: float) -> str:
    return (
        "No training row in a populated region is labelled as wanted with a confidence of "
        f"{confidence:g}. Ask for less confidence or density."
    )


def _follow(before: Ints, row: int) -> Ints:
    """The rows from one to its end, by what comes before each when walking from the end."""
    way = [row]
    while before[way[-1]] >= 0:
        way.append(int(before[way[-1]]))
    return np.array(way, dtype=np.int64)


# ------------------------------------------------------------------------------------------------
# Paths made of FACE's answers, to compare paths with


def face_interpolate(
    face: FACE, instances: Any, *, target: Any = None, steps: int = 20, obey: Obey | None = None
) -> Counterfactuals:
    """Points on the straight line from each instance to FACE's answer.

    Args:
        face: Fitted.
        instances: Rows.
        target: What they want.
        steps: Points on each line; the last is the answer.
        obey: `obey(cells, instances)` overwrites values so that constraints hold; `instances` are the
            cells of the instance each point is for. The classifier is asked about what it returns.

    Returns:
        Every point, `valid` or not, with `tau` its place on the line.

    Examples:
        >>> table = [{"age": age} for age in range(20, 60)]
        >>> say = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> face = FACE(say, neighbours=2).fit(table)
        >>> line = face_interpolate(face, [{"age": 30}], target="yes", steps=5)
        >>> line.cells.ravel(), line.valid.tolist()
        (array([32., 34., 36., 38., 40.]), [False, False, False, False, True])
    """
    asked = ground_of(face).meet(instances, target)
    walks = face.walk(asked)
    steps = whole("steps", steps)
    tau = np.tile(np.arange(1, steps + 1) / steps, len(walks.instance))
    instance = np.repeat(walks.instance, steps)
    end = np.repeat(walks.cells, steps, axis=0)
    cells = between(asked.schema, asked.instances[instance], end, tau)
    return _points(asked, cells, instance, tau, obey)


def face_greedy(
    face: FACE, instances: Any, *, target: Any = None, steps: int = 20, obey: Obey | None = None
) -> Counterfactuals:
    """Hops through training rows from each instance to FACE's answer.

    Each hop goes to the row nearest to where one stands, among those near enough to the answer to
    arrive in time: after hop t of T at most (1 - t/T) of the first distance may be left.

    Args:
        face: Fitted.
        instances: Rows.
        target: What they want.
        steps: Hops of each path; the last leads to the answer.
        obey: As in `face_interpolate`.

    Examples:
        >>> table = [{"age": age} for age in range(20, 60)]
        >>> say = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> face = FACE(say, neighbours=2).fit(table)
        >>> face_greedy(face, [{"age": 30}], target="yes", steps=4).cells.ravel()
        array([33., 35., 38., 40.])
    """
    asked = ground_of(face).meet(instances, target)
    walks = face.walk(asked)
    steps = whole("steps", steps)
    count, rows = len(walks.instance), face.graph_.rows
    cells = np.empty((count, steps, rows.shape[1]))
    size = max(1, BLOCK // len(rows))
    for begin in range(0, count, size):
        part = slice(begin, begin + size)
        here = asked.instances[walks.instance[part]]
        left = asked.far(walks.cells[part], rows)  # (size, n) from every row to the answer
        whole_way = asked.schema.gaps(here, walks.cells[part]).sum(axis=1)
        for step in range(1, steps + 1):
            allowed = left <= whole_way[:, None] * (1 - step / steps) + 1e-9
            far = np.where(allowed, asked.far(here, rows), np.inf)
            # Standing still is no hop, but once arrived there is nowhere else to go.
            still = np.where(far <= 1e-12, np.inf, far)
            some = np.isfinite(still).any(axis=1)
            here = rows[np.where(some, still.argmin(axis=1), far.argmin(axis=1))]
            cells[part, step - 1] = here
    tau = np.tile(np.arange(1, steps + 1) / steps, count)
    flat = cells.reshape(count * steps, rows.shape[1])
    return _points(asked, flat, np.repeat(walks.instance, steps), tau, obey)


def _points(
    asked: Asked, cells: Floats, instance: Ints, tau: Floats, obey: Obey | None
) -> Counterfactuals:
    """Points of paths, overwritten where constraints say so, and asked about as they then are."""
    if obey is not None:
        cells = np.asarray(obey(cells, asked.instances[instance]), dtype=np.float64)
    return Counterfactuals.of(
        asked.schema,
        asked.instances,
        cells,
        instance,
        valid=asked.says(cells, instance),
        template=asked.reading.template,
        tau=tau,
    )
