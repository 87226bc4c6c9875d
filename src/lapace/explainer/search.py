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
    block_states,
    rows_differ,
    states_of,
    trace,
)
from lapace.result import Explanation

__all__ = ["Contradictions", "Paths", "Searched", "explain", "search"]

Progress: TypeAlias = Callable[[str, int, int], None]

ROWS = 50_000  # rows evaluated at a time, so that memory does not grow with the query


class Paths(NamedTuple):
    """Paths of some instances: `TracedPaths` with their instance and prototype."""

    instance: Ints
    prototype: Ints
    lines: Ints
    steps: Steps
    density: Floats
    first: Ints
    middle: Ints
    last: Ints
    crossings: Ints
    sparse: Ints

    def take(self, rows: Bools | Ints) -> Paths:
        """A selection of the paths."""
        kept = {name: column[rows] for name, column in self.columns().items()}
        return Paths(steps=self.steps.take(rows), **kept)

    def replaced(self, instance: Ints, other: Paths) -> Paths:
        """The paths, those of some instances taken from `other`, in order of instances."""
        mine = self.take(~np.isin(self.instance, instance))
        theirs = other.take(np.isin(other.instance, instance))
        steps = Steps.join([mine.steps, theirs.steps], axis=0)
        columns = {
            name: np.concatenate([column, getattr(theirs, name)])
            for name, column in mine.columns().items()
        }
        return Paths(steps=steps, **columns).take(np.argsort(columns["instance"], kind="stable"))

    def columns(self) -> dict[str, NDArray[Any]]:
        """All but the steps, by name."""
        return {name: getattr(self, name) for name in self._fields if name != "steps"}


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
        answered = paths.instance[paths.steps.ok.any(axis=1)]
        left = np.setdiff1d(paths.instance, [*answered.tolist(), *found.infeasible])
        if not len(left):
            break
        again = _trace_lines(other, left, found.infeasible, thorough)
        if again.paths is not None:
            better = again.paths.instance[again.paths.steps.ok.any(axis=1)]
            paths = paths.replaced(better, again.paths)
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
    ends = find_endpoints(problem, instance, oracle)
    start, endpoint = ends.instance, ends.endpoint
    if not len(start):
        return Searched(None, frozenset(oracle.infeasible), oracle.seconds)
    label = ends.label[endpoint]
    copied = frozen_category_lines(problem, encoded, start, label)
    start, endpoint, label = (
        np.concatenate([part, part[copied]]) for part in (start, endpoint, label)
    )
    frozen = np.arange(len(start)) >= len(start) - len(copied)
    oracle.instance, oracle.label = instance[start], label
    first_step = _start_steps(oracle, encoded, start)
    lines = Lines(start, endpoint, frozen, ends.z, label, first_step, first_step)
    correct = None
    if len(problem.system) and problem.search.enforce != "naive":
        correction = LatentCorrection(problem, encoded, lines, thorough)

        def correct(tau: Floats, z: torch.Tensor, rows: Floats, lines: Ints) -> Floats:
            with oracle.timed("constraints"):
                return correction(tau, z, rows, lines)

    traced = trace(
        decoder,
        encoded,
        lines._replace(end=_end_steps(oracle, ends, endpoint, correct)),
        oracle,
        correct=correct,
        steps=problem.search.steps,
        stable=problem.search.stable,
        every_step=problem.search.detail == "path",
        weights=problem.weights,
    )
    paths = Paths(
        instance[start[traced.lines]], ends.prototype[endpoint[traced.lines]], *traced, traced.first
    )
    if problem.search.sparse:
        paths = _with_sparse(oracle, paths)
    return Searched(paths, frozenset(oracle.infeasible), oracle.seconds)


def _with_sparse(oracle: Oracle, paths: Paths) -> Paths:
    """The paths with one more step each: their nearest row with changes undone."""
    problem, lines = oracle.problem, paths.lines
    schema, decoder, weights = problem.schema, problem.fitted.decoder, problem.weights
    originals = problem.instances.cells[paths.instance]
    count, size = paths.steps.tau.shape
    ok = paths.steps.ok
    cost = np.where(ok, schema.gaps(originals[:, None], paths.steps.cells) @ weights, np.inf)
    start = np.where(ok.any(axis=1), cost.argmin(axis=1), paths.first)
    nearest = paths.steps.take(np.arange(count), start)

    def costs(a: Floats, b: Floats) -> Floats:
        # A change that costs nothing is a change all the same.
        return np.where(schema.changed(a, b), np.maximum(schema.gaps(a, b) * weights, 1e-12), 0.0)

    def density(cells: Floats, rows: Ints) -> Floats:
        return decoder.density(schema, cells, oracle.label[lines[rows]])

    def percentile(cells: Floats, rows: Ints) -> Floats:
        # Undoing one category alone can make an unseen pair of categories, which the tree notices.
        typical = decoder.category_percentile(schema, cells, oracle.label[lines[rows]])
        return np.minimum(density(cells, rows), typical)

    best = undo_changes(
        nearest, originals, costs, lambda cells, rows: oracle.check(cells, lines[rows]), percentile
    )
    dense = density(best.cells, np.arange(count))
    return paths._replace(
        steps=Steps.join([paths.steps, best.reshape(count, 1)]),
        density=np.concatenate([paths.density, dense[:, None]], axis=1),
        sparse=np.where(nearest.ok, size, paths.first),
    )


