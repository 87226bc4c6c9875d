"""Bounded work in threads: so many calls run, so many wait, and the ones that hang are replaced.

An explanation computes, and queries a classifier that may be slow, so it runs in a thread. The
tokens of one `anyio.CapacityLimiter` bound how many threads exist, and its queue holds the calls
that wait. A thread that hangs in a classifier cannot be stopped: when a call times out, its caller
gets 504, the thread counts as *stuck* and keeps its token until it returns, and the limiter gets a
spare token in its place. Spares are few: once every token belongs to a stuck thread, callers get
503 at once until one returns.

The threads are not those of `anyio.to_thread`: those are not daemons, so a hung
classifier would keep the process from ending.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Thread
from typing import TypeAlias

from anyio import CancelScope, CapacityLimiter, WouldBlock, move_on_after, sleep_forever
from starlette.exceptions import HTTPException

from lapace.server.models import HealthResponse

__all__ = ["WorkQueue"]

MAX_RETRY_AFTER = 60  # seconds
THREAD_NAME = "lapace-worker"

Work: TypeAlias = Callable[[], bytes]

log = logging.getLogger(__name__)


class WorkQueue:
    """Runs a bounded number of calls in threads and lets a bounded number wait.

    All state is changed in the event loop only.

    Args:
        workers: Calls that run at once.
        queue: Calls that may wait.
        timeout: Seconds a call may run. It may wait twice as long before that, so that calls
            behind ones that hang are still run.
        spare: Threads that may be stuck before fewer than `workers` calls run at once.

    Examples:
        >>> queue = WorkQueue(workers=1, queue=5, timeout=10.0)
        >>> asyncio.run(queue.run(lambda: b"42"))
        b'42'
    """

    def __init__(self, *, workers: int, queue: int, timeout: float, spare: int = 8) -> None:
        self.workers = workers
        self.queue = queue
        self.timeout = timeout
        self.spare = spare
        self._limiter = CapacityLimiter(workers)
        self._waiting: set[CancelScope] = set()
        self._stuck: set[asyncio.Future[bytes]] = set()
        self._seconds = 0.0  # recent duration of a call, smoothed

    def health(self) -> HealthResponse:
        """How many calls run in time, wait, and are stuck; whether a thread is left to run them."""
        threads, stuck = self._limiter.statistics(), len(self._stuck)
        return HealthResponse(
            status="ok" if self._free else "stuck",
            running=threads.borrowed_tokens - stuck,
            waiting=threads.tasks_waiting,
            stuck=stuck,
        )

    async def run(
        self, work: Work, disconnected: Callable[[], Awaitable[None]] = sleep_forever
    ) -> bytes:
        """Returns what `work` returns, or raises: 429 or 503 if it is not run, 504 if it hangs.

        Args:
            work: Called in a thread.
            disconnected: Returns when the caller is gone; a call that still waits is then dropped.
                One that runs goes on, since a thread cannot be stopped.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bytes] = loop.create_future()
        await self._acquire(done, disconnected)
        try:
            Thread(target=self._work, args=(work, done), name=THREAD_NAME, daemon=True).start()
        except RuntimeError:  # the operating system has no more threads
            self._limiter.release_on_behalf_of(done)
            raise
        start = loop.time()
        try:
            with move_on_after(self.timeout):
                result = await done
                took = loop.time() - start
                self._seconds = 0.8 * (self._seconds or took) + 0.2 * took
                return result
            log.warning("A request has run for more than %g seconds.", self.timeout)
            raise HTTPException(
                504,
                f"The explanation took more than {self.timeout:g} seconds. Send fewer instances or "
                "fewer steps; if that does not help, the classifier is too slow.",
            )
        finally:
            if done.cancelled():  # but its thread goes on
                self._stuck.add(done)
                self._resize()

    async def _acquire(
        self, done: asyncio.Future[bytes], disconnected: Callable[[], Awaitable[None]]
    ) -> None:
        """Takes a token for a call, after waiting for one if need be."""
        with suppress(WouldBlock):
            self._limiter.acquire_on_behalf_of_nowait(done)
            return
        waiting = len(self._waiting)
        if waiting >= self.queue or not self._free:
            raise self._refusal(f"{waiting} requests are waiting already.")
        with move_on_after(2 * self.timeout) as scope:
            self._waiting.add(scope)
            watcher = asyncio.ensure_future(_cancel_after(disconnected, scope))
            try:
                await self._limiter.acquire_on_behalf_of(done)
                return
            finally:
                watcher.cancel()
                self._waiting.remove(scope)
        raise self._refusal("The requests before this one took too long.")

    def _resize(self) -> None:
        """Has a spare token for every stuck thread while there are any; then nothing may wait."""
        self._limiter.total_tokens = self.workers + min(len(self._stuck), self.spare)
        if not self._free:
            for scope in self._waiting:
                scope.cancel()

    def _work(self, work: Work, done: asyncio.Future[bytes]) -> None:
        """In a thread: makes the call and hands its result to the event loop."""
        result: bytes | BaseException
        try:
            result = work()
        except BaseException as error:
            result = error
        with suppress(RuntimeError):  # the server has stopped in the meantime
            done.get_loop().call_soon_threadsafe(self._finish, done, result)

    def _finish(self, done: asyncio.Future[bytes], result: bytes | BaseException) -> None:
        """In the event loop, when a thread returns: takes its spare back, releases its token."""
        self._stuck.discard(done)
        self._resize()
        self._limiter.release_on_behalf_of(done)
        if done.cancelled():
            return
        if isinstance(result, BaseException):
            done.set_exception(result)
        else:
            done.set_result(result)

    @property
    def _free(self) -> int:
        """How many threads are left that may run calls."""
        return self.workers + min(0, self.spare - len(self._stuck))

    def _refusal(self, reason: str) -> HTTPException:
        """429 and when the queue should have moved on; 503 when every thread is stuck."""
        status, pause = 503, MAX_RETRY_AFTER
        if self._free:
            status, seconds = 429, self._seconds * (1 + len(self._waiting)) / self._free
            pause = min(max(math.ceil(seconds), 1), MAX_RETRY_AFTER)
        else:
            reason = f"The classifier does not respond: {len(self._stuck)} requests hang in it."
        sentence = f"{reason} Try again in {pause} {'second' if pause == 1 else 'seconds'}."
        return HTTPException(status, sentence, {"Retry-After": str(pause)})


async def _cancel_after(disconnected: Callable[[], Awaitable[None]], scope: CancelScope) -> None:
    await disconnected()
    scope.cancel()
