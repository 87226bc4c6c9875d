"""The pages of E3, E4 and the sweep over clusters as Markdown, from the tidy table alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from benchmarks.comparison import PICKS, SWEPT, Method
from benchmarks.e3 import FACE, LAPACE
from benchmarks.figures import NONE, Figures, grid
from benchmarks.plan import Plan
from benchmarks.provenance import made, pairs_of

__all__ = ["CONSTRAINED", "clusters", "clusters_brief", "e3", "e3_brief", "e4"]

MODELS = {"default": "", "paper": ", paper's model"}

# ------------------------------------------------------------------------------------------------
# E3

CONSTRAINED = (
    *(Method(name, "baselines", name) for name in FACE),
    *(Method(f"{n}{of}", recipe, n) for recipe, of in MODELS.items() for n in LAPACE),
)
# The paper's own four, in its order, by the name they have here.
REPORTED = (
    "FACE-Interpolate",
    "FACE-Greedy",
    "LAPACE-naive, paper's model",
    "LAPACE-latent, paper's model",
)
BRIEF = (*REPORTED, "LAPACE-naive", "LAPACE-exact")
ABOUT_E3 = (
    "{instances} instances of each seed. Share of instances with at least one point on a path that "
    "satisfies all their constraints and is valid. *Easy*: {n_constraints} constraints each, drawn "
    "from the data set's list. *Hard*: their ranges narrowed to the {low:.0%} to {high:.0%} "
    "quantiles, and {n_fixed} of the instance's values held fixed. *Infeasible*: instances for "
    "which provably no row satisfies the constraints; no method can answer them. In brackets the "
    "paper's figures, where it has them. FACE's points are overwritten constraint by constraint, "
    "or *projected* to the nearest values that satisfy all of them; *latent* is the paper's "
    "gradient descent, *exact* the default."
)
ABOUT_ONE = (
    "The same for one path each: the share of all paths, of instances that are not infeasible, "
    "with such a point. FACE has one path per instance, an explainer one per prototype, and with "
    "the default recipe one to a sampled endpoint."
)
ABOUT_POINTS = (
    "Share of points that satisfy the constraints / LOF of valid points without constraints → of "
    "valid points that satisfy them / processor seconds per 100 instances without → with "
    "constraints (LAPACE explains one instance per call, FACE's paths are computed in one batch)."
)
POINTS = "{feasible_points:.1p} % / {lof_before} → {lof_after} / {seconds_before:.1} → {seconds:.1}"


def e3(plan: Plan, table: pd.DataFrame) -> list[str]:
    """E3: shares of instances, shares of paths, then points of paths in both settings."""
    figures, pairs = Figures(table), pairs_of(plan, table)
    parts = ["# E3: actionability", made(plan, table, "e3"), ABOUT_E3.format(**vars(plan.e3))]
    parts.append(_shares(plan, table, "satisfied", CONSTRAINED))
    parts += ["## One path each", ABOUT_ONE, _shares(plan, table, "satisfied_path", CONSTRAINED)]
    for setting in ("easy", "hard"):
        lines = []
        for method in CONSTRAINED:
            found = [figures.line(pair, method.recipe, method.method, setting) for pair in pairs]
            cells = (POINTS.format_map(f) if f["satisfied"].repeats else NONE for f in found)
            lines.append((method.name, *cells))
        parts += [f"## Points, {setting}", ABOUT_POINTS, grid(("method", *pairs), lines)]
    return parts


def e3_brief(plan: Plan, table: pd.DataFrame) -> str:
    """Shares of instances of the paper's four methods and of ours."""
    return _shares(plan, table, "satisfied", [m for m in CONSTRAINED if m.name in BRIEF])


def _shares(plan: Plan, table: pd.DataFrame, metric: str, methods: Sequence[Method]) -> str:
    """One line per pair and setting, the best of each in bold."""
    figures = Figures(table)
    lines = []
    for setting in ("easy", "hard"):
        for pair in pairs_of(plan, table):
            reported = plan[pair].reported
            known = reported.actionability if reported and setting == "easy" else None
            theirs = dict(zip(REPORTED, known, strict=True)) if known else {}
            texts = {
                m.name: f"{figures.get(pair, m.recipe, metric, m.method, setting):.3}"
                for m in methods
            }
            top = max((text for text in texts.values() if text != NONE), default="")
            cells = {m: f"**{text}**" if text == top else text for m, text in texts.items()}
            if metric == "satisfied":
                cells |= {m: f"{cells[m]} ({theirs[m]:.2f})" for m in cells if m in theirs}
            sides = (figures.get(pair, side, "infeasible", label=setting)
                     for side in ("baselines", *MODELS))  # fmt: skip
            infeasible = next((f"{figure:.1p}" for figure in sides if figure.repeats), NONE)
            lines.append((pair, setting, *cells.values(), infeasible))
    return grid(("pair", "constraints", *(m.name for m in methods), "infeasible, %"), lines)


