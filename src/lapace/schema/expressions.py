"""The arithmetic of derived columns: text to a small tree, evaluated on whole columns.

```
amount / months                       + - * / ^ and parentheses, as in the constraint language
ceil(1.19 * `net price`)              abs ceil exp floor log max min power round sqrt
if(age >= 65, "senior", "adult")      < <= == != >= > inside if; categories in double quotes
lookup(grade, "a", 1, "b", 2)         the value after the first key that equals the column
```

Names of columns are as in constraints: bare where they are one word, else in backticks. Nothing is
ever handed to Python's `eval`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.errors import InputError, did_you_mean

__all__ = ["Expression", "LinearForm", "column_text", "linear_form", "parse"]

Values: TypeAlias = NDArray[Any]  # numbers, or texts as objects

NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
TOKEN = re.compile(
    rf"""
    (?P<space>\s+)
  | (?P<number>{NUMBER}(?!\w))
  | (?P<word>\w+)
  | `(?P<column>(?:[^`]|``)*)`
  | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<relation><=|>=|==|!=|=|<|>)
  | (?P<mark>\*\*|[-+*/^(),])
    """,
    re.VERBOSE | re.DOTALL,
)
RELATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": np.less, "<=": np.less_equal, "==": np.equal,
    "!=": np.not_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip
OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "^": np.power,
}  # fmt: skip
FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int, int]] = {  # with least and most arguments
    "abs": (np.abs, 1, 1),
    "ceil": (lambda x: np.ceil(x - _slip(x)), 1, 1),
    "exp": (np.exp, 1, 1),
    "floor": (lambda x: np.floor(x + _slip(x)), 1, 1),
    "log": (np.log, 1, 1),
    "max": (lambda *several: np.maximum.reduce(np.broadcast_arrays(*several)), 2, 99),
    "min": (lambda *several: np.minimum.reduce(np.broadcast_arrays(*several)), 2, 99),
    "power": (np.power, 2, 2),
    "round": (lambda x, places=0: np.round(x, int(np.max(places))), 1, 2),
    "sqrt": (np.sqrt, 1, 1),
}
SPECIAL = ("if", "lookup")
DEEPEST, LONGEST = 50, 200  # levels of nesting, operators


def _slip(values: Any) -> Any:
    """What arithmetic may be off by: 3 * 0.1 / 0.1 is a little over 3, and its ceiling is 3."""
    return 1e-9 * np.maximum(1.0, np.abs(values))


class LinearForm(NamedTuple):
    """A linear form of some columns, rounded by at most `low` down to `high` up."""

    weights: Mapping[str, float]
    constant: float
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class Expression:
    """A number, a text, a column or something computed from other expressions.

    Attributes:
        kind: `number`, `text`, `column`, or what is computed: an operator or a function.
        value: The number, the text or the column's name.
        parts: What it is computed from.
    """

    kind: str
    value: Any = None
    parts: tuple[Expression, ...] = field(default=())

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns in it, each once."""
        own = (self.value,) if self.kind == "column" else ()
        return tuple(dict.fromkeys([*own, *(name for part in self.parts for name in part.columns)]))

    def evaluate(self, columns: Mapping[str, Values]) -> Values:
        """Its values, given those of its columns; what is undefined is not finite, or None.

        Examples:
            >>> columns = {"a": np.array([1.0, 6.0]), "b": np.array([2.0, 3.0])}
            >>> parse("if(a > b, a / b, 0)").evaluate(columns)
            array([0., 2.])
        """
        with np.errstate(all="ignore"):
            return np.asarray(self._evaluated(columns))

    def _evaluated(self, columns: Mapping[str, Values]) -> Any:
        if self.kind in ("number", "text"):
            return self.value
        if self.kind == "column":
            return columns[self.value]
        parts = [part._evaluated(columns) for part in self.parts]
        if self.kind == "if":
            return np.where(np.asarray(parts[0], bool), *map(_lone, parts[1:]))
        if self.kind == "lookup":
            return _lookup(*parts)
        if self.kind in RELATIONS:
            return self._compared(*parts)
        for part in parts:
            if _is_text(part):
                raise InputError(f"'{self.kind}' is for numbers, not for categories.")
        parts = [np.asarray(part, dtype=np.float64) for part in parts]
        if self.kind in OPERATORS:
            return OPERATORS[self.kind](*parts)
        return FUNCTIONS[self.kind][0](*parts)

    def _compared(self, left: Any, right: Any) -> Any:
        if _is_text(left) != _is_text(right):
            raise InputError("A number is compared with a category.")
        if _is_text(left) and self.kind not in ("==", "!="):
            raise InputError(f"Categories are compared by == and !=, not by {self.kind}.")
        return RELATIONS[self.kind](_lone(left), _lone(right))


def _is_text(values: Any) -> bool:
    return isinstance(values, str) or (isinstance(values, np.ndarray) and values.dtype.kind == "O")


def _lone(value: Any) -> Any:
    """A text as an array, so that numpy keeps it as it is."""
    return np.array(value, dtype=object) if isinstance(value, str) else value


def _lookup(column: Values, *pairs: Any) -> Values:
    """For each cell the value that follows its key; NaN, or None, where there is none."""
    keys, values = pairs[::2], pairs[1::2]
    texts = any(isinstance(value, str) for value in values)
    found = np.full(np.shape(column), None if texts else np.nan, dtype=object if texts else None)
    for key, value in zip(reversed(keys), reversed(values), strict=True):
        found[np.equal(column, _lone(key)).astype(bool)] = value
    return found


def column_text(name: str) -> str:
    """A column's name as an expression writes it."""
    bare = re.fullmatch(r"\w+", name) and not re.fullmatch(NUMBER, name)
    reserved = name in FUNCTIONS or name in SPECIAL or name == "original"
    return name if bare and not reserved else "`" + name.replace("`", "``") + "`"


