"""Anything that predicts becomes one object; invalid outputs are reported as the model's."""

from __future__ import annotations

import pickle
import warnings
from importlib import import_module
from types import ModuleType

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeClassifier

import lapace
from lapace.classifier import Classifier, binned, threshold
from lapace.classifier.outputs import score_odds
from lapace.errors import ClassifierError, InputError
from lapace.schema import Schema
from tests.worlds import mixed_table

rng = np.random.default_rng(0)
ROWS = 240
NUMBERS = pd.DataFrame({"a": rng.normal(size=ROWS), "b": rng.normal(size=ROWS)})
POSITIVE = (NUMBERS["a"] + 0.3 * NUMBERS["b"] > 0).to_numpy()
SCHEMA = Schema.infer(NUMBERS)
CELLS = SCHEMA.cells(NUMBERS)


def by_sign(rows):
    return np.where(rows["a"] > 0, "yes", "no")


class TunedThreshold:
    """Predicts by a threshold other than 0.5: its label is often not its most probable class."""

    classes_ = ("no", "yes")

    def predict(self, rows):
        return ["yes" if p > 0.8 else "no" for p in self.predict_proba(rows)[:, 1]]

    def predict_proba(self, rows):
        p = 1 / (1 + np.exp(-rows["a"].to_numpy()))
        return np.stack([1 - p, p], axis=1)


def test_the_public_names_are_exactly_those_listed():
    names = {n for n, v in vars(lapace.classifier).items() if not isinstance(v, ModuleType)}
    assert {n for n in names if not n.startswith("_")} == set(lapace.classifier.__all__)


# ------------------------------------------------------------------------------------------------
# Models of any kind


def check_against_model(model, labels, frame=NUMBERS):
    schema = Schema.infer(frame)
    classifier, cells = Classifier(model, schema), schema.cells(frame)
    codes = classifier.fit_labels(cells)
    assert classifier.labels == labels
    assert {type(label) for label in classifier.labels} == {type(labels[0])}
    assert [labels[c] for c in codes] == np.ravel(model.predict(frame)).tolist()
    assert classifier.query(cells).probability == pytest.approx(model.predict_proba(frame))
    assert (classifier.query(cells).codes == codes).all()


@pytest.mark.parametrize(("negative", "positive"), [("approved", "denied"), (False, True), (-1, 1)])
def test_labels_of_any_type_come_back_as_python_values(negative, positive):
    model = RandomForestClassifier(10, random_state=0)
    labels = np.where(POSITIVE, positive, negative)
    check_against_model(model.fit(NUMBERS, labels), (negative, positive))


def test_other_libraries():
    xgboost, lightgbm = import_module("xgboost"), import_module("lightgbm")
    model = xgboost.XGBClassifier(n_estimators=10, n_jobs=1).fit(NUMBERS, POSITIVE.astype(int))
    check_against_model(model, (0, 1))
    model = lightgbm.LGBMClassifier(n_estimators=10, n_jobs=1, verbose=-1)
    check_against_model(model.fit(NUMBERS, np.where(POSITIVE, "y", "n")), ("n", "y"))


@given(
    st.lists(
        st.one_of(st.text(max_size=3), st.integers(-3, 3), st.booleans()), min_size=2, max_size=40
    ).filter(lambda labels: len(set(labels)) > 1)
)
def test_codes_stand_for_the_labels_the_model_returned(labels):
    classifier = Classifier(lambda rows: labels[: len(rows)], SCHEMA)
    codes = classifier.fit_labels(CELLS[: len(labels)])
    assert [classifier.labels[c] for c in codes] == labels
    assert list(classifier.labels) == sorted(
        classifier.labels, key=lambda v: (isinstance(v, str), v)
    )
    assert (classifier.predict(CELLS[: len(labels)]) == codes).all()


