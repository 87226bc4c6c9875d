"""Dataframes in and out.

Every table that comes in, pandas, polars, pyarrow, a numpy array or a list of records, becomes a
`Table` of plain numpy columns, and its `Template` records what it was, so that rows can leave as
the same kind of frame with the same columns, order and dtypes. No other module depends on which
dataframe library a user has.

Missing is missing, however it is written: None, NaN, NA, NaT or null. A pandas index other than the
default one, or else a column named `id`, identifies the rows; it is kept as `Table.ids`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.exceptions import DuplicateError
from numpy.typing import NDArray
from scipy.sparse import issparse

from lapace.arrays import Bools, Floats
from lapace.errors import InputError
from lapace.table.frames import DAY, Coded, Level, Template, as_coded, plain_frame, spelling

__all__ = [
    "Coded",
    "Column",
    "Level",
    "Table",
    "Template",
    "as_coded",
    "plain_frame",
    "read",
    "spelling",
]

Kind: TypeAlias = Literal[
    "integer", "number", "boolean", "text", "mixed", "date", "duration", "other"
]

TYPES: dict[Kind, tuple[type, ...]] = {
    "boolean": (bool,),
    "integer": (Integral,),
    "number": (Real,),
    "text": (str,),
    "date": (date, np.datetime64),
    "duration": (time, timedelta, np.timedelta64),
}
# What pandas calls object columns whose cells are of one kind and are compared by equality.
ALIKE = ("string", "boolean", "integer", "floating", "mixed-integer-float", "decimal", "empty")


@dataclass(frozen=True)
class Column:
    """One column as numpy sees it.

    Attributes:
        kind: What the cells are; the levels of a `mixed` column are of several kinds.
        values: float64 for numbers, and for dates as days since 1970-01-01 (NaN is missing);
            `Coded` for everything else.
        ordered: The levels, in order, of an ordered categorical.

    Examples:
        >>> Column("number", np.array([2.5, np.nan])).missing
        array([False,  True])
    """

    kind: Kind
    values: Floats | Coded
    ordered: tuple[Level, ...] | None = None

    @property
    def missing(self) -> Bools:
        """Where there is no value."""
        if isinstance(self.values, Coded):
            return self.values.codes < 0
        return np.isnan(self.values)


@dataclass(frozen=True)
class Table:
    """Columns by name, and what they came in.

    Attributes:
        columns: The columns.
        template: What the table was.
        rows: How many rows it has.
        ids: One identifier per row: the index of a pandas frame, unless it is the default one, or
            the column named `id`, which is also among the columns; None where there is neither.

    Examples:
        >>> table = read(np.array([[1.5, 0.0], [2.5, 1.0]]))
        >>> table.names, len(table)
        (('x0', 'x1'), 2)
        >>> read([{"id": "A7", "age": 31}]).ids
        ('A7',)
    """

    columns: Mapping[str, Column]
    template: Template
    rows: int
    ids: tuple[Any, ...] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return self.template.names

    def __len__(self) -> int:
        return self.rows

    @property
    def frame(self) -> Any:
        """A frame of the kind it came in, with these columns and rows."""
        ids = None if "id" in self.columns else self.ids
        return self.template.build({name: c.values for name, c in self.columns.items()}, ids=ids)

    def without(self, names: Iterable[str]) -> Table:
        """Returns the table less some columns.

        Examples:
            >>> read([{"age": 31, "job": "nurse"}]).without(["job"]).frame
            [{'age': 31}]
        """
        gone = set(names)
        kept = {name: column for name, column in self.columns.items() if name not in gone}
        return replace(self, columns=kept, template=self.template.select(kept))

    def take(self, rows: Sequence[int]) -> Table:
        """Returns only some of the rows, by position.

        Examples:
            >>> read([{"age": 31}, {"age": 44}]).take([1]).frame
            [{'age': 44}]
        """
        some = np.asarray(rows, dtype=np.int64)
        columns = {n: replace(c, values=c.values[some]) for n, c in self.columns.items()}
        ids = None if self.ids is None else tuple(self.ids[i] for i in some)
        return Table(columns, self.template, len(some), ids)


def read(data: Any, *, id_column: str | None = None) -> Table:
    """Reads any table as numpy columns.

    Args:
        data: A pandas, polars or pyarrow frame, a numpy array (rows, columns) or
            (rows, height, width), a list of dicts (a key one of them lacks is a missing value),
            or a `Table`, which is returned as it is.
        id_column: The column that identifies the rows, where the table has one of that name; by
            default the index of a pandas frame, or else a column named `id`.

    Examples:
        >>> table = read([{"age": 31, "job": "nurse"}, {"age": None, "job": "cook"}])
        >>> table.columns["age"].missing.tolist()
        [False, True]
    """
    if isinstance(data, Table):
        return data
    if isinstance(data, np.ndarray):
        return _read_array(data)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _read_records(data, id_column or "id")
    try:
        frame = nw.from_native(data, eager_only=True)
    except TypeError:
        hint = " Call its collect() first." if hasattr(data, "collect") else _one_row_hint(data)
        if issparse(data):
            raise InputError("Sparse input is not supported. Hand over X.toarray().") from None
        raise InputError(
            f"A {type(data).__name__} is not a table. Hand over a pandas, polars or pyarrow "
            f"frame, a numpy array, or a list of dicts.{hint}"
        ) from None
    except DuplicateError:
        names = list(getattr(data, "column_names", ()) or data.columns)
        twice = next(name for k, name in enumerate(names) if name in names[:k])
        raise InputError(f"Column '{twice}' is in the table twice. Rename one of them.") from None
    return _read_frame(frame, id_column)


def _one_row_hint(data: Any) -> str:
    """Returns what to write instead, where a single row was handed over."""
    if isinstance(data, Mapping):
        return " A single row goes in a list: [row]; columns go in a frame: pandas.DataFrame(…)."
    if type(data).__name__ == "Series":
        return " For a single row write df.iloc[[0]], with two pairs of brackets; a column is none."
    return ""


def _read_frame(frame: nw.DataFrame[Any], id_column: str | None) -> Table:
    kind = frame.implementation.value
    if kind not in ("pandas", "polars", "pyarrow"):
        raise InputError(
            f"Tables of {kind} are not read. Convert it to pandas, polars or pyarrow first."
        )
    _check_names(frame.columns)
    series = {name: frame[name] for name in frame.columns}
    columns = {name: _read_series(each) for name, each in series.items()}
    dtypes = tuple(_dtype_text(kind, series[n].to_native(), columns[n]) for n in series)
    index, ids = None, None
    if kind == "pandas":
        index = frame.to_native().index
        if type(index).__name__ == "RangeIndex" and index.start == 0 and index.step == 1:
            index = None  # the numbers that every frame gets
    names: tuple[Any, ...] = ()
    if index is not None and id_column not in columns:
        plain = (n if isinstance(n, str | int | None) else str(n) for n in index.names)
        ids, names = tuple(index), tuple(plain)
    elif (id_column := id_column or "id") in columns:
        ids, names = tuple(frame[id_column].to_list()), (id_column,)
    template = Template(kind, tuple(frame.columns), dtypes, index=names)
    return Table(columns, template, len(frame), ids)


def _check_names(names: Sequence[Any]) -> None:
    strange = [n for n in names if not isinstance(n, str)]
    if strange:
        raise InputError(
            f"Column names must be text, but one is {strange[0]!r}. Rename the columns first."
        )


# ------------------------------------------------------------------------------------------------
# One column


def _read_series(series: nw.Series[Any]) -> Column:
    native = series.to_native()
    plain = getattr(native, "dtype", None)  # numpy's for most columns of most frames of pandas
    if isinstance(plain, np.dtype) and (plain.kind in "iu" or plain == np.float64):
        kind: Kind = "number" if plain.kind == "f" else "integer"
        return _numbers(kind, native.to_numpy(dtype=np.float64))
    dtype = series.dtype
    if dtype.is_numeric():
        try:
            values = np.asarray(series.cast(nw.Float64).to_numpy(), dtype=np.float64)
        except ValueError:  # pyarrow refuses integers that 64-bit floats have not exactly
            values = np.array([np.nan if v is None else v for v in series.to_list()], dtype=float)
        if dtype == nw.Float32:
            values = _as_written(values)
        return _numbers("integer" if dtype.is_integer() else "number", values)
    if dtype in (nw.Date, nw.Datetime):
        return Column("date", _days(series))
    if dtype.is_temporal() or dtype.is_nested():
        codes = np.where(series.is_null().to_numpy(), -1, 0).astype(np.int64)
        return Column("duration" if dtype.is_temporal() else "other", Coded(codes, ("",)))
    return _read_pandas(native) if series.implementation.is_pandas() else _read_levels(series)


def _days(series: nw.Series[Any]) -> Floats:
    """Returns dates as days since 1970-01-01, in UTC where they have a time zone."""
    gaps = series.is_null().to_numpy()
    days = np.full(len(gaps), np.nan)
    present = series.drop_nulls()
    if len(present):
        moments = present.cast(nw.Datetime("us")) if series.dtype == nw.Date else present
        days[~gaps] = moments.dt.timestamp("us").to_numpy().astype(np.int64) / DAY
    return days


def _numbers(kind: Kind, values: Floats) -> Column:
    return Column(kind, values + 0.0)  # -0.0 is 0.0


def _as_written(values: Floats) -> Floats:
    """Returns numbers of 32 bits as the decimals they were written as: 0.1, not 0.10000000149.

    That is the shortest decimal, of at most six places, that is the same 32-bit number.
    """
    short, written = values.astype(np.float32), values
    for places in reversed(range(7)):
        rounded = np.round(values, places)
        written = np.where(rounded.astype(np.float32) == short, rounded, written)
    return written


def _of_levels(codes: NDArray[Any], levels: Iterable[Any]) -> Column:
    """Returns codes of distinct levels; where all are numbers, the numbers themselves."""
    coded = Coded(codes.astype(np.int64), tuple(_plain(v) for v in levels))
    kind = _common_kind(coded.levels)
    if kind in ("integer", "number"):
        return _numbers(kind, np.array([*map(_float, coded.levels), np.nan])[coded.codes])
    if kind == "date":
        return Column(kind, np.array([*map(_day, coded.levels), np.nan])[coded.codes])
    return Column(kind, coded)


def _day(moment: Any) -> float:
    """Returns a date or moment as days since 1970-01-01, in UTC where it has a time zone."""
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return float(np.datetime64(moment, "us").astype(np.int64)) / DAY


def _read_pandas(native: Any) -> Column:
    pd = importlib.import_module("pandas")
    dtype = native.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        levels = tuple(_plain(v) for v in dtype.categories)
        coded = Coded(native.cat.codes.to_numpy().astype(np.int64), levels)
        if _common_kind(levels) == "date":
            return _of_levels(coded.codes, levels)
        return Column(_common_kind(levels), coded, levels if dtype.ordered else None)
    if isinstance(dtype, pd.ArrowDtype):
        return _read_series(nw.from_native(native.array.__arrow_array__(), series_only=True))
    objects = pd.api.types.is_object_dtype(dtype)
    if objects and pd.api.types.infer_dtype(native, skipna=True) not in ALIKE:
        return _read_objects(native.to_numpy())
    return _of_levels(*pd.factorize(native.to_numpy() if dtype.kind == "f" else native))


def _read_levels(series: nw.Series[Any]) -> Column:
    """Reads texts, truth values and categories of a polars or pyarrow frame."""
    dtype, arrow_type = series.dtype, getattr(series.to_native(), "type", None)
    if dtype == nw.Object:
        return _read_objects(series.to_list())
    if str(arrow_type) == "string_view":  # which pyarrow cannot filter
        series = series.cast(nw.String)
    if dtype not in (nw.Categorical, nw.Enum):
        return _of_levels(*_factorize(series))
    order = None
    if dtype == nw.Enum or getattr(arrow_type, "ordered", False):
        order = tuple(v for v in series.cat.get_categories().to_list() if v is not None)
    if arrow_type is None:
        codes, levels = _factorize(series.cast(nw.String))
    else:  # a dictionary's values may be of any type, and null may be one of them
        values = series.to_native().cast(arrow_type.value_type)
        codes, levels = _factorize(nw.from_native(values, series_only=True))
    return Column(_common_kind(levels), Coded(codes, tuple(map(_plain, levels))), order)


def _factorize(series: nw.Series[Any]) -> tuple[NDArray[np.int64], list[Any]]:
    """Returns positions in the list of distinct values (-1 is missing), and that list."""
    levels = series.drop_nulls().unique(maintain_order=True).to_list()
    if not levels:
        return np.full(len(series), -1, dtype=np.int64), []
    codes = series.replace_strict(levels, list(range(len(levels))), return_dtype=nw.Int64)
    return codes.fill_null(-1).to_numpy().astype(np.int64), levels


def _read_objects(values: Sequence[Any] | NDArray[Any]) -> Column:
    """Reads Python objects one by one: all of one kind, or `mixed`."""
    positions: dict[tuple[type, Any], int] = {}
    codes = np.full(len(values), -1, dtype=np.int64)
    for i, value in enumerate(values):
        if not _is_missing(value):
            scalar = np.isscalar(value) or isinstance(value, Decimal | date | time | timedelta)
            plain = _plain(value) if scalar else str(value)
            # True, 1 and 1.0 are equal, but not the same level.
            key = type(plain) if scalar else object, plain
            codes[i] = positions.setdefault(key, len(positions))
    levels, others = [plain for _, plain in positions], [kind is object for kind, _ in positions]
    if any(others):
        return Column("other" if all(others) else "mixed", Coded(codes, tuple(levels)))
    return _of_levels(codes, levels)


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, float | np.floating | Decimal):
        return bool(value != value)  # noqa: PLR0124  NaN is the value that differs from itself
    return type(value).__name__ in ("NAType", "NaTType")


def _common_kind(levels: Iterable[Any]) -> Kind:
    kinds = {_kind_of(v) for v in levels}
    if kinds == {"integer", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else ("mixed" if kinds else "text")


def _kind_of(value: Any) -> Kind:
    return next((kind for kind, types in TYPES.items() if isinstance(value, types)), "other")


def _plain(value: Any) -> Any:
    """Returns numpy's scalars as Python's own, so that they print and serialise plainly."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, np.datetime64 | np.timedelta64):
        return value
    return value.item() if isinstance(value, np.generic) else value


