"""The commands about instances: `explain`, `cohort`, `why-not` and `plot`."""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rich.padding import Padding
from typer import Argument, Option

from lapace.apps.cli import inputs, rendering
from lapace.apps.cli.app import command
from lapace.apps.cli.options import INSTANCES, Loader, Model, Query
from lapace.apps.cli.outputs import Output, note, progress, show, warn, writable_file, write
from lapace.errors import InputError

if TYPE_CHECKING:
    from lapace.explainer import Explainer
    from lapace.result import Counterfactuals, Explanation, InstanceExplanation
    from lapace.table import Table

__all__ = ["cohort", "explain", "plot", "why_not"]

Pick: TypeAlias = Literal["best", "nearest", "first", "middle", "last", "path"]
Picture: TypeAlias = Literal["path", "latent", "prototypes"]
PICTURES, DPI = (".png", ".svg", ".pdf"), 240
CHUNK = 5000  # instances explained together: those searched for share calls of the classifier
NAMED = 5  # instances named in a remark


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
        help="best: up to three different ways; nearest: the closest one; first, middle, last: one "
        "per prototype; path: every step. JSON has all of them.",
    ),
    letters: Path | None = Option(None, help="A folder for letters, as pages and as text."),
    words: Path | None = Option(
        None, help="What letters call labels and columns, their sender and greeting (TOML)."
    ),
    annex: bool = Option(
        False, "--annex", help="Also write a technical annex to each letter, for the file."
    ),
    safe_csv: bool | None = Option(
        None,
        "--safe-csv/--no-safe-csv",
        help="An apostrophe before texts that a spreadsheet would take for formulas; by default in "
        "files that end in .csv.",
    ),
    output: Output,
    loader: Loader,
) -> None:
    """Find counterfactuals for every instance of a table.

    Exits with 0 also where some instances have none; a line on standard error counts them.
    """
    from lapace.explainer import Search

    output = output.checked([model.path, instances, *query.constraints])
    if pick == "path" and output.format_ == "table":
        raise InputError("Every step of every path is a long table: --format csv or -o OUT.csv.")
    if letters is None and (annex or words is not None):
        option = "--annex" if words is None else "--words"
        raise InputError(f"{option} is about letters: name a folder for them with --letters.")
    if letters is not None and letters.exists() and not letters.is_dir():
        raise InputError(f"'{letters}' is a file. Name a folder for the letters.")
    explainer = model.load(loader)
    options = query.arguments(explainer, model.path)
    if pick == "best" and letters is None and output.format_ != "json":
        options["search"] = Search(picks=("best",))  # nothing else is shown
    pages: list[Path] = []
    write_letters = _letter_writer(letters, words, annex, model, explainer)
    statuses: Counter[str] = Counter()
    names: dict[str, list[str]] = defaultdict(list)  # of the first few instances of each status
    disagree: dict[str, list[str]] = defaultdict(list)  # by column of labels

    def picked() -> Iterator[tuple[Explanation, Counterfactuals, int]]:
        size = None if output.format_ == "json" else CHUNK
        count, tables = inputs.instance_tables(instances, query, explainer.id_column_, size)
        start, is_streamed = 0, output.path is None and output.format_ == "csv"
        with progress(shown=not is_streamed) as bar:
            for table in tables:
                explanation = explainer.explain(table, **options, progress=bar)
                rows = explanation.all_steps() if pick == "path" else getattr(explanation, pick)()
                if start and explanation.ids is None:  # positions in a chunk count from 0
                    ids = tuple(range(start, start + len(table)))
                    explanation = replace(explanation, ids=ids)
                _count(explanation, statuses, names)
                _collect_other_labels(table, explanation, disagree)
                pages.extend(write_letters(explanation))
                yield explanation, rows, start
                start += len(table)
                if bar is not None:
                    bar("instances", start, count)

    output.put(
        table=lambda: rendering.explanation_parts((one for one, _, _ in picked()), pick),
        frames=lambda: (rendering.comparison_frame(rows, start) for _, rows, start in picked()),
        values=lambda: next(one for one, _, _ in list(picked())).to_json(),
        integers=rendering.whole_columns(explainer.schema_),
        safe=safe_csv,
    )
    if letters is not None:
        many = "1 letter" if len(pages) == 1 else f"{len(pages):,} letters, each"
        note(f"Wrote {many} as a page and as text, to '{letters}'.")
    _note_statuses(statuses, names, model, instances)
    _note_other_labels(disagree)


