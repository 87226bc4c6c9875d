"""All columns of a kind at once: rank maps and lattices of numbers, states of categories.

A search maps a few rows at a time, many times over: there a loop over the columns takes longer than
the arithmetic. So what each `Feature` says of its column is put side by side in arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lapace.arrays import Bools, Floats, Ints, batches
from lapace.errors import InputError
from lapace.schema.features import Feature, Knots, decimals

__all__ = ["Axes", "CategoryStates", "NumberScales"]

BUCKETS = 4096  # of equal width, in which a value's neighbours among support points are looked up
NARROW = 1e-300  # a range in which a bucket's width would be 0
CELLS_AT_ONCE = 20_000  # so that intermediate results stay in the processor's cache


class _Maps(NamedTuple):
    """Rank maps, one after the other in flat arrays.

    Attributes:
        groups: Of columns with the same map: their positions, the map, and where it begins.
        values: The values of all maps; `low`, `mid` and `high` are their scores.
        last: Of each column the last position of its map.
    """

    groups: list[tuple[Any, Knots, int]]
    values: Floats
    low: Floats
    mid: Floats
    high: Floats
    last: Ints


class Axes:
    """The axes that distances are measured along: one for each column.

    An axis is a piecewise linear map from cells to coordinates: percentiles of numbers, shares of
    the range where a column has no `Feature.ranks`, codes of categories. All columns are looked up
    at once: a value's bucket says roughly between which support points it lies, and a short
    binary search says exactly.

    Examples:
        >>> ranks = (0.0, 10.0, 20.0, 1000.0), (0.2, 0.5, 0.7, 0.9)
        >>> axes = Axes([Feature("amount", "continuous", upper=1000.0, ranks=ranks)])
        >>> axes.coordinates(np.array([[-500.0], [0.0], [15.0], [1000.0], [2000.0]])).ravel()
        array([-0.3,  0.2,  0.6,  0.9,  1.9])
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        supports = [np.array(f.ranks) if f.ranks[0] else _range_ranks(f) for f in features]
        spans = [f.span if f.numeric else 1.0 for f in features]
        self._low = np.array([values[0] for values, _ in supports])
        widths = np.array([values[-1] - values[0] for values, _ in supports])
        self._scale = np.divide(BUCKETS, widths, out=np.zeros(len(widths)), where=widths > NARROW)
        self._row = np.arange(len(supports)) * BUCKETS
        counts = [self._per_bucket(k, values) for k, (values, _) in enumerate(supports)]
        most = max((int(count.max()) for count in counts), default=0)
        self._halvings = [2**k for k in reversed(range(most.bit_length()))]
        begin, starts, segments = 0, [], []
        for (values, shares), count, span in zip(supports, counts, spans, strict=True):
            starts.append(begin + np.cumsum(count) - count)
            segments.append(_segments(values, shares, span, 2 * most))
            begin += segments[-1].shape[1]
        self._starts = np.concatenate(starts).astype(np.int32)
        joined = np.concatenate(segments, axis=1)
        self._next_values, self._values, self._shares, self._widths, self._rises = joined

    def _per_bucket(self, column: int, values: Floats) -> Ints:
        """How many support points of a column lie in each of its buckets."""
        places = (values - self._low[column]) * self._scale[column]
        return np.bincount(np.minimum(places, BUCKETS - 1).astype(np.int64), minlength=BUCKETS)

    def coordinates(self, cells: Floats) -> Floats:
        """Coordinates of rows, (..., d)."""
        rows = cells.reshape(-1, cells.shape[-1])
        found = np.empty(rows.shape)
        for part in batches(len(rows), CELLS_AT_ONCE, max(1, rows.shape[1])):
            found[part] = self._part(rows[part])
        return found.reshape(cells.shape)

    def _part(self, cells: Floats) -> Floats:
        places = (cells - self._low) * self._scale
        places = np.fmin(np.fmax(places, 0.0), BUCKETS - 1)  # missing: the first
        segment = self._starts.take(places.astype(np.int64) + self._row)
        for step in self._halvings:
            segment += step * (self._next_values.take(segment + step - 1) <= cells)
        apart: Floats = cells - self._values.take(segment)
        apart /= self._widths.take(segment)
        apart *= self._rises.take(segment)
        apart += self._shares.take(segment)
        return apart


