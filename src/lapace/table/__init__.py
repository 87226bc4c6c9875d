"""The one door for dataframes.

Every table that comes in, pandas, polars, pyarrow, a numpy array or a list of records, becomes a
`Table` of plain numpy columns, and its `Template` remembers what it was, so that rows can leave as
the same kind of frame with the same columns, order and dtypes. Nothing else in the library knows
which dataframe library a user has.

Missing is missing, however it is written: None, NaN, NA, NaT or null. A frame's index is not data
and is left behind.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.exceptions import DuplicateError
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats
from lapace.errors import InputError
from lapace.table.files import (
    read_bytes,
    read_file,
    read_json,
    write_bytes,
    write_file,
    write_json,
    write_whole,
)
from lapace.table.frames import Coded, Level, Template, plain_frame, spelling

__all__ = [
    "Coded",
    "Column",
    "Level",
    "Table",
    "Template",
    "plain_frame",
    "read",
    "read_bytes",
    "read_file",
    "read_json",
    "spelling",
    "write_bytes",
    "write_file",
    "write_json",
    "write_whole",
]

Kind: TypeAlias = Literal["integer", "number", "boolean", "text", "mixed", "date", "other"]

# What pandas calls object columns that hold one kind of thing and can be told apart by equality.
ALIKE = ("string", "boolean", "integer", "floating", "mixed-integer-float", "decimal", "empty")


@dataclass(frozen=True)
class Column:
    """One column as numpy sees it.

    Attributes:
        kind: What the cells are; `mixed` columns have to be looked at level by level.
        values: float64 for numbers (NaN is missing), `Coded` for everything else.
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

    def take(self, rows: NDArray[np.int64]) -> Column:
        """Only some of the cells, by position."""
        values = self.values
        if isinstance(values, Coded):
            return Column(self.kind, Coded(values.codes[rows], values.levels), self.ordered)
        return Column(self.kind, values[rows], self.ordered)


@dataclass(frozen=True)
class Table:
    """Columns by name, and what they came in.

    Examples:
        >>> table = read(np.array([[1.5, 0.0], [2.5, 1.0]]))
        >>> table.names, len(table)
        (('x0', 'x1'), 2)
    """

    columns: Mapping[str, Column]
    template: Template
    rows: int

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return self.template.names

    def __len__(self) -> int:
        return self.rows

    @property
    def frame(self) -> Any:
        """The kind of frame it came in, with these columns and rows."""
        return self.template.build({name: c.values for name, c in self.columns.items()})

    def without(self, names: Iterable[str]) -> Table:
        """The table less some columns.

        Examples:
            >>> read([{"age": 31, "job": "nurse"}]).without(["job"]).frame
            [{'age': 31}]
        """
        gone = set(names)
        kept = {name: column for name, column in self.columns.items() if name not in gone}
        return Table(kept, self.template.select(kept), self.rows)

    def take(self, rows: Sequence[int]) -> Table:
        """Only some of the rows, by position.

        Examples:
            >>> read([{"age": 31}, {"age": 44}]).take([1]).frame
            [{'age': 44}]
        """
        some = np.asarray(rows, dtype=np.int64)
        columns = {name: column.take(some) for name, column in self.columns.items()}
        return Table(columns, self.template, len(some))


