"""The fit report: checks of the counterfactuals of held-out rows, and whether to trust them.

`split` chooses the rows of a report before anything is trained. `collect.make_report` explains
held-out rows and measures what comes back with the functions of `compute`. A `Report` prints as
text, JSON and HTML. All verdicts come from one table, `THRESHOLDS`.

A value measured on a sample has an interval. A check passes or fails where the whole interval does,
and is unsure where the limit lies inside it. A value that could not be measured is None, with a
reason.
"""

from __future__ import annotations

from lapace.report.checks import THRESHOLDS, Check, Threshold
from lapace.report.compute import Split, split
from lapace.report.document import ExplainedLabel, Report, Rule

__all__ = [
    "THRESHOLDS",
    "Check",
    "ExplainedLabel",
    "Report",
    "Rule",
    "Split",
    "Threshold",
    "split",
]
