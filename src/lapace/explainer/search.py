"""From a problem to an `Explanation`: lines to the endpoints, traced in few large calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints, distinct
from lapace.budgets import BudgetError, current
from lapace.constraints import ChangeLimit, Constraint, System
from lapace.constraints.program import NODE_LIMIT
from lapace.explainer.advice import Advice, find_advice, stored_advice
from lapace.explainer.endpoints import (
    Endpoints,
    find_endpoints,
    frozen_category_lines,
    reachable_prototypes,
)
from lapace.explainer.oracle import LatentCorrection, Oracle
from lapace.explainer.own_endpoints import own_endpoints
from lapace.explainer.problem import Problem
from lapace.explainer.threads import QueryTurn, in_threads
from lapace.model import few_threads
from lapace.paths import (
    Correct,
    EncodedInstances,
    Lines,
    Steps,
    dense_lines,
    rows_differ,
    trace,
)
from lapace.result import Counterfactuals, Explanation

__all__ = [
    "CUT_SHORT",
    "Contradictions",
    "Paths",
    "Searched",
    "explain",
    "has_ok_step",
    "search",
    "with_rows",
]

Progress: TypeAlias = Callable[[str, int, int], None]

ROWS = 50_000  # rows evaluated at a time, so that memory does not grow with the query
CELLS = 5_000_000  # and cells, for tables as wide as images
CUT_SHORT = "This instance was not searched for to the end."  # ends the reason where it was not


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
        advice: The rows of `nearest` and `best`, by pick.
    """

    paths: Paths | None
    infeasible: frozenset[int]
    seconds: dict[str, float]
    advice: Mapping[str, Advice] = MappingProxyType({})


def search(problem: Problem, instance: Ints) -> Iterator[tuple[int, Searched]]:
    """Searches for some instances, chunk by chunk; yields how many are done, and what was found."""
    rows = min(ROWS, CELLS // len(problem.schema.features))
    grid = problem.search.steps if problem.search.detail == "path" else 2  # rows of a line at once
    endpoints = max(1, problem.search.n_endpoints, len(problem.fitted.prototypes))
    size = max(1, rows // (grid * endpoints))
    chunks = [instance[begin : begin + size] for begin in range(0, len(instance), size)]
    done = 0
    for chunk, found in zip(chunks, _searched(problem, chunks), strict=True):
        done += len(chunk)
        yield done, found


def _searched(problem: Problem, chunks: list[Ints]) -> Iterator[Searched]:
    """What is found for chunks of instances, in order, searched for by several threads.

    Whatever is budgeted is searched for by one.
    """
    threads = min(len(chunks), problem.threads)
    if threads < 2 or current() is not None or problem.max_queries is not None:
        yield from (_search_chunk(problem, chunk) for chunk in chunks)
        return
    turn = QueryTurn()
    problem = replace(problem, turn=turn)
    yield from in_threads(lambda chunk: _search_chunk(problem, chunk), chunks, threads, turn)


def _search_chunk(problem: Problem, instance: Ints) -> Searched:
    """Traces paths, then looks for `nearest` and `best` where they are wanted."""
    found = _find_paths(problem, instance)
    if found.paths is None or not {"nearest", "best"} & set(problem.search.picks):
        return found
    reached, seconds = np.unique(found.paths["instance"]), dict(found.seconds)
    advice = find_advice(problem, reached, found.paths, set(found.infeasible), seconds)
    found = found._replace(advice=advice, seconds=seconds)
    fewer = _with_fewer_changes(problem)
    answered = _answered(found)
    left = np.setdiff1d(reached, [*answered, *found.infeasible])
    if fewer is None or not len(left):
        return found
    # What changes fewer columns satisfies the limit too: so more is never harder to find than less.
    again = _search_chunk(fewer, left)
    better = _answered(again)
    return found._replace(
        advice={
            pick: Advice.join(
                rows.take(~np.isin(rows.instance, better)),
                (other := again.advice[pick]).take(np.isin(other.instance, better)),
            )
            for pick, rows in advice.items()
        },
        seconds=_added(seconds, again.seconds),
    )


def _answered(found: Searched) -> Ints:
    """Instances with an ok row, on a path or off it."""
    rows = [rows.instance[rows.steps.ok] for rows in found.advice.values()]
    if found.paths is not None:
        rows.append(found.paths["instance"][has_ok_step(found.paths)])
    return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *rows]))


