"""The pages of E1, E3, E4, the grid of readings, sweeps and attacks as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import pandas as pd

from benchmarks.comparison import METRICS, MODELS, PICKS, SWEPT, Method, compared
from benchmarks.e3 import FACE, SETTINGS
from benchmarks.figures import NONE, REPEATS, Figures, Results, grid
from benchmarks.judging import mean
from benchmarks.plan import PAPER_SIDES, Pair, Plan, Reported
from benchmarks.readings import combinations

# ------------------------------------------------------------------------------------------------
# E1

Column = str | Callable[[Figures, Pair, str], str]


def _by_label(figures: Figures, pair: Pair, recipe: str) -> str:
    labels = figures.labels(pair.name, recipe, "agreement")
    found = [figures.get(pair.name, recipe, "agreement", label=label) for label in labels]
    if len(labels) > 3:
        return f"least {min(figure.mean for figure in found):.3f}"
    return " / ".join(f"{figure:.3}" for figure in found)


def _reported(_: Figures, pair: Pair, __: str) -> str:
    known = pair.reported
    return f"{known.accuracy:.1f}, {known.real:.1f}, {known.gap:.2f}" if known else NONE


def _fit_ratio(figures: Figures, pair: Pair, recipe: str) -> str:
    own, paper = (
        figures.get(pair.name, r, "fit_processor_seconds").mean for r in ("default", "paper")
    )
    return NONE if recipe in PAPER_SIDES or math.isnan(paper) else f"{own / paper:.2f}"


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
        for name in (*PICKS[:3], "NNCE")
    },
    "First valid": "{first_valid:of}",
    "Middle valid": "{middle_valid:of}",
    "re-crossing before / after First": "{recrossing_before:.1p} / {recrossing_after:.1p}%",
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
}
ABOUT_UTILITY = (
    "A forest trained on real and one on synthetic rows, both tested on held-out rows labelled by "
    "the classifier. *Raw*: synthetic rows carry the label they were drawn for, as in the paper; "
    "*verified*: rows the classifier labels otherwise are redrawn."
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
    "training row the classifier gives the target. LOF is the mean, in brackets the median."
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
- Tables the paper does not have: adult-full is the census with its original categories; cancer, \
cultivars and digits come with scikit-learn; codes and columns are generated. The recipe was \
chosen without them, but for adult-full."""


def e1(results: Results) -> list[str]:
    """Returns E1: utility, centroids, paths and cost."""
    limits, protocol = results.plan.limits, results.plan.protocol
    parts = ["# E1: utility and centroids", results.made, REPEATS]
    for title, (about, columns) in SECTIONS.items():
        parts += [f"## {title}", about.format(instances=protocol.instances)]
        parts.append(_recipes(results.plan, results.figures, columns))
    return [*parts, NOTES.format(**vars(limits), seeds=len(protocol.seeds))]


def _recipes(plan: Plan, figures: Figures, columns: Mapping[str, Column]) -> str:
    """A line for every pair and recipe there are figures of; few repeats are marked."""
    lines = []
    for pair in plan.pairs:
        for recipe in MODELS:
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


def e1_brief(results: Results) -> str:
    """The figures of E1 a first page needs, one line per pair."""
    lines = []
    for pair in results.plan.pairs:
        if pair.reported is not None:
            ours, printed, paper = (
                results.figures.line(pair.name, recipe)
                for recipe in ("default", "printed", "paper")
            )
            lines.append((
                pair.name,
                f"{pair.reported.gap:.1f}",
                f"{printed['gap_raw']:±.1p}",
                f"{paper['gap_raw']:±.1p}",
                f"**{ours['gap_raw']:±.1p}**",
                " / ".join(f"{m['centroids_first_try']:of}" for m in (printed, paper)),
                f"{ours['centroids_before']:of}",
                " / ".join(f"{m['least_used']}" for m in (printed, paper, ours)),
                f"{ours['first_lof']} ({ours['nnce_lof']})",
                f"{ours['last_lof']}",
            ))  # fmt: skip
    head = (
        "pair", "gap, the paper's own figure", "gap, as printed", "gap, as read here",
        "**gap, lapace**", "centroids valid: as printed / as read", "lapace, before repair",
        "least used: as printed / as read / lapace", "LOF of lapace's First (NNCE's)",
        "of its Last",
    )  # fmt: skip
    return grid(head, lines)


