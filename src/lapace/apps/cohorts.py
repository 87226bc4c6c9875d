"""Statistics of groups of instances: what has to change, at what cost, and who gets no answer.

`cohort(explanation, by="housing")` compares groups of instances: which features change how often
and by how much, what the cheapest counterfactual costs and whether groups differ in that, and why
instances have no counterfactual. It reads only the result.

A `Cohort` is an accumulator: it counts one explanation after another, cohorts of parts of a table
add up to the cohort of the whole, and the order does not matter. Its size does not grow with the
number of instances, because costs and changes are counted to three significant digits.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lapace.arrays import Floats
from lapace.errors import InputError
from lapace.files import write_whole
from lapace.result import Counterfactuals, Explanation
from lapace.schema import Feature, Schema
from lapace.table import plain_frame, spelling
from lapace.why_not.relaxation import joined

__all__ = ["Cohort", "GroupCounts", "cohort", "group_names"]

Lines: TypeAlias = dict[str, list[Any]]  # a table: values by column

ALL, EVERY, MISSING = "all", "all groups", "missing"  # names of groups
DIGITS = 3  # significant digits of costs and changes
BANDS = 4  # groups that a column of numbers is cut into
MOST_GROUPS = 1000
SHOWN_GROUPS = 20
FEW = 5  # answered instances under which a group's cost is not tested
LEVEL = 0.95  # of intervals
REASONS = 20  # the commonest reasons that are shown
WIDTH = 100  # characters of a printed line
MOST_NAMED = 3  # features or groups that a sentence names
FORMATS = {"share": ".0%", "cost": ".2f", "changes": ".1f"}
ENDS = ("_low", "_high")  # of the names of an interval's columns
NONE = "–"  # stands for a figure that there is not
TRIED = ("answered", "none_found", "infeasible")  # statuses of instances that lack the target
COST = (
    "A cost is the distance of the nearest answer: 0.16 is a change of a number past 16% of the "
    "training rows, and a change of category counts 1."
)
UNANSWERED = (
    "For those without an answer, lapace why-not (in Python Explainer.why_not) finds the "
    "constraints to relax."
)


# ------------------------------------------------------------------------------------------------
# Counts


@dataclass
class GroupCounts:
    """Counts of one group of instances; an answer is an instance's cheapest counterfactual.

    Attributes:
        status: Instances by status.
        reasons: Instances without an answer, by status and reason.
        costs: Answers by cost.
        changes: Answers by feature changed, amount (of a number, or in levels of an ordered
            category; 0 where there is none) and new category (empty for a number).
    """

    status: Counter[str] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    costs: Counter[float] = field(default_factory=Counter)
    changes: Counter[tuple[str, float, str]] = field(default_factory=Counter)

    @property
    def size(self) -> int:
        """How many instances there are, those that have the target already included."""
        return self.status.total()

    @property
    def instances(self) -> int:
        """How many instances were searched for: they are readable and lack the target label."""
        return sum(self.status[status] for status in TRIED)

    @property
    def answered(self) -> int:
        """How many instances have an answer."""
        return self.status["answered"]

    @property
    def share(self) -> float:
        """The share of the instances searched for that have an answer."""
        return self.answered / self.instances if self.instances else float("nan")

    @property
    def cost(self) -> float:
        """The mean cost of an answer."""
        return float(np.mean(_values(self.costs))) if self.costs else float("nan")

    @property
    def mean_changes(self) -> float:
        """How many features an answer changes on average."""
        return self.changes.total() / self.costs.total() if self.costs else float("nan")

    def feature_changes(self) -> dict[str, tuple[Floats, Counter[str]]]:
        """Returns the amounts and the new categories of changes, by feature.

        The feature that changes most often comes first. An amount is 0 where there is none.
        """
        amounts: dict[str, Counter[float]] = {}
        categories: dict[str, Counter[str]] = {}
        for (name, amount, category), count in sorted(self.changes.items()):
            amounts.setdefault(name, Counter())[amount] += count
            categories.setdefault(name, Counter())[category] += count
        order = sorted(amounts, key=lambda name: -amounts[name].total())
        return {name: (_values(amounts[name]), categories[name]) for name in order}

    def add(self, rows: Counterfactuals) -> None:
        """Counts the cheapest counterfactuals of some of the group's instances."""
        self.costs.update(map(_rounded, rows.distance.tolist()))
        before, after = rows.instances[rows.instance], rows.cells
        for row, i in zip(*np.nonzero(rows.schema.changed(before, after)), strict=True):
            feature = rows.schema.features[i]
            amount = after[row, i] - before[row, i] if feature.numeric else 0.0
            category = feature.text(after[row, i]) if feature.categories else ""
            self.changes[feature.name, _rounded(np.nan_to_num(amount)), category] += 1

    def merge(self, other: GroupCounts) -> None:
        """Adds the counts of another part."""
        for one in fields(self):
            getattr(self, one.name).update(getattr(other, one.name))

    def to_json(self) -> dict[str, Any]:
        """Returns the counts as plain JSON values: pairs of a key and its count."""
        return {
            one.name: [[key, count] for key, count in sorted(getattr(self, one.name).items())]
            for one in fields(self)
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GroupCounts:
        """Reads back what `to_json` returned."""
        counters: dict[str, Counter[Any]] = {
            name: Counter({tuple(k) if isinstance(k, list) else k: n for k, n in counts})
            for name, counts in data.items()
        }
        return cls(**counters)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


# ------------------------------------------------------------------------------------------------
# Groups compared


@dataclass(eq=False)
class Cohort:
    """Groups of instances compared.

    Attributes:
        schema: The columns of the instances.
        by: What groups the instances: a column's name, or a word for it.
        groups: The counts of each group, by its name.

    Examples:
        >>> from lapace import Explainer
        >>> rng = np.random.default_rng(0)
        >>> table = [{"income": int(i), "home": "ab"[i % 2]} for i in rng.integers(0, 99, 200)]
        >>> bank = lambda rows: ["yes" if r["income"] > 60 else "no" for r in rows]
        >>> explainer = Explainer(bank, n_prototypes=1).fit(table)
        >>> whole = Cohort(explainer.schema_, "home")
        >>> for part in (table[:20], table[20:40]):
        ...     explanation = explainer.explain(part, target="yes")
        ...     whole.add(explanation, group_names(explanation, "home"))
        >>> whole.names, sum(group.size for group in whole.groups.values())
        (('a', 'b'), 40)
    """

    schema: Schema
    by: str = ALL
    groups: dict[str, GroupCounts] = field(default_factory=dict)

    # -- counting ---------------------------------------------------------------------------------

    def add(self, explanation: Explanation, groups: Sequence[str], pick: str = "nearest") -> None:
        """Counts the instances of an explanation.

        Args:
            explanation: What `Explainer.explain` returned.
            groups: The group of each instance, as `group_names` returns them.
            pick: The pick whose cheapest row is an instance's answer.
        """
        if len(groups) != len(explanation):
            raise InputError(
                f"There are {len(groups)} groups for {len(explanation)} instances; give one each."
            )
        rows = cheapest(getattr(explanation, pick)())
        group_of_row = np.array(groups, dtype=object)[rows.instance]
        ids = explanation.ids or range(len(explanation))
        for name in dict.fromkeys(groups):
            self._group(name).add(rows.where(group_of_row == name))
        for name, status, reason, i in zip(
            groups, explanation.status, explanation.reason, ids, strict=True
        ):
            group = self.groups[name]
            group.status[status] += 1
            if status not in ("answered", "already_target"):
                group.reasons[status, reason.replace(f" in row {i}", "")] += 1

    def merge(self, other: Cohort) -> None:
        """Adds the counts of another part."""
        for name, counts in other.groups.items():
            self._group(name).merge(counts)

    def _group(self, name: str) -> GroupCounts:
        if name not in self.groups and len(self.groups) >= MOST_GROUPS:
            raise InputError(f"'{self.by}' makes more than {MOST_GROUPS} groups.")
        return self.groups.setdefault(name, GroupCounts())

    @property
    def total(self) -> GroupCounts:
        """The counts of all groups together."""
        return self._total(self.groups)

    def _total(self, names: Iterable[str]) -> GroupCounts:
        total = GroupCounts()
        for name in names:
            total.merge(self.groups[name])
        return total

    def to_json(self) -> dict[str, Any]:
        """Returns the counts of all groups as plain JSON values."""
        return {name: self.groups[name].to_json() for name in sorted(self.groups)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], schema: Schema, by: str = ALL) -> Cohort:
        """Reads back what `to_json` returned."""
        groups = {name: GroupCounts.from_json(counts) for name, counts in data.items()}
        return cls(schema, by, groups=groups)

    # -- tables -----------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The groups in order: levels and bands as the schema has them, others by name."""
        ordered = _bands(self.schema[self.by])[1] if self.by in self.schema.names else []
        rank = {name: k for k, name in enumerate(ordered)}
        return tuple(sorted(self.groups, key=lambda name: (rank.get(name, len(rank)), name)))

    @property
    def shown_groups(self) -> dict[str, GroupCounts]:
        """The groups; where there are many, the largest ones and the others together."""
        largest = sorted(self.groups, key=lambda name: (-self.groups[name].instances, name))
        kept, others = largest[:SHOWN_GROUPS], largest[SHOWN_GROUPS:]
        shown = {name: self.groups[name] for name in self.names if name in kept}
        return {**shown, f"{len(others)} others": self._total(others)} if others else shown

    @property
    def costs(self) -> Any:
        """A line per group: how many instances, how many answered, and what the answers cost."""
        return self._frame(self.cost_lines())

    @property
    def features(self) -> Any:
        """A line per group and feature: how often it changes, up or down, and by how much."""
        return self._frame(self.feature_lines())

    @property
    def unanswered(self) -> Any:
        """A line per group and reason: how many instances have no answer for it."""
        return self._frame(self.reason_lines())

    def _frame(self, lines: Lines) -> Any:
        columns: dict[str, NDArray[Any]] = {}
        for name, values in lines.items():
            numbers = values and all(isinstance(value, int | float) for value in values)
            columns[name] = np.array(values, dtype=None if numbers else object)
        return plain_frame(self.schema.template.kind, columns)

    def cost_lines(self, groups: Mapping[str, GroupCounts] | None = None) -> Lines:
        """Returns the columns of `costs`, by default about the groups that are shown."""
        rows = []
        for name, group in (groups or self.shown_groups).items():
            count, answered = group.instances, group.answered
            rows.append((
                name, count, answered, group.share, *_share_interval(answered, count),
                group.cost, *_mean_interval(_values(group.costs)), group.mean_changes,
            ))  # fmt: skip
        return _lines(rows, (
            "group", "instances", "answered", "share", "share_low", "share_high",
            "cost", "cost_low", "cost_high", "changes",
        ))  # fmt: skip

    def feature_lines(self, groups: Mapping[str, GroupCounts] | None = None) -> Lines:
        """Returns the columns of `features`; the feature that changes most often comes first."""
        rows, shown = [], groups or self.shown_groups
        changes = {name: group.feature_changes() for name, group in shown.items()}
        for feature in self.total.feature_changes():
            for name in (name for name in shown if feature in changes[name]):
                amounts, categories = changes[name][feature]
                changed, to = len(amounts), max(categories, key=categories.__getitem__)
                moved: tuple[Any, Any] = (None, None)
                if self.schema[feature].numeric:
                    moved = int((amounts > 0).sum()), int((amounts < 0).sum())
                present = () if to else amounts[amounts != 0]
                median = float(np.median(present)) if len(present) else float("nan")
                share = changed / shown[name].costs.total()
                rows.append((feature, name, changed, share, *moved, median, to))
        return _lines(rows, (
            "feature", "group", "changed", "share", "up", "down", "median_change", "most_often_to"
        ))  # fmt: skip

    def reason_lines(self) -> Lines:
        """Returns the columns of `unanswered`."""
        rows = [
            (name, status, count, reason)
            for name, group in self.shown_groups.items()
            for (status, reason), count in group.reasons.most_common(REASONS)
        ]
        return _lines(rows, ("group", "status", "instances", "reason"))

    # -- tests and words --------------------------------------------------------------------------

    @property
    def p_cost(self) -> float:
        """The chance of costs as different as these in groups that do not differ (Kruskal-Wallis).

        NaN where it cannot be tested.
        """
        costs = [_values(g.costs) for g in self.groups.values() if g.costs.total() >= FEW]
        if len(costs) < 2 or np.ptp(np.concatenate(costs)) == 0:
            return float("nan")
        return float(stats.kruskal(*costs).pvalue)

    @property
    def p_answered(self) -> float:
        """The same chance for the shares of instances with an answer (chi-squared)."""
        counts = [(g.answered, g.instances - g.answered) for g in self.groups.values()]
        table = np.array([pair for pair in counts if sum(pair)]).reshape(-1, 2)
        if len(table) < 2 or (table.sum(axis=0) == 0).any():
            return float("nan")
        return float(stats.chi2_contingency(table).pvalue)

    @property
    def sentences(self) -> list[str]:
        """The comparison in sentences."""
        total = self.total
        text = f"{total.answered:,} of {total.instances:,} instances without the target label"
        text += " have an answer"
        sentences = [f"{text}."]
        if total.costs:
            cost, changes = _text("cost", total.cost), _text("changes", total.mean_changes)
            often = [
                f"{name} ({_text('share', len(amounts) / total.costs.total())})"
                for name, (amounts, _) in total.feature_changes().items()
            ]
            sentences = [
                f"{text}; it costs {cost} and changes {changes} features on average.",
                f"Answers most often change {joined(often[:MOST_NAMED])}.",
            ]
        if len(self.groups) > 1:
            groups = self.shown_groups  # as in the tables
            tested = {k: g.cost for k, g in groups.items() if g.costs.total() >= FEW}
            sentences.append(_verdict("cost", "of an answer", self.p_cost, self.by, tested))
            tested = {k: g.share for k, g in groups.items() if g.instances}
            sentences.append(_verdict("share", "with an answer", self.p_answered, self.by, tested))
        sentences += [COST] if total.costs else []
        return [*sentences, UNANSWERED] if total.reasons else sentences

    def __repr__(self) -> str:
        groups = f"{len(self.groups)} groups by {self.by}" if len(self.groups) > 1 else "one group"
        return f"Cohort of {self.total.size:,} instances, {groups}"

    def __str__(self) -> str:
        lines = (textwrap.fill(text, WIDTH, subsequent_indent="  ") for text in self.sentences)
        return "\n".join(lines)

    def to_html(self, path: str | Path | None = None) -> str:
        """Returns the comparison as one self-contained page, and writes it to `path` if given.

        A chart comes first: what changes, for which group, how often.
        """
        title = "What has to change" + (f", by {self.by}" if len(self.groups) > 1 else "")
        sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.sentences)
        shown = self.shown_groups
        every = {**shown, EVERY: self.total} if len(shown) > 1 else shown
        tables = (
            _table("Who has an answer, and what it costs", self.by, self.cost_lines(every)),
            _table("What changes", self.by, self.feature_lines(every)),
            _table("Without an answer", self.by, self.reason_lines()),
        )
        chart = ""
        if self.total.costs:
            from lapace import plots  # matplotlib is only needed here
            from lapace.plots.style import svg

            chart = svg(plots.cohort(self))
        page = PAGE.format(title=escape(title), body=f"{chart}{sentences}{''.join(tables)}")
        if path is not None:
            write_whole(Path(path), lambda p: p.write_text(page, encoding="utf-8"))
        return page