def _with_fewer_changes(problem: Problem) -> Problem | None:
    """The problem with one change less allowed; None where their number is not limited."""
    constraints = list(problem.system.constraints)
    limits = [
        (k, c)
        for k, c in enumerate(constraints)
        if isinstance(c, ChangeLimit) and c.relation in ("<=", "<")
    ]
    if not limits:
        return None
    k, limit = min(limits, key=lambda pair: pair[1].count - (pair[1].relation == "<"))
    if limit.count - (limit.relation == "<") <= 1:
        return None
    constraints[k] = replace(limit, count=limit.count - 1)
    system = System.of(constraints, problem.schema, check=False)
    return replace(problem, system=system, nodes=problem.nodes.fresh())


def _find_paths(problem: Problem, instance: Ints) -> Searched:
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
    find = own_endpoints if problem.search.n_endpoints else find_endpoints
    endpoints = find(problem, instance, oracle)
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
    if problem.search.path == "dense" and not decoder.follows_paper:
        encoded, lines = dense_lines(decoder, encoded, lines)
    correct = None
    if len(problem.system) and problem.search.enforce != "naive":
        correction = LatentCorrection(problem, encoded, lines, thorough)

        def correct(tau: Floats, z: torch.Tensor, rows: Floats, lines: Ints) -> Floats:
            with oracle.timed("constraints"):
                return correction(tau, z, rows, lines)

    own = len(start) - len(copied)  # a line and its frozen-category copy end in one row
    end = _end_steps(oracle, endpoints, endpoint[:own], correct)
    traced = trace(
        decoder,
        encoded,
        lines._replace(end=end.take(np.r_[np.arange(own), copied])),
        oracle,
        correct=correct,
        steps=problem.search.steps,
        stable=problem.search.stable,
        every_step=problem.search.detail == "path",
        weights=problem.weights,
        refined=problem.search.picks != ("last",),
        level=_levels(problem, label),
    )
    paths: Paths = {**traced.steps._asdict(), **traced._asdict()}
    del paths["steps"], paths["lines"]
    paths["instance"] = instance[start[traced.lines]]
    paths["prototype"] = endpoints.prototype[endpoint[traced.lines]]
    originals = known.cells[paths["instance"]]
    paths["distance"] = problem.schema.gaps(originals[:, None], paths["cells"]) @ problem.weights
    return Searched(paths, frozenset(oracle.infeasible), oracle.seconds)


def _levels(problem: Problem, label: Ints) -> Floats:
    """The probability of the target from which the rows of each line are expected to be valid."""
    if problem.confidence is not None:
        return np.full(len(label), problem.confidence)
    thresholds = problem.fitted.thresholds
    return np.full(len(label), 0.5) if thresholds is None else np.array(thresholds)[label]


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
    problem, label = oracle.problem, oracle.label[: len(endpoint)]
    cells, valid = endpoints.cells[endpoint], endpoints.valid[endpoint]
    probability = endpoints.probability[endpoint]
    predicted = np.where(valid, label, -1)
    if problem.confidence is not None:
        valid = valid & (probability >= problem.confidence)
    lines, tau = np.arange(len(endpoint)), np.ones(len(endpoint))
    corrected = cells
    if correct is not None:
        z = endpoints.z[torch.as_tensor(endpoint, device=endpoints.z.device)]
        corrected = correct(tau, z, cells, lines)
    projected, feasible = oracle.project(corrected, lines)
    feasible = oracle.plausible(projected, feasible, valid, label)
    steps = Steps.of(tau, projected, predicted, valid, feasible, probability)
    moved = np.flatnonzero(rows_differ(projected, cells))
    # At `fit` a prototype was judged for its own label, not for being another than the original.
    any_other = problem.instances.target_code[oracle.instance[lines]] < 0
    anew = np.union1d(moved, np.flatnonzero(any_other))
    if len(anew):
        steps.write(anew, oracle(tau[anew], projected[anew], lines[anew]))
    if len(moved):
        once, which = np.unique(endpoint[moved], return_inverse=True)
        before = problem.fitted.decoder.density(
            problem.schema, endpoints.cells[once], endpoints.label[once]
        )
        steps.density_before[moved] = before[which]
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
    advice: list[Mapping[str, Advice]] = []
    with few_threads(problem.fitted.decoder.model.shape):
        for done, found in _search_within_budget(problem):
            infeasible |= found.infeasible
            seconds = _added(seconds, found.seconds)
            if found.paths is not None:
                columns.add(found.paths)
            if found.advice:
                advice.append(found.advice)
            if progress:
                progress("explaining", done, len(problem.tried))
        seconds["total"] = perf_counter() - begin
        whole = {
            pick: Advice.join(*(part[pick] for part in advice))
            for pick in (advice[0] if advice else ())
        }
        paths = columns.filled(len(problem.schema.features))
        return _explanation(problem, paths, whole, infeasible, seconds)


