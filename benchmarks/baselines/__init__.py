"""Methods of the literature to compare with: small, batched, for any classifier and mixed columns.

Every method is used alike:

    method = NNCE(classifier, schema=None, random_state=0).fit(X_train)
    found = method.counterfactuals(X, target="approved", constraints=["fixed age"])

The result is a `Counterfactuals`: rows in the table's columns, on the schema's lattice. The
classifier was queried about every row exactly as it is returned and predicts the target; every
constraint holds; no row is the instance itself. `found.reasons` says why an instance has no row.

| method | idea | rows per instance |
|---|---|---|
| `NNCE` | the nearest training row labelled as the target | 1 |
| `FACE` | the end of the cheapest path through training rows in dense regions | 1 |
| `RobXCE` | the nearest row moved towards stable rows until it is stable itself | 1 |
| `RobXRows` | the nearest training row that is stable | 1 |
| `CCHVAE` | the first decoded points of growing latent spheres around the instance | 1 |
| `PPCEF` | gradient descent to a valid row where a normalizing flow is dense | 1 |
| `DiCoFlex` | draws from a flow conditional on the instance | up to 5 |
| `DRCE` | near, diverse rows moved towards the instance by binary search | up to 5 |
| `DiCE` | the `dice-ml` package: random or genetic search for a diverse set | up to 5 |
"""

from __future__ import annotations

from benchmarks.baselines.cchvae import CCHVAE
from benchmarks.baselines.dice import DiCE
from benchmarks.baselines.dicoflex import DiCoFlex
from benchmarks.baselines.face import FACE
from benchmarks.baselines.nearest import DRCE, NNCE, RobXCE, RobXRows
from benchmarks.baselines.ppcef import PPCEF

__all__ = [
    "CCHVAE",
    "DRCE",
    "FACE",
    "NNCE",
    "PPCEF",
    "DiCE",
    "DiCoFlex",
    "RobXCE",
    "RobXRows",
]
