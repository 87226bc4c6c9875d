"""Results of commands are never spoiled: streams, full disks, permissions, kills."""

from __future__ import annotations

import os
import re
import resource
import shlex
import signal
import subprocess
from functools import cache
from io import BytesIO, StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

from lapace import Explainer
from lapace.apps.cli.commands import app
from lapace.apps.cli.fitting import save_pair
from lapace.apps.cli.rendering import why_not_parts
from lapace.apps.loaders import save_classifier
from tests import worlds
from tests.processes import environment, python

NOISY = """
import os

def predict(rows):
    os.write(1, b"from C\\n")
    print("from Python", flush=True)
    return (rows["a"] > rows["b"]).map({True: "yes", False: "no"}).to_numpy()
"""


def run(line, **more):
    """Runs one command in this process."""
    return CliRunner().invoke(app, shlex.split(line), prog_name="lapace", **more)


def start(line, **more):
    """Runs one command in a process of its own."""
    usual = {"stdin": subprocess.DEVNULL, "text": False, "timeout": 120}
    return python("-m", "lapace.apps.cli", *shlex.split(line), **usual | more)


@cache
def small():
    """A table of two numbers, a classifier of them, and an explainer."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.integers(0, 99, (200, 2)), columns=["a", "b"])
    model = LogisticRegression().fit(table, np.where(table["a"] > table["b"], "yes", "no"))
    fitted = Explainer(model, n_prototypes=1, recipe=worlds.NARROW, device="cpu").fit(table)
    return table, model, fitted


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the explainer, its classifier, and instances it denies."""
    table, model, fitted = small()
    monkeypatch.chdir(tmp_path)
    save_classifier(model, "m.skops")
    fitted.save("m.lapace", classifier="m.skops")
    table[table["a"] < table["b"]].head(3).to_csv("instances.csv", index=False)
    return tmp_path


# --- standard output -----------------------------------------------------------------------------


def test_only_results_go_to_standard_output(here):
    Path("noisy.py").write_text(NOISY)
    line = "explain m.lapace instances.csv --classifier noisy:predict --target yes --pick nearest"
    line += " -q --format"
    found = start(f"{line} csv")
    assert found.returncode == 0, found.stderr
    assert b"from C" in found.stderr
    assert b"from Python" in found.stderr
    assert pd.read_csv(BytesIO(found.stdout))["valid"].tolist() == [True] * 3
    inside = run(f"{line} csv")  # where standard output is no file
    assert inside.stdout.encode() == found.stdout


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_result_that_does_not_fit_is_an_error(unbuffered, here):
    with Path("out.csv").open("wb") as out:
        found = start(
            "explain m.lapace instances.csv --target yes -q --format csv",
            stdout=out,
            env=environment(PYTHONUNBUFFERED=unbuffered),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
        )
    assert Path("out.csv").stat().st_size == 100
    assert found.returncode == 2
    assert b"could not be written to standard output: File too large." in found.stderr


def test_with_a_closed_standard_output_or_error_a_file_is_still_written(here):
    line = "explain m.lapace instances.csv --target yes --pick nearest -q -o out.csv"
    for closed in (1, 2):
        found = start(line, preexec_fn=lambda closed=closed: os.close(closed))
        assert found.returncode == 0, found.stderr
        assert len(pd.read_csv("out.csv")) == 3
        Path("out.csv").unlink()


def test_control_characters_of_a_file_do_not_reach_a_terminal(here, capsys):
    evil = "a\x1b]0;owned\x07\x1b[2J\u202e"
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {evil: rng.choice([f"{evil}x", f"{evil}y"], 200), "b": rng.normal(size=200)}
    )
    model = Explainer(lambda rows: rows["b"] > 0, n_prototypes=1, recipe=worlds.NARROW).fit(table)
    model.save("evil.lapace")
    Path("rule.py").write_text("predict = lambda rows: rows['b'] > 0\n")
    table.head(20).to_csv("evil.csv", index=False)
    explain = "explain evil.lapace evil.csv --classifier rule:predict --target True"
    shown = run(f"{explain} --pick last").output
    shown += run(f"{explain} -c '{evil} > 3'").output
    shown += run(f"fit evil.csv --classifier rule:predict --label '{evil}z' -o o.lapace").output
    assert "owned" in shown
    assert not set("\x1b\x07\u202e") & set(shown)
    written = run(f"{explain} --pick last --format csv -q").stdout
    assert evil in written, "a file has what the table has"


