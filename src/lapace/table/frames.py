"""Numpy columns as a frame of the kind, order and dtypes that came in.

A dtype that cannot hold the values gives way to the next that can, and only then: a small integer
to a wider one, integers to floats, numbers to text. So a counterfactual of 30.5 is never cut to 30
because the instance's table happened to hold whole numbers.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints
from lapace.errors import InputError

__all__ = ["Coded", "FrameKind", "Level", "Template", "as_coded", "plain_frame", "spelling"]

FrameKind: TypeAlias = Literal["pandas", "polars", "pyarrow", "records", "array"]
Level: TypeAlias = str | int | float | bool

TRUTHS = {"True": True, "False": False}
ARROW_FLOATS = {"halffloat": "float32", "float": "float32", "double": "float64"}
# Families of dtypes, by how their text begins in any of the libraries.
FAMILIES = {
    "levels": "category:|dictionary|enum:|categorical|object",
    "truth": "bool",
    "number": "u?int|float|double|halffloat",
    "date": "date|timestamp",
}
OBJECTS = ("object", "bool")  # columns of pandas that hold None where a cell is missing
DAY = 86_400_000_000  # microseconds


@dataclass(frozen=True)
class Coded:
    """A column given as positions in a list of levels; -1 is missing.

    Examples:
        >>> Coded(np.array([1, 1, -1]), ("own", "rent")).seen
        ('rent',)
    """

    codes: Ints
    levels: tuple[Level, ...]

    def __getitem__(self, rows: Any) -> Coded:
        return Coded(self.codes[rows], self.levels)

    @property
    def used(self) -> Bools:
        """Whether any row has each level."""
        used = np.zeros(len(self.levels) + 1, dtype=bool)
        used[self.codes] = True
        return used[:-1]

    @property
    def seen(self) -> tuple[Level, ...]:
        """The levels that some row has."""
        return tuple(self.levels[k] for k in np.flatnonzero(self.used))

    @property
    def cells(self) -> NDArray[np.object_]:
        """The column as objects, None where missing."""
        return np.array([*self.levels, None], dtype=object)[self.codes]


Values: TypeAlias = Floats | Coded


@dataclass(frozen=True)
class Template:
    """A description of a table, enough to make another one like it.

    Attributes:
        kind: The library the frame belongs to, `array`, or `records` (a list of dicts).
        names: Columns in their order.
        dtypes: One text per column, nearly the library's own name of the type.
        shape: For arrays of more than two dimensions, the shape of one row.
        index: What its identifiers are called: the names of a pandas index, or of an id column;
            empty where the table has none.

    Examples:
        >>> template = Template("records", ("age",), ("integer",))
        >>> template.build({"age": np.array([31.0, 44.0])})
        [{'age': 31}, {'age': 44}]
    """

    kind: FrameKind
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shape: tuple[int, ...] | None = None
    index: tuple[str | int | None, ...] = ()

    def build(
        self,
        columns: Mapping[str, Values],
        *,
        after: Mapping[str, NDArray[Any]] | None = None,
        ids: Sequence[Any] | None = None,
    ) -> Any:
        """Returns a frame of this kind with exactly these columns, in this template's order.

        Args:
            columns: For every name a float64 array (NaN is missing) or a `Coded` column.
            after: Plain numpy columns to put after them; a name that the template has too gets
                the prefix `lapace_`. An array cannot hold them: it becomes a pandas frame, or
                records where pandas is not installed.
            ids: One per row: the index of a pandas frame, and in the other kinds of frame a column
                `id`, the first, if there are columns after.

        Examples:
            >>> template = Template("records", ("age",), ("integer",))
            >>> template.build({"age": np.array([31.0])}, after={"ok": np.array([True])})
            [{'age': 31, 'ok': True}]
        """
        kind = self.kind
        if kind == "array":
            if after is None:
                return _build_array(self, columns)
            kind = "pandas" if importlib.util.find_spec("pandas") else "records"
        made: dict[str, Any] = {}
        if ids is not None and after and kind != "pandas":
            made[self._free("id")] = list(ids)
        for name, dtype in zip(self.names, self.dtypes, strict=True):
            made[name] = _column(kind, dtype, columns[name])
        for name, values in (after or {}).items():
            listed = kind != "pandas" and (kind != "polars" or values.dtype == object)
            made[self._free(name)] = values.tolist() if listed else values.copy()
        if kind == "records":
            return [dict(zip(made, row, strict=True)) for row in zip(*made.values(), strict=True)]
        library = importlib.import_module(kind)
        if kind != "pandas":
            return library.table(made) if kind == "pyarrow" else library.DataFrame(made)
        numbers = all(isinstance(v, np.ndarray) and v.dtype == np.float64 for v in made.values())
        if made and numbers:
            # One block of numbers: a frame of many columns is slow to make and to read.
            frame = library.DataFrame(np.stack(list(made.values())).T, columns=list(made))
        else:
            frame = library.DataFrame(made, copy=False)
        if ids is not None:
            frame.index = library.Index(list(ids), tupleize_cols=len(self.index) > 1)
            frame.index.names = list(self.index) or ["id"]
        return frame

    def _free(self, name: str) -> str:
        """Returns a name for a column that is not one of the template's."""
        while name in self.names:
            name = f"lapace_{name}"
        return name

    def holds_text(self, name: str) -> bool:
        """Returns whether a column is of text, or of objects or categories that may be.

        Examples:
            >>> Template("records", ("age", "home"), ("integer", "text")).holds_text("home")
            True
        """
        dtype = self.dtypes[self.names.index(name)] if name in self.names else "float64"
        return _family(dtype) in ("text", "levels")

    def select(self, names: Iterable[str]) -> Template:
        """Returns the template with only some of the columns, still in its own order."""
        kept = set(names)
        pairs = [(n, t) for n, t in zip(self.names, self.dtypes, strict=True) if n in kept]
        shape = self.shape if len(pairs) == len(self.names) else None
        fewer, dtypes = tuple(n for n, _ in pairs), tuple(t for _, t in pairs)
        return replace(self, names=fewer, dtypes=dtypes, shape=shape)

    def with_floats(self, names: Iterable[str]) -> Template:
        """Returns the template with floats in some of the columns.

        Examples:
            >>> Template("pandas", ("age", "home"), ("int64", "str")).with_floats(["age"]).dtypes
            ('float64', 'str')
        """
        wide, number = set(names), "Float64" if self.kind == "polars" else "float64"
        pairs = zip(self.names, self.dtypes, strict=True)
        dtypes = tuple(number if name in wide else dtype for name, dtype in pairs)
        return replace(self, dtypes=dtypes)


