"""What leaves: columns of numpy as a frame of the kind, order and dtypes that came in.

A dtype that cannot hold the values gives way to the next that can, and only then: a small integer
to a wider one, whole numbers to decimals, numbers to text. So an answer of 30.5 is never cut to 30
because the instance's own table happened to hold whole numbers.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats
from lapace.errors import InputError

FrameKind: TypeAlias = Literal["pandas", "polars", "pyarrow", "records", "array"]
Level: TypeAlias = str | int | float | bool

ARROW_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}
TRUTHS = {"True": True, "False": False}


@dataclass(frozen=True)
class Coded:
    """A column given as positions in a list of levels; -1 is missing.

    Examples:
        >>> Coded(np.array([1, 1, -1]), ("own", "rent")).seen
        ('rent',)
    """

    codes: NDArray[np.int64]
    levels: tuple[Level, ...]

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


Values: TypeAlias = Floats | Coded


@dataclass(frozen=True)
class Template:
    """What a table was: enough to make another one like it.

    Attributes:
        kind: The library the frame belongs to, `array`, or `records` (a list of dicts).
        names: Columns in their order.
        dtypes: One text per column, near enough the library's own words.
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

    def build(self, columns: Mapping[str, Values]) -> Any:
        """A frame of this kind with exactly these columns, in this template's order.

        Args:
            columns: For every name a float64 array (NaN is missing) or a `Coded` column.
        """
        return _BUILDERS[self.kind](self, columns)

    def select(self, names: Iterable[str]) -> Template:
        """The template with only some of the columns, still in its own order."""
        kept = set(names)
        pairs = [(n, t) for n, t in zip(self.names, self.dtypes, strict=True) if n in kept]
        shape = self.shape if len(pairs) == len(self.names) else None
        return Template(self.kind, tuple(n for n, _ in pairs), tuple(t for _, t in pairs), shape)

    def beside(self, columns: Mapping[str, NDArray[Any]], frame: Any) -> Any:
        """`frame` with further plain columns placed before its own.

        An array cannot hold them: its own columns join the plain frame as `x0`, `x1` and so on.
        """
        if self.kind == "array":
            flat = np.reshape(frame, (len(frame), len(self.names)))
            return plain_frame("array", {**columns, **dict(zip(self.names, flat.T, strict=True))})
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


def plain_frame(kind: FrameKind, columns: Mapping[str, NDArray[Any]]) -> Any:
    """A frame straight from numpy columns, for tables of ours (labels, status, distances).

    An `array` user gets pandas if it is there, else records: text does not fit in an array.

    Examples:
        >>> plain_frame("records", {"instance": np.array([0, 1]), "ok": np.array([True, False])})
        [{'who': 0, 'ok': True}, {'who': 1, 'ok': False}]
    """
    if kind == "array":
        kind = "pandas" if importlib.util.find_spec("pandas") else "records"
    if kind == "records":
        lists = [values.tolist() for values in columns.values()]
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
    if kind == "pandas":
        return importlib.import_module("pandas").concat([left, right], axis=1)
    if kind == "polars":
        return left.hstack(right)
    for name in right.column_names:
        left = left.append_column(name, right[name])
    return left


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
    there = ~np.isnan(values)
    levels, codes = np.unique(values[there], return_inverse=True)
    full = np.full(len(values), -1, dtype=np.int64)
    full[there] = codes
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


def _roomy(dtype: str, numbers: Floats) -> str:
    """An integer type, or the first wider one that holds the numbers: 64 bits, then decimals."""
    match = re.fullmatch(r"(u?)int(\d+)", dtype.lower())
    if match is None:
        return dtype
    there = numbers[~np.isnan(numbers)]
    bits = int(match[2])
    least, most = (0.0, 2.0**bits) if match[1] else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1))
    if (there != np.rint(there)).any() or (np.abs(there) >= 2.0**63).any():
        wider = "float64"
    elif there.size and (there.min() < least or there.max() >= most):
        wider = "int64"
    else:
        return dtype
    return wider.capitalize() if dtype[0].isupper() else wider


def _decimals(
    values: Values, precision: int, scale: int
) -> tuple[Coded, list[Decimal | None]] | None:
    """Codes and exact decimals with missing last; None where one would not fit."""
    numbers = as_numbers(values)
    if numbers is None:
        return None
    coded = as_coded(numbers)
    exact = [Decimal(repr(level)) for level in coded.levels]
    if any(v.adjusted() >= min(precision, 28) - scale for v in exact):
        return None
    rounded = [v.quantize(Decimal(1).scaleb(-scale)) for v in exact]
    return (coded, [*rounded, None]) if rounded == exact else None


def _decimal_objects(values: Values) -> NDArray[np.object_] | None:
    """`Decimal` objects, None where missing; None instead of all where one is not a number."""
    numbers = as_numbers(values)
    if numbers is None:
        return None
    coded = as_coded(numbers)
    exact = [Decimal(repr(level)) for level in coded.levels]
    return np.array([*exact, None], dtype=object)[coded.codes]


def _picked(coded: Coded) -> NDArray[np.int64]:
    """Positions in the levels with one for missing put after them."""
    return np.where(coded.codes < 0, len(coded.levels), coded.codes)


# ------------------------------------------------------------------------------------------------
# pandas


def _build_pandas(template: Template, columns: Mapping[str, Values]) -> Any:
    pd = importlib.import_module("pandas")
    data = {
        name: _pandas_column(pd, dtype, columns[name])
        for name, dtype in zip(template.names, template.dtypes, strict=True)
    }
    return pd.DataFrame(data, columns=list(template.names), copy=False)


def _pandas_column(pd: Any, dtype: str, values: Values) -> Any:
    if dtype.startswith("category:"):
        return _pandas_category(pd, dtype, as_coded(values))
    if dtype.startswith("arrow:"):
        pa = importlib.import_module("pyarrow")
        array = _arrow_column(pa, dtype.removeprefix("arrow:"), values)
        return pd.arrays.ArrowExtensionArray(pa.chunked_array([array]))
    if dtype in ("bool", "boolean"):
        truths = as_truths(values)
        if truths is not None:
            return _pandas_truths(pd, dtype, truths)
        dtype = "int64"
    if re.match(r"(?i)(u?int|float)\d+$|Sparse", dtype):
        numbers = as_numbers(values)
        if numbers is not None:
            return _pandas_numbers(pd, dtype, numbers)
        return pd.Series(_objects(as_texts(values)).tolist())
    decimals = _decimal_objects(values) if dtype == "decimal" else None
    if decimals is not None:
        return pd.Series(decimals, dtype=object)
    if dtype in ("object", "decimal"):  # a bare array would be guessed to be `str`
        return pd.Series(_objects(as_coded(values)), dtype=object)
    texts = as_texts(values)
    return pd.array([*texts.levels], dtype=_pandas_text(pd, dtype)).take(
        texts.codes, allow_fill=True
    )


def _objects(coded: Coded) -> NDArray[np.object_]:
    return np.array([*coded.levels, None], dtype=object)[coded.codes]


def _pandas_truths(pd: Any, dtype: str, truths: Coded) -> Any:
    if dtype == "boolean":
        return pd.array([*truths.levels], dtype=dtype).take(truths.codes, allow_fill=True)
    cells = _objects(truths)
    return cells.astype(bool) if (truths.codes >= 0).all() else pd.Series(cells, dtype=object)


def _pandas_numbers(pd: Any, dtype: str, numbers: Floats) -> Any:
    if dtype.startswith("Sparse"):
        dense = np.dtype(re.split(r"[\[\],]", dtype)[1])
        whole = not np.issubdtype(dense, np.floating) and np.isnan(numbers).any()
        return pd.arrays.SparseArray(numbers if whole else numbers.astype(dense))
    dtype, gaps = _roomy(dtype, numbers), np.isnan(numbers)
    if dtype[0].isupper():  # pandas' nullable numbers
        filled = pd.array(np.where(gaps, 0.0, numbers).astype(dtype.lower()), dtype=dtype)
        filled[gaps] = pd.NA
        return filled
    return numbers if "int" in dtype and gaps.any() else numbers.astype(dtype)


def _pandas_text(pd: Any, dtype: str) -> Any:
    """One of pandas' text types, `string[...]` with NA and `str[...]` with NaN for missing."""
    name, _, storage = dtype.rstrip("]").partition("[")
    if storage == "pyarrow" and not importlib.util.find_spec("pyarrow"):
        storage = "python"  # the table came from another machine
    if name == "str" and storage != "pyarrow_numpy":  # what pandas 2 called it
        return pd.StringDtype(storage, na_value=np.nan)
    return pd.StringDtype(storage) if storage else dtype


def _pandas_category(pd: Any, dtype: str, coded: Coded) -> Any:
    levels, ordered, inner = json.loads(dtype.removeprefix("category:"))
    position = {v: i for i, v in enumerate(levels)}
    texts = {spelling(v): i for i, v in enumerate(levels)}
    codes = np.full(len(coded.levels) + 1, -1, dtype=np.int64)
    for k in np.flatnonzero(coded.used):
        level = coded.levels[k]
        found = position.get(level, texts.get(spelling(level)))
        # A level the template does not know is added, never lost.
        codes[k] = position.setdefault(level, len(position)) if found is None else found
    try:
        inner = _pandas_text(pd, inner) if inner.startswith("str") else inner
        categories = pd.Index(list(position), dtype=inner)
    except (TypeError, ValueError):
        categories = pd.Index(list(position), dtype=object)
    return pd.Categorical.from_codes(codes[coded.codes], categories=categories, ordered=ordered)


