"""The experiments' pages as Markdown, and the blocks other pages show, from the tidy table alone.

`comparison` has the page of E2, `targets` whether the figures reach what was aimed at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pandas as pd

from benchmarks import comparison, findings, targets
from benchmarks.comparison import PICKS
from benchmarks.figures import NONE, Figures, grid
from benchmarks.path_pages import clusters, clusters_brief, e3, e3_brief, e4
from benchmarks.plan import Pair, Plan
from benchmarks.provenance import REPEATS, made, pairs_of, part

__all__ = ["PAGES", "blocks"]

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
    "paper's split: real, gap": "{real_split:.1p}, {gap_split:±p}",
    "agreement": "{agreement:±.3}",
    "by label": _by_label,
    "KS": _ks,
    "paper: M, real, gap": _reported,
}
CENTROIDS: Mapping[str, Column] = {
    "valid at the first try": "{centroids_first_try:of}",
    "valid before repair": "{centroids_before:of}",
    "after repair": "{centroids_after:of}",
    "fits tried": "{fit_tries:.1}",
    "least used": "{least_used:±}",
    "the same, soft": "{least_used_soft:±}",
    "entropy of π": "{entropy:±}",
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
    "*verified*: rows the classifier labels otherwise are redrawn. *Paper's split*: the test rows "
    "are a fifth of those the classifier was trained on, rather than rows it never saw. *KS*: "
    "distance between the classifier's probabilities on sampled and on real rows, over all rows / "
    "the largest of one label."
)
ABOUT_CENTROIDS = (
    "*Least used*: rows of the smallest cluster over an even share, by arg-max of q(c|x,y); "
    "*soft*: by its sum. *Entropy of π*: of q(c|x,y) over that of the uniform distribution, mean "
    "over rows; near 1 every row belongs to all clusters alike. *Diversity*: mean distance between "
    "the target's prototypes over that of k-means centroids, found in rank coding / in min-max "
    "coding."
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
- The paper's 73.97 % for heloc-RF, trained on real rows, comes of its split and of a classifier \
that memorised its training rows: with test rows cut from those, and a forest of full depth as the \
classifier, the same is {deep_real} % here, and the classifier's accuracy {deep_accuracy} %.
- Tables the paper does not have: adult-full is the census with its original categories; cancer, \
cultivars and digits come with scikit-learn; codes and columns are generated. The recipe was \
chosen without them, but for adult-full."""


def e1(plan: Plan, table: pd.DataFrame) -> list[str]:
    """E1: targets, utility, centroids, paths and cost."""
    figures, limits, protocol = Figures(table), plan.limits, plan.protocol
    parts = ["# E1: utility and centroids", f"{made(plan, table, 'e1')} {REPEATS}"]
    parts += ["## Targets", targets.ABOUT_E1, targets.e1(plan, figures)]
    for title, (about, columns) in SECTIONS.items():
        parts += [f"## {title}", about.format(instances=protocol.instances)]
        parts.append(_recipes(plan, figures, columns))
    deep = figures.line("heloc-RF", "paper")
    notes = {
        **vars(limits),
        "seeds": len(protocol.seeds),
        **{name: f"{deep[name]:.1p}" for name in ("deep_real", "deep_accuracy")},
    }
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
                f"{paper['centroids_first_try']:of}",
                f"{own['centroids_before']:of}",
                f"{paper['least_used']} / {own['least_used']}",
                *(text.format_map(own) for text in ours.values()),
            ))  # fmt: skip
    head = (
        "pair", "gap, the paper's own figure", "gap, its model as read here", "**gap, lapace**",
        "centroids valid: its model", "lapace, before repair", "least used: its / lapace", *ours,
    )  # fmt: skip
    return grid(head, lines)


ABOUT_READINGS = (
    "What the paper leaves open, read in several ways, with the paper's settings of each pair, on "
    "splits no other experiment uses; one try each. Gaps are means over pairs and seeds, in points "
    "(the paper's own: {reported:.2f}). *Least used* and *entropy of π*: as in E1, mean over "
    "pairs. *Spread*: mean distance between the target's prototypes; 0 where clusters are copies "
    "of one another. Means over few pairs do not compare with those over all; E1 has the first "
    "reading on every pair, on other splits."
)
READINGS = {
    "gap": "gap_raw", "least used": "least_used", "soft": "least_used_soft",
    "entropy of π": "entropy", "spread": "prototype_spread", "LOF of prototypes": "prototype_lof",
}  # fmt: skip


