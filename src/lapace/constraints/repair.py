"""Vectorised repair: rows moved by closed-form steps until the constraints hold, if they do.

A domain is what a cell may be by the constraints on its column alone. Rows are moved into their
domains first; then a few rounds of small moves on the lattice satisfy relations, conditionals and
counts. Moves are priced by change over range (`Schema.by_range`), as in `program`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.constraints.formulas import (
    BoundConstraint,
    ChangeCount,
    Clause,
    ComparedRows,
    Leaf,
    LevelTable,
    LinearRelation,
    Unchanged,
    feasible,
    is_violated,
)
from lapace.schema import Schema
from lapace.schema.features import Lattice

__all__ = ["Domains", "Repair", "domains"]

ROUNDS = 6
CURVED_ROUNDS = 24  # where columns are derived: slopes of a product change with every move
CLOSE = 1e-9  # of a column's span: nearer than this is rounding


@dataclass(frozen=True)
class Domains:
    """The values each cell may take, by the constraints on its column alone.

    Attributes:
        lower: Least number that may be proposed, on the lattice, (n, d).
        upper: Greatest, (n, d); less than `lower` where there is none.
        pinned: Cells that must be the instance's, (n, d).
        unchanged: Cells that may be the instance's, (n, d).
        allowed: For columns of categories under a constraint: which levels may be, and in the last
            place whether a missing one may, (n, levels + 1).

    Examples:
        >>> from lapace.constraints import System
        >>> schema = Schema.infer([{"age": 20 + i % 50, "hours": i % 60} for i in range(300)])
        >>> instances = schema.cells([{"age": 30, "hours": 50}])
        >>> domains = System.of(["hours < original"], schema).domains(instances)
        >>> domains.lower.tolist(), domains.upper.tolist()
        ([[20.0, 0.0]], [[69.0, 49.0]])
    """

    lower: Floats
    upper: Floats
    pinned: Bools
    unchanged: Bools
    allowed: dict[int, Bools]


def domains(schema: Schema, constraints: Sequence[BoundConstraint], instances: Floats) -> Domains:
    """Returns each instance's domains."""
    shape = instances.shape
    least, greatest = np.full(shape, -np.inf), np.full(shape, np.inf)  # also beyond the schema
    pinned = np.zeros(shape, dtype=bool)
    allowed: dict[int, Bools] = {}
    rows = ComparedRows(schema, instances, instances)
    for constraint in constraints:
        for column in constraint.compared:
            pinned[:, column] |= np.isnan(instances[:, column])
        for clause in filter(_is_unary, constraint.formula):
            match clause[0]:
                case Unchanged(column):
                    pinned[:, column] = True
                case LinearRelation() as relation:
                    _narrow(relation, rows, least, greatest)
                case LevelTable(column) as table:
                    levels = table.allowed(rows)  # (n, levels + 1)
                    allowed[column] = allowed[column] & levels if column in allowed else levels
    lattice = schema.lattice
    lower = _multiples(lattice, np.maximum(least, lattice.lower), np.ceil)
    upper = _multiples(lattice, np.minimum(greatest, lattice.upper), np.floor)
    close = CLOSE * schema.metric.spans
    unchanged = (instances >= least - close) & (instances <= greatest + close)
    unchanged |= np.isnan(instances)
    for column, levels in allowed.items():
        slots, _ = rows.slots(column, levels.shape[1] - 1)
        unchanged[:, column] = levels[np.arange(len(levels)), slots]
        pinned[:, column] |= unchanged[:, column] & (levels.sum(axis=1) == 1)
    return Domains(lower, upper, pinned, unchanged, allowed)


def _is_unary(clause: Clause) -> bool:
    """Whether a domain can express a clause: a constraint on one column alone."""
    if len(clause) > 1:
        return False
    match clause[0]:
        case LevelTable():
            return True
        case Unchanged(_, exact, negated):
            return exact and not negated
        case LinearRelation(cells) as relation:
            single = len(cells) == 1 and not cells.keys() & relation.level_values
            return single and relation.relation != "!="
    return False


