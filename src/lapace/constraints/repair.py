"""Moves rows to where every constraint holds, in the table's units.

First comes a vectorised repair: what each column may be by the constraints on it alone, then small
closed-form moves on the lattice for relations, conditionals and counts, a few rounds of them. Rows
that are still infeasible go, each different one once, to `program`, which finds the nearest
feasible row or proves that there is none. Rows that are feasible already are not touched at all.

The nearest row is decided here by change over range (`Schema.range_gaps`), not by percentiles: an
integer program needs an objective that is linear in the cells, and repair and program agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Any

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.constraints.formulas import (
    BoundConstraint,
    ChangeCount,
    Clause,
    ComparedRows,
    Leaf,
    LevelTable,
    LinearRelation,
    Rows,
    Unchanged,
    call,
    feasible,
    is_violated,
)
from lapace.constraints.language import Custom
from lapace.constraints.program import Solution, linked, provable, solve
from lapace.schema import Schema
from lapace.schema.features import Lattice

__all__ = ["Domains", "Projection", "domains", "project"]

ROUNDS = 6
CURVED_ROUNDS = 24  # where columns are derived: slopes of a product change with every move
CLOSE = 1e-9  # of a column's span: nearer than this is rounding
LARGEST_SET, MOST_SETS = 3, 30  # columns free beside those changed most, and sets of them tried
ROWS_AT_ONCE = 2000  # rows times sets repaired together


@dataclass(frozen=True)
class Projection:
    """Rows after projection.

    Attributes:
        cells: The rows, (n, d).
        feasible: Whether each satisfies every constraint, checked on exactly these cells.
        proved_infeasible: Rows whose instance provably has no feasible row at all.
        unsolved: Rows for which the solver found neither a row nor a proof.
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


@dataclass(frozen=True)
class Domains:
    """The values each cell may take, by the constraints on its column alone.

    Attributes:
        lower: Least number that may be proposed, on the lattice, (n, d).
        upper: Greatest, (n, d); less than `lower` where there is none.
        pinned: Cells that must be the instance's, (n, d).
        unchanged: Cells that may be the instance's, (n, d).
        allowed: For columns of categories under a constraint: which levels may be, and in the last
            place whether a missing one may, (n, levels + 1).

    Examples:
        >>> from lapace.constraints import System
        >>> schema = Schema.infer([{"age": 20 + i % 50, "hours": i % 60} for i in range(300)])
        >>> instances = schema.cells([{"age": 30, "hours": 50}])
        >>> domains = System.of(["hours < original"], schema).domains(instances)
        >>> domains.lower.tolist(), domains.upper.tolist()
        ([[20.0, 0.0]], [[69.0, 49.0]])
    """

    lower: Floats
    upper: Floats
    pinned: Bools
    unchanged: Bools
    allowed: dict[int, Bools]


def domains(schema: Schema, constraints: Sequence[BoundConstraint], instances: Floats) -> Domains:
    """Returns each instance's domains."""
    shape = instances.shape
    least, greatest = np.full(shape, -np.inf), np.full(shape, np.inf)  # also beyond the schema
    pinned = np.zeros(shape, dtype=bool)
    allowed: dict[int, Bools] = {}
    rows = ComparedRows(schema, instances, instances)
    for constraint in constraints:
        for column in constraint.compared:
            pinned[:, column] |= np.isnan(instances[:, column])
        for clause in filter(_is_unary, constraint.formula):
            match clause[0]:
                case Unchanged(column):
                    pinned[:, column] = True
                case LinearRelation() as relation:
                    _narrow(relation, rows, least, greatest)
                case LevelTable(column) as table:
                    levels = table.allowed(rows)  # (n, levels + 1)
                    allowed[column] = allowed[column] & levels if column in allowed else levels
    lower, upper = _bounds_on_lattice(schema, least, greatest)
    close = CLOSE * schema.metric.spans
    unchanged = (instances >= least - close) & (instances <= greatest + close)
    unchanged |= np.isnan(instances)
    for column, levels in allowed.items():
        slots, _ = rows.slots(column, levels.shape[1] - 1)
        unchanged[:, column] = levels[np.arange(len(levels)), slots]
        pinned[:, column] |= unchanged[:, column] & (levels.sum(axis=1) == 1)
    return Domains(lower, upper, pinned, unchanged, allowed)


