"""The benchmarks: what a plan says, what a job finds, what is kept, and how jobs are run."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.cluster import KMeans

from benchmarks import (
    drawing,
    e1,
    e2,
    e3,
    fits,
    plan,
    running,
    speed,
    store,
)
from benchmarks.__main__ import main
from benchmarks.baselines.ppcef import encode
from benchmarks.networks import network_of
from benchmarks.plan import Job, Limits, Pair, PaperSettings, Plan, Protocol
from benchmarks.running import run, run_job
from benchmarks.store import Measure, Record, Store
from lapace import InputError, Search, datasets, metrics
from lapace.constraints import System
from lapace.datasets import train
from lapace.training import DEFAULT
from tests.worlds import once

ROOT = Path(__file__).resolve().parents[2]
PAPER_TOML = ROOT / "benchmarks" / "paper.toml"
SHORT = replace(DEFAULT, hidden=32)  # with few steps: what is guaranteed holds for any fit

LOANS = """
    [protocol]
    seeds = [1]
    instances = 4
    steps = 6
    rows = 300
    trees = 10
    n_prototypes = 3

    [paper]
    tries = 2
    steps = 20
    epochs = 0

    [e2]
    n_models = 3
    n_perturbations = 2
    confidences = [0.6]
    methods = ["NNCE", "DRCE", "Absent"]
    n_counterfactuals = 3
    max_instances = { DRCE = 3 }
    max_perturbed = { DRCE = 2 }

    [e3]
    n_constraints = 2
    n_fixed = 1

    [clusters]
    n_prototypes = [2]
    pairs = ["loans-NN"]
    repeats = 1

    [constraints]
    loans = ["income >= 500", "18 <= age <= 80", "months <= 72"]

    [pairs.loans-NN]
    data = "loans"
    classifier = "mlp"
    paper = { n_latent = 4, batch = 128, rate = 1e-3, weights = [0.1, 0.1, 1.0] }
    reported = { accuracy = 80, real = 90, synthetic = 85, actionability = [0.5, 0.6, 0.7, 0.8] }
