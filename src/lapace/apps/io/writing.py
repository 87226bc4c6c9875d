"""Writing frames as CSV and Parquet, whole or part by part."""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import BytesIO, RawIOBase
from pathlib import Path
from typing import Any, cast

import narwhals.stable.v2 as nw

from lapace.apps.io.sources import ending_of
from lapace.errors import InputError, first_line
from lapace.files import write_whole

__all__ = ["file_parts", "write_frames"]

ENDINGS = (".csv", ".csv.gz", ".parquet")


def write_frames(frames: Iterable[Any], path: str | Path, *, integers: Sequence[str] = ()) -> None:
    r"""Writes frames of the same columns as one CSV or Parquet file, whole or not at all.

    Args:
        frames: Pandas, polars or pyarrow frames, written one after the other; at least one. The
            index of a pandas frame is written only if it has a name.
        path: `.csv`, `.csv.gz` or `.parquet`; a file of that name is replaced.
        integers: Columns of whole numbers, also where a frame has none of them.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> from lapace.apps.io import read_file
        >>> with TemporaryDirectory() as folder:
        ...     write_frames([read_file(b"age\n31\n44")], f"{folder}/instances.parquet")
        ...     read_file(f"{folder}/instances.parquet").shape
        (2, 1)
    """
    path = Path(path)
    parts = file_parts(frames, ending_of(path), f"'{path.name}'", integers=integers)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
                file.flush()

    write_whole(path, write)


def file_parts(
    frames: Iterable[Any], ending: str, name: str = "The table", *, integers: Sequence[str] = ()
) -> Iterator[bytes]:
    r"""Yields the bytes of one file, a part for each frame.

    Args:
        frames: As for `write_frames`.
        ending: `.csv`, `.csv.gz` or `.parquet`.
        name: The file's name in messages.
        integers: As for `write_frames`.

    Examples:
        >>> from lapace.apps.io import read_file
        >>> b"".join(file_parts([read_file(b"age\n31"), read_file(b"age\n44")], ".csv")).split()
        [b'age', b'31', b'44']
    """
    if ending not in ENDINGS:
        raise InputError(f"{name} is not written: files end in .csv, .csv.gz or .parquet.")
    if ending == ".parquet":
        return _parquet_parts(frames, name, integers)
    return _csv_parts(frames, name, zipped=ending == ".csv.gz")


def _csv_parts(frames: Iterable[Any], name: str, *, zipped: bool) -> Iterator[bytes]:
    header: bytes | None = None
    for frame in frames:
        table = _plain_columns(frame)
        with _explaining_columns(name):
            part = table.write_csv(None).encode("utf-8")
            if header is None:
                header = table[:0].write_csv(None).encode("utf-8")
            else:
                part = part[len(header) :]
        # The same bytes at any time; zipped parts may follow each other in one file.
        yield gzip.compress(part, compresslevel=6, mtime=0) if zipped else part


def _parquet_parts(frames: Iterable[Any], name: str, integers: Sequence[str]) -> Iterator[bytes]:
    if not importlib.util.find_spec("pyarrow"):
        content = BytesIO()
        with _explaining_columns(name):
            nw.concat([_plain_columns(frame) for frame in frames]).write_parquet(content)
        yield content.getvalue()
        return
    parquet = import_module("pyarrow.parquet")
    written, writer, empty = _WrittenBytes(), None, None
    for frame in frames:
        columns = _plain_columns(frame)
        with _explaining_columns(name):
            table = columns.to_arrow()
            if not len(table):  # it does not show what its columns hold
                empty = table
                continue
            if writer is None:
                writer = parquet.ParquetWriter(written, _arrow_schema(table.schema, integers))
            writer.write_table(table.cast(writer.schema))
        yield written.take()
    if writer is None and empty is not None:
        writer = parquet.ParquetWriter(written, empty.schema)
        writer.write_table(empty)
    if writer is not None:
        writer.close()
    yield written.take()


def _arrow_schema(schema: Any, integers: Sequence[str]) -> Any:
    """The schema with a type for columns that are empty so far: whole numbers, or else text."""
    arrow = import_module("pyarrow")
    fields = []
    for each in schema:
        if arrow.types.is_null(each.type):
            each = each.with_type(arrow.int64() if each.name in integers else arrow.string())  # noqa: PLW2901
        fields.append(each)
    return arrow.schema(fields, schema.metadata)


class _WrittenBytes(RawIOBase):
    """A file from which the content is taken as it is written."""

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

    def take(self) -> bytes:
        content = bytes(self.content)
        self.content.clear()
        return content


def _plain_columns(frame: Any) -> nw.DataFrame[Any]:
    """A frame as it is written: the index of a pandas frame, if it has a name, is a column."""
    kind = type(frame).__module__.partition(".")[0]
    if kind not in ("pandas", "polars", "pyarrow"):
        raise InputError(
            f"A {type(frame).__name__} is not written. Hand over a pandas, polars or pyarrow frame."
        )
    if kind == "pandas":
        frame = frame.reset_index(drop=all(n is None for n in frame.index.names))
    return cast("nw.DataFrame[Any]", nw.from_native(frame, eager_only=True))


@contextmanager
def _explaining_columns(name: str) -> Iterator[None]:
    """Turns an error about a column that no file can hold into a sentence about the file."""
    try:
        yield
    except (OSError, InputError):
        raise
    except Exception as error:  # in the library's own words
        raise InputError(f"{name} could not be written: {first_line(error)}") from error
