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
        """Where a cell differs from the instance's at the column's resolution."""
        return self.schema.differs(self.cells, self.instances)

    @property
    def changed(self) -> Bools:
        """The same where it counts as a change: not in derived columns."""
        return self.differs & self.schema.counted

    def slots(self, column: int, levels: int) -> tuple[Ints, Ints]:
        """The row and column of a `LevelTable` for each original and each new category."""
        if column not in self._slots:
            old, new = self.instances[:, column], self.cells[:, column]
            self._slots[column] = _slots(old, old, levels), _slots(new, old, levels)
        return self._slots[column]


def _slots(codes: Floats, original: Floats, levels: int) -> Ints:
    unseen = np.where(codes == original, levels + UNSEEN, levels + FOREIGN)
    known = np.where(codes < levels, codes, unseen)  # NaN is not less
    return np.where(np.isnan(codes), levels + MISSING, known).astype(np.int64)


# ------------------------------------------------------------------------------------------------
# Leaves (the fifth is `Custom` itself) and trees


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
        """A relation with the margin, tolerance and unit its columns ask for."""
        features = {c: schema.features[c] for c in cells}
        steps = {c: abs(cells[c]) * (1.0 if f.categories else f.step) for c, f in features.items()}
        free = {c: f for c, f in features.items() if not f.categories and not f.resolution}
        margin = max((steps[c] for c in free), default=0.0)
        tolerance = 1e-9 * sum(abs(cells[c]) * f.span for c, f in free.items())
        unit = margin or min(steps.values(), default=1.0)
        values = level_values or {}
        return cls(cells, originals, constant, relation, values, margin, tolerance, unit)

    def value(self, rows: ComparedRows) -> tuple[Floats, Floats]:
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
        """The same without `negated`: what solvers aim for (never weaker than its truth)."""
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

    def split(self) -> tuple[LinearRelation, LinearRelation]:
        """The inequalities that both make up an equality, or of which one makes up a `!=`."""
        equal = self.relation == "=="
        above = replace(self, relation="<" if equal else "<=", negated=True)
        return replace(self, relation="<=" if equal else "<"), above.positive()


@dataclass(frozen=True, eq=False)
class LevelTable:
    """A constraint on one column of categories alone: truth by original level and new level.

    Attributes:
        column: Its position.
        truths: (levels + 2, levels + 3), by slot; see `ComparedRows.slots`.
        ordered: Whether the levels have an order, so that a distance has a meaning.
    """

    column: int
    truths: Truth
    ordered: bool

    @property
    def levels(self) -> int:
        """How many levels the column has."""
        return len(self.truths) - 2

    @property
    def mentions_original(self) -> bool:
        """Whether the truth depends on the instance."""
        return bool((self.truths[:, : self.levels] != self.truths[0, : self.levels]).any())

    def allowed(self, rows: ComparedRows) -> Bools:
        """Which slots each row may take, given its instance: (n, levels + 3)."""
        original, _ = rows.slots(self.column, self.levels)
        return self.truths[original] >= 0

    def nearest(self, rows: ComparedRows) -> Ints:
        """The allowed level nearest to each row's, (n,); the row's level where none is allowed."""
        _, new = rows.slots(self.column, self.levels)
        here = np.where(new < self.levels, new, 0)
        allowed = self.allowed(rows)[:, : self.levels]
        apart = np.where(allowed, np.abs(np.arange(self.levels) - here[:, None]), np.inf)
        return np.where(allowed.any(axis=1), apart.argmin(axis=1), here)


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


@dataclass(frozen=True)
class ChangeCount:
    """How many columns differ from the instance: between `least` and `most`."""

    least: int
    most: int

    def excess(self, rows: ComparedRows) -> Ints:
        """How many columns too many, or too few; 0 or less where it holds."""
        count = rows.changed.sum(axis=1)
        excess: Ints = np.maximum(self.least - count, count - self.most)
        return excess


