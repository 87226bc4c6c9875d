"""All metrics that apply to counterfactuals, in one call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lapace.arrays import Bools, Floats, Ints
from lapace.classifier import Classifier
from lapace.metrics import measures
from lapace.metrics.measures import Plausibility, mean, median
from lapace.result import Counterfactuals
from lapace.schema import Schema
from lapace.schema.distance import kneighbors


def evaluate(
    counterfactuals: Counterfactuals,
    *,
    classifier: Any,
    reference: Any,
    tried: ArrayLike | None = None,
    retrained: Sequence[Any] = (),
) -> dict[str, float]:
    """Returns all metrics that apply, by name.

    `validity` and `satisfaction` are of all counterfactuals, everything else of those that are ok.
    Plausibility is measured among the reference rows that have the counterfactual's label, which
    for an ok one is the target; targets may differ between instances.

    | always | |
    |---|---|
    | `validity`, `valid_counterfactuals` | share of instances with a valid one, of all rows |
    | `satisfaction`, `feasible_counterfactuals` | instances with an ok one, rows feasible |
    | `distance`, `changed` | mean distance in percentiles, mean number of features changed |
    | `range_distance` | mean distance with numbers' changes over their ranges, as in the paper |
    | `lof`, `lof_median` | local outlier factor, 20 neighbours |
    | `density`, `density_median` | share of the label's rows that are less dense; or NaN |
    | `diversity` | NaN where each instance has one counterfactual |
    | `training_distance`, `copies` | median distance to the nearest reference row, share at 0 |
    | **with** `retrained` | `model_robustness`, the mean of `votes` |

    Args:
        counterfactuals: The rows of a pick or of another method.
        classifier: The user's model, or a wrapped one (whose query count does not change).
        reference: The training table. The classifier is queried about each of its rows.
        tried: Positions of the instances tried, as in `validity`.
        retrained: Models trained again.

    Examples:
        >>> rows = np.linspace(0.0, 2.5, 11)[:, None]
        >>> schema, instance, valid = Schema.infer(rows), np.array([0]), np.array([True])
        >>> found = Counterfactuals.of(schema, rows[:1], rows[[5]], instance, valid=valid)
        >>> values = evaluate(found, classifier=lambda rows: rows[:, 0] > 1, reference=rows)
        >>> values["validity"], round(values["distance"], 3), values["range_distance"]
        (1.0, 0.455, 0.5)
    """
    reading = counterfactuals.schema.read(reference).checked()
    train = reading.cells
    counterfactuals = replace(counterfactuals, schema=reading.schema)  # with the table's own levels
    ok = counterfactuals.where(counterfactuals.ok)
    labels = classifier.labels if isinstance(classifier, Classifier) else ()
    model = classifier.model if isinstance(classifier, Classifier) else classifier
    asked = Classifier(model, reading.schema, labels)
    codes = asked.predict(train) if labels else asked.fit_labels(train)
    values = _quality(counterfactuals, ok, tried) | _plausibility(ok, asked, train, codes)
    if retrained:
        values["model_robustness"] = mean(votes(ok, asked, retrained))
    return values


def _quality(
    rows: Counterfactuals, ok: Counterfactuals, tried: ArrayLike | None
) -> dict[str, float]:
    valid, feasible = measures.validity(rows, tried), measures.satisfaction(rows, tried=tried)
    originals = ok.instances[ok.instance]
    return {
        "validity": valid.instances,
        "valid_counterfactuals": valid.counterfactuals,
        "satisfaction": feasible.instances,
        "feasible_counterfactuals": feasible.counterfactuals,
        "distance": measures.proximity(ok),
        "range_distance": mean(ok.schema.by_range().distance(originals, ok.cells)),
        "changed": measures.sparsity(ok),
        "density": mean(ok.density),
        "density_median": median(ok.density),
        "diversity": measures.diversity(ok),
    }


def _plausibility(
    ok: Counterfactuals, classifier: Classifier, train: Floats, train_codes: Ints
) -> dict[str, float]:
    codes = classifier.predict(ok.cells, ok.schema)
    lof = np.full(len(ok), math.nan)
    for code in np.unique(codes):
        among = Plausibility(ok.schema, train[train_codes == code])
        lof[codes == code] = among.lof(ok.cells[codes == code])
    to_training = kneighbors(ok.schema, ok.cells, train)[0].ravel()
    return {
        "lof": mean(lof),
        "lof_median": median(lof),
        "training_distance": median(to_training),
        "copies": mean(to_training == 0),
    }


def votes(
    counterfactuals: Counterfactuals, classifier: Classifier, retrained: Sequence[Any]
) -> Bools:
    """Returns whether each retrained classifier gives each counterfactual its present label.

    Args:
        counterfactuals: Counterfactuals, of which valid ones have the target as their label.
        classifier: The classifier they were made for, its labels known.
        retrained: Models of the same kind of rows.

    Returns:
        Flags, (models, counterfactuals).

    Examples:
        >>> rows = np.linspace(0.0, 2.5, 11)[:, None]
        >>> schema, instance, valid = Schema.infer(rows), np.array([0, 0]), np.array([True, True])
        >>> found = Counterfactuals.of(schema, rows[:1], rows[[5, 9]], instance, valid=valid)
        >>> classifier = Classifier(lambda rows: rows[:, 0] > 1, schema, labels=(False, True))
        >>> votes(found, classifier, [lambda rows: rows[:, 0] > 2])
        array([[False,  True]])
    """
    schema, cells = counterfactuals.schema, counterfactuals.cells
    agree = np.zeros((len(retrained), len(cells)), dtype=bool)
    if not agree.size:
        return agree
    expected = _labels(classifier, cells, schema)
    for row, model in zip(agree, retrained, strict=True):
        # A model trained on other rows may know labels the first never gave.
        known = (*classifier.labels, *np.asarray(getattr(model, "classes_", ())).tolist())
        row[:] = _labels(Classifier(model, schema, known), cells, schema) == expected
    return agree


def _labels(classifier: Classifier, cells: Floats, schema: Schema) -> NDArray[Any]:
    return np.array(classifier.labels, dtype=object)[classifier.predict(cells, schema)]
