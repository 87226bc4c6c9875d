"""Anything that predicts becomes one object; invalid outputs are reported as the model's."""

from __future__ import annotations

import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
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
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import lapace
from lapace.classifiers import Classifier, train
from lapace.errors import ClassifierError, InputError
from lapace.schema import Feature, Schema

rng = np.random.default_rng(0)
ROWS = 240
NUMBERS = pd.DataFrame({"a": rng.normal(size=ROWS), "b": rng.normal(size=ROWS)})
POSITIVE = (NUMBERS["a"] + 0.3 * NUMBERS["b"] > 0).to_numpy()
SCHEMA = Schema.infer(NUMBERS)
CELLS = SCHEMA.cells(NUMBERS)


def mixed_table(rows: int = ROWS) -> tuple[pd.DataFrame, np.ndarray]:
    """Every kind of column, most of them with gaps, and a label that needs all of them."""
    draw = np.random.default_rng(1)
    size = draw.integers(0, 3, rows)
    table = pd.DataFrame(
        {
            "income": np.where(draw.random(rows) < 0.1, np.nan, draw.normal(50, 10, rows).round(1)),
            "rooms": draw.integers(1, 8, rows),
            "size": pd.Categorical.from_codes(size, ["small", "medium", "large"], ordered=True),
            "town": draw.choice(["ash", "birch", "cedar", "dale"], rows),
            "garden": draw.random(rows) < 0.5,
        }
    )
    score = np.nan_to_num(table["income"] - 50, nan=-5) + 8 * (size - 1)
    score += 6 * (table["town"] == "ash") + 4 * table["garden"]
    table.loc[draw.random(rows) < 0.05, "town"] = None
    table.loc[draw.random(rows) < 0.05, "size"] = None
    return table, np.where(score > np.median(score), "yes", "no")


class TunedThreshold:
    """Predicts by a threshold other than 0.5: its label is often not its most probable class."""

    classes_ = ("no", "yes")

    def predict(self, rows):
        return ["yes" if p > 0.8 else "no" for p in self.predict_proba(rows)[:, 1]]

    def predict_proba(self, rows):
        p = 1 / (1 + np.exp(-rows["a"].to_numpy()))
        return np.stack([1 - p, p], axis=1)


def test_the_public_names_are_exactly_those_listed():
    names = {n for n, v in vars(lapace.classifiers).items() if not isinstance(v, ModuleType)}
    assert {n for n in names if not n.startswith("_")} == set(lapace.classifiers.__all__)


# ------------------------------------------------------------------------------------------------
# Models of any kind


@pytest.mark.parametrize(
    ("negative", "positive"), [("denied", "approved"), (0, 1), (False, True), (3, 7), (-1, 1)]
)
def test_labels_of_any_type_come_back_as_python_values(negative, positive):
    labels = np.where(POSITIVE, positive, negative)
    model = RandomForestClassifier(10, random_state=0).fit(NUMBERS, labels)
    classifier = Classifier(model, SCHEMA)
    codes = classifier.fit_labels(CELLS)
    assert classifier.labels == tuple(sorted([negative, positive]))
    assert {type(label) for label in classifier.labels} == {type(negative)}
    assert [classifier.labels[c] for c in codes] == model.predict(NUMBERS).tolist()
    assert classifier.predict_proba(CELLS).shape == (ROWS, 2)


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


def test_multi_class_strings():
    labels = np.array(["low", "mid", "high"])[np.digitize(NUMBERS["a"], [-0.5, 0.5])]
    model = LogisticRegression().fit(NUMBERS, labels)
    classifier = Classifier(model, SCHEMA)
    codes = classifier.fit_labels(CELLS)
    assert classifier.labels == ("high", "low", "mid")
    probability = classifier.predict_proba(CELLS)
    assert probability.sum(axis=1) == pytest.approx(1)
    assert (probability.argmax(axis=1) == codes).all()


def test_a_pipeline_on_raw_mixed_columns_sees_the_training_frame():
    table, labels = mixed_table()
    schema = Schema.infer(table)
    seen = []

    def model(rows):
        seen.append(rows)
        return np.where(rows["town"] == "ash", "yes", "no")

    Classifier(model, schema).fit_labels(schema.cells(table))
    assert list(seen[0].columns) == list(table.columns)
    assert (seen[0].dtypes == table.dtypes).all()
    pd.testing.assert_frame_equal(seen[0], table)
    model = train("forest", schema, table, labels)
    classifier = Classifier(model, schema)
    codes = classifier.fit_labels(schema.cells(table))
    assert [classifier.labels[c] for c in codes] == model.predict(table).tolist()


