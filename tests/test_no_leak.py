"""Every returned row checked again: explainers of many kinds, random constraints.

The checker is the slow one of test_constraints_random, which shares no code with the library. It
reads the rows as a user gets them, in the user's kind of table. The tests make a few calls of each
explainer; as a script this file makes as many as given:

    python tests/test_no_leak.py 20
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lapace import CentroidWarning, Explainer, datasets
from lapace.classifiers import train as forest
from lapace.constraints import Projection, System, fixed
from lapace.errors import InputError, LapaceError
from lapace.result import Counterfactuals, Explanation
from test_constraints_random import Slow, _cell_problem, random_constraint
from tests import worlds
from tests.worlds import QUICK

PICKS: dict[str, Callable[[Explanation], Counterfactuals]] = {
    "first": Explanation.first,
    "middle": Explanation.middle,
    "last": Explanation.last,
    "nearest": Explanation.nearest,
    "best": Explanation.best,
    "at 0.5": lambda explanation: explanation.at(0.5),
    "at 1": lambda explanation: explanation.at(1.0),
}
TABLES = ("wine", "heloc", "adult-full", "compas")


# ------------------------------------------------------------------------------------------------
# Explainers


def applicants(seed: int) -> tuple[Explainer, Any]:
    train = worlds.applicants(250, seed)
    model = worlds.credit_model(train, worlds.decisions(train))
    instances = worlds.applicants(6, seed + 100)
    instances.loc[0, "home"] = "castle"
    instances.loc[1, "income"] = 9_999.9
    instances.loc[2, "debt"] = pd.NA
    return Explainer(model, n_prototypes=2, recipe=QUICK, device="cpu", random_state=seed).fit(
        train
    ), instances


def days(seed: int) -> tuple[Explainer, Any]:
    train = worlds.days(250, seed)
    explainer = Explainer(
        worlds.season, n_prototypes=1, recipe=QUICK, device="cpu", random_state=seed
    )
    return explainer.fit(train), worlds.days(6, seed + 100)


def baskets(seed: int) -> tuple[Explainer, Any]:
    train = worlds.baskets(250, seed)
    spent, visits = (np.array(train[c].fill_null(8)) for c in ("spent", "visits"))
    boosted = worlds.Boosted(train, (spent / 10 + visits > 20).astype(int))
    explainer = Explainer(boosted, n_prototypes=2, recipe=QUICK, device="cpu", random_state=seed)
    return explainer.fit(train), worlds.baskets(6, seed + 100)


def letters(seed: int) -> tuple[Explainer, Any]:
    train = worlds.letters(250, seed)
    explainer = Explainer(
        worlds.postage, n_prototypes=2, recipe=QUICK, device="cpu", random_state=seed
    )
    return explainer.fit(train), worlds.letters(6, seed + 100)


def numbers(seed: int) -> tuple[Explainer, Any]:
    rng = np.random.default_rng(seed)
    train, instances = rng.normal(size=(250, 4)), 2 * rng.normal(size=(6, 4))

    def side(rows: Any) -> Any:
        return rows[:, 0] + rows[:, 1] * rows[:, 2] > 0.2

    explainer = Explainer(side, n_prototypes=2, recipe=QUICK, device="cpu", random_state=seed)
    return explainer.fit(train), instances


def on_data_set(data: datasets.Dataset) -> tuple[Explainer, Any]:
    train, instances = data.train.head(400), data.test.head(6)
    model = forest("forest", data.schema, train, data.train_labels[:400], n_estimators=20)
    return Explainer(model, n_prototypes=2, recipe=QUICK, device="cpu").fit(train), instances


MAKERS = {"applicants": applicants, "days": days, "baskets": baskets, "letters": letters,
           "numbers": numbers}  # fmt: skip
SEEDS = {"applicants": 3, "days": 2, "baskets": 2, "letters": 2, "numbers": 2}
CASES = [(kind, seed) for kind, count in SEEDS.items() for seed in range(count)]


# ------------------------------------------------------------------------------------------------
# Calls


def random_call(explainer: Explainer, rng: np.random.Generator) -> dict[str, Any]:
    """Up to six constraints of any form that can hold for some instance, and other settings."""
    schema, costs = explainer.schema_, {}
    if rng.random() < 0.3:
        first, other = (schema.names[i] for i in rng.choice(len(schema.names), 2, replace=False))
        costs = {first: 5.0, other: float(rng.choice([0.2, np.inf]))}
    infinite = [fixed(name) for name, cost in costs.items() if cost == np.inf]
    while True:
        count = int(rng.integers(1, 7))
        constraints = [random_constraint(schema, rng) for _ in range(count)]
        try:
            System.of([*constraints, *infinite], schema)
        except InputError:
            continue
        break
    return {
        "target": "any-other" if rng.random() < 0.3 else explainer.classes_[-1],
        "constraints": constraints,
        "costs": costs,
        "n_best": int(rng.integers(1, 4)),
        "steps": 6,
        "n_starts": int(rng.choice([3, 10])),
    }


def problems_of(
    explainer: Explainer, instances: Any, call: dict[str, Any]
) -> tuple[list[str], Counter[str]]:
    """Everything wrong with what one call returns, in words; and some counts."""
    explanation = explainer.explain(instances, **worlds.searched(call))
    tally = Counter(explanation.status)
    system = System.of(explanation.constraints, explanation.schema, check=False)
    names = explanation.schema.names
    fixed_columns = [i for i, name in enumerate(names) if is_fixed(explanation.constraints, name)]
    problems = []
    for name, pick in PICKS.items():
        chosen = pick(explanation)
        # As the user gets them: written to the user's kind of table, and read again.
        rows = explanation.schema.read(chosen.rows).cells
        if not np.array_equal(rows, chosen.cells, equal_nan=True):
            problems.append(f"{name}: the table differs from the cells")
        for k, (row, instance) in enumerate(zip(rows, chosen.instance, strict=True)):
            original = explanation.instances[instance]
            slow = Slow(explanation.schema, row, original)
            violated = [str(c) for c in system.constraints if not slow.satisfies(c)]
            tally["rows"] += 1
            tally["ok"] += bool(chosen.ok[k])
            if bool(chosen.feasible[k]) == bool(violated):
                problems.append(
                    f"{name}: feasible={chosen.feasible[k]}, violated={violated}, {row} {original}"
                )
            if violated and explanation.status[instance] == "answered" and chosen.tau[k] != 0:
                problems.append(
                    f"{name}: infeasible though answered, violated={violated}, {row} {original}"
                )
            for feature, cell, cell_before in zip(
                explanation.schema.features, row, original, strict=True
            ):
                if problem := _cell_problem(feature, cell, cell_before):
                    problems.append(
                        f"{name}: {feature.name}: {problem} ({cell}, original {cell_before})"
                    )
            if (
                chosen.feasible[k]
                and row[fixed_columns].tobytes() != original[fixed_columns].tobytes()
            ):
                problems.append(f"{name}: a fixed column changed, {row} {original}")
    answered = {i for i, status in enumerate(explanation.status) if status == "answered"}
    if answered != set(explanation.nearest().instance[explanation.nearest().ok].tolist()):
        problems.append("nearest is not ok for exactly the answered instances")
    return [f"{line} [{'; '.join(explanation.constraints)}]" for line in problems], tally


def is_fixed(constraints: tuple[str, ...], name: str) -> bool:
    """Whether a constraint fixes a column, read from its text."""
    plain = name.replace("_", "a").isalnum()
    word = name if plain else f"`{name}`"
    return any(
        text == f"{word} == original"
        or (text.startswith("fixed ") and word in text.removeprefix("fixed ").split(", "))
        for text in constraints
    )


def run(
    explainer: Explainer, instances: Any, calls: int, seed: int
) -> tuple[list[str], Counter[str]]:
    """Several calls of one explainer."""
    rng = np.random.default_rng(seed)
    problems, tally = [], Counter[str]()
    for _ in range(calls):
        more, counts = problems_of(explainer, instances, random_call(explainer, rng))
        problems += more
        tally += counts
    return problems, tally


# ------------------------------------------------------------------------------------------------
# Tests


@pytest.mark.filterwarnings("ignore::lapace.CentroidWarning")
@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_no_returned_row_violates_a_constraint(kind, seed):
    explainer, instances = MAKERS[kind](seed)
    problems, tally = run(explainer, instances, 3, seed)
    assert not problems, "\n".join(problems[:5])
    assert tally["rows"] > 20


@pytest.mark.filterwarnings("ignore::lapace.CentroidWarning", "ignore:Some columns follow")
@pytest.mark.parametrize("name", TABLES)
def test_no_returned_row_violates_a_constraint_on_real_tables(name, missing):
    try:
        data = datasets.load(name)
    except LapaceError as error:
        if "could not be fetched" not in str(error):
            raise
        missing("data", str(error))
    explainer, instances = on_data_set(data)
    problems, tally = run(explainer, instances, 2, 0)
    assert not problems, "\n".join(problems[:5])
    assert tally["rows"] > 20


def test_the_checker_finds_violations(monkeypatch):
    """Without projection and final check the same calls return violations."""
    explainer, instances = worlds.post().explainer, worlds.post().instances
    call = {"constraints": ["fixed weight"], "steps": 4}

    def untouched(self, cells, instances, **settings):
        yes = np.ones(len(cells), bool)
        return Projection(cells.copy(), yes, ~yes, ~yes, 0)

    monkeypatch.setattr(
        System, "feasible", lambda self, cells, instances: np.ones(len(cells), bool)
    )
    monkeypatch.setattr(System, "project", untouched)
    problems, _ = problems_of(explainer, instances, call)
    assert any("violated=['fixed weight']" in line for line in problems)
    assert any("a fixed column changed" in line for line in problems)


if __name__ == "__main__":
    warnings.simplefilter("ignore", CentroidWarning)
    per_explainer = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    start, all_problems, total = time.perf_counter(), [], Counter[str]()
    makers = [(kind, lambda k=kind, s=seed: MAKERS[k](s)) for kind, seed in CASES]
    makers += [(name, lambda n=name: on_data_set(datasets.load(n))) for name in TABLES]
    for number, (kind, make) in enumerate(makers):
        try:
            made, rows = make()
        except LapaceError as error:
            print(f"{kind}: {error}")
            continue
        problems, counts = run(made, rows, per_explainer, 1000 + number)
        all_problems += [f"{kind}: {line}" for line in problems]
        total += counts
        total["explainers"] += 1
        total["calls"] += per_explainer
        print(
            kind,
            dict(counts),
            f"{time.perf_counter() - start:.0f} s",
            len(all_problems),
            flush=True,
        )
    print(dict(total), f"{len(all_problems)} problems")
    print(*all_problems[:20], sep="\n")
    sys.exit(bool(all_problems))
