"""Projection: rows moved to where every constraint holds, in the table's units.

First a vectorised repair: what each column may be by the constraints on it alone, then small
closed-form moves on the lattice for relations, conditionals and counts, a few rounds of them. Rows
that are still infeasible go, each different one once, to `program`, which finds the nearest
feasible row or proves that there is none. Rows that are feasible already are not touched at all.

What is nearest is decided here by change over range (`Schema.range_gaps`), not by percentiles: an
integer program needs an objective that is linear in the cells, and repair and program agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Any

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.constraints import logic
from lapace.constraints.binding import BoundConstraint, feasible
from lapace.constraints.language import Custom
from lapace.constraints.links import linked
from lapace.constraints.logic import ChangeCount, ComparedRows, Formula, LevelTable, LinearRelation
from lapace.constraints.program import solve
from lapace.schema import Schema

__all__ = ["Domains", "Projection", "domains", "project"]

ROUNDS = 6
CURVED_ROUNDS = 24  # where columns are derived: slopes of a product change with every move
CLOSE = 1e-9  # of a column's span: nearer than this is rounding
LARGEST_SET, MOST_SETS = 3, 30  # columns free beside those changed most, and sets of them tried
NODES = 20_000  # branch-and-bound nodes for all rows of one instance together
ROWS_AT_ONCE = 2000  # rows times sets repaired together


@dataclass(frozen=True)
class Projection:
    """Rows after projection.

    Attributes:
        cells: The rows, (n, d).
        feasible: Whether each satisfies every constraint, checked on exactly these cells.
        proved_infeasible: Rows whose instance provably has no feasible row at all.
        unsolved: Rows for which the solver reached its limit of nodes without a result.
        n_programs: Programs that had to be solved.

    Examples:
        >>> from lapace.constraints import System
        >>> schema = Schema.infer([{"age": 20 + i % 50, "hours": i % 60} for i in range(300)])
        >>> rows = schema.cells([{"age": 30, "hours": 50}])
        >>> after = System.of(["hours <= age"], schema).project(rows, rows)
        >>> after.feasible.tolist(), after.n_programs
        ([True], 0)
    """

    cells: Floats
    feasible: Bools
    proved_infeasible: Bools
    unsolved: Bools
    n_programs: int

    @property
    def n_unsolved(self) -> int:
        """Rows neither feasible nor proved infeasible, whatever the reason."""
        return int((~self.feasible & ~self.proved_infeasible).sum())


@dataclass(frozen=True)
class Domains:
    """What each cell may be, by the constraints on its column alone.

    Attributes:
        lower: Least number that may be proposed, on the lattice, (n, d).
        upper: Greatest, (n, d); less than `lower` where there is none.
        least: Least number the constraints allow, also beyond the schema's bounds, (n, d).
        greatest: Greatest, (n, d).
        pinned: Cells that must be the instance's, (n, d).
        unchanged: Cells that may be the instance's, (n, d).
        allowed: For columns of categories under a constraint: which levels may be, and in the last
            three places the instance's unseen level, missing, and any other level, (n, levels+3).

    Examples:
        >>> from lapace.constraints import System
        >>> schema = Schema.infer([{"age": 20 + i % 50, "hours": i % 60} for i in range(300)])
        >>> instances = schema.cells([{"age": 30, "hours": 50}])
        >>> found = System.of(["hours < original"], schema).domains(instances)
        >>> found.lower.tolist(), found.upper.tolist()
        ([[20.0, 0.0]], [[69.0, 49.0]])
    """

    lower: Floats
    upper: Floats
    least: Floats
    greatest: Floats
    pinned: Bools
    unchanged: Bools
    allowed: dict[int, Bools]


def domains(schema: Schema, constraints: Sequence[BoundConstraint], instances: Floats) -> Domains:
    """Each instance's domains."""
    shape = instances.shape
    least, greatest = np.full(shape, -np.inf), np.full(shape, np.inf)
    pinned = np.zeros(shape, dtype=bool)
    allowed: dict[int, Bools] = {}
    rows = ComparedRows(schema, instances, instances)
    for constraint in constraints:
        for column in constraint.compared:
            pinned[:, column] |= np.isnan(instances[:, column])
        for part in filter(_is_unary, logic.conjuncts(constraint.formula)):
            match part:
                case logic.Unchanged(column):
                    pinned[:, column] = True
                case LinearRelation():
                    _narrow(part.positive(), rows, least, greatest)
                case LevelTable(column):
                    levels = part.allowed(rows)  # (n, levels + 3)
                    allowed[column] = allowed[column] & levels if column in allowed else levels
    lower, upper = _on_lattice(schema, least, greatest)
    close = CLOSE * schema.spans
    unchanged = (instances >= least - close) & (instances <= greatest + close)
    unchanged |= np.isnan(instances)
    for column, levels in allowed.items():
        slots, _ = rows.slots(column, levels.shape[1] - 3)
        unchanged[:, column] = levels[np.arange(len(levels)), slots]
        pinned[:, column] |= unchanged[:, column] & (levels.sum(axis=1) == 1)
    return Domains(lower, upper, least, greatest, pinned, unchanged, allowed)


