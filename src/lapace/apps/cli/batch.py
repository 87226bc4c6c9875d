"""`lapace batch`: counterfactuals for tables that fit on no machine."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from rich.text import Text
from typer import Argument, Option

from lapace.apps.cli.app import command
from lapace.apps.cli.options import Loader, Model, Wanted
from lapace.apps.cli.outputs import Output, note, progress, warn
from lapace.errors import InputError

if TYPE_CHECKING:
    from lapace.apps.batch import Summary

__all__ = ["batch"]

UNREADABLE = 20  # files named


@command(
    "batch",
    "lapace batch loans.lapace instances.parquet -o outcomes --target approved --pick nearest",
)
def batch(
    *,
    model: Model,
    instances: list[str] = Argument(
        metavar="INSTANCES…", help="Parquet: files, folders, patterns, or addresses (s3://…)."
    ),
    output: str = Option(
        ...,
        "--output",
        "-o",
        metavar="FOLDER",
        help="A folder for outcomes, or an address (s3://…).",
    ),
    wanted: Wanted,
    pick: str = Option("best,nearest", help="Which picks: best, nearest, first, middle, last."),
    keep: list[str] = Option([], help="A column of the input to write as well. Repeatable."),
    workers: int | None = Option(
        None, help="Parts made at a time, by Ray; 1 does without it. By default one per core."
    ),
    gpus: float = Option(0.0, help="GPUs of each worker; 0.5 lets two share one."),
    address: str | None = Option(None, help="The address of a Ray cluster, or auto."),
    format_: Literal["table", "json"] = Option("table", "--format", help="Format of the summary."),
    loader: Loader,
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
    engine = batches.Engine(workers, gpus, address)
    engine.check()
    explainer = model.load(replace(loader, device="cpu"))
    request = batches.Request(
        **wanted.arguments(explainer, model.path),
        search=Search(picks=tuple(name.strip() for name in pick.split(",") if name.strip())),
        id_column=wanted.id_column,
        keep=tuple(keep),
    )
    if not engine.uses_ray:
        why = "Ray is not used" if workers == 1 else "Ray is not installed (lapace[ray])"
        note(f"{why}: parts are made one after another.")
    with progress() as bar:
        summary = batches.run(
            explainer,
            instances,
            output,
            request,
            identity=_identity(model, loader.threshold),
            engine=engine,
            progress=bar,
        )
    for source, why in list(summary.unreadable.items())[:UNREADABLE]:
        warn(f"'{source}' could not be read. {why}")
    if len(summary.unreadable) > UNREADABLE:
        warn(f"{len(summary.unreadable) - UNREADABLE} more files could not be read.")
    if summary.stopped:
        warn(f"{summary.stopped} Run the same command again to go on.")
    Output(format_, None).put(table=lambda: _lines(summary), values=summary.to_json)
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


def _lines(summary: Summary) -> list[Text]:
    """A summary of a batch: statuses, and speed."""
    from lapace.result import describe_statuses

    earlier = f"; {summary.skipped:,} parts were there already" if summary.skipped else ""
    now = (
        f"{summary.rows:,} explained now in {summary.seconds:,.0f} s, {summary.rate:,.1f} a second"
    )
    return [
        Text(f"{describe_statuses(summary.status)}, in {summary.parts:,} parts."),
        Text(f"{now}{earlier}."),
    ]
