"""What an explanation is: plain frozen data, and picks that only select.

`Explanation` holds every step of every path as arrays; `first`, `middle`, `last`, `nearest`,
`sparse` and `at` choose rows among them and return `Counterfactuals`. Nothing here asks the
classifier, needs the model, or computes anything that `explain` has not already decided.
"""

from lapace.result.absence import Move, WhyNot
from lapace.result.explanation import STATUSES, Explanation, InstanceExplanation
from lapace.result.published import json_schema, why_not_to_json
from lapace.result.rows import Counterfactuals, record

__all__ = [
    "STATUSES",
    "Counterfactuals",
    "Explanation",
    "InstanceExplanation",
    "Move",
    "WhyNot",
    "json_schema",
    "record",
    "why_not_to_json",
]
