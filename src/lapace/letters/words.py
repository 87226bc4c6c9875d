"""What labels and columns are called in letters, and what is predicted."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lapace.errors import InputError, did_you_mean

__all__ = ["Words"]

NO, YES = ("0", "0.0", "False", "false"), ("1", "1.0", "True", "true")


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
        >>> words.label(1), words.column("hba1c"), words.column("credit_score")
        ('yes', 'blood sugar', 'credit score')
    """

    predicted: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)

    def label(self, value: Any) -> str:
        """A label in words."""
        text = str(value)
        if text in self.labels:
            return self.labels[text]
        return text

    def column(self, name: str) -> str:
        """A column's name in words: `credit_score` as credit score."""
        if name in self.columns:
            return self.columns[name]
        spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.replace("_", " "))
        return spaced.strip() or name

    @classmethod
    def of(cls, words: Words | str | Path | None) -> Words:
        """The words themselves, or those of a TOML file."""
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

    def checked(self, labels: tuple[Any, ...], columns: tuple[str, ...]) -> Words:
        """Itself, if all that it names exists; 0 and 1 alone answer what is predicted."""
        for said, known, kind in (
            (self.labels, tuple(map(str, labels)), "label"),
            (self.columns, columns, "column"),
        ):
            for name in said:
                if name not in known:
                    raise InputError(
                        f"The words of the letters name the {kind} '{name}', which there is not."
                        f"{did_you_mean(name, known)}"
                    )
        texts = tuple(map(str, labels))
        if self.predicted and not self.labels and set(texts) <= {*NO, *YES}:
            return replace(self, labels={t: "yes" if t in YES else "no" for t in texts})
        return self
