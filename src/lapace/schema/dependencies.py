"""Columns that follow from others in every row of a table, though nothing says so.

Looked for are linear relations (sums, differences, a copy in another unit), products and ratios of
two columns, a number in classes, and a column that another one decides. What is found holds in
every row and is too much for chance; the expression given is the one to declare.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.errors import warn
from lapace.schema import Feature, Schema
from lapace.schema.derived import DerivedColumns
from lapace.schema.expressions import column_text, parse

__all__ = ["Dependency", "find_dependencies", "warn_of_dependencies"]

ENOUGH = 50  # rows from which something can be too much for chance
BITS = 100  # how unlikely it has to be: one in 2 to the power of this
VARIED = 10  # distinct values of a number that arithmetic can explain
TERMS = 8  # of a sum, at most
COLUMNS = 60  # columns of each kind that are looked at
SCREENED = 400  # rows looked at first
KEYS, CLASSES = 30, 8  # of a lookup, of a number in classes
SHOWN = 5  # dependencies a warning names


class Dependency(NamedTuple):
    """A column, and the expression it equals in every row."""

    column: str
    expression: str


def warn_of_dependencies(schema: Schema, cells: Floats) -> None:
    """Warns of columns that follow from others, and of derived columns that do not.

    Args:
        schema: The columns.
        cells: The training rows.
    """
    if schema.shape is not None:
        return
    for derivation in schema.derived.each:
        _warn_of_difference(schema, cells, derivation.column)
    found = find_dependencies(schema, cells)
    if not found:
        return
    lines = "".join(f"\n  {column} = {text}" for column, text in found[:SHOWN])
    more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    first = found[0]
    warn(
        f"Some columns follow from others in every row:{lines}{more}\nIf that is always so, "
        "declare it, and counterfactuals keep it true. In a schema file, under "
        f"[columns.{_key(first.column)}]: derived = {json.dumps(first.expression)}; in Python "
        f"schema={{{first.column!r}: {{'derived': {first.expression!r}}}}}."
    )


def _key(name: str) -> str:
    """A column's name as TOML writes it."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _warn_of_difference(schema: Schema, cells: Floats, column: int) -> None:
    """Warns where a derived column is not what its expression says in more than a few rows."""
    found, feature = schema.derive(cells), schema.features[column]
    off = schema.differs(found, cells)[:, column] & ~np.isnan(cells[:, column])
    if off.mean() > 0.01:
        row = int(np.flatnonzero(off)[0])
        read, computed = (feature.text(float(rows[row, column])) for rows in (cells, found))
        warn(
            f"Column '{feature.name}' is declared as derived and differs from that in "
            f"{off.mean():.0%} of the rows, in row {row} {read} against {computed}."
        )


def find_dependencies(schema: Schema, cells: Floats) -> tuple[Dependency, ...]:
    """The columns that follow from others, each from columns that are not derived themselves.

    Args:
        schema: The columns.
        cells: Rows, (n, d).

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.integers(1, 99, (2, 200))
        >>> rows = [{"a": int(x), "b": int(y), "sum": int(x + y)} for x, y in zip(a, b)]
        >>> schema = Schema.infer(rows)
        >>> find_dependencies(schema, schema.cells(rows))
        (Dependency(column='sum', expression='a + b'),)
    """
    if len(cells) < ENOUGH:
        return ()
    search = _Search(schema, cells)
    search.linear()
    search.products()
    search.decided()
    return tuple(search.found)


