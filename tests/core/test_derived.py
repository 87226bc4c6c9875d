"""Derived columns: expressions, rows that follow, constraints on them, explanations and files."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapace import Explainer
from lapace.constraints import System
from lapace.errors import InputError
from lapace.schema import Feature, Schema
from lapace.schema.expressions import column_text, parse
from tests.worlds import quick

# --- expressions -----------------------------------------------------------------------------

COLUMNS = {"a": np.array([1.0, 2.0, -3.0]), "b": np.array([4.0, 0.5, 10.0]), "a b": np.ones(3)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b * 2", [9, 3, 17]),
        ("(a + b) * 2", [10, 5, 14]),
        ("-a^2 + b", [3, -3.5, 1]),
        ("2 ** -a * 1", [0.5, 0.25, 8]),
        ("a - b - 1", [-4, 0.5, -14]),
        ("b / 2 / 2", [1, 0.125, 2.5]),
        ("--a", [1, 2, -3]),
        ("`a b` + a", [2, 3, -2]),
        ("max(a, b, 3)", [4, 3, 10]),
        ("min(a, 0)", [0, 0, -3]),
        ("round(b / 3, 1)", [1.3, 0.2, 3.3]),
        ("ceil(0.1 * 3 * a / 0.1)", [3, 6, -9]),  # not the ceiling of 3.0000000000000004
        ("floor(b)", [4, 0, 10]),
        ("abs(a) + sqrt(b + 5) * 0", [1, 2, 3]),
        ("log(exp(a))", [1, 2, -3]),
        ("a / 0", [math.inf, math.inf, -math.inf]),
    ],
)
def test_expressions_are_evaluated_as_on_paper(text, expected):
    found = parse(text).evaluate(COLUMNS)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it is incomplete, or its parts do not fit together"),
        ("a +", "it is incomplete"),
        ("a b", "its parts do not fit together"),
        ("a // b", "expected columns, numbers, functions and arithmetic"),
        ("max(*a, b)", "expected columns"),
        ("(a, b)", "expected columns"),
        ("7 * 2", "it names no column"),
        ("foo(a)", "there is no function 'foo'. Did you mean 'floor'"),
        ("a % 2", "'%' has no meaning here. Names with such characters go in backticks"),
        ("a # b", "'#' has no meaning here"),
        ("if(a > 2, 1, 0)", "'>' has no meaning here"),
        ("__import__(os) + a", "there is no function '__import__'"),
        ("a.real", "'.' has no meaning here"),
        ("original + 1", "'original' has no meaning"),
        ("ceil(a, b, c)", "ceil takes 1 arguments, not 3"),
        ("min(a)", "min takes 2 or more"),
        ("(" * 101 + "a" + ")" * 101, "it is too long"),
        ("-" * 201 + "a", "it is too long"),
    ],
)
def test_expressions_that_are_refused(text, sentence):
    with pytest.raises(InputError, match=r"^Column 'x' is derived. Cannot read") as error:
        Feature("x", "continuous", derived=text)
    assert sentence in str(error.value)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        found = parse(text)
    except InputError:
        return
    assert found.columns


@given(st.text(min_size=1, max_size=8).filter(lambda name: "\0" not in name))
def test_any_name_can_be_written(name):
    assert parse(column_text(name) + " + 1").columns == (name,)


# --- rows that follow ------------------------------------------------------------------------


def loans(count=400, seed=0):
    """Loans whose instalment, fee and total follow from the amount and the months."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "income": rng.integers(80, 500, count) * 10,
            "amount": rng.integers(10, 300, count) * 100,
            "months": rng.integers(1, 15, count) * 6,
            "home": rng.choice(["own", "rent"], count),
        }
    )
    table["instalment"] = np.ceil(table.amount / table.months).astype(int)
    table["fee"] = table.amount // 100
    table["total"] = table.instalment + table.fee
    return table


DERIVED = {
    "total": {"derived": "instalment + fee"},
    "instalment": {"derived": "ceil(amount / months)"},
    "fee": {"derived": "amount / 100"},
}


@cache
def schema():
    return Schema.infer(loans(), DERIVED)


def follows(cells):
    """Whether every derived cell is what the table's generator would write."""
    frame = schema().frame(cells, loans(5).pipe(lambda t: schema().read(t).template))
    again = frame.assign(
        instalment=np.ceil(frame.amount / frame.months - 1e-9), fee=frame.amount / 100
    )
    again["total"] = again.instalment + again.fee
    names = ["instalment", "fee", "total"]
    return (frame[names].astype(object) == again[names].astype(object)).all(axis=1).to_numpy()


