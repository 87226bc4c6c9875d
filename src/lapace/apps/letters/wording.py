"""Sentences of letters: how sure a way is, why there is none, what happens next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lapace.apps.letters.clauses import in_words
from lapace.apps.letters.words import Words
from lapace.arrays import Bools
from lapace.constraints import Constraint, System, parse, parse_all
from lapace.result import Counterfactuals, Explanation, InstanceExplanation, Move, WhyNot
from lapace.schema import Feature
from lapace.why_not.relaxation import joined

__all__ = [
    "ENDS", "NOTICE", "at_edge", "constraints_of", "figures", "needed_moves", "next_steps", "notes",
    "reason", "usual",
]  # fmt: skip

FAR = 0.5  # share of all cases between two values of a number from which that is a long way
RARE, COMMON = 0.05, 0.25  # densities below which a row is called unusual, less usual
CAUTION = "Few cases with that answer look like this one, so be careful with this way."
FIGURES = (
    "The figures are about the system's answer: how sure it is of it, and how many later versions "
    "of the system, taught with newer cases, give the same one. They do not say how likely it is "
    "that you can make a change."
)
UNSURE = (
    "The system says which answer it gives, and not how sure it is of it. So it is not known how "
    "close to the line a way ends: a small difference could turn the answer back."
)
ENDS = (
    "With the values that are just enough the answer only just changes, and a small difference "
    "could turn it back. The safer values leave room for that."
)
NOTICE = (
    "This letter is advice on what could be changed. It is not the legal reason for any decision, "
    "and it does not promise a later one: the system and your circumstances may change. What goes "
    "together in past cases need not be a cause."
)


# ------------------------------------------------------------------------------------------------
# Ways


def at_edge(rows: Counterfactuals) -> Bools:
    """Tells which rows are too close to the line to rely on; none where that is not known."""
    edge = np.array(["edge" in str(mark) for mark in rows.mark], dtype=bool)
    return edge & ~np.isnan(rows.survival)


def notes(
    rows: Counterfactuals, row: int, words: Words, *, has_ends: bool = False
) -> tuple[str, ...]:
    """Says how sure a way is, now and in later versions; at the edge only that it is there.

    It also says where a way is unlike other cases, and where it is long.

    Args:
        rows: Ways, or the safe ends of ways.
        row: Which of them.
        words: What labels and columns are called.
        has_ends: Whether the way has another end, with values that are just enough.
    """
    mark, share, sentences = str(rows.mark[row]), rows.survival[row], []
    if at_edge(rows)[row]:
        sentences.append(
            "This way only just leads there. A small difference could turn the answer back, so do "
            "not rely on it."
        )
    else:
        then = "With the safer values the system is" if has_ends else "The system is then"
        sure = f"{then} {_percent(rows.probability[row])} sure of"
        often = f"About {100 * share:.0f} of 100" if share < 0.995 else "Nearly all"
        if not np.isnan(rows.probability[row]):
            sentences.append(f"{sure} “{words.label(rows.label[row])}”.")
        if not np.isnan(share):
            sentences.append(f"{often} later versions of the system give the same answer.")
    said = (" ".join(sentences),) if sentences else ()
    rare = usual(rows.density[row], mark) == "very unusual"
    cells = rows.instances[rows.instance[row]].tolist(), rows.cells[row].tolist()
    far = [
        words.column(feature.name)
        for feature, before, after in zip(rows.schema.features, *cells, strict=True)
        if _share_between(feature, before, after) > FAR
    ]
    values = "today's and the safer value" if has_ends else "the two values"
    long = f"This is a long way: more than half of all cases lie between {values} of {joined(far)}."
    return said + (CAUTION,) * rare + (long,) * bool(far)


def _share_between(feature: Feature, before: float, after: float) -> float:
    """Returns the share of all cases between two values of a number; 0 where that is not known."""
    values, percentiles = feature.ranks
    if feature.kind != "continuous" or feature.derived or not values or np.isnan(before + after):
        return 0.0
    return float(abs(np.diff(np.interp([before, after], values, percentiles))[0]))


def figures(rows: Counterfactuals) -> str:
    """Says what the figures of some ways mean, or that there are none; empty where none is said."""
    unknown = np.isnan(rows.probability) & np.isnan(rows.survival)
    if (at_edge(rows) | unknown).all():
        return UNSURE if unknown.any() else ""
    return FIGURES


def _percent(share: float) -> str:
    """Returns a share in percent; 99.9% does not become 100%."""
    return "more than 99%" if 0.995 <= share < 1 else f"{100 * share:.0f}%"


def usual(density: float, mark: str = "") -> str:
    """Says how usual a row is among those with its answer; empty where that is not known.

    Examples:
        >>> usual(0.02), usual(0.4), usual(float("nan"))
        ('very unusual', 'usual', '')
    """
    if np.isnan(density):
        return ""
    if "unusual" in mark or density < RARE:
        return "very unusual"
    return (
        "less usual than most" if density < COMMON else "usual" if density < 0.75 else "very usual"
    )


# ------------------------------------------------------------------------------------------------
# No way


def reason(instance: InstanceExplanation, words: Words) -> str:
    """Says why there is no way, and which limit would have to be relaxed; else empty."""
    why, schema = instance.why_not, instance.explanation.schema
    if instance.status == "infeasible":
        sentence = "The limits below cannot all be kept in this case, whatever the answer"
        clash = [f"“{in_words(constraint, schema, words)}”" for constraint in _clash(instance)]
        sentence += f": {joined(clash)} contradict each other." if len(clash) > 1 else "."
        sentence += f" {clash[0]} alone cannot be kept." if len(clash) == 1 else ""
    elif instance.status == "none_found":
        sentence = (
            "Many changes were tried within the limits below, and none of them leads there. That "
            "does not prove that there is no way."
        )
    else:
        return ""
    steps = []
    for move in needed_moves(why) if why is not None else ():
        now = in_words(parse(move.constraint), schema, words)
        relaxed = in_words(parse(move.relaxed), schema, words) if move.relaxed else ""
        steps.append(f"“{now}” became “{relaxed}”" if relaxed else f"“{now}” were left out")
    if why is not None and steps:
        # If constraints contradict each other one of them has to give way, otherwise all of these.
        how = (" or " if why.clash else " and ").join(steps)
        sentence += f" This would be different if {how}."
    return sentence


def _clash(instance: InstanceExplanation) -> Sequence[Constraint]:
    """Returns the constraints that contradict each other for an infeasible instance."""
    whole = instance.explanation
    if instance.why_not is not None:
        return parse_all(instance.why_not.clash)
    system = System.of(whole.request or whole.constraints, whole.schema, check=False)
    return system.contradiction(whole.instances[instance.position])


def next_steps(status: str, words: Words, *, reliable: bool) -> str:
    """Says what happens after the letter; the sender's words are for ways to rely on."""
    if status == "already_target":
        return ""
    if not reliable:
        first = "Ask before you change anything. " if status == "answered" else ""
        return (
            f"{first}You can ask whether one of the limits can be loosened in your case. Then the "
            "ways can be worked out again."
        )
    return words.next_steps or (
        "Nothing changes by itself. Once you have made the changes, ask for a new decision: your "
        "case is then looked at again, as it is on that day."
    )


def needed_moves(why: WhyNot) -> list[Move]:
    """Returns the moves that change their constraint."""
    return [move for move in why.moves if move.relaxed != move.constraint]


def constraints_of(explanation: Explanation) -> Sequence[Constraint]:
    """Returns the constraints as objects with their notes; read from their texts without them.

    Learned rules are left out: they are no limits that a letter has to name.
    """
    if explanation.request is not None:
        return tuple(c for c in explanation.request if not getattr(c, "learned", False))
    return [parse(text) for text in explanation.constraints]
