"""What serving and batches cost beside the library in a loop: `python -m benchmarks.operations`.

    python -m benchmarks.operations serve --seconds 60      # `lapace serve` under load
    python -m benchmarks.operations batch --rows 1200       # `lapace batch`, with and without Ray
    python -m benchmarks.operations many --rows 4000000     # rows that need no search

Loans that were made up are explained. Machines are shared and noisy, so the figures to look at are
the ratios: everything is compared with `explain` in a loop within the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import grid
from lapace import Explainer, Search, datasets
from lapace.apps.batch import Engine, Request, run
from lapace.apps.loaders import save_classifier

RESULTS = Path("benchmarks/results")
REQUEST = Request(target="approved", search=Search(picks=("nearest",)))
GROUP, LARGE_GROUP = 100, 10_000  # rows of a row group; of rows that need no search
FILE = 200_000  # rows of a file, at most
ROUNDS = 2  # of load, with a loop of the library before each and after the last


def made(folder: Path, kind: Any, rows: int) -> Explainer:
    """Fits an explainer of loans, and saves it with its classifier in a folder."""
    loans = datasets.load("loans", rows=rows)
    model = loans.classifier(kind)
    explainer = Explainer(model, rules=loans.rules, device="cpu", random_state=0).fit(loans.train)
    save_classifier(model, folder / "loans.skops")
    explainer.save(folder / "loans.lapace", classifier=folder / "loans.skops")
    return explainer


# ------------------------------------------------------------------------------------------------
# Serving


@contextmanager
def serving(folder: Path, options: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Starts the server as from a shell; yields its process id and its address."""
    command = [sys.executable, "-m", "lapace.apps.cli", "serve", f"{folder}/loans.lapace"]
    log = folder / "log"
    with (
        log.open("wb") as written,
        subprocess.Popen([*command, "--port=0", *options], stderr=written) as server,
    ):
        try:
            while not (address := re.search(r"http://[\w.:\[\]]+", log.read_text())):
                if server.poll() is not None:
                    raise RuntimeError(f"The server did not start: {log.read_text()}")
                time.sleep(0.1)
            yield server.pid, address[0]
        finally:
            server.terminate()


async def load(
    address: str, bodies: Sequence[bytes], connections: int, seconds: float
) -> tuple[Counter[int], list[float]]:
    """Sends requests over many connections for a time; returns statuses and response times."""
    codes: Counter[int] = Counter()
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def one(client: httpx.AsyncClient, turn: int) -> None:
        while (start := time.perf_counter()) < end:
            response = await client.post("/v3/explain", content=bodies[turn % len(bodies)])
            codes[response.status_code] += 1
            if response.status_code == 200:
                times.append(time.perf_counter() - start)
            elif response.status_code == 503:
                await asyncio.sleep(float(response.headers["Retry-After"]))
            turn += connections

    limits, headers = (
        httpx.Limits(max_connections=connections),
        {"Content-Type": "application/json"},
    )
    async with httpx.AsyncClient(
        base_url=address, limits=limits, headers=headers, timeout=120
    ) as client:
        await asyncio.gather(*(one(client, k) for k in range(connections)))
    return codes, times


