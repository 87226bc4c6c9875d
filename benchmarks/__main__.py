"""`python -m benchmarks`: run experiments, write their tables and pages."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

# Small products gain nothing from a second thread. Set before anything loads numpy or torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.e5 import main_e5
from benchmarks.jobs import Store, run
from benchmarks.plan import EXPERIMENTS, Plan, Recipe
from benchmarks.rendering import write_all
from lapace import LapaceError

RESULTS, DOCS = Path("benchmarks/results"), Path("docs")


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    command = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    command.add_argument(
        "--experiment",
        nargs="+",
        choices=(*EXPERIMENTS, "e5"),
        default=list(EXPERIMENTS),
        help="e1 utility and centroids, e2 the comparison of methods, e3 actionability, e4 points "
        "along paths, e5 MNIST, clusters their number swept, grid of readings of what the paper "
        "leaves open, tuning of baselines, privacy attacks, extra tables the paper lacks (default: "
        "all but e5)",
    )
    command.add_argument("--pair", nargs="+", default=[], help="only these, such as wine-RF")
    command.add_argument("--repeats", type=int, help="at most this many of the plan's seeds")
    sides = get_args(Recipe)
    command.add_argument("--recipe", nargs="+", choices=sides, default=sides, help="only these")
    command.add_argument("--workers", type=int, default=1, help="processes that share the jobs")
    command.add_argument("--seconds", type=float, default=math.inf, help="begin no job after these")
    command.add_argument("--quick", action="store_true", help="the plan's short version")
    command.add_argument("--render", action="store_true", help="run nothing, only write the pages")
    plan, cache = Path("benchmarks/paper.toml"), Path(".cache/benchmark")
    command.add_argument("--plan", type=Path, default=plan, help=f"what is run (default: {plan})")
    command.add_argument(
        "--cache", type=Path, default=cache, help=f"where results are kept (default: {cache})"
    )
    command.add_argument(
        "-o", "--out", type=Path, help=f"where pages go (default: {RESULTS}; quick: the cache)"
    )
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is asked for and writes tables and pages.

    They always show everything that has been run with the plan's settings, not only what this call
    ran.

    Returns:
        0 when all went well, 1 when a job failed, 2 for a mistake in the arguments.
    """
    chosen, failed = parser().parse_args(arguments), 0
    try:
        plan = Plan.read(chosen.plan, quick=chosen.quick)
        store = Store(chosen.cache)
        out = chosen.out or (chosen.cache / "quick" if plan.is_quick else RESULTS)
        shown = out == RESULTS
        if not chosen.render:
            jobs = plan.jobs(
                experiments=[name for name in chosen.experiment if name != "e5"],
                pairs=chosen.pair,
                recipes=chosen.recipe,
                repeats=chosen.repeats,
            )
            limits = {"workers": chosen.workers, "seconds": chosen.seconds}
            failed += len(run(jobs, store, say=_say, **limits))
            if "e5" in chosen.experiment:
                failed += main_e5(out, DOCS if shown else out, quick=chosen.quick, say=_say)
        write_all(plan, store, out, shown=shown)
    except LapaceError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    _say(f"Wrote the tables and pages in '{out}'.")
    return 1 if failed else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
