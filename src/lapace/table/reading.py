"""Any table as numpy columns.

Missing is missing, however it is written: None, NaN, NA, NaT or null. A pandas index with a
name or of texts, or else a column named `id`, or else an index of numbers other than the default
one identifies the rows; it is kept as `Table.ids`. A frame that is filtered keeps its ids. The type
of an ordinary column is recorded in the `Template`; one of a rare type (decimals, arrow in pandas,
sparse or half-precision numbers) comes back as the plain type of the same content.
"""

from __future__ import annotations

import json
import re
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
from lapace.table.frames import DAY, Coded, Level, Template

__all__ = ["Column", "Table", "read"]

Kind: TypeAlias = Literal[
    "integer", "number", "boolean", "text", "mixed", "date", "duration", "other"
]

TYPES: dict[Kind, tuple[type, ...]] = {
    "boolean": (bool,),
    "integer": (Integral,),
    "number": (Real, Decimal),
    "text": (str,),
    "date": (date, np.datetime64),
    "duration": (time, timedelta, np.timedelta64),
}
# Types that come back as they are, by how their text begins.
ORDINARY = {
    "pandas": "(?i)u?int|float(32|64)|bool|str|category|object|datetime64",
    "polars": "U?Int|Float(32|64)|Boolean|String|Categorical|Date",
    "pyarrow": "u?int|float|double|bool|string$|large_string|dictionary|date32|timestamp",
}
# What the others come back as.
PLAIN = {
    "pandas": {"integer": "Int64", "number": "Float64", "boolean": "boolean", "text": "string"},
    "polars": {"integer": "Int64", "number": "Float64"},
    "pyarrow": {"integer": "int64", "number": "double", "date": "timestamp[us]"},
}


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
            the column named `id`, which is also among the columns, and goes before an index of
            numbers without a name; None where there is neither.

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

    def without(self, names: Iterable[str]) -> Table:
        """Returns the table less some columns.

        Examples:
            >>> read([{"age": 31, "job": "nurse"}]).without(["job"]).names
            ('age',)
        """
        gone = set(names)
        kept = {name: column for name, column in self.columns.items() if name not in gone}
        return replace(self, columns=kept, template=self.template.select(kept))

    def take(self, rows: Sequence[int]) -> Table:
        """Returns only some of the rows, by position.

        Examples:
            >>> read([{"age": 31}, {"age": 44}]).take([1]).columns["age"].values
            array([44.])
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
        id_column: The column that identifies the rows, where the table has one of that name; an
            empty text for none; by default as `Table.ids` says.

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
        return _read_records(data, "id" if id_column is None else id_column)
    try:
        frame = nw.from_native(data, eager_only=True)
    except TypeError:
        hints = {
            "LazyFrame": " Call its collect() first.",
            "Series": " For a single row write df.iloc[[0]], with two pairs of brackets.",
            "dict": " A single row goes in a list: [row]; columns go in a frame.",
        }
        hint = (
            " It is sparse: pass X.toarray()."
            if issparse(data)
            else hints.get(type(data).__name__, "")
        )
        raise InputError(
            f"A {type(data).__name__} is not a table. Pass a pandas, polars or pyarrow "
            f"frame, a numpy array, or a list of dicts.{hint}"
        ) from None
    except DuplicateError:
        names = list(getattr(data, "column_names", ()) or data.columns)
        twice = next(name for k, name in enumerate(names) if name in names[:k])
        raise InputError(f"Column '{twice}' is in the table twice. Rename one of them.") from None
    return _read_frame(frame, id_column)


def _read_frame(frame: nw.DataFrame[Any], id_column: str | None) -> Table:
    kind = frame.implementation.value
    if kind not in ("pandas", "polars", "pyarrow"):
        raise InputError(
            f"Tables of {kind} are not read. Convert it to pandas, polars or pyarrow first."
        )
    _check_names(frame.columns)
    columns = {name: _read_series(frame[name]) for name in frame.columns}
    dtypes = tuple(_dtype_text(kind, frame[n].to_native(), c) for n, c in columns.items())
    index, ids = None, None
    if kind == "pandas":
        index = frame.to_native().index
        if type(index).__name__ == "RangeIndex" and index.start == 0 and index.step == 1:
            index = None  # the numbers that every frame gets
    names: tuple[Any, ...] = ()
    own = "id" if id_column is None else id_column
    # Numbers without a name are what filtering leaves of the default index.
    deliberate = index is not None and (index.dtype.kind not in "iu" or index.name is not None)
    if own in columns and not (id_column is None and deliberate):
        ids, names = tuple(frame[own].to_list()), (own,)
    elif index is not None:
        plain = (n if isinstance(n, str | int | None) else str(n) for n in index.names)
        ids, names = tuple(index), tuple(plain)
    template = Template(kind, tuple(frame.columns), dtypes, index=names)
    return Table(columns, template, len(frame), ids)


def _check_names(names: Sequence[Any]) -> None:
    strange = [n for n in names if not isinstance(n, str)]
    if strange:
        raise InputError(
            f"Column names must be text, but one is {strange[0]!r}. Rename the columns first."
        )


def _dtype_text(kind: str, native: Any, column: Column) -> str:
    """Returns a column's type in its library's words; categoricals with their levels."""
    dtype = native.type if kind == "pyarrow" else native.dtype
    text = str(dtype)
    if text == "object" and column.kind == "date":
        return _date_text(native)
    if kind == "polars" and text.startswith("Enum"):
        return f"enum:{json.dumps(dtype.categories.to_list())}"
    if text == "category":
        levels, inner = [_plain(v) for v in dtype.categories], str(dtype.categories.dtype)
        # Levels JSON cannot hold (dates, intervals) are refused when the column is read.
        return "category:" + json.dumps([levels, bool(dtype.ordered), inner], default=str)
    if kind == "pandas" and text in ("str", "string"):
        return f"{text}[{dtype.storage}]"
    rare = "pyarrow]" in text or not re.match(ORDINARY[kind], text)
    return PLAIN[kind].get(column.kind, text) if rare else text


def _date_text(values: Iterable[Any]) -> str:
    """Returns the type of Python's own dates or moments."""
    moments = (datetime, np.datetime64)
    return "datetime" if any(isinstance(value, moments) for value in values) else "date"


