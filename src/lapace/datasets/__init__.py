"""Data sets: one made by the package itself and the paper's four; classifiers trained on a table.

`load("loans")` needs no network. The others are fetched once, verified by their sha256 and kept in
a cache (`LAPACE_DATA`, or the user's cache folder); none of them is part of this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Ints
from lapace.datasets.pipelines import TrainedKind, held_out_predictions, train
from lapace.errors import InputError, check_integer, did_you_mean, import_extra
from lapace.schema import Schema

__all__ = ["Dataset", "TrainedKind", "held_out_predictions", "load", "names", "train"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set, split and described.

    Attributes:
        name: Its name, as `load` takes it.
        description: A sentence on it and on what its labels mean.
        licence: The terms on which the data may be used.
        train: Training rows, features only: a pandas frame.
        test: Held-out rows.
        train_labels: One label per training row.
        test_labels: One label per held-out row.
        schema: The columns of `train`, with a sentence on each; derived columns are declared.
        rules: Constraints that every counterfactual should satisfy: immutable and monotone columns,
            and relations between columns.
        target: The favourable label; None where no label is better than another.
        settings: Settings of the stock classifiers that suit it.

    Examples:
        >>> loans = load("loans")
        >>> len(loans.train), len(loans.test), loans.target
        (4000, 1000, 'approved')
        >>> loans.schema["savings"].description
        'Savings.'
    """

    name: str
    description: str
    licence: str
    train: Any = field(repr=False)
    test: Any = field(repr=False)
    train_labels: NDArray[Any] = field(repr=False)
    test_labels: NDArray[Any] = field(repr=False)
    schema: Schema = field(repr=False)
    rules: tuple[str, ...] = field(repr=False)
    target: str | int | None
    settings: Mapping[str, Mapping[str, Any]] = field(repr=False)

    def classifier(
        self, kind: TrainedKind = "forest", *, random_state: int = 0, **settings: Any
    ) -> Any:
        """Returns a scikit-learn pipeline fitted on the training rows.

        Args:
            kind: `forest`, `mlp` or `boosting`.
            random_state: Seed of everything random.
            settings: The estimator's settings, in scikit-learn's words.

        Examples:
            >>> loans = load("loans")
            >>> forest = loans.classifier("forest")
            >>> bool((forest.predict(loans.test) == loans.test_labels).mean() > 0.8)
            True
        """
        chosen = {"random_state": random_state, **self.settings.get(kind, {}), **settings}
        return train(kind, self.schema, self.train, self.train_labels, **chosen)


def names() -> tuple[str, ...]:
    """Returns the names of the data sets.

    Examples:
        >>> names()[:3]
        ('loans', 'heloc', 'wine')
    """
    import_extra("pandas", "data", "A data set")  # training a classifier does without it
    from lapace.datasets.catalog import CATALOG

    return tuple(CATALOG)


def load(
    name: str,
    *,
    balanced: bool = False,
    rows: int | None = None,
    random_state: int = 0,
) -> Dataset:
    """Returns a data set, split 80 to 20 with the same shares of every label.

    Args:
        name: One of `names()`.
        balanced: Drop rows at random until every label is as frequent as the rarest, then split.
        rows: Number of applications to make; for `loans` only.
        random_state: Seed of which rows are dropped, and which are held out.

    Examples:
        >>> load("loans", rows=200).train.shape
        (160, 16)
    """
    all_names = names()
    if name not in all_names:
        raise InputError(
            f"There is no data set '{name}'. There are: {', '.join(all_names)}."
            f"{did_you_mean(name, all_names)}"
        )
    from lapace.datasets.catalog import CATALOG, build
    from lapace.datasets.loans import make

    facts = CATALOG[name]
    if rows is not None and name != "loans":
        raise InputError(f"`rows` is for 'loans' only: '{name}' has a fixed number of rows.")
    table, labels = build(name) if rows is None else make(check_integer("rows", rows))
    training, held_out = _split(labels, balanced, np.random.default_rng(random_state))
    train_rows, test_rows = (table.iloc[p].reset_index(drop=True) for p in (training, held_out))
    columns = {column: {"description": words} for column, words in facts["columns"].items()}
    for column, expression in facts.get("derived", {}).items():
        columns[column]["derived"] = expression
    return Dataset(
        name=name,
        description=facts["description"],
        licence=facts["licence"],
        train=train_rows,
        test=test_rows,
        train_labels=labels[training],
        test_labels=labels[held_out],
        schema=Schema.infer(train_rows, columns),
        rules=tuple(facts["rules"]),
        target=facts.get("target"),
        settings=facts.get("settings", {}),
    )


def _split(labels: NDArray[Any], balanced: bool, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Returns the positions of the training rows and of the held-out rows, in random order."""
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    parts = []
    for code in range(len(counts)):
        members = rng.permutation(np.flatnonzero(classes == code))
        members = members[: counts.min()] if balanced else members
        parts.append(np.split(members, [round(0.2 * len(members))]))
    held_out, training = (np.concatenate(part) for part in zip(*parts, strict=True))
    return rng.permutation(training), rng.permutation(held_out)
