"""Anything that predicts, as one object that is queried with cells.

`Classifier` takes the user's model, an object with `predict` or any callable on rows, and queries
it in the user's own columns and frame type. Its labels become codes into `Classifier.labels`; an
output that makes no sense (an exception, the wrong length, an unknown label) raises a
`ClassifierError` that says what the model returned.

`binned`, `from_probability` and `threshold` make classifiers of models that decide otherwise.
`train` fits three scikit-learn pipelines for data sets, the command line and the tests.
`load_classifier` loads a model from a file, a module or an address; `save_classifier` writes a
scikit-learn model to a file that holds no code.
"""

from lapace.classifiers.classifier import Classifier, Prediction
from lapace.classifiers.decisions import binned, from_probability, threshold
from lapace.classifiers.loaders import load_bytes, load_classifier
from lapace.classifiers.outputs import Label
from lapace.classifiers.pipelines import TrainedKind, held_out_accuracy, train
from lapace.classifiers.skops_files import save_classifier

__all__ = [
    "Classifier",
    "Label",
    "Prediction",
    "TrainedKind",
    "binned",
    "from_probability",
    "held_out_accuracy",
    "load_bytes",
    "load_classifier",
    "save_classifier",
    "threshold",
    "train",
]
