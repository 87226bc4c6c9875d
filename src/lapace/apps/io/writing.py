"""Writing frames as CSV and Parquet, one after the other."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import narwhals.stable.v2 as nw

from lapace.apps.io.sources import ending_of
from lapace.errors import InputError, first_line, import_extra
from lapace.files import write_whole

__all__ = ["csv_parts", "write_frames"]

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
        >>> import pandas as pd
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "instances.csv")
        ...     write_frames([pd.DataFrame({"age": [31]}), pd.DataFrame({"age": [44]})], path)
        ...     path.read_text().split()
        ['age', '31', '44']
    """
    path = Path(path)
    ending = ending_of(path)
    if ending not in ENDINGS:
        raise InputError(f"'{path.name}' is not written: files end in .csv, .csv.gz or .parquet.")

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            if ending == ".parquet":
                _write_parquet(frames, file, path.name, integers)
            elif ending == ".csv":
                file.writelines(part.encode() for part in csv_parts(frames))
            else:  # the same bytes at any time
                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as zipped:
                    zipped.writelines(part.encode() for part in csv_parts(frames))

    write_whole(path, write)


def csv_parts(frames: Iterable[Any]) -> Iterator[str]:
    """Yields the text of one CSV file, a part for each frame as soon as it is there."""
    header: str | None = None
    for frame in frames:
        table = _plain_columns(frame)
        text = table.write_csv(None)
        if header is None:
            header = table[:0].write_csv(None)
            yield text
        else:
            yield text[len(header) :]


def _write_parquet(frames: Iterable[Any], file: Any, name: str, integers: Sequence[str]) -> None:
    """Writes frames with the types of the first that has rows; `name` is for messages."""
    parquet = import_extra("pyarrow.parquet", "arrow", "Writing a Parquet file")
    writer, empty = None, None
    for frame in frames:
        columns = _plain_columns(frame)
        try:
            table = columns.to_arrow()
            if not len(table):  # it does not show what its columns hold
                empty = table
                continue
            if writer is None:
                writer = parquet.ParquetWriter(file, _arrow_schema(table.schema, integers))
            writer.write_table(table.cast(writer.schema))
        except (NotImplementedError, TypeError, ValueError) as error:  # in pyarrow's own words
            raise InputError(f"'{name}' could not be written: {first_line(error)}") from error
    if writer is None and empty is not None:
        writer = parquet.ParquetWriter(file, empty.schema)
        writer.write_table(empty)
    if writer is not None:
        writer.close()


def _arrow_schema(schema: Any, integers: Sequence[str]) -> Any:
    """The schema with a type for columns that are empty so far: whole numbers, or else text."""
    arrow = import_extra("pyarrow", "arrow", "Writing a Parquet file")
    fields = []
    for column in schema:
        own = arrow.int64() if column.name in integers else arrow.string()
        fields.append(column.with_type(own) if arrow.types.is_null(column.type) else column)
    return arrow.schema(fields, schema.metadata)


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
