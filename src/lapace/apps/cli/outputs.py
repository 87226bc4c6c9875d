"""Results on standard output or in a file, whole or not at all; all else on standard error."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias, get_args

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from typer import Option

from lapace.errors import InputError, LapaceError
from lapace.progress import Progress

Format: TypeAlias = Literal["table", "csv", "parquet", "json"]

STDOUT = "-"
ENDINGS: dict[str, Format] = {
    ".csv": "csv", ".csv.gz": "csv", ".parquet": "parquet", ".json": "json"
}  # fmt: skip
WIDTH = 100  # of tables where there is no terminal

# Control characters but for tabs and line ends, lone surrogates, and what reverses the direction.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

quiet: ContextVar[bool] = ContextVar("quiet", default=False)
# The command's arguments that may hold an address, and with it a password.
secretive: ContextVar[tuple[str, ...]] = ContextVar("secretive", default=())
_results: ContextVar[TextIO | None] = ContextVar("_results", default=None)


# ------------------------------------------------------------------------------------------------
# Standard error


def note(text: str) -> None:
    """Prints a remark about the result on standard error, unless the command is quiet."""
    if not quiet.get():
        say(text)


def warn(text: str) -> None:
    """Prints on standard error what must not be overlooked, also where the command is quiet."""
    say(f"lapace: Warning: {text}")


def say(text: str) -> None:
    """Prints a line on standard error: no credentials, no control characters."""
    if "://" in text or secretive.get():
        from lapace.apps.loaders import hide_addresses

        text = hide_addresses(text, secretive.get())
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    r"""A text that a terminal shows as it is: characters that would command it are escaped.

    Examples:
        >>> print(printable("red\x1b[31m and \u202edrawkcab"))
        red\x1b[31m and \u202edrawkcab
    """
    return UNPRINTABLE.sub(lambda m: m[0].encode("unicode_escape").decode(), text)


@contextmanager
def progress(*, shown: bool = True) -> Iterator[Progress | None]:
    """A progress bar on standard error; None where it is no terminal, or the command is quiet."""
    if not shown or quiet.get() or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    with Bar(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def advance(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done, total=total)

        yield advance


# ------------------------------------------------------------------------------------------------
# Standard output


def show(*renderables: Any) -> None:
    """Prints texts and tables of rich on standard output, in colours on a terminal."""
    is_terminal, content = results().isatty(), StringIO()
    console = Console(
        file=content,
        force_terminal=is_terminal,
        width=None if is_terminal else WIDTH,
        color_system="auto" if is_terminal else None,
    )
    for part in renderables:
        console.print(_Printable(part))
    _write("".join(f"{line.rstrip()}\n" for line in content.getvalue().splitlines()))


def write(text: str) -> None:
    """Writes a text on standard output as it is; on a terminal without control characters."""
    _write(printable(text) if results().isatty() else text)


def _write(text: str) -> None:
    try:
        results().write(text)
        results().flush()
    except BrokenPipeError:  # the reader has gone
        raise
    except OSError as error:
        drop_buffered()
        raise LapaceError(
            f"The result could not be written to standard output: {error.strerror}. What is there "
            "is cut short."
        ) from None


def drop_buffered() -> None:
    """Sends what is still buffered for standard output nowhere: it would be flushed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), results().fileno())


@dataclass(frozen=True)
class _Printable:
    """A renderable of rich whose control characters are shown as `printable` shows them."""

    part: Any

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.part, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment._replace(text=text)


def results() -> TextIO:
    """Returns the stream of results: standard output, also inside `results_apart`."""
    return _results.get() or sys.stdout


@contextmanager
def results_apart() -> Iterator[None]:
    """Keeps standard output for results: what classifiers print meanwhile goes to standard error.

    Examples:
        >>> with results_apart():
        ...     write("a result")
        a result
    """
    token = _results.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _results.reset(token)


