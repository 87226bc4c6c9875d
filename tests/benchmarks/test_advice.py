"""The rulers of advice, compared with a few lines of brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import advice
from benchmarks.optimum import Linear
from benchmarks.rulers import PUBLIC, Fit, Rulers, gaps, probability
from lapace.schema import Schema


def people(count: int = 400) -> pd.DataFrame:
    """Rows with two numbers that decide, a category and a number that do not."""
    rng = np.random.default_rng(0)
    income, debt = rng.integers(10, 60, count), rng.integers(0, 40, count)
    return pd.DataFrame({
        "income": income, "debt": debt, "home": rng.choice(["own", "rent"], count),
        "shoe": rng.integers(36, 46, count),
    })  # fmt: skip


def test_the_ruler_counts_percentiles_and_categories():
    schema = Schema.infer(people())
    a = schema.cells(people(1))
    b = a.copy()
    values, shares = (np.array(part) for part in schema["income"].ranks)
    b[0, 0], b[0, 2] = 50.0, 1.0 - a[0, 2]
    passed = abs(np.interp(50.0, values, shares) - np.interp(a[0, 0], values, shares))
    assert gaps(schema, a, b)[0] == pytest.approx([passed, 0, 1, 0])


def test_the_optimum_is_that_of_all_pairs_of_values():
    frame = people()[["income", "debt"]]
    said = np.where(frame.income > frame.debt + 12, "yes", "no")
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(frame, said)
    schema = Schema.infer(frame)
    train = schema.cells(frame)
    linear = Linear(model, schema, train)
    rows = np.array(list(product(range(10, 60), range(40))), dtype=np.float64)
    ok = rows[model.predict(pd.DataFrame(rows, columns=list(frame))) == "yes"]
    for x in train[said == "no"][:4]:
        if model.predict(pd.DataFrame([x], columns=list(frame)))[0] == "yes":
            continue
        exact = linear.efforts(x, ok).sum(axis=1).min()
        assert linear.optimum(x, 1.0) == pytest.approx(exact, rel=0.02)
        assert linear.real(x, 1.0, train[said == "yes"]) >= exact - 1e-9


@pytest.fixture(scope="module")
def fit() -> Fit:
    frame = people()
    said = np.where(frame.income > frame.debt + 12, "yes", "no")
    return Fit.of(frame, said, "logistic", 10)


def test_a_change_that_the_model_does_not_read_is_not_needed(fit):
    explanation = fit.explain()
    rulers = Rulers(fit, explanation.schema, explanation.template)
    best = explanation.best(1)
    not_needed, _, _ = rulers.undone(best)
    assert not not_needed.any()
    padded = best.instances[best.instance]
    padded[:, 2] = 1.0 - padded[:, 2]  # the home alone moves
    more = type(best).of(
        best.schema, best.instances, padded, best.instance, valid=best.valid, label=best.label
    )
    before = probability(fit.model, rulers.frame(best.instances[best.instance]), best.label)
    after = probability(fit.model, rulers.frame(padded), best.label)
    assert (rulers.undone(more)[0] == (before >= after)).all()


def test_figures_are_shares_and_cover_their_names(fit):
    explanation = fit.explain()
    figures = Rulers(fit, explanation.schema, explanation.template).figures(explanation.best(1))
    assert set(figures) == set(advice.FIGURES)
    assert 0 <= figures["tiny"] <= 1
    assert 1 <= figures["changes"] <= 4


def test_the_twelve_tables_are_named():
    assert len(PUBLIC) == 12
