"""The benchmarks: what a plan says, what a job finds, what is kept, and how jobs are run."""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.cluster import KMeans

from benchmarks import drawing, e1, e3, fits, jobs, plan, provenance, speed
from benchmarks.__main__ import main
from benchmarks.baselines.ppcef import encode, network_of
from benchmarks.jobs import Measure, Record, Store, run
from benchmarks.plan import Job, Limits, Pair, PaperSettings, Plan, Protocol
from benchmarks.readings import combinations, train
from lapace import InputError, Search, datasets, metrics
from lapace.constraints import System
from lapace.datasets import train as train_classifier
from lapace.explainer.fit import standardised
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

    [baselines]
    NNCE = {}
    DRCE = { instances = 3, perturbed = 2, options = { count = 3 } }
    Absent = {}

    [e3]
    n_constraints = 2

    [clusters]
    n_prototypes = [2]

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
    assert [len(full.constraints[name]) for name in ("heloc", "wine")] == [18, 10]
    assert full.sweep.n_prototypes == (2, 12)


def test_the_papers_plan_has_every_experiment():
    full = Plan.read(PAPER_TOML)
    every = full.jobs()
    assert len({job.key for job in every}) == len(every)
    count = {name: sum(job.experiment == name for job in every) for name in plan.EXPERIMENTS}
    extras = sum(b.instances is None for b in full.baselines)
    assert count == {
        "grid": 8 * 5,
        "e1": 8 * 5 * 4,
        "extra": 6,
        "e2": 8 * 5 * (4 + len(full.baselines)) + 3 * (1 + extras),
        "e3": 4 * 3 * 4,  # the paper's two tables; not with a Gumbel draw
        "e4": 8 * 5 * 4,
        "clusters": 8 * 2 * 2,
        "tuning": 8 * len(full.tuning),
        "privacy": 8 * 5 * 5,
    }


def test_readings_trained_side_by_side_are_trained_as_if_alone():
    full = Plan.read(PAPER_TOML)
    named = combinations(full.readings)
    assert len(named) == 16
    tiny = Protocol(seeds=(1,), n_prototypes=2, instances=5, rows=120)
    pair = replace(
        full["wine-RF"], data="cultivars", paper=PaperSettings(3, 32, 1e-3, (0.1, 0.1, 1.0))
    )
    details = replace(full.readings, max_steps=6)
    job = Job(pair, "paper", 1, tiny, Limits(), "grid", details)
    setup = fits.paper_split(fits.setup_of(job), 1)
    schema = standardised(setup.schema, setup.train)
    chosen = [list(named.values())[k] for k in (0, 5)]
    both = train(job, setup, chosen, [schema] * 2)
    for own, model in zip(chosen, both, strict=True):
        (alone,) = train(job, setup, [own], [schema])
        for one, other in zip(alone.parameters(), model.parameters(), strict=True):
            assert torch.allclose(one, other, atol=1e-5)
    pairs = zip(both[0].parameters(), both[1].parameters(), strict=True)
    assert not all(torch.equal(one, other) for one, other in pairs)


def test_code_is_all_that_a_function_uses_without_its_words(tmp_path, monkeypatch):
    of_e3 = set(provenance.names_of("benchmarks.e3.measure"))
    used = {("lapace.explainer.correction", "ETA"), ("lapace.model", "LGMVAE")}
    assert used | {("benchmarks.e3", "_swept")} <= of_e3
    assert not any(module == "benchmarks.pages" for module, _ in of_e3)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(provenance, "ROOTS", ("coded",))

    def code(**changes):
        for name in ("_file", "_source", "_tree", "_statements", "_imported", "_used", "_meaning"):
            getattr(provenance, name).cache_clear()
        (tmp_path / "coded").mkdir(exist_ok=True)
        (tmp_path / "coded" / "__init__.py").write_text("")
        for name, text in {**CODED, **changes}.items():
            (tmp_path / "coded" / f"{name}.py").write_text(text)
        return provenance.hashed("coded.main.measure")

    plain = code()
    words = CODED["tool"].replace("One.", "Two.").replace('"no")', '"not so")  # why')
    others = CODED["tool"].replace("other = 1", "other = 2")
    assert plain == code(tool=words) == code(tool=others) == code(unused="x = 2\n")
    for module, old, new in (
        ("tool", "LIMIT = 3", "LIMIT = 4"),  # a constant of a function that is used
        ("tool", "set_up(1)", "set_up(2)"),  # a statement that runs when the module is loaded
        ("lazy", "return 5", "return 6"),  # imported inside a function
        ("methods", "return 7", "return 8"),  # of a module handed on as a value
        ("main", "measure(", "measure(*, fast=True"),
    ):
        assert code(**{module: CODED[module].replace(old, new)}) != plain


