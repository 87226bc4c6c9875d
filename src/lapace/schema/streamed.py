"""Ranges, categories and histograms of columns from counts that add up, part by part.

`Schema.infer` needs a table in memory. Where the training table is larger, kinds and resolutions
are inferred from a sample; two passes over all rows then count what the sample may have missed:
first values and extremes, then histograms between these extremes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lapace.arrays import Floats
from lapace.schema import Feature, Knots, Reading, Schema
from lapace.schema.columns import PROPOSED, merged_histogram, not_in_order
from lapace.schema.features import RARE, Override, mid_ranks, on_lattice
from lapace.table import Level

__all__ = ["ColumnCounts", "SchemaCounts", "histogram_edges", "with_counts", "with_histograms"]

BINS = 16  # as `Schema.infer` has them


@dataclass
class ColumnCounts:
    """What all rows hold in one column.

    Attributes:
        low: The least number.
        high: The greatest.
        missing: Rows without a value.
        levels: Rows by category.
    """

    low: float = np.inf
    high: float = -np.inf
    missing: int = 0
    levels: Counter[Level] = field(default_factory=Counter)

    def add(self, other: ColumnCounts) -> None:
        """Adds what another part counted."""
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.missing += other.missing
        self.levels.update(other.levels)


@dataclass
class SchemaCounts:
    """What all rows hold in each column.

    Attributes:
        rows: How many were counted.
        columns: By column.

    Examples:
        >>> schema = Schema.infer([{"age": 20 + i} for i in range(0, 90, 2)])
        >>> one = SchemaCounts.of(schema.read([{"age": 17}, {"age": 40}]))
        >>> one.add(SchemaCounts.of(schema.read([{"age": 120}])))
        >>> one.rows, one.columns["age"].low, one.columns["age"].high
        (3, 17.0, 120.0)
    """

    rows: int = 0
    columns: dict[str, ColumnCounts] = field(default_factory=dict)

    @classmethod
    def of(cls, reading: Reading) -> SchemaCounts:
        """Counts of some rows."""
        found = cls(len(reading.cells))
        for i, feature in enumerate(reading.schema.features):
            cells = reading.cells[:, i]
            present = cells[~np.isnan(cells)]
            counts = ColumnCounts(missing=len(cells) - len(present))
            if feature.categories:
                codes, often = np.unique(present.astype(np.int64), return_counts=True)
                pairs = zip(codes.tolist(), often.tolist(), strict=True)
                counts.levels = Counter({feature.levels[code]: n for code, n in pairs})
            elif len(present):
                counts.low, counts.high = float(present.min()), float(present.max())
            found.columns[feature.name] = counts
        return found

    def add(self, other: SchemaCounts) -> None:
        """Adds what another part counted."""
        self.rows += other.rows
        for name, counts in other.columns.items():
            self.columns.setdefault(name, ColumnCounts()).add(counts)


def with_counts(
    schema: Schema, counts: SchemaCounts, cells: Floats, declared: Mapping[str, Override]
) -> Schema:
    """The schema with ranges and categories of all rows, where they were not declared.

    Args:
        schema: As inferred from a sample.
        counts: Of all rows.
        cells: The sample.
        declared: What was said of columns: bounds and categories in it stay.
    """
    features = []
    for i, feature in enumerate(schema.features):
        found, said = counts.columns[feature.name], declared.get(feature.name)
        some = replace(feature, missing=feature.missing or found.missing > 0)
        if feature.categories:
            features.append(_with_levels(some, found, fixed=_says(said, "categories")))
        else:
            features.append(_with_range(some, found, cells[:, i], said))
    return replace(schema, features=tuple(features))


def _says(declared: Override | None, setting: str) -> bool:
    """Whether a setting of a column was declared."""
    if isinstance(declared, Feature):
        value = getattr(declared, setting)
        return bool(value) if setting == "categories" else not np.isnan(value)
    return isinstance(declared, Mapping) and setting in declared


def _with_range(
    feature: Feature, found: ColumnCounts, sample: Floats, declared: Override | None
) -> Feature:
    step, bounds = feature.resolution, [feature.lower, feature.upper]
    for k, (name, value) in enumerate((("lower", found.low), ("upper", found.high))):
        if not _says(declared, name):
            bounds[k] = value
            if step:
                bounds[k] = float(on_lattice(np.rint(np.array([value]) / step) * step, step)[0])
    lower, upper = bounds
    known = np.append(sample[~np.isnan(sample)], [found.low, found.high])
    knots = Knots.fit(np.clip(known, lower, upper))
    ranks = mid_ranks(_with_extremes(sample, found)) if feature.ranks[0] else feature.ranks
    return replace(feature, lower=lower + 0.0, upper=upper + 0.0, ranks=ranks, knots=knots)


def _with_extremes(sample: Floats, found: ColumnCounts) -> Floats:
    """The values of a sample, and the extremes of all rows that it misses."""
    seen = sample[~np.isnan(sample)]
    least, greatest = seen.min(initial=np.inf), seen.max(initial=-np.inf)
    return np.append(seen, [v for v in (found.low, found.high) if not least <= v <= greatest])


def _with_levels(feature: Feature, found: ColumnCounts, *, fixed: bool) -> Feature:
    seen = [level for level in found.levels if level not in feature.categories]
    if feature.kind == "ordinal":
        if seen:
            raise not_in_order(feature, tuple(seen), np.empty(0))
        return feature
    if not seen or fixed:
        return feature
    ordered = sorted(found.levels, key=lambda v: (-found.levels[v], isinstance(v, str), v))
    kept = sorted(ordered[:PROPOSED], key=lambda v: (isinstance(v, str), v))
    kind: Any = "binary" if len(kept) == 2 else "categorical"
    return replace(feature, kind=kind, categories=tuple(kept), extra=())


def histogram_edges(feature: Feature, found: ColumnCounts) -> Floats:
    """The edges between which the values of a column are counted, as `Schema.infer` has them."""
    if not feature.numeric:
        return np.arange(len(feature.categories) + 1.0) - 0.5
    low, high = found.low, found.high
    if feature.categories:
        codes = [feature.levels.index(level) for level in found.levels]
        low, high = float(min(codes)), float(max(codes))
    edges: Floats = np.linspace(low, high, BINS + 1, dtype=np.float64)
    return edges if low < high else np.array([low - 0.5, low + 0.5])


def with_histograms(schema: Schema, edges: Sequence[Floats], counts: Sequence[Any]) -> Schema:
    """The schema with histograms of all rows, small bins merged or hidden.

    Args:
        schema: The columns.
        edges: As `histogram_edges` gives them for each column.
        counts: Rows in each bin, for each column.
    """
    features = []
    for feature, places, rows in zip(schema.features, edges, counts, strict=True):
        plain = [int(count) for count in rows]
        if feature.numeric:
            histogram = merged_histogram(places, plain)
        else:
            histogram = ((), tuple(count if count >= RARE else 0 for count in plain))
        features.append(replace(feature, histogram=histogram))
    return replace(schema, features=tuple(features))
