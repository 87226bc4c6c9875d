"""Numpy columns as a frame of the kind, order and dtypes that came in.

A dtype that cannot hold the values gives way to the next that can, and only then: a small integer
to a wider one, integers to floats, numbers to text. So a counterfactual of
30.5 is never cut to 30 because the instance's table happened to hold whole numbers.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Any, Literal, TypeAlias

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints
from lapace.documents import plain, restore
from lapace.errors import InputError

FrameKind: TypeAlias = Literal["pandas", "polars", "pyarrow", "records", "array"]
Level: TypeAlias = str | int | float | bool

TRUTHS = {"True": True, "False": False}
FLOATS = {"halffloat": "float32", "float": "float32", "double": "float64"}  # as arrow calls them
# Families of dtypes, by how their text begins in any of the libraries. Decimals and sparse numbers
# are read as plain ones, and come back so.
FAMILIES = {
    "levels": "category:|dictionary|enum:|categorical|object",
    "truth": "bool",
    "number": "u?int|float|double|halffloat|decimal|sparse",
    "date": "date|timestamp",
}
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

    def in_use(self) -> Coded:
        """Returns the column with only the levels that some row has."""
        places = np.cumsum(self.used) - 1
        codes = np.append(places, -1)[self.codes]
        return Coded(codes, self.seen)

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
        before: Mapping[str, NDArray[Any]] | None = None,
        ids: Sequence[Any] | None = None,
    ) -> Any:
        """Returns a frame of this kind with exactly these columns, in this template's order.

        Args:
            columns: For every name a float64 array (NaN is missing) or a `Coded` column.
            before: Plain numpy columns to put before them; a name that the template has too gets
                the prefix `lapace_`. An array cannot hold them: it becomes a pandas frame, or
                records where pandas is not installed.
            ids: One per row: the index of a pandas frame, and in the other kinds of frame a column
                `id`, the first of those before.

        Examples:
            >>> template = Template("records", ("age",), ("integer",))
            >>> template.build({"age": np.array([31.0])}, before={"ok": np.array([True])})
            [{'ok': True, 'age': 31}]
        """
        kind = self.kind
        if kind == "array":
            if before is None:
                return _build_array(self, columns)
            kind = "pandas" if importlib.util.find_spec("pandas") else "records"
        plain = dict(before or {})
        if ids is not None and plain and kind != "pandas":
            plain = {"id": np.fromiter(ids, dtype=object, count=len(ids)), **plain}
        made: dict[str, Any] = {}
        for name, values in plain.items():
            while name in self.names:
                name = f"lapace_{name}"  # noqa: PLW2901
            listed = kind != "pandas" and (kind != "polars" or values.dtype == object)
            made[name] = values.tolist() if listed else values.copy()
        for name, dtype in zip(self.names, self.dtypes, strict=True):
            made[name] = _MAKERS[kind](dtype, columns[name])
        return _joined(kind, made, ids, list(self.index) or ["id"])

    def holds_text(self, name: str) -> bool:
        """Returns whether a column is of text, or of objects or categories that may be.

        Examples:
            >>> Template("records", ("age", "home"), ("integer", "text")).holds_text("home")
            True
        """
        dtype = self.dtypes[self.names.index(name)] if name in self.names else "float64"
        return _family(dtype.removeprefix("arrow:")) in ("text", "levels")

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

    def to_json(self) -> dict[str, Any]:
        """Returns the template as plain JSON values."""
        return plain(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Template:
        """Returns the template that `to_json` wrote."""
        return restore(cls, data, "the template")


def _joined(kind: str, columns: dict[str, Any], ids: Sequence[Any] | None, index: list[Any]) -> Any:
    """Returns columns as a frame of their kind."""
    if kind == "records":
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    library = _library(kind)
    if kind == "pyarrow":
        return library.table(columns)
    if kind == "polars":
        return library.DataFrame(columns)
    frame = library.DataFrame(columns, copy=False)
    if ids is not None:
        frame.index = library.Index(list(ids), tupleize_cols=len(index) > 1)
        frame.index.names = index
    return frame


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
    return Template(kind, (), (), index=index).build({}, before=columns, ids=ids)


# ------------------------------------------------------------------------------------------------
# What a dtype can hold


def as_numbers(values: Values) -> Floats | None:
    """Returns the numbers that levels are or spell; None where one of them does not."""
    if not isinstance(values, Coded):
        return np.asarray(values, dtype=np.float64)
    pairs = zip(values.levels, values.used, strict=True)
    try:
        numbers = [float(level) if used else np.nan for level, used in pairs]
    except ValueError:
        return None
    return np.array([*numbers, np.nan])[values.codes]


def as_coded(values: Values) -> Coded:
    """Returns numbers as codes of their distinct values, whole ones as integers."""
    if isinstance(values, Coded):
        return values
    present = ~np.isnan(values)
    levels, codes = np.unique(values[present], return_inverse=True)
    full = np.full(len(values), -1, dtype=np.int64)
    full[present] = codes
    return Coded(full, tuple(int(v) if v.is_integer() else v for v in levels.tolist()))


def as_texts(values: Values) -> Coded:
    """Returns a column with every level as text."""
    coded = as_coded(values)
    return Coded(coded.codes, tuple(map(spelling, coded.levels)))


def spelling(level: Level) -> str:
    """Returns a level as text, a whole number without its point."""
    if isinstance(level, float) and level.is_integer():
        return str(int(level))
    return str(level)


def as_truths(values: Values) -> Coded | None:
    """Returns a column with every level as true or false; None where one is neither."""
    coded = as_coded(values)
    truths = [TRUTHS.get(v, v) if isinstance(v, str) else v for v in coded.levels]
    if any(used and v not in (0, 1) for v, used in zip(truths, coded.used, strict=True)):
        return None
    return Coded(coded.codes, tuple(v in (True, 1) for v in truths))


def _held(dtype: str, values: Values) -> tuple[str, str, Any]:
    """Returns a column in its own type, or in the first of the wider ones that can hold it.

    Returns:
        The family of the type, its text, and the content: numbers, moments, or `Coded` of truth
        values, texts, or levels as they are for categories and objects.
    """
    family = _family(dtype)
    if family == "date" and not isinstance(values, Coded):
        return family, dtype, _moments(values)
    if family == "levels":
        return family, dtype, as_coded(values)
    if family == "truth":
        truths = as_truths(values)
        if truths is not None:
            return family, dtype, truths
        family, dtype = "number", _spelt_like(dtype, "int64")
    numbers = as_numbers(values) if family == "number" else None
    if numbers is not None:
        return family, _roomy(FLOATS.get(dtype, dtype), numbers), numbers
    return "text", dtype, as_texts(values)


@lru_cache(maxsize=4096)
def _family(dtype: str) -> str:
    return next((f for f, begin in FAMILIES.items() if re.match(f"(?i){begin}", dtype)), "text")


def _moments(days: Floats) -> NDArray[np.datetime64]:
    """Returns days since 1970-01-01 as moments, NaT where missing."""
    gaps = np.isnan(days)
    microseconds = np.rint(np.where(gaps, 0.0, days) * DAY).astype(np.int64)
    # A float holds a day to about a microsecond: whole seconds are meant.
    seconds = np.rint(microseconds / 1e6).astype(np.int64)
    near = np.abs(microseconds - seconds * 1_000_000) < 1000
    whole = np.where(near, seconds * 1_000_000, microseconds)
    moments: NDArray[np.datetime64] = whole.astype("datetime64[us]")
    moments[gaps] = np.datetime64("NaT")
    return moments


def _whole_days(moments: NDArray[np.datetime64]) -> bool:
    present = moments[~np.isnat(moments)]
    return bool((present == present.astype("datetime64[D]")).all())


def _roomy(dtype: str, numbers: Floats) -> str:
    """Returns a type of numbers, or the first wider one that holds them: 64 bits, then floats."""
    low, high = _integer_range(dtype) or (0, 0)
    if low == high:
        return dtype if re.match("(?i)float", dtype) else _spelt_like(dtype, "float64")
    present = numbers[~np.isnan(numbers)]
    least, greatest = present.min(initial=0.0), present.max(initial=0.0)
    if (present != np.rint(present)).any() or max(-least, greatest) >= 2.0**63:
        return _spelt_like(dtype, "float64")
    return dtype if low <= least and greatest <= high else _spelt_like(dtype, "int64")


@lru_cache(maxsize=256)
def _integer_range(dtype: str) -> tuple[int, int] | None:
    """Returns the least and the greatest number of an integer type; None for any other type."""
    if not re.fullmatch(r"(?i)u?int\d+", dtype):
        return None
    limits = np.iinfo(dtype.lower())
    return int(limits.min), int(limits.max)


def _spelt_like(dtype: str, name: str) -> str:
    """Returns a type's name, capitalised where another's is: polars' and pandas' nullable ones."""
    return name.capitalize() if dtype[0].isupper() and not dtype.startswith("Sparse") else name


# ------------------------------------------------------------------------------------------------
# One column of each kind of frame


@cache
def _library(kind: str) -> Any:
    return importlib.import_module(kind)


def _pandas_column(dtype: str, values: Values) -> Any:
    pd = _library("pandas")
    if dtype.startswith("arrow:"):
        array = _narwhals_column("pyarrow", dtype.removeprefix("arrow:"), values)
        return pd.arrays.ArrowExtensionArray(array)
    family, dtype, held = _held(dtype, values)
    if family == "date":
        if dtype in ("date", "datetime"):  # Python's own, in a column of objects
            return pd.Series(_python_dates(dtype, held), dtype=object)
        return _dates("pandas", dtype, held)
    if family == "number":
        if dtype[0].isupper():  # pandas' nullable numbers
            return pd.array(held, dtype=dtype)
        return held if "int" in dtype and np.isnan(held).any() else held.astype(dtype)
    if dtype == "boolean" or dtype.startswith(("str", "category:")):
        held = held.in_use() if dtype.startswith("category:") else held
        types = tuple(map(type, held.levels))  # True is equal to 1
        return _pandas_levels(dtype, held.levels, types).take(held.codes, allow_fill=True)
    if family == "truth" and (held.codes >= 0).all():
        return held.cells.astype(bool)
    # A bare array would be guessed to be `str`; texts where other things were expected should be.
    return pd.Series(held.cells.tolist(), dtype=None if family == "text" else object)


@lru_cache(maxsize=1024)
def _pandas_levels(dtype: str, levels: tuple[Level, ...], _: tuple[type, ...]) -> Any:
    """Returns levels as pandas' own array, each once."""
    pd = _library("pandas")
    if not dtype.startswith("category:"):
        return pd.array([*levels], dtype=_pandas_text(dtype))
    known, ordered, inner = json.loads(dtype.removeprefix("category:"))
    spelt = {spelling(level): level for level in known}
    own = [spelt.get(spelling(level), level) for level in levels]
    every = [*dict.fromkeys([*known, *own])]  # an unknown level is added, never lost
    try:
        index = pd.Index(every, dtype=_pandas_text(inner))
    except (TypeError, ValueError):
        index = pd.Index(every, dtype=object)
    return pd.Categorical(own, categories=index, ordered=ordered)


