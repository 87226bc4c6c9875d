"""The JSON API: real servers on loopback, over real sockets."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from lapace import Explainer, Explanation, InputError, Search
from lapace.apps.server import create_app, make_app, routes, run, serve
from lapace.apps.server.requests import ExplainRequest, WhyNotRequest, read_json
from lapace.apps.server.routes import BoundedResponse
from lapace.apps.server.running import listen
from lapace.apps.server.work_queue import THREAD_NAME
from lapace.result import json_schema, why_not_to_json
from tests import worlds

ROOT = Path(__file__).resolve().parents[2]
SECRET = "a/very/private/model.skops"
SEARCH = {field.name for field in fields(Search)}
LONG = 1_000.0  # seconds that pass only when a test skips them


# --- worlds and servers -----------------------------------------------------------------------


class Gate:
    """The letters' classifier, which a test can block or break."""

    classes_ = ("cheap", "dear")

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.broken: BaseException | None = None
        self.blocked = threading.Semaphore(0)  # counts the calls that had to wait

    def predict(self, rows: list[dict[str, Any]]) -> list[str]:
        if self.broken is not None:
            raise self.broken
        # Only heavy letters wait, so that light ones can be seen to pass.
        if not self.open.is_set() and any(r["weight"] == 499 for r in rows):
            self.blocked.release()
            self.open.wait(60)
        if any(r["stamp"] == "cursed" for r in rows):
            raise ValueError(f"cannot read {SECRET}")
        return worlds.postage(rows)


@cache
def gated() -> tuple[Gate, Explainer]:
    """One fit for all tests of slow and broken classifiers."""
    gate = Gate()
    rules = ["speed >= 0"]
    explainer = Explainer(gate, n_prototypes=2, recipe=worlds.QUICK, rules=rules, device="cpu")
    return gate, explainer.fit(worlds.letters(300, 0))


@pytest.fixture
def gate() -> Iterator[Gate]:
    found, _ = gated()
    found.blocked = threading.Semaphore(0)
    yield found
    found.open.set()
    found.broken = None


@contextmanager
def busy(**settings: int) -> Iterator[tuple[Client, ThreadPoolExecutor]]:
    """A server of that fit whose requests have all the time, and threads for its clients."""
    with serving(gated()[1], timeout=LONG, **settings) as client, ThreadPoolExecutor(3) as pool:
        yield client, pool


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test can move forward."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


class Client(httpx.Client):
    """A client of a server whose clock it can move forward."""

    loop: SkippingLoop

    def skip(self, seconds: float) -> None:
        done = threading.Event()

        def move() -> None:
            self.loop.skipped += seconds
            done.set()

        self.loop.call_soon_threadsafe(move)
        assert done.wait(60)

    def health(self) -> dict[str, Any]:
        return self.get("/healthz").json()


@contextmanager
def serving(explainer: Explainer, make: Any = create_app, **settings: Any) -> Iterator[Client]:
    """A client of a real server in a thread."""
    app = make(explainer, **settings)
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        app, log_level="critical", timeout_graceful_shutdown=1, timeout_keep_alive=10**6
    )
    server, loop = uvicorn.Server(config), SkippingLoop()

    def serve_it() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(server.serve(sockets=[listener]))

    thread = threading.Thread(target=serve_it, daemon=True)
    thread.start()
    until(lambda: server.started)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with Client(base_url=address, timeout=60) as client:
            client.loop = loop
            yield client
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
    assert not thread.is_alive(), "the server does not stop"


def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition; the deadline is only there to fail instead of hanging."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A server of letters with the usual limits."""
    with serving(worlds.post().explainer) as found:
        yield found


LIGHT = {"weight": 20, "speed": 1, "stamp": "red"}
HEAVY = {"weight": 499, "speed": 5, "stamp": "red"}
JSON = {"Content-Type": "application/json"}


def explain(
    client: httpx.Client, instance: dict[str, Any] = LIGHT, **request: Any
) -> httpx.Response:
    return client.post("/v3/explain", json={"instances": [instance], **request})


def request_of(options: dict[str, Any]) -> dict[str, Any]:
    """A request with these settings, those of the search in their own object."""
    search = {name: value for name, value in options.items() if name in SEARCH}
    return {**{k: v for k, v in options.items() if k not in SEARCH}, "search": search}


