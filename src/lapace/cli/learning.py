"""`fit`, `report` and `prototypes`: learn from a table, and look at what was learned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.table import Table as RichTable
from rich.text import Text

from lapace.cli import options
from lapace.cli.inputs import (
    STDIN,
    classifier_of,
    constraints_of,
    kinds_of,
    labels_of,
    less,
    read_table,
)
from lapace.cli.outputs import destination, file_for, together
from lapace.cli.terminal import Terminal, coloured
from lapace.errors import InputError

if TYPE_CHECKING:
    from lapace.explainer import Explainer, Prototype
    from lapace.schema import Schema
    from lapace.table import Level, Table

__all__ = ["fit", "prototypes", "report"]


def fit(
    train: Annotated[
        str,
        typer.Argument(
            metavar="TRAIN",
            help="The training table: .csv or .parquet, or - for standard input.",
        ),
    ],
    classifier: Annotated[
        str,
        typer.Option(
            help="What is to be explained: model.skops, model.onnx, package.module:object, "
            "https://…/predict; or forest, mlp or boosting, trained here on the label column."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="M.lapace", help="The file to write.")
    ],
    label: Annotated[
        str | None,
        typer.Option(
            help="The column of labels: left out of the features, and what forest, mlp and "
            "boosting learn."
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(help="A column to leave out, such as a name or a number; repeatable."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="What a column is, where the table does not show it: postcode=categorical "
            "(or continuous, binary), grade=ordinal:low<mid<high; repeatable."
        ),
    ] = None,
    clusters: Annotated[int, typer.Option(help="Prototypes per label.")] = 5,
    latent: Annotated[
        int | None, typer.Option(help="Dimensions of the latent space; by default by a rule.")
    ] = None,
    recipe: Annotated[
        options.Recipe, typer.Option(help="How to train; paper for the paper's own way.")
    ] = options.Recipe.default,
    rules: Annotated[
        list[Path] | None,
        typer.Option(help="A file of constraints every answer must obey (TOML); repeatable."),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(help='One such constraint, such as "age == original"; repeatable.'),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    device: options.Device = None,
    trust: options.Trust = None,
    unsafe_pickle: options.UnsafePickle = False,
    timeout: options.Timeout = 30.0,
    quiet: options.Quiet = False,
) -> None:
    """Learn from a table what a classifier says, and write M.lapace.

    Prints the report: can it be trusted? A classifier trained here is written as M.skops beside it.
    """
    from lapace.classifiers import TrainedKind

    terminal = Terminal(quiet)
    stock = classifier in get_args(TrainedKind)
    sources = [train, *(rules or ())] if train != STDIN else [*(rules or ())]
    output = file_for(output, [*sources, classifier], (".lapace",))
    beside = file_for(output.with_suffix(".skops"), sources) if stock else None
    if beside is not None and beside.exists() and not output.exists():
        raise InputError(
            f"There is a '{beside.name}' already, and no '{output.name}' that it belongs to. "
            f"Write to another name, or hand it over: --classifier {beside.name}"
        )
    held = constraints_of(rules or (), rule or ())
    table = read_table(train)
    features = less(table, [*([label] if label is not None else ()), *(drop or ())])
    settings: dict[str, Any] = {
        "n_prototypes": clusters,
        "n_latent": latent,
        "recipe": recipe.value,
        "rules": held,
        "device": device,
        "random_state": seed,
    }
    if beside is None:
        model = classifier_of(classifier, trust or (), unsafe_pickle, timeout)
        settings["schema"] = kinds_of(kind or ()) or None
        explainer = _fitted(model, features, settings, terminal)
        explainer.save(output, classifier=_absolute(classifier))
    else:
        labels = _labels(table, label, classifier)
        model, settings["schema"] = _trained(classifier, features, labels, kind or (), seed)
        explainer = _fitted(model, features, settings, terminal)
        _write_both(explainer, model, output, beside)
    if not quiet:
        terminal.show(coloured(str(explainer.report_)))
    written = f"'{output}'" + (f" and its classifier '{beside}'" if beside is not None else "")
    terminal.say(f"Wrote {written}.")
    if beside is None and not _is_followed(output, classifier):
        unsafe = " --unsafe-pickle" if unsafe_pickle else ""
        terminal.say(f"Name its classifier whenever you ask it: --classifier {classifier}{unsafe}")


def _absolute(classifier: str) -> str:
    """A file's full name, so that it is not looked for elsewhere; modules and addresses as said."""
    return str(Path(classifier).absolute()) if Path(classifier).is_file() else classifier


def _is_followed(output: Path, classifier: str) -> bool:
    from lapace.classifiers.references import refer_to

    return "file" in refer_to(output, _absolute(classifier))


def _labels(table: Table, label: str | None, classifier: str) -> list[Level]:
    if label is None:
        raise InputError(
            f"To train a {classifier} the column of labels has to be named: --label COLUMN."
        )
    labels = labels_of(table, label)
    if not labels:
        raise InputError("The table has no rows. Hand over at least a few hundred.")
    if len(set(labels)) < 2:
        raise InputError(f"Column '{label}' has one label only, {labels[0]!r}: nothing to learn.")
    return labels


