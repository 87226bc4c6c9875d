"""What constraints cost, and how each mode of enforcing them does.

Five random constraints for each instance, the same for `latent`, `naive` and `exact`: how many
instances have an ok counterfactual, and how plausible it is (LOF of the nearest and of the first
rows, paired with naive's on the instances both answer). Then the time the README's five constraints
add to `explain`, in one run. Writes benchmarks/results/constraints.csv.

    python -m benchmarks.constraints                 # both tables, 200 instances, some minutes
    python -m benchmarks.constraints --table loans --instances 50
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

from lapace import Explainer, InputError, Search, datasets
from lapace.errors import CentroidWarning
from lapace.metrics import Plausibility
from lapace.schema import Schema

TABLES = {"loans": "forest", "adult-full": "boosting"}
MODES = ("latent", "naive", "exact")
PICKS = ("nearest", "first")
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
    for k in rng.permutation(len(schema.features))[: count - 1]:
        feature, values = schema.features[k], rows[:, k]
        name = f"`{feature.name}`"
        if feature.kind == "continuous":
            places = np.quantile(values[~np.isnan(values)], sorted(rng.random(2)))
            low, high = sorted(float(feature.snap(place)) for place in places)
            forms = [
                f"{name} >= original",
                f"{name} <= original",
                f"{name} == original",
                f"{name} <= {high:.12g}",
                f"{name} >= {low:.12g}",
                f"abs({name} - original) <= 0.2*original",
            ]
        else:
            some = rng.choice(len(feature.categories), max(1, len(feature.categories) // 2), False)
            listed = ", ".join(f'"{feature.categories[i]}"' for i in some)
            forms = [f"{name} == original", f"{name} in {{{listed}}}"]
        found.append(str(rng.choice(forms)))
    return [*found, f"changes <= {rng.integers(3, 7)}"]


def fitted(table: str, seed: int, instances: int) -> tuple[Explainer, np.ndarray, np.ndarray, Any]:
    """An explainer, the training rows, the first unfavourable test rows, and the target."""
    data = datasets.load(table) if table == "loans" else datasets.load(table, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CentroidWarning)
        classifier = data.classifier(TABLES[table])
        explainer = Explainer(classifier, random_state=seed).fit(data.train)
    target = "approved" if table == "loans" else explainer.classes_[-1]
    test = explainer.schema_.cells(data.test)
    unfavourable = explainer.classifier_.predict(test) != explainer.classifier_.code(target)
    rows = explainer.schema_.cells(data.train)
    return explainer, rows, test[np.flatnonzero(unfavourable)[:instances]], target


def measure(table: str, instances: int, seed: int) -> pd.DataFrame:
    """A line per mode: instances answered, and LOF of counterfactuals, paired with naive's."""
    explainer, rows, queried, target = fitted(table, seed, instances)
    schema, classifier = explainer.schema_, explainer.classifier_
    usual = Plausibility(schema, rows[classifier.predict(rows) == classifier.code(target)])
    rng = np.random.default_rng(seed)
    constraints = [drawn(schema, rows, rng, 5) for _ in queried]
    lines = []
    for number, instance in enumerate(queried):
        for mode in MODES:
            line: dict[str, Any] = {"instance": number, "enforce": mode, "infeasible": False}
            start = time.perf_counter()
            try:
                found = explainer.explain(
                    schema.frame(instance[None]),
                    target=target,
                    constraints=constraints[number],
                    search=Search(enforce=mode),
                )
            except InputError:  # no row satisfies them, whatever the mode
                line["infeasible"] = True
            else:
                line["answered"] = found.status[0] == "answered"
                for pick in PICKS:
                    ok = (picked := getattr(found, pick)()).where(picked.ok)
                    line[pick] = usual.lof(ok.cells).mean() if len(ok) else np.nan
            lines.append({**line, "seconds": time.perf_counter() - start})
    return summary(table, pd.DataFrame(lines))


def summary(table: str, found: pd.DataFrame) -> pd.DataFrame:
    """One line per mode from one line per instance and mode."""
    wide = found.pivot(index="instance", columns="enforce")
    lines = []
    for mode in MODES:
        own = found[found["enforce"] == mode]
        line: dict[str, Any] = {
            "table": table,
            "enforce": mode,
            "instances": len(own),
            "infeasible": int(own["infeasible"].sum()),
            "answered": int((own["answered"] == True).sum()),  # noqa: E712  None where infeasible
            "seconds": round(own["seconds"].sum(), 1),
        }
        for pick in PICKS:
            both = wide[pick].dropna(subset=[mode, "naive"])
            line[f"{pick}_pairs"] = len(both)
            line[f"{pick}_lof"] = round(both[mode].mean(), 4)
            line[f"{pick}_lof_naive"] = round(both["naive"].mean(), 4)
        lines.append(line)
    return pd.DataFrame(lines)


def cost(seed: int, repeats: int = 5) -> pd.DataFrame:
    """The time outside the classifier with the README's constraints, over the time without."""
    explainer, _, queried, target = fitted("loans", seed, 100)
    frame = explainer.schema_.frame(queried)

    def least(constraints: list[str], mode: Any = "exact") -> float:
        found = [
            explainer.explain(
                frame, target=target, constraints=constraints, search=Search(enforce=mode)
            ).seconds
            for _ in range(repeats)
        ]
        return min(seconds["total"] - seconds["classifier"] for seconds in found)

    least([])  # loads what is loaded once
    without = least([])
    ratios = {f"{m}_time_ratio": round(least(README, m) / without, 2) for m in MODES[1:]}
    return pd.DataFrame(
        [{"table": "loans", "enforce": "time", "instances": len(queried), **ratios}]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", nargs="+", choices=tuple(TABLES), default=list(TABLES))
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--seed", type=int, default=11)
    out = Path("benchmarks/results/constraints.csv")
    parser.add_argument("-o", "--out", type=Path, default=out)
    chosen = parser.parse_args()
    parts = [measure(table, chosen.instances, chosen.seed) for table in chosen.table]
    found = pd.concat([*parts, cost(chosen.seed)], ignore_index=True)
    found.to_csv(chosen.out, index=False)
    print(found.to_string(index=False))


if __name__ == "__main__":
    main()
