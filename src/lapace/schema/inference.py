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

What is refused but could be settled by naming its kind has a message that says how;
`infer_features` collects those of all columns.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lapace.arrays import Floats
from lapace.documents import restore
from lapace.errors import InputError, did_you_mean
from lapace.schema.columns import (
    PLAIN,
    column_notation,
    fitted,
    folded,
    means_missing,
    refuse_unreadable,
    resolution_of,
    seen_levels,
    text_notation,
    tidied,
)
from lapace.schema.features import (
    KINDS,
    ColumnError,
    ColumnsError,
    Feature,
    Override,
    column_error,
)
from lapace.schema.notation import DATES, likely, notation, plain_number
from lapace.schema.ranks import RARE
from lapace.schema.summary import FIELDS, LEFT_OUT, PROPOSED, SAID, Overrides, setting_line
from lapace.table import Coded, Column, Level, Table, as_coded

__all__ = ["infer_features", "no_column"]

ENOUGH = 50  # rows from which an identifier can be distinguished from a category
TEXT_NUMBERS = 20  # different numbers in a column of text from which they are read as numbers
SET = 12  # different numbers kept as a set where they are no lattice, or labels, at most
KEY = re.compile(
    r"(?i:(^|[\W_])(id|uuid|guid|key|ssn|iban|phone|no|nr|number|ref)\.?$)|[a-z](Id|ID|No|Key)$"
)
MOST_COLUMNS = 1000  # of a table: a fit of these takes minutes, and of 10,000 does not end
MOST_CATEGORIES = 5000  # of all columns: how often each occurs with each is counted
JOIN = (
    "Drop those that the classifier does not use, and join those that say one thing: flags into "
    "one category, amounts into a sum."
)
GROUP = "Drop columns of very many categories, or group their rare ones."
SHOWN = 3  # values that a message lists
WORDS = {"number": "continuous", "date": "continuous"}  # besides the kinds, what a column may be
BOUNDS = ("lower", "upper")
SETTINGS = ("kind", "integer", *FIELDS)  # what may be declared of a column


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
        raise InputError("The table has no rows. It needs at least a few hundred.")
    for name, kind in overrides.items():
        if name not in table.names and (kind != "id" or name not in table.template.index):
            raise no_column(name, table.names)
    table = table.without([name for name, kind in overrides.items() if kind in LEFT_OUT])
    if not table.names:
        raise InputError("The table has no columns.")
    wide = len(table.names) > MOST_COLUMNS and table.template.shape is None
    _refuse_many(len(table.names) * wide, MOST_COLUMNS, "columns", JOIN)
    # `fit` itself refuses labels that are more or fewer than the rows.
    row_labels = labels if labels is not None and len(labels) == len(table) else ()
    features, errors = [], dict[str, InputError]()
    for name, column in table.columns.items():
        try:
            if name not in overrides:
                _refuse_label(name, column, row_labels)
            features.append(infer(name, column, overrides.get(name)))
        except InputError as error:
            errors[name] = error
    if errors:
        raise ColumnsError(errors)
    categories = sum(len(feature.categories) for feature in features)
    _refuse_many(categories, MOST_CATEGORIES, "categories in all columns together", GROUP)
    return tuple(features)


def _refuse_many(count: int, most: int, what: str, remedy: str) -> None:
    if count > most:
        raise InputError(f"The table has {count:,} {what}; at most {most:,} can be used. {remedy}")


def no_column(name: object, names: Sequence[str]) -> InputError:
    """Returns the error about a column that a table lacks."""
    return InputError(f"Column '{name}' is not in the table.{did_you_mean(name, names)}")


def _pixels(table: Table) -> dict[str, Feature]:
    """Returns the features of images: all pixels have the same bounds."""
    if table.template.shape is None:
        return {}
    columns = [column.values for column in table.columns.values()]
    pixels = np.concatenate([c[np.isfinite(c)] for c in columns if not isinstance(c, Coded)])
    if not len(pixels):
        return {}
    # Every pixel is shown as it is: many small changes make a visible one.
    lower, upper = float(pixels.min()), float(pixels.max())
    pixel = Feature("pixel", "continuous", lower=lower, upper=upper, tolerance=0.0)
    return {name: replace(pixel, name=name) for name in table.names}


