"""Other instances's methods: each against brute force or a world small enough to solve by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

import worlds
from lapace import InputError, NotFittedError, Schema
from lapace.baselines import (
    CCHVAE,
    DRCE,
    FACE,
    NNCE,
    DiCE,
    RobXCE,
    face_greedy,
    face_interpolate,
    unanswered,
)
from lapace.baselines.cchvae import shell_points
from lapace.baselines.ground import between, smallest
from lapace.baselines.nearest import diverse
from lapace.baselines.robx import stability
from lapace.errors import ClassifierError

# Small enough to be quick, and nothing else than smaller.
BRIEF = replace(worlds.QUICK, batch=32, epochs=30)
MAKE = {
    "NNCE": NNCE,
    "FACE": lambda model, **k: FACE(model, neighbours=8, confidence=0.6, **k),
    "RobXCE": lambda model, **k: RobXCE(model, samples=20, steps=4, neighbours=3, **k),
    "DRCE": DRCE,
    "CCHVAE": lambda model, **k: CCHVAE(model, recipe=BRIEF, samples=40, **k),
    "DiCE": lambda model, **k: DiCE(
        model, count=3, settings={"sample_size": 100, "posthoc_sparsity_param": None}, **k
    ),
}
ALL = [pytest.param(n, marks=pytest.mark.needs("dice") if n == "DiCE" else ()) for n in MAKE]
OWN = [name for name in MAKE if name != "DiCE"]


# ------------------------------------------------------------------------------------------------
# Worlds: a classifier, a table, instances, what they want


@cache
def bank():
    """Pandas, every kind of column, gaps, probabilities."""
    train, instances = worlds.applicants(250, 0), worlds.applicants(10, 1)
    instances.loc[0, "home"] = "boat"
    return worlds.clerk(train, worlds.decisions(train)), train, instances, "approved"


@cache
def seasons():
    """Polars, three labels, a callable without probabilities."""
    return worlds.season, worlds.days(250, 0), worlds.days(10, 1), 2


@cache
def anything():
    """The same, and any other season will do."""
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
    return fitted(name, world).find(instances, target=target)


def asked_again(model, rows):
    """What the user's own classifier says of the rows, in its own words."""
    answer = model.predict(rows) if hasattr(model, "predict") else model(rows)
    return np.asarray(answer).tolist()


# ------------------------------------------------------------------------------------------------
# What holds for every method


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ALL)
def test_every_row_is_an_answer(name, world):
    model, _, instances, target = WORLDS[world]()
    answers, reasons = found(name, world)
    schema = answers.schema
    own = answers.instances[answers.instance]
    assert len(answers) > 0

    # The classifier, asked anew about exactly these rows, says what each instance wants.
    said, before = asked_again(model, answers.rows), asked_again(model, instances)
    for label, instance in zip(said, answers.instance.tolist(), strict=True):
        if target in (None, "any-other"):
            assert label != before[instance]
        else:
            assert label == target
    assert answers.valid.all()
    assert answers.ok.all()

    # On the lattice, but for cells that are the instance's own.
    kept = ~schema.changed(own, answers.cells)
    snapped = schema.snap(answers.cells)
    same = (snapped == answers.cells) | np.isnan(answers.cells)
    assert (same | kept).all()
    for i, feature in enumerate(schema.features):
        if feature.categories:
            known = ~(answers.cells[:, i] >= len(feature.categories))
            assert (known | kept[:, i]).all()
        # Nobody is told to have no value where training rows always have one.
        assert feature.missing or (~np.isnan(answers.cells[:, i]) | kept[:, i]).all()

    # Never the instance; the kind of table that came in; distances as the schema has them.
    assert (~kept).any(axis=1).all()
    assert type(answers.rows) is type(instances)
    np.testing.assert_allclose(answers.distance, schema.gaps(own, answers.cells).sum(axis=1))

    # Whoever has no row has a reason, and nobody else.
    assert sorted(reasons) == unanswered(answers).tolist()
    assert sorted({*reasons, *answers.instance.tolist()}) == list(range(len(answers.instances)))
    assert (np.diff(answers.instance) >= 0).all()


