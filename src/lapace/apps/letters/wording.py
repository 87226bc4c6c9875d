"""Sentences of letters: how sure and how usual a way is, and why there is none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lapace.apps.letters.clauses import in_words
from lapace.apps.letters.words import Words
from lapace.constraints import Constraint, parse
from lapace.result import Counterfactuals, Explanation, InstanceExplanation, Move, WhyNot
from lapace.schema import Schema

__all__ = [
    "constraints_of", "move_words", "needed_moves", "reason", "sure", "usual",
]  # fmt: skip

RARE, COMMON = 0.05, 0.25  # densities below which a row is called unusual, less usual


# ------------------------------------------------------------------------------------------------
# One way


def sure(rows: Counterfactuals, row: int, words: Words) -> tuple[str, ...]:
    """Says how sure a way is: of itself, and after a renewal; at the edge only that it is there."""
    label, probability = words.label(rows.label[row]), rows.probability[row]
    has_probability = not np.isnan(probability)
    if "edge" in str(rows.mark[row]):
        share = f" ({_percent(probability)} sure of “{label}”)" if has_probability else ""
        text = f"This is close to the line between two answers{share}: a small difference could"
        return (f"{text} turn it, so do not rely on it.",)
    sentences = []
    if has_probability:
        sentences.append(f"The system would then be {_percent(probability)} sure of “{label}”.")
    if not np.isnan(rows.survival[row]):
        low, high = 100 * rows.survival_low[row], 100 * rows.survival_high[row]
        often = f"about {100 * rows.survival[row]:.0f} of 100 renewals"
        often = (
            f"{often} (between {low:.0f} and {high:.0f})" if low < 99.5 else "nearly all renewals"
        )
        sentences.append(
            f"If the system is renewed with newer cases, it is expected to keep to “{label}” in "
            f"{often}."
        )
    return tuple(sentences)


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
    """Says why there is no way, and which limit would have to give way; else empty."""
    why = instance.why_not
    if instance.status == "infeasible":
        sentence = "The limits below cannot all be kept in this case, whatever the answer."
    elif instance.status == "none_found":
        sentence = (
            "None of the many changes that were tried leads there while the limits below are kept. "
            "That is no proof that there is no way."
        )
    else:
        return ""
    moves = needed_moves(why) if why is not None else []
    steps = []
    for move in moves:
        now, relaxed = move_words(move, instance.explanation.schema, words)
        steps.append(f"“{now}” became “{relaxed}”" if relaxed else f"“{now}” were left out")
    if why is not None and steps:
        # If constraints contradict each other one of them has to give way, otherwise all of these.
        how = (" or " if why.clash else " and ").join(steps)
        sentence += f" It would be otherwise if {how}."
    return (
        f"{sentence} What you can do: ask the sender of this letter whether one of the limits can "
        "be loosened in your case; then this can be worked out again."
    )


def needed_moves(why: WhyNot) -> list[Move]:
    """Returns the moves that change their constraint."""
    return [move for move in why.moves if move.relaxed != move.constraint]


def move_words(move: Move, schema: Schema, words: Words) -> tuple[str, str]:
    """Returns a constraint in words, and relaxed; empty where it has to be left out."""
    now, relaxed = (
        in_words(parse(text), schema, words) if text else ""
        for text in (move.constraint, move.relaxed or "")
    )
    return now, relaxed


def constraints_of(explanation: Explanation) -> Sequence[Constraint]:
    """Returns the constraints as objects with their notes; read from their texts without them."""
    if explanation.request is not None:
        return tuple(explanation.request)
    return [parse(text) for text in explanation.constraints]
