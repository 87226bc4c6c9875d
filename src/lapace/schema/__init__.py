"""The columns of a table: their kinds, their encoding for the network, and the distance of rows.

Inside the library rows are *cells*: a float64 matrix with one column per feature, numbers in their
own units, categories as positions in `Feature.levels`, missing as NaN. `Schema.read` makes cells
of any table, `Schema.frame` makes a table of cells, `Schema.encode` and `Schema.decode` convert
between cells and the matrix the network sees: continuous columns first, then one block per category
column, then one flag per number that may be missing.

Numbers are encoded by rank: the position among the training values, as a normal score. That one map
compresses long tails, turns a spike (most applicants have no savings) into an interval that a
decoder cannot miss, and keeps decoded values inside the range that was seen.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from lapace.arrays import Bools, Floats, Ints
from lapace.errors import InputError, did_you_mean
from lapace.schema.columns import read_cells
from lapace.schema.derived import DerivedColumns
from lapace.schema.features import NO_RANKS, Feature, Knots, Override
from lapace.schema.inference import infer_features, no_column
from lapace.schema.scales import Axes, CategoryStates, NumberScales
from lapace.schema.summary import Overrides, column_lines, read_overrides, remarks, to_toml
from lapace.table import Coded, Table, Template, read, write_whole
from lapace.table.frames import as_coded

__all__ = ["Feature", "Knots", "Override", "Reading", "Schema"]


class Reading(NamedTuple):
    """A table read against a schema.

    Attributes:
        schema: The schema, widened by levels of this table that are unseen in training.
        cells: The rows, (n, d).
        problems: Row number to sentence, for rows that cannot be used.
        template: The kind of table it was.
        ids: Identifiers of the rows, where the table has any.

    Examples:
        >>> schema = Schema.infer([{"home": "own"}, {"home": "rent"}])
        >>> reading = schema.read([{"home": "boat"}])
        >>> reading.cells, reading.schema["home"].levels
        (array([[2.]]), ('own', 'rent', 'boat'))
    """

    schema: Schema
    cells: Floats
    problems: dict[int, str]
    template: Template
    ids: tuple[Any, ...] | None = None

    def checked(self) -> Reading:
        """The same, or an `InputError` about the first row that cannot be used."""
        if self.problems:
            raise InputError(min(self.problems.items())[1])
        return self


@dataclass(frozen=True)
class Schema:
    """All columns, in order.

    Examples:
        >>> instances = [{"age": 20 + i % 50, "home": ["own", "rent"][i % 2]} for i in range(100)]
        >>> schema = Schema.infer(instances)
        >>> [(f.name, f.kind) for f in schema.features]
        [('age', 'continuous'), ('home', 'binary')]
        >>> schema.distance(instances[:1], instances[1:2]).round(3).tolist()
        [1.02]
    """

    features: tuple[Feature, ...]
    template: Template

    @classmethod
    def infer(
        cls,
        data: Any,
        overrides: Overrides | str | Path | None = None,
        *,
        labels: Sequence[Any] | None = None,
    ) -> Schema:
        """Infers the kind, range and resolution of each column.

        Columns that cannot be used as they are (identifiers, free text, nothing in them, a copy of
        the label, a number that decides it) are named in one `InputError`, each with the word that
        settles it.

        Args:
            data: The training table, features only.
            overrides: For some columns the kind (`"categorical"` for a number that is a code,
                `"number"` or `"date"` for text that writes them), `"drop"` to leave it out, a
                whole `Feature` or some of its settings, as `{"tolerance": 0.5}`; or a file that
                says so, as `to_toml` writes it.
            labels: The label of each row, where known: a column that says the same is refused.

        Examples:
            >>> rows = [{"grade": g, "code": c} for g, c in zip("BACAB", [10, 20, 10, 30, 20])]
            >>> grade = Feature.ordinal("grade", ["C", "B", "A"])
            >>> schema = Schema.infer(rows, {"grade": grade, "code": "categorical"})
            >>> schema["code"].categories, schema.cells(rows)[:, 0]
            ((10, 20, 30), array([1., 2., 0., 2., 1.]))
        """
        table, said = read(data), read_overrides(overrides)
        features = infer_features(table, said, labels)
        kept = table.template.select([feature.name for feature in features])
        schema = cls(features, replace(kept, index=()))
        schema.derived  # noqa: B018  refuses unknown inputs and circles
        # Pixels share one scale: passing others at one pixel is no effort.
        return schema if schema.shape is None else schema.by_range()

    def described(self, descriptions: Mapping[str, str]) -> Schema:
        """The same schema with a sentence on some of its columns."""
        features = list(self.features)
        for name, sentence in descriptions.items():
            features[self.index(name)] = replace(self[name], description=sentence)
        return replace(self, features=tuple(features))

    def as_numbers(self) -> Schema:
        """The schema of the same table with plain numbers where it writes dates and amounts.

        For a classifier that takes numbers: its frames then have floats in these columns.

        Examples:
            >>> table = [{"rate": "15%"}, {"rate": "2%"}, {"rate": "7%"}]
            >>> schema = Schema.infer(table)
            >>> schema.as_numbers().frame(schema.cells(table[:1]))
            [{'rate': 15.0}]
        """
        known = {f.name for f in self.features if f.written}
        dtypes = [
            ("Float64" if self.template.kind == "polars" else "float64") if name in known else dtype
            for name, dtype in zip(self.template.names, self.template.dtypes, strict=True)
        ]
        return replace(self, template=replace(self.template, dtypes=tuple(dtypes)))

    def __repr__(self) -> str:
        kinds = ", ".join(f"{f.name}: {f.kind}" for f in self.features[:20])
        return f"Schema({kinds}{', …' if len(self.features) > 20 else ''})"

    def __str__(self) -> str:
        """How the table was read: a line per column, and remarks on some."""
        lines = column_lines(self.features)
        widths = [max(map(len, [name, *texts])) for name, texts in lines.items()]
        rows = [tuple(lines), *zip(*lines.values(), strict=True)]
        texts = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*texts, *remarks(self.features)])

    def _repr_html_(self) -> str:
        """The same as a table for notebooks."""
        lines = column_lines(self.features)
        rows = [
            "".join(f"<td>{escape(t)}</td>" for t in row)
            for row in zip(*lines.values(), strict=True)
        ]
        head = "".join(f"<th>{escape(name)}</th>" for name in lines)
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        notes = "".join(f"<p>{escape(remark)}</p>" for remark in remarks(self.features))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"

    def to_toml(self, path: str | Path | None = None) -> str:
        """The columns as a file to edit and hand over; written to `path` where one is given."""
        text = to_toml(self.features)
        if path is not None:
            write_whole(Path(path), lambda p: p.write_text(text, encoding="utf-8"))
        return text

    # -- columns of the table and of the encoded matrix -------------------------------------------

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
            raise no_column(name, self.names) from None

    def __getitem__(self, name: str) -> Feature:
        return self.features[self.index(name)]

    @cached_property
    def numeric(self) -> Ints:
        """Positions of the continuous and ordinal columns: the first of the encoded matrix."""
        return np.array([i for i, f in enumerate(self.features) if f.numeric], dtype=np.int64)

    @cached_property
    def categorical(self) -> Ints:
        """Positions of the binary and categorical columns."""
        return np.array([i for i, f in enumerate(self.features) if not f.numeric], dtype=np.int64)

    @cached_property
    def blocks(self) -> tuple[tuple[int, int, int], ...]:
        """(feature, start, width) of each category block in the encoded matrix.

        A block is as wide as its column has categories, and one wider if values may be missing:
        the last place says so. Two states need one place, a single state none.
        """
        found, start = [], len(self.numeric)
        for i in self.categorical.tolist():
            width = self.features[i].width
            if width:
                found.append((i, start, width))
                start += width
        return tuple(found)

    @cached_property
    def block_states(self) -> tuple[int, ...]:
        """How many states each block has."""
        return tuple(self.features[i].states for i, _, _ in self.blocks)

    @cached_property
    def flags(self) -> tuple[tuple[int, int], ...]:
        """(feature, column) of each missing flag in the encoded matrix."""
        start = len(self.numeric) + sum(width for _, _, width in self.blocks)
        nullable = [i for i in self.numeric.tolist() if self.features[i].missing]
        return tuple((i, start + k) for k, i in enumerate(nullable))

    @property
    def width(self) -> int:
        """Columns of the encoded matrix."""
        return len(self.numeric) + sum(self.widths)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of everything after the continuous columns, as the network needs them."""
        return tuple(w for _, _, w in self.blocks) + (1,) * len(self.flags)

    # -- frames and cells -------------------------------------------------------------------------

    def read(self, data: Any) -> Reading:
        """A table's rows as cells.

        Columns may come in any order; extra ones are ignored. A number may be written as text, a
        category of numbers too. A category unseen in training is kept, as an `extra` level of the
        reading's own schema. A row that cannot be used (an infinity, text where a number belongs)
        is named in `problems` and costs no other row.
        """
        table = self._matched(read(data))
        cells = np.full((len(table), len(self.features)), np.nan)
        problems: dict[int, str] = {}
        # A column named `id` identifies the rows only if it is not one of the features.
        ids = None if table.template.index == ("id",) and "id" in self.names else table.ids
        features = list(self.features)
        for i, feature in enumerate(self.features):
            column = table.columns[feature.name]
            features[i], cells[:, i] = read_cells(feature, column, problems, ids)
        same = all(map(operator.is_, features, self.features))
        schema = self if same else replace(self, features=tuple(features))
        return Reading(schema, cells, problems, table.template.select(self.names), ids)

    def _matched(self, table: Table) -> Table:
        """The table, if it has the columns of the schema; an empty list of records gets them."""
        width, kind = len(self.names), table.template.kind
        if kind == "records" and not len(table):
            return read([dict.fromkeys(self.names)]).take([])
        if kind == "array" and self.template.kind != "array":
            raise InputError(
                "An array has no column names, and this schema has. Hand over a frame or a list "
                "of dicts."
            )
        if kind == "array" and len(table.names) != width:
            raise InputError(
                f"The array has {len(table.names):,} columns; there should be {width:,}."
            )
        lacking = [name for name in self.names if name not in table.columns]
        if lacking:
            raise _missing_columns(lacking, [n for n in table.names if n not in self.names])
        return table

    def cells(self, data: Any) -> Floats:
        """A table's rows as cells, or an `InputError` about the first that cannot be used.

        A float64 matrix is taken for cells and returned as it is, unless the schema itself was
        inferred from an array: then it is a table like any other, and is read.
        """
        return self._widened(data, matrix_is_cells=self.template.kind != "array")[1]

    def _widened(self, data: Any, matrix_is_cells: bool = True) -> tuple[Schema, Floats]:
        """Cells, and the schema widened by levels that only these rows have."""
        matrix = isinstance(data, np.ndarray) and data.dtype == np.float64 and data.ndim == 2
        if matrix_is_cells and matrix and data.shape[1] == len(self.features):
            return self, data
        reading = self.read(data).checked()
        return reading.schema, reading.cells

    def frame(
        self,
        cells: Floats,
        template: Template | None = None,
        *,
        before: Mapping[str, NDArray[Any]] | None = None,
        ids: Sequence[Any] | None = None,
    ) -> Any:
        """Cells as a table, by default of the kind the schema was inferred from.

        Args:
            cells: The rows.
            template: What the table is to be like.
            before: Plain columns to put before those of the schema.
            ids: One identifier per row, for the index of a pandas frame.
        """
        kind = template or self.template
        return kind.build(self.columns(cells, kind), before=before, ids=ids)

    def columns(self, cells: Floats, template: Template) -> dict[str, Floats | Coded]:
        """Cells as columns by name, as a template builds tables of."""
        columns: dict[str, Floats | Coded] = {}
        for i, feature in enumerate(self.features):
            values = cells[:, i]
            if feature.kind == "continuous":
                spelt = feature.written and template.holds_text(feature.name)
                columns[feature.name] = _spelt(feature, values) if spelt else values
            else:
                codes = np.where(np.isnan(values), -1, values).astype(np.int64)
                columns[feature.name] = Coded(codes, feature.levels)
        return columns

    # -- the matrix the network sees --------------------------------------------------------------

    def encode(self, cells: Floats) -> Floats:
        """Cells to the matrix the network sees.

        A number is its standardised score; a missing one 0, the middle, with its flag set; a
        category unseen in training is a block of zeros, an ordinal level 0.

        Examples:
            >>> rows = [{"home": h, "kids": k} for h in ["own", "rent", "other"] for k in range(5)]
            >>> schema = Schema.infer(rows)
            >>> schema.encode(schema.cells([{"home": "rent", "kids": 4}])).round(1)
            array([[1.5, 0. , 0. , 1. ]])
        """
        encoded = np.zeros((len(cells), self.width))  # (n, width)
        first = len(self.numeric)
        if first:
            scores = self._scales.scores(cells[:, self.numeric])
            encoded[:, :first] = np.where(self.unplaced(cells), 0.0, scores)
        if self.blocks:
            hot = self._categories.encode(self.states(cells))
            encoded[:, first : first + hot.shape[1]] = hot
        for i, column in self.flags:
            encoded[:, column] = np.isnan(cells[:, i])
        return encoded

    def decode(self, encoded: Floats) -> Floats:
        """The matrix back to cells: nearest lattice values, most likely categories."""
        cells = np.zeros((len(encoded), len(self.features)))  # (n, d)
        cells[:, self.numeric] = self.units(encoded[:, : len(self.numeric)])
        states = np.zeros((len(encoded), len(self.blocks)), dtype=np.int64)
        for block, (_, start, width) in enumerate(self.blocks):
            scores = encoded[:, start : start + width]
            states[:, block] = scores[:, 0] > 0.5 if width == 1 else scores.argmax(axis=1)
        for i, column in self.flags:
            cells[encoded[:, column] > 0.5, i] = np.nan
        return self.with_states(cells, states)

    def states(self, cells: Floats) -> Ints:
        """Categories as states of their blocks, (n, blocks): codes, then missing, then unseen ones.

        A missing cell where training never saw one is as unknown as an unseen category.
        """
        return self._categories.states(cells)

    def with_states(self, cells: Floats, states: Ints) -> Floats:
        """The inverse of `states`: a copy of the cells with these categories."""
        cells = cells.copy()
        cells[:, self._categories.columns] = self._categories.codes(states)
        return cells

    def units(self, scores: Floats) -> Floats:
        """Scores of the numeric columns to values on their lattice, inside their bounds."""
        return self._scales.units(scores)

    def slopes(self, scores: Floats) -> Floats:
        """How fast the numeric columns' values rise with their scores."""
        return self._scales.slopes(scores)

    def snap(self, cells: Floats) -> Floats:
        """Numbers moved into their bounds and onto their lattice; categories untouched."""
        snapped = cells.copy()
        snapped[:, self.numeric] = self._scales.snap(cells[:, self.numeric])
        return snapped

    @cached_property
    def _scales(self) -> NumberScales:
        return NumberScales([self.features[i] for i in self.numeric])

    @cached_property
    def _categories(self) -> CategoryStates:
        return CategoryStates(self.features, self.blocks)

    # -- distance ---------------------------------------------------------------------------------

    @cached_property
    def spans(self) -> Floats:
        """What a difference of 1 means in each column."""
        return np.array([f.span if f.numeric else 1.0 for f in self.features])

    @cached_property
    def _half_steps(self) -> Floats:
        """Half a step: under this two numbers are the same number."""
        return np.array([f.step / 2 if f.numeric else 0.5 for f in self.features])

    @cached_property
    def _negligible(self) -> Floats:
        """Changes up to this count for nothing: the tolerance, or half a step."""
        slip = 1 + 1e-9  # 54.50 - 54.46 is a little over 0.04
        tolerances = [slip * f.tolerance for f in self.features]
        return np.maximum(self._half_steps, tolerances)

    @cached_property
    def _unordered(self) -> Floats:
        """The first code without a place in an order: 0 for categories."""
        places = [len(f.categories) if f.kind == "ordinal" else np.inf for f in self.features]
        return np.where([f.numeric for f in self.features], places, 0.0)

    def unseen(self, cells: Floats) -> Bools:
        """Whether each cell holds a level unseen in training: kept, never proposed."""
        unseen: Bools = cells >= self._first_unseen
        return unseen

    @cached_property
    def _first_unseen(self) -> Floats:
        """The first code of each column that is unseen in training."""
        return np.array([len(f.categories) if f.extra else np.inf for f in self.features])

    def unplaced(self, cells: Floats) -> Bools:
        """Numbers without a position on their scale, missing or unseen: (n, numeric)."""
        numbers = cells[:, self.numeric]
        unplaced: Bools = np.isnan(numbers) | (numbers >= self._first_unseen[self.numeric])
        return unplaced

    @cached_property
    def ranked(self) -> bool:
        """Whether distances count percentiles; not where every number counts by its range."""
        return any(f.ranks[0] for f in self.features)

    @cached_property
    def _axes(self) -> Axes:
        return Axes(self.features)

    def by_range(self) -> Schema:
        """The schema whose distances count a number's change over its range, as in the paper.

        Examples:
            >>> schema = Schema.infer(np.array([[0.0], [1.5], [2.5], [10.0]]))
            >>> low, high = np.array([[0.0]]), np.array([[2.5]])
            >>> schema.distance(low, high), schema.by_range().distance(low, high)
            (array([0.5]), array([0.25]))
        """
        if not self.ranked:
            return self
        features = (replace(f, ranks=NO_RANKS) for f in self.features)
        return replace(self, features=tuple(features))

    def coordinates(self, cells: Floats) -> Floats:
        """Cells as coordinates: a difference between two numbers' is their part of the distance.

        Numbers are percentiles, or shares of their range in a column without `Feature.ranks`.
        Categories keep their codes, and missing stays NaN.

        Args:
            cells: Rows, (..., d).

        Examples:
            >>> schema = Schema.infer(np.array([[0.0], [1.5], [2.5], [10.0]]))
            >>> schema.coordinates(np.array([[0.0], [2.0], [10.0], [np.nan]]))
            array([[0.125],
                   [0.5  ],
                   [0.875],
                   [  nan]])
        """
        if not self.ranked:
            lower = np.array([f.lower if f.numeric else 0.0 for f in self.features])
            shares: Floats = (cells - lower) / self.spans
            return shares
        return self._axes.coordinates(cells)

    def gaps(self, a: Floats, b: Floats) -> Floats:
        """Each column's part of the distance between cells: (..., d).

        Args:
            a: Rows, (..., d).
            b: Rows of a shape that fits.
        """
        if not self.ranked:
            return self.range_gaps(a, b)
        apart = self.coordinates(a) - self.coordinates(b)
        return self._gaps(a, b, np.abs(apart, out=apart))

    def range_gaps(self, a: Floats, b: Floats) -> Floats:
        """As `gaps`, with a number's change over its range instead of percentiles: (..., d)."""
        return self._gaps(a, b, np.abs(a - b) / self.spans)

    def _gaps(self, a: Floats, b: Floats, apart: Floats) -> Floats:
        """Gaps of cells whose numbers are `apart`; what has no place in an order is 0 or 1."""
        first, missing = self._unordered, np.isnan(apart)
        np.copyto(apart, a != b, where=(a >= first) | (b >= first))
        if missing.any():
            np.copyto(apart, np.isnan(a) != np.isnan(b), where=missing)
        return apart if self._all_counted else apart * self.counted

    def distance(self, a: Any, b: Any, costs: Mapping[str, float] | None = None) -> Floats:
        """How far rows of `a` are from rows of `b`: the sum of what each column has changed by.

        A number counts by how many of the training rows it passes: a change from the 40th to the
        56th percentile counts 0.16. Beyond the training range it goes on growing, by the change
        over the range. A change of category counts 1, missing against present 1, a derived column
        nothing.

        Args:
            a: Cells, that is a float64 matrix, or a table.
            b: The same, as many rows or a single one.
            costs: A weight for some of the columns.

        Examples:
            >>> schema = Schema.infer(np.array([[0.0, 1.5], [10.0, 2.5]]))
            >>> schema.distance(np.array([[0.0, 1.5]]), np.array([[5.0, 2.5]]), {"x0": 3})
            array([1.25])
        """
        schema, left, right = self._pair(a, b)
        return schema.gaps(left, right) @ self.weights(costs)

    def range_distance(self, a: Any, b: Any, costs: Mapping[str, float] | None = None) -> Floats:
        """As `distance`, with a number's change over the range seen in training: the paper's.

        Args:
            a: Cells, that is a float64 matrix, or a table.
            b: The same, as many rows or a single one.
            costs: A weight for some of the columns.

        Examples:
            >>> schema = Schema.infer(np.array([[0.0, 1.5], [10.0, 2.5]]))
            >>> schema.range_distance(np.array([[0.0, 1.5]]), np.array([[5.0, 2.5]]), {"x0": 3})
            array([2.5])
        """
        schema, left, right = self._pair(a, b)
        return schema.range_gaps(left, right) @ self.weights(costs)

    def _pair(self, a: Any, b: Any) -> tuple[Schema, Floats, Floats]:
        """Cells of two tables whose rows are compared, and the schema with the levels of both."""
        schema, left = self._widened(a)
        schema, right = schema._widened(b)  # so that two unseen categories are not taken for one
        if len(left) != len(right) and 1 not in (len(left), len(right)):
            raise InputError(
                f"There are {len(left):,} rows on one side and {len(right):,} on the other. "
                "Distances are taken row by row."
            )
        return schema, left, right

    def pairwise_distances(self, a: Floats, b: Floats, weights: Floats | None = None) -> Floats:
        """`distance` of every row of `a` to every row of `b`, (n, m), without an (n, m, d).

        With u and v the `coordinates` of the numbers of a and b, missing ones set to 0, and g and h
        the flags of the missing: sum |u - v| + sum (1 - g)(1 - |u|) h + sum g (1 - h)(1 - |v|),
        plus the number of category columns that differ. The middle sums turn the |u| that a missing
        cell's 0 adds to the first into the 1 it should be. An ordinal in which a row has a level
        unseen in training is compared as in `gaps`.

        Args:
            a: Cells, (n, d).
            b: Cells, (m, d).
            weights: One per column, as `weights` makes them of costs.

        Examples:
            >>> schema = Schema.infer(np.array([[0.0, 1.25], [2.5, 3.5], [1.5, np.nan]]))
            >>> a, b = np.array([[0.0, 1.25]]), np.array([[2.5, 1.25], [2.0, np.nan]])
            >>> schema.pairwise_distances(a, b).round(3)
            array([[0.667, 1.5  ]])
        """
        found = np.zeros((len(a), len(b)))
        if not found.size:
            return found
        if not self._all_counted:
            weights = np.where(self.counted, 1.0 if weights is None else weights, 0.0)
        weight = np.ones(len(self.features)) if weights is None else weights
        if len(self.categorical):
            # As a product of one-hot rows: ten times as fast as comparing codes.
            same = self.one_hot(a, weight) @ self.one_hot(b, np.ones_like(weight)).T
            found += weight[self.categorical].sum() - same
        first, columns = self._unordered, self.numeric
        unseen = [i for i in columns if (a[:, i] >= first[i]).any() or (b[:, i] >= first[i]).any()]
        for i in unseen:
            one = replace(self, features=(self.features[i],))
            found += one.gaps(a[:, None, [i]], b[None, :, [i]])[..., 0] * weight[i]
        columns = np.setdiff1d(columns, unseen)
        if len(columns):
            u, v = (self.coordinates(cells)[:, columns] for cells in (a, b))
            g, h = np.isnan(u), np.isnan(v)
            u, v = np.where(g, 0.0, u), np.where(h, 0.0, v)
            found += cdist(u, v, "cityblock", w=None if weights is None else weight[columns])
            some = g.any(axis=0) | h.any(axis=0)
            if some.any():
                to_one_u = ~g * (1 - np.abs(u)) * weight[columns]
                to_one_v = ~h * (1 - np.abs(v)) * weight[columns]
                found += to_one_u[:, some] @ h[:, some].T + g[:, some] @ to_one_v[:, some].T
        return found

    def one_hot(self, cells: Floats, weight: Floats) -> Floats:
        """Category columns with a place for every level and for missing, times their weights."""
        blocks = [np.empty((len(cells), 0))]
        for i in self.categorical:
            # Missing is -1: the code after the last level may be a level of a wider schema.
            codes = np.where(np.isnan(cells[:, i]), -1, cells[:, i])
            blocks.append(
                (codes[:, None] == np.arange(-1, len(self.features[i].levels))) * weight[i]
            )
        return np.concatenate(blocks, axis=1)  # (n, levels)

    def weights(self, costs: Mapping[str, float] | None) -> Floats:
        """Costs by name as one weight per column; 0 for derived columns."""
        weights = self.counted.astype(np.float64)
        for name, cost in (costs or {}).items():
            place = self.index(name)
            if not self.counted[place]:
                raise InputError(
                    f"Column '{name}' is derived and is no change of its own. Give a cost to what "
                    f"it follows from: {', '.join(self.features[place].inputs)}."
                )
            if not (cost >= 0 and np.isfinite(cost)):
                raise InputError(f"The cost of '{name}' is {cost}; it must be zero or more.")
            weights[place] = cost
        return weights

    def changed(self, a: Floats, b: Floats) -> Bools:
        """Where cells differ by more than half a step; a derived column is no change of its own."""
        return self.differs(a, b) & self.counted

    def differs(self, a: Floats, b: Floats) -> Bools:
        """Where cells, derived ones included, differ by more than half a step of their column."""
        apart = np.abs(a - b)
        return np.where(np.isnan(apart), np.isnan(a) != np.isnan(b), apart > self._half_steps)

    def negligible(self, a: Floats, b: Floats) -> Bools:
        """Which numbers, (n, numeric), differ by at most their tolerance, or half a step.

        Examples:
            >>> price = Feature.continuous("price", tolerance=0.05)
            >>> schema = Schema.infer([{"price": 54.5}, {"price": 9.99}], {"price": price})
            >>> schema.negligible(np.array([[54.5], [54.5]]), np.array([[54.46], [54.44]])).tolist()
            [[True], [False]]
        """
        near: Bools = np.abs(a - b) <= self._negligible[self.numeric]
        return near

    # -- derived columns --------------------------------------------------------------------------

    @cached_property
    def derived(self) -> DerivedColumns:
        """The derived columns, each after those it follows from."""
        return DerivedColumns.of(self.features)

    @cached_property
    def counted(self) -> Bools:
        """Whether a change of each column counts: not where it is derived."""
        return np.array([f.derived is None for f in self.features], dtype=bool)

    @cached_property
    def _all_counted(self) -> bool:
        return bool(self.counted.all())

    def derive(self, cells: Floats, originals: Floats | None = None) -> Floats:
        """Rows whose derived columns follow from the others.

        A derived cell is computed where one of its inputs differs from the instance's; elsewhere it
        is the instance's own. It is on its column's lattice, not moved into its bounds, and NaN
        where an input is missing or nothing can be computed.

        Args:
            cells: Rows, (n, d).
            originals: The instance of each; without them every derived cell is computed, and what
                cannot be stays as it is.

        Examples:
            >>> rate = Feature.continuous("rate", derived="cost / months")
            >>> schema = Schema.infer([{"cost": 120, "months": 12, "rate": 10}], {"rate": rate})
            >>> schema.derive(np.array([[120.0, 10.0, 7.0]]), np.array([[120.0, 12.0, 7.0]]))
            array([[120.,  10.,  12.]])
        """
        return cells if self._all_counted else self.derived.derive(cells, originals, self.differs)

    def derivable(self, cells: Floats, originals: Floats) -> Bools:
        """Whether derived cells, as `derive` made them, are values of their columns: (n,).

        Not where nothing could be computed, or where the result lies beyond the column's bounds
        and further out than the instance's own.
        """
        return self.derived.derivable(cells, originals)

    # -- JSON -------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "template": self.template.to_json(),
            "features": [f.to_json() for f in self.features],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        """The inverse of `to_json`.

        Examples:
            >>> schema = Schema.infer([{"age": 31}, {"age": 44}])
            >>> Schema.from_json(schema.to_json()) == schema
            True
        """
        features = tuple(Feature.from_json(f) for f in data["features"])
        return cls(features, Template.from_json(data["template"]))


def _spelt(feature: Feature, values: Floats) -> Coded:
    """Numbers as texts in the column's notation."""
    coded = as_coded(values)
    return Coded(coded.codes, tuple(feature.text(float(level)) for level in coded.levels))


def _missing_columns(names: Sequence[str], present: Sequence[str], most: int = 8) -> InputError:
    """The error about columns that the table lacks; perhaps the first is present, misspelt."""
    first, *others = names
    near = did_you_mean(first, present).replace(" Did you mean", " Is it the one called")
    listed = ", ".join(f"'{name}'" for name in others[: most - 1])
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    also = f" It also lacks {listed}{more}." if others else ""
    return InputError(f"The table lacks column '{first}'.{near}{also}")
