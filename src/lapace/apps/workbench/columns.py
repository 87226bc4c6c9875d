"""Columns and rows as the page shows them: labels, inputs, scales, and values typed into a form.

A value of the form is a number as text, a date as `YYYY-MM-DD`, the position of a category among
the column's levels, or None where it is missing. A visitor's details are facts, so they may lie
somewhat outside what was seen in training. Values that a visitor tries instead of them may not:
they have to be values that a counterfactual could have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from lapace.apps.letters.clauses import DOWN, STAYS, UP, clauses
from lapace.apps.letters.words import Words
from lapace.arrays import Floats
from lapace.constraints import Constraint
from lapace.schema import Feature, Schema
from lapace.schema.features import on_lattice

__all__ = [
    "PLAIN", "Json", "describe", "form_value", "form_values", "locks", "place", "read_value",
    "read_values",
]  # fmt: skip

Json: TypeAlias = dict[str, Any]

PLAIN = Words()  # the page has no words of its own for columns

TAIL = 0.985  # share of the rows that a scale shows: what lies beyond is drawn at its end
MAX_NUMBER = 1e100
LOCKS = {STAYS: "keep", UP: "up", DOWN: "down"}


def describe(schema: Schema, rules: Sequence[Constraint] = ()) -> list[Json]:
    """Describes all columns to the page: what a form, a limit and a scale need to know.

    Args:
        schema: The columns; the scales come from their histograms, as shares of the highest bar.
        rules: Constraints that always hold: a column that one of them fixes is locked.
    """
    locked = locks(rules, schema)
    return [_column(feature, locked.get(feature.name, "")) for feature in schema.features]


def _column(feature: Feature, lock: str) -> Json:
    number = feature.kind == "continuous"
    kind = "date" if feature.is_date else "number" if number else "choice"
    low, high = _scale_bounds(feature)
    described: Json = {
        "name": feature.name,
        "label": PLAIN.title(feature.name),
        "help": feature.description,
        "kind": kind,
        "ordered": feature.kind == "ordinal",
        "levels": [str(level) for level in feature.levels],
        "offered": len(feature.categories),
        "lock": lock,
        "derived": [PLAIN.title(name) for name in feature.inputs],
        "needed": not feature.missing and feature.derived is None,
        "scale": _scale(feature, low, high),
    }
    if number:
        before, after = _around(feature)
        described |= {
            "low": low,
            "high": high,
            "step": feature.resolution or _nice_step(high - low),
            "before": before,
            "after": after,
        }
    return described


def _around(feature: Feature) -> tuple[str, str]:
    """Returns the texts before and after a number of the column: a currency, a unit."""
    if feature.is_date:
        return "", ""
    parts = re.fullmatch(r"(?s)([^\d]*)\d[\d.,']*(.*)", feature.text(1.0))
    return (parts[1].strip(), parts[2].strip()) if parts else ("", "")


def _scale_bounds(feature: Feature) -> tuple[float, float]:
    """The ends of a column's scale: its bounds without a long, thin tail."""
    edges, counts = feature.histogram
    if feature.kind != "continuous" or len(edges) < 3 or not sum(counts):
        return feature.lower, feature.upper
    share = np.cumsum(counts) / sum(counts)
    last = int(np.searchsorted(share, TAIL)) + 1
    low, high = feature.lower, min(feature.upper, float(edges[last]))
    return (low, high) if high > low else (low, feature.upper)


def _nice_step(span: float) -> float:
    return float(10.0 ** np.floor(np.log10(span / 100))) if span > 0 else 1.0


def _scale(feature: Feature, low: float, high: float) -> list[list[float]]:
    """Bars of the histogram: left end, right end and height, each a share of the whole."""
    edges, counts = feature.histogram
    if not counts:
        return []
    if feature.kind != "continuous":
        heights = np.array(counts, dtype=float)
        lefts = np.arange(len(counts)) / len(counts)
        rights = lefts + 1 / len(counts)
    else:
        cuts = np.array(edges, dtype=float)
        places = np.clip((cuts - low) / (high - low or 1.0), 0, 1)
        lefts, rights = places[:-1], places[1:]
        heights = np.array(counts) / np.maximum(np.diff(cuts), 1e-12)
    top = heights.max() or 1.0
    bars = zip(lefts, rights, heights / top, strict=True)
    return [[round(float(x), 3) for x in bar] for bar in bars if bar[1] > bar[0]]


def place(feature: Feature, cell: float) -> float | None:
    """Returns a cell's place on its column's scale, from 0 to 1; None if it is missing."""
    if np.isnan(cell):
        return None
    if feature.kind != "continuous":
        return round((min(cell, len(feature.categories) - 1) + 0.5) / len(feature.categories), 3)
    low, high = _scale_bounds(feature)
    return round(float(np.clip((cell - low) / (high - low or 1.0), 0, 1)), 3)


