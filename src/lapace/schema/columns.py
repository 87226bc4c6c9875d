"""A column of a table as cells, and the parts of a feature that come from its training column.

Cells are numbers, or positions in the levels of the feature. A row that cannot be used is named,
and costs no other row. Bounds, resolution, the change that is negligible, the rank map and a coarse
histogram come from the training column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from lapace.arrays import Floats
from lapace.errors import InputError, did_you_mean
from lapace.schema.features import Feature, column_error, on_lattice
from lapace.schema.notation import ISO_DATE, Notation, guess, plain_number
from lapace.schema.ranks import RARE, Knots, mid_ranks, usual_width
from lapace.table import Coded, Column, Level, as_coded, spelling

__all__ = [
    "column_notation",
    "fitted",
    "folded",
    "means_missing",
    "read_cells",
    "refuse_unreadable",
    "resolution_of",
    "seen_levels",
    "text_notation",
    "tidied",
]

NEGLIGIBLE = 0.01  # share of the interquartile range that a change may have and be negligible
CHOICES = 20  # distinct values under which no change of a number is negligible
EXACT = 2.0**53  # from here on a float does not hold every whole number
SHARED = 0.99  # share of the values that a resolution has to fit
PLAIN = "1234.56"  # the notation of plain numbers
UNREADABLE: Mapping[str, str] = {
    "duration": "times of day or durations. Turn it into a number (minutes, days), or drop it.",
    "other": "values that are neither numbers nor text. Convert or drop it.",
}
TRUTHS = {"true": True, "false": False}  # how text spells them, in any case
INFINITY = "an infinity", ". Use a number or none."
TOO_LARGE = (
    "a whole number of 2^53 or more",
    ", too large to be exact. Drop the column if it is an identifier, or rescale it.",
)
# A row that cannot be used, what its cell holds, and how the sentence about it ends.
Unusable: TypeAlias = tuple[int, str, str]


# ------------------------------------------------------------------------------------------------
# Cells


def refuse_unreadable(name: str, column: Column) -> None:
    """Raises for columns that are neither numbers nor categories."""
    if column.kind in UNREADABLE:
        raise column_error(name, f"holds {UNREADABLE[column.kind]}")


def read_cells(
    feature: Feature,
    column: Column,
    problems: dict[int, str],
    ids: Sequence[Any] | None = None,
) -> tuple[Feature, Floats]:
    """Returns the feature widened by levels it lacks, and the column's cells.

    It notes rows that cannot be used in `problems`, named by their id, or else by their position.
    """
    ids = range(len(column.missing)) if ids is None else ids
    refuse_unreadable(feature.name, column)
    column = tidied(column, feature.missing_values)
    if column.kind == "date" and not feature.is_date:
        kind = "holds numbers" if feature.kind == "continuous" else f"is {feature.kind}"
        raise column_error(feature.name, f"holds dates, and by the schema it {kind}.")
    wide, cells, unusable = (_numbers if feature.kind == "continuous" else _codes)(feature, column)
    for row, held, why in unusable:
        problems.setdefault(row, f"Column '{feature.name}' holds {held} in row {ids[row]}{why}")
    return wide, cells


def _numbers(feature: Feature, column: Column) -> tuple[Feature, Floats, list[Unusable]]:
    """Reads a column as numbers: text as the number it spells, blank text as missing."""
    values, unusable = column.values, list[Unusable]()
    if isinstance(values, Coded):
        levels, codes = values.levels, values.codes
        spelt = [*(_number_of(feature, level) for level in levels), np.nan]
        for row in np.flatnonzero(np.array([v is None for v in spelt])[codes]).tolist():
            kind = "date" if feature.is_date else "number"
            unusable.append((row, repr(levels[codes[row]]), f", not a {kind}."))
        values = np.array([np.nan if v is None else v for v in spelt])[codes]
    values = _without(values, feature.missing_values)  # £-999
    infinite = np.isinf(values)
    unusable += [(row, *INFINITY) for row in np.flatnonzero(infinite).tolist()]
    if column.kind == "integer":
        large = np.flatnonzero(np.abs(values) >= EXACT).tolist()
        unusable += [(row, *TOO_LARGE) for row in large]
    return feature, np.where(infinite, np.nan, values), unusable


def _number_of(feature: Feature, level: Level) -> float | None:
    """Returns the number a level is, or spells in the notation of its column."""
    return feature.number(level) if isinstance(level, str) else float(level)


def _codes(feature: Feature, column: Column) -> tuple[Feature, Floats, list[Unusable]]:
    """Reads a column as codes, and widens the feature by levels it lacks."""
    coded = as_coded(column.values)
    exact: dict[Level, int] = {level: k for k, level in enumerate(feature.levels)}

    def key(level: Level) -> Level:
        return folded(_canonical(level)) if feature.ignore_case else _canonical(level)

    alike: dict[Level, int] = {key(level): k for level, k in reversed(exact.items())}
    extra, refused = list(feature.extra), dict[int, tuple[str, str]]()
    codes = np.full(len(coded.levels) + 1, np.nan)
    for k in np.flatnonzero(coded.used).tolist():
        level = coded.levels[k]
        code = exact.get(level, alike.get(key(level)))
        if isinstance(level, float) and np.isinf(level) and not _all(feature, str):
            refused[k] = INFINITY
        elif code is not None:
            codes[k] = code
        elif _all(feature, str) or not (isinstance(level, str) and not level.strip()):
            new = _unseen(feature, level)  # other blank text is missing
            if new is None:
                truths = _all(feature, bool)
                refused[k] = (
                    repr(level),
                    ", neither true nor false." if truths else ", not a number.",
                )
                continue
            codes[k] = exact[new] = alike[key(new)] = len(feature.categories) + len(extra)
            extra.append(new)
    rows = np.flatnonzero(np.isin(coded.codes, list(refused))).tolist()
    unusable = [(row, *refused[int(coded.codes[row])]) for row in rows]
    wide = replace(feature, extra=tuple(extra)) if len(extra) > len(feature.extra) else feature
    return wide, codes[coded.codes], unusable


def _canonical(level: Level) -> Level:
    """Returns what a level has in common with others that mean the same: 1, 1.0, '1', '1.0'."""
    if not isinstance(level, str):
        return level
    number = plain_number(level)
    return TRUTHS.get(level.lower(), level if number is None or np.isnan(number) else number)


def _unseen(feature: Feature, level: Level) -> Level | None:
    """Returns a level unseen in training as this column would hold it; None if it could not."""
    if _all(feature, str):
        return spelling(level)
    value = _canonical(level)
    if _all(feature, bool):
        return bool(value) if value in (0, 1) else None
    if any(isinstance(v, str) for v in feature.categories):
        return level
    if isinstance(value, str):
        return None
    return int(value) if float(value).is_integer() else value


def _all(feature: Feature, kind: type) -> bool:
    return all(isinstance(v, kind) for v in feature.categories)


# ------------------------------------------------------------------------------------------------
# Training columns


def tidied(column: Column, missing_values: Sequence[Level], ignore_case: bool = False) -> Column:
    """Returns a column with values that mean missing emptied, and like categories joined.

    Args:
        column: The column.
        missing_values: Values that mean a missing one.
        ignore_case: Whether texts that differ only in capitals or spaces are joined, under the
            most frequent spelling.

    Examples:
        >>> from lapace.table import read
        >>> cells = ["Yes", "yes", "no", "Yes ", "Yes", "n/k"]
        >>> column = read([{"x": cell} for cell in cells]).columns["x"]
        >>> tidied(column, ["n/k"], ignore_case=True).values.cells.tolist()
        ['Yes', 'Yes', 'no', 'Yes', 'Yes', None]
    """
    values = column.values
    if not isinstance(values, Coded):
        return replace(column, values=_without(values, missing_values))
    gone = [means_missing(level, missing_values) for level in values.levels]
    codes = np.where(np.array([*gone, False])[values.codes], -1, values.codes)
    if ignore_case:
        counts = np.bincount(codes[codes >= 0], minlength=len(values.levels))
        first: dict[Level, int] = {}
        for k in np.argsort(-counts, kind="stable").tolist():
            first.setdefault(folded(values.levels[k]), k)
        codes = np.array([*(first[folded(level)] for level in values.levels), -1])[codes]
    return replace(column, values=Coded(codes, values.levels))


def means_missing(level: Level, missing_values: Sequence[Level]) -> bool:
    """Returns whether a level is one of those that mean missing, spaces around it apart."""
    text = spelling(level)
    return not {text, text.strip()}.isdisjoint(map(spelling, missing_values))


def folded(level: Level) -> Level:
    """Returns a text in small letters, with single spaces, none at its ends."""
    return " ".join(level.casefold().split()) if isinstance(level, str) else level


def _without(values: Floats, missing_values: Sequence[Level]) -> Floats:
    """Returns numbers, NaN where they mean a missing one."""
    marks = [plain_number(v) if isinstance(v, str) else float(v) for v in missing_values]
    known = [mark for mark in marks if mark is not None]
    return np.where(np.isin(values, known), np.nan, values) if known else values


def column_notation(column: Column) -> str:
    """Returns how a column writes its numbers; empty for plain numbers, or if none is found."""
    if column.kind == "date":
        assert not isinstance(column.values, Coded)
        seconds = np.rint(column.values[~column.missing] * 86400)
        whole_days, whole_minutes = ((seconds % unit == 0).all() for unit in (86400, 60))
        minutes = "2024-12-31 23:59"
        return ISO_DATE if whole_days else minutes if whole_minutes else f"{minutes}:59"
    notation = text_notation(column)
    return "" if notation is None or notation.example == PLAIN else notation.example


def text_notation(column: Column) -> Notation | None:
    """Returns the notation that reads every text of a column of text."""
    if column.kind != "text" or not isinstance(column.values, Coded):
        return None
    return guess([str(level) for level in column.values.seen])


def seen_levels(column: Column, most: int | None = None) -> tuple[Level, ...]:
    """Returns the levels seen, in order; where there are more than `most`, the most frequent."""
    coded = as_coded(column.values)
    counts = np.bincount(coded.codes[coded.codes >= 0], minlength=len(coded.levels))
    order = np.argsort(-counts, kind="stable")[: int((counts > 0).sum())][:most]
    kept = [coded.levels[k] for k in order]
    return tuple(sorted(kept, key=lambda v: (isinstance(v, str), v)))


def fitted(feature: Feature, column: Column) -> Feature:
    """Returns a feature with its bounds, lattice, ranks and histogram taken from the data."""
    text = isinstance(column.values, Coded) or column.kind == "date"
    if feature.kind == "continuous" and text and not feature.written:
        feature = replace(feature, written=column_notation(column))
    problems: dict[int, str] = {}
    wide, cells = read_cells(feature, column, problems)
    if problems:
        raise InputError(min(problems.items())[1])
    missing, present = bool(np.isnan(cells).any()), cells[~np.isnan(cells)]
    if feature.kind == "continuous":
        feature = _with_lattice(feature, present, whole=column.kind == "integer")
    else:
        present = present[present < len(feature.categories)]
        if not present.size:
            held = ", ".join(repr(v) for v in seen_levels(column, 3))
            sentence = f"holds none of the categories given for it; it holds {held}."
            raise column_error(feature.name, sentence)
    if feature.kind == "ordinal" and wide is not feature:
        raise _not_in_order(feature, wide.extra[len(feature.extra) :])
    if not feature.numeric:
        counts = np.bincount(present.astype(np.int64), minlength=len(feature.categories))
        shown = tuple(int(c) if c >= RARE else 0 for c in counts)
        return replace(feature, missing=missing, histogram=((), shown))
    knots = Knots.fit(np.clip(present, feature.lower, feature.upper))
    return replace(
        feature,
        missing=missing,
        ranks=mid_ranks(present),
        usual=usual_width(present),
        knots=knots,
        histogram=_histogram(present),
    )


def _not_in_order(feature: Feature, unknown: tuple[Level, ...]) -> InputError:
    """Returns the error about values that an ordinal's order lacks, or spells otherwise."""
    held = ", ".join(repr(v) for v in unknown[:3])
    more = f" and {len(unknown) - 3:,} more" if len(unknown) > 3 else ""
    which = "which is" if len(unknown) == 1 else "which are"
    near = did_you_mean(unknown[0], feature.categories)
    return column_error(
        feature.name,
        f"holds {held}{more}, {which} not among the categories given.{near} "
        "Name every value that the column holds.",
    )


