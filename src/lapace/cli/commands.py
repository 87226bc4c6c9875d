"""The commands by name, an example for each, and what becomes of errors."""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lapace import __version__
from lapace.cli import asking, learning, samples, serving
from lapace.errors import LapaceError, did_you_mean

__all__ = ["EXAMPLES", "app"]

TRACEBACK = "LAPACE_TRACEBACK"
WRONG, UNFORESEEN, INTERRUPTED, TERMINATED, PIPE_CLOSED = 2, 1, 130, 143, 141
# What typer raises at a wrong option or argument, whichever version of click it stands on.
UsageError: Any = typer.BadParameter.__mro__[1]


class Commands(TyperGroup):
    """A group of commands that tells every mistake in one sentence."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs a command; exits with its code, or returns it where `standalone_mode` is off."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            with _settled():
                code = super().main(
                    args, prog_name, complete_var, False, windows_expand_args, **extra
                )
        except Exception as error:
            code = _told(error)
        except KeyboardInterrupt:
            code = INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Runs what was asked for; a reader who has seen enough is no error."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # What is still to be flushed at exit goes nowhere, without a word.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(PIPE_CLOSED) from None
        return result


@contextmanager
def _settled() -> Iterator[None]:
    """Warnings as sentences, no character a terminal chokes on, and an orderly end when told to."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
        warnings.showwarning = _warned
        try:
            before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
        except ValueError:  # not the main thread
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def _warned(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    sys.stderr.write(f"lapace: Warning: {_sentence(str(message)) or category.__name__}\n")


def _told(error: Exception) -> int:
    """Says what went wrong, in one sentence, and gives the exit code."""
    if os.environ.get(TRACEBACK):
        traceback.print_exc()
    code = WRONG
    if isinstance(error, typer.Abort):
        return INTERRUPTED
    if isinstance(error, UsageError):
        context: Any = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "lapace"
        text = f"{_usage(error)} See {path} --help."
    elif isinstance(error, LapaceError):
        text = str(error)
    elif isinstance(error, OSError):
        about = f"'{error.filename}': " if error.filename else ""
        text = f"{about}{error.strerror or error}."
    elif type(error) is ImportError:  # a missing extra, with what to install
        text = str(error)
    else:
        code = UNFORESEEN
        text = (
            f"Something unforeseen happened ({type(error).__name__}: {error}). Set {TRACEBACK}=1 "
            "to see where, and please report it."
        )
    sys.stderr.write(f"lapace: {_sentence(text)}\n")
    return code


def _usage(error: Any) -> str:
    """A wrong option or argument in our own words, whichever library checked it."""
    text = _sentence(error.format_message()).replace("Value error, ", "")
    checked = getattr(error.__cause__, "errors", None)
    if checked is not None:
        given = checked()[0].get("input")
        for kind, words in (("integer", "whole number"), ("number", "number")):
            text = re.sub(f"Input should be a valid {kind}.*", f"'{given}' is no {words}", text)
    choice = re.search("'([^']*)' is not one of (.+)", text)
    text = text if text.endswith(("?", ".")) else f"{text}."
    return text + (did_you_mean(choice[1], re.findall("'([^']+)'", choice[2])) if choice else "")


def _sentence(text: str) -> str:
    return " ".join(text.split())


# ------------------------------------------------------------------------------------------------

EXAMPLES = {
    "fit": "lapace fit train.csv --classifier forest --label label "
    '--rule "age == original" -o loans.lapace',
    "explain": "lapace explain loans.lapace instances.csv --target approved "
    '--constraint "income >= original" -o answers.csv',
    "report": "lapace report loans.lapace",
    "prototypes": "lapace prototypes loans.lapace --label approved",
    "plot": "lapace plot loans.lapace instances.csv --kind path --target approved -o path.png",
    "why-not": "lapace why-not loans.lapace instances.csv --target approved "
    '--constraint "changes <= 1"',
    "data list": "lapace data list",
    "data fetch": "lapace data fetch loans --rows 500 --part train --rules loans.toml -o train.csv",
    "demo": "lapace demo -o demo",
    "serve": "lapace serve loans.lapace --port 8000",
}
FUNCTIONS: dict[str, Callable[..., None]] = {
    "fit": learning.fit,
    "explain": asking.explain,
    "report": learning.report,
    "prototypes": learning.prototypes,
    "plot": asking.plot,
    "why-not": asking.why_not,
    "data list": samples.list_,
    "data fetch": samples.fetch,
    "demo": samples.demo,
    "serve": serving.serve,
}

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
data = typer.Typer(help="Data sets to try it with.")
app.add_typer(data, name="data")


@app.callback(invoke_without_command=True)
def lapace(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Say the version.")] = False,
) -> None:
    """Counterfactual explanations as picks from a latent path, for any classifier on tables."""
    if version:
        sys.stdout.write(f"lapace {__version__}\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        sys.stdout.write(f"{context.get_help()}\n")


def _register() -> None:
    for name, function in FUNCTIONS.items():
        group, _, own = name.rpartition(" ")
        (data if group else app).command(
            own,
            epilog=f"Example: {EXAMPLES[name]}",
        )(function)


_register()
