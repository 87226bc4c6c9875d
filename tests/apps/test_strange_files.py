"""Files from strangers: crafted arrays, bombs, weights elsewhere, files that are none.

What a bomb takes is measured in a process of its own: its peak of memory, and its time of the
processor, which does not depend on how busy the machine is.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from sklearn.cluster import KMeans
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC, NuSVC
from test_cli_outputs import here as here  # noqa: PLC0414  a fixture
from test_cli_outputs import small
from test_loaders import HIGH, TABLE, written, zip_members, zipped
from test_onnx_files import graph, line

from lapace import Explainer, InputError
from lapace.apps.loaders import load_classifier, open_referred, refer_to
from lapace.files import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES, MOST_SECONDS = 10**9, 10.0
LOADED = """
import resource, sys
from lapace import Explainer, InputError
from lapace.apps.loaders import load_classifier

try:
    load = Explainer.load if sys.argv[1].endswith(".lapace") else load_classifier
    load(sys.argv[1])
    print("loaded")
except InputError as error:
    print(error)
used = resource.getrusage(resource.RUSAGE_SELF)
# Not ru_maxrss: a process begins with that of the one it was started by.
status = dict(line.split(":") for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) * 1024, used.ru_utime + used.ru_stime)
"""


def load_apart(path: Path) -> str:
    """What loading a file says, in a process of its own that stays within bounds."""
    found = subprocess.run(
        [sys.executable, "-c", LOADED, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    *said, used = found.stdout.splitlines()
    memory, seconds = map(float, used.split())
    assert memory < MOST_BYTES
    assert seconds < MOST_SECONDS
    return " ".join(said)


def pack(path: Path, parts: dict[str, bytes]) -> Path:
    path.write_bytes(zipped(parts))
    return path


# --- arrays that native code trusts --------------------------------------------------------------


@pytest.mark.parametrize("kind", [SVC, NuSVC])
def test_a_support_vector_machine_as_fitted_loads(kind, tmp_path):
    model = kind().fit(TABLE, np.where(HIGH, "high", "low"))
    again = load_classifier(written(model, tmp_path))
    assert again.predict(TABLE).tolist() == model.predict(TABLE).tolist()
    three = kind(kernel="linear").fit(TABLE, np.arange(len(TABLE)) % 3)
    assert (load_classifier(written(three, tmp_path)).predict(TABLE) == three.predict(TABLE)).all()


CRAFTED = {
    "_n_support": lambda a: a * 1000,
    "support_": lambda a: a[:1],
    "support_vectors_": lambda a: a[:, :1],
    "_dual_coef_": lambda a: a[:, :1],
    "_intercept_": lambda a: a[:0],
    "_probA": lambda _: np.zeros(7),
    "n_features_in_": lambda _: 1000,
    "classes_": lambda _: np.arange(50),
    "kernel": lambda _: "precomputed",
    "_sparse": lambda _: True,
    "_impl": lambda _: "one_class",
}


@pytest.mark.parametrize("name", CRAFTED)
def test_machines_whose_arrays_do_not_agree_are_refused(name, tmp_path):
    """Prediction would read foreign memory, and may end the process."""
    model = SVC().fit(TABLE, HIGH)
    setattr(model, name, CRAFTED[name](getattr(model, name)))
    with pytest.raises(InputError, match=r"not known to be harmless: sklearn\.svm\._classes\.SVC"):
        load_classifier(written(model, tmp_path))


@pytest.mark.parametrize("model", [KMeans(2), KNeighborsClassifier(algorithm="brute")])
def test_other_native_code_needs_trust(model, tmp_path):
    name = type(model).__name__
    with pytest.raises(InputError, match=rf"not known to be harmless.*{name}"):
        load_classifier(written(model.fit(TABLE, HIGH), tmp_path))


# --- bombs ---------------------------------------------------------------------------------------


def test_a_network_far_larger_than_its_weights_is_refused(here):
    parts = zip_members(Path("m.lapace"))
    config = json.loads(parts["config.json"])
    config["shape"]["hidden"] = 40_000
    tensors = load_tensors(parts["weights.safetensors"])
    for name in ("model.decoder.0.weight", "model.decoder.0.bias"):
        tensors[name] = tensors[name][:1].repeat(40_000, *[1] * (tensors[name].ndim - 1))
    parts |= {
        "config.json": json.dumps(config).encode(),
        "weights.safetensors": save_tensors(tensors),
    }
    bomb = pack(here / "bomb.lapace", parts)
    assert bomb.stat().st_size < 10**6
    assert "damaged" in load_apart(bomb)


def test_nested_json_is_refused(here):
    deep = b"[" + b"[],[[]],{}," * 9_000_000 + b"0]"
    parts = zip_members(Path("m.lapace")) | {"report.json": deep}
    assert "far too large" in load_apart(pack(here / "bomb.lapace", parts))
    parts = zip_members(Path("m.skops"))
    parts["schema.json"] = parts["schema.json"][:-1] + b', "x": ' + deep + b"}"
    assert "far too large" in load_apart(pack(here / "bomb.skops", parts))


def test_archives_in_archives_and_many_nodes_are_refused(here):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.npy", bytes(900_000_000))
    parts = zip_members(Path("m.skops"))
    assert "far too large" in load_apart(
        pack(here / "a.skops", parts | {"x.npz": inner.getvalue()})
    )
    node = {"__class__": "list", "__module__": "builtins", "__loader__": "ListNode", "content": []}
    schema = json.loads(parts["schema.json"]) | {"more": [node] * 300_000}
    parts["schema.json"] = json.dumps(schema).encode()
    assert "far too large" in load_apart(pack(here / "b.skops", parts))


def test_many_prototypes_of_many_columns_are_refused(here):
    parts = zip_members(Path("m.lapace"))
    one = json.loads(parts["prototypes.json"])[0]
    many = [one | {"number": i} for i in range(200_000)]
    parts["prototypes.json"] = json.dumps(many).encode()
    assert "damaged" in load_apart(pack(here / "bomb.lapace", parts))


def test_a_large_file_of_ones_own_can_be_allowed(here, monkeypatch):
    monkeypatch.setenv(VARIABLE, "5000")
    with pytest.raises(InputError, match="far too large"):
        Explainer.load("m.lapace")
    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(InputError, match="LAPACE_LARGEST is 'much'; it is a number of bytes"):
        Explainer.load("m.lapace")
    monkeypatch.setenv(VARIABLE, str(2**30))
    Explainer.load("m.lapace")


# --- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(number, here):
    parts = zip_members(Path("m.lapace"))
    for name in ("model.decoder.0.weight", "mixture.0.means", "prototype.z"):
        tensors = load_tensors(parts["weights.safetensors"])
        tensors[name].view(-1)[0] = number
        pack(Path("bad.lapace"), parts | {"weights.safetensors": save_tensors(tensors)})
        with pytest.raises(InputError, match="damaged"):
            Explainer.load("bad.lapace", small()[1])


def test_a_library_that_is_missing_is_not_damage(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="fitted from a pandas table, and pandas is not installed"):
        Explainer.load("m.lapace", small()[1])


# --- files that are none -------------------------------------------------------------------------


def test_a_followed_classifier_is_a_plain_file_of_its_folder(here, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "m.skops"
    reference = refer_to("m.lapace", "m.skops")
    Path("m.skops").rename(elsewhere)
    with pytest.raises(InputError, match=r"is not beside 'm\.lapace' any more"):
        Explainer.load("m.lapace")
    for make in (
        lambda: os.mkfifo("m.skops"),
        lambda: Path("m.skops").symlink_to(elsewhere),
        lambda: Path("m.skops").symlink_to("/dev/zero"),
    ):
        make()
        with pytest.raises(InputError, match="is not a plain file of its folder"):
            open_referred(Path("m.lapace"), reference)
        Path("m.skops").unlink()
    Path("real.skops").write_bytes(elsewhere.read_bytes())
    Path("m.skops").symlink_to("real.skops")
    assert Explainer.load("m.lapace").classifier is not None


# --- ONNX ----------------------------------------------------------------------------------------


def endless(folder: Path) -> Path:
    """A graph that counts to 2**62 before it answers."""
    onnx = import_module("onnx")
    helper, number = onnx.helper, onnx.TensorProto
    array = onnx.numpy_helper.from_array
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Identity", ["v"], ["w"])],
        "body",
        [
            info("i", number.INT64, []),
            info("go", number.BOOL, []),
            info("v", number.FLOAT, [None, 2]),
        ],
        [info("on", number.BOOL, []), info("w", number.FLOAT, [None, 2])],
    )
    return graph(
        folder,
        [helper.make_node("Loop", ["n", "yes", "x"], ["y"], body=body)],
        [info("x", number.FLOAT, [None, 2])],
        [info("y", number.FLOAT, [None, 2])],
        [array(np.array(2**62), "n"), array(np.array(True), "yes")],
    )


@pytest.mark.needs("onnx")
def test_a_graph_that_loops_can_be_interrupted(tmp_path):
    code = (
        "import signal, sys, pandas as pd; from lapace.apps.loaders import load_classifier;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"
        "model = load_classifier(sys.argv[1]); print('ready', flush=True);"
        "model.predict(pd.DataFrame({'a': [1.0], 'b': [2.0]}))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(endless(tmp_path))],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in error


@pytest.mark.needs("onnx")
def test_a_graph_of_a_billion_rows_at_a_time_is_refused(tmp_path):
    model = load_classifier(line(tmp_path, rows=10**9))
    with pytest.raises(InputError, match="takes 1,000,000,000 rows at a time"):
        model.predict(TABLE)


@pytest.mark.needs("onnx")
def test_weights_elsewhere_are_found_wherever_a_graph_has_them(tmp_path, monkeypatch):
    onnx = import_module("onnx")
    monkeypatch.chdir(tmp_path)
    Path("secret.bin").write_bytes(bytes(16))
    model = onnx.load(line(tmp_path))
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret.bin")
    tensor.ClearField("raw_data")
    inner = onnx.helper.make_node("Constant", [], ["k"], value=tensor)
    model.graph.node.insert(0, inner)
    for keep in (slice(0, 1), slice(1, 2)):  # in an initializer, or in a node's attribute
        other = onnx.ModelProto()
        other.CopyFrom(model)
        if keep.start:
            other.graph.initializer[0].ClearField("external_data")
            other.graph.initializer[0].ClearField("data_location")
        else:
            del other.graph.node[0]
        Path("net.onnx").write_bytes(other.SerializeToString())
        with pytest.raises(InputError, match="keeps weights in another file"):
            load_classifier("net.onnx")


def test_onnxruntimes_own_format_is_refused(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x00\x00\x00ORTM" + bytes(50))
    with pytest.raises(InputError, match=r"'m\.onnx' is not an ONNX file"):
        load_classifier(path)
