"""The application: registration of commands, and errors as sentences with exit codes."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from lapace import __version__
from lapace.apps.cli.outputs import drop_buffered, quiet, results_apart, say, secretive, warn
from lapace.errors import InputError, LapaceError

__all__ = ["EXAMPLES", "TerminatedError", "app", "command", "terminate"]

TRACEBACK = "LAPACE_TRACEBACK"
UNEXPECTED, WRONG_INPUT, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141
EXAMPLES: dict[str, str] = {}  # by the command's name
# What typer raises at a wrong option or argument, whichever version of click it uses.
UsageError: Any = typer.BadParameter.__mro__[1]
QUIET = inspect.Parameter(
    "quiet",
    inspect.Parameter.KEYWORD_ONLY,
    default=typer.Option(False, "--quiet", "-q", help="Print only the result, and errors."),
    annotation=bool,
)


class TerminatedError(BaseException):
    """SIGTERM or SIGHUP came. No `SystemExit`: a classifier that raises one has failed itself."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


def terminate(number: int, _: Any) -> None:
    """Handles a signal that ends the process: what was begun is cleaned up on the way out."""
    raise TerminatedError(number)


class Command(TyperCommand):
    """A command whose options are given once, unless they may be repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the words of a command; the last of two values would win in silence."""
        *_, order = self.make_parser(ctx).parse_args(args=[*args])
        for option, count in Counter(order).items():
            single = isinstance(option, TyperOption) and not (option.multiple or option.is_flag)
            if single and count > 1:
                raise InputError(f"{option.opts[0]} is given {count} times. Give it once.")
        return super().parse_args(ctx, args)


class CommandGroup(TyperGroup):
    """The commands; every error becomes one sentence and an exit code."""

    def main(self, args: Any = None, **settings: Any) -> Any:  # type: ignore[override]
        """Runs a command and exits with its code."""
        words = sys.argv[1:] if args is None else args
        secretive.set(tuple(word for word in words if "://" in word or "@" in word))
        try:
            with _process_settings():  # errors and codes come back to us
                code = super().main(args, **settings, standalone_mode=False)
        except (KeyboardInterrupt, typer.Abort):
            code = INTERRUPTED
        except Exception as error:
            code = _print_error(error)
        except TerminatedError as error:
            code = error.code
        sys.exit(code)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command chosen; a closed standard output ends it without an error message."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            drop_buffered()
            raise typer.Exit(PIPE_CLOSED) from None
        return result


@contextmanager
def _process_settings() -> Iterator[None]:
    """Prints each warning once, as a sentence, and cleans up when terminated."""
    os.environ.setdefault("MPLBACKEND", "Agg")  # pictures are files: no window is opened
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", UserWarning)
        once = cache(warn)

        def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
            once(_one_line(str(message)) or category.__name__)

        warnings.showwarning = show
        ending = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
        before = {number: signal.getsignal(number) for number in ending}
        for number in ending:
            if before[number] is not signal.SIG_IGN:  # as `nohup` sets it
                signal.signal(number, terminate)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _print_error(error: Exception) -> int:
    """Prints what went wrong in one sentence and returns the exit code."""
    if os.environ.get(TRACEBACK):
        traceback.print_exc()
    code = WRONG_INPUT
    if isinstance(error, UsageError):
        usage: Any = error
        path = usage.ctx.command_path if usage.ctx is not None else "lapace"
        message = usage.format_message().replace("Value error, ", "").rstrip(".")
        text = f"{message}. See {path} --help."
    elif isinstance(error, LapaceError) or type(error) is ImportError:  # or a missing extra
        text = str(error)
    elif isinstance(error, OSError):
        about = f"'{error.filename}': " if error.filename else ""
        text = f"{about}{error.strerror or error}."
    else:
        code = UNEXPECTED
        text = (
            f"An unexpected error occurred ({type(error).__name__}: {error}). Set {TRACEBACK}=1 to "
            "see where, and please report it."
        )
    lines = text.splitlines() if isinstance(error, InputError) else [text]
    indented = [f"  {_one_line(line)}" if line[:1] == " " else _one_line(line) for line in lines]
    say("lapace: " + "\n".join(indented))
    return code


def _one_line(text: str) -> str:
    return " ".join(text.split())


# ------------------------------------------------------------------------------------------------
# Commands

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},
)
data = typer.Typer(help="Data sets to try it with.")
app.add_typer(data, name="data")


@app.callback(invoke_without_command=True)
def lapace(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Find out what would have to change for a classifier to decide otherwise.

    For each row of a table: the smallest changes found that turn the prediction, under your
    constraints, every row checked. Try `lapace demo`; with a table of your own, `lapace fit` and
    then `lapace explain`.
    """
    if version:
        sys.stdout.write(f"lapace {__version__}\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        sys.stdout.write(f"{context.get_help()}\n")


def command(name: str, example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a function as a command, with the option `--quiet` as every command has it.

    Args:
        name: Its words after `lapace`.
        example: One line that runs, shown below the help.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        group, _, word = name.rpartition(" ")
        EXAMPLES[name] = example
        (data if group else app).command(word, cls=Command, epilog=f"Example: {example}")(
            _flat(function)
        )
        return function

    return register


def _flat(function: Callable[..., None]) -> Callable[..., None]:
    """The function with each parameter that is a dataclass of options replaced by its fields."""
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            parameters += inspect.signature(groups[name], eval_str=True).parameters.values()
        else:
            parameters.append(parameter)

    @wraps(function)
    def flat(**values: Any) -> None:
        token = quiet.set(values.pop("quiet"))
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        try:
            with results_apart():
                function(**values)
        finally:
            quiet.reset(token)

    parameters = [*(p.replace(kind=p.KEYWORD_ONLY) for p in parameters), QUIET]
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat
