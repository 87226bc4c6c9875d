"""The experiments' pages as Markdown, and the blocks other pages show, from the tidy table alone.

`comparison` has the page of E2, `targets` whether the figures reach what was aimed at.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from benchmarks import comparison, targets
from benchmarks.comparison import PICKS, SWEPT
from benchmarks.e3 import METHODS as CONSTRAINED
from benchmarks.figures import NONE, Figures, grid
from benchmarks.plan import Pair, Plan

__all__ = ["PAGES", "blocks", "pairs_of", "part"]

REPEATS = "Mean ± standard deviation over repeats."
REDEFINED = (
    " This run was made before *nearest* was minimal and before *best* existed: neither has "
    "figures yet."
)
SIDES = {
    "default": "with the default recipe",
    "paper": "with the paper's recipe",
    "baselines": "of the baselines",
}


def part(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """One experiment's lines; E1's with those of the tables the paper does not have."""
    return table[table["experiment"].isin(("e1", "extra") if name == "e1" else (name,))]


def pairs_of(plan: Plan, table: pd.DataFrame) -> list[str]:
    """The plan's pairs a table has figures of."""
    known = set(table["pair"])
    return [name for name in plan.names if name in known]


def _made(plan: Plan, table: pd.DataFrame, experiment: str) -> str:
    """How a page was made, and how much of the plan it shows."""
    names = ("e1", "extra") if experiment == "e1" else (experiment,)
    planned = Counter(job.recipe for job in plan.jobs(experiments=names))
    done = table.groupby("recipe")["settings"].nunique()
    counts = ", ".join(
        f"{done.get(side, 0)} of {planned[side]} {words}"
        for side, words in SIDES.items()
        if planned[side]
    )
    versions = "; ".join(sorted(set(table["versions"]) - {""})) or "unknown versions"
    return (
        f"Made by `python -m benchmarks{' --quick' if plan.is_quick else ''} --experiment "
        f"{' '.join(names)}` with {versions}. Jobs: {counts}; seeds "
        f"{', '.join(map(str, sorted(set(table['seed']))))}."
    )


# ------------------------------------------------------------------------------------------------
# E1

Column = str | Callable[[Figures, Pair, str], str]


def _by_label(figures: Figures, pair: Pair, recipe: str) -> str:
    labels = figures.labels(pair.name, recipe, "agreement")
    found = [figures.get(pair.name, recipe, "agreement", label=label) for label in labels]
    if len(labels) > 3:
        return f"least {min(figure.mean for figure in found):.3f}"
    return " / ".join(f"{figure:.3}" for figure in found)


def _ks(figures: Figures, pair: Pair, recipe: str) -> str:
    labels = figures.labels(pair.name, recipe, "ks")
    largest = max((figures.get(pair.name, recipe, "ks", label=k).mean for k in labels), default=0)
    return f"{figures.get(pair.name, recipe, 'ks'):.3} / {largest:.3f}"


def _reported(_: Figures, pair: Pair, __: str) -> str:
    known = pair.reported
    return f"{known.accuracy:.1f}, {known.real:.1f}, {known.gap:.2f}" if known else NONE


def _fit_ratio(figures: Figures, pair: Pair, recipe: str) -> str:
    own, paper = (
        figures.get(pair.name, r, "fit_processor_seconds").mean for r in ("default", "paper")
    )
    return NONE if recipe == "paper" or math.isnan(paper) else f"{own / paper:.2f}"


def _per_100(*metrics: tuple[str, int]) -> Callable[[Figures, Pair, str], str]:
    def text(figures: Figures, pair: Pair, recipe: str) -> str:
        line = figures.line(pair.name, recipe)
        each = 100 / line["instances"].mean if line["instances"].mean else math.nan
        found = [(line[metric].mean * each, digits) for metric, digits in metrics]
        return ", ".join(NONE if math.isnan(v) else f"{v:.{digits}f}" for v, digits in found)

    return text


