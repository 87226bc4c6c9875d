"""Pipelines trained on a table's raw columns, for data sets and `lapace fit`."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from lapace.classifier import Classifier
from lapace.datasets import train
from lapace.errors import InputError
from lapace.schema import Feature, Schema
from tests.worlds import mixed_table

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
    model = train(kind, Schema.infer(frame), frame, labels)
    assert (model.predict(frame) == labels).mean() > 0.85
    reference = train(kind, Schema.infer(table), table, labels)
    # Columns may be in another order.
    assert (model.predict(frame) == reference.predict(table)).mean() > 0.94
    strange = table.head(6).assign(town=["elm", None, "ash", "ash", "ash", "ash"], income=np.nan)
    assert set(model.predict(convert(strange))) <= {"yes", "no"}
    assert list(model.classes_) == ["no", "yes"]


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_where_training_had_none(kind):
    table, labels = mixed_table()
    whole = table.dropna().reset_index(drop=True)
    schema = Schema.infer(whole)
    model = train(kind, schema, whole, labels[table.notna().all(axis=1)])
    classifier = Classifier(model, schema, ["no", "yes"])
    gaps = schema.cells(whole)[:5].copy()
    gaps[np.arange(5), np.arange(5)] = np.nan  # one in each column
    assert set(classifier.predict(gaps)) <= {0, 1}


def test_settings_and_the_random_state_reach_the_estimator():
    table, labels = mixed_table()
    schema = Schema.infer(table)
    for kind in KINDS:
        one, two = (train(kind, schema, table, labels, random_state=3) for _ in range(2))
        assert (one.predict_proba(table) == two.predict_proba(table)).all()
    forest = train("forest", schema, table, labels)
    assert (forest[-1].n_estimators, forest[-1].max_depth) == (100, 6)
    assert train("forest", schema, table, labels, max_depth=2)[-1].max_depth == 2
    network = train("mlp", schema, table, labels, max_iter=5)
    assert network[-1].hidden_layer_sizes == (20, 20)
    prepared = network[:-1].transform(table)
    assert prepared.min() == 0
    assert prepared.max() == pytest.approx(1)


def test_an_ordinal_is_coded_in_its_order():
    table, labels = mixed_table()
    model = train("forest", Schema.infer(table), table, labels)
    rows = table.head(4).assign(
        size=pd.Categorical(["small", "medium", "large", None], ["small", "medium", "large"], True)
    )
    prepared = model[0].transform(rows)
    column = list(model[0].get_feature_names_out()).index("pipeline-1__size")
    assert prepared[:, column].tolist() == [0, 1, 2, -1]
    # An order of numbers that is not theirs
    table = pd.DataFrame({"grade": np.tile([1, 2, 3], 60), "x": np.arange(180) % 7})
    schema = Schema.infer(table, {"grade": Feature("grade", "ordinal", categories=[3, 1, 2])})
    model = train("forest", schema, table, table["grade"] == 3)
    assert (model.predict(table) == (table["grade"] == 3)).all()


def test_hundreds_of_categories_are_bounded():
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"shop": [f"s{i % 400}" for i in range(2000)], "x": draw.random(2000)})
    model = train("forest", Schema.infer(table), table, table["x"] > 0.5)
    assert model[:-1].transform(table).shape[1] <= 65
    assert (model.predict(table) == (table["x"] > 0.5)).mean() > 0.9


def test_images_are_taken_flat():
    images = np.random.default_rng(0).random((80, 4, 5)).astype(np.float32)
    labels = images[:, 0, 0] > 0.5
    model = train("forest", Schema.infer(images), images, labels, n_estimators=20)
    assert (model.predict(images) == labels).mean() > 0.9


def test_pipelines_consist_of_scikit_learns_classes():
    skops = import_module("skops.io")
    table, labels = mixed_table()
    model = train("forest", Schema.infer(table), table, labels, n_estimators=5)
    assert not [t for t in skops.get_untrusted_types(data=skops.dumps(model)) if "lapace" in t]


def test_unknown_kinds_and_records():
    table, labels = mixed_table()
    with pytest.raises(InputError, match=r"no classifier 'forrest'.*Did you mean 'forest'\?"):
        train("forrest", Schema.infer(table), table, labels)
    instances = [{"age": i % 40, "job": "ab"[i % 2]} for i in range(60)]
    with pytest.raises(InputError, match="not on records"):
        train("forest", Schema.infer(instances), instances, [i % 2 for i in range(60)])
