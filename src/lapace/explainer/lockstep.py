"""Searches that go on side by side, so that what they ask the classifier shares its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

import numpy as np

from lapace.arrays import Floats, Ints
from lapace.explainer.oracle import Ask, Verdicts
from lapace.paths import Steps

__all__ = ["in_lockstep"]

Found = TypeVar("Found")


def in_lockstep(verdicts: Verdicts, searches: Sequence[Callable[[Ask], Found]]) -> list[Found]:
    """What each search finds, given whom to ask about rows.

    One search runs at a time, until it asks something new; when all of them wait, what they ask
    becomes one question. So what is found depends on no clock. An error stops all of them.
    """
    if len(searches) == 1:
        return [searches[0](verdicts)]
    sides = [_Side(verdicts, search) for search in searches]
    try:
        for side in sides:
            side.start()
        while waiting := [side for side in sides if side.asked is not None]:
            cells, lines = zip(*(side.asked for side in waiting if side.asked), strict=True)
            found = verdicts(np.concatenate(cells), np.concatenate(lines))
            stops = np.cumsum([len(part) for part in lines])
            for side, rows in zip(waiting, np.split(np.arange(stops[-1]), stops[:-1]), strict=True):
                side.go_on(found.take(rows))
        return [side.found for side in sides]
    finally:
        for side in sides:
            side.stop()


class _StoppedError(Exception):
    """Ends a search that another one's error ended."""


class _Side(Generic[Found]):
    """One of the searches, in a thread of its own, which runs only while the others wait."""

    found: Found

    def __init__(self, verdicts: Verdicts, search: Callable[[Ask], Found]) -> None:
        self.verdicts, self.search = verdicts, search
        self.asked: tuple[Floats, Ints] | None = None
        self.answers: SimpleQueue[Steps | None] = SimpleQueue()  # None: it is to stop
        self.stopped = False
        self.thread: Thread | None = None
        self.turns: SimpleQueue[BaseException | None] = SimpleQueue()  # it asks, ended or failed

    def start(self) -> None:
        """Runs it until it asks something new, or has ended."""
        context = copy_context()
        self.thread = Thread(target=context.run, args=(self._run,), name="lockstep", daemon=True)
        self.thread.start()
        self._wait()

    def go_on(self, steps: Steps) -> None:
        """Answers it, and runs it until it asks again, or has ended."""
        self.answers.put(steps)
        self._wait()

    def stop(self) -> None:
        """Ends it at its next question, and waits for that."""
        self.stopped = True
        self.answers.put(None)
        if self.thread is not None:
            self.thread.join()

    def _wait(self) -> None:
        if (error := self.turns.get()) is not None:
            raise error

    def _run(self) -> None:
        try:
            self.found = self.search(self._ask)
            self.asked = None
            self.turns.put(None)
        except _StoppedError:
            pass
        except BaseException as error:
            self.asked = None
            self.turns.put(error)

    def _ask(self, cells: Floats, lines: Ints) -> Steps:
        if self.stopped:
            raise _StoppedError
        if self.verdicts.knows(cells, lines):
            return self.verdicts(cells, lines)
        self.asked = cells, lines
        self.turns.put(None)
        steps = self.answers.get()
        if steps is None:
            raise _StoppedError
        return steps
