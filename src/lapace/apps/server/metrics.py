"""Figures of the server for Prometheus: responses, seconds, the queue, memory.

Where several processes serve together, `PROMETHEUS_MULTIPROC_DIR` names a folder that they share
and that is empty when they start: prometheus_client keeps the numbers there, and any of them
answers with the sums. The queue and the memory of another process are as of its last response.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["SHARED_FOLDER", "Metrics"]

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)  # seconds
MEMORY = Path("/proc/self/statm")


class Metrics:
    """Counters of one server.

    Args:
        now: Returns how many requests are in each state, by its name.

    Examples:
        >>> metrics = Metrics()
        >>> metrics.answered("/v2/explain", 200, 0.02)
        >>> print(metrics.text().splitlines()[2])
        lapace_requests_total{route="/v2/explain",status="200"} 1.0
    """

    def __init__(self, now: Callable[[], Mapping[str, int]] = dict) -> None:
        # It decides when it is imported whether processes share: not before they are started.
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._now = now
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "lapace_requests",
            "Responses by route and status.",
            ("route", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "lapace_request_seconds",
            "Seconds from request to response.",
            buckets=BUCKETS,
            registry=registry,
        )
        self._queries = Counter(
            "lapace_queries", "Rows the classifier was queried about.", registry=registry
        )
        self._ended = Counter(
            "lapace_budgets_spent", "Explanations that a budget ended.", registry=registry
        )
        self._gauges = {
            name: Gauge(f"lapace_{name}", words, registry=registry, multiprocess_mode="livesum")
            for name, words in {
                "requests_running": "Requests now running.",
                "requests_waiting": "Requests now waiting.",
                "requests_stuck": "Requests now stuck.",
                "memory_bytes": "Resident memory of the processes.",
            }.items()
        }

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Counts one response."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.observe(seconds)
        self._measure()

    def spent(self, queries: int, *, ended: bool) -> None:
        """Counts what an explanation cost, and whether a budget ended it."""
        self._queries.inc(queries)
        self._ended.inc(ended)

    def text(self) -> str:
        """Returns all numbers, of all processes, as Prometheus reads them."""
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

        self._measure()
        registry, folder = self._registry, os.environ.get(SHARED_FOLDER)
        if folder is not None:
            for file in Path(folder).glob("gauge_live*_*.db"):
                pid = file.stem.rpartition("_")[2]
                if not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
                    mark_process_dead(int(pid), folder)  # type: ignore[no-untyped-call]
            registry = CollectorRegistry()
            MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
        return generate_latest(registry).decode("utf-8")

    def _measure(self) -> None:
        for name, count in self._now().items():
            self._gauges[f"requests_{name}"].set(count)
        self._gauges["memory_bytes"].set(_memory())


def _memory() -> int:
    try:
        return int(MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return 0
