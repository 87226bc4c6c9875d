"""What is written from the results: figures, pages, pictures, and the blocks of pages."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from benchmarks import comparison, drawing, figures, jobs, rendering
from benchmarks.figures import Figures
from benchmarks.jobs import Store
from benchmarks.judging import Evidence, interval
from benchmarks.plan import Plan
from benchmarks.provenance import code_of

ROOT = Path(__file__).resolve().parents[2]
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


# --- pages, from made-up tables --------------------------------------------------------------


def made_up(*lines, experiment="e2"):
    """A tidy table: (pair, recipe, method, metric, means[, label[, count]])."""
    found = []
    for pair, recipe, method, metric, means, *rest in lines:
        label, count = (*rest, "", 100)[:2] if len(rest) < 2 else rest
        for repeat, mean in enumerate(np.atleast_1d(means), start=1):
            head = (experiment, pair, recipe, repeat, 10 + repeat, method, metric, label)
            found.append((*head, float(mean), 0.1, count or 100, "key"))
    table = pd.DataFrame(found, columns=list(jobs.COLUMNS))
    return table.assign(**dict.fromkeys(jobs.ORIGIN, "known"))


PAIRS = ("wine-RF", "adult-NN")


@pytest.fixture
def benchmark():
    """Two pairs; figures in which Last is the most typical and diverse."""
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
            found += [(pair, "baselines", name, m, (v, v)) for m, v in theirs.items()]
    return made_up(*found)


@pytest.fixture
def actions():
    found = [("wine-RF", "default", "", "infeasible", 0.1, "medium")]
    for method, side, easy, medium in (
        ("FACE-Interpolate", "baselines", 0.9, 0.5), ("LAPACE-naive", "paper", 1.0, 0.6),
        ("LAPACE-exact", "default", 1.0, 0.8), ("LAPACE-latent", "paper", 1.0, 0.3),
    ):  # fmt: skip
        for setting, share in (("easy", easy), ("medium", medium)):
            found.append(("wine-RF", side, method, "satisfied", share, setting))
            found.append(("wine-RF", side, method, "satisfied_path", share / 2, setting))
            found.append(("wine-RF", side, method, "feasible_points", 1.0, setting))
    return made_up(*found, experiment="e3")


def changed(table, method, metric, value, pair="wine-RF"):
    here = (table["pair"] == pair) & (table["method"] == method) & (table["metric"] == metric)
    assert here.any()
    return table.assign(mean=table["mean"].where(~here, value))


def test_the_picture_of_e2_has_a_panel_for_every_metric_and_no_other(benchmark):
    figure = drawing.metrics(Figures(benchmark), PAIRS)
    titles = [ax.get_title(loc="left") or ax.get_title() for ax in figure.axes]
    plt.close(figure)
    assert [t.partition(" ↑")[0].partition(" ↓")[0] for t in titles] == [
        metric.title for metric in comparison.METRICS
    ]


def test_the_best_is_marked_and_only_the_best(benchmark):
    page = rendering.pages_of(Evidence(PAPER, benchmark))["e2"]
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


def test_a_method_that_lacks_a_pair_says_so_and_is_never_the_best(benchmark):
    lacks = (benchmark["pair"] == "adult-NN") & (benchmark["method"] == "NNCE")
    page = rendering.pages_of(Evidence(PAPER, benchmark[~lacks]))["e2"]
    lines = [line for line in page.splitlines() if line.startswith("| NNCE |")]
    assert "| 0.10 (1) |" in lines[0]
    assert "**" not in lines[0]
    assert "**0.10 ± 0.00**" in page.partition("## wine-RF")[2].partition("## adult-NN")[0]


def test_first_at_a_confidence_says_how_many_instances_it_answers(benchmark):
    page = rendering.pages_of(Evidence(PAPER, changed(benchmark, "First@0.6", "validity", 0.8)))
    section = page["e2"].partition("## First at a required confidence")[2].partition("##")[0]
    assert "| 97.0 (1.02, –, –) of 80% | – |" in section
    assert "| 97.0 (1.02, –, –) | at 0.6 |" in section


# --- a verdict per finding --------------------------------------------------------------------


def both(table):
    """The same figures for the paper's model as printed."""
    printed = table[table["recipe"] == "default"].assign(recipe="printed")
    return pd.concat([table, printed], ignore_index=True)


def finding(table, words, *, brief=False):
    text = rendering.findings(Evidence(PAPER, table), brief=brief)
    (line,) = [line for line in text.splitlines() if words in line]
    return [cell.strip() for cell in line.split("|")[1:-1]][2]  # as printed


def test_every_finding_has_a_verdict_whatever_is_missing(benchmark, actions):
    for table in (benchmark, both(benchmark), pd.concat([both(benchmark), actions]), actions):
        text = rendering.findings(Evidence(PAPER, table))
        assert len(text.splitlines()) > 40
        assert "nan" not in text


def test_a_verdict_follows_the_figures_by_one_rule(benchmark):
    table = both(benchmark)
    assert finding(table, "perfectly robust to input changes").startswith("confirmed: 2 of 2")
    moved = changed(table, "Last", "input_max_set_distance", 0.2)
    some = finding(moved, "perfectly robust to input changes")
    assert some.startswith("**partly confirmed**: 1 of 2; not on wine-RF")
    worse = changed(moved, "Last", "input_max_set_distance", 0.2, pair="adult-NN")
    none = finding(worse, "perfectly robust to input changes")
    assert none.startswith("**not confirmed**: 0 of 2")


