"""Many explanations summed up: what has to change, for whom, at what cost, and who gets no answer.

`cohort(explanation, by="housing")` compares groups of instances: which features change how often
and by how much, what the cheapest counterfactual costs and whether groups differ in that, which
prototypes serve which group, and which instances have no counterfactual. It reads only the result.
`importance` also gives what a feature contributes to the target's probability, by querying the
classifier.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lapace.arrays import Bools, Floats, Ints
from lapace.constraints.relaxation import amount_text
from lapace.errors import InputError
from lapace.result import Counterfactuals, Explanation
from lapace.schema import Feature
from lapace.schema.features import on_lattice
from lapace.table import plain_frame, spelling, write_whole

if TYPE_CHECKING:
    from lapace.explainer import Explainer

__all__ = ["Cohort", "cohort", "importance"]

Lines: TypeAlias = dict[str, list[Any]]

ALL = "all"
BANDS = 4  # groups that a column of numbers is cut into
MOST_GROUPS = 20
FEW = 5  # answered instances under which a group's cost is not tested
LEVEL = 0.95  # of intervals
DRAWS = 2000  # bootstrap samples of an interval
DETECTABLE = 2.8  # standard errors: a difference that four of five samples find at a level of 5 %
NAMED = 3  # features that the sentence of a group names
WIDTH = 100  # characters of a printed line
PROTOTYPES = (
    "Where there is no number the answer was found near a sampled row, not near a prototype."
)
UNANSWERED = (
    "For those without an answer, lapace why-not (in Python Explainer.why_not) finds the limits "
    "that would have to give way."
)


@dataclass(frozen=True, eq=False)
class Cohort:
    """Groups of instances compared.

    Attributes:
        explanation: All instances.
        rows: The cheapest counterfactual of each instance that has one.
        by: What groups them.
        names: The groups, in order.
        group: The group of each instance, as a position in `names`; -1 for none.
        p_cost: Chance of costs as different as these in groups that do not differ (Kruskal-Wallis);
            NaN where it cannot be tested.
        p_answered: The same of the shares of instances with an answer (chi-squared).
    """

    explanation: Explanation
    rows: Counterfactuals
    by: str
    names: tuple[str, ...]
    group: Ints
    p_cost: float
    p_answered: float

    # -- frames -----------------------------------------------------------------------------------

    @property
    def costs(self) -> Any:
        """Per group: how many instances, how many answered, and what the answers cost."""
        return self._frame(self._costs)

    @property
    def features(self) -> Any:
        """Per group and feature: how often it changes, up or down, and by how much."""
        return self._frame(self._features)

    @property
    def prototypes(self) -> Any:
        """Per group and endpoint: how many of the answers lie on the way to it."""
        return self._frame(self._prototypes)

    @property
    def unanswered(self) -> Any:
        """Every instance without an answer: its group, status and reason."""
        return self._frame(self._unanswered)

    def _frame(self, lines: Lines) -> Any:
        kind = self.explanation.template.kind
        columns = {name: _column(values) for name, values in lines.items()}
        return plain_frame(kind, columns)

    @cached_property
    def _costs(self) -> Lines:
        tried, answered = _tried(self.explanation), _answered(self.explanation)
        lines: Lines = {name: [] for name in (
            "group", "instances", "answered", "share", "share_low", "share_high",
            "cost", "cost_low", "cost_high", "cost_median", "changes",
        )}  # fmt: skip
        for k, name in enumerate(self.names):
            mine = (self.group == k) & tried
            count, found = int(mine.sum()), int((mine & answered).sum())
            at = self.group[self.rows.instance] == k
            cost = self.rows.distance[at]
            low, high = share_interval(found, count)
            mean_low, mean_high = _mean_interval(cost)
            values = (
                name, count, found, found / count if count else np.nan, low, high,
                _mean(cost), mean_low, mean_high, float(np.median(cost)) if len(cost) else np.nan,
                _mean(self.rows.changed[at]),
            )  # fmt: skip
            for column, value in zip(lines.values(), values, strict=True):
                column.append(value)
        return lines

    @cached_property
    def _features(self) -> Lines:
        schema, rows = self.rows.schema, self.rows
        before, after = rows.instances[rows.instance], rows.cells
        different = schema.changed(before, after)
        lines: Lines = {name: [] for name in (
            "group", "feature", "changed", "share", "up", "down", "median_change", "most_often_to"
        )}  # fmt: skip
        for k, name in enumerate(self.names):
            at = self.group[rows.instance] == k
            order = np.argsort(-different[at].sum(axis=0), kind="stable")
            for i in order[different[at].any(axis=0)[order]]:
                mine = at & different[:, i]
                said = _change(schema.features[i], before[mine, i], after[mine, i])
                count = int(mine.sum())
                values = (name, schema.names[i], count, count / int(at.sum()), *said)
                for column, value in zip(lines.values(), values, strict=True):
                    column.append(value)
        return lines

    @cached_property
    def _prototypes(self) -> Lines:
        lines: Lines = {"group": [], "prototype": [], "answers": [], "share": []}
        for k, name in enumerate(self.names):
            mine = self.rows.prototype[self.group[self.rows.instance] == k]
            for number, count in zip(*np.unique(mine, return_counts=True), strict=True):
                shown = None if number < 0 else int(number)
                values = (name, shown, int(count), count / len(mine))
                for column, value in zip(lines.values(), values, strict=True):
                    column.append(value)
        return lines

    @cached_property
    def _unanswered(self) -> Lines:
        lines: Lines = {"instance": [], "group": [], "status": [], "reason": []}
        for instance in self.explanation:
            if instance.status in ("none_found", "infeasible", "malformed"):
                group = int(self.group[instance.position])
                lines["instance"].append(instance.name)
                lines["group"].append(self.names[group] if group >= 0 else None)
                lines["status"].append(instance.status)
                lines["reason"].append(instance.reason)
        return lines

    # -- words and pages --------------------------------------------------------------------------

    @property
    def sentences(self) -> list[str]:
        """What the comparison says, in words."""
        costs, found = self._costs, []
        total, answered = sum(costs["instances"]), sum(costs["answered"])
        found.append(
            f"{answered:,} of {total:,} instances without the target label have an answer; "
            f"it costs {_mean(self.rows.distance):.2f} and changes {_mean(self.rows.changed):.1f} "
            "features on average."
        )
        if len(self.names) > 1:
            found.append(verdict("cost of an answer", self.p_cost, self.by))
            found.append(verdict("share with an answer", self.p_answered, self.by))
            found += self._missed()
        if len(self.rows):
            found.append(_meaning_of_cost(weighted=bool(self.explanation.costs)))
        found += [self._group_sentence(k) for k in range(len(self.names))]
        return [*found, UNANSWERED] if self._unanswered["group"] else found

    def _group_sentence(self, k: int) -> str:
        """One group: how many have an answer, and what the answers change most often."""
        costs, lines = self._costs, self._features
        count, answered = costs["instances"][k], costs["answered"][k]
        size = int((self.group == k).sum())
        text = f"{self.names[k]}: {count:,} of {size:,} lack the target label"
        if count:
            text += f", {answered:,} of these have an answer"
        named = [i for i, group in enumerate(lines["group"]) if group == self.names[k]][:NAMED]
        said = [self._feature_text(k, lines["feature"][i], answered) for i in named]
        return f"{text}; {', '.join(said)}." if said else f"{text}."

    def _feature_text(self, k: int, name: str, answered: int) -> str:
        """How often, and by how much, a group's answers change a feature: `age rises by 3`."""
        rows, column = self.rows, self.rows.schema.index(name)
        feature, at = rows.schema.features[column], self.group[rows.instance] == k
        before, after = rows.instances[rows.instance[at], column], rows.cells[at, column]
        changed = rows.schema.changed(rows.instances[rows.instance[at]], rows.cells[at])[:, column]
        up, down, _, often = _change(feature, before[changed], after[changed])
        total = int(changed.sum())
        if feature.categories:
            most = sum(feature.text(float(cell)) == often for cell in after[changed])
            return f"{name} changes in {total} of {answered} (to {often} in {most})"
        verb, most = ("rises", up) if up >= down else ("falls", down)
        apart = after[changed] - before[changed]
        median = np.median(np.abs(apart[apart > 0 if up >= down else apart < 0])) if most else 0.0
        by = amount_text(float(on_lattice(np.array(median), feature.resolution)), feature)
        return f"{name} {verb} by {by} (median) in {most} of {answered}" + (
            f" and changes otherwise in {total - most}" if total > most else ""
        )

    def _missed(self) -> list[str]:
        """How large a difference the tests would probably have missed, where they found none."""
        costs, found = self._costs, []
        answered, counts = (
            sorted(n for n in costs[name] if n >= FEW)[:2] for name in ("answered", "instances")
        )
        if self.p_cost >= 0.05 and len(answered) == 2:
            spread = float(np.std(self.rows.distance)) * sum(1 / n for n in answered) ** 0.5
            found.append(f"less than about {DETECTABLE * spread:.2g} in the mean cost")
        if self.p_answered >= 0.05 and len(counts) == 2:
            share = sum(costs["answered"]) / sum(costs["instances"])
            error = (share * (1 - share) * sum(1 / n for n in counts)) ** 0.5
            found.append(f"less than about {DETECTABLE * error:.0%} in the share with an answer")
        if not found:
            return []
        small = f"Between the two smallest groups tested a difference of {' or '.join(found)}"
        return [f"{small} would probably have gone unnoticed."]

    def __repr__(self) -> str:
        groups = f"{len(self.names)} groups by {self.by}" if len(self.names) > 1 else "one group"
        return f"Cohort of {len(self.explanation):,} instances, {groups}"

    def __str__(self) -> str:
        lines = (textwrap.fill(said, WIDTH, subsequent_indent="  ") for said in self.sentences)
        return "\n".join(lines)

    def to_html(self, path: str | Path | None = None) -> str:
        """The comparison as one self-contained page; written to `path` where one is given."""
        page = _page(self)
        if path is not None:
            write_whole(Path(path), lambda p: p.write_text(page, encoding="utf-8"))
        return page

    def _repr_html_(self) -> str:
        return _body(self)


