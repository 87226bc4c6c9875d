"""Bound constraints as formulas over cells, in three-valued logic.

A formula is a conjunction of clauses, a clause a disjunction of leaves, of which there are four
kinds. A truth is 1 (true), -1 (false) or 0 (unknown, because a cell is missing), as in Kleene's
logic: "and" is the minimum, "or" the maximum, negation the minus sign. A constraint is violated
only where its formula is -1.

Everything is exact up to the rounding of floating point: sums are compared to within 1e-12 of
their size, so that 0.1 + 0.2 <= 0.3 holds as it does on paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints
from lapace.constraints.language import Constraint
from lapace.schema import Schema

Truth: TypeAlias = NDArray[np.int8]

ROUNDING = 1e-12  # of the size of the terms of a sum


class ComparedRows:
    """Candidate rows beside the instances they are for, and what leaves look up in them."""

    def __init__(self, schema: Schema, cells: Floats, instances: Floats) -> None:
        self.schema = schema
        self.cells = cells  # (n, d)
        self.instances = instances  # (n, d)
        self._slots: dict[int, tuple[Ints, Ints]] = {}

    def __len__(self) -> int:
        return len(self.cells)

    @cached_property
    def lost(self) -> Bools | None:
        """Cells that are missing though the instance's are not, (n, d); None if there are none."""
        lost = np.isnan(self.cells) & ~np.isnan(self.instances)
        return lost if lost.any() else None

    @cached_property
    def filled(self) -> Bools | None:
        """Cells that are present though the instance's are missing; None if there are none."""
        filled = ~np.isnan(self.cells) & np.isnan(self.instances)
        return filled if filled.any() else None

    @cached_property
    def differs(self) -> Bools:
        """Cells that differ from the instance's at the column's resolution."""
        return self.schema.differs(self.cells, self.instances)

    @property
    def changed(self) -> Bools:
        """Cells whose difference counts as a change: those of derived columns do not."""
        return self.differs & self.schema.counted

    def slots(self, column: int, levels: int) -> tuple[Ints, Ints]:
        """Returns where each original and each new category stands in a `LevelTable`."""
        if column not in self._slots:
            old, new = (
                np.where(codes < levels, codes, levels).astype(np.int64)  # NaN is not less
                for codes in (self.instances[:, column], self.cells[:, column])
            )
            self._slots[column] = old, new
        return self._slots[column]


# ------------------------------------------------------------------------------------------------
# Leaves


