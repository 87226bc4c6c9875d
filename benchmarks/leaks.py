"""Random constraints against an independent checker: `python -m benchmarks.leaks --seconds 300`.

The checker is the slow one of the tests, which shares no code with the library. First random
tables, constraints and rows are projected; then explainers of many kinds and data sets are called
with random constraints, every row they return and every step of every path is checked again, and
the classifier is asked about it again.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.serving import Line, print_lines
from lapace import CentroidWarning, Explainer, Explanation, datasets
from lapace.constraints import System

TESTS = Path(__file__).parent.parent / "tests"
BATCH = 500  # cases of projection between two looks at the clock
DISAGREE = "disagreements"
WHOLE = {"steps": 20, "picks": ("first",)}  # for steps: picks are checked apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = measure(arguments.seconds, arguments.seed)
    print_lines(lines)
    sys.exit(0 if all(line.kept is not False for line in lines) else 1)


def measure(seconds: float, seed: int = 0) -> list[Line]:
    """Looks for disagreements, a third of the time in projections, the rest in explanations."""
    sys.path.insert(0, str(TESTS))
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    projected, wrong = projections(start + seconds / 3, seed)
    explained, more = explanations(start + seconds, seed)
    for problem in [*wrong, *more][:20]:
        print(problem, flush=True)
    return [
        Line("random rows projected onto random constraints", f"{projected['cases']:,}"),
        Line("constraints they were checked against", f"{projected['constraints']:,}"),
        Line("of them proved infeasible", f"{projected['proved infeasible']:,}"),
        Line(f"{DISAGREE} on those rows", f"{len(wrong)}", "0", not wrong),
        Line("explainers, each of a table of its own", f"{explained['explainers']:,}"),
        Line("calls of explain with random constraints", f"{explained['calls']:,}"),
        Line("rows returned and checked", f"{explained['rows']:,}"),
        Line("steps of paths checked", f"{explained['steps']:,}"),
        Line("steps the classifier was asked about again", f"{explained['asked again']:,}"),
        Line(f"{DISAGREE} on those rows and steps", f"{len(more)}", "0", not more),
    ]


def projections(end: float, seed: int) -> tuple[Counter[str], list[str]]:
    """Random rows projected until the time is over; counts, and what is wrong in words."""
    from test_constraints_random import run

    total: Counter[str] = Counter()
    problems: list[str] = []
    while time.perf_counter() < end:
        found, tally = run(BATCH, seed=seed)
        problems += found
        total += tally
        seed += 1000
    return total, problems


def explanations(end: float, seed: int) -> tuple[Counter[str], list[str]]:
    """Calls of many explainers by turns until the time is over; counts, and what is wrong."""
    from test_no_leak import problems_of, random_call

    start, rng, total = time.perf_counter(), np.random.default_rng(seed), Counter[str]()
    problems: list[str] = []
    made = []
    for name, make in makers(seed):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CentroidWarning)
            made.append((name, *make()))
        total["explainers"] += 1
        if time.perf_counter() > start + (end - start) / 3:
            break
    while True:
        for name, explainer, instances in made:
            if time.perf_counter() > end:
                return total, problems
            call = random_call(explainer, rng)
            found, counts = problems_of(explainer, instances, call)
            more, steps = step_problems(explainer, instances, call)
            total += counts + steps + Counter(calls=1)
            problems += [f"{name}: {line}" for line in [*found, *more]]


def makers(seed: int) -> Iterator[tuple[str, Callable[[], tuple[Explainer, Any]]]]:
    """Functions that fit an explainer each, and instances for it."""
    from test_no_leak import MAKERS, TABLES, on_data_set

    for name in ("loans", *TABLES):
        yield name, lambda name=name: on_data_set(datasets.load(name))
    for kind, make in MAKERS.items():
        yield kind, lambda make=make: make(seed + 7)


def step_problems(
    explainer: Explainer, instances: Any, call: dict[str, Any]
) -> tuple[list[str], Counter[str]]:
    """What is wrong with the steps of all paths of one call, in words; and counts."""
    import worlds
    from test_constraints_random import Slow

    found = explainer.explain(instances, **worlds.searched({**call, **WHOLE}))
    constraints = System.of(found.constraints, found.schema, check=False).constraints
    problems: list[str] = []
    for path, step in np.ndindex(*found.tau.shape):
        row, original = found.cells[path, step], found.instances[found.instance[path]]
        slow = Slow(found.schema, row, original)
        violated = [str(c) for c in constraints if not slow.satisfies(c)]
        if bool(found.feasible[path, step]) == bool(violated):
            problems.append(
                f"step {step}: feasible is wrong, violated={violated}, {row} {original}"
            )
    asked, wrong = label_problems(explainer, found)
    return problems + wrong, Counter({"steps": found.tau.size, "asked again": asked})


def label_problems(explainer: Explainer, found: Explanation) -> tuple[int, list[str]]:
    """How many steps the classifier was asked about again, and where it says something else."""
    path, step = np.nonzero(found.predicted >= 0)
    if not len(path):
        return 0, []
    model = explainer.classifier
    rows = found.schema.frame(found.cells[path, step])
    labels = list(np.asarray(getattr(model, "predict", model)(rows)).tolist())
    known = [found.labels[code] for code in found.predicted[path, step]]
    wrong = [k for k, (now, then) in enumerate(zip(labels, known, strict=True)) if now != then]
    return len(path), [
        f"step {step[k]}: labelled {known[k]}, asked again {labels[k]}" for k in wrong
    ]


if __name__ == "__main__":
    main()
