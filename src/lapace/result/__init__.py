"""What an explanation is: plain frozen data, and picks that only select.

`Explanation` holds every step of every path as arrays; `first`, `middle`, `last`, `nearest`,
`sparse` and `at` choose rows among them and return `Counterfactuals`. Nothing here queries the
classifier, needs the model, or computes anything that `explain` has not already decided.
"""

from lapace.result.counterfactuals import Counterfactuals, record
from lapace.result.explanation import ANY_OTHER, STATUSES, Explanation, InstanceExplanation
from lapace.result.serialization import json_schema, why_not_to_json
from lapace.result.why_not import Move, WhyNot

__all__ = [
    "ANY_OTHER",
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
