"""Where paths end: at the prototypes, and at one sampled row of the target near each instance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from lapace.arrays import Bools, Floats, Ints, batches, first_of_each
from lapace.explainer.oracle import Oracle
from lapace.explainer.problem import Problem
from lapace.metrics.neighbours import kneighbors
from lapace.paths import EncodedInstances

__all__ = ["Endpoints", "find_endpoints", "frozen_category_lines", "reachable_prototypes"]

CANDIDATES = 10  # nearest sampled rows the classifier is queried about, to find one that is ok
SPARE = 6  # more of them, for those that rounding to float32 brings out of order
BLOCK = 4_000_000  # distances held at once
FIRST_CANDIDATES = 2  # of them are queried at first, the others where neither is
FEW_ROWS = 20  # rows up to which one call about all of them costs less than two calls
MIN_PERCENTILE = 0.2  # of an instance's categories among the target's, to get a frozen copy


class Endpoints(NamedTuple):
    """Where paths of some instances may end, and which lines lead there.

    Attributes:
        prototype: The prototype's number; -1 for a sampled endpoint.
        z: Latent points.
        cells: Rows.
        label: Labels, as positions.
        valid: Whether the classifier accepts each: prototypes as judged at `fit`.
        probability: Of the label; NaN where unknown.
        instance: The instance of each line, by position among those searched for, in order.
        endpoint: The endpoint of each line.
    """

    prototype: Ints
    z: torch.Tensor
    cells: Floats
    label: Ints
    valid: Bools
    probability: Floats
    instance: Ints
    endpoint: Ints


def find_endpoints(problem: Problem, instance: Ints, oracle: Oracle) -> Endpoints:
    """The endpoints of some instances, by their position in the query.

    Args:
        problem: The problem.
        instance: Positions of the instances.
        oracle: Supplies what was proved infeasible, and adds up the time spent.
    """
    fitted = problem.fitted
    prototypes, sampled = fitted.prototypes, fitted.sampled_endpoints
    near_instance, near, probability = _near_samples(problem, instance, oracle)
    line_instance, prototype = np.nonzero(reachable_prototypes(problem, instance))
    # Pairs rather than a matrix, since every instance has another sampled endpoint.
    lines = np.concatenate([line_instance, near_instance])
    endpoint = np.concatenate([prototype, len(prototypes) + np.arange(len(near))])
    order = np.argsort(lines, kind="stable")
    z = torch.as_tensor(np.stack([p.z for p in prototypes]), device=fitted.decoder.device)
    return Endpoints(
        np.array([p.number for p in prototypes] + [-1] * len(near), dtype=np.int64),
        torch.cat([z, sampled.z[torch.as_tensor(near, device=z.device)]]),
        np.concatenate([np.stack([p.cells for p in prototypes]), sampled.cells[near]]),
        np.array([*(p.code for p in prototypes), *sampled.label[near]], dtype=np.int64),
        np.array([p.valid for p in prototypes] + [True] * len(near)),
        np.concatenate([[p.probability for p in prototypes], probability]),
        lines[order],
        endpoint[order],
    )


def reachable_prototypes(problem: Problem, instance: Ints) -> Bools:
    """Which prototypes paths of instances may lead to: (instances, prototypes)."""
    fitted = problem.fitted
    usable = np.array([fitted.is_endpoint(p) for p in fitted.prototypes])
    return usable & problem.wants(instance, np.array([p.code for p in fitted.prototypes]))


def _near_samples(problem: Problem, instance: Ints, oracle: Oracle) -> tuple[Ints, Ints, Floats]:
    """Instances, the nearest ok sampled row of each, and the probability of its label."""
    sampled, known = problem.fitted.sampled_endpoints, problem.instances
    pairs, group = np.unique(
        np.c_[known.label_code[instance], known.target_code[instance]], axis=0, return_inverse=True
    )
    instances, nearest, rank = [], [], []
    for k in range(len(pairs)):  # instances with the same label and target share their candidates
        members = np.flatnonzero(group.ravel() == k)
        rows = np.flatnonzero(problem.wants(instance[members[:1]], sampled.label)[0])
        index = _nearest(problem, known.cells[instance[members]], rows)
        instances.append(np.repeat(members, index.shape[1]))
        nearest.append(rows[index].ravel())
        rank.append(np.tile(np.arange(index.shape[1]), len(members)))
    if not instances:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0)
    owner, candidates = np.concatenate(instances), np.concatenate(nearest)
    evaluate = Oracle(
        problem, instance[owner], sampled.label[candidates], oracle.infeasible, oracle.seconds
    )
    few = len(owner) <= FEW_ROWS
    at_first = np.concatenate(rank) < (CANDIDATES if few else FIRST_CANDIDATES)
    open_, ok, probability = np.flatnonzero(at_first), [], np.full(len(owner), np.nan)
    for _ in range(2):
        found = evaluate(np.ones(len(open_)), sampled.cells[candidates[open_]], open_)
        probability[open_] = found.probability
        ok.append(open_[found.ok])
        open_ = np.flatnonzero(~at_first & ~np.isin(owner, owner[ok[0]]))
        if not len(open_):
            break
    near = np.sort(np.concatenate(ok))
    chosen = near[first_of_each(owner[near])]  # candidates are sorted by distance
    return owner[chosen], candidates[chosen], probability[chosen]


def _nearest(problem: Problem, cells: Floats, rows: Ints) -> Ints:
    """Which of some sampled rows are nearest to cells, by distance: positions, (n, candidates).

    Found in float32, where the model lives, and sorted by the exact distance. A missing or unseen
    number has a distance of its own: then by `kneighbors`.
    """
    schema, sampled, weights = problem.schema, problem.fitted.sampled_endpoints, problem.weights
    others, odd = sampled.cells[rows], schema.unplaced(cells).any(axis=1)
    if not len(rows) or not sampled.placed or odd.all():
        return kneighbors(schema, cells, others, CANDIDATES, weights=weights)[1]
    if odd.any():
        near = np.empty((len(cells), min(CANDIDATES, len(rows))), dtype=np.int64)
        near[odd] = kneighbors(schema, cells[odd], others, CANDIDATES, weights=weights)[1]
        near[~odd] = _nearest(problem, cells[~odd], rows)
        return near
    count, numeric = min(CANDIDATES + SPARE, len(rows)), schema.numeric
    near = np.empty((len(cells), count), dtype=np.int64)
    at = torch.as_tensor(rows, device=sampled.z.device)
    numbers, levels = (part[at] for part in sampled.tensors)
    own_numbers, own_levels = sampled.as_tensors(cells, weights)
    if (weights[numeric] != 1.0).any():
        heavy = torch.as_tensor(weights[numeric], dtype=torch.float32, device=numbers.device)
        numbers, own_numbers = numbers * heavy, own_numbers * heavy
    for part in batches(len(cells), BLOCK, len(rows)):
        apart = torch.cdist(own_numbers[part], numbers, p=1.0)  # (size, rows), less what is alike
        apart.addmm_(own_levels[part], levels.T, alpha=-1.0)
        near[part] = apart.topk(count, dim=1, largest=False).indices.cpu().numpy()
    near.sort(axis=1)
    exact = np.empty(near.shape)
    for part in batches(len(cells), BLOCK, count * cells.shape[1]):
        exact[part] = schema.gaps(cells[part][:, None], others[near[part]]) @ weights
    order = np.argsort(exact, axis=1, kind="stable")[:, :CANDIDATES]
    return np.take_along_axis(near, order, axis=1)


def frozen_category_lines(
    problem: Problem, instances: EncodedInstances, instance: Ints, label: Ints
) -> Ints:
    """Lines that get a frozen-category copy: the instance's categories are typical of the label."""
    decoder = problem.fitted.decoder
    if not decoder.trees or not instances.states.shape[1]:
        return np.empty(0, dtype=np.int64)
    typical = decoder.category_percentile(instances.schema, instances.cells[instance], label)
    return np.flatnonzero(typical >= MIN_PERCENTILE)
