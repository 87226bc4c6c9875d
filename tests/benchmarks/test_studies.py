"""Studies beside the experiments: predicted and observed survival, and reports of broken fits."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from benchmarks import jobs, learned_rules, small_tables, survival, ways
from benchmarks.survival import Record
from lapace import Explainer
from lapace.schema import Schema
from lapace.survival import Calibration, interval, shipped
from lapace.training import DEFAULT

ROOT = Path(__file__).resolve().parents[2]


def made(table: str, kind: str = "forest", rows: int = 1500) -> Record:
    """Rows whose survival is a known curve in their log-odds, seen through 20 votes."""
    rng = np.random.default_rng([*table.encode(), *kind.encode()])
    odds = rng.normal(0.8, 1.0, rows)
    chance = expit(1.5 * odds + 0.2)
    votes = rng.random((survival.MODELS, rows)) < chance
    return Record(table, kind, odds, 0.5, 1.0, votes)


RECORDS = [made(table) for table in ("loans", "wine", "adult")] + [made("loans", "svc")]


def test_the_curve_is_the_one_the_votes_were_drawn_from():
    read = survival.CANDIDATES[survival.SHIPPED]
    found = survival.calibrated(RECORDS[:2], read)
    np.testing.assert_allclose(found.coefficients, [3, 0.2], atol=0.25)
    german = made("german")
    figures = survival.scores(interval(*found(read(german))), german.survival)
    assert figures["error"] < 0.02
    assert 0.86 < figures["covered"] < 0.99
    assert figures["width"] < 0.5


def test_figures_are_those_of_brute_force():
    rng = np.random.default_rng(0)
    observed, estimate = (rng.random((20, 300)) < 0.7).mean(axis=0), rng.random(300)
    found = survival.scores((estimate, estimate - 0.2, estimate + 0.2), observed)
    assert found["error"] == pytest.approx(abs(estimate.mean() - observed.mean()))
    assert found["mse"] == pytest.approx(((estimate - observed) ** 2).mean())
    assert found["covered"] == pytest.approx((np.abs(estimate - observed) <= 0.2).mean())
    assert found["width"] == pytest.approx(0.4)


def test_reported_tables_are_judged_by_a_calibration_of_others(monkeypatch):
    fitted_on = []
    original = survival.calibrated

    def noted(records: list[Record], read: Any) -> Calibration:
        fitted_on.append({r.table for r in records})
        return original(records, read)

    monkeypatch.setattr(survival, "calibrated", noted)
    table, rows = survival.judged(RECORDS)
    assert fitted_on == [{"loans", "wine"}]
    assert not {*survival.CHOSEN_ON} & {*survival.REPORTED}
    assert table.setting.tolist() == ["as it is", "retrain"]
    assert set(rows.table) == {"adult"}
    assert (table.error < 0.03).all()


def test_the_constants_are_read_as_they_were_written():
    written, found = tomllib.loads(survival.constants(RECORDS)), survival.shipped(RECORDS)
    assert written == {"coefficients": found.coefficients.tolist(), "weight": found.weight}
    assert len(shipped().coefficients) == len(found.coefficients)


def test_what_is_gathered_of_a_pair_is_read_back(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=400).round(2), "b": rng.normal(size=400).round(2)})
    schema = Schema.infer(table)
    data = SimpleNamespace(schema=schema, train=table.head(300), test=table.tail(100))
    slope = rng.normal(1.0, 0.1, survival.MODELS)[:, None]

    def decided(rows):
        return (rows["a"] + rows["b"] > 0).astype(int)

    class Model:
        classes_ = (0, 1)
        predict = staticmethod(decided)
        decision_function = staticmethod(lambda rows: 3 * (rows["a"] + rows["b"]).to_numpy())

    explainer = Explainer(Model(), recipe=survival.RECIPE, device="cpu").fit(data.train)
    found = explainer.explain(data.test.head(20), target="any-other")

    def votes(frame):
        again = (slope * frame["a"].to_numpy() + frame["b"].to_numpy() > 0).astype(int)
        return again == decided(frame).to_numpy()

    monkeypatch.setattr(survival, "explained", lambda *_: (data, explainer, found, votes))
    monkeypatch.setattr(survival, "load_table", lambda _: data)
    survival.gather(("tiny", "svc"), tmp_path)
    record = survival.record_of("tiny", "svc", tmp_path / "tiny-svc.npz")
    fitted = explainer.fitted_.survival
    assert record.agreement > 0
    assert record.votes.shape == (survival.MODELS, len(record.odds))
    assert (record.odds >= 0).all()  # beyond the decision
    assert record.spread > 0
    assert (fitted.zero == 0).all()
    survival.gather_best(("tiny", "svc"), tmp_path)
    best = np.load(tmp_path / "best-tiny-svc.npz")
    assert len(best["found"]) == len(best["margin"]) == 20
    assert best["margin"].mean() > 0.5


def test_the_page_has_the_figures_of_the_table():
    results = ROOT / "benchmarks" / "results"
    page = (results / "survival.md").read_text(encoding="utf-8")
    table = pd.read_csv(results / "survival.csv")
    assert set(table.table) == set(survival.REPORTED)
    for line in table[table.setting == "as it is"].itertuples():
        figures = f"| {line.table} | {line.kind} | {line.predicted:.3f} | {line.observed:.3f} | "
        assert figures in page


def test_a_study_goes_on_without_what_failed(capsys):
    found = jobs.collected(lambda job: 6 // job[1], [("six", 2), ("six", 0), ("six", 3)], 1)
    assert found == {("six", 2): 3, ("six", 3): 2}
    printed = capsys.readouterr().out
    assert printed.startswith("six 2 done\nsix 0 Traceback")
    assert printed.endswith("six 3 done\n")


def test_small_tables_are_fitted_once_and_broken_fits_fail(tmp_path, monkeypatch):
    def make(seed):
        cells = np.random.default_rng(seed).normal(size=(300, 4)).round(2)
        label = np.where(cells[:, 0] + cells[:, 1] > 0, "yes", "no")
        return pd.DataFrame(cells, columns=list("abcd")), label

    quick = replace(DEFAULT, hidden=32, batch=256, steps=600, enough=300)
    table = small_tables.SmallTable("tiny-300-2", make, "linear", tuned_on=False)
    monkeypatch.setattr(small_tables, "TABLES", (table,))
    monkeypatch.setattr(small_tables, "DEFAULT", quick)
    lines = [small_tables.measure((table.name, 0, how), tmp_path) for how in ("good", "steps")]
    assert lines[0]["verdict"] == "passes"
    assert lines[1]["verdict"] in small_tables.BAD
    monkeypatch.setattr(small_tables, "fit", pytest.fail)
    assert small_tables.measure((table.name, 0, "good"), tmp_path) == lines[0]
    page = small_tables.page(pd.DataFrame(lines), "Python")
    assert "| good fits that pass | at least 80 % | 100.0 % (1 of 1) | reached |" in page
    assert "| broken fits that fail | at least 95 % | 100.0 % (1 of 1) | reached |" in page


def test_the_page_on_small_tables_is_that_of_the_table_that_is_kept():
    folder = ROOT / "benchmarks" / "results"
    numbers = ("agreement", "short_labels", "counted_labels", "centroids", "centroids_before")
    missing = {name: [""] for name in numbers}
    table = pd.read_csv(folder / "small-tables.csv", keep_default_na=False, na_values=missing)
    text = (folder / "small-tables.md").read_text(encoding="utf-8")
    made_with = text.partition(".small_tables` with ")[2].partition(". Tables")[0]
    assert small_tables.page(table, made_with) == text


def test_learned_rules_are_counted_on_rows_held_out(tmp_path, monkeypatch):
    def parts(name, seed, folder):
        low = np.random.default_rng(seed).gamma(4.0, 10.0, 400).round(1)
        table = pd.DataFrame({"low": low, "high": low + 3.0 + 5 * np.sin(low).round(1) ** 2})
        test = table.tail(100).assign(low=lambda t: t["low"].where(t.index > 302, 999.0))
        return Schema.infer(table), table, test

    monkeypatch.setattr(learned_rules, "parts", parts)
    monkeypatch.setattr(learned_rules, "SPLITS", 2)
    lines = learned_rules.measure(("learned", "tiny"), tmp_path)
    assert [line["any"] for line in lines] == [3, 3]
    assert [[(text, n) for text, _, n in line["rules"]] for line in lines] == [
        [("low <= high - 3", 3)]
    ] * 2
    monkeypatch.setattr(learned_rules, "learned", pytest.fail)
    assert learned_rules.measure(("learned", "tiny"), tmp_path) == lines
    page = learned_rules.page({"tiny": lines}, [])
    assert "| tiny | 400 | 2 | 1 | 3.00% | `` low <= high - 3 `` |" in page


def test_the_page_on_ways_is_that_of_the_figures_that_are_kept():
    results = ROOT / "benchmarks" / "results"
    figures = pd.read_csv(results / "ways.csv")
    assert set(figures["table"]) == {*ways.FOREST, *ways.BOOSTING}
    assert ways.page(figures) == (results / "ways.md").read_text(encoding="utf-8")
