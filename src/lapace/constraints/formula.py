"""Bound constraints as formulas over cells, in three-valued logic.

A formula is a tree of `And` and `Or` over five kinds of leaves. Its truth is 1 (true), -1 (false)
or 0 (unknown, because a cell is missing), as in Kleene's logic: `And` is the minimum, `Or` the
maximum, negation the minus sign. A constraint is violated only where its formula is -1.

Everything is exact up to the rounding of floating point: sums are compared to within 1e-12 of
their size, so that 0.1 + 0.2 <= 0.3 holds as it does on paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints
from lapace.constraints.language import Custom
from lapace.errors import InputError
from lapace.schema import Schema

Truth: TypeAlias = NDArray[np.int8]

ROUNDING = 1e-12  # of the size of the terms of a sum
UNSEEN, MISSING, FOREIGN = 0, 1, 2  # slots after a column's levels, in this order


class Candidates:
    """Candidate rows beside the instances they are for, and what leaves look up in them."""

    def __init__(self, schema: Schema, cells: Floats, instances: Floats) -> None:
        self.schema = schema
        self.cells = cells  # (n, d)
        self.instances = instances  # (n, d)
        self._slots: dict[int, tuple[Ints, Ints]] = {}

    def __len__(self) -> int:
        return len(self.cells)

    @cached_property
    def lost(self) -> dict[int, Bools]:
        """By column, where any: the cell is missing though the instance's is not."""
        return _by_column(np.isnan(self.cells) & ~np.isnan(self.instances))

    @cached_property
    def filled(self) -> dict[int, Bools]:
        """By column, where any: the cell is present though the instance's is missing."""
        return _by_column(~np.isnan(self.cells) & np.isnan(self.instances))

    @cached_property
    def changed(self) -> Bools:
        """Where a cell differs from the instance's at the column's resolution."""
        return self.schema.changed(self.cells, self.instances)

    def slots(self, column: int, levels: int) -> tuple[Ints, Ints]:
        """The row and column of a `LevelTable` for each original and each new category."""
        if column not in self._slots:
            original, code = self.instances[:, column], self.cells[:, column]
            self._slots[column] = (
                _slots(original, original, levels),
                _slots(code, original, levels),
            )
        return self._slots[column]


def _by_column(marks: Bools) -> dict[int, Bools]:
    return {int(column): marks[:, column] for column in np.flatnonzero(marks.any(axis=0))}


def _slots(codes: Floats, original: Floats, levels: int) -> Ints:
    unseen = np.where(codes == original, levels + UNSEEN, levels + FOREIGN)
    known = np.where(codes < levels, codes, unseen)  # NaN is not less
    return np.where(np.isnan(codes), levels + MISSING, known).astype(np.int64)


