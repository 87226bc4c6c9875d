"""Survival: the estimates, the margin, and classifiers that really are retrained."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, logit
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from lapace import Explainer, InputError
from lapace import survival as module
from lapace.classifier import Classifier
from lapace.classifier.outputs import decision_scores, log_odds, log_scores, score_odds
from lapace.errors import ClassifierError
from lapace.schema import Schema
from lapace.survival import LIKELY, Survival, retrained_classifiers, shipped
from tests import worlds


def test_a_sample_has_every_label(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 1000)
    codes = np.repeat([0, 1, 2], [90_000, 9_970, 30])
    rows = module._sample(codes, np.random.default_rng(0))
    assert np.bincount(codes[rows]).tolist() == [900, 100, 30]
    assert len(np.unique(rows)) == len(rows)


# --- survival ------------------------------------------------------------------------------------


def noisy(rows: int, seed: int) -> tuple[Any, Any, Any]:
    """Two numbers; the true label, which a fifth of the rows near the boundary contradict."""
    rng = np.random.default_rng(seed)
    cells = rng.normal(size=(rows, 2)).round(3)
    chance = 1 / (1 + np.exp(-3 * cells.sum(axis=1)))
    return cells, chance, (rng.random(rows) < chance).astype(np.int64)


@cache
def beside(probabilities: bool, threshold: float = 0.5, power: float = 1.0) -> Any:
    """The model beside a classifier that knows the true chance, or a power of its odds."""
    cells, chance, _ = noisy(2000, 0)
    schema, codes = Schema.infer(cells), (chance >= threshold).astype(np.int64)
    second = expit(power * logit(chance))
    known = np.column_stack([1 - second, second]) if probabilities else None
    parts = (schema, cells, codes, lambda _: None if known is None else log_scores(known))
    return schema, Survival.fit((0, 1), *parts, random_state=0)


def test_survival_is_a_chance_that_rises_with_the_distance_to_the_boundary():
    schema, model = beside(True)
    cells = np.linspace(0.0, 2.0, 9).repeat(2).reshape(-1, 2).round(3)
    odds = 3 * cells.sum(axis=1)
    estimate, low, high = model.estimate(schema, cells, np.ones(9, dtype=int), odds)
    assert (low >= 0).all()
    assert (high <= 1).all()
    assert (low <= estimate).all()
    assert (estimate <= high).all()
    assert np.diff(estimate).min() > -0.02
    assert estimate[0] < 0.75
    assert estimate[-1] > 0.97
    assert (high - low)[0] > 0.4 > 0.16 > (high - low)[-1]
    # The other label is as unlikely to be kept there as this one is likely.
    other, _, _ = model.estimate(schema, cells, np.zeros(9, dtype=int), -odds)
    assert other[-1] < 0.2


def test_a_classifier_that_exaggerates_its_probabilities_is_no_surer():
    cells, chance, _ = noisy(200, 3)
    ones, odds = np.ones(200, dtype=int), logit(chance)
    (schema, plain), (_, exaggerated) = beside(True), beside(True, power=3.0)
    assert plain.agreement == pytest.approx(3 * exaggerated.agreement, rel=0.05)
    one, other = (
        model.estimate(schema, cells, ones, power * odds)[0]
        for model, power in ((plain, 1), (exaggerated, 3))
    )
    np.testing.assert_allclose(one, other, atol=0.02)


def test_values_of_a_decision_function_are_odds_on_whatever_scale():
    cells, chance, _ = noisy(2000, 0)
    (schema, plain), codes = beside(True), (chance >= 0.5).astype(np.int64)
    for scale in (1e-4, 0.01, 7.0):
        scores = decision_scores(scale * logit(chance), 2000, 2)
        survival = Survival.fit((0, 1), schema, cells, codes, lambda _, s=scores: s, random_state=0)
        assert survival.agreement * scale == pytest.approx(plain.agreement, rel=0.05)
        assert (survival.zero == 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_labels_at_random_are_kept_by_nothing_and_can_be_saved(seed):
    """A forest of other rows agrees with half of them, or fewer."""
    cells, _, _ = noisy(1000, 0)
    rng = np.random.default_rng(seed)
    codes, odds = rng.integers(0, 2, 1000), rng.uniform(1, 3, 1000)
    scores = decision_scores(np.where(codes == 1, odds, -odds), 1000, 2)
    schema = Schema.infer(cells)
    survival = Survival.fit((0, 1), schema, cells, codes, lambda _: scores, random_state=0)
    assert 0 < survival.agreement < 0.3
    assert not survival.has_margin(schema, cells, codes, odds).any()
    again = Survival.of_arrays((0, 1), survival.arrays())
    assert again.agreement == survival.agreement


def test_a_threshold_of_the_classifiers_own_is_found():
    schema, model = beside(True, threshold=0.2)
    assert model.zero == pytest.approx([np.log(4), -np.log(4)], abs=0.05)
    assert (beside(True)[1].zero == 0).all()
    cells, odds = np.array([[0.1, 0.1], [-0.231, -0.231]]), logit([0.65, 0.2])
    sure, edge = model.estimate(schema, cells, np.ones(2, dtype=int), odds)[0]
    assert sure > 0.9 > 0.7 > edge
    no, _ = model.estimate(schema, cells, np.zeros(2, dtype=int), -odds)[0]
    assert no < 0.2  # 0.35 is far from the 0.8 from which "no" is predicted


class FromFifth:
    """A user's own class that predicts the second label from a probability of 0.2 on."""

    def __init__(self, model: Any) -> None:
        self.model, self.predict_proba = model, model.predict_proba

    def predict(self, rows: Any) -> Any:
        return (self.predict_proba(rows)[:, 1] >= 0.2).astype(np.int64)


