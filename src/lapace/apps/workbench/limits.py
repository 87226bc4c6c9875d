"""A visitor's limits as constraints and costs, and what to loosen where nothing fits.

The page sends limits as JSON: for each column that has any, `mode` (`free`, `keep`, `up`, `down`),
`low` and `high` (numbers or dates of the form), `levels` (the categories allowed beside today's, by
position; with `must`, without today's) and `effort` (0 very easy to 4 very hard); beside them
`most`, how many things may change, `typed`, constraints in the language, and `target`, the position
of the label wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lapace.apps.letters.clauses import by_subject, clauses
from lapace.apps.letters.wording import needed_moves
from lapace.apps.workbench.columns import PLAIN, Json, form_value, read_value
from lapace.arrays import Floats
from lapace.constraints import ChangeLimit, Membership, System, parse
from lapace.errors import InputError
from lapace.result import ANY_OTHER, Move, WhyNot
from lapace.schema import Feature, Schema

__all__ = ["EFFORTS", "LimitQuery", "differences", "loosened", "loosening", "make_query"]

EFFORTS = (0.25, 0.5, 1.0, 2.0, 4.0)  # very easy, easy, as usual, hard, very hard
USUAL = 2  # the position of 1.0
MODES = {"keep": "fixed", "up": "increasing", "down": "decreasing"}
MOST_TYPED = 50
MOST_LENGTH = 1_000


@dataclass(frozen=True)
class LimitQuery:
    """A visitor's limits as arguments of `Explainer.explain`.

    Attributes:
        sources: For each constraint, as the constraint language prints it, the column and part of
            the limits it comes from: `("income", "high")`, `("", "most")`, `("", "typed")`.
        costs: The weight of each column that has one.
        target: The label wanted; None to leave it to the library.
        problems: What cannot be used, and a sentence: `limit:income` for a column's limits,
            `typed:…` for a typed line.
    """

    sources: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    target: Any = None
    problems: tuple[tuple[str, str], ...] = ()

    @property
    def constraints(self) -> tuple[str, ...]:
        """The constraints alone."""
        return tuple(self.sources)


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
            problems.append((f"limit:{feature.name}", str(error)))
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
            if part == "typed":
                problems.append((f"typed:{text}", str(error)))
            else:
                problems.append((f"limit:{name}", _out_of_range(schema[name])))
    target = _target(limits.get("target"), labels)
    return LimitQuery(constraints, costs, target, tuple(problems))


def _out_of_range(feature: Feature) -> str:
    texts = feature.text(feature.lower), feature.text(feature.upper)
    return "No known value is within this limit. Known values go from {} to {}.".format(*texts)


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
            others = Membership(feature.name, values, original=not said.get("must"))
            texts.append(("levels", str(others)))
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


def differences(before: LimitQuery, after: LimitQuery, schema: Schema) -> list[Json]:
    """Returns what two sets of limits say differently, column by column, in words.

    `now` is what the first says, `then` what the second says instead; one of them may be empty.
    """
    old, new = before.sources, after.sources
    found = []
    for place in dict.fromkeys(name for name, _ in (*old.values(), *new.values())):
        mine, other = (
            [
                clause
                for text, (name, _) in sources.items()
                if name == place
                for clause in clauses(parse(text), schema, PLAIN)
            ]
            for sources in (old, new)
        )
        now = ", ".join(by_subject(c for c in mine if c not in other).values())
        then = ", ".join(by_subject(c for c in other if c not in mine).values())
        if now or then:
            found.append({"now": now, "then": then})
    return found


def loosening(why: WhyNot, query: LimitQuery) -> list[Move]:
    """Returns the moves of the visitor's own limits that are enough.

    Of limits that contradict each other the first alone is, left out where no move of it is known.
    """
    moves = [move for move in needed_moves(why) if move.constraint in query.constraints]
    left_out = [Move(text, None, "") for text in why.clash if text in query.constraints]
    return (moves or left_out)[:1] if why.clash else moves


def loosened(
    limits: Mapping[str, Any],
    moves: Iterable[Move],
    query: LimitQuery,
    schema: Schema,
    start: Floats,
) -> Json:
    """The limits loosened as far as some moves say.

    Args:
        limits: As the page sent them.
        moves: Of some of these limits.
        query: What was made of the limits.
        schema: The columns.
        start: The visitor's row.
    """
    after: Json = deepcopy(dict(limits))
    for move in moves:
        name, part = query.sources[move.constraint]
        relaxed = parse(move.relaxed) if move.relaxed else None
        if part == "typed":
            kept = [line for line in after["typed"] if str(parse(line)) != move.constraint]
            after["typed"] = [*kept, move.relaxed] if move.relaxed else kept
        elif part == "most":
            after["most"] = relaxed.most if isinstance(relaxed, ChangeLimit) else None
        else:
            said, feature = after["features"][name], schema[name]
            if part == "mode":
                said |= _relaxed_mode(said, move, feature, start[schema.index(name)])
            elif part == "levels":
                said["levels"] = None
                if isinstance(relaxed, Membership):
                    every = [_category(level) for level in feature.categories]
                    texts = set(map(str, relaxed.values))
                    said["levels"] = [k for k, level in enumerate(every) if str(level) in texts]
            else:
                said[part] = _relaxed_bound(move, feature)
    return after


def _relaxed_mode(said: Mapping[str, Any], move: Move, feature: Feature, own: float) -> Json:
    """The limits in place of `keep`, `up` or `down`: how far the value may go from today's."""
    free = {"mode": "free"} | ({"low": None, "high": None} if said["mode"] == "keep" else {})
    if move.by is None or move.relaxed is None or feature.kind != "continuous" or np.isnan(own):
        return free
    bounds = {"low": own - move.by, "high": own + move.by}
    for part, other in (("low", "down"), ("high", "up")):
        if said["mode"] == other:
            del bounds[part]
        elif said["mode"] != "keep" and said.get(part) not in (None, ""):
            both = (bounds[part], read_value(feature, said[part]))
            bounds[part] = max(both) if part == "low" else min(both)
    return free | {part: form_value(feature, bound) for part, bound in bounds.items()}


def _relaxed_bound(move: Move, feature: Feature) -> str | int | None:
    """The number of a relaxed `x <= number`, as a value of the form; None where there is none."""
    number = feature.number((move.relaxed or "").rpartition("= ")[2].strip('"'))
    return None if number is None else form_value(feature, number)