def _pandas_text(dtype: str) -> Any:
    """Returns pandas' text types, `string[...]` with NA and `str[...]` with NaN, or a name."""
    name, _, storage = dtype.rstrip("]").partition("[")
    if name not in ("str", "string") or not storage:
        return dtype
    pd = _library("pandas")
    if storage == "pyarrow" and not importlib.util.find_spec("pyarrow"):
        storage = "python"  # the table came from another machine
    if name == "str" and storage != "pyarrow_numpy":  # what pandas 2 called it
        return pd.StringDtype(storage, na_value=np.nan)
    return pd.StringDtype(storage)


def _narwhals_column(kind: Any, dtype: str, values: Values) -> Any:
    """Returns a column of a polars or pyarrow frame."""
    library = _library(kind)
    family, dtype, held = _held(dtype, values)
    if family == "date":
        return _dates(kind, dtype, held)
    if family == "number":
        if kind == "polars":
            return library.Series(held).fill_nan(None).cast(getattr(library, dtype))
        gaps = np.isnan(held)
        return library.chunked_array(
            [library.array(np.where(gaps, 0.0, held).astype(dtype), mask=gaps)]
        )
    if dtype.startswith("dictionary"):
        inner = re.search(r"values=(\w+)", dtype)
        every = Coded(np.arange(len(held.levels)), held.levels)
        levels = _narwhals_column(kind, inner[1] if inner else "string", every).combine_chunks()
        codes = library.array(held.codes.astype(np.int32), mask=held.codes < 0)
        of = library.DictionaryArray.from_arrays
        return library.chunked_array([of(codes, levels, ordered="ordered=1" in dtype)])
    kinds: Any = {"truth": nw.Boolean(), "levels": nw.Categorical()}.get(family, nw.String())
    if dtype.startswith("enum:"):
        known = json.loads(dtype.removeprefix("enum:"))
        kinds = nw.Enum([*dict.fromkeys([*known, *map(str, held.in_use().levels)])])
    levels = held.levels if family == "truth" else map(spelling, held.levels)
    series = nw.new_series("", [*levels, None], kinds, backend=kind)
    column = series[np.where(held.codes < 0, len(held.levels), held.codes)].to_native()
    return column.cast("large_string") if dtype == "large_string" else column


