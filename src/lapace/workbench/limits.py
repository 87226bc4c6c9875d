"""A visitor's limits as constraints and costs, and what to loosen where nothing fits.

The page sends limits as JSON: for each column that has any, `mode` (`free`, `keep`, `up`, `down`),
`low` and `high` (numbers or dates of the form), `levels` (the categories allowed, by position) and
`effort` (0 very easy to 4 very hard); beside them `most`, how many things may change, `typed`,
constraints in the language, and `target`, the position of the label wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lapace.constraints import System, parse
from lapace.constraints.language import Membership, column_text
from lapace.errors import InputError
from lapace.result import ANY_OTHER, Move, WhyNot
from lapace.schema import Feature, Schema
from lapace.workbench.columns import Json, _cell, form_value, spoken

__all__ = ["EFFORTS", "LimitQuery", "Step", "loosened", "make_query", "steps_to_loosen"]

EFFORTS = (0.25, 0.5, 1.0, 2.0, 4.0)  # very easy, easy, as usual, hard, very hard
USUAL = 2  # the position of 1.0
MODES = {"keep": "fixed", "up": "increasing", "down": "decreasing"}
MOST_TYPED = 50
MOST_LENGTH = 1_000


@dataclass(frozen=True)
class LimitQuery:
    """What to explain with.

    Attributes:
        constraints: As the constraint language prints them.
        sources: For each, the column and part of the limits it comes from: `("income", "high")`,
            `("", "most")`, `("", "typed")`.
        costs: The weight of each column that has one.
        target: The label wanted; None to leave it to the library.
        problems: What cannot be used: the line, and a sentence.
    """

    constraints: tuple[str, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    costs: Mapping[str, float] = field(default_factory=dict)
    target: Any = None
    problems: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Step:
    """One thing to loosen.

    Attributes:
        text: What would change, in words.
        yours: Whether it is one of the visitor's limits: a rule cannot be loosened.
        now: The limit as it is, in words.
    """

    text: str
    yours: bool
    now: str


def make_query(limits: Mapping[str, Any], schema: Schema, labels: Sequence[Any]) -> LimitQuery:
    """Limits as constraints, costs and a target.

    Args:
        limits: As the page sends them.
        schema: The columns.
        labels: The classifier's labels.

    Examples:
        >>> schema = Schema.infer([{"age": 20 + i % 40, "home": "ab"[i % 2]} for i in range(99)])
        >>> said = {"age": {"mode": "up", "high": "40"}, "home": {"mode": "keep"}}
        >>> make_query({"features": said, "most": 1}, schema, ["no", "yes"]).constraints
        ('increasing age', 'age <= 40', 'fixed home', 'changes <= 1')
    """
    found: list[tuple[str, str, str]] = []  # column, part, text
    problems: list[tuple[str, str]] = []
    costs: dict[str, float] = {}
    features = limits.get("features") or {}
    for feature in schema.features:
        said = features.get(feature.name)
        if not isinstance(said, Mapping) or feature.derived is not None:
            continue
        try:
            found += [(feature.name, part, text) for part, text in _texts(feature, said)]
        except ValueError as error:
            problems.append((spoken(feature.name), str(error)))
        effort = said.get("effort", USUAL)
        if effort in range(len(EFFORTS)) and effort != USUAL:
            costs[feature.name] = EFFORTS[effort]
    most = limits.get("most")
    if isinstance(most, int) and 1 <= most <= len(schema.features):
        found.append(("", "most", f"changes <= {most}"))
    typed = [str(text).strip() for text in limits.get("typed") or ()][:MOST_TYPED]
    found += [("", "typed", text) for text in typed if text]
    constraints: dict[str, tuple[str, str]] = {}
    for name, part, text in found:
        try:
            constraints.setdefault(_checked(text, schema), (name, part))
        except InputError as error:
            problems.append((text if part == "typed" else spoken(name), str(error)))
    return LimitQuery(
        tuple(constraints),
        tuple(constraints.values()),
        costs,
        _target(limits.get("target"), labels),
        tuple(problems),
    )


def _target(value: Any, labels: Sequence[Any]) -> Any:
    if isinstance(value, int) and 0 <= value < len(labels):
        return labels[value]
    return None if len(labels) == 2 else ANY_OTHER


def _checked(text: str, schema: Schema) -> str:
    """A constraint in its one spelling; an `InputError` says what is wrong with it."""
    if len(text) > MOST_LENGTH:
        raise InputError(f"This is longer than {MOST_LENGTH:,} characters.")
    constraint = parse(text)
    System.of([constraint], schema)
    return str(constraint)


def _texts(feature: Feature, said: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The constraints of one column's limits, by part."""
    column, mode, found = column_text(feature.name), said.get("mode"), []
    if mode in MODES and (mode == "keep" or feature.numeric):
        found.append(("mode", f"{MODES[mode]} {column}"))
    if mode == "keep":
        return found
    if feature.kind == "continuous":
        for part, relation in (("low", ">="), ("high", "<=")):
            if said.get(part) not in (None, ""):
                bound = _bound(feature, _cell(feature, said[part]))
                found.append((part, f"{column} {relation} {bound}"))
    elif isinstance(said.get("levels"), list):
        chosen = [k for k in said["levels"] if k in range(len(feature.categories))]
        if len(chosen) < len(feature.categories):
            values = tuple(_category(feature.categories[k]) for k in sorted(set(chosen)))
            found.append(("levels", str(Membership(feature.name, values, original=True))))
    return found


