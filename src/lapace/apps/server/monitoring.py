"""Figures for Prometheus, and log lines as JSON; neither has anyone's data.

Where several processes serve together, `PROMETHEUS_MULTIPROC_DIR` names a folder that they share
and that is empty when they start: prometheus_client keeps the numbers there, and each process
answers with the sums.
"""

from __future__ import annotations

import json
import logging
import os
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

__all__ = ["REQUEST_ID", "SHARED_FOLDER", "JsonLines", "Metrics"]

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)  # seconds
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")


class Metrics:
    """Counters of one server.

    Examples:
        >>> metrics = Metrics()
        >>> metrics.answered("/v3/explain", 200, 0.02)
        >>> print(metrics.text().splitlines()[2])
        lapace_requests_total{route="/v3/explain",status="200"} 1.0
    """

    def __init__(self) -> None:
        # It decides when it is imported whether processes share: not before they are started.
        from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

        self._registry = registry = CollectorRegistry()
        labels = ("route", "status")
        self._requests = Counter(
            "lapace_requests", "Responses by route and status.", labels, registry=registry
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
        ProcessCollector(registry=registry)  # memory and processor time of this process

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Counts one response."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.observe(seconds)

    def spent(self, queries: int, *, ended: bool) -> None:
        """Counts what an explanation cost, and whether a budget ended it."""
        self._queries.inc(queries)
        self._ended.inc(ended)

    def text(self) -> str:
        """Returns all numbers, of all processes, as Prometheus reads them."""
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        registry, folder = self._registry, os.environ.get(SHARED_FOLDER)
        if folder is not None:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
        return generate_latest(registry).decode("utf-8")


class JsonLines(logging.Formatter):
    """A log record as one line of JSON: time, level, message, and the request it belongs to.

    An exception adds its type and where it was raised, never its text, which may quote a row.

    Examples:
        >>> record = logging.LogRecord("lapace", logging.INFO, "", 1, "ready", None, None)
        >>> sorted(json.loads(JsonLines().format(record)))
        ['level', 'message', 'time']
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": time, "level": record.levelname.lower()}
        line["message"] = record.getMessage()
        if request := REQUEST_ID.get():
            line["request"] = request
        line.update(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            last = traceback.extract_tb(error.__traceback__)[-1:]
            where = [f"{frame.name}:{frame.lineno}" for frame in last]
            line["error"] = " in ".join([type(error).__name__, *where])
        return json.dumps(line)