"""


def job(**changes) -> Job:
    paper = PaperSettings(4, 128, 1e-3, (0.1, 0.1, 1.0))
    start = Job(Pair("a-RF", "a", "forest", paper=paper), "default", 1, Protocol(), Limits())
    return replace(start, **changes)


# --- plan ------------------------------------------------------------------------------------


def test_the_papers_plan_is_the_papers():
    full = Plan.read(PAPER_TOML)
    paper = [pair for pair in full.pairs if pair.experiment == "e1"]
    assert [pair.name for pair in paper] == [
        f"{data}-{kind}" for data in ("heloc", "wine", "adult", "compas") for kind in ("RF", "NN")
    ]
    assert all(pair.classifier == ("forest" if "RF" in pair.name else "mlp") for pair in paper)
    assert {pair.data for pair in paper if pair.balanced} == {"adult", "compas"}
    assert {pair.data for pair in paper if pair.impute} == {"heloc"}
    assert full["wine-NN"].paper == PaperSettings(8, 16, 3e-4, (0.5, 0.3, 1.0))
    gaps = [2.90, 1.83, 2.28, 1.67, 12.69, 12.97, 5.76, 8.26]
    assert [round(pair.reported.gap, 2) for pair in paper] == gaps
    assert full["wine-RF"].reported.actionability == (0.74, 0.88, 1.0, 1.0)
    assert len(full.protocol.seeds) == 5
    assert "adult-full-BT" in full.names
    assert (full.e2.n_models, full.e2.n_perturbations, full.protocol.instances) == (20, 10, 100)
    assert [len(full.e3.constraints[name]) for name in ("heloc", "wine")] == [18, 10]
    assert full.sweep.n_prototypes == (2, 3, 5, 8, 12)


def test_the_papers_plan_has_every_experiment():
    full = Plan.read(PAPER_TOML)
    jobs = full.jobs()
    assert len({job.key for job in jobs}) == len(jobs)
    count = {name: sum(job.experiment == name for job in jobs) for name in plan.EXPERIMENTS}
    assert count == {
        "e1": 8 * 5 + 8 * 5,
        "extra": 6 * 5,
        "sources": 8 * 2,
        "readings": 7 * 8 * 2,
        "e2": 8 * 5 * 6,
        "e3": 8 * 5 * 3,
        "e4": 8 * 5 * 2,
        "clusters": 2 * 2 * 5 * full.sweep.repeats,
        "e6": 1,
    }


def test_readings_are_fits_of_their_own_on_other_splits():
    full = Plan.read(PAPER_TOML)
    found = full.jobs(experiments=["readings"], pairs=["wine-NN"])
    assert {job.seed for job in found} == {1, 2}
    assert not {job.seed for job in found} & set(full.protocol.seeds)
    names = [job.details.name for job in found if job.seed == 1]
    assert names == list(full.readings.options)
    recipes = [fits.recipe_of(job)[0] for job in found[: len(names)]]
    losses = [fits.loss_of(job) for job in found[: len(names)]]
    assert [loss and loss.kl_c for loss in losses[:3]] == [None, "running", "row"]
    plain = full.jobs(experiments=["e1"], pairs=["wine-NN"], recipes=["paper"])[0]
    assert recipes[0] == fits.recipe_of(plain)[0]  # the first is recipe="paper" as it is


def test_the_key_holds_all_a_job_depends_on_and_nothing_else(monkeypatch):
    base = job()
    others = [
        job(seed=2),
        job(recipe="paper"),
        job(protocol=Protocol(instances=9)),
        job(protocol=Protocol(rows=9)),
        job(pair=replace(base.pair, balanced=True)),
        job(recipe="paper", limits=Limits(tries=9)),
        job(recipe="paper", pair=replace(base.pair, paper=replace(base.pair.paper, n_latent=5))),
    ]
    assert len({base.key, *(other.key for other in others)}) == len(others) + 1
    same = [
        job(limits=Limits(tries=9)),
        job(protocol=Protocol(seeds=(1,))),
        job(pair=replace(base.pair, reported=plan.Reported(1.0, 2.0, 3.0))),
        job(pair=replace(base.pair, paper=None)),
    ]
    assert {other.key for other in same} == {base.key}
    before = {base.key, *(other.key for other in others)}
    monkeypatch.setitem(plan.REVISIONS, "default", 99)
    assert job().key not in before


def test_only_the_experiment_that_changed_is_run_again(monkeypatch, world):
    before = {job: job.key for job in world.plan.jobs()}
    monkeypatch.setitem(plan.REVISIONS, "e3", 99)
    assert {j.experiment for j, key in before.items() if j.key != key} == {"e3"}


def test_what_does_not_exist_is_refused():
    with pytest.raises(InputError, match=r"There is no plan 'nowhere\.toml'"):
        Plan.read("nowhere.toml")
    with pytest.raises(InputError, match=r"no pair 'wine-RV'.*Did you mean 'wine-RF'"):
        Plan.read(PAPER_TOML).jobs(pairs=["wine-RV"])
    with pytest.raises(InputError, match=r"no experiment 'e22'.*Did you mean 'e2'"):
        Plan().jobs(experiments=["e22"])


# --- tables ----------------------------------------------------------------------------------


# --- one small run of everything -------------------------------------------------------------


class World(SimpleNamespace):
    """A small plan, run by the command."""

    def jobs(self, experiment, recipe="default"):
        found = self.plan.jobs(experiments=[experiment], recipes=[recipe])
        return found[0]

    def measured(self, experiment, recipe="default"):
        """A job, its figures by method, metric and label, and its record."""
        one = self.jobs(experiment, recipe)
        record = self.store.load(one)
        return one, {(m.method, m.metric, m.label): m for m in record.measures}, record


def sketched(figure, path, **_):
    """In place of the picture, which takes seconds and is tested for itself."""
    plt.close(figure)
    path.write_bytes(b"\x89PNG")


@once
def everything():
    """Runs all but E5, E6 and the paper's recipe of E2, and returns the folder of the results."""
    folder = Path(mkdtemp(dir=os.environ.get("LAPACE_WORLDS")))
    (folder / "plan.toml").write_text(LOANS)
    arguments = arguments_of(folder)
    experiments = ["--experiment", "e2", "e3", "e4", "clusters"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fits, "DEFAULT", SHORT)
        patch.setattr("lapace.training.steps_for", lambda *_: 200)
        patch.setattr("benchmarks.__main__.write_all", lambda *_, **__: None)  # rendered below
        assert main([*arguments, "--experiment", "e1", "--recipe", "both"]) == 0
        for recipe in ("default", "baselines"):
            assert main([*arguments, *experiments, "--recipe", recipe]) == 0
        patch.undo()
        patch.setattr(drawing, "save", sketched)
        assert main([*arguments, "--render"]) == 0
    return folder


