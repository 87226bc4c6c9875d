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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lapace import Explainer, Search, cohorts
from lapace.apps.batch import Counts, Engine, Request, run
from lapace.apps.batch.files import Place, find_inputs
from lapace.apps.batch.outcomes import as_instances, make_layout, outcome_rows
from lapace.apps.cli.commands import app
from lapace.errors import InputError
from lapace.files import temporary_path, write_whole
from tests import worlds

ROOT = Path(__file__).resolve().parents[2]
LOOP = Engine(ray=False)
NEAREST = Search(picks=("nearest",))
ASKED = Request(target="cheap", picks=("nearest", "best"))
CLASSIFIER = "tests.worlds:postage"


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
    write_letters(tmp_path / "in")
    return tmp_path / "in"


def write_letters(folder, rows=None):
    folder.mkdir(parents=True, exist_ok=True)
    rows = frame() if rows is None else rows
    half = len(rows) // 2
    for k, part in enumerate((rows[:half], rows[half:])):
        table = pa.Table.from_pandas(part, preserve_index=False)
        pq.write_table(table, folder / f"letters-{k}.parquet", row_group_size=half // 3)


def outcomes(folder):
    parts = sorted(Path(folder).glob("*.parquet"))
    return pa.concat_tables([pq.read_table(part) for part in parts]).to_pandas()


def content(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir()}


@pytest.fixture(scope="session")
def undisturbed(model, tmp_path_factory):
    """A whole run over the letters, in a folder named by the test that asks for it."""
    made = {}

    def of(source, request=ASKED, classifier=CLASSIFIER):
        key = (str(source), request, classifier)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("undisturbed") / "out"
            assert run(
                model, source, made[key], request, classifier=classifier, engine=LOOP
            ).complete
        return content(made[key])

    return of


# --- every row once --------------------------------------------------------------------------


def test_every_row_has_one_outcome_and_it_is_that_of_explain(model, letters, tmp_path):
    summary = run(model, letters, tmp_path / "out", ASKED, classifier=CLASSIFIER, engine=LOOP)
    assert summary.complete
    assert (summary.parts, summary.engine, summary.rows) == (6, "loop", 36)
    assert 0 < summary.core_seconds < 600
    assert 10**8 < summary.memory < 3 * 10**9
    found = outcomes(tmp_path / "out")
    assert set(found["id"]) == set(frame()["id"])
    assert found.groupby("id")["status"].nunique().eq(1).all()
    explanation = worlds.post().explainer.explain(frame(), target="cheap", search=ASKED.search)
    by_id = dict(
        zip(frame()["id"], zip(explanation.status, explanation.reason, strict=True), strict=True)
    )
    for name, lines in found.groupby("id"):
        assert {*zip(lines["status"], lines["reason"], strict=True)} == {by_id[name]}
        if by_id[name][0] != "answered":
            assert len(lines) == 1
            assert lines["pick"].isna().all()
            assert lines["weight"].isna().all()
            assert lines["weight_before"].notna().all()
    for pick in ("nearest", "best"):
        rows = getattr(explanation, pick)()
        rows = rows.where(rows.ok)
        mine = found[found["pick"] == pick].sort_values(["source", "row", "rank"])
        assert mine["id"].tolist() == [explanation.ids[i] for i in rows.instance]
        assert mine["weight"].tolist() == rows.cells[:, 0].tolist()
        assert np.allclose(mine["distance"], rows.distance)
    counts = Counter(explanation.status)
    assert summary.counts.status == counts
    assert counts["answered"] > 5


def test_parts_are_named_by_file_and_row_group_and_form_one_table(model, letters, tmp_path):
    run(model, letters, tmp_path / "out", ASKED, classifier=CLASSIFIER, engine=LOOP)
    names = sorted(p.name for p in (tmp_path / "out").glob("*.parquet"))
    assert [re.sub("-[0-9a-f]{8}-", "-", name) for name in names] == [
        f"letters-{k}-0000{g}.parquet" for k in (0, 1) for g in (0, 1, 2)
    ]
    schemas = {pq.read_schema(p).remove_metadata() for p in (tmp_path / "out").glob("*.parquet")}
    assert len(schemas) == 1
    whole = pq.read_table(tmp_path / "out")  # manifests are not taken for data
    assert set(whole["row"].to_pylist()) == set(range(18))


def test_a_column_of_the_input_is_kept_and_a_taken_name_gives_way(model, tmp_path):
    rows = frame().rename(columns={"id": "number"}).assign(status="new", stamp_before="?")
    write_letters(tmp_path / "in", rows)
    request = Request(
        target="cheap", picks="nearest", id_column="number", keep=("status", "region")
    )
    run(model, tmp_path / "in", tmp_path / "out", request, classifier=CLASSIFIER, engine=LOOP)
    found = outcomes(tmp_path / "out")
    assert found.columns[:3].tolist() == ["id", "status", "region"]
    assert set(found["status"]) == {"new"}
    assert {"answered", "already_target"} == set(found["lapace_status"])


def test_the_id_column_that_the_explainers_file_names_identifies_the_rows(tmp_path):
    worlds.post().explainer.save(tmp_path / "post.lapace", id_column="number")
    rows = frame(12).rename(columns={"id": "number"}).assign(id=1)
    write_letters(tmp_path / "in", rows)
    for name in ("post", "again"):  # saving a loaded explainer keeps the name
        path, out = tmp_path / f"{name}.lapace", tmp_path / name
        run(path, tmp_path / "in", out, ASKED, classifier=CLASSIFIER, engine=LOOP)
        assert set(outcomes(out)["id"]) == set(frame(12)["id"])
        Explainer.load(path, worlds.postage).save(tmp_path / "again.lapace")


def test_the_search_is_that_of_explain(model, tmp_path):
    write_letters(tmp_path / "in", frame(12))
    asked = Request(target="cheap", picks=("nearest",), steps=5, n_starts=2)
    assert asked.search == Search(picks=("nearest",), steps=5, n_starts=2)
    run(model, tmp_path / "in", tmp_path / "out", asked, classifier=CLASSIFIER, engine=LOOP)
    found = outcomes(tmp_path / "out")
    explainer = worlds.post().explainer
    rows = explainer.explain(frame(12), target="cheap", search=asked.search).nearest()
    rows = rows.where(rows.ok)
    assert len(rows) > 5
    assert found.dropna(subset="pick")["weight"].tolist() == rows.cells[:, 0].tolist()


def test_folders_patterns_and_keys_in_paths(model, tmp_path):
    rows = frame()
    for stamp, some in rows.groupby("stamp"):
        (tmp_path / "in" / f"stamp={stamp}" / "year=2024").mkdir(parents=True)
        some.drop(columns="stamp").to_parquet(
            tmp_path / "in" / f"stamp={stamp}" / "year=2024" / "part.parquet", index=False
        )
    (tmp_path / "in" / "_skipped.parquet").write_bytes(b"no")
    request = Request(target="cheap", picks="nearest", keep="year")
    run(model, tmp_path / "in", tmp_path / "out", request, classifier=CLASSIFIER, engine=LOOP)
    found = outcomes(tmp_path / "out").drop_duplicates("id").set_index("id")
    assert found.loc[rows["id"], "stamp_before"].tolist() == rows["stamp"].tolist()
    assert set(found["year"]) == {2024}
    out = Place.of(tmp_path / "out")
    wild = find_inputs([f"{tmp_path}/in/stamp=*/**/*.parquet"], out)
    assert wild == find_inputs([tmp_path / "in"], out)
    assert len(wild) == 3
    with pytest.raises(InputError, match="There is no Parquet file in"):
        find_inputs([tmp_path / "in" / "*.csv"], out)
    with pytest.raises(InputError, match="There is no Parquet file in"):
        find_inputs([tmp_path / "out"], out)  # its own output is no input


def test_another_filesystem_of_pyarrow(model, letters, tmp_path):
    """A filesystem of fsspec in memory stands for those that are far away."""
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in letters.iterdir():
        memory.pipe_file(f"/far/in/{path.name}", path.read_bytes())
    summary = run(
        model, "fsspec+memory://far/in", "fsspec+memory://far/out", ASKED,
        classifier=CLASSIFIER, engine=LOOP,
    )  # fmt: skip
    assert summary.complete
    assert summary.counts.rows == 36
    names = [Path(name).name for name in memory.ls("/far/out", detail=False)]
    assert sum(name.endswith(".parquet") for name in names) == 6
    assert not any(name.startswith(".") for name in names)
    memory.rm("/far", recursive=True)


# --- what cannot be used ---------------------------------------------------------------------


def test_a_bad_row_costs_that_row(model, tmp_path):
    rows = frame().assign(weight=frame()["weight"].astype(str))
    rows.loc[3, "weight"] = "heavy"
    write_letters(tmp_path / "in", rows)
    summary = run(
        model, tmp_path / "in", tmp_path / "out", ASKED, classifier=CLASSIFIER, engine=LOOP
    )
    assert summary.complete
    found = outcomes(tmp_path / "out")
    (bad,) = found[found["status"] == "malformed"].to_dict("records")
    assert bad["id"] == "c3"
    assert "holds 'heavy' in row c3" in bad["reason"]
    assert summary.counts.status["malformed"] == 1
    assert [(s, n) for s, _, n in summary.counts.commonest()] == [("malformed", 1)]
    assert set(found["id"]) == set(rows["id"])


def test_a_corrupt_file_is_named_and_the_rest_goes_on(model, letters, tmp_path, undisturbed):
    bytes_ = bytearray((letters / "letters-0.parquet").read_bytes())
    bytes_[4:200] = b"\xff" * 196  # in the pages of its first row group
    (letters / "letters-0.parquet").write_bytes(bytes_)
    (letters / "cut.parquet").write_bytes((letters / "letters-1.parquet").read_bytes()[:-40])
    frame().drop(columns="speed").to_parquet(letters / "narrow.parquet")
    summary = run(model, letters, tmp_path / "out", ASKED, classifier=CLASSIFIER, engine=LOOP)
    assert not summary.complete
    why = {Path(source).name: text for source, text in summary.unreadable.items()}
    assert set(why) == {"cut.parquet", "letters-0.parquet", "narrow.parquet"}
    assert why["narrow.parquet"] == "It has no column 'speed'."
    assert why["letters-0.parquet"].startswith("Row group 0: ")
    assert summary.counts.rows == 30
    assert set(outcomes(tmp_path / "out")["id"]) == set(frame()["id"][6:])
    write_letters(letters)
    for name in ("cut", "narrow"):
        (letters / f"{name}.parquet").unlink()
    assert run(model, letters, tmp_path / "out", ASKED, classifier=CLASSIFIER, engine=LOOP).complete
    assert content(tmp_path / "out") == undisturbed(letters)
    write_letters(letters, frame(36, 8))
    with pytest.raises(InputError, match=r"letters-0.parquet' has changed since"):
        run(model, letters, tmp_path / "out", ASKED, classifier=CLASSIFIER, engine=LOOP)


def test_other_settings_are_refused(model, letters, tmp_path):
    out = tmp_path / "out"
    run(model, letters, out, ASKED, classifier=CLASSIFIER, engine=LOOP)
    before = content(out)
    with pytest.raises(InputError, match=r"other settings: steps was 20 and is 10"):
        run(model, letters, out, Request(target="cheap", picks=ASKED.picks, steps=10),
            classifier=CLASSIFIER, engine=LOOP)  # fmt: skip
    again = run(model, letters, out, ASKED, classifier=CLASSIFIER, engine=LOOP)
    assert (again.skipped, again.rows, again.complete) == (6, 0, True)
    assert again.lasting() == json.loads(before["_summary.json"])
    assert content(out) == before
    (tmp_path / "other").mkdir()
    frame().to_parquet(tmp_path / "other" / "mine.parquet")
    with pytest.raises(InputError, match="holds Parquet files of something else"):
        run(model, letters, tmp_path / "other", ASKED, classifier=CLASSIFIER, engine=LOOP)
    with Place.of(out).locked(), pytest.raises(InputError, match="Another run writes to"):
        run(model, letters, out, ASKED, classifier=CLASSIFIER, engine=LOOP)


def test_files_may_be_added(model, letters, tmp_path, undisturbed):
    first = letters / "letters-0.parquet"
    run(model, first, tmp_path / "out", ASKED, classifier=CLASSIFIER, engine=LOOP)
    summary = run(model, letters, tmp_path / "out", ASKED, classifier=CLASSIFIER, engine=LOOP)
    assert (summary.skipped, summary.rows) == (3, 18)
    assert content(tmp_path / "out") == undisturbed(letters)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"picks": ("nearst",)}, "Did you mean 'nearest'"),
        ({"picks": ()}, "No pick is asked for"),
        ({"target": "cheep"}, "Did you mean 'cheap'"),
        ({"constraints": ("wieght <= 3",)}, "weight"),
        ({"keep": ("regoin",)}, "Did you mean 'region'"),
        ({"id_column": "weight"}, "is a feature"),
        ({"by": "colour"}, "is in no file"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_written(
    model, letters, tmp_path, settings, says
):
    with pytest.raises(InputError, match=says):
        run(model, letters, tmp_path / "out", Request(**{"target": "cheap", **settings}),
            classifier=CLASSIFIER, engine=LOOP)  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_an_explainer_whose_classifier_is_gone_is_named(model, letters, tmp_path):
    with pytest.raises(InputError, match=r"'post.lapace' has no classifier beside it"):
        run(model, letters, tmp_path / "out", ASKED, engine=LOOP)


def test_a_plain_loop_has_no_cluster():
    for asked in ({"workers": 2}, {"address": "auto"}, {"gpus": 1}):
        with pytest.raises(InputError, match="need Ray"):
            Engine(**asked, ray=False).check()
    assert Engine(ray=None).chosen(1).ray is False  # a single part needs none


# --- stopped and resumed ---------------------------------------------------------------------


def start(*arguments, folder=ROOT):
    """Starts `lapace batch` as a process of its own, which also finds modules in a folder."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), str(folder)])
    return subprocess.Popen(
        [sys.executable, "-m", "lapace.apps.cli", "batch", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def command(model, letters, out, *more):
    words = (model, letters, "-o", out, "--target", "cheap", "--pick", "nearest,best")
    return (*words, "--classifier", CLASSIFIER, *more)


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
    stopped = run(model, letters, out, ASKED, classifier=CLASSIFIER, engine=LOOP)
    assert not stopped.complete
    assert stopped.stopped == f"'{out}' cannot be written to: No space left on device."
    assert len(list(out.glob("*.parquet"))) == 2
    assert not (out / "_summary.json").exists()
    resumed = run(model, letters, out, ASKED, classifier=CLASSIFIER, engine=LOOP)
    assert (resumed.complete, resumed.skipped) == (True, 2)
    assert content(out) == undisturbed(letters)


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


def test_a_killed_loop_resumes_to_the_same_bytes(model, letters, tmp_path, undisturbed):
    out = tmp_path / "out"
    killed = start(*command(model, letters, out, "--no-ray"))
    wait_for(lambda: list(out.glob("letters*.parquet")), killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    made = {p.name for p in out.glob("letters*.parquet")}
    assert len(made) < 6
    temporary_path(out / min(made)).write_bytes(b"PAR1")  # of a writer killed in a write
    resumed = lapace("batch", *command(model, letters, out, "--no-ray", "--format", "json"))
    assert resumed.exit_code == 0, resumed.stderr
    assert json.loads(resumed.stdout)["skipped_parts"] == len(made)
    assert content(out) == undisturbed(letters)


# --- a classifier that fails -----------------------------------------------------------------


class Service(BaseHTTPRequestHandler):
    """Postage over HTTP; fails while `down` is positive, and counts it down."""

    down = 0

    def do_POST(self):
        rows = json.loads(self.rfile.read(int(self.headers["content-length"])))["rows"]
        if Service.down > 0:
            Service.down -= 1
            self.send_response(503)
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"labels": worlds.postage(rows)}).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    Thread(target=server.serve_forever, daemon=True).start()
    Service.down = 0
    yield f"http://127.0.0.1:{server.server_port}/predict"
    server.shutdown()
    server.server_close()


def test_a_classifier_that_fails_is_retried_and_then_its_rows_are_marked(
    model, letters, tmp_path, service, monkeypatch
):
    monkeypatch.setattr("lapace.apps.loaders.remote.PAUSE", 0.001)
    one = letters / "letters-0.parquet"

    def explained(out, **more):
        return run(model, one, tmp_path / out, ASKED, classifier=service, engine=LOOP,
                   pause=0.001, **more)  # fmt: skip

    assert explained("whole").complete
    workers = []
    import lapace.apps.batch.worker as worker

    load = worker.Bundle.load

    def failing(bundle):  # the driver has loaded it; then the service goes
        workers.append(bundle)
        Service.down = 20 if len(workers) == 2 else Service.down
        return load(bundle)

    monkeypatch.setattr(worker.Bundle, "load", failing)
    assert explained("late").complete  # 20 failed attempts: three of explaining, with their retries
    assert Service.down == 0
    assert content(tmp_path / "late") == content(tmp_path / "whole")
    workers.clear()
    Service.down = 0

    def gone(bundle):
        workers.append(bundle)
        Service.down = 10**9 if len(workers) == 2 else Service.down
        return load(bundle)

    monkeypatch.setattr(worker.Bundle, "load", gone)
    summary = explained("marked", retries=1)
    assert not summary.complete
    assert summary.counts.status == {"failed": 18}
    found = outcomes(tmp_path / "marked")
    assert set(found["status"]) == {"failed"}
    assert found["reason"].str.contains("status 503").all()
    assert found["id"].tolist() == frame()["id"][:18].tolist()
    Service.down = 0
    monkeypatch.setattr(worker.Bundle, "load", load)
    assert explained("marked").counts.status == {"failed": 18}  # finished parts are kept
    assert explained("marked", retry_failed=True).complete
    assert content(tmp_path / "marked") == content(tmp_path / "whole")


# --- figures ---------------------------------------------------------------------------------


def test_streamed_counts_are_those_of_the_cohort(model, tmp_path):
    write_letters(tmp_path / "in", frame(120, 3))
    request = Request(target="cheap", picks="nearest", by="stamp")
    summary = run(
        model, tmp_path / "in", tmp_path / "out", request, classifier=CLASSIFIER, engine=LOOP
    )
    explanation = worlds.post().explainer.explain(
        frame(120, 3), target="cheap", search=request.search
    )
    whole = cohorts.cohort(explanation, by="stamp")
    assert summary.counts.cohort.to_json() == whole.to_json()
    assert summary.counts.cohort.sentences == whole.sentences
    assert whole.names == ("blue", "green", "red")


def test_numbers_are_grouped_at_quartiles_of_training_and_other_columns_by_value(
    model, letters, tmp_path
):
    for by, groups in (("weight", 4), ("region", 2)):
        request = Request(target="cheap", picks="nearest", by=by)
        summary = run(model, letters, tmp_path / by, request, classifier=CLASSIFIER, engine=LOOP)
        assert len(summary.counts.cohort.groups) == groups
    assert {"north", "south"} == set(summary.counts.cohort.groups)


def test_counts_add_up_in_any_order_and_survive_json(model, letters, tmp_path):
    run(model, letters, tmp_path / "out", ASKED, classifier=CLASSIFIER, engine=LOOP)
    layout = make_layout(ASKED, worlds.post().explainer, dict(zip(*arrow_types(), strict=True)))
    parts = []
    from lapace.apps.batch.counts import count_outcomes

    table = pa.Table.from_pandas(frame(), preserve_index=False)
    for begin in range(0, 36, 9):
        chunk = table.slice(begin, 9)
        found = ASKED.explain(worlds.post().explainer, as_instances(layout, chunk, begin))
        rows = outcome_rows(layout, found, chunk, "x", begin)
        parts.append(count_outcomes(layout, found, chunk, len(rows)))
    one, other = Counts.none(layout), Counts.none(layout)
    for part in parts:
        one.add(Counts.from_json(json.loads(json.dumps(part.to_json())), layout))
    for part in reversed(parts):
        other.add(part)
    assert one.to_json() == other.to_json()


def arrow_types():
    schema = pa.Table.from_pandas(frame(), preserve_index=False).schema
    return schema.names, schema.types


# --- the command -----------------------------------------------------------------------------


def lapace(*words):
    return CliRunner().invoke(app, [*map(str, words)])


def test_the_command_sums_up_as_text_and_as_json(model, letters, tmp_path):
    out = tmp_path / "out"
    words = ("batch", *command(model, letters, out, "--no-ray", "--by", "stamp"))
    first = lapace(*words)
    assert first.exit_code == 0, first.stderr
    assert "Ray is not used: parts are made one after another." in first.stderr
    assert re.search(r"36 instances in 6 parts: \d+ answered, \d+ already there", first.stdout)
    assert "36 explained now in" in first.stdout
    assert "What an answer costs" in first.stdout
    again = lapace(*words, "--format", "json")
    data = json.loads(again.stdout)
    assert (data["rows"], data["skipped_parts"], data["complete"]) == (36, 6, True)
    assert data["cohort"]["by"] == "stamp"
    assert sum(data["status"].values()) == 36
    (letters / "broken.parquet").write_bytes(b"PAR1")
    bad = lapace(*words)
    assert bad.exit_code == 1
    assert "broken.parquet' could not be read. It is no Parquet file" in bad.stderr
    other = lapace("batch", *command(model, letters, out, "--no-ray", "--steps", "5"))
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


def test_the_page_shows_the_figures_that_were_measured():
    page = (ROOT / "docs" / "how-to" / "scaling.md").read_text(encoding="utf-8")
    results = ROOT / "benchmarks" / "results"
    table = (results / "batch.md").read_text(encoding="utf-8")
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert len(lines) == 6
    assert "\n".join(lines) in page
    assert "wrote the same bytes: yes" in table
    many = (results / "batch-many.md").read_text(encoding="utf-8")
    assert " ".join(many.split()) in " ".join(page.split())
