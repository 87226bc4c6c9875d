"""What serving costs: `python -m benchmarks.serving --seconds 60`.

One process serves an explainer of the `loans` forest, this one queries it for single instances over
many connections at once, and right before and after makes the same explanations in a loop with the
library alone. Machines are shared and noisy, so the figure to look at is the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch

from lapace import Explainer, Search, datasets
from lapace.server import serve


def main() -> None:
    """Runs the load, and the loop it is compared with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load")
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--workers", type=int, default=4, help="questions answered at once")
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--detail", choices=["path", "picks"], default="path")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    explainer, instances = fitted()
    if arguments.serve:
        settings = {"workers": arguments.workers, "queue": arguments.queue}
        serve(explainer, port=0, ready=lambda address: print(address, flush=True), **settings)
        return
    report(arguments, explainer, instances)


def fitted() -> tuple[Explainer, list[dict[str, Any]]]:
    """An explainer of the `loans` forest, and refused applicants as JSON has them."""
    loans = datasets.load("loans")
    model = loans.classifier("forest")
    refused = loans.test[model.predict(loans.test) == "denied"]
    instances = json.loads(refused.to_json(orient="records"))
    return Explainer(model, random_state=0).fit(loans.train), instances


def report(arguments: Any, explainer: Explainer, instances: list[dict[str, Any]]) -> None:
    """The table."""
    share = min(10.0, arguments.seconds / 4)
    child = start_server(arguments)
    try:
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        loop = [library(explainer, instances, share, arguments.detail)]
        before = resident(child.pid)
        found = asyncio.run(load(address, instances, arguments))
        after = resident(child.pid)
        loop.append(library(explainer, instances, share, arguments.detail))
        alive = child.poll() is None
    finally:
        child.terminate()
        child.wait()
    alone = float(np.mean(loop))
    done = found["codes"][200]
    failed = sum(n for code, n in found["codes"].items() if code not in (200, 429))
    rate = done / found["seconds"]
    first, late = np.percentile(found["times"], [50, 99]) if done else (np.nan, np.nan)
    for name, value, target in (
        ("connections", f"{arguments.connections}", ""),
        ("completed", f"{done:,}", ""),
        ("told to come back (429)", f"{found['codes'][429]:,}", ""),
        ("failed in any other way", f"{failed:,}", "0"),
        ("served, explanations a second", f"{rate:.2f}", ""),
        ("library in a loop, explanations a second", f"{alone:.2f}", ""),
        ("  before and after the load", " and ".join(f"{r:.2f}" for r in loop), ""),
        ("served / library", f"{rate / alone:.2f}", "0.5 or more"),
        ("p50 of an answer, ms", f"{1e3 * first:,.0f}", ""),
        ("p99 of an answer, ms", f"{1e3 * late:,.0f}", ""),
        ("memory of the server at the start, MB", f"{before / 1e6:,.0f}", ""),
        ("memory of the server at the end, MB", f"{after / 1e6:,.0f}", ""),
        ("server alive at the end", "yes" if alive else "no", "yes"),
    ):
        print(f"{name:<44}{value:>16}   {'target ' + target if target else ''}".rstrip())
    if failed or not alive:
        sys.exit(1)


def start_server(arguments: Any) -> subprocess.Popen[str]:
    """The server, in a process of its own."""
    options = ["--workers", str(arguments.workers), "--queue", str(arguments.queue)]
    return subprocess.Popen(
        [sys.executable, __file__, "--serve", *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def library(
    explainer: Explainer, instances: list[dict[str, Any]], seconds: float, detail: Any
) -> float:
    """Explanations a second, one after the other, without any JSON."""
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        explainer.explain([instances[done % len(instances)]], search=Search(detail=detail))
        done += 1
    return done / (time.perf_counter() - start)


async def load(address: str, instances: list[dict[str, Any]], arguments: Any) -> dict[str, Any]:
    """Everyone asks, waits for the answer, and asks again, until the time is over."""
    codes: Counter[int] = Counter()
    times: list[float] = []
    limits = httpx.Limits(max_connections=arguments.connections)
    bodies = [
        json.dumps({"instances": [p], "search": {"detail": arguments.detail}}).encode()
        for p in instances
    ]
    end = time.perf_counter() + arguments.seconds

    async def one(client: httpx.AsyncClient, turn: int) -> None:
        while time.perf_counter() < end:
            start = time.perf_counter()
            try:
                answer = await client.post(
                    "/v2/explain",
                    content=bodies[turn % len(bodies)],
                    headers={"Content-Type": "application/json"},
                )
            except httpx.HTTPError:
                codes[0] += 1
                continue
            codes[answer.status_code] += 1
            if answer.status_code == 200:
                times.append(time.perf_counter() - start)
            elif answer.status_code == 429:
                await asyncio.sleep(float(answer.headers["Retry-After"]))
            turn += arguments.connections

    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=120) as client:
        start = time.perf_counter()
        await asyncio.gather(*(one(client, k) for k in range(arguments.connections)))
        seconds = time.perf_counter() - start
    return {"codes": codes, "times": times, "seconds": seconds}


def resident(pid: int) -> float:
    """Bytes of a process that are in memory; NaN where that cannot be read."""
    status = Path(f"/proc/{pid}/statm")
    if not status.exists():
        return float("nan")
    pages = int(status.read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
