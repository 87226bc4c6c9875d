"""Classifiers from outside, each against the real thing: files, modules, and a server that may be
slow, wrong, or gone half-way."""

from __future__ import annotations

import asyncio
import copy
import io
import json
import pickle
import socket
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import joblib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier, VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import worlds
from lapace import Explainer
from lapace.classifiers import (
    Classifier,
    load_bytes,
    load_classifier,
    remote,
    save_classifier,
    train,
)
from lapace.errors import ClassifierError, InputError
from lapace.schema import Schema
from test_classifiers import mixed_table

rng = np.random.default_rng(0)
TABLE = pd.DataFrame({"a": rng.normal(size=200).round(2), "b": rng.integers(0, 9, 200)})
HIGH = (TABLE["a"] + TABLE["b"] > 4).to_numpy()
SCHEMA = Schema.infer(TABLE)
CELLS = SCHEMA.cells(TABLE)
LABELS: dict[str, tuple[Any, Any]] = {
    "text": ("high", "low"),
    "whole": (3, 7),
    "boolean": (True, False),
}
each_label = pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)


class Canary:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


@pytest.fixture
def canary(tmp_path):
    """Where a pickle that was run leaves its mark."""
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), "something ran"


def written(model: Any, folder: Path) -> Path:
    save_classifier(model, folder / "model.skops")
    return folder / "model.skops"


# ------------------------------------------------------------------------------------------------
# skops


@pytest.mark.parametrize("kind", ["forest", "mlp", "boosting"])
@pytest.mark.parametrize(
    "convert",
    [lambda t: t, lambda t: t.convert_dtypes(), pl.from_pandas, pa.Table.from_pandas],
    ids=["pandas", "nullable", "polars", "pyarrow"],
)
def test_stock_classifiers_open_with_nothing_to_trust(kind, convert, tmp_path):
    table, labels = mixed_table(120)
    frame = convert(table)
    quick = {"n_estimators": 3} if kind == "forest" else {"max_iter": 3}
    model = train(kind, Schema.infer(frame), frame, labels, **quick)
    again = load_classifier(written(model, tmp_path))
    assert (again.predict_proba(frame) == model.predict_proba(frame)).all()
    assert again.predict(frame).tolist() == model.predict(frame).tolist()


def test_stock_classifiers_of_images(tmp_path):
    images = np.random.default_rng(0).random((60, 3, 4))
    model = train("forest", Schema.infer(images), images, images[:, 0, 0] > 0.5, n_estimators=3)
    again = load_classifier(written(model, tmp_path))
    assert (again.predict(images) == model.predict(images)).all()


@each_label
def test_labels_survive_skops(labels, tmp_path):
    model = RandomForestClassifier(3).fit(TABLE, np.where(HIGH, *labels))
    check_labels(load_classifier(written(model, tmp_path)), model, labels)


def check_labels(opened: Any, model: Any, labels: tuple[Any, Any]) -> None:
    """The same labels, of the same types, as the model in our hands gives."""
    classifier = Classifier(opened, SCHEMA)
    codes = classifier.fit_labels(CELLS)
    assert classifier.labels == tuple(sorted(labels))
    assert {type(label) for label in classifier.labels} == {type(labels[0])}
    assert [classifier.labels[c] for c in codes] == model.predict(TABLE).tolist()
    judged = classifier.query(CELLS)
    assert (judged.codes == codes).all()
    assert judged.probability == pytest.approx(model.predict_proba(TABLE), abs=1e-5)


def shout(rows: Any) -> Any:
    return rows


def test_strange_types_are_named_and_refused_unless_trusted(tmp_path):
    model = make_pipeline(FunctionTransformer(shout), GaussianNB()).fit(TABLE, HIGH)
    path = written(model, tmp_path)
    with pytest.raises(InputError, match=r"not known to be harmless: .*\.shout\. If you trust"):
        load_classifier(path)
    with pytest.raises(InputError, match=r"\.shout\. If"):
        load_classifier(path, trust=["some.other.type"])
    again = load_classifier(path, trust=[f"{__name__}.shout"])
    assert (again.predict(TABLE) == model.predict(TABLE)).all()
    assert load_classifier(path, trust=f"{__name__}.shout") is not None
    with pytest.raises(InputError, match="full names of types"):
        load_classifier(path, trust=[shout])


def test_ensembles_that_reach_into_their_trees_are_asked_about(tmp_path):
    boosted = GradientBoostingClassifier(n_estimators=2).fit(TABLE, HIGH)
    with pytest.raises(InputError, match=r"sklearn\.tree\._tree\.Tree"):
        load_classifier(written(boosted, tmp_path))
    voting = VotingClassifier(
        [("tree", DecisionTreeClassifier(max_depth=2)), ("line", LogisticRegression())]
    ).fit(TABLE, HIGH)
    # One that asks them as anybody would is not, but for a type of its own.
    again = load_classifier(written(voting, tmp_path), trust=["sklearn.utils._bunch.Bunch"])
    assert (again.predict(TABLE) == voting.predict(TABLE)).all()


def repacked(path: Path, change: Callable[[dict[str, bytes]], Any]) -> Path:
    with zipfile.ZipFile(path) as archive:
        members = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    members = change(members) or members
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def planned(path: Path, change: Callable[[Any], Any]) -> Path:
    """The file with its plan changed, everything else whole."""

    def alter(members: dict[str, bytes]) -> None:
        plan = json.loads(members["schema.json"])
        change(plan)
        members["schema.json"] = json.dumps(plan).encode()

    return repacked(path, alter)


def find(plan: Any, name: str) -> list[dict]:
    """Every node of the plan with that class name."""
    if isinstance(plan, list):
        return [node for part in plan for node in find(part, name)]
    if not isinstance(plan, dict):
        return []
    own = [plan] if plan.get("__class__") == name else []
    return own + [node for part in plan.values() for node in find(part, name)]


def test_trees_that_lead_astray_are_refused(tmp_path):
    """Indices no walk may follow: skops would build these, and predicting would read anywhere."""
    model = RandomForestClassifier(1, max_depth=3, random_state=0).fit(TABLE, HIGH)

    def astray(field: str, value: int) -> Callable[[dict[str, bytes]], None]:
        def alter(members: dict[str, bytes]) -> None:
            plan = json.loads(members["schema.json"])
            (tree,) = find(plan, "Tree")
            file = tree["content"]["content"]["nodes"]["file"]
            nodes = np.load(io.BytesIO(members[file]))
            nodes[field][0] = value
            buffer = io.BytesIO()
            np.save(buffer, nodes)
            members[file] = buffer.getvalue()

        return alter

    for field, value in [
        ("feature", 10**6), ("feature", 2), ("feature", -3), ("left_child", 0), ("right_child", 0),
        ("left_child", 10**6), ("right_child", 999), ("right_child", -7),
    ]:  # fmt: skip
        path = repacked(written(model, tmp_path), astray(field, value))
        with pytest.raises(InputError, match=r"not known to be harmless: sklearn\.tree\._tree"):
            load_classifier(path)


