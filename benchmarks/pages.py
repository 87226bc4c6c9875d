"""E3, E4 and the sweep over clusters as Markdown, from the tidy table alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd

from benchmarks.e3 import METHODS
from benchmarks.figures import NONE, Figures, grid
from benchmarks.plan import Plan

__all__ = ["actions", "actions_brief", "sweep", "sweep_brief", "walks"]

NOTHING_YET = "Nothing has been run yet."
SETTINGS = ("easy", "hard")
PICKS = ("First", "Middle", "Last", "nearest", "sparse")
SWEPT = (
    ("distance", "distance ↓", 1, 2),
    ("lof", "LOF ↓", 1, 2),
    ("diversity", "diversity ↑", 1, 2),
    ("model_robustness", "model changes, % ↑", 100, 1),
    ("input_max_set_distance", "input changes, max-set ↓", 1, 3),
)


def _made(table: pd.DataFrame, experiment: str, plan: Plan) -> str:
    made = "; ".join(sorted(set(table["versions"]) - {""})) or "unknown versions"
    quick = " --quick" if plan.is_quick else ""
    repeats = table.groupby("pair")["seed"].nunique()
    counts = ", ".join(f"{pair} {count}" for pair, count in repeats.items())
    return (
        f"Made by `python -m benchmarks{quick} --experiment {experiment}` with {made}. "
        f"Repeats: {counts}."
    )


# ------------------------------------------------------------------------------------------------
# E3


ABOUT_E3 = (
    "Share of instances with at least one point on a path that obeys all their constraints and is "
    "valid. *Easy*: {count} constraints each, drawn from the data set's list. *Hard*: their ranges "
    "narrowed to the {low:.0%} to {high:.0%} quantiles, and {held} of the instance's own values held "
    "fixed. *Impossible*: instances for whom no row obeys, proved; no method can answer them. In "
    "brackets the paper's figures, where it has them; its LAPACE-constrained stands beside "
    "latent and exact."
)
ABOUT_POINTS = (
    "Share of points that obey / LOF of valid points without constraints → of valid points that "
    "obey / processor seconds per 100 instances without → with constraints (LAPACE is asked instance by "
    "instance, FACE's paths are made in one batch)."
)
PUBLISHED = {
    "FACE-Interpolate": 0,
    "FACE-Greedy": 1,
    "LAPACE-naive": 2,
    "LAPACE-latent": 3,
    "LAPACE-exact": 3,
}


def actions(plan: Plan, table: pd.DataFrame) -> str:
    """E3 as a page.

    Args:
        plan: What was planned.
        table: E3's part of the tidy table.
    """
    title = "# E3: actionability"
    if not len(table):
        return f"{title}\n\n{NOTHING_YET}\n"
    figures = Figures.of(table)
    parts = [title, _made(table, "e3", plan), _about_e3(plan), actions_brief(plan, table)]
    for setting in SETTINGS:
        parts += [f"## Points, {setting}", ABOUT_POINTS, _points(plan, figures, setting)]
    return "\n\n".join(parts) + "\n"


def _about_e3(plan: Plan) -> str:
    act = plan.act
    return ABOUT_E3.format(count=act.count, low=act.low, high=act.high, held=act.held)


def actions_brief(plan: Plan, table: pd.DataFrame) -> str:
    """Shares of instances helped, one line a pair and setting, the best of each in bold.

    Args:
        plan: What was planned.
        table: E3's part of the tidy table.
    """
    figures = Figures.of(table)
    lines = []
    for setting in SETTINGS:
        for pair in _pairs(plan, table):
            published = plan[pair].published
            theirs = published.actionability if published and setting == "easy" else None
            found = [figures.get(pair, "default", "satisfied", setting, m) for m in METHODS]
            top = max((f.bare(1, 3) for f in found if f.repeats), default="")
            cells = []
            for method, figure in zip(METHODS, found, strict=True):
                text = figure.bare(1, 3)
                text = f"**{text}**" if text == top else text
                cells.append(f"{text} ({theirs[PUBLISHED[method]]:.2f})" if theirs else text)
            impossible = figures.get(pair, "default", "impossible", setting)
            lines.append((pair, setting, *cells, impossible.bare(100, 1)))
    return grid(("pair", "", *METHODS, "impossible, %"), lines)


def _points(plan: Plan, figures: Figures, setting: str) -> str:
    lines = []
    for pair in plan.names:
        cells = []
        for method in METHODS:
            of = partial(figures.get, pair, "default", label=setting, method=method)
            if not of("satisfied").repeats:
                cells.append(NONE)
                continue
            cells.append(
                f"{of('feasible_points').bare(100, 1)} % / {of('lof_before').bare()} → "
                f"{of('lof_after').bare()} / {of('seconds_before').bare(1, 1)} → "
                f"{of('seconds').bare(1, 1)}"
            )
        if any(cell != NONE for cell in cells):
            lines.append((pair, *cells))
    return grid(("pair", *METHODS), lines)


# ------------------------------------------------------------------------------------------------
# E4


ABOUT_E4 = (
    "From instances to each prototype of the target: the classifier's probability of the target and "
    "the local outlier factor of the decoded points, among training rows labelled with the target, "
    "at the instance (τ = 0), half way, and at the prototype (τ = 1); mean ± standard deviation over "
    "instances. The pictures in the report show every step."
)


def walks(plan: Plan, table: pd.DataFrame) -> str:
    """E4 as a page: three points of every curve.

    Args:
        plan: What was planned.
        table: E4's part of the tidy table.
    """
    title = "# E4: points of paths"
    if not len(table):
        return f"{title}\n\n{NOTHING_YET}\n"
    one = table[table["repeat"] == table.groupby("pair")["repeat"].transform("min")]
    one = one.set_index(["pair", "label", "metric"]).sort_index()
    lines = []
    for pair in _pairs(plan, table):
        for label in sorted(set(one.loc[pair].index.get_level_values(0)), key=int):
            part = one.loc[pair, label]
            cells = [
                f"{part.loc[name, 'mean']:.2f} ± {part.loc[name, 'deviation']:.2f}"
                for name in (f"{m}@{t}" for m in ("probability", "lof") for t in ("0", "0.5", "1"))
                if name in part.index
            ]
            lines.append((pair, label, *cells))
    head = ("pair", "prototype", *(f"{m}, τ = {t}" for m in ("probability", "LOF") for t in HALVES))
    parts = [title, _made(table, "e4", plan), ABOUT_E4, grid(head, lines)]
    return "\n\n".join([*parts, "<!-- picture: walks -->"]) + "\n"


HALVES = ("0", "½", "1")


# ------------------------------------------------------------------------------------------------
# The sweep


ABOUT_SWEEP = (
    "The same benchmark with other numbers of clusters per label, on the same instances; five is the "
    "default. Mean over repeats."
)


def sweep(plan: Plan, table: pd.DataFrame) -> str:
    """The sweep over clusters as a page.

    Args:
        plan: What was planned.
        table: Its part of the tidy table.
    """
    title = "# How many clusters"
    if not len(table):
        return f"{title}\n\n{NOTHING_YET}\n"
    parts = [title, _made(table, "clusters", plan), ABOUT_SWEEP]
    for pair in _pairs(plan, table):
        parts += [f"## {pair}", _swept(table, pair, PICKS)]
    return "\n\n".join([*parts, "<!-- picture: sweep -->"]) + "\n"


def sweep_brief(plan: Plan, table: pd.DataFrame) -> str:
    """First, Middle and Last for every number of clusters, one table for all pairs.

    Args:
        plan: What was planned.
        table: The sweep's part of the tidy table.
    """
    return "\n\n".join(
        f"{pair}:\n\n{_swept(table, pair, ('First', 'Middle', 'Last'))}"
        for pair in _pairs(plan, table)
    )


def _swept(table: pd.DataFrame, pair: str, picks: Sequence[str]) -> str:
    figures = Figures.of(table)
    counts = clusters(table, pair)
    lines = []
    for pick in picks:
        for count in counts:
            cells = [
                figures.get(pair, "default", metric, count, pick).bare(scale, digits)
                for metric, _, scale, digits in SWEPT
            ]
            lines.append((pick, count, *cells))
    return grid(("pick", "clusters", *(head for _, head, _, _ in SWEPT)), lines)


def clusters(table: pd.DataFrame, pair: str) -> list[str]:
    """The numbers of clusters there are figures of, ascending."""
    found = set(table.loc[table["pair"] == pair, "label"]) - {""}
    return sorted(found, key=int)


def _pairs(plan: Plan, table: pd.DataFrame) -> list[str]:
    there = set(table["pair"])
    return [pair.name for pair in plan.pairs if pair.name in there]
