"""Constraints as small frozen values that print as the text they are read from.

`str` gives the canonical text and `parse` reads it back: `parse(str(c)) == c`. Nothing here depends
on a table; whether a name is a column or a category is decided when it is bound to a schema.

```
Comparison    20 <= hours <= 60        2*rent + instalment <= 0.4*income      income >= original
Membership    education in {bachelor, master}          purpose not in {car}
Transition    not education: master -> bachelor
Changes       job changes                                                     (mostly after `if`)
Conditional   if job changes then tenure == 0
ChangeLimit   changes <= 3
Shorthand     fixed age, sex           increasing income                      decreasing debt
```

Every constraint has a `note`, a sentence that says why and takes no part in comparisons, and
`mentions_original`: whether the rows it allows depend on the instance. A `Comparison` or
`Conditional` may be `learned` from the training table: then it is not asked of the counterfactuals
of an instance that breaks it itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias

Relation: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]
Value: TypeAlias = str | float  # a category by name, or a number
Keyword: TypeAlias = Literal["fixed", "increasing", "decreasing"]

# Words of the language itself: a column of that name is written in backticks.
KEYWORDS = frozenset(
    "and changes decreasing fixed if in increasing not original then".split()  # noqa: SIM905
)
NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
# `a <= b` says the same as `b MIRROR[<=] a`.
MIRROR: dict[Relation, Relation] = {
    "<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!=",
}  # fmt: skip


# ------------------------------------------------------------------------------------------------
# Names and numbers as text


def _is_bare(name: str) -> bool:
    """Whether a name needs no quotes: letters, digits and underscores, no number, no keyword."""
    word = re.fullmatch(r"\w+", name) and not re.fullmatch(NUMBER, name)
    return bool(word) and name not in KEYWORDS


def column_text(name: str) -> str:
    """Returns a column's name as the language writes it."""
    return name if _is_bare(name) else "`" + name.replace("`", "``") + "`"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _number(value: float) -> str:
    """A number without a needless `.0`."""
    return repr(float(value) + 0.0).removesuffix(".0")  # adding zero turns -0.0 into 0.0


def _value(value: Value) -> str:
    if not isinstance(value, str):
        return _number(value)
    return value if _is_bare(value) else _quoted(value)


def _values(values: Iterable[Value]) -> str:
    texts = [_value(v) for v in values]
    return texts[0] if len(texts) == 1 else "{" + ", ".join(texts) + "}"


# ------------------------------------------------------------------------------------------------
# Sides of a comparison


@dataclass(frozen=True)
class Term:
    """A column, or the instance's original value of it, times a number.

    Examples:
        >>> from lapace.constraints import Comparison, Linear, parse
        >>> sides = Linear((Term(2.0, "rent"),)), Linear((Term(1.0, "income", original=True),))
        >>> Comparison(sides, ("<=",)) == parse("2*rent <= original(income)")
        True
    """

    coefficient: float
    feature: str
    original: bool = False

    def text(self, *, only: bool) -> str:
        """Writes the term; `only` where no other column is named, so that `original` is clear."""
        name = column_text(self.feature)
        if self.original:
            name = "original" if only else f"original({name})"
        size = abs(self.coefficient)
        return name if size == 1 else f"{_number(size)}*{name}"


@dataclass(frozen=True)
class Linear:
    """A sum of terms and a constant; one column alone is the sum of one term."""

    terms: tuple[Term, ...] = ()
    constant: float = 0.0

    def __add__(self, other: Linear) -> Linear:
        """Adds two sums; terms of one column are joined, those that cancel are left out."""
        totals: dict[tuple[str, bool], float] = {}
        for term in (*self.terms, *other.terms):
            key = (term.feature, term.original)
            totals[key] = totals.get(key, 0.0) + term.coefficient
        terms = tuple(Term(c, feature, original) for (feature, original), c in totals.items() if c)
        return Linear(terms, self.constant + other.constant)

    def scaled(self, factor: float) -> Linear:
        """Multiplies every term and the constant by a number."""
        terms = (replace(t, coefficient=t.coefficient * factor) for t in self.terms)
        return Linear(tuple(t for t in terms if t.coefficient), self.constant * factor + 0.0)

    def text(self, *, only: bool) -> str:
        """Writes the sum, terms first."""
        parts = [("-" if t.coefficient < 0 else "+", t.text(only=only)) for t in self.terms]
        if self.constant or not parts:
            parts.append(("-" if self.constant < 0 else "+", _number(abs(self.constant))))
        sign, first = parts[0]
        rest = "".join(f" {sign} {text}" for sign, text in parts[1:])
        return ("-" if sign == "-" else "") + first + rest

    @property
    def word(self) -> str | None:
        """The name, where the side is a name alone: it may turn out to be a category."""
        if self.constant == 0 and len(self.terms) == 1:
            (term,) = self.terms
            return term.feature if term.coefficient == 1 and not term.original else None
        return None


