"""Constraints in plain words: `bmi >= original - 3` as "bmi may fall by at most 3"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lapace.constraints import (
    Absolute,
    Category,
    ChangeLimit,
    Changes,
    Comparison,
    Conditional,
    Constraint,
    Custom,
    Linear,
    Membership,
    Shorthand,
    Term,
    Transition,
)
from lapace.constraints.language import MIRROR, Relation, Side
from lapace.schema import Schema
from lapace.why_not.relaxation import amount_text, joined

if TYPE_CHECKING:
    from lapace.apps.letters.wording import Words

__all__ = ["fixed", "in_words", "limits"]

ONLY = {"increasing": "may only go up", "decreasing": "may only go down", "fixed": "stays as it is"}
BOUNDS = {
    ">=": "at least", ">": "more than", "<=": "at most", "<": "less than", "==": "exactly",
    "!=": "anything but",
}  # fmt: skip
# What a relation to the value of today says, by the sign of the amount that is added to it.
FROM_TODAY = {
    "<=": ("has to fall by at least {}", "may only go down", "may rise by at most {}"),
    "<": ("has to fall by more than {}", "has to go down", "may rise by less than {}"),
    ">=": ("may fall by at most {}", "may only go up", "has to rise by at least {}"),
    ">": ("may fall by less than {}", "has to go up", "has to rise by more than {}"),
    "==": ("falls by exactly {}", "stays as it is", "rises by exactly {}"),
    "!=": ("does not fall by {}", "has to change", "does not rise by {}"),
}
OTHERWISE = {
    "may only go down": ("may fall by ", "and may not rise"),
    "may only go up": ("may rise by ", "and may not fall"),
}
Said = tuple[str, str]  # what a rule is about, and what it says of it


def fixed(constraints: Iterable[Constraint], words: Words) -> tuple[str, ...]:
    """Columns that are kept as they are, with the note that says why."""
    names: dict[str, str] = {}
    for found in constraints:
        if isinstance(found, Shorthand) and found.word == "fixed":
            names.update(dict.fromkeys(found.features, found.note))
        elif (kept := _kept(found)) is not None:
            names[kept] = found.note
    return tuple(
        words.column(name) + (f" ({note})" if note else "") for name, note in names.items()
    )


def _kept(found: Constraint) -> str | None:
    """The column of `x == original`."""
    if not (isinstance(found, Comparison) and found.relations == ("==",)):
        return None
    left, right = found.sides
    for one, other in ((left, right), (right, left)):
        word = one.word if isinstance(one, Linear) else None
        if word and other == Linear((Term(1.0, word, original=True),)):
            return word
    return None


def limits(
    constraints: Iterable[Constraint], schema: Schema | None, words: Words
) -> tuple[str, ...]:
    """Everything else that is kept to, a sentence for each column or rule.

    Examples:
        >>> from lapace.apps.letters import Words
        >>> from lapace.constraints import parse_all
        >>> rules = ["bmi <= original", "bmi >= original - 3", "abs(sugar - original) <= 1.5",
        ...          "fixed age", "2*rent <= income", "if job changes then tenure == 0"]
        >>> for sentence in limits(parse_all(rules), None, Words()):
        ...     print(sentence)
        bmi may fall by at most 3 and may not rise
        sugar may change by at most 1.5 either way
        2 × rent is at most income
        if job changes, then tenure is exactly 0
    """
    found: dict[str, tuple[list[str], list[str]]] = {}
    speaker = _Speaker(schema, words)
    for constraint in constraints:
        if (isinstance(constraint, Shorthand) and constraint.word == "fixed") or _kept(constraint):
            continue
        for subject, says in speaker.said(constraint):
            predicates, notes = found.setdefault(subject, ([], []))
            predicates += [says] if says not in predicates else []
            notes += [constraint.note] if constraint.note and constraint.note not in notes else []
    return tuple(
        f"{subject} {_together(predicates)}" + (f" ({'; '.join(notes)})" if notes else "")
        for subject, (predicates, notes) in found.items()
    )


def in_words(constraint: Constraint, schema: Schema | None, words: Words) -> str:
    """One constraint as a sentence, without its note."""
    said = _Speaker(schema, words).said(constraint)
    return joined([f"{subject} {says}" for subject, says in said])


def _together(predicates: Sequence[str]) -> str:
    """Puts several rules of one column into words: an amount and a direction make one clause."""
    for direction, (amount, otherwise) in OTHERWISE.items():
        by = [says for says in predicates if says.startswith(amount)]
        if direction in predicates and by:
            rest = [says for says in predicates if says not in (direction, *by)]
            return joined([*rest, *by]) + f" {otherwise}"
    return joined(predicates)


class _Speaker:
    """Says constraints in words."""

    def __init__(self, schema: Schema | None, words: Words) -> None:
        self.schema = schema
        self.words = words

    def said(self, constraint: Constraint) -> list[Said]:
        match constraint:
            case Shorthand(word, features):
                return [(self.words.column(name), ONLY[word]) for name in features]
            case ChangeLimit(relation, count):
                things = "thing changes" if count == 1 else "things change"
                return [(f"{BOUNDS[relation]} {count}", things)]
            case Membership():
                return [self._membership(constraint)]
            case Transition(name, before, after):
                first, then = (joined(list(map(str, values)), "or") for values in (before, after))
                return [(self.words.column(name), f"does not go from {first} to {then}")]
            case Changes(name):
                return [(self.words.column(name), "changes")]
            case Conditional(when, then):
                parts = [
                    joined([f"{s} {p}" for part in side for s, p in self.said(part)])
                    for side in (when, then)
                ]
                return [(f"if {parts[0]}, then", parts[1])]
            case Comparison():
                return [self._pair(*pair) for pair in constraint.pairs]
            case Custom(name):
                return [(f"the rule “{name}”", "holds")]

    def _membership(self, found: Membership) -> Said:
        subject, values = self.words.column(found.feature), list(map(str, found.values))
        if found.negated:
            said = f"is not {joined(values, 'or')}"
            return subject, said if not found.original else f"{said} and not what it is now"
        if found.original:
            return subject, f"stays as it is or becomes {joined(values, 'or')}"
        return subject, f"is {joined(values, 'or')}"

    def _pair(self, left: Side, relation: Relation, right: Side) -> Said:
        if isinstance(right, Absolute) or (isinstance(left, Linear) and not left.terms):
            left, relation, right = right, MIRROR[relation], left
        if isinstance(left, Absolute):
            return self._apart(left, relation, right)
        if isinstance(left, Linear) and isinstance(right, Linear) and not self._names(right):
            return self._linear(left, relation, right)
        says = {"==": "is", "!=": "is not"}.get(relation, f"is {BOUNDS[relation]}")
        return self._side(left), f"{says} {self._side(right)}"

    def _names(self, side: Linear) -> bool:
        """Whether a bare word is a category and not a column."""
        word = side.word
        return word is not None and self.schema is not None and word not in self.schema.names

    def _apart(self, left: Absolute, relation: Relation, right: Side) -> Said:
        """`abs(x - original) <= 3`."""
        now = [t.feature for t in left.terms if not t.original]
        own = [t.feature for t in left.terms if t.original]
        number = right.constant if isinstance(right, Linear) and not right.terms else None
        plain = {abs(t.coefficient) for t in left.terms} == {1.0} and left.inner.constant == 0
        if plain and number is not None and now == own and len(now) == 1 and relation[0] == "<":
            by = f"{BOUNDS[relation]} {self._amount(now[0], number)}"
            return self.words.column(now[0]), f"may change by {by} either way"
        return self._side(left), f"is {BOUNDS[relation]} {self._side(right)}"

    def _linear(self, left: Linear, relation: Relation, right: Linear) -> Said:
        """A column against a number, or against its value of today; else the formula."""
        apart = left + right.scaled(-1.0)
        now, own = ([t for t in apart.terms if t.original is is_own] for is_own in (False, True))
        if len(now) == 1 and len(own) <= 1 and {t.feature for t in own} <= {now[0].feature}:
            if now[0].coefficient < 0:
                relation = MIRROR[relation]
            apart = apart.scaled(1 / now[0].coefficient)
            name, number = now[0].feature, -apart.constant + 0.0
            share = -sum(t.coefficient for t in apart.terms if t.original)
            if not own:
                return self.words.column(name), f"is {BOUNDS[relation]} {self._text(name, number)}"
            if abs(share - 1) < 1e-9:
                clauses = FROM_TODAY[relation]
                clause = clauses[0 if number < 0 else 2 if number > 0 else 1]
                return self.words.column(name), clause.format(self._amount(name, abs(number)))
            if number == 0:
                says = f"is {BOUNDS[relation]} {100 * share:.6g} % of what it is now"
                return self.words.column(name), says
        return self._side(left), f"is {BOUNDS[relation]} {self._side(right)}"

    def _side(self, side: Side) -> str:
        if isinstance(side, Category):
            return side.name
        if isinstance(side, Absolute):
            return f"the size of ({self._side(side.inner)})"
        parts = []
        for term in side.terms:
            name = self.words.column(term.feature) if not self._names(side) else term.feature
            name = f"today's {name}" if term.original else name
            size = abs(term.coefficient)
            parts.append((term.coefficient < 0, name if size == 1 else f"{size:.6g} × {name}"))
        if side.constant or not parts:
            parts.append((side.constant < 0, f"{abs(side.constant):.12g}"))
        (negative, text), *rest = parts
        return (
            ("−" if negative else "")
            + text
            + "".join(f" {'−' if minus else '+'} {other}" for minus, other in rest)
        )

    def _amount(self, name: str, number: float) -> str:
        if self.schema is None or self.schema[name].kind != "continuous":
            return f"{number:.12g}"
        return amount_text(number, self.schema[name])

    def _text(self, name: str, number: float) -> str:
        if self.schema is None or self.schema[name].kind != "continuous":
            return f"{number:.12g}"
        return self.schema[name].text(number)
