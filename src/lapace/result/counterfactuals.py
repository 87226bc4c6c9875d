"""Rows offered as answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints
from lapace.schema import Schema
from lapace.table import Template, plain_frame

__all__ = ["Counterfactuals", "record", "values"]


@dataclass(frozen=True, eq=False)
class Counterfactuals:
    """Counterfactuals of some instances, and what is known of each.

    Attributes:
        schema: The columns.
        template: The frame kind the rows go out as.
        instances: Cells of all instances of the query.
        cells: Cells of the counterfactuals.
        instance: For each counterfactual the position of its instance in the query.
        prototype: The prototype its path leads to, as numbered in the report; -1 for none, or for
            a sampled endpoint.
        tau: Where on the path it lies, 0 the instance, 1 the endpoint; NaN off any path.
        label: What the classifier says of exactly this row; None where unknown.
        valid: Whether that is the target (with the required confidence).
        feasible: Whether every constraint and rule holds on exactly this row.
        probability: The classifier's probability of the target; NaN where unknown.
        density: Percentile of its latent density among training rows; NaN where unknown.
        distance: From the instance, in `Schema.distance` with the costs of the query.
        density_before: The percentile of the row before the constraints moved it; the same as
            `density` where they did not.
        ids: Identifiers of the instances of the query, where their table had any.
        reasons: Why instances have no counterfactual that is ok, by position in the query.
    """

    schema: Schema
    template: Template
    instances: Floats
    cells: Floats
    instance: Ints
    prototype: Ints
    tau: Floats
    label: NDArray[np.object_]
    valid: Bools
    feasible: Bools
    probability: Floats
    density: Floats
    distance: Floats
    density_before: Floats
    ids: tuple[Any, ...] | None = None
    reasons: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        schema: Schema,
        instances: Floats,
        cells: Floats,
        instance: Ints,
        *,
        valid: Bools,
        template: Template | None = None,
        ids: tuple[Any, ...] | None = None,
        **known: Any,
    ) -> Counterfactuals:
        """Counterfactuals of any method; what is not in `known` is unknown."""
        unknown = np.full(len(cells), np.nan)
        distance = schema.gaps(instances[instance], cells).sum(axis=1)
        columns: dict[str, Any] = {
            "prototype": np.full(len(cells), -1),
            "tau": unknown,
            "label": np.full(len(cells), None, dtype=object),
            "feasible": np.ones(len(cells), dtype=bool),
            "probability": unknown,
            "density": unknown,
            "distance": distance,
            "density_before": known.get("density", unknown),
            **known,
        }
        kind = template or schema.template
        return cls(schema, kind, instances, cells, instance, valid=valid, ids=ids, **columns)

    def __len__(self) -> int:
        return len(self.cells)

    def __repr__(self) -> str:
        instances = len(np.unique(self.instance))
        return (
            f"Counterfactuals: {len(self)} rows for {instances} instances, {int(self.ok.sum())} ok"
        )

    @property
    def ok(self) -> Bools:
        """Valid and feasible."""
        return self.valid & self.feasible

    @cached_property
    def changed(self) -> Ints:
        """How many features differ from the instance's."""
        count: Ints = self.schema.changed(self.instances[self.instance], self.cells).sum(axis=1)
        return count

    def where(self, mask: Bools) -> Counterfactuals:
        """Only some of the answers."""
        shared = ("schema", "template", "instances", "ids", "reasons")
        names = [f.name for f in fields(self) if f.name not in shared]
        return replace(self, **{name: getattr(self, name)[mask] for name in names})

    @property
    def rows(self) -> Any:
        """The answers in the table's own columns."""
        return self.schema.frame(self.cells, self.template)

    @property
    def about(self) -> Any:
        """What is known of each answer, one line each."""
        return plain_frame(self.template.kind, self._about())

    @property
    def frame(self) -> Any:
        """`about` and `rows` side by side."""
        own = {
            (f"answer_{name}" if name in self.schema.names else name): values
            for name, values in self._about().items()
        }
        return self.template.beside(own, self.rows)

    def _about(self) -> dict[str, NDArray[Any]]:
        names = np.array(self.schema.names, dtype=object)
        different = self.schema.changed(self.instances[self.instance], self.cells)
        features = np.empty(len(self), dtype=object)
        features[:] = [", ".join(names[row]) for row in different]
        return {
            "instance": self.instance,
            "prototype": _numbers(self.prototype),
            "tau": self.tau,
            "label": self.label,
            "valid": self.valid,
            "feasible": self.feasible,
            "probability": self.probability,
            "density": self.density,
            "density_before": self.density_before,
            "distance": self.distance,
            "changed": self.changed,
            "features": features,
        }


def _numbers(prototype: Ints) -> NDArray[np.object_]:
    """Numbers of prototypes, None for a sampled endpoint."""
    numbers = prototype.astype(object)
    numbers[prototype < 0] = None
    return numbers


def values(schema: Schema, cells: Floats) -> list[Any]:
    """One row as JSON values, in the columns' order."""
    values: list[Any] = []
    for feature, cell in zip(schema.features, cells.tolist(), strict=True):
        if cell != cell:  # noqa: PLR0124  NaN
            values.append(None)
        elif feature.kind == "continuous":
            values.append(int(cell) if feature.integer and cell == int(cell) else cell)
        else:
            values.append(feature.levels[int(cell)])
    return values


def record(schema: Schema, cells: Floats) -> dict[str, Any]:
    """One row as plain values by column."""
    return dict(zip(schema.names, values(schema, cells), strict=True))
