"""Why not: for each instance without an answer, what stands in the way.

Where no row obeys, a smallest contradictory set says why, and a projection onto the others how far
each of them would have to move. Where rows obey but none that was searched has the target, the same
search is run again with constraints dropped: all of them first, for it is in vain to look further
where even that fails; then each alone, each two, and beyond that what the rows found without any
constraint break, put back one by one as long as the search succeeds. Everyone for whom the same set
is tried goes through one search together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from math import floor
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints
from lapace.constraints import Constraint, System
from lapace.explainer.wording import changes_text, joined, move, quoted, scales
from lapace.paths import Steps
from lapace.result import WhyNot, record
from lapace.schema import Schema

__all__ = ["Case", "Found", "Search", "why_not"]


SEARCHES = 64  # at most, for sets of one and two constraints and for all of them
GREEDY = 32  # further ones at most, for larger sets
CORNERS = 3  # numbers of a clash whose ends are all combined when it is asked how far it is
FREE = 1e-3  # what a change costs that matters little


class Found(NamedTuple):
    """Rows a search came to: the good ones, and the most probable of each path without any.

    Attributes:
        instance: The instance each is for.
        cells: The rows.
        ok: Whether each is valid and feasible.
        feasible: Whether each obeys what the search had to.
        probability: Of the target; NaN where unknown.
    """

    instance: Ints
    cells: Floats
    ok: Bools
    feasible: Bools
    probability: Floats

    @classmethod
    def of(cls, instance: Ints, steps: Steps) -> Found:
        """Of paths: their instances (paths,), their steps (paths, steps)."""
        ok: Bools = np.asarray(steps.ok)
        hope = np.nan_to_num(steps.probability) + 2.0 * steps.feasible + 1e-6 * steps.tau
        hope = np.where(steps.tau > 0, hope, -np.inf)  # the input is no answer
        vain = ~ok.any(axis=1, keepdims=True)
        keep = ok | (vain & (hope == hope.max(axis=1, keepdims=True)))
        paths, _ = np.nonzero(keep)
        return cls(
            instance[paths],
            steps.cells[keep],
            ok[keep],
            steps.feasible[keep],
            steps.probability[keep],
        )

    @classmethod
    def join(cls, parts: Sequence[Found]) -> Found:
        """Of some instances after the others."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def some(self, rows: NDArray[np.bool_] | Ints) -> Found:
        """Only some of the rows."""
        columns: list[NDArray[Any]] = [column[rows] for column in self]
        return Found(*columns)


# The same search under other constraints, for some instances; None where the classifier gave up.
Search: TypeAlias = Callable[[System, Ints], Found | None]


@dataclass(frozen=True)
class Case:
    """What is known of a query when everybody has been searched for.

    Attributes:
        system: What every answer has to obey.
        rules: Those of its constraints that are kept with the explainer: the last to be dropped.
        instances: Cells of everyone.
        status: Of everyone.
        reason: Of everyone, in words.
        clash: A smallest contradictory set for an instance's cells.
        seen: The rows found for the instances without an answer.
        weights: One per column, for distances.
        confidence: The probability asked for.
        labels: How many labels the classifier has.
    """

    system: System
    rules: frozenset[Constraint]
    instances: Floats
    status: tuple[str, ...]
    reason: tuple[str, ...]
    clash: Callable[[Floats], tuple[Constraint, ...]]
    seen: Found
    weights: Floats
    confidence: float | None
    labels: int

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self.system.schema

    def distance(self, cells: Floats, instance: Ints) -> Floats:
        """From rows to the instances they are for."""
        return self.schema.gaps(self.instances[instance], cells) @ self.weights

    def violation(
        self, cells: Floats, instance: Ints, which: Sequence[int] | None = None
    ) -> Floats:
        """How far rows are from keeping some of the constraints, added up over their ranges."""
        share = self.system.slack(cells, self.instances[instance]) / scales(self.system)
        total: Floats = (share if which is None else share[:, list(which)]).sum(axis=1)
        return total

    def of(self, status: str) -> Ints:
        """Who has a status."""
        return np.flatnonzero(np.array([s == status for s in self.status], dtype=bool))


def why_not(case: Case, search: Search) -> dict[int, WhyNot]:
    """What stands in the way of each instance without an answer.

    Args:
        case: The query.
        search: Runs it again under other constraints.
    """
    found = _clashing(case, case.of("infeasible"))
    found |= _lacking(case, case.of("none_found"), search)
    return dict(sorted(found.items()))


