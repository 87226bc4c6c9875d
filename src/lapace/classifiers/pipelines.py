"""The three stock classifiers that data sets, the command line and the tests use."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from operator import methodcaller
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from lapace.errors import InputError, did_you_mean
from lapace.schema import Schema

__all__ = ["TrainedKind", "train"]

TrainedKind: TypeAlias = Literal["forest", "mlp", "boosting"]

_DEFAULTS: Mapping[TrainedKind, Mapping[str, Any]] = {
    "forest": {"n_estimators": 100, "max_depth": 6},
    "mlp": {"hidden_layer_sizes": (20, 20)},
    "boosting": {},
}


def train(
    kind: TrainedKind,
    schema: Schema,
    frame: Any,
    labels: Any,
    *,
    random_state: int = 0,
    **settings: Any,
) -> Any:
    """A scikit-learn pipeline fitted on a table's raw columns.

    Numbers get the training median where they are missing (and a column that says so), ordinals
    their order, categories one column each; a category never seen in training is none of them.
    Everything in it is scikit-learn's own.

    Args:
        kind: `forest`, `mlp` (on inputs scaled to 0..1) or `boosting` (histogram gradient
            boosting).
        schema: The columns.
        frame: The training rows, of the kind `schema` was inferred from.
        labels: One label per row.
        random_state: Seed of everything random.
        settings: The estimator's own settings, in scikit-learn's words.

    Examples:
        >>> import numpy as np
        >>> rows = np.random.default_rng(0).normal(size=(200, 2))
        >>> forest = train("forest", Schema.infer(rows), rows, rows[:, 0] > 0, n_estimators=10)
        >>> forest.predict(np.array([[-1.0, 0.0], [1.0, 0.0]])).tolist()
        [False, True]
    """
    if kind not in _DEFAULTS:
        raise InputError(
            f"There is no classifier '{kind}'. There are: {', '.join(get_args(TrainedKind))}."
            f"{did_you_mean(kind, _DEFAULTS)}"
        )
    if schema.template.kind == "records":
        raise InputError("A stock classifier is trained on a frame or an array, not on records.")
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.pipeline import make_pipeline

    estimator = _estimator(kind, {**_DEFAULTS[kind], "random_state": random_state, **settings})
    pipeline = make_pipeline(*_preparation(schema, scaled=kind == "mlp"), estimator)
    with warnings.catch_warnings():  # the number of epochs is a setting, reaching it no fault
        warnings.simplefilter("ignore", ConvergenceWarning)
        return pipeline.fit(frame, np.asarray(labels))


def _estimator(kind: TrainedKind, settings: Mapping[str, Any]) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.neural_network import MLPClassifier

    makers = {
        "forest": RandomForestClassifier,
        "mlp": MLPClassifier,
        "boosting": HistGradientBoostingClassifier,
    }
    return makers[kind](**settings)


def _preparation(schema: Schema, scaled: bool) -> list[Any]:
    """The steps from a user's frame to the numbers an estimator takes."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import (
        FunctionTransformer,
        MinMaxScaler,
        OneHotEncoder,
        OrdinalEncoder,
    )

    steps: list[Any] = []
    if schema.template.kind == "pyarrow":  # scikit-learn takes a gap for the last category
        steps.append(FunctionTransformer(methodcaller("to_pandas")))
    if schema.shape is not None:
        flat = methodcaller("reshape", -1, math.prod(schema.shape))
        steps.append(FunctionTransformer(flat))
    objects: list[Any] = []
    if any(dtype.startswith("string") for dtype in schema.template.dtypes):
        # The encoders know None and NaN, but not the NA of pandas' own strings.
        # In order, not by name: skops loses a methodcaller's named arguments.
        plain = methodcaller("to_numpy", "object", False, float("nan"))
        objects = [FunctionTransformer(plain)] if schema.template.kind == "pandas" else []
    numbers, ordinals, categories = _places(schema)
    orders = [list(schema.features[i].categories) for i in ordinals]
    ranks = OrdinalEncoder(
        categories=orders,
        handle_unknown="use_encoded_value",
        unknown_value=-1,
        encoded_missing_value=-1,
    )
    one_hot = OneHotEncoder(
        handle_unknown="infrequent_if_exist", max_categories=64, sparse_output=False
    )
    median = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    named: Sequence[Any] = schema.names
    if schema.template.kind == "array":
        named = range(len(schema.names))
    parts = [
        (step, [named[i] for i in places])
        for step, places in (
            (median, numbers),
            (make_pipeline(*objects, ranks), ordinals),
            (make_pipeline(*objects, one_hot), categories),
        )
        if places
    ]
    return [*steps, make_column_transformer(*parts), *([MinMaxScaler()] if scaled else [])]


def _places(schema: Schema) -> tuple[list[int], list[int], list[int]]:
    """Positions of the numbers, of the ordinals, and of the columns to be taken one-hot."""
    numbers, ordinals, categories = [], [], []
    for i, feature in enumerate(schema.features):
        words = all(isinstance(level, str) for level in feature.categories)
        if feature.kind == "continuous":
            numbers.append(i)
        elif feature.kind == "ordinal" and (
            words or list(feature.categories) == sorted(feature.categories, key=float)
        ):
            ordinals.append(i)
        else:  # scikit-learn knows no order of numbers but their own
            categories.append(i)
    return numbers, ordinals, categories
