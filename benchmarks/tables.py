"""The tables experiments run on: data sets of `lapace.datasets`, and tables of our own.

The latter show whether defaults chosen on other tables hold: few rows, many columns, wide
categories, three and ten classes. They come with scikit-learn, are generated here, or are files
inside published Python packages (`public.toml`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
)
from sklearn.model_selection import train_test_split

from benchmarks.plan import Pair
from lapace import datasets
from lapace.datasets import Dataset, TrainedKind
from lapace.datasets.sources import Source, fetch
from lapace.schema import Feature, Schema

__all__ = ["TABLES", "load", "retrained"]

Labels: TypeAlias = NDArray[Any]


def load(pair: Pair, seed: int, rows: int | None = None) -> Dataset:
    """Returns a pair's data set, split by the seed.

    Args:
        pair: Which.
        seed: Of the split.
        rows: Training rows at most, and half as many test rows.

    Examples:
        >>> table = load(Pair("cultivars-RF", "cultivars", "forest"), seed=1)
        >>> table.train.shape, table.target
        ((142, 13), 'class_0')
        >>> load(Pair("loans-RF", "loans", "forest"), seed=1, rows=200).test.shape[0]
        100
    """
    if pair.data in TABLES:
        data = _split(pair.data, TABLES[pair.data], seed)
    else:
        data = datasets.load(pair.data, random_state=seed, balanced=pair.balanced)
        data = _imputed(data) if pair.impute else data
    return data if rows is None else _head(data, rows)


def _imputed(data: Dataset) -> Dataset:
    """Returns the data set with missing numbers filled by a median of the training rows."""
    median = data.train.quantile(0.5, interpolation="lower")
    train, test = (part.fillna(median) for part in (data.train, data.test))
    whole = [n for n in train if all((part[n] % 1 == 0).all() for part in (train, test))]
    train, test = (part.astype(dict.fromkeys(whole, np.int64)) for part in (train, test))
    return replace(data, train=train, test=test, schema=Schema.infer(train))


def _head(data: Dataset, rows: int) -> Dataset:
    """Returns the data set with fewer rows: so many for training, half as many for testing."""
    train, test = data.train.head(rows), data.test.head(rows // 2)  # split at random already
    kinds: dict[str, str | Feature] = {}
    for f in data.schema.features:
        if f.kind == "continuous":
            kinds[f.name] = Feature(f.name, "continuous", derived=f.derived)
        elif f.kind == "ordinal":
            kinds[f.name] = Feature(f.name, "ordinal", categories=f.categories, derived=f.derived)
    return replace(
        data,
        train=train,
        test=test,
        train_labels=data.train_labels[:rows],
        test_labels=data.test_labels[: rows // 2],
        schema=Schema.infer(train, kinds),
    )


def _split(name: str, own: OwnTable, seed: int) -> Dataset:
    """Returns a table of our own, four fifths of it for training."""
    table, labels = own.build()
    train, test, train_labels, test_labels = train_test_split(
        table, labels, test_size=0.2, stratify=labels, random_state=seed
    )
    train = train.reset_index(drop=True)
    return Dataset(
        name=name,
        description=own.description,
        licence=own.licence,
        train=train,
        test=test.reset_index(drop=True),
        train_labels=train_labels,
        test_labels=test_labels,
        schema=Schema.infer(train, own.kinds),
        rules=(),
        target=own.target,
        settings={},
    )


def retrained(data: Dataset, kind: TrainedKind, *, seed: int, share: float = 0.8) -> Any:
    """Trains a classifier of the same kind on another selection of the whole data set.

    Rows are drawn from training and test rows together, so that a selection differs from the
    training rows as one split differs from another.

    Args:
        data: The data set, split.
        kind: Of classifier.
        seed: Of the selection and the training.
        share: Of all rows that are drawn.

    Examples:
        >>> table = load(Pair("cultivars-RF", "cultivars", "forest"), seed=1)
        >>> model = retrained(table, "forest", seed=2)
        >>> bool((model.predict(table.test) == table.test_labels).mean() > 0.9)
        True
    """
    rows = pd.concat([data.train, data.test], ignore_index=True)
    labels = np.concatenate([np.asarray(data.train_labels), np.asarray(data.test_labels)])
    rng = np.random.default_rng(90_000 + seed)
    chosen = np.sort(rng.permutation(len(rows))[: round(share * len(rows))])
    table = rows.iloc[chosen].reset_index(drop=True)
    return replace(data, train=table, train_labels=labels[chosen]).classifier(
        kind, random_state=seed
    )


# ------------------------------------------------------------------------------------------------
# Tables of our own


@dataclass(frozen=True)
class OwnTable:
    """A table that `lapace.datasets` does not have."""

    description: str
    build: Callable[[], tuple[pd.DataFrame, Labels]]
    target: str
    licence: str = "made by this package"
    kinds: Mapping[str, str] | None = None


def _bundled(load_table: Callable[..., Any]) -> Callable[[], tuple[pd.DataFrame, Labels]]:
    """A table of scikit-learn's, its classes by name."""

    def build() -> tuple[pd.DataFrame, Labels]:
        found = load_table(as_frame=True)
        names = np.array([str(name) for name in found.target_names])
        return found.data, names[np.asarray(found.target)]

    return build


