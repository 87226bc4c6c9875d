"""Metrics of counterfactuals: pure functions on cells and `Counterfactuals`.

Only `evaluate` and `votes` also take the user's models and tables. Every
distance is `Schema.distance`, unweighted: a number's change counts the share of the training rows
that it passes (0.16 is a change past 16% of them), a category change 1, missing against present 1.
Only `range_distance` of `evaluate` takes a number's change over its range, as the paper does.

A share or mean over nothing (no counterfactuals, no instance tried, one row where a pair is
needed) is NaN: never 0, never a warning. Shares run from 0 to 1.
"""

from __future__ import annotations

from lapace.metrics.evaluation import evaluate, votes
from lapace.metrics.measures import (
    Plausibility,
    distinct_rows,
    diversity,
    mean,
    median,
    proximity,
    satisfaction,
    sparsity,
    validity,
)
from lapace.schema.distance import kneighbors

__all__ = [
    "Plausibility",
    "distinct_rows",
    "diversity",
    "evaluate",
    "kneighbors",
    "mean",
    "median",
    "proximity",
    "satisfaction",
    "sparsity",
    "validity",
    "votes",
]
