"""Numpy columns as a frame of the kind, order and dtypes that came in.

A dtype that cannot hold the values gives way to the next that can, and only then: a small integer
to a wider one, integers to floats, decimals to more digits, numbers to text. So a counterfactual of
30.5 is never cut to 30 because the instance's table happened to hold whole numbers.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints
from lapace.errors import InputError

FrameKind: TypeAlias = Literal["pandas", "polars", "pyarrow", "records", "array"]
Level: TypeAlias = str | int | float | bool

ARROW_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}
TRUTHS = {"True": True, "False": False}
# Families of dtypes, by how their text begins in any of the libraries.
FAMILIES = {
    "levels": "category:|dictionary|object",
    "decimal": "decimal",
    "truth": "bool",
    "number": "u?int|float|double|halffloat|sparse",
    "date": "date|timestamp",
}
DAY = 86_400_000_000  # microseconds
KEPT = 256  # levels of a column that are kept as an array, for the next frame


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
        """For each level whether any row has it."""
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
    """What a table was: enough to make another one like it.

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
        """A frame of this kind with exactly these columns, in this template's order.

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
        library = None if kind == "records" else importlib.import_module(kind)
        for name, dtype in zip(self.names, self.dtypes, strict=True):
            made[name] = _MAKERS[kind](library, dtype, columns[name])
        return _joined(library, made, ids, list(self.index) or ["id"])

    def holds_text(self, name: str) -> bool:
        """Whether a column is of text, or of objects or categories that may be.

        Examples:
            >>> Template("records", ("age", "home"), ("integer", "text")).holds_text("home")
            True
        """
        dtype = self.dtypes[self.names.index(name)] if name in self.names else "float64"
        return _family(dtype.removeprefix("arrow:")) in ("text", "levels")

    def select(self, names: Iterable[str]) -> Template:
        """The template with only some of the columns, still in its own order."""
        kept = set(names)
        pairs = [(n, t) for n, t in zip(self.names, self.dtypes, strict=True) if n in kept]
        shape = self.shape if len(pairs) == len(self.names) else None
        fewer, dtypes = tuple(n for n, _ in pairs), tuple(t for _, t in pairs)
        return replace(self, names=fewer, dtypes=dtypes, shape=shape)

    def with_decimals(self, names: Iterable[str]) -> Template:
        """The template in which some columns of whole numbers may hold others.

        Examples:
            >>> Template("pandas", ("age",), ("int64",)).with_decimals(["age"]).dtypes
            ('float64',)
        """
        wide = set(names)
        dtypes = (
            _spelt_like(dtype, "float64")
            if name in wide and re.fullmatch(r"(?i)u?int\d+", dtype)
            else dtype
            for name, dtype in zip(self.names, self.dtypes, strict=True)
        )
        return replace(self, dtypes=tuple(dtypes))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        lists = {name: list(getattr(self, name)) for name in ("names", "dtypes", "index")}
        return {"kind": self.kind, **lists, "shape": self.shape and list(self.shape)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Template:
        """The inverse of `to_json`."""
        shape = None if data["shape"] is None else tuple(data["shape"])
        index = tuple(data.get("index", ()))
        return cls(data["kind"], tuple(data["names"]), tuple(data["dtypes"]), shape, index)


def _joined(
    library: Any, columns: dict[str, Any], ids: Sequence[Any] | None, index: list[Any]
) -> Any:
    """Columns made by one library (None: lists) as its frame."""
    if library is None:
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if library.__name__ == "pyarrow":
        return library.table(columns)
    if library.__name__ == "polars":
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
    """A frame straight from numpy columns, for lapace's tables (labels, status, distances).

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
    """The numbers that levels are or spell; None where one of them does not."""
    if not isinstance(values, Coded):
        return np.asarray(values, dtype=np.float64)
    pairs = zip(values.levels, values.used, strict=True)
    try:
        numbers = [float(level) if used else np.nan for level, used in pairs]
    except ValueError:
        return None
    return np.array([*numbers, np.nan])[values.codes]


def as_coded(values: Values) -> Coded:
    """Numbers as codes of their distinct values, whole ones as integers."""
    if isinstance(values, Coded):
        return values
    present = ~np.isnan(values)
    levels, codes = np.unique(values[present], return_inverse=True)
    full = np.full(len(values), -1, dtype=np.int64)
    full[present] = codes
    return Coded(full, tuple(int(v) if v.is_integer() else v for v in levels.tolist()))


def as_texts(values: Values) -> Coded:
    """Every level as text."""
    coded = as_coded(values)
    return Coded(coded.codes, tuple(map(spelling, coded.levels)))


def spelling(level: Level) -> str:
    """A level as text, a whole number without its point."""
    if isinstance(level, float) and level.is_integer():
        return str(int(level))
    return str(level)


