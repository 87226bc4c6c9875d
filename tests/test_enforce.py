"""How limits are made to hold, step by step, and the made-up instances paths may lead to."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch

import worlds
from lapace import Explainer, Explanation, InputError, Search
from lapace.constraints import Custom, System
from lapace.explainer.oracle import LatentCorrection
from lapace.explainer.problem import make_problem
from lapace.explainer.search import Paths, _category_limits, _replaced
from lapace.paths import EncodedInstances, Lines, Steps
from lapace.schema import Schema
from test_constraints_random import Slow, random_constraint
from worlds import World

LIMITS = ["fixed age", "income >= original", "home in {own, rent}", "changes <= 3"]
PLACES = [(worlds.bank, None), (worlds.seasons, 2), (worlds.shop, None), (worlds.post, None)]
places = pytest.mark.parametrize(
    ("world", "target"), PLACES, ids=[world.__name__ for world, _ in PLACES]
)


def random_limits(schema: Schema, rng: np.random.Generator, most: int = 4) -> list[str]:
    """A few constraints of any form that do not rule everyone out."""
    while True:
        count = int(rng.integers(1, most + 1))
        texts = [random_constraint(schema, rng) for _ in range(count)]
        try:
            System.of(texts, schema)
        except InputError:
            continue
        return texts


def explained(world: World, target: Any = None, **settings: Any) -> Explanation:
    return world.explainer.explain(world.instances, target=target, **worlds.searched(settings))


def is_answered(answer: Explanation) -> np.ndarray:
    return np.array([status == "answered" for status in answer.status])


def flags_are_true(answer: Explanation) -> int:
    """Every stored row's `feasible` against the slow checker; how many rows break a limit."""
    system = System.of(answer.constraints, answer.schema, check=False)
    for path, instance in enumerate(answer.instance):
        for cells, feasible in zip(answer.cells[path], answer.feasible[path], strict=True):
            slow = Slow(answer.schema, cells, answer.instances[instance])
            assert feasible == all(slow.satisfies(c) for c in system.constraints)
    return int((~answer.feasible).sum())


def nothing_is_broken(answer: Explanation) -> bool:
    """Whether those answered see no row that breaks a limit, but their own at the start."""
    mine = np.isin(answer.instance, np.flatnonzero(is_answered(answer)))
    return bool((answer.feasible[mine] | (answer.tau[mine] == 0)).all())


# --- three ways -------------------------------------------------------------------------------


@places
def test_exact_finds_whatever_the_other_ways_find(world, target):
    here = world()
    rng = np.random.default_rng(8)
    for detail in ("path", "picks"):
        limits = random_limits(here.explainer.schema_, rng)
        answers = {
            enforce: explained(
                here, target, constraints=limits, enforce=enforce, steps=6, detail=detail
            )
            for enforce in ("exact", "naive", "latent")
        }
        found = {enforce: is_answered(answer) for enforce, answer in answers.items()}
        assert not (found["naive"] & ~found["exact"]).any(), limits
        assert not (found["latent"] & ~found["exact"]).any(), limits
        for answer in answers.values():
            flags_are_true(answer)
        assert nothing_is_broken(answers["exact"])
        assert nothing_is_broken(answers["naive"])


def test_exact_finds_what_only_many_corrections_find():
    """A projection alone, and one after a single correction, land where the label is lost."""
    here = worlds.shop()
    limits = [
        "-1.0*visits + 2.0*spent + 0.5*original(spent) > 457.8",
        "1.0*spent + -0.4*visits > 184.0",
    ]
    exact, naive, latent = (
        is_answered(explained(here, constraints=limits, enforce=enforce, detail="picks"))
        for enforce in ("exact", "naive", "latent")
    )
    assert (latent & ~naive).any()  # otherwise this proves nothing
    assert not (latent & ~exact).any()
    assert not (naive & ~exact).any()