def _bound(feature: Feature, cell: float) -> str:
    if feature.is_date:
        return f'"{feature.text(cell)}"'
    return repr(float(cell)).removesuffix(".0")


def _category(level: Any) -> str | float:
    return (
        level if isinstance(level, str) else str(level) if isinstance(level, bool) else float(level)
    )


# ------------------------------------------------------------------------------------------------
# Where nothing fits


def steps_to_loosen(why: WhyNot, query: LimitQuery, schema: Schema) -> list[Step]:
    """What would have to give way, in words a visitor knows."""
    return [_step(move, query, schema) for move in _needed(why)]


def _needed(why: WhyNot) -> list[Move]:
    """The moves without those that leave their constraint as it is."""
    return [move for move in why.moves if move.relaxed != move.constraint]


def _step(move: Move, query: LimitQuery, schema: Schema) -> Step:
    source = dict(zip(query.constraints, query.sources, strict=True)).get(move.constraint)
    if source is None:
        return Step(move.text, False, move.constraint)
    name, part = source
    label = spoken(name) if name else ""
    bound = _relaxed_bound(move, schema[name]) if part in ("low", "high") else None
    now = {
        "mode": f"{label}: your limit on which way it may go",
        "low": f"{label}: your least value",
        "high": f"{label}: your greatest value",
        "levels": f"{label}: your choice of what is possible",
        "most": "How many things may change",
    }.get(part, move.constraint)
    if bound is not None:
        text = f"{label}: {'from' if part == 'low' else 'up to'} {schema[name].text(bound)}"
    elif part == "typed":
        text = (
            f"“{move.constraint}” becomes “{move.relaxed}”"
            if move.relaxed
            else f"without “{move.constraint}”"
        )
    elif part == "most":
        count = _most(move)
        text = f"allow {count} changes" if count else "allow any number of changes"
    else:
        text = f"{label}: may change freely" if part == "mode" else f"{label}: anything is possible"
    return Step(text, True, now)


def loosened(limits: Mapping[str, Any], why: WhyNot, query: LimitQuery, schema: Schema) -> Json:
    """The limits with what `why` names loosened as far as it says; rules stay.

    Args:
        limits: As the page sent them.
        why: Why nothing was found.
        query: What was made of the limits.
        schema: The columns.
    """
    after: Json = deepcopy(dict(limits))
    sources = dict(zip(query.constraints, query.sources, strict=True))
    # Of constraints that contradict each other one has to give way, of others all.
    mine = [move for move in _needed(why) if move.constraint in sources]
    for move in mine[:1] if why.clash else mine:
        name, part = sources[move.constraint]
        if part == "typed":
            lines = [_loosened_line(line, move) for line in after.get("typed") or ()]
            after["typed"] = [line for line in lines if line]
        elif part == "most":
            after["most"] = _most(move)
        else:
            said = after["features"][name]
            bound = _relaxed_bound(move, schema[name]) if part in ("low", "high") else None
            said[part] = "free" if part == "mode" else bound and form_value(schema[name], bound)
    return after


def _loosened_line(line: str, move: Move) -> str | None:
    try:
        same = str(parse(line)) == move.constraint
    except InputError:
        return line
    return move.relaxed if same else line


def _relaxed_bound(move: Move, feature: Feature) -> float | None:
    """The number of a relaxed `x <= number`; None where it is none, or beyond the column's."""
    text = (move.relaxed or "").rpartition("= ")[2].strip('"')
    number = feature.number(text) if text else None
    return None if number is None or np.isnan(number) else float(number)


def _most(move: Move) -> int | None:
    count = (move.relaxed or "").rpartition("= ")[2]
    return int(count) if count.isdecimal() else None