@dataclass(frozen=True, eq=False)
class LinearRelation:
    """Σ weight·cell + Σ weight·original + constant, compared with zero.

    Attributes:
        cells: Weight of each column of the row.
        originals: Weight of each column of the instance.
        constant: The constant.
        relation: `<=`, `<`, `==` or `!=`.
        level_values: For columns whose categories are numbers, the number of each level.
        margin: By how much `<` and `!=` must hold where a column has no resolution; else 0.
        tolerance: The error allowed beyond rounding where a column has no resolution; else 0.
        unit: The least difference that counts.
    """

    cells: Mapping[int, float]
    originals: Mapping[int, float]
    constant: float
    relation: Literal["<=", "<", "==", "!="]
    level_values: Mapping[int, Floats]
    margin: float
    tolerance: float
    unit: float

    @classmethod
    def of(
        cls,
        schema: Schema,
        cells: Mapping[int, float],
        originals: Mapping[int, float],
        constant: float,
        relation: Any,
        level_values: Mapping[int, Floats] | None = None,
    ) -> LinearRelation:
        """Makes a relation with the margin, tolerance and unit that its columns need."""
        features = {c: schema.features[c] for c in cells}
        steps = {c: abs(cells[c]) * (1.0 if f.categories else f.step) for c, f in features.items()}
        free = {c: f for c, f in features.items() if not f.categories and not f.resolution}
        margin = max((steps[c] for c in free), default=0.0)
        tolerance = 1e-9 * sum(abs(cells[c]) * f.span for c, f in free.items())
        unit = margin or min(steps.values(), default=1.0)
        values = level_values or {}
        return cls(cells, originals, constant, relation, values, margin, tolerance, unit)

    def value(self, rows: ComparedRows) -> tuple[Floats, Floats]:
        """Returns the sums, NaN where a term is missing, and the error that each is allowed."""
        total = np.full(len(rows), self.constant)
        size = np.abs(total)
        for weights, cells in ((self.cells, rows.cells), (self.originals, rows.instances)):
            for column, weight in weights.items():
                term = weight * self.number(column, cells[:, column])
                total += term
                size += np.abs(term)
        return total, ROUNDING * size + self.tolerance

    def number(self, column: int, cells: Floats) -> Floats:
        """Returns cells as numbers; NaN for a category that has none."""
        table = self.level_values.get(column)
        if table is None:
            return cells
        known = cells < len(table)  # NaN is not
        return np.where(known, table[np.where(known, cells, 0).astype(np.int64)], np.nan)

    def truth(self, rows: ComparedRows) -> Truth:
        """Whether the relation holds."""
        value, slip = self.value(rows)
        if self.relation == "<=":
            holds = value <= slip
        elif self.relation == "==":
            holds = np.abs(value) <= slip
        else:
            strict = value if self.relation == "<" else -np.abs(value)
            holds = strict <= slip - self.margin if self.margin else strict < -slip
        return np.where(np.isnan(value), 0, _signs(holds)).astype(np.int8)

    def excess(self, total: Any) -> Any:
        """Returns by how much sums, an array or a tensor, miss the relation."""
        match self.relation:
            case "<=":
                return total
            case "<":
                return total + self.unit
            case "==":
                return abs(total)
            case _:
                return self.unit - abs(total)

    def opposite(self) -> LinearRelation:
        """Returns the relation that holds where this one does not.

        In a column without a resolution neither holds within one margin of where they meet.
        """
        if self.relation in ("==", "!="):
            return replace(self, relation="!=" if self.relation == "==" else "==")
        return replace(
            self,
            cells={column: -weight for column, weight in self.cells.items()},
            originals={column: -weight for column, weight in self.originals.items()},
            constant=-self.constant,
            relation="<" if self.relation == "<=" else "<=",
        )

    def split(self) -> tuple[LinearRelation, LinearRelation]:
        """Returns the inequalities that both make up an `==`, or of which one makes up a `!=`."""
        equal = self.relation == "=="
        below, above = (replace(self, relation=r) for r in (("<=", "<") if equal else ("<", "<=")))
        return below, above.opposite()


@dataclass(frozen=True, eq=False)
class LevelTable:
    """A constraint on one column of categories alone: truth by original level and new level.

    Attributes:
        column: Its position.
        truths: (levels + 1, levels + 1), the last of each for a missing category.
        ordered: Whether the levels have an order, so that a distance has a meaning.
    """

    column: int
    truths: Truth
    ordered: bool

    @property
    def levels(self) -> int:
        """How many levels the column has."""
        return len(self.truths) - 1

    def truth(self, rows: ComparedRows) -> Truth:
        """Whether each row's level is allowed."""
        truths: Truth = self.truths[rows.slots(self.column, self.levels)]
        return truths

    def allowed(self, rows: ComparedRows) -> Bools:
        """Returns the levels each row may take, given its instance: (n, levels + 1)."""
        original, _ = rows.slots(self.column, self.levels)
        return self.truths[original] >= 0

    def nearest(self, rows: ComparedRows) -> Ints:
        """Returns the allowed level nearest to each row's; the row's own where none is allowed."""
        _, new = rows.slots(self.column, self.levels)
        here = np.where(new < self.levels, new, 0)
        allowed = self.allowed(rows)[:, : self.levels]
        apart = np.where(allowed, np.abs(np.arange(self.levels) - here[:, None]), np.inf)
        return np.where(allowed.any(axis=1), apart.argmin(axis=1), here)


@dataclass(frozen=True, eq=False)
class Unchanged:
    """A number is the instance's; missing stays missing.

    Attributes:
        column: Its position.
        exact: To the last bit; else at the column's resolution.
        negated: It must differ.
    """

    column: int
    exact: bool
    negated: bool = False

    def truth(self, rows: ComparedRows) -> Truth:
        """Whether the number is the instance's, or differs."""
        old, new = rows.instances[:, self.column], rows.cells[:, self.column]
        same = (old == new) | (np.isnan(old) & np.isnan(new))
        return _signs((same if self.exact else ~rows.differs[:, self.column]) != self.negated)


@dataclass(frozen=True, eq=False)
class ChangeCount:
    """At most `most` columns differ from the instance."""

    most: int

    def truth(self, rows: ComparedRows) -> Truth:
        """Whether the number of changes is within the limit."""
        return _signs(self.excess(rows) <= 0)

    def excess(self, rows: ComparedRows) -> Ints:
        """Returns how many columns too many have changed; 0 or less where it holds."""
        excess: Ints = rows.changed.sum(axis=1) - self.most
        return excess


