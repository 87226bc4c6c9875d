"""Counts of outcomes that add up over parts, in any order: rows written, failures, and a cohort.

A run that was killed and resumed counts exactly what an undisturbed one does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lapace.apps.batch.outcomes import FAILED, Layout, Request
from lapace.apps.cohorts import ALL, REASONS, Cohort, group_names
from lapace.result import STATUSES, Explanation

__all__ = ["Counts", "count_outcomes"]


@dataclass
class Counts:
    """Counts of the outcomes of some parts.

    Attributes:
        cohort: What became of the instances that were explained, by group.
        counterfactuals: Rows written that hold one.
        failed: Instances that the classifier could not be queried about, by reason.
    """

    cohort: Cohort
    counterfactuals: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    @classmethod
    def none(cls, layout: Layout) -> Counts:
        """Returns counts of nothing yet."""
        return cls(Cohort(layout.schema, layout.request.by or ALL))

    @property
    def status(self) -> Counter[str]:
        """Instances by status."""
        return self.cohort.total.status + Counter({FAILED: self.failed.total()})

    @property
    def rows(self) -> int:
        """How many instances there are."""
        return self.status.total()

    def add(self, other: Counts) -> None:
        """Adds what another part counted."""
        self.cohort.merge(other.cohort)
        self.counterfactuals += other.counterfactuals
        self.failed.update(other.failed)

    def commonest(self, most: int = REASONS) -> list[tuple[str, str, int]]:
        """Returns statuses, reasons and how often each occurs, the commonest first."""
        reasons = self.cohort.total.reasons
        reasons.update({(FAILED, reason): count for reason, count in self.failed.items()})
        ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        return [(status, reason, count) for (status, reason), count in ordered[:most]]

    def summary(self) -> dict[str, Any]:
        """Returns rows, statuses and commonest reasons as plain JSON values."""
        status = self.status
        return {
            "rows": self.rows,
            "counterfactuals": self.counterfactuals,
            "status": {s: status[s] for s in (*STATUSES, FAILED) if status[s]},
            "reasons": [list(line) for line in self.commonest()],
        }

    def to_json(self) -> dict[str, Any]:
        """Returns the counts as plain JSON values."""
        return {
            "cohort": self.cohort.to_json(),
            "counterfactuals": self.counterfactuals,
            "failed": dict(sorted(self.failed.items())),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], layout: Layout) -> Counts:
        """Reads back what `to_json` returned."""
        cohort = Cohort.from_json(data["cohort"], layout.schema, layout.request.by or ALL)
        return cls(cohort, data["counterfactuals"], Counter(data["failed"]))


def count_outcomes(layout: Layout, explanation: Explanation, rows: Any, lines: int) -> Counts:
    """Counts the outcomes of one explanation.

    Args:
        layout: The query, and the columns.
        explanation: The explanation of the rows.
        rows: The instances as they were read.
        lines: Rows written that hold a counterfactual.
    """
    request: Request = layout.request
    by: Any = request.by
    if by is not None and by not in layout.schema.names:
        by = rows.column(by).to_pylist()
    counts = Counts.none(layout)
    pick = "nearest" if "nearest" in request.picks else request.picks[0]
    counts.cohort.add(explanation, group_names(explanation, by), pick)
    counts.counterfactuals = lines
    return counts
