"""Figures over repeats, and the Markdown every page is made of.

Everything here is made from the tidy table alone; nothing is run. A figure is the mean over the
repeats there are, with its standard deviation behind ±.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

__all__ = ["NONE", "NOTHING", "Figure", "Figures", "grid", "into"]

NONE = "–"


@dataclass(frozen=True)
class Figure:
    """One metric of one pair and recipe, over its repeats.

    Attributes:
        mean: Over repeats.
        deviation: Standard deviation over repeats; NaN for one.
        repeats: How many.
        hits: Of shares, what they are shares of, times the share, over all repeats together.
        count: What they are shares of, over all repeats together.

    Examples:
        >>> Figure(0.0123, 0.0045, 5, 0, 0).text(100, 1)
        '1.2 ± 0.4'
    """

    mean: float
    deviation: float
    repeats: int
    hits: int
    count: int

    def text(self, scale: float = 1.0, digits: int = 2) -> str:
        """Mean ± deviation."""
        if math.isnan(self.mean):
            return NONE
        spread = "" if math.isnan(self.deviation) else f" ± {scale * self.deviation:.{digits}f}"
        return f"{scale * self.mean:.{digits}f}{spread}"

    def bare(self, scale: float = 1.0, digits: int = 2) -> str:
        """The mean alone."""
        return NONE if math.isnan(self.mean) else f"{scale * self.mean:.{digits}f}"

    @property
    def of(self) -> str:
        """Counted out: 49 of 50."""
        return f"{self.hits} of {self.count}" if self.count else NONE


NOTHING = Figure(math.nan, math.nan, 0, 0, 0)


@dataclass(frozen=True)
class Figures:
    """All figures of a tidy table, by pair, recipe, method, metric and label."""

    by_name: dict[tuple[str, str, str, str, str], Figure]

    @classmethod
    def of(cls, table: pd.DataFrame) -> Figures:
        """From a table as `tidy` makes it.

        Examples:
            >>> line = {"pair": "wine-RF", "recipe": "default", "metric": "ks", "label": ""}
            >>> table = pd.DataFrame([{**line, "mean": v, "count": 100} for v in (0.1, 0.3)])
            >>> Figures.of(table).get("wine-RF", "default", "ks").mean
            0.2
        """
        found = {}
        filled = table.assign(
            label=table["label"].fillna("").astype(str),
            method=table["method"].fillna("").astype(str) if "method" in table else "",
        )
        for name, part in filled.groupby(["pair", "recipe", "method", "metric", "label"]):
            values = part["mean"].to_numpy(dtype=np.float64)
            counts = part["count"].to_numpy(dtype=np.int64)
            known = ~np.isnan(values)
            values, counts = values[known], counts[known]
            if len(values):
                found[name] = Figure(
                    float(values.mean()),
                    float(values.std(ddof=1)) if len(values) > 1 else math.nan,
                    len(values),
                    round(float(values @ counts)),
                    int(counts.sum()),
                )
        return cls(found)

    def get(self, pair: str, recipe: str, metric: str, label: str = "", method: str = "") -> Figure:
        """One figure; all NaN where there is none."""
        return self.by_name.get((pair, recipe, method, metric, label), NOTHING)

    def labels(self, pair: str, recipe: str, metric: str) -> list[str]:
        """The labels a metric was measured for."""
        return sorted(
            label
            for p, r, _, m, label in self.by_name
            if (p, r, m) == (pair, recipe, metric) and label
        )

    def ratio(self, pair: str, recipe: str, over: str, under: str) -> float:
        """One metric's mean over another's."""
        below = self.get(pair, recipe, under).mean
        return self.get(pair, recipe, over).mean / below if below else math.nan


def grid(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table.

    Examples:
        >>> print(grid(("a", "b"), [("1", "2")]))
        | a | b |
        | --- | --- |
        | 1 | 2 |
    """
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def into(page: str, name: str, part: str) -> str:
    r"""A page with `part` between its marks `<!-- name -->` and `<!-- /name -->`.

    Examples:
        >>> into("a <!-- e1 -->old<!-- /e1 --> z", "e1", "new")
        'a <!-- e1 -->\n\nnew\n\n<!-- /e1 --> z'
        >>> into("nowhere to put it", "e1", "new")
        'nowhere to put it'
    """
    before, mark, rest = page.partition(f"<!-- {name} -->")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    return f"{before}{mark}\n\n{part}\n\n{end}{after}" if mark and end else page
