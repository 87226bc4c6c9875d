"""Counterfactuals: rows, what is known of each, and the frames they come out as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints, matches
from lapace.schema import Schema
from lapace.table import Template, plain_frame

__all__ = ["Counterfactuals", "Mark", "record", "records"]

SHARED = ("schema", "template", "instances", "ids", "reasons")  # fields of the whole query
ABOUT = (  # the columns of `about`, after instance and prototype and before features
    "rank", "tau", "label", "valid", "feasible", "probability", "density",
    "survival", "survival_low", "survival_high", "distance", "effort", "changed", "mark",
)  # fmt: skip
Mark: TypeAlias = Literal["", "edge", "unusual", "edge, unusual"]


@dataclass(frozen=True, eq=False)
class Counterfactuals:
    """Counterfactuals of some instances, and what is known of each.

    Attributes:
        schema: The columns.
        template: The frame kind the rows go out as.
        instances: Cells of all instances of the query.
        cells: Cells of the counterfactuals.
        instance: The position of each counterfactual's instance in the query.
        prototype: The prototype its path leads to, as numbered in `prototypes_`; -1 for none.
        tau: Position on its path, 0 the instance and 1 the endpoint; NaN off any path.
        label: What the classifier says of exactly this row; None where unknown.
        valid: Whether this label is the target (with the required confidence).
        feasible: Whether every constraint and rule holds on exactly this row.
        probability: The classifier's probability of the target; NaN where unknown.
        density: How usual it is: the share of the training rows of its label that are less dense;
            NaN where unknown.
        distance: Distance from the instance by `Schema.distance` with the costs of the query.
        effort: Effort by `Schema.effort`: the distance, and a fifth for each change.
        survival: Estimated chance that the row keeps the target when the classifier is retrained;
            NaN where unknown. `survival_low` and `survival_high` are its 90% interval.
        rank: Rank among the instance's best rows, 0 the cheapest; 0 for every other pick.
        mark: Shortcoming of a row of `best` or `nearest`: `edge` (no margin), `unusual` (rarer than
            the floor), both, or empty.
        ids: Identifiers of the instances of the query, where their table had any.
        reasons: Why a baseline has no row for an instance, by position in the query.
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
    effort: Floats
    survival: Floats
    survival_low: Floats
    survival_high: Floats
    rank: Ints
    mark: NDArray[np.object_]
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
        **columns: Any,
    ) -> Counterfactuals:
        """Makes counterfactuals of any method; a field that is not given is unknown."""
        unknown = np.full(len(cells), np.nan)
        defaults: dict[str, Any] = {
            "prototype": np.full(len(cells), -1),
            "tau": unknown,
            "label": np.full(len(cells), None, dtype=object),
            "feasible": np.ones(len(cells), dtype=bool),
            "probability": unknown,
            "density": unknown,
            **dict.fromkeys(("survival", "survival_low", "survival_high"), unknown),
            "rank": np.zeros(len(cells), dtype=np.int64),
            "mark": np.full(len(cells), "", dtype=object),
        }
        if "distance" not in columns:
            columns["distance"] = schema.gaps(instances[instance], cells).sum(axis=1)
        if "effort" not in columns:
            columns["effort"] = schema.effort(instances[instance], cells)
        kind = template or schema.template
        return cls(schema, kind, instances, cells, instance, valid=valid, **{**defaults, **columns})

    def __len__(self) -> int:
        return len(self.cells)

    def __repr__(self) -> str:
        instances = len(np.unique(self.instance))
        rows = f"{len(self)} rows for {instances} instances"
        return f"Counterfactuals: {rows}, {int(self.ok.sum())} ok"

    @property
    def ok(self) -> Bools:
        """Whether each counterfactual is valid and feasible."""
        return self.valid & self.feasible

    @cached_property
    def _different(self) -> Bools:
        return self.schema.changed(self.instances[self.instance], self.cells)  # (rows, columns)

    @cached_property
    def changed(self) -> Ints:
        """The number of features in which each counterfactual differs from its instance."""
        count: Ints = self._different.sum(axis=1)
        return count

    def where(self, mask: Bools | Ints) -> Counterfactuals:
        """Returns some of the counterfactuals, chosen by a mask or by position."""
        names = [f.name for f in fields(self) if f.name not in SHARED]
        return replace(self, **{name: getattr(self, name)[mask] for name in names})

    def joined(self, other: Counterfactuals) -> Counterfactuals:
        """Returns these and others of the same query, sorted by instance and rank."""
        names = [f.name for f in fields(self) if f.name not in SHARED]
        columns: dict[str, Any] = {
            n: np.concatenate([getattr(self, n), getattr(other, n)]) for n in names
        }
        whole = replace(self, **columns)
        return whole.where(np.lexsort((whole.rank, whole.instance)))

    def of_instances(self, chosen: Ints) -> Counterfactuals:
        """Returns the counterfactuals of some instances, whose positions count from 0 again."""
        instance, rows = matches(chosen, self.instance)
        return replace(
            self.where(rows),
            instance=instance,
            instances=self.instances[chosen],
            ids=None if self.ids is None else tuple(self.ids[i] for i in chosen),
        )

    @property
    def rows(self) -> Any:
        """The counterfactuals in the table's own columns, as a frame of its kind."""
        return self.schema.frame(self.cells, self.template, ids=self._row_ids)

    @property
    def about(self) -> Any:
        """A frame of one line per counterfactual: instance, prototype, verdicts, changes."""
        template = self.template
        return plain_frame(template.kind, self.about_columns(), self._row_ids, template.index)

    @property
    def frame(self) -> Any:
        """`rows` and `about` side by side; a name of `about` that the table has too is prefixed."""
        about = self.about_columns()
        return self.schema.frame(self.cells, self.template, after=about, ids=self._row_ids)

    @property
    def _row_ids(self) -> tuple[Any, ...] | None:
        """The identifier of each counterfactual's instance."""
        return None if self.ids is None else tuple(self.ids[i] for i in self.instance)

    def about_columns(self) -> dict[str, NDArray[Any]]:
        """Returns the columns of `about` by name."""
        names = np.array(self.schema.names, dtype=object)
        features = np.empty(len(self), dtype=object)
        features[:] = [", ".join(names[row]) for row in self._different]
        prototype = self.prototype.astype(object)
        prototype[self.prototype < 0] = None
        columns = {name: getattr(self, name) for name in ABOUT}
        return {"instance": self.instance, "prototype": prototype, **columns, "features": features}


def records(schema: Schema, cells: Floats) -> list[dict[str, Any]]:
    """Returns rows as plain values by column, dates as text."""
    dtypes = tuple(
        "text" if f.is_date else "int64" if f.integer else "float64" for f in schema.features
    )
    template = Template("records", schema.names, dtypes)
    rows: list[dict[str, Any]] = template.build(schema.columns(cells, template, marked=False))
    return rows


def record(schema: Schema, cells: Floats) -> dict[str, Any]:
    """Returns one row as plain values by column, dates as text."""
    return records(schema, cells[None])[0]
