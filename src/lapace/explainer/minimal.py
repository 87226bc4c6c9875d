"""Makes rows minimal: undoes changes and pulls numbers back while a row stays acceptable.

`find_minimal` makes all starts of all instances minimal: the closest row of an instance is its
`nearest`; rows that also keep a margin and a floor are the different ways of `best`. Taking changes
back ends in local optima, so one number of the closest rows is taken to the end of its range and
the rest taken back again (`_extended`). Where there are few ways, the search begins again with a
feature fixed (`_with_one_fixed`).

`minimise` is greedy. It puts back every change that can be put back alone, the costliest first,
until none can; then it pulls each number that is still changed back by bisection, costliest first.
`settle` repeats that until the row is *minimal*: no change in it can be undone alone, and no number
can go back alone by a twentieth of its change (or one step of its resolution, if that is more),
with the row staying acceptable. Both work on all rows together: each round asks one question of
every row that is not done yet, in one call of `accept`.
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

__all__ = ["Accept", "MinimalRows", "find_minimal", "minimise", "settle", "with_marks"]

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
            satisfy them, they are its rows.
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
    rows = _made(problem, oracle, join_rows(parts), minimise)
    if problem.schema.shape is None and not problem.search.frugal:
        closest = join_rows([_closest(problem, rows), _different(problem, rows, count=1)])
        parts = [rows, _extended(problem, oracle, closest)]
        rows = join_rows([*parts, _with_one_fixed(problem, oracle, starts, join_rows(parts))])
    chosen = join_rows([_closest(problem, rows), _different(problem, rows)])
    chosen = _made(problem, oracle, chosen, settle)
    nearest = _with_best_step(problem, todo_nearest, take_rows(chosen, chosen.demand == OK), paths)
    picked = {"nearest": nearest}
    if "best" in problem.search.picks:
        best = _different(problem, chosen)  # what was made smaller may be alike now
        lacking = np.setdiff1d(todo_best, best.instance)  # where no row has a margin
        if "nearest" in done:
            nearest = join_rows([nearest, done["nearest"].as_rows(OK)])
        picked["best"] = join_rows([best, take_rows(nearest, np.isin(nearest.instance, lacking))])
    results = {}
    for pick, some_rows in picked.items():
        evaluated = _evaluated(problem, some_rows, paths, oracle)
        both = join_rows([done[pick], evaluated]) if pick in done else evaluated
        results[pick] = take_rows(both, np.lexsort((both.rank, both.instance)))
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
    """Returns the rows after `minimise` or `settle`."""
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
    """Takes one changed number to the end of its range, and makes the row minimal again.

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
    return _made(problem, oracle, take_rows(tried, accepted), minimise)


def _with_one_fixed(
    problem: Problem, oracle: Oracle, starts: Starts, rows: InstanceRows
) -> InstanceRows:
    """Searches again with one feature fixed, for instances with fewer than `n_best` ways.

    Each feature that a way changes is fixed in turn, in the same starts: `minimise` only takes
    changes back, so a cell that is the instance's stays so.
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
    return _made(problem, oracle, take_rows(tried, order), minimise)


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
    distance = problem.schema.gaps(cells[row], firsts) @ problem.weights
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


def minimise(
    cells: Floats, originals: Floats, accept: Accept, schema: Schema, weights: Floats
) -> Floats:
    """Undoes and pulls back what can be, greedily, in acceptable rows.

    Args:
        cells: Acceptable rows.
        originals: The instance of each.
        accept: Whether rows are acceptable.
        schema: The columns.
        weights: One per column, for distances.
    """
    rows = _Minimiser(cells, originals, accept, schema, weights)
    every = np.arange(len(cells))
    rows.begin_undoing(every)
    rows.ask(every)
    return rows.cells


def settle(
    cells: Floats, originals: Floats, accept: Accept, schema: Schema, weights: Floats
) -> Floats:
    """Takes back single changes until every row is minimal; the arguments are `minimise`'s."""
    rows = _Minimiser(cells, originals, accept, schema, weights)
    unsettled = np.arange(len(cells))
    while len(unsettled):
        unsettled = rows.take_back_one(unsettled)
    return rows.cells


