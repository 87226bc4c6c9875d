"""A training table drawn from Parquet of any size, and a schema of all its rows.

The sample is stratified by label: each label has its share of the rows, and enough of them. A row
is drawn by a hash of the seed, its file and its position, so that the same rows are drawn whatever
the engine and the order of parts.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lapace.arrays import Floats
from lapace.batch.engines import Engine, map_parts
from lapace.batch.parts import Part, read_footers, read_part
from lapace.batch.places import Place, find_inputs, need_pyarrow
from lapace.errors import InputError, LapaceError, check_integer, did_you_mean
from lapace.schema import Schema
from lapace.schema.streamed import SchemaCounts, histogram_edges, with_counts, with_histograms
from lapace.table import read

__all__ = ["Sample", "draw_sample", "schema_of_all_rows"]

ENOUGH = 200  # rows of each label, where it has as many
NOWHERE = "/dev/null/nowhere"  # no output: nothing is left out
SLACK = 6.0  # standard deviations by which more rows are drawn than are kept


class Sample(NamedTuple):
    """Rows drawn from files.

    Attributes:
        rows: A pyarrow table, in the order of files and rows.
        total: How many rows there are in all.
        parts: All parts, for further passes.
        engine: Who reads them.
    """

    rows: Any
    total: int
    parts: tuple[Part, ...]
    engine: Engine


def draw_sample(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    size: int,
    *,
    label: str | None = None,
    random_state: int = 0,
    engine: Engine | None = None,
) -> Sample:
    """Draws rows from Parquet files.

    Args:
        sources: Files, folders, patterns or addresses, as for `batch.run`.
        size: How many rows; all where there are fewer.
        label: The column of labels: each has its share of the sample, and at least 200 rows where
            it has as many. Without it all rows are drawn alike.
        random_state: The seed.
        engine: Who reads the files.
    """
    size = check_integer("sample", size)
    parts, columns = _parts(sources)
    if label is not None and label not in columns:
        raise InputError(f"Column '{label}' is not in the table.{did_you_mean(label, columns)}")
    engine = (engine or Engine()).chosen(len(parts))
    strata: Counter[str] = Counter()
    with engine.started():
        for counted in _each(engine, _CountLabels(label), parts):
            strata.update(counted)
        shares = _shares(strata, size)
        draw = _Draw(label, columns, shares, dict(strata), random_state)
        drawn = sorted(_each(engine, draw, parts), key=lambda found: found[0])
    pa = need_pyarrow()
    keys = np.concatenate([found[1] for found in drawn])
    table = pa.concat_tables([found[2] for found in drawn], promote_options="permissive")
    labels = np.array([_stratum(v) for v in _labels(table, label)], dtype=object)
    kept = np.zeros(len(table), dtype=bool)
    for stratum, count in shares.items():
        mine = np.flatnonzero(labels == stratum)
        kept[mine[np.argsort(keys[mine], kind="stable")[:count]]] = True
    return Sample(table.filter(pa.array(kept)), sum(strata.values()), parts, engine)


def _parts(sources: Any) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """The parts of files that are all readable, and their columns."""
    listed = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    files = read_footers(find_inputs(listed, Place(NOWHERE)))
    for file in files:
        if file.unreadable:
            raise InputError(f"'{file.source}' cannot be read. {file.unreadable}")
    columns = tuple(dict.fromkeys(name for file in files for name in file.types or ()))
    parts = tuple(part for file in files for part in file.parts if part.rows)
    if not parts:
        raise InputError("The table has no rows. Hand over at least a few hundred.")
    return parts, columns


def schema_of_all_rows(
    sample: Sample, schema: Schema, declared: Mapping[str, Any] | None = None
) -> Schema:
    """A schema inferred from a sample, with ranges, categories and histograms of all rows.

    Kinds of columns, resolutions and how numbers are written are those of the sample.

    Args:
        sample: The rows drawn.
        schema: What was inferred from them.
        declared: What was said of columns: bounds and categories in it stay.
    """
    counts, engine = SchemaCounts(), sample.engine
    with engine.started():
        for found in _each(engine, _CountCells(schema), sample.parts):
            counts.add(found)
        cells = schema.read(sample.rows).checked().cells
        wide = with_counts(schema, counts, cells, declared or {})
        edges = [histogram_edges(f, counts.columns[f.name]) for f in wide.features]
        bins = [np.zeros(len(e) - 1, dtype=np.int64) for e in edges]
        for found in _each(engine, _CountBins(wide, edges), sample.parts):
            bins = [total + part for total, part in zip(bins, found, strict=True)]
    return with_histograms(wide, edges, bins)


def _each(engine: Engine, function: Callable[[Part], Any], parts: Sequence[Part]) -> list[Any]:
    """What a function returns for each part; an error of a part names its file."""
    found = []
    for part in map_parts(engine, _Named(function), parts):
        if isinstance(part, str):
            raise InputError(part)
        found.append(part)
    return found


@dataclass(frozen=True)
class _Named:
    """A function whose errors name the file, as text."""

    function: Callable[[Part], Any]

    def __call__(self, part: Part) -> Any:
        try:
            return self.function(part)
        except LapaceError as error:
            return f"'{part.place.shown}': {error}"


def _labels(table: Any, label: str | None) -> list[Any]:
    return [None] * len(table) if label is None else table.column(label).to_pylist()


def _stratum(label: Any) -> str:
    return "" if label is None else str(label)


def _shares(strata: Mapping[str, int], size: int) -> dict[str, int]:
    """How many rows of each label are kept.

    Examples:
        >>> _shares({"no": 99_000, "yes": 1_000}, 1_000)
        {'no': 800, 'yes': 200}
    """
    total = sum(strata.values())
    if size >= total:
        return dict(strata)
    least = min(ENOUGH, size // len(strata))
    wanted = {name: min(count, max(least, size * count // total)) for name, count in strata.items()}
    # What the small ones have more, the largest has less.
    largest = max(wanted, key=lambda name: (wanted[name], name))
    wanted[largest] -= max(0, sum(wanted.values()) - size)
    return wanted


@dataclass(frozen=True)
class _CountLabels:
    """Rows of a part by label."""

    label: str | None

    def __call__(self, part: Part) -> Counter[str]:
        if self.label is None:
            return Counter({"": part.rows})
        table = read_part(part, [self.label])
        return Counter(map(_stratum, _labels(table, self.label)))


@dataclass(frozen=True)
class _Draw:
    """Rows of a part whose hashes are small enough, their hashes, and where the part belongs."""

    label: str | None
    columns: tuple[str, ...]
    shares: Mapping[str, int]
    strata: Mapping[str, int]
    seed: int

    def __call__(self, part: Part) -> tuple[tuple[str, int], Floats, Any]:
        pa = need_pyarrow()
        keys = self._keys(part)
        table = read_part(part, self.columns)
        limits = {name: self._limit(name) for name in self.shares}
        limit = np.array([limits[_stratum(v)] for v in _labels(table, self.label)])
        drawn = keys <= limit
        return (part.place.shown, part.group), keys[drawn], table.filter(pa.array(drawn))

    def _keys(self, part: Part) -> Floats:
        """A number from 0 to 1 for each row, by seed, file and position."""
        file = part.place.path.rpartition("/")[2]  # wherever the folder lies, the same rows
        text = f"{self.seed} {file} {part.group} {part.footer}".encode()
        seed = int.from_bytes(hashlib.sha256(text).digest()[:16], "little")
        return np.random.default_rng(seed).random(part.rows)

    def _limit(self, stratum: str) -> float:
        count, total = self.shares[stratum], self.strata[stratum]
        return float((count + SLACK * count**0.5 + SLACK) / total)


@dataclass(frozen=True)
class _CountCells:
    """What a part holds in each column."""

    schema: Schema

    def __call__(self, part: Part) -> SchemaCounts:
        rows = read(read_part(part, self.schema.names))
        return SchemaCounts.of(self.schema.read(rows).checked())


@dataclass(frozen=True)
class _CountBins:
    """Rows of a part in each bin of each column."""

    schema: Schema
    edges: Sequence[Floats]

    def __call__(self, part: Part) -> list[Any]:
        cells = self.schema.read(read(read_part(part, self.schema.names))).checked().cells
        return [
            np.histogram(column[~np.isnan(column)], edges)[0]
            for column, edges in zip(cells.T, self.edges, strict=True)
        ]
