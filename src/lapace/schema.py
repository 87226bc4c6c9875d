"""What the columns of a table are, and how rows become numbers and come back.

Inside the library rows are *cells*: a float64 matrix with one column per feature, numbers in their
own units, categories as positions in `Feature.levels`, missing as NaN. `Schema.read` makes cells
of any table, `Schema.frame` makes a table of cells, `Schema.encode` and `Schema.decode` go between
cells and the matrix the network sees: continuous columns first, then one block per category
column, then one flag per number that may be missing.

Numbers are coded by rank: a value's place among the training values, as a normal score. One map
tames long tails, turns a spike (most people have no savings) into a flat zone that a decoder
cannot miss, and keeps whatever is decoded inside the range that was seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from lapace.errors import InputError, did_you_mean
from lapace.table import Coded, Column, Level, Table, Template, read

__all__ = ["Feature", "Reading", "Schema"]

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Kind: TypeAlias = Literal["continuous", "ordinal", "binary", "categorical"]

KNOTS = 256  # support points of a column's rank map; more do not change a decoded value
PROPOSED = 64  # categories of a column that answers may propose; rarer ones are kept, not proposed
RARE = 5  # rows under which a histogram bin or category count is not shown


class Knots(NamedTuple):
    """A column's rank map: `values` and the normal scores each of them stands for.

    A value shared by many rows owns the scores from `low` to `high`; others own a point.
    """

    values: Floats
    low: Floats
    mid: Floats
    high: Floats

    @classmethod
    def fit(cls, values: Floats) -> Knots:
        """Mid-rank normal scores, standardised over the training rows."""
        distinct, counts = np.unique(values, return_counts=True)
        share = counts / counts.sum()
        top = np.cumsum(share)
        mid = ndtri(top - share / 2)
        centre = float(share @ mid)
        scale = float(np.sqrt(share @ (mid - centre) ** 2)) or 1.0
        # A spike owns nine tenths of its mass; the rest leads on to its neighbours, so that
        # values never seen, in between, still have a score of their own.
        heavy = (share >= 0.01) & (counts >= RARE)
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
        description: A sentence for people.
        knots: The rank map of a numeric column.
        histogram: Edges and counts, or one count per category; small ones merged or hidden.

    Examples:
        >>> Feature.ordinal("size", ["small", "large"]).levels
        ('small', 'large')
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
        """A number; bounds left out are those seen in training."""
        step = resolution or (1.0 if integer else 0.0)
        return cls(name, "continuous", integer, lower, upper, step)

    @classmethod
    def ordinal(cls, name: str, categories: Sequence[Level]) -> Feature:
        """Categories in a meaningful order, least first."""
        top = len(categories) - 1
        return cls(name, "ordinal", True, 0.0, float(top), 1.0, tuple(categories))

    @classmethod
    def categorical(cls, name: str, categories: Sequence[Level]) -> Feature:
        """Categories without an order."""
        return cls(name, "categorical", categories=tuple(categories))

    @classmethod
    def binary(cls, name: str, categories: Sequence[Level] = (False, True)) -> Feature:
        """Exactly two categories."""
        if len(categories) != 2:
            raise InputError(f"Column '{name}' cannot be binary with {len(categories)} categories.")
        return cls(name, "binary", categories=tuple(categories))

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
        """A cell as a person writes it."""
        if np.isnan(cell):
            return "missing"
        if self.categories and 0 <= cell < len(self.levels):
            return str(self.levels[round(cell)])
        if self.integer or cell == round(cell):
            return f"{cell:,.0f}"
        decimals = max(0, -_exponent(self.resolution)) if self.resolution else 3
        return f"{cell:,.{decimals}f}" if self.resolution else f"{cell:.4g}"


class Reading(NamedTuple):
    """A table read against a schema.

    Attributes:
        schema: The schema, widened by levels met here and never before.
        cells: The rows.
        problems: Row number to sentence, for rows that cannot be used.
        template: What the table was.
    """

    schema: Schema
    cells: Floats
    problems: dict[int, str]
    template: Template


@dataclass(frozen=True)
class Schema:
    """All columns, in order.

    Examples:
        >>> people = [{"age": 20 + i % 50, "home": ["own", "rent"][i % 2]} for i in range(100)]
        >>> schema = Schema.infer(people)
        >>> [(f.name, f.kind) for f in schema.features]
        [('age', 'continuous'), ('home', 'binary')]
        >>> schema.distance([people[0]], [people[1]]).round(3).tolist()
        [1.02]
    """

    features: tuple[Feature, ...]
    template: Template

    # -- making one -------------------------------------------------------------------------------

    @classmethod
    def infer(cls, data: Any, overrides: Mapping[str, str | Feature] | None = None) -> Schema:
        """Looks at a table and says what each column is.

        Args:
            data: The training table, features only.
            overrides: For some columns the kind (`"categorical"` for a number that is a code) or
                a whole `Feature`.
        """
        table = read(data)
        overrides = overrides or {}
        for name in overrides:
            if name not in table.names:
                raise _no_column(name, table.names)
        if not table.names:
            raise InputError("The table has no columns.")
        if len(table) == 0:
            raise InputError("The table has no rows. Hand over at least a few hundred.")
        features = tuple(
            _infer(name, table.columns[name], overrides.get(name)) for name in table.names
        )
        return cls(features, table.template)

    def described(self, descriptions: Mapping[str, str]) -> Schema:
        """The same schema with sentences for people on some of its columns."""
        for name in descriptions:
            self.index(name)
        features = tuple(
            replace(f, description=descriptions.get(f.name, f.description)) for f in self.features
        )
        return replace(self, features=features)

    # -- looking ----------------------------------------------------------------------------------

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(f.name for f in self.features)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one row where rows are images."""
        return self.template.shape

    def index(self, name: str) -> int:
        """A column's position."""
        try:
            return self.names.index(name)
        except ValueError:
            raise _no_column(name, self.names) from None

    def __getitem__(self, name: str) -> Feature:
        return self.features[self.index(name)]

    @cached_property
    def numeric(self) -> NDArray[np.int64]:
        """Positions of the continuous and ordinal columns: the first of the encoded matrix."""
        return np.array([i for i, f in enumerate(self.features) if f.numeric], dtype=np.int64)

    @cached_property
    def categorical(self) -> NDArray[np.int64]:
        """Positions of the binary and categorical columns."""
        return np.array([i for i, f in enumerate(self.features) if not f.numeric], dtype=np.int64)

    @cached_property
    def blocks(self) -> tuple[tuple[int, int, int], ...]:
        """(feature, start, width) of each category block in the encoded matrix."""
        found, start = [], len(self.numeric)
        for i in self.categorical:
            width = self.features[i].width
            if width:
                found.append((int(i), start, width))
                start += width
        return tuple(found)

    @cached_property
    def flags(self) -> tuple[tuple[int, int], ...]:
        """(feature, column) of each missing flag in the encoded matrix."""
        start = len(self.numeric) + sum(width for _, _, width in self.blocks)
        nullable = [int(i) for i in self.numeric if self.features[i].missing]
        return tuple((i, start + k) for k, i in enumerate(nullable))

    @property
    def width(self) -> int:
        """Columns of the encoded matrix."""
        return len(self.numeric) + sum(w for _, _, w in self.blocks) + len(self.flags)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of everything after the continuous columns: what the network must know."""
        return tuple(w for _, _, w in self.blocks) + (1,) * len(self.flags)

    # -- frames and cells -------------------------------------------------------------------------

    def read(self, data: Any) -> Reading:
        """A table's rows as cells.

        Columns may come in any order; extra ones are left aside. A row that cannot be used (an
        infinity, text where a number belongs) is named in `problems` and costs no other row.
        """
        table = read(data)
        for name in self.names:
            if name not in table.names:
                raise _missing_column(name, table.names)
        cells = np.full((len(table), len(self.features)), np.nan)
        problems: dict[int, str] = {}
        features = []
        for i, feature in enumerate(self.features):
            column = table.columns[feature.name]
            if column.kind in ("date", "other"):
                raise InputError(_unreadable(feature.name, column.kind))
            if feature.kind == "continuous":
                cells[:, i] = _numbers(feature, column, problems)
                features.append(feature)
            else:
                wide, cells[:, i] = _codes(feature, column, problems)
                features.append(wide)
        schema = replace(self, features=tuple(features))
        return Reading(schema, cells, problems, table.template.select(self.names))

    def cells(self, data: Any) -> Floats:
        """A table's rows as cells, or an `InputError` about the first that cannot be used."""
        if isinstance(data, np.ndarray) and data.dtype == np.float64 and self.shape is None:
            if data.ndim == 2 and self.template.kind != "array":
                return data
        reading = self.read(data)
        if reading.problems:
            raise InputError(min(reading.problems.items())[1])
        return reading.cells

    def frame(self, cells: Floats, template: Template | None = None) -> Any:
        """Cells as a table, by default of the kind the schema was inferred from."""
        columns: dict[str, NDArray[Any] | Coded] = {}
        for i, feature in enumerate(self.features):
            values = cells[:, i]
            if feature.kind == "continuous":
                columns[feature.name] = values
            else:
                codes = np.where(np.isnan(values), -1, values).astype(np.int64)
                columns[feature.name] = Coded(codes, feature.levels)
        return (template or self.template).build(columns)

    # -- the matrix the network sees --------------------------------------------------------------

    def encode(self, cells: Floats) -> Floats:
        """Cells to the matrix the network sees.

        A number is its standardised score; a missing one the middle, with its flag up; a category
        unknown to training is a block of zeros.
        """
        encoded = np.zeros((len(cells), self.width))  # (n, width)
        for k, i in enumerate(self.numeric):
            values = cells[:, i]
            there = ~np.isnan(values)
            encoded[there, k] = _knots(self.features[i]).scores(values[there])
        for i, start, width in self.blocks:
            feature, codes = self.features[i], cells[:, i]
            if width == 1:
                second = np.isnan(codes) if feature.missing else codes == 1
                encoded[:, start] = second
            else:
                slots = np.where(np.isnan(codes), _missing_slot(feature), codes).astype(np.int64)
                rows = np.flatnonzero((slots >= 0) & (slots < width))
                rows = rows[~(codes[rows] >= len(feature.categories))]
                encoded[rows, start + slots[rows]] = 1.0
        for i, column in self.flags:
            encoded[:, column] = np.isnan(cells[:, i])
        return encoded

    def decode(self, encoded: Floats) -> Floats:
        """The matrix back to cells: nearest lattice values, likeliest categories."""
        cells = np.full((len(encoded), len(self.features)), np.nan)
        cells[:, self.numeric] = self.units(encoded[:, : len(self.numeric)])
        for i in self.categorical:
            cells[:, i] = 0.0 if not self.features[i].width else np.nan
        for i, start, width in self.blocks:
            scores = encoded[:, start : start + width]
            slots = scores[:, 0] > 0.5 if width == 1 else scores.argmax(axis=1)
            cells[:, i] = np.where(slots == _missing_slot(self.features[i]), np.nan, slots)
        for i, column in self.flags:
            cells[encoded[:, column] > 0.5, i] = np.nan
        return cells

    def units(self, scores: Floats) -> Floats:
        """Scores of the numeric columns to values on their lattice, inside their bounds."""
        values = np.empty_like(scores, dtype=np.float64)  # (n, numeric)
        for k, i in enumerate(self.numeric):
            feature = self.features[i]
            values[:, k] = _snap(feature, _knots(feature).units(scores[:, k]))
        return values

    def snap(self, cells: Floats) -> Floats:
        """Numbers moved into their bounds and onto their lattice; categories untouched."""
        snapped = cells.copy()
        for i in self.numeric:
            snapped[:, i] = _snap(self.features[i], cells[:, i])
        return snapped

    # -- distance ---------------------------------------------------------------------------------

    @cached_property
    def spans(self) -> Floats:
        """What a difference of 1 means in each column."""
        return np.array([f.span if f.numeric else 1.0 for f in self.features])

    @cached_property
    def _tolerance(self) -> Floats:
        """Half a step: under this two numbers are the same number."""
        return np.array([f.step / 2 if f.numeric else 0.5 for f in self.features])

    @cached_property
    def _is_category(self) -> Bools:
        return np.array([not f.numeric for f in self.features])

    def gaps(self, a: Floats, b: Floats) -> Floats:
        """Each column's share of the distance between cells."""
        gone_a, gone_b = np.isnan(a), np.isnan(b)
        difference = np.abs(a - b) / self.spans  # (..., d)
        difference = np.where(self._is_category, difference > 0.5, difference)
        return np.where(gone_a | gone_b, (gone_a != gone_b).astype(float), difference)

    def distance(self, a: Any, b: Any, costs: Mapping[str, float] | None = None) -> Floats:
        """How far rows of `a` are from rows of `b`, in L1.

        A number counts its difference over the range seen in training, an ordinal its steps over
        the number of steps there are, a change of category 1, missing against present 1.

        Args:
            a: Cells or a table.
            b: Cells or a table of the same length.
            costs: A weight for some of the columns.
        """
        left, right = self.cells(a), self.cells(b)
        return self.gaps(left, right) @ self.weights(costs)

    def weights(self, costs: Mapping[str, float] | None) -> Floats:
        """Costs by name as one weight per column."""
        weights = np.ones(len(self.features))
        for name, cost in (costs or {}).items():
            if not cost >= 0:
                raise InputError(f"The cost of '{name}' is {cost}; it must be zero or more.")
            weights[self.index(name)] = cost
        return weights

    def changed(self, a: Floats, b: Floats) -> Bools:
        """Where cells differ by more than half a step of their column."""
        gone_a, gone_b = np.isnan(a), np.isnan(b)
        apart = np.abs(a - b) > self._tolerance
        return np.where(gone_a | gone_b, gone_a != gone_b, apart)

    # -- JSON -------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "template": self.template.to_json(),
            "features": [_feature_to_json(f) for f in self.features],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        """The inverse of `to_json`."""
        features = tuple(_feature_from_json(f) for f in data["features"])
        return cls(features, Template.from_json(data["template"]))


