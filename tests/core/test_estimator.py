"""The explainer as a scikit-learn estimator: parameters, clones, fitted attributes, warnings."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import sklearn.exceptions
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils import estimator_checks

from lapace import CentroidWarning, Explainer, InputError, NotFittedError
from lapace.training import DEFAULT
from tests import worlds

PARAMETERS = [
    "classifier", "device", "learn_rules", "n_latent", "n_prototypes", "random_state", "recipe",
    "rules", "schema",
]  # fmt: skip


quick = partial(worlds.quick, n_prototypes=1)


# --- parameters ---------------------------------------------------------------------------------


def test_parameters_are_the_constructors_and_exclude_the_classifiers():
    explainer = Explainer(LogisticRegression(C=3.0))
    assert sorted(explainer.get_params(deep=True)) == PARAMETERS
    assert explainer.set_params(n_prototypes=3, random_state=7) is explainer
    assert (explainer.n_prototypes, explainer.random_state) == (3, 7)
    with pytest.raises(ValueError, match="Invalid parameter 'seed'"):
        explainer.set_params(seed=1)


def test_a_clone_is_unfitted_and_keeps_the_fitted_classifier():
    here = worlds.bank()
    copied = clone(here.explainer)
    assert copied is not here.explainer
    assert copied.classifier is here.explainer.classifier
    assert not hasattr(copied, "fitted_")
    for name in set(PARAMETERS) - {"classifier"}:
        assert repr(getattr(copied, name)) == repr(getattr(here.explainer, name))
    rules = ["fixed age"]
    assert clone(Explainer(worlds.postage, rules=rules)).rules is not rules


class AboveMedian:
    """Halves the rows of any table of numbers, so that each check's table has two labels."""

    def predict(self, X):
        first = np.asarray(X, dtype=np.float64)[:, 0]
        return np.where(first > np.nanmedian(first), "b", "a")


# Checks of scikit-learn that do not apply, and why.
EXCEPTIONS = {
    "check_array_api_input": "skipped by scikit-learn itself: no array API here",
    "check_complex_data": "complex numbers are refused, in other words than scikit-learn's",
    "check_dtype_object": "an array of objects is no table; it is refused with a sentence",
    "check_estimators_dtypes": "of its 20 rows one label has four, too few to learn from",
    "check_estimators_empty_data_messages": "refused, in other words than scikit-learn's",
    "check_fit2d_1sample": "refused, in other words than scikit-learn's",
}


# Of twenty or thirty rows; few passes over so few rows would learn nothing.
FIXED_STEPS = replace(DEFAULT, hidden=16, batch=32, steps=100, rate=8e-3)


def above_median() -> Explainer:
    return quick(AboveMedian(), recipe=FIXED_STEPS)


def scikit_learns_checks() -> list:
    found = estimator_checks.estimator_checks_generator(above_median(), legacy=True)
    named = [(getattr(check, "func", check).__name__, check) for _, check in found]
    assert set(EXCEPTIONS) <= {name for name, _ in named}
    assert len(named) > 35
    return [pytest.param(check, id=name) for name, check in named if name not in EXCEPTIONS]


@pytest.mark.filterwarnings("ignore")  # the warnings about random rows are right
@pytest.mark.parametrize("check", scikit_learns_checks())
def test_estimator_checks_of_scikit_learn(check):
    check(above_median())


def test_a_pickled_explainer_explains_identically():
    here = worlds.bank()
    again = pickle.loads(pickle.dumps(here.explainer))
    assert again.explain(here.instances) == here.explainer.explain(here.instances)


# --- fitted attributes --------------------------------------------------------------------------


FITTED = [
    "classes_", "feature_names_in_", "history_", "n_features_in_", "prototypes_", "report_",
    "schema_",
]  # fmt: skip


