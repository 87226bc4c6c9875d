"""All commands; here those about data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from typer import Argument, Option

from lapace.apps.cli import rendering
from lapace.apps.cli.app import EXAMPLES, app, command
from lapace.apps.cli.batch import batch
from lapace.apps.cli.demo import demo
from lapace.apps.cli.fitting import fit, prototypes, report, schema
from lapace.apps.cli.outputs import STDOUT, Output, Terminal, writable_file
from lapace.apps.cli.recourse import cohort, explain, plot, why_not
from lapace.apps.cli.serving import serve
from lapace.errors import InputError

__all__ = [
    "EXAMPLES", "app", "batch", "cohort", "demo", "explain", "fit", "plot", "prototypes", "report",
    "schema", "serve", "why_not",
]  # fmt: skip


@command("data list", "lapace data list")
def data_list(terminal: Terminal) -> None:
    """List the data sets and their licences."""
    terminal.show(rendering.data_set_table())


@command(
    "data fetch",
    "lapace data fetch loans --part train --rules loans.toml --schema columns.toml -o train.csv",
)
def data_fetch(
    *,
    name: str = Argument(metavar="NAME", help="As `lapace data list` shows it."),
    output: str | None = Option(
        None,
        "--output",
        "-o",
        metavar="OUT",
        help="Write its table, labels included: .csv, .parquet, or - for CSV on standard output. "
        "Without it the files are only fetched into the cache.",
    ),
    part: Literal["train", "test", "all"] = Option(
        "all", help="Its training rows, its held-out rows, or both."
    ),
    label: str = Option("label", help="The name of the column of labels."),
    rows: int | None = Option(None, help="How many to make; for loans only."),
    rules: Path | None = Option(
        None, metavar="FILE", help="Also write its rules here, as a file of constraints."
    ),
    schema: Path | None = Option(
        None,
        metavar="FILE",
        help="Also write its columns here, as a file for `fit --schema`: orders, what follows from "
        "other columns, a sentence on each.",
    ),
    terminal: Terminal,
) -> None:
    """Fetch a data set, verify its hash, and write it as a table."""
    from lapace import constraints, datasets
    from lapace.files import write_whole

    where = None
    if output is not None:
        format_: Any = "csv" if output == STDOUT else None
        where = Output(format_, output).destination([], ("csv", "parquet"))
    for file in filter(None, (rules, schema)):
        writable_file(file, [], (".toml",))
    data_set = datasets.load(name, rows=rows)
    if where is not None:
        frame = _labelled(data_set, part, label)
        where.put(terminal, frames=lambda: [frame])
    if rules is not None:
        text = constraints.to_toml(data_set.rules)
        write_whole(rules, lambda path: path.write_text(text, encoding="utf-8"))
    if schema is not None:
        data_set.schema.to_toml(schema)
    terminal.note(
        f"{data_set.name}: {len(data_set.train):,} training rows, {len(data_set.test):,} held out."
    )
    for feature in data_set.schema.features:  # whose order CSV cannot hold
        if schema is None and feature.kind == "ordinal" and where and where.format == "csv":
            order = "<".join(map(str, feature.categories))
            terminal.note(f"To keep its order, fit with --kind '{feature.name}=ordinal:{order}'")


def _labelled(data_set: Any, part: str, label: str) -> Any:
    """Rows of a data set, with their labels as the first column."""
    import numpy as np

    schema = data_set.schema
    if label in schema.names:
        raise InputError(f"'{data_set.name}' has a column '{label}'. Name another with --label.")
    cells, labels = [], []
    for name in ("train", "test") if part == "all" else (part,):
        reading = schema.read(getattr(data_set, name))
        schema = reading.schema  # with levels that only these rows have
        cells.append(reading.cells)
        labels.append(getattr(data_set, f"{name}_labels"))
    return schema.frame(np.concatenate(cells), before={label: np.concatenate(labels)})
