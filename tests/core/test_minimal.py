"""Rows made minimal, compared with brute force: random acceptance, every kind of column."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapace.explainer import minimal
from lapace.explainer.minimal import pull, rounded, settle, undo
from lapace.explainer.problem import InstanceRows
from lapace.schema import Feature, Schema


def simpler_rows(schema: Schema, original: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The row with one change undone, or with one number a twentieth or a resolution back."""
    found = []
    for i in np.flatnonzero(schema.changed(original, row)):
        feature, before, after = schema.features[i], original[i], row[i]
        values = [before]
        placed = not schema.coding.unseen(original[None])[0, i]
        if feature.numeric and placed and not np.isnan([before, after]).any():
            back = max(abs(before - after) / 20, feature.step)
            values += feature.snap(np.array([after + np.sign(before - after) * back])).tolist()
        found += [np.where(np.arange(len(row)) == i, value, row) for value in values]
    rows = np.array(found).reshape(-1, len(row))
    rows = schema.derive(rows, np.broadcast_to(original, rows.shape))
    return rows[schema.changed(rows, row).any(axis=1)]


@cache
def schema_and_cells() -> tuple[Schema, np.ndarray]:
    """Decimals, integers, categories in an order and without, gaps, and a derived column."""
    rng = np.random.default_rng(0)
    count = 300
    table = pd.DataFrame(
        {
            "amount": rng.gamma(2, 300, count).round(2),
            "months": rng.integers(6, 60, count),
            "visits": pd.array(rng.integers(0, 30, count), dtype="Int64"),
            "weight": rng.normal(size=count),
            "level": pd.Categorical.from_codes(
                rng.integers(0, 4, count), ["a", "b", "c", "d"], ordered=True
            ),
            "kind": rng.choice(np.array(["x", "y", "z"], dtype=object), count),
            "member": rng.random(count) < 0.5,
        }
    )
    table["rate"] = (table["amount"] / table["months"]).round(2)
    table.loc[rng.random(count) < 0.2, "visits"] = pd.NA
    table.loc[rng.random(count) < 0.2, "kind"] = None
    rate = Feature("rate", "continuous", derived="amount / months")
    schema = Schema.infer(table, {"rate": rate})
    return schema, schema.cells(table)


class Case(NamedTuple):
    """Rows to be made minimal, and what is acceptable."""

    cells: np.ndarray
    originals: np.ndarray
    accept: Callable
    weights: np.ndarray


def random_case(seed: int, kind: str) -> Case:
    """A few instances, some out of range or off the lattice, and rows accepted for each."""
    schema, known = schema_and_cells()
    rng = np.random.default_rng(seed)
    count, width = int(rng.integers(1, 7)), known.shape[1]
    originals, cells = (known[rng.integers(len(known), size=count)] for _ in range(2))
    odd = rng.random(originals.shape) < 0.1
    odd &= np.array([feature.kind == "continuous" for feature in schema.features])
    originals = np.where(odd, originals * 3.01 + 0.003, originals)
    originals = np.where(rng.random(originals.shape) < 0.05, np.nan, originals)
    cells = np.where(rng.random(cells.shape) < 0.2, originals, cells)
    cells = schema.derive(cells, originals)
    low, high = np.nanmin(known, axis=0), np.nanmax(known, axis=0)

    def scaled(rows: np.ndarray) -> np.ndarray:
        return np.nan_to_num((rows - low) / (high - low), nan=-0.3)

    if kind in ("linear", "waves"):  # in waves, what was refused may be accepted later
        slopes, slack = rng.normal(size=(count, width)), rng.random(count)
        shape = np.array if kind == "linear" else np.cos

        def score(rows, at):
            return shape((scaled(rows) * slopes[at]).sum(axis=1) * 3)

        least = score(cells, np.arange(count)) - slack

        def accept(rows, at):
            return score(rows, at) >= least[at]
    else:  # leaves of a few stumps: as many of them as must agree with the start
        columns, cuts = rng.integers(width, size=9), rng.random(9)
        sides = scaled(cells)[:, columns] > cuts
        agreed = rng.integers(3, 9, count)

        def accept(rows, at):
            return ((scaled(rows)[:, columns] > cuts) == sides[at]).sum(axis=1) >= agreed[at]

    return Case(cells, originals, accept, rng.choice([0.0, 0.5, 1.0, 4.0], width))


