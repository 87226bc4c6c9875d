"""CSV and Parquet files, read with any installed dataframe library; files are written whole."""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import narwhals.stable.v2 as nw

from lapace.errors import InputError, first_line
from lapace.table.frames import FrameKind

PARQUET, GZIP = b"PAR1", b"\x1f\x8b"  # how such files begin
ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")  # of files that are read
SPREADSHEETS = (".xls", ".xlsx", ".xlsm", ".ods", ".numbers")
WRITTEN = (".csv", ".csv.gz", ".parquet")
_FIELD_LIMIT = threading.Lock()  # the csv module has one limit for the whole process
# By library and format: the module to import, its function and that function's options.
_READERS: dict[tuple[str, str], tuple[str, str, dict[str, Any]]] = {
    # Whole columns at a time: a type must not depend on where the reader happened to pause.
    ("pandas", "csv"): ("pandas", "read_csv", {"low_memory": False}),
    ("polars", "csv"): ("polars", "read_csv", {"infer_schema_length": None}),
    ("pyarrow", "csv"): ("pyarrow.csv", "read_csv", {}),
    ("pandas", "parquet"): ("pandas", "read_parquet", {}),
    ("polars", "parquet"): ("polars", "read_parquet", {}),
    ("pyarrow", "parquet"): ("pyarrow.parquet", "read_table", {}),
}


def read_file(source: str | Path | bytes | BinaryIO, like: FrameKind | None = None) -> Any:
    r"""A CSV or Parquet file as a frame.

    Args:
        source: A path that ends in one of `ENDINGS`, or the content of such a file (bytes, or an
            open file with a descriptor), for tables that come through a pipe.
        like: The library to read with; by default the first that is installed of pandas,
            polars and pyarrow.

    Examples:
        >>> len(read_file(b"age,home" + b"\n31,own" * 2))
        2
    """
    kind = library(like)
    file = TableSource.of(source)
    if file.format == "csv":
        refuse_ragged(file)
    return read_source(file, kind)


