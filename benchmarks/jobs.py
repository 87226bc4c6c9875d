"""Running jobs, keeping their results, and putting those into one table.

Every job's figures are one small file, named by the hash of its settings and written whole or not
at all. So a run that was killed continues where it stopped, and results of other settings are left
alone. The table kept with the code is made of CSV files, one per experiment.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

import lapace
from benchmarks.plan import REVISIONS, Job, Reading

__all__ = [
    "COLUMNS",
    "Measure",
    "Record",
    "Store",
    "keep",
    "kept",
    "measured",
    "run",
    "run_job",
    "shared_out",
    "versions",
    "write",
]

Item = TypeVar("Item")
Result = TypeVar("Result")

COLUMNS = (
    "experiment", "pair", "recipe", "repeat", "seed", "method", "metric", "label", "mean",
    "deviation", "count", "settings", "versions",
)  # fmt: skip
RUNS = ("experiment", "pair", "recipe", "seed", "settings", "seconds", "versions")
TABLES = ("e1", "readings", "sources", "e2", "e3", "e4", "clusters", "advice")


@dataclass(frozen=True)
class Measure:
    """One figure.

    Attributes:
        metric: Its name.
        value: Shares run from 0 to 1; NaN where there is nothing to measure.
        count: The number of rows, paths, instances or prototypes it is taken over.
        label: The class, prototype or setting it is about; empty for all of them.
        method: The method whose counterfactuals it is about; empty where it is about none.
        deviation: The standard deviation over what was counted, where that was measured.
    """

    metric: str
    value: float
    count: int
    label: str = ""
    method: str = ""
    deviation: float = math.nan

    @classmethod
    def of(cls, metric: str, values: Any, label: str = "", method: str = "") -> Measure:
        """Returns the mean, number and standard deviation of some values.

        Examples:
            >>> Measure.of("ok", [True, True, False, False], method="First").value
            0.5
        """
        array = np.asarray(values, dtype=np.float64)
        mean = float(array.mean()) if array.size else math.nan
        deviation = float(array.std(ddof=1)) if array.size > 1 else math.nan
        return cls(metric, mean, array.size, label, method, deviation)


@dataclass(frozen=True)
class Record:
    """The figures of one job, the seconds it took, and the versions it was run with."""

    measures: list[Measure]
    seconds: float = 0.0
    versions: str = ""


def versions(job: Job | None = None) -> str:
    """Returns what figures are made with, in one line.

    Examples:
        >>> versions().split()[0]
        'lapace'
    """
    packages = [
        f"{name} {version(name).partition('+')[0]}" for name in ("numpy", "scikit-learn", "torch")
    ]
    code = f"lapace {lapace.__version__}" + (f" r{REVISIONS[job.experiment]}" if job else "")
    return ", ".join([code, f"Python {platform.python_version()}", *packages])


def write(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


@dataclass(frozen=True)
class Store:
    """A folder of results, one file per job. Any number of processes may share it.

    Examples:
        >>> import tempfile
        >>> from benchmarks.plan import Pair, Plan
        >>> job = Plan((Pair("wine-RF", "wine", "forest"),)).jobs()[0]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store(Path(folder))
        ...     store.save(job, Record([Measure("accuracy", 0.9, 100)]))
        ...     store.load(job).measures[0].value, job in store
        (0.9, True)
    """

    folder: Path

    def path(self, job: Job) -> Path:
        """Returns where a job's figures are kept."""
        name = f"{job.pair.name}.{job.recipe}.{job.seed}.{job.key}.json"
        return self.folder / job.experiment / name

    def save(self, job: Job, record: Record) -> None:
        """Keeps the figures of a job."""
        data = {"settings": job.settings, **asdict(record)}
        data["measures"] = [
            {name: _plain(value) for name, value in asdict(m).items()} for m in record.measures
        ]
        write(self.path(job), json.dumps(data, indent=1, allow_nan=False))

    def load(self, job: Job) -> Record | None:
        """Returns the figures of a job; None if it has not been run."""
        try:
            data = json.loads(self.path(job).read_text(encoding="utf-8"))
            if data.pop("settings") != job.settings:  # two settings with one hash
                return None
            data["measures"] = [
                Measure(**{name: math.nan if v is None else v for name, v in line.items()})
                for line in data["measures"]
            ]
            return Record(**data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def __contains__(self, job: Job) -> bool:
        return self.load(job) is not None


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it: no numpy numbers, no NaN."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ------------------------------------------------------------------------------------------------
# Running


def measured(job: Job) -> Iterable[Measure]:
    """Returns the figures of a job's experiment."""
    from benchmarks import advice, e1, e2, e3, e4

    kinds: dict[str, Callable[[Job], Iterable[Measure]]] = {
        "readings": e1.readings,
        "sources": e1.sources,
        "e2": e2.measure,
        "e3": e3.measure,
        "e4": e4.measure,
        "clusters": e2.sweep,
        "advice": advice.measure,
    }
    return kinds.get(job.experiment, e1.measure)(job)


def run_job(
    job: Job, store: Store, measure: Callable[[Job], Iterable[Measure]] = measured
) -> float:
    """Runs one job, keeps its figures, and returns the seconds it took.

    Raises whatever measuring raises; nothing is kept then.
    """
    start = time.perf_counter()
    measures = list(measure(job))
    seconds = time.perf_counter() - start
    store.save(job, Record(measures, seconds, versions(job)))
    return seconds


def shared_out(
    work: Callable[[Item], Result], items: Sequence[Item], workers: int
) -> Iterator[tuple[Item, Result | None, str]]:
    """Does some work in this process, or in several, and yields what came of each item.

    Yields:
        The item, the result, and an empty text; or the item, None, and the traceback: one failure
        does not cost the others.
    """
    if workers == 1:
        for item in items:
            yield _tried(work, item)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_tried, work, item) for item in items]):
            yield future.result()