@contextmanager
def connection(
    client: httpx.Client, body: str = "", length: int | None = None, buffer: int | None = None
) -> Iterator[socket.socket]:
    """A connection that has sent the head of a request and some body, perhaps less than said.

    Of the response it takes no more than fits its buffer, before it is read.
    """
    head = "POST /v3/explain HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    size = len(body) if length is None else length
    with socket.socket() as opened:
        if buffer is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        opened.settimeout(60)
        opened.connect(("127.0.0.1", client.base_url.port))
        opened.sendall(f"{head}Content-Length: {size}\r\n\r\n{body}".encode())
        yield opened


def sentence(response: httpx.Response, status: int) -> str:
    """The one sentence of an error, and nothing else."""
    assert response.status_code == status, response.text[:300]
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    assert isinstance(body["error"], str)
    assert body["error"].endswith((".", "?", "…"))
    for leak in ("Traceback", ".py", "site-packages", "pydantic", SECRET, "10.0.0.7"):
        assert leak not in body["error"]
    return body["error"]


# --- explanations ------------------------------------------------------------------------------


def plain(world: worlds.World) -> list[dict[str, Any]]:
    """A world's instances as JSON has them."""
    explainer = world.explainer
    names, found = explainer.schema_.names, explainer.explain(world.instances, target="any-other")
    rows = [instance["row"] for instance in found.to_json()["instances"]]
    return [dict(zip(names, row, strict=True)) for row in rows]


@pytest.mark.parametrize("name", ["bank", "seasons", "signs", "shop", "paper", "digits"])
def test_a_response_is_the_librarys_explanation_in_the_published_format(name):
    world = getattr(worlds, name)()
    instances = plain(world)[:2]
    options = {"target": "any-other", "steps": 6, "n_best": 2}
    expected = world.explainer.explain(instances, **worlds.searched(options)).to_json()
    with serving(world.explainer) as client:
        response = client.post("/v3/explain", json={"instances": instances, **request_of(options)})
    assert response.status_code == 200
    assert response.json() == expected
    jsonschema.validate(response.json(), json_schema())


def test_every_setting_reaches_the_library():
    world = worlds.bank()
    instances = plain(world)[:6]
    rich = {**instances[1], "income": 90, "debt": 0}
    options = {
        "target": ["approved"] * 6,
        "constraints": ["fixed age", "changes <= 3"],
        "costs": {"income": 3, "debt": 0.5},
        "confidence": 0.6,
        "plausibility": 0.5,
        "candidates": [{**rich, "instance": k} for k in (0, 5)],
        "steps": 7,
        "stable": False,
        "enforce": "latent",
        "n_starts": 1,
        "picks": ["nearest", "best", "first"],
        "n_best": 1,
    }
    assert set(options) == {*ExplainRequest.model_fields, *SEARCH} - {"instances", "search"}
    with serving(world.explainer) as client:
        for some in (*({name: value} for name, value in options.items()), options):
            expected = world.explainer.explain(instances, **worlds.searched(some)).to_json()
            found = client.post("/v3/explain", json={"instances": instances, **request_of(some)})
            assert found.json() == expected, some


def test_candidates_are_made_minimal_and_wrong_ones_are_refused(client):
    rows = plain(worlds.post())
    cheap = next(row for row in rows if worlds.postage([row]) == ["cheap"])
    dear = {"weight": cheap["weight"], "speed": 5, "stamp": cheap["stamp"], "instance": 0}
    dear["weight"] = max(cheap["weight"], 175)
    search = {"steps": 2, "n_starts": 1, "picks": ["nearest"]}
    request = {"instances": [cheap], "target": "dear", "search": search}
    sent = client.post("/v3/explain", json={**request, "candidates": [dear]})
    assert sent.status_code == 200
    (one,) = Explanation.from_json(sent.json())
    schema = one.explanation.schema
    row = schema.cells([{k: v for k, v in dear.items() if k != "instance"}])
    assert one.nearest().effort[0] <= schema.effort(one.explanation.instances, row)[0] + 1e-9
    for empty in ([], None):
        alone = client.post("/v3/explain", json={**request, "candidates": empty})
        assert alone.json() == client.post("/v3/explain", json=request).json()
    wrong = {
        "need a column 'instance'": [cheap],
        "name an instance that is not in the query: '1'": [{**dear, "instance": 1}],
        "a row without an instance": [dear, {**dear, "instance": None}],
        "lacks column 'stamp'": [{"instance": 0, "weight": 3, "speed": 1}],
        "a category that neither training nor the instances have": [{**dear, "stamp": "gold"}],
        "Column 'weight'": [{**dear, "weight": "heavy"}],
        "candidate 0 has 1,001 characters in column 'stamp'": [{**dear, "stamp": "x" * 1_001}],
        "at most 1000 items": [dear] * 1_001,
        "candidates: Input should be a valid list": dear,
        "candidates[0]: Input should be a valid dictionary": [3],
    }
    for route in ("/v3/explain", "/v3/why-not"):
        for said, candidates in wrong.items():
            response = client.post(route, json={**request, "candidates": candidates})
            assert said in sentence(response, 422)


