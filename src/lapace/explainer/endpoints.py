"""Endpoints of paths, and starts of the search for minimal rows.

Paths end at the prototypes and at one sampled row of the target near each instance. The search for
`nearest` and `best` starts from ok rows near each instance: sampled rows, the instance with one
change, steps of its paths, and rows the caller gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints, batches, first_of_each, places_in_groups
from lapace.constraints import ChangeLimit
from lapace.explainer.oracle import OK, Oracle
from lapace.explainer.problem import EITHER, InstanceRows, Problem
from lapace.paths import Steps, join_rows, rows_differ, take_rows
from lapace.schema import Schema
from lapace.schema.distance import kneighbors

__all__ = [
    "Endpoints",
    "Paths",
    "Starts",
    "find_endpoints",
    "find_starts",
    "near_samples",
]

ASKED = 2  # sampled rows queried for each start that is wanted
MORE = 2  # times as many under constraints, which move them
ROUNDS = 10  # of growing a row where constraints leave an instance no start
LEVELS = 20  # categories of a column at most, for each to be tried alone for every instance
ROWS = 50_000  # rows tried at once

Paths: TypeAlias = dict[str, NDArray[Any]]  # fields of `Steps` and `TracedPaths`, one row a path


class Starts(NamedTuple):
    """Evaluated rows that a search for minimal rows may start from.

    Attributes:
        instance: The instance of each, by position in the query, in order.
        steps: The rows.
        distance: Their distances from the instances.
        candidate: Whether the caller named the row as a candidate; those are always started from.
        demand: The pick each may serve, as in `InstanceRows`.
    """

    instance: Ints
    steps: Steps
    distance: Floats
    candidate: Bools
    demand: Ints

    @classmethod
    def of(cls, instance: Ints, steps: Steps, distance: Floats) -> Starts:
        """Makes starts for every pick of rows that are no candidates."""
        count = len(instance)
        return cls(instance, steps, distance, np.zeros(count, dtype=bool), np.full(count, EITHER))

    @classmethod
    def join(cls, parts: Sequence[Starts]) -> Starts:
        """Puts the ok rows of several sources together, by instance."""
        joined = join_rows(parts)
        ok = np.flatnonzero(joined.steps.ok)
        return take_rows(joined, ok[np.argsort(joined.instance[ok], kind="stable")])

    def closest(self, demand: int, count: int) -> InstanceRows:
        """Returns the closest rows of each instance and label, and all candidates, for a demand."""
        serves = (self.demand == EITHER) | ((self.demand == OK) == (demand == OK))
        some = take_rows(self, serves)
        label = some.steps.predicted
        some = take_rows(some, np.lexsort((some.distance, some.candidate, label, some.instance)))
        group = np.c_[some.instance, some.steps.predicted]
        group = np.unique(group, axis=0, return_inverse=True)[1].ravel()
        some = take_rows(some, some.candidate | (places_in_groups(group) < count))
        return InstanceRows.of(some.steps.cells, some.instance, demand)


# ------------------------------------------------------------------------------------------------
# Sampled rows near instances


def near_samples(
    problem: Problem, instance: Ints, oracle: Oracle, times: int = 1
) -> tuple[Starts, Ints]:
    """Finds the sampled rows of the target closest to instances, and evaluates them.

    Args:
        problem: The problem.
        instance: Positions of the instances.
        oracle: Evaluates rows.
        times: How many times as many as usual.

    Returns:
        The rows, by instance and distance, and which of the sampled rows each is.
    """
    sampled, instances = problem.fitted.sampled_endpoints, problem.instances
    asked = 1 if problem.search.frugal else ASKED
    count = times * asked * (MORE if len(problem.system) else 1) * problem.search.n_starts
    pinned = problem.system.domains(instances.cells[instance]).pinned
    alike = np.c_[instances.label_code[instance], instances.target_code[instance], pinned]
    _, group = np.unique(alike, axis=0, return_inverse=True)
    owners, samples = [instance[:0]], [instance[:0]]
    for k in np.unique(group):  # instances that want the same and may change the same columns
        members = np.flatnonzero(group.ravel() == k)
        first = np.full(len(sampled.label), instance[members[0]])
        reached = instances.reaches_target(sampled.label, first)
        cells = instances.cells[instance[members]]
        # What may not change is the instance's, whatever the sample has.
        weights = np.where(pinned[members[0]], 0.0, problem.weights)
        for label in np.unique(sampled.label[reached]):
            rows = np.flatnonzero(sampled.label == label)
            _, near = kneighbors(problem.schema, cells, sampled.cells[rows], count, weights=weights)
            owners.append(np.repeat(instance[members], near.shape[1]))
            samples.append(rows[near].ravel())
    owner, sample = np.concatenate(owners), np.concatenate(samples)
    steps = oracle.evaluate(sampled.cells[sample], owner)
    starts = Starts.of(owner, steps, problem.distances(steps.cells, owner))
    order = np.lexsort((starts.distance, owner))
    return take_rows(starts, order), sample[order]


# ------------------------------------------------------------------------------------------------
# Endpoints of paths


class Endpoints(NamedTuple):
    """Endpoints of the paths of some instances, and the lines that lead there.

    Attributes:
        prototype: The prototype's number; -1 for a sampled endpoint.
        z: Latent points.
        cells: Their rows.
        label: Labels, as positions.
        instance: The instance of each line, by position among those searched for, in order.
        endpoint: The endpoint of each line.
    """

    prototype: Ints
    z: torch.Tensor
    cells: Floats
    label: Ints
    instance: Ints
    endpoint: Ints


def find_endpoints(problem: Problem, instance: Ints, near: Starts, sample: Ints) -> Endpoints:
    """Lists the endpoints of some instances: their prototypes, and the closest ok sampled row.

    Args:
        problem: The problem.
        instance: Positions of the instances, in order.
        near: Sampled rows near them.
        sample: Which of the sampled rows each of these is.
    """
    fitted = problem.fitted
    prototypes, sampled = fitted.prototypes, fitted.sampled_endpoints
    ok = np.flatnonzero(near.steps.ok)
    ok = ok[first_of_each(near.instance[ok], near.distance[ok])]
    sample = sample[ok]
    codes = np.array([p.code for p in prototypes])
    usable = np.array([fitted.is_endpoint(p) for p in prototypes])
    lines, prototype = np.nonzero(usable & problem.instances.wants(codes, instance))
    # Pairs rather than a matrix, since every instance has another sampled endpoint.
    lines = np.concatenate([lines, np.searchsorted(instance, near.instance[ok])])
    endpoint = np.concatenate([prototype, len(prototypes) + np.arange(len(ok))])
    order = np.argsort(lines, kind="stable")
    z = torch.as_tensor(np.stack([p.z for p in prototypes]), device=fitted.decoder.device)
    return Endpoints(
        np.array([p.number for p in prototypes] + [-1] * len(ok), dtype=np.int64),
        torch.cat([z, sampled.z[torch.as_tensor(sample, device=z.device)]]),
        np.concatenate([np.stack([p.cells for p in prototypes]), sampled.cells[sample]]),
        np.array([*codes, *sampled.label[sample]], dtype=np.int64),
        lines[order],
        endpoint[order],
    )


# ------------------------------------------------------------------------------------------------
# Starts of the search for minimal rows


def find_starts(
    problem: Problem,
    instance: Ints,
    near: Starts,
    paths: Paths,
    candidates: Sequence[InstanceRows],
    oracle: Oracle,
) -> Starts:
    """Collects ok rows to start from: sampled rows, single changes, candidates, steps of paths.

    Where constraints leave an instance none of these, a row is grown change by change.
    """
    schema, image = problem.schema, problem.schema.shape is not None
    # Of images only rows on a path are written well.
    parts = [] if image else [near]
    if not image and not problem.search.frugal:
        parts += _single_changes(problem, instance, oracle)
    for rows in candidates:
        some = take_rows(rows, np.isin(rows.instance, instance))
        steps = oracle.evaluate(some.cells, some.instance)
        distance = problem.distances(steps.cells, some.instance)
        candidate = np.ones(len(distance), dtype=bool)
        parts.append(Starts(some.instance, steps, distance, candidate, some.demand))
    starts = Starts.join([*parts, _starts_of_paths(paths, oracle)])
    started = starts.instance[starts.demand <= OK]  # `nearest` is the same without `best`
    missing = np.setdiff1d(instance, [*started, *oracle.infeasible])
    if len(problem.system) and not image:
        for part in batches(len(missing), ROWS, len(_changes(schema)[0]) * _most_changes(problem)):
            starts = Starts.join([starts, *_grown_starts(problem, missing[part], oracle)])
    return starts


def _changes(schema: Schema, levels: int | None = None) -> tuple[Ints, Floats]:
    """Lists single changes: each number at either end of its range, each category.

    Columns of many categories are left out.

    Returns:
        The column of each, and its value.
    """
    changes = []
    for place, feature in enumerate(schema.features):
        bounds = (feature.lower, feature.upper)
        values = bounds if feature.numeric else range(len(feature.categories))
        if feature.derived is None and (levels is None or len(values) <= levels):
            changes += [(place, value) for value in values]
    columns, values_there = np.array(changes, dtype=np.float64).reshape(-1, 2).T
    return columns.astype(np.int64), values_there


def _single_changes(problem: Problem, instance: Ints, oracle: Oracle) -> list[Starts]:
    """Tries each change alone."""
    schema, parts = problem.schema, []
    columns, values = _changes(schema, LEVELS)
    for part in batches(len(instance), ROWS, len(columns)):
        owner = np.repeat(instance[part], len(columns))
        original, times = problem.instances.cells[owner], len(instance[part])
        cells = original.copy()
        cells[np.arange(len(owner)), np.tile(columns, times)] = np.tile(values, times)
        cells = schema.derive(cells, original)
        tried = problem.feasible(cells, owner) & rows_differ(cells, original)
        owner, cells = owner[tried], cells[tried]
        steps = oracle.query(cells, tried[tried], owner)
        parts.append(Starts.of(owner, steps, problem.distances(cells, owner)))
    return parts


def _starts_of_paths(paths: Paths, oracle: Oracle) -> Starts:
    """Returns each path's first ok step, the first with a margin and the last; and the closest."""
    steps = Steps(*(paths[name] for name in Steps._fields))
    path, step = np.nonzero(steps.ok)
    ok, owner = steps.take(path, step), paths["instance"][path]
    distance = paths["distance"][path, step]
    grid = np.flatnonzero(step < steps.tau.shape[1] - 2)
    sure = grid[oracle.has_margin(ok.take(grid), owner[grid])]
    rows = [
        grid[first_of_each(path[grid], step[grid])],
        sure[first_of_each(path[sure], step[sure])],
        grid[first_of_each(path[grid], -step[grid])],
        first_of_each(owner, distance),
    ]
    chosen = np.unique(np.concatenate(rows))
    return Starts.of(owner[chosen], ok.take(chosen), distance[chosen])


