"""Small worlds: a table, a classifier, and an explainer fitted once per run of the tests.

Each function is one world and caches it, so that all test modules share the same fitted
explainers. Together they cover every kind of frame, of label and of classifier.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from fcntl import LOCK_EX, flock
from functools import cache, wraps
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import numpy as np
import pytest

from lapace import Explainer, Explanation, Search
from lapace.training import DEFAULT, PAPER

# A narrow network learns these few hundred rows as well, in a third of the time; one that runs a
# few passes and stops early, in a tenth.
NARROW = replace(DEFAULT, hidden=32, batch=128, enough=0)
QUICK = replace(
    DEFAULT, hidden=32, batch=64, rate=8e-3, steps=1, epochs=20, patience=0.75, enough=0
)
QUICK_PAPER = replace(
    PAPER, hidden=64, steps=1, epochs=60, batch=64, rate=3e-3, weights=(0.1, 0.02, 1.0)
)

CONSTRAINTS = ["fixed age", "income >= original", "home in {own, rent}", "changes <= 3"]  # of bank
HOMES = ("kin", "own", "rent")
GRADES = ("low", "mid", "high")


@dataclass(frozen=True)
class World:
    """A classifier, its tables, and the fitted explainer.

    Attributes:
        classifier: As the user has it: an estimator, a pipeline or a function.
        train: The table the explainer was fitted on.
        instances: Other rows of the same kind.
        explainer: Fitted.
    """

    classifier: Any
    train: Any
    instances: Any
    explainer: Explainer


def quick(
    classifier: Any, n_prototypes: int = 2, *, recipe: Any = QUICK, **settings: Any
) -> Explainer:
    """An explainer, not fitted yet, that learns in a moment."""
    settings = {"recipe": recipe, "device": "cpu", **settings}
    return Explainer(classifier, n_prototypes=n_prototypes, **settings)


def each(*pairs: tuple[Callable[[], World], Any]) -> Any:
    """Parametrises a test with `world` and `target`."""
    names = [world.__name__ for world, _ in pairs]
    return pytest.mark.parametrize(("world", "target"), pairs, ids=names)


T = TypeVar("T")


def once(make: Callable[..., T]) -> Callable[..., T]:
    """Keeps what a function makes for all processes of a run, which wait for the first to make it.

    `conftest.py` names the folder; without it every process makes its own.
    """

    @cache
    @wraps(make)
    def kept(*settings: Any) -> T:
        if (folder := os.environ.get("LAPACE_WORLDS")) is None:
            return make(*settings)
        name = f"{make.__module__}.{make.__qualname__}{settings!r}"
        path = Path(folder) / sha256(name.encode()).hexdigest()
        with path.with_suffix(".lock").open("w") as lock:
            flock(lock, LOCK_EX)
            if not path.exists():
                made = make(*settings)
                path.write_bytes(cloudpickle.dumps(made))
                return made
        found: T = cloudpickle.loads(path.read_bytes())
        return found

    return kept


# ------------------------------------------------------------------------------------------------
# A bank: pandas, two classes in words, an sklearn pipeline with probabilities


def applicants(count: int, seed: int) -> Any:
    """Every kind of column, with missing numbers and missing categories."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    income = np.round(rng.gamma(2.0, 20.0, count), 1)
    debt = np.maximum(0, rng.normal(30, 20, count)).round()
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, count),
            "income": income,
            "debt": pd.array(debt, dtype="Int64"),
            "home": rng.choice(np.array(HOMES, dtype=object), count, p=[0.2, 0.3, 0.5]),
            "married": rng.random(count) < 0.5,
            "grade": pd.Categorical.from_codes(rng.integers(0, 3, count), GRADES, ordered=True),
        }
    )
    frame.loc[rng.random(count) < 0.08, "debt"] = pd.NA
    frame.loc[rng.random(count) < 0.05, "home"] = None
    return frame