@dataclass(frozen=True)
class TableSource:
    """A file of a table: where it is and how it is written.

    Attributes:
        name: What messages call it.
        content: A path, the bytes, or an open file with a descriptor.
        format: `csv` or `parquet`.
        zipped: Whether it is compressed with gzip.
        encoding: Of CSV.
        mark: What is between fields of CSV.
    """

    name: str
    content: Path | bytes | BinaryIO
    format: Literal["csv", "parquet"] = "csv"
    zipped: bool = False
    encoding: str = "utf-8-sig"
    mark: str = ","

    @classmethod
    def of(cls, source: str | Path | bytes | BinaryIO) -> TableSource:
        """Looks at the beginning of a file; refuses one that is not there, or of another kind."""
        file = cls("Standard input", source) if not isinstance(source, str | Path) else _at(source)
        with file.open_bytes() as content:
            begins = content.read(4)
        if begins.startswith(GZIP) and not file.zipped:
            return replace(file, zipped=True)._looked_at()
        if isinstance(file.content, Path):
            return file._looked_at()
        return replace(file, format="parquet" if begins == PARQUET else "csv")._looked_at()

    def _looked_at(self) -> TableSource:
        """With the encoding and the separator of its first line."""
        if self.format == "parquet":
            return self
        with self.refusing(), self.open_bytes() as content:
            begins = content.read(2)
        utf16 = begins in (b"\xff\xfe", b"\xfe\xff")
        file = replace(self, encoding="utf-16") if utf16 else self
        with file.refusing(), file.open_text("replace") as lines:
            return replace(file, mark=_separator(lines.readline()))

    def open_bytes(self) -> BinaryIO:
        """The content from its beginning, decompressed."""
        if isinstance(self.content, bytes):
            opened: Any = BytesIO(self.content)
        elif isinstance(self.content, Path):
            opened = self.content.open("rb")
        else:
            opened = os.fdopen(os.dup(self.content.fileno()), "rb")
            opened.seek(0)
        if self.zipped:
            unzipped: Any = gzip.GzipFile(fileobj=opened)
            unzipped.myfileobj = opened  # closed with it
            return cast(BinaryIO, unzipped)
        return cast(BinaryIO, opened)

    def open_text(self, errors: str = "strict") -> TextIOWrapper:
        """The content as text, line ends as they are."""
        return TextIOWrapper(
            cast(Any, self.open_bytes()), encoding=self.encoding, errors=errors, newline=""
        )

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Says what is wrong with a file that cannot be read."""
        try:
            yield
        except InputError:
            raise
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{self.name} could not be decompressed: {error}.") from None
        except Exception as error:  # every library describes a broken file in its own way
            if self.encoding == "utf-16" and isinstance(error, UnicodeError):
                raise InputError(
                    f"{self.name} could not be read as UTF-16: {error}. Save it as UTF-8."
                ) from None
            if "utf-8" in str(error).lower() or "utf8" in str(error).lower():
                raise InputError(
                    f"{self.name} is not in UTF-8. Save it as UTF-8 (in a spreadsheet: CSV UTF-8), "
                    f"or convert it: iconv -f WINDOWS-1252 -t UTF-8 OLD > NEW."
                ) from error
            raise InputError(
                f"{self.name} could not be read as a table: {first_line(error)}"
            ) from error


def _at(path: str | Path) -> TableSource:
    """The file of a path, by its ending."""
    path = Path(path)
    ending = ending_of(path)
    if ending not in ENDINGS:
        *others, last = ENDINGS
        sheet = " Save it as CSV first." if ending in SPREADSHEETS else ""
        raise InputError(
            f"'{path.name}' is not read: files end in {', '.join(others)} or {last}.{sheet}"
        )
    if not path.is_file():
        raise InputError(f"There is no file '{path.name}' in '{path.parent}'.")
    format_: Any = "parquet" if ending == ".parquet" else "csv"
    return TableSource(f"'{path.name}'", path, format_, zipped=ending.endswith(".gz"))


def ending_of(path: Path) -> str:
    """A file's ending, that of what is compressed included.

    Examples:
        >>> ending_of(Path("Orders.2024.CSV.gz")), ending_of(Path("orders.csv"))
        ('.csv.gz', '.csv')
    """
    ending = path.suffix.lower()
    return Path(path.stem).suffix.lower() + ending if ending == ".gz" else ending


def read_source(file: TableSource, kind: FrameKind, **more: Any) -> Any:
    """A table as a frame of one library, which gets `more` options."""
    module, function, options = _READERS[kind, file.format]
    content: Any = file.content if isinstance(file.content, Path) else file.open_bytes()
    if file.format == "csv":
        options = options | _separated(kind, file.mark)
        if file.encoding != "utf-8-sig":
            with file.refusing(), file.open_text() as lines:
                content = BytesIO(lines.read().encode("utf-8"))
        elif file.zipped:
            content = file.open_bytes()
    with file.refusing():
        return getattr(import_module(module), function)(content, **options, **more)


def _separator(first: str) -> str:
    """The mark between fields: a comma, unless the first line has none and has another one."""
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


def library(like: FrameKind | None) -> FrameKind:
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


def refuse_ragged(file: TableSource) -> int:
    """Refuses what readers would accept in silence: a column name used twice, a line cut short.

    Args:
        file: A CSV file.

    Returns:
        How many rows it has.
    """
    refused, mark = f"{file.name} could not be read as a table:", file.mark
    with file.refusing(), file.open_text("replace") as lines, _any_field():
        reader = csv.reader(lines, delimiter=mark)
        rows = _rows(reader)
        count = 0
        try:
            names = next(rows, (1, []))[1]
            for line, row in rows:
                count += 1
                if len(row) == len(names):
                    continue
                several, last = reader.line_num > line, next(rows, None) is None
                if len(row) > len(names):
                    columns = f"{len(names)} column" + ("s" if len(names) > 1 else "")
                    said = "a comma" if mark == "," else repr(mark)
                    hint = f", and the first line names {columns}. Put a value with {said} in it in"
                    raise InputError(
                        f"{refused} line {line} has {len(row)} fields{hint} double quotes."
                    )
                hint = ": the file may be cut short."
                if several:
                    hint = ": a double quote may never be closed there."
                if not last:
                    hint = ". Where a value is missing, leave its comma."
                raise InputError(
                    f"{refused} line {line} has {len(row)} of {len(names)} fields{hint}"
                )
        except csv.Error:  # left to the reader of the table, which describes it
            return count
    for k, column in enumerate(names):
        if column and column in names[:k]:
            raise InputError(
                f"{refused} column '{column}' is in the table twice. Rename one of them."
            )
    return count


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
        path: `.csv`, `.csv.gz` or `.parquet`; a file of that name is replaced.

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
    data = write_bytes(frame, ending_of(path), f"'{path.name}'")
    write_whole(path, lambda temporary: temporary.write_bytes(data))


def write_bytes(frame: Any, ending: str, name: str = "The table") -> bytes:
    """A frame as a file's bytes, for a pipe.

    Args:
        frame: As for `write_file`.
        ending: `.csv`, `.csv.gz` or `.parquet`.
        name: What messages call it.

    Examples:
        >>> import numpy as np
        >>> from lapace.table import plain_frame
        >>> write_bytes(plain_frame("array", {"age": np.array([31, 44])}), ".csv").split()
        [b'age', b'31', b'44']
    """
    if ending not in WRITTEN:
        raise InputError(f"{name} is not written: files end in .csv, .csv.gz or .parquet.")
    content = BytesIO()
    table = plain_columns(frame)
    with refusing_columns(name):
        (table.write_parquet if ending == ".parquet" else table.write_csv)(content)
    return zip_bytes(content.getvalue()) if ending == ".csv.gz" else content.getvalue()


def zip_bytes(data: bytes) -> bytes:
    """Compresses with gzip, to the same bytes at any time; such parts may follow each other."""
    return gzip.compress(data, compresslevel=6, mtime=0)


def plain_columns(frame: Any) -> nw.DataFrame[Any]:
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
def refusing_columns(name: str) -> Iterator[None]:
    """Says so where a column is of a kind that no file can hold."""
    try:
        yield
    except (OSError, InputError):
        raise
    except Exception as error:  # in the library's own words
        raise InputError(f"{name} could not be written: {first_line(error)}") from error


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
    temporary = beside(path)
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


def beside(path: Path) -> Path:
    """A name for a file, or a folder, in which the content of `path` is written first.

    It names the machine and the process: what a process that was killed has left is removed.
    """
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    for left in path.parent.glob(f".{glob.escape(path.name)}.{host}-*"):
        found = re.match(r"(\d+)-", left.name.rpartition(f".{host}-")[2])
        if found and not _is_alive(int(found[1])):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(True)
    ours = f"{host}-{os.getpid()}-{secrets.token_hex(8)}"
    return path.with_name(f".{path.name}.{ours}{path.suffix}")


def _is_alive(process: int) -> bool:
    """Whether there is a process of that number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # someone else's, or no number of a process
        return True
    return True


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
