"""The other experiments: jobs that stand alone, figures plain code agrees with, honest pages."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import (
    Found,
    Measure,
    Plan,
    Record,
    Store,
    comparing,
    e2,
    e3,
    figures,
    fits,
    jobs,
    main,
    page,
    pages,
    plan,
    run_job,
    running,
    store,
    verdicts,
    writing,
)
from lapace import InputError, Search, metrics
from lapace.constraints import System

ROOT = Path(__file__).resolve().parent.parent
PAPER_TOML = ROOT / "benchmarks" / "paper.toml"

LOANS = """
    [protocol]
    seeds = [1]
    instances = 4
    steps = 6
    rows = 240
    clusters = 3

    [paper]
    repeats = 1
    tries = 1
    epochs = 2

    [e2]
    models = 3
    rounds = 2
    confidences = [0.6]
    methods = ["NNCE", "DRCE", "Absent"]
    answers = 3
    most = { DRCE = 3 }
    perturbed = { DRCE = 2 }

    [e3]
    count = 2
    held = 1

    [clusters]
    clusters = [2]
    pairs = ["loans-RF"]
    repeats = 1

    [constraints]
    loans = ["income >= 500", "18 <= age <= 80", "months <= 72"]

    [pairs.loans-RF]
    data = "loans"
    classifier = "forest"
    paper = { latent = 4, batch = 128, rate = 1e-3, weights = [0.1, 0.1, 1.0] }
    published = { accuracy = 80, real = 90, synthetic = 85, actionability = [0.5, 0.6, 0.7, 0.8] }
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A small plan and everything run of it but E1."""
    folder = tmp_path_factory.mktemp("benchmark")
    (folder / "plan.toml").write_text(LOANS)
    out = folder / "out"
    arguments = [f"--plan={folder / 'plan.toml'}", f"--cache={folder / 'cache'}", f"--out={out}"]
    arguments += ["--experiment", "e2", "e3", "e4", "clusters"]
    for recipe in ("default", "baselines"):  # the paper's has its own test with E1
        assert main([*arguments, "--recipe", recipe]) == 0
    return folder, arguments, Plan.read(folder / "plan.toml"), Store(folder / "cache")


def measured(world, task, recipe="default"):
    _, _, made, kept = world
    (job,) = (j for j in jobs(made, experiments=[task]) if j.recipe == recipe)
    found = kept.load(job)
    return job, {(m.method, m.metric, m.label): m for m in found.measures}, found


# --- the plan and its jobs -------------------------------------------------------------------


def test_the_papers_plan_has_every_experiment():
    full = Plan.read(PAPER_TOML)
    every = jobs(full)
    assert len({job.key for job in every}) == len(every)
    count = {name: sum(job.experiment == name for job in every) for name in plan.EXPERIMENTS}
    assert count["e2"] == 8 * 5 + 8 * 5 + 8 * full.limits.repeats
    assert count["e3"] == 4 * 5
    assert count["e4"] == 8
    assert count["clusters"] == 2 * 5 * full.sweep.repeats
    assert (full.compare.models, full.compare.rounds, full.protocol.instances) == (20, 10, 100)
    assert [len(full.act.constraints[name]) for name in ("heloc", "wine")] == [18, 10]
    assert full["wine-RF"].published.actionability == (0.74, 0.88, 1.0, 1.0)
    assert full.sweep.clusters == (2, 3, 5, 8, 12)


def test_what_shares_a_fit_stands_side_by_side():
    found = jobs(Plan.read(PAPER_TOML), experiments=["e2", "e3", "e4"], pairs=["wine-RF"])
    first = [(job.task, job.recipe) for job in found if job.seed == 11]
    assert first == [
        ("e2", "default"), ("e3", "default"), ("e4", "default"), ("e2", "paper"),
        ("e2", "baselines"),
    ]  # fmt: skip


def test_a_job_can_be_sent_to_another_process(world):
    for job in jobs(world[2]):
        again = pickle.loads(pickle.dumps(job))
        assert (again, again.key, hash(again)) == (job, job.key, hash(job))
    pickle.dumps((run_job, world[3]))


def test_the_key_of_one_side_ignores_what_only_the_other_needs(world):
    made = world[2]

    def keys(**changes):
        other = replace(made, compare=replace(made.compare, **changes))
        return {(j.task, j.recipe): j.key for j in jobs(other, experiments=["e2", "e3"])}

    base = keys()
    dice = keys(methods=("NNCE",), perturbed={"NNCE": 1})
    assert dice["e2", "default"] == base["e2", "default"]
    assert dice["e2", "baselines"] != base["e2", "baselines"]
    sure = keys(confidences=(0.9,))
    assert sure["e2", "baselines"] == base["e2", "baselines"]
    assert sure["e2", "default"] != base["e2", "default"]
    both = keys(models=4)
    assert all(both["e2", side] != base["e2", side] for side in ("default", "paper", "baselines"))
    assert both["e3", "default"] == base["e3", "default"]


def test_only_the_experiment_that_changed_is_run_again(monkeypatch, world):
    before = {job: job.key for job in jobs(world[2])}
    monkeypatch.setattr(plan, "REVISIONS", {**plan.REVISIONS, "e3": 2})
    assert {j.task for j, key in before.items() if j.key != key} == {"e3"}


def test_another_lists_constraints_do_not_matter(world):
    made = world[2]
    lists = {**made.act.constraints, "wine": ("pH <= 3",)}
    other = replace(made, act=replace(made.act, constraints=lists))
    assert [j.key for j in jobs(made)] == [j.key for j in jobs(other)]


def test_an_experiment_that_does_not_exist_is_said(world):
    with pytest.raises(InputError, match=r"no experiment 'e22'.*Did you mean 'e2'"):
        jobs(world[2], experiments=["e22"])


# --- running ---------------------------------------------------------------------------------


def test_what_cannot_be_run_here_leaves_the_job_open(world):
    _, _, made, kept = world
    job, found, record = measured(world, "e2", "baselines")
    assert list(record.open) == ["Absent"]
    assert "Absent" in record.open["Absent"]
    assert job not in kept
    assert {name for name, _, _ in found} == {"", "NNCE", "DRCE"}
    assert all(j in kept for j in jobs(made, experiments=["e3", "e4", "clusters"]))


def test_an_open_job_is_finished_without_doing_anything_twice(world, monkeypatch):
    _, _, _, kept = world
    job, _, record = measured(world, "e2", "baselines")
    ran = []

    def baseline(name, *_):
        ran.append(name)
        return [Measure("validity", 1.0, 6, method=name)]

    monkeypatch.setattr(e2, "_baseline", baseline)
    found = running.work(job, kept)
    assert ran == ["Absent"]
    assert not found.open
    assert list(map(str, found.measures[:-1])) == list(map(str, record.measures))
    assert len(found.measures) == len(record.measures) + 1


def test_a_method_that_fails_does_not_cost_the_others(world, monkeypatch):
    job, _, _ = measured(world, "e2", "baselines")

    def baseline(name, *_):
        if name == "NNCE":
            raise ValueError("bad luck\nwith more lines")
        return [Measure("validity", 1.0, 6, method=name)]

    monkeypatch.setattr(e2, "_baseline", baseline)
    found = e2.measure(job)
    assert found.open == {"NNCE": "ValueError: bad luck"}
    assert {m.method for m in found.measures} == {"", "DRCE", "Absent"}


def test_a_process_killed_mid_way_goes_on_where_it_stopped(tmp_path):
    """A real process, killed by a signal between two jobs; another one goes on."""
    code = """