def _collect_other_labels(
    table: Table, explanation: Explanation, disagree: dict[str, list[str]]
) -> None:
    """Adds the instances whose label a column of the table gives otherwise than the classifier.

    A column of labels is no feature, and holds labels of the classifier alone.
    """
    from lapace.table import spelling

    labels = set(map(spelling, explanation.labels))
    for column in (name for name in table.names if name not in explanation.schema.names):
        texts = list(map(spelling, inputs.column_values(table, column)))
        for one, text in zip(explanation, texts if set(texts) <= labels else (), strict=False):
            if one.label is not None and spelling(one.label) != text:
                predicted = f"{spelling(one.name)} ({text}, predicted {spelling(one.label)})"
                disagree[column].append(predicted)


def _note_other_labels(disagree: dict[str, list[str]]) -> None:
    """Names the first few instances that a table and the classifier label differently."""
    for column, names in disagree.items():
        note(
            f"Column '{column}' has another label than the classifier predicts for instance "
            f"{_listed(names, len(names))}. lapace explains what the classifier predicts."
        )


def _count(explanation: Explanation, statuses: Counter[str], names: dict[str, list[str]]) -> None:
    """Counts instances by status, and names the first few of each."""
    from lapace.table import spelling

    statuses.update(explanation.status)
    for i, status in enumerate(explanation.status):
        if len(names[status]) < NAMED:
            names[status].append(spelling(explanation[i].name))


def _listed(names: Sequence[str], count: int) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:NAMED]) + f" and {count - NAMED} more" * (count > NAMED)


def _note_statuses(
    statuses: Counter[str], names: dict[str, list[str]], model: Model, instances: str
) -> None:
    """Says how many instances have which status, and what to ask next."""
    from lapace.result import describe_statuses

    note(f"{describe_statuses(statuses)}.")
    if count := statuses["malformed"]:
        many = "1 instance" if count == 1 else f"{count} instances"
        listed = _listed(names["malformed"], count)
        warn(f"{many} could not be read: {listed}. --format json has the reasons.")
    if count := statuses["already_target"]:
        note(f"Already predicted as the target: {_listed(names['already_target'], count)}.")
    if statuses["answered"]:
        note("Such changes turn the model's prediction; they need not cause the outcome.")
    unanswered = ",".join(names["none_found"] + names["infeasible"])
    if unanswered and instances != inputs.STDIN:
        note(
            f"To find what to relax: lapace why-not {shlex.quote(str(model.path))} "
            f"{shlex.quote(instances)} --ids {shlex.quote(unanswered)}, with the same options."
        )


def _letter_writer(
    folder: Path | None, words: Path | None, annex: bool, model: Model, explainer: Explainer
) -> Callable[[Explanation], list[Path]]:
    """A function that writes letters; annexes name the files they rest on by their hashes."""
    if folder is None:
        return lambda _: []
    from lapace import __version__
    from lapace.apps.letters import Words, write_letters
    from lapace.apps.loaders import without_secrets
    from lapace.explainer import storage

    said = Words.of(words).checked(explainer.classes_.tolist(), explainer.schema_.names)
    reference = storage.read_reference(model.path)
    decided = "not named" if reference is None else reference.name
    if model.classifier is not None:
        decided = without_secrets(model.classifier)
    elif reference is not None and reference.sha256 is not None:
        decided += f", sha256 {reference.sha256}"
    sha256 = hashlib.sha256(model.path.read_bytes()).hexdigest()
    provenance = {
        "Decided with": decided,
        "Explained with": f"{model.path.name}, sha256 {sha256}",
        "Made with": f"lapace {__version__}",
    }
    more: dict[str, Any] = {"with_annex": annex, "provenance": provenance, "taken": set()}
    return partial(write_letters, folder=folder, words=said, **more)


