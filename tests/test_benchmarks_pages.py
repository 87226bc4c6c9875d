"""What is written from the results: figures, targets, pages, pictures, and the blocks of pages."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from benchmarks import (
    comparison,
    digits_page,
    drawing,
    figures,
    findings,
    pages,
    plan,
    store,
    targets,
    writing,
)
from benchmarks.figures import Figures
from benchmarks.plan import Plan
from benchmarks.store import Store

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAPER = Plan.read(ROOT / "benchmarks" / "paper.toml")


# --- figures ---------------------------------------------------------------------------------


def lines(pair, metric, values, count=10):
    base = {"pair": pair, "recipe": "default", "metric": metric, "label": "", "count": count}
    return [{**base, "mean": value} for value in values]


def test_figures_are_means_deviations_and_pooled_counts():
    table = pd.DataFrame(
        [*lines("a", "middle_valid", (1.0, 0.9)), *lines("a", "ks", (0.1, math.nan))]
    )
    known = Figures(table)
    found = known.get("a", "default", "middle_valid")
    assert (found.mean, found.repeats, f"{found:of}") == (0.95, 2, "19 of 20")
    assert found.deviation == pytest.approx(np.std([1.0, 0.9], ddof=1))
    assert known.get("a", "default", "ks").repeats == 1
    assert f"{known.get('a', 'default', 'ks'):±}" == "0.10"
    assert f"{known.get('b', 'default', 'ks')}" == figures.NONE
    with pytest.raises(ValueError, match=r"not formatted by '\.2f'"):
        f"{found:.2f}"


def test_bounds_are_compared_with_the_worst_pair_or_the_mean():
    table = pd.DataFrame([*lines("a", "gap_raw", (0.01, 0.02)), *lines("b", "gap_raw", (0.04,))])
    known = Figures(table)
    each, mean = (b for b in targets.BOUNDS if b.text == "TSTR gap, raw, points")
    value, pair, met = each.reached(known, ["a", "b"])
    assert (value, pair, met) == (0.04, "b", False)
    assert each.reached(known, ["a"])[1:] == ("a", True)
    assert mean.reached(known, ["a", "b"])[0] == pytest.approx(0.0275)
    assert each.reached(known, ["c"]) is None
    assert each.verdict(known, ["a", "b"]) == "4.00 (b) **missed**"


def test_an_empty_table_makes_an_honest_page():
    empty = pd.DataFrame(columns=list(store.COLUMNS))
    found = writing.pages_of(PAPER, empty)
    assert set(found) == {"targets"}
    assert found["targets"].count("| not run |") == 16
    assert pages.blocks(PAPER, empty) == {}


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
        for pick, lof, diversity in (
            ("First", 1.05, 0.5),
            ("Middle", 1.0, 0.8),
            ("Last", 0.9, 1.1),
        ):
            ours = {
                "validity": 1.0, "valid_counterfactuals": 1.0, "distance": 0.6, "lof": lof,
                "diversity": diversity, "model_robustness": 1.0 if pick == "Last" else 0.7,
                "input_max_set_distance": 0.0 if pick == "Last" else 0.1,
                "input_set_distance": 0.0 if pick == "Last" else 0.05, "seconds": 0.4,
                "n_counterfactuals": 5.0,
            }  # fmt: skip
            found += [(pair, "default", pick, m, (v, v)) for m, v in ours.items()]
        for metric, value in (("validity", 1.0), ("model_robustness", 0.97), ("lof", 1.02)):
            found.append((pair, "default", "First@0.6", metric, value))
        for pick in ("nearest", "best"):
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
                theirs |= {"diversity": 0.9, "n_counterfactuals": 4.5}
            found += [(pair, "baselines", name, m, v) for m, v in theirs.items()]
    return made_up(*found)


@pytest.fixture
def actions():
    found = [("wine-RF", "default", "", "infeasible", 0.1, "hard")]
    for method, side, easy, hard in (
        ("FACE-Interpolate", "baselines", 0.9, 0.5), ("LAPACE-naive", "default", 1.0, 0.6),
        ("LAPACE-exact", "default", 1.0, 0.8), ("LAPACE-latent", "paper", 1.0, 0.3),
    ):  # fmt: skip
        for setting, share in (("easy", easy), ("hard", hard)):
            found.append(("wine-RF", side, method, "satisfied", share, setting))
            found.append(("wine-RF", side, method, "satisfied_path", share / 2, setting))
            found.append(("wine-RF", side, method, "feasible_points", 1.0, setting))
    return made_up(*found, experiment="e3")


def changed(table, method, metric, value, pair="wine-RF"):
    here = (table["pair"] == pair) & (table["method"] == method) & (table["metric"] == metric)
    assert here.any()
    return table.assign(mean=table["mean"].where(~here, value))


def judged(table):
    return {v.target: v for v in targets.verdicts(PAPER, table)}


def test_targets_that_are_reached_are_met(benchmark, actions):
    found = judged(pd.concat([benchmark, actions]))
    assert {v.text for v in found.values()} == {"met"}
    assert found["validity"].reached == "First 400 of 400; Middle 400 of 400; Last 400 of 400"
    text = targets.markdown(PAPER, pd.concat([benchmark, actions]))
    assert "met (2 of 8 pairs)" in text
    assert "met (1 of 8 pairs)" in text
    assert "**missed**" not in text


@pytest.mark.parametrize(
    ("method", "metric", "value", "target"),
    [
        ("Middle", "valid_counterfactuals", 0.99, "validity"),
        ("nearest", "paired_distance", 0.41, "proximity, one counterfactual each"),
        ("Middle", "lof", 1.11, "plausibility (LOF)"),
        ("Last", "lof", 1.11, "plausibility (LOF)"),
        ("NNCE", "lof", 0.95, "plausibility (LOF)"),
        ("DRCE", "diversity", 1.2, "diversity against DRCE"),
        ("DiCE", "diversity", 1.2, "diversity against DiCE"),
        ("Last", "model_robustness", 0.999, "robustness to model changes, Last"),
        ("First@0.6", "model_robustness", 0.94, "robustness to model changes, First"),
        ("First@0.6", "validity", 0.9, "robustness to model changes, First"),
        ("Last", "input_max_set_distance", 0.001, "robustness to input changes, Last"),
        ("First", "input_set_distance", 0.21, "robustness to input changes, First, set distance"),
        ("First", "seconds", 0.91, "runtime"),
        ("DiCE", "seconds", 19.0, "runtime against DiCE"),
    ],
)
def test_a_figure_that_misses_prints_missed(benchmark, method, metric, value, target):
    table = changed(benchmark, method, metric, value)
    found = judged(table)
    assert found[target].text == "**missed** on wine-RF"
    text = targets.markdown(PAPER, table)
    line = next(line for line in text.splitlines() if line.startswith(f"| {target} |"))
    assert "**missed** on wine-RF (2 of 8 pairs)" in line


@pytest.mark.parametrize(
    ("method", "metric", "value", "target"),
    [
        ("LAPACE-exact", "feasible_points", 0.999, "E3, feasible points"),
        ("LAPACE-exact", "satisfied", 0.59, "E3, easy constraints"),
        ("LAPACE-exact", "satisfied", 0.59, "E3, hard constraints"),
        ("FACE-Interpolate", "satisfied", 0.81, "E3, hard constraints"),
    ],
)
def test_constraints_that_are_missed_print_missed(actions, method, metric, value, target):
    assert judged(changed(actions, method, metric, value))[target].text == "**missed** on wine-RF"


def test_targets_are_read_where_they_apply(benchmark):
    far = changed(benchmark, "DiCE", "lof", 1.6)
    assert judged(changed(far, "DiCE", "diversity", 9.0))["diversity against DiCE"].missed == ()
    assert judged(far)["diversity against DiCE"].judged == ("adult-NN",)
    for pair in PAIRS:  # best may be farther: it keeps a margin
        worse = changed(benchmark, "best", "paired_distance", 9.0, pair)
        assert judged(worse)["proximity, one counterfactual each"].text == "met"
        worse = changed(benchmark, "nearest", "paired_distance", 9.0, pair)
        assert judged(worse)["proximity, one counterfactual each"].missed == (pair,)
    every = changed(changed(benchmark, "Last", "lof", 2), "Last", "lof", 2, "adult-NN")
    assert judged(every)["plausibility (LOF)"].text == "**missed** on every pair"


def test_the_best_is_marked_and_only_the_best(benchmark):
    page = writing.pages_of(PAPER, benchmark)["e2"]
    table = page.split("## wine-RF\n\n")[1].split("\n\n")[0]
    rows = {cells[1]: cells[2:-1] for line in table.splitlines()[2:] if (cells := line.split("|"))}
    rows = {name.strip(): [cell.strip() for cell in cells] for name, cells in rows.items()}
    column = {m.key: k for k, m in enumerate(comparison.METRICS)}

    def marked(metric):
        return {name for name, cells in rows.items() if cells[column[metric]].startswith("**")}

    assert marked("lof") == {"Last"}
    assert marked("diversity") == {"Last"}
    assert marked("distance") == {"NNCE", "DRCE", "DiCE"}  # level as far as digits tell
    assert marked("seconds") == {"NNCE"}
    assert marked("input_max_set_distance") == {"Last"}
    assert marked("n_queries") == set()  # never measured
    assert rows["NNCE"][column["diversity"]] == figures.NONE


def test_a_pick_is_counted_as_best_alone_not_as_the_best_of_all_picks(benchmark):
    def line(table):
        rows = comparison.won(Figures(table), PAIRS).splitlines()
        heads = [cell.strip() for cell in rows[0].split("|")[2:-1]]
        lof = next(row for row in rows if row.startswith("| plausibility"))
        return dict(zip(heads, (cell.strip() for cell in lof.split("|")[2:-1]), strict=True))

    assert line(benchmark)["Last"] == "2 / 0 of 2"
    assert line(benchmark)["Middle"] == "2 / 0 of 2"
    assert line(changed(benchmark, "NNCE", "lof", 0.95))["Middle"] == "1 / 0 of 2"
    assert line(changed(benchmark, "NNCE", "lof", 0.95))["Last"] == "2 / 0 of 2"
    assert line(changed(benchmark, "NNCE", "lof", 0.9))["Last"] == "1 / 1 of 2"
    assert comparison.won(Figures(benchmark.iloc[:0]), PAIRS) == "Nothing can be compared yet."


# --- a verdict per finding --------------------------------------------------------------------


def finding(table, claim):
    text = findings.markdown(PAPER, table)
    line = next(line for line in text.splitlines() if claim in line)
    return [cell.strip() for cell in line.split("|")][1:-1]


def both(table):
    """The same figures for the paper's model."""
    paper = table[table["recipe"] == "default"].assign(recipe="paper")
    return pd.concat([table, paper], ignore_index=True)