def made(case: Case, rows: slice = slice(None)) -> np.ndarray:
    """Some of the rows after `undo`, `pull` and `settle`."""
    schema, _ = schema_and_cells()
    at = np.arange(len(case.cells))[rows]
    rest = case.originals[at], lambda found, k: case.accept(found, at[k]), schema, case.weights
    return settle(pull(undo(case.cells[at], *rest), *rest), *rest)


each_kind = pytest.mark.parametrize("kind", ["linear", "waves", "tree"])
seeds = st.integers(0, 2**32 - 1)


@each_kind
@given(seed=seeds)
def test_no_change_can_be_undone_and_no_number_can_go_back_alone(kind, seed):
    schema, _ = schema_and_cells()
    case = random_case(seed, kind)
    rows = made(case)
    assert case.accept(rows, np.arange(len(rows))).all()
    for k, row in enumerate(rows):
        simpler = simpler_rows(schema, case.originals[k], row)
        assert not case.accept(simpler, np.full(len(simpler), k)).any()


@each_kind
@given(seed=seeds)
def test_cells_only_go_back_towards_the_instance(kind, seed):
    schema, _ = schema_and_cells()
    case = random_case(seed, kind)
    rows = made(case)
    before, after = (schema.gaps(case.originals, each) for each in (case.cells, rows))
    assert (after <= before + 1e-9).all()
    words = schema.coding.categorical  # a category is the instance's or the start's
    assert (~schema.changed(rows, case.cells) | ~schema.changed(rows, case.originals))[
        :, words
    ].all()
    np.testing.assert_array_equal(schema.derive(rows, case.originals), rows)


@each_kind
@given(seed=seeds)
def test_rows_made_minimal_together_are_those_made_one_by_one(kind, seed):
    case = random_case(seed, kind)
    alone = [made(case, slice(k, k + 1)) for k in range(len(case.cells))]
    np.testing.assert_array_equal(made(case), np.concatenate(alone))


def test_a_row_with_nothing_to_undo_and_no_rows_at_all_stay_as_they_are():
    case = random_case(0, "linear")
    nothing = case._replace(accept=lambda rows, _: np.zeros(len(rows), dtype=bool))
    np.testing.assert_array_equal(made(nothing), case.cells)
    assert made(case, slice(0, 0)).shape == (0, case.cells.shape[1])
    everything = case._replace(accept=lambda rows, _: np.ones(len(rows), dtype=bool))
    np.testing.assert_array_equal(made(everything), case.originals)


def test_the_costliest_change_is_undone_first():
    schema, known = schema_and_cells()
    columns = [schema.index("months"), schema.index("member")]
    original = known[:1]
    row = original.copy()
    row[0, columns] = 70 - row[0, columns[0]], 1 - row[0, columns[1]]
    row = schema.derive(row, original)

    def one_change(rows, _):
        return schema.changed(rows, original).any(axis=1)

    for costly, kept in (columns, columns[::-1]):
        weights = np.where(np.arange(known.shape[1]) == costly, 10.0, 0.1)
        found = undo(row, original, one_change, schema, weights)
        assert np.flatnonzero(schema.changed(original, found)[0]).tolist() == [kept]


# --- numbers a person would say ------------------------------------------------------------------


def round_steps(feature: Feature) -> list[float]:
    """The first seven of 1, 2 and 5 times powers of ten from a hundredth of the usual range down.

    Those that are no multiple of the column's resolution, or not more, are left out.
    """
    every = [float(f"{k}e{power}") for power in range(9, -12, -1) for k in (5, 2, 1)]
    largest = 0.01 * feature.usual
    steps = [step for step in every if step <= largest * (1 + 1e-9)][:7]
    unit = feature.resolution
    if not unit:
        return steps
    return [s for s in steps if s > unit * (1 + 1e-9) and abs(s / unit - round(s / unit)) < 1e-6]


def said(case: Case, k: int) -> np.ndarray:
    """A row whose changed numbers are rounded one after the other, the costliest first."""
    schema, _ = schema_and_cells()
    row, original = case.cells[k].copy(), case.originals[k]
    costs = schema.change_efforts(original, row, case.weights)
    for i in np.argsort(-costs, kind="stable"):
        feature, before, after = schema.features[i], original[i], row[i]
        if feature.kind != "continuous" or feature.derived or not schema.changed(original, row)[i]:
            continue
        for step in [] if np.isnan([before, after]).any() else round_steps(feature):
            outward = np.ceil if after > before else np.floor
            value = outward(after / step + (-1e-9 if after > before else 1e-9)) * step
            tried = schema.same_where_unchanged(
                np.where(np.arange(len(row)) == i, value, row)[None], original[None]
            )
            inside = feature.lower - 1e-9 <= value <= feature.upper + 1e-9
            if inside and case.accept(tried, np.array([k]))[0]:
                row = tried[0]
                break
    return row


