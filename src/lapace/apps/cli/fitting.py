"""The commands `fit`, `schema` and `report`."""

from __future__ import annotations

import hashlib
import shlex
import stat
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer
from rich.padding import Padding
from rich.text import Text
from typer import Option

from lapace.apps.cli import inputs, rendering
from lapace.apps.cli.app import command
from lapace.apps.cli.options import CLASSIFIERS, MODEL, Loader, Training
from lapace.apps.cli.outputs import (
    Output,
    note,
    printable,
    progress,
    quiet,
    show,
    writable_file,
    write,
)
from lapace.errors import InputError
from lapace.files import temporary_path

if TYPE_CHECKING:
    from lapace.constraints import Constraint
    from lapace.explainer import Explainer
    from lapace.schema import Schema

__all__ = ["fit", "report", "schema"]

ODD = 3  # oddities of a table named by `fit`


@command(
    "fit",
    "lapace fit train.csv --classifier forest --label label "
    '--rule "age == original" -o loans.lapace',
)
def fit(
    *,
    training: Training,
    classifier: str = Option(
        help=f"The one to explain: {CLASSIFIERS}; or forest, mlp, boosting, trained on the labels."
    ),
    output: Path = Option(..., "--output", "-o", metavar="M.lapace", help="The file to write."),
    rules: list[Path] = Option([], help="A file of constraints that always hold. Repeatable."),
    rule: list[str] = Option([], help='One such constraint, "age == original". Repeatable.'),
    no_learned_rules: bool = Option(
        False, "--no-learned-rules", help="Learn no rules from the table."
    ),
    without_rule: list[str] = Option(
        [], help="One learned rule to leave out, as the report writes it. Repeatable."
    ),
    n_prototypes: int = Option(5, help="Prototypes per label."),
    random_state: int = Option(0, help="Seed of everything random."),
    sample: int | None = Option(None, help="Fit on at most so many rows, drawn from the table."),
    loader: Loader,
) -> None:
    """Fit an explainer to a classifier, and write it to M.lapace.

    Prints whether it can be trusted, how good the classifier is, which columns answers may change,
    what is odd in the table, the files written, and what to type next. A classifier trained here
    is written beside M.lapace.
    """
    from lapace.constraints import System, parse_all
    from lapace.datasets import TrainedKind
    from lapace.explainer import Explainer

    is_trained_here = classifier in get_args(TrainedKind)
    output = writable_file(output, [*training.files, *rules, classifier], (".lapace",))
    constraints = parse_all(inputs.read_constraints(rules, rule))
    table = inputs.read_training(training, sample, random_state)
    has_labels = is_trained_here or training.label is not None
    labels = inputs.read_labels(table, training.label) if has_labels else None
    schema = inputs.infer_schema(table, labels, training)
    features = table.without(set(table.names) - set(schema.names))
    System.of(constraints, schema)  # refuses rules that cannot hold before training
    if is_trained_here:
        model, right = _train(classifier, schema, features, labels or [], loader, random_state)
        schema = schema.as_numbers()
    else:
        model = loader.classifier(classifier)
    explainer = Explainer(
        model,
        n_prototypes=n_prototypes,
        rules=constraints,
        learn_rules=False if no_learned_rules else dict.fromkeys(without_rule, False),
        schema=schema,
        device=loader.device,
        random_state=random_state,
    )
    with progress() as bar:
        # The accuracy on the rows it was trained on says nothing.
        explainer.fit(features, None if is_trained_here else labels, progress=bar or False)
    if is_trained_here:
        written = (
            f"'{output}' and its classifier '{save_pair(explainer, output, training.identifier)}'"
        )
        following = ""
    else:
        written, right = f"'{output}'", _accuracy(explainer.report_.accuracy)
        following = _save(explainer, output, classifier, training.identifier, loader)
    if quiet.get():
        return
    file, known = shlex.quote(str(output)), ", ".join(map(str, explainer.classes_[:5]))
    lines = (
        explainer.report_.headline,
        right,
        _free_columns(explainer.fitted_.rules, explainer.schema_),
        _oddities(explainer),
        f"Wrote {written}. The whole report: lapace report {file}",
        f"Next: lapace explain {file} TABLE.csv --target LABEL{following} (LABEL: {known})",
    )
    write("".join(f"{printable(line)}\n" for line in lines))


