"""E2 as Markdown: every method by every metric, the best marked, and the upshot in words.

Nothing here depends on a particular result: the best method, and where ours win and lose, is
computed from the figures each time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import NO_FIGURE, NONE, Figure, Figures, Line, grid
from benchmarks.plan import Plan

__all__ = [
    "METHODS",
    "METRICS",
    "PICKS",
    "SWEPT",
    "Method",
    "Metric",
    "best",
    "brief",
    "in_words",
    "methods",
    "page",
    "reaching",
]

PICKS = ("First", "Middle", "Last", "nearest", "best")


@dataclass(frozen=True)
class Method:
    """A method as tables show it, and the side of the comparison its figures are kept under."""

    name: str
    recipe: str
    method: str

    def line(self, figures: Figures, pair: str) -> Line:
        """Its figures for a pair."""
        return figures.line(pair, self.recipe, self.method)


METHODS = (
    *(Method(name, "baselines", name) for name in ("NNCE", "FACE", "RobXCE", "DiCE", "DRCE")),
    Method("C-CHVAE", "baselines", "CCHVAE"),
    *(Method(name, "default", name) for name in PICKS),
    *(Method(f"{name}, paper's recipe", "paper", name) for name in PICKS[:3]),
)


@dataclass(frozen=True)
class Metric:
    """A metric as tables show it.

    Attributes:
        key: Its name in the tidy table.
        title: In words.
        head: Of its column; an arrow shows whether more or less is better.
        spec: How its figures are formatted.
        log: Whether pictures of it need a logarithmic scale.
    """

    key: str
    title: str
    head: str
    spec: str = ".2"
    log: bool = False

    @property
    def top(self) -> Callable[..., float]:
        """`max` or `min`, whichever is better."""
        return max if self.head.endswith("↑") else min


METRICS = (
    Metric("validity", "validity: instances with a valid counterfactual", "valid, % ↑", ".1p"),
    Metric("distance", "proximity: distance to the instance", "distance ↓"),
    Metric("lof", "plausibility: local outlier factor", "LOF ↓"),
    Metric("diversity", "diversity: distance between an instance's counterfactuals", "diversity ↑"),
    Metric("model_robustness", "robustness to model changes: counterfactuals that stay valid",
           "model changes, % ↑", ".1p"),
    Metric("input_max_set_distance", "robustness to input changes: max-set-distance",
           "input changes, max-set ↓", ".3"),
    Metric("input_set_distance", "robustness to input changes: set distance",
           "input changes, set ↓", ".3"),
    Metric("seconds", "runtime: processor seconds per 100 instances", "s per 100 ↓", log=True),
    Metric("n_queries", "queries: rows predicted by the classifier per 100 instances", "queries ↓",
           ".0", log=True),
)  # fmt: skip
SWEPT = METRICS[1:6]

ABOUT_E2 = (
    "{instances} test rows with an unfavourable label, {n_models} classifiers retrained on "
    "{share:.0%} of the data set each, {n_perturbations} perturbations of at most {scale:.0%} of "
    "each column's range."
)
ABOUT_MEAN = (
    "The mean over pairs of each method's mean over repeats; a method that lacks a pair is "
    "averaged over those it has. **Bold** is best, as far as the digits shown can tell."
)
ABOUT_CONFIDENCE = (
    "First with a required probability of the target, on the same fit: share of its "
    "counterfactuals that retrained classifiers keep valid, in brackets LOF and distance. *Reaches "
    "95 %*: the lowest required probability at which it does."
)
ABOUT_PAIRED = (
    "Mean distance of the picks that return one counterfactual per instance, and of NNCE for the "
    "same instances; *no farther*: share of instances whose counterfactual is not farther than "
    "NNCE's."
)
ABOUT_COUNTS = (
    "Counterfactuals per instance on average / perturbed instances / perturbed instances left out "
    "because the perturbation flips their label, or because they get no counterfactual, over all "
    "repeats."
)


def page(plan: Plan, figures: Figures, pairs: Sequence[str], made: str) -> list[str]:
    """E2's page: in words, the mean over pairs, every pair, by confidence, against NNCE."""
    about = ABOUT_E2.format(**vars(plan.e2), instances=plan.protocol.instances)
    fewer = "; ".join(
        f"{name} {count} {what}"
        for what, most in (
            ("instances", plan.e2.max_instances),
            ("perturbed", plan.e2.max_perturbed),
        )
        for name, count in most.items()
    )
    about += f" At most: {fewer}." if fewer else ""
    parts = ["# E2: every method, eight metrics", f"{made} {about}"]
    parts += ["## In words", in_words(figures, pairs)]
    parts += ["## Mean over pairs", ABOUT_MEAN, brief(figures, pairs)]
    parts.append("![Every metric, by method: a dot per pair, a bar at their mean](e2.png)")
    for pair in pairs:
        found = methods(figures, [pair])
        cells = {m.key: [method.line(figures, pair)[m.key] for method in found] for m in METRICS}
        parts += [f"## {pair}", _compared(found, cells, "±")]
    parts += ["## First at a required confidence", ABOUT_CONFIDENCE, _confident(figures, pairs)]
    parts += ["## One counterfactual per instance, against NNCE", ABOUT_PAIRED]
    parts += [_paired(figures, pairs), "## Numbers of counterfactuals and of instances left out"]
    return [*parts, ABOUT_COUNTS, _counts(figures, pairs)]


