"""Counterfactuals: rows, what is known of each, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints, matches
from lapace.schema import Schema
from lapace.table import Template, plain_frame

__all__ = [
    "Counterfactuals",
    "html_table",
    "public_schema",
    "record",
    "records",
    "same_content",
]

SHARED = ("schema", "template", "instances", "ids", "reasons")  # not one per counterfactual
ABOUT = (  # what `about` says of each counterfactual, after its instance and prototype
    "rank", "tau", "label", "valid", "feasible", "probability", "density",
    "survival", "survival_low", "survival_high", "distance", "changed", "mark",
)  # fmt: skip
SHOWN = 20  # lines of an HTML table


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
        distance: From the instance, in `Schema.distance` with the costs of the query: how many of
            the training rows the changes of numbers pass, and 1 for each change of category.
        survival: Estimated chance that the row keeps the target when the classifier is retrained;
            NaN where unknown. `survival_low` and `survival_high` are its 90 % interval.
        rank: Which of the instance's best rows it is, 0 the cheapest; 0 for every other pick.
        mark: What a best row lacks: `edge` (no margin), `unusual` (rarer than the floor), both, or
            nothing.
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
        **known: Any,
    ) -> Counterfactuals:
        """Counterfactuals of any method; fields that are not in `known` are unknown."""
        unknown = np.full(len(cells), np.nan)
        columns: dict[str, Any] = {
            "prototype": np.full(len(cells), -1),
            "tau": unknown,
            "label": np.full(len(cells), None, dtype=object),
            "feasible": np.ones(len(cells), dtype=bool),
            "probability": unknown,
            "density": unknown,
            "distance": schema.gaps(instances[instance], cells).sum(axis=1),
            **dict.fromkeys(("survival", "survival_low", "survival_high"), unknown),
            "rank": np.zeros(len(cells), dtype=np.int64),
            "mark": np.full(len(cells), "", dtype=object),
            **known,
        }
        kind = template or schema.template
        return cls(schema, kind, instances, cells, instance, valid=valid, **columns)

    def __len__(self) -> int:
        return len(self.cells)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counterfactuals) and same_content(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        instances = len(np.unique(self.instance))
        rows = f"{len(self)} rows for {instances} instances"
        return f"Counterfactuals: {rows}, {int(self.ok.sum())} ok"

    def _repr_html_(self) -> str:
        """A table for notebooks: of each counterfactual what it changes."""
        names = ("label", "valid", "feasible", "probability", "distance")
        columns: dict[str, Iterable[Any]] = {
            "instance": self._row_ids or self.instance,
            **{name: getattr(self, name) for name in names},
            "changes": [self._changes(row) if row < SHOWN else "" for row in range(len(self))],
        }
        return html_table(repr(self), columns)

    def _changes(self, row: int, most: int = 8) -> str:
        """What one counterfactual changes, in words."""
        before, after = self.instances[self.instance[row]], self.cells[row]
        where = [(i, self.schema.features[i]) for i in np.flatnonzero(self._different[row])]
        texts = [f"{f.name}: {f.text(before[i])} → {f.text(after[i])}" for i, f in where]
        more = [f"and {len(texts) - most} more"] if len(texts) > most else []
        return ", ".join([*texts[:most], *more])

    @property
    def ok(self) -> Bools:
        """Valid and feasible."""
        return self.valid & self.feasible

    @cached_property
    def _different(self) -> Bools:
        return self.schema.changed(self.instances[self.instance], self.cells)  # (rows, columns)

    @cached_property
    def changed(self) -> Ints:
        """How many features differ from the instance's."""
        count: Ints = self._different.sum(axis=1)
        return count

    def where(self, mask: Bools | Ints) -> Counterfactuals:
        """Only some of the counterfactuals, by a mask or by position."""
        names = [f.name for f in fields(self) if f.name not in SHARED]
        return replace(self, **{name: getattr(self, name)[mask] for name in names})

    def joined(self, other: Counterfactuals) -> Counterfactuals:
        """These and others of the same query, by instance and rank."""
        names = [f.name for f in fields(self) if f.name not in SHARED]
        columns: dict[str, Any] = {
            n: np.concatenate([getattr(self, n), getattr(other, n)]) for n in names
        }
        whole = replace(self, reasons=other.reasons, **columns)
        return whole.where(np.lexsort((whole.rank, whole.instance)))

    def of_instances(self, chosen: Ints) -> Counterfactuals:
        """The counterfactuals of some instances, whose positions count from 0 again."""
        instance, rows = matches(chosen, self.instance)
        return replace(
            self.where(rows),
            instance=instance,
            instances=self.instances[chosen],
            ids=None if self.ids is None else tuple(self.ids[i] for i in chosen),
            reasons={k: self.reasons[i] for k, i in enumerate(chosen) if i in self.reasons},
        )

    @property
    def rows(self) -> Any:
        """The counterfactuals in the table's own columns."""
        return self.schema.frame(self.cells, self.template, ids=self._row_ids)

    @property
    def about(self) -> Any:
        """What is known of each counterfactual, one line each."""
        template = self.template
        return plain_frame(template.kind, self._about(), self._row_ids, template.index)

    @property
    def frame(self) -> Any:
        """`about` and `rows` side by side; a name of `about` that the table has too is prefixed."""
        return self.schema.frame(self.cells, self.template, before=self._about(), ids=self._row_ids)

    @property
    def _row_ids(self) -> tuple[Any, ...] | None:
        """The identifier of each row's instance."""
        return None if self.ids is None else tuple(self.ids[i] for i in self.instance)

    def _about(self) -> dict[str, NDArray[Any]]:
        names = np.array(self.schema.names, dtype=object)
        features = np.empty(len(self), dtype=object)
        features[:] = [", ".join(names[row]) for row in self._different]
        prototype = self.prototype.astype(object)
        prototype[self.prototype < 0] = None
        known = {name: getattr(self, name) for name in ABOUT}
        return {"instance": self.instance, "prototype": prototype, **known, "features": features}


