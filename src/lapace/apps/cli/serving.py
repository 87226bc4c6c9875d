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
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from typer import Option

from lapace.apps.cli import inputs
from lapace.apps.cli.app import TerminatedError, command, terminate
from lapace.apps.cli.options import KNOWN_ID, Loader, Model
from lapace.apps.cli.outputs import note, secretive
from lapace.errors import InputError

__all__ = ["serve"]


@dataclass(frozen=True)
class ServerSettings:
    """Parameters of `server.serve` that `serve` passes on, by name."""

    host: str = Option("127.0.0.1", help="The address; any but loopback needs a token.")
    port: int = Option(8000, help="The port; 0 for any that is free.")
    open_: bool = Option(False, "--open", help="Require no token: everyone may query.")
    token: str | None = Option(None, help="The bearer token of requests.", envvar="LAPACE_TOKEN")
    token_file: Path | None = Option(
        None, help="A file of lines name:token.", envvar="LAPACE_TOKEN_FILE"
    )
    hosts: list[str] = Option([], "--allowed-host", help="A Host header to accept. Repeatable.")
    max_instances: int = Option(100, help="Instances a request may have.")
    queue: int = Option(64, help="Requests that may wait; further ones get 503.")
    log_requests: bool = Option(False, "--log-requests", help="Log requests, without their data.")


@command("serve", "lapace serve loans.lapace --advisers --instances instances.csv")
def serve(
    *,
    model: Model,
    page: bool = Option(False, "--page", help="Add a page on which visitors fill in a form."),
    advisers: bool = Option(
        False, "--advisers", help="Add the page for advisers: they see --instances and the report."
    ),
    instances: str | None = Option(
        None, metavar="FILE", help="Rows that advisers choose from on the page; needs --advisers."
    ),
    target: str | None = Option(None, help="The label that visitors of the page usually want."),
    id_column: str | None = KNOWN_ID,
    workers: int = Option(1, help="Processes, each with the explainer and a queue of its own."),
    settings: ServerSettings,
    loader: Loader,
) -> None:
    """Serve explanations over HTTP, to this machine only unless --host says otherwise.

    With --page there is a page too, on which visitors find out what would have to change.
    """
    from lapace.apps import server

    if instances is not None and not advisers:
        raise InputError(
            "Everyone who opens the page could see all rows of --instances: add --advisers if only "
            "advisers open it. Otherwise leave --instances out and say --page: visitors fill in a "
            "form."
        )
    page = page or advisers
    if not page and target is not None:
        raise InputError("--target is about the page: add --page or --advisers.")
    if instances is None and id_column is not None:
        raise InputError("--id is about the rows of the page: name them with --instances.")
    if workers < 1:
        raise InputError(f"--workers {workers} is not a number of processes: give one from 1.")
    if page and workers > 1:
        raise InputError(
            "The page is served by one process: a visitor's socket has to find it. Leave --workers "
            "out."
        )
    _check_access(settings)
    _log_as_json(requests=settings.log_requests)
    explainer = model.load(loader)  # also before workers do: an error is said once
    note(f"{explainer!r}.")
    if workers > 1:
        del explainer
        app = partial(_worker_app, model, settings, loader, secretive.get())
        host, port = settings.host, settings.port
        server.run_workers(app, workers, host=host, port=port, ready=_note_address)
        return
    run: Callable[..., None] = partial(server.serve, explainer)
    if page:
        from lapace.apps import workbench

        table = None
        if instances is not None:
            table = inputs.read_table(instances, id_column, explainer.id_column_)
        wanted = inputs.parse_label(explainer.classes_, target)
        run = partial(workbench.serve, explainer, table, target=wanted, advisers=advisers)
    with _threads_end():
        run(**asdict(settings), timeout=loader.timeout, ready=_note_address)


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


def _note_address(url: str) -> None:
    note(f"Listening at {url}; stop with Ctrl-C.")


@contextmanager
def _threads_end() -> Iterator[None]:
    """Ends the process without waiting for threads that hang: at exit they would abort it."""
    from lapace.apps.server.work_queue import THREAD_NAME

    code = 0
    hangup = getattr(signal, "SIGHUP", signal.SIGTERM)
    if signal.getsignal(hangup) is terminate:  # running requests are answered first, too
        signal.signal(hangup, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        yield
    except TerminatedError as error:
        code = error.code
        raise
    finally:
        if any(thread.name == THREAD_NAME for thread in threading.enumerate()):
            sys.stderr.flush()
            os._exit(code)


def _worker_app(
    model: Model, settings: ServerSettings, loader: Loader, secrets: tuple[str, ...]
) -> Any:
    """Makes the application in a worker; `secrets` are words that must not be printed."""
    from lapace.apps.server import make_app

    secretive.set(secrets)
    _log_as_json(requests=settings.log_requests)
    warnings.simplefilter("ignore")  # they were shown when the first process loaded the explainer
    options = {name: value for name, value in asdict(settings).items() if name != "port"}
    return make_app(model.load(loader), **options, timeout=loader.timeout)