def _narrow(relation: LinearRelation, rows: ComparedRows, least: Floats, greatest: Floats) -> None:
    """Moves the ends of a domain by a relation over one number."""
    ((column, weight),) = relation.cells.items()
    bar = -replace(relation, cells={}).value(rows)[0] / weight
    if relation.relation == "<":
        step = rows.schema.features[column].resolution
        gap = relation.margin / abs(weight) or 1e-6 * step
        bar = bar - gap if weight > 0 else bar + gap
    known = ~np.isnan(bar)
    if relation.relation == "==" or weight > 0:
        greatest[known, column] = np.minimum(greatest[known, column], bar[known])
    if relation.relation == "==" or weight < 0:
        least[known, column] = np.maximum(least[known, column], bar[known])


def _multiples(lattice: Lattice, values: Floats, way: Callable[[Floats], Floats]) -> Floats:
    """Moves values onto a lattice by `np.ceil` or `np.floor`; they may lie outside its bounds."""
    slip = CLOSE if way is np.floor else -CLOSE
    with np.errstate(divide="ignore", invalid="ignore"):
        multiples = way(values / lattice.step + slip) * lattice.step
    # 0.1 * 3 is not 0.3: take the float that the decimal has.
    decimals = np.rint(multiples * lattice.scale) / lattice.scale + 0.0  # no -0.0
    return np.where(lattice.step > 0, decimals, values)


# ------------------------------------------------------------------------------------------------
# Repair


