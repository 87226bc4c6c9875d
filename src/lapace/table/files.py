"""Tables in files: CSV and Parquet, read with whichever library is there, written whole."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import secrets
from collections.abc import Callable, Iterable
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

from lapace.errors import InputError
from lapace.table.frames import FrameKind

PARQUET = b"PAR1"  # how such a file begins
# One line per library and ending; every one imports its library where it is used. Where a path is
# read or written, so is a file in memory.
_READERS: dict[tuple[str, str], Callable[[Any], Any]] = {
    # Whole columns at a time: a type must not depend on where the reader happened to pause.
    ("pandas", ".csv"): lambda path: _module("pandas").read_csv(path, low_memory=False),
    ("polars", ".csv"): lambda path: _module("polars").read_csv(path, infer_schema_length=None),
    ("pyarrow", ".csv"): lambda path: _module("pyarrow.csv").read_csv(path),
    ("pandas", ".parquet"): lambda path: _module("pandas").read_parquet(path),
    ("polars", ".parquet"): lambda path: _module("polars").read_parquet(path),
    ("pyarrow", ".parquet"): lambda path: _module("pyarrow.parquet").read_table(path),
}
_WRITERS: dict[tuple[str, str], Callable[[Any, Any], Any]] = {
    ("pandas", ".csv"): lambda frame, path: frame.to_csv(path, index=False),
    ("polars", ".csv"): lambda frame, path: frame.write_csv(path),
    ("pyarrow", ".csv"): lambda frame, path: _module("pyarrow.csv").write_csv(frame, path),
    ("pandas", ".parquet"): lambda frame, path: frame.to_parquet(path, index=False),
    ("polars", ".parquet"): lambda frame, path: frame.write_parquet(path),
    ("pyarrow", ".parquet"): lambda frame, path: _module("pyarrow.parquet").write_table(
        frame, path
    ),
}


def read_file(path: str | Path, like: FrameKind | None = None) -> Any:
    """A CSV or Parquet file as a frame.

    Args:
        path: `.csv` or `.parquet`.
        like: The library to read with; by default the first that is installed of pandas,
            polars and pyarrow.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = Path(folder, "instances.csv").write_text("age,31,44".replace(",", chr(10)))
        ...     len(read_file(f"{folder}/instances.csv"))
        2
    """
    path = Path(path)
    kind = _reading(like)
    reader = _READERS.get((kind, path.suffix.lower()))
    if reader is None:
        raise InputError(f"'{path.name}' is not read: files end in .csv or .parquet.")
    if not path.is_file():
        raise InputError(f"There is no file '{path.name}' in '{path.parent}'.")
    if path.suffix.lower() == ".csv":
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
            _refuse_ragged(lines, f"'{path.name}'")
    return _read(reader, path, f"'{path.name}'")


def read_bytes(content: bytes, like: FrameKind | None = None) -> Any:
    r"""What a CSV or Parquet file holds, as a frame: for tables that come through a pipe.

    Args:
        content: The file's bytes; Parquet is known by how it begins.
        like: As for `read_file`.

    Examples:
        >>> len(read_bytes(b"age,home" + b"\n31,own" * 2))
        2
    """
    kind = _reading(like)
    ending = ".parquet" if content.startswith(PARQUET) else ".csv"
    if ending == ".csv":
        text = TextIOWrapper(BytesIO(content), "utf-8-sig", errors="replace", newline="")
        _refuse_ragged(text, "Standard input")
    return _read(_READERS[kind, ending], BytesIO(content), "Standard input")


def _reading(like: FrameKind | None) -> FrameKind:
    """The library to read with, if it is there."""
    kind = like or _installed()
    if kind not in ("pandas", "polars", "pyarrow"):
        raise InputError(f"Files are read as pandas, polars or pyarrow, not as {kind}.")
    if not importlib.util.find_spec(kind):
        raise InputError(f"Reading with {kind} needs it installed: pip install '{_extra(kind)}'.")
    return kind


def _read(reader: Callable[[Any], Any], source: Any, name: str) -> Any:
    try:
        return reader(source)
    except Exception as error:  # every library has its own words for a broken file
        raise InputError(f"{name} could not be read as a table: {_reason(error)}") from error


def _refuse_ragged(lines: Iterable[str], name: str) -> None:
    """Refuses what readers mend in silence: a name that is there twice, a line cut short.

    Args:
        lines: A CSV file's lines, their ends as they are.
        name: What to call the file.
    """
    reader = csv.reader(lines)
    header: list[str] = []
    wrong: tuple[int, int, int] | None = None  # first line, last line, fields
    end = 0
    try:
        for row in reader:
            first, end = end + 1, reader.line_num
            if not row or (len(row) == 1 and row[0].isspace()):  # readers skip empty lines
                continue
            if wrong is not None:
                raise InputError(_ragged(name, wrong, len(header), last=False))
            if not header:
                header = row
            elif len(row) != len(header):
                wrong = first, end, len(row)
    except csv.Error:  # the reader of the table says it in its own words
        return
    if wrong is not None:
        raise InputError(_ragged(name, wrong, len(header), last=True))
    named = [column for column in header if column]
    if len(set(named)) < len(named):
        twice = next(column for k, column in enumerate(named) if column in named[:k])
        raise InputError(
            f"{name} could not be read as a table: column '{twice}' is in the table twice. Rename "
            "one of them."
        )


def _ragged(name: str, wrong: tuple[int, int, int], wanted: int, last: bool) -> str:
    first, end, fields = wrong
    told = f"{name} could not be read as a table: line {first} has"
    if fields > wanted:
        columns = f"{wanted} column" + ("s" if wanted > 1 else "")
        return (
            f"{told} {fields} fields, and the first line names {columns}. Put a value with a comma "
            "in it in double quotes."
        )
    if last and end > first:
        return f"{told} {fields} of {wanted} fields: a double quote may never be closed there."
    if last:
        return f"{told} {fields} of {wanted} fields: the file may be cut short."
    return f"{told} {fields} of {wanted} fields. Where a value is missing, leave its comma."


def write_file(frame: Any, path: str | Path) -> None:
    """Writes a frame as CSV or Parquet, whole or not at all.

    Args:
        frame: A pandas, polars or pyarrow frame.
        path: `.csv` or `.parquet`; a file that is there is replaced.

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
    writer = _writer(frame, path.suffix.lower(), path.name)
    try:
        write_whole(path, lambda temporary: writer(frame, temporary))
    except (OSError, InputError):
        raise
    except Exception as error:  # a column no file can hold, in the library's own words
        raise InputError(f"'{path.name}' could not be written: {_reason(error)}") from error


