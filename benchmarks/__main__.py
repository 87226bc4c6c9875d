"""`python -m benchmarks`: run experiments, write their tables and the report."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Small products gain nothing from a second thread. Set before anything loads numpy or torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks import EXPERIMENTS, Plan, Store, run
from benchmarks.writing import write
from lapace.errors import LapaceError

RESULTS = Path("benchmarks/results")


def parser() -> argparse.ArgumentParser:
    """What may be said on the command line."""
    found = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    found.add_argument(
        "--experiment",
        nargs="+",
        choices=(*EXPERIMENTS, "e5"),
        default=list(EXPERIMENTS),
        help="e1 utility and centroids, e2 the benchmark, e3 actionability, e4 points of paths, "
        "e5 MNIST, e6 the illustration, clusters their number swept, extra tables the paper does "
        "not have (default: all but e5)",
    )
    found.add_argument("--pair", nargs="+", default=[], help="only these, such as wine-RF")
    found.add_argument("--repeats", type=int, help="at most this many of the plan's seeds")
    found.add_argument(
        "--recipe",
        choices=("default", "paper", "baselines", "both", "all"),
        default="all",
        help="which ways of training, both without and all with the baselines (default: all)",
    )
    found.add_argument("--quick", action="store_true", help="the plan's short version")
    found.add_argument("--render", action="store_true", help="run nothing, only write the tables")
    found.add_argument(
        "--plan",
        type=Path,
        default=Path("benchmarks/paper.toml"),
        help="what is run (default: benchmarks/paper.toml)",
    )
    found.add_argument(
        "--cache",
        type=Path,
        default=Path(".cache/benchmark"),
        help="where what was found is kept (default: .cache/benchmark)",
    )
    found.add_argument(
        "--out", type=Path, help="where tables go (default: benchmarks/results; quick: the cache)"
    )
    return found


RECIPES = {
    "both": ("default", "paper"),
    "all": ("default", "paper", "baselines"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is asked for and writes the tables, the pages and the report.

    They always show everything that has been run under the plan's settings, not only what this
    call ran.
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
        failed = []
        if not chosen.render:
            shown = out == RESULTS
            failed = run(jobs, store, say=_say, after=lambda: write(plan, store, out, shown=shown))
        write(plan, store, out, shown=out == RESULTS)
        if chosen.render:
            sys.stderr.write(f"Wrote the tables and pages in '{out}'.\n")
        if "e5" in chosen.experiment and not chosen.render:
            _digits(out, quick=chosen.quick)
    except LapaceError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for job in failed:
        _say(f"Failed: {job}")
    return 1 if failed else 0


def _digits(out: Path, *, quick: bool) -> None:
    """E5, which stands apart: pictures of digits, with tables and pages of its own."""
    from benchmarks.e5 import main_e5

    main_e5(out, quick=quick, say=_say)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