def decisions(frame: Any) -> Any:
    """The true labels, which the classifier learns."""
    score = (
        frame["income"].to_numpy()
        - frame["debt"].to_numpy(dtype=float, na_value=40.0)
        + 10.0 * (frame["home"] == "own").to_numpy()
        + 8.0 * frame["grade"].cat.codes.to_numpy()
    )
    return np.where(score > 20, "approved", "refused")


def credit_model(frame: Any, labels: Any) -> Any:
    """A scikit-learn pipeline on raw columns."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

    numbers = make_pipeline(
        FunctionTransformer(_floats),
        SimpleImputer(strategy="median", add_indicator=True),
        StandardScaler(),
    )
    words = make_pipeline(FunctionTransformer(_texts), OneHotEncoder(handle_unknown="ignore"))
    columns = make_column_transformer(
        (numbers, ["age", "income", "debt", "married"]), (words, ["home", "grade"])
    )
    return make_pipeline(columns, LogisticRegression(C=10.0)).fit(frame, labels)


def _floats(frame: Any) -> Any:
    return np.column_stack([frame[c].to_numpy(dtype=float, na_value=np.nan) for c in frame])


def _texts(frame: Any) -> Any:
    return frame.astype(object).where(frame.notna(), "none").to_numpy(dtype=object)


@once
def bank() -> World:
    """The everyday case."""
    train = applicants(500, 0)
    classifier = credit_model(train, decisions(train))
    explainer = quick(classifier, 3, recipe=NARROW).fit(train)
    return World(classifier, train, applicants(40, 1), explainer)


# ------------------------------------------------------------------------------------------------
# Seasons: polars, three whole-number labels, a plain callable without probabilities


def days(count: int, seed: int) -> Any:
    """Two numbers and an unordered category."""
    import polars as pl

    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "warmth": np.round(rng.uniform(-10, 35, count), 1),
            "rain": rng.integers(0, 50, count),
            "wind": rng.choice(["east", "north", "south", "west"], count),
        }
    )


def season(frame: Any) -> list[int]:
    """0 is winter, 1 autumn, 2 summer."""
    warm = frame["warmth"].to_numpy() + 5.0 * (frame["wind"] == "south").to_numpy()
    wet = frame["rain"].to_numpy()
    return np.where(warm < 8, 0, np.where(wet > 25, 1, 2)).tolist()


@once
def seasons() -> World:
    """More than two classes and nothing but labels."""
    train = days(500, 0)
    return World(season, train, days(30, 1), quick(season).fit(train))


# ------------------------------------------------------------------------------------------------
# Digits: images, ten classes, a torch module in a callable


@once
def digits() -> World:
    """Scikit-learn's images of digits, 8 by 8."""
    import torch
    from sklearn.datasets import load_digits

    data = load_digits()
    images = data.images / 16.0  # (n, 8, 8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = torch.nn.Linear(64, 10)
        optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
        x = torch.as_tensor(images[:1000].reshape(-1, 64), dtype=torch.float32)
        y = torch.as_tensor(data.target[:1000])
        for _ in range(100):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()

    def predict(rows: Any) -> Any:
        flat = torch.as_tensor(rows.reshape(len(rows), -1), dtype=torch.float32)
        return module(flat).argmax(dim=1)

    longer = replace(QUICK, epochs=60)  # pixels are coded by value, which takes longer than ranks
    explainer = quick(predict, 1, recipe=longer).fit(images[:700])
    return World(predict, images[:700], images[1000:1020], explainer)


# ------------------------------------------------------------------------------------------------
# Signs: a numpy matrix, booleans, lightgbm


@once
def signs() -> World:
    """The sign of a sum of two numbers; no category, so there are no frozen-category lines."""
    from lightgbm import LGBMClassifier

    rng = np.random.default_rng(0)
    train = rng.normal(size=(500, 3))
    labels = train[:, 0] + train[:, 1] > 0
    classifier = LGBMClassifier(n_estimators=20, verbose=-1, n_jobs=1).fit(train, labels)
    instances = rng.normal(size=(25, 3))
    return World(classifier, train, instances, quick(classifier).fit(train))


