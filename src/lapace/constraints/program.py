"""The nearest row that keeps every constraint, or the proof that there is none.

Everything in the language but `Custom` is written as a small mixed-integer program and handed to
HiGHS. A number on a lattice is its start plus whole steps up minus whole steps down, so the
distance is linear; a column of categories is one binary for each category that may be proposed; a
instance's own value outside the schema, or missing, is one more choice. `Some` gets a binary for
each part, which switches that part's rows on. A relation between numbers on lattices is divided by
the greatest common divisor of its steps and its bound rounded down, so that neither strictness nor
the solver's tolerance can be in doubt.

Without an instance the program has the instance as variables too: it asks whether anyone at all, with
values the schema knows, could be given an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, isnan
from typing import Any, Literal, NamedTuple

import numpy as np

from lapace.arrays import Floats
from lapace.constraints.binding import Bound
from lapace.constraints.nodes import (
    MISSING,
    UNSEEN,
    Count,
    Every,
    Line,
    Moved,
    Node,
    Opaque,
    Same,
    Some,
    Table,
    negate,
)
from lapace.constraints.variables import (
    LARGEST,
    Choice,
    Number,
    divisor,
    ends_of,
    is_odd,
    nearest_to,
    slot_of,
)
from lapace.schema import Feature, Schema

__all__ = ["Outcome", "solve"]


STRICT = 1e-4  # of a step: what `<` demands where steps have no common divisor
# A column without a lattice is counted in thousandths of its range, and where it must differ it
# does so by ten times the least difference that counts: the solver's tolerance stays well below.
SHARES, WIDER = 1000, 10


class Outcome(NamedTuple):
    """What a program came to.

    Attributes:
        status: `solved`, `infeasible` (proved) or `unsolved` (the time was up, or the solver's
            answer could not be used).
        cells: The nearest row, (d,), where it is solved.
        solution: The solver's variables, for `settled`.
    """

    status: Literal["solved", "infeasible", "unsolved"]
    cells: Floats | None
    solution: Floats | None = None


@dataclass
class Own:
    """A number of the instance's: a constant, or variables where it is nobody in particular."""

    value: float
    number: Number | None = None


def solve(
    schema: Schema,
    bounds: Sequence[Bound],
    *,
    instance: Floats | None = None,
    start: Floats | None = None,
    weights: Floats | None = None,
    limit: float = 1.0,
    settled: Floats | None = None,
) -> Outcome:
    """The feasible row nearest to `start`, by `Schema.distance` with `weights`.

    Args:
        schema: What the columns are.
        bounds: The constraints; those from Python are left aside.
        instance: The instance's cells (d,); None for anybody.
        start: The cells to stay near (d,); None when any row will do.
        weights: One for each column.
        limit: Seconds.
        settled: The variables of a first solution that did not pass the check, because the solver
            takes 0.999999 for 1. Its binaries are rounded and held, and inequalities without a
            common divisor moved in by a hair; infeasible is then no proof.
    """
    program = _Program(schema, bounds, instance, start, weights, settled is not None)
    program.build()
    if settled is not None:
        program.hold(settled)
    return program.solved(limit)