# ------------------------------------------------------------------------------------------------
# One column


def infer(name: str, column: Column, override: Override | None = None) -> Feature:
    """Returns the feature of a training column."""
    refuse_unreadable(name, column)
    settings = {**override} if isinstance(override, Mapping) else {"kind": override}
    said = vars(override) if isinstance(override, Feature) else settings
    column = tidied(column, _listed(said.get("missing_values")), bool(said.get("ignore_case")))
    if column.missing.all():
        raise ColumnError(name, "has no value in any row.", "drop")
    if override is None:
        return fitted(_guess(name, column), column)
    if not isinstance(override, Feature):
        return fitted(_declared(name, column, settings), column)
    if override.name != name:
        raise InputError(f"The override for column '{name}' is a Feature named '{override.name}'.")
    return fitted(override, column)


def _unsettled(name: str, what: str, kind: str) -> InputError:
    """Returns the error about a column that is used only once its kind is named."""
    return ColumnError(name, what, *LEFT_OUT, kind)


def _refuse_label(name: str, column: Column, labels: Sequence[Any]) -> None:
    """Raises for a column that says the same as the labels, or is blank for some of them only."""
    codes, names = as_coded(column.values).codes, list(dict.fromkeys(labels))
    if len(names) < 2:
        return
    values, gaps = (set(zip(c.tolist(), labels, strict=True)) for c in (codes, codes < 0))
    is_number = column_notation(column) or not isinstance(column.values, Coded)
    kinds = "drop", "number" if is_number else "categorical"
    if len(values) == len(names) == len({code for code, _ in values}):
        raise ColumnError(name, "says the same as the label in every row.", *kinds)
    if len(gaps) == len(names) <= SET and len({blank for blank, _ in gaps}) == 2:
        listed = " or ".join(repr(label) for label in names if (True, label) in gaps)
        raise ColumnError(name, f"is blank exactly where the label is {listed}.", *kinds)


def _declared(name: str, column: Column, settings: dict[str, Any]) -> Feature:
    """Returns a feature with some of its settings declared, the others inferred."""
    for key in settings:
        if key not in SETTINGS:
            hint = did_you_mean(key, SETTINGS) or f" There are: {', '.join(SETTINGS)}."
            raise column_error(name, f"has no setting '{key}'.{hint}")
    settings = _without_missing(settings, column)
    word = settings.pop("kind", None)
    if word is not None and word not in (*KINDS, *SAID):
        hint = did_you_mean(word, (*SAID, *KINDS)) or f" There are: {', '.join(SAID)}."
        raise InputError(f"'{word}' is not a kind of column.{hint}")
    kind = WORDS.get(word, word)
    if "categories" in settings:
        inferred = {"name": name, "kind": kind or "categorical"}
    else:
        feature = _feature(name, column, kind) if kind else _guess(name, column)
        written = settings.get("written", feature.written)
        if word == "date" and written not in DATES:
            raise column_error(
                name,
                "holds text that cannot be read as dates. Say how they are written: --kind "
                f"'{name}=date:31/12/2024' or schema={{'{name}': {{'written': '31/12/2024'}}}}; "
                f"there are {', '.join(DATES)}.",
            )
        for key in {*BOUNDS} & settings.keys():
            if isinstance(text := settings[key], str):  # a date or an amount
                settings[key] = Feature(name, "continuous", written=written).number(text)
                if settings[key] is None:
                    sentence = f"has {key} = '{text}', which is not written as {written}."
                    raise column_error(name, sentence)
        inferred = {k: v for k, v in vars(feature).items() if v == v}  # noqa: PLR0124  NaN
    return restore(Feature, {**inferred, **settings}, f"the declaration of column '{name}'")


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else [] if values is None else [values]