def cohort(explanation: Explanation, by: str | Sequence[Any] | None = None) -> Cohort:
    """Compares groups of an explanation's instances.

    Args:
        explanation: What `Explainer.explain` returned.
        by: A column of the instances (a number is cut at its quartiles), or the group of each
            instance; None for all in one.

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
    names, group = _groups(explanation, by)
    rows = explanation.nearest()
    rows = rows.where(rows.ok)
    tried, answered = _tried(explanation), _answered(explanation)
    called = by if isinstance(by, str) else ALL if by is None else "group"
    costs = [rows.distance[group[rows.instance] == k] for k in range(len(names))]
    table = np.array(
        [
            [((group == k) & tried & a).sum() for a in (answered, ~answered)]
            for k in range(len(names))
        ]
    )
    return Cohort(explanation, rows, called, names, group, _p_cost(costs), _p_share(table))


def _tried(explanation: Explanation) -> Bools:
    """Instances that were searched for: they are readable and lack the target label."""
    return np.array([s in ("answered", "none_found", "infeasible") for s in explanation.status])


def _answered(explanation: Explanation) -> Bools:
    return np.array([s == "answered" for s in explanation.status])


def importance(explanation: Explanation, explainer: Explainer | None = None) -> Any:
    """How much features matter: how often answers change them, and the probability they are worth.

    A frame with a line per feature: `share`, of all answers the share that changes it; with an
    explainer also `probability_lost`, the mean loss of the target's probability where only that
    change is undone.

    Args:
        explanation: What `Explainer.explain` returned; `explanation[[3]]` for a single instance.
        explainer: The explainer whose classifier is then queried.
    """
    rows = explanation.nearest()
    rows = rows.where(rows.ok)
    schema = rows.schema
    before = rows.instances[rows.instance]
    different = schema.changed(before, rows.cells)  # (rows, columns)
    share = different.mean(axis=0) if len(rows) else np.zeros(len(schema.names))
    columns: dict[str, NDArray[Any]] = {"feature": _column(list(schema.names)), "share": share}
    if explainer is not None:
        columns["probability_lost"] = _lost(rows, before, different, explainer)
    order = np.argsort(-share, kind="stable")
    kind = explanation.template.kind
    return plain_frame(kind, {name: values[order] for name, values in columns.items()})


def _lost(rows: Counterfactuals, before: Floats, different: Bools, explainer: Explainer) -> Floats:
    """The mean loss of the target's probability when one change alone is undone, per column."""
    at, column = np.nonzero(different)
    undone = rows.cells[at]
    undone[np.arange(len(at)), column] = before[at, column]
    classifier = explainer.classifier_.with_fresh_count()
    likely = classifier.predict_proba(undone, rows.schema) if len(at) else None
    if likely is None:
        return np.full(different.shape[1], np.nan)
    codes = np.array([classifier.code(label) for label in rows.label])[at]
    lost = rows.probability[at] - likely[np.arange(len(at)), codes]
    return np.array([_mean(lost[column == i]) for i in range(different.shape[1])])


