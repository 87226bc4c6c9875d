"""Why an instance has no counterfactual: the smallest relaxation of the constraints that gives one.

Where no row is feasible, it is a smallest contradictory set of constraints, and how far each of
them would have to move: a projection onto the others says so. Where rows are feasible but none
searched was valid, the same search is run without some constraints: without all of them, since
nothing else can help where that fails; without each alone, without each pair; beyond pairs
greedily, by restoring one by one what the best row without constraints violates. A word for several
columns, such as `fixed a, b`, counts as one constraint for each of them. Every relaxation that is
named was searched under, so its row is what `nearest` then returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, groupby, product
from math import floor
from time import perf_counter
from typing import NamedTuple, TypeAlias

import numpy as np

from lapace.arrays import Bools, Floats, Ints, first_of_each
from lapace.budgets import Budget, BudgetError, limited
from lapace.classifiers import Classifier
from lapace.constraints import ChangeLimit, Constraint, Shorthand, System, parse_all
from lapace.constraints.relaxation import joined, relaxation, relaxed, violation_scales
from lapace.errors import ClassifierError, InputError
from lapace.explainer.assemble import Contradictions, with_rows
from lapace.explainer.fit import Fitted
from lapace.explainer.problem import Candidates, Problem, Search
from lapace.explainer.search import Found, MinimalRows, search
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

Set: TypeAlias = tuple[int, ...]  # single constraints, by position, in order


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
    problem = _problem_of(fitted, classifier, explanation)
    with few_threads(fitted.decoder.model.shape), limited(Budget(queries=max_queries)):
        why = _contradictory(problem, explanation, relax_rules)
        relaxer = _Relaxer(problem, explanation, relax_rules)
        why |= relaxer.without_valid_row()
        for rows in relaxer.answers:
            new = np.array([explanation.status[i] != "answered" for i in rows.instance])
            explanation = with_rows(problem, explanation, rows.take(new))
    return replace(
        explanation,
        why_not=dict(sorted(why.items())),
        n_queries=explanation.n_queries + classifier.n_queries,
        seconds={**explanation.seconds, "why_not": perf_counter() - begin},
    )


def _problem_of(fitted: Fitted, classifier: Classifier, explanation: Explanation) -> Problem:
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
    try:
        settings = Search(**explanation.search)  # so that it finds what `explain` would
    except TypeError:
        raise InputError(
            "This explanation was made by another version of lapace. Explain again, then ask why "
            "not."
        ) from None
    settings = replace(settings, picks=("nearest",))
    return Problem(
        fitted,
        classifier,
        instances,
        system,
        settings,
        explanation.costs,
        explanation.confidence,
        explanation.plausibility,
    )


# ------------------------------------------------------------------------------------------------
# No row is feasible


def _with_status(explanation: Explanation, status: str) -> Ints:
    return np.flatnonzero(np.array(explanation.status, dtype=object) == status)


def _contradictory(
    problem: Problem, explanation: Explanation, relax_rules: bool
) -> dict[int, WhyNot]:
    """Explains instances whose constraints contradict each other, grouped by contradiction."""
    contradictions = Contradictions(problem.system)
    groups: dict[tuple[Constraint, ...], list[int]] = {}
    for i in _with_status(explanation, "infeasible").tolist():
        groups.setdefault(contradictions.of(problem.instances.cells[i]), []).append(i)
    why: dict[int, WhyNot] = {}
    for contradiction, members in groups.items():
        one = _Contradiction(problem, contradiction, explanation.reason, relax_rules)
        try:
            why |= one.explained(np.array(members))
        except BudgetError:  # the contradiction stands, however far each would have to move
            why |= {i: one.why(i) for i in members}
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
        tries = [self._relaxed_alone(c, instance) for c in movable]
        rows = np.concatenate([cells for cells, _ in tries])
        owner = np.tile(np.arange(len(instance)), len(tries))
        slack = problem.system.slack(rows, problem.instances.cells[instance[owner]])
        violation = (slack / violation_scales(problem.system)).sum(axis=1)
        best = first_of_each(owner, violation, problem.distances(rows, instance[owner]))
        stuck = np.all([stuck for _, stuck in tries], axis=0)
        why = {}
        for k, i in enumerate(instance.tolist()):
            moves = tuple(
                self._move(constraint, cells[k], i)
                for constraint, (cells, _) in zip(movable, tries, strict=True)
            )
            texts = [move.text for move in moves]
            text = f" If the others stay, {joined(texts, 'or')}."
            if count == 1:
                text = f" For any row to satisfy it, {texts[0]}."
            if stuck[k]:
                text += " Even then other constraints would contradict each other."
            row = record(problem.schema, rows[best[k]])
            why[i] = replace(self.why(i, text), moves=moves, row=row)
        return why

    def _relaxed_alone(self, constraint: Constraint, instance: Ints) -> tuple[Floats, Bools]:
        """Finds, among rows that satisfy the others, the one that violates a constraint least.

        Returns:
            A row per instance, and the instances for which the others contradict each other too.
        """
        problem, schema = self.problem, self.problem.schema
        alone = System.of([constraint], schema, check=False)
        bound = [b for b in problem.system.bound if b.constraint in self.constraints]
        starts, owner = self._starts(sorted({c for b in bound for c in b.columns}), instance)
        originals = problem.instances.cells[instance][owner]
        # Other columns cost almost nothing, so that those of this constraint move least.
        columns = {schema.names[c] for c in alone.bound[0].columns}
        movable = [f.name for f in schema.features if f.derived is None]
        costs = {n: 1.0 if n in columns else FREE for n in movable} if columns else None
        after = problem.system.without([constraint]).project(starts, originals, costs=costs)
        rows, feasible = after.cells, after.feasible
        stuck = ~np.isin(np.arange(len(instance)), owner[feasible])
        if stuck.any():  # satisfy at least the others of this contradiction
            again = np.flatnonzero(stuck[owner])
            others = [c for c in self.constraints if c != constraint]
            narrow = System.of(others, schema, check=False)
            moved = narrow.project(starts[again], originals[again], costs=costs)
            rows[again], feasible[again] = moved.cells, moved.feasible
        slack = alone.slack(rows, originals)[:, 0]
        best = first_of_each(owner, ~feasible, slack, problem.distances(rows, instance[owner]))
        return rows[best], stuck

    def _starts(self, columns: Sequence[int], instance: Ints) -> tuple[Floats, Ints]:
        """Where to project from: the instance, and bounds of columns, where slack is least."""
        features, originals = self.problem.schema.features, self.problem.instances.cells[instance]
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

    def _move(self, constraint: Constraint, row: Floats, instance: int) -> Move:
        schema, original = self.problem.schema, self.problem.instances.cells[instance]
        by, text = relaxation(constraint, schema, row, original)
        instead = relaxed(constraint, schema, by, row, original)
        if instead is not None:
            others = [c for c in self.problem.system.constraints if c != constraint]
            system = System.of([*others, instead], schema, check=False)
            instead = None if system.contradiction(original) else instead
        shown = None if instead is None else str(instead)
        return Move(str(constraint), by, f"'{constraint}' {text}", shown)


# ------------------------------------------------------------------------------------------------
# Rows are feasible, none was valid


class _Drop(NamedTuple):
    """A set that can be dropped for an instance, and the row that `nearest` then returns."""

    cost: tuple[float, float]  # how far the row violates the set, and its distance
    which: Set
    row: Floats
    exact: bool = False  # whether no smaller set can be dropped
    others: tuple[_Drop, ...] = ()  # sets of the same size that would do as well


class _Relaxed(NamedTuple):
    """How a constraint is relaxed."""

    by: float | None  # in its own units; None where it has no amount
    constraint: Constraint | None  # what holds instead; None where it is left out


class _SearchesSpentError(BudgetError):
    """No more searches may be made."""


@dataclass
class _Relaxer:
    """Searches for the smallest relaxation, counting its searches.

    Attributes:
        problem: The problem.
        explanation: What was found for it.
        relax_rules: Whether the explainer's rules may be relaxed as well.
    """

    problem: Problem
    explanation: Explanation
    relax_rules: bool

    def __post_init__(self) -> None:
        constraints, rules = self.problem.system.constraints, set(self.problem.fitted.rules)
        pairs = [(single, whole) for whole in constraints for single in _singles(whole)]
        self.singles = tuple(single for single, _ in pairs)
        self.whole = tuple(whole for _, whole in pairs)  # of which each is a part
        self.is_rule = [whole in rules for whole in self.whole]
        self.every: Set = tuple(
            k for k, rule in enumerate(self.is_rule) if self.relax_rules or not rule
        )
        self.system = System.of(self.singles, self.problem.schema, check=False)
        self.originals = self.problem.instances.cells
        self.searched = 0  # sets
        self.amounts = 0  # searches for amounts
        self.cut = False  # whether a set was left out, for whatever reason
        self.why_cut = ""  # why the search without any constraint failed, in words
        self.answers: list[MinimalRows] = []  # rows that satisfy every constraint after all

    def without_valid_row(self) -> dict[int, WhyNot]:
        """Explains instances for which no ok row was found."""
        instance = _with_status(self.explanation, "none_found")
        if not len(instance):
            return {}
        free = self._free_rows(instance)
        hopeful = instance if free is None else np.unique(free.instance)
        drops = self._small_sets(hopeful) if self.every else {}
        left = np.setdiff1d(hopeful, list(drops))
        if free is not None and len(left):
            drops |= self._large_sets(free, left)
        why = {}
        for i in instance.tolist():
            if any(i in rows.instance for rows in self.answers):
                continue
            if i in drops:
                why[i] = self._droppable(i, drops[i])
            else:
                why[i] = self._not_relaxable(i, found=free is not None)
        return why

    # -- searches ---------------------------------------------------------------------------------

    def _under(self, constraints: Iterable[Constraint], instance: Ints) -> MinimalRows:
        """What `nearest` returns under other constraints.

        Every search begins with what is found without the query's constraints: it is the same for
        all of them, so it is searched for once.
        """
        system = System.of(constraints, self.problem.schema, check=False)
        problem = replace(self.problem, system=system)
        free = None if problem.without_constraints is None else self._free
        return search(problem, instance, free).rows["nearest"]

    @cached_property
    def _free(self) -> Found:
        """The rows found under the rules alone; none where the classifier raises on such rows."""
        problem = self.problem.without_constraints or self.problem
        instance = _with_status(self.explanation, "none_found")
        try:
            return search(problem, instance)
        except ClassifierError:
            self._excluded(instance)
            none = Candidates.of(self.originals[:0], instance[:0])
            return Found(None, {}, none, frozenset(), frozenset(), {})

    def _excluded(self, instance: Ints) -> None:
        """Notes that constraints keep rows from the classifier; raises if it is broken itself."""
        self.problem.classifier.query(self.originals[instance[:1]], self.problem.schema)
        self.cut = True
        self.why_cut = "The classifier raises on too many rows that the constraints exclude."

    def _free_rows(self, instance: Ints) -> Candidates | None:
        """Ok rows found without any constraint that may go; None where that cannot be searched."""
        if not self.every:
            return None
        try:
            if not self.relax_rules:
                free = self._free.minimal
                return None if self.why_cut else free
            rows = self._under(self._without(self.every), instance)
        except BudgetError:
            self.cut, self.why_cut = True, "The query budget ended before any set could be tried."
            return None
        except ClassifierError:
            self._excluded(instance)
            return None
        rows = rows.take(rows.steps.ok)
        return Candidates.of(rows.steps.cells, rows.instance)

    def _without(self, which: Set) -> list[Constraint]:
        """All constraints but a set; what is whole stays whole."""
        gone = {self.whole[k] for k in which}
        singles = enumerate(zip(self.singles, self.whole, strict=True))
        return [
            single if whole in gone else whole for k, (single, whole) in singles if k not in which
        ]

    def _search_without(self, which: Set, instance: Ints) -> dict[int, _Drop]:
        """What `nearest` returns without a set, by instance, where that is ok."""
        self.searched += 1
        try:
            rows = self._under(self._without(which), instance)
        except BudgetError:
            self.cut = True
            return {}
        except ClassifierError:
            self._excluded(instance)
            return {}
        every = self.system.feasible(rows.steps.cells, self.originals[rows.instance])
        if (answered := rows.steps.ok & every).any():
            self.answers.append(rows.take(answered))
        violated = self._violation(rows.steps.cells, rows.instance, which)
        far = self.problem.distances(rows.steps.cells, rows.instance)
        return {
            int(rows.instance[k]): _Drop((violated[k], far[k]), which, rows.steps.cells[k])
            for k in np.flatnonzero(rows.steps.ok)
        }

    def _violation(self, cells: Floats, instance: Ints, which: Set) -> Floats:
        """How far rows are from satisfying a set, relative to the scales of its constraints."""
        share = self.system.slack(cells, self.originals[instance]) / violation_scales(self.system)
        total: Floats = share[:, list(which)].sum(axis=1)
        return total

    # -- sets -------------------------------------------------------------------------------------

    def _small_sets(self, instance: Ints) -> dict[int, _Drop]:
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
                if self.searched >= SEARCHES:
                    self.cut = True
                    break
                for i, drop in self._search_without(which, left).items():
                    enough.setdefault(i, []).append(drop)
            for i, found in enough.items():
                best, *others = sorted(found, key=lambda drop: drop.cost)
                drops[i] = best._replace(exact=exact, others=tuple(others[:OTHERS]))
        return drops

    def _large_sets(self, free: Candidates, instance: Ints) -> dict[int, _Drop]:
        """Larger sets: what the best free row violates, then restored one by one."""
        free, exact = free.take(np.isin(free.instance, instance)), not self.cut
        violated = ~self.system.holds(free.cells, self.originals[free.instance])
        violated[:, [k for k in range(len(self.singles)) if k not in self.every]] = False
        far = self.problem.distances(free.cells, free.instance)
        fewest = first_of_each(free.instance, violated.sum(axis=1), far)
        sets = {
            int(free.instance[k]): _Drop(
                (0.0, float(far[k])), tuple(np.flatnonzero(violated[k]).tolist()), free.cells[k]
            )
            for k in fewest
        }
        tried = 0
        for i in sorted(sets):
            for restored in sorted(self.every, key=lambda k: (not self.is_rule[k], -k)):
                before = sets[i].which
                which = tuple(k for k in before if k != restored)
                # Sets of one and two were tried before.
                if which == before or len(which) <= 2:
                    continue
                if tried == GREEDY:
                    self.cut = True
                    break
                tried += 1
                sets |= self._search_without(which, np.array([i]))
            size = len(sets[i].which)
            sets[i] = sets[i]._replace(exact=size == 1 or (exact and size == 3))
        return sets

    # -- amounts ----------------------------------------------------------------------------------

    def _least_amounts(self, instance: int, drop: _Drop) -> tuple[dict[int, _Relaxed], Floats]:
        """How little the constraints of a set have to be relaxed together.

        Where the budget or the number of searches ends, the last amounts that sufficed stand.

        Returns:
            The relaxation of each constraint, and what `nearest` returns under all of them.
        """
        row, original, schema = drop.row, self.originals[instance], self.problem.schema
        enough = {
            k: self._relaxed(
                k, relaxation(self.singles[k], schema, row, original).by, row, original
            )
            for k in drop.which
        }
        try:
            found = self._nearest_with(enough, instance)
            if found is None:  # the search does not find its row again: leave them out as a whole
                return dict.fromkeys(drop.which, _Relaxed(None, None)), row
            row = found
            for k in drop.which:
                low = 0.0
                while (middle := self._between(k, low, enough[k])) is not None:
                    tried = {**enough, k: self._relaxed(k, middle, row, original)}
                    found = self._nearest_with(tried, instance)
                    if found is None:
                        low = middle
                    else:
                        enough, row = tried, found
        except BudgetError:
            self.cut = True
        return enough, row

    def _nearest_with(self, relaxations: Mapping[int, _Relaxed], instance: int) -> Floats | None:
        """What `nearest` returns with some constraints relaxed; None where it is not ok."""
        self.amounts += 1
        if self.amounts > AMOUNTS:
            raise _SearchesSpentError("The number of searches is spent.")
        instead = [each.constraint for each in relaxations.values() if each.constraint is not None]
        constraints = [*self._without(tuple(relaxations)), *instead]
        rows = self._under(constraints, np.array([instance]))
        return rows.steps.cells[0] if rows.steps.ok.any() else None

    def _between(self, k: int, low: float, sufficient: _Relaxed) -> float | None:
        """The next amount to be tried between one that fails and one that suffices."""
        enough = sufficient.by or 0.0
        if sufficient.constraint is None:
            return None
        step = 1.0 if isinstance(self.singles[k], ChangeLimit) else self._resolution(k)
        if enough - low <= max(step, enough * PART) * 1.001:
            return None
        middle = (low + enough) / 2
        if step:
            middle = float(f"{round(middle / step) * step:.12g}")
        return middle if low < middle < enough else None

    def _resolution(self, k: int) -> float:
        """The least difference a constraint's amount can make: the finest step of its columns."""
        features = self.problem.schema.features
        steps = [features[c].resolution for c in self.system.bound[k].columns]
        return min((step for step in steps if step), default=0.0)

    def _relaxed(self, k: int, by: float | None, row: Floats, original: Floats) -> _Relaxed:
        """A constraint relaxed by an amount, or so that it admits a row, or left out.

        One column of a word for several is let go as a whole.
        """
        if self.singles[k] != self.whole[k]:
            return _Relaxed(by, None)
        return _Relaxed(by, relaxed(self.singles[k], self.problem.schema, by, row, original))

    # -- in words ---------------------------------------------------------------------------------

    def _droppable(self, instance: int, drop: _Drop) -> WhyNot:
        schema, original = self.problem.schema, self.originals[instance]
        relaxations, row = self._least_amounts(instance, drop)
        moves = self._moves(relaxations, row, original)
        quoted = self._quoted(drop.which)
        text = f"{self.explanation.reason[instance]} Without {quoted} the same search finds one"
        if not drop.exact:
            why = "sets of more than two are not all tried"
            if self.cut:
                why = f"{self.searched} sets were tried and not all there are"
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
        names = tuple(dict.fromkeys(str(self.whole[k]) for k in drop.which))
        return WhyNot("none_found", (), names, drop.exact, moves, record(schema, row), text)

    def _quoted(self, which: Set) -> str:
        return joined([f"'{self.singles[k]}'" for k in which])

    def _moves(
        self, relaxations: Mapping[int, _Relaxed], row: Floats, original: Floats
    ) -> tuple[Move, ...]:
        """The relaxation of each constraint, in words; columns of one word are let go together."""
        moves = []
        for whole in dict.fromkeys(self.whole[k] for k in relaxations):
            mine = [k for k in relaxations if self.whole[k] == whole]
            if isinstance(whole, Shorthand) and len(whole.features) > 1:
                free = [c.features[0] for k in mine if isinstance(c := self.singles[k], Shorthand)]
                kept = tuple(name for name in whole.features if name not in free)
                instead = str(replace(whole, features=kept)) if kept else None
                text = f"'{whole}' lets go of {joined(free)}"
                moves.append(Move(str(whole), None, text, instead))
            else:
                moves.append(self._move(mine[0], relaxations[mine[0]], row, original))
        return tuple(moves)

    def _move(self, k: int, sufficient: _Relaxed, row: Floats, original: Floats) -> Move:
        constraint, (by, instead) = self.singles[k], sufficient
        if by == 0.0:
            return Move(str(constraint), by, f"'{constraint}' stays", str(constraint))
        if instead is None:
            why = "it has no amount to relax by"
            if self._relaxed(k, 1.0, row, original).constraint is not None:
                why = "if it is only relaxed, the search does not find the row again"
            return Move(str(constraint), None, f"'{constraint}' is left out ({why})")
        most = "at most " if self.cut else ""
        text = f"'{constraint}' is relaxed to {most}'{instead}'"
        return Move(str(constraint), by, text, str(instead))

    def _not_relaxable(self, instance: int, *, found: bool) -> WhyNot:
        """Nothing can be dropped, or dropping everything does not help."""
        whole = self.explanation
        path, step = np.nonzero((whole.instance == instance)[:, None] & (whole.tau > 0))
        feasible, likely = whole.feasible[path, step], whole.probability[path, step]
        reached = float(np.nan_to_num(likely[feasible], nan=-1.0).max(initial=-1.0))
        text = [whole.reason[instance]]
        cut = not found and bool(self.every)
        if cut:
            text.append(self.why_cut)
        elif found:
            kept = len(self.every) < len(self.singles)
            but = " but the explainer's rules" if kept else ""
            text.append(f"Even without any constraint{but} nothing is found.")
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
        if len(path):
            cells = whole.cells[path, step]
            owner = np.full(len(path), instance)
            far = self.problem.distances(cells, owner)
            best = first_of_each(owner, ~feasible, -np.nan_to_num(likely), far)[0]
            row = record(self.problem.schema, cells[best])
        return WhyNot("none_found", exact=not cut, row=row, text=" ".join(text))

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


def _singles(constraint: Constraint) -> list[Constraint]:
    """A constraint for each column of a word for several; otherwise the constraint itself."""
    if isinstance(constraint, Shorthand) and len(constraint.features) > 1:
        return [replace(constraint, features=(name,)) for name in constraint.features]
    return [constraint]