@dataclass(frozen=True)
class And:
    """All parts hold."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True)
class Or:
    """At least one part holds; in an implication (`if … then`) the last follows `then`."""

    parts: tuple[Formula, ...]
    implication: bool = False


Formula: TypeAlias = LinearRelation | LevelTable | Unchanged | ChangeCount | Custom | And | Or


def all_of(parts: Sequence[Formula]) -> Formula:
    """The conjunction; of one part, that part."""
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def any_of(parts: Sequence[Formula]) -> Formula:
    """The disjunction; of tables of one column, their table."""
    tables = [part for part in parts if isinstance(part, LevelTable)]
    if len(tables) == len(parts):
        return replace(tables[0], truths=np.maximum.reduce([table.truths for table in tables]))
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


# ------------------------------------------------------------------------------------------------
# Evaluation


def truth(formula: Formula, rows: ComparedRows) -> Truth:
    """1 where a formula holds, -1 where it does not, 0 where that is unknown, (n,)."""
    match formula:
        case And(parts):
            found = np.minimum.reduce([truth(part, rows) for part in parts])
        case Or(parts):
            found = np.maximum.reduce([truth(part, rows) for part in parts])
        case LinearRelation():
            found = _relation_truth(formula, rows)
        case LevelTable(column, truths):
            found = truths[rows.slots(column, formula.levels)]
        case Unchanged(column, exact, negated):
            old, new = rows.instances[:, column], rows.cells[:, column]
            same = (old == new) | (np.isnan(old) & np.isnan(new))
            found = _signs((same if exact else ~rows.differs[:, column]) != negated)
        case ChangeCount():
            found = _signs(formula.excess(rows) <= 0)
        case Custom():
            view = Rows(rows.schema, rows.cells)
            found = _signs(np.asarray(call(formula, "check", view, (len(rows),)), bool))
    return np.asarray(found, dtype=np.int8)


def slack(formula: Formula, rows: ComparedRows) -> Floats:
    """How far a formula is from holding, (n,), in its own units; 0 where it holds.

    A conjunction counts its worst part, a disjunction its nearest, an implication what follows
    `then`.
    """
    match formula:
        case And(parts):
            distance = np.maximum.reduce([slack(part, rows) for part in parts])
        case Or(parts, implication):
            counted = parts[-1:] if implication else parts
            distance = np.minimum.reduce([slack(part, rows) for part in counted])
        case LinearRelation():
            relation = formula.positive()
            distance = np.maximum(relation.excess(relation.value(rows)[0]), 0)
        case LevelTable(column, _, ordered):
            new = rows.slots(column, formula.levels)[1]
            levels = np.abs(formula.nearest(rows) - new) if ordered else np.ones(len(rows))
            distance = np.where(new < formula.levels, np.maximum(levels, 1), 1)
        case Unchanged(column, _, negated):
            apart = np.abs(rows.cells[:, column] - rows.instances[:, column])
            step = rows.schema.features[column].step
            distance = np.where(np.isnan(apart), 1.0, step if negated else apart)
        case ChangeCount():
            distance = formula.excess(rows)
        case Custom():
            distance = np.ones(len(rows))
    return np.where(truth(formula, rows) < 0, distance, 0.0)


@dataclass(frozen=True)
class Rows:
    """Rows by column name, as a `Custom` constraint sees them.

    Attributes:
        schema: The columns.
        cells: The matrix (n, d), an array or a tensor, categories as codes.

    Examples:
        >>> from lapace.schema import Schema
        >>> schema = Schema.infer([{"age": 31, "home": "own"}, {"age": 44, "home": "rent"}])
        >>> rows = Rows(schema, np.array([[31.0, 0.0]]))
        >>> rows["age"], rows["home"], rows[:, 0]
        (array([31.]), array(['own'], dtype=object), array([31.]))
    """

    schema: Schema
    cells: Any

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return self.cells[key]
        column = self.cells[:, self.schema.index(key)]
        feature = self.schema[key]
        if feature.kind == "continuous":
            return column
        codes = np.asarray(column.detach().cpu() if hasattr(column, "detach") else column)
        places = np.where(np.isnan(codes), len(feature.levels), codes).astype(np.int64)
        return np.array([*feature.levels, None], dtype=object)[places]

    def __setitem__(self, key: Any, values: Any) -> None:
        column = (slice(None), self.schema.index(key)) if isinstance(key, str) else key
        self.cells[column] = values

    def with_columns(self, columns: Any) -> Any:
        """The cells with some columns replaced by name; a matrix is returned as it is."""
        if isinstance(columns, Rows):
            return columns.cells
        if not isinstance(columns, Mapping):
            return columns
        cells = self.cells.copy()
        for name, values in columns.items():
            feature = self.schema[name]
            known = {level: code for code, level in enumerate(feature.levels)}
            codes = values if feature.kind == "continuous" else [known[v] for v in values]
            cells[:, self.schema.index(name)] = codes
        return cells


def call(
    custom: Custom,
    what: Literal["check", "penalty", "project"],
    rows: Rows,
    shape: tuple[int, ...],
) -> Any:
    """What a function of a custom constraint returns; an `InputError` if it raises or misfits."""
    try:
        result = rows.with_columns(getattr(custom, what)(rows))
    except Exception as error:
        raise InputError(
            f"The constraint '{custom.name}' raised {type(error).__name__}: {error} (in its {what} "
            f"function, called with {len(rows):,} rows)."
        ) from error
    if (found := tuple(np.shape(result))) != shape:
        raise InputError(
            f"The {what} function of constraint '{custom.name}' returned shape {found} for "
            f"{len(rows):,} rows. It must return shape {shape}."
        )
    return result


def _signs(holds: Bools) -> Truth:
    return np.where(holds, 1, -1).astype(np.int8)


def _relation_truth(relation: LinearRelation, rows: ComparedRows) -> Truth:
    value, slip = relation.value(rows)
    if relation.relation == "<=":
        holds = value <= slip
    elif relation.relation == "==":
        holds = np.abs(value) <= slip
    else:
        strict = value if relation.relation == "<" else -np.abs(value)
        holds = strict <= slip - relation.margin if relation.margin else strict < -slip
    return np.where(np.isnan(value), 0, _signs(holds != relation.negated))
