"""Survival: the ensemble, the estimates, the margin, and classifiers that really are retrained."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.neural_network import MLPClassifier

from lapace import Explainer, InputError
from lapace import survival as module
from lapace.classifier import Classifier
from lapace.errors import ClassifierError
from lapace.schema import Schema
from lapace.survival import (
    AIM,
    LEVELS,
    LIKELY,
    Survival,
    retrained_classifiers,
    shipped,
)
from tests import worlds


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


def model_of(frame: Any, codes: Any, n_labels: int = 3, seed: int = 0) -> Any:
    """A schema, and a model of a classifier without probabilities; the last 100 rows scale it."""
    schema, unknown = Schema.infer(frame), Survival.unknown(tuple(range(n_labels)))
    train, held_out = np.split(np.arange(len(codes)), [-100])
    parts = (schema.cells(frame), codes, train, held_out)
    return schema, unknown.fit(schema, *parts, random_state=seed)


@cache
def fitted() -> tuple[Schema, Survival]:
    return model_of(*table(1500))


# --- the ensemble --------------------------------------------------------------------------------


@pytest.mark.parametrize("n_labels", [2, 3])
def test_networks_are_those_of_sklearn(monkeypatch, n_labels):
    made: list[MLPClassifier] = []

    def noted(*args: Any, **settings: Any) -> MLPClassifier:
        made.append(MLPClassifier(*args, **settings))
        return made[-1]

    monkeypatch.setattr(module, "MLPClassifier", noted)
    frame, codes = table(400)
    codes = np.minimum(codes, n_labels - 1)
    schema, model = model_of(frame, codes, n_labels)
    cells = schema.cells(frame)
    x = schema.encode(cells).astype(np.float32)
    expected = np.mean([network.predict_proba(x) for network in made], axis=0)
    assert len(made) == module.MEMBERS
    own = np.maximum(expected[np.arange(400), codes], 1e-4)
    expected[np.arange(400), codes] = 0
    odds = np.log(own / np.maximum(expected.max(axis=1), 1e-4))  # against the next label
    signals = model.signals(schema, cells, codes, np.full(400, np.nan))
    np.testing.assert_allclose(signals[:, 1] * model.scale[1], odds, atol=1e-3)
    assert np.isnan(signals[:, 0]).all()


def test_a_wider_schema_is_read_as_the_fitted_one():
    schema, model = fitted()
    reading = schema.read([{"a": 9.0, "b": 10, "c": None, "d": "unseen"}])
    assert reading.schema["d"].levels != schema["d"].levels
    one, unknown = np.ones(1, dtype=int), np.full(1, np.nan)
    assert np.isfinite(model.estimate(reading.schema, reading.cells, one, unknown)).all()
    none = (reading.cells[:0], one[:0], unknown[:0])
    assert np.shape(model.estimate(schema, *none)) == (3, 0)


def test_a_bootstrap_sample_has_every_label(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 1000)
    codes = np.repeat([0, 1, 2], [90_000, 9_970, 30])
    rows = module._bootstrap(codes, np.random.RandomState(0))
    assert np.bincount(codes[rows]).tolist() == [900, 100, 30]
    assert len(np.unique(rows)) < len(rows)


# --- survival ------------------------------------------------------------------------------------


def noisy(rows: int, seed: int) -> tuple[Any, Any, Any]:
    """Two numbers; the true label, which a fifth of the rows near the boundary contradict."""
    rng = np.random.default_rng(seed)
    cells = rng.normal(size=(rows, 2)).round(3)
    chance = 1 / (1 + np.exp(-3 * cells.sum(axis=1)))
    return cells, chance, (rng.random(rows) < chance).astype(np.int64)


@cache
def beside(probabilities: bool) -> tuple[Schema, Survival]:
    """The model beside a classifier that knows the true chance."""
    cells, chance, _ = noisy(2000, 0)
    schema, codes = Schema.infer(cells), (chance > 0.5).astype(np.int64)
    train, held_out = np.split(np.arange(2000), [1500])
    known = np.column_stack([1 - chance, chance])[1500:] if probabilities else None
    parts = (cells, codes, train, held_out, lambda _: known)
    return schema, Survival.unknown((0, 1)).fit(schema, *parts, random_state=0)


each_setting = pytest.mark.parametrize("probabilities", [True, False])


@each_setting
def test_survival_is_a_chance_that_rises_with_the_distance_to_the_boundary(probabilities):
    schema, model = beside(probabilities)
    cells = np.linspace(0.0, 2.0, 9).repeat(2).reshape(-1, 2).round(3)
    chance = 1 / (1 + np.exp(-3 * cells.sum(axis=1)))
    probability = chance if probabilities else np.full(9, np.nan)
    estimate, low, high = model.estimate(schema, cells, np.ones(9, dtype=int), probability)
    assert (low >= 0).all()
    assert (high <= 1).all()
    assert (low <= estimate).all()
    assert (estimate <= high).all()
    assert np.diff(estimate).min() > -0.02
    assert estimate[0] < 0.75
    assert estimate[-1] > 0.98
    assert (high - low)[0] > 0.4 > 0.05 > (high - low)[-1]
    # The other label is as unlikely to be kept there as this one is likely.
    other, _, _ = model.estimate(schema, cells, np.zeros(9, dtype=int), 1 - probability)
    assert other[-1] < 0.2


def test_rows_without_a_probability_are_estimated_beside_rows_with_one():
    schema, model = beside(True)
    cells, codes = noisy(6, 3)[0], np.array([0, 1] * 3)
    mixed = np.array([0.6, np.nan, 0.7, np.nan, 0.8, 0.9])
    together = np.array(model.estimate(schema, cells, codes, mixed))
    alone = [np.array(model.estimate(schema, cells[[k]], codes[[k]], mixed[[k]])) for k in range(6)]
    np.testing.assert_allclose(together, np.concatenate(alone, axis=1), atol=1e-6)
    assert np.isfinite(together).all()


def test_probabilities_unknown_in_fit_are_not_read_later():
    schema, model = beside(False)
    cells, codes = noisy(4, 3)[0], np.ones(4, dtype=int)
    with_them = model.estimate(schema, cells, codes, np.full(4, 0.9))
    without = model.estimate(schema, cells, codes, np.full(4, np.nan))
    np.testing.assert_array_equal(with_them, without)


@each_setting
def test_the_shipped_calibrations_are_sound(probabilities):
    found = shipped(probabilities)
    assert len(found.coefficients) == 2 + probabilities
    assert (found.coefficients[:-1] > 0).all()
    assert found.low.shape == found.high.shape == (len(LEVELS),)
    assert (np.diff(found.low) >= 0).all()
    assert (np.diff(found.high) >= 0).all()
    assert ((found.low >= 0) & (found.low <= found.high) & (found.high <= 1)).all()


# --- the margin ----------------------------------------------------------------------------------


def test_the_margin_is_where_survival_is_high_enough():
    schema, model = beside(True)
    assert 0.5 < model.margin < 0.95
    cells, chance, _ = noisy(4000, 5)
    near = np.abs(chance - model.margin) < 0.03
    ones = np.ones(near.sum(), dtype=int)
    estimate, _, _ = model.estimate(schema, cells[near], ones, chance[near])
    assert abs(estimate.mean() - AIM) < 0.03
    enough = model.has_margin(schema, cells, np.ones(4000, dtype=int), chance)
    np.testing.assert_array_equal(enough, chance >= model.margin)


def test_a_classifier_without_probabilities_has_a_margin_where_survival_is_likely():
    schema, model = beside(False)
    assert np.isnan(model.margin)
    cells, ones, unknown = noisy(200, 5)[0], np.ones(200, dtype=int), np.full(200, np.nan)
    enough = model.has_margin(schema, cells, ones, unknown)
    estimate, _, _ = model.estimate(schema, cells, ones, unknown)
    np.testing.assert_array_equal(enough, estimate >= LIKELY)
    assert 0 < enough.sum() < 200


def test_with_three_labels_the_margin_is_against_the_next_one():
    frame, codes = table(900)
    schema = Schema.infer(frame)
    cells, parts = schema.cells(frame), np.split(np.arange(900), [600])
    known = np.full((900, 3), 0.05)
    known[np.arange(900), codes] = 0.8
    known[np.arange(900), (codes + 1) % 3] = 0.15
    unknown = Survival.unknown((0, 1, 2))
    model = unknown.fit(schema, cells, codes, *parts, lambda _: known[600:], random_state=0)
    assert model.next_share == pytest.approx(0.75)
    assert beside(True)[1].next_share == pytest.approx(1.0)
    probability = np.linspace(0.3, 0.99, 300)
    enough = model.has_margin(schema, cells[600:], codes[600:], probability)
    next_label = 0.75 * (1 - probability)
    np.testing.assert_array_equal(enough, probability / (probability + next_label) >= model.margin)
    assert 0 < enough.sum() < 300


def test_without_a_model_survival_is_unknown_and_the_margin_a_fixed_probability():
    fitted = worlds.paper().explainer.fitted_
    cells, codes = (
        np.stack([p.cells for p in fitted.prototypes]),
        np.zeros(len(fitted.prototypes), dtype=int),
    )
    probability = np.linspace(0.5, 0.9, len(cells))
    survival = fitted.survival
    assert np.isnan(survival.estimate(fitted.schema, cells, codes, probability)).all()
    enough = survival.has_margin(fitted.schema, cells, codes, probability)
    np.testing.assert_array_equal(enough, probability >= 0.65)
    assert survival.has_margin(fitted.schema, cells, codes, probability * np.nan).all()


# --- in an explainer -----------------------------------------------------------------------------


def test_explainers_of_tables_estimate_survival_and_others_do_not():
    bank = worlds.bank().explainer
    assert bank.fitted_.survival.layers is not None
    assert 0.5 <= bank.fitted_.survival.margin < 1
    assert worlds.paper().explainer.fitted_.survival.layers is None
    assert worlds.digits().explainer.fitted_.survival.layers is None


def forest(X: Any, y: Any, random_state: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(10, max_depth=4, random_state=random_state).fit(X, y)


@cache
def with_y(retrain: bool) -> tuple[Any, Explainer]:
    cells, _, true = noisy(400, 0)
    labels = np.array(["no", "yes"])[true]
    explainer = Explainer(
        forest(cells, labels, 0), n_prototypes=1, recipe=worlds.QUICK, device="cpu"
    )
    return cells, explainer.fit(cells, labels, retrain=forest if retrain else None)


def test_the_estimate_does_not_depend_on_true_labels():
    cells, explainer = with_y(retrain=False)
    settings = {"n_prototypes": 1, "recipe": worlds.QUICK, "device": "cpu"}
    without = Explainer(explainer.classifier, **settings).fit(cells)
    one, other = (e.fitted_.survival.arrays() for e in (explainer, without))
    assert all((array == other[name]).all() for name, array in one.items())
    assert explainer.report_.accuracy is not None
    assert without.report_.accuracy is None


def test_retrained_classifiers_are_asked_where_there_are_any():
    cells, explainer = with_y(retrain=True)
    fitted = explainer.fitted_
    retrained = fitted.survival.retrained
    assert len(retrained) == 10
    rows, codes = cells[:30], np.ones(30, dtype=int)
    kept = np.sum([c.model.predict(rows) == "yes" for c in retrained], axis=0)
    estimate, low, high = fitted.survival.estimate(fitted.schema, rows, codes, np.full(30, 0.5))
    np.testing.assert_allclose(estimate, kept / 10)
    assert (low <= estimate).all()
    assert (estimate <= high).all()
    assert (low[kept == 10] > 0.7).all()
    assert (high[kept == 10] == 1).all()
    assert (kept == 10).any()
    assert len({c.model.predict(rows).tobytes() for c in retrained}) > 1


def test_best_asks_the_retrained_classifiers_and_is_marked_by_them():
    _, explainer = with_y(retrain=True)
    best = explainer.explain(noisy(30, 7)[0], target="any-other").best(3)
    edge = np.array(["edge" in mark for mark in best.mark])
    assert (best.survival[~edge] >= LIKELY).all()
    frame = best.frame[list(explainer.schema_.names)].to_numpy()
    retrained = explainer.fitted_.survival.retrained
    wanted = explainer.classifier.predict(frame)
    kept = np.mean([c.model.predict(frame) == wanted for c in retrained], axis=0)
    assert (kept[~edge] >= LIKELY).all()
    assert (~edge).sum() > 20


def test_retrained_classifiers_are_not_saved_and_it_is_said(tmp_path):
    cells, explainer = with_y(retrain=True)
    with pytest.warns(UserWarning, match="retrain made are not saved"):
        explainer.save(tmp_path / "it.lapace")
    again = Explainer.load(tmp_path / "it.lapace", explainer.classifier, device="cpu")
    survival = again.fitted_.survival
    assert not survival.retrained
    arguments = (again.schema_, cells[:9], np.ones(9, dtype=int), np.full(9, 0.6))
    before = replace(explainer.fitted_.survival, retrained=())
    np.testing.assert_array_equal(survival.estimate(*arguments), before.estimate(*arguments))
    assert survival.margin == before.margin


@pytest.mark.parametrize("settings", [{}, {"y": ["a"] * 60, "retrain": 3}])
def test_retrain_without_y_or_not_a_function_is_refused(settings):
    explainer = Explainer(lambda rows: ["a" if r[0] > 0 else "b" for r in rows])
    with pytest.raises(InputError, match=r"fit\(X, y, retrain=function\)"):
        explainer.fit(noisy(60, 0)[0], **{"retrain": forest, **settings})


def test_a_retrain_function_that_raises_or_returns_rubbish_is_reported():
    cells, _, true = noisy(60, 0)
    classifier = Classifier(forest(cells, true, 0), Schema.infer(cells), (0, 1))

    def broken(X: Any, y: Any, random_state: int) -> Any:
        raise KeyError("weights")

    with pytest.raises(ClassifierError, match=r"retrain raised KeyError on a sample of 60 rows"):
        retrained_classifiers(broken, classifier, cells, true, 0)
    with pytest.raises(InputError, match="fitted object with `predict`"):
        retrained_classifiers(lambda X, y, random_state: None, classifier, cells, true, 0)


def test_a_retrained_classifier_may_know_other_labels():
    cells, _, true = noisy(200, 0)
    classifier = Classifier(forest(cells, true, 0), Schema.infer(cells), (0, 1))
    others = retrained_classifiers(lambda X, y, s: forest(X, y + 1, s), classifier, cells, true, 0)
    survival, rows = replace(Survival.unknown((0, 1)), retrained=others), cells[true == 0]
    ones = np.ones(len(rows), int)
    estimate, _, _ = survival.estimate(classifier.schema, rows, ones, ones * np.nan)
    assert estimate.mean() > 0.6  # what was 0 is called 1 there


# --- kept in files -------------------------------------------------------------------------------


@each_setting
def test_arrays_and_back_are_the_same_model(probabilities):
    schema, model = beside(probabilities)
    again = Survival.unknown((0, 1)).with_arrays(model.arrays(), schema.coding.width)
    cells, chance, _ = noisy(50, 3)
    for function in ("estimate", "has_margin"):
        arguments = (schema, cells, np.ones(50, dtype=int), chance)
        one, other = (getattr(it, function)(*arguments) for it in (model, again))
        np.testing.assert_array_equal(one, other)


def nan(array: Any) -> Any:
    changed = array.copy()
    changed.flat[-1] = np.nan
    return changed


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("weight.1", nan),
        ("weight.0", lambda a: a[:, :-1]),
        ("bias.0", lambda a: a.astype(np.float64)),
        ("weight.1", None),
        ("other", None),
        ("numbers", lambda a: -a),
        ("numbers", lambda a: a * [1, 0, 1, 1]),
        ("numbers", lambda a: a * [1, 1, 2, 1]),
        ("numbers", lambda a: a * [1, 1, 1, 2]),
    ],
)
def test_arrays_of_another_shape_or_with_nan_are_refused(name, change):
    schema, model = beside(True)
    arrays = model.arrays()
    if change is not None:
        arrays[name] = change(arrays[name])
    elif name in arrays:
        del arrays[name]
    else:
        arrays[name] = arrays["numbers"]
    with pytest.raises(ValueError, match=r"fit the columns|fit together"):
        Survival.unknown((0, 1)).with_arrays(arrays, schema.coding.width)
