"""Judging the claims of the paper.

A `Claim` of the paper is tested pair by pair, and for every model: as printed, as read here, and
the default recipe. Its tests are margins, positive where the sentence is true, each with a 95%
interval: Student's, over seeds. Methods of E2 are compared on the same instances of each seed. (A
bootstrap of five seeds and their instances covers about 85% instead of 95%.) One rule grades all
claims: a claim *holds* on a pair if the whole interval of every margin is positive; it is
*confirmed* if it holds on every pair it names, *partly confirmed* if on some, and *not confirmed*
if on none. Where an interval holds zero the pair is *open*, which counts as not holding, and is
said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.e5 import figures_of
from benchmarks.figures import Figures, Results, part
from benchmarks.plan import Plan
from lapace.arrays import Floats

# The models of a table of verdicts, by the side their figures are kept under.
MODELS = {
    "printed": "as printed",
    "gumbel": "as printed, Gumbel draw",
    "paper": "as read here",
    "default": "lapace's default",
}
LAPACE = ("First", "Middle", "Last")
BASELINES = ("NNCE", "FACE", "RobXCE", "DiCE", "DRCE")  # the paper's
MIXED = ("adult", "compas")  # the paper's data sets with categories
YES, PARTLY, NO, NOT_RUN = "confirmed", "**partly confirmed**", "**not confirmed**", "not run"
SLACK = 1e-9


class Margin(NamedTuple):
    """By how much a sentence is true of a pair: the mean, and its 95% interval."""

    name: str
    mean: float
    low: float
    high: float

    @property
    def state(self) -> str:
        """`holds`, `fails`, or `open` where the interval holds zero; `unknown` without figures."""
        if math.isnan(self.mean):
            return "unknown"
        return "holds" if self.low > 0 else "fails" if self.high < 0 else "open"

    def __str__(self) -> str:
        spread = "" if self.low == self.high else f" [{self.low:+.2g}, {self.high:+.2g}]"
        return f"{self.name} {self.mean:+.2g}{spread}"


def interval(name: str, values: Any) -> Margin:
    """Returns the mean of margins and its 95% interval: Student's over the means of seeds.

    Args:
        name: Of the margin.
        values: (seeds, instances), NaN where there is none; or (seeds, 1).

    Examples:
        >>> interval("nearer", [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]]).state
        'holds'
        >>> interval("nearer", [[-1.0, 1.0], [1.0, 0.0]]).state
        'open'
        >>> str(interval("nearer", [[1.0], [2.0], [3.0]]))
        'nearer +2 [-0.48, +4.5]'
    """
    table = np.atleast_2d(np.asarray(values, dtype=np.float64))
    table = table[~np.isnan(table).all(axis=1)]
    if not table.size:
        return Margin(name, math.nan, math.nan, math.nan)
    means = np.nanmean(table, axis=1)
    mean, half = float(means.mean()), 0.0
    if len(means) > 1:
        half = float(stats.sem(means) * stats.t.ppf(0.975, len(means) - 1))
    return Margin(name, mean, mean - half, mean + half)


def exact(name: str, value: float, bound: float, *, above: bool = True) -> Margin:
    """Returns a margin without an interval: a figure that has to reach a bound, or stay below."""
    margin = (value - bound if above else bound - value) + SLACK
    return Margin(name, margin, margin, margin)


Judge: TypeAlias = "Callable[[Evidence, str, str], Iterable[Margin]]"  # side, pair


class Claim(NamedTuple):
    """A claim of the paper, the pairs it names, and the margins that decide it.

    Attributes:
        where: In the paper.
        text: What it says.
        pairs: `all`, `mixed`, `continuous`, or `shown`: heloc and wine; `digits` for MNIST.
        judge: The margins of a model and a pair.
        note: How words such as *comparable* are read.
    """

    where: str
    text: str
    pairs: str
    judge: Judge
    note: str = ""


class Verdict(NamedTuple):
    """The verdict on a claim for one model: the grade, and on how many pairs the claim holds."""

    grade: str = NOT_RUN
    count: str = ""  # such as "6 of 8"
    details: str = ""  # the other pairs, and the least margin

    def __str__(self) -> str:
        """The whole verdict, as the page of findings has it."""
        return self.grade + (f": {self.count}; {self.details}" if self.count else "")

    @property
    def brief(self) -> str:
        """The grade and the count alone, such as `**partly** 6 of 8`."""
        return f"{self.grade.replace(' confirmed', '')} {self.count}".rstrip()


def verdict(e: Evidence, claim: Claim, side: str) -> Verdict:
    """Grades a claim for one model by the rule above.

    Examples:
        >>> always = Claim("", "", "all", lambda e, side, pair: [exact("x", 1.0, 0.5)])
        >>> none = Evidence(Plan(), pd.DataFrame({"experiment": [], "pair": []}))
        >>> str(verdict(none, always, "paper"))
        'not run'
    """
    states: dict[str, list[str]] = {"holds": [], "fails": [], "open": []}
    worst: dict[str, Margin] = {}
    for pair in e.named(claim.pairs):
        margins = list(claim.judge(e, side, pair))
        found = {m.state for m in margins}
        if not margins or "unknown" in found:
            continue
        state = "fails" if "fails" in found else "open" if "open" in found else "holds"
        states[state].append(pair)
        worst[pair] = min(margins, key=lambda m: m.high if state == "fails" else m.low)
    count = sum(map(len, states.values()))
    if not count:
        return Verdict()
    held = len(states["holds"])
    grade = YES if held == len(e.named(claim.pairs)) else PARTLY if held else NO
    texts = [
        f"{words} {', '.join(states[state])}"
        for state, words in (("fails", "not on"), ("open", "open on"))
        if states[state]
    ]
    least = min(worst, key=lambda pair: worst[pair].low)
    details = "; ".join([*texts, f"least: {least}, {worst[least]}"])
    undecided = f", {len(states['open'])} open" if states["open"] else ""
    return Verdict(grade, f"{held} of {count}{undecided}", details)


@dataclass(frozen=True, eq=False)
class Evidence:
    """All figures, by experiment, and those of single instances."""

    plan: Plan
    table: pd.DataFrame
    digits: pd.DataFrame = field(default_factory=pd.DataFrame)  # of E5, as `e5.csv` keeps them
    instances: pd.DataFrame = field(default_factory=pd.DataFrame)

    def results(self, experiment: str) -> Results:
        """Returns what was measured in one experiment."""
        return Results(self.plan, experiment, part(self.table, experiment))

    @cached_property
    def figures_of_digits(self) -> Figures:
        """The figures of E5; labels take the place of a pair."""
        return figures_of(self.digits)

    @cached_property
    def pairs(self) -> list[str]:
        """The paper's pairs there are figures of."""
        known = self.results("e2").pairs
        return [name for name in known if self.plan[name].reported is not None]

    def named(self, which: str) -> list[str]:
        """The pairs a claim names."""
        if which == "digits":
            return ["MNIST"]
        mixed = [name for name in self.pairs if self.plan[name].data in MIXED]
        if which in ("mixed", "all"):
            return mixed if which == "mixed" else self.pairs
        return [name for name in self.pairs if name not in mixed]  # continuous, shown

    def figure(self, experiment: str, pair: str, side: str, metric: str, *key: str) -> float:
        """Returns the mean over seeds of a figure; `key` is the method and the label."""
        return mean(self.seeds(experiment, pair, side, metric, *key).ravel())

    @cached_property
    def _seeds(self) -> dict[tuple[str, ...], dict[int, float]]:
        keys = ["experiment", "pair", "recipe", "method", "metric", "label"]
        found: dict[tuple[str, ...], dict[int, float]] = {}
        for *key, seed, mean in self.table[[*keys, "seed", "mean"]].itertuples(index=False):
            key[0] = "e1" if key[0] == "extra" else key[0]
            found.setdefault(tuple(key), {})[seed] = mean
        return found

    @cached_property
    def _values(self) -> dict[tuple[str, ...], dict[int, Floats]]:
        found: dict[tuple[str, ...], dict[int, Floats]] = {}
        for pair, side, seed, method, metric, text in self.instances.itertuples(index=False):
            numbers = np.array([float(v) if v else math.nan for v in text.split(" ")])
            found.setdefault((pair, side, method, metric), {})[int(seed)] = numbers
        return found

    def seeds(
        self, experiment: str, pair: str, side: str, metric: str, method: str = "", label: str = ""
    ) -> Floats:
        """Returns a figure of every seed, (seeds, 1)."""
        found = self._seeds.get((experiment, pair, side, method, metric, label), {})
        values = [found[seed] for seed in sorted(found)]
        return np.array(values, dtype=np.float64).reshape(-1, 1)

    def less(
        self, pair: str, side: str, metric: str, one: str, other: str, times: float = 1.0
    ) -> Margin:
        """Returns by how much a method's figure of E2 is less than another's, times a factor.

        Compared on the same seeds and instances; where only figures of seeds are kept, on those.

        Args:
            pair: The pair.
            side: The model whose picks are compared; baselines are those of every model.
            metric: The figure.
            one: The method.
            other: The method whose figure should be greater.
            times: Factor of the greater.
        """
        keys = [(side_of(method, side), method) for method in (one, other)]
        a, b = (self._values.get((pair, *key, metric), {}) for key in keys)
        rows = []
        for seed in sorted(set(a) & set(b)):
            count = min(len(a[seed]), len(b[seed]))
            rows.append(times * b[seed][:count] - a[seed][:count])
        if not rows:
            mine, theirs = (self.seeds("e2", pair, key[0], metric, key[1]) for key in keys)
            if len(mine) == len(theirs):
                rows = list(times * theirs - mine)
        width = max(map(len, rows), default=0)
        padded = [np.pad(row, (0, width - len(row)), constant_values=math.nan) for row in rows]
        name = f"{metric} of {one} below {other}"
        return interval(name, np.array(padded).reshape(len(rows), width))


def side_of(method: str, side: str) -> str:
    """Returns the side that a method's figures are kept under, for one model."""
    return "baselines" if method in BASELINES else side


def mean(values: Iterable[float]) -> float:
    """Returns the mean of the values that are known."""
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan
