"""Derived columns: their inputs, the order they are computed in, and their values.

A derived column holds numbers, and is computed from others, its *inputs*, by an expression. It is
missing where an input is missing. Where the result is no number, or none of the numbers that the
column may hold, the row has no value for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.errors import InputError, did_you_mean
from lapace.schema.expressions import Expression, parse
from lapace.schema.features import Feature, column_error, on_lattice

__all__ = ["Derivation", "DerivedColumns"]

MOST_DECIMALS = 15  # places after the point that a float may have


@dataclass(frozen=True, eq=False)
class Derivation:
    """How one column follows from others.

    Attributes:
        column: Its position.
        feature: The column.
        inputs: Positions of the columns it is computed from.
        sources: Positions of the columns it follows from in the end, none of them derived.
        expression: What it is computed by.
    """

    column: int
    feature: Feature
    inputs: Ints
    sources: Ints
    expression: Expression

    def values(self, features: Sequence[Feature], cells: Floats, *, rounded: bool = True) -> Floats:
        """Returns the column's cells, given the rows' other cells; NaN where it has no value."""
        columns = {features[i].name: _as_numbers(features[i], cells[:, i]) for i in self.inputs}
        values = np.broadcast_to(self.expression.evaluate(columns), len(cells))
        missing = np.isnan(cells[:, self.inputs]).any(axis=1)
        return np.where(missing, np.nan, self._as_cells(values, rounded))

    def _as_cells(self, values: Floats, rounded: bool) -> Floats:
        if self.feature.kind != "continuous":
            codes = {level: float(code) for code, level in enumerate(self.feature.levels)}
            return np.array([codes.get(v, np.nan) for v in values.tolist()], dtype=np.float64)
        numbers: Floats = np.where(np.isfinite(values), values, np.nan)
        if self.feature.resolution or not rounded:
            return on_lattice(numbers, self.feature.resolution if rounded else 0.0)
        return numbers.round(self._decimals)

    @cached_property
    def _decimals(self) -> int:
        """The most places after the point that the training values have."""
        exact = (Decimal(repr(value)).normalize() for value in self.feature.ranks[0])
        places = [-int(value.as_tuple().exponent) for value in exact] or [MOST_DECIMALS]
        return max(0, *places)


def _as_numbers(feature: Feature, cells: Floats) -> Floats:
    """Returns cells as an expression sees them: levels that are numbers as these."""
    if feature.kind == "continuous":
        return cells
    levels = np.array([*map(float, feature.levels), np.nan])
    return levels[np.where(np.isnan(cells), -1, cells).astype(np.int64)]


@dataclass(frozen=True)
class DerivedColumns:
    """All derived columns of a schema, each after those it follows from.

    Attributes:
        features: All columns.
        each: The derived ones.
    """

    features: Sequence[Feature]
    each: tuple[Derivation, ...]

    @classmethod
    def of(cls, features: Sequence[Feature]) -> DerivedColumns:
        """Returns the derived columns among some; refuses unknown inputs, texts and circles."""
        places = {feature.name: i for i, feature in enumerate(features)}
        expressions = {f.name: parse(f.derived) for f in features if f.derived is not None}
        inputs = {name: expression.columns for name, expression in expressions.items()}
        for derived, names in inputs.items():
            for name in names:
                if name not in places:
                    sentence = f"is derived from '{name}', which is not in the table."
                    raise column_error(derived, sentence + did_you_mean(name, places))
            for name in (derived, *names):
                if any(isinstance(level, str) for level in features[places[name]].levels):
                    raise column_error(name, "holds texts. Only numbers are derived from numbers.")
        try:
            order = [name for name in TopologicalSorter(inputs).static_order() if name in inputs]
        except CycleError as error:
            circle = " → ".join(f"'{name}'" for name in error.args[1])
            raise InputError(
                f"Derived columns go round in a circle: {circle}. One of them must not be derived."
            ) from None
        each: list[Derivation] = []
        sources: dict[str, tuple[str, ...]] = {}
        for name in order:
            final = [s for i in inputs[name] for s in sources.get(i, (i,))]
            sources[name] = tuple(dict.fromkeys(final))
            each.append(
                Derivation(
                    column=places[name],
                    feature=features[places[name]],
                    inputs=np.array([places[i] for i in inputs[name]]),
                    sources=np.array([places[i] for i in sources[name]]),
                    expression=expressions[name],
                )
            )
        return cls(features, tuple(each))

    def derive(
        self,
        cells: Floats,
        originals: Floats | None,
        differs: Callable[[Floats, Floats], Bools],
    ) -> Floats:
        """Returns what `Schema.derive` does; `differs` compares rows cell by cell."""
        cells = cells.copy()
        for derivation in self.each:
            column = derivation.column
            if originals is None:
                values = derivation.values(self.features, cells)
                cells[:, column] = np.where(np.isnan(values), cells[:, column], values)
                continue
            moved = differs(cells, originals)[:, derivation.inputs].any(axis=1)
            cells[~moved, column] = originals[~moved, column]
            cells[moved, column] = derivation.values(self.features, cells[moved])
        return cells

    def derivable(self, cells: Floats, originals: Floats) -> Bools:
        """Returns whether derived cells, as `derive` made them, are values of their columns: (n,).

        They are not where nothing could be computed, or where the result lies beyond the column's
        bounds and further out than the instance's own.
        """
        derivable = np.ones(len(cells), dtype=bool)
        for derivation in self.each:
            feature, column = derivation.feature, derivation.column
            new, old = cells[:, column], originals[:, column]
            blank = np.isnan(cells[:, derivation.inputs]).any(axis=1) & feature.missing
            derivable &= ~np.isnan(new) | np.isnan(old) | blank
            if feature.kind == "continuous":
                least, greatest = np.fmin(feature.lower, old), np.fmax(feature.upper, old)
                slip = 1e-9 * feature.span
                derivable &= ~((new < least - slip) | (new > greatest + slip))
        return derivable

    def slopes(self, cells: Floats) -> dict[int, dict[int, Floats]]:
        """Returns how fast derived numbers rise with the numbers they follow from, at some rows.

        They are differences over a hundredth of the range or two steps, so that rounding to whole
        numbers does not hide them: {derived column: {source column: (n,)}}.
        """
        number = [feature.kind == "continuous" for feature in self.features]
        return {
            d.column: {i: self._slope(cells, d, i) for i in d.sources.tolist() if number[i]}
            for d in self.each
            if number[d.column]
        }

    def _slope(self, cells: Floats, derivation: Derivation, source: int) -> Floats:
        feature = self.features[source]
        width = max(feature.step, feature.span / 200)
        low, high = cells.copy(), cells.copy()
        # Inside the bounds: one step below the least number of months there may be no value.
        here = cells[:, source]
        low[:, source] = np.maximum(here - width, np.minimum(here, feature.lower))
        high[:, source] = np.minimum(here + width, np.maximum(here, feature.upper))
        apart = np.maximum(high[:, source] - low[:, source], width / 2)
        rise = self._unrounded(high, derivation) - self._unrounded(low, derivation)
        return np.nan_to_num(rise / apart)

    def _unrounded(self, cells: Floats, last: Derivation) -> Floats:
        """Returns one derived column, with those it follows from computed first."""
        for derivation in self.each[: self.each.index(last)]:
            cells[:, derivation.column] = derivation.values(self.features, cells, rounded=False)
        return last.values(self.features, cells, rounded=False)
