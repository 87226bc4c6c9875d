"""Finds constraints that contradict each other, and says why no instance can satisfy them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from lapace.arrays import Floats
from lapace.constraints.binding import bind
from lapace.constraints.formulas import BoundConstraint
from lapace.constraints.program import linked, provable, solve
from lapace.schema import Feature, Schema

__all__ = ["contradiction", "refusal"]


def contradiction(
    schema: Schema, bound: Sequence[BoundConstraint], instance: Floats | None = None
) -> tuple[BoundConstraint, ...]:
    """Finds a smallest set of constraints that no row (of this or any instance) can satisfy.

    Sets of one and two are smallest for certain; a larger set is irreducible: without any one of
    its members the others can hold.
    """

    def impossible(some: Sequence[BoundConstraint]) -> bool:
        return solve(schema, linked(schema, some), instance=instance).status == "infeasible"

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
    counts = a.change_count or b.change_count
    reach = [{c for bound in linked(schema, [one]) for c in bound.columns} for one in (a, b)]
    return counts is not None or bool(reach[0] & reach[1])


def refusal(schema: Schema, bound: Sequence[BoundConstraint]) -> str:
    """Says why no instance could satisfy a contradictory set: ranges of columns, or lattices."""
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
    """Names the values a column takes: its categories, its range, or the lattice in its range."""
    if feature.kind != "continuous":
        levels = ", ".join(str(level) for level in feature.categories[:8])
        return f"column '{feature.name}' is one of {levels}"
    low, high, step = map(feature.text, (feature.lower, feature.upper, feature.resolution))
    if not lattice:
        return f"column '{feature.name}' lies between {low} and {high}"
    values = "whole numbers" if feature.resolution == 1 else f"multiples of {step}"
    return f"column '{feature.name}' takes only {values}, from {low} to {high}"
