"""Baselines: each against brute force, or on data small enough to solve by hand."""

from __future__ import annotations

import math
import random
import sys
from dataclasses import replace
from functools import cache
from itertools import count, pairwise

import numpy as np
import pytest
import torch

from lapace import InputError, NotFittedError, Schema
from lapace.baselines import CCHVAE, DRCE, FACE, NNCE, PPCEF, DiCE, RobXCE
from lapace.baselines.cchvae import shell_points
from lapace.baselines.nearest import diverse
from lapace.baselines.ppcef import encode
from lapace.baselines.problem import BaselineProblem, interpolate
from lapace.constraints import System
from lapace.errors import ClassifierError
from tests import worlds

# The default recipe, only smaller.
BRIEF = replace(worlds.QUICK, batch=32, epochs=30, patience=0.5)
MAKE = {
    "NNCE": NNCE,
    "FACE": lambda model, **k: FACE(model, neighbours=8, confidence=0.6, **k),
    "RobXCE": lambda model, **k: RobXCE(model, samples=20, steps=4, neighbours=3, **k),
    "DRCE": DRCE,
    "CCHVAE": lambda model, **k: CCHVAE(model, recipe=BRIEF, samples=40, **k),
    "PPCEF": lambda model, **k: PPCEF(model, steps=60, rate=0.05, training_steps=120, **k),
    "DiCE": lambda model, **k: DiCE(
        model,
        count=3,
        seconds=math.inf,
        settings={"sample_size": 100, "posthoc_sparsity_param": None},
        **k,
    ),
}
ALL = [pytest.param(n, marks=pytest.mark.needs("dice") if n == "DiCE" else ()) for n in MAKE]


# ------------------------------------------------------------------------------------------------
# Worlds: a classifier, a table, instances, a target


@cache
def bank():
    """Pandas, every kind of column, gaps, probabilities."""
    train, instances = worlds.applicants(250, 0), worlds.applicants(10, 1)
    instances.loc[0, "home"] = "boat"
    return worlds.credit_model(train, worlds.decisions(train)), train, instances, "approved"


@cache
def seasons():
    """Polars, three labels, a callable without probabilities."""
    return worlds.season, worlds.days(250, 0), worlds.days(10, 1), 2


@cache
def anything():
    """The same, with any other season as the target."""
    return worlds.season, worlds.days(250, 0), worlds.days(10, 2), "any-other"


@cache
def post():
    """Records."""
    return worlds.postage, worlds.letters(200, 0), worlds.letters(8, 1), "dear"


@cache
def shop():
    """Arrow, gaps among whole numbers, xgboost."""
    train = worlds.baskets(200, 0)
    spent, visits = (np.array(train[c].fill_null(8)) for c in ("spent", "visits"))
    classifier = worlds.Boosted(train, (spent / 10 + visits > 20).astype(int))
    return classifier, train, worlds.baskets(8, 1), None


@cache
def signs():
    """A bare array of numbers without a lattice, labels True and False."""
    rng = np.random.default_rng(0)
    train = rng.normal(size=(200, 3))
    return lambda rows: rows[:, 0] + rows[:, 1] > 0, train, rng.normal(size=(8, 3)), True


WORLDS = {w.__name__: w for w in (bank, seasons, anything, post, shop, signs)}


@cache
def fitted(name, world):
    model, train, *_ = WORLDS[world]()
    return MAKE[name](model).fit(train)


@cache
def found(name, world):
    *_, instances, target = WORLDS[world]()
    return fitted(name, world).counterfactuals(instances, target=target)


def predictions(model, rows):
    """What the user's own model predicts for the rows."""
    labels = model.predict(rows) if hasattr(model, "predict") else model(rows)
    return np.asarray(labels).tolist()


def assert_reasons(rows):
    """Every instance has a row or a reason, and none has both."""
    answered = set(rows.instance.tolist())
    assert sorted(rows.reasons) == sorted(set(range(len(rows.instances))) - answered)


