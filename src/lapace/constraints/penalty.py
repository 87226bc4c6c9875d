"""The paper's g(x), for the latent correction: constraints as hinges that torch can follow.

Imported only where it is used, so that checking and projecting do without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lapace.arrays import Floats
from lapace.constraints.binding import Bound
from lapace.constraints.nodes import (
    Count,
    Every,
    Line,
    Moved,
    Node,
    Opaque,
    Rows,
    Same,
    Some,
    Table,
    leaves,
)
from lapace.schema import Schema

__all__ = ["penalty"]


def penalty(schema: Schema, bounds: Sequence[Bound], values: Tensor, instances: Floats) -> Tensor:
    """The sum over constraints, (n,); see `System.penalty`."""
    cells = values.detach().cpu().numpy().astype(np.float64)
    walk = _Walk(schema, values, Rows(schema, cells, instances))
    total = values.new_zeros(len(values))
    for bound in bounds:
        for leaf in leaves(bound.node):
            if _smooth(leaf):
                total = total + walk.node(leaf)
    return total


def _smooth(node: Node) -> bool:
    """Whether a gradient can do anything about it: a nominal category is right or wrong."""
    match node:
        case Every(parts) | Some(parts):
            return any(_smooth(part) for part in parts)
        case Line():
            return any(column not in node.worths for column in node.columns)
        case Table():
            return node.ordered
        case Count():
            return False
    return True


class _Walk:
    """Goes through trees: gradients from `values`, decisions from the same numbers as cells."""

    def __init__(self, schema: Schema, values: Tensor, rows: Rows) -> None:
        self.schema = schema
        self.values = values  # (n, d)
        self.rows = rows

    def node(self, node: Node) -> Tensor:
        match node:
            case Every(parts):
                return torch.stack([self.node(part) for part in parts]).sum(dim=0)
            case Some(parts):
                return torch.stack([self.node(part) for part in parts]).amin(dim=0)
            case Line():
                return self.line(node.positive())
            case Table():
                return self.table(node)
            case Same(column, negated) | Moved(column, negated):
                return self.own(column, stays=isinstance(node, Same) != negated)
            case Count():
                return self.values.new_zeros(len(self.values))
            case Opaque(custom):
                return custom.penalty(self.values).clamp(min=0)

    def constant(self, numbers: Floats) -> Tensor:
        return torch.as_tensor(numbers, dtype=self.values.dtype, device=self.values.device)

    def line(self, line: Line) -> Tensor:
        """A hinge over the sum of the spans; nothing where a part of it is missing."""
        smooth = [(c, w) for c, w in zip(line.columns, line.weights, strict=True)
                  if c not in line.worths]  # fmt: skip
        steady = {c: w for c, w in zip(line.columns, line.weights, strict=True) if c in line.worths}
        rest, _ = replace(line, columns=tuple(steady), weights=tuple(steady.values())).value(
            self.rows
        )
        known = ~np.isnan(line.value(self.rows)[0])
        total = self.constant(np.where(known, rest, 0.0))
        scale = sum(abs(w) * self.schema.spans[c] for c, w in smooth) or 1.0
        there = torch.as_tensor(known, device=self.values.device)
        for column, weight in smooth:
            # Masked before it is used: a NaN would come back through the gradient.
            cell = torch.where(there, self.values[:, column], self.values.new_zeros(()))
            total = total + weight * cell
        hinge = {
            "<=": total,
            "<": total + line.unit,
            "==": total.abs(),
            "!=": line.unit - total.abs(),
        }[line.relation]
        return torch.where(there, hinge.clamp(min=0) / scale, self.values.new_zeros(()))

    def table(self, table: Table) -> Tensor:
        """An ordinal has a way to go; a category is right or wrong."""
        if not table.ordered:
            return self.constant(table.slack(self.rows))
        own, new = self.rows.slots(table.column, table.levels)
        good = table.truths[own][:, : table.levels] >= 0  # (n, levels)
        places = np.arange(table.levels)
        there = new < table.levels
        codes = self.values[:, table.column]
        apart = np.where(good, np.abs(places - np.where(there, new, 0)[:, None]), np.inf)
        nearest = np.where(good.any(axis=1), apart.argmin(axis=1), np.where(there, new, 0))
        live = torch.as_tensor(there & (table.truths[own, new] < 0), device=codes.device)
        target = self.constant(nearest.astype(np.float64))
        way = (torch.where(live, codes, target) - target).abs()
        return way / self.schema.features[table.column].span

    def own(self, column: int, *, stays: bool) -> Tensor:
        feature = self.schema.features[column]
        mine = self.rows.instances[:, column]
        known = ~np.isnan(mine) & ~np.isnan(self.rows.cells[:, column])
        there = torch.as_tensor(known, device=self.values.device)
        target = self.constant(np.where(known, mine, 0.0))
        cell = torch.where(there, self.values[:, column], target)
        apart = (cell - target).abs()
        if not stays:
            apart = (feature.step - apart).clamp(min=0)
        return torch.where(there, apart / feature.span, self.values.new_zeros(()))