def arguments_of(folder):
    """The arguments that name the plan, the cache and the results in a folder."""
    return [f"--plan={folder}/plan.toml", f"--cache={folder}/cache", f"--out={folder}/out"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A copy of all results, which are made once per run of the tests."""
    folder = tmp_path_factory.mktemp("benchmarks") / "copy"
    shutil.copytree(everything(), folder)
    return World(
        folder=folder, out=folder / "out", arguments=arguments_of(folder),
        plan=Plan.read(folder / "plan.toml"), store=Store(folder / "cache"),
    )  # fmt: skip


# --- e1 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["default", "paper"])
def test_a_job_finds_every_figure_the_page_needs(world, recipe):
    _, found, _ = world.measured("e1", recipe)
    measures = {(metric, label): m for (_, metric, label), m in found.items()}
    shares = [
        "accuracy", "tstr_real", "tstr_raw", "tstr_raw_balanced", "agreement", "ks",
        "centroids_before", "centroids_after", "first_valid", "middle_valid", "last_valid",
        "recrossing_before", "recrossing_after", "nearest_no_farther",
    ]  # fmt: skip
    for name in shares:
        assert 0 <= measures[name, ""].value <= 1, name
    names = ["raw", "verified"]
    if math.isnan(measures["tstr_verified", ""].value):
        # A fit this short may be one whose samples never get their label.
        assert recipe == "paper"
        names = ["raw"]
    for name in names:
        gap = measures["tstr_real", ""].value - measures[f"tstr_{name}", ""].value
        assert measures[f"gap_{name}", ""].value == pytest.approx(gap)
    by_label = [measures["agreement", label] for label in ("approved", "denied")]
    total = measures["agreement", ""]
    assert sum(m.count for m in by_label) == total.count == 300
    pooled = sum(m.value * m.count for m in by_label) / 300
    assert pooled == pytest.approx(total.value)
    assert measures["instances", ""].value == 4
    assert measures["nnce_distance", ""].value > 0
    centroids = measures["centroids_after", ""].count
    assert measures["fit_queries", ""].value >= 300 + centroids  # and every centroid
    assert measures["fit_seconds", ""].value > measures["report_seconds", ""].value > 0


@pytest.fixture(scope="module")
def small(world):
    """The setup and the fit of the small plan."""
    one = world.jobs("e1")
    with pytest.MonkeyPatch.context() as patch:  # where another test has filled the cache
        patch.setattr(fits, "DEFAULT", SHORT)
        patch.setattr("lapace.training.steps_for", lambda *_: 200)
        return one, fits.setup_of(one), fits.fitted(one).explainer


def mean_distance(schema, cells):
    """Mean distance over pairs."""
    pairs = [(a, b) for i, a in enumerate(cells) for b in cells[:i]]
    return np.mean([schema.distance(a[None], b[None])[0] for a, b in pairs])


def nnce_distances(setup):
    """For every instance the distance of the nearest training row with the target."""
    rows = setup.target_rows
    return np.array(
        [setup.wide.distance(rows, np.tile(p, (len(rows), 1))).min() for p in setup.instances]
    )


def test_prototypes_are_measured_as_plain_code_would(small):
    one, setup, explainer = small
    predicted = np.asarray(setup.model.predict(setup.data.train))
    rows = setup.schema.cells(setup.data.train)[predicted == "approved"]
    cells = np.stack([p.cells for p in explainer.prototypes_ if p.label == "approved" and p.valid])
    found = {m.metric: m.value for m in e1._prototypes(one, explainer, setup)}
    lof = metrics.Plausibility(setup.schema, rows).lof(cells)
    assert found["prototype_lof"] == pytest.approx(lof.mean())
    assert found["prototype_lof_max"] == pytest.approx(lof.max())
    means = KMeans(len(cells), n_init=3, random_state=one.seed).fit(setup.schema.encode(rows))
    centroids = setup.schema.decode(means.cluster_centers_)
    ratio = mean_distance(setup.schema, cells) / mean_distance(setup.schema, centroids)
    assert found["diversity"] == pytest.approx(ratio)


def test_paths_are_measured_as_plain_code_would(small, world):
    _, setup, explainer = small
    _, found, _ = world.measured("e1")
    value = {metric: m.value for (_, metric, label), m in found.items() if not label}
    search = Search(steps=6, picks=("first", "middle", "last"))
    explanation = explainer.explain(setup.frame, target="approved", search=search)
    minimal = Search(steps=6, picks=("nearest", "best"), n_best=1)
    again = explainer.explain(setup.frame, target="approved", search=minimal)
    nnce, near = nnce_distances(setup), again.nearest()
    assert value["nnce_distance"] == pytest.approx(np.mean(nnce))
    assert value["nearest_distance"] == pytest.approx(near.distance.mean())
    assert value["nearest_no_farther"] == pytest.approx(np.mean(near.distance <= nnce + 1e-9))
    assert value["explain_queries"] == explanation.n_queries
    assert value["minimal_queries"] == again.n_queries
    assert value["best_distance"] == pytest.approx(again.best().distance.mean())
    assert value["best_distance"] >= value["nearest_distance"]  # it keeps a margin
    assert value["recrossing_before"] == pytest.approx(np.mean(explanation.crossings > 0))


# --- e2 --------------------------------------------------------------------------------------


def test_picks_are_measured_as_plain_code_would(world, small):
    one, found, _ = world.measured("e2")
    _, setup, explainer = small
    explanation, nearest, best = (
        explainer.explain(
            setup.frame, target="approved", search=Search(steps=6, picks=picks, n_best=1)
        )
        for picks in (("first", "middle", "last"), "nearest", "best")
    )
    retrained = fits.retrained_models(one.pair, one.seed, 300, 3, 0.8)
    for name, pick in (("First", explanation.first()), ("Last", explanation.last())):
        ok = pick.where(pick.ok)
        assert found[name, "distance", ""].value == pytest.approx(ok.distance.mean())
        spread = ok.distance.std(ddof=1)
        assert found[name, "distance", ""].deviation == pytest.approx(spread, abs=1e-12)
        assert found[name, "valid_counterfactuals", ""].count == len(pick)
        lof = metrics.Plausibility(setup.schema, setup.target_rows).lof(ok.cells)
        assert found[name, "lof", ""].value == pytest.approx(lof.mean())
        stays = [
            np.mean(np.asarray(m.predict(setup.wide.frame(ok.cells))) == "approved")
            for m in retrained
        ]
        assert found[name, "model_robustness", ""].value == pytest.approx(np.mean(stays))
        assert found[name, "n_queries", ""].value == pytest.approx(explanation.n_queries * 100 / 4)
    for name, whole in (("nearest", nearest), ("best", best)):
        rows = getattr(whole, name)()
        ok = rows.where(rows.ok)
        paired = nnce_distances(setup)[ok.instance].mean()
        assert found[name, "paired_nnce", ""].value == pytest.approx(paired)
        assert found[name, "paired_distance", ""].value == pytest.approx(ok.distance.mean())
        assert found[name, "n_queries", ""].value == pytest.approx(whole.n_queries * 100 / 4)


# --- e3 --------------------------------------------------------------------------------------


def test_instances_have_their_own_constraints_and_harder_ones(world, small):
    one, setup = world.jobs("e3"), small[1]
    easy, hard = (e3.drawn(one, setup, hard=h) for h in (False, True))
    assert len(easy) == len(hard) == 4
    assert all(len(texts) == 2 for texts in easy)
    assert len(set(easy)) > 1
    assert e3.drawn(one, setup, hard=False) == easy
    for soft, firm in zip(easy, hard, strict=True):
        assert len(firm) == 3
        assert firm[2].endswith("== original")
        for a, b in zip(soft, firm, strict=False):
            assert (a == b) == ("age" not in a)
    low, high = np.quantile(setup.data.train["age"], [0.1, 0.9], method="nearest")
    assert e3.narrowed("18 <= age <= 80", setup, one.details) == f"{low:g} <= age <= {high:g}"
    assert e3.narrowed("months <= 72", setup, one.details) == "months <= 72"


def test_actionability_is_counted_exactly(world):
    _, found, record = world.measured("e3")
    _, others, other_record = world.measured("e3", "baselines")
    assert not record.not_run
    assert not other_record.not_run
    found = {**found, **others}
    for setting in ("easy", "hard"):
        feasible = 1 - found["", "infeasible", setting].value
        for method in e3.METHODS:
            share = found[method, "satisfied", setting]
            assert 0 <= share.value <= feasible + 1e-9
            assert share.count == 4
        assert found["LAPACE-exact", "feasible_points", setting].value == 1
    assert found["LAPACE-exact", "satisfied_path", "easy"].count >= 4


def test_paths_of_face_are_overwritten_one_by_one_or_projected(small):
    _, setup, _ = small
    cells = setup.train[:5]
    low, high = "income >= 2*amount", "amount >= 1000"  # the second undoes the first
    for texts in ((low, high), (high, low)):
        projected, alone = (
            e3.overwritten(setup, texts, cells, 0, projected=how) for how in (True, False)
        )
        assert projected.feasible.all()
        last = System.of(texts[1:], setup.wide)
        instance = np.repeat(setup.instances[:1], 5, axis=0)
        assert last.feasible(alone.cells[0], instance).all()


def test_infeasible_constraints_are_proved(small):
    _, setup, _ = small
    row = setup.instances[0]
    age = row[setup.schema.index("age")]
    assert e3.infeasible(setup, ("`age` == original", f"age >= {age + 1:g}"), row)
    assert e3.infeasible(setup, ("months <= 12", "months >= 36"), row)
    assert not e3.infeasible(setup, ("months <= 12",), row)


# --- e4 --------------------------------------------------------------------------------------


def test_points_of_paths_are_measured_as_plain_code_would(world, small):
    _, found, _ = world.measured("e4")
    _, setup, explainer = small
    explanation = explainer.explain(setup.frame, target="approved", search=Search(steps=6))
    number = int(explanation.prototype[0])
    own = explanation.prototype == number
    for step, tau in ((0, "0"), (3, "0.5"), (6, "1")):
        figure = found["", f"probability@{tau}", str(number)]
        assert figure.value == pytest.approx(explanation.probability[own, step].mean())
        assert figure.count == own.sum()
    assert {m.value for (_, metric, _), m in found.items() if metric == "valid@1"} == {1.0}
    ours = explanation.prototype >= 0
    figure = found["", "density@0.5", "all"]
    assert figure.value == pytest.approx(explanation.density[ours, 3].mean())
    assert figure.count == ours.sum()


# --- running ---------------------------------------------------------------------------------


def test_an_unfinished_job_is_finished_without_doing_anything_twice(world, monkeypatch):
    one, _, record = world.measured("e2", "baselines")
    ran = []

    def baseline(name, *_):
        ran.append(name)
        return [Measure("validity", 1.0, 6, method=name)]

    monkeypatch.setattr(e2, "_baseline", baseline)
    found = running.measured(one, world.store)
    assert ran == ["Absent"]
    assert not found.not_run
    assert list(map(str, found.measures[:-1])) == list(map(str, record.measures))
    assert len(found.measures) == len(record.measures) + 1


def test_a_method_that_fails_does_not_cost_the_others(world, monkeypatch):
    def baseline(name, *_):
        if name == "NNCE":
            raise ValueError("bad luck\nwith more lines")
        return [Measure("validity", 1.0, 6, method=name)]

    monkeypatch.setattr(e2, "_baseline", baseline)
    found = e2.measure(world.jobs("e2", "baselines"))
    assert found.not_run == {"NNCE": "ValueError: bad luck"}
    assert {m.method for m in found.measures} == {"", "DRCE", "Absent"}


def test_a_run_that_stops_goes_on_where_it_stopped(tmp_path):
    kept, said, ran = Store(tmp_path), [], []
    jobs = [job(seed=seed) for seed in (1, 2, 3, 4)]

    def measure(one, _):
        ran.append(one.seed)
        if one.seed == 3 and ran.count(3) == 1:
            raise KeyboardInterrupt
        if one.seed == 2 and ran.count(2) == 1:
            raise ValueError("bad luck")
        return Record([Measure("ks", 0.1, 1)])

    with pytest.raises(KeyboardInterrupt):
        run(jobs, kept, say=said.append, measure=measure)
    assert ran == [1, 2, 3]
    assert any("bad luck" in line for line in said)
    assert run(jobs, kept, say=said.append, measure=measure) == []
    assert ran == [1, 2, 3, 2, 3, 4]
    assert "1 of 4 jobs are already done." in said
    assert "[2/4] a-RF, default recipe, seed 2 ..." in said
    assert not list(tmp_path.rglob("*.tmp*"))


def test_a_killed_process_goes_on_where_it_stopped(tmp_path):
    """A real process, killed by a signal between two jobs; another one goes on."""
    code = """
import os, signal, sys
from pathlib import Path
from benchmarks.plan import Plan
from benchmarks.running import run
from benchmarks.store import Measure, Record, Store
def measure(job, store):
    if job.seed == 3 and sys.argv[3] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(sys.argv[4], "a") as file:
        file.write(f"{job.seed}\\n")
    return Record([Measure("validity", 1.0, 1, method="First")])
chosen = Plan.read(sys.argv[1]).jobs(experiments=["e2"], recipes=["default"])
run(chosen, Store(Path(sys.argv[2])), say=print, measure=measure)
"""
    text = LOANS.replace("seeds = [1]", "seeds = [1, 2, 3, 4]")
    (tmp_path / "plan.toml").write_text(text)
    ran = tmp_path / "ran.txt"
    command = [sys.executable, "-c", code, tmp_path / "plan.toml", tmp_path / "cache"]
    started = partial(subprocess.run, capture_output=True, text=True, cwd=ROOT, check=False)
    first = started([*command, "die", ran])
    assert first.returncode == -9, first.stderr
    assert ran.read_text().split() == ["1", "2"]
    second = started([*command, "go", ran])
    assert "2 of 4 jobs are already done." in second.stdout
    assert ran.read_text().split() == ["1", "2", "3", "4"]
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 4


def test_a_job_runs_in_a_process_of_its_own_and_finds_the_same(tmp_path, world):
    one, found, _ = world.measured("e2", "baselines")
    alone = replace(one, details=replace(one.details, methods=("NNCE",)))
    kept = Store(tmp_path)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        (line,) = pool.map(partial(run_job, store=kept), [alone])
    assert line.startswith("e2: loans-NN, baselines, seed 1: ")
    assert alone in kept
    again = {m.metric: m for m in kept.load(alone).measures if m.method == "NNCE"}
    for metric in ("distance", "lof", "model_robustness", "input_distance", "n_queries"):
        assert str(again[metric]) == str(found["NNCE", metric, ""])


def test_failed_jobs_are_named_and_not_kept(tmp_path):
    def measure(*_):
        raise ValueError("bad luck")

    assert run([job()], Store(tmp_path), say=lambda line: None, measure=measure) == [job()]
    assert job() not in Store(tmp_path)


# --- store -----------------------------------------------------------------------------------


def test_what_is_kept_comes_back(tmp_path):
    kept = Store(tmp_path)
    measures = [Measure("ks", np.float32(0.25), np.int64(4)), Measure("gap", math.nan, 0, "x")]
    assert kept.load(job()) is None
    kept.save(job(), Record(measures, seconds=1.5, versions="v"))
    found = kept.load(job())
    assert found.measures[0] == measures[0]
    assert math.isnan(found.measures[1].value)
    assert found.measures[1].label == "x"
    assert (found.seconds, found.versions) == (1.5, "v")
    assert job(seed=2) not in kept
    json.loads(kept.path(job()).read_text(), parse_constant=pytest.fail)  # no NaN in the file


@pytest.mark.parametrize("damage", ["", "{", '{"settings": {}}', "[]"])
def test_a_damaged_file_or_one_of_other_settings_is_run_again(tmp_path, damage):
    kept = Store(tmp_path)
    kept.save(job(), Record([]))
    assert job() in kept
    kept.path(job()).write_text(damage)
    assert job() not in kept


def test_the_tables_hold_every_line_once_with_its_settings(world):
    table = store.kept(world.out)
    names = ["experiment", "pair", "recipe", "seed", "method", "metric", "label", "settings"]
    assert tuple(table.columns) == store.COLUMNS
    assert not table.duplicated(names).any()
    run_ = [one for one in world.plan.jobs() if world.store.load(one)]
    assert set(table["settings"]) == {one.key for one in run_}
    assert len(table) == sum(len(world.store.load(one).measures) for one in run_)
    assert table["versions"].str.contains("torch").all()
    assert set(table["repeat"]) == set(table["seed"]) == {1}
    csv = pd.read_csv(world.out / "e1.csv")
    assert tuple(csv.columns) == store.COLUMNS[:-1]
    runs = pd.read_csv(world.out / "runs.csv", keep_default_na=False)
    assert set(runs["settings"]) == {one.key for one in run_}
    own = (runs["recipe"] == "baselines") & (runs["experiment"] == "e2")
    assert "Absent" in runs.loc[own, "not_run"].item()


# --- the command -----------------------------------------------------------------------------


def test_a_second_run_runs_nothing_and_writes_the_same(world, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.writing._draw", lambda *_: None)
    before = {path.name: path.read_bytes() for path in world.out.iterdir()}
    arguments = [*world.arguments, "--recipe", "default", "--experiment", "e1", "e3", "e4"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == "3 of 3 jobs are already done.\n"
    assert before == {path.name: path.read_bytes() for path in world.out.iterdir()}


def test_pages_of_a_run_have_tables_that_hold_together(world):
    pages = {path.stem: path.read_text(encoding="utf-8") for path in world.out.glob("*.md")}
    assert set(pages) == {"e1", "e2", "e3", "e4", "clusters", "findings", "targets"}
    for name, page in pages.items():
        assert "nan" not in page, name
        assert "loans-NN" in page
        for block in page.split("\n\n"):
            if block.startswith("|"):
                assert len({line.count(" | ") for line in block.splitlines()}) == 1
        for picture in (line for line in page.splitlines() if line.startswith("![")):
            path = world.out / picture.partition("](")[2].rstrip(")")
            assert path.read_bytes().startswith(b"\x89PNG")
    for title in ("Targets", "Utility", "Centroids and prototypes", "Paths", "Cost"):
        assert f"\n## {title}\n" in pages["e1"]
    for recipe in ("default", "paper"):
        assert f"| loans-NN | {recipe} |" in pages["e1"]
    assert "80.0, 90.0, 5.00" in pages["e1"]
    assert sum("![" in page for page in pages.values()) == 3


def test_the_illustration_is_drawn_and_measured(tmp_path, monkeypatch):
    """With an example that draws nothing: the real one has its own test."""
    (tmp_path / "example.py").write_text("""
from types import SimpleNamespace
ROWS = 50
class Explainer:
    prototypes_ = [SimpleNamespace(valid=True), SimpleNamespace(valid=False)]
    def explain(self, rows, target):
        return SimpleNamespace(status=["answered"] * len(rows))
def draw(rows, random_state):
    return SimpleNamespace(figure=None, explainer=Explainer(), denied=list(range(rows)))
def save(figure, where):
    where.parent.mkdir(parents=True)
    where.write_bytes(b"drawn")
""")
    monkeypatch.setattr("benchmarks.e6.EXAMPLE", tmp_path / "example.py")
    (one,) = Plan(protocol=Protocol(rows=30)).jobs(experiments=["e6"])
    kept = Store(tmp_path / "cache")
    found = {m.metric: (m.value, m.count) for m in running.measured(one, kept).measures}
    assert found == {"prototypes_valid": (0.5, 2), "validity": (1.0, 30)}
    assert kept.path(one).with_suffix(".png").read_bytes() == b"drawn"


# ------------------------------------------------------------------------------------------------
# Gradients of a pipeline's network


def test_a_pipeline_s_network_gives_its_own_probabilities():
    data = datasets.load("loans", rows=400)
    schema, rows = data.schema, data.train  # with missing values, which are imputed
    model = train("mlp", schema, rows, rows["housing"] == "own", max_iter=300)
    network = network_of(model, schema, rows)
    found = network(torch.as_tensor(encode(schema, schema.cells(data.test))))
    np.testing.assert_allclose(found.numpy(), model.predict_proba(data.test), atol=1e-6)


def test_the_page_on_speed_ends_with_the_committed_table():
    table = Path("benchmarks/results/speed.md").read_text(encoding="utf-8")
    assert Path("docs/how-to/speed.md").read_text(encoding="utf-8").endswith(f"{speed.MADE}{table}")
    assert table.startswith("Made by `python -m benchmarks.speed")
