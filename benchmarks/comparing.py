"""E2 as Markdown: every method and metric of every pair, the best marked, and the upshot in words.

Made from the tidy table alone. Nothing here knows a result: which method is best, where ours wins
and where it loses is worked out from the figures each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from benchmarks.figures import NONE, NOTHING, Figure, Figures, grid
from benchmarks.plan import Plan

__all__ = [
    "LINES",
    "METRICS",
    "Line",
    "Metric",
    "best",
    "brief",
    "markdown",
    "present",
    "upshot",
    "words",
]


@dataclass(frozen=True)
class Line:
    """A method as tables show it.

    Attributes:
        name: In tables.
        recipe: The side of the comparison its figures are kept under.
        method: Its name there.

    Examples:
        >>> Line("First", "default", "First").ours
        True
    """

    name: str
    recipe: str
    method: str

    @property
    def ours(self) -> bool:
        """Whether it is a pick of the default recipe."""
        return self.recipe == "default"

    @property
    def theirs(self) -> bool:
        """Whether it is a baseline."""
        return self.recipe == "baselines"


LINES = (
    *(Line(name, "baselines", name) for name in ("NNCE", "FACE", "RobXCE", "DiCE", "DRCE")),
    Line("C-CHVAE", "baselines", "CCHVAE"),
    *(Line(name, "default", name) for name in ("First", "Middle", "Last", "nearest", "sparse")),
    *(Line(f"{name}, paper's recipe", "paper", name) for name in ("First", "Middle", "Last")),
)


@dataclass(frozen=True)
class Metric:
    """A metric as tables show it.

    Attributes:
        key: Its name in the tidy table.
        title: In words.
        head: Of a column.
        sense: Whether `more` or `less` is better.
        scale: To the unit it is written in.
        digits: To write.
        log: Whether pictures of it need a logarithmic scale.

    Examples:
        >>> Metric("lof", "plausibility", "LOF", "less").text(Figure(1.234, math.nan, 1, 0, 0))
        '1.23'
    """

    key: str
    title: str
    head: str
    sense: Literal["more", "less"]
    scale: float = 1.0
    digits: int = 2
    log: bool = False

    @property
    def arrow(self) -> str:
        """Which way is better."""
        return "↑" if self.sense == "more" else "↓"

    def text(self, figure: Figure) -> str:
        """The mean, in the metric's unit."""
        return figure.bare(self.scale, self.digits)


METRICS = (
    Metric("validity", "validity: instances with a valid answer", "valid, %", "more", 100, 1),
    Metric("distance", "proximity: distance to the instance", "distance", "less"),
    Metric("lof", "plausibility: local outlier factor", "LOF", "less"),
    Metric("diversity", "diversity: distance between an instance's answers", "diversity", "more"),
    Metric("model_robustness", "robustness to model changes: answers that stay valid",
           "model changes, %", "more", 100, 1),
    Metric("input_max_set_distance", "robustness to input changes: max-set-distance",
           "input changes, max-set", "less", 1, 3),
    Metric("input_set_distance", "robustness to input changes: set distance",
           "input changes, set", "less", 1, 3),
    Metric("seconds", "runtime: processor seconds per 100 instances", "s per 100", "less", log=True),
    Metric("rows_asked", "rows the classifier is asked about, per 100 instances", "rows asked",
           "less", 1, 0, log=True),
)  # fmt: skip


def present(figures: Figures, pairs: Iterable[str]) -> list[Line]:
    """The methods there are figures of, in order."""
    names = list(pairs)
    return [
        line for line in LINES if any(_get(figures, p, line, "validity").repeats for p in names)
    ]


