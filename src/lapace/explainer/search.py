"""From a problem to an `Explanation`: lines to the endpoints, traced in few large calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints
from lapace.constraints import Constraint, System
from lapace.explainer.endpoints import (
    Endpoints,
    find_endpoints,
    frozen_category_lines,
    reachable_prototypes,
)
from lapace.explainer.minimal import undo_changes
from lapace.explainer.oracle import LatentCorrection, Oracle
from lapace.explainer.problem import Problem
from lapace.model import few_threads
from lapace.paths import (
    Correct,
    EncodedInstances,
    Lines,
    Steps,
    TracedPaths,
    rows_differ,
    trace,
)
from lapace.result import Explanation

__all__ = ["Contradictions", "Paths", "Searched", "explain", "has_ok_step", "search"]

Progress: TypeAlias = Callable[[str, int, int], None]

ROWS = 50_000  # rows evaluated at a time, so that memory does not grow with the query


Paths: TypeAlias = dict[str, NDArray[Any]]  # fields of `Steps` and `TracedPaths`, one row a path


def _replaced(paths: Paths, instance: Ints, other: Paths) -> Paths:
    """The paths, those of some instances taken from `other`, in order of instances."""
    mine = ~np.isin(paths["instance"], instance)
    theirs = np.isin(other["instance"], instance)
    joined = {
        name: np.concatenate([part[mine], other[name][theirs]]) for name, part in paths.items()
    }
    order = np.argsort(joined["instance"], kind="stable")
    return {name: part[order] for name, part in joined.items()}


def has_ok_step(paths: Paths) -> Bools:
    """Whether each path has a step that is valid and feasible."""
    ok: Bools = ((paths["valid"] == 1) & paths["feasible"]).any(axis=1)
    return ok


class Searched(NamedTuple):
    """What a search found.

    Attributes:
        paths: The paths; None where no endpoint can be reached.
        infeasible: Instances proved to have no feasible row.
        seconds: Time spent in the classifier and on constraints, by name.
    """

    paths: Paths | None
    infeasible: frozenset[int]
    seconds: dict[str, float]


def search(problem: Problem, instance: Ints) -> Iterator[tuple[int, Searched]]:
    """Searches for some instances, chunk by chunk; yields how many are done, and what was found."""
    size = max(1, ROWS // (problem.search.steps * max(1, len(problem.fitted.prototypes))))
    for begin in range(0, len(instance), size):
        chunk = instance[begin : begin + size]
        yield begin + len(chunk), _search_chunk(problem, chunk)


def _search_chunk(problem: Problem, instance: Ints) -> Searched:
    """Searches along corrected lines.

    If one correction finds no ok step, retries uncorrected, then with up to 20 corrections, so that
    `exact` finds what the other ways of enforcing constraints find.
    """
    found = _trace_lines(problem, instance, frozenset())
    if found.paths is None or problem.search.enforce != "exact" or not len(problem.system):
        return found
    for other, thorough in ((problem.with_search(enforce="naive"), False), (problem, True)):
        paths: Paths = found.paths
        answered = paths["instance"][has_ok_step(paths)]
        left = np.setdiff1d(paths["instance"], [*answered.tolist(), *found.infeasible])
        if not len(left):
            break
        again = _trace_lines(other, left, found.infeasible, thorough)
        if again.paths is not None:
            better = again.paths["instance"][has_ok_step(again.paths)]
            paths = _replaced(paths, better, again.paths)
        found = Searched(paths, again.infeasible, _added(found.seconds, again.seconds))
    return found


def _trace_lines(
    problem: Problem, instance: Ints, infeasible: frozenset[int], thorough: bool = False
) -> Searched:
    """Traces the lines of some instances to all their endpoints.

    Args:
        problem: The problem.
        instance: Positions of the instances.
        infeasible: Instances known to have no feasible row.
        thorough: Correct latent points many times though a projection follows.
    """
    decoder, known = problem.fitted.decoder, problem.instances
    fixed, excluded = _category_limits(problem.system, known.cells[instance])
    encoded = decoder.encode_instances(
        problem.schema, known.cells[instance], known.label_code[instance], fixed, excluded
    )
    oracle = Oracle(problem, instance[:0], instance[:0], set(infeasible))
    endpoints = find_endpoints(problem, instance, oracle)
    start, endpoint = endpoints.instance, endpoints.endpoint
    if not len(start):
        return Searched(None, frozenset(oracle.infeasible), oracle.seconds)
    label = endpoints.label[endpoint]
    copied = frozen_category_lines(problem, encoded, start, label)
    start, endpoint, label = (
        np.concatenate([part, part[copied]]) for part in (start, endpoint, label)
    )
    frozen = np.arange(len(start)) >= len(start) - len(copied)
    oracle.instance, oracle.label = instance[start], label
    first_step = _start_steps(oracle, encoded, start)
    lines = Lines(start, endpoint, frozen, endpoints.z, label, first_step, first_step)
    correct = None
    if len(problem.system) and problem.search.enforce != "naive":
        correction = LatentCorrection(problem, encoded, lines, thorough)

        def correct(tau: Floats, z: torch.Tensor, rows: Floats, lines: Ints) -> Floats:
            with oracle.timed("constraints"):
                return correction(tau, z, rows, lines)

    traced = trace(
        decoder,
        encoded,
        lines._replace(end=_end_steps(oracle, endpoints, endpoint, correct)),
        oracle,
        correct=correct,
        steps=problem.search.steps,
        stable=problem.search.stable,
        every_step=problem.search.detail == "path",
        weights=problem.weights,
    )
    if problem.search.sparse:
        traced, sparse = _with_sparse(oracle, traced)
    paths: Paths = {**traced.steps._asdict(), **traced._asdict()}
    del paths["steps"], paths["lines"]
    paths["instance"] = instance[start[traced.lines]]
    paths["prototype"] = endpoints.prototype[endpoint[traced.lines]]
    originals = known.cells[paths["instance"]]
    paths["distance"] = problem.schema.gaps(originals[:, None], paths["cells"]) @ problem.weights
    if problem.search.sparse:
        paths["sparse"] = sparse
    return Searched(paths, frozenset(oracle.infeasible), oracle.seconds)


def _with_sparse(oracle: Oracle, paths: TracedPaths) -> tuple[TracedPaths, Ints]:
    """The paths with one more step, the nearest row with changes undone; and `sparse`."""
    problem, lines, steps = oracle.problem, paths.lines, paths.steps
    schema, decoder, weights = problem.schema, problem.fitted.decoder, problem.weights
    originals, labels = problem.instances.cells[oracle.instance[lines]], oracle.label[lines]
    count, size = steps.tau.shape
    cost = np.where(steps.ok, schema.gaps(originals[:, None], steps.cells) @ weights, np.inf)
    start = np.where(steps.ok.any(axis=1), cost.argmin(axis=1), paths.first)
    nearest = steps.take(np.arange(count), start)

    def costs(a: Floats, b: Floats) -> Floats:
        # A change that costs nothing is a change all the same.
        return np.where(schema.changed(a, b), np.maximum(schema.gaps(a, b) * weights, 1e-12), 0.0)

    def percentile(cells: Floats, rows: Ints) -> Floats:
        # Undoing one category alone can make an unseen pair of categories, which the tree notices.
        typical = decoder.category_percentile(schema, cells, labels[rows])
        return np.minimum(decoder.density(schema, cells, labels[rows]), typical)

    best = undo_changes(
        nearest, originals, costs, lambda cells, rows: oracle.check(cells, lines[rows]), percentile
    )
    density = decoder.density(schema, best.cells, labels)[:, None]
    traced = paths._replace(
        steps=Steps.join([steps, best.reshape(count, 1)]),
        density=np.concatenate([paths.density, density], axis=1),
    )
    return traced, np.where(nearest.ok, size, paths.first)


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


def _start_steps(oracle: Oracle, encoded: EncodedInstances, start: Ints) -> Steps:
    """Step 0 of each line: the instance's row copied, which does not have the target."""
    problem, decoder = oracle.problem, oracle.problem.fitted.decoder
    count = len(start)
    tau, no = np.zeros(count), np.zeros(count, dtype=bool)
    if decoder.follows_paper:  # the paper's paths start at the reconstruction
        z = encoded.z[torch.as_tensor(start, device=encoded.z.device)]
        rows = decoder.path_rows(encoded, start, tau, z, oracle.label, no)
        return oracle(tau, rows, np.arange(count))
    feasible = problem.system.feasible(encoded.cells, encoded.cells)[start]
    known, position = problem.instances, oracle.instance
    each, original = known.probability[position], known.label_code[position]
    lines = np.arange(count)
    reached = np.where(
        known.target_code[position] < 0, 1.0 - each[lines, original], each[lines, oracle.label]
    )
    return Steps.of(tau, encoded.cells[start], original, no, feasible, reached)


