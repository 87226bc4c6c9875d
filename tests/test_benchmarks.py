"""The benchmarks: what a plan says, what a job finds, what is kept, and how jobs are run."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from benchmarks import (
    ablation,
    drawing,
    e1,
    e2,
    e3,
    fits,
    plan,
    running,
    speed,
    store,
    tables,
    targets,
)
from benchmarks.__main__ import main
from benchmarks.figures import Figures
from benchmarks.networks import network_of
from benchmarks.plan import Job, Limits, Pair, PaperSettings, Plan, Protocol
from benchmarks.running import run, run_job
from benchmarks.store import Measure, Record, Store
from lapace import InputError, Schema, Search, datasets, metrics
from lapace.baselines.ppcef import encode
from lapace.classifiers import train
from lapace.constraints import System
from lapace.training import DEFAULT

ROOT = Path(__file__).resolve().parent.parent
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


def test_jobs_come_in_an_order_that_shows_every_pair_early():
    full = Plan.read(PAPER_TOML)
    jobs = full.jobs(experiments=["e1", "extra"])
    assert len(set(jobs)) == len(jobs) == 5 * len(full.pairs) + 5 * 8
    assert {j.pair.name for j in jobs[:8]} == {p.name for p in full.pairs if p.experiment == "e1"}
    assert [j.recipe for j in jobs] == ["default"] * 5 * len(full.pairs) + ["paper"] * 40
    assert not any(j.recipe == "paper" and j.pair.paper is None for j in jobs)
    part = full.jobs(experiments=["e1"], pairs=["wine-RF"], recipes=["default"], repeats=2)
    assert [j.seed for j in part] == list(full.protocol.seeds[:2])
    assert {j.pair.name for j in part} == {"wine-RF"}


def test_jobs_that_share_a_fit_are_side_by_side():
    found = Plan.read(PAPER_TOML).jobs(experiments=["e2", "e3", "e4"], pairs=["wine-RF"])
    first = [(job.experiment, job.recipe) for job in found if job.seed == 11]
    assert first == [
        ("e2", "default"), ("e3", "default"), ("e4", "default"),
        ("e2", "paper"), ("e3", "paper"), ("e4", "paper"),
        *[("e2", "baselines")] * 4, ("e3", "baselines"),
    ]  # fmt: skip


def test_readings_are_fits_of_their_own_on_other_splits():
    full = Plan.read(PAPER_TOML)
    found = full.jobs(experiments=["readings"], pairs=["wine-NN"])
    assert {job.seed for job in found} == {1, 2}
    assert not {job.seed for job in found} & set(full.protocol.seeds)
    names = [job.details.name for job in found if job.seed == 1]
    assert names == list(full.readings.options)
    recipes = [fits.recipe_of(job)[0] for job in found[: len(names)]]
    assert len(set(recipes)) == len(names)
    assert [r.kl_c for r in recipes[:3]] == ["batch", "running", "row"]
    plain = full.jobs(experiments=["e1"], pairs=["wine-NN"], recipes=["paper"])[0]
    assert recipes[0] == fits.recipe_of(plain)[0]  # the first is recipe="paper" as it is


def test_methods_added_later_leave_the_keys_of_the_others_alone():
    full = Plan.read(PAPER_TOML)
    first, later = full.jobs(experiments=["e2"], pairs=["wine-RF"], recipes=["baselines"])[:2]
    assert "again" not in first.settings["details"]
    assert later.settings["details"]["again"]
    assert first.key != later.key


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


def test_the_key_of_one_side_ignores_what_only_the_other_needs(world):
    made = world.plan

    def keys(**changes):
        other = replace(made, e2=replace(made.e2, **changes))
        return {(j.experiment, j.recipe): j.key for j in other.jobs(experiments=["e2", "e3"])}

    base = keys()
    dice = keys(methods=("NNCE",), max_perturbed={"NNCE": 1})
    assert dice["e2", "default"] == base["e2", "default"]
    assert dice["e2", "baselines"] != base["e2", "baselines"]
    confident = keys(confidences=(0.9,))
    assert confident["e2", "baselines"] == base["e2", "baselines"]
    assert confident["e2", "default"] != base["e2", "default"]
    both = keys(n_models=4)
    assert all(both["e2", side] != base["e2", side] for side in ("default", "paper", "baselines"))
    assert both["e3", "default"] == base["e3", "default"]


def test_only_the_experiment_that_changed_is_run_again(monkeypatch, world):
    before = {job: job.key for job in world.plan.jobs()}
    monkeypatch.setitem(plan.REVISIONS, "e3", 99)
    assert {j.experiment for j, key in before.items() if j.key != key} == {"e3"}


def test_another_lists_constraints_do_not_matter(world):
    lists = {**world.plan.e3.constraints, "wine": ("pH <= 3",)}
    other = replace(world.plan, e3=replace(world.plan.e3, constraints=lists))
    assert [j.key for j in world.plan.jobs()] == [j.key for j in other.jobs()]


def test_a_job_can_be_sent_to_another_process(world):
    for one in world.plan.jobs():
        again = pickle.loads(pickle.dumps(one))
        assert (again, again.key, hash(again)) == (one, one.key, hash(one))
    pickle.dumps((run_job, world.store))


def test_the_quick_version_is_another_plan():
    quick = Plan.read(PAPER_TOML, quick=True)
    assert quick.is_quick
    assert quick.names == ("wine-RF", "compas-NN")
    assert (quick.protocol.seeds, quick.protocol.steps) == ((11,), 20)
    assert (quick.limits.tries, quick.limits.steps) == (1, 300)
    assert (quick.e2.n_models, quick.e2.share) == (3, 0.8)
    keys = {j.key for j in Plan.read(PAPER_TOML).jobs()}
    assert not keys & {j.key for j in quick.jobs()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[pairs.a", "is not TOML"),
        ("[protocol]", "is not a plan: 'pairs'"),
        ("[pairs.a]\ndata = 'a'\nclassifier = 'svm'", "says 'svm', which is none of"),
        ("[pairs.a]\ndata = 'a'\nclassifier = 'mlp'\nbalance = true", r"\[pairs.a\].*'balance'"),
        ("[pairs]\n[protocol]\nseed = 1", r"\[protocol\].*'seed'"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(tmp_path, text, message):
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        Plan.read(tmp_path / "plan.toml")


def test_what_does_not_exist_is_refused():
    with pytest.raises(InputError, match=r"There is no plan 'nowhere\.toml'"):
        Plan.read("nowhere.toml")
    with pytest.raises(InputError, match=r"no pair 'wine-RV'.*Did you mean 'wine-RF'"):
        Plan.read(PAPER_TOML).jobs(pairs=["wine-RV"])
    with pytest.raises(InputError, match=r"no experiment 'e22'.*Did you mean 'e2'"):
        Plan().jobs(experiments=["e22"])


# --- tables ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_tables():
    return {
        name: [tables.load(Pair(name, name, "forest"), seed) for seed in (1, 1, 2)]
        for name in tables.TABLES
    }


@pytest.mark.parametrize("name", tables.TABLES)
def test_own_tables_are_split_by_the_seed_alone(name, own_tables):
    one, again, other = own_tables[name]
    pd.testing.assert_frame_equal(one.train, again.train)
    assert not one.train.equals(other.train)
    assert len(one.test) == math.ceil(0.2 * (len(one.train) + len(one.test)))
    assert one.target in set(one.train_labels)
    assert one.schema.names == tuple(one.train.columns)


def test_own_tables_are_what_they_are_for(own_tables):
    shapes = {name: found[0] for name, found in own_tables.items()}
    widths = [len(f.categories) for f in shapes["codes"].schema.features if not f.numeric]
    assert len(widths) == 6
    assert max(widths) >= 50
    assert len(shapes["cultivars"].train) < 200
    assert len(shapes["columns"].schema.features) == 80
    classes = {name: len(set(data.train_labels)) for name, data in shapes.items()}
    assert classes == {"cancer": 2, "cultivars": 3, "digits": 10, "codes": 2, "columns": 3}


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


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Everything but E5, E6 and the paper's recipe of E2, run in one process: fits are shared."""
    folder = tmp_path_factory.mktemp("benchmarks")
    (folder / "plan.toml").write_text(LOANS)
    out, cache = folder / "out", folder / "cache"
    arguments = [f"--plan={folder / 'plan.toml'}", f"--cache={cache}", f"--out={out}"]
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
    made = Plan.read(folder / "plan.toml")
    return World(folder=folder, out=out, arguments=arguments, plan=made, store=Store(cache))


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


