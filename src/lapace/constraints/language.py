"""What a constraint says, as small frozen values that print as the text they are read from.

`str` gives the canonical text and `parse` reads it back: `parse(str(c)) == c`. Nothing here knows
a table; whether a word is a column or a category is settled when a system is bound to a schema.

```
Comparison    20 <= hours <= 60        2*rent + instalment <= 0.4*income      income >= original
Membership    education in {bachelor, master}          purpose not in {car}
Transition    not education: master -> bachelor
Changes       job changes                                                     (mostly after `if`)
Conditional   if job changes then tenure == 0
ChangeLimit   changes <= 3
Shorthand     fixed age, sex           increasing income                      decreasing debt
Custom        made in Python: a differentiable penalty, an exact check, perhaps a projection
```
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Absolute",
    "Category",
    "ChangeLimit",
    "Changes",
    "Comparison",
    "Conditional",
    "Constraint",
    "Custom",
    "Linear",
    "Membership",
    "Relation",
    "Shorthand",
    "Side",
    "Simple",
    "Term",
    "Transition",
    "Value",
    "decreasing",
    "fixed",
    "increasing",
    "noted",
]

Relation: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]
Value: TypeAlias = str | float  # a category by name, or a number

# Words the language uses itself: a column of that name is written in backticks.
KEYWORDS = frozenset(
    "abs and changes decreasing fixed if in increasing not original then".split()  # noqa: SIM905
)
NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"


def _bare(name: str) -> bool:
    """Whether a name can stand without quotes: letters, digits and underscores, and no number."""
    return bool(re.fullmatch(r"\w+", name)) and not re.fullmatch(NUMBER, name)


def _column(name: str) -> str:
    """A column's name as the language writes it."""
    plain = _bare(name) and name not in KEYWORDS
    return name if plain else "`" + name.replace("`", "``") + "`"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _number(value: float) -> str:
    """A number without a needless `.0`."""
    text = repr(float(value) + 0.0)  # adding zero turns -0.0 into 0.0
    return text.removesuffix(".0")


def _value(value: Value) -> str:
    if not isinstance(value, str):
        return _number(value)
    return value if _bare(value) and value not in KEYWORDS else _quoted(value)


def _values(values: Iterable[Value]) -> str:
    texts = [_value(v) for v in values]
    return texts[0] if len(texts) == 1 else "{" + ", ".join(texts) + "}"


@dataclass(frozen=True)
class Term:
    """A column, or the instance's own value of it, times a number."""

    coefficient: float
    feature: str
    original: bool = False

    def text(self, *, alone: bool) -> str:
        """As written; `alone` where the own value can only be that of the one column named."""
        name = _column(self.feature)
        if self.original:
            name = "original" if alone else f"original({name})"
        size = abs(self.coefficient)
        return name if size == 1 else f"{_number(size)}*{name}"


@dataclass(frozen=True)
class Linear:
    """A sum of terms and a constant; one column alone is the sum of one term."""

    terms: tuple[Term, ...] = ()
    constant: float = 0.0

    def text(self, *, alone: bool) -> str:
        """As written, terms first."""
        parts = [("-" if t.coefficient < 0 else "+", t.text(alone=alone)) for t in self.terms]
        if self.constant or not parts:
            parts.append(("-" if self.constant < 0 else "+", _number(abs(self.constant))))
        sign, first = parts[0]
        rest = "".join(f" {sign} {text}" for sign, text in parts[1:])
        return ("-" if sign == "-" else "") + first + rest

    @property
    def word(self) -> str | None:
        """The name, where the whole side is one: it may turn out to be a category."""
        if self.constant == 0 and len(self.terms) == 1:
            (term,) = self.terms
            return term.feature if term.coefficient == 1 and not term.original else None
        return None


@dataclass(frozen=True)
class Absolute:
    """The size of a linear expression: `abs(income - original)`."""

    inner: Linear

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms inside."""
        return self.inner.terms

    def text(self, *, alone: bool) -> str:
        """As written."""
        return f"abs({self.inner.text(alone=alone)})"


@dataclass(frozen=True)
class Category:
    """A category in quotes: never a column."""

    name: str
    terms: tuple[Term, ...] = field(default=(), init=False, repr=False)

    def text(self, *, alone: bool) -> str:  # noqa: ARG002 (one signature for all sides)
        """As written."""
        return _quoted(self.name)


Side: TypeAlias = Linear | Absolute | Category


def _note() -> Any:
    return field(default="", compare=False, kw_only=True)


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

    def __str__(self) -> str:
        alone = len(self.words) == 1
        texts = [side.text(alone=alone) for side in self.sides]
        pairs = zip(self.relations, texts[1:], strict=True)
        return texts[0] + "".join(f" {relation} {text}" for relation, text in pairs)


@dataclass(frozen=True)
class Membership:
    """One of some values, or none of them; `original` among them is the instance's own.

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
        """Whether the instance's own value is among the values."""
        return self.original

    def __str__(self) -> str:
        texts = ["original"] * self.original + [_value(v) for v in self.values]
        word = "not in" if self.negated else "in"
        return f"{_column(self.feature)} {word} {{{', '.join(texts)}}}"