def test_concurrent_requests_are_answered_as_if_alone(client):
    instances = plain(worlds.post())
    alone = [worlds.post().explainer.explain([row]).to_json() for row in instances]
    with ThreadPoolExecutor(12) as pool:
        responses = list(pool.map(lambda row: explain(client, row), instances * 2))
    assert [response.status_code for response in responses] == [200] * len(responses)
    assert [response.json() for response in responses] == alone * 2


def test_an_explainer_is_described_without_training_values(client):
    explainer = worlds.post().explainer
    schema = client.get("/v3/schema").json()
    assert schema["labels"] == list(explainer.classes_)
    assert [f["name"] for f in schema["features"]] == list(explainer.schema_.names)
    assert not {"knots", "histogram", "ranks"} & set(schema["features"][0])
    assert client.get("/v3/report").json() == explainer.report_.to_json()


def test_why_not_covers_every_instance_without_a_counterfactual():
    world = worlds.bank()
    instances = plain(world)[:8]
    constraints = ["fixed income", "fixed debt", "fixed home", "fixed grade"]
    explanation = world.explainer.explain(instances, target="approved", constraints=constraints)
    request = {"instances": instances, "target": "approved", "constraints": constraints}
    with serving(world.explainer) as client:
        response = client.post("/v3/why-not", json=request)
        none = client.post("/v3/why-not", json={**request, "max_queries": 0})
    whole = world.explainer.why_not(explanation)
    assert response.json() == why_not_to_json(whole)
    assert any(one["why_not"] for one in response.json()["instances"])
    # The budget of queries is the request's.
    assert none.json() == why_not_to_json(world.explainer.why_not(explanation, max_queries=0))
    assert none.json() != response.json()


# --- the OpenAPI document ----------------------------------------------------------------------


def test_the_page_names_every_route_field_status_and_setting(client):
    page = (ROOT / "docs" / "how-to" / "serving.md").read_text(encoding="utf-8")
    paths = client.get("/openapi.json").json()["paths"]
    statuses = ("400", "401", "403", "408", "413", "415", "422", "502", "503", "504")
    settings = set(inspect.signature(create_app).parameters) - {"explainer"}
    names = {*WhyNotRequest.model_fields, *SEARCH, *settings}
    for word in (*paths, *statuses, *(f"`{name}`" for name in names)):
        assert word in page, word


# --- access ------------------------------------------------------------------------------------


def test_a_token_is_required_everywhere_but_at_healthz():
    with serving(worlds.post().explainer, token="open-sesame") as client:
        for path in ("/healthz", "/readyz"):
            assert client.get(path).status_code == 200
        values = (b"Bearer sesame", b"Basic open-sesame", b"Bearer", b"open-sesame", b"Bearer \xff",
                  b"Bearer open-sesame2", b"Bearer open-sesam")  # fmt: skip
        for wrong in ({}, *({"Authorization": value} for value in values)):
            for path in ("/v3/schema", "/v3/report", "/metrics", "/openapi.json", "/nope"):
                refused = client.get(path, headers=wrong)
                assert "token" in sentence(refused, 401)
                assert refused.headers["www-authenticate"] == "Bearer"
            sentence(client.post("/v3/explain", headers=wrong, content=b"{"), 401)
        right = {"Authorization": "bearer open-sesame"}
        assert client.get("/v3/schema", headers=right).status_code == 200
        document = client.get("/openapi.json", headers=right).json()
        assert document["paths"]["/v3/explain"]["post"]["security"] == [{"HTTPBearer": []}]
        assert "security" not in document["paths"]["/healthz"]["get"]
        found = client.post("/v3/explain", headers=right, json={"instances": [LIGHT]})
        assert found.status_code == 200


def test_tokens_are_compared_in_constant_time(monkeypatch):
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return a == b

    monkeypatch.setattr("lapace.apps.server.access.hmac.compare_digest", compare)
    with serving(worlds.post().explainer, token="open-sesame") as client:
        for token in ("no", "o", "open-sesame", "x" * 5_000):
            client.get("/v3/schema", headers={"Authorization": f"Bearer {token}"})
    assert compared == [(32, 32)] * 4