def test_every_finding_has_a_verdict_whatever_is_missing(benchmark, actions):
    for table in (benchmark, both(benchmark), pd.concat([both(benchmark), actions]), actions):
        text = findings.markdown(PAPER, table)
        lines = [line for line in text.splitlines() if line.startswith(("| Tab", "| Fig", "| Abs"))]
        assert len(lines) > 15
        assert "nan" not in text


def test_verdicts_of_the_quick_version_are_marked_as_such(benchmark):
    quick = replace(PAPER, is_quick=True)
    assert "decide nothing" in findings.markdown(quick, benchmark)
    assert "decide nothing" not in findings.markdown(PAPER, benchmark)


def test_a_verdict_follows_the_figures(benchmark):
    table = both(benchmark)
    assert finding(table, "perfectly robust to input changes")[4] == "confirmed"
    assert finding(table, "most plausible")[4] == "confirmed"
    moved = changed(table, "Last", "input_max_set_distance", 0.2)
    assert finding(moved, "perfectly robust to input changes")[4] == "**not confirmed**"
    worse = changed(table, "Last", "lof", 3.0)
    assert finding(worse, "most plausible")[4] == "**partly confirmed**"
    assert "not on wine-RF" in finding(worse, "most plausible")[5]
    robust = finding(changed(table, "Last", "model_robustness", 0.97), "robust to model changes")
    assert robust[2] == "98.50 %, least 97.0 %"


