"""One column: what it holds and which values it may take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from lapace.arrays import Floats, Ints
from lapace.errors import InputError, did_you_mean
from lapace.schema.expressions import parse
from lapace.schema.notation import DATES, notation, plain_number
from lapace.schema.ranks import NO_RANKS, Knots, Ranks
from lapace.table import Level

__all__ = [
    "KINDS",
    "ColumnError",
    "ColumnsError",
    "Feature",
    "Kind",
    "Lattice",
    "Override",
    "column_error",
    "on_lattice",
]

Kind: TypeAlias = Literal["continuous", "ordinal", "binary", "categorical"]
KINDS = get_args(Kind)
NUMBERS = ("lower", "upper", "resolution", "tolerance", "usual")
YEAR, YEARS = "1234", (1500, 2200)  # the notation of years, and numbers that may be some


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
        missing_values: Values that mean a missing one, such as -999. Missing cells are written as
            the first of them; as empty cells where that is an empty text.
        ignore_case: Whether categories that differ only in capitals or spaces are the same.
        derived: The expression that the column follows from, such as `"amount / months"`. It is
            computed again wherever one of its inputs changes, and never counts as a change.
        ranks: The percentiles of a numeric column: some training values, ascending, and the
            mid-rank of each among the training rows, between 0 and 1. They are linear in between.
            Empty where distances are changes over the range.
        usual: The width of the usual range of a numeric column, about the 5th to the 95th
            percentile; 0 where it is not known.
        knots: The rank map of a numeric column.
        histogram: Edges and counts, or one count per category; small ones merged or hidden.

    Examples:
        >>> size = Feature("size", "ordinal", categories=("small", "medium", "large"))
        >>> size.levels, size.lower, size.upper
        (('small', 'medium', 'large'), 0.0, 2.0)
        >>> Feature("age", "continuous", lower=18, integer=True).step
        1.0
    """

    name: str
    kind: Kind
    integer: bool = False
    lower: float = np.nan
    upper: float = np.nan
    resolution: float = 0.0
    categories: tuple[Level, ...] = ()
    extra: tuple[Level, ...] = ()
    missing: bool = False
    description: str = ""
    tolerance: float = np.nan
    written: str = ""
    unit: str = ""
    missing_values: tuple[Level, ...] = ()
    ignore_case: bool = False
    derived: str | None = None
    ranks: Ranks = field(default=NO_RANKS, repr=False)
    usual: float = field(default=0.0, repr=False)
    knots: Knots | None = field(default=None, repr=False, compare=False)
    histogram: tuple[tuple[float, ...], tuple[int, ...]] = field(default=((), ()), repr=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            hint = did_you_mean(self.kind, KINDS)
            raise InputError(
                f"'{self.kind}' is not a kind of column. There are: {', '.join(KINDS)}.{hint}"
            )
        settled = {name: float(getattr(self, name)) for name in NUMBERS}
        if self.kind != "continuous":  # the numbers of an ordinal are its codes
            ordered, top = self.kind == "ordinal", float(len(self.categories) - 1)
            object.__setattr__(self, "integer", ordered)
            settled |= {"lower": 0.0, "upper": ordered * top, "resolution": float(ordered)}
            settled["tolerance"] = float(np.nan_to_num(self.tolerance))
        elif self.integer and not self.resolution:
            settled["resolution"] = 1.0
        for name, value in {**settled, "categories": tuple(self.categories)}.items():
            object.__setattr__(self, name, value)
        if self.written:
            notation(self.written)  # refuses an example that is not a notation
        if self.derived is not None:
            try:
                parse(self.derived)
            except InputError as error:
                raise column_error(self.name, f"is derived. {error}") from None
        checks = self._number_checks() if self.kind == "continuous" else self._category_checks()
        for wrong, sentence in [
            (not _are_ranks(self.ranks), "has ranks that are not two ascending lists of numbers."),
            (not 0 <= self.usual < np.inf, "has a usual range that is not a number from 0 on."),
            *checks,
        ]:
            if wrong:
                raise column_error(self.name, sentence)

    def _number_checks(self) -> Iterable[tuple[object, str]]:
        finite = "Leave it out to take it from the data, or give a number."
        lower, upper, step, tolerance = self.lower, self.upper, self.resolution, self.tolerance
        yield self.categories, "is continuous and has no categories."
        yield np.isinf(lower) or np.isinf(upper), f"has an infinite bound. {finite}"
        yield lower > upper, f"has bounds {lower:g} > {upper:g}."
        for name, value in (("resolution", step), ("tolerance", tolerance)):
            wrong = f"has a {name} of {value:g}; it must be a number from 0 on."
            yield value < 0 or np.isinf(value), wrong
        whole = f"holds whole numbers; they cannot be multiples of {step:g}."
        yield self.integer and step % 1, whole
        wide = f"has a tolerance of {tolerance:g}, as wide as its whole range."
        yield tolerance >= upper - lower > 0, wide

    def _category_checks(self) -> Iterable[tuple[object, str]]:
        levels, count = self.levels, len(self.categories)
        yield (
            any(v is None or v != v for v in levels),  # noqa: PLR0124  NaN
            "lists a missing value among its categories. Missing values need none: leave it out.",
        )
        if len(set(levels)) < len(levels):
            twice = next(v for k, v in enumerate(levels) if v in levels[:k])
            yield True, f"has the category {twice!r} twice."
        yield not count, f"is {self.kind} and needs categories."
        plural = "categories" if count > 1 else "category"
        yield self.kind == "binary" and count != 2, f"cannot be binary with {count} {plural}."
        only = "Only numbers have a notation or a tolerance."
        yield self.written or self.tolerance, f"is {self.kind}: every change of it counts. {only}"

    # -- properties -------------------------------------------------------------------------------

    @property
    def levels(self) -> tuple[Level, ...]:
        """The meanings of all codes: the categories, then the extras."""
        return self.categories + self.extra

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that its expression names, where it is derived."""
        return () if self.derived is None else parse(self.derived).columns

    @property
    def numeric(self) -> bool:
        """Whether order has a meaning: continuous and ordinal columns."""
        return self.kind in ("continuous", "ordinal")

    @property
    def is_date(self) -> bool:
        """Whether its numbers are dates, in days since 1970-01-01."""
        return self.written in DATES

    @property
    def holds_years(self) -> bool:
        """Whether its numbers look like years, which have no mark between thousands."""
        return self.integer and self.lower >= YEARS[0] and self.upper <= YEARS[1]

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
            >>> Feature("price", "continuous", resolution=0.25).text(1234.5)
            '1,234.50'
            >>> Feature("smoothness", "continuous", resolution=1e-6).text(0.3001)
            '0.3001'
            >>> Feature("mass", "continuous").text(1e30)
            '1e+30'
            >>> Feature("smoker", "binary", categories=["no", "yes"]).text(1.0)
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
            >>> Feature("price", "continuous", written="€1,234.56").number("€2,500")
            2500.0
        """
        plain = None if self.is_date else plain_number(text)
        if plain is not None:
            return plain
        separated = "" if self.written == YEAR else self.written
        return notation(separated or "1,234.56").number(text)

    def _plain_text(self, cell: float) -> str:
        if abs(cell) >= 1e15:  # too many digits to read
            return f"{cell:.4g}"
        if self.integer or cell == round(cell):
            return f"{cell:.0f}" if self.holds_years else f"{cell:,.0f}"
        if self.resolution:
            digits = decimals(self.resolution)
            text = f"{cell:,.{digits}f}"
            return text.rstrip("0").rstrip(".") if digits > 2 else text  # 1.50 may be money
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
            >>> price = Feature("price", "continuous", lower=0, upper=9, resolution=0.1)
            >>> price.snap(np.array([0.29]))
            array([0.3])
        """
        return self.lattice.snap(values)


def _are_ranks(ranks: Any) -> bool:
    """Returns whether ranks are two equally long lists of ascending numbers, or empty."""
    try:
        values, percentiles = np.array(ranks, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return False
    rising = bool((np.diff(values) > 0).all() and (np.diff(percentiles) > 0).all())
    return values.ndim == 1 and bool(np.isfinite([values, percentiles]).all()) and rising


# A column as its user declares it: its kind, all of it, or some of its settings by name.
Override: TypeAlias = str | Feature | Mapping[str, Any]


def column_error(name: str, sentence: str) -> InputError:
    """Returns the error about a column that cannot be used."""
    return InputError(f"Column '{name}' {sentence}")


# How something is said of a column: its name and kind as an argument, or as options of a command.
Say: TypeAlias = Callable[[Mapping[str, str]], str]
SETTLED = {"drop": "drop it", "id": "let it identify the rows"}  # else: say it is that kind


def say_in_python(kinds: Mapping[str, str]) -> str:
    """Returns the argument that says what columns are; `number:12k` is how one is written."""
    said = {name: kind.partition(":")[2] for name, kind in kinds.items()}
    return f"schema={ {n: {'written': said[n]} if said[n] else k for n, k in kinds.items()} }"


class ColumnError(InputError):
    """A column that is used only once its user says what it is.

    Examples:
        >>> raise ColumnError("ref", "only counts the rows.", "drop", "number")
        Traceback (most recent call last):
        lapace.schema.features.ColumnError: Column 'ref' only counts the rows. Drop it \
(schema={'ref': 'drop'}), or say it is 'number' (schema={'ref': 'number'}).
    """

    def __init__(self, name: str, sentence: str, *kinds: str) -> None:
        self.name, self.sentence, self.kinds = name, sentence, kinds
        super().__init__(self.text(say_in_python))

    def __reduce__(self) -> Any:  # from another process it comes as a message
        return InputError, (str(self),)

    def text(self, say: Say) -> str:
        """Returns the message in the words of Python, or of a command."""
        written = "say how it is written"  # number:1.23456k
        words = [
            SETTLED.get(k) or (written if ":" in k else f"say it is '{k}'") for k in self.kinds
        ]
        said = (say({self.name: kind}) for kind in self.kinds)
        *others, last = (f"{way} ({how})" for way, how in zip(words, said, strict=True))
        listed = f"{', '.join(others)}, or {last}" if others else last
        return f"Column '{self.name}' {self.sentence} {listed[0].upper()}{listed[1:]}."


class ColumnsError(InputError):
    """All columns of a table that cannot be used as they are, in one message."""

    def __init__(self, errors: Mapping[str, InputError]) -> None:
        self.errors = errors
        super().__init__(self.text(say_in_python))

    def __reduce__(self) -> Any:
        return InputError, (str(self),)

    def text(self, say: Say) -> str:
        """Returns the message in the words of Python, or of a command."""
        lines = [
            e.text(say) if isinstance(e, ColumnError) else str(e) for e in self.errors.values()
        ]
        if len(lines) == 1:
            return lines[0]
        lines = [f"{len(lines)} columns cannot be used as they are:", *lines]
        dropped = say(dict.fromkeys(self.errors, "drop"))
        return "\n  ".join(lines) + f"\nTo drop all of them: {dropped}"


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

    @classmethod
    def side_by_side(cls, features: Iterable[Feature]) -> Lattice:
        """Returns the lattices of several columns; categories without order have none."""
        return cls(*np.array([f.lattice for f in features], dtype=np.float64).reshape(-1, 5).T)

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
