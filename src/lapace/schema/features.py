"""One column: what it holds, which values it may take, and its rank map."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import Parameter, Signature, signature
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from scipy.special import ndtri

from lapace.arrays import Bools, Floats, Ints
from lapace.errors import InputError, did_you_mean
from lapace.schema.expressions import parse
from lapace.schema.notation import DATES, notation, plain_number
from lapace.table import Level

Kind: TypeAlias = Literal["continuous", "ordinal", "binary", "categorical"]

Derived: TypeAlias = str | Callable[..., Any] | None

KINDS = get_args(Kind)
KNOTS = 256  # support points of a column's rank map; more do not change a decoded value
RARE = 5  # rows under which a histogram bin or category count is not shown
SPIKE = 0.01  # share of the rows from which a value gets an interval of scores
SUPPORT = 100  # support points of a column's percentiles, beside the values that are spikes
_OPEN = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
FLAT = 0.25  # least spread a column is stretched from: a nearly constant one must not dominate


class Knots(NamedTuple):
    """A column's rank map: `values` and the normal scores that each of them has.

    A value shared by many rows has the scores from `low` to `high`; others have a single one. With
    F the cumulative share and n a value's own, the score in the middle is Φ⁻¹(F − n/2), as in a
    normal distribution cut at the ranks, then standardised over the rows.

    Examples:
        >>> knots = Knots.fit(np.array([0.0] * 60 + [10.0] * 30 + [1000.0] * 10))
        >>> knots.scores(np.array([0.0, 10.0, 1000.0])).round(2)
        array([-0.76,  0.82,  2.11])
        >>> knots.units(np.array([-9.0, -0.5, 2.0, 9.0])).round(1)  # spikes cannot be missed
        array([   0.,    0., 1000., 1000.])
    """

    values: Floats
    low: Floats
    mid: Floats
    high: Floats

    @classmethod
    def fit(cls, values: Floats) -> Knots:
        """The rank map of training values."""
        distinct, counts = np.unique(values, return_counts=True)
        share = counts / counts.sum()
        top = np.cumsum(share)
        mid = ndtri(top - share / 2)
        centre = float(share @ mid)
        scale = max(FLAT, float(np.sqrt(share @ (mid - centre) ** 2)))
        # A spike gets nine tenths of its mass; the rest leads on to its neighbours, so that
        # values never seen, in between, still have a score of their own.
        heavy = (share >= SPIKE) & (counts >= RARE)
        low = np.where(heavy, ndtri(top - 0.95 * share), mid)
        high = np.where(heavy, ndtri(top - 0.05 * share), mid)
        keep = heavy | _spread(np.cumsum(np.where(heavy, 0.0, share)), KNOTS)
        scores = [(s[keep] - centre) / scale for s in (low, mid, high)]
        return cls(distinct[keep], *scores)

    def scores(self, values: Floats) -> Floats:
        """Values to scores; beyond the seen range the score of its end."""
        clipped = np.clip(values, self.values[0], self.values[-1])
        left = np.searchsorted(self.values, clipped, side="right") - 1
        right = np.minimum(left + 1, len(self.values) - 1)
        gap = np.where(right > left, self.values[right] - self.values[left], 1.0)
        share = (clipped - self.values[left]) / gap
        between = self.high[left] + share * (self.low[right] - self.high[left])
        return np.where(clipped == self.values[left], self.mid[left], between)

    def units(self, scores: Floats) -> Floats:
        """Scores to values: the piecewise-linear inverse, flat over the interval of a spike."""
        grid = np.stack([self.low, self.high], axis=1).ravel()
        return np.interp(scores, grid, np.repeat(self.values, 2))

    def slopes(self, scores: Floats) -> Floats:
        """How fast values rise with the score, from one value's middle to the next one's.

        Not flat at a spike or beyond the ends, where the gradient would vanish.
        """
        rise: Floats = np.diff(self.values) / np.maximum(np.diff(self.mid), 1e-9)
        if len(rise) < 2:
            return np.full_like(scores, rise.sum())
        found: Floats = rise[np.searchsorted(self.mid[1:-1], scores)]
        return found


# Values in ascending order, and the percentile of each, between 0 and 1.
Ranks: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
NO_RANKS: Ranks = ((), ())


def mid_ranks(values: Floats) -> Ranks:
    """Support points of the percentiles of training values: values and their mid-ranks.

    With F the cumulative share of the rows and n a value's own share, the mid-rank is F - n/2: half
    of the rows that share a value count as passed. About a hundred values are kept, evenly spread
    over F, with both ends and every value that at least a hundredth of the rows has.

    Examples:
        >>> mid_ranks(np.array([0.0] * 60 + [10.0] * 30 + [1000.0] * 10))
        ((0.0, 10.0, 1000.0), (0.3, 0.75, 0.95))
    """
    distinct, counts = np.unique(values, return_counts=True)
    rows, top = counts.sum(), np.cumsum(counts)
    keep = counts >= SPIKE * rows
    if not keep.all():
        keep |= _spread(top, SUPPORT)
    percentiles = (top - counts / 2)[keep] / rows
    return tuple((distinct[keep] + 0.0).tolist()), tuple(percentiles.tolist())


def _spread(top: Floats | Ints, count: int) -> Bools:
    """Marks about `count` positions, evenly spread over the cumulative share, ends included."""
    keep = np.zeros(len(top), dtype=bool)
    places = np.searchsorted(top, np.linspace(0, top[-1], count))
    keep[np.minimum(places, len(top) - 1)] = True
    keep[[0, -1]] = True
    return keep


@dataclass(frozen=True)
class Feature:
    """One column: what it holds and which values it may take.

    Attributes:
        name: The column's name.
        kind: `continuous`, `ordinal`, `binary` or `categorical`.
        integer: Whether a continuous column holds whole numbers only.
        lower: Least value a counterfactual may have.
        upper: Greatest value a counterfactual may have.
        resolution: Values are multiples of this (1 for whole numbers); 0 for none.
        categories: The categories that counterfactuals may propose, ordinals in their order.
        extra: Levels unseen in training that an instance has; kept, never proposed.
        missing: Whether missing values were seen in training.
        description: A sentence that explains the column.
        tolerance: A change of a number by at most this is negligible: rows on a path keep the
            instance's cell instead. NaN where it is still to be taken from the data.
        written: How the table writes the numbers of a continuous column, as an example:
            `€1,234.56`, `1234.56%`, `2024-12-31` for dates; empty for plain numbers.
        unit: What plain numbers are counted in, shown after them.
        derived: What the column follows from, where it does: an expression such as
            `"amount / months"`, or a function whose parameters are columns. It is computed again
            wherever one of them changes, and is no change of its own.
        ranks: The percentiles that distances of a numeric column are counted in: some training
            values, ascending, and the mid-rank of each among the training rows, between 0 and 1.
            Percentiles are linear in between. Beyond the training range they go on growing, by
            the change over the range. Empty where distances are changes over the range.
        knots: The rank map of a numeric column.
        histogram: Edges and counts, or one count per category; small ones merged or hidden.

    Examples:
        >>> size = Feature.ordinal("size", ["small", "medium", "large"])
        >>> size.levels, size.lower, size.upper
        (('small', 'medium', 'large'), 0.0, 2.0)
    """

    name: str
    kind: Kind
    integer: bool = False
    lower: float = 0.0
    upper: float = 0.0
    resolution: float = 0.0
    categories: tuple[Level, ...] = ()
    extra: tuple[Level, ...] = ()
    missing: bool = False
    description: str = ""
    tolerance: float = 0.0
    written: str = ""
    unit: str = ""
    derived: Derived = None
    ranks: Ranks = field(default=NO_RANKS, repr=False)
    knots: Knots | None = field(default=None, repr=False, compare=False)
    histogram: tuple[tuple[float, ...], tuple[int, ...]] = field(default=((), ()), repr=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            hint = did_you_mean(self.kind, KINDS)
            raise InputError(
                f"'{self.kind}' is no kind of column. There are: {', '.join(KINDS)}.{hint}"
            )
        if self.kind == "ordinal":  # its numbers are the codes
            codes = {"integer": True, "lower": 0.0, "resolution": 1.0}
            for name, value in {**codes, "upper": float(len(self.categories) - 1)}.items():
                object.__setattr__(self, name, value)
        if self.written:
            notation(self.written)  # refuses what is none
        if isinstance(self.derived, str):
            try:
                parse(self.derived)
            except InputError as error:
                raise column_error(self.name, f"is derived. {error}") from None
        elif self.derived is not None and not callable(self.derived):
            sentence = f"is derived from {self.derived!r}; give an expression or a function."
            raise column_error(self.name, sentence)
        checks = self._number_checks() if self.kind == "continuous" else self._category_checks()
        for wrong, sentence in chain(self._type_checks(), checks):
            if wrong:
                raise column_error(self.name, sentence)

    def _type_checks(self) -> Iterable[tuple[object, str]]:
        for name in ("lower", "upper", "resolution", "tolerance"):
            value = getattr(self, name)
            number = isinstance(value, int | float | np.number)
            yield not number, f"has a {name} of {value!r}; it must be a number."
        yield not _are_ranks(self.ranks), "has ranks that are not two ascending lists of numbers."

    def _number_checks(self) -> Iterable[tuple[object, str]]:
        yield self.categories, "is continuous and has no categories."
        yield (
            np.isinf(self.lower) or np.isinf(self.upper),
            "has an infinite bound. Leave it out to take it from the data, or give a number.",
        )
        yield self.lower > self.upper, f"has bounds {self.lower:g} > {self.upper:g}."
        yield (
            not (self.resolution >= 0 and np.isfinite(self.resolution)),
            f"has a resolution of {self.resolution}; it must be a number over 0, or 0 for none.",
        )
        yield (
            self.integer and self.resolution % 1,
            f"holds whole numbers; they cannot be multiples of {self.resolution:g}.",
        )
        yield (
            self.tolerance < 0 or np.isinf(self.tolerance),
            f"has a tolerance of {self.tolerance:g}; it must be a number from 0 on.",
        )
        yield (
            self.tolerance >= self.upper - self.lower > 0,
            f"has a tolerance of {self.tolerance:g}, as wide as its whole range.",
        )

    def _category_checks(self) -> Iterable[tuple[object, str]]:
        levels, count = self.levels, len(self.categories)
        yield (
            any(v is None or v != v for v in levels),  # noqa: PLR0124  NaN
            "lists a missing value among its categories. Missing values need none: leave it out.",
        )
        if len(set(levels)) < len(levels):
            twice = next(v for k, v in enumerate(levels) if v in levels[:k])
            yield True, f"has the category {twice!r} twice."
        yield self.written, f"is {self.kind}; only numbers have a notation."
        yield not count, f"is {self.kind} and needs categories."
        plural = "categories" if count > 1 else "category"
        yield self.kind == "binary" and count != 2, f"cannot be binary with {count} {plural}."
        yield (
            self.tolerance != 0,
            f"is {self.kind}: every change of category counts. Only numbers have a tolerance.",
        )

    # -- for overrides ----------------------------------------------------------------------------

    @classmethod
    def continuous(
        cls,
        name: str,
        *,
        lower: float = np.nan,
        upper: float = np.nan,
        integer: bool = False,
        resolution: float = 0.0,
        tolerance: float = np.nan,
        written: str = "",
        unit: str = "",
        derived: Derived = None,
    ) -> Feature:
        """A number; what is left out is taken from the training table.

        Examples:
            >>> Feature.continuous("age", lower=18, integer=True).step
            1.0
            >>> Feature.continuous("price", written="€1,234.56", resolution=0.5).text(1250)
            '€1,250.00'
        """
        return cls(
            name,
            "continuous",
            integer,
            float(lower),
            float(upper),
            float(resolution or (1.0 if integer else 0.0)),
            tolerance=float(tolerance),
            written=written,
            unit=unit,
            derived=derived,
        )

    @classmethod
    def ordinal(cls, name: str, categories: Sequence[Level], *, derived: Derived = None) -> Feature:
        """Categories in a meaningful order, least first.

        Examples:
            >>> Feature.ordinal("size", ["small", "large"]).span
            1.0
        """
        return cls(name, "ordinal", categories=tuple(categories), derived=derived)

    @classmethod
    def categorical(
        cls, name: str, categories: Sequence[Level], *, derived: Derived = None
    ) -> Feature:
        """Categories without an order.

        Examples:
            >>> Feature.categorical("home", ["own", "rent", "other"]).width
            3
        """
        return cls(name, "categorical", categories=tuple(categories), derived=derived)

    @classmethod
    def binary(
        cls, name: str, categories: Sequence[Level] = (False, True), *, derived: Derived = None
    ) -> Feature:
        """Exactly two categories.

        Examples:
            >>> Feature.binary("smoker", ["no", "yes"]).width
            1
        """
        return cls(name, "binary", categories=tuple(categories), derived=derived)

    # -- properties -------------------------------------------------------------------------------

    @property
    def levels(self) -> tuple[Level, ...]:
        """The meanings of all codes: the categories, then the extras."""
        return self.categories + self.extra

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns it is derived from: those an expression names, a function's parameters.

        Examples:
            >>> Feature.continuous("rate", derived=lambda cost, months: cost / months).inputs
            ('cost', 'months')
        """
        if self.derived is None:
            return ()
        if isinstance(self.derived, str):
            return parse(self.derived).columns
        try:
            parameters = [*signature(self.derived).parameters.values()]
        except (TypeError, ValueError):  # some functions written in C have none
            parameters = []
        if not parameters or any(p.kind in _OPEN for p in parameters):
            raise column_error(
                self.name,
                "is derived by a function whose parameters do not name columns. Write one such as "
                "lambda amount, months: amount / months.",
            )
        return tuple(p.name for p in parameters)

    @property
    def numeric(self) -> bool:
        """Whether order has a meaning: continuous and ordinal columns."""
        return self.kind in ("continuous", "ordinal")

    @property
    def is_date(self) -> bool:
        """Whether its numbers are dates, in days since 1970-01-01."""
        return self.written in DATES

    @property
    def span(self) -> float:
        """The width of the range: from the least value to the greatest."""
        return self.upper - self.lower or 1.0

    @property
    def step(self) -> float:
        """The least difference that counts: what `<` moves by."""
        return self.resolution or self.span * 1e-6

    @property
    def width(self) -> int:
        """Columns its category block takes in the encoded matrix."""
        if self.numeric or self.states < 2:
            return 0
        return 1 if self.states == 2 else self.states

    @property
    def states(self) -> int:
        """What a category block distinguishes: the categories, and missing if that was seen."""
        return len(self.categories) + self.missing

    def text(self, cell: float) -> str:
        """A cell as text, with the digits that its column needs.

        Examples:
            >>> Feature.continuous("price", resolution=0.25).text(1234.5)
            '1,234.50'
            >>> Feature.continuous("mass").text(1e30)
            '1e+30'
            >>> Feature.binary("smoker", ["no", "yes"]).text(1.0)
            'yes'
        """
        if np.isnan(cell):
            return "missing"
        if self.categories:
            return str(self.levels[round(cell)])
        if self.written:
            return notation(self.written).text(cell, self._decimals(cell))
        return f"{self._plain_text(cell)} {self.unit}".rstrip()

    def _decimals(self, cell: float) -> int:
        """Digits after the point that a cell is shown with in the column's notation."""
        if self.integer or (not self.resolution and cell == round(cell)):
            return 0
        return decimals(self.resolution) if self.resolution else 2

    def number(self, text: str) -> float | None:
        """The number that a text spells in the column's notation or without any.

        Returns:
            NaN where it says that a value is missing, None where it is no number.

        Examples:
            >>> Feature.continuous("price", written="€1,234.56").number("€2,500")
            2500.0
        """
        plain = None if self.is_date else plain_number(text)
        if plain is not None:
            return plain
        return notation(self.written or "1,234.56").number(text)

    def _plain_text(self, cell: float) -> str:
        if abs(cell) >= 1e15:  # too many digits to read
            return f"{cell:.4g}"
        if self.integer or cell == round(cell):
            return f"{cell:,.0f}"
        if self.resolution:
            return f"{cell:,.{decimals(self.resolution)}f}"
        return f"{cell:.4g}" if abs(cell) < 1e4 else f"{cell:,.0f}"

    def snap(self, values: Floats) -> Floats:
        """Values moved into the bounds and onto the lattice.

        Levels unseen in training have no place in an order: they stay as they are.

        Examples:
            >>> Feature.continuous("price", lower=0, upper=9, resolution=0.1).snap(np.array([0.29]))
            array([0.3])
        """
        snapped = np.clip(on_lattice(values, self.resolution), self.lower, self.upper) + 0.0
        return np.where(values >= len(self.categories), values, snapped) if self.extra else snapped

    # -- JSON -------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; of a function that derives it only the columns it takes."""
        knots = self.knots and [part.tolist() for part in self.knots]
        derived = self.derived if isinstance(self.derived, str) else self.inputs or None
        values = vars(self) | {"knots": knots, "derived": derived}
        return {name: _lists(value) for name, value in values.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Feature:
        """The inverse of `to_json`.

        Examples:
            >>> home = Feature.categorical("home", ["own", "rent"])
            >>> Feature.from_json(home.to_json()) == home
            True
        """
        # Older files have no ranks: their distances are changes over the range.
        whole = {"ranks": NO_RANKS, **data}
        values = {f.name: _tuples(whole[f.name]) for f in fields(cls)}
        knots = values["knots"] and Knots(*map(np.array, values["knots"]))
        derived = values["derived"]
        if isinstance(derived, tuple):
            derived = UnsavedFunction(values["name"], derived)
        return cls(**{**values, "knots": knots, "derived": derived})


def _are_ranks(ranks: Any) -> bool:
    """Whether ranks are two equally long lists of ascending numbers, or empty."""
    try:
        values, percentiles = np.array(ranks, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return False
    rising = bool((np.diff(values) > 0).all() and (np.diff(percentiles) > 0).all())
    return values.ndim == 1 and bool(np.isfinite([values, percentiles]).all()) and rising


class UnsavedFunction:
    """The place of a Python function that derived a column: files do not keep functions."""

    def __init__(self, name: str, columns: tuple[str, ...]) -> None:
        self.name = name
        parameters = (Parameter(column, Parameter.KEYWORD_ONLY) for column in columns)
        self.__signature__ = Signature([*parameters])

    def __call__(self, **_: Any) -> Any:
        """Refuses: the function is not here."""
        sentence = "is derived by a Python function, which files do not keep."
        raise column_error(self.name, sentence)


# A column as its user declares it: its kind, all of it, or some of its settings by name.
Override: TypeAlias = str | Feature | Mapping[str, Any]


def _lists(value: Any) -> Any:
    """A value with lists for its tuples, as in JSON."""
    return [*map(_lists, value)] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    """A JSON value with tuples for its lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def column_error(name: str, sentence: str) -> InputError:
    """The error about a column that cannot be used."""
    return InputError(f"Column '{name}' {sentence}")


def on_lattice(values: Floats, resolution: float) -> Floats:
    """Values moved to the nearest multiples of a resolution, if there is one."""
    if not resolution:
        return values
    places, multiples = decimals(resolution), np.rint(values / resolution) * resolution
    # 0.1 * 3 is not 0.3: take the float that the decimal has.
    return np.round(multiples, places) if places else multiples


def decimals(resolution: float) -> int:
    """Places after the point that multiples of a resolution need: 2 for 0.01 and for 0.25."""
    return len(f"{resolution:.12f}".rstrip("0").partition(".")[2])