# ------------------------------------------------------------------------------------------------
# Groups


def _groups(explanation: Explanation, by: Any) -> tuple[tuple[str, ...], Ints]:
    """The groups' names, and the group of each instance; -1 where its value is missing."""
    if by is None:
        return (ALL,), np.zeros(len(explanation), dtype=np.int64)
    if not isinstance(by, str):
        values = [None if v is None or v != v else spelling(v) for v in by]  # noqa: PLR0124  NaN
        if len(values) != len(explanation):
            raise InputError(
                f"There are {len(values)} groups for {len(explanation)} instances; give one each."
            )
        return _named(values, sorted({v for v in values if v is not None}), "by")
    column = explanation.schema.index(by)
    cells, feature = explanation.instances[:, column], explanation.schema.features[column]
    distinct = np.unique(cells[~np.isnan(cells)])
    if feature.kind == "continuous" and len(distinct) > BANDS:
        return _bands(feature, cells)
    texts = [None if np.isnan(cell) else feature.text(float(cell)) for cell in cells]
    return _named(texts, [feature.text(float(value)) for value in distinct], by)


def _named(
    values: Sequence[str | None], names: Sequence[str], by: str
) -> tuple[tuple[str, ...], Ints]:
    if not names:
        raise InputError(f"'{by}' makes no group: it is missing for every instance.")
    if len(names) > MOST_GROUPS:
        raise InputError(f"'{by}' makes {len(names)} groups; at most {MOST_GROUPS} are compared.")
    places = {name: k for k, name in enumerate(names)}
    return tuple(names), np.array([-1 if v is None else places[v] for v in values], dtype=np.int64)


