"""Counterfactual explanations as picks from a latent path, for any classifier on tables.

The public names below load when they are first used, so `import lapace` is instant and brings in
neither torch nor a dataframe library nor matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lapace import classifier, constraints, datasets, metrics, plots
    from lapace.apps import batch, cohorts, letters, loaders
    from lapace.errors import CentroidWarning, ClassifierError, InputError, LapaceError
    from lapace.explainer import Explainer, NotFittedError, Search
    from lapace.result import Counterfactuals, Explanation, WhyNot
    from lapace.schema import Feature, Schema

__version__ = "0.2.0"

__all__ = [
    "CentroidWarning",
    "ClassifierError",
    "Counterfactuals",
    "Explainer",
    "Explanation",
    "Feature",
    "InputError",
    "LapaceError",
    "NotFittedError",
    "Schema",
    "Search",
    "WhyNot",
    "__version__",
    "batch",
    "classifier",
    "cohorts",
    "constraints",
    "datasets",
    "letters",
    "loaders",
    "metrics",
    "plots",
]

# The module each name is, or is defined in.
_HOMES = {
    **dict.fromkeys(("CentroidWarning", "ClassifierError", "InputError", "LapaceError"), "errors"),
    **dict.fromkeys(("Explainer", "NotFittedError", "Search"), "explainer"),
    **dict.fromkeys(("Counterfactuals", "Explanation", "WhyNot"), "result"),
    **dict.fromkeys(("Feature", "Schema"), "schema"),
    **{name: name for name in ("classifier", "constraints", "datasets", "metrics", "plots")},
    **{name: f"apps.{name}" for name in ("batch", "cohorts", "letters", "loaders")},
}


def __getattr__(name: str) -> object:
    """Loads a public name when it is first used, and keeps it."""
    if name not in _HOMES:
        from lapace.errors import did_you_mean

        hint = did_you_mean(name, __all__)
        raise AttributeError(f"module 'lapace' has no attribute '{name}'.{hint}", name=name)
    home = import_module(f"lapace.{_HOMES[name]}")
    value: object = home if name == _HOMES[name].split(".")[-1] else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return __all__
