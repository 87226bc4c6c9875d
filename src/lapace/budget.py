"""Budgets: what one question may cost in queries, solver nodes and seconds.

The library itself sets none: the same call gives the same result, however slow the machine. Whoever
answers for others, a server say, limits each call:

    with limited(Budget(queries=100_000, seconds=20)) as budget:
        explanation = explainer.explain(rows)

The classifier and the solver report here what they spend. Where a budget ends a search, the
instances not searched for say so in their reason, and `budget.ended` does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from time import monotonic

from lapace.errors import LapaceError

__all__ = ["Budget", "BudgetError", "current", "limited", "spend"]


class BudgetError(LapaceError):
    """A budget is spent, or the call was cancelled."""


@dataclass
class Budget:
    """A limit on what a call may spend, and how much it has spent.

    Attributes:
        queries: Rows the classifier may be queried about.
        nodes: Branch-and-bound nodes the solver may visit.
        seconds: Seconds the call may take, from its beginning.
        spent_queries: Rows so far.
        spent_nodes: Nodes so far.
        ended: Which of them ended the search, in words; empty while none has.

    Examples:
        >>> with limited(Budget(queries=10)) as budget:
        ...     spend(queries=8)
        ...     spend(queries=8)
        Traceback (most recent call last):
        lapace.budget.BudgetError: The budget of 10 queries is spent.
        >>> budget.ended
        'The budget of 10 queries is spent.'
    """

    queries: float = inf
    nodes: float = inf
    seconds: float = inf
    spent_queries: int = 0
    spent_nodes: int = 0
    ended: str = ""
    _share: float = 1.0  # of each that may be spent for now
    _outer: Budget | None = None  # what is spent here is spent there as well
    _start: float = field(default_factory=monotonic)
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Ends the call at its next query or program, from any thread."""
        self._cancelled.set()

    @property
    def seconds_left(self) -> float:
        """Seconds until the call has to end."""
        left = max(0.0, self._share * self.seconds - (monotonic() - self._start))
        return left if self._outer is None else min(left, self._outer.seconds_left)

    @property
    def nodes_left(self) -> float:
        """Nodes the solver may still visit."""
        left = max(0.0, self._share * self.nodes - self.spent_nodes)
        return left if self._outer is None else min(left, self._outer.nodes_left)

    @contextmanager
    def share(self, share: float) -> Iterator[None]:
        """Allows only a share meanwhile, so that something is left where it does not suffice."""
        before, self._share = self._share, min(share, self._share)
        try:
            yield
        except BudgetError:
            if not self._cancelled.is_set():
                self.ended = ""  # only a share of it
            raise
        finally:
            self._share = before

    def spend(self, queries: int = 0, nodes: int = 0) -> None:
        """Counts what is about to be spent, or was; raises where it is too much."""
        if self._cancelled.is_set():
            self.ended = "The caller has gone."
            raise BudgetError(self.ended)
        if self._outer is not None:
            self._outer.spend(nodes=nodes)
        self.spent_nodes += nodes
        over = {
            f"{self.queries:,.0f} queries": self.spent_queries + queries
            > self._share * self.queries,
            f"{self.nodes:,.0f} solver nodes": self.spent_nodes > self._share * self.nodes,
            f"{self.seconds:g} seconds": self.seconds_left <= 0,
        }
        for what, spent in over.items():
            if spent:
                self.ended = f"The budget of {what} is spent."
                raise BudgetError(self.ended)
        if self._outer is not None:
            self._outer.spend(queries)
        self.spent_queries += queries


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


def current() -> Budget | None:
    """Returns the budget of the running call, if it has one."""
    return _current.get()


@contextmanager
def limited(budget: Budget) -> Iterator[Budget]:
    """Makes everything called meanwhile, in this thread, spend from the budget.

    Its seconds count from now on: a call that had to wait for its turn has not spent any. Where a
    budget is in force already, both are spent from.
    """
    budget._start, budget._outer = monotonic(), _current.get()
    token = _current.set(budget)
    try:
        yield budget
    finally:
        _current.reset(token)


def spend(queries: int = 0, nodes: int = 0) -> None:
    """Spends from the budget of the running call, if it has one."""
    budget = _current.get()
    if budget is not None:
        budget.spend(queries, nodes)