def test_plans_that_trick_the_check_are_refused(tmp_path):
    model = RandomForestClassifier(1, max_depth=3, random_state=0).fit(TABLE, HIGH)
    number = {"__class__": "str", "__module__": "builtins", "__loader__": "JsonNode"}

    def huge(plan: Any) -> None:  # one class array, and a million outputs to look up in it
        find(plan, "Tree")[0]["__reduce__"]["args"]["content"][2]["content"] = "1000000"

    def unchecked(plan: Any) -> None:  # the forest would let rows of any width through
        attributes = find(plan, "RandomForestClassifier")[0]["content"]
        attributes["content"].pop("n_features_in_")
        attributes["key_types"]["content"].pop()

    def narrow(plan: Any) -> None:
        attributes = find(plan, "RandomForestClassifier")[0]["content"]["content"]
        attributes["n_features_in_"]["content"] = "1"

    for trick in (unchecked, narrow):
        path = planned(written(model, tmp_path), trick)
        with pytest.raises(InputError, match=r"not known to be harmless: sklearn\.tree\._tree"):
            load_classifier(path)
    with pytest.raises(InputError, match="is damaged"):
        load_classifier(planned(written(model, tmp_path), huge))

    def shadow(plan: Any) -> None:  # a method in the object's own attributes
        attributes = find(plan, "RandomForestClassifier")[0]["content"]
        attributes["content"]["_validate_X_predict"] = {
            "__class__": "positive", "__module__": "numpy", "__loader__": "FunctionNode",
        }  # fmt: skip
        attributes["key_types"]["content"].append(attributes["key_types"]["content"][0])

    with pytest.raises(InputError, match=r"replaces .*RandomForestClassifier\._validate_X_predict"):
        load_classifier(planned(written(model, tmp_path), shadow))

    def other(plan: Any) -> None:  # what is looked at is not what would be built
        outputs = find(plan, "Tree")[0]["__reduce__"]["args"]["content"]
        outputs[2] = {**number, "content": "1", "__id__": 7, "__class__": None}
        steps = find(plan, "RandomForestClassifier")[0]["content"]["content"]
        steps["n_estimators"] = {**number, "content": "1000000", "__id__": 7, "__class__": None}

    again = load_classifier(planned(written(model, tmp_path), other))
    assert again.estimators_[0].tree_.n_outputs == 1


@pytest.mark.parametrize(
    "call",
    [["eval", "@x"], ["to_pickle", "there"], ["to_numpy", "O"], ["reshape", 3], ["reshape", -1, 0]],
)
def test_calls_our_pipelines_do_not_make_are_refused(call, tmp_path):
    table, labels = mixed_table(120)
    frame = table.convert_dtypes()
    model = train("forest", Schema.infer(frame), frame, labels, n_estimators=1)
    value = {"__class__": "str", "__module__": "builtins", "__loader__": "JsonNode"}

    def alter(plan: Any) -> None:
        for node in find(plan, "methodcaller"):
            node["attrs"]["content"] = [{**value, "content": json.dumps(c)} for c in call]

    with pytest.raises(InputError, match=r"harmless: operator\.methodcaller"):
        load_classifier(planned(written(model, tmp_path), alter))


def test_files_that_are_none(tmp_path, canary):
    path = written(GaussianNB().fit(TABLE, HIGH), tmp_path)
    whole = path.read_bytes()
    for length in (0, 1, 4, 30, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"'model\.skops' is not a skops file"):
            load_classifier(path)
    for content in (b"hello", b"\x00" * 4000, b'{"a": 1}', b"PK\x03\x04" + b"x" * 300):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"'model\.skops' is not a skops file"):
            load_classifier(path)
    for name in ("../schema.json", "/etc/x.npy", "a/b.npy", "..\\x.npy", "x.py", "C:x.npy"):
        path.write_bytes(whole)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(name, b"x")
        with pytest.raises(InputError, match="is not a skops file"):
            load_classifier(path)
    worlds.post().explainer.save(path)  # a zip of another kind
    with pytest.raises(InputError, match="is not a skops file"):
        load_classifier(path)


