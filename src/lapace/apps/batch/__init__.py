"""Batches of any size: partitioned Parquet explained part by part.

`run` explains every row of Parquet files and writes a part of outcomes for each of their row
groups; the command `lapace batch` calls it. With Ray (extra `ray`) parts are made by a pool of
actors, on this machine or a cluster; without it, one after another. A run that was stopped is
resumed by the same call: finished parts are kept, and the output is that of an undisturbed run.
"""

from __future__ import annotations

from lapace.apps.batch.engines import Engine
from lapace.apps.batch.outcomes import Request
from lapace.apps.batch.running import Summary, run

__all__ = ["Engine", "Request", "Summary", "run"]
