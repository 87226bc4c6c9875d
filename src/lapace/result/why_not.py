"""Why an instance has no counterfactual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

__all__ = ["Cell", "Move", "WhyNot"]

Cell: TypeAlias = str | int | float | bool | None  # a value of a table; None is missing


@dataclass(frozen=True)
class Move:
    """A relaxation of one constraint.

    Attributes:
        constraint: The constraint, as text.
        by: The distance to relax it by, in its units; None where that is not one number: a
            category, a condition, several columns at once.
        text: The relaxation in words.
        relaxed: The constraint to give instead; None where it has to be left out.

    Examples:
        >>> move = Move("age >= 40", 10.0, "'age >= 40' is relaxed to 'age >= 30'", "age >= 30")
        >>> move.by, move.relaxed
        (10.0, 'age >= 30')
    """

    constraint: str
    by: Annotated[float, Meta(ge=0)] | None
    text: str
    relaxed: str | None = None


@dataclass(frozen=True)
class WhyNot:
    """Why an instance has no counterfactual, and the smallest relaxation that would give it one.

    Attributes:
        status: `infeasible`: proved that no row satisfies the constraints; `none_found`: feasible
            rows exist, but none that was searched has the target label.
        clash: Infeasible: a smallest set of constraints that cannot hold together.
        drop: None found: the smallest set of constraints without which the same search succeeds;
            empty where it finds nothing even without constraints.
        exact: Whether `clash` or `drop` is certainly smallest: every smaller set was tried.
        moves: How far each of these constraints would have to be relaxed: one of `clash` if the
            others stay; all of `drop` together, each as little as was found to suffice.
        row: With `drop`, the row that `nearest` returns for the constraints so relaxed; otherwise
            the best row found; by column, None where there is none.
        text: The whole in words.

    Examples:
        >>> move = Move("age >= 40", 10.0, "'age >= 40' would have to allow 10 less")
        >>> why = WhyNot("none_found", drop=("age >= 40",), moves=(move,), text="Without it, yes.")
        >>> print(why)
        Without it, yes.
    """

    status: Literal["infeasible", "none_found"]
    clash: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    exact: bool = True
    moves: tuple[Move, ...] = ()
    row: Mapping[str, Cell] | None = None
    text: str = ""

    def __str__(self) -> str:
        return self.text

    def relax(self, constraints: Sequence[Any]) -> list[Any]:
        """Returns the constraints relaxed as `moves` say: replaced, or left out.

        Args:
            constraints: The constraints of the query, as given.

        Examples:
            >>> why = WhyNot("none_found", moves=(Move("age >= 40", 10.0, "", "age >= 30"),))
            >>> why.relax(["age >= 40", "fixed job"])
            ['age >= 30', 'fixed job']
        """
        instead = {move.constraint: move.relaxed for move in self.moves}
        chosen = [instead.get(str(c), c) for c in constraints]
        return [c for c in chosen if c is not None]
