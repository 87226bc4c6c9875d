"""Surrogate models: they imitate a classifier, disagree near its boundary, are kept in files."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import worlds
from lapace.explainer import surrogates as module
from lapace.explainer.surrogates import Surrogates
from lapace.schema import Schema


def table(rows: int, seed: int = 0) -> Any:
    """Three numbers, one of them sometimes missing, and a category; three labels."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "a": rng.normal(size=rows).round(2),
            "b": rng.integers(0, 50, rows),
            "c": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(size=rows).round(2)),
            "d": rng.choice(["x", "y", "z"], rows),
        }
    )
    score = frame["a"] + (frame["d"] == "x") + frame["c"].isna()
    return frame, np.where(frame["b"] > 30, 2, (score > 0).astype(int))


@cache
def fitted() -> tuple[Schema, Surrogates]:
    frame, codes = table(1500)
    schema = Schema.infer(frame)
    return schema, Surrogates.fit(schema, schema.cells(frame), codes, 3, random_state=0)


def test_members_imitate_the_classifier_on_rows_they_have_not_seen():
    schema, surrogates = fitted()
    frame, codes = table(1000, seed=1)
    probability = surrogates.probability(schema, schema.cells(frame))
    assert probability.shape == (20, 1000, 3)
    np.testing.assert_allclose(probability.sum(axis=2), 1.0, atol=1e-5)
    assert probability.min() >= 0
    each = (probability.argmax(axis=2) == codes).mean(axis=1)
    assert each[:10].min() > 0.9  # the networks
    assert each[10:].min() > 0.8  # the forests
    assert (probability.mean(axis=0).argmax(axis=1) == codes).mean() > 0.93


def test_members_differ_and_disagree_most_near_the_boundary():
    schema, surrogates = fitted()
    rows = [{"a": a, "b": 10, "c": 0.0, "d": "y"} for a in (-2.0, 0.0, 2.0)]
    probability = surrogates.probability(schema, schema.cells(rows))[:, :, 1]
    spread = probability.std(axis=0)
    assert spread[1] > 2 * max(spread[0], spread[2])
    assert len(np.unique(probability[:, 1])) > 15


def test_forests_are_those_of_sklearn():
    from sklearn.ensemble import RandomForestClassifier

    schema, _ = fitted()
    frame, codes = table(400)
    x = schema.encode(schema.cells(frame)).astype(np.float32)
    samples = np.random.default_rng(0).integers(0, 400, (module.FORESTS, 400))
    parts = module._forests(x, codes, 3, samples, random_state=5)
    found = replace(fitted()[1], **dict(zip(module.TREE_PARTS, parts, strict=True)))._forests(x)
    for k in (0, 9):
        forest = RandomForestClassifier(
            module.TREES, max_depth=module.DEPTH, min_samples_leaf=2, random_state=5 + k
        ).fit(x[samples[k]], codes[samples[k]])
        np.testing.assert_allclose(found[k], forest.predict_proba(x), atol=1e-6)