# ------------------------------------------------------------------------------------------------
# What holds for every method


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ALL)
def test_every_row_is_a_counterfactual(name, world):
    model, _, instances, target = WORLDS[world]()
    rows = found(name, world)
    schema = rows.schema
    original = rows.instances[rows.instance]
    assert len(rows) > 0

    # The model, queried again about exactly these rows, predicts each instance's target.
    labels, before = predictions(model, rows.rows), predictions(model, instances)
    for label, instance in zip(labels, rows.instance.tolist(), strict=True):
        if target in (None, "any-other"):
            assert label != before[instance]
        else:
            assert label == target
    assert rows.label.tolist() == labels
    assert rows.valid.all()
    assert rows.ok.all()

    # On the lattice, except for cells of the instance.
    kept = ~schema.changed(original, rows.cells)
    snapped = schema.snap(rows.cells)
    same = (snapped == rows.cells) | np.isnan(rows.cells)
    assert (same | kept).all()
    for i, feature in enumerate(schema.features):
        if feature.categories:
            known = ~(rows.cells[:, i] >= len(feature.categories))
            assert (known | kept[:, i]).all()
        # No cell becomes missing in a column that has no missing values in training.
        assert feature.missing or (~np.isnan(rows.cells[:, i]) | kept[:, i]).all()

    # Never the instance; the kind of table that came in; distances as the schema has them.
    assert (~kept).any(axis=1).all()
    assert type(rows.rows) is type(instances)
    np.testing.assert_allclose(rows.distance, schema.gaps(original, rows.cells).sum(axis=1))

    # Every instance without a row has a reason, and no other.
    assert_reasons(rows)
    assert (np.diff(rows.instance) >= 0).all()


