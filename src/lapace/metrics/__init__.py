"""Metrics of counterfactuals and of sampled rows: pure functions on cells and `Counterfactuals`.

Only `evaluate`, `votes` and `Reference` also take the user's models and tables. Every distance
is `Schema.distance`, unweighted, neighbours included: for numbers the share of the training rows
that a change passes (0.16 is a change past 16 % of them), 1 for a category change, 1 for missing
against present. Only `range_proximity` takes a number's change over its range, as the paper does.

A share or mean over nothing (no counterfactuals, no instance tried, one row where a pair is
needed) is NaN: never 0, never a warning. Shares run from 0 to 1.

| what is measured | functions |
|---|---|
| validity | `validity`, `satisfaction`, `recrossing` |
| distance and sparsity | `proximity`, `range_proximity`, `sparsity`, `number_share` |
| plausibility | `Plausibility` (LOF, isolation forest, k-NN distance) |
| diversity | `diversity`, `spread` |
| robustness | `votes`, `model_robustness`, `perturb`, `input_robustness` |
| sampled rows | `utility`, `detection`, `ks`, `agreement` |
| privacy | `privacy` |
| all that apply | `evaluate`, `Reference` |
| tools | `kneighbors`, `distinct_rows`, `mean`, `median` |
"""

from __future__ import annotations

from lapace.metrics.evaluation import Reference, evaluate
from lapace.metrics.neighbours import distinct_rows, kneighbors, mean, median
from lapace.metrics.quality import (
    Plausibility,
    diversity,
    number_share,
    proximity,
    range_proximity,
    recrossing,
    satisfaction,
    sparsity,
    spread,
    validity,
)
from lapace.metrics.robustness import input_robustness, model_robustness, perturb, votes
from lapace.metrics.synthetic import agreement, detection, ks, privacy, utility

__all__ = [
    "Plausibility",
    "Reference",
    "agreement",
    "detection",
    "distinct_rows",
    "diversity",
    "evaluate",
    "input_robustness",
    "kneighbors",
    "ks",
    "mean",
    "median",
    "model_robustness",
    "number_share",
    "perturb",
    "privacy",
    "proximity",
    "range_proximity",
    "recrossing",
    "satisfaction",
    "sparsity",
    "spread",
    "utility",
    "validity",
    "votes",
]