@each_kind
@given(seed=seeds)
def test_numbers_are_rounded_outward_to_the_first_step_at_which_a_row_stays_acceptable(kind, seed):
    schema, _ = schema_and_cells()
    case = random_case(seed, kind)
    found = rounded(*case[:3], schema, case.weights)
    assert case.accept(found, np.arange(len(found))).all()
    expected = np.array([said(case, k) for k in range(len(case.cells))])
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("before", "after", "least", "expected"),
    [
        (9000.0, 6450.27, 0, 6400.0),
        (2000.0, 6450.27, 0, 6500.0),
        (9000.0, 6450.27, 6405, 6450.0),
        (9000.0, 6450.27, 6450.1, 6450.27),
        (9000.0, 6400.0, 0, 6400.0),
        (2000.0, 9999.9, 0, 10_000.0),
    ],
)
def test_a_price_is_rounded_as_a_person_would(before, after, least, expected):
    table = pd.DataFrame({"price": np.r_[np.linspace(0, 12_000, 999), 12.34].round(2)})
    schema = Schema.infer(table, {"price": "continuous"})
    assert 10_500 < schema["price"].usual < 11_000

    def accept(rows: np.ndarray, _: np.ndarray) -> np.ndarray:
        return rows[:, 0] >= least

    found = rounded(np.array([[after]]), np.array([[before]]), accept, schema, np.ones(1))
    assert found[0, 0] == pytest.approx(expected, abs=1e-9)


# --- different ways ------------------------------------------------------------------------------


def ways_of(efforts: np.ndarray, changed: np.ndarray, apart: np.ndarray, count: int) -> list[int]:
    """Chooses ways one by one: of those within a twentieth of the cheapest the first by rule."""
    rest, chosen = list(range(len(efforts))), []
    while rest and len(chosen) < count:
        least = min(efforts[k] for k in rest)
        near = [k for k in rest if efforts[k] <= 1.05 * least + 1e-12]
        best = min(near, key=lambda k: (changed[k].sum(), (~changed[k]).tolist(), efforts[k]))
        chosen.append(best)
        rest = [k for k in rest if k != best and apart[k, best]]
    return chosen


@given(seed=seeds)
def test_ways_are_chosen_by_effort_then_fewer_changes_then_the_order_of_columns(seed):
    schema, known = schema_and_cells()
    rng = np.random.default_rng(seed)
    originals, count = known[rng.integers(len(known), size=3)], 40
    instance, margin = np.sort(rng.integers(0, 3, count)), rng.random(count) < 0.5
    rows = known[rng.integers(len(known), size=count)]
    keep = rng.random(rows.shape) < rng.choice([0.5, 0.8])
    rows = schema.derive(np.where(keep, originals[instance], rows), originals[instance])
    weights = np.ones(known.shape[1])
    problem = SimpleNamespace(
        schema=schema,
        instances=SimpleNamespace(cells=originals),
        search=SimpleNamespace(n_best=3),
        efforts=lambda cells, i: schema.effort(originals[i], cells),
        weights=weights,
    )
    made = minimal._Maker(problem, None)
    made.price = lambda cells, i: problem.efforts(cells, i) * np.where(is_dense(cells), 1.0, 1.5)
    found, price = made.different(InstanceRows(rows, instance, margin)), made.price(rows, instance)
    changed = schema.changed(originals[instance], rows)
    words = schema.coding.categorical
    for i in range(3):
        for asked in (False, True):
            mine = np.flatnonzero((instance == i) & (margin == asked))
            a, b = changed[mine][:, None], changed[mine][None]
            apart = (a & ~b).any(axis=2) & (b & ~a).any(axis=2)
            apart |= schema.changed(rows[mine][:, None], rows[mine][None])[..., words].any(axis=2)
            expected = rows[mine[ways_of(price[mine], changed[mine], apart, 3)]]
            chosen = found.cells[(found.instance == i) & (found.margin == asked)]
            np.testing.assert_array_equal(chosen, expected)


def is_dense(rows: np.ndarray) -> np.ndarray:
    """Whether rows are usual: two thirds of them, whichever."""
    return np.nansum(rows * np.arange(1, 1 + rows.shape[1]), axis=1) % 3 < 2
