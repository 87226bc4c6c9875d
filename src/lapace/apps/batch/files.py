"""Parquet files near and far, and the parts they are cut into.

Inputs are found by file, folder, pattern or address of pyarrow's filesystems. Each row group of a
file is one part, the unit of work and of output: its name, its rows and the chunks they are
explained in follow from the input alone, so it does not matter who makes it, when, or how often.
Outputs are written aside and renamed, so a file is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lapace.errors import InputError, LapaceError, first_line, import_extra
from lapace.files import write_whole

__all__ = ["FileParts", "Part", "Place", "find_inputs", "need_pyarrow", "read_footers", "read_part"]

ENDINGS = (".parquet", ".pq")
TEMPORARY = re.compile(r"\..+[.-][0-9a-f]{16}(\.\w+)?")  # as `write_whole` names files
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
LOCK = ".lock"
READERS = 16  # footers read at a time
STEM = 40  # characters of a file's name in its parts' names


def need_pyarrow(module: str = "pyarrow") -> Any:
    """Imports a module of pyarrow, or raises an ImportError that says what to install."""
    import_extra("pyarrow", "arrow", "Reading Parquet in parts")
    return import_module(module)


@dataclass(frozen=True)
class Place:
    """A file or folder on one of pyarrow's filesystems.

    Attributes:
        path: The path on the filesystem; absolute on this machine.
        address: An address that opens the filesystem, such as `s3://bucket`; empty for this
            machine. It may hold credentials, so it is never shown.

    Examples:
        >>> (Place("bucket/out", "s3://key:secret@bucket/?region=eu") / "part").shown
        's3://bucket/out/part'
    """

    path: str
    address: str = ""

    @classmethod
    def of(cls, text: str | os.PathLike[str]) -> Place:
        """Returns the place that a path or an address names."""
        plain = os.fspath(text)
        if "://" not in plain:
            return cls(str(Path(plain).absolute()))
        path = _filesystem(plain)[1]
        return cls(path) if plain.startswith("file://") else cls(path, plain)

    @property
    def local(self) -> Path | None:
        """The path, if it is one of this machine."""
        return None if self.address else Path(self.path)

    @property
    def shown(self) -> str:
        """The place as messages and results show it: without credentials."""
        return f"{self.address.partition('://')[0]}://{self.path}" if self.address else self.path

    @property
    def filesystem(self) -> Any:
        """The filesystem of pyarrow."""
        return _filesystem(self.address)[0]

    def __truediv__(self, name: str) -> Place:
        return Place(f"{self.path.rstrip('/')}/{name}", self.address)

    def names(self) -> list[str]:
        """Lists the names of the files in this folder; none if there is no folder."""
        fs = need_pyarrow("pyarrow.fs")
        infos = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted(info.base_name for info in infos if info.is_file)

    def find(self) -> list[Place]:
        """Lists the Parquet files that this place names, as a file, a folder or a pattern."""
        from fsspec.implementations.arrow import ArrowFSWrapper

        files = ArrowFSWrapper(self.filesystem)
        if re.search(r"[*?\[]", self.path):
            paths = files.glob(self.path)
        elif files.isfile(self.path):
            return [self]
        else:
            below = len(self.path.rstrip("/")) + 1
            hidden = re.compile(r"(^|/)[_.]")
            paths = [path for path in files.find(self.path) if not hidden.search(path[below:])]
        return [Place(path, self.address) for path in paths if path.endswith(ENDINGS)]

    def make_folder(self) -> None:
        """Makes the folder if there is none yet."""
        try:
            self.filesystem.create_dir(self.path, recursive=True)
        except OSError as error:
            raise InputError(
                f"The folder '{self.shown}' cannot be made: {first_line(error)}"
            ) from None

    def read(self) -> bytes:
        """Reads the content of the file."""
        with self.filesystem.open_input_stream(self.path) as stream:
            content: bytes = stream.read()
        return content

    def write(self, write: Callable[[Any], None]) -> None:
        """Writes the file aside and renames it, so that it is there whole or not at all.

        Args:
            write: Called with a stream to write to.
        """
        if self.local is not None:

            def write_path(path: Path) -> None:
                with path.open("wb") as stream:
                    write(stream)

            write_whole(self.local, write_path)
            return
        folder, _, name = self.path.rpartition("/")
        temporary = f"{folder}/.{name}.{secrets.token_hex(8)}"
        try:
            with self.filesystem.open_output_stream(temporary) as stream:
                write(stream)
            self.filesystem.move(temporary, self.path)
        except BaseException:
            with suppress(OSError):
                self.filesystem.delete_file(temporary)
            raise

    def sweep(self) -> None:
        """Removes temporary files that killed writers left in this folder."""
        for name in self.names():
            if TEMPORARY.fullmatch(name):
                with suppress(OSError):
                    self.filesystem.delete_file((self / name).path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second run out of a local folder; the lock ends with the process."""
        if self.local is None or os.name != "posix":
            yield
            return
        import fcntl

        with (self.local / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(
                    f"Another run writes to '{self.shown}'. Wait for it, or name another folder."
                ) from None
            try:
                yield
            finally:
                (self.local / LOCK).unlink(missing_ok=True)


@cache
def _filesystem(address: str) -> tuple[Any, str]:
    """Opens a filesystem, and returns it with the path that the address names on it."""
    fs = need_pyarrow("pyarrow.fs")
    if not address:
        return fs.LocalFileSystem(), ""
    try:
        filesystem, path = fs.FileSystem.from_uri(address)
    except Exception as error:  # each filesystem has its own errors, and may be another library's
        scheme, _, rest = address.partition("://")
        host, slash, path = rest.partition("?")[0].partition("/")
        plain = f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
        raise InputError(f"'{plain}' cannot be opened: {first_line(error)}") from None
    return filesystem, path


def find_inputs(sources: Sequence[str | os.PathLike[str]], output: Place | None) -> list[Place]:
    """Finds the Parquet files that sources name, each once, in order of their names.

    Args:
        sources: Files, folders (with all below them), patterns such as `data/*.parquet`, or
            addresses of these. Names that begin with `_` or `.` are skipped in folders.
        output: A folder whose files are no input.
    """
    inputs: dict[str, Place] = {}
    skipped = None if output is None else f"{output.shown.rstrip('/')}/"
    for source in sources:
        place = Place.of(source)
        try:
            files = place.find()
        except OSError as error:
            raise LapaceError(f"'{place.shown}' cannot be listed: {first_line(error)}") from None
        files = [file for file in files if skipped is None or not file.shown.startswith(skipped)]
        if not files:
            raise InputError(
                f"There is no Parquet file in '{place.shown}'. Name files that end in "
                ".parquet, a folder of them, or a pattern in quotes."
            )
        inputs |= {file.shown: file for file in files}
    return [inputs[name] for name in sorted(inputs)]


# ------------------------------------------------------------------------------------------------
# Parts


@dataclass(frozen=True)
class Part:
    """One row group of one file.

    Attributes:
        name: The file its outcomes are written to.
        place: The file it is read from.
        group: The number of the row group.
        first: The position in the file of its first row.
        rows: How many rows it has.
        keys: Columns that only the path of the file holds, and their value for all its rows.
        footer: A hash of the file's footer and size, which changes when the file does.
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
        unreadable: Why it has no parts; empty if it has.
    """

    source: str
    parts: tuple[Part, ...] = ()
    types: Mapping[str, Any] | None = None
    unreadable: str = ""


def read_footers(files: Sequence[Place]) -> list[FileParts]:
    """Cuts every file into parts by its footer; no rows are read."""
    keys = [_path_keys(file.shown) for file in files]
    kinds = _key_kinds(keys)
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda file, own: _read_footer(file, own, kinds), files, keys))