def test_bombs_are_refused_before_they_are_unpacked(tmp_path):
    path = written(GaussianNB().fit(TABLE, HIGH), tmp_path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.npy", b"\0" * 120_000_000)
    assert path.stat().st_size < 400_000
    began = time.monotonic()
    with pytest.raises(InputError, match="far too large"):
        load_classifier(path)
    assert time.monotonic() - began < 5

    def many(plan: Any) -> None:  # one array of some size, used ten thousand times
        array = find(plan, "ndarray")[0]
        attributes = find(plan, "GaussianNB")[0]["content"]["content"]
        name = {"__class__": "list", "__module__": "builtins", "__loader__": "ListNode"}
        attributes["theta_"] = {**name, "content": [{**array, "file": "big.npy"}] * 10_000}

    big = io.BytesIO()
    np.save(big, rng.normal(size=50_000))
    path = planned(written(GaussianNB().fit(TABLE, HIGH), tmp_path), many)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("big.npy", big.getvalue())
    with pytest.raises(InputError, match="far too large"):
        load_classifier(path)


def test_an_object_that_does_not_predict(tmp_path):
    with pytest.raises(InputError, match=r"'model\.skops' holds an object of type StandardScaler"):
        load_classifier(written(StandardScaler().fit(TABLE), tmp_path))


def test_writing_is_whole_or_not_at_all(tmp_path):
    path = written(GaussianNB().fit(TABLE, HIGH), tmp_path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="cannot be written as a skops file"):
        save_classifier(threading.Lock(), path)
    with pytest.raises(InputError, match=r"ends in \.skops"):
        save_classifier(GaussianNB(), tmp_path / "model.pkl")
    with pytest.raises(InputError, match="no folder"):
        save_classifier(GaussianNB(), tmp_path / "nowhere" / "model.skops")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.skops"]


# ------------------------------------------------------------------------------------------------
# ONNX


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
    """A graph made by hand, without any converter."""
    onnx = import_module("onnx")
    helper = onnx.helper
    made = helper.make_model(
        helper.make_graph(nodes, "by hand", inputs, outputs, list(weights)),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    helper.set_model_props(made, meta)
    path = folder / "net.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def line(folder: Path, *, last: str = "Softmax", rows: Any = None, **meta: str) -> Path:
    """A network of one layer: two classes, by the sign of a + b - 4."""
    onnx = import_module("onnx")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    array = onnx.numpy_helper.from_array
    weights = [
        array(np.array([[0, 1], [0, 1]], dtype=np.float32), "w"),
        array(np.array([4, 0], dtype=np.float32), "c"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "c"], ["s"]),
        helper.make_node(last, ["s"], ["y"]),
    ]
    return graph(
        folder,
        nodes,
        [helper.make_tensor_value_info("x", number, [rows, 2])],
        [helper.make_tensor_value_info("y", number, [rows, 2])],
        weights,
        **meta,
    )


@pytest.mark.needs("onnx")
@pytest.mark.parametrize("zipmap", [True, False, "columns"])
@pytest.mark.parametrize("labels", [LABELS["text"], LABELS["whole"]], ids=["text", "whole"])
def test_labels_survive_onnx(labels, zipmap, tmp_path):
    model = LogisticRegression().fit(TABLE.to_numpy(), np.where(HIGH, *labels))
    opened = load_classifier(converted(model, tmp_path, zipmap=zipmap))
    model.predict, predict = lambda t: predict(t.to_numpy()), model.predict
    model.predict_proba, proba = lambda t: proba(t.to_numpy()), model.predict_proba
    check_labels(opened, model, labels)
    assert hasattr(opened, "classes_") == (zipmap is True)


@pytest.mark.needs("onnx")
def test_one_question_answers_label_and_probability(tmp_path):
    model = RandomForestClassifier(3, random_state=0).fit(TABLE.to_numpy(), HIGH.astype(int))
    classifier = Classifier(load_classifier(converted(model, tmp_path)), SCHEMA)
    classifier.fit_labels(CELLS)
    before = classifier.n_queries
    assert classifier.query(CELLS[:50]).probability.shape == (50, 2)
    assert classifier.n_queries == before + 50


@pytest.mark.needs("onnx")
@pytest.mark.parametrize("convert", [lambda t: t, pl.from_pandas, pa.Table.from_pandas])
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
    opened = load_classifier(path)
    assert list(opened.predict(convert(table))) == model.predict(plain).tolist()
    strange = table.assign(**{"home town": None})
    assert set(opened.predict(convert(strange.astype({"home town": str})))) <= {"yes", "no"}
    with pytest.raises(InputError, match=r"an input 'home_town', and the table has no such column"):
        opened.predict(convert(table.rename(columns={"home town": "city"})))
    with pytest.raises(InputError, match=r"Did you mean 'home_twn'\?"):
        opened.predict(convert(table.rename(columns={"home town": "home_twn"})))
    with pytest.raises(ClassifierError, match="takes numbers, and column 'a' holds text such"):
        opened.predict(convert(table.assign(a="x")))
    gaps = table.assign(b=table["b"].astype("Int64").mask(table["b"] == 3))
    with pytest.raises(ClassifierError, match="whole numbers, and column 'b' has missing values"):
        opened.predict(convert(gaps))


@pytest.mark.needs("onnx")
def test_a_network_made_by_hand(tmp_path):
    expected = (TABLE["a"].astype(np.float32) + TABLE["b"] > 4).astype(int).tolist()
    opened = load_classifier(line(tmp_path))
    assert list(opened.predict(TABLE)) == expected
    assert opened.classes_ == (0, 1)
    assert opened.predict_proba(TABLE).sum(axis=1) == pytest.approx(1)
    named = load_classifier(line(tmp_path, classes='["low", "high"]'))
    assert list(named.predict(TABLE)) == [["low", "high"][v] for v in expected]
    scores = load_classifier(line(tmp_path, last="Identity"))
    assert list(scores.predict(TABLE)) == expected
    assert not hasattr(scores, "predict_proba")  # logits are no probabilities
    classifier = Classifier(scores, SCHEMA)
    classifier.fit_labels(CELLS)
    assert classifier.query(CELLS).probability is None


@pytest.mark.needs("onnx")
def test_a_network_that_takes_a_fixed_number_of_rows(tmp_path):
    free, fixed = (load_classifier(line(tmp_path, rows=rows)) for rows in (None, 7))
    assert list(fixed.predict(TABLE)) == list(free.predict(TABLE))
    assert list(fixed.predict(TABLE.head(3))) == list(free.predict(TABLE.head(3)))


@pytest.mark.needs("onnx")
@pytest.mark.parametrize("shape", [[None, 3, 4], [None, 1, 3, 4], [None, 12], ["n", "h", "w"]])
def test_a_network_of_images(shape, tmp_path):
    onnx = import_module("onnx")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    weights = [helper.make_tensor("w", number, [12, 3], np.eye(12, 3).ravel().tolist())]
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["y"]),
    ]
    path = graph(
        tmp_path,
        nodes,
        [helper.make_tensor_value_info("x", number, shape)],
        [helper.make_tensor_value_info("y", number, [None, 3])],
        weights,
    )
    images = np.random.default_rng(0).random((20, 3, 4))
    opened = load_classifier(path)
    assert list(opened.predict(images)) == images.reshape(20, 12)[:, :3].argmax(axis=1).tolist()


@pytest.mark.needs("onnx")
def test_counted_labels_are_named_by_the_metadata(tmp_path):
    onnx = import_module("onnx")
    helper, number = onnx.helper, onnx.TensorProto
    nodes = [helper.make_node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)]
    ends = (
        [helper.make_tensor_value_info("x", number.FLOAT, [None, 2])],
        [helper.make_tensor_value_info("y", number.INT64, [None])],
    )
    first = [int(b > a) for a, b in TABLE.to_numpy()]
    assert list(load_classifier(graph(tmp_path, nodes, *ends)).predict(TABLE)) == first
    said = load_classifier(graph(tmp_path, nodes, *ends, classes="[false, true]")).predict(TABLE)
    assert said == [bool(v) for v in first]
    assert {type(v) for v in said} == {bool}
    with pytest.raises(InputError, match="not a JSON list of labels"):
        load_classifier(graph(tmp_path, nodes, *ends, classes="no"))


@pytest.mark.needs("onnx")
@pytest.mark.filterwarnings("ignore:Attribute:FutureWarning")  # the converter's own
def test_scores_of_an_svm_are_not_passed_off_as_probabilities(tmp_path):
    model = SVC().fit(TABLE.to_numpy(), HIGH.astype(int))
    opened = load_classifier(converted(model, tmp_path, zipmap=False))
    assert (np.array(opened.predict(TABLE)) == model.predict(TABLE.to_numpy())).mean() > 0.98
    assert not hasattr(opened, "predict_proba")


@pytest.mark.needs("onnx")
def test_graphs_that_do_not_fit(tmp_path):
    onnx = import_module("onnx")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    opened = load_classifier(line(tmp_path))
    with pytest.raises(
        InputError, match="takes 2 values for each row, and the table has 3 columns"
    ):
        opened.predict(TABLE.assign(c=1))
    with pytest.raises(ClassifierError, match="column 'b' holds text such as 'x'"):
        opened.predict(TABLE.assign(b="x"))
    with pytest.raises(ClassifierError, match="gives NaN for row 0"):
        opened.predict(TABLE.assign(a=np.nan))
    one = graph(
        tmp_path,
        [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=1)],
        [helper.make_tensor_value_info("x", number, [None, 2])],
        [helper.make_tensor_value_info("y", number, None)],
    )
    with pytest.raises(InputError, match="neither a label nor one column for each class"):
        load_classifier(one).predict(TABLE)
    two = graph(
        tmp_path,
        [helper.make_node("Concat", ["p", "q"], ["y"], axis=1)],
        [helper.make_tensor_value_info(n, number, [None, 2]) for n in "pq"],
        [helper.make_tensor_value_info("y", number, [None, 4])],
    )
    with pytest.raises(InputError, match="several inputs, and 'p' has more than one column"):
        load_classifier(two).predict(TABLE)
    path = tmp_path / "net.onnx"
    whole = line(tmp_path).read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2], b"PK\x03\x04"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"'net\.onnx' is not an ONNX file"):
            load_classifier(path)


