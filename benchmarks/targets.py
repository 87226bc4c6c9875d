"""What E1, E2 and E3 were aimed at, and whether the figures reach it.

A target that is missed says so, with the pairs that miss it; one of which only some pairs have been
run is judged on those, and says how many they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import pandas as pd

from benchmarks.comparison import METHODS, PICKS, reaching
from benchmarks.e3 import METHODS as CONSTRAINED
from benchmarks.figures import NONE, Figures, grid
from benchmarks.plan import Plan

__all__ = ["BOUNDS", "Bound", "Verdict", "e1", "markdown", "verdicts"]

SLACK = 1e-9


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
        bound: What it is compared with.
        sense: Whether the figure must be `≥` or `≤` the bound.
        over: `every pair`, or the `mean` over pairs.
        scale: To the unit it is written in.
        digits: To write.
    """

    text: str
    value: Callable[[Figures, str], float]
    bound: float
    sense: Literal["≥", "≤"]
    over: Literal["every pair", "mean"] = "every pair"
    scale: float = 1.0
    digits: int = 2

    def reached(self, figures: Figures, pairs: Sequence[str]) -> tuple[float, str, bool] | None:
        """The worst figure or the mean, the pair it is of, whether it is met; None for none.

        Examples:
            >>> bound = Bound("agreement", lambda figures, pair: 0.95, 0.92, "≥")
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

    def write(self, value: float) -> str:
        """A figure in the bound's unit."""
        return f"{self.scale * value:.{self.digits}f}"

    def verdict(self, figures: Figures, pairs: Sequence[str]) -> str:
        """The figure, its pair, and whether it misses the bound."""
        found = self.reached(figures, pairs)
        if found is None:
            return NONE
        value, pair, met = found
        return self.write(value) + (f" ({pair})" if pair else "") + ("" if met else " **missed**")


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
    Bound("centroids valid before repair, %", _pooled("centroids_before"), 0.98, "≥",
          scale=100, digits=1),
    Bound("centroids valid after repair, %", _pooled("centroids_after"), 1.0, "≥",
          scale=100, digits=1),
    Bound("rows of the least used cluster, of its even share", _mean_of("least_used"), 1 / 3, "≥"),
    Bound("TSTR gap, raw, points", _mean_of("gap_raw"), 0.03, "≤", scale=100),
    Bound("TSTR gap, raw, points", _mean_of("gap_raw"), 0.02, "≤", "mean", 100),
    Bound("TSTR gap, verified, points", _mean_of("gap_verified"), 0.02, "≤", scale=100),
    Bound("TSTR gap, verified, points", _mean_of("gap_verified"), 0.01, "≤", "mean", 100),
    Bound("raw label agreement", _mean_of("agreement"), 0.92, "≥", digits=3),
    Bound("raw label agreement", _mean_of("agreement"), 0.94, "≥", "mean", digits=3),
    Bound("diversity of prototypes over that of k-means centroids", _mean_of("diversity"), 0.9,
          "≥"),
    Bound("LOF of prototypes, mean", _mean_of("prototype_lof"), 1.1, "≤"),
    Bound("LOF of prototypes, largest", _mean_of("prototype_lof_max"), 1.1, "≤"),
    Bound("LOF of First over NNCE's", _ratio("nnce_lof", "first_lof"), 1.0, "≤", digits=3),
    Bound("distance of nearest or sparse over NNCE's",
          _ratio("nnce_distance", "nearest_distance", "sparse_distance"), 1.0, "≤"),
    Bound("Middle valid, %", _pooled("middle_valid"), 0.995, "≥", scale=100),
    Bound("paths that re-cross after First, %", _pooled("recrossing_after"), 0.0, "≤", scale=100),
)  # fmt: skip