@pytest.mark.parametrize("convert", [pl.from_pandas, pa.Table.from_pandas, lambda t: t.to_numpy()])
def test_the_model_gets_the_users_kind_of_frame(convert):
    data = convert(NUMBERS)
    schema = Schema.infer(data)
    kinds = []

    def model(rows):
        kinds.append(type(rows))
        column = rows[:, 0] if isinstance(rows, np.ndarray) else np.asarray(rows["a"])
        return column > 0

    codes = Classifier(model, schema).fit_labels(schema.read(data).cells)
    assert kinds == [type(data)]
    assert (codes == (NUMBERS["a"] > 0)).all()


def test_records_are_handed_over_as_records():
    instances = [{"age": 20 + i % 40, "job": ["cook", "nurse"][i % 2]} for i in range(80)]
    schema = Schema.infer(instances)
    classifier = Classifier(
        lambda rows: [r["job"] == "cook" and r["age"] > 30 for r in rows], schema
    )
    codes = classifier.fit_labels(schema.cells(instances))
    assert classifier.labels == (False, True)
    assert codes.tolist() == [int(p["job"] == "cook" and p["age"] > 30) for p in instances]


PRICES = [Decimal(cents).scaleb(-2) for cents in range(1005, 1400, 5)]


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"price": pd.Series([None, *PRICES], dtype=object)}),
        pd.DataFrame({"price": pd.array([None, *PRICES], pd.ArrowDtype(pa.decimal128(8, 2)))}),
        pl.DataFrame({"price": [None, *PRICES]}, schema={"price": pl.Decimal(8, 2)}),
        pa.table({"price": pa.array([None, *PRICES], pa.decimal128(8, 2))}),
        [{"price": price} for price in [None, *PRICES]],
    ],
    ids=["pandas object", "pandas arrow", "polars", "pyarrow", "records"],
)
def test_decimals_reach_the_model_as_decimals(table):
    seen = []

    def model(rows):
        records = rows if isinstance(rows, list) else pl.DataFrame(rows).to_dicts()
        if isinstance(rows, pd.DataFrame):
            records = rows.to_dict("records")
        seen[:] = [record["price"] for record in records]
        return [isinstance(v, Decimal) and v > 12 for v in seen]

    schema = Schema.infer(table)
    classifier = Classifier(model, schema)
    classifier.fit_labels(schema.cells(table))
    assert seen[0] is None or pd.isna(seen[0])
    assert seen[1:] == PRICES
    classifier.predict(np.array([[12.35], [11.0]]))  # values no training row has
    assert [(type(v), v) for v in seen] == [(Decimal, Decimal("12.35")), (Decimal, Decimal(11))]


def test_xgboost():
    xgboost = import_module("xgboost")
    model = xgboost.XGBClassifier(n_estimators=10, n_jobs=1).fit(NUMBERS, POSITIVE.astype(int))
    check_against_model(model, (0, 1))


def test_lightgbm():
    lightgbm = import_module("lightgbm")
    model = lightgbm.LGBMClassifier(n_estimators=10, n_jobs=1, verbose=-1)
    check_against_model(model.fit(NUMBERS, np.where(POSITIVE, "y", "n")), ("n", "y"))


def check_against_model(model, labels):
    classifier = Classifier(model, SCHEMA)
    codes = classifier.fit_labels(CELLS)
    assert classifier.labels == labels
    assert [labels[c] for c in codes] == model.predict(NUMBERS).tolist()
    assert classifier.predict_proba(CELLS) == pytest.approx(model.predict_proba(NUMBERS))
    assert (classifier.query(CELLS).codes == codes).all()


def test_a_torch_module_in_a_callable():
    torch = import_module("torch")
    module = torch.nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        module.bias.zero_()

    def model(rows):  # a tensor, on whatever device, with or without gradients
        return module(torch.tensor(rows.to_numpy(), dtype=torch.float32)).argmax(dim=1)

    classifier = Classifier(model, SCHEMA)
    assert (classifier.fit_labels(CELLS) == (NUMBERS["a"] > 0)).all()
    assert classifier.labels == (0, 1)
    assert classifier.predict_proba(CELLS) is None
    assert not classifier.has_probability


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


