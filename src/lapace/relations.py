"""Columns that follow from others in every row of a table, though nothing says so.

The search looks for linear relations (sums, differences, a copy in another unit), products and
ratios of two columns, a number in classes, and a column that another one decides. A relation that
is found holds in every row and is too much for chance; its expression is the one to declare.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, permutations
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import cohen_kappa_score

from lapace.arrays import Floats, Ints
from lapace.errors import warn
from lapace.schema import Feature, Schema
from lapace.schema.derived import DerivedColumns
from lapace.schema.expressions import column_text, parse
from lapace.schema.summary import toml_key
from lapace.table import spelling

__all__ = ["Relation", "find_relations", "warn_of_leaks", "warn_of_relations"]

YES_NO = ({"0", "1"}, {"false", "true"}, {"no", "yes"}, {"n", "y"})  # values of many features too
MIN_KAPPA = 0.4  # Cohen's kappa from which a column may be the label itself
ENOUGH = 50  # rows from which something can be too much for chance
BITS = 100  # how unlikely it has to be: one in 2 to the power of this
VARIED = 10  # distinct values of a number that arithmetic can explain
TERMS = 8  # of a sum, at most
COLUMNS = 60  # columns of each kind that are looked at
SCREENED = 400  # rows looked at first
KEYS, CLASSES = 30, 8  # of a lookup, of a number in classes
SHOWN = 5  # relations a warning names


class Relation(NamedTuple):
    """A column, and the expression it equals in every row."""

    column: str
    expression: str


def warn_of_relations(schema: Schema, cells: Floats) -> None:
    """Warns of columns that follow from others, and of derived columns that do not.

    Args:
        schema: The columns.
        cells: The training rows.
    """
    if schema.shape is not None:
        return
    for derivation in schema.derived.each:
        _warn_of_difference(schema, cells, derivation.column)
    relations = find_relations(schema, cells)
    if not relations:
        return
    lines = "".join(f"\n  {column} = {text}" for column, text in relations[:SHOWN])
    more = f"\n  and {len(relations) - SHOWN} more" if len(relations) > SHOWN else ""
    column, expression = relations[0]
    warn(
        f"Some columns follow from others in every row:{lines}{more}\nIf that is always so, "
        "declare it, and counterfactuals keep it true. In a schema file, under "
        f"[columns.{toml_key(column)}]: derived = {json.dumps(expression)}; in Python "
        f"schema={{{column!r}: {{'derived': {expression!r}}}}}."
    )


def _warn_of_difference(schema: Schema, cells: Floats, column: int) -> None:
    """Warns where a derived column is not what its expression says in more than a few rows."""
    derived, feature = schema.derive(cells), schema.features[column]
    off = schema.differs(derived, cells)[:, column] & ~np.isnan(cells[:, column])
    if off.mean() > 0.01:
        row = int(np.flatnonzero(off)[0])
        read, computed = (feature.text(float(rows[row, column])) for rows in (cells, derived))
        warn(
            f"Column '{feature.name}' is declared as derived and differs from that in "
            f"{off.mean():.0%} of the rows, in row {row} {read} against {computed}."
        )


def find_relations(schema: Schema, cells: Floats) -> tuple[Relation, ...]:
    """Returns the columns that follow from others, each without a circle.

    Args:
        schema: The columns.
        cells: Rows, (n, d).

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.integers(1, 99, (2, 200))
        >>> rows = [{"a": int(x), "b": int(y), "sum": int(x + y)} for x, y in zip(a, b)]
        >>> schema = Schema.infer(rows)
        >>> find_relations(schema, schema.cells(rows))
        (Relation(column='sum', expression='a + b'),)
    """
    if len(cells) < ENOUGH:
        return ()
    search = _Search(schema, cells)
    for column, expressions in chain(search.sums(), search.products(), search.decisions()):
        search.accept(column, expressions)
    return tuple(search.relations)


@dataclass
class _Search:
    """A table being looked through; a column that follows from others is not looked at again.

    Attributes:
        relations: The relations found so far.
        sources: What each column that follows from others follows from.
    """

    schema: Schema
    cells: Floats
    relations: list[Relation] = field(default_factory=list)
    sources: dict[int, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sources |= {d.column: {*d.sources.tolist()} for d in self.schema.derived.each}
        rows = np.sort(np.random.default_rng(0).permutation(len(self.cells))[:SCREENED])
        self.screened = self.cells[rows]
        distinct = [len(np.unique(column[~np.isnan(column)])) for column in self.cells.T]
        kinds = [f.kind == "continuous" for f in self.schema.features]
        varied = [i for i, number in enumerate(kinds) if number and distinct[i] >= VARIED]
        self.numbers = varied[:COLUMNS]
        self.few = [i for i, count in enumerate(distinct) if 2 <= count <= KEYS][:COLUMNS]

    def feature(self, column: int) -> Feature:
        return self.schema.features[column]

    def name(self, column: int) -> str:
        return column_text(self.feature(column).name)

    def step(self, column: int) -> float:
        return self.feature(column).resolution or 1e-6 * self.feature(column).span

    def sources_of(self, column: int) -> set[int]:
        """Returns what a column follows from, and the column."""
        return {column} | self.sources.get(column, set())

    def is_open(self, column: int, *inputs: int) -> bool:
        """Returns whether a column might follow from some, without a circle."""
        return column not in self.sources and all(column not in self.sources_of(i) for i in inputs)

    def accept(self, column: int, expressions: Iterable[str]) -> None:
        """Keeps the first expression that a column equals in every row."""
        text = next((text for text in expressions if self.holds(column, text)), None)
        if text is not None:
            self.relations.append(Relation(self.feature(column).name, text))
            inputs = [self.schema.index(name) for name in parse(text).columns]
            self.sources[column] = {s for i in inputs for s in self.sources_of(i)}

    def holds(self, column: int, text: str) -> bool:
        """Returns whether a column equals an expression in every row that has all of its inputs."""
        features = [replace(f, derived=None) for f in self.schema.features]
        feature = features[column] = replace(features[column], derived=text)
        (derivation,) = DerivedColumns.of(features).each
        named = [column, *derivation.inputs.tolist()]
        rows = self.cells[~np.isnan(self.cells[:, named]).any(axis=1)]
        values = derivation.values(features, rows, rounded=False)  # a half may go up or down
        slip = (0.5 + 1e-6) * feature.resolution or 1e-9 * feature.span
        near = np.abs(values - rows[:, column]) <= (slip if feature.kind == "continuous" else 0.0)
        return len(rows) >= ENOUGH and bool(near.all())

    # -- sums -------------------------------------------------------------------------------------

    def sums(self) -> Iterator[tuple[int, Iterable[str]]]:
        """Yields each number with sums of those before it that do not follow from others."""
        basis: list[int] = []
        for column in self.numbers:
            if column not in self.sources and basis:
                yield column, self.sum_of(column, basis)
            if column not in self.sources:
                basis.append(column)

    def sum_of(self, column: int, basis: list[int]) -> Iterator[str]:
        """Yields the sum that a column might be, with weights of one to six digits."""
        rows = self.screened[:, [*basis, column]]
        rows = rows[~np.isnan(rows).any(axis=1)]
        if len(rows) < max(ENOUGH, 4 * len(basis)):
            return
        used = _terms(rows[:, :-1], rows[:, -1], 1.5 * self.step(column))
        names = [self.name(basis[k]) for k in used]
        weights = _least_squares(rows[:, used], rows[:, -1])
        for digits in range(1, 7) if used else ():
            pairs = zip((_rounded(w, digits) for w in weights[:-1]), names, strict=True)
            terms = [_term(w, name) for w, name in sorted(pairs, key=lambda pair: pair[0] < 0)]
            constant = _rounded(weights[-1], digits)
            for parts in (terms, [*terms, f"{constant:.12g}"]):
                yield " + ".join(parts).replace("+ -", "- ")

    # -- products ---------------------------------------------------------------------------------

    def products(self) -> Iterator[tuple[int, Iterable[str]]]:
        """Yields numbers with products and ratios of two others that are near on a few rows."""
        complete = self.screened[~np.isnan(self.screened[:, self.numbers]).any(axis=1)]
        if len(self.numbers) < 3 or len(complete) < ENOUGH:
            return
        rows = complete[:: max(1, len(complete) // 16)]
        near = []
        with np.errstate(all="ignore"):
            for i, j in permutations(self.numbers, 2):
                a, b = rows[:, i], rows[:, j]
                forms = {"{} / {}": a / b, "{} / {}^2": a / b**2, "{} * {}": a * b}
                for form, values in forms.items():
                    if ("*" in form and i > j) or not np.isfinite(values).all():
                        continue
                    for column in self.proportional(values, rows):
                        # A column that comes after those it follows from, and those not derived.
                        rank = column < max(i, j), bool(self.sources.keys() & {i, j}), len(form)
                        near.append((*rank, column, form, i, j))
        for *_, column, form, i, j in sorted(near):
            if self.is_open(column, i, j):
                yield column, self.scaled(column, form.format(self.name(i), self.name(j)), i, j)

    def proportional(self, values: Floats, rows: Floats) -> list[int]:
        """Returns the numbers that values are on some rows, up to a factor and rounding."""
        top = int(np.abs(values).argmax())
        numbers = rows[:, self.numbers]  # (rows, numbers)
        apart = np.abs(numbers[top] / values[top] * values[:, None] - numbers).max(axis=0)
        steps = np.array([self.step(column) for column in self.numbers])
        near = (apart <= 2 * steps) & (np.ptp(numbers, axis=0) > 4 * steps) & (np.ptp(values) > 0)
        return [self.numbers[k] for k in np.flatnonzero(near)]

    def scaled(self, column: int, form: str, *inputs: int) -> Iterator[str]:
        """Yields a form as it is, times or over a number, rounded up or down."""
        values = parse(form).evaluate({self.feature(i).name: self.cells[:, i] for i in inputs})
        present = np.isfinite(values) & ~np.isnan(self.cells[:, column])
        top = int(np.where(present, np.abs(values), -1.0).argmax())
        factor = float(self.cells[top, column] / values[top]) if values[top] else 0.0
        if not np.isfinite(factor) or not factor:
            return
        texts = [form]
        for digits in range(1, 6):
            times, over = _rounded(factor, digits), _rounded(1 / factor, digits)
            texts += [f"{times:.12g} * {form}"] * (times != 1) + [f"{form} / {over:.12g}"]
        for text in dict.fromkeys(texts):
            yield text
            if self.feature(column).resolution == 1:
                yield from (f"ceil({text})", f"floor({text})")

    # -- columns that another decides -------------------------------------------------------------

    def decisions(self) -> Iterator[tuple[int, Iterable[str]]]:
        """Yields each column of few values with the columns that may decide it."""
        every = range(min(2 * COLUMNS, len(self.schema.features)))
        codes = {i: _codes(self.screened[:, i]) for i in every}
        flags = {i for i in every if {*self.feature(i).levels} == {0, 1}}
        for column in set(self.few) & set(every):
            for by in every:
                if not self.is_open(column, by) or {column, by} <= flags:
                    continue  # one category in several columns is tied by a rule
                decides = _decides(codes[by], codes[column])
                if by > column and decides and _decides(codes[column], codes[by]):
                    continue  # of two that say the same the later one follows
                number = self.feature(by).kind == "continuous"
                if decides or (number and _in_classes(codes[by], codes[column])):
                    yield column, self.rules(column, by)

    def rules(self, column: int, by: int) -> Iterator[str]:
        """Yields the classes of a number, or a value for each key."""
        rows = self.cells[~np.isnan(self.cells[:, [column, by]]).any(axis=1)]
        keys, first = np.unique(rows[:, by], return_index=True)
        values = rows[first, column]
        starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
        if self.feature(by).kind == "continuous" and 1 < len(starts) <= CLASSES:
            text = self.literal(column, values[-1])
            for start in reversed(starts[1:].tolist()):
                bound = _between(keys[start - 1], keys[start])
                then = self.literal(column, values[start - 1])
                text = f"if({self.name(by)} < {bound!r}, {then}, {text})"
            yield text
        elif len(keys) <= KEYS and len(starts) > 1:
            pairs = zip(keys.tolist(), values.tolist(), strict=True)
            texts = (f"{self.literal(by, k)}, {self.literal(column, v)}" for k, v in pairs)
            yield f"lookup({self.name(by)}, {', '.join(texts)})"

    def literal(self, column: int, cell: float) -> str:
        """Returns a value as an expression writes it."""
        levels = self.feature(column).levels
        value = levels[int(cell)] if levels else cell
        if any(isinstance(level, str) for level in levels):
            return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
        return f"{float(value):.12g}"


def _least_squares(matrix: Floats, y: Floats) -> Floats:
    """Returns the weights of a matrix' columns and a constant."""
    with_constant = np.c_[matrix, np.ones(len(y))]
    return np.asarray(np.linalg.lstsq(with_constant, y, rcond=None)[0], dtype=np.float64)


