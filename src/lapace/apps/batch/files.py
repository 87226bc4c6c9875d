"""Parquet files near and far, and the parts they are cut into.

Inputs are named by file, folder, pattern or an address that pyarrow's filesystems reach. Each row
group of a file is one part, the unit of work and of output: its name, its rows and the chunks they
are explained in follow from the input alone, so it does not matter who makes it, when, or how
often. Outputs are written aside and renamed, so a file is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lapace.apps.loaders import hide_addresses, without_secrets
from lapace.errors import InputError, LapaceError, first_line, import_extra
from lapace.files import write_whole

__all__ = ["FileParts", "Part", "Place", "find_inputs", "pa", "pq", "read_footers", "read_part"]

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

pa = import_extra("pyarrow", "arrow", "Reading Parquet in parts")
fs = import_extra("pyarrow.fs", "arrow", "Reading Parquet in parts")
pq = import_extra("pyarrow.parquet", "arrow", "Reading Parquet in parts")

ENDINGS = (".parquet", ".pq")
TEMPORARY = re.compile(r"\..+[.-][0-9a-f]{16}(\.\w+)?")  # as `write_whole` names files
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
READERS = 16  # footers read at a time
STEM = 40  # characters of a file's name in its parts' names


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
        infos = self.filesystem.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return [info.base_name for info in infos if info.is_file]

    def find(self) -> list[Place]:
        """Lists the Parquet files that this place names, as a file, a folder or a pattern."""
        from fsspec.implementations.arrow import ArrowFSWrapper

        files = ArrowFSWrapper(self.filesystem)
        if re.search(r"[*?\[]", self.path):
            paths = files.glob(self.path)
        elif files.isfile(self.path):
            return [self]
        else:
            start = len(self.path.rstrip("/")) + 1
            hidden = re.compile(r"(^|/)[_.]")
            paths = [path for path in files.find(self.path) if not hidden.search(path[start:])]
        return [Place(path, self.address) for path in paths if path.endswith(ENDINGS)]

    def make_folder(self) -> None:
        """Makes the folder if there is none yet."""
        try:
            self.filesystem.create_dir(self.path, recursive=True)
        except OSError as error:
            why = first_line(error)
            raise InputError(f"The folder '{self.shown}' cannot be made: {why}") from None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds this folder, if it is on this machine: a second run in it is refused meanwhile."""
        if self.address or fcntl is None:
            yield
            return
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(folder)
            raise InputError(
                f"Another run is writing to '{self.shown}'. Wait for its end, or name another "
                "folder."
            ) from None
        except OSError:  # a network's filesystem that holds nothing
            pass
        try:
            yield
        finally:
            os.close(folder)

    def write(self, write: Callable[[Any], None]) -> None:
        """Writes the file aside and renames it, so that it is there whole or not at all.

        Args:
            write: Called with a stream to write to.
        """

        def write_to(path: Path | str) -> None:
            with self.filesystem.open_output_stream(str(path)) as stream:
                write(stream)

        if not self.address:
            write_whole(Path(self.path), write_to)
            return
        folder, _, name = self.path.rpartition("/")
        temporary = f"{folder}/.{name}.{secrets.token_hex(8)}"
        try:
            write_to(temporary)
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


@cache
def _filesystem(address: str) -> tuple[Any, str]:
    """Opens a filesystem, and returns it with the path that the address names on it."""
    if not address:
        return fs.LocalFileSystem(), ""
    try:
        filesystem, path = fs.FileSystem.from_uri(address)
    except Exception as error:  # each filesystem has its own errors, and may be another library's
        why = hide_addresses(first_line(error), [address])
        raise InputError(f"'{without_secrets(address)}' cannot be opened: {why}") from None
    return filesystem, path


def find_inputs(sources: Sequence[str | os.PathLike[str]], output: Place) -> list[Place]:
    """Finds the Parquet files that sources name, each once, in order of their names.

    Args:
        sources: Files, folders (with all below them), patterns such as `data/*.parquet`, or
            addresses of these. Names that begin with `_` or `.` are skipped in folders.
        output: A folder whose files are no input.
    """
    inputs: dict[str, Place] = {}
    for source in sources:
        place = Place.of(source)
        try:
            files = place.find()
        except OSError as error:
            raise LapaceError(f"'{place.shown}' cannot be listed: {first_line(error)}") from None
        own = f"{output.shown.rstrip('/')}/"
        files = [file for file in files if not file.shown.startswith(own)]
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
        folder_columns: Columns that only the path of the file holds, with their value.
        footer: A hash of the file's footer, which changes when the file does.
    """

    name: str
    place: Place
    group: int
    first: int
    rows: int
    folder_columns: Mapping[str, Any]
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
    parts: Sequence[Part] = ()
    types: Mapping[str, Any] = field(default_factory=dict)
    unreadable: str = ""


def read_footers(files: Sequence[Place]) -> list[FileParts]:
    """Cuts every file into parts by its footer; no rows are read."""
    columns = _folder_columns([file.shown for file in files])
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(_read_footer, files, columns))


def _read_footer(file: Place, folder_columns: Mapping[str, Any]) -> FileParts:
    try:
        with pq.ParquetFile(file.path, filesystem=file.filesystem) as opened:
            metadata, schema = opened.metadata, opened.schema_arrow
    except Exception as error:  # pyarrow describes a broken file in its own ways
        return FileParts(file.shown, unreadable=f"It is not a Parquet file: {first_line(error)}")
    footer = hashlib.sha256(repr(metadata.to_dict()).encode()).hexdigest()
    own = {name: value for name, value in folder_columns.items() if name not in schema.names}
    parts, first = [], 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        name = _part_name(file.shown, group)
        parts.append(Part(name, file, group, first, rows, own, footer))
        first += rows
    types = {name: schema.field(name).type for name in dict.fromkeys(schema.names)}
    types |= {name: pa.scalar(value).type for name, value in own.items()}
    return FileParts(file.shown, parts, types)


def _folder_columns(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Reads columns that folders of paths name, in Hive's way; whole numbers become numbers.

    Examples:
        >>> _folder_columns(["loans/year=2024/home=own/part-0.parquet"])
        [{'year': 2024, 'home': 'own'}]
    """
    columns: list[dict[str, Any]] = []
    for path in paths:
        pairs = (folder.split("=", 1) for folder in path.split("/")[:-1] if "=" in folder)
        columns.append({unquote(n): None if v == NO_VALUE else unquote(v) for n, v in pairs})
    for name in {name for own in columns for name in own}:
        holders = [own for own in columns if own.get(name) is not None]
        if all(re.fullmatch(r"-?(0|[1-9]\d{0,17})", own[name]) for own in holders):
            for own in holders:
                own[name] = int(own[name])
    return columns


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
        InputError: The rows cannot be read.
    """
    in_file = [name for name in columns if name not in part.folder_columns]
    try:
        with pq.ParquetFile(part.place.path, filesystem=part.place.filesystem) as opened:
            table = opened.read_row_group(part.group, columns=in_file)
    except Exception as error:  # a page that is broken, or a disk that is gone
        raise InputError(f"Row group {part.group}: {first_line(error)}") from error
    for name, value in part.folder_columns.items():
        if name in columns:
            kind = pa.string() if value is None else None  # else inferred
            table = table.append_column(name, pa.array([value] * len(table), kind))
    return table
