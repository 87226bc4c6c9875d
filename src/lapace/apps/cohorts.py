"""Groups of instances compared: what has to change, at what cost, and who gets no answer.

`cohort(explanation, by="housing")` compares groups of instances: which features change how often
and by how much, what the cheapest counterfactual costs and whether groups differ in that, and why
instances have no counterfactual. It reads only the result.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lapace.arrays import Bools, Floats
from lapace.errors import InputError
from lapace.files import write_whole
from lapace.result import Counterfactuals, Explanation
from lapace.schema import Feature
from lapace.table import plain_frame, spelling
from lapace.why_not.relaxation import joined

__all__ = ["Cohort", "cohort"]

Lines: TypeAlias = dict[str, list[Any]]  # a table: values by column

ALL, EVERY, MISSING = "all", "all groups", "missing"  # names of groups
BANDS = 4  # groups that a column of numbers is cut into
FEW = 5  # answered instances under which a group's cost is not tested
LEVEL = 0.95  # of intervals
WIDTH = 100  # characters of a printed line
MOST_NAMED = 3  # features or groups that a sentence names
FORMATS = {"share": ".0%", "cost": ".2f", "changes": ".1f"}
ENDS = ("_low", "_high")  # of the names of an interval's columns
NONE = "–"  # stands for a missing figure
TRIED = ("answered", "none_found", "infeasible")  # statuses of instances that lack the target
COST = (
    "A cost is the distance of the nearest answer: 0.16 is a change of a number past 16% of the "
    "training rows, or by 16% of its usual range if that is more. A change of category counts 1."
)
UNANSWERED = (
    "For those without an answer, lapace why-not (in Python Explainer.why_not) finds the "
    "constraints to relax."
)


@dataclass(frozen=True, eq=False)
class Cohort:
    """Groups of instances compared; an answer is an instance's cheapest counterfactual.

    Attributes:
        explanation: What `Explainer.explain` returned.
        groups: The group of each instance.
        by: What groups the instances: a column's name, or a word for it.
    """

    explanation: Explanation
    groups: tuple[str, ...]
    by: str = ALL

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The groups in order: levels and bands as the schema has them, others by name."""
        schema = self.explanation.schema
        ordered = _bands(schema[self.by])[1] if self.by in schema.names else []
        rank = {name: k for k, name in enumerate(ordered)}
        return tuple(sorted(set(self.groups), key=lambda name: (rank.get(name, len(rank)), name)))

    @cached_property
    def _group(self) -> NDArray[Any]:
        return np.array(self.groups, dtype=object)

    @cached_property
    def _tried(self) -> Bools:
        """Whether each instance was searched for: it is readable and lacks the target label."""
        return np.isin(np.array(self.explanation.status, dtype=object), TRIED)

    @cached_property
    def _answers(self) -> Counterfactuals:
        """The cheapest ok row of each instance that has one."""
        rows = self.explanation.nearest()
        rows = rows.where(rows.ok)
        rows = rows.where(np.lexsort((rows.distance, rows.instance)))
        return rows.where(np.unique(rows.instance, return_index=True)[1])

    def _answers_of(self, name: str) -> Counterfactuals:
        return self._answers.where(self._group[self._answers.instance] == name)

    # -- tables -----------------------------------------------------------------------------------

    @property
    def costs(self) -> Any:
        """A line per group: how many instances, how many answered, and what the answers cost.

        Shares and costs have 95% intervals; the cost of few answers has none.
        """
        return self._frame(self.cost_lines())

    @property
    def features(self) -> Any:
        """A line per feature and group: how often it changes, up or down, and by how much.

        The feature that changes most often comes first.
        """
        return self._frame(self.feature_lines())

    def cost_lines(self) -> Lines:
        """Returns the columns of `costs`."""
        lines = []
        for name in self.names:
            answers, count = self._answers_of(name), int(self._tried[self._group == name].sum())
            lines.append((
                name, count, len(answers), len(answers) / count if count else float("nan"),
                *_share_interval(len(answers), count), _mean(answers.distance),
                *_mean_interval(answers.distance), _mean(answers.changed),
            ))  # fmt: skip
        return _columns(lines, (
            "group", "instances", "answered", "share", "share_low", "share_high",
            "cost", "cost_low", "cost_high", "changes",
        ))  # fmt: skip

    def feature_lines(self) -> Lines:
        """Returns the columns of `features`."""
        schema, lines = self.explanation.schema, []
        for i in self._often_changed():
            feature = schema.features[i]
            for name in self.names:
                answers = self._answers_of(name)
                changed = _changed(answers)[:, i]
                after = answers.cells[changed, i]
                amounts = after - answers.instances[answers.instance[changed], i]
                if not changed.any():
                    continue
                moved: tuple[Any, Any] = (None, None)
                if feature.numeric:
                    moved = int((amounts > 0).sum()), int((amounts < 0).sum())
                median, to = float("nan"), ""
                if feature.categories:
                    ((to, _),) = Counter(map(feature.text, sorted(after.tolist()))).most_common(1)
                elif not np.isnan(amounts).all():
                    median = float(np.nanmedian(amounts))
                count, share = int(changed.sum()), float(changed.mean())
                lines.append((feature.name, name, count, share, *moved, median, to))
        return _columns(lines, (
            "feature", "group", "changed", "share", "up", "down", "median_change", "most_often_to"
        ))  # fmt: skip

    @property
    def unanswered(self) -> Any:
        """A line per group and reason: how many instances have no answer for it."""
        return self._frame(self.reason_lines())

    def reason_lines(self) -> Lines:
        """Returns the columns of `unanswered`."""
        whole = self.explanation
        ids = whole.ids or range(len(whole))
        counts: Counter[tuple[str, str, str]] = Counter()
        for name, status, reason, i in zip(
            self.groups, whole.status, whole.reason, ids, strict=True
        ):
            if status not in ("answered", "already_target"):
                counts[name, status, reason.replace(f" in row {i}", "")] += 1
        lines = [
            (group, status, count, reason)
            for name in self.names
            for (group, status, reason), count in counts.most_common()
            if group == name
        ]
        return _columns(lines, ("group", "status", "instances", "reason"))

    def _often_changed(self) -> list[int]:
        """Returns the positions of the features that answers change, the most frequent first."""
        often = _changed(self._answers).sum(axis=0)
        return [int(i) for i in np.argsort(-often, kind="stable") if often[i]]

    def _frame(self, lines: Lines) -> Any:
        columns: dict[str, NDArray[Any]] = {}
        for name, values in lines.items():
            numbers = values and all(isinstance(value, int | float) for value in values)
            columns[name] = np.array(values, dtype=None if numbers else object)
        return plain_frame(self.explanation.schema.template.kind, columns)

    # -- tests and words --------------------------------------------------------------------------

    @property
    def p_cost(self) -> float:
        """The chance of costs as different as these in groups that do not differ (Kruskal-Wallis).

        NaN where it cannot be tested.
        """
        each = [self._answers_of(name).distance for name in self.names]
        costs = [values for values in each if len(values) >= FEW]
        if len(costs) < 2 or np.ptp(np.concatenate(costs)) == 0:
            return float("nan")
        return float(stats.kruskal(*costs).pvalue)

    @property
    def p_answered(self) -> float:
        """The same chance for the shares of instances with an answer (chi-squared)."""
        tried = np.flatnonzero(self._tried)
        answered = np.isin(tried, self._answers.instance)
        table = stats.contingency.crosstab(self._group[tried], answered).count
        return float(stats.chi2_contingency(table).pvalue) if min(table.shape) > 1 else float("nan")

    @property
    def sentences(self) -> list[str]:
        """The comparison in sentences."""
        answers, tried = self._answers, self._group[self._tried]
        text = f"{len(answers):,} of {len(tried):,} instances without the target label"
        text += " have an answer"
        sentences = [f"{text}."]
        if len(answers):
            shares = _changed(answers).mean(axis=0)
            names = self.explanation.schema.names
            often = [f"{names[i]} ({shares[i]:.0%})" for i in self._often_changed()[:MOST_NAMED]]
            cost, changes = _mean(answers.distance), _mean(answers.changed)
            sentences = [
                f"{text}; it costs {cost:.2f} and changes {changes:.1f} features on average.",
                f"Answers most often change {joined(often)}.",
            ]
        if len(self.names) > 1:
            each = {name: self._answers_of(name).distance for name in self.names}
            costs = {k: _mean(values) for k, values in each.items() if len(values) >= FEW}
            sentences.append(_verdict("cost of an answer", self.p_cost, self.by, costs, ".2f"))
            shares_by_group = {
                name: len(each[name]) / count for name, count in Counter(tried.tolist()).items()
            }
            sentences.append(
                _verdict("share with an answer", self.p_answered, self.by, shares_by_group, ".0%")
            )
        sentences += [COST] if len(answers) else []
        return [*sentences, UNANSWERED] if len(answers) < len(tried) else sentences

    def tables(self) -> dict[str, dict[str, list[str]]]:
        """Returns the tables as they are shown, by title: columns of texts, and all groups last."""
        every = [self]
        if len(self.names) > 1:
            every.append(Cohort(self.explanation, (EVERY,) * len(self.groups), self.by))
        tables = {
            "Who has an answer, and what it costs": [each.cost_lines() for each in every],
            "What changes": [each.feature_lines() for each in every],
            "Without an answer": [self.reason_lines()],
        }
        shown = {title: _texts(lines, self.by) for title, lines in tables.items()}
        return {title: columns for title, columns in shown.items() if any(columns.values())}

    def to_html(self, path: str | Path | None = None) -> str:
        """Returns the comparison as one self-contained page, and writes it to `path` if given.

        A chart comes first: what changes, for which group, how often.
        """
        title = "What has to change" + (f", by {self.by}" if len(self.names) > 1 else "")
        parts = [f"<p>{escape(sentence)}</p>" for sentence in self.sentences]
        parts += [_table(heading, columns) for heading, columns in self.tables().items()]
        if len(self._answers):
            from lapace import plots  # matplotlib is only needed here
            from lapace.plots.style import svg

            parts.insert(0, svg(plots.cohort(self)))
        page = PAGE.format(title=escape(title), body="".join(parts))
        if path is not None:
            write_whole(Path(path), lambda p: p.write_text(page, encoding="utf-8"))
        return page

    def __repr__(self) -> str:
        groups = f"{len(self.names)} groups by {self.by}" if len(self.names) > 1 else "one group"
        return f"Cohort of {len(self.explanation):,} instances, {groups}"

    def __str__(self) -> str:
        lines = (textwrap.fill(text, WIDTH, subsequent_indent="  ") for text in self.sentences)
        return "\n".join(lines)


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
    groups = _group_names(explanation, by)
    if len(groups) != len(explanation):
        raise InputError(
            f"There are {len(groups)} groups for {len(explanation)} instances; give one each."
        )
    return Cohort(explanation, tuple(groups), word)


