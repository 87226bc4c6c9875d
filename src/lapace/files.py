"""Files written whole or not at all, JSON files, and zip archives from strangers.

A few hundred kilobytes of a zip archive can unpack to gigabytes, and JSON becomes objects of thirty
times its size. Every archive that is read goes through `unpack`, which adds up the sizes first.
"""

from __future__ import annotations

import glob
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import socket
import stat
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lapace.errors import InputError, first_line

__all__ = [
    "largest",
    "parse_json",
    "read_json",
    "temporary_path",
    "unique_names",
    "unpack",
    "write_json",
    "write_whole",
]

LARGEST = 3 * 2**26  # bytes of all parts of an archive, and of the objects its JSON becomes
VARIABLE = "LAPACE_LARGEST"
TIGHTEST = 200  # times a part may be larger unpacked; real ones are not ten times
SPARE = 2**20  # bytes a part may always have
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others take memory before they give any


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Calls `write` with a temporary path and moves what it wrote to `path`: whole or not at all.

    A link is followed. A file that is replaced keeps its permissions, and the temporary file never
    has more than those.

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
    temporary = temporary_path(path)
    try:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        if mode is not None:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode & 0o600))
        write(temporary)
        if mode is not None:
            temporary.chmod(mode)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno and error.filename in (None, str(temporary)):  # a full disk names none
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def temporary_path(path: Path) -> Path:
    """Returns a new name in the folder of `path`, for a file or folder that replaces it later.

    The name holds the machine and the process. Files of the same `path` that a killed process of
    this machine left behind are removed.
    """
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    for other in path.parent.glob(f".{glob.escape(path.name)}.{host}-*"):
        process = re.match(r"(\d+)-", other.name.rpartition(f".{host}-")[2])
        if process and not _is_alive(int(process[1])):
            shutil.rmtree(other, ignore_errors=True) if other.is_dir() else other.unlink(True)
    ours = f"{host}-{os.getpid()}-{secrets.token_hex(8)}"
    return path.with_name(f".{path.name}.{ours}{path.suffix}")


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # someone else's, or no number of a process
        pass
    return True


def write_json(path: str | Path, data: Any) -> None:
    """Writes plain JSON values, whole or not at all."""
    text = json.dumps(data, allow_nan=False)
    write_whole(Path(path), lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: str | Path, what: str) -> Any:
    """Reads JSON values from a file.

    Args:
        path: The file.
        what: What it should hold, for the error message.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no file '{path}' to read {what} from.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' could not be read as {what}: {first_line(error)}") from None


def parse_json(parts: Mapping[str, bytes], name: str) -> Any:
    """Reads one JSON part of an archive; refuses a name that is twice in one object."""
    try:
        return json.loads(parts[name], object_pairs_hook=unique_names)
    except InputError as error:
        raise InputError(f"The file is damaged: in {name}, {error}.") from None


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the members of a JSON object; raises where two have the same name.

    Examples:
        >>> unique_names([("age", 1), ("age", 2)])
        Traceback (most recent call last):
        lapace.errors.InputError: 'age' is twice in one object
    """
    members = dict(pairs)
    if len(members) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise InputError(f"'{name[:80]}' is twice in one object")
    return members


def largest() -> int:
    """Returns the bytes an archive may unpack to: `LAPACE_LARGEST`, by default 192 MiB."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return LARGEST
    if not text.isdecimal():
        raise InputError(f"{VARIABLE} is {text!r}; it is a number of bytes.")
    return int(text)


def unpack(source: Path | bytes, refuse: Callable[[str], Exception]) -> dict[str, bytes]:
    """Returns the parts of a zip archive by name.

    Args:
        source: The file, or its content.
        refuse: Makes the error to raise, from the reason in a few words.
    """
    with zipfile.ZipFile(source if isinstance(source, Path) else io.BytesIO(source)) as archive:
        entries = archive.infolist()
        if len({entry.filename for entry in entries}) < len(entries):
            raise refuse("it has a part twice")
        if any(entry.compress_type not in PACKED for entry in entries):
            raise refuse("it is compressed by a method that is not used here")
        most = largest()
        if sum(e.file_size for e in entries) > most or any(map(_swollen, entries)):
            raise refuse("a part is far too large")
        parts = {}
        for entry in entries:
            with archive.open(entry) as part:  # never more than was declared, whatever it claims
                parts[entry.filename] = part.read(entry.file_size)
    cost = sum(_cost(name, content, refuse) for name, content in parts.items())
    if cost > most:
        raise refuse("a part is far too large")
    return parts


def _cost(name: str, content: bytes, refuse: Callable[[str], Exception]) -> int:
    """Estimates the bytes that a part takes once it is read, never much less."""
    if name.endswith(".json"):
        objects, lists = content.count(b"{"), content.count(b"[")
        return len(content) + 240 * objects + 88 * lists + 64 * (content.count(b",") + objects)
    if not name.endswith(".npz"):
        return len(content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if any(map(_swollen, entries)):
            raise refuse("a part is far too large")
        return len(content) + sum(entry.file_size for entry in entries)


def _swollen(entry: zipfile.ZipInfo) -> bool:
    return entry.file_size > SPARE + TIGHTEST * entry.compress_size
