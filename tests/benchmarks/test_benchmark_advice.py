"""The measurement of advice: its checks find what was planted, and it runs and resumes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks import advice, advice_page, compare, public
from benchmarks.advice_case import Size
from benchmarks.advice_checks import FORMS, Added, Judge, added, minimality, simplest
from benchmarks.advice_distances import Outliers, Percentiles, differing, distances
from lapace import metrics
from lapace.constraints import System
from lapace.schema import Feature, Schema

TINY = Size(
    instances=3, added=6, models=2, rows=120,
)  # fmt: skip


class Over:
    """Says True where the numbers of a row sum to more than 10."""

    classes_ = (False, True)

    def predict(self, rows):
        return np.asarray(rows)[:, :3].astype(float).sum(axis=1) > 10


@pytest.fixture(scope="module")
def schema():
    return Schema.infer(np.linspace(0.0, 10.0, 41)[:, None] * np.ones(3))


def test_a_change_that_can_be_undone_is_counted(schema):
    rows, instance = np.array([[8.0, 3.0, 1.0]]), np.array([[0.0, 3.0, 0.0]])
    found = minimality(Judge(Over(), True, schema), rows, instance)
    assert (found.undone[0], found.changes[0]) == (1, 2)
    assert not found.minimal[0]


def test_a_number_that_can_go_back_is_counted(schema):
    instance = np.array([[0.0, 3.0, 0.0]])
    judge = Judge(Over(), True, schema)
    # The change of 7.5 goes back by 0.375, which is 0.25 or 0.5 on the lattice.
    assert minimality(judge, np.array([[7.5, 3.0, 0.0]]), instance).back[0] == 0
    assert minimality(judge, np.array([[9.0, 3.0, 0.0]]), instance).back[0] == 1


def test_an_added_constraint_keeps_a_change_from_being_undone(schema):
    rows, instance = np.array([[8.0, 3.0, 0.25]]), np.array([[0.0, 3.0, 0.0]])
    assert minimality(Judge(Over(), True, schema), rows, instance).undone[0] == 1
    kept = Added("bound", "x2 >= 0.25", lambda a, _: a[:, 2] >= 0.25)
    assert minimality(Judge(Over(), True, schema, (), [kept]), rows, instance).undone[0] == 0


def test_the_simplest_method_undoes_what_it_can_and_bisects_the_rest(schema):
    rows = schema.snap(np.random.default_rng(1).uniform(0, 10, (200, 3)))
    judge = Judge(Over(), True, schema)
    rows, instance = rows[judge.valid(rows)], np.array([1.0, 1.0, 1.0])
    judge.asked.clear()
    found = simplest(judge, rows, instance)
    assert found.shape == (1, 3)
    assert judge.valid(found).all()
    assert found.sum() == 10.25  # the least over 10 on the lattice
    assert 0 < sum(judge.asked) < 10 * 3 * 9


@pytest.fixture(scope="module")
def own():
    """A table with missing cells, its training rows, and the scale of the library's distance."""
    data = public.load("credit-a", 1)
    cells = data.schema.cells(data.train)
    new = hasattr(data.schema, "range_distance")
    return data.schema, cells, Percentiles(data.schema, cells) if new else None


def test_distances_are_those_of_the_schema(own):
    schema, cells, scale = own
    ours = distances(schema, cells[:200], cells[200:400], scale)
    # The library keeps a hundred percentiles of a column, the check all of them.
    np.testing.assert_allclose(ours, schema.distance(cells[:200], cells[200:400]), rtol=0.01)


def test_outliers_are_those_of_the_library(own):
    schema, cells, scale = own
    ours = Outliers(schema, cells[:300], scale)(cells[300:400])
    theirs = metrics.Plausibility(schema, cells[:300]).lof(cells[300:400])
    np.testing.assert_allclose(ours, theirs, rtol=0.01)


def test_a_percentile_is_the_share_below_and_half_the_share_equal():
    rows = np.array([[0.0], [1.0], [1.0], [10.0], [np.nan]])
    places = Percentiles(Schema.infer(rows), rows)
    found = places(np.array([[-5.0], [0.0], [0.5], [1.0], [10.0], [12.0]]))[:, 0]
    np.testing.assert_allclose(found, [0.125 - 0.5, 0.125, 0.3125, 0.5, 0.875, 1.075])