# ------------------------------------------------------------------------------------------------
# One column


def _read_series(series: nw.Series[Any]) -> Column:
    native, dtype = series.to_native(), series.dtype
    if type(getattr(native, "dtype", None)).__name__ == "ArrowDtype":
        series = nw.from_native(native.array.__arrow_array__(), series_only=True)
        native, dtype = series.to_native(), series.dtype
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
    if dtype not in (nw.Categorical, nw.Enum):
        return _read_objects(series.to_list())
    column = _read_objects(series.to_list(), categories=True)
    arrow_type = getattr(native, "type", None)
    ordered = getattr(arrow_type, "ordered", dtype == nw.Enum)
    if ordered or (series.implementation.is_pandas() and native.cat.ordered):
        order = (v for v in series.cat.get_categories().to_list() if v is not None)
        return replace(column, ordered=tuple(map(_plain, order)))
    return column


def _read_objects(values: Iterable[Any], *, categories: bool = False) -> Column:
    """Reads Python objects one by one: all of one kind, or `mixed`.

    Args:
        values: The cells.
        categories: Numbers are categories, and stay `Coded`.
    """
    positions: dict[tuple[type, Any], int] = {}
    levels: list[Any] = []
    codes: list[int] = []
    for value in values:
        # True, 1 and 1.0 are equal, but not the same level.
        key = type(value), value if value.__hash__ else str(value)
        code = positions.get(key)
        if code is None:
            code = -1 if _is_missing(value) else len(levels)
            if code >= 0:
                positions[key] = code
                levels.append(_plain(value))
        codes.append(code)
    kinds = {_kind_of(level) for level in levels}
    if kinds == {"integer", "number"}:
        kinds = {"number"}
    kind: Kind = kinds.pop() if len(kinds) == 1 else ("mixed" if kinds else "text")
    coded = Coded(np.array(codes, dtype=np.int64), tuple(map(_level, levels)))
    if kind == "date":
        return Column(kind, np.array([*map(_day, levels), np.nan])[coded.codes])
    if kind in ("integer", "number") and not categories:
        return _numbers(kind, np.array([*map(_float, levels), np.nan])[coded.codes])
    return Column(kind, coded)


def _kind_of(value: Any) -> Kind:
    return next((kind for kind, types in TYPES.items() if isinstance(value, types)), "other")


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


def _days(series: nw.Series[Any]) -> Floats:
    """Returns dates as days since 1970-01-01, in UTC where they have a time zone."""
    gaps = series.is_null().to_numpy()
    days = np.full(len(gaps), np.nan)
    present = series.drop_nulls()
    if len(present):
        moments = present.cast(nw.Datetime("us")) if series.dtype == nw.Date else present
        days[~gaps] = moments.dt.timestamp("us").to_numpy().astype(np.int64) / DAY
    return days


def _day(moment: Any) -> float:
    """Returns a date or moment as days since 1970-01-01, in UTC where it has a time zone."""
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return float(np.datetime64(moment, "us").astype(np.int64)) / DAY


def _float(value: Any) -> float:
    """Returns a number in 64 bits; one too large is infinite, and is said to be so later."""
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, float | np.floating | Decimal):
        return bool(value != value)  # noqa: PLR0124  NaN is the value that differs from itself
    return type(value).__name__ in ("NAType", "NaTType")


def _plain(value: Any) -> Any:
    """Returns numpy's scalars as Python's own, so that they print and serialise plainly."""
    if isinstance(value, Decimal):
        return float(value)
    dated = isinstance(value, np.datetime64 | np.timedelta64)
    return value.item() if isinstance(value, np.generic) and not dated else value


def _level(value: Any) -> Any:
    """Returns a value that can be a level: another object is its text."""
    return str(value) if _kind_of(value) == "other" else value


# ------------------------------------------------------------------------------------------------
# Tables without a dataframe library


def _read_array(array: NDArray[Any]) -> Table:
    if array.ndim < 2 or array.dtype.kind not in "biuf":
        raise InputError(
            f"An array of shape {array.shape} and type {array.dtype} is not a table. Pass "
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
