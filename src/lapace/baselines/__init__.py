"""Other instances's methods, to compare with: small, batched, for any classifier and mixed columns.

Every method is used alike:

    method = NNCE(classifier, schema=None, seed=0).fit(train)
    answers = method.counterfactuals(instances, target="approved")

The answers are `Counterfactuals`: rows in the table's own columns, on the lattice of the schema,
every one asked about exactly as it is returned and labelled as wanted, never the instance's own row.
Whoever has no answer has no row: `unanswered(answers)` names them, `method.find(...)` also says
why.

| method | idea | answers |
|---|---|---|
| `NNCE` | the nearest training row labelled as wanted | 1 |
| `FACE` | the end of the cheapest walk through training rows where rows are dense | 1 |
| `RobXCE` | that nearest row moved towards stable rows until it is stable itself | 1 |
| `CCHVAE` | the first decoded points of growing latent spheres around the instance | 1 |
| `DRCE` | near, diverse rows moved towards the instance by binary search | up to 5 |
| `DiCE` | the `dice-ml` package: random or genetic search for a diverse set | up to 5 |
"""

from __future__ import annotations

from lapace.baselines.cchvae import CCHVAE
from lapace.baselines.dice import DiCE
from lapace.baselines.face import FACE, face_greedy, face_interpolate
from lapace.baselines.ground import Found, unanswered
from lapace.baselines.nearest import DRCE, NNCE
from lapace.baselines.robx import RobXCE

__all__ = [
    "CCHVAE",
    "DRCE",
    "FACE",
    "NNCE",
    "DiCE",
    "Found",
    "RobXCE",
    "face_greedy",
    "face_interpolate",
    "unanswered",
]