def _is_unary(formula: Formula) -> bool:
    """Whether a domain can express it: a constraint on one column alone."""
    match formula:
        case LevelTable():
            return True
        case logic.Unchanged(_, exact, negated):
            return exact and not negated
        case LinearRelation():
            single = len(formula.cells) == 1 and not formula.cells.keys() & formula.level_values
            return single and formula.positive().relation != "!="
    return False


def _is_stuck(formula: Formula) -> bool:
    """Whether it is a constraint from Python without a projection."""
    return isinstance(formula, Custom) and formula.project is None


def _narrow(relation: LinearRelation, rows: ComparedRows, least: Floats, greatest: Floats) -> None:
    """A relation over one number moves the ends of its domain."""
    ((column, weight),) = relation.cells.items()
    bar = -replace(relation, cells={}).value(rows)[0] / weight
    if relation.relation == "<":
        step = rows.schema.features[column].resolution
        gap = relation.margin / abs(weight) or 1e-6 * step
        bar = bar - gap if weight > 0 else bar + gap
    known = ~np.isnan(bar)
    if relation.relation == "==" or weight > 0:
        greatest[known, column] = np.minimum(greatest[known, column], bar[known])
    if relation.relation == "==" or weight < 0:
        least[known, column] = np.maximum(least[known, column], bar[known])


def _on_lattice(schema: Schema, least: Floats, greatest: Floats) -> tuple[Floats, Floats]:
    """The ends of domains moved inside the schema's bounds and onto the lattice."""
    features = schema.features
    numbers = np.array([f.kind == "continuous" for f in features])
    floor = np.where(numbers, [f.lower for f in features], -np.inf)
    top = np.where(numbers, [f.upper for f in features], np.inf)
    steps = np.array([f.resolution for f in features])
    on = numbers & (steps > 0)
    lower, upper = np.maximum(least, floor), np.minimum(greatest, top)
    lower[:, on] = np.ceil(lower[:, on] / steps[on] - CLOSE) * steps[on]
    upper[:, on] = np.floor(upper[:, on] / steps[on] + CLOSE) * steps[on]
    # `snap` writes 0.3 for 0.30000000000000004, but it also clips: keep what lies outside.
    slip = CLOSE * schema.spans
    for values in (lower, upper):
        inside = on & (values >= floor - slip) & (values <= top + slip)
        values[inside] = schema.snap(np.where(inside, values, 0.0))[inside]
    return lower, upper


# ------------------------------------------------------------------------------------------------
# Repair


