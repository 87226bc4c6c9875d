"""How a table was read: a line per column, remarks on some, and a file to edit and hand over."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from lapace.arrays import Floats
from lapace.errors import InputError, did_you_mean
from lapace.schema.features import KINDS, Feature, Override
from lapace.schema.notation import Notation, order_of, plain_number

__all__ = ["Overrides", "column_lines", "from_toml", "read_overrides", "remarks", "to_toml"]

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
ALONE = {"tolerance", "derived", "unit", "description"}  # what may be said without the kind


# ------------------------------------------------------------------------------------------------
# Lines


def column_lines(features: Sequence[Feature], cells: Floats | None = None) -> dict[str, list[str]]:
    """A line per column: its name, what it is read as, its values, missing ones, an example.

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
    if feature.is_date:
        kind = "date"
    elif feature.kind == "continuous":
        kind = "whole number" if feature.integer else "number"
        kind += f" ({feature.unit})" if feature.unit else ""
    return kind if feature.derived is None else f"{kind}, derived"


def _values(feature: Feature) -> str:
    if feature.kind == "continuous":
        if feature.lower == feature.upper:
            return f"{feature.text(feature.lower)} in every row"
        step = feature.resolution
        by = f", in steps of {step:g}" if step and step not in (1, 0.1, 0.01, 0.001) else ""
        return f"{feature.text(feature.lower)} to {feature.text(feature.upper)}{by}"
    mark = " < " if feature.kind == "ordinal" else ", "
    more = len(feature.levels) - SHOWN
    shown = mark.join(_cut(str(level)) for level in feature.levels[:SHOWN])
    if len(feature.levels) == 1:
        return f"{shown} in every row"
    return f"{shown}{f' and {more} more' if more > 0 else ''}"


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _example(feature: Feature) -> str:
    """The middle of a number's values, the most frequent category."""
    if feature.kind == "continuous" and feature.knots is not None:
        values = feature.knots.values
        return feature.text(float(values[int(np.abs(feature.knots.mid).argmin())]))
    counts = feature.histogram[1]
    if feature.kind == "ordinal" and feature.knots is not None:
        return str(feature.levels[int(feature.knots.values[np.abs(feature.knots.mid).argmin()])])
    return str(feature.levels[int(np.argmax(counts))]) if counts else ""


# ------------------------------------------------------------------------------------------------
# Remarks


def remarks(features: Sequence[Feature]) -> list[str]:
    """What might be meant otherwise, each with the option that says so.

    Examples:
        >>> size = Feature.categorical("size", ["large", "medium", "small"])
        >>> remarks([size])
        ["'size' looks ordered: --kind 'size=ordinal:small<medium<large'"]
    """
    found = []
    for feature in features:
        if feature.kind == "continuous":
            constant = feature.lower == feature.upper
        else:
            constant = len(feature.levels) == 1 and not feature.missing
        if constant:
            found.append(
                f"'{feature.name}' is the same in every row: --drop {shlex.quote(feature.name)}"
            )
        elif feature.kind == "categorical":
            found += _looks_otherwise(feature)
            if len(feature.levels) >= MANY:
                found.append(
                    f"'{feature.name}' holds {MANY} texts or more; answers may propose the {MANY} "
                    "most frequent. If they are names or free text: --drop "
                    f"{shlex.quote(feature.name)}"
                )
    return found


def _looks_otherwise(feature: Feature) -> list[str]:
    texts = [str(level) for level in feature.levels]
    strings = all(isinstance(level, str) for level in feature.levels)
    if strings and all(plain_number(text) is not None for text in texts):
        return [f"'{feature.name}' holds numbers as text: --kind {feature.name}=number"]
    order = order_of(texts)
    if order is None:
        return []
    return [f"'{feature.name}' looks ordered: --kind '{feature.name}=ordinal:{'<'.join(order)}'"]


# ------------------------------------------------------------------------------------------------
# Files


def to_toml(features: Sequence[Feature]) -> str:
    """The columns as a file to edit.

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
        name = (
            feature.name if re.fullmatch(r"[A-Za-z0-9_-]+", feature.name) else _toml(feature.name)
        )
        number = "date" if feature.is_date else "number"
        kind = number if feature.kind == "continuous" else feature.kind
        lines += ["", f"[columns.{name}]", f"kind = {_toml(kind)}"]
        for key in FIELDS:
            value = getattr(feature, key)
            if callable(value):
                lines.append(f"# derived from {', '.join(feature.inputs)} by a Python function")
                continue
            if key in NUMBERS and feature.kind != "continuous":
                continue  # of an ordinal they are the codes
            if key in ("lower", "upper") and feature.is_date:
                value = Notation(feature.written).text(value)
            if value or (key in NUMBERS and key != "resolution"):
                lines.append(f"{key} = {_toml(value)}")
    return "\n".join([*lines, ""])


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() else repr(value)
    return json.dumps(value, ensure_ascii=False)


def from_toml(text: str, name: str = "The schema") -> dict[str, Override]:
    r"""What a file says of the columns, as `Schema.infer` and `Explainer(schema=...)` take it.

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
    return {column: _override(column, said, name) for column, said in data["columns"].items()}


def _override(column: str, said: Any, name: str) -> Override:
    if not isinstance(said, dict):
        raise InputError(f"{name}: column '{column}' is {said!r}; it must be a table of settings.")
    known = ("kind", *FIELDS)
    for key in said:
        if key not in known:
            raise InputError(f"{name}: column '{column}' has no '{key}'.{did_you_mean(key, known)}")
    if said.keys() <= ALONE:
        return dict(said)
    kind = said.get("kind", "number")
    if set(said) == {"kind"} or kind == "drop":
        return str(kind)
    try:
        if kind in ("number", "date", "continuous"):
            return replace(_number(column, said), derived=said.get("derived"))
        if kind not in KINDS:
            raise InputError(f"'{kind}' is no kind of column.{did_you_mean(kind, SAID)}")
        return replace(
            Feature(column, kind, categories=tuple(said.get("categories", ()))),
            description=str(said.get("description", "")),
            derived=said.get("derived"),
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}") from None


def _number(column: str, said: Mapping[str, Any]) -> Feature:
    written = str(said.get("written", ""))
    bounds = {}
    for key in ("lower", "upper"):
        value = said.get(key, np.nan)
        if isinstance(value, str):
            found = Notation(written or "1,234.56").number(value)
            if found is None:
                raise InputError(
                    f"column '{column}': {key} = '{value}' is not written as {written}."
                )
            value = found
        bounds[key] = float(value)
    feature = Feature.continuous(
        column,
        lower=bounds["lower"],
        upper=bounds["upper"],
        resolution=float(said.get("resolution", 0.0)),
        tolerance=float(said.get("tolerance", np.nan)),
        written=written,
        unit=str(said.get("unit", "")),
    )
    return replace(feature, description=str(said.get("description", "")))


def read_overrides(overrides: Overrides | str | Path | None) -> Overrides:
    """What is said of columns, read from a file where one is named."""
    if isinstance(overrides, str | Path):
        path = Path(overrides)
        if not path.is_file():
            raise InputError(f"There is no schema file '{path}'.")
        return from_toml(path.read_text(encoding="utf-8"), f"'{path.name}'")
    return overrides or {}