def linear_form(expression: Expression) -> LinearForm | None:
    """The linear form an expression is, perhaps rounded at last; None where it is none.

    Examples:
        >>> linear_form(parse("ceil(2 * (net + tax) / 4 - 1)"))
        LinearForm(weights={'net': 0.5, 'tax': 0.5}, constant=-1.0, low=0.0, high=1.0)
        >>> linear_form(parse("net * tax")) is None
        True
    """
    rounds = {"ceil": (0.0, 1.0), "floor": (-1.0, 0.0), "round": (-0.5, 0.5)}
    if expression.kind in rounds and len(expression.parts) == 1:
        inner = _linear(expression.parts[0])
        low, high = rounds[expression.kind]
        return None if inner is None else inner._replace(low=low, high=high)
    return _linear(expression)


def _linear(expression: Expression) -> LinearForm | None:
    if expression.kind == "number":
        return LinearForm({}, expression.value)
    if expression.kind == "column":
        return LinearForm({expression.value: 1.0}, 0.0)
    if expression.kind not in ("+", "-", "*", "/"):
        return None
    left, right = map(_linear, expression.parts)
    if left is None or right is None:
        return None
    if expression.kind in "+-":
        sign = 1.0 if expression.kind == "+" else -1.0
        return _scaled_sum(left, right, 1.0, sign)
    if expression.kind == "*" and not left.weights:
        left, right = right, left
    if right.weights or (expression.kind == "/" and not right.constant):
        return None
    factor = right.constant if expression.kind == "*" else 1 / right.constant
    return _scaled_sum(left, LinearForm({}, 0.0), factor, 0.0)


def _scaled_sum(a: LinearForm, b: LinearForm, by_a: float, by_b: float) -> LinearForm:
    names = dict.fromkeys((*a.weights, *b.weights))
    weights = {n: by_a * a.weights.get(n, 0.0) + by_b * b.weights.get(n, 0.0) for n in names}
    return LinearForm(weights, by_a * a.constant + by_b * b.constant)


# ------------------------------------------------------------------------------------------------
# Reading


class _Token(NamedTuple):
    kind: str
    text: str
    start: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"'{self.text}'"


@lru_cache(maxsize=1024)
def parse(text: str) -> Expression:
    """Reads an expression; an `InputError` says where reading stopped, and why.

    Examples:
        >>> parse("amount / months").columns
        ('amount', 'months')
        >>> parse("amount / ")
        Traceback (most recent call last):
        lapace.errors.InputError: Cannot read the expression 'amount / ' at character 10: ...
    """
    return _Reader(text).whole()