@pytest.mark.parametrize("name", ALL)
def test_people_have_one_answer_or_a_few_different_ones(name):
    answers = found(name, "post").answers
    counts = np.bincount(answers.instance)
    assert counts.max() <= {"DRCE": 5, "DiCE": 3}.get(name, 1)
    rows = [(w, *cells) for w, cells in zip(answers.instance, answers.cells.tolist(), strict=True)]
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("name", ALL)
def test_company_and_repetition_change_nothing(name):
    model, train, instances, target = bank()
    again = MAKE[name](model).fit(train).counterfactuals(instances, target=target)
    np.testing.assert_array_equal(again.cells, found(name, "bank").answers.cells)
    instance = int(again.instance[-1])
    alone = fitted(name, "bank").counterfactuals(instances.iloc[[instance]], target=target)
    np.testing.assert_array_equal(alone.cells, again.cells[again.instance == instance])


@pytest.mark.parametrize("make", [lambda m, seed: FACE(m, seed=seed, most=120), MAKE["CCHVAE"]])
def test_the_seed_is_what_chance_depends_on(make):
    model, train, instances, target = signs()
    one, two = (
        make(model, seed=seed).fit(train).counterfactuals(instances, target=target)
        for seed in (1, 2)
    )
    assert not np.array_equal(one.cells, two.cells)


@pytest.mark.parametrize("name", ALL)
def test_one_person_s_trouble_costs_nobody_else(name):
    """One broken number, one category the classifier raises on, one who is there already."""

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
    answers, reasons = MAKE[name](fussy).fit(train).find(instances, target="yes")
    assert sorted(reasons) == [1, 2, 3]
    assert set(answers.instance.tolist()) == {0, 4}
    assert "age" in reasons[1]
    assert "boat" in reasons[2]
    assert "already" in reasons[3]


@pytest.mark.parametrize("name", ALL)
def test_targets_of_each_instance(name):
    model, _, instances, _ = seasons()
    target = [(label + 1) % 3 for label in model(instances)]
    answers = fitted(name, "seasons").counterfactuals(instances, target=target)
    assert len(answers) > 0
    assert model(answers.rows) == [target[instance] for instance in answers.instance]


@pytest.mark.parametrize("name", ALL)
def test_nobody_asked_is_nobody_answered(name):
    _, _, instances, target = bank()
    answers, reasons = fitted(name, "bank").find(instances.head(0), target=target)
    assert len(answers) == 0
    assert reasons == {}
    assert list(answers.rows.columns) == list(instances.columns)


@pytest.mark.parametrize("name", ALL)
def test_the_schema_handed_over_is_obeyed(name):
    """Only ages up to 50 may be proposed; training rows beyond are not."""
    train = [{"age": 20 + i % 60, "home": "ab"[i % 2]} for i in range(600)]
    say = lambda rows: ["yes" if r["age"] >= 45 else "no" for r in rows]  # noqa: E731
    schema = Schema.infer([r for r in train if r["age"] <= 50])
    method = MAKE[name](say, schema=schema).fit(train)
    answers = method.counterfactuals(train[:8], target="yes")
    assert len(answers) >= 8
    assert answers.cells[:, 0].max() <= 50


