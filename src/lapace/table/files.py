"""CSV and Parquet files, read with any installed dataframe library; files are written whole."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import secrets
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw

from lapace.errors import InputError, first_line
from lapace.table.frames import FrameKind

PARQUET = b"PAR1"  # how such a file begins
_FIELD_LIMIT = threading.Lock()  # the csv module has one limit for the whole process
# By library and ending: the module to import, its function and that function's options.
_READERS: dict[tuple[str, str], tuple[str, str, dict[str, Any]]] = {
    # Whole columns at a time: a type must not depend on where the reader happened to pause.
    ("pandas", ".csv"): ("pandas", "read_csv", {"low_memory": False}),
    ("polars", ".csv"): ("polars", "read_csv", {"infer_schema_length": None}),
    ("pyarrow", ".csv"): ("pyarrow.csv", "read_csv", {}),
    ("pandas", ".parquet"): ("pandas", "read_parquet", {}),
    ("polars", ".parquet"): ("polars", "read_parquet", {}),
    ("pyarrow", ".parquet"): ("pyarrow.parquet", "read_table", {}),
}


def read_file(source: str | Path | bytes, like: FrameKind | None = None) -> Any:
    r"""A CSV or Parquet file as a frame.

    Args:
        source: A path that ends in `.csv` or `.parquet`, or the content of such a file, for tables
            that come through a pipe.
        like: The library to read with; by default the first that is installed of pandas,
            polars and pyarrow.

    Examples:
        >>> len(read_file(b"age,home" + b"\n31,own" * 2))
        2
    """
    kind = _library(like)
    content: Any = source
    text: Callable[..., TextIOWrapper[Any]]
    if isinstance(source, bytes):
        name, ending = "Standard input", ".parquet" if source.startswith(PARQUET) else ".csv"
        content, text = BytesIO(source), partial(_lines, source)
    else:
        path = Path(source)
        name, ending, text = f"'{path.name}'", path.suffix.lower(), path.open
        if (kind, ending) not in _READERS:
            raise InputError(f"{name} is not read: files end in .csv or .parquet.")
        if not path.is_file():
            raise InputError(f"There is no file {name} in '{path.parent}'.")
    module, function, options = _READERS[kind, ending]
    if ending == ".csv":
        content, text = _as_utf8(content, text, name)
        with text(encoding="utf-8-sig", errors="replace", newline="") as lines, _any_field():
            mark = _separator(lines)
            lines.seek(0)
            _refuse_ragged(lines, name, mark)
        options = options | _separated(kind, mark)
    try:
        return getattr(import_module(module), function)(content, **options)
    except Exception as error:  # every library describes a broken file in its own way
        if "utf-8" in str(error).lower() or "utf8" in str(error).lower():
            raise InputError(
                f"{name} is not in UTF-8. Save it as UTF-8 (in a spreadsheet: CSV UTF-8), or "
                f"convert it: iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW."
            ) from error
        raise InputError(f"{name} could not be read as a table: {first_line(error)}") from error


def _lines(data: bytes, **settings: Any) -> TextIOWrapper[Any]:
    """A file's content, opened as text."""
    return TextIOWrapper(BytesIO(data), **settings)


def _as_utf8(
    content: Any, text: Callable[..., TextIOWrapper[Any]], name: str
) -> tuple[Any, Callable[..., TextIOWrapper[Any]]]:
    """The content as UTF-8: what spreadsheets save as Unicode text, UTF-16, is converted."""
    with text(encoding="latin-1", newline="") as start:
        begins = start.read(4).encode("latin-1")
    if not begins.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content, text
    try:
        with text(encoding="utf-16", newline="") as lines:
            data = lines.read().encode("utf-8")
    except UnicodeError as error:
        raise InputError(
            f"{name} could not be read as UTF-16: {error}. Save it as UTF-8."
        ) from None
    return BytesIO(data), partial(_lines, data)


def _separator(lines: Any) -> str:
    """The mark between fields: a comma, unless the first line has none and has another one."""
    first = lines.readline()
    counts = {mark: first.count(mark) for mark in (",", ";", "\t", "|")}
    semicolons = counts[";"] > counts[","] and '"' not in first
    return max(counts, key=counts.__getitem__) if not counts[","] or semicolons else ","


def _separated(kind: str, mark: str) -> dict[str, Any]:
    """Options of a reader for a separator other than the comma."""
    if mark == ",":
        return {}
    if kind == "pyarrow":
        return {"parse_options": import_module("pyarrow.csv").ParseOptions(delimiter=mark)}
    return {"sep" if kind == "pandas" else "separator": mark}


def _library(like: FrameKind | None) -> FrameKind:
    """The library to read with, if it is installed."""
    kinds: tuple[FrameKind, ...] = ("pandas", "polars", "pyarrow")
    if like is not None and like not in kinds:
        raise InputError(f"Files are read as pandas, polars or pyarrow, not as {like}.")
    for kind in kinds if like is None else (like,):
        if importlib.util.find_spec(kind):
            return kind
    extra = "arrow" if like == "pyarrow" else like or "pandas"
    raise InputError(
        f"Reading a file needs {like or 'a dataframe library'}: pip install 'lapace[{extra}]'."
    )


@contextmanager
def _any_field() -> Iterator[None]:
    """Fields of any length; by default the csv module gives up at 131,072 characters."""
    with _FIELD_LIMIT:
        before = csv.field_size_limit(sys.maxsize)
        try:
            yield
        finally:
            csv.field_size_limit(before)


