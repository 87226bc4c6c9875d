"""`lapace.apps.batch` and `lapace batch`: every row once, resumed to the byte, whatever fails."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lapace import ClassifierError, Explainer, Search
from lapace.apps.batch import Engine, Request, run
from lapace.apps.batch.files import Place, find_inputs
from lapace.apps.cli.commands import app
from lapace.errors import InputError
from lapace.files import temporary_path, write_whole
from tests import worlds

ROOT = Path(__file__).resolve().parents[2]
LOOP = Engine(workers=1)
NEAREST = Search(picks=("nearest",))
ASKED = Request(target="cheap", search=Search(picks=("nearest", "best")))
CLASSIFIER = "tests.worlds:postage"
IDENTITY = {"explainer": "mine"}


@cache
def frame(count=36, seed=7):
    rows = pd.DataFrame(worlds.letters(count, seed))
    rows.insert(0, "id", [f"c{i}" for i in range(count)])
    return rows.assign(region=["north", "south"] * (count // 2))


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("post") / "post.lapace"
    worlds.post().explainer.save(path)
    return path


@pytest.fixture
def letters(tmp_path):
    """Two files of three row groups, six rows each."""
    return write_letters(tmp_path / "in")


def write_letters(folder, rows=None):
    folder.mkdir(parents=True, exist_ok=True)
    rows = frame() if rows is None else rows
    half = len(rows) // 2
    for k, part in enumerate((rows[:half], rows[half:])):
        table = pa.Table.from_pandas(part, preserve_index=False)
        pq.write_table(table, folder / f"letters-{k}.parquet", row_group_size=half // 3)
    return folder


def explained(model, source, out, request=ASKED, **more):
    explainer = Explainer.load(model, worlds.postage, device="cpu")
    more = {"identity": IDENTITY, **more}
    return run(explainer, source, out, request, engine=LOOP, **more)


def outcomes(folder):
    parts = sorted(Path(folder).glob("*.parquet"))
    return pa.concat_tables([pq.read_table(part) for part in parts]).to_pandas()


def content(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir()}


@pytest.fixture
def undisturbed(model, letters, tmp_path):
    """The files of a run over the letters that nothing disturbs."""

    def files():
        assert explained(model, letters, tmp_path / "undisturbed").complete
        return content(tmp_path / "undisturbed")

    return files


# --- every row once --------------------------------------------------------------------------


def test_every_row_has_one_outcome_and_it_is_that_of_explain(model, letters, tmp_path):
    summary = explained(model, letters, tmp_path / "out")
    assert summary.complete
    assert (summary.parts, summary.rows) == (6, 36)
    rows = outcomes(tmp_path / "out")
    assert set(rows["id"]) == set(frame()["id"])
    explanation = worlds.post().explainer.explain(frame(), target="cheap", search=ASKED.search)
    by_id = dict(
        zip(frame()["id"], zip(explanation.status, explanation.reason, strict=True), strict=True)
    )
    for name, lines in rows.groupby("id"):
        assert {*zip(lines["status"], lines["reason"], strict=True)} == {by_id[name]}
        if by_id[name][0] != "answered":
            assert len(lines) == 1
            assert lines["pick"].isna().all()
            assert lines["weight"].isna().all()
            assert lines["weight_before"].notna().all()
    for pick in ("nearest", "best"):
        picked = getattr(explanation, pick)()
        picked = picked.where(picked.ok)
        mine = rows[rows["pick"] == pick].sort_values(["source", "row", "rank"])
        assert mine["id"].tolist() == [explanation.ids[i] for i in picked.instance]
        assert mine["weight"].tolist() == picked.cells[:, 0].tolist()
        assert np.allclose(mine["distance"], picked.distance)
        assert np.allclose(mine["effort"], picked.effort)
    assert summary.status == Counter(explanation.status)
    assert summary.status["answered"] > 5
    read = pd.read_parquet(tmp_path / "out")
    assert read["weight"].isna().any()
    whole = ["weight", "weight_before", "rank", "changed", "row"]
    assert (read[whole].dtypes == "Int64").all(), "no 20.0 beside rows without a counterfactual"
    names = sorted(p.name for p in (tmp_path / "out").glob("*.parquet"))
    assert [re.sub("-[0-9a-f]{8}-", "-", name) for name in names] == [
        f"letters-{k}-0000{g}.parquet" for k in (0, 1) for g in (0, 1, 2)
    ]
    whole = pq.read_table(tmp_path / "out")  # manifests are not taken for data
    assert set(whole["row"].to_pylist()) == set(range(18))


def test_a_column_of_the_input_is_kept_and_a_taken_name_gives_way(model, tmp_path):
    rows = frame().rename(columns={"id": "number"}).assign(status="new")
    source = write_letters(tmp_path / "in", rows)
    keep = ("status", "region")
    request = Request(target="cheap", search=NEAREST, id_column="number", keep=keep)
    explained(model, source, tmp_path / "out", request)
    rows = outcomes(tmp_path / "out")
    assert set(rows["id"]) == set(frame()["id"])
    assert set(rows["status"]) == {"new"}
    assert set(rows["region"]) == {"north", "south"}
    assert {"answered", "already_target"} == set(rows["lapace_status"])


def test_the_id_column_that_the_explainers_file_names_identifies_the_rows(tmp_path):
    worlds.post().explainer.save(tmp_path / "post.lapace", id_column="number")
    rows = frame(12).rename(columns={"id": "number"}).assign(id=1)
    source = write_letters(tmp_path / "in", rows)
    for name in ("post", "again"):  # saving a loaded explainer keeps the name
        path, out = tmp_path / f"{name}.lapace", tmp_path / name
        explained(path, source, out)
        assert set(outcomes(out)["id"]) == set(frame(12)["id"])
        Explainer.load(path, worlds.postage).save(tmp_path / "again.lapace")


def test_folders_patterns_and_keys_in_paths(model, tmp_path):
    rows = frame()
    for stamp, some in rows.groupby("stamp"):
        folder = tmp_path / "in" / f"stamp={stamp}" / "year=2024"
        folder.mkdir(parents=True)
        some.drop(columns="stamp").to_parquet(folder / "part.parquet", index=False)
    (tmp_path / "in" / "_skipped.parquet").write_bytes(b"no")
    request = Request(target="cheap", search=NEAREST, keep=("year",))
    explained(model, tmp_path / "in", tmp_path / "out", request)
    found = outcomes(tmp_path / "out").drop_duplicates("id").set_index("id")
    assert found.loc[rows["id"], "stamp_before"].tolist() == rows["stamp"].tolist()
    assert set(found["year"]) == {2024}
    out = Place.of(tmp_path / "out")
    wild = find_inputs([f"{tmp_path}/in/stamp=*/**/*.parquet"], out)
    assert wild == find_inputs([tmp_path / "in"], out)
    assert len(wild) == 3
    for nothing in (tmp_path / "in" / "*.csv", tmp_path / "out"):  # its own output is no input
        with pytest.raises(InputError, match="There is no Parquet file in"):
            find_inputs([nothing], out)


def test_another_filesystem_of_pyarrow(model, letters):
    """A filesystem of fsspec in memory stands for those that are far away."""
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in letters.iterdir():
        memory.pipe_file(f"/far/in/{path.name}", path.read_bytes())
    summary = explained(model, "fsspec+memory://far/in", "fsspec+memory://far/out")
    assert (summary.complete, summary.rows) == (True, 36)
    names = [Path(name).name for name in memory.ls("/far/out", detail=False)]
    assert sum(name.endswith(".parquet") for name in names) == 6
    assert not any(name.startswith(".") for name in names)
    memory.rm("/far", recursive=True)
    with pytest.raises(InputError, match="'s4://bucket/x' cannot be opened") as caught:
        Place.of("s4://key:secret@bucket/x")
    assert "secret" not in str(caught.value)


def test_columns_hold_the_types_of_all_files(model, tmp_path):
    rows = frame().assign(stamp=frame()["stamp"].astype("category"), number=range(36))
    source = write_letters(tmp_path / "in", rows)
    text = frame(12, 8).assign(weight=frame(12, 8)["weight"].astype(str), number="x")
    text.to_parquet(source / "text.parquet", index=False)
    request = Request(target="cheap", search=NEAREST, keep=("number",))
    assert explained(model, source, tmp_path / "out", request).complete
    found = outcomes(tmp_path / "out")
    assert {"x", "0", "35"} <= set(found["number"])
    assert found["weight_before"].notna().all()
    assert found["stamp_before"].isin(["red", "green", "blue"]).all()


# --- what cannot be used ---------------------------------------------------------------------


def test_a_bad_row_costs_that_row(model, tmp_path):
    rows = frame().assign(weight=frame()["weight"].astype(str))
    rows.loc[3, "weight"] = "heavy"
    summary = explained(model, write_letters(tmp_path / "in", rows), tmp_path / "out")
    assert summary.complete
    found = outcomes(tmp_path / "out")
    (bad,) = found[found["status"] == "malformed"].to_dict("records")
    assert bad["id"] == "c3"
    assert "holds 'heavy' in row c3" in bad["reason"]
    assert [(s, n) for s, _, n in summary.reasons()] == [("malformed", 1)]
    assert set(found["id"]) == set(rows["id"])


def test_a_corrupt_file_is_named_and_the_rest_goes_on(model, letters, tmp_path, undisturbed):
    bytes_ = bytearray((letters / "letters-0.parquet").read_bytes())
    bytes_[4:200] = b"\xff" * 196  # in the pages of its first row group
    (letters / "letters-0.parquet").write_bytes(bytes_)
    (letters / "cut.parquet").write_bytes((letters / "letters-1.parquet").read_bytes()[:-40])
    frame().drop(columns="speed").to_parquet(letters / "narrow.parquet")
    summary = explained(model, letters, tmp_path / "out")
    assert not summary.complete
    why = {Path(source).name: text for source, text in summary.unreadable.items()}
    assert set(why) == {"cut.parquet", "letters-0.parquet", "narrow.parquet"}
    assert why["narrow.parquet"] == "It has no column 'speed'."
    assert why["letters-0.parquet"].startswith("Row group 0: ")
    assert summary.rows == 30
    assert set(outcomes(tmp_path / "out")["id"]) == set(frame()["id"][6:])
    write_letters(letters)
    for name in ("cut", "narrow"):
        (letters / f"{name}.parquet").unlink()
    assert explained(model, letters, tmp_path / "out").complete
    assert content(tmp_path / "out") == undisturbed()
    write_letters(letters, frame(36, 8))
    with pytest.raises(InputError, match=r"letters-0.parquet' has changed since"):
        explained(model, letters, tmp_path / "out")


def test_row_groups_that_cannot_be_read_are_named_in_their_order_whoever_is_first(
    model, letters, tmp_path, monkeypatch
):
    bytes_ = bytearray((letters / "letters-0.parquet").read_bytes())
    with pq.ParquetFile(letters / "letters-0.parquet") as opened:
        for group in (0, 2):
            start = opened.metadata.row_group(group).column(1).data_page_offset
            bytes_[start : start + 20] = b"\xff" * 20
    (letters / "letters-0.parquet").write_bytes(bytes_)
    summary = explained(model, letters, tmp_path / "in order")
    (why,) = summary.unreadable.values()
    assert re.fullmatch("Row group 0: .*Row group 2: .*", why)

    def backwards(_, function, parts):
        return map(function, reversed(parts))

    monkeypatch.setattr("lapace.apps.batch.running.map_parts", backwards)
    explained(model, letters, tmp_path / "backwards")
    assert content(tmp_path / "backwards") == content(tmp_path / "in order")


def test_other_settings_are_refused(model, letters, tmp_path):
    out = tmp_path / "out"
    explained(model, letters, out)
    before = content(out)
    other = Request(target="cheap", search=Search(picks=("nearest", "best"), steps=10))
    with pytest.raises(InputError, match=r"other settings: steps was 20 and is 10"):
        explained(model, letters, out, other)
    again = explained(model, letters, out)
    assert (again.skipped, again.rows, again.complete) == (6, 0, True)
    assert again.lasting() == json.loads(before["_summary.json"])
    assert content(out) == before
    with pytest.raises(InputError, match=r"explainer was 'mine' and is '[0-9a-f]{64}'"):
        explained(model, letters, out, identity=None)
    (tmp_path / "other").mkdir()
    frame().to_parquet(tmp_path / "other" / "mine.parquet")
    with pytest.raises(InputError, match="holds Parquet files of something else"):
        explained(model, letters, tmp_path / "other")


def test_files_may_be_added(model, letters, tmp_path, undisturbed):
    explained(model, letters / "letters-0.parquet", tmp_path / "out")
    summary = explained(model, letters, tmp_path / "out")
    assert (summary.skipped, summary.rows) == (3, 18)
    assert content(tmp_path / "out") == undisturbed()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"target": "cheep"}, "Did you mean 'cheap'"),
        ({"constraints": ("wieght <= 3",)}, "weight"),
        ({"keep": ("regoin",)}, "Did you mean 'region'"),
        ({"id_column": "weight"}, "is a feature"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_written(
    model, letters, tmp_path, settings, says
):
    with pytest.raises(InputError, match=says):
        explained(model, letters, tmp_path / "out", Request(**{"target": "cheap", **settings}))
    assert not (tmp_path / "out").exists()


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(InputError, match="No pick is asked for"):
        Request(search=Search(picks=()))


@pytest.mark.parametrize("asked", [{"workers": 2}, {"address": "auto"}, {"gpus": 1}])
def test_what_needs_ray_says_what_to_install(asked, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(ImportError, match="needs ray: pip install"):
        Engine(**asked).check()
    Engine(workers=1).check()


# --- stopped and resumed ---------------------------------------------------------------------


def start(*arguments, folder=ROOT):
    """Starts `lapace batch` as a process of its own, which also finds modules in a folder.

    Tests started with `nohup` inherit SIGHUP ignored, and so would this one: it gets the default
    back.
    """
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), str(folder)])
    return subprocess.Popen(
        [sys.executable, "-m", "lapace.apps.cli", "batch", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509
    )


def command(model, letters, out, *more):
    words = (model, letters, "-o", out, "--target", "cheap", "--pick", "nearest,best")
    return (*words, "--classifier", CLASSIFIER, *more)


def test_a_second_run_in_a_folder_is_refused(model, letters, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with Place.of(out).held(), pytest.raises(InputError, match=r"Another run .*out'\. Wait for"):
        explained(model, letters, out)
    assert not list(out.iterdir())
    assert explained(model, letters, out).complete


def test_a_full_disk_stops_the_run_and_it_resumes(
    model, letters, tmp_path, undisturbed, monkeypatch
):
    """The third part is written to a device that is always full."""
    out, written = tmp_path / "out", []

    def full(path, write):
        written.append(path)
        if len(written) == 4:  # after the manifest and two parts
            write(Path("/dev/full"))
        return write_whole(path, write)

    monkeypatch.setattr("lapace.apps.batch.files.write_whole", full)
    stopped = explained(model, letters, out)
    assert not stopped.complete
    assert stopped.stopped == f"'{out}' cannot be written to: No space left on device."
    assert len(list(out.glob("*.parquet"))) == 2
    assert not (out / "_summary.json").exists()
    resumed = explained(model, letters, out)
    assert (resumed.complete, resumed.skipped) == (True, 2)
    assert content(out) == undisturbed()


def wait_for(found, process, seconds=240):
    """Waits until something is found while a process runs, and returns it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := found():
            return value
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.kill()
    raise AssertionError(process.communicate())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGHUP, 129)])