def plain_frame(
    kind: FrameKind,
    columns: Mapping[str, NDArray[Any]],
    ids: Sequence[Any] | None = None,
    index: tuple[str | int | None, ...] = (),
) -> Any:
    """Returns a frame of numpy columns, for lapace's tables (labels, status, distances).

    An `array` user gets pandas if it is installed, else records: text does not fit in an array.

    Args:
        kind: The kind of frame.
        columns: The columns.
        ids: One identifier per row, if any, as for `Template.build`.
        index: What the identifiers are called.

    Examples:
        >>> plain_frame("records", {"instance": np.array([0, 1]), "ok": np.array([True, False])})
        [{'instance': 0, 'ok': True}, {'instance': 1, 'ok': False}]
    """
    return Template(kind, (), (), index=index).build({}, after=columns, ids=ids)


# ------------------------------------------------------------------------------------------------
# What a dtype can hold


def spelling(level: Level) -> str:
    """Returns a level as text, a whole number without its point."""
    if isinstance(level, float) and level.is_integer():
        return str(int(level))
    return str(level)


def as_coded(values: Values) -> Coded:
    """Returns numbers as codes of their distinct values, whole ones as integers."""
    if isinstance(values, Coded):
        return values
    present = ~np.isnan(values)
    levels, codes = np.unique(values[present], return_inverse=True)
    full = np.full(len(values), -1, dtype=np.int64)
    full[present] = codes
    return Coded(full, tuple(int(v) if v.is_integer() else v for v in levels.tolist()))


def _as_numbers(values: Values) -> Floats | None:
    """Returns the numbers that levels are or spell; None where one of them does not."""
    if not isinstance(values, Coded):
        return np.asarray(values, dtype=np.float64)
    pairs = zip(values.levels, values.used, strict=True)
    try:
        numbers = [float(level) if used else np.nan for level, used in pairs]
    except ValueError:
        return None
    return np.array([*numbers, np.nan])[values.codes]


def _as_truths(values: Values) -> Coded | None:
    """Returns a column with every level as true or false; None where one is neither."""
    coded = as_coded(values)
    truths = [TRUTHS.get(v, v) if isinstance(v, str) else v for v in coded.levels]
    if any(used and v not in (0, 1) for v, used in zip(truths, coded.used, strict=True)):
        return None
    return Coded(coded.codes, tuple(v in (True, 1) for v in truths))