def test_without_a_token_only_loopback_host_names_are_answered():
    with serving(worlds.post().explainer, make=make_app) as client:
        port = client.base_url.port
        for name in ("127.0.0.1", "localhost", f"LOCALHOST:{port}", "[::1]:80", "[::1]"):
            assert client.get("/v3/schema", headers={"Host": name}).status_code == 200, name
        for name in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example",
                     "localhosts", "127.evil.example", "localhost:80.evil.example"):  # fmt: skip
            assert "localhost" in sentence(client.get("/v3/schema", headers={"Host": name}), 403)
            assert client.get("/healthz", headers={"Host": name}).status_code == 200
    with serving(worlds.post().explainer, make=make_app, token="t") as client:
        headers = {"Host": "behind.example", "Authorization": "Bearer t"}
        assert client.get("/v3/schema", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/v3/explain/", "POST", 404), ("/v3/explain", "GET", 405), ("/", "GET", 404),
     ("/v3/schema", "POST", 405), ("/../etc/passwd", "GET", 404), ("/v3/%00", "GET", 404),
     ("/docs", "GET", 404), ("/redoc", "GET", 404)],  # they would load foreign scripts
)  # fmt: skip
def test_unknown_paths_and_methods_are_errors(client, path, method, status):
    sentence(client.request(method, path), status)


# --- bodies ------------------------------------------------------------------------------------


def padded(size: int) -> bytes:
    return b'{"instances": []' + b" " * (size - 14) + b"}"


def test_a_body_too_large_is_refused_however_it_is_sent():
    with serving(worlds.post().explainer, max_body=10_000) as client:
        assert client.post("/v3/explain", content=padded(9_997), headers=JSON).status_code == 200
        for size in (10_001, 300_000, 5_000_000):
            body = padded(size)
            found = sentence(client.post("/v3/explain", content=body, headers=JSON), 413)
            assert "10,000 bytes" in found
            parts = (body[k : k + 5_000] for k in range(0, size, 5_000))  # chunked
            sentence(client.post("/v3/explain", content=parts, headers=JSON), 413)
        body = padded(9_000)
        parts = (body[k : k + 500] for k in range(0, len(body), 500))
        assert client.post("/v3/explain", content=parts, headers=JSON).status_code == 200
        # A body without an end is not read forever.
        endless = (b" " * 65_536 for _ in range(10_000))
        with suppress(httpx.TransportError):  # the connection may be closed while it is sent
            assert client.post("/v3/explain", content=endless, headers=JSON).status_code == 413
        assert client.get("/healthz").status_code == 200


def test_a_body_announced_as_far_too_large_is_refused_at_once(client):
    with connection(client, length=10**12) as opened:
        response = opened.makefile("rb").read().decode()  # of a body nothing was sent
    assert response.startswith("HTTP/1.1 413")


def test_a_long_value_and_a_large_response_are_refused(client, monkeypatch):
    assert explain(client, dict(LIGHT, stamp="x" * 1_000)).status_code == 200
    for route in ("/v3/explain", "/v3/why-not"):
        body = {"instances": [LIGHT, dict(LIGHT, stamp="x" * 1_001)]}
        found = sentence(client.post(route, json=body), 422)
        assert "instance 1 has 1,001 characters in column 'stamp'" in found
    size = len(explain(client).content)
    monkeypatch.setattr(routes, "MAX_RESPONSE", 100)
    found = sentence(explain(client), 413)
    told = int(found.split("about ")[1].split(" bytes")[0].replace(",", ""))
    assert size / 4 < told < size * 4, "the count is about right"


def test_a_body_that_does_not_arrive_times_out():
    with serving(worlds.post().explainer, timeout=LONG) as client:
        with connection(client, '{"instances"', 50) as opened, ThreadPoolExecutor(1) as pool:
            reading = pool.submit(opened.makefile("rb").read)
            # The request may not have been received yet when the clock is moved.
            until(lambda: client.skip(LONG + 1) or reading.done())
            response = reading.result().decode()
        assert response.startswith("HTTP/1.1 408")
        assert "did not arrive within 1000 seconds" in response
        with connection(client, length=50):
            pass  # it closes
        assert explain(client).status_code == 200