def _bands(feature: Feature, cells: Floats) -> tuple[tuple[str, ...], Ints]:
    """Numbers cut at their quartiles."""
    present = cells[~np.isnan(cells)]
    edges = np.unique(np.quantile(present, np.arange(1, BANDS) / BANDS, method="lower"))
    group = np.where(np.isnan(cells), -1, np.searchsorted(edges, cells, side="left"))
    texts = [feature.text(float(edge)) for edge in edges]
    names = [f"up to {texts[0]}", *(f"over {text}" for text in texts)]
    for k in range(1, len(texts)):
        names[k] = f"over {texts[k - 1]} up to {texts[k]}"
    return tuple(names), group.astype(np.int64)


# ------------------------------------------------------------------------------------------------
# Numbers


def _mean(values: Any) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def share_interval(found: int, count: int) -> tuple[float, float]:
    """Wilson's interval of a share."""
    if not count:
        return float("nan"), float("nan")
    interval = stats.binomtest(found, count).proportion_ci(LEVEL, method="wilson")
    return float(interval.low), float(interval.high)


def _mean_interval(values: Floats) -> tuple[float, float]:
    """An interval of a mean, by the bootstrap; the same draws in every call."""
    if len(values) < 2:
        return float("nan"), float("nan")
    drawn = np.random.default_rng(0).choice(values, (DRAWS, len(values))).mean(axis=1)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _p_cost(costs: Sequence[Floats]) -> float:
    enough = [values for values in costs if len(values) >= FEW]
    if len(enough) < 2 or np.ptp(np.concatenate(enough)) == 0:
        return float("nan")
    return float(stats.kruskal(*enough).pvalue)