def test_a_killed_loop_resumes_to_the_same_bytes(number, code, model, letters, tmp_path):
    out = tmp_path / "out"
    killed = start(*command(model, letters, out, "--workers", "1"))
    wait_for(lambda: list(out.glob("letters*.parquet")), killed)
    killed.send_signal(number)
    _, said = killed.communicate()
    assert (killed.returncode, said.count("\n") < 2) == (code, True), said
    if number == signal.SIGHUP:
        assert not list(out.glob(".*")), "nothing is left half-written"
    made = {p.name for p in out.glob("letters*.parquet")}
    assert len(made) < 6
    temporary_path(out / min(made)).write_bytes(b"PAR1")  # of a writer killed in a write
    resumed = lapace("batch", *command(model, letters, out, "--workers", "1", "--format", "json"))
    assert resumed.exit_code == 0, resumed.stderr
    assert json.loads(resumed.stdout)["skipped_parts"] == len(made)
    whole = lapace("batch", *command(model, letters, tmp_path / "whole", "--workers", "1"))
    assert whole.exit_code == 0, whole.stderr
    assert content(out) == content(tmp_path / "whole")


def test_a_classifier_that_fails_stops_the_run_which_then_resumes(
    model, letters, tmp_path, monkeypatch, undisturbed
):
    failures = ["gone"]

    def failing(request, explainer, table):
        if len(table) and failures:
            raise ClassifierError(failures.pop())
        return explain(request, explainer, table)

    explain = Request.explain
    monkeypatch.setattr(Request, "explain", failing)
    summary = explained(model, letters, tmp_path / "out")
    assert (summary.complete, summary.stopped, summary.rows) == (False, "gone", 0)
    assert explained(model, letters, tmp_path / "out").complete
    assert content(tmp_path / "out") == undisturbed()


