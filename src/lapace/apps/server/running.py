"""Running an application with uvicorn: one process, or several behind one socket."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from lapace.apps.server.monitoring import SHARED_FOLDER
from lapace.errors import InputError, LapaceError, check_integer

__all__ = ["listen", "run", "run_workers"]

READING = 60  # seconds in which a client has to read some of what is sent to it
GRACE = 8  # seconds that running requests get when the server stops
HEALTHY = 120  # seconds in which a worker has to say that it lives, also while it loads
SETTINGS: dict[str, Any] = {
    # The same whatever else is installed: faster ones are chosen where they are found.
    "loop": "asyncio",
    "http": "h11",
    "log_level": "warning",
    "access_log": False,
    "server_header": False,
    "proxy_headers": False,
    "timeout_graceful_shutdown": GRACE,
    "timeout_worker_healthcheck": HEALTHY,
}

log = logging.getLogger(__name__)


def run(
    app: FastAPI,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Runs an application until it is interrupted; running requests are answered first.

    Requests that are not answered eight seconds later get 503.

    Args:
        app: From `create_app`, perhaps with more routes.
        host: The address to listen on.
        port: The port; 0 for any that is free.
        ready: Called with the server's URL once it listens.
    """
    with listen(host, port) as listener:
        if ready is not None:
            ready(_url(host, listener))
        with suppress(KeyboardInterrupt):  # the usual way to stop it
            Server(uvicorn.Config(app, workers=1, **SETTINGS)).run(sockets=[listener])


class Server(uvicorn.Server):
    """Uvicorn's server, which ends without a traceback at a second Ctrl-C, too."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops the application as well: where it is forced, uvicorn leaves it to be cancelled."""
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()


def run_workers(
    make_app: Callable[[], FastAPI],
    workers: int,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Runs an application in several processes behind one socket until it is interrupted.

    Uvicorn starts a process again that dies; all end with this one. Which process a connection goes
    to is up to the kernel.

    Args:
        make_app: Makes the application in each process; has to be picklable.
        workers: How many processes.
        host: As for `run`.
        port: As for `run`.
        ready: As for `run`.
    """
    with listen(host, port) as listener, TemporaryDirectory(prefix="lapace-") as folder:
        os.environ[SHARED_FOLDER] = folder
        if ready is not None:
            ready(_url(host, listener))
        app = partial(_worker_app, make_app)
        config = uvicorn.Config(app, factory=True, workers=workers, **SETTINGS)
        supervisor = Supervisor(config, [listener])
        supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise LapaceError("A worker could not start. The log says why.")


class Supervisor(Multiprocess):
    """Uvicorn's supervisor of workers, which asks none whether it lives while all run."""

    def keep_subprocess_alive(self) -> None:
        """Starts workers again that have died; to ask one that still loads would take long."""
        if not all(process.process.is_alive() for process in self.processes):
            log.warning("A worker has ended.")
            super().keep_subprocess_alive()


def _worker_app(make_app: Callable[[], FastAPI]) -> FastAPI:
    """Makes the application in a worker; an error ends all workers, as it would happen again."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        return make_app()
    except Exception:
        log.exception("A worker could not start.")
        sys.exit(STARTUP_FAILURE)


def _end_with_parent() -> None:
    """Waits in a worker's thread until the first process is gone, then stops the worker."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _url(host: str, listener: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host or "0.0.0.0"
    return f"http://{shown}:{listener.getsockname()[1]}"


def listen(host: str, port: int) -> socket.socket:
    """Opens a socket that listens; raises `InputError` where that is not possible."""
    check_integer("port", port, 0, 65_535)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        sentence = f"Port {port} of {host} cannot be opened: {error.strerror}. Try another."
        raise InputError(sentence) from None
    # Accepted connections inherit this; without it the last packet of a response waits for 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":  # the kernel, too, gives up on clients that do not read
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * READING)
    return listener