def cohort(explanation: Explanation, by: str | Iterable[Any] | None = None) -> Cohort:
    """Compares groups of an explanation's instances.

    Args:
        explanation: What `Explainer.explain` returned.
        by: A column of the instances (a number is cut at the quartiles of the training rows), or
            the group of each instance; None for all in one.

    Examples:
        >>> from lapace import Explainer
        >>> rng = np.random.default_rng(0)
        >>> incomes, homes = rng.integers(0, 99, 200), ["own", "rent"]
        >>> table = [{"income": int(i), "home": homes[i % 2]} for i in incomes]
        >>> bank = lambda rows: ["yes" if r["income"] > 60 else "no" for r in rows]
        >>> explainer = Explainer(bank, n_prototypes=1).fit(table)
        >>> cohort(explainer.explain(table[:30], target="yes"), by="home").names
        ('own', 'rent')
    """
    word = by if isinstance(by, str) else ALL if by is None else "group"
    compared = Cohort(explanation.schema, word)
    compared.add(explanation, group_names(explanation, by))
    return compared


def cheapest(rows: Counterfactuals) -> Counterfactuals:
    """Returns the cheapest ok row of each instance that has one."""
    rows = rows.where(rows.ok)
    rows = rows.where(np.lexsort((rows.distance, rows.instance)))
    return rows.where(np.unique(rows.instance, return_index=True)[1])


