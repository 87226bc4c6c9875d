"""A small network that imitates the classifier near real rows, so that a search need not ask it.

It learns from training rows and from *crossovers*: training rows with some cells of another one,
which is what a search tries. The classifier is queried about them once, in `fit`. Numbers are
handed over in pieces, one input for each stretch of the column: so the steps of a tree can be
followed as well as a smooth boundary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints, batches
from lapace.classifiers import Classifier
from lapace.errors import ClassifierError
from lapace.explainer.networks import Float32s, Networks, Schedule, agree
from lapace.instances import query_rows
from lapace.schema import Schema

__all__ = ["Student", "crossovers"]

ROWS = 6_000  # training rows learned from, at most
MOST = 6  # cells of another row in a crossover, at most
MAX_REFUSED = 50  # crossovers the classifier may raise on before none is learned from
PIECES = 32  # stretches of a number, at most
TRAINING = Schedule(hidden=64, epochs=30, steps=(200, 750), batch=512, rate=6e-3)
CELLS = 4_000_000  # inputs evaluated at once


@dataclass(frozen=True, eq=False)
class Student:
    """A network of two hidden layers on rows in pieces.

    Attributes:
        network: What pieces go through.
        start: Where each piece starts, in encoded units, (pieces,).
        width: How wide it is.
        column: The encoded column it is a piece of.

    Examples:
        >>> from lapace.classifiers import Classifier
        >>> rows = np.random.default_rng(0).normal(size=(400, 3)).round(2)
        >>> schema = Schema.infer(rows)
        >>> classifier = Classifier(lambda rows: (rows[:, 0] > 0.3).astype(int), schema)
        >>> codes = classifier.fit_labels(schema.cells(rows))
        >>> student = Student.fit(schema, classifier, rows, 1000, random_state=0)
        >>> student.guess(schema, np.array([[0.0, 0, 0], [0.6, 0, 0]])).round().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """

    network: Networks
    start: Float32s
    width: Float32s
    column: NDArray[np.int32]

    @classmethod
    def fit(
        cls,
        schema: Schema,
        classifier: Classifier,
        cells: Floats,
        count: int,
        *,
        random_state: int,
    ) -> Student:
        """Queries the classifier about training rows and crossovers of them, and learns that.

        Args:
            schema: The columns.
            classifier: The classifier.
            cells: Training rows.
            count: Crossovers.
            random_state: Seed of everything random.
        """
        rng = np.random.default_rng(random_state)
        rows = cells[rng.permutation(len(cells))[:ROWS]]
        try:
            made = np.concatenate([rows, crossovers(schema, cells, count, rng)])
            codes, found, _ = query_rows(
                classifier, made, schema, known_row=cells[:1], max_refused=MAX_REFUSED
            )
        except ClassifierError:  # it refuses rows that no table held
            made = rows
            codes, found, _ = query_rows(classifier, made, schema, known_row=cells[:1])
        known = codes >= 0
        probability = _decisive(found[known], codes[known], classifier.thresholds)
        x = schema.encode(made[known])
        pieces = _pieces(x)
        network = Networks.fit(
            _cut(x, *pieces),
            probability.astype(np.float32),
            np.arange(len(x))[None],
            probability.shape[1],
            TRAINING,
            random_state=random_state,
        )
        return cls(network, *pieces)

    def guess(self, schema: Schema, cells: Floats) -> Floats:
        """The probability of each label, scaled so that the label predicted has the most.

        Args:
            schema: The columns; it may name levels unseen in training, which are then no level.
            cells: The rows.
        """
        x = schema.encode(cells)
        found = np.empty((len(x), self.network.n_labels))
        for part in batches(len(x), CELLS, len(self.start)):
            pieces = _cut(x[part], self.start, self.width, self.column)
            found[part] = self.network.probability(pieces)[0]
        return found

    # -- as arrays --------------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As plain arrays by name, for a file."""
        pieces = {name: getattr(self, name) for name in PIECE_PARTS}
        return {**self.network.arrays(), **pieces}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], width: int, n_labels: int) -> Student:
        """The inverse of `arrays`; a ValueError where they are not those of a student.

        Args:
            arrays: By name.
            width: Of an encoded row.
            n_labels: How many labels there are.
        """
        count = len(arrays["start"])
        shapes = Networks.shapes(1, count, TRAINING.hidden, n_labels)
        shapes |= dict.fromkeys(PIECE_PARTS, (count,))
        fits = (
            agree(arrays, shapes, whole=("column",))
            and bool((arrays["width"] > 0).all())
            and bool((arrays["column"] >= 0).all() and (arrays["column"] < width).all())
        )
        if not fits:
            raise ValueError("a student does not fit the columns")
        pieces = (arrays[name] for name in PIECE_PARTS)
        return cls(Networks.from_arrays(arrays), *pieces)


PIECE_PARTS = ("start", "width", "column")


def crossovers(schema: Schema, cells: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Random rows, each with one to six of its cells taken from another one.

    Missing cells stay missing, and no cell becomes so.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(50, 8)).round(2)
        >>> made = crossovers(Schema.infer(rows), rows, 100, np.random.default_rng(1))
        >>> bool(((made[:, None] == rows).sum(axis=2).max(axis=1) >= 2).all())
        True
    """
    mine, other = (cells[rng.integers(len(cells), size=count)] for _ in range(2))
    size = rng.integers(1, MOST + 1, size=count)
    order = rng.random(mine.shape).argsort(axis=1).argsort(axis=1)
    taken: Bools = (order < size[:, None]) & ~np.isnan(mine) & ~np.isnan(other)
    return schema.derive(np.where(taken, other, mine), mine)


def _decisive(found: Floats, codes: Ints, thresholds: tuple[float, ...] | None) -> Floats:
    """Probabilities in which the label predicted has the most; of labels alone, 0 and 1."""
    if np.isnan(found).any():
        return np.asarray(np.eye(found.shape[1])[codes])
    if thresholds is None:
        return found
    odds = found / np.clip(np.array(thresholds), 1e-6, None)
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


# ------------------------------------------------------------------------------------------------
# Pieces


def _pieces(x: Floats) -> tuple[Float32s, Float32s, NDArray[np.int32]]:
    """Stretches of every encoded column that hold about as many rows each; a flag is one."""
    start, width, column = [], [], []
    for i, values in enumerate(x.T):
        edges = np.unique(np.quantile(values, np.linspace(0, 1, PIECES + 1)).astype(np.float32))
        edges = edges if len(edges) > 1 else np.array([edges[0], edges[0] + 1], dtype=np.float32)
        start.append(edges[:-1])
        width.append(np.maximum(np.diff(edges), 1e-6))
        column.append(np.full(len(edges) - 1, i, dtype=np.int32))
    return np.concatenate(start), np.concatenate(width), np.concatenate(column)


def _cut(x: Floats, start: Float32s, width: Float32s, column: NDArray[np.int32]) -> Float32s:
    """How far each piece is filled, from 0 to 1."""
    values = x.astype(np.float32)[:, column]
    values -= start
    values /= width
    return np.clip(values, 0.0, 1.0, out=values)
