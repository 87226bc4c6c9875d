"""Where paths end: at the prototypes, and at one sampled row of the target near each instance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from lapace.arrays import Bools, Floats, Ints, batches, first_of_each
from lapace.explainer.oracle import Oracle
from lapace.explainer.problem import Problem
from lapace.metrics.neighbours import kneighbors
from lapace.paths import EncodedInstances, Steps

__all__ = ["Endpoints", "NearSamples", "find_endpoints", "frozen_category_lines", "near_samples"]

NEAR, ASKED = 5, 2  # sampled rows looked at, and queried, for each start that is wanted
MORE = 2  # times as many under constraints, which move them
UNLIKE = 0.5  # of a row's distance: how far it lies from rows chosen before it
CELLS = 5_000_000  # of rows compared with each other at once
MIN_PERCENTILE = 0.2  # of an instance's categories among the target's, to get a frozen copy


class NearSamples(NamedTuple):
    """Sampled rows of the target near instances, evaluated.

    Attributes:
        instance: The instance of each, by position among those searched for, in order.
        sample: Which of the sampled rows it is.
        steps: The row, projected onto the constraints and queried.
        distance: From the instance.
    """

    instance: Ints
    sample: Ints
    steps: Steps
    distance: Floats


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


def near_samples(problem: Problem, instance: Ints, oracle: Oracle, times: int = 1) -> NearSamples:
    """Finds sampled rows of the target near instances, unlike each other, and evaluates them.

    Args:
        problem: The problem.
        instance: Positions of the instances.
        oracle: Evaluates rows.
        times: How many times as many as usual.
    """
    sampled, known = problem.fitted.sampled_endpoints, problem.instances
    pinned = problem.system.domains(known.cells[instance]).pinned
    alike = np.c_[known.label_code[instance], known.target_code[instance], pinned]
    pairs, group = np.unique(alike, axis=0, return_inverse=True)
    owner, sample = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for k in range(len(pairs)):  # instances that want the same and may change the same columns
        members = np.flatnonzero(group.ravel() == k)
        first = np.full(len(sampled.label), instance[members[0]])
        rows = np.flatnonzero(known.reaches_target(sampled.label, first))
        cells = known.cells[instance[members]]
        # What may not change is the instance's, whatever the sample has.
        weights = np.where(pinned[members[0]], 0.0, problem.weights)
        chosen = rows[_unlike_rows(problem, cells, sampled.cells[rows], weights, times)]
        owner.append(np.repeat(members, chosen.shape[1]))
        sample.append(chosen.ravel())
    owners, samples = np.concatenate(owner), np.concatenate(sample)
    originals = known.cells[instance[owners]]
    steps = oracle.evaluate(sampled.cells[samples], instance[owners])
    distance = problem.schema.gaps(originals, steps.cells) @ problem.weights
    order = np.lexsort((distance, owners))
    return NearSamples(owners[order], samples[order], steps.take(order), distance[order])


def _unlike_rows(
    problem: Problem, cells: Floats, rows: Floats, weights: Floats, times: int
) -> Ints:
    """Positions of rows near each instance, (n, count), of which none is much like another.

    The closest rows of a large sample are almost copies of one another. In order of distance, a row
    is chosen if it is at least half as far from every row chosen before as it is from the instance;
    where too few are, the closest of the others follow.
    """
    schema = problem.schema
    count = times * (MORE if len(problem.system) else 1) * problem.search.n_starts
    wanted = min(len(rows), ASKED * count)
    distance, near = kneighbors(schema, cells, rows, NEAR * count, weights=weights)
    numeric = np.array([f.numeric for f in schema.features])
    places = schema.coordinates(rows)  # (rows, d), of a sample nothing is missing
    chosen = np.empty((len(cells), wanted), dtype=np.int64)
    for part in batches(len(cells), CELLS, near.shape[1] * cells.shape[1]):
        some = places[near[part]]  # (n, near, d)
        every = np.arange(len(some))
        closest = np.full(near[part].shape, np.inf)  # to any row chosen so far
        left = np.ones(near[part].shape, dtype=bool)
        for turn in range(wanted):
            unlike = left & (closest >= UNLIKE * distance[part])
            pick = np.where(unlike.any(axis=1), unlike.argmax(axis=1), left.argmax(axis=1))
            chosen[part, turn] = near[part][every, pick]
            left[every, pick] = False
            apart = some - some[every, pick][:, None]
            apart = np.where(numeric, np.abs(apart), apart != 0) @ weights
            closest = np.minimum(closest, apart)
    return chosen


def find_endpoints(problem: Problem, instance: Ints, near: NearSamples) -> Endpoints:
    """Lists the endpoints of some instances: their prototypes, and the closest ok sampled row.

    Args:
        problem: The problem.
        instance: Positions of the instances.
        near: Sampled rows near them.
    """
    fitted = problem.fitted
    prototypes, sampled = fitted.prototypes, fitted.sampled_endpoints
    ok = np.flatnonzero(near.steps.ok)
    ok = ok[first_of_each(near.instance[ok], near.distance[ok])]
    sample = near.sample[ok]
    codes = np.array([p.code for p in prototypes])
    usable = np.array([fitted.is_endpoint(p) for p in prototypes])
    lines, prototype = np.nonzero(usable & problem.instances.wants(codes, instance))
    # Pairs rather than a matrix, since every instance has another sampled endpoint.
    lines = np.concatenate([lines, near.instance[ok]])
    endpoint = np.concatenate([prototype, len(prototypes) + np.arange(len(ok))])
    order = np.argsort(lines, kind="stable")
    z = torch.as_tensor(np.stack([p.z for p in prototypes]), device=fitted.decoder.device)
    return Endpoints(
        np.array([p.number for p in prototypes] + [-1] * len(ok), dtype=np.int64),
        torch.cat([z, sampled.z[torch.as_tensor(sample, device=z.device)]]),
        np.concatenate([np.stack([p.cells for p in prototypes]), sampled.cells[sample]]),
        np.array([*codes, *sampled.label[sample]], dtype=np.int64),
        np.array([p.valid for p in prototypes] + [True] * len(ok)),
        np.concatenate([[p.probability for p in prototypes], near.steps.probability[ok]]),
        lines[order],
        endpoint[order],
    )


def frozen_category_lines(
    problem: Problem, instances: EncodedInstances, instance: Ints, label: Ints
) -> Ints:
    """Lines that get a frozen-category copy: the instance's categories are typical of the label."""
    decoder = problem.fitted.decoder
    if not decoder.trees or not instances.states.shape[1]:
        return np.empty(0, dtype=np.int64)
    typical = decoder.category_percentile(instances.schema, instances.cells[instance], label)
    return np.flatnonzero(typical >= MIN_PERCENTILE)