ABOUT_READINGS = (
    "What the paper leaves open, read in every combination, with its settings of each pair, on its "
    "split: the test rows are cut from those the classifier was trained on. Classifiers were "
    "chosen, on other splits, to come near the paper's accuracy and its figure for real rows. "
    "*Error*: mean over pairs of the distance between a pair's gap and the paper's, in points, by "
    "the depth of the forests trained on real and synthetic rows. *Within*: pairs within the "
    "paper's own deviation, at the depth of least error. The paper prints two deviations, for real "
    "and for synthetic rows: the gap's is taken in quadrature, as if they were independent; in "
    "brackets, as their sum, which is the most it can be. *Prototypes apart*: the mean distance "
    "between decoded centroids of a label."
)


class _Score(NamedTuple):
    """A reading against Table 1."""

    error: float  # mean over pairs of the distance to its gaps
    within: int  # pairs within its deviations, in quadrature
    within_sum: int  # pairs within their sum


def _scores(results: Results) -> dict[tuple[str, int], _Score]:
    """The score of every reading by depth, the best first."""
    found, scores = results.plan.readings, {}
    for key in product(combinations(found), found.depths):
        if away := _away(results, *key):
            scores[key] = _Score(
                mean(error for error, _ in away),
                sum(error <= known.gap_deviation for error, known in away),
                sum(error <= sum(known.deviations) for error, known in away),
            )
    return dict(sorted(scores.items(), key=lambda item: item[1].error))


def _away(results: Results, name: str, depth: int) -> list[tuple[float, Reported]]:
    """How many points the gap of a reading is off, pair by pair, and what the paper has there."""
    found = []
    for pair in results.plan.pairs:
        figure = results.figures.get(pair.name, "paper", f"gap@{depth}", label=name)
        if pair.reported is not None and figure.repeats:
            found.append((abs(100 * figure.mean - pair.reported.gap), pair.reported))
    return found


def _verdict(scores: Mapping[tuple[str, int], _Score], figures: Figures, pairs: list[str]) -> str:
    """Whether a reading reproduces Table 1."""
    (name, depth), best = next(iter(scores.items()))
    rest = [score.error for (other, _), score in scores.items() if other != name]
    text = (
        f"The best reading is *{name}* with forests of {_depth(depth)}. It is {best.error:.1f} "
        f"points off on average{f' (the next: {rest[0]:.1f})' if rest else ''}. The paper prints "
        "one deviation for real rows and one for synthetic rows. If they are independent, this "
        f"reading is within the gap's deviation on {best.within} of {len(pairs)} pairs; if they "
        f"add up, on {best.within_sum}. "
    )
    if not any(score.within == len(pairs) for score in scores.values()):
        text += "So Table 1 is **not reproducible from the text**. "
    for (name, depth), score in scores.items():
        if score.within < score.within_sum == len(pairs):
            text += (
                f"If they add up, *{name}* with forests of {_depth(depth)} is within on every "
                f"pair, but its prototypes are {_apart(figures, pairs, name):.2f} apart, those of "
                f"the best reading {_apart(figures, pairs, next(iter(scores))[0]):.2f}. "
            )
    return text.rstrip()


def _apart(figures: Figures, pairs: Sequence[str], name: str) -> float:
    """How far a reading's prototypes of a label are from one another, in the paper's distance."""
    return mean(figures.line(pair, "paper", label=name)["spread"].mean for pair in pairs)


def readings(results: Results) -> list[str]:
    """The grid of readings: errors against Table 1, then every pair's gap, and real rows."""
    plan, pairs, figures = results.plan, results.pairs, results.figures
    names, depths = list(combinations(plan.readings)), plan.readings.depths
    _, depth = next(iter(_scores(results)), ("", depths[0]))
    parts = ["# Readings of the paper", results.made, ABOUT_READINGS, readings_table(results)]
    lines = [
        (n, *(f"{figures.get(p, 'paper', f'gap@{depth}', label=n):±.1p}" for p in pairs))
        for n in names
    ]
    theirs = (f"{own.gap:.1f} ± {own.gap_deviation:.1f}" if (own := plan[p].reported) else NONE
              for p in pairs)  # fmt: skip
    lines.append(("the paper's own figure", *theirs))
    parts += [f"## Gaps, forests of {_depth(depth)}", grid(("reading", *pairs), lines)]
    shown = [
        (pair, plan[pair].matched or "as in E1", f"{figures.get(pair, 'paper', 'accuracy'):±.1p}",
         *(f"{figures.get(pair, 'paper', f'real@{d}'):±.1p}" for d in depths),
         f"{own.accuracy:.1f}, {own.real:.1f}" if (own := plan[pair].reported) else NONE)
        for pair in pairs
    ]  # fmt: skip
    head = ("pair", "classifier", "accuracy, %", *(f"real, {_depth(d)}" for d in depths),
            "the paper's")  # fmt: skip
    return [*parts, "## Classifiers and real rows", grid(head, shown)]


