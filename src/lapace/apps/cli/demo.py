"""`lapace demo`: one refusal of a made-up loan explained, and the commands that did it."""

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
from lapace.apps.cli.outputs import note, quiet, write
from lapace.errors import InputError

__all__ = ["demo"]

ASKED = "--target approved -c 'income >= original' -c 'savings >= original'"
KNOWN = "--rules loans.toml --schema columns.toml"
COMMANDS = (
    f"data fetch loans --rows 1250 --part train {KNOWN} -o train.csv",
    "data fetch loans --rows 1250 --part test -o instances.csv",
    f"fit train.csv --classifier forest --label label {KNOWN} -o loans.lapace",
    f"explain loans.lapace instances.csv {ASKED} -o counterfactuals.csv",
)
DRAW = f"plot loans.lapace instances.csv --ids {{}} {ASKED} -o answer.png"
LOOK = f"explain loans.lapace instances.csv --ids {{}} {ASKED}"


@command("demo", "lapace demo -o demo")
def demo(
    *,
    context: typer.Context,
    output: Path | None = Option(None, "--output", "-o", help="A folder to keep its files in."),
) -> None:
    """Explain one refusal of a made-up loan, and show the commands that did it."""
    if output is not None:
        if output.exists() and not output.is_dir():
            raise InputError(f"'{output}' is a file. Name a folder for the demo's files.")
        output.mkdir(parents=True, exist_ok=True)
        if any(output.iterdir()):
            raise InputError(f"The folder '{output}' is not empty. Name another one.")
    note("Training a forest on made-up loans, and explaining what it denies: about a minute …")
    with tempfile.TemporaryDirectory() as folder, chdir(output or folder):
        for line in COMMANDS:
            _run(line, context)
        number, sentence = _answer()
        _run(DRAW.format(number), context)
    write(f"{sentence}\n")
    if output is not None:
        write(f"The picture of its path: {output / 'answer.png'}\n")
    if not quiet.get():
        lines = (*COMMANDS, DRAW.format(number), LOOK.format(number))
        typed = "".join(f"  lapace {line}\n" for line in lines)
        kept = f"Their files are in '{output}'" if output else "-o FOLDER keeps their files"
        write(f"\nThese commands did it. {kept}; try the last one there.\n{typed}")


def _run(line: str, context: typer.Context) -> None:
    main: Any = context.find_root().command
    words = [*shlex.split(line), "--quiet"]
    if code := main.main(words, prog_name="lapace", standalone_mode=False):
        raise typer.Exit(code)


def _answer() -> tuple[str, str]:
    """The number of an instance with a sound counterfactual of few changes, and it in words."""
    with Path("counterfactuals.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    sound = [r for r in rows if (r["rank"], r["valid"], r["feasible"]) == ("0", "True", "True")]
    usual = [r for r in sound if not r["mark"] and int(r["changed"]) < 4] or sound or rows
    chosen = max(usual, key=lambda row: float(row["survival"] or 0))
    changes = [
        f"  {name}: {chosen[f'{name}_before']} → {chosen[name]}\n"
        for name in chosen["features"].split(", ")
    ]
    sentence = (
        f"Application {chosen['instance']} is denied. It would be approved with\n{''.join(changes)}"
        "and all else as it is. The forest was asked about exactly this row."
    )
    return chosen["instance"], sentence