class _Repair:
    """Rows being repaired by closed-form moves: methods move some of `cells`, `at`, in place."""

    def __init__(
        self,
        schema: Schema,
        constraints: Sequence[BoundConstraint],
        cells: Floats,
        instances: Floats,
        weights: Floats,
        movable: Bools | None = None,
    ) -> None:
        self.schema = schema
        self.constraints = constraints
        self.cells = cells.copy()  # (n, d)
        self.instances = instances  # (n, d)
        self.weights = weights
        self.derived = {derivation.column: derivation for derivation in schema.derived.each}
        self.domains = _without(domains(schema, constraints, instances), [*self.derived])
        self.free = ~self.domains.pinned & schema.counted  # cells that may move
        if movable is not None:
            self.free &= movable

    def repaired(self) -> tuple[Floats, Bools]:
        """The rows after a few rounds of moves, and which of them are feasible."""
        todo = np.arange(len(self.cells))
        self.move_into_domains(todo)
        self.derive(todo)
        parts = [part for c in self.constraints for part in logic.conjuncts(c.formula)]
        parts = [part for part in parts if not self.is_settled(part) and not _is_stuck(part)]
        parts.sort(key=lambda part: isinstance(part, ChangeCount))  # counts come last
        ok = self.satisfied(parts, todo)
        todo = np.flatnonzero(~ok)
        for _ in range(CURVED_ROUNDS if self.derived else ROUNDS):
            if not len(todo) or not parts:
                break
            before, free = self.cells[todo], self.free[todo]
            for part in parts:
                self.satisfy(part, todo)
            ok[todo] = self.satisfied(parts, todo)
            # A round that moves nothing and holds nothing new is the last that could.
            stuck = (free == self.free[todo]).all(axis=1)
            after = self.cells[todo]
            stuck &= ((before == after) | (np.isnan(before) & np.isnan(after))).all(axis=1)
            todo = todo[~ok[todo] & ~stuck]
        return self.cells, feasible(self.constraints, self.rows(np.arange(len(self.cells))))

    def satisfied(self, parts: Sequence[Formula], at: Ints) -> Bools:
        """Rows that violate no part; what the domains see to is checked when all is done."""
        rows, ok = self.rows(at), np.ones(len(at), dtype=bool)
        for part in parts:
            ok &= logic.truth(part, rows) >= 0
        return ok

    def is_settled(self, formula: Formula) -> bool:
        """Whether the domains see to it: a constraint on one column that is not derived."""
        match formula:
            case LevelTable(column) | logic.Unchanged(column):
                return column not in self.derived and _is_unary(formula)
            case LinearRelation():
                return self.derived.keys().isdisjoint(formula.cells) and _is_unary(formula)
        return False

    def rows(self, at: Ints) -> ComparedRows:
        return ComparedRows(self.schema, self.cells[at], self.instances[at])

    def satisfy(self, formula: Formula, at: Ints) -> None:
        """Moves the rows that violate one part of one constraint."""
        violated = at[logic.truth(formula, self.rows(at)) < 0]
        if len(violated):
            self.move(formula, violated)
            self.derive(violated)

    def derive(self, at: Ints) -> None:
        self.cells[at] = self.schema.derive(self.cells[at], self.instances[at])

    def move(self, formula: Formula, at: Ints) -> None:
        """Moves rows, all of which violate a formula, to where it holds, if a closed form does."""
        match formula:
            case LinearRelation():
                self.move_numbers(formula.positive(), at)
            case LevelTable(column):
                self.move_level(column, at, formula.allowed(self.rows(at)))
            case logic.Unchanged(column, _, negated):
                self.step(column, at) if negated else self.revert(column, at)
            case logic.And(parts):
                for part in parts:
                    self.satisfy(part, at)
            case logic.Or():
                self.satisfy_cheapest(formula, at)
            case ChangeCount():
                self.undo_cheapest(formula, at)
            case Custom():
                cells = self.cells[at]
                view = logic.Rows(self.schema, cells.copy())
                moved = logic.call(formula, "project", view, cells.shape)
                moved = np.where(self.free[at], moved, cells)
                self.cells[at] = _proposable(self.schema, moved, self.instances[at])
                self.move_into_domains(at)

    def satisfy_cheapest(self, formula: logic.Or, at: Ints) -> None:
        """Satisfies each part by itself; for each row the cheapest that will do stays."""
        before, best = self.cells[at], self.cells[at]
        least = np.full(len(at), np.inf)
        for part in formula.parts:
            self.cells[at] = before
            self.move(part, at)
            self.derive(at)
            tried = self.cells[at]
            price = self.schema.range_gaps(tried, before) @ self.weights
            price[logic.truth(formula, self.rows(at)) < 0] = np.inf
            better = price < least
            best[better], least[better] = tried[better], price[better]
        self.cells[at] = best

    def revert(self, column: int, at: Ints) -> None:
        """Makes a cell the instance's again; what a derived one follows from moves for it."""
        if column in self.derived:
            at = self.move_sources(column, at)
            for source in self.derived[column].sources.tolist():
                self.revert(source, at)  # it is the instance's where all it follows from is
            return
        at = at[self.free[at, column] & self.domains.unchanged[at, column]]
        self.cells[at, column] = self.instances[at, column]

    def move_sources(self, column: int, at: Ints) -> Ints:
        """Moves what a derived number follows from, until it is the instance's.

        Returns:
            The rows in which it still is not.
        """
        if not self.schema.features[column].numeric:
            return at
        same = LinearRelation.of(self.schema, {column: 1.0}, {column: -1.0}, 0.0, "==")
        for _ in range(ROUNDS):
            self.move_numbers(same, at)
            self.derive(at)
            at = at[logic.truth(logic.Unchanged(column, exact=True), self.rows(at)) < 0]
            if not len(at):
                break
        return at

    def step(self, column: int, at: Ints) -> None:
        """A number that has to change moves one step, up if it can."""
        step = self.schema.features[column].step
        original = self.instances[at, column]
        lower, upper = self.domains.lower[at, column], self.domains.upper[at, column]
        up, down = np.clip(original + step, lower, upper), np.clip(original - step, lower, upper)
        target = np.where(up > original, up, down)
        go = self.free[at, column] & (lower <= upper) & ~np.isnan(target)
        # From an original value off the lattice a step leads off it too: snap, check again later.
        self.cells[at[go], column] = self.schema.features[column].snap(target[go])

    def move_numbers(self, relation: LinearRelation, at: Ints) -> None:
        if relation.relation == "!=":
            self.satisfy_cheapest(logic.Or(relation.split()), at)
            return
        value, _ = relation.value(self.rows(at))
        weights = {c: w for c, w in relation.cells.items() if c not in relation.level_values}
        if self.derived.keys() & weights:
            weights = self.unfolded(weights, at)
        # Columns first that change the sum most for the distance they cost.
        gains = np.abs(self.schema.spans) / np.maximum(self.weights, 1e-9)
        sizes = {c: float(np.mean(np.abs(w))) for c, w in weights.items()}
        columns = sorted(weights, key=lambda c: -sizes[c] * gains[c])
        if relation.relation == "==":
            columns.sort(key=lambda c: -sizes[c] * self.schema.features[c].resolution)
        elif relation.relation == "<":
            value = value + (relation.margin or 1e-6 * relation.unit)
        for column in columns:
            value = self.shift(relation, column, weights[column], value, at)
        for column in columns:
            self.snap(column, at)

    def unfolded(self, weights: Mapping[int, Any], at: Ints) -> dict[int, Any]:
        """Weights in which derived columns are replaced by what they follow from, row by row."""
        slopes = self.schema.derived.slopes(self.cells[at])
        found = {c: w for c, w in weights.items() if c not in self.derived}
        for column in self.derived.keys() & weights:
            for source, slope in slopes.get(column, {}).items():
                found[source] = found.get(source, 0.0) + weights[column] * slope
        return found

    def shift(
        self, relation: LinearRelation, column: int, weight: Any, value: Floats, at: Ints
    ) -> Floats:
        """Moves one column to bring the sum to zero as far as its domain goes; returns the rest."""
        cells, equal = self.cells[at, column], relation.relation == "=="
        lower, upper = self.domains.lower[at, column], self.domains.upper[at, column]
        step = self.schema.features[column].resolution
        weight = np.broadcast_to(weight, len(at))  # (n,)
        target = cells - np.divide(value, weight, out=np.zeros(len(at)), where=weight != 0)
        if step and equal:
            target = np.rint(target / step) * step
        elif step:
            low, high = np.floor(target / step + CLOSE), np.ceil(target / step - CLOSE)
            target = np.where(weight > 0, low, high) * step
        target = np.clip(target, lower, np.maximum(lower, upper))
        toward = equal | np.where(weight > 0, target < cells, target > cells) & (weight != 0)
        needed = np.abs(value) > 0 if equal else value > 0
        go = self.free[at, column] & needed & toward & (lower <= upper) & ~np.isnan(target)
        self.cells[at[go], column] = target[go]
        return np.where(go, value + weight * (target - cells), value)

    def snap(self, column: int, at: Ints) -> None:
        """Moved numbers as decimals of their resolution, or as the original where they reach it."""
        cells, original = self.cells[at, column], self.instances[at, column]
        snapped = self.schema.features[column].snap(cells)
        close = CLOSE * self.schema.spans[column]
        tidy = np.where(np.abs(cells - snapped) <= close, snapped, cells)
        self.cells[at, column] = np.where(np.abs(cells - original) <= close, original, tidy)

    def undo_cheapest(self, count: ChangeCount, at: Ints) -> None:
        """Too many changes: the cheapest are undone, and what is unchanged is held."""
        changed = self.rows(at).changed  # (n, d)
        surplus = changed.sum(axis=1) - count.most
        cells, instances = self.cells[at], self.instances[at]
        able = changed & self.domains.unchanged[at] & self.free[at]
        price = np.where(able, self.schema.range_gaps(cells, instances) * self.weights, np.inf)
        rank = price.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
        back = (rank < surplus[:, None]) & able
        self.cells[at] = np.where(back, instances, cells)
        self.free[at] &= (changed & ~back) | (surplus <= 0)[:, None]

    def move_into_domains(self, at: Ints) -> None:
        """Every cell moves into its domain: the nearest number, the nearest or original level."""
        limits, instances = self.domains, self.instances[at]
        cells = np.where(limits.pinned[at], instances, self.cells[at])
        lower, upper = limits.lower[at], limits.upper[at]
        close = CLOSE * self.schema.spans
        below, above = cells < limits.least[at] - close, cells > limits.greatest[at] + close
        some = lower <= upper  # else there is nothing to move to
        moved = np.where(below & some, lower, np.where(above & some, upper, cells))
        nearer = np.abs(instances - cells) <= np.abs(moved - cells)  # NaN is not
        nearer &= limits.unchanged[at]
        self.cells[at] = np.where((below | above) & nearer, instances, moved)
        for column, allowed in limits.allowed.items():
            self.move_level(column, at, allowed[at], free=True)

    def move_level(self, column: int, at: Ints, allowed: Bools, *, free: bool = False) -> None:
        """A level that is not allowed becomes the nearest that is; ties go to the original."""
        feature, levels = self.schema.features[column], allowed.shape[1] - 3
        if not free and column in self.domains.allowed:
            allowed = allowed & self.domains.allowed[column][at]
        originals, new = self.rows(at).slots(column, levels)
        movable = free | self.free[at, column]
        hit = np.flatnonzero(~allowed[np.arange(len(at)), new] & movable)
        at, allowed, original, new = at[hit], allowed[hit], originals[hit], new[hit]
        slots, each = np.arange(levels + 3), np.arange(len(hit))
        usable = allowed & (slots < len(feature.categories))
        usable[each, original] = allowed[each, original]
        price = np.ones(usable.shape)
        if feature.numeric:
            here = np.where(new < levels, new, original)
            price = np.abs(slots - here[:, None]).astype(float)
        price[each, original] -= 0.5
        price[~usable] = np.inf
        best, found = price.argmin(axis=1), usable.any(axis=1)
        # Only the instance's own level can be one unseen in training, or missing.
        values = np.where(best >= levels, self.instances[at, column], best.astype(float))
        self.cells[at[found], column] = values[found]


