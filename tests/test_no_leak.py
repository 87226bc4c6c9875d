"""No leak, end to end: explainers of many kinds, random constraints, every row checked again.

The checker is the slow one of test_constraints_random, which shares no code with ours, and it is
shown the rows as a user gets them: in the user's own kind of table, read anew. The tests send a
few calls through each explainer; as a script this file sends as many as wanted:

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

import worlds
from lapace import CentroidWarning, Explainer, datasets
from lapace.classifiers import train as forest
from lapace.constraints import Projection, System, fixed
from lapace.errors import InputError, LapaceError
from lapace.result import Counterfactuals, Explanation
from test_constraints_random import Slow, _cell_problem, random_constraint
from worlds import NARROW, QUICK

PICKS: dict[str, Callable[[Explanation], Counterfactuals]] = {
    "first": Explanation.first,
    "middle": Explanation.middle,
    "last": Explanation.last,
    "nearest": Explanation.nearest,
    "sparse": Explanation.sparse,
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


def real(data: datasets.Dataset) -> tuple[Explainer, Any]:
    train, instances = data.train.head(400), data.test.head(6)
    model = forest("forest", data.schema, train, data.train_labels[:400], n_estimators=20)
    return Explainer(model, n_prototypes=3, recipe=NARROW, device="cpu").fit(train), instances


MADE_UP = {"applicants": applicants, "days": days, "baskets": baskets, "letters": letters,
           "numbers": numbers}  # fmt: skip
SEEDS = {"applicants": 4, "days": 3, "baskets": 3, "letters": 3, "numbers": 3}
CASES = [(kind, seed) for kind, count in SEEDS.items() for seed in range(count)]


# ------------------------------------------------------------------------------------------------
# Calls


def random_call(explainer: Explainer, rng: np.random.Generator) -> dict[str, Any]:
    """Up to six constraints of any form that can hold for some instance, and other settings."""
    schema, costs = explainer.schema_, {}
    if rng.random() < 0.3:
        hard, other = (schema.names[i] for i in rng.choice(len(schema.names), 2, replace=False))
        costs = {hard: 5.0, other: float(rng.choice([0.2, np.inf]))}
    held = [fixed(name) for name, cost in costs.items() if cost == np.inf]
    while True:
        count = int(rng.integers(1, 7))
        texts = [random_constraint(schema, rng) for _ in range(count)]
        try:
            System.of([*texts, *held], schema)
        except InputError:
            continue
        break
    return {
        "target": "any-other" if rng.random() < 0.3 else explainer.classes_[-1],
        "constraints": texts,
        "costs": costs,
        "sparse": True,
        "steps": 6,
        "detail": str(rng.choice(["path", "picks"])),
    }


def leaks(
    explainer: Explainer, instances: Any, call: dict[str, Any]
) -> tuple[list[str], Counter[str]]:
    """Everything wrong with what one call returns, in words; and some counts."""
    explanation = explainer.explain(instances, **worlds.searched(call))
    tally = Counter(explanation.status)
    system = System.of(explanation.constraints, explanation.schema, check=False)
    names = explanation.schema.names
    still = [i for i, name in enumerate(names) if is_held(explanation.constraints, name)]
    found = []
    for name, pick in PICKS.items():
        chosen = pick(explanation)
        # As the user sees them: out through the user's own kind of table, and in again.
        rows = explanation.schema.read(chosen.rows).cells
        if not np.array_equal(rows, chosen.cells, equal_nan=True):
            found.append(f"{name}: the table does not say what the cells say")
        for k, (row, instance) in enumerate(zip(rows, chosen.instance, strict=True)):
            own = explanation.instances[instance]
            slow = Slow(explanation.schema, row, own)
            broken = [str(c) for c in system.constraints if not slow.satisfies(c)]
            tally["rows"] += 1
            tally["ok"] += bool(chosen.ok[k])
            if bool(chosen.feasible[k]) == bool(broken):
                found.append(f"{name}: feasible={chosen.feasible[k]}, broken={broken}, {row} {own}")
            if broken and explanation.status[instance] == "answered" and chosen.tau[k] != 0:
                found.append(f"{name}: infeasible though answered, broken={broken}, {row} {own}")
            for feature, cell, mine in zip(explanation.schema.features, row, own, strict=True):
                if problem := _cell_problem(feature, cell, mine):
                    found.append(f"{name}: {feature.name}: {problem} ({cell}, original {mine})")
            if chosen.feasible[k] and row[still].tobytes() != own[still].tobytes():
                found.append(f"{name}: a fixed column changed, {row} {own}")
    answered = {i for i, status in enumerate(explanation.status) if status == "answered"}
    if answered != set(explanation.nearest().instance[explanation.nearest().ok].tolist()):
        found.append("nearest is not ok for exactly those answered")
    return [f"{line} [{'; '.join(explanation.constraints)}]" for line in found], tally


def is_held(constraints: tuple[str, ...], name: str) -> bool:
    """Whether a column may not change at all, by the plainest of readings."""
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
    found, tally = [], Counter[str]()
    for _ in range(calls):
        wrong, counts = leaks(explainer, instances, random_call(explainer, rng))
        found += wrong
        tally += counts
    return found, tally


# ------------------------------------------------------------------------------------------------
# Tests


@pytest.mark.filterwarnings("ignore::lapace.CentroidWarning")
@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_nothing_leaks_out_of_an_explainer(kind, seed):
    explainer, instances = MADE_UP[kind](seed)
    found, tally = run(explainer, instances, 2, seed)
    assert not found, "\n".join(found[:5])
    assert tally["rows"] > 20


@pytest.mark.filterwarnings("ignore::lapace.CentroidWarning")
@pytest.mark.parametrize("name", TABLES)
def test_nothing_leaks_out_of_a_real_table(name, missing):
    try:
        data = datasets.load(name)
    except LapaceError as error:
        if "could not be fetched" not in str(error):
            raise
        missing("data", str(error))
    explainer, instances = real(data)
    found, tally = run(explainer, instances, 2, 0)
    assert not found, "\n".join(found[:5])
    assert tally["rows"] > 20


def test_the_checks_can_fail(monkeypatch):
    """Were projection and the final check left out, the same calls would find leaks."""
    explainer, instances = worlds.post().explainer, worlds.post().instances
    call = {"constraints": ["fixed weight"], "sparse": True, "steps": 4}

    def untouched(self, cells, instances, **settings):
        yes = np.ones(len(cells), bool)
        return Projection(cells.copy(), yes, ~yes, 0, 0)

    monkeypatch.setattr(
        System, "feasible", lambda self, cells, instances: np.ones(len(cells), bool)
    )
    monkeypatch.setattr(System, "project", untouched)
    found, _ = leaks(explainer, instances, call)
    assert any("broken=['fixed weight']" in line for line in found)
    assert any("a fixed column changed" in line for line in found)


if __name__ == "__main__":
    warnings.simplefilter("ignore", CentroidWarning)
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    begin, bad, total = time.perf_counter(), [], Counter[str]()
    makers = [(kind, lambda k=kind, s=seed: MADE_UP[k](s)) for kind, seed in CASES]
    makers += [(name, lambda n=name: real(datasets.load(n))) for name in TABLES]
    for number, (kind, make) in enumerate(makers):
        try:
            made, rows = make()
        except LapaceError as error:
            print(f"{kind}: {error}")
            continue
        problems, counts = run(made, rows, wanted, 1000 + number)
        bad += [f"{kind}: {line}" for line in problems]
        total += counts
        total["explainers"] += 1
        total["calls"] += wanted
        print(kind, dict(counts), f"{time.perf_counter() - begin:.0f} s", len(bad), flush=True)
    print(dict(total), f"{len(bad)} problems")
    print(*bad[:20], sep="\n")
    sys.exit(bool(bad))
