"""ONNX files: converted scikit-learn models and graphs made by hand."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from test_loaders import (
    CELLS,
    HIGH,
    LABELS,
    SCHEMA,
    TABLE,
    check_labels,
    explained,
    fitted,
    refused,
)

from lapace import Explainer
from lapace.apps.loaders import load_classifier
from lapace.classifier import Classifier, query_rows
from lapace.errors import ClassifierError, InputError
from lapace.schema import Schema

pytestmark = pytest.mark.needs("onnx")


def converted(model: Any, folder: Path, inputs: Any = None, **options: Any) -> Path:
    to_onnx = import_module("skl2onnx")
    types = import_module("skl2onnx.common.data_types")
    inputs = inputs or [("rows", types.FloatTensorType([None, 2]))]
    made = to_onnx.convert_sklearn(
        model, initial_types=inputs, options={id(model): options} if options else None
    )
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def graph(folder: Path, nodes: Any, inputs: Any, outputs: Any, weights: Any = (), **meta: str):
    """A graph made by hand, without any converter; inputs and outputs are shapes by name."""
    onnx = import_module("onnx")
    helper = onnx.helper
    tensors = [
        [helper.make_tensor_value_info(n, *shape) for n, shape in some.items()]
        for some in (inputs, outputs)
    ]
    made = helper.make_model(
        helper.make_graph(nodes, "by hand", *tensors, list(weights)),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    helper.set_model_props(made, meta)
    path = folder / "net.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def numbers(*shape: Any) -> tuple[int, list[Any] | None]:
    """Numbers in a shape; without one in any."""
    return import_module("onnx").TensorProto.FLOAT, list(shape) or None


def node(*words: Any, **attributes: Any) -> Any:
    return import_module("onnx").helper.make_node(*words, **attributes)


def line(folder: Path, *, last: str = "Softmax", rows: Any = None, **meta: str) -> Path:
    """A network of one layer: two classes, by the sign of a + b - 4."""
    array = import_module("onnx").numpy_helper.from_array
    weights = [
        array(np.array([[0, 1], [0, 1]], dtype=np.float32), "w"),
        array(np.array([4, 0], dtype=np.float32), "c"),
    ]
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Add", ["h", "c"], ["s"]),
        node(last, ["s"], ["y"]),
    ]
    shape = numbers(rows, 2)
    return graph(folder, nodes, {"x": shape}, {"y": shape}, weights, **meta)


@pytest.mark.parametrize("zipmap", [True, False])
@pytest.mark.parametrize("labels", [LABELS["text"], LABELS["whole"]], ids=["text", "whole"])
def test_labels_survive_onnx(labels, zipmap, tmp_path):
    model = LogisticRegression().fit(TABLE.to_numpy(), np.where(HIGH, *labels))
    loaded = load_classifier(converted(model, tmp_path, zipmap=zipmap))
    model.predict, predict = lambda t: predict(t.to_numpy()), model.predict
    model.predict_proba, proba = lambda t: proba(t.to_numpy()), model.predict_proba
    check_labels(loaded, model, labels)
    classifier = Classifier(loaded, SCHEMA, labels)
    assert classifier.query(CELLS[:50]).probability.shape == (50, 2)
    assert classifier.n_queries == 50  # one call gives both
    assert hasattr(loaded, "classes_") == (zipmap is True)


@pytest.mark.parametrize("convert", [lambda t: t, pl.from_pandas])
def test_an_input_for_each_column_is_found_by_name(convert, tmp_path):
    types = import_module("skl2onnx.common.data_types")
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder

    table = TABLE.assign(**{"home town": np.where(TABLE["b"] % 2, "ash", "elm")})
    high = np.where(table["a"] + 3 * (table["home town"] == "ash") > 1, "yes", "no")
    plain = table.rename(columns={"home town": "home_town"})
    columns = make_column_transformer(
        (StandardScaler(), ["a", "b"]), (OneHotEncoder(handle_unknown="ignore"), ["home_town"])
    )
    model = make_pipeline(columns, LogisticRegression()).fit(plain, high)
    inputs = [
        ("b", types.Int64TensorType([None, 1])),
        ("home_town", types.StringTensorType([None, 1])),
        ("a", types.FloatTensorType([None, 1])),
    ]
    path = converted(model, tmp_path, inputs)
    loaded = load_classifier(path)
    assert list(loaded.predict(convert(table))) == model.predict(plain).tolist()
    strange = table.assign(**{"home town": None})
    assert set(loaded.predict(convert(strange.astype({"home town": str})))) <= {"yes", "no"}
    with pytest.raises(InputError, match=r"an input 'home_town', and the table has no such column"):
        loaded.predict(convert(table.rename(columns={"home town": "city"})))
    with pytest.raises(InputError, match=r"Did you mean 'home_twn'\?"):
        loaded.predict(convert(table.rename(columns={"home town": "home_twn"})))
    with pytest.raises(ClassifierError, match="takes numbers, and column 'a' holds text such"):
        loaded.predict(convert(table.assign(a="x")))
    gaps = table.assign(b=table["b"].astype("Int64").mask(table["b"] == 3))
    with pytest.raises(ClassifierError, match="whole numbers, and column 'b' has missing values"):
        loaded.predict(convert(gaps))


def test_a_network_made_by_hand(tmp_path):
    expected = (TABLE["a"].astype(np.float32) + TABLE["b"] > 4).astype(int).tolist()
    loaded = load_classifier(line(tmp_path))
    assert list(loaded.predict(TABLE)) == expected
    assert loaded.classes_ == (0, 1)
    assert loaded.predict_proba(TABLE).sum(axis=1) == pytest.approx(1)
    named = load_classifier(line(tmp_path, classes='["low", "high"]'))
    assert list(named.predict(TABLE)) == [["low", "high"][v] for v in expected]
    scores = load_classifier(line(tmp_path, last="Identity"))
    assert list(scores.predict(TABLE)) == expected
    assert not hasattr(scores, "predict_proba")  # logits are no probabilities
    classifier = Classifier(scores, SCHEMA)
    classifier.fit_labels(CELLS)
    assert classifier.query(CELLS).probability is None


def test_a_network_that_takes_a_fixed_number_of_rows_is_refused(tmp_path):
    refused(r"takes 7 rows at a time.*a free first dimension", line(tmp_path, rows=7))


@pytest.mark.parametrize("shape", [[None, 3, 4], [None, 1, 3, 4], [None, 12], ["n", "h", "w"]])
def test_a_network_of_images(shape, tmp_path):
    array = import_module("onnx").numpy_helper.from_array
    weights = [array(np.eye(12, 3, dtype=np.float32), "w")]
    nodes = [node("Flatten", ["x"], ["f"]), node("MatMul", ["f", "w"], ["y"])]
    path = graph(tmp_path, nodes, {"x": numbers(*shape)}, {"y": numbers(None, 3)}, weights)
    images = np.random.default_rng(0).random((20, 3, 4))
    loaded = load_classifier(path)
    assert list(loaded.predict(images)) == images.reshape(20, 12)[:, :3].argmax(axis=1).tolist()


def test_counted_labels_are_named_by_the_metadata(tmp_path):
    nodes = [node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)]
    whole = import_module("onnx").TensorProto.INT64
    tensors = {"x": numbers(None, 2)}, {"y": (whole, [None])}
    first = [int(b > a) for a, b in TABLE.to_numpy()]
    assert list(load_classifier(graph(tmp_path, nodes, *tensors)).predict(TABLE)) == first
    said = load_classifier(graph(tmp_path, nodes, *tensors, classes="[false, true]")).predict(TABLE)
    assert said == [bool(v) for v in first]
    assert {type(v) for v in said} == {bool}
    refused("not a JSON list of labels", graph(tmp_path, nodes, *tensors, classes="no"))


def test_graphs_that_do_not_fit(tmp_path):
    loaded = load_classifier(line(tmp_path))
    with pytest.raises(InputError, match="takes 2 values for each row, and the table has 3 col"):
        loaded.predict(TABLE.assign(c=1))
    with pytest.raises(ClassifierError, match="column 'b' holds text such as 'x'"):
        loaded.predict(TABLE.assign(b="x"))
    with pytest.raises(ClassifierError, match="gives NaN for row 0"):
        loaded.predict(TABLE.assign(a=np.nan))
    total = node("ReduceSum", ["x"], ["y"], keepdims=1)
    one = graph(tmp_path, [total], {"x": numbers(None, 2)}, {"y": numbers()})
    with pytest.raises(InputError, match="neither a label nor one column for each class"):
        load_classifier(one).predict(TABLE)
    both = node("Concat", ["p", "q"], ["y"], axis=1)
    inputs = dict.fromkeys("pq", numbers(None, 2))
    two = graph(tmp_path, [both], inputs, {"y": numbers(None, 4)})
    with pytest.raises(InputError, match="several inputs, and 'p' has more than one column"):
        load_classifier(two).predict(TABLE)
    path = tmp_path / "net.onnx"
    whole = line(tmp_path).read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2], b"PK\x03\x04"):
        path.write_bytes(content)
        refused(r"'net\.onnx' is not an ONNX file", path)


def test_a_network_is_copied_and_queried_from_many_threads(tmp_path):
    loaded = load_classifier(line(tmp_path))
    expected = list(loaded.predict(TABLE))
    for again in (copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))):
        assert list(again.predict(TABLE)) == expected
    with ThreadPoolExecutor(4) as pool:
        assert all(
            list(p) == expected for p in pool.map(lambda _: loaded.predict(TABLE), range(20))
        )


def test_a_row_that_a_graph_cannot_take_is_refused_alone(tmp_path):
    types = import_module("skl2onnx.common.data_types")
    table = pd.DataFrame(np.random.default_rng(0).integers(0, 99, (200, 2)), columns=["a", "b"])
    model = LogisticRegression().fit(table.to_numpy(), table["a"] > table["b"])
    path = converted(model, tmp_path, [("rows", types.Int64TensorType([None, 2]))])
    schema = Schema.infer(table)
    cells = np.array([[10, 60], [np.nan, 50], [90, 70]])
    classifier = Classifier(load_classifier(path), schema, [0, 1])
    found, refused = query_rows(classifier, cells, schema, known_row=cells[:1])
    assert found.codes.tolist() == [0, -1, 1]
    assert "column 'a' has missing values" in refused[1]


def test_an_onnx_file_beside_the_explainer_is_loaded(tmp_path):
    path = line(tmp_path, classes='["low", "high"]')
    explainer = fitted(load_classifier(path))
    assert explainer.classes_.tolist() == ["high", "low"]
    explainer.save(tmp_path / "m.lapace", classifier=str(path))
    again = Explainer.load(tmp_path / "m.lapace", device="cpu")
    assert explained(again) == explained(explainer)
    explanation = again.explain(TABLE.head(5))
    assert np.isfinite(explanation.nearest().probability).all()