# ------------------------------------------------------------------------------------------------
# Farm: pandas, a support vector machine with a decision function and no probabilities


def plots_of(count: int, seed: int) -> Any:
    """Numbers and a category; the soil says nothing."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "sun": rng.normal(5, 2, count).round(1),
            "water": rng.gamma(3, 10, count).round(),
            "depth": rng.normal(30, 8, count).round(2),
            "soil": rng.choice(["clay", "loam", "sand"], count),
        }
    )


@once
def farm() -> World:
    """Odds, but no probabilities."""
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sklearn.svm import SVC

    train = plots_of(500, 0)
    label = np.where(train["sun"] + train["water"] / 10 - train["depth"] / 8 > 4.5, "rich", "poor")
    columns = make_column_transformer(
        (StandardScaler(), ["sun", "water", "depth"]), (OneHotEncoder(), ["soil"])
    )
    classifier = make_pipeline(columns, SVC(C=5.0)).fit(train, label)
    return World(classifier, train, plots_of(25, 1), quick(classifier).fit(train))


# ------------------------------------------------------------------------------------------------
# Shop: pyarrow, labels 0 and 1, xgboost


def baskets(count: int, seed: int) -> Any:
    """Numbers and a boolean, one column with missing values."""
    import pyarrow as pa

    rng = np.random.default_rng(seed)
    visits = [None if rng.random() < 0.1 else int(v) for v in rng.integers(0, 30, count)]
    return pa.table(
        {
            "spent": pa.array(np.round(rng.gamma(2, 30, count), 2)),
            "visits": pa.array(visits, pa.int32()),
            "member": pa.array(rng.random(count) < 0.4),
        }
    )


class Boosted:
    """xgboost on the columns of an arrow table."""

    classes_ = (0, 1)

    def __init__(self, table: Any, labels: Any) -> None:
        from xgboost import XGBClassifier

        self.model = XGBClassifier(n_estimators=15, max_depth=3, n_jobs=1)
        self.model.fit(self.matrix(table), labels)

    @staticmethod
    def matrix(table: Any) -> Any:
        return table.to_pandas().astype(float).to_numpy()

    def predict(self, table: Any) -> Any:
        return self.model.predict(self.matrix(table))

    def predict_proba(self, table: Any) -> Any:
        return self.model.predict_proba(self.matrix(table))


@once
def shop() -> World:
    """Arrow in, arrow out."""
    train = baskets(400, 0)
    spent, visits = (np.array(train[c].fill_null(8)) for c in ("spent", "visits"))
    classifier = Boosted(train, (spent / 10 + visits > 20).astype(int))
    return World(classifier, train, baskets(25, 1), quick(classifier).fit(train))


# ------------------------------------------------------------------------------------------------
# Letters: records, the paper's recipe


def letters(count: int, seed: int) -> list[dict[str, Any]]:
    """A weight, a speed and a stamp."""
    rng = np.random.default_rng(seed)
    weights, speeds = rng.integers(1, 500, count), rng.integers(1, 6, count)
    stamps = rng.integers(0, 3, count)
    return [
        {"weight": int(w), "speed": int(s), "stamp": ("blue", "green", "red")[k]}
        for w, s, k in zip(weights, speeds, stamps, strict=True)
    ]


def postage(rows: list[dict[str, Any]]) -> list[str]:
    """Dear, or cheap."""
    return ["dear" if r["weight"] + 40 * r["speed"] > 370 else "cheap" for r in rows]


@once
def post() -> World:
    """Records in, records out."""
    train = letters(400, 0)
    return World(postage, train, letters(20, 1), quick(postage).fit(train))


@once
def paper() -> World:
    """The same letters under the paper's recipe."""
    train = letters(400, 0)
    explainer = quick(postage, recipe=QUICK_PAPER).fit(train)
    return World(postage, train, letters(20, 1), explainer)