def test_a_brief_verdict_is_the_grade_and_the_count(benchmark, actions):
    table, words = both(benchmark), "perfectly robust to input changes"
    assert finding(table, words, brief=True) == "confirmed 2 of 2"
    moved = changed(table, "Last", "input_max_set_distance", 0.2)
    assert finding(moved, words, brief=True) == "**partly** 1 of 2"
    worse = changed(moved, "Last", "input_max_set_distance", 0.2, pair="adult-NN")
    assert finding(worse, words, brief=True) == "**not** 0 of 2"
    assert finding(actions, words, brief=True) == "not run"


def test_intervals_are_over_seeds_of_paired_instances():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(5, 100))
    near = interval("x", base + 0.1 - base)  # paired, the noise is gone
    assert near.state == "holds"
    assert near.low == pytest.approx(0.1)
    assert interval("x", base + 0.01).state == "open"
    assert interval("x", base - 1).state == "fails"
    spread = interval("x", np.repeat(np.array([[-1.0], [3.0], [1.0], [1.0], [1.0]]), 100, axis=1))
    assert spread.low < 0.2  # seeds vary, however many instances they have
    assert interval("x", np.empty((0, 0))).state == "unknown"


# --- what is kept with the code --------------------------------------------------------------


@pytest.fixture(scope="module")
def evidence():
    return rendering.read_evidence(PAPER, RESULTS)


@pytest.fixture(scope="module")
def blocks(evidence):
    return rendering.blocks(evidence)


def current(text):
    """A page without the line that marks figures of older code: any change of code adds it."""
    lines = text.split("\n\n")
    return [line for line in lines if not line.startswith(figures.OUTDATED)]


def test_figures_of_older_code_or_settings_are_marked(evidence):
    own = evidence.results("e3")
    older = replace(own, table=own.table.assign(code="older"))
    assert older.outdated.startswith(figures.OUTDATED)
    keys = [job.key for job in PAPER.jobs(experiments=["e3"])]
    newer = replace(own, table=own.table.assign(code=code_of("e3"), settings=keys[0]))
    assert newer.outdated == ""


def test_rendering_changes_neither_tables_nor_pages(tmp_path, monkeypatch, blocks):
    """Blocks go between their markers; a marker without results keeps what it has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rendering, "_draw", lambda *_: None)
    for path in RESULTS.glob("*.csv*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    marks = "\n".join(f"<!-- {name} -->\nold\n<!-- /{name} -->" for name in (*blocks, "e9"))
    shown = Path(rendering.SHOWN[0])
    shown.parent.mkdir(parents=True)
    shown.write_text(f"before\n{marks}\nafter\n")
    rendering.write_all(PAPER, Store(tmp_path / "nothing"), tmp_path, shown=True)
    known = [name for name in (*jobs.TABLES, "runs") if (RESULTS / f"{name}.csv").exists()]
    for name in known:
        own, kept = tmp_path / f"{name}.csv", RESULTS / f"{name}.csv"
        assert own.read_bytes() == kept.read_bytes(), name
    for page in (*known[:-1], "findings", "e5"):
        own, kept = ((at / f"{page}.md").read_text() for at in (tmp_path, RESULTS))
        assert current(own) == current(kept), f"{page}.md: run --render"
    gallery = (ROOT / "docs" / "gallery.md").read_bytes()
    assert Path("docs/gallery.md").read_bytes() == gallery
    text = shown.read_text(encoding="utf-8")
    assert {"e1", "grid", "e2", "e2-short", "e3", "findings"} == set(blocks)
    assert all(part in text for part in blocks.values())
    assert text.count("\nold\n") == 1
    assert text.startswith("before")
    assert text.endswith("after\n")


def test_findings_are_brief_on_the_page_and_whole_in_the_results(blocks):
    brief, about, *_ = blocks["findings"].split("\n\n")
    assert "`benchmarks/results/findings.md`" in about
    whole = (RESULTS / "findings.md").read_text(encoding="utf-8").rpartition("\n\n")[2]
    rows = zip(brief.splitlines()[2:], whole.splitlines()[2:], strict=True)
    *claims, (total, whole_total) = ([row.split(" | ") for row in pair] for pair in rows)
    assert total == whole_total
    for short, long in claims:
        assert short[:2] == long[:2]
        for cell, own in zip(short[2:], long[2:], strict=True):
            grade, _, count = own.rstrip(" |").partition(";")[0].partition(": ")
            assert cell.rstrip(" |") == f"{grade.replace(' confirmed', '')} {count}".rstrip()


@pytest.mark.parametrize("name", rendering.SHOWN)
def test_pages_show_the_results_that_are_kept(name, blocks):
    text = (ROOT / name).read_text(encoding="utf-8")
    shown = [mark for mark in blocks if f"<!-- {mark} -->" in text]
    assert {"docs/how-to/baselines.md": "e2-short", "docs/research/reproducing.md": "e1"}[
        name
    ] in shown
    for mark in shown:
        block = "\n\n".join(current(blocks[mark]))
        assert f"<!-- {mark} -->\n\n{block}\n\n" in text, mark