class Repair:
    """Rows being repaired by closed-form moves: methods move the rows at `index` in place."""

    def __init__(
        self,
        schema: Schema,
        constraints: Sequence[BoundConstraint],
        cells: Floats,
        instances: Floats,
        weights: Floats,
        movable: Bools | None = None,
    ) -> None:
        self.schema = schema
        self.constraints = constraints
        self.cells = cells.copy()  # (n, d)
        self.instances = instances  # (n, d)
        self.weights = weights
        self.derived = {derivation.column: derivation for derivation in schema.derived.each}
        self.domains = domains(schema, constraints, instances)
        for column in self.derived:  # it follows from others, whatever its domain
            self.domains.lower[:, column], self.domains.upper[:, column] = -np.inf, np.inf
            self.domains.pinned[:, column] = False
            self.domains.allowed.pop(column, None)
        self.free = ~self.domains.pinned & schema.counted  # cells that may move
        if movable is not None:
            self.free &= movable

    def repaired(self) -> tuple[Floats, Bools]:
        """Returns the rows after a few rounds of moves, and which of them are feasible."""
        todo = np.arange(len(self.cells))
        self.move_into_domains(todo)
        self.derive(todo)
        clauses = [clause for c in self.constraints for clause in c.formula]
        clauses.sort(key=lambda clause: isinstance(clause[0], ChangeCount))  # counts come last
        ok = feasible(self.constraints, self.compared(todo))
        todo = np.flatnonzero(~ok)
        for _ in range(CURVED_ROUNDS if self.derived else ROUNDS):
            if not len(todo):
                break
            before, free = self.cells[todo], self.free[todo]
            for clause in clauses:
                self.satisfy(clause, todo)
            ok[todo] = feasible(self.constraints, self.compared(todo))
            # A round that moves nothing and holds nothing new is the last that could.
            stuck = (free == self.free[todo]).all(axis=1)
            after = self.cells[todo]
            stuck &= ((before == after) | (np.isnan(before) & np.isnan(after))).all(axis=1)
            todo = todo[~ok[todo] & ~stuck]
        return self.cells, ok

    def compared(self, index: Ints) -> ComparedRows:
        """Returns rows beside their instances."""
        return ComparedRows(self.schema, self.cells[index], self.instances[index])

    def derive(self, index: Ints) -> None:
        """Computes the derived columns again."""
        self.cells[index] = self.schema.derive(self.cells[index], self.instances[index])

    def satisfy(self, clause: Clause, index: Ints) -> None:
        """Moves the rows that violate a clause."""
        index = index[is_violated(clause, self.compared(index))]
        if not len(index):
            return
        if len(clause) == 1:
            self.move(clause[0], index)
            self.derive(index)
        else:
            self.satisfy_cheapest(clause, index)

    def satisfy_cheapest(self, clause: Clause, index: Ints) -> None:
        """Satisfies each leaf by itself; each row keeps the cheapest move that will do."""
        before, best = self.cells[index], self.cells[index]
        least = np.full(len(index), np.inf)
        for leaf in clause:
            self.cells[index] = before
            self.move(leaf, index)
            self.derive(index)
            tried = self.cells[index]
            price = self.schema.metric.range_gaps(tried, before) @ self.weights
            price[is_violated(clause, self.compared(index))] = np.inf
            better = price < least
            best[better], least[better] = tried[better], price[better]
        self.cells[index] = best

    def move(self, leaf: Leaf, index: Ints) -> None:
        """Moves rows, all of which violate a leaf, to where it holds, if a closed form does."""
        match leaf:
            case LinearRelation():
                self.move_numbers(leaf, index)
            case LevelTable(column):
                self.move_level(column, index, leaf.allowed(self.compared(index)))
            case Unchanged(column, negated=False):
                self.revert(column, index)
            case Unchanged(column):
                step = LinearRelation.of(self.schema, {column: 1.0}, {column: -1.0}, 0.0, "!=")
                self.move_numbers(step, index)
            case ChangeCount():
                self.undo_cheapest(leaf, index)

    def revert(self, column: int, index: Ints) -> None:
        """Makes a cell the instance's again; a derived one through the columns it follows from."""
        if column in self.derived:
            index = self.move_sources(column, index)
        sources = self.derived[column].sources.tolist() if column in self.derived else [column]
        for source in sources:
            able = self.free[index, source] & self.domains.unchanged[index, source]
            self.cells[index[able], source] = self.instances[index[able], source]

    def move_sources(self, column: int, index: Ints) -> Ints:
        """Moves what a derived number follows from; returns the rows where it still differs."""
        if not self.schema.features[column].numeric:
            return index
        same = LinearRelation.of(self.schema, {column: 1.0}, {column: -1.0}, 0.0, "==")
        for _ in range(ROUNDS):
            if not len(index):
                break
            self.move_numbers(same, index)
            self.derive(index)
            index = index[is_violated((Unchanged(column, exact=True),), self.compared(index))]
        return index

    def move_numbers(self, relation: LinearRelation, index: Ints) -> None:
        """Moves numbers until a relation holds: first those that gain most for what they cost."""
        if relation.relation == "!=":
            self.satisfy_cheapest(relation.split(), index)
            return
        value, _ = relation.value(self.compared(index))
        weights = {c: w for c, w in relation.cells.items() if c not in relation.level_values}
        if self.derived.keys() & weights:
            weights = self.unfolded(weights, index)
        gains = np.abs(self.schema.metric.spans) / np.maximum(self.weights, 1e-9)
        sizes = {c: float(np.mean(np.abs(w))) for c, w in weights.items()}
        columns = sorted(weights, key=lambda c: -sizes[c] * gains[c])
        if relation.relation == "==":
            columns.sort(key=lambda c: -sizes[c] * self.schema.features[c].resolution)
        elif relation.relation == "<":
            value = value + (relation.margin or 1e-6 * relation.unit)
        for column in columns:
            value = self.shift(relation, column, weights[column], value, index)

    def unfolded(self, weights: Mapping[int, Any], index: Ints) -> dict[int, Any]:
        """Replaces derived columns in weights by the columns they follow from, row by row."""
        slopes = self.schema.derived.slopes(self.cells[index])
        unfolded = {c: w for c, w in weights.items() if c not in self.derived}
        for column in self.derived.keys() & weights:
            for source, slope in slopes.get(column, {}).items():
                unfolded[source] = unfolded.get(source, 0.0) + weights[column] * slope
        return unfolded

    def shift(
        self, relation: LinearRelation, column: int, weight: Any, value: Floats, index: Ints
    ) -> Floats:
        """Moves one column to bring the sum to zero as far as its domain goes; returns the rest."""
        cells, equal = self.cells[index, column], relation.relation == "=="
        lower, upper = self.domains.lower[index, column], self.domains.upper[index, column]
        lattice, original = self.schema.features[column].lattice, self.instances[index, column]
        weight = np.broadcast_to(weight, len(index))  # (n,)
        target = cells - np.divide(value, weight, out=np.zeros(len(index)), where=weight != 0)
        if equal:
            target = lattice.snap(target)
        else:
            low, high = (_multiples(lattice, target, way) for way in (np.floor, np.ceil))
            target = np.where(weight > 0, low, high)
        target = np.clip(target, lower, np.maximum(lower, upper))
        close = CLOSE * self.schema.metric.spans[column]
        target = np.where(np.abs(target - original) <= close, original, target)
        toward = equal | np.where(weight > 0, target < cells, target > cells) & (weight != 0)
        needed = np.abs(value) > 0 if equal else value > 0
        go = self.free[index, column] & needed & toward & (lower <= upper) & ~np.isnan(target)
        self.cells[index[go], column] = target[go]
        return np.where(go, value + weight * (target - cells), value)

    def undo_cheapest(self, count: ChangeCount, index: Ints) -> None:
        """Undoes the cheapest of too many changes, and holds the unchanged cells."""
        changed = self.compared(index).changed  # (n, d)
        surplus = changed.sum(axis=1) - count.most
        cells, instances = self.cells[index], self.instances[index]
        able = changed & self.domains.unchanged[index] & self.free[index]
        price = np.where(
            able, self.schema.metric.range_gaps(cells, instances) * self.weights, np.inf
        )
        rank = price.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
        back = (rank < surplus[:, None]) & able
        self.cells[index] = np.where(back, instances, cells)
        self.free[index] &= (changed & ~back) | (surplus <= 0)[:, None]

    def move_into_domains(self, index: Ints) -> None:
        """Moves every cell into its domain: the nearest number, the nearest or original level."""
        limits, instances = self.domains, self.instances[index]
        cells = np.where(limits.pinned[index], instances, self.cells[index])
        lower, upper = limits.lower[index], limits.upper[index]
        close = CLOSE * self.schema.metric.spans
        own = (cells == instances) & limits.unchanged[index]
        below, above = (cells < lower - close) & ~own, (cells > upper + close) & ~own
        some = lower <= upper  # else there is nothing to move to
        moved = np.where(below & some, lower, np.where(above & some, upper, cells))
        nearer = np.abs(instances - cells) <= np.abs(moved - cells)  # NaN is not
        nearer &= limits.unchanged[index]
        self.cells[index] = np.where((below | above) & nearer, instances, moved)
        for column, allowed in limits.allowed.items():
            self.move_level(column, index, allowed[index], free=True)

    def move_level(self, column: int, index: Ints, allowed: Bools, *, free: bool = False) -> None:
        """Makes a level that is not allowed the nearest that is; ties go to the original."""
        feature, levels = self.schema.features[column], allowed.shape[1] - 1
        if not free and column in self.domains.allowed:
            allowed = allowed & self.domains.allowed[column][index]
        originals, new = self.compared(index).slots(column, levels)
        movable = free | self.free[index, column]
        hit = np.flatnonzero(~allowed[np.arange(len(index)), new] & movable)
        index, allowed, original, new = index[hit], allowed[hit], originals[hit], new[hit]
        slots, each = np.arange(levels + 1), np.arange(len(hit))
        usable = allowed & (slots < len(feature.categories))
        usable[each, original] = allowed[each, original]
        price = np.ones(usable.shape)
        if feature.numeric:
            here = np.where(new < levels, new, original)
            price = np.abs(slots - here[:, None]).astype(float)
        price[each, original] -= 0.5
        price[~usable] = np.inf
        best, some = price.argmin(axis=1), usable.any(axis=1)
        # Only the instance's own level can be one unseen in training, or missing.
        values = np.where(best >= levels, self.instances[index, column], best.astype(float))
        self.cells[index[some], column] = values[some]
