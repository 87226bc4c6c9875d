"""Reads constraints from text and from TOML files.

The parser is a recursive descent over a dozen kinds of tokens. Every error says at which character
of which text reading stopped, what was expected there and what was found.

A file has a version, and each constraint is a text or a text with a note. Notes survive reading and
writing; TOML comments in the file do not.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, cast, get_args

from lapace.constraints import language
from lapace.constraints.language import (
    Absolute,
    Category,
    Comparison,
    Constraint,
    Linear,
    Term,
    Value,
)
from lapace.errors import InputError, did_you_mean

__all__ = ["from_toml", "parse", "parse_all", "read_file", "to_toml"]

T = TypeVar("T")

VERSION = 2  # of constraint files
HEADER = """\
# Constraints on counterfactuals, one in each line: a text, or a text with a note saying why.
# Columns with other characters than letters, digits and _ go in backticks: `capital-gain`.
"""

TOKEN = re.compile(
    rf"""
    (?P<space>\s+)
  | (?P<note>\#.*)
  | (?P<number>{language.NUMBER}(?!\w))
  | (?P<word>\w+)
  | `(?P<column>(?:[^`]|``)*)`
  | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<relation><=|>=|==|!=|≤|≥|≠|=|<|>)
  | (?P<arrow>->|→)
  | (?P<mark>[-+*/(){{}},:−])
    """,
    re.VERBOSE | re.DOTALL,
)
SPELLINGS = {"≤": "<=", "≥": ">=", "≠": "!=", "=": "==", "→": "->", "−": "-"}
SHORTHANDS = get_args(language.Keyword)
BARE_ORIGINAL = "\0original\0"  # replaced by the one column named once the comparison is read

# Spellings from elsewhere, and how the language writes them; no constraint matches one.
HABITS = {
    r"=(>|<)": "'={0}' is no relation. Write '{0}='.",
    r"\b([0-9]+(?:\.[0-9]+)?)\s*%": (
        "'%' has no meaning here. Write {0} where the column counts percent, or its share, such as "
        "0.1*original for a tenth."
    ),
    r"[<>=]\s*[$€£¥₹]\s?[0-9]|[0-9]\s?[$€£¥₹]|(?:[<>=]\s*|^)[0-9][0-9.]*,[0-9]": (
        "Numbers have no currency, no mark between thousands and a point before decimals. "
        "Write 1234.56."
    ),
    r"(\w+)\s+between\s+(\S+)\s+and\s+(\S+)": "'between' is written {1} <= {0} <= {2}.",
    r"\b([0-9]{4}-[0-9]{2}-[0-9]{2})\b": 'A date goes in quotes: "{0}".',
    r"\bin\s*[\[(]([^\])]*)[\])]": "Values go in braces: in {{{0}}}.",
    r"^\s*(\w+)\s+(?:is\s+(?:fixed|unchanged|constant|immutable)|cannot\s+change)\s*$": (
        "A column that has to stay is written {0} == original."
    ),
    r"^\s*(\w+)\s+is\s+(?!not\b)(\S+)\s*$": "'is' is written {0} == {1}.",
}
QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`|#.*")


class Token(NamedTuple):
    """A piece of the text: its kind, its text without quotes, and where it starts."""

    kind: str
    text: str
    start: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"'{self.text}'"


def parse(text: str) -> Constraint:
    """Reads one constraint; a comment after `#` becomes its note.

    Examples:
        >>> print(parse("abs(income - original) <= 0.2*original   # not overnight"))
        abs(income - original) <= 0.2*original
        >>> parse("income >> 3")
        Traceback (most recent call last):
        lapace.errors.InputError: Cannot read the constraint 'income >> 3' at character 9: ...
    """
    if callable(text):
        raise InputError(
            "A Python function needs a name to be a constraint: Custom('name', check=function), "
            "from lapace.constraints."
        )
    if not isinstance(text, str):
        raise InputError(f"A constraint is a text such as 'age == original', not {text!r}.")
    try:
        return _Parser(text).constraint()
    except RecursionError:
        raise InputError(
            f"Cannot read the constraint '{text[:40]}…': it is nested too deeply. Leave out "
            "parentheses that change nothing."
        ) from None


