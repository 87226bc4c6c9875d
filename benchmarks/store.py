"""Keeping what each job found, and putting it into one table.

Every job's figures are one small file, named by the hash of its settings and written whole or not
at all. So a run that was killed goes on where it stopped, and results of other settings stay what
they are: files nobody asks for.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.plan import Job
from lapace.table import write_file, write_whole

__all__ = ["COLUMNS", "Found", "Measure", "Record", "Store", "keep", "kept", "tidy", "versions"]

COLUMNS = (
    "experiment", "pair", "recipe", "repeat", "seed", "method", "metric", "label", "mean",
    "deviation", "count", "settings", "versions",
)  # fmt: skip
RUNS = ("experiment", "pair", "recipe", "seed", "settings", "seconds", "open", "versions")
PACKAGES = ("numpy", "scikit-learn", "torch")


@dataclass(frozen=True)
class Measure:
    """One figure.

    Attributes:
        metric: What it is.
        value: Shares run from 0 to 1; NaN where there is nothing to measure.
        count: Of how many rows, paths, instances or prototypes.
        label: The class, prototype or setting it is about; empty for all of them.
        method: Whose answers it is about; empty where it is about none.
        deviation: Over what was counted, where that was measured.

    Examples:
        >>> Measure("agreement", 0.95, 400, "approved").label
        'approved'
    """

    metric: str
    value: float
    count: int
    label: str = ""
    method: str = ""
    deviation: float = math.nan


@dataclass(frozen=True)
class Found:
    """What a piece of work found, and what it could not do here.

    Examples:
        >>> Found([Measure("validity", 1.0, 100)], {"DiCE": "needs dice-ml"}).open
        {'DiCE': 'needs dice-ml'}
    """

    measures: list[Measure]
    open: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """What one job found.

    Attributes:
        measures: Its figures.
        seconds: What it took, all in all.
        versions: Of what it was run with, as text.
        open: Methods that could not be run here, and why. The job stays to be finished where they
            can be; what it found so far is kept and not run again.

    Examples:
        >>> Record([Measure("accuracy", 0.9, 100)], seconds=12.0, versions="lapace 0.1.0").seconds
        12.0
    """

    measures: list[Measure]
    seconds: float
    versions: str
    open: dict[str, str] = field(default_factory=dict)


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
        >>> from benchmarks.plan import Limits, Pair, Protocol
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
        return self.folder / job.experiment / name

    def save(self, job: Job, record: Record) -> None:
        """Keeps what a job found."""
        path = self.path(job)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = {"settings": job.settings, **asdict(record)}
        data["measures"] = [_told(m) for m in record.measures]
        text = json.dumps(data, indent=1, default=_plain, allow_nan=False)
        write_whole(path, lambda p: p.write_text(text, encoding="utf-8"))

    def load(self, job: Job) -> Record | None:
        """What a job found, finished or not; None if it is still to be run."""
        try:
            data = json.loads(self.path(job).read_text(encoding="utf-8"))
            if data["settings"] != job.settings:  # two settings with one hash: most unlikely
                return None
            found = [
                Measure(**{**line, "value": math.nan if line["value"] is None else line["value"]})
                for line in data["measures"]
            ]
            return Record(found, data["seconds"], data["versions"], data.get("open", {}))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def __contains__(self, job: Job) -> bool:
        """Whether a job is done, all of it."""
        record = self.load(job)
        return record is not None and not record.open


def _told(measure: Measure) -> dict[str, Any]:
    """A figure as JSON knows it: no NaN, and nothing that is not said."""
    value = float(measure.value)
    line: dict[str, Any] = {"metric": measure.metric, "value": value, "count": int(measure.count)}
    if not math.isfinite(value):
        line["value"] = None
    if math.isfinite(measure.deviation):
        line["deviation"] = float(measure.deviation)
    return line | {k: v for k in ("label", "method") if (v := getattr(measure, k))}


def _plain(value: Any) -> Any:
    """Numpy's numbers as Python's."""
    return value.item() if isinstance(value, np.generic) else str(value)


# ------------------------------------------------------------------------------------------------
# One table


def tidy(jobs: Sequence[Job], store: Store) -> pd.DataFrame:
    """Every figure there is of some jobs: one line per job, method, metric and label.

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
        head = (job.experiment, job.pair.name, job.recipe, repeat, job.seed)
        for m in record.measures:
            # Six digits are more than any figure here is good for, and keep the file small.
            value, deviation = float(f"{m.value:.6g}"), float(f"{m.deviation:.3g}")
            figures = (m.method, m.metric, m.label, value, deviation, m.count)
            lines.append((*head, *figures, job.key, _about(job, record)))
    return pd.DataFrame(lines, columns=list(COLUMNS))


