"""Running an application: the socket, the end, and what a process has too little of."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from lapace.errors import InputError, check_integer

__all__ = ["limit_arenas", "listen", "run"]

GRACE = 10  # seconds that running requests get when the server stops
MARGIN = 2  # seconds of those to answer what is still running then
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
    listener: socket.socket | None = None,
) -> None:
    """Runs an application until it is interrupted; running requests are answered first.

    Requests that wait, and those that run for more than eight seconds longer, get 503.

    Args:
        app: From `create_app`, perhaps with more routes.
        host: The address to listen on.
        port: The port; 0 for any that is free.
        ready: Called with the server's URL once it listens.
        listener: A socket that listens already, in place of host and port.
    """
    with listener or listen(host, check_integer("port", port, 0, 65_535)) as opened:
        config = uvicorn.Config(
            app,
            # The same whatever else is installed: faster ones are chosen where they are found.
            loop="asyncio",
            http="h11",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE,
        )
        _allow_many_files()
        limit_arenas()
        if ready is not None:
            shown = f"[{host}]" if ":" in host else host or "0.0.0.0"
            ready(f"http://{shown}:{opened.getsockname()[1]}")
        with suppress(KeyboardInterrupt):  # the usual way to stop it
            StoppingServer(config).run(sockets=[opened])


class StoppingServer(uvicorn.Server):
    """A server that refuses waiting requests when it is asked to stop, and says trouble once."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until it is asked to stop."""
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(SayOnce())
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """At SIGINT and SIGTERM."""
        queue = getattr(getattr(self.config.app, "state", None), "work_queue", None)
        if queue is not None:
            self.loop.call_soon_threadsafe(queue.stop, GRACE - MARGIN)
        super().handle_exit(sig, frame)


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


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; an `InputError` where it cannot be opened."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        sentence = f"Port {port} of {host} cannot be opened: {error.strerror}. Try another."
        raise InputError(sentence) from None
    # Accepted connections inherit this; without it the last packet of a response waits for 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