def _codes(rows: int = 6000) -> tuple[pd.DataFrame, Labels]:
    """Six categories of 12 to 60 levels and three numbers, all derived from a hidden position.

    Every level of a category has a position on a plane, and rows tend to have levels near their
    own; the label depends on the row's position, which no column shows.
    """
    rng = np.random.default_rng(7)
    place = rng.normal(size=(rows, 2))
    columns: dict[str, Any] = {}
    for width in (12, 18, 25, 32, 40, 60):
        home = rng.normal(scale=1.2, size=(width, 2))
        away = ((place[:, None] - home) ** 2).sum(axis=2)  # (rows, width)
        luck = rng.gumbel(size=away.shape)
        level = (luck - 1.5 * away).argmax(axis=1)
        columns[f"code_{width}"] = np.array([f"c{k:02d}" for k in range(width)])[level]
    columns["amount"] = np.round(np.exp(6 + 0.5 * place[:, 0] + 0.6 * rng.normal(size=rows)), 2)
    columns["age"] = np.round(np.clip(45 + 9 * place[:, 1] + 9 * rng.normal(size=rows), 18, 90))
    columns["visits"] = rng.poisson(np.exp(0.6 - 0.4 * place[:, 0]))
    merit = place[:, 0] + 0.8 * np.sin(1.5 * place[:, 1]) + 0.4 * rng.logistic(size=rows)
    return pd.DataFrame(columns), np.where(merit > 0.4, "yes", "no")


def _columns(rows: int = 4000) -> tuple[pd.DataFrame, Labels]:
    """Eighty numbers, half of them noise, and three classes."""
    values, classes = make_classification(
        rows,
        n_features=80,
        n_informative=20,
        n_redundant=20,
        n_classes=3,
        n_clusters_per_class=2,
        class_sep=1.5,
        random_state=7,
    )
    names = [f"x{k:02d}" for k in range(values.shape[1])]
    return pd.DataFrame(np.round(values, 3), columns=names), np.array(list("abc"))[classes]


def _six(rows: int = 3000) -> tuple[pd.DataFrame, Labels]:
    """Twelve numbers, a third of them noise, and six classes; a tenth of the labels is wrong."""
    values, classes = make_classification(
        rows, n_features=12, n_informative=6, n_classes=6, flip_y=0.1, random_state=7
    )
    names = [f"x{k:02d}" for k in range(values.shape[1])]
    return pd.DataFrame(np.round(values, 3), columns=names), np.array(list("abcdef"))[classes]


def _rare(rows: int, columns: int, seed: int) -> tuple[pd.DataFrame, Labels]:
    """Numbers, half of them noise, and two classes, one of them a fiftieth of the rows."""
    values, classes = make_classification(
        rows,
        n_features=columns,
        n_informative=columns // 2,
        weights=[0.98],
        flip_y=0.005,
        random_state=seed,
    )
    names = [f"x{k:02d}" for k in range(columns)]
    return pd.DataFrame(np.round(values, 3), columns=names), np.array(["no", "yes"])[classes]


def _diabetes() -> tuple[pd.DataFrame, Labels]:
    found = load_diabetes(as_frame=True, scaled=False)
    slow = np.asarray(found.target) < found.target.median()
    return found.data.round(4), np.where(slow, "slow", "fast")


def _fetched(entry: Mapping[str, str]) -> tuple[pd.DataFrame, Labels]:
    """Some columns of a public table, and another one as the label."""
    (path,) = fetch(Source(entry["file"], entry["sha256"], (entry["place"],)))
    names = entry["columns"].split()
    if path.suffix == ".txt":
        table = pd.read_csv(path, sep=r"\s+", header=None, names=[*names, entry["label"]])
    else:
        table = pd.read_csv(path)
    labels = table[entry["label"]]
    if pd.api.types.is_numeric_dtype(labels) and labels.nunique() == 2:
        labels = labels.eq(1).map({True: "yes", False: "no"})
    # Some files hold numbers of 32 bits written with all their digits.
    numbers = table[names].select_dtypes("number").columns
    table = table[names].astype(dict.fromkeys(numbers, float)).round(4)
    whole = [n for n in numbers if (table[n].dropna() % 1 == 0).all() and table[n].notna().all()]
    return table.astype(dict.fromkeys(whole, np.int64)), labels.to_numpy().astype(str)


SKLEARN = "comes with scikit-learn"
PIXELS = {f"pixel_{i}_{j}": "continuous" for i in range(8) for j in range(8)}
_FILE = Path(__file__).with_name("public.toml")
_PUBLIC: dict[str, dict[str, str]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))

TABLES: Mapping[str, OwnTable] = {
    "cancer": OwnTable(
        "569 tumours, 30 measures.", _bundled(load_breast_cancer), "benign", SKLEARN
    ),
    "cultivars": OwnTable("178 wines of three growers.", _bundled(load_wine), "class_0", SKLEARN),
    "digits": OwnTable(
        "1,797 digits of 8 x 8 pixels.", _bundled(load_digits), "7", SKLEARN, PIXELS
    ),
    "codes": OwnTable("6,000 rows with categories of 12 to 60 levels.", _codes, "yes"),
    "columns": OwnTable("4,000 rows of 80 columns, three classes.", _columns, "a"),
    "six": OwnTable("3,000 rows of 12 columns, six classes.", _six, "a"),
    "scarce": OwnTable("3,000 rows, 98 to 2.", partial(_rare, 3000, 8, 7), "yes"),
    "rare": OwnTable("5,000 rows, 98 to 2.", partial(_rare, 5000, 12, 11), "yes"),
    "iris": OwnTable("150 irises.", _bundled(load_iris), "virginica", SKLEARN),
    "diabetes": OwnTable("442 patients.", _diabetes, "slow", SKLEARN),
} | {
    name: OwnTable(
        entry["description"], partial(_fetched, entry), entry["target"], entry["licence"]
    )
    for name, entry in _PUBLIC.items()
}
