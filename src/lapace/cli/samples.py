"""`data` and `demo`: tables to try it with."""

from __future__ import annotations

import shlex
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as RichTable
from rich.text import Text

from lapace.cli import options
from lapace.cli.inputs import read_table
from lapace.cli.outputs import STDOUT, destination, file_for
from lapace.cli.terminal import Terminal
from lapace.errors import InputError

if TYPE_CHECKING:
    from lapace.schema import Schema

__all__ = ["demo", "fetch", "list_"]

ORDER = "--kind 'education=ordinal:basic<secondary<bachelor<master<doctorate'"
# What `demo` runs, each line as one would type it.
STORY = (
    "data fetch loans --rows 500 --part train --rules loans.toml -o train.csv",
    "data fetch loans --rows 500 --part test -o instances.csv",
    f"fit train.csv --classifier forest --label label --rules loans.toml {ORDER} -o loans.lapace",
    "explain loans.lapace instances.csv --target approved -o answers.csv",
)
# For one of the instances the last line answered.
SEQUEL = (
    "explain loans.lapace instances.csv --instance {instance} --target approved -c 'changes <= 6'",
    "plot loans.lapace instances.csv --instance {instance} --target approved -o path.png",
)


def list_(quiet: options.Quiet = False) -> None:
    """Show the data sets there are, and on what terms."""
    from lapace.datasets.catalog import CATALOG

    table = RichTable(box=None, pad_edge=False)
    for name in ("name", "target", "terms", "what it is"):
        table.add_column(name, no_wrap=name == "name")
    for name, spec in CATALOG.items():
        target = "-" if spec.target is None else str(spec.target)
        table.add_row(*map(Text, (name, target, spec.licence, spec.description)))
    Terminal(quiet).show(table)


def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `lapace data list` shows it.")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="Write its table, labels included: .csv, .parquet, or - for CSV on standard "
            "output. Without it the files are only fetched into the cache.",
        ),
    ] = None,
    part: Annotated[
        options.Part, typer.Option(help="Its training rows, its held-out rows, or both.")
    ] = options.Part.all,
    label: Annotated[str, typer.Option(help="What to call the column of labels.")] = "label",
    rows: Annotated[int | None, typer.Option(help="How many to make; for loans only.")] = None,
    rules: Annotated[
        Path | None,
        typer.Option(help="Also write the rules of the data set here, as a constraint file."),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Fetch a data set, check it by its hash, and write it as a table."""
    from lapace import constraints, datasets
    from lapace.table import write_whole

    terminal = Terminal(quiet)
    where = None
    if output is not None:
        where = destination(output, options.Format.csv if output == STDOUT else None, [])
        if where.format not in (options.Format.csv, options.Format.parquet):
            raise InputError("A data set is written as a table: .csv or .parquet.")
    if rules is not None:
        rules = file_for(rules, [], (".toml",))
    found = datasets.load(name, rows=rows)
    if where is not None:
        frame = _labelled(found, part, label)
        where.put(terminal, table=list, frame=lambda: frame, values=lambda: None)
    if rules is not None:
        text = constraints.to_toml(found.rules)
        write_whole(rules, lambda path: path.write_text(text, encoding="utf-8"))
    terminal.say(f"{found.name}: {len(found.train):,} training rows, {len(found.test):,} held out.")
    if where is not None and where.format is options.Format.csv:
        _tell_orders(found.schema, terminal)


def _labelled(found: Any, part: options.Part, label: str) -> Any:
    """The rows asked for with their labels as the first column."""
    import numpy as np

    schema: Schema = found.schema
    if label in schema.names:
        raise InputError(f"'{found.name}' has a column '{label}'. Name another with --label.")
    train, test = (found.train, found.train_labels), (found.test, found.test_labels)
    chosen = {options.Part.train: (train,), options.Part.test: (test,)}.get(part, (train, test))
    cells = []
    for rows, _ in chosen:
        reading = schema.read(rows)
        schema = reading.schema  # with what only these rows have
        cells.append(reading.cells)
    labels = np.concatenate([labels for _, labels in chosen])
    return schema.frame(np.concatenate(cells), before={label: labels})


def _tell_orders(schema: Schema, terminal: Terminal) -> None:
    """CSV has no room for the order of words; `fit` has."""
    for feature in schema.features:
        if feature.kind == "ordinal":
            order = "<".join(map(str, feature.categories))
            terminal.say(f"To keep its order, fit with --kind '{feature.name}=ordinal:{order}'")


def demo(
    context: typer.Context,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Keep what it makes here; else nothing stays."
        ),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Play the whole story on made-up loans: fetch, fit, report, explain, draw."""
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        _play(context, output, quiet)
        return
    with tempfile.TemporaryDirectory() as folder:
        _play(context, Path(folder), quiet)


def _play(context: typer.Context, folder: Path, quiet: bool) -> None:
    """Runs the lines one by one, each shown before it is run."""
    command: Any = context.find_root().command
    terminal = Terminal(quiet)

    def run(line: str) -> None:
        terminal.say(f"\n$ lapace {line}")
        arguments = [*shlex.split(line), *(["--quiet"] if quiet else [])]
        code = command.main(arguments, prog_name="lapace", standalone_mode=False)
        if code:
            raise typer.Exit(code)

    with chdir(folder):
        for line in STORY:
            run(line)
        instance = _somebody("answers.csv")
        for line in SEQUEL:
            run(line.format(instance=instance))


def _somebody(answers: str) -> int:
    """The first instance that a good row was found for."""
    import numpy as np

    from lapace.table import Coded

    table = read_table(answers)
    good = np.ones(len(table), dtype=bool)
    for name in ("valid", "feasible"):
        values = table.columns[name].values
        assert isinstance(values, Coded)  # truth values, as we wrote them
        good &= np.array([*values.levels, False])[values.codes]
    if not good.any():
        raise InputError(f"None of the {len(table)} instances in '{answers}' was answered.")
    instance = table.columns["instance"].values
    assert isinstance(instance, np.ndarray)
    return int(instance[good][0])