@pytest.mark.needs("onnx")
def test_weights_in_another_file_are_not_read(tmp_path, monkeypatch):
    onnx = import_module("onnx")
    model = onnx.load(line(tmp_path))
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "out.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert Path("w.bin").exists()
    with pytest.raises(InputError, match="is not an ONNX file that onnxruntime can run"):
        load_classifier("out.onnx")


@pytest.mark.needs("onnx")
def test_a_network_is_copied_and_asked_from_many_threads(tmp_path):
    opened = load_classifier(line(tmp_path))
    expected = list(opened.predict(TABLE))
    for again in (copy.deepcopy(opened), pickle.loads(pickle.dumps(opened))):
        assert list(again.predict(TABLE)) == expected
    with ThreadPoolExecutor(4) as pool:
        assert all(
            list(p) == expected for p in pool.map(lambda _: opened.predict(TABLE), range(20))
        )


# ------------------------------------------------------------------------------------------------
# Objects of modules, and what is none


def test_an_object_of_a_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_own_bank.py").write_text(
        "class Desk:\n    def clerk(rows): return ['yes'] * len(rows)\n\n"
        "model = Desk.clerk\nnumber = 3\n\nclass Clerk:\n    def predict(self, rows): return []\n"
    )
    Path("my_broken_bank.py").write_text("raise RuntimeError('closed')")
    before = list(sys.path)
    assert load_classifier("my_own_bank:model")([1, 2]) == ["yes", "yes"]
    assert load_classifier("my_own_bank:Desk.clerk")([1]) == ["yes"]
    assert load_classifier("worlds:season") is worlds.season
    for spec, sentence in [
        ("my_own_bank:modle", r"'my_own_bank' has no attribute 'modle'\. Did you mean 'model'\?"),
        ("my_own_bank:Desk.clark", r"'Desk' has no attribute 'clark'\. Did you mean 'clerk'\?"),
        ("my_own_bank:number", "holds an object of type int"),
        ("my_own_bank:Clerk", "holds the class Clerk"),
        ("my_own_bnak:model", r"no module 'my_own_bnak'.* Did you mean 'my_own_bank'\?"),
        ("my_own_bank.inner:model", r"no module 'my_own_bank\.inner'"),
        ("my_broken_bank:model", "Importing 'my_broken_bank' raised RuntimeError: closed"),
    ]:
        with pytest.raises(InputError, match=sentence):
            load_classifier(spec)
    assert sys.path == before
    del sys.modules["my_own_bank"]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("forest", "'forest' is a classifier that is trained for you"),
        (
            "model",
            r"'model' names no classifier\. Write a file ending in \.skops or \.onnx, an obj",
        ),
        (
            "forst",
            r"'forst' names no classifier\. Did you mean 'forest'\? Write .* forest, mlp or b",
        ),
        ("", "names no classifier"),
        ("a:b:c", "names no classifier"),
        ("ftp://host/x", "names no classifier"),
        ("nowhere.skops", "There is no file 'nowhere.skops'"),
        ("nowhere.onnx", "There is no file"),
        ("x\0y", "names no classifier"),
        (7, "A int names no classifier"),
        (None, "A NoneType names no classifier"),
        ("http://", "is not an address"),
        ("http://host name/", "is not an address"),
        ("http://host:port/", "is not an address"),
        ("http://host:99999/", "is not an address"),
    ],
)
def test_what_names_no_classifier(spec, sentence):
    with pytest.raises(InputError, match=sentence):
        load_classifier(spec)


def test_a_text_handed_to_the_explainer_says_how_to_open_it():
    with pytest.raises(
        InputError, match=r"The classifier is an object of type str.*load_classifier"
    ):
        Classifier("model.skops", SCHEMA)


def test_a_file_of_another_kind(tmp_path):
    path = tmp_path / "model.txt"
    path.write_text("hello")
    with pytest.raises(InputError, match=r"'model\.txt' is no classifier's file"):
        load_classifier(path)
    with pytest.raises(InputError, match="There is no file"):
        load_classifier(tmp_path)
    with pytest.raises(InputError, match=r"ends in \.skops or \.onnx"):
        load_bytes(b"", "model.txt")


# ------------------------------------------------------------------------------------------------
# Pickles


@pytest.mark.parametrize(
    "name", ["m.pkl", "m.pickle", "m.joblib", "m.skops", "m.onnx", "m", "m.pt"]
)
def test_pickles_are_refused_under_any_name(name, tmp_path, canary):
    path = tmp_path / name
    for protocol in range(2, 6):
        path.write_bytes(pickle.dumps(Canary(canary), protocol))
        with pytest.raises(InputError, match=r"is a pickle.*save_classifier.*ONNX.*unsafe_pickle"):
            load_classifier(path)
    joblib.dump(Canary(canary), path)
    with pytest.raises(InputError, match="is a pickle"):
        load_classifier(path)
    for old in (0, 1):
        path.write_bytes(pickle.dumps(Canary(canary), old))
        with pytest.raises(InputError):
            load_classifier(path)
    joblib.dump(Canary(canary), path, compress=3)
    with pytest.raises(InputError):
        load_classifier(path)


def test_a_pickle_in_a_zip_is_refused(tmp_path, canary):
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("m/data.pkl", pickle.dumps(Canary(canary)))
    with pytest.raises(InputError, match="is a pickle"):
        load_classifier(tmp_path / "m.zip")


def test_a_pickle_in_the_place_of_an_array_is_not_opened(tmp_path, canary):
    path = written(GaussianNB().fit(TABLE, HIGH), tmp_path)

    def swap(members: dict[str, bytes]) -> None:
        for name in members:
            if name.endswith(".npy"):
                members[name] = pickle.dumps(Canary(canary))

    with pytest.raises(InputError, match="is not a skops file, or it is damaged"):
        load_classifier(repacked(path, swap))
    objects = io.BytesIO()
    np.save(objects, np.array([Canary(canary)], dtype=object), allow_pickle=True)

    def pickled(members: dict[str, bytes]) -> None:
        for name in members:
            if name.endswith(".npy"):
                members[name] = objects.getvalue()

    with pytest.raises(InputError, match="is not a skops file, or it is damaged"):
        load_classifier(repacked(written(GaussianNB().fit(TABLE, HIGH), tmp_path), pickled))