def test_the_digits_are_judged_by_their_own_table(benchmark):
    table = both(benchmark)
    assert finding(table, "against the dash")[4] == "not run"
    digits = digits_page.earlier(RESULTS / "e5.csv")
    lines = findings.table_of(PAPER, table, digits).splitlines()
    judged = next(line for line in lines if "against the dash" in line)
    assert "partly confirmed" in judged  # a trace is left on some
    metric = digits["metric"] == "sevens without a dash"
    digits.loc[metric & (digits["label"] == "dash: latent"), "value"] = 1.0
    lines = findings.table_of(PAPER, table, digits).splitlines()
    assert "| confirmed |" in next(line for line in lines if "against the dash" in line)
    late = next(line for line in lines if "τ = 0.7" in line)
    assert "| confirmed |" in late
    tau = (digits["metric"] == "probability at tau") & (digits["label"] == "0.70")
    digits.loc[tau, "value"] = 0.4
    lines = findings.table_of(PAPER, table, digits).splitlines()
    assert "| **not confirmed** |" in next(line for line in lines if "about τ = 0.7" in line)
    nearest = (digits["metric"] == "nearest training digit, mean") & (digits["label"] == "first")
    assert "| confirmed |" in next(line for line in lines if "plausible evolutions" in line)
    digits.loc[nearest, "value"] = 0.5  # farther than a test digit is
    lines = findings.table_of(PAPER, table, digits).splitlines()
    assert "| **not confirmed** |" in next(line for line in lines if "plausible evolutions" in line)


