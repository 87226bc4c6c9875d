"""How a table was read: a line per column, remarks on some, and a file to edit and hand over."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from lapace.arrays import Floats
from lapace.errors import InputError
from lapace.schema.features import KINDS, Feature, Override
from lapace.schema.notation import order_of, plain_number

__all__ = [
    "Overrides",
    "column_lines",
    "from_toml",
    "read_overrides",
    "remarks",
    "to_toml",
    "toml_key",
]

Overrides: TypeAlias = Mapping[str, Override]

VERSION = 1
SHOWN, WIDEST = 5, 24  # levels of a column that a line shows, and characters of each
MANY = 64  # texts from which a column may be free text: no more are proposed
HEADER = """\
# How the columns of a table are read. Edit it and hand it over: --schema, or schema= in Python.
# kind: number, date, ordinal, binary, categorical or drop. What is left out is seen in the data.
"""
SAID = ("number", "date", *KINDS[1:], "drop")  # what may be said of a column
NUMBERS = ("lower", "upper", "resolution", "tolerance")
FIELDS = (*NUMBERS, "written", "unit", "categories", "derived", "description")


# ------------------------------------------------------------------------------------------------
# Lines


def column_lines(features: Sequence[Feature], cells: Floats | None = None) -> dict[str, list[str]]:
    """Returns a line per column: its name, its kind, its values, missing ones, an example.

    Args:
        features: The columns.
        cells: The rows, to count missing values in.
    """
    missing = ["some" if f.missing else "" for f in features]
    if cells is not None:
        missing = [f"{n:,}" if n else "" for n in np.isnan(cells).sum(axis=0).tolist()]
    return {
        "column": [f.name for f in features],
        "read as": [_kind(f) for f in features],
        "values": [_values(f) for f in features],
        "missing": missing,
        "example": [_example(f) for f in features],
    }


def _kind(feature: Feature) -> str:
    kind: str = feature.kind
    if feature.kind == "continuous":
        number = "whole number" if feature.integer else "number"
        kind = "date" if feature.is_date else number
        kind += f" ({feature.unit})" if feature.unit else ""
    return kind if feature.derived is None else f"{kind}, derived"


def _values(feature: Feature) -> str:
    if _is_constant(feature):
        return f"{feature.text(feature.lower)} in every row"
    if feature.kind == "continuous":
        step = feature.resolution
        by = f", in steps of {step:g}" if step and step not in (1, 0.1, 0.01, 0.001) else ""
        return f"{feature.text(feature.lower)} to {feature.text(feature.upper)}{by}"
    mark = " < " if feature.kind == "ordinal" else ", "
    texts = [str(level) for level in feature.levels]
    cut = [text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…" for text in texts[:SHOWN]]
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return f"{mark.join(cut)}{more}"


def _is_constant(feature: Feature) -> bool:
    if feature.kind == "continuous":
        return feature.lower == feature.upper
    return len(feature.levels) == 1 and not feature.missing


def _example(feature: Feature) -> str:
    """Returns the middle of a number's values, or the most frequent category."""
    if feature.knots is not None:
        return feature.text(float(feature.knots.values[np.abs(feature.knots.mid).argmin()]))
    counts = feature.histogram[1]
    return str(feature.levels[int(np.argmax(counts))]) if counts else ""


# ------------------------------------------------------------------------------------------------
# Remarks


def remarks(features: Sequence[Feature]) -> list[str]:
    """Returns what might be meant otherwise, each with the option that says so.

    Examples:
        >>> size = Feature.categorical("size", ["large", "medium", "small"])
        >>> remarks([size])
        ["'size' looks ordered: --kind 'size=ordinal:small<medium<large'"]
    """
    return [f"'{f.name}' {remark}" for f in features for remark in _remarks(f)]


def _remarks(feature: Feature) -> Iterator[str]:
    drop, texts = f"--drop {shlex.quote(feature.name)}", [str(level) for level in feature.levels]
    if _is_constant(feature):
        yield f"is the same in every row: {drop}"
    elif feature.kind == "categorical":
        strings = all(isinstance(level, str) for level in feature.levels)
        if strings and all(plain_number(text) is not None for text in texts):
            yield f"holds numbers as text: --kind {feature.name}=number"
        elif order := order_of(texts):
            yield f"looks ordered: --kind '{feature.name}=ordinal:{'<'.join(order)}'"
        if len(texts) >= MANY:
            yield (
                f"holds {MANY} texts or more; answers may propose the {MANY} most frequent. If "
                f"they are names or free text: {drop}"
            )


# ------------------------------------------------------------------------------------------------
# Files


def to_toml(features: Sequence[Feature]) -> str:
    """Returns the columns as a file to edit.

    Examples:
        >>> print(to_toml([Feature.binary("smoker", ["no", "yes"])]).partition("version")[2])
         = 1
        <BLANKLINE>
        [columns.smoker]
        kind = "binary"
        categories = ["no", "yes"]
        <BLANKLINE>
    """
    lines = [f"{HEADER}version = {VERSION}"]
    for feature in features:
        number = "date" if feature.is_date else "number"
        kind = number if feature.kind == "continuous" else feature.kind
        lines += ["", f"[columns.{toml_key(feature.name)}]", f"kind = {_toml(kind)}"]
        for key in FIELDS:
            value = getattr(feature, key)
            if callable(value):
                lines.append(f"# derived from {', '.join(feature.inputs)} by a Python function")
                continue
            if key in NUMBERS and feature.kind != "continuous":
                continue  # of an ordinal they are the codes
            if key in ("lower", "upper") and feature.is_date:
                value = feature.text(value)
            if value or (key in NUMBERS and key != "resolution"):
                lines.append(f"{key} = {_toml(value)}")
    return "\n".join([*lines, ""])


def toml_key(name: str) -> str:
    """Returns a column's name as TOML writes it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() else repr(value)
    return json.dumps(value, ensure_ascii=False)


def from_toml(text: str, name: str = "The schema") -> dict[str, Override]:
    r"""Returns what a file says of the columns, as `Schema.infer` takes it.

    Examples:
        >>> from_toml('version = 1\n[columns.notes]\nkind = "drop"')
        {'notes': 'drop'}
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name} is not TOML: {error}.") from None
    if data.get("version") != VERSION or not isinstance(data.get("columns"), dict):
        raise InputError(
            f"{name} is no file of columns: it needs 'version = {VERSION}' and columns."
        )
    for column, said in data["columns"].items():
        if not isinstance(said, dict):
            sentence = f"column '{column}' is {said!r}; it must be a table of settings."
            raise InputError(f"{name}: {sentence}")
    columns = data["columns"].items()
    return {column: "drop" if said.get("kind") == "drop" else said for column, said in columns}


def read_overrides(overrides: Overrides | str | Path | None) -> Overrides:
    """Returns what is said of columns, read from a file where one is named."""
    if isinstance(overrides, str | Path):
        path = Path(overrides)
        if not path.is_file():
            raise InputError(f"There is no schema file '{path}'.")
        return from_toml(path.read_text(encoding="utf-8"), f"'{path.name}'")
    return overrides or {}
