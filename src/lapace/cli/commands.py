"""The commands: each reads its options, calls the library and prints."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import typer
from typer import Argument, Option

from lapace.cli import inputs, rendering
from lapace.cli.app import EXAMPLES, app, command
from lapace.cli.batch import batch
from lapace.cli.demo import demo
from lapace.cli.options import (
    CLASSIFIERS,
    ID_COLUMN,
    INSTANCES,
    LABEL,
    MODEL,
    TRAIN,
    Columns,
    Loader,
    Model,
    Query,
    ServerSettings,
    Training,
)
from lapace.cli.outputs import STDOUT, Output, Terminal, together, writable_file
from lapace.errors import InputError

if TYPE_CHECKING:
    from lapace.explainer import Explainer
    from lapace.result import Explanation, InstanceExplanation
    from lapace.table import Table

__all__ = ["EXAMPLES", "app", "batch", "demo"]

Pick: TypeAlias = Literal["best", "nearest", "first", "middle", "last", "path"]
Picture: TypeAlias = Literal["path", "latent", "prototypes", "training"]
PICTURES = (".png", ".svg", ".pdf")

# ------------------------------------------------------------------------------------------------
# fit, report, prototypes


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
    from lapace.classifiers import TrainedKind, held_out_accuracy
    from lapace.classifiers import train as train_stock
    from lapace.classifiers.addresses import without_secrets
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
    table = inputs.read_table(train, id_column)
    labels = inputs.read_labels(table, label) if stock or label is not None else None
    schema = inputs.infer_schema(table, labels, columns, label)
    features = table.without(set(table.names) - set(schema.names))
    reading = schema.read(features).checked()
    terminal.note_parts(*rendering.schema_parts(reading.schema, reading.cells))
    if stock:
        schema = schema.as_numbers()
        numbers, seed, kind = schema, training.random_state, cast(Any, classifier)

        def fit_stock(frame: Any, known: Any) -> Any:
            return loader.decided(train_stock(kind, numbers, frame, known, random_state=seed))

        def frame(rows: Any) -> Any:
            return reading.schema.as_numbers().frame(reading.cells[rows])

        model, known = fit_stock(frame(slice(None)), labels), labels or []
        right = held_out_accuracy(fit_stock, frame, known, random_state=seed)
        terminal.note(
            f"Trained on four fifths of the rows, the {classifier} predicts the true label of "
            f"{right:.1%} of the others."
        )
    else:
        model = loader.classifier(classifier)
    explainer = Explainer(
        model, rules=constraints, schema=schema, device=loader.device, **asdict(training)
    )
    with terminal.progress() as progress:
        # The accuracy on the rows it was trained on says nothing.
        explainer.fit(features, None if stock else labels, progress=progress)
    followed = _save(explainer, output, classifier, beside)
    if not terminal.quiet:
        terminal.show(rendering.report_text(explainer.report_))
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
    table = inputs.read_table(train, id_column)
    labels = None if label is None else inputs.read_labels(table, label)
    found = inputs.infer_schema(table, labels, columns, label)
    reading = found.read(table).checked()
    terminal.show(*rendering.schema_parts(reading.schema, reading.cells))
    if where is not None:
        found.to_toml(where)
        terminal.note(f"Wrote '{where}'.")


def _belongs(classifier: Path, explainer: Path) -> bool:
    """Whether the classifier's file is the one that a saved explainer refers to."""
    from lapace.classifiers.loaders import finish_move, refer_to
    from lapace.explainer import storage

    if not explainer.exists():
        return False
    try:
        reference = storage.read_reference(explainer)
    except InputError:
        return False
    if reference is None or "sha256" not in reference:
        return False
    finish_move(classifier, reference["sha256"])
    return reference == refer_to(explainer, classifier)


def _save(explainer: Explainer, output: Path, classifier: str, beside: Path | None) -> bool:
    """Writes the explainer, and `beside` a classifier trained here.

    Returns:
        Whether the explainer refers to the classifier's file.
    """
    from lapace.classifiers import save_classifier
    from lapace.classifiers.loaders import refer_to

    if beside is not None:
        with together(beside, output) as (classifier_file, explainer_file):
            model = explainer.classifier  # a threshold is kept with the reference to the file
            save_classifier(getattr(model, "classifier", model), classifier_file)
            explainer.save(explainer_file, classifier=classifier_file)
        return True
    # A file is looked for here, not in the folder of the output.
    file = Path(classifier)
    named = str(file.absolute()) if file.is_file() else classifier
    explainer.save(output, classifier=named)
    return "file" in refer_to(output, named)


@command("report", "lapace report loans.lapace")
def report(*, model: Path = MODEL, output: Output, terminal: Terminal) -> None:
    """Print the report of a fit: can it be trusted? Exit with 1 when it fails."""
    where = output.destination([model], ("table", "json"))
    found = _load_fitted(model)[1]
    where.put(terminal, table=lambda: [rendering.report_text(found)], values=found.to_json)
    if found.verdict == "fails":
        terminal.note("The report fails: do not rely on explanations of this explainer.")
        raise typer.Exit(1)


@command("prototypes", "lapace prototypes loans.lapace --label approved")
def prototypes(
    *, model: Path = MODEL, label: str | None = LABEL, output: Output, terminal: Terminal
) -> None:
    """Show the prototypes of each label, as they were judged when fitted."""
    where = output.destination([model])
    fitted = _load_fitted(model)[0]
    wanted = inputs.parse_label(fitted.labels, label)
    chosen = [p for p in fitted.prototypes if label is None or p.label == wanted]
    if not chosen:
        listed = ", ".join(dict.fromkeys(str(p.label) for p in fitted.prototypes))
        raise InputError(f"No prototype has the label '{label}'. There are some of: {listed}.")
    where.put(
        terminal,
        table=lambda: rendering.prototype_tables(fitted.schema, chosen),
        frame=lambda: rendering.prototype_frame(fitted.schema, chosen),
        values=lambda: [rendering.prototype_values(fitted.schema, p) for p in chosen],
    )


def _load_fitted(path: Path) -> Any:
    """What a file of an explainer holds, without its classifier."""
    import torch

    from lapace.explainer import storage

    return storage.load(path, torch.device("cpu"))


# ------------------------------------------------------------------------------------------------
# explain, why-not, plot


@command(
    "explain",
    "lapace explain loans.lapace instances.csv --target approved "
    '--constraint "income >= original" -o counterfactuals.csv',
)
def explain(
    *,
    model: Model,
    instances: str = INSTANCES,
    query: Query,
    pick: Pick = Option(
        "best",
        help="Which counterfactuals: best is up to n-best different ways per instance, nearest the "
        "closest one; first, middle and last are one per prototype; path is every step. JSON has "
        "all of them.",
    ),
    n_best: int = Option(3, help="How many different ways best looks for."),
    everything: bool = Option(
        False,
        "--all",
        help="Show also instances without a counterfactual, and all instances, however many.",
    ),
    letters: Path | None = Option(
        None,
        metavar="FOLDER",
        help="Write a letter for each instance that has not the target already: a page to print "
        "and a text.",
    ),
    template: Path | None = Option(
        None, metavar="FILE", help="The wording of the letters, a Jinja2 template."
    ),
    detail: Literal["path", "picks"] = Option(
        "path", help="Query the classifier about every step, or only what the picks need."
    ),
    enforce: Literal["exact", "naive", "polyak", "latent"] = Option(
        "exact", help="How constraints are enforced; all but exact are for comparison."
    ),
    stable: bool = Option(
        True,
        help="first is the start of a path's last unbroken run of ok steps; otherwise the first ok "
        "step of all.",
    ),
    output: Output,
    loader: Loader,
    terminal: Terminal,
) -> None:
    """Find counterfactuals for every instance of a table.

    Exits with 0 also where some instances have none; a line on standard error counts them.
    """
    where = output.destination([model.path, instances, *query.constraints])
    settings = {"detail": detail, "enforce": enforce, "stable": stable, "n_best": n_best}
    if letters is not None and letters.exists() and not letters.is_dir():
        raise InputError(f"'{letters}' is a file. Name a folder for the letters.")
    explanation = _explain(model, loader, instances, query, terminal, **settings)[1]
    rows = explanation.all_steps() if pick == "path" else getattr(explanation, pick)()
    shown = None if pick == "path" else rows
    where.put(
        terminal,
        table=lambda: rendering.explanation_parts(explanation, shown, everything=everything),
        frame=lambda: rendering.comparison_frame(rows),
        values=explanation.to_json,
    )
    if terminal.quiet and where.format in ("csv", "parquet"):
        _warn_of_malformed(explanation, terminal)
    if letters is not None:
        _write_letters(explanation, letters, template, model, terminal)
    terminal.note(f"{explanation!r}.")


def _warn_of_malformed(explanation: Explanation, terminal: Terminal) -> None:
    """Names instances that could not be read, which have no row in a table of counterfactuals."""
    malformed = [one for one in explanation if one.status == "malformed"]
    if malformed:
        listed = ", ".join(str(one.name) for one in malformed[:5])
        listed += f" and {len(malformed) - 5} more" if len(malformed) > 5 else ""
        terminal.warn(
            f"{len(malformed)} of {len(explanation)} instances could not be read and have no row "
            f"in the result: {listed}. --format json has the reasons."
        )


def _write_letters(
    explanation: Explanation, folder: Path, template: Path | None, model: Model, terminal: Terminal
) -> None:
    """Writes letters that name the files they rest on by their hashes."""
    from lapace import __version__
    from lapace.classifiers.addresses import without_secrets
    from lapace.explainer import storage
    from lapace.letters import write_letters

    os.environ.setdefault("MPLBACKEND", "Agg")  # no window is opened
    reference = storage.read_reference(model.path) or {}
    named = reference.get("file") or reference.get("named") or "not named"
    classifier = named if model.classifier is None else without_secrets(model.classifier)
    followed = "sha256" in reference and model.classifier is None
    known = f", sha256 {reference['sha256']}" if followed else ""
    sha256 = hashlib.sha256(model.path.read_bytes()).hexdigest()
    provenance = {
        "Model": f"{classifier}{known}",
        "Explainer": f"{model.path.name}, sha256 {sha256}",
        "Made with": f"lapace {__version__}",
    }
    written = write_letters(explanation, folder, template=template, provenance=provenance)
    terminal.note(f"Wrote {len(written)} letters, each as a page and as text, to '{folder}'.")


@command("cohort", "lapace cohort loans.lapace instances.csv --target approved --by housing")
def cohort(
    *,
    model: Model,
    instances: str = INSTANCES,
    query: Query,
    by: str | None = Option(
        None,
        metavar="COLUMN",
        help="The column that groups the instances, a feature or not; numbers are cut at their "
        "quartiles.",
    ),
    output: Path | None = Option(
        None, "--output", "-o", metavar="OUT", help="A page to write (.html)."
    ),
    loader: Loader,
    terminal: Terminal,
) -> None:
    """Compare groups of instances: what has to change, at what cost, and who gets no answer."""
    from lapace import cohorts

    sources: list[str | Path] = [model.path, instances, *query.constraints]
    where = None if output is None else writable_file(output, sources, (".html",))
    explanation, table = _explain(model, loader, instances, query, terminal)[1:]
    groups: Any = by
    if by is not None and by not in explanation.schema.names:
        groups = inputs.column_values(table, by)
    found = replace(cohorts.cohort(explanation, groups), by=by or "all")
    if where is None:
        terminal.show(*rendering.cohort_parts(found))
    else:
        found.to_html(where)
        terminal.note(f"Wrote '{where}'.")


@command(
    "why-not",
    'lapace why-not loans.lapace instances.csv --target approved --constraint "changes <= 1"',
)
def why_not(
    *,
    model: Model,
    instances: str = INSTANCES,
    query: Query,
    max_queries: int = Option(
        50_000, help="Rows the classifier may be queried about to find the reasons."
    ),
    output: Output,
    loader: Loader,
    terminal: Terminal,
) -> None:
    """Find out why instances have no counterfactual, and which constraints to relax."""
    from lapace.result import why_not_to_json

    where = output.destination([model.path, instances, *query.constraints], ("table", "json"))
    explainer, explanation, _ = _explain(model, loader, instances, query, terminal)
    explanation = explainer.why_not(explanation, max_queries=max_queries)
    where.put(
        terminal,
        table=lambda: rendering.why_not_parts(explanation),
        values=lambda: why_not_to_json(explanation),
    )
    terminal.note(f"{explanation!r}.")


def _explain(
    model: Model, loader: Loader, instances: str, query: Query, terminal: Terminal, **search: Any
) -> tuple[Explainer, Explanation, Table]:
    """Explains the instances of a table; options are checked before the explainer is loaded."""
    constraints = inputs.read_constraints(query.constraints, query.constraint)
    costs = inputs.parse_costs(query.costs)
    from lapace.explainer import Search

    explainer = model.load(loader)
    if explainer.report_.verdict == "fails":
        terminal.warn(
            f"The report of '{model.path.name}' fails: do not rely on what follows. See: lapace "
            f"report {model.path}"
        )
    if query.target is None and len(explainer.classes_) == 2:
        terminal.note(
            "Without --target the other of the two labels is the target of each instance."
        )
    table = inputs.select_instances(inputs.read_table(instances, query.id_column), query.ids)
    with terminal.progress() as progress:
        explanation = explainer.explain(
            table,
            target=inputs.parse_label(explainer.classes_, query.target),
            constraints=constraints,
            costs=costs,
            confidence=query.confidence,
            plausibility=query.plausibility,
            search=Search(steps=query.steps, **search),
            progress=progress,
        )
    return explainer, explanation, table


@command("plot", "lapace plot loans.lapace instances.csv --kind path --target approved -o path.png")
def plot(
    *,
    model: Model,
    instances: str | None = Argument(
        None, metavar="[INSTANCES]", help="The table of instances; the first with a path is drawn."
    ),
    query: Query,
    output: Path | None = Option(
        None, "--output", "-o", metavar="OUT", help="The picture to write: .png, .svg or .pdf."
    ),
    kind: Picture | None = Option(
        None,
        help="The path of an instance, the latent space, the prototypes or the training; by "
        "default path with INSTANCES, latent without.",
    ),
    prototype: int | None = Option(
        None,
        help="Which path; by default the one whose first counterfactual is nearest. -1: the path "
        "to a sampled endpoint.",
    ),
    label: str | None = LABEL,
    loader: Loader,
    terminal: Terminal,
) -> None:
    """Draw the path of an instance, the latent space, the prototypes or the training."""
    kind = kind or ("latent" if instances is None else "path")
    if kind == "path" and instances is None:
        raise InputError("A path starts at an instance: name a table of INSTANCES as well.")
    output = writable_file(
        output or Path(f"{kind}.png"), [model.path, instances or model.path], PICTURES
    )
    os.environ.setdefault("MPLBACKEND", "Agg")  # a file is written, no window is opened
    from lapace import plots
    from lapace.table import write_whole

    one: Any = None
    if instances is None or kind == "training":
        explainer = model.load(loader)
    else:
        explainer, explanation, _ = _explain(model, loader, instances, query, terminal)
        one = _first_with_path(explanation)
        if one is None and (query.ids or kind == "path"):
            why = f" {explanation.reason[0]}" if len(explanation) == 1 else ""
            raise InputError(f"None of the instances has a path to draw.{why}")
    draw: dict[Picture, Callable[[], Any]] = {
        "path": lambda: plots.path(one, _path_of(one, prototype)).figure,
        "latent": lambda: plots.latent_map(explainer, one).figure,
        "prototypes": lambda: (
            plots.prototypes(explainer, inputs.parse_label(explainer.classes_, label), one).figure
        ),
        "training": lambda: plots.training_curves(explainer.history_),
    }
    figure = draw[kind]()
    write_whole(output, lambda path: figure.savefig(path, dpi=240))
    terminal.note(f"Wrote '{output}'.")