def _tried(work: Callable[[Item], Result], item: Item) -> tuple[Item, Result | None, str]:
    try:
        return item, work(item), ""
    except Exception:
        return item, None, traceback.format_exc()


def run(
    jobs: Sequence[Job],
    store: Store,
    *,
    say: Callable[[str], None],
    workers: int = 1,
    seconds: float = math.inf,
    measure: Callable[[Job], Iterable[Measure]] = measured,
) -> list[Job]:
    """Runs the jobs that are not done.

    Jobs of one pair and seed go to one process, one after the other: they share the classifier, the
    retrained ones and fits.

    Args:
        jobs: All that are wanted.
        store: Where results are kept.
        say: Called with a line at a time on what is going on.
        workers: How many processes; with one, this one.
        seconds: After which no further job is begun.
        measure: Finds a job's figures.

    Returns:
        The jobs that failed. Nothing is kept of them, so they are tried again next time.
    """
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        if job not in store:
            reading = job.details if isinstance(job.details, Reading) else None  # a fit of its own
            groups.setdefault((job.pair.name, job.seed, reading), []).append(job)
    done = len(jobs) - sum(map(len, groups.values()))
    say(f"{done} of {len(jobs)} jobs are already done.")
    work = partial(_run_group, store=store, end=time.time() + seconds, measure=measure)
    failed = []
    for group, lines, error in shared_out(work, list(groups.values()), workers):
        for job, line in zip(group, lines or [error] * len(group), strict=True):
            done += 1
            say(f"[{done}/{len(jobs)}] {job}: {line}")
            failed += [job] if "Traceback" in line else []
    return failed


def _run_group(
    jobs: Sequence[Job], store: Store, end: float, measure: Callable[[Job], Iterable[Measure]]
) -> list[str]:
    """Runs jobs that share a fit; returns the seconds of each, or the traceback of its failure."""
    lines = []
    for job in jobs:
        if time.time() > end:
            lines.append("not begun, the time was up")
            continue
        _, took, error = _tried(partial(run_job, store=store, measure=measure), job)
        lines.append(error or f"{took:.0f} s")
    return lines


# ------------------------------------------------------------------------------------------------
# One table


def tidy(jobs: Sequence[Job], store: Store) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns all figures, one line per job, method, metric and label; and the jobs run.

    Examples:
        >>> figures, runs = tidy([], Store(Path("nowhere")))
        >>> tuple(figures) == COLUMNS, tuple(runs) == RUNS
        (True, True)
    """
    lines, runs = [], []
    for job in jobs:
        record = store.load(job)
        if record is None:
            continue
        repeat = job.protocol.seeds.index(job.seed) + 1
        head = (job.experiment, job.pair.name, job.recipe)
        for m in record.measures:
            # Six digits are more than any figure here is good for, and keep the file small.
            value, deviation = float(f"{m.value:.6g}"), float(f"{m.deviation:.3g}")
            figures = (m.method, m.metric, m.label, value, deviation, m.count)
            lines.append((*head, repeat, job.seed, *figures, job.key, record.versions))
        runs.append((*head, job.seed, job.key, round(record.seconds, 1), record.versions))
    return pd.DataFrame(lines, columns=list(COLUMNS)), pd.DataFrame(runs, columns=list(RUNS))


def keep(folder: Path, jobs: Sequence[Job], store: Store) -> pd.DataFrame:
    """Writes the table kept with the code, one CSV per experiment, and returns all of it.

    What was kept before stays where this store has nothing newer, as long as it was made with the
    settings the plan has now. So results of a run spread over several machines add up, and those
    of other settings are dropped.

    Args:
        folder: Where, such as `benchmarks/results`.
        jobs: All of the plan's.
        store: What has been run here.
    """
    order = {job.key: place for place, job in enumerate(jobs)}

    def merged(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
        stays = old["settings"].isin(list(order)) & ~old["settings"].isin(new["settings"])
        parts = [part for part in (old[stays], new) if len(part)] or [new]
        table = pd.concat(parts, ignore_index=True)
        return table.sort_values("settings", key=lambda s: s.map(order), kind="stable")

    new, new_runs = tidy(jobs, store)
    table, runs = merged(kept(folder), new), merged(_read(folder / "runs.csv", RUNS), new_runs)
    for experiment, part in table.groupby(table["experiment"].replace("extra", "e1")):
        # The versions are the same in every line of a job: runs.csv has them once.
        _write_csv(part.drop(columns="versions"), folder / f"{experiment}.csv")
    _write_csv(runs, folder / "runs.csv")
    return table


def kept(folder: Path) -> pd.DataFrame:
    """Returns the table kept with the code, with versions; empty where there is none.

    Examples:
        >>> len(kept(Path("nowhere")))
        0
    """
    parts = [_read(folder / f"{name}.csv", COLUMNS[:-1]) for name in TABLES]
    table = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    made = _read(folder / "runs.csv", RUNS).set_index("settings")["versions"]
    return table.assign(versions=table["settings"].map(made.to_dict()).fillna(""))


def _read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    if not path.exists():
        return pd.DataFrame({name: [] for name in columns})
    numbers = {"mean": [""], "deviation": [""], "seconds": [""]}
    texts = dict.fromkeys(("label", "method", "settings", "versions"), str)
    table = pd.read_csv(path, keep_default_na=False, na_values=numbers, dtype=texts)
    return table[list(columns)]


def _write_csv(table: pd.DataFrame, path: Path) -> None:
    write(path, table.to_csv(index=False, lineterminator="\n"))