def _grown_starts(problem: Problem, instance: Ints, oracle: Oracle) -> list[Starts]:
    """Grows rows from instances, change by change: each round keeps the likeliest feasible row.

    Where a row has as many changes as are allowed, one is given up for each that is tried. A row
    is grown until one is ok or none is likelier.
    """
    parts, rows = [], problem.instances.cells[instance]
    likely = np.full(len(instance), -np.inf)
    for _ in range(ROUNDS):
        cells, of = _varied(problem, instance, rows)
        steps = oracle.evaluate(cells, instance[of])
        parts.append(Starts.of(instance[of], steps, problem.distances(steps.cells, instance[of])))
        score = steps.probability
        if np.isnan(score).all():
            score = _resemblance(problem, steps.cells, instance[of])
        score = np.where(steps.feasible & ~np.isnan(score), score, -np.inf)
        best = first_of_each(of, -score)
        row = of[best]
        best = best[(score[best] > likely[row]) & ~np.isin(row, of[steps.ok])]
        rows, likely, instance = steps.cells[best], score[best], instance[of[best]]
    return parts


def _resemblance(problem: Problem, cells: Floats, instance: Ints) -> Floats:
    """Returns how much more rows resemble sampled rows of the target than those of other labels.

    It stands in for the probability of a classifier that gives labels alone: the score of a linear
    discriminant that takes columns for independent.
    """
    schema, sampled, score = problem.schema, problem.fitted.sampled_endpoints, np.zeros(len(cells))
    encoded, known = schema.encode(cells), schema.encode(sampled.cells)
    for i in np.unique(instance).tolist():
        reached = problem.instances.reaches_target(sampled.label, np.full(len(sampled.label), i))
        if reached.any() and not reached.all():
            target, other = known[reached], known[~reached]
            spread = target.var(axis=0) + other.var(axis=0) + 1e-3
            weights = (target.mean(axis=0) - other.mean(axis=0)) / spread
            score[instance == i] = encoded[instance == i] @ weights
    return score


