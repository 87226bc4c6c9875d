"""Which results a page shows, and how they were made."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from benchmarks.plan import Plan

__all__ = ["REPEATS", "made", "pairs_of", "part"]

REPEATS = "Mean ± standard deviation over repeats."
SIDES = {
    "default": "with the default recipe",
    "paper": "with the paper's recipe",
    "baselines": "of the baselines",
}


def part(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """One experiment's lines; E1's with those of the tables the paper does not have."""
    return table[table["experiment"].isin(("e1", "extra") if name == "e1" else (name,))]


def pairs_of(plan: Plan, table: pd.DataFrame) -> list[str]:
    """The plan's pairs a table has figures of."""
    known = set(table["pair"])
    return [name for name in plan.names if name in known]


def made(plan: Plan, table: pd.DataFrame, experiment: str) -> str:
    """How a page was made, and how much of the plan it shows."""
    names = ("e1", "extra") if experiment == "e1" else (experiment,)
    planned = Counter(job.recipe for job in plan.jobs(experiments=names))
    done = table.groupby("recipe")["settings"].nunique()
    counts = ", ".join(
        f"{done.get(side, 0)} of {planned[side]} {words}"
        for side, words in SIDES.items()
        if planned[side]
    )
    versions = "; ".join(sorted(set(table["versions"]) - {""})) or "unknown versions"
    return (
        f"Made by `python -m benchmarks{' --quick' if plan.is_quick else ''} --experiment "
        f"{' '.join(names)}` with {versions}. Jobs: {counts}; seeds "
        f"{', '.join(map(str, sorted(set(table['seed']))))}."
    )