CODED = {
    "main": "from coded import methods, tool\n\n\ndef measure():\n"
    "    return tool.used() + getattr(methods, 'a')()\n",
    "tool": '"""One."""\nLIMIT = 3\nother = 1\nset_up(1)\n\n\ndef used():\n'
    "    from coded.lazy import lazy\n    if LIMIT:\n"
    '        raise E("no")\n    return lazy()\n',
    "lazy": "def lazy():\n    return 5\n",
    "methods": "def a():\n    return 7\n",
    "unused": "x = 1\n",
}


def test_baselines_do_not_depend_on_the_search_that_only_picks_use():
    def modules(start):
        return {module for module, _ in provenance.names_of(f"benchmarks.{start}")}

    search = {"lapace.explainer.search", "lapace.explainer.minimal", "lapace.paths.tracing"}
    for start in ("e2 baselines", "tuning", "grid"):
        assert not modules(provenance.STARTS[start]) & search
    assert search <= modules(provenance.STARTS["e2"])
    of_baselines = provenance.names_of("benchmarks.e2._of_baseline")
    wanted = [("benchmarks.baselines.face", "FACE"), ("lapace.schema.distance", "kneighbors")]
    assert set(wanted) <= set(of_baselines)


def test_the_key_holds_all_a_job_depends_on_and_nothing_else():
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
        job(protocol=Protocol(seeds=(1,))),
        job(pair=replace(base.pair, reported=plan.Reported(1.0, 2.0, 3.0))),
        job(pair=replace(base.pair, paper=None)),
    ]
    assert {other.key for other in same} == {base.key}


def test_what_does_not_exist_is_refused():
    with pytest.raises(InputError, match=r"There is no plan 'nowhere\.toml'"):
        Plan.read("nowhere.toml")
    with pytest.raises(InputError, match=r"no pair 'wine-RV'.*Did you mean 'wine-RF'"):
        Plan.read(PAPER_TOML).jobs(pairs=["wine-RV"])
    with pytest.raises(InputError, match=r"no experiment 'e22'.*Did you mean 'e2'"):
        Plan().jobs(experiments=["e22"])


# --- one small run of everything -------------------------------------------------------------


class World(SimpleNamespace):
    """A small plan, run by the command."""

    def jobs(self, experiment, recipe="default", place=0):
        return self.plan.jobs(experiments=[experiment], recipes=[recipe])[place]

    def measured(self, experiment, recipe="default"):
        """A job, and its figures by method, metric and label."""
        one = self.jobs(experiment, recipe)
        measures = self.store.load(one).measures
        return one, {(m.method, m.metric, m.label): m for m in measures}


def sketched(figure, path, **_):
    """In place of the picture, which takes seconds and is tested for itself."""
    plt.close(figure)
    path.write_bytes(b"\x89PNG")


