"""Distances and local outlier factors computed anew, with nothing from the library's own distance.

Numbers are measured on one of two scales: over the range of training, or in percentiles of the
training rows. Which of them the library itself goes by is asked of its schema.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from scipy.spatial.distance import cdist

from lapace.arrays import Bools, Floats
from lapace.schema import Schema

__all__ = ["Outliers", "Percentiles", "Scale", "derived", "differing", "distances", "gaps"]

NEIGHBOURS, SAMPLE = 20, 5000  # of the local outlier factor: as in the library; rows compared with


def derived(schema: Schema) -> Bools:
    """Columns that follow from others."""
    return np.array([f.derived is not None for f in schema.features])


def differing(a: Floats, b: Floats) -> Bools:
    """Where cells are not the same value.

    Examples:
        >>> differing(np.array([1.0, np.nan, 2.0]), np.array([1.0, np.nan, np.nan])).tolist()
        [False, False, True]
    """
    different: Bools = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    return different


def _spans(schema: Schema) -> Floats:
    return np.array([f.upper - f.lower or 1.0 if f.numeric else np.inf for f in schema.features])


@dataclass(frozen=True, eq=False)
class Percentiles:
    """Numbers as mid-rank percentiles among the training rows, from 0 to 1.

    Of a value training has: the share below it and half the share equal to it. Between such
    values a straight line, beyond them the value at the end and the distance to it over the range.

    Attributes:
        schema: The columns.
        rows: Cells of the training rows.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.0], [1.0], [10.0]]))
        >>> places = Percentiles(schema, np.array([[0.0], [1.0], [1.0], [10.0]]))
        >>> places(np.array([[0.0], [1.0], [5.5], [11.0], [np.nan]]))[:, 0].tolist()
        [0.125, 0.5, 0.6875, 0.975, nan]
    """

    schema: Schema
    rows: Floats

    @cached_property
    def _known(self) -> dict[int, tuple[Floats, Floats]]:
        """The distinct values of each number, and their percentiles."""
        known = {}
        for i, feature in enumerate(self.schema.features):
            column = self.rows[:, i][~np.isnan(self.rows[:, i])]
            if feature.numeric and len(column):
                values, counts = np.unique(column, return_counts=True)
                known[i] = values, (np.cumsum(counts) - counts / 2) / len(column)
        return known

    def __call__(self, cells: Floats) -> Floats:
        """The cells with every number replaced by its percentile."""
        placed, spans = cells.copy(), _spans(self.schema)
        for i, (values, places) in self._known.items():
            column = cells[..., i]
            beyond = column - np.clip(column, values[0], values[-1])
            placed[..., i] = np.interp(column, values, places) + beyond / spans[i]
        return placed


Scale: TypeAlias = Callable[[Floats], Floats]


def gaps(schema: Schema, a: Floats, b: Floats, scale: Scale | None = None) -> Floats:
    """Each column's share of a distance: categories and missing cells 1, derived columns 0.

    Args:
        schema: The columns, with levels only the instances have.
        a: Cells.
        b: As many, or one row.
        scale: What numbers are measured on; over the range of training where that is None.
    """
    levels = np.array([len(f.categories) if f.categories else np.inf for f in schema.features])
    numeric = np.array([f.numeric for f in schema.features])
    placed = numeric & ~np.isnan(a) & ~np.isnan(b) & (a < levels) & (b < levels)
    apart = np.abs(a - b) / _spans(schema) if scale is None else np.abs(scale(a) - scale(b))
    # Else a category changed, a cell is missing, or a level is one nobody has seen.
    return np.where(derived(schema), 0.0, np.where(placed, apart, differing(a, b)))


def distances(schema: Schema, a: Floats, b: Floats, scale: Scale | None = None) -> Floats:
    """The sum of `gaps`.

    Examples:
        >>> schema = Schema.infer([{"age": 20 + i, "home": "ab"[i % 2]} for i in range(41)])
        >>> distances(schema, np.array([[30.0, 0.0]]), np.array([[40.0, 1.0]]))
        array([1.25])
    """
    return np.asarray(gaps(schema, a, b, scale).sum(axis=-1))


@dataclass(frozen=True, eq=False)
class Outliers:
    """The local outlier factor of rows among others, by a distance of this module.

    Attributes:
        schema: The columns.
        rows: Cells of the rows compared with; of many a sample.
        scale: What numbers are measured on; over the range of training where that is None.

    Examples:
        >>> rows = np.linspace(0.0, 2.5, 101)[:, None]
        >>> near, far = Outliers(Schema.infer(rows), rows)(np.array([[1.26], [4.0]]))
        >>> bool(near < 1.1 < far)
        True
    """

    schema: Schema
    rows: Floats
    scale: Scale | None = None

    def __call__(self, cells: Floats) -> Floats:
        """One number per row, 1 inside, larger outside; NaN with fewer than two rows."""
        rows, kth, density = self._local
        if len(rows) < 2 or not len(cells):
            return np.full(len(cells), np.nan)
        far = self._pairwise(self._embedded(cells), rows)
        nearest = np.argsort(far, axis=1, kind="stable")[:, : self._count(rows)]
        reach = np.maximum(np.take_along_axis(far, nearest, axis=1), kth[nearest])
        return np.asarray(density[nearest].mean(axis=1) * reach.mean(axis=1))

    @staticmethod
    def _count(rows: Floats) -> int:
        return min(NEIGHBOURS, len(rows) - 1)

    @cached_property
    def _local(self) -> tuple[Floats, Floats, Floats]:
        """The distinct rows, the distance to their k-th neighbour, and their density."""
        rows = np.unique(self._embedded(self.rows), axis=0)
        if len(rows) > SAMPLE:
            rows = np.random.default_rng(0).choice(rows, SAMPLE, replace=False)
        count = self._count(rows)
        if count < 1:
            return rows, np.zeros(0), np.zeros(0)
        far = self._pairwise(rows, rows)
        np.fill_diagonal(far, np.inf)
        nearest = np.argpartition(far, count - 1, axis=1)[:, :count]
        near = np.take_along_axis(far, nearest, axis=1)
        kth = near.max(axis=1)
        reach = np.maximum(near, kth[nearest]).mean(axis=1)
        return rows, kth, 1 / np.maximum(reach, 1e-12)

    def _embedded(self, cells: Floats) -> Floats:
        """Numbers (0 where unknown), then which of them are unknown, then halves per category."""
        scaled = cells / _spans(self.schema) if self.scale is None else self.scale(cells)
        numbers, categories = [], []
        for i, feature in enumerate(self.schema.features):
            column, levels = cells[:, i], len(feature.categories)
            if feature.derived is not None:
                continue
            if feature.numeric:
                numbers.append(np.where(levels and column >= levels, np.nan, scaled[:, i]))
            else:
                known = np.nan_to_num(column, nan=levels)[:, None]
                categories.append(np.minimum(known, levels) == np.arange(levels + 1))
        placed = np.array(numbers).reshape(len(numbers), len(cells)).T
        unknown = np.isnan(placed)
        return np.hstack([np.where(unknown, 0.0, placed), unknown, *(0.5 * c for c in categories)])

    def _pairwise(self, a: Floats, b: Floats) -> Floats:
        """Every row against every row: an unknown number is 1 away from a known one."""
        n = sum(f.numeric and f.derived is None for f in self.schema.features)
        g, h = a[:, n : 2 * n], b[:, n : 2 * n]
        rest_a, rest_b = np.delete(a, slice(n, 2 * n), 1), np.delete(b, slice(n, 2 * n), 1)
        far = cdist(rest_a, rest_b, "cityblock")
        if g.any() or h.any():
            far += ((1 - g) * (1 - np.abs(a[:, :n]))) @ h.T
            far += g @ ((1 - h) * (1 - np.abs(b[:, :n]))).T
        return np.maximum(far, 0.0)