def test_a_pickle_one_insists_on(tmp_path):
    model = GaussianNB().fit(TABLE, HIGH)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(model))
    joblib.dump(model, tmp_path / "b.joblib", compress=3)
    for name in ("a.pkl", "b.joblib"):
        again = load_classifier(tmp_path / name, unsafe_pickle=True)
        assert (again.predict(TABLE) == model.predict(TABLE)).all()
    mark = tmp_path / "mark"
    (tmp_path / "c.pkl").write_bytes(pickle.dumps(Canary(mark)))
    with pytest.raises(InputError, match="holds an object of type NoneType"):
        load_classifier(tmp_path / "c.pkl", unsafe_pickle=True)
    assert mark.exists()  # the canary sings: where nothing sang above, nothing ran
    (tmp_path / "d.pkl").write_bytes(b"\x80\x04rubbish")
    with pytest.raises(InputError, match="could not be unpickled"):
        load_classifier(tmp_path / "d.pkl", unsafe_pickle=True)


# ------------------------------------------------------------------------------------------------
# HTTP: a real server, on loopback


class Server:
    """A bank's service, which does as it is told: `reply(rows)` gives its JSON, or is a handler."""

    def __init__(self) -> None:
        self.n_queries: list[dict] = []
        self.headers: list[dict] = []
        self.paths: list[str] = []
        self.reply: Callable[..., Any] = lambda rows: {"labels": [told(row) for row in rows]}
        self.handle: Callable[[BaseHTTPRequestHandler], Any] | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.n_queries.append(json.loads(body))
                outer.headers.append({k.lower(): v for k, v in self.headers.items()})
                outer.paths.append(self.path)
                if outer.handle is not None:
                    outer.handle(self)
                else:
                    answer(self, json.dumps(outer.reply(outer.n_queries[-1]["rows"])))

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.block_on_close = False
        self.url = f"http://127.0.0.1:{self.http.server_port}/predict"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()


def told(row: dict) -> str:
    return "high" if (row["a"] or 0) + row["b"] > 4 else "low"


def answer(
    handler: BaseHTTPRequestHandler, body: str | bytes, status: int = 200, **headers: str
) -> None:
    data = body.encode() if isinstance(body, str) else body
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(remote, "PAUSE", 0.01)
    monkeypatch.delenv(remote.TOKEN, raising=False)
    here = Server()
    yield here
    here.http.shutdown()
    here.http.server_close()


EXPECTED = ["high" if high else "low" for high in HIGH]


@pytest.mark.parametrize(
    "convert",
    [
        lambda t: t,
        lambda t: t.convert_dtypes(),
        pl.from_pandas,
        pa.Table.from_pandas,
        lambda t: t.to_dict("records"),
    ],
    ids=["pandas", "nullable", "polars", "pyarrow", "records"],
)
def test_rows_are_asked_in_json_and_missing_is_null(server, convert):
    opened = load_classifier(server.url)
    assert opened.predict(convert(TABLE)) == EXPECTED
    assert server.n_queries[0]["rows"][0] == {"a": TABLE["a"][0], "b": TABLE["b"][0]}
    assert type(server.n_queries[0]["rows"][0]["b"]) is int
    table, _ = mixed_table(60)
    server.reply = lambda rows: ["low"] * len(rows)  # a bare list is taken as well
    assert opened.predict(convert(table)) == ["low"] * 60
    row = server.n_queries[-1]["rows"][int(table["income"].isna().argmax())]
    assert row["income"] is None
    assert isinstance(row["garden"], bool)
    assert isinstance(row["size"], str)


@each_label
@pytest.mark.parametrize("probable", [False, True])
def test_labels_survive_http(server, labels, probable):
    yes, no = labels

    def reply(rows: list) -> dict:
        high = [told(row) == "high" for row in rows]
        if not probable:
            return {"labels": [yes if h else no for h in high]}
        return {
            "classes": [yes, no],
            "probabilities": [[0.9, 0.1] if h else [0.2, 0.8] for h in high],
        }

    server.reply = reply
    classifier = Classifier(load_classifier(server.url), SCHEMA)
    codes = classifier.fit_labels(CELLS)
    assert classifier.labels == tuple(sorted(labels))
    assert {type(label) for label in classifier.labels} == {type(yes)}
    assert [classifier.labels[c] for c in codes] == [yes if h else no for h in HIGH]
    judged = classifier.query(CELLS)
    assert (judged.codes == codes).all()
    if probable:
        column = classifier.labels.index(yes)
        assert judged.probability[:, column].tolist() == [0.9 if h else 0.2 for h in HIGH]
    else:
        assert judged.probability is None
    assert len(server.n_queries) == 2


def test_labels_win_over_the_highest_probability(server):
    server.reply = lambda rows: {
        "labels": ["low"] * len(rows),
        "classes": ["low", "high"],
        "probabilities": [[0.4, 0.6]] * len(rows),
    }
    assert load_classifier(server.url).predict(TABLE) == ["low"] * len(TABLE)


def test_large_tables_are_asked_in_parts(server, monkeypatch):
    monkeypatch.setattr(remote, "ROWS", 64)
    opened = load_classifier(server.url)
    assert opened.predict(TABLE) == EXPECTED
    assert [len(body["rows"]) for body in server.n_queries] == [64, 64, 64, 8]
    monkeypatch.setattr(remote, "CELLS", 20)
    opened.predict(TABLE)
    assert max(len(body["rows"]) for body in server.n_queries[4:]) == 10
    assert opened.predict(TABLE.head(0)) == []


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        ({"labels": ["low"]}, "returned 1 labels for 200 rows"),
        (["low"] * 201, "returned 201 labels for 200 rows"),
        ({"labels": "low"}, "returned an array of shape \\(\\)"),
        ({"labels": None}, "neither 'labels' nor"),
        ({"labels": [None] * 200}, "returned None as a label"),
        ({"labels": [0.5] * 200}, "returned 0.5, a fraction, as a label"),
        ({"labels": [{}] * 200}, "returned {} as a label"),
        ({"answer": 1}, "neither 'labels' nor 'probabilities'"),
        ("low", "neither 'labels' nor 'probabilities'"),
        (7, "neither"),
        ({"probabilities": [[0.5, 0.5]] * 200}, "without 'classes'"),
        ({"classes": ["a", "a"], "probabilities": [[0.5, 0.5]] * 200}, "without 'classes'"),
        ({"classes": "ab", "probabilities": [[0.5, 0.5]] * 200}, "without 'classes'"),
        (
            {"classes": ["a", "b"], "probabilities": [[0.5, 0.5]]},
            "one row per row and one column per class",
        ),
        (
            {"classes": ["a", "b"], "probabilities": [[0.5]] * 200},
            "one row per row and one column per class",
        ),
        (
            {"classes": ["a", "b"], "probabilities": [["x", 1]] * 200},
            "one row per row and one column per class",
        ),
        (
            {"classes": ["a", "b"], "probabilities": [[1], [1, 0]] * 100},
            "one row per row and one column per class",
        ),
        ({"classes": ["a", "b"], "probabilities": [[None, 1]] * 200}, "no probabilities"),
        ({"classes": ["a", "b"], "probabilities": [[0.9, 0.9]] * 200}, "no probabilities"),
        ({"classes": ["a", "b"], "probabilities": [[-1, 2]] * 200}, "no probabilities"),
    ],
)
def test_answers_that_make_no_sense(server, reply, sentence):
    server.reply = lambda rows: reply
    with pytest.raises(ClassifierError, match=rf"classifier at {server.url} .*{sentence}"):
        load_classifier(server.url).predict(TABLE)
    assert len(server.n_queries) == 1


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        ("<html><body>Sign in</body></html>", "text/html", "responded with a web page. It has to"),
        (" <!doctype html>", "application/json", "responded with a web page"),
        ("low, high", "text/plain", "no JSON: low, high. It has"),
        ("", "application/json", "no JSON"),
        ('{"labels": [NaN]}', "application/json", "no JSON"),
        ("[" * 100_000, "application/json", "no JSON"),
        (b"\xff\xfe\x00", "application/json", "no JSON"),
    ],
)
def test_what_is_not_json(server, body, kind, sentence):
    server.handle = lambda handler: answer(handler, body, Content_Type=kind)
    with pytest.raises(ClassifierError, match=sentence) as caught:
        load_classifier(server.url).predict(TABLE)
    assert len(str(caught.value)) < 400
    assert "<" not in str(caught.value)


