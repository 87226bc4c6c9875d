"""The least effort by which a logistic model on standardised numbers says otherwise.

The log-odds are a sum over the columns, and so is the effort. So the exact optimum is a knapsack:
of each column at most one value, each with a gain in log-odds and an effort, such that the gains
reach zero log-odds at the least effort in all. `python -m benchmarks.advice optimum` compares
`nearest` with it, and with near real rows made minimal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

import lapace.schema.distance
from lapace.arrays import Floats, Ints
from lapace.schema import Schema

__all__ = ["Linear"]

GRID, MENU = 5000, 60  # values of a column that are looked at, and that a knapsack chooses among
PASSES = 3  # each with values of a narrower part
NEAR, HALVINGS = 5, 16  # real rows made minimal, and how finely a number is pulled back
SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Linear:
    """Finds the least effort by which a logistic model on standardised numbers says otherwise.

    The effort is the installed library's: the change of each coordinate, and its charge for a
    change where it has one.
    """

    model: Any  # a pipeline of a scaler and a logistic model
    schema: Schema
    train: Floats  # the training rows as cells
    charge: float = float(getattr(lapace.schema.distance, "CHARGE", 0.0))

    @cached_property
    def weights(self) -> tuple[Floats, float]:
        """The log-odds as weights of the numbers themselves, and an intercept."""
        scaler, last = self.model[-2], self.model[-1]
        weights = last.coef_[0] / scaler.scale_
        return weights, float(last.intercept_[0] - weights @ scaler.mean_)

    @cached_property
    def values(self) -> list[tuple[Floats, Floats]]:
        """The values that each column may take, and their coordinates."""
        found = []
        for i, f in enumerate(self.schema.features):
            fine = np.linspace(f.lower, f.upper, GRID)
            points = np.unique(f.snap(np.concatenate([fine, self.train[:, i]])))
            rows = np.tile(self.train[:1], (len(points), 1))
            rows[:, i] = points
            found.append((points, self.schema.metric.coordinates(rows)[:, i]))
        return found

    def efforts(self, x: Floats, rows: Floats) -> Floats:
        """Returns the effort of each column from an instance to rows: (n, columns)."""
        places = self.schema.metric.coordinates(np.concatenate([x[None], rows]))
        apart = np.abs(places[1:] - places[:1]) + self.charge
        return np.asarray(apart * self.schema.changed(x[None], rows))

    def menus(self, x: Floats, sign: float) -> list[tuple[Floats, Floats]]:
        """Returns for each column gains in log-odds and their efforts, both rising."""
        weights, found = self.weights[0], []
        here = self.schema.metric.coordinates(x[None])[0]
        for i, (points, places) in enumerate(self.values):
            gain = sign * weights[i] * (points - x[i])
            moved = (gain > 0) & (np.abs(points - x[i]) > self.schema.features[i].step / 2)
            gain, cost = gain[moved], np.abs(places[moved] - here[i]) + self.charge
            order = np.lexsort((-gain, cost))
            gain, cost = gain[order], cost[order]
            most = np.maximum.accumulate(np.concatenate([[0.0], gain[:-1]]))
            found.append((gain[gain > most], cost[gain > most]))
        return found

    def optimum(self, x: Floats, sign: float) -> float:
        """Returns the least effort: a knapsack with at most one value of each column.

        It is solved with few values of each column, then again with as many of those that the
        solution before leaves worth choosing.
        """
        need = float(-sign * (self.weights[0] @ x + self.weights[1]) + SLACK)
        menus, best = self.menus(x, sign), np.inf
        for _ in range(PASSES):
            some = []
            for _, cost in menus:
                kept = np.flatnonzero(cost <= best)
                even = np.linspace(0, len(kept) - 1, min(MENU, len(kept)))
                some.append(kept[even.astype(int)])
            best = min(best, self._knapsack(menus, some, need))
        return best

    def _knapsack(self, menus: list[tuple[Floats, Floats]], some: list[Ints], need: float) -> float:
        """Returns the least effort with some values of each column, one of them then refined."""
        gain = np.concatenate([g[index] for index, (g, _) in zip(some, menus, strict=True)])
        cost = np.concatenate([c[index] for index, (_, c) in zip(some, menus, strict=True)])
        column = np.repeat(np.arange(len(menus)), list(map(len, some)))
        one = (column == np.arange(len(menus))[:, None]).astype(float)
        found = milp(
            cost,
            constraints=[LinearConstraint(one, ub=1), LinearConstraint(gain[None], lb=need)],
            integrality=np.ones_like(cost),
            bounds=Bounds(0, 1),
            options={"time_limit": 20, "mip_rel_gap": 1e-4},
        )
        if found.x is None:
            return float("inf")
        chosen = np.flatnonzero(found.x > 0.5)
        spare, saved = gain[chosen].sum() - need, 0.0
        for k in chosen.tolist():  # one column may go back by what is spare
            gains, costs = menus[column[k]]
            enough = gains >= gain[k] - spare
            saved = max(saved, cost[k] - costs[enough].min()) if enough.any() else saved
        return float(cost[chosen].sum() - saved)

    def reached(self, row: Floats, sign: float) -> bool:
        """Tells whether the model gives a row the target."""
        return bool(sign * (self.weights[0] @ row + self.weights[1]) > SLACK)

    def real(self, x: Floats, sign: float, rows: Floats) -> float:
        """Returns the least effort of the nearest real rows, each made minimal."""
        near = rows[np.argsort(self.efforts(x, rows).sum(axis=1))[:NEAR]]
        return min(float(self.efforts(x, self.minimal(x, row, sign)[None]).sum()) for row in near)

    def minimal(self, x: Floats, row: Floats, sign: float) -> Floats:
        """Returns a row with changes undone, the costliest first, and numbers pulled back."""
        order = np.argsort(-self.efforts(x, row[None])[0])
        for i in order:
            tried = row.copy()
            tried[i] = x[i]
            row = tried if self.reached(tried, sign) else row
        for i in order:
            low, high, far = 0.0, 1.0, row[i]
            for _ in range(HALVINGS if far != x[i] else 0):
                middle, tried = (low + high) / 2, row.copy()
                tried[i] = self.schema.features[i].snap(np.array([x[i] + middle * (far - x[i])]))[0]
                if self.reached(tried, sign):
                    row, high = tried, middle
                else:
                    low = middle
        return row