def _is_unary(clause: Clause) -> bool:
    """Whether a domain can express a clause: a constraint on one column alone."""
    if len(clause) > 1:
        return False
    match clause[0]:
        case LevelTable():
            return True
        case Unchanged(_, exact, negated):
            return exact and not negated
        case LinearRelation(cells) as relation:
            single = len(cells) == 1 and not cells.keys() & relation.level_values
            return single and relation.relation != "!="
    return False


def _narrow(relation: LinearRelation, rows: ComparedRows, least: Floats, greatest: Floats) -> None:
    """Moves the ends of a domain by a relation over one number."""
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


def _bounds_on_lattice(schema: Schema, least: Floats, greatest: Floats) -> tuple[Floats, Floats]:
    """Moves the ends of domains inside the schema's bounds and onto the lattice."""
    lattice = schema.lattice
    lower, upper = np.maximum(least, lattice.lower), np.minimum(greatest, lattice.upper)
    return _multiples(lattice, lower, np.ceil), _multiples(lattice, upper, np.floor)


def _multiples(lattice: Lattice, values: Floats, way: Callable[[Floats], Floats]) -> Floats:
    """Moves values onto a lattice by `np.ceil` or `np.floor`; they may lie outside its bounds."""
    slip = CLOSE if way is np.floor else -CLOSE
    with np.errstate(divide="ignore", invalid="ignore"):
        multiples = way(values / lattice.step + slip) * lattice.step
    # 0.1 * 3 is not 0.3: take the float that the decimal has.
    decimals = np.rint(multiples * lattice.scale) / lattice.scale + 0.0  # no -0.0
    return np.where(lattice.step > 0, decimals, values)


# ------------------------------------------------------------------------------------------------
# Repair