def _read_footer(
    file: Place, path_keys: Mapping[str, str | None], kinds: Mapping[str, type]
) -> FileParts:
    arrow, parquet = need_pyarrow(), need_pyarrow("pyarrow.parquet")
    try:
        with file.filesystem.open_input_file(file.path) as stream:
            size = stream.size()
            length = int.from_bytes(stream.read_at(8, max(0, size - 8))[:4], "little")
            begin = max(0, size - 8 - length)
            content = stream.read_at(size - begin, begin)
            opened = parquet.ParquetFile(stream)
            metadata, schema = opened.metadata, opened.schema_arrow
            counts = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
    except Exception as error:  # pyarrow describes a broken file in its own ways
        return FileParts(file.shown, unreadable=f"It is no Parquet file: {first_line(error)}")
    footer = hashlib.sha256(content + size.to_bytes(8, "little")).hexdigest()
    keys = {n: v for n, v in path_keys.items() if n not in schema.names}
    values = tuple((name, v if v is None else kinds[name](v)) for name, v in keys.items())
    parts, first = [], 0
    for group, rows in enumerate(counts):
        name = _part_name(file.shown, group)
        parts.append(Part(name, file, group, first, rows, values, footer))
        first += rows
    types = {name: schema.field(name).type for name in dict.fromkeys(schema.names)}
    types |= {name: arrow.int64() if kinds[name] is int else arrow.string() for name in keys}
    return FileParts(file.shown, tuple(parts), types)


