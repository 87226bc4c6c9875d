"""Saving and loading: the same explanations, the same bytes; damaged and foreign files refused."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from lapace import CentroidWarning, ClassifierError, Explainer, InputError, Search, files
from lapace.constraints import parse
from lapace.errors import LapaceError
from lapace.explainer import storage
from tests import worlds
from tests.damage import DAMAGE, damaged, places
from tests.worlds import World

each_world = worlds.each(
    (worlds.bank, None),
    (worlds.seasons, 1),
    (worlds.digits, 5),
    (worlds.signs, None),
    (worlds.shop, None),
    (worlds.post, None),
    (worlds.rare, "a"),
    (worlds.paper, None),
)


def load(path: Path, world: World) -> Explainer:
    return Explainer.load(path, world.classifier, device="cpu")


def check_refused(path: Path, sentence: str = "is not a saved explainer") -> None:
    with pytest.raises(InputError, match=sentence):
        load(path, worlds.post())


@pytest.fixture
def saved(tmp_path) -> Path:
    """The explainer of `worlds.post`, in a file."""
    worlds.post().explainer.save(tmp_path / "post.lapace")
    return tmp_path / "post.lapace"


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def pack(path: Path, contents: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


def altered(path: Path, member: str, change: Callable[[Any], Any]) -> Path:
    """The file with one JSON member changed."""
    contents = members(path)
    data = json.loads(contents[member])
    contents[member] = json.dumps(change(data) or data).encode()
    return pack(path, contents)


# --- round trips -----------------------------------------------------------------------------


@cache
def saved_bytes(world: Callable[[], World]) -> bytes:
    with TemporaryDirectory() as folder:
        world().explainer.save(Path(folder, "it.lapace"))
        return Path(folder, "it.lapace").read_bytes()


@cache
def loaded(world: Callable[[], World]) -> Explainer:
    """A world's explainer, saved and loaded."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "it.lapace")
        path.write_bytes(saved_bytes(world))
        return load(path, world())


@each_world
def test_a_loaded_explainer_explains_identically(world, target):
    here, again = world(), loaded(world)
    for settings in ({}, {"search": Search(n_starts=3, n_best=1)}):
        one = here.explainer.explain(here.instances, target=target, **settings)
        other = again.explain(here.instances, target=target, **settings)
        assert one == other
    assert again.classes_.tolist() == here.explainer.classes_.tolist()
    assert [type(v) for v in again.classes_] == [type(v) for v in here.explainer.classes_]
    label = here.explainer.classes_[1]
    first, second = (e.sample(label, 5, random_state=3) for e in (here.explainer, again))
    np.testing.assert_array_equal(here.explainer.schema_.cells(first), again.schema_.cells(second))


@each_world
def test_everything_learned_is_loaded(world, target):
    one, other = world().explainer, loaded(world)
    assert other.schema_.to_json() == one.schema_.to_json()
    assert other.report_.to_json() == one.report_.to_json()
    assert (other.n_prototypes, other.n_latent, other.random_state) == (
        one.n_prototypes,
        one.n_latent,
        one.random_state,
    )
    assert asdict(other.fitted_.recipe) == asdict(one.fitted_.recipe)
    for name, values in one.history_.items():
        np.testing.assert_array_equal(other.history_[name], values)
    for a, b in zip(one.prototypes_, other.prototypes_, strict=True):
        np.testing.assert_array_equal(a.cells, b.cells)
        np.testing.assert_array_equal(a.z, b.z)
        assert a.z.dtype == b.z.dtype
        assert (a.number, a.label, a.valid, a.members, a.note) == (
            b.number, b.label, b.valid, b.members, b.note,
        )  # fmt: skip


@each_world
def test_the_same_explainer_is_saved_to_the_same_bytes(world, target, tmp_path):
    here, path = world(), tmp_path / "it.lapace"
    here.explainer.explain(here.instances[:2], target=target)
    for explainer in (here.explainer, loaded(world)):
        explainer.save(path)
        assert path.read_bytes() == saved_bytes(world)
    with zipfile.ZipFile(path) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {storage.DAY}  # not today


