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
from lapace.constraints import logic
from lapace.constraints.binding import BoundConstraint
from lapace.constraints.language import Custom
from lapace.constraints.logic import ChangeCount, ComparedRows, Formula, LevelTable, LinearRelation
from lapace.schema import Schema

__all__ = ["penalty"]


def penalty(
    schema: Schema, constraints: Sequence[BoundConstraint], values: Tensor, instances: Floats
) -> Tensor:
    """The sum over constraints, (n,); see `System.penalty`."""
    cells = values.detach().cpu().numpy().astype(np.float64)
    hinges = _Hinges(schema, values, ComparedRows(schema, cells, instances))
    total = values.new_zeros(len(values))
    for constraint in constraints:
        for part in filter(_is_smooth, logic.conjuncts(constraint.formula)):
            total = total + hinges.of(part)
    return total


def _is_smooth(formula: Formula) -> bool:
    """Whether it has a gradient: a nominal category is right or wrong."""
    match formula:
        case logic.And(parts) | logic.Or(parts):
            return any(_is_smooth(part) for part in parts)
        case LinearRelation():
            return any(column not in formula.level_values for column in formula.cells)
        case LevelTable():
            return formula.ordered
        case ChangeCount():
            return False
    return True


class _Hinges:
    """Hinges of formulas: gradients from `values`, decisions from the same numbers as cells."""

    def __init__(self, schema: Schema, values: Tensor, rows: ComparedRows) -> None:
        self.schema = schema
        self.values = values  # (n, d)
        self.rows = rows
        self.zero = values.new_zeros(())

    def of(self, formula: Formula) -> Tensor:
        match formula:
            case logic.And(parts):
                return torch.stack([self.of(part) for part in parts]).sum(dim=0)
            case logic.Or(parts):
                return torch.stack([self.of(part) for part in parts]).amin(dim=0)
            case LinearRelation():
                return self.relation(formula.positive())
            case LevelTable():
                return self.level(formula)
            case logic.Unchanged():
                return self.difference(formula)
            case ChangeCount():
                return self.values.new_zeros(len(self.values))
            case Custom():
                if formula.penalty is None:
                    return self.values.new_zeros(len(self.values))
                view = logic.Rows(self.schema, self.values)
                g: Tensor = logic.call(formula, "penalty", view, (len(self.values),))
                return g.clamp(min=0)

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
        scale = sum(abs(w) * self.schema.spans[c] for c, w in smooth.items()) or 1.0
        present = self.mask(known)
        for column, weight in smooth.items():
            # Masked before it is used: a NaN would come back through the gradient.
            total = total + weight * torch.where(present, self.values[:, column], self.zero)
        return torch.where(present, relation.excess(total).clamp(min=0) / scale, self.zero)

    def level(self, table: LevelTable) -> Tensor:
        """The share of an ordinal's levels to the nearest allowed one; 1 for other categories."""
        if not table.ordered:
            return self.constant(logic.slack(table, self.rows))
        _, new = self.rows.slots(table.column, table.levels)
        violated = self.mask((new < table.levels) & (logic.truth(table, self.rows) < 0))
        target = self.constant(table.nearest(self.rows).astype(np.float64))
        distance = (torch.where(violated, self.values[:, table.column], target) - target).abs()
        return distance / self.schema.features[table.column].span

    def difference(self, formula: logic.Unchanged) -> Tensor:
        """How far a number is from the instance's, or short of one step from it."""
        feature = self.schema.features[formula.column]
        original = self.rows.instances[:, formula.column]
        known = ~np.isnan(original) & ~np.isnan(self.rows.cells[:, formula.column])
        present, target = self.mask(known), self.constant(np.where(known, original, 0.0))
        apart = (torch.where(present, self.values[:, formula.column], target) - target).abs()
        if formula.negated:
            apart = (feature.step - apart).clamp(min=0)
        return torch.where(present, apart / feature.span, self.zero)
