"""One column: what it holds and which values it may take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter, Signature, signature
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from lapace.arrays import Floats, Ints
from lapace.documents import plain
from lapace.errors import InputError, did_you_mean
from lapace.schema.coding import NO_RANKS, Knots, Ranks
from lapace.schema.expressions import parse
from lapace.schema.notation import DATES, notation, plain_number
from lapace.table import Level

Kind: TypeAlias = Literal["continuous", "ordinal", "binary", "categorical"]

if TYPE_CHECKING:
    Derived: TypeAlias = str | Callable[..., Any] | None
else:  # documents hold no functions: `Feature` checks what is read
    Derived = Any

KINDS = get_args(Kind)
_OPEN = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


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
    ranks: Ranks = field(default=NO_RANKS, repr=False)  # files of older versions have none
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
        self._check_derived()
        checks = self._number_checks() if self.kind == "continuous" else self._category_checks()
        for wrong, sentence in chain(self._type_checks(), checks):
            if wrong:
                raise column_error(self.name, sentence)

    def _check_derived(self) -> None:
        if isinstance(self.derived, list):  # a file names the columns of a function
            object.__setattr__(self, "derived", UnsavedFunction(self.name, tuple(self.derived)))
        if isinstance(self.derived, str):
            try:
                parse(self.derived)
            except InputError as error:
                raise column_error(self.name, f"is derived. {error}") from None
        elif self.derived is not None and not callable(self.derived):
            sentence = f"is derived from {self.derived!r}; give an expression or a function."
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
        """Returns a column of numbers; settings left out are taken from the training table.

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
        """Returns a column of categories in a meaningful order, least first.

        Examples:
            >>> Feature.ordinal("size", ["small", "large"]).span
            1.0
        """
        return cls(name, "ordinal", categories=tuple(categories), derived=derived)

    @classmethod
    def categorical(
        cls, name: str, categories: Sequence[Level], *, derived: Derived = None
    ) -> Feature:
        """Returns a column of categories without an order.

        Examples:
            >>> Feature.categorical("home", ["own", "rent", "other"]).width
            3
        """
        return cls(name, "categorical", categories=tuple(categories), derived=derived)

    @classmethod
    def binary(
        cls, name: str, categories: Sequence[Level] = (False, True), *, derived: Derived = None
    ) -> Feature:
        """Returns a column of exactly two categories.

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
        """How many columns its category block takes in the encoded matrix."""
        if self.numeric or self.states < 2:
            return 0
        return 1 if self.states == 2 else self.states

    @property
    def states(self) -> int:
        """How many states its category block has: the categories, and missing if that was seen."""
        return len(self.categories) + self.missing

    def text(self, cell: float) -> str:
        """Returns a cell as text, with the digits that its column needs.

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
        """Returns how many digits after the point a cell has in the column's notation."""
        if self.integer or (not self.resolution and cell == round(cell)):
            return 0
        return decimals(self.resolution) if self.resolution else 2

    def number(self, text: str) -> float | None:
        """Returns the number that a text spells in the column's notation or without any.

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

    @cached_property
    def lattice(self) -> Lattice:
        """The values that its numbers may take; any where it has categories without order."""
        if not self.numeric:
            return Lattice(0.0, 1.0)
        unseen = len(self.categories) if self.extra else np.nan
        scale = 10.0 ** decimals(self.resolution)
        return Lattice(self.resolution, scale, self.lower, self.upper, unseen)

    def snap(self, values: Floats) -> Floats:
        """Returns values moved into the bounds and onto the lattice.

        Levels unseen in training have no place in an order: they stay as they are.

        Examples:
            >>> Feature.continuous("price", lower=0, upper=9, resolution=0.1).snap(np.array([0.29]))
            array([0.3])
        """
        return self.lattice.snap(values)

    # -- JSON -------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values; of a function that derives it only the columns it takes."""
        return plain(self)


def _are_ranks(ranks: Any) -> bool:
    """Returns whether ranks are two equally long lists of ascending numbers, or empty."""
    try:
        values, percentiles = np.array(ranks, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return False
    rising = bool((np.diff(values) > 0).all() and (np.diff(percentiles) > 0).all())
    return values.ndim == 1 and bool(np.isfinite([values, percentiles]).all()) and rising


class UnsavedFunction:
    """Replaces a Python function that derived a column, as files do not keep functions."""

    def __init__(self, name: str, columns: tuple[str, ...]) -> None:
        self.name = name
        parameters = (Parameter(column, Parameter.KEYWORD_ONLY) for column in columns)
        self.__signature__ = Signature([*parameters])

    def __call__(self, **_: Any) -> Any:
        """Raises, as the function is not in the file."""
        sentence = "is derived by a Python function, which files do not keep."
        raise column_error(self.name, sentence)


# A column as its user declares it: its kind, all of it, or some of its settings by name.
Override: TypeAlias = str | Feature | Mapping[str, Any]


def column_error(name: str, sentence: str) -> InputError:
    """Returns the error about a column that cannot be used."""
    return InputError(f"Column '{name}' {sentence}")


class Lattice(NamedTuple):
    """The values that numbers may take: multiples of a step between two bounds.

    Attributes:
        step: What values are multiples of; 0 for any value.
        scale: A power of ten that makes a whole number of the step.
        lower: The least value.
        upper: The greatest value.
        unseen: The first code of a level without a place in an order, which stays as it is.

    Fields are numbers for one column, or arrays for several side by side.
    """

    step: Any
    scale: Any
    lower: Any = -np.inf
    upper: Any = np.inf
    unseen: Any = np.nan

    def of(self, columns: Ints) -> Lattice:
        """Returns the lattices of some columns, which may be the same."""
        return Lattice(*(field[columns] for field in self))

    def snap(self, values: Floats) -> Floats:
        """Returns the nearest values of the lattice."""
        with np.errstate(divide="ignore", invalid="ignore"):
            multiples = np.rint(values / self.step) * self.step
        # 0.1 * 3 is not 0.3: take the float that the decimal has.
        decimal = np.rint(multiples * self.scale) / self.scale
        snapped = np.clip(np.where(self.step > 0, decimal, values), self.lower, self.upper) + 0.0
        return np.where(values >= self.unseen, values, snapped)


def on_lattice(values: Floats, resolution: float) -> Floats:
    """Returns the nearest multiples of a resolution; the values themselves where it is 0."""
    return Lattice(resolution, 10.0 ** decimals(resolution)).snap(values)


def decimals(resolution: float) -> int:
    """Returns the places after the point that multiples need: 2 for 0.01 and for 0.25."""
    return len(f"{resolution:.12f}".rstrip("0").partition(".")[2])
