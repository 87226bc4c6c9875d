"""Files from strangers: crafted arrays, bombs, weights elsewhere, files that are none.

What a bomb takes is measured in a process of its own: its peak of memory, and its time of the
processor, which does not depend on how busy the machine is.
"""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from test_cli_outputs import here as here  # noqa: PLC0414  a fixture
from test_cli_outputs import small
from test_loaders import refused, zip_members, zipped
from test_onnx_files import line

from lapace import Explainer, InputError
from lapace.apps.loaders import open_referred, refer_to
from lapace.files import VARIABLE
from tests.processes import python

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
    found = python("-c", LOADED, path, check=True)
    *said, used = found.stdout.splitlines()
    memory, seconds = map(float, used.split())
    assert memory < MOST_BYTES
    assert seconds < MOST_SECONDS
    return " ".join(said)


def pack(path: Path, parts: dict[str, bytes]) -> Path:
    path.write_bytes(zipped(parts))
    return path


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


@pytest.mark.needs("onnx")
def test_a_graph_of_a_billion_rows_at_a_time_is_refused(tmp_path):
    refused("takes 1000000000 rows at a time", line(tmp_path, rows=10**9))


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
        refused("keeps weights in another file", "net.onnx")


def test_onnxruntimes_own_format_is_refused(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x00\x00\x00ORTM" + bytes(50))
    refused(r"'m\.onnx' is not an ONNX file", path)