def test_the_model_sees_the_training_frame_and_new_levels():
    table, _ = mixed_table()
    schema = Schema.infer(table)
    seen = []

    def model(rows):
        seen.append(rows)
        return np.where(rows["town"] == "ash", "yes", "no")

    classifier = Classifier(model, schema)
    classifier.fit_labels(schema.cells(table))
    pd.testing.assert_frame_equal(seen[0], table)
    reading = schema.read(table.head(3).assign(town=["ash", "elm", None]))
    assert reading.schema["town"].extra == ("elm",)
    codes = classifier.predict(reading.cells, reading.schema)
    assert seen[-1]["town"].tolist()[:2] == ["ash", "elm"]
    assert pd.isna(seen[-1]["town"].tolist()[2])
    assert codes.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    "convert",
    [pl.from_pandas, pa.Table.from_pandas, lambda t: t.to_numpy(), lambda t: t.to_dict("records")],
)
def test_the_model_gets_the_users_kind_of_frame(convert):
    data = convert(NUMBERS)
    schema = Schema.infer(data)
    kinds = []

    def model(rows):
        kinds.append(type(rows))
        if isinstance(rows, list):
            return [row["a"] > 0 for row in rows]
        return (rows[:, 0] if isinstance(rows, np.ndarray) else np.asarray(rows["a"])) > 0

    codes = Classifier(model, schema).fit_labels(schema.read(data).cells)
    assert kinds == [type(data)]
    assert (codes == (NUMBERS["a"] > 0)).all()


@pytest.mark.parametrize(
    "output_type",
    [
        list,
        tuple,
        pd.Series,
        pd.Categorical,
        pl.Series,
        pa.array,
        lambda v: np.array(v, dtype=object),
        lambda v: np.array(v)[:, None],
        lambda v: pd.DataFrame({"label": v}),
        lambda v: pd.Series(v, dtype="string"),
    ],
)
def test_labels_of_any_container_type(output_type):
    words = ["yes" if p else "no" for p in POSITIVE]
    classifier = Classifier(lambda rows: output_type(words), SCHEMA)
    assert (classifier.fit_labels(CELLS) == POSITIVE).all()
    assert classifier.labels == ("no", "yes")


@pytest.mark.parametrize("kind", [bool, np.int8, np.uint64, np.int64, np.float32, "tensor"])
def test_labels_that_are_numbers(kind):
    """Whole floats are taken for ints; a tensor may be on any device, with or without gradients."""
    torch = import_module("torch")
    labels = torch.tensor(POSITIVE.astype(int)) if kind == "tensor" else POSITIVE.astype(kind)
    classifier = Classifier(lambda rows: labels, SCHEMA)
    assert (classifier.fit_labels(CELLS) == POSITIVE).all()
    assert {type(label) for label in classifier.labels} == {bool if kind is bool else int}
    assert classifier.query(CELLS).probability is None
    assert not classifier.has_probability


def test_code_finds_a_label_by_value_and_by_text():
    classifier = Classifier(lambda rows: POSITIVE.astype(int), SCHEMA, labels=[0, 1])
    assert [classifier.code(v) for v in (0, 1, "1", np.int64(1), 1.0, True)] == [0, 1, 1, 1, 1, 1]
    words = Classifier(lambda rows: rows, SCHEMA, labels=["denied", "approved"])
    assert words.code("denied") == 1
    with pytest.raises(InputError, match=r"never predicts 'aproved'.*Did you mean 'approved'\?"):
        words.code("aproved")
    with pytest.raises(InputError, match="never predicts None"):
        words.code(None)


# ------------------------------------------------------------------------------------------------
# Label and probability together

MOST_PROBABLE = [
    RandomForestClassifier(7, max_depth=3, random_state=0),
    ExtraTreesClassifier(6, max_depth=3, random_state=0),
    DecisionTreeClassifier(max_depth=4, random_state=0),
    GradientBoostingClassifier(n_estimators=10, random_state=0),
    HistGradientBoostingClassifier(max_iter=10, random_state=0),
    LogisticRegression(),
    MLPClassifier((5,), max_iter=400, random_state=0),
    make_pipeline(StandardScaler(), LogisticRegression()),
]


