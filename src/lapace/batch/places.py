"""Files near and far: local paths and whatever pyarrow's filesystems reach.

Inputs are found by file, folder, pattern or address; outputs are written aside and renamed, so that
a file is there whole or not at all.
"""

from __future__ import annotations

import fnmatch
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from lapace.errors import InputError, LapaceError, first_line, import_extra
from lapace.table import write_whole

__all__ = ["InputFile", "Place", "find_inputs", "need_pyarrow"]

ENDINGS = (".parquet", ".pq")
WILD = re.compile(r"[*?\[]")
ASIDE = re.compile(r"\..+[.-][0-9a-f]{16}(\.\w+)?")  # as `table.write_whole` names files
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
LOCK = ".lock"


def need_pyarrow(module: str = "pyarrow") -> Any:
    """A module of pyarrow, or an ImportError that says what to install."""
    import_extra("pyarrow", "arrow", "Reading Parquet in parts")
    return import_module(module)


@dataclass(frozen=True)
class Place:
    """A file or folder on one of pyarrow's filesystems.

    Attributes:
        text: A local path, absolute, or an address such as `s3://bucket/folder`.

    Examples:
        >>> Place("s3://key:secret@bucket/out?region=eu").shown
        's3://bucket/out'
    """

    text: str

    @classmethod
    def of(cls, text: str | os.PathLike[str]) -> Place:
        """The place that a path or address names."""
        plain = os.fspath(text)
        if plain.startswith("file://"):
            plain = need_pyarrow("pyarrow.fs").FileSystem.from_uri(plain)[1]
        return cls(plain if "://" in plain else str(Path(plain).absolute()))

    @property
    def local(self) -> Path | None:
        """The path, where it is one of this machine."""
        return None if "://" in self.text else Path(self.text)

    @property
    def shown(self) -> str:
        """As messages and results show it: no credentials."""
        return _without_credentials(self.text)

    @property
    def filesystem(self) -> Any:
        """The filesystem of pyarrow."""
        return _opened(self.text)[0]

    @property
    def path(self) -> str:
        """The path on that filesystem."""
        return str(_opened(self.text)[1])

    def __truediv__(self, name: str) -> Place:
        head, mark, query = self.text.partition("?") if "://" in self.text else (self.text, "", "")
        return Place(f"{head.rstrip('/')}/{name}{mark}{query}")

    def files(self) -> list[tuple[str, int]]:
        """Names and sizes of the files in this folder; none where there is no folder."""
        fs = need_pyarrow("pyarrow.fs")
        chosen = fs.FileSelector(self.path, allow_not_found=True)
        found = self.filesystem.get_file_info(chosen)
        return sorted((info.base_name, info.size) for info in found if info.is_file)

    def make_folder(self) -> None:
        """Makes the folder where there is none yet."""
        try:
            self.filesystem.create_dir(self.path, recursive=True)
        except OSError as error:
            raise InputError(
                f"The folder '{self.shown}' cannot be made: {first_line(error)}"
            ) from None

    def read(self) -> bytes:
        """The content of the file."""
        with self.filesystem.open_input_stream(self.path) as stream:
            content: bytes = stream.read()
        return content

    def write(self, write: Callable[[Any], None]) -> None:
        """Writes the file aside and renames it: it is there whole or not at all.

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
        aside = f"{folder}/.{name}.{secrets.token_hex(8)}"
        try:
            with self.filesystem.open_output_stream(aside) as stream:
                write(stream)
            self.filesystem.move(aside, self.path)
        except BaseException:
            with suppress(OSError):
                self.filesystem.delete_file(aside)
            raise

    def sweep(self) -> None:
        """Removes what killed writers left aside in this folder."""
        for name, _ in self.files():
            if ASIDE.fullmatch(name):
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


def _without_credentials(text: str) -> str:
    scheme, mark, rest = text.partition("://")
    authority, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}" if mark else text


@cache
def _opened(text: str) -> tuple[Any, str]:
    """The filesystem and the path on it."""
    fs = need_pyarrow("pyarrow.fs")
    if "://" not in text:
        return fs.LocalFileSystem(), text
    try:
        filesystem, path = fs.FileSystem.from_uri(text)
    except Exception as error:  # each filesystem has its own errors, and may be another library's
        raise InputError(
            f"'{_without_credentials(text)}' cannot be opened: {first_line(error)}"
        ) from None
    return filesystem, path


# ------------------------------------------------------------------------------------------------
# Inputs


@dataclass(frozen=True)
class InputFile:
    """A file of instances, and what its path says of its rows.

    Attributes:
        place: Where it is.
        keys: Columns that only the path holds, as `year=2024/` does.
    """

    place: Place
    keys: tuple[tuple[str, str | None], ...] = ()


def find_inputs(sources: Sequence[str | os.PathLike[str]], output: Place) -> list[InputFile]:
    """The Parquet files that sources name, each once, in order of their names.

    Args:
        sources: Files, folders (with all below them), patterns such as `data/*.parquet`, or
            addresses of these. Names that begin with `_` or `.` are skipped in folders.
        output: A folder whose files are no input.
    """
    found: dict[str, Place] = {}
    for source in sources:
        places = [p for p in _expanded(Place.of(source)) if not _lies_in(p, output)]
        if not places:
            raise InputError(
                f"There is no Parquet file in '{Place.of(source).shown}'. Name files that end in "
                ".parquet, a folder of them, or a pattern in quotes."
            )
        found |= {place.shown: place for place in places}
    return [InputFile(found[name], _keys(name)) for name in sorted(found)]


def _lies_in(place: Place, folder: Place) -> bool:
    return place.shown.startswith(f"{folder.shown.rstrip('/')}/")


def _expanded(place: Place) -> list[Place]:
    """The files of a folder or pattern, or the file itself."""
    fs = need_pyarrow("pyarrow.fs")
    path = place.path
    wild = WILD.search(path)
    try:
        if wild is None:
            info = place.filesystem.get_file_info(path)
            if info.type == fs.FileType.File:
                return [place]
        base = path if wild is None else path[: wild.start()].rpartition("/")[0] or "/"
        chosen = fs.FileSelector(base, recursive=True, allow_not_found=True)
        infos = place.filesystem.get_file_info(chosen)
    except OSError as error:
        raise LapaceError(f"'{place.shown}' cannot be listed: {first_line(error)}") from None
    names = [info.path for info in infos if info.is_file and info.path.endswith(ENDINGS)]
    if wild is not None:
        names = [name for name in names if _matches(name, path)]
    else:
        names = [n for n in names if not _hidden(n[len(base) :])]
    head, mark, query = place.text.partition("?") if place.local is None else (place.text, "", "")
    before = head[: len(head) - len(path)] if head.endswith(path) else ""
    return [Place(f"{before}{name}{mark if place.local is None else ''}{query}") for name in names]


def _matches(name: str, pattern: str) -> bool:
    """Whether a path fits a pattern, whose `*` does not cross folders and whose `**` does."""
    names, patterns = PurePosixPath(name).parts, PurePosixPath(pattern).parts
    if "**" not in patterns:
        pairs = zip(names, patterns, strict=False)
        return len(names) == len(patterns) and all(fnmatch.fnmatchcase(n, p) for n, p in pairs)
    at = patterns.index("**")
    head, tail = patterns[:at], patterns[at + 1 :]
    enough = len(names) >= len(head) + len(tail)
    final = names[len(names) - len(tail) :]
    both = [*zip(names, head, strict=False), *zip(final, tail, strict=False)]
    return enough and all(fnmatch.fnmatchcase(n, p) for n, p in both)


def _hidden(path: str) -> bool:
    return any(part.startswith(("_", ".")) for part in path.strip("/").split("/"))


def _keys(path: str) -> tuple[tuple[str, str | None], ...]:
    """Columns that folders of a path name, in Hive's way.

    Examples:
        >>> _keys("loans/year=2024/home=own/part-0.parquet")
        (('year', '2024'), ('home', 'own'))
    """
    from urllib.parse import unquote

    pairs = (part.partition("=") for part in path.split("/")[:-1] if "=" in part)
    return tuple(
        (unquote(name), None if value == NO_VALUE else unquote(value)) for name, _, value in pairs
    )