def _train(
    kind: Any, schema: Schema, table: Any, labels: Sequence[Any], loader: Loader, random_state: int
) -> tuple[Any, str]:
    """Trains a classifier on a table; returns it and a sentence on how often it is right."""
    from lapace.datasets import held_out_predictions, train

    reading = schema.read(table).checked()
    numbers = schema.as_numbers()

    def fitted(frame: Any, known: Any) -> Any:
        return loader.decided(train(kind, numbers, frame, known, random_state=random_state))

    def rows(positions: Any) -> Any:
        return reading.schema.as_numbers().frame(reading.cells[positions])

    true, predicted = held_out_predictions(fitted, rows, labels, random_state=random_state)
    usual, most = Counter(true).most_common(1)[0]
    right = sum(a == b for a, b in zip(true, predicted, strict=True))
    sentence = (
        f"The {kind} is right on {right / len(true):.1%} of rows held out; always saying '{usual}' "
        f"would be right on {most / len(true):.1%}."
    )
    return fitted(rows(slice(None)), labels), sentence


def _free_columns(rules: Sequence[Constraint], schema: Schema) -> str:
    """Names columns that no rule limits, and those that only rules about several columns limit."""
    from lapace.constraints import Shorthand, System

    named: set[int] = set()
    limited: set[int] = set()
    for bound in System.of(rules, schema).bound:
        named |= set(bound.columns)
        if len(bound.columns) == 1 or isinstance(bound.constraint, Shorthand):
            limited |= set(bound.columns)
    own = {i: f.name for i, f in enumerate(schema.features) if f.derived is None}
    free = [name for i, name in own.items() if i not in named]
    nearly = [name for i, name in own.items() if i in named - limited]
    if not free and not nearly:
        return "Every column is limited by a rule of its own."
    parts = [f"Free to change: {', '.join(free)}"] if free else []
    parts += [f"nearly free, limited only by other columns: {', '.join(nearly)}"] if nearly else []
    keep = shlex.quote(str(Shorthand("fixed", ((free or nearly)[0],))))
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}. To keep a column as it is: --rule {keep}"


def _oddities(explainer: Explainer) -> str:
    """Names what is odd in the table: what might be meant otherwise, and rules learned from it."""
    from lapace.schema import remarks

    odd, learned = remarks(explainer.schema_.features), explainer.rules_
    more = f"; and {len(odd) - ODD} more" if len(odd) > ODD else ""
    text = f"Odd in the table: {'; '.join(odd[:ODD]) or 'nothing'}{more}."
    text += " (lapace schema … -o columns.toml writes that file, --schema reads it.)" * bool(odd)
    if not learned:
        return text
    texts = ", ".join(rule.text for rule in learned[:ODD]) + ", …" * (len(learned) > ODD)
    return f"{text} Learned rules that every row and every answer keeps ({len(learned)}): {texts}"


def _accuracy(share: float | None) -> str:
    if share is None:
        return "It is not known how often the classifier is right: --label COLUMN would show it."
    return f"The classifier is right on {share:.1%} of the rows."


def _save(
    explainer: Explainer, output: Path, classifier: str, id_column: str | None, loader: Loader
) -> str:
    """Writes the explainer; returns the options with which commands find its classifier."""
    from lapace.apps.loaders import refer_to, without_secrets

    # A file is looked for here, not in the folder of the output.
    file = Path(classifier)
    named = str(file.absolute()) if file.is_file() else classifier
    explainer.save(output, classifier=named, id_column=id_column)
    if refer_to(output, named).sha256 is not None:
        return ""
    unsafe = " --unsafe-pickle" if loader.unsafe_pickle else ""
    shown = without_secrets(classifier) if "://" in classifier else shlex.quote(classifier)
    return f" --classifier {shown}{unsafe}"


