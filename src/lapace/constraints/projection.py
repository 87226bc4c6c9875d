"""Moving rows to where every constraint holds, in the table's own units.

First a vectorised pass: what each column may be by the constraints on it alone, then small
closed-form moves on the lattice for relations, conditionals and counts, a few rounds of them. Rows
it leaves broken go, deduplicated, to `program`, which finds the nearest feasible row or proves that
there is none. Rows that keep every constraint already are not touched at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats
from lapace.constraints.binding import Bound
from lapace.constraints.nodes import (
    MISSING,
    UNSEEN,
    Count,
    Every,
    Line,
    Moved,
    Node,
    Opaque,
    Rows,
    Same,
    Some,
    Table,
    leaves,
)
from lapace.constraints.program import solve
from lapace.schema import Schema

__all__ = ["Domains", "Projection", "domains", "project"]

Places: TypeAlias = NDArray[np.int64]
Check: TypeAlias = Callable[[Floats, Floats], Bools]

ROUNDS = 6
CLOSE = 1e-9  # of a column's span: nearer than this is rounding


@dataclass(frozen=True)
class Projection:
    """Rows after projection.

    Attributes:
        cells: The rows, (n, d).
        feasible: Whether each keeps every constraint, checked on exactly these cells.
        proved_infeasible: For whom it is proved that no row whatever could.
        solved: Programs that had to be solved.
        unsolved: Rows that are not feasible and not proved impossible either: the time was up,
            or only a constraint from Python is in the way.

    Examples:
        >>> from lapace.constraints import System
        >>> schema = Schema.infer([{"age": 20 + i % 50, "hours": i % 60} for i in range(300)])
        >>> rows = schema.cells([{"age": 30, "hours": 50}])
        >>> after = System.of(["hours <= age"], schema).project(rows, rows)
        >>> after.feasible.tolist(), after.solved
        ([True], 0)
    """

    cells: Floats
    feasible: Bools
    proved_infeasible: Bools
    solved: int
    unsolved: int


@dataclass(frozen=True)
class Domains:
    """What each cell may be, by the constraints on its column alone.

    Attributes:
        lower: Least number that may be proposed, on the lattice, (n, d).
        upper: Greatest, (n, d); less than `lower` where there is none.
        least: Least number the constraints allow, the schema aside (own values need not be in it).
        greatest: Greatest.
        allowed: For columns of categories under a constraint: which levels may be, and in the last
            three places the instance's own unseen level, missing, and any other level, (n, levels+3).
        pinned: Cells that must be the instance's own, (n, d).
        own: Cells that may be the instance's own, (n, d).

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
    allowed: dict[int, Bools]
    pinned: Bools
    own: Bools

    def take(self, rows: Places) -> Domains:
        """Some of the rows."""
        return Domains(
            self.lower[rows],
            self.upper[rows],
            self.least[rows],
            self.greatest[rows],
            {column: allowed[rows] for column, allowed in self.allowed.items()},
            self.pinned[rows],
            self.own[rows],
        )


def domains(schema: Schema, bounds: Sequence[Bound], instances: Floats) -> Domains:
    """Works out each instance's domains."""
    shape = instances.shape
    least, greatest = np.full(shape, -np.inf), np.full(shape, np.inf)
    pinned = np.zeros(shape, dtype=bool)
    allowed: dict[int, Bools] = {}
    rows = Rows(schema, instances, instances)
    for bound in bounds:
        for column in bound.kept:
            pinned[:, column] |= np.isnan(instances[:, column])
        for leaf in leaves(bound.node):
            if not _narrows(leaf):
                continue
            match leaf:
                case Same(column):
                    pinned[:, column] = True
                case Line():
                    _narrow(leaf.positive(), rows, least, greatest)
                case Table(column):
                    own, _ = rows.slots(column, leaf.levels)
                    good = leaf.truths[own] >= 0  # (n, levels + 3)
                    allowed[column] = allowed[column] & good if column in allowed else good
    lower, upper = _on_lattice(schema, least, greatest)
    close = CLOSE * schema.spans
    own_fits = np.isnan(instances) | (
        (instances >= least - close) & (instances <= greatest + close)
    )
    for column, good in allowed.items():
        slots, _ = rows.slots(column, good.shape[1] - 3)
        own_fits[:, column] = good[np.arange(len(good)), slots]
        pinned[:, column] |= own_fits[:, column] & (good.sum(axis=1) == 1)
    return Domains(lower, upper, least, greatest, allowed, pinned, own_fits)


