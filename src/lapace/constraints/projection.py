"""Projection: rows moved to where every constraint holds, in the table's units.

First a vectorised repair: what each column may be by the constraints on it alone, then small
closed-form moves on the lattice for relations, conditionals and counts, a few rounds of them. Rows
that are still infeasible go, each different one once, to `program`, which finds the nearest
feasible row or proves that there is none. Rows that are feasible already are not touched at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.constraints.binding import BoundConstraint, feasible
from lapace.constraints.language import Custom
from lapace.constraints.logic import (
    And,
    Candidates,
    ChangeCount,
    Formula,
    LevelTable,
    LinearRelation,
    Or,
    Unchanged,
    call,
    conjuncts,
    truth,
)
from lapace.constraints.program import solve
from lapace.schema import Schema

__all__ = ["Domains", "Projection", "domains", "project"]

ROUNDS = 6
CLOSE = 1e-9  # of a column's span: nearer than this is rounding


@dataclass(frozen=True)
class Projection:
    """Rows after projection.

    Attributes:
        cells: The rows, (n, d).
        feasible: Whether each satisfies every constraint, checked on exactly these cells.
        proved_infeasible: Rows whose instance provably has no feasible row at all.
        n_programs: Programs that had to be solved.
        n_unsolved: Rows neither feasible nor proved infeasible: the solver reached its node limit,
            or only a constraint from Python is violated.

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
    n_programs: int
    n_unsolved: int


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

    def take(self, rows: Ints) -> Domains:
        """Some of the rows."""
        return Domains(
            lower=self.lower[rows],
            upper=self.upper[rows],
            least=self.least[rows],
            greatest=self.greatest[rows],
            pinned=self.pinned[rows],
            unchanged=self.unchanged[rows],
            allowed={column: levels[rows] for column, levels in self.allowed.items()},
        )


def domains(schema: Schema, constraints: Sequence[BoundConstraint], instances: Floats) -> Domains:
    """Each instance's domains."""
    shape = instances.shape
    least, greatest = np.full(shape, -np.inf), np.full(shape, np.inf)
    pinned = np.zeros(shape, dtype=bool)
    allowed: dict[int, Bools] = {}
    rows = Candidates(schema, instances, instances)
    for constraint in constraints:
        for column in constraint.compared:
            pinned[:, column] |= np.isnan(instances[:, column])
        for part in filter(_is_unary, conjuncts(constraint.formula)):
            match part:
                case Unchanged(column):
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
        case Unchanged(_, exact, negated):
            return exact and not negated
        case LinearRelation():
            single = len(formula.cells) == 1 and not formula.cells.keys() & formula.level_values
            return single and formula.positive().relation != "!="
    return False


def _narrow(relation: LinearRelation, rows: Candidates, least: Floats, greatest: Floats) -> None:
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
    """The ends moved inside the schema's bounds and onto the lattice."""
    numbers = np.array([f.kind == "continuous" for f in schema.features])
    ends = np.array([(f.lower, f.upper, f.resolution) for f in schema.features])
    floor, top = np.where(numbers, ends[:, 0], -np.inf), np.where(numbers, ends[:, 1], np.inf)
    steps = ends[:, 2]
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


@dataclass(frozen=True)
class _Repair:
    """Rows being repaired: cells, instances, what each cell may be and whether it may move."""

    schema: Schema
    weights: Floats
    cells: Floats
    instances: Floats
    domains: Domains
    free: Bools

    def take(self, rows: Ints) -> _Repair:
        return replace(
            self,
            cells=self.cells[rows],
            instances=self.instances[rows],
            domains=self.domains.take(rows),
            free=self.free[rows],
        )

    def rows(self, cells: Floats | None = None) -> Candidates:
        return Candidates(self.schema, self.cells if cells is None else cells, self.instances)

    # -- forms ------------------------------------------------------------------------------------

    def apply(self, formula: Formula) -> Floats:
        """The rows with one part of one constraint satisfied, where a closed form does it."""
        match formula:
            case LinearRelation():
                self.move_numbers(formula.positive())
            case LevelTable(column):
                self.move_level(formula, column)
            case Unchanged(column, _, negated):
                self.step(column) if negated else self.revert(column)
            case And(parts):
                for part in parts:
                    self.apply_where_violated(part)
            case Or():
                return self.cheapest(formula)
            case Custom():
                moved = np.where(
                    self.free,
                    call(formula, "project", self.cells.copy(), self.cells.shape),
                    self.cells,
                )
                moved = _proposable(self.schema, moved, self.instances)
                return _into_domains(self.schema, moved, self.instances, self.domains)
        return self.cells

    def apply_where_violated(self, formula: Formula) -> None:
        violated = np.flatnonzero(truth(formula, self.rows()) < 0)
        if len(violated):
            self.cells[violated] = self.take(violated).apply(formula)

    def cheapest(self, formula: Or) -> Floats:
        """Each part satisfied by itself; for each row the cheapest that will do."""
        best = self.cells.copy()
        least = np.full(len(best), np.inf)
        for part in formula.parts:
            tried = replace(self, cells=self.cells.copy()).apply(part)
            price = self.schema.gaps(tried, self.cells) @ self.weights
            price[truth(formula, self.rows(tried)) < 0] = np.inf
            better = price < least
            best[better], least[better] = tried[better], price[better]
        return best

    def revert(self, column: int) -> None:
        back = self.free[:, column] & self.domains.unchanged[:, column]
        self.cells[back, column] = self.instances[back, column]

    def step(self, column: int) -> None:
        """A number that has to change moves one step, up if it can."""
        step = self.schema.features[column].step
        original = self.instances[:, column]
        lower, upper = self.domains.lower[:, column], self.domains.upper[:, column]
        up, down = np.clip(original + step, lower, upper), np.clip(original - step, lower, upper)
        target = np.where(up > original, up, down)
        go = self.free[:, column] & (lower <= upper) & ~np.isnan(target)
        cells = self.cells.copy()
        cells[go, column] = target[go]
        # From an original value off the lattice a step leads off it too: snap, check again later.
        self.cells[go, column] = self.schema.snap(cells)[go, column]

    def move_level(self, table: LevelTable, column: int) -> None:
        allowed = table.allowed(self.rows())
        if column in self.domains.allowed:
            allowed = allowed & self.domains.allowed[column]
        moved = _nearest_level(self.schema, column, self.cells, self.instances, allowed)
        self.cells[:, column] = np.where(self.free[:, column], moved, self.cells[:, column])

    def move_numbers(self, relation: LinearRelation) -> None:
        if relation.relation == "!=":
            self.cells[:] = self.cheapest(Or(relation.split()))
            return
        value, _ = relation.value(self.rows())
        weights = {c: w for c, w in relation.cells.items() if c not in relation.level_values}
        spans = self.schema.spans
        # Columns first that change the sum most for the distance they cost.
        gains = {c: abs(w) * spans[c] / max(self.weights[c], 1e-9) for c, w in weights.items()}
        columns = sorted(weights, key=lambda c: -gains[c])
        if relation.relation == "==":
            columns.sort(key=lambda c: -abs(weights[c]) * self.schema.features[c].resolution)
        elif relation.relation == "<":
            value = value + (relation.margin or 1e-6 * relation.unit)
        for column in columns:
            value = self.shift(relation, column, weights[column], value)
        self.snap(columns)

    def shift(self, relation: LinearRelation, column: int, weight: float, value: Floats) -> Floats:
        """Moves one column to bring the sum to zero as far as its domain goes; returns the rest."""
        cells, equal = self.cells[:, column], relation.relation == "=="
        lower, upper = self.domains.lower[:, column], self.domains.upper[:, column]
        step = self.schema.features[column].resolution
        target = cells - value / weight
        if step and equal:
            target = np.rint(target / step) * step
        elif step and weight > 0:
            target = np.floor(target / step + CLOSE) * step
        elif step:
            target = np.ceil(target / step - CLOSE) * step
        target = np.clip(target, lower, np.maximum(lower, upper))
        toward = equal or (target < cells if weight > 0 else target > cells)
        needed = np.abs(value) > 0 if equal else value > 0
        go = self.free[:, column] & needed & toward & (lower <= upper) & ~np.isnan(target)
        rest = np.where(go, value + weight * (target - cells), value)
        self.cells[go, column] = target[go]
        return rest

    def snap(self, columns: Sequence[int]) -> None:
        """Moved numbers as decimals of their resolution, or as the original where they reach it."""
        snapped = self.schema.snap(self.cells)
        close = CLOSE * self.schema.spans
        for column in columns:
            old, new, original = (a[:, column] for a in (self.cells, snapped, self.instances))
            tidy = np.where(np.abs(old - new) <= close[column], new, old)
            self.cells[:, column] = np.where(
                np.abs(old - original) <= close[column], original, tidy
            )

    def undo_cheapest(self, count: ChangeCount) -> None:
        """Too many changes: the cheapest are undone, and what is unchanged is held."""
        changed = self.schema.changed(self.cells, self.instances)  # (n, d)
        surplus = changed.sum(axis=1) - count.most
        hit = np.flatnonzero(surplus > 0)
        if not len(hit):
            return
        price = self.schema.gaps(self.cells[hit], self.instances[hit]) * self.weights
        able = changed[hit] & self.domains.unchanged[hit] & self.free[hit]
        price = np.where(able, price, np.inf)
        rank = price.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
        back = (rank < surplus[hit, None]) & able
        self.cells[hit] = np.where(back, self.instances[hit], self.cells[hit])
        self.free[hit] &= changed[hit] & ~back