# ------------------------------------------------------------------------------------------------
# Inferring


def _infer(name: str, column: Column, override: str | Feature | None) -> Feature:
    if column.kind in ("date", "other"):
        raise InputError(_unreadable(name, column.kind))
    if column.missing.all():
        raise InputError(f"Column '{name}' has no value in any row. Drop it.")
    if isinstance(override, Feature):
        return _fitted(replace(override, name=name), column)
    kinds = ("continuous", "ordinal", "binary", "categorical")
    if override is not None and override not in kinds:
        raise InputError(f"'{override}' is no kind of column. There are: {', '.join(kinds)}.")
    kind = override or _guess(name, column)
    if kind == "continuous":
        if isinstance(column.values, Coded) and column.kind not in ("integer", "number", "boolean"):
            raise InputError(f"Column '{name}' holds text and cannot be continuous.")
        return _fitted(Feature.continuous(name), column)
    levels = column.ordered or _levels(column)
    if kind == "ordinal":
        if column.ordered is None and any(isinstance(v, str) for v in levels):
            raise InputError(
                f"Column '{name}' cannot be ordinal without its order. Say "
                f"Feature.ordinal('{name}', [least, ..., greatest])."
            )
        return _fitted(Feature.ordinal(name, levels), column)
    if kind == "binary":
        return _fitted(Feature.binary(name, levels), column)
    return _fitted(Feature.categorical(name, levels), column)


