"""Bound constraints as small trees, and what they say about cells: true, false or not known.

A constraint becomes a tree of `Every` and `Some` over five kinds of leaves. Truth is 1 (yes),
-1 (no) or 0 (not known, because a cell is missing): `Every` is the minimum, `Some` the maximum,
negation the minus sign. A constraint is broken only where its tree says -1.

Everything is exact up to the rounding of floating point: sums are compared to within 1e-12 of
their size, so that 0.1 + 0.2 <= 0.3 holds as it does on paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats
from lapace.constraints.language import Custom
from lapace.errors import InputError
from lapace.schema import Schema

__all__ = ["Count", "Every", "Line", "Moved", "Node", "Opaque", "Rows", "Same", "Some", "Table"]

Places: TypeAlias = NDArray[np.int64]
Truth: TypeAlias = NDArray[np.int8]

ROUNDING = 1e-12  # of the size of what is added up
UNSEEN, MISSING, FOREIGN = 0, 1, 2  # slots after a column's levels, in this order


class Rows:
    """Cells beside the cells of the instances they are for, and what the leaves look up in them."""

    def __init__(self, schema: Schema, cells: Floats, instances: Floats) -> None:
        self.schema = schema
        self.cells = cells  # (n, d)
        self.instances = instances  # (n, d)
        self._slots: dict[int, tuple[Places, Places]] = {}

    def __len__(self) -> int:
        return len(self.cells)

    @cached_property
    def lost(self) -> dict[int, Bools]:
        """By column, where any: missing though the instance's own cell is there."""
        return _where(np.isnan(self.cells) & ~np.isnan(self.instances))

    @cached_property
    def filled(self) -> dict[int, Bools]:
        """By column, where any: there though the instance's own cell is missing."""
        return _where(~np.isnan(self.cells) & np.isnan(self.instances))

    @cached_property
    def changed(self) -> Bools:
        """Where a cell differs from the instance's own at the column's resolution."""
        return self.schema.changed(self.cells, self.instances)

    def slots(self, column: int, levels: int) -> tuple[Places, Places]:
        """Where the instance's and the row's category stand in a `Table` of so many levels."""
        if column not in self._slots:
            own, code = self.instances[:, column], self.cells[:, column]
            self._slots[column] = _slots(own, own, levels), _slots(code, own, levels)
        return self._slots[column]


def _where(marks: Bools) -> dict[int, Bools]:
    return {int(column): marks[:, column] for column in np.flatnonzero(marks.any(axis=0))}


def _slots(codes: Floats, own: Floats, levels: int) -> Places:
    unseen = np.where(codes == own, levels + UNSEEN, levels + FOREIGN)
    known = np.where(codes < levels, codes, unseen)  # NaN is not less
    return np.where(np.isnan(codes), levels + MISSING, known).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Line:
    """Σ weight·cell + Σ weight·own value + constant, against zero.

    Attributes:
        columns: Columns of the row, with `weights`.
        own: Columns of the instance, with `own_weights`.
        relation: `<=`, `<`, `==` or `!=`.
        worths: For columns of categories that are numbers, what each level counts.
        margin: How far apart `<` and `!=` demand where a column has no resolution; else 0.
        noise: What is forgiven beyond rounding, where a column has no resolution; else 0.
        unit: The least difference that counts.
        negated: The opposite is meant.
    """

    columns: tuple[int, ...]
    weights: tuple[float, ...]
    own: tuple[int, ...]
    own_weights: tuple[float, ...]
    constant: float
    relation: Literal["<=", "<", "==", "!="]
    worths: Mapping[int, Floats]
    margin: float
    noise: float
    unit: float
    negated: bool = False

    def value(self, rows: Rows) -> tuple[Floats, Floats]:
        """The sum, NaN where a part of it is missing, and what to forgive it."""
        total = np.full(len(rows), self.constant)
        size = np.abs(total)
        parts = [(rows.cells, c, w) for c, w in zip(self.columns, self.weights, strict=True)]
        parts += [(rows.instances, c, w) for c, w in zip(self.own, self.own_weights, strict=True)]
        for cells, column, weight in parts:
            part = weight * self.worth(column, cells[:, column])
            total += part
            size += np.abs(part)
        return total, ROUNDING * size + self.noise

    def worth(self, column: int, cells: Floats) -> Floats:
        """Cells as numbers; a category without one is not known."""
        table = self.worths.get(column)
        if table is None:
            return cells
        known = cells < len(table)  # NaN is not
        return np.where(known, table[np.where(known, cells, 0).astype(np.int64)], np.nan)

    def truth(self, rows: Rows) -> Truth:
        """Yes, no or not known."""
        value, slip = self.value(rows)
        if self.relation == "<=":
            holds = value <= slip
        elif self.relation == "==":
            holds = np.abs(value) <= slip
        else:
            short = value if self.relation == "<" else -np.abs(value)
            holds = short <= slip - self.margin if self.margin else short < -slip
        answer = np.where(holds, 1, -1) * (-1 if self.negated else 1)
        return np.where(np.isnan(value), 0, answer).astype(np.int8)

    def slack(self, rows: Rows) -> Floats:
        """How far the sum is from where it would hold."""
        line = self.positive()
        value = line.value(rows)[0]
        if line.relation == "<=":
            far = value
        elif line.relation == "<":
            far = value + line.unit
        elif line.relation == "==":
            far = np.abs(value)
        else:
            far = line.unit - np.abs(value)
        return np.where(self.truth(rows) < 0, np.maximum(far, 0), 0.0)

    def positive(self) -> Line:
        """The same without `negated`: what the solvers aim for (never weaker than `truth`)."""
        if not self.negated:
            return self
        if self.relation in ("==", "!="):
            return replace(self, relation="!=" if self.relation == "==" else "==", negated=False)
        return replace(
            self,
            weights=tuple(-w for w in self.weights),
            own_weights=tuple(-w for w in self.own_weights),
            constant=-self.constant,
            relation="<" if self.relation == "<=" else "<=",
            negated=False,
        )

    def sides(self) -> tuple[Line, ...]:
        """An equality as two inequalities; anything else as itself."""
        if self.relation != "==":
            return (self,)
        above = replace(self, relation="<=")
        return (above, replace(above, relation="<", negated=True).positive())