# ------------------------------------------------------------------------------------------------
# Groups


def group_names(explanation: Explanation, by: str | Iterable[Any] | None) -> list[str]:
    """Returns the name of each instance's group.

    Args:
        explanation: What `Explainer.explain` returned.
        by: A column of the instances, or a value for each instance; None for one group of all.
    """
    if by is None:
        return [ALL] * len(explanation)
    if not isinstance(by, str):
        return [MISSING if v is None or v != v else spelling(v) for v in by]  # noqa: PLR0124  NaN
    column = explanation.schema.index(by)
    feature, cells = explanation.schema.features[column], explanation.instances[:, column]
    edges, names = _bands(feature)
    if not len(edges):
        return [MISSING if np.isnan(cell) else feature.text(cell) for cell in cells.tolist()]
    band = np.searchsorted(edges, cells, side="left")
    return [MISSING if np.isnan(c) else names[k] for c, k in zip(cells, band, strict=True)]


def _bands(feature: Feature) -> tuple[Floats, list[str]]:
    """Returns where a column is cut into groups, and the groups' names in order.

    Numbers are cut at the quartiles of the training rows, or at quarters of the range where the
    schema has no percentiles. Categories, and numbers that take few values, are not cut.
    """
    values, percentiles = feature.ranks
    if feature.kind != "continuous":
        return np.empty(0), [feature.text(code) for code in range(len(feature.levels))]
    if 0 < len(values) <= BANDS:
        return np.empty(0), [feature.text(value) for value in values]
    shares = np.arange(1, BANDS) / BANDS
    cuts = np.interp(shares, percentiles, values) if values else shares * feature.span
    edges = np.unique(feature.snap(cuts if values else feature.lower + cuts))
    texts = [feature.text(edge) for edge in edges.tolist()]
    between = [f"over {low} up to {high}" for low, high in pairwise(texts)]
    return edges, [f"up to {texts[0]}", *between, f"over {texts[-1]}"]


