"""The words of letters and of the page, for someone who knows nothing of models or of lapace.

`Words` are what labels and columns are called, `changes` what differs between two rows, and the
functions below them say how sure and how usual a way is, or why there is none. `rules` says what
was kept to.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lapace.apps.letters.rules import in_words
from lapace.arrays import Floats
from lapace.constraints import Constraint, parse
from lapace.errors import InputError, did_you_mean
from lapace.result import Counterfactuals, Explanation, InstanceExplanation, Move, WhyNot
from lapace.schema import Feature, Schema

__all__ = [
    "FIGURES", "Change", "Words", "changes", "file_name", "move_words", "needed_moves", "next_step",
    "reason", "rules_of", "sure", "usual", "value_text",
]  # fmt: skip

NO, YES = ("0", "0.0", "False", "false"), ("1", "1.0", "True", "true")
RARE, COMMON = 5.0, 25.0  # density percentiles that are called unusual, and less usual than most
WIDE = 30  # of 100 renewals: an interval that says little
FIGURES = (
    "How sure the system is, and how often its answer would stand after a renewal, are about the "
    "system's own answer. Neither says how likely it is that things really turn out so."
)


@dataclass(frozen=True)
class Words:
    """Words for someone who does not know the table.

    Attributes:
        predicted: What is predicted: `Readmitted within 30 days`.
        labels: What each label is called, by its text: `{"1": "readmitted"}`.
        columns: What columns are called: `{"hba1c": "long-term blood sugar"}`.

    Examples:
        >>> words = Words("Readmitted within 30 days", columns={"hba1c": "blood sugar"})
        >>> words = words.checked((0, 1), ("hba1c", "credit_score"))
        >>> words.label(1), words.column("hba1c"), words.title("loanAmount")
        ('yes', 'blood sugar', 'Loan amount')
    """

    predicted: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)

    def label(self, value: Any) -> str:
        """Returns a label in words."""
        return self.labels.get(str(value), str(value))

    def column(self, name: str) -> str:
        """Returns a column's name in words: `credit_score` as credit score."""
        spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.replace("_", " ")).strip()
        words = re.sub(r"(?<=[a-z] )[A-Z](?=[a-z])", lambda capital: capital[0].lower(), spaced)
        return self.columns.get(name) or words or name

    def title(self, name: str) -> str:
        """Returns a column's name in words, beginning with a capital."""
        text = self.column(name)
        return text[0].upper() + text[1:]

    @classmethod
    def of(cls, words: Words | str | Path | None) -> Words:
        """Returns the words themselves, or those of a TOML file."""
        if words is None or isinstance(words, Words):
            return words or cls()
        where = f"The words of the letters, '{words}',"
        try:
            data = tomllib.loads(Path(words).read_text(encoding="utf-8"))
        except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
            raise InputError(f"{where} could not be read: {error}") from None
        kinds = {"predicted": str, "labels": dict, "columns": dict}
        for key, value in data.items():
            if key not in kinds:
                raise InputError(f"{where} have no '{key}'.{did_you_mean(key, tuple(kinds))}")
            texts = value.values() if isinstance(value, dict) else (value,)
            if not isinstance(value, kinds[key]) or not all(isinstance(t, str) for t in texts):
                raise InputError(f"{where} must have text in '{key}': {key} is {value!r}.")
        return cls(**data)

    def checked(self, labels: Sequence[Any], columns: Sequence[str]) -> Words:
        """Returns these words, with yes and no for labels 0 and 1 that have none of their own.

        Words for a label or a column that does not exist are refused.
        """
        texts = tuple(map(str, labels))
        for kind, named, existing in (
            ("label", self.labels, texts),
            ("column", self.columns, tuple(columns)),
        ):
            for name in named:
                if name not in existing:
                    raise InputError(
                        f"The words of the letters name the {kind} '{name}', which does not exist."
                        f"{did_you_mean(name, existing)}"
                    )
        if self.predicted and not self.labels and set(texts) <= {*NO, *YES}:
            return replace(self, labels={t: "yes" if t in YES else "no" for t in texts})
        return self


# ------------------------------------------------------------------------------------------------
# Changes


