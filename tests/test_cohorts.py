"""Cohorts: groups of instances compared, and what features matter."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from lapace import Explainer, InputError, cohorts
from tests import worlds


def whole(**settings):
    here = worlds.bank()
    return here.explainer.explain(here.instances, target="approved", **settings)


def printed(compared):
    """What it prints, lines joined; they are not too long to read."""
    lines = str(compared).splitlines()
    assert max(map(len, lines)) <= 100
    return " ".join(line.strip() for line in lines)


def test_groups_are_counted_as_a_loop_counts_them():
    found = whole(constraints=["fixed age, home"])
    compared = cohorts.cohort(found, by="home")
    rows = found.nearest()
    rows = rows.where(rows.ok)
    frame = compared.costs.set_index("group")
    home = found.schema.index("home")
    for k, name in enumerate(found.schema["home"].levels):
        mine = [i for i in found if i.row["home"] == name and i.status != "already_target"]
        if name not in frame.index:
            assert not [i for i in found if i.row["home"] == name]
            continue
        line = frame.loc[name]
        assert line["instances"] == len(mine)
        assert line["answered"] == sum(i.status == "answered" for i in mine)
        cost = rows.distance[rows.instances[rows.instance, home] == k]
        if len(cost):
            assert line["cost"] == pytest.approx(cost.mean())
            assert line["cost_low"] <= line["cost"] <= line["cost_high"] or len(cost) < 2
    changed = compared.features
    for _, line in changed.iterrows():
        at = compared.group[compared.rows.instance] == compared.names.index(line["group"])
        column = found.schema.index(line["feature"])
        before = compared.rows.instances[compared.rows.instance[at], column]
        after = compared.rows.cells[at, column]
        assert line["changed"] == sum(
            found.schema.changed(
                compared.rows.instances[compared.rows.instance[at]], compared.rows.cells[at]
            )[:, column]
        )
        if found.schema.features[column].kind == "continuous":
            assert line["up"] == (after > before).sum()
    assert compared.prototypes["answers"].sum() == (compared.group[rows.instance] >= 0).sum()
    assert len(compared.unanswered) == sum(s in ("none_found", "infeasible") for s in found.status)


def test_a_difference_between_groups_is_found_and_none_where_there_is_none():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(400, 2)).round(2)
    explainer = Explainer(
        lambda rows: np.where(rows[:, 0] > 1, "yes", "no"),
        n_prototypes=1,
        recipe=worlds.QUICK,
        device="cpu",
    ).fit(table)
    found = explainer.explain(table[:80], target="yes")
    far = table[:80, 0] < 0
    apart = cohorts.cohort(found, by=np.where(far, "far", "near"))
    rows = apart.rows
    costs = [rows.distance[far[rows.instance] == side] for side in (True, False)]
    assert apart.p_cost == pytest.approx(stats.kruskal(*costs).pvalue)
    assert apart.p_cost < 1e-6
    assert "differs by group more than chance" in printed(apart)
    alike = cohorts.cohort(found, by=(np.arange(80) % 2).tolist())
    assert alike.p_cost > 0.01
    assert alike.names == ("0", "1")


def test_numbers_are_cut_at_their_quartiles():
    compared = cohorts.cohort(whole(), by="age")
    assert len(compared.names) == 4
    assert compared.names[0].startswith("up to ")
    assert np.bincount(compared.group).min() >= 5
    one = cohorts.cohort(whole())
    assert one.names == ("all",)
    assert np.isnan(one.p_cost)


def test_importance_is_the_share_and_the_probability_lost():
    here, found = worlds.bank(), whole()
    frame = cohorts.importance(found, here.explainer).set_index("feature")
    rows = found.nearest()
    rows = rows.where(rows.ok)
    different = found.schema.changed(rows.instances[rows.instance], rows.cells)
    name = frame.index[0]
    i = found.schema.index(name)
    assert frame.loc[name, "share"] == pytest.approx(different[:, i].mean())
    lost = []
    for row in np.flatnonzero(different[:, i]):
        undone = rows.cells[[row]].copy()
        undone[0, i] = rows.instances[rows.instance[row], i]
        table = found.schema.frame(undone)
        lost.append(rows.probability[row] - here.classifier.predict_proba(table)[0, 0])
    assert frame.loc[name, "probability_lost"] == pytest.approx(np.mean(lost))
    assert np.mean(lost) > 0
    assert "probability_lost" not in cohorts.importance(found)


def test_a_page_for_groups(tmp_path):
    compared = cohorts.cohort(whole(constraints=["changes <= 1", "fixed income"]), by="home")
    page = compared.to_html(tmp_path / "cohort.html")
    assert (tmp_path / "cohort.html").read_text(encoding="utf-8") == page
    for title in ("What an answer costs", "What changes", "Without an answer"):
        assert title in page
    assert "src=" not in page


def test_groups_that_are_refused():
    found = whole()
    with pytest.raises(InputError, match="Did you mean 'home'"):
        cohorts.cohort(found, by="hme")
    with pytest.raises(InputError, match="3 groups for 40 instances"):
        cohorts.cohort(found, by=["a", "b", "c"])
    with pytest.raises(InputError, match="makes 40 groups"):
        cohorts.cohort(found, by=range(40))
    with pytest.raises(InputError, match="missing for every instance"):
        cohorts.cohort(found, by=[None] * 40)


def test_without_any_answer_there_is_nothing_to_test():
    found = whole(constraints=["changes <= 0"])
    compared = cohorts.cohort(found, by="home")
    assert len(compared.rows) == 0
    assert "cannot be tested" in printed(compared)
    assert compared.features.empty if hasattr(compared.features, "empty") else True


def test_every_group_has_a_sentence_with_counts_and_units():
    found = whole(constraints=["fixed age, home"])
    unit = replace(found.schema["income"], unit="euros")
    features = [unit if f.name == "income" else f for f in found.schema.features]
    found = replace(found, schema=replace(found.schema, features=tuple(features)))
    nearest = replace(found.minimal["nearest"], schema=found.schema)
    found = replace(found, minimal={**found.minimal, "nearest": nearest})
    compared = cohorts.cohort(found, by="home")
    rows, income = compared.rows, found.schema.index("income")
    seen = 0
    for k, name in enumerate(compared.names):
        (sentence,) = (s for s in compared.sentences if s.startswith(f"{name}: "))
        mine = [i.status for i in found if i.row["home"] == name]
        tried = len(mine) - mine.count("already_target")
        assert f"{tried} of {len(mine)} lack the target label" in sentence
        at = compared.group[rows.instance] == k
        apart = (rows.cells - rows.instances[rows.instance])[at, income]
        up = apart[apart > 0]
        if "income" in sentence:
            seen += 1
            by = np.median(up)
            said = re.search(r"income rises by ([\d.]+) euros \(median\) in (\d+) of", sentence)
            assert float(said[1]) == pytest.approx(by, abs=0.051)
            assert int(said[2]) == len(up)
    assert seen >= 2
    assert "A cost is the distance of the nearest answer" in printed(compared)
    assert "weights" not in printed(compared)
    assert "times the weights" in printed(cohorts.cohort(whole(costs={"age": 2.0})))


def test_what_was_not_noticed_is_said_where_no_difference_was_found():
    compared = cohorts.cohort(whole(), by=(np.arange(40) % 2).tolist())
    assert compared.p_cost >= 0.05
    (said,) = (s for s in compared.sentences if "gone unnoticed" in s)
    counts = [(compared.group[compared.rows.instance] == k).sum() for k in (0, 1)]
    error = np.std(compared.rows.distance) * np.sqrt(1 / counts[0] + 1 / counts[1])
    assert f"less than about {2.8 * error:.2g} in the mean cost" in said
    assert "unnoticed" not in printed(replace(compared, p_cost=0.001, p_answered=np.nan))


def test_those_without_an_answer_get_a_next_step():
    assert "lapace why-not" not in printed(cohorts.cohort(whole(), by="home"))
    stuck = cohorts.cohort(whole(constraints=["changes <= 0"]), by="home")
    assert "lapace why-not" in printed(stuck)
    assert "lapace why-not" in stuck.to_html()
    assert "sampled row, not near a prototype" in cohorts.cohort(whole()).to_html()
