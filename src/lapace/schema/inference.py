"""The feature that each column of a training table becomes.

The kind of a column, unless an override names it:

- numbers are `continuous`, 0 and 1 alone `binary`; a few numbers that are no lattice (2, 4, 8, 16)
  are `ordinal`; a number for each row in turn is refused;
- dates, and text that writes dates or numbers (15%, €1,200, 36 months), are `continuous`;
- ordered categories (an ordered pandas Categorical or arrow dictionary, a polars Enum) are
  `ordinal`, or `binary` if there are two;
- booleans, text and unordered categories are `binary` or `categorical`; of very many categories
  the most frequent may be proposed and the others are kept; nearly as many as rows are refused as
  names, identifiers or free text;
- durations, nested values, a mix of numbers and text and a column without any value are refused.

What is refused but could be settled by naming its kind is an `UnsettledColumnError`, whose message
says how; `infer_features` collects those of all columns.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lapace.arrays import Floats
from lapace.errors import InputError, did_you_mean
from lapace.schema.coding import RARE
from lapace.schema.columns import (
    PLAIN,
    PROPOSED,
    column_notation,
    fitted,
    read_cells,
    refuse_unreadable,
    resolution_of,
    seen_levels,
    text_notation,
)
from lapace.schema.features import KINDS, Feature, Override, column_error
from lapace.schema.notation import DATES, Notation, order_of, plain_number
from lapace.schema.summary import SAID, Overrides, remarks
from lapace.table import Coded, Column, Table
from lapace.table.frames import as_coded

__all__ = ["UnsettledColumnError", "infer_features", "no_column"]

ENOUGH = 50  # rows from which an identifier can be distinguished from a category
TEXT_NUMBERS = 20  # different numbers in a column of text from which they are read as numbers
SET = 12  # different numbers, at most, that are kept as a set where they are no lattice
KEY = re.compile(r"(?i)(^|[\W_])(id|uuid|guid|key|ssn|iban|phone)$|[a-z](Id|ID|Key)$")
ORDER_SHOWN = 12  # levels that a message about an order lists
WORDS = {"number": "continuous", "date": "continuous"}  # besides the kinds, what a column may be
# What may be declared of a column, and the type of it in words and in Python.
SETTINGS: Mapping[str, tuple[str, Any]] = {
    "kind": ("kind", object),
    "categories": ("list", list | tuple),
    "lower": ("number", int | float | str),  # dates and amounts as text
    "upper": ("number", int | float | str),
    "resolution": ("number", int | float),
    "integer": ("truth value", bool),
    "tolerance": ("number", int | float),
    "derived": ("expression", object),
    "written": ("text", str),
    "unit": ("text", str),
    "description": ("text", str),
}


def infer_features(
    table: Table, overrides: Overrides, labels: Sequence[Any] | None = None
) -> tuple[Feature, ...]:
    """Returns the feature of each column, or raises one `InputError` about all unusable ones.

    Args:
        table: The training table, features only.
        overrides: What is said of some of the columns.
        labels: The label of each row, where known: a column that says the same is refused.
    """
    overrides = {**_pixels(table), **overrides}
    if len(table) == 0:
        raise InputError("The table has no rows. Hand over at least a few hundred.")
    for name in overrides:
        if name not in table.names:
            raise no_column(name, table.names)
    table = table.without([name for name, kind in overrides.items() if kind == "drop"])
    if not table.names:
        raise InputError("The table has no columns.")
    # Labels that are more or fewer than the rows: `fit` says what is wrong with them.
    row_labels = labels if labels is not None and len(labels) == len(table) else ()
    features, errors = [], dict[str, InputError]()
    for name in table.names:
        try:
            override = overrides.get(name)
            column, trusted = table.columns[name], override is not None or len(row_labels) == 0
            if not trusted:
                _refuse_label(name, column, row_labels)
            features.append(infer(name, column, override))
            if not trusted:
                _refuse_thresholds(features[-1], column, row_labels)
        except InputError as error:
            errors[name] = error
    if errors:
        raise _all_at_once(errors, [f for f in features if f.name not in errors])
    return tuple(features)


def no_column(name: object, names: Sequence[str]) -> InputError:
    """Returns the error about a column that a table lacks."""
    return InputError(f"Column '{name}' is not in the table.{did_you_mean(name, names)}")


def _pixels(table: Table) -> dict[str, Feature]:
    """Returns the features of images: numbers of one scale, whichever part a pixel has shown."""
    if table.template.shape is None or not len(table):
        return {}
    columns = [table.columns[name].values for name in table.names]
    finite = (c[np.isfinite(c)] for c in columns if not isinstance(c, Coded))
    ranges = [(float(c.min()), float(c.max())) for c in finite if len(c)]
    if not ranges:
        return {}
    lower, upper = min(low for low, _ in ranges), max(high for _, high in ranges)
    # Every pixel is shown as it is: many small changes make a visible one.
    pixel = Feature.continuous("pixel", lower=lower, upper=upper, tolerance=0.0)
    return {name: replace(pixel, name=name) for name in table.names}


def _all_at_once(errors: Mapping[str, InputError], others: Sequence[Feature]) -> InputError:
    """Returns one error about all columns that cannot be used, with remarks on the others.

    It is the column's own error where there is a single one and nothing to remark.
    """
    if len(errors) == 1:
        lines = [str(next(iter(errors.values())))]
    else:
        lines = [f"{len(errors)} columns cannot be used as they are:"]
        for name, error in errors.items():
            if isinstance(error, UnsettledColumnError):
                lines.append(f"  '{name}' {error.what} → {' or '.join(error.words)}")
            else:
                lines.append(f"  {error}")
        all_dropped = " ".join(f"--drop {shlex.quote(name)}" for name in errors)
        lines.append(
            "Settle each with --drop COLUMN, --kind COLUMN=WORD, or --id COLUMN where it "
            "identifies the rows; in Python with schema={COLUMN: WORD}. "
            f"All of them dropped: {all_dropped}"
        )
    if notes := remarks(others):
        lines += ["Of the others:", *(f"  {note}" for note in notes)]
    elif len(errors) == 1:
        return next(iter(errors.values()))
    return InputError("\n".join(lines))


# ------------------------------------------------------------------------------------------------
# One column


class UnsettledColumnError(InputError):
    """A column that is used only once its kind is named.

    Attributes:
        name: The column.
        what: What it looks like, a sentence without its subject.
        words: What may be said of it: `drop`, or a kind.
    """

    def __init__(
        self, name: str, what: str, words: Sequence[str], *, identifies: bool = False
    ) -> None:
        self.name, self.what, self.words = name, what, tuple(words)
        kinds = [word for word in words if word != "drop"]
        quote = shlex.quote  # as a shell takes it
        say = "".join(
            f", or say it is '{kind}' (--kind {quote(f'{name}={kind}')}, "
            f"schema={{'{name}': '{kind}'}})"
            for kind in kinds
        )
        ids = f" If it identifies the rows: --id {quote(name)}" if identifies else ""
        drop = f"{' Else drop' if identifies else ' Drop'} it (--drop {quote(name)}){say}."
        super().__init__(f"Column '{name}' {what}{ids + '.' if ids else ''}{drop}")


def infer(name: str, column: Column, override: Override | None = None) -> Feature:
    """Returns the feature of a training column."""
    refuse_unreadable(name, column)
    if column.missing.all():
        raise UnsettledColumnError(name, "has no value in any row.", ["drop"])
    if override is None:
        return fitted(_guess(name, column), column)
    if isinstance(override, Mapping):
        return fitted(_declared(name, column, dict(override)), column)
    if not isinstance(override, Feature):
        return fitted(_declared(name, column, {"kind": override}), column)
    if override.name != name:
        raise InputError(
            f"The override for column '{name}' is a Feature of the name '{override.name}'."
        )
    return fitted(override, column)


def _refuse_label(name: str, column: Column, labels: Sequence[Any]) -> None:
    """Raises for a column that says the same as the labels, one value for each of them."""
    coded = as_coded(column.values)
    names = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    if len(coded.seen) != len(names) or (coded.codes < 0).any() or len(names) < 2:
        return
    pairs = set(zip(coded.codes.tolist(), (names[label] for label in labels), strict=True))
    if len(pairs) == len(names):
        what = "says the same as the label in every row."
        raise UnsettledColumnError(name, what, ["drop", "categorical"])


def _refuse_thresholds(feature: Feature, column: Column, labels: Sequence[Any]) -> None:
    """Raises for a column of numbers of which each label has a range of its own."""
    if feature.kind != "continuous":
        return
    cells = read_cells(feature, column, {})[1]
    present = ~np.isnan(cells)
    names = {label: k for k, label in enumerate(dict.fromkeys(labels))}
    codes, cells = np.array([names[label] for label in labels])[present], cells[present]
    if len(codes) < ENOUGH or not 2 <= len(names) == len(np.unique(codes)):
        return
    if np.bincount(codes).min() < RARE:
        return  # may be chance
    order = np.argsort(cells, kind="stable")
    codes, cells = codes[order], cells[order]
    cuts = np.flatnonzero(codes[1:] != codes[:-1])
    if len(cuts) == len(names) - 1 and (cells[cuts] < cells[cuts + 1]).all():
        bounds = " and ".join(feature.text(float(cells[cut + 1])) for cut in cuts)
        what = f"decides the label in every row: from {bounds} on it is another."
        raise UnsettledColumnError(
            feature.name, what, ["drop", "date" if feature.is_date else "number"]
        )


def _declared(name: str, column: Column, settings: dict[str, Any]) -> Feature:
    """Returns a feature with some of its settings declared, the others inferred."""
    for key, value in settings.items():
        if key not in SETTINGS:
            hint = did_you_mean(key, SETTINGS) or f" There are: {', '.join(SETTINGS)}."
            raise column_error(name, f"has no setting '{key}'.{hint}")
        word, wanted = SETTINGS[key]
        if not isinstance(value, wanted) or isinstance(value, bool) > (key == "integer"):
            raise column_error(name, f"has {key} = {value!r}, which is no {word}.")
    kind, categories = settings.pop("kind", None), settings.pop("categories", None)
    if kind is not None and kind not in (*KINDS, *SAID):
        hint = did_you_mean(kind, (*SAID, *KINDS)) or f" There are: {', '.join(SAID)}."
        raise InputError(f"'{kind}' is no kind of column.{hint}")
    if categories is not None:
        declared: Any = WORDS.get(kind, kind or "categorical")
        return replace(Feature(name, declared, categories=tuple(categories)), **settings)
    feature = _feature(name, column, WORDS.get(kind, kind)) if kind else _guess(name, column)
    feature = replace(feature, written=settings.pop("written", feature.written))
    for key in ("lower", "upper"):
        if isinstance(text := settings.get(key), str):
            settings[key] = feature.number(text)
            if settings[key] is None:
                sentence = f"has {key} = '{text}', which is not written as {feature.written}."
                raise column_error(name, sentence)
    if kind == "date" and not (column.kind == "date" or feature.is_date):
        raise column_error(
            name,
            "is not written as dates are that can be read. Name how, as in "
            f"Feature.continuous('{name}', written='31/12/2024'), --kind '{name}=date:31/12/2024'; "
            f"there are {', '.join(DATES)}.",
        )
    return replace(feature, **settings)


def _feature(name: str, column: Column, kind: Any) -> Feature:
    if kind == "continuous":
        return Feature.continuous(name, written=column_notation(column))
    if kind == "categorical":
        return Feature.categorical(name, seen_levels(column, PROPOSED))
    levels = column.ordered or seen_levels(column)
    if kind == "ordinal" and column.ordered is None and any(isinstance(v, str) for v in levels):
        usual = order_of(list(map(str, levels)))
        shown = list(map(str, levels[:ORDER_SHOWN]))
        order = usual or [*shown, *(["…"] if len(levels) > ORDER_SHOWN else [])]
        said = "" if usual else ", least first"
        raise column_error(
            name,
            f"cannot be ordinal without its order. Name it{said}: "
            f"--kind {shlex.quote(f'{name}=ordinal:' + '<'.join(order))}, in Python "
            f"Feature.ordinal('{name}', {order}).",
        )
    if kind == "binary" and len(levels) != 2:  # of those declared, two may occur
        levels = seen_levels(column)
    return Feature(name, kind, categories=levels)


def _guess(name: str, column: Column) -> Feature:
    """Returns the feature that a column looks like; raises where only its user can tell."""
    values, ordered = column.values, column.ordered
    if column.kind == "date":
        return _feature(name, column, "continuous")
    if ordered is not None and len(ordered) > 1:
        return _feature(name, column, "ordinal" if len(ordered) > 2 else "binary")
    if column.kind == "mixed":
        raise UnsettledColumnError(name, "mixes numbers and text.", ["drop", "categorical"])
    if isinstance(values, Coded):
        distinct = int(values.used.sum())
        notation = text_notation(column) if distinct > 2 else None
        if notation is not None and (notation.example != PLAIN or distinct > TEXT_NUMBERS):
            return _spelt_set(name, values, notation) or _feature(name, column, "continuous")
        _refuse_some_text(name, values)
        _refuse_identifiers(name, values, distinct)
        return _feature(name, column, "binary" if distinct == 2 else "categorical")
    present = values[~np.isnan(values)]
    numbers = np.unique(present)
    if np.array_equal(numbers, [0.0, 1.0]):
        return _feature(name, column, "binary")
    _refuse_running_numbers(name, column, numbers)
    return _feature(name, column, "ordinal" if _is_set(present) else "continuous")


def _is_set(values: Floats) -> bool:
    """Returns whether a few numbers, each frequent, leave gaps in their lattice: 2, 4, 8, 16.

    Such a column is an ordinal of numbers: what is in between is never proposed.
    """
    numbers, counts = np.unique(values, return_counts=True)
    few = len(values) >= ENOUGH and 3 <= len(numbers) <= SET
    if not few or counts.min() < max(RARE, 0.01 * len(values)):
        return False
    step = resolution_of(values)
    return not step or bool((numbers[-1] - numbers[0]) / step + 1 >= 1.5 * len(numbers))


def _spelt_set(name: str, values: Coded, notation: Notation) -> Feature | None:
    """Returns a few amounts that are no lattice, written as text, as an ordinal of these texts."""
    spelt = [notation.number(str(level)) for level in values.levels]
    numbers = np.array([*(np.nan if v is None else v for v in spelt), np.nan])
    present = numbers[values.codes]
    order = [k for k in np.argsort(numbers[:-1]) if values.used[k] and not np.isnan(numbers[k])]
    distinct = len(np.unique(numbers[order])) == len(order)
    if not distinct or not _is_set(present[~np.isnan(present)]):
        return None
    return Feature.ordinal(name, [str(values.levels[k]) for k in order])


def _refuse_running_numbers(name: str, column: Column, numbers: Floats) -> None:
    """Raises where numbers only count the rows, or a column named as a key has many of them."""
    rows = len(column.missing)
    if column.kind != "integer" or rows < ENOUGH:
        return
    if len(numbers) == rows and numbers[-1] - numbers[0] == len(numbers) - 1:
        what = "only numbers the rows."
        raise UnsettledColumnError(name, what, ["drop", "number"], identifies=True)
    if KEY.search(name) and len(numbers) > rows / 2:  # one may come again
        many = "as many" if len(numbers) == rows else f"{rows:,}"
        what = f"holds {len(numbers):,} different numbers in {many} rows, as identifiers do."
        raise UnsettledColumnError(name, what, ["drop", "number"], identifies=True)


def _refuse_some_text(name: str, values: Coded) -> None:
    """Raises for numbers with some other text among them, unless there are few of either."""
    texts = [str(level) for level in values.levels]
    numbers = np.array([plain_number(text) is not None for text in texts])
    counts = np.bincount(values.codes[values.codes >= 0], minlength=len(texts))
    rows, distinct = int(counts[numbers].sum()), int((numbers & (counts > 0)).sum())
    if distinct <= TEXT_NUMBERS or rows < 0.9 * counts.sum():
        return
    others = [repr(texts[k]) for k in np.flatnonzero(~numbers & (counts > 0))]
    some = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
    what = (
        f"holds numbers, but in {int(counts.sum()) - rows:,} rows other text ({some}). Mend those."
    )
    raise UnsettledColumnError(name, what, ["drop", "categorical"])


def _refuse_identifiers(name: str, values: Coded, distinct: int) -> None:
    """Raises where most rows have a text of their own."""
    rows = int((values.codes >= 0).sum())
    if rows < ENOUGH or distinct <= rows / 2:
        return
    words = np.mean([len(str(level).split()) for level in values.levels])
    kind = "free text does" if words >= 4 else "names, identifiers or free text do"
    what = f"holds {distinct:,} different values in {rows:,} rows, as {kind}."
    raise UnsettledColumnError(name, what, ["drop", "categorical"], identifies=bool(words < 4))