def _float(value: Any) -> float:
    """Returns a number in 64 bits; one too large is infinite, and is said to be so later."""
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf


# ------------------------------------------------------------------------------------------------
# Tables without a dataframe library


def _read_array(array: NDArray[Any]) -> Table:
    if array.ndim < 2 or array.dtype.kind not in "biuf":
        raise InputError(
            f"An array of shape {array.shape} and type {array.dtype} is not a table. Hand over "
            "numbers as (rows, columns) or (rows, height, width)."
        )
    width = int(np.prod(array.shape[1:]))
    flat = array.reshape(len(array), width).astype(np.float64)  # (n, d)
    if isinstance(flat, np.ma.MaskedArray):
        flat = flat.filled(np.nan)
    if array.dtype == np.float32 and array.ndim == 2:  # pixels were never written as decimals
        flat = _as_written(flat)
    names = tuple(f"x{i}" for i in range(width))
    kind: Kind = "number" if array.dtype.kind == "f" else "integer"
    columns = {n: _numbers(kind, flat[:, i]) for i, n in enumerate(names)}
    shape = tuple(map(int, array.shape[1:])) if array.ndim > 2 else None
    template = Template("array", names, (str(array.dtype),) * width, shape)
    return Table(columns, template, len(array))


def _read_records(records: Sequence[Any], id_column: str) -> Table:
    names: dict[Any, None] = {}
    for i, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise InputError(f"Record {i} is a {type(record).__name__}, not a dict of columns.")
        names.update(dict.fromkeys(record))
    _check_names(list(names))
    cells = {name: [r.get(name) for r in records] for name in names}
    columns = {name: _read_objects(values) for name, values in cells.items()}
    dtypes = tuple(
        _date_text(cells[name]) if column.kind == "date" else column.kind
        for name, column in columns.items()
    )
    ids = tuple(cells[id_column]) if id_column in cells else None
    index = () if ids is None else (id_column,)
    template = Template("records", tuple(names), dtypes, index=index)
    return Table(columns, template, len(records), ids)


