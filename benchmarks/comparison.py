"""E2 as Markdown: every method by every metric, the best marked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.figures import (
    NO_FIGURE,
    NONE,
    REPEATS,
    Figure,
    Figures,
    Line,
    Results,
    commits,
    grid,
)

PICKS = ("First", "Middle", "Last", "nearest", "best")
# The models whose picks are compared, by the side their figures are kept under.
MODELS = {
    "default": "",
    "printed": ", as printed",
    "gumbel": ", as printed, Gumbel",
    "paper": ", as read here",
}


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
    Method("RobX, nearest stable row", "baselines", "RobX-rows"),
    Method("DiCE, genetic", "baselines", "DiCE-genetic"),
    Method("DRCE, no boundary search", "baselines", "DRCE-rows"),
    Method("C-CHVAE", "baselines", "CCHVAE"),
    Method("PPCEF", "baselines", "PPCEF"),
    Method("DiCoFlex", "baselines", "DiCoFlex"),
    *(Method(name, "default", name) for name in PICKS),
    *(Method(f"{name}{of}", r, name) for r, of in MODELS.items() if of for name in PICKS[:3]),
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


METRICS = (
    Metric("validity", "validity: instances with a valid counterfactual", "valid, % ↑", ".1p"),
    Metric("valid_counterfactuals", "validity: rows that are valid", "valid rows, % ↑", ".1p"),
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
SWEPT = METRICS[2:7]
PLAUSIBILITY = (
    METRICS[3],
    Metric("lof_median", "median LOF", "LOF, median ↓"),
    Metric("lof_all", "LOF among all training rows", "LOF among all rows ↓"),
    Metric("copies", "counterfactuals that are training rows", "copies, % ↓", ".1p"),
)

ABOUT_E2 = (
    "{instances} test rows with an unfavourable label, {n_models} classifiers retrained on "
    "{share:.0%} of the data set each, {n_perturbations} perturbations of at most {scale:.0%} of "
    "each column's range."
)
ABOUT_MEAN = (
    "The mean over the paper's pairs of each method's mean over repeats. **Bold** is best, "
    "as far as the digits shown can tell. In brackets the number of pairs where a method lacks "
    "some, or of repeats in the tables of single pairs; such a figure is never bold. *Diversity* "
    "is over instances with two counterfactuals or more."
)
ABOUT_PLAUSIBILITY = (
    "Mean over pairs. *LOF* is among the distinct training rows the classifier gives the target, "
    "20 neighbours; *among all rows* whatever their label, as RobustX measures it. A *copy* is a "
    "training row itself."
)
ABOUT_TIME = (
    "Processor seconds: per 100 instances after fitting, of fitting, and of both together for 100 "
    "instances. FACE builds its graph when it is fitted; RobustX and the paper may count that "
    "with every call. *Fitting* is the fit that was kept. Processes share a machine: small "
    "differences mean nothing."
)
ABOUT_OWN = (
    "The next tables are not the paper's. They lack DiCE, which takes too long. `runs.csv` says on "
    "which machine each job was timed."
)
ABOUT_CONFIDENCE = (
    "First with a required probability of the target, on the same fit: share of its "
    "counterfactuals that retrained classifiers keep valid, in brackets LOF, distance and the "
    "counterfactuals of an instance: figures are of the paths that still have one. *Of 80%*: where "
    "not all instances are answered, they are of those. *Reaches 95%*: the lowest required "
    "probability at which it does, with all instances answered."
)
ABOUT_COUNTS = (
    "Counterfactuals per instance on average / perturbed instances / perturbed instances left out "
    "because the perturbation flips their label, or because they get no counterfactual, over all "
    "repeats."
)


def page(e2: Results) -> list[str]:
    """Returns E2: the mean over pairs, every pair, by confidence."""
    plan, figures, pairs = e2.plan, e2.figures, e2.pairs
    about = ABOUT_E2.format(**vars(plan.e2), instances=plan.protocol.instances)
    limits = [
        *((m.name, m.instances, "instances") for m in plan.baselines),
        *((m.name, m.perturbed, "perturbed") for m in plan.baselines),
        *((name, plan.e2.minimal_perturbed, "perturbed") for name in PICKS[3:]),
    ]
    fewer = "; ".join(f"{name} {count} {what}" for name, count, what in limits if count)
    about += f" At most: {fewer}." if fewer else ""
    parts = ["# E2: every method, eight metrics", e2.made, f"{REPEATS} {about}"]
    parts += ["## Mean over pairs", ABOUT_MEAN, brief(e2)]
    parts.append("![Every metric, by method: a dot per pair, a bar at their mean](e2.png)")
    parts += ["## Plausibility by other measures", ABOUT_PLAUSIBILITY, brief(e2, PLAUSIBILITY)]
    parts += ["## Runtime and fitting", ABOUT_TIME, _times(figures, pairs)]
    own = e2.pairs_of("extra")
    for pair in [*pairs, *own]:
        parts += [ABOUT_OWN] if pair in own[:1] else []
        found = methods(figures, [pair])
        cells = {m.key: [method.line(figures, pair)[m.key] for method in found] for m in METRICS}
        parts += [f"## {pair}", _compared(found, cells, "±")]
    parts += ["## First at a required confidence", ABOUT_CONFIDENCE, _confident(figures, pairs)]
    parts.append("## Numbers of counterfactuals and of instances left out")
    return [*parts, ABOUT_COUNTS, _counts(figures, pairs)]


def methods(figures: Figures, pairs: Sequence[str]) -> list[Method]:
    """The methods there are figures of, in order."""
    return [
        method
        for method in METHODS
        if any(method.line(figures, pair)["validity"].repeats for pair in pairs)
    ]


def brief(e2: Results, metrics: Sequence[Metric] = METRICS) -> str:
    """Every method's mean over pairs."""
    return compared(e2.figures, e2.pairs, methods(e2.figures, e2.pairs), metrics)


