"""Running jobs, keeping their results, and putting those into one table.

Every job's figures are one small file, named by the hash of its settings and written whole or not
at all, with the code, commit, environment and machine that made them. So a run that was killed
continues where it stopped, and a job whose code has changed is run again. The table kept with the
code is made of CSV files, one per experiment; figures of older code or settings stay there, and
are marked, until newer ones replace them.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from benchmarks.plan import Job
from benchmarks.provenance import Origin, code_of

Item = TypeVar("Item")
Result = TypeVar("Result")

COLUMNS = (
    "experiment", "pair", "recipe", "repeat", "seed", "method", "metric", "label", "mean",
    "deviation", "count", "settings",
)  # fmt: skip
ORIGIN = tuple(own.name for own in fields(Origin))
RUNS = ("experiment", "pair", "recipe", "seed", "settings", "seconds", *ORIGIN)
TABLES = ("grid", "e1", "e2", "e3", "e4", "clusters", "tuning", "privacy")
INSTANCES = "instances.csv.gz"
PAIRED = ("pair", "recipe", "seed", "method", "metric", "values")  # a line of instances.csv.gz


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
        values: Of each instance, for paired comparisons; NaN for an instance without one.
    """

    metric: str
    value: float
    count: int
    label: str = ""
    method: str = ""
    deviation: float = math.nan
    values: tuple[float, ...] = ()

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
    """The figures of one job, the seconds it took, and where they come from."""

    measures: list[Measure]
    seconds: float = 0.0
    origin: Origin = field(default_factory=Origin)


