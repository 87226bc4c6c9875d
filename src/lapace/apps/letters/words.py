"""Words of letters: for labels, columns and the sender; changes between two rows."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from lapace.arrays import Floats
from lapace.documents import restore
from lapace.errors import InputError, did_you_mean
from lapace.schema import Feature, Schema

__all__ = ["Change", "Words", "changes", "file_name", "value_text"]


@dataclass(frozen=True)
class Words:
    """Words for someone who does not know the table.

    Attributes:
        predicted: What is predicted: `Readmitted within 30 days`.
        labels: What each label is called, by its text: `{"1": "readmitted"}`.
        columns: What columns are called: `{"hba1c": "long-term blood sugar"}`.
        sender: Who sends the letter, in one line or several.
        greeting: How the letter begins.
        contact: Whom to ask, and where.
        next_steps: What happens next, where the letter shows a way.

    Examples:
        >>> words = Words("A loan", labels={"1": "granted"}, columns={"hba1c": "blood sugar"})
        >>> words.label(1), words.column("hba1c"), words.title("loanAmount")
        ('granted', 'blood sugar', 'Loan amount')
    """

    predicted: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    sender: str = ""
    greeting: str = "Dear Sir or Madam,"
    contact: str = ""
    next_steps: str = ""

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
        names = tuple(part.name for part in fields(cls))
        for key in data:
            if key not in names:
                raise InputError(f"{where} have no '{key}'.{did_you_mean(key, names)}")
        return restore(cls, data, f"the file of words '{words}'")

    def checked(self, labels: Sequence[Any], columns: Sequence[str]) -> Words:
        """Returns these words; refuses words for a label or a column that does not exist."""
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
        enough: Its value where the answer just turns; empty where that is `after`.
    """

    name: str
    before: str
    after: str
    direction: str
    description: str
    column: int
    enough: str = ""


def changes(
    schema: Schema, before: Floats, after: Floats, words: Words, enough: Floats | None = None
) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """Returns what differs between two rows, and which columns follow from that.

    Both begin with the largest change. A column that is computed from others follows from them.
    With `enough`, the other end of a way, they say which values are just enough.

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
            just = texts[1] if enough is None else value_text(feature, enough[i])
            just = "" if just == texts[1] else just
            change = Change(name, *texts, direction, feature.description, i, just)
            (own if feature.derived is None else derived).append(change)
    return tuple(own), tuple(derived)


def value_text(feature: Feature, cell: float) -> str:
    """Returns a cell as a letter writes it."""
    return "not known" if np.isnan(cell) else feature.text(cell)


def file_name(text: str) -> str:
    """Returns a text without what a file's name should not hold; perhaps nothing is left."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:80]