def _with_lattice(feature: Feature, values: Floats, whole: bool) -> Feature:
    """Returns a continuous feature with its resolution, and its bounds on multiples of it."""
    step = feature.resolution or resolution_of(values)
    open_below, open_above = np.isnan(feature.lower), np.isnan(feature.upper)
    lower = float(values.min()) if open_below else feature.lower
    upper = float(values.max()) if open_above else feature.upper
    if not np.isfinite(upper - lower):
        sentence = f"reaches from {lower:g} to {upper:g}, too far to compute with. Rescale it."
        raise column_error(feature.name, sentence)
    feature = replace(
        feature,
        lower=lower,
        upper=upper,
        resolution=step,
        integer=feature.integer or whole or (step >= 1 and step % 1 == 0),
        tolerance=_tolerance(values, step) if np.isnan(feature.tolerance) else feature.tolerance,
    )
    if not step:
        return feature
    # A declared bound between two multiples gives way to the next one inside it. The 1e-9 is for
    # quotients such as 0.3 / 0.1, a little under 3.
    low, high = lower / step, upper / step
    low = np.rint(low) if open_below else np.ceil(low - 1e-9)
    high = np.rint(high) if open_above else np.floor(high + 1e-9)
    if low > high:
        sentence = f"has no multiple of {step:g} between {lower:g} and {upper:g}."
        raise column_error(feature.name, sentence)
    lower, upper = on_lattice(np.array([low, high]) * step, step).tolist()
    return replace(feature, lower=lower, upper=upper)