class _Reader:
    """One text, a place in it, and a method for each rule of the grammar."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self.tokenize())
        self.place = 0
        self.depth = 0

    def tokenize(self) -> Iterator[_Token]:
        at = 0
        while at < len(self.text):
            match = TOKEN.match(self.text, at)
            if match is None:
                hint = "Names with such characters go in backticks: `capital-gain`."
                self.fail(f"'{self.text[at]}' has no meaning here. {hint}", at)
            kind = str(match.lastgroup)
            text = match.group(kind)
            if kind == "column":
                text = text.replace("``", "`")
            elif kind == "text":
                text = re.sub(r"\\([\"'\\])", r"\1", text[1:-1])
            if kind != "space":
                yield _Token(kind, {"=": "==", "**": "^"}.get(text, text), at)
            at = match.end()
        yield _Token("end", "", len(self.text))

    @property
    def token(self) -> _Token:
        return self.tokens[self.place]

    def take(self) -> _Token:
        token = self.token
        self.place += token.kind != "end"
        return token

    def at(self, *marks: str) -> bool:
        return self.token.kind in ("mark", "relation") and self.token.text in marks

    def expect(self, mark: str) -> None:
        if not self.at(mark):
            self.fail(f"expected '{mark}', found {self.token}.")
        self.take()

    def fail(self, what: str, at: int | None = None) -> NoReturn:
        place = (self.token.start if at is None else at) + 1
        raise InputError(f"Cannot read the expression '{self.text}' at character {place}: {what}")

    # -- the grammar ------------------------------------------------------------------------------

    def whole(self) -> Expression:
        if sum(token.kind == "mark" and token.text in "+-*/^" for token in self.tokens) > LONGEST:
            self.fail(f"it has more than {LONGEST} operators. Derive parts of it first.", 0)
        found = self.sum()
        if self.token.kind != "end":
            self.fail(f"expected the end, found {self.token}.")
        if not found.columns:
            self.fail("it names no column.", 0)
        return found

    def sum(self) -> Expression:
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail("it is nested too deeply.")
        found = self.product()
        while self.at("+", "-"):
            found = Expression(self.take().text, parts=(found, self.product()))
        self.depth -= 1
        return found

    def product(self) -> Expression:
        found = self.signed()
        while self.at("*", "/"):
            found = Expression(self.take().text, parts=(found, self.signed()))
        return found

    def signed(self) -> Expression:
        signs = 0
        while self.at("-"):
            self.take()
            signs += 1
        found = self.power()
        if signs % 2 == 0:
            return found
        if found.kind == "number":
            return Expression("number", -found.value)
        return Expression("*", parts=(Expression("number", -1.0), found))

    def power(self) -> Expression:
        base = self.atom()
        if not self.at("^"):
            return base
        self.take()
        sign = Expression("number", -1.0) if self.at("-") and self.take() else None
        exponent = self.atom()
        if sign is not None:
            exponent = Expression("*", parts=(sign, exponent))
        return Expression("^", parts=(base, exponent))

    def atom(self) -> Expression:
        token = self.token
        if token.kind == "number":
            return Expression("number", float(self.take().text))
        if token.kind == "text":
            return Expression("text", self.take().text)
        if self.at("("):
            self.take()
            found = self.sum()
            self.expect(")")
            return found
        if token.kind not in ("word", "column"):
            self.fail(f"expected a column or a number, found {token}.")
        self.take()
        if token.kind == "word" and self.at("("):
            return self.call(token)
        if token.kind == "word" and token.text == "original":
            self.fail("'original' has no meaning in a derived column.", token.start)
        return Expression("column", token.text)

    def call(self, function: _Token) -> Expression:
        name = function.text
        if name not in FUNCTIONS and name not in SPECIAL:
            known = (*sorted(FUNCTIONS), *SPECIAL)
            hint = did_you_mean(name, known) or f" There are: {', '.join(known)}."
            self.fail(f"there is no function '{name}'.{hint}", function.start)
        self.expect("(")
        parts = [self.condition() if name == "if" else self.sum()]
        while self.at(","):
            self.take()
            parts.append(self.sum())
        self.expect(")")
        if name == "lookup":
            wrong = len(parts) < 3 or len(parts) % 2 == 0
            wrong = wrong or any(part.kind not in ("number", "text") for part in parts[1:])
            if wrong:
                self.fail("lookup takes a column, then keys and values in pairs.", function.start)
            return Expression(name, parts=tuple(parts))
        least, most = (3, 3) if name == "if" else FUNCTIONS[name][1:]
        if not least <= len(parts) <= most:
            count = str(least) if least == most else f"{least} or more"
            self.fail(f"{name} takes {count} arguments, not {len(parts)}.", function.start)
        return Expression(name, parts=tuple(parts))

    def condition(self) -> Expression:
        left = self.sum()
        if self.token.kind != "relation":
            self.fail(f"expected a relation (<=, <, ==, !=, >, >=), found {self.token}.")
        return Expression(self.take().text, parts=(left, self.sum()))