@pytest.mark.parametrize("name", ALL)
def test_an_instance_has_one_counterfactual_or_a_few_different_ones(name):
    rows = found(name, "post")
    assert np.bincount(rows.instance).max() <= {"DRCE": 5, "DiCE": 3}.get(name, 1)
    keys = [(i, *cells) for i, cells in zip(rows.instance, rows.cells.tolist(), strict=True)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", ALL)
def test_results_depend_neither_on_other_instances_nor_on_repetition(name):
    model, train, instances, target = bank()
    again = MAKE[name](model).fit(train).counterfactuals(instances, target=target)
    np.testing.assert_array_equal(again.cells, found(name, "bank").cells)
    instance = int(again.instance[-1])
    alone = fitted(name, "bank").counterfactuals(instances.iloc[[instance]], target=target)
    np.testing.assert_array_equal(alone.cells, again.cells[again.instance == instance])


@pytest.mark.parametrize(
    "make",
    [
        lambda m, random_state: FACE(m, random_state=random_state, max_rows=120),
        MAKE["CCHVAE"],
        MAKE["PPCEF"],
    ],
)
def test_random_results_depend_on_random_state(make):
    model, train, instances, target = signs()
    one, two = (
        make(model, random_state=random_state).fit(train).counterfactuals(instances, target=target)
        for random_state in (1, 2)
    )
    assert not np.array_equal(one.cells, two.cells)


@pytest.mark.parametrize("name", ALL)
def test_a_malformed_instance_costs_no_other(name):
    """One broken number, one category the classifier raises on, one labelled as the target."""

    def fussy(rows):
        return ["yes" if {"a": 1, "b": 2}[r["home"]] * r["age"] > 60 else "no" for r in rows]

    train = [{"age": 20 + i % 40, "home": "ab"[i % 2]} for i in range(80)]
    instances = [
        {"age": 25, "home": "a"},
        {"age": float("inf"), "home": "a"},
        {"age": 30, "home": "boat"},
        {"age": 50, "home": "b"},
        {"age": 22, "home": "b"},
    ]
    rows = MAKE[name](fussy).fit(train).counterfactuals(instances, target="yes")
    assert sorted(rows.reasons) == [1, 2, 3]
    assert set(rows.instance.tolist()) == {0, 4}
    assert "age" in rows.reasons[1]
    assert "boat" in rows.reasons[2]
    assert rows.reasons[3] == "The classifier predicts 'yes' already."


@pytest.mark.parametrize("name", ALL)
def test_one_target_per_instance(name):
    model, _, instances, _ = seasons()
    target = [(label + 1) % 3 for label in model(instances)]
    rows = fitted(name, "seasons").counterfactuals(instances, target=target)
    assert len(rows) > 0
    assert model(rows.rows) == [target[instance] for instance in rows.instance]


@pytest.mark.parametrize("name", ALL)
def test_no_instances_have_no_counterfactuals(name):
    _, _, instances, target = bank()
    rows = fitted(name, "bank").counterfactuals(instances.head(0), target=target)
    assert len(rows) == 0
    assert rows.reasons == {}
    assert list(rows.rows.columns) == list(instances.columns)


@pytest.mark.parametrize("name", ALL)
def test_bounds_of_a_given_schema_hold(name):
    """Only ages up to 50 may be proposed; training rows beyond are not."""
    train = [{"age": 20 + i % 60, "home": "ab"[i % 2]} for i in range(600)]
    predict = lambda rows: ["yes" if r["age"] >= 45 else "no" for r in rows]  # noqa: E731
    schema = Schema.infer([r for r in train if r["age"] <= 50])
    method = MAKE[name](predict, schema=schema).fit(train)
    rows = method.counterfactuals(train[:8], target="yes")
    assert len(rows) >= 8
    assert rows.cells[:, 0].max() <= 50


@pytest.mark.parametrize("name", ALL)
def test_an_unfitted_method_is_refused(name):
    with pytest.raises(NotFittedError, match=rf"This {name} is not fitted yet"):
        MAKE[name](worlds.postage).counterfactuals(worlds.letters(3, 1), target="dear")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (None, "3 labels, so the target must be named"),
        (7, "never predicts 7"),
        ([1, 2], "2 targets for 10 instances"),
        ({0, 1}, "target is a set"),
    ],
)
def test_targets_that_cannot_be_used_are_refused(target, words):
    with pytest.raises(InputError, match=words):
        fitted("NNCE", "seasons").counterfactuals(seasons()[2], target=target)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DRCE(None, count=0), "count is 0"),
        (lambda: DRCE(None, alpha=-1), "alpha is -1"),
        (lambda: DRCE(None, halvings=1.5), "halvings is 1.5"),
        (lambda: FACE(None, neighbours=True), "neighbours is True"),
        (lambda: FACE(None, confidence=2), "confidence is 2"),
        (lambda: RobXCE(None, sigma="wide"), "sigma is 'wide'"),
        (lambda: RobXCE(None, threshold=float("nan")), "threshold is nan"),
        (lambda: CCHVAE(None, step=0), "step is 0"),
        (lambda: CCHVAE(None, n_latent=0), "n_latent is 0"),
        (lambda: PPCEF(None, steps=0), "steps is 0"),
        (lambda: PPCEF(None, alpha=-1), "alpha is -1"),
        (lambda: DiCE(None, method="gradient"), "one of random, genetic"),
        (lambda: DiCE(None, count=-1), "count is -1"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_a_classifier_with_one_label_is_refused():
    with pytest.raises(InputError, match="no other label"):
        NNCE(lambda rows: ["yes"] * len(rows)).fit(worlds.letters(50, 0))


@pytest.mark.parametrize("count", [3, 400])
def test_the_error_of_a_classifier_that_breaks_after_fit_is_passed_on(count):
    rows, broken = worlds.letters(400, 0), []

    def predict(some):
        if broken:
            raise RuntimeError("gone")
        return worlds.postage(some)

    method = NNCE(predict).fit(rows)
    broken.append(True)
    with pytest.raises(ClassifierError, match="gone"):
        method.counterfactuals(rows[:count], target="dear")


@pytest.mark.parametrize("name", ["DRCE", "NNCE"])
def test_the_instance_is_never_its_own_counterfactual(name):
    """Not even to a classifier that says yes to everything after labelling table and instance."""
    calls = []

    def fickle(rows):
        calls.append(len(rows))
        return ["yes" if len(calls) > 2 or r["age"] >= 40 else "no" for r in rows]

    table = [{"age": 20 + i % 40} for i in range(120)]
    rows = MAKE[name](fickle).fit(table).counterfactuals([{"age": 30}], target="yes")
    assert {"DRCE": 31, "NNCE": 40}[name] in rows.cells
    assert 30 not in rows.cells


# ------------------------------------------------------------------------------------------------
# Constraints


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("constraint", ["income <= 42", "fixed home", "age <= original"])
def test_constraints_hold_for_every_row(name, constraint):
    _, _, instances, target = bank()
    free, method = found(name, "bank"), fitted(name, "bank")
    rows = method.counterfactuals(instances, target=target, constraints=[constraint])
    system = System.of(constraint, rows.schema, check=False)
    assert not system.feasible(free.cells, free.instances[free.instance]).all()
    assert len(rows) > 0
    assert system.feasible(rows.cells, rows.instances[rows.instance]).all()
    assert rows.ok.all()
    assert set(rows.label) == {"approved"}
    assert_reasons(rows)


@pytest.mark.parametrize("constraint", ["weight <= 250", "speed > original"])
def test_nnce_under_constraints_is_the_nearest_feasible_row(constraint):
    model, train, instances, target = post()
    rows = fitted("NNCE", "post").counterfactuals(instances, target=target, constraints=constraint)
    schema, system = rows.schema, System.of(constraint, rows.schema)
    cells = schema.cells(
        [row for row, label in zip(train, model(train), strict=True) if label == target]
    )
    assert len(rows) > 0
    for instance, distance in zip(rows.instance, rows.distance, strict=True):
        original = np.repeat(rows.instances[instance][None], len(cells), axis=0)
        feasible = cells[system.feasible(cells, original)]
        assert distance == pytest.approx(schema.gaps(feasible, original[0]).sum(axis=1).min())


@pytest.mark.parametrize("name", ALL)
def test_constraints_that_leave_no_row_are_the_reason(name):
    model, _, instances, target = post()
    rows = fitted(name, "post").counterfactuals(
        instances, target=target, constraints=["changes <= 0"]
    )
    assert len(rows) == 0
    tried = [i for i, label in enumerate(model(instances)) if label != target]
    if name != "DiCE":  # which says in its own words that it found none
        assert all("feasible" in rows.reasons[i] for i in tried)
    assert sorted(rows.reasons) == list(range(len(instances)))


def test_a_constraint_on_an_unknown_column_is_refused():
    with pytest.raises(InputError, match="wieght"):
        fitted("NNCE", "post").counterfactuals(post()[2], target="dear", constraints="wieght <= 3")


# ------------------------------------------------------------------------------------------------
# Rows


def test_interpolation_changes_numbers_in_proportion_and_categories_at_one_half():
    rows = [{"age": 20 + i % 50, "home": "ab"[i % 2], "debt": i % 7 or None} for i in range(100)]
    schema = Schema.infer(rows)
    start, end = np.array([[20.0, 0.0, np.nan]]), np.array([[40.0, 1.0, 3.0]])

    def at(share):
        return interpolate(schema, start, end, np.array([share]))[0].tolist()

    assert at(0.3)[:2] == [26.0, 0.0]
    assert np.isnan(at(0.3)[2])
    assert at(0.5) == [30.0, 1.0, 3.0]
    assert at(1.0) == [40.0, 1.0, 3.0]
    beyond = np.array([[300.0, 0.0, 3.0]])  # out of bounds, but equal at both endpoints
    assert interpolate(schema, beyond, beyond, np.array([0.5]))[0, 0] == 300.0


# ------------------------------------------------------------------------------------------------
# NNCE


@pytest.mark.parametrize("world", ["bank", "seasons", "shop"])
def test_nnce_is_brute_force(world):
    model, train, instances, target = WORLDS[world]()
    rows = found("NNCE", world)
    schema, labels = rows.schema, np.array(predictions(model, train))
    table, before = schema.read(train).cells, predictions(model, instances)
    for instance, cells in zip(rows.instance.tolist(), rows.cells, strict=True):
        candidate = labels == target if target is not None else labels != before[instance]
        original = rows.instances[[instance]]
        distance = schema.distance(table[candidate], original)
        assert schema.distance(cells[None], original)[0] == pytest.approx(distance.min())
        assert schema.gaps(table[candidate], cells).sum(axis=1).min() == 0  # one of those rows


def test_nnce_takes_an_unknown_ordinal_level_as_equally_far_from_all():
    """A grade unseen in training is equally far from every grade: income decides, not the code."""
    import pandas as pd

    train = worlds.applicants(200, 0)
    model = lambda rows: np.where(rows["income"] > 40, "yes", "no")  # noqa: E731
    instance = train.iloc[[int(np.argmin(train["income"]))]].copy()
    instance["grade"] = pd.Categorical(["superb"])
    rows = NNCE(model).fit(train).counterfactuals(instance, target="yes")
    table = rows.schema.read(train[train["income"] > 40]).cells
    assert rows.distance[0] == pytest.approx(rows.schema.distance(table, rows.instances).min())


# ------------------------------------------------------------------------------------------------
# DRCE


def test_drce_chooses_near_and_diverse_rows():
    model, train, instances, target = signs()
    method = DRCE(model, halvings=0, alpha=0.6, count=4).fit(train)
    rows = method.counterfactuals(instances, target=target)
    schema, table = rows.schema, train[model(train)]
    for instance in np.unique(rows.instance):
        distance = schema.gaps(table, rows.instances[instance]).sum(axis=1)
        near = table[np.argsort(distance)][: int((distance <= 1.6 * distance.min()).sum())]
        chosen = [0]  # by hand: the nearest, then the one whose nearest chosen is farthest
        while len(chosen) < min(4, len(near)):
            apart = [min(schema.gaps(r, near[c]).sum() for c in chosen) for r in near]
            chosen.append(int(np.argmax(apart)))
        np.testing.assert_array_equal(rows.cells[rows.instance == instance], near[chosen])


def test_drce_moves_rows_closer_and_keeps_them_valid():
    model, train, instances, target = signs()
    plane = Schema.infer(train).by_range()  # in which half of a change is half as far
    far, near = (
        DRCE(model, halvings=k, schema=plane).fit(train).counterfactuals(instances, target=target)
        for k in (0, 12)
    )
    assert len(far) == len(near)
    assert (near.distance <= far.distance + 1e-12).all()
    assert near.distance.mean() < 0.9 * far.distance.mean()
    # Twelve halvings stop within 2^-12 of the line where the label changes.
    sums = near.cells[:, :2].sum(axis=1)
    assert (sums > 0).all()
    assert sums.max() < 0.01


def test_diverse_takes_no_more_than_there_are():
    schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
    assert diverse(schema, np.array([[1.0], [2.0]]), 5).tolist() == [0, 1]


# ------------------------------------------------------------------------------------------------
# FACE


def on_the_right(rows):
    return rows[:, 0] > 0.6


def shortest(weights):
    """Floyd and Warshall."""
    best = np.where(np.isnan(weights), np.inf, weights)
    np.fill_diagonal(best, 0.0)
    for k in range(len(best)):
        best = np.minimum(best, best[:, k : k + 1] + best[k])
    return best


def by_hand(face, instances):
    """The graph with the instances in it, from the formula alone: weights, NaN for no edge."""
    schema = face.training_.schema
    rows = np.concatenate([face.graph_.rows, instances])
    count, far = len(face.graph_.rows), np.array([schema.gaps(r, rows).sum(axis=1) for r in rows])
    h = np.median(np.sort(far[:count, :count], axis=1)[:, face.neighbours])
    empty = -np.log(np.exp(-far[:, :count] / h).mean(axis=1))
    joined = np.zeros(far.shape, dtype=bool)
    for i in range(len(rows)):
        others = [j for j in range(count) if j != i]
        near = sorted(others, key=lambda j: far[i, j])[: face.neighbours]
        joined[i, near] = True
    joined[:count, :count] |= joined[:count, :count].T
    weights = np.where(joined, far * (empty[:, None] + empty) / 2, np.nan)
    return weights, empty[:count]


def test_face_finds_the_cheapest_path():
    rng = np.random.default_rng(3)
    train, instances = rng.uniform(size=(60, 2)), rng.uniform([0, 0], [0.5, 1], size=(6, 2))
    face = FACE(on_the_right, neighbours=5, density=0.3).fit(train)
    weights, empty = by_hand(face, instances)
    best = shortest(weights)
    assert np.isfinite(best[:60, :60]).all()  # one component: no bridge was needed
    endpoints = np.flatnonzero(on_the_right(train) & (empty <= np.quantile(empty, 0.7)))
    found = face.cheapest_paths(BaselineProblem.of(face, instances, True))
    np.testing.assert_allclose(found.cost, best[60:, endpoints].min(axis=1))
    np.testing.assert_array_equal(
        found.cells, train[endpoints[best[60:, endpoints].argmin(axis=1)]]
    )

    # The path it returns is a path of the graph and has this cost.
    rows = np.concatenate([train, instances])
    for instance, path in face.paths(instances, target=True).items():
        places = [int(np.flatnonzero((rows == cells).all(axis=1))[0]) for cells in path]
        assert places[0] == 60 + instance
        assert sum(weights[a, b] for a, b in pairwise(places)) == pytest.approx(
            found.cost[instance]
        )


def test_face_prefers_a_detour_through_dense_regions():
    """A dense lane leads to one end; a nearer end lies isolated across an empty region."""
    lane = np.column_stack([np.linspace(0, 1, 101), np.zeros(101)])
    crowd = np.array([[0.97, 0.01 * k] for k in range(20)])
    isolated = np.array([[0.3, 0.9], [0.31, 0.92]])
    train = np.concatenate([lane, crowd, isolated])
    say = lambda rows: (rows[:, 0] > 0.95) | (rows[:, 1] > 0.8)  # noqa: E731
    instance = np.array([[0.25, 0.02]])
    plane = Schema.infer(train).by_range()  # the empty region is far across, whoever lies in it
    near = NNCE(say, schema=plane).fit(train).counterfactuals(instance, target=True)
    assert near.cells[0, 0] > 0.9  # in this L1 the lane's end is the nearer one
    face = FACE(say, neighbours=6, schema=plane).fit(train)
    path = face.paths(instance, target=True)[0]
    assert path[-1, 0] > 0.95
    assert (path[1:-1, 1] < 0.2).all()
    # Not even instances near the isolated rows end there: the region is among the sparsest.
    close = np.array([[0.3, 0.7]])
    nearest = NNCE(say, schema=plane).fit(train).counterfactuals(close, target=True)
    assert nearest.cells[0, 1] > 0.8
    assert face.counterfactuals(close, target=True).cells[0, 1] < 0.2


def test_face_joins_components_by_their_shortest_edge():
    islands = np.concatenate([np.linspace(0, 1, 9), np.linspace(3, 4, 9), np.linspace(9, 10, 9)])
    train = np.column_stack([islands, np.zeros(27)])
    face = FACE(lambda rows: rows[:, 0] > 8, neighbours=2, density=0).fit(train)
    path = face.paths(np.array([[0.1, 0.0]]), target=True)[0][:, 0]
    assert path[-1] == 9.0
    steps = np.diff(path)
    assert sorted(np.flatnonzero(steps > 1.5)) == [list(path).index(1.0), list(path).index(4.0)]


def test_face_ends_only_where_the_classifier_is_confident():
    class Slope:
        classes_ = ("no", "yes")

        def predict(self, rows):
            return np.where(rows[:, 0] > 0.5, "yes", "no")

        def predict_proba(self, rows):
            return np.column_stack([1 - rows[:, 0], rows[:, 0]])

    train = np.column_stack([np.linspace(0, 1, 101), np.zeros(101)])
    instance = np.array([[0.2, 0.0]])

    def end(**settings):
        return (
            FACE(Slope(), neighbours=4, **settings)
            .fit(train)
            .counterfactuals(instance, target="yes")
        )

    for confidence in (0.5, 0.75, 0.9):
        rows = end(confidence=confidence, density=0)
        assert rows.cells[0, 0] >= confidence
        assert rows.probability[0] >= confidence
        assert rows.cells[0, 0] < max(0.51, confidence) + 0.05
    # The most confident rows lie at the table's end, where it is sparsest.
    nothing = end(confidence=1.0, density=0.2)
    assert len(nothing) == 0
    assert "confidence of 1" in nothing.reasons[0]


def test_face_joins_a_sample_of_a_large_table():
    model, train, instances, target = signs()
    face = FACE(model, max_rows=50).fit(train)
    assert len(face.graph_.rows) == 50
    rows = face.counterfactuals(instances, target=target)
    assert (rows.cells[:, None] == face.graph_.rows).all(axis=2).any(axis=1).all()


# ------------------------------------------------------------------------------------------------
# RobX


def test_stability_is_the_mean_less_the_spread():
    model, _, instances, target = bank()
    method = replace(fitted("RobXCE", "bank"), samples=30)
    method.training_ = fitted("RobXCE", "bank").training_
    problem = BaselineProblem.of(method, instances, target)
    schema, noise = problem.schema, np.random.default_rng(0).standard_normal((30, 6))
    cells = method.training_.rows[:5]
    column = list(model.classes_).index("approved")
    for row, value in zip(cells, method.stability(problem, cells, np.zeros(5, int)), strict=True):
        perturbed = np.repeat(row[None], 30, axis=0)
        for i in schema.numeric:
            feature = schema.features[i]
            perturbed[:, i] = feature.snap(perturbed[:, i] + 0.1 * feature.span * noise[:, i])
        score = model.predict_proba(schema.frame(perturbed))[:, column]
        assert value == pytest.approx(score.mean() - score.std())


@pytest.mark.parametrize("world", ["bank", "signs"])
def test_robx_rows_are_as_stable_as_the_threshold(world):
    model, train, instances, target = WORLDS[world]()
    near = found("NNCE", world)
    before = None
    for threshold in (-1.0, 0.5, 0.75):
        method = RobXCE(model, threshold=threshold, samples=40).fit(train)
        rows = method.counterfactuals(instances, target=target)
        assert rows.instance.tolist() == near.instance.tolist()
        problem = BaselineProblem.of(method, instances, target)
        stable = method.stability(problem, rows.cells, rows.instance)
        assert (stable >= threshold - 1e-12).all()
        if before is not None:
            assert stable.mean() > before
        else:
            np.testing.assert_array_equal(rows.cells, near.cells)  # every row is stable enough
        before = stable.mean()


def test_robx_without_a_threshold_takes_the_median_of_training_rows():
    model, train, instances, target = signs()
    method = RobXCE(model, samples=40).fit(train)
    rows = method.counterfactuals(instances, target=target)
    problem, table = BaselineProblem.of(method, instances, target), train[model(train)]
    median = np.median(method.stability(problem, table, np.full(len(table), problem.tried[0])))
    assert len(table) <= 200  # so that the median is over all of them
    assert (method.stability(problem, rows.cells, rows.instance) >= median - 1e-12).all()


def test_robx_says_when_nothing_is_stable_enough():
    model, train, instances, target = signs()
    method = RobXCE(model, threshold=0.9, sigma=3.0, samples=20).fit(train)
    rows = method.counterfactuals(instances, target=target)
    assert len(rows) == 0
    reasons = [text for text in rows.reasons.values() if "stability of 0.9" in text]
    assert len(reasons) == int((~model(instances)).sum())


# ------------------------------------------------------------------------------------------------
# C-CHVAE


def test_shells_are_evenly_filled():
    for low, high, dims in [(0.0, 1.0, 2), (2.0, 2.5, 5)]:
        points = shell_points(np.random.default_rng(0), 4000, dims, low, high)
        size = np.linalg.norm(points, axis=1)
        assert size.min() >= low
        assert size.max() <= high + 1e-12
        # Half of the volume lies within the radius where r^h is half way.
        half = ((low**dims + high**dims) / 2) ** (1 / dims)
        assert (size <= half).mean() == pytest.approx(0.5, abs=0.03)
        assert np.abs(points.mean(axis=0)).max() < 0.1 * high


def test_spheres_grow_until_a_counterfactual_is_found():
    """The farther the target begins, the larger the sphere that reaches it."""
    train = np.random.default_rng(0).normal(size=(400, 2))
    instances = np.array([[0.0, 0.0], [0.3, -0.4], [-0.2, 0.6]])

    def radius(edge):
        method = CCHVAE(lambda rows: rows[:, 0] > edge, recipe=BRIEF).fit(train)
        cells, instance, found_at = method.search(BaselineProblem.of(method, instances, True))
        assert instance.tolist() == [0, 1, 2]
        assert (cells[:, 0] > edge).all()
        np.testing.assert_allclose(found_at / method.step, np.round(found_at / method.step))
        return found_at

    near, far = radius(0.5), radius(1.8)
    assert (far > near).all()


def test_the_number_of_shells_is_bounded():
    model, train, instances, target = signs()
    method = CCHVAE(model, recipe=BRIEF, step=1e-4, shells=2).fit(train)
    rows = method.counterfactuals(instances, target=target)
    assert any("within 0.0002 standard deviations" in text for text in rows.reasons.values())
    assert len(rows) < len(instances)


# ------------------------------------------------------------------------------------------------
# PPCEF


@cache
def clumps():
    """A clump of rows of each label, and the boundary between them."""
    rng = np.random.default_rng(3)
    table = np.concatenate([rng.normal(0, 0.4, (600, 2)), rng.normal((4, 4), 0.3, (600, 2))])
    return lambda rows: rows.sum(axis=1) > 2, table


def test_ppcef_rows_are_as_dense_as_the_median_row_of_the_target():
    predict, table = clumps()
    method = PPCEF(predict, training_steps=300, steps=150).fit(table)
    start = table[:10]
    found = method.counterfactuals(start, target=True)
    assert len(found) == 10
    x = torch.as_tensor(encode(method.training_.schema, found.cells))
    yes = torch.tensor([[0.0, 1.0]]).repeat(len(x), 1).double()
    density = method.flow_.log_density(x, yes).numpy()
    # Rounding to the lattice may cost a little.
    assert (density >= method.median_density_[1] - 0.5).all()
    # Inside the clump, while the nearest row is at its edge.
    nnce = NNCE(predict).fit(table).counterfactuals(start, target=True)
    assert nnce.distance.mean() < found.distance.mean()
    assert np.linalg.norm(found.cells - (4, 4), axis=1).max() < 1


def test_ppcef_follows_the_network_it_is_given():
    """What the classifier refuses is not returned; without a floor of density it stops early."""
    predict, table = clumps()
    low, span = table.min(axis=0), np.ptp(table, axis=0)

    def network(sign):
        def probability(x):
            total = (torch.as_tensor(low) + x * torch.as_tensor(span)).sum(dim=1, keepdim=True)
            one = torch.sigmoid(2 * sign * (total - 2))
            return torch.cat([1 - one, one], dim=1)

        return probability

    right, wrong = (
        PPCEF(predict, network=network(s), training_steps=60, steps=80, rate=0.05).fit(table)
        for s in (1, -1)
    )
    for method in (right, wrong):
        method.median_density_[:] = -np.inf  # validity alone
    found = right.counterfactuals(table[:5], target=True)
    assert len(found) == 5
    assert (found.cells.sum(axis=1) < 3).all()  # those of the clump sum up to 8
    assert sorted(wrong.counterfactuals(table[:5], target=True).reasons) == [0, 1, 2, 3, 4]


def test_ppcef_keeps_what_it_cannot_move():
    train = worlds.applicants(250, 0)
    model = worlds.credit_model(train, worlds.decisions(train))
    instances = worlds.applicants(30, 1)
    instances.loc[0, "home"] = "boat"
    found = MAKE["PPCEF"](model).fit(train).counterfactuals(instances, target="approved")
    before = found.instances[found.instance]
    numeric = found.schema.numeric
    missing = np.isnan(before[:, numeric])
    assert missing.any()
    assert np.isnan(found.cells[:, numeric][missing]).all()


def test_ppcef_without_the_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "zuko", None)
    with pytest.raises(ImportError, match=r"PPCEF needs zuko: pip install 'lapace\[flows\]'"):
        PPCEF(worlds.postage).fit(worlds.letters(30, 0))