def _range_ranks(feature: Feature) -> Floats:
    """The support point of a column that is counted in shares of its range, or in codes."""
    return np.array([[feature.lower if feature.numeric else 0.0], [0.0]])


def _segments(values: Floats, shares: Floats, span: float, spare: int) -> Floats:
    """Segments of an axis: below all support points, from each of them on, and spare ones.

    A binary search may look at the spare ones, and never steps into them: they end at infinity.

    Returns:
        For each segment its end, a value in it, the coordinate there, its width and how much
        coordinates rise over that: (5, segments).
    """
    none = np.full(spare, np.inf)
    return np.stack(
        [
            np.concatenate([values, none, [np.inf]]),
            np.concatenate([values[:1], values, none]),
            np.concatenate([shares[:1], shares, none]),
            np.concatenate([[span], np.diff(values), [span], none]),
            np.concatenate([[1.0], np.diff(shares), [1.0], none]),
        ]
    )


class NumberScales:
    """The numeric columns of a schema: what they map to scores by, and the values they may take.

    Matrices have one column for each of them, in order.

    Args:
        features: The columns, continuous or ordinal.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self.features = features

    # -- rank maps --------------------------------------------------------------------------------

    def scores(self, values: Floats) -> Floats:
        """`Knots.scores` of each column."""
        maps = self._maps
        clipped = np.clip(values, maps.values[self._begin], maps.values[maps.last])
        left = np.empty(values.shape, dtype=np.int64)
        for places, knots, begin in maps.groups:
            found = np.searchsorted(knots.values, clipped[:, places], side="right")
            left[:, places] = found + (begin - 1)
        right = np.minimum(left + 1, maps.last)
        base, high = maps.values[left], maps.high[left]
        gap = np.where(right > left, maps.values[right] - base, 1.0)
        between = high + (clipped - base) / gap * (maps.low[right] - high)
        return np.where(clipped == base, maps.mid[left], between)

    def units(self, scores: Floats) -> Floats:
        """`Knots.units` of each column, moved onto its lattice and inside its bounds."""
        units = np.empty(scores.shape)
        for (places, _, _), (grid, values) in zip(self._maps.groups, self._inverse, strict=True):
            units[:, places] = np.interp(scores[:, places], grid, values)
        return self.snap(units)

    def slopes(self, scores: Floats) -> Floats:
        """`Knots.slopes` of each column."""
        slopes = np.empty(scores.shape)
        for places, knots, _ in self._maps.groups:
            slopes[:, places] = knots.slopes(scores[:, places])
        return slopes

    @cached_property
    def _maps(self) -> _Maps:
        columns: dict[bytes, list[int]] = {}
        for place, feature in enumerate(self.features):
            columns.setdefault(_key(feature), []).append(place)
        begin, last = 0, np.empty(len(self.features), dtype=np.int64)
        groups: list[tuple[Any, Knots, int]] = []
        for places in columns.values():
            knots = _knots(self.features[places[0]])
            alone = len(places) == 1  # a plain position is faster than a list of one
            groups.append((places[0] if alone else np.array(places), knots, begin))
            begin += len(knots.values)
            last[places] = begin - 1
        parts = [np.stack(knots) for _, knots, _ in groups]  # (4, values) each
        values, low, mid, high = np.concatenate([np.empty((4, 0)), *parts], axis=1)
        return _Maps(groups, values, low, mid, high, last)

    @cached_property
    def _begin(self) -> Ints:
        """Of each column the first position of its map."""
        begin = np.empty(len(self.features), dtype=np.int64)
        for places, _, start in self._maps.groups:
            begin[places] = start
        return begin

    @cached_property
    def _inverse(self) -> list[tuple[Floats, Floats]]:
        """Of each group of columns the scores at both ends of each value, and these values."""
        return [
            (np.stack([knots.low, knots.high], axis=1).ravel(), np.repeat(knots.values, 2))
            for _, knots, _ in self._maps.groups
        ]

    # -- lattices ---------------------------------------------------------------------------------

    def snap(self, values: Floats) -> Floats:
        """`Feature.snap` of each column."""
        snapped = np.clip(self._on_lattices(values), self._lower, self._upper) + 0.0
        if not any(feature.extra for feature in self.features):
            return snapped
        return np.where(values >= self._unseen, values, snapped)

    def _on_lattices(self, values: Floats) -> Floats:
        """The nearest multiples of each column's resolution; see `on_lattice`."""
        steps, scale = self._steps, self._scale
        if not steps.any():
            return values
        with np.errstate(divide="ignore", invalid="ignore"):
            multiples = np.rint(values / steps) * steps
        if (scale > 1).any():
            multiples = np.where(scale > 1, np.rint(multiples * scale) / scale, multiples)
        return np.where(steps > 0, multiples, values)

    @cached_property
    def _steps(self) -> Floats:
        return np.array([feature.resolution for feature in self.features])

    @cached_property
    def _scale(self) -> Floats:
        return np.array([10.0 ** decimals(feature.resolution) for feature in self.features])

    @cached_property
    def _lower(self) -> Floats:
        return np.array([feature.lower for feature in self.features])

    @cached_property
    def _upper(self) -> Floats:
        return np.array([feature.upper for feature in self.features])

    @cached_property
    def _unseen(self) -> Floats:
        """The first code of an ordinal that has no place in its order; NaN where there is none."""
        return np.array([len(f.categories) if f.extra else np.nan for f in self.features])


