"""The paper's experiments, run by one command and written down as one table.

`benchmarks/paper.toml` says what is run, `plan` reads it, `subjects` makes the tables and
classifiers, `e1` measures, `store` runs jobs and keeps what they found, `summary` turns the table
into Markdown. Until there is a command line:

    python -m lapace.benchmark --experiment e1 --pair wine-RF --repeats 1
    python -m lapace.benchmark --render       # only the tables, from what has been run
"""

from __future__ import annotations

try:
    import pandas as pd  # noqa: F401  the tables of this room are pandas frames
except ModuleNotFoundError as error:
    raise ImportError("The benchmark needs pandas: pip install 'lapace[pandas]'.") from error

from lapace.benchmark.e1 import Measure, measure
from lapace.benchmark.plan import RECIPE_REVISION, Job, Limits, Pair, Plan, Protocol
from lapace.benchmark.store import Record, Store, run, tidy
from lapace.benchmark.summary import brief, into, markdown

__all__ = [
    "RECIPE_REVISION",
    "Job",
    "Limits",
    "Measure",
    "Pair",
    "Plan",
    "Protocol",
    "Record",
    "Store",
    "brief",
    "into",
    "markdown",
    "measure",
    "run",
    "tidy",
]
