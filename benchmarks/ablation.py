"""What each part of the default recipe contributes: `python -m benchmarks.ablation`.

Every variant changes one thing and runs E1 on a few pairs and seeds, in processes of their own.
Writes `benchmarks/results/ablation.csv` and prints a table of means.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pandas as pd
import torch

from benchmarks import e1, fits
from benchmarks.plan import Plan
from lapace import Explainer, training
from lapace.explainer import endpoints, fit
from lapace.model import Mixture
from lapace.paths import decoder

COLUMNS = ["pair", "seed", "variant", "metric", "value"]
METRICS = (
    "gap_raw", "gap_verified", "agreement", "ks", "centroids_before", "least_used",
    "prototype_lof_max", "diversity", "first_lof", "nnce_lof", "nearest_lof", "middle_lof",
    "nearest_distance", "nnce_distance", "recrossing_before", "fit_processor_seconds",
)  # fmt: skip


def range_coded(model: Any, *, schema: Any, **settings: Any) -> Explainer:
    """An explainer whose numbers are coded by their range, as in the paper."""
    return Explainer(model, schema=fit.range_coded(schema), **settings)


def prior(model: Any, x: Any, y: Any, c: Any, members: Any, state: int) -> Mixture:  # noqa: ARG001
    """The prior's diagonal Gaussians as density, as in the paper."""
    found = model.p_z()
    return Mixture.of_prior(type(found)(*(t.cpu() for t in found)), members)


def without_trees(schema: Any, model: Any, mixtures: Any, _: Any, **settings: Any) -> Any:
    """A decoder that chooses every category on its own."""
    return decoder.Decoder(schema, model, mixtures, (), **settings)


# By variant: settings of the recipe, or (module, name, value) to replace.
VARIANTS: Mapping[str, dict[str, Any] | tuple[Any, str, Any]] = {
    "default": {},
    "beta 0.15": {"weights": (1.0, 0.15, 1.0)},
    "beta 0.6": {"weights": (1.0, 0.6, 1.0)},
    "beta 1": {"weights": (1.0, 1.0, 1.0)},
    "twice the steps": (training, "steps_for", lambda rows, most: 4000),  # noqa: ARG005
    "width 256": {"hidden": 256},
    "width 256, 3,000 steps": {"hidden": 256, "steps": 3000},
    "numbers by range": (fits, "Explainer", range_coded),
    "prior as density": (training, "_refit", prior),
    "plain k-means": (training, "FLOOR", 0.0),
    "all the decoder's noise": (decoder, "NOISE", 1.0),
    "none of the decoder's noise": (decoder, "NOISE", 0.0),
    "categories alone": (fit, "Decoder", without_trees),
    "decoder overrules tree": (decoder, "MIN_PROBABILITY", 1e-6),
    "no bonus for the original category": (decoder, "ORIGINAL_BONUS", 0.0),
    "no frozen-category lines": (endpoints, "MIN_PERCENTILE", 200.0),
    "frozen from 1 %": (endpoints, "MIN_PERCENTILE", 1.0),
    "frozen from 5 %": (endpoints, "MIN_PERCENTILE", 5.0),
    "frozen for every instance": (endpoints, "MIN_PERCENTILE", 0.0),
    "categories count once": (fit, "EMPHASIS", 1.0),
    "categories count thrice": (fit, "EMPHASIS", 3.0),
    "all the posterior's noise": (training, "SPREAD", 1.0),
    "none of the posterior's noise": (training, "SPREAD", 0.0),
    "100 rows a Gaussian": (training, "PER_GAUSSIAN", 100),
}


def run(pair: str, seed: int, variant: str) -> list[tuple[Any, ...]]:
    """One job under one variant, in a process that runs nothing else."""
    torch.set_num_threads(1)
    change = VARIANTS[variant]
    if isinstance(change, dict):
        change = (fits, "DEFAULT", replace(training.DEFAULT, **change))
    setattr(*change)
    plan = Plan.read("benchmarks/paper.toml")
    job = plan.jobs(experiments=["e1", "extra"], pairs=[pair], recipes=["default"])[0]
    return [
        (pair, seed, variant, m.metric, float(m.value))
        for m in e1.measure(replace(job, seed=seed))
        if m.metric in METRICS and not m.label
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    pairs = ["heloc-RF", "wine-RF", "adult-NN", "compas-RF"]
    parser.add_argument("--pair", nargs="+", default=pairs)
    parser.add_argument("--seed", nargs="+", type=int, default=[11])
    parser.add_argument("--variant", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("-o", "--out", type=Path, default=Path("benchmarks/results/ablation.csv"))
    chosen = parser.parse_args()
    jobs = [(p, s, v) for v in chosen.variant for p in chosen.pair for s in chosen.seed]
    lines: list[tuple[Any, ...]] = []
    with ProcessPoolExecutor(chosen.workers, max_tasks_per_child=1) as pool:
        waiting = {pool.submit(run, *job): job for job in jobs}
        for done in as_completed(waiting):
            try:
                lines += done.result()
            except Exception as error:  # one job's failure must not cost the others
                print(waiting[done], repr(error), flush=True)
            table = pd.DataFrame(lines, columns=COLUMNS)
            table.round(5).to_csv(chosen.out, index=False)
    means = table.pivot_table(index=["pair", "variant"], columns="metric", values="value")
    print(means[[m for m in METRICS if m in means]].round(3).to_string())


if __name__ == "__main__":
    main()
