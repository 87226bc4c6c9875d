"""What a piece of work costs: processor time, time by the clock, rows asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.store import Measure

__all__ = ["Cost", "spending"]


@dataclass
class Cost:
    """What a block of code cost.

    With one thread processor time is what the clock says on an idle machine, and stays what it is
    on a busy one, so it is what methods are compared by.

    Attributes:
        processor: Seconds of the processor.
        clock: Seconds by the clock.
        n_queries: Rows the classifier was asked about.

    Examples:
        >>> [m.value for m in Cost(1.0, 2.0, 300).measures(50, "NNCE")]
        [2.0, 4.0, 600.0]
    """

    processor: float = 0.0
    clock: float = 0.0
    n_queries: float = 0

    def measures(self, instances: int, method: str, label: str = "") -> Iterator[Measure]:
        """The same per 100 instances."""
        each = 100 / instances
        yield Measure("seconds", self.processor * each, instances, label, method)
        yield Measure("wall_seconds", self.clock * each, instances, label, method)
        yield Measure("rows_asked", self.n_queries * each, instances, label, method)


@contextmanager
def spending() -> Iterator[Cost]:
    """Times a block.

    Examples:
        >>> with spending() as cost:
        ...     _ = sum(range(100_000))
        >>> 0 < cost.processor, 0 < cost.clock
        (True, True)
    """
    cost = Cost()
    processor, clock = time.process_time(), time.perf_counter()
    try:
        yield cost
    finally:
        cost.processor = time.process_time() - processor
        cost.clock = time.perf_counter() - clock