def e1(plan: Plan, figures: Figures) -> str:
    """E1's targets as a table, for the paper's pairs and for other tables."""
    sides = [
        [pair.name for pair in plan.pairs if pair.experiment == experiment]
        for experiment in ("e1", "extra")
    ]
    lines = [
        (b.text, b.over, f"{b.sense} {b.write(b.bound)}",
         *(b.verdict(figures, pairs) for pairs in sides))
        for b in BOUNDS
    ]  # fmt: skip
    return grid(("", "over", "wanted", "the paper's pairs", "other tables"), lines)


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
        return self.figures.get(self.pair, "default", metric, method, label).mean

    def baseline(self, method: str, metric: str) -> float:
        """The mean of a metric for a baseline."""
        return self.figures.get(self.pair, "baselines", metric, method).mean

    def best(self, metric: str, *, but: str = "") -> tuple[float, str]:
        """The least mean of any baseline, and which it is; NaN for none."""
        found = [
            (value, m.name)
            for m in METHODS
            if m.recipe == "baselines" and m.name != but
            if not math.isnan(value := self.baseline(m.method, metric))
        ]
        return min(found, key=lambda item: item[0], default=(math.nan, ""))


@dataclass(frozen=True)
class Target:
    """What every pair is to reach: a margin of at least 0, and the figures in words."""

    name: str
    wanted: str
    margin: Callable[[Results], float]
    text: Callable[[Results], str]

    def verdict(self, figures: Figures, pairs: Sequence[str]) -> Verdict:
        """Judged on the pairs with figures; the worst of them is shown."""
        margins = {pair: self.margin(Results(figures, pair)) for pair in pairs}
        margins = {pair: margin for pair, margin in margins.items() if not math.isnan(margin)}
        if not margins:
            return Verdict(self.name, self.wanted)
        worst = min(margins, key=lambda pair: margins[pair])
        missed = tuple(pair for pair, margin in margins.items() if margin < -SLACK)
        shown = f"{worst}: {self.text(Results(figures, worst))}"
        return Verdict(self.name, self.wanted, shown, missed, tuple(margins))


def _proximity(r: Results) -> tuple[str, float, float]:
    """The pick that is compared with NNCE, and both distances."""
    mixed = r.figures.get(r.pair, "default", "mixed").mean > 0
    pick = "sparse" if mixed else "nearest"
    return pick, r(pick, "paired_distance"), r(pick, "paired_nnce")


def _diversity_margin(other: str, r: Results) -> float:
    if other == "DiCE" and not r.baseline(other, "lof") < 1.5:
        return math.nan
    return r("Last", "diversity") - r.baseline(other, "diversity")


def _diversity_text(other: str, r: Results) -> str:
    diversity, lof, count = (
        r.baseline(other, m) for m in ("diversity", "lof", "n_counterfactuals")
    )
    return (
        f"Last {r('Last', 'diversity'):.2f} at LOF {r('Last', 'lof'):.2f}, {other} "
        f"{diversity:.2f} at {lof:.2f} ({count:.1f} counterfactuals each)"
    )


def _diversity(other: str, where: str = "") -> Target:
    margin, text = partial(_diversity_margin, other), partial(_diversity_text, other)
    return Target(f"diversity against {other}", f"Last above {other}{where}", margin, text)


def _first_input(metric: str, words: str) -> Target:
    return Target(
        f"robustness to input changes, First, {words}",
        "no worse than DRCE",
        lambda r: r.baseline("DRCE", metric) - r("First", metric),
        lambda r: f"First {r('First', metric):.3f}, DRCE {r.baseline('DRCE', metric):.3f}",
    )


def _other_constrained(r: Results) -> tuple[float, str]:
    """The best other method of E3 in the hard setting."""
    names = [name for name in CONSTRAINED if name != "LAPACE-exact"]
    found = [(r(name, "satisfied", "hard"), name) for name in names]
    known = [item for item in found if not math.isnan(item[0])]
    return max(known, key=lambda item: item[0], default=(math.nan, ""))


def _least_feasible(r: Results) -> float:
    found = [r("LAPACE-exact", "feasible_points", setting) for setting in ("easy", "hard")]
    return math.nan if any(map(math.isnan, found)) else min(found)


