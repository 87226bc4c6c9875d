"""The data sets there are: how the table of each is built, what it means, what must not change.

A builder reads the files `sources` brings and returns one table and its labels; `load` splits it.
Those of heloc, adult and compas rebuild the tables that earlier work on counterfactuals published,
with one exception: heloc's missing values are *not* filled with the mean of the row's own class,
which would leak the label.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lapace.datasets import loans
from lapace.datasets.sources import fetch

__all__ = ["CATALOG", "DatasetSpec"]

Labels: TypeAlias = NDArray[Any]
Built: TypeAlias = tuple[Any, Labels]


@dataclass(frozen=True)
class DatasetSpec:
    """What is known about a data set before it is built.

    Attributes:
        description: What it is, in a sentence or two.
        licence: On what terms the data may be used.
        build: Makes the table (a pandas frame, or an array of images) and its labels.
        target: The favourable label; None where no label is better than another.
        columns: A sentence on each column.
        rules: What is immutable or monotone, and what holds between columns.
        settings: For each stock classifier, what differs from its defaults.
        own_split: How many rows come first as training rows, where the data set defines its split.
    """

    description: str
    licence: str
    build: Callable[[], Built]
    target: str | int | None = 1
    columns: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    own_split: int | None = None


# ------------------------------------------------------------------------------------------------
# heloc

HELOC_COLUMNS = {
    "ExternalRiskEstimate": "Consolidated risk score of the credit bureaus; higher is safer.",
    "MSinceOldestTradeOpen": "Months since the oldest account was opened.",
    "MSinceMostRecentTradeOpen": "Months since the newest account was opened.",
    "AverageMInFile": "Average age of the accounts, in months.",
    "NumSatisfactoryTrades": "Accounts in good order.",
    "NumTrades60Ever2DerogPubRec": "Accounts that were ever 60 days late or worse.",
    "NumTrades90Ever2DerogPubRec": "Accounts that were ever 90 days late or worse.",
    "PercentTradesNeverDelq": "Percentage of accounts that were never late.",
    "MSinceMostRecentDelq": "Months since a payment was last late.",
    "MaxDelq2PublicRecLast12M": "Worst lateness of the last 12 months, coded; higher is better.",
    "MaxDelqEver": "Worst lateness ever, coded; higher is better.",
    "NumTotalTrades": "Accounts in all.",
    "NumTradesOpeninLast12M": "Accounts opened in the last 12 months.",
    "PercentInstallTrades": "Percentage of accounts that are instalment loans.",
    "MSinceMostRecentInqexcl7days": "Months since the last credit inquiry, last 7 days left out.",
    "NumInqLast6M": "Credit inquiries in the last 6 months.",
    "NumInqLast6Mexcl7days": "Credit inquiries in the last 6 months, last 7 days left out.",
    "NetFractionRevolvingBurden": "Revolving balance as a percentage of the credit limit.",
    "NetFractionInstallBurden": "Instalment balance as a percentage of the original loan.",
    "NumRevolvingTradesWBalance": "Revolving accounts with a balance.",
    "NumInstallTradesWBalance": "Instalment accounts with a balance.",
    "NumBank2NatlTradesWHighUtilization": "Accounts used close to their limit.",
    "PercentTradesWBalance": "Percentage of accounts with a balance.",
}

HELOC_RULES = (
    # The past cannot be undone, and time only passes.
    "MSinceOldestTradeOpen >= original",
    "NumTrades60Ever2DerogPubRec >= original",
    "NumTrades90Ever2DerogPubRec >= original",
    "MaxDelqEver <= original",
    # One count is part of the other.
    "NumInqLast6Mexcl7days <= NumInqLast6M",
    "NumTrades90Ever2DerogPubRec <= NumTrades60Ever2DerogPubRec",
    "MSinceMostRecentTradeOpen <= AverageMInFile",
)


def _heloc() -> Built:
    (path,) = fetch(["heloc_dataset_v1.csv"])
    raw = pd.read_csv(path)
    labels = (raw.pop("RiskPerformance") == "Good").to_numpy().astype(np.int64)
    known = ~(raw == -9).all(axis=1).to_numpy()  # the others have no credit record at all
    table = raw.loc[known].reset_index(drop=True)
    # -7: it never happened, so longer ago than the longest time. -8 and -9: unknown.
    table = table.mask(table == -7, table.max(), axis=1)
    return table.mask(table < 0), labels[known]


# ------------------------------------------------------------------------------------------------
# wine

WINE_COLUMNS = {
    "fixed acidity": "Tartaric acid, g/dm³.",
    "volatile acidity": "Acetic acid, g/dm³.",
    "citric acid": "Citric acid, g/dm³.",
    "residual sugar": "Sugar left after fermentation, g/dm³.",
    "chlorides": "Sodium chloride, g/dm³.",
    "free sulfur dioxide": "Unbound sulphur dioxide, mg/dm³.",
    "total sulfur dioxide": "All sulphur dioxide, mg/dm³.",
    "density": "Density, g/cm³.",
    "pH": "Acidity on the pH scale.",
    "sulphates": "Potassium sulphate, g/dm³.",
    "alcohol": "Alcohol, % of the volume.",
}

WINE_RULES = ("`free sulfur dioxide` <= `total sulfur dioxide`",)


def _wine() -> Built:
    paths = fetch(["winequality-red.csv", "winequality-white.csv"])
    table = pd.concat([pd.read_csv(path, sep=";") for path in paths], ignore_index=True)
    return table, (table.pop("quality") >= 6).to_numpy().astype(np.int64)


# ------------------------------------------------------------------------------------------------
# adult

ADULT_COLUMNS = {
    "age": "Age in years.",
    "workclass": "Kind of employer.",
    "fnlwgt": "How many members of the population this row represents: a weight.",
    "education": "Highest degree.",
    "education-num": "Highest degree as a number, 1 (preschool) to 16 (doctorate).",
    "marital-status": "Marital status.",
    "occupation": "Kind of work.",
    "relationship": "Role in the household.",
    "race": "Race, as the census of 1994 coded it.",
    "sex": "Sex, as the census of 1994 coded it.",
    "capital-gain": "Gains from investments in the year.",
    "capital-loss": "Losses from investments in the year.",
    "hours-per-week": "Hours worked per week.",
    "native-country": "Country of birth.",
}

ADULT_FIXED = (
    "age == original",
    "race == original",
    "sex == original",
    "`native-country` == original",
    "`marital-status` == original",
    "relationship == original",
    "fnlwgt == original",  # a weight of the survey, no property of the respondent
)
ADULT_RULES = (*ADULT_FIXED, "`education-num` >= original")
# The degree is in two columns; changed apart, one would contradict the other.
ADULT_FULL_RULES = (*ADULT_FIXED, "education == original", "`education-num` == original")

MARRIED = ("Married-AF-spouse", "Married-civ-spouse")
SPECIALIST = ("Adm-clerical", "Exec-managerial", "Machine-op-inspct", "Prof-specialty")


def _census() -> Built:
    """Both parts of the census, as published; "?" means unknown."""
    first, second = fetch(["adult.data", "adult.test"])
    names = [*ADULT_COLUMNS, "income"]
    parts = [
        pd.read_csv(path, names=names, skipinitialspace=True, skiprows=skip, keep_default_na=False)
        for path, skip in ((first, 0), (second, 1))
    ]
    table = pd.concat(parts, ignore_index=True)
    income = table.pop("income").str.rstrip(".")
    return table, (income == ">50K").to_numpy().astype(np.int64)


def _adult_full() -> Built:
    table, labels = _census()
    return table.mask(table == "?"), labels


def _adult() -> Built:
    table, labels = _census()
    table = table.drop(columns="education")
    table = table.mask(table == "?").ffill()
    kept = (table["workclass"] != "Never-worked").to_numpy()
    table, labels = table.loc[kept].reset_index(drop=True), labels[kept]
    pairs = {
        "workclass": (("Private",), "Private", "Non-Private"),
        "marital-status": (MARRIED, "Married", "Non-Married"),
        "occupation": (SPECIALIST, "Managerial-Specialist", "Other"),
        "relationship": (("Husband",), "Husband", "Non-Husband"),
        "race": (("White",), "White", "Non-White"),
        "native-country": (("United-States",), "US", "Non-US"),
    }
    for name, (members, group, others) in pairs.items():
        table[name] = np.where(table[name].isin(members), group, others)
    return table, labels


# ------------------------------------------------------------------------------------------------
# compas

COMPAS_COLUMNS = {
    "age": "Age in years.",
    "priors_count": "Earlier offences.",
    "length_of_stay": "Whole days in jail; -1 where the release is dated hours before the arrest.",
    "two_year_recid": "Whether the defendant was charged again within two years.",
    "c_charge_degree": "Degree of the charge: F (felony) or M (misdemeanour).",
    "race": "Race, as the court's files say: African-American or Other.",
    "sex": "Sex, as the court's files say.",
}

COMPAS_RULES = (
    "age == original",
    "race == original",
    "sex == original",
    "priors_count >= original",  # an offence committed stays committed
)


def _compas() -> Built:
    (path,) = fetch(["compas-scores-two-years.csv"])
    stay = ["c_jail_in", "c_jail_out"]
    tests = ["days_b_screening_arrest", "is_recid", "score_text"]
    kept = [name for name in COMPAS_COLUMNS if name != "length_of_stay"]
    # Only what is needed: the file has the names and birthdays of real defendants. Two column names
    # come twice; pandas renames the second, so the first is read.
    raw = pd.read_csv(path, usecols=[*kept, *stay, *tests], parse_dates=stay)
    raw = raw[raw["days_b_screening_arrest"].between(-30, 30)]
    raw = raw[(raw["is_recid"] != -1) & (raw["c_charge_degree"] != "O")].reset_index(drop=True)
    raw["length_of_stay"] = (raw["c_jail_out"] - raw["c_jail_in"]).dt.days  # rounds down
    raw["race"] = np.where(raw["race"] == "African-American", "African-American", "Other")
    return raw[list(COMPAS_COLUMNS)], (raw["score_text"] != "High").to_numpy().astype(np.int64)


# ------------------------------------------------------------------------------------------------
# MNIST

_DIGIT_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "forest": {"max_depth": None},
    "mlp": {"hidden_layer_sizes": (128,), "max_iter": 20},
}

_IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_CSV_FILES = ("mnist_train.csv", "mnist_test.csv")


def _mnist() -> Built:
    paths = fetch(_IDX_FILES, _CSV_FILES)
    if len(paths) == len(_IDX_FILES):
        train, train_labels, test, test_labels = (
            np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8) for path in paths
        )
        # The idx format: a head of 4 bytes and 4 per dimension, then the bytes of the array.
        pixels = np.concatenate([train[16:], test[16:]]).reshape(-1, 28 * 28)
        return _images(pixels), np.concatenate([train_labels[8:], test_labels[8:]]).astype(np.int64)
    digits = np.concatenate([pd.read_csv(path, dtype=np.uint8).to_numpy() for path in paths])
    return _images(digits[:, 1:]), digits[:, 0].astype(np.int64)  # (70000, 785), the label first


def _mnist_5k() -> Built:
    (path,) = fetch(["mnist_5k.csv.gz"])
    digits = pd.read_csv(path, header=None, dtype=np.uint8).to_numpy()  # (5000, 785), label last
    return _images(digits[:, :-1]), digits[:, -1].astype(np.int64)


def _images(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Bytes as grey values in [0, 1], (n, 28, 28)."""
    return (pixels.reshape(len(pixels), 28, 28) / np.float32(255)).astype(np.float32)