def test_the_default_recipe_keeps_its_guarantees_even_here(world):
    _, found, _ = world.measured("e1")
    assert found["", "fit_tries", ""].value == 1
    assert found["", "centroids_after", ""].value == 1
    assert found["", "recrossing_after", ""].value == 0
    assert found["", "first_valid", ""].value == 1


def test_every_bound_reads_a_metric_that_is_measured(world):
    known = Figures(store.kept(world.out))
    for bound in targets.BOUNDS:
        assert bound.reached(known, ["loans-NN"]) is not None, bound.text


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


def test_re_crossing_is_seen_where_first_is_not_stable(small):
    """Paths made by hand: one that leaves the target after its first, one that does not."""
    one, setup, explainer = small
    search = Search(steps=6)
    explanation = explainer.explain(
        setup.wide.frame(setup.test[:40]), target="approved", search=search
    )
    valid = np.zeros_like(explanation.valid)
    valid[:, 2:] = 1
    valid[0, 4] = 0
    first = np.full(len(explanation.instance), 2)
    made = replace(explanation, valid=valid, picked={**explanation.picked, "first": first})
    share = 1 / len(first)
    found = {m.metric: m.value for m in e1._crossings(one, made)}
    assert found["recrossing_before"] == found["recrossing_after"] == share
    first[0] = 5
    found = {m.metric: m.value for m in e1._crossings(one, made)}
    assert (found["recrossing_before"], found["recrossing_after"]) == (share, 0)