class _Minimiser:
    """Rows on their way to being minimal; methods take positions of rows and change `cells`.

    Attributes:
        order: The columns of each row in the order in which they are tried.
        count: How many of them there are to try.
        turn: Which of them is tried next.
        undone: How many of them were undone.
        pulling: Rows whose numbers are pulled back; the changes of the others are undone.
        kept: The value of the number that is pulled back.
        refused: The nearest value to it that was refused.
    """

    def __init__(
        self, cells: Floats, originals: Floats, accept: Accept, schema: Schema, weights: Floats
    ) -> None:
        self.cells, self.originals, self.accept = cells.copy(), originals, accept
        self.schema, self.weights = schema, weights
        self.steps = np.array([feature.step for feature in schema.features], dtype=np.float64)
        self.order = np.zeros(cells.shape, dtype=np.int64)
        self.count, self.turn, self.undone = np.zeros((3, len(cells)), dtype=np.int64)
        self.pulling = np.zeros(len(cells), dtype=bool)
        self.kept, self.refused = np.zeros((2, len(cells)))

    def costs(self, rows: Ints) -> Floats:
        """Cost of each change of some rows; 0 where a column is unchanged: (rows, columns)."""
        original, cells = self.originals[rows], self.cells[rows]
        cost = np.maximum(self.schema.gaps(original, cells) * self.weights, 1e-12)
        return np.where(self.schema.changed(original, cells), cost, 0.0)

    # -- one question at a time -------------------------------------------------------------------

    def begin_undoing(self, rows: Ints) -> None:
        """Begins to undo the changes of some rows, costliest first."""
        self._begin(rows, self.costs(rows))
        self.pulling[rows] = False

    def begin_pulling(self, rows: Ints) -> None:
        """Begins to pull the changed numbers of some rows back, costliest first."""
        self._begin(rows, np.where(self.movable(rows), self.costs(rows), 0.0))
        self.pulling[rows] = True
        self._begin_number(rows[self.count[rows] > 0])

    def _begin(self, rows: Ints, costs: Floats) -> None:
        self.order[rows] = np.argsort(-costs, axis=1, kind="stable")
        self.count[rows] = (costs > 0).sum(axis=1)
        self.turn[rows], self.undone[rows] = 0, 0

    def _begin_number(self, rows: Ints) -> None:
        column = self.order[rows, self.turn[rows]]
        self.kept[rows], self.refused[rows] = self.cells[rows, column], self.originals[rows, column]

    def ask(self, rows: Ints) -> None:
        """Asks one question of every row at a time, until there are none left."""
        while True:
            rows, values = self.next_questions(rows)
            if not len(rows):
                return
            column = self.order[rows, self.turn[rows]]
            tried = self.replaced(rows, column, values)
            accepted = self.accept(tried, rows)
            self.cells[rows[accepted]] = tried[accepted]
            pulling = self.pulling[rows]
            self.undone[rows] += accepted & ~pulling
            self.turn[rows[~pulling]] += 1
            self.kept[rows[accepted]] = values[accepted]
            self.refused[rows[~accepted]] = values[~accepted]

    def next_questions(self, rows: Ints) -> tuple[Ints, Floats]:
        """Returns the rows that still have a question, and the value to try in each."""
        ended = rows[~self.pulling[rows] & (self.turn[rows] >= self.count[rows])]
        # Once one change is undone, another that was refused may be possible.
        again = (self.undone[ended] > 0) & (self.undone[ended] < self.count[ended])
        if len(ended):
            self.begin_undoing(ended[again])
            self.begin_pulling(ended[~again])
        undoing, values = rows[~self.pulling[rows]], np.empty(len(self.cells))
        values[undoing] = self.originals[undoing, self.order[undoing, self.turn[undoing]]]
        queried, rest = [undoing], rows[self.pulling[rows] & (self.turn[rows] < self.count[rows])]
        while len(rest):
            tried, moves = self.halfway(rest)
            values[rest[moves]] = tried[moves]
            queried.append(rest[moves])
            rest = rest[~moves]  # as far back as it goes: the next number
            self.turn[rest] += 1
            rest = rest[self.turn[rest] < self.count[rest]]
            self._begin_number(rest)
        rows = np.sort(np.concatenate(queried))
        return rows, values[rows]

    def halfway(self, rows: Ints) -> tuple[Floats, Bools]:
        """Values half-way from the kept one to the refused one, and whether they are worth a try.

        A value is not worth a try if it gains at most a twentieth of the change, or one step.
        """
        column = self.order[rows, self.turn[rows]]
        kept, refused = self.kept[rows], self.refused[rows]
        change = np.abs(kept - self.originals[rows, column])
        enough = np.maximum(change * PART, self.steps[column])
        values, moves = self.moved(column, kept, refused, 0.5)
        return values, moves & (np.abs(kept - refused) > enough * 1.001)

    # -- until nothing gives ----------------------------------------------------------------------

    def take_back_one(self, rows: Ints) -> Ints:
        """Undoes the costliest change that can be undone alone, or pulls one number back alone.

        Returns:
            The rows in which either was possible; all others are minimal.
        """
        costs = self.costs(rows)
        row, column = np.nonzero(costs)
        back, current = self.originals[rows[row], column], self.cells[rows[row], column]
        values, moves = self.moved(column, current, back, PART)
        partly = np.flatnonzero(moves & self.movable(rows)[row, column])
        row, column = np.concatenate([row, row[partly]]), np.concatenate([column, column[partly]])
        values = np.concatenate([back, values[partly]])
        tried = self.replaced(rows[row], column, values)
        accepted = np.flatnonzero(self.accept(tried, rows[row]))
        whole = np.arange(len(row)) < len(back)
        saved = costs[row, column]
        chosen = accepted[first_of_each(row[accepted], ~whole[accepted], -saved[accepted])]
        self.cells[rows[row[chosen]]] = tried[chosen]
        return rows[row[chosen]]

    # -- cells ------------------------------------------------------------------------------------

    def movable(self, rows: Ints) -> Bools:
        """Tells which cells of some rows can be pulled back: (rows, columns)."""
        return movable(self.schema, self.originals[rows], self.cells[rows])

    def moved(
        self, column: Ints, value: Floats, towards: Floats, part: float
    ) -> tuple[Floats, Bools]:
        """Values moved part of the way, on their lattice, and whether they differ from both."""
        steps = self.steps[column]
        apart = np.nan_to_num(towards - value)
        moved = value + np.sign(apart) * np.maximum(np.abs(apart) * part, steps * 0.999)
        moved = self.schema.lattice.of(column).snap(moved)
        return moved, (np.abs(moved - value) > steps / 2) & (np.abs(moved - towards) > steps / 2)

    def replaced(self, rows: Ints, column: Ints, values: Floats) -> Floats:
        """Rows with one cell of each replaced, derived columns following."""
        tried = self.cells[rows]
        tried[np.arange(len(rows)), column] = values
        return self.schema.derive(tried, self.originals[rows])
