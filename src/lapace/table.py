"""The one door for dataframes.

Every table that comes in, pandas, polars, pyarrow, a numpy array or a list of records, becomes a
`Table` of plain numpy columns, and its `Template` remembers what it was, so that rows can leave as
the same kind of frame with the same columns, order and dtypes. Nothing else in the library knows
which dataframe library a user has.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeAlias

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray

from lapace.errors import InputError

__all__ = ["Coded", "Column", "Table", "Template", "read", "read_file", "write_file"]

Kind: TypeAlias = Literal["integer", "number", "boolean", "text", "mixed", "date", "other"]
FrameKind: TypeAlias = Literal["pandas", "polars", "pyarrow", "records", "array"]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Level: TypeAlias = str | int | float | bool


@dataclass(frozen=True)
class Coded:
    """A column given as positions in a list of levels; -1 is missing."""

    codes: NDArray[np.int64]
    levels: tuple[Level, ...]


@dataclass(frozen=True)
class Column:
    """One column as numpy sees it.

    Attributes:
        kind: What the cells are; `mixed` columns have to be looked at level by level.
        values: float64 for numbers (NaN is missing), `Coded` for everything else.
        ordered: The levels, in order, of an ordered categorical.
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
class Template:
    """What a table was: enough to make another one like it.

    Attributes:
        kind: The library the frame belongs to, `array`, or `records` (a list of dicts).
        names: Columns in their order.
        dtypes: One text per column, in the library's own words.
        shape: For arrays of more than two dimensions, the shape of one row.

    Examples:
        >>> template = Template("records", ("age",), ("integer",))
        >>> template.build({"age": np.array([31.0, 44.0])})
        [{'age': 31}, {'age': 44}]
    """

    kind: FrameKind
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shape: tuple[int, ...] | None = None

    def build(self, columns: Mapping[str, NDArray[Any] | Coded]) -> Any:
        """A frame of this kind with exactly these columns, in this template's order.

        Args:
            columns: For every name a float64 array (NaN is missing) or a `Coded` column.
        """
        return _BUILDERS[self.kind](self, columns)

    def select(self, names: Iterable[str]) -> Template:
        """The template with only some of the columns, still in its own order."""
        kept = set(names)
        pairs = [(n, t) for n, t in zip(self.names, self.dtypes, strict=True) if n in kept]
        return Template(
            self.kind, tuple(n for n, _ in pairs), tuple(t for _, t in pairs), self.shape
        )

    def beside(self, columns: Mapping[str, NDArray[Any]], frame: Any) -> Any:
        """`frame` with further plain columns placed before its own."""
        return _join(self.kind, plain_frame(self.kind, columns), frame)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "kind": self.kind,
            "names": list(self.names),
            "dtypes": list(self.dtypes),
            "shape": None if self.shape is None else list(self.shape),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Template:
        """The inverse of `to_json`."""
        shape = data["shape"]
        return cls(
            data["kind"],
            tuple(data["names"]),
            tuple(data["dtypes"]),
            None if shape is None else tuple(shape),
        )


@dataclass(frozen=True)
class Table:
    """Columns by name, and what they came in."""

    columns: Mapping[str, Column]
    template: Template
    rows: int

    @property
    def names(self) -> tuple[str, ...]:
        return self.template.names

    def __len__(self) -> int:
        return self.rows


# ------------------------------------------------------------------------------------------------
# In