def _guess(name: str, column: Column) -> Kind:
    values = column.values
    if column.ordered is not None:
        return "ordinal" if len(column.ordered) > 2 else "binary"
    if column.kind == "mixed":
        raise InputError(
            f"Column '{name}' mixes numbers and text. Make it one of them, or say it is "
            "'categorical'."
        )
    if isinstance(values, Coded):
        _refuse_identifiers(name, values)
        return "binary" if len(np.unique(values.codes[values.codes >= 0])) == 2 else "categorical"
    there = values[~np.isnan(values)]
    if not np.isfinite(there).all():
        row = int(np.flatnonzero(np.isinf(values))[0])
        raise InputError(f"Column '{name}' holds an infinity in row {row}. Use a number or none.")
    distinct = np.unique(there)
    if distinct.tolist() == [0.0, 1.0]:
        return "binary"
    running = column.kind == "integer" and len(there) == len(distinct) >= 50
    if running and distinct[-1] - distinct[0] == len(distinct) - 1:
        raise InputError(
            f"Column '{name}' only numbers the rows. Drop it, or say it is 'continuous'."
        )
    return "continuous"


def _refuse_identifiers(name: str, values: Coded) -> None:
    rows = int((values.codes >= 0).sum())
    distinct = len(np.unique(values.codes[values.codes >= 0]))
    if rows >= 50 and distinct > rows / 2:
        raise InputError(
            f"Column '{name}' holds {distinct:,} different texts in {rows:,} rows, as names, "
            "identifiers or free text do. Drop it, or say it is 'categorical'."
        )


