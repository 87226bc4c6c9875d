"""Writing frames as CSV and Parquet, one after the other."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import narwhals.stable.v2 as nw

from lapace.apps.io.sources import ending_of
from lapace.errors import InputError, first_line, import_extra
from lapace.files import write_whole

__all__ = ["csv_parts", "write_frames"]

ENDINGS = (".csv", ".csv.gz", ".parquet")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how cells begin that a spreadsheet computes
HARMLESS = re.compile(r"[-+]+|[-+]\s?[^\w\s(@=|!'\"+-]?\d[\d.,' ]*\s?(%|[^\W\d]{0,8})")


def write_frames(
    frames: Iterable[Any], path: str | Path, *, integers: Sequence[str] = (), safe: bool = False
) -> None:
    r"""Writes frames of the same columns as one CSV or Parquet file, whole or not at all.

    Args:
        frames: Pandas, polars or pyarrow frames, written one after the other; at least one. The
            index of a pandas frame is written only if it has a name.
        path: `.csv`, `.csv.gz` or `.parquet`; a file of that name is replaced.
        integers: Columns of whole numbers, also where a frame has none of them, or has gaps.
        safe: Whether texts in CSV that a spreadsheet would take for formulas get an apostrophe.

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
        parts = (part.encode() for part in csv_parts(frames, integers, safe))
        with temporary.open("wb") as file:
            if ending == ".parquet":
                _write_parquet(frames, file, path.name, integers)
            elif ending == ".csv":
                file.writelines(parts)
            else:  # the same bytes at any time
                with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as zipped:
                    zipped.writelines(parts)

    write_whole(path, write)


def csv_parts(
    frames: Iterable[Any], integers: Sequence[str] = (), safe: bool = False
) -> Iterator[str]:
    r"""Yields the text of one CSV file, a part for each frame as soon as it is there.

    Args:
        frames: As for `write_frames`.
        integers: As for `write_frames`.
        safe: As for `write_frames`.

    Examples:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"age": [31.0, None], "note": ["=1+1", "-5%"]})
        >>> "".join(csv_parts([frame], ["age"], safe=True))
        "age,note\n31,'=1+1\n,-5%\n"
    """
    start = 0
    for frame in frames:
        table = _as_written(_plain_columns(frame), integers, safe)
        yield table.write_csv(None)[start:]
        start = len(table[:0].write_csv(None))  # the header comes once


def _as_written(table: nw.DataFrame[Any], integers: Sequence[str], safe: bool) -> nw.DataFrame[Any]:
    """A frame with whole numbers as such, which floats are beside gaps; no formulas if `safe`."""
    for name, dtype in table.schema.items():
        column = table[name]
        if name in integers and dtype.is_float():
            numbers = column.to_numpy()
            present = numbers[numbers == numbers]  # noqa: PLR0124  not NaN
            if (present % 1 == 0).all():
                texts = [None if v != v else f"{v:.0f}" for v in numbers.tolist()]  # noqa: PLR0124
                table = _replaced(table, name, texts)
        elif safe and not dtype.is_numeric() and dtype != nw.Boolean:
            cells = column.to_list()
            texts = [f"'{v}" if isinstance(v, str) and is_formula(v) else v for v in cells]
            table = table if texts == cells else _replaced(table, name, texts)
    formulas = {name: f"'{name}" for name in table.columns if safe and is_formula(name)}
    return table.rename(formulas)


def _replaced(table: nw.DataFrame[Any], name: str, texts: list[str | None]) -> nw.DataFrame[Any]:
    series = nw.new_series(name, texts, nw.String(), backend=table.implementation)
    return table.with_columns(series)


def is_formula(text: str) -> bool:
    """Returns whether a spreadsheet would take a text for a formula: no number, no lone dashes.

    Examples:
        >>> [is_formula(text) for text in ("=1+1", "@SUM(A1)", "-2+3+cmd|' /C calc'!A0")]
        [True, True, True]
        >>> [is_formula(text) for text in ("-5", "+1,200.50", "-£12k", "-15 %", "--", "plain")]
        [False, False, False, False, False, False]
    """
    return text.startswith(FORMULA) and HARMLESS.fullmatch(text) is None


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
            f"A {type(frame).__name__} is not written. Pass a pandas, polars or pyarrow frame."
        )
    if kind == "pandas":
        frame = frame.reset_index(drop=all(n is None for n in frame.index.names))
    return cast("nw.DataFrame[Any]", nw.from_native(frame, eager_only=True))
