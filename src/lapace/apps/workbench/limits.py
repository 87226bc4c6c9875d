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

from lapace.apps.letters.wording import move_words, needed_moves
from lapace.apps.workbench.columns import PLAIN, Json, form_value, read_value
from lapace.constraints import Membership, System, parse
from lapace.errors import InputError
from lapace.result import ANY_OTHER, Move, WhyNot
from lapace.schema import Feature, Schema

__all__ = ["EFFORTS", "LimitQuery", "Step", "loosened", "make_query", "steps_to_loosen"]

EFFORTS = (0.25, 0.5, 1.0, 2.0, 4.0)  # very easy, easy, as usual, hard, very hard
USUAL = 2  # the position of 1.0
MODES = {"keep": "fixed", "up": "increasing", "down": "decreasing"}
MOST_TYPED = 50
MOST_LENGTH = 1_000


@dataclass(frozen=True)
class LimitQuery:
    """A visitor's limits as arguments of `Explainer.explain`.

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
    texts: list[tuple[str, str, str]] = []  # column, part, text
    problems: list[tuple[str, str]] = []
    costs: dict[str, float] = {}
    features = limits.get("features") or {}
    for feature in schema.features:
        said = features.get(feature.name)
        if not isinstance(said, Mapping) or feature.derived is not None:
            continue
        try:
            texts += [(feature.name, part, text) for part, text in _texts(feature, said)]
        except ValueError as error:
            problems.append((PLAIN.title(feature.name), str(error)))
        effort = said.get("effort", USUAL)
        if effort in range(len(EFFORTS)) and effort != USUAL:
            costs[feature.name] = EFFORTS[effort]
    most = limits.get("most")
    if isinstance(most, int) and 1 <= most <= len(schema.features):
        texts.append(("", "most", f"changes <= {most}"))
    typed = [str(text).strip() for text in limits.get("typed") or ()][:MOST_TYPED]
    texts += [("", "typed", text) for text in typed if text]
    constraints: dict[str, tuple[str, str]] = {}
    for name, part, text in texts:
        try:
            constraints.setdefault(_checked(text, schema), (name, part))
        except InputError as error:
            problems.append((text if part == "typed" else PLAIN.title(name), str(error)))
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
    column = "`" + feature.name.replace("`", "``") + "`"
    mode, texts = said.get("mode"), []
    if mode in MODES and (mode == "keep" or feature.numeric):
        texts.append(("mode", f"{MODES[mode]} {column}"))
    if mode == "keep":
        return texts
    if feature.kind == "continuous":
        for part, relation in (("low", ">="), ("high", "<=")):
            if said.get(part) not in (None, ""):
                bound = _bound(feature, read_value(feature, said[part]))
                texts.append((part, f"{column} {relation} {bound}"))
    elif isinstance(said.get("levels"), list):
        chosen = [k for k in said["levels"] if k in range(len(feature.categories))]
        if len(chosen) < len(feature.categories):
            values = tuple(_category(feature.categories[k]) for k in sorted(set(chosen)))
            texts.append(("levels", str(Membership(feature.name, values, original=True))))
    return texts


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
    """Returns what would have to give way, in words a visitor knows."""
    steps = []
    for move in needed_moves(why):
        now, relaxed = move_words(move, schema, PLAIN)
        text = f"“{relaxed}” instead of “{now}”" if relaxed else f"without “{now}”"
        steps.append(Step(text, move.constraint in query.constraints, now))
    return steps


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
    mine = [move for move in needed_moves(why) if move.constraint in sources]
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