def test_whole_floats_are_taken_for_ints():
    classifier = Classifier(lambda rows: POSITIVE.astype(np.float32), SCHEMA)
    classifier.fit_labels(CELLS)
    assert classifier.labels == (0, 1)
    assert {type(label) for label in classifier.labels} == {int}


def test_new_levels_of_a_query_reach_the_model():
    table, _ = mixed_table()
    schema = Schema.infer(table)
    seen = []

    def model(rows):
        seen.append(rows["town"].tolist())
        return np.where(rows["town"] == "ash", "yes", "no")

    classifier = Classifier(model, schema)
    classifier.fit_labels(schema.cells(table))
    query = table.head(3).assign(town=["ash", "elm", None])
    reading = schema.read(query)
    assert reading.schema["town"].extra == ("elm",)
    codes = classifier.predict(reading.cells, reading.schema)
    assert seen[-1][:2] == ["ash", "elm"]
    assert pd.isna(seen[-1][2])
    assert codes.tolist() == [1, 0, 0]


def test_known_labels_need_no_training_rows():
    model = RandomForestClassifier(5, random_state=0).fit(NUMBERS, POSITIVE)
    known = Classifier(model, SCHEMA, labels=[True, False])
    assert known.labels == (False, True)
    learned = Classifier(model, SCHEMA)
    assert (known.predict(CELLS) == learned.fit_labels(CELLS)).all()
    assert known.n_queries == ROWS


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
    codes, probability = counted.query(points)
    assert (codes == classifier.predict(points)).all()
    assert probability == pytest.approx(classifier.predict_proba(points))
    assert len(points) <= counted.n_queries < 1.2 * len(points)  # ties are queried again


def test_a_model_that_does_not_predict_its_most_probable_class_is_called_for_both():
    for model in (
        TunedThreshold(),
        make_pipeline(StandardScaler(), SVC(probability=True, random_state=0)),
    ):
        if not isinstance(model, TunedThreshold):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # scikit-learn would have us calibrate it instead
                model.fit(NUMBERS, np.where(POSITIVE, "yes", "no"))
        classifier = Classifier(model, SCHEMA)
        codes = classifier.fit_labels(CELLS)
        counted = classifier.with_fresh_count()
        predicted, probability = counted.query(CELLS)
        assert (predicted == codes).all()
        assert probability == pytest.approx(np.asarray(model.predict_proba(NUMBERS)))
        assert counted.n_queries == 2 * ROWS
    tuned = Classifier(TunedThreshold(), SCHEMA)
    codes = tuned.fit_labels(CELLS)
    assert (tuned.predict_proba(CELLS).argmax(axis=1) != codes).any()


def test_ties_are_left_to_the_model():
    class RandomForestClassifier:  # named as the real one, to be taken for it
        __module__ = "sklearn.ensemble"
        classes_ = ("no", "yes")

        def predict(self, rows):
            return np.where(rows["a"].to_numpy() < 0, "no", "yes")

        def predict_proba(self, rows):
            return np.full((len(rows), 2), 0.5)

    classifier = Classifier(RandomForestClassifier(), SCHEMA)
    codes = classifier.fit_labels(CELLS)
    assert (classifier.query(CELLS).codes == codes).all()


def test_a_subclass_is_not_assumed_to_predict_its_most_probable_class():
    class Careful(LogisticRegression):
        def predict(self, rows):
            return np.where(self.predict_proba(rows)[:, 1] > 0.9, 1, 0)

    model = Careful().fit(NUMBERS, POSITIVE.astype(int))
    classifier = Classifier(model, SCHEMA)
    codes = classifier.fit_labels(CELLS)
    assert (classifier.query(CELLS).codes == codes).all()


def test_probability_columns_follow_the_labels_not_the_model():
    class Backwards(TunedThreshold):
        classes_ = np.array(["yes", "maybe", "no"])

        def predict_proba(self, rows):
            no, yes = super().predict_proba(rows).T
            return np.stack([yes * 0.9, np.full(len(rows), 0.1), no * 0.9], axis=1)

        def predict(self, rows):
            return np.where(rows["a"] > 0, "yes", "no")

    classifier = Classifier(Backwards(), SCHEMA)
    classifier.fit_labels(CELLS)
    probability = classifier.predict_proba(CELLS)
    assert classifier.labels == ("maybe", "no", "yes")  # with a class that is never predicted
    assert probability[:, 0] == pytest.approx(0.1)
    assert probability[:, 1:] == pytest.approx(0.9 * TunedThreshold().predict_proba(NUMBERS))


