"""The paper's g(x) for the latent correction: constraints as hinges that torch can differentiate.

Imported only where it is used, so that checking and projecting do without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lapace.arrays import Bools, Floats
from lapace.constraints.formulas import (
    BoundConstraint,
    ChangeCount,
    ComparedRows,
    Leaf,
    LevelTable,
    LinearRelation,
    Unchanged,
)
from lapace.schema import Schema

__all__ = ["penalty"]


def penalty(
    schema: Schema, constraints: Sequence[BoundConstraint], values: Tensor, instances: Floats
) -> Tensor:
    """Returns g of each row, (n,); see `System.penalty`."""
    cells = values.detach().cpu().numpy().astype(np.float64)
    hinges = _Hinges(schema, values, ComparedRows(schema, cells, instances))
    total = values.new_zeros(len(values))
    for clause in (clause for constraint in constraints for clause in constraint.formula):
        if any(map(_is_smooth, clause)):
            total = total + torch.stack([hinges.of(leaf) for leaf in clause]).amin(dim=0)
    return total


def _is_smooth(leaf: Leaf) -> bool:
    """Whether a leaf has a gradient: a nominal category is right or wrong."""
    match leaf:
        case LinearRelation(cells):
            return any(column not in leaf.level_values for column in cells)
        case LevelTable():
            return leaf.ordered
        case ChangeCount():
            return False
    return True


class _Hinges:
    """Hinges of leaves: gradients from `values`, decisions from the same numbers as cells."""

    def __init__(self, schema: Schema, values: Tensor, rows: ComparedRows) -> None:
        self.schema = schema
        self.values = values  # (n, d)
        self.rows = rows
        self.zero = values.new_zeros(())

    def of(self, leaf: Leaf) -> Tensor:
        match leaf:
            case LinearRelation():
                return self.relation(leaf)
            case LevelTable():
                return self.level(leaf)
            case Unchanged():
                return self.difference(leaf)
        return self.values.new_zeros(len(self.values))

    def constant(self, numbers: Floats) -> Tensor:
        return torch.as_tensor(numbers, dtype=self.values.dtype, device=self.values.device)

    def mask(self, marks: Bools) -> Tensor:
        return torch.as_tensor(marks, device=self.values.device)

    def relation(self, relation: LinearRelation) -> Tensor:
        """A hinge over the range its columns span; 0 where a term is missing."""
        smooth = {c: w for c, w in relation.cells.items() if c not in relation.level_values}
        rest = {c: w for c, w in relation.cells.items() if c in relation.level_values}
        known = ~np.isnan(relation.value(self.rows)[0])
        others = replace(relation, cells=rest).value(self.rows)[0]
        total = self.constant(np.where(known, others, 0.0))
        scale = sum(abs(w) * self.schema.metric.spans[c] for c, w in smooth.items()) or 1.0
        present = self.mask(known)
        for column, weight in smooth.items():
            # Masked before it is used: a NaN would come back through the gradient.
            total = total + weight * torch.where(present, self.values[:, column], self.zero)
        return torch.where(present, relation.excess(total).clamp(min=0) / scale, self.zero)

    def level(self, table: LevelTable) -> Tensor:
        """Counts the share of an ordinal's levels to an allowed one; 1 for other categories."""
        violates = table.truth(self.rows) < 0
        if not table.ordered:
            return self.constant(violates.astype(np.float64))
        _, new = self.rows.slots(table.column, table.levels)
        violated = self.mask((new < table.levels) & violates)
        target = self.constant(table.nearest(self.rows).astype(np.float64))
        distance = (torch.where(violated, self.values[:, table.column], target) - target).abs()
        return distance / self.schema.features[table.column].span

    def difference(self, formula: Unchanged) -> Tensor:
        """Counts how far a number is from the instance's, or short of one step from it."""
        feature = self.schema.features[formula.column]
        original = self.rows.instances[:, formula.column]
        known = ~np.isnan(original) & ~np.isnan(self.rows.cells[:, formula.column])
        present, target = self.mask(known), self.constant(np.where(known, original, 0.0))
        apart = (torch.where(present, self.values[:, formula.column], target) - target).abs()
        if formula.negated:
            apart = (feature.step - apart).clamp(min=0)
        return torch.where(present, apart / feature.span, self.zero)