def moved(cells, **changes):
    cells = cells.copy()
    for name, value in changes.items():
        cells[:, schema().index(name)] = value
    return cells


def test_columns_are_derived_in_the_order_of_what_they_follow_from():
    names = [schema().names[d.column] for d in schema().derived.each]
    assert sorted(names) == ["fee", "instalment", "total"]
    assert names.index("total") > max(names.index("fee"), names.index("instalment"))
    total = next(d for d in schema().derived.each if d.feature.name == "total")
    assert {schema().names[i] for i in total.sources} == {"amount", "months"}


def test_derived_cells_follow_wherever_an_input_changed():
    cells = schema().cells(loans(60, seed=1))
    found = schema().derive(moved(cells, amount=20_000.0), cells)
    assert follows(found).all()
    np.testing.assert_array_equal(found[:, :4], moved(cells, amount=20_000.0)[:, :4])
    np.testing.assert_array_equal(schema().derive(found, cells), found)  # and stay
    rubbish = moved(cells, instalment=1.0, fee=1.0, total=1.0)
    np.testing.assert_array_equal(schema().derive(rubbish), cells)  # without instances, all


def test_where_no_input_changed_the_instances_own_value_stays():
    own = moved(schema().cells(loans(20, seed=1)), instalment=12.5, total=1.0, fee=3.0)
    again = moved(own, income=1000.0, instalment=99.0, total=77.0)
    np.testing.assert_array_equal(schema().derive(again, own), moved(own, income=1000.0))
    # The total follows from an instalment that has changed, and from the instance's own fee.
    own = own[own[:, schema().index("months")] != 84]
    found = schema().derive(moved(own, months=84.0), own)
    total, instalment = (found[:, schema().index(n)] for n in ("total", "instalment"))
    np.testing.assert_array_equal(total, instalment + 3.0)


def test_what_an_input_lacks_the_derived_column_lacks():
    table = loans(200)
    table["amount"] = table["amount"].astype(float)
    table.loc[::5, ["amount", "instalment", "fee", "total"]] = np.nan
    columns = Schema.infer(table, DERIVED)
    cells = columns.cells(table)
    changed = cells.copy()
    changed[:, columns.index("months")] = 31
    found = columns.derive(changed, cells)
    missing = np.isnan(cells[:, columns.index("amount")])
    for name in ("instalment", "total"):
        np.testing.assert_array_equal(np.isnan(found[:, columns.index(name)]), missing)
    assert columns.derived.derivable(found, cells).all()


def test_a_row_without_a_value_for_a_derived_column_is_not_derivable():
    cells = schema().cells(loans(3, seed=3))
    for months in (0.0, 0.001):  # nothing to compute; far beyond any instalment seen
        found = schema().derive(moved(cells, months=months), cells)
        assert not schema().derived.derivable(found, cells).any()
    out = moved(cells, instalment=1e6, total=1e6)  # the instance itself may be as far out
    found = schema().derive(moved(out, months=0.1), out)
    assert schema().derived.derivable(found, out).all()


def test_derived_columns_are_no_change_of_their_own():
    cells = schema().cells(loans(40, seed=1))
    changed = moved(cells, amount=12_000.0)
    found = schema().derive(changed, cells)
    assert schema().differs(changed, found).any(axis=1).all()
    amount = schema().distance(cells, changed)
    assert (amount > 0).all()
    np.testing.assert_array_equal(schema().distance(cells, found), amount)
    ranged = np.abs(found - cells)[:, schema().index("amount")] / schema()["amount"].span
    np.testing.assert_allclose(schema().by_range().distance(cells, found), ranged)
    apart = np.diag(schema().metric.pairwise(cells, found))
    np.testing.assert_allclose(apart, amount, atol=1e-12)
    assert schema().changed(cells, found).sum() == (amount > 0).sum()
    assert schema().differs(cells, found).sum() > 2 * (amount > 0).sum()
    assert schema().weights(None).sum() == 4
    with pytest.raises(InputError, match=r"'total' is derived, .* follows from: instalment, fee"):
        schema().weights({"total": 2.0})


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"fee": {"derived": "amout / 2"}}, "not in the table. Did you mean 'amount'"),
        ({"fee": {"derived": "fee + 1"}}, "circle: 'fee' → 'fee'"),
        ({"fee": {"derived": "total"}, "total": {"derived": "fee"}}, "go round in a circle"),
        ({"fee": {"derived": 7}}, "got `int`, at derived"),
        ({"fee": {"derived": "amount + home"}}, "Column 'home' holds texts. Only numbers are"),
        ({"home": {"derived": "amount"}}, "Column 'home' holds texts. Only numbers are"),
        ({"fee": {"derived": "amount", "tolerence": 1}}, "'tolerence'. Did you mean 'tolerance'"),
        ({"fee": {"tolerance": "much"}}, "Expected `float`, got `str`, at tolerance"),
        ({"fee": {"kind": "continous"}}, "Did you mean 'continuous'"),
    ],
)  # fmt: skip
def test_declarations_that_are_refused(overrides, sentence):
    with pytest.raises(InputError) as error:
        Schema.infer(loans(), overrides)
    assert sentence in str(error.value)


