"""Binding, checking, projecting, penalties and reasons, by example."""

from __future__ import annotations

from collections import Counter
from importlib import import_module

import numpy as np
import pytest

from lapace.budget import Budget, BudgetError, limited
from lapace.constraints import System, parse, program
from lapace.errors import InputError
from lapace.schema import Feature, Schema
from lapace.table import Template
from tests.processes import python

NAN = np.nan
DEGREES = ["school", "bachelor", "master"]


def schema_of(*features):
    names = tuple(f.name for f in features)
    return Schema(tuple(features), Template("records", names, ("",) * len(names)))


def number(name, lower, upper, resolution=1.0):
    return Feature(name, "continuous", resolution == 1.0, lower, upper, resolution)


SCHEMA = schema_of(
    number("age", 18.0, 80.0),  # 0
    number("income", 0.0, 9000.0, 10.0),  # 1
    number("rent", 0.0, 2000.0, 0.01),  # 2
    number("ratio", 0.0, 1.0, 0.0),  # 3
    Feature("education", "ordinal", categories=DEGREES),  # 4
    Feature("housing", "categorical", categories=["own", "rent", "with family"]),  # 5
    Feature("smoker", "binary", categories=[False, True]),  # 6
    Feature("grade", "ordinal", categories=[1, 2, 4]),  # 7
)
INSTANCE = np.array([30.0, 2000.0, 600.5, 0.25, 1.0, 1.0, 0.0, 1.0])


def cells(**changes):
    """The instance's row with some cells changed."""
    row = INSTANCE.copy()
    for name, value in changes.items():
        row[SCHEMA.index(name)] = value
    return row[None]


def holds(text, instance=INSTANCE, **changes):
    system = System.of(text, SCHEMA, check=False)
    return bool(system.feasible(cells(**changes), instance[None])[0])


# -- what holds ------------------------------------------------------------------------------------

YES = {
    "age <= 30": {},
    "rent <= 0.3*income + 0.5": {},
    "education >= bachelor": {},
    "school <= education < master": {},
    "housing == rent": {},  # the category, not the column of that name
    'housing in {"with family", rent}': {},
    "smoker == false": {},
    "grade < 3": {},  # between two levels
    "2*grade + age <= 34": {},  # levels that are numbers add up
    "grade <= 1.5*original - 1": {},
    "not education: bachelor -> school": {"education": 2.0},
    "0.8*original <= income <= 1.2*original": {"income": 2400.0},
    "age not in {original, 20}": {"age": 21.0},
    "if education changes then age > original": {"education": 2.0, "age": 31.0},
    "if housing == own and age > 40 then rent == 0": {"housing": 0.0},
    "changes <= 1": {"age": 31.0},
}
NO = {
    "age == original": {"age": 31.0},
    "age != original": {},
    "ratio < 0.25": {},
    "ratio > original": {"ratio": 0.25 + 1e-8},  # less than a step
    "education >= original": {"education": 0.0},
    "grade <= 1.5*original - 1": {"grade": 2.0},
    "0.8*original <= income <= 1.2*original": {"income": 2410.0},
    "age not in {original, 20}": {},
    "if education changes then age > original": {"education": 2.0},
    "if housing == rent then rent < 600 and age > 3": {},
    "changes <= 1": {"age": 31.0, "grade": 2.0},
    "age changes": {},
}


CASES = [(text, changes, True) for text, changes in YES.items()]
CASES += [(text, changes, False) for text, changes in NO.items()]


@pytest.mark.parametrize(("text", "changes", "truth"), CASES)
def test_it_holds_or_is_violated(text, changes, truth):
    assert holds(text, **changes) is truth


def test_sums_are_compared_as_on_paper():
    schema = schema_of(*(number(name, 0.0, 1.0, 0.1) for name in "abc"))
    system = System.of(["a + b <= c", "a + b == c", "c >= a + b"], schema)
    row = np.array([[0.1, 0.2, 0.3]])  # 0.1 + 0.2 is more than 0.3 in floating point
    assert system.holds(row, row).all()
    assert not System.of("a + b < c", schema).feasible(row, row)[0]