def locks(rules: Iterable[Constraint], schema: Schema) -> dict[str, str]:
    """Columns that a rule keeps (`keep`), or lets rise (`up`) or fall (`down`) only.

    Examples:
        >>> from lapace.constraints import parse_all
        >>> names = ("age", "sex", "income", "rent")
        >>> schema = Schema.infer([dict.fromkeys(names, i % 50) for i in range(99)])
        >>> locks(parse_all(["fixed age, sex", "income >= original", "rent <= 9"]), schema)
        {'age': 'keep', 'sex': 'keep', 'income': 'up'}
    """
    locked: dict[str, str] = {}
    for rule in rules:
        for name, _, predicate in clauses(rule, schema, PLAIN):
            if name and predicate in LOCKS:
                lock = LOCKS[predicate]
                locked[name] = lock if locked.get(name, lock) == lock else "keep"
    return locked


# ------------------------------------------------------------------------------------------------
# Rows


def form_values(schema: Schema, cells: Floats) -> Json:
    """One row as values of the form, by column."""
    pairs = zip(schema.features, cells.tolist(), strict=True)
    return {feature.name: form_value(feature, cell) for feature, cell in pairs}


def form_value(feature: Feature, cell: float) -> str | int | None:
    """One cell as a value of the form."""
    if np.isnan(cell):
        return None
    if feature.categories:
        return round(cell)
    if feature.is_date:
        return str(np.datetime64(round(cell), "D"))
    return f"{cell:.12g}"


def read_values(
    schema: Schema, values: Mapping[str, Any], known: Floats | None = None, *, tried: bool = False
) -> tuple[Floats, dict[str, str]]:
    """The cells of a form, and by column a sentence about what cannot be used.

    Args:
        schema: The columns.
        values: The form.
        known: The row that the form began with: its cells are accepted whatever they are.
        tried: Whether the values are tried instead of those of `known`, and are no facts.

    Examples:
        >>> schema = Schema.infer([{"age": 20 + i % 40, "home": "ab"[i % 2]} for i in range(99)])
        >>> read_values(schema, {"age": "31", "home": 1})
        (array([31.,  1.]), {})
        >>> read_values(schema, {"age": "old", "home": None})[1]
        {'age': 'This must be a number.', 'home': 'This is needed.'}
        >>> read_values(schema, {"age": "61", "home": 1}, np.array([31.0, 1.0]), tried=True)[1]
        {'age': 'This must be between 20 and 59.'}
    """
    cells = np.full(len(schema.features), np.nan)
    problems: dict[str, str] = {}
    for i, feature in enumerate(schema.features):
        value = values.get(feature.name)
        try:
            if value is not None and value != "":
                cells[i] = read_value(feature, value)
            same = known is not None and np.array_equal(cells[i], known[i], equal_nan=True)
            if not same and feature.derived is None:
                _check(feature, cells[i], tried=tried)
        except ValueError as error:
            problems[feature.name] = str(error)
    return cells, problems


def _check(feature: Feature, cell: float, *, tried: bool) -> None:
    """Raises a `ValueError` about a cell that a visitor may not give a column."""
    if np.isnan(cell):
        if tried or not feature.missing:
            raise ValueError("This is needed.")
        return
    if feature.kind != "continuous":
        if tried and cell >= len(feature.categories):
            raise ValueError("Only your own details have this value. Choose another.")
        return
    low, high = feature.lower, feature.upper
    texts = feature.text(low), feature.text(high)
    if tried and not low <= cell <= high:
        raise ValueError("This must be between {} and {}.".format(*texts))
    least = low - feature.span if low < 0 else max(0.0, low - feature.span)
    if not feature.is_date and not least <= cell <= high + feature.span:  # time goes on
        raise ValueError("This is too far from the values known here: {} to {}.".format(*texts))
    step = feature.resolution if tried or feature.integer else 0.0
    if step and not np.isclose(on_lattice(np.array(cell), step), cell, rtol=0, atol=step * 1e-6):
        whole = "whole number" if step == 1 else f"multiple of {step:.12g}"
        raise ValueError(f"This must be a {whole}.")


def read_value(feature: Feature, value: Any) -> float:
    """Returns the cell of a value of the form; a `ValueError` says why there is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("This cannot be read.")
    if feature.categories:
        code = int(value) if str(value).isdecimal() else -1
        if not 0 <= code < len(feature.levels):
            raise ValueError("Choose one from the list.")
        return float(code)
    if feature.is_date:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", str(value)):
            raise ValueError("This must be a date.")
        try:
            return float(np.datetime64(str(value), "D").astype(np.int64))
        except ValueError:
            raise ValueError("There is no such day.") from None
    try:
        number = float(value)
    except ValueError:
        raise ValueError("This must be a number.") from None
    if not abs(number) <= MAX_NUMBER:
        raise ValueError("This number is too large.")
    return number
