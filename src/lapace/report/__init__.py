"""The fit report: what was learned, what to distrust, and whether it passes.

`split` says which rows a report needs before anything is trained, `make_report` turns plain arrays
(`ReportInputs`) into a `Report`, and a `Report` prints as text, JSON and HTML. All verdicts come
from one table, `THRESHOLDS`.

A number that a sample may have got wrong carries its margin (the standard error) and is judged
after the margin has been allowed in its favour, so that few rows alone do not fail a fit. What
could not be measured is None, with a reason.
"""

from __future__ import annotations

from lapace.report.compute import make_report
from lapace.report.document import Check, Queries, Report, Rule
from lapace.report.inputs import LabelledRows, ReportInputs, Split, split
from lapace.report.thresholds import THRESHOLDS, Threshold, threshold_table

__all__ = [
    "THRESHOLDS",
    "Check",
    "LabelledRows",
    "Queries",
    "Report",
    "ReportInputs",
    "Rule",
    "Split",
    "Threshold",
    "make_report",
    "split",
    "threshold_table",
]
