"""The fit report: what was learned, what to distrust, and whether it passes.

`plan` says which rows a report needs before anything is trained, `measure` turns plain arrays
(`Evidence`) into a `Report`, and a `Report` prints as text, JSON and HTML. All judgements come from
one table, `THRESHOLDS`; whatever shows a threshold reads it there.

A number that a sample may have got wrong carries its margin (the standard error) and is judged
after the margin has been allowed in its favour, so that few rows do not condemn a good fit. What
could not be measured is None and says why.
"""

from __future__ import annotations

from lapace.report.measuring import Evidence, Plan, Rows, measure, plan
from lapace.report.record import (
    Check,
    Cluster,
    ColumnFit,
    LabelFit,
    Look,
    Queries,
    Report,
    Rule,
)
from lapace.report.thresholds import THRESHOLDS, Threshold, limits

__all__ = [
    "THRESHOLDS",
    "Check",
    "Cluster",
    "ColumnFit",
    "Evidence",
    "LabelFit",
    "Look",
    "Plan",
    "Queries",
    "Report",
    "Rows",
    "Rule",
    "Threshold",
    "limits",
    "measure",
    "plan",
]
