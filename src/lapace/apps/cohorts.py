"""Statistics of groups of instances: what has to change, at what cost, and who gets no answer.

`cohort(explanation, by="housing")` compares groups of instances: which features change how often
and by how much, what the cheapest counterfactual costs and whether groups differ in that, and why
instances have no counterfactual. It reads only the result.

A `Cohort` is an accumulator: it counts one explanation after another, cohorts of parts of a table
add up to the cohort of the whole, and the order does not matter. Its size does not grow with the
number of instances, because costs and changes are counted to three significant digits.

`importance` says how often answers change each feature and, by querying the classifier, what each
change contributes to the target's probability.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lapace.arrays import Bools, Floats
from lapace.errors import InputError
from lapace.files import write_whole
from lapace.result import Counterfactuals, Explanation
from lapace.schema import Feature, Schema
from lapace.schema.features import on_lattice
from lapace.table import Template, plain_frame, spelling
from lapace.why_not.relaxation import amount_text

if TYPE_CHECKING:
    from lapace.explainer import Explainer

__all__ = ["Cohort", "GroupCounts", "cohort", "group_names", "importance"]

Lines: TypeAlias = dict[str, list[Any]]  # a table: values by column

ALL, MISSING = "all", "missing"  # names of groups
DIGITS = 3  # significant digits of costs and changes
BANDS = 4  # groups that a column of numbers is cut into
MOST_GROUPS = 1000
SHOWN_GROUPS = 20
FEW = 5  # answered instances under which a group's cost is not tested
LEVEL = 0.95  # of intervals
DETECTABLE = 2.8  # standard errors: a difference that four of five samples find at a level of 5%
NAMED = 3  # features that the sentence of a group names
REASONS = 20  # the commonest reasons that are shown
WIDTH = 100  # characters of a printed line
TRIED = ("answered", "none_found", "infeasible")  # statuses of instances that lack the target
COST = (
    "A cost is the distance of the nearest answer, a number without a unit: 0.16 is a change of a "
    "number past 16% of the training rows, and a change of category counts 1, each times the "
    "weight of its column where the query has weights. The answers that explain and letters show "
    "keep a margin and may cost more."
)
UNANSWERED = (
    "For those without an answer, lapace why-not (in Python Explainer.why_not) finds the limits "
    "that would have to give way."
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
    def mean_changes(self) -> float:
        """How many features an answer changes on average."""
        return self.changes.total() / self.costs.total() if self.costs else float("nan")

    @property
    def features(self) -> dict[str, FeatureChanges]:
        """The changes that answers make, by feature, the most often changed first."""
        found: dict[str, FeatureChanges] = {}
        for (name, amount, to), count in sorted(self.changes.items()):
            feature = found.setdefault(name, FeatureChanges())
            feature.changed += count
            feature.amounts.update({amount: count} if amount else {})
            feature.to.update({to: count} if to else {})
        return dict(sorted(found.items(), key=lambda item: -item[1].changed))

    def add(self, rows: Counterfactuals) -> None:
        """Counts the cheapest counterfactuals of some of the group's instances."""
        self.costs.update(map(_rounded, rows.distance.tolist()))
        before, after = rows.instances[rows.instance], rows.cells
        for row, i in zip(*np.nonzero(rows.schema.changed(before, after)), strict=True):
            feature = rows.schema.features[i]
            apart = after[row, i] - before[row, i] if feature.numeric else 0.0
            to = feature.text(after[row, i]) if feature.categories else ""
            self.changes[feature.name, _rounded(np.nan_to_num(apart)), to] += 1

    def merge(self, other: GroupCounts) -> None:
        """Adds what another part counted."""
        for one in fields(self):
            getattr(self, one.name).update(getattr(other, one.name))

    def to_json(self) -> dict[str, Any]:
        """Returns the counts as plain JSON values: a key and its count in turn."""
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