def runs(jobs: Sequence[Job], store: Store) -> pd.DataFrame:
    """What was run: one line per job, with what is still open and the versions it ran with."""
    lines = []
    for job in jobs:
        record = store.load(job)
        if record is not None:
            why = "; ".join(f"{name}: {reason}" for name, reason in record.open.items())
            head = (job.experiment, job.pair.name, job.recipe, job.seed, job.key)
            lines.append((*head, round(record.seconds, 1), why, _about(job, record)))
    return pd.DataFrame(lines, columns=list(RUNS))


def _about(job: Job, record: Record) -> str:
    return f"lapace {job.settings['lapace']} r{job.settings['revision']}, {record.versions}"


# ------------------------------------------------------------------------------------------------
# What is kept with the code


def keep(folder: Path, jobs: Sequence[Job], store: Store) -> pd.DataFrame:
    """Writes the text kept with the code, one file an experiment, and returns all of it.

    What was kept before stays where this store has nothing newer, as long as it was made with the
    settings the plan has now; so results of a run spread over several machines add up, and those
    of other settings go.

    Args:
        folder: Where, such as `benchmarks/results`.
        jobs: All the plan has.
        store: What has been run here.
    """
    new, new_runs = tidy(jobs, store), runs(jobs, store)
    keys = {job.key for job in jobs}
    old, old_runs = kept(folder), _read(folder / "runs.csv", RUNS)
    table = pd.concat([_older(old, new, keys), new], ignore_index=True)
    done = pd.concat([_older(old_runs, new_runs, keys), new_runs], ignore_index=True)
    order = {job.key: place for place, job in enumerate(jobs)}
    table, done = (
        frame.sort_values("settings", key=lambda s: s.map(order), kind="stable", ignore_index=True)
        for frame in (table, done)
    )
    folder.mkdir(parents=True, exist_ok=True)
    for experiment, part in table.groupby(table["experiment"].replace("extra", "e1")):
        # The versions are the same in every line of a job: runs.csv has them once.
        write_file(part.drop(columns="versions"), folder / f"{experiment}.csv")
    write_file(done, folder / "runs.csv")
    return table


def kept(folder: Path) -> pd.DataFrame:
    """What is kept as text, with its versions; empty where nothing is.

    Examples:
        >>> len(kept(Path("nowhere")))
        0
    """
    names = ("e1", "e2", "e3", "e4", "clusters", "e6")
    parts = [_read(folder / f"{name}.csv", COLUMNS[:-1]) for name in names]
    full = [part for part in parts if len(part)] or parts[:1]
    table = pd.concat(full, ignore_index=True)
    about = _read(folder / "runs.csv", RUNS).set_index("settings")["versions"]
    return table.assign(versions=table["settings"].map(about.to_dict()).fillna(""))


def _read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    numbers = {"mean": [""], "deviation": [""], "seconds": [""]}
    texts = dict.fromkeys(("label", "method", "settings", "open", "versions"), str)
    if not path.exists():
        return pd.DataFrame({name: [] for name in columns})
    table = pd.read_csv(path, keep_default_na=False, na_values=numbers, dtype=texts)
    return table[list(columns)]


def _older(old: pd.DataFrame, new: pd.DataFrame, keys: set[str]) -> pd.DataFrame:
    """Lines of jobs the plan still has, that are not there anew."""
    stays = old["settings"].isin(keys) & ~old["settings"].isin(new["settings"])
    return old[stays]