# ------------------------------------------------------------------------------------------------
# Groups


def _group_names(explanation: Explanation, by: str | Iterable[Any] | None) -> list[str]:
    """Returns the name of each instance's group."""
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


def _columns(lines: Sequence[Sequence[Any]], names: Sequence[str]) -> Lines:
    return {name: [line[k] for line in lines] for k, name in enumerate(names)}


def _changed(rows: Counterfactuals) -> Bools:
    """Returns which features each counterfactual changes, (n, d)."""
    return rows.schema.changed(rows.instances[rows.instance], rows.cells)


def _mean(values: NDArray[Any]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


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


def _verdict(figure: str, p: float, by: str, tested: Mapping[str, float], form: str) -> str:
    """Says whether groups differ in a figure, and which have the least and the most of it."""
    if np.isnan(p):
        return f"Whether the {figure} differs by {by} cannot be tested: all are alike, or too few."
    extremes = []
    for value in (min(tested.values()), max(tested.values())):
        text = format(value, form)
        groups = [f"“{group}”" for group in sorted(tested) if format(tested[group], form) == text]
        named = joined(groups) if len(groups) <= MOST_NAMED else f"{len(groups)} groups"
        extremes.append(f"{named} ({text})")
    differs = "differs" if p < 0.05 else "does not differ"
    where = f"lowest for {extremes[0]}, highest for {extremes[1]}"
    if extremes[0] == extremes[1]:
        where = f"it is the same for {extremes[0]}"
    return f"The {figure} {differs} by {by} more than chance explains (p = {p:.2g}): {where}."


def _texts(parts: Sequence[Lines], by: str) -> dict[str, list[str]]:
    """Returns lines as texts by column; a figure takes the ends of its interval along."""
    columns: dict[str, list[str]] = {}
    for name in (name for name in parts[0] if not name.endswith(ENDS)):
        shown = by if name == "group" and by != ALL else name.replace("_", " ")
        columns[shown] = []
        for lines in parts:
            low, high = (lines.get(name + end, [None] * len(lines[name])) for end in ENDS)
            columns[shown] += map(_text, [name] * len(low), lines[name], low, high)
    return columns


def _text(name: str, value: Any, low: Any, high: Any) -> str:
    """Returns a figure, and its interval where it has one."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return NONE
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if name == "median_change":
        return f"{value:+,.0f}" if abs(value) >= 1000 else f"{value:+.3g}"
    form = FORMATS[name]
    if low is None or np.isnan(low):
        return format(value, form)
    return f"{value:{form}} ({low:{form}} to {high:{form}})"


# ------------------------------------------------------------------------------------------------
# The page

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body{{font:16px/1.5 system-ui,sans-serif;color:#22303c;margin:2rem auto;max-width:60rem}}
body{{padding:0 1rem}} .wide{{overflow-x:auto}} svg{{width:100%;height:auto}}
h1,h2,thead{{break-after:avoid}} tr{{break-inside:avoid}}
table{{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem;font-size:.9rem}}
th,td{{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid #e8ebee}}
</style></head><body><h1>{title}</h1>{body}</body></html>
"""


def _table(title: str, columns: Mapping[str, Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in line)}</tr>"
        for line in zip(*columns.values(), strict=True)
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<h2>{title}</h2><div class="wide">{table}</div>'
