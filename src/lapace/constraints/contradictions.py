"""Finds constraints that contradict each other, and says why no row can satisfy them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from lapace.arrays import Floats
from lapace.constraints.formulas import BoundConstraint
from lapace.constraints.program import provable, solve
from lapace.schema import Feature, Schema

__all__ = ["contradiction", "refusal"]

RANGE = " Ranges are those of the training rows; to widen one, declare its 'lower' or 'upper'."


def contradiction(
    schema: Schema, bound: Sequence[BoundConstraint], instance: Floats
) -> tuple[BoundConstraint, ...]:
    """Finds a smallest set of constraints that no row for an instance can satisfy.

    Sets of one and two are smallest for certain; a larger set is irreducible: without any one of
    its members the others can hold.
    """

    def impossible(some: Sequence[BoundConstraint]) -> bool:
        return solve(schema, some, instance).status == "infeasible"

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
        pairs = (pair for pair in combinations(bound, 2) if _interact(*pair))
        return next((pair for pair in pairs if impossible(pair)), tuple(core))
    return tuple(core)


def _interact(a: BoundConstraint, b: BoundConstraint) -> bool:
    """Whether two constraints can contradict at all: a count of changes is about every column."""
    counts = a.change_count or b.change_count
    return counts is not None or not set(a.columns).isdisjoint(b.columns)


def refusal(schema: Schema, bound: Sequence[BoundConstraint]) -> str:
    """Says that a contradictory set can never hold; for one alone, which values there are."""
    *texts, last = (f"'{b.constraint}'" for b in bound)
    if texts:
        return f"{', '.join(texts)} and {last} can never hold together."
    features = [schema.features[c] for c in bound[0].columns[:4]]
    numbers = any(feature.kind == "continuous" for feature in features)
    return f"{last} can never hold: {' and '.join(map(_values, features))}.{RANGE * numbers}"


def _values(feature: Feature) -> str:
    """Names the values that a column takes: its categories, or the lattice in its range."""
    if feature.kind != "continuous":
        levels = ", ".join(str(level) for level in feature.categories[:8])
        return f"column '{feature.name}' is one of {levels}"
    low, high = feature.text(feature.lower), feature.text(feature.upper)
    steps = f", in steps of {feature.resolution:g}" if feature.resolution else ""
    return f"column '{feature.name}' lies between {low} and {high}{steps}"