NEAREST = 3  # readings that the page shows


def _depth(depth: int) -> str:
    return f"depth {depth}" if depth else "full depth"


def readings_brief(results: Results) -> str:
    """The verdict, and the readings that come nearest to the paper."""
    count = len(list(combinations(results.plan.readings)))
    text = f"The nearest of {count} readings; `benchmarks/results/grid.md` has all."
    return f"{readings_table(results, NEAREST)}\n\n{text}"


def readings_table(results: Results, most: int | None = None) -> str:
    """The verdict, and a line per reading: its error by depth, and what its clusters do."""
    figures, pairs, scores = results.figures, results.pairs, _scores(results)
    depths, lines = results.plan.readings.depths, []
    for name in combinations(results.plan.readings):
        found = [scores[name, depth] for depth in depths if (name, depth) in scores]
        if not found:
            continue
        best = min(found)
        clusters = [figures.line(pair, "paper", label=name) for pair in pairs]
        hits, count = (sum(getattr(c["centroids"], f) for c in clusters) for f in ("hits", "count"))
        line = (
            name, *(f"{score.error:.1f}" for score in found),
            f"{best.within} ({best.within_sum}) of {len(pairs)}", f"{hits:.0f} of {count}",
            f"{mean(c['least_used'].mean for c in clusters):.2f}",
            f"{_apart(figures, pairs, name):.2f}",
        )  # fmt: skip
        lines.append((best.error, line))
    if most is not None:
        lines = sorted(lines)[:most]
    head = ("reading", *(f"error, {_depth(d)}" for d in depths), "within", "centroids valid",
            "least used", "prototypes apart")  # fmt: skip
    return f"{_verdict(scores, figures, pairs)}\n\n{grid(head, [line for _, line in lines])}"


# ------------------------------------------------------------------------------------------------
# Tuning and privacy

ABOUT_TUNING = (
    "One option of each baseline at a time, on one seed, beside its figures in E2 with the same "
    "seed and its default: is a default here unfair to it? Mean over pairs. *DRCE-library* chooses "
    "as the library RobustX does: rows at least a quarter farther from the instance than the "
    "nearest, not refined. Instances: {instances}; all others {most}. Where E2 ran on another "
    "machine, small differences mean nothing."
)
ABOUT_PRIVACY = (
    "Membership inference: the area under the ROC curve with which an attacker tells training rows "
    "from test rows, both labelled with the target; one half is guessing. From *answers*: by the "
    "distance to the nearest counterfactual of 100 instances. From a *file*: by the reconstruction "
    "error, or the density, of a saved explainer. Whoever has the file of NNCE, FACE or DRCE has "
    "the training rows. In brackets the share of members found at one false alarm in a hundred."
)


def tuning(results: Results, e2: pd.DataFrame) -> list[str]:
    """The variants of the baselines, each after the same with its default, from E2."""
    table, of = results.table, {b.name: b.name.partition("-")[0] for b in results.plan.tuning}
    of |= {name: "RobX-rows" for name in of if name.startswith("RobX-rows")}
    same = e2["seed"].isin(table["seed"]) & (e2["recipe"] == "baselines")
    figures = Figures(pd.concat([table, e2[same & e2["method"].isin(of.values())]]))
    found = []
    for base in dict.fromkeys(of.values()):
        found.append(Method(f"{base}, default", "baselines", base))
        found += [Method(name, "baselines", name) for name in of if of[name] == base]
    shown, plan = {method.name for method in found} | set(of.values()), results.plan
    counts = {m.name: m.instances for m in (*plan.baselines, *plan.tuning) if m.name in shown}
    fewer = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    about = ABOUT_TUNING.format(instances=fewer, most=plan.protocol.instances)
    # Seconds are left out: variants may have run on another machine than E2.
    metrics = [metric for metric in METRICS if metric.key != "seconds"]
    text = compared(figures, results.pairs, found, metrics)
    return ["# One option of each baseline", results.made, about, text]


