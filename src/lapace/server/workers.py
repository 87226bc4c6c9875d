"""Threads that answer questions, a queue in front of them, and what happens when one hangs.

An explanation runs in a thread, since it computes and asks a classifier that may take its time. A
fixed number works at once and a fixed number may wait; whoever comes on top of that is told to
come back. A thread that hangs in a classifier cannot be stopped. So when a question has run too
long its asker is told, the thread is counted as *stuck*, and a spare one takes its place; when the
stuck one comes back after all, it goes. Only so many spares exist: once every thread is stuck the
classifier is as good as gone, and everybody is told so at once until one returns.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, Literal, TypeAlias

from lapace.server.refusals import RefusedError

__all__ = ["Load", "Workers"]

IDLE = 60.0  # seconds after which a thread with nothing to do ends
PATIENCE = 60  # the most seconds anybody is asked to stay away

Work: TypeAlias = Callable[[], bytes]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Load:
    """How busy the threads are.

    Attributes:
        running: Questions being answered in time.
        waiting: Questions in the queue.
        stuck: Threads that have not come back in time.
        able: Whether a thread is left, or may be started, to answer a question.
    """

    running: int
    waiting: int
    stuck: int
    able: bool


@dataclass(eq=False)
class _Job:
    """A question on its way; its state is changed under the lock only."""

    work: Work
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[bytes]
    state: Literal["waiting", "running", "late", "over"] = "waiting"
    since: float = field(default_factory=time.monotonic)
    timer: asyncio.TimerHandle | None = None

    def in_loop(self, call: Callable[..., None], *arguments: object) -> None:
        """Has the event loop do something, from any thread."""
        with suppress(RuntimeError):  # the server has stopped meanwhile
            self.loop.call_soon_threadsafe(call, *arguments)

    def clock(self, seconds: float, then: Callable[[_Job], None]) -> None:
        """In the event loop: winds the clock anew."""
        self.stop()
        self.timer = self.loop.call_later(seconds, then, self)

    def stop(self) -> None:
        """In the event loop: stops the clock."""
        if self.timer is not None:
            self.timer.cancel()

    def end(self, answer: bytes | BaseException) -> None:
        """In the event loop: hands the answer to whoever still waits for it."""
        self.stop()
        if self.done.done():  # they have been told, or have left
            return
        if isinstance(answer, BaseException):
            self.done.set_exception(answer)
        else:
            self.done.set_result(answer)


class Workers:
    """Answers a few questions at once, lets a few more wait, and outlives those that hang.

    Args:
        size: Questions answered at once.
        queue: Questions that may wait.
        timeout: Seconds a question may run. It may wait twice as long before that, so that those
            who wait behind questions that hang still have their turn.
        spare: Threads that may be stuck before there is one less to answer.

    Examples:
        >>> workers = Workers(size=1, queue=5, timeout=10.0)
        >>> asyncio.run(workers.answer(lambda: b"42"))
        b'42'
    """

    def __init__(self, *, size: int, queue: int, timeout: float, spare: int = 8) -> None:
        self.size = size
        self.queue = queue
        self.timeout = timeout
        self.spare = spare
        self._changed = Condition()
        self._waiting: deque[_Job] = deque()
        self._threads = 0  # alive, the stuck ones too
        self._running = 0
        self._stuck = 0
        self._closed = False
        self._seconds = 0.0  # what a question has taken of late

    # -- asking, in the event loop ----------------------------------------------------------------

    async def answer(
        self, work: Work, gone: Callable[[], Awaitable[object]] | None = None
    ) -> bytes:
        """What `work` returns, or `RefusedError`: the queue is full, or it takes too long.

        Args:
            work: Run in a thread.
            gone: What it returns is done when the asker no longer waits for an answer.
        """
        loop = asyncio.get_running_loop()
        job = _Job(work, loop, loop.create_future())
        self._enter(job)
        job.clock(2 * self.timeout, self._tired)
        left = None if gone is None else asyncio.ensure_future(gone())
        try:
            futures: set[asyncio.Future[Any]] = {job.done}
            if left is not None:
                futures.add(left)
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            if not job.done.done():
                raise RefusedError(400, "The question was taken back.")  # which nobody hears
            return job.done.result()
        finally:
            if left is not None:
                left.cancel()
            self._withdraw(job)

    def _enter(self, job: _Job) -> None:
        with self._changed:
            if not self._wanted():
                raise self._hung()
            if self._running + len(self._waiting) >= self._wanted() + self.queue:
                raise self._busy(f"{len(self._waiting)} questions are waiting already.")
            self._closed = False
            self._waiting.append(job)
            self._staff()
            self._changed.notify()

    def _withdraw(self, job: _Job) -> None:
        """Nobody waits for it any more; one that runs goes on, and its clock with it."""
        with self._changed:
            if job.state == "waiting":
                self._waiting.remove(job)
                job.state = "over"
                job.stop()
        job.done.cancel()

    def _tired(self, job: _Job) -> None:
        """A question has waited too long."""
        with self._changed:
            if job.state != "waiting":
                return
            self._waiting.remove(job)
            job.state = "over"
            busy = self._busy("The questions before this one took too long.")
        job.end(busy)

    def _late(self, job: _Job) -> None:
        """A question has run too long: its thread is stuck, and a spare one may take its place."""
        with self._changed:
            if job.state != "running":
                return
            job.state = "late"
            self._running -= 1
            self._stuck += 1
            log.warning("A question has run for more than %g seconds.", self.timeout)
            self._staff()
            hopeless = [] if self._wanted() else self._dismiss()
        job.end(
            RefusedError(
                504,
                f"The answer took more than {self.timeout:g} seconds. Ask about fewer instances or "
                "with fewer steps; if that does not help, the classifier is too slow.",
            )
        )
        for each in hopeless:
            each.end(self._hung())

    def _staff(self) -> None:
        """Starts a thread where one is missing and there is work for it."""
        if self._waiting and self._threads - self._stuck < self._wanted():
            self._threads += 1
            Thread(target=self._work, name="lapace-worker", daemon=True).start()

    def _dismiss(self) -> list[_Job]:
        """Empties the queue."""
        left = list(self._waiting)
        self._waiting.clear()
        for job in left:
            job.state = "over"
        return left

    def close(self) -> None:
        """Sends idle threads home and tells everyone who still waits; a new question reopens."""
        with self._changed:
            self._closed = True
            left = self._dismiss()
            self._changed.notify_all()
        for job in left:
            job.end(
                RefusedError(503, "The server is stopping. Ask again later.", {"Retry-After": "5"})
            )

    # -- answering, in threads --------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job.in_loop(job.clock, self.timeout, self._late)
            answer: bytes | BaseException
            try:
                answer = job.work()
            except BaseException as error:  # a thread must not die of a question
                answer = error
            self._finish(job)
            job.in_loop(job.end, answer)
            del job, answer  # nothing is kept while waiting for the next

    def _next(self) -> _Job | None:
        """The next question; None when this thread is not needed any more."""
        with self._changed:
            while True:
                if self._threads - self._stuck > self._wanted():  # a spare has taken its place
                    break
                if self._waiting:
                    job = self._waiting.popleft()
                    job.state, job.since = "running", time.monotonic()
                    self._running += 1
                    return job
                if self._closed or (not self._changed.wait(IDLE) and not self._waiting):
                    break
            self._threads -= 1
            return None

    def _finish(self, job: _Job) -> None:
        with self._changed:
            late, job.state = job.state == "late", "over"
            if late:
                self._stuck -= 1
                return
            self._running -= 1
            took = time.monotonic() - job.since
            self._seconds = 0.8 * (self._seconds or took) + 0.2 * took

    # -- how busy ---------------------------------------------------------------------------------

    def _wanted(self) -> int:
        """Threads that should be there beside the stuck ones."""
        return max(0, min(self.size, self.size + self.spare - self._stuck))

    def load(self) -> Load:
        """How busy the threads are just now."""
        with self._changed:
            return Load(self._running, len(self._waiting), self._stuck, self._wanted() > 0)

    def _busy(self, why: str) -> RefusedError:
        able = max(1, self._wanted())
        seconds = math.ceil(self._seconds * (1 + len(self._waiting)) / able)
        pause = min(max(seconds, 1), PATIENCE)
        told = f"{why} Ask again in {pause} {'second' if pause == 1 else 'seconds'}."
        return RefusedError(429, told, {"Retry-After": str(pause)})

    def _hung(self) -> RefusedError:
        return RefusedError(
            503,
            f"The classifier does not answer: {self._stuck} questions hang in it. Ask again later.",
            {"Retry-After": str(PATIENCE)},
        )