@pytest.mark.parametrize("name", ALL)
def test_asking_before_fit_is_refused(name):
    with pytest.raises(NotFittedError, match=rf"{name} knows nothing yet"):
        MAKE[name](worlds.postage).counterfactuals(worlds.letters(3, 1), target="dear")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (None, "3 labels, so the target must be named"),
        (7, "never says 7"),
        ([1, 2], "2 targets for 10 instances"),
    ],
)
def test_targets_that_make_no_sense(target, words):
    with pytest.raises(InputError, match=words):
        fitted("NNCE", "seasons").find(seasons()[2], target=target)


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
        (lambda: CCHVAE(None, latent=0), "latent is 0"),
        (lambda: DiCE(None, method="gradient"), "one of random, genetic"),
        (lambda: DiCE(None, count=-1), "count is -1"),
    ],
)
def test_settings_that_make_no_sense(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_a_classifier_with_one_label_has_nothing_to_cross_to():
    with pytest.raises(InputError, match="no other label"):
        NNCE(lambda rows: ["yes"] * len(rows)).fit(worlds.letters(50, 0))


@pytest.mark.parametrize("count", [3, 400])
def test_a_classifier_that_breaks_after_fit_is_at_fault_itself(count):
    rows, broken = worlds.letters(400, 0), []

    def say(some):
        if broken:
            raise RuntimeError("gone")
        return worlds.postage(some)

    method = NNCE(say).fit(rows)
    broken.append(True)
    with pytest.raises(ClassifierError, match="gone"):
        method.find(rows[:count], target="dear")


@pytest.mark.parametrize("name", ["DRCE", "NNCE"])
def test_the_person_is_no_answer_even_to_a_fickle_classifier(name):
    """One that says yes to everything once it has labelled the table and the instance."""
    calls = []

    def fickle(rows):
        calls.append(len(rows))
        return ["yes" if len(calls) > 2 or r["age"] >= 40 else "no" for r in rows]

    table = [{"age": 20 + i % 40} for i in range(120)]
    answers = MAKE[name](fickle).fit(table).counterfactuals([{"age": 30}], target="yes")
    assert {"DRCE": 31, "NNCE": 40}[name] in answers.cells
    assert 30 not in answers.cells


# ------------------------------------------------------------------------------------------------
# Rows between rows


def test_smallest_keeps_the_order_of_equals():
    values = np.random.default_rng(0).integers(0, 5, (20, 100)).astype(float)
    for k in (1, 3, 12, 50, 100):
        least, which = smallest(values, k)
        expected = np.argsort(values, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(which, expected)
        np.testing.assert_array_equal(least, np.take_along_axis(values, expected, axis=1))


def test_rows_between_go_with_the_share():
    rows = [{"age": 20 + i % 50, "home": "ab"[i % 2], "debt": i % 7 or None} for i in range(100)]
    schema = Schema.infer(rows)
    here, there = np.array([[20.0, 0.0, np.nan]]), np.array([[40.0, 1.0, 3.0]])

    def at(share):
        return between(schema, here, there, np.array([share]))[0].tolist()

    assert at(0.3)[:2] == [26.0, 0.0]
    assert np.isnan(at(0.3)[2])
    assert at(0.5) == [30.0, 1.0, 3.0]
    assert at(1.0) == [40.0, 1.0, 3.0]
    outside = np.array([[300.0, 0.0, 3.0]])  # an age nobody has stays where both have it
    assert between(schema, outside, outside, np.array([0.5]))[0, 0] == 300.0


# ------------------------------------------------------------------------------------------------
# NNCE


@pytest.mark.parametrize("world", ["bank", "seasons", "shop"])
def test_nnce_is_brute_force(world):
    model, train, instances, target = WORLDS[world]()
    answers = found("NNCE", world).answers
    schema, said = answers.schema, np.array(asked_again(model, train))
    rows = schema.read(train).cells
    mine = asked_again(model, instances)
    for instance, cells in zip(answers.instance.tolist(), answers.cells, strict=True):
        good = said == target if target is not None else said != mine[instance]
        far = schema.distance(rows[good], answers.instances[[instance]])
        assert schema.distance(cells[None], answers.instances[[instance]])[0] == pytest.approx(
            far.min()
        )
        assert schema.gaps(rows[good], cells).sum(axis=1).min() == 0  # it is one of those rows


def test_nnce_compares_unknown_levels_of_an_order_column_by_column():
    """A grade nobody has is equally far from every grade: income decides, not the code."""
    import pandas as pd

    train = worlds.applicants(200, 0)
    model = lambda rows: np.where(rows["income"] > 40, "yes", "no")  # noqa: E731
    instance = train.iloc[[int(np.argmin(train["income"]))]].copy()
    instance["grade"] = pd.Categorical(["superb"])
    answers = NNCE(model).fit(train).counterfactuals(instance, target="yes")
    rows = answers.schema.read(train[train["income"] > 40]).cells
    assert answers.distance[0] == pytest.approx(
        answers.schema.distance(rows, answers.instances).min()
    )


# ------------------------------------------------------------------------------------------------
# DRCE


def test_drce_chooses_near_and_different_rows():
    model, train, instances, target = signs()
    method = DRCE(model, halvings=0, alpha=0.6, count=4).fit(train)
    answers = method.counterfactuals(instances, target=target)
    schema, rows = answers.schema, train[model(train)]
    for instance in np.unique(answers.instance):
        far = schema.gaps(rows, answers.instances[instance]).sum(axis=1)
        near = rows[np.argsort(far)][: int((far <= 1.6 * far.min()).sum())]
        chosen = [0]  # by hand: the nearest, then the one whose nearest chosen is farthest
        while len(chosen) < min(4, len(near)):
            apart = [min(schema.gaps(r, near[c]).sum() for c in chosen) for r in near]
            chosen.append(int(np.argmax(apart)))
        np.testing.assert_array_equal(answers.cells[answers.instance == instance], near[chosen])


def test_drce_s_search_brings_rows_nearer_and_keeps_them_valid():
    model, train, instances, target = signs()
    far = DRCE(model, halvings=0).fit(train).counterfactuals(instances, target=target)
    near = DRCE(model, halvings=12).fit(train).counterfactuals(instances, target=target)
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


def line_of_yes(rows):
    return rows[:, 0] > 0.6


def shortest(weights):
    """Floyd and Warshall."""
    best = np.where(np.isnan(weights), np.inf, weights)
    np.fill_diagonal(best, 0.0)
    for k in range(len(best)):
        best = np.minimum(best, best[:, k : k + 1] + best[k])
    return best


def by_hand(face, instances):
    """The graph with the instances in it, from the formula alone: weights, NaN where not joined."""
    schema = face.ground_.schema
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


def test_face_finds_the_cheapest_walk():
    rng = np.random.default_rng(3)
    train, instances = rng.uniform(size=(60, 2)), rng.uniform([0, 0], [0.5, 1], size=(6, 2))
    face = FACE(line_of_yes, neighbours=5, density=0.3).fit(train)
    weights, empty = by_hand(face, instances)
    best = shortest(weights)
    assert np.isfinite(best[:60, :60]).all()  # one piece: no bridge was needed
    ends = np.flatnonzero(line_of_yes(train) & (empty <= np.quantile(empty, 0.7)))
    walks = face.walk(face.ground_.meet(instances, True))
    np.testing.assert_allclose(walks.cost, best[60:, ends].min(axis=1))
    np.testing.assert_array_equal(walks.cells, train[ends[best[60:, ends].argmin(axis=1)]])

    # The path it tells is a path of the graph, and costs what it says.
    rows = np.concatenate([train, instances])
    for instance, path in face.paths(instances, target=True).items():
        places = [int(np.flatnonzero((rows == cells).all(axis=1))[0]) for cells in path]
        assert places[0] == 60 + instance
        assert sum(weights[a, b] for a, b in pairwise(places)) == pytest.approx(
            walks.cost[instance]
        )


def test_face_would_rather_go_round_than_through_the_empty_middle():
    """A crowded lane leads up to one end; another end is nearer, across nowhere, and alone."""
    lane = np.column_stack([np.linspace(0, 1, 101), np.zeros(101)])
    crowd = np.array([[0.97, 0.01 * k] for k in range(20)])
    lonely = np.array([[0.3, 0.9], [0.31, 0.92]])
    train = np.concatenate([lane, crowd, lonely])
    say = lambda rows: (rows[:, 0] > 0.95) | (rows[:, 1] > 0.8)  # noqa: E731
    instance = np.array([[0.25, 0.02]])
    near = NNCE(say).fit(train).counterfactuals(instance, target=True)
    assert near.cells[0, 0] > 0.9  # in this L1 the lane's end is the nearer one
    face = FACE(say, neighbours=6).fit(train)
    path = face.paths(instance, target=True)[0]
    assert path[-1, 0] > 0.95
    assert (path[1:-1, 1] < 0.2).all()
    # Even the lonely rows' neighbours do not end there: the region is among the emptiest.
    close = np.array([[0.3, 0.7]])
    assert NNCE(say).fit(train).counterfactuals(close, target=True).cells[0, 1] > 0.8
    assert face.counterfactuals(close, target=True).cells[0, 1] < 0.2


def test_face_bridges_islands_by_their_shortest_step():
    islands = np.concatenate([np.linspace(0, 1, 9), np.linspace(3, 4, 9), np.linspace(9, 10, 9)])
    train = np.column_stack([islands, np.zeros(27)])
    face = FACE(lambda rows: rows[:, 0] > 8, neighbours=2, density=0).fit(train)
    path = face.paths(np.array([[0.1, 0.0]]), target=True)[0][:, 0]
    assert path[-1] == 9.0
    steps = np.diff(path)
    assert sorted(np.flatnonzero(steps > 1.5)) == [list(path).index(1.0), list(path).index(4.0)]


def test_face_ends_only_where_the_classifier_is_sure():
    class Slope:
        classes_ = ("no", "yes")

        def predict(self, rows):
            return np.where(rows[:, 0] > 0.5, "yes", "no")

        def predict_proba(self, rows):
            return np.column_stack([1 - rows[:, 0], rows[:, 0]])

    train = np.column_stack([np.linspace(0, 1, 101), np.zeros(101)])
    instance = np.array([[0.2, 0.0]])

    def end(**settings):
        return FACE(Slope(), neighbours=4, **settings).fit(train).find(instance, target="yes")

    for confidence in (0.5, 0.75, 0.9):
        answers = end(confidence=confidence, density=0).answers
        assert answers.cells[0, 0] >= confidence
        assert answers.probability[0] >= confidence
        assert answers.cells[0, 0] < max(0.51, confidence) + 0.05
    # The surest rows lie at the table's end, where it is emptiest.
    nothing = end(confidence=1.0, density=0.2)
    assert len(nothing.answers) == 0
    assert "confidence of 1" in nothing.reasons[0]


def test_face_looks_at_a_sample_of_a_large_table():
    model, train, instances, target = signs()
    face = FACE(model, most=50).fit(train)
    assert len(face.graph_.rows) == 50
    answers = face.counterfactuals(instances, target=target)
    assert (answers.cells[:, None] == face.graph_.rows).all(axis=2).any(axis=1).all()


def test_face_interpolate_walks_the_line_and_obeys():
    model, _, instances, target = post()
    face = fitted("FACE", "post")
    ends = face.counterfactuals(instances, target=target)
    line = face_interpolate(face, instances, target=target, steps=20)
    assert len(line) == 20 * len(ends)
    np.testing.assert_array_equal(line.cells[line.tau == 1.0], ends.cells)
    assert line.valid[line.tau == 1.0].all()
    assert ["dear" if v else "cheap" for v in line.valid] == model(line.rows)
    for instance in np.unique(line.instance):
        assert (np.diff(line.distance[line.instance == instance]) >= -1e-9).all()

    def obey(cells, own):
        assert cells.shape == own.shape
        held = cells.copy()
        held[:, 0] = own[:, 0]
        return held

    held = face_interpolate(face, instances, target=target, obey=obey)
    np.testing.assert_array_equal(held.cells[:, 0], held.instances[held.instance, 0])
    assert ["dear" if v else "cheap" for v in held.valid] == model(held.rows)
    assert not held.valid[held.tau == 1.0].all()  # and an overwritten answer need not be one


def test_face_greedy_hops_through_rows_and_arrives():
    model, train, instances, target = post()
    face = fitted("FACE", "post")
    ends = face.counterfactuals(instances, target=target)
    hops = face_greedy(face, instances, target=target, steps=20)
    schema = hops.schema
    rows = {tuple(r) for r in schema.cells(train).tolist()}
    assert {tuple(r) for r in hops.cells.tolist()} <= rows
    np.testing.assert_array_equal(hops.cells[hops.tau == 1.0], ends.cells)
    assert ["dear" if v else "cheap" for v in hops.valid] == model(hops.rows)
    for instance, end in zip(ends.instance, ends.cells, strict=True):
        mine = hops.where(hops.instance == instance)
        whole = schema.gaps(mine.instances[instance], end).sum()
        left = schema.gaps(mine.cells, end).sum(axis=1)
        assert (left <= (1 - mine.tau) * whole + 1e-6).all()
    # Every hop is the shortest that arrives in time, by brute force on one instance.
    instance = int(ends.instance[0])
    mine, end, here = hops.cells[hops.instance == instance], ends.cells[0], hops.instances[instance]
    whole, every = schema.gaps(here, end).sum(), np.array(sorted(rows))
    for step, hop in enumerate(mine, 1):
        there = schema.gaps(every, end).sum(axis=1) <= (1 - step / 20) * whole + 1e-9
        far = schema.gaps(every[there], here).sum(axis=1)
        if (far > 0).any():
            assert schema.gaps(here, hop).sum() == pytest.approx(far[far > 0].min())
        here = hop


# ------------------------------------------------------------------------------------------------
# RobX


def test_stability_is_the_mean_less_the_spread():
    model, _, instances, target = bank()
    asked = fitted("RobXCE", "bank").ground_.meet(instances, target)
    schema, noise = asked.schema, np.random.default_rng(0).standard_normal((30, 6))
    cells = fitted("RobXCE", "bank").ground_.rows[:5]
    got = stability(asked, cells, np.zeros(5, dtype=int), noise, 0.1)
    column = list(model.classes_).index("approved")
    for row, value in zip(cells, got, strict=True):
        shaken = np.repeat(row[None], 30, axis=0)
        for i in schema.numeric:
            feature = schema.features[i]
            shaken[:, i] = feature.snap(shaken[:, i] + 0.1 * feature.span * noise[:, i])
        score = model.predict_proba(schema.frame(shaken))[:, column]
        assert value == pytest.approx(score.mean() - score.std())


@pytest.mark.parametrize("world", ["bank", "signs"])
def test_robx_answers_are_as_stable_as_asked(world):
    model, train, instances, target = WORLDS[world]()
    near = found("NNCE", world).answers
    before = None
    for threshold in (-1.0, 0.5, 0.75):
        method = RobXCE(model, threshold=threshold, samples=40).fit(train)
        answers = method.counterfactuals(instances, target=target)
        assert answers.instance.tolist() == near.instance.tolist()
        asked = method.ground_.meet(instances, target)
        noise = method._noise(asked.schema)
        sure = stability(asked, answers.cells, answers.instance, noise, method.sigma)
        assert (sure >= threshold - 1e-12).all()
        if before is not None:
            assert sure.mean() > before
        else:
            np.testing.assert_array_equal(answers.cells, near.cells)  # nothing to mend
        before = sure.mean()


def test_robx_without_a_threshold_asks_for_the_usual():
    model, train, instances, target = signs()
    method = RobXCE(model, samples=40).fit(train)
    answers = method.counterfactuals(instances, target=target)
    asked = method.ground_.meet(instances, target)
    noise, rows = method._noise(asked.schema), train[model(train)]
    usual = np.median(
        stability(asked, rows, np.full(len(rows), asked.tried[0]), noise, method.sigma)
    )
    assert len(rows) <= 200  # so that the median is over all of them
    sure = stability(asked, answers.cells, answers.instance, noise, method.sigma)
    assert (sure >= usual - 1e-12).all()


def test_robx_says_when_nothing_is_stable_enough():
    model, train, instances, target = signs()
    method = RobXCE(model, threshold=0.9, sigma=3.0, samples=20).fit(train)
    answers, reasons = method.find(instances, target=target)
    assert len(answers) == 0
    assert sum("stability of 0.9" in text for text in reasons.values()) == int(
        (~model(instances)).sum()
    )


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


def test_spheres_grow_until_something_is_found():
    """The farther the target begins, the larger the sphere that reaches it."""
    train = np.random.default_rng(0).normal(size=(400, 2))
    instances = np.array([[0.0, 0.0], [0.3, -0.4], [-0.2, 0.6]])

    def radius(edge):
        method = CCHVAE(lambda rows: rows[:, 0] > edge, recipe=BRIEF).fit(train)
        cells, instance, found_at = method.search(method.ground_.meet(instances, True))
        assert instance.tolist() == [0, 1, 2]
        assert (cells[:, 0] > edge).all()
        np.testing.assert_allclose(found_at / method.step, np.round(found_at / method.step))
        return found_at

    near, far = radius(0.5), radius(1.8)
    assert (far > near).all()


def test_the_spheres_end_somewhere():
    model, train, instances, target = signs()
    method = CCHVAE(model, recipe=BRIEF, step=1e-4, shells=2).fit(train)
    answers, reasons = method.find(instances, target=target)
    assert any("within 0.0002 standard deviations" in text for text in reasons.values())
    assert len(answers) < len(instances)


# ------------------------------------------------------------------------------------------------
# DiCE


@pytest.mark.needs("dice")
def test_dice_is_silent_and_puts_the_dice_back(capsys):
    _, _, instances, target = bank()
    method = fitted("DiCE", "bank")
    before = np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    method.find(instances, target=target)
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before  # noqa: NPY002
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == ""


@pytest.mark.needs("dice")
def test_dice_draws_by_the_seed():
    model, train, instances, target = post()
    one, two = (
        MAKE["DiCE"](model, seed=seed).fit(train).counterfactuals(instances, target=target)
        for seed in (1, 2)
    )
    assert not np.array_equal(one.cells, two.cells)


@pytest.mark.needs("dice")
def test_dice_leaves_alone_what_it_cannot_hold():
    """The boat and the gap DiCE never saw are the instance's own again."""
    _, train, instances, _ = bank()
    rich = lambda rows: np.where(rows["income"] > 60, "yes", "no")  # noqa: E731
    instance = instances.iloc[[0]].copy()
    instance["income"] = 10.0
    instance["debt"] = None
    instance["debt"] = instance["debt"].astype("Int64")
    instance["age"] = 120
    answers = DiCE(rich, count=8).fit(train).counterfactuals(instance, target="yes")
    schema = answers.schema
    own = answers.instances[0]
    assert schema["home"].extra == ("boat",)
    age, debt, home = (answers.cells[:, schema.index(n)] for n in ("age", "debt", "home"))
    assert (age == 120).any()
    assert np.isnan(debt).any()
    assert (home == own[schema.index("home")]).any()


@pytest.mark.needs("dice")
def test_dice_s_time_is_bounded():
    model, train, instances, target = post()
    answers, reasons = DiCE(model, seconds=0.0).fit(train).find(instances, target=target)
    assert len(answers) == 0
    assert any("within 0 seconds" in text for text in reasons.values())


@pytest.mark.needs("dice")
def test_dice_out_of_time_does_without_its_last_step():
    """One unit at a time over a million: the step that makes answers sparser never ends."""
    rng = np.random.default_rng(0)
    train = [{"pay": int(p), "age": int(a)} for p, a in rng.integers(0, 10**6, (300, 2))]
    say = lambda rows: ["yes" if r["pay"] > 9e5 else "no" for r in rows]  # noqa: E731
    method = DiCE(say, seconds=1.5, settings={"posthoc_sparsity_param": 1.0}).fit(train)
    answers, reasons = method.find(train[:1], target="yes")
    assert say(train[:1]) == ["no"]
    assert reasons == {}
    assert (answers.cells[:, 0] > 9e5).all()


@pytest.mark.needs("dice")
def test_dice_that_finds_nothing_says_so():
    """Only one row of the table is labelled as wanted, and no draw will hit it."""
    train = [{"a": 13 * i % 1009, "b": 7 * i % 997, "c": 11 * i % 991} for i in range(200)]
    say = lambda rows: ["yes" if r == train[100] else "no" for r in rows]  # noqa: E731
    method = DiCE(say, settings={"sample_size": 20}).fit(train)
    answers, reasons = method.find(train[:2], target="yes")
    assert len(answers) == 0
    assert all("DiCE found nothing" in text for text in reasons.values())
    assert sorted(reasons) == [0, 1]


@pytest.mark.needs("dice")
def test_dice_by_its_genetic_method():
    model, train, instances, target = post()
    method = DiCE(model, method="genetic", count=2, settings={"maxiterations": 20}).fit(train)
    answers = method.counterfactuals(instances[:3], target=target)
    tried = [i for i, label in enumerate(model(instances[:3])) if label != "dear"]
    assert set(answers.instance.tolist()) == set(tried)
    assert set(model(answers.rows)) == {"dear"}


@pytest.mark.needs("dice")
def test_dice_is_not_upset_by_a_constant_column():
    train = [{**row, "planet": "earth", "suns": 1} for row in worlds.letters(150, 0)]
    answers = MAKE["DiCE"](worlds.postage).fit(train).counterfactuals(train[:4], target="dear")
    assert len(answers) > 0
    assert {row["planet"] for row in answers.rows} == {"earth"}


def test_dice_without_the_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr("lapace.baselines.dice.find_spec", lambda name: None)
    with pytest.raises(Exception, match=r"Install lapace\[dice\]"):
        DiCE(worlds.postage).fit(worlds.letters(50, 0))