UTILITY: Mapping[str, Column] = {
    "M, %": "{accuracy:±.1p}",
    "real, %": "{tstr_real:±.1p}",
    "synthetic, %": "{tstr_raw:±.1p}",
    "gap": "{gap_raw:±p}",
    "gap, verified": "{gap_verified:±p}",
    "balanced gap, raw / verified": "{gap_raw_balanced:p} / {gap_verified_balanced:p}",
    "agreement": "{agreement:±.3}",
    "by label": _by_label,
    "KS": _ks,
    "paper: M, real, gap": _reported,
}
CENTROIDS: Mapping[str, Column] = {
    "valid before repair": "{centroids_before:of}",
    "after repair": "{centroids_after:of}",
    "fits tried": "{fit_tries:.1}",
    "least used": "{least_used:±}",
    "LOF, mean": "{prototype_lof:±}",
    "LOF, largest": "{prototype_lof_max:±}",
    "diversity": "{diversity:±} / {diversity_ranged:±}",
}
PATHS: Mapping[str, Column] = {
    **{
        f"{name} LOF": f"{{{name.lower()}_lof}} ({{{name.lower()}_lof_median}})"
        for name in (*PICKS, "NNCE")
    },
    "nearest distance": "{nearest_distance:±}",
    "best distance": "{best_distance:±}",
    "NNCE distance": "{nnce_distance:±}",
    "no farther: nearest, best": "{nearest_no_farther:.0p}, {best_no_farther:.0p} %",
    "First valid": "{first_valid:of}",
    "Middle valid": "{middle_valid:of}",
    "re-crossing before / after First": "{recrossing_before:.1p} / {recrossing_after:.1p} %",
}
COST: Mapping[str, Column] = {
    "rows": "{rows:.0}",
    "columns": "{columns:.0}",
    "fit, s": "{fit_processor_seconds:±.1}",
    "of the paper's": _fit_ratio,
    "wall clock, s": "{fit_seconds:±.1}",
    "of it the report": "{report_seconds:.1}",
    "queries: fit, report": "{fit_queries:.0}, {report_queries:.0}",
    "per 100 instances: queries, s": _per_100(("explain_queries", 0), ("explain_seconds", 2)),
    "nearest, best: queries": _per_100(("minimal_queries", 0)),
}
ABOUT_UTILITY = (
    "A forest trained on real and one on synthetic rows, both tested on held-out rows labelled by "
    "the classifier. *Raw*: synthetic rows carry the label they were drawn for, as in the paper; "
    "*verified*: rows the classifier labels otherwise are redrawn. *KS*: distance between the "
    "classifier's probabilities on sampled and on real rows, over all rows / the largest of one "
    "label."
)
ABOUT_CENTROIDS = (
    "*Least used*: rows of the smallest cluster over an even share, by arg-max. *Diversity*: mean "
    "distance between the target's prototypes over that of k-means centroids, found in rank coding "
    "/ in min-max coding."
)
ABOUT_PATHS = (
    "{instances} test rows with an unfavourable label, or all there are. *NNCE*: the nearest "
    "training row the classifier gives the target. LOF is the mean, in brackets the median. *No "
    "farther*: share of instances whose counterfactual is not farther than NNCE's."
)
ABOUT_COST = (
    "*Fit*: processor seconds of the fit that was kept, its report included; *of the paper's*: "
    "over those of the paper's recipe."
)
SECTIONS = {
    "Utility": (ABOUT_UTILITY, UTILITY),
    "Centroids and prototypes": (ABOUT_CENTROIDS, CENTROIDS),
    "Paths": (ABOUT_PATHS, PATHS),
    "Cost": (ABOUT_COST, COST),
}
NOTES = """## What was chosen where the paper is silent

- Every repeat has its own split, classifier and fit. The default recipe was chosen on splits with \
other seeds.
- The paper's recipe: its settings per pair, {steps} steps or {epochs} passes over the rows, \
whichever is more, with early stopping after a fifth of them without a better validation loss; the \
same {seeds} seeds as the default recipe. Its authors checked their centroids by hand; here a fit \
with invalid prototypes is repeated with another seed, {tries} fits at most whatever the recipe, \
and the one with most valid prototypes counts. The column of fits tried has their number.
- The fit keeps up to a tenth of the training rows for its report; TSTR compares with a forest \
trained on all of them.
- LOF: 20 neighbours, among the distinct training rows the classifier gives the target.
- The paper's 73.97 % for heloc-RF, trained on real rows, does not fit a test against the \
classifier's labels, where its other seven are 86 to 94 %; it was probably tested on true labels. \
Ours is tested on the classifier's.
- Tables the paper does not have: adult-full is the census with its original categories; cancer, \
cultivars and digits come with scikit-learn; codes and columns are generated. The recipe was \
chosen without them, but for adult-full."""