# ------------------------------------------------------------------------------------------------
# E4 and the sweep

ABOUT_E4 = (
    "From instances to each endpoint of one fit: the classifier's probability of the target, the "
    "local outlier factor of the decoded points among training rows labelled with the target, and "
    "their density (percentile among those rows, by the explainer's own model), at the instance "
    "(τ = 0), half way, and at the endpoint (τ = 1); mean ± standard deviation over instances. "
    "*Sampled*: the row of the target class sampled near each instance."
)
ABOUT_ALL = "The same over all endpoints and repeats, by τ."
ABOUT_SWEEP = (
    "The same comparison with other numbers of clusters per label, on the same instances; five is "
    "the default. Mean over repeats."
)
CURVES = {"probability": "probability", "lof": "LOF", "density": "density"}
ALL = "all"  # the label of lines about all prototypes
TAUS = ("0", "0.25", "0.5", "0.75", "1")


def e4(plan: Plan, table: pd.DataFrame) -> list[str]:
    """E4: three points of every curve, then the curves' means."""
    one = table[table["label"] != ALL]
    texts = one["mean"].map("{:.2f}".format) + " ± " + one["deviation"].map("{:.2f}".format)
    keys = zip(one["pair"], one["recipe"], one["label"], one["metric"], strict=True)
    cells: Mapping[tuple[str, ...], str] = dict(zip(keys, texts, strict=True))
    points = [f"{metric}@{tau}" for metric in CURVES for tau in ("0", "0.5", "1")]
    lines = [
        (pair, recipe, "sampled" if label == "-1" else label,
         *(cells.get((pair, recipe, label, point), NONE) for point in points))
        for pair in pairs_of(plan, table)
        for recipe in MODELS
        for label in sorted(
            set(one.loc[(one["pair"] == pair) & (one["recipe"] == recipe), "label"]), key=int
        )
    ]  # fmt: skip
    head = (f"{m}, τ = {t}" for m in CURVES.values() for t in ("0", "½", "1"))
    picture = "![Probability, LOF and density along the paths, a panel per endpoint](e4.png)"
    parts = ["# E4: points along paths", made(plan, table, "e4"), ABOUT_ALL, _curves(plan, table)]
    parts += [ABOUT_E4, grid(("pair", "recipe", "prototype", *head), lines)]
    return [*parts, picture]


def _curves(plan: Plan, table: pd.DataFrame) -> str:
    """The mean over repeats at a few τ."""
    ours = table[table["label"] == ALL]
    means = ours.groupby(["pair", "recipe", "metric"])["mean"].mean()
    lines = []
    for pair in pairs_of(plan, table):
        for recipe in MODELS:
            found = [
                " / ".join(
                    f"{means[key]:.2f}" if (key := (pair, recipe, f"{m}@{t}")) in means else NONE
                    for t in TAUS
                )
                for m in CURVES
            ]
            if any(text.strip(f"{NONE} /") for text in found):
                lines.append((pair, recipe, *found))
    taus = ", ".join(TAUS)
    return grid(("pair", "recipe", *(f"{m} at τ = {taus}" for m in CURVES.values())), lines)


def clusters(plan: Plan, table: pd.DataFrame) -> list[str]:
    """The sweep over clusters: every pick, pair by pair."""
    parts = ["# How many clusters", made(plan, table, "clusters"), ABOUT_SWEEP]
    for pair in pairs_of(plan, table):
        parts += [f"## {pair}", _swept(table, pair, PICKS)]
    return [*parts, "![Every metric over the number of clusters](clusters.png)"]


def clusters_brief(plan: Plan, table: pd.DataFrame) -> str:
    """First, Middle and Last for every number of clusters, a table per pair."""
    return "\n\n".join(
        f"{pair}:\n\n{_swept(table, pair, PICKS[:3])}" for pair in pairs_of(plan, table)
    )


def _swept(table: pd.DataFrame, pair: str, picks: Sequence[str]) -> str:
    figures = Figures(table)
    counts = sorted(set(table.loc[table["pair"] == pair, "label"]) - {""}, key=int)
    lines = []
    for recipe, of in MODELS.items():
        for pick in picks:
            for count in counts:
                line = figures.line(pair, recipe, pick, count)
                if line["distance"].repeats:
                    cells = (f"{line[m.key]:{m.spec}}" for m in SWEPT)
                    lines.append((f"{pick}{of}", count, *cells))
    return grid(("pick", "clusters", *(m.head for m in SWEPT)), lines)