@dataclass
class _Search:
    """A table being looked through; what is found is not looked at again."""

    schema: Schema
    cells: Floats
    found: list[Dependency] = field(default_factory=list)
    sources: dict[int, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sources |= {d.column: {*d.sources.tolist()} for d in self.schema.derived.each}
        rows = np.random.default_rng(0).permutation(len(self.cells))
        self.screened = np.sort(rows[:SCREENED])
        features = self.schema.features
        self.distinct = [
            len(np.unique(self.cells[:, i][~np.isnan(self.cells[:, i])]))
            for i in range(len(features))
        ]

    def numbers(self) -> list[int]:
        """Numbers with enough values."""
        return [
            i
            for i, f in enumerate(self.schema.features)
            if f.kind == "continuous" and self.distinct[i] >= VARIED
        ][:COLUMNS]

    def feature(self, column: int) -> Feature:
        return self.schema.features[column]

    def name(self, column: int) -> str:
        return column_text(self.feature(column).name)

    def accept(self, column: int, texts: Sequence[str]) -> bool:
        """Keeps the first expression that a column equals in every row."""
        for text in texts:
            if self.holds(column, text):
                self.found.append(Dependency(self.feature(column).name, text))
                inputs = [self.schema.index(name) for name in parse(text).columns]
                self.sources[column] = {s for i in inputs for s in self.sources_of(i)}
                return True
        return False

    def sources_of(self, column: int) -> set[int]:
        """What a column follows from, and itself."""
        return {column} | self.sources.get(column, set())

    def is_open(self, column: int, *inputs: int) -> bool:
        """Whether a column might follow from some, without a circle."""
        return column not in self.sources and all(column not in self.sources_of(i) for i in inputs)

    def holds(self, column: int, text: str) -> bool:
        """Whether a column is what an expression says, in every row that has all of its inputs."""
        features = [replace(f, derived=None) for f in self.schema.features]
        feature = features[column] = replace(features[column], derived=text)
        (derivation,) = DerivedColumns.of(features).each
        named = [column, *derivation.inputs.tolist()]
        rows = self.cells[~np.isnan(self.cells[:, named]).any(axis=1)]
        found = derivation.values(features, rows, rounded=False)  # a half may be rounded up or down
        slip = (0.5 + 1e-6) * feature.resolution or 1e-9 * feature.span
        near = np.abs(found - rows[:, column]) <= (slip if feature.kind == "continuous" else 0.0)
        return len(rows) >= ENOUGH and bool(near.all())

    # -- sums -------------------------------------------------------------------------------------

    def linear(self) -> None:
        """Each number against those before it that do not follow from others."""
        basis: list[int] = []
        for column in self.numbers():
            if column not in self.sources and not (basis and self.follows(column, basis)):
                basis.append(column)

    def follows(self, column: int, basis: list[int]) -> bool:
        rows = self.cells[self.screened][:, [*basis, column]]
        rows = rows[~np.isnan(rows).any(axis=1)]
        if len(rows) < max(ENOUGH, 4 * len(basis)):
            return False
        scale = np.maximum(rows[:, :-1].std(axis=0), 1e-12)
        matrix = np.c_[(rows[:, :-1] - rows[:, :-1].mean(axis=0)) / scale, np.ones(len(rows))]
        y = rows[:, -1]
        weights = _least_squares(matrix, y)
        half = self.feature(column).resolution or 1e-6 * self.feature(column).span
        if np.abs(matrix @ weights - y).max() > 1.5 * half:
            return False
        used = _fewest(matrix[:, :-1], y, 1.5 * half)
        if not used:
            return False
        exact = _least_squares(np.c_[rows[:, used], np.ones(len(rows))], y)
        chosen = [basis[k] for k in used]
        total = self.as_total(column, chosen, exact)
        if total is not None and self.accept(*total):
            basis.append(column)
            basis.remove(total[0])
            return True
        return self.accept(column, [*self.sums(chosen, exact)])

    def as_total(
        self, column: int, chosen: list[int], weights: Floats
    ) -> tuple[int, list[str]] | None:
        """`b = total - a` reads better as `total = a + b`."""
        ones = np.rint(weights[:-1])
        plain = np.abs(weights[:-1] - ones).max() < 0.01 and (np.abs(ones) == 1).all()
        rises = np.flatnonzero(ones > 0)
        if not plain or len(rises) != 1 or len(chosen) < 2:
            return None
        total = chosen[int(rises[0])]
        parts = [*(c for c in chosen if c != total), column]
        if total > min(parts):  # a difference of columns that come before it
            return None
        text = " + ".join(map(self.name, sorted(parts)))
        constant = -float(np.rint(weights[-1]))
        return total, [f"{text} + {constant:g}" if constant else text]

    def sums(self, chosen: list[int], weights: Floats) -> Iterator[str]:
        """The sum with weights of one to six digits."""
        for digits in range(1, 7):
            parts = []
            for column, weight in zip(chosen, weights[:-1], strict=True):
                parts.append((_number(weight, digits), self.name(column)))
            text = ""
            for weight, name in sorted(parts, key=lambda part: part[0] < 0):
                size = abs(weight)
                term = name if size == 1 else _factor(size, name)
                sign = ("-" if weight < 0 else "") if not text else " - " if weight < 0 else " + "
                text += sign + term
            for places in (0, digits):
                constant = _number(weights[-1], places) if places else 0.0
                yield text + (
                    f" {'-' if constant < 0 else '+'} {abs(constant):.12g}" * bool(constant)
                )

    # -- products ---------------------------------------------------------------------------------

    def products(self) -> None:
        """Every product and ratio of two numbers against every other, on a dozen rows first."""
        columns = self.numbers()
        complete = self.screened[~np.isnan(self.cells[self.screened][:, columns]).any(axis=1)]
        if len(columns) < 3 or len(complete) < ENOUGH:
            return
        rows = self.cells[complete[:: max(1, len(complete) // 16)]][:, columns]  # (r, c)
        with np.errstate(all="ignore"):
            forms = [*_forms(rows)]
            values = np.array([form[-1] for form in forms])  # (forms, r)
            known = np.isfinite(values).all(axis=1) & (np.ptp(values, axis=1) > 0)
        near = []
        for k, column in enumerate(columns):
            step = self.feature(column).resolution or 1e-9 * self.feature(column).span
            for at in np.flatnonzero(known & _near(values, rows[:, k], step)).tolist():
                pattern, i, j, _ = forms[at]
                used = columns[i], columns[j]
                # A column that comes after those it follows from, and those not derived, first.
                rank = column < max(used), bool(self.sources.keys() & {*used}), len(pattern)
                near.append((*rank, column, pattern, used))
        for *_, column, pattern, used in sorted(near):
            if self.is_open(column, *used):
                self.accept(column, [*self.scaled(pattern, column, *used)])

    def scaled(self, pattern: str, column: int, i: int, j: int) -> Iterator[str]:
        """A product or ratio as it is, times or over a number, rounded up or down."""
        form = pattern.format(self.name(i), self.name(j))
        with np.errstate(all="ignore"):
            value = parse(form).evaluate({self.feature(c).name: self.cells[:, c] for c in (i, j)})
        known = np.isfinite(value) & ~np.isnan(self.cells[:, column])
        top = int(np.where(known, np.abs(value), -1.0).argmax())
        factor = float(self.cells[top, column] / value[top]) if value[top] else 0.0
        if not np.isfinite(factor) or not factor:
            return
        texts = [form]
        for digits in range(1, 6):
            times, over = _number(factor, digits), _number(1 / factor, digits)
            texts += [f"{times:.12g} * {form}" if times != 1 else form]
            texts += [f"{form} / {over:.12g}" if over != 1 else form]
        for text in dict.fromkeys(texts):
            yield text
            if self.feature(column).resolution == 1:
                yield from (f"ceil({text})", f"floor({text})")

    # -- columns that another decides -------------------------------------------------------------

    def decided(self) -> None:
        """Each column of few values against every other column."""
        every = [*range(len(self.schema.features))][: 2 * COLUMNS]
        few = [i for i in every if 2 <= self.distinct[i] <= KEYS]
        codes = {i: self.codes(i, self.screened) for i in every}
        maybe = _candidates(np.stack([codes[i] for i in every], axis=1))  # (by, column)
        for column in few:
            for by in np.flatnonzero(maybe[:, column]).tolist():
                if not self.is_open(column, by):
                    continue
                if self.is_flag(column) and self.is_flag(by):
                    continue  # one category in several columns is tied by a rule
                if by > column and self.mutual(codes[by], codes[column]):
                    continue  # of two that say the same the later one follows
                classes = self.feature(by).kind == "continuous"
                test = _classes if classes else _decides
                if test(codes[by], codes[column]) or _decides(codes[by], codes[column]):
                    self.accept(column, [*self.rules(column, by)])

    def is_flag(self, column: int) -> bool:
        levels = self.feature(column).levels
        return len(levels) == 2 and all(level in (0, 1) for level in levels)

    def codes(self, column: int, rows: Ints) -> Ints:
        """The column's values as whole numbers from 0; -1 where missing."""
        cells = self.cells[rows, column]
        known = ~np.isnan(cells)
        codes = np.full(len(cells), -1, dtype=np.int64)
        codes[known] = np.unique(cells[known], return_inverse=True)[1]
        return codes

    def mutual(self, a: Ints, b: Ints) -> bool:
        return _decides(a, b) and _decides(b, a)

    def rules(self, column: int, by: int) -> Iterator[str]:
        """The classes of a number, or a value for each key."""
        rows = np.flatnonzero(~np.isnan(self.cells[:, [column, by]]).any(axis=1))
        keys, values = self.cells[rows, by], self.cells[rows, column]
        each, first = np.unique(keys, return_index=True)
        found = values[first]
        if self.feature(by).kind == "continuous":
            starts = np.flatnonzero(np.r_[True, found[1:] != found[:-1]])
            if 1 < len(starts) <= CLASSES:
                text = self.literal(column, found[starts[-1]])
                for at in reversed(starts[1:].tolist()):
                    then = self.literal(column, found[at - 1])
                    bound = _between(each[at - 1], each[at])
                    text = f"if({self.name(by)} < {bound!r}, {then}, {text})"
                yield text
                return
        if len(each) <= KEYS and len(np.unique(found)) > 1:
            pairs = (
                f"{self.literal(by, k)}, {self.literal(column, v)}"
                for k, v in zip(each.tolist(), found.tolist(), strict=True)
            )
            yield f"lookup({self.name(by)}, {', '.join(pairs)})"

    def literal(self, column: int, cell: float) -> str:
        """A value as an expression writes it."""
        feature = self.feature(column)
        value = feature.levels[int(cell)] if feature.categories else cell
        if isinstance(value, str) or any(isinstance(level, str) for level in feature.levels):
            return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
        return f"{float(value):.12g}"


def _least_squares(matrix: Floats, y: Floats) -> Floats:
    return np.asarray(np.linalg.lstsq(matrix, y, rcond=None)[0], dtype=np.float64)


def _fewest(matrix: Floats, y: Floats, slip: float) -> list[int]:
    """Few columns of a matrix that y is a sum of, up to rounding; none where many are needed.

    Each time the column that explains most of what is left, as in orthogonal matching pursuit:
    columns that nearly cancel each other are then not taken for terms.
    """
    used: list[int] = []
    left = y - y.mean()
    while len(used) < min(TERMS, matrix.shape[1]):
        gain = np.abs(left @ matrix)
        gain[used] = -1.0
        used.append(int(gain.argmax()))
        some = np.c_[matrix[:, used], np.ones(len(y))]
        left = y - some @ _least_squares(some, y)
        if np.abs(left).max() <= slip:
            return sorted(used)
    return []


def _number(value: float, digits: int) -> float:
    """A number to some significant digits."""
    return float(f"{value:.{digits}g}")


def _between(low: float, high: float) -> float:
    """The shortest number over one and up to another."""
    bounds = (_number(value, d) for d in range(1, 18) for value in (high, (low + high) / 2))
    found = next((value for value in bounds if low < value <= high), float(high))
    return int(found) if found.is_integer() else found


def _factor(size: float, name: str) -> str:
    """A factor, as a division where that is the rounder number."""
    over = 1 / size
    return f"{name} / {over:.0f}" if size < 1 and over == round(over) else f"{size:.12g}*{name}"


def _forms(rows: Floats) -> Iterator[tuple[str, int, int, Floats]]:
    """Products and ratios of two columns, as text with places for their names, and values."""
    for i in range(rows.shape[1]):
        for j in range(rows.shape[1]):
            a, b = rows[:, i], rows[:, j]
            if i < j:
                yield "{} * {}", i, j, a * b
            if i != j:
                yield "{} / {}", i, j, a / b
                yield "{} / {}^2", i, j, a / b**2


def _near(values: Floats, y: Floats, step: float) -> Bools:
    """Which forms are y, up to a factor and rounding."""
    top = np.abs(values).argmax(axis=1)
    with np.errstate(all="ignore"):
        factor = y[top] / values[np.arange(len(values)), top]
        near: Bools = (np.abs(factor[:, None] * values - y) <= 2 * step).all(axis=1)
    return near & (np.ptp(y) > 4 * step)


def _candidates(codes: Ints) -> Bools:
    """Which columns, (by, column), might be decided by which, all at once."""
    maybe = np.zeros((codes.shape[1],) * 2, dtype=bool)
    for by in range(codes.shape[1]):
        rows = codes[np.argsort(codes[:, by], kind="stable")]
        both = (rows[1:] >= 0) & (rows[:-1] >= 0)
        moves = (rows[1:] != rows[:-1]) & both
        same = ~moves[:, by] & both[:, by]
        maybe[by] = ~moves[same].any(axis=0) | (moves.sum(axis=0) < CLASSES)
    return maybe


def _classes(keys: Ints, values: Ints) -> bool:
    """Whether values change with the order of the keys, less often than chance would have it."""
    known = (keys >= 0) & (values >= 0)
    order = np.argsort(keys[known], kind="stable")
    sorted_values = values[known][order]
    runs = 1 + int((sorted_values[1:] != sorted_values[:-1]).sum())
    if len(order) < ENOUGH or runs > CLASSES:
        return False
    return bool(len(order) * _entropy(sorted_values) - runs * np.log2(len(order)) >= BITS)


def _entropy(values: Ints) -> float:
    """Of the values of one row, in bits."""
    share = np.unique(values, return_counts=True)[1] / len(values)
    return float(-(share * np.log2(share)).sum())


def _decides(keys: Ints, values: Ints) -> bool:
    """Whether each key has one value, in more rows than chance would leave."""
    known = (keys >= 0) & (values >= 0)
    keys, values = keys[known], values[known]
    if len(keys) < ENOUGH:
        return False
    pairs = len(np.unique(keys * (values.max() + 1) + values))
    groups = len(np.unique(keys))
    return pairs == groups and (len(keys) - groups) * _entropy(values) >= BITS
