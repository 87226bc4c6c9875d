"""What E1, E2 and E3 were aimed at, and whether the figures reach it.

A target that is missed says so, with the pairs that miss it; one of which only some pairs have been
run is judged on those, and says how many they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

import pandas as pd

from benchmarks.comparison import METHODS, PICKS, reaching
from benchmarks.e3 import FACE, LAPACE
from benchmarks.figures import NONE, Figure, Figures, grid
from benchmarks.plan import Plan

__all__ = ["BOUNDS", "Bound", "Verdict", "e1", "markdown", "verdicts"]

SLACK = 1e-9
DICE_LOF = 1.5  # its diversity is compared where its counterfactuals are plausible


# ------------------------------------------------------------------------------------------------
# E1: figures of the default recipe against a bound

ABOUT_E1 = (
    "Of the default recipe, one setting for every table. In brackets the pair that is worst, where "
    "it is one alone."
)


@dataclass(frozen=True)
class Bound:
    """A bound on a figure of every pair, or of their mean.

    Attributes:
        text: In words.
        value: A pair's figure.
        sense: Whether the figure must be `≥` or `≤` the bound.
        bound: What it is compared with.
        spec: How it is formatted, as a `Figure`.
        over: `every pair`, or the `mean` over pairs.
    """

    text: str
    value: Callable[[Figures, str], float]
    sense: Literal["≥", "≤"]
    bound: float
    spec: str = ".2"
    over: Literal["every pair", "mean"] = "every pair"

    def reached(self, figures: Figures, pairs: Sequence[str]) -> tuple[float, str, bool] | None:
        """The worst figure or the mean, the pair it is of, whether it is met; None for none.

        Examples:
            >>> bound = Bound("agreement", lambda figures, pair: 0.95, "≥", 0.92)
            >>> bound.reached(Figures(pd.DataFrame()), ["wine-RF"])
            (0.95, 'wine-RF', True)
        """
        found = {pair: self.value(figures, pair) for pair in pairs}
        found = {pair: value for pair, value in found.items() if not math.isnan(value)}
        if not found:
            return None
        value, worst = sum(found.values()) / len(found), [""]
        if self.over == "every pair":
            value = (min if self.sense == "≥" else max)(found.values())
            worst = [pair for pair, own in found.items() if own == value]
        margin = value - self.bound if self.sense == "≥" else self.bound - value
        return value, worst[0] if len(worst) == 1 else "", margin >= -SLACK

    def verdict(self, figures: Figures, pairs: Sequence[str]) -> str:
        """The figure, its pair, and whether it misses the bound."""
        found = self.reached(figures, pairs)
        if found is None:
            return NONE
        value, pair, met = found
        shown = f"{Figure(value):{self.spec}}" + (f" ({pair})" if pair else "")
        return shown if met else f"{shown} **missed**"


def _mean_of(metric: str) -> Callable[[Figures, str], float]:
    return lambda figures, pair: figures.get(pair, "default", metric).mean


def _pooled(metric: str) -> Callable[[Figures, str], float]:
    def share(figures: Figures, pair: str) -> float:
        found = figures.get(pair, "default", metric)
        return found.hits / found.count if found.count else math.nan

    return share


def _ratio(under: str, *over: str) -> Callable[[Figures, str], float]:
    """The smallest of some metrics over another."""

    def ratio(figures: Figures, pair: str) -> float:
        line = figures.line(pair, "default")
        known = [line[name].mean for name in over if line[name].repeats]
        return min(known) / line[under].mean if known and line[under].mean else math.nan

    return ratio


BOUNDS = (
    Bound("centroids valid before repair, %", _pooled("centroids_before"), "≥", 0.98, ".1p"),
    Bound("centroids valid after repair, %", _pooled("centroids_after"), "≥", 1.0, ".1p"),
    Bound("rows of the least used cluster, of its even share", _mean_of("least_used"), "≥", 1 / 3),
    Bound("TSTR gap, raw, points", _mean_of("gap_raw"), "≤", 0.03, ".2p"),
    Bound("TSTR gap, raw, points", _mean_of("gap_raw"), "≤", 0.02, ".2p", "mean"),
    Bound("TSTR gap, verified, points", _mean_of("gap_verified"), "≤", 0.02, ".2p"),
    Bound("TSTR gap, verified, points", _mean_of("gap_verified"), "≤", 0.01, ".2p", "mean"),
    Bound("raw label agreement", _mean_of("agreement"), "≥", 0.92, ".3"),
    Bound("raw label agreement", _mean_of("agreement"), "≥", 0.94, ".3", "mean"),
    Bound("diversity of prototypes over that of k-means centroids",
          _mean_of("diversity"), "≥", 0.9),
    Bound("LOF of prototypes, mean", _mean_of("prototype_lof"), "≤", 1.1),
    Bound("LOF of prototypes, largest", _mean_of("prototype_lof_max"), "≤", 1.1),
    Bound("LOF of First over NNCE's", _ratio("nnce_lof", "first_lof"), "≤", 1.0, ".3"),
    Bound("distance of nearest over NNCE's",
          _ratio("nnce_distance", "nearest_distance"), "≤", 1.0),
    Bound("Middle valid, %", _pooled("middle_valid"), "≥", 0.995, ".2p"),
    Bound("paths that re-cross after First, %", _pooled("recrossing_after"), "≤", 0.0, ".2p"),
)  # fmt: skip


def e1(plan: Plan, figures: Figures) -> str:
    """E1's targets as a table, for the paper's pairs and for other tables."""
    sides = [
        [pair.name for pair in plan.pairs if pair.experiment == experiment]
        for experiment in ("e1", "extra")
    ]
    lines = [
        (b.text, b.over, f"{b.sense} {Figure(b.bound):{b.spec}}",
         *(b.verdict(figures, pairs) for pairs in sides))
        for b in BOUNDS
    ]  # fmt: skip
    return grid(("figure", "over", "wanted", "the paper's pairs", "other tables"), lines)


# ------------------------------------------------------------------------------------------------
# E1: the paper's model against the paper's figures

GAP_WITHIN = 1.0  # points between mean gaps
FIRST_TRY = 395 / 400  # centroids valid without another fit
LEAST_USED = 0.3


def paper_model(plan: Plan, figures: Figures) -> str:
    """How near the paper's model, as read here, comes to the paper's figures."""
    pairs = {p.name: p.reported for p in plan.pairs if p.reported is not None and p.paper}
    gaps = {p: figures.get(p, "paper", "gap_raw") for p in pairs}
    known = {p: gap for p, gap in gaps.items() if gap.repeats}
    if not known:
        return grid(("target", "wanted", "reached", "verdict"), [("all", "", "", "not run")])
    here = 100 * sum(gap.mean for gap in known.values()) / len(known)
    theirs = sum(pairs[p].gap for p in known) / len(known)
    off = {p: 100 * gap.mean - pairs[p].gap for p, gap in known.items()}
    spread = {p: math.hypot(pairs[p].gap_deviation, 100 * gap.deviation)
              for p, gap in known.items()}  # fmt: skip
    beyond = {
        p: f"{p} {off[p]:+.1f}" + ("" if math.isnan(spread[p]) else f" (±{spread[p]:.1f})")
        for p in known
        if not abs(off[p]) <= spread[p]  # nor after one repeat, which has no deviation
    }
    tries = [figures.get(p, "paper", "centroids_first_try") for p in known]
    valid, count = sum(f.hits for f in tries), sum(f.count for f in tries)
    used = {p: figures.get(p, "paper", "least_used").mean for p in known}
    worst = min(used, key=used.__getitem__)
    lines = (
        ("mean gap", f"within {GAP_WITHIN:g} point of the paper's {theirs:.2f}", f"{here:.2f}",
         _met(abs(here - theirs) <= GAP_WITHIN)),
        ("gap of each pair", "within the deviations of both, or explained",
         "farther: " + ", ".join(beyond.values()) if beyond else "all",
         _met(not beyond) + (", explained in the findings" if beyond else "")),
        ("centroids valid at the first try", f"{FIRST_TRY * count:.0f} of {count}",
         f"{valid:.0f} of {count}", _met(valid >= FIRST_TRY * count - SLACK)),
        ("least used cluster, of its even share", f"≥ {LEAST_USED:g} on every pair",
         f"{used[worst]:.2f} ({worst})", _met(used[worst] >= LEAST_USED)),
    )  # fmt: skip
    return grid(("target", "wanted", "reached", "verdict"), lines)


def _met(is_met: bool) -> str:
    return "met" if is_met else "**missed**"


# ------------------------------------------------------------------------------------------------
# E2 and E3: a margin on every pair


@dataclass(frozen=True)
class Verdict:
    """A target and whether it was reached.

    Attributes:
        target: What was aimed at.
        wanted: In words.
        reached: The figures.
        missed: Pairs that miss it.
        judged: Pairs there are figures of.

    Examples:
        >>> Verdict("validity", "100 %", "99.9 %", ("wine-RF",), ("wine-RF", "wine-NN")).text
        '**missed** on wine-RF'
        >>> Verdict("validity", "100 %").text
        'not run'
    """

    target: str
    wanted: str
    reached: str = ""
    missed: tuple[str, ...] = ()
    judged: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Met, missed and where, or not run."""
        if not self.judged:
            return "nothing to judge" if self.reached else "not run"
        if not self.missed:
            return "met"
        every = len(self.missed) == len(self.judged) > 1
        return f"**missed** on {'every pair' if every else ', '.join(self.missed)}"