class _Repair:
    """Rows being repaired by closed-form moves: methods move rows `at` some positions in place."""

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
        self.domains = domains(schema, constraints, instances)
        for column in self.derived:  # it follows from others, whatever its domain
            self.domains.lower[:, column], self.domains.upper[:, column] = -np.inf, np.inf
            self.domains.pinned[:, column] = False
            self.domains.allowed.pop(column, None)
        self.free = ~self.domains.pinned & schema.counted  # cells that may move
        if movable is not None:
            self.free &= movable

    def repaired(self) -> tuple[Floats, Bools]:
        """Returns the rows after a few rounds of moves, and which of them are feasible."""
        todo = np.arange(len(self.cells))
        self.move_into_domains(todo)
        self.derive(todo)
        clauses = [clause for c in self.constraints for clause in c.formula]
        clauses.sort(key=lambda clause: isinstance(clause[0], ChangeCount))  # counts come last
        ok = feasible(self.constraints, self.rows(todo))
        todo = np.flatnonzero(~ok)
        for _ in range(CURVED_ROUNDS if self.derived else ROUNDS):
            if not len(todo):
                break
            before, free = self.cells[todo], self.free[todo]
            for clause in clauses:
                self.satisfy(clause, todo)
            ok[todo] = feasible(self.constraints, self.rows(todo))
            # A round that moves nothing and holds nothing new is the last that could.
            stuck = (free == self.free[todo]).all(axis=1)
            after = self.cells[todo]
            stuck &= ((before == after) | (np.isnan(before) & np.isnan(after))).all(axis=1)
            todo = todo[~ok[todo] & ~stuck]
        return self.cells, ok

    def rows(self, at: Ints) -> ComparedRows:
        return ComparedRows(self.schema, self.cells[at], self.instances[at])

    def derive(self, at: Ints) -> None:
        self.cells[at] = self.schema.derive(self.cells[at], self.instances[at])

    def satisfy(self, clause: Clause, at: Ints) -> None:
        """Moves the rows that violate a clause."""
        at = at[is_violated(clause, self.rows(at))]
        if not len(at):
            return
        if len(clause) == 1:
            self.move(clause[0], at)
            self.derive(at)
        else:
            self.satisfy_cheapest(clause, at)

    def satisfy_cheapest(self, clause: Clause, at: Ints) -> None:
        """Satisfies each leaf by itself; each row keeps the cheapest move that will do."""
        before, best = self.cells[at], self.cells[at]
        least = np.full(len(at), np.inf)
        for leaf in clause:
            self.cells[at] = before
            self.move(leaf, at)
            self.derive(at)
            tried = self.cells[at]
            price = self.schema.metric.range_gaps(tried, before) @ self.weights
            price[is_violated(clause, self.rows(at))] = np.inf
            better = price < least
            best[better], least[better] = tried[better], price[better]
        self.cells[at] = best

    def move(self, leaf: Leaf, at: Ints) -> None:
        """Moves rows, all of which violate a leaf, to where it holds, if a closed form does."""
        match leaf:
            case LinearRelation():
                self.move_numbers(leaf, at)
            case LevelTable(column):
                self.move_level(column, at, leaf.allowed(self.rows(at)))
            case Unchanged(column, _, negated):
                self.step(column, at) if negated else self.revert(column, at)
            case ChangeCount():
                self.undo_cheapest(leaf, at)
            case Custom(project=project) if project is not None:
                cells = self.cells[at]
                moved = call(leaf, "project", Rows(self.schema, cells.copy()), cells.shape)
                moved = np.where(self.free[at], moved, cells)
                self.cells[at] = _proposable(self.schema, moved, self.instances[at])
                self.move_into_domains(at)

    def revert(self, column: int, at: Ints) -> None:
        """Makes a cell the instance's again; a derived cell's sources move for it."""
        if column in self.derived:
            at = self.move_sources(column, at)
            for source in self.derived[column].sources.tolist():
                self.revert(source, at)  # it is the instance's where all it follows from is
            return
        at = at[self.free[at, column] & self.domains.unchanged[at, column]]
        self.cells[at, column] = self.instances[at, column]

    def move_sources(self, column: int, at: Ints) -> Ints:
        """Moves the sources of a derived number until it is the instance's.

        Returns:
            The rows in which it still is not.
        """
        if not self.schema.features[column].numeric:
            return at
        same = LinearRelation.of(self.schema, {column: 1.0}, {column: -1.0}, 0.0, "==")
        for _ in range(ROUNDS):
            self.move_numbers(same, at)
            self.derive(at)
            at = at[is_violated((Unchanged(column, exact=True),), self.rows(at))]
            if not len(at):
                break
        return at

    def step(self, column: int, at: Ints) -> None:
        """Moves a number that has to change by one step, up if it can."""
        feature, original = self.schema.features[column], self.instances[at, column]
        lower, upper = self.domains.lower[at, column], self.domains.upper[at, column]
        up, down = (np.clip(original + by, lower, upper) for by in (feature.step, -feature.step))
        target = np.where(up > original, up, down)
        go = self.free[at, column] & (lower <= upper) & ~np.isnan(target)
        # From an original value off the lattice a step leads off it too: snap, check again later.
        self.cells[at[go], column] = feature.snap(target[go])

    def move_numbers(self, relation: LinearRelation, at: Ints) -> None:
        if relation.relation == "!=":
            self.satisfy_cheapest(relation.split(), at)
            return
        value, _ = relation.value(self.rows(at))
        weights = {c: w for c, w in relation.cells.items() if c not in relation.level_values}
        if self.derived.keys() & weights:
            weights = self.unfolded(weights, at)
        # Columns first that change the sum most for the distance they cost.
        gains = np.abs(self.schema.metric.spans) / np.maximum(self.weights, 1e-9)
        sizes = {c: float(np.mean(np.abs(w))) for c, w in weights.items()}
        columns = sorted(weights, key=lambda c: -sizes[c] * gains[c])
        if relation.relation == "==":
            columns.sort(key=lambda c: -sizes[c] * self.schema.features[c].resolution)
        elif relation.relation == "<":
            value = value + (relation.margin or 1e-6 * relation.unit)
        for column in columns:
            value = self.shift(relation, column, weights[column], value, at)

    def unfolded(self, weights: Mapping[int, Any], at: Ints) -> dict[int, Any]:
        """Replaces derived columns in weights by the columns they follow from, row by row."""
        slopes = self.schema.derived.slopes(self.cells[at])
        unfolded = {c: w for c, w in weights.items() if c not in self.derived}
        for column in self.derived.keys() & weights:
            for source, slope in slopes.get(column, {}).items():
                unfolded[source] = unfolded.get(source, 0.0) + weights[column] * slope
        return unfolded

    def shift(
        self, relation: LinearRelation, column: int, weight: Any, value: Floats, at: Ints
    ) -> Floats:
        """Moves one column to bring the sum to zero as far as its domain goes; returns the rest."""
        cells, equal = self.cells[at, column], relation.relation == "=="
        lower, upper = self.domains.lower[at, column], self.domains.upper[at, column]
        lattice, original = self.schema.features[column].lattice, self.instances[at, column]
        weight = np.broadcast_to(weight, len(at))  # (n,)
        target = cells - np.divide(value, weight, out=np.zeros(len(at)), where=weight != 0)
        if equal:
            target = lattice.snap(target)
        else:
            low, high = (_multiples(lattice, target, way) for way in (np.floor, np.ceil))
            target = np.where(weight > 0, low, high)
        target = np.clip(target, lower, np.maximum(lower, upper))
        close = CLOSE * self.schema.metric.spans[column]
        target = np.where(np.abs(target - original) <= close, original, target)
        toward = equal | np.where(weight > 0, target < cells, target > cells) & (weight != 0)
        needed = np.abs(value) > 0 if equal else value > 0
        go = self.free[at, column] & needed & toward & (lower <= upper) & ~np.isnan(target)
        self.cells[at[go], column] = target[go]
        return np.where(go, value + weight * (target - cells), value)

    def undo_cheapest(self, count: ChangeCount, at: Ints) -> None:
        """Undoes the cheapest of too many changes, and holds the unchanged cells."""
        changed = self.rows(at).changed  # (n, d)
        surplus = changed.sum(axis=1) - count.most
        cells, instances = self.cells[at], self.instances[at]
        able = changed & self.domains.unchanged[at] & self.free[at]
        price = np.where(
            able, self.schema.metric.range_gaps(cells, instances) * self.weights, np.inf
        )
        rank = price.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
        back = (rank < surplus[:, None]) & able
        self.cells[at] = np.where(back, instances, cells)
        self.free[at] &= (changed & ~back) | (surplus <= 0)[:, None]

    def move_into_domains(self, at: Ints) -> None:
        """Moves every cell into its domain: the nearest number, the nearest or original level."""
        limits, instances = self.domains, self.instances[at]
        cells = np.where(limits.pinned[at], instances, self.cells[at])
        lower, upper = limits.lower[at], limits.upper[at]
        close = CLOSE * self.schema.metric.spans
        own = (cells == instances) & limits.unchanged[at]
        below, above = (cells < lower - close) & ~own, (cells > upper + close) & ~own
        some = lower <= upper  # else there is nothing to move to
        moved = np.where(below & some, lower, np.where(above & some, upper, cells))
        nearer = np.abs(instances - cells) <= np.abs(moved - cells)  # NaN is not
        nearer &= limits.unchanged[at]
        self.cells[at] = np.where((below | above) & nearer, instances, moved)
        for column, allowed in limits.allowed.items():
            self.move_level(column, at, allowed[at], free=True)

    def move_level(self, column: int, at: Ints, allowed: Bools, *, free: bool = False) -> None:
        """Makes a level that is not allowed the nearest that is; ties go to the original."""
        feature, levels = self.schema.features[column], allowed.shape[1] - 1
        if not free and column in self.domains.allowed:
            allowed = allowed & self.domains.allowed[column][at]
        originals, new = self.rows(at).slots(column, levels)
        movable = free | self.free[at, column]
        hit = np.flatnonzero(~allowed[np.arange(len(at)), new] & movable)
        at, allowed, original, new = at[hit], allowed[hit], originals[hit], new[hit]
        slots, each = np.arange(levels + 1), np.arange(len(hit))
        usable = allowed & (slots < len(feature.categories))
        usable[each, original] = allowed[each, original]
        price = np.ones(usable.shape)
        if feature.numeric:
            here = np.where(new < levels, new, original)
            price = np.abs(slots - here[:, None]).astype(float)
        price[each, original] -= 0.5
        price[~usable] = np.inf
        best, some = price.argmin(axis=1), usable.any(axis=1)
        # Only the instance's own level can be one unseen in training, or missing.
        values = np.where(best >= levels, self.instances[at, column], best.astype(float))
        self.cells[at[some], column] = values[some]