# ------------------------------------------------------------------------------------------------
# DiCE


@pytest.fixture
def counted_time(monkeypatch):
    """A clock that counts how often it is read, so that no test depends on the real one."""
    ticks = count()
    monkeypatch.setattr("lapace.baselines.dice.perf_counter", lambda: next(ticks))


@pytest.mark.needs("dice")
def test_dice_is_silent_and_restores_the_global_generators(capsys):
    _, _, instances, target = bank()
    method = fitted("DiCE", "bank")
    before = np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    method.counterfactuals(instances, target=target)
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before  # noqa: NPY002
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == ""


@pytest.mark.needs("dice")
def test_dice_draws_by_random_state():
    model, train, instances, target = post()
    one, two = (
        MAKE["DiCE"](model, random_state=random_state)
        .fit(train)
        .counterfactuals(instances, target=target)
        for random_state in (1, 2)
    )
    assert not np.array_equal(one.cells, two.cells)


@pytest.mark.needs("dice")
def test_dice_keeps_cells_it_cannot_hold():
    """An unseen category, a missing value and an age out of bounds stay the instance's."""
    _, train, instances, _ = bank()
    rich = lambda rows: np.where(rows["income"] > 60, "yes", "no")  # noqa: E731
    instance = instances.iloc[[0]].copy()
    instance["income"] = 10.0
    instance["debt"] = None
    instance["debt"] = instance["debt"].astype("Int64")
    instance["age"] = 120
    method = DiCE(rich, count=8, seconds=math.inf).fit(train)
    rows = method.counterfactuals(instance, target="yes")
    schema = rows.schema
    assert schema["home"].extra == ("boat",)
    age, debt, home = (rows.cells[:, schema.index(n)] for n in ("age", "debt", "home"))
    assert (age == 120).any()
    assert np.isnan(debt).any()
    assert (home == rows.instances[0, schema.index("home")]).any()


