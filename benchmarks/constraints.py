"""What constraints cost, and what each way of enforcing them reaches.

    python -m benchmarks.constraints                 # both tables, 200 instances, some minutes
    python -m benchmarks.constraints --table loans --instances 50

Five random constraints for each instance, the same for `latent`, `naive` and `exact`: how many have
an ok answer, and how plausible it is (LOF of the nearest and of the first rows, paired with naive's
on the instances both answer); what a why-not would cost is left out.
Then the time the README's five constraints add to `explain`, in one run.
Writes benchmarks/results/constraints.csv.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from lapace import Explainer, Search, datasets
from lapace.errors import CentroidWarning, InputError
from lapace.explainer import asking
from lapace.metrics import Plausibility
from lapace.schema import Schema

TABLES = {"loans": "forest", "adult-full": "boosting"}
WAYS = ("latent", "naive", "exact")
README = [
    "income >= original",
    "education in {bachelor, master}",
    "savings <= 20000",
    "fixed dependants",
    "changes <= 5",
]


def drawn(schema: Schema, rows: np.ndarray, rng: np.random.Generator, count: int) -> list[str]:
    """Random constraints of all forms, on different columns, with constants from the data."""
    found: list[str] = []
    columns = rng.permutation(len(schema.features))
    for k in columns:
        feature, values = schema.features[k], rows[:, k]
        values = values[~np.isnan(values)]
        name = f"`{feature.name}`"
        if feature.kind == "continuous":
            low, high = (feature.snap(np.quantile(values, q)) for q in sorted(rng.random(2)))
            lowest = min(float(low), float(high))
            forms = [
                f"{name} >= original",
                f"{name} <= original",
                f"{name} == original",
                f"{name} <= {max(float(high), lowest):.12g}",
                f"{name} >= {lowest:.12g}",
                f"abs({name} - original) <= 0.2*original",
            ]
        else:
            some = rng.choice(len(feature.categories), max(1, len(feature.categories) // 2), False)
            listed = ", ".join(f'"{feature.categories[i]}"' for i in some)
            forms = [f"{name} == original", f"{name} in {{{listed}}}"]
        found.append(str(rng.choice(forms)))
        if len(found) == count - 1:
            break
    return [*found, f"changes <= {rng.integers(3, 7)}"]


def fitted(table: str, seed: int) -> tuple[Any, Explainer]:
    data = datasets.load(table) if table == "loans" else datasets.load(table, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CentroidWarning)
        return data, Explainer(data.classifier(TABLES[table]), random_state=seed).fit(data.train)


def measure(table: str, instances: int, seed: int) -> list[dict[str, Any]]:
    data, explainer = fitted(table, seed)
    schema, classifier = explainer.schema_, explainer.classifier_
    rows = schema.cells(data.train)
    labels = classifier.predict(rows)
    target = (
        len(explainer.classes_) - 1 if table != "loans" else explainer.classes_.index("approved")
    )
    test = schema.cells(data.test)
    asked = test[np.flatnonzero(classifier.predict(test) != target)[:instances]]
    scale = Plausibility(schema, rows[labels == target])
    rng = np.random.default_rng(seed)
    asking.why_not = lambda *_: {}  # type: ignore[assignment]
    limits = [drawn(schema, rows, rng, 5) for _ in asked]
    lof = {way: {"nearest": np.full(len(asked), np.nan), "first": np.full(len(asked), np.nan)}
           for way in WAYS}  # fmt: skip
    ok = {way: np.zeros(len(asked), dtype=bool) for way in WAYS}
    seconds = dict.fromkeys(WAYS, 0.0)
    impossible = 0
    for i, instance in enumerate(asked):
        for way in WAYS:
            start = time.perf_counter()
            try:
                answer = explainer.explain(
                    schema.frame(instance[None]),
                    target=explainer.classes_[target],
                    constraints=limits[i],
                    search=Search(enforce=way),
                )
            except InputError:  # nobody can keep these: the same sentence whatever the way
                impossible += way == "exact"
                continue
            finally:
                seconds[way] += time.perf_counter() - start
            ok[way][i] = answer.status[0] == "answered"
            for pick in ("nearest", "first"):
                rows_ = getattr(answer, pick)()
                if rows_.ok.any():
                    lof[way][pick][i] = scale.lof(rows_.cells[rows_.ok]).mean()
    lines = []
    for way in WAYS:
        line: dict[str, Any] = {
            "table": table, "way": way, "instances": len(asked), "impossible": impossible,
            "answered": int(ok[way].sum()), "seconds": round(seconds[way], 1),
        }  # fmt: skip
        for pick in ("nearest", "first"):
            both = ~np.isnan(lof[way][pick]) & ~np.isnan(lof["naive"][pick])
            line[f"{pick}_pairs"] = int(both.sum())
            line[f"{pick}_lof"] = round(float(lof[way][pick][both].mean()), 4) if both.any() else ""
            line[f"{pick}_lof_naive"] = (
                round(float(lof["naive"][pick][both].mean()), 4) if both.any() else ""
            )
        lines.append(line)
    return lines


def cost(seed: int, repeats: int = 5) -> dict[str, Any]:
    """The time outside the classifier, without and with the README's constraints, best of some."""
    data, explainer = fitted("loans", seed)
    target = explainer.classes_.index("approved")
    cells = explainer.schema_.cells(data.test)
    refused = np.flatnonzero(explainer.classifier_.predict(cells) != target)[:100]
    instances = explainer.schema_.frame(cells[refused])

    def once(limits: list[str], enforce: Any = "exact") -> float:
        how = Search(enforce=enforce)
        found = explainer.explain(
            instances, target="approved", constraints=limits, search=how
        ).seconds
        return found["total"] - found["classifier"] - found.get("why_not", 0.0)

    once([])
    free = min(once([]) for _ in range(repeats))
    record: dict[str, Any] = {"table": "loans", "way": "time", "instances": len(refused)}
    for way in ("naive", "exact"):
        record[f"{way}_over_free"] = round(
            min(once(README, enforce=way) for _ in range(repeats)) / free, 2
        )
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", nargs="+", choices=tuple(TABLES), default=list(TABLES))
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/constraints.csv"))
    given = parser.parse_args()
    lines = [line for table in given.table for line in measure(table, given.instances, given.seed)]
    lines.append(cost(given.seed))
    names = list(dict.fromkeys(name for line in lines for name in line))
    with given.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(lines)
    for line in lines:
        print("  ".join(f"{name} {value}" for name, value in line.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
