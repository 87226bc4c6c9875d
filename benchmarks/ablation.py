"""What each part of the default recipe is worth: `python -m benchmarks.ablation`.

Every variant changes one thing and runs E1's measures on a few pairs and seeds, in processes of
their own. Writes `benchmarks/results/ablation.csv` and prints a table of means.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pandas as pd
import torch

import benchmarks.e1 as e1
from benchmarks import Plan, fits
from lapace import training
from lapace.explainer import ends, fitting
from lapace.model import Mixture
from lapace.paths import decoder
from lapace.training import Recipe

METRICS = (
    "gap_raw", "gap_verified", "agreement", "ks", "centroids_before", "least_used",
    "prototype_lof_most", "diversity", "first_lof", "nnce_lof", "nearest_lof", "middle_lof",
    "nearest_distance", "nnce_distance", "recrossing_before", "fit_processor_seconds",
)  # fmt: skip


def recipe(**changes: object) -> Callable[[], None]:
    """The default recipe with something changed."""

    def change() -> None:
        fits.recipe_of = lambda job: (Recipe(**changes), None)  # type: ignore[arg-type]  # noqa: ARG005

    return change


def constant(module: object, name: str, value: object) -> Callable[[], None]:
    """A constant of a room, changed."""
    return lambda: setattr(module, name, value)


def prior() -> None:
    """The density stays the prior's diagonal Gaussians, as in the paper."""

    def kept(model, x, y, c, members, seed):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001
        found = model.p_z()
        return Mixture.of_prior(type(found)(*(t.cpu() for t in found)), members)

    training._refit = kept


def no_trees() -> None:
    """Every category chosen on its own."""
    fitting._trees = lambda *_: ()


VARIANTS: dict[str, Callable[[], None]] = {
    "default": lambda: None,
    "beta 0.15": recipe(weights=(1.0, 0.15, 1.0)),
    "beta 0.6": recipe(weights=(1.0, 0.6, 1.0)),
    "beta 1": recipe(weights=(1.0, 1.0, 1.0)),
    "twice the steps": constant(training, "steps_for", lambda rows, most: 4000),  # noqa: ARG005
    "width 256": recipe(hidden=256),
    "width 256, 3,000 steps": recipe(hidden=256, steps=3000),
    "numbers by range": constant(fitting, "_coding", lambda schema, _: fitting.ranged(schema)),
    "prior as density": prior,
    "plain k-means": constant(training, "FLOOR", 0.0),
    "all the decoder's noise": constant(decoder, "NOISE", 1.0),
    "none of the decoder's noise": constant(decoder, "NOISE", 0.0),
    "categories alone": no_trees,
    "decoder overrules tree": constant(decoder, "LEAST", 1e-6),
    "no loyalty": constant(decoder, "LOYALTY", 0.0),
    "no twins": constant(ends, "GATE", 2.0),
    "gate 1 %": constant(ends, "GATE", 0.01),
    "gate 5 %": constant(ends, "GATE", 0.05),
    "no gate": constant(ends, "GATE", 0.0),
    "categories count once": constant(fitting, "EMPHASIS", 1.0),
    "categories count thrice": constant(fitting, "EMPHASIS", 3.0),
    "all the posterior's noise": constant(training, "SPREAD", 1.0),
    "none of the posterior's noise": constant(training, "SPREAD", 0.0),
    "100 rows a Gaussian": constant(training, "PER_GAUSSIAN", 100),
}


def run(pair: str, seed: int, variant: str) -> list[tuple[str, int, str, str, float]]:
    """One job under one variant."""
    torch.set_num_threads(1)
    VARIANTS[variant]()
    plan = Plan.read(Path("benchmarks/paper.toml"), quick=False)
    jobs = plan.jobs(experiments=["e1", "extra"], pairs=[pair], recipes=("default",), repeats=1)
    found = e1.measure(replace(jobs[0], seed=seed))
    return [
        (pair, seed, variant, m.metric, float(m.value))
        for m in found
        if m.metric in METRICS and not m.label
    ]


def main() -> None:
    """Runs all jobs in a pool and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pair", nargs="+", default=["heloc-RF", "wine-RF", "adult-NN", "compas-RF"]
    )
    parser.add_argument("--seed", nargs="+", type=int, default=[11])
    parser.add_argument("--variant", nargs="+", default=list(VARIANTS))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ablation.csv"))
    chosen = parser.parse_args()
    jobs = [(p, s, v) for v in chosen.variant for p in chosen.pair for s in chosen.seed]
    lines: list[tuple[str, int, str, str, float]] = []
    table = pd.DataFrame(columns=["pair", "seed", "variant", "metric", "value"])
    for lines_of_one in _all(jobs, chosen.workers):
        lines.extend(lines_of_one)
        table = pd.DataFrame(lines, columns=["pair", "seed", "variant", "metric", "value"])
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        table.round(5).to_csv(chosen.out, index=False)
    means = table.pivot_table(index=["pair", "variant"], columns="metric", values="value")
    print(means[[m for m in METRICS if m in means]].round(3).to_string())


def _all(
    jobs: list[tuple[str, int, str]], workers: int
) -> Iterator[list[tuple[str, int, str, str, float]]]:
    with ProcessPoolExecutor(workers, max_tasks_per_child=1) as pool:
        waiting = {pool.submit(run, *job): job for job in jobs}
        for done in as_completed(waiting):
            try:
                yield done.result()
            except Exception as error:  # one job's trouble must not cost the others
                print(waiting[done], repr(error), flush=True)


if __name__ == "__main__":
    main()