def test_the_use_of_clusters_is_counted(small):
    _, setup, explainer = small
    x = torch.tensor(setup.schema.encode(setup.train), dtype=torch.float32)
    c = explainer.fitted_.decoder.model.clusters(x, torch.tensor(setup.codes)).tolist()
    shares = []
    for code in (0, 1):
        own = [p.number for p in explainer.prototypes_ if p.code == code]
        even = sum(setup.codes == code) / len(own)
        shares.append(min(c.count(k) for k in own) / even)
    found = e1._usage(explainer, setup)
    assert found["least_used"] == pytest.approx(min(shares))
    pi = explainer.fitted_.decoder.model.q_c(x, torch.tensor(setup.codes)).exp()
    soft, entropies = [], []
    for code in (0, 1):
        own = [p.number for p in explainer.prototypes_ if p.code == code]
        rows = pi[torch.tensor(setup.codes) == code][:, own]
        soft.append(rows.sum(dim=0).min().item() * len(own) / len(rows))
        spread = torch.distributions.Categorical(rows).entropy().mean().item()
        entropies.append(spread / math.log(len(own)))
    assert found["least_used_soft"] == pytest.approx(min(soft), rel=1e-4)
    assert found["entropy"] == pytest.approx(max(entropies), rel=1e-3)