@dataclass(frozen=True)
class Change:
    """One feature that differs between two rows.

    Attributes:
        name: The column's name in words.
        before: Its value now.
        after: Its value then.
        direction: `up`, `down`, or empty for a category.
        description: What the schema says of the column.
        column: The column's position in the schema.
    """

    name: str
    before: str
    after: str
    direction: str
    description: str
    column: int


def changes(
    schema: Schema, before: Floats, after: Floats, words: Words
) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """Returns what differs between two rows, and which columns follow from that.

    Both begin with the largest change. A column that is computed from others follows from them.

    Examples:
        >>> schema = Schema.infer([{"income": 10 * i, "home": "ab"[i % 2]} for i in range(99)])
        >>> some, _ = changes(schema, np.array([100.0, 0.0]), np.array([300.0, 1.0]), Words())
        >>> [(change.name, change.before, change.after) for change in some]
        [('home', 'a', 'b'), ('income', '100', '300')]
    """
    gaps, changed = schema.gaps(before, after), schema.changed(before, after)
    own: list[Change] = []
    derived: list[Change] = []
    for i in np.argsort(-gaps, kind="stable").tolist():
        feature = schema.features[i]
        texts = value_text(feature, before[i]), value_text(feature, after[i])
        if changed[i] or (feature.derived is not None and texts[0] != texts[1]):
            comparable = feature.numeric and not np.isnan(before[i] + after[i])
            direction = ("up" if after[i] > before[i] else "down") if comparable else ""
            name = words.column(feature.name)
            change = Change(name, *texts, direction, feature.description, i)
            (own if feature.derived is None else derived).append(change)
    return tuple(own), tuple(derived)


def value_text(feature: Feature, cell: float) -> str:
    """Returns a cell as a letter writes it."""
    return "not known" if np.isnan(cell) else feature.text(cell)


def file_name(text: str) -> str:
    """Returns a text without what a file's name should not hold; perhaps nothing is left."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:80]


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
        often += ", which is not known well" if high - low > WIDE else ""
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


def usual(rows: Counterfactuals, row: int) -> str:
    """Says how usual a case such as that is; empty where it is not known."""
    density = rows.density[row]
    if np.isnan(density):
        return ""
    if "unusual" in str(rows.mark[row]) or density < RARE:
        return "Hardly any case with this answer looks like that: treat this way with caution."
    if density < COMMON:
        return f"Such a case is rather unusual: {100 - density:.0f} of 100 are more usual."
    return f"Such a case is nothing unusual: it is more usual than {density:.0f} of 100."


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
    if why is None or not needed_moves(why):
        return sentence
    steps = []
    for move in needed_moves(why):
        now, relaxed = move_words(move, instance.explanation.schema, words)
        steps.append(f"“{now}” became “{relaxed}”" if relaxed else f"“{now}” were left out")
    # If constraints contradict each other one of them has to give way, otherwise all of these.
    return f"{sentence} It would be otherwise if {(' or ' if why.clash else ' and ').join(steps)}."


def needed_moves(why: WhyNot) -> list[Move]:
    """Returns the moves that change their constraint."""
    return [move for move in why.moves if move.relaxed != move.constraint]


def move_words(move: Move, schema: Schema, words: Words) -> tuple[str, str]:
    """Returns a constraint in words, and relaxed; empty where it has to be left out."""
    now, relaxed = (
        text if text.startswith("custom:") or not text else in_words(parse(text), schema, words)
        for text in (move.constraint, move.relaxed or "")
    )
    return now, relaxed


def next_step(instance: InstanceExplanation) -> str:
    """Says what to do where there is no way; else empty."""
    if instance.status not in ("none_found", "infeasible"):
        return ""
    named = instance.why_not is not None and instance.why_not.moves
    which = "the limit named above" if named else "one of the limits below"
    return (
        f"What you can do: ask the sender of this letter whether {which} can be loosened in your "
        "case, and which would help; then this can be worked out again."
    )


def rules_of(explanation: Explanation) -> Sequence[Constraint]:
    """Returns the constraints as objects with their notes; read from their texts without them."""
    if explanation.request is not None:
        return tuple(explanation.request)
    return [parse(text) for text in explanation.constraints if not text.startswith("custom:")]
