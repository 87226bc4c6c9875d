"""Regressors with ranges, thresholds, and models with categories of their own."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier
from test_classifier import check_against_model

from lapace import ClassifierError, Explainer, InputError, Schema
from lapace.classifier import binned, from_probability, threshold
from lapace.classifier.outputs import log_scores
from lapace.survival import Survival
from tests.worlds import quick


def flats():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": rng.integers(20, 120, 300),
            "floor": rng.integers(0, 9, 300),
            "town": pd.Categorical(rng.choice(["Bonn", "Ulm", "Jena"], 300)),
        }
    )
    rent = 8.0 * frame["size"] + 20 * frame["floor"] + 150 * (frame["town"] == "Bonn")
    return frame, rent.to_numpy()


# --- ranges ----------------------------------------------------------------------------------


def test_a_regressor_is_brought_into_the_range_wanted():
    frame, rent = flats()
    numbers = frame[["size", "floor"]]
    regressor = RandomForestRegressor(20, max_depth=6, random_state=0, n_jobs=1).fit(numbers, rent)
    model = binned(regressor, [450, 800])
    assert model.classes_ == ("<= 450", "> 450, <= 800", "> 800")
    explainer = quick(model, 1).fit(numbers)
    dear = numbers[regressor.predict(numbers) > 800].head(8)
    found = explainer.explain(dear, target="<= 450").nearest()
    assert found.ok.any()
    assert (regressor.predict(found.rows[found.ok]) <= 450).all()


def test_an_edge_belongs_to_the_range_below():
    model = binned(lambda rows: rows[:, 0], [1.0, 2.5], ["low", "mid", "high"])
    rows = np.array([[0.0], [1.0], [1.0001], [2.5], [9.0]])
    assert model.predict(rows).tolist() == ["low", "low", "mid", "mid", "high"]


@pytest.mark.parametrize(
    ("edges", "labels", "says"),
    [
        ([], (), "one or more rising numbers"),
        ([2, 1], (), "one or more rising numbers"),
        ([1, np.nan], (), "an edge is nan"),
        ([1], ("a",), "1 labels for 2 ranges"),
        ([1], ("a", "a"), "give each its own"),
    ],
)
def test_ranges_that_are_refused(edges, labels, says):
    with pytest.raises(InputError, match=says):
        binned(lambda rows: rows[:, 0], edges, labels)


def test_what_a_regressor_may_not_return():
    with pytest.raises(InputError, match="The regressor is an object of type str"):
        binned("model", [1])
    for wrong in (np.array(["a"]), np.array([[1.0, 2.0]]), np.array([np.nan])):
        with pytest.raises(ClassifierError, match="The regressor returned"):
            binned(lambda rows, wrong=wrong: wrong, [1]).predict([[0]])


# --- probabilities and thresholds ------------------------------------------------------------


def scores():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(300, 2)).round(2), columns=["a", "b"])
    y = np.where(X["a"] + X["b"] + rng.normal(size=300) > 0, "yes", "no")
    return X, LogisticRegression().fit(X, y)


def test_a_threshold_decides_and_probabilities_stay():
    X, model = scores()
    low = threshold(model, 0.2)
    yes = model.predict_proba(X)[:, 1]
    assert low.predict(X).tolist() == np.where(yes >= 0.2, "yes", "no").tolist()
    assert (low.predict_proba(X) == model.predict_proba(X)).all()
    other = threshold(model, 0.9, positive="no")
    assert other.predict(X).tolist() == np.where(1 - yes >= 0.9, "no", "yes").tolist()
    explainer = quick(low, 1).fit(X)
    refused = X[low.predict(X) == "no"].head(10)
    found = explainer.explain(refused, target="yes").nearest()
    assert found.ok.all()
    assert (found.probability >= 0.2).all()
    assert (found.probability < 0.5).any()  # an explanation of the classifier itself has none


def least_probability(survival: Survival, schema: Schema, row: np.ndarray) -> float:
    """The least probability of the second of two labels with a margin, for one row's cells."""
    grid, ones = np.linspace(0.001, 0.999, 999), np.ones(999, dtype=int)
    enough = survival.has_margin(schema, np.tile(row, (999, 1)), ones, np.log(grid / (1 - grid)))
    return float(grid[enough.argmax()])


def test_the_margin_is_counted_from_the_threshold():
    X, model = scores()
    schema = Schema.infer(X)
    cells = schema.cells(X)
    fixed = FixedThresholdClassifier(model, threshold=0.2).fit(X, model.predict(X))
    for low in (threshold(model, 0.2), fixed):
        codes, known = (low.predict(X) == "yes").astype(int), low.predict_proba(X)
        survival = Survival.fit(
            ("no", "yes"), schema, cells, codes, lambda _, p=known: log_scores(p), random_state=0
        )
        assert survival.zero == pytest.approx([np.log(4), -np.log(4)], abs=0.1)
        edge = cells[np.abs(known[:, 1] - 0.2).argmin()]
        assert 0.2 < least_probability(survival, schema, edge) < 0.6


def test_a_threshold_is_saved_with_the_classifiers_file(tmp_path):
    from lapace.apps.loaders import save_classifier

    X, model = scores()
    save_classifier(model, tmp_path / "model.skops")
    explainer = quick(threshold(model, 0.2), 1).fit(X)
    explainer.save(tmp_path / "m.lapace", classifier="model.skops")
    again = Explainer.load(tmp_path / "m.lapace")
    assert again.classifier.threshold == 0.2
    assert again.fitted_.survival.zero.tolist() == explainer.fitted_.survival.zero.tolist()
    assert again.explain(X.head(5)).label.tolist() == explainer.explain(X.head(5)).label.tolist()


def test_thresholds_that_are_refused():
    X, model = scores()
    for call, says in {
        lambda: threshold(model, 1.5): "threshold is 1.5",
        lambda: threshold(model, 0.5, positive="maybe"): "'maybe' is not one of the labels",
        lambda: threshold(lambda rows: rows, 0.5): "needs a classifier with predict_proba",
    }.items():
        with pytest.raises(InputError, match=says):
            call()
    three = LogisticRegression().fit(X, np.arange(300) % 3)
    with pytest.raises(InputError, match="decides between two labels"):
        threshold(three, 0.5)


def test_a_probability_makes_a_classifier():
    model = from_probability(lambda rows: rows[:, 0] / 10, ["safe", "risky"])
    rows = np.array([[2.0], [5.0], [7.0]])
    assert model.predict(rows).tolist() == ["safe", "safe", "risky"]
    assert threshold(model, 0.5).predict(rows).tolist() == ["safe", "risky", "risky"]
    with pytest.raises(ClassifierError, match="not between 0 and 1"):
        model.predict(np.array([[20.0]]))
    with pytest.raises(InputError, match="two that differ"):
        from_probability(lambda rows: rows, ["safe", "safe"])


# --- other libraries -------------------------------------------------------------------------


def test_libraries_with_categories_of_their_own():
    import catboost
    import lightgbm

    frame, rent = flats()
    labels = np.where(rent > 600, "dear", "cheap")
    model = lightgbm.LGBMClassifier(n_estimators=15, n_jobs=1, verbose=-1)
    check_against_model(model.fit(frame, labels), ("cheap", "dear"), frame)
    frame = frame.astype({"town": str})
    settings = {"verbose": False, "thread_count": 1, "allow_writing_files": False}
    model = catboost.CatBoostClassifier(iterations=20, cat_features=["town"], **settings)
    check_against_model(model.fit(frame, labels), ("cheap", "dear"), frame)