# -- missing values, unknown levels ----------------------------------------------------------------


def test_what_is_missing_is_unknown():
    instance = INSTANCE.copy()
    instance[[1, 2, 4]] = NAN  # income, rent and education
    stays = {"income": NAN, "rent": NAN, "education": NAN}
    for text in ["income >= 5000", "rent <= 0.1*income", "education in {master}",
                 "income > original", "education > bachelor", "income != 3",
                 "original - 5 <= income <= original + 5",
                 "if income > 5000 then age == 31", "if education == master then age == 31",
                 "fixed income, education", "age <= original(income)"]:  # fmt: skip
        assert holds(text, instance, **stays), text
    for text in ["income changes", "income != original"]:
        assert not holds(text, instance, **stays), text


def test_what_is_compared_with_a_missing_original_stays_missing():
    instance = INSTANCE.copy()
    instance[[1, 4]] = NAN
    filled = {"income": 5000.0, "education": 2.0}
    for text in ["income >= original", "education >= original", "fixed income",
                 "0.8*original <= income <= 1.2*original"]:  # fmt: skip
        assert not holds(text, instance, **filled), text
        after = System.of(text, SCHEMA).project(cells(**filled), instance[None])
        assert after.feasible.all()
        assert np.isnan(after.cells[0, 1]) or np.isnan(after.cells[0, 4])
    for text in ["income != original", "income changes", "income >= 3000", "changes <= 2",
                 "education in {original, master}", "not education: school -> master"]:  # fmt: skip
        assert holds(text, instance, **filled), text


# -- binding ---------------------------------------------------------------------------------------

REFUSED = {
    "incme <= 3": "Constraint 'incme <= 3': column 'incme' is not in the table. Did you mean "
    "'income'?",
    "fixed agee": "column 'agee' is not in the table. Did you mean 'age'?",
    "education == bachelr": "'bachelr' is not a category of 'education'. Did you mean 'bachelor'? "
    "There are: school, bachelor, master.",
    "education >= 7": "'7' is not a category of 'education'.",
    "housing in {own, renting}": "'renting' is not a category of 'housing'.",
    "housing >= own": "'housing' has no order, so '>=' means nothing. Use == or 'in {…}', or give "
    "it one: --kind 'housing=ordinal:least<…<greatest', in Python Feature('housing', 'ordinal', "
    "categories=[least, …, greatest]).",
    "education <= income": "'education' holds categories. Compare it with one of them (in quotes "
    "where it is not one word) or with 'original'.",
    "housing == with - family": "'housing' holds categories.",
    "2*education <= 3": "'education' holds categories that are not numbers, so they cannot be "
    "added up.",
    'age == "old"': 'the category "old" is compared with numbers.',
    "age <= age + 3": "says nothing: its columns cancel out.",
    "chnages <= 2": "column 'chnages' is not in the table. Did you mean 'changes'?",
    "not age: 30 -> 31": "'age' holds numbers, and only categories have transitions. Use 'if'.",
}


@pytest.mark.parametrize(("text", "message"), REFUSED.items(), ids=REFUSED)
def test_what_is_not_in_the_schema_is_refused(text, message):
    with pytest.raises(InputError) as raised:
        System.of(text, SCHEMA)
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"Constraint '{parse(text)}': ")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("capital-gain >= 3", "The column 'capital-gain' goes in backticks: `capital-gain`."),
        ("age <= capital - gain", "The column 'capital-gain' goes in backticks: `capital-gain`."),
        ('"Total charges" >= age', "The column goes in backticks: `Total charges`."),
        ("`capital-gain` + capital >= 3", "'capital' is not in the table. Did you mean 'capital-"),
    ],
)
def test_names_that_lack_their_backticks(text, hint):
    schema = Schema.infer(
        [{"capital-gain": k * 1.5, "Total charges": k * 2.5, "age": k} for k in range(9)]
    )
    with pytest.raises(InputError) as raised:
        System.of(text, schema)
    assert hint in str(raised.value)