def test_a_file_holds_json_and_tensors_only(saved):
    found = members(saved)
    assert sorted(found) == sorted(storage.MEMBERS)
    for name, content in found.items():
        if name.endswith(".json"):
            json.loads(content)
        else:
            assert load_tensors(content)
    assert b"postage" not in b"".join(found.values())  # the classifier is not in it


def test_a_file_holds_no_training_row(tmp_path):
    here = worlds.signs()  # no two of its rows share a value
    here.explainer.save(tmp_path / "it.lapace")
    schema = here.explainer.schema_
    cells = schema.cells(here.train)
    rows = {
        tuple(row) for known in (cells, schema.encode(cells)) for row in known.round(4).tolist()
    }
    assert len(rows) == 2 * len(here.train)

    def runs(value: Any):  # of numbers that stand beside each other
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            yield [item for item in value if isinstance(item, float)]
            for item in value:
                yield from runs(item)

    found = []
    for name, content in members(tmp_path / "it.lapace").items():
        if name.endswith(".json"):
            found += runs(json.loads(content))
        elif name.endswith(".safetensors"):
            found += [tensor.ravel().tolist() for tensor in load_tensors(content).values()]
    for run in found:
        stored = np.lib.stride_tricks.sliding_window_view(np.r_[run, 0, 0, 0], 3).round(4)
        assert not rows & set(map(tuple, stored.tolist()))
    assert sum(map(len, found)) > 5000


def test_rules_are_saved_with_their_notes(tmp_path):
    rules = ["fixed stamp", parse("weight <= 400 # The scales end there.")]
    explainer = worlds.quick(worlds.postage, 1, rules=rules).fit(worlds.letters(300, 0))
    explainer.save(tmp_path / "it.lapace")
    again = Explainer.load(tmp_path / "it.lapace", worlds.postage)
    assert [str(rule) for rule in again.rules] == ["fixed stamp", "weight <= 400"]
    assert [rule.note for rule in again.rules] == ["", "The scales end there."]
    instances = worlds.letters(10, 5)
    assert explainer.explain(instances) == again.explain(instances)


# --- atomic writes ---------------------------------------------------------------------------


def test_a_failed_save_keeps_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()

    def disk_full(*args: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "writestr", disk_full)
        with pytest.raises(OSError, match="No space left"):
            worlds.bank().explainer.save(saved)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", disk_full)
        with pytest.raises(OSError, match="No space left"):
            worlds.bank().explainer.save(saved)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["post.lapace"]


def test_saving_into_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"There is no folder '.*nowhere'"):
        worlds.post().explainer.save(tmp_path / "nowhere" / "it.lapace")


# --- files that are no explainer -------------------------------------------------------------


def test_loading_a_missing_file_or_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="There is no file"):
        load(tmp_path / "it.lapace", worlds.post())
    with pytest.raises(
        InputError, match=r"' is a folder\. Name the file an explainer was saved in"
    ):
        load(tmp_path, worlds.post())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("instances.csv", b"age\n31\n"),
        ("instances.parquet", b""),
        ("it.lapace", b"age,home\r\n31,own\r\n"),
        ("it.lapace", b"PAR1 and so on"),
    ],
)
def test_loading_a_table_is_refused_by_name(tmp_path, monkeypatch, name, content):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match="is not a saved explainer: it looks like a table"
    ) as error:
        load(Path("folder", name), worlds.post())
    assert str(error.value).startswith(f"'{Path('folder', name)}' is")
    assert "M.lapace" in str(error.value)


def test_a_truncated_file_is_refused_at_any_length(saved):
    whole = saved.read_bytes()
    lengths = {0, 1, 3, 4, 21, 22, len(whole) - 1, *range(100, len(whole), 997)}
    assert len(lengths) > 25
    for length in sorted(lengths):
        saved.write_bytes(whole[:length])
        check_refused(saved, r"post\.lapace' is not a saved explainer")


