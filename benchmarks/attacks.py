"""Attacks on a real `lapace serve`: `python -m benchmarks.attacks`.

Each starts the server as a shell does, does to it what broke it once, and says what came of it
beside what should have. Sent beside an attack are small requests of another client, whose answers
show what the attack costs others.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import torch

from benchmarks.serving import ROWS, Line, fitted, print_lines, serving
from lapace import Explainer

SECRET = "Ms-Secret-4711"
TIMEOUT = 30.0  # seconds a request may take, the server's default
# Each of these, alone on one instance, once took from six seconds to over a minute.
COSTLY = {
    "two equalities and a !=": [
        "amount == 48*instalment",
        "income == 3*instalment",
        "months != 48",
    ],
    "four sets of numbers": [
        "income in {1100, 1230, 1510, 1720, 1930, 2310}",
        "savings in {0, 350, 1200, 5550, 9900}",
        "amount in {1500, 3100, 4700, 6900, 8100}",
        "past_due in {0, 10, 30, 70}",
    ],
}
FOURTEEN = [
    "amount == 40*instalment",
    "income >= original",
    "savings <= original + 5000",
    "income + savings >= 3*instalment",
    "past_due <= original",
    "credit_score <= original + 90",
    "months in {12, 24, 36, 48}",
    "purpose == original",
    "if employment == unemployed then income <= 1500",
    "debt_ratio <= 0.5",
    "years_employed <= age - 16",
    "dependants == original",
    "abs(income - original) <= 1500",
    "changes <= 5",
]
EXITS = """
import sys
from lapace.classifiers import load_classifier
model = load_classifier("{folder}/loans.skops")

class Exits:
    classes_ = tuple(model.classes_)

    def predict(self, rows):
        if (rows["amount"] == 66600).any():
            sys.exit(3)
        return model.predict(rows)

    def predict_proba(self, rows):
        self.predict(rows)
        return model.predict_proba(rows)

exits = Exits()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of: {', '.join(ATTACKS)}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = measure(arguments.names)
    print_lines(lines)
    sys.exit(0 if all(line.kept for line in lines) else 1)


def measure(names: Sequence[str] = ()) -> list[Line]:
    """Tries all attacks, or those named; a line or several for each."""
    explainer, instances = fitted(ROWS)
    found: list[Line] = []
    for name in names or ATTACKS:
        tried = ATTACKS[name](explainer, instances)
        found += [line._replace(what=f"{name}: {line.what}") for line in tried]
    return found


