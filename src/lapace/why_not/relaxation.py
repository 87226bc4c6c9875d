"""How far constraints are from holding for a row, and the relaxed constraints that admit it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lapace.arrays import Floats
from lapace.constraints import (
    ChangeLimit,
    Comparison,
    Constraint,
    Linear,
    Membership,
    Shorthand,
    System,
    Term,
)
from lapace.constraints.binding import ORDERS, bind
from lapace.constraints.formulas import ChangeCount, ComparedRows, Leaf, LinearRelation, Unchanged
from lapace.constraints.language import Side
from lapace.schema import Feature, Schema
from lapace.schema.features import on_lattice

__all__ = ["allowance", "amount", "amount_text", "joined", "relaxed", "slack"]


# ------------------------------------------------------------------------------------------------
# How far


def slack(system: System, cells: Floats, instances: Floats) -> Floats:
    """Returns how far each constraint is from holding, (n, m), in its own units; 0 where it holds.

    A relation counts what its left side is over (or under) its right, a limit on changes the
    columns too many, anything else 1. Several columns count the worst of them.

    Examples:
        >>> schema = Schema.infer([{"age": 20 + i % 50, "hours": i % 60} for i in range(300)])
        >>> system = System.of(["hours <= 40", "fixed age"], schema)
        >>> slack(system, np.array([[25.0, 52.0]]), np.array([[30.0, 50.0]])).tolist()
        [[12.0, 5.0]]
    """
    rows = ComparedRows(system.schema, cells, instances)
    distances = np.zeros((len(cells), len(system)))
    for k, bound in enumerate(system.bound):
        distance = np.zeros(len(cells))
        for clause in bound.formula:
            nearest = np.minimum.reduce([_leaf_slack(leaf, rows) for leaf in clause])
            distance = np.maximum(distance, nearest)
        distances[:, k] = np.where(bound.holds(rows), 0, np.where(distance > 0, distance, 1))
    return distances


def _leaf_slack(leaf: Leaf, rows: ComparedRows) -> Floats:
    """Returns how far a leaf is from holding, (n,); 0 where it holds."""
    distance = np.ones(len(rows))
    match leaf:
        case LinearRelation():
            distance = np.maximum(leaf.excess(leaf.value(rows)[0]), 0)
        case Unchanged(column, _, negated):
            apart = np.abs(rows.cells[:, column] - rows.instances[:, column])
            step = rows.schema.features[column].step
            distance = np.where(np.isnan(apart), 1.0, step if negated else apart)
        case ChangeCount():
            distance = leaf.excess(rows).astype(np.float64)
    return np.where(leaf.truth(rows) < 0, distance, 0.0)


def amount(constraint: Constraint, schema: Schema, row: Floats, original: Floats) -> float | None:
    """Returns how far a constraint would have to be relaxed to admit a row, in its own units.

    None where that is not one number: a category, a condition, several columns.
    """
    if isinstance(constraint, Shorthand) and len(constraint.features) > 1:
        return None
    system = System.of([constraint], schema, check=False)
    columns = list(system.bound[0].columns)
    numbers = all(schema.features[c].kind == "continuous" for c in columns)
    missing = np.isnan(row[columns]) != np.isnan(original[columns])
    if not isinstance(constraint, Comparison | Shorthand | ChangeLimit) or not numbers:
        return None
    distance = slack(system, row[None], original[None])[0, 0]
    return None if missing.any() else float(f"{distance:.12g}")  # 0.1 + 0.2 is 0.3 here too


# ------------------------------------------------------------------------------------------------
# Relaxed constraints


def relaxed(
    constraint: Constraint, schema: Schema, by: float | None, row: Floats, original: Floats
) -> Constraint | None:
    """Relaxes a constraint by an amount, or so that it admits a category; None if it cannot be.

    Args:
        constraint: The constraint.
        schema: The columns.
        by: The amount, in its own units; None where it has none.
        row: The row to admit: of `fixed a, b` only the columns that it changes are let go.
        original: The instance that the row is for.

    Examples:
        >>> from lapace.constraints import parse
        >>> schema = Schema.infer([{"age": 20 + i % 50, "hours": i % 60} for i in range(300)])
        >>> row, original = np.array([25.0, 52.0]), np.array([25.0, 40.0])
        >>> for text in ("hours <= 40", "increasing age", "10 <= hours <= 20", "fixed age, hours"):
        ...     print(relaxed(parse(text), schema, 12, row, original))
        hours <= 52
        age >= original - 12
        -2 <= hours <= 32
        fixed age
    """
    match constraint:
        case Shorthand(word, names) if len(names) > 1:
            rows = ComparedRows(schema, row[None], original[None])
            each = {name: bind(Shorthand(word, (name,)), schema) for name in names}
            kept = tuple(name for name, alone in each.items() if alone.holds(rows)[0])
            return replace(constraint, features=kept) if kept else None
        case Membership(name) if schema[name].categories:
            return _admitting(constraint, schema[name], row[schema.index(name)])
        case ChangeLimit(most) if by is not None:
            return ChangeLimit(most + round(by))
        case Shorthand(word, (name,)) if by is not None:
            column, own = (Linear((Term(1.0, name, original=o),)) for o in (False, True))
            return _wider(Comparison((column, own), (ORDERS[word],)), by)
        case Comparison() if by is not None:
            return _wider(constraint, by)
    return None


def _admitting(membership: Membership, feature: Feature, cell: float) -> Membership | None:
    """Returns a set of values that admits a category."""
    if np.isnan(cell):
        return None
    value = str(feature.levels[int(cell)])
    values = (*membership.values, value)
    if membership.negated:
        values = tuple(v for v in membership.values if str(v) != value)
    return replace(membership, values=values) if values else None


def _wider(comparison: Comparison, by: float) -> Comparison | None:
    """Adds an amount where a comparison bounds numbers; of `a <= x <= b` on both sides."""
    sides, relations = comparison.sides, comparison.relations
    first, *others = sides
    if relations == ("==",) and isinstance(first, Linear) and isinstance(others[0], Linear):
        low, high = (others[0] + Linear((), moved) for moved in (-by, by))
        return Comparison((low, first, high), ("<=", "<="))
    directions = {relation[0] for relation in relations}
    if directions not in ({"<"}, {">"}) or len(relations) > 2:
        return None
    still = len(relations) - 1  # the side that stays: the left one, or the middle of three
    sign = 1.0 if directions == {"<"} else -1.0
    moved: list[Side] = []
    for k, side in enumerate(sides):
        if k == still:
            moved.append(side)
        elif isinstance(side, Linear):
            moved.append(side + Linear((), sign * (k - still) * by))
        else:
            return None
    return Comparison(tuple(moved), relations)


# ------------------------------------------------------------------------------------------------
# Words


def allowance(constraint: Constraint, schema: Schema, row: Floats) -> str:
    """Names the row's values that a constraint would have to allow.

    Examples:
        >>> from lapace.constraints import parse
        >>> schema = Schema.infer([{"age": 20 + i % 50, "job": "ab"[i % 2]} for i in range(300)])
        >>> allowance(parse("if job changes then age == 20"), schema, np.array([25.0, 1.0]))
        'age 25 and job b'
    """
    columns = bind(constraint, schema).columns
    return joined([f"{f.name} {f.text(row[c])}" for c in columns for f in [schema.features[c]]])


def joined(texts: Sequence[str], word: str = "and") -> str:
    """Writes texts as a list in a sentence.

    Examples:
        >>> joined(["age", "hours", "job"])
        'age, hours and job'
    """
    texts = list(texts)
    return f" {word} ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def amount_text(number: float, feature: Feature) -> str:
    """Writes a difference of a column in its format where it lies on its lattice.

    Examples:
        >>> amount_text(3.0, Feature("delivered", "continuous", written="2024-12-31"))
        '3 days'
    """
    if feature.is_date:
        unit = "day" if number == 1 else "days"
        return Feature(feature.name, "continuous", unit=unit).text(number)
    lattice = feature.kind == "continuous" and feature.resolution
    if lattice and np.isclose(on_lattice(np.array(number), feature.resolution), number):
        return feature.text(number)
    return Feature(feature.name, "continuous").text(number)