def _repaired(
    schema: Schema,
    constraints: Sequence[BoundConstraint],
    cells: Floats,
    instances: Floats,
    weights: Floats,
) -> Floats:
    """Rows after a few rounds of closed-form moves; some may still be infeasible."""
    limits = domains(schema, constraints, instances)
    cells = _into_domains(schema, cells, instances, limits)
    parts = [p for c in constraints for p in conjuncts(c.formula) if not _is_unary(p)]
    counts = [part for part in parts if isinstance(part, ChangeCount)]
    moves = [part for part in parts if not isinstance(part, ChangeCount) and not _is_stuck(part)]
    if not moves and not counts:
        return cells
    repair = _Repair(schema, weights, cells, instances, limits, ~limits.pinned)
    todo = np.arange(len(cells))
    for _ in range(ROUNDS):
        rows = Candidates(schema, cells[todo], instances[todo])
        todo = todo[~feasible(constraints, rows)]
        if not len(todo):
            break
        some = repair.take(todo)
        for part in moves:
            some.apply_where_violated(part)
        for count in counts:
            some.undo_cheapest(count)
        cells[todo] = some.cells
        repair.free[todo] = some.free
    return cells


def _is_stuck(formula: Formula) -> bool:
    """A constraint from Python without a projection."""
    return isinstance(formula, Custom) and formula.project is None


def _proposable(schema: Schema, cells: Floats, instances: Floats) -> Floats:
    """Rows on the lattice and inside the bounds, but for the instance's own cells."""
    numbers = np.array([f.kind == "continuous" for f in schema.features])
    snapped = np.where(numbers, schema.snap(cells), cells)
    lost = np.isnan(cells) & ~np.isnan(instances)  # a value that was lost is restored
    return np.where((cells == instances) | lost, instances, snapped)


def _into_domains(schema: Schema, cells: Floats, instances: Floats, limits: Domains) -> Floats:
    """Every cell moved into its domain: the nearest number, the nearest or original category."""
    cells = np.where(limits.pinned, instances, cells)
    close = CLOSE * schema.spans
    below, above = cells < limits.least - close, cells > limits.greatest + close
    some = limits.lower <= limits.upper  # else there is nothing to move to
    moved = np.where(below & some, limits.lower, np.where(above & some, limits.upper, cells))
    nearer = limits.unchanged & (np.abs(instances - cells) <= np.abs(moved - cells))  # NaN is not
    cells = np.where((below | above) & nearer, instances, moved)
    for column, allowed in limits.allowed.items():
        cells[:, column] = _nearest_level(schema, column, cells, instances, allowed)
    return cells