# --- figures ---------------------------------------------------------------------------------


def test_counts_of_parts_add_up_to_those_of_the_explanation(model, letters, tmp_path):
    request = Request(target="cheap", search=NEAREST, constraints=["fixed weight", "fixed speed"])
    summary = explained(model, letters, tmp_path / "out", request)
    explanation = worlds.post().explainer.explain(
        frame(), target="cheap", search=NEAREST, constraints=request.constraints
    )
    assert summary.status == Counter(explanation.status)
    reasons = Counter(
        (status, reason)
        for status, reason in zip(explanation.status, explanation.reason, strict=True)
        if status not in ("answered", "already_target")
    )
    assert reasons
    assert {line[:2]: line[2] for line in summary.reasons()} == reasons


# --- the command -----------------------------------------------------------------------------


def lapace(*words):
    return CliRunner().invoke(app, [*map(str, words)])


def test_the_command_sums_up_as_text_and_as_json(model, letters, tmp_path):
    out = tmp_path / "out"
    words = ("batch", *command(model, letters, out, "--workers", "1", "--keep", "region"))
    first = lapace(*words)
    assert first.exit_code == 0, first.stderr
    assert "Ray is not used: parts are made one after another." in first.stderr
    assert re.match(
        r"Explanation of 36 instances: \d+ answered, \d+ already target, in 6 parts", first.stdout
    )
    assert "36 explained now in" in first.stdout
    again = lapace(*words, "--format", "json")
    data = json.loads(again.stdout)
    assert (data["rows"], data["skipped_parts"], data["complete"]) == (36, 6, True)
    assert sum(data["status"].values()) == 36
    (letters / "broken.parquet").write_bytes(b"PAR1")
    bad = lapace(*words)
    assert bad.exit_code == 1
    assert "broken.parquet' could not be read. It is not a Parquet file" in bad.stderr
    other = lapace("batch", *command(model, letters, out, "--workers", "1"))
    assert other.exit_code == 2
    assert "was begun with other settings" in other.stderr


# --- other engines ---------------------------------------------------------------------------


def test_a_function_is_mapped_over_partitions_by_dask(model):
    import dask.dataframe as dask

    rows = frame()

    def nearest(part, path):
        explainer = Explainer.load(path, worlds.postage)
        return explainer.explain(part, target="cheap", search=NEAREST).nearest().frame

    instances = dask.from_pandas(rows, npartitions=3)
    mapped = instances.map_partitions(nearest, str(model), meta=nearest(rows.head(2), model))
    found = mapped.compute(scheduler="synchronous")
    whole = worlds.post().explainer.explain(rows, target="cheap", search=NEAREST).nearest().frame
    columns = ["weight", "speed", "stamp", "valid"]
    assert found[columns].to_dict("list") == whole[columns].to_dict("list")
