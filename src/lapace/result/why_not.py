"""Why an instance has no counterfactual."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

__all__ = ["Move", "WhyNot"]


@dataclass(frozen=True)
class Move:
    """How far one constraint would have to be relaxed.

    Attributes:
        constraint: The constraint, as text.
        by: In the constraint's units; None where it is not a number: a category, a Python function,
            several columns at once.
        text: The same in words.
        relaxed: The constraint to give instead; None where it has to be left out.

    Examples:
        >>> move = Move("age >= 40", 10.0, "'age >= 40' is relaxed to 'age >= 30'", "age >= 30")
        >>> move.by, move.relaxed
        (10.0, 'age >= 30')
    """

    constraint: str
    by: float | None
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
        row: With `drop`, what `nearest` returns for the constraints so relaxed; otherwise the best
            row found; by column, None where there is none.
        text: All of it, in words.

    Examples:
        >>> move = Move("age >= 40", 10.0, "'age >= 40' would have to allow 10 less")
        >>> why = WhyNot("none_found", drop=("age >= 40",), moves=(move,), text="Without it, yes.")
        >>> WhyNot.from_json(why.to_json()) == why
        True
    """

    status: str
    clash: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    exact: bool = True
    moves: tuple[Move, ...] = ()
    row: Mapping[str, Any] | None = None
    text: str = ""

    def __str__(self) -> str:
        return self.text

    def relax(self, constraints: Sequence[Any]) -> list[Any]:
        """The constraints relaxed as `moves` say: those of `drop` replaced or left out.

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

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return cast(dict[str, Any], json.loads(json.dumps(asdict(self))))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WhyNot:
        """The inverse of `to_json`."""
        lists = {name: tuple(data[name]) for name in ("clash", "drop")}
        row = None if data["row"] is None else dict(data["row"])
        return cls(
            **{**data, **lists, "row": row, "moves": tuple(Move(**m) for m in data["moves"])}
        )
