"""Constraints bound to a schema: check, project, penalise, and say what stands in the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from lapace.arrays import Bools, Floats
from lapace.constraints.binding import Bound, bind
from lapace.constraints.language import Constraint
from lapace.constraints.nodes import Count, Opaque, Rows
from lapace.constraints.parser import parse_all
from lapace.constraints.program import solve
from lapace.constraints.projection import Domains, Projection, domains, kept, project
from lapace.errors import InputError
from lapace.schema import Schema

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["System"]


@dataclass(frozen=True)
class System:
    """Constraints that hold together, in one schema.

    Make one with `System.of`. Cells are matrices (n, d) as `Schema` makes them, `instances` the cells
    of the instance each row is for, row by row.

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
    bounds: tuple[Bound, ...]

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
            schema: What the columns are.
            check: Proves that not everyone is ruled out, and says so if they are. It takes
                milliseconds; leave it out for constraints that have passed before.
        """
        bounds = tuple(bind(c, schema) for c in dict.fromkeys(parse_all(constraints)))
        if check and bounds:
            clash = _smallest(schema, bounds, None)
            if clash:
                raise InputError(_clash(clash, schema))
        return cls(schema, bounds)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """What has to hold, in the order given, each once."""
        return tuple(bound.constraint for bound in self.bounds)

    @cached_property
    def mentions_original(self) -> bool:
        """Whether what is feasible depends on the instance (`original`, `changes`, a transition)."""
        return any(c.mentions_original for c in self.constraints)

    def __len__(self) -> int:
        return len(self.bounds)

    # -- checking ---------------------------------------------------------------------------------

    def holds(self, cells: Floats, instances: Floats) -> Bools:
        """Whether each row keeps each constraint, (n, m), exactly."""
        rows = Rows(self.schema, cells, instances)
        holds = np.ones((len(cells), len(self.bounds)), dtype=bool)
        for k, bound in enumerate(self.bounds):
            holds[:, k] = kept(bound, rows)
        return holds

    def feasible(self, cells: Floats, instances: Floats) -> Bools:
        """Whether each row keeps every constraint, (n,)."""
        rows = Rows(self.schema, cells, instances)
        good = np.ones(len(cells), dtype=bool)
        for bound in self.bounds:
            good &= kept(bound, rows)
        return good

    def slack(self, cells: Floats, instances: Floats) -> Floats:
        """How far each constraint is from holding, (n, m), in its own units; 0 where it holds.

        A relation counts what its left side is over (or under) its right, a limit on changes the
        columns too many, an ordinal its levels, anything else 1. A conditional counts what follows
        `then`, several columns the worst of them.
        """
        rows = Rows(self.schema, cells, instances)
        slack = np.zeros((len(cells), len(self.bounds)))
        for k, bound in enumerate(self.bounds):
            broken = ~kept(bound, rows)
            far = np.nan_to_num(bound.node.slack(rows), nan=0.0)
            slack[:, k] = np.where(broken, np.where(far > 0, far, 1.0), 0.0)
        return slack

    def penalty(self, values: Tensor, instances: Floats) -> Tensor:
        """The paper's g: how far rows are from holding, (n,), differentiable in the numbers.

        Violations of relations are hinges, each over the range its columns span, added up; a
        choice (`if … then`, `abs(…) >=`) counts its nearest way out. Categories, given as codes,
        decide which conditions apply; what has no gradient at all (a category of its own, a limit
        on changes) is left to the projection and counts nothing.

        Args:
            values: Rows in table units, (n, d), categories as codes.
            instances: Cells of the instance of each row, (n, d).
        """
        from lapace.constraints.penalty import penalty

        return penalty(self.schema, self.bounds, values, instances)

    # -- projecting -------------------------------------------------------------------------------

    def project(
        self,
        cells: Floats,
        instances: Floats,
        *,
        costs: Mapping[str, float] | None = None,
        limit: float = 1.0,
        programs: int = 10_000,
    ) -> Projection:
        """The rows moved to where every constraint holds, near where they were.

        Rows that keep every constraint come back bit for bit. The others move on the lattice and
        inside the bounds of their columns; a cell that is the instance's own may stay what it is,
        whatever the schema says.

        Args:
            cells: Rows as `Schema.decode` makes them, (n, d).
            instances: Cells of the instance of each row, (n, d).
            costs: Weights of the distance that is kept small.
            limit: Seconds a program may take.
            programs: Programs that may be solved at most; rows beyond that stay unsolved.
        """
        weights = self.schema.weights(costs)
        return project(
            self.schema, self.bounds, self.feasible, cells, instances, weights,
            limit=limit, programs=programs,
        )  # fmt: skip

    def domains(self, instances: Floats) -> Domains:
        """What each cell may be by the constraints on its column alone: ranges, levels, own."""
        return domains(self.schema, self.bounds, instances)

    # -- why not ----------------------------------------------------------------------------------

    def contradiction(self, instance: Floats, *, limit: float = 1.0) -> tuple[Constraint, ...]:
        """A smallest set of constraints that no row for this instance can keep; empty if none is.

        Sets of one and two are smallest for certain; a larger set cannot spare any of its own.

        Args:
            instance: Cells of one instance, (d,).
            limit: Seconds a program may take.

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
        found = _smallest(self.schema, self.bounds, instance, limit)
        return tuple(bound.constraint for bound in found)

    def without(self, constraints: Iterable[str | Constraint]) -> System:
        """The same system, some constraints dropped."""
        dropped = parse_all(constraints)
        for constraint in dropped:
            if constraint not in self.constraints:
                raise InputError(f"The constraint '{constraint}' is not in this system.")
        return replace(self, bounds=tuple(b for b in self.bounds if b.constraint not in dropped))