def _levels(column: Column) -> tuple[Level, ...]:
    """The categories seen, most of them: when there are very many, the most frequent."""
    if not isinstance(column.values, Coded):
        numbers, counts = np.unique(column.values[~column.missing], return_counts=True)
        levels: list[Level] = [_tidy(v) for v in numbers]
    else:
        codes, counts = np.unique(column.values.codes[~column.missing], return_counts=True)
        levels = [column.values.levels[c] for c in codes]
    order = np.argsort(-counts, kind="stable")[:PROPOSED]
    return tuple(sorted((levels[i] for i in order), key=lambda v: (str(type(v)), v)))


def _tidy(value: float) -> int | float:
    return int(value) if value == int(value) else float(value)


def _fitted(feature: Feature, column: Column) -> Feature:
    """A feature with what only the data can say: bounds, lattice, rank map, histogram."""
    problems: dict[int, str] = {}
    if feature.kind == "continuous":
        cells = _numbers(feature, column, problems)
    else:
        _, cells = _codes(feature, column, problems)
    if problems:
        raise InputError(min(problems.items())[1])
    there = cells[~np.isnan(cells)]
    missing = bool(np.isnan(cells).any())
    if not feature.numeric:
        known = there[there < len(feature.categories)].astype(np.int64)
        counts = np.bincount(known, minlength=len(feature.categories))
        shown = tuple(int(c) if c >= RARE else 0 for c in counts)
        return replace(feature, missing=missing, histogram=((), shown))
    there = there[there < len(feature.categories)] if feature.categories else there
    if feature.kind == "continuous":
        feature = _with_lattice(feature, there, whole=column.kind == "integer")
    knots = Knots.fit(np.clip(there, feature.lower, feature.upper))
    return replace(feature, missing=missing, knots=knots, histogram=_histogram(there))