def _terms(matrix: Floats, y: Floats, slip: float) -> list[int]:
    """Returns few columns of a matrix that y is a sum of, up to rounding, or none.

    Each time the column that explains most of the rest joins, as in orthogonal matching pursuit:
    columns that nearly cancel each other are then not taken for terms.
    """
    scaled = (matrix - matrix.mean(axis=0)) / np.maximum(matrix.std(axis=0), 1e-12)
    used: list[int] = []
    rest = y - y.mean()
    while len(used) < min(TERMS, matrix.shape[1]):
        gain = np.abs(rest @ scaled)
        gain[used] = -1.0
        used.append(int(gain.argmax()))
        some = scaled[:, used]
        rest = y - np.c_[some, np.ones(len(y))] @ _least_squares(some, y)
        if np.abs(rest).max() <= slip:
            return sorted(used)
    return []


def _rounded(value: float, digits: int) -> float:
    """Returns a number to some significant digits."""
    return float(f"{value:.{digits}g}")


def _term(weight: float, name: str) -> str:
    """Returns a term of a sum, as a division where that is the rounder number."""
    size, sign = abs(weight), "-" if weight < 0 else ""
    if size == 1:
        return sign + name
    over = 1 / size if size else 0.0
    whole = over > 1 and over == round(over)
    return f"{sign}{name} / {over:.0f}" if whole else f"{weight:.12g}*{name}"


