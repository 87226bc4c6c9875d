"""The explainer: `fit` learns from what a classifier predicts, `explain` searches latent paths.

The data flows one way: `estimator` (what users call) → `fit` → `problem` (instances read and
labelled, constraints bound) → `endpoints` → `search` with its `oracle` → an `Explanation`.
"""

from lapace.explainer.estimator import Explainer
from lapace.explainer.fit import Prototype
from lapace.explainer.problem import Search
from lapace.instances import ANY_OTHER

__all__ = ["ANY_OTHER", "Explainer", "Prototype", "Search"]