def test_four_clients_that_never_read_keep_no_memory(monkeypatch):
    with serving(worlds.post().explainer, timeout=LONG) as client, ExitStack() as stack:
        instances = [dict(LIGHT, weight=20 + i, stamp=f"{i:x<1000}") for i in range(40)]
        search = {"steps": 100, "n_starts": 1, "picks": ["nearest"]}
        body = json.dumps({"instances": instances, "target": "dear", "search": search})
        connections = [stack.enter_context(connection(client, body, buffer=4096)) for _ in range(4)]
        # Objects are looked at only when no thread is making any: a tuple in the making breaks.
        until(lambda: client.health() == {"running": 0, "waiting": 4, "stuck": 0})
        assert len(responses()) == 4
        with monkeypatch.context() as patch:
            patch.setattr(routes, "MAX_UNREAD", 20_000_000)  # each has more than 5 MB
            refused = explain(client)
            assert "Other responses are still being read." in sentence(refused, 503)
            assert refused.headers["Retry-After"] == "5"
        client.skip(LONG + 1)
        until(lambda: client.health()["waiting"] == 0)
        assert not responses()
        assert int(re.search(rb"content-length: (\d+)", connections[0].recv(1000))[1]) > 5_000_000
        assert explain(client).status_code == 200


def responses() -> list[BoundedResponse]:
    """The responses that are in memory."""
    return [found for found in gc.get_objects() if type(found) is BoundedResponse]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 422, "body: Field required."),
        (b"{", 400, "Expecting property name enclosed in double quotes: line 1 column 2"),
        (b"\xff\xfe{\x00}\x00", 400, "can't decode byte 0xff in position 0"),
        (b'{"instances": [{"weight": NaN}]}', 400, "JSON has no NaN; send null"),
        (b'{"instances": [{"weight": 1e999}]}', 400, "the number 1e999 is too large"),
        (b'{"instances": [{"weight": ' + b"9" * 5000 + b"}]}", 400, "99999 is too large"),
        (b'{"instances": [], "instances": []}', 400, "'instances' is twice in one object"),
        (b'{"instances": [{"stamp": "\\ud800"}]}', 400, "surrogates not allowed"),
        (b"[" * 100_000, 400, "recursion"),
        (b"[]", 422, "body: Input should be a valid dictionary"),
        (b"{}", 422, "instances: Field required."),
        (b'{"instances": [], "steps": 5}', 422, "steps: Extra inputs are not permitted."),
        (b'{"instances": [], "search": {"stps": 5}}', 422, "search.stps: Extra inputs are not"),
        (b'{"instances": [3]}', 422, "instances[0]: Input should be a valid dictionary."),
        (b'{"instances": [{"weight": 3}]}', 422, "lacks column 'speed'"),
        (b'{"instances": [{"weight": 3, "sped": 1, "stamp": 0}]}', 422, "'sped'?"),
        (b'{"instances": [], "target": {}}', 422, "give one label"),
        (b'{"instances": [], "target": ["dear"]}', 422, "1 target"),
        (b'{"instances": [], "target": "deer"}', 422, "Did you mean 'dear'?"),
        (b'{"instances": [], "constraints": "fixed speed"}', 422, "constraints: Input should be"),
        (b'{"instances": [], "constraints": ["weigt <= 3"]}', 422, "'weigt'"),
        (b'{"instances": [], "costs": {"weight": "x"}}', 422, "costs.weight: Input should be"),
        (b'{"instances": [], "costs": {"weight": -1}}', 422, "must be zero or more"),
        (b'{"instances": [], "search": {"steps": 101}}', 422, "less than or equal to 100."),
        (b'{"instances": [], "search": {"steps": "2"}}', 422, "search.steps: Input should be"),
        (b'{"instances": [], "search": {"picks": ["frist"]}}', 422, "search.picks[0]: Input"),
        (b'{"instances": [], "search": {"n_best": 11}}', 422, "search.n_best: Input should be"),
        (b'{"instances": [], "confidence": 2}', 422, "confidence: Input should be less than or"),
        (b'{"instances": [], "plausibility": 5}', 422, "5th percentile write 0.05"),
        (b'{"instances": [], "confidence": 0.9}', 422, "predict_proba"),
        (b'{"instances": [], "' + b"x" * 5000 + b'": 1}', 422, "Extra inputs are not permitted."),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_body_is_one_sentence_that_names_the_field(client, body, status, says):
    for route in ("/v3/explain", "/v3/why-not"):
        found = sentence(client.post(route, content=body, headers=JSON), status)
        assert says in found
        assert len(found) <= 600


@pytest.mark.parametrize(
    "headers",
    [{**JSON, "Content-Encoding": "gzip"}, {"Content-Type": "text/plain"}, {"Content-Type": ""}],
)
def test_a_body_must_be_plain_json(client, headers):
    response = client.post("/v3/explain", content=padded(100), headers=headers)
    assert "not compressed, with Content-Type: application/json" in sentence(response, 415)