@dataclass(frozen=True)
class Results:
    """The figures of one pair."""

    figures: Figures
    pair: str

    def __call__(self, method: str, metric: str, label: str = "") -> float:
        """The mean of a metric for one of our picks, or for a method of E3."""
        side = "baselines" if method in FACE else "default"
        return self.figures.get(self.pair, side, metric, method, label).mean

    def baseline(self, method: str, metric: str) -> float:
        """The mean of a metric for a baseline."""
        return self.figures.get(self.pair, "baselines", metric, method).mean

    def best(self, metric: str, *, but: str = "") -> tuple[float, str]:
        """The smallest mean of any baseline, and which it is; NaN for none."""
        found = [
            (value, m.name)
            for m in METHODS
            if m.recipe == "baselines" and m.name != but
            if not math.isnan(value := self.baseline(m.method, metric))
        ]
        return min(found, key=lambda item: item[0], default=(math.nan, ""))


Judged: TypeAlias = tuple[float, str]  # a margin, at least 0 where the target is met; the figures


def _proximity(r: Results) -> Judged:
    own, nnce = r("nearest", "paired_distance"), r("nearest", "paired_nnce")
    return nnce / own - 1 if own else math.nan, f"nearest {own:.3f}, NNCE {nnce:.3f}"


def _plausibility(r: Results) -> Judged:
    middle, last, (other, name) = r("Middle", "lof"), r("Last", "lof"), r.best("lof")
    text = f"Middle {middle:.2f}, Last {last:.2f}, {name} {other:.2f}"
    return other - max(middle, last), text