def _dates(kind: Any, dtype: str, moments: NDArray[np.datetime64]) -> Any:
    """Returns moments as a column of dates, in the unit and the time zone that a type names."""
    dates = nw.new_series("", moments, backend=kind)
    if re.match("(?i)date(32|64)?$", dtype) or dtype.startswith("date32"):
        return (dates.cast(nw.Date()) if _whole_days(moments) else dates).to_native()
    unit = re.search(r"\b([mun]?s)\b", dtype)
    zone = re.search(r"(?:, |tz=|time_zone=')(?!tz|time)([\w/+:-]+)", dtype)
    dates = dates.cast(nw.Datetime(unit[1] if unit else "us"))  # type: ignore[arg-type]
    if zone and zone[1] != "None":
        dates = dates.dt.replace_time_zone("UTC").dt.convert_time_zone(zone[1])
    return dates.to_native()


def _python_dates(dtype: str, moments: NDArray[np.datetime64]) -> list[Any]:
    days = dtype == "date" and _whole_days(moments)
    return list(moments.astype("datetime64[D]" if days else "datetime64[us]").tolist())


def _records_column(dtype: str, values: Values) -> list[Any]:
    if isinstance(values, Coded):
        return list(values.cells)
    if _family(dtype) == "date":
        return _python_dates(dtype, _moments(values))
    whole = "int" in dtype
    cells = [int(v) if whole and v.is_integer() else v for v in values.tolist()]
    return [None if v != v else v for v in cells]  # noqa: PLR0124  NaN


_MAKERS: Mapping[str, Callable[[str, Values], Any]] = {
    "pandas": _pandas_column,
    "polars": partial(_narwhals_column, "polars"),
    "pyarrow": partial(_narwhals_column, "pyarrow"),
    "records": _records_column,
}


def _build_array(template: Template, columns: Mapping[str, Values]) -> Any:
    numbers = [as_numbers(columns[name]) for name in template.names]
    if any(column is None for column in numbers):
        raise InputError("An array holds numbers only, and one of the columns is text.")
    flat = np.stack([column for column in numbers if column is not None], axis=1)  # (n, d)
    dtype = template.dtypes[0]
    if dtype == "bool":
        dtype = "bool" if np.isin(flat, (0.0, 1.0)).all() else "float64"
    elif "int" in dtype:
        dtype = "float64" if np.isnan(flat).any() else _roomy(dtype, flat)
    return flat.reshape(len(flat), *(template.shape or flat.shape[1:])).astype(dtype)