def test_the_same_seed_gives_the_same_members_and_another_seed_others():
    frame, codes = table(300)
    schema = Schema.infer(frame)
    cells = schema.cells(frame)
    one, same, other = (
        Surrogates.fit(schema, cells, codes, 3, random_state=seed).probability(schema, cells)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any(axis=(1, 2)).all()


def test_rows_are_evaluated_alike_alone_and_in_batches(monkeypatch):
    schema, surrogates = fitted()
    cells = schema.cells(table(50, seed=2)[0])
    whole = surrogates.probability(schema, cells)
    monkeypatch.setattr(module, "CELLS", 1)
    np.testing.assert_allclose(surrogates.probability(schema, cells), whole, atol=1e-6)
    assert surrogates.probability(schema, cells[:0]).shape == (20, 0, 3)


def test_a_wider_schema_is_read_as_the_fitted_one():
    schema, surrogates = fitted()
    reading = schema.read([{"a": 9.0, "b": 10, "c": None, "d": "unseen"}])
    assert reading.schema["d"].levels != schema["d"].levels
    probability = surrogates.probability(reading.schema, reading.cells)
    assert np.isfinite(probability).all()


def test_of_many_rows_a_stratified_part_is_used(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 1000)
    codes = np.repeat([0, 1, 2], [90_000, 9_970, 30])
    chosen = module._stratified(codes, 3, np.random.default_rng(0))
    assert np.bincount(codes[chosen]).tolist() == [900, 100, 30]
    assert len(np.unique(chosen)) == len(chosen)


def test_a_label_no_row_has_gets_a_probability_all_the_same():
    frame, codes = table(200)
    schema = Schema.infer(frame)
    surrogates = Surrogates.fit(schema, schema.cells(frame), codes, 4, random_state=0)
    found = surrogates.probability(schema, schema.cells(frame))
    assert found.shape[2] == 4
    assert found[10:, :, 3].max() == 0.0
    assert found[:10, :, 3].mean() < 0.05


# --- kept in files -------------------------------------------------------------------------------


def test_arrays_and_back_is_the_same_ensemble():
    schema, surrogates = fitted()
    again = Surrogates.from_arrays(surrogates.arrays(), schema.width, 3)
    cells = schema.cells(table(50, seed=3)[0])
    np.testing.assert_array_equal(
        again.probability(schema, cells), surrogates.probability(schema, cells)
    )


def nan(array: Any) -> Any:
    changed = array.copy()
    changed.flat[0] = np.nan
    return changed


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("leaf", nan),
        ("weight.1", nan),
        ("weight.0", lambda a: a[:, :-1]),
        ("bias.2", lambda a: a[..., :2]),
        ("bias.2", lambda a: a.astype(np.float64)),
        ("threshold", lambda a: a[:3]),
        ("feature", lambda a: a + 1000),
        ("feature", lambda a: a - 1),
        ("feature", lambda a: a.astype(np.float32)),
        ("other", None),
        ("leaf", None),
    ],
)
def test_arrays_of_another_shape_or_with_nan_are_refused(name, change):
    schema, surrogates = fitted()
    arrays = surrogates.arrays()
    if change is not None:
        arrays[name] = change(arrays[name])
    elif name in arrays:
        del arrays[name]
    else:
        arrays[name] = arrays["leaf"]
    with pytest.raises(ValueError, match="do not fit the columns"):
        Surrogates.from_arrays(arrays, schema.width, 3)


def test_explainers_of_tables_have_surrogates_and_others_none():
    assert worlds.bank().explainer.fitted_.surrogates is not None
    assert worlds.paper().explainer.fitted_.surrogates is None
    assert worlds.digits().explainer.fitted_.surrogates is None


# --- survival ------------------------------------------------------------------------------------


def estimates(world: Any) -> tuple[Any, Any, Any]:
    """Survival of a world's instances as they are labelled, and their probabilities."""
    explainer = world.explainer
    fitted, reading = explainer.fitted_, explainer.schema_.read(world.instances)
    found = explainer.classifier_.query(reading.cells, reading.schema)
    probability = np.full(len(found.codes), np.nan)
    if found.probability is not None:
        probability = found.probability[np.arange(len(found.codes)), found.codes]
    arguments = (reading.schema, reading.cells, found.codes, probability)
    return fitted.survival(*arguments), fitted.has_margin(*arguments), probability


@pytest.mark.parametrize("world", [worlds.bank, worlds.seasons, worlds.shop])
def test_survival_is_a_chance_inside_its_interval(world):
    (estimate, low, high), _, _ = estimates(world())
    assert (low >= 0).all()
    assert (high <= 1).all()
    assert (low <= estimate).all()
    assert (estimate <= high).all()


def test_surer_rows_survive_sooner():
    (estimate, _, _), _, probability = estimates(worlds.bank())
    edge = probability < 0.8
    assert edge.any()
    assert estimate[edge].mean() + 0.1 < estimate[probability > 0.99].mean()


def test_without_surrogates_survival_is_unknown_and_the_margin_is_the_probability():
    (estimate, low, high), margin, probability = estimates(worlds.paper())
    assert np.isnan([estimate, low, high]).all()
    known = ~np.isnan(probability)
    fitted = worlds.paper().explainer.fitted_
    np.testing.assert_array_equal(margin[known], probability[known] >= fitted.margin)
    assert margin[~known].all()


def test_without_probabilities_the_margin_is_the_surrogates_agreement():
    (estimate, _, _), margin, probability = estimates(worlds.seasons())
    assert np.isnan(probability).all()
    assert 0 < margin.sum() < len(margin)
    assert estimate[margin].min() > estimate[~margin].max()