CLASHES = {
    (
        "age <= 10",
    ): "'age <= 10' can never hold: column 'age' lies between 18 and 80, in steps of 1. Ranges are "
    "those of the training rows; to widen one, declare its 'lower' or 'upper'.",
    ("age >= 50", "income >= 3", "age < 50"): "'age >= 50' and 'age < 50' can never hold together.",
    ("housing == own", "housing in {rent}"): "'housing == own' and 'housing in {rent}' can never "
    "hold together.",
    ("grade in {1}", "2*grade >= 3"): "'grade in {1}' and '2*grade >= 3' can never hold together.",
    ("rent in {0.125}",): "column 'rent' lies between 0 and 2,000, in steps of 0.01.",
    (
        "2*age == 0.5*income + 0.25",
    ): "can never hold: column 'age' lies between 18 and 80, in steps "
    "of 1 and column 'income' lies between 0 and 9,000, in steps of 10.",
    ("housing == own", "if housing == own then age <= 3"): "can never hold together.",
}


@pytest.mark.parametrize("text", ["home == yes", "home in {YES, no}", "not home: no -> yes"])
def test_constraints_ignore_capitals_where_the_column_does(text):
    rows = [{"home": ("Yes", "yes ", "No")[k % 3], "age": k % 9} for k in range(60)]
    schema = Schema.infer(rows, {"home": {"ignore_case": True}})
    assert schema["home"].levels == ("No", "Yes")
    assert System.of(text, schema).bound
    with pytest.raises(InputError, match="is not a category of 'home'"):
        System.of(
            text, Schema.infer([{**row, "home": row["home"].strip().title()} for row in rows])
        )


def test_an_amount_may_have_a_currency_that_the_table_leaves_out():
    schema = Schema.infer([{"pay": 100 * (k % 50), "home": "ab"[k % 2]} for k in range(300)])
    ((relation,),) = System.of("pay <= £900", schema).bound[0].formula
    assert relation.constant == -900
    with pytest.raises(InputError, match="'900kg' is not written as 'pay' is"):
        System.of("pay <= '900kg'", schema)


@pytest.mark.parametrize(("texts", "message"), CLASHES.items(), ids=map(str, CLASHES))
def test_what_no_row_could_satisfy_is_refused(texts, message):
    with pytest.raises(InputError) as raised:
        System.of(texts, SCHEMA)
    assert message in str(raised.value)
    assert len(System.of(texts, SCHEMA, check=False)) == len(texts)


@pytest.mark.parametrize(
    "texts",
    [
        ("fixed age", "age > original"),
        ("education == original", "education != original"),
        ("changes <= 1", "age changes", "housing changes"),
    ],
    ids=str,
)
def test_contradictions_that_depend_on_the_instance_are_found_for_it(texts):
    system = System.of(("income >= 3", *texts), SCHEMA)
    assert [str(c) for c in system.contradiction(INSTANCE)] == list(texts)
    assert system.project(cells(), INSTANCE[None]).proved_infeasible.all()


def test_systems_say_what_they_are():
    system = System.of(["age <= 50", "fixed rent", "age<=50"], SCHEMA)
    assert [str(c) for c in system.constraints] == ["age <= 50", "fixed rent"]
    assert system.mentions_original
    assert not System.of("age <= 50", SCHEMA).mentions_original
    assert len(System.of((), SCHEMA)) == 0
    assert System.of((), SCHEMA).feasible(INSTANCE[None], INSTANCE[None]).all()
    rest = system.without(["fixed rent"])
    assert [str(c) for c in rest.constraints] == ["age <= 50"]
    with pytest.raises(InputError, match="'fixed income' is not in this system"):
        system.without(["fixed income"])


# -- projection ------------------------------------------------------------------------------------


def test_instances_are_proved_infeasible_once():
    system = System.of(["fixed age", "income >= 100*age"], SCHEMA)
    old = INSTANCE.copy()
    old[0] = 95.0  # income is 9000 at most
    instances = np.stack([old, INSTANCE, old])
    rows = np.stack([cells(income=10.0)[0], cells(income=10.0)[0], cells(income=50.0)[0]])
    after = system.project(rows, instances)
    assert after.feasible.tolist() == [False, True, False]
    assert after.proved_infeasible.tolist() == [True, False, True]
    assert after.n_programs == 1
    assert [str(c) for c in system.contradiction(old)] == ["fixed age", "income >= 100*age"]
    assert system.contradiction(INSTANCE) == ()


def test_domains():
    system = System.of(
        [
            "fixed age, housing",
            "1000 <= income < 3005",
            "education >= original",
            "rent <= original",
        ],
        SCHEMA,
    )
    domains = system.domains(INSTANCE[None])
    assert domains.pinned[0].nonzero()[0].tolist() == [0, 5]
    assert (domains.lower[0, 1], domains.upper[0, 1]) == (1000.0, 3000.0)
    assert domains.upper[0, 2] == 600.5
    assert domains.allowed[4][0, :3].tolist() == [False, True, True]
    assert domains.allowed[5][0, :3].tolist() == [False, True, False]
    assert domains.unchanged[0].all()


def test_ten_thousand_rows_take_as_many_array_operations_as_a_hundred(monkeypatch):
    rng = np.random.default_rng(0)
    extra = [number(f"n{i}", 0.0, 1000.0) for i in range(7)]
    schema = schema_of(*SCHEMA.features, *extra)  # 15 columns
    instances = np.array([[rng.integers(f.lower, f.upper + 1) if f.kind == "continuous"
                        else rng.integers(len(f.categories)) for f in schema.features]
                       for _ in range(100)], dtype=float)  # fmt: skip
    instances[:, 1] *= 10
    instances[:, 1] %= 9000
    rows = rng.permuted(instances, axis=0)
    texts = ["fixed age", "rent <= 0.4*income + 2000", "income >= original",
             "education in {bachelor, master}", "changes <= 6"]  # fmt: skip
    system = System.of(texts, schema)
    calls = Counter()
    counted(monkeypatch, calls, Schema, "snap", "gaps", "changed")
    few = system.project(rows, instances)
    once = Counter(calls)
    many = system.project(np.tile(rows, (105, 1)), np.tile(instances, (105, 1)))
    assert calls == once + once
    assert many.feasible.all()
    assert many.n_programs == 0
    assert not system.feasible(rows, instances).any()
    assert many.cells.tobytes() == np.tile(few.cells, (105, 1)).tobytes()


def counted(monkeypatch, calls, owner, *names):
    """Counts the calls of some methods."""
    for name in names:
        method = getattr(owner, name)

        def wrapper(*args, name=name, method=method, **kwargs):
            calls[name] += 1
            return method(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapper)


def hard_system():
    """Three equalities over twenty binary columns that hardly any row satisfies (market split)."""
    rng = np.random.default_rng(3)
    schema = schema_of(*(number(f"x{i}", 0.0, 1.0) for i in range(20)))
    weights = rng.integers(0, 100, (3, 20))
    texts = [" + ".join(f"{w}*x{i}" for i, w in enumerate(row)) + f" == {row.sum() // 2}"
             for row in weights]  # fmt: skip
    return System.of(texts, schema, check=False)


