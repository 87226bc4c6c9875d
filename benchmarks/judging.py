"""Judging figures: targets of our own, pair by pair, and claims of the paper.

A `Target` says of one pair by which margin it is met; its verdict names the pairs that miss it. A
claim is a function from all figures (`Evidence`) to a `Verdict`; `claim` puts it among `FINDINGS`.
Its verdict is about the paper's model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

import pandas as pd

from benchmarks.figures import Figures, grid, pairs_of, part
from benchmarks.plan import Plan

__all__ = [
    "BASELINES",
    "FINDINGS",
    "LAPACE",
    "MODELS",
    "NO",
    "NOT_RUN",
    "PARTLY",
    "YES",
    "Evidence",
    "Finding",
    "Target",
    "Value",
    "Verdict",
    "at_least",
    "at_most",
    "claim",
    "figure_of",
    "judged",
    "mean",
    "share",
    "targets_table",
    "top",
    "verdict_of",
]

MODELS = ("paper", "default")
LAPACE = ("First", "Middle", "Last")
BASELINES = ("NNCE", "FACE", "RobXCE", "DiCE", "DRCE")  # the paper's
MIXED = ("adult", "compas")  # the paper's data sets with categories
YES, NO, PARTLY = "confirmed", "**not confirmed**", "**partly confirmed**"
SLACK = 1e-9

Value: TypeAlias = Callable[[Figures, str], tuple[float, str]]  # of a pair; and in words

# ------------------------------------------------------------------------------------------------
# Targets


@dataclass(frozen=True)
class Target:
    """An aim, judged pair by pair.

    Attributes:
        name: What is aimed at.
        wanted: The aim, in words.
        judge: Returns a pair's margin, at least 0 where the target is met and NaN where nothing can
            be judged, and its figures in words.
    """

    name: str
    wanted: str
    judge: Value


def figure_of(
    method: str, metric: str, label: str = "", *, recipe: str = "default", spec: str = ".3",
    name: str = "",
) -> Value:  # fmt: skip
    """Returns the mean of a metric of a method."""

    def value(figures: Figures, pair: str) -> tuple[float, str]:
        figure = figures.get(pair, recipe, metric, method, label)
        return figure.mean, f"{name or method} {figure:{spec}}".strip()

    return value


def top(choose: Callable[..., tuple[float, str]], *values: Value) -> Value:
    """Returns the least or the greatest of some figures that are known."""

    def value(figures: Figures, pair: str) -> tuple[float, str]:
        found = [value(figures, pair) for value in values]
        return choose((own for own in found if not math.isnan(own[0])), default=(math.nan, ""))

    return value


def at_most(one: Value, other: Value | float, *, times: float = 1.0) -> Value:
    """Returns the margin by which one figure, times a factor, is at most another."""

    def judge(figures: Figures, pair: str) -> tuple[float, str]:
        value, text = one(figures, pair)
        bound, more = (other, "") if isinstance(other, float) else other(figures, pair)
        return bound - times * value, f"{text}, {more}" if more else text

    return judge


def at_least(one: Value, other: Value | float) -> Value:
    """Returns the margin by which one figure is at least another."""

    def judge(figures: Figures, pair: str) -> tuple[float, str]:
        margin, text = at_most(one, other)(figures, pair)
        return -margin, text

    return judge


def verdict_of(target: Target, figures: Figures, pairs: Sequence[str]) -> tuple[str, str, int]:
    """Judges a target on the pairs with figures.

    Returns:
        The worst pair's figures, the verdict, and how many pairs were judged.

    Examples:
        >>> target = Target("agreement", "≥ 0.9", lambda _, pair: (len(pair) - 3.0, f"{len(pair)}"))
        >>> verdict_of(target, Figures(pd.DataFrame()), ["a", "wine"])
        ('a: 1', '**missed** on a', 2)
    """
    found = {pair: target.judge(figures, pair) for pair in pairs}
    found = {pair: own for pair, own in found.items() if not math.isnan(own[0])}
    if not found:
        return "", "not run", 0
    worst = min(found, key=lambda pair: found[pair][0])
    missed = [pair for pair, (margin, _) in found.items() if margin < -SLACK]
    every = len(missed) == len(found) > 1
    where = "every pair" if every else ", ".join(missed)
    verdict = f"**missed** on {where}" if missed else "met"
    return f"{worst}: {found[worst][1]}", verdict, len(found)


def targets_table(
    targets: Iterable[Target], figures: Figures, pairs: Sequence[str], planned: int
) -> str:
    """Returns targets as a table; one judged on some of the planned pairs says so."""
    lines = []
    for target in targets:
        reached, verdict, count = verdict_of(target, figures, pairs)
        some = f" ({count} of {planned} pairs)" if 0 < count < planned else ""
        lines.append((target.name, target.wanted, reached, f"{verdict}{some}"))
    return grid(("target", "wanted, on every pair", "reached", "verdict"), lines)


# ------------------------------------------------------------------------------------------------
# Claims


class Verdict(NamedTuple):
    """The figures of the paper's model and of the default recipe, and what follows."""

    its: str
    ours: str
    verdict: str
    because: str = ""