# ------------------------------------------------------------------------------------------------
# polars


def _build_polars(template: Template, columns: Mapping[str, Values]) -> Any:
    pl = importlib.import_module("polars")
    return pl.DataFrame(
        {
            name: _polars_column(pl, dtype, columns[name])
            for name, dtype in zip(template.names, template.dtypes, strict=True)
        }
    )


def _polars_column(pl: Any, dtype: str, values: Values) -> Any:
    if dtype.startswith("Decimal"):
        precision, scale = re.findall(r"\d+|None", dtype)
        digits = 38 if precision == "None" else int(precision)
        made = _decimals(values, digits, int(scale))
        if made is not None:
            return pl.Series(made[1], dtype=pl.Decimal(digits, int(scale))).gather(_picked(made[0]))
        dtype = "Float64"
    truths = as_truths(values) if dtype == "Boolean" else None
    if truths is not None:
        return pl.Series([*truths.levels, None], dtype=pl.Boolean).gather(_picked(truths))
    if re.match(r"U?Int|Float|Boolean", dtype):
        numbers = as_numbers(values)
        if numbers is not None:
            wide = "Int64" if dtype == "Boolean" else dtype
            return pl.Series(numbers).fill_nan(None).cast(getattr(pl, _roomy(wide, numbers)))
    texts = as_texts(values)
    return pl.Series([*texts.levels, None], dtype=_polars_text(pl, dtype, texts)).gather(
        _picked(texts)
    )


def _polars_text(pl: Any, dtype: str, texts: Coded) -> Any:
    if dtype.startswith("enum:"):
        levels = json.loads(dtype.removeprefix("enum:"))
        return pl.Enum(list(dict.fromkeys([*levels, *texts.levels])))
    if dtype.startswith("Categorical"):
        named = re.search(r'Categories\("(.*)"', dtype)
        if named and hasattr(pl, "Categories"):
            return pl.Categorical(pl.Categories(named[1]))
        return pl.Categorical("lexical") if "lexical" in dtype else pl.Categorical
    return pl.String


# ------------------------------------------------------------------------------------------------
# pyarrow


def _build_pyarrow(template: Template, columns: Mapping[str, Values]) -> Any:
    pa = importlib.import_module("pyarrow")
    arrays = [
        _arrow_column(pa, dtype, columns[name])
        for name, dtype in zip(template.names, template.dtypes, strict=True)
    ]
    return pa.table(arrays, names=list(template.names))


def _arrow_column(pa: Any, dtype: str, values: Values) -> Any:
    if dtype.startswith("dictionary"):
        return _arrow_dictionary(pa, dtype, as_coded(values))
    if dtype.startswith("decimal"):
        name, precision, scale = re.findall(r"\w+", dtype)
        made = _decimals(values, int(precision), int(scale))
        if made is not None:
            target = getattr(pa, name)(int(precision), int(scale))
            return pa.array(made[1], target).take(pa.array(_picked(made[0])))
        dtype = "double"
    truths = as_truths(values) if dtype == "bool" else None
    if truths is not None:
        return pa.array([*truths.levels, None], pa.bool_()).take(pa.array(_picked(truths)))
    if re.match(r"u?int|float|double|halffloat|bool", dtype):
        numbers = as_numbers(values)
        if numbers is not None:
            gaps = np.isnan(numbers)
            wide = _roomy("int64" if dtype == "bool" else ARROW_FLOATS.get(dtype, dtype), numbers)
            return pa.array(np.where(gaps, 0.0, numbers).astype(wide), mask=gaps)
    texts, large = as_texts(values), pa.large_string() if "large" in dtype else pa.string()
    array = pa.array([*texts.levels, None], large).take(pa.array(_picked(texts)))
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


# ------------------------------------------------------------------------------------------------
# Records and arrays


def _build_records(template: Template, columns: Mapping[str, Values]) -> Any:
    lists: list[list[Any]] = []
    for name, dtype in zip(template.names, template.dtypes, strict=True):
        values = columns[name]
        decimals = _decimal_objects(values) if dtype == "decimal" else None
        if decimals is not None:
            lists.append(decimals.tolist())
        elif isinstance(values, Coded):
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


_BUILDERS: Mapping[str, Callable[[Template, Mapping[str, Values]], Any]] = {
    "pandas": _build_pandas,
    "polars": _build_polars,
    "pyarrow": _build_pyarrow,
    "records": _build_records,
    "array": _build_array,
}