@dataclass
class Beside:
    """Small requests of another client, one after the other, while something else goes on.

    Attributes:
        client: Whose they are.
        instance: What they are about.
        codes: The statuses they got.
        seconds: How long each took.
    """

    client: httpx.Client
    instance: dict[str, Any]
    codes: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Sends them meanwhile."""
        thread = threading.Thread(target=self._send)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _send(self) -> None:
        while not self._over.is_set():
            start = time.perf_counter()
            try:
                self.codes[ask(self.client, [self.instance]).status_code] += 1
            except httpx.HTTPError:
                self.codes[0] += 1
            self.seconds.append(time.perf_counter() - start)
            self._over.wait(0.2)

    def lines(self, most: float) -> list[Line]:
        """What others got meanwhile, and the longest that one of them took."""
        slowest = max(self.seconds)
        good = self.codes[200] / self.codes.total()
        return [
            Line(
                f"of {self.codes.total()} requests of another client answered",
                f"{good:.0%}",
                "all",
                good == 1,
            ),
            Line(
                f"the slowest of them, s (median {statistics.median(self.seconds):.1f})",
                f"{slowest:.1f}",
                f"{most:g} or less",
                slowest <= most,
            ),
        ]


def ask(client: httpx.Client, instances: Sequence[Any], route: str = "explain", **more: Any) -> Any:
    """One request."""
    body = {"instances": list(instances), "target": "approved", **more}
    return client.post(f"/v2/{route}", json=body)


@contextmanager
def clients(
    explainer: Explainer, *options: str, names: Sequence[str] = ("mallory", "alice"), **more: Any
) -> Iterator[tuple[Any, Path, list[httpx.Client]]]:
    """A server with tokens, its folder, and a client for each of them."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        tokens = Path(folder, "tokens")
        tokens.write_text("".join(f"{name}:token-of-{name}\n" for name in names), encoding="ascii")
        server, address = stack.enter_context(
            serving(explainer, folder, [f"--token-file={tokens}", *options], **more)
        )
        limits = httpx.Limits(max_connections=500, max_keepalive_connections=500)
        found = [
            stack.enter_context(
                httpx.Client(
                    base_url=address,
                    headers={"Authorization": f"Bearer token-of-{name}"},
                    timeout=200,
                    limits=limits,
                )
            )
            for name in names
        ]
        ask(found[0], fitted(ROWS)[1][:1])  # the first call loads what is loaded late
        yield server, Path(folder), found


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and the seconds it took."""
    start = time.perf_counter()
    return call(), time.perf_counter() - start


# ------------------------------------------------------------------------------------------------
# Attacks


def twelve_requests(explainer: Explainer, instances: list[dict[str, Any]]) -> list[Line]:
    """Twelve legal requests at once, of 100 instances and 14 constraints each."""
    size = len(json.dumps({"instances": instances[:100], "constraints": FOURTEEN}))
    with clients(explainer) as (_, _, (mallory, alice)), ThreadPoolExecutor(12) as pool:
        beside = Beside(alice, instances[0])
        with beside.going_on():
            heavy = [
                pool.submit(timed, lambda: ask(mallory, instances[:100], constraints=FOURTEEN))
                for _ in range(12)
            ]
            found = [call.result() for call in heavy]
        codes = Counter(response.status_code for response, _ in found)
        slowest = max(seconds for _, seconds in found)
        named = sum("lapace-budget" in response.headers for response, _ in found)
        ready = alice.get("/readyz").status_code
    return [
        Line("bytes of each", f"{size:,}"),
        Line(f"answered (statuses: {dict(codes)})", f"{codes[200]} of 12", "all", codes[200] == 12),
        Line("of those whose budget ended the search, saying so", f"{named}"),
        Line(
            "the slowest, s",
            f"{slowest:.0f}",
            f"{3 * TIMEOUT:g} or less",  # it may wait twice as long as it may take
            slowest <= 3 * TIMEOUT,
        ),
        Line("ready afterwards", str(ready), "200", ready == 200),
        *beside.lines(TIMEOUT),
    ]


def costly_constraints(explainer: Explainer, instances: list[dict[str, Any]]) -> list[Line]:
    """Constraints that once took a minute for one instance, and why-not about many."""
    found = []
    with clients(explainer) as (_, _, (mallory, _)):
        for name, constraints in COSTLY.items():
            some = [dict(one, instalment=one["instalment"]) for one in instances[:1]]
            response, seconds = timed(lambda c=constraints, s=some: ask(mallory, s, constraints=c))
            ended = response.headers.get("lapace-budget", "no")
            found.append(
                Line(
                    f"{name}, one instance: {response.status_code}, budget spent: {ended}; s",
                    f"{seconds:.1f}",
                    f"{TIMEOUT:g} or less",
                    response.status_code == 200 and seconds <= TIMEOUT,
                )
            )
        fixed = ["income == original", "credit_score == original", "past_due == original"]
        response, seconds = timed(
            lambda: ask(mallory, instances[:35], "why-not", constraints=[*fixed, "changes <= 1"])
        )
        ended = response.headers.get("lapace-budget", "no")
        found.append(
            Line(
                f"why-not of 35 instances: {response.status_code}, budget spent: {ended}; s",
                f"{seconds:.1f}",
                f"{TIMEOUT:g} or less",
                response.status_code == 200 and seconds <= TIMEOUT,
            )
        )
        text = mallory.get("/metrics").text
        queries = int(re.search(r"^lapace_queries_total (\d+)", text, re.MULTILINE)[1])
        found.append(Line("queries of all of these", f"{queries:,}"))
    return found


def slow_bodies(explainer: Explainer, instances: list[dict[str, Any]]) -> list[Line]:
    """140 connections that send one byte of their body and wait."""
    head = (
        "POST /v2/explain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Authorization: Bearer token-of-mallory\r\nContent-Length: 100\r\n\r\n{"
    ).encode("ascii")
    with clients(explainer) as (_, _, (_, alice)), ExitStack() as stack:
        address = (alice.base_url.host, alice.base_url.port)
        for _ in range(140):
            connection = stack.enter_context(socket.create_connection(address, 60))
            connection.sendall(head)
        time.sleep(1.5)  # each may take a second before it makes room
        beside = Beside(alice, instances[0])
        with beside.going_on():
            time.sleep(12)
    return beside.lines(10)


def no_descriptors(explainer: Explainer, instances: list[dict[str, Any]]) -> list[Line]:
    """More connections than the process may have open files, for 40 seconds."""

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))

    with clients(explainer, preexec_fn=few) as (server, folder, (_, alice)):
        address, log = (alice.base_url.host, alice.base_url.port), folder / "log"
        before = log.stat().st_size
        with ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(socket.create_connection(address, 60))
            time.sleep(40)
            grown = log.stat().st_size - before
        time.sleep(3)
        after = ask(alice, instances[:1]).status_code
        alive = server.poll() is None
    return [
        Line("the log grew by, bytes in 40 s", f"{grown:,}", "2,000 or less", grown <= 2000),
        Line("afterwards", f"{after}, {'alive' if alive else 'dead'}", "200, alive", after == 200),
    ]


def sigterm(explainer: Explainer, instances: list[dict[str, Any]], workers: int = 1) -> list[Line]:
    """SIGTERM while more work waits than the grace period allows."""
    with (
        clients(explainer, f"--workers={workers}") as (server, folder, (mallory, _)),
        ThreadPoolExecutor(24) as pool,
    ):
        calls = [
            pool.submit(attempt, lambda: ask(mallory, instances[:100], constraints=FOURTEEN))
            for _ in range(24)
        ]
        until(lambda: mallory.get("/healthz").json()["waiting"] > 10 / workers)
        time.sleep(1)  # all are sent, whichever worker they went to
        start = time.perf_counter()
        server.send_signal(signal.SIGTERM)
        code = server.wait(120)
        took = time.perf_counter() - start
        codes = Counter(call.result() for call in calls)
        said = (folder / "log").read_text(encoding="utf-8")
    json_ = sum(n for code, n in codes.items() if code in ("200 JSON", "503 JSON"))
    return [
        Line(
            f"of 24 requests answered in JSON ({', '.join(map(str, sorted(codes)))})",
            f"{json_}",
            "24",
            json_ == 24,
        ),
        Line("exit code", str(code), "143", code == 143),
        Line("seconds until it ended", f"{took:.0f}", "12 or less", took <= 12),
        Line("tracebacks in the log", str(said.count("Traceback")), "0", "Traceback" not in said),
    ]


def system_exit(explainer: Explainer, instances: list[dict[str, Any]]) -> list[Line]:
    """A classifier that raises SystemExit."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "exits.py").write_text(EXITS.format(folder=folder), encoding="utf-8")
        path = os.pathsep.join([folder, *sys.path])
        options = ["--classifier=exits:exits"]
        with (
            serving(explainer, folder, options, env={"PYTHONPATH": path}) as (server, address),
            httpx.Client(base_url=address, timeout=200) as client,
        ):
            response = ask(client, [{**instances[0], "amount": 66600}])
            after = ask(client, instances[:1]).status_code
            alive = server.poll() is None
    said = f"{response.status_code} {response.headers['content-type']}"
    return [
        Line("answer", said, "an error in JSON or a malformed instance", "json" in said and alive),
        Line("the next request", f"{after}", "200", after == 200),
    ]


