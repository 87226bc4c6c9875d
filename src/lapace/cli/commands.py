"""All commands; here those that fetch data sets and serve."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from typer import Argument, Option

from lapace.cli import inputs, processes, rendering
from lapace.cli.app import EXAMPLES, TERMINATED, TerminatedError, app, command
from lapace.cli.batch import batch
from lapace.cli.demo import demo
from lapace.cli.fitting import fit, prototypes, report, schema
from lapace.cli.options import Loader, Model, ServerSettings, WorkbenchSettings
from lapace.cli.outputs import STDOUT, Output, Terminal, writable_file
from lapace.cli.recourse import cohort, explain, plot, why_not
from lapace.errors import InputError

__all__ = [
    "EXAMPLES", "app", "batch", "cohort", "demo", "explain", "fit", "plot", "prototypes", "report",
    "schema", "why_not",
]  # fmt: skip


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
        where.put(terminal, frames=lambda: [frame])
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


@command("serve", "lapace serve loans.lapace --instances instances.csv --port 8000")
def serve(
    *,
    model: Model,
    page: WorkbenchSettings,
    workers: int = Option(
        1, help="Processes that serve together, each with the explainer and a queue of its own."
    ),
    settings: ServerSettings,
    loader: Loader,
    terminal: Terminal,
) -> None:
    """Serve explanations over HTTP, to this machine only unless --host says otherwise.

    With --instances there is a page too, on which visitors find out what would have to change.
    """
    if page.instances is None and (page.target, page.id_column) != (None, None):
        raise InputError("--target and --id are about the page: name its rows with --instances.")
    if page.instances is not None and workers > 1:
        raise InputError(
            "The page of --instances is served by one process: a visitor's socket has to find it. "
            "Leave --workers out."
        )
    _check_access(settings)
    with processes.workers(workers, settings.host, settings.port) as worker:
        speaker = terminal if worker.speaks else Terminal(True)
        _serve(worker, model, page, settings, loader, speaker)


def _check_access(settings: ServerSettings) -> None:
    """Refuses to be open unasked, before the explainer is loaded and before a socket listens."""
    from lapace import server

    if settings.token is None and os.environ.get("LAPACE_TOKEN") == "" and not settings.open_:
        raise InputError(
            "LAPACE_TOKEN is set and empty. Put a token in it, unset it, or say --open."
        )
    closed = settings.token is not None or settings.token_file is not None
    server.check_address(settings.host, closed=closed, open_=settings.open_)


def _serve(
    worker: processes.Worker,
    model: Model,
    page: WorkbenchSettings,
    settings: ServerSettings,
    loader: Loader,
    terminal: Terminal,
) -> None:
    """In each of the processes that serve together: the first one speaks for all."""
    from lapace import server

    def ready(url: str) -> None:
        worker.started()
        terminal.note(f"Listening at {url}; stop with Ctrl-C.")

    explainer = model.load(loader)
    terminal.note(f"{explainer!r}.")
    run: Callable[..., None] = partial(server.serve, explainer)
    if page.instances is not None:
        from lapace import workbench

        known_id = explainer.id_column_
        table = inputs.read_table(page.instances, page.id_column, known_id=known_id)
        target = inputs.parse_label(explainer.classes_, page.target)
        run = partial(workbench.serve, explainer, table, target=target)
    _log_as_json(requests=settings.log_requests)
    with _threads_end():
        run(
            **asdict(settings),
            timeout=loader.timeout,
            ready=ready,
            listener=worker.listener,
            metrics_folder=worker.folder,
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
    except TerminatedError:
        code = TERMINATED
        raise
    finally:
        if any(thread.name == THREAD_NAME for thread in threading.enumerate()):
            sys.stderr.flush()
            os._exit(code)