def _narrows(node: Node) -> bool:
    """Whether a part says something about one column alone that a domain can hold."""
    match node:
        case Table():
            return True
        case Same(_, negated):
            return not negated
        case Line():
            positive = node.positive()
            single = len(node.columns) == 1 and node.columns[0] not in node.worths
            return single and positive.relation != "!="
    return False


def _narrow(line: Line, rows: Rows, least: Floats, greatest: Floats) -> None:
    """A line over one number moves the ends of its domain."""
    (column,), (weight,) = line.columns, line.weights
    rest = replace(line, columns=(), weights=()).value(rows)[0]
    bar = -rest / weight
    if line.relation == "<":
        step = rows.schema.features[column].resolution
        gap = line.margin / abs(weight) or 1e-6 * step
        bar = bar - gap if weight > 0 else bar + gap
    known = ~np.isnan(bar)
    if line.relation == "==" or weight > 0:
        greatest[known, column] = np.minimum(greatest[known, column], bar[known])
    if line.relation == "==" or weight < 0:
        least[known, column] = np.maximum(least[known, column], bar[known])


def _on_lattice(schema: Schema, least: Floats, greatest: Floats) -> tuple[Floats, Floats]:
    """The ends moved inside the schema's bounds and onto the lattice."""
    features = schema.features
    floor = np.array([f.lower if f.kind == "continuous" else -np.inf for f in features])
    top = np.array([f.upper if f.kind == "continuous" else np.inf for f in features])
    steps = np.array([f.resolution if f.kind == "continuous" else 0.0 for f in features])
    lower, upper = np.maximum(least, floor), np.minimum(greatest, top)
    on = steps > 0
    lower[:, on] = np.ceil(lower[:, on] / steps[on] - CLOSE) * steps[on]
    upper[:, on] = np.floor(upper[:, on] / steps[on] + CLOSE) * steps[on]
    # `snap` writes 0.3 for 0.30000000000000004, but it also clips: keep what lies outside.
    slip = CLOSE * schema.spans
    for ends in (lower, upper):
        inside = on & (ends >= floor - slip) & (ends <= top + slip)
        ends[inside] = schema.snap(np.where(inside, ends, 0.0))[inside]
    return lower, upper


# ------------------------------------------------------------------------------------------------
# The quick pass


@dataclass(frozen=True)
class _Work:
    """Rows being moved: cells beside instances, what each cell may be and whether it may move."""

    schema: Schema
    weights: Floats
    cells: Floats
    instances: Floats
    domains: Domains
    free: Bools

    def take(self, rows: Places) -> _Work:
        return replace(
            self,
            cells=self.cells[rows],
            instances=self.instances[rows],
            domains=self.domains.take(rows),
            free=self.free[rows],
        )

    def rows(self, cells: Floats | None = None) -> Rows:
        return Rows(self.schema, self.cells if cells is None else cells, self.instances)

    def broken(self, node: Node) -> Places:
        return np.flatnonzero(node.truth(self.rows()) < 0)


def _quick(
    schema: Schema, bounds: Sequence[Bound], check: Check, cells: Floats, instances: Floats,
    weights: Floats,
) -> Floats:  # fmt: skip
    """Closed-form moves; returns the rows as far as it got."""
    limits = domains(schema, bounds, instances)
    cells = _settled(schema, cells, instances, limits)
    work = _Work(schema, weights, cells, instances, limits, ~limits.pinned)
    rest = [leaf for b in bounds for leaf in leaves(b.node) if not _narrows(leaf)]
    moves = [node for node in rest if not isinstance(node, Count) and not _stuck(node)]
    counts = [node for node in rest if isinstance(node, Count)]
    if not moves and not counts:
        return cells
    todo = np.arange(len(cells))
    for _ in range(ROUNDS):
        todo = todo[~check(cells[todo], instances[todo])]
        if not len(todo):
            break
        part = work.take(todo)
        for node in moves:
            hit = part.broken(node)
            if len(hit):
                part.cells[hit] = _repaired(node, part.take(hit))
        for count in counts:
            _put_back(count, part)
        cells[todo] = part.cells
        work.free[todo] = part.free
    return cells


def _stuck(node: Node) -> bool:
    """A function from Python that does not say how to keep it."""
    return isinstance(node, Opaque) and node.custom.project is None


