"""Small tables and their classifiers: 100 to 5,000 rows, 2 to 10 labels.

Generated tables, scikit-learn's bundled ones, and small samples of the package's data sets. Half of
the families are for choosing settings and thresholds, the other half only to report on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn import datasets as bundled
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from lapace import datasets

__all__ = ["TABLES", "SmallTable", "classifier"]


class SmallTable(NamedTuple):
    """A small table by name.

    Attributes:
        name: Family, rows and labels.
        make: Makes the rows and their true labels from a seed.
        kind: The classifier that is explained.
        tuned_on: Whether settings and thresholds may be chosen on it.
    """

    name: str
    make: Callable[[int], tuple[pd.DataFrame, NDArray[Any]]]
    kind: str
    tuned_on: bool


def applicants(rows: int, labels: int, seed: int) -> tuple[pd.DataFrame, NDArray[Any]]:
    """A table like those of credit applications: numbers, categories, missing values, noise."""
    rng = np.random.default_rng(seed)
    amount = np.round(rng.lognormal(7.8, 0.8, rows), -1)
    job = rng.choice(["unskilled", "skilled", "management"], rows, p=[0.25, 0.6, 0.15])
    frame = pd.DataFrame(
        {
            "age": rng.integers(19, 75, rows),
            "amount": amount,
            "months": rng.choice([6, 12, 18, 24, 36, 48, 60], rows),
            "savings": np.where(rng.random(rows) < 0.15, np.nan, rng.gamma(1.2, 900, rows).round()),
            "status": rng.choice(["no", "overdrawn", "low", "high"], rows, p=[0.4, 0.3, 0.2, 0.1]),
            "history": rng.choice(["clean", "delays", "critical"], rows, p=[0.55, 0.15, 0.3]),
            "purpose": rng.choice(["car", "furniture", "tv", "education", "business"], rows),
            "job": job,
            "housing": rng.choice(["own", "rent", "free"], rows, p=[0.7, 0.2, 0.1]),
            "guarantor": rng.random(rows) < 0.1,
        }
    )  # fmt: skip
    score = (
        0.02 * (frame["age"] - 40)
        - 0.5 * np.log(amount / 2500)
        - 0.03 * (frame["months"] - 20)
        + 0.0004 * frame["savings"].fillna(400)
        + frame["status"].map({"no": 0.9, "overdrawn": -0.9, "low": -0.3, "high": 0.4})
        + frame["history"].map({"clean": 0.1, "delays": -0.5, "critical": 0.5})
        + (job == "management") * 0.3
        + 0.5 * frame["guarantor"]
        + rng.normal(0, 0.7, rows)
    )
    edges = np.quantile(score, np.linspace(0, 1, labels + 1)[1:-1] ** 1.4)
    return frame, np.searchsorted(edges, score)


def _points(
    rows: int, labels: int, seed: int, columns: int = 8, noise: float = 0.02, share: float = 0.0
) -> tuple[pd.DataFrame, NDArray[Any]]:
    """Numbers alone; `share` makes the last label rare."""
    weights = None
    if share:
        weights = [*[(1 - share) / (labels - 1)] * (labels - 1), share]
    x, y = bundled.make_classification(
        rows,
        columns,
        n_informative=max(3, columns // 2),
        n_redundant=1,
        n_classes=labels,
        n_clusters_per_class=1 if labels > 3 else 2,
        flip_y=noise,
        weights=weights,
        class_sep=1.2,
        random_state=seed,
    )
    return pd.DataFrame(x.round(3), columns=[f"x{i}" for i in range(columns)]), y


def _bundled(name: str, rows: int, labels: int, seed: int) -> tuple[pd.DataFrame, NDArray[Any]]:
    """A random part of a table of scikit-learn; a regression's target is cut in equal parts."""
    found = getattr(bundled, f"load_{name}")(as_frame=True)
    frame, target = found.data, found.target.to_numpy()
    if name == "diabetes":
        target = np.searchsorted(np.quantile(target, np.linspace(0, 1, labels + 1)[1:-1]), target)
    some = np.random.default_rng(seed).permutation(len(frame))[:rows]
    varies = [c for c in frame if frame[c].iloc[some].nunique() > 1]
    return frame[varies].iloc[some].reset_index(drop=True), target[some]


def _public(name: str, rows: int, labels: int, seed: int) -> tuple[pd.DataFrame, NDArray[Any]]:  # noqa: ARG001
    """A random part of a data set of the package."""
    found = datasets.load(name)
    some = np.random.default_rng(seed).permutation(len(found.train))[:rows]
    frame = found.train.iloc[some].reset_index(drop=True)
    return frame, np.asarray(found.train_labels)[some]


def classifier(kind: str, frame: pd.DataFrame, labels: NDArray[Any], seed: int) -> Any:
    """A classifier as people fit them: a pipeline on the table's own columns."""
    numbers = [
        c for c in frame if pd.api.types.is_numeric_dtype(frame[c]) and frame[c].dtype != bool
    ]
    words = [c for c in frame if c not in numbers]
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), words),
    )
    kinds: Mapping[str, Any] = {
        "forest": RandomForestClassifier(100, min_samples_leaf=2, random_state=seed),
        "boosted": HistGradientBoostingClassifier(max_iter=60, random_state=seed),
        "linear": LogisticRegression(max_iter=2000),
        "net": MLPClassifier((32,), alpha=0.1, max_iter=400, random_state=seed),
    }
    return make_pipeline(columns, kinds[kind]).fit(frame, labels)


def _tables() -> tuple[SmallTable, ...]:
    found = []
    kinds = ("forest", "boosted", "linear", "net")

    def add(family: str, make: Any, rows: int, labels: int, tuned_on: bool, **more: Any) -> None:
        name = f"{family}-{rows}-{labels}"
        kind = kinds[zlib.crc32(name.encode()) % 4]
        found.append(
            SmallTable(name, lambda seed: make(rows, labels, seed, **more), kind, tuned_on)
        )

    def of(name: str, make: Any) -> Any:
        return lambda rows, labels, seed: make(name, rows, labels, seed)

    for rows, labels in ((100, 2), (300, 3), (1000, 2), (2500, 5)):
        add("applicants", applicants, rows, labels, True)
    for rows, labels in ((150, 2), (400, 4), (1000, 10), (3000, 3)):
        add("points", _points, rows, labels, True)
    add("iris", of("iris", _bundled), 150, 3, True)
    add("diabetes", of("diabetes", _bundled), 442, 3, True)
    add("loans", of("loans", _public), 500, 2, True)
    add("rare", _points, 1500, 3, True, share=0.03)
    for rows, labels in ((200, 2), (600, 5), (2000, 3), (5000, 2)):
        add("credit", lambda r, k, s: applicants(r, k, s + 1000), rows, labels, False)
    for rows, labels in ((120, 2), (500, 3), (1500, 6), (5000, 10)):
        add("wide", _points, rows, labels, False, columns=16, noise=0.05)
    add("wines", of("wine", _bundled), 178, 3, False)
    add("cancer", of("breast_cancer", _bundled), 569, 2, False)
    add("digits", of("digits", _bundled), 1000, 10, False)
    add("diabetes", of("diabetes", _bundled), 440, 2, False)
    add("scarce", _points, 2000, 4, False, share=0.02, columns=10)
    for name, rows in (("wine", 400), ("heloc", 800), ("compas", 1000), ("adult-full", 1500)):
        add(name, of(name, _public), rows, 2, False)
    return tuple(found)


TABLES = _tables()
