"""The page of the measurement of advice: the targets with the figures reached, then every pair."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.figures import NONE, grid

__all__ = ["page"]

PAPER = ("heloc", "wine", "adult", "compas")  # its tables
BASELINES = ("NNCE", "simplest")


@dataclass(frozen=True)
class Share:
    """Cases counted over pairs and seeds.

    Examples:
        >>> Share(3, 200).text
        '3 of 200 (1.5 %)'
    """

    hits: float
    count: int

    @property
    def mean(self) -> float:
        """The share, or the mean weighted by counts."""
        return self.hits / self.count if self.count else math.nan

    @property
    def text(self) -> str:
        """In words."""
        if not self.count:
            return NONE
        return f"{self.hits:,.0f} of {self.count:,} ({100 * self.mean:.1f} %)"


@dataclass(frozen=True)
class Results:
    """The lines of some pairs."""

    table: pd.DataFrame

    @property
    def pairs(self) -> list[str]:
        """The pairs there are."""
        return list(dict.fromkeys(self.table["pair"]))

    def of(self, pair: str) -> Results:
        """The lines of one pair."""
        return Results(self.table[self.table["pair"] == pair])

    def _lines(self, part: str, metric: str, label: str | None, method: str) -> pd.DataFrame:
        t = self.table
        own = (t["part"] == part) & (t["metric"] == metric) & (t["method"] == method)
        own &= t["mean"].notna()
        return t[own if label is None else own & (t["label"] == label)]

    def share(self, part: str, metric: str, label: str | None = "", method: str = "") -> Share:
        """A metric over all seeds; of all labels where label is None."""
        own = self._lines(part, metric, label, method)
        return Share(float((own["mean"] * own["count"]).sum()), int(own["count"].sum()))

    def geometric(self, part: str, metric: str, label: str = "", method: str = "") -> float:
        """The geometric mean over all that was counted of a metric that is one itself."""
        own = self._lines(part, metric, label, method)
        logs, count = np.log(own["mean"]) * own["count"], own["count"].sum()
        return float(np.exp(logs.sum() / count)) if count else math.nan

    def most(self, part: str, metric: str, label: str = "") -> float:
        """The largest value of a metric."""
        t = self.table
        own = t[(t["part"] == part) & (t["metric"] == metric) & (t["label"] == label)]
        return float(own["mean"].max()) if len(own) else math.nan

    def paired(self, metric: str, one: str, other: str) -> tuple[float, float]:
        """Means of two methods on the instances both answer."""
        label = f"{one} and {other}"
        return tuple(self.share("beside", f"paired_{metric}", label, m).mean for m in (one, other))  # type: ignore[return-value]


def page(table: pd.DataFrame) -> str:
    """The page as Markdown.

    Args:
        table: The lines of `advice.csv`, of one state of the code.
    """
    found = Results(table)
    about = (
        "Measured by `python -m benchmarks.advice` with checks of their own, which ask the "
        "classifier and take nothing from the explainer. Pairs of a table and a classifier: "
        f"{len(found.pairs)}; seeds: {table['seed'].nunique()}; {_count(found)}."
    )
    out = [
        "# How far the advice can be followed",
        about,
        grid(("what", "target", "reached", "met"), targets(found)),
    ]
    for title, head, line in SECTIONS:
        lines = [line(found.of(pair)) for pair in found.pairs]
        lines = [(pair, *cells) for pair, cells in zip(found.pairs, lines, strict=True) if cells]
        if lines:
            out += [f"## {title}", grid(("pair", *head), lines)]
    out += _left_out(found)
    return "\n\n".join(out) + "\n"


def _count(found: Results) -> str:
    n = found.share("minimal", "minimal", "free").count
    return f"rows `nearest` without further constraints: {n:,}"


def _left_out(found: Results) -> list[str]:
    own = found.table[found.table["metric"] == "left_out"]
    reasons = own.groupby(["pair", "part", "label"], sort=False).size().index
    lines = [f"- {pair}, {part}: {label}" for pair, part, label in reasons]
    return ["## Left out", "\n".join(lines)] if lines else []


# ------------------------------------------------------------------------------------------------
# Targets


def targets(found: Results) -> Iterator[tuple[str, str, str, str]]:
    """What was asked for, what was reached, and whether that is enough."""
    for what, target, reached, met in _targets(found):
        if reached != NONE:
            yield what, target, reached, "yes" if met else "**no**"


def _targets(found: Results) -> Iterator[tuple[str, str, str, bool]]:
    free, limited = found.share("minimal", "minimal", "free"), found.share("added", "minimal")
    yield "`nearest` is 1-minimal", "all", free.text, free.hits == free.count
    yield (
        "… under an added constraint", "all", limited.text, limited.hits == limited.count
    )  # fmt: skip
    alone = found.share("minimal", "differs_alone")
    yield "… another row when the instance is explained alone", "none", alone.text, not alone.hits
    only = found.share("minimal", "differs_by_picks")
    yield "… another row when no other pick is computed", "none", only.text, not only.hits
    closer, more = found.share("added", "closer"), found.share("added", "closer_5")
    yield "a constraint brings a closer answer", "at most 1 %", closer.text, closer.mean <= 0.01
    yield "… closer by more than 5 %", "none", more.text, more.hits == 0
    obeyed = found.share("added", "farther_though_obeyed")
    yield (
        "… a farther one, or none, though the free answer obeys it", "none", obeyed.text,
        obeyed.hits == 0,
    )  # fmt: skip
    yield from _comparisons(found)
    for word, share in (("median", 50), ("95th percentile", 95)):
        yield (
            f"LOF of `best(1)`, {word}, at most 1.2 x real rows' 95th percentile", "every pair",
            *_over_pairs(found, partial(_real, share=share)),
        )  # fmt: skip
    yield (
        "`best(1)` survives retraining, at least 90 %",
        "every pair",
        *_over_pairs(found, _survives),
    )


def _over_pairs(found: Results, holds: Callable[[Results], bool | None]) -> tuple[str, bool]:
    """How many pairs hold, and those that do not; None for a pair that was not measured."""
    said = {pair: holds(found.of(pair)) for pair in found.pairs}
    known = {pair: flag for pair, flag in said.items() if flag is not None}
    if not known:
        return NONE, False
    groups = []
    for word, paper in (("the paper's", True), ("other", False)):
        own = [flag for pair, flag in known.items() if (pair.rpartition("-")[0] in PAPER) == paper]
        groups += [f"{sum(own)} of {len(own)} {word} pairs"] if own else []
    not_ = [pair for pair, flag in known.items() if not flag]
    return ", ".join(groups) + (f" (not {', '.join(not_)})" if not_ else ""), not not_


def _comparisons(found: Results) -> Iterator[tuple[str, str, str, bool]]:
    every = "every pair"
    yield "`nearest` closer than each baseline", every, *_over_pairs(found, _closest)
    yield (
        "no baseline both closer and sparser than `nearest`", every, *_over_pairs(found, _dominated)
    )  # fmt: skip
    yield "LOF of `nearest` no worse than NNCE's", every, *_over_pairs(found, _usual)
    yield "`best(1)` closer than RobXCE", every, *_over_pairs(found, _robust)


def _both(
    found: Results, metric: str, other: str, one: str = "nearest"
) -> tuple[float, float] | None:
    a, b = found.paired(metric, one, other)
    return None if math.isnan(a) or math.isnan(b) else (a, b)


def _closest(found: Results) -> bool | None:
    means = [m for name in BASELINES if (m := _both(found, "distance", name))]
    return all(a < b for a, b in means) if means else None


def _dominated(found: Results) -> bool | None:
    flags = []
    for name in BASELINES:
        far, many = _both(found, "distance", name), _both(found, "changes", name)
        if far and many:
            flags.append(far[1] < far[0] and many[1] < many[0])
    return not any(flags) if flags else None


def _usual(found: Results) -> bool | None:
    lof = _both(found, "lof", "NNCE")
    return lof[0] <= lof[1] if lof else None


def _robust(found: Results) -> bool | None:
    far = _both(found, "distance", "RobXCE", "best(1)")
    return far[0] < far[1] if far else None


def _real(found: Results, share: int) -> bool | None:
    ours = found.share("beside", f"lof_{share}", method="best(1)").mean
    real = found.share("beside", "lof_95", method="real rows").mean
    return None if math.isnan(ours) or math.isnan(real) else ours <= 1.2 * real


def _survives(found: Results) -> bool | None:
    share = found.share("survival", "survives", method="best(1)").mean
    return None if math.isnan(share) else share >= 0.9


# ------------------------------------------------------------------------------------------------
# Pair by pair


def _numbers(values: Iterable[float], digits: int = 2) -> tuple[str, ...]:
    return tuple(NONE if math.isnan(v) else f"{v:.{digits}f}" for v in values)


def _minimal_line(found: Results) -> Sequence[str] | None:
    if not (free := found.share("minimal", "minimal", "free")).count:
        return None
    undone, back = (found.share("minimal", m, "free").text for m in ("undone", "back"))
    changes = found.share("minimal", "changes", "free").mean
    return free.text, undone, back, *_numbers([changes])


def _added_line(found: Results) -> Sequence[str] | None:
    closer = found.share("added", "closer")
    if not closer.count:
        return None
    most = 100 * found.most("added", "closer_most")
    means = [found.share("added", f"{name}_distance").mean for name in ("free", "limited")]
    far = found.share("added", "farther_though_obeyed").text
    return closer.text, f"{most:.0f} %", *_numbers(means, 3), far


def _method_cells(found: Results, method: str) -> str:
    metrics = ("distance", "range_distance", "changes", "lof")
    cells = _numbers(found.share("beside", metric, method=method).mean for metric in metrics)
    return NONE if set(cells) == {NONE} else " / ".join(cells)


METHODS = ("nearest", "best(1)", "best(3)", *BASELINES, "RobXCE", "real rows")


def _beside_line(found: Results) -> Sequence[str] | None:
    cells = [_method_cells(found, method) for method in METHODS]
    return None if set(cells) == {NONE} else cells


QUERIES = ("paths", "nearest", "default", "few")


def _queries_line(found: Results) -> Sequence[str] | None:
    rows = [found.share("queries", "rows", method=name) for name in QUERIES]
    simplest = found.share("beside", "queries", method="simplest")
    if not rows[0].count:
        return None
    return _numbers([*(share.mean for share in rows), simplest.mean], 1)


def _survival_line(found: Results) -> Sequence[str] | None:
    cells: list[str] = []
    for method in ("nearest", "best(1)"):
        names = ("survives", "estimated", "brier")
        shares = [found.share("survival", name, method=method) for name in names]
        cells += _numbers(share.mean for share in shares)
    return None if set(cells) == {NONE} else cells


SECTIONS: Sequence[tuple[str, Sequence[str], Callable[[Results], Any]]] = (
    (
        "Minimality of `nearest`",
        ("minimal", "a change can be undone", "a number can go back", "changes"),
        _minimal_line,
    ),
    (
        "One added constraint",
        (
            "closer than the free answer", "by at most", "distance, free", "limited",
            "farther though the free answer obeys it",
        ),
        _added_line,
    ),
    ("Beside other methods: distance / over range / changes / LOF", METHODS, _beside_line),
    (
        "Survival under retrained classifiers",
        (
            "`nearest`: survives", "estimated", "Brier",
            "`best(1)`: survives", "estimated", "Brier",
        ),
        _survival_line,
    ),
    (
        "Rows asked per instance",
        ("first, middle, last", "`nearest` alone", "by default", "few", "the simplest method"),
        _queries_line,
    ),
)  # fmt: skip
