"""How constraints are enforced along paths, latent corrections, and sampled rows."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from test_constraints_random import random_texts, violated

from lapace import Explanation
from lapace.constraints import System
from lapace.explainer import correction
from lapace.explainer.correction import LatentCorrection
from lapace.explainer.fit import SAMPLES
from lapace.explainer.problem import make_problem
from lapace.paths import EncodedInstances, Lines
from lapace.schema import Schema
from tests import worlds
from tests.worlds import CONSTRAINTS

each_world = worlds.each(
    (worlds.bank, None), (worlds.seasons, 2), (worlds.shop, None), (worlds.post, None)
)


def check_feasible(explanation: Explanation) -> int:
    """Checks `feasible` on every third path with the slow checker; returns how many are not."""
    system = System.of(explanation.constraints, explanation.schema, check=False)
    paths = range(0, len(explanation.instance), 3)
    for path in paths:
        instance = explanation.instances[explanation.instance[path]]
        for cells, feasible in zip(
            explanation.cells[path], explanation.feasible[path], strict=True
        ):
            assert feasible == (not violated(system, cells, instance))
    return int((~explanation.feasible[paths]).sum())


def all_feasible(explanation: Explanation) -> bool:
    """Whether every step but the instance itself is feasible, on paths of answered instances."""
    paths = np.isin(explanation.instance, np.flatnonzero(worlds.answered(explanation)))
    return bool((explanation.feasible[paths] | (explanation.tau[paths] == 0)).all())


# --- exact, latent ----------------------------------------------------------------------------


@each_world
def test_exact_finds_what_the_papers_correction_finds(world, target):
    here = world()
    rng = np.random.default_rng(8)
    for _ in range(2):
        constraints = random_texts(here.explainer.schema_, rng, 4)
        exact, latent = (
            worlds.explain(here, target, constraints=constraints, enforce=enforce, steps=6)
            for enforce in ("exact", "latent")
        )
        assert not (worlds.answered(latent) & ~worlds.answered(exact)).any(), constraints
        for explanation in (exact, latent):
            check_feasible(explanation)
        assert all_feasible(exact)


def test_exact_never_corrects_and_latent_never_projects(monkeypatch):
    here = worlds.bank()

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("not called here")

    with monkeypatch.context() as patch:
        patch.setattr(LatentCorrection, "__call__", never)
        exact = worlds.explain(here, constraints=CONSTRAINTS, steps=4)
        with pytest.raises(AssertionError, match="not called here"):
            worlds.explain(here, constraints=CONSTRAINTS, enforce="latent", steps=4)
    assert all_feasible(exact)
    with monkeypatch.context() as patch:
        patch.setattr(System, "project", never)
        latent = worlds.explain(here, constraints=["age <= 60"], enforce="latent", steps=4)
        with pytest.raises(AssertionError, match="not called here"):
            worlds.explain(here, constraints=["age <= 60"], steps=4)
    assert check_feasible(latent) > 0


# --- latent corrections -----------------------------------------------------------------------


class Scene:
    """The bank's instances, each on a line to one prototype, and some constraints."""

    def __init__(self, constraints: list[Any]) -> None:
        world = worlds.bank()
        fitted, rows = world.explainer.fitted_, world.instances.head(30)
        classifier = world.explainer.classifier_.with_fresh_count()
        self.problem = make_problem(fitted, classifier, rows, constraints=constraints)
        reading, self.system = self.problem.instances.reading, self.problem.system
        self.decoder = fitted.decoder
        self.label = np.ones(30, dtype=np.int64)
        self.start: EncodedInstances = self.decoder.encode_instances(
            reading.schema, reading.cells, 1 - self.label
        )
        self.instance = np.arange(30)
        end = next(p for p in fitted.prototypes if p.code == 1)
        self.end = torch.as_tensor(end.z)[None]
        self.lines = Lines(
            self.instance, 0 * self.instance, self.instance < 0, self.end, self.label
        )

    def correction(self) -> LatentCorrection:
        return LatentCorrection(self.problem, self.start, self.lines)

    def at(self, tau: float) -> tuple[np.ndarray, torch.Tensor, np.ndarray]:
        """The points of all lines at one tau: tau, z and the decoded rows."""
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


@pytest.mark.parametrize("constraints", SMOOTH, ids=" and ".join)
def test_a_correction_lowers_the_penalty_and_leaves_feasible_rows_alone(constraints):
    scene = Scene(constraints)
    correct = scene.correction()
    better = worse = 0
    for tau in (0.2, 0.6, 0.9):
        where, z, rows = scene.at(tau)
        before_call, point = rows.copy(), z.clone()
        moved = correct(where, z, rows, scene.instance)
        np.testing.assert_array_equal(rows, before_call)  # the caller's arrays are not written to
        assert torch.equal(z, point)
        feasible = scene.system.feasible(rows, scene.start.cells)
        assert moved[feasible].tobytes() == rows[feasible].tobytes()
        before, after = scene.penalty(rows), scene.penalty(moved)
        better += int((after < before - 1e-9).sum())
        worse += int((after > before + 1e-9).sum())
        assert after.sum() <= before.sum()
    assert better > 10
    assert worse <= 0.1 * better