# ------------------------------------------------------------------------------------------------
# What cannot hold together


def _smallest(
    schema: Schema, bounds: Sequence[Bound], instance: Floats | None, limit: float = 1.0
) -> tuple[Bound, ...]:
    """A smallest set of constraints that no row can keep together; empty if there is none."""

    def impossible(some: Sequence[Bound]) -> bool:
        return solve(schema, some, instance=instance, limit=limit).status == "infeasible"

    bounds = [b for b in bounds if not isinstance(b.node, Opaque)]
    if not bounds or not impossible(bounds):
        return ()
    for bound in bounds:
        if impossible([bound]):
            return (bound,)
    core = list(bounds)
    for bound in bounds:
        rest = [b for b in core if b is not bound]
        if impossible(rest):
            core = rest
    if len(core) > 2:
        pairs = (pair for pair in combinations(bounds, 2) if _meet(*pair))
        return next((pair for pair in pairs if impossible(pair)), tuple(core))
    return tuple(core)


def _meet(a: Bound, b: Bound) -> bool:
    """Whether two constraints can meet at all: a count of changes meets everything."""
    counts = isinstance(a.node, Count) or isinstance(b.node, Count)
    return counts or bool(set(a.columns) & set(b.columns))


def _clash(bounds: tuple[Bound, ...], schema: Schema) -> str:
    texts = [f"'{bound.constraint}'" for bound in bounds]
    if len(bounds) > 1:
        joined = ", ".join(texts[:-1]) + " and " + texts[-1]
        return f"{joined} can never hold together."
    ranges = [_range(schema, column) for column in bounds[0].columns[:4]]
    if not ranges:
        return f"{texts[0]} can never hold."
    return f"{texts[0]} can never hold: {' and '.join(ranges)}."


def _range(schema: Schema, column: int) -> str:
    feature = schema.features[column]
    if feature.kind != "continuous":
        levels = ", ".join(str(level) for level in feature.categories[:8])
        return f"column '{feature.name}' is one of {levels}"
    low, high = feature.text(feature.lower), feature.text(feature.upper)
    return f"column '{feature.name}' lies between {low} and {high}"
