"""Constraints bound to a schema: check, project, penalise, and say which contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.constraints.binding import BoundConstraint, bind, feasible
from lapace.constraints.language import Constraint
from lapace.constraints.links import linked, provable
from lapace.constraints.logic import ChangeCount, ComparedRows, slack
from lapace.constraints.parser import parse_all
from lapace.constraints.program import NODE_LIMIT, solve
from lapace.constraints.projection import Domains, Projection, domains, project
from lapace.errors import InputError
from lapace.schema import Feature, Schema

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["System"]


@dataclass(frozen=True)
class System:
    """Constraints that hold together, in one schema.

    Make one with `System.of`. Cells are matrices (n, d) as `Schema` makes them, `instances` the
    cells of the instance each row is for, row by row.

    Attributes:
        schema: The columns.
        bound: The constraints as formulas, in the order given, each once.

    Examples:
        >>> from lapace.schema import Schema
        >>> table = [{"age": 20 + i % 50, "hours": 10 + i % 60} for i in range(300)]
        >>> schema = Schema.infer(table)
        >>> system = System.of(["fixed age", "hours <= 40"], schema)
        >>> instance, point = np.array([[30.0, 45.0]]), np.array([[34.0, 52.0]])
        >>> system.holds(point, instance).tolist()
        [[False, False]]
        >>> system.project(point, instance).cells.tolist()
        [[30.0, 40.0]]
        >>> System.of(["hours <= 5"], schema)
        Traceback (most recent call last):
        lapace.errors.InputError: 'hours <= 5' can never hold: column 'hours' lies between ...
    """

    schema: Schema
    bound: tuple[BoundConstraint, ...]

    @classmethod
    def of(
        cls,
        constraints: str | Constraint | Iterable[str | Constraint],
        schema: Schema,
        *,
        check: bool = True,
    ) -> System:
        """Binds constraints, given as text or values, to a schema.

        Args:
            constraints: What has to hold.
            schema: The columns.
            check: Refuses constraints that no instance could satisfy, with the reason. It takes
                milliseconds; leave it out for constraints that have passed before.
        """
        bound = tuple(bind(c, schema) for c in dict.fromkeys(parse_all(constraints)))
        if check and (found := _contradiction(schema, bound)):
            raise InputError(_refusal(schema, found))
        return cls(schema, bound)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """What has to hold, in the order given, each once."""
        return tuple(bound.constraint for bound in self.bound)

    @cached_property
    def mentions_original(self) -> bool:
        """Whether what is feasible depends on the instance (`original`, `changes`, …)."""
        return any(c.mentions_original for c in self.constraints)

    def __len__(self) -> int:
        return len(self.bound)

    # -- checking ---------------------------------------------------------------------------------

    def holds(self, cells: Floats, instances: Floats) -> Bools:
        """Whether each row satisfies each constraint, (n, m), exactly."""
        rows = ComparedRows(self.schema, cells, instances)
        columns = [bound.holds(rows) for bound in self.bound]
        return np.array(columns, dtype=bool).reshape(len(self.bound), len(cells)).T

    def feasible(self, cells: Floats, instances: Floats) -> Bools:
        """Whether each row satisfies every constraint, (n,)."""
        return feasible(self.bound, ComparedRows(self.schema, cells, instances))

    def slack(self, cells: Floats, instances: Floats) -> Floats:
        """How far each constraint is from holding, (n, m), in its own units; 0 where it holds.

        A relation counts what its left side is over (or under) its right, a limit on changes the
        columns too many, an ordinal its levels, anything else 1. A conditional counts what follows
        `then`, several columns the worst of them.
        """
        rows = ComparedRows(self.schema, cells, instances)
        distances = np.zeros((len(cells), len(self.bound)))
        for k, bound in enumerate(self.bound):
            distance = slack(bound.formula, rows)
            distances[:, k] = np.where(bound.holds(rows), 0, np.where(distance > 0, distance, 1))
        return distances

    def penalty(self, values: Tensor, instances: Floats) -> Tensor:
        """The paper's g: how far rows are from holding, (n,), differentiable in the numbers.

        Violations of relations are hinges, each over the range its columns span, added up; a
        disjunction (`if … then`, `abs(…) >=`) counts the least violated alternative. Categories,
        given as codes, decide which conditions apply; what has no gradient at all (a nominal
        category, a limit on changes) is left to the projection and counts nothing.

        Args:
            values: Rows in table units, (n, d), categories as codes.
            instances: Cells of the instance of each row, (n, d).
        """
        from lapace.constraints.penalty import penalty

        return penalty(self.schema, self.bound, values, instances)

    # -- projecting -------------------------------------------------------------------------------

    def project(
        self,
        cells: Floats,
        instances: Floats,
        *,
        costs: Mapping[str, float] | None = None,
        node_limit: int = NODE_LIMIT,
        max_programs: int = 10_000,
        owners: Ints | None = None,
    ) -> Projection:
        """The rows moved to where every constraint holds, near where they were.

        Derived columns are computed first and follow every move; feasible rows come back bit for
        bit. The others move on the lattice and inside the bounds of
        their columns; a cell may keep the instance's value, whatever the schema says.

        Args:
            cells: Rows as `Schema.decode` makes them, (n, d).
            instances: Cells of the instance of each row, (n, d).
            costs: Weights of the distance that is kept small.
            node_limit: Branch-and-bound nodes a program may take.
            max_programs: Programs that may be solved at most; rows beyond that stay unsolved.
            owners: The instance each row is for, (n,): its rows share a limit of nodes. Each row is
                alone where they are left out.
        """
        weights = self.schema.weights(costs)
        cells = self.schema.derive(cells, instances)
        return project(
            self.schema,
            self.bound,
            cells,
            instances,
            weights,
            node_limit=node_limit,
            max_programs=max_programs,
            owners=owners,
        )

    def domains(self, instances: Floats) -> Domains:
        """What each cell may be by the constraints on its column alone: bounds, allowed levels."""
        return domains(self.schema, self.bound, instances)

    # -- contradictions ---------------------------------------------------------------------------

    def contradiction(
        self, instance: Floats, *, node_limit: int = NODE_LIMIT
    ) -> tuple[Constraint, ...]:
        """A smallest set of constraints no row for this instance can satisfy; empty if none is.

        Sets of one and two are smallest for certain; a larger set is irreducible: without any one
        of its members the others can hold.

        Args:
            instance: Cells of one instance, (d,).
            node_limit: Branch-and-bound nodes a program may take.

        Examples:
            >>> from lapace.schema import Schema
            >>> schema = Schema.infer([{"age": 20 + i % 50, "hours": i % 60} for i in range(300)])
            >>> system = System.of(["fixed age", "hours <= 9", "hours >= age"], schema)
            Traceback (most recent call last):
            lapace.errors.InputError: 'hours <= 9' and 'hours >= age' can never hold together.
            >>> system = System.of(["fixed age", "hours <= 29", "hours >= age"], schema)
            >>> [str(c) for c in system.contradiction(np.array([30.0, 20.0]))]
            ['fixed age', 'hours <= 29', 'hours >= age']
        """
        instance = np.asarray(instance, dtype=np.float64).reshape(-1)
        found = _contradiction(self.schema, self.bound, instance, node_limit)
        return tuple(bound.constraint for bound in found)

    def without(self, constraints: Iterable[str | Constraint]) -> System:
        """The same system, some constraints dropped."""
        dropped = parse_all(constraints)
        for constraint in dropped:
            if constraint not in self.constraints:
                raise InputError(f"The constraint '{constraint}' is not in this system.")
        return replace(self, bound=tuple(b for b in self.bound if b.constraint not in dropped))


def _contradiction(
    schema: Schema,
    bound: Sequence[BoundConstraint],
    instance: Floats | None = None,
    node_limit: int = NODE_LIMIT,
) -> tuple[BoundConstraint, ...]:
    """A smallest set of constraints that no row (of this or any instance) can satisfy together."""

    def impossible(some: Sequence[BoundConstraint]) -> bool:
        links = linked(schema, some)
        found = solve(schema, links, instance=instance, node_limit=node_limit)
        return found.status == "infeasible"

    bound = provable(schema, bound)
    if not bound or not impossible(bound):
        return ()
    for one in bound:
        if impossible([one]):
            return (one,)
    core = list(bound)
    for one in bound:
        rest = [b for b in core if b is not one]
        if impossible(rest):
            core = rest
    if len(core) > 2:
        pairs = (pair for pair in combinations(bound, 2) if _interact(schema, *pair))
        return next((pair for pair in pairs if impossible(pair)), tuple(core))
    return tuple(core)


def _interact(schema: Schema, a: BoundConstraint, b: BoundConstraint) -> bool:
    """Whether two constraints can contradict at all: a count of changes is about every column."""
    counts = isinstance(a.formula, ChangeCount) or isinstance(b.formula, ChangeCount)
    reach = [{c for bound in linked(schema, [one]) for c in bound.columns} for one in (a, b)]
    return counts or bool(reach[0] & reach[1])


# ------------------------------------------------------------------------------------------------
# Sentences


def _refusal(schema: Schema, bound: tuple[BoundConstraint, ...]) -> str:
    """Why no instance could satisfy these: the ranges of their columns, or their lattices."""
    *texts, last = (f"'{b.constraint}'" for b in bound)
    sentence = f"{last} can never hold"
    if texts:
        sentence = f"{', '.join(texts)} and {sentence} together"
    features = [schema.features[c] for c in sorted({c for b in bound for c in b.columns})]
    lattice = _possible_off_lattice(schema, bound)
    if lattice:
        features = [f for f in features if f.kind == "continuous" and f.resolution]
    reasons = [_values(f, lattice=lattice) for f in features[:4] if lattice or not texts]
    return f"{sentence}{': ' if reasons else ''}{' and '.join(reasons)}."


def _possible_off_lattice(schema: Schema, bound: Sequence[BoundConstraint]) -> bool:
    """Whether the constraints could hold if numbers could take any value inside their bounds."""
    free = [
        replace(f, resolution=0.0, integer=False) if f.kind == "continuous" else f
        for f in schema.features
    ]
    relaxed = replace(schema, features=tuple(free))
    again = [bind(b.constraint, relaxed) for b in bound]
    return solve(relaxed, linked(relaxed, again)).status == "solved"


def _values(feature: Feature, *, lattice: bool) -> str:
    """The values a column takes: its categories, its range, or the lattice in its range."""
    if feature.kind != "continuous":
        levels = ", ".join(str(level) for level in feature.categories[:8])
        return f"column '{feature.name}' is one of {levels}"
    low, high, step = map(feature.text, (feature.lower, feature.upper, feature.resolution))
    if not lattice:
        return f"column '{feature.name}' lies between {low} and {high}"
    values = "whole numbers" if feature.resolution == 1 else f"multiples of {step}"
    return f"column '{feature.name}' takes only {values}, from {low} to {high}"
