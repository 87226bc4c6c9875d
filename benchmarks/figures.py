"""Figures over repeats, and Markdown tables made of them.

A figure is the mean over the repeats that were run, with its standard deviation after ±. Columns
of a table are templates such as `"{gap_raw:±.1p}"` or `"{first_lof} ({nnce_lof})"`, filled from the
figures of one pair, recipe, method and label.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from benchmarks.plan import Plan
from benchmarks.provenance import code_of

NONE = "–"
SPEC = re.compile(r"([±~]?)(?:\.(\d))?(p?)")
KEYS = ["pair", "recipe", "method", "label", "metric"]


@dataclass(frozen=True)
class Figure:
    """One metric over its repeats.

    Format it with `.2` (digits), `±` (with the deviation), `~` (weighted by counts), `p` (times
    100, for percent and points), or `of` (counted over all repeats).

    Attributes:
        mean: Over repeats.
        deviation: Standard deviation over repeats; NaN for one.
        repeats: How many.
        hits: The sum of means times counts: for shares, the number of hits.
        count: The number of cases over all repeats.

    Examples:
        >>> figure = Figure(0.98, 0.0045, 5, 49, 50)
        >>> f"{figure}; {figure:.1p}; {figure:±.1p}; {figure:of}"
        '0.98; 98.0; 98.0 ± 0.4; 49 of 50'
        >>> f"{Figure(0.9996):.1p}; {Figure(1.0):.1p}"
        '99.9; 100.0'
    """

    mean: float = math.nan
    deviation: float = math.nan
    repeats: int = 0
    hits: float = 0.0
    count: int = 0

    def __format__(self, spec: str) -> str:
        if spec == "of":
            return f"{self.hits:.0f} of {self.count}" if self.count else NONE
        match = SPEC.fullmatch(spec)
        if match is None:
            raise ValueError(f"A figure is not formatted by {spec!r}.")
        if math.isnan(self.mean):
            return NONE
        digits, scale = int(match[2] or 2), 100.0 if match[3] else 1.0
        mean = self.hits / self.count if match[1] == "~" and self.count else self.mean
        text = f"{scale * mean:.{digits}f}"
        if match[3] and mean < 1 - 1e-9 and float(text) >= 100:  # what is not all is not 100%
            text = f"{100 - 10.0**-digits:.{digits}f}"
        if match[1] != "±" or math.isnan(self.deviation):
            return text
        return f"{text} ± {scale * self.deviation:.{digits}f}"


NO_FIGURE = Figure()


@dataclass(frozen=True)
class Line:
    """The figures of one pair, recipe, method and label: `line["lof"]`."""

    figures: Mapping[tuple[str, ...], Figure]
    key: tuple[str, ...]

    def __getitem__(self, metric: str) -> Figure:
        return self.figures.get((*self.key, metric), NO_FIGURE)


class Figures:
    """All figures of a tidy table.

    Examples:
        >>> line = {"pair": "wine-RF", "recipe": "default", "metric": "lof", "label": ""}
        >>> table = pd.DataFrame([{**line, "mean": v, "count": 100} for v in (0.1, 0.3)])
        >>> figures = Figures(table)
        >>> figures.get("wine-RF", "default", "lof").mean
        0.2
        >>> "LOF {lof}".format_map(figures.line("wine-RF", "default"))
        'LOF 0.20'
    """

    def __init__(self, table: pd.DataFrame) -> None:
        # The digits have no methods, and a table may be empty.
        known = table.reindex(columns=[*KEYS, "mean", "count"], fill_value="")
        known = known.dropna(subset="mean").astype({"mean": float, "count": int})
        known["hits"] = known["mean"] * known["count"]
        groups = known.groupby(KEYS, sort=False)
        found = groups.agg(
            mean=("mean", "mean"),
            deviation=("mean", "std"),
            repeats=("mean", "size"),
            hits=("hits", "sum"),
            count=("count", "sum"),
        )
        self.by_key: dict[tuple[str, ...], Figure] = {
            key: Figure(*figure) for key, *figure in found.itertuples(name=None)
        }

    def line(self, pair: str, recipe: str, method: str = "", label: str = "") -> Line:
        """Returns the figures of one pair, recipe, method and label, by metric."""
        return Line(self.by_key, (pair, recipe, method, label))

    def get(self, pair: str, recipe: str, metric: str, method: str = "", label: str = "") -> Figure:
        """Returns one figure; without a mean where there is none."""
        return self.line(pair, recipe, method, label)[metric]

    def labels(self, pair: str, recipe: str, metric: str) -> list[str]:
        """Returns the labels a metric was measured for."""
        found = (key for key in self.by_key if (key[0], key[1], key[4]) == (pair, recipe, metric))
        return sorted({key[3] for key in found if key[3]})


def grid(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table.

    Examples:
        >>> print(grid(("a", "b"), [("1", "2")]))
        | a | b |
        | --- | --- |
        | 1 | 2 |
    """
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def insert(page: str, name: str, block: str) -> str:
    r"""Returns a page with `block` between its markers `<!-- name -->` and `<!-- /name -->`.

    Examples:
        >>> insert("a <!-- e1 -->old<!-- /e1 --> z", "e1", "new")
        'a <!-- e1 -->\n\nnew\n\n<!-- /e1 --> z'
        >>> insert("no markers", "e1", "new")
        'no markers'
    """
    before, mark, rest = page.partition(f"<!-- {name} -->")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    return f"{before}{mark}\n\n{block}\n\n{end}{after}" if mark and end else page