# ------------------------------------------------------------------------------------------------
# What it was


def _dtype_text(kind: str, native: Any, column: Column) -> str:
    """Returns a column's type in its library's words; categoricals with their levels."""
    if kind == "pyarrow":
        return str(native.type)
    if kind == "polars":
        enum = str(native.dtype).startswith("Enum")
        levels = native.dtype.categories.to_list() if enum else ()
        return f"enum:{json.dumps(levels)}" if enum else str(native.dtype)
    if native.dtype == object and column.kind == "date":
        return _date_text(native)
    return _pandas_text(importlib.import_module("pandas"), native.dtype)


def _date_text(values: Iterable[Any]) -> str:
    """Returns the type of Python's own dates or moments."""
    moments = (datetime, np.datetime64)
    return "datetime" if any(isinstance(value, moments) for value in values) else "date"


def _pandas_text(pd: Any, dtype: Any) -> str:
    if isinstance(dtype, pd.CategoricalDtype):
        levels = [_plain(v) for v in dtype.categories]
        inner = _pandas_text(pd, dtype.categories.dtype)
        # Levels JSON cannot hold (dates, intervals) are refused when the column is read.
        return "category:" + json.dumps([levels, bool(dtype.ordered), inner], default=str)
    if isinstance(dtype, pd.ArrowDtype):
        return f"arrow:{dtype.pyarrow_dtype}"
    if isinstance(dtype, pd.StringDtype):
        name = "string" if dtype.na_value is pd.NA else "str"
        return f"{name}[{dtype.storage}]"
    return str(dtype)