@dataclass(frozen=True)
class Transition:
    """A change nobody may be told to make: from any of `before` to any of `after`.

    Examples:
        >>> from lapace.constraints import parse
        >>> parse("not education: master -> bachelor").after
        ('bachelor',)
    """

    feature: str
    before: tuple[Value, ...]
    after: tuple[Value, ...]
    note: str = _note()

    @property
    def mentions_original(self) -> bool:
        """Always: it starts from the instance's own value."""
        return True

    def __str__(self) -> str:
        return f"not {_column(self.feature)}: {_values(self.before)} -> {_values(self.after)}"


@dataclass(frozen=True)
class Changes:
    """A column differs from the instance's own at the column's resolution.

    Examples:
        >>> print(Changes("job"))
        job changes
    """

    feature: str
    note: str = _note()

    @property
    def mentions_original(self) -> bool:
        """Always."""
        return True

    def __str__(self) -> str:
        return f"{_column(self.feature)} changes"


Simple: TypeAlias = Comparison | Membership | Changes


@dataclass(frozen=True)
class Conditional:
    """Where everything in `when` is true, everything in `then` must be.

    Examples:
        >>> from lapace.constraints import parse
        >>> parse("if job changes then tenure == 0").when
        (Changes(feature='job', note=''),)
    """

    when: tuple[Simple, ...]
    then: tuple[Simple, ...]
    note: str = _note()

    @property
    def mentions_original(self) -> bool:
        """Whether any of its parts does."""
        return any(part.mentions_original for part in (*self.when, *self.then))

    def __str__(self) -> str:
        return f"if {' and '.join(map(str, self.when))} then {' and '.join(map(str, self.then))}"


@dataclass(frozen=True)
class ChangeLimit:
    """How many columns may differ from the instance's own.

    Examples:
        >>> print(ChangeLimit("<=", 3))
        changes <= 3
    """

    relation: Relation
    count: int
    note: str = _note()

    @property
    def mentions_original(self) -> bool:
        """Always."""
        return True

    def __str__(self) -> str:
        return f"changes {self.relation} {self.count}"


@dataclass(frozen=True)
class Shorthand:
    """`fixed` (`== original`), `increasing` (`>= original`) or `decreasing` (`<= original`).

    Examples:
        >>> print(Shorthand("fixed", ("age", "sex")))
        fixed age, sex
    """

    word: Literal["fixed", "increasing", "decreasing"]
    features: tuple[str, ...]
    note: str = _note()

    @property
    def mentions_original(self) -> bool:
        """Always."""
        return True

    def __str__(self) -> str:
        return f"{self.word} {', '.join(map(_column, self.features))}"


@dataclass(frozen=True)
class Custom:
    """Any function of the row, from Python.

    Attributes:
        name: What to call it in reports.
        penalty: From a tensor of cells (n, d), categories as codes, to g (n,); g <= 0 where it
            holds. Differentiable in the numbers: the latent correction follows its gradient.
        check: From an array of cells (n, d) to the truth (n,), exactly.
        project: From cells that break it (n, d) to cells that keep it, (n, d), where there is a
            way to say so; without one a row that breaks it stays broken.

    Examples:
        >>> rule = Custom("area", lambda x: x[:, 0] * x[:, 1] - 9, lambda x: x[:, 0] * x[:, 1] <= 9)
        >>> print(rule)
        custom: area
    """

    name: str
    penalty: Callable[[Tensor], Tensor]
    check: Callable[[NDArray[np.float64]], NDArray[np.bool_]]
    project: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None
    note: str = _note()

    @property
    def mentions_original(self) -> bool:
        """Never: it sees the row alone."""
        return False

    def __str__(self) -> str:
        return f"custom: {self.name}"


Constraint: TypeAlias = (
    Comparison | Membership | Transition | Changes | Conditional | ChangeLimit | Shorthand | Custom
)


def noted(constraint: Constraint, note: str) -> Constraint:
    """The same constraint with a sentence saying why; it takes no part in comparing.

    Examples:
        >>> noted(fixed("age"), "Nobody gets younger.").note
        'Nobody gets younger.'
    """
    return replace(constraint, note=note)


def fixed(*features: str) -> Shorthand:
    """These columns keep the instance's own values, missing ones included.

    Examples:
        >>> print(fixed("age", "marital status"))
        fixed age, `marital status`
    """
    return _shorthand("fixed", features)


def increasing(*features: str) -> Shorthand:
    """These columns never fall below the instance's own values.

    Examples:
        >>> print(increasing("income"))
        increasing income
    """
    return _shorthand("increasing", features)


def decreasing(*features: str) -> Shorthand:
    """These columns never rise above the instance's own values.

    Examples:
        >>> print(decreasing("debt"))
        decreasing debt
    """
    return _shorthand("decreasing", features)


def _shorthand(
    word: Literal["fixed", "increasing", "decreasing"], features: tuple[str, ...]
) -> Shorthand:
    if not features:
        raise InputError(f"{word}() names no column. Say which: {word}('age').")
    return Shorthand(word, tuple(dict.fromkeys(features)))