def test_without_classes_columns_must_follow_the_sorted_labels():
    class Nameless(TunedThreshold):
        classes_ = None

        def predict(self, rows):
            return np.where(rows["a"] > 0, "yes", "no")

    class Reversed(Nameless):
        def predict_proba(self, rows):
            return super().predict_proba(rows)[:, ::-1]

    classifier = Classifier(Nameless(), SCHEMA)
    codes = classifier.fit_labels(CELLS)
    assert (classifier.predict_proba(CELLS).argmax(axis=1) == codes).all()
    with pytest.raises(InputError, match=r"do not follow its sorted labels \('no', 'yes'\)"):
        Classifier(Reversed(), SCHEMA).fit_labels(CELLS)


def test_strange_probabilities_are_reported():
    class Broken(TunedThreshold):
        def predict_proba(self, rows):
            return np.full((len(rows), 5), 0.2)

        def predict(self, rows):
            return np.where(rows["a"] > 0, "yes", "no")

    class Wordy(Broken):
        def predict_proba(self, rows):
            return [["likely", "not"]] * len(rows)

    for model, sentence in ((Broken(), r"\(240, 5\)"), (Wordy(), "type object")):
        classifier = Classifier(model, SCHEMA)
        classifier.fit_labels(CELLS)
        with pytest.raises(ClassifierError, match=f"predict_proba returned .*{sentence}"):
            classifier.predict_proba(CELLS)


def test_probabilities_as_lists():
    class Plain(TunedThreshold):
        def predict_proba(self, rows):
            return super().predict_proba(rows).tolist()

        def predict(self, rows):
            return ["yes" if p > 0.8 else "no" for _, p in self.predict_proba(rows)]

    classifier = Classifier(Plain(), SCHEMA)
    classifier.fit_labels(CELLS)
    assert classifier.predict_proba(CELLS) == pytest.approx(TunedThreshold().predict_proba(NUMBERS))


# ------------------------------------------------------------------------------------------------
# Errors


def test_what_is_not_a_classifier():
    with pytest.raises(InputError, match="The classifier is an object of type str"):
        Classifier("forest", SCHEMA)
    with pytest.raises(InputError, match="is the class LogisticRegression"):
        Classifier(LogisticRegression, SCHEMA)


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
        (lambda n: np.full((n, 2), 0.5), "2 values for each row, as if they were probabilities"),
        (lambda n: np.zeros((n, 2, 2)), r"shape \(240, 2, 2\)"),
        (lambda n: np.linspace(0, 1, n), r"a fraction, as a label.*wrap it in a callable"),
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


def test_an_output_that_is_no_array():
    class Hidden:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("sealed")

    with pytest.raises(ClassifierError, match="a Hidden that is not one label per row: sealed"):
        Classifier(lambda rows: Hidden(), SCHEMA).fit_labels(CELLS)


