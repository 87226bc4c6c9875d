"""The paper's experiments, run by one command and written down as one table.

`benchmarks/paper.toml` says what is run, `plan` reads it, `subjects` makes the tables and
classifiers, `fits` the explainers, `e1` to `e6` measure, `store` keeps what jobs found, `running`
runs them, `summary`, `pages` and `page` turn the table into Markdown and one HTML page.

    python -m benchmarks --pair wine-RF --experiment e2
    python -m benchmarks --render       # only the tables, from what has been run

A job stands on its own: `jobs(plan)` lists them, `run_job(job, store)` runs one in any process and
keeps what it found in a folder that any number of processes may share.

    from concurrent.futures import ProcessPoolExecutor
    from functools import partial
    from pathlib import Path
    from benchmarks import Plan, Store, jobs, run_job

    plan, store = Plan.read("benchmarks/paper.toml"), Store(Path(".cache/benchmark"))
    with ProcessPoolExecutor(16) as pool:
        for line in pool.map(partial(run_job, store=store), jobs(plan, experiments=["e2"])):
            print(line)
"""

from __future__ import annotations

try:
    import pandas as pd  # noqa: F401  the tables of this room are pandas frames
except ModuleNotFoundError as error:
    raise ImportError("The benchmark needs pandas: pip install 'lapace[pandas]'.") from error

from benchmarks.plan import EXPERIMENTS, RECIPE_REVISION, Job, Limits, Pair, Plan, Protocol
from benchmarks.running import jobs, run, run_job
from benchmarks.store import Found, Measure, Record, Store, tidy

__all__ = [
    "EXPERIMENTS",
    "RECIPE_REVISION",
    "Found",
    "Job",
    "Limits",
    "Measure",
    "Pair",
    "Plan",
    "Protocol",
    "Record",
    "Store",
    "jobs",
    "main",
    "run",
    "run_job",
    "tidy",
]


def main(arguments: list[str] | None = None) -> int:
    """The command: `lapace bench` and `python -m benchmarks` call it.

    Args:
        arguments: What stands behind the command's name; by default the process's own.

    Returns:
        0 when all went well, 1 when a job failed, 2 for a mistake in what was asked.
    """
    from benchmarks.__main__ import main as command

    return command(arguments)
