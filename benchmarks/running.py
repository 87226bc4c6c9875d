"""Running jobs: one after the other here, or anywhere a process can be started.

`jobs(plan)` says what there is to run, `run_job(job, store)` runs one of them unless it is done
already. Both take and give plain data, so a pool of processes needs nothing more:

    with ProcessPoolExecutor(16) as pool:
        for line in pool.map(partial(run_job, store=Store(Path("cache"))), jobs(plan)):
            print(line)
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from benchmarks.plan import Job, Plan
from benchmarks.store import Found, Measure, Record, Store, versions

__all__ = ["Say", "jobs", "run", "run_job", "time_left", "work"]

Say: TypeAlias = Callable[[str], None]


Work: TypeAlias = Callable[[Job], "list[Measure] | Found"]


def jobs(plan: Plan, **chosen: Any) -> list[Job]:
    """What there is to run: `Plan.jobs`, as a function.

    Examples:
        >>> from benchmarks.plan import Limits, Protocol
        >>> [str(job) for job in jobs(Plan((), Protocol(), Limits()))]
        ['e6: the illustration']
    """
    return plan.jobs(**chosen)


def work(job: Job, store: Store) -> list[Measure] | Found:
    """A job's experiment. What an unfinished record has already is not done again."""
    from benchmarks import e1, e2, e3, e4, e6

    before = store.load(job)
    if job.task == "e1":
        return e1.measure(job)
    if job.task == "e2":
        return e2.measure(job, [] if before is None else before.measures)
    if job.task == "e3":
        return e3.measure(job, [] if before is None else before.measures)
    if job.task == "e4":
        return e4.measure(job)
    if job.task == "e6":
        return e6.measure(job, store.path(job).with_suffix(".png"))
    return e2.sweep(job)


def run_job(job: Job, store: Store, *, do: Work | None = None) -> str:
    """Runs one job, unless it is done already, and keeps what it found.

    Raises whatever the work raises; nothing is kept of it then.

    Args:
        job: What to run.
        store: Where results are kept. Any number of processes may share it.
        do: What a job is; by default its experiment.

    Returns:
        One line on how it went.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from benchmarks.plan import Limits, Pair, Protocol
        >>> job = Job(Pair("wine-RF", "wine", "forest"), "default", 1, Protocol(), Limits())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store(Path(folder))
        ...     run_job(job, store, do=lambda job: []), run_job(job, store)
        ('wine-RF, default recipe, seed 1: 0 s', 'wine-RF, default recipe, seed 1: done already')
    """
    if job in store:
        return f"{job}: done already"
    before = store.load(job)
    begin = time.perf_counter()
    found = work(job, store) if do is None else do(job)
    if isinstance(found, list):
        found = Found(found)
    seconds = time.perf_counter() - begin + (before.seconds if before else 0.0)
    store.save(job, Record(found.measures, seconds, versions(), found.open))
    left = "".join(f"; still open: {name}, {why}" for name, why in found.open.items())
    return f"{job}: {_duration(seconds)}{left}"


def run(
    jobs: Sequence[Job],
    store: Store,
    *,
    say: Say,
    after: Callable[[], None] | None = None,
    work: Work | None = None,
) -> list[Job]:
    """Runs what has not been run yet, one job after the other.

    Args:
        jobs: All that is wanted.
        store: Where results are kept.
        say: Told what is going on, a line at a time.
        after: Called after every job that was run.
        work: What a job is; by default its experiment.

    Returns:
        The jobs that failed. They are not kept, so they are tried again next time; so are those of
        which something could not be run here, but for what they have found.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from benchmarks.plan import Limits, Pair, Protocol
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
        try:
            line = run_job(job, store, do=work)
        except Exception:  # one job's trouble must not cost the others
            say(traceback.format_exc())
            failed.append(job)
            continue
        rest = time_left(jobs, left[number + 1 :], store)
        say(f"    {line.rpartition(f'{job}: ')[2]}; about {_duration(rest)} left.")
        if after is not None:
            after()
    return failed


def time_left(jobs: Iterable[Job], rest: Iterable[Job], store: Store) -> float:
    """Seconds the rest will take, going by what other repeats of the same took.

    Where there are none, by what the experiment's recipe took on average, or any job at all.
    """
    known = {job: r.seconds for job in jobs if (r := store.load(job)) is not None}

    def guess(job: Job) -> float:
        for like in (
            [s for j, s in known.items() if _like(j) == _like(job) and j.pair == job.pair],
            [s for j, s in known.items() if _like(j) == _like(job)],
            list(known.values()),
        ):
            if like:
                return sum(like) / len(like)
        return 0.0

    return sum(map(guess, rest))


def _like(job: Job) -> tuple[str, str]:
    return job.task, job.recipe


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
