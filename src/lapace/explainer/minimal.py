"""Makes rows minimal: undoes changes and moves numbers back while a row stays acceptable.

A row is minimal if no change in it can be undone alone, and no number can go back alone by a
twentieth of its change (or one step of its resolution, if that is more), with the row staying
acceptable. All rows are worked on together: each round is one call of `accept` for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from lapace.arrays import Bools, Floats, Ints, first_of_each
from lapace.schema import Schema

__all__ = ["Accept", "minimise"]

PART = 1 / 20  # of a number's change: what cannot go back alone in a minimal row
FEW = 6  # changes that are tried alone from the start; of more, groups are undone first
# Places tried at once where a number goes back further: few where rows cost a query, all where not.
BETWEEN, EVERY = np.arange(1, 6) / 6, np.arange(1, 20) / 20
GROUPS = np.array([1.0, 0.5, 0.25, 0.125])  # shares of the changes left that are undone together

# Rows and the starting row each comes from → the rows as checked, and whether each is acceptable.
Accept: TypeAlias = Callable[[Floats, Ints], tuple[Floats, Bools]]


def minimise(
    cells: Floats,
    originals: Floats,
    accept: Accept,
    schema: Schema,
    weights: Floats,
    *,
    free: bool = False,
) -> Floats:
    """Minimal rows, starting from acceptable ones.

    Args:
        cells: Acceptable rows.
        originals: The instance of each.
        accept: Whether rows are acceptable.
        schema: The columns.
        weights: One per column, for distances.
        free: Whether calls of `accept` cost more than the rows in them, as no classifier is asked.
    """
    between = EVERY if free else BETWEEN
    rows = _MinimalRows(cells.copy(), originals, accept, schema, weights, between)
    open_ = np.arange(len(cells))
    rows.undo_groups(open_[(rows.costs(open_) > 0).sum(axis=1) > FEW])
    while len(open_):
        open_ = rows.improve(open_)
    return rows.cells


@dataclass
class _MinimalRows:
    """Rows on their way to being minimal."""

    cells: Floats
    originals: Floats
    accept: Accept
    schema: Schema
    weights: Floats
    between: Floats

    def costs(self, at: Ints) -> Floats:
        """Cost of each change of some rows; 0 where a column is unchanged: (rows, columns)."""
        original, cells = self.originals[at], self.cells[at]
        cost = np.maximum(self.schema.gaps(original, cells) * self.weights, 1e-12)
        return np.where(self.schema.changed(original, cells), cost, 0.0)

    @cached_property
    def numbers(self) -> Bools:
        """Columns whose values can go back part of the way."""
        return np.array([feature.numeric for feature in self.schema.features])

    @cached_property
    def steps(self) -> Floats:
        return np.array([feature.step for feature in self.schema.features], dtype=np.float64)

    # -- groups of changes ------------------------------------------------------------------------

    def undo_groups(self, every: Ints) -> None:
        """Undoes as many changes of some rows at once as possible, costliest first.

        All of the rest is tried, and beside it a half, a quarter and an eighth; the search goes on
        between the longest that is accepted and the next, until one change is left there: it
        stays, and the search goes on behind it.
        """
        costs = self.costs(every)
        rank = np.argsort(np.argsort(-costs, axis=1, kind="stable"), axis=1)
        count = (costs > 0).sum(axis=1)
        ok, top = np.zeros_like(count), count.copy()  # how many are undone, and may still be
        while len(open_ := np.flatnonzero(ok < count)):
            stays = open_[ok[open_] == top[open_]]
            ok[stays], top[stays] = ok[stays] + 1, count[stays]
            open_ = open_[ok[open_] < count[open_]]
            lengths = np.ceil((top - ok)[open_, None] * GROUPS).astype(np.int64)
            new = np.c_[np.ones(len(open_), dtype=bool), lengths[:, 1:] < lengths[:, :-1]]
            row, which = np.nonzero(new)
            if not len(row):
                break
            at, begin = every[open_[row]], ok[open_[row]]
            end = begin + lengths[row, which]
            group = (rank[open_[row]] >= begin[:, None]) & (rank[open_[row]] < end[:, None])
            found, accepted = self.accept(np.where(group, self.originals[at], self.cells[at]), at)
            yes = np.flatnonzero(accepted)
            yes = yes[first_of_each(row[yes], -end[yes])]
            self.cells[at[yes]] = found[yes]
            ok[open_[row[yes]]] = end[yes]
            beyond = ~accepted & (end > ok[open_[row]])
            np.minimum.at(top, open_[row[beyond]], end[beyond] - 1)

    # -- one change at a time ---------------------------------------------------------------------

    def improve(self, at: Ints) -> Ints:
        """Undoes the costliest change that can be undone alone, or moves one number back alone.

        Returns:
            The rows in which either was possible; all others are minimal.
        """
        costs = self.costs(at)
        row, column = np.nonzero(costs)
        back = self.originals[at[row], column]
        partly = self.numbers[column] & self._placed(at)[row, column]
        values, moves = self._moved(
            column[partly], self.cells[at[row], column][partly], back[partly], np.array(PART)
        )
        places = np.flatnonzero(partly)[moves]
        row, column = np.concatenate([row, row[places]]), np.concatenate([column, column[places]])
        values = np.concatenate([back, values[moves]])
        found, accepted = self._with(at[row], column, values)
        undone = np.arange(len(row)) < len(back)
        ok = np.flatnonzero(accepted)
        chosen = ok[first_of_each(row[ok], ~undone[ok], -costs[row, column][ok])]
        lines, numbers = at[row[chosen]], chosen[~undone[chosen]]
        before = self.cells[at[row[numbers]], column[numbers]]
        self.cells[lines] = found[chosen]
        self._move_back(at[row[numbers]], column[numbers], before)
        return lines

    def _placed(self, at: Ints) -> Bools:
        """Cells that are numbers before and after: nothing missing, no level without a place."""
        known = ~np.isnan(self.originals[at]) & ~np.isnan(self.cells[at])
        placed: Bools = known & ~self.schema.unseen(self.originals[at])
        return placed

    def _move_back(self, at: Ints, column: Ints, after: Floats) -> None:
        """Moves one number of each row further back, to within a twentieth of what is left.

        Args:
            at: The rows, in which the number has gone back a little.
            column: The number of each.
            after: What it was before.
        """
        before = self.originals[at, column]
        way = np.abs(before - after)
        ok, bad = np.abs(self.cells[at, column] - after) / way, np.ones(len(at))  # parts of the way
        open_ = np.arange(len(at))
        while len(open_):
            owner = np.repeat(open_, len(self.between))
            part = (ok[open_, None] + (bad - ok)[open_, None] * self.between).ravel()
            values, moves = self._moved(column[owner], after[owner], before[owner], part)
            # What is tried lies strictly between the part known to be accepted and the other.
            reached = np.abs(values - after[owner]) / way[owner]
            moves &= (reached > ok[owner]) & (reached < bad[owner])
            owner, values, reached = owner[moves], values[moves], reached[moves]
            if not len(owner):
                break
            found, accepted = self._with(at[owner], column[owner], values)
            np.minimum.at(bad, owner[~accepted], reached[~accepted])
            below = np.flatnonzero(accepted & (reached < bad[owner]))
            best = below[first_of_each(owner[below], -reached[below])]
            self.cells[at[owner[best]]] = found[best]
            ok[owner[best]] = reached[best]
            open_ = np.unique(owner)
            open_ = open_[bad[open_] - ok[open_] > (1.0 - ok[open_]) * PART]

    def _moved(
        self, column: Ints, after: Floats, before: Floats, part: Floats
    ) -> tuple[Floats, Bools]:
        """Values moved part of the way back, and whether that differs from both ends."""
        step = np.sign(before - after) * np.maximum(
            np.abs(before - after) * part, self.steps[column] * 0.999
        )
        values = after + step
        for c in np.unique(column):
            mine = column == c
            values[mine] = self.schema.features[c].snap(values[mine])
        half = self.steps[column] / 2
        return values, (np.abs(values - after) > half) & (np.abs(values - before) > half)

    def _with(self, at: Ints, column: Ints, values: Floats) -> tuple[Floats, Bools]:
        """Rows with one cell replaced, as checked, and whether each is acceptable."""
        rows = self.cells[at]
        rows[np.arange(len(at)), column] = values
        return self.accept(rows, at)
