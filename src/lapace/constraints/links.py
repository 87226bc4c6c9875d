"""Derived columns in programs: linear ones as relations, constraints on others left to the check.

A column derived by a linear expression is tied to its inputs by two inequalities, which allow what
rounding does; or neither it nor an input changes, since the instance's own value stays then. Any
other derived column cannot be written as a linear program: constraints that name it are checked on
the final rows and take no part in proofs.
"""

from __future__ import annotations

from collections.abc import Sequence

from lapace.constraints import logic
from lapace.constraints.binding import BoundConstraint
from lapace.constraints.language import Changes, Custom
from lapace.constraints.logic import Formula, LinearRelation, Unchanged
from lapace.schema import Schema
from lapace.schema.derived import Derivation

__all__ = ["linked", "provable"]


def provable(schema: Schema, constraints: Sequence[BoundConstraint]) -> list[BoundConstraint]:
    """The constraints that a program can decide."""
    opaque = {d.column for d in schema.derived.each if not _linear(schema, d)}
    return [
        c for c in constraints if not isinstance(c.formula, Custom) and opaque.isdisjoint(c.columns)
    ]


def _linear(schema: Schema, derivation: Derivation) -> bool:
    """Whether a derived column is linear in columns that are not derived, or linear themselves."""
    before = {d.column: d for d in schema.derived.each}
    inputs = derivation.inputs.tolist()
    return derivation.form is not None and all(
        _linear(schema, before[i]) for i in inputs if i in before
    )


def linked(schema: Schema, constraints: Sequence[BoundConstraint]) -> list[BoundConstraint]:
    """Constraints that a program can decide, with the links of the derived columns they name."""
    if schema.counted.all():
        return list(constraints)
    kept = provable(schema, constraints)
    named = {column for c in kept for column in c.columns}
    links = []
    for derivation in reversed(schema.derived.each):  # the links of its inputs come after it
        if derivation.column in named:
            links.append(_link(schema, derivation))
            named.update(derivation.inputs.tolist())
    return [*kept, *links]


def _link(schema: Schema, derivation: Derivation) -> BoundConstraint:
    feature, form, column = derivation.feature, derivation.form, derivation.column
    assert form is not None
    weights = {schema.index(name): weight for name, weight in form.weights.items() if weight}
    # Rounding to the lattice moves what was computed by half a step at most, and a whole number
    # not at all where whole numbers are on it. A ceiling is less than 1 up, a floor than 1 down.
    whole = form.high > form.low and feature.resolution and (1 / feature.resolution) % 1 == 0
    half = 0.0 if whole else feature.resolution / 2
    above = {column: 1.0, **{c: -w for c, w in weights.items()}}
    below = {c: -w for c, w in above.items()}
    high, low = form.constant + form.high + half, form.constant + form.low - half
    follows: list[Formula] = [
        LinearRelation.of(schema, above, {}, -high, "<" if whole and form.high == 1 else "<="),
        LinearRelation.of(schema, below, {}, low, "<" if whole and form.low == -1 else "<="),
    ]
    inputs = derivation.inputs.tolist()
    stays = [*(Unchanged(c, exact=False) for c in inputs), Unchanged(column, exact=True)]
    formula = logic.Or((logic.And(tuple(follows)), logic.And(tuple(stays))))
    columns = tuple(sorted((*inputs, column)))
    return BoundConstraint(Changes(feature.name), formula, columns, ())
