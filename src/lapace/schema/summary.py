"""How a table was read: a line per column, remarks on some, and a file to edit and pass."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from lapace.arrays import Floats
from lapace.errors import InputError
from lapace.schema.features import KINDS, NUMBERS, YEAR, Feature, Override
from lapace.schema.notation import likely, plain_number

__all__ = [
    "Overrides",
    "column_lines",
    "read_overrides",
    "remarks",
    "setting_line",
    "to_toml",
    "toml_key",
]

Overrides: TypeAlias = Mapping[str, Override]

VERSION = 1
PROPOSED = 64  # categories that counterfactuals may propose; rarer ones are kept, not proposed
SHOWN, WIDEST = 5, 24  # levels of a column that a line shows, and characters of each
HEADER = """\
# How the columns of a table are read. Edit it and pass it: --schema, or schema= in Python.
# kind: number, date, ordinal, binary, categorical, id (of the rows) or drop (leave it out).
# What you leave out is inferred from the data.
"""
LEFT_OUT = ("drop", "id")  # kinds of columns that are no features
SAID = ("number", "date", *KINDS[1:], *LEFT_OUT)  # what may be said of a column
FIELDS = (
    *NUMBERS, "written", "unit", "categories", "missing_values", "ignore_case", "derived",
    "description",
)  # fmt: skip
# Numbers that often stand for a missing one.
SENTINELS = (-9, -99, -999, -9999, -99999, 999, 9999, 99999, 999999)


# ------------------------------------------------------------------------------------------------
# Lines and remarks


def column_lines(features: Sequence[Feature], cells: Floats | None = None) -> dict[str, list[str]]:
    """Returns a line per column: its name, its kind, its values, missing ones.

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


def remarks(features: Sequence[Feature]) -> list[str]:
    """Returns what might be meant otherwise, each with the line of a file of columns that says so.

    Examples:
        >>> for remark in remarks([Feature("size", "categorical", categories=("1", "2", "3"))]):
        ...     print(remark)
        'size' holds numbers as text; in columns.toml: kind = "number" under [columns.size]
    """
    odd = ((f, [*_remarks_on_categories(f), *_remarks_on_numbers(f)]) for f in features)
    return [
        f"'{f.name}' "
        + "; it ".join(
            f"{what} in columns.toml: {setting_line(f.name, *mend)}" for what, *mend in found
        )
        for f, found in odd
        if found
    ]


Remarks: TypeAlias = Iterator[tuple[str, str, Any]]  # what is odd, and the setting that mends it


def _remarks_on_categories(feature: Feature) -> Remarks:
    texts = [level for level in feature.levels if isinstance(level, str)]
    alike: dict[str, list[str]] = {}
    for text in texts if not feature.ignore_case else ():
        alike.setdefault(" ".join(text.casefold().split()), []).append(text)
    if alike.pop("", None):
        yield "has blank texts as a category; if they mean missing,", "missing_values", [""]
    same = [" and ".join(map(repr, some)) for some in alike.values() if len(some) > 1]
    if same:
        listed = ", ".join(same[:SHOWN])
        yield f"has {listed}; if they mean the same,", "ignore_case", True
    elif feature.kind == "categorical" and 1 < len(texts) == len(feature.levels):
        found, plain = likely(texts), [plain_number(text) for text in texts]
        many = f"holds {PROPOSED} texts or more; answers may propose the {PROPOSED} most frequent"
        if None not in plain and not any(re.match(r"0\d", text) for text in texts):
            yield "holds numbers as text;", "kind", "number"
        elif found is not None and None in plain:
            yield "holds amounts or dates, not all written alike;", "written", found.example
        elif len(texts) >= PROPOSED:
            yield f"{many}; if they are names or free text,", "kind", "drop"


