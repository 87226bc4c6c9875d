"""The split of rows that a report needs, and the arrays it is computed from."""

from __future__ import annotations

from collections.abc import Sequence
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
REAL = 4000  # training rows that counterfactuals are compared with, at most
INSTANCES = 30  # instances that are explained
MIN_HELD_OUT = 20  # rows held out that are enough to take those instances from
ALL_KEPT = 20  # a label of fewer rows has none held out
RARE = 50  # a label of fewer rows has uncertain values


@dataclass(frozen=True)
class Split:
    """The rows that a report needs, by position, decided before training.

    Attributes:
        train: Rows to train on.
        held_out: Rows kept from training.
        real: Training rows that counterfactuals are compared with.
        instances: Rows that are explained: held-out ones, or training ones of a small table.
        targets: Target labels of the instances, as positions.
    """

    train: Ints
    held_out: Ints
    real: Ints
    instances: Ints
    targets: Ints


def split(codes: Ints, n_labels: int, *, random_state: int = 0) -> Split:
    """Splits a table's rows for a report.

    A tenth of every label's rows is held out, at most 2,000 in all. A table of fewer than 1,000
    rows gives more, up to a fifth. A label of fewer than 20 rows keeps them for training.

    Args:
        codes: Labels of all rows, as positions.
        n_labels: Number of labels.
        random_state: Seed of the choice.

    Examples:
        >>> parts = split(np.array([0] * 900 + [1] * 100), 2)
        >>> len(parts.train), len(parts.held_out), len(parts.instances)
        (900, 100, 30)
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
    pool = order[np.isin(order, held_out)]
    if len(pool) < MIN_HELD_OUT:
        pool = np.concatenate([pool, rest])
    instances = _alternating(pool, codes)[:INSTANCES]
    step = 1 + np.arange(len(instances)) // n_labels % max(1, n_labels - 1)  # every other label
    return Split(train, held_out, real, instances, (codes[instances] + step) % n_labels)


def _alternating(rows: Ints, codes: Ints) -> Ints:
    """Returns rows in an order in which labels alternate."""
    rank = np.empty(len(rows), dtype=np.int64)  # rank of each row among those of its label
    for k in np.unique(codes[rows]):
        mask = codes[rows] == k
        rank[mask] = np.arange(mask.sum())
    return rows[np.argsort(rank, kind="stable")]


class LabelledRows(NamedTuple):
    """Rows and the labels that the classifier gives them, as positions."""

    cells: Floats
    codes: Ints


class ExplainedRows(NamedTuple):
    """Instances that were explained, and the rows that came back.

    Attributes:
        instances: Rows of the instances.
        targets: Target labels of the instances, as positions.
        feasible: Whether the rules allow any row at all, for each instance.
        answered: Whether a counterfactual was found, for each instance.
        nearest: The nearest counterfactual of each instance; any row where none was found.
        density: Density percentile of the nearest counterfactuals.
        survival: Estimated chance of these to survive retraining; NaN where unknown.
        returned: The rows that any pick returned as valid.
        instance: Position of the instance of each returned row.
        valid: Whether the classifier, queried again, gives each returned row the target.
        crossings: How often each path leaves the target again.
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
    """Labels of rows that the model was not trained on, as positions.

    Attributes:
        codes: The labels that the classifier gives the rows.
        recognised: The labels under which the model finds the rows most likely.
    """

    codes: Ints
    recognised: Ints


@dataclass(frozen=True)
class ReportInputs:
    """The arrays that a report is computed from.

    Attributes:
        schema: The columns.
        labels: The classifier's labels.
        codes: Labels of all rows of the table, as positions.
        n_prototypes: Clusters requested per label.
        recipe: The recipe the model was trained by.
        prototypes: The explainer's `Prototype` of every centroid; refused ones too.
        real: The rows of `Split.real`.
        held_out: The rows kept from training.
        reconstructed: The held-out rows encoded and decoded.
        explained: The instances of the split and their counterfactuals.
        density: Density percentiles of the held-out rows, each for its own label.
        recognised: Labels of rows, by the classifier and by the model.
        rules: Every rule and the number of rows on which it holds.
        n_queries: Rows the classifier was queried about.
        seconds: Seconds that fitting took.
        random_state: Seed of bootstrap samples.
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