def logistic(x: Any, y: Any) -> Any:
    return LogisticRegression(max_iter=500).fit(x, y)


def scores_of(model: Any, rows: Any) -> Any:
    """The scores of labels that `Classifier.query` reads of a model."""
    if hasattr(model, "predict_proba"):
        return log_scores(model.predict_proba(rows))
    return decision_scores(model.decision_function(rows), len(rows), len(model.classes_))


def machine(x: Any, y: Any) -> Any:
    return SVC().fit(x, y)  # a decision function, no probabilities


@pytest.mark.parametrize(
    ("settings", "train"),
    [
        ({"weights": [0.97], "flip_y": 0.005}, lambda x, y: FromFifth(logistic(x, y))),
        ({"n_classes": 6, "n_informative": 5, "flip_y": 0.1}, logistic),
        ({"flip_y": 0.1, "class_sep": 0.6}, machine),
        ({"n_classes": 3, "n_informative": 5, "flip_y": 0.1}, machine),
    ],
    ids=["a threshold of 0.2", "six labels", "a decision function", "a column a label"],
)
def test_what_is_said_is_what_retrained_classifiers_do(settings, train):
    x, y = make_classification(3000, 8, random_state=3, **settings)
    x, y, rows = x[:1500].round(3), y[:1500], x[1500:].round(3)
    model, n_labels = train(x, y), len(np.unique(y))
    parts = (Schema.infer(x), x, model.predict(x), lambda cells: scores_of(model, cells))
    survival = Survival.fit(tuple(range(n_labels)), *parts, random_state=0)
    codes = model.predict(rows)
    odds = score_odds(scores_of(model, rows), codes)
    # Rows whose label is not a matter of course.
    chosen = codes == 1 if n_labels == 2 else odds < np.quantile(odds, 0.4)
    rows, codes, odds = rows[chosen], codes[chosen], odds[chosen]
    said, _, _ = survival.estimate(parts[0], rows, codes, odds)
    rng = np.random.default_rng(0)
    samples = [rng.integers(0, 1500, 1500) for _ in range(20)]
    found = np.mean([train(x[s], y[s]).predict(rows) == codes for s in samples], axis=0)
    assert abs(said.mean() - found.mean()) < 0.08


def test_of_rows_without_a_probability_nothing_is_said_beside_rows_with_one():
    schema, model = beside(True)
    cells, codes = noisy(6, 3)[0], np.array([0, 1] * 3)
    mixed = np.array([0.6, np.nan, 0.7, np.nan, 1.8, 2.9])
    together = np.array(model.estimate(schema, cells, codes, mixed))
    alone = [np.array(model.estimate(schema, cells[[k]], codes[[k]], mixed[[k]])) for k in range(6)]
    np.testing.assert_allclose(together, np.concatenate(alone, axis=1), atol=1e-6)
    assert (np.isnan(together) == np.isnan(mixed)).all()
    has_margin = model.has_margin(schema, cells, codes, mixed)
    assert not has_margin[np.isnan(mixed)].any()


@pytest.mark.parametrize("odds", [np.nan, 0.9, 30.0])
def test_of_labels_alone_nothing_is_known(odds):
    """Odds that were unknown in `fit` are not read later."""
    schema, model = beside(False)
    assert not model.is_known
    assert beside(True)[1].is_known
    cells, codes, odds = noisy(4, 3)[0], np.array([0, 1, 0, 1]), np.full(4, odds)
    assert np.isnan(model.estimate(schema, cells, codes, odds)).all()
    assert not model.has_margin(schema, cells, codes, odds).any()
    assert np.isnan(model.margin_odds(codes)).all()


