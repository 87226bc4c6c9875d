"""Reading tables from files, whole or in chunks.

A chunk has the types of the whole file: a first pass over all rows finds what each column holds, so
that results do not depend on where a chunk ends.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from io import BytesIO
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np

from lapace.apps.io.sources import Content, TableSource
from lapace.arrays import Ints
from lapace.errors import InputError

__all__ = ["TableFile", "read_file"]

LIBRARIES = ("pandas", "polars", "pyarrow")  # the first that is installed reads
SCANNED = 100_000  # rows looked at together in the first pass
NUMBERS = {"int64", "uint64", "float64"}


def read_file(content: Content) -> Any:
    r"""Reads a CSV or Parquet file as a frame of pandas, or else of polars or pyarrow.

    Args:
        content: A path that ends in `.csv`, `.tsv`, `.csv.gz`, `.tsv.gz` or `.parquet`, or the
            content of such a file: bytes, or an open file with a descriptor.

    Examples:
        >>> len(read_file(b"age,home" + b"\n31,own" * 2))
        2
    """
    return TableFile(content).read()


@dataclass(frozen=True)
class TableFile:
    r"""A CSV or Parquet file, to be read whole or in chunks.

    Where pandas is not installed, or pyarrow for Parquet, chunks are cut from the whole table.

    Attributes:
        content: As for `read_file`.

    Examples:
        >>> file = TableFile(b"age,home" + b"\n31,own" * 5)
        >>> len(file), [len(chunk) for chunk in file.chunks([2])]
        (5, [2, 2, 1])
    """

    content: Content = field(repr=False)

    @cached_property
    def _source(self) -> TableSource:
        """The file, its lines checked."""
        source = TableSource.of(self.content)
        if source.format == "csv":
            source.check_lines()
        return source

    def read(self) -> Any:
        """Reads the whole table as one frame."""
        library = _library()
        return (
            _read_csv(self._source, library)
            if self._is_csv
            else _read_parquet(self._source, library)
        )

    @property
    def _is_csv(self) -> bool:
        return self._source.format == "csv"

    @cached_property
    def _whole(self) -> Any:
        """The whole frame, where the file cannot be read in chunks; else None."""
        chunks = self._is_csv or importlib.util.find_spec("pyarrow")
        return None if _library() == "pandas" and chunks else self.read()

    @cached_property
    def _scan(self) -> tuple[int, dict[str, Any]]:
        """The number of rows, and the types of columns on which chunks would not agree."""
        if self._whole is not None:
            return len(self._whole), {}
        return (_scan_csv if self._is_csv else _scan_parquet)(self._source)

    def __len__(self) -> int:
        return self._scan[0]

    def chunks(self, sizes: Iterable[int]) -> Iterator[Any]:
        """Yields the table as frames, in order.

        Args:
            sizes: How many rows each frame has; the last size holds for all that follow.
        """
        total, further = len(self), iter(sizes)
        size = next(further)
        batches = self._batches(size)
        rest: Any = None
        done = 0
        while done < total or not done:
            parts = [] if rest is None else [rest]
            while sum(map(len, parts)) < size and (batch := next(batches, None)) is not None:
                parts.append(batch)
            frame = _joined(parts)
            yield _rows(frame, slice(0, size))
            rest = _rows(frame, slice(size, None)) if len(frame) > size else None
            done += min(size, len(frame)) or 1
            size = next(further, size)

    def take(self, rows: Sequence[int] | Ints) -> Any:
        """Reads some rows by position, in the order given, without holding the others."""
        positions = np.asarray(rows, dtype=np.int64)
        parts, begin = [], 0
        for chunk in self.chunks([SCANNED]):
            inside = (positions >= begin) & (positions < begin + len(chunk))
            parts.append(_rows(chunk, np.sort(positions[inside]) - begin))
            begin += len(chunk)
        return _rows(_joined(parts), np.argsort(np.argsort(positions, kind="stable")))

    def sample(self, count: int, random_state: int = 0) -> Any:
        """Draws rows without replacement, in their order; all rows where there are no more."""
        if count >= len(self):
            return self.take(np.arange(len(self)))
        generator = np.random.default_rng(random_state)
        return self.take(np.sort(generator.choice(len(self), count, replace=False)))

    def _batches(self, size: int) -> Iterator[Any]:
        """Yields frames of about some size, with the types of the whole table."""
        if self._whole is not None:
            yield self._whole
        else:
            batches = _csv_batches if self._is_csv else _parquet_batches
            yield from batches(self._source, size, self._scan[1])


def _library() -> str:
    """The library that reads files."""
    for name in LIBRARIES:
        if importlib.util.find_spec(name):
            return name
    raise InputError("Reading a file needs a dataframe library: pip install 'lapace[pandas]'.")


def _rows(frame: Any, rows: Any) -> Any:
    """Some rows of a frame, numbered from 0 where it is numbered at all."""
    some = nw.from_native(frame, eager_only=True)[rows].to_native()
    return some.reset_index(drop=True) if _is_numbered(frame) else some


def _is_numbered(frame: Any) -> bool:
    """Whether it is a pandas frame with the default index."""
    return type(getattr(frame, "index", None)).__name__ == "RangeIndex"


def _joined(frames: Sequence[Any]) -> Any:
    some = [frame for frame in frames if len(frame)] or frames[:1]
    if len(some) == 1:
        return some[0]
    whole = nw.concat([nw.from_native(frame, eager_only=True) for frame in some]).to_native()
    return whole.reset_index(drop=True) if _is_numbered(some[0]) else whole


# ------------------------------------------------------------------------------------------------
# CSV


def _read_csv(source: TableSource, library: str) -> Any:
    with source.explaining_errors(), source.open_bytes() as file:
        content: Any = file
        if source.encoding != "utf-8-sig":
            with source.open_text() as lines:
                content = BytesIO(lines.read().encode("utf-8"))
        if library == "pandas":
            # Whole columns at a time: a type must not depend on where the reader paused.
            settings = {"sep": source.separator, "low_memory": False}
            return import_module("pandas").read_csv(content, **settings)
        if library == "polars":
            settings = {"separator": source.separator, "infer_schema_length": None}
            return import_module("polars").read_csv(content, **settings)
        reader = import_module("pyarrow.csv")
        options = reader.ParseOptions(delimiter=source.separator)
        return reader.read_csv(content, parse_options=options)


def _csv_batches(source: TableSource, size: int, types: dict[str, Any]) -> Iterator[Any]:
    with source.explaining_errors(), source.open_text() as lines:
        settings = {"sep": source.separator, "low_memory": False, "dtype": types}
        with import_module("pandas").read_csv(lines, chunksize=size, **settings) as reader:
            for batch in reader:
                yield batch.reset_index(drop=True)


def _scan_csv(source: TableSource) -> tuple[int, dict[str, Any]]:
    """Counts the rows, and finds the types of columns where batches disagree."""
    infer, count = import_module("pandas").api.types.infer_dtype, 0
    kinds: dict[str, set[str]] = {}
    for batch in _csv_batches(source, SCANNED, {}):
        count += len(batch)
        for name in batch:
            kinds.setdefault(name, set()).add(_kind_of(batch[name], infer))
    types = {name: _common_type(some) for name, some in kinds.items()}
    return count, {name: dtype for name, dtype in types.items() if dtype is not None}


def _kind_of(column: Any, infer: Any) -> str:
    """The kind of values in one batch of a column."""
    if not column.notna().any():
        return "empty"
    if str(column.dtype) in ("bool", *NUMBERS):
        return str(column.dtype)
    return "bool" if infer(column, skipna=True) == "boolean" else "text"


def _common_type(kinds: set[str]) -> Any:
    """The type a whole column has when it is read at once; None where every batch gets it right.

    Examples:
        >>> _common_type({"int64", "empty"}), _common_type({"int64", "text"})
        ('float64', <class 'str'>)
    """
    if "text" in kinds or ("bool" in kinds and kinds & NUMBERS):
        return str
    numbers, whole = kinds & NUMBERS, kinds <= {"int64", "uint64"}
    return "float64" if numbers and not whole else None


# ------------------------------------------------------------------------------------------------
# Parquet


def _read_parquet(source: TableSource, library: str) -> Any:
    with source.explaining_errors(), source.open_bytes() as file:
        if library == "pyarrow":
            return import_module("pyarrow.parquet").read_table(file)
        return import_module(library).read_parquet(file)


def _scan_parquet(source: TableSource) -> tuple[int, dict[str, Any]]:
    """Counts the rows, and finds columns of whole numbers of which some are missing."""
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    with source.explaining_errors(), source.open_bytes() as file:
        opened = parquet.ParquetFile(file)
        whole = [f.name for f in opened.schema_arrow if arrow.types.is_integer(f.type)]
        gaps: set[str] = set()
        for batch in opened.iter_batches(SCANNED, columns=whole) if whole else ():
            gaps |= {n for n, c in zip(whole, batch.columns, strict=True) if c.null_count}
        return opened.metadata.num_rows, dict.fromkeys(gaps, "float64")


def _parquet_batches(source: TableSource, size: int, types: dict[str, Any]) -> Iterator[Any]:
    parquet = import_module("pyarrow.parquet")
    with source.explaining_errors(), source.open_bytes() as file:
        opened = parquet.ParquetFile(file)
        if not opened.metadata.num_rows:
            yield opened.read().to_pandas()
        for batch in opened.iter_batches(size):
            frame = batch.to_pandas()
            yield frame.astype({name: dtype for name, dtype in types.items() if name in frame})