def _between(low: float, high: float) -> float:
    """Returns the shortest number over one and up to another."""
    bounds = (_rounded(value, d) for d in range(1, 18) for value in (high, (low + high) / 2))
    bound = next((value for value in bounds if low < value <= high), float(high))
    return int(bound) if bound.is_integer() else bound


def _codes(cells: Floats) -> Ints:
    """Returns values as whole numbers from 0; -1 where missing."""
    codes = np.unique(cells, return_inverse=True)[1].astype(np.int64)
    return np.where(np.isnan(cells), -1, codes)


def _both(keys: Ints, values: Ints) -> tuple[Ints, Ints]:
    present = (keys >= 0) & (values >= 0)
    return keys[present], values[present]


def _in_classes(keys: Ints, values: Ints) -> bool:
    """Returns whether values change with the order of the keys, less often than by chance."""
    keys, values = _both(keys, values)
    ordered = values[np.argsort(keys, kind="stable")]
    runs = 1 + int((ordered[1:] != ordered[:-1]).sum())
    if len(ordered) < ENOUGH or runs > CLASSES:
        return False
    return bool(len(ordered) * _entropy(ordered) - runs * np.log2(len(ordered)) >= BITS)


def _decides(keys: Ints, values: Ints) -> bool:
    """Returns whether each key has one value, in more rows than chance would leave."""
    keys, values = _both(keys, values)
    if len(keys) < ENOUGH:
        return False
    pairs, groups = len(np.unique(keys * (values.max() + 1) + values)), len(np.unique(keys))
    return pairs == groups and (len(keys) - groups) * _entropy(values) >= BITS


