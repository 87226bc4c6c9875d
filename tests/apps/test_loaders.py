"""Loading classifiers: modules, pickles, what names none, and references kept with an explainer."""

from __future__ import annotations

import io
import json
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from lapace import Explainer
from lapace.apps.loaders import (
    load_classifier,
    open_referred,
    refer_to,
    save_classifier,
)
from lapace.classifier import Classifier
from lapace.datasets import train
from lapace.errors import ClassifierError, InputError
from lapace.schema import Schema
from tests import worlds

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


def check_labels(loaded: Any, model: Any, labels: tuple[Any, Any]) -> None:
    """The same labels, of the same types, and the same probabilities as the original model's."""
    classifier = Classifier(loaded, SCHEMA)
    codes = classifier.fit_labels(CELLS)
    assert classifier.labels == tuple(sorted(labels))
    assert {type(label) for label in classifier.labels} == {type(labels[0])}
    assert [classifier.labels[c] for c in codes] == model.predict(TABLE).tolist()
    predicted = classifier.query(CELLS)
    assert (predicted.codes == codes).all()
    assert predicted.probability == pytest.approx(model.predict_proba(TABLE), abs=1e-5)


def zip_members(file: Path | bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(file if isinstance(file, Path) else io.BytesIO(file)) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def repacked(path: Path, change: Callable[[dict[str, bytes]], Any]) -> Path:
    members = zip_members(path)
    change(members)
    path.write_bytes(zipped(members))
    return path


def identity(rows: Any) -> Any:
    return rows


def refused(sentence: str | None, spec: Any, **settings: Any) -> None:
    """Loads what is no classifier that can be used."""
    with pytest.raises(InputError, match=sentence):
        load_classifier(spec, **settings)


def fitted(model: Any) -> Explainer:
    return Explainer(model, n_prototypes=1, recipe=worlds.QUICK, device="cpu").fit(TABLE)


def explained(explainer: Explainer) -> str:
    return json.dumps(explainer.explain(TABLE.head(5)).to_json())


# ------------------------------------------------------------------------------------------------
# Objects of modules, and specifications that name no classifier


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
    assert load_classifier("tests.worlds:season") is worlds.season
    for spec, sentence in [
        ("my_own_bank:modle", r"'my_own_bank' has no attribute 'modle'\. Did you mean 'model'\?"),
        ("my_own_bank:Desk.clark", r"'Desk' has no attribute 'clark'\. Did you mean 'clerk'\?"),
        ("my_own_bank:number", "holds an object of type int"),
        ("my_own_bank:Clerk", "holds the class Clerk"),
        ("my_own_bnak:model", "no module 'my_own_bnak'. It has to be installed, or lie in the cur"),
        ("my_own_bank.inner:model", r"no module 'my_own_bank\.inner'"),
        ("my_broken_bank:model", "Importing 'my_broken_bank' raised RuntimeError: closed"),
    ]:
        refused(sentence, spec)
    assert sys.path == before
    del sys.modules["my_own_bank"]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("model", r"'model' names no classifier\. Write a file ending in \.skops or \.onnx"),
        ("forst", r"names no classifier\. Did you mean 'forest'\? .* also train one: forest"),
        ("", "names no classifier"),
        ("a:b:c", "names no classifier"),
        ("ftp://host/x", "names no classifier"),
        ("nowhere.skops", "There is no file 'nowhere.skops'"),
        ("x\0y", "names no classifier"),
        (None, "'None' names no classifier"),
        ("http://", "is not an address"),
        ("http://host name/", "is not an address"),
        ("http://host:99999/", "is not an address"),
    ],
)
def test_what_names_no_classifier(spec, sentence):
    refused(sentence, spec)


def test_a_file_of_another_kind(tmp_path):
    path = tmp_path / "model.txt"
    path.write_text("hello")
    refused(r"'model\.txt' is not a classifier's file", path)
    refused("There is no file", tmp_path)


# ------------------------------------------------------------------------------------------------
# Pickles


@pytest.mark.parametrize("name", ["m.pkl", "m.skops", "m.onnx", "m"])
def test_pickles_are_refused_under_any_name(name, tmp_path, canary):
    path = tmp_path / name
    for protocol in range(6):
        path.write_bytes(pickle.dumps(Canary(canary), protocol))
        what = r"is a pickle.*save_classifier.*ONNX.*unsafe_pickle" if protocol > 1 else None
        refused(what, path)
    joblib.dump(Canary(canary), path, compress=3)
    refused(None, path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", pickle.dumps(Canary(canary)))
    refused("is a pickle", path)


def test_unsafe_pickle_loads_pickles(tmp_path):
    model = GaussianNB().fit(TABLE, HIGH)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(model))
    joblib.dump(model, tmp_path / "b.joblib", compress=3)
    for name in ("a.pkl", "b.joblib"):
        again = load_classifier(tmp_path / name, unsafe_pickle=True)
        assert (again.predict(TABLE) == model.predict(TABLE)).all()
    mark = tmp_path / "mark"
    (tmp_path / "c.pkl").write_bytes(pickle.dumps(Canary(mark)))
    refused("holds an object of type NoneType", tmp_path / "c.pkl", unsafe_pickle=True)
    assert mark.exists()  # so that its absence above means that nothing ran
    (tmp_path / "d.pkl").write_bytes(b"\x80\x04rubbish")
    refused("could not be unpickled", tmp_path / "d.pkl", unsafe_pickle=True)