def read(data: Any) -> Table:
    """Any table as numpy columns.

    Args:
        data: A pandas, polars or pyarrow frame, a numpy array (rows, columns) or
            (rows, height, width), a list of dicts (a key one of them lacks is a missing value),
            or a `Table`, which is returned as it is.

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
        return _read_records(data)
    try:
        frame = nw.from_native(data, eager_only=True)
    except TypeError:
        hint = " Call its collect() first." if hasattr(data, "collect") else ""
        raise InputError(
            f"A {type(data).__name__} is not a table. Hand over a pandas, polars or pyarrow "
            f"frame, a numpy array, or a list of dicts.{hint}"
        ) from None
    except DuplicateError:
        names = list(getattr(data, "column_names", ()) or data.columns)
        twice = next(name for k, name in enumerate(names) if name in names[:k])
        raise InputError(f"Column '{twice}' is in the table twice. Rename one of them.") from None
    return _read_frame(frame)


def _read_frame(frame: nw.DataFrame[Any]) -> Table:
    kind = frame.implementation.value
    if kind not in ("pandas", "polars", "pyarrow"):
        raise InputError(
            f"Tables of {kind} are not read. Convert it to pandas, polars or pyarrow first."
        )
    _check_names(frame.columns)
    columns = {name: _read_series(frame[name]) for name in frame.columns}
    dtypes = tuple(_dtype_text(kind, frame[name].to_native()) for name in frame.columns)
    return Table(columns, Template(kind, tuple(frame.columns), dtypes), len(frame))


def _check_names(names: Sequence[Any]) -> None:
    strange = [n for n in names if not isinstance(n, str)]
    if strange:
        raise InputError(
            f"Column names must be text, but one is {strange[0]!r}. Rename the columns first."
        )


# ------------------------------------------------------------------------------------------------
# One column


def _read_series(series: nw.Series[Any]) -> Column:
    dtype = series.dtype
    if dtype.is_numeric():
        if dtype == nw.Decimal:  # pyarrow's cast of decimals to floats is off by a bit: 0.35
            series = series.cast(nw.String)
        values = np.asarray(series.cast(nw.Float64).to_numpy(), dtype=np.float64)
        if dtype == nw.Float32:
            values = _as_written(values)
        return _numbers("integer" if dtype.is_integer() else "number", values)
    if dtype.is_temporal() or dtype.is_nested():
        codes = np.where(series.is_null().to_numpy(), -1, 0).astype(np.int64)
        return Column("date" if dtype.is_temporal() else "other", Coded(codes, ("",)))
    native = series.to_native()
    library = series.implementation.value
    if library == "pandas":
        return _read_pandas(native)
    if library == "polars":
        return _read_polars(native, dtype)
    return _read_arrow(native)


def _numbers(kind: Kind, values: Floats) -> Column:
    return Column(kind, values + 0.0)  # -0.0 is 0.0


def _as_written(values: Floats) -> Floats:
    """Numbers that came from 32 bits as an instance wrote them: 0.1, not 0.10000000149011612.

    The shortest decimal, of at most six places, that is the same 32-bit number.
    """
    short = values.astype(np.float32)
    written, open_ = values.copy(), np.ones(len(values), dtype=bool)
    for places in range(7):
        rounded = np.round(values[open_], places)
        same = rounded.astype(np.float32) == short[open_]
        rows = np.flatnonzero(open_)[same]
        written[rows] = rounded[same]
        open_[rows] = False
    return written


def _of_levels(codes: NDArray[Any], levels: Iterable[Any]) -> Column:
    """Codes of distinct levels; where all are numbers, the numbers themselves."""
    coded = Coded(codes.astype(np.int64), tuple(_plain(v) for v in levels))
    kind = _common_kind(coded.levels)
    if kind in ("integer", "number"):
        return _numbers(kind, np.array([*map(_float, coded.levels), np.nan])[coded.codes])
    return Column(kind, coded)


def _read_pandas(native: Any) -> Column:
    pd = importlib.import_module("pandas")
    dtype = native.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        levels = tuple(_plain(v) for v in dtype.categories)
        coded = Coded(native.cat.codes.to_numpy().astype(np.int64), levels)
        return Column(_common_kind(levels), coded, levels if dtype.ordered else None)
    if isinstance(dtype, pd.ArrowDtype):
        return _read_arrow(native.array.__arrow_array__())
    if isinstance(dtype, pd.SparseDtype):
        return _read_pandas(native.sparse.to_dense())
    objects = pd.api.types.is_object_dtype(dtype)
    if objects and pd.api.types.infer_dtype(native, skipna=True) not in ALIKE:
        return _read_objects(native.to_numpy())
    if isinstance(dtype, np.dtype) and dtype.kind in "iuf":
        return _numbers("number" if dtype.kind == "f" else "integer", native.to_numpy(np.float64))
    return _of_levels(*pd.factorize(native))


def _read_polars(native: Any, dtype: Any) -> Column:
    pl = importlib.import_module("polars")
    if native.dtype == pl.Null:
        return Column("text", Coded(np.full(len(native), -1, dtype=np.int64), ()))
    if dtype == nw.Boolean:
        codes = native.cast(pl.Int8).fill_null(-1).to_numpy()
        return Column("boolean", Coded(codes.astype(np.int64), (False, True)))
    if dtype in (nw.Object, nw.Binary):
        return _read_objects(native.to_list())
    texts = native.cast(pl.String)
    ordered = tuple(native.dtype.categories.to_list()) if dtype == nw.Enum else None
    levels = texts.drop_nulls().unique().sort()
    codes = texts.cast(pl.Enum(levels)).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
    return Column("text", Coded(codes.astype(np.int64), tuple(levels.to_list())), ordered)


def _read_arrow(native: Any) -> Column:
    pa = importlib.import_module("pyarrow")
    if pa.types.is_null(native.type):
        return Column("text", Coded(np.full(len(native), -1, dtype=np.int64), ()))
    if pa.types.is_decimal(native.type):
        native = native.cast(pa.string()).cast(pa.float64())
    if pa.types.is_floating(native.type):
        return _numbers("number", native.to_numpy().astype(np.float64))
    array = native.unify_dictionaries().combine_chunks()
    ordered = bool(getattr(array.type, "ordered", False))
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    levels = tuple(_plain(v) for v in array.dictionary.to_pylist())
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    if None in levels:  # a dictionary may list null among its values
        codes = np.where(codes == levels.index(None), -1, codes)
        levels = tuple("" if v is None else v for v in levels)
    coded = Coded(codes, levels)
    return Column(_common_kind(coded.seen), coded, levels if ordered else None)


def _read_objects(values: Sequence[Any] | NDArray[Any]) -> Column:
    """Python objects, looked at one by one: all of one kind, or `mixed`."""
    positions: dict[tuple[type, Any], int] = {}
    codes = np.full(len(values), -1, dtype=np.int64)
    for i, value in enumerate(values):
        if not _is_missing(value):
            plain = _plain(value) if _is_scalar(value) else str(value)
            kind = type(plain) if _is_scalar(value) else object
            # True, 1 and 1.0 are equal, but not the same answer.
            codes[i] = positions.setdefault((kind, plain), len(positions))
    levels = [plain for _, plain in positions]
    if any(kind is object for kind, _ in positions):
        every = all(kind is object for kind, _ in positions)
        return Column("other" if every else "mixed", Coded(codes, tuple(levels)))
    return _of_levels(codes, levels)


def _is_scalar(value: Any) -> bool:
    return bool(np.isscalar(value)) or isinstance(value, Decimal | date | time | timedelta)


def _are_decimals(values: Iterable[Any]) -> bool:
    """Whether all cells that are present are of the type `Decimal`."""
    return {type(v) for v in values if not _is_missing(v)} == {Decimal}


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
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, Integral):
        return "integer"
    if isinstance(value, Real):
        return "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, date | time | timedelta | np.datetime64 | np.timedelta64):
        return "date"
    return "other"


def _plain(value: Any) -> Any:
    """numpy's scalars as Python's own, so that they print and serialise as an instance expects."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, np.datetime64 | np.timedelta64):
        return value
    return value.item() if isinstance(value, np.generic) else value