@lru_cache(maxsize=4096)
def _family(dtype: str) -> str:
    own = dtype.removeprefix("arrow:")  # as files of older versions have it
    return next((f for f, begin in FAMILIES.items() if re.match(f"(?i){begin}", own)), "text")


def _roomy(dtype: str, numbers: Floats) -> str:
    """Returns a type of numbers, or the first wider one that holds them: 64 bits, then floats."""
    if not re.fullmatch(r"(?i)u?int\d+", dtype):
        return dtype
    limits = np.iinfo(dtype.lower())
    present = numbers[~np.isnan(numbers)]
    least, greatest = present.min(initial=0.0), present.max(initial=0.0)
    if (present != np.rint(present)).any() or max(-least, greatest) >= 2.0**63:
        return _spelt_like(dtype, "float64")
    fits = limits.min <= least and greatest <= limits.max
    return dtype if fits else _spelt_like(dtype, "int64")


def _spelt_like(dtype: str, name: str) -> str:
    """Returns a type's name, capitalised where another's is: polars' and pandas' nullable ones."""
    return name.capitalize() if dtype[0].isupper() else name


def _moments(days: Floats) -> NDArray[np.datetime64]:
    """Returns days since 1970-01-01 as moments, NaT where missing."""
    gaps = np.isnan(days)
    microseconds = np.rint(np.where(gaps, 0.0, days) * DAY).astype(np.int64)
    # A float holds a day to about a microsecond: whole seconds are meant.
    seconds = np.rint(microseconds / 1e6).astype(np.int64) * 1_000_000
    whole = np.where(np.abs(microseconds - seconds) < 1000, seconds, microseconds)
    moments: NDArray[np.datetime64] = whole.astype("datetime64[us]")
    moments[gaps] = np.datetime64("NaT")
    return moments


# ------------------------------------------------------------------------------------------------
# One column


def _column(kind: Any, dtype: str, values: Values) -> Any:
    """Returns a column of a frame in its own type, or in the first wider one that can hold it."""
    family, dtype = _family(dtype), dtype.removeprefix("arrow:")
    if family == "date" and not isinstance(values, Coded):
        return _dates(kind, dtype, _moments(values))
    if kind == "records":
        if isinstance(values, Coded):
            return list(values.cells)
        numbers = [int(v) if "int" in dtype and v.is_integer() else v for v in values.tolist()]
        return [None if v != v else v for v in numbers]  # noqa: PLR0124  NaN
    if family == "truth":
        truths = _as_truths(values)
        if truths is not None:
            return _levels(kind, dtype, truths)
        family, dtype = "number", _spelt_like(dtype, "int64")
    spelt = _as_numbers(values) if family == "number" else None
    if spelt is not None:
        return _numbers(kind, _roomy(ARROW_FLOATS.get(dtype, dtype), spelt), spelt)
    coded = as_coded(values)
    if family == "levels":
        return _levels(kind, dtype, coded)
    return _levels(kind, dtype, _as_texts(coded))


def _as_texts(coded: Coded) -> Coded:
    return Coded(coded.codes, tuple(map(spelling, coded.levels)))


def _numbers(kind: str, dtype: str, numbers: Floats) -> Any:
    gaps = np.isnan(numbers)
    if kind == "pandas":
        if dtype[0].isupper():  # pandas' nullable numbers
            return importlib.import_module("pandas").array(numbers, dtype=dtype)
        return numbers if "int" in dtype and gaps.any() else numbers.astype(dtype)
    library = importlib.import_module(kind)
    if kind == "polars":
        return library.Series(numbers).fill_nan(None).cast(getattr(library, dtype))
    return library.array(np.where(gaps, 0.0, numbers).astype(dtype), mask=gaps)


