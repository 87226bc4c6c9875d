"""Running an application: one process or several, the socket, the end of a process."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from lapace.apps.server.metrics import SHARED_FOLDER
from lapace.errors import InputError, LapaceError, check_integer

__all__ = ["limit_arenas", "listen", "run", "run_workers"]

GRACE = 10  # seconds that running requests get when the server stops
MARGIN = 2  # seconds of those to answer what is still running then
HEALTHY = 120  # seconds in which a worker has to say that it lives, also while it loads
STARTUP_FAILURE = 3  # the exit code at which uvicorn's supervisor starts no worker again
AGAIN = 60.0  # seconds before the same trouble of the event loop is logged again
ARENAS, M_ARENA_MAX = 2, -8  # how many, and what glibc calls that setting
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

log = logging.getLogger(__name__)


def run(
    app: FastAPI,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Runs an application until it is interrupted; running requests are answered first.

    Requests that wait, and those that run for more than eight seconds longer, get 503.

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
            uvicorn.Server(_config(lambda: ServedApp(app))).run(sockets=[listener])


def run_workers(
    make_app: Callable[[], FastAPI],
    workers: int,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Runs an application in several processes behind one socket until it is interrupted.

    A process that dies is started again, and all end with this one. Which process a connection goes
    to is up to the kernel.

    Args:
        make_app: Makes the application in each process; has to be picklable.
        workers: How many processes.
        host: As for `run`.
        port: As for `run`.
        ready: As for `run`.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with listen(host, port) as listener, TemporaryDirectory(prefix="lapace-") as folder:
        os.environ[SHARED_FOLDER] = folder
        if ready is not None:
            ready(_url(host, listener))
        supervisor = Supervisor(_config(partial(_served_app, make_app), workers), [listener])
        supervisor.run()
    for number, handler in before.items():
        signal.signal(number, handler)
    if supervisor.terminated:
        signal.raise_signal(signal.SIGTERM)  # as `uvicorn.Server` does when it has stopped
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise LapaceError("A worker could not start. The log says why.")


def _config(make_app: Callable[[], ServedApp], workers: int = 1) -> uvicorn.Config:
    return uvicorn.Config(
        make_app,
        factory=True,
        workers=workers,
        # The same whatever else is installed: faster ones are chosen where they are found.
        loop="asyncio",
        http="h11",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE,
        timeout_worker_healthcheck=HEALTHY,
    )


def _served_app(make_app: Callable[[], FastAPI]) -> ServedApp:
    """Makes the application in a worker; an error ends all workers, as it would happen again."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        return ServedApp(make_app())
    except Exception:
        log.exception("A worker could not start.")
        sys.exit(STARTUP_FAILURE)


def _end_with_parent() -> None:
    """Waits in a worker's thread until the first process is gone, then stops the worker."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


class Supervisor(Multiprocess):
    """Uvicorn's supervisor of workers, which logs a death and knows whether SIGTERM stopped it."""

    terminated = False

    def keep_subprocess_alive(self) -> None:
        """Starts workers again that have died; one that is busy or still loads is not asked."""
        if all(process.process.is_alive() for process in self.processes):
            return
        before = [process.pid for process in self.processes]
        super().keep_subprocess_alive()
        for pid, process in zip(before, self.processes, strict=True):
            if process.pid != pid:
                log.warning("Worker %s died; it is started again.", pid)

    def handle_term(self) -> None:
        """Stops the workers."""
        self.terminated = True
        super().handle_term()


class ServedApp:
    """An application that prepares its process, and refuses waiting requests at the end."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Passes everything on to the application; prepares the process before any request."""
        if scope["type"] == "lifespan":
            _allow_many_files()
            limit_arenas()
            asyncio.get_running_loop().set_exception_handler(SayOnce())
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGINT, signal.SIGTERM):
                    self._stop_queue_at(number)
        await self.app(scope, receive, send)

    def _stop_queue_at(self, number: int) -> None:
        """Lets a signal also stop the queue, before uvicorn waits for what is running."""
        loop, queue = asyncio.get_running_loop(), self.app.state.work_queue
        stop: Any = signal.getsignal(number)  # uvicorn's, which puts the former one back at the end

        def handle(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(queue.stop, GRACE - MARGIN)
            stop(number, frame)

        signal.signal(number, handle)


class SayOnce:
    """Handles errors of the event loop: each kind is logged once a minute.

    Where a process has no file descriptors left, asyncio reports hundreds of errors a second.
    """

    def __init__(self) -> None:
        self.said: dict[str, float] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs one error, unless it was logged lately."""
        error = context.get("exception")
        kind = f"{type(error).__name__} {getattr(error, 'errno', '')} {context.get('message')}"
        now = loop.time()
        if now - self.said.get(kind, -AGAIN) < AGAIN:
            return
        self.said[kind] = now
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            log.error(
                "No connection can be accepted: %s. Allow more open files, or fewer connections at "
                "the proxy.",
                error.strerror,
            )
            return
        log.error("An error occurred in the event loop.", exc_info=error)


def _allow_many_files() -> None:
    """Raises the number of open files to what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit_arenas() -> None:
    """Lets all threads allocate from two arenas, unless `MALLOC_ARENA_MAX` says otherwise.

    glibc gives each thread that runs beside others an arena of its own, up to eight for a core,
    and each keeps the most that it ever held: memory would grow for as long as ever more requests
    happen to run, or hang, at the same time.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with suppress(AttributeError, OSError):  # another C library
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)


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
    return listener