@pytest.mark.parametrize("model", MOST_PROBABLE, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("classes", [2, 3])
def test_one_call_gives_label_and_probability(model, classes):
    noise = np.random.default_rng(3).normal(scale=0.8, size=ROWS)
    labels = np.array(["x", "y", "z"])[np.digitize(NUMBERS["a"] + noise, [0.0, 0.9][: classes - 1])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(NUMBERS, labels)
    classifier = Classifier(model, SCHEMA)
    classifier.fit_labels(CELLS)
    points = np.random.default_rng(4).normal(size=(3000, 2))
    counted = classifier.with_fresh_count()
    codes, probability, scores = counted.query(points)
    assert (codes == classifier.predict(points)).all()
    assert scores == pytest.approx(np.log(np.maximum(probability, 1e-4)))
    assert probability == pytest.approx(model.predict_proba(SCHEMA.frame(points)))
    assert len(points) <= counted.n_queries < 1.2 * len(points)  # ties are queried again


class Careful(LogisticRegression):
    """A subclass of a class that predicts its most probable label, and does not."""

    def predict(self, rows):
        return np.where(self.predict_proba(rows)[:, 1] > 0.9, "yes", "no")


@pytest.mark.filterwarnings("ignore")  # scikit-learn would have us calibrate it instead
@pytest.mark.parametrize(
    "model", [TunedThreshold(), Careful(), make_pipeline(SVC(probability=True, random_state=0))]
)
def test_a_model_that_does_not_predict_its_most_probable_class_is_called_for_both(model):
    if not isinstance(model, TunedThreshold):
        model.fit(NUMBERS, np.where(POSITIVE, "yes", "no"))
    classifier = Classifier(model, SCHEMA)
    codes = classifier.fit_labels(CELLS)
    counted = classifier.with_fresh_count()
    predicted, probability, _ = counted.query(CELLS)
    assert (predicted == codes).all()
    assert probability == pytest.approx(np.asarray(model.predict_proba(NUMBERS)))
    assert counted.n_queries == 2 * ROWS


def test_ties_are_left_to_the_model():
    class RandomForestClassifier:  # named as the real one, to be taken for it
        __module__ = "sklearn.ensemble"
        classes_ = ("no", "yes")

        def predict(self, rows):
            return by_sign(rows)

        def predict_proba(self, rows):
            return np.full((len(rows), 2), 0.5)

    classifier = Classifier(RandomForestClassifier(), SCHEMA)
    codes = classifier.fit_labels(CELLS)
    assert (classifier.query(CELLS).codes == codes).all()


def test_probability_columns_follow_the_labels_not_the_model():
    class Backwards(TunedThreshold):
        classes_ = np.array(["yes", "maybe", "no"])

        def predict_proba(self, rows):
            no, yes = super().predict_proba(rows).T
            return np.stack([yes * 0.9, np.full(len(rows), 0.1), no * 0.9], axis=1).tolist()

        def predict(self, rows):
            return by_sign(rows)

    classifier = Classifier(Backwards(), SCHEMA)
    classifier.fit_labels(CELLS)
    probability = classifier.query(CELLS).probability
    assert classifier.labels == ("maybe", "no", "yes")  # with a class that is never predicted
    assert probability[:, 0] == pytest.approx(0.1)
    assert probability[:, 1:] == pytest.approx(0.9 * TunedThreshold().predict_proba(NUMBERS))


def test_without_classes_columns_must_follow_the_sorted_labels():
    class Nameless(TunedThreshold):
        classes_ = None

        def predict(self, rows):
            return by_sign(rows)

    class Reversed(Nameless):
        def predict_proba(self, rows):
            return super().predict_proba(rows)[:, ::-1]

    classifier = Classifier(Nameless(), SCHEMA)
    codes = classifier.fit_labels(CELLS)
    assert (classifier.query(CELLS).probability.argmax(axis=1) == codes).all()
    with pytest.raises(InputError, match=r"do not follow its sorted labels \('no', 'yes'\)"):
        Classifier(Reversed(), SCHEMA).fit_labels(CELLS)


# ------------------------------------------------------------------------------------------------
# Decision functions


class Decides:
    """Gives labels, and values of a decision function in columns of another order."""

    classes_ = ("z", "x", "y")

    def __init__(self, values):
        self.values = values

    def predict(self, rows):
        return np.array(["z", "x", "y"])[np.argmax(self.of(rows), axis=1)]

    def decision_function(self, rows):
        return self.values(self.of(rows))

    @staticmethod
    def of(rows):
        a, b = rows["a"].to_numpy(), rows["b"].to_numpy()
        return np.stack([a + b, a - b, -3 * a], axis=1)


def queried(model):
    classifier = Classifier(model, SCHEMA)
    classifier.fit_labels(CELLS)
    counted = classifier.with_fresh_count()
    return counted.query(CELLS), counted


def test_the_value_of_a_decision_function_is_the_odds_of_the_second_of_two_labels():
    model = SVC().fit(NUMBERS, np.where(POSITIVE, "yes", "no"))
    (codes, probability, scores), counted = queried(model)
    value = model.decision_function(NUMBERS)
    assert probability is None
    assert not counted.has_probability
    assert counted.n_queries == 2 * ROWS  # for the label and for the value
    assert score_odds(scores, np.ones(ROWS, dtype=int)) == pytest.approx(value)
    assert score_odds(scores, np.zeros(ROWS, dtype=int)) == pytest.approx(-value)
    assert ((score_odds(scores, codes) >= 0) == (codes == (value > 0))).all()


def test_a_decision_function_with_a_column_a_label_gives_each_label_its_own():
    (codes, probability, scores), _ = queried(Decides(lambda values: values.tolist()))
    assert probability is None
    values = Decides.of(NUMBERS)
    np.testing.assert_array_equal(scores, values[:, [1, 2, 0]])  # x, y, z
    ordered = np.sort(values, axis=1)
    np.testing.assert_allclose(score_odds(scores, codes), ordered[:, -1] - ordered[:, -2])


@pytest.mark.parametrize(
    "values",
    [
        lambda values: values[:, 0],
        lambda values: values[:, :2],
        lambda values: np.c_[values, values],
        lambda values: values[:, :, None],
        lambda values: values.astype(str).astype(object) + "?",
        lambda values: None,
    ],
    ids=["one value", "too few", "one against one", "cube", "words", "nothing"],
)
def test_any_other_shape_of_a_decision_function_says_nothing(values):
    (codes, probability, scores), _ = queried(Decides(values))
    assert len(codes) == ROWS
    assert probability is None
    assert scores is None


@pytest.mark.parametrize("classes", [None, ("x", "y"), ("x", "y", "z", "w")])
def test_a_decision_function_needs_classes_that_name_its_columns(classes):
    model = Decides(lambda values: values)
    model.classes_ = classes
    assert queried(model)[0].scores is None


def test_probabilities_come_before_a_decision_function():
    class Both(TunedThreshold):
        def decision_function(self, rows):
            raise AssertionError("asked for nothing")

    (_, probability, scores), _ = queried(Both())
    assert scores == pytest.approx(np.log(np.maximum(probability, 1e-4)))


@pytest.mark.parametrize(
    ("scores", "sentence"), [([0.2] * 5, r"\(240, 5\)"), (["likely", "not"], "type object")]
)
def test_strange_probabilities_are_reported(scores, sentence):
    class Broken(TunedThreshold):
        def predict_proba(self, rows):
            return [scores] * len(rows)

        def predict(self, rows):
            return by_sign(rows)

    classifier = Classifier(Broken(), SCHEMA)
    classifier.fit_labels(CELLS)
    with pytest.raises(ClassifierError, match=f"predict_proba returned .*{sentence}"):
        classifier.query(CELLS)


# ------------------------------------------------------------------------------------------------
# Errors


def test_what_is_not_a_classifier():
    with pytest.raises(InputError, match=r"The classifier is an object of type str.*load_class"):
        Classifier("model.skops", SCHEMA)
    with pytest.raises(InputError, match="is the class LogisticRegression"):
        Classifier(LogisticRegression, SCHEMA)


@pytest.mark.parametrize("model", [LinearRegression(), make_pipeline(StandardScaler(), SVR())])
def test_a_regressor_is_referred_to_binned_even_if_its_predictions_are_whole(model):
    model.fit(NUMBERS, np.round(NUMBERS["a"]))
    with pytest.raises(InputError, match=r"is a regressor\. lapace\.classifier\.binned\("):
        Classifier(model, SCHEMA)
    Classifier(binned(model, [0]), SCHEMA)


@pytest.mark.parametrize("wrapped", [lambda model: model, lambda model: threshold(model, 0.4)])
@pytest.mark.parametrize("named", [True, False])
def test_one_warning_says_that_names_of_columns_are_missing(named, wrapped):
    array = NUMBERS.to_numpy()
    table, other = (array, NUMBERS) if named else (NUMBERS, array)
    expected = LogisticRegression().fit(table, POSITIVE).predict(table)
    model = wrapped(LogisticRegression().fit(other, POSITIVE))
    schema = Schema.infer(table)
    classifier = Classifier(model, schema)
    with pytest.warns(UserWarning, match="by their position") as warned:
        codes = classifier.fit_labels(CELLS)
    assert len(warned) == 1
    classifier.query(CELLS)  # warnings are errors
    classifier.predict(CELLS[:3])
    if type(model) is LogisticRegression:
        np.testing.assert_array_equal(codes, expected.astype(int))


def test_an_exception_of_the_model_is_quoted():
    def model(rows):
        raise KeyError("no column 'zip'")

    with pytest.raises(ClassifierError, match=r"raised KeyError .* 240 rows: .*no column 'zip'"):
        Classifier(model, SCHEMA).fit_labels(CELLS)
    with pytest.raises(ClassifierError, match="NotFittedError"):
        Classifier(RandomForestClassifier(), SCHEMA).fit_labels(CELLS)


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (lambda n: ["yes"] * (n - 1), "returned 239 labels for 240 rows"),
        (lambda n: "yes", r"returned an array of shape \(\) for 240 rows"),
        (lambda n: np.full((n, 2), 0.5), r"shape \(240, 2\) .*probabilities go through"),
        (lambda n: np.zeros((n, 2, 2)), r"shape \(240, 2, 2\)"),
        (lambda n: np.linspace(0, 1, n), r"as a label.*from_probability\(model, .*binned\("),
        (lambda n: [None] * n, "returned None as a label"),
        (lambda n: [np.nan] * n, "returned nan as a label"),
        (lambda n: pd.Series([1, None] * (n // 2), dtype="Int64"), "as a label; a label has to be"),
        (lambda n: [float("inf")] * n, "as a label; a label has to be"),
        (lambda n: np.array([{}] * n, dtype=object), "a label has to be text"),
        (lambda n: ["yes", {"no": 1}] * (n // 2), "returned {'no': 1} as a label"),
        (lambda n: [b"yes", b"no"] * (n // 2), "a label has to be text"),
        (lambda n: [[1], [1, 2]] * (n // 2), "a label has to be text"),
    ],
)
def test_invalid_labels_are_reported_as_the_classifiers(output, sentence):
    with pytest.raises(ClassifierError, match=sentence):
        Classifier(lambda rows: output(len(rows)), SCHEMA).fit_labels(CELLS)


def test_a_label_predicted_for_no_training_row():
    outputs = iter([["no", "yes"] * (ROWS // 2), ["yes", "maybe"]])
    classifier = Classifier(lambda rows: next(outputs), SCHEMA)
    classifier.fit_labels(CELLS)
    with pytest.raises(
        ClassifierError,
        match=r"'maybe', which it predicted for no training row.*known labels: 'no', 'yes'\.",
    ):
        classifier.predict(CELLS[:2])


def test_one_label_only_leaves_nothing_to_cross_to():
    with pytest.raises(InputError, match="all 240 training rows the label 'yes'"):
        Classifier(lambda rows: ["yes"] * len(rows), SCHEMA).fit_labels(CELLS)


def test_no_rows():
    model = RandomForestClassifier(5, random_state=0).fit(NUMBERS, POSITIVE)
    classifier = Classifier(model, SCHEMA)
    with pytest.raises(InputError, match="no training rows"):
        classifier.fit_labels(CELLS[:0])
    classifier.fit_labels(CELLS)
    none = CELLS[:0]
    assert classifier.predict(none).shape == (0,)
    assert classifier.query(none).probability.shape == (0, 2)
    assert classifier.query(none).codes.shape == (0,)
    assert classifier.n_queries == ROWS


# ------------------------------------------------------------------------------------------------
# Counting


def test_queries_are_counted_per_copy():
    classifier = Classifier(by_sign, SCHEMA)
    expected = classifier.fit_labels(CELLS)
    own = classifier.with_fresh_count()
    assert (own.predict(CELLS) == expected).all()
    assert (own.n_queries, classifier.n_queries) == (ROWS, ROWS)
    again = pickle.loads(pickle.dumps(own))
    assert again.labels == classifier.labels
    assert (again.predict(CELLS) == expected).all()
