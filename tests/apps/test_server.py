"""The JSON API: real servers on loopback, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
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

from lapace import Explainer, InputError, NotFittedError, Search
from lapace.apps.server import create_app, make_app, run, serve
from lapace.apps.server.http import AccessMiddleware
from lapace.apps.server.metrics import Metrics
from lapace.apps.server.models import ExplainRequest, WhyNotRequest, parse_request, request_models
from lapace.apps.server.running import listen
from lapace.apps.server.work_queue import THREAD_NAME, WorkQueue
from lapace.documents import plain as plain_json
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
        self.broken = False
        self.blocked = threading.Semaphore(0)  # counts the calls that had to wait

    def predict(self, rows: list[dict[str, Any]]) -> list[str]:
        if self.broken:
            raise ConnectionError(f"no response from http://10.0.0.7/{SECRET}")
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
    found.broken = False


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
    return client.post("/v2/explain", json={"instances": [instance], **request})


def request_of(options: dict[str, Any]) -> dict[str, Any]:
    """A request with these settings, those of the search in their own object."""
    search = {name: value for name, value in options.items() if name in SEARCH}
    return {**{k: v for k, v in options.items() if k not in SEARCH}, "search": search}


def in_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


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


@pytest.mark.parametrize("name", ["bank", "seasons", "signs", "shop", "post", "paper", "digits"])
def test_a_response_is_the_librarys_explanation_in_the_published_format(name):
    world = getattr(worlds, name)()
    instances = plain(world)[:2]
    options = {"target": "any-other", "steps": 6, "n_best": 2}
    expected = world.explainer.explain(instances, **worlds.searched(options)).to_json()
    with serving(world.explainer) as client:
        response = client.post("/v2/explain", json={"instances": instances, **request_of(options)})
    assert response.status_code == 200
    assert response.json() == in_json(expected)
    jsonschema.validate(response.json(), json_schema())


def test_every_setting_reaches_the_library():
    world = worlds.bank()
    instances = plain(world)[:6]
    options = {
        "target": ["approved"] * 6,
        "constraints": ["fixed age", "changes <= 3"],
        "costs": {"income": 3, "debt": 0.5},
        "confidence": 0.6,
        "steps": 7,
        "stable": False,
        "enforce": "naive",
        "n_starts": 1,
        "picks": ["nearest", "best", "first"],
        "n_best": 1,
        "plausibility": 50,
    }
    assert set(options) == {*ExplainRequest.model_fields, *SEARCH} - {"instances", "search"}
    bare = in_json(world.explainer.explain(instances).to_json())["instances"]
    with serving(world.explainer) as client:
        for name, value in options.items():
            one = {name: value}
            expected = world.explainer.explain(instances, **worlds.searched(one)).to_json()
            request = {"instances": instances, **request_of(one)}
            found = client.post("/v2/explain", json=request).json()
            assert found == in_json(expected), name
            changes_little = ("enforce", "n_starts", "stable", "target")  # by themselves
            assert name in changes_little or found["instances"] != bare, name
        request = {"instances": instances, **request_of(options)}
        found = client.post("/v2/explain", json=request).json()
    expected = world.explainer.explain(instances, **worlds.searched(options)).to_json()
    assert found == in_json(expected)


def test_null_means_the_default(client):
    nulls = dict.fromkeys(ExplainRequest.model_fields.keys() - {"instances"})
    for request in (nulls, {"search": dict.fromkeys(SEARCH)}):
        assert explain(client, **request).json() == explain(client).json()


def test_concurrent_requests_are_answered_as_if_alone(client):
    instances = plain(worlds.post())
    alone = [in_json(worlds.post().explainer.explain([row]).to_json()) for row in instances]
    with ThreadPoolExecutor(12) as pool:
        responses = list(pool.map(lambda row: explain(client, row), instances * 2))
    assert [response.status_code for response in responses] == [200] * len(responses)
    assert [response.json() for response in responses] == alone * 2


def test_an_explainer_is_described_without_training_values():
    world = worlds.bank()
    explainer = world.explainer
    with serving(explainer) as client:
        schema = client.get("/v2/schema").json()
        prototypes = client.get("/v2/prototypes").json()["prototypes"]
        report = client.get("/v2/report").json()
        rows = [prototype["row"] for prototype in prototypes]
        back = client.post("/v2/explain", json={"instances": rows, "target": "approved"}).json()
    assert schema["labels"] == list(explainer.classes_)
    assert [f["name"] for f in schema["features"]] == list(explainer.schema_.names)
    assert not {"knots", "histogram"} & set(schema["features"][0])
    assert report == in_json(explainer.report_.to_json())
    assert [p["number"] for p in prototypes] == [p.number for p in explainer.prototypes_]
    # A prototype sent back is the same row, and the classifier gives it the label written there.
    assert [p["label"] for p in back["instances"]] == [p["label"] for p in prototypes]
    assert all(p["valid"] for p in prototypes)


def test_why_not_covers_every_instance_without_a_counterfactual():
    world = worlds.bank()
    instances = plain(world)[:8]
    constraints = ["fixed income", "fixed debt", "fixed home", "fixed grade"]
    explanation = world.explainer.explain(instances, target="approved", constraints=constraints)
    request = {"instances": instances, "target": "approved", "constraints": constraints}
    with serving(world.explainer) as client:
        response = client.post("/v2/why-not", json=request)
        none = client.post("/v2/why-not", json={**request, "max_queries": 0})
        plain_explanation = client.post("/v2/explain", json=request)
    assert response.status_code == 200
    expected = world.explainer.why_not(explanation)
    found = response.json()["instances"]
    assert [p["instance"] for p in found] == list(range(len(instances)))
    assert [p["status"] for p in found] == list(expected.status)
    without = [p for p in found if p["status"] in ("none_found", "infeasible")]
    assert without
    for instance in without:
        assert instance["why_not"] == plain_json(expected[instance["instance"]].why_not)
    assert all(p["why_not"] is None for p in found if p not in without)
    # The budget of queries is the request's, and only this route spends any.
    budget = world.explainer.why_not(explanation, max_queries=0)
    assert none.json() == in_json(why_not_to_json(budget))
    assert none.json() != response.json()
    assert all(p["why_not"] is None for p in plain_explanation.json()["instances"])


def test_no_instances_are_an_empty_explanation(client):
    response = client.post("/v2/explain", json={"instances": []})
    assert response.status_code == 200
    assert response.json()["instances"] == []
    jsonschema.validate(response.json(), json_schema())


# --- the OpenAPI document ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bank", "seasons", "signs", "shop", "post", "digits", "rare"])
def test_every_example_can_be_sent_as_it_is(name):
    explainer = getattr(worlds, name)().explainer
    with serving(explainer, max_body=100_000) as client:
        document = client.get("/openapi.json").json()
        body = document["paths"]["/v2/explain"]["post"]["requestBody"]["content"]
        examples = body["application/json"]["examples"]
        assert len(examples) >= 4
        request = {**document, **body["application/json"]["schema"]}
        explanation = {**document, "$ref": "#/components/schemas/Explanation"}
        for name, example in examples.items():
            jsonschema.Draft202012Validator(request).validate(example["value"])
            response = client.post("/v2/explain", json=example["value"])
            assert response.status_code == 200, (name, response.text[:300])
            jsonschema.Draft202012Validator(explanation).validate(response.json())
            jsonschema.validate(response.json(), json_schema())


def test_the_document_lists_every_route_and_there_are_no_pages_with_foreign_scripts(client):
    document = client.get("/openapi.json").json()
    assert sorted(document["paths"]) == [
        "/healthz", "/metrics", "/readyz", "/v2/explain", "/v2/prototypes", "/v2/report",
        "/v2/schema", "/v2/why-not",
    ]  # fmt: skip
    assert "securitySchemes" not in document["components"]
    for path in ("/docs", "/redoc"):
        sentence(client.get(path), 404)


def test_the_document_has_the_columns_labels_and_limits(client):
    request = client.get("/openapi.json").json()["components"]["schemas"]["ExplainRequest"]
    instances = request["properties"]["instances"]
    assert instances["maxItems"] == 100
    assert instances["items"]["required"] == ["weight", "speed", "stamp"]
    assert request["properties"]["target"]["anyOf"][0]["enum"] == ["cheap", "dear", "any-other"]
    assert set(request["properties"]["costs"]["properties"]) == set(LIGHT)


def test_labels_that_are_equal_in_python_are_not_mixed_up_between_servers():
    for world in (worlds.signs(), worlds.shop(), worlds.signs()):
        labels = world.explainer.classes_
        model, _ = request_models(world.explainer, max_instances=1, max_steps=20)
        found = model.model_json_schema()["properties"]["target"]["anyOf"][1]["items"]["enum"]
        assert list(map(type, found)) == list(map(type, labels))
        assert found == list(labels)


def test_the_page_names_every_route_field_status_and_setting(client):
    page = (ROOT / "docs" / "how-to" / "serving.md").read_text(encoding="utf-8")
    paths = client.get("/openapi.json").json()["paths"]
    statuses = {status for path in paths.values() for route in path.values()
                for status in route["responses"]} - {"200", "500"}  # fmt: skip
    settings = set(inspect.signature(create_app).parameters) - {"explainer"}
    names = {*WhyNotRequest.model_fields, *SEARCH, *settings}
    for word in (*paths, *statuses, *(f"`{name}`" for name in names)):
        assert word in page, word


# --- access ------------------------------------------------------------------------------------


def test_a_token_is_required_everywhere_but_at_healthz():
    with serving(worlds.post().explainer, token="open-sesame") as client:
        assert client.health()["status"] == "ok"
        for path in ("/healthz", "/readyz"):
            assert client.get(path).status_code == client.head(path).status_code == 200
        values = (b"Bearer sesame", b"Basic open-sesame", b"Bearer", b"open-sesame", b"Bearer \xff",
                  b"Bearer open-sesame2", b"Bearer open-sesam")  # fmt: skip
        for wrong in ({}, *({"Authorization": value} for value in values)):
            for path in ("/v2/schema", "/v2/report", "/metrics", "/openapi.json", "/nope"):
                refused = client.get(path, headers=wrong)
                assert "token" in sentence(refused, 401)
                assert refused.headers["www-authenticate"] == "Bearer"
            sentence(client.post("/v2/explain", headers=wrong, content=b"{"), 401)
        right = {"Authorization": "bearer open-sesame"}
        assert client.get("/v2/schema", headers=right).status_code == 200
        document = client.get("/openapi.json", headers=right).json()
        assert document["security"] == [{"token": []}]
        assert document["paths"]["/healthz"]["get"]["security"] == []
        found = client.post("/v2/explain", headers=right, json={"instances": [LIGHT]})
        assert found.status_code == 200


def test_tokens_are_compared_in_constant_time(monkeypatch):
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return a == b

    monkeypatch.setattr("lapace.apps.server.tokens.hmac.compare_digest", compare)
    with serving(worlds.post().explainer, token="open-sesame") as client:
        for token in ("no", "o", "open-sesame", "x" * 5_000):
            client.get("/v2/schema", headers={"Authorization": f"Bearer {token}"})
    assert compared == [(32, 32)] * 4


@pytest.mark.parametrize("token", ["", "two words", "schlüssel", "new\nline", 7])
def test_a_token_no_header_can_carry_is_refused(token):
    with pytest.raises(InputError, match=r"^token must be a text"):
        create_app(worlds.post().explainer, token=token)


def test_without_a_token_only_loopback_host_names_are_answered():
    with serving(worlds.post().explainer, make=make_app) as client:
        port = client.base_url.port
        for name in ("127.0.0.1", "localhost", f"LOCALHOST:{port}", "[::1]:80", "[::1]"):
            assert client.get("/v2/schema", headers={"Host": name}).status_code == 200, name
        for name in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example",
                     "localhosts", "127.evil.example", "localhost:80.evil.example"):  # fmt: skip
            assert "localhost" in sentence(client.get("/v2/schema", headers={"Host": name}), 403)
            assert client.get("/healthz", headers={"Host": name}).status_code == 200
    with serving(worlds.post().explainer, make=make_app, token="t") as client:
        headers = {"Host": "behind.example", "Authorization": "Bearer t"}
        assert client.get("/v2/schema", headers=headers).status_code == 200


def test_other_origins_are_refused_unless_cors_names_them():
    origin = {"Origin": "https://example.org"}
    preflight = {**origin, "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization,content-type"}  # fmt: skip
    with serving(worlds.post().explainer) as client:
        assert "access-control-allow-origin" not in client.get("/v2/schema", headers=origin).headers
        refused = client.options("/v2/explain", headers=preflight)
        assert "access-control-allow-origin" not in refused.headers
        sentence(refused, 405)
    with serving(worlds.post().explainer, cors=["https://example.org"], token="t") as client:
        allowed = client.options("/v2/explain", headers=preflight)  # it carries no token
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://example.org"
        refused = client.get("/v2/schema", headers=origin)
        sentence(refused, 401)
        assert refused.headers["access-control-allow-origin"] == "https://example.org"
        other = client.get("/v2/schema", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_too_many_requests_in_flight_are_refused_before_their_bodies_are_read():
    release = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()

    async def receive() -> Any:
        raise AssertionError("a byte of the body was read")

    async def story() -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        middleware = AccessMiddleware(app, max_in_flight=1, metrics=Metrics())
        scope = {"type": "http", "method": "POST", "path": "/v2/explain", "headers": []}
        first = asyncio.create_task(middleware(scope, receive, send))
        await asyncio.sleep(0)
        await middleware(scope, receive, send)
        release.set()
        await first
        assert not middleware.in_flight
        return sent

    start, body = asyncio.run(story())
    assert start["status"] == 429
    assert (b"retry-after", b"1") in start["headers"]
    assert json.loads(body["body"]) == {"error": "1 requests are in flight. Try again in 1 second."}


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/v2/explain/", "POST", 404), ("/v2/explain", "GET", 405), ("/", "GET", 404),
     ("/v2/schema", "POST", 405), ("/../etc/passwd", "GET", 404), ("/v2/%00", "GET", 404)],
)  # fmt: skip
def test_unknown_paths_and_methods_are_errors(client, path, method, status):
    sentence(client.request(method, path), status)


# --- bodies ------------------------------------------------------------------------------------


def padded(size: int) -> bytes:
    return b'{"instances": []' + b" " * (size - 14) + b"}"


def test_a_body_too_large_is_refused_however_it_is_sent():
    with serving(worlds.post().explainer, max_body=10_000) as client:
        assert client.post("/v2/explain", content=padded(9_997), headers=JSON).status_code == 200
        for size in (10_001, 300_000, 5_000_000):
            body = padded(size)
            found = sentence(client.post("/v2/explain", content=body, headers=JSON), 413)
            assert "10,000 bytes" in found
            parts = (body[k : k + 5_000] for k in range(0, size, 5_000))  # chunked
            sentence(client.post("/v2/explain", content=parts, headers=JSON), 413)
        body = padded(9_000)
        parts = (body[k : k + 500] for k in range(0, len(body), 500))
        assert client.post("/v2/explain", content=parts, headers=JSON).status_code == 200
        # A body without an end is not read forever.
        endless = (b" " * 65_536 for _ in range(10_000))
        with suppress(httpx.TransportError):  # the connection may be closed while it is sent
            assert client.post("/v2/explain", content=endless, headers=JSON).status_code == 413
        assert client.get("/healthz").status_code == 200


def test_a_compressed_body_is_not_unpacked(client):
    headers = {**JSON, "Content-Encoding": "gzip"}
    response = client.post("/v2/explain", content=gzip.compress(padded(1_000)), headers=headers)
    assert "compressed" in sentence(response, 415)


@pytest.mark.parametrize("media", ["", "text/plain", "application/x-www-form-urlencoded", "json"])
def test_a_body_must_be_declared_as_json(client, media):
    response = client.post("/v2/explain", content=padded(100), headers={"Content-Type": media})
    assert "application/json" in sentence(response, 415)


def test_a_body_that_does_not_arrive_times_out():
    with serving(worlds.post().explainer, timeout=LONG) as client:
        head = "POST /v2/explain HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        address = ("127.0.0.1", client.base_url.port)
        with socket.create_connection(address, 60) as connection, ThreadPoolExecutor(1) as pool:
            connection.sendall(f'{head}Content-Length: 50\r\n\r\n{{"instances"'.encode())
            reading = pool.submit(connection.makefile("rb").read)
            # The request may not have been received yet when the clock is moved.
            until(lambda: client.skip(LONG + 1) or reading.done())
            response = reading.result().decode()
        assert response.startswith("HTTP/1.1 408")
        assert "did not arrive within 1000 seconds" in response
        with socket.create_connection(address, 60) as connection:
            connection.sendall(f"{head}Content-Length: 50\r\n\r\n".encode())  # and closes
        assert explain(client).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "not JSON at line 1, column 1"),
        (b"\xff\xfe{\x00}\x00", 400, "not UTF-8 at byte 0"),
        (b'{"instances": [{"weight": "\xc3"}]}', 400, "not UTF-8 at byte 27"),
        (b'{"instances": [{"weight": NaN}]}', 400, "JSON has no NaN. Send null"),
        (b'{"instances": [{"weight": 1e999}]}', 422, "1e999 is too large"),
        (b'{"instances": [{"weight": ' + b"9" * 5000 + b"}]}", 422, "99999… is too large"),
        (b'{"instances": [], "instances": []}', 422, "'instances' is twice in one object"),
        (b'{"instances": [{"stamp": "\\ud800"}]}', 422, "surrogate"),
        (b"[" * 100_000, 400, "nested too deeply"),
        (b"[]", 422, "The body is a list of length 0; it must be an object."),
        (b"{}", 422, "The request lacks the field 'instances'."),
        (b'{"instnces": []}', 422, "unknown field 'instnces'. Did you mean 'instances'?"),
        (b'{"instances": [], "steps": 5}', 422, "Put it into the object 'search'."),
        (b'{"instances": [], "search": {"stps": 5}}', 422, "Did you mean 'steps'?"),
        (b'{"instances": {}}', 422, "instances is an object; it must be a valid list."),
        (b'{"instances": [3]}', 422, "instances[0] is 3; it must be an object."),
        (b'{"instances": [{"weight": 3}]}', 422, "lacks column 'speed'"),
        (b'{"instances": [{"weight": 3, "sped": 1, "stamp": 0}]}', 422, "'sped'?"),
        (b'{"instances": [{"weight": [3], "speed": 1, "stamp": "red"}]}', 422,
         "instances[0].weight must be a string, a number, true, false or null."),
        (b'{"instances": [], "target": {}}', 422, "give one label"),
        (b'{"instances": [], "target": ["dear"]}', 422, "1 target"),
        (b'{"instances": [], "target": "deer"}', 422, "Did you mean 'dear'?"),
        (b'{"instances": [], "constraints": {"a": 1}}', 422, "constraints is an object"),
        (b'{"instances": [], "constraints": "fixed speed"}', 422, "it must be a valid list"),
        (b'{"instances": [], "constraints": ["weigt <= 3"]}', 422, "'weigt'"),
        (b'{"instances": [], "costs": {"weight": "x"}}', 422, 'costs.weight is "x"; it must be'),
        (b'{"instances": [], "costs": {"weight": -1}}', 422, "must be zero or more"),
        (b'{"instances": [], "costs": {"wait": 1}}', 422, "Did you mean 'weight'?"),
        (b'{"instances": [], "search": {"steps": 101}}', 422, "less than or equal to 100."),
        (b'{"instances": [], "search": {"steps": 1}}', 422, "search.steps is 1; it must be greate"),
        (b'{"instances": [], "search": {"steps": "2"}}', 422, 'search.steps is "2"; it must be'),
        (b'{"instances": [], "search": {"enforce": []}}', 422, "'exact', 'naive' or 'latent'."),
        (b'{"instances": [], "search": {"stable": 1}}', 422, "search.stable is 1; it must be"),
        (b'{"instances": [], "search": {"picks": ["frist"]}}', 422, "search.picks[0] is"),
        (b'{"instances": [], "search": {"n_best": 11}}', 422, "search.n_best is 11; it must be"),
        (b'{"instances": [], "plausibility": 100}', 422, "plausibility is 100; it must be"),
        (b'{"instances": [], "confidence": 2}', 422, "confidence is 2; it must be less than or"),
        (b'{"instances": [], "confidence": 0.9}', 422, "predict_proba"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_body_is_one_sentence_that_names_the_field(client, body, status, says):
    assert says in sentence(client.post("/v2/explain", content=body, headers=JSON), status)
    assert says in sentence(client.post("/v2/why-not", content=body, headers=JSON), status)


def test_the_budget_of_queries_is_bounded(client):
    for wrong in (-1, 50_001, 1.5, "9"):
        request = {"instances": [], "max_queries": wrong}
        found = sentence(client.post("/v2/why-not", json=request), 422)
        assert found.startswith("max_queries is ")
    refused = client.post("/v2/explain", json={"instances": [], "max_queries": 1})
    assert "unknown field 'max_queries'" in sentence(refused, 422)


def test_limits_hold_and_are_listed():
    settings = {"max_instances": 3, "max_steps": 9, "max_body": 50_000}
    with serving(worlds.post().explainer, **settings) as client:
        limits = client.get("/v2/schema").json()["limits"]
        assert {name: limits[name] for name in ("body", "instances", "steps")} == {
            "body": 50_000, "instances": 3, "steps": 9
        }  # fmt: skip
        assert {"queries", "nodes"} < set(limits)
        request = {"instances": [LIGHT] * 3, "search": {"steps": 9}}
        assert client.post("/v2/explain", json=request).status_code == 200
        # The library's default is more than this server allows: then the default is its limit.
        assert explain(client).json() == explain(client, search={"steps": 9}).json()
        found = sentence(client.post("/v2/explain", json={"instances": [LIGHT] * 4}), 422)
        assert found == "instances is a list of length 4; it must have at most 3 items, not 4."
        assert "equal to 9." in sentence(explain(client, search={"steps": 10}), 422)
        found = sentence(explain(client, constraints=["fixed speed"] * 101), 422)
        assert "at most 100 items" in found
        found = sentence(explain(client, constraints=["x" * 1001]), 422)
        assert "at most 1000 characters" in found


def test_unknown_columns_are_dropped_before_the_library_reads_the_rows():
    explainer = worlds.post().explainer
    model, _ = request_models(explainer, max_instances=100, max_steps=100)
    rows = [{**LIGHT, **{f"c{i}_{k}": [k] for k in range(900)}} for i in range(60)]
    request = parse_request(model, json.dumps({"instances": rows}).encode())
    assert request.instances == [LIGHT] * 60


def test_long_words_are_cut_in_the_sentence(client):
    assert len(sentence(explain(client, **{"x" * 5_000: 1}), 422)) < 300
    assert len(sentence(explain(client, target="y" * 50_000), 422)) <= 600
    assert len(sentence(explain(client, costs={"z" * 5_000: "1"}), 422)) < 300


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"max_body": 0}, "max_body is 0; it must be"),
     ({"max_instances": True}, "max_instances is True; it must be"),
     ({"max_steps": 1}, "max_steps is 1; it must be a whole number from 2 on"),
     ({"queue": -1}, "queue is -1"), ({"threads": 0}, "threads is 0"),
     ({"timeout": 0}, "timeout is 0; it must be"), ({"timeout": "3"}, "timeout is '3'"),
     ({"timeout": 100_000}, "timeout is 100000"),
     ({"cors": ["example.org"]}, "cors holds 'example.org', not an origin"),
     ({"cors": ["https://example.org/"]}, "not an origin"),
     ({"cors": "https://example.org"}, "not an origin")],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused_at_once(settings, says):
    with pytest.raises(InputError, match=says):
        create_app(worlds.post().explainer, **settings)


def test_an_explainer_must_be_fitted():
    with pytest.raises(NotFittedError):
        create_app(Explainer(worlds.postage))


# --- slow and broken classifiers ----------------------------------------------------------------


def working() -> int:
    return sum(thread.name == THREAD_NAME for thread in threading.enumerate())


def test_a_full_queue_says_when_to_try_again(gate):
    _, explainer = gated()
    with (
        serving(explainer, threads=1, queue=2, timeout=LONG) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        gate.open.clear()
        accepted = [pool.submit(explain, client, HEAVY) for _ in range(3)]  # one runs, two wait
        until(lambda: client.health()["waiting"] == 2)
        for _ in range(5):
            refused = explain(client)
            found = sentence(refused, 429)
            assert found.startswith("2 requests are waiting already. Try again in ")
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert client.get("/v2/report").status_code == 200  # what needs no classifier is answered
        gate.open.set()
        assert [future.result().status_code for future in accepted] == [200] * 3
        assert explain(client).status_code == 200


def test_requests_that_hang_do_not_stop_the_others(gate):
    _, explainer = gated()
    before = working()
    with (
        serving(explainer, threads=2, queue=10, timeout=LONG) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        gate.open.clear()
        hanging = [pool.submit(explain, client, HEAVY) for _ in range(3)]
        for _ in range(2):
            assert gate.blocked.acquire(timeout=60)
        until(lambda: client.health()["waiting"] == 1)
        client.skip(LONG + 1)
        assert gate.blocked.acquire(timeout=60)  # the third runs though two may run at once
        client.skip(LONG + 1)
        for future in hanging:
            assert "more than 1000 seconds" in sentence(future.result(), 504)
        assert client.health() == {"status": "ok", "running": 0, "waiting": 0, "stuck": 3}
        others = [pool.submit(explain, client) for _ in range(4)]
        assert [future.result().status_code for future in others] == [200] * 4
        gate.open.set()  # they return, and nothing is left of them
        until(lambda: client.health()["stuck"] == 0)
        until(lambda: working() <= before)
        assert explain(client, HEAVY).status_code == 200
    until(lambda: working() <= before)


def story(test: Callable[[SkippingLoop], Coroutine[Any, Any, None]]) -> None:
    """Runs a coroutine on a loop whose clock it can move forward."""
    loop = SkippingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(test(loop))


async def happens(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.001)


class Blocking:
    """A call that returns when it is released."""

    def __init__(self) -> None:
        self.released, self.started = threading.Event(), threading.Event()

    def __call__(self) -> bytes:
        self.started.set()
        self.released.wait(60)
        return b"late"


def test_when_every_thread_hangs_callers_get_503_until_one_returns():
    async def test(loop: SkippingLoop) -> None:
        queue = WorkQueue(threads=1, queue=4, timeout=LONG, spare=1)
        calls = [Blocking(), Blocking()]
        hanging = [asyncio.create_task(queue.run(call)) for call in calls]
        await happens(calls[0].started.is_set)
        assert not calls[1].started.is_set()
        loop.skipped += LONG + 1
        await happens(calls[1].started.is_set)  # in the spare thread
        waiting = asyncio.create_task(queue.run(lambda: b"never"))
        await happens(lambda: queue.counts()["waiting"] == 1)
        loop.skipped += LONG + 1
        found = await asyncio.gather(*hanging, waiting, return_exceptions=True)
        assert [error.status_code for error in found] == [504, 504, 503]
        assert queue.status == "stuck"
        assert queue.counts() == {"running": 0, "waiting": 0, "stuck": 2}
        with pytest.raises(HTTPException, match="does not respond: 2 requests hang") as caught:
            await queue.run(lambda: b"x")
        assert caught.value.status_code == 503
        assert caught.value.headers == {"Retry-After": "60"}
        for call in calls:
            call.released.set()
        await happens(lambda: queue.counts()["stuck"] == 0)
        assert queue.status == "ok"
        assert await asyncio.gather(*(queue.run(lambda: b"y") for _ in range(5))) == [b"y"] * 5

    story(test)


def test_a_call_that_waits_too_long_is_refused_and_never_run():
    ran = []

    async def test(loop: SkippingLoop) -> None:
        queue = WorkQueue(threads=1, queue=4, timeout=LONG, spare=4)
        calls = [Blocking() for _ in range(3)]
        tasks = [asyncio.create_task(queue.run(call)) for call in calls]
        last = asyncio.create_task(queue.run(lambda: ran.append(1) or b"ran"))
        for call in calls:  # each takes 0.9 of the timeout, the last one waits 2.7 of it
            await happens(call.started.is_set)
            loop.skipped += 0.9 * LONG
            await asyncio.sleep(0.01)
            call.released.set()
        assert await asyncio.gather(*tasks) == [b"late"] * 3
        with pytest.raises(HTTPException, match="took too long") as caught:
            await last
        assert caught.value.status_code == 429
        assert caught.value.headers == {"Retry-After": "60"}

    story(test)
    assert ran == []


def test_a_request_whose_client_is_gone_is_not_computed(gate):
    _, explainer = gated()
    with (
        serving(explainer, threads=1, queue=5, timeout=LONG) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        gate.open.clear()
        first = pool.submit(explain, client, HEAVY)
        assert gate.blocked.acquire(timeout=60)
        body = json.dumps({"instances": [HEAVY]})
        head = "POST /v2/explain HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", client.base_url.port), 60) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            until(lambda: client.health()["waiting"] == 1)
        until(lambda: client.health()["waiting"] == 0)
        gate.open.set()
        assert first.result().status_code == 200
        assert explain(client).status_code == 200
        assert not gate.blocked.acquire(blocking=False), "the second was computed all the same"


def test_a_broken_classifier_is_a_bad_gateway_and_its_message_is_only_logged(gate, caplog):
    _, explainer = gated()
    with serving(explainer) as client:
        gate.broken = True
        found = sentence(explain(client), 502)
        assert found == "The classifier failed. The server's log says more."
        assert "The classifier failed. At the level DEBUG" in caplog.text
        assert SECRET not in caplog.text, "only where someone looks for it"
        with caplog.at_level("DEBUG", "lapace.apps.server"):
            sentence(explain(client), 502)
        assert SECRET in caplog.text
        assert client.get("/healthz").status_code == 200
        assert client.get("/v2/schema").json()["rules"] == ["speed >= 0"]
        gate.broken = False
        assert explain(client).status_code == 200


def test_an_instance_the_classifier_raises_on_does_not_stop_the_others(gate, caplog):
    _, explainer = gated()
    instances = [LIGHT, {**LIGHT, "stamp": "cursed"}, {**LIGHT, "weight": "heavy"}]
    with serving(explainer) as client:
        response = client.post("/v2/explain", json={"instances": instances})
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


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=20)
)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
NAMES = (*ExplainRequest.model_fields, "steps")


@cache
def letter_model() -> type[ExplainRequest]:
    return request_models(worlds.post().explainer, max_instances=100, max_steps=100)[0]


@settings(max_examples=150)
@given(st.one_of(st.binary(max_size=200), NESTED, st.dictionaries(st.sampled_from(NAMES), NESTED)))
def test_any_body_is_a_request_or_an_error_with_a_sentence(body):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    error, request = None, None
    try:
        request = parse_request(letter_model(), raw)
    except HTTPException as caught:
        error = caught
    if request is not None:
        assert all(set(row) <= set(LIGHT) for row in request.instances)
    else:
        assert error.status_code in (400, 422)
        assert error.detail.endswith((".", "?", "…"))


@pytest.mark.parametrize(
    ("name", "column"), [("bank", "age"), ("seasons", "rain"), ("shop", "visits")]
)
@pytest.mark.parametrize("number", [1e20, -1e20, 9.3e18, 1e99])
def test_a_number_no_integer_type_holds_reaches_the_classifier_unchanged(name, column, number):
    """In a column of integers; pandas, polars and arrow each cast in their own way."""
    explainer = getattr(worlds, name)().explainer
    model, _ = request_models(explainer, max_instances=1, max_steps=20)
    row = {**plain(getattr(worlds, name)())[0], column: number}
    request = parse_request(model, json.dumps({"instances": [row]}).encode())
    search = Search(steps=2, n_starts=1)
    found = explainer.explain(request.instances, target="any-other", search=search)
    seen = explainer.schema_.frame(found.instances)[column]
    assert float(seen[0].as_py() if hasattr(seen[0], "as_py") else seen[0]) == number


CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_headers_conformance,
    schemathesis.checks.response_schema_conformance,
]


def examined(strategy: Any, count: int) -> Counter[int]:
    """The statuses of as many generated requests, each response held to the document."""
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy, st.booleans())
    def each(case: Any, unconstrained: bool) -> None:
        if unconstrained and isinstance(case.body, dict):  # few random texts are constraints
            dropped = ("constraints", "costs", "confidence")
            case.body = {name: value for name, value in case.body.items() if name not in dropped}
        response = case.call()
        statuses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    each()
    return statuses


def test_schemathesis_finds_no_server_error():
    app = create_app(worlds.bank().explainer, max_instances=2, max_steps=6)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    seen = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.method == "get":
            assert set(examined(operation.as_strategy(), 3)) == {200}
        else:
            valid = examined(operation.as_strategy(), 40)
            assert valid[200] >= 5, valid
            mode = schemathesis.GenerationMode.NEGATIVE
            wrong = examined(operation.as_strategy(mode), 40)
            assert sum(wrong[code] for code in (400, 415, 422)) >= 20, wrong
        seen += 1
    assert seen == 8