def fair_turns(explainer: Explainer, instances: list[dict[str, Any]]) -> list[Line]:
    """One client sends 60 requests at once, another one afterwards."""
    with clients(explainer) as (_, _, (mallory, alice)), ThreadPoolExecutor(60) as pool:
        order: list[str] = []

        def send(name: str, client: httpx.Client) -> int:
            code = ask(client, instances[:3]).status_code
            order.append(name)
            return int(code)

        many = [pool.submit(send, "mallory", mallory) for _ in range(60)]
        until(lambda: mallory.get("/healthz").json()["waiting"] >= 50)
        before = len(order)
        code = send("alice", alice)
        turn = len(order) - before
        codes = Counter(call.result() for call in many)
    return [
        Line(
            "its answer came after so many of the others", f"{turn - 1}", "12 or less", turn <= 13
        ),
        Line("statuses", f"{code}; {dict(codes)}", "200", code == 200),
    ]


def full_queue(explainer: Explainer, instances: list[dict[str, Any]]) -> list[Line]:
    """More requests than may wait: 429 with Retry-After, liveness and readiness apart."""
    with (
        clients(explainer, "--queue=4") as (_, _, (mallory, alice)),
        ThreadPoolExecutor(60) as pool,
    ):
        calls = [pool.submit(ask, mallory, instances[:20]) for _ in range(40)]
        until(lambda: alice.get("/healthz").json()["waiting"] == 4)
        codes = {
            f"{method} {path}": alice.request(method, path).status_code
            for path in ("/readyz", "/healthz")
            for method in ("HEAD", "GET")
        }
        found: list[Future[Any]] = [call.result() for call in calls]
        refused = [r for r in found if r.status_code == 429]
        kept = all(int(r.headers["retry-after"]) >= 1 and "error" in r.json() for r in refused)
        after = alice.get("/readyz").status_code
        metrics = prometheus(alice.get("/metrics").text)
    wanted = {"HEAD /readyz": 503, "GET /readyz": 503, "HEAD /healthz": 200, "GET /healthz": 200}
    others = len(found) - len(refused) - sum(r.status_code == 200 for r in found)
    return [
        Line(
            f"429 with Retry-After, of {len(found)}",
            f"{len(refused)}",
            "some",
            bool(refused) and kept,
        ),
        Line("neither 200 nor 429", f"{others}", "0", others == 0),
        Line(
            "readiness 503 and liveness 200 meanwhile",
            str(codes == wanted),
            "True",
            codes == wanted,
        ),
        Line("readiness afterwards", str(after), "200", after == 200),
        Line("families in /metrics", str(metrics), "8", metrics == 8),
    ]