def _entropy(values: Ints) -> float:
    """Returns the entropy of one row's value, in bits."""
    share = np.unique(values, return_counts=True)[1] / len(values)
    return float(-(share * np.log2(share)).sum())


# ------------------------------------------------------------------------------------------------
# The label among the columns


def warn_of_leaks(schema: Schema, cells: Floats, labels: Sequence[Any], codes: Ints) -> None:
    """Warns of columns that look like the label itself, left in the table.

    Their values are the labels and agree with the classifier as well as a fair classifier agrees
    with the truth. Yes and no are values of many a feature: there it takes more.
    """
    names = [spelling(label) for label in labels]
    least = 0.9 if {name.lower() for name in names} in YES_NO else 0.75
    for i, feature in enumerate(schema.features):
        values = np.unique(cells[:, i])
        if len(values) != len(names) or np.isnan(values).any():
            continue
        texts = [
            spelling(feature.levels[int(v)] if feature.categories else float(v)) for v in values
        ]
        if len(names) < 2 or set(texts) != set(names):
            continue
        places = np.array([names.index(text) for text in texts])
        column = places[np.searchsorted(values, cells[:, i])]
        agrees = (column == codes).mean() >= least
        # Two rare values agree most of the time by chance alone.
        if agrees and cohen_kappa_score(column, codes) >= MIN_KAPPA:
            warn(
                f"Column '{feature.name}' has exactly the classifier's labels as its values. If it "
                "is what the classifier predicts, leave it out of the table (--label on the "
                "command line)."
            )
