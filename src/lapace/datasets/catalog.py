"""The data sets: what `catalog.toml` says of each, and the recipes that build their tables.

A recipe is handed the paths of the data set's files and returns one table and its labels; `load`
splits it. Those of heloc, adult and compas rebuild the tables that earlier work on counterfactuals
published, with one exception: heloc's missing values are *not* filled with the mean of the row's
own class, which would leak the label.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lapace.datasets import loans
from lapace.datasets.sources import SOURCES, fetch

Built: TypeAlias = tuple[pd.DataFrame, NDArray[Any]]

# By name of the data set; the file's first lines say what its keys mean.
CATALOG: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    files(__package__).joinpath("catalog.toml").read_text(encoding="utf-8")
)


def build(name: str) -> Built:
    """Returns the whole table of a data set and its labels; its files are fetched first."""
    return _RECIPES[name](*fetch(*(SOURCES[file] for file in CATALOG[name].get("files", ()))))


def _heloc(path: Path) -> Built:
    raw = pd.read_csv(path)
    labels = (raw.pop("RiskPerformance") == "Good").to_numpy().astype(np.int64)
    has_record = ~(raw == -9).all(axis=1).to_numpy()
    table = raw.loc[has_record].reset_index(drop=True)
    # -7: it never happened, so longer ago than the longest time. -8 and -9: unknown.
    table = table.mask(table == -7, table.max(), axis=1)
    return table.mask(table < 0), labels[has_record]


def _wine(*paths: Path) -> Built:
    table = pd.concat([pd.read_csv(path, sep=";") for path in paths], ignore_index=True)
    return table, (table.pop("quality") >= 6).to_numpy().astype(np.int64)


def _adult_full(first: Path, second: Path) -> Built:
    """Builds both parts of the census, as published."""
    names = [*CATALOG["adult-full"]["columns"], "income"]
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
    names = list(CATALOG["compas"]["columns"])
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


_RECIPES: Mapping[str, Callable[..., Built]] = {
    "loans": loans.make,
    "heloc": _heloc,
    "wine": _wine,
    "adult": _adult,
    "adult-full": _adult_full,
    "compas": _compas,
}