def _nearest_level(
    schema: Schema, column: int, cells: Floats, instances: Floats, allowed: Bools
) -> Floats:
    """The level itself where it is allowed, else the nearest that is; ties go to the original."""
    feature = schema.features[column]
    levels = allowed.shape[1] - 3
    originals, new = Candidates(schema, cells, instances).slots(column, levels)
    bad = np.flatnonzero(~allowed[np.arange(len(cells)), new])
    if not len(bad):
        return cells[:, column]
    slots, at = np.arange(levels + 3), np.arange(len(bad))
    original = originals[bad]
    usable = allowed[bad] & (slots < len(feature.categories))
    usable[at, original] = allowed[bad, original]
    price = np.ones(usable.shape)
    if feature.numeric:
        here = np.where(new[bad] < levels, new[bad], original)
        price = np.abs(slots - here[:, None]).astype(float)
    price[at, original] -= 0.5
    price[~usable] = np.inf
    best = price.argmin(axis=1)
    found = usable.any(axis=1)
    # Only the instance's own level can be one unseen in training, or missing.
    values = np.where(best >= levels, instances[bad, column], best.astype(float))
    result = cells[:, column].copy()
    result[bad[found]] = values[found]
    return result


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
) -> Projection:
    """See `System.project`."""
    ok = feasible(constraints, Candidates(schema, cells, instances))
    proved = np.zeros(len(cells), dtype=bool)
    result = cells.copy()
    bad = np.flatnonzero(~ok)
    if not len(bad):
        return Projection(result, ok, proved, 0, 0)
    start, originals = _proposable(schema, cells[bad], instances[bad]), instances[bad]
    moved = _repaired(schema, constraints, start.copy(), originals, weights)
    linear = [c for c in constraints if not isinstance(c.formula, Custom)]
    solver = _ExactSolver(schema, linear, weights, node_limit, max_programs)
    # A row that violates nothing but constraints from Python is beyond a program.
    for place in np.flatnonzero(~feasible(linear, Candidates(schema, moved, originals))):
        row, status = solver.nearest(start[place], originals[place])
        if row is not None:
            moved[place] = row
        proved[bad[place]] = status == "infeasible"
    result[bad] = moved
    ok[bad] = feasible(constraints, Candidates(schema, moved, originals))
    return Projection(result, ok, proved, solver.n_programs, int((~ok & ~proved).sum()))


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
        counts = any(isinstance(c.formula, ChangeCount) for c in self.constraints)
        named = {column for c in self.constraints for column in c.columns}
        self.columns = list(range(len(self.schema.features))) if counts else sorted(named)
        self.mentions_original = any(c.constraint.mentions_original for c in self.constraints)

    def nearest(self, start: Floats, instance: Floats) -> tuple[Floats | None, str]:
        """The nearest feasible row, and the program's status."""
        instance_key = self.instance_key(instance)
        key = start[self.columns].tobytes() + instance_key
        if instance_key in self.infeasible:
            return None, "infeasible"
        if key not in self.solutions:
            self.solutions[key] = self.solve(start, instance)
        row, status = self.solutions[key]
        if status == "infeasible":
            self.infeasible.add(instance_key)
        if row is None:
            return None, status
        # Columns no constraint is about stay each row's own.
        found = start.copy()
        found[self.columns] = row[self.columns]
        return found, status

    def instance_key(self, instance: Floats) -> bytes:
        """What of an instance matters: all of it, or only cells that could not be proposed."""
        original = instance[self.columns]
        if self.mentions_original:
            return original.tobytes()
        counts = [len(f.categories) or np.inf for f in self.schema.features]
        regular = (self.schema.snap(instance[None])[0] == instance) & (instance < counts)
        return np.where(regular[self.columns], 0.0, original).tobytes()

    def solve(self, start: Floats, instance: Floats) -> tuple[Floats | None, str]:
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
                node_limit=self.node_limit,
                rounded=rounded,
            )
            if solution.cells is None:
                return None, solution.status
            row = self.polished(solution.cells[None].copy(), instance[None])
            if row is not None:
                return row, "solved"
            rounded = solution.variables
        return None, "unsolved"

    def polished(self, rows: Floats, instances: Floats) -> Floats | None:
        """The solver's row if it is feasible, moved by its tolerance if need be."""
        if not self.is_feasible(rows, instances):
            rows = _repaired(self.schema, self.constraints, rows, instances, self.weights)
        return rows[0] if self.is_feasible(rows, instances) else None

    def is_feasible(self, rows: Floats, instances: Floats) -> bool:
        return bool(feasible(self.constraints, Candidates(self.schema, rows, instances))[0])
