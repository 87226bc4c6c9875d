"""The page of `benchmarks.dense`: every candidate beside straight lines, and the decision."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas as pd

from benchmarks.figures import NONE, grid

__all__ = ["WINNER", "Rule", "blocks", "decided", "page"]

SAMPLED = ("sampled ends", "sampled ends, dense", "ten sampled ends")
WINNER = "dense"  # what `Search(path="dense")` does
DIGITS = "mnist"
MOST_TIME = 1.5  # of the straight line's outside the classifier

# Metrics by their titles, with the direction that is better, and digits.
ALONG = {
    "density": ("density ↑", 1, 1),
    "density_worst": ("worst step ↑", 1, 1),
    "density_ok": ("worst ok step ↑", 1, 1),
    "lof": ("LOF ↓", -1, 3),
    "lof_worst": ("worst step ↓", -1, 3),
    "lof_ok": ("worst ok step ↓", -1, 3),
}
PICKED = {
    "first_lof": ("First's LOF ↓", -1, 3),
    "middle_lof": ("Middle's LOF ↓", -1, 3),
    "first_density": ("First's density ↑", 1, 1),
    "middle_density": ("Middle's density ↑", 1, 1),
    "first_distance": ("First's distance ↓", -1, 3),
    "nearest_distance": ("nearest's distance ↓", -1, 3),
    "nearest_lof": ("nearest's LOF ↓", -1, 3),
}
ELSE = {
    "unseen": ("unseen categories, % ↓", -1, 2),
    "recrossing": ("re-crossing, % ↓", -1, 2),
    "reached": ("paths that reach the target, % ↑", 1, 2),
    "diversity": ("diversity ↑", 1, 3),
    "ways": ("ways ↑", 1, 2),
    "shared": ("shared end, % ↓", -1, 0),
    "seconds": ("s per 100 ↓", -1, 3),
    "queries": ("queries per 100 ↓", -1, 0),
}
PERCENT = ("unseen", "recrossing", "reached", "shared")
BETTER = ("density", "density_worst", "lof", "lof_worst", "first_lof", "middle_lof")
NO_WORSE = (
    "first_distance", "nearest_distance", "diversity", "unseen", "recrossing", "reached", "queries",
)  # fmt: skip
SIGNS = {name: sign for part in (ALONG, PICKED, ELSE) for name, (_, sign, _) in part.items()}


TITLES = {
    "decision": "The decision",
    "candidates": "All candidates",
    "sampled": "Endpoints of one's own",
    "pairs": "Pair by pair",
    "face": "Beside FACE",
    "ends": "Fewer endpoints",
    "constraints": "Under constraints",
    "digits": "Digits",
}


class Rule(NamedTuple):
    """One metric of the rule: its mean difference to straight lines, and the spread over seeds."""

    metric: str
    difference: float
    spread: float

    @property
    def gain(self) -> float:
        """The difference, positive where it is better."""
        return SIGNS[self.metric] * self.difference

    @property
    def better(self) -> bool:
        """Better by more than the spread over seeds."""
        return self.gain > (0.0 if math.isnan(self.spread) else self.spread)

    @property
    def worse(self) -> bool:
        """Worse by more than the spread over seeds."""
        return -self.gain > max(0.0 if math.isnan(self.spread) else self.spread, 1e-9)


def wide(table: pd.DataFrame) -> pd.DataFrame:
    """One line per pair, seed and method, metrics as columns."""
    plain = table[(table["label"] == "") & (table["pair"] != DIGITS)]
    keys = ["pair", "seed", "method", "metric"]
    return plain.groupby(keys, sort=False)["mean"].mean().unstack("metric")


def decided(table: pd.DataFrame, method: str = WINNER) -> tuple[list[Rule], float]:
    """The rule's metrics, and the time over that of straight lines.

    A difference is taken run by run, on the same fit, and averaged over seeds, then pairs; its
    spread is the standard deviation over the seeds of a pair, pooled over pairs.
    """
    lines = wide(table)
    if not {method, "straight"} <= set(lines.index.get_level_values("method")):
        return [], math.nan
    new, old = (lines.xs(name, level="method") for name in (method, "straight"))
    both = new.index.intersection(old.index)
    apart = new.loc[both] - old.loc[both]
    within = apart.groupby("pair").var().mean() ** 0.5  # NaN where each pair has one seed
    rules = [
        Rule(name, float(apart[name].groupby("pair").mean().mean()), float(within[name]))
        for name in (*BETTER, *NO_WORSE)
        if name in apart
    ]
    time = float((new.loc[both, "seconds"] / old.loc[both, "seconds"]).median())
    return rules, time


def blocks(table: pd.DataFrame) -> dict[str, str]:
    """The parts of the page, by the name of their place in `docs/understand/paths.md`."""
    lines = wide(table) if len(table) else pd.DataFrame()
    found = {}
    if len(lines):
        found = {
            "decision": _decision(table),
            "candidates": _means(lines[~_named(lines, *SAMPLED, "FACE")]),
            "sampled": _sampled(table, lines),
            "pairs": _pairs(lines),
            "face": _face(lines),
            "ends": _ends(table),
            "constraints": _constraints(table),
        }
    digits = table[table["pair"] == DIGITS] if len(table) else table
    if len(digits):
        found["digits"] = _digits(digits)
    return found


def page(table: pd.DataFrame) -> str:
    """The whole page."""
    head = (
        "# Dense paths beside straight ones\n\nMade by `python -m benchmarks.dense`; "
        "`benchmarks/dense_candidates.py` says what each candidate is."
    )
    parts = [head]
    for name, block in blocks(table).items():
        parts += [f"## {TITLES[name]}", block]
    return "\n\n".join(part for part in parts if part) + "\n"


def _rows_of(rules: Sequence[Rule], time: float) -> list[tuple[str, ...]]:
    """A line for each metric of the rule, and one for the time."""
    rows = []
    for rule in rules:
        percent = 100 if rule.metric in PERCENT else 1
        title = _title(rule.metric)
        verdict = "better" if rule.better else "worse" if rule.worse else "within the spread"
        if rule.difference == 0:
            verdict = "the same"
        figures = (f"{percent * rule.difference:+.3f}", _figure(percent * rule.spread, "", 3))
        rows.append((title, *figures, verdict))
    rows.append(("time outside the classifier", f"x {time:.2f}", "", _timely(time)))
    return rows


def _sampled(table: pd.DataFrame, lines: pd.DataFrame) -> str:
    """Sampled endpoints beside prototypes, by the same rule and in figures."""
    means = _means(lines[_named(lines, "straight", WINNER, *SAMPLED)])
    parts = []
    for method in SAMPLED[:2]:
        rules, time = decided(table, method)
        if rules:
            rows = _rows_of(rules, time)
            parts.append(grid(("metric", f"{method} - straight", "spread", "verdict"), rows))
    if not parts:
        return ""
    shown = ("straight", SAMPLED[0], SAMPLED[2])
    metrics = ("first_distance", "middle_lof", "diversity", "ways", "shared")
    return "\n\n".join([*parts, means, _each_pair(lines, shown, metrics)])


def _decision(table: pd.DataFrame) -> str:
    rules, time = decided(table)
    if not rules:
        return ""
    rows = _rows_of(rules, time)
    wins = all(r.better for r in rules if r.metric in BETTER)
    harms = [_title(r.metric) for r in rules if r.metric in NO_WORSE and r.worse]
    default = wins and not harms and time <= MOST_TIME
    pairs = list(dict.fromkeys(wide(table).index.get_level_values("pair")))
    runs = len(wide(table).xs(WINNER, level="method"))
    text = (
        f"{runs} runs on {len(pairs)} pairs of table and classifier, 40 instances each. "
        "`dense` becomes the default if it is better on density and LOF and no worse elsewhere, "
        f"within the spread over seeds, in at most {MOST_TIME} times the time. "
        f"It is {'better' if wins else 'not better'} on all of density and LOF, and "
        f"{'worse on ' + ', '.join(harms) if harms else 'nowhere worse elsewhere'}. "
        f"So the default is **{'dense' if default else 'straight'}**."
    )
    return f"{text}\n\n{grid(('metric', 'dense - straight', 'spread', 'verdict'), rows)}"


def _timely(time: float) -> str:
    return "in time" if time <= MOST_TIME else "too slow"


def _title(metric: str) -> str:
    for part in (ALONG, PICKED, ELSE):
        if metric in part:
            title = part[metric][0].rstrip("↑↓ ")
            if title.startswith("worst"):
                title = f"{'density' if metric.startswith('density') else 'LOF'} at the {title}"
            return title
    return metric


def _figure(value: float, metric: str, digits: int) -> str:
    if math.isnan(value):
        return NONE
    return f"{100 * value if metric in PERCENT else value:.{digits}f}"


def _named(lines: pd.DataFrame, *methods: str) -> pd.Series:
    return lines.index.get_level_values("method").isin(methods)


def _means(lines: pd.DataFrame) -> str:
    """Every method on the runs that all of them have."""
    each = [set(own.droplevel("method").index) for _, own in lines.groupby("method")]
    common = sorted(set.intersection(*each)) if each else []
    if not common:
        return ""
    seeds: dict[str, list[str]] = {}
    for pair, seed in common:
        seeds.setdefault(pair, []).append(str(seed))
    groups: dict[str, list[str]] = {}  # pairs with the same seeds together
    for pair, own in seeds.items():
        groups.setdefault(", ".join(own), []).append(pair)
    named = "; ".join(f"{', '.join(own)}, seed {numbers}" for numbers, own in groups.items())
    tables = [f"Means over the {len(common)} runs that all of these have: {named}."]
    methods = list(dict.fromkeys(lines.index.get_level_values("method")))
    for part in (ALONG, PICKED, ELSE):
        shown = {name: about for name, about in part.items() if name in lines}
        rows = []
        for method in methods:
            own = lines.xs(method, level="method").loc[common]
            cells = [_figure(own[n].mean(), n, digits) for n, (_, _, digits) in shown.items()]
            rows.append((method, *cells))
        titles = [title for title, _, _ in shown.values()]
        tables.append(grid(("path", *titles), rows))
    return "\n\n".join(tables)


def _pairs(lines: pd.DataFrame) -> str:
    metrics = ("density", "density_worst", "lof", "lof_worst", "first_lof", "middle_lof",
               "first_distance", "nearest_distance", "recrossing", "unseen", "diversity",
               "seconds")  # fmt: skip
    rows = []
    for pair in dict.fromkeys(lines.index.get_level_values("pair")):
        own = lines.xs(pair, level="pair")
        known = set(own.index.get_level_values("method"))
        two = [own.xs(m, level="method") if m in known else None for m in ("straight", WINNER)]
        cells = []
        for name in metrics:
            digits = next(part[name][2] for part in (ALONG, PICKED, ELSE) if name in part)
            each = [
                _figure(t[name].mean() if t is not None and name in t else math.nan, name, digits)
                for t in two
            ]
            cells.append(" / ".join(each))
        rows.append((pair, str(len(two[0]) if two[0] is not None else 0), *cells))
    heads = ("pair", "seeds", *map(_title, metrics))
    return f"Straight / dense, means over seeds.\n\n{grid(heads, rows)}"


def _each_pair(lines: pd.DataFrame, methods: Sequence[str], metrics: Sequence[str]) -> str:
    """Some methods beside each other on every pair."""
    means = lines.groupby(level=["pair", "method"]).mean()
    digits = {name: about[2] for part in (ALONG, PICKED, ELSE) for name, about in part.items()}
    rows = [
        (pair, *(
            " / ".join(_figure(_mean(means, pair, m, n), n, digits[n]) for m in methods)
            for n in metrics if n in means
        ))
        for pair in dict.fromkeys(lines.index.get_level_values("pair"))
    ]  # fmt: skip
    heads = ("pair", *(_title(n) for n in metrics if n in means))
    return f"{' / '.join(methods).capitalize()}, means over seeds.\n\n{grid(heads, rows)}"


def _face(lines: pd.DataFrame) -> str:
    named = {
        "straight": "straight paths",
        WINNER: "dense ones",
        SAMPLED[0]: SAMPLED[0],
        SAMPLED[1]: "both",
    }
    pairs = list(dict.fromkeys(lines.index.get_level_values("pair")))
    known = [m for m in named if _named(lines, m).any()]
    means = lines.groupby(level=["pair", "method"]).mean()
    below, rows = dict.fromkeys(known, 0), []
    for pair in pairs:
        face, cells = _mean(means, pair, "FACE", "last_lof"), []
        for m in known:
            cells += [_mean(means, pair, m, pick) for pick in ("first_lof", "middle_lof")]
            below[m] += cells[-1] < face
        rows.append((pair, *(_figure(v, "lof", 3) for v in (*cells, face))))
    heads = ["pair", *(f"{m}: {pick}" for m in known for pick in ("First", "Middle")), "FACE"]
    head, *others = [f"{below[m]}{{}} with {named[m]}" for m in known]
    text = ", on ".join([head.format(f" of {len(pairs)} pairs"), *(o.format("") for o in others)])
    return f"Middle's LOF is below FACE's on {text}.\n\n{grid(heads, rows)}"


def _mean(means: pd.DataFrame, pair: str, method: str, metric: str) -> float:
    return float(means.at[(pair, method), metric]) if (pair, method) in means.index else math.nan


def _ends(table: pd.DataFrame) -> str:
    some = table[table["metric"].str.startswith("ends_") & (table["method"] == "straight")]
    if not len(some):
        return ""
    means = some.groupby(["label", "metric"], sort=False)["mean"].mean().unstack("metric")
    rows = [
        (label.partition(", ")[0], label.partition(", ")[2], *_values(line))
        for label, line in means.iterrows()
    ]
    heads = ("ordered by", "kept", "nearest First's distance ↓", "diversity ↑", "First's LOF ↓")
    return grid(heads, rows)


def _constraints(table: pd.DataFrame) -> str:
    some = table[table["method"] == "E3"]
    if not len(some):
        return ""
    means = some.groupby(["pair", "label", "metric"], sort=False)["mean"].mean().unstack("metric")
    rows = [
        (pair, *label.split(", "), f"{line['satisfied']:.3f}", f"{line['constrained_lof']:.3f}")
        for (pair, label), line in means.iterrows()
    ]
    return grid(("pair", "setting", "path", "satisfied ↑", "LOF of ok points ↓"), rows)


def _values(line: pd.Series) -> Sequence[str]:
    names = ("ends_first_distance", "ends_diversity", "ends_lof")
    return [_figure(line[name], name, 3) for name in names]


def _digits(digits: pd.DataFrame) -> str:
    """Realism by label and method."""
    real = digits[digits["metric"] == "realism"]
    known = real[real["method"] == "references"]
    text = "; ".join(f"{label} {value:.2f}" for label, value in _by_label(known))
    others = real[real["method"] != "references"]
    means = others.groupby(["label", "method"], sort=False)["mean"].mean().unstack("method")
    rows = [(label, *(f"{v:.2f}" for v in line)) for label, line in means.iterrows()]
    return (
        "The mean probability, by a small network, of being a digit rather than a blend of two: "
        f"{text}.\n\n{grid(('images', *means.columns), rows)}"
    )


def _by_label(table: pd.DataFrame) -> Iterable[tuple[str, float]]:
    for label, own in table.groupby("label", sort=False):
        yield str(label), float(own["mean"].mean())