def test_settings_of_a_column_may_be_declared_alone():
    columns = Schema.infer(
        loans(),
        {
            "income": {"tolerance": 50, "upper": 9000, "description": "Per month."},
            "home": {"categories": ["rent", "own"], "kind": "ordinal"},
            "months": {"kind": "categorical"},
        },
    )
    income = columns["income"]
    assert (income.tolerance, income.upper, income.resolution) == (50, 9000, 10)
    assert income.description == "Per month."
    assert columns["home"].categories == ("rent", "own")
    assert columns["months"].kind == "categorical"


def test_a_schema_file_declares_tolerances_and_derived_columns(tmp_path):
    path = tmp_path / "columns.toml"
    path.write_text(
        "version = 1\n[columns.income]\ntolerance = 50\n[columns.fee]\nderived = 'amount / 100'\n"
    )
    columns = Schema.infer(loans(), path)
    assert columns["income"].tolerance == 50
    assert columns["fee"].inputs == ("amount",)
    assert "derived" in str(columns)
    columns.to_toml(tmp_path / "again.toml")
    assert Schema.infer(loans(), tmp_path / "again.toml") == columns


# --- constraints -----------------------------------------------------------------------------

SMALL = pd.DataFrame(
    [
        {"a": a, "b": b, "sum": a + b, "area": a * b, "half": math.floor((a + 2 * b) / 2)}
        for a, b in itertools.product(range(6), range(6))
    ]
)
LATTICE = Schema.infer(
    SMALL,
    {
        "sum": {"derived": "a + b"},
        "area": {"derived": "a * b"},
        "half": {"derived": "floor((a + 2*b) / 2)"},
    },
)
TEXTS = st.sampled_from(
    [
        "sum <= 4", "sum >= 7", "sum == 5", "area <= 6", "area >= 12", "half >= 5", "half < a",
        "2*sum >= area", "fixed a", "fixed sum", "fixed area", "increasing sum", "changes <= 1",
        "if sum >= 6 then half <= 4", "if area changes then a >= 3", "sum in {3, 8}",
        "a + half <= 6",
    ]
)  # fmt: skip


@given(
    st.lists(TEXTS, min_size=1, max_size=3, unique=True),
    st.integers(0, 35),
    st.integers(0, 35),
    st.booleans(),
)
def test_projection_finds_what_exists_and_proves_only_what_is_true(texts, of, at, own):
    """Beside every row there is; constraints on derived columns are met, but nothing is proved."""
    system = System.of(texts, LATTICE, check=False)
    rows = LATTICE.cells(SMALL)
    instance = rows[[of]].copy()
    if own:  # an instance whose derived columns are not what the others say
        instance[0, 2:] += 1
    every = LATTICE.derive(rows, np.repeat(instance, len(rows), axis=0))
    known = LATTICE.derived.derivable(every, np.repeat(instance, len(rows), axis=0))
    feasible = system.feasible(every, np.repeat(instance, len(rows), axis=0)) & known
    found = system.project(rows[[at]], instance)
    again = LATTICE.derive(found.cells, instance)
    np.testing.assert_array_equal(found.cells, again)
    assert found.feasible[0] == system.feasible(found.cells, instance)[0]
    assert not (found.proved_infeasible[0] and feasible.any())
    if not any(name in text for text in texts for name in ("sum", "area", "half")):
        assert found.feasible[0] >= feasible.any()