def readings(plan: Plan, table: pd.DataFrame) -> list[str]:
    """The readings of what the paper leaves open: means over pairs, then every pair's gap."""
    pairs, figures = pairs_of(plan, table), Figures(table)
    gaps = [pair.reported.gap for pair in plan.pairs if pair.reported is not None]
    about = ABOUT_READINGS.format(reported=sum(gaps) / max(1, len(gaps)))
    lines = [
        (reading, *(f"{figures.get(p, 'paper', 'gap_raw', label=reading):±.1p}" for p in pairs))
        for reading in plan.readings.options
    ]
    theirs = (f"{own.gap:.1f}" if (own := plan[p].reported) else NONE for p in pairs)
    lines.append(("the paper's own figure", *theirs))
    parts = ["# Readings of the paper", made(plan, table, "readings"), about]
    return [*parts, readings_brief(plan, table), "## Gaps", grid(("reading", *pairs), lines)]


def readings_brief(plan: Plan, table: pd.DataFrame) -> str:
    """A line per reading."""
    lines = []
    for reading in plan.readings.options:
        own = table[table["label"] == reading]
        means = own.groupby("metric")["mean"].mean()
        valid = own[own["metric"] == "centroids_first_try"]
        count = f"{(valid['mean'] * valid['count']).sum():.0f} of {valid['count'].sum():.0f}"
        cells = (
            f"{100 * means[m]:.1f}" if m == "gap_raw" else f"{means[m]:.2f}"
            for m in READINGS.values() if m in means
        )  # fmt: skip
        if len(own):
            lines.append((reading, f"{own['pair'].nunique()}", count, *cells))
    return grid(("reading", "pairs run", "centroids valid", *READINGS), lines)


ABOUT_SOURCES = (
    "What the gap of the paper's model comes from, in points, on the splits of the readings: a "
    "forest trained on every training row decoded from the mean of its own code "
    "(*reconstructed*); from one draw of q(z|x,y) (*posterior*); from a Gaussian of full "
    "covariance fitted to those draws, cluster by cluster (*refit*); from p(z|c), as the model is "
    "sampled (*prior*); and on the latter with noise on numbers, as large as reconstructions are "
    "off (*noise*). What *prior* adds to *posterior* is lost because the codes of real rows do "
    "not lie as p(z|c) says; what *noise* takes away, because decoded means lack the spread of "
    "real rows."
)
SOURCES = ("reconstructed", "posterior", "refit", "prior", "noise")


def sources(plan: Plan, table: pd.DataFrame) -> list[str]:
    """Where the gap of the paper's model comes from."""
    parts = ["# Where the gap comes from", made(plan, table, "sources"), ABOUT_SOURCES]
    return [*parts, sources_brief(plan, table)]


def sources_brief(plan: Plan, table: pd.DataFrame) -> str:
    """A line per pair: the gap of each kind of sample."""
    figures = Figures(table)
    lines = [
        (pair, *(f"{figures.get(pair, 'paper', f'gap_{name}'):±.1p}" for name in SOURCES),
         f"{own.gap:.1f}" if (own := plan[pair].reported) else NONE)
        for pair in pairs_of(plan, table)
    ]  # fmt: skip
    return grid(("pair", *SOURCES, "the paper's own figure"), lines)


# ------------------------------------------------------------------------------------------------
# E2


def e2(plan: Plan, table: pd.DataFrame) -> list[str]:
    """E2: every method by every metric."""
    text = f"{made(plan, table, 'e2')} {REPEATS}"
    return comparison.page(plan, Figures(table), pairs_of(plan, table), text)


# ------------------------------------------------------------------------------------------------
# What is written

PAGES: Mapping[str, Callable[[Plan, pd.DataFrame], list[str]]] = {
    "e1": e1, "readings": readings, "sources": sources, "e2": e2, "e3": e3, "e4": e4,
    "clusters": clusters,
}  # fmt: skip
BLOCKS: Mapping[str, Callable[[Plan, pd.DataFrame], str]] = {
    "e1": e1_brief,
    "readings": readings_brief,
    "sources": sources_brief,
    "e2": lambda plan, table: comparison.brief(Figures(table), pairs_of(plan, table)),
    "e2-won": lambda plan, table: comparison.won(Figures(table), pairs_of(plan, table)),
    "e2-short": lambda plan, table: comparison.short(Figures(table), pairs_of(plan, table)),
    "e3": e3_brief,
    "clusters": clusters_brief,
}


def blocks(plan: Plan, table: pd.DataFrame, digits: pd.DataFrame | None = None) -> dict[str, str]:
    """What other pages show between the markers `<!-- name -->` and `<!-- /name -->`.

    Args:
        plan: Whose results.
        table: The tidy table, all of it.
        digits: The table of E5, where there is one.
    """
    found = {
        name: make(plan, own)
        for name, make in BLOCKS.items()
        if len(own := part(table, name.partition("-")[0]))
    }
    if len(part(table, "e2")):
        found["findings"] = findings.table_of(plan, table, digits)
    if len(part(table, "e2")) or len(part(table, "e3")):
        found["targets"] = targets.markdown(plan, table)
    return found
