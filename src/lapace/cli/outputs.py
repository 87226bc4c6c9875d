"""Where results go: checked before any work, written whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapace.cli.options import Format
from lapace.cli.terminal import Terminal, as_text
from lapace.errors import InputError

__all__ = ["STDOUT", "Destination", "destination", "file_for", "together"]

STDOUT = "-"
ENDINGS = {
    ".csv": Format.csv,
    ".parquet": Format.parquet,
    ".json": Format.json,
    ".txt": Format.table,
}


@dataclass(frozen=True)
class Destination:
    """Where a result goes, and as what.

    Attributes:
        path: The file; None for standard output.
        format: How it is written.
    """

    path: Path | None
    format: Format

    def put(
        self,
        terminal: Terminal,
        *,
        table: Callable[[], Iterable[Any]],
        frame: Callable[[], Any],
        values: Callable[[], Any],
    ) -> None:
        """Writes the result.

        Args:
            terminal: For standard output.
            table: Makes what instances read.
            frame: Makes the data frame.
            values: Makes plain JSON values.
        """
        from lapace.table import write_bytes, write_file, write_json, write_whole

        path = self.path
        if self.format is Format.table and path is None:
            terminal.show(*table())
        elif self.format is Format.table and path is not None:
            text = as_text(*table())
            write_whole(path, lambda p: p.write_text(text, encoding="utf-8"))
        elif self.format is Format.json and path is None:
            terminal.write(json.dumps(values(), allow_nan=False) + "\n")
        elif self.format is Format.json and path is not None:
            write_json(path, values())
        elif path is None:
            terminal.write(write_bytes(frame(), f".{self.format}"))
        else:
            write_file(frame(), path)


def destination(
    output: str | None, format_: Format | None, inputs: Sequence[str | Path]
) -> Destination:
    """Where a result is to go, refused before any work if it cannot.

    Args:
        output: A file, or `-` or None for standard output.
        format_: How it is to be written; by default what the file's ending says.
        inputs: Files that are read and must not be written over.

    Examples:
        >>> destination(None, None, [])
        Destination(path=None, format=<Format.table: 'table'>)
    """
    if output is None or output == STDOUT:
        chosen = format_ or Format.table
        if chosen is Format.parquet and sys.stdout.isatty():
            raise InputError("Parquet is not for a terminal to show. Name a file: -o OUT.parquet")
        return Destination(None, chosen)
    path = Path(output)
    ending = ENDINGS.get(path.suffix.lower())
    if ending is None:
        raise InputError(
            f"'{path.name}' is not written: results end in .csv, .parquet, .json or .txt (a table)."
        )
    if format_ not in (None, ending):
        raise InputError(
            f"--format {format_} does not go into '{path.name}'. Leave one of them out."
        )
    return Destination(file_for(path, inputs), ending)


def file_for(path: Path, inputs: Sequence[str | Path], endings: Sequence[str] = ()) -> Path:
    """A file that can be written, or a sentence why not."""
    if endings and path.suffix.lower() not in endings:
        raise InputError(f"'{path.name}' is not written: it should end in {' or '.join(endings)}.")
    if path.is_dir():
        raise InputError(f"'{path}' is a folder. Name a file in it.")
    if not path.parent.is_dir():
        raise InputError(f"There is no folder '{path.parent}' to write '{path.name}' in.")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"Nothing may be written in the folder '{path.parent}'.")
    for source in inputs:
        if path.exists() and Path(source).exists() and path.samefile(source):
            raise InputError(f"'{path}' is what is read. Write to another file.")
    return path


@contextmanager
def together(*paths: Path) -> Iterator[list[Path]]:
    """Several files that belong together: all of them are put in place, or none.

    They are written in a folder of their own beside their place, under their own names, and moved
    at the end, which an interruption waits for.
    """
    folder = paths[0].parent / f".{paths[0].name}.{secrets.token_hex(8)}"
    folder.mkdir()
    try:
        yield [folder / path.name for path in paths]
        with _undisturbed():
            for path in paths:
                (folder / path.name).replace(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keeps an interruption waiting for what must not be left half done."""
    waiting: list[int] = []
    try:
        before = signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))
    except ValueError:  # not the main thread: nobody interrupts it
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting:
        raise KeyboardInterrupt
