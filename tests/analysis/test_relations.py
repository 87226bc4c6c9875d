"""Relations between columns that nothing declares: which are found, and which are not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lapace import Explainer
from lapace.relations import find_relations, warn_of_relations
from lapace.schema import Schema
from tests.worlds import QUICK


def loans(count=400):
    """Loans whose instalment, fee and size follow from the amount and the months."""
    rng = np.random.default_rng(0)
    amount, months = rng.integers(10, 300, count) * 100, rng.integers(1, 15, count) * 6
    size = np.where(amount >= 15_000, "large", "small")
    columns = {"amount": amount, "months": months, "fee": amount // 100, "size": size}
    return pd.DataFrame({**columns, "instalment": np.ceil(amount / months).astype(int)})


def decide(frame):
    return np.where(frame["instalment"] < 500, "yes", "no")


def found_in(table, **overrides):
    columns = Schema.infer(table, overrides or None)
    return dict(find_relations(columns, columns.cells(table)))


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


def test_fit_suggests_what_it_finds_and_doubts_what_is_wrong():
    table = loans(300)
    with pytest.warns(UserWarning, match="follow from others") as caught:
        Explainer(decide, n_prototypes=2, recipe=QUICK, device="cpu").fit(table)
    (sentence,) = [str(w.message) for w in caught if "follow from others" in str(w.message)]
    assert "\n  instalment = ceil(amount / months)" in sentence
    assert "schema={'" in sentence
    table = table[["amount", "fee"]]
    columns = Schema.infer(table, {"fee": {"derived": "amount / 50"}})
    with pytest.warns(UserWarning, match="'fee' is declared as derived and differs from that in"):
        warn_of_relations(columns, columns.cells(table))
