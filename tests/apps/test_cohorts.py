"""Cohorts: groups of instances compared."""

from __future__ import annotations

import re
from collections import Counter
from html import escape

import numpy as np
import pytest
from scipy import stats

from lapace import InputError, cohorts
from tests import worlds


def whole(**settings):
    here = worlds.bank()
    return here.explainer.explain(here.instances, target="approved", **settings)


def printed(compared):
    """What it prints, lines joined; they are not too long to read."""
    lines = str(compared).splitlines()
    assert max(map(len, lines)) <= 100
    return " ".join(line.strip() for line in lines)


def answers(found):
    rows = found.nearest()
    return rows.where(rows.ok)


def test_groups_are_counted_as_a_loop_counts_them():
    found = whole(constraints=["fixed age, home", "changes <= 2"])
    compared = cohorts.cohort(found, by="home")
    rows, schema = answers(found), found.schema
    costs = compared.costs.set_index("group")
    changes = compared.features.set_index(["group", "feature"])
    homes = [i.row["home"] or "missing" for i in found]
    assert set(costs.index) == set(homes)
    for name in costs.index:
        status = [i.status for i, home in zip(found, homes, strict=True) if home == name]
        line = costs.loc[name]
        mine = rows.where(np.array([homes[i] == name for i in rows.instance], dtype=bool))
        assert line["instances"] == len(status) - status.count("already_target")
        assert line["answered"] == status.count("answered") == len(mine)
        if not len(mine):
            assert np.isnan(line["cost"])
            continue
        assert line["cost"] == pytest.approx(mine.distance.mean())
        assert len(mine) < 5 or 0 <= line["cost_low"] <= line["cost"] <= line["cost_high"]
        assert line["changes"] == pytest.approx(mine.changed.mean())
        before, after = mine.instances[mine.instance], mine.cells
        changed = schema.changed(before, after)
        for i, feature in enumerate(schema.features):
            assert ((name, feature.name) in changes.index) == changed[:, i].any()
            if not changed[:, i].any():
                continue
            line, apart = changes.loc[(name, feature.name)], (after - before)[changed[:, i], i]
            assert line["changed"] == len(apart)
            if feature.kind == "continuous":
                assert (line["up"], line["down"]) == ((apart > 0).sum(), (apart < 0).sum())
                present = apart[~np.isnan(apart)]
                assert line["median_change"] == pytest.approx(
                    np.median(present) if len(present) else np.nan, nan_ok=True
                )
    stuck = [i for i in found if i.status in ("none_found", "infeasible")]
    assert compared.unanswered["instances"].sum() == len(stuck)


def test_a_difference_between_groups_is_found_and_none_where_there_is_none():
    found = whole()
    rows, cost = answers(found), np.zeros(40)
    cost[rows.instance] = rows.distance
    far = cost > np.median(rows.distance)
    apart = cohorts.cohort(found, by=np.where(far, "far", "near"))
    costs = [rows.distance[far[rows.instance] == side] for side in (True, False)]
    assert apart.p_cost == pytest.approx(stats.kruskal(*costs).pvalue)
    assert apart.p_cost < 1e-3
    assert "differs by group more than chance" in printed(apart)
    alike = cohorts.cohort(found, by=(np.arange(40) % 2).tolist())
    assert alike.p_cost > 0.01
    assert alike.names == ("0", "1")


def test_numbers_are_cut_at_quartiles_of_the_training_rows():
    compared = cohorts.cohort(whole(), by="age")
    assert len(compared.names) == 4
    assert compared.names[0].startswith("up to ")
    assert min(Counter(compared.groups).values()) >= 3
    one = cohorts.cohort(whole())
    assert one.names == ("all",)
    assert np.isnan(one.p_cost)


def test_groups_with_the_same_figure_are_named_together():
    found = whole(constraints=["changes <= 1", "fixed income"])
    answered = np.array(found.status) == "answered"
    none, some = np.flatnonzero(~answered), np.flatnonzero(answered)
    groups = np.full(40, "rest", dtype=object)
    groups[none[:1]], groups[some[:3]], groups[some[3:6]] = "none", "a", "b"
    assert "highest for “a” and “b” (100%)." in printed(cohorts.cohort(found, by=groups))


def test_groups_that_are_refused():
    found = whole()
    with pytest.raises(InputError, match="Did you mean 'home'"):
        cohorts.cohort(found, by="hme")
    with pytest.raises(InputError, match="3 groups for 40 instances"):
        cohorts.cohort(found, by=["a", "b", "c"])