@pytest.mark.needs("dice")
@pytest.mark.usefixtures("counted_time")
def test_dice_s_time_is_bounded():
    model, train, instances, target = post()
    rows = DiCE(model, seconds=0.0).fit(train).counterfactuals(instances, target=target)
    assert len(rows) == 0
    tried = [i for i, label in enumerate(model(instances)) if label != target]
    assert {rows.reasons[i] for i in tried} == {"DiCE found nothing within 0 seconds."}


@pytest.mark.needs("dice")
@pytest.mark.usefixtures("counted_time")
def test_dice_out_of_time_leaves_out_its_last_step():
    """One unit at a time over a million: the step that makes rows sparser would take for ever."""
    rng = np.random.default_rng(0)
    train = [{"pay": int(p), "age": int(a)} for p, a in rng.integers(0, 10**6, (300, 2))]
    predict = lambda rows: ["yes" if r["pay"] > 9e5 else "no" for r in rows]  # noqa: E731
    settings = {"posthoc_sparsity_param": 1.0}
    method = DiCE(predict, seconds=100, settings=settings).fit(train)
    assert predict(train[:1]) == ["no"]
    rows = method.counterfactuals(train[:1], target="yes")
    assert rows.reasons == {}
    assert (rows.cells[:, 0] > 9e5).all()