def _category_limits(system: System, originals: Floats) -> tuple[Ints, Bools]:
    """Constraints on single columns as fixed and excluded states of the category blocks."""
    schema = system.schema
    states = states_of(schema, originals)
    fixed = np.full(states.shape, -1, dtype=np.int64)
    excluded = np.zeros((len(originals), sum(block_states(schema))), dtype=bool)
    if not len(system):
        return fixed, excluded
    domains = system.domains(originals)
    begin = 0
    for block, ((feature, _, _), count) in enumerate(
        zip(schema.blocks, block_states(schema), strict=True)
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


def _end_steps(oracle: Oracle, ends: Endpoints, endpoint: Ints, correct: Correct | None) -> Steps:
    """Step 1 of each line: a prototype as judged at `fit`; queried anew where constraints move it."""
    problem = oracle.problem
    cells, valid = ends.cells[endpoint], ends.valid[endpoint]
    probability = ends.probability[endpoint]
    predicted = np.where(valid, oracle.label, -1)
    if problem.confidence is not None:
        valid = valid & (probability >= problem.confidence)
    lines, tau = np.arange(len(endpoint)), np.ones(len(endpoint))
    corrected = cells
    if correct is not None:
        z = ends.z[torch.as_tensor(endpoint, device=ends.z.device)]
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
        return _explanation(problem, columns.filled(), infeasible, seconds)


def _added(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    return {name: a.get(name, 0.0) + b.get(name, 0.0) for name in {**a, **b}}


class _PathColumns:
    """The arrays of all paths, allocated once at full size, so that no chunk is held twice."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        tried = problem.tried  # each may have one sampled endpoint beside the prototypes
        self.most = int(reachable_prototypes(problem, tried).sum()) + len(tried)
        self.count = 0
        self.columns: dict[str, NDArray[Any]] = {}

    def add(self, paths: Paths) -> None:
        """Writes the next paths."""
        originals = self.problem.instances.cells[paths.instance][:, None]
        gaps = self.problem.schema.gaps(originals, paths.steps.cells)
        found = {
            **paths.steps._asdict(),
            **paths.columns(),
            "distance": gaps @ self.problem.weights,
        }
        if not self.columns:
            self.columns = {
                name: np.empty((self.most, *part.shape[1:]), dtype=part.dtype)
                for name, part in found.items()
            }
        rows = slice(self.count, self.count + len(paths.instance))
        for name, column in self.columns.items():
            column[rows] = found[name]
        self.count = rows.stop

    def filled(self) -> dict[str, NDArray[Any]]:
        """The arrays as far as they are filled; of no paths where there are none."""
        if not self.columns:
            none, step = np.empty(0, dtype=np.int64), np.empty((0, 1))
            cells = np.empty((0, 1, len(self.problem.schema.features)))
            of = Steps(step, cells, none[:, None], step.astype(np.int8), step > 0, step, step)
            self.add(Paths(none, none, none, of, step, none, none, none, none, none))
        return {name: column[: self.count] for name, column in self.columns.items()}


def _explanation(
    problem: Problem,
    columns: dict[str, NDArray[Any]],
    infeasible: set[int],
    seconds: dict[str, float],
) -> Explanation:
    known, fitted = problem.instances, problem.fitted
    status, reason = _statuses(problem, columns, infeasible)
    picks = ("first", "middle", "last", *(("sparse",) if problem.search.sparse else ()))
    picked = {name: columns[name] for name in picks}
    for name in ("first", "middle", "last", "sparse", "lines"):
        del columns[name]
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
    problem: Problem, columns: dict[str, NDArray[Any]], infeasible: set[int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The status of each instance, and the reason in words."""
    known, labels = problem.instances, problem.fitted.labels
    count, contradictions = len(known), Contradictions(problem.system)
    instance, prototype = columns["instance"], columns["prototype"] >= 0
    ok = ((columns["valid"] == 1) & columns["feasible"]).any(axis=1)
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


def _labels_reached(problem: Problem, columns: dict[str, NDArray[Any]], mine: Bools) -> str:
    """The labels that `first` has on some paths, most frequent first."""
    paths = np.flatnonzero(mine)
    codes = Counter(columns["predicted"][paths, columns["first"][paths]].tolist())
    return " or ".join(f"'{problem.fitted.labels[code]}'" for code, _ in codes.most_common())