def _remarks_on_numbers(feature: Feature) -> Remarks:
    mark = _sentinel(feature)
    if _is_constant(feature):
        yield "is the same in every row;", "kind", "drop"
    elif mark is not None:
        where = "far from all others" if mark > 0 else "the only one below zero"
        yield f"has the value {mark}, {where}; if it means missing,", "missing_values", [mark]
    elif feature.written not in ("", YEAR) and not feature.is_date and feature.holds_years:
        yield f"holds years written as {feature.text(feature.upper)};", "written", YEAR


def _sentinel(feature: Feature) -> int | None:
    """Returns the number of a column that looks as if it stood for a missing one."""
    values = [v for v in feature.categories if not isinstance(v, str)] or feature.ranks[0]
    if not feature.numeric or feature.is_date or len(values) < 3:
        return None
    least, second, last, greatest = values[0], values[1], values[-2], values[-1]
    if least in SENTINELS and second >= 0:
        return int(least)
    far = greatest - last > last - least
    return int(greatest) if greatest in SENTINELS and far else None


def setting_line(name: str, key: str, value: Any) -> str:
    """Returns the line of a file of columns that declares something, and the header it goes under.

    Examples:
        >>> setting_line("home town", "ignore_case", True)
        'ignore_case = true under [columns."home town"]'
    """
    return f"{key} = {_toml(value)} under [columns.{toml_key(name)}]"


# ------------------------------------------------------------------------------------------------
# Files


def to_toml(features: Sequence[Feature], left_out: Mapping[str, str] | None = None) -> str:
    """Returns the columns as a file to edit.

    Args:
        features: The columns.
        left_out: Columns of the table that are no features, each with its kind: `drop` or `id`.

    Examples:
        >>> smoker = Feature("smoker", "binary", categories=("no", "yes"))
        >>> print(to_toml([smoker]).partition("version = 1")[2])
        <BLANKLINE>
        <BLANKLINE>
        [columns.smoker]
        kind = "binary"
        categories = ["no", "yes"]
        <BLANKLINE>
    """
    lines = [f"{HEADER}version = {VERSION}"]
    for name, kind in (left_out or {}).items():
        lines += ["", f"[columns.{toml_key(name)}]", f"kind = {_toml(kind)}"]
    for feature in features:
        number = "date" if feature.is_date else "number"
        kind = number if feature.kind == "continuous" else feature.kind
        lines += ["", f"[columns.{toml_key(feature.name)}]", f"kind = {_toml(kind)}"]
        for key in FIELDS:
            value = getattr(feature, key)
            if key in NUMBERS and (feature.kind != "continuous" or _sentinel(feature) is not None):
                continue  # an ordinal's are its codes; with -999 they are not the column's own
            if key in ("lower", "upper") and feature.is_date:
                value = feature.text(value)
            if value or (key in NUMBERS and key != "resolution"):
                lines.append(f"{key} = {_toml(value)}")
    return "\n".join([*lines, ""])


def toml_key(name: str) -> str:
    """Returns a column's name as TOML writes it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() else repr(value)
    return json.dumps(value, ensure_ascii=False)


def read_overrides(overrides: Overrides | str | Path | None) -> Overrides:
    """Returns what is said of columns, read from a file where one is named."""
    if not isinstance(overrides, str | Path):
        return overrides or {}
    path = Path(overrides)
    if not path.is_file():
        raise InputError(f"There is no schema file '{path}'.")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        once = "A header, and a setting below it, may stand there only once."
        raise InputError(f"'{path.name}' is not TOML: {error}. {once}") from None
    columns = data.get("columns")
    if data.get("version") != VERSION or not isinstance(columns, dict):
        sentence = f"it needs 'version = {VERSION}' and columns."
        raise InputError(f"'{path.name}' is not a file of columns: {sentence}")
    for column, said in columns.items():
        if not isinstance(said, dict):
            sentence = f"column '{column}' is {said!r}; it must be a table of settings."
            raise InputError(f"'{path.name}': {sentence}")
    left_out = {n: said["kind"] for n, said in columns.items() if said.get("kind") in LEFT_OUT}
    return {**columns, **left_out}