@pytest.mark.needs("dice")
def test_dice_that_finds_nothing_says_so():
    """Only one row of the table is labelled as the target, and no draw will hit it."""
    train = [{"a": 13 * i % 1009, "b": 7 * i % 997, "c": 11 * i % 991} for i in range(200)]
    predict = lambda rows: ["yes" if r == train[100] else "no" for r in rows]  # noqa: E731
    method = DiCE(predict, seconds=math.inf, settings={"sample_size": 20}).fit(train)
    rows = method.counterfactuals(train[:2], target="yes")
    assert len(rows) == 0
    assert all("DiCE found nothing:" in text for text in rows.reasons.values())
    assert sorted(rows.reasons) == [0, 1]


@pytest.mark.needs("dice")
def test_dice_by_its_genetic_method():
    model, train, instances, target = post()
    settings = {"maxiterations": 20}
    method = DiCE(model, method="genetic", count=2, seconds=math.inf, settings=settings).fit(train)
    rows = method.counterfactuals(instances[:3], target=target)
    tried = [i for i, label in enumerate(model(instances[:3])) if label != "dear"]
    assert set(rows.instance.tolist()) == set(tried)
    assert set(model(rows.rows)) == {"dear"}


@pytest.mark.needs("dice")
def test_dice_accepts_a_constant_column():
    train = [{**row, "planet": "earth", "suns": 1} for row in worlds.letters(150, 0)]
    rows = MAKE["DiCE"](worlds.postage).fit(train).counterfactuals(train[:4], target="dear")
    assert len(rows) > 0
    assert {row["planet"] for row in rows.rows} == {"earth"}


def test_dice_without_the_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dice_ml", None)
    with pytest.raises(ImportError, match=r"DiCE needs dice_ml: pip install 'lapace\[dice\]'"):
        DiCE(worlds.postage).fit(worlds.letters(50, 0))
