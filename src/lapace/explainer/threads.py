"""Parts of a search done by several threads, which query the classifier one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextvars import copy_context
from threading import Lock
from typing import TypeVar

__all__ = ["QueryTurn", "in_threads"]

Part = TypeVar("Part")
Found = TypeVar("Found")


class QueryTurn:
    """Lets one thread at a time query the classifier, and none once an error ended the search."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.ended: BaseException | None = None

    def __enter__(self) -> None:
        self.lock.acquire()
        if self.ended is not None:
            self.lock.release()
            raise self.ended

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def in_threads(
    work: Callable[[Part], Found], parts: Sequence[Part], threads: int, turn: QueryTurn
) -> Iterator[Found]:
    """What work on each part returns, in order; an error of one thread ends all.

    Args:
        work: Enters `turn` whenever it queries the classifier.
        parts: The parts.
        threads: How many work at the same time.
        turn: Of these threads alone.

    Examples:
        >>> list(in_threads(abs, [-1, 2, -3], 2, QueryTurn()))
        [1, 2, 3]
    """
    pool = ThreadPoolExecutor(threads)

    def worked(part: Part) -> Found:
        try:
            return work(part)
        except BaseException as error:
            turn.ended = error
            raise

    def begun(part: Part) -> Future[Found]:
        return pool.submit(copy_context().run, worked, part)

    try:
        ahead = deque(map(begun, parts[:threads]))
        for k in range(len(parts)):
            found = ahead.popleft().result()
            ahead.extend(map(begun, parts[threads + k : threads + k + 1]))
            yield found
    finally:
        turn.ended = turn.ended or CancelledError()
        pool.shutdown(cancel_futures=True)