@pytest.mark.parametrize("form", FORMS)
def test_added_constraints_mean_what_their_text_says(form):
    data = public.load("credit-a", 1)
    cells, rng = data.schema.cells(data.train), np.random.default_rng(3)
    found = 0
    for k in range(12):
        instance = cells[k]
        constraint = added(data.schema, cells, instance, rng, form)
        if constraint is None:
            continue
        found += 1
        rows, originals = cells[100:400], np.repeat(instance[None], 300, axis=0)
        present = ~np.isnan(rows).any(axis=1)  # what missing numbers satisfy is the language's
        system = System.of([constraint.text], data.schema, check=False)
        same = system.feasible(rows, originals) == constraint.holds(rows, originals)
        assert same[present].all(), constraint.text
    assert found > 5


def test_generated_tables_follow_from_their_seed():
    a, b = public.load("credit-a", 1), public.load("credit-a", 1)
    assert not differing(a.schema.cells(a.train), b.schema.cells(b.train)).any()
    assert {f.kind for f in a.schema.features} == {"continuous", "ordinal", "categorical", "binary"}
    assert a.train.isna().any().sum() == 2


def test_a_tiny_run_measures_every_part_once_and_resumes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(advice, "QUICK", TINY)
    monkeypatch.setattr(advice, "CACHE", tmp_path)
    out = tmp_path / "advice.csv"
    chosen = ["--quick", "--pair", "iris-RF", "--seed", "11", "-o", str(out)]
    assert advice.main(chosen) == 0, capsys.readouterr().out
    table = advice.read(out)
    assert set(table["part"]) == set(advice.PARTS)
    assert (table[table["metric"] == "not_ok"]["mean"] == 0).all()
    page = out.with_suffix(".md").read_text()
    assert "| `nearest` is 1-minimal | all |" in page
    assert "## Beside other methods" in page
    before = out.read_bytes()
    assert advice.main(chosen) == 0
    assert out.read_bytes() == before


def test_targets_say_which_pairs_miss_them():
    line = {"seed": 1, "part": "beside", "label": "", "count": 10}
    lines = [
        {**line, "pair": pair, "method": method, "metric": metric, "mean": mean}
        for pair, mean in (("wine-RF", 1.1), ("b-RF", 1.3))
        for method, metric, mean in (("best(1)", "lof_50", mean), ("real rows", "lof_95", 1.0))
    ]
    found = list(advice_page.targets(advice_page.Results(pd.DataFrame(lines))))
    what = "LOF of `best(1)`, median, at most 1.2 x real rows' 95th percentile"
    assert found == [
        (what, "every pair", "1 of 1 the paper's pairs, 0 of 1 other pairs (not b-RF)", "**no**")
    ]


def test_two_measurements_side_by_side_count_what_both_have(tmp_path):
    files = []
    for name, code, pairs in (("before", "a", (2.0, 3.0)), ("after", "b", (1.0, 3.0, 9.0))):
        lines = []
        for pair, far in zip("pqr", pairs, strict=False):
            head = (pair, 11, "beside")
            lines.append((*head, "nearest", "distance_geo", "", far, "nan", 5, "s", code))
            lines.append((*head, "", "seconds", "", 1.0, "nan", 1, "s", code))
        files.append(tmp_path / f"{name}.csv")
        pd.DataFrame(lines, columns=advice.COLUMNS).to_csv(files[-1], index=False)
    text = compare.page(*compare.both(*files))
    assert text.startswith("Pairs: 2; seeds: 1.")
    assert "| nearest | 0.707 (1 better, 0 worse of 2) | – |" in text


def test_a_derived_column_follows_what_is_taken_back_and_is_no_change():
    rows = np.random.default_rng(0).integers(1, 40, (200, 2)) / 4
    table = pd.DataFrame({"a": rows[:, 0], "b": rows[:, 1], "sum": rows.sum(axis=1)})
    made = Feature("sum", "continuous", derived="a + b")
    schema = Schema.infer(table, {"sum": made})

    class Sum:
        def predict(self, rows):
            return np.asarray(rows["sum"]) > 10

    judge, instance = Judge(Sum(), True, schema), np.array([[2.0, 3.0, 5.0]])
    # Only the sum is read: one of the two changes can be undone as long as the sum stays over 10.
    found = minimality(judge, np.array([[8.0, 4.0, 12.0]]), instance)
    assert (found.changes[0], found.undone[0]) == (2, 1)
    np.testing.assert_allclose(distances(schema, np.array([[2.0, 3.0, 9.0]]), instance), 0)