def _diversity(r: Results, other: str) -> Judged:
    own, lof = r("Last", "diversity"), r("Last", "lof")
    metrics = ("diversity", "lof", "n_counterfactuals")
    theirs, their_lof, count = (r.baseline(other, metric) for metric in metrics)
    applies = other != "DiCE" or their_lof < DICE_LOF
    return own - theirs if applies else math.nan, (
        f"Last {own:.2f} at LOF {lof:.2f}, {other} {theirs:.2f} at {their_lof:.2f} ({count:.1f} "
        "counterfactuals each)"
    )


def _model_changes(r: Results) -> Judged:
    share = r("Last", "model_robustness")
    return share - 1, f"{100 * share:.2f} %"


def _input_changes(r: Results) -> Judged:
    distance = r("Last", "input_max_set_distance")
    return -distance, f"{distance:.4f}"


def _first_input_changes(r: Results, metric: str) -> Judged:
    own, drce = r("First", metric), r.baseline("DRCE", metric)
    return drce - own, f"First {own:.3f}, DRCE {drce:.3f}"


def _runtime(r: Results) -> Judged:
    own, (other, name) = r("First", "seconds"), r.best("seconds", but="NNCE")
    return other / own - 1, f"{own:.2f} s, {name} {other:.2f} s per 100 instances"


def _dice_runtime(r: Results) -> Judged:
    ratio = r.baseline("DiCE", "seconds") / r("First", "seconds")
    return ratio - 50, f"{ratio:.0f} times"


def _easy(r: Results) -> Judged:
    share = r("LAPACE-exact", "satisfied", "easy")
    never = r.figures.get(r.pair, "default", "infeasible", label="easy").mean
    never = 0.0 if math.isnan(never) else never
    return share + never - 1, f"{share:.3f}" + (f", infeasible {never:.3f}" if never else "")


def _hard(r: Results) -> Judged:
    own = r("LAPACE-exact", "satisfied", "hard")
    found = [(r(m, "satisfied", "hard"), m) for m in (*FACE, *LAPACE) if m != "LAPACE-exact"]
    known = [item for item in found if not math.isnan(item[0])]
    other, name = max(known, key=lambda item: item[0], default=(math.nan, ""))
    return own - other, f"exact {own:.3f}, {name} {other:.3f}"


def _feasible(r: Results) -> Judged:
    shares = [r("LAPACE-exact", "feasible_points", setting) for setting in ("easy", "hard")]
    least = math.nan if any(map(math.isnan, shares)) else min(shares)
    return least - 1, f"{100 * least:.2f} %"


