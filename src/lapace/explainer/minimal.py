"""Makes rows minimal: undoes changes and pulls numbers back while a row stays acceptable.

`find_minimal` makes starts of all instances minimal. The row of least effort that is ok is an
instance's `nearest`. Rows that also keep a margin of the classifier's odds are its *ways*, the rows
of `best`. Each way has two ends: `safe`, which keeps the margin, its numbers rounded outward, and
`enough`, which is made minimal from it among all ok rows. The classifier alone says what is
acceptable; density only orders and marks.

Three steps make rows minimal. `undo` puts changes back, the costliest first. `pull` moves each
number that is still changed back as far as it goes. `settle` repeats both for single changes, until
the row is *minimal*: no change in it can be undone alone, and no number can go back alone by a
twentieth of its change (or one step of its resolution, if that is more), with the row staying
acceptable. All work on all rows together: each round is one call of `accept`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints, first_of_each, matches, places_in_groups
from lapace.explainer.oracle import Oracle
from lapace.explainer.problem import InstanceRows, Problem
from lapace.explainer.starts import Paths, Starts
from lapace.paths import Steps, join_rows, take_rows
from lapace.schema import Feature, Schema

__all__ = ["Accept", "MinimalRows", "find_minimal", "pull", "rounded", "settle", "undo"]

STRIDE = 1 / 3  # of what is undecided, that a round tries to take back beside a single step
PART = 1 / 20  # of a number's change: what cannot go back alone in a minimal row
TRIED, FIXED = 40, 2  # starts tried with a feature fixed, and those that are made minimal
ROUND_SHARE = 0.01  # of the usual range: the largest step that numbers are rounded to
ROUND_STEPS = 7  # of 1, 2 and 5 times a power of ten that are tried
UNUSUAL = 0.05  # the floor: a share of the training rows of the target is less dense
UNUSUAL_PRICE = 1.5  # what the effort of a way below the floor is multiplied by
ALIKE = 1.05  # times the least effort: up to it fewer changes decide, then the order of columns

# Rows, and which of the starting rows each comes from → whether each is acceptable.
Accept: TypeAlias = Callable[[Floats, Ints], Bools]
Make: TypeAlias = Callable[..., Floats]


class MinimalRows(NamedTuple):
    """Rows of `nearest` or `best`.

    Attributes:
        instance: The instance of each row, by position in the query.
        rank: Which of its best rows it is, cheapest first.
        prototype: The prototype of the path that comes closest to it; -1 for none.
        steps: The row, evaluated.
        density: The share of the target's training rows that are less dense.
        mark: What the row lacks, in words.
    """

    instance: Ints
    rank: Ints
    prototype: Ints
    steps: Steps
    density: Floats
    mark: NDArray[np.object_]

    def as_rows(self) -> InstanceRows:
        """Returns the rows alone."""
        return InstanceRows.of(self.steps.cells, self.instance)


def find_minimal(
    problem: Problem, instance: Ints, starts: Starts, paths: Paths, oracle: Oracle
) -> dict[str, MinimalRows]:
    """Finds `nearest`, and both ends of `best`, of some instances by making starts minimal.

    Where no start of an instance keeps a margin, its ways are minimal among ok rows, and marked.

    Args:
        problem: The problem.
        instance: Positions of the instances.
        starts: Ok rows to start from.
        paths: The paths of the instances.
        oracle: Evaluates rows.

    Returns:
        The rows by name: `nearest`, `best` (the safe ends) and `enough` (the other ends).
    """
    maker, picks, count = _Maker(problem, oracle), problem.search.picks, problem.search.n_starts
    sure = take_rows(starts, starts.margin & problem.asks_margin & ("best" in picks))
    # Ways keep a margin where some start does; else they are minimal among all ok rows.
    plain = starts
    if "nearest" not in picks:
        plain = take_rows(starts, ~np.isin(starts.instance, sure.instance))
    price = maker.price(sure.steps.cells, sure.instance, sure.steps.predicted)
    both = [plain.cheapest(count, plain.effort), sure.cheapest(count, price, margin=True)]
    rows = maker.minimal(join_rows(both))
    known = [take_rows(rows, ~rows.margin)]  # ok rows, of which `nearest` takes the least effort
    results: dict[str, MinimalRows] = {}
    if "best" in picks:
        ways = take_rows(rows, rows.margin | ~np.isin(rows.instance, sure.instance))
        if problem.schema.shape is None:
            more = maker.with_one_fixed(starts, maker.different(ways))
            ways = maker.different(join_rows([ways, maker.minimal(more)]))
            ways = join_rows([ways, maker.exchanged(ways)])
        ways = maker.different(ways)
        enough = maker.settled(ways._replace(margin=np.zeros_like(ways.margin)))
        known.append(enough)
        safe = maker.made(rounded, ways)
        # Where no margin is kept, the ends coincide.
        enough = enough._replace(cells=np.where(ways.margin[:, None], enough.cells, safe.cells))
        lacking = maker.with_best_step(np.setdiff1d(instance, safe.instance), paths)
        results["best"], results["enough"] = maker.evaluated(
            [join_rows([end, lacking]) for end in (safe, enough)], paths
        )
    if "nearest" in picks:
        nearest = maker.least_effort(join_rows(known))
        lacking = maker.with_best_step(np.setdiff1d(instance, nearest.instance), paths)
        results["nearest"] = maker.evaluated([join_rows([nearest, lacking])], paths)[0]
    return results


class _Maker:
    """Makes rows of one search minimal, and chooses among them."""

    def __init__(self, problem: Problem, oracle: Oracle) -> None:
        self.problem = problem
        self.oracle = oracle

    def minimal(self, rows: InstanceRows) -> InstanceRows:
        """Returns the most promising rows of each instance, made minimal.

        Of the rows whose changes are undone only those go on that may become one of the picks.
        """
        rows = self.made(undo, rows)
        spare = 1 + self.problem.search.n_best  # what is made smaller may be alike then
        least = self.least_effort(take_rows(rows, ~rows.margin))
        rows = join_rows([least, self.different(rows, spare)])
        return self.made(settle, self.made(pull, rows))

    def settled(self, rows: InstanceRows) -> InstanceRows:
        """Returns rows made minimal."""
        return self.made(settle, self.made(pull, self.made(undo, rows)))

    def exchanged(self, rows: InstanceRows) -> InstanceRows:
        """Returns rows whose cheapest change is undone while one number goes further, made minimal.

        The number goes as far as the change undone was worth.
        """
        problem, schema = self.problem, self.problem.schema
        originals = problem.instances.cells[rows.instance]
        efforts = problem.change_efforts(rows.cells, rows.instance)
        cheapest = np.where(efforts > 0, efforts, np.inf).argmin(axis=1)
        further = (efforts > 0) & movable(schema, originals, rows.cells)
        further[np.arange(len(cheapest)), cheapest] = False
        row, column = np.nonzero(further)
        each, undone = np.arange(len(row)), cheapest[row]
        cells, original = rows.cells[row], originals[row]
        far = efforts[row, undone] * schema.metric.widths[column]
        goes = cells[each, column] + np.sign(cells - original)[each, column] * far
        cells[each, column] = schema.lattice.of(column).snap(goes)
        cells[each, undone] = original[each, undone]
        tried = take_rows(rows, row)._replace(cells=schema.derive(cells, original))
        return self.settled(take_rows(tried, self.oracle.accepts(*tried)))

    def with_one_fixed(self, starts: Starts, ways: InstanceRows) -> InstanceRows:
        """Returns starts with one feature fixed, for instances with fewer than `n_best` ways.

        Each feature that a way changes is fixed in turn, in the same starts.
        """
        problem, originals = self.problem, self.problem.instances.cells
        few = np.flatnonzero(np.bincount(ways.instance) < problem.search.n_best)
        ways = take_rows(ways, np.isin(ways.instance, few))
        way, fixed = np.nonzero(problem.schema.changed(originals[ways.instance], ways.cells))
        pairs = np.unique(np.c_[ways.instance[way], ways.margin[way], fixed], axis=0)
        pair, start = matches(pairs[:, 0], starts.instance)
        able = starts.margin[start] | (pairs[pair, 1] == 0)
        pair, start = pair[able], start[able]
        instance, fixed, cells = pairs[pair, 0], pairs[pair, 2], starts.steps.cells[start]
        cells[np.arange(len(pair)), fixed] = originals[instance, fixed]
        cells = problem.schema.derive(cells, originals[instance])
        order = np.lexsort((problem.efforts(cells, instance), pair))
        order = order[places_in_groups(pair[order]) < TRIED]
        pair = pair[order]
        tried = InstanceRows(cells[order], instance[order], pairs[pair, 1] > 0)
        accepted = self.oracle.accepts(*tried)
        tried, pair = take_rows(tried, accepted), pair[accepted]
        return take_rows(tried, places_in_groups(pair) < FIXED)

    def made(self, make: Make, rows: InstanceRows) -> InstanceRows:
        """Returns rows after `undo`, `pull`, `settle` or `rounded`."""
        problem = self.problem
        if problem.schema.shape is not None or not len(rows.instance):
            return rows  # pixels are not undone one by one: that leaves noise, not an image
        cells = make(
            rows.cells,
            problem.instances.cells[rows.instance],
            lambda tried, of: self.oracle.accepts(tried, rows.instance[of], rows.margin[of]),
            problem.schema,
            problem.weights,
        )
        return rows._replace(cells=cells)

    def least_effort(self, rows: InstanceRows) -> InstanceRows:
        """Returns the row of least effort of each instance."""
        effort = self.problem.efforts(rows.cells, rows.instance)
        return take_rows(rows, first_of_each(rows.instance, effort))

    def different(self, rows: InstanceRows, count: int | None = None) -> InstanceRows:
        """Returns the cheapest different ways of each instance: `n_best` at most, or `count`.

        Rows that have to keep a margin, and those that have not, are chosen apart. Among ways
        within a twentieth of the cheapest, the one with fewer changes comes first, then the one
        that changes columns further to the left. Two ways are different if neither changes all the
        features that the other changes, or if they differ in a category.
        """
        schema, instance = self.problem.schema, rows.instance
        changed = schema.changed(self.problem.instances.cells[instance], rows.cells)
        price = self.price(rows.cells, instance)
        # Fewest changes, then the columns furthest to the left.
        order = np.lexsort((price, *(~changed).T[::-1], changed.sum(axis=1)))
        tie, group = np.empty(len(order), dtype=np.int64), 2 * instance + rows.margin
        tie[order] = np.arange(len(order))
        rest, chosen = np.arange(len(group)), [np.arange(0)]
        for _ in range(count or self.problem.search.n_best):
            least = np.full(group.max(initial=-1) + 1, np.inf)
            np.minimum.at(least, group[rest], price[rest])
            near = rest[price[rest] <= ALIKE * least[group[rest]] + 1e-12]
            first = near[first_of_each(group[near], tie[near])]
            chosen.append(first)
            theirs = first[np.searchsorted(group[first], group[rest])]
            a, b = changed[rest], changed[theirs]
            apart = (a & ~b).any(axis=1) & (b & ~a).any(axis=1)
            levels = schema.changed(rows.cells[rest], rows.cells[theirs])
            rest = rest[apart | levels[:, schema.coding.categorical].any(axis=1)]
        every = np.concatenate(chosen)
        return take_rows(rows, every[np.argsort(group[every], kind="stable")])

    def price(self, cells: Floats, instance: Ints, predicted: Ints | None = None) -> Floats:
        """Returns the efforts of rows, half as much again below the floor of density."""
        problem, label = self.problem, self.problem.instances.target_code[instance]
        if (label < 0).any():  # any other label: the one that the classifier gives
            if predicted is None:
                known = np.ones(len(label), dtype=bool)
                predicted = self.oracle.query(cells, known, instance).predicted
            label = problem.instances.label_reached(predicted, instance)
        density = problem.fitted.decoder.density(problem.schema, cells, label)
        efforts = problem.efforts(cells, instance)
        return efforts * np.where(density < UNUSUAL, UNUSUAL_PRICE, 1.0)

    def with_best_step(self, instance: Ints, paths: Paths) -> InstanceRows:
        """Returns the likeliest step of the paths for instances that have no ok row."""
        path = np.flatnonzero(np.isin(paths["instance"], instance))
        originals = self.problem.instances.cells[paths["instance"][path]][:, None]
        differs = self.problem.schema.changed(originals, paths["cells"][path]).any(axis=2)
        row, step = np.nonzero(differs)
        path = path[row]
        owner, likely = paths["instance"][path], np.nan_to_num(paths["probability"][path, step])
        chosen = first_of_each(owner, ~paths["feasible"][path, step], -likely)
        return InstanceRows.of(paths["cells"][path[chosen], step[chosen]], owner[chosen])

    def evaluated(self, picks: Sequence[InstanceRows], paths: Paths) -> list[MinimalRows]:
        """Checks and queries the rows of picks once more, and says what is known of them."""
        picks = [take_rows(rows, np.argsort(rows.instance, kind="stable")) for rows in picks]
        cells, instance, _ = join_rows(picks)
        steps = self.oracle.query(cells, self.problem.feasible(cells, instance), instance)
        density = self.oracle.density(steps, instance)
        rank = np.concatenate([places_in_groups(rows.instance) for rows in picks])
        prototype = _closest_prototypes(self.problem, cells, instance, paths)
        words = np.array([["", "unusual"], ["edge", "edge, unusual"]], dtype=object)
        edge = ~self.oracle.has_margin(steps, instance)
        mark = words[edge.astype(np.int64), (density < UNUSUAL).astype(np.int64)]
        every = MinimalRows(instance, rank, prototype, steps, density, mark)
        ends = np.cumsum([0, *(len(rows.instance) for rows in picks)])
        return [take_rows(every, np.arange(*pair)) for pair in pairwise(ends)]


def _closest_prototypes(problem: Problem, cells: Floats, instance: Ints, paths: Paths) -> Ints:
    """Returns the prototype of the path whose `first` is closest to each row; -1 for none."""
    prototype = np.full(len(instance), -1, dtype=np.int64)
    row, path = matches(instance, paths["instance"])
    firsts = paths["cells"][path, paths["first"][path]]
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

    Each round asks about the next step, where most rows end, and about a third of what is left.

    Args:
        limit: The furthest each row may go; below 1 it stays.
        tried: Returns rows, given by position, that have gone so far.
        accept: Whether rows are acceptable.
    """
    far, most = np.zeros_like(limit), np.maximum(limit, 0)  # it can go so far; at most so far
    shares = np.array([0.0, STRIDE])
    while len(undecided := np.flatnonzero(most > far)):
        width = (most - far)[undecided, None]
        size = np.maximum(np.ceil(width * shares - 1e-9), 1).astype(np.int64)
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
    costliest number that can go back alone by a twentieth, as far as it goes.
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
        on = chosen[~whole[chosen]]  # these numbers may go back further
        again, places = rows[row[on]], column[on]
        cells[again] = _pulled(again, places, cells, originals, accept, schema)
        rows = rows[row[chosen]]
    return cells