def e1(plan: Plan, table: pd.DataFrame) -> list[str]:
    """E1: targets, utility, centroids, paths and cost."""
    figures, limits, protocol = Figures(table), plan.limits, plan.protocol
    made = f"{_made(plan, table, 'e1')} {REPEATS}"
    if not table["metric"].str.startswith("nearest_").any():
        made += REDEFINED
    parts = ["# E1: utility and centroids", made]
    parts += ["## Targets", targets.ABOUT_E1, targets.e1(plan, figures)]
    for title, (about, columns) in SECTIONS.items():
        parts += [f"## {title}", about.format(instances=protocol.instances)]
        parts.append(_recipes(plan, figures, columns))
    notes = {**vars(limits), "seeds": len(protocol.seeds)}
    return [*parts, NOTES.format_map(notes)]


def _recipes(plan: Plan, figures: Figures, columns: Mapping[str, Column]) -> str:
    """A line for every pair and recipe there are figures of; few repeats are marked."""
    lines = []
    for pair in plan.pairs:
        for recipe in ("default", "paper"):
            line = figures.line(pair.name, recipe)
            repeats = line["accuracy"].repeats
            if not repeats:
                continue
            few = f" ({repeats})" if repeats < len(plan.protocol.seeds) else ""
            cells = (
                column.format_map(line)
                if isinstance(column, str)
                else column(figures, pair, recipe)
                for column in columns.values()
            )
            lines.append((pair.name, f"{recipe}{few}", *cells))
    return grid(("pair", "recipe", *columns), lines)


def e1_brief(plan: Plan, table: pd.DataFrame) -> str:
    """The figures of E1 a first page needs, one line per pair."""
    figures = Figures(table)
    ours: dict[str, str] = {
        "**lapace**": "**{centroids_after:of}**",
        "LOF of First (NNCE's)": "{first_lof} ({nnce_lof})",
        "of Last": "{last_lof}",
        "distance: nearest (NNCE's)": "{nearest_distance} ({nnce_distance})",
    }
    lines = []
    for pair in plan.pairs:
        if pair.reported is not None:
            own, paper = (figures.line(pair.name, recipe) for recipe in ("default", "paper"))
            lines.append((
                pair.name,
                f"{pair.reported.gap:.1f}",
                f"{paper['gap_raw']:±.1p}",
                f"**{own['gap_raw']:±.1p}**",
                f"{paper['centroids_after']:of}",
                *(text.format_map(own) for text in ours.values()),
            ))  # fmt: skip
    head = (
        "pair", "gap, the paper's own figure", "gap, its model as read here", "**gap, lapace**",
        "prototypes valid: its recipe", *ours,
    )  # fmt: skip
    return grid(head, lines)


# ------------------------------------------------------------------------------------------------
# E2 and E3


def e2(plan: Plan, table: pd.DataFrame) -> list[str]:
    """E2: every method by every metric."""
    made = f"{_made(plan, table, 'e2')} {REPEATS}"
    if not (table["method"] == "nearest").any():
        made += REDEFINED
    return comparison.page(plan, Figures(table), pairs_of(plan, table), made)


ABOUT_E3 = (
    "Share of instances with at least one point on a path that satisfies all their constraints and "
    "is valid. *Easy*: {n_constraints} constraints each, drawn from the data set's list. *Hard*: "
    "their ranges narrowed to the {low:.0%} to {high:.0%} quantiles, and {n_fixed} of the "
    "instance's values held fixed. *Infeasible*: instances for which provably no row satisfies the "
    "constraints; no method can answer them. In brackets the paper's figures, where it has them; "
    "those of its LAPACE-constrained are shown with latent and exact."
)
ABOUT_POINTS = (
    "Share of points that satisfy the constraints / LOF of valid points without constraints → of "
    "valid points that satisfy them / processor seconds per 100 instances without → with "
    "constraints (LAPACE explains one instance per call, FACE's paths are computed in one batch)."
)
POINTS = "{feasible_points:.1p} % / {lof_before} → {lof_after} / {seconds_before:.1} → {seconds:.1}"
PLACES = dict(zip(CONSTRAINED, (0, 1, 2, 3, 3), strict=True))  # places in the paper's figures


def e3(plan: Plan, table: pd.DataFrame) -> list[str]:
    """E3: shares of instances, then points of paths in both settings."""
    figures = Figures(table)
    parts = ["# E3: actionability", _made(plan, table, "e3"), ABOUT_E3.format(**vars(plan.e3))]
    parts.append(e3_brief(plan, table))
    for setting in ("easy", "hard"):
        lines = []
        for pair in pairs_of(plan, table):
            found = [figures.line(pair, "default", method, setting) for method in CONSTRAINED]
            cells = (POINTS.format_map(f) if f["satisfied"].repeats else NONE for f in found)
            lines.append((pair, *cells))
        parts += [f"## Points, {setting}", ABOUT_POINTS, grid(("pair", *CONSTRAINED), lines)]
    return parts


