"""Rules that a table shows by itself: columns of which exactly one is set in every row."""

from __future__ import annotations

import re

import numpy as np

from lapace.arrays import Floats
from lapace.constraints import Comparison, Constraint, Linear, Term, noted
from lapace.schema import Feature, Schema

__all__ = ["one_hot_rules"]

ENOUGH = 50  # rows from which it is no accident
STEM = re.compile(r"(.+?)[_.=: -]+[^_.=: -]+(?:[_ -][^_.=: -]+)*?$")


def one_hot_rules(schema: Schema, cells: Floats) -> tuple[Constraint, ...]:
    """For columns that are one category written as several, that exactly one of them is set.

    Such columns hold 0 and 1, begin with the same word (`home_own`, `home_rent`) and sum to one in
    every row.

    Args:
        schema: The columns.
        cells: The training rows.

    Examples:
        >>> homes = [{"home_own": int(i % 3 == 0), "home_rent": int(i % 3 > 0)} for i in range(60)]
        >>> schema = Schema.infer(homes)
        >>> [str(rule) for rule in one_hot_rules(schema, schema.cells(homes))]
        ['home_own + home_rent == 1']
    """
    groups: dict[str, list[int]] = {}
    for i, feature in enumerate(schema.features):
        stem = STEM.match(feature.name)
        if _is_flag(feature) and stem is not None:
            groups.setdefault(stem[1], []).append(i)
    rules = []
    for columns in groups.values():
        flags = cells[:, columns]
        if len(columns) < 2 or len(cells) < ENOUGH or not (flags.sum(axis=1) == 1).all():
            continue
        terms = tuple(Term(1.0, schema.names[i]) for i in columns)
        rule = Comparison((Linear(terms), Linear((), 1.0)), ("==",))
        rules.append(noted(rule, "In every training row exactly one of these columns is set."))
    return tuple(rules)


def _is_flag(feature: Feature) -> bool:
    """Whether a column holds 0 and 1, or false and true."""
    levels = feature.levels
    return (
        feature.kind == "binary"
        and len(levels) == 2
        and bool(np.all([v in (0, 1) for v in levels]))
    )