def test_a_paper_fit_is_repeated_until_its_centroids_are_valid(monkeypatch):
    """Three fits at most; the first with valid centroids only, or the one with most of them."""

    class Fake:
        def __init__(self, model, *, random_state, **_):
            self.seed = random_state

        def fit(self, train):
            count = accepted[self.seed]
            self.prototypes_ = [
                SimpleNamespace(valid=k < count, valid_before=k < count) for k in range(4)
            ]
            queries = SimpleNamespace(total=self.seed + 7, report=7)
            self.report_ = SimpleNamespace(n_queries=queries)

    monkeypatch.setattr(fits, "Explainer", Fake)
    data = SimpleNamespace(schema=None, train=None)
    accepted = {1: 2, 1001: 3, 2001: 1}
    fit = fits.fit(job(recipe="paper"), data, None)
    assert (fit.explainer.seed, fit.tries, fit.n_queries) == (1001, 3, 1001)
    accepted = {1: 2, 1001: 4}
    fit = fits.fit(job(recipe="paper"), data, None)
    assert (fit.explainer.seed, fit.tries) == (1001, 2)
    fit = fits.fit(job(), data, None)  # the same for both recipes
    assert (fit.explainer.seed, fit.tries) == (1001, 2)


def test_the_papers_settings_reach_its_recipe():
    recipe, n_latent = fits.recipe_of(job(recipe="paper", limits=Limits(epochs=7, steps=30)))
    assert (recipe.name, recipe.batch, recipe.rate, recipe.weights) == (
        "paper", 128, 1e-3, (0.1, 0.1, 1.0),
    )  # fmt: skip
    assert (recipe.epochs, recipe.steps, recipe.patience, n_latent) == (7, 30, 0.2, 4)
    assert fits.recipe_of(job())[1] is None


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


def test_the_last_step_never_moves_and_confidence_is_kept(world):
    _, found, _ = world.measured("e2")
    for metric in ("input_set_distance", "input_max_set_distance"):
        assert found["Last", metric, ""].value == 0
    assert found["First", "input_max_set_distance", ""].value > 0
    confident = found["First@0.6", "model_robustness", ""].value
    assert confident >= found["First", "model_robustness", ""].value
    assert ("First@0.6", "isolation", "") not in found
    best, nearest = (found[name, "model_robustness", ""].value for name in ("best", "nearest"))
    assert best >= nearest
    assert found["best", "distance", ""].value >= found["nearest", "distance", ""].value
    assert found["best", "n_counterfactuals", ""].value == 1


def test_perturbed_instances_whose_label_flips_are_left_out_and_counted(world, small):
    one, found, _ = world.measured("e2")
    judge, setup = e2._Judge(one, one.details, fits.setup_of(one)), small[1]
    moved = judge.perturbed(4)
    predicted = np.asarray(setup.model.predict(moved.frame)).reshape(2, 4)
    assert (moved.flipped == (predicted == "approved")).all()
    some = judge.perturbed(2)  # fewer instances are moved the same way
    assert some.frame.reset_index(drop=True).equals(
        moved.frame.iloc[[0, 1, 4, 5]].reset_index(drop=True)
    )
    flipped = found["First", "input_flipped", ""]
    assert (flipped.value, flipped.count) == (moved.flipped.sum(), 8)
    assert found["First", "input_set_distance", ""].count <= 8 - flipped.value


def test_baselines_are_measured_on_as_many_instances_as_the_plan_says(world, small):
    _, found, _ = world.measured("e2", "baselines")
    assert found["NNCE", "validity", ""].count == 4
    assert found["DRCE", "validity", ""].count == 3
    assert found["DRCE", "input_instances", ""].value == 2
    assert found["DRCE", "n_counterfactuals", ""].value <= 3
    assert found["NNCE", "copies", ""].value == 1
    nnce = nnce_distances(small[1]).mean()
    assert found["NNCE", "distance", ""].value == pytest.approx(nnce)
    assert found["NNCE", "n_queries", ""].value > 0


def test_queries_are_the_rows_the_model_predicts(small):
    _, setup, _ = small
    model, count = e2._counted(setup.model)
    model.predict(setup.frame)
    model.predict_proba(setup.frame.head(2))
    assert count.rows == 6
    assert (model.predict(setup.frame) == setup.model.predict(setup.frame)).all()


