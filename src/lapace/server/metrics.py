"""What the server has done, as Prometheus reads it: counts, seconds, the queue, memory.

Written out by hand: the text format is a line per number, and its library would be a dependency.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Metrics"]

BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)  # seconds
MEMORY = Path("/proc/self/statm")


class Metrics:
    """Counters of one server. They are changed in the event loop only.

    Examples:
        >>> metrics = Metrics()
        >>> metrics.answered("/v2/explain", 200, 0.02)
        >>> print(metrics.text(waiting=0).splitlines()[2])
        lapace_requests_total{route="/v2/explain",status="200"} 1
    """

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: Counter[float] = Counter()
        self._seconds = 0.0
        self._count = 0
        self.queries = 0
        self.ended = 0

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Counts one response."""
        self._requests[route, status] += 1
        self._seconds += seconds
        self._count += 1
        self._buckets.update(bound for bound in BUCKETS if seconds <= bound)

    def spent(self, queries: int, *, ended: bool) -> None:
        """Counts what an explanation cost, and whether a budget ended it."""
        self.queries += queries
        self.ended += ended

    def text(self, **now: int) -> str:
        """All numbers.

        Args:
            now: How many requests are in each state, by its name.
        """
        return "\n".join([*self._lines(now), ""])

    def _lines(self, now: dict[str, int]) -> Iterator[str]:
        yield from _head("requests_total", "counter", "Responses by route and status.")
        for (route, status), count in sorted(self._requests.items()):
            yield f'lapace_requests_total{{route="{route}",status="{status}"}} {count}'
        yield from _head("request_seconds", "histogram", "Seconds from request to response.")
        for bound in BUCKETS:
            yield f'lapace_request_seconds_bucket{{le="{bound:g}"}} {self._buckets[bound]}'
        yield f'lapace_request_seconds_bucket{{le="+Inf"}} {self._count}'
        yield f"lapace_request_seconds_sum {self._seconds:.6f}"
        yield f"lapace_request_seconds_count {self._count}"
        yield from _head("queries_total", "counter", "Rows the classifier was queried about.")
        yield f"lapace_queries_total {self.queries}"
        yield from _head("budgets_spent_total", "counter", "Explanations that a budget ended.")
        yield f"lapace_budgets_spent_total {self.ended}"
        for name, value in now.items():
            yield from _head(f"requests_{name}", "gauge", f"Requests now {name}.")
            yield f"lapace_requests_{name} {value}"
        yield from _head("memory_bytes", "gauge", "Resident memory of the process.")
        yield f"lapace_memory_bytes {_memory()}"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP lapace_{name} {text}", f"# TYPE lapace_{name} {kind}"]


def _memory() -> int:
    try:
        return int(MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return 0
