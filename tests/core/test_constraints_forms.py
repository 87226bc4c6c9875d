"""Every form of constraint at work: where a point lands that is projected onto it.

`docs/reference/constraints.md` says the same in words.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lapace.constraints import Shorthand, System, parse
from lapace.schema import Feature, Schema

INSTANCE = {
    "age": 30,
    "income": 2000,
    "rent": 700,
    "tenure": 4,
    "job": "cook",
    "housing": "rent",
    "education": "bachelor",
    "capital-gain": 0,
}


@pytest.fixture(scope="module")
def schema():
    rng = np.random.default_rng(0)
    table = [
        {
            "age": int(rng.integers(18, 81)),
            "income": int(rng.integers(0, 901)) * 10,
            "rent": int(rng.integers(0, 201)) * 10,
            "tenure": int(rng.integers(0, 41)),
            "job": str(rng.choice(["clerk", "cook", "nurse"])),
            "housing": str(rng.choice(["own", "rent", "with family"])),
            "education": str(rng.choice(["school", "bachelor", "master"])),
            "capital-gain": int(rng.integers(0, 100)),
        }
        for _ in range(2000)
    ]
    degrees = Feature("education", "ordinal", categories=["school", "bachelor", "master"])
    return Schema.infer(table, {"education": degrees})


@pytest.fixture(scope="module")
def projected(schema):
    """What differs from the instance once a point is projected onto some constraints."""

    def project(*constraints, **point):
        original = schema.cells([INSTANCE])
        rows = schema.cells([INSTANCE | point])
        after = System.of(constraints, schema).project(rows, original)
        assert after.feasible.all()
        (row,) = schema.frame(after.cells)
        return {name: value for name, value in row.items() if value != INSTANCE[name]}

    return project


def test_without_constraints_a_point_stays(projected):
    assert projected(income=2500, age=35) == {"income": 2500, "age": 35}


def test_comparisons_stay_on_the_steps_of_their_column(projected):
    assert projected("age == original", age=35) == {}
    assert projected("income >= original", income=1500) == {}
    assert projected("income >= 2100", income=1500) == {"income": 2100}
    assert projected("income > original", income=1500) == {"income": 2010}
    assert projected("2200 <= income <= 2400", income=3000) == {"income": 2400}
    assert projected("tenure <= age", "fixed age", tenure=33) == {"tenure": 30}


def test_sums_and_the_value_of_another_column(projected):
    assert projected("rent + 100 <= 0.4*income", "income <= original") == {}
    assert projected("2*rent <= 0.5*income", "fixed income") == {"rent": 500}
    assert projected("tenure <= age - 16", "fixed age", tenure=20) == {"tenure": 14}
    assert projected("rent <= 0.3*original(income)", "fixed income") == {"rent": 600}
    assert projected("0.8*original <= income <= 1.2*original", income=9000) == {"income": 2400}


def test_categories_ordinals_and_forbidden_changes(projected):
    assert projected("job == original", job="nurse") == {}
    assert projected("job != original") in ({"job": "clerk"}, {"job": "nurse"})
    assert projected("housing in {own, rent}", housing="with family") == {}
    assert projected("housing not in {rent}", housing="own") == {"housing": "own"}
    assert projected("housing in {original, own}", housing="own") == {"housing": "own"}
    assert projected('housing == "with family"') == {"housing": "with family"}
    assert projected("education >= original", education="school") == {}
    assert projected("education > bachelor") == {"education": "master"}
    assert projected("not education: bachelor -> school", education="school") == {}
    assert projected("not job: {cook, nurse} -> clerk", job="clerk") == {}


def test_conditions(projected):
    assert projected("if job changes then tenure == 0", job="nurse") in (
        {"job": "nurse", "tenure": 0},
        {},  # keeping the old job satisfies it, too
    )
    own = {"housing": "own", "rent": 0}
    assert projected("if housing == own then rent == 0", "housing == own") == own
    older = projected("if age > 60 and job == cook then tenure <= 10", tenure=30)
    assert older == {"tenure": 30}


def test_few_changes_shorthands_and_names(projected):
    assert projected("changes <= 1", income=2500, age=31) == {"income": 2500}
    assert projected("fixed age, job", age=35, job="nurse") == {}  # each == original
    assert projected("increasing income", income=1500) == {}  # >= original
    assert projected("decreasing rent", rent=900) == {}  # <= original
    assert parse("fixed age, job") == Shorthand("fixed", ("age", "job"))
    assert projected("`capital-gain` <= 10", **{"capital-gain": 50}) == {"capital-gain": 10}


def test_dates_and_shares_as_the_table_writes_them():
    rates = [f"{i % 40}%" for i in range(90)]
    orders = pd.DataFrame({"ordered": pd.date_range("2024-01-01", periods=90), "rate": rates})
    wanted = ['ordered >= "2024-02-01"', "ordered <= 2024-03-01", "rate <= 10%", "rate >= 2"]
    assert len(System.of(wanted, Schema.infer(orders))) == 4


def test_a_missing_value_makes_a_relation_unknown_which_is_no_violation(schema):
    unknown = schema.cells([INSTANCE | {"income": None}])
    row = schema.cells([INSTANCE | {"income": 3000}])
    system = System.of(["income >= original"], schema)
    assert system.feasible(unknown, unknown).all()
    assert not system.feasible(row, unknown).any()
    assert System.of(["rent <= 0.1*income"], schema).feasible(unknown, unknown).all()


def test_what_cannot_hold_together_is_proved(schema):
    original = schema.cells([INSTANCE])
    system = System.of(["fixed age", "age >= 40", "rent <= 500", "changes <= 3"], schema)
    assert [str(c) for c in system.contradiction(original[0])] == ["fixed age", "age >= 40"]
    assert system.without(["age >= 40"]).contradiction(original[0]) == ()
    assert system.project(original, original).proved_infeasible.all()