@dataclass
class FeatureChanges:
    """How answers change one feature: how often, and how often by each amount and to each level."""

    changed: int = 0
    amounts: Counter[float] = field(default_factory=Counter)
    to: Counter[str] = field(default_factory=Counter)

    @property
    def up(self) -> int:
        """How many answers raise it."""
        return sum(count for amount, count in self.amounts.items() if amount > 0)

    @property
    def down(self) -> int:
        """How many answers lower it."""
        return self.amounts.total() - self.up

    @property
    def most_often_to(self) -> str:
        """The category that it becomes most often; empty for a number."""
        return max(self.to, key=self.to.__getitem__, default="")


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
        template: The kind of frame that `costs`, `features` and `unanswered` come in; by default
            that of the training table.
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
    template: Template | None = None
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
        """Adds what another part counted."""
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
        known = _bands(self.schema[self.by])[1] if self.by in self.schema.names else []
        place = {name: k for k, name in enumerate(known)}
        return tuple(sorted(self.groups, key=lambda name: (place.get(name, len(known)), name)))

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
        template = self.template or self.schema.template
        return plain_frame(template.kind, {name: _column(v) for name, v in lines.items()})

    def cost_lines(self) -> Lines:
        """Returns the columns of `costs`."""
        rows = []
        for name, group in self.shown_groups.items():
            count, answered, costs = group.instances, group.answered, _values(group.costs)
            share = answered / count if count else float("nan")
            low, high = _mean_interval(costs)
            mean, median = (float(f(costs)) if len(costs) else low for f in (np.mean, np.median))
            rows.append((
                name, count, answered, share, *_share_interval(answered, count),
                mean, low, high, median, group.mean_changes,
            ))  # fmt: skip
        return _lines(rows, (
            "group", "instances", "answered", "share", "share_low", "share_high",
            "cost", "cost_low", "cost_high", "cost_median", "changes",
        ))  # fmt: skip

    def feature_lines(self) -> Lines:
        """Returns the columns of `features`."""
        rows = []
        for name, group in self.shown_groups.items():
            for feature, changes in group.features.items():
                share, to = changes.changed / group.costs.total(), changes.most_often_to
                numeric = self.schema[feature].numeric
                moved = (changes.up, changes.down) if numeric else (None, None)
                amounts = () if to else _values(changes.amounts)
                median = float(np.median(amounts)) if len(amounts) else float("nan")
                rows.append((name, feature, changes.changed, share, *moved, median, to))
        return _lines(rows, (
            "group", "feature", "changed", "share", "up", "down", "median_change", "most_often_to"
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
        if total.costs:
            cost = np.mean(_values(total.costs))
            text += (
                f"; it costs {cost:.2f} and changes {total.mean_changes:.1f} features on average"
            )
        sentences = [f"{text}."]
        if len(self.groups) > 1:
            sentences.append(_verdict("cost of an answer", self.p_cost, self.by))
            sentences.append(_verdict("share with an answer", self.p_answered, self.by))
            sentences += self._undetected(total)
        if total.costs:
            sentences.append(COST)
        sentences += [self._group_sentence(*item) for item in self.shown_groups.items()]
        return [*sentences, UNANSWERED] if total.reasons else sentences

    def _group_sentence(self, name: str, group: GroupCounts) -> str:
        """Says how many of a group have an answer, and what the answers change most often."""
        text = f"{name}: {group.instances:,} of {group.size:,} lack the target label"
        if group.instances:
            text += f", {group.answered:,} of these have an answer"
        changes = [
            self._feature_text(feature, changes, group.costs.total())
            for feature, changes in list(group.features.items())[:NAMED]
        ]
        return f"{text}; {', '.join(changes)}." if changes else f"{text}."

    def _feature_text(self, name: str, changes: FeatureChanges, answers: int) -> str:
        """Says how often, and by how much, a group's answers change a feature."""
        feature, to = self.schema[name], changes.most_often_to
        if feature.categories:
            return f"{name} changes in {changes.changed} of {answers} (to {to} in {changes.to[to]})"
        up = changes.up >= changes.down
        amounts = _values(changes.amounts)
        amounts = np.abs(amounts[(amounts > 0) == up])
        median = float(np.median(amounts)) if len(amounts) else 0.0
        by = amount_text(float(on_lattice(np.array(median), feature.resolution)), feature)
        others = changes.changed - len(amounts)
        text = (
            f"{name} {'rises' if up else 'falls'} by {by} (median) in {len(amounts)} of {answers}"
        )
        return f"{text} and changes otherwise in {others}" if others else text

    def _undetected(self, total: GroupCounts) -> list[str]:
        """Says how large a difference the tests would probably have missed, if they found none."""
        answered, instances = (
            sorted(n for n in counts if n >= FEW)[:2]
            for counts in zip(
                *((g.answered, g.instances) for g in self.groups.values()), strict=True
            )
        )
        differences = []
        if self.p_cost >= 0.05 and len(answered) == 2:
            error = float(np.std(_values(total.costs))) * sum(1 / n for n in answered) ** 0.5
            differences.append(f"less than about {DETECTABLE * error:.2g} in the mean cost")
        if self.p_answered >= 0.05 and len(instances) == 2:
            share = total.answered / total.instances
            error = (share * (1 - share) * sum(1 / n for n in instances)) ** 0.5
            text = f"less than about {DETECTABLE * error:.0%} in the share with an answer"
            differences.append(text)
        if not differences:
            return []
        text = f"Between the two smallest groups tested a difference of {' or '.join(differences)}"
        return [f"{text} would probably have gone unnoticed."]

    def __repr__(self) -> str:
        groups = f"{len(self.groups)} groups by {self.by}" if len(self.groups) > 1 else "one group"
        return f"Cohort of {self.total.size:,} instances, {groups}"

    def __str__(self) -> str:
        lines = (textwrap.fill(text, WIDTH, subsequent_indent="  ") for text in self.sentences)
        return "\n".join(lines)

    def to_html(self, path: str | Path | None = None) -> str:
        """Returns the comparison as one self-contained page, and writes it to `path` if given."""
        page = _page(self)
        if path is not None:
            write_whole(Path(path), lambda p: p.write_text(page, encoding="utf-8"))
        return page

    def to_html_body(self) -> str:
        """Returns the comparison as a part of a page."""
        return _body(self)

    _repr_html_ = to_html_body


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
    compared = Cohort(explanation.schema, word, explanation.template)
    compared.add(explanation, group_names(explanation, by))
    return compared


def cheapest(rows: Counterfactuals) -> Counterfactuals:
    """Returns the cheapest ok row of each instance that has one."""
    rows = rows.where(rows.ok)
    rows = rows.where(np.lexsort((rows.distance, rows.instance)))
    return rows.where(np.unique(rows.instance, return_index=True)[1])


def importance(explanation: Explanation, explainer: Explainer | None = None) -> Any:
    """Says how much features matter: how often answers change them, and what a change is worth.

    A frame with a line per feature: `share`, the share of all answers that change it; with an
    explainer also `probability_lost`, the mean loss of the target's probability where only that
    change is undone.

    Args:
        explanation: What `Explainer.explain` returned; `explanation[[3]]` for a single instance.
        explainer: The explainer whose classifier is then queried.
    """
    rows = cheapest(explanation.nearest())
    schema = rows.schema
    before = rows.instances[rows.instance]
    changed = schema.changed(before, rows.cells)  # (rows, columns)
    share = changed.mean(axis=0) if len(rows) else np.zeros(len(schema.names))
    columns: dict[str, NDArray[Any]] = {"feature": _column(list(schema.names)), "share": share}
    if explainer is not None:
        columns["probability_lost"] = _probability_lost(rows, before, changed, explainer)
    order = np.argsort(-share, kind="stable")
    kind = explanation.template.kind
    return plain_frame(kind, {name: values[order] for name, values in columns.items()})


def _probability_lost(
    rows: Counterfactuals, before: Floats, changed: Bools, explainer: Explainer
) -> Floats:
    """Returns, per column, the mean loss of the target's probability when one change is undone."""
    row, column = np.nonzero(changed)
    undone = rows.cells[row]
    undone[np.arange(len(row)), column] = before[row, column]
    classifier = explainer.classifier_.with_fresh_count()
    likely = classifier.query(undone, rows.schema).probability if len(row) else None
    if likely is None:
        return np.full(changed.shape[1], np.nan)
    codes = np.array([classifier.code(label) for label in rows.label])[row]
    lost = rows.probability[row] - likely[np.arange(len(row)), codes]
    per_column = (lost[column == i] for i in range(changed.shape[1]))
    return np.array([some.mean() if len(some) else np.nan for some in per_column])


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


def _verdict(what: str, p: float, by: str) -> str:
    if np.isnan(p):
        return f"Whether the {what} differs by {by} cannot be tested: all are alike, or too few."
    if p < 0.05:
        return f"The {what} differs by {by} more than chance explains (p = {p:.2g})."
    return f"The {what} does not differ by {by} more than chance explains (p = {p:.2g})."


def _lines(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> Lines:
    return {name: [row[k] for row in rows] for k, name in enumerate(names)}


def _column(values: Sequence[Any]) -> NDArray[Any]:
    """Returns a column: numbers where all values are numbers, else objects."""
    if values and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return np.array(values)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


# ------------------------------------------------------------------------------------------------
# Pages

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#22303c;margin:2rem auto;max-width:60rem}
body{padding:0 1rem}
table{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem;font-size:.9rem}
th,td{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid #e8ebee}
.wide{overflow-x:auto}
"""


def _page(compared: Cohort) -> str:
    title = f"Cohorts by {compared.by}" if len(compared.groups) > 1 else "Cohort"
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    return (
        f'<!doctype html><html lang="en"><head>{head}<title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{_body(compared)}</body></html>\n"
    )


def _body(compared: Cohort) -> str:
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in compared.sentences)
    parts = (
        ("What an answer costs", "", compared.cost_lines()),
        ("What changes", "", compared.feature_lines()),
        ("Without an answer", UNANSWERED, compared.reason_lines()),
    )
    tables = (
        f"<h2>{title}</h2>{f'<p>{escape(note)}</p>' if note else ''}{_table(lines)}"
        for title, note, lines in parts
        if lines["group"]
    )
    return f"<div>{sentences}{''.join(tables)}</div>"


def _table(lines: Lines) -> str:
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in lines)
    rows = []
    for values in zip(*lines.values(), strict=True):
        cells = "".join(f"<td>{_cell(name, v)}</td>" for name, v in zip(lines, values, strict=True))
        rows.append(f"<tr>{cells}</tr>")
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="wide"><table>{body}</table></div>'


def _cell(name: str, value: Any) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "–"
    if name.startswith("share"):
        return f"{float(value):.0%}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return escape(str(value))