def _levels(kind: Any, dtype: str, coded: Coded) -> Any:
    """Returns a column of truth values, texts or categories: its few levels, taken by code."""
    library = importlib.import_module(kind)
    if kind == "pandas":
        own_text = "string" if library.__version__ < "3" else "str"  # pandas 2 has no `str`
        if dtype.startswith(("boolean", "category:", own_text)):
            types = tuple(map(type, coded.levels))  # True is equal to 1
            levels = _pandas_levels(dtype, coded.levels, types, coded.seen)
            return levels.take(coded.codes, allow_fill=True)
        if dtype == "bool" and (coded.codes >= 0).all():
            return coded.cells.astype(bool)
        # Texts where other things were expected are of pandas' own type for texts.
        return library.Series(coded.cells.tolist(), dtype=object if dtype in OBJECTS else None)
    if dtype.startswith("dictionary"):
        inner = re.search(r"values=(\w+)", dtype)
        every = Coded(np.arange(len(coded.levels)), coded.levels)
        levels = _column(kind, inner[1] if inner else "string", every)
        codes = library.array(coded.codes.astype(np.int32), mask=coded.codes < 0)
        return library.DictionaryArray.from_arrays(codes, levels, ordered="ordered=1" in dtype)
    by_family = {"truth": nw.Boolean(), "levels": nw.Categorical()}
    wanted: Any = by_family.get(_family(dtype), nw.String())
    if dtype.startswith("enum:"):
        known = json.loads(dtype.removeprefix("enum:"))
        wanted = nw.Enum([*dict.fromkeys([*known, *map(str, coded.seen)])])
    texts = coded if _family(dtype) == "truth" else _as_texts(coded)
    series = nw.new_series("", [*texts.levels, None], wanted, backend=kind)
    column = series[np.where(coded.codes < 0, len(coded.levels), coded.codes)].to_native()
    if kind == "polars":
        return column
    return column.combine_chunks().cast("large_string" if dtype == "large_string" else column.type)


@lru_cache(maxsize=1024)
def _pandas_levels(
    dtype: str, levels: tuple[Level, ...], _: tuple[type, ...], seen: tuple[Level, ...]
) -> Any:
    """Returns levels as pandas' own array, each once."""
    pandas = importlib.import_module("pandas")
    if not dtype.startswith("category:"):
        return pandas.array([*levels], dtype=dtype.partition("[")[0])
    known, ordered, inner = json.loads(dtype.removeprefix("category:"))
    spelt = {spelling(level): level for level in known}
    own = {level: spelt.get(spelling(level), level) for level in levels}
    # An unknown level that is seen is added, never lost.
    every = [*dict.fromkeys([*known, *(own[level] for level in seen)])]
    try:
        index = pandas.Index(every, dtype=inner.partition("[")[0])
    except (TypeError, ValueError):
        index = pandas.Index(every, dtype=object)
    values = [own[level] if own[level] in every else None for level in levels]
    return pandas.Categorical(values, categories=index, ordered=ordered)


def _dates(kind: Any, dtype: str, moments: NDArray[np.datetime64]) -> Any:
    """Returns moments as a column of dates, in the unit and the time zone that a type names."""
    present = moments[~np.isnat(moments)]
    whole_days = bool((present == present.astype("datetime64[D]")).all())
    if kind == "records" or dtype in ("date", "datetime"):  # Python's own
        days = dtype == "date" and whole_days
        dates = moments.astype("datetime64[D]" if days else "datetime64[us]").tolist()
        return (
            dates
            if kind == "records"
            else importlib.import_module(kind).Series(dates, dtype=object)
        )
    series = nw.new_series("", moments, backend=kind)
    if re.match("(?i)date(32|64)?($|\\[day)", dtype):
        return (series.cast(nw.Date()) if whole_days else series).to_native()
    unit = re.search(r"\b([mun]?s)\b", dtype)
    zone = re.search(r"(?:, |tz=|time_zone=')(?!tz|time)([\w/+:-]+)", dtype)
    series = series.cast(nw.Datetime(unit[1] if unit else "us"))  # type: ignore[arg-type]
    if zone and zone[1] != "None":
        series = series.dt.replace_time_zone("UTC").dt.convert_time_zone(zone[1])
    return series.to_native()


def _build_array(template: Template, columns: Mapping[str, Values]) -> Any:
    numbers = [_as_numbers(columns[name]) for name in template.names]
    if any(column is None for column in numbers):
        raise InputError("An array holds numbers only, and one of the columns is text.")
    flat = np.stack([column for column in numbers if column is not None], axis=1)  # (n, d)
    dtype = template.dtypes[0]
    if dtype == "bool":
        dtype = "bool" if np.isin(flat, (0.0, 1.0)).all() else "float64"
    elif "int" in dtype:
        dtype = "float64" if np.isnan(flat).any() else _roomy(dtype, flat)
    return flat.reshape(len(flat), *(template.shape or flat.shape[1:])).astype(dtype)