def _truth(holds: Bools) -> Truth:
    return np.where(holds, 1, -1).astype(np.int8)


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
        tolerance: What is allowed beyond rounding where a column has no resolution; else 0.
        unit: The least difference that counts.
        negated: The opposite is meant.
    """

    cells: Mapping[int, float]
    originals: Mapping[int, float]
    constant: float
    relation: Literal["<=", "<", "==", "!="]
    level_values: Mapping[int, Floats]
    margin: float
    tolerance: float
    unit: float
    negated: bool = False

    def value(self, rows: Candidates) -> tuple[Floats, Floats]:
        """The sum, NaN where a term is missing, and the rounding error it is allowed."""
        total = np.full(len(rows), self.constant)
        size = np.abs(total)
        for weights, cells in ((self.cells, rows.cells), (self.originals, rows.instances)):
            for column, weight in weights.items():
                term = weight * self.number(column, cells[:, column])
                total += term
                size += np.abs(term)
        return total, ROUNDING * size + self.tolerance

    def number(self, column: int, cells: Floats) -> Floats:
        """Cells as numbers; NaN for a category that has none."""
        table = self.level_values.get(column)
        if table is None:
            return cells
        known = cells < len(table)  # NaN is not
        return np.where(known, table[np.where(known, cells, 0).astype(np.int64)], np.nan)

    def truth(self, rows: Candidates) -> Truth:
        """1, -1 or 0."""
        value, slip = self.value(rows)
        if self.relation == "<=":
            holds = value <= slip
        elif self.relation == "==":
            holds = np.abs(value) <= slip
        else:
            strict = value if self.relation == "<" else -np.abs(value)
            holds = strict <= slip - self.margin if self.margin else strict < -slip
        return np.where(np.isnan(value), 0, _truth(holds != self.negated)).astype(np.int8)

    def slack(self, rows: Candidates) -> Floats:
        """How far the sum is from where the relation would hold."""
        relation = self.positive()
        distance = relation.excess(relation.value(rows)[0])
        return np.where(self.truth(rows) < 0, np.maximum(distance, 0), 0.0)

    def excess(self, total: Any) -> Any:
        """By how much sums, an array or a tensor, miss a relation that is not negated."""
        match self.relation:
            case "<=":
                return total
            case "<":
                return total + self.unit
            case "==":
                return abs(total)
            case _:
                return self.unit - abs(total)

    def positive(self) -> LinearRelation:
        """The same without `negated`: what solvers aim for (never weaker than `truth`)."""
        if not self.negated:
            return self
        if self.relation in ("==", "!="):
            return replace(self, relation="!=" if self.relation == "==" else "==", negated=False)
        return replace(
            self,
            cells={column: -weight for column, weight in self.cells.items()},
            originals={column: -weight for column, weight in self.originals.items()},
            constant=-self.constant,
            relation="<" if self.relation == "<=" else "<=",
            negated=False,
        )

    def split(self) -> And | Or:
        """An equality as both inequalities, `!=` as either strict one; both not negated."""
        if self.relation == "==":
            below, above = replace(self, relation="<="), replace(self, relation="<", negated=True)
            return And((below, above.positive()))
        below, above = replace(self, relation="<"), replace(self, relation="<=", negated=True)
        return Or((below, above.positive()))


@dataclass(frozen=True, eq=False)
class LevelTable:
    """A constraint on one column of categories alone: truth by original level and new level.

    Attributes:
        column: Its position.
        truths: (levels + 2, levels + 3), by slot; see `Candidates.slots`.
        ordered: Whether the levels have an order, so that a distance has a meaning.
    """

    column: int
    truths: Truth
    ordered: bool

    @property
    def levels(self) -> int:
        """How many levels the column has."""
        return len(self.truths) - 2

    def truth(self, rows: Candidates) -> Truth:
        """1, -1 or 0."""
        original, new = rows.slots(self.column, self.levels)
        return self.truths[original, new]

    def allowed(self, rows: Candidates) -> Bools:
        """Which slots each row may take, given its instance: (n, levels + 3)."""
        original, _ = rows.slots(self.column, self.levels)
        return self.truths[original] >= 0

    @cached_property
    def _distances(self) -> Floats:
        """Levels from each slot to the nearest allowed one; 1 where levels have no order."""
        distances = np.where(self.truths < 0, 1.0, 0.0)
        places = np.arange(self.levels)
        if self.ordered:
            apart = np.abs(places[:, None] - places)  # (levels, levels)
            allowed = self.truths[:, None, : self.levels] >= 0  # (original, 1, levels)
            nearest = np.where(allowed, apart, np.inf).min(axis=2, initial=np.inf)
            distances[:, : self.levels] = np.where(np.isfinite(nearest), nearest, 1.0)
        return distances

    def slack(self, rows: Candidates) -> Floats:
        """How many levels away the nearest allowed one is."""
        original, new = rows.slots(self.column, self.levels)
        return self._distances[original, new]

    @property
    def mentions_original(self) -> bool:
        """Whether the truth depends on the instance."""
        return bool((self.truths[:, : self.levels] != self.truths[0, : self.levels]).any())


@dataclass(frozen=True)
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

    def truth(self, rows: Candidates) -> Truth:
        """1 or -1."""
        if self.exact:
            original, new = rows.instances[:, self.column], rows.cells[:, self.column]
            same = (original == new) | (np.isnan(original) & np.isnan(new))
        else:
            same = ~rows.changed[:, self.column]
        return _truth(same != self.negated)

    def slack(self, rows: Candidates) -> Floats:
        """How far the number has moved; one step where it must move, 1 where one is missing."""
        apart = np.abs(rows.cells[:, self.column] - rows.instances[:, self.column])
        distance = rows.schema.features[self.column].step if self.negated else apart
        return np.where(self.truth(rows) < 0, np.where(np.isnan(apart), 1.0, distance), 0.0)


@dataclass(frozen=True)
class ChangeCount:
    """How many columns differ from the instance: between `least` and `most`."""

    least: int
    most: int

    def truth(self, rows: Candidates) -> Truth:
        """1 or -1."""
        return _truth(self.slack(rows) <= 0)

    def slack(self, rows: Candidates) -> Floats:
        """How many columns too many, or too few."""
        count = rows.changed.sum(axis=1)
        excess: Floats = np.maximum(self.least - count, count - self.most).clip(0.0)
        return excess


@dataclass(frozen=True)
class CustomCheck:
    """A constraint written as Python functions."""

    custom: Custom

    def truth(self, rows: Candidates) -> Truth:
        """The result of its check, 1 or -1."""
        return _truth(np.asarray(self.call("check", rows.cells, (len(rows),)), dtype=bool))

    def projected(self, cells: Floats) -> Floats:
        """Rows moved by its projection; as they are where it has none."""
        if self.custom.project is None:
            return cells
        return np.asarray(self.call("project", cells, cells.shape), dtype=np.float64)

    def slack(self, rows: Candidates) -> Floats:
        """1 where it is violated."""
        return np.where(self.truth(rows) < 0, 1.0, 0.0)

    def call(
        self, what: Literal["check", "penalty", "project"], rows: Any, shape: tuple[int, ...]
    ) -> Any:
        """What one of its functions returns; an `InputError` where it raises or does not fit."""
        try:
            result = getattr(self.custom, what)(rows)
        except Exception as error:
            raise InputError(
                f"The constraint '{self.custom.name}' raised {type(error).__name__}: {error} "
                f"(in its {what} function, called with {len(rows):,} rows)."
            ) from error
        if (found := tuple(np.shape(result))) != shape:
            raise InputError(
                f"The {what} function of constraint '{self.custom.name}' returned shape {found} "
                f"for {len(rows)} rows. It must return shape {shape}."
            )
        return result


# ------------------------------------------------------------------------------------------------
# Trees


@dataclass(frozen=True)
class And:
    """All parts hold."""

    parts: tuple[Formula, ...]

    def truth(self, rows: Candidates) -> Truth:
        """The least of the parts'."""
        truths: Truth = np.minimum.reduce([part.truth(rows) for part in self.parts])
        return truths

    def slack(self, rows: Candidates) -> Floats:
        """The largest of the parts'."""
        slacks: Floats = np.maximum.reduce([part.slack(rows) for part in self.parts])
        return slacks


