"""Counts of outcomes that add up over parts, in any order: statuses, reasons, and groups compared.

Sums of real numbers are kept as whole multiples of a billionth, so that it does not matter in which
order parts finish: a run that was killed and resumed counts exactly what an undisturbed one does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from scipy import stats

from lapace.arrays import Floats
from lapace.batch.outcomes import FAILED, Request
from lapace.cohorts import share_interval, verdict
from lapace.errors import InputError
from lapace.result import STATUSES, Counterfactuals, Explanation
from lapace.schema import Feature, Schema
from lapace.table import spelling

__all__ = ["Counts", "GroupCounts", "count_outcomes"]

Lines: TypeAlias = dict[str, list[Any]]

UNIT = 10**9  # sums of reals are whole multiples of one over this
BINS = 16  # bins of costs in each doubling
REASONS = 20  # the commonest, of each part
MOST_GROUPS = 1000  # of one part
SHOWN_GROUPS = 20
ALL = "all"
BANDS = 4  # groups that a column of numbers is cut into, at quartiles of the training table


@dataclass
class GroupCounts:
    """Counts of one group of instances.

    Attributes:
        instances: Searched for: readable, and without the target already.
        answered: With a counterfactual.
        cost: Sum of the costs of the cheapest counterfactuals.
        squares: Sum of their squares.
        bins: How many costs lie in each bin, on a scale of logarithms.
        changes: Features changed, in all.
        features: By feature: how often it changes, up, down, the sum of changes of a number, and
            how often to each category.
        prototypes: How many answers lie on the way to each prototype; -1 for sampled endpoints.
    """

    instances: int = 0
    answered: int = 0
    cost: int = 0
    squares: int = 0
    bins: Counter[int] = field(default_factory=Counter)
    changes: int = 0
    features: dict[str, dict[str, Any]] = field(default_factory=dict)
    prototypes: Counter[int] = field(default_factory=Counter)

    def add(self, other: GroupCounts) -> None:
        """Adds what another part counted."""
        self.instances += other.instances
        self.answered += other.answered
        self.changes += other.changes
        self.cost += other.cost
        self.squares += other.squares
        self.bins.update(other.bins)
        self.prototypes.update(other.prototypes)
        for name, counted in other.features.items():
            mine = self.features.setdefault(name, _no_changes())
            for key in ("changed", "up", "down", "sum"):
                mine[key] += counted[key]
            mine["to"].update(counted["to"])

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        features = {
            name: {**self.features[name], "to": _sorted(self.features[name]["to"])}
            for name in sorted(self.features)
        }
        return {
            "instances": self.instances,
            "answered": self.answered,
            "cost": self.cost,
            "squares": self.squares,
            "bins": _sorted(self.bins),
            "changes": self.changes,
            "features": features,
            "prototypes": _sorted(self.prototypes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GroupCounts:
        """Reads back what `to_json` returned."""
        features = {
            name: {**counted, "to": Counter(counted["to"])}
            for name, counted in data["features"].items()
        }
        return cls(
            data["instances"],
            data["answered"],
            data["cost"],
            data["squares"],
            Counter({int(key): count for key, count in data["bins"].items()}),
            data["changes"],
            features,
            Counter({int(key): count for key, count in data["prototypes"].items()}),
        )


def _no_changes() -> dict[str, Any]:
    return {"changed": 0, "up": 0, "down": 0, "sum": 0, "to": Counter()}


def _sorted(counter: Counter[Any]) -> dict[str, int]:
    return {str(key): counter[key] for key in sorted(counter)}


@dataclass
class Counts:
    """Counts of the outcomes of some parts.

    Attributes:
        rows: Instances.
        counterfactuals: Rows written that hold one.
        status: Instances by status.
        reasons: Instances without a counterfactual by status and reason; the commonest of a part.
        groups: By group.

    Examples:
        >>> one, other = Counts(rows=3), Counts(rows=4)
        >>> one.add(other)
        >>> one.rows
        7
    """

    rows: int = 0
    counterfactuals: int = 0
    status: Counter[str] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    groups: dict[str, GroupCounts] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        """Adds what another part counted."""
        self.rows += other.rows
        self.counterfactuals += other.counterfactuals
        self.status.update(other.status)
        self.reasons.update(other.reasons)
        for name, group in other.groups.items():
            self.groups.setdefault(name, GroupCounts()).add(group)

    def commonest(self, most: int = REASONS) -> list[tuple[str, str, int]]:
        """Status, reason and how often, the commonest first."""
        ordered = sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))
        return [(status, why, count) for (status, why), count in ordered[:most]]

    def to_json(self, reasons: int = REASONS) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "rows": self.rows,
            "counterfactuals": self.counterfactuals,
            "status": {s: self.status[s] for s in (*STATUSES, FAILED) if self.status[s]},
            "reasons": [list(line) for line in self.commonest(reasons)],
            "groups": {name: self.groups[name].to_json() for name in sorted(self.groups)},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Counts:
        """Reads back what `to_json` returned."""
        return cls(
            data["rows"],
            data["counterfactuals"],
            Counter(data["status"]),
            Counter({(status, why): count for status, why, count in data["reasons"]}),
            {name: GroupCounts.from_json(group) for name, group in data["groups"].items()},
        )

    # -- groups compared --------------------------------------------------------------------------

    def shown_groups(self) -> dict[str, GroupCounts]:
        """The groups, the largest ones where there are many; the rest together."""
        names = sorted(self.groups, key=lambda name: (-self.groups[name].instances, name))
        shown = {name: self.groups[name] for name in sorted(names[:SHOWN_GROUPS])}
        rest = GroupCounts()
        for name in names[SHOWN_GROUPS:]:
            rest.add(self.groups[name])
        return {**shown, f"{len(names) - SHOWN_GROUPS} others": rest} if rest.instances else shown

    def cost_lines(self) -> Lines:
        """Per group: how many instances, how many answered, and what the answers cost."""
        lines: Lines = {name: [] for name in (
            "group", "instances", "answered", "share", "share_low", "share_high",
            "cost", "cost_low", "cost_high", "cost_median", "changes",
        )}  # fmt: skip
        for name, group in self.shown_groups().items():
            count, found = group.instances, group.answered
            mean, half = _mean_and_half(group.cost, group.squares, found)
            values = (
                name, count, found, found / count if count else np.nan,
                *share_interval(found, count), mean, mean - half, mean + half,
                _median(group.bins), group.changes / found if found else np.nan,
            )  # fmt: skip
            for column, value in zip(lines.values(), values, strict=True):
                column.append(value)
        return lines

    def feature_lines(self) -> Lines:
        """Per group and feature: how often it changes, up or down, and by how much on average."""
        lines: Lines = {name: [] for name in (
            "group", "feature", "changed", "share", "up", "down", "mean_change", "most_often_to"
        )}  # fmt: skip
        for name, group in self.shown_groups().items():
            ordered = sorted(
                group.features.items(), key=lambda item: (-item[1]["changed"], item[0])
            )
            for feature, counted in ordered:
                to = min(counted["to"], key=lambda v: (-counted["to"][v], v), default="")
                moved = counted["up"] + counted["down"]
                mean = counted["sum"] / UNIT / moved if moved and not to else np.nan
                values = (name, feature, counted["changed"], counted["changed"] / group.answered,
                          counted["up"], counted["down"], mean, to)  # fmt: skip
                for column, value in zip(lines.values(), values, strict=True):
                    column.append(value)
        return lines

    @property
    def p_cost(self) -> float:
        """Chance of costs as different as these in groups that do not differ (Kruskal-Wallis)."""
        return _kruskal([group.bins for group in self.groups.values()])

    @property
    def p_answered(self) -> float:
        """The same of the shares of instances with an answer (chi-squared)."""
        pairs = [(g.answered, g.instances - g.answered) for g in self.groups.values()]
        table = np.array([pair for pair in pairs if sum(pair)]).reshape(-1, 2)
        if len(table) < 2 or (table.sum(axis=0) == 0).any():
            return float("nan")
        return float(stats.chi2_contingency(table).pvalue)

    def sentences(self, by: str | None) -> list[str]:
        """What the groups say, in words."""
        whole = GroupCounts()
        for group in self.groups.values():
            whole.add(group)
        text = f"{whole.answered:,} of {whole.instances:,} instances without the target label"
        text += " have an answer"
        if whole.answered:
            mean = whole.cost / UNIT / whole.answered
            changes = whole.changes / whole.answered
            text += f"; it costs {mean:.2f} and changes {changes:.1f} features on average"
        found = [f"{text}."]
        if by is not None and len(self.groups) > 1:
            found.append(verdict("cost of an answer", self.p_cost, by))
            found.append(verdict("share with an answer", self.p_answered, by))
        return found


def _mean_and_half(total: int, squares: int, count: int) -> tuple[float, float]:
    """The mean, and half the width of its 95 % interval."""
    if not count:
        return float("nan"), float("nan")
    mean = total / UNIT / count
    spread = max(0.0, squares / UNIT / count - mean**2)
    half = 1.96 * (spread / (count - 1)) ** 0.5 if count > 1 else float("nan")
    return mean, half


def _bin(costs: Floats) -> list[int]:
    """The bin of each cost, about a twentieth wide."""
    exponents = np.floor(np.log2(np.maximum(costs, 1e-9)) * BINS)
    return [int(e) for e in exponents]


def _median(bins: Counter[int]) -> float:
    """The median, to within a bin."""
    if not bins:
        return float("nan")
    keys = sorted(bins)
    reached = np.cumsum([bins[key] for key in keys])
    middle = [(reached[-1] - 1) // 2, reached[-1] // 2]
    found = np.array(keys)[np.searchsorted(reached, middle, side="right")]
    return float(np.mean(2 ** ((found + 0.5) / BINS)))


def _kruskal(groups: Sequence[Counter[int]], few: int = 5) -> float:
    """The Kruskal-Wallis test of binned values: those of a bin are ties."""
    enough = [bins for bins in groups if sum(bins.values()) >= few]
    keys = sorted(set().union(*enough)) if enough else []
    if len(enough) < 2 or len(keys) < 2:
        return float("nan")
    table = np.array([[bins[key] for key in keys] for bins in enough], dtype=np.float64)
    ties, sizes, n = table.sum(axis=0), table.sum(axis=1), table.sum()
    ranks = np.cumsum(ties) - (ties - 1) / 2
    statistic = 12 / (n * (n + 1)) * ((table @ ranks) ** 2 / sizes).sum() - 3 * (n + 1)
    statistic /= 1 - (ties**3 - ties).sum() / (n**3 - n)
    return float(stats.chi2.sf(statistic, len(enough) - 1))


# ------------------------------------------------------------------------------------------------
# Counting one explanation


def count_outcomes(request: Request, explanation: Explanation, rows: Any, lines: int) -> Counts:
    """Counts of one explanation.

    Args:
        request: What was asked for.
        explanation: What was found.
        rows: The instances as they were read.
        lines: Rows written that hold a counterfactual.
    """
    counts = Counts(len(explanation), lines, Counter(explanation.status))
    ids = explanation.ids or range(len(explanation))
    for status, why, name in zip(explanation.status, explanation.reason, ids, strict=True):
        if status not in ("answered", "already_target"):
            counts.reasons[status, why.replace(f" in row {name}", "")] += 1
    names = _groups(request.by, explanation, rows)
    pick = "nearest" if "nearest" in request.picks else request.picks[0]
    cheapest = _cheapest(getattr(explanation, pick)())
    different = cheapest._different
    for name in dict.fromkeys(names):
        counts.groups[name] = GroupCounts()
    for name, status in zip(names, explanation.status, strict=True):
        counts.groups[name].instances += status in ("answered", "none_found", "infeasible")
    for name in counts.groups:
        at = np.array([names[i] == name for i in cheapest.instance], dtype=bool)
        _count_group(counts.groups[name], cheapest.where(at), different[at])
    return counts


def _cheapest(rows: Counterfactuals) -> Counterfactuals:
    """The cheapest counterfactual of each instance that has one."""
    rows = rows.where(rows.ok)
    rows = rows.where(np.lexsort((rows.distance, rows.instance)))
    first = np.ones(len(rows), dtype=bool)
    first[1:] = np.diff(rows.instance) != 0
    return rows.where(first)


def _count_group(group: GroupCounts, rows: Counterfactuals, different: Any) -> None:
    group.answered = len(rows)
    group.cost, group.squares = _whole(rows.distance), _whole(rows.distance**2)
    group.bins.update(_bin(rows.distance))
    group.changes = int(different.sum())
    group.prototypes.update(rows.prototype.tolist())
    before, after = rows.instances[rows.instance], rows.cells
    for i in np.flatnonzero(different.any(axis=0)):
        mine = different[:, i]
        name = rows.schema.names[i]
        group.features[name] = _count_feature(
            rows.schema.features[i], before[mine, i], after[mine, i]
        )


def _count_feature(feature: Feature, before: Floats, after: Floats) -> dict[str, Any]:
    counted = {**_no_changes(), "changed": len(after)}
    if feature.kind not in ("categorical", "binary"):
        counted |= {"up": int((after > before).sum()), "down": int((after < before).sum())}
    if feature.categories:
        present = after[~np.isnan(after)]
        counted["to"] = Counter(feature.text(float(cell)) for cell in present)
    else:
        counted["sum"] = _whole(np.nan_to_num(after - before))
    return counted


def _whole(values: Floats) -> int:
    """The sum in whole units; the same in any order."""
    return sum(round(float(value) * UNIT) for value in values)


def _groups(by: str | None, explanation: Explanation, rows: Any) -> list[str]:
    """The group of each instance; a number's is its band between quartiles of training rows."""
    if by is None:
        return [ALL] * len(explanation)
    if by in explanation.schema.names:
        column = explanation.schema.index(by)
        cells = explanation.instances[:, column]
        return _feature_groups(explanation.schema, column, cells)
    values = rows.column(by).to_pylist()
    names = ["missing" if v is None or v != v else spelling(v) for v in values]  # noqa: PLR0124
    if len(set(names)) > MOST_GROUPS:
        raise InputError(f"'{by}' makes more than {MOST_GROUPS} groups in one part.")
    return names


def _feature_groups(schema: Schema, column: int, cells: Floats) -> list[str]:
    feature = schema.features[column]
    if feature.kind != "continuous" or feature.knots is None or len(feature.knots.values) <= BANDS:
        return [feature.text(float(cell)) for cell in cells]
    edges = np.unique(_quartiles(feature))
    texts = [feature.text(float(edge)) for edge in edges]
    names = [f"up to {texts[0]}"]
    names += [f"over {low} up to {high}" for low, high in pairwise(texts)]
    names.append(f"over {texts[-1]}")
    place = np.searchsorted(edges, cells, side="left")
    return ["missing" if np.isnan(c) else names[p] for c, p in zip(cells, place, strict=True)]


def _quartiles(feature: Feature) -> Floats:
    """Quartiles of the training table, by its rank map."""
    assert feature.knots is not None
    return feature.snap(feature.knots.units(stats.norm.ppf([0.25, 0.5, 0.75])))