@dataclass(frozen=True, eq=False)
class Table:
    """Everything a column of categories alone can be asked: truth by own level and new level.

    Attributes:
        column: Its position.
        truths: (levels + 2, levels + 3), by slot; see `Rows.slots`.
        far: The same shape: how many levels away it would hold.
    """

    column: int
    truths: Truth
    ordered: bool

    @property
    def levels(self) -> int:
        """Levels the table knows."""
        return len(self.truths) - 2

    def truth(self, rows: Rows) -> Truth:
        """Yes, no or not known."""
        own, new = rows.slots(self.column, self.levels)
        return self.truths[own, new]

    @cached_property
    def far(self) -> Floats:
        """How many levels from each slot to one that would do; 1 where order has no meaning."""
        far = np.where(self.truths < 0, 1.0, 0.0)
        places = np.arange(self.levels)
        if self.ordered:
            apart = np.abs(places[:, None] - places)  # (levels, levels)
            good = self.truths[:, None, : self.levels] >= 0  # (own, 1, levels)
            reach = np.where(good, apart, np.inf).min(axis=2, initial=np.inf)
            far[:, : self.levels] = np.where(np.isfinite(reach), reach, 1.0)
        return far

    def slack(self, rows: Rows) -> Floats:
        """Levels it would have to move."""
        own, new = rows.slots(self.column, self.levels)
        return self.far[own, new]

    @property
    def personal(self) -> bool:
        """Whether it matters whose row it is."""
        return bool((self.truths[:, : self.levels] != self.truths[0, : self.levels]).any())


@dataclass(frozen=True)
class Same:
    """A number is the instance's own, to the last bit; missing stays missing."""

    column: int
    negated: bool = False

    def truth(self, rows: Rows) -> Truth:
        """Yes or no."""
        own, new = rows.instances[:, self.column], rows.cells[:, self.column]
        same = (own == new) | (np.isnan(own) & np.isnan(new))
        return np.where(same != self.negated, 1, -1).astype(np.int8)

    def slack(self, rows: Rows) -> Floats:
        """How far it has moved; 1 where missing came or went, or where it has to move."""
        return _moved(self, rows)


@dataclass(frozen=True)
class Moved:
    """A number differs from the instance's own at the column's resolution."""

    column: int
    negated: bool = False

    def truth(self, rows: Rows) -> Truth:
        """Yes or no."""
        changed = rows.changed[:, self.column]
        return np.where(changed != self.negated, 1, -1).astype(np.int8)

    def slack(self, rows: Rows) -> Floats:
        """How far it has moved; one step where it has to move."""
        return _moved(self, rows)


