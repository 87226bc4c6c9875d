"""Makes rows minimal: undoes changes and pulls numbers back while a row stays acceptable.

`find_minimal` makes starts of all instances minimal: the closest row of an instance is its
`nearest`; rows that also keep a margin and a floor are the different ways of `best`. Taking changes
back ends in local optima. So the search goes on from the closest rows with one number at the end of
its range (`_extended`), and, where there are few ways, from the starts with a feature fixed
(`_with_one_fixed`).

Three steps make rows minimal. `undo` puts changes back, the costliest first. `pull` moves each
number that is still changed back as far as it goes. `settle` repeats both for single changes, until
the row is *minimal*: no change in it can be undone alone, and no number can go back alone by a
twentieth of its change (or one step of its resolution, if that is more), with the row staying
acceptable. All work on all rows together: each round is one call of `accept`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints, first_of_each, matches, places_in_groups
from lapace.explainer.endpoints import Paths, Starts, near_samples
from lapace.explainer.oracle import FLOOR, MARGIN, OK, RARE, SOUND, Oracle
from lapace.explainer.problem import InstanceRows, Problem
from lapace.paths import Steps, join_rows, take_rows
from lapace.schema import Schema

__all__ = ["Accept", "MinimalRows", "find_minimal", "pull", "settle", "undo", "with_marks"]

SECTIONS = 5  # that a round cuts what is undecided into
PART = 1 / 20  # of a number's change: what cannot go back alone in a minimal row
FIXED = 4  # one in so many starts is used again with a feature fixed
WIDER = 10  # times as many sampled rows are tried for `best` where none has a margin

# Rows, and which of the starting rows each comes from → whether each is acceptable.
Accept: TypeAlias = Callable[[Floats, Ints], Bools]


class MinimalRows(NamedTuple):
    """Rows of `nearest` or `best`.

    Attributes:
        instance: The instance of each row, by position in the query.
        rank: Which of its best rows it is, cheapest first.
        prototype: The prototype of the path that comes closest to it; -1 for none.
        steps: The row, evaluated.
        density: The share of the target's training rows that are less dense.
        mark: What a best row lacks, in words.
    """

    instance: Ints
    rank: Ints
    prototype: Ints
    steps: Steps
    density: Floats
    mark: NDArray[np.object_]

    def as_rows(self, demand: int) -> InstanceRows:
        """Returns the rows alone."""
        return InstanceRows.of(self.steps.cells, self.instance, demand)


def find_minimal(
    problem: Problem,
    instance: Ints,
    starts: Starts,
    paths: Paths,
    free: Mapping[str, MinimalRows],
    oracle: Oracle,
) -> tuple[dict[str, MinimalRows], InstanceRows]:
    """Finds `nearest` and `best` of some instances by making starts minimal.

    Rows of `best` keep a margin and a floor where a start of the instance does; else the floor;
    else a margin. Where no start has either, `nearest` is given. All but the first are marked.

    Args:
        problem: The problem.
        instance: Positions of the instances.
        starts: Ok rows to start from.
        paths: The paths of the instances.
        free: Rows found without the query's constraints, by pick. Where all rows of an instance
            satisfy them, it is not searched for again.
        oracle: Evaluates rows.

    Returns:
        The rows by pick, and all rows that were made minimal.
    """
    done = _complying(problem, instance, free)
    todo_nearest, todo_best = (
        np.setdiff1d(instance, done[pick].instance if pick in done else [])
        for pick in ("nearest", "best")
    )
    some = take_rows(starts, np.isin(starts.instance, todo_nearest))
    parts = [some.closest(OK, problem.search.n_starts)]
    if "best" in problem.search.picks:
        parts += _starts_of_best(problem, todo_best, starts, oracle)
    rows = _made(problem, oracle, join_rows(parts), undo)
    if problem.search.frugal:
        rows = join_rows([_closest(problem, rows), _different(problem, rows)])
    elif problem.schema.shape is None:
        closest = join_rows([_closest(problem, rows), _different(problem, rows, count=1)])
        extended = _extended(problem, oracle, closest)
        more = join_rows([extended, _with_one_fixed(problem, oracle, starts, rows)])
        rows = join_rows([rows, _made(problem, oracle, more, undo)])
    rows = _made(problem, oracle, rows, pull)
    spare = 2 * problem.search.n_best  # what is made smaller may be alike then
    chosen = join_rows([_closest(problem, rows), _different(problem, rows, spare)])
    chosen = _made(problem, oracle, chosen, settle)
    # Nothing that is known to be ok is closer than `nearest`: no row of `best`, and no start.
    ok_rows = [InstanceRows.of(chosen.cells, chosen.instance, OK), starts.closest(OK, 1)]
    ok_rows += [done["nearest"].as_rows(OK)] if "nearest" in done else []
    nearest = _made(problem, oracle, _closest(problem, join_rows(ok_rows)), settle)
    nearest = _with_best_step(problem, instance, nearest, paths)
    results = {"nearest": _evaluated(problem, nearest, paths, oracle)}
    if "best" in problem.search.picks:
        best = _different(problem, chosen)
        lacking = np.setdiff1d(todo_best, best.instance)  # where no row has a margin
        best = join_rows([best, take_rows(nearest, np.isin(nearest.instance, lacking))])
        best_rows = [_evaluated(problem, best, paths, oracle)]
        best_rows += [done["best"]] if "best" in done else []
        every = join_rows(best_rows)
        results["best"] = take_rows(every, np.lexsort((every.rank, every.instance)))
    return results, join_rows([rows, chosen])


def _complying(
    problem: Problem, instance: Ints, free: Mapping[str, MinimalRows]
) -> dict[str, MinimalRows]:
    """Returns by pick the rows found without constraints of instances whose rows all keep them."""
    done = {}
    for pick, every in free.items():
        rows = take_rows(every, np.isin(every.instance, instance))
        originals = problem.instances.cells[rows.instance]
        ok = rows.steps.ok & problem.system.feasible(rows.steps.cells, originals)
        done[pick] = take_rows(rows, ~np.isin(rows.instance, rows.instance[~ok]))
    return done


def _starts_of_best(
    problem: Problem, instance: Ints, starts: Starts, oracle: Oracle
) -> list[InstanceRows]:
    """Returns starts with a margin above the floor; of an instance without such, one of the two.

    Where no start of an instance has both, many more sampled rows are tried, unless the search is
    frugal.
    """
    some = take_rows(starts, np.isin(starts.instance, instance))
    sound = some.instance[_demand_kept(some, oracle, SOUND)]
    missing = np.setdiff1d(instance, [*sound, *oracle.infeasible])
    if len(missing) and problem.schema.shape is None and not problem.search.frugal:
        more, _ = near_samples(problem, missing, oracle, WIDER)
        some = Starts.join([some, Starts.join([more])])
    parts = []
    for demand in (SOUND, FLOOR, MARGIN):
        met = _demand_kept(some, oracle, demand)
        parts.append(take_rows(some, met).closest(demand, problem.search.n_starts))
        some = take_rows(some, ~np.isin(some.instance, some.instance[met]))
    return parts


def _demand_kept(starts: Starts, oracle: Oracle, demand: int) -> Bools:
    """Tells which starts meet a demand."""
    return oracle.meets(starts.steps, starts.instance, np.full(len(starts.instance), demand))


def _made(
    problem: Problem, oracle: Oracle, rows: InstanceRows, make: Callable[..., Floats]
) -> InstanceRows:
    """Returns the rows after `undo`, `pull` or `settle`."""
    if problem.schema.shape is not None or not len(rows.instance):
        return rows  # pixels are not undone one by one: that leaves noise, not an image
    cells = make(
        rows.cells,
        problem.instances.cells[rows.instance],
        lambda tried, of: oracle.accepts(tried, rows.instance[of], rows.demand[of]),
        problem.schema,
        problem.weights,
    )
    return rows._replace(cells=cells)


def _closest(problem: Problem, rows: InstanceRows) -> InstanceRows:
    """Returns the closest row of each instance among those that only have to be ok."""
    some = take_rows(rows, rows.demand == OK)
    distance = problem.distances(some.cells, some.instance)
    return take_rows(some, first_of_each(some.instance, distance))


def _different(problem: Problem, rows: InstanceRows, count: int | None = None) -> InstanceRows:
    """Returns the closest rows of `best` that are different ways: `n_best` at most, or `count`.

    Two ways are different if neither changes all the features the other changes, or if they differ
    in a category.
    """
    schema, rows = problem.schema, take_rows(rows, rows.demand > OK)
    changed = schema.changed(problem.instances.cells[rows.instance], rows.cells)
    rest = np.lexsort((problem.distances(rows.cells, rows.instance), rows.instance))
    chosen = [rest[:0]]
    for _ in range(count or problem.search.n_best):
        first = rest[np.unique(rows.instance[rest], return_index=True)[1]]  # the closest of each
        chosen.append(first)
        theirs = first[np.searchsorted(rows.instance[first], rows.instance[rest])]
        a, b = changed[rest], changed[theirs]
        apart = (a & ~b).any(axis=1) & (b & ~a).any(axis=1)
        levels = schema.changed(rows.cells[rest], rows.cells[theirs])[:, schema.coding.categorical]
        rest = rest[apart | levels.any(axis=1)]
    return take_rows(rows, np.concatenate(chosen))


def _extended(problem: Problem, oracle: Oracle, rows: InstanceRows) -> InstanceRows:
    """Returns acceptable rows with one changed number taken to the end of its range.

    One change that goes further may do the work of two.
    """
    schema, originals = problem.schema, problem.instances.cells[rows.instance]
    changed = schema.changed(originals, rows.cells)
    changed &= (changed.sum(axis=1) > 1)[:, None]  # one change alone cannot save another
    row, column = np.nonzero(changed & movable(schema, originals, rows.cells))
    each, cells, original = np.arange(len(row)), rows.cells[row], originals[row]
    lattice, rises = schema.lattice.of(column), cells[each, column] > original[each, column]
    cells[each, column] = np.where(rises, lattice.upper, lattice.lower)
    tried = take_rows(rows, row)._replace(cells=schema.derive(cells, original))
    accepted = oracle.accepts(tried.cells, tried.instance, tried.demand)
    return take_rows(tried, accepted)


def _with_one_fixed(
    problem: Problem, oracle: Oracle, starts: Starts, rows: InstanceRows
) -> InstanceRows:
    """Returns starts with one feature fixed, for instances with fewer than `n_best` ways.

    Each feature that a way changes is fixed in turn, in the same starts. `undo` and `pull` only
    take changes back, so a cell that is the instance's stays so.
    """
    schema, originals = problem.schema, problem.instances.cells
    ways = _different(problem, rows)
    few = np.flatnonzero(np.bincount(ways.instance) < problem.search.n_best)
    ways = take_rows(ways, np.isin(ways.instance, few))
    changed = schema.changed(originals[ways.instance], ways.cells) & schema.counted
    way, fixed = np.nonzero(changed)
    pairs = np.unique(np.c_[ways.instance[way], fixed], axis=0)
    pair, start = matches(pairs[:, 0], starts.instance)
    instance, fixed, each = pairs[pair, 0], pairs[pair, 1], np.arange(len(pair))
    cells = starts.steps.cells[start]
    cells[each, fixed] = originals[instance, fixed]
    tried = InstanceRows.of(schema.derive(cells, originals[instance]), instance, SOUND)
    accepted = oracle.accepts(tried.cells, instance, tried.demand)
    tried, pair = take_rows(tried, accepted), pair[accepted]
    order = np.lexsort((problem.distances(tried.cells, tried.instance), pair))
    order = order[places_in_groups(pair[order]) < problem.search.n_starts // FIXED]
    return take_rows(tried, order)


def _with_best_step(
    problem: Problem, instance: Ints, rows: InstanceRows, paths: Paths
) -> InstanceRows:
    """Adds the best step of the paths, ok or not, for instances that have no row."""
    path = np.flatnonzero(np.isin(paths["instance"], np.setdiff1d(instance, rows.instance)))
    originals = problem.instances.cells[paths["instance"][path]][:, None]
    row, step = np.nonzero(problem.schema.changed(originals, paths["cells"][path]).any(axis=2))
    path = path[row]
    owner, likely = paths["instance"][path], np.nan_to_num(paths["probability"][path, step])
    feasible = paths["feasible"][path, step]
    ok = (paths["valid"][path, step] == 1) & feasible
    chosen = first_of_each(owner, ~ok, ~feasible, -likely)
    cells = paths["cells"][path[chosen], step[chosen]]
    return join_rows([rows, InstanceRows.of(cells, owner[chosen], OK)])


def _evaluated(problem: Problem, rows: InstanceRows, paths: Paths, oracle: Oracle) -> MinimalRows:
    """Checks and queries the rows of a pick once more; returns them cheapest first."""
    rows = take_rows(
        rows, np.lexsort((problem.distances(rows.cells, rows.instance), rows.instance))
    )
    cells, instance = rows.cells, rows.instance
    steps = oracle.query(cells, problem.feasible(cells, instance), instance)
    density = oracle.density(steps, instance)
    unmarked = np.full(len(instance), "", dtype=object)
    prototype = _closest_prototypes(problem, cells, instance, paths)
    minimal = MinimalRows(instance, places_in_groups(instance), prototype, steps, density, unmarked)
    return with_marks(minimal, oracle)


def with_marks(rows: MinimalRows, oracle: Oracle) -> MinimalRows:
    """Marks rows by what `best` would ask: `edge` without a margin, `unusual` if too rare."""
    words = np.array([["", "unusual"], ["edge", "edge, unusual"]], dtype=object)
    edge = ~oracle.has_margin(rows.steps, rows.instance)
    return rows._replace(mark=words[edge.astype(np.int64), (rows.density < RARE).astype(np.int64)])


def _closest_prototypes(problem: Problem, cells: Floats, instance: Ints, paths: Paths) -> Ints:
    """Returns the prototype of the path whose first ok step is closest to each row; -1 for none.

    Steps of the grid are compared: whether `first` is refined depends on the picks.
    """
    prototype = np.full(len(instance), -1, dtype=np.int64)
    row, path = matches(instance, paths["instance"])
    begin = np.where(paths["begin"] >= 0, paths["begin"], paths["first"])
    firsts = paths["cells"][path, begin[path]]
    distance = (problem.schema.gaps(cells[row], firsts) * problem.weights).sum(axis=1)
    chosen = first_of_each(row, distance)
    prototype[row[chosen]] = paths["prototype"][path[chosen]]
    return prototype


# ------------------------------------------------------------------------------------------------
# Minimal rows


def movable(schema: Schema, originals: Floats, cells: Floats) -> Bools:
    """Returns which cells are numbers before and after: (rows, columns).

    Nothing is missing, no level is without a place, and derived columns follow the others.
    """
    numbers = np.array([f.numeric and f.derived is None for f in schema.features])
    present = ~np.isnan(originals) & ~np.isnan(cells)
    cells_that_move: Bools = numbers & present & ~schema.coding.unseen(originals)
    return cells_that_move


def undo(
    cells: Floats, originals: Floats, accept: Accept, schema: Schema, weights: Floats
) -> Floats:
    """Undoes changes, the costliest first: each that can go once those before it have gone.

    As many changes go together as can; the next one stays; and so on with those after it.

    Args:
        cells: Acceptable rows.
        originals: The instance of each.
        accept: Whether rows are acceptable.
        schema: The columns.
        weights: One per column, for distances.
    """
    cells = cells.copy()
    place, count = _places(_costs(cells, originals, schema, weights))
    begin = np.zeros_like(count)  # changes before it are decided

    def without(rows: Ints, size: Ints) -> Floats:
        """Returns rows without the next changes, so many of each."""
        after = place[rows] - begin[rows, None]
        undone = (after >= 0) & (after < size[:, None])
        return schema.derive(np.where(undone, originals[rows], cells[rows]), originals[rows])

    while (begin < count).any():
        size = _furthest(count - begin, without, accept)
        cells = without(np.arange(len(cells)), size)
        begin += size + 1
    return cells


def pull(
    cells: Floats, originals: Floats, accept: Accept, schema: Schema, weights: Floats
) -> Floats:
    """Pulls each changed number back as far as it goes, the costliest first.

    It goes back in twentieths of its change, or in steps of its resolution, if these are more. The
    arguments are those of `undo`.
    """
    cells = cells.copy()
    costs = _costs(cells, originals, schema, weights)
    place, count = _places(np.where(movable(schema, originals, cells), costs, 0.0))
    for turn in range(count.max(initial=0)):
        rows = np.flatnonzero(count > turn)
        column = (place[rows] == turn).argmax(axis=1)
        cells[rows] = _pulled(rows, column, cells, originals, accept, schema)
    return cells


def _pulled(
    rows: Ints, column: Ints, cells: Floats, originals: Floats, accept: Accept, schema: Schema
) -> Floats:
    """Returns rows with one changed number of each as far back as it goes."""
    cells, originals = cells[rows], originals[rows]
    every = np.arange(len(rows))
    start, change = cells[every, column], (originals - cells)[every, column]
    part = np.maximum(np.abs(change) * PART, _steps(schema)[column])
    parts = np.ceil(np.abs(change) / part - 1e-9).astype(np.int64)

    def moved(row: Ints, size: Ints) -> Floats:
        """Returns rows whose number has gone back so many parts."""
        values = start[row] + np.sign(change[row]) * part[row] * size
        values = schema.lattice.of(column[row]).snap(values)
        return _replaced(schema, cells[row], originals[row], column[row], values)

    far = _furthest(parts - 1, moved, lambda tried, row: accept(tried, rows[row]))
    nearer = np.flatnonzero(far)
    cells[nearer] = moved(nearer, far[nearer])
    return cells


def _furthest(limit: Ints, tried: Callable[[Ints, Ints], Floats], accept: Accept) -> Ints:
    """Returns how far each row can go while it stays acceptable: from 0 to its limit.

    Each round asks about several distances at once, which cut what is undecided into sections.

    Args:
        limit: The furthest each row may go; below 1 it stays.
        tried: Returns rows, given by position, that have gone so far.
        accept: Whether rows are acceptable.
    """
    far, most = np.zeros_like(limit), np.maximum(limit, 0)  # it can go so far; at most so far
    shares = np.arange(1, SECTIONS + 1) / SECTIONS
    while len(undecided := np.flatnonzero(most > far)):
        width = (most - far)[undecided, None]
        size = np.ceil(width * shares - 1e-9).astype(np.int64)
        new = np.diff(size, prepend=0) > 0
        row, size = undecided[np.nonzero(new)[0]], (far[undecided, None] + size)[new]
        accepted = accept(tried(row, size), row)
        np.maximum.at(far, row[accepted], size[accepted])
        beyond = ~accepted & (size > far[row])
        np.minimum.at(most, row[beyond], size[beyond] - 1)
    return far


def settle(
    cells: Floats, originals: Floats, accept: Accept, schema: Schema, weights: Floats
) -> Floats:
    """Takes back single changes until every row is minimal; the arguments are those of `undo`.

    Each round undoes the costliest change of a row that can be undone alone, or else pulls the
    costliest number that can go back alone by a twentieth.
    """
    cells, steps = cells.copy(), _steps(schema)
    rows = np.arange(len(cells))
    while len(rows):
        costs = _costs(cells[rows], originals[rows], schema, weights)
        row, column = np.nonzero(costs)
        back, current = originals[rows[row], column], cells[rows[row], column]
        part = np.maximum(np.abs(back - current) * PART, steps[column] * 0.999)
        values = schema.lattice.of(column).snap(current + np.sign(back - current) * part)
        apart = np.minimum(np.abs(values - current), np.abs(values - back))
        moves = movable(schema, originals[rows], cells[rows])[row, column]
        partly = np.flatnonzero(moves & (apart > steps[column] / 2))
        row, column = np.r_[row, row[partly]], np.r_[column, column[partly]]
        values, whole = np.r_[back, values[partly]], np.arange(len(row)) < len(back)
        tried = _replaced(schema, cells[rows[row]], originals[rows[row]], column, values)
        accepted = np.flatnonzero(accept(tried, rows[row]))
        saved = costs[row, column]
        chosen = accepted[first_of_each(row[accepted], ~whole[accepted], -saved[accepted])]
        cells[rows[row[chosen]]] = tried[chosen]
        rows = rows[row[chosen]]
    return cells


def _steps(schema: Schema) -> Floats:
    """Returns the resolution of each column."""
    return np.array([feature.step for feature in schema.features], dtype=np.float64)


def _costs(cells: Floats, originals: Floats, schema: Schema, weights: Floats) -> Floats:
    """Returns the cost of each change; 0 where a column is unchanged: (rows, columns)."""
    cost = np.maximum(schema.gaps(originals, cells) * weights, 1e-12)
    return np.where(schema.changed(originals, cells), cost, 0.0)


def _places(costs: Floats) -> tuple[Ints, Ints]:
    """Returns each column's place, costliest first, and how many columns of a row cost anything."""
    order = np.argsort(-costs, axis=1, kind="stable")
    return np.argsort(order, axis=1), (costs > 0).sum(axis=1)


def _replaced(
    schema: Schema, cells: Floats, originals: Floats, column: Ints, values: Floats
) -> Floats:
    """Returns rows with one cell of each replaced; derived columns follow."""
    tried = cells.copy()
    tried[np.arange(len(cells)), column] = values
    return schema.derive(tried, originals)
