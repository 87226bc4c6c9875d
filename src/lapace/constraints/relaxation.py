"""How far a constraint would have to be relaxed to admit a row, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lapace.arrays import Floats
from lapace.constraints import language
from lapace.constraints.binding import bind
from lapace.constraints.language import (
    Absolute,
    ChangeLimit,
    Comparison,
    Constraint,
    Linear,
    Relation,
    Shorthand,
    Side,
    Term,
)
from lapace.constraints.logic import ComparedRows, slack
from lapace.constraints.system import System
from lapace.schema import Feature, Schema
from lapace.schema.features import on_lattice

__all__ = ["Relaxation", "amount_text", "joined", "relaxation", "relaxed", "violation_scales"]

VERBS = {"fixed": "change", "increasing": "fall", "decreasing": "rise"}  # against each shorthand


class Relaxation(NamedTuple):
    """How far a constraint would have to be relaxed.

    Attributes:
        by: In its own units; None where it is not a number: a category, a Python function, several
            columns at once.
        text: The same in words, to follow the constraint: `would have to allow 12 more`.
    """

    by: float | None
    text: str


def relaxation(constraint: Constraint, schema: Schema, row: Floats, original: Floats) -> Relaxation:
    """How far a constraint would have to be relaxed to admit a row.

    Args:
        constraint: A constraint, which the row need not violate.
        schema: The columns.
        row: Cells (d,).
        original: Cells of the instance the row is for, (d,).

    Examples:
        >>> from lapace.constraints import parse
        >>> schema = Schema.infer([{"age": 20 + i % 50, "hours": i % 60} for i in range(300)])
        >>> row, original = np.array([25.0, 52.0]), np.array([30.0, 50.0])
        >>> relaxation(parse("hours <= 40"), schema, row, original).text
        'would have to allow 12 more'
        >>> relaxation(parse("age >= original"), schema, row, original).text
        'would have to allow 5 less'
    """
    if bind(constraint, schema).holds(ComparedRows(schema, row[None], original[None]))[0]:
        return Relaxation(0.0, "holds on this row all the same")
    by, text = _Violations(schema, row, original).allowance(constraint)
    return Relaxation(by, f"would have to allow {text}")


def relaxed(
    constraint: Constraint,
    schema: Schema,
    by: float | None,
    row: Floats,
    original: Floats | None = None,
) -> Constraint | None:
    """The constraint relaxed by an amount, or so that a category is admitted; None if it cannot be.

    Args:
        constraint: The constraint.
        schema: The columns.
        by: The amount, in its own units, as `relaxation` gives it; None where it has none.
        row: A row that a set of values would have to admit.
        original: The instance that the row is for: of `fixed a, b` only what the row changes is
            then left out.

    Examples:
        >>> from lapace.constraints import parse
        >>> schema = Schema.infer([{"age": 20 + i % 50, "hours": i % 60} for i in range(300)])
        >>> row = np.array([25.0, 52.0])
        >>> for text in ("hours <= 40", "increasing age", "fixed hours", "10 <= hours <= 20"):
        ...     print(relaxed(parse(text), schema, 12, row))
        hours <= 52
        age >= original - 12
        abs(hours - original) <= 12
        -2 <= hours <= 32
        >>> print(relaxed(parse("changes <= 1"), schema, 1, row))
        changes <= 2
        >>> original = np.array([25.0, 40.0])
        >>> print(relaxed(parse("fixed age, hours"), schema, None, row, original))
        fixed age
    """
    match constraint:
        case Shorthand(word, several) if len(several) > 1 and original is not None:
            rows = ComparedRows(schema, row[None], original[None])
            each = [Shorthand(word, (name,)) for name in several]
            kept = [c.features[0] for c in each if bind(c, schema).holds(rows)[0]]
            return replace(constraint, features=tuple(kept)) if kept else None
        case ChangeLimit("<=" | "<", count) if by is not None:
            return ChangeLimit(constraint.relation, count + round(by))
        case ChangeLimit(">=" | ">", count) if by is not None:
            return ChangeLimit(constraint.relation, max(0, count - round(by)))
        case Shorthand(word, (name,)) if by is not None and schema[name].kind == "continuous":
            column, own = (Linear((Term(1.0, name, original=o),)) for o in (False, True))
            relations: dict[str, Relation] = {"increasing": ">=", "decreasing": "<="}
            return _apart(column, relations.get(word, "=="), own, by)
        case Comparison(sides, relations_) if by is not None and all(
            isinstance(side, Linear | Absolute) for side in sides
        ):
            names = [name for name in constraint.words if name in schema.names]
            numbers = names and all(schema[name].kind == "continuous" for name in names)
            return _wider(constraint, relations_, by) if numbers else None
        case language.Membership(name) if schema[name].categories:
            return _admitting(constraint, schema[name], row[schema.index(name)])
    return None


def _admitting(
    membership: language.Membership, feature: Feature, cell: float
) -> language.Membership | None:
    """A set of values that admits a category."""
    if np.isnan(cell):
        return None
    value = str(feature.levels[int(cell)])
    values = (*membership.values, value)
    if membership.negated:
        values = tuple(v for v in membership.values if str(v) != value)
    return replace(membership, values=values) if values else None


def _wider(comparison: Comparison, relations: Sequence[Relation], by: float) -> Constraint | None:
    """A comparison of numbers with an amount added where it bounds them."""
    kinds = {relation[0] for relation in relations}
    if len(relations) == 1 and relations[0] == "==":
        left, right = comparison.sides
        return _apart(left, "==", right, by)
    if kinds not in ({"<"}, {">"}) or any(isinstance(s, Absolute) for s in comparison.sides[1:]):
        return None
    sign = 1.0 if kinds == {"<"} else -1.0
    still = len(relations) - 1  # the side that stays: the left one, or the middle of three
    sides = tuple(
        side + Linear((), sign * (k - still) * by)
        if k != still and isinstance(side, Linear)
        else side
        for k, side in enumerate(comparison.sides)
    )
    return Comparison(sides, tuple(relations)) if len(relations) <= 2 else None


def _apart(left: Side, relation: Relation, right: Side, by: float) -> Constraint | None:
    """Two sides that may differ by an amount."""
    if not (isinstance(left, Linear) and isinstance(right, Linear)):
        return None
    if relation == "==":
        apart = Absolute(left + right.scaled(-1.0))
        return Comparison((apart, Linear((), by)), ("<=",))
    sign = 1.0 if relation.startswith("<") else -1.0
    return Comparison((left, right + Linear((), sign * by)), (relation,))


def violation_scales(system: System) -> Floats:
    """What the slack of each constraint is divided by, so that slacks can be added up.

    The widest range of the numbers a constraint names; for a limit on changes the number of
    columns; for anything else 1.
    """
    features = system.schema.features
    found = []
    for bound in system.bound:
        spans = [features[c].span for c in bound.columns if features[c].numeric]
        limit = isinstance(bound.constraint, ChangeLimit)
        found.append(float(len(features)) if limit else max(spans, default=1.0))
    return np.array(found)


def joined(texts: Sequence[str], word: str = "and") -> str:
    """Texts as a list in a sentence.

    Examples:
        >>> joined(["age", "hours", "job"])
        'age, hours and job'
    """
    texts = list(texts)
    return f" {word} ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


class _Violations:
    """What constraints would have to allow for one row of one instance."""

    def __init__(self, schema: Schema, row: Floats, original: Floats) -> None:
        self.schema = schema
        self.row = row
        self.original = original
        self.rows = ComparedRows(schema, row[None], original[None])

    def allowance(self, constraint: Constraint) -> tuple[float | None, str]:
        """How far a violated constraint has to be relaxed, and what it would have to allow."""
        bound = bind(constraint, self.schema)
        named = list({*bound.columns, *bound.compared})
        gone = np.isnan(self.row[named]) != np.isnan(self.original[named])
        if gone.any():  # no distance to a missing value
            return None, self._values([named[i] for i in np.flatnonzero(gone)])
        match constraint:
            case Comparison():
                return self._comparison(constraint)
            case ChangeLimit(relation):
                return self._change_limit(constraint, relation)
            case Shorthand():
                return self._shorthand(constraint)
            case language.Conditional():
                return self._conditional(constraint)
            case language.Membership(name) | language.Transition(name) | language.Changes(name):
                column = self.schema.index(name)
                by = self._slack(constraint) if self._is_number(column) else None
                return by, self._values([column])
            case _:
                return None, "this row"

    def _slack(self, constraint: Constraint) -> float:
        distance = slack(bind(constraint, self.schema).formula, self.rows)[0]
        return float(f"{distance:.12g}")  # 0.1 + 0.2 is 0.3 here too

    def _is_number(self, column: int) -> bool:
        return self.schema.features[column].numeric

    def _values(self, columns: Sequence[int]) -> str:
        """The row's values of columns."""
        features = [self.schema.features[c] for c in columns]
        return joined(
            [f"{f.name} {f.text(self.row[c])}" for f, c in zip(features, columns, strict=True)]
        )

    # -- comparisons ------------------------------------------------------------------------------

    def _comparison(self, comparison: Comparison) -> tuple[float | None, str]:
        for left, relation, right in comparison.pairs:
            part = Comparison((left, right), (relation,))
            bound = bind(part, self.schema)
            if bound.holds(self.rows)[0]:
                continue
            if all(self.schema.features[c].kind != "continuous" for c in bound.columns):
                return self._categories(part, bound.columns)
            number_first = isinstance(left, Linear) and not left.terms  # 20 <= hours: hours >= 20
            return self._numbers(part, language.MIRROR[relation] if number_first else relation)
        raise AssertionError("no part of a violated comparison is violated")

    def _numbers(self, part: Comparison, relation: str) -> tuple[float | None, str]:
        """One relation between numbers."""
        far = self._slack(part)
        text = amount_text(far, self._subject(part))
        match relation:
            case "<=" | "<":
                return far, f"{text} more"
            case ">=" | ">":
                return far, f"{text} less"
            case "==":
                return far, f"a difference of {text}"
        return None, self._values([self.schema.index(name) for name in part.words])

    def _categories(self, part: Comparison, columns: Sequence[int]) -> tuple[float | None, str]:
        """Levels of one ordinal can be counted; other categories cannot."""
        values = self._values(columns)
        if len(columns) > 1 or not self._is_number(columns[0]):
            return None, values
        far = self._slack(part)
        return far, f"{values}, {far:.0f} level{'s' * (far != 1)} off"

    def _subject(self, part: Comparison) -> Feature:
        """The column whose format the slack of a relation is written in."""
        named = [t.feature for t in part.terms if abs(t.coefficient) == 1 and not t.original]
        return self.schema[named[0] if named else part.words[0]]

    # -- the rest ---------------------------------------------------------------------------------

    def _change_limit(self, limit: ChangeLimit, relation: str) -> tuple[float | None, str]:
        far = self._slack(limit)
        many = int(self.schema.changed(self.row, self.original).sum())
        if relation == "==":
            return far, f"{many} change{'s' * (many != 1)}"
        word = "more" if relation in ("<=", "<") else "fewer"
        return far, f"{far:.0f} {word}"

    def _shorthand(self, shorthand: Shorthand) -> tuple[float | None, str]:
        """Column by column: `fixed age, job` may be violated in one of them or in both."""
        by: list[float | None] = []
        texts = []
        for name in shorthand.features:
            alone = Shorthand(shorthand.word, (name,))
            if bind(alone, self.schema).holds(self.rows)[0]:
                continue
            column, feature = self.schema.index(name), self.schema[name]
            by.append(self._slack(alone) if self._is_number(column) else None)
            if feature.kind != "continuous":
                texts.append(f"{name} to become {feature.text(self.row[column])}")
                continue
            far = amount_text(by[-1] or 0.0, feature)
            texts.append(f"{name} to {VERBS[shorthand.word]} by {far}")
        single = by[0] if len(by) == 1 else None
        return single, joined(texts)

    def _conditional(self, conditional: language.Conditional) -> tuple[float | None, str]:
        """What follows `then` is what would have to move."""
        violated = [
            part for part in conditional.then if not bind(part, self.schema).holds(self.rows)[0]
        ]
        if len(violated) != 1:
            columns = sorted({c for part in violated for c in bind(part, self.schema).columns})
            return None, self._values(columns)
        by, text = self.allowance(violated[0])
        if text.endswith(("more", "less")):
            text += f" than '{violated[0]}'"
        return by, text


def amount_text(number: float, feature: Feature) -> str:
    """A difference of a column in its format where it lies on its lattice, else with a few digits.

    Examples:
        >>> amount_text(3.0, Feature.continuous("delivered", written="2024-12-31"))
        '3 days'
    """
    if feature.is_date:
        unit = "day" if number == 1 else "days"
        return Feature.continuous(feature.name, unit=unit).text(number)
    lattice = feature.kind == "continuous" and feature.resolution
    if lattice and np.isclose(on_lattice(np.array(number), feature.resolution), number):
        return feature.text(number)
    return Feature.continuous(feature.name).text(number)