def test_limits_hold_and_are_listed():
    with serving(worlds.post().explainer, max_instances=3, max_body=50_000) as client:
        limits = client.get("/v3/schema").json()["limits"]
        assert limits == {
            "body": 50_000, "instances": 3, "queries": 500_000, "nodes": 100_000, "steps": 100
        }  # fmt: skip
        assert client.post("/v3/explain", json={"instances": [LIGHT] * 3}).status_code == 200
        found = sentence(client.post("/v3/explain", json={"instances": [LIGHT] * 4}), 422)
        assert found == "There are 4 instances; send at most 3."
        found = sentence(explain(client, constraints=["fixed speed"] * 101), 422)
        assert "at most 100 items" in found
        assert "at most 1000 char" in sentence(explain(client, constraints=["x" * 1001]), 422)
        many = client.post("/v3/why-not", json={"instances": [], "max_queries": 50_001})
        assert sentence(many, 422).startswith("max_queries: Input should be less than")
        nulls = dict.fromkeys(ExplainRequest.model_fields.keys() - {"instances"})
        assert explain(client, **nulls).json() == explain(client).json()


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"max_body": 0}, "max_body is 0; it must be"),
     ({"max_instances": True}, "max_instances is True; it must be"),
     ({"queue": -1}, "queue is -1"), ({"threads": 0}, "threads is 0"),
     ({"timeout": 0}, "timeout is 0; it must be"), ({"timeout": "3"}, "timeout is '3'"),
     ({"timeout": 100_000}, "timeout is 100000"), ({"token": {}}, "token is empty"),
     *(({"token": token}, "token must be a text") for token in ("", "two words", "schlüssel", 7))],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused_at_once(settings, says):
    with pytest.raises(InputError, match=says):
        create_app(worlds.post().explainer, **settings)


# --- slow and broken classifiers ----------------------------------------------------------------


def test_requests_run_wait_and_are_refused_before_their_bodies_are_read(gate):
    with busy(threads=1, queue=2) as (client, pool):
        gate.open.clear()
        accepted = [pool.submit(explain, client, HEAVY) for _ in range(3)]  # one runs, two wait
        until(lambda: client.health() == {"running": 1, "waiting": 2, "stuck": 0})
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
        refused = client.post("/v3/explain", content=b"{", headers=JSON)
        found = sentence(refused, 503)
        assert found == "3 requests are running or waiting. Try again in 5 seconds."
        assert refused.headers["retry-after"] == "5"
        assert client.get("/v3/report").status_code == 200  # what needs no classifier is answered
        gate.open.set()
        assert [future.result().status_code for future in accepted] == [200] * 3
        assert explain(client).status_code == 200
        until(lambda: client.get("/readyz").status_code == 200)


def test_a_request_that_hangs_gets_504_and_its_thread_is_stuck_until_it_returns(gate):
    with busy(threads=2, queue=10) as (client, pool):
        gate.open.clear()
        for stuck in (1, 2):
            hanging = pool.submit(explain, client, HEAVY)
            assert gate.blocked.acquire(timeout=60)
            client.skip(LONG + 1)
            assert "more than 1000 seconds" in sentence(hanging.result(), 504)
            assert client.health() == {"running": 0, "waiting": 0, "stuck": stuck}
            if stuck == 1:
                assert explain(client).status_code == 200  # in the other thread
        assert client.get("/healthz").status_code == client.get("/readyz").status_code == 503
        waiting = pool.submit(explain, client)
        until(lambda: client.health()["waiting"] == 1)
        client.skip(LONG + 1)
        sentence(waiting.result(), 504)
        gate.open.set()  # they return, and nothing is left of them
        until(lambda: client.health()["stuck"] == 0)
        assert explain(client, HEAVY).status_code == 200
    until(lambda: THREAD_NAME not in {thread.name for thread in threading.enumerate()})


def test_a_request_whose_client_is_gone_is_not_computed(gate):
    with busy(threads=1, queue=5) as (client, pool):
        gate.open.clear()
        first = pool.submit(explain, client, HEAVY)
        assert gate.blocked.acquire(timeout=60)
        body = json.dumps({"instances": [HEAVY]})
        with connection(client, body):
            until(lambda: client.health()["waiting"] == 1)
        until(lambda: client.health()["waiting"] == 0)
        with connection(client, length=len(body)):
            pass  # it closes
        gate.open.set()
        assert first.result().status_code == 200
        assert explain(client).status_code == 200
        assert not gate.blocked.acquire(blocking=False), "the second was computed all the same"