Leaf: TypeAlias = LinearRelation | LevelTable | Unchanged | ChangeCount
Clause: TypeAlias = tuple[Leaf, ...]
Formula: TypeAlias = tuple[Clause, ...]


def _signs(holds: Bools) -> Truth:
    return np.where(holds, 1, -1).astype(np.int8)


# ------------------------------------------------------------------------------------------------
# Formulas


def all_of(formulas: Iterable[Formula]) -> Formula:
    """Returns the conjunction of formulas."""
    return tuple(clause for formula in formulas for clause in formula)


def any_of(formulas: Sequence[Formula]) -> Formula:
    """Returns the disjunction of formulas, distributed over their clauses."""
    return tuple(_clause([leaf for part in parts for leaf in part]) for parts in product(*formulas))


def _clause(leaves: Sequence[Leaf]) -> Clause:
    """Returns the disjunction of leaves; tables of one column become one table."""
    clause: dict[tuple[str, int], Leaf] = {}
    for leaf in leaves:
        if isinstance(leaf, LevelTable):
            key = ("table", leaf.column)
            other = clause.get(key, leaf)
            assert isinstance(other, LevelTable)
            clause[key] = replace(leaf, truths=np.maximum(leaf.truths, other.truths))
        else:
            clause["leaf", id(leaf)] = leaf
    return tuple(clause.values())


def negate(formula: Formula) -> Formula:
    """Returns the opposite; a truth that is unknown stays so."""
    return any_of([tuple((_opposite(leaf),) for leaf in clause) for clause in formula])


def _opposite(leaf: Leaf) -> Leaf:
    match leaf:
        case LinearRelation():
            return leaf.opposite()
        case LevelTable():
            return replace(leaf, truths=-leaf.truths)
        case Unchanged():
            return replace(leaf, negated=not leaf.negated)
        case _:  # pragma: no cover (the grammar keeps them out of conditionals)
            raise TypeError(f"{leaf} has no opposite")


def is_violated(clause: Clause, rows: ComparedRows) -> Bools:
    """Returns the rows in which every leaf of a clause is false, (n,)."""
    violated: Bools = clause[0].truth(rows) < 0
    for leaf in clause[1:]:
        violated = violated & (leaf.truth(rows) < 0)
    return violated


@dataclass(frozen=True, eq=False)
class BoundConstraint:
    """A constraint and its formula in one schema.

    Attributes:
        constraint: The value it was made from.
        formula: Its formula over cells.
        columns: Columns it names: a row that loses one of their values violates it.
        compared: Columns compared with the instance's value: where that is missing it must stay so.
        learned: Whether instances that break it themselves need not satisfy it.
    """

    constraint: Constraint
    formula: Formula
    columns: tuple[int, ...]
    compared: tuple[int, ...]
    learned: bool = False

    @property
    def change_count(self) -> ChangeCount | None:
        """The limit on changes, if the constraint is one."""
        leaf = self.formula[0][0]
        return leaf if isinstance(leaf, ChangeCount) else None

    def applies(self, schema: Schema, instances: Floats) -> Bools:
        """Returns the instances whose rows must satisfy it: not those that break a learned one."""
        rows = ComparedRows(schema, instances, instances)
        breaks = np.zeros(len(rows), dtype=bool)
        for clause in self.formula if self.learned else ():
            breaks |= is_violated(clause, rows)
        return ~breaks

    def holds(self, rows: ComparedRows) -> Bools:
        """Returns whether each row satisfies the constraint, (n,)."""
        holds = np.ones(len(rows), dtype=bool)
        for clause in self.formula:
            holds &= ~is_violated(clause, rows)
        if self.learned and not holds.all():
            holds[~holds] = ~self.applies(rows.schema, rows.instances[~holds])
        if rows.lost is not None:
            holds &= ~rows.lost[:, self.columns].any(axis=1)
        if rows.filled is not None:
            holds &= ~rows.filled[:, self.compared].any(axis=1)
        return holds


def feasible(constraints: Sequence[BoundConstraint], rows: ComparedRows) -> Bools:
    """Returns whether each row satisfies every constraint, (n,)."""
    holds = np.ones(len(rows), dtype=bool)
    for constraint in constraints:
        holds &= constraint.holds(rows)
    return holds
