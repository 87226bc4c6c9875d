"""What serving costs: `python -m benchmarks.serving --seconds 60`.

`lapace serve` serves an explainer of the `loans` forest, this process queries it for single
instances over many connections at once, and by turns makes the same explanations in a loop with the
library alone. Machines are shared and noisy, so the figures to look at are the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import torch

from lapace import Explainer, Search, datasets
from lapace.apps.loaders import save_classifier

LAST_FACT = 2  # lines that must hold however busy the machine is
ROUNDS = 2  # of load, with a loop of the library before each and after the last
ROWS = 1500  # of `loans`: a quick fit, some hundred applicants denied


class Line(NamedTuple):
    """One figure: what it is of, its value, what it should be, and whether it is that."""

    what: str
    value: str
    target: str = ""
    kept: bool | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of load")
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--workers", type=int, default=1, help="processes that serve together")
    parser.add_argument("--queue", type=int, default=64)
    parser.add_argument("--picks", default=",".join(Search().picks), help="computed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    explainer, instances = fitted(ROWS)
    lines = measure(arguments, explainer, instances)
    print_lines(lines)
    sys.exit(0 if all(line.kept is not False for line in lines[:LAST_FACT]) else 1)


@cache
def fitted(rows: int | None = None) -> tuple[Explainer, list[dict[str, Any]]]:
    """An explainer of the `loans` forest, and refused applicants as JSON has them."""
    loans = datasets.load("loans", rows=rows)
    model = loans.classifier("forest")
    refused = loans.test[model.predict(loans.test) == "denied"]
    instances = json.loads(refused.to_json(orient="records"))
    return Explainer(model, random_state=0).fit(loans.train), instances


def measure(arguments: Any, explainer: Explainer, instances: list[dict[str, Any]]) -> list[Line]:
    """Runs the load between loops of the library; what was measured."""
    share = min(10.0, arguments.seconds / 4)
    search = Search(picks=tuple(arguments.picks.split(",")))
    options = [f"--workers={arguments.workers}", f"--queue={arguments.queue}"]
    loop, total = Loop(explainer, instances, search), Loaded()
    explainer.explain(instances[:1], search=search)  # the first call loads what is loaded late
    with tempfile.TemporaryDirectory() as folder, serving(explainer, folder, options) as served:
        server, address = served
        before = resident(server.pid)
        for _ in range(ROUNDS):
            loop.run(share)
            spent = processor_seconds(server.pid)
            part = asyncio.run(load(address, instances, arguments, server.pid))
            total.add(part, processor_seconds(server.pid) - spent)
        loop.run(share)
        alive = server.poll() is None
    return [
        *facts(total, alive=alive),
        Line("connections", f"{arguments.connections}"),
        Line("workers", f"{arguments.workers}"),
        Line("seconds of load", f"{total.seconds:,.0f}"),
        Line("completed", f"{total.codes[200]:,}"),
        Line("refused for now (503)", f"{total.codes[503]:,}"),
        *speed(total, loop),
        *memory_lines(before, total.memory),
    ]


def facts(total: Loaded, *, alive: bool) -> list[Line]:
    """What must hold however busy the machine is."""
    failed = sum(n for code, n in total.codes.items() if code not in (200, 503))
    return [
        Line("failed but for 503", f"{failed:,}", "0", failed == 0),
        Line("server alive at the end", "yes" if alive else "no", "yes", alive),
    ]


def speed(total: Loaded, loop: Loop) -> list[Line]:
    """Rates and seconds, beside those of the library's own loop."""
    done = total.codes[200]
    rate, alone = done / total.seconds, loop.done / loop.seconds
    median, late = np.percentile(total.times, [50, 99]) if done else (np.nan, np.nan)
    ratio, spread = rate / alone, late / median
    cost, least = total.processor / max(1, done), loop.processor / loop.done
    return [
        Line("served, explanations a second", f"{rate:.2f}"),
        Line("library in a loop, explanations a second", f"{alone:.2f}"),
        Line("slowest and fastest of those loops", f"{min(loop.rates):.2f}, {max(loop.rates):.2f}"),
        Line("served / library", f"{ratio:.2f}", "0.9 or more", bool(ratio >= 0.9)),
        Line("processor seconds of an answer, served", f"{cost:.2f}"),
        Line("processor seconds of one, library in a loop", f"{least:.2f}"),
        Line("p50 of a response, ms", f"{1e3 * median:,.0f}"),
        Line("p99 of a response, ms", f"{1e3 * late:,.0f}"),
        Line("p99 / p50", f"{spread:.2f}", "3 or less", bool(spread <= 3)),
    ]


def memory_lines(before: float, memory: Sequence[float]) -> list[Line]:
    """Whether memory stays as it is."""
    half = len(memory) // 2
    growth = memory[-1] - memory[half]
    return [
        Line("memory before the load, MB", f"{before / 1e6:,.0f}"),
        Line("memory half way, MB", f"{memory[half] / 1e6:,.0f}"),
        Line("memory at the end, MB", f"{memory[-1] / 1e6:,.0f}"),
        Line("grown in the second half, MB", f"{growth / 1e6:,.1f}", "10 or less", growth <= 1e7),
    ]


