"""Tables larger than memory: files read and written in chunks.

A chunk is typed as the whole file is: what a column holds is found in a first pass over all of it,
so that results do not depend on where a chunk ends.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO

import narwhals.stable.v2 as nw
import numpy as np

from lapace.arrays import Ints
from lapace.table.files import (
    TableSource,
    library,
    plain_columns,
    read_source,
    refuse_ragged,
    refusing_columns,
    write_bytes,
    zip_bytes,
)
from lapace.table.frames import FrameKind

__all__ = ["TableFile", "file_parts"]

SCANNED = 100_000  # rows looked at together in the first pass
NUMBERS = {"int64", "uint64", "float64"}


@dataclass(frozen=True)
class TableFile:
    r"""A CSV or Parquet file that is read in chunks.

    Where pandas is not installed, or pyarrow for Parquet, the file is read whole and then cut.

    Attributes:
        source: A path, or the content of a file, as for `read_file`.
        like: The library to read with; as for `read_file`.

    Examples:
        >>> file = TableFile(b"age,home" + b"\n31,own" * 5)
        >>> len(file), [len(chunk) for chunk in file.chunks([2])]
        (5, [2, 2, 1])
    """

    source: str | Path | bytes | BinaryIO = field(repr=False)
    like: FrameKind | None = None

    @cached_property
    def _file(self) -> TableSource:
        return TableSource.of(self.source)

    @cached_property
    def _kind(self) -> FrameKind:
        return library(self.like)

    @cached_property
    def _cut(self) -> Any:
        """The whole frame, where it cannot be read in chunks; else None."""
        arrow = self._file.format == "parquet" and not importlib.util.find_spec("pyarrow")
        if self._kind == "pandas" and not arrow:
            return None
        if self._file.format == "csv":
            refuse_ragged(self._file)
        return read_source(self._file, self._kind)

    @cached_property
    def _scan(self) -> tuple[int, dict[str, Any]]:
        """How many rows there are, and the types of columns that chunks would not agree on."""
        if self._cut is not None:
            return len(self._cut), {}
        if self._file.format == "parquet":
            return _scan_parquet(self._file)
        refuse_ragged(self._file)
        return _scan_csv(self._file)

    def __len__(self) -> int:
        return self._scan[0]

    def chunks(self, sizes: Iterable[int]) -> Iterator[Any]:
        """The table as frames, in order.

        Args:
            sizes: How many rows each has; the last one holds for all that follow.
        """
        left, wanted = len(self), iter(sizes)
        size = next(wanted)
        whole = self._batches(size)
        rest: Any = None
        done = 0
        while done < left or not done:
            parts = [] if rest is None else [rest]
            while sum(map(len, parts)) < size and (batch := next(whole, None)) is not None:
                parts.append(batch)
            frame = _joined(parts)
            yield _rows(frame, slice(0, size))
            rest = _rows(frame, slice(size, None)) if len(frame) > size else None
            done += min(size, len(frame)) or 1
            size = next(wanted, size)

    def take(self, rows: Sequence[int] | Ints) -> Any:
        """Some rows by position, in the order given, without holding the others."""
        positions = np.asarray(rows, dtype=np.int64)
        parts, begin = [], 0
        for chunk in self.chunks([SCANNED]):
            inside = (positions >= begin) & (positions < begin + len(chunk))
            parts.append(_rows(chunk, np.sort(positions[inside]) - begin))
            begin += len(chunk)
        return _rows(_joined(parts), np.argsort(np.argsort(positions, kind="stable")))

    def sample(self, count: int, random_state: int = 0) -> Any:
        """Rows drawn without replacement, in their order; all where there are no more."""
        if count >= len(self):
            return self.take(np.arange(len(self)))
        generator = np.random.default_rng(random_state)
        return self.take(np.sort(generator.choice(len(self), count, replace=False)))

    def _batches(self, size: int) -> Iterator[Any]:
        """Frames of some size, typed as the whole."""
        if self._cut is not None:
            yield self._cut
        elif self._file.format == "parquet":
            yield from _parquet_batches(self._file, size, self._scan[1])
        else:
            yield from _csv_batches(self._file, size, self._scan[1])


def _rows(frame: Any, rows: Any) -> Any:
    """Some rows of a frame, numbered from 0 where it is numbered at all."""
    some = nw.from_native(frame, eager_only=True)[rows].to_native()
    return some.reset_index(drop=True) if _is_numbered(frame) else some


def _is_numbered(frame: Any) -> bool:
    """Whether it is a pandas frame with the numbers that every frame gets."""
    return type(getattr(frame, "index", None)).__name__ == "RangeIndex"


def _joined(frames: Sequence[Any]) -> Any:
    if len(frames) == 1:
        return frames[0]
    some = [frame for frame in frames if len(frame)] or frames[:1]
    if len(some) == 1:
        return some[0]
    whole = nw.concat([nw.from_native(frame, eager_only=True) for frame in some]).to_native()
    return whole.reset_index(drop=True) if _is_numbered(some[0]) else whole


# ------------------------------------------------------------------------------------------------
# CSV


def _csv_batches(file: TableSource, size: int, types: dict[str, Any]) -> Iterator[Any]:
    with file.refusing(), file.open_text() as lines:
        settings = {"sep": file.mark, "low_memory": False, "dtype": types}
        with import_module("pandas").read_csv(lines, chunksize=size, **settings) as reader:
            for batch in reader:
                yield batch.reset_index(drop=True)


def _scan_csv(file: TableSource) -> tuple[int, dict[str, Any]]:
    """How many rows there are, and of which type columns are where batches disagree."""
    infer, count = import_module("pandas").api.types.infer_dtype, 0
    kinds: dict[str, set[str]] = {}
    for batch in _csv_batches(file, SCANNED, {}):
        count += len(batch)
        for name in batch:
            kinds.setdefault(name, set()).add(_kind_of(batch[name], infer))
    types = {name: _common_type(found) for name, found in kinds.items()}
    return count, {name: dtype for name, dtype in types.items() if dtype is not None}


def _kind_of(column: Any, infer: Any) -> str:
    """What one batch of a column holds."""
    if not column.notna().any():
        return "empty"
    if str(column.dtype) in ("bool", *NUMBERS):
        return str(column.dtype)
    return "bool" if infer(column, skipna=True) == "boolean" else "text"


def _common_type(kinds: set[str]) -> Any:
    """What the whole column is read as: as if it were read at once; None to leave it to batches.

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


