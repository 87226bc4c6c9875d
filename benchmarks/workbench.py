"""What the workbench costs: `python -m benchmarks.workbench --visitors 20 --seconds 60`.

First, in this process, what the page adds to the library's own time when a limit is moved: both
without the time that the classifier takes. Then one process serves the page, and visitors, each
with a socket of its own as a browser has, choose a case and move limits for a minute: whether any
of them sees another's data, errors, how long answers take, and how the server's memory grows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from ast import literal_eval
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import numpy as np
import socketio
import torch

from lapace import Explainer, datasets, workbench
from lapace.explainer import Search
from lapace.result import record
from lapace.workbench.columns import form_values
from lapace.workbench.session import SEARCH, Session, Shared

NAMES = ("income", "savings", "amount", "months", "debt_ratio")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visitors", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0, help="of moving limits")
    parser.add_argument("--rows", type=int, default=2000, help="of loans to fit on")
    parser.add_argument("--moves", type=int, default=12, help="limits moved for the first part")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    explainer, instances = fitted(arguments.rows)
    if arguments.serve:
        workbench.serve(
            explainer,
            instances,
            target="approved",
            port=0,
            queue=200,
            timeout=120.0,
            ready=lambda address: print(address, flush=True),
        )
        return
    print_overhead(explainer, instances, arguments.moves)
    print_visitors(arguments)


def fitted(rows: int) -> tuple[Explainer, Any]:
    """An explainer of `loans`, and refused applications."""
    loans = datasets.load("loans", rows=rows)
    model = loans.classifier("boosting")
    refused = loans.test[model.predict(loans.test) == "denied"]
    explainer = Explainer(
        model, n_prototypes=3, rules=loans.rules, schema=loans.schema, device="cpu"
    )
    return explainer.fit(loans.train), refused


# ------------------------------------------------------------------------------------------------
# What the page adds


def print_overhead(explainer: Explainer, instances: Any, moves: int) -> None:
    shared = Shared(explainer, instances, "approved")
    own, page = [], []
    for k in range(moves):
        cells = shared.cells[k % len(shared.cells)]
        limits = moved_limits(k)
        session = Session(shared)
        start = time.perf_counter()
        session.answer({"kind": "explain", "row": form_values(shared.schema, cells), **limits})
        wall, (_, explanation) = time.perf_counter() - start, session._last or ("", None)
        assert explanation is not None
        page.append(wall - explanation.seconds["classifier"])
        start = time.perf_counter()
        again = explainer.explain(
            [record(shared.schema, cells)],
            target="approved",
            constraints=[str(c) for c in explanation.constraints[len(explainer.fitted_.rules) :]],
            search=Search(**vars(SEARCH)),
        )
        own.append(time.perf_counter() - start - again.seconds["classifier"])
    ratio = float(np.median(np.array(page) / np.array(own)))
    print("| after a limit was moved, outside the classifier | median, s |")
    print("| --- | --- |")
    print(f"| the library alone | {np.median(own):.3f} |")
    print(f"| the page's answer | {np.median(page):.3f} |")
    print(f"| ratio, of {moves} moves (wanted: at most 2) | {ratio:.2f} |\n", flush=True)


def moved_limits(k: int) -> dict[str, Any]:
    """The k-th move of a visitor: one column is kept, another gets harder."""
    features = {
        NAMES[k % len(NAMES)]: {"mode": "keep"},
        NAMES[(k + 2) % len(NAMES)]: {"mode": "free", "effort": 1 + k % 4},
    }
    return {"limits": {"features": features, "most": None, "typed": [], "target": 0}}


# ------------------------------------------------------------------------------------------------
# Visitors


def print_visitors(arguments: Any) -> None:
    options = ["--serve", "--rows", str(arguments.rows)]
    command = [sys.executable, "-m", "benchmarks.workbench", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            address = child.stdout.readline().strip()
            found = asyncio.run(load(address, child.pid, arguments))
        finally:
            child.terminate()
    seconds = np.array(found["seconds"])
    first, last = found["memory"][0], found["memory"][-1]
    print(f"| {arguments.visitors} visitors for {arguments.seconds:g} s | |")
    print("| --- | --- |")
    print(f"| answers | {len(seconds)} |")
    print(f"| errors | {len(found['errors'])}: {'; '.join(sorted(set(found['errors'])))} |")
    print(f"| answers with another visitor's values | {found['crossed']} |")
    if len(seconds):
        median, longest = np.median(seconds), seconds.max()
        print(f"| seconds to an answer, median and longest | {median:.1f}, {longest:.1f} |")
    print(f"| memory after warming up and at the end, MB | {first:.0f}, {last:.0f} |")


async def load(address: str, pid: int, arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"seconds": [], "errors": [], "crossed": 0, "memory": []}
    visitors = [Visitor(address, k) for k in range(arguments.visitors)]
    for visitor in visitors:
        await visitor.open()
    await asyncio.gather(*(visitor.move(found, time.monotonic() + 5) for visitor in visitors))
    found.update(seconds=[], memory=[memory(pid)])
    until = time.monotonic() + arguments.seconds
    await asyncio.gather(*(visitor.move(found, until) for visitor in visitors))
    found["memory"].append(memory(pid))
    for visitor in visitors:
        await visitor.socket.disconnect()
    return found


def memory(pid: int) -> float:
    """What a process holds, in megabytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


