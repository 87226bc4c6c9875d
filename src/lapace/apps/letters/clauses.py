"""Constraints in plain words: `bmi >= original - 3` as "bmi may fall by at most 3"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lapace.apps.letters.words import Words
from lapace.constraints import (
    Category,
    ChangeLimit,
    Changes,
    Comparison,
    Conditional,
    Constraint,
    Linear,
    Membership,
    Shorthand,
    Transition,
)
from lapace.constraints.language import MIRROR, Relation, Side
from lapace.schema import Schema
from lapace.why_not.relaxation import amount_text, joined

__all__ = ["DOWN", "STAYS", "UP", "Clause", "by_subject", "clauses", "fixed", "in_words", "limits"]

STAYS, UP, DOWN = "stays as it is", "may only go up", "may only go down"
SHORTHANDS = {"fixed": STAYS, "increasing": UP, "decreasing": DOWN}
BOUNDS = {
    ">=": "at least", ">": "more than", "<=": "at most", "<": "less than", "==": "exactly",
    "!=": "anything but",
}  # fmt: skip
# What a relation to the value of today says, by the sign of the amount that is added to it.
FROM_TODAY = {
    "<=": ("has to fall by at least {}", DOWN, "may rise by at most {}"),
    ">=": ("may fall by at most {}", UP, "has to rise by at least {}"),
    "==": ("falls by exactly {}", STAYS, "rises by exactly {}"),
}


class Clause(NamedTuple):
    """A part of a sentence: what a constraint says of one column, or of the whole row.

    Attributes:
        column: The column's name; empty where the clause is about more than one.
        subject: The column in words, or what else the clause is about.
        predicate: What is said of it.
    """

    column: str
    subject: str
    predicate: str


def fixed(constraints: Iterable[Constraint], schema: Schema, words: Words) -> tuple[str, ...]:
    """Returns the columns that are kept as they are, each with the note that says why."""
    notes = {
        clause.subject: constraint.note
        for constraint in constraints
        for clause in clauses(constraint, schema, words)
        if clause.predicate == STAYS
    }
    return tuple(subject + (f" ({note})" if note else "") for subject, note in notes.items())


def limits(constraints: Iterable[Constraint], schema: Schema, words: Words) -> tuple[str, ...]:
    """Returns the other limits in words, one for each column, each with the notes that say why.

    Examples:
        >>> from lapace.constraints import parse_all
        >>> names = ("bmi", "sugar", "age", "rent", "income", "job", "tenure")
        >>> schema = Schema.infer([dict.fromkeys(names, i % 50 / 2) for i in range(99)])
        >>> rules = ["bmi <= original", "bmi >= original - 3", "sugar <= original + 1.5",
        ...          "fixed age", "2*rent <= income", "if job changes then tenure == 0"]
        >>> for sentence in limits(parse_all(rules), schema, Words()):
        ...     print(sentence)
        bmi may only go down and may fall by at most 3
        sugar may rise by at most 1.5
        2 × rent is at most income
        if job changes, then tenure is exactly 0
    """
    said = [
        (clause, constraint.note)
        for constraint in constraints
        for clause in clauses(constraint, schema, words)
        if clause.predicate != STAYS
    ]
    sentences = []
    for subject, sentence in by_subject(clause for clause, _ in said).items():
        notes = dict.fromkeys(note for clause, note in said if note and clause.subject == subject)
        sentences.append(sentence + (f" ({'; '.join(notes)})" if notes else ""))
    return tuple(sentences)


def by_subject(parts: Iterable[Clause]) -> dict[str, str]:
    """Joins clauses to sentences, one for each subject."""
    said: dict[str, dict[str, None]] = {}
    for part in parts:
        said.setdefault(part.subject, {})[part.predicate] = None
    return {
        subject: f"{subject} {joined(list(predicates))}".strip()
        for subject, predicates in said.items()
    }


def in_words(constraint: Constraint, schema: Schema, words: Words) -> str:
    """Returns one constraint as a sentence, without its note."""
    parts = clauses(constraint, schema, words)
    return joined([f"{part.subject} {part.predicate}".strip() for part in parts])


def clauses(constraint: Constraint, schema: Schema, words: Words) -> list[Clause]:
    """Returns what a constraint says; its own text where there are no plain words for it."""
    match constraint:
        case ChangeLimit(most):
            things = "thing changes" if most == 1 else "things change"
            return [Clause("", f"at most {most}", things)]
        case Conditional(when, then):
            parts = [joined([in_words(c, schema, words) for c in side]) for side in (when, then)]
            return [Clause("", f"if {parts[0]}, then", parts[1])]
    pairs = _about_columns(constraint, schema)
    if not pairs and isinstance(constraint, Comparison):
        return [Clause("", joined([_pair_words(*p, words) for p in constraint.pairs]), "")]
    if not pairs:
        return [Clause("", str(constraint), "")]
    return [Clause(name, words.column(name), predicate) for name, predicate in pairs]


def _pair_words(left: Side, relation: Relation, right: Side, words: Words) -> str:
    """Says a comparison of several columns, a side that may change first."""
    if all(term.original for term in left.terms):
        left, relation, right = right, MIRROR[relation], left
    return f"{_side_words(left, words)} is {BOUNDS[relation]} {_side_words(right, words)}"


def _side_words(side: Side, words: Words) -> str:
    """Says a side of a comparison of several columns: `84*rent - 5` as "84 × rent − 5"."""
    if isinstance(side, Category):
        return side.name
    text = ""
    for term in side.terms:
        name = ("today's " if term.original else "") + words.column(term.feature)
        size = "" if abs(term.coefficient) == 1 else f"{abs(term.coefficient):,.12g} × "
        text += (" − " if term.coefficient < 0 else " + ") + size + name
    if side.constant or not text:
        text += (" − " if side.constant < 0 else " + ") + f"{abs(side.constant):,.12g}"
    return text.removeprefix(" + ").strip()


def _about_columns(constraint: Constraint, schema: Schema) -> list[tuple[str, str]]:
    """Returns columns and what is said of each; nothing where one clause is about several."""
    match constraint:
        case Shorthand(word, features):
            return [(name, SHORTHANDS[word]) for name in features]
        case Membership(name, values, original, negated):
            listed = joined(list(map(str, values)), "or")
            if negated:
                return [(name, f"is not {listed}" + " and not what it is now" * original)]
            return [(name, ("stays as it is or becomes " if original else "is ") + listed)]
        case Transition(name, before, after):
            first, then = (joined(list(map(str, values)), "or") for values in (before, after))
            return [(name, f"does not go from {first} to {then}")]
        case Changes(name):
            return [(name, "changes")]
        case Comparison():
            pairs = [_compared(*pair, schema) for pair in constraint.pairs]
            return [pair for pair in pairs if pair is not None] if all(pairs) else []
    return []


def _compared(
    left: Side, relation: Relation, right: Side, schema: Schema
) -> tuple[str, str] | None:
    """Returns a column and what a comparison says of it; None where it is about more than one."""
    if isinstance(left, Linear) and not left.terms:
        left, relation, right = right, MIRROR[relation], left
    if not isinstance(left, Linear):
        return None
    level = right.name if isinstance(right, Category) else right.word
    is_category = isinstance(right, Category) or level not in schema.names  # and no column
    if left.word and level and is_category:
        is_ = {"==": "is", "!=": "is not"}.get(relation, f"is {BOUNDS[relation]}")
        return left.word, f"{is_} {level}"
    return (
        _bounded(left + right.scaled(-1.0), relation, schema) if isinstance(right, Linear) else None
    )


def _bounded(apart: Linear, relation: Relation, schema: Schema) -> tuple[str, str] | None:
    """Says `x <= 3` and `x <= original + 3`, given the difference of the two sides."""
    now = [term for term in apart.terms if not term.original]
    own = [term for term in apart.terms if term.original]
    if len(now) != 1 or len(own) > 1 or {t.feature for t in own} - {now[0].feature}:
        return None
    name, scale = now[0].feature, now[0].coefficient
    relation = MIRROR[relation] if scale < 0 else relation
    number = -apart.constant / scale + 0.0
    feature = schema[name]
    if not own:
        text = feature.text(number) if feature.kind == "continuous" else f"{number:.12g}"
        return name, f"is {BOUNDS[relation]} {text}"
    if own[0].coefficient != -scale or relation not in FROM_TODAY:
        return None
    clause = FROM_TODAY[relation][0 if number < 0 else 2 if number > 0 else 1]
    return name, clause.format(amount_text(abs(number), feature))