def _scan_parquet(file: TableSource) -> tuple[int, dict[str, Any]]:
    """How many rows there are, and the columns of whole numbers of which some are missing."""
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    with file.refusing(), file.open_bytes() as content:
        opened = parquet.ParquetFile(content)
        whole = [f.name for f in opened.schema_arrow if arrow.types.is_integer(f.type)]
        gaps: set[str] = set()
        for batch in opened.iter_batches(SCANNED, columns=whole) if whole else ():
            gaps |= {n for n, c in zip(whole, batch.columns, strict=True) if c.null_count}
        return opened.metadata.num_rows, dict.fromkeys(gaps, "float64")


def _parquet_batches(file: TableSource, size: int, types: dict[str, Any]) -> Iterator[Any]:
    parquet = import_module("pyarrow.parquet")
    with file.refusing(), file.open_bytes() as content:
        opened = parquet.ParquetFile(content)
        if not opened.metadata.num_rows:
            yield opened.read().to_pandas()
        for batch in opened.iter_batches(size):
            frame = batch.to_pandas()
            yield frame.astype({name: dtype for name, dtype in types.items() if name in frame})


# ------------------------------------------------------------------------------------------------
# Writing


def file_parts(
    frames: Iterable[Any], ending: str, name: str = "The table", *, whole: Sequence[str] = ()
) -> Iterator[bytes]:
    """Frames of the same columns as the bytes of one file, part by part.

    Args:
        frames: The frames; at least one.
        ending: `.csv`, `.csv.gz` or `.parquet`.
        name: What messages call the file.
        whole: Columns of whole numbers, also where a frame has none of them.

    Examples:
        >>> import numpy as np
        >>> from lapace.table import plain_frame
        >>> frames = [plain_frame("array", {"age": np.array([age])}) for age in (31, 44)]
        >>> b"".join(file_parts(frames, ".csv")).split()
        [b'age', b'31', b'44']
    """
    if ending == ".parquet" and importlib.util.find_spec("pyarrow"):
        yield from _parquet_parts(frames, name, whole)
    elif ending == ".parquet":
        yield write_bytes(nw.concat([plain_columns(f) for f in frames]).to_native(), ending, name)
    else:
        header: bytes | None = None
        for frame in frames:
            part = write_bytes(frame, ".csv", name)
            if header is None:
                header = write_bytes(frame[:0], ".csv", name)
            else:
                part = part[len(header) :]
            yield zip_bytes(part) if ending == ".csv.gz" else part


class _Parts(RawIOBase):
    """A file whose content is taken away as it is written."""

    def __init__(self) -> None:
        self.content, self.position = bytearray(), 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def write(self, data: Any) -> int:
        self.content += data
        self.position += len(data)
        return len(data)

    def taken(self) -> bytes:
        content = bytes(self.content)
        self.content.clear()
        return content


def _parquet_parts(frames: Iterable[Any], name: str, whole: Sequence[str]) -> Iterator[bytes]:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    parts, writer, empty = _Parts(), None, None
    for frame in frames:
        with refusing_columns(name):
            table = plain_columns(frame).to_arrow()
            if not len(table):  # which does not show what its columns hold
                empty = table
                continue
            if writer is None:
                types = [
                    f.with_type(arrow.int64() if f.name in whole else arrow.string())
                    if arrow.types.is_null(f.type)
                    else f
                    for f in table.schema
                ]
                schema = arrow.schema(types, table.schema.metadata)
                writer = parquet.ParquetWriter(parts, schema)
            writer.write_table(table.cast(writer.schema))
        yield parts.taken()
    if writer is None and empty is not None:
        writer = parquet.ParquetWriter(parts, empty.schema)
        writer.write_table(empty)
    if writer is not None:
        writer.close()
    yield parts.taken()