def _steps(schema: Schema) -> Floats:
    """Returns the resolution of each column."""
    return np.array([feature.step for feature in schema.features], dtype=np.float64)


def _costs(cells: Floats, originals: Floats, schema: Schema, weights: Floats) -> Floats:
    """Returns the cost of each change; 0 where a column is unchanged: (rows, columns)."""
    cost = np.maximum(schema.change_efforts(originals, cells, weights), 1e-12)
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
    return schema.same_where_unchanged(tried, originals)


# ------------------------------------------------------------------------------------------------
# Rounded numbers


def rounded(
    cells: Floats, originals: Floats, accept: Accept, schema: Schema, weights: Floats
) -> Floats:
    """Rounds changed numbers away from the instance's, as coarsely as rows stay acceptable.

    The steps are 1, 2 and 5 times powers of ten, from a hundredth of the column's usual range down.
    The arguments are those of `undo`.
    """
    cells, table = cells.copy(), np.array([_round_steps(f) for f in schema.features])
    costs = _costs(cells, originals, schema, weights)
    place, count = _places(np.where(movable(schema, originals, cells), costs, 0.0))
    for turn in range(count.max(initial=0)):
        rows = np.flatnonzero(count > turn)
        columns = (place[rows] == turn).argmax(axis=1)
        which, step = np.nonzero(~np.isnan(table[columns]))
        row, column, step = rows[which], columns[which], table[columns[which], step]
        here = cells[row, column]
        up, multiple = here > originals[row, column], here / step
        multiple = np.where(up, np.ceil(multiple - 1e-9), np.floor(multiple + 1e-9))
        scale = 10.0 ** np.maximum(np.ceil(-np.log10(step) - 1e-9), 0.0)
        wanted = np.rint(multiple * step * scale) / scale  # 17 * 0.1 is not 1.7
        values = schema.lattice.of(column).snap(wanted)
        inside = np.flatnonzero(np.isclose(values, wanted, rtol=1e-9, atol=0.0))
        row, column, values, step = row[inside], column[inside], values[inside], step[inside]
        tried = _replaced(schema, cells[row], originals[row], column, values)
        accepted = np.flatnonzero(accept(tried, row))
        chosen = accepted[first_of_each(row[accepted], -step[accepted])]
        cells[row[chosen]] = tried[chosen]
    return cells


def _round_steps(feature: Feature) -> Floats:
    """Returns the steps a number is rounded to, (ROUND_STEPS,); NaN where there are fewer."""
    steps = np.full(ROUND_STEPS, np.nan)
    largest = ROUND_SHARE * (feature.usual or feature.span)
    if feature.kind != "continuous" or feature.is_date or not largest > feature.resolution:
        return steps
    power = np.floor(np.log10(largest)) - np.arange(ROUND_STEPS)
    series = np.multiply.outer(10.0**power, [5.0, 2.0, 1.0]).ravel()
    series = series[series <= largest * (1 + 1e-9)][:ROUND_STEPS]
    coarser = series > feature.resolution * (1 + 1e-9)
    whole = series / (feature.resolution or series)
    steps[: len(series)] = np.where(coarser & np.isclose(whole, np.rint(whole)), series, np.nan)
    return steps
