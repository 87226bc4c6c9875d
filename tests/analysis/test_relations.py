"""Rules that a table shows: which are learned, which are not, and what counterfactuals keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lapace import CentroidWarning, Explainer, InputError, datasets
from lapace.constraints import System
from lapace.relations import (
    LearnedRule,
    find_relations,
    learn_rules,
    one_hot_rules,
    warn_of_differences,
)
from lapace.schema import Schema
from lapace.training import Recipe
from tests.worlds import quick


def loans(count=400):
    """Loans whose instalment, fee and size follow from the amount and the months."""
    rng = np.random.default_rng(0)
    amount, months = rng.integers(10, 300, count) * 100, rng.integers(1, 15, count) * 6
    size = np.where(amount >= 15_000, "large", "small")
    columns = {"amount": amount, "months": months, "fee": amount // 100, "size": size}
    return pd.DataFrame({**columns, "instalment": np.ceil(amount / months).astype(int)})


def found_in(table, **overrides):
    columns = Schema.infer(table, overrides or None)
    found = find_relations(columns, columns.cells(table))
    return {each.column: each.expression for each in found}


def test_arithmetic_that_holds_in_every_row_is_found():
    rng = np.random.default_rng(0)
    a, b, c = rng.integers(1, 100, (3, 300))
    warm = rng.normal(10, 8, 300).round(1)
    table = pd.DataFrame(
        {
            "total": a + b + c, "a": a, "b": b, "c c": c, "area": a * b, "rate": (a / b).round(2),
            "percent": (100 * a / b).round(1), "saved": b - a, "cents": a * 100,
            "celsius": warm, "fahrenheit": (warm * 1.8 + 32).round(1),
        }
    )  # fmt: skip
    assert found_in(table) == {
        "c c": "total - a - b", "saved": "b - a", "cents": "100*a",
        "fahrenheit": "1.8*celsius + 32", "area": "a * b", "rate": "a / b",
        "percent": "100 * a / b",
    }  # fmt: skip


def test_sums_have_no_terms_that_add_nothing():
    rng = np.random.default_rng(0)
    noise = pd.DataFrame(rng.normal(size=(400, 4)).round(2), columns=list("pqrs"))
    share = rng.dirichlet(np.ones(4), 400)[:, :3].round(3)
    table = noise.assign(
        x=share[:, 0], y=0.4 * share[:, 0] + share[:, 1] + noise["p"], z=share[:, 2]
    )
    table["rest"] = 1 - table["x"] - table["y"] - table["z"]
    assert found_in(table.round(4))["rest"] == "- x - y - z + 1"


def test_what_is_found_can_be_declared_and_is_then_not_found_again():
    table = loans().astype({"amount": float})
    table.loc[::7, ["amount", "fee"]] = np.nan
    found = found_in(table)
    assert set(found) == {"fee", "instalment"}
    again = Schema.infer(table, {name: {"derived": text} for name, text in found.items()})
    cells = again.cells(table)
    assert not find_relations(again, cells)
    known = ~np.isnan(cells).any(axis=1)
    np.testing.assert_array_equal(again.derive(cells)[known], cells[known])


@pytest.mark.parametrize(("columns", "most"), [(12, 3), (12, 10), (8, 1000), (40, 20)])
def test_random_whole_numbers_raise_no_alarm(columns, most):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        table = pd.DataFrame(rng.integers(0, most, (200, columns)))
        table.columns = [f"v{i}" for i in range(columns)]
        table["word"] = rng.choice(["x", "y", "z"], 200)
        table["rare"] = np.where(rng.random(200) < 0.02, "yes", "no")
        assert not found_in(table)


def test_a_column_that_is_not_what_it_is_declared_as_is_doubted():
    table = loans(300)[["amount", "fee"]]
    columns = Schema.infer(table, {"fee": {"derived": "amount / 50"}})
    with pytest.warns(UserWarning, match="'fee' is declared as derived, but differs from"):
        warn_of_differences(columns, columns.cells(table))


# ------------------------------------------------------------------------------------------------
# Rules that are learned


def measures(count=600):
    """Two measures with their mean, high and worst, and numbers that hang on other columns."""
    rng = np.random.default_rng(3)
    table = pd.DataFrame()
    for name, scale in (("width", 10.0), ("depth", 1.0)):
        mean = rng.gamma(9.0, scale, count).round(2)
        table[f"mean {name}"] = mean
        table[f"high {name}"] = (mean * (1 + rng.gamma(1.0, 0.1, count))).round(2)
        table[f"worst {name}"] = (table[f"high {name}"] * (1 + rng.gamma(1.0, 0.1, count))).round(2)
    table["car"] = rng.choice(["no", "old", "new"], count)
    table["premium"] = np.where(table["car"] == "no", 0, rng.integers(100, 900, count))
    table["gain"] = np.where(rng.random(count) < 0.2, rng.integers(1, 99, count), 0)
    table["loss"] = np.where(rng.random(count) < 0.2, rng.integers(1, 99, count), 0)
    table.loc[table["gain"] > 0, "loss"] = 0
    return table


def grade(frame):
    """Rises with the mean and falls with the worst: the shortest way up breaks their order."""
    return np.where(frame["mean width"] - 0.5 * frame["worst width"] > 45, "high", "low")


ORDERS = {
    "`mean width` <= `high width`", "`high width` <= `worst width`",
    "`mean depth` <= `high depth`", "`high depth` <= `worst depth`",
}  # fmt: skip
ZEROS = {'if car == "no" then premium == 0', "if gain > 0 then loss == 0"}


def learned_from(table, wanted=True):
    columns = Schema.infer(table)
    return learn_rules(columns, columns.cells(table), wanted)


def texts(rules):
    return {rule.text for rule in rules}


def test_orders_and_zeros_are_learned_and_transitive_ones_reduced():
    schema, rules = learned_from(measures())
    assert texts(rules) == ORDERS | ZEROS
    system = System.of([rule.constraint for rule in rules], schema).strict
    cells = schema.cells(measures())
    assert system.holds(cells, cells).all()
    assert all(LearnedRule.from_json(rule.to_json()) == rule for rule in rules)
    support = {rule.text: rule.support for rule in rules}
    assert support['if car == "no" then premium == 0'] == (measures()["car"] == "no").sum()


def test_one_row_that_breaks_a_rule_is_enough():
    table = measures()
    table.loc[0, "mean width"] = table.loc[0, "high width"] + 0.01
    table.loc[table.index[table["car"] == "no"][0], "premium"] = 5
    lost = {"`mean width` <= `high width`", 'if car == "no" then premium == 0'}
    assert not texts(learned_from(table)[1]) & lost


def test_ranges_and_chance_are_no_rules():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "low": rng.integers(0, 10, 300), "high": rng.integers(10, 20, 300),
            "rare": rng.choice([0, 1, 2, 3], 300, p=[0.97, 0.01, 0.01, 0.01]),
            "kind": rng.choice(list("abcdefgh"), 300),
        }
    )  # fmt: skip
    assert learned_from(table)[1] == ()
    assert learned_from(measures(150))[1] == ()  # too few rows


def test_an_order_is_strict_where_equal_values_would_have_been_seen():
    rng = np.random.default_rng(0)
    start = rng.integers(0, 300, 400)
    table = pd.DataFrame({"start": start, "end": start + rng.integers(1, 8, 400)})
    assert texts(learned_from(table)[1]) == {"start < end"}


def ages(above):
    """Ages, and years in a job: the least difference of the two is 18, some are `above` it."""
    rng = np.random.default_rng(1)
    years = rng.integers(0, 40, 600)
    return pd.DataFrame({"years": years, "age": years + 18 + above(rng, 600)})


def test_an_order_has_an_offset_where_the_differences_have_a_sharp_edge():
    table = ages(lambda rng, count: rng.integers(0, 20, count))
    assert texts(learned_from(table)[1]) == {"years <= age - 18"}
    (rule,) = learned_from(table)[1]
    assert LearnedRule.from_json(rule.to_json()) == rule
    table.loc[0, "age"] = table.loc[0, "years"] + 17  # one row below: a tail, not an edge
    assert "years <= age - 18" not in texts(learned_from(table)[1])


def test_a_tail_of_differences_is_no_edge():
    table = ages(lambda rng, count: rng.poisson(12, count))
    assert texts(learned_from(table)[1]) == {"years <= age"}


def test_offsets_of_two_orders_make_a_third_needless():
    table = ages(lambda rng, count: rng.integers(0, 20, count))
    extra = np.random.default_rng(2).integers(0, 9, len(table))
    table["pension"] = table["age"] + 2 + extra
    assert texts(learned_from(table)[1]) == {"years <= age - 18", "age <= pension - 2"}
    table["pension"] = table["years"] + 25 + extra  # no longer a matter of the age
    assert texts(learned_from(table)[1]) == {"years <= age - 18", "years <= pension - 25"}


def test_the_tables_that_lapace_makes_show_their_offset():
    loans = datasets.load("loans")
    _, rules = learn_rules(loans.schema, loans.schema.cells(loans.train))
    assert "years_employed <= age - 17" in texts(rules)  # in whole years, from 16 on


def test_columns_of_other_units_are_not_compared():
    table = measures()[["mean width", "worst width"]].round(0).astype(int).astype(str)
    table["worst width"] = table["worst width"] + " mm"
    assert learned_from(table)[1] == ()


def test_rules_are_left_out_one_by_one_or_all():
    off = "`mean width` <= `high width`"
    rules = learned_from(measures(), {f" {off}": False})[1]
    assert texts(rules) == (ORDERS | ZEROS | {"`mean width` <= `worst width`"}) - {off}
    assert learned_from(measures(), False)[1] == ()
    with pytest.raises(InputError, match=r"no learned rule .* Did you mean '`mean width` <= `h"):
        learned_from(measures(), {"`mean widht` <= `high width`": False})
    with pytest.raises(InputError, match="learn_rules is 'no'; it is True, False"):
        learned_from(measures(), "no")


def test_sums_and_ratios_become_derived_columns():
    schema, rules = learned_from(loans())
    found = {"fee == 0.01*amount", "instalment == ceil(amount / months)"}
    assert texts(rules) == found
    assert {rule.support for rule in rules} == {400}
    assert schema["instalment"].derived == "ceil(amount / months)"
    schema, rules = learned_from(loans(), {"fee == 0.01*amount": False})
    assert schema["fee"].derived is None


@pytest.fixture(scope="module")
def fitted():
    return quick(grade).fit(measures())


def test_counterfactuals_keep_learned_rules(fitted):
    explanation = fitted.explain(measures().head(40), target="high")
    assert texts(fitted.rules_) == ORDERS | ZEROS
    rows = explanation.nearest().rows[explanation.nearest().ok]
    assert len(rows) >= 30
    assert (rows["mean width"] <= rows["high width"]).all()
    assert (rows["high width"] <= rows["worst width"]).all()
    assert (rows.loc[rows["car"] == "no", "premium"] == 0).all()


def test_an_instance_that_breaks_a_learned_rule_is_answered_all_the_same(fitted):
    low = measures().loc[lambda t: grade(t) == "low"]
    odd = low.head(6).reset_index(drop=True)
    odd.loc[odd.index[:3], "high depth"] = (odd["mean depth"] - 1.0).round(2)
    keep = ["fixed `mean depth`, `high depth`, `worst depth`"]
    with pytest.warns(UserWarning, match="3 of 6 instances break rules learned .* '`mean depth` <"):
        explanation = fitted.explain(odd, target="high", constraints=keep)
    assert set(explanation.status) == {"answered"}
    rows = explanation.nearest().rows
    assert (rows["mean width"] <= rows["high width"]).all()
    assert explanation.nearest().feasible.all()


def test_a_constraint_that_contradicts_a_learned_rule_wins(fitted):
    wanted = ["`mean depth` >= `worst depth` + 1"]
    with pytest.warns(UserWarning, match="was learned from the training table and is left out"):
        explanation = fitted.explain(measures().head(4), target="high", constraints=wanted)
    rows = explanation.nearest().rows[explanation.nearest().ok]
    assert len(rows)
    assert (rows["mean depth"] > rows["worst depth"]).all()


def test_learned_rules_are_saved(fitted, tmp_path):
    fitted.save(tmp_path / "m.lapace")
    again = Explainer.load(tmp_path / "m.lapace", grade)
    assert again.rules_ == fitted.rules_
    assert again.fitted_.rules == fitted.fitted_.rules
    assert all(rule.learned for rule in again.fitted_.rules)
    assert (again.rules, again.learn_rules) == ((), True)


def test_a_declared_rule_replaces_the_learned_one_that_it_implies():
    table = measures()
    table["high width"] = (table["high width"] + 0.01).round(2)
    rules = ["`mean width` <= `high width` - 0.01"]
    fitted = quick(grade, 1, rules=rules).fit(table)
    assert "`mean width` <= `high width`" not in texts(fitted.rules_)


@pytest.mark.filterwarnings("ignore::lapace.CentroidWarning")
def test_the_paper_learns_no_rules():
    paper = replace(Recipe.of("paper"), steps=50)
    assert quick(grade, 1, recipe=paper).fit(measures(200)).rules_ == ()


# ------------------------------------------------------------------------------------------------
# One-hot groups, and classifiers that refuse made-up rows

HOMES = ("own", "rent", "kin")


def households():
    rng = np.random.default_rng(0)
    home = rng.integers(0, 3, 300)
    flags = {f"home_{name}": (home == k).astype(int) for k, name in enumerate(HOMES)}
    return pd.DataFrame(
        {"income": rng.integers(10, 90, 300), "debt": rng.integers(0, 60, 300), **flags}
    )


def tied(frame):
    schema = Schema.infer(frame)
    return [rule.text for rule in one_hot_rules(schema, schema.cells(frame))]


def test_columns_of_which_exactly_one_is_set_are_tied():
    frame = households()
    assert tied(frame) == ["home_own + home_rent + home_kin == 1"]
    assert tied(frame.astype({f"home_{name}": bool for name in HOMES})) == tied(frame)
    twice = frame.copy()
    twice.loc[0, ["home_own", "home_rent"]] = 1
    assert tied(twice) == []
    assert tied(frame.rename(columns={"home_own": "own", "home_rent": "rent"})) == []
    assert tied(frame.head(20)) == []


def strict(frame):
    """Refuses what its table never held: no home, or two; and more than anyone earns."""
    homes = frame[[f"home_{name}" for name in HOMES]].sum(axis=1)
    if (homes != 1).any() or (frame["income"] > 85).any():
        raise ValueError("no such household")
    return np.where(frame["income"] + 20 * frame["home_own"] > frame["debt"] + 30, "yes", "no")


def test_a_classifier_that_refuses_made_up_rows_costs_no_fit():
    frame = households().assign(income=lambda f: f["income"].clip(upper=85))
    frame.loc[0, "income"] = 20
    explainer = quick(strict).fit(frame)
    assert any("home_own" in str(rule) for rule in explainer.fitted_.rules)
    explanation = explainer.explain(frame.head(20), target="yes")
    assert "answered" in explanation.status
    found = explanation.nearest()
    rows = found.rows[found.ok]
    assert (rows[[f"home_{name}" for name in HOMES]].sum(axis=1) == 1).all()


def test_a_small_label_whose_prototypes_fail_costs_no_fit():
    rng = np.random.default_rng(1)
    train = rng.normal(size=(300, 3)).round(3)
    odd = {tuple(row) for row in train[:6]}

    def label(rows):  # six rows scattered at random are a class: no prototype is one of them
        rare = [tuple(row) in odd for row in np.round(rows, 3)]
        return np.where(rare, "odd", np.where(rows[:, 0] > 0, "high", "low"))

    explainer = quick(label)
    with pytest.warns() as warned:
        explainer.fit(train)
    assert {w.category for w in warned} == {UserWarning, CentroidWarning}  # x0 gives the label
    assert any("'odd'" in str(w.message) and "be a target" in str(w.message) for w in warned)
    explanation = explainer.explain(train[10:20], target="high")
    assert set(explanation.status) <= {"answered", "already_target"}
    with pytest.raises(InputError, match="no valid prototype of label 'odd'"):
        explainer.explain(train[10:12], target="odd")