def test_limits_on_a_product_are_met_by_moving_what_it_follows_from():
    system = System.of(["instalment <= 250", "amount >= 9000"], schema())
    cells = schema().cells(loans(200, seed=5))
    found = system.project(cells, cells)
    assert found.feasible.all()
    assert follows(found.cells).all()
    assert (found.cells[:, schema().index("instalment")] <= 250).all()


def test_changes_are_counted_without_derived_columns():
    system = System.of(["changes <= 1"], schema())
    cells = schema().cells(loans(50, seed=6))
    found = schema().derive(moved(cells, amount=10_000.0), cells)
    assert system.feasible(found, cells).all()
    alike = found[:, schema().index("amount")] == cells[:, schema().index("amount")]
    np.testing.assert_array_equal(system.feasible(moved(found, months=96.0), cells), alike)
    projected = system.project(moved(found, months=84.0, income=1000.0), cells)
    assert projected.feasible.all()


# --- explanations ----------------------------------------------------------------------------


def decide(frame):
    enough = frame["income"] - frame["total"] - 500 * (frame["home"] == "rent") > 900
    return np.where(enough & (frame["amount"] < 15_000), "yes", "no")


@cache
def explainer():
    return quick(decide, 3, schema=DERIVED).fit(loans())


@cache
def refused():
    table = loans(120, seed=7)
    return table[decide(table) == "no"].head(25)


@pytest.mark.parametrize(
    "constraints",
    [
        (),
        ("instalment <= 200",),
        ("total <= 0.2*income", "fixed home"),
        ("fixed instalment",),
        ("fee <= 60", "decreasing total"),
        ("fee <= 149", "changes <= 2"),
    ],
    ids=str,
)
def test_every_row_returned_is_consistent_and_obeys_constraints_on_derived_columns(constraints):
    found = explainer().explain(refused(), target="yes", constraints=constraints)
    assert found.status.count("answered") > 12
    system = System.of(constraints, found.schema)
    for pick in (found.first(), found.middle(), found.last(), found.nearest()):
        rows, originals = pick.cells, pick.instances[pick.instance]
        ok = np.asarray(pick.ok)
        assert ok.any()
        np.testing.assert_array_equal(found.schema.derive(rows, originals), rows)
        assert follows(rows[ok]).all()
        assert system.feasible(rows[ok], originals[ok]).all()
        assert (decide(found.schema.frame(rows[ok])) == "yes").all()
    for instance in found:
        for path in instance.prototypes:
            steps = instance.path(path).cells
            assert follows(steps).all()
    named = set().union(*(c.changes()["feature"] for c in found if c.status == "answered"))
    assert named
    assert named <= {"income", "amount", "months", "home"}


def test_a_fixed_derived_column_leaves_its_sources_free_to_move_together():
    """Everyone is answered who has an answer: some amount and months with the same instalment."""
    found = explainer().explain(refused(), target="yes", constraints=["fixed instalment"])
    amount, months = np.meshgrid(np.arange(1000, 29_901, 100), np.arange(6, 85, 6))
    for instalment, status in zip(refused()["instalment"], found.status, strict=True):
        fits = np.ceil(amount / months) == instalment
        total = instalment + amount / 100
        yes = fits & (amount < 15_000) & (schema()["income"].upper - total > 900)
        assert status == ("answered" if yes.any() else "none_found")


def test_prototypes_and_samples_are_consistent():
    assert follows(np.stack([p.cells for p in explainer().prototypes_])).all()
    assert follows(explainer().fitted_.samples.cells).all()
    assert follows(schema().cells(explainer().sample("yes", 50))).all()


def test_contradictions_are_relaxed_beside_derived_columns():
    least = loans()["months"].min()
    longer = refused()[refused()["months"] > least].head(2)
    limits = ["fixed months", f"months <= {least}"]
    found = explainer().explain(longer, target="yes", constraints=limits)
    assert set(found.status) == {"infeasible"}
    found = explainer().why_not(found, max_queries=2_000)
    for one in found:
        assert set(one.why_not.clash) == {str(c) for c in found.constraints}
        assert follows(schema().cells([one.why_not.row])).all()


def test_expressions_are_saved(tmp_path):
    explainer().save(tmp_path / "e.lapace")
    again = Explainer.load(tmp_path / "e.lapace", decide)
    assert again.schema_ == explainer().schema_
    before, after = (e.explain(refused().head(5), target="yes") for e in (explainer(), again))
    np.testing.assert_array_equal(before.nearest().cells, after.nearest().cells)