def _trained(
    kind: Any, features: Table, labels: Sequence[Level], kinds: Sequence[str], seed: int
) -> tuple[Any, Schema]:
    """A stock classifier and the schema of the table it learned from."""
    from lapace.classifiers import train
    from lapace.schema import Schema

    schema = Schema.infer(features, kinds_of(kinds))
    return train(kind, schema, features.frame, labels, random_state=seed), schema


def _fitted(model: Any, features: Table, settings: dict[str, Any], terminal: Terminal) -> Explainer:
    from lapace.explainer import Explainer

    with terminal.progress() as progress:
        return Explainer(model, **settings).fit(features, progress=progress)


def _write_both(explainer: Explainer, model: Any, output: Path, beside: Path) -> None:
    from lapace.classifiers import save_classifier

    with together(beside, output) as (classifier, own):
        save_classifier(model, classifier)
        explainer.save(own, classifier=classifier)


# ------------------------------------------------------------------------------------------------
# What was learned; neither needs the classifier


def report(
    model: options.Model,
    json_: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="OUT", help="A .json or .txt file, or -."),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Can it be trusted? Print the report; exit with 1 when it fails."""
    terminal = Terminal(quiet)
    where = destination(output, options.Format.json if json_ else None, [model])
    if where.format in (options.Format.csv, options.Format.parquet):
        raise InputError("A report is a text or JSON: write it to a .txt or .json file.")
    found = _stored(model)[1]
    where.put(
        terminal,
        table=lambda: [coloured(str(found))],
        frame=lambda: None,
        values=found.to_json,
    )
    if found.verdict == "fails":
        terminal.say("The report fails: do not rely on answers of this explainer.")
        raise typer.Exit(1)


def prototypes(
    model: options.Model,
    label: Annotated[str | None, typer.Option(help="Only the prototypes of this label.")] = None,
    format_: Annotated[
        options.Format | None,
        typer.Option("--format", help="By default what OUT ends in, else a table."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="OUT", help="A file, or - for standard output."),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Show the typical cases of each label, as they were judged when fitted."""
    terminal = Terminal(quiet)
    where = destination(output, format_, [model])
    fitted = _stored(model)[0]
    names = [str(name) for name in fitted.labels]
    if label is not None and label not in names:
        raise InputError(f"There is no label '{label}'. There are: {', '.join(names)}.")
    chosen = [p for p in fitted.prototypes if label is None or p.label == label]
    where.put(
        terminal,
        table=lambda: _side_by_side(fitted.schema, names, chosen),
        frame=lambda: _frame(fitted.schema, chosen),
        values=lambda: [_values(fitted.schema, p) for p in chosen],
    )


def _stored(path: Path) -> Any:
    """What the file holds, without its classifier."""
    import torch

    from lapace.explainer import storage

    return storage.load(path, torch.device("cpu"))


def _side_by_side(
    schema: Schema, names: Sequence[str], chosen: Sequence[Prototype]
) -> list[RichTable]:
    """A table for each label: a line per feature, a column per prototype."""
    tables = []
    for code, name in enumerate(names):
        own = [p for p in chosen if p.code == code]
        if not own:
            continue
        table = RichTable(title=Text(f"{name}: {len(own)} prototypes"), title_justify="left")
        table.add_column("prototype", no_wrap=True)
        for p in own:
            table.add_column(Text(str(p.number)), justify="right", overflow="fold")
        table.add_row("members", *(f"{p.members:,}" for p in own))
        table.add_row(
            "probability",
            *("-" if p.probability != p.probability else f"{p.probability:.2f}" for p in own),
        )
        table.add_row("judged", *("valid" if p.valid else "refused" for p in own))
        table.add_section()
        for i, feature in enumerate(schema.features):
            table.add_row(Text(feature.name), *(Text(feature.text(p.cells[i])) for p in own))
        tables.append(table)
    return tables


def _frame(schema: Schema, chosen: Sequence[Prototype]) -> Any:
    """One line per prototype: what is known of it, then its row."""
    import numpy as np

    from lapace.table import plain_frame

    lines = [_values(schema, p) for p in chosen]
    about = {name: [line[name] for line in lines] for name in lines[0] if name != "row"}
    rows = {
        (f"prototype_{name}" if name in about else name): [line["row"][name] for line in lines]
        for name in schema.names
    }
    kind = schema.template.kind
    columns = {
        name: np.array(values, dtype=None if len(set(map(type, values))) == 1 else object)
        for name, values in {**about, **rows}.items()
    }
    return plain_frame("array" if kind == "records" else kind, columns)


def _values(schema: Schema, prototype: Prototype) -> dict[str, Any]:
    from lapace.result import record

    sure = prototype.probability
    return {
        "number": prototype.number,
        "label": prototype.label,
        "members": prototype.members,
        "valid": prototype.valid,
        "probability": None if sure != sure else sure,  # noqa: PLR0124  NaN
        "note": prototype.note,
        "row": record(schema, prototype.cells),
    }
