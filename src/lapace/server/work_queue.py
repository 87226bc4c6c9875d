"""Bounded work in threads: so many calls run, so many wait, and the ones that hang are replaced.

An explanation computes, and queries a classifier that may be slow, so it runs in a thread. Clients
take turns: the next call to run is that of the client who has waited longest since its last turn,
and where all places are taken, the client with most calls waiting gives one up. Of three threads or
more one client has all but one at most, so that another need not wait for its long calls.

A thread that hangs in a classifier cannot be stopped: when a call times out, its caller gets 504,
the thread counts as *stuck* until it returns, and one more may run in its place. Spares are few:
once every thread is stuck, callers get 503 at once until one returns.

The threads are not those of `anyio.to_thread`: those are not daemons, so a hung
classifier would keep the process from ending.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import NamedTuple, TypeAlias

from anyio import move_on_after, sleep_forever
from starlette.exceptions import HTTPException

from lapace.server.models import HealthResponse

__all__ = ["WorkQueue"]

MAX_RETRY_AFTER = 60  # seconds
SHARED = 1.5  # times the time for a call, of the two that another may wait
LEAST = 1 / 3  # of the time for a call, however many wait
THREAD_NAME = "lapace-worker"
STOPPING = "The server is stopping. Try again in 5 seconds, or another one."

Work: TypeAlias = Callable[[], bytes]
Done: TypeAlias = "asyncio.Future[bytes]"

log = logging.getLogger(__name__)


class Turn(NamedTuple):
    """A call that waits: for `granted`, on behalf of `done`."""

    granted: asyncio.Future[None]
    done: Done


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
        self.stopping = False
        self._running: dict[Done, str] = {}  # the stuck ones too, each with its client
        self._stuck: set[Done] = set()
        self._waiting: dict[str, deque[Turn]] = {}  # by client, in the order of their turns
        self._seconds = 0.0  # recent duration of a call, smoothed

    def health(self) -> HealthResponse:
        """How many calls run in time, wait, and are stuck; whether a thread is left to run them."""
        return HealthResponse(
            status="stopping" if self.stopping else "ok" if self._free else "stuck", **self.counts()
        )

    def counts(self) -> dict[str, int]:
        """How many calls are in each state, by its name."""
        stuck = len(self._stuck)
        running = len(self._running) - stuck
        return {"running": running, "waiting": self._n_waiting, "stuck": stuck}

    @property
    def full(self) -> bool:
        """Whether a further call would be refused."""
        return self.stopping or not self._free or 0 < self.queue <= self._n_waiting

    @property
    def share(self) -> float:
        """The share of its time that a call should take, so that those that wait have a turn.

        Each may wait twice as long as a call may run: where more rounds than that are to come,
        calls have to be shorter, and some time is kept for what follows a search. A third is left
        to each; where that is still too much, the last get 429.
        """
        rounds = 1 + math.ceil(self._n_waiting / max(1, self._lanes))
        return min(1.0, max(LEAST, SHARED / rounds))

    async def run(
        self,
        work: Work,
        disconnected: Callable[[], Awaitable[None]] = sleep_forever,
        *,
        client: str = "",
        started: Callable[[float], None] = lambda _: None,
        cancel: Callable[[], None] = lambda: None,
    ) -> bytes:
        """Returns what `work` returns, or raises: 429 or 503 if it is not run, 504 if it hangs.

        Args:
            work: Called in a thread.
            disconnected: Returns when the caller is gone; a call that still waits is then dropped,
                and one that runs is cancelled.
            client: Whose call it is.
            started: Called in the event loop when the call's turn has come, with `share`.
            cancel: Asks a running call to end, from the event loop.
        """
        loop = asyncio.get_running_loop()
        done: Done = loop.create_future()
        await self._acquire(done, disconnected, client)
        started(self.share)
        context = copy_context()
        try:
            target = (work, done)
            Thread(
                target=lambda: context.run(self._work, *target), name=THREAD_NAME, daemon=True
            ).start()
        except RuntimeError:  # the operating system has no more threads
            self._release(done)
            raise
        start = loop.time()
        watcher = asyncio.ensure_future(_call_after(disconnected, cancel))
        try:
            with move_on_after(self.timeout):
                result = await done
                took = loop.time() - start
                self._seconds = 0.8 * (self._seconds or took) + 0.2 * took
                return result
            log.warning("A request has run for more than %g seconds.", self.timeout)
            raise HTTPException(
                504,
                f"The explanation took more than {self.timeout:g} seconds, the classifier's part "
                "of it included. Send fewer instances or fewer steps.",
            )
        finally:
            watcher.cancel()
            if done.cancelled():  # but its thread goes on
                cancel()
                self._stuck.add(done)
                self._start_next()

    def stop(self, grace: float) -> None:
        """Refuses calls from now on; those still running after `grace` seconds get 503."""
        if not self.stopping:
            self.stopping = True
            self._refuse_waiting()
            asyncio.get_running_loop().call_later(grace, self._end_running)

    def _end_running(self) -> None:
        for done in self._running.keys() - self._stuck:
            if not done.done():
                done.set_exception(_stopped())

    async def _acquire(
        self, done: Done, disconnected: Callable[[], Awaitable[None]], client: str
    ) -> None:
        """Waits for a thread, if need be."""
        if self.stopping:
            raise _stopped()
        if self._may_run(client) and client not in self._waiting:
            self._running[done] = client
            return
        waiting = self._n_waiting
        if not self._free or (waiting >= self.queue and not self._push_out(client)):
            raise self._refusal(f"{waiting} requests are waiting already.")
        turn = Turn(asyncio.get_running_loop().create_future(), done)
        self._waiting.setdefault(client, deque()).append(turn)
        gone = HTTPException(400, "The connection closed.")
        watcher = asyncio.ensure_future(_call_after(disconnected, lambda: _refuse(turn, gone)))
        accepted = False
        try:
            with move_on_after(2 * self.timeout):
                await turn.granted
                accepted = True
                return
            raise self._refusal("The requests before this one took too long.")
        finally:
            watcher.cancel()
            self._forget(turn, client)
            if not accepted:
                self._release(done)

    def _forget(self, turn: Turn, client: str) -> None:
        turns = self._waiting.get(client, deque())
        with suppress(ValueError):
            turns.remove(turn)
        if not turns:
            self._waiting.pop(client, None)

    def _push_out(self, client: str) -> bool:
        """Refuses the newest call of whoever has most waiting, if that is fair to both."""
        if not self._waiting:
            return False
        most, turns = max(self._waiting.items(), key=lambda item: len(item[1]))
        if most == client or len(turns) <= len(self._waiting.get(client, ())) + 1:
            return False
        refusal = self._refusal("Others are waiting, and this client has most requests waiting.")
        _refuse(turns.pop(), refusal)
        return True

    def _start_next(self) -> None:
        """Lets calls run while there are threads, the clients by turns."""
        if not self._free:
            self._refuse_waiting()
        while (client := next(filter(self._may_run, self._waiting), None)) is not None:
            turns = self._waiting[client]
            turn = turns.popleft()
            del self._waiting[client]
            if turns:  # its next turn comes after everyone else's
                self._waiting[client] = turns
            if not turn.granted.done():
                self._running[turn.done] = client
                turn.granted.set_result(None)

    def _refuse_waiting(self) -> None:
        refusal = _stopped() if self.stopping else self._refusal("")
        for turns in self._waiting.values():
            for turn in turns:
                _refuse(turn, refusal)
        self._waiting.clear()

    def _release(self, done: Done) -> None:
        self._stuck.discard(done)
        self._running.pop(done, None)
        self._start_next()

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
        self._release(done)
        if done.done():
            return
        if isinstance(result, Exception):
            done.set_exception(result)
        else:
            done.set_result(result)

    @property
    def _n_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _may_run(self, client: str) -> bool:
        """Whether there is a thread for one more call of a client."""
        if len(self._running) >= self._most:
            return False
        own = [done for done, owner in self._running.items() if owner == client]
        return len(set(own) - self._stuck) < self._lanes

    @property
    def _lanes(self) -> int:
        """How many calls of one client may run at once."""
        return self._free - 1 if self._free >= 3 else self._free

    @property
    def _most(self) -> int:
        """How many threads there may be, the stuck ones included."""
        return self.workers + min(len(self._stuck), self.spare)

    @property
    def _free(self) -> int:
        """How many threads are left that may run calls."""
        return self.workers + min(0, self.spare - len(self._stuck))

    def _refusal(self, reason: str) -> HTTPException:
        """429 and when the queue should have moved on; 503 when every thread is stuck."""
        status, pause = 503, MAX_RETRY_AFTER
        if self._free:
            status, seconds = 429, self._seconds * (1 + self._n_waiting) / self._free
            pause = min(max(math.ceil(seconds), 1), MAX_RETRY_AFTER)
        else:
            reason = f"The classifier does not respond: {len(self._stuck)} requests hang in it."
        sentence = f"{reason} Try again in {pause} {'second' if pause == 1 else 'seconds'}."
        return HTTPException(status, sentence, {"Retry-After": str(pause)})


def _stopped() -> HTTPException:
    return HTTPException(503, STOPPING, {"Retry-After": "5", "Connection": "close"})


def _refuse(turn: Turn, error: HTTPException) -> None:
    if not turn.granted.done():
        turn.granted.set_exception(error)


async def _call_after(
    disconnected: Callable[[], Awaitable[None]], function: Callable[[], None]
) -> None:
    await disconnected()
    function()
