"""Rows are feasible, none is valid: the smallest set of constraints to drop for one to be found.

The search of `explain` is repeated without some constraints: without all of them, since nothing
else can help where that fails; without each alone, without each pair; beyond pairs greedily, by
restoring one by one what the nearest row without constraints violates. Then each constraint of the
set is relaxed as little as suffices, by bisection. The query budget bounds all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import combinations, groupby
from math import floor
from typing import NamedTuple, TypeAlias

import numpy as np

from lapace.arrays import Floats, Ints
from lapace.budget import BudgetError
from lapace.constraints import ChangeLimit, Constraint, System
from lapace.errors import ClassifierError
from lapace.explainer.minimal import MinimalRows
from lapace.explainer.problem import Problem
from lapace.explainer.search import search
from lapace.paths import take_rows
from lapace.result import Explanation, Move, WhyNot, record
from lapace.why_not.relaxation import amount, joined, relaxed

__all__ = ["DropSearch"]

PART = 1 / 20  # of an amount: how precisely the least one is found
FEW = 5  # changes a sentence names

Set: TypeAlias = tuple[int, ...]  # constraints, by position, in order


class _Drop(NamedTuple):
    """A set that can be dropped for an instance, and the row of `nearest` then found."""

    effort: float  # of the row
    which: Set
    row: Floats
    exact: bool = False  # whether no smaller set can be dropped


class _Relaxed(NamedTuple):
    """A constraint relaxed."""

    by: float | None  # in its own units; None where it has no amount
    constraint: Constraint | None  # what holds instead; None where it is left out


class DropSearch:
    """Searches for the smallest set of constraints to drop.

    Args:
        problem: The problem.
        explanation: What was found for it.
        relax_rules: Whether the explainer's rules may be relaxed as well.

    Attributes:
        answers: Rows found on the way that satisfy every constraint after all.
    """

    def __init__(self, problem: Problem, explanation: Explanation, *, relax_rules: bool) -> None:
        self.problem = problem
        self.explanation = explanation
        self.answers: list[MinimalRows] = []
        self._constraints = problem.system.constraints
        self._is_rule = [c in problem.fitted.rules for c in self._constraints]
        self._droppable: Set = tuple(
            k for k, is_rule in enumerate(self._is_rule) if relax_rules or not is_rule
        )
        self._originals = problem.instances.cells
        self._instance = np.flatnonzero(np.array(explanation.status, object) == "none_found")
        self._cut = ""  # why a set was left out, in words; empty where none was

    def explained(self) -> dict[int, WhyNot]:
        """Explains the instances for which no ok row was found."""
        if not len(self._instance):
            return {}
        drops, failed = {}, ""
        if self._droppable:
            free = self._search_without(self._droppable, self._instance)
            failed = self._cut
            drops = self._small_sets(self._instance if failed else np.array(list(free), int))
            drops |= self._large_sets({i: free[i] for i in free.keys() - drops.keys()})
        answered = {i for rows in self.answers for i in rows.instance.tolist()}
        return {
            i: self._relaxable(i, drops[i]) if i in drops else self._not_relaxable(i, failed)
            for i in self._instance.tolist()
            if i not in answered
        }

    # -- searches ---------------------------------------------------------------------------------

    def _nearest(self, constraints: Iterable[Constraint], instance: Ints) -> MinimalRows:
        """Returns the rows of `nearest` under other constraints."""
        system = System.of(constraints, self.problem.schema, check=False)
        if set(system.constraints) == set(self.problem.under_rules.system.constraints):
            rows = self._under_rules
            return take_rows(rows, np.isin(rows.instance, instance))
        problem = replace(self.problem, system=system, candidates=self._under_rules.as_rows())
        return search(problem, instance).rows["nearest"]

    @cached_property
    def _under_rules(self) -> MinimalRows:
        """The rows found under the rules alone, which every other search may start from."""
        try:
            return search(self.problem.under_rules, self._instance).rows["nearest"]
        except ClassifierError as error:
            self._note_failure(error)
            return search(self.problem.under_rules, self._instance[:0]).rows["nearest"]

    def _note_failure(self, error: BudgetError | ClassifierError) -> None:
        """Notes that a search could not be made; raises if the classifier itself is broken."""
        why = "The query budget ended before every set could be tried."
        if isinstance(error, ClassifierError):
            self.problem.classifier.query(self._originals[self._instance[:1]], self.problem.schema)
            why = "The classifier raises on too many rows that the constraints exclude."
        self._cut = self._cut or why

    def _without(self, which: Iterable[int]) -> list[Constraint]:
        """Returns all constraints but a set."""
        return [c for k, c in enumerate(self._constraints) if k not in which]

    def _search_without(self, which: Set, instance: Ints) -> dict[int, _Drop]:
        """Returns the rows of `nearest` without a set, by instance, where they are ok."""
        try:
            rows = self._nearest(self._without(which), instance)
        except (BudgetError, ClassifierError) as error:
            self._note_failure(error)
            return {}
        cells, originals = rows.steps.cells, self._originals[rows.instance]
        answered = rows.steps.ok & self.problem.system.feasible(cells, originals)
        if answered.any():
            self.answers.append(take_rows(rows, answered))
        effort = self.problem.efforts(cells, rows.instance)
        return {
            int(rows.instance[k]): _Drop(effort[k], which, cells[k])
            for k in np.flatnonzero(rows.steps.ok)
        }

    # -- sets -------------------------------------------------------------------------------------

    def _small_sets(self, instance: Ints) -> dict[int, _Drop]:
        """Finds the smallest sets of one or two, of equals the one whose row takes least effort.

        Among sets of the same size those with fewer rules come first.
        """

        def rank(which: Set) -> tuple[int, int]:
            return len(which), sum(self._is_rule[k] for k in which)

        sets = [which for size in (1, 2) for which in combinations(self._droppable, size)]
        drops: dict[int, _Drop] = {}
        for (size, _), equals in groupby(sorted(sets, key=rank), rank):
            lacking = np.setdiff1d(instance, list(drops))
            if not len(lacking):
                break
            exact = not self._cut or size == 1  # no set is smaller than one
            enough: dict[int, list[_Drop]] = {}
            for which in equals:
                for i, drop in self._search_without(which, lacking).items():
                    enough.setdefault(i, []).append(drop._replace(exact=exact))
            drops |= {i: min(each, key=lambda drop: drop.effort) for i, each in enough.items()}
        return drops

    def _large_sets(self, free: Mapping[int, _Drop]) -> dict[int, _Drop]:
        """Finds larger sets: what the nearest free row violates, then restored one by one."""
        sets = {}
        for i, drop in sorted(free.items()):
            holds = self.problem.system.holds(drop.row[None], self._originals[[i]])[0]
            sets[i] = drop._replace(which=tuple(k for k in self._droppable if not holds[k]))
            for restored in sorted(sets[i].which, key=lambda k: (not self._is_rule[k], -k)):
                which = tuple(k for k in sets[i].which if k != restored)
                if len(which) > 2:  # sets of one and two were tried before
                    sets |= self._search_without(which, np.array([i]))
        return sets

    # -- amounts ----------------------------------------------------------------------------------

    def _least_amounts(self, instance: int, drop: _Drop) -> tuple[dict[int, _Relaxed], Floats]:
        """Finds how little the constraints of a set have to be relaxed together.

        Where the budget ends, the last amounts that sufficed stand.

        Returns:
            The relaxation of each constraint, and the row of `nearest` under all of them.
        """
        row, original, schema = drop.row, self._originals[instance], self.problem.schema
        enough = {}
        for k in drop.which:
            by = amount(self._constraints[k], schema, row, original)
            enough[k] = _Relaxed(by, relaxed(self._constraints[k], schema, by, row, original))
        try:
            nearest = self._nearest_with(enough, instance)
            if nearest is None:  # the search does not find its row again: leave them out as a whole
                return dict.fromkeys(drop.which, _Relaxed(None, None)), row
            row = nearest
            for k in drop.which:
                low = 0.0
                while (middle := self._between(k, low, enough[k])) is not None:
                    instead = relaxed(self._constraints[k], schema, middle, row, original)
                    tried = {**enough, k: _Relaxed(middle, instead)}
                    nearest = self._nearest_with(tried, instance)
                    if nearest is None:
                        low = middle
                    else:
                        enough, row = tried, nearest
        except BudgetError as error:
            self._note_failure(error)
        return enough, row

    def _nearest_with(self, relaxations: Mapping[int, _Relaxed], instance: int) -> Floats | None:
        """Returns the row of `nearest` with constraints relaxed; None where it is not ok."""
        instead = [each.constraint for each in relaxations.values() if each.constraint is not None]
        rows = self._nearest([*self._without(relaxations), *instead], np.array([instance]))
        return rows.steps.cells[0] if rows.steps.ok.any() else None

    def _between(self, k: int, low: float, sufficient: _Relaxed) -> float | None:
        """Returns the next amount to try between one that fails and one that suffices."""
        enough = sufficient.by or 0.0
        if sufficient.constraint is None:
            return None
        features = self.problem.schema.features
        steps = [features[c].resolution for c in self.problem.system.bound[k].columns]
        step = min((step for step in steps if step), default=0.0)
        if isinstance(self._constraints[k], ChangeLimit):
            step = 1.0
        if enough - low <= max(step, enough * PART) * 1.001:
            return None
        middle = (low + enough) / 2
        if step:
            middle = float(f"{round(middle / step) * step:.12g}")
        return middle if low < middle < enough else None

    # -- words ------------------------------------------------------------------------------------

    def _relaxable(self, instance: int, drop: _Drop) -> WhyNot:
        """Explains an instance that has a counterfactual without a set."""
        schema, original = self.problem.schema, self._originals[instance]
        relaxations, row = self._least_amounts(instance, drop)
        moves = tuple(self._move(k, *each) for k, each in relaxations.items())
        names = tuple(str(self._constraints[k]) for k in drop.which)
        quoted = joined([f"'{name}'" for name in names])
        text = f"{self.explanation.reason[instance]} Without {quoted} the same search finds one"
        if not drop.exact:
            text += "; a smaller set might be enough, because not all were tried"
        elif len(drop.which) > 1:
            text += "; dropping fewer is not enough"
        text += f". It is enough if {joined([move.text for move in moves])}"
        text += f": {self._changes(row, original)}."
        return WhyNot("none_found", (), names, drop.exact, moves, record(schema, row), text)

    def _move(self, k: int, by: float | None, instead: Constraint | None) -> Move:
        constraint = str(self._constraints[k])
        if instead is None:
            return Move(constraint, None, f"'{constraint}' is left out")
        if str(instead) == constraint:
            return Move(constraint, by, f"'{constraint}' stays", constraint)
        most = "at most " if self._cut else ""
        return Move(constraint, by, f"'{constraint}' is relaxed to {most}'{instead}'", str(instead))

    def _not_relaxable(self, instance: int, failed: str) -> WhyNot:
        """Explains an instance for which dropping every constraint does not help."""
        explanation = self.explanation
        sentences = [explanation.reason[instance]]
        if failed:
            sentences.append(failed)
        elif self._droppable:
            kept = len(self._droppable) < len(self._constraints)
            but = " but the explainer's rules" if kept else ""
            sentences.append(f"Even without any constraint{but} nothing is found.")
        steps = (explanation.instance == instance)[:, None] & (explanation.tau > 0)
        probability = explanation.probability[steps & explanation.feasible]
        if np.isfinite(probability).any():
            highest = floor(np.nanmax(probability) * 1000) / 1000  # requiring as much succeeds
            confidence = self.problem.confidence
            needed = "" if confidence is None else f"; {confidence:.12g} is required"
            sentences.append(f"The highest probability reached is {highest:g}{needed}.")
        return WhyNot("none_found", exact=not failed, text=" ".join(sentences))

    def _changes(self, row: Floats, original: Floats) -> str:
        """Names what differs from the instance, at most a few columns of it: `age 30 → 40`."""
        schema = self.problem.schema
        each = zip(schema.features, original, row, schema.changed(original, row), strict=True)
        texts = [
            f"{f.name} {f.text(old)} → {f.text(new)}" for f, old, new, differs in each if differs
        ]
        if len(texts) > FEW + 1:
            texts = [*texts[:FEW], f"{len(texts) - FEW} more"]
        return joined(texts)