def test_naive_is_the_plain_line_projected():
    here = worlds.bank()
    answer = explained(here, constraints=LIMITS, enforce="naive", steps=6)
    fitted = here.explainer.fitted_
    system = System.of(LIMITS, answer.schema)
    start = fitted.decoder.encode_instances(
        answer.schema,
        answer.instances,
        worlds.codes(answer, answer.label),
        *_category_limits(system, answer.instances),
    )
    paths = np.flatnonzero(answer.prototype >= 0)
    ends = torch.as_tensor(np.stack([fitted.prototypes[p].z for p in answer.prototype[paths]]))
    instance = answer.instance[paths]
    label = worlds.codes(answer, answer.target[instance])
    for step in range(1, 6):
        tau = answer.tau[paths, step]
        share = torch.as_tensor(tau, dtype=torch.float32)[:, None]
        z = (1 - share) * start.z[torch.as_tensor(instance)] + share * ends
        same = np.zeros(len(paths), dtype=bool)
        for frozen in (False, True):  # a path is one of two twins
            rows = fitted.decoder.path_rows(
                start, instance, tau, z, label, np.full(len(instance), frozen)
            )
            projected = system.project(rows, answer.instances[instance]).cells
            same |= np.isclose(projected, answer.cells[paths, step], atol=1e-6, equal_nan=True).all(
                axis=1
            )
        assert same.mean() > 0.97  # products of other batches may round otherwise


def test_naive_never_corrects_and_latent_never_projects(monkeypatch):
    here = worlds.bank()

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("this way has no such step")

    with monkeypatch.context() as patch:
        patch.setattr(LatentCorrection, "__call__", never)
        naive = explained(here, constraints=LIMITS, enforce="naive", steps=4)
        with pytest.raises(AssertionError, match="no such step"):
            explained(here, constraints=LIMITS, steps=4)
    assert nothing_is_broken(naive)
    with monkeypatch.context() as patch:
        patch.setattr(System, "project", never)
        latent = explained(here, constraints=["age <= 60"], enforce="latent", steps=4)
        with pytest.raises(AssertionError, match="no such step"):
            explained(here, constraints=["age <= 60"], steps=4)
    assert flags_are_true(latent) > 0


def test_what_the_gradient_leaves_broken_says_so():
    here = worlds.bank()
    answer = explained(here, constraints=LIMITS, enforce="latent", steps=6)
    assert flags_are_true(answer) > 0
    for pick in (answer.first(), answer.nearest()):
        assert not (pick.ok & ~pick.feasible).any()
    # Whoever is not answered is not proved to be impossible either: nothing was proved.
    assert set(answer.status) <= {"answered", "none_found"}


@pytest.mark.parametrize("enforce", ["exakt", "", None, 3, True])
def test_another_way_gets_a_sentence(enforce):
    with pytest.raises(InputError, match=r"it is 'exact', 'naive' or 'latent'\."):
        explained(worlds.post(), enforce=enforce)


def test_a_misspelt_way_is_guessed():
    with pytest.raises(InputError, match=r"Did you mean 'exact'\?"):
        explained(worlds.post(), enforce="exakt")


@pytest.mark.parametrize("enforce", ["exact", "naive", "latent"])
def test_without_constraints_the_ways_are_one(enforce):
    here = worlds.post()
    answer, plain = explained(here, enforce=enforce), explained(here)
    np.testing.assert_array_equal(answer.cells, plain.cells)
    np.testing.assert_array_equal(answer.density_before, answer.density)
    assert "constraints" not in answer.seconds


def test_the_answer_of_one_person_does_not_depend_on_who_is_asked_beside_them():
    here = worlds.bank()
    together = explained(here, constraints=LIMITS, steps=8)
    some = [3, 4, 11, 30]
    apart = here.explainer.explain(
        here.instances.iloc[some], constraints=LIMITS, search=Search(steps=8)
    )
    assert apart.status == tuple(together.status[i] for i in some)
    rows = np.isin(together.instance, some)
    np.testing.assert_array_equal(np.array(some)[apart.instance], together.instance[rows])
    np.testing.assert_array_equal(apart.prototype, together.prototype[rows])
    same = np.isclose(apart.cells, together.cells[rows], atol=1e-6, equal_nan=True).all(axis=2)
    assert same.mean() > 0.98  # products of other batches may round otherwise