def resolution_of(values: Floats) -> float:
    """Returns the coarsest lattice that nearly all values lie on, of at most six decimals; else 0.

    One value in a hundred may lie off it: 33.333333 in a column of cents leaves the cents.
    """
    distinct, counts = np.unique(values, return_counts=True)
    largest = float(np.abs(distinct[[0, -1]]).max())
    for places in range(7):
        scale = 10.0**places
        if largest * scale >= (EXACT if places == 0 else EXACT / 8):
            return 0.0  # all floats as large as this are multiples
        scaled = distinct * scale
        whole = np.rint(scaled)
        # As far off as arithmetic leaves a decimal (0.1 + 0.2), not as far as a small number.
        fits = np.abs(scaled - whole) <= min(1e-3, 1e-13 * largest * scale)
        if fits.all() or _nearly_all(fits & (distinct != 0), counts * (distinct != 0)):
            # A few rows can share a divisor by chance; a power of ten is then the safer step.
            many = len(distinct) >= 10 or (len(values) >= 50 and len(distinct) >= 3)
            divisor = int(np.gcd.reduce(whole[fits].astype(np.int64))) if many else 1
            return float(f"{(divisor or 1) / scale:.12g}")
    return 0.0


def _nearly_all(fits: Any, counts: Any) -> bool:
    """Returns whether 99% of the rows and 90% of their values fit; zeros count for nothing."""
    enough = counts.sum() >= 100 and (counts[fits].sum() >= SHARED * counts.sum())
    return bool(enough and fits.sum() >= 0.9 * (counts > 0).sum())


