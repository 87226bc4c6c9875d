"""What verdicts on the paper's findings are drawn from: all figures, by experiment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from benchmarks.digits_page import figures_of
from benchmarks.figures import Figures
from benchmarks.plan import Plan
from benchmarks.provenance import pairs_of, part

__all__ = [
    "BASELINES",
    "LAPACE",
    "MODELS",
    "NO",
    "PARTLY",
    "YES",
    "Evidence",
    "Finding",
    "Verdict",
    "judged",
    "mean",
    "share",
]

MODELS = ("paper", "default")
LAPACE = ("First", "Middle", "Last")
BASELINES = ("NNCE", "FACE", "RobXCE", "DiCE", "DRCE")  # the paper's
MIXED = ("adult", "compas")  # the paper's data sets with categories
YES, NO, PARTLY = "confirmed", "**not confirmed**", "**partly confirmed**"


@dataclass(frozen=True)
class Evidence:
    """All figures, by experiment."""

    plan: Plan
    table: pd.DataFrame
    digits: pd.DataFrame = field(default_factory=pd.DataFrame)  # as E5 keeps it

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
    def e5(self) -> Figures:
        """The digits."""
        return figures_of(self.digits) if len(self.digits) else Figures(self.table.iloc[:0])

    @cached_property
    def pairs(self) -> list[str]:
        """The paper's pairs there are figures of."""
        known = pairs_of(self.plan, part(self.table, "e2"))
        return [name for name in known if self.plan[name].reported is not None]

    @cached_property
    def mixed(self) -> list[str]:
        """Those with categories."""
        return [name for name in self.pairs if self.plan[name].data in MIXED]

    @cached_property
    def continuous(self) -> list[str]:
        """Those without."""
        return [name for name in self.pairs if name not in self.mixed]

    def get(self, method: str, metric: str, pair: str, recipe: str = "baselines") -> float:
        """One figure of E2."""
        return self.e2.get(pair, recipe, metric, method).mean

    def mean(
        self,
        method: str,
        metric: str,
        recipe: str = "baselines",
        pairs: Sequence[str] | None = None,
    ) -> float:
        """The mean over pairs of a figure of E2."""
        own = self.pairs if pairs is None else pairs
        return mean(self.get(method, metric, pair, recipe) for pair in own)

    def where(self, test: Callable[[str], bool], pairs: Sequence[str] | None = None) -> list[str]:
        """The pairs a comparison holds on; comparisons with figures there are not do not hold."""
        return [name for name in (self.pairs if pairs is None else pairs) if test(name)]


def mean(values: Iterable[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


@dataclass(frozen=True)
class Verdict:
    """What was measured, and what follows."""

    its: str  # for the paper's model
    ours: str  # for the default recipe
    verdict: str
    because: str = ""


@dataclass(frozen=True)
class Finding:
    """A claim of the paper and how it is judged."""

    where: str
    claim: str
    judge: Callable[[Evidence], Verdict]


def share(found: Sequence[str], total: Sequence[str]) -> str:
    return f"{len(found)} of {len(total)} pairs"


def judged(found: Sequence[str], total: Sequence[str]) -> str:
    if not total:
        return "not run"
    return YES if len(found) == len(total) else PARTLY if 2 * len(found) >= len(total) else NO