class CategoryStates:
    """The category blocks of a schema: codes of categories as states, and states as codes.

    Args:
        features: All columns.
        blocks: (feature, start, width) of each block, as `Schema.blocks`.
    """

    def __init__(self, features: Sequence[Feature], blocks: Sequence[tuple[int, int, int]]) -> None:
        some = [features[i] for i, _, _ in blocks]
        self.columns = np.array([i for i, _, _ in blocks], dtype=np.int64)
        self.known = np.array([len(f.categories) for f in some], dtype=np.int64)
        self.nullable = np.array([f.missing for f in some], dtype=np.int64)
        self.missing = np.array([_missing_state(f) for f in some], dtype=np.int64)
        widths = [width for _, _, width in blocks]
        self.block = np.repeat(np.arange(len(blocks)), widths)  # of each encoded column
        # The state that each encoded column says holds: alone, the second of two.
        places = [np.arange(width) + (width == 1) for width in widths]
        self.place = np.concatenate([np.empty(0, dtype=np.int64), *places])

    def states(self, cells: Floats) -> Ints:
        """See `Schema.states`."""
        codes = cells[:, self.columns]  # (n, blocks)
        shifted = np.where(codes >= self.known, codes + self.nullable, codes)
        return np.where(np.isnan(codes), self.missing, shifted).astype(np.int64)

    def codes(self, states: Ints) -> Floats:
        """The inverse: codes, NaN for missing, (n, blocks)."""
        codes = states - (states > self.known) * self.nullable
        return np.where(states == self.missing, np.nan, codes)

    def encode(self, states: Ints) -> Bools:
        """The columns of the encoded matrix, (n, sum of widths)."""
        encoded: Bools = states[:, self.block] == self.place
        return encoded


def _missing_state(feature: Feature) -> int:
    return len(feature.categories) if feature.missing else len(feature.levels) + 1


def _key(feature: Feature) -> bytes:
    return b"|".join(part.tobytes() for part in _knots(feature))


def _knots(feature: Feature) -> Knots:
    if feature.knots is None:
        raise InputError(f"Column '{feature.name}' has no rank map: infer the schema from data.")
    return feature.knots
