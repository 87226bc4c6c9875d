"""Binding, checking, projecting, penalties and reasons, by example."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from importlib import import_module

import numpy as np
import pytest

from lapace.budget import Budget, BudgetError, limited
from lapace.constraints import Custom, System, parse, program
from lapace.errors import InputError
from lapace.schema import Feature, Schema
from lapace.table import Template

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


def moved(texts, instance=INSTANCE, **changes):
    """The cells of a projected row that differ from the instance."""
    system = System.of(texts, SCHEMA)
    after = system.project(cells(**changes), instance[None])
    assert after.feasible.all()
    different = SCHEMA.changed(after.cells, instance[None])[0]
    return {SCHEMA.names[i]: float(after.cells[0, i]) for i in np.flatnonzero(different)}


# -- what holds ------------------------------------------------------------------------------------

YES = {
    "age <= 30": {},
    "rent <= 0.3*income + 0.5": {},
    "rent == 600.5": {},
    "0.2 <= ratio <= 0.25": {},
    "education >= bachelor": {},
    "school <= education < master": {},
    "housing == rent": {},  # the category, not the column of that name
    'housing in {"with family", rent}': {},
    "smoker == false": {},
    "smoker < 1": {},
    "grade < 3": {},  # between two levels
    "2*grade + age <= 34": {},  # levels that are numbers add up
    "grade <= 1.5*original - 1": {},
    "not education: bachelor -> school": {"education": 2.0},
    "not age: 30 -> {31, 32}": {"age": 33.0},
    "abs(income - original) <= 0.2*original": {"income": 2400.0},
    "abs(income - original) >= 100": {"income": 1900.0},
    "abs(income - original) == 100": {"income": 1900.0},
    "abs(income - original) != 100": {"income": 1910.0},
    "income >= 3*original(rent)": {},
    "age in {original, 20}": {},
    "age not in {original, 20}": {"age": 21.0},
    "if education changes then age > original": {"education": 2.0, "age": 31.0},
    "if housing == own and age > 40 then rent == 0": {"housing": 0.0},
    "changes == 1": {"age": 31.0},
    "decreasing education": {"education": 0.0},
}
NO = {
    "age == original": {"age": 31.0},
    "age != original": {},
    "ratio < 0.25": {},
    "ratio > original": {"ratio": 0.25 + 1e-8},  # less than a step
    "education >= original": {"education": 0.0},
    "grade >= 3": {},
    "grade <= 1.5*original - 1": {"grade": 2.0},
    "not age: 30 -> {31, 32}": {"age": 32.0},
    "abs(income - original) <= 0.2*original": {"income": 2410.0},
    "abs(income - original) >= 100": {"income": 1910.0},
    "age not in {original, 20}": {},
    "if education changes then age > original": {"education": 2.0},
    "if housing == rent then rent < 600 and age > 3": {},
    "changes > 1": {"age": 31.0},
    "job changes".replace("job", "age"): {},
}


@pytest.mark.parametrize(("text", "changes"), YES.items(), ids=YES)
def test_it_holds(text, changes):
    assert holds(text, **changes)


@pytest.mark.parametrize(("text", "changes"), NO.items(), ids=NO)
def test_it_is_broken(text, changes):
    assert not holds(text, **changes)


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
                 "income > original", "education > bachelor", "abs(income - original) <= 5",
                 "income != 3",
                 "if income > 5000 then age == 31", "if education == master then age == 31",
                 "fixed income, education", "age <= original(income)"]:  # fmt: skip
        assert holds(text, instance, **stays), text
    for text in ["income changes", "income != original", "changes == 1"]:
        assert not holds(text, instance, **stays), text


def test_what_is_compared_with_a_missing_original_stays_missing():
    instance = INSTANCE.copy()
    instance[[1, 4]] = NAN
    filled = {"income": 5000.0, "education": 2.0}
    for text in ["income >= original", "education >= original", "fixed income",
                 "abs(income - original) <= 0.2*original"]:  # fmt: skip
        assert not holds(text, instance, **filled), text
        after = System.of(text, SCHEMA).project(cells(**filled), instance[None])
        assert after.feasible.all()
        assert np.isnan(after.cells[0, 1]) or np.isnan(after.cells[0, 4])
    for text in ["income != original", "income changes", "income >= 3000", "changes == 2",
                 "education in {original, master}", "not education: school -> master"]:  # fmt: skip
        assert holds(text, instance, **filled), text


def test_original_values_off_the_lattice_or_out_of_bounds_survive():
    instance = INSTANCE.copy()
    instance[0], instance[1] = 93.0, 2003.7  # beyond the bounds, and no multiple of 10
    point = cells(age=50.0, income=1500.0)
    after = System.of(["fixed age", "income >= original"], SCHEMA).project(point, instance[None])
    assert after.feasible.all()
    assert after.cells[0, :2].tolist() == [93.0, 2003.7]
    away = System.of(["income > original"], SCHEMA).project(point, instance[None])
    assert away.cells[0, 1] == 2010.0
    assert System.of("age <= 100", SCHEMA).feasible(instance[None], instance[None]).all()


def test_unseen_categories_survive():
    wide = schema_of(
        Feature("job", "categorical", categories=("clerk", "cook"), extra=("astronaut",)),
        Feature("degree", "ordinal", True, 0.0, 2.0, 1.0, tuple(DEGREES), ("diploma",)),
        number("tenure", 0.0, 40.0),
    )
    instance = np.array([[2.0, 3.0, 5.0]])  # astronaut with a diploma
    point = np.array([[0.0, 1.0, 9.0]])
    after = System.of(["job == original", "degree >= original"], wide).project(point, instance)
    assert after.cells.tolist() == [[2.0, 3.0, 9.0]]
    assert System.of(["job in {original, cook}"], wide).feasible(instance, instance).all()
    assert not System.of(["job in {cook}"], wide).feasible(instance, instance).any()
    assert System.of("degree >= bachelor", wide).feasible(instance, instance).all()  # unknown


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
    "housing <= education": "'housing' and 'education' have no order in common.",
    "education <= income": "'education' holds categories. Compare it with one of them (in quotes "
    "where it is not one word), with 'original' or with another column of categories.",
    "housing == with - family": "'housing' holds categories.",
    "2*education <= 3": "'education' holds categories that are no numbers to add up.",
    'age == "old"': 'the category "old" is compared with numbers.',
    "age <= age + 3": "says nothing: its columns cancel out.",
    "abs(age - 3) <= abs(rent - 3)": "abs(…) can be on one side of a relation only.",
    "chnages <= 2": "column 'chnages' is not in the table. Did you mean 'changes'?",
    "changes < 0": "no row can have that many changes: there are 8 columns.",
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


BETWEEN = "column 'age' takes only whole numbers, from 18 to 80"
CLASHES = {
    ("age <= 10",): "'age <= 10' can never hold: column 'age' lies between 18 and 80.",
    ("age >= 50", "income >= 3", "age < 50"): "'age >= 50' and 'age < 50' can never hold together.",
    ("fixed age", "age > original"): "'fixed age' and 'age > original' can never hold together.",
    ("housing == own", "housing in {rent}"): "'housing == own' and 'housing in {rent}' can never "
    "hold together.",
    ("changes <= 1", "age changes", "housing changes"): "'changes <= 1', 'age changes' and "
    "'housing changes' can never hold together.",
    ("education == original", "education != original"): "can never hold together.",
    ("grade in {1}", "2*grade >= 3"): "'grade in {1}' and '2*grade >= 3' can never hold together.",
    # The lattice is named where it is the reason.
    ("age == 30.5",): f"'age == 30.5' can never hold: {BETWEEN}.",
    ("rent in {0.125}",): "column 'rent' takes only multiples of 0.01, from 0 to 2,000.",
    ("age > 30", "fixed rent", "age < 31"): f"'age < 31' can never hold together: {BETWEEN}.",
    ("2*age == 0.5*income + 0.25",): f"can never hold: {BETWEEN} and column 'income' takes only "
    "multiples of 10, from 0 to 9,000.",
}


@pytest.mark.parametrize(("texts", "message"), CLASHES.items(), ids=map(str, CLASHES))
def test_what_no_instance_could_satisfy_is_refused(texts, message):
    with pytest.raises(InputError) as raised:
        System.of(texts, SCHEMA)
    assert message in str(raised.value)
    assert len(System.of(texts, SCHEMA, check=False)) == len(texts)


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


def test_moves_are_small_and_on_the_lattice():
    # Of the whole range of incomes it takes less than of the whole range of rents.
    assert moved("rent <= 0.3*income", rent=700.0) == {"rent": 700.0, "income": 2340.0}
    assert moved(["rent <= 0.3*income", "income <= 2010"], rent=700.0) == {
        "rent": 603.0, "income": 2010.0
    }  # fmt: skip
    assert moved("age >= 33.2") == {"age": 34.0}
    assert moved("ratio > original") == {"ratio": pytest.approx(0.250001)}
    assert moved("abs(income - original) <= 0.1*original", income=4000.0) == {"income": 2200.0}
    assert moved("income in {1000, 2500}", income=2300.0) == {"income": 2500.0}
    assert moved("education in {school, master}", education=1.0) in (
        {"education": 0.0},
        {"education": 2.0},
    )
    assert moved("housing in {original, own}", housing=2.0) == {}
    assert moved(["if housing == own then rent == 0"], housing=0.0) in (
        {"housing": 0.0, "rent": 0.0},
        {},
    )
    assert moved("changes <= 1", age=31.0, education=0.0) == {"education": 0.0}
    assert moved(["changes <= 1", "age > original"], education=0.0) == {"age": 31.0}
    assert moved(["if education changes then age >= original + 4"], education=2.0) == {
        "education": 2.0, "age": 34.0
    }  # fmt: skip


def test_programs_are_counted_shared_and_bounded():
    # Each of the two relations is easy, both and a count are not: a program has to help.
    texts = ["age + 0.01*income <= 50", "age + 0.01*income >= 50", "changes <= 2", "fixed rent"]
    system = System.of(texts, SCHEMA)
    rows = np.repeat(cells(age=70.0, income=5010.0, education=2.0, housing=0.0), 5, axis=0)
    instances = np.repeat(INSTANCE[None], 5, axis=0)
    instances[:, 0] = 31.0
    after = system.project(rows, instances)
    assert after.feasible.all()
    assert after.n_programs <= 1


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


def test_a_function_from_python_is_checked_not_projected():
    rule = Custom("small", lambda x: x[:, 0] - 40, lambda rows: rows[:, 0] <= 40)
    system = System.of([rule, "income >= 2500"], SCHEMA)
    after = system.project(
        np.vstack([cells(), cells(age=50.0)]), np.repeat(INSTANCE[None], 2, axis=0)
    )
    assert after.feasible.tolist() == [True, False]
    assert after.n_programs == 0
    assert not after.proved_infeasible.any()
    broken = Custom("broken", lambda x: x[:, 0], lambda rows: True)
    with pytest.raises(
        InputError, match=r"check function of constraint 'broken' returned shape \(\) for 2 rows"
    ):
        System.of(broken, SCHEMA).feasible(after.cells, after.cells)


def test_a_function_from_python_may_bring_a_projection():
    def younger(rows):
        return {"age": np.minimum(rows["age"], 39.7)}

    rule = Custom("young", lambda x: x[:, 0] - 40, lambda rows: rows[:, 0] <= 40, younger)
    both = np.vstack([cells(), cells(age=50.0)])
    instances = np.repeat(INSTANCE[None], 2, axis=0)
    after = System.of([rule, "income >= 2500"], SCHEMA).project(both, instances)
    assert after.feasible.all()
    assert after.n_programs == 0
    assert after.cells[1, 0] == 40.0  # 39.7 is no whole number of years
    # It cannot move what another constraint fixes; then the row is marked infeasible.
    old = instances.copy()
    old[:, 0] = 50.0
    held = System.of([rule, "fixed age"], SCHEMA).project(both, old)
    assert held.cells[:, 0].tolist() == [50.0, 50.0]
    assert not held.feasible.any()
    mute = Custom("mute", lambda x: x[:, 0], lambda rows: rows[:, 0] < 0, lambda rows: rows[:1, :2])
    with pytest.raises(
        InputError, match=r"project function of constraint 'mute' returned shape \(1, 2\)"
    ):
        System.of(mute, SCHEMA).project(both, instances)


def test_what_a_function_from_python_raises_names_the_constraint():
    torch = import_module("torch")

    def fails(rows):
        raise ZeroDivisionError("no rent at all")

    fine = {"penalty": lambda x: x[:, 0], "check": lambda rows: rows[:, 0] > 99, "project": None}
    calls = {
        "check": lambda system: system.feasible(cells(), INSTANCE[None]),
        "project": lambda system: system.project(cells(), INSTANCE[None]),
        "penalty": lambda system: system.penalty(torch.tensor(cells()), INSTANCE[None]),
    }
    for what, call in calls.items():
        system = System.of(Custom("share", **{**fine, what: fails}), SCHEMA)
        message = r"^The constraint 'share' raised ZeroDivisionError: no rent at all \(in its "
        with pytest.raises(InputError, match=f"{message}{what} function") as raised:
            call(system)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
    wrong = Custom("wide", lambda x: x, fine["check"])
    with pytest.raises(InputError, match=r"penalty function of constraint 'wide' returned shape"):
        System.of(wrong, SCHEMA).penalty(torch.tensor(cells()), INSTANCE[None])


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
    found = system.domains(INSTANCE[None])
    assert found.pinned[0].nonzero()[0].tolist() == [0, 5]
    assert (found.lower[0, 1], found.upper[0, 1]) == (1000.0, 3000.0)
    assert found.upper[0, 2] == 600.5
    assert found.allowed[4][0, :3].tolist() == [False, True, True]
    assert found.allowed[5][0, :3].tolist() == [False, True, False]
    assert found.unchanged[0].all()


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
             "abs(income - original) <= 100",
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
    subprocess.run([sys.executable, "-c", code], check=True)
