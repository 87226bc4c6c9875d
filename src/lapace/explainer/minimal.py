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

# Rows and the starting row each comes from → the rows as checked, and whether each is acceptable.
Accept: TypeAlias = Callable[[Floats, Ints], tuple[Floats, Bools]]


def minimise(
    cells: Floats, originals: Floats, accept: Accept, schema: Schema, weights: Floats
) -> Floats:
    """Minimal rows, starting from acceptable ones.

    Args:
        cells: Acceptable rows.
        originals: The instance of each.
        accept: Whether rows are acceptable.
        schema: The columns.
        weights: One per column, for distances.
    """
    rows = _Rows(cells.copy(), originals, accept, schema, weights)
    rows.undo_groups()
    open_ = np.arange(len(cells))
    while len(open_):
        rows.move_back(open_)
        open_ = rows.undo_one(open_)
    return rows.cells


@dataclass
class _Rows:
    """Rows on their way to being minimal."""

    cells: Floats
    originals: Floats
    accept: Accept
    schema: Schema
    weights: Floats

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

    def undo_groups(self) -> None:
        """Undoes as many changes at once as possible, costliest first.

        All of the rest is tried first, then halves of it; the change at which a half fails stays,
        and the search goes on behind it. That takes about log2(changes) rounds for each change
        that stays.
        """
        every = np.arange(len(self.cells))
        costs = self.costs(every)
        rank = np.argsort(np.argsort(-costs, axis=1, kind="stable"), axis=1)
        count = (costs > 0).sum(axis=1)
        begin, ok, bad = np.zeros_like(count), np.zeros_like(count), count.copy()
        whole = np.zeros(len(every), dtype=bool)  # whether all of the rest is tried next
        while len(open_ := np.flatnonzero(begin < count)):
            stays = open_[(bad[open_] - ok[open_] <= 1) & ~whole[open_]]
            begin[stays] = ok[stays] + 1
            ok[stays], bad[stays], whole[stays] = begin[stays], count[stays], True
            open_ = open_[begin[open_] < count[open_]]
            if not len(open_):
                break
            until = np.where(whole[open_], count[open_], (ok[open_] + bad[open_]) // 2)
            group = (rank[open_] >= ok[open_, None]) & (rank[open_] < until[:, None])
            rows = np.where(group, self.originals[open_], self.cells[open_])
            found, accepted = self.accept(rows, open_)
            self.cells[open_[accepted]] = found[accepted]
            ok[open_[accepted]] = until[accepted]
            bad[open_[~accepted]] = until[~accepted]
            whole[open_] = False

    # -- numbers ----------------------------------------------------------------------------------

    def move_back(self, at: Ints) -> None:
        """Moves numbers of some rows back as far as they go, one after another, costliest first."""
        costs = np.where(self.numbers & self._placed(at), self.costs(at), 0.0)
        order = np.argsort(-costs, axis=1, kind="stable")
        for k in range(int((costs > 0).sum(axis=1).max(initial=0))):
            column = order[:, k]
            has = costs[np.arange(len(at)), column] > 0
            self._bisect(at[has], column[has])

    def _placed(self, at: Ints) -> Bools:
        """Cells that are numbers before and after: nothing missing, no level without a place."""
        known = ~np.isnan(self.originals[at]) & ~np.isnan(self.cells[at])
        placed: Bools = known & ~self.schema.unseen(self.originals[at])
        return placed

    def _bisect(self, at: Ints, column: Ints) -> None:
        """Moves one number of each row back, to within a twentieth of what is left."""
        after, before = self.cells[at, column], self.originals[at, column]
        ok, bad = np.zeros(len(at)), np.ones(len(at))  # parts of the way back
        part, open_ = np.full(len(at), PART), np.arange(len(at))
        while len(open_):
            values, moves = self._moved(column[open_], after[open_], before[open_], part[open_])
            # What is tried lies strictly between the part known to be accepted and the other.
            reached = np.abs(values - after[open_]) / np.abs(before[open_] - after[open_])
            moves &= (reached > ok[open_]) & (reached < bad[open_])
            open_, values, reached = open_[moves], values[moves], reached[moves]
            if not len(open_):
                break
            accepted = self._try(at[open_], column[open_], values)
            ok[open_[accepted]] = reached[accepted]
            bad[open_[~accepted]] = reached[~accepted]
            narrow = bad[open_] - ok[open_] <= (1.0 - ok[open_]) * PART
            open_ = open_[~narrow & (ok[open_] > 0)]
            part[open_] = (ok[open_] + bad[open_]) / 2

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

    def _try(self, at: Ints, column: Ints, values: Floats) -> Bools:
        """Writes values where the rows stay acceptable."""
        rows = self.cells[at]
        rows[np.arange(len(at)), column] = values
        found, accepted = self.accept(rows, at)
        self.cells[at[accepted]] = found[accepted]
        return accepted

    # -- one change at a time ---------------------------------------------------------------------

    def undo_one(self, at: Ints) -> Ints:
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
        rows = self.cells[at[row]]
        rows[np.arange(len(row)), column] = values
        found, accepted = self.accept(rows, at[row])
        undone = np.arange(len(row)) < len(back)
        ok = np.flatnonzero(accepted)
        chosen = ok[first_of_each(row[ok], ~undone[ok], -costs[row, column][ok])]
        self.cells[at[row[chosen]]] = found[chosen]
        return at[row[chosen]]
