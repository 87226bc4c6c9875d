"""Moves rows to where every constraint holds, in the table's units.

First comes the vectorised `repair`. Rows that are still infeasible go, each different one once, to
`program`, which finds the nearest feasible row or proves that there is none. Rows that are feasible
already are not touched at all.

The nearest row is decided here by change over range (`Schema.by_range`), not by percentiles:
an integer program needs an objective that is linear in the cells, and repair and program agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

import numpy as np

from lapace.arrays import Bools, Floats
from lapace.constraints.formulas import BoundConstraint, ComparedRows, feasible
from lapace.constraints.program import Solution, provable, solve
from lapace.constraints.repair import Repair, domains
from lapace.schema import Schema

__all__ = ["Projection", "Projector"]

LARGEST_SET, MOST_SETS = 3, 30  # columns free beside those changed most, and sets of them tried


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
class Projector:
    """Moves rows to where constraints hold; `weights` are those of the distance kept small."""

    schema: Schema
    constraints: Sequence[BoundConstraint]
    weights: Floats

    def project(self, cells: Floats, instances: Floats) -> Projection:
        """Projects rows; see `System.project`."""
        ok = self.feasible(cells, instances)
        proved, unsolved = np.zeros((2, len(cells)), dtype=bool)
        result = cells.copy()
        bad = np.flatnonzero(~ok)
        if not len(bad):
            return Projection(result, ok, proved, unsolved, 0)
        originals = instances[bad]
        start = self.schema.derive(self.proposable(cells[bad], originals), originals)
        moved, fine = self.repaired(start, originals)
        linear = replace(self, constraints=provable(self.schema, self.constraints))
        if len(linear.constraints) < len(self.constraints):  # the others are beyond a program
            fine = linear.feasible(moved, originals)
        rest = np.flatnonzero(~fine)
        few_changes, done = linear.with_few_changes(start[rest], originals[rest])
        moved[rest[done]] = few_changes[done]
        rest = rest[~done]
        solutions, n_programs = linear.nearest(start[rest], originals[rest])
        for place, solution in zip(rest.tolist(), solutions, strict=True):
            if solution.cells is not None:
                moved[place] = solution.cells
            proved[bad[place]] = solution.status == "infeasible"
            unsolved[bad[place]] = solution.status == "unsolved"
        if not self.schema.counted.all():  # programs do not see derived columns
            still = np.flatnonzero(~self.feasible(moved, originals))
            moved[still], _ = self.repaired(moved[still], originals[still])
        result[bad] = moved
        ok[bad] = self.feasible(moved, originals)
        return Projection(result, ok, proved, unsolved & ~ok, n_programs)

    def feasible(self, cells: Floats, instances: Floats) -> Bools:
        """Returns whether each row satisfies every constraint, (n,)."""
        return feasible(self.constraints, ComparedRows(self.schema, cells, instances))

    def repaired(
        self, cells: Floats, instances: Floats, movable: Bools | None = None
    ) -> tuple[Floats, Bools]:
        """Returns rows after `Repair`, and which are feasible; `movable` cells alone may move."""
        repair = Repair(self.schema, self.constraints, cells, instances, self.weights, movable)
        return repair.repaired()

    def proposable(self, cells: Floats, instances: Floats) -> Floats:
        """Moves rows onto the lattice and inside the bounds, but for the instance's own cells."""
        numbers = np.array([f.kind == "continuous" for f in self.schema.features])
        snapped = np.where(numbers, self.schema.snap(cells), cells)
        lost = np.isnan(cells) & ~np.isnan(instances)  # a value that was lost is restored
        return np.where((cells == instances) | lost, instances, snapped)

    def with_few_changes(self, start: Floats, instances: Floats) -> tuple[Floats, Bools]:
        """Repairs rows under a limit on changes with a few columns free and all others held.

        Once the columns that may change are chosen, the other constraints have closed-form moves.
        Tried in turn are columns that the other constraints name, and with them those that `start`
        changes most; the first set that will do counts.

        Returns:
            The rows, and which of them are feasible now.
        """
        schema, constraints = self.schema, self.constraints
        most = min((count.most for c in constraints if (count := c.change_count)), default=-1)
        moved, done = start.copy(), np.zeros(len(start), dtype=bool)
        if not len(start) or not 0 < most < int(schema.counted.sum()):
            return moved, done
        named = sorted({k for c in constraints for k in c.columns if schema.counted[k]})
        needed = ~domains(schema, constraints, instances).unchanged & schema.counted
        gaps = schema.metric.range_gaps(start, instances) * self.weights  # (n, d)
        sets = (part for n in range(min(most, LARGEST_SET) + 1) for part in combinations(named, n))
        for part in islice(sets, MOST_SETS):
            rest = np.flatnonzero(~done)
            if not len(rest):
                break
            chosen = np.isin(np.arange(len(schema.features)), part)
            dear = gaps[rest] + 1e3 * needed[rest] + 1e6 * chosen
            rank = (-dear).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
            free = (rank < most) & (dear > 0)
            originals = instances[rest]
            cells = np.where(free | ~schema.counted, start[rest], originals)
            cells, ok = self.repaired(schema.derive(cells, originals), originals, free)
            moved[rest[ok]], done[rest] = cells[ok], ok
        return moved, done

    def nearest(self, start: Floats, instances: Floats) -> tuple[list[Solution], int]:
        """Finds the feasible row nearest to each start by a program, each different one once.

        Rows that agree in the columns the constraints look at share a program. An instance that is
        proved to have no feasible row, or one of whose programs ended without a result, gets no
        further one.

        Returns:
            A solution for each start, and how many programs were solved.
        """
        counts = any(c.change_count for c in self.constraints)
        named = {column for c in self.constraints for column in c.columns}
        columns = list(range(len(self.schema.features))) if counts else sorted(named)
        by_program: dict[bytes, Solution] = {}
        without_row: dict[bytes, Solution] = {}  # by instance
        solutions = []
        for row, instance in zip(start, instances, strict=True):
            owner = instance[columns].tobytes()
            key = row[columns].tobytes() + owner
            solution = without_row.get(owner) or by_program.get(key)
            if solution is None:
                solution = by_program[key] = self.solved(row, instance)
            if solution.cells is None:
                without_row[owner] = solution
            else:  # columns no constraint is about stay each row's own
                near = row.copy()
                near[columns] = solution.cells[columns]
                solution = Solution("solved", self.schema.derive(near[None], instance[None])[0])
            solutions.append(solution)
        return solutions, len(by_program)

    def solved(self, start: Floats, instance: Floats) -> Solution:
        """Solves one program; its row may have to be moved by the solver's tolerance."""
        solution = solve(self.schema, self.constraints, instance, start, self.weights)
        if solution.cells is None:
            return solution
        rows, instances = solution.cells[None], instance[None]
        if not self.feasible(rows, instances)[0]:
            rows, ok = self.repaired(rows, instances)
            if not ok[0]:
                return Solution("unsolved")
        return Solution("solved", rows[0])