def test_solvers_are_bounded_by_nodes_and_never_by_the_clock(monkeypatch):
    solver, used = import_module("scipy.optimize"), []
    milp = solver.milp

    def recorded(*args, options, **kwargs):
        used.append(dict(options))
        return milp(*args, options=options, **kwargs)

    monkeypatch.setattr(solver, "milp", recorded)
    monkeypatch.setattr(program, "NODE_LIMIT", 50)
    system, rows = hard_system(), np.zeros((4, 20))
    rows[[1, 2, 3], [0, 1, 2]] = 1.0  # four different programs
    after = [system.project(rows[:1], rows[:1]) for _ in range(2)]
    assert after[0].unsolved.all()
    assert not after[0].proved_infeasible.any()
    assert after[0].cells.tobytes() == after[1].cells.tobytes()
    assert system.contradiction(rows[0]) == ()  # not proved, so not said
    # An instance one of whose programs was not solved gets no further one; another one does.
    instances = np.zeros((4, 20))
    instances[3, 5] = 1.0
    spent = System.of(["fixed x7", *system.constraints], system.schema, check=False).project(
        rows, instances
    )
    assert spent.unsolved.all()
    assert spent.n_programs == 2
    assert {options["node_limit"] for options in used} == {50}
    with limited(Budget(nodes=20)), pytest.raises(BudgetError, match="20 solver nodes"):
        system.project(rows[:1], rows[:1])
    assert used[-1]["node_limit"] == 21
    assert all("time" not in name for options in used for name in options)


# -- penalty -------------------------------------------------------------------------------------


def test_penalties_are_zero_where_numbers_hold_and_lead_there():
    torch = import_module("torch")
    texts = ["age <= 25", "rent <= 0.2*income", "ratio == original", "education >= master",
             "original - 100 <= income <= original + 100",
             "if housing == rent then age >= original"]  # fmt: skip
    system = System.of(texts, SCHEMA, check=False)
    rows = np.vstack([cells(age=40.0, ratio=0.9), cells(income=4000.0)])
    instances = np.repeat(INSTANCE[None], 2, axis=0)
    values = torch.tensor(rows, requires_grad=True)
    g = system.penalty(values, instances)
    assert g.shape == (2,)
    assert (g > 0).all()
    g.sum().backward()
    slope = values.grad.numpy()
    assert slope[0, 0] > 0  # age has to fall
    assert slope[0, 3] > 0  # ratio too
    assert slope[1, 1] > 0  # income must come back
    assert slope[0, 4] < 0  # education must rise
    assert np.isfinite(slope).all()
    single = System.of("age <= 25", SCHEMA)
    assert single.penalty(torch.tensor(cells(age=40.0)), INSTANCE[None]).item() == pytest.approx(
        15 / 62
    )
    ok = torch.tensor(cells(age=25.0, rent=300.0, income=2000.0, education=2.0))
    rest = System.of(texts[:-1], SCHEMA)
    assert rest.penalty(ok, INSTANCE[None]).item() == pytest.approx(0.0, abs=1e-12)


def test_what_no_gradient_can_mend_is_not_penalised():
    torch = import_module("torch")
    texts = ["housing == own", "changes <= 1", "if housing == rent then smoker == true"]
    values = torch.tensor(cells(age=31.0, rent=0.0))
    assert System.of(texts, SCHEMA).penalty(values, INSTANCE[None]).item() == 0
    either = System.of(["if housing == rent then age <= 20"], SCHEMA)
    assert either.penalty(values, INSTANCE[None]).item() == pytest.approx(11 / 62)


def test_missing_cells_have_no_gradient():
    torch = import_module("torch")
    instance = INSTANCE.copy()
    instance[1] = NAN
    system = System.of(["rent <= 0.3*income", "income >= original", "fixed income"], SCHEMA)
    values = torch.tensor(cells(income=NAN), requires_grad=True)
    g = system.penalty(values, instance[None])
    g.sum().backward()
    assert g.item() == 0
    assert not torch.isnan(values.grad).any()


def test_checking_and_projecting_do_without_torch():
    code = (
        "import sys\n"
        "from lapace.constraints import System, parse\n"
        "from lapace.schema import Schema\n"
        "schema = Schema.infer([{'a': i % 50, 'b': i % 7} for i in range(100)])\n"
        "rows = schema.cells([{'a': 3, 'b': 4}])\n"
        "System.of(['a <= 2', 'changes <= 1'], schema).project(rows, rows)\n"
        "assert 'torch' not in sys.modules\n"
    )
    python("-c", code, check=True)