def test_both_sides_have_the_same_instances(world):
    _, ours, _ = world.measured("e2")
    _, theirs, _ = world.measured("e2", "baselines")
    assert ours["", "instances", ""].value == theirs["", "instances", ""].value == 4
    # NNCE as a baseline and as what nearest is paired with are one and the same.
    assert ours["nearest", "paired_nnce", ""].count == 4
    nnce = theirs["NNCE", "distance", ""].value
    assert ours["nearest", "paired_nnce", ""].value == pytest.approx(nnce)


def test_the_sweep_names_the_number_of_clusters(world):
    one, found, _ = world.measured("clusters")
    assert {label for _, _, label in found} == {"2"}
    assert found["Last", "n_counterfactuals", "2"].value <= 2
    assert one.protocol.n_prototypes == 2


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


def test_paths_of_face_are_projected_and_predicted_again(small):
    _, setup, _ = small
    texts, cells = ("income >= 500", "months <= 12"), setup.train[:5]
    points = e3.overwritten(setup, texts, cells, 0, projected=True)
    system, instance = System.of(texts, setup.wide), np.repeat(setup.instances[:1], 5, axis=0)
    moved = system.project(cells, instance).cells
    assert system.feasible(moved, instance).all()
    predicted = np.asarray(setup.model.predict(setup.wide.frame(moved))) == "approved"
    assert points.valid[0].tolist() == points.ok[0].tolist() == predicted.tolist()


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


def test_methods_that_cannot_be_run_here_leave_the_job_unfinished(world):
    one, found, record = world.measured("e2", "baselines")
    assert list(record.not_run) == ["Absent"]
    assert "Absent" in record.not_run["Absent"]
    assert one not in world.store
    assert {name for name, _, _ in found} == {"", "NNCE", "DRCE"}
    others = ["e1", "e3", "e4", "clusters"]
    for other in world.plan.jobs(experiments=others, recipes=["default", "baselines"]):
        assert other in world.store


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


def test_run_job_runs_once_and_adds_up_time(tmp_path):
    kept, ran = Store(tmp_path), []

    def measure(one, _):
        ran.append(one)
        not_run = {"DiCE": "needs dice-ml"} if len(ran) == 1 else {}
        return Record([Measure("a", 1.0, 1)], not_run)

    assert "not run: DiCE, needs dice-ml" in run_job(job(), kept, measure=measure)
    assert job() not in kept
    assert kept.load(job()).not_run == {"DiCE": "needs dice-ml"}
    seconds = kept.load(job()).seconds
    assert "not run" not in run_job(job(), kept, measure=measure)
    assert kept.load(job()).seconds > seconds
    assert run_job(job(), kept, measure=measure) == "a-RF, default recipe, seed 1: already done"
    assert len(ran) == 2
    with pytest.raises(ZeroDivisionError):
        run_job(job(seed=9), kept, measure=lambda *_: 1 / 0)
    assert job(seed=9) not in kept


def test_failed_jobs_are_named_and_not_kept(tmp_path):
    def measure(*_):
        raise ValueError("bad luck")

    assert run([job()], Store(tmp_path), say=lambda line: None, measure=measure) == [job()]
    assert job() not in Store(tmp_path)


def test_time_left_is_estimated_by_the_most_similar_jobs(tmp_path):
    kept = Store(tmp_path)
    other = job(pair=Pair("b-RF", "b", "forest", paper=job().pair.paper))
    for one, seconds in ((job(), 10.0), (other, 30.0)):
        kept.save(one, Record([], seconds=seconds))
    known = [job(), other]
    assert running.time_left(known, [job(seed=2)], kept) == 10
    assert running.time_left(known, [replace(other, seed=2), job(seed=2)], kept) == 40
    third = job(pair=Pair("c-RF", "c", "forest"))
    assert running.time_left(known, [third], kept) == 20  # the recipe's mean
    assert running.time_left(known, [job(recipe="paper")], kept) == 20  # any job's mean
    assert running.time_left([], [job()], kept) == 0


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


