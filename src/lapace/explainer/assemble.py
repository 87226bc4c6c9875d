"""Makes an `Explanation` of what searches found: paths, rows, and a status with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.budget import BudgetError
from lapace.constraints import Constraint, System
from lapace.explainer.minimal import MinimalRows
from lapace.explainer.problem import Problem
from lapace.explainer.starts import Paths
from lapace.paths import join_rows
from lapace.result import Counterfactuals, Explanation

if TYPE_CHECKING:
    from lapace.explainer.search import SearchResult

__all__ = ["CUT_SHORT", "ON_PATH", "Contradictions", "make_explanation", "with_rows"]

CUT_SHORT = "The search for this instance did not finish."  # ends the reason where it was not
ON_PATH = ("first", "middle", "last")


def make_explanation(
    problem: Problem,
    results: Sequence[SearchResult],
    seconds: float,
    ended: str,
    unsearched: frozenset[int],
) -> Explanation:
    """Puts the results of all chunks together.

    Args:
        problem: What was searched for.
        results: What was found, in order of the instances.
        seconds: Time spent in all.
        ended: Why a budget ended the search; empty where none did.
        unsearched: Instances whose search did not finish.
    """
    instances, fitted = problem.instances, problem.fitted
    paths: Paths = {
        name: np.concatenate([result.paths[name] for result in results])
        for name in results[0].paths
    }
    status, reason = _statuses(problem, results, paths, ended, unsearched)
    left_out = (*ON_PATH, "begin", "odds")
    columns = {name: part for name, part in paths.items() if name not in left_out}
    columns |= _survival_of_steps(problem, paths)
    labels = np.array([*fitted.labels, None], dtype=object)
    spent = {name: sum(r.seconds[name] for r in results) for name in results[0].seconds}
    explanation = Explanation(
        schema=problem.schema,
        template=instances.reading.template,
        labels=fitted.labels,
        instances=instances.cells,
        label=labels[instances.label_code],
        target=labels[instances.target_code],
        status=status,
        reason=reason,
        constraints=tuple(map(str, problem.system.constraints)),
        picked={name: paths[name] for name in ON_PATH if name in problem.search.picks},
        minimal={},
        n_queries=problem.classifier.n_queries,
        ids=instances.reading.ids,
        costs=problem.costs or None,
        confidence=problem.confidence,
        plausibility=problem.plausibility,
        search=asdict(problem.search),
        seconds={**spent, "total": seconds},
        request=problem.system.constraints,
        **cast(dict[str, Any], columns),
    )
    minimal = {
        pick: _counterfactuals(problem, explanation, join_rows([r.rows[pick] for r in results]))
        for pick in results[0].rows
    }
    return replace(explanation, minimal=minimal)


def with_rows(problem: Problem, explanation: Explanation, rows: MinimalRows) -> Explanation:
    """Returns the explanation with ok rows found later for instances that had none.

    Args:
        problem: What was searched for.
        explanation: What was found.
        rows: One row for some of the instances: their `nearest`, and their only `best`, marked.
    """
    status, reason = list(explanation.status), list(explanation.reason)
    for i in rows.instance.tolist():
        status[i], reason[i] = "answered", "No path leads there; a row off the paths does."
    explanation = replace(explanation, status=tuple(status), reason=tuple(reason))
    added = _counterfactuals(problem, explanation, rows)
    minimal = {
        pick: others.where(~np.isin(others.instance, rows.instance)).joined(added)
        for pick, others in explanation.minimal.items()
    }
    return replace(explanation, minimal=minimal)


def _counterfactuals(
    problem: Problem, explanation: Explanation, rows: MinimalRows
) -> Counterfactuals:
    """Returns the rows of `nearest` or `best` with what is known of each."""
    instances, steps = problem.instances, rows.steps
    label = instances.label_reached(steps.predicted, rows.instance)
    return Counterfactuals.of(
        problem.schema,
        instances.cells,
        steps.cells,
        rows.instance,
        valid=steps.valid == 1,
        template=instances.reading.template,
        prototype=rows.prototype,
        label=np.array([*explanation.labels, None], dtype=object)[steps.predicted],
        feasible=steps.feasible,
        probability=steps.probability,
        density=rows.density,
        distance=problem.distances(steps.cells, rows.instance),
        effort=problem.efforts(steps.cells, rows.instance),
        rank=rows.rank,
        mark=rows.mark,
        ids=instances.reading.ids,
        **_survival(problem, steps.cells, label, steps.odds),
    )


def _survival_of_steps(problem: Problem, paths: Paths) -> dict[str, Floats]:
    """Returns the chance that picked steps survive retraining, (paths, steps), by name."""
    path, step = np.nonzero(~np.isnan(paths["density"]))
    label = problem.instances.label_reached(paths["predicted"][path, step], paths["instance"][path])
    rows = paths["cells"][path, step], label, paths["odds"][path, step]
    survival = {}
    for name, values in _survival(problem, *rows).items():
        survival[name] = np.full(paths["tau"].shape, np.nan)
        survival[name][path, step] = values
    return survival


def _survival(problem: Problem, cells: Floats, label: Ints, odds: Floats) -> dict[str, Floats]:
    """Returns the chance that rows survive retraining, by name."""
    names = ("survival", "survival_low", "survival_high")
    estimate = problem.fitted.survival.estimate(problem.schema, cells, label, odds)
    return dict(zip(names, estimate, strict=True))


# ------------------------------------------------------------------------------------------------
# Statuses and reasons


class Contradictions:
    """Smallest contradictory sets of constraints, computed once per distinct relevant values."""

    def __init__(self, system: System) -> None:
        self.system = system
        named = {c for bound in system.bound for c in (*bound.columns, *bound.compared)}
        self.columns = np.array(sorted(named), dtype=np.int64)
        self._sets: dict[bytes, tuple[Constraint, ...]] = {}

    def of(self, original: Floats) -> tuple[Constraint, ...]:
        """Returns a smallest set of constraints that cannot hold together for an instance."""
        key = original[self.columns].tobytes()
        if key not in self._sets:
            try:
                self._sets[key] = self.system.contradiction(original)
            except BudgetError:  # the proof stands, whichever constraints it needs
                return ()
        return self._sets[key]


def _statuses(
    problem: Problem,
    results: Sequence[SearchResult],
    paths: Paths,
    ended: str,
    unsearched: frozenset[int],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the status of each instance, and the reason in words."""
    instances, count = problem.instances, len(problem.instances)
    contradictions = Contradictions(problem.system)
    infeasible = frozenset[int]().union(*(result.infeasible for result in results))
    unsolved = frozenset[int]().union(*(result.unsolved for result in results))
    ok: Bools = ((paths["valid"] == 1) & paths["feasible"]).any(axis=1)
    n_paths = np.bincount(paths["instance"], minlength=count)
    n_ok = np.bincount(paths["instance"], weights=ok, minlength=count).astype(int)
    rows = [rows for result in results for rows in result.rows.values()]
    off_path = {i for part in rows for i in part.instance[part.steps.ok].tolist()}
    sure = f" with probability {problem.confidence:g}" if problem.confidence else ""
    under = " and satisfies the constraints" if len(problem.system) else ""
    statuses: list[tuple[str, str]] = []
    for i in range(count):
        target = _target_name(problem, i)
        if i in instances.malformed:
            entry = ("malformed", instances.malformed[i])
        elif problem.already_target[i]:
            entry = ("already_target", f"The classifier already predicts {target}.")
        elif i in infeasible:
            entry = ("infeasible", _contradiction(contradictions.of(instances.cells[i])))
        elif n_ok[i]:
            entry = ("answered", f"{n_ok[i]} of {n_paths[i]} paths lead to {target}.")
        elif i in off_path:
            text = f"No path leads to {target}{under}; a row off the paths does."
            entry = ("answered", text)
        elif i in unsearched:
            entry = ("none_found", f"{ended} {CUT_SHORT}")
        elif i in unsolved:
            text = "The constraint solver reached its limit of nodes for some rows; the others"
            entry = ("none_found", f"{text} are not valid.")
        else:
            text = f"No row of {n_paths[i]} paths is labelled {target}{sure}{under}."
            entry = ("none_found", text)
        statuses.append(entry)
    return tuple(status for status, _ in statuses), tuple(reason for _, reason in statuses)


def _target_name(problem: Problem, instance: int) -> str:
    code = problem.instances.target_code[instance]
    return f"'{problem.fitted.labels[code]}'" if code >= 0 else "another label"


def _contradiction(named: tuple[Constraint, ...]) -> str:
    listed = " and ".join(f"'{c}'" for c in named) or "the constraints"
    together = " together" if len(named) != 1 else ""
    return f"For this instance {listed} cannot hold{together}: no row is feasible."
