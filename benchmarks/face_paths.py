"""Paths to FACE's counterfactuals, to compare with latent paths (E3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.baselines import FACE
from benchmarks.baselines.face import CheapestPaths
from benchmarks.baselines.problem import BaselineProblem, Constraints, interpolate
from lapace.arrays import Floats, batches
from lapace.errors import check_integer
from lapace.result import Counterfactuals
from lapace.schema.distance import BLOCK


def face_path(
    face: FACE,
    X: Any,
    *,
    target: Any = None,
    constraints: Constraints = (),
    steps: int = 20,
    greedy: bool = False,
) -> Counterfactuals:
    """A path of evenly spaced points from each instance to FACE's counterfactual.

    The points lie on a straight line, or are greedy hops through training rows: each leads to the
    nearest row among those close enough to the counterfactual to arrive in time; after hop t of T
    at most (1 - t/T) of the whole distance may remain.

    Args:
        face: Fitted.
        X: The instances.
        target: As in `FACE.counterfactuals`.
        constraints: Every point is projected onto them before the classifier is queried.
        steps: Points of each path; the last is the counterfactual.
        greedy: Hops through training rows instead of a straight line.

    Returns:
        Every point, ok or not, with `tau` its place on the path.

    Examples:
        >>> table = [{"age": age} for age in range(20, 60)]
        >>> predict = lambda rows: ["no" if r["age"] < 40 else "yes" for r in rows]
        >>> face = FACE(predict, neighbours=2).fit(table)
        >>> line = face_path(face, [{"age": 30}], target="yes", steps=5)
        >>> line.cells.ravel(), line.valid.tolist()
        (array([32., 34., 36., 38., 40.]), [False, False, False, False, True])
        >>> face_path(face, [{"age": 30}], target="yes", steps=4, greedy=True).cells.ravel()
        array([33., 35., 38., 40.])
    """
    check_integer("steps", steps)
    problem = BaselineProblem.of(face, X, target, constraints)
    found = face.cheapest_paths(problem)
    instance = np.repeat(found.instance, steps)
    tau = np.tile(np.arange(1, steps + 1) / steps, len(found.instance))
    if greedy:
        cells = _greedy_hops(problem, found, face.graph_.rows, steps)
    else:
        end = np.repeat(found.cells, steps, axis=0)
        cells = interpolate(problem.schema, problem.cells[instance], end, tau)
    if len(problem.system):
        cells = problem.system.project(cells, problem.cells[instance]).cells
    return problem.evaluate(cells, instance, tau=tau)


def _greedy_hops(
    problem: BaselineProblem, found: CheapestPaths, rows: Floats, steps: int
) -> Floats:
    """The rows of greedy paths to FACE's counterfactuals, path by path."""
    schema, cells = problem.schema, np.empty((len(found.instance), steps, rows.shape[1]))
    for part in batches(len(cells), BLOCK, len(rows)):
        here = problem.cells[found.instance[part]]
        remaining = schema.metric.pairwise(found.cells[part], rows)  # (size, n)
        whole = schema.gaps(here, found.cells[part]).sum(axis=1)
        for step in range(1, steps + 1):
            in_time = remaining <= whole[:, None] * (1 - step / steps) + 1e-9
            distance = np.where(in_time, schema.metric.pairwise(here, rows), np.inf)
            # A hop changes the row, unless there is nowhere else to go.
            hop = np.where(distance <= 1e-12, np.inf, distance)
            stuck = ~np.isfinite(hop).any(axis=1)
            here = rows[np.where(stuck, distance.argmin(axis=1), hop.argmin(axis=1))]
            cells[part, step - 1] = here
    return cells.reshape(-1, rows.shape[1])