def _without_missing(settings: Mapping[str, Any], column: Column) -> dict[str, Any]:
    """Returns settings in which no bound or category means missing, and categories are unlike."""
    missing = _listed(settings.get("missing_values"))
    kept = {k: v for k, v in settings.items() if k not in BOUNDS or v not in missing}
    if missing:
        kept["missing_values"] = missing
    if kept.get("written"):  # it has numbers, whatever they were taken for
        kept["kind"] = "date" if kept["written"] in DATES else "number"
    if kept.get("kind") in ("number", "date"):
        kept.pop("categories", None)
    if "categories" in kept:
        levels = [v for v in _listed(kept["categories"]) if not means_missing(v, missing)]
        if kept.get("ignore_case"):
            seen = {folded(level): level for level in seen_levels(column)}
            levels = [*{folded(v): seen.get(folded(v), v) for v in levels}.values()]
        kept["categories"] = levels
    return kept


def _feature(name: str, column: Column, kind: Any) -> Feature:
    if kind == "continuous":
        return Feature(name, "continuous", written=column_notation(column))
    if kind == "categorical":
        return Feature(name, "categorical", categories=seen_levels(column, PROPOSED))
    levels = column.ordered or seen_levels(column)
    if kind == "ordinal" and column.ordered is None and any(isinstance(v, str) for v in levels):
        order = list(map(str, levels))
        raise column_error(
            name,
            "cannot be ordinal without its order. Name it, least first: "
            f"--kind {shlex.quote(f'{name}=ordinal:' + '<'.join(order))}, in Python "
            f"Feature('{name}', 'ordinal', categories={order}).",
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
        raise _unsettled(name, "mixes numbers and text.", "categorical")
    if isinstance(values, Coded):
        distinct = int(values.used.sum())
        way = text_notation(column) if distinct > 2 else None
        if way is not None and (way.example != PLAIN or distinct > TEXT_NUMBERS):
            return _feature(name, column, "continuous")
        _refuse_free_text(name, values, distinct)
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


def _refuse_running_numbers(name: str, column: Column, numbers: Floats) -> None:
    """Raises where numbers only count the rows, or a column named as a key has many of them."""
    rows = len(column.missing)
    if column.kind != "integer" or rows < ENOUGH:
        return
    if len(numbers) == rows and numbers[-1] - numbers[0] == rows - 1:
        raise _unsettled(name, "only counts the rows.", "number")
    if KEY.search(name) and len(numbers) > rows / 2:  # one may come again
        what = f"holds {len(numbers):,} different numbers in {rows:,} rows, as identifiers do."
        raise _unsettled(name, what, "number")


def _refuse_free_text(name: str, values: Coded, distinct: int) -> None:
    """Raises for amounts written in several ways, numbers beside other text, and free text."""
    counts = np.bincount(values.codes[values.codes >= 0], minlength=len(values.levels))
    found = likely([str(level) for level in values.seen])
    if found is not None and distinct > TEXT_NUMBERS:
        line = setting_line(name, "written", found.example)
        is_date, plain = found.example in DATES, notation("1,234.56")
        seen = sorted(map(str, values.seen), key=lambda text: plain.number(text) is not None)
        listed = _shown([*seen[: SHOWN - 1], *seen[-1:]], others=len(seen) > SHOWN)
        what = f"holds {'dates' if is_date else 'amounts'}, not all written alike ({listed}); in "
        kind = f"{'date' if is_date else 'number'}:{found.example}"
        raise ColumnError(name, f"{what}columns.toml: {line}.", kind, "drop")
    numbers = np.array([plain_number(str(level)) is not None for level in values.levels])
    rows, some = int(counts.sum()), int(counts[numbers].sum())
    if (numbers & (counts > 0)).sum() > TEXT_NUMBERS and 0.9 * rows <= some < rows:
        others = [values.levels[k] for k in np.flatnonzero(~numbers & (counts > 0))]
        what = f"holds numbers, but in {rows - some:,} rows other text ({_shown(others)}). "
        line = setting_line(name, "missing_values", others[:SHOWN])
        what += f"Correct those; if they mean missing, in columns.toml: {line}."
        raise _unsettled(name, what, "categorical")
    if rows >= ENOUGH and distinct > rows / 2:
        what = f"holds {distinct:,} different values in {rows:,} rows, as names or free text do."
        raise _unsettled(name, what, "categorical")


def _shown(values: Sequence[Level], others: bool = False) -> str:
    return ", ".join(map(repr, values[:SHOWN])) + ", …" * (others or len(values) > SHOWN)