E2: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target(
            "proximity, one counterfactual each",
            "nearest, or sparse where there are categories, no farther than NNCE, paired",
            lambda r: _proximity(r)[2] / _proximity(r)[1] - 1 if _proximity(r)[1] else math.nan,
            lambda r: "{} {:.3f}, NNCE {:.3f}".format(*_proximity(r)),
        ),
        Target(
            "plausibility (LOF)",
            "Middle and Last below every baseline",
            lambda r: r.best("lof")[0] - max(r("Middle", "lof"), r("Last", "lof")),
            lambda r: (
                f"Middle {r('Middle', 'lof'):.2f}, Last {r('Last', 'lof'):.2f}, "
                "{1} {0:.2f}".format(*r.best("lof"))
            ),
        ),
        _diversity("DRCE"),
        _diversity("DiCE", " where its LOF is below 1.5"),
        Target(
            "robustness to model changes, Last",
            "100 %",
            lambda r: r("Last", "model_robustness") - 1,
            lambda r: f"{100 * r('Last', 'model_robustness'):.2f} %",
        ),
        Target(
            "robustness to input changes, Last",
            "0",
            lambda r: -r("Last", "input_max_set_distance"),
            lambda r: f"{r('Last', 'input_max_set_distance'):.4f}",
        ),
        _first_input("input_max_set_distance", "max-set-distance"),
        _first_input("input_set_distance", "set distance"),
        Target(
            "runtime",
            "faster than every baseline but NNCE",
            lambda r: r.best("seconds", but="NNCE")[0] / r("First", "seconds") - 1,
            lambda r: f"{r('First', 'seconds'):.2f} s, {{1}} {{0:.2f}} s per 100 instances".format(
                *r.best("seconds", but="NNCE")
            ),
        ),
        Target(
            "runtime against DiCE",
            "at least 50 times faster",
            lambda r: r.baseline("DiCE", "seconds") / r("First", "seconds") - 50,
            lambda r: f"{r.baseline('DiCE', 'seconds') / r('First', 'seconds'):.0f} times",
        ),
    )
}
E3 = (
    Target(
        "E3, easy constraints",
        "1.00 with exact",
        lambda r: r("LAPACE-exact", "satisfied", "easy") - 1,
        lambda r: f"{r('LAPACE-exact', 'satisfied', 'easy'):.3f}",
    ),
    Target(
        "E3, hard constraints",
        "exact no worse than any other method",
        lambda r: r("LAPACE-exact", "satisfied", "hard") - _other_constrained(r)[0],
        lambda r: f"exact {r('LAPACE-exact', 'satisfied', 'hard'):.3f}, {{1}} {{0:.3f}}".format(
            *_other_constrained(r)
        ),
    ),
    Target(
        "E3, feasible points",
        "every point of exact",
        lambda r: _least_feasible(r) - 1,
        lambda r: f"{100 * _least_feasible(r):.2f} %",
    ),
)


def verdicts(plan: Plan, table: pd.DataFrame) -> list[Verdict]:
    """All targets of E2 and E3, judged on the tidy table."""
    two, three = (Figures(table[table["experiment"] == name]) for name in ("e2", "e3"))
    pairs = [pair.name for pair in plan.pairs if pair.experiment == "e1"]
    found = {name: target.verdict(two, pairs) for name, target in E2.items()}
    lof = [Results(two, pair).baseline("DiCE", "lof") for pair in pairs]
    lof = [value for value in lof if not math.isnan(value)]
    dice = found["diversity against DiCE"]
    if lof and not dice.judged:
        found[dice.target] = replace(dice, reached=f"its LOF is {min(lof):.2f} or more")
    ordered = list(found.values())
    ordered.insert(5, _confidence(two, pairs))
    constrained = [target.verdict(three, _constrained(plan)) for target in E3]
    return [_validity(two, pairs), *ordered, *constrained]


def _constrained(plan: Plan) -> list[str]:
    return [pair.name for pair in plan.pairs if pair.data in plan.e3.constraints]


def _validity(figures: Figures, pairs: Sequence[str]) -> Verdict:
    found = {
        pair: [figures.get(pair, "default", "valid_counterfactuals", pick) for pick in PICKS[:3]]
        for pair in pairs
    }
    found = {pair: own for pair, own in found.items() if all(f.count for f in own)}
    missed = tuple(pair for pair, own in found.items() if any(f.hits < f.count for f in own))
    sums = [
        f"{pick} {sum(f.hits for f in own):,} of {sum(f.count for f in own):,}"
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
    return grid(("target", "wanted, on every pair", "reached", ""), lines)
