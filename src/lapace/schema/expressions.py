"""The arithmetic of derived columns: text to a small tree, evaluated on whole columns.

```
amount / months                       + - * / ^ and parentheses, as in the constraint language
ceil(1.19 * `net price`)              abs ceil exp floor log max min power round sqrt
if(age >= 65, "senior", "adult")      < <= == != >= > inside if; categories in double quotes
lookup(grade, "a", 1, "b", 2)         the value after the first key that equals the column
```

Names of columns are as in constraints: bare where they are one word, else in backticks. Python's
own parser reads the arithmetic; only some of its nodes are accepted, and nothing is ever run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.errors import InputError, did_you_mean

__all__ = ["Expression", "LinearForm", "column_text", "linear_form", "parse"]

Values: TypeAlias = NDArray[Any]  # numbers, or texts as objects

NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
TOKEN = re.compile(
    rf"""(?P<number>{NUMBER}(?!\w)) | (?P<word>\w+) | `(?P<column>(?:[^`]|``)*)`
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*') | \s+ | <=|>=|==|!=|[=<>] | \*\*|[-+*/^(),]""",
    re.VERBOSE | re.DOTALL,
)
PYTHON = {"=": "==", "^": "**"}  # what Python writes otherwise
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
    "if": (lambda holds, *values: np.where(np.asarray(holds, bool), *map(_lone, values)), 3, 3),
    "lookup": (lambda column, *pairs: _lookup(column, pairs[::2], pairs[1::2]), 3, 99),
}
NODES: Mapping[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "^", ast.Lt: "<",
    ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
SPECIAL = ("if", "lookup")  # for categories too
DEEPEST, LONGEST = 50, 200  # levels of nesting, operators


def _slip(values: Any) -> Any:
    """The error that arithmetic may make: 3 * 0.1 / 0.1 is a little over 3, its ceiling is 3."""
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
        if self.kind in RELATIONS:
            return self._compared(*parts)
        if self.kind in SPECIAL:
            return FUNCTIONS[self.kind][0](*parts)
        if any(map(_is_text, parts)):
            raise InputError(f"'{self.kind}' is for numbers, not for categories.")
        function = OPERATORS.get(self.kind) or FUNCTIONS[self.kind][0]
        return function(*(np.asarray(part, dtype=np.float64) for part in parts))

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


def _lookup(column: Values, keys: Sequence[Any], values: Sequence[Any]) -> Values:
    """Returns for each cell the value of its key; NaN, or None, where there is none."""
    texts = any(isinstance(value, str) for value in values)
    found = np.full(np.shape(column), None if texts else np.nan, dtype=object if texts else None)
    for key, value in zip(reversed(keys), reversed(values), strict=True):
        found[np.equal(column, _lone(key)).astype(bool)] = value
    return found


def column_text(name: str) -> str:
    """A column's name as an expression writes it."""
    bare = re.fullmatch(r"\w+", name) and not re.fullmatch(NUMBER, name)
    reserved = (*FUNCTIONS, "original")
    return name if bare and name not in reserved else "`" + name.replace("`", "``") + "`"


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
    """One text, read by Python's parser.

    Names, numbers and texts are replaced by placeholders first, so that a name may be any word.

    Attributes:
        atoms: The kind and the text of each placeholder.
        places: The place in the text of each character that Python reads.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.atoms: list[tuple[str, str]] = []
        self.places: list[int] = []

    def error(self, what: str, place: int = 0) -> InputError:
        where = f"'{self.text}' at character {place + 1}"
        return InputError(f"Cannot read the expression {where}: {what}")

    def whole(self) -> Expression:
        try:
            tree = ast.parse("".join(self.pieces()), mode="eval")
        except SyntaxError as error:
            raise self.explained(error) from None
        expression = self.read(tree.body)
        if not expression.columns:
            raise self.error("it names no column.")
        return expression

    def pieces(self) -> Iterator[str]:
        """Yields the text as Python writes it, with placeholders."""
        place = len(self.text) - len(self.text.lstrip())
        depth = operators = 0
        while place < len(self.text):
            match = TOKEN.match(self.text, place)
            if match is None:
                hint = "Names with such characters go in backticks: `capital-gain`."
                raise self.error(f"'{self.text[place]}' has no meaning here. {hint}", place)
            token = match[0]
            depth += (token == "(") - (token == ")")
            operators += token in OPERATORS
            if depth > DEEPEST:
                raise self.error("it is nested too deeply.", place)
            if operators > LONGEST:
                raise self.error(f"it has more than {LONGEST} operators. Derive parts of it first.")
            if match.lastgroup is not None:
                token = f"_{len(self.atoms)} "
                self.atoms.append((match.lastgroup, match[match.lastgroup]))
            piece = " " if token.isspace() else PYTHON.get(token, token)
            self.places += [place] * len(piece)
            place = match.end()
            yield piece

    def explained(self, error: SyntaxError) -> InputError:
        """Returns what Python found wrong, in our words and at the place in our text."""
        if not error.offset:
            what = "expected a column or a number, found the end."
            return self.error(what, len(self.text))
        place = self.places[error.offset - 1]
        if "never closed" in error.msg or "comma" in error.msg:
            return self.error("expected ')', a comma or an operator after it.", place)
        match = TOKEN.match(self.text, place)
        return self.error(f"'{match[0] if match else ''}' has no place here.", place)

    def read(self, node: ast.expr) -> Expression:
        """Returns one node of Python's tree as an expression."""
        place = self.places[node.col_offset]
        match node:
            case ast.Name(id=name):
                return self.atom(*self.atoms[int(name[1:])], place)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner, minus = self.read(operand), Expression("number", -1.0)
                if inner.kind == "number":
                    return Expression("number", -inner.value)
                return Expression("*", parts=(minus, inner))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in NODES:
                return Expression(NODES[type(op)], parts=(self.read(left), self.read(right)))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self.call(*self.atoms[int(name[1:])], arguments, place)
        raise self.error("expected a column, a number or a function.", place)

    def atom(self, kind: str, text: str, place: int) -> Expression:
        if kind == "number":
            return Expression("number", float(text))
        if kind == "text":
            return Expression("text", re.sub(r"\\([\"'\\])", r"\1", text[1:-1]))
        if kind == "word" and text == "original":
            raise self.error("'original' has no meaning in a derived column.", place)
        return Expression("column", text.replace("``", "`") if kind == "column" else text)

    def call(self, kind: str, name: str, arguments: list[ast.expr], place: int) -> Expression:
        if kind != "word" or name not in FUNCTIONS:
            hint = did_you_mean(name, FUNCTIONS) or f" There are: {', '.join(FUNCTIONS)}."
            raise self.error(f"there is no function '{name}'.{hint}", place)
        _, least, most = FUNCTIONS[name]
        first = self.condition if name == "if" else self.read
        parts = tuple((self.read if k else first)(node) for k, node in enumerate(arguments))
        if name == "lookup":
            literal = all(part.kind in ("number", "text") for part in parts[1:])
            if len(parts) < least or len(parts) % 2 == 0 or not literal:
                raise self.error("lookup takes a column, then keys and values in pairs.", place)
        elif not least <= len(parts) <= most:
            count = str(least) if least == most else f"{least} or more"
            raise self.error(f"{name} takes {count} arguments, not {len(parts)}.", place)
        return Expression(name, parts=parts)

    def condition(self, node: ast.expr) -> Expression:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in NODES:
                return Expression(NODES[type(op)], parts=(self.read(left), self.read(right)))
        place = self.places[node.col_offset]
        raise self.error("expected a relation (<=, <, ==, !=, >, >=).", place)