def e3_brief(plan: Plan, table: pd.DataFrame) -> str:
    """Shares of instances, one line per pair and setting, the best of each in bold."""
    figures = Figures(table)
    lines = []
    for setting in ("easy", "hard"):
        for pair in pairs_of(plan, table):
            reported = plan[pair].reported
            theirs = reported.actionability if reported and setting == "easy" else None
            cells = {
                method: f"{figures.get(pair, 'default', 'satisfied', method, setting):.3}"
                for method in CONSTRAINED
            }
            top = max(text for text in cells.values() if text != NONE)
            bold = {m: f"**{text}**" if text == top else text for m, text in cells.items()}
            if theirs:
                bold = {m: f"{text} ({theirs[PLACES[m]]:.2f})" for m, text in bold.items()}
            infeasible = figures.get(pair, "default", "infeasible", label=setting)
            lines.append((pair, setting, *bold.values(), f"{infeasible:.1p}"))
    return grid(("pair", "", *CONSTRAINED, "infeasible, %"), lines)


# ------------------------------------------------------------------------------------------------
# E4 and the sweep

ABOUT_E4 = (
    "From instances to each endpoint: the classifier's probability of the target and the local "
    "outlier factor of the decoded points, among training rows labelled with the target, at the "
    "instance (τ = 0), half way, and at the endpoint (τ = 1); mean ± standard deviation over "
    "instances. *Sampled*: the row of the target class sampled near each instance."
)
ABOUT_SWEEP = (
    "The same comparison with other numbers of clusters per label, on the same instances; five is "
    "the default. Mean over repeats."
)


def e4(plan: Plan, table: pd.DataFrame) -> list[str]:
    """E4: three points of every curve."""
    one = table[table["repeat"] == table.groupby("pair")["repeat"].transform("min")]
    texts = one["mean"].map("{:.2f}".format) + " ± " + one["deviation"].map("{:.2f}".format)
    cells = dict(
        zip(zip(one["pair"], one["label"], one["metric"], strict=True), texts, strict=True)
    )
    points = [f"{metric}@{tau}" for metric in ("probability", "lof") for tau in ("0", "0.5", "1")]
    lines = [
        (pair, "sampled" if label == "-1" else label,
         *(cells.get((pair, label, point), NONE) for point in points))
        for pair in pairs_of(plan, table)
        for label in sorted(set(one.loc[one["pair"] == pair, "label"]), key=int)
    ]  # fmt: skip
    head = (f"{m}, τ = {t}" for m in ("probability", "LOF") for t in ("0", "½", "1"))
    picture = "![Probability and LOF along the paths, a panel per endpoint](e4.png)"
    parts = ["# E4: points along paths", _made(plan, table, "e4"), ABOUT_E4]
    return [*parts, grid(("pair", "prototype", *head), lines), picture]


def clusters(plan: Plan, table: pd.DataFrame) -> list[str]:
    """The sweep over clusters: every pick, pair by pair."""
    parts = ["# How many clusters", _made(plan, table, "clusters"), ABOUT_SWEEP]
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
    for pick in picks:
        for count in counts:
            line = figures.line(pair, "default", pick, count)
            lines.append((pick, count, *(f"{line[m.key]:{m.spec}}" for m in SWEPT)))
    return grid(("pick", "clusters", *(m.head for m in SWEPT)), lines)


# ------------------------------------------------------------------------------------------------
# What is written

PAGES: Mapping[str, Callable[[Plan, pd.DataFrame], list[str]]] = {
    "e1": e1, "e2": e2, "e3": e3, "e4": e4, "clusters": clusters,
}  # fmt: skip
BLOCKS: Mapping[str, Callable[[Plan, pd.DataFrame], str]] = {
    "e1": e1_brief,
    "e2": lambda plan, table: comparison.brief(Figures(table), pairs_of(plan, table)),
    "e2-words": lambda plan, table: comparison.in_words(Figures(table), pairs_of(plan, table)),
    "e3": e3_brief,
    "clusters": clusters_brief,
}


def blocks(plan: Plan, table: pd.DataFrame) -> dict[str, str]:
    """What other pages show between the markers `<!-- name -->` and `<!-- /name -->`.

    Args:
        plan: Whose results.
        table: The tidy table, all of it.
    """
    found = {
        name: make(plan, own)
        for name, make in BLOCKS.items()
        if len(own := part(table, name.partition("-")[0]))
    }
    if len(part(table, "e2")) or len(part(table, "e3")):
        found["targets"] = targets.markdown(plan, table)
    return found