def best(metric: Metric, found: Sequence[Figure]) -> list[bool]:
    """Which figures are the best, as far as the digits shown can tell them apart.

    Examples:
        >>> lof = Metric("lof", "", "", "less")
        >>> best(lof, [Figure(v, 0, 1, 0, 0) for v in (1.201, 0.991, 0.992)])
        [False, True, True]
        >>> best(lof, [NOTHING, NOTHING])
        [False, False]
    """
    known = [figure.mean for figure in found if not math.isnan(figure.mean)]
    if not known:
        return [False] * len(found)
    top = max(known) if metric.sense == "more" else min(known)
    text = metric.text(Figure(top, math.nan, 1, 0, 0))
    return [metric.text(figure) == text for figure in found]


def markdown(plan: Plan, table: pd.DataFrame) -> str:
    """E2 as a page.

    Args:
        plan: What was planned.
        table: E2's part of the tidy table.

    Examples:
        >>> from benchmarks.plan import Limits, Protocol
        >>> print(markdown(Plan((), Protocol(), Limits()), pd.DataFrame()))
        # E2: every method, eight metrics
        <BLANKLINE>
        Nothing has been run yet.
        <BLANKLINE>
    """
    parts = ["# E2: every method, eight metrics"]
    if not len(table):
        return "\n\n".join([*parts, "Nothing has been run yet."]) + "\n"
    figures, pairs = Figures.of(table), _pairs(plan, table)
    parts += [_about(plan, table), "## In words", words(figures, pairs)]
    parts += ["## Mean over pairs", ABOUT_MEAN, brief(plan, table), "<!-- picture: metrics -->"]
    for pair in pairs:
        parts += [f"## {pair}", _of_pair(figures, pair)]
    parts += ["## First at a required confidence", ABOUT_SURE, _sure(figures, pairs)]
    parts += ["## One answer each beside NNCE", ABOUT_PAIRED, _paired(figures, pairs)]
    parts += ["## How many answers, and who was left out", ABOUT_COUNTS, _counts(figures, pairs)]
    return "\n\n".join(parts) + "\n"


ABOUT_MEAN = (
    "The mean over pairs of each method's mean over repeats; a method that lacks a pair is "
    "averaged over those it has. **Bold** is best, as far as the digits shown can tell."
)
ABOUT_SURE = (
    "First asked for a required probability of the target, on the same fit: share of its answers "
    "that retrained classifiers keep, in brackets LOF and distance. *Reaches 95 %*: the least of "
    "the probabilities asked for at which it does."
)
ABOUT_PAIRED = (
    "Mean distance of the picks that give one answer each, and of NNCE for the same instances; "
    "*no farther*: share of instances whose answer is not farther than NNCE's."
)
ABOUT_COUNTS = (
    "Answers an instance gets on average / instances whose perturbations were answered / perturbed "
    "instances left out because their own label flipped, or because they got no answer, over all "
    "repeats."
)


def brief(plan: Plan, table: pd.DataFrame) -> str:
    """One table for all pairs: every method's mean over them.

    Args:
        plan: What was planned.
        table: E2's part of the tidy table.
    """
    figures, pairs = Figures.of(table), _pairs(plan, table)
    lines = present(figures, pairs)
    found = {m.key: [_mean(figures, pairs, line, m.key) for line in lines] for m in METRICS}
    return _table(lines, found)


def _of_pair(figures: Figures, pair: str) -> str:
    lines = present(figures, [pair])
    found = {m.key: [_get(figures, pair, line, m.key) for line in lines] for m in METRICS}
    return _table(lines, found, spread=True)


def _table(lines: Sequence[Line], found: dict[str, list[Figure]], *, spread: bool = False) -> str:
    head = ("method", *(f"{m.head} {m.arrow}" for m in METRICS))
    marks = {m.key: best(m, found[m.key]) for m in METRICS}
    rows = []
    for k, line in enumerate(lines):
        cells = []
        for m in METRICS:
            figure = found[m.key][k]
            text = figure.text(m.scale, m.digits) if spread else m.text(figure)
            cells.append(f"**{text}**" if marks[m.key][k] else text)
        rows.append((line.name, *cells))
    return grid(head, rows)