def _refuse_ragged(lines: Iterable[str], name: str, mark: str = ",") -> None:
    """Refuses what readers would accept in silence: a column name used twice, a line cut short.

    Args:
        lines: A CSV file's lines, their ends as they are.
        name: What to call the file.
        mark: What is between fields.
    """
    refused = f"{name} could not be read as a table:"
    reader = csv.reader(lines, delimiter=mark)
    rows = _rows(reader)
    try:
        names = next(rows, (1, []))[1]
        for line, row in rows:
            if len(row) == len(names):
                continue
            several, last = reader.line_num > line, next(rows, None) is None
            if len(row) > len(names):
                columns = f"{len(names)} column" + ("s" if len(names) > 1 else "")
                said = "a comma" if mark == "," else repr(mark)
                hint = f", and the first line names {columns}. Put a value with {said} in it in "
                raise InputError(f"{refused} line {line} has {len(row)} fields{hint}double quotes.")
            hint = ": the file may be cut short."
            if several:
                hint = ": a double quote may never be closed there."
            if not last:
                hint = ". Where a value is missing, leave its comma."
            raise InputError(f"{refused} line {line} has {len(row)} of {len(names)} fields{hint}")
    except csv.Error:  # left to the reader of the table, which describes it
        return
    for k, column in enumerate(names):
        if column and column in names[:k]:
            raise InputError(
                f"{refused} column '{column}' is in the table twice. Rename one of them."
            )


def _rows(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Lines of CSV that are not empty (readers skip those), each with the number it begins at."""
    end = 0
    for row in reader:
        begin, end = end + 1, reader.line_num
        if row and not (len(row) == 1 and row[0].isspace()):
            yield begin, row


def write_file(frame: Any, path: str | Path) -> None:
    """Writes a frame as CSV or Parquet, whole or not at all.

    Args:
        frame: A pandas, polars or pyarrow frame. The index of a pandas frame is written only if it
            has a name.
        path: `.csv` or `.parquet`; a file of that name is replaced.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> import numpy as np
        >>> from lapace.table import plain_frame
        >>> frame = plain_frame("array", {"age": np.array([31, 44])})
        >>> with TemporaryDirectory() as folder:
        ...     write_file(frame, f"{folder}/instances.csv")
        ...     read_file(f"{folder}/instances.csv").shape
        (2, 1)
    """
    path = Path(path)
    write = _writer(frame, path.suffix.lower(), f"'{path.name}'")
    write_whole(path, write)


def write_bytes(frame: Any, ending: str) -> bytes:
    """A frame as a CSV or Parquet file's bytes, for a pipe.

    Args:
        frame: As for `write_file`.
        ending: `.csv` or `.parquet`.

    Examples:
        >>> import numpy as np
        >>> from lapace.table import plain_frame
        >>> write_bytes(plain_frame("array", {"age": np.array([31, 44])}), ".csv").split()
        [b'age', b'31', b'44']
    """
    content = BytesIO()
    _writer(frame, ending, "The table")(content)
    return content.getvalue()


def _writer(frame: Any, ending: str, name: str) -> Callable[[Any], None]:
    """A function that writes the frame to a path or a file in memory."""
    kind = type(frame).__module__.partition(".")[0]
    if kind not in ("pandas", "polars", "pyarrow"):
        raise InputError(
            f"A {type(frame).__name__} is not written. Hand over a pandas, polars or pyarrow frame."
        )
    if ending not in (".csv", ".parquet"):
        raise InputError(f"{name} is not written: files end in .csv or .parquet.")

    def write(target: Any) -> None:
        try:
            plain = frame
            if kind == "pandas":
                plain = frame.reset_index(drop=all(n is None for n in frame.index.names))
            table = nw.from_native(plain, eager_only=True)
            (table.write_csv if ending == ".csv" else table.write_parquet)(target)
        except OSError:
            raise
        except Exception as error:  # a column no file can hold, in the library's own words
            raise InputError(f"{name} could not be written: {first_line(error)}") from error

    return write


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Calls `write` on a file beside `path`, then moves it into place: whole or not at all.

    A link is followed, and a file that is replaced keeps its permissions, from the first byte on.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "note.txt")
        ...     write_whole(path, lambda temporary: temporary.write_text("whole"))
        ...     path.read_text()
        'whole'
    """
    if not path.parent.is_dir():
        raise InputError(f"There is no folder '{path.parent}' to write '{path.name}' in.")
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{path.suffix}")
    try:
        mode = _permissions(path)
        if mode is not None:  # from the first byte on
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode & 0o600))
        write(temporary)
        if mode is not None:
            temporary.chmod(mode)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _permissions(path: Path) -> int | None:
    """The permissions of a file; None where there is none."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


def write_json(path: str | Path, data: Any) -> None:
    """Writes plain JSON values, whole or not at all."""
    text = json.dumps(data, allow_nan=False)
    write_whole(Path(path), lambda p: p.write_text(text, encoding="utf-8"))


def read_json(path: str | Path, what: str) -> Any:
    """Reads JSON values back.

    Args:
        path: The file.
        what: What it should hold, for the error message where it does not.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no file '{path}' to read {what} from.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' could not be read as {what}: {first_line(error)}") from None