def privacy(results: Results) -> list[str]:
    """What membership inference finds, a line per method and attack."""
    pairs, figures = results.pairs, results.figures
    methods = [("baselines", name, "answers", name) for name in ("NNCE", "FACE", "DRCE")]
    for side, of in MODELS.items():
        methods += [(side, name, "answers", f"{name}{of}") for name in PICKS]
        methods += [(side, "", label, f"{label}{of or ', default recipe'}")
                    for label in ("file, reconstruction", "file, density")]  # fmt: skip
    lines = []
    for side, method, label, title in methods:
        found = [figures.line(pair, side, method, label) for pair in pairs]
        if any(line["auc"].repeats for line in found):
            lines.append((title, *("{auc:±.2} ({found:.1p}%)".format_map(line) for line in found)))
    text = grid(("attack", *pairs), lines)
    return ["# Membership inference", results.made, ABOUT_PRIVACY, text]


# ------------------------------------------------------------------------------------------------
# E3

CONSTRAINED = (
    *(Method(name, "baselines", name) for name in FACE),
    *(
        Method(f"{n}{of}", recipe, n)
        for recipe, of in MODELS.items()
        for n in (("LAPACE-naive", "LAPACE-latent") if of else ("LAPACE-exact",))
    ),
)
# The paper's own four, in its order, by the name they have here.
REPORTED = (
    "FACE-Interpolate",
    "FACE-Greedy",
    "LAPACE-naive, as printed",
    "LAPACE-latent, as printed",
)
BRIEF = (*REPORTED, "LAPACE-latent, as read here", "LAPACE-exact")
ABOUT_E3 = (
    "{instances} instances of each seed. Share of instances with at least one point on a path that "
    "satisfies all their constraints and is valid. *Easy*: {n_constraints} constraints each, drawn "
    "from the data set's list. *Medium*: every range is one around the instance's own value, which "
    "may change by {change:.0%} of the feature's spread (10% to 90% quantile); this was set on "
    "splits with other seeds. *Infeasible*: instances for which provably no row satisfies the "
    "constraints; no method can answer them. In brackets the paper's figures, where it has them. "
    "FACE's points are overwritten constraint by constraint, or *projected* to the nearest values "
    "that satisfy all of them; *latent* is the paper's gradient descent, *exact* the default."
)
ABOUT_ONE = (
    "The same for one path each: the share of all paths, of instances that are not infeasible, "
    "with such a point. FACE has one path per instance, an explainer one per prototype, and with "
    "the default recipe one to a sampled endpoint."
)
ABOUT_POINTS = (
    "Share of points that satisfy the constraints / LOF of valid points without constraints → of "
    "valid points that satisfy them / processor seconds per 100 instances without → with "
    "constraints (LAPACE explains one instance per call, FACE's paths are computed in one batch). "
    "Where seeds ran on two machines, seconds are means over both."
)
POINTS = "{feasible_points:.1p}% / {lof_before} → {lof_after} / {seconds_before:.1} → {seconds:.1}"


def e3(results: Results) -> list[str]:
    """E3: shares of instances, shares of paths, then points of paths in both settings."""
    figures, pairs = results.figures, results.pairs
    known = {key[1:3] for key in figures.by_key}
    methods = [method for method in CONSTRAINED if (method.recipe, method.method) in known]
    parts = ["# E3: actionability", results.made, ABOUT_E3.format(**vars(results.plan.e3))]
    parts.append(_shares(results, "satisfied", methods))
    parts += ["## One path each", ABOUT_ONE, _shares(results, "satisfied_path", methods)]
    parts += ["## The paper's correction, swept", ABOUT_SWEPT, _correction(figures, pairs)]
    for setting in SETTINGS:
        lines = []
        for method in methods:
            found = [figures.line(pair, method.recipe, method.method, setting) for pair in pairs]
            cells = (POINTS.format_map(f) if f["satisfied"].repeats else NONE for f in found)
            lines.append((method.name, *cells))
        parts += [f"## Points, {setting}", ABOUT_POINTS, grid(("method", *pairs), lines)]
    return parts