def test_constraints_are_light_where_they_cost_little(benchmark):
    def timed(hard):
        lines = [
            ("wine-RF", recipe, method, metric, value, setting)
            for recipe, method in (("paper", "LAPACE-latent"), ("default", "LAPACE-exact"))
            for setting, after in (("easy", 12.0), ("hard", hard))
            for metric, value in (("seconds_before", 10.0), ("seconds", after))
        ]
        return pd.concat([both(benchmark), made_up(*lines, experiment="e3")], ignore_index=True)

    assert finding(timed(15.0), "lightweight")[4] == "confirmed"
    found = finding(timed(80.0), "lightweight")
    assert found[4] == "**partly confirmed**"
    assert found[2] == "10 s per 100 without, 12 s with; hard: 80 s"
    assert "8 times where they bind" in found[5]


def test_the_papers_model_is_judged_by_the_papers_figures():
    def judged(off):
        reported = {p.name: p.reported.gap for p in PAPER.pairs if p.reported is not None}
        lines = [
            (pair, "paper", "", metric, values, "", 10)
            for pair, gap in reported.items()
            for metric, values in (
                ("gap_raw", [(gap + off + wide) / 100 for wide in (-1.5, 1.5)]),
                ("centroids_first_try", [0.9 if pair == "wine-NN" else 1.0] * 2),
                ("least_used", [0.25 if pair == "wine-RF" else 0.8] * 2),
            )
        ]
        known = Figures(made_up(*lines, experiment="e1"))
        rows = targets.paper_model(PAPER, known).splitlines()
        return [[cell.strip() for cell in row.split("|")][1:-1] for row in rows[2:]]

    mean, each, centroids, used = judged(0.9)
    assert mean[2:] == ["6.95", "met"]
    assert each[2:] == ["all", "met"]
    assert centroids[1:] == ["158 of 160", "158 of 160", "met"]
    assert used[2:] == ["0.25 (wine-RF)", "**missed**"]
    mean, each, *_ = judged(-3.0)
    assert mean[2:] == ["3.05", "**missed**"]
    assert each[3].startswith("**missed**")
    assert "heloc-NN -3.0 (±2.2)" in each[2]
    assert "adult-RF" not in each[2]  # the paper's own varied more
    assert "not run" in targets.paper_model(PAPER, Figures(made_up()))


def test_ranks_share_places_where_figures_are_level(benchmark):
    table = both(benchmark)
    best = finding(table, "best-balanced")
    assert best[4] == "confirmed"
    slow = table
    for pick in ("First", "Middle", "Last"):
        for metric, value in (("lof", 9.0), ("distance", 9.0), ("seconds", 99.0),
                              ("model_robustness", 0.1)):  # fmt: skip
            slow = changed(slow, pick, metric, value)
            slow = slow.assign(mean=slow["mean"].where(
                ~((slow["method"] == pick) & (slow["metric"] == metric)), value))  # fmt: skip
    assert finding(slow, "best-balanced")[4] == "**not confirmed**"
    assert finding(slow, "trade proximity")[4] == "confirmed"  # level at every step


def test_the_table_of_properties_has_the_papers_marks(benchmark):
    text = findings.markdown(PAPER, both(benchmark))
    assert "| NNCE | ✓ 100 % | ✓ 0.40 | ✓ 1.20 | – – |" in text
    assert "| Last, paper's model | ✓ 100 % |" in text


def test_the_confidence_that_lasts_is_the_least_that_does(benchmark):
    known = Figures(benchmark)
    assert comparison.reaching(known, "wine-RF") == 0.6
    sure = Figures(changed(benchmark, "First", "model_robustness", 0.96))
    assert comparison.reaching(sure, "wine-RF") == 0.0
    never = Figures(changed(benchmark, "First@0.6", "model_robustness", 0.9))
    assert comparison.reaching(never, "wine-RF") is None
    page = writing.pages_of(PAPER, benchmark)["e2"]
    assert "| wine-RF | 70.0 (1.05, 0.60) | 97.0 (1.02, –) | at 0.6 |" in page


def test_actionability_stands_beside_the_papers(actions):
    text = writing.pages_of(PAPER, actions)["e3"]
    line = next(line for line in text.splitlines() if line.startswith("| wine-RF | easy |"))
    assert "0.900 (0.74)" in line
    assert "**1.000** (1.00)" in line  # the paper's model, corrected as in the paper
    hard = next(line for line in text.splitlines() if line.startswith("| wine-RF | hard |"))
    assert hard.count("**") == 2
    assert "**0.800**" in hard
    assert hard.endswith("| 10.0 |")
    one = text.split("## One path each")[1]
    assert next(line for line in one.splitlines() if "| easy |" in line).count("0.450") == 1


