"""Reads constraints from text, by recursive descent.

Every error says at which character of which text reading stopped, what was expected there and what
was found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import isfinite
from typing import NamedTuple, NoReturn, TypeVar, cast, get_args

from lapace.constraints import language
from lapace.constraints.language import (
    Category,
    Comparison,
    Constraint,
    Linear,
    Term,
    Value,
)
from lapace.errors import InputError, did_you_mean

__all__ = ["parse", "parse_all"]

T = TypeVar("T")

# Dates and amounts as columns write them: what a text in quotes may hold, without the quotes.
WRITTEN = r"""
    [0-9]{4}(?P<dash>[-/])[0-9]{2}(?P=dash)[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)?
  | [0-9]{1,2}(?P<mark_of_date>[-/.])[0-9]{1,2}(?P=mark_of_date)[0-9]{4}(?![0-9])
  | [$€£¥₹][0-9]+(?:[.,][0-9]+)*(?:[kKmM]|bn)?
  | [0-9]+(?:[.,][0-9]+)*[ ]?[$€£¥₹%]
  | (?:(?<=[<>=])|(?<=[<>=][ ])|^)[0-9]{1,3}(?:,[0-9]{3})+(?:[.][0-9]+)?
"""
TOKEN = re.compile(
    rf"""
    (?P<space>\s+)
  | (?P<note>\#.*)
  | (?P<written>{WRITTEN})
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
    r"=(>|<)": "'={0}' is not a relation. Write '{0}='.",
    r"(?:[<>=]\s*|^)[0-9]+,[0-9]{1,2}(?![0-9])": "Numbers have a point before decimals: 1234.56.",
    r"(\w+)\s+between\s+(\S+)\s+and\s+(\S+)": "'between' is written {1} <= {0} <= {2}.",
    r"\babs\s*\(([^()]*)\)": "'abs({0}) <= 3' is written -3 <= {0} <= 3.",
    r"\bin\s*[\[(]([^\])]*)[\])]": "Values go in braces: in {{{0}}}.",
}
QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`|#.*")
SEVERAL_WORDS = ' Names of several words go in backticks: `a name`; categories in quotes: "a name".'


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
        >>> print(parse("income <= 1.2*original   # not overnight"))
        income <= 1.2*original
        >>> parse("income >> 3")
        Traceback (most recent call last):
        lapace.errors.InputError: Cannot read the constraint 'income >> 3' at character 9: ...
    """
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
    if isinstance(constraints, str | Constraint):
        constraints = [constraints]
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
        self.place = 0
        self.refuse_habits()
        self.tokens = list(self.tokenize())

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
            elif kind == "written":
                yield Token("text", text, start)
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

    def take(self) -> str:
        text = self.token.text
        self.place += self.token.kind != "end"
        return text

    def is_next(self, *texts: str) -> bool:
        """Whether one of these words or marks comes next."""
        return self.token.text in texts and self.token.kind not in ("column", "text")

    def skip(self, *texts: str) -> bool:
        """Takes one of these words or marks, if it comes next."""
        skipped = self.is_next(*texts)
        self.place += skipped
        return skipped

    def expect(self, text: str, hint: str = "") -> None:
        if not self.skip(text):
            self.wanted(f"'{text}'", hint)

    def separated(self, separator: str, rule: Callable[[], T]) -> tuple[T, ...]:
        """Reads a rule once or more, with a separator in between."""
        values = [rule()]
        while self.skip(separator):
            values.append(rule())
        return tuple(values)

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
            self.wanted("the end of the constraint", self.several_words_hint())
        return replace(constraint, note=self.note) if self.note else constraint

    def form(self) -> Constraint:
        if self.skip("if"):
            when = self.separated("and", self.simple)
            self.expect("then")
            return language.Conditional(when, self.separated("and", self.simple))
        if self.skip("not"):
            hint = " A change that is ruled out reads 'not education: master -> bachelor'."
            feature = self.name()
            self.expect(":", hint)
            before = self.values()
            self.expect("->", hint)
            return language.Transition(feature, before, self.values())
        if self.is_next("changes") and self.following.kind == "relation":
            self.take()
            self.expect("<=", " A limit on changes reads 'changes <= 3'.")
            if self.token.kind != "number" or not self.token.text.isdecimal():
                self.wanted("a whole number of columns")
            return language.ChangeLimit(int(self.take()))
        if self.is_next(*SHORTHANDS) and self.following.kind in ("word", "column", "end"):
            word = cast(language.Keyword, self.take())
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
        self.expect("in")
        members = self.braces(lambda: None if self.skip("original") else self.value())
        values = tuple(value for value in members if value is not None)
        return language.Membership(feature, values, None in members, negated)

    def braces(self, rule: Callable[[], T]) -> tuple[T, ...]:
        """Reads what stands between braces, each once."""
        self.expect("{", " Values go in braces, as in {bachelor, master}.")
        values = tuple(dict.fromkeys(self.separated(",", rule)))
        if not self.skip("}"):
            hint = ' A category with other characters goes in quotes: "some college".'
            self.wanted("',' or '}'", hint)
        return values

    def values(self) -> tuple[Value, ...]:
        return self.braces(self.value) if self.is_next("{") else (self.value(),)

    def value(self) -> Value:
        sign = -1.0 if self.skip("-") else 1.0
        if self.token.kind == "number":
            return sign * self.number()
        if sign > 0 and self.token.kind in ("word", "text"):
            if self.is_next("original"):
                self.fail("'original' has no place here")
            return self.take()
        hint = " Categories go in double quotes." if self.token.kind == "column" else ""
        return self.wanted("a category or a number", hint)

    def name(self) -> str:
        if self.token.kind == "column" or (self.token.kind == "word" and not self.at_keyword):
            return self.take()
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
            relations.append(cast(language.Relation, self.take()))
            sides.append(self.side())
        if not relations:
            misspelt = did_you_mean(sides[0].word or "", SHORTHANDS)
            self.wanted("a relation (<=, <, ==, !=, >, >=)", misspelt or self.several_words_hint())
        directions = {relation[0] for relation in relations}
        if len(relations) > 1 and (len(directions) > 1 or directions == {"!"}):
            self.fail("a chain of relations must point one way, as 20 <= hours <= 60 does", start)
        return self.resolved(Comparison(tuple(sides), tuple(relations)), start)

    def several_words_hint(self) -> str:
        """Returns a hint for `free sulfur <= 3` and `fixed acidity <= 3`, which lack quotes."""
        after_word = self.place > 0 and self.tokens[self.place - 1].kind == "word"
        is_word = self.token.kind == "word" and not self.at_keyword
        return SEVERAL_WORDS if is_word or (after_word and self.token.kind == "relation") else ""

    def resolved(self, comparison: Comparison, start: int) -> Comparison:
        """Replaces a bare `original` by the original value of the one column named."""
        named = [word for word in comparison.words if word != BARE_ORIGINAL]
        if BARE_ORIGINAL in comparison.words:
            if len(named) != 1:
                choices = [f"original({language.column_text(name)})" for name in named]
                which = " or ".join(choices) or "a column beside it"
                self.fail(f"which column's original value is meant? Name {which}.", start)
            sides = tuple(_resolved(side, named[0]) for side in comparison.sides)
            comparison = replace(comparison, sides=sides)
        if all(term.original for term in comparison.terms):
            self.fail("a comparison must name a column that can change", start)
        return comparison

    def side(self) -> language.Side:
        if self.token.kind == "text":
            return Category(self.take())
        return self.sum()

    def brackets(self) -> Linear:
        self.expect("(")
        inner = self.sum()
        self.expect(")")
        return inner

    def sum(self) -> Linear:
        total = self.product()
        while self.is_next("+", "-"):
            sign = 1.0 if self.take() == "+" else -1.0
            total += self.product().scaled(sign)
        if not all(isfinite(v) for v in (total.constant, *(t.coefficient for t in total.terms))):
            self.fail("the numbers here are too large")
        return total

    def product(self) -> Linear:
        start = self.token.start
        total = self.factor()
        while self.is_next("*", "/"):
            divides = self.take() == "/"
            other = self.factor()
            if divides and (other.terms or not other.constant):
                self.fail("only a number other than 0 can divide", start)
            if total.terms and other.terms:
                self.fail(
                    "columns can be multiplied by numbers, not by each other. Declare a derived "
                    "column for that.",
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
            name = BARE_ORIGINAL
            if self.skip("("):
                name = self.name()
                self.expect(")")
            return Linear((Term(1.0, name, original=True),))
        if self.token.kind == "text":
            self.fail("a category in quotes must be a whole side of a relation")
        word = self.token.kind == "word"
        usable = word and (not self.at_keyword or self.is_next(*SHORTHANDS))
        if not usable and self.token.kind != "column":
            self.wanted("a column, a number or 'original'")
        return Linear((Term(1.0, self.take()),))


def _resolved(side: language.Side, name: str) -> language.Side:
    if isinstance(side, Category):
        return side
    terms = (replace(t, feature=name) if t.feature == BARE_ORIGINAL else t for t in side.terms)
    # Adding nothing joins `original` and `original(age)`, which are now one term.
    return Linear(tuple(terms), side.constant) + Linear()
