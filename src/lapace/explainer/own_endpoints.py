r"""Endpoints of each instance's own: sampled rows of the target, chosen by what a path there costs.

Everyone's paths to a prototype end at the same row. Here the paths of an instance x end at
different rows e, drawn from the density of the target, that are the cheapest for it:

$$\mathrm{cost}(x, e) = \frac{d(x, e)}{\bar\rho \; p(e)}$$

with d the distance, $\bar\rho$ the mean density percentile on the latent line from x to e, its end
included, and p(e) the classifier's probability of the target at e. So a path is cheap that is
short, runs where the target has data, and ends where the classifier is sure.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from lapace.arrays import Floats, Ints, batches, places_in_groups
from lapace.explainer.endpoints import Endpoints
from lapace.explainer.oracle import Oracle
from lapace.explainer.problem import Problem

__all__ = ["own_endpoints"]

POOL = 1_000  # sampled rows of a label that endpoints are chosen from
SHORT = 6  # candidates per endpoint wanted whose lines are looked at
SPARE = 3  # candidates more than wanted that the classifier is queried about
ALONG = (0.25, 0.5, 0.75)  # where on a line the density is taken, beside its end
LEAST = 1e-2  # share of density or probability below which nothing gets more expensive
BLOCK = 4_000_000  # cells held at once


class _Candidates(NamedTuple):
    """Sampled rows for each of some instances: (instances, candidates) each, and their cost."""

    row: Ints
    cost: Floats


def own_endpoints(problem: Problem, instance: Ints, oracle: Oracle) -> Endpoints:
    """The endpoints of some instances, the cheapest first; fewer where few rows were sampled.

    Args:
        problem: The problem, whose search says how many.
        instance: Positions of the instances.
        oracle: Supplies what was proved infeasible, and adds up the time spent.
    """
    fitted, known, wanted = problem.fitted, problem.instances, problem.search.n_endpoints
    sampled = fitted.sampled_endpoints
    codes = np.c_[known.label_code[instance], known.target_code[instance]]
    pairs, group = np.unique(codes, axis=0, return_inverse=True)
    owner, row, cost = [], [], []
    for k in range(len(pairs)):  # instances with the same label and target share their rows
        members = np.flatnonzero(group.ravel() == k)
        rows = _pool(sampled.label)
        rows = rows[problem.wants(instance[members[:1]], sampled.label[rows])[0]]
        if len(rows):
            found = _spread(problem, _short_list(problem, instance[members], rows))
            owner.append(np.repeat(members, found.row.shape[1]))
            row.append(found.row.ravel())
            cost.append(found.cost.ravel())
    none = np.empty(0, dtype=np.int64)
    line, end = np.concatenate([none, *owner]), np.concatenate([none, *row])
    ask = Oracle(problem, instance[line], sampled.label[end], oracle.infeasible, oracle.seconds)
    steps = ask(np.ones(len(line)), sampled.cells[end], np.arange(len(line)))
    sure = np.maximum(np.nan_to_num(steps.probability, nan=1.0), LEAST)
    price = np.concatenate([np.empty(0), *cost]) / sure
    order = np.lexsort((~steps.ok, line))  # those chosen first, of those that are ok
    order = order[places_in_groups(line[order]) < wanted]
    order = order[np.lexsort((price[order], ~steps.ok[order], line[order]))]
    line, end = line[order], end[order]
    return Endpoints(
        -1 - places_in_groups(line),
        sampled.z[torch.as_tensor(end, device=sampled.z.device)],
        sampled.cells[end],
        sampled.label[end],
        steps.valid[order] == 1,
        steps.probability[order],
        line,
        np.arange(len(line)),
    )


def _pool(label: Ints) -> Ints:
    """The first sampled rows of each label."""
    return np.concatenate([np.flatnonzero(label == k)[:POOL] for k in np.unique(label)])


def _short_list(problem: Problem, instance: Ints, rows: Ints) -> _Candidates:
    """Of every part of the sampled rows the best for each instance, and the cost of its line."""
    fitted, schema, known = problem.fitted, problem.schema, problem.instances
    sampled, decoder = fitted.sampled_endpoints, fitted.decoder
    cells, end = known.cells[instance], np.maximum(fitted.sampled_density[rows] / 100.0, LEAST)
    apart = np.empty((len(instance), len(rows)))
    for part in batches(len(cells), BLOCK, len(rows) * cells.shape[1]):
        apart[part] = schema.gaps(cells[part][:, None], sampled.cells[rows]) @ problem.weights
    each = np.arange(len(instance))[:, None]
    count = min(SHORT * problem.search.n_endpoints, len(rows))
    parts = np.array_split(np.arange(len(rows)), count)  # of draws that are all alike
    best = [own[(apart[:, own] / end[own]).argmin(axis=1)] for own in parts]
    places = np.stack(best, axis=1)  # (instances, count)
    start = decoder.encode_instances(schema, cells, known.label_code[instance]).z
    goal = sampled.z[torch.as_tensor(rows[places], device=start.device)]  # (instances, count, h)
    label = np.repeat(sampled.label[rows[places]].ravel(), len(ALONG))
    tau = torch.tensor(ALONG, device=start.device)[:, None]
    points = torch.lerp(start[:, None, None], goal[:, :, None], tau).reshape(len(label), -1)
    along = decoder.percentile(points, label).reshape(*places.shape, -1) / 100.0
    share = (along.sum(axis=2) + end[places]) / (len(ALONG) + 1)
    return _Candidates(rows[places], apart[each, places] / np.maximum(share, LEAST))


def _spread(problem: Problem, short: _Candidates) -> _Candidates:
    """Some of the candidates, one by one: the cheapest for how far it is from those before it."""
    cells = problem.fitted.sampled_endpoints.cells
    count = min(problem.search.n_endpoints + SPARE, short.row.shape[1])
    each, chosen = np.arange(len(short.row)), [short.cost.argmin(axis=1)]
    far = np.full(short.row.shape, np.inf)
    for _ in range(count - 1):
        last = cells[short.row[each, chosen[-1]]]
        apart = problem.schema.gaps(cells[short.row], last[:, None]) @ problem.weights
        far = np.minimum(far, apart)
        worth = np.where(far > 0, short.cost / np.maximum(far, 1e-9), np.inf)
        for places in chosen:
            worth[each, places] = np.inf
        chosen.append(worth.argmin(axis=1))
    places = np.stack(chosen, axis=1)
    return _Candidates(
        np.take_along_axis(short.row, places, axis=1),
        np.take_along_axis(short.cost, places, axis=1),
    )
