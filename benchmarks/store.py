"""Keeping the results of jobs, and putting them into one table.

Every job's figures are one small file, named by the hash of its settings and written whole or not
at all. So a run that was killed continues where it stopped, and results of other settings are left
alone. The table kept with the code is made of CSV files, one per experiment.
"""

from __future__ import annotations

import csv
import fcntl
import json
import math
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import lapace
from benchmarks.plan import Job

__all__ = [
    "COLUMNS",
    "Measure",
    "Record",
    "Store",
    "append",
    "keep",
    "kept",
    "tidy",
    "versions",
    "write",
]

COLUMNS = (
    "experiment", "pair", "recipe", "repeat", "seed", "method", "metric", "label", "mean",
    "deviation", "count", "settings", "versions",
)  # fmt: skip
RUNS = ("experiment", "pair", "recipe", "seed", "settings", "seconds", "not_run", "versions")


@dataclass(frozen=True)
class Measure:
    """One figure.

    Attributes:
        metric: What it is.
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

    @property
    def figures(self) -> tuple[str, str, int]:
        """Its value, deviation and count as they are written."""
        return f"{self.value:.6g}", f"{self.deviation:.6g}", self.count

    @classmethod
    def of(cls, metric: str, values: Any, label: str = "", method: str = "") -> Measure:
        """The mean, number and standard deviation of some values.

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
    """What one job found.

    Attributes:
        measures: Its figures.
        not_run: Methods that could not be run here, and why. The job stays to be finished where
            they can be; what it found so far is kept and not run again.
        seconds: What it took, all in all.
        versions: What it was run with.
    """

    measures: list[Measure]
    not_run: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    versions: str = ""


def versions(job: Job) -> str:
    """What a job's figures are made with, in one line.

    Examples:
        >>> from benchmarks.plan import Plan
        >>> versions(Plan().jobs()[0]).split()[0]
        'lapace'
    """
    packages = [
        f"{name} {version(name).partition('+')[0]}" for name in ("numpy", "scikit-learn", "torch")
    ]
    code = f"lapace {lapace.__version__} r{job.revision}"
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
        >>> from benchmarks.plan import Plan
        >>> (job,) = Plan().jobs()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store(Path(folder))
        ...     store.save(job, Record([Measure("accuracy", 0.9, 100)]))
        ...     store.load(job).measures[0].value, job in store
        (0.9, True)
    """

    folder: Path

    def path(self, job: Job) -> Path:
        """Where a job's figures are kept."""
        name = f"{job.pair.name}.{job.recipe}.{job.seed}.{job.key}.json"
        return self.folder / job.experiment / name

    def save(self, job: Job, record: Record) -> None:
        """Keeps what a job found."""
        data = {"settings": job.settings, **asdict(record)}
        data["measures"] = [
            {name: _plain(value) for name, value in asdict(m).items()} for m in record.measures
        ]
        write(self.path(job), json.dumps(data, indent=1, allow_nan=False))

    def load(self, job: Job) -> Record | None:
        """What a job found, finished or not; None if it has not been run."""
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
        """Whether all of a job is done."""
        record = self.load(job)
        return record is not None and not record.not_run


def _plain(value: Any) -> Any:
    """A value as JSON has it: no numpy numbers, no NaN."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ------------------------------------------------------------------------------------------------
# One table


def tidy(jobs: Sequence[Job], store: Store) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All figures of some jobs, one line per job, method, metric and label; and the jobs run.

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
        reasons = "; ".join(f"{name}: {reason}" for name, reason in record.not_run.items())
        about = (round(record.seconds, 1), reasons, record.versions)
        runs.append((*head, job.seed, job.key, *about))
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
    """The table kept with the code, with versions; empty where there is none.

    Examples:
        >>> len(kept(Path("nowhere")))
        0
    """
    names = ("e1", "readings", "sources", "e2", "e3", "e4", "clusters", "e6")
    parts = [_read(folder / f"{name}.csv", COLUMNS[:-1]) for name in names]
    table = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    made = _read(folder / "runs.csv", RUNS).set_index("settings")["versions"]
    return table.assign(versions=table["settings"].map(made.to_dict()).fillna(""))


def _read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    if not path.exists():
        return pd.DataFrame({name: [] for name in columns})
    numbers = {"mean": [""], "deviation": [""], "seconds": [""]}
    texts = dict.fromkeys(("label", "method", "settings", "not_run", "versions"), str)
    table = pd.read_csv(path, keep_default_na=False, na_values=numbers, dtype=texts)
    return table[list(columns)]


def append(path: Path, columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Adds lines to a table, whole, whoever else is writing; a new one begins with its columns."""
    lines = list(lines)  # measured, perhaps for long, before others have to wait
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        table = csv.writer(file, lineterminator="\n")
        if not file.tell():
            table.writerow(columns)
        table.writerows(lines)


def _write_csv(table: pd.DataFrame, path: Path) -> None:
    write(path, table.to_csv(index=False, lineterminator="\n"))
