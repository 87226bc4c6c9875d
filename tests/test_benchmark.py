"""The benchmark: what a plan says, what a job finds, what is kept, and what is written."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.cluster import KMeans

from benchmarks import (
    Job,
    Limits,
    Measure,
    Pair,
    Plan,
    Protocol,
    Record,
    Store,
    e1,
    figures,
    fits,
    main,
    plan,
    running,
    store,
    subjects,
    summary,
    writing,
)
from benchmarks.plan import Tuned
from lapace import InputError, Search, metrics

ROOT = Path(__file__).resolve().parent.parent
PAPER_TOML = ROOT / "benchmarks" / "paper.toml"

LOANS = """
    [protocol]
    seeds = [1, 2]

    [quick]
    pairs = ["loans-RF"]
    rows = 300
    instances = 10
    trees = 10
    tries = 2
    epochs = 2

    [pairs.loans-RF]
    data = "loans"
    classifier = "forest"
    paper = { latent = 4, batch = 128, rate = 1e-3, weights = [0.1, 0.1, 1.0] }
    published = { accuracy = 80.0, real = 90.0, synthetic = 85.0 }
"""


def job(**changes) -> Job:
    tuned = Tuned(4, 128, 1e-3, (0.1, 0.1, 1.0))
    start = Job(Pair("a-RF", "a", "forest", paper=tuned), "default", 1, Protocol(), Limits())
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
    assert full["wine-NN"].paper == Tuned(8, 16, 3e-4, (0.5, 0.3, 1.0))
    gaps = [2.90, 1.83, 2.28, 1.67, 12.69, 12.97, 5.76, 8.26]
    assert [round(pair.published.gap, 2) for pair in paper] == gaps
    assert len(full.protocol.seeds) == 5
    assert "adult-full-BT" in full.names


def test_jobs_come_in_an_order_that_shows_every_pair_early():
    full = Plan.read(PAPER_TOML)
    jobs = full.jobs(experiments=["e1", "extra"])
    assert len(set(jobs)) == len(jobs) == 5 * len(full.pairs) + 2 * 8
    assert {j.pair.name for j in jobs[:8]} == {p.name for p in full.pairs if p.experiment == "e1"}
    assert [j.recipe for j in jobs] == ["default"] * 5 * len(full.pairs) + ["paper"] * 16
    assert not any(j.recipe == "paper" and j.pair.paper is None for j in jobs)
    part = full.jobs(experiments=["e1"], pairs=["wine-RF"], recipes=["default"], repeats=2)
    assert [j.seed for j in part] == list(full.protocol.seeds[:2])
    assert {j.pair.name for j in part} == {"wine-RF"}


def test_the_key_holds_all_a_job_depends_on_and_nothing_else(monkeypatch):
    base = job()
    others = [
        job(seed=2),
        job(recipe="paper"),
        job(protocol=Protocol(instances=9)),
        job(protocol=Protocol(rows=9)),
        job(pair=replace(base.pair, balanced=True)),
        job(recipe="paper", limits=Limits(tries=9)),
        job(recipe="paper", pair=replace(base.pair, paper=Tuned(5, 128, 1e-3, (0.1, 0.1, 1.0)))),
    ]
    assert len({base.key, *(other.key for other in others)}) == len(others) + 1
    same = [
        job(limits=Limits(tries=9)),
        job(protocol=Protocol(seeds=(1,))),
        job(pair=replace(base.pair, published=plan.Published(1.0, 2.0, 3.0))),
        job(pair=replace(base.pair, paper=None)),
    ]
    assert {other.key for other in same} == {base.key}
    before = {base.key, *(other.key for other in others)}
    monkeypatch.setitem(plan.RECIPE_REVISION, "default", 99)
    assert job().key not in before


def test_the_quick_version_is_another_job():
    quick = Plan.read(PAPER_TOML, quick=True)
    assert quick.is_quick
    assert len(quick.pairs) == 2
    assert len(quick.protocol.seeds) == 1
    keys = {j.key for j in Plan.read(PAPER_TOML).jobs()}
    assert not keys & {j.key for j in quick.jobs()}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[pairs.a", "is not TOML"),
        ("[protocol]", "is not a plan: 'pairs'"),
        ("[pairs.a]\ndata = 'a'\nclassifier = 'svm'", "says 'svm', which is none of"),
        ("[pairs.a]\ndata = 'a'\nclassifier = 'mlp'\nbalance = true", r"\[pairs.a\].*'balance'"),
        ("[pairs]\n[protocol]\nseed = 1", r"\[protocol\].*'seed'"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(tmp_path, text, says):
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(InputError, match=says):
        Plan.read(tmp_path / "plan.toml")


def test_what_is_not_there_is_said():
    with pytest.raises(InputError, match=r"There is no plan 'nowhere\.toml'"):
        Plan.read("nowhere.toml")
    with pytest.raises(InputError, match=r"no pair 'wine-RV'.*Did you mean 'wine-RF'"):
        Plan.read(PAPER_TOML).jobs(pairs=["wine-RV"])


# --- subjects --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", subjects.OWN)
def test_own_tables_are_split_by_the_seed_alone(name):
    pair = Pair(name, name, "forest")
    one, again, other = (subjects.load(pair, seed) for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(one.train, again.train)
    assert not one.train.equals(other.train)
    assert len(one.test) == math.ceil(0.2 * (len(one.train) + len(one.test)))
    assert one.target in set(one.train_labels)
    assert one.schema.names == tuple(one.train.columns)


def test_own_tables_are_what_they_are_for():
    shapes = {name: subjects.load(Pair(name, name, "forest"), 1) for name in subjects.OWN}
    widths = [len(f.categories) for f in shapes["codes"].schema.features if not f.numeric]
    assert len(widths) == 6
    assert max(widths) >= 50
    assert len(shapes["cultivars"].train) < 200
    assert len(shapes["columns"].schema.features) == 80
    classes = {name: len(set(data.train_labels)) for name, data in shapes.items()}
    assert classes == {"cancer": 2, "cultivars": 3, "digits": 10, "codes": 2, "columns": 3}


# --- e1 --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """One small plan, run by the command with both recipes."""
    folder = tmp_path_factory.mktemp("benchmark")
    (folder / "plan.toml").write_text(LOANS)
    arguments = [f"--plan={folder / 'plan.toml'}", f"--cache={folder / 'cache'}", "--quick"]
    arguments += ["--experiment", "e1", "extra"]
    assert main(arguments) == 0
    jobs = Plan.read(folder / "plan.toml", quick=True).jobs(experiments=["e1", "extra"])
    return folder, arguments, jobs, Store(folder / "cache")


def read(folder):
    """The tidy table; a label may be empty, a value may be missing."""
    path = folder / "cache" / "quick" / "e1.csv"
    return pd.read_csv(path, keep_default_na=False, na_values={"mean": [""]})


def test_a_job_finds_every_figure_the_page_needs(quick):
    _, _, found, kept = quick
    for one in found:
        measures = {(m.metric, m.label): m for m in kept.load(one).measures}
        shares = [
            "accuracy", "tstr_real", "tstr_raw", "tstr_raw_balanced", "agreement", "ks",
            "centroids_before", "centroids_after", "first_valid", "middle_valid", "last_valid",
            "recrossing_before", "recrossing_after", "nearest_no_farther",
        ]  # fmt: skip
        for name in shares:
            assert 0 <= measures[name, ""].value <= 1, name
        if math.isnan(measures["tstr_verified", ""].value):
            # A fit this short may be one whose samples the classifier never accepts.
            assert one.recipe == "paper"
            names = ["raw"]
        else:
            names = ["raw", "verified"]
        for name in names:
            gap = measures["tstr_real", ""].value - measures[f"tstr_{name}", ""].value
            assert measures[f"gap_{name}", ""].value == pytest.approx(gap)
        by_label = [measures["agreement", label] for label in ("approved", "denied")]
        total = measures["agreement", ""]
        assert sum(m.count for m in by_label) == total.count == 300
        pooled = sum(m.value * m.count for m in by_label) / 300
        assert pooled == pytest.approx(total.value)
        assert measures["instances", ""].value == 10
        assert measures["nnce_distance", ""].value > 0
        assert measures["fit_asked", ""].value >= 300
        assert measures["fit_seconds", ""].value > measures["report_seconds", ""].value > 0


def test_the_default_recipe_keeps_its_promises_even_here(quick):
    _, _, found, kept = quick
    (one,) = (job for job in found if job.recipe == "default")
    measures = {m.metric: m for m in kept.load(one).measures if not m.label}
    assert measures["fit_tries"].value == 1
    assert measures["centroids_after"].value == 1
    assert measures["recrossing_after"].value == 0
    assert measures["first_valid"].value == 1


@pytest.fixture(scope="module")
def small():
    """A small fit, and what is known around it."""
    pair = Pair("loans-RF", "loans", "forest")
    one = Job(pair, "default", 3, Protocol(instances=8, trees=10, rows=300), Limits())
    given = subjects.subject(pair, one.seed, 300)
    explainer = fits.fit_of(one, given).explainer
    return one, given, explainer, fits.known_of(given, explainer)


def apart(schema, cells):
    """Mean distance over pairs."""
    pairs = [(a, b) for i, a in enumerate(cells) for b in cells[:i]]
    return np.mean([schema.distance(a[None], b[None])[0] for a, b in pairs])


def test_prototypes_are_measured_as_plain_code_would(small):
    one, given, explainer, known = small
    said = np.asarray(given.model.predict(given.data.train))
    wanted = known.schema.cells(given.data.train)[said == "approved"]
    target = explainer.classes_.index("approved")
    cells = np.stack([p.cells for p in explainer.prototypes_ if p.label == target and p.valid])
    found = {m.metric: m.value for m in e1._prototypes(one, explainer, known)}
    lof = metrics.Plausibility(known.schema, wanted).lof(cells)
    assert found["prototype_lof"] == pytest.approx(lof.mean())
    assert found["prototype_lof_most"] == pytest.approx(lof.max())
    means = KMeans(len(cells), n_init=3, random_state=one.seed).fit(known.schema.encode(wanted))
    centres = known.schema.decode(means.cluster_centers_)
    ratio = apart(known.schema, cells) / apart(known.schema, centres)
    assert found["diversity"] == pytest.approx(ratio)


def test_paths_are_measured_as_plain_code_would(small):
    one, given, explainer, known = small
    instances = known.test[known.test_codes != known.target][:8]
    answer = explainer.explain(known.wide.frame(instances), target="approved")
    found = {m.metric: m.value for m in e1._paths(one, given, explainer, known)}
    rows = known.wanted
    nnce = [min(known.schema.distance(rows, np.tile(p, (len(rows), 1)))) for p in instances]
    assert found["nnce_distance"] == pytest.approx(np.mean(nnce))
    assert found["nearest_distance"] == pytest.approx(answer.nearest().distance.mean())
    closer = np.mean(answer.nearest().distance <= np.array(nnce) + 1e-9)
    assert found["nearest_no_farther"] == pytest.approx(closer)
    assert found["explain_asked"] == answer.n_queries
    again = explainer.explain(
        known.wide.frame(instances), target="approved", search=Search(sparse=True)
    )
    assert found["sparse_distance"] == pytest.approx(again.sparse().distance.mean())
    assert found["sparse_asked"] == again.n_queries - answer.n_queries > 0
    assert found["recrossing_before"] == pytest.approx(np.mean(answer.crossings > 0))


def test_re_crossing_is_seen_where_first_is_not_stable(small):
    """Paths made by hand: one that leaves the target after its first, one that does not."""
    one, _, explainer, known = small
    answer = explainer.explain(known.wide.frame(known.test[:40]), target="approved")
    size = one.protocol.steps + 1
    valid = np.zeros_like(answer.valid)
    valid[:, 5:] = 1
    valid[0, 8] = 0
    first = np.full(len(answer.instance), 5)
    made = replace(answer, valid=valid, picked={**answer.picked, "first": first})
    found = {m.metric: m.value for m in e1._crossings(one, made)}
    assert found["recrossing_before"] == found["recrossing_after"] == 1 / len(answer.instance)
    first[0] = 9
    found = {m.metric: m.value for m in e1._crossings(one, made)}
    assert (found["recrossing_before"], found["recrossing_after"]) == (1 / len(answer.instance), 0)
    assert size < answer.valid.shape[1]


def test_the_least_used_cluster_is_counted(small):
    _, _, explainer, known = small
    x = torch.tensor(known.schema.encode(known.train), dtype=torch.float32)
    c = explainer.fitted_.decoder.model.clusters(x, torch.tensor(known.codes)).tolist()
    shares = []
    for label in (0, 1):
        own = [p.number for p in explainer.prototypes_ if p.label == label]
        even = sum(known.codes == label) / len(own)
        shares.append(min(c.count(k) for k in own) / even)
    assert e1._least_used(explainer, known) == pytest.approx(min(shares))


def test_a_paper_fit_is_repeated_until_its_centroids_pass(monkeypatch):
    """Three fits at most; the first that passes, or the one with most accepted centroids."""

    class Fake:
        def __init__(self, model, *, random_state, **_):
            self.seed = random_state

        def fit(self, train):
            count = accepted[self.seed]
            self.prototypes_ = [type("P", (), {"valid": k < count})() for k in range(4)]
            self.classifier_ = type("C", (), {"n_queries": self.seed})()

    monkeypatch.setattr(fits, "Explainer", Fake)
    given = subjects.Subject(type("D", (), {"schema": None, "train": None})(), None, None)
    accepted = {1: 2, 1001: 3, 2001: 1}
    fit = fits.fit_of(job(recipe="paper"), given)
    assert (fit.explainer.seed, fit.tries, fit.n_queries) == (1001, 3, 1001)
    accepted = {1: 2, 1001: 4}
    fit = fits.fit_of(job(recipe="paper"), given)
    assert (fit.explainer.seed, fit.tries) == (1001, 2)
    fit = fits.fit_of(job(), given)
    assert (fit.explainer.seed, fit.tries) == (1, 1)


def test_the_papers_settings_reach_its_recipe():
    recipe, latent = fits.recipe_of(job(recipe="paper", limits=Limits(epochs=7, patience=3)))
    assert (recipe.name, recipe.batch, recipe.rate, recipe.weights) == (
        "paper", 128, 1e-3, (0.1, 0.1, 1.0),
    )  # fmt: skip
    assert (recipe.epochs, recipe.patience, latent) == (7, 3, 4)
    assert fits.recipe_of(job())[1] is None


# --- store -----------------------------------------------------------------------------------


def test_what_is_kept_comes_back(tmp_path):
    kept = Store(tmp_path)
    record = Record([Measure("ks", 0.25, 4), Measure("gap", math.nan, 0, "x")], 1.5, "v")
    assert kept.load(job()) is None
    kept.save(job(), record)
    found = kept.load(job())
    assert found.measures[0] == record.measures[0]
    assert math.isnan(found.measures[1].value)
    assert found.measures[1].label == "x"
    assert (found.seconds, found.versions) == (1.5, "v")
    assert job(seed=2) not in kept
    json.loads(kept.path(job()).read_text(), parse_constant=pytest.fail)  # no NaN in the file


@pytest.mark.parametrize("damage", ["", "{", '{"settings": {}}', "[]"])
def test_a_damaged_or_foreign_file_is_run_again(tmp_path, damage):
    kept = Store(tmp_path)
    kept.save(job(), Record([], 1.0, "v"))
    kept.path(job()).write_text(damage)
    assert job() not in kept


def test_a_killed_run_goes_on_where_it_stopped(tmp_path):
    kept, said, ran = Store(tmp_path), [], []
    jobs = [job(seed=seed) for seed in (1, 2, 3, 4)]

    def work(one):
        ran.append(one.seed)
        if one.seed == 3 and ran.count(3) == 1:
            raise KeyboardInterrupt
        if one.seed == 2 and ran.count(2) == 1:
            raise ValueError("bad luck")
        return [Measure("ks", 0.1, 1)]

    with pytest.raises(KeyboardInterrupt):
        running.run(jobs, kept, say=said.append, work=work)
    assert ran == [1, 2, 3]
    assert any("bad luck" in line for line in said)
    assert running.run(jobs, kept, say=said.append, work=work) == []
    assert ran == [1, 2, 3, 2, 3, 4]
    assert "1 of 4 jobs are done already." in said
    assert not list(tmp_path.rglob("*.tmp*"))


def test_failed_jobs_are_named_and_not_kept(tmp_path):
    def work(one):
        raise ValueError("bad luck")

    assert running.run([job()], Store(tmp_path), say=lambda line: None, work=work) == [job()]
    assert job() not in Store(tmp_path)


def test_time_left_goes_by_the_likest_jobs_there_are(tmp_path):
    kept = Store(tmp_path)
    other = job(pair=Pair("b-RF", "b", "forest", paper=job().pair.paper))
    for one, seconds in ((job(), 10.0), (replace(other, seed=1), 30.0)):
        kept.save(one, Record([], seconds, "v"))
    known = [job(), other]
    assert running.time_left(known, [job(seed=2)], kept) == 10
    assert running.time_left(known, [replace(other, seed=2), job(seed=2)], kept) == 40
    third = job(pair=Pair("c-RF", "c", "forest"))
    assert running.time_left(known, [third], kept) == 20  # the recipe's mean
    assert running.time_left(known, [job(recipe="paper")], kept) == 20  # any job's mean
    assert running.time_left([], [job()], kept) == 0


# --- the command -----------------------------------------------------------------------------


def test_a_second_run_runs_nothing_and_writes_the_same(quick, capsys):
    folder, arguments, found, _ = quick
    out = folder / "cache" / "quick"
    before = (out / "e1.csv").read_bytes(), (out / "e1.md").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(arguments) == 0
    assert capsys.readouterr().out == "2 of 2 jobs are done already.\n"
    assert main([*arguments, "--render"]) == 0
    assert before == ((out / "e1.csv").read_bytes(), (out / "e1.md").read_text(encoding="utf-8"))
    assert len(found) == 2


def test_the_tidy_table_has_one_line_per_figure(quick):
    folder, _, found, kept = quick
    table = read(folder)
    parquet = pd.read_parquet(folder / "cache" / "results.parquet")
    assert tuple(parquet.columns) == store.COLUMNS
    assert tuple(table.columns) == store.COLUMNS[:-1]
    assert not table.duplicated(["pair", "recipe", "seed", "metric", "label"]).any()
    assert set(table["recipe"]) == {"default", "paper"}
    assert set(table["repeat"]) == set(table["seed"]) == {1}
    assert set(parquet["settings"]) == {one.key for one in found}
    assert parquet["versions"].str.contains("torch").all()
    assert len(parquet) == len(table) == sum(len(kept.load(j).measures) for j in found)


def test_the_page_shows_both_recipes_beside_the_paper(quick):
    folder, _, _, _ = quick
    page = (folder / "cache" / "quick" / "e1.md").read_text(encoding="utf-8")
    for title in ("Targets", "Utility", "Centroids and prototypes", "Paths", "Cost"):
        assert f"\n## {title}\n" in page
    for recipe in ("default", "paper"):
        assert f"| loans-RF | {recipe} |" in page
    assert "80.0, 90.0, 5.00" in page
    assert "nan" not in page
    tables = [line for line in page.splitlines() if line.startswith("|")]
    heads = [i for i, line in enumerate(tables) if set(line) <= set("| -")]
    for line_of_dashes, end in zip(heads, [*(h - 1 for h in heads[1:]), len(tables)], strict=True):
        widths = {line.count(" | ") for line in tables[line_of_dashes - 1 : end]}
        assert len(widths) == 1


def test_a_mistake_on_the_command_line_is_a_sentence(quick, capsys):
    _, arguments, _, _ = quick
    assert main([*arguments, "--pair", "loans-RV"]) == 2
    assert "Did you mean 'loans-RF'?" in capsys.readouterr().err


# --- the page --------------------------------------------------------------------------------


def lines(pair, metric, values, count=10, recipe="default", label=""):
    return [
        {
            "pair": pair,
            "recipe": recipe,
            "metric": metric,
            "label": label,
            "mean": v,
            "count": count,
        }
        for v in values
    ]


def test_figures_are_means_deviations_and_pooled_counts():
    table = pd.DataFrame(
        [*lines("a", "middle_valid", (1.0, 0.9)), *lines("a", "ks", (0.1, math.nan))]
    )
    known = figures.Figures.of(table)
    found = known.get("a", "default", "middle_valid")
    assert (found.mean, found.repeats, found.of) == (0.95, 2, "19 of 20")
    assert found.deviation == pytest.approx(np.std([1.0, 0.9], ddof=1))
    assert known.get("a", "default", "ks").repeats == 1
    assert known.get("a", "default", "ks").text() == "0.10"
    assert known.get("b", "default", "ks").text() == figures.NONE


def test_targets_look_at_the_worst_pair_or_the_mean():
    table = pd.DataFrame([*lines("a", "gap_raw", (0.01, 0.02)), *lines("b", "gap_raw", (0.04,))])
    known = figures.Figures.of(table)
    each, mean = (t for t in summary.TARGETS if t.text == "TSTR gap, raw, points")
    value, pair, ok = each.reached(known, ["a", "b"])
    assert (value, pair, ok) == (0.04, "b", False)
    assert each.reached(known, ["a"])[1:] == ("a", True)
    assert mean.reached(known, ["a", "b"])[0] == pytest.approx(0.0275)
    assert each.reached(known, ["c"]) is None
    assert summary._reached(each, known, ["a", "b"]) == "4.00 (b) **missed**"


def test_every_target_reads_a_metric_that_is_measured(quick):
    folder, _, _, _ = quick
    table = read(folder)
    known = figures.Figures.of(table)
    for target in summary.TARGETS:
        assert target.reached(known, ["loans-RF"]) is not None, target.text


def test_an_empty_table_makes_an_honest_page():
    empty = pd.DataFrame(columns=list(store.COLUMNS))
    plan_ = Plan.read(PAPER_TOML)
    for page in writing.pages_of(plan_, empty).values():
        assert "Nothing has been run yet." in page or page.count("| not run |") == 15
    assert writing.blocks(plan_, empty) == {}


# --- what is kept with the code --------------------------------------------------------------


def test_the_first_page_shows_the_results_that_are_kept():
    root = PAPER_TOML.parent.parent
    kept = root / "benchmarks" / "results" / "e1.csv"
    table = pd.read_csv(kept, keep_default_na=False, na_values={"mean": [""]})
    plan_ = Plan.read(PAPER_TOML)
    page = (root / "README.md").read_text(encoding="utf-8")
    assert summary.brief(plan_, table) in page
    paper = table[(table["experiment"] == "e1") & (table["recipe"] == "default")]

    def counted(metric):
        part = paper[paper["metric"] == metric]
        return round((part["mean"] * part["count"]).sum()), part["count"].sum()

    valid, all_ = counted("centroids_before")
    assert f"{valid} of {all_} were before it" in page
    for pick in ("first", "middle", "last"):
        valid, all_ = counted(f"{pick}_valid")
        assert f"{valid:,} of {all_:,} each" in page
    after = paper.loc[paper["metric"] == "recrossing_after", "mean"]
    assert len(after) == 40
    assert (after == 0).all()
