"""What an explanation is: plain frozen data, and picks that only select.

`Explanation` holds every step of every path as arrays; `first`, `middle`, `last`, `nearest`,
`sparse` and `at` choose rows among them and return `Counterfactuals`. Nothing here asks the
classifier, needs the model, or computes anything that `explain` has not already decided.
"""

from lapace.result.absence import Move, WhyNot
from lapace.result.explanation import STATUSES, Explanation, Person
from lapace.result.published import json_schema
from lapace.result.rows import Counterfactuals, record

__all__ = [
    "STATUSES",
    "Counterfactuals",
    "Explanation",
    "Move",
    "Person",
    "WhyNot",
    "json_schema",
    "record",
]