PAIRED = "nearest no farther than NNCE, paired"
DICE = f"Last above DiCE where its LOF is below {DICE_LOF}"
INPUT = "robustness to input changes, First"
E2: tuple[tuple[str, str, Callable[[Results], Judged]], ...] = (
    ("proximity, one counterfactual each", PAIRED, _proximity),
    ("plausibility (LOF)", "Middle and Last below every baseline", _plausibility),
    ("diversity against DRCE", "Last above DRCE", partial(_diversity, other="DRCE")),
    ("diversity against DiCE", DICE, partial(_diversity, other="DiCE")),
    ("robustness to model changes, Last", "100 %", _model_changes),
    ("robustness to input changes, Last", "0", _input_changes),
    (f"{INPUT}, max-set-distance", "no worse than DRCE",
     partial(_first_input_changes, metric="input_max_set_distance")),
    (f"{INPUT}, set distance", "no worse than DRCE",
     partial(_first_input_changes, metric="input_set_distance")),
    ("runtime", "faster than every baseline but NNCE", _runtime),
    ("runtime against DiCE", "at least 50 times faster", _dice_runtime),
)  # fmt: skip
E3 = (
    ("E3, easy constraints", "1.00 with exact, but for infeasible instances", _easy),
    ("E3, hard constraints", "exact no worse than any other method", _hard),
    ("E3, feasible points", "every point of exact", _feasible),
)


def _verdict(
    figures: Figures,
    pairs: Sequence[str],
    name: str,
    wanted: str,
    judge: Callable[[Results], Judged],
) -> Verdict:
    """A target judged on the pairs with figures; the worst of them is shown."""
    found = {pair: judge(Results(figures, pair)) for pair in pairs}
    found = {pair: judged for pair, judged in found.items() if not math.isnan(judged[0])}
    if not found:
        return Verdict(name, wanted)
    worst = min(found, key=lambda pair: found[pair][0])
    missed = tuple(pair for pair, (margin, _) in found.items() if margin < -SLACK)
    return Verdict(name, wanted, f"{worst}: {found[worst][1]}", missed, tuple(found))


def verdicts(plan: Plan, table: pd.DataFrame) -> list[Verdict]:
    """All targets of E2 and E3, judged on the tidy table."""
    two, three = (Figures(table[table["experiment"] == name]) for name in ("e2", "e3"))
    pairs = [pair.name for pair in plan.pairs if pair.experiment == "e1"]
    found = [_validity(two, pairs), *(_verdict(two, pairs, *target) for target in E2)]
    lof = [Results(two, pair).baseline("DiCE", "lof") for pair in pairs]
    lof = [value for value in lof if not math.isnan(value)]
    if lof and not found[4].judged:  # DiCE's LOF is too large everywhere
        found[4] = replace(found[4], reached=f"its LOF is {min(lof):.2f} or more")
    found.insert(6, _confidence(two, pairs))
    return [*found, *(_verdict(three, _constrained(plan), *target) for target in E3)]


def _constrained(plan: Plan) -> list[str]:
    return [pair.name for pair in plan.pairs if pair.data in plan.e3.constraints]


def _validity(figures: Figures, pairs: Sequence[str]) -> Verdict:
    found = {
        pair: [figures.get(pair, "default", "valid_counterfactuals", pick) for pick in PICKS[:3]]
        for pair in pairs
    }
    found = {pair: own for pair, own in found.items() if all(f.count for f in own)}
    missed = tuple(pair for pair, own in found.items() if any(round(f.hits) < f.count for f in own))
    sums = [
        f"{pick} {sum(f.hits for f in own):,.0f} of {sum(f.count for f in own):,}"
        for pick, own in zip(PICKS, zip(*found.values(), strict=True), strict=False)
    ]
    wanted = "every counterfactual of First, Middle and Last valid"
    return Verdict("validity", wanted, "; ".join(sums), missed, tuple(found))


def _confidence(figures: Figures, pairs: Sequence[str]) -> Verdict:
    known = {
        pair: (reaching(figures, pair), share.mean)
        for pair in pairs
        if (share := figures.get(pair, "default", "model_robustness", "First")).repeats
    }
    missed = tuple(pair for pair, (lowest, _) in known.items() if lowest is None)
    texts = [
        f"{pair} {100 * plain:.0f} % plain, "
        + (f"at {lowest:g}" if lowest else "enough" if lowest == 0 else "never")
        for pair, (lowest, plain) in known.items()
    ]
    wanted = "First reaches 95 % at a required confidence, with a counterfactual for every instance"
    name = "robustness to model changes, First"
    return Verdict(name, wanted, "; ".join(texts), missed, tuple(known))


def markdown(plan: Plan, table: pd.DataFrame) -> str:
    """The targets of E2 and E3 as a table.

    Args:
        plan: What was planned.
        table: The tidy table, all of it.
    """
    pairs = sum(pair.experiment == "e1" for pair in plan.pairs)
    lines = []
    for v in verdicts(plan, table):
        planned = len(_constrained(plan)) if v.target.startswith("E3") else pairs
        some = f" ({len(v.judged)} of {planned} pairs)" if 0 < len(v.judged) < planned else ""
        lines.append((v.target, v.wanted, v.reached, f"{v.text}{some}"))
    return grid(("target", "wanted, on every pair", "reached", "verdict"), lines)
