"""What serving costs: `python -m benchmarks.serving --seconds 60`.

`lapace serve` serves an explainer of the `loans` forest, this process queries it for single
instances over many connections at once, and right before and after makes the same explanations in a
loop with the library alone. Machines are shared and noisy, so the figure to look at is the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch

from lapace import Explainer, Search, datasets
from lapace.classifiers import save_classifier


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load")
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--workers", type=int, default=1, help="processes that serve together")
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--detail", choices=["path", "picks"], default="path")
    parser.add_argument("--picks", default=",".join(Search().picks), help="computed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    explainer, instances = fitted()
    report(arguments, explainer, instances)


def fitted() -> tuple[Explainer, list[dict[str, Any]]]:
    """An explainer of the `loans` forest, and refused applicants as JSON has them."""
    loans = datasets.load("loans")
    model = loans.classifier("forest")
    refused = loans.test[model.predict(loans.test) == "denied"]
    instances = json.loads(refused.to_json(orient="records"))
    return Explainer(model, random_state=0).fit(loans.train), instances


def report(arguments: Any, explainer: Explainer, instances: list[dict[str, Any]]) -> None:
    """Runs the load between two loops of the library, and prints the table."""
    share = min(10.0, arguments.seconds / 4)
    search = Search(detail=arguments.detail, picks=tuple(arguments.picks.split(",")))
    with tempfile.TemporaryDirectory() as folder, serving(explainer, folder, arguments) as served:
        server, address = served
        loop = [library(explainer, instances, share, search)]
        before = resident(server.pid)
        codes, times, seconds = asyncio.run(load(address, instances, arguments))
        after = resident(server.pid)
        loop.append(library(explainer, instances, share, search))
        alive = server.poll() is None
    done, alone = codes[200], float(np.mean(loop))
    failed = sum(n for code, n in codes.items() if code not in (200, 429))
    rate = done / seconds
    median, late = np.percentile(times, [50, 99]) if done else (np.nan, np.nan)
    for name, value, target in (
        ("connections", f"{arguments.connections}", ""),
        ("workers", f"{arguments.workers}", ""),
        ("completed", f"{done:,}", ""),
        ("refused for now (429)", f"{codes[429]:,}", ""),
        ("failed otherwise", f"{failed:,}", "0"),
        ("served, explanations a second", f"{rate:.2f}", ""),
        ("library in a loop, explanations a second", f"{alone:.2f}", ""),
        ("  before and after the load", " and ".join(f"{r:.2f}" for r in loop), ""),
        ("served / library", f"{rate / alone:.2f}", "0.9 or more for each worker that has a core"),
        ("p50 of a response, ms", f"{1e3 * median:,.0f}", ""),
        ("p99 of a response, ms", f"{1e3 * late:,.0f}", ""),
        ("p99 / p50", f"{late / median:.2f}", "3 or less"),
        ("memory of the server at the start, MB", f"{before / 1e6:,.0f}", ""),
        ("memory of the server at the end, MB", f"{after / 1e6:,.0f}", ""),
        ("server alive at the end", "yes" if alive else "no", "yes"),
    ):
        print(f"{name:<44}{value:>16}   {'target ' + target if target else ''}".rstrip())
    if failed or not alive:
        sys.exit(1)


@contextmanager
def serving(
    explainer: Explainer, folder: str, arguments: Any
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server as one starts it from a shell, and its address."""
    save_classifier(explainer.classifier, Path(folder, "loans.skops"))
    explainer.save(Path(folder, "loans.lapace"), classifier=Path(folder, "loans.skops"))
    options = ["--port=0", f"--workers={arguments.workers}", f"--queue={arguments.queue}"]
    command = [sys.executable, "-m", "lapace.cli", "serve", f"{folder}/loans.lapace", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stderr is not None
            said = iter(server.stderr.readline, "")
            yield server, next(line.split()[2].rstrip(";") for line in said if "http:" in line)
        finally:
            server.terminate()


def library(
    explainer: Explainer, instances: list[dict[str, Any]], seconds: float, search: Search
) -> float:
    """Explanations a second, one after the other, without any JSON."""
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        explainer.explain([instances[done % len(instances)]], search=search)
        done += 1
    return done / (time.perf_counter() - start)


async def load(
    address: str, instances: list[dict[str, Any]], arguments: Any
) -> tuple[Counter[int], list[float], float]:
    """Every connection sends requests one after the other until the time is over."""
    codes: Counter[int] = Counter()
    times: list[float] = []
    search = {"detail": arguments.detail, "picks": arguments.picks.split(",")}
    bodies = [json.dumps({"instances": [p], "search": search}).encode() for p in instances]
    headers = {"Content-Type": "application/json"}
    limits = httpx.Limits(max_connections=arguments.connections)
    end = time.perf_counter() + arguments.seconds

    async def one(client: httpx.AsyncClient, turn: int) -> None:
        while (start := time.perf_counter()) < end:
            body = bodies[turn % len(bodies)]
            try:
                response = await client.post("/v2/explain", content=body, headers=headers)
            except httpx.HTTPError:
                codes[0] += 1
                continue
            codes[response.status_code] += 1
            if response.status_code == 200:
                times.append(time.perf_counter() - start)
            elif response.status_code == 429:
                await asyncio.sleep(float(response.headers["Retry-After"]))
            turn += arguments.connections

    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=120) as client:
        start = time.perf_counter()
        await asyncio.gather(*(one(client, k) for k in range(arguments.connections)))
        return codes, times, time.perf_counter() - start


def resident(pid: int) -> float:
    """Bytes in memory of a process and those it started; NaN where that cannot be read."""
    status = Path(f"/proc/{pid}/statm")
    if not status.exists():
        return float("nan")
    own = int(status.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    started = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return own + sum(resident(int(child)) for child in started)


if __name__ == "__main__":
    main()
