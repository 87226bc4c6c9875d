"""Made-up rows for labels short of rows: mixed from neighbours, labelled by the classifier.

A model learns little from twenty rows of a label, but the classifier can be queried about rows
that no table has. They only help to train the networks and the sampler. Clusters, category trees,
density percentiles and whatever else a row is compared with come from real rows; no made-up row is
kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lapace.arrays import Floats, Ints
from lapace.classifier import Classifier, query_rows
from lapace.constraints import Constraint, System
from lapace.errors import ClassifierError
from lapace.schema import Schema
from lapace.schema.distance import kneighbors

__all__ = ["MadeUpRows", "mix_neighbours", "top_up"]

NEIGHBOURS = 5  # of a row, of whatever label, that it is mixed with
ROUNDS, SURPLUS = 8, 1.5  # of proposals at most, and proposals per row that is still missing
MIN_YIELD = 0.02  # share of a round's proposals that must get the label for another round
MAX_REFUSED = 50  # rows the classifier may raise on before no more are proposed
MIN_ROWS = 5  # of a label, to be topped up at all: those with fewer get no prototype


class MadeUpRows(NamedTuple):
    """Rows made up, and the labels the classifier gives them, as positions."""

    cells: Floats
    codes: Ints


def top_up(
    schema: Schema,
    classifier: Classifier,
    cells: Floats,
    codes: Ints,
    *,
    enough: int,
    random_state: int,
    rules: Sequence[Constraint] = (),
) -> MadeUpRows:
    """Made-up rows for every label that has fewer real ones than enough.

    Args:
        schema: The columns.
        classifier: The classifier, with a fresh count of queries.
        cells: Training rows.
        codes: Their labels, as positions.
        enough: Rows of a label, real and made-up together.
        random_state: Seed of the proposals.
        rules: Those that every training row satisfies hold on made-up rows too.

    Returns:
        No row of a label that is not short; fewer than are missing where the classifier gives the
        label to hardly any row proposed for it.
    """
    sizes = np.bincount(codes, minlength=len(classifier.labels))
    missing = np.where(sizes >= MIN_ROWS, np.maximum(0, enough - sizes), 0)
    rng = np.random.default_rng(random_state)
    encoded, real = schema.encode(cells), {}
    for k in np.flatnonzero(missing).tolist():
        mine = np.flatnonzero(codes == k)
        # A row is its own nearest neighbour.
        real[k] = mine, kneighbors(schema, cells[mine], cells, NEIGHBOURS + 1)[1][:, 1:]
    system = System.of(rules, schema, check=False).strict
    always = system.holds(cells, cells).all(axis=0)
    made, labels = [cells[:0]], [codes[:0]]
    for _ in range(ROUNDS):
        wanted = [k for k in real if missing[k] > 0]
        if not wanted:
            break
        counts = [int(SURPLUS * missing[k]) + 1 for k in wanted]
        proposed = np.concatenate(
            [_mix(schema, encoded, *real[k], n, rng) for k, n in zip(wanted, counts, strict=True)]
        )
        proposed = proposed[system.holds(proposed, proposed)[:, always].all(axis=1)]
        try:
            found, _ = query_rows(
                classifier, proposed, schema, known_row=cells[:1], max_refused=MAX_REFUSED
            )
        except ClassifierError:  # it refuses rows that no table held: there are none to be had
            break
        for k, n in zip(wanted, counts, strict=True):
            rows = np.flatnonzero(found.codes == k)
            made.append(proposed[rows[: missing[k]]])
            labels.append(found.codes[rows[: missing[k]]])
            missing[k] = 0 if len(rows) < MIN_YIELD * n else missing[k] - len(made[-1])
    return MadeUpRows(np.concatenate(made), np.concatenate(labels))


def mix_neighbours(
    schema: Schema, cells: Floats, count: int, random_state: int, start: Ints | None = None
) -> Floats:
    """Rows between random rows and their neighbours; none where there are no neighbours.

    Args:
        schema: The columns.
        cells: The rows.
        count: How many to make.
        random_state: Seed of the choice.
        start: Positions of the rows to start from; None for any.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(50, 3)).round(2)
        >>> mixed = mix_neighbours(Schema.infer(rows), rows, 20, random_state=0)
        >>> bool((mixed.min(axis=0) >= rows.min(axis=0)).all())
        True
    """
    if len(cells) < 2:
        return cells[:0]
    rng = np.random.default_rng(random_state)
    rows = np.sort(rng.permutation(len(cells))[:count]) if start is None else start
    near = kneighbors(schema, cells[rows], cells, NEIGHBOURS + 1)[1][:, 1:]
    return _mix(schema, schema.encode(cells), rows, near, count, rng)


def _mix(
    schema: Schema, encoded: Floats, rows: Ints, near: Ints, count: int, rng: np.random.Generator
) -> Floats:
    """Rows on lines to neighbours; the farther along, the likelier has each category changed."""
    at = rng.integers(len(rows), size=count)
    one, other = encoded[rows[at]], encoded[near[at, rng.integers(near.shape[1], size=count)]]
    place = {int(i): k for k, i in enumerate(schema.numeric)}
    for i, flag in schema.coding.flags:  # a missing number has no value to mix
        k, absent = place[i], (one[:, flag] > 0.5, other[:, flag] > 0.5)
        one[absent[0], k], other[absent[1], k] = other[absent[0], k], one[absent[1], k]
    along = rng.random(count)
    share = np.repeat(along[:, None], encoded.shape[1], axis=1)
    blocks = [(start, width) for _, start, width in schema.coding.blocks]
    for start, width in [*blocks, *((flag, 1) for _, flag in schema.coding.flags)]:
        share[:, start : start + width] = (rng.random(count) < along)[:, None]
    return schema.derive(schema.decode(one + share * (other - one)))