def _proposable(schema: Schema, cells: Floats, instances: Floats) -> Floats:
    """Moves rows onto the lattice and inside the bounds, but for the instance's own cells."""
    numbers = np.array([f.kind == "continuous" for f in schema.features])
    snapped = np.where(numbers, schema.snap(cells), cells)
    lost = np.isnan(cells) & ~np.isnan(instances)  # a value that was lost is restored
    return np.where((cells == instances) | lost, instances, snapped)


# ------------------------------------------------------------------------------------------------
# Projection


def project(
    schema: Schema,
    constraints: Sequence[BoundConstraint],
    cells: Floats,
    instances: Floats,
    weights: Floats,
) -> Projection:
    """Moves rows to where every constraint holds; see `System.project`."""
    ok = feasible(constraints, ComparedRows(schema, cells, instances))
    proved, unsolved = np.zeros((2, len(cells)), dtype=bool)
    result = cells.copy()
    bad = np.flatnonzero(~ok)
    if not len(bad):
        return Projection(result, ok, proved, unsolved, 0)
    originals = instances[bad]
    start = schema.derive(_proposable(schema, cells[bad], originals), originals)
    moved, fine = _Repair(schema, constraints, start, originals, weights).repaired()
    linear = linked(schema, constraints)
    if len(provable(schema, constraints)) < len(constraints):  # others are beyond a program
        fine = feasible(linear, ComparedRows(schema, moved, originals))
    rest = np.flatnonzero(~fine)
    few_changes, done = _with_few_changes(schema, linear, start[rest], originals[rest], weights)
    moved[rest[done]] = few_changes[done]
    solver = _ExactSolver(schema, linear, weights)
    for place in rest[~done].tolist():
        solution = solver.nearest(start[place], originals[place])
        if solution.cells is not None:
            moved[place] = solution.cells
        proved[bad[place]] = solution.status == "infeasible"
        unsolved[bad[place]] = solution.status == "unsolved"
    if not schema.counted.all():  # the solver does not see columns that are not linear
        still = np.flatnonzero(~feasible(constraints, ComparedRows(schema, moved, originals)))
        again = _Repair(schema, constraints, moved[still], originals[still], weights)
        moved[still], _ = again.repaired()
    result[bad] = moved
    ok[bad] = feasible(constraints, ComparedRows(schema, moved, originals))
    return Projection(result, ok, proved, unsolved & ~ok, solver.n_programs)