def test_classes_must_not_change(server, monkeypatch):
    orders = iter([["a", "b"], ["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]])
    server.reply = lambda rows: {"classes": next(orders), "probabilities": [[1, 0]] * len(rows)}
    opened = load_classifier(server.url)
    assert opened.predict(TABLE)[0] == "a"
    assert opened.predict_proba(TABLE)[0].tolist() == [1, 0]
    with pytest.raises(ClassifierError, match="must not change"):
        opened.predict(TABLE)
    monkeypatch.setattr(remote, "ROWS", 100)
    with pytest.raises(ClassifierError, match="changes its classes between responses"):
        opened.predict(TABLE)


def test_a_refusal_is_told_in_its_own_words_and_not_repeated(server):
    server.handle = lambda handler: answer(handler, '{"detail": "no column \'c\'"}', 422)
    with pytest.raises(ClassifierError, match=r"status 422: .*no column 'c'"):
        load_classifier(server.url).predict(TABLE)
    assert len(server.n_queries) == 1
    server.handle = lambda handler: answer(handler, "<h1>x</h1>", 500, Content_Type="text/html")
    with pytest.raises(ClassifierError, match=r"responded with status 500\.$"):
        load_classifier(server.url).predict(TABLE)
    assert len(server.n_queries) == 2


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_server_is_asked_again(server, status):
    turns = iter([status, status, 200])

    def handle(handler: BaseHTTPRequestHandler) -> None:
        rows = server.n_queries[-1]["rows"]
        answer(handler, json.dumps([told(row) for row in rows]), next(turns), Retry_After="0.05")

    server.handle = handle
    assert load_classifier(server.url).predict(TABLE) == EXPECTED
    assert len(server.n_queries) == 3
    server.handle = lambda handler: answer(handler, "later", status, Retry_After="rubbish")
    with pytest.raises(ClassifierError, match=f"status {status}: later"):
        load_classifier(server.url).predict(TABLE)
    assert len(server.n_queries) == 3 + remote.ATTEMPTS


def test_retry_after_is_waited_for_within_the_deadline(server):
    turns = iter([429, 200])

    def handle(handler: BaseHTTPRequestHandler) -> None:
        rows = server.n_queries[-1]["rows"]
        answer(handler, json.dumps([told(row) for row in rows]), next(turns), Retry_After="0.3")

    server.handle = handle
    began = time.monotonic()
    assert load_classifier(server.url).predict(TABLE) == EXPECTED
    assert time.monotonic() - began > 0.3
    server.handle = lambda handler: answer(handler, "later", 429, Retry_After="100000")
    began = time.monotonic()
    with pytest.raises(ClassifierError, match=r"did not respond within 0\.3 s"):
        load_classifier(server.url, timeout=0.3).predict(TABLE)
    assert time.monotonic() - began < 3


def test_a_connection_that_breaks_half_way(server):
    def half(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "5000")
        handler.end_headers()
        handler.wfile.write(b'{"labels": ["low", ')
        handler.wfile.flush()
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    server.handle = half
    with pytest.raises(ClassifierError, match=r"broke off, 4 times: .*Check that it runs"):
        load_classifier(server.url).predict(TABLE)
    assert len(server.n_queries) == remote.ATTEMPTS

    def once(handler: BaseHTTPRequestHandler) -> None:
        server.handle = None
        half(handler)

    server.handle = once
    assert load_classifier(server.url).predict(TABLE) == EXPECTED

    def nothing(handler: BaseHTTPRequestHandler) -> None:
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    server.handle = nothing
    with pytest.raises(ClassifierError, match="broke off"):
        load_classifier(server.url).predict(TABLE)


def trickle(start: bytes, piece: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    def handle(handler: BaseHTTPRequestHandler) -> None:
        try:
            handler.wfile.write(start)
            for _ in range(200):
                handler.wfile.write(piece)
                handler.wfile.flush()
                time.sleep(0.05)
        except OSError:
            handler.close_connection = True

    return handle


@pytest.mark.parametrize(
    "slow",
    [
        lambda handler: time.sleep(10),
        trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", b" "),
        trickle(b"HTTP/1.1 200 OK\r\n", b"X"),
    ],
    ids=["silent", "body byte by byte", "head byte by byte"],
)
def test_a_slow_server_has_a_deadline(server, slow):
    server.handle = slow
    began = time.monotonic()
    with pytest.raises(ClassifierError, match=r"did not respond within 0\.4 s"):
        load_classifier(server.url, timeout=0.4).predict(TABLE)
    assert time.monotonic() - began < 3


def test_nobody_there():
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
    with pytest.raises(ClassifierError, match="could not be reached, or broke off, 4 times"):
        load_classifier(f"http://127.0.0.1:{port}/").predict(TABLE)
    with pytest.raises(ClassifierError, match=r"could not be reached|did not respond"):
        load_classifier("http://nobody.invalid/", timeout=5).predict(TABLE)


def test_redirects_lead_nowhere_else(server):
    there = Server()
    try:
        for location in (
            there.url,
            "http://localhost:1/predict",
            "//evil.invalid/predict",
            "file:///etc/passwd",
            "",
            server.url.replace("http://", "http://me@"),
        ):
            server.handle = lambda handler, to=location: answer(handler, "", 307, Location=to)
            with pytest.raises(ClassifierError, match="redirects elsewhere, and is not followed"):
                load_classifier(server.url).predict(TABLE)
        server.handle = lambda handler: answer(handler, "", 307, Location="http://[::1")
        with pytest.raises(ClassifierError, match=r"\d\.?/predict .*Check"):
            load_classifier(server.url).predict(TABLE)
        assert there.n_queries == []
    finally:
        there.http.shutdown()
        there.http.server_close()

    def within(handler: BaseHTTPRequestHandler) -> None:
        server.handle = None
        answer(handler, "", 308, Location="/other")

    server.handle = within
    assert load_classifier(server.url).predict(TABLE) == EXPECTED
    assert server.paths[-2:] == ["/predict", "/other"]
    server.handle = lambda handler: answer(handler, "", 302, Location="/predict")
    with pytest.raises(ClassifierError, match="redirects more than 3 times"):
        load_classifier(server.url).predict(TABLE)
    server.handle = lambda handler: answer(handler, "", 303, Location="/predict")
    with pytest.raises(ClassifierError, match="status 303"):
        load_classifier(server.url).predict(TABLE)


@pytest.mark.parametrize(
    ("one", "other", "allowed"),
    [
        ("http://h/a", "https://h/b", True),
        ("https://h/a", "http://h/a", False),
        ("http://h/a", "http://h:81/a", False),
        ("http://h/a", "http://i/a", False),
        ("https://h/a", "https://h/b?c", True),
        ("http://h:80/a", "https://h:444/a", False),
    ],
)
def test_which_redirects_stay_in_the_same_place(one, other, allowed):
    assert remote._same_origin(httpx.URL(one), httpx.URL(other)) is allowed


def test_an_answer_has_a_largest_size(server, monkeypatch):
    monkeypatch.setattr(remote, "LARGEST", 2**20)
    server.handle = lambda handler: answer(handler, b" " * (2**20 + 1))
    with pytest.raises(ClassifierError, match="responded with more than 1 MiB"):
        load_classifier(server.url).predict(TABLE)
    server.handle = lambda handler: answer(handler, b"x", Content_Encoding="gzip")
    with pytest.raises(ClassifierError, match="compresses its responses"):
        load_classifier(server.url).predict(TABLE)


def test_secrets_are_sent_and_never_told(server, monkeypatch):
    secret = "s3cret-and-more"
    with_name = server.url.replace("http://", f"http://me:{secret}@") + f"?key={secret}"
    opened = load_classifier(with_name)
    assert opened.predict(TABLE) == EXPECTED
    assert server.headers[-1]["authorization"].startswith("Basic ")
    assert server.paths[-1].endswith(f"?key={secret}")
    assert secret not in repr(opened)
    monkeypatch.setenv(remote.TOKEN, secret)
    with_token = load_classifier(server.url)
    with_token.predict(TABLE)
    assert server.headers[-1]["authorization"] == f"Bearer {secret}"
    server.handle = lambda handler: answer(handler, f"you sent {secret}", 403)
    for model in (opened, with_token):
        with pytest.raises(ClassifierError, match="status 403") as caught:
            model.predict(TABLE)
        assert secret not in str(caught.value)
    for bad in ("a\nb", "é"):
        monkeypatch.setenv(remote.TOKEN, bad)
        with pytest.raises(InputError, match=f"The token in {remote.TOKEN} has characters"):
            load_classifier(server.url)


def test_a_service_is_asked_from_many_threads_and_from_within_a_loop(server):
    opened = load_classifier(server.url)
    with ThreadPoolExecutor(8) as pool:
        assert all(p == EXPECTED for p in pool.map(lambda _: opened.predict(TABLE), range(24)))

    async def notebook() -> list:
        return opened.predict(TABLE)

    assert asyncio.run(notebook()) == EXPECTED
    assert pickle.loads(pickle.dumps(opened)).predict(TABLE) == EXPECTED


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "5", True])
def test_a_timeout_is_a_number_of_seconds(timeout):
    with pytest.raises(InputError, match="timeout is"):
        load_classifier("http://127.0.0.1:1/", timeout=timeout)


def test_the_error_is_the_services_own_in_an_explainer(server):
    server.handle = lambda handler: answer(handler, "<p>", Content_Type="text/html")
    with pytest.raises(
        ClassifierError, match=r"^The classifier at http.* responded with a web page"
    ):
        Explainer(load_classifier(server.url)).fit(TABLE)


# ------------------------------------------------------------------------------------------------
# What is not installed


@pytest.mark.parametrize(
    ("module", "spec", "extra"),
    [
        ("skops.io", "model.skops", "skops"),
        ("onnxruntime", "model.onnx", "onnx"),
        ("httpx", "http://127.0.0.1/", "http"),
    ],
)
def test_a_missing_extra_says_what_to_install(module, spec, extra, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("model.skops", "model.onnx"):
        Path(name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"pip install 'lapace\[{extra}\]'"):
        load_classifier(spec)


# ------------------------------------------------------------------------------------------------
# All the way: fitted, saved with a reference, loaded without being told


def fitted(model: Any) -> Explainer:
    return Explainer(model, n_prototypes=1, recipe=worlds.QUICK, device="cpu").fit(TABLE)


def answers(explainer: Explainer) -> str:
    return json.dumps(explainer.explain(TABLE.head(5)).to_json())


def test_a_skops_classifier_is_followed(tmp_path, monkeypatch):
    model = train("forest", SCHEMA, TABLE, np.where(HIGH, "high", "low"), n_estimators=5)
    path = written(model, tmp_path)
    explainer = fitted(load_classifier(path))
    explainer.save(tmp_path / "m.lapace", classifier=path)
    expected = answers(explainer)
    assert answers(Explainer.load(tmp_path / "m.lapace", device="cpu")) == expected
    assert answers(Explainer.load(tmp_path / "m.lapace", model, device="cpu")) == expected
    # Both are moved together; the name beside the file is enough.
    (tmp_path / "there" / "in").mkdir(parents=True)
    for file in ("m.lapace", "model.skops"):
        (tmp_path / file).rename(tmp_path / "there" / file)
    monkeypatch.chdir(tmp_path)
    assert answers(Explainer.load("there/m.lapace", device="cpu")) == expected
    explainer.save("there/n.lapace", classifier="model.skops")
    assert answers(Explainer.load("there/n.lapace", device="cpu")) == expected
    explainer.save("there/n.lapace", classifier="there/model.skops")
    assert answers(Explainer.load("there/n.lapace", device="cpu")) == expected
    Path("there/model.skops").rename("there/in/model.skops")
    with pytest.raises(InputError, match=r"'model\.skops' is not beside 'n\.lapace' any more"):
        Explainer.load("there/n.lapace", device="cpu")
    explainer.save("there/n.lapace", classifier="there/in/model.skops")
    assert answers(Explainer.load("there/n.lapace", device="cpu")) == expected


class Mortal:
    """Answers so many questions and then no more."""

    def __init__(self) -> None:
        self.left, self.n_queries = 10**9, 0

    def __call__(self, frame: Any) -> Any:
        self.n_queries += 1
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("gone")
        return np.where(frame["a"] > 0, "high", "low")


def test_a_classifier_that_is_gone_is_not_asked_for_ever():
    model = Mortal()
    explainer = fitted(model)
    instances = TABLE[TABLE["a"] < 0].head(20)
    model.n_queries = 0
    explainer.explain(instances, target="high")
    whole = model.n_queries
    for lasts in range(1, whole):
        model.left, model.n_queries = lasts, 0
        with pytest.raises(ClassifierError, match="gone"):
            explainer.explain(instances, target="high")
        assert model.n_queries <= lasts + 2  # the rows, and somebody it has judged before


@pytest.mark.needs("onnx")
def test_a_row_that_a_graph_cannot_take_costs_nobody_else(tmp_path):
    linear = import_module("sklearn.linear_model")
    types = import_module("skl2onnx.common.data_types")
    table = pd.DataFrame({"a": rng.integers(0, 99, 200), "b": rng.integers(0, 99, 200)})
    labels = np.where(table["a"] > table["b"], "high", "low")
    model = linear.LogisticRegression().fit(table.to_numpy(), labels)
    path = converted(model, tmp_path, [("rows", types.Int64TensorType([None, 2]))])
    explainer = Explainer(load_classifier(path), n_prototypes=1, recipe=worlds.QUICK, device="cpu")
    instances = pd.DataFrame({"a": [10, None, 20], "b": [60, 50, 70]}).astype("Int64")
    answer = explainer.fit(table).explain(instances, target="high")
    assert answer.status == ("answered", "malformed", "answered")
    assert "column 'a' has missing values" in answer.reason[1]


@pytest.mark.needs("onnx")
def test_an_onnx_classifier_is_followed(tmp_path):
    path = line(tmp_path, classes='["low", "high"]')
    explainer = fitted(load_classifier(path))
    assert explainer.classes_ == ("high", "low")
    explainer.save(tmp_path / "m.lapace", classifier=str(path))
    again = Explainer.load(tmp_path / "m.lapace", device="cpu")
    assert answers(again) == answers(explainer)
    answer_ = again.explain(TABLE.head(5))
    assert np.isfinite(answer_.nearest().probability).all()


def test_a_service_is_explained_and_has_to_be_named(server, tmp_path):
    def reply(rows: list) -> dict:
        p = [1 / (1 + np.exp(4 - (row["a"] or 0) - row["b"])) for row in rows]
        return {"classes": ["low", "high"], "probabilities": [[1 - v, v] for v in p]}

    server.reply = reply
    secret = server.url.replace("http://", "http://me:s3cret@")
    explainer = fitted(load_classifier(secret))
    explainer.save(tmp_path / "m.lapace", classifier=secret)
    assert b"s3cret" not in b"".join(zip_members(tmp_path / "m.lapace").values())
    with pytest.raises(InputError, match=rf"fitted with '{server.url}', which is not followed"):
        Explainer.load(tmp_path / "m.lapace")
    again = Explainer.load(tmp_path / "m.lapace", load_classifier(server.url), device="cpu")
    assert answers(again) == answers(explainer)
    assert again.explain(TABLE.head(5), confidence=0.6).nearest().probability.min() >= 0.6


def test_an_object_is_explained_and_has_to_be_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_bank_again.py").write_text(
        "def clerk(rows): return ['high' if v > 4 else 'low' for v in rows['a'] + rows['b']]"
    )
    explainer = fitted(load_classifier("my_bank_again:clerk"))
    explainer.save("m.lapace", classifier="my_bank_again:clerk")
    with pytest.raises(InputError, match="with 'my_bank_again:clerk', which is not followed"):
        Explainer.load("m.lapace")
    again = Explainer.load("m.lapace", load_classifier("my_bank_again:clerk"), device="cpu")
    assert answers(again) == answers(explainer)
    explainer.save("m.lapace")
    with pytest.raises(InputError, match=r"'m\.lapace' has no classifier beside it .*Hand it over"):
        Explainer.load("m.lapace")
    del sys.modules["my_bank_again"]


def zip_members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


@pytest.fixture
def pair(tmp_path) -> Path:
    """An explainer and the classifier beside it; neither needs the other to be right."""
    written(GaussianNB().fit(TABLE, HIGH), tmp_path)
    worlds.post().explainer.save(tmp_path / "m.lapace", classifier="model.skops")
    return tmp_path / "m.lapace"


def referring(pair: Path, **kept: Any) -> Path:
    def alter(members: dict[str, bytes]) -> None:
        config = json.loads(members["config.json"])
        config["classifier"] = {**config["classifier"], **kept}
        members["config.json"] = json.dumps(config).encode()

    return repacked(pair, alter)


def test_a_classifier_that_changed_is_not_opened(pair, canary):
    (pair.parent / "model.skops").write_bytes(pickle.dumps(Canary(canary)))
    with pytest.raises(InputError, match=r"'model\.skops' has changed since 'm\.lapace' was saved"):
        Explainer.load(pair)


@pytest.mark.parametrize(
    "file",
    ["../model.skops", "/etc/model.skops", "a/../../model.skops", "C:model.skops", "..\\m.skops",
     "model.pkl", "", ".", "model.skops/..", "x\0.skops"],
)  # fmt: skip
def test_a_reference_out_of_the_folder_is_refused(pair, file):
    with pytest.raises(InputError, match=r"outside of its own folder|damaged"):
        Explainer.load(referring(pair, file=file))


@pytest.mark.parametrize("kept", [{"sha256": "x"}, {"sha256": 3}, {"file": None}, {"file": []}])
def test_a_reference_that_is_none_is_refused(pair, kept):
    with pytest.raises(InputError, match="damaged"):
        Explainer.load(referring(pair, **kept))


def test_types_in_the_classifier_beside_are_trusted_by_name_only(tmp_path):
    model = make_pipeline(FunctionTransformer(shout), GaussianNB()).fit(TABLE, HIGH)
    path = written(model, tmp_path)
    explainer = fitted(model)
    explainer.save(tmp_path / "m.lapace", classifier=path)
    with pytest.raises(InputError, match=r"not known to be harmless: .*\.shout"):
        Explainer.load(tmp_path / "m.lapace")
    again = Explainer.load(tmp_path / "m.lapace", trust=[f"{__name__}.shout"], device="cpu")
    assert answers(again) == answers(explainer)


def test_saving_with_a_classifier_that_is_not_there(tmp_path):
    explainer = worlds.post().explainer
    with pytest.raises(InputError, match=r"There is no file 'nowhere\.skops' to refer to"):
        explainer.save(tmp_path / "m.lapace", classifier="nowhere.skops")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").mkdir()
    path = written(GaussianNB().fit(TABLE, HIGH), tmp_path)
    explainer.save(tmp_path / "a" / "m.lapace", classifier=path)
    with pytest.raises(InputError, match=r"fitted with 'model\.skops', which is not followed"):
        Explainer.load(tmp_path / "a" / "m.lapace")
