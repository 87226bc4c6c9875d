"""Results on standard output or in files, whole or not at all; remarks on standard error."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias, get_args

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.text import Text
from typer import Option

from lapace.errors import InputError, LapaceError

Progress: TypeAlias = Callable[[str, int, int], None]
Format: TypeAlias = Literal["table", "csv", "parquet", "json"]

STDOUT = "-"
ENDINGS: dict[str, Format] = {
    ".csv": "csv", ".csv.gz": "csv", ".parquet": "parquet", ".json": "json", ".txt": "table"
}  # fmt: skip
INTEGERS = ("prototype",)  # columns of whole numbers that may be empty
WIDTH = 100  # of text for a pipe or a file

# Control characters but for tabs and line ends, lone surrogates, and what reverses the direction.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# The command's arguments that may hold an address, and with it a password.
secretive: ContextVar[tuple[str, ...]] = ContextVar("secretive", default=())
_results: ContextVar[TextIO | None] = ContextVar("_results", default=None)


@dataclass(frozen=True)
class Terminal:
    """Standard output for results, standard error for everything else."""

    quiet: bool = Option(False, "--quiet", "-q", help="Print only the result, and errors.")

    def note(self, text: str) -> None:
        """Prints a remark about the result on standard error."""
        if not self.quiet:
            say(text)

    def warn(self, text: str) -> None:
        """Prints on standard error what must not be overlooked, also with `quiet`."""
        say(f"lapace: Warning: {text}")

    def note_parts(self, *renderables: Any) -> None:
        """Prints tables and texts as remarks, on standard error."""
        if not self.quiet and sys.stderr.isatty():
            _print(Console(stderr=True), renderables)
        else:
            self.note(_as_text(*renderables).rstrip("\n"))

    def show(self, *renderables: Any) -> None:
        """Prints the result on standard output, in colours on a terminal."""
        if results().isatty():
            _print(Console(file=results()), renderables)
        else:
            self.write(_as_text(*renderables))

    def write(self, content: str | bytes) -> None:
        """Writes the result, to the byte, on standard output."""
        stream = results()
        if stream.isatty():
            text = content if isinstance(content, str) else content.decode("utf-8", "replace")
            content = printable(text)
        try:
            if isinstance(content, bytes):
                stream.flush()
                stream.buffer.write(content)
            else:
                stream.write(content)
            stream.flush()
        except BrokenPipeError:  # the reader has gone
            raise
        except OSError as error:
            raise LapaceError(
                f"The result could not be written to standard output: {error.strerror}. What is "
                "there is cut short."
            ) from None

    @contextmanager
    def progress(self, *, shown: bool = True) -> Iterator[Progress | None]:
        """A progress bar on standard error; None where it is no terminal, or with `quiet`."""
        if not shown or self.quiet or not sys.stderr.isatty():
            yield None
            return
        from rich import progress

        with progress.Progress(console=Console(stderr=True), transient=True) as bar:
            tasks: dict[str, progress.TaskID] = {}

            def advance(name: str, done: int, total: int) -> None:
                if name not in tasks:
                    tasks[name] = bar.add_task(name, total=total)
                bar.update(tasks[name], completed=done, total=total)

            yield advance


def _as_text(*renderables: Any) -> str:
    r"""Renders what a terminal would show, without colours and at a fixed width.

    Examples:
        >>> _as_text(Text("passes", "green"))
        'passes\n'
    """
    content = StringIO()
    console = Console(file=content, width=WIDTH, color_system=None, force_terminal=False)
    _print(console, renderables)
    return "".join(f"{line.rstrip()}\n" for line in content.getvalue().splitlines())


def _print(console: Console, renderables: Iterable[Any]) -> None:
    for part in renderables:
        # A text with lines of its own keeps them.
        whole = isinstance(part, Text) and bool(part.no_wrap)
        console.print(_Printable(part), soft_wrap=whole)


@dataclass(frozen=True)
class _Printable:
    """A renderable of rich whose control characters are shown as `printable` shows them."""

    part: Any

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.part, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment._replace(text=text)


def printable(text: str) -> str:
    r"""A text that a terminal shows as it is: characters that would command it are escaped.

    Examples:
        >>> print(printable("red\x1b[31m and \u202edrawkcab"))
        red\x1b[31m and \u202edrawkcab
    """
    return UNPRINTABLE.sub(lambda m: m[0].encode("unicode_escape").decode(), text)


def say(text: str) -> None:
    """Prints a line on standard error: no credentials, no control characters."""
    if "://" in text or secretive.get():
        from lapace.apps.loaders import hide_addresses

        text = hide_addresses(text, secretive.get())
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def results() -> TextIO:
    """Returns the stream of results: standard output, also inside `results_apart`."""
    return _results.get() or sys.stdout


@contextmanager
def results_apart() -> Iterator[None]:
    """Keeps standard output for results: what else is printed meanwhile goes to standard error.

    Classifiers print, and the solver's C code does too, whatever its options say. Results get a
    buffer of their own, which raises at a full disk: with PYTHONUNBUFFERED Python writes what fits
    and drops the rest.
    """
    if _results.get() is not None:  # `demo` runs other commands
        yield
        return
    own = _duplicate_stdout()
    token = _results.set(own or sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
            results().flush()
    finally:
        _results.reset(token)
        if own is not None:
            os.dup2(own.fileno(), 1)
            with suppress(OSError):  # flushed above, unless an error is on its way already
                own.close()


def _duplicate_stdout() -> TextIO | None:
    """A stream of its own on file descriptor 1, which then leads to standard error."""
    try:
        if sys.stdout.fileno() != 1:
            return None
    except (AttributeError, OSError, ValueError):  # closed, or replaced by something in memory
        return None
    sys.stdout.flush()
    copy = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="replace")
    try:
        os.dup2(2, 1)
    except OSError:  # standard error is closed
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    return copy


# ------------------------------------------------------------------------------------------------
# Files


@dataclass(frozen=True)
class Destination:
    """The place and the format of a result.

    Attributes:
        path: The file; None for standard output.
        format: How it is written.
    """

    path: Path | None
    format: Format

    @property
    def is_screen(self) -> bool:
        """Whether rows appear on a terminal one by one, where a progress bar would disturb them."""
        return self.path is None and self.format in ("csv", "parquet") and results().isatty()

    def put(
        self,
        terminal: Terminal,
        *,
        table: Callable[[], Iterable[Any]] = list,
        frames: Callable[[], Iterable[Any]] = list,
        values: Callable[[], Any] = list,
    ) -> None:
        """Writes the result in the format chosen.

        Args:
            terminal: For standard output.
            table: Makes what is printed for reading.
            frames: Makes data frames of the same columns, written one after the other.
            values: Makes plain JSON values.
        """
        from lapace.apps.io import file_parts, write_frames
        from lapace.files import write_json, write_whole

        path = self.path
        if path is None:
            if self.format == "table":
                terminal.show(*table())
            elif self.format == "json":
                terminal.write(json.dumps(values(), allow_nan=False) + "\n")
            else:
                for part in file_parts(frames(), f".{self.format}", integers=INTEGERS):
                    terminal.write(part)
            return
        if self.format == "table":
            text = _as_text(*table())
            write_whole(path, lambda p: p.write_text(text, encoding="utf-8"))
        elif self.format == "json":
            write_json(path, values())
        else:
            write_frames(frames(), path, integers=INTEGERS)
        terminal.note(f"Wrote '{path}'.")


@dataclass(frozen=True)
class Output:
    """Options: where a result goes, and in which format."""

    format_: Format | None = Option(
        None, "--format", help="By default by the ending of OUT, else a table to read."
    )
    output: str | None = Option(
        None,
        *("--output", "-o"),
        metavar="OUT",
        help="A file (.csv, .csv.gz, .parquet, .json, or .txt for the table), or - for standard "
        "output.",
    )

    def destination(
        self, inputs: Iterable[str | Path], formats: Collection[Format] = get_args(Format)
    ) -> Destination:
        """Returns where the result goes; refuses what cannot be written before any work.

        Args:
            inputs: Files that are read and must not be overwritten.
            formats: Those the result has.

        Examples:
            >>> Output(None, None).destination([])
            Destination(path=None, format='table')
        """
        from lapace.apps.io import ending_of

        path = None if self.output in (None, STDOUT) else Path(str(self.output))
        ending = None if path is None else ENDINGS.get(ending_of(path))
        endings = _either(known for known, name in ENDINGS.items() if name in formats)
        chosen: Format = self.format_ or ending or "table"
        if path is not None and ending is None:
            raise InputError(f"'{path.name}' cannot be written: a result ends in {endings}.")
        if chosen not in formats:
            raise InputError(
                f"This result is not written as {chosen}. Choose --format {_either(formats)}, or a "
                f"file that ends in {endings}."
            )
        if path is not None and chosen != ending:
            raise InputError(
                f"--format {chosen} does not fit '{path.name}'. Leave one of them out."
            )
        if path is None and chosen == "parquet" and results().isatty():
            raise InputError("Parquet cannot be shown in a terminal. Name a file: -o OUT.parquet")
        return Destination(None if path is None else writable_file(path, inputs), chosen)


def writable_file(path: Path, inputs: Iterable[str | Path], endings: Sequence[str] = ()) -> Path:
    """The path, if a file can be written there; else an `InputError`."""
    if endings and path.suffix.lower() not in endings:
        raise InputError(f"'{path.name}' cannot be written: it must end in {_either(endings)}.")
    if path.is_dir():
        raise InputError(f"'{path}' is a folder. Name a file in it.")
    if not path.parent.is_dir():
        raise InputError(f"There is no folder '{path.parent}' to write '{path.name}' in.")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"The folder '{path.parent}' is not writable.")
    for source in inputs:
        if path.exists() and Path(source).exists() and path.samefile(source):
            raise InputError(f"'{path}' is an input of this command. Write to another file.")
    return path


def _either(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