def test_a_label_predicted_for_no_training_row():
    outputs = iter([["no", "yes"] * (ROWS // 2), ["yes", "maybe"]])
    classifier = Classifier(lambda rows: next(outputs), SCHEMA)
    classifier.fit_labels(CELLS)
    with pytest.raises(
        ClassifierError,
        match=r"'maybe', which it predicted for no training row.*known labels: 'no', 'yes'\.",
    ):
        classifier.predict(CELLS[:2])


def test_a_class_no_training_row_has_is_known_from_the_model():
    labels = np.where(NUMBERS["a"] > 2.2, "rare", np.where(POSITIVE, "yes", "no"))
    model = DecisionTreeClassifier(random_state=0).fit(NUMBERS, labels)
    few = CELLS[(labels != "rare")]
    classifier = Classifier(model, SCHEMA)
    classifier.fit_labels(few)
    assert classifier.labels == ("no", "rare", "yes")
    assert classifier.query(np.array([[3.0, 0.0]])).codes.tolist() == [1]


def test_one_label_only_leaves_nothing_to_cross_to():
    with pytest.raises(InputError, match="all 240 training rows the label 'yes'"):
        Classifier(lambda rows: ["yes"] * len(rows), SCHEMA).fit_labels(CELLS)


def test_queries_before_the_labels_are_known():
    classifier = Classifier(lambda rows: POSITIVE, SCHEMA)
    for method in (classifier.predict, classifier.predict_proba, classifier.query):
        with pytest.raises(ClassifierError, match="call `fit_labels` first"):
            method(CELLS)


def test_no_rows():
    model = RandomForestClassifier(5, random_state=0).fit(NUMBERS, POSITIVE)
    classifier = Classifier(model, SCHEMA)
    with pytest.raises(InputError, match="no training rows"):
        classifier.fit_labels(CELLS[:0])
    classifier.fit_labels(CELLS)
    none = CELLS[:0]
    assert classifier.predict(none).shape == (0,)
    assert classifier.predict_proba(none).shape == (0, 2)
    assert classifier.query(none).codes.shape == (0,)
    assert classifier.n_queries == ROWS


# ------------------------------------------------------------------------------------------------
# Counting, chunks, threads


def test_large_queries_are_cut_into_chunks(monkeypatch):
    calls = []

    def model(rows):
        calls.append(len(rows))
        return np.where(rows["a"] > 0, "yes", "no")

    whole = Classifier(model, SCHEMA)
    expected = whole.fit_labels(CELLS)
    assert calls == [ROWS]
    monkeypatch.setattr("lapace.classifiers.classifier.ROWS_PER_CALL", 100)
    calls.clear()
    cut = Classifier(model, SCHEMA)
    assert (cut.fit_labels(CELLS) == expected).all()
    assert (cut.predict(CELLS) == expected).all()
    assert calls == [100, 100, 40] * 2
    assert cut.n_queries == 2 * ROWS
    monkeypatch.setattr(
        "lapace.classifiers.classifier.CELLS_PER_CALL", 100
    )  # two columns: fifty rows
    calls.clear()
    assert (cut.predict(CELLS) == expected).all()
    assert max(calls) == 50


def test_chunks_may_each_lack_some_labels(monkeypatch):
    monkeypatch.setattr("lapace.classifiers.classifier.ROWS_PER_CALL", 1)
    model = RandomForestClassifier(3, random_state=0).fit(NUMBERS, POSITIVE)
    classifier = Classifier(model, SCHEMA)
    codes = classifier.fit_labels(CELLS[:20])
    assert codes.tolist() == model.predict(NUMBERS[:20]).astype(int).tolist()
    assert (classifier.query(CELLS[:20]).codes == codes).all()


def test_queries_are_counted_across_threads_and_per_copy():
    classifier = Classifier(lambda rows: np.where(rows["a"] > 0, "yes", "no"), SCHEMA)
    expected = classifier.fit_labels(CELLS)
    own = classifier.with_fresh_count()
    with ThreadPoolExecutor(8) as pool:
        predictions = list(pool.map(lambda _: own.predict(CELLS), range(50)))
    assert all((codes == expected).all() for codes in predictions)
    assert own.n_queries == 50 * ROWS
    assert classifier.n_queries == ROWS


def test_copies_count_anew():
    model = RandomForestClassifier(3, random_state=0).fit(NUMBERS, POSITIVE)
    classifier = Classifier(model, SCHEMA)
    codes = classifier.fit_labels(CELLS)
    again = pickle.loads(pickle.dumps(classifier))
    assert (again.labels, again.n_queries) == (classifier.labels, 0)
    assert (again.predict(CELLS) == codes).all()


# ------------------------------------------------------------------------------------------------
# Trained pipelines

KINDS = ("forest", "mlp", "boosting")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "convert",
    [lambda t: t, lambda t: t.convert_dtypes(), pl.from_pandas, pa.Table.from_pandas],
    ids=["pandas", "nullable", "polars", "pyarrow"],
)
def test_trained_on_raw_columns_of_any_frame(kind, convert):
    table, labels = mixed_table(600)
    frame = convert(table)
    schema = Schema.infer(frame)
    model = train(kind, schema, frame, labels)
    assert (model.predict(frame) == labels).mean() > 0.85
    reference = train(kind, Schema.infer(table), table, labels)
    assert (
        model.predict(frame) == reference.predict(table)
    ).mean() > 0.94  # columns may be in another order
    strange = table.head(6).assign(town=["elm", None, "ash", "ash", "ash", "ash"], income=np.nan)
    assert set(model.predict(convert(strange))) <= {"yes", "no"}
    assert list(model.classes_) == ["no", "yes"]


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_where_training_had_none(kind):
    table, labels = mixed_table()
    whole = table.dropna().reset_index(drop=True)
    schema = Schema.infer(whole)
    model = train(kind, schema, whole, labels[table.notna().all(axis=1)])
    classifier = Classifier(model, schema)
    classifier.fit_labels(schema.cells(whole))
    gaps = schema.cells(whole)[:5].copy()
    gaps[np.arange(5), np.arange(5)] = np.nan  # one in each column
    assert set(classifier.predict(gaps)) <= {0, 1}


def test_the_same_random_state_trains_the_same_model():
    table, labels = mixed_table()
    schema = Schema.infer(table)
    for kind in KINDS:
        one, two = (train(kind, schema, table, labels, random_state=3) for _ in range(2))
        assert (one.predict_proba(table) == two.predict_proba(table)).all()


def test_settings_reach_the_estimator():
    table, labels = mixed_table()
    schema = Schema.infer(table)
    forest = train("forest", schema, table, labels)
    assert (forest[-1].n_estimators, forest[-1].max_depth) == (100, 6)
    assert train("forest", schema, table, labels, max_depth=2)[-1].max_depth == 2
    assert train("mlp", schema, table, labels, max_iter=5)[-1].hidden_layer_sizes == (20, 20)


def test_an_ordinal_is_coded_in_its_order():
    table, labels = mixed_table()
    schema = Schema.infer(table)
    model = train("forest", schema, table, labels)
    rows = table.head(4).assign(
        size=pd.Categorical(["small", "medium", "large", None], ["small", "medium", "large"], True)
    )
    prepared = model[0].transform(rows)
    column = list(model[0].get_feature_names_out()).index("pipeline-1__size")
    assert prepared[:, column].tolist() == [0, 1, 2, -1]


def test_an_order_of_numbers_that_is_not_theirs():
    table = pd.DataFrame({"grade": np.tile([1, 2, 3], 60), "x": np.arange(180) % 7})
    schema = Schema.infer(table, {"grade": Feature.ordinal("grade", [3, 1, 2])})
    model = train("forest", schema, table, table["grade"] == 3)
    assert (model.predict(table) == (table["grade"] == 3)).all()


def test_mlp_inputs_lie_between_zero_and_one():
    table, labels = mixed_table()
    model = train("mlp", Schema.infer(table), table, labels)
    prepared = model[:-1].transform(table)
    assert prepared.min() == 0
    assert prepared.max() == pytest.approx(1)


def test_hundreds_of_categories_are_bounded():
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"shop": [f"s{i % 400}" for i in range(2000)], "x": draw.random(2000)})
    schema = Schema.infer(table)
    model = train("forest", schema, table, table["x"] > 0.5)
    assert model[:-1].transform(table).shape[1] <= 65
    assert (model.predict(table) == (table["x"] > 0.5)).mean() > 0.9