def _search_within_budget(problem: Problem) -> Iterator[tuple[int, Searched]]:
    """Searches for all instances at once, or, where half of a budget is not enough, one by one."""
    budget, tried, done = current(), problem.tried, 0
    if budget is None or len(tried) < 2:
        yield from _until_spent(problem, tried, 0)
        return
    try:
        with budget.share(0.5):
            for done, found in search(problem, tried):
                yield done, found
        return
    except BudgetError:
        budget.ended = ""
        problem.nodes.forget(tried[done:].tolist())
    for begin in range(done, len(tried)):
        if budget.unsearched:
            budget.unsearched.update(tried[begin:].tolist())
            return
        yield from _until_spent(problem, tried[begin : begin + 1], begin)


def _until_spent(problem: Problem, instance: Ints, begin: int) -> Iterator[tuple[int, Searched]]:
    """Searches for some instances; where the budget ends that, it says for which."""
    try:
        for done, found in search(problem, instance):
            yield begin + done, found
    except BudgetError:
        if (budget := current()) is None:
            raise
        budget.unsearched.update(instance.tolist())


def _added(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    return {name: a.get(name, 0.0) + b.get(name, 0.0) for name in {**a, **b}}


class _PathColumns:
    """The arrays of all paths, allocated once at full size, so that no chunk is held twice."""

    def __init__(self, problem: Problem) -> None:
        tried = problem.tried  # each may have one sampled endpoint beside the prototypes
        self.most = int(reachable_prototypes(problem, tried).sum()) + len(tried)
        if problem.search.n_endpoints:
            self.most = problem.search.n_endpoints * len(tried)
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
            names = ("instance", "prototype", "first", "middle", "last", "crossings")
            return {**of._asdict(), **dict.fromkeys(names, none), "density": step, "distance": step}
        return {name: column[: self.count] for name, column in self.columns.items()}


def _explanation(
    problem: Problem,
    columns: Paths,
    advice: Mapping[str, Advice],
    infeasible: set[int],
    seconds: dict[str, float],
) -> Explanation:
    known, fitted = problem.instances, problem.fitted
    status, reason = _statuses(problem, columns, advice, infeasible)
    on_path = ("first", "middle", "last")
    picked = {name: columns[name] for name in on_path if name in problem.search.picks}
    columns = {name: column for name, column in columns.items() if name not in on_path}
    before = columns["density_before"]
    columns["density_before"] = np.where(np.isnan(before), columns["density"], before)
    columns |= _survival_of_steps(problem, columns)
    labels = np.array([*fitted.labels, None], dtype=object)
    explanation = Explanation(
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
        minimal={},
        n_queries=problem.classifier.n_queries,
        ids=known.reading.ids,
        costs=problem.costs or None,
        confidence=problem.confidence,
        plausibility=problem.plausibility,
        search=asdict(problem.search),
        seconds=seconds,
        request=problem.system.constraints,
        **cast(dict[str, Any], columns),
    )
    empty = {pick: None for pick in ("nearest", "best") if pick in problem.search.picks}
    minimal = {
        pick: _counterfactuals(problem, explanation, rows)
        for pick, rows in (empty | dict(advice)).items()
    }
    return replace(explanation, minimal=minimal)


def with_rows(
    problem: Problem, explanation: Explanation, rows: Mapping[int, Floats]
) -> Explanation:
    """The explanation with ok rows found later for instances that had none.

    Args:
        problem: What was searched for.
        explanation: What was found.
        rows: A row for some instances, by position.
    """
    if not rows:
        return explanation
    instance = np.array(sorted(rows), dtype=np.int64)
    found = stored_advice(problem, instance, np.stack([rows[i] for i in instance.tolist()]))
    status, reason = list(explanation.status), list(explanation.reason)
    for i in instance.tolist():
        status[i], reason[i] = "answered", "No path leads there; a row off the paths does."
    explanation = replace(explanation, status=tuple(status), reason=tuple(reason))
    minimal = {
        pick: others.where(~np.isin(others.instance, instance)).joined(
            _counterfactuals(problem, explanation, found[pick])
        )
        for pick, others in explanation.minimal.items()
    }
    return replace(explanation, minimal=minimal)


def _counterfactuals(
    problem: Problem, explanation: Explanation, rows: Advice | None
) -> Counterfactuals:
    """The rows of `nearest` or `best`, with what is known of each."""
    known = problem.instances
    if rows is None:
        none = np.empty(0, dtype=np.int64)
        return Counterfactuals.of(
            problem.schema,
            known.cells,
            known.cells[:0],
            none,
            valid=none > 0,
            template=known.reading.template,
            ids=known.reading.ids,
            reasons=explanation.reasons,
        )
    steps, target = rows.steps, known.target_code[rows.instance]
    label = np.where(target < 0, steps.predicted, target)
    return Counterfactuals.of(
        problem.schema,
        known.cells,
        steps.cells,
        rows.instance,
        valid=steps.valid == 1,
        template=known.reading.template,
        prototype=rows.prototype,
        label=np.array([*explanation.labels, None], dtype=object)[steps.predicted],
        feasible=steps.feasible,
        probability=steps.probability,
        density=rows.density,
        distance=problem.schema.gaps(known.cells[rows.instance], steps.cells) @ problem.weights,
        rank=rows.rank,
        mark=rows.mark,
        ids=known.reading.ids,
        reasons=explanation.reasons,
        **_survival(problem, steps.cells, label, steps.probability),
    )


def _survival_of_steps(problem: Problem, columns: Paths) -> dict[str, Floats]:
    """The chance that steps survive retraining, (paths, steps), where their density is known."""
    path, step = np.nonzero(~np.isnan(columns["density"]))
    target = problem.instances.target_code[columns["instance"][path]]
    label = np.where(target < 0, columns["predicted"][path, step], target)
    cells, probability = columns["cells"][path, step], columns["probability"][path, step]
    # Paths to an endpoint share their end.
    shared = columns["tau"][path, step] == 1.0
    once, which = distinct(np.c_[label, probability, cells][shared])
    rows = np.concatenate([np.flatnonzero(~shared), np.flatnonzero(shared)[once]])
    alone, found = len(rows) - len(once), {}
    for name, values in _survival(problem, cells[rows], label[rows], probability[rows]).items():
        each = np.empty(len(path))
        each[~shared], each[shared] = values[:alone], values[alone:][which]
        found[name] = np.full(columns["tau"].shape, np.nan)
        found[name][path, step] = each
    return found


def _survival(
    problem: Problem, cells: Floats, label: Ints, probability: Floats
) -> dict[str, Floats]:
    """The chance that rows survive retraining, by name; NaN where their label is unknown."""
    found = problem.fitted.survival(problem.schema, cells, np.maximum(label, 0), probability)
    names = ("survival", "survival_low", "survival_high")
    return {n: np.where(label < 0, np.nan, v) for n, v in zip(names, found, strict=True)}


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
            try:
                self.found[key] = self.system.contradiction(original)
            except BudgetError:  # the proof stands, whichever constraints it needs
                return ()
        return self.found[key]


def _statuses(
    problem: Problem, columns: Paths, advice: Mapping[str, Advice], infeasible: set[int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The status of each instance, and the reason in words."""
    known, labels = problem.instances, problem.fitted.labels
    count, contradictions = len(known), Contradictions(problem.system)
    instance = columns["instance"]
    prototype = (columns["prototype"] >= 0) | bool(problem.search.n_endpoints)
    ok = has_ok_step(columns)
    paths = np.bincount(instance, weights=prototype, minlength=count).astype(np.int64)
    reached = np.bincount(instance, weights=ok & prototype, minlength=count).astype(np.int64)
    sampled = set(instance[ok & ~prototype].tolist())
    off_path = {i for rows in advice.values() for i in rows.instance[rows.steps.ok].tolist()}
    sure = f" with probability {problem.confidence:g}" if problem.confidence else ""
    under = " and satisfies the constraints" if len(problem.system) else ""
    found: list[tuple[str, str]] = []
    budget = current()
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
        elif reached[i] or i in sampled or i in off_path:
            if code < 0 and (reached[i] or i in sampled):
                target += f", {_labels_reached(problem, columns, ok & (instance == i))}"
            text = f"{reached[i]} of {paths[i]} paths lead to {target}."
            if not reached[i]:
                which = "path" if problem.search.n_endpoints else "path to a prototype"
                text = f"No {which} leads to {target}{under}; " + (
                    "one to a sampled endpoint does."
                    if i in sampled
                    else "a row off the paths does."
                )
            found.append(("answered", text))
        elif budget is not None and i in budget.unsearched:
            text = f"{budget.ended} {CUT_SHORT}"
            found.append(("none_found", text))
        elif i in problem.nodes.ended:
            text = (
                "The solver of constraints ended without a result for some rows, after "
                f"{NODE_LIMIT:,} nodes for a row or Search(max_nodes={problem.nodes.most}) for the "
                "instance; none of the others will do."
            )
            found.append(("none_found", text))
        else:
            text = f"No row of {paths[i]} paths is labelled {target}{sure}{under}."
            found.append(("none_found", text))
    return tuple(status for status, _ in found), tuple(reason for _, reason in found)


def _labels_reached(problem: Problem, columns: Paths, mine: Bools) -> str:
    """The labels that `first` has on some paths, most frequent first."""
    paths = np.flatnonzero(mine)
    codes = Counter(columns["predicted"][paths, columns["first"][paths]].tolist())
    return " or ".join(f"'{problem.fitted.labels[code]}'" for code, _ in codes.most_common())