def test_a_broken_classifier_is_a_bad_gateway_and_its_message_is_only_logged(gate, caplog):
    with serving(gated()[1]) as client:
        gate.broken = ConnectionError(f"no response from http://10.0.0.7/{SECRET}")
        found = sentence(explain(client), 502)
        assert found == "The classifier failed. The server's log says more."
        assert "The classifier failed. At the level DEBUG" in caplog.text
        assert SECRET not in caplog.text, "only where someone looks for it"
        with caplog.at_level("DEBUG", "lapace.apps.server"):
            sentence(explain(client), 502)
        assert SECRET in caplog.text
        assert client.get("/healthz").status_code == 200
        assert client.get("/v3/schema").json()["rules"] == ["speed >= 0"]
        gate.broken = SystemExit(3)
        assert sentence(explain(client), 502) == found
        gate.broken = None
        assert explain(client).status_code == 200


def test_an_instance_the_classifier_raises_on_does_not_stop_the_others(gate, caplog):
    instances = [LIGHT, {**LIGHT, "stamp": "cursed"}, {**LIGHT, "weight": "heavy"}]
    with serving(gated()[1]) as client:
        response = client.post("/v3/explain", json={"instances": instances})
        assert response.status_code == 200
        found = response.json()["instances"]
        assert [p["status"] for p in found] == ["answered", "malformed", "malformed"]
        assert found[1]["reason"] == "The classifier failed on the row of this instance."
        assert found[2]["reason"] == "Column 'weight' holds 'heavy' in row 2, not a number."
        assert SECRET not in response.text
        assert SECRET not in caplog.text
        assert "raised on the row of instance 1." in caplog.text


def test_an_internal_error_is_one_sentence_too(caplog):
    explainer = worlds.post().explainer

    class Broken(Explainer):
        def explain(self, X: Any, **_: Any) -> Any:
            raise RuntimeError(f"{SECRET} at {__file__}")

    broken = Broken(worlds.postage)
    broken.__dict__.update(explainer.__dict__)
    with serving(broken) as client:
        found = sentence(explain(client), 500)
        assert found == "An error occurred inside the server. Its log says more."
        assert SECRET in caplog.text
        assert client.get("/healthz").status_code == 200


# --- starting and stopping -----------------------------------------------------------------------

CHILD = """
import sys
sys.path.insert(0, {tests!r})
import pathlib, time, worlds
from lapace import Explainer
from lapace.apps.server import serve

def classify(rows):
    while any(r["weight"] == 499 for r in rows) and not pathlib.Path({gate!r}).exists():
        time.sleep(0.01)
    return worlds.postage(rows)

explainer = Explainer.load({model!r}, classify, device="cpu")
serve(explainer, port=0, ready=lambda url: print(url, flush=True), timeout={timeout})
print("stopped", flush=True)
"""