@dataclass
class _Program:
    """Variables and rows, as they are put down."""

    schema: Schema
    bounds: Sequence[Bound]
    instance: Floats | None
    start: Floats | None
    weights: Floats | None
    careful: bool
    cost: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    rows: list[tuple[dict[int, float], float, float]] = field(default_factory=list)
    cells: dict[int, Number | Choice] = field(default_factory=dict)
    own: dict[int, Number | Choice] = field(default_factory=dict)
    free: dict[int, int] = field(default_factory=dict)  # column -> binary: back to the own value
    odd: dict[int, int] = field(default_factory=dict)  # column -> binary: an own value off the map
    same: dict[int, int] = field(default_factory=dict)  # column -> binary: the instance's own
    differs: dict[int, int] = field(
        default_factory=dict
    )  # column -> binary: not the instance's own

    # -- variables --------------------------------------------------------------------------------

    def variable(self, low: float, high: float, *, whole: bool = True, cost: float = 0.0) -> int:
        self.low.append(low)
        self.high.append(high)
        self.whole.append(int(whole))
        self.cost.append(cost)
        return len(self.cost) - 1

    def binary(self, cost: float = 0.0) -> int:
        return self.variable(0.0, 1.0, cost=cost)

    def hold(self, solution: Floats) -> None:
        """Binaries rounded to what they were in a solution, and held there."""
        for variable, value in enumerate(solution):
            if self.whole[variable] and self.high[variable] <= 1:
                self.low[variable] = self.high[variable] = float(round(value))

    def row(self, terms: dict[int, float], low: float, high: float) -> None:
        self.rows.append((terms, low, high))

    def weight(self, column: int) -> float:
        """What a change of a column costs; nothing when any row will do."""
        if self.start is None:
            return 0.0
        return 1.0 if self.weights is None else float(self.weights[column])

    def build(self) -> None:
        counts = [b.node for b in self.bounds if isinstance(b.node, Count)]
        named = {column for bound in self.bounds for column in bound.columns}
        width = len(self.schema.features)
        columns = range(width) if any(count.least for count in counts) else sorted(named)
        for column in columns:
            self.cells[column] = self.cell(column)
        if any(count.most < width for count in counts):
            self.spare(set(range(width)) - set(columns))
        self.keep()
        for bound in self.bounds:
            self.emit(bound.node, None)

    def spare(self, columns: Iterable[int]) -> None:
        """Columns no constraint names: they stay where they are or go back to the instance's own."""
        if self.instance is None or self.start is None:
            return
        changed = self.schema.changed(self.start[None], self.instance[None])[0]
        gaps = self.schema.gaps(self.start[None], self.instance[None])[0]
        for column in columns:
            if changed[column]:
                self.free[column] = self.binary(cost=self.weight(column) * float(gaps[column]))

    def keep(self) -> None:
        """What is compared with a missing value of the instance's own stays missing."""
        if self.instance is None:
            return
        for column in {column for bound in self.bounds for column in bound.kept}:
            if isnan(self.instance[column]):
                absent = self.absent(column)
                if absent is not None:
                    self.low[absent] = 1.0

    def absent(self, column: int) -> int | None:
        """The binary that says a cell is missing, where it can be."""
        cell = self.cells[column]
        if isinstance(cell, Choice):
            return cell.options.get(cell.levels + MISSING)
        return cell.unknown[0] if cell.unknown else None

    def cell(self, column: int, *, own: bool = False) -> Number | Choice:
        """Variables for one cell of the row, or (`own`) of an instance who could be anyone."""
        feature = self.schema.features[column]
        weight = 0.0 if own else self.weight(column)
        instance = None if self.instance is None else float(self.instance[column])
        given = instance if self.start is None else float(self.start[column])
        if feature.kind == "continuous":
            return self.number(column, feature, instance, given, weight)
        return self.choice(column, feature, instance, given, weight)

    def number(
        self,
        column: int,
        feature: Feature,
        instance: float | None,
        given: float | None,
        cost: float,
    ) -> Number:
        low, high = ends_of(feature)
        missing = instance is not None and isnan(instance)
        gone = given is None or isnan(given)
        base = nearest_to(feature, (low + high) / 2 if given is None or gone else given, low, high)
        unit = feature.resolution or feature.span / SHARES
        # A missing cell costs 1 to fill in, whatever the value: prefer the middle, by a hair.
        each = cost * unit / feature.span * (1e-3 if gone else 1.0)
        whole = bool(feature.resolution)
        room_up, room_down = (high - base) / unit, (base - low) / unit
        if whole:
            room_up, room_down = float(round(room_up)), float(round(room_down))
        up = self.variable(0.0, max(room_up, 0.0), whole=whole, cost=each)
        down = self.variable(0.0, max(room_down, 0.0), whole=whole, cost=each)
        number = Number({up: unit, down: -unit}, base, low, high, feature.resolution)
        if missing:
            number.unknown = (self.binary(cost=-cost if gone else cost),)
        elif instance is not None and is_odd(feature, instance, low, high):
            near = instance if given is None or gone else given
            price = -abs(base - instance) if given == instance else abs(instance - near)
            odd = self.binary(cost=cost * price / feature.span)
            self.odd[column] = odd
            for move, room in ((up, room_up), (down, room_down)):
                self.row({move: 1.0, odd: max(room, 0.0)}, -np.inf, max(room, 0.0))
            number.terms[odd] = instance - base
            number.low, number.high = min(low, instance), max(high, instance)
            number.step = 0.0
        return number

    def choice(
        self,
        column: int,
        feature: Feature,
        instance: float | None,
        given: float | None,
        cost: float,
    ) -> Choice:
        levels = len(feature.levels)
        codes: list[float] = [float(code) for code in range(len(feature.categories))]
        if instance is not None and not isnan(instance) and instance not in codes:
            codes.append(instance)
        if instance is not None and isnan(instance):
            codes.append(instance)
        spots = np.full((len(codes), len(self.schema.features)), np.nan)
        spots[:, column] = codes
        target = np.full_like(spots, np.nan)
        target[:, column] = np.nan if given is None else given
        gaps = self.schema.gaps(spots, target)[:, column] * cost
        options = {
            slot_of(code, levels): self.binary(cost=float(gap))
            for code, gap in zip(codes, gaps, strict=True)
        }
        self.row(dict.fromkeys(options.values(), 1.0), 1.0, 1.0)
        return Choice(options, levels)

    # -- constraints ------------------------------------------------------------------------------

    def emit(self, node: Node, guard: int | None) -> None:
        """Puts down the rows of a node; with a guard they hold where that binary is 1."""
        match node:
            case Every(parts):
                for part in parts:
                    self.emit(part, guard)
            case Some(parts):
                self.emit_some(parts, guard)
            case Line():
                self.emit_line(node.positive(), guard)
            case Table():
                self.emit_table(node, guard)
            case Same():
                self.emit_same(node, guard)
            case Moved():
                self.emit_moved(node, guard)
            case Count():
                self.emit_count(node)
            case Opaque():
                pass

    def at_least_one(self, variables: Iterable[int], guard: int | None) -> None:
        terms = dict.fromkeys(variables, 1.0)
        if guard is None:
            self.row(terms, 1.0, np.inf)
        else:
            terms[guard] = terms.get(guard, 0.0) - 1.0
            self.row(terms, 0.0, np.inf)

    def emit_some(self, parts: tuple[Node, ...], guard: int | None) -> None:
        ways: list[int] = []
        for part in parts:
            if isinstance(part, Table) and self.instance is not None:
                ways += self.allowed(part)  # the choices are binaries already
            else:
                way = self.binary()
                self.emit(part, way)
                ways.append(way)
        self.at_least_one(ways, guard)

    def allowed(self, table: Table) -> list[int]:
        """The choices a table does not rule out for this instance."""
        assert self.instance is not None
        cell = self.cells[table.column]
        assert isinstance(cell, Choice)
        own = slot_of(float(self.instance[table.column]), table.levels)
        return [v for slot, v in cell.options.items() if table.truths[own, slot] >= 0]

    def emit_table(self, table: Table, guard: int | None) -> None:
        if self.instance is not None:
            self.at_least_one(self.allowed(table), guard)
            return
        cell = self.cells[table.column]
        assert isinstance(cell, Choice)
        rows = [dict.fromkeys(
            (v for slot, v in cell.options.items() if table.truths[own, slot] >= 0), 1.0
        ) for own in cell.options]  # fmt: skip
        if not table.personal:
            self.at_least_one(rows[0], guard)
            return
        instance = self.anybody(table.column)
        assert isinstance(instance, Choice)
        for terms, mine in zip(rows, instance.options.values(), strict=True):
            # Whoever has this level, and is under the guard, has one of the levels allowed.
            terms[mine] = terms.get(mine, 0.0) - 1.0
            if guard is not None:
                terms[guard] = terms.get(guard, 0.0) - 1.0
            self.row(terms, -1.0 if guard is not None else 0.0, np.inf)

    def anybody(self, column: int) -> Number | Choice:
        if column not in self.own:
            self.own[column] = self.cell(column, own=True)
        return self.own[column]

    def own_number(self, line: Line, column: int) -> Own:
        if self.instance is not None:
            return Own(float(line.worth(column, self.instance[[column]])[0]))
        return Own(0.0, _as_number(self.anybody(column), line, column))

    def emit_line(self, line: Line, guard: int | None) -> None:
        if line.relation == "!=":
            below = replace(line, relation="<")
            above = replace(line, relation="<=", negated=True).positive()
            self.emit_some((below, above), guard)
            return
        if line.relation == "==":
            for side in line.sides():
                self.emit_line(side, guard)
            return
        constant, parts = line.constant, []
        for column, weight in zip(line.columns, line.weights, strict=True):
            parts.append((weight, _as_number(self.cells[column], line, column)))
        for column, weight in zip(line.own, line.own_weights, strict=True):
            own = self.own_number(line, column)
            if own.number is not None:
                parts.append((weight, own.number))
            else:
                constant += weight * own.value
        if isnan(constant):
            return  # compared with something the instance does not have: nothing is demanded
        self.inequality(parts, constant, line, guard)

    def inequality(
        self,
        parts: list[tuple[float, Number]],
        constant: float,
        line: Line,
        guard: int | None,
    ) -> None:
        """Σ weight·number + constant <= 0 (or < 0), where nothing in it is missing."""
        terms: dict[int, float] = {}
        for weight, number in parts:
            constant += weight * number.constant
            for variable, factor in number.terms.items():
                terms[variable] = terms.get(variable, 0.0) + weight * factor
        strict = line.relation == "<"
        whole = divisor([w * n.step for w, n in parts]) if all(n.step for _, n in parts) else 0.0
        if whole and all(abs(t) <= LARGEST * whole for t in terms.values()):
            terms = {v: float(round(t / whole)) for v, t in terms.items()}
            bar = -constant / whole
            slip = 1e-9 * max(1.0, abs(bar))
            most = float(ceil(bar - slip) - 1 if strict else floor(bar + slip))
            scale = whole
        else:
            scale = line.unit
            if line.margin:  # no lattice: shares of the range are what the solver can tell apart
                scale = max((abs(t) for t in terms.values()), default=1.0)
            terms = {v: t / scale for v, t in terms.items()}
            gap = (WIDER * line.margin / scale or STRICT) if strict else 0.0
            closer = STRICT if self.careful else 0.0
            most = -constant / scale - gap - closer
        reach = sum(max(w * n.low, w * n.high) - w * n.constant for w, n in parts) / scale
        spare = reach + 1e-6 * max(1.0, abs(reach)) - most
        if spare <= 0:
            return  # it cannot be broken
        for variable in {u for _, number in parts for u in number.unknown}:
            terms[variable] = terms.get(variable, 0.0) - spare
        if guard is not None:
            terms[guard] = terms.get(guard, 0.0) + spare
            most += spare
        self.row(terms, -np.inf, most)

    def emit_same(self, node: Same, guard: int | None) -> None:
        column = node.column
        if column in self.odd:
            self.literal(self.odd[column], not node.negated, guard)
            return
        self.emit_moved(Moved(column, not node.negated), guard)
        if not node.negated and not self.is_missing(column):
            self.emit_line(_apart(self.schema, column, 0.0, "=="), guard)

    def emit_moved(self, node: Moved, guard: int | None) -> None:
        says = self.stays(node.column) if node.negated else self.moves(node.column)
        self.literal(says, True, guard)

    def literal(self, variable: int, wanted: bool, guard: int | None) -> None:
        """A binary is 1, or 0."""
        if wanted:
            self.at_least_one([variable], guard)
        elif guard is None:
            self.row({variable: 1.0}, 0.0, 0.0)
        else:
            self.row({variable: 1.0, guard: 1.0}, -np.inf, 1.0)

    def is_missing(self, column: int) -> bool:
        return self.instance is not None and isnan(self.instance[column])

    # Whether a cell differs from the instance's own is asked in several places. Each column has one
    # binary for yes and one for no, so that logic alone settles what depends on both: the switches
    # in front of rows over long ranges leak a little, as the solver takes 0.999999 for 1.

    def stays(self, column: int) -> int:
        """A binary that can be 1 only where a cell is the instance's own."""
        if column not in self.same:
            self.same[column] = self.literal_for(column, stays=True)
        return self.same[column]

    def moves(self, column: int) -> int:
        """A binary that can be 1 only where a cell differs from the instance's own."""
        if column not in self.differs:
            self.differs[column] = self.literal_for(column, stays=False)
            self.row({self.differs[column]: 1.0, self.stays(column): 1.0}, -np.inf, 1.0)
        return self.differs[column]

    def literal_for(self, column: int, *, stays: bool) -> int:
        cell = self.cells[column]
        if stays and self.is_missing(column):
            absent = self.absent(column)
            assert absent is not None
            return absent
        if stays and isinstance(cell, Choice) and self.instance is not None:
            return cell.options[slot_of(float(self.instance[column]), cell.levels)]
        binary = self.binary()
        if isinstance(cell, Choice):
            table = _differs(column, cell.levels)
            self.emit_table(replace(table, truths=-table.truths) if stays else table, binary)
        elif not self.is_missing(column):
            self.emit_apart(column, binary, stays=stays)
        return binary

    def emit_apart(self, column: int, guard: int, *, stays: bool) -> None:
        """A number within half a step of the instance's own, or not."""
        half = self.schema.features[column].resolution / 2
        ends = [_apart(self.schema, column, half, "<=", sign) for sign in (1.0, -1.0)]
        if not stays:
            self.emit_some(tuple(negate(end) for end in ends), guard)
        elif half:
            self.emit(Every(tuple(ends)), guard)
        else:  # a column without a resolution moves by a step, or not at all
            self.emit_line(_apart(self.schema, column, 0.0, "=="), guard)

    def emit_count(self, node: Count) -> None:
        width = len(self.schema.features)
        if node.most < width:
            stays = [*map(self.stays, self.cells), *self.free.values()]
            settled = width - len(stays)  # columns that are the instance's own anyway
            self.row(dict.fromkeys(stays, 1.0), width - node.most - settled, np.inf)
        if node.least:
            moves = [self.moves(column) for column in self.cells]
            self.row(dict.fromkeys(moves, 1.0), node.least, np.inf)

    # -- solving ----------------------------------------------------------------------------------

    def solved(self, limit: float) -> Outcome:
        if any(low > high for _, low, high in self.rows):
            return Outcome("infeasible", None)
        if any(not terms and not (low <= 0 <= high) for terms, low, high in self.rows):
            return Outcome("infeasible", None)
        if not self.cost:
            return Outcome("solved", self.start)
        result = self.run(limit, presolve=True)
        if result.status in (2, 4):
            # Presolve has been seen to call a feasible program infeasible: a proof needs both.
            result = self.run(limit, presolve=False)
        if result.status == 2:
            return Outcome("unsolved" if self.careful else "infeasible", None)
        if result.x is None:
            return Outcome("unsolved", None)
        if self.instance is None or self.start is None:
            return Outcome("solved", None)
        x = np.asarray(result.x)
        return Outcome("solved", self.read(x), x)

    def run(self, limit: float, *, presolve: bool) -> Any:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        entries = [(i, v, t) for i, (terms, _, _) in enumerate(self.rows) for v, t in terms.items()]
        places = np.array([(i, v) for i, v, _ in entries], dtype=np.int64).reshape(-1, 2)
        matrix = csr_array(
            (np.array([t for _, _, t in entries]), (places[:, 0], places[:, 1])),
            shape=(len(self.rows), len(self.cost)),
        )
        ends = np.array([(low, high) for _, low, high in self.rows]).reshape(-1, 2)
        rows = [LinearConstraint(matrix, ends[:, 0], ends[:, 1])] if self.rows else []
        return milp(
            np.array(self.cost),
            integrality=np.array(self.whole),
            bounds=Bounds(np.array(self.low), np.array(self.high)),
            constraints=rows,
            options={"time_limit": limit, "presolve": presolve, "mip_rel_gap": 1e-6},
        )

    def read(self, x: Floats) -> Floats:
        """The solver's variables as a row of cells."""
        assert self.instance is not None
        assert self.start is not None
        row = self.start.copy()
        for column, cell in self.cells.items():
            if isinstance(cell, Choice):
                slot = max((x[var], slot) for slot, var in cell.options.items())[1]
                own = slot - cell.levels in (UNSEEN, MISSING)
                row[column] = self.instance[column] if own else slot
            else:
                row[column] = self.read_number(column, cell, x)
        for column, back in self.free.items():
            if x[back] > 0.5:
                row[column] = self.instance[column]
        return row

    def read_number(self, column: int, cell: Number, x: Floats) -> float:
        assert self.instance is not None
        assert self.start is not None
        feature, own = self.schema.features[column], float(self.instance[column])
        if cell.unknown and x[cell.unknown[0]] > 0.5:
            return own
        if column in self.odd and x[self.odd[column]] > 0.5:
            return own
        (up, unit), (down, _), *_ = cell.terms.items()
        moved = float(x[up] - x[down])
        if feature.resolution:
            moved = float(round(moved))
        if moved == 0 and not isnan(self.start[column]) and column not in self.odd:
            return float(self.start[column])
        spot = self.start[None].copy()
        spot[0, column] = cell.constant + unit * moved
        value = float(self.schema.snap(spot)[0, column])
        return own if abs(value - own) <= 1e-9 * feature.span else value


# ------------------------------------------------------------------------------------------------
# Small arithmetic


def _as_number(cell: Number | Choice, line: Line, column: int) -> Number:
    return cell if isinstance(cell, Number) else cell.number(line.worths[column])


def _apart(
    schema: Schema, column: int, by: float, relation: Literal["<=", "=="], sign: float = 1.0
) -> Line:
    """±(cell − own value) − by, against zero."""
    feature = schema.features[column]
    margin = 0.0 if feature.resolution else feature.step
    return Line(
        (column,), (sign,), (column,), (-sign,), -by, relation, {}, margin, 0.0, feature.step
    )  # fmt: skip


def _differs(column: int, levels: int) -> Table:
    truths = np.ones((levels + 2, levels + 3), dtype=np.int8)
    np.fill_diagonal(truths, -1)
    return Table(column, truths, ordered=False)