# --- kills ---------------------------------------------------------------------------------------

KILLED = """
import os, signal
from pathlib import Path
from lapace import Explainer
from lapace.apps.cli.fitting import save_pair
from lapace.apps.cli.rendering import why_not_parts

explainer = Explainer.load("m.lapace")
Explainer.save = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
save_pair(explainer, Path("m.lapace"), None)
"""


def test_killed_before_the_new_explainer_is_there_the_old_pair_still_works(here):
    Path("m.skops").rename("user.skops")  # a file of the user's own
    fitted = small()[2]
    fitted.save("m.lapace", classifier="user.skops")
    assert python("-c", KILLED).returncode == -signal.SIGKILL
    explain = "explain m.lapace instances.csv --target yes -q --format csv"
    assert run(explain).exit_code == 0
    save_pair(fitted, Path("m.lapace"), None)
    assert run(explain).exit_code == 0
    assert Path("user.skops").exists()


def test_a_new_fit_removes_only_the_classifier_that_the_earlier_one_wrote(here):
    table, _, fitted = small()
    own = Path("m-1a2b3c4d.skops")  # named like ours, with another content
    Path("m.skops").rename(own)
    fitted.save("m.lapace", classifier=own)
    other = LogisticRegression(C=0.1).fit(table, np.where(table["a"] > 50, "yes", "no"))
    again = Explainer(other, n_prototypes=1, recipe=worlds.NARROW, device="cpu").fit(table)
    first = save_pair(again, Path("m.lapace"), None)
    assert own.exists()
    again.save("shares.lapace", classifier=first)
    second = save_pair(fitted, Path("m.lapace"), None)
    assert first.exists()  # `shares.lapace` refers to it
    assert second != first
    Path("shares.lapace").unlink()
    assert save_pair(again, Path("m.lapace"), None).exists()
    assert not second.exists()


def test_a_termination_is_no_error_of_the_classifier(here):
    """It comes while the classifier is queried, whose own SystemExit is reported as its error."""
    (here / "ends.py").write_text(
        "import os, signal\n"
        "def decide(rows):\n"
        "    if len(rows) == 3:\n"  # the instances
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return ['yes' if a > b else 'no' for a, b in zip(rows['a'], rows['b'])]\n"
    )
    line = "explain m.lapace instances.csv --classifier ends:decide --target yes -q -o out.csv"
    found = start(line)
    assert found.returncode == 143, found.stderr
    assert not Path("out.csv").exists()


def test_a_full_disk_leaves_the_old_file_and_nothing_else(here):
    Path("out.csv").write_text("old")
    before = sorted(path.name for path in here.iterdir())
    found = start(
        "explain m.lapace instances.csv --target yes --pick nearest -q -o out.csv",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )
    assert found.returncode == 2, found.stderr
    assert b"File too large" in found.stderr
    assert Path("out.csv").read_text() == "old"
    assert sorted(p.name for p in here.iterdir() if p.name != "__pycache__") == before


# --- chunks --------------------------------------------------------------------------------------


@pytest.fixture
def mixed(here):
    """Rows of every status."""
    rows = small()[0].head(30).astype(object)
    rows.loc[[4, 22], "a"] = "?"
    rows.insert(0, "customer", [f"C{i:02d}" for i in range(30)])
    rows.to_csv("mixed.csv", index=False)
    return rows


@pytest.mark.parametrize("named", ["", "--id customer"])
def test_in_chunks_the_result_is_that_of_one_call(named, mixed, monkeypatch):
    line = f"explain m.lapace mixed.csv {named} --target yes"
    unread = f"2 instances could not be read: {'C04, C22' if named else '4, 22'}. --format json has"
    found = []
    for size in (1000, 7):
        monkeypatch.setattr("lapace.apps.cli.recourse.CHUNK", size)
        csv, text, steps = (
            run(f"{line} {more}") for more in ("--format csv", "", "--pick path --format csv -q")
        )
        assert csv.exit_code == text.exit_code == steps.exit_code == 0, csv.stderr
        assert unread in steps.stderr, "also when quiet"
        run(f"{line} -q -o out.parquet")
        frames = [pd.read_csv(StringIO(result.stdout)) for result in (csv, steps)]
        words = (csv.stderr, text.stdout, steps.stderr)
        found.append((words, [*frames, pd.read_parquet("out.parquet")]))
    (words, frames), (other_words, other_frames) = found
    # Matrix products may differ in their last digits with the number of rows. So a row that is as
    # dense as a training row may count that one or not: by one of 78 rows of the label.
    typical = re.compile(r"\d+(?=% of training rows)")
    assert typical.sub("", str(words)) == typical.sub("", str(other_words))
    for whole, parts in zip(frames, other_frames, strict=True):
        np.testing.assert_allclose(whole["density"], parts["density"], atol=1.01 / 78)
        rest = [each.drop(columns="density") for each in (whole, parts)]
        pd.testing.assert_frame_equal(*rest, rtol=1e-6)
    best = small()[2].explain(mixed.drop(columns="customer"), target="yes").best()
    columns = ["instance", "a", "b", "distance", "probability"]
    pd.testing.assert_frame_equal(
        frames[0][columns].astype(float), best.frame[columns].astype(float), rtol=1e-6
    )


