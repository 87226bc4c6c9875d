"""All commands; here `data`, and `demo`, which explains one refusal of a made-up loan."""

from __future__ import annotations

import csv
import shlex
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Literal

import typer
from typer import Argument, Option

from lapace.apps.cli import rendering
from lapace.apps.cli.app import EXAMPLES, app, command
from lapace.apps.cli.batch import batch
from lapace.apps.cli.fitting import fit, report, schema
from lapace.apps.cli.outputs import STDOUT, Output, note, quiet, show, writable_file, write
from lapace.apps.cli.recourse import cohort, explain, plot, why_not
from lapace.apps.cli.serving import serve
from lapace.errors import InputError

__all__ = [
    "EXAMPLES", "app", "batch", "cohort", "demo", "explain", "fit", "plot", "report", "schema",
    "serve", "why_not",
]  # fmt: skip

# What `demo` runs.
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


@command("data list", "lapace data list")
def data_list() -> None:
    """List the data sets and their licences."""
    from lapace.datasets.catalog import CATALOG

    columns = {
        "name": list(CATALOG),
        "target": [facts.get("target", "-") for facts in CATALOG.values()],
        "licence": [facts["licence"] for facts in CATALOG.values()],
        "description": [facts["description"] for facts in CATALOG.values()],
    }
    show(rendering.grid(columns))


@command(
    "data fetch",
    "lapace data fetch loans --part train --rules loans.toml --schema columns.toml -o train.csv",
)
def data_fetch(
    *,
    name: str = Argument(metavar="NAME", help="Its name in `lapace data list`."),
    output: str | None = Option(
        None, "--output", "-o", help="Its table, with a column `label`: .csv, .parquet, - for CSV."
    ),
    part: Literal["train", "test", "all"] = Option("all", help="Training or held-out rows."),
    rows: int | None = Option(None, help="How many to make; for loans only."),
    rules: Path | None = Option(None, help="A file for its rules, as for `fit --rules`."),
    schema: Path | None = Option(None, help="A file for its columns, as for `fit --schema`."),
) -> None:
    """Fetch a data set, verify its hash, and write it as a table."""
    from lapace import constraints, datasets
    from lapace.files import write_whole

    where = None
    if output is not None:
        where = Output("csv" if output == STDOUT else None, output).checked([], ("csv", "parquet"))
    for file in filter(None, (rules, schema)):
        writable_file(file, [], (".toml",))
    data_set = datasets.load(name, rows=rows)
    if where is not None:
        parts = {
            "train": data_set.train.assign(label=data_set.train_labels),
            "test": data_set.test.assign(label=data_set.test_labels),
        }
        where.put(frames=lambda: parts.values() if part == "all" else [parts[part]])
    if rules is not None:
        text = constraints.to_toml(data_set.rules)
        write_whole(rules, lambda path: path.write_text(text, encoding="utf-8"))
    if schema is not None:
        data_set.schema.to_toml(schema)
    note(
        f"{data_set.name}: {len(data_set.train):,} training rows, {len(data_set.test):,} held out."
    )


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
    """Runs a command that writes files and prints nothing."""
    lapace = context.find_root().command
    with lapace.make_context("lapace", [*shlex.split(line), "--quiet"]) as inner:
        lapace.invoke(inner)


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