def test_results_of_two_machines_add_up_and_other_settings_are_dropped(tmp_path, world):
    jobs = world.plan.jobs()
    one, other = world.jobs("e2"), world.jobs("e2", "baselines")
    setup, elsewhere, out = Store(tmp_path / "a"), Store(tmp_path / "b"), tmp_path / "out"
    setup.save(one, Record([Measure("lof", 1.0, 5, method="First")], versions="v1"))
    elsewhere.save(other, Record([Measure("lof", 2.0, 5, method="NNCE")], versions="v2"))
    store.keep(out, jobs, setup)
    table = store.keep(out, jobs, elsewhere)
    assert dict(zip(table["method"], table["mean"], strict=True)) == {"First": 1.0, "NNCE": 2.0}
    assert table["versions"].tolist() == ["v1", "v2"]
    setup.save(one, Record([Measure("lof", 1.5, 5, method="First")], versions="v3"))
    table = store.keep(out, jobs, setup)
    assert dict(zip(table["method"], table["mean"], strict=True)) == {"First": 1.5, "NNCE": 2.0}
    changed = replace(world.plan, e2=replace(world.plan.e2, confidences=(0.9,)))
    table = store.keep(out, changed.jobs(), Store(tmp_path / "nothing"))
    assert set(table["method"]) == {"NNCE"}  # First had another confidence required


def test_no_nan_reaches_a_file(world):
    for path in world.store.folder.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)
    assert math.isnan(world.measured("e2")[1]["nearest", "diversity", ""].value)


# --- the command -----------------------------------------------------------------------------


def test_a_second_run_runs_nothing_and_writes_the_same(world, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.writing._draw", lambda *_: None)
    before = {path.name: path.read_bytes() for path in world.out.iterdir()}
    arguments = [*world.arguments, "--recipe", "default", "--experiment", "e1", "e3", "e4"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == "3 of 3 jobs are already done.\n"
    assert before == {path.name: path.read_bytes() for path in world.out.iterdir()}


def test_a_mistake_on_the_command_line_is_a_sentence(world, capsys):
    assert main([*world.arguments, "--pair", "loans-NM"]) == 2
    assert "Did you mean 'loans-NN'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--experiment", "e9"])


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


def test_the_ablations_variants_change_what_exists():
    for name, change in ablation.VARIANTS.items():
        if isinstance(change, dict):
            replace(DEFAULT, **change)
        else:
            module, attribute, value = change
            assert getattr(module, attribute) is not value, name


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


def test_steps_that_are_not_affine_are_refused():
    rows = np.random.default_rng(0).normal(size=(60, 2))
    steps = FunctionTransformer(np.square), MLPClassifier((4,), max_iter=1000, tol=1e9)
    model = make_pipeline(*steps).fit(rows, rows[:, 0] > 0)
    with pytest.raises(ValueError, match="not affine"):
        network_of(model, Schema.infer(rows), rows)


def test_the_page_on_speed_ends_with_the_committed_table():
    table = Path("benchmarks/results/speed.md").read_text(encoding="utf-8")
    assert Path("docs/how-to/speed.md").read_text(encoding="utf-8").endswith(f"{speed.MADE}{table}")
    assert table.startswith("Made by `python -m benchmarks.speed")


def test_a_line_on_speed_says_whether_its_target_is_met():
    assert speed.Line("seconds", 2.0, 3.0).text == "| seconds | 2 | ≤ 3 | yes |"
    assert speed.Line("share", 0.9, -0.97).text == "| share | 0.9 | ≥ 0.97 | no |"
    assert speed.Line("rows", 12_345.0).text == "| rows | 1.23e+04 |  |  |"


def test_many_instances_of_a_linear_classifier_on_arrays_are_explained(monkeypatch):
    """The part for a GPU, small and on whatever there is."""
    monkeypatch.setattr(speed, "DEFAULT", replace(speed.DEFAULT, steps=200, hidden=64))
    chosen = SimpleNamespace(largest=400)
    lines = list(speed.gpu(chosen))
    assert [line.value > 0 for line in lines] == [True, True]
    assert "400 instances" in lines[0].what