def _without(found: Domains, columns: Sequence[int]) -> Domains:
    """Domains that say nothing of some columns: derived ones follow from others."""
    if not columns:
        return found
    for low, high in ((found.lower, found.upper), (found.least, found.greatest)):
        low[:, columns], high[:, columns] = -np.inf, np.inf
    found.pinned[:, columns] = False
    allowed = {column: levels for column, levels in found.allowed.items() if column not in columns}
    return replace(found, allowed=allowed)


def _proposable(schema: Schema, cells: Floats, instances: Floats) -> Floats:
    """Rows on the lattice and inside the bounds, but for the instance's own cells."""
    numbers = np.array([f.kind == "continuous" for f in schema.features])
    snapped = np.where(numbers, schema.snap(cells), cells)
    lost = np.isnan(cells) & ~np.isnan(instances)  # a value that was lost is restored
    return np.where((cells == instances) | lost, instances, snapped)


# ------------------------------------------------------------------------------------------------
# All of it


def project(
    schema: Schema,
    constraints: Sequence[BoundConstraint],
    cells: Floats,
    instances: Floats,
    weights: Floats,
    *,
    node_limit: int,
    max_programs: int,
    owners: Ints | None = None,
) -> Projection:
    """See `System.project`."""
    ok = feasible(constraints, ComparedRows(schema, cells, instances))
    proved, unsolved = np.zeros((2, len(cells)), dtype=bool)
    result = cells.copy()
    bad = np.flatnonzero(~ok)
    if not len(bad):
        return Projection(result, ok, proved, unsolved, 0)
    originals = instances[bad]
    start = schema.derive(_proposable(schema, cells[bad], originals), originals)
    moved, fine = _Repair(schema, constraints, start, originals, weights).repaired()
    linear = linked(schema, [c for c in constraints if not isinstance(c.formula, Custom)])
    whole = len(linear) == len(constraints) and schema.counted.all()  # all of it is a program
    if not whole:  # a row that violates nothing but constraints from Python is beyond a program
        fine = feasible(linear, ComparedRows(schema, moved, originals))
    open_ = np.flatnonzero(~fine)
    found, few = _with_few_changes(schema, linear, start[open_], originals[open_], weights)
    moved[open_[few]] = found[few]
    open_ = open_[~few]
    solver = _ExactSolver(schema, linear, weights, node_limit, max_programs)
    owner = bad if owners is None else owners[bad]
    for place in open_.tolist():
        row, status = solver.nearest(start[place], originals[place], int(owner[place]))
        if row is not None:
            moved[place] = row
        proved[bad[place]] = status == "infeasible"
        unsolved[bad[place]] = status == "unsolved"
    if not schema.counted.all():  # the solver does not see columns that are not linear
        left = np.flatnonzero(~feasible(constraints, ComparedRows(schema, moved, originals)))
        some = originals[left]
        moved[left], _ = _Repair(schema, constraints, moved[left], some, weights).repaired()
    result[bad] = moved
    checked = open_ if whole else np.arange(len(bad))
    ok[bad] = True
    ok[bad[checked]] = feasible(
        constraints, ComparedRows(schema, moved[checked], originals[checked])
    )
    return Projection(result, ok, proved, unsolved & ~ok, solver.n_programs)


