"""The search: latent lines to prototypes, then minimal rows from starts.

For a chunk of instances, in this order (`search`):

1. *Algorithm 1*: a latent line from each instance to each prototype of its target,
   z = (1 - tau) z_x + tau mu, decoded, projected, and queried step by step.
2. *Starts* (`find_starts`): for each instance the ok rows of least effort among rows sampled from
   the model, steps of its paths, rows grown change by change, and rows the caller gives.
3. *Minimal* (`find_minimal`): each start loses every change it can do without. The row of least
   effort is `nearest`; rows that also keep a margin are the ways of `best`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from lapace.arrays import Bools, Floats, Ints
from lapace.budget import BudgetError, current
from lapace.constraints import System
from lapace.explainer.assemble import ON_PATH, make_explanation
from lapace.explainer.correction import LatentCorrection
from lapace.explainer.minimal import MinimalRows, find_minimal
from lapace.explainer.oracle import Oracle
from lapace.explainer.problem import Problem
from lapace.explainer.starts import Paths, find_starts
from lapace.model import few_threads
from lapace.paths import (
    Correct,
    EncodedInstances,
    Lines,
    Steps,
    TracedPaths,
    dense_lines,
    pairs_of,
    trace,
)
from lapace.progress import Progress
from lapace.result import Explanation

__all__ = ["SearchResult", "explain", "search"]

ROWS = 200_000  # rows evaluated at a time, so that memory does not grow with the query
OFF_PATH = frozenset({"nearest", "best"})
CELLS = 5_000_000  # cells evaluated at a time, for tables as wide as images


class SearchResult(NamedTuple):
    """The result of a search for some instances.

    Attributes:
        paths: The paths.
        rows: The rows of `nearest`, and of both ends of `best`, by name.
        infeasible: Instances proved to have no feasible row.
        unsolved: Instances with a row for which the solver of constraints found no result.
        seconds: Time spent in the classifier and on constraints, by name.
    """

    paths: Paths
    rows: Mapping[str, MinimalRows]
    infeasible: frozenset[int]
    unsolved: frozenset[int]
    seconds: Mapping[str, float]


def explain(problem: Problem, progress: Progress | None = None) -> Explanation:
    """Explains every instance of a problem, chunk by chunk.

    Where half of a budget is too little for all instances together, the rest of it is spent on one
    after the other.

    Args:
        problem: The problem.
        progress: Called as `progress("explaining", done, total)`.
    """
    begin, budget, tried = perf_counter(), current(), problem.tried
    chunks, results, done, ended = list(_chunks(problem)), [], 0, ""
    with few_threads(problem.fitted.decoder.model.shape):
        while chunks:
            chunk = chunks.pop(0)
            alone = len(chunk) == 1
            try:
                with nullcontext() if budget is None or alone else budget.share(0.5):
                    results.append(search(problem, chunk))
            except BudgetError as error:
                if budget is None:
                    raise
                if alone:
                    ended = str(error)
                    break
                chunks = [tried[i : i + 1] for i in range(done, len(tried))]
                continue
            done += len(chunk)
            if progress:
                progress("explaining", done, len(tried))
        if not results:
            results = [search(problem, tried[:0])]
        unsearched = frozenset(tried[done:].tolist())
        return make_explanation(problem, results, perf_counter() - begin, ended, unsearched)


def _chunks(problem: Problem) -> Iterator[Ints]:
    """Positions of the instances searched for, in chunks of limited memory."""
    rows = min(ROWS, CELLS // len(problem.schema.features))
    size = max(1, rows // (problem.search.steps * max(1, len(problem.fitted.prototypes))))
    for begin in range(0, len(problem.tried), size):
        yield problem.tried[begin : begin + size]


def search(problem: Problem, instance: Ints) -> SearchResult:
    """Searches for counterfactuals of some instances, given by position in order."""
    oracle = Oracle(problem)
    encoded, lines = latent_lines(problem, instance)
    owner = instance[lines.instance]
    correct: Correct | None = None
    if len(problem.system) and problem.search.enforce == "latent":
        correct = LatentCorrection(problem, encoded, lines)
    traced = trace(
        problem.fitted.decoder,
        encoded,
        lines,
        _start_steps(problem, owner, encoded, lines, oracle),
        _end_steps(problem, owner, lines, oracle, correct),
        lambda tau, cells, line: oracle.evaluate(cells, owner[line], tau),
        correct=correct,
        steps=problem.search.steps,
        stable=problem.search.stable,
        weights=problem.weights,
    )
    numbers = np.array([p.number for p in problem.fitted.prototypes], dtype=np.int64)
    prototype = numbers[lines.endpoint[traced.lines]]
    paths = _columns(problem, traced, owner[traced.lines], prototype, oracle)
    rows: dict[str, MinimalRows] = {}
    if not OFF_PATH.isdisjoint(problem.search.picks):
        starts = find_starts(problem, instance, paths, problem.candidates, oracle)
        rows = find_minimal(problem, instance, starts, paths, oracle)
    infeasible, unsolved = frozenset(oracle.infeasible), frozenset(oracle.unsolved)
    return SearchResult(paths, rows, infeasible, unsolved, oracle.seconds)


# ------------------------------------------------------------------------------------------------
# Algorithm 1


def latent_lines(problem: Problem, instance: Ints) -> tuple[EncodedInstances, Lines]:
    """Encodes instances; draws a line z = (1 - tau) z_x + tau mu to each prototype of the target.

    Each line has a copy that keeps the instance's categories and moves only the numbers.
    """
    fitted, originals = problem.fitted, problem.instances.cells[instance]
    decoder, prototypes = fitted.decoder, fitted.prototypes
    fixed, excluded = _category_limits(problem.system, originals)
    label_code = problem.instances.label_code[instance]
    encoded = decoder.encode_instances(problem.schema, originals, label_code, fixed, excluded)
    codes = np.array([p.code for p in prototypes], dtype=np.int64)
    usable = np.array([fitted.is_endpoint(p) for p in prototypes])
    start, endpoint = np.nonzero(usable & problem.instances.wants(codes, instance))
    copies = 2 if decoder.trees and encoded.states.shape[1] else 1
    frozen = np.repeat([False, True][:copies], len(start))
    start, endpoint = np.tile(start, copies), np.tile(endpoint, copies)
    z = torch.as_tensor(np.stack([p.z for p in prototypes]), device=decoder.device)
    lines = Lines(start, endpoint, frozen, z, codes[endpoint])
    if problem.schema.shape is not None and not decoder.follows_paper:
        return dense_lines(decoder, encoded, lines)
    return encoded, lines


def _columns(
    problem: Problem, traced: TracedPaths, instance: Ints, prototype: Ints, oracle: Oracle
) -> Paths:
    """Returns traced paths by column, with the distance of each step and the density of picks."""
    steps, (count, size) = traced.steps, traced.steps.tau.shape
    paths: Paths = {**steps._asdict(), **traced._asdict()}
    del paths["steps"], paths["lines"]
    density, picked = np.full((count, size), np.nan), np.zeros((count, size), dtype=bool)
    for name in set(ON_PATH) & set(problem.search.picks):  # a pick may also be a step of the grid
        picked |= steps.tau == steps.tau[np.arange(count), paths[name], None]
    density[picked] = oracle.density(steps.take(picked), instance[np.nonzero(picked)[0]])
    cells = steps.cells.reshape(count * size, steps.cells.shape[2])
    distance = problem.distances(cells, np.repeat(instance, size)).reshape(count, size)
    return paths | {
        "instance": instance,
        "prototype": prototype,
        "density": density,
        "distance": distance,
    }


def _category_limits(system: System, originals: Floats) -> tuple[Ints, Bools]:
    """Constraints on single columns as fixed and excluded states of the category blocks."""
    schema = system.schema
    states = schema.coding.states(originals)
    fixed = np.full(states.shape, -1, dtype=np.int64)
    excluded = np.zeros((len(originals), sum(schema.coding.block_states)), dtype=bool)
    if not len(system):
        return fixed, excluded
    domains = system.domains(originals)
    begin = 0
    for block, ((feature, _, _), count) in enumerate(
        zip(schema.coding.blocks, schema.coding.block_states, strict=True)
    ):
        pinned = domains.pinned[:, feature]
        fixed[pinned, block] = states[pinned, block]
        allowed = domains.allowed.get(feature)
        if allowed is not None:
            seen = len(schema.features[feature].categories)
            excluded[:, begin : begin + seen] = ~allowed[:, :seen]
            if count > seen:
                excluded[:, begin + seen] = ~allowed[:, -1]  # missing
        begin += count
    return fixed, excluded


def _start_steps(
    problem: Problem, instance: Ints, encoded: EncodedInstances, lines: Lines, oracle: Oracle
) -> Steps:
    """Step 0 of each line: the instance's row copied, which does not have the target."""
    decoder, tau = problem.fitted.decoder, np.zeros(len(instance))
    if decoder.follows_paper:  # the paper's paths start at the reconstruction
        z = encoded.z[torch.as_tensor(lines.instance, device=encoded.z.device)]
        rows = decoder.path_rows(encoded, lines.instance, tau, z, lines.label, lines.frozen)
        return oracle.evaluate(rows, instance, tau)
    asked = problem.instances
    cells, label = asked.cells[instance], asked.label_code[instance]
    reached = asked.target_probability(asked.probability[instance], instance)
    valid, unknown = np.zeros(len(instance), dtype=np.int8), np.full(len(instance), np.nan)
    feasible = problem.system.feasible(encoded.cells, encoded.cells)[lines.instance]
    return Steps(tau, cells, label, valid, feasible, reached, unknown)


def _end_steps(
    problem: Problem, instance: Ints, lines: Lines, oracle: Oracle, correct: Correct | None
) -> Steps:
    """Step 1 of each line: its prototype. A line and its frozen-category copy end in one row."""
    _, once, which = np.unique(pairs_of(lines), return_index=True, return_inverse=True)
    tau, endpoint = np.ones(len(once)), lines.endpoint[once]
    cells = np.stack([p.cells for p in problem.fitted.prototypes])[endpoint]
    if correct is not None:
        z = lines.z[torch.as_tensor(endpoint, device=lines.z.device)]
        cells = correct(tau, z, cells, once)
    return oracle.evaluate(cells, instance[once], tau).take(which)
