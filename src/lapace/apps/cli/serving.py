"""The command `serve`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from typing import Any

import typer
from typer import Option

from lapace.apps.cli import inputs
from lapace.apps.cli.app import TERMINATED, TerminatedError, command, print_error
from lapace.apps.cli.options import Loader, Model, ServerSettings, WorkbenchSettings
from lapace.apps.cli.outputs import Terminal, secretive
from lapace.errors import InputError

__all__ = ["serve"]


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
    if workers < 1:
        raise InputError(f"--workers {workers} is no number of processes: give one from 1.")
    if page.instances is not None and workers > 1:
        raise InputError(
            "The page of --instances is served by one process: a visitor's socket has to find it. "
            "Leave --workers out."
        )
    _check_access(settings)
    _log_as_json(requests=settings.log_requests)
    if workers == 1:
        _serve_alone(model, page, settings, loader, terminal)
    else:
        _serve_together(workers, model, settings, loader, terminal)


def _check_access(settings: ServerSettings) -> None:
    """Refuses to be open unasked, before the explainer is loaded and before a socket listens."""
    from lapace.apps import server

    if settings.token is None and os.environ.get("LAPACE_TOKEN") == "" and not settings.open_:
        raise InputError(
            "LAPACE_TOKEN is set and empty. Put a token in it, unset it, or say --open."
        )
    closed = settings.token is not None or settings.token_file is not None
    server.check_address(settings.host, closed=closed, open_=settings.open_)


def _log_as_json(*, requests: bool) -> None:
    """Logs of the server go to standard error, a line of JSON each."""
    from lapace.apps.server.monitoring import JsonLines

    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    log = logging.getLogger("lapace")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO if requests else logging.WARNING)


def _note_address(terminal: Terminal, url: str) -> None:
    terminal.note(f"Listening at {url}; stop with Ctrl-C.")


# ------------------------------------------------------------------------------------------------
# One process


def _serve_alone(
    model: Model,
    page: WorkbenchSettings,
    settings: ServerSettings,
    loader: Loader,
    terminal: Terminal,
) -> None:
    from lapace.apps import server

    explainer = model.load(loader)
    terminal.note(f"{explainer!r}.")
    run: Callable[..., None] = partial(server.serve, explainer)
    if page.instances is not None:
        from lapace.apps import workbench

        table = inputs.read_table(page.instances, page.id_column, explainer.id_column_)
        target = inputs.parse_label(explainer.classes_, page.target)
        run = partial(workbench.serve, explainer, table, target=target)
    with _threads_end():
        run(**asdict(settings), timeout=loader.timeout, ready=partial(_note_address, terminal))


@contextmanager
def _threads_end() -> Iterator[None]:
    """Ends the process without waiting for threads that hang: at exit they would abort it."""
    from lapace.apps.server.work_queue import THREAD_NAME

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


# ------------------------------------------------------------------------------------------------
# Several processes


def _serve_together(
    workers: int, model: Model, settings: ServerSettings, loader: Loader, terminal: Terminal
) -> None:
    from lapace.apps.server import run_workers

    _try_loading(model, loader, terminal)
    run_workers(
        partial(_worker_app, model, settings, loader, secretive.get()),
        workers,
        host=settings.host,
        port=settings.port,
        ready=partial(_note_address, terminal),
    )


def _try_loading(model: Model, loader: Loader, terminal: Terminal) -> None:
    """Loads the explainer in a process of its own; raises `Exit` where that is not possible.

    What cannot be loaded is said once and not by every worker, and this process stays small.
    """

    def load() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        try:
            terminal.note(f"{model.load(loader)!r}.")
        except Exception as error:
            sys.exit(print_error(error))

    # A fork, as long as there are no threads, knows all that was set.
    process = get_context("fork").Process(target=load, daemon=True)
    process.start()
    process.join()
    if process.exitcode:
        raise typer.Exit(abs(process.exitcode))


def _worker_app(
    model: Model, settings: ServerSettings, loader: Loader, secrets: tuple[str, ...]
) -> Any:
    """Makes the application in a worker.

    Args:
        model: The explainer.
        settings: Those of the server.
        loader: How the classifier is loaded.
        secrets: Words that must not be printed.
    """
    from lapace.apps.server import make_app

    secretive.set(secrets)
    _log_as_json(requests=settings.log_requests)
    warnings.simplefilter("ignore")  # they were shown when the explainer was tried
    options = {name: value for name, value in asdict(settings).items() if name != "port"}
    return make_app(model.load(loader), **options, timeout=loader.timeout)
