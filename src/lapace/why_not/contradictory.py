"""No row is feasible: which constraints contradict each other, and how each would have to move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from lapace.arrays import Bools, Floats, Ints, first_of_each
from lapace.budget import BudgetError
from lapace.constraints import Constraint, System
from lapace.explainer.assemble import Contradictions
from lapace.explainer.problem import Problem
from lapace.result import Explanation, Move, WhyNot, record
from lapace.why_not.relaxation import allowance, amount, joined, relaxed, slack

__all__ = ["explain_contradictions"]

CORNERS = 3  # numbers of a contradiction whose bounds are combined exhaustively
FREE = 1e-3  # cost of a change that matters little


def explain_contradictions(
    problem: Problem, explanation: Explanation, *, relax_rules: bool
) -> dict[int, WhyNot]:
    """Explains the instances that are infeasible; those with the same contradiction together."""
    contradictions = Contradictions(problem.system)
    groups: dict[tuple[Constraint, ...], list[int]] = {}
    for i, status in enumerate(explanation.status):
        if status == "infeasible":
            groups.setdefault(contradictions.of(problem.instances.cells[i]), []).append(i)
    why: dict[int, WhyNot] = {}
    for constraints, members in groups.items():
        contradiction = _Contradiction(problem, constraints, explanation.reason, relax_rules)
        try:
            why |= contradiction.explained(np.array(members))
        except BudgetError:  # the contradiction stands, however far each would have to move
            why |= {i: contradiction.why(i) for i in members}
    return why


class _Contradiction(NamedTuple):
    """Constraints that cannot hold together for some instances."""

    problem: Problem
    constraints: tuple[Constraint, ...]
    reason: Sequence[str]
    relax_rules: bool

    def why(self, instance: int, text: str = "") -> WhyNot:
        """Names the contradiction alone."""
        names = tuple(map(str, self.constraints))
        exact = 0 < len(names) <= 2
        return WhyNot("infeasible", names, exact=exact, text=f"{self.reason[instance]}{text}")

    def explained(self, instance: Ints) -> dict[int, WhyNot]:
        """Relaxes each constraint alone; the rules stand unless they may be relaxed."""
        problem, count = self.problem, len(self.constraints)
        rules = () if self.relax_rules else problem.fitted.rules
        movable = [c for c in self.constraints if c not in rules]
        if not movable:  # or the solver's limit was reached before it was named
            which = "That is a rule" if count == 1 else "These are rules"
            text = f" {which} of the explainer." if count else ""
            return {i: self.why(i, text) for i in instance.tolist()}
        tries = [self._least_violation(c, instance) for c in movable]
        why = {}
        for k, i in enumerate(instance.tolist()):
            rows = [cells[k] for cells, ok in tries if ok[k]]
            moves = tuple(
                self._move(constraint, cells[k], i)
                for constraint, (cells, ok) in zip(movable, tries, strict=True)
                if ok[k]
            )
            if not moves:
                others = " Whichever is left out, other constraints still contradict each other."
                why[i] = self.why(i, others)
                continue
            lead = "If the others stay" if count > 1 else "For any row to satisfy it"
            text = f" {lead}, {joined([move.text for move in moves], 'or')}."
            efforts = problem.efforts(np.array(rows), np.full(len(rows), i))
            row = record(problem.schema, rows[int(efforts.argmin())])
            why[i] = replace(self.why(i, text), moves=moves, row=row)
        return why

    def _least_violation(self, constraint: Constraint, instance: Ints) -> tuple[Floats, Bools]:
        """Finds, among rows that satisfy all others, the one that violates a constraint least.

        Returns:
            A row per instance, and whether it satisfies the others.
        """
        problem, schema = self.problem, self.problem.schema
        alone = System.of([constraint], schema, check=False)
        starts, owner = self._starts(instance)
        originals = problem.instances.cells[instance][owner]
        # Other columns cost almost nothing, so that those of this constraint move least.
        columns = {schema.names[c] for c in alone.bound[0].columns}
        movable = [f.name for f in schema.features if f.derived is None]
        costs = {n: 1.0 if n in columns else FREE for n in movable} if columns else None
        after = problem.system.without([constraint]).project(starts, originals, costs=costs)
        far = slack(alone, after.cells, originals)[:, 0]
        distance = problem.distances(after.cells, instance[owner])
        best = first_of_each(owner, ~after.feasible, far, distance)
        return after.cells[best], after.feasible[best]

    def _starts(self, instance: Ints) -> tuple[Floats, Ints]:
        """Returns rows to project from: the instance, and bounds of columns, where slack is least.

        Returns:
            The rows, and the position of the instance each is for.
        """
        features, originals = self.problem.schema.features, self.problem.instances.cells[instance]
        bound = [b for b in self.problem.system.bound if b.constraint in self.constraints]
        named = sorted({c for b in bound for c in b.columns})
        numbers = [c for c in named if features[c].kind == "continuous"]
        bounds = [(None, features[c].lower, features[c].upper) for c in numbers]
        starts = []
        for corner in product(*bounds) if len(numbers) <= CORNERS else zip(*bounds, strict=True):
            rows = originals.copy()
            for c, value in zip(numbers, corner, strict=True):
                if value is not None:  # None keeps the instance's value
                    rows[:, c] = value
            starts.append(np.where(np.isnan(originals), originals, rows))
        return np.concatenate(starts), np.tile(np.arange(len(originals)), len(starts))

    def _move(self, constraint: Constraint, row: Floats, instance: int) -> Move:
        """Says how a constraint would have to be relaxed to admit a row."""
        schema, original = self.problem.schema, self.problem.instances.cells[instance]
        by = amount(constraint, schema, row, original)
        instead = relaxed(constraint, schema, by, row, original)
        if instead is None:
            text = f"'{constraint}' would have to allow {allowance(constraint, schema, row)}"
            return Move(str(constraint), by, text)
        text = f"'{constraint}' would have to be relaxed to '{instead}'"
        return Move(str(constraint), by, text, str(instead))