import os, signal, sys
from pathlib import Path
from benchmarks import Measure, Plan, Store, jobs, run
made = Plan.read(sys.argv[1])
store = Store(Path(sys.argv[2]))
def work(job):
    if job.seed == 3 and sys.argv[3] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(sys.argv[4], "a") as file:
        file.write(f"{job.seed}\\n")
    return [Measure("validity", 1.0, 1, method="First")]
chosen = [j for j in jobs(made, experiments=["e2"]) if j.recipe == "default"]
run(chosen, store, say=print, work=work)
"""
    text = LOANS.replace("seeds = [1]", "seeds = [1, 2, 3, 4]")
    (tmp_path / "plan.toml").write_text(text)
    ran = tmp_path / "ran.txt"
    command = [sys.executable, "-c", code, tmp_path / "plan.toml", tmp_path / "cache"]
    first = subprocess.run([*command, "die", ran], capture_output=True, text=True, check=False)
    assert first.returncode == -9, first.stderr
    assert ran.read_text().split() == ["1", "2"]
    second = subprocess.run([*command, "go", ran], capture_output=True, text=True, check=True)
    assert "2 of 4 jobs are done already." in second.stdout
    assert ran.read_text().split() == ["1", "2", "3", "4"]
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 4


def test_a_job_runs_in_a_process_of_its_own_and_finds_the_same(tmp_path, world):
    job, found, _ = measured(world, "e2", "baselines")
    alone = replace(job, details=replace(job.details, methods=("NNCE",)))
    kept = Store(tmp_path)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        (line,) = pool.map(partial(run_job, store=kept), [alone])
    assert line.startswith("e2: loans-RF, baselines, seed 1: ")
    assert alone in kept
    there = {m.metric: m for m in kept.load(alone).measures if m.method == "NNCE"}
    for metric in ("distance", "lof", "model_robustness", "input_distance", "rows_asked"):
        assert str(there[metric]) == str(found["NNCE", metric, ""])


def test_run_job_runs_once_and_adds_up_time(tmp_path, world):
    job = jobs(world[2], experiments=["e2"])[0]
    kept, ran = Store(tmp_path), []

    def do(one):
        ran.append(one)
        return Found([Measure("a", 1.0, 1)], {"DiCE": "needs dice-ml"} if len(ran) == 1 else {})

    assert "still open: DiCE, needs dice-ml" in run_job(job, kept, do=do)
    assert job not in kept
    assert kept.load(job).open == {"DiCE": "needs dice-ml"}
    assert "still open" not in run_job(job, kept, do=do)
    assert "done already" in run_job(job, kept, do=do)
    assert len(ran) == 2
    with pytest.raises(ZeroDivisionError):
        run_job(replace(job, seed=9), kept, do=lambda job: 1 / 0)
    assert replace(job, seed=9) not in kept


# --- e2 --------------------------------------------------------------------------------------


def test_picks_are_measured_as_plain_code_would(world):
    job, found, _ = measured(world, "e2")
    ground, explainer = fits.scene(job), fits.fitted(job).explainer
    answer = explainer.explain(ground.frame, target="approved", search=Search(steps=6))
    known = ground.known
    for name, pick in (("First", answer.first()), ("Last", answer.last())):
        ok = pick.where(pick.ok)
        assert found[name, "distance", ""].value == pytest.approx(ok.distance.mean())
        spread = ok.distance.std(ddof=1)
        assert found[name, "distance", ""].deviation == pytest.approx(spread, abs=1e-12)
        assert found[name, "valid_answers", ""].count == len(pick)
        wanted = known.train[known.codes == known.target]
        lof = metrics.Plausibility(known.schema, wanted).lof(ok.cells)
        assert found[name, "lof", ""].value == pytest.approx(lof.mean())
        retrained = fits.models(ground.given, "forest", 3, 0.8, job.seed)
        stays = [
            np.mean(np.asarray(m.predict(known.wide.frame(ok.cells))) == "approved")
            for m in retrained
        ]
        assert found[name, "model_robustness", ""].value == pytest.approx(np.mean(stays))
        assert found[name, "rows_asked", ""].value == pytest.approx(answer.n_queries * 100 / 4)
    near = answer.nearest()
    rows = known.train[known.codes == known.target]
    nnce = [known.wide.distance(rows, np.tile(p, (len(rows), 1))).min() for p in ground.instances]
    good = near.where(near.ok)
    assert found["nearest", "paired_nnce", ""].value == pytest.approx(
        np.mean(np.array(nnce)[good.instance])
    )
    assert found["nearest", "paired_distance", ""].value == pytest.approx(good.distance.mean())


def test_the_last_step_never_moves_and_confidence_is_kept(world):
    _, found, _ = measured(world, "e2")
    for metric in ("input_set_distance", "input_max_set_distance"):
        assert found["Last", metric, ""].value == 0
    assert found["First", "input_max_set_distance", ""].value > 0
    sure = found["First@0.6", "model_robustness", ""].value
    assert sure >= found["First", "model_robustness", ""].value
    assert ("First@0.6", "isolation", "") not in found
    assert found["sparse", "changed", ""].value <= found["nearest", "changed", ""].value


def test_perturbed_people_whose_label_flips_are_left_out_and_counted(world):
    job, found, _ = measured(world, "e2")
    ground = fits.scene(job)
    judge = e2._Judge.of(job, job.details, ground)
    moved = judge.perturbed(4)
    said = np.asarray(ground.given.model.predict(moved.frame)).reshape(2, 4)
    assert (moved.flipped == (said == "approved")).all()
    some = judge.perturbed(2)  # fewer instances are moved the same way
    assert some.frame.reset_index(drop=True).equals(
        moved.frame.iloc[[0, 1, 4, 5]].reset_index(drop=True)
    )
    flipped = found["First", "input_flipped", ""]
    assert (flipped.value, flipped.count) == (moved.flipped.sum(), 8)
    assert found["First", "input_set_distance", ""].count <= 8 - flipped.value


def test_baselines_are_measured_on_as_many_people_as_the_plan_says(world):
    job, found, _ = measured(world, "e2", "baselines")
    ground = fits.scene(job)
    assert found["NNCE", "validity", ""].count == 4
    assert found["DRCE", "validity", ""].count == 3
    assert found["DRCE", "input_instances", ""].value == 2
    assert found["DRCE", "answers_each", ""].value <= 3
    assert found["NNCE", "copies", ""].value == 1
    rows = ground.known.wanted
    nnce = [
        ground.known.wide.distance(rows, np.tile(p, (len(rows), 1))).min() for p in ground.instances
    ]
    assert found["NNCE", "distance", ""].value == pytest.approx(np.mean(nnce))
    assert found["NNCE", "rows_asked", ""].value > 0


def test_rows_asked_are_those_the_model_saw(world):
    job, _, _ = measured(world, "e2", "baselines")
    ground = fits.scene(job)
    model, count = e2._counted(ground.given.model)
    model.predict(ground.frame)
    model.predict_proba(ground.frame.head(2))
    assert count.rows == 6
    assert (model.predict(ground.frame) == ground.given.model.predict(ground.frame)).all()


def test_both_sides_see_the_same_people_and_models(world):
    _, ours, _ = measured(world, "e2")
    _, theirs, _ = measured(world, "e2", "baselines")
    assert ours["", "instances", ""].value == theirs["", "instances", ""].value == 4
    # NNCE as a baseline and as what nearest is paired with are one and the same.
    nnce = theirs["NNCE", "distance", ""].value
    if ours["nearest", "paired_nnce", ""].count == 4:
        assert ours["nearest", "paired_nnce", ""].value == pytest.approx(nnce)


def test_the_sweep_says_how_many_clusters(world):
    job, found, _ = measured(world, "clusters")
    assert {label for _, _, label in found} == {"2"}
    assert found["Last", "answers_each", "2"].value <= 2
    assert job.protocol.clusters == 2


# --- e3 --------------------------------------------------------------------------------------


def test_people_have_constraints_of_their_own_and_harder_ones(world):
    job, _, _ = measured(world, "e3")
    ground = fits.scene(job)
    easy, hard = (e3.drawn(job, ground, hard=h) for h in (False, True))
    assert len(easy) == len(hard) == 4
    assert all(len(texts) == 2 for texts in easy)
    assert len(set(easy)) > 1
    assert e3.drawn(job, ground, hard=False) == easy
    for soft, firm in zip(easy, hard, strict=True):
        assert len(firm) == 3
        assert firm[2].endswith("== original")
        for a, b in zip(soft, firm, strict=False):
            assert (a == b) == ("age" not in a)
    low, high = np.quantile(ground.given.data.train["age"], [0.1, 0.9], method="nearest")
    assert e3.narrowed("18 <= age <= 80", ground, job.details) == f"{low:g} <= age <= {high:g}"
    assert e3.narrowed("months <= 72", ground, job.details) == "months <= 72"


def test_actionability_is_counted_exactly(world):
    _, found, record = measured(world, "e3")
    assert not record.open
    for setting in ("easy", "hard"):
        possible = 1 - found["", "impossible", setting].value
        for method in e3.METHODS:
            share = found[method, "satisfied", setting]
            assert 0 <= share.value <= possible + 1e-9
            assert share.count == 4
        assert found["LAPACE-exact", "feasible_points", setting].value == 1
    assert found["LAPACE-exact", "satisfied_path", "easy"].count >= 4


def test_paths_of_face_are_overwritten_and_asked_about_again(world):
    job, _, _ = measured(world, "e3")
    ground = fits.scene(job)
    points = e3._Points()
    texts = ("income >= 500", "months <= 12")
    cells = ground.known.train[:5]
    e3._overwritten(ground, texts, cells, 0, points)
    system = System.of(texts, ground.known.wide)
    instance = np.repeat(ground.instances[:1], 5, axis=0)
    moved = system.project(cells, instance).cells
    assert system.feasible(moved, instance).all()
    said = np.asarray(ground.given.model.predict(ground.known.wide.frame(moved))) == "approved"
    assert points.valid[0].tolist() == said.tolist()
    assert points.answered == [bool(said.any())]


def test_who_cannot_be_helped_is_counted_for_every_method(world):
    job, _, _ = measured(world, "e3")
    ground = fits.scene(job)
    own = ground.instances[0, ground.known.schema.index("age")]
    clash = ("`age` == original", f"age >= {own + 1:g}")
    assert e3._contradictory(ground, clash, ground.instances[0])
    assert e3._contradictory(ground, ("months <= 12", "months >= 36"), ground.instances[0])
    assert not e3._contradictory(ground, ("months <= 12",), ground.instances[0])


# --- e4 --------------------------------------------------------------------------------------


def test_points_of_paths_are_measured_as_plain_code_would(world):
    job, found, _ = measured(world, "e4")
    ground, explainer = fits.scene(job), fits.fitted(job).explainer
    answer = explainer.explain(ground.frame, target="approved", search=Search(steps=6))
    number = int(answer.prototype[0])
    here = answer.prototype == number
    for step, tau in ((0, "0"), (3, "0.5"), (6, "1")):
        own = found["", f"probability@{tau}", str(number)]
        assert own.value == pytest.approx(answer.probability[here, step].mean())
        assert own.count == here.sum()
    ends = {m.value for (_, metric, _), m in found.items() if metric == "valid@1"}
    assert ends == {1.0}


# --- what is kept ----------------------------------------------------------------------------


def test_the_tables_hold_every_line_once_with_its_settings(world):
    folder, _, made, kept = world
    table = pd.read_parquet(folder / "cache" / "results.parquet")
    assert tuple(table.columns) == store.COLUMNS
    names = ["experiment", "pair", "recipe", "seed", "method", "metric", "label", "settings"]
    assert not table.duplicated(names).any()
    every = {job.key for job in jobs(made) if kept.load(job)}
    assert set(table["settings"]) == every
    text = store.kept(folder / "out")
    assert len(text) == len(table)
    ran = pd.read_csv(folder / "out" / "runs.csv", keep_default_na=False)
    assert set(ran["settings"]) == every
    assert "Absent" in ran.loc[ran["recipe"] == "baselines", "open"].item()


def test_a_second_run_runs_only_what_is_open(world, capsys):
    folder, arguments, _, _ = world
    before = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
    assert main([*arguments, "--render"]) == 0
    assert main([*arguments[:-4], "e3", "e4", "clusters", "--recipe", "default"]) == 0
    assert "3 of 3 jobs are done already." in capsys.readouterr().out
    assert before == {path.name: path.read_bytes() for path in (folder / "out").iterdir()}


def test_results_of_two_machines_add_up_and_other_settings_go(tmp_path, world):
    made = world[2]
    one, other = (j for j in jobs(made, experiments=["e2"]) if j.recipe != "paper")
    here, there, out = Store(tmp_path / "a"), Store(tmp_path / "b"), tmp_path / "out"
    here.save(one, Record([Measure("lof", 1.0, 5, method="First")], 1.0, "v1"))
    there.save(other, Record([Measure("lof", 2.0, 5, method="NNCE")], 1.0, "v2"))
    store.keep(out, jobs(made), here)
    table = store.keep(out, jobs(made), there)
    assert dict(zip(table["method"], table["mean"], strict=True)) == {"First": 1.0, "NNCE": 2.0}
    assert [v.split(", ")[-1] for v in table["versions"]] == ["v1", "v2"]
    here.save(one, Record([Measure("lof", 1.5, 5, method="First")], 1.0, "v3"))
    table = store.keep(out, jobs(made), here)
    assert dict(zip(table["method"], table["mean"], strict=True)) == {"First": 1.5, "NNCE": 2.0}
    changed = replace(made, compare=replace(made.compare, confidences=(0.9,)))
    table = store.keep(out, jobs(changed), Store(tmp_path / "nothing"))
    assert set(table["method"]) == {"NNCE"}  # First was asked for another confidence


# --- pages, from made-up tables --------------------------------------------------------------


def made_up(*lines, experiment="e2"):
    """A tidy table: (pair, recipe, method, metric, means[, label[, count]])."""
    found = []
    for pair, recipe, method, metric, means, *rest in lines:
        label, count = (*rest, "", 100)[:2] if len(rest) < 2 else rest
        for repeat, mean in enumerate(np.atleast_1d(means), start=1):
            head = (experiment, pair, recipe, repeat, 10 + repeat, method, metric, label)
            found.append((*head, float(mean), 0.1, count or 100, "key", "lapace 0, Python 3"))
    return pd.DataFrame(found, columns=list(store.COLUMNS))


PAIRS = ("wine-RF", "adult-NN")


@pytest.fixture
def benchmark():
    """Two pairs; figures chosen so that every target is met."""
    found = []
    for pair in PAIRS:
        mixed = float(pair == "adult-NN")
        found.append((pair, "default", "", "mixed", mixed))
        for pick, lof, diversity in (
            ("First", 1.05, 0.5),
            ("Middle", 1.0, 0.8),
            ("Last", 0.9, 1.1),
        ):
            ours = {
                "validity": 1.0, "valid_answers": 1.0, "distance": 0.6, "lof": lof,
                "diversity": diversity, "model_robustness": 1.0 if pick == "Last" else 0.7,
                "input_max_set_distance": 0.0 if pick == "Last" else 0.1,
                "input_set_distance": 0.0 if pick == "Last" else 0.05, "seconds": 0.4,
                "answers_each": 5.0,
            }  # fmt: skip
            found += [(pair, "default", pick, m, (v, v)) for m, v in ours.items()]
        for metric, value in (("validity", 1.0), ("model_robustness", 0.97), ("lof", 1.02)):
            found.append((pair, "default", "First@0.6", metric, value))
        for pick in ("nearest", "sparse"):
            for metric, value in (
                ("validity", 1.0),
                ("paired_distance", 0.3),
                ("paired_nnce", 0.4),
            ):
                found.append((pair, "default", pick, metric, value))
        for name, lof, seconds in (("NNCE", 1.2, 0.1), ("DRCE", 1.1, 0.9), ("DiCE", 1.4, 90.0)):
            theirs = {
                "validity": 1.0, "distance": 0.4, "lof": lof, "model_robustness": 0.8,
                "input_max_set_distance": 0.3, "input_set_distance": 0.2, "seconds": seconds,
            }  # fmt: skip
            if name != "NNCE":
                theirs |= {"diversity": 0.9, "answers_each": 4.5}
            found += [(pair, "baselines", name, m, v) for m, v in theirs.items()]
    return made_up(*found)


@pytest.fixture
def actions():
    found = [("wine-RF", "default", "", "impossible", 0.1, "hard")]
    for method, easy, hard in (
        ("FACE-Interpolate", 0.9, 0.5), ("LAPACE-naive", 1.0, 0.6), ("LAPACE-exact", 1.0, 0.8),
    ):  # fmt: skip
        for setting, share in (("easy", easy), ("hard", hard)):
            found.append(("wine-RF", "default", method, "satisfied", share, setting))
            found.append(("wine-RF", "default", method, "feasible_points", 1.0, setting))
    return made_up(*found, experiment="e3")


def changed(table, method, metric, value, pair="wine-RF"):
    here = (table["pair"] == pair) & (table["method"] == method) & (table["metric"] == metric)
    assert here.any()
    return table.assign(mean=table["mean"].where(~here, value))


def judged(table):
    return {v.target: v for v in verdicts.verdicts(Plan.read(PAPER_TOML), table)}


def test_targets_that_are_reached_are_met(benchmark, actions):
    found = judged(pd.concat([benchmark, actions]))
    assert {v.text for v in found.values()} == {"met"}
    assert found["validity"].reached == "First 400 of 400; Middle 400 of 400; Last 400 of 400"
    text = verdicts.markdown(Plan.read(PAPER_TOML), pd.concat([benchmark, actions]))
    assert "met (2 of 8 pairs)" in text
    assert "met (1 of 4 pairs)" in text
    assert "**missed**" not in text


@pytest.mark.parametrize(
    ("method", "metric", "value", "target"),
    [
        ("Middle", "valid_answers", 0.99, "validity"),
        ("nearest", "paired_distance", 0.41, "proximity, one answer each"),
        ("Middle", "lof", 1.11, "plausibility (LOF)"),
        ("Last", "lof", 1.11, "plausibility (LOF)"),
        ("NNCE", "lof", 0.95, "plausibility (LOF)"),
        ("DRCE", "diversity", 1.2, "diversity beside DRCE"),
        ("DiCE", "diversity", 1.2, "diversity beside DiCE"),
        ("Last", "model_robustness", 0.999, "robustness to model changes, Last"),
        ("First@0.6", "model_robustness", 0.94, "robustness to model changes, First"),
        ("First@0.6", "validity", 0.9, "robustness to model changes, First"),
        ("Last", "input_max_set_distance", 0.001, "robustness to input changes, Last"),
        ("First", "input_set_distance", 0.21, "robustness to input changes, First, set distance"),
        ("First", "seconds", 0.91, "runtime"),
        ("DiCE", "seconds", 19.0, "runtime beside DiCE"),
    ],
)
def test_a_figure_that_misses_prints_missed(benchmark, method, metric, value, target):
    table = changed(benchmark, method, metric, value)
    found = judged(table)
    assert found[target].text == "**missed** on wine-RF"
    assert found[target].met is False
    text = verdicts.markdown(Plan.read(PAPER_TOML), table)
    line = next(line for line in text.splitlines() if line.startswith(f"| {target} |"))
    assert "**missed** on wine-RF (2 of 8 pairs)" in line


@pytest.mark.parametrize(
    ("method", "metric", "value", "target"),
    [
        ("LAPACE-exact", "feasible_points", 0.999, "E3, points that obey"),
        ("LAPACE-exact", "satisfied", 0.59, "E3, easy constraints"),
        ("LAPACE-exact", "satisfied", 0.59, "E3, hard constraints"),
        ("FACE-Interpolate", "satisfied", 0.81, "E3, hard constraints"),
    ],
)
def test_constraints_that_are_missed_print_missed(actions, method, metric, value, target):
    assert judged(changed(actions, method, metric, value))[target].text == "**missed** on wine-RF"


def test_targets_are_read_where_they_apply(benchmark):
    far = changed(benchmark, "DiCE", "lof", 1.6)
    assert judged(changed(far, "DiCE", "diversity", 9.0))["diversity beside DiCE"].missed == ()
    assert judged(far)["diversity beside DiCE"].judged == ("adult-NN",)
    # With categories it is the sparse answer that is held to NNCE, without them the nearest.
    for pair, pick, other in (("adult-NN", "sparse", "nearest"), ("wine-RF", "nearest", "sparse")):
        worse = changed(benchmark, other, "paired_distance", 9.0, pair)
        assert judged(worse)["proximity, one answer each"].met
        worse = changed(benchmark, pick, "paired_distance", 9.0, pair)
        assert judged(worse)["proximity, one answer each"].missed == (pair,)
    every = changed(changed(benchmark, "Last", "lof", 2), "Last", "lof", 2, "adult-NN")
    assert judged(every)["plausibility (LOF)"].text == "**missed** on every pair"


def test_the_best_is_marked_and_only_the_best(benchmark):
    plan_ = Plan.read(PAPER_TOML)
    table = comparing.markdown(plan_, benchmark).split("## wine-RF\n\n")[1].split("\n\n")[0]
    rows = {cells[1]: cells[2:-1] for line in table.splitlines()[2:] if (cells := line.split("|"))}
    rows = {name.strip(): [cell.strip() for cell in cells] for name, cells in rows.items()}
    column = {m.key: k for k, m in enumerate(comparing.METRICS)}

    def marked(metric):
        return {name for name, cells in rows.items() if cells[column[metric]].startswith("**")}

    assert marked("lof") == {"Last"}
    assert marked("diversity") == {"Last"}
    assert marked("distance") == {"NNCE", "DRCE", "DiCE"}  # level as far as digits tell
    assert marked("seconds") == {"NNCE"}
    assert marked("input_max_set_distance") == {"Last"}
    assert marked("rows_asked") == set()  # nobody was counted
    assert rows["NNCE"][column["diversity"]] == figures.NONE


def test_words_say_where_we_win_and_where_we_lose(benchmark):
    text = comparing.words(figures.Figures.of(benchmark), PAIRS)
    assert "local outlier factor*: best on 2 of 2 pairs (by Last 2)." in text
    assert (
        "distance to the instance*: best on 0 of 2 pairs. A baseline is better on wine-RF" in text
    )
    worse = changed(benchmark, "NNCE", "lof", 0.5)
    text = comparing.words(figures.Figures.of(worse), PAIRS)
    assert "A baseline is better on wine-RF (Last 0.90, NNCE 0.50)." in text


def test_the_confidence_that_lasts_is_the_least_that_does(benchmark):
    known = figures.Figures.of(benchmark)
    assert comparing.reaching(known, "wine-RF") == 0.6
    sure = figures.Figures.of(changed(benchmark, "First", "model_robustness", 0.96))
    assert comparing.reaching(sure, "wine-RF") == 0.0
    never = figures.Figures.of(changed(benchmark, "First@0.6", "model_robustness", 0.9))
    assert comparing.reaching(never, "wine-RF") is None
    assert "| wine-RF | 70.0 (1.05, 0.60) |" in comparing.markdown(Plan.read(PAPER_TOML), benchmark)


def test_actionability_stands_beside_the_papers(actions):
    text = pages.actions(Plan.read(PAPER_TOML), actions)
    line = next(line for line in text.splitlines() if line.startswith("| wine-RF | easy |"))
    assert "0.900 (0.74)" in line
    assert "**1.000** (1.00)" in line
    hard = next(line for line in text.splitlines() if line.startswith("| wine-RF | hard |"))
    assert hard.count("**") == 2
    assert "**0.800**" in hard
    assert hard.endswith("| 10.0 |")


class Reader(HTMLParser):
    """Refuses a page whose tags do not match; collects what it refers to."""

    VOID = ("meta", "img", "br")

    def __init__(self):
        super().__init__()
        self.stack, self.used, self.tags = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.used += [value for name, value in attrs if name in ("src", "href", "style")]
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.used += [value for name, value in attrs if name in ("src", "href", "style")]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def test_the_report_is_one_page_that_needs_nothing(world, benchmark, actions):
    plan_ = Plan.read(PAPER_TOML)
    tables = [benchmark, actions]
    run = store.kept(world[0] / "out")
    tables += [run[run["experiment"].isin(["e4", "clusters"])].replace("loans-RF", "wine-RF")]
    text = writing.report(plan_, pd.concat(tables), b"\x89PNG")
    reader = Reader()
    reader.feed(text)
    assert reader.stack == []
    assert not reader.tags & {"script", "link", "iframe", "object"}
    assert all(value.startswith(("#", "data:image/png;base64,")) for value in reader.used)
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    assert text.count("<svg") == len(comparing.METRICS) + 2 + len(pages.SWEPT)
    for target in (value for value in reader.used if value.startswith("#")):
        assert f'id="{target[1:]}"' in text
    assert "nan" not in text.replace("--", "").lower().split("<body>")[1]
    assert "<!-- picture" not in text


def test_hostile_names_stay_text():
    found = page.page("<b>", {"x": "# <script>alert(1)</script>\n\n| a<b | & |\n| --- | --- |"}, {})
    assert "<script>" not in found
    assert "a&lt;b" in found


def test_pages_of_a_real_run_have_tables_that_hold_together(world):
    out = world[0] / "out"
    for name in ("e2", "e3", "e4", "clusters", "targets"):
        text = (out / f"{name}.md").read_text(encoding="utf-8")
        assert "nan" not in text
        for block in text.split("\n\n"):
            if block.startswith("|"):
                assert len({line.count(" | ") for line in block.splitlines()}) == 1
    assert "loans-RF" in (out / "e2.md").read_text(encoding="utf-8")
    assert (out / "report.html").exists()
    assert not (out / "e1.md").exists()  # nothing of it has been run


def test_blocks_go_between_their_marks(tmp_path, monkeypatch, world):
    folder, _, made, kept = world
    monkeypatch.chdir(tmp_path)
    names = ("e2", "e2-words", "e3", "clusters", "targets")
    marks = "\n".join(f"<!-- {name} -->\nold\n<!-- /{name} -->" for name in (*names, "e1"))
    Path("README.md").write_text(f"before\n{marks}\nafter\n")
    writing.write(made, kept, folder / "out", shown=True)
    text = Path("README.md").read_text(encoding="utf-8")
    found = writing.blocks(made, store.kept(folder / "out"))
    assert set(found) == set(names)
    assert all(part in text for part in found.values())
    assert text.count("old") == 1  # E1 has not been run: its block is left alone
    assert text.startswith("before")
    assert text.endswith("after\n")


@pytest.mark.parametrize("name", ["README.md", "docs/reproducing.md"])
def test_pages_show_the_results_that_are_kept(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    found = writing.blocks(Plan.read(PAPER_TOML), store.kept(ROOT / "benchmarks" / "results"))
    shown = [mark for mark in found if f"<!-- {mark} -->" in text]
    assert "e1" in shown
    for mark in shown:
        assert f"<!-- {mark} -->\n\n{found[mark]}\n\n<!-- /{mark} -->" in text, mark


def test_the_page_on_reproducing_names_every_experiment_and_has_room_for_every_block():
    text = (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8")
    for name in (*plan.EXPERIMENTS, "e5"):
        assert any(
            name in line.split() for line in text.splitlines() if "python -m benchmarks" in line
        ), name
    for mark in ("e1", "e2", "e2-words", "targets", "e3", "clusters"):
        assert text.count(f"<!-- {mark} -->") == text.count(f"<!-- /{mark} -->") == 1


def test_nothing_that_is_not_a_number_reaches_a_file(world):
    for path in (world[0] / "cache").rglob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)
    assert math.isnan(measured(world, "e2")[1]["nearest", "diversity", ""].value)


def test_the_first_pages_sentences_are_of_the_results_that_are_kept():
    root = Path(__file__).parents[1]
    page = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    three = pd.read_csv(root / "benchmarks/results/e3.csv", keep_default_na=False)
    hard = three[(three["label"] == "hard") & (three["metric"] == "lof_after")]

    def span(method):
        found = hard[hard["method"] == method].groupby("pair")["mean"].mean()
        assert len(found) == 4
        return f"{found.min():.2f}–{found.max():.2f}"

    assert (
        f"(LOF {span('LAPACE-exact')} against {span('LAPACE-naive')} in the hard setting)" in page
    )
    five = pd.read_csv(root / "benchmarks/results/e5.csv", keep_default_na=False)
    accuracy = five.loc[five["metric"] == "test accuracy", "value"].astype(float)
    assert f"reads {accuracy.item():.2%} of the test digits".replace("%", " %") in page
    ours = five[(five["recipe"] == "default") & (five["labels"] == "predictions")]
    valid = ours[ours["metric"] == "prototypes valid"]
    good, count = (valid["value"] * valid["count"]).sum(), valid["count"].sum()
    assert f"{good:.0f} of {count} prototypes accepted over five seeds" in page
    assert len(valid) == 5
