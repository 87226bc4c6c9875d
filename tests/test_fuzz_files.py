"""A thousand and more broken files, made with a fixed seed: none runs anything, none hangs, and
each ends in an error message or in an object that works."""

from __future__ import annotations

import io
import json
import pickle
import signal
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import worlds
from lapace import Explainer
from lapace.classifiers import Classifier, load_classifier, save_classifier, train
from lapace.errors import InputError, LapaceError
from lapace.schema import Schema
from test_classifiers import mixed_table
from test_loaders import Canary

FILES = 640  # of each kind
SECONDS = 120  # after which a file is taken to hang
TABLE, LABELS = mixed_table(60)
SCHEMA = Schema.infer(TABLE)
CELLS = SCHEMA.cells(TABLE)[:5]

Members = dict[str, bytes]
Rng = np.random.Generator


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """A file that hangs fails its test, and not the whole run."""

    def stop(*_: Any) -> None:
        raise AssertionError("a file hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- ways to break a file: each takes two intact files' bytes, and a pickle with a canary ---------


def unpacked(data: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def packed(members: Members, how: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def some(rng: Rng, members: Members, ending: str = "") -> str:
    names = sorted(name for name in members if name.endswith(ending))
    return names[int(rng.integers(len(names)))]


def bit_flips(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    raw = bytearray(one)
    directory = one.index(b"PK\x01\x02")
    for _ in range(int(rng.integers(1, 5))):
        low = int(rng.choice([0, directory]))
        raw[int(rng.integers(low, len(raw)))] ^= 1 << int(rng.integers(8))
    return bytes(raw)


def truncation(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    return one[: int(rng.integers(len(one)))]


def splice(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    cut, joint = (int(rng.integers(len(data))) for data in (one, other))
    ways = [
        one + other, other + one, bomb + one, one + bomb, one[:cut] + other[joint:],
        one[:cut] + bomb + one[cut:], one[:cut] + one[joint % len(one) :], one * 2,
    ]  # fmt: skip
    return ways[int(rng.integers(len(ways)))]


def member_swap(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    members, strange = unpacked(one), unpacked(other)
    a, b = some(rng, members), some(rng, members)
    ways: list[Callable[[], Any]] = [
        lambda: members.update({a: members[b], b: members[a]}),
        lambda: members.update({a: strange[some(rng, strange)]}),
        lambda: members.update({a: members[b]}),
        lambda: members.pop(a),
        lambda: members.update({some(rng, strange): strange[some(rng, strange)]}),
    ]
    ways[int(rng.integers(len(ways)))]()
    return packed(members)


def payload(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    """A pickle in the place of a part, or of an array's content."""
    members = unpacked(one)
    name = some(rng, members)
    objects = io.BytesIO()
    np.save(objects, np.array([None], dtype=object), allow_pickle=True)
    head = objects.getvalue()[:128]
    members[name] = [bomb, head + bomb, members[name] + bomb][int(rng.integers(3))]
    return packed(members)


def outwards(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    members = unpacked(one)
    name = some(rng, members)
    ways = ["../{}", "/etc/{}", "a/../../{}", "..\\{}", "C:{}", "{}/", "./{}", "\u202e{}"]
    moved = ways[int(rng.integers(len(ways)))].format(name)
    content = members.pop(name) if rng.random() < 0.5 else members[name]
    return packed({**members, moved: content})


def huge(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    """Sizes that are not true, in the directory or beside the content; or true, and a bomb."""
    members = unpacked(one)
    if rng.random() < 0.1:
        members[some(rng, members)] = b"0" * 90_000_000
        return packed(members)
    raw = bytearray(packed(members))
    entries = [i for i in range(len(raw)) if raw[i : i + 4] == b"PK\x01\x02"]
    entry = entries[int(rng.integers(len(entries)))]
    offset = int(rng.choice([10, 20, 24, 28, 42]))  # method, packed, unpacked, name's length, where
    form = "<H" if offset in (10, 28) else "<I"
    largest = 2 ** (16 if form == "<H" else 32)
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


def reworded(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    """A whole zip whose JSON says something else."""
    members = unpacked(one)
    name = some(rng, members, ".json")
    data = json.loads(members[name])
    every = list(places(data))
    for _ in range(int(rng.integers(1, 4))):
        path = every[int(rng.integers(len(every)))]
        origin = every[int(rng.integers(len(every)))]
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
            continue  # an earlier change took that place away
    members[name] = json.dumps(data).encode()
    return packed(members)


def rewritten(rng: Rng, one: bytes, other: bytes, bomb: bytes) -> bytes:
    """A whole zip whose arrays hold other numbers, so that no checksum tells."""
    members = unpacked(one)
    name = some(rng, {n: b"" for n in members if not n.endswith(".json")})
    raw = bytearray(members[name])
    for _ in range(int(rng.integers(1, 30))):
        raw[int(rng.integers(min(64, len(raw) - 1), len(raw)))] = int(rng.integers(256))
    members[name] = bytes(raw)
    return packed(members)


WAYS = (bit_flips, truncation, splice, member_swap, payload, outwards, huge, reworded, rewritten)


def broken(
    one: bytes, other: bytes, canary: Path, seed: int, count: int = FILES
) -> Iterator[tuple[str, bytes]]:
    rng, bomb = np.random.default_rng(seed), pickle.dumps(Canary(canary))
    for k in range(count):
        way = WAYS[k % len(WAYS)]
        yield way.__name__, way(rng, one, other, bomb)


def tally(
    folder: Path, suffix: str, files: Iterator[tuple[str, bytes]], use: Callable[[Path], None]
) -> tuple[Counter[str], Counter[str]]:
    """How many files of each way were refused, and how many worked."""
    refused: Counter[str] = Counter()
    worked: Counter[str] = Counter()
    for k, (way, data) in enumerate(files):
        path = folder / f"{k}{suffix}"
        path.write_bytes(data)
        with limited(SECONDS):
            try:
                use(path)
                worked[way] += 1
            except LapaceError as error:
                assert str(error).strip(), "an error without a message"  # noqa: PT017
                refused[way] += 1
        path.unlink()
    return refused, worked


def numbered(data: bytes) -> bytes:
    """skops names arrays after their place in memory; a seed has to break the same ones."""
    members = unpacked(data)
    plan = members.pop("schema.json")
    order = sorted(members, key=lambda name: plan.find(name.encode()))
    for k, name in enumerate(order):
        plan = plan.replace(name.encode(), f"{k}.npy".encode())
    return packed({**{f"{k}.npy": members[n] for k, n in enumerate(order)}, "schema.json": plan})


@pytest.fixture(scope="module")
def intact(tmp_path_factory) -> dict[str, bytes]:
    """Small files that are whole: an explainer, and two classifiers."""
    folder = tmp_path_factory.mktemp("intact")
    quick = {"forest": {"n_estimators": 2}, "boosting": {"max_iter": 2}, "mlp": {"max_iter": 2}}
    files = {}
    for kind, settings in quick.items():
        save_classifier(train(kind, SCHEMA, TABLE, LABELS, **settings), folder / "it.skops")
        files[kind] = numbered((folder / "it.skops").read_bytes())
    worlds.post().explainer.save(folder / "it.lapace", classifier=folder / "it.skops")
    files["explainer"] = (folder / "it.lapace").read_bytes()
    return files


@pytest.fixture
def room(tmp_path) -> Iterator[Path]:
    """A folder in which nothing may appear but what the test put in it."""
    inner = tmp_path / "room"
    inner.mkdir()
    yield inner
    assert sorted(p.name for p in tmp_path.iterdir()) == ["room"], "something ran, or was unpacked"
    assert list(inner.iterdir()) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "seed"), [("forest", 1), ("boosting", 2), ("mlp", 3)])
def test_broken_skops_files(kind, seed, intact, room):
    def use(path: Path) -> None:
        Classifier(load_classifier(path), SCHEMA, ("no", "yes")).query(CELLS)

    files = broken(intact[kind], intact["explainer"], room.parent / "canary", seed, FILES // 3)
    refused, worked = tally(room, ".skops", files, use)
    assert sum(refused.values()) > FILES // 6
    assert not {"truncation", "outwards"} & set(worked)
    assert worked["reworded"]  # damage that does not matter exists, and is not refused


@pytest.mark.filterwarnings("ignore")
def test_broken_explainer_files(intact, room):
    def use(path: Path) -> None:
        Explainer.load(path, worlds.postage, device="cpu")

    files = broken(intact["explainer"], intact["forest"], room.parent / "canary", 4)
    refused, worked = tally(room, ".lapace", files, use)
    assert sum(refused.values()) > FILES // 2
    assert not {"truncation", "payload", "outwards"} & set(worked)


@pytest.mark.filterwarnings("ignore")
def test_broken_explainers_with_a_classifier_beside_them(intact, tmp_path):
    """Whatever the reference says, nothing but the one file with that hash is opened."""
    (tmp_path / "it.skops").write_bytes(intact["mlp"])
    canary = tmp_path / "canary"
    (tmp_path / "bomb.skops").write_bytes(pickle.dumps(Canary(canary)))
    members = unpacked(intact["explainer"])
    rng = np.random.default_rng(5)
    files = ["bomb.skops", "../bomb.skops", "it.skops", "bomb.pkl", "it.lapace", "", 3, None]
    for _ in range(60):
        config = json.loads(members["config.json"])
        kept = config["classifier"]
        key = rng.choice(["file", "sha256", "named"])
        kept[str(key)] = files[int(rng.integers(len(files)))]
        path = tmp_path / "it.lapace"
        path.write_bytes(packed({**members, "config.json": json.dumps(config).encode()}))
        with limited(SECONDS), pytest.raises((InputError, LapaceError)):
            Explainer.load(path, device="cpu")  # a classifier of another table, at best
    assert not canary.exists()
