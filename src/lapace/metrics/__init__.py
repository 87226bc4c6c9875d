"""How good are the answers? Pure functions on cells and on `Counterfactuals`.

Only `evaluate`, `votes` and `Reference` also take the user's own models and tables. Every distance
is `Schema.distance`, unweighted, neighbours included: |difference| / range for numbers, 1 for a
category change, 1 for missing against present.

A share or mean over nothing (no answers, nobody tried, one answer where a pair is needed) is NaN:
never 0, never a warning. Shares run from 0 to 1.

| question | functions |
|---|---|
| did it work | `validity`, `satisfaction`, `recrossing` |
| how far is it | `proximity`, `sparsity`, `number_share` |
| is it plausible | `Plausibility` (LOF, isolation forest, k-NN distance), `density` |
| is there a choice | `diversity`, `spread` |
| does it last | `votes`, `model_robustness`, `perturb`, `input_robustness` |
| is the generator good | `utility`, `detection`, `ks`, `agreement` |
| is anybody exposed | `privacy` |
| what did it cost | `spending` |
| all that apply | `evaluate`, `Reference` |
"""

from __future__ import annotations

from lapace.metrics.answers import (
    Share,
    diversity,
    number_share,
    proximity,
    recrossing,
    satisfaction,
    sparsity,
    spread,
    validity,
)
from lapace.metrics.evaluation import Reference, Spent, evaluate, spending, votes
from lapace.metrics.generator import (
    Agreement,
    Privacy,
    Utility,
    agreement,
    detection,
    ks,
    privacy,
    utility,
)
from lapace.metrics.plausibility import Plausibility, Typical, density, typical
from lapace.metrics.robustness import (
    InputRobustness,
    ModelRobustness,
    input_robustness,
    model_robustness,
    perturb,
)
from lapace.metrics.space import distances, distinct, nearest

__all__ = [
    "Agreement",
    "InputRobustness",
    "ModelRobustness",
    "Plausibility",
    "Privacy",
    "Reference",
    "Share",
    "Spent",
    "Typical",
    "Utility",
    "agreement",
    "density",
    "detection",
    "distances",
    "distinct",
    "diversity",
    "evaluate",
    "input_robustness",
    "ks",
    "model_robustness",
    "nearest",
    "number_share",
    "perturb",
    "privacy",
    "proximity",
    "recrossing",
    "satisfaction",
    "sparsity",
    "spending",
    "spread",
    "typical",
    "utility",
    "validity",
    "votes",
]