def keep_native_output_apart() -> None:
    """Sends file descriptor 1 to standard error, and gives `sys.stdout` a copy of it.

    The solver's C code prints, whatever its options say. The copy has a buffer, which raises at a
    full disk: with PYTHONUNBUFFERED Python writes what fits and drops the rest. A stream that was
    closed by whoever started the process is replaced by one that goes nowhere.
    """
    nowhere = Path(os.devnull)
    if sys.stderr is None:
        sys.stderr = nowhere.open("w", encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = nowhere.open("w", encoding="utf-8")
        return
    with suppress(OSError, ValueError):  # replaced by something in memory
        if sys.stdout.fileno() == 1:
            copy = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="replace")
            os.dup2(2, 1)
            sys.stdout = copy


# ------------------------------------------------------------------------------------------------
# Results


@dataclass(frozen=True)
class Output:
    """Options: where a result goes, and in which format."""

    format_: Format | None = Option(None, "--format", help="By default a table to read.")
    output: str | None = Option(
        None,
        "--output",
        "-o",
        help="A file (.csv, .csv.gz, .parquet, .json); - is standard output.",
    )

    @property
    def path(self) -> Path | None:
        """The file; None for standard output."""
        return None if self.output in (None, STDOUT) else Path(str(self.output))

    def checked(
        self, inputs: Iterable[str | Path], formats: Collection[Format] = get_args(Format)
    ) -> Output:
        """Returns the options with the format chosen; refuses what cannot be written.

        Args:
            inputs: Files that are read and must not be overwritten.
            formats: Those the result has.

        Examples:
            >>> Output(None, None).checked([])
            Output(format_='table', output=None)
        """
        from lapace.apps.io import ending_of

        ending = None if self.path is None else ENDINGS.get(ending_of(self.path))
        chosen: Format = self.format_ or ending or "table"
        if self.path is not None and chosen != ending:
            raise InputError(
                f"'{self.path.name}' cannot be written{f' as {self.format_}' * bool(self.format_)}:"
                f" a result ends in {_either(ENDINGS)}."
            )
        if chosen not in formats:
            raise InputError(f"This result is not written as {chosen}, but as {_either(formats)}.")
        if self.path is None and chosen == "parquet":
            raise InputError("Parquet is written to a file: -o OUT.parquet")
        if self.path is not None:
            writable_file(self.path, inputs)
        return replace(self, format_=chosen)

    def put(
        self,
        *,
        table: Callable[[], Iterable[Any]] = list,
        frames: Callable[[], Iterable[Any]] = list,
        values: Callable[[], Any] = list,
        integers: Sequence[str] = (),
        safe: bool | None = False,
    ) -> None:
        """Writes the result in the format chosen.

        Args:
            table: Makes what is printed for reading.
            frames: Makes data frames of the same columns, written one after the other.
            values: Makes plain JSON values.
            integers: Columns of whole numbers that may be empty.
            safe: Whether CSV is written without formulas; None where it goes to a file that ends
                in `.csv`, which a spreadsheet may open.
        """
        from lapace.apps.io import csv_parts, write_frames
        from lapace.files import write_json

        if self.path is None:
            if self.format_ == "table":
                show(*table())
            elif self.format_ == "json":
                write(json.dumps(values(), allow_nan=False) + "\n")
            else:
                for part in csv_parts(frames(), integers, bool(safe)):
                    write(part)
            return
        if self.format_ == "json":
            write_json(self.path, values())
        else:
            safe = self.path.suffix.lower() == ".csv" if safe is None else safe
            write_frames(frames(), self.path, integers=integers, safe=safe)
        note(f"Wrote '{self.path}'.")


def writable_file(path: Path, inputs: Iterable[str | Path], endings: Sequence[str] = ()) -> Path:
    """The path, if a file can be written there; else an `InputError`."""
    if endings and path.suffix.lower() not in endings:
        raise InputError(f"'{path.name}' cannot be written: it must end in {_either(endings)}.")
    if path.is_dir():
        raise InputError(f"'{path}' is a folder. Name a file in it.")
    if not path.parent.is_dir():
        raise InputError(f"There is no folder '{path.parent}' to write '{path.name}' in.")
    for source in inputs:
        if path.exists() and Path(source).exists() and path.samefile(source):
            raise InputError(f"'{path}' is an input of this command. Write to another file.")
    return path


def _either(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