def _first(instance: Ints, *keys: NDArray[np.generic]) -> Ints:
    """For each instance the row that is least by the keys, the first key before the next."""
    order = np.lexsort((*reversed(keys), instance))
    _, at = np.unique(instance[order], return_index=True)
    chosen: Ints = order[at]
    return chosen


# ------------------------------------------------------------------------------------------------
# No row obeys


def _clashing(case: Case, instance: Ints) -> dict[int, WhyNot]:
    """Instances whose constraints contradict each other, those with the same clash together."""
    groups: dict[tuple[Constraint, ...], list[int]] = {}
    for i in instance.tolist():
        groups.setdefault(case.clash(case.instances[i]), []).append(i)
    return {
        one: why
        for clash, members in groups.items()
        for one, why in _clash(case, clash, np.array(members)).items()
    }


def _clash(case: Case, clash: tuple[Constraint, ...], instance: Ints) -> dict[int, WhyNot]:
    """One clash: each of its constraints let go alone."""
    if not clash:  # the solver ran out of time naming it
        return {
            i: WhyNot("infeasible", exact=False, text=case.reason[i]) for i in instance.tolist()
        }
    tries = [_let_go(case, clash, constraint, instance) for constraint in clash]
    parts = [try_.rows for try_ in tries]
    rows, at = np.concatenate(parts), np.tile(np.arange(len(instance)), len(parts))
    best = _first(at, case.violation(rows, instance[at]), case.distance(rows, instance[at]))
    stuck = np.all([try_.stuck for try_ in tries], axis=0)
    found = {}
    for k, i in enumerate(instance.tolist()):
        moves = tuple(
            move(constraint, case.schema, try_.rows[k], case.instances[i])
            for constraint, try_ in zip(clash, tries, strict=True)
        )
        text = f"{case.reason[i]} {_giving_way([m.text for m in moves])}"
        if stuck[k]:
            text += " Even then other constraints would stand in each other's way."
        row = record(case.schema, rows[best[k]])
        exact = len(clash) <= 2
        found[i] = WhyNot("infeasible", tuple(map(str, clash)), (), exact, moves, row, text)
    return found


def _giving_way(texts: Sequence[str]) -> str:
    if len(texts) == 1:
        return f"To be kept by any row, {texts[0]}."
    return f"If the others stay, {joined(texts, 'or')}."


class _Try(NamedTuple):
    """A row per instance that keeps the other constraints, and for whom there is none."""

    rows: Floats
    stuck: Bools


def _let_go(
    case: Case, clash: tuple[Constraint, ...], constraint: Constraint, instance: Ints
) -> _Try:
    """Of rows that keep the other constraints, the one that breaks this one least."""
    schema = case.schema
    alone = System.of([constraint], schema, check=False)
    named = {c for b in case.system.bound if b.constraint in clash for c in b.columns}
    starts, at = _starts(schema, sorted(named), case.instances[instance])
    instances = case.instances[instance][at]
    # Other columns move almost freely, so that those of this constraint move as little as can be.
    own = {schema.names[c] for c in alone.bound[0].columns}
    costs = {name: 1.0 if name in own else FREE for name in schema.names} if own else None
    after = case.system.without([constraint]).project(starts, instances, costs=costs)
    rows, good = after.cells, after.feasible
    stuck = ~np.isin(np.arange(len(instance)), at[good])
    if stuck.any():  # there is more than this clash: keep at least the others of this one
        rest = [c for c in clash if c != constraint]
        again = np.flatnonzero(stuck[at])
        others = System.of(rest, schema, check=False)
        narrow = others.project(starts[again], instances[again], costs=costs)
        rows[again], good[again] = narrow.cells, narrow.feasible
    far = alone.slack(rows, instances)[:, 0]
    return _Try(rows[_first(at, ~good, far, case.distance(rows, instance[at]))], stuck)


def _starts(schema: Schema, columns: Sequence[int], instances: Floats) -> tuple[Floats, Ints]:
    """Where to look for a row that a constraint nearly admits: at the instance and at the ends.

    What a relation is over is least at the ends of its columns.
    """
    features = schema.features
    numbers = [c for c in columns if features[c].kind == "continuous"]
    ways: Iterable[tuple[int, ...]] = product((0, 1, 2), repeat=len(numbers))
    if len(numbers) > CORNERS:
        ways = [(end,) * len(numbers) for end in (0, 1, 2)]
    starts = []
    for way in ways:
        rows = instances.copy()
        for c, end in zip(numbers, way, strict=True):
            if end:  # 0 is the instance's own
                rows[:, c] = features[c].lower if end == 1 else features[c].upper
        starts.append(np.where(np.isnan(instances), instances, rows))
    return np.concatenate(starts), np.tile(np.arange(len(instances)), len(starts))