def as_truths(values: Values) -> Coded | None:
    """Every level as true or false; None where one is neither."""
    coded = as_coded(values)
    truths = [TRUTHS.get(v, v) if isinstance(v, str) else v for v in coded.levels]
    if any(used and v not in (0, 1) for v, used in zip(truths, coded.used, strict=True)):
        return None
    return Coded(coded.codes, tuple(v in (True, 1) for v in truths))


def _held(dtype: str, values: Values) -> tuple[str, str, Any]:
    """A column in its own type, or in the first of the wider ones that can hold it.

    Returns:
        The family of the type, its text, and the content: numbers, or `Coded` of what the type
        holds (truth values, `Decimal`s, texts; levels as they are for categories and objects).
    """
    family = _family(dtype)
    if family == "date" and not isinstance(values, Coded):
        return family, dtype, _moments(values)
    if family == "levels":
        return family, dtype, as_coded(values)
    if family == "decimal":
        decimals = _decimals(dtype, values)
        if decimals is not None:
            return family, *decimals
        family, dtype = "number", _spelt_like(dtype, "float64")
    if family == "truth":
        truths = as_truths(values)
        if truths is not None:
            return family, dtype, truths
        family, dtype = "number", _spelt_like(dtype, "int64")
    numbers = as_numbers(values) if family == "number" else None
    if numbers is not None:
        return family, _roomy(ARROW_FLOATS.get(dtype, dtype), numbers), numbers
    return "text", dtype, as_texts(values)


@lru_cache(maxsize=4096)
def _family(dtype: str) -> str:
    return next((f for f, begin in FAMILIES.items() if re.match(f"(?i){begin}", dtype)), "text")


def _moments(days: Floats) -> NDArray[np.datetime64]:
    """Days since 1970-01-01 as moments, NaT where missing."""
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
    """An integer type, or the first wider one that holds the numbers: 64 bits, then floats."""
    if (range_ := _integer_range(dtype)) is None or not len(numbers):
        return dtype
    gaps = np.isnan(numbers)
    present = numbers[~gaps] if gaps.any() else numbers
    low, high = present.min(initial=0.0), present.max(initial=0.0)
    if (present != np.rint(present)).any() or max(-low, high) >= 2.0**63:
        return _spelt_like(dtype, "float64")
    return dtype if range_[0] <= low and high <= range_[1] else _spelt_like(dtype, "int64")


@lru_cache(maxsize=256)
def _integer_range(dtype: str) -> tuple[int, int] | None:
    """The least and the greatest number of an integer type; None for any other type."""
    if not re.fullmatch(r"(?i)u?int\d+", dtype):
        return None
    limits = np.iinfo(dtype.lower())
    return int(limits.min), int(limits.max)


def _spelt_like(dtype: str, name: str) -> str:
    """A type's name, capitalised where another's is: polars' types and pandas' nullable ones."""
    return name.capitalize() if dtype[0].isupper() else name


def _decimals(dtype: str, values: Values) -> tuple[str, Coded] | None:
    """Decimals of the column's digits, or of as many as they need; None where no type has them.

    A float is the decimal it is printed as; one that misses the column's last digit by no more than
    rounding in 64 bits does (3 * 0.1) has that digit.
    """
    numbers = as_numbers(values)
    if numbers is None or np.isinf(numbers).any():
        return None
    name, _, digits = dtype.partition("(")
    *known, scale = (int(d) if d.isdigit() else 38 for d in re.findall(r"\d+|None", digits))
    most = {"decimal": 999, "decimal256": 76}.get(name, 38)
    coded, context = as_coded(numbers), Context(prec=999)
    exact = [Decimal(repr(level)) for level in coded.levels]
    rounded: list[Any] = [v.quantize(Decimal(1).scaleb(-scale), context=context) for v in exact]
    if any(abs(r - v) > abs(v) * Decimal("1e-12") for r, v in zip(rounded, exact, strict=True)):
        rounded, scale = exact, max(-int(v.as_tuple().exponent) for v in exact)
    precision = scale + max((v.adjusted() + 1 for v in rounded if v), default=0)
    if max(precision, scale) > most:
        return None
    precision = known[0] if known and precision <= known[0] else most
    return f"{name}({precision}, {scale})", Coded(coded.codes, tuple(rounded))


def _picked(coded: Coded) -> Ints:
    """Positions in the levels with one for missing put after them."""
    return np.where(coded.codes < 0, len(coded.levels), coded.codes)


# ------------------------------------------------------------------------------------------------
# One column of each kind of frame