def _p_share(table: Ints) -> float:
    counts = table[table.sum(axis=1) > 0]
    if len(counts) < 2 or (counts.sum(axis=0) == 0).any():
        return float("nan")
    return float(stats.chi2_contingency(counts).pvalue)


def _change(feature: Feature, before: Floats, after: Floats) -> tuple[Any, Any, Any, Any]:
    """How often up and down, the median change, and the most frequent new category."""
    if feature.categories:
        codes, counts = np.unique(after[~np.isnan(after)], return_counts=True)
        text = feature.text(float(codes[counts.argmax()])) if len(codes) else ""
        if feature.kind != "ordinal":
            return None, None, np.nan, text
        return int((after > before).sum()), int((after < before).sum()), np.nan, text
    apart = after - before
    known = apart[~np.isnan(apart)]
    median = float(np.median(known)) if len(known) else np.nan
    return int((apart > 0).sum()), int((apart < 0).sum()), median, ""


def _column(values: Sequence[Any]) -> NDArray[Any]:
    """A column: numbers where all are, else objects."""
    if values and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return np.array(values)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _meaning_of_cost(*, weighted: bool) -> str:
    weights = ", times the weights given" if weighted else ""
    return (
        "A cost is the distance of the nearest answer, a number without a unit: 0.16 is a change "
        "of a number past 16 % of the training rows, and a change of category counts 1"
        f"{weights}. The ways that explain and letters show keep a margin and may cost more."
    )


def verdict(what: str, p: float, by: str) -> str:
    if np.isnan(p):
        return f"Whether the {what} differs by {by} cannot be tested: all are alike, or too few."
    if p < 0.05:
        return f"The {what} differs by {by} more than chance explains (p = {p:.2g})."
    return f"The {what} does not differ by {by} more than chance explains (p = {p:.2g})."


# ------------------------------------------------------------------------------------------------
# Pages

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#22303c;margin:2rem auto;max-width:60rem}
body{padding:0 1rem}
table{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem;font-size:.9rem}
th,td{text-align:left;padding:.25rem .6rem .25rem 0;border-bottom:1px solid #e8ebee}
.bar{background:#cfe3f1;height:.7rem;border-radius:.2rem;min-width:1px}
.wide{overflow-x:auto}
"""


def _page(found: Cohort) -> str:
    title = f"Cohorts by {found.by}" if len(found.names) > 1 else "Cohort"
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    return (
        f'<!doctype html><html lang="en"><head>{head}<title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{_body(found)}</body></html>\n"
    )


def _body(found: Cohort) -> str:
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in found.sentences)
    parts = (
        ("What an answer costs", "", found._costs),
        ("What changes", "", found._features),
        ("Without an answer", UNANSWERED, found._unanswered),
        ("Where the answers lie", PROTOTYPES, found._prototypes),
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
    if name == "share":
        bar = f'<div class="bar" style="width:{100 * float(value):.0f}%"></div>'
        return f"{float(value):.0%}{bar}"
    if name in ("share_low", "share_high"):
        return f"{float(value):.0%}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return escape(str(value))
