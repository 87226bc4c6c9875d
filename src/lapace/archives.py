"""Reads zip archives from strangers without unpacking more than a limit allows.

A few hundred kilobytes can unpack to gigabytes, and JSON becomes objects of thirty times its size.
Every file that is read goes through `unpack`: sizes as declared, archives inside included, and the
objects of JSON parts are added up first, and no part gives more than it declared.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

from lapace.errors import InputError

__all__ = ["json_cost", "largest", "unpack"]

LARGEST = 3 * 2**26  # bytes of all parts together, and of the objects JSON becomes
VARIABLE = "LAPACE_LARGEST"
TIGHTEST = 200  # times a part may be larger unpacked; real ones are not ten times
SPARE = 2**20  # bytes a part may always have
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others take memory before they give any

Refusal = Callable[[str], Exception]


def largest() -> int:
    """Returns the bytes a file may unpack to: `LAPACE_LARGEST`, by default 192 MiB.

    Examples:
        >>> largest() >= 2**20
        True
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return LARGEST
    if not text.isdecimal():
        raise InputError(f"{VARIABLE} is {text!r}; it is a number of bytes.")
    return int(text)


def json_cost(content: bytes) -> int:
    """Estimates the bytes that a JSON text takes once it is read, never much less.

    Examples:
        >>> json_cost(b"[[], [], []]")
        492
    """
    objects, lists = content.count(b"{"), content.count(b"[")
    return len(content) + 240 * objects + 88 * lists + 64 * (content.count(b",") + objects)


def unpack(source: Path | bytes, refuse: Refusal) -> dict[str, bytes]:
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


def _cost(name: str, content: bytes, refuse: Refusal) -> int:
    """Returns the bytes a part takes once it is read."""
    if name.endswith(".json"):
        return json_cost(content)
    if not name.endswith(".npz"):
        return len(content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if any(map(_swollen, entries)):
            raise refuse("a part is far too large")
        return len(content) + sum(entry.file_size for entry in entries)


def _swollen(entry: zipfile.ZipInfo) -> bool:
    return entry.file_size > SPARE + TIGHTEST * entry.compress_size
