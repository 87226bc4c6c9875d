"""The fit report: checks of the counterfactuals of held-out rows, and whether to trust them.

`split` chooses the rows of a report before anything is trained, `make_report` turns plain arrays
(`ReportInputs`) into a `Report`, and a `Report` prints as text, JSON and HTML. All verdicts come
from one table, `THRESHOLDS`.

Held-out rows are explained, and their counterfactuals checked. A value measured on a sample has an
interval. A check passes or fails where the whole interval does, and is unsure where the limit lies
inside it. A value that could not be measured is None, with a reason.
"""

from __future__ import annotations

from lapace.report.checks import THRESHOLDS, Check, Threshold, threshold_table
from lapace.report.compute import make_report
from lapace.report.document import ExplainedLabel, Queries, Report, Rule
from lapace.report.inputs import (
    ExplainedRows,
    LabelledRows,
    Recognised,
    ReportInputs,
    Split,
    split,
)

__all__ = [
    "THRESHOLDS",
    "Check",
    "ExplainedLabel",
    "ExplainedRows",
    "LabelledRows",
    "Queries",
    "Recognised",
    "Report",
    "ReportInputs",
    "Rule",
    "Split",
    "Threshold",
    "make_report",
    "split",
    "threshold_table",
]