def methods(figures: Figures, pairs: Sequence[str]) -> list[Method]:
    """The methods there are figures of, in order."""
    return [
        method
        for method in METHODS
        if any(method.line(figures, pair)["validity"].repeats for pair in pairs)
    ]


def brief(figures: Figures, pairs: Sequence[str]) -> str:
    """Every method's mean over pairs."""
    found = methods(figures, pairs)
    cells = {m.key: [_mean(figures, pairs, method, m.key) for method in found] for m in METRICS}
    return _compared(found, cells)


def _mean(figures: Figures, pairs: Sequence[str], method: Method, metric: str) -> Figure:
    known = [f.mean for pair in pairs if (f := method.line(figures, pair)[metric]).repeats]
    return Figure(sum(known) / len(known), repeats=len(known)) if known else NO_FIGURE


def best(metric: Metric, found: Sequence[Figure]) -> list[bool]:
    """Which figures are the best, as far as the digits shown can tell them apart.

    Examples:
        >>> lof = METRICS[2]
        >>> best(lof, [Figure(v) for v in (1.201, 0.991, 0.992)]), best(lof, [NO_FIGURE])
        ([False, True, True], [False])
    """
    known = [figure.mean for figure in found if not math.isnan(figure.mean)]
    text = f"{Figure(metric.top(known)):{metric.spec}}" if known else ""
    return [f"{figure:{metric.spec}}" == text for figure in found]


def _compared(
    found: Sequence[Method], cells: Mapping[str, Sequence[Figure]], spread: str = ""
) -> str:
    columns = []
    for m in METRICS:
        marks = best(m, cells[m.key])
        texts = [f"{figure:{spread}{m.spec}}" for figure in cells[m.key]]
        columns.append([f"**{t}**" if b else t for t, b in zip(texts, marks, strict=True)])
    names = [method.name for method in found]
    return grid(("method", *(m.head for m in METRICS)), zip(names, *columns, strict=True))


def _confident(figures: Figures, pairs: Sequence[str]) -> str:
    required = confidences(figures)
    lines = []
    for pair in pairs:
        found = [figures.line(pair, "default", name) for name in required]
        cells = [
            "{model_robustness:.1p} ({lof}, {distance})".format_map(line)
            if line["model_robustness"].repeats
            else NONE
            for line in found
        ]
        lowest = reaching(figures, pair)
        lines.append((pair, *cells, NONE if lowest is None else f"at {lowest:g}"))
    heads = ("First", *(f"at {c:g}" for c in list(required.values())[1:]))
    return grid(("pair", *heads, "reaches 95 %"), lines)


