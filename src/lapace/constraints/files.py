"""Reads and writes constraints as TOML files.

A file has a version, and each constraint is a text or a text with a note. Notes survive reading and
writing; TOML comments in the file do not.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lapace.constraints.language import Constraint
from lapace.constraints.parser import parse, parse_all
from lapace.errors import InputError, did_you_mean

__all__ = ["from_toml", "read_file", "to_toml"]

VERSION = 2
HEADER = """\
# Constraints on counterfactuals, one in each line: a text, or a text with a note saying why.
# Columns with other characters than letters, digits and _ go in backticks: `capital-gain`.
"""


def to_toml(constraints: Iterable[Constraint | str]) -> str:
    """Writes constraints as the text of a constraint file; notes are kept.

    Examples:
        >>> print(to_toml(["fixed age", "hours <= 50  # by law"]).split("version")[1])
         = 2
        constraints = [
            "fixed age",
            { constraint = "hours <= 50", note = "by law" },
        ]
    """
    lines = []
    for constraint in parse_all(constraints):
        text = _toml(str(constraint))
        if constraint.note:
            text = f"{{ constraint = {text}, note = {_toml(constraint.note)} }}"
        lines.append(f"    {text},\n")
    return f"{HEADER}version = {VERSION}\nconstraints = [\n{''.join(lines)}]\n"


def _toml(text: str) -> str:
    """Writes a TOML basic string: a JSON string, except that TOML wants DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def from_toml(text: str, where: str = "The constraint file") -> tuple[Constraint, ...]:
    r"""Reads the constraints of such a text; `where` begins the error sentences.

    Examples:
        >>> [str(c) for c in from_toml('version = 2\nconstraints = ["fixed age"]')]
        ['fixed age']
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} is not TOML: {error}.") from None
    if content.get("version") != VERSION:
        raise InputError(f"{where} must begin with: version = {VERSION}")
    _refuse_unknown(content, ("version", "constraints"), where)
    entries = content.get("constraints", [])
    if not isinstance(entries, list):
        raise InputError(f'{where} must list its constraints: constraints = ["age == original"].')
    return tuple(_entry(entry, f"{where}, entry {i}") for i, entry in enumerate(entries, 1))


def _entry(entry: object, where: str) -> Constraint:
    text, note = entry, ""
    if isinstance(entry, dict):
        _refuse_unknown(entry, ("constraint", "note"), where)
        text, note = entry.get("constraint"), entry.get("note", "")
    if not isinstance(text, str) or not isinstance(note, str):
        shape = 'a text, or { constraint = "age == original", note = "why" }'
        raise InputError(f"{where} must be {shape}.")
    try:
        constraint = parse(text)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return replace(constraint, note=note) if note else constraint


def _refuse_unknown(content: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in content:
        if key not in keys:
            hint = did_you_mean(key, keys)
            raise InputError(f"{where} has a key '{key}' that means nothing here.{hint}")


def read_file(path: str | Path) -> tuple[Constraint, ...]:
    """Reads a constraint file (TOML).

    Examples:
        >>> read_file("nowhere.toml")
        Traceback (most recent call last):
        lapace.errors.InputError: There is no constraint file 'nowhere.toml'.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no constraint file '{path}'.")
    return from_toml(path.read_text(encoding="utf-8"), f"The constraint file '{path}'")
