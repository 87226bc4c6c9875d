"""Running jobs: one after the other here, or shared among processes."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from typing import Any, TypeAlias

from benchmarks.plan import Job, Reading
from benchmarks.store import Measure, Record, Store, versions

__all__ = ["measured", "run", "run_among", "run_job"]

Say: TypeAlias = Callable[[str], None]
Measuring: TypeAlias = Callable[[Job, Store], Record]


def measured(job: Job, store: Store) -> Record:
    """What a job's experiment finds. Methods an unfinished record has are not run again."""
    from benchmarks import e1, e2, e3, e4, e6

    known = store.load(job)
    done: list[Measure] = [] if known is None else known.measures
    if job.experiment in ("e2", "e3"):
        return {"e2": e2, "e3": e3}[job.experiment].measure(job, done)
    if job.experiment == "e6":
        return Record(e6.measure(job, store.path(job).with_suffix(".png")))
    kinds = {"e4": e4.measure, "clusters": e2.sweep, "readings": e1.readings, "sources": e1.sources}
    return Record(list(kinds.get(job.experiment, e1.measure)(job)))


def run_job(job: Job, store: Store, *, measure: Measuring = measured) -> str:
    """Runs one job, unless it is done, and keeps what it finds.

    Raises whatever measuring raises; nothing is kept then.

    Args:
        job: What to run.
        store: Where results are kept.
        measure: Finds a job's figures; by default its experiment.

    Returns:
        One line on how it went.
    """
    if job in store:
        return f"{job}: already done"
    before = store.load(job)
    start = time.perf_counter()
    found = measure(job, store)
    seconds = time.perf_counter() - start + (before.seconds if before else 0.0)
    store.save(job, replace(found, seconds=seconds, versions=versions(job)))
    rest = "".join(f"; not run: {name}, {reason}" for name, reason in found.not_run.items())
    return f"{job}: {_duration(seconds)}{rest}"


def run(
    jobs: Sequence[Job],
    store: Store,
    *,
    say: Say,
    after: Callable[[], None] = lambda: None,
    measure: Measuring = measured,
) -> list[Job]:
    """Runs the jobs that are not done, one after the other.

    Args:
        jobs: All that are wanted.
        store: Where results are kept.
        say: Called with a line at a time on what is going on.
        after: Called after every job that was run.
        measure: Finds a job's figures; by default its experiment.

    Returns:
        The jobs that failed. Nothing is kept of them, so they are tried again next time; so are
        methods that could not be run here.
    """
    left = [job for job in jobs if job not in store]
    done = len(jobs) - len(left)
    say(f"{done} of {len(jobs)} jobs are already done.")
    failed = []
    for number, job in enumerate(left, start=1):
        say(f"[{done + number}/{len(jobs)}] {job} ...")
        try:
            line = run_job(job, store, measure=measure)
        except Exception:  # one job's failure must not cost the others
            say(traceback.format_exc())
            failed.append(job)
            continue
        say(f"    {line.removeprefix(f'{job}: ')}")
        after()
    return failed


def run_among(
    workers: int, jobs: Sequence[Job], store: Store, *, say: Say, seconds: float = math.inf
) -> list[Job]:
    """Runs the jobs that are not done in several processes.

    Jobs of one pair and seed go to one process, one after the other: they share the classifier, the
    retrained ones and fits.

    Args:
        workers: How many processes.
        jobs: All that are wanted.
        store: Where results are kept.
        say: Called with a line at a time on what is going on.
        seconds: After which no further job is begun.

    Returns:
        The jobs that failed.
    """
    end = time.time() + seconds
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        if job not in store:
            reading = job.details if isinstance(job.details, Reading) else None  # a fit of its own
            groups.setdefault((job.pair.name, job.seed, reading), []).append(job)
    say(f"{len(jobs) - sum(map(len, groups.values()))} of {len(jobs)} jobs are already done.")
    failed = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(_run_group, group, store, end): group for group in groups.values()}
        for future in as_completed(running):
            for job, line in future.result():
                say(line)
                failed += [job] if "Traceback" in line else []
    return failed


def _run_group(jobs: Sequence[Job], store: Store, end: float) -> list[tuple[Job, str]]:
    """Runs jobs that share a fit; what each says, or the traceback of its failure."""
    lines = []
    for job in jobs:
        if time.time() > end:
            lines.append((job, f"{job}: not begun, the time was up"))
            continue
        try:
            lines.append((job, run_job(job, store)))
        except Exception:  # one job's failure must not cost the others
            lines.append((job, f"{job}: {traceback.format_exc()}"))
    return lines


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