# ------------------------------------------------------------------------------------------------
# Figures


def _values(counter: Counter[float]) -> Floats:
    """Returns each value as often as it was counted, in order."""
    return np.repeat(sorted(counter), [counter[value] for value in sorted(counter)]).astype(float)


def _share_interval(answered: int, count: int) -> tuple[float, float]:
    """Returns Wilson's interval of a share."""
    if not count:
        return float("nan"), float("nan")
    interval = stats.binomtest(answered, count).proportion_ci(LEVEL, method="wilson")
    return float(interval.low), float(interval.high)


def _mean_interval(values: Floats) -> tuple[float, float]:
    """Returns Student's interval of a mean of costs, which are not negative; few have none."""
    if len(values) < FEW:
        return float("nan"), float("nan")
    half = stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * stats.sem(values)
    return max(0.0, float(np.mean(values) - half)), float(np.mean(values) + half)


def _verdict(name: str, of: str, p: float, by: str, tested: Mapping[str, float]) -> str:
    """Says whether groups differ in a figure, and which have the least and the most of it."""
    if np.isnan(p):
        return (
            f"Whether the {name} {of} differs by {by} cannot be tested: all are alike, or too few."
        )
    extremes = []
    for value in (min(tested.values()), max(tested.values())):
        text = _text(name, value)
        groups = [f"“{group}”" for group in tested if _text(name, tested[group]) == text]
        named = joined(groups) if len(groups) <= MOST_NAMED else f"{len(groups)} groups"
        extremes.append(f"{named} ({text})")
    differs = "differs" if p < 0.05 else "does not differ"
    return (
        f"The {name} {of} {differs} by {by} more than chance explains (p = {p:.2g}): lowest for "
        f"{extremes[0]}, highest for {extremes[1]}."
    )