def read(data: Any) -> Table:
    """Any table as numpy columns.

    Args:
        data: A pandas, polars or pyarrow frame, a numpy array (rows, columns) or
            (rows, height, width), a list of dicts, or a `Table`, which is returned as it is.

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
        raise InputError(
            f"A {type(data).__name__} is not a table. Hand over a pandas, polars or pyarrow "
            "frame, a numpy array, or a list of dicts."
        ) from None
    return _read_frame(frame)


def _read_frame(frame: nw.DataFrame[Any]) -> Table:
    kind = frame.implementation.value
    if kind not in ("pandas", "polars", "pyarrow"):
        raise InputError(
            f"Tables of {kind} are not read. Convert it to pandas, polars or pyarrow first."
        )
    _check_names(frame.columns)
    columns = {name: _read_series(frame[name]) for name in frame.columns}
    dtypes = tuple(_dtype_text(kind, frame[name]) for name in frame.columns)
    return Table(columns, Template(kind, tuple(frame.columns), dtypes), len(frame))


def _check_names(names: Sequence[Any]) -> None:
    strange = [n for n in names if not isinstance(n, str)]
    if strange:
        raise InputError(
            f"Column names must be text, but one is {strange[0]!r}. Rename the columns first."
        )
    if len(set(names)) < len(names):
        twice = next(n for n in names if list(names).count(n) > 1)
        raise InputError(f"Column '{twice}' is in the table twice. Rename one of them.")


def _read_series(series: nw.Series[Any]) -> Column:
    dtype = series.dtype
    if dtype.is_numeric():
        values = np.asarray(series.cast(nw.Float64).to_numpy(), dtype=np.float64)
        return Column("integer" if dtype.is_integer() else "number", values)
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


def _read_pandas(native: Any) -> Column:
    pd = importlib.import_module("pandas")
    if str(native.dtype) == "category":
        levels = tuple(_plain(v) for v in native.dtype.categories)
        coded = Coded(native.cat.codes.to_numpy().astype(np.int64), levels)
        return Column(_common_kind(levels), coded, levels if native.dtype.ordered else None)
    if native.dtype == object and pd.api.types.infer_dtype(native, skipna=True) != "string":
        return _read_objects(native.to_numpy())
    codes, levels = pd.factorize(native)
    coded = Coded(codes.astype(np.int64), tuple(_plain(v) for v in levels))
    return Column(_common_kind(coded.levels), coded)


def _read_polars(native: Any, dtype: Any) -> Column:
    if dtype == nw.Object:
        return _read_objects(np.array(native.to_list(), dtype=object))
    levels = native.drop_nulls().unique().sort()
    codes = native.rank("dense").cast(int).fill_null(0).to_numpy().astype(np.int64) - 1
    ordered = None
    if dtype == nw.Enum:
        ordered = tuple(native.dtype.categories.to_list())
    coded = Coded(codes, tuple(levels.to_list()))
    return Column(_common_kind(coded.levels), coded, ordered)


def _read_arrow(native: Any) -> Column:
    array = native.combine_chunks()
    ordered = bool(getattr(array.type, "ordered", False))
    if not hasattr(array, "dictionary"):
        array = array.dictionary_encode()
    levels = tuple(array.dictionary.to_pylist())
    codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return Column(_common_kind(levels), Coded(codes, levels), levels if ordered else None)


def _common_kind(levels: Iterable[Any]) -> Kind:
    kinds = {_kind_of(v) for v in levels}
    if kinds == {"integer", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else ("mixed" if kinds else "text")


def _read_objects(values: Sequence[Any] | NDArray[Any]) -> Column:
    """Python objects, looked at one by one: all of one kind, or `mixed`."""
    positions: dict[tuple[type, Any], int] = {}
    codes = np.full(len(values), -1, dtype=np.int64)
    for i, value in enumerate(values):
        if not _is_missing(value):
            plain = _plain(value) if _scalar(value) else str(value)
            key = (type(value), plain)  # True, 1 and 1.0 are equal, but not the same answer
            codes[i] = positions.setdefault(key, len(positions))
    levels = tuple(plain for _, plain in positions)
    kinds = {_kind_of(v) if _scalar(v) else "other" for v in values if not _is_missing(v)}
    if kinds and kinds <= {"integer", "number"}:
        numbers = np.array([*map(float, levels), np.nan])[codes]
        return Column("number" if "number" in kinds else "integer", numbers)
    kind: Any = kinds.pop() if len(kinds) == 1 else ("mixed" if kinds else "text")
    return Column(kind, Coded(codes, levels))


def _scalar(value: Any) -> bool:
    return value is None or np.isscalar(value) or isinstance(value, Decimal | date | time)


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, float | np.floating | Decimal):
        return value != value  # noqa: PLR0124  NaN is the value that differs from itself
    return type(value).__name__ in ("NAType", "NaTType")


def _kind_of(value: Any) -> Kind:
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, Integral):
        return "integer"
    if isinstance(value, Real | Decimal):
        return "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, date | datetime | time | timedelta | np.datetime64 | np.timedelta64):
        return "date"
    return "other"


def _plain(value: Any) -> Any:
    """numpy's scalars as Python's own, so that they print and serialise as a person expects."""
    return value.item() if isinstance(value, np.generic) else value


def _read_array(array: NDArray[Any]) -> Table:
    if array.ndim < 2 or not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise InputError(
            f"An array of shape {array.shape} and type {array.dtype} is not a table. Hand over "
            "numbers as (rows, columns) or (rows, height, width)."
        )
    flat = array.reshape(len(array), -1).astype(np.float64)  # (n, d)
    names = tuple(f"x{i}" for i in range(flat.shape[1]))
    kind: Kind = "number" if np.issubdtype(array.dtype, np.floating) else "integer"
    columns = {n: Column(kind, flat[:, i]) for i, n in enumerate(names)}
    shape = array.shape[1:] if array.ndim > 2 else None
    template = Template("array", names, (str(array.dtype),) * len(names), shape)
    return Table(columns, template, len(array))


def _read_records(records: Sequence[Any]) -> Table:
    names: dict[str, None] = {}
    for i, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise InputError(f"Record {i} is a {type(record).__name__}, not a dict of columns.")
        names.update(dict.fromkeys(record))
    _check_names(list(names))
    columns = {name: _read_objects([r.get(name) for r in records]) for name in names}
    dtypes = tuple(columns[name].kind for name in names)
    return Table(columns, Template("records", tuple(names), dtypes), len(records))


# ------------------------------------------------------------------------------------------------
# Out


def _dtype_text(kind: str, series: nw.Series[Any]) -> str:
    """A column's type in its library's words; categoricals with their levels."""
    native = series.to_native()
    if kind == "pandas" and str(native.dtype) == "category":
        levels = [_plain(v) for v in native.dtype.categories]
        return "category:" + json.dumps([levels, bool(native.dtype.ordered)])
    if kind == "polars" and series.dtype == nw.Enum:
        return "enum:" + json.dumps(native.dtype.categories.to_list())
    if kind == "pyarrow":
        return str(native.type)
    return str(native.dtype)


def _numbers_as_coded(values: NDArray[Any] | Coded) -> Coded:
    if isinstance(values, Coded):
        return values
    levels, codes = np.unique(values[~np.isnan(values)], return_inverse=True)
    full = np.full(len(values), -1, dtype=np.int64)
    full[~np.isnan(values)] = codes
    return Coded(full, tuple(int(v) if v == int(v) else float(v) for v in levels))


def _coded_as_numbers(values: NDArray[Any] | Coded) -> Floats:
    if not isinstance(values, Coded):
        return np.asarray(values, dtype=np.float64)
    levels = np.array([*values.levels, np.nan], dtype=np.float64)
    return levels[values.codes]


def _build_pandas(template: Template, columns: Mapping[str, NDArray[Any] | Coded]) -> Any:
    pd = importlib.import_module("pandas")
    data = {
        name: _pandas_column(pd, dtype, columns[name])
        for name, dtype in zip(template.names, template.dtypes, strict=True)
    }
    return pd.DataFrame(data, columns=list(template.names), copy=False)


def _pandas_column(pd: Any, dtype: str, values: NDArray[Any] | Coded) -> Any:
    if dtype.startswith("category:"):
        levels, ordered = json.loads(dtype.removeprefix("category:"))
        return _pandas_category(pd, levels, ordered, _numbers_as_coded(values))
    if dtype.lower().startswith(("int", "uint", "float")):
        numbers = _coded_as_numbers(values)
        gaps = np.isnan(numbers)
        if dtype[0].isupper():  # pandas' nullable numbers
            filled = pd.array(np.where(gaps, 0.0, numbers), dtype=dtype)
            filled[gaps] = pd.NA
            return filled
        integral = not dtype.startswith("float")
        return numbers if integral and gaps.any() else numbers.astype(dtype)
    coded = _numbers_as_coded(values)
    if dtype == "bool" and (coded.codes >= 0).all():
        return np.array(coded.levels, dtype=bool)[coded.codes]
    if dtype in ("object", "bool"):
        cells = np.array([*coded.levels, None], dtype=object)[coded.codes]
        return pd.Series(cells, dtype=object)  # a bare array would be guessed to be `str`
    return pd.array([*coded.levels], dtype=dtype).take(coded.codes, allow_fill=True)


def _pandas_category(pd: Any, levels: list[Any], ordered: bool, coded: Coded) -> Any:
    position = {v: i for i, v in enumerate(levels)}
    for level in coded.levels:  # a level the template does not know is added, never lost
        position.setdefault(level, len(position))
    codes = np.array([*(position[v] for v in coded.levels), -1], dtype=np.int64)[coded.codes]
    return pd.Categorical.from_codes(codes, categories=list(position), ordered=ordered)


def _build_polars(template: Template, columns: Mapping[str, NDArray[Any] | Coded]) -> Any:
    pl = importlib.import_module("polars")
    return pl.DataFrame(
        [
            _polars_column(pl, name, dtype, columns[name])
            for name, dtype in zip(template.names, template.dtypes, strict=True)
        ]
    )


def _polars_column(pl: Any, name: str, dtype: str, values: NDArray[Any] | Coded) -> Any:
    if dtype.startswith(("Int", "UInt", "Float", "Decimal")):
        target = getattr(pl, dtype.split("(")[0]) if not dtype.startswith("Decimal") else pl.Float64
        series = pl.Series(name, _coded_as_numbers(values)).fill_nan(None)
        return series.cast(target)
    coded = _numbers_as_coded(values)
    if dtype.startswith("enum:"):
        levels = json.loads(dtype.removeprefix("enum:"))
        target = pl.Enum([*levels, *(v for v in coded.levels if v not in levels)])
    else:
        target = {"Boolean": pl.Boolean, "Categorical": pl.Categorical}.get(
            dtype.split("(")[0], pl.String
        )
    picked = np.where(coded.codes < 0, len(coded.levels), coded.codes)
    return pl.Series(name, [*coded.levels, None], dtype=target).gather(picked)


def _build_pyarrow(template: Template, columns: Mapping[str, NDArray[Any] | Coded]) -> Any:
    pa = importlib.import_module("pyarrow")
    arrays = [
        _arrow_column(pa, dtype, columns[name])
        for name, dtype in zip(template.names, template.dtypes, strict=True)
    ]
    return pa.table(arrays, names=list(template.names))


def _arrow_column(pa: Any, dtype: str, values: NDArray[Any] | Coded) -> Any:
    if dtype.startswith(("int", "uint", "float", "double", "halffloat", "decimal")):
        target = pa.float64() if dtype.startswith("decimal") else pa.type_for_alias(dtype)
        return pa.array(_coded_as_numbers(values), from_pandas=True).cast(target)
    coded = _numbers_as_coded(values)
    text = pa.large_string() if "large_string" in dtype else pa.string()
    base = pa.bool_() if dtype == "bool" else text
    picked = np.where(coded.codes < 0, len(coded.levels), coded.codes)
    if dtype.startswith("dictionary"):
        ordered = dtype.rstrip(">").endswith("ordered=1")
        width = re.search(r"indices=(\w+)", dtype)
        index = pa.type_for_alias(width[1] if width else "int32")
        codes = pa.array(coded.codes, mask=coded.codes < 0).cast(index)
        return pa.DictionaryArray.from_arrays(
            codes, pa.array(list(coded.levels), base), ordered=ordered
        )
    return pa.array([*coded.levels, None], base).take(pa.array(picked))


def _build_records(template: Template, columns: Mapping[str, NDArray[Any] | Coded]) -> Any:
    lists = []
    for name, dtype in zip(template.names, template.dtypes, strict=True):
        values = columns[name]
        if isinstance(values, Coded):
            levels = (*values.levels, None)
            lists.append([levels[c] for c in values.codes.tolist()])
        else:
            whole = dtype == "integer"
            lists.append([_json_number(v, whole) for v in values.tolist()])
    return [dict(zip(template.names, row, strict=True)) for row in zip(*lists, strict=True)]


def _json_number(value: float, whole: bool) -> float | int | None:
    if value != value:  # noqa: PLR0124  NaN
        return None
    return int(value) if whole and value == int(value) else value


def _build_array(template: Template, columns: Mapping[str, NDArray[Any] | Coded]) -> Any:
    flat = np.stack([_coded_as_numbers(columns[name]) for name in template.names], axis=1)
    dtype = np.dtype(template.dtypes[0])
    if not np.issubdtype(dtype, np.floating) and np.isnan(flat).any():
        dtype = np.dtype(np.float64)
    return flat.reshape(len(flat), *(template.shape or flat.shape[1:])).astype(dtype)


_BUILDERS: Mapping[str, Callable[[Template, Mapping[str, NDArray[Any] | Coded]], Any]] = {
    "pandas": _build_pandas,
    "polars": _build_polars,
    "pyarrow": _build_pyarrow,
    "records": _build_records,
    "array": _build_array,
}


def plain_frame(kind: FrameKind, columns: Mapping[str, NDArray[Any]]) -> Any:
    """A frame straight from numpy columns, for tables of ours (labels, status, distances).

    An `array` user gets pandas if it is there, else records: text does not fit in an array.
    """
    if kind == "array":
        kind = "pandas" if importlib.util.find_spec("pandas") else "records"
    if kind == "records":
        lists = [[_plain(v) for v in values.tolist()] for values in columns.values()]
        return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
    library = importlib.import_module(kind)
    if kind == "pyarrow":
        return library.table({n: library.array(v.tolist()) for n, v in columns.items()})
    if kind == "polars":
        return library.DataFrame(
            {n: v.tolist() if v.dtype == object else v for n, v in columns.items()}
        )
    return library.DataFrame(dict(columns))


def _join(kind: FrameKind, left: Any, right: Any) -> Any:
    """Two frames of the same length side by side."""
    if kind == "records":
        return [{**a, **b} for a, b in zip(left, right, strict=True)]
    if kind == "array":
        return left
    frames = [nw.from_native(left, eager_only=True), nw.from_native(right, eager_only=True)]
    return nw.concat(frames, how="horizontal").to_native()


# ------------------------------------------------------------------------------------------------
# Files


def read_file(path: str | Path, like: FrameKind | None = None) -> Any:
    """A CSV or Parquet file as a frame.

    Args:
        path: `.csv` or `.parquet`.
        like: The library to read with; by default the first that is installed of pandas,
            polars and pyarrow.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"There is no file '{path.name}' in '{path.parent}'.")
    readers: dict[str, dict[str, Callable[[Any, Path], Any]]] = {
        ".csv": {
            "pandas": lambda m, p: m.read_csv(p),
            "polars": lambda m, p: m.read_csv(p, infer_schema_length=None),
            "pyarrow": lambda m, p: importlib.import_module("pyarrow.csv").read_csv(p),
        },
        ".parquet": {
            "pandas": lambda m, p: m.read_parquet(p),
            "polars": lambda m, p: m.read_parquet(p),
            "pyarrow": lambda m, p: importlib.import_module("pyarrow.parquet").read_table(p),
        },
    }
    kind = like or _installed()
    reader = readers.get(path.suffix.lower(), {}).get(kind)
    if reader is None:
        raise InputError(f"'{path.name}' is not read: files end in .csv or .parquet.")
    try:
        return reader(importlib.import_module(kind), path)
    except Exception as error:  # every library has its own words for a broken file
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"'{path.name}' could not be read as a table: {reason}") from error


def write_file(frame: Any, path: str | Path) -> None:
    """Writes a frame as CSV or Parquet, whole or not at all."""
    path = Path(path)
    table = nw.from_native(frame, eager_only=True)
    writers: dict[str, Callable[[str], Any]] = {
        ".csv": table.write_csv,
        ".parquet": table.write_parquet,
    }
    writer = writers.get(path.suffix.lower())
    if writer is None:
        raise InputError(f"'{path.name}' is not written: files end in .csv or .parquet.")
    write_whole(path, lambda temporary: writer(str(temporary)))


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Calls `write` on a file beside `path`, then moves it into place: whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _installed() -> FrameKind:
    kinds: tuple[FrameKind, ...] = ("pandas", "polars", "pyarrow")
    for kind in kinds:
        if importlib.util.find_spec(kind):
            return kind
    raise InputError("Reading a file needs a dataframe library: pip install 'lapace[pandas]'.")