def test_images_are_taken_flat():
    images = np.random.default_rng(0).random((80, 4, 5)).astype(np.float32)
    labels = images[:, 0, 0] > 0.5
    schema = Schema.infer(images)
    model = train("forest", schema, images, labels, n_estimators=20)
    classifier = Classifier(model, schema)
    codes = classifier.fit_labels(schema.cells(images))
    assert (codes == labels).mean() > 0.9


def test_pipelines_consist_of_scikit_learns_classes():
    skops = import_module("skops.io")
    table, labels = mixed_table()
    for frame in (table, pa.Table.from_pandas(table)):
        model = train("forest", Schema.infer(frame), frame, labels, n_estimators=5)
        data = skops.dumps(model)
        types = skops.get_untrusted_types(data=data)
        assert not [t for t in types if "lapace" in t]
        again = skops.loads(data, trusted=types)
        assert (again.predict(frame) == model.predict(frame)).all()


def test_unknown_kinds_and_records():
    with pytest.raises(InputError, match=r"no classifier 'forrest'.*Did you mean 'forest'\?"):
        train("forrest", SCHEMA, NUMBERS, POSITIVE)
    instances = [{"age": i % 40, "job": "ab"[i % 2]} for i in range(60)]
    with pytest.raises(InputError, match="not on records"):
        train("forest", Schema.infer(instances), instances, [i % 2 for i in range(60)])
