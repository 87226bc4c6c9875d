"""How `lapace batch` scales: `python -m benchmarks.batch [--minutes 8] [--many 4000000]`.

Made-up loans are explained by `explain` in a loop, by the plain loop of `batch`, and by Ray with
one and two workers, as many rows as fit the time. Machines are shared and noisy, so rates per core
are rows per processor second, compared within one run; elapsed times are shown beside them.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lapace import Explainer, Search, datasets
from lapace.apps.batch import Engine, Request
from lapace.apps.batch.engines import map_parts
from lapace.apps.batch.files import Part, Place, find_inputs, read_footers
from lapace.apps.batch.outcomes import make_layout
from lapace.apps.batch.running import content_of
from lapace.apps.batch.worker import PartWorker, one_thread

GROUP = 100  # rows of a row group
FILE = 200_000  # rows made
LARGE_GROUP = 10_000  # of rows that need no search
PROBE = 200  # rows of the first estimate
MODEL = "mlp"
REQUEST = Request(target="approved", search=Search(picks=("nearest",)))
SHARES = (0.2, 0.2, 0.3, 0.3)  # of the time: explain, loop, one worker, two workers


class Measured(NamedTuple):
    """One way to explain the rows.

    Attributes:
        name: Which.
        rows: How many.
        elapsed: Seconds.
        cores: Processor seconds of what explains.
        memory: Bytes held after each part.
    """

    name: str
    rows: int
    elapsed: float
    cores: float
    memory: list[int]


def write_rows(folder: Path, rows: Any, group: int = GROUP) -> Path:
    folder.mkdir()
    table = pa.Table.from_pandas(rows, preserve_index=False)
    table = table.append_column("id", pa.array(np.arange(len(table))))
    pq.write_table(table, folder / "loans.parquet", row_group_size=group)
    return folder


def explain_in_a_loop(explainer: Explainer, rows: Any) -> Measured:
    """What `batch` is compared with: the same chunks, in this process, nothing written."""
    search, start, cores = REQUEST.search, time.perf_counter(), time.process_time()
    with one_thread():
        for begin in range(0, len(rows), GROUP):
            chunk = rows.iloc[begin : begin + GROUP]
            found = explainer.explain(chunk, target=REQUEST.target, search=search)
            found.nearest()
    elapsed, used = time.perf_counter() - start, time.process_time() - cores
    return Measured("`explain` in a loop", len(rows), elapsed, used, [])


class MeasuredWorker(NamedTuple):
    """A worker that also returns its processor seconds and the memory of its process."""

    worker: PartWorker

    def __call__(self, part: Part) -> dict[str, Any]:
        """Makes a part."""
        start = time.process_time()
        made = self.worker(part)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        memory = pages * os.sysconf("SC_PAGE_SIZE")
        return {**made, "core_seconds": time.process_time() - start, "memory": memory}


def explain_parts(
    name: str, explainer: Explainer, source: Path, out: Path, engine: Engine
) -> Measured:
    """The parts of `batch`, each with its seconds and memory; timed from the first one's end."""
    files = read_footers(find_inputs([source], Place.of(out)))
    layout = make_layout(REQUEST, explainer, dict(files[0].types or {}))
    out.mkdir()
    place, classifier = Place.of(out), explainer.classifier
    content = content_of(explainer)
    worker = PartWorker(content, classifier, "cpu", layout, place, "measured", 0, 0.0)
    parts = [part for file in files for part in file.parts]
    rows, cores, memory, begin, first = 0, 0.0, [], 0.0, 0
    for made in map_parts(engine, MeasuredWorker(worker), parts):
        rows += made["rows"]
        cores += made["core_seconds"]
        memory.append(made["memory"])
        if not begin:
            begin, first = time.perf_counter(), made["rows"]
    return Measured(
        name, rows, (time.perf_counter() - begin) * rows / (rows - first), cores, memory
    )


