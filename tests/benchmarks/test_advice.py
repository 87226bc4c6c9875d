"""The measurement of nearest and best: its checks find what was planted."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks.advice import FORMS, added, minimality, simplest
from benchmarks.baselines.problem import BaselineProblem, TrainingIndex
from benchmarks.tables import TABLES
from lapace.constraints import System
from lapace.schema import Feature, Schema
from tests import worlds

ROWS = np.random.default_rng(1).integers(0, 41, (300, 3)) / 4


def over(rows):
    """Says True where the numbers of a row sum to more than 10."""
    return np.asarray(rows)[:, :3].astype(float).sum(axis=1) > 10


def problem(instance, constraints=(), classifier=over, rows=ROWS, schema=None) -> BaselineProblem:
    training = TrainingIndex.of(classifier, rows, schema)
    fitted = type("Fitted", (), {"training_": training})
    return BaselineProblem.of(fitted, instance, True, constraints)


def counts(row, **settings):
    found = minimality(
        problem(np.array([[0.0, 3.0, 0.0]]), **settings), np.array([row]), np.zeros(1, int)
    )
    return int(found.undone[0]), int(found.back[0]), int(found.changes[0])


def test_what_can_be_taken_back_alone_is_counted():
    assert counts([8.0, 3.0, 1.0]) == (1, 2, 2)
    # The change of 7.5 goes back by 0.375, which is 0.25 or 0.5 on the lattice.
    assert counts([7.5, 3.0, 0.0]) == (0, 0, 1)
    assert counts([9.0, 3.0, 0.0]) == (0, 1, 1)


def test_a_constraint_keeps_a_change_from_being_undone():
    assert counts([8.0, 3.0, 0.25])[0] == 1
    assert counts([8.0, 3.0, 0.25], constraints=["x2 >= 0.25"])[0] == 0


def test_a_derived_column_follows_what_is_taken_back_and_is_no_change():
    table = pd.DataFrame({"a": ROWS[:, 0], "b": ROWS[:, 1], "sum": ROWS[:, :2].sum(axis=1)})
    schema = Schema.infer(table, {"sum": Feature("sum", "continuous", derived="a + b")})
    instance = pd.DataFrame({"a": [2.0], "b": [3.0], "sum": [5.0]})
    settings = {"classifier": lambda rows: np.asarray(rows["sum"]) > 10, "rows": table}
    own = problem(instance, schema=schema, **settings)
    # Only the sum is read: one of the two changes can be undone as long as it stays over 10.
    found = minimality(own, np.array([[8.0, 4.0, 12.0]]), np.zeros(1, int))
    assert (found.changes[0], found.undone[0]) == (2, 1)


def test_the_simplest_method_undoes_what_it_can_and_bisects_the_rest():
    own = problem(np.array([[1.0, 1.0, 1.0], [2.0, 3.0, 0.0]]))
    found, asked = simplest(own)
    assert found.instance.tolist() == [0, 1]
    assert found.ok.all()
    assert (found.cells.sum(axis=1) == 10.25).all()  # the least over 10 on the lattice
    assert 0 < asked < 2 * 10 * 3 * 9
    assert minimality(own, found.cells, found.instance).minimal.all()


@pytest.mark.parametrize("form", FORMS)
def test_added_constraints_can_be_parsed_and_separate_rows(form):
    schema = Schema.infer(worlds.letters(200, 0))
    cells, rng = schema.cells(worlds.letters(200, 0)), np.random.default_rng(3)
    texts = [added(schema, cells, cells[k], rng, form) for k in range(12)]
    known = [text for text in texts if text is not None]
    shares = []
    for text in known:
        system = System.of([text], schema, check=False)
        shares.append(system.feasible(cells, np.repeat(cells[:1], len(cells), axis=0)).mean())
    assert not known or 0 < np.mean(shares) <= 1
    assert known or form in ("set", "relation")  # a table may lack the columns


def test_tables_are_the_same_whenever_they_are_made():
    for name in ("codes", "columns", "iris", "diabetes"):
        (a, labels), (b, again) = TABLES[name].build(), TABLES[name].build()
        pd.testing.assert_frame_equal(a, b)
        assert (labels == again).all()
        assert TABLES[name].target in labels