def _end_steps(
    oracle: Oracle, endpoints: Endpoints, endpoint: Ints, correct: Correct | None
) -> Steps:
    """Step 1 of each line: a prototype as judged at `fit`, queried again where it is moved."""
    problem = oracle.problem
    cells, valid = endpoints.cells[endpoint], endpoints.valid[endpoint]
    probability = endpoints.probability[endpoint]
    predicted = np.where(valid, oracle.label, -1)
    if problem.confidence is not None:
        valid = valid & (probability >= problem.confidence)
    lines, tau = np.arange(len(endpoint)), np.ones(len(endpoint))
    corrected = cells
    if correct is not None:
        z = endpoints.z[torch.as_tensor(endpoint, device=endpoints.z.device)]
        corrected = correct(tau, z, cells, lines)
    projected, feasible = oracle.project(corrected, lines)
    steps = Steps.of(tau, projected, predicted, valid, feasible, probability)
    moved = np.flatnonzero(rows_differ(projected, cells))
    # At `fit` a prototype was judged for its own label, not for being another than the original.
    any_other = problem.instances.target_code[oracle.instance] < 0
    anew = np.union1d(moved, np.flatnonzero(any_other))
    if len(anew):
        steps.write(anew, oracle(tau[anew], projected[anew], lines[anew]))
    if len(moved):
        decoder = problem.fitted.decoder
        density = decoder.density(problem.schema, cells[moved], oracle.label[moved])
        steps.density_before[moved] = density
    return steps


