"""What the server has done, as Prometheus reads it: counts, seconds, the queue, memory.

Written out by hand: the text format is a line per number, and its library would be a dependency.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

__all__ = ["Metrics"]

BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)  # seconds
MEMORY = Path("/proc/self/statm")


FAMILIES = {
    "requests_total": ("counter", "Responses by route and status."),
    "request_seconds": ("histogram", "Seconds from request to response."),
    "queries_total": ("counter", "Rows the classifier was queried about."),
    "budgets_spent_total": ("counter", "Explanations that a budget ended."),
    "requests_running": ("gauge", "Requests now running."),
    "requests_waiting": ("gauge", "Requests now waiting."),
    "requests_stuck": ("gauge", "Requests now stuck."),
    "memory_bytes": ("gauge", "Resident memory of the processes."),
}
Samples: TypeAlias = dict[str, dict[str, float]]  # values by family and by name with labels


class Metrics:
    """Counters of one server. They are changed in the event loop only.

    Where several processes serve together each leaves its numbers in a folder after every
    response, and any of them answers with the sums: those of others are as old as their last
    response.

    Args:
        folder: The folder that processes share; None for a process alone.
        now: How many requests are in each state, by its name.

    Examples:
        >>> metrics = Metrics()
        >>> metrics.answered("/v2/explain", 200, 0.02)
        >>> print(metrics.text().splitlines()[2])
        lapace_requests_total{route="/v2/explain",status="200"} 1
    """

    def __init__(
        self, folder: Path | None = None, now: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: Counter[float] = Counter()
        self._seconds = 0.0
        self._count = 0
        self._folder = folder
        self._now = now
        self.queries = 0
        self.ended = 0

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Counts one response."""
        self._requests[route, status] += 1
        self._seconds += seconds
        self._count += 1
        self._buckets.update(bound for bound in BUCKETS if seconds <= bound)
        if self._folder is not None:
            with suppress(OSError):  # a full disk stops no answer
                part = self._folder / f"{os.getpid()}.part"
                part.write_text(json.dumps(self._samples()), encoding="utf-8")
                part.replace(part.with_suffix(".json"))

    def spent(self, queries: int, *, ended: bool) -> None:
        """Counts what an explanation cost, and whether a budget ended it."""
        self.queries += queries
        self.ended += ended

    def text(self) -> str:
        """All numbers, of all processes."""
        total = self._samples()
        for other in self._others():
            for family, samples in other.items():
                known = total.setdefault(family, {})
                for name, value in samples.items():
                    known[name] = known.get(name, 0) + value
        lines = []
        for family, (kind, words) in FAMILIES.items():
            lines += [f"# HELP lapace_{family} {words}", f"# TYPE lapace_{family} {kind}"]
            samples = total.get(family, {})
            # A histogram's buckets keep their order, requests are sorted.
            names = sorted(samples) if family == "requests_total" else samples
            lines += [f"lapace_{name} {_number(samples[name])}" for name in names]
        return "\n".join([*lines, ""])

    def _samples(self) -> Samples:
        """The numbers of this process."""
        bucket = 'request_seconds_bucket{{le="{}"}}'.format
        return {
            "requests_total": {
                f'requests_total{{route="{route}",status="{status}"}}': count
                for (route, status), count in self._requests.items()
            },
            "request_seconds": {
                **{bucket(f"{bound:g}"): self._buckets[bound] for bound in BUCKETS},
                bucket("+Inf"): self._count,
                "request_seconds_sum": round(self._seconds, 6),
                "request_seconds_count": self._count,
            },
            "queries_total": {"queries_total": self.queries},
            "budgets_spent_total": {"budgets_spent_total": self.ended},
            **{f"requests_{name}": {f"requests_{name}": n} for name, n in self._now().items()},
            "memory_bytes": {"memory_bytes": _memory()},
        }

    def _others(self) -> Iterator[Samples]:
        """The numbers that other processes left; of those that have ended only what they did."""
        for path in [] if self._folder is None else sorted(self._folder.glob("*.json")):
            if path.stem == str(os.getpid()):
                continue
            with suppress(OSError, ValueError):
                samples: Samples = json.loads(path.read_text(encoding="utf-8"))
                gauges = {f for f, (kind, _) in FAMILIES.items() if kind == "gauge"}
                alive = Path(f"/proc/{path.stem}").exists() or not Path("/proc/self").exists()
                yield {f: v for f, v in samples.items() if alive or f not in gauges}


def _number(value: float) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _memory() -> int:
    try:
        return int(MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return 0
