"""Files that are written whole or not at all, and JSON in such files."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lapace.errors import InputError, first_line

__all__ = ["read_json", "temporary_path", "write_json", "write_whole"]


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
        return True
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