@dataclass
class Loaded:
    """What came of the load so far.

    Attributes:
        codes: How many responses had each status.
        times: Seconds of each answer.
        seconds: In all.
        processor: Seconds of the server's processes.
        memory: Of the server, at some moments.
    """

    codes: Counter[int] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    seconds: float = 0.0
    processor: float = 0.0
    memory: list[float] = field(default_factory=list)

    def add(
        self, part: tuple[Counter[int], list[float], float, list[float]], processor: float
    ) -> None:
        """Counts what `load` returns."""
        codes, times, seconds, memory = part
        self.codes += codes
        self.times += times
        self.seconds += seconds
        self.memory += memory
        self.processor += processor


@dataclass
class Loop:
    """Explanations one after the other, without a server and without any JSON."""

    explainer: Explainer
    instances: list[dict[str, Any]]
    search: Search
    done: int = 0
    seconds: float = 0.0
    processor: float = 0.0
    rates: list[float] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        """Makes them for so many seconds."""
        start, spent, before = time.perf_counter(), time.process_time(), self.done
        while (took := time.perf_counter() - start) < seconds or self.done == before:
            one = self.instances[self.done % len(self.instances)]
            self.explainer.explain([one], search=self.search)
            self.done += 1
        self.seconds += took
        self.processor += time.process_time() - spent
        self.rates.append((self.done - before) / took)


@contextmanager
def serving(
    explainer: Explainer, folder: str, options: Sequence[str] = (), **more: Any
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The server as one starts it from a shell, and its address; its log is `folder/log`."""
    save_classifier(explainer.classifier, Path(folder, "loans.skops"))
    explainer.save(Path(folder, "loans.lapace"), classifier=Path(folder, "loans.skops"))
    command = [
        sys.executable,
        "-m",
        "lapace.apps.cli",
        "serve",
        f"{folder}/loans.lapace",
        "--port=0",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more.pop("env", {})}
    log = Path(folder, "log")
    with (
        log.open("wb") as written,
        subprocess.Popen([*command, *options], stderr=written, env=environment, **more) as server,
    ):
        try:
            yield server, _address(server, log)
        finally:
            server.terminate()


def _address(server: subprocess.Popen[bytes], log: Path) -> str:
    """What the server says it listens at, once it does."""
    while server.poll() is None:
        if found := re.search(r"http://[\w.:\[\]]+", log.read_text(encoding="utf-8")):
            return found[0]
        time.sleep(0.1)
    raise RuntimeError(f"The server did not start: {log.read_text(encoding='utf-8')}")


def print_lines(lines: Sequence[Line]) -> None:
    """A table for a terminal."""
    for line in lines:
        target = f"target {line.target}{'' if line.kept else ': MISSED'}" if line.target else ""
        print(f"{line.what:<50} {line.value:>16}   {target}".rstrip())


async def load(
    address: str, instances: list[dict[str, Any]], arguments: Any, pid: int
) -> tuple[Counter[int], list[float], float, list[float]]:
    """Every connection sends requests one after the other until the time of a round is over.

    Returns:
        Statuses, seconds of each answer, seconds in all, and the server's memory at twenty moments.
    """
    codes: Counter[int] = Counter()
    times: list[float] = []
    search = {"picks": arguments.picks.split(",")}
    bodies = [json.dumps({"instances": [p], "search": search}).encode() for p in instances]
    headers = {"Content-Type": "application/json"}
    limits = httpx.Limits(max_connections=arguments.connections)
    seconds = arguments.seconds / ROUNDS
    end = time.perf_counter() + seconds

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
            elif response.status_code == 503:
                await asyncio.sleep(float(response.headers["Retry-After"]))
            turn += arguments.connections

    memory: list[float] = []

    async def watch() -> None:
        for _ in range(20):
            await asyncio.sleep(seconds / 20)
            memory.append(resident(pid))

    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=120) as client:
        start = time.perf_counter()
        await asyncio.gather(watch(), *(one(client, k) for k in range(arguments.connections)))
        return codes, times, time.perf_counter() - start, memory


def resident(pid: int) -> float:
    """Bytes in memory of a process and those it started; NaN where that cannot be read."""
    status = Path(f"/proc/{pid}/statm")
    if not status.exists():
        return float("nan")
    own = int(status.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    started = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return own + sum(resident(int(child)) for child in started)


def processor_seconds(pid: int) -> float:
    """Seconds that a process and those it started have computed; NaN where that is unknown."""
    status = Path(f"/proc/{pid}/stat")
    if not status.exists():
        return float("nan")
    words = status.read_text(encoding="ascii").rpartition(")")[2].split()
    own = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    started = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return own + sum(processor_seconds(int(child)) for child in started)


if __name__ == "__main__":
    main()
