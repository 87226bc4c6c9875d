"""`python -m lapace.benchmark`: run experiments, write their tables."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Small products gain nothing from a second thread. Set before anything loads numpy or torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from lapace.benchmark import Plan, Store, brief, into, markdown, run, tidy
from lapace.errors import LapaceError
from lapace.table import write_file, write_whole

RESULTS = Path("benchmarks/results")


def parser() -> argparse.ArgumentParser:
    """What may be said on the command line."""
    found = argparse.ArgumentParser("python -m lapace.benchmark", description=__doc__)
    found.add_argument(
        "--experiment",
        nargs="+",
        choices=("e1", "extra"),
        default=["e1", "extra"],
        help="e1: the paper's eight pairs; extra: tables it does not have (default: both)",
    )
    found.add_argument("--pair", nargs="+", default=[], help="only these, such as wine-RF")
    found.add_argument("--repeats", type=int, help="at most this many of the plan's seeds")
    found.add_argument("--recipe", choices=("default", "paper", "both"), default="both")
    found.add_argument("--quick", action="store_true", help="the plan's short version")
    found.add_argument("--render", action="store_true", help="run nothing, only write the tables")
    found.add_argument("--plan", type=Path, default=Path("benchmarks/paper.toml"))
    found.add_argument("--cache", type=Path, default=Path(".cache/benchmark"))
    found.add_argument(
        "--out", type=Path, help="where tables go (default: benchmarks/results; quick: the cache)"
    )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is asked for and writes e1.csv, e1.md and, in the cache, e1.parquet.

    The tables always show everything that has been run under the plan's settings, not only what
    this call ran.
    """
    chosen = parser().parse_args(arguments)
    try:
        plan = Plan.read(chosen.plan, quick=chosen.quick)
        recipes = ("default", "paper") if chosen.recipe == "both" else (chosen.recipe,)
        jobs = plan.jobs(
            experiments=chosen.experiment,
            pairs=chosen.pair,
            recipes=recipes,
            repeats=chosen.repeats,
        )
        store = Store(chosen.cache)
        out = chosen.out or (
            chosen.cache / "quick" if plan.is_quick else Path("benchmarks/results")
        )
        if chosen.render:
            write(plan, store, out)
            return 0
        failed = run(jobs, store, say=_say, after=lambda: write(plan, store, out))
        write(plan, store, out)
    except LapaceError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for job in failed:
        _say(f"Failed: {job}")
    return 1 if failed else 0


def write(plan: Plan, store: Store, out: Path) -> None:
    """The tables, from all that has been run under the plan's settings."""
    table = tidy(plan.jobs(), store)
    out.mkdir(parents=True, exist_ok=True)
    store.folder.mkdir(parents=True, exist_ok=True)
    # As text to be kept with the code it does without what is the same in every line: e1.md says.
    write_file(table.drop(columns=["settings", "versions"]), out / "e1.csv")
    write_file(table, store.folder / "e1.parquet")
    text = markdown(plan, table)
    write_whole(out / "e1.md", lambda path: path.write_text(text, encoding="utf-8"))
    first = Path("README.md")
    if out == RESULTS and first.exists():  # the run whose figures the first page shows
        page = into(first.read_text(encoding="utf-8"), brief(plan, table))
        write_whole(first, lambda path: path.write_text(page, encoding="utf-8"))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
