"""Skops files: what is read back, what is refused, and that nothing in them runs."""

from __future__ import annotations

import io
import json
import re
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.cluster import KMeans
from sklearn.ensemble import BaggingClassifier, GradientBoostingClassifier, RandomForestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC, LinearSVC, NuSVC
from sklearn.tree import DecisionTreeClassifier
from test_loaders import HIGH, TABLE, check_labels, each_label, refused, repacked, written

from lapace.apps.loaders import load_classifier, save_classifier
from lapace.datasets import train
from lapace.errors import InputError
from lapace.schema import Schema
from tests import worlds
from tests.worlds import mixed_table


@pytest.mark.parametrize("kind", ["forest", "mlp", "boosting"])
@pytest.mark.parametrize(
    "convert",
    [lambda t: t, lambda t: t.convert_dtypes(), pl.from_pandas],
    ids=["pandas", "nullable", "polars"],
)
def test_trained_pipelines_load_without_trust(kind, convert, tmp_path):
    table, labels = mixed_table(120)
    frame = convert(table)
    quick = {"n_estimators": 3} if kind == "forest" else {"max_iter": 3}
    model = train(kind, Schema.infer(frame), frame, labels, **quick)
    again = load_classifier(written(model, tmp_path))
    assert (again.predict_proba(frame) == model.predict_proba(frame)).all()
    assert again.predict(frame).tolist() == model.predict(frame).tolist()


def test_trained_pipelines_of_images(tmp_path):
    images = np.random.default_rng(0).random((60, 3, 4))
    model = train("forest", Schema.infer(images), images, images[:, 0, 0] > 0.5, n_estimators=3)
    again = load_classifier(written(model, tmp_path))
    assert (again.predict(images) == model.predict(images)).all()


@each_label
def test_labels_survive_skops(labels, tmp_path):
    model = RandomForestClassifier(3).fit(TABLE, np.where(HIGH, *labels))
    check_labels(load_classifier(written(model, tmp_path)), model, labels)


def identity(rows: Any) -> Any:
    return rows


def test_unknown_types_are_named_and_refused_unless_trusted(tmp_path):
    model = make_pipeline(FunctionTransformer(identity), GaussianNB()).fit(TABLE, HIGH)
    path = written(model, tmp_path)
    refused(r"not known to be harmless: .*\.identity\. If you trust", path)
    refused(r"\.identity\. If", path, trust=["some.other.type"])
    again = load_classifier(path, trust=[f"{__name__}.identity"])
    assert (again.predict(TABLE) == model.predict(TABLE)).all()
    again = load_classifier(path, trust=f"{__name__}.identity")  # one name will do
    assert (again.predict(TABLE) == model.predict(TABLE)).all()


@pytest.mark.parametrize(
    "model",
    [
        GradientBoostingClassifier(n_estimators=2),
        BaggingClassifier(DecisionTreeClassifier(max_depth=2), 2),
        SVC(),
        NuSVC(),
        KMeans(2),
        KNeighborsClassifier(algorithm="brute"),
    ],
    ids=lambda model: type(model).__name__,
)
def test_other_native_code_needs_trust(model, tmp_path):
    path = written(model.fit(TABLE, HIGH), tmp_path)
    with pytest.raises(InputError, match="not known to be harmless: sklearn") as caught:
        load_classifier(path)
    trust = re.findall(r"'(sklearn[^']*)'", str(caught.value))
    assert (load_classifier(path, trust=trust).predict(TABLE) == model.predict(TABLE)).all()


def test_a_linear_machine_needs_no_trust(tmp_path):
    model = LinearSVC().fit(TABLE, HIGH)
    assert (load_classifier(written(model, tmp_path)).predict(TABLE) == model.predict(TABLE)).all()


def with_schema(path: Path, change: Callable[[Any], Any]) -> Path:
    """The file with its `schema.json` changed."""

    def alter(members: dict[str, bytes]) -> None:
        schema = json.loads(members["schema.json"])
        change(schema)
        members["schema.json"] = json.dumps(schema).encode()

    return repacked(path, alter)


