"""Bounded work in threads: so many calls run, so many wait, and each has a deadline.

An explanation computes, and queries a classifier that may be slow, so it runs in a thread. A thread
that hangs in a classifier cannot be stopped: its caller gets 504, and the thread keeps its slot
until it returns. The threads are not those of `anyio.to_thread`: those are not daemons, so a hung
classifier would keep the process from ending.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import Any, TypeVar

from anyio import CapacityLimiter, fail_after
from starlette.exceptions import HTTPException

from lapace.budget import Budget, limited

__all__ = ["PAUSE", "THREAD_NAME", "WorkQueue"]

PAUSE = 5  # seconds before a refused caller should try again
THREAD_NAME = "lapace-worker"

T = TypeVar("T")

log = logging.getLogger(__name__)


class WorkQueue:
    """Runs a bounded number of calls in threads and lets a bounded number wait.

    All state is changed in the event loop only.

    Args:
        threads: Calls that run at once.
        queue: Calls that may wait.
        timeout: Seconds a call may take, the wait for its turn included.

    Examples:
        >>> async def answer():
        ...     return await WorkQueue(threads=1, queue=5, timeout=10.0).run(lambda: 42, Budget())
        >>> asyncio.run(answer())
        42
    """

    def __init__(self, *, threads: int, queue: int, timeout: float) -> None:
        self.timeout = timeout
        self._places = threads + queue
        self._taken = 0
        self._slots = CapacityLimiter(threads)
        self._abandoned: set[asyncio.Future[Any]] = set()

    def counts(self) -> dict[str, int]:
        """Returns how many calls run in time, how many wait, and how many threads are stuck."""
        stuck = len(self._abandoned)
        running = self._slots.borrowed_tokens - stuck
        return {"running": running, "waiting": self._taken - running, "stuck": stuck}

    @property
    def full(self) -> bool:
        """Whether a further call would be refused."""
        return self._taken >= self._places

    @property
    def stuck(self) -> bool:
        """Whether every thread hangs in a call whose caller has given up."""
        return len(self._abandoned) >= self._slots.total_tokens

    @contextmanager
    def place(self) -> Iterator[None]:
        """Holds one of the places for calls that run or wait; raises 503 where all are taken."""
        if self.full:
            sentence = (
                f"{self._taken} requests are running or waiting. Try again in {PAUSE} seconds."
            )
            raise HTTPException(503, sentence, {"Retry-After": str(PAUSE)})
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1

    async def run(self, work: Callable[[], T], budget: Budget) -> T:
        """Returns what `work` returns, or raises 504 if that takes too long.

        Args:
            work: Called in a thread, within the budget. The caller holds a place.
            budget: Cancelled where the caller gives up, so that the work ends at its next query.
        """
        call: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            with fail_after(self.timeout):
                await self._slots.acquire_on_behalf_of(call)
                self._start(work, budget, call)
                return await call
        except TimeoutError:
            log.warning("A request took more than %g seconds.", self.timeout)
            raise HTTPException(
                504,
                f"The explanation took more than {self.timeout:g} seconds, the time in "
                "the queue included. Send fewer instances or fewer steps.",
            ) from None
        finally:
            if call.cancelled():  # its thread goes on
                budget.cancel()
                self._abandoned.add(call)

    def _start(self, work: Callable[[], T], budget: Budget, call: asyncio.Future[T]) -> None:
        """Starts a thread that makes the call and hands its result to the event loop."""

        def finish(settle: Callable[[], None]) -> None:
            self._slots.release_on_behalf_of(call)
            self._abandoned.discard(call)
            if not call.done():
                settle()

        def make_call() -> None:
            try:
                with limited(budget):
                    settle = partial(call.set_result, work())
            except Exception as error:
                settle = partial(call.set_exception, error)
            except BaseException as error:  # such as SystemExit, which would end the event loop
                ended = RuntimeError(f"A call ended in {type(error).__name__}.")
                settle = partial(call.set_exception, ended)
            with suppress(RuntimeError):  # the server has stopped in the meantime
                call.get_loop().call_soon_threadsafe(finish, settle)

        target = copy_context().run
        Thread(target=target, args=(make_call,), name=THREAD_NAME, daemon=True).start()
