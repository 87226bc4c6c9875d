"""`lapace demo`: a whole example on made-up loans, each command as one would type it."""

from __future__ import annotations

import csv
import shlex
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

import typer
from typer import Option

from lapace.apps.cli.app import command
from lapace.apps.cli.outputs import Terminal
from lapace.errors import InputError

__all__ = ["demo"]

LIMITS = "-c 'changes <= 4'"
FETCH = "data fetch loans --rows 1250 --part train"
FIT = "fit train.csv --classifier forest --label label --rules loans.toml --schema columns.toml"
PREPARE = (
    f"{FETCH} --rules loans.toml --schema columns.toml -o train.csv",
    "data fetch loans --rows 1250 --part test -o instances.csv",
    f"{FIT} -o loans.lapace",
    f"explain loans.lapace instances.csv --target approved {LIMITS} -o counterfactuals.csv",
)
SHOW = (  # about one instance with a good answer
    f"explain loans.lapace instances.csv --ids {{0}} --target approved {LIMITS}",
    f"plot loans.lapace instances.csv --ids {{0}} --target approved {LIMITS} -o path.png",
)
FILES = (
    "train.csv", "loans.toml", "columns.toml", "instances.csv", "loans.lapace", "loans.skops",
    "counterfactuals.csv", "path.png",
)  # fmt: skip
NEXT = "lapace explain loans.lapace instances.csv --target approved --letters letters"


@command("demo", "lapace demo -o demo")
def demo(
    *,
    context: typer.Context,
    output: Path | None = Option(
        None, "--output", "-o", metavar="FOLDER", help="Keep its files here; by default none stay."
    ),
    terminal: Terminal,
) -> None:
    """Run a whole example on made-up loans: fetch, fit, report, explain, plot."""
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        if taken := [name for name in FILES if (output / name).exists()]:
            raise InputError(
                f"There is a '{taken[0]}' in '{output}' already. Name another folder, or remove it."
            )
    with tempfile.TemporaryDirectory() as folder, chdir(output or folder):
        for line in PREPARE:
            _run(context, line, terminal)
        chosen, sentence = _good_answer()
        for line in SHOW:
            _run(context, line.format(chosen), terminal)
    terminal.note(f"\n{sentence}")
    again = "lapace demo -o demo && cd demo" if output is None else f"cd {shlex.quote(str(output))}"
    terminal.note(f"Try next: {again} && {NEXT}")


def _run(context: typer.Context, line: str, terminal: Terminal) -> None:
    """Shows a line as one would type it, and runs it."""
    main: Any = context.find_root().command
    terminal.note(f"\n$ lapace {line}")
    words = [*shlex.split(line), *(["--quiet"] if terminal.quiet else [])]
    if code := main.main(words, prog_name="lapace", standalone_mode=False):
        raise typer.Exit(code)


def _good_answer() -> tuple[str, str]:
    """An instance with a sound counterfactual of few changes, and that in a sentence."""
    with Path("counterfactuals.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    sound = [r for r in rows if (r["rank"], r["valid"], r["feasible"]) == ("0", "True", "True")]
    usual = [r for r in sound if not r["mark"] and int(r["changed"]) < 4] or sound or rows
    chosen = max(usual, key=lambda row: float(row["survival"] or 0))
    changes = []
    for name in chosen["features"].split(", "):
        after, before = (_text(chosen[key]) for key in (name, f"{name}_before"))
        changes.append(f"{name.replace('_', ' ')} of {after} instead of {before}")
    listed = " and ".join([", ".join(changes[:-1]), changes[-1]] if changes[1:] else changes)
    number = chosen["instance"]
    return number, f"In one sentence: instance {number} is denied; with {listed} it is approved."


def _text(cell: str) -> str:
    """A cell of CSV as a sentence writes it."""
    try:
        return f"{float(cell):,g}"
    except ValueError:
        return cell or "missing"