@command("cohort", "lapace cohort loans.lapace instances.csv --target approved --by housing")
def cohort(
    *,
    model: Model,
    instances: str = INSTANCES,
    query: Query,
    by: str | None = Option(None, help="The column that groups them; numbers by quartiles."),
    output: Path | None = Option(
        None, "--output", "-o", help="A page (.html), or its chart (.png, .svg, .pdf)."
    ),
    loader: Loader,
) -> None:
    """Compare groups of instances: what has to change, at what cost, and who gets no answer."""
    from lapace.apps import cohorts

    sources: list[str | Path] = [model.path, instances, *query.constraints]
    where = None if output is None else writable_file(output, sources, (".html", *PICTURES))
    explanation, table = _explain(model, loader, instances, query)[1:]
    groups: Any = by
    if by is not None and by not in explanation.schema.names:
        groups = inputs.column_values(table, by)
    compared = replace(cohorts.cohort(explanation, groups), by=by or "all")
    write(f"{compared}\n\n")
    for title, columns in compared.tables().items():
        write(f"{title}\n")
        show(Padding(rendering.grid(columns), (0, 0, 1, 0)))
    if where is None:
        return
    if where.suffix.lower() == ".html":
        compared.to_html(where)
    else:
        from lapace import plots

        _save_figure(plots.cohort(compared), where)
    note(f"Wrote '{where}'.")


@command(
    "why-not",
    "lapace why-not loans.lapace instances.csv --ids 0,1,2,3,4,5 --target approved "
    '--constraint "income == original" --constraint "credit_score == original"',
)
def why_not(
    *,
    model: Model,
    instances: str = INSTANCES,
    query: Query,
    max_queries: int = Option(50_000, help="Rows the classifier may be queried about."),
    relax_rules: bool = Option(False, "--relax-rules", help="Relax rules of the fit too."),
    output: Output,
    loader: Loader,
) -> None:
    """Find out why instances have no counterfactual, and which constraints to relax."""
    from lapace.result import why_not_to_json

    output = output.checked([model.path, instances, *query.constraints], ("table", "json"))
    explainer, before, _ = _explain(model, loader, instances, query)
    explanation = explainer.why_not(before, max_queries=max_queries, relax_rules=relax_rules)
    output.put(
        table=lambda: rendering.why_not_parts(explanation, before.status),
        values=lambda: why_not_to_json(explanation),
    )
    if explanation.why_not and explainer.fitted_.rules and not relax_rules:
        note("Rules of the fit were not relaxed; --relax-rules relaxes them too.")


def _explain(
    model: Model, loader: Loader, instances: str, query: Query
) -> tuple[Explainer, Explanation, Table]:
    """Explains the instances of a table at once."""
    explainer = model.load(loader)
    options = query.arguments(explainer, model.path)
    table = next(inputs.instance_tables(instances, query, explainer.id_column_)[1])
    with progress() as bar:
        explanation = explainer.explain(table, **options, progress=bar)
    return explainer, explanation, table


@command("plot", "lapace plot loans.lapace instances.csv --kind path --target approved -o path.png")
def plot(
    *,
    model: Model,
    instances: str | None = Argument(
        None, metavar="[INSTANCES]", help="The table of instances; the first with a path is drawn."
    ),
    query: Query,
    output: Path | None = Option(None, "--output", "-o", help="A .png, .svg or .pdf file."),
    kind: Picture = Option("path", help="All but path need no INSTANCES."),
    loader: Loader,
) -> None:
    """Draw the path of an instance, the latent space or the prototypes."""
    if kind == "path" and instances is None:
        raise InputError("A path starts at an instance: name a table of INSTANCES as well.")
    sources = [model.path, instances or model.path]
    output = writable_file(output or Path(f"{kind}.png"), sources, PICTURES)
    from lapace import plots

    if kind == "path":
        explanation = _explain(model, loader, str(instances), query)[1]
        ax = plots.path(_first_with_path(explanation))
    else:
        explainer = model.load(loader)
        ax = plots.latent_map(explainer) if kind == "latent" else plots.prototypes(explainer)
    _save_figure(ax.figure, output)
    note(f"Wrote '{output}'.")


def _save_figure(figure: Any, path: Path) -> None:
    from lapace.files import write_whole

    write_whole(path, lambda temporary: figure.savefig(temporary, dpi=DPI))


def _first_with_path(explanation: Explanation) -> InstanceExplanation:
    """The first instance with a counterfactual, or else with any path to a prototype."""
    drawable = [i for i in explanation if i.status in ("answered", "none_found") and i.prototypes]
    if not drawable:
        why = f" {explanation.reason[0]}" if len(explanation) == 1 else ""
        raise InputError(f"None of the instances has a path to draw.{why}")
    return min(drawable, key=lambda instance: instance.status != "answered")
