"""Baselines: each against brute force, or on data small enough to solve by hand."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cache
from itertools import count, pairwise

import numpy as np
import pytest
import torch

from benchmarks.baselines import (
    CCHVAE,
    DRCE,
    FACE,
    NNCE,
    PPCEF,
    DiCE,
    DiCoFlex,
    RobXCE,
    RobXRows,
)
from benchmarks.baselines.cchvae import shell_points
from benchmarks.baselines.face import face_path
from benchmarks.baselines.ppcef import encode
from benchmarks.baselines.problem import BaselineProblem, interpolate
from lapace import Schema
from lapace.constraints import System
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
    "DiCoFlex": lambda model, **k: DiCoFlex(model, count=3, training_steps=120, **k),
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
    """Polars, three labels, a callable without probabilities, any other season as the target."""
    return worlds.season, worlds.days(250, 0), worlds.days(10, 2), "any-other"


@cache
def post():
    """Records."""
    return worlds.postage, worlds.letters(200, 0), worlds.letters(8, 1), "dear"


@cache
def signs():
    """A bare array of numbers without a lattice, labels True and False."""
    rng = np.random.default_rng(0)
    train = rng.normal(size=(200, 3))
    return lambda rows: rows[:, 0] + rows[:, 1] > 0, train, rng.normal(size=(8, 3)), True


WORLDS = {w.__name__: w for w in (bank, seasons, post, signs)}


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
        if target == "any-other":
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

    # Every instance without a row has a reason, and no other; no row comes twice.
    assert_reasons(rows)
    assert (np.diff(rows.instance) >= 0).all()
    assert np.bincount(rows.instance).max() <= {"DRCE": 5, "DiCE": 3, "DiCoFlex": 3}.get(name, 1)
    keys = [(i, *cells) for i, cells in zip(rows.instance, rows.cells.tolist(), strict=True)]
    assert len(set(keys)) == len(keys)


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


@pytest.mark.parametrize("name", ["DRCE", "NNCE"])
def test_the_instance_is_never_its_own_counterfactual(name):
    """Not even to a classifier that says yes to everything after labelling table and instance."""
    calls = []

    def fickle(rows):
        calls.append(len(rows))
        return ["yes" if len(calls) > 3 or r["age"] >= 40 else "no" for r in rows]

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


@pytest.mark.parametrize(
    ("world", "constraints"),
    [("bank", ()), ("seasons", ()), ("post", "weight <= 250"), ("post", "speed > original")],
)
def test_nnce_is_brute_force(world, constraints):
    model, train, instances, target = WORLDS[world]()
    settings = {"target": target, "constraints": constraints}
    rows = fitted("NNCE", world).counterfactuals(instances, **settings)
    system = System.of(constraints, rows.schema, check=False)
    assert len(rows) > 0
    schema, labels = rows.schema, np.array(predictions(model, train))
    table, before = schema.read(train).cells, predictions(model, instances)
    for instance, cells in zip(rows.instance.tolist(), rows.cells, strict=True):
        candidate = labels == target if target != "any-other" else labels != before[instance]
        original = rows.instances[[instance]]
        candidate &= system.feasible(table, np.repeat(original, len(table), axis=0))
        distance = schema.distance(table[candidate], original)
        assert schema.distance(cells[None], original)[0] == pytest.approx(distance.min())
        assert schema.gaps(table[candidate], cells).sum(axis=1).min() == 0  # one of those rows


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
        chosen = []  # by hand: from the nearest on, each far enough from those chosen
        for k, row in enumerate(near):
            apart = [schema.gaps(row, near[c]).sum() for c in chosen]
            if len(chosen) < 4 and all(gap >= 0.25 * distance.min() for gap in apart):
                chosen.append(k)
        np.testing.assert_array_equal(rows.cells[rows.instance == instance], near[chosen])


def test_drce_as_the_library_has_it_keeps_away_from_the_instance():
    model, train, instances, target = signs()
    plain = {"halvings": 0, "alpha": 0.6, "count": 4}
    rows = (
        DRCE(model, from_instance=True, **plain)
        .fit(train)
        .counterfactuals(instances, target=target)
    )
    for instance in np.unique(rows.instance):
        nearest, *others = rows.distance[rows.instance == instance]
        assert all(1.25 * nearest - 1e-9 <= d <= 1.6 * nearest + 1e-9 for d in others)


def test_the_nearest_stable_row_is_a_training_row():
    model, train, instances, target = signs()
    found = RobXRows(model, threshold=0.3).fit(train).counterfactuals(instances, target=target)
    assert len(found)
    kept = {tuple(row) for row in found.schema.cells(train)}
    assert all(tuple(row) in kept for row in found.cells)


def test_drce_moves_rows_closer_and_keeps_them_valid():
    model, train, instances, target = signs()
    plane = Schema.infer(train).by_range()  # in which half of a change is half as far
    far, near = (
        DRCE(model, halvings=k, schema=plane).fit(train).counterfactuals(instances, target=target)
        for k in (0, 12)
    )
    # By hand: where the line from the instance to a chosen row crosses x + y = 0, as near as twelve
    # halvings come to it from the target's side.
    start, end = far.instances[far.instance], far.cells
    before, after = (rows[:, :2].sum(axis=1) for rows in (start, end))
    share = (np.floor(4096 * before / (before - after)) + 1) / 4096
    stops = start + share[:, None] * (end - start)
    assert len(near) == len(stops)
    np.testing.assert_array_equal(near.instance, far.instance)
    np.testing.assert_allclose(near.cells, stops, rtol=0, atol=1e-9)
    assert model(near.cells).all()
    assert (near.distance < far.distance).all()


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

    # The path is one of the graph and has this cost.
    for cost, instance, nodes in zip(found.cost, found.instance, found.nodes, strict=True):
        steps = pairwise([60 + instance, *nodes])
        assert sum(weights[a, b] for a, b in steps) == pytest.approx(cost)


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
    found = face.cheapest_paths(BaselineProblem.of(face, instance, True))
    path = train[found.nodes[0]]
    assert path[-1, 0] > 0.95
    assert (path[:-1, 1] < 0.2).all()
    # Not even instances near the isolated rows end there: the region is among the sparsest.
    close = np.array([[0.3, 0.7]])
    nearest = NNCE(say, schema=plane).fit(train).counterfactuals(close, target=True)
    assert nearest.cells[0, 1] > 0.8
    assert face.counterfactuals(close, target=True).cells[0, 1] < 0.2


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


def test_a_path_of_face_is_the_line_to_its_counterfactual():
    face, instances = fitted("FACE", "post"), worlds.letters(8, 1)
    endpoints = face.counterfactuals(instances, target="dear")
    line = face_path(face, instances, target="dear", steps=20)
    assert len(line) == 20 * len(endpoints)
    np.testing.assert_array_equal(line.cells[line.tau == 1.0], endpoints.cells)
    assert line.valid[line.tau == 1.0].all()
    assert ["dear" if v else "cheap" for v in line.valid] == worlds.postage(line.rows)
    for instance in np.unique(line.instance):
        assert (np.diff(line.distance[line.instance == instance]) >= -1e-9).all()


@pytest.mark.parametrize("greedy", [False, True])
def test_points_of_face_s_paths_are_projected_onto_constraints(greedy):
    face, instances = fitted("FACE", "post"), worlds.letters(8, 1)
    constraints = ["fixed stamp", "weight <= 250"]
    query = {"face": face, "X": instances, "target": "dear", "greedy": greedy}
    free, rows = face_path(**query), face_path(**query, constraints=constraints)
    system = System.of(constraints, rows.schema)
    assert not system.feasible(free.cells, free.instances[free.instance]).all()
    assert rows.feasible.all()
    assert system.feasible(rows.cells, rows.instances[rows.instance]).all()
    assert ["dear" if v else "cheap" for v in rows.valid] == worlds.postage(rows.rows)
    assert rows.valid[rows.tau == 1.0].all()
    assert not rows.valid.all()


def test_a_greedy_path_hops_through_training_rows_and_arrives():
    face, instances = fitted("FACE", "post"), worlds.letters(8, 1)
    endpoints = face.counterfactuals(instances, target="dear")
    hops = face_path(face, instances, target="dear", steps=20, greedy=True)
    schema = hops.schema
    rows = {tuple(r) for r in schema.cells(worlds.letters(200, 0)).tolist()}
    assert {tuple(r) for r in hops.cells.tolist()} <= rows
    np.testing.assert_array_equal(hops.cells[hops.tau == 1.0], endpoints.cells)
    assert ["dear" if v else "cheap" for v in hops.valid] == worlds.postage(hops.rows)
    for instance, end in zip(endpoints.instance, endpoints.cells, strict=True):
        mine = hops.where(hops.instance == instance)
        whole = schema.gaps(mine.instances[instance], end).sum()
        left = schema.gaps(mine.cells, end).sum(axis=1)
        assert (left <= (1 - mine.tau) * whole + 1e-6).all()
    # Every hop is the shortest that arrives in time, by brute force on one instance.
    instance = int(endpoints.instance[0])
    mine, end, here = (
        hops.cells[hops.instance == instance],
        endpoints.cells[0],
        hops.instances[instance],
    )
    whole, every = schema.gaps(here, end).sum(), np.array(sorted(rows))
    for step, hop in enumerate(mine, 1):
        in_time = schema.gaps(every, end).sum(axis=1) <= (1 - step / 20) * whole + 1e-9
        distance = schema.gaps(every[in_time], here).sum(axis=1)
        if (distance > 0).any():
            assert schema.gaps(here, hop).sum() == pytest.approx(distance[distance > 0].min())
        here = hop


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


# ------------------------------------------------------------------------------------------------
# DiCoFlex


def test_dicoflex_draws_rows_near_each_instances_neighbours_of_the_target():
    """Below a line lie instances, above it rows of the target: those of the same place are near."""
    rng = np.random.default_rng(5)
    table = np.column_stack([rng.uniform(0, 10, 800), np.tile([0.0, 1.0], 400)])
    table[:, 1] += rng.normal(0, 0.05, 800)
    method = DiCoFlex(lambda rows: rows[:, 1] > 0.5, training_steps=400).fit(table)
    start = np.array([[1.0, 0.0], [9.0, 0.0]])
    found = method.counterfactuals(start, target=True)
    drawn = [found.cells[found.instance == k, 0] for k in (0, 1)]
    assert min(map(len, drawn)) >= 3
    assert drawn[0].max() < 4 < 6 < drawn[1].min()
    assert found.cells[:, 1].min() > 0.5
    assert len(np.unique(found.cells, axis=0)) == len(found)
    alone = method.counterfactuals(start[1:], target=True)  # no instance depends on the others
    np.testing.assert_allclose(alone.cells, found.cells[found.instance == 1], rtol=1e-9)


# ------------------------------------------------------------------------------------------------
# DiCE


@pytest.fixture
def counted_time(monkeypatch):
    """A clock that counts how often it is read, so that no test depends on the real one."""
    ticks = count()
    monkeypatch.setattr("benchmarks.baselines.dice.perf_counter", lambda: next(ticks))


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
@pytest.mark.usefixtures("counted_time")
def test_dice_s_time_is_bounded():
    model, train, instances, target = post()
    rows = DiCE(model, seconds=0.0).fit(train).counterfactuals(instances, target=target)
    assert len(rows) == 0
    tried = [i for i, label in enumerate(model(instances)) if label != target]
    assert {rows.reasons[i] for i in tried} == {"DiCE found nothing within 0 seconds."}
