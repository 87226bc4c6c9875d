"""Three scikit-learn pipelines for data sets, the command line and the tests."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from lapace.arrays import Ints
from lapace.errors import InputError, did_you_mean
from lapace.schema import Feature, Schema

TrainedKind: TypeAlias = Literal["forest", "mlp", "boosting"]


def train(
    kind: TrainedKind,
    schema: Schema,
    frame: Any,
    labels: Any,
    *,
    random_state: int = 0,
    **settings: Any,
) -> Any:
    """Returns a scikit-learn pipeline fitted on a table's raw columns.

    Missing numbers become the training median (with an indicator column), ordinals their rank,
    categories one column each; a category unseen in training is none of them. The pipeline consists
    of scikit-learn's classes only.

    Args:
        kind: `forest`, `mlp` (on inputs scaled to 0..1) or `boosting` (histogram gradient
            boosting).
        schema: The columns.
        frame: The training rows, of the type `schema` was inferred from.
        labels: One label per row.
        random_state: Seed of the estimator.
        settings: The estimator's parameters, in scikit-learn's words.

    Examples:
        >>> import numpy as np
        >>> rows = np.random.default_rng(0).normal(size=(200, 2))
        >>> forest = train("forest", Schema.infer(rows), rows, rows[:, 0] > 0, n_estimators=10)
        >>> forest.predict(np.array([[-1.0, 0.0], [1.0, 0.0]])).tolist()
        [False, True]
    """
    kinds = get_args(TrainedKind)
    if kind not in kinds:
        raise InputError(
            f"There is no classifier '{kind}'. There are: {', '.join(kinds)}."
            f"{did_you_mean(kind, kinds)}"
        )
    if schema.template.kind == "records":
        raise InputError("A pipeline is trained on a frame or an array, not on records.")
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler

    last: dict[str, tuple[Any, ...]] = {
        "forest": (RandomForestClassifier(max_depth=6),),
        "mlp": (MinMaxScaler(), MLPClassifier((20, 20))),
        "boosting": (HistGradientBoostingClassifier(),),
    }
    last[kind][-1].set_params(random_state=random_state, **settings)
    pipeline = make_pipeline(*_encoding(schema), *last[kind])
    with warnings.catch_warnings():  # the number of epochs is a setting; reaching it is fine
        warnings.simplefilter("ignore", ConvergenceWarning)
        return pipeline.fit(frame, np.asarray(labels))


def held_out_predictions(
    fit: Callable[[Any, Any], Any],
    frame: Callable[[Ints], Any],
    labels: Sequence[Any],
    *,
    random_state: int = 0,
) -> tuple[list[Any], list[Any]]:
    """Fits a classifier on four fifths of the rows; returns true and predicted labels of the rest.

    Args:
        fit: Fits a classifier on rows and labels.
        frame: The rows at some positions.
        labels: One label per row.
        random_state: Seed of the choice.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(500, 2))
        >>> labels = (rows[:, 0] > 0).tolist()
        >>> fit = lambda part, truth: train("forest", Schema.infer(rows), part, truth)
        >>> true, predicted = held_out_predictions(fit, lambda some: rows[some], labels)
        >>> bool(np.mean(np.equal(true, predicted)) > 0.9)
        True
    """
    order = np.random.default_rng(random_state).permutation(len(labels))
    held_out, rest = np.split(order, [max(1, len(order) // 5)])
    model = fit(frame(rest), [labels[i] for i in rest])
    predicted = np.asarray(model.predict(frame(held_out))).tolist()
    return [labels[i] for i in held_out], predicted


def _encoding(schema: Schema) -> list[Any]:
    """Returns the steps from a user's frame to the numbers an estimator takes."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder

    template, features = schema.template, schema.features
    steps: list[Any] = []
    if template.kind == "pyarrow":  # scikit-learn takes a missing cell for the last category
        steps.append(FunctionTransformer(methodcaller("to_pandas")))
    if schema.shape is not None:
        steps.append(FunctionTransformer(methodcaller("reshape", -1, math.prod(schema.shape))))
    objects: list[Any] = []
    if template.kind == "pandas" and any(dtype.startswith("string") for dtype in template.dtypes):
        # The encoders know None and NaN, but not the NA of pandas' string columns.
        # By position: skops loses a methodcaller's keyword arguments.
        plain = methodcaller("to_numpy", "object", False, float("nan"))
        objects = [FunctionTransformer(plain)]
    numbers = [i for i, f in enumerate(features) if f.kind == "continuous"]
    ordinals = [i for i, f in enumerate(features) if _is_ranked(f)]
    categories = [i for i in range(len(features)) if i not in {*numbers, *ordinals}]
    median = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    ranks = OrdinalEncoder(
        categories=[list(features[i].categories) for i in ordinals],
        handle_unknown="use_encoded_value",
        unknown_value=-1,
        encoded_missing_value=-1,
    )
    one_hot = OneHotEncoder(
        handle_unknown="infrequent_if_exist", max_categories=64, sparse_output=False
    )
    columns: Sequence[Any] = range(len(features)) if template.kind == "array" else schema.names
    parts = [
        (step, [columns[i] for i in positions])
        for step, positions in (
            (median, numbers),
            (make_pipeline(*objects, ranks), ordinals),
            (make_pipeline(*objects, one_hot), categories),
        )
        if positions
    ]
    return [*steps, make_column_transformer(*parts)]


def _is_ranked(feature: Feature) -> bool:
    """Whether scikit-learn can encode the order: it knows no order of numbers but their own."""
    levels = list(feature.categories)
    texts = all(isinstance(level, str) for level in levels)
    return feature.kind == "ordinal" and (texts or levels == sorted(levels, key=float))