# ------------------------------------------------------------------------------------------------
# Rows obey, none is valid

Set: TypeAlias = tuple[int, ...]  # constraints of the system, by position, in order


class _Drop(NamedTuple):
    """A set that may be dropped for an instance, and the best row of the search without it."""

    which: Set
    row: Floats
    exact: bool


class _Hunt:
    """Searches without sets of constraints, counted."""

    def __init__(self, case: Case, search: Search) -> None:
        self.case = case
        self.search = search
        self.done: dict[Set, int] = {}  # how many instances each set was tried for
        self.cut = False  # a set was left out, or the classifier gave up on one

    def without(self, which: Set, instance: Ints) -> Found | None:
        """What is found without a set; None where the classifier gave up."""
        self.done[which] = len(instance)
        constraints = self.case.system.constraints
        found = self.search(self.case.system.without([constraints[k] for k in which]), instance)
        self.cut |= found is None
        return found

    def best(self, which: Set, instance: Ints) -> dict[int, tuple[float, float, Floats]]:
        """For whom a search without a set succeeds: how far the row breaks it, how far it is."""
        found = self.without(which, instance)
        return {} if found is None else self.chosen(which, found)

    def chosen(self, which: Set, found: Found) -> dict[int, tuple[float, float, Floats]]:
        """The good row of each instance that breaks a set least, then the nearest."""
        good = found.some(found.ok)
        broken = self.case.violation(good.cells, good.instance, which)
        far = self.case.distance(good.cells, good.instance)
        return {
            int(good.instance[k]): (float(broken[k]), float(far[k]), good.cells[k])
            for k in _first(good.instance, broken, far)
        }


def _lacking(case: Case, instance: Ints, search: Search) -> dict[int, WhyNot]:
    """Instances for whom no good row was found."""
    if not len(instance):
        return {}
    if not len(case.system):
        return {i: _hopeless(case, i, None) for i in instance.tolist()}
    hunt = _Hunt(case, search)
    every = tuple(range(len(case.system)))
    free = hunt.without(every, instance)
    hopeful = instance if free is None else np.unique(free.instance[free.ok])
    drops = _small(hunt, hopeful, free)
    left = np.array([i for i in hopeful.tolist() if i not in drops], dtype=np.int64)
    if free is not None and len(left):
        drops |= _large(hunt, left, free)
    return {
        i: _droppable(case, i, drops[i], hunt) if i in drops else _hopeless(case, i, free)
        for i in instance.tolist()
    }


def _tiers(case: Case) -> Iterator[list[Set]]:
    """Sets of one, then of two; of as many, those with fewer rules first."""
    constraints = case.system.constraints
    rules = [c in case.rules for c in constraints]
    for size in (1, 2):
        sets = list(combinations(range(len(constraints)), size))
        for count in range(size + 1):
            yield [which for which in sets if sum(rules[k] for k in which) == count]


def _small(hunt: _Hunt, instance: Ints, free: Found | None) -> dict[int, _Drop]:
    """The smallest sets of one or two; of equals the one whose row breaks it least."""
    drops: dict[int, _Drop] = {}
    every = tuple(range(len(hunt.case.system)))
    for tier in _tiers(hunt.case):
        left = np.array([i for i in instance.tolist() if i not in drops], dtype=np.int64)
        if not len(left):
            break
        exact = not hunt.cut
        best: dict[int, tuple[float, float, Set, Floats]] = {}
        for which in islice(tier, SEARCHES - len(hunt.done) + (every in tier)):
            if which != every:
                found = hunt.best(which, left)
            else:  # that search has been run
                found = hunt.chosen(which, free.some(np.isin(free.instance, left))) if free else {}
            for i, (broken, far, row) in found.items():
                if i not in best or (broken, far) < best[i][:2]:
                    best[i] = (broken, far, which, row)
        hunt.cut |= any(which not in hunt.done for which in tier)
        sure = exact or (bool(tier) and len(tier[0]) == 1)  # no set is smaller than one
        drops |= {i: _Drop(which, row, sure) for i, (_, _, which, row) in best.items()}
    return drops