class Visitor:
    """A page without a browser: it speaks to the server as NiceGUI's script does."""

    def __init__(self, address: str, number: int) -> None:
        self.address, self.number = address, number
        self.socket = socketio.AsyncClient()
        self.replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.count = 0

    async def open(self) -> None:
        """Loads the page, connects its socket and chooses a case."""
        async with httpx.AsyncClient(base_url=self.address) as client:
            page = (await client.get("/workbench/")).text
        raw = re.search(r"parseElements\(String\.raw`(.*?)`\)", page, re.DOTALL)
        query = re.search(r"query: (\{.*?\}),\n", page)
        assert raw is not None
        assert query is not None
        text = raw[1]
        for code, character in (
            ("&#36;", "$"),
            ("&#96;", "`"),
            ("&gt;", ">"),
            ("&lt;", "<"),
            ("&amp;", "&"),
        ):
            text = text.replace(code, character)
        elements = json.loads(text)
        self.element, described = next(
            (i, e) for i, e in elements.items() if "page" in (e.get("props") or {})
        )
        self.listener = next(e["listener_id"] for e in described["events"] if e["type"] == "ask")
        self.query = literal_eval(query[1]) | {"document_id": str(uuid4()), "tab_id": str(uuid4())}
        self.socket.on("run_javascript", self._receive)
        parameters = "&".join(
            f"{k}={json.dumps(v) if isinstance(v, bool) else v}" for k, v in self.query.items()
        )
        await self.socket.connect(
            f"{self.address}?{parameters}",
            socketio_path="/workbench/_nicegui_ws/socket.io",
            transports=["websocket"],
        )
        if not self.query.get("implicit_handshake"):
            await self.socket.call("handshake", self.query)
        case = await self.ask("case", {"position": self.number})
        self.row = case["values"]

    async def _receive(self, message: Mapping[str, Any]) -> None:
        found = re.fullmatch(
            r'return runMethod\(\d+, "receive", (.*)\)', message["code"], re.DOTALL
        )
        if found:
            self.replies.put_nowait(json.loads(json.loads(found[1])[0]))

    async def ask(self, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a message and waits for its reply."""
        self.count += 1
        message = {"kind": kind, "id": self.count, **content}
        event = {
            "id": int(self.element),
            "client_id": self.query["client_id"],
            "listener_id": self.listener,
            "args": [json.dumps(message)],
        }
        await self.socket.emit("event", event)
        while True:
            reply = await asyncio.wait_for(self.replies.get(), 200)
            if reply["id"] == self.count:
                return reply

    async def move(self, found: dict[str, Any], until: float) -> None:
        """Moves limits until a time, and notes what comes back."""
        mine = f"visitor-{self.number}"
        while time.monotonic() < until:
            start = time.monotonic()
            limits = moved_limits(self.count + self.number)
            reply = await self.ask("explain", {"row": self.row, "name": mine, **limits})
            found["seconds"].append(time.monotonic() - start)
            if "failed" in reply or "problems" in reply:
                found["errors"].append(str(reply.get("failed", reply.get("problems"))))
                continue
            before = {
                change["f"]: change["before"]
                for card in reply["cards"]
                for stop in card["stops"]
                for change in stop["changes"]
            }
            found["crossed"] += not self.agrees(before, limits, reply)

    def agrees(
        self, before: Mapping[int, str], limits: Mapping[str, Any], reply: Mapping[str, Any]
    ) -> bool:
        """Whether an answer is about this visitor's own row and limits."""
        names = list(self.row)
        kept = next(n for n, said in limits["limits"]["features"].items() if said["mode"] == "keep")
        if any(names[f] == kept for f in before):
            return False
        for f, text in before.items():
            value = self.row[names[f]]
            number = text.replace(",", "")
            numeric = isinstance(value, str) and re.fullmatch(r"-?[\d.]+", number)
            if numeric and float(number) != float(value):
                return False
        return reply["id"] == self.count


if __name__ == "__main__":
    main()
