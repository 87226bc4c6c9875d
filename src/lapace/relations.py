"""Rules between columns, learned from what every training row satisfies.

Four kinds are learned: a column that follows from others by a sum, a product or a ratio, which
becomes a derived column; an order of two numbers, `a <= b` or `a <= b - 16`; a number that is zero
wherever another column has some value; and columns of zeros and ones of which exactly one is set.

A rule is kept only if every row satisfies it and chance is excluded. The test is a permutation of
one column: the probability that the rule would hold in every row if the column's values were dealt
to the rows at random, times the number of pairs of columns tried, is below 0.001. A rule that only
restates the columns' ranges has probability 1 and is never learned.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, permutations
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import hypergeom
from sklearn.metrics import cohen_kappa_score
from sklearn.tree import DecisionTreeClassifier

from lapace.arrays import Floats, Ints
from lapace.constraints import (
    Category,
    Comparison,
    Conditional,
    Constraint,
    Linear,
    Membership,
    Term,
    parse,
)
from lapace.constraints.language import Relation
from lapace.errors import InputError, did_you_mean, warn
from lapace.schema import Feature, Schema
from lapace.schema.derived import DerivedColumns
from lapace.schema.expressions import column_text
from lapace.table import spelling

__all__ = [
    "Equality",
    "LearnedRule",
    "find_orders",
    "find_relations",
    "find_zeros",
    "learn_rules",
    "one_hot_rules",
    "warn_of_differences",
    "warn_of_leaks",
]

YES_NO = ({"0", "1"}, {"false", "true"}, {"no", "yes"}, {"n", "y"})  # values of many features too
MIN_KAPPA = 0.4  # Cohen's kappa from which a column may be the label itself
SEVERAL = 3  # columns of a table from which it is odd that one of them gives the label
DECIDES = 0.9  # Cohen's kappa from which a column alone gives the classifier's label
ENOUGH = 50  # rows from which a sum, a ratio or a one-hot group can be too much for chance
MANY = 200  # rows from which an order or a zero can be
CHANCE = 1e-3  # probability that one of all orders, or of all zeros, holds by chance, at most
SCALE = 4.0  # ranges of two columns on the same scale: one is at most so many times the other
TIED = 20  # rows within one step of the least difference from which an order has an offset
VARIED = 10  # distinct values of a number that arithmetic can explain
TERMS = 8  # of a sum, at most
COLUMNS = 60  # columns of numbers that are looked at
SCREENED = 400  # rows looked at first
NOTE = "Every training row keeps this."
STEM = re.compile(r"(.+?)[_.=: -]+[^_.=: -]+(?:[_ -][^_.=: -]+)*?$")  # `home` of `home_own`


@dataclass(frozen=True)
class LearnedRule:
    """A rule that every training row satisfies.

    Attributes:
        text: The rule.
        support: Training rows that could have broken it: all with a value in its columns; for an
            order those whose lower value is above the least value of the other column; for a zero
            those in which the condition holds.
        constraint: The constraint that counterfactuals keep; None where the schema keeps the rule,
            as it does for a derived column.

    Examples:
        >>> print(LearnedRule("rent <= income", 340))
        rent <= income (340 rows)
    """

    text: str
    support: int
    constraint: Constraint | None = None

    def __str__(self) -> str:
        return f"{self.text} ({self.support:,} rows)"

    @classmethod
    def of(cls, constraint: Constraint, support: int) -> LearnedRule:
        """Returns the rule that a comparison or condition is, as learned from the table."""
        if not isinstance(constraint, Comparison | Conditional):
            raise InputError(f"'{constraint}' is not a rule that is learned.")
        return cls(str(constraint), support, replace(constraint, learned=True, note=NOTE))

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {"text": self.text, "support": self.support, "derived": self.constraint is None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LearnedRule:
        """Reads back what `to_json` returned."""
        text, support = str(data["text"]), int(data["support"])
        return cls(text, support) if data["derived"] else cls.of(parse(text), support)


class Equality(NamedTuple):
    """A column, the expression it equals in every row, and the rows that have its inputs."""

    column: str
    expression: str
    rows: int

    @property
    def rule(self) -> LearnedRule:
        """The equality as a rule, which the schema keeps."""
        return LearnedRule(f"{column_text(self.column)} == {self.expression}", self.rows)


def learn_rules(
    schema: Schema, cells: Floats, wanted: bool | Mapping[str, bool] = True
) -> tuple[Schema, tuple[LearnedRule, ...]]:
    """Learns rules that every row satisfies.

    Args:
        schema: The columns.
        cells: The training rows.
        wanted: Whether to learn rules; by the text of a rule, whether to keep that one.

    Returns:
        The schema, in which columns that follow from others are derived, and the rules.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> low, more = rng.integers(1, 99, (2, 300))
        >>> rows = [{"low": int(x), "high": int(x + y % 9)} for x, y in zip(low, more)]
        >>> schema = Schema.infer(rows)
        >>> [str(rule) for rule in learn_rules(schema, schema.cells(rows))[1]]
        ['low <= high (293 rows)']
        >>> learn_rules(schema, schema.cells(rows), {"low <= high": False})[1]
        ()
    """
    if not isinstance(wanted, bool | Mapping):
        raise InputError(
            f"learn_rules is {wanted!r}; it is True, False, or the rules to leave out by their "
            "texts: {'mean <= worst': False}."
        )
    if schema.shape is not None or wanted is False:
        return schema, ()
    named = {} if wanted is True else wanted
    switches = {_squeezed(text): on for text, on in named.items()}
    known: dict[str, str] = {}

    def kept(rules: Iterable[LearnedRule]) -> list[LearnedRule]:
        listed = {_squeezed(rule.text): rule for rule in rules}
        known.update({text: rule.text for text, rule in listed.items()})
        return [rule for text, rule in listed.items() if switches.get(text, True)]

    relations = {relation.rule: relation for relation in find_relations(schema, cells)}
    rules = kept(relations)
    features = list(schema.features)
    for relation in map(relations.__getitem__, rules):
        place = schema.index(relation.column)
        features[place] = replace(features[place], derived=relation.expression)
    schema = replace(schema, features=tuple(features))
    rules += kept(one_hot_rules(schema, cells))
    orders = kept(find_orders(schema, cells))
    rules += _reduced(orders)
    rules += kept(find_zeros(schema, cells, orders))
    for text in named:
        if _squeezed(text) not in known:
            hint = did_you_mean(text, known.values())
            raise InputError(f"There is no learned rule '{text}'.{hint} Write it as rules_ does.")
    return schema, tuple(rules)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _term(name: str) -> Linear:
    return Linear((Term(1.0, name),))


def warn_of_differences(schema: Schema, cells: Floats) -> None:
    """Warns where a derived column is not what its expression says in more than a few rows.

    Args:
        schema: The columns.
        cells: The training rows.
    """
    derived = schema.derive(cells) if schema.derived.each else cells
    for column in (derivation.column for derivation in schema.derived.each):
        feature = schema.features[column]
        off = schema.differs(derived, cells)[:, column] & ~np.isnan(cells[:, column])
        if off.mean() > 0.01:
            row = int(np.flatnonzero(off)[0])
            read, computed = (feature.text(float(rows[row, column])) for rows in (cells, derived))
            warn(
                f"Column '{feature.name}' is declared as derived, but differs from its expression "
                f"in {off.mean():.0%} of the rows: in row {row} it is {read}, not {computed}."
            )


# ------------------------------------------------------------------------------------------------
# Orders and zeros


def find_orders(schema: Schema, cells: Floats) -> list[LearnedRule]:
    r"""Returns the orders of two numbers that every row shows, transitive ones included.

    The columns are not derived, have the same notation and unit, and ranges of the same scale: one
    is at most four times the other. With a sorted downwards and $c_k$ the number of values of b
    from $a_k$ on, the probability that a permutation of b keeps the order in all n rows is
    $\prod_k (c_k - k + 1) / (n - k + 1)$.

    With k the least difference b - a of all rows, the order is `a <= b - k` where the differences
    have a *sharp edge*: in at least twenty rows they are k or one resolution more, so that a tail
    that goes on below k would have shown. Else it is `a <= b`. A k of one resolution is written
    `a < b`. Only an order that passes the test above gets an offset: any two correlated columns
    have a least difference.

    Args:
        schema: The columns.
        cells: Rows, (n, d); at least 200 with both values are needed.
    """
    features = schema.features
    pairs = [
        (i, j) for i, j in permutations(_numbers(schema), 2) if _alike(features[i], features[j])
    ]
    some, rules = cells[: SCREENED // 2], []
    for i, j in pairs:
        if (some[:, i] > some[:, j]).any():
            continue
        a, b = cells[~np.isnan(cells[:, [i, j]]).any(axis=1)][:, [i, j]].T
        apart = b - a
        if len(a) < MANY or apart.min() < 0 or not apart.any():
            continue
        first = np.arange(len(a))
        above = len(b) - np.searchsorted(np.sort(b), np.sort(a)[::-1], side="left")  # c_k
        log_p = float(np.log((above - first) / (len(a) - first)).sum())
        if log_p + np.log(len(pairs)) > np.log(CHANCE):
            continue
        support = int((a > b.min()).sum())
        rules.append(LearnedRule.of(_order(features[i], features[j], apart), support))
    return rules


def _order(low: Feature, high: Feature, apart: Floats) -> Comparison:
    """Returns the order of two columns, with an offset where their differences have an edge."""
    least, resolution = float(apart.min()), min(low.resolution, high.resolution)
    sharp = (apart < least + 1.5 * resolution).sum() >= TIED
    strict = sharp and round(least / resolution) == 1
    offset = float(f"{least:.12g}") if sharp and not strict else 0.0
    sides = _term(low.name), replace(_term(high.name), constant=-offset)
    return Comparison(sides, ("<" if strict else "<=",))


def _numbers(schema: Schema) -> list[int]:
    """Returns the columns of numbers that rules are learned of."""
    numbers = (i for i, f in enumerate(schema.features) if f.kind == "continuous" and not f.derived)
    return list(islice(numbers, COLUMNS))


def _alike(a: Feature, b: Feature) -> bool:
    """Whether two columns of numbers can be compared: same notation and unit, same scale."""
    same = (a.written, a.unit) == (b.written, b.unit)
    return same and max(a.span, b.span) <= SCALE * min(a.span, b.span)


def _parts(rule: LearnedRule) -> tuple[tuple[str, ...], tuple[float, int]]:
    """Returns the lower and the higher column of an order; its offset, and 1 if it is strict."""
    assert isinstance(rule.constraint, Comparison)
    high = rule.constraint.sides[1]
    assert isinstance(high, Linear)
    return rule.constraint.words, (-high.constant, int(rule.constraint.relations == ("<",)))


def _reduced(orders: Sequence[LearnedRule]) -> list[LearnedRule]:
    """Returns orders without those that follow from two others."""
    gaps = dict(map(_parts, orders))
    return [
        rule
        for rule, ((low, high), gap) in zip(orders, gaps.items(), strict=True)
        if not any(
            (between, high) in gaps and gap <= tuple(np.add(part, gaps[between, high]))
            for (first, between), part in gaps.items()
            if first == low
        )
    ]


def find_zeros(
    schema: Schema, cells: Floats, orders: Sequence[LearnedRule] = ()
) -> Iterator[LearnedRule]:
    """Yields rules that a number is zero wherever another column has some value.

    The value is one or more categories, or that another number is zero, or is not. With k of n rows
    having the value and m of n a number other than zero, the probability that a permutation leaves
    all k of them zero is C(n - m, k) / C(n, k). At least 50 rows have the value.

    Args:
        schema: The columns.
        cells: Rows, (n, d); at least 200 with a value in both columns are needed.
        orders: Orders that are learned: `b <= a` says already that b is zero where a is.

    Examples:
        >>> wages = [0 if i % 3 else i + 1 for i in range(300)]
        >>> rows = [{"job": "yes" if wage else "no", "wage": wage} for wage in wages]
        >>> schema = Schema.infer(rows)
        >>> [str(rule) for rule in find_zeros(schema, schema.cells(rows))]
        ['if job == "no" then wage == 0 (200 rows)']
    """
    numbers, features = _numbers(schema), schema.features
    known = ~np.isnan(cells)
    states = dict.fromkeys(numbers, 2)  # zero, or not
    states |= {
        i: len(f.levels) for i, f in enumerate(features) if f.kind != "continuous" and not f.derived
    }
    tries, ordered = len(numbers) * sum(states.values()), {_parts(rule)[0] for rule in orders}
    present = known[:, numbers].astype(np.float32)
    used = present * (cells[:, numbers] != 0)  # (n, numbers)
    for column, size in states.items():
        codes = cells[:, column] != 0 if column in numbers else cells[:, column]
        flags = (codes[:, None] == np.arange(size)) & known[:, [column]]
        counts, broken = (flags.T.astype(np.float32) @ rows for rows in (present, used))
        candidates = (counts >= ENOUGH) & (broken == 0)  # (states, numbers)
        for place in np.flatnonzero(candidates.any(axis=0)).tolist():
            number, n, m = numbers[place], counts[:, place].sum(), broken[:, place].sum()
            if number == column or n < MANY or not m:
                continue
            log_p = hypergeom.logpmf(0, n, m, counts[:, place]) + np.log(tries)
            levels = np.flatnonzero(candidates[:, place] & (log_p < np.log(CHANCE))).tolist()
            name, other = features[number].name, features[column]
            if column in numbers:  # "not both" is said once, and what an order says not at all
                below = (name, other.name) in ordered and features[number].lower >= 0
                levels = [k for k in levels if (column < number if k else not below)]
            if levels:
                rule = Conditional((_when(other, levels),), (_zero(name, "=="),))
                yield LearnedRule.of(rule, int(counts[levels, place].sum()))


def _zero(name: str, relation: Relation) -> Comparison:
    return Comparison((_term(name), Linear()), (relation,))


def _when(feature: Feature, codes: Sequence[int]) -> Comparison | Membership:
    """Returns the condition that a column has one of some values, as `find_zeros` codes them."""
    if feature.kind == "continuous":
        above: Relation = ">" if feature.lower >= 0 else "!="
        return _zero(feature.name, above if codes[0] else "==")
    levels = [feature.levels[code] for code in codes]
    values = [str(v) if isinstance(v, str | bool) else float(v) for v in levels]
    if len(values) > 1:
        return Membership(feature.name, tuple(values))
    side = Category(values[0]) if isinstance(values[0], str) else Linear((), values[0])
    return Comparison((_term(feature.name), side), ("==",))


# ------------------------------------------------------------------------------------------------
# Sums, products and ratios


def find_relations(schema: Schema, cells: Floats) -> tuple[Equality, ...]:
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
        (Equality(column='sum', expression='a + b', rows=200),)
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
        self.relations: list[Equality] = []

    def accept(self, column: int, expressions: Iterable[str]) -> None:
        """Keeps the first expression that a column equals in every row."""
        for text in expressions:
            if rows := self.holds(column, text):
                self.relations.append(Equality(self.schema.names[column], text, rows))
                self.following.add(column)
                return

    def holds(self, column: int, text: str) -> int:
        """Returns the rows in which a column equals an expression; 0 unless it does in every one.

        Rows that lack one of its inputs do not count.
        """
        features = [replace(f, derived=None) for f in self.schema.features]
        feature = features[column] = replace(features[column], derived=text)
        (derivation,) = DerivedColumns.of(features).each
        named = [column, *derivation.inputs.tolist()]
        rows = self.cells[~np.isnan(self.cells[:, named]).any(axis=1)]
        values = derivation.values(features, rows, rounded=False)  # a half may go up or down
        slip = (0.5 + 1e-6) * feature.resolution or 1e-9 * feature.span
        equal = len(rows) >= ENOUGH and bool((np.abs(values - rows[:, column]) <= slip).all())
        return len(rows) if equal else 0

    def sums(self, column: int) -> Iterator[str]:
        """Yields sums of earlier columns that one might be, with weights of one to six digits."""
        earlier = [i for i in self.numbers if i < column and i not in self.following]
        rows = self.screened[:, [*earlier, column]]
        rows = rows[~np.isnan(rows).any(axis=1)]
        if not earlier or len(rows) < max(ENOUGH, 4 * len(earlier)):
            return
        step = self.schema.features[column].step
        used = _terms(rows[:, :-1], rows[:, -1], 1.5 * step)
        parts = np.abs(_least_squares(rows[:, used], rows[:, -1])[:-1]) * np.ptp(
            rows[:, used], axis=0
        )
        used = [k for k, part in zip(used, parts, strict=True) if part > step / 10]  # else noise
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
# One-hot groups


def one_hot_rules(schema: Schema, cells: Floats) -> list[LearnedRule]:
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
        ['home_own + home_rent == 1 (60 rows)']
    """
    groups: dict[str, list[int]] = {}
    for i, feature in enumerate(schema.features):
        stem = STEM.match(feature.name)
        is_flag = feature.kind == "binary" and set(feature.levels) == {0, 1}  # or false and true
        if is_flag and stem is not None:
            groups.setdefault(stem[1], []).append(i)
    rules = []
    for columns in groups.values():
        flags = cells[:, columns]
        if len(columns) < 2 or len(cells) < ENOUGH or not (flags.sum(axis=1) == 1).all():
            continue
        terms = tuple(Term(1.0, schema.names[i]) for i in columns)
        one = Comparison((Linear(terms), Linear((), 1.0)), ("==",))
        rules.append(LearnedRule.of(one, len(cells)))
    return rules