# ------------------------------------------------------------------------------------------------
# Rare: three labels, of which one has seven rows and one three


@once
def rare() -> World:
    """A label with too few rows for `n_prototypes` clusters, and one with too few for any."""
    rng = np.random.default_rng(3)
    train = rng.normal(size=(310, 3))
    few, fewer = np.sort(train[:, 0])[[-10, -3]]

    def grade(rows: Any) -> Any:
        return np.where(rows[:, 0] >= fewer, "c", np.where(rows[:, 0] >= few, "b", "a"))

    with pytest.warns(UserWarning, match="'x0' alone gives the classifier's label"):
        explainer = quick(grade, 5, recipe=NARROW).fit(train)
    instances = train[np.argsort(-train[:, 0])[:14]]
    return World(grade, train, instances, explainer)


def mixed_table(rows: int = 240) -> tuple[Any, np.ndarray]:
    """Every kind of column, most of them with gaps, and a label that needs all of them."""
    import pandas as pd

    draw = np.random.default_rng(1)
    size = draw.integers(0, 3, rows)
    table = pd.DataFrame(
        {
            "income": np.where(draw.random(rows) < 0.1, np.nan, draw.normal(50, 10, rows).round(1)),
            "rooms": draw.integers(1, 8, rows),
            "size": pd.Categorical.from_codes(size, ["small", "medium", "large"], ordered=True),
            "town": draw.choice(["ash", "birch", "cedar", "dale"], rows),
            "garden": draw.random(rows) < 0.5,
        }
    )
    score = np.nan_to_num(table["income"] - 50, nan=-5) + 8 * (size - 1)
    score += 6 * (table["town"] == "ash") + 4 * table["garden"]
    table.loc[draw.random(rows) < 0.05, "town"] = None
    table.loc[draw.random(rows) < 0.05, "size"] = None
    return table, np.where(score > np.median(score), "yes", "no")


def explain(world: World, target: Any = None, **settings: Any) -> Explanation:
    """What a world's explainer finds for its instances; settings as in `searched`."""
    return world.explainer.explain(world.instances, target=target, **searched(settings))


def explained(world: World, target: Any = None, **settings: Any) -> Explanation:
    """As `explain`, but the same call gives the explanation that was found before.

    For tests that look at an explanation; not for those of `explain` itself.
    """
    try:
        key = json.dumps([target, settings], sort_keys=True)
    except TypeError:  # arrays, or functions, which would not be told apart
        return explain(world, target, **settings)
    found = _EXPLAINED.setdefault(id(world.explainer), (world, {}))[1]
    if key not in found:
        found[key] = explain(world, target, **settings)
    return found[key]


_EXPLAINED: dict[int, tuple[World, dict[str, Explanation]]] = {}  # with the world, kept alive


def predicted(world: World, rows: Any) -> list[Any]:
    """The labels the user's classifier gives rows."""
    predict = getattr(world.classifier, "predict", world.classifier)
    return [v.item() if hasattr(v, "item") else v for v in predict(rows)]


def answered(explanation: Explanation) -> np.ndarray:
    """Which instances have a counterfactual."""
    return np.array([status == "answered" for status in explanation.status])


def searched(settings: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `explain`, with those that are settings of the search made a `Search`."""
    names = {field.name for field in fields(Search)}
    rest = {name: value for name, value in settings.items() if name not in names}
    return {**rest, "search": Search(**{k: v for k, v in settings.items() if k in names})}


def codes(explanation: Explanation, values: Any) -> np.ndarray:
    """Labels as their positions in `explanation.labels`; -1 for None."""
    return np.array([-1 if v is None else explanation.labels.index(v) for v in values])