def prometheus(text: str) -> int:
    """How many families a text has, each typed and with samples; 0 if it is malformed."""
    families = re.findall(r"^# TYPE (\w+) (?:counter|gauge|histogram)$", text, re.MULTILINE)
    for line in text.splitlines():
        sample = re.fullmatch(r'(\w+)(?:\{\w+="[^"]*"(?:,\w+="[^"]*")*\})? [0-9.e+-]+', line)
        if not line.startswith("# ") and (
            sample is None or not any(sample[1].startswith(family) for family in families)
        ):
            return 0
    return len(families)


def clients_that_leave(explainer: Explainer, instances: list[dict[str, Any]]) -> list[Line]:
    """Twenty requests whose clients close the connection after a second."""
    with clients(explainer) as (_, _, (mallory, alice)):
        body = {"instances": instances[:100], "target": "approved", "constraints": FOURTEEN}
        text = json.dumps(body)
        head = (
            "POST /v2/explain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer token-of-mallory\r\nContent-Length: {len(text)}\r\n\r\n"
        )
        address = (mallory.base_url.host, mallory.base_url.port)
        with ExitStack() as stack:
            for _ in range(20):
                connection = stack.enter_context(socket.create_connection(address, 60))
                connection.sendall((head + text).encode())
            until(lambda: alice.get("/healthz").json()["running"] > 0)
            time.sleep(1)
        idle = {"running": 0, "waiting": 0, "stuck": 0}

        def over() -> bool:
            health = alice.get("/healthz").json()
            return all(health[name] == count for name, count in idle.items())

        _, seconds = timed(lambda: until(over))
    return [Line("s until nothing runs or waits", f"{seconds:.1f}", "10 or less", seconds <= 10)]


def logs(explainer: Explainer, instances: list[dict[str, Any]]) -> list[Line]:
    """Requests with a name in them, good and bad: the log has none of it."""
    with clients(explainer, "--log-requests") as (_, folder, (mallory, _)):
        one = {**instances[0], "purpose": SECRET}
        ask(mallory, [one])
        ask(mallory, [one], constraints=[f"purpose == '{SECRET}'"])
        mallory.post(f"/v2/explain?name={SECRET}", content=SECRET.encode())
        mallory.get(f"/{SECRET}", headers={"X-Request-Id": "id-1", "User-Agent": SECRET})
        ids = ask(mallory, [one], confidence=SECRET).headers["x-request-id"]
        lines = (folder / "log").read_text(encoding="utf-8").splitlines()
    said = [json.loads(line) for line in lines if line.startswith("{")]
    leaked = sum(SECRET in line or "token-of" in line for line in lines)
    named = any(line.get("request") == ids for line in said)
    return [
        Line(f"lines of {len(lines)} with the request's data", str(leaked), "0", leaked == 0),
        Line("a request found by its id", str(named), "True", named),
    ]


ATTACKS: dict[str, Callable[[Explainer, list[dict[str, Any]]], list[Line]]] = {
    "SystemExit in the classifier": system_exit,
    "data in logs": logs,
    "a full queue": full_queue,
    "turns between clients": fair_turns,
    "SIGTERM with work waiting": sigterm,
    "SIGTERM with work waiting, two workers": partial(sigterm, workers=2),
    "clients that leave": clients_that_leave,
    "140 slow bodies": slow_bodies,
    "twelve large requests": twelve_requests,
    "no file descriptors": no_descriptors,
    "costly constraints": costly_constraints,
}


def attempt(call: Callable[[], Any]) -> str:
    """The status of a response and whether it is JSON; or the error."""
    try:
        response = call()
    except httpx.HTTPError as error:
        return type(error).__name__
    kind = "JSON" if response.headers.get("content-type") == "application/json" else "text"
    return f"{response.status_code} {kind}"


def until(happens: Callable[[], bool], seconds: float = 120.0) -> None:
    """Waits for something to be so."""
    end = time.perf_counter() + seconds
    while not happens():
        if time.perf_counter() > end:
            raise TimeoutError("What was waited for did not happen.")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
