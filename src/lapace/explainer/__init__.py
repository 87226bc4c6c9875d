"""The explainer: `fit` learns from what a classifier predicts, `explain` searches latent paths.

The data flows one way: `estimator` (what users call) → `fit` → `problem` (instances read and
labelled, constraints bound) → `search` (Algorithm 1, `starts`, then `minimal` rows, judged by the
`oracle`) → `assemble`, which makes the `Explanation`.
"""

from lapace.explainer import storage
from lapace.explainer.estimator import Explainer, NotFittedError
from lapace.explainer.fit import Prototype
from lapace.explainer.problem import ANY_OTHER, Search

__all__ = ["ANY_OTHER", "Explainer", "NotFittedError", "Prototype", "Search", "storage"]