def write_bytes(frame: Any, ending: str) -> bytes:
    """A frame as a CSV or Parquet file's bytes, for a pipe.

    Args:
        frame: A pandas, polars or pyarrow frame.
        ending: `.csv` or `.parquet`.

    Examples:
        >>> import numpy as np
        >>> from lapace.table import plain_frame
        >>> write_bytes(plain_frame("array", {"age": np.array([31, 44])}), ".csv").split()
        [b'age', b'31', b'44']
    """
    writer, content = _writer(frame, ending, "The table"), BytesIO()
    try:
        writer(frame, content)
    except Exception as error:
        raise InputError(f"The table could not be written: {_reason(error)}") from error
    return content.getvalue()


def _writer(frame: Any, ending: str, name: str) -> Callable[[Any, Any], Any]:
    kind = type(frame).__module__.partition(".")[0]
    if not any(kind == known for known, _ in _WRITERS):
        raise InputError(
            f"A {type(frame).__name__} is not written. Hand over a pandas, polars or pyarrow frame."
        )
    writer = _WRITERS.get((kind, ending))
    if writer is None:
        raise InputError(f"'{name}' is not written: files end in .csv or .parquet.")
    return writer


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Calls `write` on a file beside `path`, then moves it into place: whole or not at all.

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
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}{path.suffix}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | Path, data: Any) -> None:
    """Writes plain JSON values, whole or not at all."""
    text = json.dumps(data, allow_nan=False)
    write_whole(Path(path), lambda p: p.write_text(text, encoding="utf-8"))


def read_json(path: str | Path, what: str) -> Any:
    """Reads JSON values back.

    Args:
        path: The file.
        what: What it should hold, for the sentence where it does not.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no file '{path}' to read {what} from.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' could not be read as {what}: {_reason(error)}") from None


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _extra(kind: str) -> str:
    return f"lapace[{'arrow' if kind == 'pyarrow' else kind}]"


def _installed() -> FrameKind:
    kinds: tuple[FrameKind, ...] = ("pandas", "polars", "pyarrow")
    for kind in kinds:
        if importlib.util.find_spec(kind):
            return kind
    raise InputError("Reading a file needs a dataframe library: pip install 'lapace[pandas]'.")