def _with_lattice(feature: Feature, values: Floats, whole: bool) -> Feature:
    resolution = feature.resolution or _resolution(values)
    lower = float(values.min()) if np.isnan(feature.lower) else feature.lower
    upper = float(values.max()) if np.isnan(feature.upper) else feature.upper
    if lower > upper:
        raise InputError(f"Column '{feature.name}' has bounds {lower} > {upper}.")
    integer = feature.integer or whole or (resolution >= 1 and resolution == round(resolution))
    return replace(feature, lower=lower, upper=upper, resolution=resolution, integer=integer)


def _resolution(values: Floats) -> float:
    """The coarsest lattice all values lie on: a common divisor, at most six decimals; else 0."""
    distinct = np.unique(values)
    for decimals in range(7):
        scaled = distinct * 10.0**decimals
        whole = np.rint(scaled)
        if np.abs(whole).max() > 2**52:
            return 0.0
        if np.allclose(scaled, whole, rtol=0, atol=1e-6):
            divisor = int(np.gcd.reduce(whole.astype(np.int64)))
            # A few odd values can share a divisor by chance; a power of ten is then the safer step.
            if len(distinct) < 10:
                divisor = 1
            return float(f"{(divisor or 1) / 10**decimals:.12g}")
    return 0.0


def _histogram(values: Floats, bins: int = 16) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Edges and counts; a bin of few rows joins its neighbour, so nobody can be picked out."""
    counts, edges = np.histogram(values, bins=bins)
    kept_edges, kept_counts = [float(edges[0])], [0]
    for count, edge in zip(counts, edges[1:], strict=True):
        kept_counts[-1] += int(count)
        if kept_counts[-1] >= RARE:
            kept_edges.append(float(edge))
            kept_counts.append(0)
    if len(kept_edges) == 1:
        return (float(edges[0]), float(edges[-1])), (int(counts.sum()),)
    rest = kept_counts.pop()
    kept_counts[-1] += rest
    kept_edges[-1] = float(edges[-1])
    return tuple(kept_edges), tuple(kept_counts)


# ------------------------------------------------------------------------------------------------
# Cells of one column


def _numbers(feature: Feature, column: Column, problems: dict[int, str]) -> Floats:
    """A column as numbers; text is taken for the number it spells."""
    if isinstance(column.values, Coded):
        spelt = np.array([*(_spelt(v) for v in column.values.levels), np.nan])
        values = spelt[column.values.codes]
        for row in np.flatnonzero(np.isnan(values) & ~column.missing):
            level = column.values.levels[column.values.codes[row]]
            problems.setdefault(
                int(row), f"Column '{feature.name}' holds {level!r} in row {row}, not a number."
            )
    else:
        values = column.values.copy()
    for row in np.flatnonzero(np.isinf(values)):
        problems.setdefault(
            int(row),
            f"Column '{feature.name}' holds an infinity in row {row}. Use a number or none.",
        )
        values[row] = np.nan
    return values


def _spelt(level: Level) -> float:
    try:
        return float(level)
    except (TypeError, ValueError):
        return np.nan


def _codes(feature: Feature, column: Column, problems: dict[int, str]) -> tuple[Feature, Floats]:
    """A column as codes, and the feature widened by levels it does not know."""
    if isinstance(column.values, Coded):
        codes, levels = column.values.codes, column.values.levels
    else:
        numbers, codes = np.unique(column.values, return_inverse=True)
        levels = tuple(_tidy(v) if np.isfinite(v) else float(v) for v in numbers)
        codes = np.where(column.missing, -1, codes)
    used = np.zeros(len(levels) + 1, dtype=bool)
    used[codes] = True
    positions = {level: i for i, level in enumerate(feature.levels)}
    texts = {str(level): i for i, level in enumerate(feature.levels)}
    extra = list(feature.extra)
    translation = np.full(len(levels) + 1, np.nan)
    for k, level in enumerate(levels):
        if not used[k]:
            continue
        found = positions.get(level, texts.get(str(level)))
        if found is None and _fits(feature, level):
            found = len(feature.categories) + len(extra)
            extra.append(level)
        if found is not None:
            translation[k] = found
            continue
        for row in np.flatnonzero(codes == k):
            problems.setdefault(
                int(row), f"Column '{feature.name}' holds {level!r} in row {row}, not a number."
            )
    return replace(feature, extra=tuple(extra)), translation[codes]


def _fits(feature: Feature, level: Level) -> bool:
    """Whether an unknown level can stand in this column: no text among numbers."""
    numbers = bool(feature.categories) and not any(isinstance(v, str) for v in feature.categories)
    return not (numbers and (isinstance(level, str) or not np.isfinite(level)))


def _missing_slot(feature: Feature) -> int:
    """Where 'missing' stands in a category block; -1 when it never was."""
    return len(feature.categories) if feature.missing else -1


def _knots(feature: Feature) -> Knots:
    if feature.knots is None:
        raise InputError(f"Column '{feature.name}' has no rank map: infer the schema from data.")
    return feature.knots


def _snap(feature: Feature, values: Floats) -> Floats:
    if feature.resolution:
        exponent = _exponent(feature.resolution)
        values = np.rint(values / feature.resolution) * feature.resolution
        if exponent < 0:  # 0.1 * 3 is not 0.3: write the number a person would
            values = np.round(values, -exponent)
    return np.clip(values, feature.lower, feature.upper)


def _exponent(resolution: float) -> int:
    """The power of ten of a lattice's last decimal: -2 for 0.01 and for 0.25."""
    text = f"{resolution:.12f}".rstrip("0")
    return -len(text.split(".")[1])