def _moved(node: Same | Moved, rows: Rows) -> Floats:
    apart = np.abs(rows.cells[:, node.column] - rows.instances[:, node.column])
    stays = isinstance(node, Same) != node.negated
    far = apart if stays else np.full(len(rows), rows.schema.features[node.column].step)
    return np.where(node.truth(rows) < 0, np.where(np.isnan(apart), 1.0, far), 0.0)


@dataclass(frozen=True)
class Count:
    """How many columns differ from the instance's own."""

    least: int
    most: int

    def truth(self, rows: Rows) -> Truth:
        """Yes or no."""
        count = rows.changed.sum(axis=1)
        return np.where((self.least <= count) & (count <= self.most), 1, -1).astype(np.int8)

    def slack(self, rows: Rows) -> Floats:
        """Columns too many, or too few."""
        count = rows.changed.sum(axis=1)
        far = np.maximum(self.least - count, count - self.most)
        return np.where(far > 0, far, 0.0)


@dataclass(frozen=True)
class Opaque:
    """A function from Python."""

    custom: Custom

    def truth(self, rows: Rows) -> Truth:
        """What its check says."""
        holds = np.asarray(self.custom.check(rows.cells))
        if holds.shape != (len(rows),):
            raise InputError(
                f"The check of constraint '{self.custom.name}' gave {holds.shape} for {len(rows)} "
                "rows. It must give one truth value for each row."
            )
        return np.where(holds, 1, -1).astype(np.int8)

    def projected(self, cells: Floats) -> Floats:
        """Its own way to keep it; rows as they are where it has none."""
        if self.custom.project is None:
            return cells
        moved = np.asarray(self.custom.project(cells), dtype=np.float64)
        if moved.shape != cells.shape:
            raise InputError(
                f"The projection of constraint '{self.custom.name}' gave {moved.shape} for cells "
                f"of {cells.shape}. It must give as many rows and columns as it gets."
            )
        return moved

    def slack(self, rows: Rows) -> Floats:
        """1 where it is broken."""
        return np.where(self.truth(rows) < 0, 1.0, 0.0)


@dataclass(frozen=True)
class Every:
    """All parts."""

    parts: tuple[Node, ...]

    def truth(self, rows: Rows) -> Truth:
        """The least of them."""
        answer = self.parts[0].truth(rows)
        for part in self.parts[1:]:
            answer = np.minimum(answer, part.truth(rows))
        return answer

    def slack(self, rows: Rows) -> Floats:
        """The largest of them."""
        worst = np.zeros(len(rows))
        for part in self.parts:
            worst = np.maximum(worst, part.slack(rows))
        return worst


@dataclass(frozen=True)
class Some:
    """At least one part.

    Attributes:
        parts: The ways out.
        implied: It is a conditional, whose last part is what follows `then`: that is what counts
            when asked how far it is from holding.
    """

    parts: tuple[Node, ...]
    implied: bool = False

    def truth(self, rows: Rows) -> Truth:
        """The greatest of them."""
        answer = self.parts[0].truth(rows)
        for part in self.parts[1:]:
            answer = np.maximum(answer, part.truth(rows))
        return answer

    def slack(self, rows: Rows) -> Floats:
        """The nearest way out; in a conditional, what follows `then`."""
        nearest = np.full(len(rows), np.inf)
        for part in self.parts[-1:] if self.implied else self.parts:
            nearest = np.minimum(nearest, part.slack(rows))
        return np.where(self.truth(rows) < 0, nearest, 0.0)


Node: TypeAlias = Line | Table | Same | Moved | Count | Opaque | Every | Some


def negate(node: Node) -> Node:
    """The opposite, exactly; what is not known stays so."""
    match node:
        case Every(parts):
            return Some(tuple(negate(part) for part in parts))
        case Some(parts):
            return Every(tuple(negate(part) for part in parts))
        case Table():
            return replace(node, truths=-node.truths)
        case Line() | Same() | Moved():
            return replace(node, negated=not node.negated)
        case _:  # pragma: no cover (the grammar keeps them out of conditionals)
            raise TypeError(f"{node} has no opposite")


def leaves(node: Node) -> tuple[Node, ...]:
    """The parts that must each hold: an `Every` taken apart."""
    if isinstance(node, Every):
        return tuple(leaf for part in node.parts for leaf in leaves(part))
    return (node,)
