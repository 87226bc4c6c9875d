"""How far `nearest` is, and how many ways `best` has: `python -m benchmarks.ways`.

Twelve tables that no move of the search was chosen on, a forest or boosted trees each. Every
line of `ways.csv` has its commit: `--commit before` run with an older lapace on the path adds lines
to compare with. The page sets the last two commits of the file side by side.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

from benchmarks.figures import grid
from benchmarks.plan import Pair
from benchmarks.tables import load
from lapace import Explainer
from lapace.datasets import TrainedKind

FOREST = ("mortgages", "pensions", "german", "wine", "heloc", "adult")
BOOSTING = ("work", "prison", "marriages", "penguins", "diabetes", "compas")
INSTANCES, ROWS, SEED = 40, 1500, 3
ABOUT = f"""# Distance and ways

Made by `python -m benchmarks.ways`: at most {INSTANCES} test rows without the target and {ROWS:,}
training rows, seed {SEED}, without constraints. No move of the search was chosen on these tables.
*nearest*, *best*: mean distance in percentiles, as the search counts it. *two*, *three*: share of
instances with so many unmarked ways. *queries*: per instance.
"""


def measured(name: str, kind: TrainedKind) -> dict[str, float]:
    """Explains test rows of a table; returns the figures."""
    data = load(Pair(name, name, "forest", impute=name == "heloc"), SEED, ROWS)
    classifier = data.classifier(kind)
    explainer = Explainer(classifier, schema=data.schema, random_state=SEED, device="cpu")
    explainer.fit(data.train)
    label = np.array(explainer.labels(data.test), dtype=object)
    explanation = explainer.explain(
        data.test[label != data.target].head(INSTANCES), target=data.target
    )
    nearest, best = explanation.nearest(), explanation.best(3)
    first = best.where(best.rank == 0)
    ways = np.bincount(best.instance[best.mark == ""], minlength=len(explanation))
    return {
        "instances": len(explanation),
        "answered": explanation.status.count("answered"),
        "nearest": nearest.distance[nearest.ok].mean(),
        "changes": nearest.changed[nearest.ok].mean(),
        "best": first.distance[first.ok].mean(),
        "two": (ways >= 2).mean(),
        "three": (ways >= 3).mean(),
        "queries": explanation.n_queries / len(explanation),
    }


def page(figures: pd.DataFrame) -> str:
    """Returns the page: the last two commits of the file side by side."""
    commits = list(dict.fromkeys(figures["commit"]))[-2:]
    names = [name for name in figures if name not in ("table", "classifier", "commit")]
    lines = []
    for (table, kind), part in figures.groupby(["table", "classifier"], sort=False):
        rows = part.set_index("commit").reindex(commits)[names]
        cells = (" → ".join(f"{value:.3g}" for value in rows[name].dropna()) for name in names)
        lines.append((f"{table}, {kind}", *cells))
    table = grid(("table", *names), lines)
    return f"{ABOUT}\nCommits: {' → '.join(commits)}.\n\n{table}\n"


def main() -> None:
    """Measures every table, table by table, and writes the file and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", required=True, help="what to call this lapace in the file")
    parser.add_argument("-o", "--out", type=Path, default=Path("benchmarks/results"))
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    path = chosen.out / "ways.csv"
    figures = pd.read_csv(path) if path.exists() else pd.DataFrame()
    for name in (*FOREST, *BOOSTING):
        kind: TrainedKind = "forest" if name in FOREST else "boosting"
        entry = {"table": name, "classifier": kind, "commit": chosen.commit}
        line = pd.DataFrame([entry | measured(name, kind)]).round(4)
        figures = pd.concat([figures, line], ignore_index=True)
        figures.to_csv(path, index=False)
        print(name, "done", flush=True)
    path.with_suffix(".md").write_text(page(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