def _settled(schema: Schema, cells: Floats, instances: Floats, limits: Domains) -> Floats:
    """Every cell moved into its domain: the nearest number, the nearest or own category."""
    cells = np.where(limits.pinned, instances, cells)
    close = CLOSE * schema.spans
    below, above = cells < limits.least - close, cells > limits.greatest + close
    some = limits.lower <= limits.upper  # else there is nothing to move to
    moved = np.where(below & some, limits.lower, np.where(above & some, limits.upper, cells))
    nearer = limits.own & (np.abs(instances - cells) <= np.abs(moved - cells))  # NaN is not
    cells = np.where((below | above) & nearer, instances, moved)
    for column, allowed in limits.allowed.items():
        cells[:, column] = _nearest_level(schema, column, cells, instances, allowed)
    return cells


def _nearest_level(
    schema: Schema, column: int, cells: Floats, instances: Floats, allowed: Bools
) -> Floats:
    """The level itself where it is allowed, else the nearest that is; ties go to the own one."""
    feature = schema.features[column]
    levels = allowed.shape[1] - 3
    own, new = Rows(schema, cells, instances).slots(column, levels)
    every = np.arange(len(cells))
    bad = np.flatnonzero(~allowed[every, new])
    if not len(bad):
        return cells[:, column]
    places = np.arange(levels + 3)
    usable = allowed[bad] & (places < len(feature.categories))
    mine = own[bad]
    at = np.arange(len(bad))
    usable[at, mine] = allowed[bad, mine]
    price = np.ones(usable.shape)
    if feature.numeric:
        there = np.where(new[bad] < levels, new[bad], mine)
        price = np.abs(places - there[:, None]).astype(float)
    price[at, mine] -= 0.5
    price[~usable] = np.inf
    best = price.argmin(axis=1)
    found = usable.any(axis=1)
    special = best >= levels  # unseen or missing: only the instance's own can be that
    values = np.where(special, instances[bad, column], best.astype(float))
    result = cells[:, column].copy()
    result[bad[found]] = values[found]
    return result


def _repaired(node: Node, work: _Work) -> Floats:
    """The rows with one part of one constraint mended, where that is easy."""
    match node:
        case Line():
            return _moved_line(node.positive(), work)
        case Table(column):
            return _moved_level(node, column, work)
        case Same(column, negated) | Moved(column, negated):
            stays = isinstance(node, Same) != negated
            return _own(column, work) if stays else _stepped(column, work)
        case Every(parts):
            for part in parts:
                hit = work.broken(part)
                work.cells[hit] = _repaired(part, work.take(hit))
            return work.cells
        case Some(parts):
            return _cheapest(node, parts, work)
        case Opaque():
            moved = np.where(work.free, node.projected(work.cells.copy()), work.cells)
            moved = _proposable(work.schema, moved, work.instances)
            return _settled(work.schema, moved, work.instances, work.domains)
        case _:
            return work.cells


def _cheapest(node: Some, parts: tuple[Node, ...], work: _Work) -> Floats:
    """Each part mended by itself; for each row the cheapest that will do."""
    best = work.cells.copy()
    least = np.full(len(best), np.inf)
    for part in parts:
        copy = replace(work, cells=work.cells.copy())
        tried = _repaired(part, copy)
        price = work.schema.gaps(tried, work.cells) @ work.weights
        price[node.truth(work.rows(tried)) < 0] = np.inf
        better = price < least
        best[better], least[better] = tried[better], price[better]
    return best


def _own(column: int, work: _Work) -> Floats:
    back = work.free[:, column] & work.domains.own[:, column]
    work.cells[back, column] = work.instances[back, column]
    return work.cells


def _stepped(column: int, work: _Work) -> Floats:
    """A number that has to move goes one step, up if it can."""
    step = work.schema.features[column].step
    own = work.instances[:, column]
    lower, upper = work.domains.lower[:, column], work.domains.upper[:, column]
    up, down = np.clip(own + step, lower, upper), np.clip(own - step, lower, upper)
    target = np.where(up > own, up, down)
    go = work.free[:, column] & (lower <= upper) & ~np.isnan(target)
    spots = work.cells.copy()
    spots[go, column] = target[go]
    # From an own value off the lattice a step leads off it too: snap, and look again later.
    work.cells[go, column] = work.schema.snap(spots)[go, column]
    return work.cells


def _moved_level(node: Table, column: int, work: _Work) -> Floats:
    own, _ = work.rows().slots(column, node.levels)
    allowed = node.truths[own] >= 0
    if column in work.domains.allowed:
        allowed = allowed & work.domains.allowed[column]
    moved = _nearest_level(work.schema, column, work.cells, work.instances, allowed)
    work.cells[:, column] = np.where(work.free[:, column], moved, work.cells[:, column])
    return work.cells


