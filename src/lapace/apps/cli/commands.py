"""All commands; here those about data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from typer import Argument, Option

from lapace.apps.cli import rendering
from lapace.apps.cli.app import EXAMPLES, app, command
from lapace.apps.cli.batch import batch
from lapace.apps.cli.demo import demo
from lapace.apps.cli.fitting import fit, report, schema
from lapace.apps.cli.outputs import STDOUT, Output, note, show, writable_file
from lapace.apps.cli.recourse import cohort, explain, plot, why_not
from lapace.apps.cli.serving import serve

__all__ = [
    "EXAMPLES", "app", "batch", "cohort", "demo", "explain", "fit", "plot", "report", "schema",
    "serve", "why_not",
]  # fmt: skip


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
        where.put(frames=lambda: [_labelled(data_set, part)])
    if rules is not None:
        text = constraints.to_toml(data_set.rules)
        write_whole(rules, lambda path: path.write_text(text, encoding="utf-8"))
    if schema is not None:
        data_set.schema.to_toml(schema)
    note(
        f"{data_set.name}: {len(data_set.train):,} training rows, {len(data_set.test):,} held out."
    )


def _labelled(data_set: Any, part: str) -> Any:
    """Rows of a data set, with their labels as the last column."""
    import numpy as np

    schema = data_set.schema
    cells, labels = [], []
    for name in ("train", "test") if part == "all" else (part,):
        reading = schema.read(getattr(data_set, name))
        schema = reading.schema  # with levels that only these rows have
        cells.append(reading.cells)
        labels.append(getattr(data_set, f"{name}_labels"))
    return schema.frame(np.concatenate(cells), after={"label": np.concatenate(labels)})
