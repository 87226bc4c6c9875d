"""The fit report: what comes back for held-out rows, what was learned, and whether to trust it.

`split` says which rows a report needs before anything is trained, `make_report` turns plain arrays
(`ReportInputs`) into a `Report`, and a `Report` prints as text, JSON and HTML. All verdicts come
from one table, `THRESHOLDS`.

A report judges what comes back: held-out rows are explained, and the counterfactuals checked. A
value measured on a sample has an interval; a check passes or fails where the whole interval does,
and is unsure where the limit lies inside it. What could not be measured is None, with a reason.
What was learned besides (how rows sampled from the model do, say) is shown and not judged.
"""

from __future__ import annotations

from lapace.report.compute import make_report
from lapace.report.document import Check, ExplainedLabel, Figure, Queries, Report, Rule
from lapace.report.inputs import (
    ExplainedRows,
    LabelledRows,
    Recognised,
    ReportInputs,
    Split,
    split,
)
from lapace.report.thresholds import THRESHOLDS, Threshold, threshold_table

__all__ = [
    "THRESHOLDS",
    "Check",
    "ExplainedLabel",
    "ExplainedRows",
    "Figure",
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
