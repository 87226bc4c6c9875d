"""From text to constraints.

A recursive descent over a dozen kinds of tokens. Every complaint says at which character of which
text it stopped, what was expected there and what was found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any, NamedTuple, NoReturn, cast

from lapace.constraints.language import (
    KEYWORDS,
    NUMBER,
    Absolute,
    Category,
    ChangeLimit,
    Changes,
    Comparison,
    Conditional,
    Constraint,
    Linear,
    Membership,
    Relation,
    Shorthand,
    Side,
    Simple,
    Term,
    Transition,
    Value,
    noted,
)
from lapace.errors import InputError, did_you_mean

__all__ = ["parse", "parse_all"]

TOKEN = re.compile(
    rf"""
    (?P<space>\s+)
  | (?P<note>\#.*)
  | (?P<number>{NUMBER}(?!\w))
  | (?P<word>\w+)
  | `(?P<column>(?:[^`]|``)*)`
  | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<relation><=|>=|==|!=|≤|≥|≠|=|<|>)
  | (?P<arrow>->|→)
  | (?P<mark>[-+*/(){{}},:−])
    """,
    re.VERBOSE | re.DOTALL,
)
SPELLINGS: dict[str, Relation] = {"≤": "<=", "≥": ">=", "≠": "!=", "=": "=="}
BEFORE_A_NAME = ("fixed", "increasing", "decreasing")


class Token(NamedTuple):
    """A piece of the text: its kind, what it stands for, where it starts."""

    kind: str
    text: str
    start: int

    def shown(self) -> str:
        """For error sentences."""
        return "the end" if self.kind == "end" else f"'{self.text}'"


def parse(text: str) -> Constraint:
    """Reads one constraint; what follows a `#` becomes its note.

    Examples:
        >>> print(parse("abs(income - original) <= 0.2*original   # not overnight"))
        abs(income - original) <= 0.2*original
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
    """Reads texts and lets constraints pass as they are; one alone will do.

    Examples:
        >>> [str(c) for c in parse_all(["hours<=50", parse("fixed age")])]
        ['hours <= 50', 'fixed age']
    """
    if isinstance(constraints, str):
        constraints = [constraints]
    if isinstance(constraints, Constraint):
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
        self.tokens = list(self._tokens())
        self.place = 0

    def _tokens(self) -> Iterable[Token]:
        at = 0
        while at < len(self.text):
            match = TOKEN.match(self.text, at)
            if match is None:
                self._unreadable(at)
            kind, text = str(match.lastgroup), match.group(str(match.lastgroup))
            if kind == "note":
                self.note = text[1:].strip()
            elif kind == "column":
                yield Token(kind, text.replace("``", "`"), at)
            elif kind == "text":
                yield Token(kind, re.sub(r"\\([\"'\\])", r"\1", text[1:-1]), at)
            elif kind != "space":
                yield Token(kind, SPELLINGS.get(text, text), at)
            at = match.end()
        yield Token("end", "", len(self.text))

    def _unreadable(self, at: int) -> NoReturn:
        sign = self.text[at]
        if sign in "`\"'":
            self.fail(f"this {sign} is never closed", at)
        hint = " Names with such characters go in backticks: `capital-gain`."
        self.fail(f"'{sign}' has no meaning here.{hint}", at)

    # -- reading tokens ---------------------------------------------------------------------------

    @property
    def next(self) -> Token:
        return self.tokens[self.place]

    @property
    def after(self) -> Token:
        return self.tokens[min(self.place + 1, len(self.tokens) - 1)]

    def take(self) -> Token:
        token = self.next
        self.place += token.kind != "end"
        return token

    def at(self, *texts: str) -> bool:
        """Whether one of these words or marks comes next."""
        return self.next.text in texts and self.next.kind not in ("column", "text")

    def skip(self, *texts: str) -> bool:
        found = self.at(*texts)
        self.place += found
        return found

    def expect(self, text: str, why: str = "") -> None:
        if not self.skip(text):
            self.wanted(f"'{text}'{why}")

    def wanted(self, what: str, hint: str = "") -> NoReturn:
        self.fail(f"expected {what}, found {self.next.shown()}.{hint}", self.next.start)

    def fail(self, what: str, at: int) -> NoReturn:
        sentence = what if what.endswith((".", "?")) else what + "."
        place = f"at character {at + 1}"
        raise InputError(f"Cannot read the constraint '{self.text}' {place}: {sentence}")

    # -- the grammar ------------------------------------------------------------------------------

    def constraint(self) -> Constraint:
        if self.next.kind == "end":
            raise InputError("The constraint is empty. Write one such as 'age == original'.")
        found = self.form()
        if self.at("and", "or"):
            hint = " Write two constraints." if self.at("and") else " Use 'in {…}' or 'if … then'."
            self.fail(f"'{self.next.text}' cannot join constraints.{hint}", self.next.start)
        if self.next.kind != "end":
            self.wanted("the end of the constraint", self.spaced())
        return noted(found, self.note) if self.note else found

    def form(self) -> Constraint:
        if self.skip("if"):
            return self.conditional()
        if self.skip("not"):
            return self.transition()
        if self.at("changes") and self.after.kind == "relation":
            return self.limit()
        if self.at(*BEFORE_A_NAME) and self.after.kind in ("word", "column", "end"):
            return self.shorthand()
        return self.simple()

    def simple(self) -> Simple:
        named = self.next.kind in ("column", "word")
        if named and self.after.kind == "word" and self.after.text in ("changes", "in", "not"):
            feature = self.name()
            if self.skip("changes"):
                return Changes(feature)
            negated = self.skip("not")
            self.expect("in", " after 'not'" if negated else "")
            return self.membership(feature, negated)
        return self.comparison()

    def conditional(self) -> Conditional:
        when = self.conjunction()
        self.expect("then")
        return Conditional(when, self.conjunction())

    def conjunction(self) -> tuple[Simple, ...]:
        parts = [self.simple()]
        while self.skip("and"):
            parts.append(self.simple())
        return tuple(parts)

    def transition(self) -> Transition:
        feature = self.name()
        hint = " A change that is ruled out reads 'not education: master -> bachelor'."
        if not self.skip(":"):
            self.wanted("':'", hint)
        before = self.one_or_more()
        if self.next.kind != "arrow":
            self.wanted("'->'", hint)
        self.take()
        return Transition(feature, before, self.one_or_more())

    def limit(self) -> ChangeLimit:
        self.take()
        relation = cast(Relation, self.take().text)
        if relation == "!=":
            self.fail("'changes' can be compared by <=, <, ==, > and >= only", self.next.start)
        if self.next.kind != "number" or not re.fullmatch("[0-9]+", self.next.text):
            self.wanted("a whole number of columns")
        return ChangeLimit(relation, int(self.take().text))

    def shorthand(self) -> Shorthand:
        word = cast(Any, self.take().text)
        names = [self.name()]
        while self.skip(","):
            names.append(self.name())
        return Shorthand(word, tuple(dict.fromkeys(names)))

    def membership(self, feature: str, negated: bool) -> Membership:
        values, original = self.members()
        return Membership(feature, values, original, negated)

    def members(self) -> tuple[tuple[Value, ...], bool]:
        self.expect("{", " and the values, as in {bachelor, master}")
        values: list[Value] = []
        original = False
        while True:
            if self.skip("original"):
                original = True
            else:
                values.append(self.value())
            if not self.skip(","):
                break
        hint = ' A category with other characters goes in quotes: "some college".'
        if not self.skip("}"):
            self.wanted("',' or '}'", hint)
        return tuple(dict.fromkeys(values)), original

    def one_or_more(self) -> tuple[Value, ...]:
        if not self.at("{"):
            return (self.value(),)
        start = self.next.start
        values, original = self.members()
        if original:
            self.fail("'original' has no place in a transition", start)
        return values

    def value(self) -> Value:
        sign = -1.0 if self.skip("-", "−") else 1.0
        if self.next.kind == "number":
            return sign * self.number()
        if sign > 0 and self.next.kind in ("word", "text"):
            if self.next.kind == "word" and self.next.text == "original":
                self.fail("'original' has no place here", self.next.start)
            return self.take().text
        hint = " Categories go in double quotes." if self.next.kind == "column" else ""
        return self.wanted("a category or a number", hint)

    def name(self) -> str:
        if self.next.kind == "column":
            return self.take().text
        if self.next.kind == "word" and self.next.text not in KEYWORDS:
            return self.take().text
        hint = f" If '{self.next.text}' is a column, put it in backticks." if self.known() else ""
        return self.wanted("a column's name", hint)

    def known(self) -> bool:
        return self.next.kind == "word" and self.next.text in KEYWORDS

    def number(self) -> float:
        token = self.take()
        value = float(token.text)
        if not isfinite(value):
            self.fail(f"{token.text} is too large a number", token.start)
        return value

    # -- comparisons ------------------------------------------------------------------------------

    def comparison(self) -> Comparison:
        start = self.next.start
        sides = [self.side()]
        relations: list[Relation] = []
        while self.next.kind == "relation":
            relations.append(cast(Relation, self.take().text))
            sides.append(self.side())
        if not relations:
            what = "a relation (<=, <, ==, !=, >, >=)" + self.misread(sides[0])
            self.wanted(what, "" if self.known() else self.meant(sides[0]) or self.spaced())
        self.one_way(relations, start)
        return self.resolved(Comparison(tuple(sides), tuple(relations)), start)

    def spaced(self) -> str:
        """`free sulfur <= 3` and `fixed acidity <= 3` lack quotes."""
        before = self.tokens[max(self.place - 1, 0)].kind
        apart = self.next.kind == "word" or (self.next.kind == "relation" and before == "word")
        if not apart:
            return ""
        return ' Names of several words go in backticks: `a name`; categories in quotes: "a name".'

    def meant(self, side: Side) -> str:
        """`fixd age` is a misspelt `fixed age`."""
        word = side.word if isinstance(side, Linear) else None
        before_a_name = word is not None and self.next.kind in ("word", "column")
        return did_you_mean(word, BEFORE_A_NAME) if before_a_name else ""

    def misread(self, side: Side) -> str:
        """`2x` reads as a name; its writer meant a product."""
        word = side.word if isinstance(side, Linear) else None
        product = re.fullmatch(r"([0-9]+)([^\W\d]\w*)", word or "")
        return f" (or is '{word}' meant as {product[1]}*{product[2]}?)" if product else ""

    def one_way(self, relations: list[Relation], start: int) -> None:
        """A chain must lead one way, as a range does."""
        ways = {relation[0] for relation in relations}
        if len(relations) > 1 and (len(ways) > 1 or ways == {"!"}):
            self.fail("a chain of relations must point one way, as 20 <= hours <= 60 does", start)

    def resolved(self, found: Comparison, start: int) -> Comparison:
        """Says whose own value a bare `original` is: that of the one column named."""
        named = [word for word in found.words if word != _OWN]
        if _OWN in found.words:
            if len(named) != 1:
                which = " or ".join(f"original({_shown(n)})" for n in named) or "a column beside it"
                hint = " A name with a '-' in it goes in backticks." if "-" in self.text else ""
                self.fail(f"whose own value is 'original'? Name {which}.{hint}", start)
            sides = tuple(_with_own(side, named[0]) for side in found.sides)
            found = replace(found, sides=sides)
        if not any(not term.original for term in found.terms):
            quoted = next((s.name for s in found.sides if isinstance(s, Category)), None)
            hint = "" if quoted is None else f". If it is a column, use backticks: `{quoted}`"
            self.fail(f"a comparison must name a column that an answer could change{hint}", start)
        return found

    def side(self) -> Side:
        if self.next.kind == "text":
            return Category(self.take().text)
        if self.at("abs") and self.after.text == "(":
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
        while self.at("+", "-", "−"):
            sign = 1.0 if self.take().text == "+" else -1.0
            total = _sum(total, _scaled(self.product(), sign))
        self.finite(total)
        return total

    def product(self) -> Linear:
        start = self.next.start
        total = self.factor()
        while self.at("*", "/"):
            operator = self.take().text
            other = self.factor()
            if operator == "/":
                if other.terms or not other.constant:
                    hint = ". Names with such characters go in backticks" if other.terms else ""
                    self.fail(f"only a number other than 0 can divide{hint}", start)
                total = _scaled(total, 1 / other.constant)
            elif total.terms and other.terms:
                self.fail(
                    "columns can be multiplied by numbers, not by each other. Use a Custom "
                    "constraint for that.",
                    start,
                )
            else:
                number, rest = (total, other) if other.terms else (other, total)
                total = _scaled(rest, number.constant)
        return total

    def factor(self) -> Linear:
        if self.skip("-", "−"):
            return _scaled(self.factor(), -1.0)
        if self.next.kind == "number":
            return Linear((), self.number())
        if self.at("("):
            return self.brackets()
        if self.skip("original"):
            return Linear((Term(1.0, self.owner(), original=True),))
        if self.at("abs") and self.after.text == "(":
            self.fail("abs(…) must be a whole side of a relation", self.next.start)
        if self.next.kind == "text":
            self.fail("a category in quotes must be a whole side of a relation", self.next.start)
        spare = self.next.kind == "word" and self.next.text in (*BEFORE_A_NAME, "abs")
        if spare or self.next.kind == "column":
            return Linear((Term(1.0, self.take().text),))
        if self.next.kind != "word" or self.known():
            self.wanted("a column, a number or 'original'")
        return Linear((Term(1.0, self.take().text),))

    def owner(self) -> str:
        if not self.skip("("):
            return _OWN
        name = self.name()
        self.expect(")")
        return name

    def finite(self, side: Linear) -> None:
        if not all(isfinite(v) for v in (side.constant, *(t.coefficient for t in side.terms))):
            self.fail("the numbers here are too large", self.next.start)


_OWN = "\0original\0"  # stands for the one column named until the whole comparison is read


def _shown(name: str) -> str:
    return Term(1.0, name).text(alone=False)


def _sum(a: Linear, b: Linear) -> Linear:
    """Terms of one column join; those that cancel go."""
    totals: dict[tuple[str, bool], float] = {}
    for term in (*a.terms, *b.terms):
        key = (term.feature, term.original)
        totals[key] = totals.get(key, 0.0) + term.coefficient
    terms = tuple(Term(c, feature, own) for (feature, own), c in totals.items() if c)
    return Linear(terms, a.constant + b.constant)


def _scaled(side: Linear, by: float) -> Linear:
    terms = tuple(replace(t, coefficient=t.coefficient * by) for t in side.terms)
    return Linear(tuple(t for t in terms if t.coefficient), side.constant * by + 0.0)


def _with_own(side: Side, name: str) -> Side:
    if isinstance(side, Category):
        return side
    if isinstance(side, Absolute):
        return Absolute(cast(Linear, _with_own(side.inner, name)))
    terms = (replace(t, feature=name) if t.feature == _OWN else t for t in side.terms)
    named = Linear(tuple(terms), side.constant)
    return _sum(named, Linear())  # `original + original(age)` are now one term
