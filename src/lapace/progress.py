"""Progress of long calls: the type of callbacks, and the line that is printed by default."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import TypeAlias

__all__ = ["Progress", "progress_line"]

Progress: TypeAlias = Callable[[str, int, int], None]

PATIENCE = 5.0  # seconds without a word


def progress_line() -> Progress | None:
    """Returns a callback that prints a line on standard error once five seconds have passed.

    Returns None where standard error is neither a terminal nor a notebook's.
    """
    stream, start = sys.stderr, perf_counter()
    if stream is None or not (stream.isatty() or type(stream).__module__.startswith("ipykernel")):
        return None

    def show(what: str, done: int, total: int) -> None:
        if perf_counter() - start >= PATIENCE:
            stream.write(f"\r{what}: {done / total:.0%}" + ("\n" if done == total else ""))
            stream.flush()

    return show