def _sure(figures: Figures, pairs: Sequence[str]) -> str:
    asked = confidences(figures)
    head = ("pair", "First", *(f"at {c:g}" for c in asked), "reaches 95 %")
    lines = []
    for pair in pairs:
        cells = []
        for method in ("First", *(f"First@{c:g}" for c in asked)):
            line = Line(method, "default", method)
            share, lof, far = (
                _get(figures, pair, line, key) for key in ("model_robustness", "lof", "distance")
            )
            known = f"{share.bare(100, 1)} ({lof.bare()}, {far.bare()})"
            cells.append(known if share.repeats else NONE)
        least = reaching(figures, pair)
        lines.append((pair, *cells, NONE if least is None else f"at {least:g}"))
    return grid(head, lines)


def confidences(figures: Figures) -> list[float]:
    """The required probabilities First was asked for."""
    names = {method for _, _, method, _, _ in figures.by_name if method.startswith("First@")}
    return sorted(float(name.partition("@")[2]) for name in names)


def reaching(figures: Figures, pair: str, share: float = 0.95) -> float | None:
    """The least required probability whose Firsts last, 0 for none required; None if none does.

    Only where everyone is still answered: a confidence nobody can reach is robust for nobody.
    """
    for confidence in (0.0, *confidences(figures)):
        name = f"First@{confidence:g}" if confidence else "First"
        line = Line(name, "default", name)
        answered = _get(figures, pair, line, "validity").mean
        if answered >= 1 - 1e-9 and _get(figures, pair, line, "model_robustness").mean >= share:
            return confidence
    return None


def _paired(figures: Figures, pairs: Sequence[str]) -> str:
    head = (
        "pair", "nearest", "NNCE", "no farther, %", "sparse", "NNCE", "no farther, %", "instances",
    )  # fmt: skip
    lines = []
    for pair in pairs:
        cells: list[str] = []
        count = 0
        for name in ("nearest", "sparse"):
            line = Line(name, "default", name)
            own, nnce, share = (
                _get(figures, pair, line, key)
                for key in ("paired_distance", "paired_nnce", "no_farther")
            )
            cells += [own.text(), nnce.text(), share.bare(100, 0)]
            count = max(count, own.count)
        lines.append((pair, *cells, f"{count}"))
    return grid(head, lines)


def _counts(figures: Figures, pairs: Sequence[str]) -> str:
    lines = present(figures, pairs)
    rows = []
    for line in lines:
        cells = []
        for pair in pairs:
            each, some, flipped, lost = (
                _get(figures, pair, line, key)
                for key in ("answers_each", "input_instances", "input_flipped", "input_lost")
            )
            out = [f"{f.mean * f.repeats:.0f}" if f.repeats else NONE for f in (flipped, lost)]
            cells.append(f"{each.bare(1, 1)} / {some.bare(1, 0)} / {' + '.join(out)}")
        rows.append((line.name, *cells))
    return grid(("method", *pairs), rows)


# ------------------------------------------------------------------------------------------------
# In words


def upshot(plan: Plan, table: pd.DataFrame) -> str:
    """Where our picks win and where they lose.

    Args:
        plan: What was planned.
        table: E2's part of the tidy table.
    """
    return words(Figures.of(table), _pairs(plan, table))


def words(figures: Figures, pairs: Sequence[str]) -> str:
    """Where our picks win and where they lose, a sentence or two for each metric.

    Args:
        figures: E2's.
        pairs: To look at.
    """
    found = [text for m in METRICS if (text := _upshot(figures, pairs, m))]
    return "\n".join(f"- {text}" for text in found) if found else "Nothing can be compared yet."