def test_a_foreign_zip_is_refused(saved, tmp_path):
    contents = members(saved)
    one_less = {k: v for k, v in contents.items() if k != "schema.json"}
    for other in ({}, {"a.txt": b"hello"}, one_less, {**contents, "extra.py": b"print(1)"}):
        check_refused(pack(tmp_path / "other.lapace", other))


@pytest.mark.parametrize("name", ["../config.json", "/etc/config.json", "a/../config.json", "C:x"])
def test_a_member_name_outside_the_archive_is_refused(saved, name):
    contents = members(saved)
    pack(saved, {**contents, name: contents["config.json"]})
    check_refused(saved)
    moved = {name if k == "config.json" else k: v for k, v in contents.items()}
    check_refused(pack(saved, moved))
    assert [p.name for p in saved.parent.iterdir()] == ["post.lapace"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_duplicate_member_is_refused(saved):
    with zipfile.ZipFile(saved, "a") as archive:
        archive.writestr("config.json", b"{}")
    check_refused(saved)


@pytest.mark.parametrize("member", ["format.json", "schema.json", "config.json", "report.json"])
def test_a_name_that_is_twice_in_one_object_is_refused(saved, member):
    contents = members(saved)
    name = next(iter(json.loads(contents[member])))
    twice = contents[member].decode().rstrip().removesuffix("}") + f', "{name}": 1}}'
    pack(saved, {**contents, member: twice.encode()})
    check_refused(saved, rf"in {member}, '{name}' is twice in one object")


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 7])
def test_a_file_of_another_version_is_refused(saved, version):
    altered(saved, "format.json", lambda d: {**d, "version": version})
    check_refused(saved, rf"of version {version} and this lapace reads version 6")


def test_a_too_large_member_is_refused_before_it_is_unpacked(saved, monkeypatch):
    contents = members(saved)
    pack(saved, {**contents, "report.json": b" " * 40_000_000})
    assert saved.stat().st_size < 200_000
    read_parts = []
    original = zipfile.ZipFile.open
    monkeypatch.setattr(
        zipfile.ZipFile,
        "open",
        lambda self, *a, **k: read_parts.append(a) or original(self, *a, **k),
    )
    check_refused(saved, "far too large")
    assert read_parts == []
    monkeypatch.setattr(files, "LARGEST", 10_000)
    worlds.post().explainer.save(saved)
    check_refused(saved, "far too large")


def test_a_member_of_a_false_size_is_refused(saved):
    """The directory has a small size; the stream is longer."""
    contents = members(saved)
    big = b" " * 3_000_000
    pack(saved, {**contents, "report.json": big})
    raw = bytearray(saved.read_bytes())
    size = len(big).to_bytes(4, "little")
    place = raw.rfind(size)
    raw[place : place + 4] = (100).to_bytes(4, "little")
    saved.write_bytes(raw)
    check_refused(saved)


# --- damage ----------------------------------------------------------------------------------


def test_a_changed_byte_is_refused_or_harmless(saved):
    """Bytes of the content and of the directory: refused, or the same explanation."""
    here = worlds.post()
    instances = here.instances[:3]
    expected = here.explainer.explain(instances)
    whole = saved.read_bytes()
    rng = np.random.default_rng(0)
    directory = whole.index(b"PK\x01\x02")
    places = [
        *rng.integers(0, directory, 60),
        *rng.integers(directory, len(whole), 100),
        *range(30),
    ]
    refused = 0
    for place in places:
        raw = bytearray(whole)
        raw[place] ^= int(rng.integers(1, 256))
        saved.write_bytes(raw)
        try:
            found = load(saved, here)
        except InputError as error:
            assert "post.lapace" in str(error)  # noqa: PT017
            refused += 1
        else:
            assert found.explain(instances) == expected
    assert refused > 120