def _with_few_changes(
    schema: Schema,
    constraints: Sequence[BoundConstraint],
    start: Floats,
    instances: Floats,
    weights: Floats,
) -> tuple[Floats, Bools]:
    """Rows under a limit on changes, repaired with a few columns free and all others held.

    With the columns that may change chosen, what is left are moves that have a closed form. Tried
    in turn are columns the other constraints name, and with them those that `start` changes most;
    the first that will do counts. Several sets are tried at once where rows are few.

    Returns:
        The rows, and for which of them a set was found.
    """
    most = min(
        (c.formula.most for c in constraints if isinstance(c.formula, ChangeCount)), default=-1
    )
    moved, done = start.copy(), np.zeros(len(start), dtype=bool)
    if not len(start) or not 0 < most < int(schema.counted.sum()):
        return moved, done
    named = {k for c in constraints if not isinstance(c.formula, ChangeCount) for k in c.columns}
    columns = [k for k in sorted(named) if schema.counted[k]]
    needed = ~domains(schema, constraints, instances).unchanged & schema.counted
    price = schema.range_gaps(start, instances) * weights + 1e3 * needed  # (n, d)
    parts = (set(p) for n in range(min(most, LARGEST_SET) + 1) for p in combinations(columns, n))
    every = range(len(schema.features))
    sets = np.array([[1e6 * (k in part) for k in every] for part in islice(parts, MOST_SETS)])
    begin = 0
    while begin < len(sets) and not done.all():
        open_ = np.flatnonzero(~done)
        several = sets[begin : begin + max(1, ROWS_AT_ONCE // len(open_) if begin else 1)]
        begin += len(several)
        dear = (price[open_, None] + several).reshape(-1, len(price.T))  # (rows * sets, d)
        rank = (-dear).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
        kept = (rank < most) & (dear > 0)
        at = np.repeat(open_, len(several))
        cells = np.where(kept | ~schema.counted, start[at], instances[at])
        cells = schema.derive(cells, instances[at])
        cells, ok = _Repair(schema, constraints, cells, instances[at], weights, kept).repaired()
        ok = ok.reshape(len(open_), -1)
        found, which = ok.any(axis=1), ok.argmax(axis=1)
        moved[open_[found]] = cells.reshape(*ok.shape, -1)[found, which[found]]
        done[open_] = found
    return moved, done


@dataclass
class _ExactSolver:
    """Solves each different program once, and none for an instance proved to have no feasible row.

    Rows that agree in the columns the constraints look at, for instances that agree in what matters
    of them, share a program.
    """

    schema: Schema
    constraints: Sequence[BoundConstraint]
    weights: Floats
    node_limit: int
    max_programs: int
    n_programs: int = 0

    def __post_init__(self) -> None:
        self.solutions: dict[bytes, tuple[Floats | None, str]] = {}
        self.infeasible: set[bytes] = set()
        self.nodes: Counter[int] = Counter()  # spent so far, by owner
        counts = any(isinstance(c.formula, ChangeCount) for c in self.constraints)
        named = {column for c in self.constraints for column in c.columns}
        self.columns = list(range(len(self.schema.features))) if counts else sorted(named)
        self.mentions_original = any(c.constraint.mentions_original for c in self.constraints)

    def nearest(self, start: Floats, instance: Floats, owner: int) -> tuple[Floats | None, str]:
        """The nearest feasible row, and the program's status; `owner` is charged for it."""
        instance_key = self.instance_key(instance)
        key = start[self.columns].tobytes() + instance_key
        if instance_key in self.infeasible:
            return None, "infeasible"
        if key not in self.solutions:
            if self.nodes[owner] >= NODES:
                return None, "unsolved"
            solution = self.solve(start, instance, owner)
            if solution[1] == "unsolved":  # another instance may have nodes left
                return solution
            self.solutions[key] = solution
        row, status = self.solutions[key]
        if status == "infeasible":
            self.infeasible.add(instance_key)
        if row is None:
            return None, status
        # Columns no constraint is about stay each row's own.
        found = start.copy()
        found[self.columns] = row[self.columns]
        return self.schema.derive(found[None], instance[None])[0], status

    def instance_key(self, instance: Floats) -> bytes:
        """What of an instance matters: all of it, or only cells that could not be proposed."""
        original = instance[self.columns]
        if self.mentions_original:
            return original.tobytes()
        counts = [len(f.categories) or np.inf for f in self.schema.features]
        regular = (self.schema.snap(instance[None])[0] == instance) & (instance < counts)
        return np.where(regular[self.columns], 0.0, original).tobytes()

    def solve(self, start: Floats, instance: Floats, owner: int) -> tuple[Floats | None, str]:
        rounded: Floats | None = None
        for _ in range(2):
            if self.n_programs >= self.max_programs:
                break
            self.n_programs += 1
            solution = solve(
                self.schema,
                self.constraints,
                instance=instance,
                start=start,
                weights=self.weights,
                node_limit=min(self.node_limit, max(1, NODES - self.nodes[owner])),
                rounded=rounded,
            )
            self.nodes[owner] += solution.nodes
            if solution.cells is None:
                return None, solution.status
            row = self.polished(solution.cells[None], instance[None])
            if row is not None:
                return row, "solved"
            rounded = solution.variables
        return None, "unsolved"

    def polished(self, rows: Floats, instances: Floats, *, again: bool = True) -> Floats | None:
        """The solver's row if it is feasible, moved by its tolerance if need be."""
        rows = self.schema.derive(rows, instances)
        if feasible(self.constraints, ComparedRows(self.schema, rows, instances))[0]:
            row: Floats = rows[0]
            return row
        repair = _Repair(self.schema, self.constraints, rows, instances, self.weights)
        return self.polished(repair.repaired()[0], instances, again=False) if again else None
