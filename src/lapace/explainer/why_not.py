"""Why an instance has no counterfactual: the smallest relaxation of the constraints that gives one.

Where no row is feasible, a smallest contradictory set of constraints, and a projection onto the
others for how far each would have to move. Where rows are feasible but none searched was valid, the
same search is run with constraints dropped: first all of them, since nothing else can help where
that fails; then each alone, each pair, and beyond pairs greedily: what the row found without any
constraint violates, restored one by one while the search succeeds. Instances for which the same set
is tried are searched together.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby, product
from math import floor
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints, first_of_each
from lapace.budgets import BudgetError
from lapace.classifiers import Classifier
from lapace.constraints import ChangeLimit, Constraint, Shorthand, System, parse_all
from lapace.constraints.relaxation import joined, relaxation, relaxed, violation_scales
from lapace.errors import ClassifierError, InputError
from lapace.explainer.assemble import Contradictions, with_rows
from lapace.explainer.fit import Fitted
from lapace.explainer.problem import Problem, Search
from lapace.explainer.search import search
from lapace.instances import LabelledInstances
from lapace.model import few_threads
from lapace.result import Explanation, Move, WhyNot, record
from lapace.schema import Reading

__all__ = ["MAX_QUERIES", "with_why_not"]

MAX_QUERIES = 50_000  # rows, where the caller sets no other budget
SEARCHES = 64  # searches for sets of one, two and all constraints, at most
GREEDY = 32  # further searches for larger sets, at most
AMOUNTS = 400  # searches for the least amounts, at most
CORNERS = 3  # numbers of a contradiction whose bounds are combined exhaustively
PART = 1 / 20  # of an amount: how precisely the least one is found
FREE = 1e-3  # cost of a change that matters little
FEW = 5  # changes a sentence names
OTHERS = 2  # further sets a sentence names

Set: TypeAlias = tuple[int, ...]  # constraints of the system, by position, in order


def with_why_not(
    fitted: Fitted,
    classifier: Classifier,
    explanation: Explanation,
    max_queries: int,
    *,
    relax_rules: bool = False,
) -> Explanation:
    """The explanation with `why_not` filled for instances without a counterfactual.

    Args:
        fitted: What `fit` learned.
        classifier: The classifier, with a fresh count of queries.
        explanation: What `explain` returned.
        max_queries: Rows the classifier may be queried about.
        relax_rules: Whether the explainer's rules may be relaxed as well.
    """
    begin = perf_counter()
    problem = _problem_of(fitted, classifier, explanation, max_queries)
    with few_threads(fitted.decoder.model.shape):
        relaxer = _Relaxer(problem, explanation, relax_rules)
        found = relaxer.contradictory() | relaxer.without_valid_row()
        explanation = with_rows(problem, explanation, relaxer.answers)
    return replace(
        explanation,
        why_not=dict(sorted(found.items())),
        n_queries=explanation.n_queries + classifier.n_queries,
        seconds={**explanation.seconds, "why_not": perf_counter() - begin},
    )


def _problem_of(
    fitted: Fitted, classifier: Classifier, explanation: Explanation, max_queries: int
) -> Problem:
    """The problem an explanation solves, searched in the same way."""
    found = (tuple(explanation.labels), explanation.schema.names)
    if found != (fitted.labels, fitted.schema.names):
        raise InputError(
            "This explanation is not one of this explainer's: its labels or columns differ."
        )
    # JSON leaves out what only encoding needs.
    features = tuple(
        replace(feature, knots=known.knots)
        for feature, known in zip(explanation.schema.features, fitted.schema.features, strict=True)
    )
    schema = replace(explanation.schema, features=features)
    constraints: Sequence[str | Constraint] = explanation.request
    if constraints is None:  # read from JSON
        constraints = explanation.constraints
    try:
        system = System.of(parse_all(constraints), schema, check=False)
    except InputError as error:
        raise InputError(
            "The constraints of this explanation cannot be read back, as where one is a Python "
            f"function. Explain again, then ask why not. ({error})"
        ) from None
    codes = {label: code for code, label in enumerate(fitted.labels)}
    label, target = (
        np.array([codes.get(value, -1) for value in values], dtype=np.int64)
        for values in (explanation.label, explanation.target)
    )
    reading = Reading(schema, explanation.instances, {}, explanation.template, explanation.ids)
    unknown = np.full((len(label), len(fitted.labels)), np.nan)
    instances = LabelledInstances(reading, label, unknown, target, malformed={})
    settings = Search(**explanation.search)  # so that it finds what `explain` would
    others = tuple(pick for pick in settings.picks if pick != "best")
    settings = replace(settings, picks=("nearest", *others))
    return Problem(
        fitted,
        classifier,
        instances,
        system,
        settings,
        explanation.costs,
        explanation.confidence,
        explanation.plausibility,
        max_queries,
    )


class FoundRows(NamedTuple):
    """Rows a search found: the ok ones, and of each path without any the most promising."""

    instance: Ints  # the instance each is for
    cells: Floats
    ok: Bools  # valid and feasible
    feasible: Bools  # whether it satisfies the constraints of the search
    probability: Floats  # of the target; NaN where unknown

    @classmethod
    def of(cls, paths: Mapping[str, NDArray[Any]]) -> FoundRows:
        """The rows of paths, arrays by name as in `Explanation`."""
        tau, feasible, probability = paths["tau"], paths["feasible"], paths["probability"]
        ok = (paths["valid"] == 1) & feasible
        score = np.nan_to_num(probability) + 2.0 * feasible + 1e-6 * tau
        score = np.where(tau > 0, score, -np.inf)  # the input is no counterfactual
        none = ~ok.any(axis=1, keepdims=True)
        keep = ok | (none & (score == score.max(axis=1, keepdims=True)))
        instance = paths["instance"][np.nonzero(keep)[0]]
        return cls(instance, paths["cells"][keep], ok[keep], feasible[keep], probability[keep])

    @classmethod
    def of_nearest(cls, rows: Advice) -> FoundRows:
        """The rows of `nearest`."""
        steps = rows.steps
        return cls(rows.instance, steps.cells, steps.ok, steps.feasible, steps.probability)

    def take(self, rows: Bools | Ints) -> FoundRows:
        """A selection of the rows."""
        columns: list[Any] = [column[rows] for column in self]
        return FoundRows(*columns)


class _Drop(NamedTuple):
    """A set that can be dropped for an instance, and the best row of the search without it."""

    cost: tuple[float, float]  # how far the row violates the set, and its distance
    which: Set
    row: Floats
    exact: bool = False  # whether no smaller set can be dropped
    others: tuple[_Drop, ...] = ()  # sets of the same size that would do as well


@dataclass
class _Relaxer:
    """Searches for relaxations, counting its searches.

    Attributes:
        problem: The problem, with a query budget.
        explanation: What was found for it.
        relax_rules: Whether the explainer's rules may be relaxed as well.
        searched: The sets of dropped constraints that were searched.
        answers: Rows found that satisfy every constraint after all, by instance.
        cut: A set was left out: too many of them, the budget spent, or the classifier raised.
        why_cut: Why the search without any constraint failed, in words; empty where it did not.
    """

    problem: Problem
    explanation: Explanation
    relax_rules: bool = False

    def __post_init__(self) -> None:
        self.searched: set[Set] = set()
        self.cut = False
        self.why_cut = ""
        self.answers: dict[int, Floats] = {}
        self.system = self.problem.system
        self.rules = set(self.problem.fitted.rules)
        self.is_rule = [c in self.rules for c in self.system.constraints]
        self.every: Set = tuple(
            k for k, rule in enumerate(self.is_rule) if self.relax_rules or not rule
        )
        self.scales = violation_scales(self.system)
        self.originals = self.problem.instances.cells

    def _with(self, status: str) -> Ints:
        return np.flatnonzero(np.array(self.explanation.status, dtype=object) == status)

    def _distance(self, cells: Floats, instance: Ints) -> Floats:
        return self.problem.schema.gaps(self.originals[instance], cells) @ self.problem.weights

    def _violation(self, cells: Floats, instance: Ints, which: Set | None = None) -> Floats:
        """How far rows are from satisfying a set of constraints, relative to their scales."""
        share = self.system.slack(cells, self.originals[instance]) / self.scales
        total: Floats = (share if which is None else share[:, list(which)]).sum(axis=1)
        return total

    # -- no row is feasible -----------------------------------------------------------------------

    def contradictory(self) -> dict[int, WhyNot]:
        """Instances whose constraints contradict each other, grouped by contradiction."""
        contradictions = Contradictions(self.system)
        groups: dict[tuple[Constraint, ...], list[int]] = {}
        for i in self._with("infeasible").tolist():
            groups.setdefault(contradictions.of(self.originals[i]), []).append(i)
        found: dict[int, WhyNot] = {}
        for contradiction, members in groups.items():
            try:
                found |= self._contradiction(contradiction, np.array(members))
            except BudgetError:  # the contradiction stands, however far each would have to move
                names, reason = tuple(map(str, contradiction)), self.explanation.reason
                found |= {
                    i: WhyNot("infeasible", names, exact=len(names) <= 2, text=reason[i])
                    for i in members
                }
        return found

    def _contradiction(
        self, contradiction: tuple[Constraint, ...], instance: Ints
    ) -> dict[int, WhyNot]:
        """One contradiction: each of its constraints relaxed alone."""
        reason, schema = self.explanation.reason, self.problem.schema
        if not contradiction:  # the solver's limit was reached before it was named
            return {i: WhyNot("infeasible", exact=False, text=reason[i]) for i in instance.tolist()}
        names, movable = tuple(map(str, contradiction)), list(contradiction)
        if not self.relax_rules:
            movable = [c for c in contradiction if c not in self.rules]
        if not movable:
            said = "That is a rule" if len(names) == 1 else "These are rules"
            return {
                i: WhyNot(
                    "infeasible",
                    names,
                    exact=len(names) <= 2,
                    text=f"{reason[i]} {said} of the explainer.",
                )
                for i in instance.tolist()
            }
        tries = [self._relaxed_alone(contradiction, c, instance) for c in movable]
        rows = np.concatenate([cells for cells, _ in tries])
        at = np.tile(np.arange(len(instance)), len(tries))
        best = first_of_each(
            at, self._violation(rows, instance[at]), self._distance(rows, instance[at])
        )
        stuck = np.all([stuck for _, stuck in tries], axis=0)
        found = {}
        for k, i in enumerate(instance.tolist()):
            moves = tuple(
                self._move(constraint, cells[k], i)
                for constraint, (cells, _) in zip(movable, tries, strict=True)
            )
            texts = [move.text for move in moves]
            text = f"{reason[i]} If the others stay, {joined(texts, 'or')}."
            if len(names) == 1:
                text = f"{reason[i]} For any row to satisfy it, {texts[0]}."
            if stuck[k]:
                text += " Even then other constraints would contradict each other."
            row = record(schema, rows[best[k]])
            found[i] = WhyNot("infeasible", names, (), len(names) <= 2, moves, row, text)
        return found

    def _relaxed_alone(
        self, contradiction: tuple[Constraint, ...], constraint: Constraint, instance: Ints
    ) -> tuple[Floats, Bools]:
        """Of rows that satisfy the other constraints, the one that violates this one least.

        Returns:
            A row per instance, and the instances for which the others contradict each other too.
        """
        schema = self.problem.schema
        alone = System.of([constraint], schema, check=False)
        named = {c for b in self.system.bound if b.constraint in contradiction for c in b.columns}
        starts, at = self._starts(sorted(named), self.originals[instance])
        originals = self.originals[instance][at]
        # Other columns cost almost nothing, so that those of this constraint move least.
        columns = {schema.names[c] for c in alone.bound[0].columns}
        movable = [f.name for f in schema.features if f.derived is None]
        costs = {n: 1.0 if n in columns else FREE for n in movable} if columns else None
        after = self.system.without([constraint]).project(starts, originals, costs=costs)
        rows, feasible = after.cells, after.feasible
        stuck = ~np.isin(np.arange(len(instance)), at[feasible])
        if stuck.any():  # satisfy at least the others of this contradiction
            again = np.flatnonzero(stuck[at])
            others = System.of([c for c in contradiction if c != constraint], schema, check=False)
            narrow = others.project(starts[again], originals[again], costs=costs)
            rows[again], feasible[again] = narrow.cells, narrow.feasible
        slack = alone.slack(rows, originals)[:, 0]
        best = first_of_each(at, ~feasible, slack, self._distance(rows, instance[at]))
        return rows[best], stuck

    def _starts(self, columns: Sequence[int], originals: Floats) -> tuple[Floats, Ints]:
        """Where to project from: the instance, and bounds of columns, where slack is least."""
        features = self.problem.schema.features
        numbers = [c for c in columns if features[c].kind == "continuous"]
        bounds = [(None, features[c].lower, features[c].upper) for c in numbers]
        starts = []
        for corner in product(*bounds) if len(numbers) <= CORNERS else zip(*bounds, strict=True):
            rows = originals.copy()
            for c, bound in zip(numbers, corner, strict=True):
                if bound is not None:  # None keeps the instance's value
                    rows[:, c] = bound
            starts.append(np.where(np.isnan(originals), originals, rows))
        return np.concatenate(starts), np.tile(np.arange(len(originals)), len(starts))

    # -- rows are feasible, none was valid --------------------------------------------------------

    def without_valid_row(self) -> dict[int, WhyNot]:
        """Instances for which no ok row was found."""
        instance = self._with("none_found")
        if not len(instance):
            return {}
        free = self._search_without(self.every, instance) if self.every else None
        hopeful = instance if free is None else np.unique(free.instance[free.ok])
        drops = self._small_sets(hopeful, free)
        left = np.setdiff1d(hopeful, list(drops))
        if free is not None and len(left):
            drops |= self._large_sets(free.take(np.isin(free.instance, left)))
        self._note_answers({i: drop.row for i, drop in drops.items()})
        moves = self._least_moves({i: d for i, d in drops.items() if i not in self.answers})
        self._note_answers({i: row for i, (_, row) in moves.items()})
        return {
            i: self._droppable(i, drops[i], *moves[i])
            if i in drops
            else self._not_relaxable(i, free)
            for i in instance.tolist()
            if i not in self.answers
        }

    def _note_answers(self, rows: Mapping[int, Floats]) -> None:
        """Keeps the rows that satisfy every constraint after all."""
        for i, row in rows.items():
            if self.system.feasible(row[None], self.originals[[i]])[0]:
                self.answers[i] = row

    def _under(self, system: System) -> Problem:
        """The same problem under other constraints."""
        return replace(self.problem, system=system, nodes=self.problem.nodes.fresh())

    def _search_without(self, which: Set, instance: Ints) -> FoundRows | None:
        """What the same search finds without a set of constraints; None where it was cut short."""
        self.searched.add(which)
        dropped = [self.system.constraints[k] for k in which]
        problem = self._under(self.system.without(dropped))
        parts = [self._rows_of(instance[:0])]
        try:
            for _, found in search(problem, instance):
                if found.paths is not None:
                    parts.append(FoundRows.of(found.paths))
                    parts.append(FoundRows.of_nearest(found.advice["nearest"]))
        except (QueryBudgetError, BudgetError):
            self.cut, self.why_cut = True, "The query budget ended before any set could be tried."
            return None
        except ClassifierError:  # a dropped rule may have kept such rows from the classifier
            self.problem.classifier.query(self.originals[instance[:1]], self.problem.schema)
            self.cut = True
            self.why_cut = "The classifier raises on too many rows that the constraints exclude."
            return None
        return FoundRows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _rows_of(self, instance: Ints) -> FoundRows:
        """The rows the explanation has of instances."""
        mine = np.isin(self.explanation.instance, instance)
        names = ("instance", "tau", "cells", "valid", "feasible", "probability")
        return FoundRows.of({name: getattr(self.explanation, name)[mine] for name in names})

    def _drops(self, which: Set, found: FoundRows | None) -> dict[int, _Drop]:
        """Of each instance the ok row that violates a set least, then the nearest."""
        if found is None:
            return {}
        rows = found.take(found.ok)
        violated = self._violation(rows.cells, rows.instance, which)
        distance = self._distance(rows.cells, rows.instance)
        return {
            int(rows.instance[k]): _Drop((violated[k], distance[k]), which, rows.cells[k])
            for k in first_of_each(rows.instance, violated, distance)
        }

    def _small_sets(self, instance: Ints, free: FoundRows | None) -> dict[int, _Drop]:
        """The smallest sets of one or two; of equals the one whose row violates it least.

        Of sets of the same size those with fewer rules come first.
        """

        def rank(which: Set) -> tuple[int, int]:
            return len(which), sum(self.is_rule[k] for k in which)

        sets = [which for size in (1, 2) for which in combinations(self.every, size)]
        drops: dict[int, _Drop] = {}
        for (size, _), equals in groupby(sorted(sets, key=rank), rank):
            left = np.setdiff1d(instance, list(drops))
            if not len(left):
                break
            exact = not self.cut or size == 1  # no set is smaller than one
            enough: dict[int, list[_Drop]] = {}
            for which in equals:
                if which == self.every:  # searched already
                    found = free and free.take(np.isin(free.instance, left))
                elif len(self.searched) < SEARCHES:
                    found = self._search_without(which, left)
                else:
                    self.cut = True
                    break
                for i, drop in self._drops(which, found).items():
                    enough.setdefault(i, []).append(drop)
            for i, found_sets in enough.items():
                best, *others = sorted(found_sets, key=lambda drop: drop.cost)
                drops[i] = best._replace(exact=exact, others=tuple(others[:OTHERS]))
        return drops

    def _large_sets(self, free: FoundRows) -> dict[int, _Drop]:
        """Larger sets: what the best free row violates, then restored one by one."""
        drops, exact = self._drops(self.every, free), not self.cut
        rows = free.take(free.ok)
        violated = ~self.system.holds(rows.cells, self.originals[rows.instance])
        fewest = first_of_each(
            rows.instance, violated.sum(axis=1), self._violation(rows.cells, rows.instance)
        )
        sets = {int(rows.instance[k]): tuple(np.flatnonzero(violated[k]).tolist()) for k in fewest}
        tried = 0
        rules_first = sorted(self.every, key=lambda k: (not self.is_rule[k], -k))
        for restored in (None, *rules_first):
            if restored is not None:
                sets = {
                    i: tuple(k for k in drop.which if k != restored)
                    for i, drop in drops.items()
                    if restored in drop.which
                }
            # All sets of one and two were tried without success, and so was the set of all.
            sets = {i: which for i, which in sets.items() if 2 < len(which) < len(self.every)}
            for which in dict.fromkeys(sets.values()):  # instances with the same set together
                if tried == GREEDY:
                    self.cut = True
                    break
                tried += 1
                members = np.array([i for i, other in sets.items() if other == which])
                drops |= self._drops(which, self._search_without(which, members))
        return {i: drop._replace(exact=exact and len(drop.which) == 3) for i, drop in drops.items()}

    # -- in words ---------------------------------------------------------------------------------

    def _droppable(
        self, instance: int, drop: _Drop, moves: tuple[Move, ...], row: Floats
    ) -> WhyNot:
        schema, original = self.problem.schema, self.originals[instance]
        dropped = [self.system.constraints[k] for k in drop.which]
        quoted = joined([f"'{c}'" for c in dropped])
        text = f"{self.explanation.reason[instance]} Without {quoted} the same search finds one"
        if not drop.exact:
            why = "sets of more than two are not all tried"
            if self.cut:
                why = f"{len(self.searched)} sets were tried and not all there are"
            text += f"; a smaller set might do as well, for {why}"
        elif len(dropped) > 1:
            text += "; without fewer it does not"
        text += f". It is enough if {joined([move.text for move in moves])}"
        text += f": {self._changes(row, original)}."
        others = [self._other(other, original) for other in drop.others]
        text += f" It would also be enough {joined(others, 'or')}." if others else ""
        names = tuple(map(str, dropped))
        return WhyNot("none_found", (), names, drop.exact, moves, record(schema, row), text)

    def _other(self, drop: _Drop, original: Floats) -> str:
        """Another set that can be dropped, and the row then found."""
        quoted = joined([f"'{self.system.constraints[k]}'" for k in drop.which])
        return f"to leave out {quoted} ({self._changes(drop.row, original)})"

    # -- the least amounts ------------------------------------------------------------------------

    def _least_moves(
        self, drops: Mapping[int, _Drop]
    ) -> dict[int, tuple[tuple[Move, ...], Floats]]:
        """How little the constraints of each instance's set have to be relaxed together.

        Instances that try the same constraints are searched together. Where the query budget or
        the number of searches ends, the last amounts that sufficed stand.

        Returns:
            By instance the relaxations, and what `nearest` returns with them.
        """
        tries = {i: self._amounts(i, drop) for i, drop in drops.items()}
        wanted = {i: next(amounts) for i, amounts in tries.items()}
        found: dict[int, tuple[tuple[Move, ...], Floats]] = {}
        searches = 0
        while wanted:
            groups: dict[tuple[Constraint, ...], list[int]] = {}
            for i, constraints in wanted.items():
                groups.setdefault(constraints, []).append(i)
            wanted = {}
            for constraints, members in groups.items():
                searches += 1
                try:
                    if searches > AMOUNTS:
                        raise QueryBudgetError("The number of searches is spent.")
                    rows: dict[int, Floats] | None = self._nearest_under(constraints, members)
                except (QueryBudgetError, BudgetError):
                    rows, self.cut = None, True
                for i in members:
                    try:
                        wanted[i] = tries[i].send(False if rows is None else rows.get(i))
                    except StopIteration as stop:
                        found[i] = stop.value
        return found

    def _amounts(
        self, instance: int, drop: _Drop
    ) -> Generator[
        tuple[Constraint, ...], Floats | Literal[False] | None, tuple[tuple[Move, ...], Floats]
    ]:
        """One instance's least amounts, one constraint after another.

        Yields:
            Constraints to search under; sent is what `nearest` returns, None where that is not ok,
            False where nothing may be searched any more.
        """
        row, original = drop.row, self.originals[instance]
        amounts: dict[int, float | None] = {}
        for k in drop.which:
            constraint = self.system.constraints[k]
            amounts[k] = relaxation(constraint, self.problem.schema, row, original).by
        found = yield self._relaxed_by(amounts, row, original)
        whole = found is None
        if whole:  # the search does not find its row again: leave them out as a whole
            amounts = dict.fromkeys(drop.which)
            found = yield self._relaxed_by(amounts, None, original)
        row = drop.row if found is None or found is False else found
        for k in drop.which:
            low, enough = 0.0, amounts[k] or 0.0
            if found is False or self._relaxed(k, enough, row, original) is None:
                continue
            while (middle := self._between(k, low, enough)) is not None:
                found = yield self._relaxed_by({**amounts, k: middle}, row, original)
                if found is False:
                    break
                if found is None:
                    low = middle
                else:
                    amounts[k], enough, row = middle, middle, found
        complete = found is not False
        moves = (
            self._left_out(k, row, original)
            if whole
            else self._move_by(k, amounts[k], row, original, complete)
            for k in drop.which
        )
        return tuple(moves), row

    def _between(self, k: int, low: float, enough: float) -> float | None:
        """The next amount to be tried between one that fails and one that suffices."""
        if self._is_several(k):
            return None
        whole = isinstance(self.system.constraints[k], ChangeLimit)
        step = 1.0 if whole else self._resolution(k)
        if enough - low <= max(step, enough * PART) * 1.001:
            return None
        middle = (low + enough) / 2
        if step:
            middle = float(f"{round(middle / step) * step:.12g}")
        return middle if low < middle < enough else None

    def _is_several(self, k: int) -> bool:
        """Whether a constraint is a word for several columns, some of which can be let go."""
        constraint = self.system.constraints[k]
        return isinstance(constraint, Shorthand) and len(constraint.features) > 1

    def _resolution(self, k: int) -> float:
        """The least difference a constraint's amount can make: the finest step of its columns."""
        features = self.problem.schema.features
        steps = [features[c].resolution for c in self.system.bound[k].columns]
        return min((step for step in steps if step), default=0.0)

    def _relaxed(
        self, k: int, by: float | None, row: Floats | None, original: Floats
    ) -> Constraint | None:
        """A constraint relaxed by an amount; None where it has to be left out."""
        if row is None:
            return None
        return relaxed(self.system.constraints[k], self.problem.schema, by, row, original)

    def _relaxed_by(
        self, amounts: Mapping[int, float | None], row: Floats | None, original: Floats
    ) -> tuple[Constraint, ...]:
        """All constraints, some of them relaxed by amounts or, without a row, left out."""
        chosen = [
            self._relaxed(k, amounts[k], row, original) if k in amounts else constraint
            for k, constraint in enumerate(self.system.constraints)
        ]
        return tuple(c for c in chosen if c is not None)

    def _nearest_under(
        self, constraints: tuple[Constraint, ...], instance: Sequence[int]
    ) -> dict[int, Floats]:
        """What `nearest` returns under constraints, by instance, where that is ok."""
        system = System.of(constraints, self.problem.schema, check=False)
        found = {}
        for _, part in search(self._under(system), np.array(instance)):
            if part.paths is not None:
                rows = part.advice["nearest"]
                for k in np.flatnonzero(rows.steps.ok):
                    found[int(rows.instance[k])] = rows.steps.cells[k]
        return found

    def _left_out(self, k: int, row: Floats, original: Floats) -> Move:
        """A constraint that is left out, and why it is not relaxed."""
        why = "it has no amount to relax by"
        if self._relaxed(k, 1.0, row, original) is not None:
            why = "if it is only relaxed, the search does not find the row again"
        text = f"'{self.system.constraints[k]}' is left out ({why})"
        return Move(str(self.system.constraints[k]), None, text)

    def _move_by(
        self, k: int, by: float | None, row: Floats, original: Floats, complete: bool
    ) -> Move:
        """The relaxation of one constraint, in words."""
        constraint = self.system.constraints[k]
        instead = self._relaxed(k, by, row, original)
        if by == 0.0:
            return Move(str(constraint), by, f"'{constraint}' stays", str(constraint))
        if instead is None:
            return self._left_out(k, row, original)
        if isinstance(instead, Shorthand) and isinstance(constraint, Shorthand):
            free = [name for name in constraint.features if name not in instead.features]
            text = f"'{constraint}' lets go of {joined(free)}"
            return Move(str(constraint), None, text, str(instead))
        most = "" if complete else "at most "
        text = f"'{constraint}' is relaxed to {most}'{instead}'"
        return Move(str(constraint), by, text, str(instead))

    def _not_relaxable(self, instance: int, free: FoundRows | None) -> WhyNot:
        """Nothing can be dropped, or dropping everything does not help."""
        seen = self._rows_of(np.array([instance]))
        reached = _highest(seen.take(seen.feasible))
        text = [self.explanation.reason[instance]]
        cut = free is None and bool(self.every)
        if cut:
            text.append(self.why_cut)
        elif free is not None:
            kept = len(self.every) < len(self.system)
            but = " but the explainer's rules" if kept else ""
            text.append(f"Even without any constraint{but} nothing is found.")
            reached = max(reached, _highest(free.take(free.instance == instance)))
        confidence, options = self.problem.confidence, []
        highest = floor(reached * 1000) / 1000  # rounded down: requiring as much succeeds
        if reached >= 0:
            needed = f"; {confidence:.12g} is required" if confidence is not None else ""
            text.append(f"The highest probability reached is {highest:g}{needed}.")
        if confidence is not None and reached > 0:
            options.append(f"a confidence of at most {highest:g}")
        if len(self.problem.fitted.labels) > 2:
            options.append("another target")
        options.append("an explainer with more prototypes or more training rows of that label")
        text.append(f"What may help: {joined(options, 'or')}.")
        row = None
        if len(seen.instance):
            far = self._distance(seen.cells, seen.instance)
            best = first_of_each(
                seen.instance, ~seen.feasible, -np.nan_to_num(seen.probability), far
            )[0]
            row = record(self.problem.schema, seen.cells[best])
        return WhyNot("none_found", exact=not cut, row=row, text=" ".join(text))

    def _move(self, constraint: Constraint, row: Floats, instance: int) -> Move:
        schema, original = self.problem.schema, self.originals[instance]
        by, text = relaxation(constraint, schema, row, original)
        instead = relaxed(constraint, schema, by, row, original)
        if instead is not None:
            others = [c for c in self.system.constraints if c != constraint]
            system = System.of([*others, instead], schema, check=False)
            instead = None if system.contradiction(original) else instead
        shown = None if instead is None else str(instead)
        return Move(str(constraint), by, f"'{constraint}' {text}", shown)

    def _changes(self, row: Floats, original: Floats) -> str:
        """What differs from the instance, at most a few columns of it: `age 30 → 40`."""
        schema = self.problem.schema
        each = zip(schema.features, original, row, schema.changed(original, row), strict=True)
        texts = [
            f"{f.name} {f.text(old)} → {f.text(new)}" for f, old, new, differs in each if differs
        ]
        if len(texts) > FEW + 1:
            texts = [*texts[:FEW], f"{len(texts) - FEW} more"]
        return joined(texts)


def _highest(found: FoundRows) -> float:
    """The highest known probability; -1 where none is known."""
    return float(np.nan_to_num(found.probability, nan=-1.0).max(initial=-1.0))