def _large(hunt: _Hunt, instance: Ints, free: Found) -> dict[int, _Drop]:
    """Larger sets: what the best row breaks, if the search succeeds without; then put back."""
    every = tuple(range(len(hunt.case.system)))
    mine = free.some(np.isin(free.instance, instance))
    drops = {i: _Drop(every, row, False) for i, (_, _, row) in hunt.chosen(every, mine).items()}
    exact = not hunt.cut
    greedy: dict[Set, None] = {}

    def attempt(sets: dict[int, Set]) -> None:
        """Tries one set for each of some instances, those with the same set together."""
        groups: dict[Set, list[int]] = {}
        for i, which in sets.items():
            groups.setdefault(which, []).append(i)
        for which, members in groups.items():
            if len(greedy) == GREEDY:
                hunt.cut = True
                return
            greedy[which] = None
            found = hunt.best(which, np.array(members))
            drops.update({i: _Drop(which, row, False) for i, (_, _, row) in found.items()})

    attempt(_broken(hunt.case, mine, every))
    is_rule = [c in hunt.case.rules for c in hunt.case.system.constraints]
    for k in sorted(every, key=lambda k: (not is_rule[k], -k)):  # rules are put back first
        smaller = {i: tuple(c for c in d.which if c != k) for i, d in drops.items() if k in d.which}
        # Smaller ones have been tried, all of them, without success.
        attempt({i: which for i, which in smaller.items() if len(which) > 2})
    return {i: d._replace(exact=exact and len(d.which) == 3) for i, d in drops.items()}


def _broken(case: Case, free: Found, every: Set) -> dict[int, Set]:
    """The constraints that each instance's row breaks, of the row that breaks fewest."""
    good = free.some(free.ok)
    broken = ~case.system.holds(good.cells, case.instances[good.instance])  # (rows, constraints)
    far = case.violation(good.cells, good.instance)
    chosen = _first(good.instance, broken.sum(axis=1), far)
    sets = {int(good.instance[k]): tuple(np.flatnonzero(broken[k]).tolist()) for k in chosen}
    return {i: which for i, which in sets.items() if 2 < len(which) < len(every)}


# ------------------------------------------------------------------------------------------------
# In words


def _droppable(case: Case, instance: int, drop: _Drop, hunt: _Hunt) -> WhyNot:
    dropped = [case.system.constraints[k] for k in drop.which]
    one = case.instances[instance]
    moves = tuple(move(constraint, case.schema, drop.row, one) for constraint in dropped)
    text = f"{case.reason[instance]} Without {quoted(dropped)} the same search finds one"
    if not drop.exact:
        why = "sets of more than two are not all tried"
        if hunt.cut:
            why = f"{len(hunt.done)} sets were tried and not all there are"
        text += f"; a smaller set might do as well, for {why}"
    elif len(dropped) > 1:
        text += "; without fewer it does not"
    needed = [m.text for m in moves if m.by != 0.0]
    if needed:
        text += f". For the best row found, {joined(needed)}"
    else:
        text += ". That row obeys every constraint all the same"
    text += f": {changes_text(case.schema, drop.row, one)}."
    row = record(case.schema, drop.row)
    return WhyNot("none_found", (), tuple(map(str, dropped)), drop.exact, moves, row, text)


def _hopeless(case: Case, instance: int, free: Found | None) -> WhyNot:
    """Nothing to drop, or dropping everything does not help."""
    seen = case.seen.some(case.seen.instance == instance)
    text = [case.reason[instance]]
    reached = _highest(seen.some(seen.feasible))
    refused = free is None and len(case.system) > 0
    if refused:
        text.append("The classifier raises on too many of the rows that the constraints rule out.")
    elif free is not None:
        text.append("Even without any constraint nothing is found.")
        reached = max(reached, _highest(free.some(free.instance == instance)))
    if reached >= 0:
        asked = f"; {case.confidence:.12g} was asked for" if case.confidence is not None else ""
        text.append(f"The highest probability reached is {_down(reached)}{asked}.")
    text.append(_advice(case, reached))
    row = None
    if len(seen.instance):
        hope = np.nan_to_num(seen.probability)
        far = case.distance(seen.cells, seen.instance)
        best = _first(seen.instance, ~seen.feasible, -hope, far)[0]
        row = record(case.schema, seen.cells[best])
    return WhyNot("none_found", exact=not refused, row=row, text=" ".join(text))


def _highest(found: Found) -> float:
    known = found.probability[~np.isnan(found.probability)]
    return float(known.max(initial=-1.0))


def _down(probability: float) -> str:
    """Three digits, never more than it is: asking for as much must succeed."""
    return f"{floor(probability * 1000) / 1000:g}"


def _advice(case: Case, reached: float) -> str:
    ways = []
    if case.confidence is not None and reached > 0:
        ways.append(f"a confidence of at most {_down(reached)}")
    if case.labels > 2:
        ways.append("another target")
    ways.append("an explainer with more clusters or more training rows of that label")
    return f"What may help: {joined(ways, 'or')}."
