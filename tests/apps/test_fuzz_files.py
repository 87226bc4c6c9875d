"""More than a thousand mutated files, from fixed seeds: none runs code, none hangs, and each ends
in an error message or in an object that works."""

from __future__ import annotations

import io
import json
import pickle
import re
import signal
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_loaders import Canary, zip_members, zipped

from lapace import Explainer
from lapace.apps.loaders import load_classifier, save_classifier
from lapace.classifier import Classifier
from lapace.datasets import train
from lapace.errors import LapaceError
from lapace.schema import Schema
from tests import worlds
from tests.worlds import mixed_table

EXPLAINERS, CLASSIFIERS = 640, 150  # mutated files; of classifiers per kind
CPU_SECONDS = 60  # of the process, after which loading is taken to hang
TABLE, LABELS = mixed_table(60)
SCHEMA = Schema.infer(TABLE)
CELLS = SCHEMA.cells(TABLE)[:5]

Members = dict[str, bytes]
Rng = np.random.Generator


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Fails where a file takes longer, in time of this process: no load can bring it about."""

    def stop(*_: Any) -> None:
        raise AssertionError("loading hangs")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


# --- mutations: each takes the bytes of two intact files and a pickle with a canary ---------------


def any_member(rng: Rng, members: Members, ending: str = "") -> str:
    return str(rng.choice(sorted(name for name in members if name.endswith(ending))))


def damaged_zip(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    """Flipped bits, most of them in the directory; or parts of two files and a pickle, joined."""
    raw = bytearray(one)
    directory = one.index(b"PK\x01\x02")
    for _ in range(int(rng.integers(1, 5))):
        low = int(rng.choice([0, directory]))
        raw[int(rng.integers(low, len(raw)))] ^= 1 << int(rng.integers(8))
    cut, joint = (int(rng.integers(len(data))) for data in (one, other))
    joined = [
        one + other, other + one, bomb + one, one + bomb, one[:cut] + other[joint:],
        one[:cut] + bomb + one[cut:], one[:cut] + one[joint % len(one) :], one * 2,
    ]  # fmt: skip
    return bytes(raw) if rng.random() < 0.5 else joined[int(rng.integers(len(joined)))]


def truncation(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    return one[: int(rng.integers(len(one)))]


def member_swap(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    members, foreign = zip_members(one), zip_members(other)
    a, b, c = (any_member(rng, some) for some in (members, members, foreign))
    changes: list[Members] = [
        {a: members[b], b: members[a]}, {a: foreign[c]}, {a: members[b]}, {c: foreign[c]},
    ]  # fmt: skip
    return zipped(members | changes[int(rng.integers(len(changes)))])


def payload(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    """A pickle instead of a member, or of an array's content."""
    members = zip_members(one)
    name = any_member(rng, members)
    objects = io.BytesIO()
    np.save(objects, np.array([None], dtype=object), allow_pickle=True)
    head = objects.getvalue()[:128]
    members[name] = [bomb, head + bomb, members[name] + bomb][int(rng.integers(3))]
    return zipped(members)