# ------------------------------------------------------------------------------------------------
# The label among the columns


def warn_of_leaks(schema: Schema, cells: Floats, labels: Sequence[Any], codes: Ints) -> None:
    """Warns of columns that look like the label itself, or that alone give the classifier's label.

    The values of the first kind are the labels and agree with the classifier as well as a fair
    classifier agrees with the truth. Yes and no are values of many a feature: there it takes more.
    Of the second kind is a column from which the label follows nearly always: by its category, by
    whether it is missing, or by one threshold.
    """
    names = [spelling(label) for label in labels]
    least = 0.9 if {name.lower() for name in names} in YES_NO else 0.75
    for i, feature in enumerate(schema.features if schema.shape is None else ()):
        values, column = np.unique(cells[:, i], return_inverse=True)  # missing values come last
        seen = values[~np.isnan(values)]
        texts = [spelling(feature.levels[int(v)] if feature.categories else v) for v in seen]
        drop = shlex.quote(feature.name)
        if len(names) > 1 and len(values) == len(names) and set(texts) == set(names):
            said = np.array([names.index(text) for text in texts])[column]
            # Two rare values agree most of the time by chance alone.
            if (said == codes).mean() >= least and cohen_kappa_score(said, codes) >= MIN_KAPPA:
                warn(
                    f"Column '{feature.name}' has exactly the classifier's labels as its values. "
                    f"If it is what the classifier predicts, leave it out of the table (--drop "
                    f"{drop} on the command line)."
                )
                continue
        if len(schema.features) < SEVERAL:
            continue
        stump = DecisionTreeClassifier(max_leaf_nodes=None if feature.categories else 3)
        said = stump.fit(column[:, None], codes).predict(column[:, None])
        if cohen_kappa_score(said, codes) >= DECIDES:
            warn(
                f"Column '{feature.name}' alone gives the classifier's label in "
                f"{(said == codes).mean():.0%} of the rows, so explanations will mostly change it. "
                f"If it is known only after the decision, leave it out of the table (--drop {drop} "
                "on the command line) and train the classifier without it."
            )