# ------------------------------------------------------------------------------------------------
# Extras that are not installed


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
    with pytest.raises(ImportError, match=rf"pip install 'lapace\[{extra}\]'"):
        load_classifier(spec)


# ------------------------------------------------------------------------------------------------
# Fitted, saved with a reference to the classifier, loaded again


def test_a_skops_file_beside_the_explainer_is_loaded(tmp_path, monkeypatch):
    model = train("forest", SCHEMA, TABLE, np.where(HIGH, "high", "low"), n_estimators=5)
    path = written(model, tmp_path)
    explainer = fitted(load_classifier(path))
    explainer.save(tmp_path / "m.lapace", classifier=path)
    expected = explained(explainer)
    assert explained(Explainer.load(tmp_path / "m.lapace", device="cpu")) == expected
    assert explained(Explainer.load(tmp_path / "m.lapace", model, device="cpu")) == expected
    # Both are moved together; the name beside the file is enough.
    (tmp_path / "there" / "in").mkdir(parents=True)
    for file in ("m.lapace", "model.skops"):
        (tmp_path / file).rename(tmp_path / "there" / file)
    monkeypatch.chdir(tmp_path)
    assert explained(Explainer.load("there/m.lapace", device="cpu")) == expected
    for name in ("model.skops", "there/model.skops"):
        explainer.save("there/n.lapace", classifier=name)
        assert Explainer.load("there/n.lapace", device="cpu").classes_.tolist() == ["high", "low"]
    Path("there/model.skops").rename("there/in/model.skops")
    with pytest.raises(InputError, match=r"'model\.skops' is not beside 'n\.lapace' any more"):
        Explainer.load("there/n.lapace", device="cpu")
    explainer.save("there/n.lapace", classifier="there/in/model.skops")
    assert explained(Explainer.load("there/n.lapace", device="cpu")) == expected


def test_an_object_has_to_be_named_again(tmp_path):
    explainer, path = worlds.post().explainer, tmp_path / "m.lapace"
    explainer.save(path, classifier="my_bank:clerk")
    with pytest.raises(InputError, match="with 'my_bank:clerk', which is not followed"):
        Explainer.load(path)
    explainer.save(path)
    with pytest.raises(InputError, match=r"'m\.lapace' has no classifier beside it .*Pass it"):
        Explainer.load(path)


@pytest.fixture
def pair(tmp_path) -> Path:
    """An explainer saved with a reference to a file beside it, of another table."""
    written(GaussianNB().fit(TABLE, HIGH), tmp_path)
    worlds.post().explainer.save(tmp_path / "m.lapace", classifier="model.skops")
    return tmp_path / "m.lapace"


def referring(pair: Path, **kept: Any) -> Path:
    def alter(members: dict[str, bytes]) -> None:
        config = json.loads(members["config.json"])
        config["classifier"] = {**config["classifier"], **kept}
        members["config.json"] = json.dumps(config).encode()

    return repacked(pair, alter)


def test_a_classifier_file_that_changed_is_not_loaded(pair, canary):
    (pair.parent / "model.skops").write_bytes(pickle.dumps(Canary(canary)))
    with pytest.raises(InputError, match=r"'model\.skops' has changed since 'm\.lapace' was saved"):
        Explainer.load(pair)


@pytest.mark.parametrize(
    "file",
    ["../m.skops", "/etc/m.skops", "C:m.skops", "..\\m.skops", "model.pkl", "", "x\0.skops"],
)
def test_a_reference_out_of_the_folder_is_refused(pair, file):
    with pytest.raises(InputError, match=r"outside of its own folder|damaged"):
        Explainer.load(referring(pair, file=file))


@pytest.mark.parametrize(
    "kept",
    [{"sha256": "x"}, {"sha256": 3}, {"file": None}, {"file": []}, {"threshold": "[2, 1]"}],
)
def test_a_damaged_reference_is_refused(pair, kept):
    with pytest.raises(InputError, match="damaged"):
        Explainer.load(referring(pair, **kept))


def test_types_in_the_classifier_beside_are_trusted_by_name_only(tmp_path):
    model = make_pipeline(FunctionTransformer(identity), GaussianNB()).fit(TABLE, HIGH)
    written(model, tmp_path)
    reference = refer_to(tmp_path / "m.lapace", "model.skops")
    with pytest.raises(InputError, match=r"not known to be harmless: .*\.identity"):
        open_referred(tmp_path / "m.lapace", reference)
    again = open_referred(tmp_path / "m.lapace", reference, [f"{__name__}.identity"])
    assert (again.predict(TABLE) == model.predict(TABLE)).all()


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


class FailingModel:
    """Predicts `left` times, then raises."""

    def __init__(self) -> None:
        self.left, self.n_calls = 10**9, 0

    def __call__(self, frame: Any) -> Any:
        self.n_calls += 1
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("gone")
        return np.where(frame["a"] > 0, "high", "low")


def test_a_classifier_that_is_gone_is_soon_given_up():
    model = FailingModel()
    explainer = fitted(model)
    instances = TABLE[TABLE["a"] < 0].head(20)
    model.n_calls = 0
    explainer.explain(instances, target="high")
    whole = model.n_calls
    for lasts in range(1, whole):
        model.left, model.n_calls = lasts, 0
        with pytest.raises(ClassifierError, match="gone"):
            explainer.explain(instances, target="high")
        assert model.n_calls <= lasts + 2  # the rows, and an instance it was queried with before
