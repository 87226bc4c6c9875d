"""Constraints on counterfactuals: one language, exact checks, exact projection, and proofs.

```
language        constraints as small frozen values that print as the text they are read from
parser          text to values
files           TOML files of constraints
binding         values to formulas over cells, against a schema
formulas        clauses of leaves, and their truth in three-valued logic
program         the nearest feasible row, or the proof that there is none (HiGHS)
repair          vectorised moves to where the constraints hold
projection      repairs first, programs for the rest
contradictions  the constraints that contradict each other
penalty         the differentiable g of the latent correction (torch)
```

`System` is all of it behind one value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from lapace.arrays import Bools, Floats
from lapace.constraints.binding import bind
from lapace.constraints.contradictions import contradiction, refusal
from lapace.constraints.files import from_toml, read_file, to_toml
from lapace.constraints.formulas import BoundConstraint, ComparedRows, feasible, negate
from lapace.constraints.language import (
    Category,
    ChangeLimit,
    Changes,
    Comparison,
    Conditional,
    Constraint,
    Linear,
    Membership,
    Shorthand,
    Term,
    Transition,
)
from lapace.constraints.parser import parse, parse_all
from lapace.constraints.program import provable, solve
from lapace.constraints.projection import Projection, Projector
from lapace.constraints.repair import Domains, domains
from lapace.errors import InputError, warn
from lapace.schema import Schema

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Category",
    "ChangeLimit",
    "Changes",
    "Comparison",
    "Conditional",
    "Constraint",
    "Domains",
    "Linear",
    "Membership",
    "Projection",
    "Shorthand",
    "System",
    "Term",
    "Transition",
    "from_toml",
    "parse",
    "parse_all",
    "read_file",
    "to_toml",
]


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
        settle: bool | None = None,
    ) -> System:
        """Binds constraints, given as text or values, to a schema.

        Args:
            constraints: The constraints.
            schema: The columns.
            check: Refuses constraints that no row can satisfy, whatever the instance.
            settle: Leaves out learned constraints that contradict others, with a warning; by
                default where it checks.
        """
        bound = [bind(c, schema) for c in dict.fromkeys(parse_all(constraints))]
        typical, settle = _some_row(schema), check if settle is None else settle
        while check or (settle and any(b.learned for b in bound)):
            absolute = [
                replace(b, learned=False) for b in bound if not b.constraint.mentions_original
            ]
            contradictory = contradiction(schema, absolute, typical)
            names = {b.constraint for b in contradictory}
            learned = [b for b in bound if settle and b.learned and b.constraint in names]
            if not learned:
                if contradictory and check:
                    raise InputError(refusal(schema, contradictory))
                break
            warn(
                f"{refusal(schema, contradictory)} '{learned[0].constraint}' was learned from the "
                "training table and is left out."
            )
            bound = [b for b in bound if b is not learned[0]]
        return cls(schema, tuple(bound))

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints, in the order given, each once."""
        return tuple(bound.constraint for bound in self.bound)

    @cached_property
    def mentions_original(self) -> bool:
        """Whether the feasible rows depend on the instance (`original`, `changes`, …)."""
        return any(c.mentions_original for c in self.constraints)

    def __len__(self) -> int:
        return len(self.bound)

    # -- checking ---------------------------------------------------------------------------------

    def holds(self, cells: Floats, instances: Floats) -> Bools:
        """Returns whether each row satisfies each constraint, (n, m), exactly."""
        rows = ComparedRows(self.schema, cells, instances)
        columns = [bound.holds(rows) for bound in self.bound]
        return np.array(columns, dtype=bool).reshape(len(self.bound), len(cells)).T

    def feasible(self, cells: Floats, instances: Floats) -> Bools:
        """Returns whether each row satisfies every constraint, (n,)."""
        return feasible(self.bound, ComparedRows(self.schema, cells, instances))

    def penalty(self, values: Tensor, instances: Floats) -> Tensor:
        """Returns the paper's g, (n,): how far rows are from holding, differentiable in numbers.

        Violations of relations are hinges, each over the range its columns span, added up; a
        disjunction (`if … then`, `!=`) counts the least violated alternative. Categories, given
        as codes, decide which conditions apply. Constraints without a gradient (a nominal
        category, a limit on changes) are left to the projection and count nothing.

        Args:
            values: Rows in table units, (n, d), categories as codes.
            instances: Cells of the instance of each row, (n, d).
        """
        from lapace.constraints.penalty import penalty

        return penalty(self.schema, self.bound, values, instances)

    # -- projecting -------------------------------------------------------------------------------

    def project(
        self, cells: Floats, instances: Floats, *, costs: Mapping[str, float] | None = None
    ) -> Projection:
        """Moves rows to where every constraint holds, near where they were.

        Derived columns are computed first and follow every move; feasible rows come back bit for
        bit. The others move on the lattice and inside the bounds of their columns; a cell may keep
        the instance's value, whatever the schema says.

        Args:
            cells: Rows as `Schema.decode` makes them, (n, d).
            instances: Cells of the instance of each row, (n, d).
            costs: Weights of the distance that is kept small.
        """
        cells = self.schema.derive(cells, instances)
        projector = Projector(self.schema, self.bound, self.schema.weights(costs))
        return projector.project(cells, instances)

    def domains(self, instances: Floats) -> Domains:
        """Returns what each cell may be by the constraints on its column alone."""
        return domains(self.schema, self.bound, instances)

    # -- contradictions ---------------------------------------------------------------------------

    def contradiction(self, instance: Floats) -> tuple[Constraint, ...]:
        """Returns a smallest set of constraints that no row for an instance can satisfy, if any.

        Sets of one and two are smallest for certain; a larger set is irreducible: without any one
        of its members the others can hold.

        Args:
            instance: Cells of one instance, (d,).

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
        contradictory = contradiction(self.schema, self.bound, instance)
        return tuple(bound.constraint for bound in contradictory)

    def implies(self, constraint: Constraint) -> bool:
        """Returns whether no row can satisfy the constraints and break another one.

        Constraints that mention the instance, or derived columns, prove nothing.

        Examples:
            >>> from lapace.schema import Schema
            >>> schema = Schema.infer([{"age": 20 + i % 50, "hours": i % 60} for i in range(300)])
            >>> system = System.of(["hours <= age - 16"], schema)
            >>> system.implies(parse("hours <= age")), system.implies(parse("hours <= 30"))
            (True, False)
        """
        other = bind(constraint, self.schema)
        bound = [b for b in (*self.bound, other) if not b.constraint.mentions_original]
        bound = provable(self.schema, bound)
        if other not in bound:
            return False
        opposite = replace(other, formula=negate(other.formula), learned=False)
        asked = [opposite if b is other else b for b in bound]
        return solve(self.schema, asked, _some_row(self.schema)).status == "infeasible"

    @property
    def strict(self) -> System:
        """The same system, in which learned constraints hold for every instance."""
        return replace(self, bound=tuple(replace(b, learned=False) for b in self.bound))

    def without(self, constraints: Iterable[str | Constraint]) -> System:
        """Returns the same system, some constraints dropped."""
        dropped = parse_all(constraints)
        for constraint in dropped:
            if constraint not in self.constraints:
                raise InputError(f"The constraint '{constraint}' is not in this system.")
        return replace(self, bound=tuple(b for b in self.bound if b.constraint not in dropped))


def _some_row(schema: Schema) -> Floats:
    """Returns a row without missing cells, (d,): the instance where constraints mention none."""
    numbers = [f.kind == "continuous" for f in schema.features]
    row: Floats = np.zeros(len(numbers))
    row[numbers] = schema.snap(row[None])[0, numbers]
    return row
