"""The one place where the core calls the outer rings: their names load when they are first used.

`fit` ends with a report and an estimate of survival, `save` and `load` keep both and follow the
reference to a classifier's file, and `why_not` asks for the smallest relaxation. No other module of
the core imports analysis or apps.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lapace.apps.loaders import open_referred, refer_to
    from lapace.relations import LearnedRule, learn_rules, warn_of_differences, warn_of_leaks
    from lapace.report import Report, split
    from lapace.report.collect import make_report
    from lapace.survival import Retrain, Survival, retrained_classifiers
    from lapace.why_not import with_why_not

__all__ = [
    "LearnedRule",
    "Report",
    "Retrain",
    "Survival",
    "learn_rules",
    "make_report",
    "open_referred",
    "refer_to",
    "retrained_classifiers",
    "split",
    "warn_of_differences",
    "warn_of_leaks",
    "with_why_not",
]

# The module each name is defined in.
_HOMES = {
    "LearnedRule": "lapace.relations",
    "Report": "lapace.report",
    "Retrain": "lapace.survival",
    "Survival": "lapace.survival",
    "learn_rules": "lapace.relations",
    "make_report": "lapace.report.collect",
    "open_referred": "lapace.apps.loaders",
    "refer_to": "lapace.apps.loaders",
    "retrained_classifiers": "lapace.survival",
    "split": "lapace.report",
    "warn_of_differences": "lapace.relations",
    "warn_of_leaks": "lapace.relations",
    "with_why_not": "lapace.why_not",
}


def __getattr__(name: str) -> object:
    """Loads a name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