def save_pair(explainer: Explainer, output: Path, id_column: str | None) -> Path:
    """Writes a classifier trained here, and the explainer, which refers to it.

    The classifier's file is named after its content, so that the files of an earlier fit belong
    together until the new explainer is in place. Only then is the earlier classifier removed, if
    `fit` wrote it and no other explainer in the folder refers to it.

    Args:
        explainer: The explainer.
        output: Its file.
        id_column: The column that identified the rows.

    Returns:
        The classifier's file, beside `output`.
    """
    from lapace.apps.loaders import save_classifier

    earlier = output.parent / _referred(output)
    part = temporary_path(output.with_suffix(".skops"))
    written = [part]
    model = explainer.classifier  # a threshold is kept with the reference to the file
    try:
        save_classifier(getattr(model, "classifier", model), part)
        if output.exists():
            part.chmod(stat.S_IMODE(output.stat().st_mode))
        beside = _named_after_content(part, output)
        written.append(beside)
        part.replace(beside)
        explainer.save(output, classifier=beside, id_column=id_column)
    finally:  # interrupted or not
        if earlier.is_file() and earlier == _named_after_content(earlier, output):
            written.append(earlier)
        in_use = {_referred(explainer) for explainer in output.parent.glob("*.lapace")}
        for file in written:
            if file.name not in in_use:
                file.unlink(missing_ok=True)
    return beside


def _named_after_content(classifier: Path, output: Path) -> Path:
    sha256 = hashlib.sha256(classifier.read_bytes()).hexdigest()
    return output.with_name(f"{output.stem}-{sha256[:8]}.skops")


def _referred(explainer: Path) -> str:
    """The name of the classifier's file that a saved explainer refers to; empty without one."""
    from lapace.explainer import storage

    with suppress(InputError):  # no file, or no explainer
        reference = storage.read_reference(explainer)
        return "" if reference is None else reference.name
    return ""


@command("schema", "lapace schema train.csv --label label -o schema.toml")
def schema(
    *,
    training: Training,
    output: Path | None = Option(None, "--output", "-o", help="A file to write (.toml)."),
) -> None:
    """Show how a table is read, a line per column, and write it as a file to edit.

    The file is handed to `fit` with --schema.
    """
    from lapace.schema import column_lines, remarks

    where = None if output is None else writable_file(output, training.files, (".toml",))
    table = inputs.read_training(training)
    labels = None if training.label is None else inputs.read_labels(table, training.label)
    inferred = inputs.infer_schema(table, labels, training)
    reading = inferred.read(table).checked()
    features = reading.schema.features
    columns = rendering.grid(column_lines(features, reading.cells))
    show(Padding(columns, (0, 0, 1, 0)))
    write("".join(f"{remark}\n" for remark in remarks(features)))  # not wrapped: to be copied
    if where is not None:
        left_out = {name: "drop" for name, kind in training.overrides.items() if kind == "drop"}
        if training.identifier is not None:
            left_out[training.identifier] = "id"
        inferred.to_toml(where, left_out)
        note(f"Wrote '{where}'.")


@command("report", "lapace report loans.lapace")
def report(*, model: Path = MODEL, output: Output) -> None:
    """Print the report of a fit: can it be trusted? Exit with 1 when it fails."""
    import torch

    from lapace.explainer import storage

    output = output.checked([model], ("table", "json"))
    report = storage.load(model, torch.device("cpu")).report
    output.put(table=lambda: [Text(str(report))], values=report.to_json)
    if report.verdict == "fails":
        note("The report fails: do not rely on explanations of this explainer.")
        raise typer.Exit(1)
