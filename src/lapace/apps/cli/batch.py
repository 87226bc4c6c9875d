"""`lapace batch`: counterfactuals for tables that fit on no machine."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from typer import Argument, Option

from lapace.apps.cli import inputs, rendering
from lapace.apps.cli.app import command
from lapace.apps.cli.options import Loader, Model, Wanted
from lapace.apps.cli.outputs import Destination, Progress, Terminal
from lapace.errors import InputError

if TYPE_CHECKING:
    from lapace.apps.batch import Summary

__all__ = ["batch"]

EVERY = 30.0  # seconds between lines of progress, where there is no terminal
PICKS = "best,nearest"
UNREADABLE = 20  # files named


@command(
    "batch",
    "lapace batch loans.lapace instances.parquet -o outcomes --target approved --pick nearest",
)
def batch(
    *,
    model: Model,
    instances: list[str] = Argument(
        metavar="INSTANCES…",
        help="Parquet: files, folders with all below them, patterns, or addresses that pyarrow's "
        "filesystems reach (s3://…, gs://…, hdfs://…).",
    ),
    output: str = Option(
        ...,
        *("--output", "-o"),
        metavar="FOLDER",
        help="Where outcomes are written, a Parquet file for each row group; or an address.",
    ),
    wanted: Wanted,
    pick: str = Option(
        PICKS,
        help="Which counterfactuals, with commas between: best, nearest, first, middle, last.",
    ),
    n_best: int = Option(3, help="How many different ways best looks for."),
    keep: list[str] = Option(
        [],
        metavar="COLUMN,…",
        help="Columns of the input to write beside outcomes. Repeatable.",
    ),
    by: str | None = Option(
        None, metavar="COLUMN", help="A column whose groups are compared in the summary."
    ),
    workers: int | None = Option(
        None, help="How many parts are made at a time; by default one for each core."
    ),
    gpus: float = Option(0.0, help="GPUs of each worker; 0.5 lets two share one."),
    address: str | None = Option(
        None, help="A Ray cluster: its address, or auto for the one this machine belongs to."
    ),
    ray: bool | None = Option(
        None, help="Make parts with Ray, or one after another; by default with Ray if installed."
    ),
    retries: int = Option(
        5, help="How often the classifier is queried again when it fails; then the run stops."
    ),
    pause: float = Option(2.0, help="Seconds before that; doubled before each further attempt."),
    format_: Literal["table", "json"] = Option("table", "--format", help="Of the summary."),
    loader: Loader,
    terminal: Terminal,
) -> None:
    """Find counterfactuals for every row of Parquet files of any size, part by part.

    The same command resumes a run that was stopped. Exits with 1 where files could not be read, or
    the run had to stop.
    """
    from lapace.apps import batch as batches
    from lapace.explainer import Search

    if gpus and loader.device == "cpu":
        raise InputError("--gpus and --device cpu contradict each other. Leave one of them out.")
    gpus = gpus or float((loader.device or "").startswith("cuda"))
    engine = batches.Engine(workers, gpus, address, ray)
    engine.check()
    constraints = inputs.read_constraints(wanted.constraints, wanted.constraint)
    costs = inputs.parse_costs(wanted.costs)
    explainer = model.load(replace(loader, device="cpu"))
    model.note_limits(explainer, wanted.target, terminal)
    picks = tuple(name.strip() for name in pick.split(",") if name.strip())
    request = batches.Request(
        target=inputs.parse_label(explainer.classes_, wanted.target),
        constraints=tuple(map(str, constraints)),
        costs=costs,
        confidence=wanted.confidence,
        plausibility=wanted.plausibility,
        search=Search(wanted.steps, picks, n_best, wanted.n_starts),
        id_column=wanted.id_column,
        keep=tuple(name.strip() for text in keep for name in text.split(",")),
        by=by,
    )
    if not engine.uses_ray:
        why = "Ray is not used" if ray is False else "Ray is not installed (lapace[ray])"
        terminal.note(f"{why}: parts are made one after another.")
    with _progress(terminal) as progress:
        summary = batches.run(
            explainer,
            instances,
            output,
            request,
            identity=_identity(model, loader.threshold),
            engine=engine,
            retries=retries,
            pause=pause,
            progress=progress,
        )
    _show(summary, terminal, format_)
    if not summary.complete:
        raise typer.Exit(1)


def _identity(model: Model, threshold: str | None) -> dict[str, str]:
    """Hashes or names of the explainer's file and its classifier."""
    from lapace.apps.loaders import without_secrets

    named = model.classifier or ""
    if "://" in named:
        named = without_secrets(named)
    elif named and Path(named).is_file():
        named = hashlib.sha256(Path(named).read_bytes()).hexdigest()
    explainer = hashlib.sha256(model.path.read_bytes()).hexdigest()
    return {"explainer": explainer, "classifier": named, "threshold": threshold or ""}


@contextmanager
def _progress(terminal: Terminal) -> Iterator[Progress | None]:
    """A bar on a terminal; elsewhere a line now and then."""
    with terminal.progress() as bar:
        yield bar if bar is not None or terminal.quiet else _lines(terminal)


def _lines(terminal: Terminal) -> Callable[[str, int, int], None]:
    """A progress callback that prints the rate and the time to go every half a minute."""
    start, printed, first = time.monotonic(), time.monotonic(), -1

    def advance(_: str, done: int, total: int) -> None:
        nonlocal printed, first
        now = time.monotonic()
        first = done if first < 0 else first
        if now - printed >= EVERY and done > first:
            printed, rate = now, (done - first) / (now - start)
            minutes = (total - done) / rate / 60
            terminal.note(
                f"{done:,} of {total:,} rows, {rate:,.0f} a second, {minutes:,.0f} minutes left."
            )

    return advance


def _show(summary: Summary, terminal: Terminal, format_: Literal["table", "json"]) -> None:
    """Prints the summary on standard output, and what went wrong on standard error."""
    for source, why in list(summary.unreadable.items())[:UNREADABLE]:
        terminal.warn(f"'{source}' could not be read. {why}")
    if len(summary.unreadable) > UNREADABLE:
        terminal.warn(f"{len(summary.unreadable) - UNREADABLE} more files could not be read.")
    if summary.stopped:
        terminal.warn(f"{summary.stopped} Run the same command again to go on.")
    Destination(None, format_).put(
        terminal, table=lambda: rendering.batch_parts(summary), values=summary.to_json
    )