def test_scores_that_do_not_tell_labels_are_none():
    """One-against-one values of three labels come in three columns too."""
    rng = np.random.default_rng(0)
    cells = rng.normal(size=(900, 2)).round(2)
    angle = np.arctan2(*cells.T)
    y = np.digitize(angle, [-1.0, 1.0])
    for shape, known in (("ovr", True), ("ovo", False)):
        model = SVC(decision_function_shape=shape).fit(cells, y)
        codes = model.predict(cells)
        survival = Survival.fit(
            (0, 1, 2),
            Schema.infer(cells),
            cells,
            codes,
            lambda rows, model=model: scores_of(model, rows),
            random_state=0,
        )
        assert survival.is_known == known


def test_the_shipped_calibration_is_sound():
    found = shipped()
    slope, _ = found.coefficients
    assert slope > 0
    assert found.weight > 0


# --- the margin ----------------------------------------------------------------------------------


def test_a_row_has_a_margin_where_its_survival_is_likely():
    schema, model = beside(True)
    cells, chance, _ = noisy(400, 5)
    odds, ones = logit(chance), np.ones(400, dtype=int)
    enough = model.has_margin(schema, cells, ones, odds)
    estimate, _, _ = model.estimate(schema, cells, ones, odds)
    np.testing.assert_array_equal(enough, estimate >= LIKELY)
    assert 0 < enough.sum() < (chance > 0.5).sum()


@pytest.mark.parametrize("threshold", [0.5, 0.2])
def test_the_odds_of_a_margin_are_where_it_begins(threshold):
    schema, model = beside(True, threshold=threshold)
    codes = np.array([0, 1])
    for shift, expected in ((1e-6, True), (-1e-6, False)):
        odds = model.margin_odds(codes) + shift
        assert model.has_margin(schema, np.zeros((2, 2)), codes, odds).tolist() == [expected] * 2


# --- in an explainer -----------------------------------------------------------------------------


@pytest.mark.parametrize("world", [worlds.bank, worlds.signs, worlds.paper, worlds.digits])
def test_explainers_of_classifiers_with_odds_estimate_survival_and_others_do_not(world):
    explainer, instances = world().explainer, world().instances
    last = explainer.explain(instances[:3], target="any-other").last()
    assert len(last)
    if explainer.classifier_.has_probability:
        assert ((last.survival > 0) & (last.survival < 1)).all()
    else:
        assert np.isnan(last.survival).all()
        assert not explainer.fitted_.survival.is_known


