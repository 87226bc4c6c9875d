"""The nearest feasible row, or a proof that there is none: a mixed-integer linear program.

Constraints are written as a small program and solved by HiGHS. A number on a lattice is its start
plus whole steps up minus whole steps down, and the objective is the change over range
(`Schema.by_range`), which is linear; percentiles would not be. A column of categories is one
binary for each category that may be proposed; an original value outside the schema, or missing, is
one more option. Each leaf of a clause has a binary that switches its rows on. A relation between
numbers on lattices is divided by the greatest common divisor of its steps and its right side
rounded down, so that neither strictness nor the solver's tolerance matters.

Constraints that name a derived column take no part in programs and proofs: `repair` moves the
columns that it follows from, and the check on the final rows decides.

The search is bounded by branch-and-bound nodes, never by the clock, so that the same program always
has the same solution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, inf, isnan
from typing import Any, Literal, NamedTuple

import numpy as np

from lapace.arrays import Floats
from lapace.budget import current, spend
from lapace.constraints.formulas import (
    BoundConstraint,
    ChangeCount,
    Clause,
    Formula,
    Leaf,
    LevelTable,
    LinearRelation,
    Unchanged,
    negate,
)
from lapace.schema import Schema

__all__ = ["Solution", "provable", "solve"]

NODE_LIMIT = 1000  # of one program; almost all are solved at their root
STRICT = 1e-4  # of a step: the gap of `<` where steps have no common divisor
LARGEST = 1e9  # coefficients beyond this are not trusted to be whole
# A column without a lattice is counted in thousandths of its range, and where it must differ it
# does so by ten times the least difference that counts: the solver's tolerance stays well below.
SHARES, WIDER = 1000, 10


class Solution(NamedTuple):
    """The result of a program.

    Attributes:
        status: `solved`, `infeasible` (proved) or `unsolved` (the node limit was reached, or the
            solver's result could not be used).
        cells: The nearest row, (d,), where it is solved.
    """

    status: Literal["solved", "infeasible", "unsolved"]
    cells: Floats | None = None


def solve(
    schema: Schema,
    constraints: Sequence[BoundConstraint],
    instance: Floats,
    start: Floats | None = None,
    weights: Floats | None = None,
) -> Solution:
    """Finds the feasible row nearest to `start`, by `Schema.by_range` with `weights`.

    Args:
        schema: The columns.
        constraints: The constraints; all of them `provable`.
        instance: The instance's cells (d,).
        start: The cells to stay near (d,); None when any feasible row will do.
        weights: One for each column.
    """
    if start is None:
        start, weights = instance, np.zeros(len(instance))
    elif weights is None:
        weights = np.ones(len(instance))
    asked = [c for c in constraints if c.applies(schema, instance[None])[0]]
    program = _Program(schema, asked, instance, start, weights)
    program.build()
    return program.solve()


def provable(schema: Schema, constraints: Sequence[BoundConstraint]) -> list[BoundConstraint]:
    """Returns the constraints that a program can decide: those that name no derived column."""
    return [c for c in constraints if schema.counted[list(c.columns)].all()]


# ------------------------------------------------------------------------------------------------
# Cells as expressions over variables


@dataclass
class NumberCell:
    """A number as an affine expression over variables."""

    terms: dict[int, float]
    constant: float
    low: float
    high: float
    step: float  # its values lie on constant + step * whole numbers; 0 for none
    missing: tuple[int, ...] = ()  # binaries: it is missing where one of them is 1

    def number(self, values: Floats | None) -> NumberCell:  # noqa: ARG002 (as of a category)
        """Returns the number itself."""
        return self


@dataclass
class CategoryCell:
    """A category as one binary for each slot of its column that can be chosen."""

    options: dict[int, int]
    levels: int

    def number(self, values: Floats | None) -> NumberCell:
        """Returns the number of the chosen level."""
        assert values is not None
        known = {slot: var for slot, var in self.options.items() if slot < len(values)}
        terms = {var: float(values[s]) for s, var in known.items() if not isnan(values[s])}
        missing = tuple(var for var in self.options.values() if var not in terms)
        numbers = [*terms.values(), *([0.0] if missing or not terms else [])]
        step = common_divisor(numbers) or 1.0
        return NumberCell(terms, 0.0, min(numbers), max(numbers), step, missing)


def _slot(code: float, levels: int) -> int:
    """Returns the slot of a code in a `LevelTable` of so many levels."""
    return int(code) if code < levels else levels  # NaN is not less


def common_divisor(values: Iterable[float]) -> float:
    """Returns the greatest common divisor of decimals; 0 where it is less than a billionth."""
    billionths = np.abs([value for value in values if value]) * 1e9
    whole = np.rint(billionths)
    if not len(whole) or (np.abs(billionths - whole) > 0.05).any() or whole.max() > 1e15:
        return 0.0
    divisor = int(np.gcd.reduce(whole.astype(np.int64))) / 1e9
    return divisor if whole.max() <= divisor * 1e9 * LARGEST else 0.0


# ------------------------------------------------------------------------------------------------
# The program


@dataclass
class _Program:
    """Variables and rows of a program under construction."""

    schema: Schema
    constraints: Sequence[BoundConstraint]
    instance: Floats
    start: Floats
    weights: Floats
    cost: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    integral: list[int] = field(default_factory=list)
    rows: list[tuple[dict[int, float], float, float]] = field(default_factory=list)
    cells: dict[int, NumberCell | CategoryCell] = field(default_factory=dict)
    # Binaries by column. Kept: the original value, as an option of a category, or of a number that
    # could not be proposed.
    kept: dict[int, int] = field(default_factory=dict)
    unchanged: dict[int, int] = field(default_factory=dict)
    changed: dict[int, int] = field(default_factory=dict)
    switches: dict[Leaf, list[int]] = field(default_factory=dict)

    def variable(self, high: float, *, integral: bool = True, cost: float = 0.0) -> int:
        """Adds a variable from 0 to a bound."""
        self.high.append(high)
        self.integral.append(int(integral))
        self.cost.append(cost)
        return len(self.cost) - 1

    def binary(self, cost: float = 0.0) -> int:
        return self.variable(1.0, cost=cost)

    def row(self, terms: dict[int, float], low: float, high: float) -> None:
        self.rows.append((terms, low, high))

    def build(self) -> None:
        named = {column for constraint in self.constraints for column in constraint.columns}
        if any(c.change_count for c in self.constraints):
            named.update(np.flatnonzero(self.schema.counted).tolist())
        for column in sorted(named):
            self.cells[column] = self.cell(column, float(self.weights[column]))
        for column in {column for c in self.constraints for column in c.compared}:
            if self.is_missing(column):  # it cannot be compared, so it stays missing
                self.at_least_one([self.kept[column]])
        for constraint in self.constraints:
            self.add(constraint.formula)

    def is_missing(self, column: int) -> bool:
        """Whether the instance's cell is missing."""
        return isnan(self.instance[column])

    # -- cells ------------------------------------------------------------------------------------

    def cell(self, column: int, weight: float) -> NumberCell | CategoryCell:
        """Adds the variables of one cell of the row."""
        if self.schema.features[column].kind == "continuous":
            return self.number(column, weight)
        return self.category(column, weight)

    def number(self, column: int, weight: float) -> NumberCell:
        feature = self.schema.features[column]
        low, high = feature.lower, feature.upper
        original, start = float(self.instance[column]), float(self.start[column])
        blank = isnan(start)
        unit = feature.resolution or feature.span / SHARES
        middle = low + round((high - low) / 2 / unit) * unit
        base = float(feature.snap(np.array(middle if blank else start)))
        # A missing cell costs 1 to fill in, whatever the value: prefer the middle, by very little.
        cost = weight * unit / feature.span * (1e-3 if blank else 1.0)
        rooms = [(high - base) / unit, (base - low) / unit]
        integral = bool(feature.resolution)
        if integral:
            rooms = [float(round(room)) for room in rooms]
        up, down = (self.variable(room, integral=integral, cost=cost) for room in rooms)
        number = NumberCell({up: unit, down: -unit}, base, low, high, feature.resolution)
        nearest = float(feature.snap(np.array(original)))
        if self.is_missing(column):
            self.kept[column] = self.binary(cost=-weight if blank else weight)
            number.missing = (self.kept[column],)
        elif abs(nearest - original) > 1e-6 * feature.step:  # out of bounds, or off the lattice
            moved = 0.0 if blank else abs(original - start)
            price = -abs(base - original) if start == original else moved
            self.kept[column] = kept = self.binary(cost=weight * price / feature.span)
            for variable, room in zip((up, down), rooms, strict=True):
                self.row({variable: 1.0, kept: room}, -np.inf, room)
            number.terms[kept] = original - base
            number.low, number.high = min(low, original), max(high, original)
            number.step = 0.0
        return number

    def category(self, column: int, weight: float) -> CategoryCell:
        feature = self.schema.features[column]
        levels, original = len(feature.levels), float(self.instance[column])
        codes = [float(code) for code in range(len(feature.categories))]
        if original not in codes:  # unseen, or missing
            codes.append(original)
        cells, target = np.full((2, len(codes), len(self.schema.features)), np.nan)
        cells[:, column], target[:, column] = codes, self.start[column]
        gaps = self.schema.metric.range_gaps(cells, target)[:, column] * weight
        options = {
            _slot(code, levels): self.binary(cost=float(gap))
            for code, gap in zip(codes, gaps, strict=True)
        }
        self.row(dict.fromkeys(options.values(), 1.0), 1.0, 1.0)
        self.kept[column] = options[_slot(original, levels)]
        return CategoryCell(options, levels)

    # -- constraints ------------------------------------------------------------------------------

    def add(self, formula: Formula, guard: int | None = None) -> None:
        """Adds the rows of a formula; with a guard they apply where that binary is 1."""
        for clause in formula:
            if len(clause) == 1:
                self.add_leaf(clause[0], guard)
            else:
                self.add_clause(clause, guard)

    def add_clause(self, clause: Clause, guard: int | None) -> None:
        """Adds the rows of a clause: one of the binaries that switch its leaves on is 1."""
        switches = [switch for leaf in clause for switch in self.leaf_switches(leaf)]
        self.at_least_one(switches, guard)

    def add_leaf(self, leaf: Leaf, guard: int | None) -> None:
        match leaf:
            case LinearRelation():
                self.add_relation(leaf, guard)
            case LevelTable():
                self.at_least_one(self.allowed(leaf), guard)
            case Unchanged():
                self.add_unchanged(leaf, guard)
            case ChangeCount():
                self.add_count(leaf)

    def leaf_switches(self, leaf: Leaf) -> list[int]:
        """Returns binaries of which one can be 1 only where the leaf holds."""
        if isinstance(leaf, LevelTable):
            return self.allowed(leaf)  # binaries already
        if leaf not in self.switches:
            self.switches[leaf] = [self.binary()]
            self.add_leaf(leaf, self.switches[leaf][0])
        return self.switches[leaf]

    def at_least_one(self, variables: Iterable[int], guard: int | None = None) -> None:
        """Requires one of some binaries to be 1 where the guard is."""
        terms = dict.fromkeys(variables, 1.0)
        if guard is not None:
            terms[guard] = terms.get(guard, 0.0) - 1.0
        self.row(terms, 1.0 if guard is None else 0.0, np.inf)

    def allowed(self, table: LevelTable) -> list[int]:
        """Returns the options that a table leaves to the instance."""
        cell, original = self.cells[table.column], self.instance[table.column]
        assert isinstance(cell, CategoryCell)
        truths = table.truths[_slot(original, table.levels)]
        return [variable for slot, variable in cell.options.items() if truths[slot] >= 0]

    def add_relation(self, relation: LinearRelation, guard: int | None) -> None:
        if relation.relation == "!=":
            self.add_clause(relation.split(), guard)
            return
        if relation.relation == "==":
            for side in relation.split():
                self.add_relation(side, guard)
            return
        constant, values = relation.constant, relation.level_values
        parts = [(w, self.cells[c].number(values.get(c))) for c, w in relation.cells.items()]
        for column, weight in relation.originals.items():
            constant += weight * float(relation.number(column, self.instance[[column]])[0])
        if not isnan(constant):  # compared with a missing value, nothing is demanded
            self.add_inequality(parts, constant, relation, guard)

    def add_inequality(
        self,
        parts: list[tuple[float, NumberCell]],
        constant: float,
        relation: LinearRelation,
        guard: int | None,
    ) -> None:
        """Adds Σ weight·number + constant <= 0 (or < 0), where no number is missing."""
        terms: dict[int, float] = {}
        for weight, number in parts:
            constant += weight * number.constant
            for variable, factor in number.terms.items():
                terms[variable] = terms.get(variable, 0.0) + weight * factor
        terms, most, scale = self.scaled(terms, parts, constant, relation)
        reach = sum(max(w * n.low, w * n.high) - w * n.constant for w, n in parts) / scale
        big_m = reach + 1e-6 * max(1.0, abs(reach)) - most
        if big_m <= 0:
            return  # it cannot be violated
        for variable in {missing for _, number in parts for missing in number.missing}:
            terms[variable] = terms.get(variable, 0.0) - big_m
        if guard is not None:
            terms[guard] = terms.get(guard, 0.0) + big_m
            most += big_m
        self.row(terms, -np.inf, most)

    def scaled(
        self,
        terms: dict[int, float],
        parts: list[tuple[float, NumberCell]],
        constant: float,
        relation: LinearRelation,
    ) -> tuple[dict[int, float], float, float]:
        """Returns terms over a scale the solver can tell apart, their upper bound, the scale."""
        strict = relation.relation == "<"
        on_lattice = all(number.step for _, number in parts)
        scale = common_divisor([w * n.step for w, n in parts]) if on_lattice else 0.0
        if scale and all(abs(t) <= LARGEST * scale for t in terms.values()):
            bar = -constant / scale
            slip = 1e-9 * max(1.0, abs(bar))
            most = float(ceil(bar - slip) - 1 if strict else floor(bar + slip))
            return {v: float(round(t / scale)) for v, t in terms.items()}, most, scale
        scale = relation.unit
        if relation.margin:  # no lattice: in shares of the range
            scale = max((abs(t) for t in terms.values()), default=1.0)
        gap = (WIDER * relation.margin / scale or STRICT) if strict else 0.0
        most = -constant / scale - gap
        return {v: t / scale for v, t in terms.items()}, most, scale

    def add_unchanged(self, leaf: Unchanged, guard: int | None) -> None:
        """Adds the rows of: a number is the instance's, or differs from it."""
        column, cell, kept = leaf.column, self.cells[leaf.column], self.kept.get(leaf.column)
        assert isinstance(cell, NumberCell)
        if kept is None or not (leaf.exact or cell.missing):
            of = self.changed_binary if leaf.negated else self.unchanged_binary
            self.at_least_one([of(column)], guard)
            if leaf.exact and not leaf.negated:
                self.add(negate((self.beyond(column),)), guard)
        elif leaf.negated:
            guards = [] if guard is None else [guard]
            self.row(dict.fromkeys([kept, *guards], 1.0), -np.inf, len(guards))
        else:
            self.at_least_one([kept], guard)

    def beyond(self, column: int) -> Clause:
        """Returns: a number differs from the instance's by more than half a step, either way."""
        half = self.schema.features[column].resolution / 2
        return tuple(
            LinearRelation.of(self.schema, {column: sign}, {column: -sign}, half, "<")
            for sign in (1.0, -1.0)
        )

    # Whether a cell has changed is needed in several places. Each column has one binary for yes and
    # one for no, so that logic alone settles what depends on both: the switches in front of rows
    # over long ranges leak a little, as the solver takes 0.999999 for 1.

    def unchanged_binary(self, column: int) -> int:
        """Returns a binary that can be 1 only where a cell is the instance's."""
        if column not in self.unchanged:
            cell = self.cells[column]
            if isinstance(cell, CategoryCell) or cell.missing:
                self.unchanged[column] = self.kept[column]
            else:
                self.unchanged[column] = self.binary()
                self.add(negate((self.beyond(column),)), self.unchanged[column])
        return self.unchanged[column]

    def changed_binary(self, column: int) -> int:
        """Returns a binary that can be 1 only where a number differs from the instance's."""
        if column not in self.changed:
            self.changed[column] = binary = self.binary()
            self.add((self.beyond(column),), binary)
            self.row({binary: 1.0, self.unchanged_binary(column): 1.0}, -np.inf, 1.0)
        return self.changed[column]

    def add_count(self, count: ChangeCount) -> None:
        columns = [column for column in self.cells if self.schema.counted[column]]
        if count.most < len(columns):
            binaries = map(self.unchanged_binary, columns)
            self.row(dict.fromkeys(binaries, 1.0), len(columns) - count.most, np.inf)

    # -- solving ----------------------------------------------------------------------------------

    def solve(self) -> Solution:
        for terms, low, high in self.rows:
            if low > high or (not terms and not low <= 0 <= high):
                return Solution("infeasible")
        if not self.cost:
            return Solution("solved", self.start)
        result = self.run(presolve=True)
        if result.x is None:
            # Presolve has been seen to call a feasible program infeasible: a proof needs both.
            result = self.run(presolve=False)
        if result.x is None:
            return Solution("infeasible" if result.status == 2 else "unsolved")
        return Solution("solved", self.read(np.asarray(result.x)))

    def run(self, *, presolve: bool) -> Any:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        entries = [(i, v, t) for i, (terms, _, _) in enumerate(self.rows) for v, t in terms.items()]
        places = np.array([(i, v) for i, v, _ in entries], dtype=np.int64).reshape(-1, 2)
        matrix = csr_array(
            (np.array([t for _, _, t in entries]), (places[:, 0], places[:, 1])),
            shape=(len(self.rows), len(self.cost)),
        )
        sides = np.array([(low, high) for _, low, high in self.rows]).reshape(-1, 2)
        rows = [LinearConstraint(matrix, sides[:, 0], sides[:, 1])] if self.rows else []
        limit, options = NODE_LIMIT, {"presolve": presolve, "mip_rel_gap": 1e-6}
        spend()
        if (budget := current()) is not None:  # by the clock only where the caller asked for it
            limit = int(min(limit, 1 + budget.nodes_left))
            options |= {"time_limit": budget.seconds_left} if budget.seconds < inf else {}
        result = milp(
            np.array(self.cost),
            integrality=np.array(self.integral),
            bounds=Bounds(0.0, np.array(self.high)),
            constraints=rows,
            options={**options, "node_limit": limit},
        )
        # HiGHS tells no count where it stops at the limit without a row: it visited them all.
        stopped = result.x is None and result.status != 2
        spend(nodes=limit if stopped else max(1, result.get("mip_node_count") or 0))
        return result

    def read(self, variables: Floats) -> Floats:
        """Reads a row of cells from the solver's variables."""
        row = self.start.copy()
        for column, cell in self.cells.items():
            if isinstance(cell, CategoryCell):
                slot = max((variables[var], slot) for slot, var in cell.options.items())[1]
                row[column] = slot if slot < cell.levels else self.instance[column]
            else:
                row[column] = self.read_number(column, cell, variables)
        return row

    def read_number(self, column: int, cell: NumberCell, variables: Floats) -> float:
        feature, original = self.schema.features[column], float(self.instance[column])
        if column in self.kept and variables[self.kept[column]] > 0.5:
            return original
        (up, unit), (down, _), *_ = cell.terms.items()
        moved = float(variables[up] - variables[down])
        if feature.resolution:
            moved = float(round(moved))
        if moved == 0 and not isnan(self.start[column]) and column not in self.kept:
            return float(self.start[column])
        value = float(feature.snap(np.array(cell.constant + unit * moved)))
        return original if abs(value - original) <= 1e-9 * feature.span else value