def _pandas_column(pd: Any, dtype: str, values: Values) -> Any:
    if dtype.startswith("arrow:"):
        pa = importlib.import_module("pyarrow")
        array = _arrow_column(pa, dtype.removeprefix("arrow:"), values)
        return pd.arrays.ArrowExtensionArray(pa.chunked_array([array]))
    family, dtype, held = _held(dtype, values)
    if family == "date":
        return _pandas_dates(pd, dtype, held)
    if dtype.startswith("category:"):
        return _pandas_category(pd, dtype, held)
    if family == "number":
        return _pandas_numbers(pd, dtype, held)
    if dtype == "boolean" or dtype.startswith("str"):
        make = _pandas_levels if len(held.levels) <= KEPT else _pandas_levels.__wrapped__
        levels = make(dtype, held.levels, tuple(map(type, held.levels)))
        return levels.take(held.codes, allow_fill=True)
    if family == "truth" and (held.codes >= 0).all():
        return held.cells.astype(bool)
    # A bare array would be guessed to be `str`; texts where other things were expected should be.
    return pd.Series(held.cells.tolist(), dtype=None if family == "text" else object)


@lru_cache(maxsize=1024)
def _pandas_levels(dtype: str, levels: tuple[Level, ...], _: tuple[type, ...]) -> Any:
    """Levels as pandas' own array; their types are part of the key, as True is equal to 1."""
    pd = importlib.import_module("pandas")
    known = dtype if dtype == "boolean" else _pandas_text(pd, dtype)
    return pd.array([*levels], dtype=known)


def _pandas_dates(pd: Any, dtype: str, moments: NDArray[np.datetime64]) -> Any:
    if dtype in ("date", "datetime"):  # Python's own, in a column of objects
        return pd.Series(_python_dates(dtype, moments), dtype=object)
    unit, _, zone = dtype.partition("[")[2].rstrip("]").partition(", ")
    dates = pd.Series(pd.DatetimeIndex(moments)).dt.as_unit(unit)
    return dates.dt.tz_localize("UTC").dt.tz_convert(zone) if zone else dates


def _python_dates(dtype: str, moments: NDArray[np.datetime64]) -> list[Any]:
    days = dtype == "date" and _whole_days(moments)
    return list(moments.astype("datetime64[D]" if days else "datetime64[us]").tolist())


def _pandas_numbers(pd: Any, dtype: str, numbers: Floats) -> Any:
    if dtype.startswith("Sparse"):
        dense = np.dtype(re.split(r"[\[\],]", dtype)[1])
        whole = not np.issubdtype(dense, np.floating) and np.isnan(numbers).any()
        return pd.arrays.SparseArray(numbers if whole else numbers.astype(dense))
    if dtype[0].isupper():  # pandas' nullable numbers
        return pd.array(numbers, dtype=dtype)
    return numbers if "int" in dtype and np.isnan(numbers).any() else numbers.astype(dtype)


def _pandas_text(pd: Any, dtype: str) -> Any:
    """One of pandas' text types, `string[...]` with NA and `str[...]` with NaN for missing."""
    name, _, storage = dtype.rstrip("]").partition("[")
    if storage == "pyarrow" and not importlib.util.find_spec("pyarrow"):
        storage = "python"  # the table came from another machine
    if name == "str" and storage != "pyarrow_numpy":  # what pandas 2 called it
        return pd.StringDtype(storage, na_value=np.nan)
    return pd.StringDtype(storage) if storage else dtype


def _pandas_category(pd: Any, dtype: str, coded: Coded) -> Any:
    levels, ordered, inner = _category_parts(dtype)
    position = {v: i for i, v in enumerate(levels)}
    texts = {spelling(v): i for i, v in enumerate(levels)}
    codes = np.full(len(coded.levels) + 1, -1, dtype=np.int64)
    for k in np.flatnonzero(coded.used):
        level = coded.levels[k]
        found = position.get(level, texts.get(spelling(level)))
        # A level the template does not know is added, never lost.
        codes[k] = position.setdefault(level, len(position)) if found is None else found
    if len(position) == len(levels):
        return pd.Categorical.from_codes(codes[coded.codes], dtype=_category_type(dtype))
    categories = _categories(pd, list(position), inner)
    return pd.Categorical.from_codes(codes[coded.codes], categories=categories, ordered=ordered)


@lru_cache(maxsize=256)
def _category_parts(dtype: str) -> tuple[tuple[Level, ...], bool, str]:
    """The levels of a categorical, whether they are ordered, and their type."""
    levels, ordered, inner = json.loads(dtype.removeprefix("category:"))
    return tuple(levels), ordered, inner


@lru_cache(maxsize=256)
def _category_type(dtype: str) -> Any:
    pd = importlib.import_module("pandas")
    levels, ordered, inner = _category_parts(dtype)
    return pd.CategoricalDtype(_categories(pd, list(levels), inner), ordered)


