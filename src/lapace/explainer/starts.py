"""Where the search for minimal rows starts: ok rows of the target near each instance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints, batches, first_of_each, places_in_groups
from lapace.constraints import ChangeLimit
from lapace.explainer.endpoints import NearSamples
from lapace.explainer.oracle import Oracle
from lapace.explainer.problem import Candidates, Problem
from lapace.paths import Steps, join_rows, take_rows

__all__ = ["Paths", "Starts", "find_starts"]

HYBRIDS = 50  # rows tried at a time for each start wanted, where constraints leave an instance none
ROUNDS = 3  # how often they are
ROWS = 50_000  # of them held at once

Paths: TypeAlias = dict[str, NDArray[Any]]  # fields of `Steps` and `TracedPaths`, one row a path


class Starts(NamedTuple):
    """Evaluated rows that searches for minimal rows may start from.

    Attributes:
        instance: The instance of each, by position in the query, in order.
        steps: The rows.
        distance: From the instance.
        candidate: Rows that were given as candidates; they are always started from.
        pick: The pick each is for, as in `Candidates`.
    """

    instance: Ints
    steps: Steps
    distance: Floats
    candidate: Bools
    pick: NDArray[np.str_]

    @classmethod
    def of(cls, instance: Ints, steps: Steps, distance: Floats) -> Starts:
        """Rows for every pick that are not candidates."""
        no = np.zeros(len(distance), dtype=bool)
        return cls(instance, steps, distance, no, np.full(len(distance), "", "<U7"))

    @classmethod
    def join(cls, parts: Sequence[Starts]) -> Starts:
        """Puts the ok rows of several sources together, by instance."""
        joined = join_rows(parts)
        ok = np.flatnonzero(joined.steps.ok)
        return joined.take(ok[np.argsort(joined.instance[ok], kind="stable")])

    def take(self, rows: Bools | Ints | slice) -> Starts:
        """Selects some of the rows."""
        return take_rows(self, rows)

    def closest(self, pick: str, count: int) -> Starts:
        """Keeps the closest rows of each instance that serve a pick, and all its candidates."""
        some = self.take((self.pick == "") | (self.pick == pick))
        some = some.take(np.lexsort((some.distance, some.candidate, some.instance)))
        return some.take(some.candidate | (places_in_groups(some.instance) < count))


def find_starts(
    problem: Problem,
    instance: Ints,
    near: NearSamples,
    paths: Paths | None,
    candidates: Sequence[Candidates],
    oracle: Oracle,
) -> Starts:
    """Collects ok rows to start from: sampled ones, given ones, and steps of the paths.

    From each path come its first ok step, the first that keeps a margin, and its last ok step; from
    all paths of an instance together the closest ok step. Where constraints leave an instance none
    of these, rows are tried that change few columns.
    """
    parts = [Starts.of(instance[near.instance], near.steps, near.distance)]
    if problem.schema.shape is not None:  # of images only those on a path are written well
        parts = [parts[0].take(slice(0, 0))]
    for every in candidates:
        some = every.take(np.isin(every.instance, instance))
        steps = oracle.evaluate(some.cells, some.instance)
        far = problem.distances(steps.cells, some.instance)
        candidate = np.ones(len(far), dtype=bool)
        parts.append(Starts(some.instance, steps, far, candidate, some.pick))
    if paths is not None:
        parts.append(_starts_of_paths(paths, oracle))
    starts = Starts.join(parts)
    started = starts.instance[starts.pick != "best"]  # `nearest` is the same without `best`
    left = np.setdiff1d(instance, [*started, *oracle.infeasible])
    if len(problem.system) and len(left) and problem.schema.shape is None:
        for part in batches(len(left), ROWS, HYBRIDS * problem.search.n_starts):
            starts = Starts.join([starts, *_hybrid_starts(problem, left[part], oracle)])
    return starts


def _starts_of_paths(paths: Paths, oracle: Oracle) -> Starts:
    """The first ok step, the first with a margin and the last of each path; the closest of all."""
    steps = Steps(*(paths[name] for name in Steps._fields))
    path, step = np.nonzero(steps.ok)
    ok, owner, far = steps.take(path, step), paths["instance"][path], paths["distance"][path, step]
    grid = np.flatnonzero(step < steps.tau.shape[1] - 2)
    sure = grid[oracle.has_margin(ok.take(grid), owner[grid])]
    rows = [
        grid[first_of_each(path[grid], step[grid])],
        sure[first_of_each(path[sure], step[sure])],
        grid[first_of_each(path[grid], -step[grid])],
        first_of_each(owner, far),
    ]
    chosen = np.unique(np.concatenate(rows))
    return Starts.of(owner[chosen], ok.take(chosen), far[chosen])


def _hybrid_starts(problem: Problem, instance: Ints, oracle: Oracle) -> list[Starts]:
    """Tries rows that have a few columns of a sampled row and are the instance's elsewhere.

    They satisfy constraints that whole sampled rows do not, limits on changes above all. Where none
    is ok, the likeliest feasible one is varied: it gives up one of its changes for another.
    """
    known, parts = problem.instances, []
    base = known.cells[instance]
    for round_ in range(ROUNDS):
        cells, owner = [known.cells[:0]], [instance[:0]]
        for i, row in zip(instance.tolist(), base, strict=True):
            cells.append(_hybrids(problem, i, row, round_))
            owner.append(np.full(len(cells[-1]), i))
        owners = np.concatenate(owner)
        steps = oracle.evaluate(np.concatenate(cells), owners)
        parts.append(Starts.of(owners, steps, problem.distances(steps.cells, owners)))
        left = np.flatnonzero(steps.feasible & ~np.isin(owners, owners[steps.ok]))
        likeliest = left[first_of_each(owners[left], -np.nan_to_num(steps.probability[left]))]
        base, instance = steps.cells[likeliest], owners[likeliest]
    return parts


def _hybrids(problem: Problem, instance: int, base: Floats, round_: int) -> Floats:
    """Rows that differ from a base row in one change less and some columns of sampled rows.

    The same columns are drawn for every instance, so an answer does not depend on the others.
    """
    schema, sampled = problem.schema, problem.fitted.sampled_endpoints
    reached = problem.instances.reaches_target(sampled.label, np.full(len(sampled.label), instance))
    if not reached.any():
        return base[None][:0]
    random, count = np.random.default_rng(round_), HYBRIDS * problem.search.n_starts
    samples = sampled.cells[random.choice(np.flatnonzero(reached), count)]
    original, columns = problem.instances.cells[instance], np.flatnonzero(schema.counted)
    changed = schema.changed(original, base)
    limits = [c.count for c in problem.system.constraints if isinstance(c, ChangeLimit)]
    most = max(1, min([len(columns), *limits]))
    size = random.integers(max(1, most - 1) if limits else 1, most, count, endpoint=True)
    size = np.where(changed.any(), 1, size)
    taken = np.zeros(samples.shape, dtype=bool)
    taken[:, columns] = random.random((count, len(columns))).argsort(axis=1) < size[:, None]
    lost = (random.random(samples.shape) * changed).argmax(axis=1)
    rows = np.repeat(base[None], count, axis=0)
    rows[np.arange(count), lost] = original[lost]
    return np.where(taken, samples, rows)
