"""The commands about instances: `explain`, `cohort`, `why-not` and `plot`."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from typer import Argument, Option

from lapace.apps.cli import inputs, rendering
from lapace.apps.cli.app import command
from lapace.apps.cli.options import INSTANCES, LABEL, Loader, Model, Query
from lapace.apps.cli.outputs import Output, Progress, Terminal, writable_file
from lapace.errors import InputError

if TYPE_CHECKING:
    from lapace.explainer import Explainer
    from lapace.result import Counterfactuals, Explanation, InstanceExplanation
    from lapace.table import Table

__all__ = ["cohort", "explain", "plot", "why_not"]

Pick: TypeAlias = Literal["best", "nearest", "first", "middle", "last", "path"]
Picture: TypeAlias = Literal["path", "latent", "prototypes", "training"]
PICTURES, DPI = (".png", ".svg", ".pdf"), 240
CHUNKS = (250, 500, 1000, 2000)  # instances explained together; few at first, to be out soon


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
        help="Write a letter for each instance without the target label: a page to print "
        "and a text.",
    ),
    words: Path | None = Option(
        None,
        metavar="FILE",
        help="What letters call labels and columns, and what is predicted (TOML).",
    ),
    enforce: Literal["exact", "naive", "latent"] = Option(
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
    settings: dict[str, Any] = {"enforce": enforce, "stable": stable, "n_best": n_best}
    if pick == "best" and letters is None and where.format != "json":
        settings["picks"] = ("best",)  # nothing else is shown
    if letters is not None and letters.exists() and not letters.is_dir():
        raise InputError(f"'{letters}' is a file. Name a folder for the letters.")
    question = _ask(model, loader, query, terminal, **settings)
    names: set[str] = set()  # of letters written
    write = None if letters is None else _letters(letters, words, model, names)
    tally = rendering.Tally()

    def picked() -> Iterator[tuple[Explanation, Counterfactuals, int]]:
        sizes = CHUNKS if where.format != "json" else None
        with terminal.progress(shown=not where.is_screen) as progress:
            for start, explanation in question.chunks(instances, sizes, progress):
                rows = explanation.all_steps() if pick == "path" else getattr(explanation, pick)()
                named = explanation
                if start and named.ids is None:  # positions in a chunk count from 0
                    named = replace(named, ids=tuple(range(start, start + len(named))))
                tally.add(named)
                if write is not None:
                    write(named)
                yield named, rows, start

    where.put(
        terminal,
        table=lambda: rendering.explanation_parts(
            ((one, None if pick == "path" else rows) for one, rows, _ in picked()),
            tally,
            everything=everything,
        ),
        frames=lambda: (rendering.comparison_frame(rows, start) for _, rows, start in picked()),
        values=lambda: next(one for one, _, _ in list(picked())).to_json(),
    )
    if terminal.quiet and where.format in ("csv", "parquet"):
        _warn_of_malformed(tally, terminal)
    if letters is not None:
        many = "1 letter" if len(names) == 1 else f"{len(names):,} letters, each"
        terminal.note(f"Wrote {many} as a page and as text, to '{letters}'.")
    terminal.note(f"{tally}.")
    _note_what_next(tally, model, instances, terminal)


def _warn_of_malformed(tally: rendering.Tally, terminal: Terminal) -> None:
    """Names instances that could not be read, which have no row in a table of counterfactuals."""
    malformed = tally.status["malformed"]
    if malformed:
        more = malformed - len(tally.malformed)
        listed = ", ".join(map(str, tally.malformed)) + (f" and {more} more" if more else "")
        terminal.warn(
            f"{malformed} of {len(tally)} instances could not be read and have no row in the "
            f"result: {listed}. --format json has the reasons."
        )


def _note_what_next(
    tally: rendering.Tally, model: Model, instances: str, terminal: Terminal
) -> None:
    """Says what counterfactuals are not, and which command finds what to relax."""
    if tally.status["answered"]:
        terminal.note("Such changes turn the model's prediction; they need not cause the outcome.")
    if tally.unanswered and instances != "-":
        from lapace.table import spelling

        some = ",".join(map(spelling, tally.unanswered))
        terminal.note(
            f"What would have to give: lapace why-not {shlex.quote(str(model.path))} "
            f"{shlex.quote(instances)} --ids {shlex.quote(some)}, with the same options."
        )


def _letters(
    folder: Path, words: Path | None, model: Model, names: set[str]
) -> Callable[[Explanation], Any]:
    """A function that writes letters, which name the files they rest on by their hashes."""
    from lapace import __version__
    from lapace.apps.letters import write_letters
    from lapace.apps.loaders import without_secrets
    from lapace.explainer import storage

    reference = storage.read_reference(model.path)
    if model.classifier is not None:
        decided = without_secrets(model.classifier)
    elif reference is None:
        decided = "not named"
    else:
        decided = reference.name
        decided += f", sha256 {reference.sha256}" if reference.sha256 is not None else ""
    sha256 = hashlib.sha256(model.path.read_bytes()).hexdigest()
    provenance = {
        "Decided with": decided,
        "Explained with": f"{model.path.name}, sha256 {sha256}",
        "Made with": f"lapace {__version__}",
    }
    return partial(
        write_letters,
        folder=folder,
        words=words,
        provenance=provenance,
        taken=names,
    )


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
        None,
        *("--output", "-o"),
        metavar="OUT",
        help="A page to write (.html), or a picture (.png, .svg or .pdf).",
    ),
    loader: Loader,
    terminal: Terminal,
) -> None:
    """Compare groups of instances: what has to change, at what cost, and who gets no answer."""
    from lapace.apps import cohorts

    sources: list[str | Path] = [model.path, instances, *query.constraints]
    where = None if output is None else writable_file(output, sources, (".html", *PICTURES))
    explanation, table = _explain(model, loader, instances, query, terminal)[1:]
    groups: Any = by
    if by is not None and by not in explanation.schema.names:
        groups = inputs.column_values(table, by)
    compared = replace(cohorts.cohort(explanation, groups), by=by or "all")
    if where is None:
        terminal.show(*rendering.cohort_parts(compared))
        return
    if where.suffix.lower() == ".html":
        compared.to_html(where)
    else:
        os.environ.setdefault("MPLBACKEND", "Agg")
        from lapace import plots
        from lapace.files import write_whole

        write_whole(where, lambda path: plots.cohort(compared).savefig(path, dpi=DPI))
    terminal.write(f"{compared}\n")
    terminal.note(f"Wrote '{where}'.")


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
    max_queries: int = Option(
        50_000, help="Rows the classifier may be queried about to find the reasons."
    ),
    relax_rules: bool = Option(
        False, "--relax-rules", help="Let the explainer's rules give way too."
    ),
    output: Output,
    loader: Loader,
    terminal: Terminal,
) -> None:
    """Find out why instances have no counterfactual, and which constraints to relax."""
    from lapace.result import why_not_to_json

    where = output.destination([model.path, instances, *query.constraints], ("table", "json"))
    explainer, explanation, _ = _explain(model, loader, instances, query, terminal)
    explanation = explainer.why_not(explanation, max_queries=max_queries, relax_rules=relax_rules)
    where.put(
        terminal,
        table=lambda: rendering.why_not_parts(explanation),
        values=lambda: why_not_to_json(explanation),
    )
    if explanation.why_not and explainer.fitted_.rules and not relax_rules:
        terminal.note("The rules of the fit were left alone; --relax-rules lets them give way too.")
    terminal.note(f"{explanation!r}.")


@dataclass(frozen=True)
class _Question:
    """An explainer, and what is asked of it.

    Attributes:
        explainer: The explainer.
        query: Which instances.
        options: Arguments of `explain`.
        only: The label that instances must have; None for any.
    """

    explainer: Explainer
    query: Query
    options: Mapping[str, Any]
    only: Any = None

    def chunks(
        self, instances: str, sizes: tuple[int, ...] | None, progress: Progress | None
    ) -> Iterator[tuple[int, Explanation]]:
        """Explains a table part by part; yields where each part begins, and its explanation."""
        count, tables = self.tables(instances, sizes)
        start, read, room = 0, 0, self.query.first
        for table in tables:
            several = len(table) < count
            some = self.chosen(table, read, room)
            read += len(table)
            if len(some) or (read == count and not start):
                bar = None if several else progress
                yield start, self.explainer.explain(some, **self.options, progress=bar)
            start += len(some)
            if several and progress is not None:
                progress("explaining", read, count)
            if room is not None:
                room -= len(some)
                if room <= 0:
                    break

    def tables(self, instances: str, sizes: tuple[int, ...] | None) -> tuple[int, Iterator[Table]]:
        """Reads the table; returns how many rows it has, and its parts."""
        return inputs.instance_tables(instances, self.query, sizes, self.explainer.id_column_)

    def chosen(self, table: Table, start: int = 0, room: int | None = None) -> Table:
        """The rows that are predicted the label asked for, and of these as many as there is room.

        Args:
            table: A part of the table.
            start: Where the part begins in the whole table.
            room: How many rows are still wanted; None for all.
        """
        if self.only is None and room is None:
            return table
        rows = list(range(len(table)))
        if self.only is not None:  # what cannot be read is kept, to be said
            labels = self.explainer.labels(table)
            rows = [row for row in rows if labels[row] in (self.only, None)]
        some = table.take(rows[:room])
        if some.ids is not None:
            return some
        return inputs.with_positions(some, [start + row for row in rows[:room]])


def _ask(
    model: Model, loader: Loader, query: Query, terminal: Terminal, **search: Any
) -> _Question:
    """Checks the options, then loads the explainer."""
    constraints = inputs.read_constraints(query.constraints, query.constraint)
    costs = inputs.parse_costs(query.costs)
    from lapace.explainer import Search

    if query.first is not None and query.first < 1:
        raise InputError(f"--first {query.first} is no number of rows: give one from 1.")
    explainer = model.load(loader)
    if query.free is not None:
        constraints.append(inputs.all_fixed_but(query.free, explainer.schema_))
    model.note_limits(explainer, query.target, terminal)
    options = {
        "target": inputs.parse_label(explainer.classes_, query.target),
        "constraints": constraints,
        "costs": costs,
        "confidence": query.confidence,
        "plausibility": query.plausibility,
        "search": Search(steps=query.steps, n_starts=query.n_starts, **search),
    }
    only = inputs.parse_label(explainer.classes_, query.only)
    if only is not None:
        explainer.classifier_.code(only)  # refuses what is no label
    return _Question(explainer, query, options, only)


def _explain(
    model: Model, loader: Loader, instances: str, query: Query, terminal: Terminal
) -> tuple[Explainer, Explanation, Table]:
    """Explains the instances of a table at once."""
    question = _ask(model, loader, query, terminal)
    table = question.chosen(next(question.tables(instances, None)[1]), room=query.first)
    with terminal.progress() as progress:
        explanation = question.explainer.explain(table, **question.options, progress=progress)
    return question.explainer, explanation, table


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
    from lapace.files import write_whole

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
    write_whole(output, lambda path: figure.savefig(path, dpi=DPI))
    terminal.note(f"Wrote '{output}'.")


def _path_of(one: InstanceExplanation, prototype: int | None) -> int | None:
    """The path asked for, or else the one that the best counterfactual was found near."""
    if prototype is not None or one.status != "answered":
        return prototype
    explanation = one.explanation
    number = int(explanation[[one.position]].best(1).prototype[0])
    mine = explanation.prototype[explanation.instance == one.position]
    return number if number in mine else None


def _first_with_path(explanation: Explanation) -> InstanceExplanation | None:
    """The first instance with a counterfactual, or else with any path to a prototype."""
    drawable = [i for i in explanation if i.status in ("answered", "none_found") and i.prototypes]
    return min(drawable, key=lambda instance: instance.status != "answered", default=None)
