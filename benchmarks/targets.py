"""Our own targets of E1, E2 and E3, for the default recipe: figures compared with figures."""

from __future__ import annotations

import math

import pandas as pd

from benchmarks.comparison import METHODS, reaching
from benchmarks.e3 import FACE, LAPACE
from benchmarks.figures import Figures, part
from benchmarks.judging import (
    Target,
    Value,
    at_least,
    at_most,
    figure_of,
    targets_table,
    top,
)
from benchmarks.plan import Plan

__all__ = ["TARGETS", "markdown"]

BASELINES = {*FACE, *(m.method for m in METHODS if m.recipe == "baselines")}


def _of(method: str, metric: str, label: str = "", **settings: str) -> Value:
    """The mean of a metric: of a pick, of a baseline, or, without a method, of the explainer."""
    recipe = "baselines" if method in BASELINES else "default"
    return figure_of(method, metric, label, recipe=recipe, **settings)


def _least(metric: str, *, but: str = "", spec: str = ".3") -> Value:
    """The smallest figure of any baseline."""
    methods = [m for m in METHODS if m.recipe == "baselines" and m.method != but]
    return top(min, *(_of(m.method, metric, name=m.name, spec=spec) for m in methods))


def _confidence(figures: Figures, pair: str) -> tuple[float, str]:
    plain, lowest = figures.get(pair, "default", "model_robustness", "First"), None
    if not plain.repeats:
        return math.nan, ""
    lowest = reaching(figures, pair)
    how = "never" if lowest is None else f"at {lowest:g}" if lowest else "enough"
    return -1.0 if lowest is None else 1 - lowest, f"{plain:.0p} % plain, {how}"


def _easy(figures: Figures, pair: str) -> tuple[float, str]:
    share, text = _of("LAPACE-exact", "satisfied", "easy")(figures, pair)
    never = figures.get(pair, "default", "infeasible", label="easy")
    return share + (never.mean if never.repeats else 0.0) - 1, f"{text}, infeasible {never:.3}"


INPUT = "robustness to input changes"
OTHERS = [m for m in (*FACE, *LAPACE) if m != "LAPACE-exact"]
VALID = "valid_counterfactuals"
TARGETS = {
    "e1": (
        Target("centroids valid before repair, %", "≥ 98",
               at_least(_of("", "centroids_before", spec=".1p"), 0.98)),
        Target("centroids valid after repair, %", "100",
               at_least(_of("", "centroids_after", spec=".1p"), 1.0)),
        Target("rows of the least used cluster, of its even share", "≥ 0.33",
               at_least(_of("", "least_used", spec=".2"), 1 / 3)),
        Target("TSTR gap, raw, points", "≤ 3", at_most(_of("", "gap_raw", spec=".2p"), 0.03)),
        Target("TSTR gap, verified, points", "≤ 2",
               at_most(_of("", "gap_verified", spec=".2p"), 0.02)),
        Target("raw label agreement", "≥ 0.92", at_least(_of("", "agreement"), 0.92)),
        Target("diversity of prototypes over that of k-means centroids", "≥ 0.9",
               at_least(_of("", "diversity", spec=".2"), 0.9)),
        Target("LOF of prototypes, mean", "≤ 1.1",
               at_most(_of("", "prototype_lof", spec=".2"), 1.1)),
        Target("LOF of prototypes, largest", "≤ 1.1",
               at_most(_of("", "prototype_lof_max", spec=".2"), 1.1)),
        Target("LOF of First", "no more than NNCE's",
               at_most(_of("", "first_lof", name="First"), _of("", "nnce_lof", name="NNCE"))),
        Target("paths that re-cross after First, %", "0",
               at_most(_of("", "recrossing_after", spec=".2p"), 0.0)),
    ),
    "e2": (
        Target("validity", "every counterfactual of First, Middle and Last valid, %",
               at_least(top(min, *(_of(p, VALID, spec=".2p")
                                     for p in ("First", "Middle", "Last"))), 1.0)),
        Target("proximity, one counterfactual each", "nearest no farther than NNCE, paired",
               at_most(_of("nearest", "paired_distance"),
                        _of("nearest", "paired_nnce", name="NNCE"))),
        Target("plausibility (LOF)", "Middle and Last below every baseline",
               at_most(top(max, _of("Middle", "lof"), _of("Last", "lof")), _least("lof"))),
        Target("diversity", "Last above DRCE",
               at_least(_of("Last", "diversity"), _of("DRCE", "diversity"))),
        Target("robustness to model changes, Last, %", "100",
               at_least(_of("Last", "model_robustness", spec=".2p"), 1.0)),
        Target("robustness to model changes, First", "95 % at a required confidence, with a "
               "counterfactual for every instance", _confidence),
        Target(f"{INPUT}, Last", "0",
               at_most(_of("Last", "input_max_set_distance", spec=".4"), 0.0)),
        *(Target(f"{INPUT}, First, {words}", "no worse than DRCE",
                 at_most(_of("First", metric), _of("DRCE", metric)))
          for words, metric in (("max-set-distance", "input_max_set_distance"),
                                ("set distance", "input_set_distance"))),
        Target("seconds per 100 instances", "fewer than every baseline but NNCE",
               at_most(_of("First", "seconds", spec=".2"),
                        _least("seconds", but="NNCE", spec=".2"))),
        Target("seconds against DiCE", "at least 50 times faster",
               at_most(_of("First", "seconds", spec=".2"), _of("DiCE", "seconds", spec=".2"),
                        times=50)),
    ),
    "e3": (
        Target("easy constraints", "1.00 with exact, but for infeasible instances", _easy),
        Target("hard constraints", "exact no worse than any other method",
               at_least(_of("LAPACE-exact", "satisfied", "hard"),
                         top(max, *(_of(m, "satisfied", "hard") for m in OTHERS)))),
        Target("feasible points", "every point of exact, %",
               at_least(top(min, *(_of("LAPACE-exact", "feasible_points", setting, spec=".2p")
                                     for setting in ("easy", "hard"))), 1.0)),
    ),
}  # fmt: skip
ABOUT = (
    "Of the default recipe, one setting for every table. Shown is the pair that is worst. "
    "`nearest` and `best` have [targets of their own](advice.md)."
)


def markdown(plan: Plan, table: pd.DataFrame) -> str:
    """Returns a table of targets for each experiment."""
    parts = []
    for name, targets in TARGETS.items():
        kinds = ("e1", "extra") if name == "e1" else ("e1",)
        pairs = [pair.name for pair in plan.pairs if pair.experiment in kinds]
        figures = Figures(part(table, name))
        parts += [f"{name.upper()}:", targets_table(targets, figures, pairs, len(pairs))]
    return "\n\n".join(parts)