def _lines(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> Lines:
    return {name: [row[k] for row in rows] for k, name in enumerate(names)}


# ------------------------------------------------------------------------------------------------
# Pages

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body{{font:16px/1.5 system-ui,sans-serif;color:#22303c;margin:2rem auto;max-width:60rem}}
body{{padding:0 1rem}} .wide{{overflow-x:auto}} svg{{width:100%;height:auto}}
h1,h2,thead{{break-after:avoid}} tr{{break-inside:avoid}}
table{{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem;font-size:.9rem}}
th,td{{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid #e8ebee}}
</style></head><body><h1>{title}</h1>{body}</body></html>
"""


def _table(title: str, by: str, lines: Lines) -> str:
    """Returns a heading and a table; nothing where the table has no lines."""
    if not lines["group"]:
        return ""
    names = [name for name in lines if not name.endswith(ENDS)]
    group = "group" if by == ALL else by
    titles = (group if name == "group" else name.replace("_", " ") for name in names)
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(_cell(lines, name, k))}</td>' for name in names)}</tr>"
        for k in range(len(lines["group"]))
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<h2>{title}</h2><div class="wide">{table}</div>'


def _cell(lines: Lines, name: str, k: int) -> str:
    """Returns a figure, with its interval where it has one."""
    text = _text(name, lines[name][k])
    low, high = (_text(name, lines[name + end][k]) if name + end in lines else NONE for end in ENDS)
    return text if low == NONE else f"{text} ({low} to {high})"


def _text(name: str, value: Any) -> str:
    """Returns a figure as sentences and tables write it."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return NONE
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if name == "median_change":
        return f"{value:+,.0f}" if abs(value) >= 1000 else f"{value:+.3g}"
    return f"{value:{FORMATS[name]}}"