@once
def everything():
    """Runs all but E5 and the paper's recipe of E2, and returns the folder of the results."""
    folder = Path(mkdtemp(dir=os.environ.get("LAPACE_WORLDS")))
    (folder / "plan.toml").write_text(LOANS)
    arguments = arguments_of(folder)
    experiments = ["--experiment", "e2", "e3", "e4", "clusters"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fits, "DEFAULT", SHORT)
        patch.setattr("lapace.training.steps_for", lambda *_: 200)
        patch.setattr("benchmarks.__main__.write_all", lambda *_, **__: None)  # rendered below
        assert main([*arguments, "--experiment", "e1", "--recipe", "default", "paper"]) == 0
        # One baseline is absent: its job fails and is not kept, the others are.
        assert main([*arguments, *experiments, "--recipe", "default", "baselines"]) == 1
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
    _, found = world.measured("e1", recipe)
    measures = {(metric, label): m for (_, metric, label), m in found.items()}
    shares = [
        "accuracy", "tstr_real", "tstr_raw", "tstr_raw_balanced", "agreement",
        "centroids_before", "centroids_after", "first_valid", "middle_valid", "last_valid",
        "recrossing_before", "recrossing_after",
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
    assert measures["nnce_lof", ""].value > 0
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
    _, found = world.measured("e1")
    value = {metric: m.value for (_, metric, label), m in found.items() if not label}
    search = Search(steps=6, picks=("first", "middle", "last"))
    explanation = explainer.explain(setup.frame, target="approved", search=search)
    assert value["explain_queries"] == explanation.n_queries
    assert value["recrossing_before"] == pytest.approx(np.mean(explanation.crossings > 0))
    assert value["last_changed"] == pytest.approx(explanation.last().changed.mean())


# --- e2 --------------------------------------------------------------------------------------


def test_picks_are_measured_as_plain_code_would(world, small):
    one, found = world.measured("e2")
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
    easy, medium = (e3.drawn(one, setup, setting) for setting in ("easy", "medium"))
    assert len(easy) == len(medium) == 4
    assert all(len(texts) == 2 for texts in easy)
    assert len(set(easy)) > 1
    assert e3.drawn(one, setup, "easy") == easy
    low, high = np.quantile(setup.data.train["age"], [0.1, 0.9])
    for soft, firm, row in zip(easy, medium, setup.instances, strict=True):
        for a, b in zip(soft, firm, strict=True):
            assert (a == b) == ("age" not in a)
        # Ranges are around the instance's own value, and never a single value.
        age, most = row[setup.schema.index("age")], max(1, 0.05 * (high - low))
        text = e3.around("18 <= age <= 80", setup, row, 0.05)
        assert text == f"{age - most:g} <= age <= {age + most:g}"
        assert f"{age - 1:g} <= age <= {age + 1:g}" == e3.around("18 <= age <= 80", setup, row, 0)
    assert not any(e3.infeasible(setup, *own) for own in zip(medium, setup.instances, strict=True))


def test_actionability_is_counted_exactly(world):
    found = {**world.measured("e3")[1], **world.measured("e3", "baselines")[1]}
    for setting in ("easy", "medium"):
        feasible = 1 - found["", "infeasible", setting].value
        for method in (*e3.FACE, "LAPACE-exact"):
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
    _, found = world.measured("e4")
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
    rows, target = explanation.cells[ours, 3], np.full(ours.sum(), setup.target)
    density = explainer.fitted_.decoder.density(explanation.schema, rows, target)
    assert figure.value == pytest.approx(density.mean())
    assert figure.count == ours.sum()


# --- running ---------------------------------------------------------------------------------


def test_a_run_that_stops_goes_on_where_it_stopped(tmp_path):
    kept, said, ran = Store(tmp_path), [], []
    wanted = [job(seed=seed) for seed in (1, 2, 3, 4)]

    def measure(one):
        ran.append(one.seed)
        if one.seed == 3 and ran.count(3) == 1:
            raise KeyboardInterrupt
        if one.seed == 2 and ran.count(2) == 1:
            raise ValueError("bad luck")
        return [Measure("ks", 0.1, 1)]

    with pytest.raises(KeyboardInterrupt):
        run(wanted, kept, say=said.append, measure=measure)
    assert ran == [1, 2, 3]
    assert any("bad luck" in line for line in said)
    assert run(wanted, kept, say=said.append, measure=measure) == []
    assert ran == [1, 2, 3, 2, 3, 4]
    assert "1 of 4 jobs are already done." in said
    assert "[2/4] a-RF, default recipe, seed 2: 0 s" in said
    assert not list(tmp_path.rglob("*.tmp*"))


def test_jobs_run_in_other_processes_and_find_the_same(tmp_path, world):
    one, found = world.measured("e2", "baselines")
    absent, said = world.jobs("e2", "baselines", 2), []
    failed = run([one, absent], Store(tmp_path), say=said.append, workers=2)
    assert failed == [absent]
    assert "has no attribute 'Absent'" in "".join(said)
    assert absent not in Store(tmp_path)
    again = {m.metric: m for m in Store(tmp_path).load(one).measures}
    for metric in ("distance", "lof", "model_robustness", "input_distance", "n_queries"):
        assert str(again[metric]) == str(found["NNCE", metric, ""])


# --- store -----------------------------------------------------------------------------------


def test_what_is_kept_comes_back(tmp_path):
    kept = Store(tmp_path)
    measures = [Measure("ks", np.float32(0.25), np.int64(4)), Measure("gap", math.nan, 0, "x")]
    assert kept.load(job()) is None
    origin = provenance.Origin.here("e1")
    kept.save(job(), Record(measures, seconds=1.5, origin=origin))
    found = kept.load(job())
    assert found.measures[0] == measures[0]
    assert math.isnan(found.measures[1].value)
    assert found.measures[1].label == "x"
    assert (found.seconds, found.origin) == (1.5, origin)
    assert job() in kept
    kept.save(job(), Record(measures, origin=replace(origin, code="older")))
    assert job() not in kept  # its code has changed: it is run again
    assert job(seed=2) not in kept
    json.loads(kept.path(job()).read_text(), parse_constant=pytest.fail)  # no NaN in the file


@pytest.mark.parametrize("damage", ["", "{", '{"settings": {}}', "[]"])
def test_a_damaged_file_or_one_of_other_settings_is_run_again(tmp_path, damage):
    kept = Store(tmp_path)
    kept.save(job(), Record([], origin=provenance.Origin.here("e1")))
    assert job() in kept
    kept.path(job()).write_text(damage)
    assert job() not in kept


def test_the_tables_hold_every_line_once_with_its_settings(world):
    table = jobs.kept(world.out)
    names = ["experiment", "pair", "recipe", "seed", "method", "metric", "label", "settings"]
    assert tuple(table.columns) == jobs.COLUMNS
    assert not table.duplicated(names).any()
    run_ = [one for one in world.plan.jobs() if world.store.load(one)]
    assert set(table["settings"]) == {one.key for one in run_}
    assert len(table) == sum(len(world.store.load(one).measures) for one in run_)
    assert jobs.kept_runs(world.out)["environment"].str.contains("torch").all()
    assert set(table["repeat"]) == set(table["seed"]) == {1}
    csv = pd.read_csv(world.out / "e1.csv")
    assert tuple(csv.columns) == jobs.COLUMNS
    runs = pd.read_csv(world.out / "runs.csv", keep_default_na=False)
    assert set(runs["settings"]) == {one.key for one in run_}


# --- the command -----------------------------------------------------------------------------


def test_a_second_run_runs_nothing_and_writes_the_same(world, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.rendering._draw", lambda *_: None)
    before = {path.name: path.read_bytes() for path in world.out.iterdir()}
    arguments = [*world.arguments, "--recipe", "default", "--experiment", "e1", "e3", "e4"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("3 of 3 jobs are already done.\n")
    assert before == {path.name: path.read_bytes() for path in world.out.iterdir()}


def test_pages_of_a_run_have_tables_that_hold_together(world):
    pages = {path.stem: path.read_text(encoding="utf-8") for path in world.out.glob("*.md")}
    assert set(pages) == {"e1", "e2", "e3", "e4", "clusters", "findings"}
    for name, page in pages.items():
        assert "nan" not in page, name
        assert "loans-NN" in page
        for block in page.split("\n\n"):
            if block.startswith("|"):
                assert len({line.count(" | ") for line in block.splitlines()}) == 1
        for picture in (line for line in page.splitlines() if line.startswith("![")):
            path = world.out / picture.partition("](")[2].rstrip(")")
            assert path.read_bytes().startswith(b"\x89PNG")
    for title in ("Utility", "Centroids and prototypes", "Paths", "Cost"):
        assert f"\n## {title}\n" in pages["e1"]
    for recipe in ("default", "paper"):
        assert f"| loans-NN | {recipe} |" in pages["e1"]
    assert "80.0, 90.0, 5.00" in pages["e1"]
    assert sum("![" in page for page in pages.values()) == 2


# ------------------------------------------------------------------------------------------------
# Gradients of a pipeline's network


@pytest.mark.parametrize("labels", [2, 3])
def test_a_pipeline_s_network_gives_its_own_probabilities(labels):
    data = datasets.load("loans", rows=400)
    schema, rows = data.schema, data.train  # with missing values, which are imputed
    own = rows["housing"] == "own"
    wanted = own if labels == 2 else own + 1 * (rows["age"] > 40)
    model = train_classifier("mlp", schema, rows, wanted, max_iter=300)
    network = network_of(model, schema, rows)
    found = network(torch.as_tensor(encode(schema, schema.cells(data.test))))
    np.testing.assert_allclose(found.numpy(), model.predict_proba(data.test), atol=1e-6)


def test_the_page_on_speed_ends_with_the_committed_table():
    table = Path("benchmarks/results/speed.md").read_text(encoding="utf-8")
    assert Path("docs/how-to/speed.md").read_text(encoding="utf-8").endswith(f"{speed.MADE}{table}")
    assert table.startswith("Made by `python -m benchmarks.speed")
