"""A training table drawn from Parquet of any size.

The sample is stratified by label: each label has its share of the rows, and enough of them. A row
is drawn by a hash of the seed, its file and its position, so the same rows are drawn in any order
of parts.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lapace.apps.batch.files import Part, find_inputs, need_pyarrow, read_footers, read_part
from lapace.arrays import Floats
from lapace.errors import InputError, LapaceError, check_integer, did_you_mean

__all__ = ["Sample", "draw_sample"]

ENOUGH = 200  # rows of each label, if it has as many
SLACK = 6.0  # standard deviations by which more rows are drawn than are kept


class Sample(NamedTuple):
    """Rows drawn from files.

    Attributes:
        rows: A pyarrow table, in the order of files and rows.
        total: How many rows there are in all.
    """

    rows: Any
    total: int


def draw_sample(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    size: int,
    *,
    label: str | None = None,
    random_state: int = 0,
) -> Sample:
    """Draws rows from Parquet files, which are read twice, part by part.

    Args:
        sources: Files, folders, patterns or addresses, as for `batch.run`.
        size: How many rows; all if there are fewer.
        label: The column of labels: each has its share of the sample, and at least 200 rows if it
            has as many. Without it all rows are drawn alike.
        random_state: The seed.
    """
    size = check_integer("sample", size)
    parts, columns = _parts(sources)
    if label is not None and label not in columns:
        raise InputError(f"Column '{label}' is not in the table.{did_you_mean(label, columns)}")
    pa = need_pyarrow()
    rows_by_label: Counter[str] = Counter()
    for part in parts:
        rows_by_label.update(_labels(_read(part, [label]), label) if label else {"": part.rows})
    shares = _shares(rows_by_label, size)
    limits = {
        name: (count + SLACK * count**0.5 + SLACK) / rows_by_label[name]
        for name, count in shares.items()
    }
    drawn_keys, tables = [], []
    for part in parts:
        keys, table = _row_keys(part, random_state), _read(part, columns)
        drawn = keys <= np.array([limits[name] for name in _labels(table, label)])
        drawn_keys.append(keys[drawn])
        tables.append(table.filter(pa.array(drawn)))
    keys = np.concatenate(drawn_keys)
    table = pa.concat_tables(tables, promote_options="permissive")
    labels = np.array(_labels(table, label), dtype=object)
    kept = np.zeros(len(table), dtype=bool)
    for name, count in shares.items():
        rows = np.flatnonzero(labels == name)
        kept[rows[np.argsort(keys[rows], kind="stable")[:count]]] = True
    return Sample(table.filter(pa.array(kept)), sum(rows_by_label.values()))


def _parts(sources: Any) -> tuple[list[Part], list[str]]:
    """Returns the parts of all files, and their columns; refuses files that cannot be read."""
    listed = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    files = read_footers(find_inputs(listed, None))
    for file in files:
        if file.unreadable:
            raise InputError(f"'{file.source}' cannot be read. {file.unreadable}")
    parts = [part for file in files for part in file.parts if part.rows]
    if not parts:
        raise InputError("The table has no rows. Hand over at least a few hundred.")
    return parts, list(dict.fromkeys(name for file in files for name in file.types or ()))


def _read(part: Part, columns: Sequence[str]) -> Any:
    try:
        return read_part(part, columns)
    except LapaceError as error:
        raise InputError(f"'{part.place.shown}': {error}") from None


def _labels(table: Any, label: str | None) -> list[str]:
    """Returns the label of each row as text; an empty one without labels."""
    values = [None] * len(table) if label is None else table.column(label).to_pylist()
    return ["" if value is None else str(value) for value in values]


def _row_keys(part: Part, seed: int) -> Floats:
    """Draws a number from 0 to 1 for each row, by seed, file and position."""
    file = part.place.path.rpartition("/")[2]  # the same rows wherever the folder lies
    text = f"{seed} {file} {part.group} {part.footer}".encode()
    part_seed = int.from_bytes(hashlib.sha256(text).digest()[:16], "little")
    return np.random.default_rng(part_seed).random(part.rows)


def _shares(rows_by_label: Mapping[str, int], size: int) -> dict[str, int]:
    """Decides how many rows of each label are kept.

    Examples:
        >>> _shares({"no": 99_000, "yes": 1_000}, 1_000)
        {'no': 800, 'yes': 200}
    """
    total = sum(rows_by_label.values())
    if size >= total:
        return dict(rows_by_label)
    least = min(ENOUGH, size // len(rows_by_label))
    shares = {
        name: min(count, max(least, size * count // total)) for name, count in rows_by_label.items()
    }
    # The largest label gives up what the small ones have beyond their share.
    largest = max(shares, key=lambda name: (shares[name], name))
    shares[largest] -= max(0, sum(shares.values()) - size)
    return shares