# ------------------------------------------------------------------------------------------------
# The explanation


def explain(problem: Problem, progress: Progress | None = None) -> Explanation:
    """Everything found for all instances of a problem.

    Args:
        problem: The problem.
        progress: Called as `progress("explaining", done, total)`.
    """
    begin = perf_counter()
    infeasible: set[int] = set()
    seconds: dict[str, float] = {}
    columns = _PathColumns(problem)
    with few_threads(problem.fitted.decoder.model.shape):
        for done, found in search(problem, problem.tried):
            infeasible |= found.infeasible
            seconds = _added(seconds, found.seconds)
            if found.paths is not None:
                columns.add(found.paths)
            if progress:
                progress("explaining", done, len(problem.tried))
        seconds["total"] = perf_counter() - begin
        return _explanation(
            problem, columns.filled(len(problem.schema.features)), infeasible, seconds
        )


def _added(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    return {name: a.get(name, 0.0) + b.get(name, 0.0) for name in {**a, **b}}


class _PathColumns:
    """The arrays of all paths, allocated once at full size, so that no chunk is held twice."""

    def __init__(self, problem: Problem) -> None:
        tried = problem.tried  # each may have one sampled endpoint beside the prototypes
        self.most = int(reachable_prototypes(problem, tried).sum()) + len(tried)
        self.count = 0
        self.columns: Paths = {}

    def add(self, paths: Paths) -> None:
        """Writes the next paths."""
        if not self.columns:
            self.columns = {
                name: np.empty((self.most, *part.shape[1:]), dtype=part.dtype)
                for name, part in paths.items()
            }
        rows = slice(self.count, self.count + len(paths["instance"]))
        for name, column in self.columns.items():
            column[rows] = paths[name]
        self.count = rows.stop

    def filled(self, features: int) -> Paths:
        """The arrays as far as they are filled; of no paths where there are none."""
        if not self.columns:
            none, step = np.empty(0, dtype=np.int64), np.empty((0, 1))
            cells, index = np.empty((0, 1, features)), none[:, None]
            of = Steps(step, cells, index, step.astype(np.int8), step > 0, step, step)
            names = ("instance", "prototype", "first", "middle", "last", "crossings", "sparse")
            return {**of._asdict(), **dict.fromkeys(names, none), "density": step, "distance": step}
        return {name: column[: self.count] for name, column in self.columns.items()}


def _explanation(
    problem: Problem, columns: Paths, infeasible: set[int], seconds: dict[str, float]
) -> Explanation:
    known, fitted = problem.instances, problem.fitted
    status, reason = _statuses(problem, columns, infeasible)
    picks = ("first", "middle", "last", *(("sparse",) if problem.search.sparse else ()))
    picked = {name: columns[name] for name in picks}
    columns = {name: column for name, column in columns.items() if name not in (*picks, "sparse")}
    before = columns["density_before"]
    columns["density_before"] = np.where(np.isnan(before), columns["density"], before)
    labels = np.array([*fitted.labels, None], dtype=object)
    return Explanation(
        schema=problem.schema,
        template=known.reading.template,
        labels=fitted.labels,
        instances=known.cells,
        label=labels[known.label_code],
        target=labels[known.target_code],
        status=status,
        reason=reason,
        constraints=tuple(map(str, problem.system.constraints)),
        picked=picked,
        n_queries=problem.classifier.n_queries,
        ids=known.reading.ids,
        costs=problem.costs or None,
        confidence=problem.confidence,
        search=asdict(problem.search),
        seconds=seconds,
        request=problem.system.constraints,
        **cast(dict[str, Any], columns),
    )


class Contradictions:
    """Smallest contradictory sets of constraints, computed once per distinct relevant values."""

    def __init__(self, system: System) -> None:
        self.system = system
        named = {c for bound in system.bound for c in (*bound.columns, *bound.compared)}
        self.columns = np.array(sorted(named), dtype=np.int64)
        self.found: dict[bytes, tuple[Constraint, ...]] = {}

    def of(self, original: Floats) -> tuple[Constraint, ...]:
        """A smallest set of constraints that cannot hold together for an instance's row."""
        key = original[self.columns].tobytes()
        if key not in self.found:
            self.found[key] = self.system.contradiction(original)
        return self.found[key]


def _statuses(
    problem: Problem, columns: Paths, infeasible: set[int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The status of each instance, and the reason in words."""
    known, labels = problem.instances, problem.fitted.labels
    count, contradictions = len(known), Contradictions(problem.system)
    instance, prototype = columns["instance"], columns["prototype"] >= 0
    ok = has_ok_step(columns)
    paths = np.bincount(instance, weights=prototype, minlength=count).astype(np.int64)
    reached = np.bincount(instance, weights=ok & prototype, minlength=count).astype(np.int64)
    sampled = set(instance[ok & ~prototype].tolist())
    sure = f" with probability {problem.confidence:g}" if problem.confidence else ""
    under = " and satisfies the constraints" if len(problem.system) else ""
    found: list[tuple[str, str]] = []
    for i in range(count):
        code = known.target_code[i]
        target = f"'{labels[code]}'" if code >= 0 else "another label"
        if i in known.malformed:
            found.append(("malformed", known.malformed[i]))
        elif problem.already_target[i]:
            found.append(("already_target", f"The classifier already predicts {target}."))
        elif i in infeasible:
            named = contradictions.of(known.cells[i])
            listed = " and ".join(f"'{c}'" for c in named) or "the constraints"
            together = " together" if len(named) != 1 else ""
            text = f"For this instance {listed} cannot hold{together}: no row is feasible."
            found.append(("infeasible", text))
        elif reached[i] or i in sampled:
            if code < 0:
                target += f", {_labels_reached(problem, columns, ok & (instance == i))}"
            text = f"{reached[i]} of {paths[i]} paths lead to {target}."
            if not reached[i]:
                text = (
                    f"No path to a prototype leads to {target}{under}; one to a sampled endpoint "
                    "does."
                )
            found.append(("answered", text))
        else:
            text = f"No row of {paths[i]} paths is labelled {target}{sure}{under}."
            found.append(("none_found", text))
    return tuple(status for status, _ in found), tuple(reason for _, reason in found)


def _labels_reached(problem: Problem, columns: Paths, mine: Bools) -> str:
    """The labels that `first` has on some paths, most frequent first."""
    paths = np.flatnonzero(mine)
    codes = Counter(columns["predicted"][paths, columns["first"][paths]].tolist())
    return " or ".join(f"'{problem.fitted.labels[code]}'" for code, _ in codes.most_common())
