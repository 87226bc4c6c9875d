"""One column: what it holds, which values it may take, and its rank map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from scipy.special import ndtri

from lapace.arrays import Bools, Floats
from lapace.errors import InputError, did_you_mean
from lapace.table import Level

Kind: TypeAlias = Literal["continuous", "ordinal", "binary", "categorical"]

KINDS = ("continuous", "ordinal", "binary", "categorical")
KNOTS = 256  # support points of a column's rank map; more do not change a decoded value
RARE = 5  # rows under which a histogram bin or category count is not shown
SPIKE = 0.01  # share of the rows from which a value owns an interval of scores
FLAT = 0.25  # least spread a column is stretched from: a nearly constant one must not shout


class Knots(NamedTuple):
    """A column's rank map: `values` and the normal scores each of them stands for.

    A value shared by many rows owns the scores from `low` to `high`; others own a point. With
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
        # A spike owns nine tenths of its mass; the rest leads on to its neighbours, so that
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
        """Scores to values: the piecewise-linear inverse, flat where a value owns an interval."""
        grid = np.stack([self.low, self.high], axis=1).ravel()
        return np.interp(scores, grid, np.repeat(self.values, 2))

    def slopes(self, scores: Floats) -> Floats:
        """How fast values rise with the score, from one value's middle to the next one's.

        Nowhere flat, so that a gradient finds its way out of a spike, and back from beyond the
        ends.
        """
        if len(self.values) < 2:
            return np.zeros_like(scores)
        left = np.clip(np.searchsorted(self.mid, scores) - 1, 0, len(self.mid) - 2)
        rise: Floats = np.diff(self.values) / np.maximum(np.diff(self.mid), 1e-9)
        return rise[left]