def _categories(pd: Any, levels: list[Level], inner: str) -> Any:
    try:
        known = _pandas_text(pd, inner) if inner.startswith("str") else inner
        return pd.Index(levels, dtype=known)
    except (TypeError, ValueError):
        return pd.Index(levels, dtype=object)


def _polars_column(pl: Any, dtype: str, values: Values) -> Any:
    family, dtype, held = _held(dtype, values)
    if family == "number":
        return pl.Series(held).fill_nan(None).cast(getattr(pl, dtype))
    if family == "date":
        return _polars_dates(pl, dtype, held)
    known = _polars_type(pl, dtype, held)
    return pl.Series([*held.levels, None], dtype=known).gather(_picked(held))


def _polars_dates(pl: Any, dtype: str, moments: NDArray[np.datetime64]) -> Any:
    dates = pl.Series(moments)
    if dtype == "Date":
        return dates.cast(pl.Date) if _whole_days(moments) else dates
    unit = re.search("time_unit='(.s)'", dtype)
    zone = re.search("time_zone='([^']+)'", dtype)
    dates = dates.cast(pl.Datetime(unit[1] if unit else "us"))
    return dates.dt.replace_time_zone("UTC").dt.convert_time_zone(zone[1]) if zone else dates


def _polars_type(pl: Any, dtype: str, coded: Coded) -> Any:
    if dtype.startswith("Decimal"):
        return pl.Decimal(*map(int, re.findall(r"\d+", dtype)))
    if dtype.startswith("enum:"):
        levels = json.loads(dtype.removeprefix("enum:"))
        return pl.Enum(list(dict.fromkeys([*levels, *coded.levels])))
    if dtype.startswith("Categorical"):
        named = re.search(r'Categories\("(.*)"', dtype)
        if named and hasattr(pl, "Categories"):
            return pl.Categorical(pl.Categories(named[1]))
        return pl.Categorical("lexical") if "lexical" in dtype else pl.Categorical
    return pl.Boolean if dtype == "Boolean" else pl.String


def _arrow_column(pa: Any, dtype: str, values: Values) -> Any:
    family, dtype, held = _held(dtype, values)
    if dtype.startswith("dictionary"):
        return _arrow_dictionary(pa, dtype, held)
    if family == "number":
        gaps = np.isnan(held)
        return pa.array(np.where(gaps, 0.0, held).astype(dtype), mask=gaps)
    if family == "date":
        dates = pa.array(held, pa.timestamp("us"))
        if dtype.startswith("date"):
            return dates.cast(pa.date32()) if _whole_days(held) else dates
        unit, _, zone = dtype.partition("[")[2].rstrip("]").partition(", tz=")
        return dates.cast(pa.timestamp(unit, zone or None))
    known = pa.large_string() if "large" in dtype else pa.string()
    if family == "decimal":
        name, precision, scale = re.findall(r"\w+", dtype)
        known = getattr(pa, name)(int(precision), int(scale))
    array = pa.array([*held.levels, None], pa.bool_() if family == "truth" else known)
    array = array.take(pa.array(_picked(held)))
    return array.cast(pa.string_view()) if dtype == "string_view" else array


def _arrow_dictionary(pa: Any, dtype: str, coded: Coded) -> Any:
    """A dictionary of the levels in use, its values of the type they had, or else text."""
    kept = np.flatnonzero(coded.used)
    place = np.zeros(len(coded.levels) + 1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    inner, index = re.search(r"values=(\w+)", dtype), re.search(r"indices=(\w+)", dtype)
    narrow = _roomy(index[1] if index else "int32", np.arange(float(len(kept))))
    levels = Coded(np.arange(len(kept)), tuple(coded.levels[k] for k in kept))
    return pa.DictionaryArray.from_arrays(
        pa.array(place[coded.codes].astype(narrow), mask=coded.codes < 0),
        _arrow_column(pa, inner[1] if inner else "string", levels),
        ordered="ordered=1" in dtype,
    )


def _records_column(_: Any, dtype: str, values: Values) -> list[Any]:
    if dtype.startswith("decimal"):
        values = _held(dtype, values)[2]
    if _family(dtype) == "date" and not isinstance(values, Coded):
        return _python_dates(dtype, _moments(values))
    if isinstance(values, Coded):
        return list(values.cells)
    whole = "int" in dtype
    cells = [int(v) if whole and v.is_integer() else v for v in values.tolist()]
    return [None if v != v else v for v in cells]  # noqa: PLR0124  NaN


_MAKERS = {
    "pandas": _pandas_column,
    "polars": _polars_column,
    "pyarrow": _arrow_column,
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