def _moved_line(line: Line, work: _Work) -> Floats:
    if line.relation == "!=":
        below = replace(line, relation="<")
        above = replace(line, relation="<=", negated=True)
        return _cheapest(Some((below, above)), (below, above), work)
    value, _ = line.value(work.rows())
    columns = [c for c in _by_worth(line, work) if c not in line.worths]
    weights = dict(zip(line.columns, line.weights, strict=True))
    if line.relation == "==":
        columns.sort(key=lambda c: -abs(weights[c]) * work.schema.features[c].resolution)
    elif line.relation == "<":
        value = value + (line.margin or 1e-6 * line.unit)
    for column in columns:
        value = _shifted(line, work, column, weights[column], value)
    return _snapped(work, columns)


def _by_worth(line: Line, work: _Work) -> list[int]:
    """Columns of a line, those first that change it most for the distance they cost."""
    spans = work.schema.spans
    worth = {c: abs(w) * spans[c] / max(work.weights[c], 1e-9)
             for c, w in zip(line.columns, line.weights, strict=True)}  # fmt: skip
    return sorted(worth, key=lambda c: -worth[c])


def _shifted(line: Line, work: _Work, column: int, weight: float, value: Floats) -> Floats:
    """Moves one column to bring the sum to zero as far as its domain goes; gives what is left."""
    cells = work.cells[:, column]
    lower, upper = work.domains.lower[:, column], work.domains.upper[:, column]
    step = work.schema.features[column].resolution
    target = cells - value / weight
    if step and line.relation == "==":
        target = np.rint(target / step) * step
    elif step and weight > 0:
        target = np.floor(target / step + CLOSE) * step
    elif step:
        target = np.ceil(target / step - CLOSE) * step
    target = np.clip(target, lower, np.maximum(lower, upper))
    toward = line.relation == "==" or (target < cells if weight > 0 else target > cells)
    needed = np.abs(value) > 0 if line.relation == "==" else value > 0
    go = work.free[:, column] & needed & toward & (lower <= upper) & ~np.isnan(target)
    left = np.where(go, value + weight * (target - cells), value)
    work.cells[go, column] = target[go]
    return left


def _snapped(work: _Work, columns: Sequence[int]) -> Floats:
    """Moved numbers as an instance would write them, or as the instance's own where they meet it."""
    snapped = work.schema.snap(work.cells)
    close = CLOSE * work.schema.spans
    for column in columns:
        old, new, own = work.cells[:, column], snapped[:, column], work.instances[:, column]
        same = np.abs(old - own) <= close[column]
        tidy = np.abs(old - new) <= close[column]
        work.cells[:, column] = np.where(same, own, np.where(tidy, new, old))
    return work.cells


def _put_back(count: Count, work: _Work) -> None:
    """Too many changes: the cheapest go back to the instance's own, and what is own stays so."""
    schema = work.schema
    changed = schema.changed(work.cells, work.instances)  # (n, d)
    surplus = changed.sum(axis=1) - count.most
    hit = np.flatnonzero(surplus > 0)
    if not len(hit):
        return
    price = schema.gaps(work.cells[hit], work.instances[hit]) * work.weights
    able = changed[hit] & work.domains.own[hit] & work.free[hit]
    price = np.where(able, price, np.inf)
    rank = price.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    back = (rank < surplus[hit, None]) & able
    work.cells[hit] = np.where(back, work.instances[hit], work.cells[hit])
    work.free[hit] &= changed[hit] & ~back


# ------------------------------------------------------------------------------------------------
# All of it


def project(
    schema: Schema, bounds: Sequence[Bound], check: Check, cells: Floats, instances: Floats,
    weights: Floats, *, limit: float, programs: int,
) -> Projection:  # fmt: skip
    """See `System.project`."""
    feasible = check(cells, instances)
    proved = np.zeros(len(cells), dtype=bool)
    result = cells.copy()
    bad = np.flatnonzero(~feasible)
    if not len(bad):
        return Projection(result, feasible, proved, 0, 0)
    start, own = _proposable(schema, cells[bad], instances[bad]), instances[bad]
    moved = _quick(schema, bounds, check, start.copy(), own, weights)
    good = check(moved, own)
    stated = [b for b in bounds if not isinstance(b.node, Opaque)]
    solver = _Solver(schema, stated, check, weights, limit, programs)
    for place in solver.worth_it(np.flatnonzero(~good), moved, own):
        row, status = solver.row(start[place], own[place])
        if row is not None:
            moved[place] = row
        proved[bad[place]] = status == "infeasible"
    result[bad] = moved
    feasible[bad] = check(moved, own)
    left = int((~feasible & ~proved).sum())
    return Projection(result, feasible, proved, solver.solved, left)