def _spread(top: Floats, count: int) -> Bools:
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
        lower: Least value an answer may have.
        upper: Greatest value an answer may have.
        resolution: Values are multiples of this (1 for whole numbers); 0 for none.
        categories: The categories that answers may propose, ordinals in their order.
        extra: Levels met in a query that training does not know; kept, never proposed.
        missing: Whether missing values were seen in training.
        description: A sentence for instances.
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
    knots: Knots | None = field(default=None, repr=False, compare=False)
    histogram: tuple[tuple[float, ...], tuple[int, ...]] = field(default=((), ()), repr=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_kind(self.kind)
        if self.kind == "continuous":
            self._check_numbers()
            return
        self._check_categories()
        if self.kind == "ordinal":  # its numbers are the codes
            own = {"integer": True, "lower": 0.0, "resolution": 1.0}
            for name, value in {**own, "upper": float(len(self.categories) - 1)}.items():
                object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        if self.categories:
            raise InputError(f"Column '{self.name}' is continuous and has no categories.")
        if np.isinf(self.lower) or np.isinf(self.upper):
            raise InputError(
                f"Column '{self.name}' has an infinite bound. Leave it out to take it from the "
                "data, or give a number."
            )
        if self.lower > self.upper:
            raise InputError(f"Column '{self.name}' has bounds {self.lower:g} > {self.upper:g}.")
        if not (self.resolution >= 0 and np.isfinite(self.resolution)):
            raise InputError(
                f"Column '{self.name}' has a resolution of {self.resolution}; it must be a "
                "number over 0, or 0 for none."
            )
        if self.integer and self.resolution % 1:
            raise InputError(
                f"Column '{self.name}' holds whole numbers; they cannot be multiples of "
                f"{self.resolution:g}."
            )

    def _check_categories(self) -> None:
        levels = self.levels
        if any(v is None or v != v for v in levels):  # noqa: PLR0124  NaN
            raise InputError(
                f"Column '{self.name}' lists a missing value among its categories. Leave it out: "
                "missing values need no category."
            )
        if len(set(levels)) < len(levels):
            twice = next(v for k, v in enumerate(levels) if v in levels[:k])
            raise InputError(f"Column '{self.name}' has the category {twice!r} twice.")
        if not self.categories:
            raise InputError(f"Column '{self.name}' is {self.kind} and needs categories.")
        if self.kind == "binary" and len(self.categories) != 2:
            count = len(self.categories)
            plural = "categories" if count > 1 else "category"
            raise InputError(f"Column '{self.name}' cannot be binary with {count} {plural}.")

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
    ) -> Feature:
        """A number; bounds and resolution left out are those seen in training.

        Examples:
            >>> Feature.continuous("age", lower=18, integer=True).step
            1.0
        """
        step = resolution or (1.0 if integer else 0.0)
        return cls(name, "continuous", integer, float(lower), float(upper), float(step))

    @classmethod
    def ordinal(cls, name: str, categories: Sequence[Level]) -> Feature:
        """Categories in a meaningful order, least first.

        Examples:
            >>> Feature.ordinal("size", ["small", "large"]).span
            1.0
        """
        return cls(name, "ordinal", categories=tuple(categories))

    @classmethod
    def categorical(cls, name: str, categories: Sequence[Level]) -> Feature:
        """Categories without an order.

        Examples:
            >>> Feature.categorical("home", ["own", "rent", "other"]).width
            3
        """
        return cls(name, "categorical", categories=tuple(categories))

    @classmethod
    def binary(cls, name: str, categories: Sequence[Level] = (False, True)) -> Feature:
        """Exactly two categories.

        Examples:
            >>> Feature.binary("smoker", ["no", "yes"]).width
            1
        """
        return cls(name, "binary", categories=tuple(categories))

    # -- looking ----------------------------------------------------------------------------------

    @property
    def levels(self) -> tuple[Level, ...]:
        """All codes' meanings: the categories, then the extras."""
        return self.categories + self.extra

    @property
    def numeric(self) -> bool:
        """Whether order has a meaning: continuous and ordinal columns."""
        return self.kind in ("continuous", "ordinal")

    @property
    def span(self) -> float:
        """The reference range that distances are measured in."""
        return self.upper - self.lower or 1.0

    @property
    def step(self) -> float:
        """The least difference that counts: what `<` moves by."""
        return self.resolution or self.span * 1e-6

    @property
    def width(self) -> int:
        """Columns its category block takes in the encoded matrix."""
        states = len(self.categories) + self.missing
        if self.numeric or states < 2:
            return 0
        return 1 if states == 2 else states

    def text(self, cell: float) -> str:
        """A cell as an instance writes it.

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
        if abs(cell) >= 1e15:  # nobody counts that many digits
            return f"{cell:.4g}"
        if self.integer or cell == round(cell):
            return f"{cell:,.0f}"
        if self.resolution:
            return f"{cell:,.{decimals(self.resolution)}f}"
        return f"{cell:.4g}" if abs(cell) < 1e4 else f"{cell:,.0f}"

    def snap(self, values: Floats) -> Floats:
        """Values moved into the bounds and onto the lattice.

        Levels that training does not know have no place in an order: they stay as they are.

        Examples:
            >>> Feature.continuous("price", lower=0, upper=9, resolution=0.1).snap(np.array([0.29]))
            array([0.3])
        """
        snapped = np.clip(on_lattice(values, self.resolution), self.lower, self.upper) + 0.0
        return np.where(values >= len(self.categories), values, snapped) if self.extra else snapped

    # -- JSON -------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        plain = {name: getattr(self, name) for name in PLAIN}
        return {
            **plain,
            "categories": list(self.categories),
            "extra": list(self.extra),
            "knots": None if self.knots is None else [k.tolist() for k in self.knots],
            "histogram": [list(part) for part in self.histogram],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Feature:
        """The inverse of `to_json`.

        Examples:
            >>> home = Feature.categorical("home", ["own", "rent"])
            >>> Feature.from_json(home.to_json()) == home
            True
        """
        knots, (edges, counts) = data["knots"], data["histogram"]
        return cls(
            **{name: data[name] for name in PLAIN},
            categories=tuple(data["categories"]),
            extra=tuple(data["extra"]),
            knots=None if knots is None else Knots(*(np.array(k, dtype=np.float64) for k in knots)),
            histogram=(tuple(edges), tuple(counts)),
        )


PLAIN = ("name", "kind", "integer", "lower", "upper", "resolution", "missing", "description")


def on_lattice(values: Floats, resolution: float) -> Floats:
    """Values moved to the nearest multiples of a resolution, if there is one."""
    if not resolution:
        return values
    places, multiples = decimals(resolution), np.rint(values / resolution) * resolution
    # 0.1 * 3 is not 0.3: write the number an instance would.
    return np.round(multiples, places) if places else multiples


def decimals(resolution: float) -> int:
    """Places after the point that multiples of a resolution need: 2 for 0.01 and for 0.25."""
    return len(f"{resolution:.12f}".rstrip("0").partition(".")[2])


def unknown_kind(kind: object) -> InputError:
    """The sentence about a kind of column there is not."""
    kinds = ", ".join(KINDS)
    return InputError(
        f"'{kind}' is no kind of column. There are: {kinds}.{did_you_mean(kind, KINDS)}"
    )