# ------------------------------------------------------------------------------------------------

CATALOG: Mapping[str, DatasetSpec] = {
    "loans": DatasetSpec(
        "Credit applications and a bank's decisions, made by the package itself.",
        "made here, no restrictions",
        loans.make,
        target="approved",
        columns=loans.COLUMNS,
        rules=loans.RULES,
    ),
    "heloc": DatasetSpec(
        "Credit records of applicants for a home equity line of credit; 1 means repaid in time "
        "for two years.",
        "terms of the FICO explainable machine learning challenge",
        _heloc,
        columns=HELOC_COLUMNS,
        rules=HELOC_RULES,
        settings={"mlp": {"max_iter": 100}},
    ),
    "wine": DatasetSpec(
        "Chemistry of red and white Portuguese wines; 1 means quality 6 or better.",
        "CC BY 4.0",
        _wine,
        columns=WINE_COLUMNS,
        rules=WINE_RULES,
        settings={"forest": {"max_depth": 5}, "mlp": {"max_iter": 300}},
    ),
    "adult": DatasetSpec(
        "US census of 1994, categories merged into pairs; 1 means more than $50,000 a year.",
        "CC BY 4.0",
        _adult,
        columns={name: text for name, text in ADULT_COLUMNS.items() if name != "education"},
        rules=ADULT_RULES,
    ),
    "adult-full": DatasetSpec(
        "US census of 1994 with all its categories; 1 means more than $50,000 a year.",
        "CC BY 4.0",
        _adult_full,
        columns=ADULT_COLUMNS,
        rules=ADULT_FULL_RULES,
    ),
    "compas": DatasetSpec(
        "Defendants scored for the risk of reoffending; 1 means not scored as high risk.",
        "none stated by the publisher",
        _compas,
        columns=COMPAS_COLUMNS,
        rules=COMPAS_RULES,
    ),
    "mnist": DatasetSpec(
        "Handwritten digits, 28 by 28 grey values in [0, 1].",
        "CC BY-SA 3.0",
        _mnist,
        target=None,
        settings=_DIGIT_SETTINGS,
        own_split=60_000,
    ),
    "mnist-5k": DatasetSpec(
        "Five hundred of MNIST's training images of each digit.",
        "CC BY-SA 3.0",
        _mnist_5k,
        target=None,
        settings=_DIGIT_SETTINGS,
    ),
}