def confidences(figures: Figures) -> dict[str, float]:
    """First without and with each required probability, by the name its figures are kept under."""
    names = {key[2] for key in figures.by_key if key[2].startswith("First@")}
    found = {name: float(name.partition("@")[2]) for name in names}
    return {"First": 0.0, **dict(sorted(found.items(), key=lambda item: item[1]))}


def reaching(figures: Figures, pair: str, share: float = 0.95) -> float | None:
    """The lowest required probability whose Firsts stay valid under retrained classifiers.

    0 where none has to be required, None where none suffices. Only where every instance still has
    a counterfactual: a confidence no instance can reach would be trivially robust.
    """
    for name, confidence in confidences(figures).items():
        line = figures.line(pair, "default", name)
        answered = line["validity"].mean >= 1 - 1e-9
        if answered and line["model_robustness"].mean >= share:
            return confidence
    return None


def _paired(figures: Figures, pairs: Sequence[str]) -> str:
    template = "{paired_distance:±} | {paired_nnce:±} | {no_farther:.0p}"
    lines = []
    for pair in pairs:
        found = [figures.line(pair, "default", name) for name in ("nearest", "best")]
        count = max(line["paired_distance"].count for line in found)
        lines.append((pair, *(template.format_map(line) for line in found), f"{count}"))
    head = [part for name in ("nearest", "best") for part in (name, "NNCE", "no farther, %")]
    return grid(("pair", *head, "instances"), lines)


def _counts(figures: Figures, pairs: Sequence[str]) -> str:
    rows = []
    for method in methods(figures, pairs):
        cells = []
        for pair in pairs:
            line = method.line(figures, pair)
            left_out = " + ".join(
                f"{f.mean * f.repeats:.0f}" if f.repeats else NONE
                for f in (line["input_flipped"], line["input_lost"])
            )
            each = "{n_counterfactuals:.1} / {input_instances:.0}".format_map(line)
            cells.append(f"{each} / {left_out}")
        rows.append((method.name, *cells))
    return grid(("method", *pairs), rows)


def in_words(figures: Figures, pairs: Sequence[str]) -> str:
    """Where the best of our picks wins and loses against the best baseline, for each metric."""
    found = [f"- {text}" for m in METRICS if (text := _upshot(figures, pairs, m))]
    return "\n".join(found) or "Nothing can be compared yet."


def _upshot(figures: Figures, pairs: Sequence[str], metric: Metric) -> str:
    won: Counter[str] = Counter()
    level, lost = 0, []
    for pair in pairs:
        sides = []
        for recipe in ("default", "baselines"):
            known = [
                (figure.mean, method.name, f"{figure:{metric.spec}}")
                for method in METHODS
                if method.recipe == recipe
                and (figure := method.line(figures, pair)[metric.key]).repeats
            ]
            if known:
                sides.append(metric.top(known, key=lambda found: found[0]))
        if len(sides) < 2:
            continue
        (ours, name, text), (theirs, other, their_text) = sides
        if text == their_text:
            level += 1
        elif metric.top(ours, theirs) == ours:
            won[name] += 1
        else:
            lost.append(f"{pair} ({name} {text}, {other} {their_text})")
    total = won.total() + level + len(lost)
    if not total:
        return ""
    by = ", ".join(f"{name} {count}" for name, count in won.most_common())
    found = f"*{metric.title[0].upper()}{metric.title[1:]}*: best on {won.total()} of {total} pairs"
    found += f" (by {by})" if by else ""
    found += f", level on {level}." if level else "."
    if lost:
        listed = " and ".join([", ".join(lost[:-1]), lost[-1]] if len(lost) > 1 else lost)
        found += f" A baseline is better on {listed}."
    return found
