"""Reading tables from files, whole or in chunks.

A chunk has the types of the whole file: a first pass over all rows finds what each column holds, so
that results do not depend on where a chunk ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from lapace.apps.io.sources import Content, TableSource
from lapace.errors import import_extra

__all__ = ["TableFile", "read_file"]

SCANNED = 100_000  # rows held at a time where a file is only looked through
NUMBERS = {"int64", "uint64", "float64"}


def read_file(content: Content) -> Any:
    r"""Reads a CSV or Parquet file as a pandas frame.

    Args:
        content: A path that ends in `.csv`, `.tsv`, `.csv.gz`, `.tsv.gz` or `.parquet`; or an open
            file with such content, which may lie anywhere.

    Examples:
        >>> from tempfile import TemporaryFile
        >>> with TemporaryFile() as file:
        ...     _ = file.write(b"age,home\n31,own\n44,rent\n")
        ...     read_file(file).shape
        (2, 2)
    """
    return TableFile(content).read()


@dataclass(frozen=True)
class TableFile:
    r"""A CSV or Parquet file, to be read whole or in chunks.

    Attributes:
        content: As for `read_file`.

    Examples:
        >>> from tempfile import TemporaryFile
        >>> with TemporaryFile() as file:
        ...     _ = file.write(b"age,home" + b"\n31,own" * 5)
        ...     table = TableFile(file)
        ...     len(table), [len(chunk) for chunk in table.chunks(2)]
        (5, [2, 2, 1])
    """

    content: Content = field(repr=False)

    @cached_property
    def _source(self) -> TableSource:
        return TableSource.of(self.content)

    def read(self) -> Any:
        """Reads the whole table as one frame."""
        source, pandas = self._source, _pandas()
        with source.explaining_errors(), source.open_bytes() as file:
            if source.format == "parquet":
                return pandas.read_parquet(file)
            return pandas.read_csv(file, **_csv_settings(source))

    @cached_property
    def _scan(self) -> tuple[int, dict[str, Any]]:
        """The number of rows, and the types of columns on which chunks would not agree."""
        return (_scan_csv if self._source.format == "csv" else _scan_parquet)(self._source)

    def __len__(self) -> int:
        return self._scan[0]

    def chunks(self, size: int) -> Iterator[Any]:
        """Yields the table as frames of at most `size` rows, in order; at least one frame."""
        batches = _csv_batches if self._source.format == "csv" else _parquet_batches
        yield from batches(self._source, size, self._scan[1])

    def sample(self, count: int, random_state: int = 0) -> Any:
        """Draws rows without replacement, in their order, without holding the others."""
        generator = np.random.default_rng(random_state)
        rows = np.sort(generator.choice(len(self), min(count, len(self)), replace=False))
        parts, begin = [], 0
        for chunk in self.chunks(SCANNED):
            inside = rows[(rows >= begin) & (rows < begin + len(chunk))]
            parts.append(chunk.iloc[inside - begin])
            begin += len(chunk)
        drawn = [part for part in parts if len(part)] or parts[:1]  # the columns, without rows
        return _pandas().concat(drawn, ignore_index=True)


def _pandas() -> Any:
    return import_extra("pandas", "pandas", "Reading a file")


# ------------------------------------------------------------------------------------------------
# CSV


def _csv_settings(source: TableSource) -> dict[str, Any]:
    # Whole columns at a time: a type must not depend on where the reader paused.
    settings = {"sep": source.separator, "encoding": source.encoding, "low_memory": False}
    return {**settings, "dtype": dict.fromkeys(source.codes, str)}


def _csv_batches(source: TableSource, size: int, types: dict[str, Any]) -> Iterator[Any]:
    settings = {**_csv_settings(source), "chunksize": size}
    settings["dtype"] |= types
    with (
        source.explaining_errors(),
        source.open_bytes() as file,
        _pandas().read_csv(file, **settings) as reader,
    ):
        for batch in reader:
            yield batch.reset_index(drop=True)


def _scan_csv(source: TableSource) -> tuple[int, dict[str, Any]]:
    """Counts the rows, and finds the types of columns where batches disagree."""
    infer, count = _pandas().api.types.infer_dtype, 0
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


def _scan_parquet(source: TableSource) -> tuple[int, dict[str, Any]]:
    """Counts the rows, and finds columns of whole numbers of which some are missing."""
    arrow = _arrow("pyarrow")
    with source.explaining_errors(), source.open_bytes() as file:
        opened = _arrow("pyarrow.parquet").ParquetFile(file)
        whole = [f.name for f in opened.schema_arrow if arrow.types.is_integer(f.type)]
        gaps: set[str] = set()
        for batch in opened.iter_batches(SCANNED, columns=whole) if whole else ():
            gaps |= {n for n, c in zip(whole, batch.columns, strict=True) if c.null_count}
        return opened.metadata.num_rows, dict.fromkeys(gaps, "float64")


def _parquet_batches(source: TableSource, size: int, types: dict[str, Any]) -> Iterator[Any]:
    with source.explaining_errors(), source.open_bytes() as file:
        opened = _arrow("pyarrow.parquet").ParquetFile(file)
        if not opened.metadata.num_rows:
            yield opened.read().to_pandas()
        for batch in opened.iter_batches(size):
            frame = batch.to_pandas()
            yield frame.astype({name: dtype for name, dtype in types.items() if name in frame})


def _arrow(module: str) -> Any:
    return import_extra(module, "arrow", "Reading a Parquet file in chunks")