def _tolerance(values: Floats, resolution: float) -> float:
    """Returns the change that is negligible: a hundredth of the range between the quartiles.

    By the ends, the few largest of a column of incomes would make a change of a month's pay look
    small. It is rounded down to whole steps, so that it is 0 where one step already matters (years,
    numbers of children). It is 0, too, where few values occur: these are choices, not amounts.
    """
    if len(np.unique(values)) < CHOICES:
        return 0.0
    low, high = np.quantile(values, [0.25, 0.75])
    most = NEGLIGIBLE * float(high - low)
    if not resolution:
        return float(f"{most:.3g}")
    return float(on_lattice(np.floor(most / resolution + 1e-9) * resolution, resolution))


def _histogram(values: Floats, bins: int = 16) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Returns edges and counts; a bin of few rows joins its neighbour: no row is singled out."""
    low, high = float(values.min()), float(values.max())
    # numpy's own edges refuse a range too narrow for its bins, such as two neighbouring floats.
    edges = np.linspace(low, high, bins + 1) if low < high else np.array([low - 0.5, low + 0.5])
    kept_edges, kept_counts, rows = [edges[0]], list[int](), 0
    for count, edge in zip(np.histogram(values, edges)[0].tolist(), edges[1:], strict=True):
        rows += count
        if rows >= RARE:
            kept_edges.append(edge)
            kept_counts.append(rows)
            rows = 0
    if not kept_counts:
        return (float(edges[0]), float(edges[-1])), (rows,)
    kept_counts[-1] += rows
    return tuple(map(float, [*kept_edges[:-1], edges[-1]])), tuple(kept_counts)
