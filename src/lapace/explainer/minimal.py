"""Makes rows minimal: undoes changes and pulls numbers back while a row stays acceptable.

`minimise` is greedy. It puts back every change that can be put back alone, the costliest first,
until none can; then it pulls each number that is still changed back by bisection, costliest first.
`settle` repeats that until the row is *minimal*: no change in it can be undone alone, and no number
can go back alone by a twentieth of its change (or one step of its resolution, if that is more),
with the row staying acceptable. Both work on all rows together: each round asks one question of
every row that is not done yet, in one call of `accept`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from lapace.arrays import Bools, Floats, Ints, first_of_each
from lapace.schema import Schema

__all__ = ["Accept", "minimise", "settle"]

PART = 1 / 20  # of a number's change: what cannot go back alone in a minimal row

# Rows, and which of the starting rows each comes from → whether each is acceptable.
Accept: TypeAlias = Callable[[Floats, Ints], Bools]


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
    left = np.arange(len(cells))
    while len(left):
        left = rows.take_back_one(left)
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
        # A derived column follows the others, so it is never pulled back itself.
        self.numbers = np.array([f.numeric and f.derived is None for f in schema.features])
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

    def minimise(self, rows: Ints) -> None:
        """Undoes changes of some rows, then pulls their numbers back."""
        self.begin_undoing(rows)
        self.ask(rows)

    def begin_undoing(self, rows: Ints) -> None:
        """From now on the changes of some rows are undone, costliest first."""
        self._begin(rows, self.costs(rows))
        self.pulling[rows] = False

    def begin_pulling(self, rows: Ints) -> None:
        """From now on the changed numbers of some rows are pulled back, costliest first."""
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
        self.begin_undoing(ended[again])
        self.begin_pulling(ended[~again])
        undoing, values = rows[~self.pulling[rows]], np.empty(len(self.cells))
        values[undoing] = self.originals[undoing, self.order[undoing, self.turn[undoing]]]
        queried, left = [undoing], rows[self.pulling[rows] & (self.turn[rows] < self.count[rows])]
        while len(left):
            tried, moves = self.halfway(left)
            values[left[moves]] = tried[moves]
            queried.append(left[moves])
            left = left[~moves]  # as far back as it goes: the next number
            self.turn[left] += 1
            left = left[self.turn[left] < self.count[left]]
            self._begin_number(left)
        rows = np.sort(np.concatenate(queried))
        return rows, values[rows]

    def halfway(self, rows: Ints) -> tuple[Floats, Bools]:
        """Values half-way from the kept one to the refused one, and whether they are worth a try.

        They are not where what is left to gain is a twentieth of the change, or one step.
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
        """Numbers before and after: nothing missing, no level without a place: (rows, columns)."""
        known = ~np.isnan(self.originals[rows]) & ~np.isnan(self.cells[rows])
        movable: Bools = self.numbers & known & ~self.schema.unseen(self.originals[rows])
        return movable

    def moved(
        self, column: Ints, value: Floats, towards: Floats, part: float
    ) -> tuple[Floats, Bools]:
        """Values moved part of the way, on their lattice, and whether they differ from both."""
        steps = self.steps[column]
        apart = np.nan_to_num(towards - value)
        moved = value + np.sign(apart) * np.maximum(np.abs(apart) * part, steps * 0.999)
        for one in np.unique(column):
            mine = column == one
            moved[mine] = self.schema.features[one].snap(moved[mine])
        return moved, (np.abs(moved - value) > steps / 2) & (np.abs(moved - towards) > steps / 2)

    def replaced(self, rows: Ints, column: Ints, values: Floats) -> Floats:
        """Rows with one cell of each replaced, derived columns following."""
        tried = self.cells[rows]
        tried[np.arange(len(rows)), column] = values
        return self.schema.derive(tried, self.originals[rows])