def _float(value: Any) -> float:
    """A number in 64 bits; one too large for them is infinite, and is said to be so later."""
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
    if array.dtype == np.float32 and array.ndim == 2:  # pixels were never written by an instance
        flat = np.stack([_as_written(column) for column in flat.T], axis=1) if width else flat
    names = tuple(f"x{i}" for i in range(width))
    kind: Kind = "number" if array.dtype.kind == "f" else "integer"
    columns = {n: _numbers(kind, flat[:, i]) for i, n in enumerate(names)}
    shape = tuple(map(int, array.shape[1:])) if array.ndim > 2 else None
    template = Template("array", names, (str(array.dtype),) * width, shape)
    return Table(columns, template, len(array))


def _read_records(records: Sequence[Any]) -> Table:
    names: dict[Any, None] = {}
    for i, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise InputError(f"Record {i} is a {type(record).__name__}, not a dict of columns.")
        names.update(dict.fromkeys(record))
    _check_names(list(names))
    cells = {name: [r.get(name) for r in records] for name in names}
    columns = {name: _read_objects(values) for name, values in cells.items()}
    dtypes = tuple("decimal" if _are_decimals(v) else columns[n].kind for n, v in cells.items())
    return Table(columns, Template("records", tuple(names), dtypes), len(records))


# ------------------------------------------------------------------------------------------------
# What it was


def _dtype_text(kind: str, native: Any) -> str:
    """A column's type in its library's words; categoricals with their levels."""
    if kind == "pyarrow":
        return str(native.type)
    if kind == "polars":
        if str(native.dtype).startswith("Enum"):
            return "enum:" + json.dumps(native.dtype.categories.to_list())
        return str(native.dtype)
    if native.dtype == object and _are_decimals(native):
        return "decimal"
    return _pandas_text(importlib.import_module("pandas"), native.dtype)


def _pandas_text(pd: Any, dtype: Any) -> str:
    if isinstance(dtype, pd.CategoricalDtype):
        levels = [_plain(v) for v in dtype.categories]
        inner = _pandas_text(pd, dtype.categories.dtype)
        # Levels JSON cannot hold (dates, intervals) are refused by whoever looks at the column.
        return "category:" + json.dumps([levels, bool(dtype.ordered), inner], default=str)
    if isinstance(dtype, pd.ArrowDtype):
        return f"arrow:{dtype.pyarrow_dtype}"
    if isinstance(dtype, pd.StringDtype):
        name = "string" if dtype.na_value is pd.NA else "str"
        return f"{name}[{dtype.storage}]"
    return str(dtype)