def parse_all(constraints: str | Constraint | Iterable[str | Constraint]) -> tuple[Constraint, ...]:
    """Reads texts and passes constraints through; a single one need not be in a list.

    Examples:
        >>> [str(c) for c in parse_all(["hours<=50", parse("fixed age")])]
        ['hours <= 50', 'fixed age']
    """
    if isinstance(constraints, str | Constraint) or callable(constraints):
        constraints = [cast(Any, constraints)]
    if isinstance(constraints, Mapping) or not isinstance(constraints, Iterable):
        raise InputError(
            f"Constraints are a list of texts, not {constraints!r}. Say, for example, "
            "['age == original', 'hours <= 50']."
        )
    return tuple(c if isinstance(c, Constraint) else parse(c) for c in constraints)


class _Parser:
    """One text, a place in it, and a method for each rule of the grammar."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.note = ""
        self.refuse_habits()
        self.tokens = list(self.tokenize())
        self.place = 0

    def refuse_habits(self) -> None:
        unquoted = QUOTED.sub(lambda quoted: " " * len(quoted[0]), self.text)
        for pattern, hint in HABITS.items():
            if habit := re.search(pattern, unquoted):
                groups = (self.text[slice(*span)] for span in habit.regs[1:])
                self.fail(hint.format(*groups), habit.start())

    def tokenize(self) -> Iterator[Token]:
        start = 0
        while start < len(self.text):
            match = TOKEN.match(self.text, start)
            if match is None:
                character = self.text[start]
                if character in "`\"'":
                    self.fail(f"this {character} is never closed", start)
                hint = " Names with such characters go in backticks: `capital-gain`."
                self.fail(f"'{character}' has no meaning here.{hint}", start)
            kind, text = str(match.lastgroup), match.group(str(match.lastgroup))
            if kind == "note":
                self.note = text[1:].strip()
            elif kind == "column":
                yield Token(kind, text.replace("``", "`"), start)
            elif kind == "text":
                yield Token(kind, re.sub(r"\\([\"'\\])", r"\1", text[1:-1]), start)
            elif kind != "space":
                yield Token(kind, SPELLINGS.get(text, text), start)
            start = match.end()
        yield Token("end", "", len(self.text))

    # -- reading tokens ---------------------------------------------------------------------------

    @property
    def token(self) -> Token:
        return self.tokens[self.place]

    @property
    def following(self) -> Token:
        return self.tokens[min(self.place + 1, len(self.tokens) - 1)]

    @property
    def at_keyword(self) -> bool:
        return self.token.kind == "word" and self.token.text in language.KEYWORDS

    def take(self) -> Token:
        token = self.token
        self.place += token.kind != "end"
        return token

    def is_next(self, *texts: str) -> bool:
        """Whether one of these words or marks comes next."""
        return self.token.text in texts and self.token.kind not in ("column", "text")

    def skip(self, *texts: str) -> bool:
        """Takes one of these words or marks, if it comes next."""
        skipped = self.is_next(*texts)
        self.place += skipped
        return skipped

    def expect(self, text: str, where: str = "", hint: str = "") -> None:
        if not self.skip(text):
            self.wanted(f"'{text}'{where}", hint)

    def separated(self, separator: str, rule: Callable[[], T]) -> list[T]:
        """Reads a rule once or more, with a separator in between."""
        values = [rule()]
        while self.skip(separator):
            values.append(rule())
        return values

    def wanted(self, what: str, hint: str = "") -> NoReturn:
        self.fail(f"expected {what}, found {self.token}.{hint}")

    def fail(self, what: str, start: int | None = None) -> NoReturn:
        sentence = what if what.endswith((".", "?")) else what + "."
        place = f"at character {(self.token.start if start is None else start) + 1}"
        raise InputError(f"Cannot read the constraint '{self.text}' {place}: {sentence}")

    # -- forms ------------------------------------------------------------------------------------

    def constraint(self) -> Constraint:
        if self.token.kind == "end":
            raise InputError("The constraint is empty. Write one such as 'age == original'.")
        constraint = self.form()
        if self.is_next("and", "or"):
            joins = self.token.text
            hint = " Write two constraints." if joins == "and" else " Use 'in {…}' or 'if … then'."
            self.fail(f"'{joins}' cannot join constraints.{hint}")
        if self.token.kind != "end":
            self.wanted("the end of the constraint", self.unquoted_hint())
        return replace(constraint, note=self.note) if self.note else constraint

    def form(self) -> Constraint:
        if self.skip("if"):
            when = self.separated("and", self.simple)
            self.expect("then")
            return language.Conditional(tuple(when), tuple(self.separated("and", self.simple)))
        if self.skip("not"):
            return self.transition()
        if self.is_next("changes") and self.following.kind == "relation":
            return self.change_limit()
        if self.is_next(*SHORTHANDS) and self.following.kind in ("word", "column", "end"):
            word = cast(language.Keyword, self.take().text)
            return language.Shorthand(word, tuple(dict.fromkeys(self.separated(",", self.name))))
        return self.simple()

    def simple(self) -> language.Simple:
        named = self.token.kind in ("column", "word") and self.following.kind == "word"
        if not named or self.following.text not in ("changes", "in", "not"):
            return self.comparison()
        feature = self.name()
        if self.skip("changes"):
            return language.Changes(feature)
        negated = self.skip("not")
        self.expect("in", " after 'not'" if negated else "")
        return language.Membership(feature, *self.members(), negated)

    def transition(self) -> language.Transition:
        hint = " A change that is ruled out reads 'not education: master -> bachelor'."
        feature = self.name()
        self.expect(":", hint=hint)
        before = self.one_or_more()
        self.expect("->", hint=hint)
        return language.Transition(feature, before, self.one_or_more())

    def change_limit(self) -> language.ChangeLimit:
        self.take()
        relation = cast(language.Relation, self.take().text)
        if relation == "!=":
            self.fail("'changes' can be compared by <=, <, ==, > and >= only")
        if self.token.kind != "number" or not re.fullmatch("[0-9]+", self.token.text):
            self.wanted("a whole number of columns")
        return language.ChangeLimit(relation, int(self.take().text))

    def members(self) -> tuple[tuple[Value, ...], bool]:
        """Reads the values between braces, each once, and whether `original` is among them."""
        self.expect("{", " and the values, as in {bachelor, master}")
        values = self.separated(",", lambda: None if self.skip("original") else self.value())
        if not self.skip("}"):
            hint = ' A category with other characters goes in quotes: "some college".'
            self.wanted("',' or '}'", hint)
        return tuple(dict.fromkeys(v for v in values if v is not None)), None in values

    def one_or_more(self) -> tuple[Value, ...]:
        if not self.is_next("{"):
            return (self.value(),)
        start = self.token.start
        values, original = self.members()
        if original:
            self.fail("'original' has no place in a transition", start)
        return values

    def value(self) -> Value:
        sign = -1.0 if self.skip("-") else 1.0
        if self.token.kind == "number":
            return sign * self.number()
        if sign > 0 and self.token.kind in ("word", "text"):
            if self.is_next("original"):
                self.fail("'original' has no place here")
            return self.take().text
        hint = " Categories go in double quotes." if self.token.kind == "column" else ""
        return self.wanted("a category or a number", hint)

    def name(self) -> str:
        if self.token.kind == "column" or (self.token.kind == "word" and not self.at_keyword):
            return self.take().text
        hint = f" If '{self.token.text}' is a column, put it in backticks."
        return self.wanted("a column's name", hint if self.at_keyword else "")

    def number(self) -> float:
        value = float(self.token.text)
        if not isfinite(value):
            self.fail(f"{self.token.text} is too large a number")
        self.take()
        return value

    # -- comparisons ------------------------------------------------------------------------------

    def comparison(self) -> Comparison:
        start = self.token.start
        sides, relations = [self.side()], []
        while self.token.kind == "relation":
            relations.append(cast(language.Relation, self.take().text))
            sides.append(self.side())
        if not relations:
            after_word = self.token.kind in ("word", "column") and not self.at_keyword
            misspelt = did_you_mean(sides[0].word or "", SHORTHANDS) if after_word else ""
            hint = misspelt or self.unquoted_hint()
            self.wanted("a relation (<=, <, ==, !=, >, >=)", hint)
        directions = {relation[0] for relation in relations}
        if len(relations) > 1 and (len(directions) > 1 or directions == {"!"}):
            self.fail("a chain of relations must point one way, as 20 <= hours <= 60 does", start)
        return self.resolved(Comparison(tuple(sides), tuple(relations)), start)

    def unquoted_hint(self) -> str:
        """Returns a hint for `free sulfur <= 3` and `fixed acidity <= 3`, which lack quotes."""
        after_word = self.tokens[max(self.place - 1, 0)].kind == "word"
        is_word = self.token.kind == "word" and not self.at_keyword
        if not is_word and not (self.token.kind == "relation" and after_word):
            return ""
        return ' Names of several words go in backticks: `a name`; categories in quotes: "a name".'

    def resolved(self, comparison: Comparison, start: int) -> Comparison:
        """Replaces a bare `original` by the original value of the one column named."""
        named = [word for word in comparison.words if word != BARE_ORIGINAL]
        if BARE_ORIGINAL in comparison.words:
            if len(named) != 1:
                choices = [f"original({language.column_text(name)})" for name in named]
                which = " or ".join(choices) or "a column beside it"
                hint = " A name with a '-' in it goes in backticks." if "-" in self.text else ""
                self.fail(f"which column's original value is meant? Name {which}.{hint}", start)
            sides = tuple(_resolved(side, named[0]) for side in comparison.sides)
            comparison = replace(comparison, sides=sides)
        if all(term.original for term in comparison.terms):
            quoted = next((s.name for s in comparison.sides if isinstance(s, Category)), None)
            hint = "" if quoted is None else f". If it is a column, use backticks: `{quoted}`"
            self.fail(f"a comparison must name a column that can change{hint}", start)
        return comparison

    def side(self) -> language.Side:
        if self.token.kind == "text":
            return Category(self.take().text)
        if self.is_next("abs") and self.following.text == "(":
            self.take()
            return Absolute(self.brackets())
        return self.sum()

    def brackets(self) -> Linear:
        self.expect("(")
        inner = self.sum()
        self.expect(")")
        return inner

    def sum(self) -> Linear:
        total = self.product()
        while self.is_next("+", "-"):
            sign = 1.0 if self.take().text == "+" else -1.0
            total += self.product().scaled(sign)
        if not all(isfinite(v) for v in (total.constant, *(t.coefficient for t in total.terms))):
            self.fail("the numbers here are too large")
        return total

    def product(self) -> Linear:
        start = self.token.start
        total = self.factor()
        while self.is_next("*", "/"):
            divides = self.take().text == "/"
            other = self.factor()
            if divides and (other.terms or not other.constant):
                hint = ". Names with such characters go in backticks" if other.terms else ""
                self.fail(f"only a number other than 0 can divide{hint}", start)
            if total.terms and other.terms:
                self.fail(
                    "columns can be multiplied by numbers, not by each other. Use a Custom "
                    "constraint for that.",
                    start,
                )
            number, rest = (total, other) if other.terms else (other, total)
            total = rest.scaled(1 / number.constant if divides else number.constant)
        return total

    def factor(self) -> Linear:
        if self.skip("-"):
            return self.factor().scaled(-1.0)
        if self.token.kind == "number":
            return Linear((), self.number())
        if self.is_next("("):
            return self.brackets()
        if self.skip("original"):
            return Linear((Term(1.0, self.original_column(), original=True),))
        if self.is_next("abs") and self.following.text == "(":
            self.fail("abs(…) must be a whole side of a relation")
        if self.token.kind == "text":
            self.fail("a category in quotes must be a whole side of a relation")
        word = self.token.kind == "word"
        usable = word and (not self.at_keyword or self.is_next(*SHORTHANDS, "abs"))
        if not usable and self.token.kind != "column":
            self.wanted("a column, a number or 'original'")
        return Linear((Term(1.0, self.take().text),))

    def original_column(self) -> str:
        if not self.skip("("):
            return BARE_ORIGINAL
        name = self.name()
        self.expect(")")
        return name


def _resolved(side: language.Side, name: str) -> language.Side:
    if isinstance(side, Category):
        return side
    if isinstance(side, Absolute):
        return Absolute(cast(Linear, _resolved(side.inner, name)))
    terms = (replace(t, feature=name) if t.feature == BARE_ORIGINAL else t for t in side.terms)
    # Adding nothing joins `original` and `original(age)`, which are now one term.
    return Linear(tuple(terms), side.constant) + Linear()


# ------------------------------------------------------------------------------------------------
# Files


def to_toml(constraints: Iterable[Constraint | str]) -> str:
    """Writes constraints as the text of a constraint file; notes are kept.

    Examples:
        >>> print(to_toml(["fixed age", "hours <= 50  # by law"]).split("version")[1])
         = 2
        constraints = [
            "fixed age",
            { constraint = "hours <= 50", note = "by law" },
        ]
    """
    lines = []
    for constraint in parse_all(constraints):
        if isinstance(constraint, language.Custom):
            raise InputError(
                f"The constraint '{constraint.name}' is a Python function and cannot be written "
                "to a file. Hand it over in Python."
            )
        text = _toml(str(constraint))
        if constraint.note:
            text = f"{{ constraint = {text}, note = {_toml(constraint.note)} }}"
        lines.append(f"    {text},\n")
    return f"{HEADER}version = {VERSION}\nconstraints = [\n{''.join(lines)}]\n"


def _toml(text: str) -> str:
    """Writes a TOML basic string: a JSON string, except that TOML wants DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def from_toml(text: str, where: str = "The constraint file") -> tuple[Constraint, ...]:
    r"""Reads the constraints of such a text; `where` begins the error sentences.

    Examples:
        >>> [str(c) for c in from_toml('version = 2\nconstraints = ["fixed age"]')]
        ['fixed age']
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} is not TOML: {error}.") from None
    if "version" not in content:
        raise InputError(f"{where} does not say its version. Begin it with: version = {VERSION}")
    if content["version"] != VERSION:
        raise InputError(
            f"{where} has version {content['version']!r}; this lapace reads version {VERSION}, "
            'whose entries are texts or { constraint = "…", note = "…" }.'
        )
    _refuse_unknown(content, ("version", "constraints"), where)
    entries = content.get("constraints", [])
    if not isinstance(entries, list):
        raise InputError(f'{where} must list its constraints: constraints = ["age == original"].')
    return tuple(_entry(entry, f"{where}, entry {i}") for i, entry in enumerate(entries, 1))


def _entry(entry: object, where: str) -> Constraint:
    text, note = entry, ""
    if isinstance(entry, dict):
        _refuse_unknown(entry, ("constraint", "note"), where)
        text, note = entry.get("constraint"), entry.get("note", "")
    if not isinstance(text, str) or not isinstance(note, str):
        shape = 'a text, or { constraint = "age == original", note = "why" }'
        raise InputError(f"{where} must be {shape}.")
    try:
        constraint = parse(text)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return replace(constraint, note=note) if note else constraint


def _refuse_unknown(content: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in content:
        if key not in known:
            hint = did_you_mean(key, known)
            raise InputError(f"{where} has a key '{key}' that means nothing here.{hint}")


def read_file(path: str | Path) -> tuple[Constraint, ...]:
    """Reads a constraint file (TOML).

    Examples:
        >>> read_file("nowhere.toml")
        Traceback (most recent call last):
        lapace.errors.InputError: There is no constraint file 'nowhere.toml'.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no constraint file '{path}'.")
    return from_toml(path.read_text(encoding="utf-8"), f"The constraint file '{path}'")
