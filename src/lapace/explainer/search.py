"""The search: latent lines to endpoints, then minimal rows from starts.

For a chunk of instances, in this order:

1. *Algorithm 1* (`trace_paths`): a latent line from each instance to each prototype of its target
   and to one sampled row near it, decoded, corrected, projected, and queried step by step.
2. *Starts* (`find_starts`): for each instance the closest ok rows among the steps of its paths and
   sampled rows of the target.
3. *Minimal* (`minimal_rows`): each start loses every change it can do without. The closest row of
   an instance is `nearest`; rows that also keep a margin and a floor are the ways of `best`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints, first_of_each, matches, places_in_groups
from lapace.constraints import System
from lapace.errors import ClassifierError
from lapace.explainer.correction import LatentCorrection
from lapace.explainer.endpoints import (
    Endpoints,
    find_endpoints,
    frozen_category_lines,
    near_samples,
)
from lapace.explainer.minimal import minimise, settle
from lapace.explainer.oracle import RARE, Oracle
from lapace.explainer.problem import Candidates, Problem
from lapace.explainer.starts import Paths, Starts, find_starts
from lapace.paths import (
    Correct,
    EncodedInstances,
    Lines,
    Steps,
    dense_lines,
    join_rows,
    rows_differ,
    take_rows,
    trace,
)

__all__ = ["Found", "MinimalRows", "Paths", "has_ok_step", "search", "with_marks"]

WIDER = 10  # times as many sampled rows are tried for `best` where none has a margin


class MinimalRows(NamedTuple):
    """Rows of `nearest` or `best`.

    Attributes:
        instance: The instance of each row, by position in the query.
        rank: Which of its best rows it is, cheapest first.
        prototype: The prototype of the path that comes closest to it; -1 for none.
        steps: The row, evaluated.
        density: Its density percentile.
        mark: What a best row lacks, in words.
    """

    instance: Ints
    rank: Ints
    prototype: Ints
    steps: Steps
    density: Floats
    mark: NDArray[np.object_]

    @classmethod
    def join(cls, parts: Sequence[MinimalRows]) -> MinimalRows:
        """Puts rows together, by instance."""
        joined = join_rows(parts)
        return joined.take(np.lexsort((joined.rank, joined.instance)))

    def take(self, rows: Bools | Ints) -> MinimalRows:
        """Selects some of the rows."""
        return take_rows(self, rows)


class Found(NamedTuple):
    """What a search found for some instances.

    Attributes:
        paths: The paths; None where no endpoint can be reached.
        rows: The rows of `nearest` and `best`, by pick.
        minimal: All rows that were made minimal on the way, to be considered again.
        infeasible: Instances proved to have no feasible row.
        unsolved: Instances with a row for which the solver of constraints found no result.
        seconds: Time spent in the classifier and on constraints, by name.
    """

    paths: Paths | None
    rows: Mapping[str, MinimalRows]
    minimal: Candidates
    infeasible: frozenset[int]
    unsolved: frozenset[int]
    seconds: Mapping[str, float]


def search(problem: Problem, instance: Ints, free: Found | None = None) -> Found:
    """Searches for counterfactuals of some instances.

    An answer without the query's constraints that satisfies them is the answer with them. So the
    search without those constraints comes first.

    Args:
        problem: The problem.
        instance: Positions of the instances.
        free: What was found without the query's constraints, where that is known.
    """
    off_path = tuple(pick for pick in ("nearest", "best") if pick in problem.search.picks)
    unconstrained = problem.without_constraints
    if free is None and off_path and unconstrained is not None:
        # A constraint may keep rows from the classifier that it raises on.
        with suppress(ClassifierError):
            free = search(unconstrained.with_search(picks=off_path), instance)
    oracle = Oracle(problem)
    near = near_samples(problem, instance, oracle)
    paths = trace_paths(problem, instance, find_endpoints(problem, instance, near), oracle)
    rows: dict[str, MinimalRows] = {}
    minimal = Candidates.of(problem.instances.cells[:0], instance[:0])
    if off_path:
        known, kept = ({}, None) if free is None else _complying(problem, instance, free)
        candidates = [part for part in (problem.candidates, free and free.minimal) if part]
        starts = find_starts(problem, instance, near, paths, candidates, oracle)
        rows, minimal = minimal_rows(problem, instance, starts, known, kept, paths, oracle)
    seconds = oracle.seconds if free is None else added(free.seconds, oracle.seconds)
    return Found(paths, rows, minimal, oracle.infeasible, oracle.unsolved, seconds)


def _complying(
    problem: Problem, instance: Ints, free: Found
) -> tuple[dict[str, MinimalRows], MinimalRows | None]:
    """Rows found without constraints that satisfy them.

    Returns:
        The rows of instances whose rows all do, by pick, and the ways of `best` of the others.
    """
    known, kept = {}, None
    for pick, every in free.rows.items():
        rows = every.take(np.isin(every.instance, instance))
        originals = problem.instances.cells[rows.instance]
        ok = rows.steps.ok & problem.system.feasible(rows.steps.cells, originals)
        whole = ~np.isin(rows.instance, rows.instance[~ok])
        known[pick] = rows.take(whole)
        if pick == "best":
            kept = rows.take(ok & ~whole)
    return known, kept


def added(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    """Adds seconds up by name."""
    return {name: a.get(name, 0.0) + b.get(name, 0.0) for name in {**a, **b}}


def has_ok_step(paths: Paths) -> Bools:
    """Whether each path has a step that is valid and feasible."""
    ok: Bools = ((paths["valid"] == 1) & paths["feasible"]).any(axis=1)
    return ok


# ------------------------------------------------------------------------------------------------
# Algorithm 1


def trace_paths(
    problem: Problem, instance: Ints, endpoints: Endpoints, oracle: Oracle
) -> Paths | None:
    """Traces the latent lines of some instances to their endpoints.

    Where corrected lines have no ok step, lines that are only projected are tried.
    """
    paths = _trace_lines(problem, instance, endpoints, oracle)
    if paths is None or not len(problem.system) or problem.search.enforce != "exact":
        return paths
    answered = paths["instance"][has_ok_step(paths)]
    left = ~np.isin(instance, [*answered, *oracle.infeasible])
    if not left.any():
        return paths
    lines = left[endpoints.instance]
    some = endpoints._replace(
        instance=(np.cumsum(left) - 1)[endpoints.instance[lines]],
        endpoint=endpoints.endpoint[lines],
    )
    again = _trace_lines(problem.with_search(enforce="naive"), instance[left], some, oracle)
    return paths if again is None else _replaced(paths, again)


def _replaced(paths: Paths, other: Paths) -> Paths:
    """The paths, those of instances that `other` has an ok step for taken from there."""
    better = other["instance"][has_ok_step(other)]
    mine, theirs = ~np.isin(paths["instance"], better), np.isin(other["instance"], better)
    joined = {
        name: np.concatenate([part[mine], other[name][theirs]]) for name, part in paths.items()
    }
    order = np.argsort(joined["instance"], kind="stable")
    return {name: part[order] for name, part in joined.items()}


def _trace_lines(
    problem: Problem, instance: Ints, endpoints: Endpoints, oracle: Oracle
) -> Paths | None:
    """Traces all lines once: z = (1 - tau) z_x + tau mu, decoded, corrected, projected, queried."""
    if not len(endpoints.instance):
        return None
    decoder, originals = problem.fitted.decoder, problem.instances.cells[instance]
    fixed, excluded = _category_limits(problem.system, originals)
    label_code = problem.instances.label_code[instance]
    encoded = decoder.encode_instances(problem.schema, originals, label_code, fixed, excluded)
    start, endpoint = endpoints.instance, endpoints.endpoint
    label = endpoints.label[endpoint]
    copied = frozen_category_lines(problem, encoded, start, label)
    own = len(start)  # a line and its frozen-category copy end in one row
    start, endpoint, label = (
        np.concatenate([part, part[copied]]) for part in (start, endpoint, label)
    )
    lines = Lines(start, endpoint, np.arange(len(start)) >= own, endpoints.z, label)
    if problem.schema.shape is not None and not decoder.follows_paper:
        encoded, lines = dense_lines(decoder, encoded, lines)
    correct: Correct | None = None
    if len(problem.system) and problem.search.enforce != "naive":
        correct = LatentCorrection(problem, encoded, lines)
    end_steps = _end_steps(
        problem, instance[start[:own]], endpoints, endpoint[:own], oracle, correct
    )
    traced = trace(
        decoder,
        encoded,
        lines,
        _start_steps(problem, instance[start], encoded, lines, oracle),
        end_steps.take(np.r_[np.arange(own), copied]),
        lambda tau, cells, line: oracle.evaluate(cells, instance[start[line]], tau),
        correct=correct,
        steps=problem.search.steps,
        stable=problem.search.stable,
        refined=bool(set(problem.search.picks) - {"last"}),
        weights=problem.weights,
    )
    paths: Paths = {**traced.steps._asdict(), **traced._asdict()}
    del paths["steps"], paths["lines"]
    paths["instance"] = instance[start[traced.lines]]
    paths["prototype"] = endpoints.prototype[endpoint[traced.lines]]
    shape = traced.steps.tau.shape
    density = oracle.density(
        traced.steps.reshape(shape[0] * shape[1]), np.repeat(paths["instance"], shape[1])
    )
    paths["density"] = density.reshape(shape)
    own_cells = problem.instances.cells[paths["instance"]][:, None]
    paths["distance"] = problem.schema.gaps(own_cells, paths["cells"]) @ problem.weights
    return paths


def _category_limits(system: System, originals: Floats) -> tuple[Ints, Bools]:
    """Constraints on single columns as fixed and excluded states of the category blocks."""
    schema = system.schema
    states = schema.states(originals)
    fixed = np.full(states.shape, -1, dtype=np.int64)
    excluded = np.zeros((len(originals), sum(schema.block_states)), dtype=bool)
    if not len(system):
        return fixed, excluded
    domains = system.domains(originals)
    begin = 0
    for block, ((feature, _, _), count) in enumerate(
        zip(schema.blocks, schema.block_states, strict=True)
    ):
        pinned = domains.pinned[:, feature]
        fixed[pinned, block] = states[pinned, block]
        allowed = domains.allowed.get(feature)
        if allowed is not None:
            known = len(schema.features[feature].categories)
            excluded[:, begin : begin + known] = ~allowed[:, :known]
            if count > known:
                excluded[:, begin + known] = ~allowed[:, -2]  # missing
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
    known = problem.instances
    cells = known.cells[instance]
    reached = known.target_probability(known.probability[instance], instance)
    valid = np.zeros(len(instance), dtype=np.int8)
    feasible = problem.system.feasible(encoded.cells, encoded.cells)[lines.instance]
    return Steps(tau, cells, known.label_code[instance], valid, feasible, reached)


def _end_steps(
    problem: Problem,
    instance: Ints,
    endpoints: Endpoints,
    endpoint: Ints,
    oracle: Oracle,
    correct: Correct | None,
) -> Steps:
    """Step 1 of each line: a prototype as judged at `fit`, queried again where it is moved."""
    tau, lines = np.ones(len(endpoint)), np.arange(len(endpoint))
    cells = corrected = endpoints.cells[endpoint]
    if correct is not None:
        z = endpoints.z[torch.as_tensor(endpoint, device=endpoints.z.device)]
        corrected = correct(tau, z, cells, lines)
    projected, feasible = oracle.project(corrected, instance)
    valid, probability = endpoints.valid[endpoint], endpoints.probability[endpoint]
    predicted = np.where(valid, endpoints.label[endpoint], -1)
    if problem.confidence is not None:
        valid = valid & (probability >= problem.confidence)
    steps = Steps(tau, projected, predicted, valid.astype(np.int8), feasible, probability)
    # At `fit` a prototype was judged for its own label, not for being another than the original,
    # nor for how usual it is.
    again = rows_differ(projected, cells) | (problem.instances.target_code[instance] < 0)
    rows = lines if problem.plausibility is not None else np.flatnonzero(again)
    if len(rows):
        steps.write(rows, oracle.query(projected[rows], feasible[rows], instance[rows], tau[rows]))
    return steps


# ------------------------------------------------------------------------------------------------
# Minimal rows


def minimal_rows(
    problem: Problem,
    instance: Ints,
    starts: Starts,
    known: Mapping[str, MinimalRows],
    kept: MinimalRows | None,
    paths: Paths | None,
    oracle: Oracle,
) -> tuple[dict[str, MinimalRows], Candidates]:
    """Makes starts minimal: the closest of each instance is `nearest`, different ones are `best`.

    Instances whose rows are known are not searched for. Ways of `best` that are kept stay; others
    are added to them.

    Rows of `best` keep a margin and a floor where a start of the instance does; else a margin;
    where no start has one, `nearest` is given, marked.

    Returns:
        The rows by pick, and all rows that were made minimal.
    """
    picks, n_starts = problem.search.picks, problem.search.n_starts
    left = {
        pick: np.setdiff1d(instance, known[pick].instance if pick in known else [])
        for pick in ("nearest", "best")
    }
    some = starts.take(np.isin(starts.instance, left["nearest"]))
    parts = [_WorkingRows.of(some.closest("nearest", n_starts), margin=False, floor=False)]
    if "best" in picks:
        parts += _starts_of_best(problem, left["best"], starts, oracle)
    working = _WorkingRows.join(parts)
    working = working._replace(cells=_made(problem, oracle, working, minimise))
    chosen = _WorkingRows.join([_closest(problem, working), _different(problem, working)])
    chosen = chosen._replace(cells=_made(problem, oracle, chosen, settle))
    nearest = _with_best_step(problem, left["nearest"], chosen.take(~chosen.margin), paths)
    best = _different(problem, chosen, kept)  # what was made smaller may be alike now
    found = {"nearest": nearest}
    if "best" in picks:
        # Where no row has a margin, `nearest` is the best that was found.
        if "nearest" in known:
            nearest = _WorkingRows.join([nearest, _WorkingRows.known(known["nearest"])])
        lacking = nearest.take(np.isin(nearest.instance, np.setdiff1d(left["best"], best.instance)))
        found["best"] = _WorkingRows.join([best, lacking])
    picked = {}
    for pick, one in found.items():
        evaluated = _evaluated(problem, one, paths, oracle, marked=pick == "best")
        both = [known[pick], evaluated] if pick in known else [evaluated]
        picked[pick] = MinimalRows.join(both)
    every = _WorkingRows.join([working, chosen])
    return picked, Candidates(
        every.cells, every.instance, np.where(every.margin, "best", "nearest")
    )


def _starts_of_best(
    problem: Problem, instance: Ints, starts: Starts, oracle: Oracle
) -> list[_WorkingRows]:
    """Starts of `best`: those with a margin and above the floor; without the floor where none is.

    Where no start of an instance will do, many more sampled rows are tried.
    """
    some = starts.take(np.isin(starts.instance, instance))
    sure, usual = _sure_and_usual(some, oracle)
    left = np.setdiff1d(instance, [*some.instance[usual], *oracle.infeasible])
    if len(left) and problem.schema.shape is None:
        near = near_samples(problem, left, oracle, WIDER)
        more = Starts.join([Starts.of(left[near.instance], near.steps, near.distance)])
        some = Starts.join([some, more])
        sure, usual = _sure_and_usual(some, oracle)
    only_sure = sure & ~np.isin(some.instance, some.instance[usual])
    return [
        _WorkingRows.of(
            some.take(rows).closest("best", problem.search.n_starts), margin=True, floor=floor
        )
        for rows, floor in ((usual, True), (only_sure, False))
    ]


def _sure_and_usual(starts: Starts, oracle: Oracle) -> tuple[Bools, Bools]:
    """Which starts have a margin, and which of these are above the floor as well."""
    sure = oracle.has_margin(starts.steps, starts.instance)
    usual = sure.copy()
    usual[sure] = oracle.density(starts.steps.take(sure), starts.instance[sure]) >= RARE
    return sure, usual


class _WorkingRows(NamedTuple):
    """Rows being made minimal, and what is asked of each.

    Attributes:
        cells: The rows.
        instance: The instance of each.
        margin: Rows that must keep a margin as well as being ok.
        floor: Rows that must not be too unusual either.
    """

    cells: Floats
    instance: Ints
    margin: Bools
    floor: Bools

    @classmethod
    def of(cls, starts: Starts, *, margin: bool, floor: bool) -> _WorkingRows:
        count = len(starts.instance)
        return cls(
            starts.steps.cells, starts.instance, np.full(count, margin), np.full(count, floor)
        )

    @classmethod
    def known(cls, rows: MinimalRows) -> _WorkingRows:
        no = np.zeros(len(rows.instance), dtype=bool)
        return cls(rows.steps.cells, rows.instance, no, no)

    @classmethod
    def join(cls, parts: Sequence[_WorkingRows]) -> _WorkingRows:
        return join_rows(parts)

    def take(self, rows: Bools | Ints) -> _WorkingRows:
        return take_rows(self, rows)


def _made(problem: Problem, oracle: Oracle, working: _WorkingRows, make: Any) -> Floats:
    """The rows after `minimise` or `settle`."""
    if problem.schema.shape is not None or not len(working.instance):
        return working.cells  # pixels are not undone one by one: that leaves noise, not an image
    cells: Floats = make(
        working.cells,
        problem.instances.cells[working.instance],
        lambda rows, at: oracle.accepts(
            rows, working.instance[at], working.margin[at], working.floor[at]
        ),
        problem.schema,
        problem.weights,
    )
    return cells


def _closest(problem: Problem, working: _WorkingRows) -> _WorkingRows:
    """The closest row of each instance among those without a margin."""
    some = working.take(~working.margin)
    far = problem.distances(some.cells, some.instance)
    return some.take(first_of_each(some.instance, far))


def _different(
    problem: Problem, working: _WorkingRows, kept: MinimalRows | None = None
) -> _WorkingRows:
    """The closest rows with a margin that are different ways, at most `n_best` of each instance.

    Two ways are different if neither changes all the features the other changes, or if they differ
    in a category. Rows that are kept come first.
    """
    schema, working = problem.schema, working.take(working.margin)
    last = np.ones(len(working.instance), dtype=bool)
    if kept is not None:
        working = _WorkingRows.join([_WorkingRows.known(kept), working])
        last = np.r_[np.zeros(len(kept.instance), dtype=bool), last]
    changed = schema.changed(problem.instances.cells[working.instance], working.cells)
    left = np.lexsort((problem.distances(working.cells, working.instance), last, working.instance))
    chosen = [left[:0]]
    for _ in range(problem.search.n_best):
        first = left[np.unique(working.instance[left], return_index=True)[1]]  # the closest of each
        chosen.append(first)
        theirs = first[np.searchsorted(working.instance[first], working.instance[left])]
        a, b = changed[left], changed[theirs]
        apart = (a & ~b).any(axis=1) & (b & ~a).any(axis=1)
        levels = schema.changed(working.cells[left], working.cells[theirs])[:, schema.categorical]
        left = left[apart | levels.any(axis=1)]
    return working.take(np.concatenate(chosen))


def _with_best_step(
    problem: Problem, instance: Ints, working: _WorkingRows, paths: Paths | None
) -> _WorkingRows:
    """The rows, and the best step of the paths for instances that have none."""
    left = np.setdiff1d(instance, working.instance)
    if paths is None or not len(left):
        return working
    path = np.flatnonzero(np.isin(paths["instance"], left))
    originals = problem.instances.cells[paths["instance"][path]][:, None]
    row, step = np.nonzero(problem.schema.changed(originals, paths["cells"][path]).any(axis=2))
    path = path[row]
    owner, likely = paths["instance"][path], np.nan_to_num(paths["probability"][path, step])
    ok = (paths["valid"][path, step] == 1) & paths["feasible"][path, step]
    chosen = first_of_each(owner, ~ok, ~paths["feasible"][path, step], -likely)
    no = np.zeros(len(chosen), dtype=bool)
    more = _WorkingRows(paths["cells"][path[chosen], step[chosen]], owner[chosen], no, no)
    return _WorkingRows.join([working, more])


def _evaluated(
    problem: Problem, working: _WorkingRows, paths: Paths | None, oracle: Oracle, *, marked: bool
) -> MinimalRows:
    """The rows of a pick, checked and queried once more, cheapest first, and what they lack."""
    order = np.lexsort((problem.distances(working.cells, working.instance), working.instance))
    cells, instance = working.cells[order], working.instance[order]
    originals = problem.instances.cells[instance]
    feasible = problem.system.feasible(cells, originals)
    feasible &= problem.schema.derivable(cells, originals)
    steps = oracle.query(cells, feasible, instance)
    density = oracle.density(steps, instance)
    blank = np.full(len(instance), "", dtype=object)
    prototype = _closest_prototypes(problem, cells, instance, paths)
    rows = MinimalRows(instance, places_in_groups(instance), prototype, steps, density, blank)
    return with_marks(rows, oracle) if marked else rows


def with_marks(rows: MinimalRows, oracle: Oracle) -> MinimalRows:
    """Marks rows of `best` by what they lack: `edge` without a margin, `unusual` if too rare."""
    words = np.array([["", "unusual"], ["edge", "edge, unusual"]], dtype=object)
    edge = ~oracle.has_margin(rows.steps, rows.instance)
    return rows._replace(mark=words[edge.astype(np.int64), (rows.density < RARE).astype(np.int64)])


def _closest_prototypes(
    problem: Problem, cells: Floats, instance: Ints, paths: Paths | None
) -> Ints:
    """The prototype of the path whose first ok step is closest to each row; -1 for none.

    Steps of the grid are compared: whether `first` is refined depends on the picks.
    """
    prototype = np.full(len(instance), -1, dtype=np.int64)
    if paths is None:
        return prototype
    row, path = matches(instance, paths["instance"])
    begin = np.where(paths["begin"] >= 0, paths["begin"], paths["first"])
    firsts = paths["cells"][path, begin[path]]
    far = problem.schema.gaps(cells[row], firsts) @ problem.weights
    chosen = first_of_each(row, far)
    prototype[row[chosen]] = paths["prototype"][path[chosen]]
    return prototype