def resident(pid: int) -> float:
    """Returns the bytes in memory of a process and those it started."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(resident(int(child)) for child in children)


def in_a_loop(explainer: Explainer, rows: Any, search: Search, group: int, seconds: float) -> float:
    """Explains rows by the library alone for a time; returns rows a second."""
    start, done = time.perf_counter(), 0
    while (took := time.perf_counter() - start) < seconds or not done:
        chunk = rows.iloc[done % len(rows) :][:group]
        explainer.explain(chunk, target=REQUEST.target, search=search)
        done += len(chunk)
    return done / took


def serve(chosen: argparse.Namespace) -> str:
    """Measures `lapace serve` under load between loops of the library."""
    search, rates, memory = Search(), [], []
    codes: Counter[int] = Counter()
    times: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        explainer = made(folder, "forest", 1500)
        loans = datasets.load("loans", rows=1500).test
        denied = loans[explainer.classifier.predict(loans) == "denied"]
        records = json.loads(denied.to_json(orient="records"))
        bodies = [json.dumps({"instances": [record]}).encode() for record in records]
        with serving(folder, [f"--workers={chosen.workers}"]) as (pid, address):
            for _ in range(ROUNDS):
                rates.append(in_a_loop(explainer, denied, search, 1, chosen.seconds / 4))
                seconds = chosen.seconds / ROUNDS
                part = asyncio.run(load(address, bodies, chosen.connections, seconds))
                codes, times = codes + part[0], times + part[1]
                memory.append(resident(pid))
            rates.append(in_a_loop(explainer, denied, search, 1, chosen.seconds / 4))
    middle, late = np.percentile(times, [50, 99])
    grown = (memory[-1] - memory[0]) / 1e6
    served, alone = len(times) / chosen.seconds, float(np.mean(rates))
    lines = [
        ("failed but for 503", f"{sum(n for c, n in codes.items() if c not in (200, 503))}", "0"),
        ("refused for now (503)", f"{codes[503]:,}", ""),
        ("explanations a second, served", f"{served:.2f}", ""),
        ("the same by the library in a loop", f"{alone:.2f}", ""),
        ("served / library", f"{served / alone:.2f}", "0.9 or more"),
        ("p50, p99 of a response, ms", f"{1e3 * middle:,.0f}, {1e3 * late:,.0f}", ""),
        ("p99 / p50", f"{late / middle:.2f}", "3 or less"),
        ("memory grown in the second half, MB", f"{grown:.1f}", "10 or less"),
    ]
    return grid(("what", "measured", "target"), lines)


# ------------------------------------------------------------------------------------------------
# Batches


def write_rows(folder: Path, rows: Any, count: int, group: int) -> Path:
    """Writes so many rows as Parquet files."""
    folder.mkdir()
    table = pa.Table.from_pandas(rows.head(count), preserve_index=False)
    table = table.append_column("id", pa.array(np.arange(len(table))))
    pq.write_table(table, folder / "loans.parquet", row_group_size=group)
    for k in range(1, count // len(table)):
        shutil.copy(folder / "loans.parquet", folder / f"loans-{k}.parquet")
    return folder


def batch(chosen: argparse.Namespace) -> str:
    """Compares `lapace batch`, with and without Ray, with the library in a loop."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        explainer = made(folder, "mlp", 1250)
        rows = datasets.load("loans", rows=max(chosen.rows, 1000)).train.reset_index(drop=True)
        source = write_rows(folder / "in", rows, chosen.rows, GROUP)
        base = in_a_loop(explainer, rows.head(chosen.rows), REQUEST.search, GROUP, chosen.seconds)
        lines, written = [("`explain` in a loop", f"{base:.2f}", "1.00")], []
        for k, (how, engine) in enumerate((
            ("`batch`, no Ray", Engine(workers=1)),
            ("`batch`, Ray, 1 worker", Engine(workers=1, address="local")),
            ("`batch`, Ray, 2 workers", Engine(workers=2)),
        )):  # fmt: skip
            out = folder / f"out{k}"
            found = run(explainer, source, out, REQUEST, engine=engine)
            lines.append((how, f"{found.rate:.2f}", f"{found.rate / base:.2f}"))
            written.append([path.read_bytes() for path in sorted(out.glob("*.parquet"))])
    same = "yes" if all(own == written[0] for own in written) else "NO"
    how = (
        f"Made by `python -m benchmarks.operations batch --rows {chosen.rows}` on "
        f"{len(os.sched_getaffinity(0))} cores that were shared: made-up loans in row groups of "
        f"{GROUP}, a small network, the pick nearest. The three runs wrote the same bytes: {same}."
    )
    head = ("run", "rows per s, Ray's start included", "against `explain`")
    return "\n\n".join(("# `lapace batch`", how, grid(head, lines)))


def many(chosen: argparse.Namespace) -> str:
    """Explains rows that have the target already: all of the engine's work, and no search."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        explainer = made(folder, "mlp", 1250)
        rows = datasets.load("loans", rows=FILE).train
        rows = rows[np.asarray(explainer.classifier.predict(rows)) == REQUEST.target]
        source = write_rows(folder / "in", rows, chosen.rows, LARGE_GROUP)
        engine = Engine(workers=2)
        found = run(explainer, source, folder / "out", REQUEST, engine=engine)
    return (
        f"{found.rows:,} rows that have the target already, which need no search, in row groups of "
        f"{LARGE_GROUP:,} with 2 workers: {found.rate:,.0f} a second."
    )


PARTS = {"serve": (serve, ""), "batch": (batch, "batch.md"), "many": (many, "batch-many.md")}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.operations", description=__doc__)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--rows", type=int, default=1200, help="of a batch")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load, or of the loop")
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--workers", type=int, default=1, help="processes that serve together")
    parser.add_argument("-o", "--out", type=Path, default=RESULTS)
    chosen = parser.parse_args(arguments)
    measure, file = PARTS[chosen.part]
    text = measure(chosen)
    print(text)
    if file:
        (chosen.out / file).write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
