"""Which rows a report needs, and the arrays it is computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.errors import InputError
from lapace.report.document import Queries, Rule
from lapace.schema import Schema
from lapace.table import Level

HELD_OUT = 2000  # rows kept from training, at most
LEAST = 100  # rows kept from training, as long as that is no more than a fifth of the table
REAL = 4000  # real rows a quick forest is trained on, at most
DRAWS = 200  # rows sampled for every label, at least; fewer each where there are many labels
INSTANCES = 30  # instances that are explained
MIN_HELD_OUT = 20  # rows held out that are enough to take those instances from
ALL_KEPT = 20  # a label of fewer rows has none held out
RARE = 50  # a label of fewer rows has uncertain values


@dataclass(frozen=True)
class Split:
    """Which rows a report needs, decided before training.

    Attributes:
        train: Rows to train on.
        held_out: The others.
        real: Of the training rows, those a quick forest is trained on.
        instances: Rows that are explained: held-out ones, or training ones of a small table.
        targets: Their target labels, as positions.
        draws: For each label the number of rows to sample.
    """

    train: Ints
    held_out: Ints
    real: Ints
    instances: Ints
    targets: Ints
    draws: Ints


def split(codes: Ints, n_labels: int, *, random_state: int = 0) -> Split:
    """Splits a table's rows for a report.

    A tenth of every label's rows is held out, at most 2,000 in all; of a table of fewer than 1,000
    rows more, up to a fifth. A label of fewer than 20 rows keeps them for training.

    Args:
        codes: Labels of all rows, as positions.
        n_labels: How many labels there are.
        random_state: Of the choice.

    Examples:
        >>> found = split(np.array([0] * 900 + [1] * 100), 2)
        >>> len(found.train), len(found.held_out), found.draws.tolist(), len(found.instances)
        (900, 100, [810, 200], 30)
    """
    order = np.random.default_rng(random_state).permutation(len(codes))
    total = max(1, len(codes))
    share = min(HELD_OUT / total, max(0.1, min(0.2, LEAST / total)))
    by_label = [order[codes[order] == k] for k in range(n_labels)]
    kept = [rows[: int(share * len(rows))] for rows in by_label if len(rows) >= ALL_KEPT]
    held_out = np.sort(np.concatenate([*kept, np.empty(0, dtype=np.int64)])).astype(np.int64)
    train = np.setdiff1d(np.arange(len(codes)), held_out)
    rest = order[np.isin(order, train)]
    real = np.sort(rest[:REAL])
    least = int(np.clip(REAL // n_labels, 50, DRAWS))
    draws = np.maximum(np.bincount(codes[real], minlength=n_labels), least)
    pool = order[np.isin(order, held_out)]
    if len(pool) < MIN_HELD_OUT:
        pool = np.concatenate([pool, rest])
    instances = _alternating(pool, codes)[:INSTANCES]
    step = 1 + np.arange(len(instances)) // n_labels % max(1, n_labels - 1)  # every other label
    return Split(train, held_out, real, instances, (codes[instances] + step) % n_labels, draws)


def _alternating(rows: Ints, codes: Ints) -> Ints:
    """Rows reordered so that labels alternate."""
    rank = np.empty(len(rows), dtype=np.int64)  # of each row among those of its label
    for k in np.unique(codes[rows]):
        mask = codes[rows] == k
        rank[mask] = np.arange(mask.sum())
    return rows[np.argsort(rank, kind="stable")]


class LabelledRows(NamedTuple):
    """Rows, and what the classifier predicts of them.

    Attributes:
        cells: The rows.
        codes: Their labels, as positions.
        probability: Of each label, (n, labels); None where unknown.
    """

    cells: Floats
    codes: Ints
    probability: Floats | None = None


class ExplainedRows(NamedTuple):
    """What came back for some instances.

    Attributes:
        instances: Their rows.
        targets: Their target labels, as positions.
        feasible: Whether the rules allow any row at all.
        answered: Whether a counterfactual was found.
        nearest: The nearest one; anything where none was found.
        density: Its density percentile.
        survival: Its estimated chance to survive retraining; NaN where unknown.
        returned: The rows that any pick returned as valid.
        instance: Of each of these the position of its instance.
        valid: Whether the classifier, queried about it again, gives it the target.
        crossings: Of every path, how often it leaves the target again.
    """

    instances: Floats
    targets: Ints
    feasible: Bools
    answered: Bools
    nearest: Floats
    density: Floats
    survival: Floats
    returned: Floats
    instance: Ints
    valid: Bools
    crossings: Ints


class Recognised(NamedTuple):
    """Rows the model was not trained on, by label.

    Attributes:
        codes: The classifier's labels, as positions.
        recognised: The labels under which the model finds the rows most likely.
    """

    codes: Ints
    recognised: Ints


@dataclass(frozen=True)
class ReportInputs:
    """What a report is computed from.

    Attributes:
        schema: The columns.
        labels: The classifier's labels.
        codes: Labels of all rows of the table, as positions.
        n_prototypes: Clusters requested per label.
        recipe: How the model was trained.
        prototypes: The explainer's `Prototype` of every centroid; refused ones too.
        real: Training rows and their labels, those of `Split.real`.
        held_out: Held-out rows, their labels and probabilities.
        reconstructed: The held-out rows encoded and decoded.
        sampled: For each label that can be sampled, as many rows as `Split.draws` says, and what
            the classifier predicts of them.
        explained: What came back for the instances of the split.
        density: Density percentiles of the held-out rows, each for its own label.
        recognised: Labels of rows, by the classifier and by the model.
        rules: On how many rows each rule holds.
        n_queries: Rows the classifier was queried about.
        seconds: What fitting took.
        random_state: Of the quick forests.
    """

    schema: Schema
    labels: tuple[Level, ...]
    codes: Ints
    n_prototypes: int
    recipe: str
    prototypes: Sequence[Any]
    real: LabelledRows
    held_out: LabelledRows
    reconstructed: Floats
    sampled: Mapping[int, LabelledRows]
    explained: ExplainedRows
    density: Floats
    recognised: Recognised
    rules: Sequence[Rule] = ()
    n_queries: Queries = field(default_factory=Queries)
    seconds: float = 0.0
    random_state: int = 0

    def __post_init__(self) -> None:
        """Refuses arrays that do not belong together."""
        if self.reconstructed.shape != self.held_out.cells.shape:
            raise InputError(
                f"There are {self.reconstructed.shape} reconstructed cells for "
                f"{self.held_out.cells.shape} held-out ones. Reconstruct exactly the held-out "
                "rows, in their order."
            )