@contextmanager
def process(
    folder: Path, timeout: float = 600.0
) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A server in a process of its own; heavy letters wait for the file `gate` in the folder."""
    model = folder / "letters.lapace"
    worlds.post().explainer.save(model)
    code = CHILD.format(
        tests=str(ROOT / "tests"), gate=str(folder / "gate"), model=str(model), timeout=timeout
    )
    path = os.pathsep.join([str(ROOT / "src"), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        command = [sys.executable, "-c", code]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
    try:
        address = child.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), "loopback is the default"
        with httpx.Client(base_url=address, timeout=60) as client:
            until(lambda: reachable(client))
            yield child, client
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def reachable(client: httpx.Client, **more: Any) -> bool:
    try:
        return client.get("/healthz", **more).status_code == 200
    except httpx.TransportError:
        return False


def accepts(client: httpx.Client) -> bool:
    """Whether the server takes new connections."""
    try:
        socket.create_connection(("127.0.0.1", client.base_url.port), 60).close()
    except ConnectionError:
        return False
    return True


def test_an_interrupted_server_first_answers_running_requests(tmp_path):
    with process(tmp_path) as (child, client), ThreadPoolExecutor(1) as pool:
        running = pool.submit(explain, client, HEAVY)
        until(lambda: client.get("/healthz").json()["running"] == 1)
        child.send_signal(signal.SIGINT)
        until(lambda: not accepts(client))
        assert not running.done()
        (tmp_path / "gate").touch()
        assert running.result().status_code == 200
        assert child.wait(60) == 0
        assert child.stdout.read() == "stopped\n"


def test_a_second_interrupt_stops_a_server_without_a_traceback(tmp_path):
    with process(tmp_path) as (child, client), ThreadPoolExecutor(1) as pool:
        running = pool.submit(explain, client, HEAVY)
        until(lambda: client.get("/healthz").json()["running"] == 1)
        child.send_signal(signal.SIGINT)
        until(lambda: not accepts(client))
        child.send_signal(signal.SIGINT)
        assert running.result().status_code == 503
        assert child.wait(60) == 0
        assert "Traceback" not in (tmp_path / "log").read_text()


@contextmanager
def hanging(client: httpx.Client) -> Iterator[socket.socket]:
    """A connection whose client has stopped in the middle of a body."""
    waiting = client.get("/healthz").json()["waiting"]
    with connection(client, '{"instances"', 50) as opened:
        until(lambda: client.get("/healthz").json()["waiting"] == waiting + 1)
        yield opened


def test_a_hung_classifier_does_not_keep_the_process_from_ending(tmp_path):
    with process(tmp_path, timeout=1.0) as (child, client):
        until(lambda: explain(client, HEAVY).status_code == 504)  # 408 if the body comes too late
        assert client.get("/healthz").json()["stuck"] >= 1
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0
        assert child.stdout.read() == "stopped\n"


def test_a_missing_extra_says_what_to_install():
    code = "import sys; sys.modules['fastapi'] = None; import lapace.apps.server"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Serving needs more packages: pip install 'lapace[serve]'." in done.stderr


def test_a_port_that_cannot_be_opened_is_an_input_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"Port {port} of 127\.0\.0\.1 cannot be opened"):
            serve(worlds.post().explainer, port=port)
    for port in (-1, 70_000, "x"):
        with pytest.raises(InputError, match=f"port is {port!r}; it must be"):
            run(create_app(worlds.post().explainer), port=port)
    with pytest.raises(InputError, match="cannot be opened"):
        serve(worlds.post().explainer, host="no such host", port=0, open_=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "192.0.2.7", "no such host"])
def test_other_machines_are_served_with_a_token_only(host):
    with pytest.raises(InputError, match="There is no token: every machine"):
        serve(worlds.post().explainer, host=host, port=0)


# --- malformed bodies ----------------------------------------------------------------------------


NESTED = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner)),
    max_leaves=12,
)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=100).map(str.encode), NESTED))
def test_any_body_is_json_or_an_error_with_a_sentence(body):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    refused = None
    try:
        assert read_json(raw) == json.loads(raw)
    except HTTPException as error:
        refused = error
    assert refused is None or (refused.status_code == 400 and refused.detail.endswith("."))


@pytest.mark.parametrize(
    ("name", "column"), [("bank", "age"), ("seasons", "rain"), ("shop", "visits")]
)
def test_a_number_no_integer_type_holds_reaches_the_classifier_unchanged(name, column):
    """In a column of integers; pandas, polars and arrow each cast in their own way."""
    world = getattr(worlds, name)()
    numbers = [1e20, -1e20, 9.3e18, 1e99]
    rows = [{**plain(world)[0], column: number} for number in numbers]
    search = Search(steps=2, n_starts=1)
    found = world.explainer.explain(rows, target="any-other", search=search)
    seen = list(world.explainer.schema_.frame(found.instances)[column])
    assert [float(x.as_py() if hasattr(x, "as_py") else x) for x in seen] == numbers


CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_headers_conformance,
    schemathesis.checks.response_schema_conformance,
]


def examined(strategy: Any, count: int, *, likely: bool = False) -> Counter[int]:
    """The statuses of as many generated requests, each response held to the document.

    Half of those that are `likely` have real instances, and of the generated body only `search`:
    few random texts are labels or constraints.
    """
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy, st.sampled_from([False, likely]))
    def each(case: Any, real: bool) -> None:
        if real and isinstance(case.body, dict):
            case.body = {name: case.body[name] for name in case.body.keys() & {"search"}}
            case.body["instances"] = plain(worlds.bank())[:2]
        response = case.call()
        statuses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    each()
    return statuses


def test_schemathesis_finds_no_server_error():
    app = create_app(worlds.bank().explainer)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    seen = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.method == "get":
            assert set(examined(operation.as_strategy(), 2)) == {200}
        else:
            valid = examined(operation.as_strategy(), 30, likely=True)
            assert valid[200] >= 5, valid
            mode = schemathesis.GenerationMode.NEGATIVE
            wrong = examined(operation.as_strategy(mode), 30)
            assert sum(wrong[code] for code in (400, 415, 422)) >= 15, wrong
        seen += 1
    assert seen == 7
