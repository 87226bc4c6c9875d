"""Bounded work in threads: so many calls run, so many wait, and the ones that hang are replaced.

An explanation computes, and queries a classifier that may be slow, so it runs in a thread. Every
client has a limiter of its own in front of the one that all share: its further calls wait there, so
a call of another client is never behind them. Of three threads or more one client has all but one
at most.

A thread that hangs in a classifier cannot be stopped: when a call times out, its caller gets 504,
the thread counts as *stuck* until it returns, and another call may run in its place. Once more than
a few are stuck, callers get 503 at once until one returns.

The threads are not those of `anyio.to_thread`: those are not daemons, so a hung classifier would
keep the process from ending.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from contextvars import copy_context
from threading import Thread
from typing import Literal, TypeAlias
from weakref import WeakValueDictionary

from anyio import CancelScope, CapacityLimiter, move_on_after, sleep_forever
from starlette.exceptions import HTTPException

__all__ = ["THREAD_NAME", "WorkQueue"]

FULL, HANGING = 5, 60  # seconds before a refused caller should try again
THREAD_NAME = "lapace-worker"
STOPPING = "The server is stopping. Try again in 5 seconds, or another one."

Work: TypeAlias = Callable[[], bytes]
Done: TypeAlias = "asyncio.Future[bytes]"

log = logging.getLogger(__name__)


class WorkQueue:
    """Runs a bounded number of calls in threads and lets a bounded number wait.

    All state is changed in the event loop only.

    Args:
        threads: Calls that run at once.
        queue: Calls that may wait.
        timeout: Seconds a call may run. It may wait twice as long before that, so that calls
            behind ones that hang are still run.
        spare: Threads that may be stuck while others still run calls.

    Examples:
        >>> async def answer():
        ...     return await WorkQueue(threads=1, queue=5, timeout=10.0).run(lambda: b"42")
        >>> asyncio.run(answer())
        b'42'
    """

    def __init__(self, *, threads: int, queue: int, timeout: float, spare: int = 8) -> None:
        self.threads = threads
        self.queue = queue
        self.timeout = timeout
        self.spare = spare
        self.stopping = False
        self._slots = CapacityLimiter(threads)
        self._lanes: WeakValueDictionary[str, CapacityLimiter] = WeakValueDictionary()
        self._waiting: set[CancelScope] = set()
        self._running: set[Done] = set()
        self._stuck: set[Done] = set()

    @property
    def status(self) -> Literal["ok", "stuck", "stopping"]:
        """Whether calls are run, or why not."""
        return "stopping" if self.stopping else "stuck" if self._hangs else "ok"

    def counts(self) -> dict[str, int]:
        """How many calls run in time, wait, and are stuck."""
        return {
            "running": len(self._running),
            "waiting": len(self._waiting),
            "stuck": len(self._stuck),
        }

    @property
    def full(self) -> bool:
        """Whether a further call would be refused."""
        return self.stopping or self._hangs or 0 < self.queue <= len(self._waiting)

    @property
    def _hangs(self) -> bool:
        return len(self._stuck) > self.spare

    async def run(
        self,
        work: Work,
        disconnected: Callable[[], Awaitable[None]] = sleep_forever,
        *,
        client: str = "",
        cancel: Callable[[], None] = lambda: None,
    ) -> bytes:
        """Returns what `work` returns, or raises: 429 or 503 if it is not run, 504 if it hangs.

        Args:
            work: Called in a thread.
            disconnected: Returns when the caller is gone; a call that still waits is then dropped,
                and one that runs is cancelled.
            client: Whose call it is.
            cancel: Asks a running call to end, from the event loop.
        """
        if self.stopping or self._hangs:
            raise self._refusal()
        waiting = len(self._waiting)
        if waiting >= self.queue + self._slots.available_tokens:
            raise _refused(429, f"{waiting} requests are waiting already.", FULL)
        turn = move_on_after(2 * self.timeout)

        def leave(watcher: asyncio.Future[None]) -> None:
            if not watcher.cancelled():
                cancel()
                turn.cancel()

        watcher = asyncio.ensure_future(disconnected())
        watcher.add_done_callback(leave)
        try:
            async with AsyncExitStack() as held:
                with turn:
                    await self._acquire(turn, held, client)
                if turn.cancelled_caught:
                    gone = HTTPException(400, "The connection closed.")
                    raise gone if watcher.done() else self._refusal()
                return await self._call(work, cancel)
        finally:
            watcher.cancel()

    async def _acquire(self, turn: CancelScope, held: AsyncExitStack, client: str) -> None:
        """Waits for the client's turn, then for a thread."""
        most = self.threads - 1 if self.threads >= 3 else self.threads
        lane = self._lanes.setdefault(client, CapacityLimiter(most))
        self._waiting.add(turn)
        try:
            await held.enter_async_context(lane)
            await held.enter_async_context(self._slots)
        finally:
            self._waiting.discard(turn)

    async def _call(self, work: Work, cancel: Callable[[], None]) -> bytes:
        """Makes a call in a thread of its own, and waits for it for so long."""
        done: Done = asyncio.get_running_loop().create_future()
        target = copy_context().run
        Thread(target=target, args=(self._work, work, done), name=THREAD_NAME, daemon=True).start()
        self._running.add(done)
        try:
            with move_on_after(self.timeout):
                return await done
            log.warning("A request has run for more than %g seconds.", self.timeout)
            raise HTTPException(
                504,
                f"The explanation took more than {self.timeout:g} seconds, the classifier's part "
                "of it included. Send fewer instances or fewer steps.",
            )
        finally:
            self._running.discard(done)
            if done.cancelled():  # but its thread goes on
                cancel()
                self._stuck.add(done)
                if self._hangs:
                    self._refuse_waiting()

    def _work(self, work: Work, done: Done) -> None:
        """In a thread: makes the call and hands its result to the event loop."""
        result: bytes | Exception
        try:
            result = work()
        except Exception as error:
            result = error
        except BaseException as error:  # such as SystemExit, which would end the event loop
            result = RuntimeError(f"A call ended in {type(error).__name__}.")
        with suppress(RuntimeError):  # the server has stopped in the meantime
            done.get_loop().call_soon_threadsafe(self._finish, done, result)

    def _finish(self, done: Done, result: bytes | Exception) -> None:
        """In the event loop, when a thread returns."""
        self._stuck.discard(done)
        if done.done():
            return
        if isinstance(result, Exception):
            done.set_exception(result)
        else:
            done.set_result(result)

    def stop(self, grace: float) -> None:
        """Refuses calls from now on; those still running after `grace` seconds get 503."""
        if not self.stopping:
            self.stopping = True
            self._refuse_waiting()
            asyncio.get_running_loop().call_later(grace, self._end_running)

    def _end_running(self) -> None:
        for done in self._running:
            if not done.done():
                done.set_exception(self._refusal())

    def _refuse_waiting(self) -> None:
        for turn in self._waiting:
            turn.cancel()

    def _refusal(self) -> HTTPException:
        """Returns the error that says why a call is not run."""
        if self.stopping:
            return HTTPException(503, STOPPING, {"Retry-After": "5", "Connection": "close"})
        if self._hangs:
            hanging = f"The classifier does not respond: {len(self._stuck)} requests hang in it."
            return _refused(503, hanging, HANGING)
        return _refused(429, "The requests before this one took too long.", HANGING)


def _refused(status: int, reason: str, pause: int) -> HTTPException:
    sentence = f"{reason} Try again in {pause} seconds."
    return HTTPException(status, sentence, {"Retry-After": str(pause)})