def html_table(title: str, columns: Mapping[str, Iterable[Any]]) -> str:
    """A small HTML table, everything in it escaped."""

    def row(cells: Iterable[Any], tag: str) -> str:
        known = ("" if c is None or c != c else c for c in cells)  # noqa: PLR0124  NaN
        texts = (f"{c:.4g}" if isinstance(c, float) else str(c) for c in known)
        return f"<tr>{''.join(f'<{tag}>{escape(text)}</{tag}>' for text in texts)}</tr>"

    lines = list(zip(*columns.values(), strict=True))
    body = "".join(row(line, "td") for line in lines[:SHOWN])
    more = f"<p>… and {len(lines) - SHOWN} more</p>" if len(lines) > SHOWN else ""
    head = f"<p>{escape(title)}</p><table><thead>{row(columns, 'th')}</thead>"
    return f"<div>{head}<tbody>{body}</tbody></table>{more}</div>"


def same_content(one: Any, other: Any) -> bool:
    """Whether two values of one dataclass have the same fields, NaN being equal to NaN."""
    names = [f.name for f in fields(one) if f.compare]
    return all(_equal(getattr(one, name), getattr(other, name)) for name in names)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        same = isinstance(other, np.ndarray) and one.dtype == other.dtype
        return same and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, Schema):
        one, other = public_schema(one), public_schema(other)
    return bool(one == other)


def public_schema(schema: Schema) -> Schema:
    """The schema without what only training needs, which no published file has either.

    `Feature.ranks` stay: distances of a result that is read back are counted in them.
    """
    features = (replace(f, knots=None, histogram=((), ())) for f in schema.features)
    return replace(schema, features=tuple(features))


def records(schema: Schema, cells: Floats) -> list[dict[str, Any]]:
    """Rows as plain values by column, dates as text."""
    dtypes = tuple(
        "text" if f.is_date else "integer" if f.integer else "number" for f in schema.features
    )
    rows: list[dict[str, Any]] = schema.frame(cells, Template("records", schema.names, dtypes))
    return rows


def record(schema: Schema, cells: Floats) -> dict[str, Any]:
    """One row as plain values by column."""
    return records(schema, cells[None])[0]