def _path_of(one: InstanceExplanation, prototype: int | None) -> int | None:
    """The path asked for, or else the one that the best counterfactual was found near."""
    if prototype is not None or one.status != "answered":
        return prototype
    best = one.explanation[[one.position]].best(1)
    number = int(best.prototype[0])
    return (
        number
        if number in one.explanation.prototype[one.explanation.instance == one.position]
        else None
    )


def _first_with_path(explanation: Explanation) -> InstanceExplanation | None:
    """The first instance with a counterfactual, or else with any path to a prototype."""
    found = [i for i in explanation if i.status in ("answered", "none_found") and i.prototypes]
    return min(found, key=lambda instance: instance.status != "answered", default=None)


# ------------------------------------------------------------------------------------------------
# data, demo, serve


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
    from lapace.table import write_whole

    where = None
    if output is not None:
        format_: Any = "csv" if output == STDOUT else None
        where = Output(format_, output).destination([], ("csv", "parquet"))
    for file in filter(None, (rules, schema)):
        writable_file(file, [], (".toml",))
    found = datasets.load(name, rows=rows)
    if where is not None:
        frame = _labelled(found, part, label)
        where.put(terminal, frame=lambda: frame)
    if rules is not None:
        text = constraints.to_toml(found.rules)
        write_whole(rules, lambda path: path.write_text(text, encoding="utf-8"))
    if schema is not None:
        found.schema.to_toml(schema)
    terminal.note(
        f"{found.name}: {len(found.train):,} training rows, {len(found.test):,} held out."
    )
    for feature in found.schema.features:  # whose order CSV cannot hold
        if schema is None and feature.kind == "ordinal" and where and where.format == "csv":
            order = "<".join(map(str, feature.categories))
            terminal.note(f"To keep its order, fit with --kind '{feature.name}=ordinal:{order}'")


def _labelled(found: Any, part: str, label: str) -> Any:
    """Some rows of a data set, with their labels as the first column."""
    import numpy as np

    schema = found.schema
    if label in schema.names:
        raise InputError(f"'{found.name}' has a column '{label}'. Name another with --label.")
    cells, labels = [], []
    for name in ("train", "test") if part == "all" else (part,):
        reading = schema.read(getattr(found, name))
        schema = reading.schema  # with levels that only these rows have
        cells.append(reading.cells)
        labels.append(getattr(found, f"{name}_labels"))
    return schema.frame(np.concatenate(cells), before={label: np.concatenate(labels)})


@command("serve", "lapace serve loans.lapace --port 8000")
def serve(*, model: Model, settings: ServerSettings, loader: Loader, terminal: Terminal) -> None:
    """Serve explanations over HTTP, to this machine only unless --host says otherwise."""
    from lapace import server

    if settings.token is None and os.environ.get("LAPACE_TOKEN") == "" and not settings.open_:
        raise InputError(
            "LAPACE_TOKEN is set and empty. Put a token in it, unset it, or say --open."
        )
    explainer = model.load(loader)
    terminal.note(f"{explainer!r}.")
    _log_as_json(requests=settings.log_requests)
    with _threads_end():
        server.serve(
            explainer,
            **asdict(settings),
            timeout=loader.timeout,
            ready=lambda url: terminal.note(f"Listening at {url}; stop with Ctrl-C."),
        )


def _log_as_json(*, requests: bool) -> None:
    """Logs of the server go to standard error, a line of JSON each."""
    from lapace.server.logs import JsonLines

    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    log = logging.getLogger("lapace")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO if requests else logging.WARNING)


@contextmanager
def _threads_end() -> Iterator[None]:
    """Ends the process without waiting for threads that hang: at exit they would abort it."""
    from lapace.server.work_queue import THREAD_NAME

    code = 0
    try:
        yield
    except SystemExit as error:  # SIGTERM
        code = error.code if isinstance(error.code, int) else 1
        raise
    finally:
        if any(thread.name == THREAD_NAME for thread in threading.enumerate()):
            sys.stderr.flush()
            os._exit(code)
