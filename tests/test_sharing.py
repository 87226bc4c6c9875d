"""Shared calls: joined where threads call at the same time, and no output changes by a bit."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from operator import methodcaller

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from lapace import Explainer, Schema
from lapace.classifiers import on_arrays, threshold, train
from lapace.classifiers.sharing import ROWS, SharedCalls, answers_by_row
from test_server import serving, until
from tests import worlds


class Doubles:
    """Doubles rows; keeps the sizes of its calls; the first one waits until it is let go."""

    def __init__(self):
        self.sizes, self.started, self.go_on = [], threading.Event(), threading.Event()

    def __call__(self, cells):
        self.sizes.append(len(cells))
        if not self.started.is_set():
            self.started.set()
            assert self.go_on.wait(60)
        if (cells < 0).any():
            raise ValueError("below zero")
        return 2 * cells


def together(*others):
    """One call that runs, and others that wait meanwhile: what each gets, and the sizes."""
    calls, model = SharedCalls(None, patience=0.0), Doubles()
    with ThreadPoolExecutor(9) as pool:
        tasks = [pool.submit(calls.call, "a", np.full((2, 1), 7.0), model)]
        assert model.started.wait(60)
        for number, (key, rows) in enumerate(others, 1):
            tasks.append(pool.submit(calls.call, key, np.array(rows)[:, None], model))
            until(lambda number=number: len(calls._waiting) == number)
        model.go_on.set()
        found = [task.exception() or task.result()[:, 0].tolist() for task in tasks]
    return found, model.sizes


def test_calls_that_wait_are_made_as_one():
    found, sizes = together(("a", [1.0]), ("a", [2.0, 3.0]), ("a", [4.0]))
    assert found == [[14.0, 14.0], [2.0], [4.0, 6.0], [8.0]]
    assert sizes == [2, 4]


def test_only_calls_of_one_kind_are_joined():
    found, sizes = together(("a", [1.0]), ("b", [2.0, 3.0]), ("a", [4.0]))
    assert found[1:] == [[2.0], [4.0, 6.0], [8.0]]
    assert sorted(sizes[1:]) == [2, 2]


def test_one_that_raises_costs_no_other():
    found, sizes = together(("a", [1.0]), ("a", [-1.0]), ("a", [4.0]))
    assert found[1] == [2.0]
    assert isinstance(found[2], ValueError)
    assert found[3] == [8.0]
    assert sizes == [2, 3, 1, 1, 1]


def test_a_large_call_is_made_alone():
    calls, model = SharedCalls(None), Doubles()
    model.go_on.set()
    calls._busy = True  # whatever runs
    assert len(calls.call("a", np.zeros((ROWS + 1, 1)), model)) == ROWS + 1


@cache
def table():
    rows = worlds.applicants(400, 0)
    return rows, worlds.decisions(rows)


@pytest.mark.parametrize("kind", ["forest", "boosting", "mlp"])
def test_trees_answer_by_row_and_networks_do_not(kind):
    rows, labels = table()
    model = train(kind, Schema.infer(rows), rows, labels)
    assert answers_by_row(model) == (kind != "mlp")
    assert answers_by_row(threshold(model, 0.4)) == (kind != "mlp")
    if kind == "mlp":
        return
    whole = model.predict_proba(rows)
    for size in (1, 2, 7, 64):
        parts = [model.predict_proba(rows[k : k + size]) for k in range(0, 128, size)]
        np.testing.assert_array_equal(np.concatenate(parts)[:128], whole[:128])


@pytest.mark.parametrize(
    ("model", "by_row"),
    [
        (lambda rows: rows, False),
        (LogisticRegression(), False),
        (MLPClassifier(), False),
        (make_pipeline(StandardScaler(), RandomForestClassifier()), True),
        (make_pipeline(StandardScaler(), LogisticRegression()), False),
        (make_pipeline(FunctionTransformer(np.sort), RandomForestClassifier()), False),
        (make_pipeline(FunctionTransformer(methodcaller("sort")), RandomForestClassifier()), False),
        (
            make_pipeline(
                make_column_transformer((OneHotEncoder(), [0]), ("passthrough", [1])),
                RandomForestClassifier(),
            ),
            True,
        ),
        (on_arrays(RandomForestClassifier()), True),
        (on_arrays(RandomForestClassifier(), device="cpu"), False),
        (type("RandomForestClassifier", (RandomForestClassifier,), {})(), False),
    ],
)
def test_what_is_known_to_answer_by_row(model, by_row):
    assert answers_by_row(model) == by_row


def test_requests_at_once_get_what_each_would_get_alone():
    rows, labels = table()
    model = train("forest", Schema.infer(rows), rows, labels, n_estimators=3)
    explainer = Explainer(model, n_prototypes=1, recipe=worlds.QUICK, device="cpu").fit(rows)
    some = json.loads(worlds.applicants(6, 1).to_json(orient="records"))
    sizes, whole = [], model[-1].predict_proba

    def noted(frame):
        sizes.append(len(frame))
        return whole(frame)

    model[-1].predict_proba = noted
    alone = [explainer.explain([one]).to_json() for one in some]
    before = sizes.copy()
    sizes.clear()
    with serving(explainer, threads=7) as client, ThreadPoolExecutor(6) as pool:
        bodies = [{"instances": [one]} for one in some]
        found = list(pool.map(lambda body: client.post("/v2/explain", json=body), bodies))
    assert [response.json() for response in found] == alone
    assert sum(sizes) == sum(before), "the same rows"
    assert len(sizes) < len(before), "in fewer calls"
