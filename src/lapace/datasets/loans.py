"""`loans`: credit applications made by a small structural model, so that the truth is known.

The model draws an age, a degree, a job, an income and a habit of paying bills, which no column
shows. Savings, arrears, a credit score and the loan follow from these; the instalment follows
exactly from the loan's amount and months. The bank's decision weighs them, with some noise. The
columns are mixed on purpose: whole numbers, amounts with long tails and a spike at zero, a ratio,
an ordinal, categories of two to six, a score that applicants without a credit record do not have,
and a derived column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lapace.arrays import Floats

RATE = 0.005  # interest per month, the same for everyone
EDUCATION = ("basic", "secondary", "bachelor", "master", "doctorate")


def make(rows: int = 5000, random_state: int = 0) -> tuple[pd.DataFrame, NDArray[np.str_]]:
    """Makes applications, and the bank's decisions.

    Args:
        rows: Number of applications.
        random_state: Seed of everything random.

    Returns:
        The table, and `approved` or `denied` for each of its rows.

    Examples:
        >>> table, decisions = make(rows=100)
        >>> table.shape, sorted(set(decisions.tolist()))
        ((100, 16), ['approved', 'denied'])
    """
    rng = np.random.default_rng(random_state)
    t = _applicants(rng, rows)
    t = t.assign(**_finances(rng, t))
    t = t.assign(**_loan(rng, t))
    mood = np.log(1 / rng.random(rows) - 1)  # the officer's: logistic noise
    approved = _merit(t) + 0.5 * mood > 0
    t["education"] = pd.Categorical.from_codes(t["education"], list(EDUCATION), True)
    table = t.drop(columns="habit")
    fractions = ("debt_ratio", "credit_score")  # the score is whole, but has gaps
    whole = [n for n in table.select_dtypes("float").columns if n not in fractions]
    return table.astype(dict.fromkeys(whole, np.int64)), np.where(approved, "approved", "denied")


def _applicants(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """Draws applicants; `habit` (pays on time, saves) shows in no column of the data set."""
    habit, talent, luck = rng.standard_normal((3, rows))
    age = np.floor(19 + 58 / (1 + np.exp(0.5 - 1.1 * rng.standard_normal(rows))))
    # A degree takes talent, and years: its thresholds are higher for the young.
    thresholds = np.array([-1.2, 0.25, 1.05, 1.95]) + np.outer(age < 24, [0.0, 0.6, 1.5, 9.0])
    education = (talent[:, None] > thresholds).sum(axis=1)  # (rows,)
    young = age < 28
    employment = _draw(
        rng,
        salaried=4.6,
        public=0.8 + 0.25 * education,
        freelance=0.6 + 0.02 * (age - 19),
        temporary=0.5 + 1.1 * young,
        retired=(age >= 58) * np.exp((age - 61) / 1.5),
        unemployed=0.4 + 0.5 * (education == 0) + 0.2 * young,
    )
    jobs = ("public", "freelance", "temporary", "retired", "unemployed")
    public, freelance, temporary, retired, unemployed = (employment == job for job in jobs)
    since = rng.random(rows) ** 1.5 * (age - 16 - 1.5 * education)
    since = np.where(temporary, np.minimum(since, 3.9), since)
    years_employed = np.where(retired | unemployed, 0, np.floor(since))

    pay = 7.35 + 0.17 * education + 0.016 * np.minimum(years_employed, 25) + 0.08 * talent
    pay += 0.06 * public - 0.25 * temporary - 0.15 * retired - 0.85 * unemployed
    pay += luck * (0.24 + 0.2 * freelance)
    income = _multiples(np.clip(np.exp(pay), 600, 25_000), 10)

    family = np.exp(-(((age - 41) / 13) ** 2))  # dependants come and go with age
    dependants = (rng.random((5, rows)) < 0.42 * family).sum(axis=0)
    housing = _draw(
        rng,
        own=0.15 + np.maximum(age - 30, 0) / 25,
        mortgage=np.exp(np.log(income) - 7.7) * family * 1.6,
        rent=1.1,
        family=0.1 + 1.6 * (age < 26),
    )
    columns = {
        "age": age, "dependants": dependants, "education": education, "employment": employment,
        "years_employed": years_employed, "housing": housing, "income": income, "habit": habit,
    }  # fmt: skip
    return pd.DataFrame(columns)


def _finances(rng: np.random.Generator, t: pd.DataFrame) -> dict[str, Any]:
    wealth = np.log(t.income) - 7.7
    thrift = 0.8 * t.habit + 0.9 * wealth + 0.018 * (t.age - 40)
    savings = _multiples(np.exp(8.0 + 0.8 * thrift + 0.8 * rng.standard_normal(len(t))), 50)
    saves = thrift + 0.9 * rng.standard_normal(len(t)) > -0.95
    savings = np.where(saves, np.minimum(savings, 400_000), 0)

    load = np.exp(-2.0 - 0.25 * t.habit + 0.12 * t.dependants)
    load *= np.exp(0.65 * rng.standard_normal(len(t))) * (rng.random(len(t)) > 0.2)
    debt_ratio = np.round(np.minimum(load, 0.9), 2)

    strain = 2.2 * debt_ratio - t.habit - 0.5 * wealth - 1.45
    arrears = _multiples(np.exp(5.6 + 0.4 * strain + 0.9 * rng.standard_normal(len(t))), 10)
    late = strain + 0.8 * rng.standard_normal(len(t)) > 0
    past_due = np.where(late, np.clip(arrears, 10, 15_000), 0)

    score = 668 + 48 * t.habit + 1.1 * (t.age - 40) - 20 * np.log1p(past_due / 150)
    score += 10 * np.log1p(savings / 5000) - 60 * debt_ratio + 22 * rng.standard_normal(len(t))
    newcomer = 0.04 + 0.45 * (t.age < 25) + 0.12 * (t.employment == "unemployed")
    unknown = rng.random(len(t)) < newcomer
    return {
        "savings": savings,
        "debt_ratio": debt_ratio,
        "past_due": past_due,
        "credit_score": np.where(unknown, np.nan, np.round(np.clip(score, 300, 850))),
    }


def _loan(rng: np.random.Generator, t: pd.DataFrame) -> dict[str, Any]:
    guarantor = rng.random(len(t)) < 0.1 + 0.25 * (t.age < 27)
    purpose = _draw(
        rng,
        car=1.5,
        renovation=0.15 + 1.3 * t.housing.isin(["own", "mortgage"]),
        study=0.1 + 0.9 * (t.age < 32),
        business=0.25 + 1.4 * (t.employment == "freelance"),
        medical=0.4,
        debts=0.8,
    )
    usual = {
        "car": 11_000, "renovation": 14_000, "study": 8_000,
        "business": 18_000, "medical": 4_000, "debts": 9_000,
    }  # fmt: skip
    size = 0.5 * np.log(t.income / 2200) + 0.5 * rng.standard_normal(len(t))
    amount = pd.Series(purpose).map(usual) * np.exp(size)
    amount = _multiples(np.clip(amount, 500, 90_000), 100)
    share = 0.06 + 0.16 * rng.random(len(t))  # of the income, that the applicant means to pay back
    months = 6 * np.clip(np.ceil(amount / (share * t.income) / 6), 1, 14)

    price = RATE / (1 - (1 + RATE) ** -months)  # of one unit borrowed, each month
    most = np.floor((0.6 * t.income - 1) / price / 100) * 100  # the bank's first criterion
    amount = np.minimum(amount, most)
    return {
        "guarantor": np.where(guarantor, "yes", "no"),
        "purpose": purpose,
        "amount": amount,
        "months": months,
        "instalment": np.ceil(amount * price),
    }


def _merit(t: pd.DataFrame) -> Any:
    """Returns the bank's score of each application; without noise it approves those above zero."""
    need = 650 + 200 * t.dependants + 400 * t.housing.isin(["rent", "mortgage"])
    spare = t.income * (1 - t.debt_ratio) - need - t.instalment
    unknown = t.credit_score.isna()
    standing = np.where(unknown, -0.3, (t.credit_score - 660) / 55)
    unemployed, temporary = t.employment == "unemployed", t.employment == "temporary"
    new_business = (t.employment == "freelance") & (t.years_employed < 3)
    merit = 1.3 * np.tanh(spare / 700) + 0.9 * standing - 0.3
    merit += 0.4 * np.log1p(t.savings / 3000) - 0.75 * np.log1p(t.past_due / 100)
    merit += 0.8 * np.minimum(t.years_employed, 8) / 8 + 0.12 * (t.education - 1)
    merit += 0.4 * (t.housing == "own") + 0.6 * t.employment.isin(["retired", "public"])
    merit -= 0.6 * temporary + 1.6 * unemployed + 0.7 * new_business
    merit += (t.guarantor == "yes") * (0.5 + 1.1 * (temporary | unemployed | unknown))
    merit += t.purpose.map(
        {"car": 0.1, "renovation": 0.35, "study": 0.1,
         "business": -0.6, "medical": 0.0, "debts": -0.3}
    )  # fmt: skip
    merit -= 9.0 * np.maximum(t.debt_ratio - 0.4, 0) + 0.015 * np.maximum(t.months - 48, 0)
    return merit


def _draw(rng: np.random.Generator, **weights: Any) -> NDArray[np.str_]:
    """Draws one category per row, with probabilities in proportion to the weights."""
    ladder = np.stack(np.broadcast_arrays(*weights.values()), axis=1).cumsum(axis=1)
    point = rng.random((len(ladder), 1)) * ladder[:, -1:]
    chosen: NDArray[np.str_] = np.array(list(weights))[(ladder < point).sum(axis=1)]
    return chosen


def _multiples(values: Floats, step: float) -> Floats:
    return np.round(values / step) * step
