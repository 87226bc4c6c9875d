"""The data sets: what `catalog.toml` says of each, and the recipe that builds its table.

A recipe is handed the paths of the data set's files and returns one table and its labels; `load`
splits it. Those of heloc, adult and compas rebuild the tables that earlier work on counterfactuals
published, with one exception: heloc's missing values are *not* filled with the mean of the row's
own class, which would leak the label.
"""

from __future__ import annotations

import gzip
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lapace.datasets import loans
from lapace.datasets.sources import fetch

Labels: TypeAlias = NDArray[Any]
Built: TypeAlias = tuple[Any, Labels]

_FACTS = tomllib.loads(files(__package__).joinpath("catalog.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class DatasetSpec:
    """What is known about a data set before it is built: an entry of `catalog.toml`, and a recipe.

    Attributes:
        recipe: Makes the table (a pandas frame, or an array of images) and its labels of the files.
        description: What it is, in a sentence or two.
        licence: On what terms the data may be used.
        target: The favourable label; None where no label is better than another.
        files: Sets of files that hold the same data; the first that can be had is taken.
        columns: A sentence on each column.
        derived: For columns that follow from others, the expression that says how.
        rules: What is immutable or monotone, and what holds between columns.
        settings: For each stock classifier, what differs from its defaults.
        n_train: How many rows come first as training rows, where the data set defines its split.
    """

    recipe: Callable[..., Built]
    description: str
    licence: str
    target: str | int | None = None
    files: Sequence[Sequence[str]] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    derived: Mapping[str, str] = field(default_factory=dict)
    rules: Sequence[str] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    n_train: int | None = None

    def build(self) -> Built:
        """The whole table and its labels, fetched first if it is made of files."""
        return self.recipe(*fetch(*self.files)) if self.files else self.recipe()


def _heloc(path: Path) -> Built:
    raw = pd.read_csv(path)
    labels = (raw.pop("RiskPerformance") == "Good").to_numpy().astype(np.int64)
    known = ~(raw == -9).all(axis=1).to_numpy()  # the others have no credit record at all
    table = raw.loc[known].reset_index(drop=True)
    # -7: it never happened, so longer ago than the longest time. -8 and -9: unknown.
    table = table.mask(table == -7, table.max(), axis=1)
    return table.mask(table < 0), labels[known]


def _wine(*paths: Path) -> Built:
    table = pd.concat([pd.read_csv(path, sep=";") for path in paths], ignore_index=True)
    return table, (table.pop("quality") >= 6).to_numpy().astype(np.int64)


def _adult_full(first: Path, second: Path) -> Built:
    """Both parts of the census, as published."""
    names = [*_FACTS["adult-full"]["columns"], "income"]
    parts = [
        pd.read_csv(path, names=names, skipinitialspace=True, skiprows=skip, keep_default_na=False)
        for path, skip in ((first, 0), (second, 1))
    ]
    table = pd.concat(parts, ignore_index=True)
    income = table.pop("income").str.rstrip(".")
    return table.mask(table == "?"), (income == ">50K").to_numpy().astype(np.int64)


def _adult(*paths: Path) -> Built:
    table, labels = _adult_full(*paths)
    table = table.drop(columns="education").ffill()
    kept = (table["workclass"] != "Never-worked").to_numpy()
    table, labels = table.loc[kept].reset_index(drop=True), labels[kept]
    married = ("Married-AF-spouse", "Married-civ-spouse")
    specialist = ("Adm-clerical", "Exec-managerial", "Machine-op-inspct", "Prof-specialty")
    pairs = {
        "workclass": (("Private",), "Private", "Non-Private"),
        "marital-status": (married, "Married", "Non-Married"),
        "occupation": (specialist, "Managerial-Specialist", "Other"),
        "relationship": (("Husband",), "Husband", "Non-Husband"),
        "race": (("White",), "White", "Non-White"),
        "native-country": (("United-States",), "US", "Non-US"),
    }
    for name, (members, group, others) in pairs.items():
        table[name] = np.where(table[name].isin(members), group, others)
    return table, labels


def _compas(path: Path) -> Built:
    names = list(_FACTS["compas"]["columns"])
    stay = ["c_jail_in", "c_jail_out"]
    tests = ["days_b_screening_arrest", "is_recid", "score_text"]
    kept = [name for name in names if name != "length_of_stay"]
    # Only what is needed: the file has the names and birthdays of real defendants. Two column names
    # come twice; pandas renames the second, so the first is read.
    raw = pd.read_csv(path, usecols=[*kept, *stay, *tests], parse_dates=stay)
    raw = raw[raw["days_b_screening_arrest"].between(-30, 30)]
    raw = raw[(raw["is_recid"] != -1) & (raw["c_charge_degree"] != "O")].reset_index(drop=True)
    raw["length_of_stay"] = (raw["c_jail_out"] - raw["c_jail_in"]).dt.days  # rounds down
    raw["race"] = np.where(raw["race"] == "African-American", "African-American", "Other")
    return raw[names], (raw["score_text"] != "High").to_numpy().astype(np.int64)


def _mnist(*paths: Path) -> Built:
    """The four canonical files, or two tables of the same images."""
    if len(paths) == 4:
        train, train_labels, test, test_labels = (
            np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8) for path in paths
        )
        # The idx format: a head of 4 bytes and 4 per dimension, then the bytes of the array.
        pixels = np.concatenate([train[16:], test[16:]]).reshape(-1, 28 * 28)
        return _images(pixels), np.concatenate([train_labels[8:], test_labels[8:]]).astype(np.int64)
    digits = np.concatenate([pd.read_csv(path, dtype=np.uint8).to_numpy() for path in paths])
    return _images(digits[:, 1:]), digits[:, 0].astype(np.int64)  # (70000, 785), the label first


def _mnist_5k(path: Path) -> Built:
    digits = pd.read_csv(path, header=None, dtype=np.uint8).to_numpy()  # (5000, 785), label last
    return _images(digits[:, :-1]), digits[:, -1].astype(np.int64)


def _images(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Bytes as grey values in [0, 1], (n, 28, 28)."""
    return (pixels.reshape(len(pixels), 28, 28) / np.float32(255)).astype(np.float32)


_RECIPES: Mapping[str, Callable[..., Built]] = {
    "loans": loans.make,
    "heloc": _heloc,
    "wine": _wine,
    "adult": _adult,
    "adult-full": _adult_full,
    "compas": _compas,
    "mnist": _mnist,
    "mnist-5k": _mnist_5k,
}
CATALOG: Mapping[str, DatasetSpec] = {
    name: DatasetSpec(_RECIPES[name], **facts) for name, facts in _FACTS.items()
}