def test_any_other_label_is_judged_by_the_label_reached():
    """With several labels, all labels but the original together say little about one of them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2)).round(3)
    model = logistic(X, np.digitize(X @ [1.0, 1.0] + rng.normal(0, 1, 600), [-0.8, 0.8]))
    explainer = worlds.quick(model, 1).fit(X)
    found = explainer.explain(rng.normal(size=(20, 2)), target="any-other").nearest()
    codes, known = model.predict(found.cells), model.predict_proba(found.cells)
    arguments = (explainer.schema_, found.cells, codes, log_odds(known, codes))
    said = explainer.fitted_.survival.estimate(*arguments)[0]
    np.testing.assert_allclose(found.survival, said, atol=1e-6)
    assert found.survival.mean() < 0.8  # rows on the edge


def forest(X: Any, y: Any, random_state: int) -> Any:
    return RandomForestClassifier(10, max_depth=4, random_state=random_state).fit(X, y)


@cache
def with_y(retrain: bool) -> tuple[Any, Explainer]:
    cells, _, true = noisy(400, 0)
    labels = np.array(["no", "yes"])[true]
    explainer = worlds.quick(forest(cells, labels, 0), 1)
    return cells, explainer.fit(cells, labels, retrain=forest if retrain else None)


def test_the_estimate_does_not_depend_on_true_labels():
    cells, explainer = with_y(retrain=False)
    without = worlds.quick(explainer.classifier, 1).fit(cells)
    one, other = (e.fitted_.survival.arrays() for e in (explainer, without))
    assert all((array == other[name]).all() for name, array in one.items())
    assert explainer.report_.accuracy is not None
    assert without.report_.accuracy is None


def test_the_votes_of_retrained_classifiers_update_the_estimate():
    cells, explainer = with_y(retrain=True)
    survival, schema = explainer.fitted_.survival, explainer.schema_
    assert len(survival.retrained) == 10
    rows, codes = cells[:30], np.ones(30, dtype=int)
    kept = np.sum([c.model.predict(rows) == "yes" for c in survival.retrained], axis=0)
    assert len({c.model.predict(rows).tobytes() for c in survival.retrained}) > 1
    known = log_odds(explainer.classifier.predict_proba(rows), codes)
    estimate, low, high = survival.estimate(schema, rows, codes, known)
    before, _, _ = replace(survival, retrained=()).estimate(schema, rows, codes, known)
    weight = shipped().weight
    np.testing.assert_allclose(estimate, (weight * before + kept) / (weight + 10))
    assert (low <= estimate).all()
    assert (estimate <= high).all()
    assert (kept == 10).any()
    assert (low[kept == 10] > 0.7).all()
    assert (high[kept == 10] == 1).all()
    enough = survival.has_margin(schema, rows, codes, known)
    np.testing.assert_array_equal(enough, estimate >= LIKELY)
    assert (kept[enough] == 10).all()


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
    assert (best.survival[edge] < LIKELY).all()
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
    assert np.isfinite(survival.estimate(*arguments)).all()


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
    survival, rows = replace(beside(False)[1], retrained=others), cells[true == 0]
    ones = np.ones(len(rows), int)
    unknown = np.full(len(rows), np.nan)
    estimate, _, _ = survival.estimate(classifier.schema, rows, ones, unknown)
    assert estimate.mean() > 0.6  # what was 0 is called 1 there


def test_of_labels_alone_retrained_classifiers_vote_and_no_one_else():
    cells, _, true = noisy(200, 0)
    classifier = Classifier(lambda X: (X.sum(axis=1) > 0).astype(int), Schema.infer(cells), (0, 1))
    others = retrained_classifiers(forest, classifier, cells, true, 0)
    survival, ones = replace(beside(False)[1], retrained=others), np.ones(200, int)
    assert survival.is_known
    unknown = np.full(200, np.nan)
    estimate, _, _ = survival.estimate(classifier.schema, cells, ones, unknown)
    votes = np.sum([other.model.predict(cells) for other in others], axis=0)
    np.testing.assert_allclose(estimate, (0.5 + votes) / 11)
    enough = survival.has_margin(classifier.schema, cells, ones, unknown)
    np.testing.assert_array_equal(enough, votes == 10)
    assert 0 < enough.sum() < 200


def test_retrained_classifiers_read_levels_that_are_new():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=300).round(2), "d": rng.choice(["x", "y"], 300)})
    schema = Schema.infer(frame)

    def retrain(X: Any, y: Any, random_state: int) -> Any:
        return lambda rows: np.where(rows["d"] == "unseen", 1, 0)

    classifier = Classifier(retrain(None, None, 0), schema, (0, 1))
    others = retrained_classifiers(retrain, classifier, schema.cells(frame), np.zeros(300), 0)
    survival = replace(beside(False)[1], retrained=others)
    reading = schema.read([{"a": 9.0, "d": "unseen"}])
    one, unknown = np.ones(1, dtype=int), np.full(1, np.nan)
    said, _, _ = survival.estimate(reading.schema, reading.cells, one, unknown)
    assert said == pytest.approx(10.5 / 11)
    none = (reading.cells[:0], one[:0], unknown[:0])
    assert np.shape(survival.estimate(schema, *none)) == (3, 0)


# --- kept in files -------------------------------------------------------------------------------


@pytest.mark.parametrize("probabilities", [True, False])
def test_arrays_and_back_are_the_same_model(probabilities):
    schema, model = beside(probabilities)
    again = Survival.of_arrays((0, 1), model.arrays())
    cells, chance, _ = noisy(50, 3)
    assert again.is_known == model.is_known == probabilities
    for function in ("estimate", "has_margin"):
        arguments = (schema, cells, np.ones(50, dtype=int), logit(chance))
        one, other = (getattr(it, function)(*arguments) for it in (model, again))
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "change",
    [
        lambda a: {"numbers": np.where(np.arange(3) == 2, np.nan, a)},
        lambda a: {"numbers": a * [1, 1, -1]},
        lambda a: {"numbers": a[1:]},
        lambda a: {"numbers": a[None]},
        lambda a: {"numbers": a.astype(np.float32)},
        lambda a: {"numbers": a, "other": a},
        lambda a: {"other": a},
        lambda a: {},
    ],
)
def test_arrays_of_another_shape_or_with_nan_are_refused(change):
    _, model = beside(True)
    with pytest.raises(ValueError, match=r"numbers of survival do not fit"):
        Survival.of_arrays((0, 1), change(model.arrays()["numbers"]))
