"""Every returned row checked again: explainers of many kinds, random constraints.

The checker is the slow one of test_constraints_random, which shares no code with the library. It
reads the rows as a user gets them, in the user's kind of table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_constraints_random import random_texts, row_problems

from lapace import Explainer
from lapace.constraints import Projection, Shorthand, System
from lapace.result import Counterfactuals, Explanation
from tests import worlds

PICKS: dict[str, Callable[[Explanation], Counterfactuals]] = {
    "first": Explanation.first,
    "middle": Explanation.middle,
    "last": Explanation.last,
    "nearest": Explanation.nearest,
    "best": Explanation.best,
    "at 0.5": lambda explanation: explanation.at(0.5),
    "at 1": lambda explanation: explanation.at(1.0),
}


def odd_bank() -> worlds.World:
    """The bank, asked about an unknown category, a value out of range and a missing one."""
    instances = worlds.bank().instances.head(6).copy()
    instances.loc[0, "home"] = "castle"
    instances.loc[1, "income"] = 9_999.9
    instances.loc[2, "debt"] = pd.NA
    return replace(worlds.bank(), instances=instances)


# ------------------------------------------------------------------------------------------------
# Calls


def random_call(explainer: Explainer, rng: np.random.Generator) -> dict[str, Any]:
    """Up to six constraints of any form that can hold for some instance, and other settings."""
    schema, costs = explainer.schema_, {}
    if rng.random() < 0.3:
        first, other = (schema.names[i] for i in rng.choice(len(schema.names), 2, replace=False))
        costs = {first: 5.0, other: float(rng.choice([0.2, np.inf]))}
    infinite = [Shorthand("fixed", (name,)) for name, cost in costs.items() if cost == np.inf]
    constraints = random_texts(schema, rng, 6, also=infinite)
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
            original, feasible = explanation.instances[instance], chosen.feasible[k]
            tally["rows"] += 1
            found = list(row_problems(system, row, original, feasible))
            is_answered = explanation.status[instance] == "answered"
            if not feasible and is_answered and chosen.tau[k] != 0:
                found.append(f"infeasible though answered, {row} {original}")
            if feasible and row[fixed_columns].tobytes() != original[fixed_columns].tobytes():
                found.append(f"a fixed column changed, {row} {original}")
            problems += [f"{name}: {problem}" for problem in found]
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


# ------------------------------------------------------------------------------------------------
# Tests


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "world", [odd_bank, worlds.seasons, worlds.shop, worlds.post, worlds.signs]
)
def test_no_returned_row_violates_a_constraint(world, seed):
    here, rng = world(), np.random.default_rng(seed)
    problems, tally = [], Counter[str]()
    for _ in range(3):
        call = random_call(here.explainer, rng)
        more, counts = problems_of(here.explainer, here.instances[:6], call)
        problems, tally = problems + more, tally + counts
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