def test_pictures_show_every_metric_pair_and_endpoint(benchmark):
    before = plt.get_fignums()
    figure = drawing.metrics(Figures(benchmark), PAIRS)
    assert len(figure.axes) == len(comparison.METRICS)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names == [method.name for method in comparison.methods(Figures(benchmark), PAIRS)]
    seconds = figure.axes[[m.key for m in comparison.METRICS].index("seconds")]
    assert seconds.get_xscale() == "log"
    assert sorted(seconds.lines[0].get_xdata()) == [0.1, 0.1]  # NNCE, a dot per pair
    plt.close(figure)
    points = [
        ("wine-RF", "default", "", f"{metric}@{tau}", tau, label)
        for metric in ("probability", "lof", "density")
        for tau in (0, 0.5, 1)
        for label in ("-1", "5", "all")
    ]
    figure = drawing.paths(made_up(*points, experiment="e4"), ["wine-RF"])
    assert len(figure.axes) == 6
    assert [ax.get_title() for ax in figure.axes[:2]] == ["sampled endpoint", "prototype 5"]
    assert figure.axes[1].lines[1].get_ydata().tolist() == [0, 0.5, 1]
    plt.close(figure)
    swept = [
        ("wine-RF", "default", pick, m.key, 0.5, count)
        for pick in ("First", "Last")
        for m in comparison.SWEPT
        for count in ("2", "12")
    ]
    figure = drawing.sweeps(made_up(*swept, experiment="clusters"), ["wine-RF"])
    assert len(figure.axes) == len(comparison.SWEPT)
    assert figure.axes[0].lines[0].get_xdata().tolist() == [2, 12]
    plt.close(figure)
    assert plt.get_fignums() == before


def test_a_picture_is_a_small_file(tmp_path):
    figure, ax = plt.subplots()
    ax.plot([1, 2, 3])
    drawing.save(figure, tmp_path / "pictures" / "line.png")
    picture = tmp_path / "pictures" / "line.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 10_000


# --- what is kept with the code --------------------------------------------------------------


@pytest.fixture(scope="module")
def kept():
    return store.kept(ROOT / "benchmarks" / "results")


@pytest.fixture(scope="module")
def blocks(kept):
    return pages.blocks(PAPER, kept, digits_page.earlier(RESULTS / "e5.csv"))


def test_the_kept_results_are_of_the_plans_settings(kept):
    keys = {job.key for job in PAPER.jobs()}
    assert set(kept["settings"]) <= keys  # the pages say how much of the plan was run


def test_the_pages_are_those_of_the_results_that_are_kept(kept):
    digits = digits_page.earlier(RESULTS / "e5.csv")
    for name, text in writing.pages_of(PAPER, kept, digits).items():
        page = ROOT / "benchmarks" / "results" / f"{name}.md"
        assert page.read_text(encoding="utf-8") == text, f"{name}.md: run --render"