def test_letters_of_chunks_are_named_as_those_of_one_call(mixed, monkeypatch):
    monkeypatch.setattr("lapace.apps.cli.recourse.CHUNK", 7)
    line = "explain m.lapace mixed.csv --target yes"
    found = run(f"{line} --letters letters -o out.csv")
    assert found.exit_code == 0, found.stderr
    written = pd.read_csv("out.csv")["instance"].unique()
    assert written.max() > 11
    names = {f"letter-{i}.{ending}" for i in written for ending in ("html", "txt")}
    assert {path.name for path in Path("letters").iterdir()} == names
    assert f"Wrote {len(written)} letters" in found.stderr


def test_a_first_column_without_a_name_identifies_the_rows(mixed):
    text = Path("mixed.csv").read_text()
    Path("nameless.csv").write_text(text.replace("customer,", ",", 1))
    line = "explain m.lapace nameless.csv --target yes --pick nearest -q --format csv"
    found = pd.read_csv(StringIO(run(line).stdout))
    assert set(found["id"]) < set(mixed["customer"])
    assert run(f"{line} --ids C05").stdout.splitlines()[1].startswith("C05,")
    assert "Unnamed" not in run("schema nameless.csv").stdout


def test_a_failure_in_a_later_chunk_leaves_the_old_file(mixed, monkeypatch):
    Path("tiring.py").write_text(
        "calls = []\n"
        "def predict(rows):\n"
        "    calls.append(len(rows))\n"
        "    if len(calls) > 60: raise RuntimeError('tired')\n"
        "    return (rows['a'] > rows['b']).map({True: 'yes', False: 'no'}).to_numpy()\n"
    )
    monkeypatch.setattr("lapace.apps.cli.recourse.CHUNK", 3)
    monkeypatch.syspath_prepend(".")
    Path("out.csv").write_text("old")
    before = sorted(path.name for path in Path().iterdir())
    line = "explain m.lapace mixed.csv --classifier tiring:predict --target yes"
    found = run(f"{line} --pick nearest -o out.csv")
    assert found.exit_code != 0
    assert "tired" in found.stderr
    assert Path("out.csv").read_text() == "old"
    assert sorted(p.name for p in Path().iterdir() if p.name != "__pycache__") == before


@pytest.mark.usefixtures("quick_fits")
def test_fit_draws_a_sample(here):
    table = small()[0]
    table.assign(label=table["a"] > table["b"]).to_csv("train.csv.gz", index=False)
    line = "fit train.csv.gz --classifier mlp --label label --n-prototypes 1 -o s.lapace"
    found = run(f"{line} --sample 120")
    assert found.exit_code == 0, found.stderr
    assert Explainer.load("s.lapace").report_.rows == 120


def test_a_counterfactual_that_only_why_not_finds_is_printed():
    explanation = worlds.explained(worlds.bank(), "approved")
    before = ["none_found" if i % 2 else s for i, s in enumerate(explanation.status)]
    console = Console(file=StringIO(), width=100)
    for part in why_not_parts(explanation, before):
        console.print(part)
    printed = console.file.getvalue()
    late = [one for one in explanation if one.status == "answered" and one.position % 2]
    assert late
    assert printed.count("the longer search found a counterfactual") == len(late)
    for one in late:
        assert f"Instance {one.name}: {one.label} → approved  answered" in printed
    assert why_not_parts(explanation, explanation.status)[0].plain.startswith("Every instance has")