# ------------------------------------------------------------------------------------------------
# Sentences and JSON


def _no_column(name: str, names: Sequence[str]) -> InputError:
    return InputError(f"Column '{name}' is not in the table.{did_you_mean(name, names)}")


def _missing_column(name: str, given: Sequence[str]) -> InputError:
    """A column the schema needs and the table lacks; perhaps it is there, misspelt."""
    near = did_you_mean(name, given).replace(" Did you mean", " Is it the one called")
    return InputError(f"The table lacks column '{name}'.{near}")


def _unreadable(name: str, kind: str) -> str:
    if kind == "date":
        return (
            f"Column '{name}' holds dates. Turn it into a number (days since a fixed day), "
            "or drop it."
        )
    return f"Column '{name}' holds values that are neither numbers nor text. Convert or drop it."


def _feature_to_json(feature: Feature) -> dict[str, Any]:
    knots = feature.knots
    return {
        "name": feature.name,
        "kind": feature.kind,
        "integer": feature.integer,
        "lower": feature.lower,
        "upper": feature.upper,
        "resolution": feature.resolution,
        "categories": list(feature.categories),
        "extra": list(feature.extra),
        "missing": feature.missing,
        "description": feature.description,
        "knots": None if knots is None else [k.tolist() for k in knots],
        "histogram": [list(part) for part in feature.histogram],
    }


def _feature_from_json(data: Mapping[str, Any]) -> Feature:
    knots = data["knots"]
    edges, counts = data["histogram"]
    return Feature(
        **{k: data[k] for k in ("name", "kind", "integer", "lower", "upper", "resolution")},
        categories=tuple(data["categories"]),
        extra=tuple(data["extra"]),
        missing=data["missing"],
        description=data["description"],
        knots=None if knots is None else Knots(*(np.array(k, dtype=np.float64) for k in knots)),
        histogram=(tuple(edges), tuple(counts)),
    )