def test_those_without_an_answer_get_a_reason_and_a_next_step():
    assert "lapace why-not" not in printed(cohorts.cohort(whole(), by="home"))
    stuck = cohorts.cohort(whole(constraints=["changes <= 0"]), by="home")
    assert stuck.costs["answered"].sum() == 0
    assert stuck.features.empty
    assert "cannot be tested" in printed(stuck)
    assert "lapace why-not" in printed(stuck)


def test_figures_in_sentences_are_those_of_the_tables():
    found = whole()
    rows, cost = answers(found), np.zeros(40)
    cost[rows.instance] = rows.distance
    compared = cohorts.cohort(found, by=np.where(cost > np.median(rows.distance), "dear", "cheap"))
    text, costs = printed(compared), compared.costs.set_index("group")
    answered = costs["answered"]
    mean = (costs["cost"] * answered).sum() / answered.sum()
    changes = (costs["changes"] * answered).sum() / answered.sum()
    assert text.startswith(
        f"{answered.sum()} of {costs['instances'].sum()} instances without the target label have "
        f"an answer; it costs {mean:.2f} and changes {changes:.1f} features on average."
    )
    cheap, dear = costs["cost"]
    assert f"lowest for “cheap” ({cheap:.2f}), highest for “dear” ({dear:.2f})" in text
    changed = compared.features.groupby("feature", sort=False)["changed"].sum() / answered.sum()
    often = re.findall(r"(\w+) \((\d+%)\)", re.search("most often change .*?\\.", text)[0])
    assert often == [(name, f"{share:.0%}") for name, share in changed.head(3).items()]


def table_of(page, title):
    """The lines of a table of the page, each by the names of its columns."""
    head, *lines = re.search(rf"<h2>{title}.*?</table>", page)[0].split("<tr>")[1:]
    names = re.findall("<th>(.*?)</th>", head)
    cells = (re.findall("<td>(.*?)</td>", line) for line in lines)
    return [dict(zip(names, line, strict=True)) for line in cells]


def test_a_page_begins_with_a_chart_and_names_the_groups(tmp_path):
    compared = cohorts.cohort(whole(constraints=["changes <= 1", "fixed income"]), by="home")
    page = compared.to_html(tmp_path / "cohort.html")
    assert (tmp_path / "cohort.html").read_text(encoding="utf-8") == page
    places = [page.index(part) for part in ("<svg", "<p>", "<h2>Who has", "<h2>What changes")]
    assert places == sorted(places)
    chart = page[: page.index("</svg>")]
    for name in compared.names:
        assert f"<!-- {escape(name)} -->" in chart
    assert "src=" not in page
    for title in ("Who has an answer", "What changes", "Without an answer"):
        lines = table_of(page, title)
        assert lines
        assert {line["home"] for line in lines} - {"all groups"} <= set(compared.names)
    alone = cohorts.cohort(whole()).to_html()
    assert "all groups" not in alone
    assert "<h1>What has to change</h1>" in alone


def test_figures_of_a_page_are_the_same_in_sentences_tables_and_chart():
    found = whole()
    rows, cost = answers(found), np.zeros(40)
    cost[rows.instance] = rows.distance
    compared = cohorts.cohort(found, by=np.where(cost > np.median(rows.distance), "dear", "cheap"))
    page, text = compared.to_html(), printed(compared)
    costs = {line["group"]: line for line in table_of(page, "Who has an answer")}
    every = costs["all groups"]
    figure = r"([\d.]+%?)"
    said = re.search(rf"(\d+) of (\d+) instances .* costs {figure} and changes {figure} f", text)
    assert said.groups() == (
        every["answered"], every["instances"], every["cost"].split()[0], every["changes"],
    )  # fmt: skip
    extremes = rf"lowest for “cheap” \({figure}\), highest for “dear” \({figure}"
    shown = tuple(costs[name]["cost"].split()[0] for name in ("cheap", "dear"))
    assert re.search(extremes, text).groups() == shown
    changed = table_of(page, "What changes")
    often = re.findall(rf"(\w+) \({figure}\)", re.search("most often change .*?\\.", text)[0])
    shares = {line["feature"]: line["share"] for line in changed if line["group"] == "all groups"}
    assert often == list(shares.items())[:3]
    for line in (line for line in changed if line["group"] != "all groups"):
        assert f"<!-- {line['share']} -->" in page, "a cell of the chart"
