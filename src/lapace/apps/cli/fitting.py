"""The commands `fit`, `schema`, `report` and `prototypes`."""

from __future__ import annotations

import hashlib
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import typer
from typer import Option

from lapace.apps.cli import inputs, rendering
from lapace.apps.cli.app import command
from lapace.apps.cli.options import (
    CLASSIFIERS,
    ID_COLUMN,
    LABEL,
    MODEL,
    TRAIN,
    Columns,
    Loader,
    Training,
)
from lapace.apps.cli.outputs import Output, Terminal, writable_file
from lapace.errors import InputError
from lapace.files import temporary_path

if TYPE_CHECKING:
    from lapace.explainer import Explainer, storage

__all__ = ["fit", "prototypes", "report", "schema"]


@command(
    "fit",
    "lapace fit train.csv --classifier forest --label label "
    '--rule "age == original" -o loans.lapace',
)
def fit(
    *,
    train: str = TRAIN,
    classifier: str = Option(
        help=f"The classifier to explain: {CLASSIFIERS}; or forest, mlp or boosting, trained here "
        "on the label column."
    ),
    output: Path = Option(..., "--output", "-o", metavar="M.lapace", help="The file to write."),
    label: str | None = Option(
        None,
        metavar="COLUMN",
        help="The column of labels: not a feature. forest, mlp and boosting learn it, and it is "
        "said how often they are right on rows held out; of any other classifier the report gives "
        "the accuracy.",
    ),
    id_column: str | None = ID_COLUMN,
    columns: Columns,
    rules: list[Path] = Option(
        [], metavar="FILE", help="A file of constraints on every counterfactual. Repeatable."
    ),
    rule: list[str] = Option(
        [], metavar="TEXT", help='One such constraint, "age == original". Repeatable.'
    ),
    training: Training,
    loader: Loader,
    terminal: Terminal,
) -> None:
    """Fit an explainer to a classifier, write it to M.lapace and print its report.

    How the table was read comes first, a line per column. A classifier trained here is written to
    M.skops beside it.
    """
    from lapace.apps.loaders import without_secrets
    from lapace.constraints import System, parse_all
    from lapace.datasets import TrainedKind, held_out_predictions
    from lapace.datasets import train as train_stock
    from lapace.explainer import Explainer

    stock = classifier in get_args(TrainedKind)
    read: list[str | Path] = [train, *rules, *([columns.schema] if columns.schema else [])]
    output = writable_file(output, [*read, classifier], (".lapace",))
    beside = writable_file(output.with_suffix(".skops"), read) if stock else None
    if beside is not None and beside.exists() and not _belongs(beside, output):
        raise InputError(
            f"There is a '{beside.name}' already, and no '{output.name}' that it belongs to. "
            f"Write to another name, or hand it over: --classifier {beside.name}"
        )
    constraints = inputs.read_constraints(rules, rule)
    table = inputs.read_training(train, id_column, training)
    table = inputs.labelled_rows(table, label, terminal)
    labels = inputs.read_labels(table, label) if stock or label is not None else None
    schema = inputs.infer_schema(table, labels, columns, label)
    features = table.without(set(table.names) - set(schema.names))
    reading = schema.read(features).checked()
    terminal.note_parts(*rendering.schema_parts(reading.schema, reading.cells))
    System.of(parse_all(constraints), schema)  # refuses rules that cannot hold before training
    if stock:
        schema = schema.as_numbers()
        numbers, seed, kind = schema, training.random_state, cast(Any, classifier)

        def fit_stock(frame: Any, known: Any) -> Any:
            return loader.decided(train_stock(kind, numbers, frame, known, random_state=seed))

        def frame(rows: Any) -> Any:
            return reading.schema.as_numbers().frame(reading.cells[rows])

        model, known = fit_stock(frame(slice(None)), labels), labels or []
        held_out = held_out_predictions(fit_stock, frame, known, random_state=seed)
        terminal.note(rendering.quality(classifier, *held_out))
    else:
        model = loader.classifier(classifier)
    explainer = Explainer(
        model, rules=constraints, schema=schema, device=loader.device, **training.parameters
    )
    with terminal.progress() as progress:
        # The accuracy on the rows it was trained on says nothing.
        explainer.fit(features, None if stock else labels, progress=progress)
    followed = _save(explainer, output, classifier, beside, id_column)
    if not terminal.quiet:
        terminal.show(rendering.report_text(explainer.report_))
    declared = len(set(parse_all(constraints)))
    terminal.note(rendering.rule_notes(explainer.fitted_.rules, explainer.schema_, declared))
    written = f"'{output}'" + ("" if beside is None else f" and its classifier '{beside}'")
    terminal.note(f"Wrote {written}.")
    if not followed:
        unsafe = " --unsafe-pickle" if loader.unsafe_pickle else ""
        shown = without_secrets(classifier) if "://" in classifier else classifier
        terminal.note(f"Name its classifier in every command: --classifier {shown}{unsafe}")


