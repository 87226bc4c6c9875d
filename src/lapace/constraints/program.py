"""The nearest feasible row, or a proof that there is none: a mixed-integer linear program.

Everything in the language but `Custom` is written as a small program and solved by HiGHS. A number
on a lattice is its start plus whole steps up minus whole steps down, and the objective is the
change over range (`Schema.range_distance`), which is linear; percentiles would not be. A
column of categories is one binary for each category that may be proposed; an original value outside
the schema, or missing, is one more option. Each leaf of a clause has a binary that switches its
rows on. A relation between numbers on lattices is divided by the greatest common divisor of its
steps and its right side rounded down, so that neither strictness nor the solver's tolerance
matters.

Without an instance its cells are variables too: the program then decides whether the constraints
can hold for any instance with values inside the schema.

A column derived by a linear expression is tied to its inputs by two inequalities, which allow for
rounding; or neither it nor an input changes, since the instance's own value stays then. Any other
derived column cannot be written as a linear program: constraints that name it are checked on the
final rows and take no part in proofs.

The search is bounded by branch-and-bound nodes, never by the clock, so that the same program always
has the same solution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor, gcd, inf, isnan, lcm
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
    any_of,
    negate,
)
from lapace.constraints.language import Changes, Custom
from lapace.schema import Schema
from lapace.schema.derived import Derivation

__all__ = ["Solution", "linked", "provable", "solve"]

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
    *,
    instance: Floats | None = None,
    start: Floats | None = None,
    weights: Floats | None = None,
) -> Solution:
    """Finds the feasible row nearest to `start`, by `Schema.range_distance` with `weights`.

    Args:
        schema: The columns.
        constraints: The constraints; those from Python are left out.
        instance: The instance's cells (d,); None for any instance.
        start: The cells to stay near (d,); None when any feasible row will do.
        weights: One for each column.
    """
    width = len(schema.features)
    originals = np.full(width, np.nan) if instance is None else instance
    program = _Program(
        schema,
        constraints,
        originals,
        start=originals if start is None else start,
        weights=np.full(width, float(start is not None)) if weights is None else weights,
        any_instance=instance is None,
    )
    program.build()
    return program.solve()


# ------------------------------------------------------------------------------------------------
# Derived columns


def provable(schema: Schema, constraints: Sequence[BoundConstraint]) -> list[BoundConstraint]:
    """Returns the constraints that a program can decide."""
    opaque: set[int] = set()  # columns that are not linear in columns that are not derived
    for derivation in schema.derived.each:  # each after those it follows from
        if derivation.form is None or not opaque.isdisjoint(derivation.inputs.tolist()):
            opaque.add(derivation.column)
    return [
        c
        for c in constraints
        if not isinstance(c.constraint, Custom) and opaque.isdisjoint(c.columns)
    ]


def linked(schema: Schema, constraints: Sequence[BoundConstraint]) -> list[BoundConstraint]:
    """Returns the provable constraints, with the links of the derived columns they name."""
    kept = provable(schema, constraints)
    named = {column for c in kept for column in c.columns}
    links = []
    for derivation in reversed(schema.derived.each):  # the links of its inputs come after it
        if derivation.column in named:
            links.append(_link(schema, derivation))
            named.update(derivation.inputs.tolist())
    return [*kept, *links]


def _link(schema: Schema, derivation: Derivation) -> BoundConstraint:
    """Ties a derived column to its inputs."""
    feature, form, column = derivation.feature, derivation.form, derivation.column
    assert form is not None
    weights = {schema.index(name): weight for name, weight in form.weights.items() if weight}
    # Rounding to the lattice moves what was computed by half a step at most, and a whole number
    # not at all where whole numbers are on it. A ceiling is less than 1 up, a floor than 1 down.
    whole = form.high > form.low and feature.resolution and (1 / feature.resolution) % 1 == 0
    half = 0.0 if whole else feature.resolution / 2
    above = {column: 1.0, **{c: -w for c, w in weights.items()}}
    below = {c: -w for c, w in above.items()}
    high, low = form.constant + form.high + half, form.constant + form.low - half
    follows: Formula = (
        (LinearRelation.of(schema, above, {}, -high, "<" if whole and form.high == 1 else "<="),),
        (LinearRelation.of(schema, below, {}, low, "<" if whole and form.low == -1 else "<="),),
    )
    inputs = derivation.inputs.tolist()
    stays: Formula = (
        *((Unchanged(c, exact=False),) for c in inputs),
        (Unchanged(column, exact=True),),
    )
    columns = tuple(sorted((*inputs, column)))
    return BoundConstraint(Changes(feature.name), any_of([follows, stays]), columns, ())


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


@lru_cache(maxsize=4096)
def _fraction(value: float) -> Fraction:
    """Reads a decimal number as written, 0.1 as one tenth."""
    return Fraction(repr(abs(value)))


def common_divisor(values: Iterable[float]) -> float:
    """Returns the greatest common divisor of numbers; 0 where it is too small to trust."""
    fractions = [_fraction(float(f"{v:.12g}")) for v in values if v]
    if not fractions:
        return 0.0
    denominator = lcm(*(f.denominator for f in fractions))
    divisor = Fraction(gcd(*(int(f * denominator) for f in fractions)), denominator)
    return float(divisor) if max(fractions) <= divisor * int(LARGEST) else 0.0


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
    any_instance: bool
    cost: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    integral: list[int] = field(default_factory=list)
    rows: list[tuple[dict[int, float], float, float]] = field(default_factory=list)
    cells: dict[int, NumberCell | CategoryCell] = field(default_factory=dict)
    # Without an instance: its cells as variables.
    instance_cells: dict[int, NumberCell | CategoryCell] = field(default_factory=dict)
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
        """Whether there is an instance and its cell is missing."""
        return not self.any_instance and isnan(self.instance[column])

    # -- cells ------------------------------------------------------------------------------------

    def cell(self, column: int, weight: float) -> NumberCell | CategoryCell:
        """Adds the variables of one cell, of the row or, without an instance, of the instance."""
        if self.schema.features[column].kind == "continuous":
            return self.number(column, weight)
        return self.category(column, weight)

    def number(self, column: int, weight: float) -> NumberCell:
        feature = self.schema.features[column]
        low, high = feature.lower, feature.upper
        original, start = float(self.instance[column]), float(self.start[column])
        if feature.derived is not None:  # it may be as far out as the instance's own
            low, high = float(np.fmin(low, original)), float(np.fmax(high, original))
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
        if not self.any_instance and original not in codes:  # unseen, or missing
            codes.append(original)
        cells, target = np.full((2, len(codes), len(self.schema.features)), np.nan)
        cells[:, column], target[:, column] = codes, self.start[column]
        gaps = self.schema.metric.range_gaps(cells, target)[:, column] * weight
        options = {
            _slot(code, levels): self.binary(cost=float(gap))
            for code, gap in zip(codes, gaps, strict=True)
        }
        self.row(dict.fromkeys(options.values(), 1.0), 1.0, 1.0)
        if not self.any_instance:
            self.kept[column] = options[_slot(original, levels)]
        return CategoryCell(options, levels)

    def instance_cell(self, column: int) -> NumberCell | CategoryCell:
        if column not in self.instance_cells:
            self.instance_cells[column] = self.cell(column, 0.0)
        return self.instance_cells[column]

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
                self.add_table(leaf, guard)
            case Unchanged():
                self.add_unchanged(leaf, guard)
            case ChangeCount():
                self.add_count(leaf)

    def leaf_switches(self, leaf: Leaf) -> list[int]:
        """Returns binaries of which one can be 1 only where the leaf holds."""
        if isinstance(leaf, LevelTable) and not self.any_instance:
            return self.allowed(leaf, self.original_slot(leaf))  # binaries already
        if leaf not in self.switches:
            self.switches[leaf] = [self.binary()]
            self.add_leaf(leaf, self.switches[leaf][0])
        return self.switches[leaf]

    def at_least_one(self, variables: Iterable[int], *conditions: int | None) -> None:
        """Requires one of some binaries to be 1 where all conditions (None: none) are."""
        terms = dict.fromkeys(variables, 1.0)
        guards = [condition for condition in conditions if condition is not None]
        for guard in guards:
            terms[guard] = terms.get(guard, 0.0) - 1.0
        self.row(terms, 1.0 - len(guards), np.inf)

    def add_table(self, table: LevelTable, guard: int | None) -> None:
        if not self.any_instance or not table.mentions_original:
            self.at_least_one(self.allowed(table, self.original_slot(table)), guard)
            return
        instance = self.instance_cell(table.column)
        assert isinstance(instance, CategoryCell)
        for slot, original in instance.options.items():
            self.at_least_one(self.allowed(table, slot), original, guard)

    def allowed(self, table: LevelTable, original: int) -> list[int]:
        """Returns the options that a table leaves to an instance of a level."""
        cell = self.cells[table.column]
        assert isinstance(cell, CategoryCell)
        return [var for slot, var in cell.options.items() if table.truths[original, slot] >= 0]

    def original_slot(self, table: LevelTable) -> int:
        """Returns the slot of the instance's level; any, without an instance."""
        return 0 if self.any_instance else _slot(self.instance[table.column], table.levels)

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
            if self.any_instance:
                parts.append((weight, self.instance_cell(column).number(values.get(column))))
            else:
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

    def add_unchanged(self, formula: Unchanged, guard: int | None) -> None:
        column, negated = formula.column, formula.negated
        if formula.exact and column in self.kept:
            binary = self.kept[column]
            if negated:
                others = [] if guard is None else [guard]
                self.row(dict.fromkeys([binary, *others], 1.0), -np.inf, len(others))
            else:
                self.at_least_one([binary], guard)
            return
        binary = self.changed_binary(column) if negated else self.unchanged_binary(column)
        self.at_least_one([binary], guard)
        if formula.exact and not negated:
            self.add_relation(self.difference(column, 0.0, "=="), guard)

    # Whether a cell has changed is needed in several places. Each column has one binary for yes and
    # one for no, so that logic alone settles what depends on both: the switches in front of rows
    # over long ranges leak a little, as the solver takes 0.999999 for 1.

    def unchanged_binary(self, column: int) -> int:
        """Returns a binary that can be 1 only where a cell is the instance's."""
        if column not in self.unchanged:
            cell = self.cells[column]
            if column in self.kept and (isinstance(cell, CategoryCell) or cell.missing):
                binary = self.kept[column]
            else:
                binary = self.binary()
                self.add(self.change(column, changed=False), binary)
            self.unchanged[column] = binary
        return self.unchanged[column]

    def changed_binary(self, column: int) -> int:
        """Returns a binary that can be 1 only where a cell differs from the instance's."""
        if column not in self.changed:
            self.changed[column] = binary = self.binary()
            if not self.is_missing(column) or isinstance(self.cells[column], CategoryCell):
                self.add(self.change(column, changed=True), binary)
            self.row({binary: 1.0, self.unchanged_binary(column): 1.0}, -np.inf, 1.0)
        return self.changed[column]

    def change(self, column: int, *, changed: bool) -> Formula:
        """Returns: a cell differs from the instance's at the column's resolution, or does not."""
        cell, half = self.cells[column], self.schema.features[column].resolution / 2
        if isinstance(cell, CategoryCell):
            truths = np.full((cell.levels + 1,) * 2, 1 if changed else -1, np.int8)
            np.fill_diagonal(truths, -1 if changed else 1)
            return ((LevelTable(column, truths, ordered=False),),)
        within = tuple((self.difference(column, half, "<=", s),) for s in (1.0, -1.0))
        if changed:
            return negate(within)
        # A column without a resolution changes by a step, or not at all.
        return within if half else ((self.difference(column, 0.0, "=="),),)

    def difference(
        self, column: int, by: float, relation: str, sign: float = 1.0
    ) -> LinearRelation:
        """Returns ±(cell − original) − by, compared with zero."""
        weights = {column: sign}, {column: -sign}
        return LinearRelation.of(self.schema, *weights, -by, relation)

    def add_count(self, count: ChangeCount) -> None:
        columns = [column for column in self.cells if self.schema.counted[column]]
        if count.most < len(columns):
            binaries = map(self.unchanged_binary, columns)
            self.row(dict.fromkeys(binaries, 1.0), len(columns) - count.most, np.inf)
        if count.least:
            binaries = map(self.changed_binary, columns)
            self.row(dict.fromkeys(binaries, 1.0), count.least, np.inf)

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
