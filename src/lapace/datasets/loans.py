"""`loans`: credit applications made by a small structural model, so that the truth is known.

Nothing is read from anywhere. Instances get an age, a degree, a job, an income and a habit of paying
their bills, which no column shows; from these follow savings, arrears and a credit score, the loan
they ask for and its instalment; the bank weighs the one against the other, with some noise. The
columns are mixed on purpose: whole numbers, amounts with long tails and a spike at zero, a ratio,
an order, categories of two to six, and a score that instances without a credit record do not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints

__all__ = ["COLUMNS", "RULES", "make"]


EDUCATION = ("basic", "secondary", "bachelor", "master", "doctorate")
EMPLOYMENT = ("salaried", "public", "freelance", "temporary", "retired", "unemployed")
HOUSING = ("own", "mortgage", "rent", "family")
PURPOSE = ("car", "renovation", "study", "business", "medical", "debts")

COLUMNS = {
    "age": "Age in years.",
    "dependants": "Instances who live on the applicant's income, besides the applicant.",
    "education": "Highest degree.",
    "employment": "Kind of work.",
    "years_employed": "Years in the present job; 0 without one.",
    "housing": "How the applicant lives.",
    "income": "Net income per month.",
    "savings": "Money put by.",
    "debt_ratio": "Share of the income that already goes to other debts.",
    "past_due": "Bills and instalments that are overdue.",
    "credit_score": "Score of the credit bureau, 300 to 850; missing without a credit record.",
    "guarantor": "Whether somebody vouches for the loan.",
    "purpose": "What the loan is for.",
    "amount": "The loan asked for.",
    "months": "Months over which it is paid back.",
    "instalment": "What it costs per month, interest included.",
}

RULES = (
    # What nobody can, or should, be told to change.
    "age == original",
    "dependants == original",
    "purpose == original",
    "education >= original",
    # What holds between the columns, for everyone.
    "years_employed <= age - 16",
    "if employment == unemployed then years_employed == 0",
    "if employment == retired then years_employed == 0",
    "if employment == retired then age >= 58",
    "instalment <= 0.6*income",
    "84*instalment >= amount",
    "if months <= 48 then 48*instalment >= amount",
    "if months <= 24 then 24*instalment >= amount",
)


class _Applicants(NamedTuple):
    habit: Floats  # pays on time, puts money by: known to nobody
    age: Floats
    education: Ints
    employment: Ints
    years_employed: Floats
    income: Floats
    dependants: Floats
    housing: Ints

    def works(self, *names: str) -> Bools:
        return np.isin(self.employment, [EMPLOYMENT.index(name) for name in names])

    def lives(self, *names: str) -> Bools:
        return np.isin(self.housing, [HOUSING.index(name) for name in names])


class _Money(NamedTuple):
    savings: Floats
    debt_ratio: Floats
    past_due: Floats
    credit_score: Floats  # NaN without a record


class _Loan(NamedTuple):
    guarantor: Bools
    purpose: Ints
    amount: Floats
    months: Floats
    instalment: Floats


def make(rows: int = 5000, seed: int = 0) -> tuple[pd.DataFrame, NDArray[np.str_]]:
    """Applications, and the bank's decisions.

    Args:
        rows: How many.
        seed: The same seed makes the same instances.

    Returns:
        The table, and `approved` or `denied` for each of its rows.

    Examples:
        >>> table, decisions = make(rows=100)
        >>> table.shape, sorted(set(decisions.tolist()))
        ((100, 16), ['approved', 'denied'])
    """
    rng = np.random.default_rng(seed)
    instances = _instances(rng, rows)
    money = _money(rng, instances)
    loan = _loan(rng, instances)
    mood = np.log(1 / rng.random(rows) - 1)  # the officer's: logistic noise
    approved = _merit(instances, money, loan) + 0.5 * mood > 0
    return _table(instances, money, loan), np.where(approved, "approved", "denied")


def _instances(rng: np.random.Generator, rows: int) -> _Applicants:
    habit, talent, luck = rng.standard_normal((3, rows))
    age = np.floor(19 + 58 / (1 + np.exp(0.5 - 1.1 * rng.standard_normal(rows))))
    # A degree takes talent, and years: the ladder's rungs are higher for the young.
    rungs = np.array([-1.2, 0.25, 1.05, 1.95]) + np.outer(age < 24, [0.0, 0.6, 1.5, 9.0])
    education = (talent[:, None] > rungs).sum(axis=1)  # (rows,)
    young, old = age < 28, age >= 58
    work = np.stack(
        [
            np.full(rows, 4.6),
            0.8 + 0.25 * education,
            0.6 + 0.02 * (age - 19),
            0.5 + 1.1 * young,
            old * np.exp((age - 61) / 1.5),
            0.4 + 0.5 * (education == 0) + 0.2 * young,
        ],
        axis=1,
    )
    employment = _draw(rng, work)
    _, public, freelance, temporary, retired, unemployed = np.eye(6, dtype=bool)[:, employment]
    since = rng.random(rows) ** 1.5 * (age - 16 - 1.5 * education)
    since = np.where(temporary, np.minimum(since, 3.9), since)
    years_employed = np.where(retired | unemployed, 0, np.floor(since))

    pay = 7.35 + 0.17 * education + 0.016 * np.minimum(years_employed, 25) + 0.08 * talent
    pay += 0.06 * public - 0.25 * temporary - 0.15 * retired - 0.85 * unemployed
    pay += luck * (0.24 + 0.2 * freelance)
    income = _multiples(np.clip(np.exp(pay), 600, 25_000), 10)

    family = np.exp(-(((age - 41) / 13) ** 2))  # dependants come and go with age
    draws = rng.random((5, rows)) < 0.42 * family
    dependants = draws.sum(axis=0).astype(np.float64)
    wealth = np.log(income) - 7.7
    homes = np.stack(
        [
            0.15 + np.maximum(age - 30, 0) / 25,
            np.exp(wealth) * family * 1.6,
            np.full(rows, 1.1),
            0.1 + 1.6 * (age < 26),
        ],
        axis=1,
    )
    housing = _draw(rng, homes)
    return _Applicants(
        habit, age, education, employment, years_employed, income, dependants, housing
    )


def _money(rng: np.random.Generator, instances: _Applicants) -> _Money:
    rows = len(instances.age)
    wealth = np.log(instances.income) - 7.7
    thrift = 0.8 * instances.habit + 0.9 * wealth + 0.018 * (instances.age - 40)
    savings = _multiples(np.exp(8.0 + 0.8 * thrift + 0.8 * rng.standard_normal(rows)), 50)
    saves = thrift + 0.9 * rng.standard_normal(rows) > -0.95
    savings = np.where(saves, np.minimum(savings, 400_000), 0)

    load = np.exp(-2.0 - 0.25 * instances.habit + 0.12 * instances.dependants)
    load *= np.exp(0.65 * rng.standard_normal(rows)) * (rng.random(rows) > 0.2)
    debt_ratio = np.round(np.minimum(load, 0.9), 2).astype(np.float64)

    strain = 2.2 * debt_ratio - instances.habit - 0.5 * wealth - 1.45
    arrears = _multiples(np.exp(5.6 + 0.4 * strain + 0.9 * rng.standard_normal(rows)), 10)
    late = strain + 0.8 * rng.standard_normal(rows) > 0
    past_due = np.where(late, np.clip(arrears, 10, 15_000), 0)

    score = 668 + 48 * instances.habit + 1.1 * (instances.age - 40) - 20 * np.log1p(past_due / 150)
    score += 10 * np.log1p(savings / 5000) - 60 * debt_ratio + 22 * rng.standard_normal(rows)
    newcomer = 0.04 + 0.45 * (instances.age < 25) + 0.12 * instances.works("unemployed")
    unknown = rng.random(rows) < newcomer
    credit_score = np.where(unknown, np.nan, np.round(np.clip(score, 300, 850)))
    return _Money(savings, debt_ratio, past_due, credit_score)


def _loan(rng: np.random.Generator, instances: _Applicants) -> _Loan:
    rows = len(instances.age)
    guarantor = rng.random(rows) < 0.1 + 0.25 * (instances.age < 27)
    owner, young = instances.lives("own", "mortgage"), instances.age < 32
    freelance = instances.works("freelance")
    wishes = np.stack(
        [
            np.full(rows, 1.5),
            0.15 + 1.3 * owner,
            0.1 + 0.9 * young,
            0.25 + 1.4 * freelance,
            np.full(rows, 0.4),
            np.full(rows, 0.8),
        ],
        axis=1,
    )
    purpose = _draw(rng, wishes)
    usual = np.array([11_000, 14_000, 8_000, 18_000, 4_000, 9_000])[purpose]
    size = 0.5 * np.log(instances.income / 2200) + 0.5 * rng.standard_normal(rows)
    amount = _multiples(np.clip(usual * np.exp(size), 500, 90_000), 100)
    share = 0.06 + 0.16 * rng.random(rows)  # of the income, that the applicant means to pay back
    months = 6 * np.clip(np.ceil(amount / (share * instances.income) / 6), 1, 14)

    rate = 0.06 - 0.006 * instances.habit + 0.008 * rng.standard_normal(rows)
    monthly = np.clip(rate, 0.02, 0.12) / 12
    price = monthly / (1 - (1 + monthly) ** -months)  # of one unit borrowed, each month
    most = np.floor((0.6 * instances.income - 1) / price / 100) * 100  # the bank's first question
    amount = np.minimum(amount, most)
    return _Loan(guarantor, purpose, amount, months, np.ceil(amount * price))


def _merit(instances: _Applicants, money: _Money, loan: _Loan) -> Floats:
    """What the bank sees in an application; above zero it would approve."""
    need = 650 + 200 * instances.dependants + 400 * instances.lives("rent", "mortgage")
    spare = instances.income * (1 - money.debt_ratio) - need - loan.instalment
    unknown = np.isnan(money.credit_score)
    standing = np.where(unknown, -0.3, (money.credit_score - 660) / 55)
    shaky = instances.works("temporary", "unemployed")
    new_business = instances.works("freelance") & (instances.years_employed < 3)
    merit = 1.3 * np.tanh(spare / 700) + 0.9 * standing - 0.3
    merit += 0.4 * np.log1p(money.savings / 3000) - 0.75 * np.log1p(money.past_due / 100)
    merit += 0.8 * np.minimum(instances.years_employed, 8) / 8 + 0.12 * (instances.education - 1)
    merit += 0.4 * instances.lives("own") + 0.6 * instances.works("retired", "public")
    merit -= (
        0.6 * instances.works("temporary")
        + 1.6 * instances.works("unemployed")
        + 0.7 * new_business
    )
    merit += loan.guarantor * (0.5 + 1.1 * (shaky | unknown))
    merit += np.array([0.1, 0.35, 0.1, -0.6, 0.0, -0.3])[loan.purpose]
    merit -= 9.0 * np.maximum(money.debt_ratio - 0.4, 0) + 0.015 * np.maximum(loan.months - 48, 0)
    return merit


def _table(instances: _Applicants, money: _Money, loan: _Loan) -> pd.DataFrame:
    columns = {**instances._asdict(), **money._asdict(), **loan._asdict()}
    columns["education"] = pd.Categorical.from_codes(instances.education, list(EDUCATION), True)
    columns["employment"] = _words(EMPLOYMENT, instances.employment)
    columns["housing"] = _words(HOUSING, instances.housing)
    columns["purpose"] = _words(PURPOSE, loan.purpose)
    columns["guarantor"] = _words(("no", "yes"), loan.guarantor.astype(np.int64))
    fractions = ("debt_ratio", "credit_score")  # the score is whole, but has gaps
    table = pd.DataFrame({name: columns[name] for name in COLUMNS})
    whole = [n for n in table.select_dtypes("float").columns if n not in fractions]
    return table.astype(dict.fromkeys(whole, np.int64))


def _words(names: Sequence[str], codes: Ints) -> list[str]:
    return [names[code] for code in codes.tolist()]


def _draw(rng: np.random.Generator, weights: Floats) -> Ints:
    """One category per row, with probabilities in proportion to its weights."""
    ladder = weights.cumsum(axis=1)  # (rows, categories)
    point = rng.random((len(ladder), 1)) * ladder[:, -1:]
    codes: Ints = np.sum(ladder < point, axis=1, dtype=np.int64)
    return codes


def _multiples(values: Floats, step: float) -> Floats:
    return np.round(values / step) * step
