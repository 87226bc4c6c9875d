"""Explanations: plain frozen data, and picks that only select.

`Explanation` holds every step of every path as arrays, and the minimal rows of `nearest` and
`best`; `first`, `middle`, `last` and `at` choose among the steps. All return `Counterfactuals`.
Nothing here queries the classifier, needs the model, or computes anything that `explain` has not
already decided.
"""

from lapace.result.counterfactuals import Counterfactuals, record
from lapace.result.document import json_schema, why_not_to_json
from lapace.result.explanation import (
    ANY_OTHER,
    PICKS,
    STATUSES,
    Explanation,
    InstanceExplanation,
    describe_statuses,
)
from lapace.result.why_not import Move, WhyNot

__all__ = [
    "ANY_OTHER",
    "PICKS",
    "STATUSES",
    "Counterfactuals",
    "Explanation",
    "InstanceExplanation",
    "Move",
    "WhyNot",
    "describe_statuses",
    "json_schema",
    "record",
    "why_not_to_json",
]
