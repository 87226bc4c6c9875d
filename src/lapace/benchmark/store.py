"""Running jobs, keeping what each found, and putting it into one table.

Every job's figures are one small file, named by the hash of its settings and written whole or not
at all. So a run that was killed goes on where it stopped, and results of other settings stay what
they are: files nobody asks for.
"""

from __future__ import annotations

import json
import math
import platform
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from lapace.benchmark.e1 import Measure, measure
from lapace.benchmark.plan import Job
from lapace.table import write_whole

__all__ = ["COLUMNS", "Record", "Store", "run", "tidy"]

Say: TypeAlias = Callable[[str], None]

COLUMNS = (
    "experiment", "pair", "recipe", "repeat", "seed", "metric", "label", "value", "count",
    "settings", "versions",
)  # fmt: skip
PACKAGES = ("numpy", "scikit-learn", "torch")


class Record(NamedTuple):
    """What one job found.

    Attributes:
        measures: Its figures.
        seconds: What it took, all in all.
        versions: Of what it was run with, as text.

    Examples:
        >>> Record([Measure("accuracy", 0.9, 100)], seconds=12.0, versions="lapace 0.1.0").seconds
        12.0
    """

    measures: list[Measure]
    seconds: float
    versions: str


def versions() -> str:
    """What figures were made with, in one line.

    Examples:
        >>> versions().split()[0]
        'Python'
    """
    known = [f"{name} {version(name).partition('+')[0]}" for name in PACKAGES]
    return ", ".join([f"Python {platform.python_version()}", *known])


@dataclass(frozen=True)
class Store:
    """A folder of results, one file per job.

    Examples:
        >>> import tempfile
        >>> from lapace.benchmark.plan import Limits, Pair, Protocol
        >>> job = Job(Pair("wine-RF", "wine", "forest"), "default", 1, Protocol(), Limits())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store(Path(folder))
        ...     store.save(job, Record([Measure("accuracy", 0.9, 100)], 12.0, versions()))
        ...     store.load(job).measures[0].value, job in store
        (0.9, True)
    """

    folder: Path

    def path(self, job: Job) -> Path:
        """Where a job's figures are kept."""
        name = f"{job.pair.name}.{job.recipe}.{job.seed}.{job.key}.json"
        return self.folder / job.pair.experiment / name

    def save(self, job: Job, record: Record) -> None:
        """Keeps what a job found."""
        path = self.path(job)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            {**asdict(m), "value": m.value if math.isfinite(m.value) else None}
            for m in record.measures
        ]
        data = {"settings": job.settings, **record._asdict(), "measures": lines}
        text = json.dumps(data, indent=1, default=_plain)
        write_whole(path, lambda p: p.write_text(text, encoding="utf-8"))

    def load(self, job: Job) -> Record | None:
        """What a job found; None if it is still to be run."""
        try:
            data = json.loads(self.path(job).read_text(encoding="utf-8"))
            if data["settings"] != job.settings:  # two settings with one hash: most unlikely
                return None
            found = [
                Measure(**{**line, "value": math.nan if line["value"] is None else line["value"]})
                for line in data["measures"]
            ]
            return Record(found, data["seconds"], data["versions"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def __contains__(self, job: Job) -> bool:
        return self.load(job) is not None


def _plain(value: Any) -> Any:
    """Numpy's numbers as Python's."""
    return value.item() if isinstance(value, np.generic) else str(value)


# ------------------------------------------------------------------------------------------------
# Running


def run(
    jobs: Sequence[Job],
    store: Store,
    *,
    say: Say,
    after: Callable[[], None] | None = None,
    work: Callable[[Job], list[Measure]] = measure,
) -> list[Job]:
    """Runs what has not been run yet, one job after the other.

    Args:
        jobs: All that is wanted.
        store: Where results are kept.
        say: Told what is going on, a line at a time.
        after: Called after every job that was run.
        work: What a job is.

    Returns:
        The jobs that failed. They are not kept, so they are tried again next time.

    Examples:
        >>> import tempfile
        >>> from lapace.benchmark.plan import Limits, Pair, Protocol
        >>> job = Job(Pair("wine-RF", "wine", "forest"), "default", 1, Protocol(), Limits())
        >>> heard = []
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store(Path(folder))
        ...     failed = run([job], store, say=heard.append, work=lambda job: [])
        ...     failed, job in store
        ([], True)
        >>> heard[1]
        '[1/1] wine-RF, default recipe, seed 1 ...'
    """
    left = [job for job in jobs if job not in store]
    say(f"{len(jobs) - len(left)} of {len(jobs)} jobs are done already.")
    failed = []
    for number, job in enumerate(left):
        say(f"[{len(jobs) - len(left) + number + 1}/{len(jobs)}] {job} ...")
        begin = time.perf_counter()
        try:
            found = work(job)
        except Exception:  # one job's trouble must not cost the others
            say(traceback.format_exc())
            failed.append(job)
            continue
        seconds = time.perf_counter() - begin
        store.save(job, Record(found, seconds, versions()))
        rest = time_left(jobs, left[number + 1 :], store)
        say(f"    {_duration(seconds)}; about {_duration(rest)} left.")
        if after is not None:
            after()
    return failed


def time_left(jobs: Iterable[Job], rest: Iterable[Job], store: Store) -> float:
    """Seconds the rest will take, going by what other repeats of a pair and recipe took.

    Where there are none, by what the recipe took on average, or any job at all.
    """
    known = {job: r.seconds for job in jobs if (r := store.load(job)) is not None}

    def guess(job: Job) -> float:
        for like in (
            [s for j, s in known.items() if (j.pair, j.recipe) == (job.pair, job.recipe)],
            [s for j, s in known.items() if j.recipe == job.recipe],
            list(known.values()),
        ):
            if like:
                return sum(like) / len(like)
        return 0.0

    return sum(map(guess, rest))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


# ------------------------------------------------------------------------------------------------
# One table


def tidy(jobs: Sequence[Job], store: Store) -> pd.DataFrame:
    """Every figure there is of some jobs: one line per pair, recipe, repeat, metric and label.

    Examples:
        >>> tuple(tidy([], Store(Path("nowhere")))) == COLUMNS
        True
    """
    lines = []
    for job in jobs:
        record = store.load(job)
        if record is None:
            continue
        repeat = job.protocol.seeds.index(job.seed) + 1
        about = f"lapace {job.settings['lapace']} r{job.settings['revision']}, {record.versions}"
        head = (job.pair.experiment, job.pair.name, job.recipe, repeat, job.seed)
        for m in record.measures:
            # Six digits are more than any figure here is good for, and keep the file small.
            value = float(f"{m.value:.6g}")
            lines.append((*head, m.metric, m.label, value, m.count, job.key, about))
    return pd.DataFrame(lines, columns=list(COLUMNS))