def compared(
    figures: Figures, pairs: Sequence[str], found: Sequence[Method], metrics: Sequence[Metric]
) -> str:
    """The mean over pairs of some methods' figures, the best of each metric marked."""
    cells = {m.key: [_mean(figures, pairs, method, m.key) for method in found] for m in metrics}
    return _compared(found, cells, metrics=metrics)


OURS = "LAPACE, our reading of the paper"
SHORT = {
    "NNCE": "NNCE: the nearest training row",
    "FACE": "FACE: a training row that dense data leads to",
    "RobXCE": "RobXCE: NNCE's row, moved to where noise does not matter",
    "DiCE": "DiCE: random search (mean of five)",
    "DRCE": "DRCE: near, diverse rows, moved to the boundary (mean of five)",
    **{f"{pick}, as read here": f"{OURS}: *{pick.lower()}* (mean of five)" for pick in PICKS[:3]},
    "nearest": "lapace, *nearest*",
    "best": "lapace, *best*",
}
CHANGED = Metric("changed", "sparsity: features changed", "features changed ↓", ".1")
PERCENTILES = Metric(
    "percentile_distance", "proximity, in percentiles", "distance in percentiles ↓"
)


def short(e2: Results) -> str:
    """The first page's table: the best known methods beside two picks."""
    known = {m.name: m for m in methods(e2.figures, e2.pairs)}
    found = [replace(known[name], name=text) for name, text in SHORT.items() if name in known]
    keys = ("validity", "distance", "lof", "model_robustness", "seconds")
    metrics = [m for m in METRICS if m.key in keys]
    metrics[2:2] = [PERCENTILES, CHANGED]
    table = compared(e2.figures, e2.pairs, found, metrics)
    return f"{table}\n\n{commits(e2.table[e2.table['pair'].isin(e2.pairs)])}"


def _times(figures: Figures, pairs: Sequence[str]) -> str:
    lines = []
    for method in methods(figures, pairs):
        each = _mean(figures, pairs, method, "seconds").mean
        # The picks of one explainer share its fit, which is kept once.
        whole = method if method.recipe == "baselines" else replace(method, method="")
        fit = _mean(figures, pairs, whole, "fit_seconds").mean
        lines.append((method.name, *(f"{Figure(v):.2}" for v in (each, fit, each + fit))))
    return grid(("method", "s per 100", "fitting, s", "together"), lines)


def _mean(figures: Figures, pairs: Sequence[str], method: Method, metric: str) -> Figure:
    known = [f.mean for pair in pairs if (f := method.line(figures, pair)[metric]).repeats]
    return Figure(sum(known) / len(known), repeats=len(known)) if known else NO_FIGURE


def best(metric: Metric, found: Sequence[Figure]) -> list[bool]:
    """Which figures are the best, as far as the digits shown can tell them apart.

    Examples:
        >>> lof = METRICS[3]
        >>> best(lof, [Figure(v) for v in (1.201, 0.991, 0.992)]), best(lof, [NO_FIGURE])
        ([False, True, True], [False])
    """
    known = [figure.mean for figure in found if not math.isnan(figure.mean)]
    top = max if metric.head.endswith("↑") else min
    text = f"{Figure(top(known)):{metric.spec}}" if known else ""
    return [f"{figure:{metric.spec}}" == text for figure in found]


def _compared(
    found: Sequence[Method],
    cells: Mapping[str, Sequence[Figure]],
    spread: str = "",
    metrics: Sequence[Metric] = METRICS,
) -> str:
    columns = []
    for m in metrics:
        most = max((figure.repeats for figure in cells[m.key]), default=0)
        whole = [figure if figure.repeats == most else NO_FIGURE for figure in cells[m.key]]
        texts = [
            f"{figure:{spread}{m.spec}}"
            + (f" ({figure.repeats})" if 0 < figure.repeats < most else "")
            for figure in cells[m.key]
        ]
        marks = best(m, whole)
        columns.append([f"**{t}**" if b else t for t, b in zip(texts, marks, strict=True)])
    names = [method.name for method in found]
    return grid(("method", *(m.head for m in metrics)), zip(names, *columns, strict=True))


def _confident(figures: Figures, pairs: Sequence[str]) -> str:
    names = {key[2] for key in figures.by_key if key[2].startswith("First@")}
    found = {float(name.partition("@")[2]): name for name in names}
    required = {0.0: "First", **dict(sorted(found.items()))}
    lines = []
    for pair in pairs:
        known = {c: figures.line(pair, "default", name) for c, name in required.items()}
        cells = [_sure(line) for line in known.values()]
        # A confidence that some instance cannot reach would be trivially robust.
        enough = [
            f"at {c:g}"
            for c, line in known.items()
            if line["validity"].mean >= 1 - 1e-9 and line["model_robustness"].mean >= 0.95
        ]
        lines.append((pair, *cells, next(iter(enough), NONE)))
    heads = ("First", *(f"at {c:g}" for c in required if c))
    return grid(("pair", *heads, "reaches 95%"), lines)


def _sure(line: Line) -> str:
    """Returns what First has at a required confidence, and of how many instances."""
    if not line["model_robustness"].repeats:
        return NONE
    text = "{model_robustness:.1p} ({lof}, {distance}, {n_counterfactuals:.1})".format_map(line)
    return text if line["validity"].mean >= 1 - 1e-9 else f"{text} of {line['validity']:.0p}%"


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