def find(schema: Any, name: str) -> list[dict]:
    """Every node of the schema with that class name."""
    if isinstance(schema, list):
        return [node for part in schema for node in find(part, name)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if schema.get("__class__") == name else []
    return own + [node for part in schema.values() for node in find(part, name)]


def test_trees_with_indices_out_of_bounds_are_refused(tmp_path):
    """skops would build these, and predicting would read foreign memory or never end."""
    model = RandomForestClassifier(1, max_depth=3, random_state=0).fit(TABLE, HIGH)

    def with_index(field: str, value: int) -> Callable[[dict[str, bytes]], None]:
        def alter(members: dict[str, bytes]) -> None:
            schema = json.loads(members["schema.json"])
            (tree,) = find(schema, "Tree")
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
        path = repacked(written(model, tmp_path), with_index(field, value))
        refused(r"not known to be harmless: sklearn\.tree\._tree", path)


def test_trees_that_crash_while_they_are_built_are_refused(tmp_path):
    model = RandomForestClassifier(1, max_depth=3, random_state=0).fit(TABLE, HIGH)

    def no_dimension(members: dict[str, bytes]) -> None:
        (tree,) = find(json.loads(members["schema.json"]), "Tree")
        buffer = io.BytesIO()
        np.save(buffer, np.int64(3))
        members[tree["content"]["content"]["nodes"]["file"]] = buffer.getvalue()

    def too_many(schema: Any) -> None:
        find(schema, "Tree")[0]["content"]["content"]["node_count"]["content"] = "1000000"

    for change, how in ((repacked, no_dimension), (with_schema, too_many)):
        path = change(written(model, tmp_path), how)
        refused(r"not known to be harmless: sklearn\.tree\._tree", path)


def test_schemas_that_deceive_the_audit_are_refused(tmp_path):
    model = RandomForestClassifier(1, max_depth=3, random_state=0).fit(TABLE, HIGH)
    number = {"__class__": "str", "__module__": "builtins", "__loader__": "JsonNode"}

    def huge(schema: Any) -> None:  # one class array, and a million outputs to look up in it
        find(schema, "Tree")[0]["__reduce__"]["args"]["content"][2]["content"] = "1000000"

    def unchecked(schema: Any) -> None:  # the forest would let rows of any width through
        attributes = find(schema, "RandomForestClassifier")[0]["content"]
        attributes["content"].pop("n_features_in_")
        attributes["key_types"]["content"].pop()

    def narrow(schema: Any) -> None:
        attributes = find(schema, "RandomForestClassifier")[0]["content"]["content"]
        attributes["n_features_in_"]["content"] = "1"

    for trick in (unchecked, narrow):
        path = with_schema(written(model, tmp_path), trick)
        refused(r"not known to be harmless: sklearn\.tree\._tree", path)
    refused("is damaged", with_schema(written(model, tmp_path), huge))

    def shadow(schema: Any) -> None:  # a method in the object's own attributes
        attributes = find(schema, "RandomForestClassifier")[0]["content"]
        attributes["content"]["_validate_X_predict"] = {
            "__class__": "positive", "__module__": "numpy", "__loader__": "FunctionNode",
        }  # fmt: skip
        attributes["key_types"]["content"].append(attributes["key_types"]["content"][0])

    with pytest.raises(InputError, match=r"replaces .*RandomForestClassifier\._validate_X_predict"):
        load_classifier(with_schema(written(model, tmp_path), shadow))

    def other(schema: Any) -> None:  # a reference puts one node in another's place
        outputs = find(schema, "Tree")[0]["__reduce__"]["args"]["content"]
        outputs[2] = {**number, "content": "1", "__id__": 7, "__class__": None}
        steps = find(schema, "RandomForestClassifier")[0]["content"]["content"]
        steps["n_estimators"] = {**number, "content": "1000000", "__id__": 7, "__class__": None}

    again = load_classifier(with_schema(written(model, tmp_path), other))
    assert again.estimators_[0].tree_.n_outputs == 1


@pytest.mark.parametrize(
    ("module", "name"),
    [("numpy", "dtype"), ("operator", "methodcaller"), ("sklearn.tree._tree", "Tree")],
)
@pytest.mark.parametrize("loader", ["FunctionNode", "TypeNode", "PartialNode"])
def test_a_known_type_under_another_loader_is_refused(module, name, loader, tmp_path):
    """skops goes by names, and such a node builds something else by a name the audit knows."""
    model = RandomForestClassifier(1, max_depth=3, random_state=0).fit(TABLE, HIGH)

    def alter(schema: Any) -> None:
        attributes = find(schema, "RandomForestClassifier")[0]["content"]["content"]
        plain = attributes["n_estimators"]
        inner = dict.fromkeys(("func", "args", "kwds", "namespace"), plain)
        node = {"__module__": module, "__class__": name, "__loader__": loader, "content": inner}
        attributes["verbose"] = node

    refused(rf"harmless: {module}\.{name}", with_schema(written(model, tmp_path), alter))


@pytest.mark.parametrize(
    "call",
    [["eval", "@x"], ["to_pickle", "there"], ["to_numpy", "O"], ["reshape", -1, 0]],
)
def test_calls_our_pipelines_do_not_make_are_refused(call, tmp_path):
    table, labels = mixed_table(120)
    frame = table.convert_dtypes()
    model = train("forest", Schema.infer(frame), frame, labels, n_estimators=1)
    value = {"__class__": "str", "__module__": "builtins", "__loader__": "JsonNode"}

    def alter(schema: Any) -> None:
        for node in find(schema, "methodcaller"):
            node["attrs"]["content"] = [{**value, "content": json.dumps(c)} for c in call]

    refused(r"harmless: operator\.methodcaller", with_schema(written(model, tmp_path), alter))


def test_files_that_are_not_skops_files(tmp_path):
    path = written(GaussianNB().fit(TABLE, HIGH), tmp_path)
    whole = path.read_bytes()
    for content in (b"", whole[:-1], b"hello", b'{"a": 1}', b"PK\x03\x04" + b"x" * 300):
        path.write_bytes(content)
        refused(r"'model\.skops' is not a skops file", path)
    for name in ("../schema.json", "/etc/x.npy", "a/b.npy", "..\\x.npy", "x.py", "C:x.npy"):
        path.write_bytes(whole)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(name, b"x")
        refused("is not a skops file", path)
    worlds.post().explainer.save(path)  # a zip of another kind
    refused("is not a skops file", path)


def test_bombs_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    path = written(GaussianNB().fit(TABLE, HIGH), tmp_path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.npy", b"\0" * 120_000_000)
    assert path.stat().st_size < 400_000
    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("unpacked"))
        refused("far too large", path)

    def many(schema: Any) -> None:  # one array of some size, used ten thousand times
        array = find(schema, "ndarray")[0]
        attributes = find(schema, "GaussianNB")[0]["content"]["content"]
        name = {"__class__": "list", "__module__": "builtins", "__loader__": "ListNode"}
        attributes["theta_"] = {**name, "content": [{**array, "file": "big.npy"}] * 10_000}

    big = io.BytesIO()
    np.save(big, np.random.default_rng(0).normal(size=50_000))
    path = with_schema(written(GaussianNB().fit(TABLE, HIGH), tmp_path), many)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("big.npy", big.getvalue())
    refused("far too large", path)


def test_an_object_that_does_not_predict(tmp_path):
    with pytest.raises(InputError, match=r"'model\.skops' holds an object of type StandardScaler"):
        load_classifier(written(StandardScaler().fit(TABLE), tmp_path))


def test_writing_is_atomic(tmp_path):
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