@command("schema", "lapace schema train.csv --label label -o schema.toml")
def schema(
    *,
    train: str = TRAIN,
    label: str | None = Option(None, metavar="COLUMN", help="The column of labels: not a feature."),
    id_column: str | None = ID_COLUMN,
    columns: Columns,
    output: Path | None = Option(
        None, "--output", "-o", metavar="FILE", help="A file of columns to write (.toml)."
    ),
    terminal: Terminal,
) -> None:
    """Show how a table is read, a line per column, and write it as a file to edit.

    The file is handed to `fit` with --schema.
    """
    sources: list[str | Path] = [train, *([columns.schema] if columns.schema else [])]
    where = None if output is None else writable_file(output, sources, (".toml",))
    table = inputs.labelled_rows(inputs.read_table(train, id_column), label, terminal)
    labels = None if label is None else inputs.read_labels(table, label)
    inferred = inputs.infer_schema(table, labels, columns, label)
    reading = inferred.read(table).checked()
    terminal.show(*rendering.schema_parts(reading.schema, reading.cells))
    if where is not None:
        inferred.to_toml(where)
        terminal.note(f"Wrote '{where}'.")


def _belongs(classifier: Path, explainer: Path) -> bool:
    """Whether the classifier's file is the one that a saved explainer refers to."""
    from lapace.apps.loaders import finish_move, refer_to
    from lapace.explainer import storage

    if not explainer.exists():
        return False
    try:
        reference = storage.read_reference(explainer)
    except InputError:
        return False
    if reference is None or reference.sha256 is None:
        return False
    finish_move(classifier, reference.sha256)
    return reference == refer_to(explainer, classifier)


def _save(
    explainer: Explainer, output: Path, classifier: str, beside: Path | None, id_column: str | None
) -> bool:
    """Writes the explainer, and `beside` a classifier trained here.

    Returns:
        Whether the explainer refers to the classifier's file.
    """
    from lapace.apps.loaders import refer_to

    if beside is not None:
        save_pair(explainer, output, beside, id_column)
        return True
    # A file is looked for here, not in the folder of the output.
    file = Path(classifier)
    named = str(file.absolute()) if file.is_file() else classifier
    explainer.save(output, classifier=named, id_column=id_column)
    return refer_to(output, named).sha256 is not None


def save_pair(explainer: Explainer, output: Path, beside: Path, id_column: str | None) -> None:
    """Writes an explainer and its classifier: both are put in place, or neither.

    They are written in a temporary folder and moved at the end. Where the process is killed between
    the moves, the explainer in place, old or new, still finds the classifier it was saved with.

    Args:
        explainer: The explainer.
        output: Its file.
        beside: The classifier's file.
        id_column: The column that identified the rows.
    """
    from lapace.apps.loaders import save_classifier, staged_file

    folder = temporary_path(beside)
    folder.mkdir(mode=0o700)
    classifier_part, explainer_part = folder / beside.name, folder / output.name
    staged = None
    try:
        model = explainer.classifier  # a threshold is kept with the reference to the file
        save_classifier(getattr(model, "classifier", model), classifier_part)
        explainer.save(explainer_part, classifier=classifier_part, id_column=id_column)
        for part, path in ((classifier_part, beside), (explainer_part, output)):
            if path.exists():
                part.chmod(stat.S_IMODE(path.stat().st_mode))
        sha256 = hashlib.sha256(classifier_part.read_bytes()).hexdigest()
        staged = staged_file(beside, sha256)
        classifier_part.replace(staged)
        explainer_part.replace(output)
    finally:
        # Interrupted or not: the classifier follows an explainer that is in place.
        if staged is not None and explainer_part.exists():
            staged.unlink(missing_ok=True)
        elif staged is not None:
            staged.replace(beside)
        shutil.rmtree(folder, ignore_errors=True)


@command("report", "lapace report loans.lapace")
def report(*, model: Path = MODEL, output: Output, terminal: Terminal) -> None:
    """Print the report of a fit: can it be trusted? Exit with 1 when it fails."""
    where = output.destination([model], ("table", "json"))
    report = _load_stored(model).report
    where.put(terminal, table=lambda: [rendering.report_text(report)], values=report.to_json)
    if report.verdict == "fails":
        terminal.note("The report fails: do not rely on explanations of this explainer.")
        raise typer.Exit(1)


@command("prototypes", "lapace prototypes loans.lapace --label approved")
def prototypes(
    *, model: Path = MODEL, label: str | None = LABEL, output: Output, terminal: Terminal
) -> None:
    """Show the prototypes of each label, as they were judged when fitted."""
    where = output.destination([model])
    fitted = _load_stored(model).fitted
    wanted = inputs.parse_label(fitted.labels, label)
    chosen = [p for p in fitted.prototypes if label is None or p.label == wanted]
    if not chosen:
        listed = ", ".join(dict.fromkeys(str(p.label) for p in fitted.prototypes))
        raise InputError(f"No prototype has the label '{label}'. There are some of: {listed}.")
    where.put(
        terminal,
        table=lambda: rendering.prototype_tables(fitted.schema, chosen),
        frames=lambda: [rendering.prototype_frame(fitted.schema, chosen)],
        values=lambda: [rendering.prototype_values(fitted.schema, p) for p in chosen],
    )


def _load_stored(path: Path) -> storage.Stored:
    """Reads the file of an explainer, without its classifier."""
    import torch

    from lapace.explainer import storage

    return storage.load(path, torch.device("cpu"))