def _path_keys(path: str) -> dict[str, str | None]:
    """Reads columns that folders of a path name, in Hive's way.

    Examples:
        >>> _path_keys("loans/year=2024/home=own/part-0.parquet")
        {'year': '2024', 'home': 'own'}
    """
    pairs = (part.partition("=") for part in path.split("/")[:-1] if "=" in part)
    return {
        unquote(name): None if value == NO_VALUE else unquote(value) for name, _, value in pairs
    }


def _key_kinds(keys: Iterable[Mapping[str, str | None]]) -> dict[str, type]:
    """Decides for each key in the paths whether its values are whole numbers or text."""
    values: dict[str, list[str]] = {}
    for own in keys:
        for name, value in own.items():
            values.setdefault(name, []).extend([] if value is None else [value])
    return {
        name: int if all(re.fullmatch(r"-?(0|[1-9]\d{0,17})", v) for v in texts) else str
        for name, texts in values.items()
    }


def _part_name(source: str, group: int) -> str:
    """Names a part by its file, a hash of the whole path, and the row group.

    Examples:
        >>> _part_name("/data/loans 2024.parquet", 3)
        'loans-2024-24b02209-00003.parquet'
    """
    stem = source.rpartition("/")[2].rpartition(".")[0]
    plain = re.sub(r"[^A-Za-z0-9]+", "-", stem).strip("-")[:STEM] or "part"
    return f"{plain}-{hashlib.sha256(source.encode()).hexdigest()[:8]}-{group:05d}.parquet"


def read_part(part: Part, columns: Sequence[str]) -> Any:
    """Reads some columns of a part, those of its path included, as a pyarrow table.

    Raises:
        LapaceError: The rows cannot be read, or the file lacks a column.
    """
    arrow, parquet = need_pyarrow(), need_pyarrow("pyarrow.parquet")
    keys = dict(part.keys)
    try:
        with part.place.filesystem.open_input_file(part.place.path) as stream:
            opened = parquet.ParquetFile(stream)
            in_file = [name for name in columns if name in opened.schema_arrow.names]
            if why := lacking_columns(columns, [*in_file, *keys]):
                raise LapaceError(why)
            table = opened.read_row_group(part.group, columns=in_file)
    except LapaceError:
        raise
    except Exception as error:  # a page that is broken, or a disk that is gone
        raise LapaceError(f"Row group {part.group}: {first_line(error)}") from error
    for name, value in keys.items():
        if name in columns:
            kind = arrow.int64() if isinstance(value, int) else arrow.string()
            table = table.append_column(name, arrow.array([value] * len(table), kind))
    return table


def lacking_columns(columns: Iterable[str], names: Iterable[str]) -> str:
    """Says which columns a file lacks; empty if it lacks none."""
    names = set(names)
    lacking = [name for name in columns if name not in names]
    listed = ", ".join(f"'{name}'" for name in lacking[:5])
    return f"It has no column {listed}." if lacking else ""