def part(instance: list[int], prototype: list[int], mark: int) -> Paths:
    """Paths whose other columns hold a mark."""
    count = len(instance)
    return {
        "instance": np.array(instance),
        "prototype": np.array(prototype),
        "first": np.full(count, mark),
        "density": np.full((count, 2), float(mark)),
        "cells": np.full((count, 2, 3), float(mark)),
    }


def test_paths_found_again_replace_those_of_their_instances_however_many_they_are():
    mine = part([0, 0, 0, 2, 2, 5, 5, 5], [1, 3, -1, 1, 3, 1, 3, -1], 1)
    theirs = part([0, 0, 0, 2, 2, 2, 5, 5], [1, 3, -1, 1, 3, -1, 1, 3], 2)
    both = _replaced(mine, np.array([2, 5, 2]), theirs)
    assert both["instance"].tolist() == [0, 0, 0, 2, 2, 2, 5, 5]
    assert both["prototype"].tolist() == [1, 3, -1, 1, 3, -1, 1, 3]
    expected = [1, 1, 1, 2, 2, 2, 2, 2]
    for column in (both["first"], both["density"][:, 1], both["cells"][:, 1, 2]):
        assert column.tolist() == expected
    assert mine["instance"].tolist() == [0, 0, 0, 2, 2, 5, 5, 5]
    none = _replaced(mine, np.array([], dtype=np.int64), theirs)
    assert none["instance"].tolist() == mine["instance"].tolist()
    assert set(none["first"].tolist()) == {1}


# --- correcting -------------------------------------------------------------------------------


class Scene:
    """The bank's instances, each on a line to one prototype, and some limits."""

    def __init__(self, limits: list[Any], instances: int = 30) -> None:
        world = worlds.bank()
        fitted, rows = world.explainer.fitted_, world.instances.head(instances)
        classifier = world.explainer.classifier_.with_fresh_count()
        self.problem = make_problem(fitted, classifier, rows, constraints=limits)
        reading, self.system = self.problem.instances.reading, self.problem.system
        self.decoder = fitted.decoder
        self.label = np.ones(instances, dtype=np.int64)
        self.start: EncodedInstances = self.decoder.encode_instances(
            reading.schema, reading.cells, 1 - self.label
        )
        self.instance = np.arange(instances)
        end = next(p for p in fitted.prototypes if p.code == 1)
        self.end = torch.as_tensor(end.z)[None]
        none = np.full(instances, np.nan)
        no = self.instance < 0
        blank = Steps.of(none, reading.cells, 0 * self.instance - 1, no, no, none)
        self.lines = Lines(
            self.instance, 0 * self.instance, self.instance < 0, self.end, self.label, blank, blank
        )

    def at(self, tau: float) -> tuple[np.ndarray, torch.Tensor, np.ndarray]:
        """Where everyone stands: tau, z and the rows there."""
        where = np.full(len(self.instance), tau)
        z = (1 - tau) * self.start.z + tau * self.end
        still = np.zeros(len(self.instance), dtype=bool)
        return (
            where,
            z,
            self.decoder.path_rows(self.start, self.instance, where, z, self.label, still),
        )

    def penalty(self, rows: np.ndarray) -> np.ndarray:
        return self.system.penalty(torch.as_tensor(rows), self.start.cells).numpy()


SMOOTH = [["income <= 20"], ["age <= 30", "debt >= 50"], ["income - debt <= -10"], ["grade == low"]]