@pytest.mark.parametrize("constraints", SMOOTH, ids=" and ".join)
def test_the_papers_correction_descends_with_its_own_step_while_a_row_violates(
    constraints, monkeypatch
):
    scene = Scene(constraints)
    latent = dataclasses.replace(scene.problem.search, enforce="latent")
    scene.problem = dataclasses.replace(scene.problem, search=latent)
    correct = scene.correction()
    where, z, rows = scene.at(0.7)
    feasible = scene.system.feasible(rows, scene.start.cells)
    gradient = correct._gradient(where, z, rows, scene.instance)
    monkeypatch.setattr(correction, "N_CORRECT", 1)
    once = correct(where, z, rows, scene.instance)
    still = np.zeros(len(scene.instance), dtype=bool)
    expected = scene.decoder.path_rows(
        scene.start, scene.instance, where, z - correction.ETA * gradient, scene.label, still
    )
    np.testing.assert_allclose(once[~feasible], expected[~feasible])
    assert once[feasible].tobytes() == rows[feasible].tobytes()
    monkeypatch.setattr(correction, "N_CORRECT", 200)
    often = correct(where, z, rows, scene.instance)
    assert often[feasible].tobytes() == rows[feasible].tobytes()
    sums = [scene.penalty(found).sum() for found in (rows, once, often)]
    assert sums[0] > sums[1] - 1e-9
    assert sums[1] > sums[2]
    satisfied = scene.system.feasible(often, scene.start.cells)
    assert satisfied.sum() > feasible.sum()


def test_rows_without_a_gradient_are_left_alone():
    scene = Scene(["changes <= 1", "home == own"])
    where, z, rows = scene.at(0.7)
    assert not scene.system.feasible(rows, scene.start.cells).all()
    correct = scene.correction()
    assert correct(where, z, rows, scene.instance).tobytes() == rows.tobytes()


def test_a_correction_works_under_no_grad_and_inference_mode():
    scene = Scene(["income <= 20"])
    where, z, rows = scene.at(0.7)
    correct = scene.correction()
    expected = correct(where, z, rows, scene.instance)
    with torch.no_grad():
        np.testing.assert_array_equal(correct(where, z, rows, scene.instance), expected)
    with torch.inference_mode():
        np.testing.assert_array_equal(correct(where, z, rows, scene.instance), expected)


# --- differentiable rows ----------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.0, 0.3, 0.8, 1.0])
def test_differentiable_rows_equal_the_decoded_rows(tau):
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


def test_the_gradient_is_that_of_the_rank_map_without_rounding():
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
        direction = rng.normal(size=width)
        direction /= np.linalg.norm(direction)
        h = 1e-5
        base = z.double().numpy()
        low, high = scores(base - h * direction), scores(base + h * direction)
        rise = (middles(schema, high) - middles(schema, low))[:, k] / (2 * h)
        mid = schema.features[column].knots.mid
        smooth = np.searchsorted(mid, low[:, k]) == np.searchsorted(mid, high[:, k])
        rows_ = smooth & known[:, k]
        of_target = slope.double().numpy() @ direction
        scale = np.abs(rise[rows_]).max()
        np.testing.assert_allclose(of_target[rows_], rise[rows_], rtol=2e-3, atol=2e-3 * scale)
        compared += int(rows_.sum())
    assert compared > 50


def test_a_number_that_stays_missing_has_no_gradient():
    scene = Scene([])
    column = scene.start.schema.index("debt")
    missing = np.isnan(scene.start.cells[:, column])
    assert missing.any()
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


# --- seconds ----------------------------------------------------------------------------------


def test_seconds_are_measured_but_neither_compared_nor_written():
    explanation = worlds.explained(worlds.bank(), constraints=CONSTRAINTS, steps=5)
    assert {"total", "classifier", "constraints"} <= set(explanation.seconds)
    assert all(v > 0 for v in explanation.seconds.values())
    parts = sum(v for k, v in explanation.seconds.items() if k != "total")
    assert parts <= explanation.seconds["total"]
    assert "seconds" not in json.dumps(explanation.to_json())
    assert Explanation.from_json(explanation.to_json()).seconds == {}
    compared = {field.name: field.compare for field in dataclasses.fields(Explanation)}
    assert [name for name, compare in compared.items() if not compare] == ["seconds", "request"]


# --- sampled rows -----------------------------------------------------------------------------


def test_sampled_rows_are_not_training_rows():
    """They coincide with training rows hardly more often than fresh rows of the same kind do."""
    signs = worlds.signs()
    train = {row.tobytes() for row in signs.explainer.schema_.cells(signs.train)}
    cells = signs.explainer.fitted_.samples.cells
    assert len(cells) == 2 * SAMPLES
    assert not any(row.tobytes() in train for row in cells)
    schema = worlds.seasons().explainer.schema_
    train = {row.tobytes() for row in schema.cells(worlds.seasons().train)}
    drawn = worlds.seasons().explainer.fitted_.samples.cells
    fresh = schema.cells(worlds.days(10_000, 99))
    shares = [np.mean([row.tobytes() in train for row in rows]) for rows in (drawn, fresh)]
    assert shares[0] <= 3 * shares[1] + 0.005


def test_paths_and_changes_default_to_a_path_with_an_ok_step():
    here = worlds.bank()
    explanation = here.explainer.explain(
        here.instances, target="approved", constraints=["changes <= 2"]
    )
    ok = explanation.ok.any(axis=1)
    some = [
        i
        for i in range(len(explanation))
        if ok[explanation.instance == i].any() and not ok[explanation.instance == i].all()
    ]
    assert some
    for i in some:
        path = explanation[i].path()
        assert path.ok.any()
        (row,) = np.flatnonzero(
            (explanation.instance == i) & (explanation.prototype == path.prototype[0])
        )
        first = explanation.cells[row, explanation.picked["first"][row]]
        changed = np.flatnonzero(explanation.schema.changed(explanation.instances[i], first))
        changes = explanation[i].changes("first")
        assert changes["feature"].tolist() == [explanation.schema.names[k] for k in changed]
        texts = [explanation.schema.features[k].text(first[k]) for k in changed]
        assert changes["after"].tolist() == texts
    assert set(explanation.all_steps().prototype) == set(explanation.prototype)