@pytest.mark.parametrize("name", FITTED)
def test_fitted_attributes_do_not_exist_before_fit(name):
    assert not hasattr(Explainer(worlds.postage), name)
    with pytest.raises(NotFittedError, match=r"not fitted yet.* Call fit\(X\) first"):
        getattr(Explainer(worlds.postage), name)
    assert issubclass(NotFittedError, sklearn.exceptions.NotFittedError)
    assert hasattr(worlds.post().explainer, name)


def test_fitted_attributes_have_scikit_learns_meaning():
    explainer = worlds.bank().explainer
    assert explainer.classes_.tolist() == ["approved", "refused"]
    assert explainer.feature_names_in_.tolist() == list(explainer.schema_.names)
    assert explainer.n_features_in_ == len(explainer.schema_.features)


def test_true_labels_give_the_classifiers_accuracy_and_are_not_learned_from(tmp_path):
    rows = worlds.letters(300, 0)
    plain = quick(worlds.postage).fit(rows)
    labelled = quick(worlds.postage).fit(rows, np.array(["dear"] * 300))
    share = worlds.postage(rows).count("dear") / 300
    assert plain.report_.accuracy is None
    assert 0 < share < 1
    assert labelled.report_.accuracy == pytest.approx(share)
    assert f"true label of {share:.1%} of the rows" in " ".join(str(labelled.report_).split())
    labelled.save(tmp_path / "it.lapace")
    again = Explainer.load(tmp_path / "it.lapace", worlds.postage)
    assert again.report_.accuracy == labelled.report_.accuracy
    np.testing.assert_array_equal(
        np.stack([p.cells for p in plain.prototypes_]),
        np.stack([p.cells for p in labelled.prototypes_]),
    )


def test_true_labels_that_cannot_be_used():
    rows = worlds.letters(300, 0)
    with pytest.raises(InputError, match="y has 2 labels for 300 rows"):
        quick(worlds.postage).fit(rows, ["dear", "cheap"])
    with pytest.warns(UserWarning, match="No label of y is one the classifier predicts"):
        assert quick(worlds.postage).fit(rows, [0, 1] * 150).report_.accuracy is None


# --- frozen after fit ---------------------------------------------------------------------------


def test_parameters_assigned_after_fit_change_no_explanation():
    explainer = quick(worlds.postage, rules=["fixed stamp"]).fit(worlds.letters(300, 0))
    instances = worlds.letters(20, 5)
    before = explainer.explain(instances)
    explainer.rules = ["weight <= 1"]
    explainer.classifier = None
    explainer.n_prototypes = 9
    assert explainer.explain(instances) == before


# --- odd input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [(["a"] * 2 + ["b"] * 3, "No label has"), (["a"] * 2 + ["b"] * 30, "Only one label has")],
)
def test_labels_with_too_few_rows_are_refused(labels, sentence):
    rows = [{"x": float(i)} for i in range(len(labels))]
    with pytest.raises(InputError, match=f"{sentence} enough rows to learn from"):
        quick(lambda table: [labels[int(row["x"])] for row in table]).fit(rows)


# --- warnings and threads -----------------------------------------------------------------------


def test_warnings_point_at_the_caller(tmp_path):
    here = worlds.post()
    here.explainer.save(tmp_path / "it.lapace")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Explainer.load(tmp_path / "it.lapace", lambda rows: ["cheap"] * len(rows))
        label = pd.DataFrame({"x": np.arange(200) % 37, "label": ["no", "yes"] * 100})
        quick(lambda frame: frame["label"].to_numpy()).fit(label)
    assert [w.category for w in caught][:1] == [CentroidWarning]
    assert any("has exactly the classifier's labels" in str(w.message) for w in caught)
    assert {w.filename for w in caught} == {__file__}


@pytest.mark.parametrize(
    "use",
    [
        lambda e: e.explain([]),
        lambda e: e.counterfactuals([]),
        lambda e: e.sample("yes", 1),
        lambda e: e.save("nowhere.lapace"),
        lambda e: e.latent_map(),
    ],
)
def test_use_before_fit_is_refused(use):
    with pytest.raises(NotFittedError, match=r"Call fit\(X\) first"):
        use(Explainer(worlds.postage))
