"""Surrogate models, the survival estimated from them, and classifiers that really are retrained."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from lapace import Explainer, InputError
from lapace.classifiers import Classifier
from lapace.errors import ClassifierError
from lapace.explainer import ensemble as module
from lapace.explainer.ensemble import Ensemble
from lapace.explainer.surrogates import (
    AIM,
    LEVELS,
    LIKELY,
    Calibration,
    HeldOutRows,
    Retrained,
    Surrogates,
    shipped,
)
from lapace.schema import Schema
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


@cache
def fitted() -> tuple[Schema, Ensemble]:
    frame, codes = table(1500)
    schema = Schema.infer(frame)
    return schema, Ensemble.fit(schema, schema.cells(frame), codes, 3, random_state=0)


def test_members_imitate_the_classifier_on_rows_they_have_not_seen():
    schema, ensemble = fitted()
    frame, codes = table(1000, seed=1)
    probability = ensemble.probability(schema, schema.cells(frame))
    assert probability.shape == (20, 1000, 3)
    np.testing.assert_allclose(probability.sum(axis=2), 1.0, atol=1e-5)
    assert probability.min() >= 0
    each = (probability.argmax(axis=2) == codes).mean(axis=1)
    assert each[:10].min() > 0.9  # the networks
    assert each[10:].min() > 0.8  # the forests
    assert (probability.mean(axis=0).argmax(axis=1) == codes).mean() > 0.93


def test_members_differ_and_disagree_most_near_the_boundary():
    schema, ensemble = fitted()
    rows = [{"a": a, "b": 10, "c": 0.0, "d": "y"} for a in (-2.0, 0.0, 2.0)]
    probability = ensemble.probability(schema, schema.cells(rows))[:, :, 1]
    spread = probability.std(axis=0)
    assert spread[1] > 2 * max(spread[0], spread[2])
    assert len(np.unique(probability[:, 1])) > 15


def test_forests_are_those_of_sklearn():
    from sklearn.ensemble import RandomForestClassifier

    schema, _ = fitted()
    frame, codes = table(400)
    x = schema.encode(schema.cells(frame)).astype(np.float32)
    samples = np.random.default_rng(0).integers(0, 400, (module.FORESTS, 400))
    parts = module._forests(x, samples, codes[samples], 3, random_state=5)
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
        Ensemble.fit(schema, cells, codes, 3, random_state=seed).probability(schema, cells)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any(axis=(1, 2)).all()


def test_rows_are_evaluated_alike_alone_and_in_batches(monkeypatch):
    schema, ensemble = fitted()
    cells = schema.cells(table(50, seed=2)[0])
    whole = ensemble.probability(schema, cells)
    monkeypatch.setattr(module, "CELLS", 1)
    np.testing.assert_allclose(ensemble.probability(schema, cells), whole, atol=1e-6)
    assert ensemble.probability(schema, cells[:0]).shape == (20, 0, 3)


def test_a_wider_schema_is_read_as_the_fitted_one():
    schema, ensemble = fitted()
    reading = schema.read([{"a": 9.0, "b": 10, "c": None, "d": "unseen"}])
    assert reading.schema["d"].levels != schema["d"].levels
    probability = ensemble.probability(reading.schema, reading.cells)
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
    ensemble = Ensemble.fit(schema, schema.cells(frame), codes, 4, random_state=0)
    found = ensemble.probability(schema, schema.cells(frame))
    assert found.shape[2] == 4
    assert found[10:, :, 3].max() == 0.0
    assert found[:10, :, 3].mean() < 0.05


# --- survival ------------------------------------------------------------------------------------


def noisy(rows: int, seed: int) -> tuple[Any, Any, Any]:
    """Two numbers; the true label, which a fifth of the rows near the boundary contradict."""
    rng = np.random.default_rng(seed)
    cells = rng.normal(size=(rows, 2)).round(3)
    chance = 1 / (1 + np.exp(-3 * cells.sum(axis=1)))
    return cells, chance, (rng.random(rows) < chance).astype(np.int64)


@cache
def beside(probabilities: bool, truth: bool) -> tuple[Schema, Surrogates]:
    """Surrogates of a classifier that knows the true chance."""
    cells, chance, true = noisy(2000, 0)
    schema, codes = Schema.infer(cells), (chance > 0.5).astype(np.int64)
    known = np.column_stack([1 - chance, chance])[1500:] if probabilities else None
    return schema, Surrogates.fit(
        schema,
        cells[:1500],
        codes[:1500],
        2,
        reference=HeldOutRows(cells[1500:], codes[1500:], known),
        random_state=0,
        true_codes=true[:1500] if truth else None,
    )


each_setting = pytest.mark.parametrize(
    ("probabilities", "truth"), [(True, False), (True, True), (False, False), (False, True)]
)


@each_setting
def test_survival_is_a_chance_that_rises_with_the_distance_to_the_boundary(probabilities, truth):
    schema, surrogates = beside(probabilities, truth)
    cells = np.linspace(0.0, 2.0, 9).repeat(2).reshape(-1, 2).round(3)
    chance = 1 / (1 + np.exp(-3 * cells.sum(axis=1)))
    probability = chance if probabilities else np.full(9, np.nan)
    estimate, low, high = surrogates.survival(schema, cells, np.ones(9, dtype=int), probability)
    assert (low >= 0).all()
    assert (high <= 1).all()
    assert (low <= estimate).all()
    assert (estimate <= high).all()
    assert np.diff(estimate).min() > -0.02
    assert estimate[0] < 0.75
    assert estimate[-1] > 0.98
    assert (high - low)[0] > 0.4 > 0.05 > (high - low)[-1]
    # The other label is as unlikely to be kept there as this one is likely.
    other, _, _ = surrogates.survival(schema, cells, np.zeros(9, dtype=int), 1 - probability)
    assert other[-1] < 0.2


def test_a_higher_probability_means_a_higher_survival():
    schema, surrogates = beside(True, False)
    row, ones = np.zeros((5, 2)), np.ones(5, dtype=int)
    estimate, _, _ = surrogates.survival(schema, row, ones, np.array([0.5, 0.55, 0.6, 0.7, 0.9]))
    assert (np.diff(estimate) > 0.01).all()


def test_rows_without_a_probability_are_estimated_beside_rows_with_one():
    schema, surrogates = beside(True, False)
    cells, codes = noisy(6, 3)[0], np.array([0, 1] * 3)
    mixed = np.array([0.6, np.nan, 0.7, np.nan, 0.8, 0.9])
    together = np.array(surrogates.survival(schema, cells, codes, mixed))
    alone = [
        np.array(surrogates.survival(schema, cells[[k]], codes[[k]], mixed[[k]])) for k in range(6)
    ]
    np.testing.assert_allclose(together, np.concatenate(alone, axis=1), atol=1e-6)
    assert np.isfinite(together).all()


def test_probabilities_unknown_in_fit_are_not_read_later():
    schema, surrogates = beside(False, False)
    cells, codes = noisy(4, 3)[0], np.ones(4, dtype=int)
    with_them = surrogates.survival(schema, cells, codes, np.full(4, 0.9))
    without = surrogates.survival(schema, cells, codes, np.full(4, np.nan))
    np.testing.assert_array_equal(with_them, without)


def test_log_odds_are_taken_against_the_next_label():
    members = np.array([[[0.5, 0.4, 0.1]], [[0.5, 0.3, 0.2]]])  # (members, 1, labels)
    odds = Surrogates.log_odds(members, np.array([0]), np.array([0.6]))
    np.testing.assert_allclose(odds, np.log(0.6 / (0.4 * 0.35 / 0.5)))
    two = Surrogates.log_odds(members[:, :, :2], np.array([0]), np.array([0.6]))
    np.testing.assert_allclose(two, np.log(0.6 / 0.4))
    assert np.isnan(Surrogates.log_odds(members, np.array([0]), np.array([np.nan]))[0])


@each_setting
def test_the_shipped_calibrations_are_sound(probabilities, truth):
    found = shipped(probabilities, truth)
    assert len(found.coefficients) == 2 * probabilities + 2 + 2 * truth + 1
    assert found.low.shape == found.high.shape == (len(LEVELS),)
    assert (np.diff(found.low) >= 0).all()
    assert (np.diff(found.high) >= 0).all()
    assert ((found.low >= 0) & (found.low <= found.high) & (found.high <= 1)).all()


def test_a_calibration_is_a_logistic_curve_with_interpolated_ends():
    ends = np.linspace(0.0, 1.0, len(LEVELS))
    calibration = Calibration(np.array([2.0, 0.0]), ends * 0.5, np.minimum(1.0, ends + 0.3))
    estimate, low, high = calibration(np.array([[0.0], [1.0]]))
    np.testing.assert_allclose(estimate, 1 / (1 + np.exp([0.0, -2.0])))
    assert (low < estimate).all()
    assert (estimate < high).all()


# --- the margin ----------------------------------------------------------------------------------


def test_the_margin_is_where_survival_is_high_enough():
    schema, surrogates = beside(True, False)
    assert 0.5 < surrogates.margin < 0.95
    cells, chance, _ = noisy(4000, 5)
    near = np.abs(chance - surrogates.margin) < 0.03
    ones = np.ones(near.sum(), dtype=int)
    estimate, _, _ = surrogates.survival(schema, cells[near], ones, chance[near])
    assert abs(estimate.mean() - AIM) < 0.03
    enough = surrogates.has_margin(schema, cells, np.ones(4000, dtype=int), chance)
    np.testing.assert_array_equal(enough, chance >= surrogates.margin)


def test_a_classifier_without_probabilities_has_a_margin_where_survival_is_likely():
    schema, surrogates = beside(False, False)
    assert np.isnan(surrogates.margin)
    cells, ones, unknown = noisy(200, 5)[0], np.ones(200, dtype=int), np.full(200, np.nan)
    enough = surrogates.has_margin(schema, cells, ones, unknown)
    estimate, _, _ = surrogates.survival(schema, cells, ones, unknown)
    np.testing.assert_array_equal(enough, estimate >= LIKELY)
    assert 0 < enough.sum() < 200


def test_with_three_labels_the_margin_is_against_the_next_one():
    frame, codes = table(900)
    schema = Schema.infer(frame)
    cells = schema.cells(frame)
    known = np.full((900, 3), 0.02)
    known[np.arange(900), codes] = 0.96
    reference = HeldOutRows(cells[600:], codes[600:], known[600:])
    surrogates = Surrogates.fit(
        schema, cells[:600], codes[:600], 3, reference=reference, random_state=0
    )
    half = np.full(300, 0.5)
    enough = surrogates.has_margin(schema, cells[600:], codes[600:], half)
    members = surrogates.probability(schema, cells[600:])
    odds = surrogates.log_odds(members, codes[600:], half)
    assert (odds >= 0).all()  # half of the probability is never less than the next label's
    np.testing.assert_array_equal(enough, 1 / (1 + np.exp(-odds)) >= surrogates.margin)
    assert surrogates.has_margin(schema, cells[600:], codes[600:], known[600:].max(axis=1)).all()


def test_without_surrogates_survival_is_unknown_and_the_margin_a_fixed_probability():
    fitted = worlds.paper().explainer.fitted_
    cells, codes = (
        np.stack([p.cells for p in fitted.prototypes]),
        np.zeros(len(fitted.prototypes), dtype=int),
    )
    probability = np.linspace(0.5, 0.9, len(cells))
    assert np.isnan(fitted.survival(fitted.schema, cells, codes, probability)).all()
    enough = fitted.has_margin(fitted.schema, cells, codes, probability)
    np.testing.assert_array_equal(enough, probability >= fitted.margins[codes])
    assert fitted.has_margin(fitted.schema, cells, codes, probability * np.nan).all()


# --- in an explainer -----------------------------------------------------------------------------


def test_explainers_of_tables_have_surrogates_and_others_none():
    bank = worlds.bank().explainer
    assert bank.fitted_.surrogates is not None
    assert ((bank.fitted_.margins >= 0.5) & (bank.fitted_.margins < 1)).all()
    assert bank.report_.n_queries.surrogates > 0
    assert worlds.seasons().explainer.report_.n_queries.surrogates == 0  # no probabilities to ask
    assert worlds.paper().explainer.fitted_.surrogates is None
    assert worlds.digits().explainer.fitted_.surrogates is None


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


def test_true_labels_give_a_second_ensemble():
    _, explainer = with_y(retrain=False)
    surrogates = explainer.fitted_.surrogates
    assert surrogates is not None
    assert surrogates.learning is not None
    assert explainer.report_.accuracy is not None


def test_retrained_classifiers_are_asked_where_there_are_any():
    cells, explainer = with_y(retrain=True)
    fitted = explainer.fitted_
    retrained = fitted.retrained
    assert retrained is not None
    assert len(retrained.classifiers) == 10
    rows, codes = cells[:30], np.ones(30, dtype=int)
    kept = np.sum([c.model.predict(rows) == "yes" for c in retrained.classifiers], axis=0)
    estimate, low, high = fitted.survival(fitted.schema, rows, codes, np.full(30, 0.5))
    np.testing.assert_allclose(estimate, kept / 10)
    assert (low <= estimate).all()
    assert (estimate <= high).all()
    assert (low[kept == 10] > 0.7).all()
    assert (high[kept == 10] == 1).all()
    assert (kept == 10).any()
    assert len({c.model.predict(rows).tobytes() for c in retrained.classifiers}) > 1


def test_retrained_classifiers_are_not_saved_and_it_is_said(tmp_path):
    cells, explainer = with_y(retrain=True)
    with pytest.warns(UserWarning, match="retrain made are not saved"):
        explainer.save(tmp_path / "it.lapace")
    again = Explainer.load(tmp_path / "it.lapace", explainer.classifier, device="cpu")
    assert again.fitted_.retrained is None
    arguments = (again.schema_, cells[:9], np.ones(9, dtype=int), np.full(9, 0.6))
    estimates = again.fitted_.survival(*arguments)
    surrogates = explainer.fitted_.surrogates
    assert surrogates is not None
    np.testing.assert_array_equal(estimates, surrogates.survival(*arguments))
    assert again.fitted_.margins.tolist() == explainer.fitted_.margins.tolist()


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
        Retrained.fit(broken, classifier, cells, true, 0)
    with pytest.raises(InputError, match="fitted object with `predict`"):
        Retrained.fit(lambda X, y, random_state: None, classifier, cells, true, 0)


def test_a_retrained_classifier_may_know_other_labels():
    cells, _, true = noisy(200, 0)
    classifier = Classifier(forest(cells, true, 0), Schema.infer(cells), (0, 1))
    found = Retrained.fit(lambda X, y, s: forest(X, y + 1, s), classifier, cells, true, 0)
    estimate, _, _ = found.survival(
        classifier.schema, cells[true == 0], np.ones(sum(true == 0), int)
    )
    assert estimate.mean() > 0.6  # what was 0 is called 1 there


# --- kept in files -------------------------------------------------------------------------------


@each_setting
def test_arrays_and_back_are_the_same_surrogates(probabilities, truth):
    schema, surrogates = beside(probabilities, truth)
    again = Surrogates.from_arrays(surrogates.arrays(), schema.width, 2)
    cells, chance, _ = noisy(50, 3)
    for function in ("survival", "has_margin"):
        arguments = (schema, cells, np.ones(50, dtype=int), chance)
        one, other = (getattr(it, function)(*arguments) for it in (surrogates, again))
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(
        again.probability(schema, cells), surrogates.probability(schema, cells)
    )


def nan(array: Any) -> Any:
    changed = array.copy()
    changed.flat[-1] = np.nan
    return changed


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("imitating.leaf", nan),
        ("imitating.weight.1", nan),
        ("imitating.weight.0", lambda a: a[:, :-1]),
        ("learning.bias.2", lambda a: a[..., :1]),
        ("imitating.bias.2", lambda a: a.astype(np.float64)),
        ("imitating.threshold", lambda a: a[:3]),
        ("imitating.feature", lambda a: a + 1000),
        ("imitating.feature", lambda a: a - 1),
        ("learning.feature", lambda a: a.astype(np.float32)),
        ("imitating.other", None),
        ("other", None),
        ("imitating.leaf", None),
        ("scale", nan),
        ("scale", lambda a: -a),
        ("scale", lambda a: a[:3]),
        ("scale", lambda a: a * np.inf),
        ("disagreement", nan),
        ("disagreement", lambda a: a + 2),
        ("margin", lambda a: a * 0 + 0.2),
        ("margin", lambda a: a * 0 + 1.5),
        ("margin", nan),
    ],
)
def test_arrays_of_another_shape_or_with_nan_are_refused(name, change):
    schema, surrogates = beside(True, True)
    arrays = surrogates.arrays()
    if change is not None:
        arrays[name] = change(arrays[name])
    elif name in arrays:
        del arrays[name]
    else:
        arrays[name] = arrays["imitating.leaf"]
    with pytest.raises(ValueError, match=r"fit the columns|fit together"):
        Surrogates.from_arrays(arrays, schema.width, 2)


def test_a_file_without_the_imitating_ensemble_is_refused():
    schema, surrogates = beside(True, True)
    rest = {k: v for k, v in surrogates.arrays().items() if not k.startswith("imitating")}
    with pytest.raises(ValueError, match="do not fit together"):
        Surrogates.from_arrays(rest, schema.width, 2)
