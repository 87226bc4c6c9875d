"""Relations between the columns of a training table: rules, and warnings.

Columns that hold one category between them get a rule: exactly one of them is set.

A column that is a sum of others, or a product or ratio of two, in every row, though nothing says
so, had better be declared as derived. The search proposes expressions on a few rows and keeps one
that holds in all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import cohen_kappa_score

from lapace.arrays import Floats, Ints
from lapace.constraints import Comparison, Constraint, Linear, Term
from lapace.errors import warn
from lapace.schema import Feature, Schema
from lapace.schema.derived import DerivedColumns
from lapace.schema.expressions import column_text
from lapace.schema.summary import toml_key
from lapace.table import spelling

__all__ = ["Relation", "find_relations", "one_hot_rules", "warn_of_leaks", "warn_of_relations"]

YES_NO = ({"0", "1"}, {"false", "true"}, {"no", "yes"}, {"n", "y"})  # values of many features too
MIN_KAPPA = 0.4  # Cohen's kappa from which a column may be the label itself
ENOUGH = 50  # rows from which something can be too much for chance
VARIED = 10  # distinct values of a number that arithmetic can explain
TERMS = 8  # of a sum, at most
COLUMNS = 60  # columns that are looked at
SCREENED = 400  # rows looked at first
SHOWN = 5  # relations a warning names
STEM = re.compile(r"(.+?)[_.=: -]+[^_.=: -]+(?:[_ -][^_.=: -]+)*?$")  # `home` of `home_own`


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
    for column in search.numbers:
        search.accept(column, search.sums(column))
    for column, mark, i, j in search.products():
        if len({column, i, j} - search.following) == 3:
            search.accept(column, search.scaled(column, mark, i, j))
    return tuple(search.relations)


class _Search:
    """A table being looked through; what follows from others is no input of another relation.

    Attributes:
        numbers: Positions of the columns of numbers that arithmetic can explain.
        following: Positions of the columns that follow from others.
        relations: The relations accepted so far.
    """

    def __init__(self, schema: Schema, cells: Floats) -> None:
        self.schema, self.cells = schema, cells
        rows = np.sort(np.random.default_rng(0).permutation(len(cells))[:SCREENED])
        self.screened = cells[rows]
        self.numbers = [
            i
            for i, feature in enumerate(schema.features)
            if feature.kind == "continuous"
            and feature.derived is None
            and len(np.unique(cells[~np.isnan(cells[:, i]), i])) >= VARIED
        ][:COLUMNS]
        self.names = [column_text(name) for name in schema.names]
        self.following: set[int] = set()
        self.relations: list[Relation] = []

    def accept(self, column: int, expressions: Iterable[str]) -> None:
        """Keeps the first expression that a column equals in every row."""
        text = next((text for text in expressions if self.holds(column, text)), None)
        if text is not None:
            self.relations.append(Relation(self.schema.names[column], text))
            self.following.add(column)

    def holds(self, column: int, text: str) -> bool:
        """Returns whether a column equals an expression in every row that has all of its inputs."""
        features = [replace(f, derived=None) for f in self.schema.features]
        feature = features[column] = replace(features[column], derived=text)
        (derivation,) = DerivedColumns.of(features).each
        named = [column, *derivation.inputs.tolist()]
        rows = self.cells[~np.isnan(self.cells[:, named]).any(axis=1)]
        values = derivation.values(features, rows, rounded=False)  # a half may go up or down
        slip = (0.5 + 1e-6) * feature.resolution or 1e-9 * feature.span
        return len(rows) >= ENOUGH and bool((np.abs(values - rows[:, column]) <= slip).all())

    def sums(self, column: int) -> Iterator[str]:
        """Yields sums of earlier columns that one might be, with weights of one to six digits."""
        earlier = [i for i in self.numbers if i < column and i not in self.following]
        rows = self.screened[:, [*earlier, column]]
        rows = rows[~np.isnan(rows).any(axis=1)]
        if not earlier or len(rows) < max(ENOUGH, 4 * len(earlier)):
            return
        used = _terms(rows[:, :-1], rows[:, -1], 1.5 * self.schema.features[column].step)
        names = [*(self.names[earlier[k]] for k in used), ""]  # the constant has no name
        weights = _least_squares(rows[:, used], rows[:, -1])
        for digits in range(1, 7) if used else ():
            terms = [(float(f"{w:.{digits}g}"), n) for w, n in zip(weights, names, strict=True)]
            yield _sum(terms[:-1])
            yield _sum(terms)

    def products(self) -> list[tuple[Any, ...]]:
        """Returns columns that are near a ratio or product of two others on a few rows.

        Each is (column, `/` or `*`, first input, second input).
        """
        complete = self.screened[~np.isnan(self.screened[:, self.numbers]).any(axis=1)]
        if len(self.numbers) < 3 or len(complete) < ENOUGH:
            return []
        rows = complete[:: max(1, len(complete) // 16)]
        numbers = rows[:, self.numbers]  # (rows, numbers)
        steps = np.array([self.schema.features[i].step for i in self.numbers])
        varied = np.ptp(numbers, axis=0) > 4 * steps
        near = []
        with np.errstate(all="ignore"):
            for i, j in permutations(self.numbers, 2):
                ratio, product = rows[:, i] / rows[:, j], rows[:, i] * rows[:, j]
                for mark, values in (("/", ratio), ("*", product))[: 1 + (i < j)]:
                    if not np.isfinite(values).all() or not np.ptp(values):
                        continue
                    top = int(np.abs(values).argmax())
                    apart = np.abs(numbers[top] / values[top] * values[:, None] - numbers)
                    for k in np.flatnonzero((apart.max(axis=0) <= 2 * steps) & varied):
                        # First the columns that come after those they follow from.
                        column = self.numbers[k]
                        near.append((column < max(i, j), column, mark, i, j))
        return [tuple(each) for _, *each in sorted(near)]

    def scaled(self, column: int, mark: str, i: int, j: int) -> Iterator[str]:
        """Yields a ratio or product as it is, times a number, rounded up or down."""
        values, a, b = (self.screened[:, k] for k in (column, i, j))
        with np.errstate(all="ignore"):
            factors = values / (a * b if mark == "*" else a / b)
        factors = factors[np.isfinite(factors)]
        text = f"{self.names[i]} {mark} {self.names[j]}"
        for digits in range(6) if len(factors) else ():  # without a factor, then with one
            factor = f"{float(f'{np.median(factors):.{digits}g}'):.12g} * " if digits else ""
            yield factor + text
            if self.schema.features[column].resolution == 1:
                yield from (f"ceil({factor}{text})", f"floor({factor}{text})")


def _sum(terms: Sequence[tuple[float, str]]) -> str:
    """Returns weights and names as a sum, negative terms last."""
    text = ""
    for weight, name in sorted(terms, key=lambda term: (not term[1], term[0] < 0)):
        size = name if abs(weight) == 1 and name else f"{abs(weight):.12g}{'*' * bool(name)}{name}"
        text += f" {'-' if weight < 0 else '+'} {size}"
    return text.removeprefix(" + ").strip()


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


# ------------------------------------------------------------------------------------------------
# Rules that every row shows


def one_hot_rules(schema: Schema, cells: Floats) -> tuple[Constraint, ...]:
    """Returns rules that exactly one column is set, for columns that are one category in several.

    Such columns hold 0 and 1, begin with the same word (`home_own`, `home_rent`) and sum to one in
    every row.

    Args:
        schema: The columns.
        cells: The training rows.

    Examples:
        >>> homes = [{"home_own": int(i % 3 == 0), "home_rent": int(i % 3 > 0)} for i in range(60)]
        >>> schema = Schema.infer(homes)
        >>> [str(rule) for rule in one_hot_rules(schema, schema.cells(homes))]
        ['home_own + home_rent == 1']
    """
    groups: dict[str, list[int]] = {}
    for i, feature in enumerate(schema.features):
        stem = STEM.match(feature.name)
        if _is_flag(feature) and stem is not None:
            groups.setdefault(stem[1], []).append(i)
    rules = []
    for columns in groups.values():
        flags = cells[:, columns]
        if len(columns) < 2 or len(cells) < ENOUGH or not (flags.sum(axis=1) == 1).all():
            continue
        terms = tuple(Term(1.0, schema.names[i]) for i in columns)
        note = "In every training row exactly one of these columns is set."
        rules.append(Comparison((Linear(terms), Linear((), 1.0)), ("==",), note=note))
    return tuple(rules)


def _is_flag(feature: Feature) -> bool:
    """Whether a column holds 0 and 1, or false and true."""
    levels = feature.levels
    return (
        feature.kind == "binary"
        and len(levels) == 2
        and bool(np.all([v in (0, 1) for v in levels]))
    )
