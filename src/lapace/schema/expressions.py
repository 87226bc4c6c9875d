"""The arithmetic of derived columns: text to a small tree, evaluated on whole columns.

```
amount / months                       + - * / ^ and parentheses, as in the constraint language
ceil(1.19 * `net price`)              abs ceil exp floor log max min round sqrt
```

Names of columns are as in constraints: bare where they are one word, else in backticks. Python's
own parser reads the arithmetic; only some of its nodes are accepted, and nothing is ever run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from lapace.arrays import Floats
from lapace.errors import InputError, did_you_mean

__all__ = ["Expression", "column_text", "parse"]

NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
ATOM = re.compile(
    rf"(?P<number>{NUMBER}(?!\w)) | (?P<word>\w+) | `(?P<column>(?:[^`]|``)*)`", re.VERBOSE
)
LONGEST = 200  # operators, commas and parentheses of an expression
OPERATORS: Mapping[type[ast.AST], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", np.add),
    ast.Sub: ("-", np.subtract),
    ast.Mult: ("*", np.multiply),
    ast.Div: ("/", np.divide),
    ast.Pow: ("^", np.power),
}
FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int, int]] = {  # with least and most arguments
    "abs": (np.abs, 1, 1),
    "ceil": (lambda x: np.ceil(x - _slip(x)), 1, 1),
    "exp": (np.exp, 1, 1),
    "floor": (lambda x: np.floor(x + _slip(x)), 1, 1),
    "log": (np.log, 1, 1),
    "max": (lambda *several: np.maximum.reduce(np.broadcast_arrays(*several)), 2, 99),
    "min": (lambda *several: np.minimum.reduce(np.broadcast_arrays(*several)), 2, 99),
    "round": (lambda x, places=0: np.round(x, int(np.max(places))), 1, 2),
    "sqrt": (np.sqrt, 1, 1),
}
COMPUTE = {**dict(OPERATORS.values()), **{name: f for name, (f, _, _) in FUNCTIONS.items()}}


def _slip(values: Any) -> Any:
    """Returns the error that arithmetic may make: the ceiling of 3 * 0.1 / 0.1 is 3, not 4."""
    return 1e-9 * np.maximum(1.0, np.abs(values))


@dataclass(frozen=True)
class Expression:
    """A number, a column or something computed from other expressions.

    Attributes:
        kind: `number`, `column`, or what is computed: an operator or a function.
        value: The number, or the column's name.
        parts: What it is computed from.
    """

    kind: str
    value: Any = None
    parts: tuple[Expression, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns in it, each once."""
        own = (self.value,) if self.kind == "column" else ()
        return tuple(dict.fromkeys([*own, *(name for part in self.parts for name in part.columns)]))

    def evaluate(self, columns: Mapping[str, Floats]) -> Floats:
        """Returns its values, given those of its columns; what is undefined is not finite.

        Examples:
            >>> columns = {"a": np.array([1.0, 6.0]), "b": np.array([2.0, 3.0])}
            >>> parse("max(a / b, 1)").evaluate(columns)
            array([1., 2.])
        """
        with np.errstate(all="ignore"):
            return self._values(columns)

    def _values(self, columns: Mapping[str, Floats]) -> Floats:
        if self.kind == "column":
            return columns[self.value]
        if not self.parts:
            return np.array(self.value, dtype=np.float64)
        parts = (part._values(columns) for part in self.parts)
        return np.asarray(COMPUTE[self.kind](*parts))


def column_text(name: str) -> str:
    """Returns a column's name as an expression writes it."""
    bare = re.fullmatch(r"\w+", name) and not re.fullmatch(NUMBER, name)
    reserved = (*FUNCTIONS, "original")
    return name if bare and name not in reserved else "`" + name.replace("`", "``") + "`"


# ------------------------------------------------------------------------------------------------
# Reading


@lru_cache(maxsize=1024)
def parse(text: str) -> Expression:
    """Reads an expression, or raises an `InputError` that says what is wrong with it.

    Examples:
        >>> parse("amount / months").columns
        ('amount', 'months')
        >>> parse("amount / ")
        Traceback (most recent call last):
        lapace.errors.InputError: Cannot read the expression 'amount / ': it is incomplete, or ...
    """
    try:
        expression = _read(text)
        if not expression.columns:
            raise InputError("it names no column.")
    except InputError as error:
        raise InputError(f"Cannot read the expression '{text}': {error}") from None
    return expression


def _read(text: str) -> Expression:
    """Reads a text by Python's parser, in which `_0`, `_1`, … replace names and numbers."""
    atoms: list[re.Match[str]] = []

    def placeholder(match: re.Match[str]) -> str:
        atoms.append(match)
        return f" _{len(atoms) - 1} "

    source = ATOM.sub(placeholder, text)
    marks = ATOM.sub("", text)
    strange = re.search(r"[^\s()+*/^,-]", marks)
    if strange:
        hint = "Names with such characters go in backticks: `capital-gain`."
        raise InputError(f"'{strange[0]}' has no meaning here. {hint}")
    if len(re.sub(r"\s", "", marks)) > LONGEST:
        raise InputError("it is too long. Derive parts of it first.")
    try:
        tree = ast.parse(" ".join(source.replace("^", "**").split()), mode="eval")
    except SyntaxError:
        raise InputError("it is incomplete, or its parts do not fit together.") from None
    return _expression(tree.body, atoms)


def _expression(node: ast.expr, atoms: list[re.Match[str]]) -> Expression:
    """Returns one node of Python's tree as an expression."""
    match node:
        case ast.Name(id=name):
            return _atom(atoms[int(name[1:])])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _expression(operand, atoms)
            if inner.kind == "number":
                return Expression("number", -inner.value)
            return Expression("*", parts=(Expression("number", -1.0), inner))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            parts = _expression(left, atoms), _expression(right, atoms)
            return Expression(OPERATORS[type(op)][0], parts=parts)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            function = atoms[int(name[1:])][0]
            _check_call(function, len(arguments))
            return Expression(function, parts=tuple(_expression(a, atoms) for a in arguments))
    raise InputError("expected columns, numbers, functions and arithmetic.")


def _atom(atom: re.Match[str]) -> Expression:
    if atom["number"]:
        return Expression("number", float(atom["number"]))
    if atom["word"] == "original":
        raise InputError("'original' has no meaning in a derived column.")
    return Expression("column", atom["word"] or atom["column"].replace("``", "`"))


def _check_call(name: str, count: int) -> None:
    if name not in FUNCTIONS:
        hint = did_you_mean(name, FUNCTIONS) or f" There are: {', '.join(FUNCTIONS)}."
        raise InputError(f"there is no function '{name}'.{hint}")
    _, least, most = FUNCTIONS[name]
    if not least <= count <= most:
        needed = str(least) if least == most else f"{least} or more"
        raise InputError(f"{name} takes {needed} arguments, not {count}.")
