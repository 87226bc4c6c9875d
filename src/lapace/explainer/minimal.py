"""Makes rows minimal: undoes changes and pulls numbers back while a row stays acceptable.

`minimise` is greedy. It puts back the costliest change that can be put back alone, round by round,
until none can; then it pulls each changed number back by bisection, costliest first. `settle` goes
on until the row is *minimal*: no change in it can be undone alone, and no number can go back alone
by a twentieth of its change (or one step of its resolution, if that is more), with the row staying
acceptable. Both work on all rows together: each round is one call of `accept` for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
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
    rows = _Rows(cells.copy(), originals, accept, schema, weights)
    left = np.arange(len(cells))
    while len(left):
        left = rows.undo_in_turn(left)
    rows.pull_back_in_turn(np.arange(len(cells)))
    return rows.cells


def settle(
    cells: Floats, originals: Floats, accept: Accept, schema: Schema, weights: Floats
) -> Floats:
    """Takes back single changes until every row is minimal; the arguments are `minimise`'s."""
    rows = _Rows(cells.copy(), originals, accept, schema, weights)
    left = np.arange(len(cells))
    while len(left):
        left = rows.take_back_one(left)
    return rows.cells


@dataclass
class _Rows:
    """Rows on their way to being minimal; methods take positions of rows and change `cells`."""

    cells: Floats
    originals: Floats
    accept: Accept
    schema: Schema
    weights: Floats

    @cached_property
    def numbers(self) -> Bools:
        """Columns whose values can go back part of the way."""
        return np.array([f.numeric and f.derived is None for f in self.schema.features])

    @cached_property
    def steps(self) -> Floats:
        return np.array([feature.step for feature in self.schema.features], dtype=np.float64)

    def costs(self, rows: Ints) -> Floats:
        """Cost of each change of some rows; 0 where a column is unchanged: (rows, columns)."""
        original, cells = self.originals[rows], self.cells[rows]
        cost = np.maximum(self.schema.gaps(original, cells) * self.weights, 1e-12)
        return np.where(self.schema.changed(original, cells), cost, 0.0)

    def undo_in_turn(self, rows: Ints) -> Ints:
        """Tries to undo every change of some rows, one after the other, costliest first.

        Returns:
            The rows in which a change was undone and another was not: it may be possible now.
        """
        costs = self.costs(rows)
        order, count = np.argsort(-costs, axis=1, kind="stable"), (costs > 0).sum(axis=1)
        undone = np.zeros(len(rows), dtype=np.int64)
        for turn in range(count.max(initial=0)):
            some = np.flatnonzero(count > turn)
            column = order[some, turn]
            accepted = self.replace(rows[some], column, self.originals[rows[some], column])
            undone[some] += accepted
        return rows[(undone > 0) & (undone < count)]

    def pull_back_in_turn(self, rows: Ints) -> None:
        """Pulls every changed number of some rows back, one after the other, costliest first."""
        costs = np.where(self.movable(rows), self.costs(rows), 0.0)
        order, count = np.argsort(-costs, axis=1, kind="stable"), (costs > 0).sum(axis=1)
        for turn in range(count.max(initial=0)):
            some = np.flatnonzero(count > turn)
            self.pull_back(rows[some], order[some, turn])

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
        numbers = chosen[~whole[chosen]]
        self.pull_back(rows[row[numbers]], column[numbers])
        return rows[row[chosen]]

    def pull_back(self, rows: Ints, column: Ints) -> None:
        """Moves one number of each row towards the instance's value, by bisection.

        The search ends where what is left to gain is a twentieth of the change, or one step.
        """
        original = self.originals[rows, column]
        refused, kept = original.copy(), self.cells[rows, column]
        left = np.arange(len(rows))
        while len(left):
            apart = np.abs(kept - refused)[left]
            enough = np.maximum(np.abs(kept - original)[left] * PART, self.steps[column[left]])
            left = left[apart > enough * 1.001]
            values, moves = self.moved(column[left], kept[left], refused[left], 0.5)
            left, values = left[moves], values[moves]
            accepted = self.replace(rows[left], column[left], values)
            kept[left[accepted]], refused[left[~accepted]] = values[accepted], values[~accepted]

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

    def replace(self, rows: Ints, column: Ints, values: Floats) -> Bools:
        """Replaces one cell of each row where the row stays acceptable; says where it did."""
        if not len(rows):
            return np.zeros(0, dtype=bool)
        tried = self.replaced(rows, column, values)
        accepted = self.accept(tried, rows)
        self.cells[rows[accepted]] = tried[accepted]
        return accepted

    def replaced(self, rows: Ints, column: Ints, values: Floats) -> Floats:
        """Rows with one cell of each replaced, derived columns following."""
        tried = self.cells[rows]
        tried[np.arange(len(rows)), column] = values
        return self.schema.derive(tried, self.originals[rows])