# ------------------------------------------------------------------------------------------------
# Where figures come from

REPEATS = (
    "Mean ± standard deviation over repeats. Shares just short of 100% are not rounded up to it."
)
SIDES = {
    "default": "with the default recipe",
    "printed": "as printed",
    "gumbel": "as printed with a Gumbel draw",
    "paper": "as read here",
    "baselines": "of the baselines",
}
OUTDATED = "> **Outdated**"  # how the line on figures of older code or settings begins


def part(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Returns one experiment's lines; E1's with those of the tables the paper does not have."""
    return table[table["experiment"].isin(_names(name))]


def _names(experiment: str) -> tuple[str, ...]:
    return ("e1", "extra") if experiment == "e1" else (experiment,)


def origins(table: pd.DataFrame) -> dict[str, str]:
    """Returns the commit, environment and machine of a table's figures; all where they differ."""
    names = ("commit", "environment", "machine")
    return {name: "; ".join(sorted(set(table[name]) - {""})) or "unknown" for name in names}


@dataclass(frozen=True, eq=False)
class Results:
    """What was measured in one experiment.

    Attributes:
        plan: What was to be run.
        experiment: Such as `e2`.
        table: The experiment's lines of the tidy table, with where they come from.
    """

    plan: Plan
    experiment: str
    table: pd.DataFrame

    @cached_property
    def figures(self) -> Figures:
        """The figures over repeats."""
        return Figures(self.table)

    @cached_property
    def pairs(self) -> list[str]:
        """The paper's pairs there are figures of.

        Means are over these alone: not every method has figures of the others.
        """
        return self.pairs_of("e1")

    def pairs_of(self, kind: str) -> list[str]:
        """Returns the pairs of a kind there are figures of: `e1`, the paper's, or `extra`."""
        known = set(self.table["pair"])
        return [p.name for p in self.plan.pairs if p.name in known and p.experiment == kind]

    @property
    def made(self) -> str:
        """How the figures were made, how much of the plan they are, and whether they are old."""
        names, plan = _names(self.experiment), self.plan
        commit, environment, machine = origins(self.table).values()
        planned = Counter(job.recipe for job in plan.jobs(experiments=names))
        done = self.table.groupby("recipe")["settings"].nunique()
        counts = ", ".join(
            f"{done.get(side, 0)} of {planned[side]} {words}"
            for side, words in SIDES.items()
            if planned[side]
        )
        text = (
            f"Made by `python -m benchmarks{' --quick' if plan.is_quick else ''} --experiment "
            f"{' '.join(names)}` at commit {commit}, with {environment}, on {machine}. Jobs: "
            f"{counts}; seeds {', '.join(map(str, sorted(set(self.table['seed']))))}."
        )
        return "\n\n".join(filter(None, (text, self.outdated)))

    @property
    def outdated(self) -> str:
        """A line that marks figures whose code or settings have changed since; else nothing."""
        keys, sides = [job.key for job in self.plan.jobs()], self.table["recipe"]
        codes = {side: code_of(self.experiment, side) for side in set(sides)}
        old = ~self.table["settings"].isin(keys) | (self.table["code"] != sides.map(codes))
        if not old.any():
            return ""
        which = "these figures"
        if not old.all():
            some = [words for side, words in SIDES.items() if (old & (sides == side)).any()]
            which = f"the figures {' and '.join(some)}"
        return f"{OUTDATED}: code or settings have changed since {which} were measured."


def commits(table: pd.DataFrame) -> str:
    """Returns the sentence that names the commits a table's figures were measured at.

    Examples:
        >>> commits(pd.DataFrame({"recipe": ["paper", "default"], "commit": "abc"}))
        'Measured at commit abc.'
        >>> commits(pd.DataFrame({"recipe": ["baselines", "default"], "commit": ["abc", "def"]}))
        'Measured at commit abc (of the baselines) and def (with the default recipe).'
    """
    found = table.groupby("commit")["recipe"].unique()
    texts = [
        f"{commit} ({', '.join(SIDES[side] for side in SIDES if side in set(sides))})"
        for commit, sides in found.items()
    ]
    return f"Measured at commit {' and '.join(texts if len(texts) > 1 else found.index)}."
