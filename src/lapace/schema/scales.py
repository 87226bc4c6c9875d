"""All columns of a kind at once: rank maps and lattices of numbers, states of categories.

A search maps a few rows at a time, many times over: there a loop over the columns takes longer than
the arithmetic. So what each `Feature` says of its column is put side by side in arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.errors import InputError
from lapace.schema.features import Feature, Knots, decimals

__all__ = ["CategoryStates", "NumberScales"]


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