def measure_many(explainer: Explainer, generated: Any, count: int) -> str:
    """Rows that have the target already: all of the engine's work, and no search."""
    labels = explainer.classifier.predict(generated)
    rows = generated[np.asarray(labels) == REQUEST.target].head(FILE)
    with tempfile.TemporaryDirectory() as folder:
        source = write_rows(Path(folder, "in"), rows, LARGE_GROUP)
        for k in range(1, max(1, count // len(rows))):
            shutil.copy(source / "loans.parquet", source / f"loans-{k}.parquet")
        engine = Engine(workers=2, ray=True)
        found = explain_parts("", explainer, source, Path(folder, "out"), engine)
    early = found.memory[len(found.memory) // 4]
    return (
        f"{found.rows:,} rows that have the target already, which need no search, in row groups of "
        f"{LARGE_GROUP:,} with 2 workers: {found.rows / found.cores:,.0f} rows per core second, "
        f"{found.rows / found.elapsed:,.0f} a second; a worker held {early / 1e6:.0f} MB after a "
        f"quarter of the parts, {found.memory[-1] / 1e6:.0f} MB after the last, and "
        f"{max(found.memory) / 1e6:.0f} MB at most."
    )


def lines(found: list[Measured]) -> list[str]:
    """The table, each rate beside that of `explain` in a loop."""
    base = found[0].rows / found[0].cores
    names = (
        "run", "rows", "rows per core second", "against `explain`", "elapsed s", "rows per s",
        "MB early", "MB at the end",
    )  # fmt: skip
    table = [f"| {' | '.join(names)} |", f"| --- |{' ---: |' * (len(names) - 1)}"]
    for one in found:
        rate = one.rows / one.cores
        memory = [one.memory[len(one.memory) // 4], one.memory[-1]] if one.memory else []
        shown = [f"{value / 1e6:.0f}" for value in memory] or ["", ""]
        table.append(
            f"| {one.name} | {one.rows:,} | {rate:.2f} | {rate / base:.2f} | {one.elapsed:.0f} | "
            f"{one.rows / one.elapsed:.2f} | {shown[0]} | {shown[1]} |"
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.batch", description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument(
        "--many", type=int, default=0, help="instead, so many rows that have the target already"
    )
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    loans = datasets.load("loans", rows=1250)
    classifier = loans.classifier(MODEL)
    explainer = Explainer(classifier, rules=loans.rules, device="cpu").fit(loans.train)
    generated = datasets.load("loans", rows=FILE).train.reset_index(drop=True)
    if arguments.many:
        text = measure_many(explainer, generated, arguments.many)
        print(text)
        (arguments.output / "batch-many.md").write_text(text + "\n", encoding="utf-8")
        return
    probe = explain_in_a_loop(explainer, generated.head(PROBE))
    seconds = 60 * arguments.minutes * min(SHARES)
    count = max(12 * GROUP, int(seconds * probe.rows / probe.elapsed / GROUP) * GROUP)
    print(f"{count:,} rows each, {probe.rows / probe.cores:.1f} a core second to begin with")
    found = [explain_in_a_loop(explainer, generated.head(count))]
    print(found[-1][:4], flush=True)
    with tempfile.TemporaryDirectory() as folder:
        source = write_rows(Path(folder, "in"), generated.head(count))
        for name, engine in (
            ("`batch`, no Ray", Engine(ray=False)),
            ("`batch`, Ray, 1 worker", Engine(workers=1, ray=True)),
            ("`batch`, Ray, 2 workers", Engine(workers=2, ray=True)),
        ):
            out = Path(folder, f"out{len(found)}")
            found.append(explain_parts(name, explainer, source, out, engine))
            print(found[-1][:4], flush=True)
        outputs = [sorted(Path(folder, f"out{k}").glob("*.parquet")) for k in (1, 2, 3)]
        same = all(
            a.read_bytes() == b.read_bytes() == c.read_bytes()
            for a, b, c in zip(*outputs, strict=True)
        )
    how = (
        f"Made by `python -m benchmarks.batch --minutes {arguments.minutes:g}` on "
        f"{len(os.sched_getaffinity(0))} cores that were shared: {count:,} made-up loans of "
        f"{len(generated.columns)} features in row groups of {GROUP}, the classifier {MODEL}, "
        f"the pick {REQUEST.search.picks[0]}. Elapsed time is from the first part's end on; memory "
        "is that of a worker after a quarter of the parts and after the last. The three runs wrote "
        f"the same bytes: {'yes' if same else 'NO'}."
    )
    text = "\n".join(["# `lapace batch`", "", how, "", *lines(found), ""])
    print(text)
    (arguments.output / "batch.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
