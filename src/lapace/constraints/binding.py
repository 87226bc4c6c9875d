"""Constraints against a schema: names become positions, words become categories, text a tree.

What a word means is settled here. On the other side of a column of categories a bare word is one
of its categories if it has one of that name, else a column; in quotes it is always a category.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import eq, ge, gt, le, lt, ne
from typing import Any, NoReturn

import numpy as np

from lapace.arrays import Floats
from lapace.constraints.language import (
    Absolute,
    Category,
    ChangeLimit,
    Changes,
    Comparison,
    Conditional,
    Constraint,
    Custom,
    Linear,
    Membership,
    Relation,
    Shorthand,
    Side,
    Term,
    Transition,
    Value,
)
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
    Truth,
    negate,
)
from lapace.errors import InputError, did_you_mean
from lapace.schema import Feature, Schema

__all__ = ["Bound", "bind"]


MIRROR: dict[Relation, Relation] = {
    "<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!=",
}  # fmt: skip
COMPARE: dict[Relation, Callable[[Any, Any], Any]] = {
    "<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne,
}  # fmt: skip
ORDERS: dict[str, Relation] = {"fixed": "==", "increasing": ">=", "decreasing": "<="}


@dataclass(frozen=True)
class Bound:
    """A constraint and what it is in this schema.

    Attributes:
        constraint: The value it was made from.
        node: Its tree.
        columns: Columns it names: it is broken where an answer loses one of their values.
        kept: Columns compared with the instance's own: where that is missing it must stay so.
    """

    constraint: Constraint
    node: Node
    columns: tuple[int, ...]
    kept: tuple[int, ...]


def bind(constraint: Constraint, schema: Schema) -> Bound:
    """Resolves a constraint; an `InputError` says what in it the schema does not know."""
    binder = _Binder(schema, constraint)
    node = binder.node(constraint)
    return Bound(constraint, node, tuple(sorted(binder.columns)), tuple(sorted(binder.kept)))


@dataclass
class _Binder:
    """One constraint on its way into a schema."""

    schema: Schema
    constraint: Constraint
    columns: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)

    def fail(self, why: str) -> NoReturn:
        raise InputError(f"Constraint '{self.constraint}': {why}")

    def column(self, name: str) -> int:
        if name not in self.schema.names:
            words = ("changes",) if isinstance(self.constraint, Comparison) else ()
            hint = self.unquoted(name) or did_you_mean(name, (*self.schema.names, *words))
            self.fail(f"column '{name}' is not in the table.{hint}")
        column = self.schema.index(name)
        self.columns.add(column)
        return column

    def unquoted(self, name: str) -> str:
        """`capital-gain` without its backticks reads as a difference."""
        text = "".join(str(self.constraint).split())
        for known in self.schema.names:
            odd = name in known and re.search(r"\W", known)
            if odd and f"`{known}`" not in text and "".join(known.split()) in text:
                return f" The column '{known}' goes in backticks: `{known}`."
        return ""

    def feature(self, column: int) -> Feature:
        return self.schema.features[column]

    # -- forms ------------------------------------------------------------------------------------

    def node(self, constraint: Constraint) -> Node:
        match constraint:
            case Comparison():
                return self.comparison(constraint)
            case Membership():
                return self.membership(constraint)
            case Transition():
                return self.transition(constraint)
            case Changes(name):
                return self.changes(self.column(name))
            case Conditional(when, then):
                escapes = [negate(self.node(part)) for part in when]
                return Some((*escapes, _every([self.node(part) for part in then])), implied=True)
            case ChangeLimit(relation, count):
                return self.limit(relation, count)
            case Shorthand(word, names):
                return _every([self.against_own(self.column(n), ORDERS[word]) for n in names])
            case Custom():
                return Opaque(constraint)

    def comparison(self, comparison: Comparison) -> Node:
        sides, relations = comparison.sides, comparison.relations
        pairs = zip(sides, relations, sides[1:], strict=False)
        return _every([self.pair(left, relation, right) for left, relation, right in pairs])

    def limit(self, relation: Relation, count: int) -> Count:
        width = len(self.schema.features)
        least, most = {
            "<": (0, count - 1),
            "<=": (0, count),
            "==": (count, count),
            ">=": (count, width),
            ">": (count + 1, width),
        }[relation]
        if most < 0 or least > width:
            self.fail(f"no answer can have that many changes: there are {width} columns.")
        return Count(least, min(most, width))

    def changes(self, column: int) -> Node:
        if self.feature(column).kind == "continuous":
            return Moved(column)
        return negate(self.own_table(column, "=="))

    def membership(self, membership: Membership) -> Node:
        column = self.column(membership.feature)
        if self.feature(column).kind == "continuous":
            numbers = [self.number(column, value) for value in membership.values]
            parts: list[Node] = [self.equal(column, number) for number in numbers]
            if membership.original:
                parts.append(negate(Moved(column)) if membership.negated else Same(column))
            node: Node = _some(parts)
        else:
            codes = [self.code(column, value) for value in membership.values]
            truths = self.only(column, codes)
            if membership.original:
                np.fill_diagonal(truths, 1)  # own level, own unseen level, missing stays missing
            node = self.table(column, truths)
        return negate(node) if membership.negated else node

    def transition(self, transition: Transition) -> Node:
        column = self.column(transition.feature)
        if self.feature(column).kind == "continuous":
            here = [self.own_equal(column, self.number(column, v)) for v in transition.before]
            there = [self.equal(column, self.number(column, v)) for v in transition.after]
            return Some((negate(_some(here)), negate(_some(there)), negate(Moved(column))))
        before = [self.code(column, v) for v in transition.before]
        after = [self.code(column, v) for v in transition.after]
        truths = np.ones_like(self.blank(column))
        truths[np.ix_(before, after)] = -1
        np.fill_diagonal(truths, 1)  # who stays makes no transition
        return self.table(column, truths)

    # -- comparing two sides ----------------------------------------------------------------------

    def pair(self, left: Side, relation: Relation, right: Side) -> Node:
        for side, other, way in ((left, right, relation), (right, left, MIRROR[relation])):
            column = self.of_categories(side)
            if column is None:
                continue
            value = self.literal(column, other)
            if value is not None:
                return self.against(self.column(self.schema.names[column]), way, value)
            if self.is_own(column, other):
                return self.against_own(self.column(self.schema.names[column]), way)
            if (second := self.of_categories(other)) is not None:
                return self.two(column, way, second)
            if self.numbers(column) is None:
                name = self.feature(column).name
                self.fail(
                    f"'{name}' holds categories. Compare it with one of them (in quotes where it "
                    "is not one word), with 'original' or with another column of categories."
                )
        return self.sums(left, relation, right)

    def of_categories(self, side: Side) -> int | None:
        """The column, where a side is nothing but a column of categories."""
        word = side.word if isinstance(side, Linear) else None
        if word is None or word not in self.schema.names:
            return None
        column = self.schema.index(word)
        return None if self.feature(column).kind == "continuous" else column

    def literal(self, column: int, side: Side) -> Value | None:
        """The category or number a side names, where it names one."""
        if isinstance(side, Category):
            return side.name
        if isinstance(side, Absolute):
            return None
        if not side.terms:
            return side.constant
        if side.word is None or _code(self.feature(column), side.word) is not None:
            return side.word
        if side.word in self.schema.names:
            return None
        return side.word  # neither: `code` says so

    def is_own(self, column: int, side: Side) -> bool:
        name = self.feature(column).name
        return isinstance(side, Linear) and side == Linear((Term(1.0, name, original=True),))

    def against(self, column: int, relation: Relation, value: Value) -> Node:
        """A column of categories against one of them, or a number between them."""
        feature = self.feature(column)
        if relation in ("==", "!="):
            node = self.table(column, self.only(column, [self.code(column, value)]))
            return node if relation == "==" else negate(node)
        order = self.order(column, relation)
        code = _code(feature, value)
        if code is None and (isinstance(value, str) or self.numbers(column) is None):
            self.code(column, value)  # says that there is none
        bar = value if code is None else order[code]
        truths = self.blank(column)
        truths[:, : len(order)] = _sign(COMPARE[relation](order, bar), order)
        return self.table(column, truths)

    def against_own(self, column: int, relation: Relation) -> Node:
        feature = self.feature(column)
        if feature.kind != "continuous":
            if relation not in ("==", "!="):
                self.kept.add(column)
            return self.own_table(column, relation)
        term, own = Linear((Term(1.0, feature.name),)), Linear((Term(1.0, feature.name, True),))
        return self.sums(term, relation, own)

    def own_table(self, column: int, relation: Relation) -> Table:
        """A column of categories against the instance's own."""
        truths = self.blank(column)
        known = len(self.feature(column).levels)
        if relation in ("==", "!="):
            truths[:] = -1
            np.fill_diagonal(truths, 1)
            return self.table(column, truths if relation == "==" else -truths)
        order = np.append(self.order(column, relation), np.nan)  # (levels + unseen,)
        verdict = _sign(COMPARE[relation](order, order[:, None]), order + order[:, None])
        # A level whose place is not known can be compared with nothing but itself.
        verdict[verdict == 0] = -1
        if relation in ("<=", ">="):
            np.fill_diagonal(verdict, 1)
        truths[: known + 1, : known + 1] = verdict
        return self.table(column, truths)

    def two(self, first: int, relation: Relation, second: int) -> Node:
        """Two columns of categories: by number, by the one order they share, or by name."""
        a, b = self.feature(first), self.feature(second)
        one, other = self.numbers(first), self.numbers(second)
        if one is None or other is None:
            ordinal = a.kind == b.kind == "ordinal" and a.categories == b.categories
            if relation not in ("==", "!=") and not ordinal:
                self.fail(
                    f"'{a.name}' and '{b.name}' have no order in common. Only ordinals with the "
                    "same levels can be compared by order."
                )
            names = [str(level) for level in (*a.levels, *b.levels)]
            one, other = (np.array([names.index(str(v)) for v in f.levels], float) for f in (a, b))
            if relation not in ("==", "!="):
                one, other = self.order(first, relation), self.order(second, relation)
        left, right = (Linear((Term(1.0, f.name),)) for f in (a, b))
        return self.line(left, relation, right, {first: one, second: other})

    def sums(self, left: Side, relation: Relation, right: Side) -> Node:
        """Numbers on both sides."""
        if isinstance(right, Absolute) and not isinstance(left, Absolute):
            return self.sums(right, MIRROR[relation], left)
        if isinstance(right, Absolute):
            self.fail("abs(…) can stand on one side of a relation only.")
        for side in (left, right):
            if isinstance(side, Category):
                hint = f" The column goes in backticks: `{side.name}`."
                self.fail(
                    f'the category "{side.name}" is compared with something that has none.'
                    f"{hint if side.name in self.schema.names else ''}"
                )
        assert not isinstance(left, Category)
        assert not isinstance(right, Category)
        if not isinstance(left, Absolute):
            return self.line(left, relation, right, {})
        if relation in ("==", "!="):
            parts = [self.sums(left, way, right) for way in ("<=", ">=")]
            return Every(tuple(parts)) if relation == "==" else negate(Every(tuple(parts)))
        minus = tuple(Term(-t.coefficient, t.feature, t.original) for t in left.inner.terms)
        both = (left.inner, Linear(minus, -left.inner.constant))
        lines = tuple(self.line(side, relation, right, {}) for side in both)
        return Every(lines) if relation in ("<=", "<") else Some(lines)

    # -- leaves -----------------------------------------------------------------------------------

    def line(
        self, left: Linear, relation: Relation, right: Linear, worths: dict[int, Floats]
    ) -> Node:
        """One sum against zero, or a table where only one column of categories is in it."""
        if relation in (">", ">="):
            left, right, relation = right, left, MIRROR[relation]
        cells, own = self.collected(left, right)
        used = dict.fromkeys((*cells, *own))
        worths |= {c: self.worth(c) for c in used if not self.continuous(c) and c not in worths}
        if not cells:
            self.fail("says nothing: its columns cancel out.")
        both = set(cells) & set(own)
        constant = left.constant - right.constant
        (first, *others) = used
        alone = both and not others and not constant and self.continuous(first)
        if alone and relation in ("==", "!=") and cells[first] == -own[first]:
            return Same(first) if relation == "==" else Moved(first)
        if relation != "!=":
            self.kept |= both
        free = [c for c in cells if self.continuous(c) and not self.feature(c).resolution]
        steps = [abs(w) * (self.feature(c).step if self.continuous(c) else 1.0)
                 for c, w in cells.items()]  # fmt: skip
        margin = max((abs(cells[c]) * self.feature(c).step for c in free), default=0.0)
        node = Line(
            columns=tuple(cells),
            weights=tuple(cells.values()),
            own=tuple(own),
            own_weights=tuple(own.values()),
            constant=constant,
            relation=relation,  # type: ignore[arg-type]
            worths=worths,
            margin=margin,
            noise=1e-9 * sum(abs(cells[c]) * self.feature(c).span for c in free),
            unit=margin or min(steps),
        )
        return node if self.continuous(first) or others else self.tabled(first, node)

    def collected(self, left: Linear, right: Linear) -> tuple[dict[int, float], dict[int, float]]:
        """The weights of all columns, everything brought to the left."""
        sums: tuple[dict[int, float], dict[int, float]] = ({}, {})
        for side, sign in ((left, 1.0), (right, -1.0)):
            for term in side.terms:
                place, column = sums[term.original], self.column(term.feature)
                place[column] = place.get(column, 0.0) + sign * term.coefficient
        cells, own = ({c: w for c, w in place.items() if w} for place in sums)
        return cells, own

    def tabled(self, column: int, line: Line) -> Table:
        """A line over one column of numbered categories, worked out for every pair of levels."""
        worth = line.worths[column]
        weight, own_weight = sum(line.weights), sum(line.own_weights)
        value = weight * worth + own_weight * worth[:, None] + line.constant  # (own, new)
        slip = 1e-12 * (np.abs(weight * worth) + np.abs(own_weight * worth[:, None]) + 1)
        holds = {"<=": value <= slip, "<": value < -slip, "==": np.abs(value) <= slip}
        holds["!="] = ~holds["=="]
        truths = self.blank(column)
        truths[: len(worth), : len(worth)] = _sign(holds[line.relation], value)
        if not line.own:
            truths[len(worth) :, : len(worth)] = truths[0, : len(worth)]
        return self.table(column, truths)

    def equal(self, column: int, number: float) -> Node:
        term = Linear((Term(1.0, self.feature(column).name),))
        return self.line(term, "==", Linear((), number), {})

    def own_equal(self, column: int, number: float) -> Line:
        return Line((), (), (column,), (1.0,), -number, "==", {}, 0.0, 0.0, 1.0)

    def table(self, column: int, truths: Truth) -> Table:
        return Table(column, truths, self.feature(column).kind == "ordinal")

    def blank(self, column: int) -> Truth:
        """Nothing known: own slots by new slots."""
        levels = len(self.feature(column).levels)
        return np.zeros((levels + 2, levels + 3), dtype=np.int8)

    def only(self, column: int, codes: list[int]) -> Truth:
        """These levels and no others; whether a missing one is among them is not known."""
        truths = self.blank(column) - np.int8(1)
        truths[:, len(self.feature(column).levels) + MISSING] = 0
        truths[:, codes] = 1
        return truths

    # -- what a column's values are ---------------------------------------------------------------

    def continuous(self, column: int) -> bool:
        return self.feature(column).kind == "continuous"

    def number(self, column: int, value: Value) -> float:
        if isinstance(value, str):
            self.fail(f"'{self.feature(column).name}' holds numbers, and '{value}' is none.")
        return value

    def code(self, column: int, value: Value) -> int:
        feature = self.feature(column)
        code = _code(feature, value)
        if code is None:
            text = value if isinstance(value, str) else f"{value:g}"
            hint = did_you_mean(text, feature.levels)
            self.fail(
                f"'{text}' is not a category of '{feature.name}'.{hint} There are: "
                f"{_listed(feature.categories)}."
            )
        return code

    def numbers(self, column: int) -> Floats | None:
        """What each level counts, where levels are numbers (and, of an ordinal, rise)."""
        feature = self.feature(column)
        if any(isinstance(level, str) for level in feature.levels):
            return None
        worth = np.array([float(level) for level in feature.levels])
        known = worth[: len(feature.categories)]
        return None if feature.kind == "ordinal" and (np.diff(known) <= 0).any() else worth

    def worth(self, column: int) -> Floats:
        worth = self.numbers(column)
        if worth is None:
            name = self.feature(column).name
            self.fail(f"'{name}' holds categories that are no numbers; it cannot be added up.")
        return worth

    def order(self, column: int, relation: Relation) -> Floats:
        """What to compare levels by; an unknown level of an ordinal has no place."""
        feature = self.feature(column)
        worth = self.numbers(column)
        if worth is not None:
            return worth
        if feature.kind != "ordinal":
            self.fail(
                f"'{feature.name}' has no order, so '{relation}' means nothing. Use == or "
                "'in {…}', or make it an ordinal: Feature.ordinal(name, [least, …, greatest])."
            )
        places = np.arange(len(feature.levels), dtype=float)
        return np.where(places < len(feature.categories), places, np.nan)


def _code(feature: Feature, value: Value) -> int | None:
    """The level a word or number names."""
    for code, level in enumerate(feature.levels):
        if isinstance(value, str):
            same = str(level) == value or (isinstance(level, bool) and str(level).lower() == value)
        else:
            same = _spelt(level) == value
        if same:
            return code
    return None


def _spelt(level: object) -> float:
    try:
        return float(level)  # type: ignore[arg-type]
    except ValueError:
        return float("nan")


def _sign(holds: Any, known: Floats) -> Any:
    return np.where(np.isnan(known), 0, np.where(holds, 1, -1))


def _every(parts: Sequence[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Every(tuple(parts))


def _some(parts: Sequence[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Some(tuple(parts))


def _listed(levels: Sequence[object], most: int = 8) -> str:
    texts = [str(level) for level in levels[:most]]
    return ", ".join(texts) + (", …" if len(levels) > most else "")


assert (UNSEEN, MISSING) == (0, 1)  # `np.fill_diagonal` above counts on this order of slots
