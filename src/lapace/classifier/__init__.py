"""Anything that predicts, as one object that is queried with cells and counts them.

`Classifier` takes the user's model, an object with `predict` or any callable on rows, and queries
it in the user's own columns and frame type. Its labels become codes into `Classifier.labels`; an
output that makes no sense (an exception, the wrong length, an unknown label) raises a
`ClassifierError` that says what the model returned.

`binned` makes a classifier of a regressor, `from_probability` one of a model that predicts a
probability, `threshold` one that decides by another threshold than 0.5. `Reference` is how a saved
explainer names its classifier.
"""

from lapace.classifier.decisions import binned, from_probability, threshold
from lapace.classifier.outputs import Label
from lapace.classifier.queries import Classifier, Prediction, query_rows
from lapace.classifier.references import Reference

__all__ = [
    "Classifier",
    "Label",
    "Prediction",
    "Reference",
    "binned",
    "from_probability",
    "query_rows",
    "threshold",
]