def _proposable(schema: Schema, cells: Floats, instances: Floats) -> Floats:
    """Rows on the lattice and inside the bounds, but for the instance's own cells."""
    numbers = np.array([f.kind == "continuous" for f in schema.features])
    snapped = np.where(numbers, schema.snap(cells), cells)
    own = (cells == instances) | (
        np.isnan(cells) & ~np.isnan(instances)
    )  # what was lost comes back
    return np.where(own, instances, snapped)


@dataclass
class _Solver:
    """Solves each different question once, and no question for an instance it is hopeless for."""

    schema: Schema
    bounds: Sequence[Bound]
    check: Check
    weights: Floats
    limit: float
    programs: int
    solved: int = 0

    def __post_init__(self) -> None:
        self.known: dict[bytes, tuple[Floats | None, str]] = {}
        self.hopeless: set[bytes] = set()
        width = len(self.schema.features)
        counts = any(isinstance(b.node, Count) for b in self.bounds)
        named = sorted({c for b in self.bounds for c in b.columns})
        self.columns = list(range(width)) if counts else named
        self.personal = any(b.constraint.mentions_original for b in self.bounds)

    def worth_it(self, places: Places, cells: Floats, instances: Floats) -> Iterator[int]:
        """Rows that break something a program can mend."""
        rows = Rows(self.schema, cells[places], instances[places])
        broken = np.zeros(len(places), dtype=bool)
        for bound in self.bounds:
            broken |= ~kept(bound, rows)
        yield from (int(place) for place in places[broken])

    def row(self, start: Floats, one: Floats) -> tuple[Floats | None, str]:
        """The nearest feasible row, and how it went."""
        instance = self.instance(one).tobytes()
        key = start[self.columns].tobytes() + instance
        if instance in self.hopeless:
            return None, "infeasible"
        if key not in self.known:
            self.known[key] = self.fresh(start, one)
        row, status = self.known[key]
        if status == "infeasible":
            self.hopeless.add(instance)
        if row is None:
            return None, status
        # Columns no constraint is about are each row's own.
        mended = start.copy()
        mended[self.columns] = row[self.columns]
        return mended, status

    def instance(self, instance: Floats) -> Floats:
        """What of an instance matters: all of it, or only where it is missing or off the map."""
        own = instance[self.columns]
        if self.personal:
            return own
        usual = self.schema.snap(instance[None])[0, self.columns] == own
        known = np.array([self.usual(c, instance[c]) for c in self.columns], dtype=bool)
        return np.where(usual & known, 0.0, own)

    def usual(self, column: int, cell: float) -> bool:
        feature = self.schema.features[column]
        return feature.kind == "continuous" or cell < len(feature.categories)

    def fresh(self, start: Floats, instance: Floats) -> tuple[Floats | None, str]:
        settled: Floats | None = None
        for _ in range(2):
            if self.solved >= self.programs:
                return None, "unsolved"
            self.solved += 1
            outcome = solve(
                self.schema, self.bounds, instance=instance, start=start, weights=self.weights,
                limit=self.limit, settled=settled,
            )  # fmt: skip
            if outcome.cells is None:
                return None, outcome.status
            row = self.polished(outcome.cells, instance)
            if row is not None:
                return row, "solved"
            settled = outcome.solution
        return None, "unsolved"

    def polished(self, row: Floats, instance: Floats) -> Floats | None:
        """The solver's row if it keeps everything, moved by its tolerance if need be."""
        rows = row[None].copy()
        if self.holds(rows, instance[None]):
            return row
        rows = _quick(self.schema, self.bounds, self.each, rows, instance[None], self.weights)
        return rows[0] if self.holds(rows, instance[None]) else None

    def holds(self, rows: Floats, instances: Floats) -> bool:
        return bool(self.each(rows, instances)[0])

    def each(self, cells: Floats, instances: Floats) -> Bools:
        """What `check` says, constraints from Python aside."""
        rows = Rows(self.schema, cells, instances)
        good = np.ones(len(cells), dtype=bool)
        for bound in self.bounds:
            good &= kept(bound, rows)
        return good


def kept(bound: Bound, rows: Rows) -> Bools:
    """Whether rows keep one constraint."""
    good = bound.node.truth(rows) >= 0
    for column in bound.columns:
        if column in rows.lost:
            good &= ~rows.lost[column]
    for column in bound.kept:
        if column in rows.filled:
            good &= ~rows.filled[column]
    return good


assert UNSEEN < MISSING  # the slots after the levels, as `Domains.allowed` describes them
