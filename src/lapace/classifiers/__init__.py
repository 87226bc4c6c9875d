"""Anything that predicts, as one object that is queried with cells.

`Classifier` takes the user's model, an object with `predict` or any callable on rows, and queries
it in the user's own columns and frame type. Its labels become codes into `Classifier.labels`; an
output that makes no sense (an exception, the wrong length, an unknown label) raises a
`ClassifierError` that says what the model returned.

`binned`, `from_probability` and `threshold` make classifiers of models that decide otherwise;
`on_arrays` says that a model takes a matrix, so that no frame is built.
`train` fits three scikit-learn pipelines for data sets, the command line and the tests.
`load_classifier` loads a model from a file, a module or an address; `save_classifier` writes a
scikit-learn model to a file that holds no code.
"""

from lapace.classifiers.classifier import Classifier, Prediction
from lapace.classifiers.decisions import binned, from_probability, threshold
from lapace.classifiers.loaders import load_bytes, load_classifier
from lapace.classifiers.matrices import on_arrays
from lapace.classifiers.outputs import Label
from lapace.classifiers.pipelines import TrainedKind, held_out_predictions, train
from lapace.classifiers.skops_files import save_classifier

__all__ = [
    "Classifier",
    "Label",
    "Prediction",
    "TrainedKind",
    "binned",
    "from_probability",
    "held_out_predictions",
    "load_bytes",
    "load_classifier",
    "on_arrays",
    "save_classifier",
    "threshold",
    "train",
]
