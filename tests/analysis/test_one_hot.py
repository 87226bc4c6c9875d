"""Rules that a table shows by itself, and classifiers that refuse made-up rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lapace import CentroidWarning, Explainer, InputError, Schema
from lapace.relations import one_hot_rules
from tests import worlds

HOMES = ("own", "rent", "kin")


def households(rows=300):
    rng = np.random.default_rng(0)
    home = rng.integers(0, 3, rows)
    flags = {f"home_{name}": (home == k).astype(int) for k, name in enumerate(HOMES)}
    return pd.DataFrame(
        {"income": rng.integers(10, 90, rows), "debt": rng.integers(0, 60, rows), **flags}
    )


def rules(frame):
    schema = Schema.infer(frame)
    return [rule.text for rule in one_hot_rules(schema, schema.cells(frame))]


def test_columns_of_which_exactly_one_is_set_are_tied():
    frame = households()
    assert rules(frame) == ["home_own + home_rent + home_kin == 1"]
    assert rules(frame.astype({f"home_{name}": bool for name in HOMES})) == rules(frame)
    twice = frame.copy()
    twice.loc[0, ["home_own", "home_rent"]] = 1
    assert rules(twice) == []
    assert rules(frame.rename(columns={"home_own": "own", "home_rent": "rent"})) == []
    assert rules(frame.head(20)) == []


def strict(frame):
    """Refuses what its table never held: no home, or two; and more than anyone earns."""
    homes = frame[[f"home_{name}" for name in HOMES]].sum(axis=1)
    if (homes != 1).any() or (frame["income"] > 85).any():
        raise ValueError("no such household")
    return np.where(frame["income"] + 20 * frame["home_own"] > frame["debt"] + 30, "yes", "no")


def test_a_classifier_that_refuses_made_up_rows_costs_no_fit():
    frame = households().assign(income=lambda f: f["income"].clip(upper=85))
    frame.loc[0, "income"] = 20
    explainer = Explainer(strict, n_prototypes=2, recipe=worlds.QUICK, device="cpu").fit(frame)
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

    explainer = Explainer(label, n_prototypes=2, recipe=worlds.QUICK, device="cpu")
    with pytest.warns() as warned:
        explainer.fit(train)
    assert {w.category for w in warned} == {UserWarning, CentroidWarning}  # x0 gives the label
    assert any("'odd'" in str(w.message) and "be a target" in str(w.message) for w in warned)
    explanation = explainer.explain(train[10:20], target="high")
    assert set(explanation.status) <= {"answered", "already_target"}
    with pytest.raises(InputError, match="no valid prototype of label 'odd'"):
        explainer.explain(train[10:12], target="odd")
