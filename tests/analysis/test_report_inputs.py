"""What a fit hands to its report: rows explained, labels recognised, broken fits noticed."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import small_tables
from benchmarks.small_worlds import SmallTable
from lapace import Explainer
from lapace.explainer import estimator
from lapace.training import DEFAULT

QUICK = replace(DEFAULT, hidden=32, batch=256, steps=600, enough=300)


def rows(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(300, 4)).round(2)


def label(table) -> np.ndarray:
    return np.where(table[:, 0] + table[:, 1] > 0, "yes", "no")


def fitted(classifier=label, recipe=QUICK, **settings) -> Explainer:
    return Explainer(classifier, n_prototypes=2, recipe=recipe, device="cpu", **settings).fit(
        rows()
    )


@pytest.fixture(scope="module")
def good() -> Explainer:
    return fitted()


def values(explainer: Explainer) -> dict[str, float | None]:
    return {c.threshold.name: c.value for c in explainer.report_.checks}


def test_a_good_fit_passes_because_of_what_comes_back(good):
    found = values(good)
    assert good.report_.verdict == "passes", good.report_.advice
    assert found["answered"] == found["valid"] == 1.0
    assert found["closer"] < 1.0
    assert found["recognised"] > 0.5
    assert [x.label for x in good.report_.explained] == ["no", "yes"]
    assert sum(x.tried for x in good.report_.explained) == 30
    assert all(20 < x.density_real < 80 for x in good.report_.explained)


def test_the_report_counts_its_own_queries(good):
    asked = []

    def counted(table):
        asked.append(len(table))
        return label(table)

    report = fitted(counted).report_
    assert report.n_queries.total == sum(asked)
    assert report.n_queries.report < 6000


def test_labels_in_random_order_are_not_recognised(monkeypatch):
    monkeypatch.setattr(estimator, "fit_model", small_tables._shuffled)
    broken = fitted()
    assert abs(values(broken)["recognised"]) < 0.35
    assert broken.report_.verdict == "fails"


def test_exchanged_prototypes_are_noticed_though_they_claim_to_be_valid(monkeypatch):
    monkeypatch.setattr(estimator, "judge_centroids", small_tables._swapped)
    broken = fitted()
    assert values(broken)["valid"] < 0.95
    assert broken.report_.verdict == "fails"


def test_rules_hold_while_the_report_explains():
    explainer = fitted(rules=["x0 == original"])
    assert values(explainer)["answered"] > 0.5
    assert values(explainer)["valid"] == 1.0
    impossible = fitted(rules=["x0 == original", "x1 == original"])  # nothing else matters
    assert values(impossible)["answered"] == 0.0
    assert impossible.report_.verdict == "fails"


def test_a_label_that_no_path_leads_to_is_not_asked_for():
    train = rows()
    rare = np.sort(train[:, 0])[-3]

    def three(table):
        return np.where(table[:, 0] >= rare, "rare", label(table))

    explainer = Explainer(three, n_prototypes=2, recipe=QUICK, device="cpu").fit(train)
    assert {x.label for x in explainer.report_.explained} == {"no", "yes"}


def test_explaining_with_a_failed_report_warns(good, tmp_path):
    failing = replace(
        good.report_,
        checks=tuple(replace(c, value=0.0, low=0, high=0) for c in good.report_.checks),
    )
    good.save(tmp_path / "good.lapace")
    explainer = Explainer.load(tmp_path / "good.lapace", label, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explainer.explain(rows(1)[:2])
    explainer._report = failing
    with pytest.warns(UserWarning, match="The report of this explainer fails") as caught:
        explainer.explain(rows(1)[:2])
    assert failing.advice[0] in str(caught[0].message)


# --- the benchmark --------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch):
    import pandas as pd

    def make(seed):
        frame = pd.DataFrame(rows(seed), columns=list("abcd"))
        return frame, label(frame.to_numpy())

    table = SmallTable("tiny-300-2", make, "linear", tuned_on=False)
    monkeypatch.setattr(small_tables, "TABLES", (table,))
    monkeypatch.setattr(small_tables, "DEFAULT", QUICK)
    return table


def test_small_tables_are_measured_once_and_judged_again(tiny, tmp_path, capsys):
    jobs = [(tiny.name, 0, "good"), (tiny.name, 0, "steps")]
    assert set(jobs) < set(small_tables.jobs(1, 1))
    for job in jobs:
        small_tables._kept(tmp_path, job)
    small_tables.run(jobs, tmp_path, workers=1, seconds=60)
    assert "2 of 2 fits are already done." in capsys.readouterr().out
    table = small_tables.collect(jobs, tmp_path)
    assert table["verdict"].tolist()[0] == "passes"
    assert table["verdict"].tolist()[1] in small_tables.BAD
    assert small_tables.judged(table)["verdict"].tolist() == table["verdict"].tolist()
    page = small_tables.page(table, "Python")
    assert "| good fits that pass | at least 80 % | 100.0 % (1 of 1) | reached |" in page
    assert "| broken fits that fail | at least 95 % | 100.0 % (1 of 1) | reached |" in page
    assert "tiny-300-2" in page


def test_the_page_that_is_kept_is_that_of_the_table_that_is_kept():
    import pandas as pd

    folder = small_tables.RESULTS
    table = pd.read_csv(folder / "small-tables.csv", keep_default_na=False, na_values=[""])
    text = (folder / "small-tables.md").read_text()
    versions = text.partition(".small_tables` with ")[2].partition(". Tables")[0]
    assert small_tables.page(small_tables.judged(table), versions) == text
