"""Derived columns: their inputs, the order they are computed in, and their values.

A derived column is computed from others, its *inputs*, by an expression or a Python function. Where
an input is missing it is missing; where the result is no number, or no category of the column, the
row has no value for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeAlias

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.errors import InputError, did_you_mean, first_line
from lapace.schema.expressions import Expression, LinearForm, Values, linear_form, parse
from lapace.schema.features import Feature, column_error, on_lattice

__all__ = ["Derivation", "DerivedColumns"]

Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Derivation:
    """How one column follows from others.

    Attributes:
        column: Its position.
        feature: The column.
        inputs: Positions of the columns it is computed from.
        sources: Positions of the columns it follows from in the end, none of them derived.
        compute: From values by name to values of the column.
        form: The linear form it is, perhaps rounded; None where it is none.
    """

    column: int
    feature: Feature
    inputs: Ints
    sources: Ints
    compute: Callable[[Mapping[str, Values]], Values]
    form: LinearForm | None

    def values(self, features: Sequence[Feature], cells: Floats, *, rounded: bool = True) -> Floats:
        """Returns the column's cells, given the rows' other cells; NaN where it has no value."""
        names = {features[i].name: _as_values(features[i], cells[:, i]) for i in self.inputs}
        computed = np.broadcast_to(self.compute(names), len(cells))
        missing = np.isnan(cells[:, self.inputs]).any(axis=1)
        return np.where(missing, np.nan, self._as_cells(computed, rounded))

    def _as_cells(self, values: Values, rounded: bool) -> Floats:
        if self.feature.kind != "continuous":
            codes = {_key(level): float(code) for code, level in enumerate(self.feature.levels)}
            return np.array([codes.get(_key(v), np.nan) for v in values.tolist()], dtype=np.float64)
        if values.dtype == object:
            raise column_error(self.feature.name, "holds numbers and is derived as text.")
        numbers = np.where(np.isfinite(values), values, np.nan).astype(np.float64)
        return on_lattice(numbers, self.feature.resolution if rounded else 0.0)


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
        """Returns those among some columns; refuses unknown inputs and circles."""
        names = [feature.name for feature in features]
        inputs = {f.name: f.inputs for f in features if f.derived is not None}
        for derived, several in inputs.items():
            for name in several:
                if name not in names:
                    sentence = f"is derived from '{name}', which is not in the table."
                    raise column_error(derived, sentence + did_you_mean(name, names))
        try:
            order = [name for name in TopologicalSorter(inputs).static_order() if name in inputs]
        except CycleError as error:
            circle = " → ".join(f"'{name}'" for name in error.args[1])
            raise InputError(
                f"Derived columns go round in a circle: {circle}. One of them must not be derived."
            ) from None
        sources: dict[str, tuple[str, ...]] = {}
        for name in order:
            final = [s for i in inputs[name] for s in sources.get(i, (i,))]
            sources[name] = tuple(dict.fromkeys(final))
        each = (_derivation(features, names, n, inputs[n], sources[n]) for n in order)
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
        """Returns what `Schema.derivable` does."""
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
        slopes: dict[int, dict[int, Floats]] = {}
        for derivation in self.each:
            numbers = [i for i in derivation.sources.tolist() if self._is_number(i)]
            if self._is_number(derivation.column):
                slopes[derivation.column] = {i: self._slope(cells, derivation, i) for i in numbers}
        return slopes

    def _is_number(self, column: int) -> bool:
        return self.features[column].kind == "continuous"

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


def _derivation(
    features: Sequence[Feature],
    names: list[str],
    name: str,
    inputs: Sequence[str],
    sources: Sequence[str],
) -> Derivation:
    feature = features[names.index(name)]
    form = None
    if isinstance(feature.derived, str):
        expression = parse(feature.derived)
        numbers = all(features[names.index(i)].kind == "continuous" for i in (name, *inputs))
        form = linear_form(expression) if numbers else None
        compute = _evaluated(feature, expression)
    else:
        compute = _called(feature)
    direct, final = (np.array([names.index(i) for i in some]) for some in (inputs, sources))
    return Derivation(names.index(name), feature, direct, final, compute, form)


def _evaluated(
    feature: Feature, expression: Expression
) -> Callable[[Mapping[str, Values]], Values]:
    def compute(columns: Mapping[str, Values]) -> Values:
        try:
            return expression.evaluate(columns)
        except InputError as error:
            raise column_error(feature.name, f"cannot be '{feature.derived}'. {error}") from None

    return compute


def _called(feature: Feature) -> Callable[[Mapping[str, Values]], Values]:
    function = feature.derived
    assert function is not None
    assert not isinstance(function, str)

    def compute(columns: Mapping[str, Values]) -> Values:
        try:
            with np.errstate(all="ignore"):
                values = np.asarray(function(**columns))
        except Exception as error:
            sentence = (
                f"is derived by a function that raised {type(error).__name__}: {first_line(error)} "
                "It is called with whole columns, as numpy arrays."
            )
            raise column_error(feature.name, sentence) from error
        count = len(next(iter(columns.values())))
        if values.shape not in ((), (count,)):
            sentence = f"is derived by a function that returned shape {values.shape}"
            raise column_error(feature.name, f"{sentence} for {count} rows.")
        return values.astype(object) if values.dtype.kind in "US" else values

    return compute


def _as_values(feature: Feature, cells: Floats) -> Values:
    """Returns cells as an expression sees them: numbers, or the names of categories."""
    if feature.kind == "continuous":
        return cells
    texts = any(isinstance(level, str) for level in feature.levels)
    table: Values = np.array(
        [*(str(v) if texts else float(v) for v in feature.levels), None if texts else np.nan],
        dtype=object if texts else np.float64,
    )
    return table[np.where(np.isnan(cells), -1, cells).astype(np.int64)]


def _key(value: Any) -> Any:
    return value if isinstance(value, str) or value is None else float(value)