@pytest.mark.filterwarnings("ignore::lapace.CentroidWarning")
@pytest.mark.parametrize("member", ["schema.json", "config.json", "prototypes.json", "report.json"])
def test_rewritten_json_is_refused_or_works(saved, member):
    """Intact zips with wrong JSON: no crash, neither when loading nor when explaining."""
    here = worlds.post()
    contents = members(saved)
    whole, rng, refused = json.loads(contents[member]), np.random.default_rng(0), 0
    every = list(places(whole, 3))
    for k in rng.permutation(len(every))[:40]:
        for value in rng.permutation(np.array([*DAMAGE, None], dtype=object))[:2]:
            data = damaged(whole, every[k], value)
            pack(saved, {**contents, member: json.dumps(data).encode()})
            try:
                found = load(saved, here)
                found.explain(here.instances[:2]).first().frame  # noqa: B018
                str(found.report_)
            except LapaceError:  # a file may name labels the classifier never predicts
                refused += 1
    assert refused > 20


def test_tensors_of_other_shapes_are_refused(saved):
    contents = members(saved)
    tensors = load_tensors(contents["weights.safetensors"])
    for name in tensors:
        if name.endswith("typical"):  # a sample: any length will do
            continue
        less = {k: v for k, v in tensors.items() if k != name}
        short = {**tensors, name: tensors[name].reshape(-1)[:-1].clone()}
        for wrong in (less, short):
            pack(saved, {**contents, "weights.safetensors": save_tensors(wrong)})
            check_refused(saved, "damaged")


def test_a_shape_the_weights_do_not_have_is_refused_before_allocation(saved):
    altered(saved, "config.json", lambda c: c["shape"].update(hidden=10**6))
    check_refused(saved)


def test_a_pickle_in_a_file_is_not_run(saved, monkeypatch):
    """A pickle instead of the weights is not loaded."""
    contents = members(saved)

    class Bomb:
        def __reduce__(self) -> tuple:
            return exec, ("raise SystemExit('it ran')",)

    pack(saved, {**contents, "weights.safetensors": pickle.dumps(Bomb())})
    check_refused(saved)


# --- another classifier ----------------------------------------------------------------------


def test_prototypes_the_classifier_no_longer_accepts_are_named_and_unused(tmp_path):
    here = worlds.post()
    here.explainer.save(tmp_path / "it.lapace")
    refused = next(p for p in here.explainer.prototypes_ if p.label == "dear")
    rejected_row = here.explainer.schema_.frame(refused.cells[None])[0]

    def rejecting(rows: list[dict]) -> list[str]:
        labels = worlds.postage(rows)
        return [
            "cheap" if row == rejected_row else label
            for row, label in zip(rows, labels, strict=True)
        ]

    with pytest.warns(CentroidWarning, match=rf"prototypes \[{refused.number}\]: no path leads"):
        other = Explainer.load(tmp_path / "it.lapace", rejecting)
    explanation = other.explain(here.instances, target="dear")
    assert refused.number not in explanation.prototype
    assert len(explanation.prototype)
    # One that is accepted again is noticed as well.
    other.save(tmp_path / "it.lapace")
    with pytest.warns(CentroidWarning, match="judges the prototypes differently"):
        load(tmp_path / "it.lapace", here)


def test_a_classifier_that_accepts_no_prototype_finds_nothing(tmp_path):
    here = worlds.post()
    here.explainer.save(tmp_path / "it.lapace")
    with pytest.warns(CentroidWarning, match="no longer accepts"):
        other = Explainer.load(tmp_path / "it.lapace", lambda rows: ["cheap"] * len(rows))
    assert set(other.explain(here.instances).status) == {"none_found"}
    with pytest.raises(InputError, match="no valid prototype of label 'dear'"):
        other.explain(here.instances, target="dear")


def test_a_classifier_of_another_table_is_refused(saved):
    with pytest.raises(ClassifierError, match="'yes', which it predicted for no"):
        Explainer.load(saved, lambda rows: ["yes"] * len(rows))
    with pytest.raises(ClassifierError, match="raised"):
        Explainer.load(saved, worlds.season)
    with pytest.raises(InputError, match="is an object of type int"):
        Explainer.load(saved, 7)
