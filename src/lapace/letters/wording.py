"""The sentences of a letter, for someone who knows nothing of models or of lapace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lapace.constraints import Constraint, parse
from lapace.letters.rules import in_words
from lapace.letters.words import Words
from lapace.result import Counterfactuals, Explanation, InstanceExplanation

__all__ = ["FIGURES", "next_step", "reason", "rules_of", "sure", "usual"]

WIDE = 30  # of 100 renewals: an interval that says little
FIGURES = (
    "How sure the system is, and how often its answer would stand after a renewal, are about the "
    "system's own answer: neither is the chance that things really turn out so."
)


# ------------------------------------------------------------------------------------------------
# One way


def sure(rows: Counterfactuals, row: int, words: Words | None = None) -> tuple[str, ...]:
    """How sure a way is: of itself, and after a renewal; on the edge only that it is there."""
    label, probability = (words or Words()).label(rows.label[row]), rows.probability[row]
    known = not np.isnan(probability)
    if "edge" in str(rows.mark[row]):
        share = f" ({_percent(probability)} sure of “{label}”)" if known else ""
        text = f"This is close to the line between two answers{share}: a small difference could"
        return (f"{text} turn it, so do not rely on it.",)
    found = []
    if known:
        found.append(f"The system would then be {_percent(probability)} sure of “{label}”.")
    if not np.isnan(rows.survival[row]):
        low, high = 100 * rows.survival_low[row], 100 * rows.survival_high[row]
        often = f"about {100 * rows.survival[row]:.0f} of 100 renewals"
        often += ", which is not known well" if high - low > WIDE else ""
        often = (
            f"{often} (between {low:.0f} and {high:.0f})" if low < 99.5 else "nearly all renewals"
        )
        found.append(
            f"If the system is renewed with newer cases, it is expected to keep to “{label}” in "
            f"{often}."
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
        return "Hardly any case with this answer looks like that: treat this way with caution."
    if density < 25:
        return f"Such a case is less usual than most: {100 - density:.0f} of 100 are more so."
    return f"Such a case is nothing unusual: it is more usual than {density:.0f} of 100."


# ------------------------------------------------------------------------------------------------
# No way


def reason(instance: InstanceExplanation, words: Words | None = None) -> str:
    """Why there is no way, and which of the limits asked for would have to give; else empty."""
    words, why = words or Words(), instance.why_not
    if instance.status == "infeasible":
        found = "The limits below cannot all be kept in this case, whatever the answer."
    elif instance.status == "none_found":
        found = (
            "None of the many changes that were tried leads there while the limits below are kept. "
            "That is no proof that there is no way."
        )
    else:
        return ""
    steps = [] if why is None else [m for m in why.moves if m.relaxed != m.constraint]
    if why is None or not steps:
        return found

    def quoted(text: str) -> str:
        if text.startswith("custom:"):
            return f"“{text}”"
        return f"“{in_words(parse(text), instance.explanation.schema, words)}”"

    said = [
        f"{quoted(m.constraint)} were left out"
        if m.relaxed is None
        else f"{quoted(m.constraint)} became {quoted(m.relaxed)}"
        for m in steps
    ]
    # Of rules that contradict each other one has to give way, of others all of those named.
    return f"{found} It would be otherwise if {(' or ' if why.clash else ' and ').join(said)}."


def next_step(instance: InstanceExplanation) -> str:
    """What to do where there is no way; else empty."""
    if instance.status not in ("none_found", "infeasible"):
        return ""
    gives = instance.why_not is not None and instance.why_not.moves
    which = "the limit named above" if gives else "one of the limits below"
    return (
        f"What you can do: ask the sender of this letter whether {which} can be loosened in your "
        "case, and which would help; then this can be worked out again."
    )


# ------------------------------------------------------------------------------------------------
# What was kept


def rules_of(explanation: Explanation) -> Sequence[Constraint]:
    """The constraints as objects, with their notes; read back from their texts without them."""
    if explanation.request is not None:
        return tuple(explanation.request)
    return [parse(text) for text in explanation.constraints if not text.startswith("custom:")]
