"""Which parts there are: one for each row group of each input file, named by file and group.

A part is the unit of work and of output. Its name, its rows and the chunks they are explained in
follow from the input alone, so that it does not matter who makes it, when, or how often.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lapace.batch.places import InputFile, Place, need_pyarrow
from lapace.errors import LapaceError, first_line

__all__ = ["FileParts", "Part", "read_footers"]

READERS = 16  # footers read at a time
STEM = 40  # characters of a file's name in its parts' names


@dataclass(frozen=True)
class Part:
    """One row group of one file.

    Attributes:
        name: The file its outcomes are written to.
        place: The file it is read from.
        group: Which of its row groups.
        first: The position in the file of its first row.
        rows: How many rows it has.
        keys: Columns that only the path of the file holds, and their value for all its rows.
        footer: A hash of the file's footer and size: another one is another file.
    """

    name: str
    place: Place
    group: int
    first: int
    rows: int
    keys: tuple[tuple[str, Any], ...]
    footer: str


@dataclass(frozen=True)
class FileParts:
    """The parts of one file, or why it could not be read.

    Attributes:
        source: The file, as messages show it.
        parts: Its parts.
        types: Types of its columns.
        unreadable: Why it has no parts; empty where it has.
    """

    source: str
    parts: tuple[Part, ...] = ()
    types: Mapping[str, Any] | None = None
    unreadable: str = ""


def read_footers(files: Sequence[InputFile]) -> list[FileParts]:
    """The parts of every file, by its footer; no rows are read."""
    keys = _key_values(files)
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda file: _read_footer(file, keys), files))


def _read_footer(file: InputFile, keys: Mapping[str, type]) -> FileParts:
    parquet = need_pyarrow("pyarrow.parquet")
    shown = file.place.shown
    try:
        with file.place.filesystem.open_input_file(file.place.path) as stream:
            size = stream.size()
            length = int.from_bytes(stream.read_at(8, max(0, size - 8))[:4], "little")
            begin = max(0, size - 8 - length)
            content = stream.read_at(size - begin, begin)
            opened = parquet.ParquetFile(stream)
            metadata, types = opened.metadata, opened.schema_arrow
            counts = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
    except Exception as error:  # pyarrow describes a broken file in its own ways
        return FileParts(shown, unreadable=f"It is no Parquet file: {first_line(error)}")
    footer = hashlib.sha256(content + size.to_bytes(8, "little")).hexdigest()
    known = tuple((n, v if v is None else keys[n](v)) for n, v in file.keys if n not in types.names)
    parts, first = [], 0
    for group, rows in enumerate(counts):
        parts.append(Part(_name(shown, group), file.place, group, first, rows, known, footer))
        first += rows
    arrow = need_pyarrow()
    found = {name: types.field(name).type for name in dict.fromkeys(types.names)}
    found |= {name: arrow.int64() if keys[name] is int else arrow.string() for name, _ in known}
    return FileParts(shown, tuple(parts), found)


def _key_values(files: Iterable[InputFile]) -> dict[str, type]:
    """Whether the values of each key in the paths are whole numbers, or text."""
    values: dict[str, list[str]] = {}
    for file in files:
        for name, value in file.keys:
            values.setdefault(name, []).extend([] if value is None else [value])
    return {
        name: int if all(re.fullmatch(r"-?(0|[1-9]\d{0,17})", v) for v in found) else str
        for name, found in values.items()
    }


def _name(source: str, group: int) -> str:
    """The name of a part: its file's, a hash of the whole path, and the row group.

    Examples:
        >>> _name("/data/loans 2024.parquet", 3)
        'loans-2024-24b02209-00003.parquet'
    """
    stem = source.rpartition("/")[2].rpartition(".")[0]
    plain = re.sub(r"[^A-Za-z0-9]+", "-", stem).strip("-")[:STEM] or "part"
    return f"{plain}-{hashlib.sha256(source.encode()).hexdigest()[:8]}-{group:05d}.parquet"


def read_part(part: Part, columns: Sequence[str]) -> Any:
    """The rows of a part as a pyarrow table of some columns, those of its path included.

    Raises:
        LapaceError: The rows cannot be read, or the file lacks a column.
    """
    arrow, parquet = need_pyarrow(), need_pyarrow("pyarrow.parquet")
    keys = dict(part.keys)
    try:
        with part.place.filesystem.open_input_file(part.place.path) as stream:
            opened = parquet.ParquetFile(stream)
            held = opened.schema_arrow.names
            lacking = [name for name in columns if name not in held and name not in keys]
            if lacking:
                listed = ", ".join(f"'{name}'" for name in lacking[:5])
                raise LapaceError(f"It has no column {listed}.")
            wanted = [name for name in columns if name in held]
            table = opened.read_row_group(part.group, columns=wanted)
    except LapaceError:
        raise
    except Exception as error:  # a page that is broken, or a disk that is gone
        raise LapaceError(f"Row group {part.group}: {first_line(error)}") from error
    for name, value in keys.items():
        if name in columns:
            kind = arrow.int64() if isinstance(value, int) else arrow.string()
            table = table.append_column(name, arrow.array([value] * len(table), kind))
    return table
