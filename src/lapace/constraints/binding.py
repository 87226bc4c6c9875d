"""Binds constraints to a schema: names become positions, words become categories, text a formula.

Whether a word is a column or a category is decided here. On the other side of a column of
categories a bare word is one of its categories if it has one of that name, else a column; in quotes
it is always a category.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from lapace.arrays import Floats
from lapace.constraints import language
from lapace.constraints.formulas import (
    ROUNDING,
    BoundConstraint,
    ChangeCount,
    Formula,
    LevelTable,
    LinearRelation,
    Unchanged,
    all_of,
    any_of,
    negate,
)
from lapace.constraints.language import MIRROR, Category, Constraint, Linear, Relation, Side, Value
from lapace.errors import InputError, did_you_mean
from lapace.schema import Feature, Schema
from lapace.schema.columns import folded

ORDERS: dict[str, Relation] = {"fixed": "==", "increasing": ">=", "decreasing": "<="}
# The signs that a difference may have for a relation to hold.
SIGNS: dict[Relation, tuple[int, ...]] = {
    "<": (-1,), "<=": (-1, 0), "==": (0,), ">=": (0, 1), ">": (1,), "!=": (-1, 1),
}  # fmt: skip


def bind(constraint: Constraint, schema: Schema) -> BoundConstraint:
    """Resolves a constraint; an `InputError` says what in it is not in the schema."""
    binder = _Binder(schema, constraint)
    formula = binder.formula(constraint)
    columns, compared = tuple(sorted(binder.columns)), tuple(sorted(binder.compared))
    learned = getattr(constraint, "learned", False)
    return BoundConstraint(constraint, formula, columns, compared, learned)


@dataclass
class _Binder:
    """One constraint being resolved against a schema."""

    schema: Schema
    constraint: Constraint
    columns: set[int] = field(default_factory=set)
    compared: set[int] = field(default_factory=set)

    def fail(self, why: str) -> NoReturn:
        raise InputError(f"Constraint '{self.constraint}': {why}")

    def column(self, name: str) -> int:
        if name not in self.schema.names:
            compares = isinstance(self.constraint, language.Comparison)
            words = ("changes", "original") if compares else ()
            hint = self.unquoted_hint(name) or did_you_mean(name, (*self.schema.names, *words))
            self.fail(f"column '{name}' is not in the table.{hint}")
        column = self.schema.index(name)
        self.columns.add(column)
        return column

    def unquoted_hint(self, name: str) -> str:
        """Returns a hint for `capital-gain` without its backticks, which reads as a difference."""
        text = "".join(str(self.constraint).split())
        for other in self.schema.names:
            needs_quotes = name in other and re.search(r"\W", other)
            if needs_quotes and f"`{other}`" not in text and "".join(other.split()) in text:
                return f" The column '{other}' goes in backticks: `{other}`."
        return ""

    def feature(self, column: int) -> Feature:
        return self.schema.features[column]

    def continuous(self, column: int) -> bool:
        return self.feature(column).kind == "continuous"

    # -- forms ------------------------------------------------------------------------------------

    def formula(self, constraint: Constraint) -> Formula:
        match constraint:
            case language.Comparison():
                return all_of([self.pair(*pair) for pair in constraint.pairs])
            case language.Membership(name, values, original, negated):
                member = self.member(name, values, original=original)
                return negate(member) if negated else member
            case language.Transition(name, before, after):
                return self.transition(self.column(name), before, after)
            case language.Changes(name):
                return self.versus_original(name, "!=")
            case language.Conditional(when, then):
                escapes = [negate(self.formula(part)) for part in when]
                return any_of([*escapes, all_of([self.formula(part) for part in then])])
            case language.ChangeLimit(most):
                return ((ChangeCount(most),),)
            case language.Shorthand(word, names):
                return all_of([self.versus_original(name, ORDERS[word]) for name in names])

    def versus_original(self, name: str, relation: Relation) -> Formula:
        self.column(name)
        return self.pair(_term(name), relation, _term(name, original=True))

    def member(self, name: str, values: Sequence[Value], *, original: bool) -> Formula:
        self.column(name)
        literals = [Category(v) if isinstance(v, str) else Linear((), v) for v in values]
        parts = [self.pair(_term(name), "==", literal) for literal in literals]
        if original:  # at the column's resolution
            parts.append(negate(self.versus_original(name, "!=")))
        return any_of(parts)

    def transition(self, column: int, before: Sequence[Value], after: Sequence[Value]) -> Formula:
        if self.continuous(column):
            name = self.feature(column).name
            self.fail(f"'{name}' holds numbers, and only categories have transitions. Use 'if'.")
        old, new = ([self.code(column, value) for value in values] for values in (before, after))
        truths = np.ones((len(self.feature(column).levels) + 1,) * 2, dtype=np.int8)
        truths[np.ix_(old, new)] = -1
        np.fill_diagonal(truths, 1)  # a category may stay
        return ((self.table(column, truths),),)

    # -- comparing two sides ----------------------------------------------------------------------

    def pair(self, left: Side, relation: Relation, right: Side) -> Formula:
        for number, other in ((left, right), (right, left)):
            self.refuse_number_for_date(number, other)
        left, right = self.unwritten(left, right), self.unwritten(right, left)
        for side, other, op in ((left, right, relation), (right, left, MIRROR[relation])):
            column = self.category_column(side)
            if column is None:
                continue
            name = self.feature(column).name
            value = self.literal(column, other)
            if value is not None:
                return self.level(self.column(name), op, value)
            if other == _term(name, original=True):
                return self.original_level(self.column(name), op)
            if self.numbers(column) is None:
                self.fail(
                    f"'{name}' holds categories. Compare it with one of them (in quotes where it "
                    "is not one word) or with 'original'."
                )
        return self.sums(left, relation, right)

    def refuse_number_for_date(self, number: Side, other: Side) -> None:
        """Refuses a bare number beside a date: 12/2023 is a fraction, not a month."""
        if isinstance(number, Category) or number.terms or isinstance(other, Category):
            return
        dates = [t.feature for t in other.terms if t.feature in self.schema.names]
        dates = [name for name in dates if self.schema[name].is_date]
        if dates and sum(t.coefficient for t in other.terms):  # else it is a number of days
            self.fail(
                f"'{dates[0]}' holds dates. Compare it with one written like "
                f"{self.schema[dates[0]].written}, or with 'original'."
            )

    def unwritten(self, side: Side, other: Side) -> Side:
        """Reads a side as a number, where the other is a column of numbers that may write it so."""
        text = side.name if isinstance(side, Category) else side.word
        if text is None or len(names := {t.feature for t in other.terms}) != 1:
            return side
        (name,) = names
        known = self.schema.names
        if name not in known or (text in known and not isinstance(side, Category)):
            return side
        feature = self.schema[name]
        bare = text if feature.written else text.strip("$£€ ")  # £900 where the table has 900
        number = feature.number(bare) if feature.kind == "continuous" else None
        if number is not None and not np.isnan(number):
            return Linear((), number)
        amount = feature.written or re.search(r"\d", text)  # else it is meant for a category
        if amount and feature.kind == "continuous" and text not in known and side.word is None:
            like = feature.written if feature.is_date else feature.text(feature.upper)
            self.fail(f"'{text}' is not written as '{name}' is, like {like}.")
        return side

    def category_column(self, side: Side) -> int | None:
        """Returns the column, where a side is nothing but a column of categories."""
        if side.word is None or side.word not in self.schema.names:
            return None
        column = self.schema.index(side.word)
        return None if self.continuous(column) else column

    def literal(self, column: int, side: Side) -> Value | None:
        """Returns the category or number that a side names, if it names one."""
        if isinstance(side, Category):
            return side.name
        if isinstance(side, Linear) and not side.terms:
            return side.constant
        if side.word is None or _code(self.feature(column), side.word) is not None:
            return side.word
        return None if side.word in self.schema.names else side.word  # neither: `code` says so

    def level(self, column: int, relation: Relation, value: Value) -> Formula:
        """Compares a column of categories with one of them, or a number between them."""
        levels = np.arange(len(self.feature(column).levels), dtype=float)
        if relation in ("==", "!="):
            return self.compared_levels(column, levels, relation, self.code(column, value))
        order, code = self.order(column, relation), _code(self.feature(column), value)
        if code is None and (isinstance(value, str) or self.numbers(column) is None):
            self.code(column, value)  # raises: there is no such category
        bar = float(value if code is None else order[code])
        if np.isnan(bar):
            self.fail(f"'{value}' was not seen in training and has no place in the order.")
        return self.compared_levels(column, order, relation, bar)

    def original_level(self, column: int, relation: Relation) -> Formula:
        """Compares a column of categories with the instance's level."""
        if relation in ("==", "!="):
            size = len(self.feature(column).levels) + 1  # the last for missing, which may stay so
            same = np.where(np.eye(size, dtype=bool), 1, -1)
            return ((self.table(column, same if relation == "==" else -same),),)
        self.compared.add(column)
        order = self.order(column, relation)
        ((compared,),) = self.compared_levels(column, order, relation, np.append(order, np.nan))
        assert isinstance(compared, LevelTable)
        # An unseen level has no place in the order: it can be compared with nothing but itself.
        between = compared.truths[: compared.levels, : compared.levels]
        between[between == 0] = -1
        if relation in ("<=", ">="):
            np.fill_diagonal(between, 1)
        return ((compared,),)

    def sums(self, left: Side, relation: Relation, right: Side) -> Formula:
        """Compares numbers on both sides."""
        for side in (left, right):
            if isinstance(side, Category):
                is_column = side.name in self.schema.names
                hint = f" The column goes in backticks: `{side.name}`." if is_column else ""
                self.fail(f'the category "{side.name}" is compared with numbers.{hint}')
        assert isinstance(left, Linear)
        assert isinstance(right, Linear)
        return self.relation(left, relation, right)

    def relation(self, left: Linear, relation: Relation, right: Linear) -> Formula:
        """Compares one sum with zero; a table where it has one column of categories alone."""
        if relation in (">", ">="):
            left, right, relation = right, left, MIRROR[relation]
        for term in (*left.terms, *right.terms):
            self.column(term.feature)  # refused if it is not in the table, even where it cancels
        apart = left + right.scaled(-1.0)
        cells, originals = (
            {self.schema.index(t.feature): t.coefficient for t in apart.terms if t.original == own}
            for own in (False, True)
        )
        if not cells:
            self.fail("says nothing: its columns cancel out.")
        both = cells.keys() & originals.keys()
        (first, *more) = dict.fromkeys((*cells, *originals))
        alone = both and not more and not apart.constant and self.continuous(first)
        if alone and relation in ("==", "!=") and cells[first] == -originals[first]:
            return ((Unchanged(first, exact=relation == "==", negated=relation == "!="),),)
        if relation != "!=":
            self.compared |= both
        values = {c: self.summands(c) for c in (first, *more) if not self.continuous(c)}
        if more or self.continuous(first):
            sum_ = cells, originals, apart.constant
            return ((LinearRelation.of(self.schema, *sum_, relation, values),),)
        others: Floats | float = -apart.constant
        if originals:
            others = others - originals[first] * np.append(values[first], np.nan)
        return self.compared_levels(first, cells[first] * values[first], relation, others)

    # -- tables -----------------------------------------------------------------------------------

    def table(self, column: int, truths: np.ndarray) -> LevelTable:
        ordered = self.feature(column).kind == "ordinal"
        return LevelTable(column, truths.astype(np.int8), ordered)

    def compared_levels(
        self, column: int, numbers: Floats, relation: Relation, others: Floats | float
    ) -> Formula:
        """Compares the number of a row's level, by level, with one number or the instance's.

        Args:
            column: The column.
            numbers: The number of each level of the row; NaN for none.
            relation: The relation.
            others: One number, or that of each level of the instance and of a missing one.
        """
        new, old = np.append(numbers, np.nan), np.reshape(others, (-1, 1))
        apart = np.broadcast_to(new - old, (len(new), len(new)))
        equal = np.abs(apart) <= ROUNDING * (np.abs(new) + np.abs(old))
        holds = np.isin(np.where(equal, 0, np.sign(apart)), SIGNS[relation])
        truths = np.where(np.isnan(apart), 0, np.where(holds, 1, -1))
        return ((self.table(column, truths),),)

    # -- a column's values ------------------------------------------------------------------------

    def code(self, column: int, value: Value) -> int:
        feature = self.feature(column)
        code = _code(feature, value)
        if code is None:
            text = value if isinstance(value, str) else f"{value:g}"
            more = ", …" if len(feature.categories) > 8 else ""
            self.fail(
                f"'{text}' is not a category of '{feature.name}'."
                f"{did_you_mean(text, feature.levels)} There are: "
                f"{', '.join(map(str, feature.categories[:8]))}{more}."
            )
        return code

    def numbers(self, column: int) -> Floats | None:
        """Returns the number of each level, where levels are numbers (an ordinal's must rise)."""
        feature = self.feature(column)
        if any(isinstance(level, str) for level in feature.levels):
            return None
        numbers = np.array([float(level) for level in feature.levels])
        seen = numbers[: len(feature.categories)]
        return None if feature.kind == "ordinal" and (np.diff(seen) <= 0).any() else numbers

    def summands(self, column: int) -> Floats:
        numbers, name = self.numbers(column), self.feature(column).name
        if numbers is None:
            self.fail(
                f"'{name}' holds categories that are not numbers, so they cannot be added up."
            )
        return numbers

    def order(self, column: int, relation: Relation) -> Floats:
        """Returns what levels are compared by; NaN for an ordinal's level unseen in training."""
        feature, numbers = self.feature(column), self.numbers(column)
        if numbers is not None:
            return numbers
        if feature.kind != "ordinal":
            self.fail(
                f"'{feature.name}' has no order, so '{relation}' means nothing. Use == or "
                f"'in {{…}}', or give it one: --kind '{feature.name}=ordinal:least<…<greatest', in "
                f"Python Feature('{feature.name}', 'ordinal', categories=[least, …, greatest])."
            )
        places = np.arange(len(feature.levels), dtype=float)
        return np.where(places < len(feature.categories), places, np.nan)


def _term(name: str, *, original: bool = False) -> Linear:
    return Linear((language.Term(1.0, name, original),))


def _code(feature: Feature, value: Value) -> int | None:
    """Returns the level that a word or number names."""
    for code, level in enumerate(feature.levels):
        if isinstance(value, str):
            same = str(level) == value or (isinstance(level, bool) and str(level).lower() == value)
            same = same or (feature.ignore_case and folded(level) == folded(value))
        else:
            same = _as_float(level) == value
        if same:
            return code
    return None


def _as_float(level: object) -> float:
    try:
        return float(level)  # type: ignore[arg-type]
    except ValueError:
        return float("nan")