@dataclass(frozen=True)
class Or:
    """At least one part holds.

    Attributes:
        parts: The alternatives.
        implication: It is an `if … then`, whose last part is what follows `then`: the slack counts
            that part alone.
    """

    parts: tuple[Formula, ...]
    implication: bool = False

    def truth(self, rows: Candidates) -> Truth:
        """The greatest of the parts'."""
        truths: Truth = np.maximum.reduce([part.truth(rows) for part in self.parts])
        return truths

    def slack(self, rows: Candidates) -> Floats:
        """The least of the parts'; of an implication, that of what follows `then`."""
        parts = self.parts[-1:] if self.implication else self.parts
        nearest = np.minimum.reduce([part.slack(rows) for part in parts])
        return np.where(self.truth(rows) < 0, nearest, 0.0)


Leaf: TypeAlias = LinearRelation | LevelTable | Unchanged | ChangeCount | CustomCheck
Formula: TypeAlias = Leaf | And | Or


def all_of(parts: Sequence[Formula]) -> Formula:
    """The conjunction; of one part, that part."""
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def any_of(parts: Sequence[Formula]) -> Formula:
    """The disjunction; of one part, that part."""
    return parts[0] if len(parts) == 1 else Or(tuple(parts))


def negate(formula: Formula) -> Formula:
    """The exact opposite; what is unknown stays so."""
    match formula:
        case And(parts):
            return Or(tuple(map(negate, parts)))
        case Or(parts):
            return And(tuple(map(negate, parts)))
        case LevelTable():
            return replace(formula, truths=-formula.truths)
        case LinearRelation() | Unchanged():
            return replace(formula, negated=not formula.negated)
        case _:  # pragma: no cover (the grammar keeps them out of conditionals)
            raise TypeError(f"{formula} has no opposite")


def conjuncts(formula: Formula) -> Iterator[Formula]:
    """The parts that must each hold."""
    if isinstance(formula, And):
        for part in formula.parts:
            yield from conjuncts(part)
    else:
        yield formula
