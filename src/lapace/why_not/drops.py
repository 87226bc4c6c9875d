"""Rows are feasible, none is valid: the smallest set of constraints to drop for one to be found.

The search of `explain` is repeated without some constraints: without all of them, since nothing
else can help where that fails; without each alone, without each pair; beyond pairs greedily, by
restoring one by one what the best row without constraints violates. A word for several columns,
such as `fixed a, b`, counts as one constraint for each of them. Then each constraint of the set is
relaxed as little as suffices, by bisection. The query budget bounds all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations, groupby
from math import floor
from typing import NamedTuple, TypeAlias

import numpy as np

from lapace.arrays import Floats, Ints, first_of_each
from lapace.budget import BudgetError
from lapace.constraints import ChangeLimit, Constraint, Shorthand, System
from lapace.errors import ClassifierError
from lapace.explainer.minimal import MinimalRows
from lapace.explainer.problem import InstanceRows, Problem
from lapace.explainer.search import SearchResult, search
from lapace.paths import take_rows
from lapace.result import Explanation, Move, WhyNot, record
from lapace.why_not.relaxation import amount, joined, relaxed, violations

__all__ = ["DropSearch"]

PART = 1 / 20  # of an amount: how precisely the least one is found
FEW = 5  # changes a sentence names
OTHERS = 2  # further sets a sentence names

Set: TypeAlias = tuple[int, ...]  # single constraints, by position, in order


class _Drop(NamedTuple):
    """A set that can be dropped for an instance, and the row that `nearest` then returns."""

    cost: tuple[float, float]  # how far the row violates the set, and its distance
    which: Set
    row: Floats
    exact: bool = False  # whether no smaller set can be dropped
    others: tuple[_Drop, ...] = ()  # sets of the same size that would do as well


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
        rules = set(problem.fitted.rules)
        pairs = [(single, c) for c in problem.system.constraints for single in _singles(c)]
        self._singles = tuple(single for single, _ in pairs)
        self._whole = tuple(whole for _, whole in pairs)  # of which each is a part
        self._is_rule = [whole in rules for whole in self._whole]
        self._droppable: Set = tuple(
            k for k, is_rule in enumerate(self._is_rule) if relax_rules or not is_rule
        )
        self._system = System.of(self._singles, problem.schema, check=False)
        self._originals = problem.instances.cells
        self._instance = np.flatnonzero(np.array(explanation.status, object) == "none_found")
        self._n_searched = 0  # sets
        self._cut = False  # whether a set was left out, for whatever reason
        self._why_cut = ""  # why the search without any constraint failed, in words

    def explained(self) -> dict[int, WhyNot]:
        """Explains the instances for which no ok row was found."""
        if not len(self._instance):
            return {}
        free = self._free_rows()
        hopeful = self._instance if free is None else np.unique(free.instance)
        drops = self._small_sets(hopeful) if self._droppable else {}
        left = np.setdiff1d(hopeful, list(drops))
        if free is not None and len(left):
            drops |= self._large_sets(free, left)
        answered = {i for rows in self.answers for i in rows.instance.tolist()}
        return {
            i: self._relaxable(i, drops[i])
            if i in drops
            else self._not_relaxable(i, searched=free is not None)
            for i in self._instance.tolist()
            if i not in answered
        }

    # -- searches ---------------------------------------------------------------------------------

    def _nearest(self, constraints: Iterable[Constraint], instance: Ints) -> MinimalRows:
        """Returns the rows of `nearest` under other constraints."""
        system = System.of(constraints, self.problem.schema, check=False)
        problem = replace(self.problem, system=system)
        free = None if problem.without_constraints is None else self._free
        return search(problem, instance, free).rows["nearest"]

    @cached_property
    def _free(self) -> SearchResult:
        """The rows found under the rules alone, with which every search begins."""
        problem = self.problem.without_constraints or self.problem
        try:
            return search(problem, self._instance)
        except ClassifierError as error:
            self._note_failure(error)
            return search(problem, self._instance[:0])

    def _note_failure(self, error: BudgetError | ClassifierError) -> None:
        """Notes that a search could not be made; raises if the classifier itself is broken."""
        why = "The query budget ended before any set could be tried."
        if isinstance(error, ClassifierError):
            self.problem.classifier.query(self._originals[self._instance[:1]], self.problem.schema)
            why = "The classifier raises on too many rows that the constraints exclude."
        self._cut, self._why_cut = True, self._why_cut or why

    def _free_rows(self) -> InstanceRows | None:
        """Returns ok rows without any droppable constraint; None where none can be searched."""
        if not self._droppable:
            return None
        try:
            if not any(self._is_rule[k] for k in self._droppable):
                free = self._free.minimal
                return None if self._why_cut else free
            rows = self._nearest(self._without(self._droppable), self._instance)
        except (BudgetError, ClassifierError) as error:
            self._note_failure(error)
            return None
        rows = take_rows(rows, rows.steps.ok)
        return InstanceRows.of(rows.steps.cells, rows.instance)

    def _without(self, which: Set) -> list[Constraint]:
        """Returns all constraints but a set; a word for several columns stays whole if it can."""
        gone = {self._whole[k] for k in which}
        return [
            single if whole in gone else whole
            for k, (single, whole) in enumerate(zip(self._singles, self._whole, strict=True))
            if k not in which
        ]

    def _search_without(self, which: Set, instance: Ints) -> dict[int, _Drop]:
        """Returns the rows of `nearest` without a set, by instance, where they are ok."""
        self._n_searched += 1
        try:
            rows = self._nearest(self._without(which), instance)
        except (BudgetError, ClassifierError) as error:
            self._note_failure(error)
            return {}
        cells, originals = rows.steps.cells, self._originals[rows.instance]
        answered = rows.steps.ok & self._system.feasible(cells, originals)
        if answered.any():
            self.answers.append(take_rows(rows, answered))
        violation = violations(self._system, cells, originals)[:, list(which)].sum(axis=1)
        distance = self.problem.distances(cells, rows.instance)
        return {
            int(rows.instance[k]): _Drop((violation[k], distance[k]), which, cells[k])
            for k in np.flatnonzero(rows.steps.ok)
        }

    # -- sets -------------------------------------------------------------------------------------

    def _small_sets(self, instance: Ints) -> dict[int, _Drop]:
        """Finds the smallest sets of one or two, of equals the one whose row violates it least.

        Among sets of the same size those with fewer rules come first.
        """

        def rank(which: Set) -> tuple[int, int]:
            return len(which), sum(self._is_rule[k] for k in which)

        sets = [which for size in (1, 2) for which in combinations(self._droppable, size)]
        drops: dict[int, _Drop] = {}
        for (size, _), equals in groupby(sorted(sets, key=rank), rank):
            left = np.setdiff1d(instance, list(drops))
            if not len(left):
                break
            exact = not self._cut or size == 1  # no set is smaller than one
            enough: dict[int, list[_Drop]] = {}
            for which in equals:
                for i, drop in self._search_without(which, left).items():
                    enough.setdefault(i, []).append(drop)
            for i, sufficient in enough.items():
                best, *others = sorted(sufficient, key=lambda drop: drop.cost)
                drops[i] = best._replace(exact=exact, others=tuple(others[:OTHERS]))
        return drops

    def _large_sets(self, free: InstanceRows, instance: Ints) -> dict[int, _Drop]:
        """Finds larger sets: what the best free row violates, then restored one by one."""
        free, exact = take_rows(free, np.isin(free.instance, instance)), not self._cut
        violated = ~self._system.holds(free.cells, self._originals[free.instance])
        violated[:, np.setdiff1d(np.arange(len(self._singles)), self._droppable)] = False
        distance = self.problem.distances(free.cells, free.instance)
        sets = {
            int(free.instance[k]): _Drop(
                (0.0, distance[k]), tuple(np.flatnonzero(violated[k]).tolist()), free.cells[k]
            )
            for k in first_of_each(free.instance, violated.sum(axis=1), distance)
        }
        for i in sorted(sets):
            for restored in sorted(self._droppable, key=lambda k: (not self._is_rule[k], -k)):
                before = sets[i].which
                which = tuple(k for k in before if k != restored)
                if which != before and len(which) > 2:  # sets of one and two were tried before
                    sets |= self._search_without(which, np.array([i]))
            size = len(sets[i].which)
            sets[i] = sets[i]._replace(exact=size == 1 or (exact and size == 3))
        return sets

    # -- amounts ----------------------------------------------------------------------------------

    def _least_amounts(self, instance: int, drop: _Drop) -> tuple[dict[int, _Relaxed], Floats]:
        """Finds how little the constraints of a set have to be relaxed together.

        Where the budget ends, the last amounts that sufficed stand.

        Returns:
            The relaxation of each constraint, and the row of `nearest` under all of them.
        """
        row, original, schema = drop.row, self._originals[instance], self.problem.schema
        enough = {
            k: self._relaxed(k, amount(self._singles[k], schema, row, original), row, original)
            for k in drop.which
        }
        try:
            nearest = self._nearest_with(enough, instance)
            if nearest is None:  # the search does not find its row again: leave them out as a whole
                return dict.fromkeys(drop.which, _Relaxed(None, None)), row
            row = nearest
            for k in drop.which:
                low = 0.0
                while (middle := self._between(k, low, enough[k])) is not None:
                    tried = {**enough, k: self._relaxed(k, middle, row, original)}
                    nearest = self._nearest_with(tried, instance)
                    if nearest is None:
                        low = middle
                    else:
                        enough, row = tried, nearest
        except BudgetError:
            self._cut = True
        return enough, row

    def _nearest_with(self, relaxations: Mapping[int, _Relaxed], instance: int) -> Floats | None:
        """Returns the row of `nearest` with constraints relaxed; None where it is not ok."""
        instead = [each.constraint for each in relaxations.values() if each.constraint is not None]
        constraints = [*self._without(tuple(relaxations)), *instead]
        rows = self._nearest(constraints, np.array([instance]))
        return rows.steps.cells[0] if rows.steps.ok.any() else None

    def _between(self, k: int, low: float, sufficient: _Relaxed) -> float | None:
        """Returns the next amount to try between one that fails and one that suffices."""
        enough = sufficient.by or 0.0
        if sufficient.constraint is None:
            return None
        features = self.problem.schema.features
        steps = [features[c].resolution for c in self._system.bound[k].columns]
        step = min((step for step in steps if step), default=0.0)
        if isinstance(self._singles[k], ChangeLimit):
            step = 1.0
        if enough - low <= max(step, enough * PART) * 1.001:
            return None
        middle = (low + enough) / 2
        if step:
            middle = float(f"{round(middle / step) * step:.12g}")
        return middle if low < middle < enough else None

    def _relaxed(self, k: int, by: float | None, row: Floats, original: Floats) -> _Relaxed:
        """Relaxes a constraint by an amount, or so that it admits a row, or leaves it out.

        One column of a word for several is let go as a whole.
        """
        if self._singles[k] != self._whole[k]:
            return _Relaxed(by, None)
        return _Relaxed(by, relaxed(self._singles[k], self.problem.schema, by, row, original))

    # -- words ------------------------------------------------------------------------------------

    def _relaxable(self, instance: int, drop: _Drop) -> WhyNot:
        """Explains an instance that has a counterfactual without a set."""
        schema, original = self.problem.schema, self._originals[instance]
        relaxations, row = self._least_amounts(instance, drop)
        moves = self._moves(relaxations, row, original)
        quoted = self._quoted(drop.which)
        text = f"{self.explanation.reason[instance]} Without {quoted} the same search finds one"
        if not drop.exact:
            why = "sets of more than two are not all tried"
            if self._cut:
                why = f"{self._n_searched} sets were tried and not all there are"
            text += f"; a smaller set might do as well, for {why}"
        elif len(drop.which) > 1:
            text += "; without fewer it does not"
        text += f". It is enough if {joined([move.text for move in moves])}"
        text += f": {self._changes(row, original)}."
        others = [
            f"to leave out {self._quoted(other.which)} ({self._changes(other.row, original)})"
            for other in drop.others
        ]
        text += f" It would also be enough {joined(others, 'or')}." if others else ""
        names = tuple(dict.fromkeys(str(self._whole[k]) for k in drop.which))
        return WhyNot("none_found", (), names, drop.exact, moves, record(schema, row), text)

    def _quoted(self, which: Set) -> str:
        return joined([f"'{self._singles[k]}'" for k in which])

    def _moves(
        self, relaxations: Mapping[int, _Relaxed], row: Floats, original: Floats
    ) -> tuple[Move, ...]:
        """Returns the relaxation of each constraint; columns of one word are let go together."""
        moves = []
        for whole in dict.fromkeys(self._whole[k] for k in relaxations):
            mine = [k for k in relaxations if self._whole[k] == whole]
            if isinstance(whole, Shorthand) and len(whole.features) > 1:
                free = [c.features[0] for k in mine if isinstance(c := self._singles[k], Shorthand)]
                kept = tuple(name for name in whole.features if name not in free)
                instead = str(replace(whole, features=kept)) if kept else None
                text = f"'{whole}' lets go of {joined(free)}"
                moves.append(Move(str(whole), None, text, instead))
            else:
                moves.append(self._move(mine[0], relaxations[mine[0]], row, original))
        return tuple(moves)

    def _move(self, k: int, sufficient: _Relaxed, row: Floats, original: Floats) -> Move:
        constraint, (by, instead) = self._singles[k], sufficient
        if by == 0.0:
            return Move(str(constraint), by, f"'{constraint}' stays", str(constraint))
        if instead is None:
            why = "it has no amount to relax by"
            if self._relaxed(k, 1.0, row, original).constraint is not None:
                why = "if it is only relaxed, the search does not find the row again"
            return Move(str(constraint), None, f"'{constraint}' is left out ({why})")
        most = "at most " if self._cut else ""
        text = f"'{constraint}' is relaxed to {most}'{instead}'"
        return Move(str(constraint), by, text, str(instead))

    def _not_relaxable(self, instance: int, *, searched: bool) -> WhyNot:
        """Explains an instance for which dropping every constraint does not help."""
        explanation = self.explanation
        path, step = np.nonzero((explanation.instance == instance)[:, None] & (explanation.tau > 0))
        feasible = explanation.feasible[path, step]
        probability = np.nan_to_num(explanation.probability[path, step], nan=-1.0)
        reached = float(probability[feasible].max(initial=-1.0))
        sentences = [explanation.reason[instance]]
        cut = not searched and bool(self._droppable)
        if cut:
            sentences.append(self._why_cut)
        elif searched:
            kept = len(self._droppable) < len(self._singles)
            but = " but the explainer's rules" if kept else ""
            sentences.append(f"Even without any constraint{but} nothing is found.")
        confidence, options = self.problem.confidence, []
        highest = floor(reached * 1000) / 1000  # rounded down: requiring as much succeeds
        if reached >= 0:
            needed = f"; {confidence:.12g} is required" if confidence is not None else ""
            sentences.append(f"The highest probability reached is {highest:g}{needed}.")
        if confidence is not None and reached > 0:
            options.append(f"a confidence of at most {highest:g}")
        if len(self.problem.fitted.labels) > 2:
            options.append("another target")
        options.append("an explainer with more prototypes or more training rows of that label")
        sentences.append(f"What may help: {joined(options, 'or')}.")
        row = None
        if len(path):
            cells, owner = explanation.cells[path, step], np.full(len(path), instance)
            distance = self.problem.distances(cells, owner)
            best = first_of_each(owner, ~feasible, -np.maximum(probability, 0), distance)[0]
            row = record(self.problem.schema, cells[best])
        return WhyNot("none_found", exact=not cut, row=row, text=" ".join(sentences))

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


def _singles(constraint: Constraint) -> Sequence[Constraint]:
    """Returns a constraint for each column of a word for several; else the constraint itself."""
    if isinstance(constraint, Shorthand) and len(constraint.features) > 1:
        return [replace(constraint, features=(name,)) for name in constraint.features]
    return [constraint]
