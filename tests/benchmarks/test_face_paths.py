"""Paths of evenly spaced points to FACE's counterfactuals: straight lines and greedy hops."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.baselines import FACE
from benchmarks.face_paths import face_path
from lapace.constraints import System
from tests import worlds


@pytest.fixture(scope="module")
def world():
    """A fitted FACE, and instances."""
    face = FACE(worlds.postage, neighbours=8, confidence=0.6).fit(worlds.letters(200, 0))
    return face, worlds.letters(8, 1)


def test_a_path_of_face_is_the_line_to_its_counterfactual(world):
    face, instances = world
    endpoints = face.counterfactuals(instances, target="dear")
    line = face_path(face, instances, target="dear", steps=20)
    assert len(line) == 20 * len(endpoints)
    np.testing.assert_array_equal(line.cells[line.tau == 1.0], endpoints.cells)
    assert line.valid[line.tau == 1.0].all()
    assert ["dear" if v else "cheap" for v in line.valid] == worlds.postage(line.rows)
    for instance in np.unique(line.instance):
        assert (np.diff(line.distance[line.instance == instance]) >= -1e-9).all()


@pytest.mark.parametrize("greedy", [False, True])
def test_points_of_face_s_paths_are_projected_onto_constraints(world, greedy):
    face, instances = world
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


def test_a_greedy_path_hops_through_training_rows_and_arrives(world):
    face, instances = world
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