@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize("limits", SMOOTH, ids=" and ".join)
def test_steering_breaks_limits_less_and_leaves_the_good_alone(limits, patient):
    scene = Scene(limits)
    steering = LatentCorrection(scene.problem, scene.start, scene.lines, patient)
    better = worse = 0
    for tau in (0.2, 0.6, 0.9):
        where, z, rows = scene.at(tau)
        given, point = rows.copy(), z.clone()
        moved = steering(where, z, rows, scene.instance)
        np.testing.assert_array_equal(rows, given)  # the caller's own are not written to
        assert torch.equal(z, point)
        good = scene.system.feasible(rows, scene.start.cells)
        assert moved[good].tobytes() == rows[good].tobytes()
        before, after = scene.penalty(rows), scene.penalty(moved)
        better += int((after < before - 1e-9).sum())
        worse += int((after > before + 1e-9).sum())
        assert after.sum() <= before.sum()
    assert better > 10
    assert worse <= 0.1 * better


def test_more_corrections_break_limits_less():
    for limits in SMOOTH:
        scene = Scene(limits)
        where, z, rows = scene.at(0.7)
        once, often = (
            scene.penalty(
                LatentCorrection(scene.problem, scene.start, scene.lines, patient)(
                    where, z, rows, scene.instance
                )
            ).sum()
            for patient in (False, True)
        )
        assert often <= once + 1e-9


def test_what_has_no_gradient_is_left_alone():
    scene = Scene(["changes <= 1", "home == own"])
    where, z, rows = scene.at(0.7)
    assert not scene.system.feasible(rows, scene.start.cells).all()
    steering = LatentCorrection(scene.problem, scene.start, scene.lines)
    assert steering(where, z, rows, scene.instance) is rows


def test_a_correction_works_in_whatever_mode_its_caller_is():
    scene = Scene(["income <= 20"])
    where, z, rows = scene.at(0.7)
    steering = LatentCorrection(scene.problem, scene.start, scene.lines)
    expected = steering(where, z, rows, scene.instance)
    with torch.no_grad():
        np.testing.assert_array_equal(steering(where, z, rows, scene.instance), expected)
    with torch.inference_mode():
        np.testing.assert_array_equal(steering(where, z, rows, scene.instance), expected)


# --- rows that torch can follow ---------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.0, 0.3, 0.8, 1.0])
def test_live_rows_are_the_rows(tau):
    scene = Scene([])
    where, z, rows = scene.at(tau)
    live = scene.decoder.differentiable_rows(
        scene.start, scene.instance, where, z.clone().requires_grad_(), rows
    )
    np.testing.assert_array_equal(live.detach().numpy(), rows)


def middles(schema: Schema, scores: np.ndarray) -> np.ndarray:
    """The rank map through the middles of its steps, straight on beyond the ends: no lattice."""
    values = np.empty_like(scores)
    for k, i in enumerate(schema.numeric):
        knots = schema.features[i].knots
        at = np.clip(np.searchsorted(knots.mid, scores[:, k]) - 1, 0, len(knots.mid) - 2)
        rise = (knots.values[at + 1] - knots.values[at]) / (knots.mid[at + 1] - knots.mid[at])
        values[:, k] = knots.values[at] + rise * (scores[:, k] - knots.mid[at])
    return values