NOT_RUN = Verdict("–", "–", "not run")
Judge: TypeAlias = "Callable[[Evidence], Verdict]"


class Finding(NamedTuple):
    """A claim of the paper and how it is judged."""

    where: str
    claim: str
    judge: Judge


FINDINGS: list[Finding] = []  # in the order of the claims


def claim(where: str, text: str) -> Callable[[Judge], Judge]:
    """Decorates the function that judges a claim of the paper."""

    def marked(judge: Judge) -> Judge:
        FINDINGS.append(Finding(where, text, judge))
        return judge

    return marked


@dataclass(frozen=True)
class Evidence:
    """All figures, by experiment."""

    plan: Plan
    table: pd.DataFrame
    digits: Figures = field(default_factory=lambda: Figures(pd.DataFrame()))  # of E5

    @cached_property
    def e1(self) -> Figures:
        """Utility and centroids."""
        return Figures(part(self.table, "e1"))

    @cached_property
    def e2(self) -> Figures:
        """The comparison of methods."""
        return Figures(part(self.table, "e2"))

    @cached_property
    def e3(self) -> Figures:
        """Actionability."""
        return Figures(part(self.table, "e3"))

    @cached_property
    def pairs(self) -> list[str]:
        """The paper's pairs there are figures of."""
        known = pairs_of(self.plan, part(self.table, "e2"))
        return [name for name in known if self.plan[name].reported is not None]

    @cached_property
    def mixed(self) -> list[str]:
        """The pairs with categories."""
        return [name for name in self.pairs if self.plan[name].data in MIXED]

    @cached_property
    def continuous(self) -> list[str]:
        """The pairs without categories."""
        return [name for name in self.pairs if name not in self.mixed]

    def get(self, method: str, metric: str, pair: str, recipe: str = "baselines") -> float:
        """Returns one figure of E2."""
        return self.e2.get(pair, recipe, metric, method).mean

    def mean(
        self,
        method: str,
        metric: str,
        recipe: str = "baselines",
        pairs: Sequence[str] | None = None,
    ) -> float:
        """Returns the mean over pairs of a figure of E2."""
        own = self.pairs if pairs is None else pairs
        return mean(self.get(method, metric, pair, recipe) for pair in own)

    def where(self, test: Callable[[str], bool], pairs: Sequence[str] | None = None) -> list[str]:
        """Returns the pairs a comparison holds on; one with a missing figure does not hold."""
        return [name for name in (self.pairs if pairs is None else pairs) if test(name)]


def mean(values: Iterable[float]) -> float:
    """Returns the mean of the values that are known."""
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


def share(found: Sequence[str], total: Sequence[str]) -> str:
    """Returns how many pairs of how many, in words."""
    return f"{len(found)} of {len(total)} pairs"


def judged(found: Sequence[str], total: Sequence[str]) -> str:
    """Grades a claim by the pairs it holds on: all of them, at least half, or fewer."""
    if not total:
        return "not run"
    return YES if len(found) == len(total) else PARTLY if 2 * len(found) >= len(total) else NO