def _upshot(figures: Figures, pairs: Sequence[str], metric: Metric) -> str:
    """How the best of our picks does against the best of the baselines, pair by pair."""
    won, drawn, lost = [], [], []
    names: dict[str, int] = {}
    for pair in pairs:
        ours = _top(figures, pair, metric, [line for line in LINES if line.ours])
        theirs = _top(figures, pair, metric, [line for line in LINES if line.theirs])
        if ours is None or theirs is None:
            continue
        a, b = (metric.text(_get(figures, pair, line, metric.key)) for line in (ours, theirs))
        text = f"{pair} ({ours.name} {a}, {theirs.name} {b})"
        if a == b:
            drawn.append(text)
        elif _better(figures, pair, metric, ours, theirs):
            won.append(text)
            names[ours.name] = names.get(ours.name, 0) + 1
        else:
            lost.append(text)
    total = len(won) + len(drawn) + len(lost)
    if not total:
        return ""
    by = ", ".join(f"{name} {count}" for name, count in sorted(names.items(), key=lambda i: -i[1]))
    parts = [f"*{_capital(metric.title)}*: best on {len(won)} of {total} pairs"]
    parts[0] += f" (by {by})" if by else ""
    parts[0] += f", level on {len(drawn)}" if drawn else ""
    text = f"{parts[0]}."
    if lost:
        text += f" A baseline is better on {_listed(lost)}."
    return text


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _top(figures: Figures, pair: str, metric: Metric, lines: Sequence[Line]) -> Line | None:
    known = [line for line in lines if not math.isnan(_get(figures, pair, line, metric.key).mean)]
    if not known:
        return None
    pick = max if metric.sense == "more" else min
    return pick(known, key=lambda line: _get(figures, pair, line, metric.key).mean)


def _better(figures: Figures, pair: str, metric: Metric, a: Line, b: Line) -> bool:
    left, right = (_get(figures, pair, line, metric.key).mean for line in (a, b))
    return left > right if metric.sense == "more" else left < right


# ------------------------------------------------------------------------------------------------
# Figures


def _get(figures: Figures, pair: str, line: Line, metric: str) -> Figure:
    return figures.get(pair, line.recipe, metric, method=line.method)


def _mean(figures: Figures, pairs: Sequence[str], line: Line, metric: str) -> Figure:
    """The mean over pairs."""
    known = [f.mean for pair in pairs if (f := _get(figures, pair, line, metric)).repeats]
    if not known:
        return NOTHING
    return Figure(sum(known) / len(known), math.nan, len(known), 0, 0)


def _pairs(plan: Plan, table: pd.DataFrame) -> list[str]:
    there = set(table["pair"])
    return [pair.name for pair in plan.pairs if pair.name in there]


def _about(plan: Plan, table: pd.DataFrame) -> str:
    jobs = plan.jobs(experiments=["e2"])
    done = set(zip(table["pair"], table["recipe"], table["seed"], strict=True))
    counts = ", ".join(
        f"{sum((j.pair.name, j.recipe, j.seed) in done for j in jobs if j.recipe == side)} of "
        f"{sum(j.recipe == side for j in jobs)} {what}"
        for side, what in _sides()
    )
    compare, protocol = plan.compare, plan.protocol
    made = "; ".join(sorted(set(table["versions"]) - {""})) or "unknown versions"
    fewer = "; ".join(
        f"{name} {what} {count}"
        for what, limits in (
            ("instances", compare.most),
            ("perturbed instances", compare.perturbed),
        )
        for name, count in limits.items()
    )
    return (
        f"Made by `python -m benchmarks{' --quick' if plan.is_quick else ''} --experiment e2`"
        f" with {made}. Run: {counts}. {protocol.instances} test rows with an unfavourable label, "
        f"{compare.models} classifiers retrained on {compare.share:.0%} of the data set each, "
        f"{compare.rounds} perturbations of at most {compare.scale:.0%} of each column's range. "
        f"Seeds {', '.join(map(str, protocol.seeds))}; mean ± standard deviation over repeats."
        + (f" At most: {fewer}." if fewer else "")
    )


def _sides() -> Iterator[tuple[str, str]]:
    yield "default", "with the default recipe"
    yield "paper", "with the paper's recipe"
    yield "baselines", "of the baselines"