def test_the_gradient_is_that_of_the_map_without_rounding():
    scene = Scene([])
    schema, decoder = scene.start.schema, scene.decoder
    where, z, rows = scene.at(0.6)
    exact = copy.deepcopy(decoder.model).double()
    rng = np.random.default_rng(0)
    count, width = len(schema.numeric), z.shape[1]

    def scores(points: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            means = exact.decode(torch.as_tensor(points)).numpy()
        return (means + 0.4 * scene.start.residual)[:, :count]

    point = z.clone().requires_grad_()
    live = decoder.differentiable_rows(scene.start, scene.instance, where, point, rows)
    known = ~np.isnan(scene.start.cells[:, schema.numeric])
    compared = 0
    for k, column in enumerate(schema.numeric):
        (slope,) = torch.autograd.grad(live[:, column].sum(), point, retain_graph=True)
        way = rng.normal(size=width)
        way /= np.linalg.norm(way)
        h = 1e-5
        base = z.double().numpy()
        low, high = scores(base - h * way), scores(base + h * way)
        rise = (middles(schema, high) - middles(schema, low))[:, k] / (2 * h)
        mid = schema.features[column].knots.mid
        smooth = np.searchsorted(mid, low[:, k]) == np.searchsorted(mid, high[:, k])
        rows_ = smooth & known[:, k]
        mine = slope.double().numpy() @ way
        scale = np.abs(rise[rows_]).max()
        np.testing.assert_allclose(mine[rows_], rise[rows_], rtol=2e-3, atol=2e-3 * scale)
        compared += int(rows_.sum())
    assert compared > 50


def test_a_number_that_stays_missing_has_no_gradient():
    scene = Scene([])
    column = scene.start.schema.index("debt")
    gone = np.isnan(scene.start.cells[:, column])
    assert gone.any()
    where, z, rows = scene.at(0.05)
    still = np.isnan(rows[:, column])
    assert still.any()
    point = z.clone().requires_grad_()
    live = scene.decoder.differentiable_rows(scene.start, scene.instance, where, point, rows)
    others = [c for c in scene.start.schema.numeric if c != column]
    (slope,) = torch.autograd.grad(live[:, others].sum(), point, retain_graph=True)
    assert torch.isfinite(slope).all()
    values = torch.where(torch.as_tensor(still), torch.zeros(()).double(), live[:, column])
    (slope,) = torch.autograd.grad(values.sum(), point)
    assert not slope[torch.as_tensor(still)].any()


# --- density before ---------------------------------------------------------------------------


@pytest.mark.parametrize("enforce", ["exact", "naive", "latent"])
def test_density_before_is_that_of_the_row_the_limits_found(enforce):
    here = worlds.bank()
    answer = explained(here, constraints=["age <= 40", "fixed grade"], enforce=enforce, steps=6)
    fitted = here.explainer.fitted_
    system = System.of(answer.constraints, answer.schema)
    start = fitted.decoder.encode_instances(
        answer.schema,
        answer.instances,
        worlds.codes(answer, answer.label),
        *_category_limits(system, answer.instances),
    )
    paths = np.flatnonzero(answer.prototype >= 0)
    instance = answer.instance[paths]
    label = worlds.codes(answer, answer.target[instance])
    ends = torch.as_tensor(np.stack([fitted.prototypes[p].z for p in answer.prototype[paths]]))
    moved = kept = 0
    for step in range(1, 6):
        tau = answer.tau[paths, step]
        share = torch.as_tensor(tau, dtype=torch.float32)[:, None]
        z = (1 - share) * start.z[torch.as_tensor(instance)] + share * ends
        fits, unmoved = np.zeros((2, len(paths)), dtype=bool)
        for frozen in (False, True):
            rows = fitted.decoder.path_rows(
                start, instance, tau, z, label, np.full(len(instance), frozen)
            )
            expected = fitted.decoder.density(answer.schema, rows, label)
            fits |= np.isclose(answer.density_before[paths, step], expected, atol=1e-3)
            unmoved |= (np.nan_to_num(rows) == np.nan_to_num(answer.cells[paths, step])).all(axis=1)
        assert fits.mean() > 0.97
        same = answer.density_before[paths, step] == answer.density[paths, step]
        assert same[unmoved].all()
        moved += int((~same).sum())
        kept += int(unmoved.sum())
    assert moved > 20
    assert kept > 20
    # At the end it is the prototype's own.
    end = answer.at(1.0)
    own = fitted.decoder.density(
        answer.schema, np.stack([fitted.prototypes[p].cells for p in end.prototype]),
        worlds.codes(answer, answer.target[end.instance]),
    )  # fmt: skip
    np.testing.assert_allclose(end.density_before, own, atol=1e-3)
    assert (answer.density_before[:, 0] == answer.density[:, 0]).all()  # the instance is not moved


def test_density_before_is_told_everywhere():
    answer = explained(worlds.bank(), constraints=LIMITS, sparse=True, steps=5)
    assert not np.isnan(answer.density_before).any()
    for pick in (answer.first(), answer.nearest(), answer.sparse()):
        np.testing.assert_array_equal(pick.about["density_before"], pick.density_before)
    again = Explanation.from_json(json.loads(json.dumps(answer.to_json())))
    np.testing.assert_array_equal(again.density_before, answer.density_before)


# --- functions --------------------------------------------------------------------------------


def test_a_function_with_a_gradient_is_kept_where_the_decoder_can():
    here = worlds.bank()
    names = here.explainer.schema_.names
    income, age = names.index("income"), names.index("age")
    roomy = Custom(
        "income by age",
        lambda x: (x[:, income] - 2 * x[:, age]) / 100,
        lambda x: x[:, income] <= 2 * x[:, age],
    )
    exact, naive = (
        explained(here, constraints=[roomy], enforce=enforce, steps=8)
        for enforce in ("exact", "naive")
    )
    for answer in (exact, naive):
        keeps = answer.cells[..., income] <= 2 * answer.cells[..., age]
        np.testing.assert_array_equal(answer.feasible, keeps)
    # Nothing can be projected, so that all there is to gain is the gradient's.
    broken = ~naive.feasible
    assert broken.sum() > 20
    assert exact.feasible.mean() > naive.feasible.mean()
    assert (~exact.feasible).sum() < 0.5 * broken.sum()


# --- seconds ----------------------------------------------------------------------------------


def test_seconds_tell_where_the_time_went_and_nothing_else():
    answer = explained(worlds.bank(), constraints=LIMITS, steps=5)
    assert {"total", "classifier", "constraints"} <= set(answer.seconds)
    assert all(v > 0 for v in answer.seconds.values())
    parts = sum(v for k, v in answer.seconds.items() if k != "total")
    assert parts <= answer.seconds["total"]
    assert "seconds" not in json.dumps(answer.to_json())
    assert Explanation.from_json(answer.to_json()).seconds == {}
    compared = {field.name: field.compare for field in dataclasses.fields(Explanation)}
    assert [name for name, compare in compared.items() if not compare] == ["seconds", "request"]


# --- made-up instances ---------------------------------------------------------------------------


def test_sampled_endpoints_are_the_same_for_everybody_and_after_a_load(tmp_path):
    here = worlds.bank()
    mine = here.explainer.fitted_.sampled_endpoints
    here.explainer.save(tmp_path / "bank.lapace")
    again = Explainer.load(tmp_path / "bank.lapace", here.classifier, device="cpu")
    other = again.fitted_.sampled_endpoints
    assert mine.cells.tobytes() == other.cells.tobytes()
    assert torch.equal(mine.z, other.z)
    assert mine.label.tolist() == other.label.tolist()
    assert set(mine.label.tolist()) == {0, 1}
    assert not np.isnan(mine.cells).any()  # complete, as prototypes are
    # The file does not hold them: they are drawn from what was learned.
    assert (tmp_path / "bank.lapace").stat().st_size < mine.cells.nbytes


def test_sampled_endpoints_are_made_up_not_copied():
    """Rows of fresh instances coincide with training rows as often, or oftener."""
    signs = worlds.signs()
    train = {row.tobytes() for row in signs.explainer.schema_.cells(signs.train)}
    cells = signs.explainer.fitted_.sampled_endpoints.cells
    assert len(cells) == 16_000
    assert not any(row.tobytes() in train for row in cells)
    schema = worlds.seasons().explainer.schema_
    train = {row.tobytes() for row in schema.cells(worlds.seasons().train)}
    drawn = worlds.seasons().explainer.fitted_.sampled_endpoints.cells
    fresh = schema.cells(worlds.days(10_000, 99))
    shares = [np.mean([row.tobytes() in train for row in rows]) for rows in (drawn, fresh)]
    assert shares[0] <= 3 * shares[1] + 0.005


def without_sampled_endpoints(answer: Explanation) -> np.ndarray:
    """Everyone's nearest good row to a prototype, as a distance; infinity for none."""
    best = np.full(len(answer), np.inf)
    paths = answer.prototype >= 0
    cost = np.where(answer.ok & ~np.isnan(answer.tau), answer.distance, np.inf).min(axis=1)
    np.minimum.at(best, answer.instance[paths], cost[paths])
    return best


@pytest.mark.parametrize(
    ("world", "target"),
    [
        (worlds.bank, None),  # with missing values
        (worlds.seasons, "any-other"),
        (worlds.seasons, [i % 3 for i in range(30)]),
        (worlds.shop, None),
        (worlds.rare, "a"),
    ],
    ids=["bank", "any other", "one each", "shop", "rare"],
)
def test_nearest_is_never_farther_for_the_sampled_endpoints(world, target):
    here = world()
    answer = here.explainer.explain(here.instances, target=target)
    nearest = answer.nearest()
    best = without_sampled_endpoints(answer)
    assert (nearest.distance <= best[nearest.instance]).all()
    assert (nearest.distance < best[nearest.instance]).any()
    assert nearest.ok.all()
    said = getattr(here.classifier, "predict", here.classifier)(nearest.rows)
    for row, instance in enumerate(nearest.instance):
        label, target = answer.label[instance], answer.target[instance]
        assert said[row] != label if target is None else said[row] == target


def test_costs_choose_the_stand_in_too():
    here = worlds.bank()
    costs = {"income": 40.0, "debt": 0.1}
    answers = [explained(here, costs=c) for c in (None, costs)]
    moved = []
    for answer in answers:
        made_up = answer.prototype == -1
        ends = answer.cells[made_up, 20]
        own = answer.instances[answer.instance[made_up]]
        moved.append(np.abs(ends[:, 1] - own[:, 1]).mean())
        weights = answer.schema.weights(costs if answer is answers[1] else None)
        expected = answer.schema.gaps(own, ends) @ weights
        np.testing.assert_allclose(answer.distance[made_up, 20], expected)
    assert moved[1] < 0.5 * moved[0]


def test_the_stand_in_is_the_nearest_good_one_of_the_ten_nearest():
    here = worlds.seasons()
    answer = explained(here, 2)
    sampled_endpoints = here.explainer.fitted_.sampled_endpoints
    mine = sampled_endpoints.cells[sampled_endpoints.label == 2]
    for instance in sorted(set(answer.instance.tolist())):
        own = np.repeat(answer.instances[[instance]], len(mine), axis=0)
        distance = answer.schema.distance(own, mine)
        order = np.argsort(distance, kind="stable")[:10]
        good = np.array(here.classifier(answer.schema.frame(mine[order]))) == 2
        path = np.flatnonzero((answer.instance == instance) & (answer.prototype == -1))
        tenth = distance[order[-1]]
        tied = np.sum(distance == tenth) > 1  # which of several is the tenth is open
        if good.any():
            expected = distance[order[good]].min()
            assert tied or len(path) == 1
            if len(path):
                assert answer.distance[path[0], 20] == pytest.approx(expected)
        else:
            assert tied or not len(path)


def test_what_is_shown_unasked_is_an_answer_where_there_is_one():
    """Also of those for whom only the path to somebody nearby has one."""
    here = worlds.bank()
    answer = here.explainer.explain(
        here.instances, target="approved", constraints=["changes <= 1"], search=Search(sparse=True)
    )
    led = answer.prototype >= 0
    alone = [
        i
        for i, status in enumerate(answer.status)
        if status == "answered" and not answer.ok[(answer.instance == i) & led].any()
    ]
    assert alone
    written = answer.all_steps()
    for i in alone:
        path = answer[i].path()
        assert path.ok.any()
        (row,) = np.flatnonzero((answer.instance == i) & ~led)
        first = answer.cells[row, answer.picked["first"][row]]
        changed = np.flatnonzero(answer.schema.changed(answer.instances[i], first))
        told = answer[i].changes()
        assert told["feature"].tolist() == [answer.schema.names[k] for k in changed]
        texts = [answer.schema.features[k].text(first[k]) for k in changed]
        assert told["after"].tolist() == texts
        assert written.ok[written.instance == i].any()
    assert set(written.prototype) == set(answer.prototype)
