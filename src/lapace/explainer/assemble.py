"""Explains all instances of a problem, chunk by chunk, and puts what is found together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from time import perf_counter
from typing import Any, TypeAlias, cast

import numpy as np

from lapace.arrays import Bools, Floats, Ints, distinct
from lapace.budgets import BudgetError, current
from lapace.constraints import Constraint, System
from lapace.explainer.oracle import Oracle
from lapace.explainer.problem import Problem
from lapace.explainer.search import (
    Found,
    MinimalRows,
    Paths,
    added,
    has_ok_step,
    search,
    with_marks,
)
from lapace.model import few_threads
from lapace.paths import Steps
from lapace.result import Counterfactuals, Explanation

__all__ = ["CUT_SHORT", "Contradictions", "Progress", "explain", "with_rows"]

Progress: TypeAlias = Callable[[str, int, int], None]

ROWS = 200_000  # rows evaluated at a time, so that memory does not grow with the query
CELLS = 5_000_000  # and cells, for tables as wide as images
CUT_SHORT = "This instance was not searched for to the end."  # ends the reason where it was not
ON_PATH = ("first", "middle", "last")


def explain(problem: Problem, progress: Progress | None = None) -> Explanation:
    """Explains every instance of a problem.

    Args:
        problem: The problem.
        progress: Called as `progress("explaining", done, total)`.
    """
    begin, found, done, ended = perf_counter(), [], 0, ""
    with few_threads(problem.fitted.decoder.model.shape):
        try:
            for count, part in _within_budget(problem):
                found.append(part)
                done += count
                if progress:
                    progress("explaining", done, len(problem.tried))
        except BudgetError as error:
            if current() is None:
                raise
            ended = str(error)
        seconds: dict[str, float] = {}
        for part in found:
            seconds = added(seconds, part.seconds)
        seconds["total"] = perf_counter() - begin
        unsearched = frozenset(problem.tried[done:].tolist())
        return _explanation(problem, found, seconds, ended, unsearched)


def _in_chunks(problem: Problem, instance: Ints) -> Iterator[tuple[int, Found]]:
    """Searches for instances chunk by chunk; yields the size of each chunk and what was found."""
    rows = min(ROWS, CELLS // len(problem.schema.features))
    size = max(1, rows // (problem.search.steps * max(1, len(problem.fitted.prototypes))))
    for begin in range(0, len(instance), size):
        chunk = instance[begin : begin + size]
        yield len(chunk), search(problem, chunk)


def _within_budget(problem: Problem) -> Iterator[tuple[int, Found]]:
    """Searches for all instances together, or one by one where half of a budget is too little."""
    budget, tried, done = current(), problem.tried, 0
    if budget is None or len(tried) < 2:
        yield from _in_chunks(problem, tried)
        return
    try:
        with budget.share(0.5):
            for count, found in _in_chunks(problem, tried):
                yield count, found
                done += count
        return
    except BudgetError:
        pass
    for one in tried[done:]:
        yield 1, search(problem, np.array([one]))


# ------------------------------------------------------------------------------------------------
# The explanation


def _joined_paths(problem: Problem, parts: Sequence[Paths]) -> Paths:
    """The paths of all chunks; arrays of no paths where there are none."""
    if parts:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    none, step = np.empty(0, dtype=np.int64), np.empty((0, 1))
    cells = np.empty((0, 1, len(problem.schema.features)))
    steps = Steps(step, cells, none[:, None], step.astype(np.int8), step > 0, step)
    names = ("instance", "prototype", "begin", "crossings", *ON_PATH)
    return {**steps._asdict(), **dict.fromkeys(names, none), "density": step, "distance": step}


def _explanation(
    problem: Problem,
    found: Sequence[Found],
    seconds: dict[str, float],
    ended: str,
    unsearched: frozenset[int],
) -> Explanation:
    known, fitted = problem.instances, problem.fitted
    paths = _joined_paths(problem, [part.paths for part in found if part.paths is not None])
    rows = {
        pick: [part.rows[pick] for part in found if pick in part.rows]
        for pick in ("nearest", "best")
        if pick in problem.search.picks
    }
    status, reason = _statuses(problem, found, paths, ended, unsearched)
    columns = {name: part for name, part in paths.items() if name not in (*ON_PATH, "begin")}
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
        picked={name: paths[name] for name in ON_PATH if name in problem.search.picks},
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
    minimal: dict[str, Counterfactuals] = {
        pick: _counterfactuals(problem, explanation, part) for pick, part in rows.items()
    }
    return replace(explanation, minimal=minimal)


def with_rows(problem: Problem, explanation: Explanation, rows: MinimalRows) -> Explanation:
    """The explanation with ok rows found later for instances that had none.

    Args:
        problem: What was searched for.
        explanation: What was found.
        rows: One row for some of the instances: their `nearest`, and their only `best`, marked.
    """
    status, reason = list(explanation.status), list(explanation.reason)
    for i in rows.instance.tolist():
        status[i], reason[i] = "answered", "No path leads there; a row off the paths does."
    explanation = replace(explanation, status=tuple(status), reason=tuple(reason))
    found = {"nearest": rows, "best": with_marks(rows, Oracle(problem))}
    minimal = {
        pick: others.where(~np.isin(others.instance, rows.instance)).joined(
            _counterfactuals(problem, explanation, [found[pick]])
        )
        for pick, others in explanation.minimal.items()
    }
    return replace(explanation, minimal=minimal)


def _counterfactuals(
    problem: Problem, explanation: Explanation, parts: Sequence[MinimalRows]
) -> Counterfactuals:
    """The rows of `nearest` or `best`, with what is known of each."""
    known = problem.instances
    if not parts:
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
    steps = Steps.join([part.steps for part in parts], axis=0)
    instance, rank, prototype, density, mark = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("instance", "rank", "prototype", "density", "mark")
    )
    label = known.label_reached(steps.predicted, instance)
    return Counterfactuals.of(
        problem.schema,
        known.cells,
        steps.cells,
        instance,
        valid=steps.valid == 1,
        template=known.reading.template,
        prototype=prototype,
        label=np.array([*explanation.labels, None], dtype=object)[steps.predicted],
        feasible=steps.feasible,
        probability=steps.probability,
        density=density,
        distance=problem.schema.gaps(known.cells[instance], steps.cells) @ problem.weights,
        rank=rank,
        mark=mark,
        ids=known.reading.ids,
        reasons=explanation.reasons,
        **_survival(problem, steps.cells, label, steps.probability),
    )


def _survival_of_steps(problem: Problem, columns: Paths) -> dict[str, Floats]:
    """The chance that steps survive retraining, (paths, steps), by name."""
    shape = columns["tau"].shape
    each = np.repeat(columns["instance"], shape[1])
    label = problem.instances.label_reached(columns["predicted"].ravel(), each)
    cells = columns["cells"].reshape(len(each), len(problem.schema.features))
    probability = columns["probability"].ravel()
    once, which = distinct(np.c_[label, probability, cells])  # paths share their ends
    survival = _survival(problem, cells[once], label[once], probability[once])
    return {name: values[which].reshape(shape) for name, values in survival.items()}


def _survival(
    problem: Problem, cells: Floats, label: Ints, probability: Floats
) -> dict[str, Floats]:
    """The chance that rows survive retraining, by name."""
    names = ("survival", "survival_low", "survival_high")
    estimate = problem.fitted.survival(problem.schema, cells, label, probability)
    return dict(zip(names, estimate, strict=True))


# ------------------------------------------------------------------------------------------------
# Statuses and reasons


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
    problem: Problem,
    found: Sequence[Found],
    paths: Paths,
    ended: str,
    unsearched: frozenset[int],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The status of each instance, and the reason in words."""
    known, count = problem.instances, len(problem.instances)
    contradictions = Contradictions(problem.system)
    infeasible = frozenset[int]().union(*(part.infeasible for part in found))
    unsolved = frozenset[int]().union(*(part.unsolved for part in found))
    ok, prototype = has_ok_step(paths), paths["prototype"] >= 0
    lead = np.bincount(paths["instance"], weights=prototype, minlength=count).astype(int)
    reach = np.bincount(paths["instance"], weights=ok & prototype, minlength=count).astype(int)
    sampled = set(paths["instance"][ok & ~prototype].tolist())
    rows = [rows for part in found for rows in part.rows.values()]
    off_path = {i for part in rows for i in part.instance[part.steps.ok].tolist()}
    statuses: list[tuple[str, str]] = []
    for i in range(count):
        target = _target_name(problem, i)
        if i in known.malformed:
            statuses.append(("malformed", known.malformed[i]))
        elif problem.already_target[i]:
            statuses.append(("already_target", f"The classifier already predicts {target}."))
        elif i in infeasible:
            statuses.append(("infeasible", _contradiction(contradictions.of(known.cells[i]))))
        elif reach[i] or i in sampled or i in off_path:
            if known.target_code[i] < 0 and (reach[i] or i in sampled):
                target += f", {_labels_reached(problem, paths, ok & (paths['instance'] == i))}"
            statuses.append(
                ("answered", _reached(problem, target, reach[i], lead[i], i in sampled))
            )
        elif i in unsearched:
            statuses.append(("none_found", f"{ended} {CUT_SHORT}"))
        elif i in unsolved:
            text = (
                "The solver of constraints reached its limit of nodes for some rows; the others "
                "are not valid."
            )
            statuses.append(("none_found", text))
        else:
            sure = f" with probability {problem.confidence:g}" if problem.confidence else ""
            under = " and satisfies the constraints" if len(problem.system) else ""
            text = f"No row of {lead[i]} paths is labelled {target}{sure}{under}."
            statuses.append(("none_found", text))
    return tuple(status for status, _ in statuses), tuple(reason for _, reason in statuses)


def _target_name(problem: Problem, instance: int) -> str:
    code = problem.instances.target_code[instance]
    return f"'{problem.fitted.labels[code]}'" if code >= 0 else "another label"


def _contradiction(named: tuple[Constraint, ...]) -> str:
    listed = " and ".join(f"'{c}'" for c in named) or "the constraints"
    together = " together" if len(named) != 1 else ""
    return f"For this instance {listed} cannot hold{together}: no row is feasible."


def _reached(problem: Problem, target: str, reach: int, lead: int, sampled: bool) -> str:
    if reach:
        return f"{reach} of {lead} paths lead to {target}."
    under = " and satisfies the constraints" if len(problem.system) else ""
    other = "one to a sampled endpoint does." if sampled else "a row off the paths does."
    return f"No path to a prototype leads to {target}{under}; {other}"


def _labels_reached(problem: Problem, paths: Paths, mine: Bools) -> str:
    """The labels that `first` has on some paths, most frequent first."""
    path = np.flatnonzero(mine)
    codes = Counter(paths["predicted"][path, paths["first"][path]].tolist())
    return " or ".join(f"'{problem.fitted.labels[code]}'" for code, _ in codes.most_common())