def _varied(problem: Problem, instance: Ints, rows: Floats) -> tuple[Floats, Ints]:
    """Makes rows with one change more; where there is no room for it, with one given up first.

    Args:
        problem: The problem.
        instance: The instance of each row.
        rows: The rows.

    Returns:
        The new rows, and which of the rows each comes from.
    """
    schema, originals = problem.schema, problem.instances.cells[instance]
    columns, values = _changes(schema)
    changed = schema.changed(originals, rows) & schema.counted
    full = changed.sum(axis=1) >= _most_changes(problem)
    of, given_up = np.nonzero(np.c_[changed & full[:, None], ~full])  # the last: nothing
    cells, lost = rows[of], np.flatnonzero(given_up < rows.shape[1])
    cells[lost, given_up[lost]] = originals[of[lost], given_up[lost]]
    cells, of = np.repeat(cells, len(columns), axis=0), np.repeat(of, len(columns))
    each, column = np.arange(len(of)), np.resize(columns, len(of))
    cells[each, column] = np.resize(values, len(of))
    new = ~problem.system.domains(originals).pinned[of, column]
    return schema.derive(cells[new], originals[of[new]]), of[new]


def _most_changes(problem: Problem) -> int:
    """Returns how many columns may change: at least one, so that there is something to try."""
    limits = [c.most for c in problem.system.constraints if isinstance(c, ChangeLimit)]
    return max(1, min([len(problem.schema.features), *limits]))
