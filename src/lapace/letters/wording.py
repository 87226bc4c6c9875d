"""The sentences of a letter, for someone who knows nothing of models or of lapace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from lapace.constraints import (
    ChangeLimit,
    Comparison,
    Constraint,
    Linear,
    Membership,
    Shorthand,
    Term,
    parse,
)
from lapace.constraints.language import Relation
from lapace.result import Counterfactuals, InstanceExplanation

__all__ = ["fixed", "in_words", "limits", "reason", "sure", "usual"]

ONLY = {">=": "may only go up", "<=": "may only go down", "==": "stays as it is"}
BOUNDS = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than", "==": "exactly"}
MIRRORED: dict[str, Relation] = {">=": "<=", ">": "<", "<=": ">=", "<": ">", "==": "==", "!=": "!="}


def in_words(name: str) -> str:
    """A column's name in words: `credit_score` as credit score."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.replace("_", " "))
    return spaced.strip() or name


# ------------------------------------------------------------------------------------------------
# One way


def sure(rows: Counterfactuals, row: int) -> tuple[str, ...]:
    """How sure a way is: of itself, after a renewal of what decides, and what it lacks."""
    found, label = [], rows.label[row]
    if not np.isnan(rows.probability[row]):
        share = _percent(rows.probability[row])
        found.append(f"The system that decides would then be {share} sure of “{label}”.")
    if not np.isnan(rows.survival[row]):
        low, high = 100 * rows.survival_low[row], 100 * rows.survival_high[row]
        often = f"about {100 * rows.survival[row]:.0f} of 100 renewals"
        often = (
            f"{often} (between {low:.0f} and {high:.0f})" if low < 99.5 else "nearly all renewals"
        )
        found.append(
            f"If that system is renewed with newer cases, “{label}” is expected to stand in "
            f"{often}."
        )
    if "edge" in str(rows.mark[row]):
        found.append(
            "This is close to the line between the two decisions: a small difference could turn it."
        )
    return tuple(found)


def _percent(share: float) -> str:
    """A share that is neither called certain nor impossible where it is not."""
    if 0.995 <= share < 1:
        return "more than 99 %"
    return f"{100 * share:.0f} %"


def usual(rows: Counterfactuals, row: int) -> str:
    """How usual a case such as that is; empty where it is not known."""
    density = rows.density[row]
    if np.isnan(density):
        return ""
    if "unusual" in str(rows.mark[row]) or density < 5:
        return "Hardly any case with this decision looks like that: treat this way with caution."
    if density < 25:
        return f"Such a case is less usual than most: {100 - density:.0f} of 100 are more so."
    return f"Such a case is nothing unusual: it is more usual than {density:.0f} of 100."


# ------------------------------------------------------------------------------------------------
# No way


def reason(instance: InstanceExplanation) -> str:
    """Why there is no way, and which of the limits asked for would have to give; else empty."""
    why = instance.why_not
    if instance.status == "infeasible":
        found = "The rules below cannot all be kept in this case, whatever the decision."
    elif instance.status == "none_found":
        found = (
            "None of the many changes that were tried leads there while the rules below are kept. "
            "That is no proof that there is no way."
        )
    else:
        return ""
    steps = [] if why is None else [m for m in why.moves if m.relaxed != m.constraint]
    if why is None or not steps:
        return found
    said = [
        f"“{m.constraint}” were left out"
        if m.relaxed is None
        else f"“{m.constraint}” became “{m.relaxed}”"
        for m in steps
    ]
    # Of rules that contradict each other one has to give way, of others all of those named.
    return f"{found} It would be otherwise if {(' or ' if why.clash else ' and ').join(said)}."


# ------------------------------------------------------------------------------------------------
# What was kept


def fixed(constraints: Sequence[str]) -> tuple[str, ...]:
    """Columns that a constraint keeps as they are, in words."""
    names: dict[str, None] = {}
    for found in _parsed(constraints):
        if isinstance(found, Shorthand) and found.word == "fixed":
            names.update(dict.fromkeys(found.features))
        elif (known := _versus_original(found)) is not None and known[1] == "==":
            names[known[0]] = None
    return tuple(map(in_words, names))


def limits(constraints: Sequence[str]) -> tuple[str, ...]:
    """Other simple constraints as sentences; those that take a formula are left to the rules.

    Examples:
        >>> limits(["income >= original", "fixed age", "changes <= 3", "2*a + b <= c"])
        ('income may only go up', 'at most 3 things change')
    """
    return tuple(dict.fromkeys(text for found in _parsed(constraints) for text in _limit(found)))


def _limit(found: Constraint) -> list[str]:
    if isinstance(found, Shorthand) and found.word != "fixed":
        word = ONLY[">=" if found.word == "increasing" else "<="]
        return [f"{in_words(name)} {word}" for name in found.features]
    if isinstance(found, ChangeLimit) and found.relation in ("<=", "<"):
        most = found.count - (found.relation == "<")
        return [f"at most {most} {'thing changes' if most == 1 else 'things change'}"]
    if isinstance(found, Membership) and not found.original:
        values = ", ".join(map(str, found.values))
        return [f"{in_words(found.feature)} is {'none' if found.negated else 'one'} of {values}"]
    if (known := _versus_original(found)) is not None:
        name, relation = known
        return [f"{in_words(name)} {ONLY[relation]}"] if relation in (">=", "<=") else []
    return _bounds(found)


def _bounds(found: Constraint) -> list[str]:
    """A column compared with numbers: `20 <= hours < 60`."""
    texts = []
    for left, relation, right in found.pairs if isinstance(found, Comparison) else ():
        if not (isinstance(left, Linear) and isinstance(right, Linear)):
            return []
        if not left.terms:
            left, relation, right = right, MIRRORED[relation], left  # noqa: PLW2901
        if left.word is None or right.terms or relation not in BOUNDS:
            return []
        texts.append(f"{in_words(left.word)} is {BOUNDS[relation]} {right.constant:.12g}")
    return texts


def _versus_original(found: Constraint) -> tuple[str, str] | None:
    """The column and the relation of `x >= original`."""
    if not isinstance(found, Comparison) or len(found.sides) != 2:
        return None
    (left, right), relation = found.sides, found.relations[0]
    if isinstance(left, Linear) and isinstance(right, Linear) and right.word:
        left, right, relation = right, left, MIRRORED[relation]
    if not (isinstance(left, Linear) and left.word):
        return None
    same = Linear((Term(1.0, left.word, original=True),))
    return (left.word, relation) if right == same else None


def _parsed(constraints: Iterable[str]) -> list[Constraint]:
    """Constraints read back from their texts; a Python function has none."""
    return [parse(text) for text in constraints if not text.startswith("custom:")]