def outside_name(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    members = zip_members(one)
    name = any_member(rng, members)
    form = rng.choice(["../{}", "/etc/{}", "a/../../{}", "..\\{}", "C:{}", "{}/", "\u202e{}"])
    content = members.pop(name) if rng.random() < 0.5 else members[name]
    return zipped({**members, str(form).format(name): content})


def false_size(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    """False sizes in the directory; or true ones of a zip bomb."""
    members = zip_members(one)
    if rng.random() < 0.1:
        members[any_member(rng, members)] = b"0" * 90_000_000
        return zipped(members)
    raw = bytearray(zipped(members))
    entry = int(rng.choice([match.start() for match in re.finditer(b"PK\x01\x02", raw)]))
    offset = int(rng.choice([10, 20, 24, 28, 42]))  # method, packed, unpacked, name's length, where
    form, largest = ("<H", 2**16) if offset in (10, 28) else ("<I", 2**32)
    value = int(rng.choice([0, 1, 8, 12, 14, 2**15, largest - 1, largest // 2]))
    struct.pack_into(form, raw, entry + offset, value % largest)
    return bytes(raw)


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    if path:
        yield path
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, item in value.items() if isinstance(value, dict) else ():
        yield from places(item, (*path, key))


def changed_json(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    """An intact zip with other values in its JSON."""
    members = zip_members(one)
    name = any_member(rng, members, ".json")
    data = json.loads(members[name])
    all_places = list(places(data))
    for _ in range(int(rng.integers(1, 4))):
        path = all_places[int(rng.integers(len(all_places)))]
        origin = all_places[int(rng.integers(len(all_places)))]
        try:
            inner, source = data, data
            for key in path[:-1]:
                inner = inner[key]
            for key in origin:
                source = source[key]
            values = [
                None, -1, 10**12, 1.5, "x", True, [], {}, source, "builtins", "eval", "posix",
                "ObjectNode", "FunctionNode", "TypeNode", "os.system", "../x.npy", 10**400,
            ]  # fmt: skip
            pick = values[int(rng.integers(len(values)))]
            inner[path[-1]] = json.loads(json.dumps(pick))
        except (KeyError, IndexError, TypeError, ValueError):
            continue  # an earlier change removed that place
    members[name] = json.dumps(data).encode()
    return zipped(members)


def changed_arrays(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    """An intact zip with other numbers in its arrays, so that checksums match."""
    members = zip_members(one)
    name = any_member(rng, {n: b"" for n in members if not n.endswith(".json")})
    raw = bytearray(members[name])
    for _ in range(int(rng.integers(1, 30))):
        raw[int(rng.integers(min(64, len(raw) - 1), len(raw)))] = int(rng.integers(256))
    members[name] = bytes(raw)
    return zipped(members)


MUTATIONS = (
    damaged_zip,
    damaged_zip,
    truncation,
    member_swap,
    payload,
    outside_name,
    false_size,
    changed_json,
    changed_arrays,
)


def mutated(
    one: bytes, other: bytes, canary: Path, seed: int, count: int
) -> Iterator[tuple[str, bytes]]:
    rng, bomb = np.random.default_rng(seed), pickle.dumps(Canary(canary))
    for k in range(count):
        mutation = MUTATIONS[k % len(MUTATIONS)]
        yield mutation.__name__, mutation(rng, one, other, bomb)


def count_outcomes(
    folder: Path, suffix: str, files: Iterator[tuple[str, bytes]], use: Callable[[Path], None]
) -> tuple[Counter[str], Counter[str]]:
    """How many files of each mutation were refused, and how many worked."""
    refused: Counter[str] = Counter()
    worked: Counter[str] = Counter()
    for k, (mutation, data) in enumerate(files):
        path = folder / f"{k}{suffix}"
        path.write_bytes(data)
        with cpu_limit(CPU_SECONDS):
            try:
                use(path)
                worked[mutation] += 1
            except LapaceError as error:
                assert str(error).strip(), "an error without a message"  # noqa: PT017
                refused[mutation] += 1
        path.unlink()
    return refused, worked


def with_stable_names(data: bytes) -> bytes:
    """skops names arrays by memory address; a seed has to mutate the same ones in every run."""
    members = zip_members(data)
    plan = members.pop("schema.json")
    order = sorted(members, key=lambda name: plan.find(name.encode()))
    for k, name in enumerate(order):
        plan = plan.replace(name.encode(), f"{k}.npy".encode())
    return zipped({**{f"{k}.npy": members[n] for k, n in enumerate(order)}, "schema.json": plan})


@pytest.fixture(scope="module")
def intact(tmp_path_factory) -> dict[str, bytes]:
    """Small intact files: an explainer and three classifiers."""
    folder = tmp_path_factory.mktemp("intact")
    quick = {"forest": {"n_estimators": 2}, "boosting": {"max_iter": 2}, "mlp": {"max_iter": 2}}
    files = {}
    for kind, settings in quick.items():
        save_classifier(train(kind, SCHEMA, TABLE, LABELS, **settings), folder / "it.skops")
        files[kind] = with_stable_names((folder / "it.skops").read_bytes())
    worlds.post().explainer.save(folder / "it.lapace", classifier=folder / "it.skops")
    files["explainer"] = (folder / "it.lapace").read_bytes()
    return files


@pytest.fixture
def empty_folder(tmp_path) -> Iterator[Path]:
    """A folder that has to be empty again after the test, as has its parent."""
    inner = tmp_path / "empty"
    inner.mkdir()
    yield inner
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty"], (
        "code ran, or a member was unpacked"
    )
    assert list(inner.iterdir()) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "seed"), [("forest", 1), ("boosting", 2), ("mlp", 3)])
def test_mutated_skops_files_are_refused_or_work(kind, seed, intact, empty_folder):
    def use(path: Path) -> None:
        Classifier(load_classifier(path), SCHEMA, ("no", "yes")).query(CELLS)

    files = mutated(
        intact[kind], intact["explainer"], empty_folder.parent / "canary", seed, CLASSIFIERS
    )
    refused, worked = count_outcomes(empty_folder, ".skops", files, use)
    assert sum(refused.values()) > CLASSIFIERS // 2
    assert not {"truncation", "outside_name"} & set(worked)
    assert worked["changed_json"]  # harmless changes exist, and are not refused


@pytest.mark.filterwarnings("ignore")
def test_mutated_explainer_files_are_refused_or_work(intact, empty_folder):
    def use(path: Path) -> None:
        Explainer.load(path, worlds.postage, device="cpu")

    files = mutated(
        intact["explainer"], intact["forest"], empty_folder.parent / "canary", 4, EXPLAINERS
    )
    refused, worked = count_outcomes(empty_folder, ".lapace", files, use)
    assert sum(refused.values()) > EXPLAINERS // 2
    assert not {"truncation", "payload", "outside_name"} & set(worked)
