"""Standard output for what was asked for, standard error for everything else."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any, TypeAlias

from rich.console import Console
from rich.text import Text

__all__ = ["Progress", "Terminal", "as_text", "coloured"]

Progress: TypeAlias = Callable[[str, int, int], None]

WIDTH = 100  # of text that goes to a pipe or a file
VERDICTS = {"passes": "green", "care": "yellow", "fails": "bold red"}


class Terminal:
    """Where a command talks.

    Args:
        quiet: Say nothing but what was asked for, and errors.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def say(self, text: str) -> None:
        """A remark beside the result, on standard error."""
        if not self.quiet:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def show(self, *what: Any) -> None:
        """The result, for instances, on standard output."""
        if sys.stdout.isatty():
            _print(Console(file=sys.stdout), what)
        else:
            self.write(as_text(*what))

    def write(self, content: str | bytes) -> None:
        """The result, to the byte, on standard output."""
        if isinstance(content, bytes):
            sys.stdout.flush()
            sys.stdout.buffer.write(content)
        else:
            sys.stdout.write(content)
        sys.stdout.flush()

    @contextmanager
    def progress(self) -> Iterator[Progress | None]:
        """A bar on standard error while something long runs; None where nobody looks at it."""
        if self.quiet or not sys.stderr.isatty():
            yield None
            return
        from rich import progress

        console = Console(stderr=True)
        bar = progress.Progress(
            "{task.description}",
            progress.BarColumn(40),
            progress.TaskProgressColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        with bar:
            tasks: dict[str, progress.TaskID] = {}

            def advance(name: str, done: int, total: int) -> None:
                if name not in tasks:
                    tasks[name] = bar.add_task(name, total=total)
                bar.update(tasks[name], completed=done, total=total)

            yield advance


def as_text(*what: Any) -> str:
    r"""What a terminal would show, without colours and at a fixed width.

    Examples:
        >>> as_text(Text("passes", "green"))
        'passes\n'
    """
    content = StringIO()
    console = Console(file=content, width=WIDTH, color_system=None, force_terminal=False)
    _print(console, what)
    return "".join(f"{line.rstrip()}\n" for line in content.getvalue().splitlines())


def _print(console: Console, what: Iterable[Any]) -> None:
    for part in what:
        # A text that brings its own lines keeps them.
        console.print(part, soft_wrap=isinstance(part, Text) and bool(part.no_wrap))


def coloured(report: str) -> Text:
    """A report's text with its verdicts in colour."""
    text = Text(report, no_wrap=True)
    for found in re.finditer(r"^  (passes|care|fails)\b", report, flags=re.MULTILINE):
        text.stylize(VERDICTS[found[1]], *found.span(1))
    text.stylize("bold", 0, len(report.partition("\n")[0]))
    return text
