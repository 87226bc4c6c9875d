"""The matrix that the network sees: scores of numbers, blocks of categories, flags of missing ones.

The continuous and ordinal columns come first, then one block per category column, then one flag
per number that may be missing. A block is as wide as its column has categories, and one wider if
values may be missing: the last place says so. Two states need one place, a single state none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.schema.features import Feature, Lattice, column_error
from lapace.schema.ranks import Knots

__all__ = ["Coding"]


class Coding:
    """The columns of the encoded matrix, and the maps from cells to it and back.

    Args:
        features: The columns of the table.

    Attributes:
        numeric: Positions of the continuous and ordinal columns, the first of the matrix.
        categorical: Positions of the binary and categorical columns.
        blocks: The category blocks: (feature, start, width) each.
        block_states: How many states each block has.
        flags: The flags of missing numbers: (feature, column) each.
        widths: Widths of everything after the continuous columns, as the network needs them.
        width: Columns of the matrix.
        lattice: The lattices of the numeric columns, side by side.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self.features = features
        numeric = [i for i, f in enumerate(features) if f.numeric]
        categorical = [i for i, f in enumerate(features) if not f.numeric]
        self.numeric: Ints = np.array(numeric, dtype=np.int64)
        self.categorical: Ints = np.array(categorical, dtype=np.int64)
        blocks = [i for i in categorical if features[i].width]
        widths = [features[i].width for i in blocks]
        starts = [*accumulate(widths, initial=len(numeric))]
        self.blocks = tuple(zip(blocks, starts, widths, strict=False))
        self.block_states = tuple(features[i].states for i in blocks)
        nullable = [i for i in numeric if features[i].missing]
        self.flags = tuple((i, starts[-1] + k) for k, i in enumerate(nullable))
        self.widths = (*widths, *(1 for _ in nullable))
        self.width = len(numeric) + sum(self.widths)
        self.lattice = Lattice.side_by_side(features[i] for i in numeric)
        # The first code of each column that is unseen in training.
        self._unseen = np.array([len(f.categories) if f.extra else np.inf for f in features])

    def encode(self, cells: Floats) -> Floats:
        """Returns the matrix that the network sees; see `Schema.encode`."""
        encoded = np.zeros((len(cells), self.width))  # (n, width)
        scores = self._scores(cells[:, self.numeric])
        encoded[:, : len(self.numeric)] = np.where(self.unplaced(cells), 0.0, scores)
        for states, (_, start, width) in zip(self.states(cells).T, self.blocks, strict=True):
            # A single place says that the second of two states holds.
            encoded[:, start : start + width] = states[:, None] == np.arange(width) + (width == 1)
        for i, column in self.flags:
            encoded[:, column] = np.isnan(cells[:, i])
        return encoded

    def decode(self, encoded: Floats) -> Floats:
        """Returns the cells of a matrix; see `Schema.decode`."""
        cells = np.zeros((len(encoded), len(self.features)))  # (n, d)
        cells[:, self.numeric] = self.units(encoded[:, : len(self.numeric)])
        states = np.zeros((len(encoded), len(self.blocks)), dtype=np.int64)
        for block, (_, start, width) in enumerate(self.blocks):
            scores = encoded[:, start : start + width]
            states[:, block] = scores[:, 0] > 0.5 if width == 1 else scores.argmax(axis=1)
        for i, column in self.flags:
            cells[encoded[:, column] > 0.5, i] = np.nan
        return self.with_states(cells, states)

    def states(self, cells: Floats) -> Ints:
        """Returns categories as states of their blocks, (n, blocks).

        The states of a block are its categories, then missing if training saw that, then levels
        unseen in training. Where training saw none, missing is as unknown as an unseen level.
        """
        states = np.empty((len(cells), len(self.blocks)), dtype=np.int64)
        for block, (i, _, _) in enumerate(self.blocks):
            feature, codes = self.features[i], cells[:, i]
            state = np.where(codes >= len(feature.categories), codes + feature.missing, codes)
            states[:, block] = np.where(np.isnan(codes), _missing_state(feature), state)
        return states

    def with_states(self, cells: Floats, states: Ints) -> Floats:
        """Returns a copy of cells with the categories of some states: the inverse of `states`."""
        cells = cells.copy()
        for block, (i, _, _) in enumerate(self.blocks):
            feature, state = self.features[i], states[:, block]
            codes = state - (state > len(feature.categories)) * feature.missing
            cells[:, i] = np.where(state == _missing_state(feature), np.nan, codes)
        return cells

    def units(self, scores: Floats) -> Floats:
        """Returns the numeric columns' values of scores, on their lattice and in their bounds."""
        return self.lattice.snap(self._mapped(Knots.units, scores))

    def slopes(self, scores: Floats) -> Floats:
        """Returns how fast the numeric columns' values rise with their scores."""
        return self._mapped(Knots.slopes, scores)

    def _scores(self, numbers: Floats) -> Floats:
        """Returns the scores of the numeric columns, (n, numeric); all but a search at once."""
        if not len(self.numeric):
            return numbers
        knots, first, last = self._all_knots
        numbers = np.clip(numbers, knots.values[first], knots.values[last])
        left = np.empty(numbers.shape, dtype=np.int64)
        for own, places in self._rank_maps:
            left[:, places] = own.values.searchsorted(numbers[:, places], side="right") - 1
        left += first
        return knots.between(numbers, left, np.minimum(left + 1, last))

    def _mapped(self, method: Callable[[Knots, Floats], Floats], numbers: Floats) -> Floats:
        """Applies the rank map of each numeric column: (n, numeric)."""
        mapped = np.empty(numbers.shape)
        for knots, places in self._rank_maps:
            mapped[:, places] = method(knots, numbers[:, places])
        return mapped

    @cached_property
    def _rank_maps(self) -> list[tuple[Knots, Any]]:
        """Each rank map and the places of its numeric columns: all pixels may share one."""
        maps: dict[bytes, tuple[Knots, list[int]]] = {}
        for place, i in enumerate(self.numeric.tolist()):
            knots = self.features[i].knots
            if knots is None:
                sentence = "has no rank map: infer the schema from data."
                raise column_error(self.features[i].name, sentence)
            key = b"|".join(part.tobytes() for part in knots)
            maps.setdefault(key, (knots, []))[1].append(place)
        # A plain position is faster than a list of one.
        return [(knots, p[0] if len(p) == 1 else np.array(p)) for knots, p in maps.values()]

    @cached_property
    def _all_knots(self) -> tuple[Knots, Ints, Ints]:
        """Returns all rank maps in a row, and where that of each numeric column begins and ends."""
        sizes = [len(knots.values) for knots, _ in self._rank_maps]
        offsets = np.cumsum([0, *sizes])
        first, last = np.zeros((2, len(self.numeric)), dtype=np.int64)
        for k, (_, places) in enumerate(self._rank_maps):
            first[places], last[places] = offsets[k], offsets[k + 1] - 1
        parts = zip(*(knots for knots, _ in self._rank_maps), strict=True)
        return Knots(*(np.concatenate(part) for part in parts)), first, last

    def unseen(self, cells: Floats) -> Bools:
        """Returns whether each cell holds a level unseen in training: kept, never proposed."""
        unseen: Bools = cells >= self._unseen
        return unseen

    def unplaced(self, cells: Floats) -> Bools:
        """Returns which numbers have no place on their scale, missing or unseen: (n, numeric)."""
        return (np.isnan(cells) | self.unseen(cells))[:, self.numeric]


def _missing_state(feature: Feature) -> int:
    return len(feature.categories) if feature.missing else len(feature.levels) + 1