@dataclass(frozen=True)
class Category:
    """A category in quotes: never a column."""

    name: str
    terms: ClassVar[tuple[Term, ...]] = ()
    word: ClassVar[None] = None

    def text(self, *, only: bool) -> str:  # noqa: ARG002 (one signature for all sides)
        """Writes the side."""
        return _quoted(self.name)


Side: TypeAlias = Linear | Category


# ------------------------------------------------------------------------------------------------
# Constraints


def _note() -> Any:
    return field(default="", compare=False, kw_only=True)


def _learned() -> Any:
    return field(default=False, compare=False, kw_only=True, repr=False)


@dataclass(frozen=True)
class Comparison:
    """Two or more sides with a relation between each and the next.

    Examples:
        >>> from lapace.constraints import parse
        >>> parse("years_employed<=age-16")
        Comparison(sides=(Linear(terms=(Term(coefficient=1.0, feature='years_employed', ...
        >>> print(parse("20 ≤ hours < 60"))
        20 <= hours < 60
    """

    sides: tuple[Side, ...]
    relations: tuple[Relation, ...]
    note: str = _note()
    learned: bool = _learned()

    @property
    def terms(self) -> tuple[Term, ...]:
        """All terms of all sides."""
        return tuple(term for side in self.sides for term in side.terms)

    @property
    def words(self) -> tuple[str, ...]:
        """Every name, each once; some may turn out to be categories."""
        return tuple(dict.fromkeys(term.feature for term in self.terms))

    @property
    def mentions_original(self) -> bool:
        """Whether `original` is in it."""
        return any(term.original for term in self.terms)

    @property
    def pairs(self) -> tuple[tuple[Side, Relation, Side], ...]:
        """Each relation with the sides before and after it."""
        return tuple(zip(self.sides, self.relations, self.sides[1:], strict=False))

    def __str__(self) -> str:
        only = len(self.words) == 1
        first, *others = (side.text(only=only) for side in self.sides)
        return first + "".join(f" {r} {t}" for r, t in zip(self.relations, others, strict=True))


@dataclass(frozen=True)
class Membership:
    """One of some values, or none of them; `original` among them is the instance's value.

    Examples:
        >>> from lapace.constraints import parse
        >>> print(parse("education in {bachelor, 'some college'}"))
        education in {bachelor, "some college"}
    """

    feature: str
    values: tuple[Value, ...]
    original: bool = False
    negated: bool = False
    note: str = _note()

    @property
    def mentions_original(self) -> bool:
        """Whether the instance's value is among the values."""
        return self.original

    def __str__(self) -> str:
        texts = ["original"] * self.original + [_value(v) for v in self.values]
        word = "not in" if self.negated else "in"
        return f"{column_text(self.feature)} {word} {{{', '.join(texts)}}}"


@dataclass(frozen=True)
class Transition:
    """A forbidden change: from any of `before` to any of `after`.

    Examples:
        >>> from lapace.constraints import parse
        >>> parse("not education: master -> bachelor").after
        ('bachelor',)
    """

    feature: str
    before: tuple[Value, ...]
    after: tuple[Value, ...]
    note: str = _note()
    mentions_original: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"not {column_text(self.feature)}: {_values(self.before)} -> {_values(self.after)}"


@dataclass(frozen=True)
class Changes:
    """A column differs from the instance's value at the column's resolution.

    Examples:
        >>> print(Changes("job"))
        job changes
    """

    feature: str
    note: str = _note()
    mentions_original: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"{column_text(self.feature)} changes"


Simple: TypeAlias = Comparison | Membership | Changes


@dataclass(frozen=True)
class Conditional:
    """Where everything in `when` is true, everything in `then` must be true.

    Examples:
        >>> from lapace.constraints import parse
        >>> parse("if job changes then tenure == 0").when
        (Changes(feature='job', note=''),)
    """

    when: tuple[Simple, ...]
    then: tuple[Simple, ...]
    note: str = _note()
    learned: bool = _learned()

    @property
    def mentions_original(self) -> bool:
        """Whether any of its parts does."""
        return any(part.mentions_original for part in (*self.when, *self.then))

    def __str__(self) -> str:
        return f"if {' and '.join(map(str, self.when))} then {' and '.join(map(str, self.then))}"


@dataclass(frozen=True)
class ChangeLimit:
    """The most columns that may differ from the instance.

    Examples:
        >>> print(ChangeLimit(3))
        changes <= 3
    """

    most: int
    note: str = _note()
    mentions_original: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"changes <= {self.most}"


@dataclass(frozen=True)
class Shorthand:
    """`fixed` (`== original`), `increasing` (`>= original`) or `decreasing` (`<= original`).

    Examples:
        >>> print(Shorthand("fixed", ("age", "marital status")))
        fixed age, `marital status`
    """

    word: Keyword
    features: tuple[str, ...]
    note: str = _note()
    mentions_original: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"{self.word} {', '.join(map(column_text, self.features))}"


Constraint: TypeAlias = (
    Comparison | Membership | Transition | Changes | Conditional | ChangeLimit | Shorthand
)
