"""Rows made minimal, compared with brute force: random acceptance, every kind of column."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapace.explainer.minimal import pull, settle, undo
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