def _with_few_changes(
    schema: Schema,
    constraints: Sequence[BoundConstraint],
    start: Floats,
    instances: Floats,
    weights: Floats,
) -> tuple[Floats, Bools]:
    """Repairs rows under a limit on changes with a few columns free and all others held.

    Once the columns that may change are chosen, the other constraints have closed-form moves. Tried
    in turn are columns that the other constraints name, and with them those that `start` changes
    most; the first set that will do counts. Several sets are tried at once where rows are few.

    Returns:
        The rows, and which of them are feasible now.
    """
    most = min((count.most for c in constraints if (count := c.change_count)), default=-1)
    moved, done = start.copy(), np.zeros(len(start), dtype=bool)
    if not len(start) or not 0 < most < int(schema.counted.sum()):
        return moved, done
    named = {k for c in constraints for k in c.columns}
    columns = [k for k in sorted(named) if schema.counted[k]]
    needed = ~domains(schema, constraints, instances).unchanged & schema.counted
    price = schema.metric.range_gaps(start, instances) * weights + 1e3 * needed  # (n, d)
    parts = (set(p) for n in range(min(most, LARGEST_SET) + 1) for p in combinations(columns, n))
    every = range(len(schema.features))
    sets = np.array([[1e6 * (k in part) for k in every] for part in islice(parts, MOST_SETS)])
    begin = 0
    while begin < len(sets) and not done.all():
        rest = np.flatnonzero(~done)
        several = sets[begin : begin + max(1, ROWS_AT_ONCE // len(rest) if begin else 1)]
        begin += len(several)
        dear = (price[rest, None] + several).reshape(-1, len(price.T))  # (rows * sets, d)
        rank = (-dear).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
        kept = (rank < most) & (dear > 0)
        at = np.repeat(rest, len(several))
        cells = np.where(kept | ~schema.counted, start[at], instances[at])
        cells = schema.derive(cells, instances[at])
        cells, ok = _Repair(schema, constraints, cells, instances[at], weights, kept).repaired()
        ok = ok.reshape(len(rest), -1)
        some, which = ok.any(axis=1), ok.argmax(axis=1)
        moved[rest[some]] = cells.reshape(*ok.shape, -1)[some, which[some]]
        done[rest] = some
    return moved, done


class _ExactSolver:
    """Solves each different program once.

    Rows that agree in the columns the constraints look at share a program, if their instances agree
    in the cells that matter. An instance that is proved to have no feasible row, or one of whose
    programs ended without a result, gets no further one.
    """

    def __init__(
        self, schema: Schema, constraints: Sequence[BoundConstraint], weights: Floats
    ) -> None:
        self.schema = schema
        self.constraints = constraints
        self.weights = weights
        self.n_programs = 0
        self.solutions: dict[bytes, Solution] = {}
        self.infeasible: set[bytes] = set()
        self.unsolved: set[bytes] = set()
        counts = any(c.change_count for c in constraints)
        named = {column for c in constraints for column in c.columns}
        self.columns = list(range(len(schema.features))) if counts else sorted(named)
        self.mentions_original = any(c.constraint.mentions_original for c in constraints)

    def nearest(self, start: Floats, instance: Floats) -> Solution:
        """Returns the feasible row nearest to a start."""
        instance_key = self.instance_key(instance)
        key = start[self.columns].tobytes() + instance_key
        if instance_key in self.infeasible:
            return Solution("infeasible")
        if key not in self.solutions:
            if instance.tobytes() in self.unsolved:
                return Solution("unsolved")
            self.solutions[key] = self.solve(start, instance)
        solution = self.solutions[key]
        if solution.status == "infeasible":
            self.infeasible.add(instance_key)
        if solution.status == "unsolved":
            self.unsolved.add(instance.tobytes())
        if solution.cells is None:
            return solution
        # Columns no constraint is about stay each row's own.
        row = start.copy()
        row[self.columns] = solution.cells[self.columns]
        return Solution("solved", self.schema.derive(row[None], instance[None])[0])

    def instance_key(self, instance: Floats) -> bytes:
        """Returns the cells of an instance that matter: all, or those that cannot be proposed."""
        original = instance[self.columns]
        if self.mentions_original:
            return original.tobytes()
        counts = [len(f.categories) or np.inf for f in self.schema.features]
        regular = (self.schema.snap(instance[None])[0] == instance) & (instance < counts)
        return np.where(regular[self.columns], 0.0, original).tobytes()

    def solve(self, start: Floats, instance: Floats) -> Solution:
        """Solves one program; its row may have to be moved by the solver's tolerance."""
        self.n_programs += 1
        solution = solve(
            self.schema, self.constraints, instance=instance, start=start, weights=self.weights
        )
        if solution.cells is None:
            return solution
        rows, instances = solution.cells[None], instance[None]
        rows = self.schema.derive(rows, instances)
        if not feasible(self.constraints, ComparedRows(self.schema, rows, instances))[0]:
            repair = _Repair(self.schema, self.constraints, rows, instances, self.weights)
            rows, ok = repair.repaired()
            if not ok[0]:
                return Solution("unsolved")
        return Solution("solved", rows[0])