ABOUT_SWEPT = (
    "Share of instances satisfied in the medium setting by gradient descent on z, as read here, "
    "with other rates η and numbers N of steps; and where violations that add up to a share of the "
    "columns' ranges are forgiven. On fewer instances."
)


def _correction(figures: Figures, pairs: Sequence[str]) -> str:
    labels = sorted({label for pair in pairs for label in figures.labels(pair, "paper", "swept")})
    return grid(("setting", *pairs), [
        (label, *(f"{figures.get(p, 'paper', 'swept', 'LAPACE-latent', label):.2}" for p in pairs))
        for label in labels
    ])  # fmt: skip


def e3_brief(results: Results) -> str:
    """Shares of instances of the paper's four methods and of ours."""
    return _shares(results, "satisfied", [m for m in CONSTRAINED if m.name in BRIEF])


def _shares(results: Results, metric: str, methods: Sequence[Method]) -> str:
    """One line per pair and setting, the best of each in bold."""
    figures, lines = results.figures, []
    for setting in SETTINGS:
        for pair in results.pairs:
            reported = results.plan[pair].reported
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
            if set(texts.values()) == {NONE}:
                continue
            lines.append((pair, setting, *cells.values(), infeasible))
    return grid(("pair", "constraints", *(m.name for m in methods), "infeasible, %"), lines)


# ------------------------------------------------------------------------------------------------
# E4 and the sweep

ABOUT_E4 = (
    "From instances to every prototype of the target: the classifier's probability of the target, "
    "the local outlier factor of the decoded points among training rows labelled with the target "
    "and among all, and their density (the share of rows of the target that are less dense, by the "
    "explainer's own model), mean over prototypes and repeats. The picture has the curves of one "
    "fit by endpoint, without the Gumbel draw, with the deviation over instances; *sampled* is the "
    "row of the target class sampled near each instance."
)
ABOUT_SWEEP = (
    "The same comparison with other numbers of clusters per label, on the same instances. Five is "
    "the default, and its figures are E2's. Where E2 ran on another machine, small differences "
    "mean nothing."
)
CURVES = {
    "probability": "probability", "lof": "LOF", "lof_all": "LOF among all rows",
    "density": "density",
}  # fmt: skip
TAUS = ("0", "0.25", "0.5", "0.75", "1")


def e4(results: Results) -> list[str]:
    """Returns E4: the means of the curves."""
    picture = "![Probability, LOF and density along the paths, a panel per endpoint](e4.png)"
    return ["# E4: points along paths", results.made, ABOUT_E4, _curves(results), picture]


def _curves(results: Results) -> str:
    """The mean over repeats at a few τ."""
    lines = []
    for pair in results.pairs:
        for recipe in MODELS:
            line = results.figures.line(pair, recipe, label="all")
            found = [" / ".join(f"{line[f'{m}@{t}']}" for t in TAUS) for m in CURVES]
            if any(text.strip(f"{NONE} /") for text in found):
                lines.append((pair, recipe, *found))
    taus = ", ".join(TAUS)
    return grid(("pair", "recipe", *(f"{m} at τ = {taus}" for m in CURVES.values())), lines)


def clusters(results: Results, e2: pd.DataFrame) -> list[str]:
    """The sweep over clusters, pair by pair, with E2's figures for the plan's own number."""
    table, own = results.table, str(results.plan.protocol.n_prototypes)
    same = e2["seed"].isin(table["seed"]) & e2["recipe"].isin(set(table["recipe"]))
    table = pd.concat([table, e2[same & e2["method"].isin(PICKS[:3])].assign(label=own)])
    parts = ["# How many clusters", results.made, ABOUT_SWEEP]
    for pair in results.pairs:
        parts += [f"## {pair}", _swept(Figures(table), table[table["pair"] == pair])]
    return parts


def _swept(figures: Figures, table: pd.DataFrame) -> str:
    """First, Middle and Last of one pair for every number of clusters."""
    lines = []
    for recipe, of in MODELS.items():
        for pick in PICKS[:3]:
            for count in sorted(set(table["label"]) - {""}, key=int):
                line = figures.line(table["pair"].iloc[0], recipe, pick, count)
                if line["distance"].repeats:
                    cells = (f"{line[m.key]:{m.spec}}" for m in SWEPT)
                    lines.append((f"{pick}{of}", count, *cells))
    return grid(("pick", "clusters", *(m.head for m in SWEPT)), lines)
