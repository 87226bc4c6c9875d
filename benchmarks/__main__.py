"""`python -m benchmarks`: run experiments, write their tables and pages."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

# Small products gain nothing from a second thread. Set before anything loads numpy or torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.plan import EXPERIMENTS, Plan
from benchmarks.running import run, run_among
from benchmarks.store import Store
from benchmarks.writing import write_all
from lapace import LapaceError

RESULTS = Path("benchmarks/results")
RECIPES = {"both": ("default", "paper"), "all": ("default", "paper", "baselines")}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    found.add_argument(
        "--experiment",
        nargs="+",
        choices=(*EXPERIMENTS, "e5"),
        default=list(EXPERIMENTS),
        help="e1 utility and centroids, e2 the comparison of methods, e3 actionability, e4 points "
        "along paths, e5 MNIST, e6 the illustration, clusters their number swept, readings of what "
        "the paper leaves open, sources of the gap of its model, extra E1 on tables the paper does "
        "not have (default: all but e5)",
    )
    found.add_argument("--pair", nargs="+", default=[], help="only these, such as wine-RF")
    found.add_argument("--repeats", type=int, help="at most this many of the plan's seeds")
    found.add_argument(
        "--recipe",
        choices=("default", "paper", "baselines", *RECIPES),
        default="all",
        help="both: the explainers of both recipes; all: the baselines too (default: all)",
    )
    found.add_argument("--workers", type=int, default=1, help="processes that share the jobs")
    found.add_argument(
        "--seconds", type=float, default=math.inf, help="begin no job after so many; needs workers"
    )
    found.add_argument("--quick", action="store_true", help="the plan's short version")
    found.add_argument("--render", action="store_true", help="run nothing, only write the pages")
    plan, cache = Path("benchmarks/paper.toml"), Path(".cache/benchmark")
    found.add_argument("--plan", type=Path, default=plan, help=f"what is run (default: {plan})")
    found.add_argument(
        "--cache", type=Path, default=cache, help=f"where results are kept (default: {cache})"
    )
    found.add_argument(
        "-o", "--out", type=Path, help=f"where pages go (default: {RESULTS}; quick: the cache)"
    )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is asked for and writes tables and pages.

    They always show everything that has been run with the plan's settings, not only what this call
    ran.

    Returns:
        0 when all went well, 1 when a job failed, 2 for a mistake in the arguments.
    """
    chosen = parser().parse_args(arguments)
    try:
        plan = Plan.read(chosen.plan, quick=chosen.quick)
        jobs = plan.jobs(
            experiments=[name for name in chosen.experiment if name != "e5"],
            pairs=chosen.pair,
            recipes=RECIPES.get(chosen.recipe, (chosen.recipe,)),
            repeats=chosen.repeats,
        )
        store = Store(chosen.cache)
        out = chosen.out or (chosen.cache / "quick" if plan.is_quick else RESULTS)
        write = lambda: write_all(plan, store, out, shown=out == RESULTS)  # noqa: E731
        if chosen.render:
            failed = []
        elif chosen.workers > 1:
            failed = run_among(chosen.workers, jobs, store, say=_say, seconds=chosen.seconds)
        else:
            failed = run(jobs, store, say=_say, after=_seldom(write))
        write()
        if chosen.render:
            sys.stderr.write(f"Wrote the tables and pages in '{out}'.\n")
        elif "e5" in chosen.experiment:
            from benchmarks.e5 import main_e5

            main_e5(out, quick=chosen.quick, say=_say)
    except LapaceError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for job in failed:
        _say(f"Failed: {job}")
    return 1 if failed else 0


def _seldom(call: Callable[[], None], seconds: float = 60.0) -> Callable[[], None]:
    """The call, left out where the last was a short while ago: pictures take seconds."""
    last = time.monotonic()

    def seldom() -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            call()
            last = time.monotonic()

    return seldom


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