def write(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def cached(path: Path, make: Callable[[], Any]) -> Any:
    """Returns what a JSON file holds; makes and keeps it first where there is none."""
    if not path.exists():
        write(path, json.dumps(make()))
    return json.loads(path.read_text(encoding="utf-8"))


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
        ...     store.load(job).measures[0].value, job in store  # of no known code
        (0.9, False)
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
            {name: _plain(v) for name, v in asdict(m).items() if name != "values" or v}
            for m in record.measures
        ]
        write(self.path(job), json.dumps(data, indent=1, allow_nan=False))

    def load(self, job: Job) -> Record | None:
        """Returns the figures of a job; None if it has not been run."""
        try:
            data = json.loads(self.path(job).read_text(encoding="utf-8"))
            if data.pop("settings") != job.settings:  # two settings with one hash
                return None
            data["measures"] = [
                Measure(**{name: _number(v) for name, v in line.items()})
                for line in data["measures"]
            ]
            data["origin"] = Origin(**data["origin"])
            return Record(**data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def __contains__(self, job: Job) -> bool:
        """Whether a job has been run with the code there is now."""
        record = self.load(job)
        return record is not None and record.origin.code == code_of(job.experiment, job.recipe)


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it: no numpy numbers, no NaN."""
    if isinstance(value, tuple):
        return [_plain(float(f"{v:.5g}")) for v in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_number, value))
    return math.nan if value is None else value


# ------------------------------------------------------------------------------------------------
# Running


def measured(job: Job) -> Iterable[Measure]:
    """Returns the figures of a job's experiment."""
    from benchmarks import e1, e2, e3, e4, privacy, readings

    kinds: dict[str, Callable[[Job], Iterable[Measure]]] = {
        "grid": readings.measure,
        "tuning": e2.measure,
        "privacy": privacy.measure,
        "e2": e2.measure,
        "e3": e3.measure,
        "e4": e4.measure,
        "clusters": e2.sweep,
    }
    return kinds.get(job.experiment, e1.measure)(job)


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


def collected(
    work: Callable[[Item], Result], items: Sequence[Item], workers: int
) -> dict[Item, Result]:
    """Does some work, prints how it went, and returns results, in order, less what failed."""
    found = {}
    for item, result, error in shared_out(work, items, workers):
        print(*item, error or "done", flush=True)
        if not error:
            found[item] = result
    return {item: found[item] for item in items if item in found}


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

    Jobs of one pair, side and seed go to one process, one after the other: they share the
    classifier, the retrained ones and the fit.

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
            apart = job.experiment if job.experiment in ("grid", "tuning") else ""
            clusters = job.protocol.n_prototypes if job.experiment == "clusters" else 0
            group = (job.pair.name, job.seed, job.recipe, apart, clusters)
            groups.setdefault(group, []).append(job)
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
        with warnings.catch_warnings():  # a side whose report fails is measured, not used
            warnings.filterwarnings("ignore", message="The report of this explainer fails")
            _, took, error = _tried(partial(_run_job, store=store, measure=measure), job)
        lines.append(error or f"{took:.0f} s")
    return lines


def _run_job(job: Job, store: Store, measure: Callable[[Job], Iterable[Measure]]) -> float:
    """Runs one job, keeps its figures, and returns the seconds it took."""
    start = time.perf_counter()
    measures = list(measure(job))
    seconds = time.perf_counter() - start
    store.save(job, Record(measures, seconds, Origin.here(job.experiment, job.recipe)))
    return seconds


# ------------------------------------------------------------------------------------------------
# One table


def tidy(jobs: Sequence[Job], store: Store) -> dict[str, pd.DataFrame]:
    """Returns all figures, one line per job, method, metric and label; the jobs; and instances.

    Examples:
        >>> found = tidy([], Store(Path("nowhere")))
        >>> tuple(found["figures"]) == COLUMNS, tuple(found["runs"]) == RUNS
        (True, True)
    """
    lines, runs, paired = [], [], []
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
            lines.append((*head, repeat, job.seed, *figures, job.key))
            if m.values and job.experiment == "e2":
                texts = " ".join("" if math.isnan(v) else f"{v:.4g}" for v in m.values)
                paired.append((*head[1:], job.seed, m.method, m.metric, texts))
        origin = asdict(record.origin).values()
        runs.append((*head, job.seed, job.key, round(record.seconds, 1), *origin))
    tables = {"figures": (lines, COLUMNS), "runs": (runs, RUNS), "instances": (paired, PAIRED)}
    return {k: pd.DataFrame(rows, columns=list(names)) for k, (rows, names) in tables.items()}


def keep(folder: Path, jobs: Sequence[Job], store: Store) -> pd.DataFrame:
    """Writes the table kept with the code, one CSV per experiment, and returns all of it.

    Figures kept before stay where the plan has their settings and nothing newer is known, so
    results of a run spread over several machines add up. Those of settings that the plan no longer
    has stay, marked on pages, until their experiment has been run again.

    Args:
        folder: Where, such as `benchmarks/results`.
        jobs: All of the plan's.
        store: What has been run here.
    """
    order = {job.key: place for place, job in enumerate(jobs)}
    new = tidy(jobs, store)

    def merged(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
        planned = old["settings"].isin(list(order))
        renewed = old["experiment"].isin(new["experiment"])
        stays = ~old["settings"].isin(new["settings"]) & (planned | ~renewed)
        parts = [part for part in (old[stays], new) if len(part)] or [new]
        table = pd.concat(parts, ignore_index=True)
        place = table["settings"].map(order).fillna(len(order))
        return table.assign(place=place).sort_values("place", kind="stable").drop(columns="place")

    table = merged(kept(folder), new["figures"])
    runs = merged(_read(folder / "runs.csv", RUNS), new["runs"])
    for experiment, part in table.groupby(table["experiment"].replace("extra", "e1")):
        _write_csv(part, folder / f"{experiment}.csv")
    _write_csv(runs, folder / "runs.csv")
    if len(new["instances"]):
        old, keys = kept_instances(folder), list(PAIRED[:-1])
        both = pd.concat([old, new["instances"]]).drop_duplicates(keys, keep="last")
        slot, e2 = list(PAIRED[:4]), table[table["experiment"] == "e2"]
        shown = pd.MultiIndex.from_frame(both[slot]).isin(pd.MultiIndex.from_frame(e2[slot]))
        both = both[shown]
        text = both.sort_values(keys).to_csv(index=False, lineterminator="\n")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / INSTANCES).write_bytes(gzip.compress(text.encode(), mtime=0))
    return table


def kept(folder: Path) -> pd.DataFrame:
    """Returns the table kept with the code; empty where there is none.

    Examples:
        >>> len(kept(Path("nowhere")))
        0
    """
    parts = [_read(folder / f"{name}.csv", COLUMNS) for name in TABLES]
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


def kept_runs(folder: Path) -> pd.DataFrame:
    """Returns the jobs whose figures are kept with the code, and where they come from."""
    return _read(folder / "runs.csv", RUNS)


def kept_instances(folder: Path) -> pd.DataFrame:
    """Returns E2's figures of single instances; `values` are numbers between spaces."""
    return _read(folder / INSTANCES, PAIRED)


def _read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    if not path.exists():
        return pd.DataFrame({name: [] for name in columns})
    numbers = {"mean": [""], "deviation": [""], "seconds": [""]}
    texts = dict.fromkeys(("label", "method", "settings", "values", *ORIGIN), str)
    table = pd.read_csv(path, keep_default_na=False, na_values=numbers, dtype=texts)
    return table.reindex(columns=list(columns), fill_value="")


def _write_csv(table: pd.DataFrame, path: Path) -> None:
    write(path, table.to_csv(index=False, lineterminator="\n"))