def test_rendering_changes_neither_tables_nor_pages(tmp_path, monkeypatch, kept, blocks):
    """Blocks go between their markers; a marker without results keeps what it has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(writing, "_draw", lambda *_: None)
    for path in (ROOT / "benchmarks" / "results").glob("*.csv"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    marks = "\n".join(f"<!-- {name} -->\nold\n<!-- /{name} -->" for name in (*blocks, "e9"))
    Path("README.md").write_text(f"before\n{marks}\nafter\n")
    writing.write_all(PAPER, Store(tmp_path / "nothing"), tmp_path, shown=True)
    for name in ("e1", "readings", "sources", "e2", "e3", "e4", "clusters", "e6", "runs"):
        own, page = tmp_path / f"{name}.csv", ROOT / "benchmarks" / "results" / f"{name}.csv"
        assert own.read_bytes() == page.read_bytes(), name
    text = Path("README.md").read_text(encoding="utf-8")
    assert {"e1", "e2", "e2-won", "e3", "clusters", "targets"} <= set(blocks)
    assert all(part in text for part in blocks.values())
    assert text.count("\nold\n") == 1
    assert text.startswith("before")
    assert text.endswith("after\n")


def test_the_digits_pages_are_those_of_the_results_that_are_kept():
    table = pd.read_csv(ROOT / "benchmarks" / "results" / "e5.csv")
    page = (ROOT / "benchmarks" / "results" / "e5.md").read_text(encoding="utf-8")
    assert page == digits_page.table_of(table, "mnist")
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert page == digits_page.gallery(table, "mnist")


@pytest.mark.parametrize("name", ["README.md", "docs/research/reproducing.md"])
def test_pages_show_the_results_that_are_kept(name, blocks):
    text = (ROOT / name).read_text(encoding="utf-8")
    shown = [mark for mark in blocks if f"<!-- {mark} -->" in text]
    assert {"README.md": "e2-short", "docs/research/reproducing.md": "e1"}[name] in shown
    for mark in shown:
        assert f"<!-- {mark} -->\n\n{blocks[mark]}\n\n<!-- /{mark} -->" in text, mark


def test_the_first_page_says_of_constraints_what_is_kept(kept):
    """More instances answered than by FACE, since there are more paths; no more of all paths."""
    page = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "six paths answer more instances than FACE's one, but path for path [no more]" in page
    hard = kept[(kept["experiment"] == "e3") & (kept["label"] == "hard")]

    def mean(recipe, method, metric):
        own = hard[(hard["recipe"] == recipe) & (hard["method"] == method)]
        found = own[own["metric"] == metric].groupby("pair")["mean"].mean()
        assert len(found) == 8
        return found.mean()

    for metric, sign in (("satisfied", 1), ("satisfied_path", -1)):
        ours = mean("default", "LAPACE-exact", metric)
        theirs = mean("baselines", "FACE-Greedy, projected", metric)
        assert sign * (ours - theirs) > 0.01, metric


def test_the_page_on_reproducing_names_every_experiment_and_has_room_for_every_block():
    text = (ROOT / "docs" / "research" / "reproducing.md").read_text(encoding="utf-8")
    for name in (*plan.EXPERIMENTS, "e5"):
        assert any(
            name in line.split() for line in text.splitlines() if "python -m benchmarks" in line
        ), name
    for mark in (
        "findings",
        "readings",
        "sources",
        "e1",
        "e2",
        "e2-won",
        "targets",
        "e3",
        "clusters",
    ):
        assert text.count(f"<!-- {mark} -->") == text.count(f"<!-- /{mark} -->") == 1


def test_the_sentences_of_the_page_are_of_the_results_that_are_kept(kept):
    page = " ".join(
        (ROOT / "docs" / "research" / "reproducing.md").read_text(encoding="utf-8").split()
    )
    paper = kept[(kept["experiment"] == "e1") & (kept["recipe"] == "default")]

    def counted(metric):
        part = paper[paper["metric"] == metric]
        return round((part["mean"] * part["count"]).sum()), part["count"].sum()

    valid, all_ = counted("centroids_before")
    assert f"{valid} of {all_} were before it" in page
    for pick in ("first", "middle", "last"):
        valid, all_ = counted(f"{pick}_valid")
        assert f"{valid:,} of {all_:,} each" in page
    after = paper.loc[paper["metric"] == "recrossing_after", "mean"]
    assert len(after) == paper["settings"].nunique() > 30
    assert (after == 0).all()
    three = kept[(kept["experiment"] == "e3") & (kept["recipe"] == "default")]
    hard = three[(three["label"] == "hard") & (three["metric"] == "lof_after")]

    def span(method):
        found = hard[hard["method"] == method].groupby("pair")["mean"].mean()
        assert len(found) > 4
        return f"{found.min():.2f}–{found.max():.2f}"

    assert (
        f"(LOF {span('LAPACE-exact')} against {span('LAPACE-naive')} in the hard setting)" in page
    )
    five = pd.read_csv(ROOT / "benchmarks/results/e5.csv", keep_default_na=False)
    accuracy = five.loc[five["metric"] == "test accuracy", "value"].astype(float)
    assert f"reads {accuracy.item():.2%} of the test digits".replace("%", " %") in page
    ours = five[(five["recipe"] == "default") & (five["labels"] == "predictions")]
    valid = ours[ours["metric"] == "prototypes valid"]
    accepted, count = (valid["value"] * valid["count"]).sum(), valid["count"].sum()
    assert f"{accepted:.0f} of {count} prototypes accepted over five seeds" in page
    assert len(valid) == 5
