"""All columns of a table: `Schema` reads rows as cells, encodes and decodes them, compares them.

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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints
from lapace.documents import plain, restore
from lapace.errors import InputError, did_you_mean
from lapace.files import write_whole
from lapace.schema.coding import Coding
from lapace.schema.columns import read_cells
from lapace.schema.derived import DerivedColumns
from lapace.schema.distance import CHARGE, Distance
from lapace.schema.features import Feature, Lattice
from lapace.schema.inference import infer_features, no_column
from lapace.schema.ranks import NO_RANKS
from lapace.schema.summary import Overrides, column_lines, read_overrides, remarks, to_toml
from lapace.table import Coded, Table, Template, as_coded, read

__all__ = ["Reading", "Schema"]


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
        """Returns the reading, or raises an `InputError` about the first unusable row."""
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
        >>> first, second = schema.cells(instances[:1]), schema.cells(instances[1:2])
        >>> schema.distance(first, second).round(3).tolist()
        [1.022]
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
        the label) are named in one `InputError`, each with the options that settle it.

        Args:
            data: The training table, features only.
            overrides: For some columns the kind (`"categorical"` for a number that is a code,
                `"number"` or `"date"` for text that writes them), `"drop"` to leave it out,
                `"id"` where it only identifies the rows, a whole `Feature` or some of its
                settings, as `{"missing_values": [-999]}`; or a file that says so, as `to_toml`
                writes it.
            labels: The label of each row, where known: a column that says the same is refused.

        Examples:
            >>> rows = [{"grade": g, "code": c} for g, c in zip("BACAB", [10, 20, 10, 30, 20])]
            >>> grade = Feature("grade", "ordinal", categories=("C", "B", "A"))
            >>> schema = Schema.infer(rows, {"grade": grade, "code": "categorical"})
            >>> schema["code"].categories, schema.cells(rows)[:, 0]
            ((10, 20, 30), array([1., 2., 0., 2., 1.]))
        """
        table = read(data)
        said = read_overrides(overrides)
        features = infer_features(table, said, labels)
        kept = table.template.select([feature.name for feature in features])
        index = tuple(name for name, kind in said.items() if kind == "id")[:1]
        schema = cls(features, replace(kept, index=index))
        schema.derived  # noqa: B018  refuses unknown inputs and circles
        # Pixels share one scale: passing others at one pixel is no effort.
        return schema if schema.shape is None else schema.by_range()

    # -- tables and cells -------------------------------------------------------------------------

    def read(self, data: Any) -> Reading:
        """Reads a table's rows as cells.

        Columns may come in any order; extra ones are ignored. A number may be written as text, a
        category of numbers too. A category unseen in training is kept, as an `extra` level of the
        reading's own schema. A row that cannot be used (an infinity, text where a number belongs)
        is named in `problems` and costs no other row.
        """
        named = next(iter(self.template.index), "" if "id" in self.names else None)
        table = self._matched(read(data, id_column=None if named is None else str(named)))
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
        """Returns the table if it has the schema's columns; an empty list of records gets them."""
        width, kind = len(self.names), table.template.kind
        if kind == "records" and not len(table):
            return read([dict.fromkeys(self.names)]).take([])
        if kind == "array" and self.template.kind != "array":
            raise InputError(
                "An array has no column names, and this schema has. Pass a frame or a list "
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
        """Returns a table's rows as cells; an `InputError` is about the first unusable row."""
        return self.read(data).checked().cells

    def frame(
        self,
        cells: Floats,
        template: Template | None = None,
        *,
        after: Mapping[str, NDArray[Any]] | None = None,
        ids: Sequence[Any] | None = None,
    ) -> Any:
        """Returns cells as a table, by default of the kind the schema was inferred from.

        Args:
            cells: The rows.
            template: What the table is to be like.
            after: Plain columns to put after those of the schema.
            ids: One identifier per row, for the index of a pandas frame.
        """
        kind = template or self.template
        return kind.build(self.columns(cells, kind), after=after, ids=ids)

    def columns(
        self, cells: Floats, template: Template, *, marked: bool = True
    ) -> dict[str, Floats | Coded]:
        """Returns cells as columns by name, which a template makes tables of.

        Args:
            cells: The rows.
            template: What the table is to be like.
            marked: Whether a missing cell is the first of its column's `missing_values`.
        """
        columns: dict[str, Floats | Coded] = {}
        for feature, values in zip(self.features, cells.T, strict=True):
            if feature.kind != "continuous":
                codes = np.where(np.isnan(values), -1, values).astype(np.int64)
                columns[feature.name] = Coded(codes, feature.levels)
            elif feature.written and template.holds_text(feature.name):
                coded = as_coded(values)
                texts = tuple(feature.text(float(level)) for level in coded.levels)
                columns[feature.name] = Coded(coded.codes, texts)
            else:
                columns[feature.name] = values
            mark = next(iter(feature.missing_values), "")
            if marked and mark != "" and np.isnan(values).any():
                coded = as_coded(columns[feature.name])
                codes = np.where(coded.codes < 0, len(coded.levels), coded.codes)
                columns[feature.name] = Coded(codes, (*coded.levels, mark))
        return columns

    # -- the matrix that the network sees ---------------------------------------------------------

    def encode(self, cells: Floats) -> Floats:
        """Returns the matrix that the network sees.

        A number is its standardised score; a missing one 0, the middle, with its flag set; a
        category unseen in training is a block of zeros, an ordinal level 0.

        Examples:
            >>> rows = [{"home": h, "kids": k} for h in ["own", "rent", "other"] for k in range(5)]
            >>> schema = Schema.infer(rows)
            >>> schema.encode(schema.cells([{"home": "rent", "kids": 4}])).round(1)
            array([[1.5, 0. , 0. , 1. ]])
        """
        return self.coding.encode(cells)

    def decode(self, encoded: Floats) -> Floats:
        """Returns the cells of a matrix: nearest lattice values, most likely categories."""
        return self.coding.decode(encoded)

    @cached_property
    def coding(self) -> Coding:
        """The columns of the encoded matrix."""
        return Coding(self.features)

    # -- distance ---------------------------------------------------------------------------------

    def distance(self, a: Floats, b: Floats, costs: Mapping[str, float] | None = None) -> Floats:
        """Returns how far rows of `a` are from rows of `b`: the sum over all columns.

        A number counts by the share of the training rows that it passes, and at least by its change
        over the usual range, about the 5th to the 95th percentile. A change of category counts 1,
        missing against present 1, a derived column nothing.

        Args:
            a: Cells, (n, d).
            b: The same, as many rows or a single one.
            costs: A weight for some of the columns.

        Examples:
            >>> schema = Schema.infer(np.array([[0.0, 1.5], [10.0, 2.5]]))
            >>> schema.distance(np.array([[0.0, 1.5]]), np.array([[5.0, 2.5]]), {"x0": 3})
            array([2.5])
        """
        return self.gaps(a, b) @ self.weights(costs)

    def effort(
        self, instances: Floats, cells: Floats, costs: Mapping[str, float] | None = None
    ) -> Floats:
        """Returns the effort of counterfactuals: their distance, and a fifth for each change.

        A change of a column whose cost is below 1 is charged a fifth of that cost.

        Args:
            instances: The instance of each counterfactual, (n, d).
            cells: The counterfactuals, (n, d).
            costs: A weight for some of the columns.

        Examples:
            >>> rows = [{"age": 20 + i % 50, "home": ["own", "rent"][i % 2]} for i in range(100)]
            >>> schema = Schema.infer(rows)
            >>> before, after = np.array([[30.0, 0.0]]), np.array([[30.0, 1.0]])
            >>> schema.effort(before, after), schema.effort(before, after, {"home": 0.5})
            (array([1.2]), array([0.6]))
        """
        efforts: Floats = self.change_efforts(instances, cells, self.weights(costs)).sum(axis=1)
        return efforts

    def change_efforts(self, instances: Floats, cells: Floats, weights: Floats) -> Floats:
        """Returns each change's part of the effort, 0 where a cell is unchanged: (..., d)."""
        efforts = self.gaps(instances, cells) * weights + CHARGE * np.minimum(weights, 1.0)
        return np.where(self.changed(instances, cells), efforts, 0.0)

    def weights(self, costs: Mapping[str, float] | None) -> Floats:
        """Returns one weight per column from costs by name; 0 for derived columns."""
        weights = self.counted.astype(np.float64)
        for name, cost in (costs or {}).items():
            place = self.index(name)
            if not self.counted[place]:
                raise InputError(
                    f"Column '{name}' is derived, so it has no cost of its own. Give a cost to the "
                    f"columns it follows from: {', '.join(self.features[place].inputs)}."
                )
            if not (cost >= 0 and np.isfinite(cost)):
                raise InputError(f"The cost of '{name}' is {cost}; it must be zero or more.")
            weights[place] = cost
        return weights

    def gaps(self, a: Floats, b: Floats) -> Floats:
        """Returns each column's part of the distance between cells: (..., d)."""
        return self.metric.gaps(a, b)

    @cached_property
    def metric(self) -> Distance:
        """The parts of the distance that single columns have."""
        return Distance(self.features)

    @property
    def counted(self) -> Bools:
        """Whether a change of each column counts: not where it is derived."""
        return self.metric.counted

    def by_range(self) -> Schema:
        """Returns the schema whose distances count a number's change over its range: the paper's.

        Examples:
            >>> schema = Schema.infer(np.array([[0.0], [1.5], [2.5], [10.0]]))
            >>> low, high = np.array([[0.0]]), np.array([[2.5]])
            >>> schema.distance(low, high), schema.by_range().distance(low, high)
            (array([0.5]), array([0.25]))
        """
        return replace(self, features=tuple(replace(f, ranks=NO_RANKS) for f in self.features))

    # -- lattice, changes, derived columns --------------------------------------------------------

    @cached_property
    def lattice(self) -> Lattice:
        """The lattices of all columns, side by side; categories have none."""
        return Lattice.side_by_side(self.features)

    def snap(self, cells: Floats) -> Floats:
        """Returns cells with numbers in their bounds and on their lattice; categories untouched."""
        return self.lattice.snap(cells)

    @cached_property
    def _half_steps(self) -> Floats:
        """Half a step of each column: under this two numbers are the same number."""
        return np.array([f.step / 2 if f.numeric else 0.5 for f in self.features])

    def differs(self, a: Floats, b: Floats) -> Bools:
        """Returns where cells differ by more than half a step, in derived columns too."""
        apart = np.abs(a - b)
        return np.where(np.isnan(apart), np.isnan(a) != np.isnan(b), apart > self._half_steps)

    def changed(self, a: Floats, b: Floats) -> Bools:
        """Returns where cells differ; a derived column never counts."""
        return self.differs(a, b) & self.counted

    def same_where_unchanged(self, cells: Floats, originals: Floats) -> Floats:
        """Returns rows whose cells are the instance's wherever they do not differ from it."""
        same = np.where(self.differs(cells, originals), cells, originals)
        return self.derive(same, originals)

    @cached_property
    def negligible(self) -> Floats:
        """The change of each column that counts for nothing: its tolerance, or half a step."""
        slip = 1 + 1e-9  # 54.50 - 54.46 is a little over 0.04
        return np.maximum(self._half_steps, [slip * f.tolerance for f in self.features])

    @cached_property
    def derived(self) -> DerivedColumns:
        """The derived columns, each after those it follows from."""
        return DerivedColumns.of(self.features)

    def derive(self, cells: Floats, originals: Floats | None = None) -> Floats:
        """Returns rows whose derived columns follow from the others.

        A derived cell is computed where one of its inputs differs from the instance's; elsewhere it
        is the instance's own. It is on its column's lattice, not moved into its bounds, and NaN
        where an input is missing or nothing can be computed.

        Args:
            cells: Rows, (n, d).
            originals: The instance of each; without them every derived cell is computed, and what
                cannot be stays as it is.

        Examples:
            >>> rate = Feature("rate", "continuous", derived="cost / months")
            >>> schema = Schema.infer([{"cost": 120, "months": 12, "rate": 10}], {"rate": rate})
            >>> schema.derive(np.array([[120.0, 10.0, 7.0]]), np.array([[120.0, 12.0, 7.0]]))
            array([[120.,  10.,  12.]])
        """
        if not self.derived.each:
            return cells
        return self.derived.derive(cells, originals, self.differs)

    # -- columns by name and position -------------------------------------------------------------

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(f.name for f in self.features)

    def index(self, name: str) -> int:
        """Returns a column's position."""
        try:
            return self.names.index(name)
        except ValueError:
            raise no_column(name, self.names) from None

    def __getitem__(self, name: str) -> Feature:
        return self.features[self.index(name)]

    @property
    def numeric(self) -> Ints:
        """Positions of the continuous and ordinal columns: the first of the encoded matrix."""
        return self.coding.numeric

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one row where rows are images."""
        return self.template.shape

    # -- text and files ---------------------------------------------------------------------------

    def as_numbers(self) -> Schema:
        """Returns the schema of a table with plain numbers where this one writes dates and amounts.

        Missing cells are empty in it, whatever marks them in the table. A classifier that takes
        numbers is then asked in frames with floats in these columns.

        Examples:
            >>> table = [{"rate": "15%"}, {"rate": "2%"}, {"rate": "7%"}]
            >>> schema = Schema.infer(table)
            >>> schema.as_numbers().frame(schema.cells(table[:1]))
            [{'rate': 15.0}]
        """
        text = self.template.holds_text
        written = [
            f.name for f in self.features if f.written or (f.kind == "continuous" and text(f.name))
        ]
        blanks = (("", *f.missing_values) if f.missing_values else () for f in self.features)
        pairs = zip(self.features, blanks, strict=True)
        features = tuple(replace(f, missing_values=empty) for f, empty in pairs)
        return Schema(features, self.template.with_floats(written))

    def to_json(self) -> dict[str, Any]:
        """Returns the schema as plain JSON values."""
        return plain(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schema:
        """Returns the schema that `to_json` wrote.

        Examples:
            >>> schema = Schema.infer([{"age": 31}, {"age": 44}])
            >>> Schema.from_json(schema.to_json()) == schema
            True
        """
        return restore(cls, data, "the schema")

    def to_toml(
        self, path: str | Path | None = None, left_out: Mapping[str, str] | None = None
    ) -> str:
        """Returns the columns as a file to edit and pass, and writes it to a path if given.

        Args:
            path: The file.
            left_out: Columns of the table that are no features, each with its kind: `drop` or `id`.
        """
        text = to_toml(self.features, left_out)
        if path is not None:
            write_whole(Path(path), lambda p: p.write_text(text, encoding="utf-8"))
        return text

    def __repr__(self) -> str:
        kinds = ", ".join(f"{f.name}: {f.kind}" for f in self.features[:20])
        return f"Schema({kinds}{', …' if len(self.features) > 20 else ''})"

    def __str__(self) -> str:
        """Returns how the table was read: a line per column, and remarks on some."""
        lines = column_lines(self.features)
        widths = [max(map(len, [name, *texts])) for name, texts in lines.items()]
        rows = [tuple(lines), *zip(*lines.values(), strict=True)]
        texts = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*texts, *remarks(self.features)])


def _missing_columns(names: Sequence[str], present: Sequence[str], most: int = 8) -> InputError:
    """Returns the error about columns that the table lacks; perhaps the first is misspelt."""
    first, *others = names
    near = did_you_mean(first, present).replace(" Did you mean", " Is it the one called")
    listed = ", ".join(f"'{name}'" for name in others[: most - 1])
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    also = f" It also lacks {listed}{more}." if others else ""
    return InputError(f"The table lacks column '{first}'.{near}{also}")
