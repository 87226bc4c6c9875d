"""The JSON API: real servers on loopback, asked over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
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

import worlds
from lapace import Explainer, InputError, NotFittedError, Search
from lapace.result import json_schema
from lapace.server import _listening, create_app, run, serve
from lapace.server.questions import OPTIONS, Limits, read_question
from lapace.server.refusals import RefusedError
from lapace.server.workers import Workers

HERE = Path(__file__).resolve().parent
SECRET = "a/very/private/model.skops"


# --- worlds and servers -----------------------------------------------------------------------


class Gate:
    """The letters' classifier behind a gate that a test may shut, or break."""

    classes_ = ("cheap", "dear")

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.broken = False
        self.n_queries = threading.Semaphore(0)  # counts who has come to a shut gate

    def predict(self, rows: list[dict[str, Any]]) -> list[str]:
        if self.broken:
            raise ConnectionError(f"no answer from http://10.0.0.7/{SECRET}")
        # Only heavy letters wait, so that light ones can be seen to pass.
        if not self.open.is_set() and any(r["weight"] == 499 for r in rows):
            self.n_queries.release()
            self.open.wait(60)
        if any(r["stamp"] == "cursed" for r in rows):
            raise ValueError(f"cannot read {SECRET}")
        return worlds.postage(rows)


@cache
def gated() -> tuple[Gate, Explainer]:
    """One fit for all the tests of slow and broken classifiers."""
    gate = Gate()
    explainer = Explainer(gate, n_prototypes=2, recipe=worlds.QUICK, device="cpu")
    return gate, explainer.fit(worlds.letters(300, 0))


@pytest.fixture
def gate() -> Iterator[Gate]:
    found, _ = gated()
    found.n_queries = threading.Semaphore(0)
    yield found
    found.open.set()
    found.broken = False


@contextmanager
def serving(explainer: Explainer, **settings: Any) -> Iterator[httpx.Client]:
    """A client of a real server in a thread."""
    app = create_app(explainer, **settings)
    door = _listening("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: server.run(sockets=[door]), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    address = f"http://127.0.0.1:{door.getsockname()[1]}"
    try:
        with httpx.Client(base_url=address, timeout=30) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(10)
        door.close()
    assert not thread.is_alive(), "the server does not stop"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A server of letters with the usual limits."""
    with serving(worlds.post().explainer) as found:
        yield found


LIGHT = {"weight": 20, "speed": 1, "stamp": "red"}
HEAVY = {"weight": 499, "speed": 5, "stamp": "red"}


def ask(client: httpx.Client, instance: dict[str, Any] = LIGHT, **question: Any) -> httpx.Response:
    return client.post("/v1/explain", json={"instances": [instance], **question})


def sentence(answer: httpx.Response, status: int) -> str:
    """The one sentence of a refusal, and nothing else."""
    assert answer.status_code == status, answer.text[:300]
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"]
    assert isinstance(body["error"], str)
    assert body["error"].endswith((".", "?", "…"))
    for leak in ("Traceback", ".py", "site-packages", SECRET, "10.0.0.7", "line 1,"):
        assert leak not in body["error"] or leak == "line 1,"
    return body["error"]


# --- answers ----------------------------------------------------------------------------------


def plain(world: worlds.World) -> list[dict[str, Any]]:
    """A world's instances as JSON has them."""
    explainer = world.explainer
    names, reading = explainer.schema_.names, explainer.explain(world.instances, target="any-other")
    rows = [p["row"] for p in reading.to_json()["instances"]]
    return [dict(zip(names, row, strict=True)) for row in rows]


@pytest.mark.parametrize("name", ["bank", "seasons", "signs", "shop", "post", "paper", "digits"])
def test_an_answer_is_the_librarys_own_in_the_published_format(name):
    world = getattr(worlds, name)()
    instances = plain(world)[:2]
    options = {"target": "any-other", "steps": 6, "sparse": True}
    expected = world.explainer.explain(instances, **worlds.searched(options)).to_json()
    with serving(world.explainer) as client:
        answer = client.post("/v1/explain", json={"instances": instances, **options})
    assert answer.status_code == 200
    assert answer.json() == json.loads(json.dumps(expected))
    jsonschema.validate(answer.json(), json_schema())


def test_every_setting_reaches_the_library():
    world = worlds.bank()
    instances = plain(world)[:6]
    options = {
        "target": ["approved"] * 6,
        "constraints": ["fixed age", "changes <= 3"],
        "costs": {"income": 3, "debt": 0.5},
        "steps": 7,
        "detail": "picks",
        "enforce": "naive",
        "sparse": True,
        "stable": False,
        "confidence": 0.6,
    }
    assert set(options) == set(OPTIONS)
    bare = world.explainer.explain(instances).to_json()["instances"]
    with serving(world.explainer) as client:
        for name, value in options.items():
            expected = world.explainer.explain(
                instances, **worlds.searched({name: value})
            ).to_json()
            found = client.post("/v1/explain", json={"instances": instances, name: value}).json()
            assert found == json.loads(json.dumps(expected)), name
            changes_little = ("enforce", "stable", "target")  # by themselves
            assert name in changes_little or found["instances"] != json.loads(json.dumps(bare)), (
                name
            )
        both = client.post("/v1/explain", json={"instances": instances, **options}).json()
    assert both == json.loads(
        json.dumps(world.explainer.explain(instances, **worlds.searched(options)).to_json())
    )


def test_questions_asked_at_once_are_answered_as_if_alone(client):
    instances = plain(worlds.post())
    alone = [json.dumps(worlds.post().explainer.explain([p]).to_json()) for p in instances]
    with ThreadPoolExecutor(12) as crowd:
        answers = list(crowd.map(lambda p: ask(client, p), instances * 2))
    assert [a.status_code for a in answers] == [200] * len(answers)
    assert [a.json() for a in answers] == [json.loads(a) for a in alone * 2]


def test_what_there_is_to_know_about_an_explainer():
    world = worlds.bank()
    explainer = world.explainer
    with serving(explainer) as client:
        schema = client.get("/v1/schema").json()
        prototypes = client.get("/v1/prototypes").json()["prototypes"]
        report = client.get("/v1/report").json()
        back = client.post(
            "/v1/explain", json={"instances": [p["row"] for p in prototypes], "target": "approved"}
        ).json()
    assert schema["labels"] == list(explainer.classes_)
    assert [f["name"] for f in schema["features"]] == list(explainer.schema_.names)
    assert not {"knots", "histogram"} & set(schema["features"][0]), "training values stay here"
    assert report == json.loads(json.dumps(explainer.report_.to_json()))
    assert [p["number"] for p in prototypes] == [p.number for p in explainer.prototypes_]
    # A prototype sent back is the row it was, and the classifier says of it what is written.
    assert [p["label"] for p in back["instances"]] == [p["label"] for p in prototypes]
    assert all(p["valid"] for p in prototypes)


def test_why_not_tells_of_everyone_without_an_answer():
    world = worlds.bank()
    instances = plain(world)[:8]
    question = {
        "instances": instances,
        "target": "approved",
        "constraints": ["fixed income", "fixed debt", "fixed home", "fixed grade"],
    }
    expected = world.explainer.explain(
        instances, target="approved", constraints=question["constraints"]
    )
    with serving(world.explainer) as client:
        told = client.post("/v1/why-not", json=question)
    assert told.status_code == 200
    found = told.json()["instances"]
    assert [p["instance"] for p in found] == list(range(len(instances)))
    assert [p["status"] for p in found] == list(expected.status)
    stuck = [p for p in found if p["status"] in ("none_found", "infeasible")]
    assert stuck
    for instance in stuck:
        assert instance["why_not"] == json.loads(
            json.dumps(expected[instance["instance"]].why_not.to_json())
        )
    assert all(p["why_not"] is None for p in found if p not in stuck)


def test_rules_are_told_and_nobody_at_all_may_be_asked_about(client):
    assert client.get("/v1/schema").json()["rules"] == []
    nobody = client.post("/v1/explain", json={"instances": []})
    assert nobody.status_code == 200
    assert nobody.json()["instances"] == []
    jsonschema.validate(nobody.json(), json_schema())


# --- the OpenAPI document ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bank", "seasons", "signs", "shop", "post", "digits", "rare"])
def test_every_example_works_as_it_stands(name):
    explainer = getattr(worlds, name)().explainer
    with serving(explainer, max_body=100_000) as client:
        document = client.get("/openapi.json").json()
        body = document["paths"]["/v1/explain"]["post"]["requestBody"]["content"]
        examples = body["application/json"]["examples"]
        assert len(examples) >= 4
        question = {**document, "$ref": "#/components/schemas/Question"}
        for name, example in examples.items():
            jsonschema.Draft202012Validator(question).validate(example["value"])
            answer = client.post("/v1/explain", json=example["value"])
            assert answer.status_code == 200, (name, answer.text[:300])
            found = {**document, "$ref": "#/components/schemas/Explanation"}
            jsonschema.Draft202012Validator(found).validate(answer.json())
            jsonschema.validate(answer.json(), json_schema())


def test_the_document_names_every_endpoint_and_no_script_from_elsewhere(client):
    document = client.get("/openapi.json").json()
    assert sorted(document["paths"]) == [
        "/healthz", "/v1/explain", "/v1/prototypes", "/v1/report", "/v1/schema", "/v1/why-not",
    ]  # fmt: skip
    assert "securitySchemes" not in document["components"]
    for path in ("/docs", "/redoc"):
        sentence(client.get(path), 404)


def test_the_constant_answers_fit_their_schemas(client):
    document = client.get("/openapi.json").json()
    for path in ("/healthz", "/v1/prototypes", "/v1/report", "/v1/schema"):
        told = document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
        schema = {**document, **told["schema"]}
        jsonschema.Draft202012Validator(schema).validate(client.get(path).json())


# --- the door ----------------------------------------------------------------------------------


def test_a_token_is_wanted_everywhere_but_at_healthz():
    with serving(worlds.post().explainer, token="open-sesame") as client:
        assert client.get("/healthz").json()["status"] == "ok"
        told = (b"Bearer sesame", b"Basic open-sesame", b"Bearer", b"open-sesame", b"Bearer \xff",
                b"Bearer open-sesame2", b"Bearer open-sesam")  # fmt: skip
        for wrong in ({}, *({"Authorization": words} for words in told)):
            for path in ("/v1/schema", "/v1/report", "/v1/prototypes", "/openapi.json", "/nope"):
                refused = client.get(path, headers=wrong)
                assert "token" in sentence(refused, 401)
                assert refused.headers["www-authenticate"] == "Bearer"
            sentence(client.post("/v1/explain", headers=wrong, content=b"{"), 401)
        right = {"Authorization": "bearer open-sesame"}
        assert client.get("/v1/schema", headers=right).status_code == 200
        document = client.get("/openapi.json", headers=right).json()
        assert document["security"] == [{"token": []}]
        assert document["paths"]["/healthz"]["get"]["security"] == []
        found = client.post("/v1/explain", headers=right, json={"instances": [LIGHT]})
        assert found.status_code == 200


@pytest.mark.parametrize("token", ["", "two words", "schlüssel", "new\nline", 7])
def test_a_token_no_header_can_carry_is_refused(token):
    with pytest.raises(InputError, match="token must"):
        create_app(worlds.post().explainer, token=token)


def test_without_a_token_this_machine_only_by_its_own_name():
    with serving(worlds.post().explainer, loopback=True) as client:
        port = client.base_url.port
        for name in (
            "127.0.0.1",
            "localhost",
            f"localhost:{port}",
            f"LOCALHOST:{port}",
            "[::1]:80",
            "127.0.0.2",
        ):
            assert client.get("/v1/schema", headers={"Host": name}).status_code == 200, name
        for name in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            "localhosts",
            "127.evil.example",
        ):
            assert "token" in sentence(client.get("/v1/schema", headers={"Host": name}), 403)
            assert client.get("/healthz", headers={"Host": name}).status_code == 200
    with serving(worlds.post().explainer, loopback=True, token="t") as client:
        headers = {"Host": "behind.example", "Authorization": "Bearer t"}
        assert client.get("/v1/schema", headers=headers).status_code == 200


def test_pages_from_elsewhere_may_ask_only_where_they_are_let():
    origin = {"Origin": "https://example.org"}
    preflight = {**origin, "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization,content-type"}  # fmt: skip
    with serving(worlds.post().explainer) as client:
        assert "access-control-allow-origin" not in client.get("/v1/schema", headers=origin).headers
        refused = client.options("/v1/explain", headers=preflight)
        assert "access-control-allow-origin" not in refused.headers
        sentence(refused, 405)
    with serving(worlds.post().explainer, cors=["https://example.org"], token="t") as client:
        allowed = client.options("/v1/explain", headers=preflight)  # it carries no token
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://example.org"
        refused = client.get("/v1/schema", headers=origin)
        sentence(refused, 401)
        assert refused.headers["access-control-allow-origin"] == "https://example.org"
        other = client.get("/v1/schema", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_answers_are_not_kept_and_say_little_about_the_server(client):
    for answer in (ask(client), client.get("/v1/report"), client.get("/nope")):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/v1/explain/", "POST", 404), ("/v1/explain", "GET", 405), ("/", "GET", 404),
     ("/v1/schema", "POST", 405), ("/../etc/passwd", "GET", 404), ("/v1/%00", "GET", 404)],
)  # fmt: skip
def test_paths_and_methods_nobody_knows(client, path, method, status):
    sentence(client.request(method, path), status)


# --- bodies ------------------------------------------------------------------------------------


def big(size: int) -> bytes:
    return b'{"instances": []' + b" " * (size - 14) + b"}"


JSON = {"Content-Type": "application/json"}


def test_a_body_too_large_is_refused_however_it_comes():
    with serving(worlds.post().explainer, max_body=10_000) as client:
        assert client.post("/v1/explain", content=big(10_000), headers=JSON).status_code == 200
        for size in (10_001, 300_000, 5_000_000):
            told = sentence(client.post("/v1/explain", content=big(size), headers=JSON), 413)
            assert "10,000 bytes" in told
            body = big(size)
            parts = (body[k : k + 5_000] for k in range(0, size, 5_000))  # chunked
            sentence(client.post("/v1/explain", content=parts, headers=JSON), 413)
        body = big(9_000)
        parts = (body[k : k + 500] for k in range(0, 9_000, 500))
        assert client.post("/v1/explain", content=parts, headers=JSON).status_code == 200
        # A body without an end is not read for ever.
        endless = (b" " * 65_536 for _ in range(10_000))
        with suppress(httpx.TransportError):  # the line may be cut while sending
            assert client.post("/v1/explain", content=endless, headers=JSON).status_code == 413
        assert client.get("/healthz").status_code == 200


def test_a_compressed_body_is_not_unpacked(client):
    bomb = gzip.compress(big(1_000))
    headers = {**JSON, "Content-Encoding": "gzip"}
    assert "plain" in sentence(client.post("/v1/explain", content=bomb, headers=headers), 415)


@pytest.mark.parametrize("media", ["", "text/plain", "application/x-www-form-urlencoded", "json"])
def test_a_body_must_say_that_it_is_json(client, media):
    answer = client.post("/v1/explain", content=big(100), headers={"Content-Type": media})
    assert "application/json" in sentence(answer, 415)


def test_a_body_that_does_not_come_is_not_waited_for():
    with serving(worlds.post().explainer, timeout=0.3) as client:
        with socket.create_connection(("127.0.0.1", client.base_url.port), 10) as line:
            head = "POST /v1/explain HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            line.sendall(f'{head}Content-Length: 50\r\n\r\n{{"instances"'.encode())
            answer = line.makefile("rb").read().decode()
        assert answer.startswith("HTTP/1.1 408")
        assert "did not come within 0.3 seconds" in answer
        with socket.create_connection(("127.0.0.1", client.base_url.port), 10) as line:
            line.sendall(f"{head}Content-Length: 50\r\n\r\n".encode())  # and hangs up
        assert ask(client).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "not JSON at line 1, column 1"),
        (b"{", 400, "not JSON"),
        (b'{"instances": [}', 400, "column 13"),
        (b"\xff\xfe{\x00}\x00", 400, "not UTF-8 at byte 0"),
        (b'{"instances": [{"weight": "\xc3"}]}', 400, "not UTF-8 at byte 24"),
        (b'{"instances": [{"weight": NaN}]}', 400, "it has no NaN. Say null"),
        (b'{"instances": [], "costs": {"weight": -Infinity}}', 400, "no -Infinity"),
        (b'{"instances": [{"weight": 1e999}]}', 422, "1e999 is too large"),
        (b'{"instances": [{"weight": -1.5e100}]}', 422, "numbers go to 1e+100"),
        (b'{"instances": [{"weight": ' + b"9" * 102 + b"}]}", 422, "too large"),
        (b'{"instances": [{"weight": ' + b"9" * 5000 + b"}]}", 422, "99999… is too large"),
        (b'{"instances": [], "instances": []}', 422, "'instances' is there twice"),
        (b'{"instances": [{"stamp": "\\ud800"}]}', 422, "surrogate"),
        (b'{"instances": [{"\\udc00": 1}]}', 422, "surrogate"),
        (b"[" * 100_000, 400, "nested too deeply"),
        (b'{"a":' * 50_000, 400, "nested too deeply"),
        (b"[]", 422, "The question is a list"),
        (b"null", 422, "The question is null"),
        (b"7", 422, "The question is a number"),
        (b"{}", 422, "'instances' is missing"),
        (b'{"peple": []}', 422, "'peple' that means nothing here. Did you mean 'instances'?"),
        (b'{"instances": {}}', 422, "instances is an object"),
        (b'{"instances": [3]}', 422, "instances[0] is a number"),
        (b'{"instances": [{"weight": 3}]}', 422, "lacks column 'speed'"),
        (
            b'{"instances": [{"weight": 3, "sped": 1, "stamp": 0}]}',
            422,
            "Is it the one called 'sped'?",
        ),
        (b'{"instances": [{"weight": [3], "speed": 1, "stamp": "red"}]}', 422, "a list in column"),
        (b'{"instances": [], "target": {}}', 422, "target is an object"),
        (b'{"instances": [], "target": [[]]}', 422, "target[0] is a list"),
        (b'{"instances": [], "target": ["dear"]}', 422, "1 targets for 0 instances"),
        (b'{"instances": [], "target": "deer"}', 422, "Did you mean 'dear'?"),
        (b'{"instances": [], "target": 1e30}', 422, "known labels"),
        (b'{"instances": [], "constraints": {"a": 1}}', 422, "constraints is an object"),
        (b'{"instances": [], "constraints": [1]}', 422, "constraints[0] is a number"),
        (b'{"instances": [], "constraints": ["weigt <= 3"]}', 422, "'weigt'"),
        (b'{"instances": [], "costs": [1]}', 422, "costs is a list"),
        (b'{"instances": [], "costs": {"weight": "x"}}', 422, "The cost of 'weight' is a text"),
        (b'{"instances": [], "costs": {"weight": true}}', 422, "The cost of 'weight' is true"),
        (b'{"instances": [], "costs": {"weight": -1}}', 422, "must be zero or more"),
        (b'{"instances": [], "costs": {"wait": 1}}', 422, "Did you mean 'weight'?"),
        (b'{"instances": [], "steps": 101}', 422, "at most 100"),
        (b'{"instances": [], "steps": 1}', 422, "steps is 1"),
        (b'{"instances": [], "steps": 2.5}', 422, "steps is 2.5"),
        (b'{"instances": [], "steps": "2"}', 422, "steps is '2'"),
        (b'{"instances": [], "detail": []}', 422, "detail is []"),
        (b'{"instances": [], "sparse": 1}', 422, "sparse is 1"),
        (b'{"instances": [], "stable": "no"}', 422, "stable is 'no'"),
        (b'{"instances": [], "confidence": 2}', 422, "confidence is 2"),
        (b'{"instances": [], "confidence": 0.9}', 422, "predict_proba"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(client, body, status, says):
    assert says in sentence(client.post("/v1/explain", content=body, headers=JSON), status)
    assert says in sentence(client.post("/v1/why-not", content=body, headers=JSON), status)


def test_limits_are_kept_and_told():
    settings = {"max_instances": 3, "max_steps": 9, "max_body": 50_000}
    with serving(worlds.post().explainer, **settings) as client:
        assert client.get("/v1/schema").json()["limits"] == {
            "body": 50_000, "instances": 3, "steps": 9
        }  # fmt: skip
        fine = client.post("/v1/explain", json={"instances": [LIGHT] * 3, "steps": 9})
        assert fine.status_code == 200
        told = sentence(client.post("/v1/explain", json={"instances": [LIGHT] * 4}), 422)
        assert (
            told == "There are 4 instances; this server answers at most 3 at a time. Ask in parts."
        )
        assert "at most 9" in sentence(ask(client, steps=10), 422)
        assert "101 constraints" in sentence(ask(client, constraints=["fixed speed"] * 101), 422)
        assert "1,001 characters" in sentence(ask(client, constraints=["x" * 1001]), 422)


def test_columns_nobody_knows_cost_nothing(client):
    """Each instance with thousands of other columns: as quick as without them."""
    instances = [{**LIGHT, **{f"c{i}_{k}": [k] for k in range(900)}} for i in range(60)]
    start = time.perf_counter()
    answer = client.post("/v1/explain", json={"instances": instances, "steps": 2})
    assert answer.status_code == 200
    assert answer.json()["template"]["names"] == ["weight", "speed", "stamp"]
    lacking = [{f"c{i}_{k}": 0 for k in range(900)} for i in range(60)]
    assert "lacks column" in sentence(client.post("/v1/explain", json={"instances": lacking}), 422)
    assert time.perf_counter() - start < 10


def test_long_words_are_cut_in_the_sentence(client):
    told = sentence(ask(client, **{"x" * 5_000: 1}), 422)
    assert len(told) < 300
    assert len(sentence(ask(client, target="y" * 50_000), 422)) <= 600


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"max_body": 0}, "max_body is 0"), ({"max_instances": True}, "max_instances is True"),
     ({"max_steps": 1}, "max_steps is 1"), ({"queue": -1}, "queue is -1"),
     ({"workers": 0}, "workers is 0"), ({"timeout": 0}, "timeout is 0"),
     ({"timeout": "3"}, "timeout is '3'"), ({"cors": ["example.org"]}, "not an origin"),
     ({"cors": ["https://example.org/"]}, "not an origin")],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused_at_once(settings, says):
    with pytest.raises(InputError, match=says):
        create_app(worlds.post().explainer, **settings)


def test_an_explainer_must_be_fitted():
    with pytest.raises(NotFittedError):
        create_app(Explainer(worlds.postage))


# --- slow and broken classifiers ----------------------------------------------------------------


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def working() -> int:
    return sum(thread.name == "lapace-worker" for thread in threading.enumerate())


def test_a_full_queue_says_when_to_come_back(gate):
    _, explainer = gated()
    with (
        serving(explainer, workers=1, queue=2, timeout=30) as client,
        ThreadPoolExecutor(3) as crowd,
    ):
        gate.open.clear()
        inside = [crowd.submit(ask, client, HEAVY) for _ in range(3)]  # one runs, two wait
        until(lambda: client.get("/healthz").json()["waiting"] == 2)
        for _ in range(5):
            refused = ask(client)
            told = sentence(refused, 429)
            assert told.startswith("2 questions are waiting already. Ask again in ")
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert client.get("/v1/report").status_code == 200  # what needs no classifier is answered
        gate.open.set()
        assert [f.result().status_code for f in inside] == [200] * 3
        assert ask(client).status_code == 200


def test_a_question_that_hangs_does_not_take_the_others_with_it(gate):
    _, explainer = gated()
    others_threads = working()
    with serving(explainer, workers=2, queue=10, timeout=0.6) as client:
        quick = time.perf_counter()
        assert ask(client).status_code == 200
        quick = time.perf_counter() - quick
        gate.open.clear()
        with ThreadPoolExecutor(3) as crowd:
            hanging = [crowd.submit(ask, client, HEAVY) for _ in range(3)]
            for _ in range(3):
                gate.n_queries.acquire()  # all three hang, though only two may run at once
            others = [crowd.submit(ask, client) for _ in range(4)]
            assert [f.result().status_code for f in others] == [200] * 4
            for each in hanging:
                assert "more than 0.6 seconds" in sentence(each.result(), 504)
        health = client.get("/healthz").json()
        assert (health["status"], health["stuck"]) == ("ok", 3)
        start = time.perf_counter()
        assert ask(client).status_code == 200
        assert time.perf_counter() - start < 0.5 + 5 * quick
        gate.open.set()  # they come back, and nothing is left of it
        until(lambda: client.get("/healthz").json()["stuck"] == 0)
        until(lambda: working() <= others_threads + 2)
        assert ask(client, HEAVY).status_code == 200
    until(lambda: working() <= others_threads)


def test_when_all_spares_hang_everyone_is_told_and_it_recovers(gate):
    release = threading.Event()

    async def story() -> None:
        workers = Workers(size=2, queue=4, timeout=0.15, spare=1)

        def hang() -> bytes:
            release.wait(20)
            return b"late"

        asked = [asyncio.create_task(workers.answer(hang)) for _ in range(6)]
        done = await asyncio.gather(*asked, return_exceptions=True)
        codes = sorted(error.status for error in done)
        # Two hang, a spare takes one more, and the rest hears at once that nobody is left.
        assert codes.count(504) == 3
        assert set(codes) <= {429, 503, 504}
        assert workers.load().stuck == 3
        assert not workers.load().able
        with pytest.raises(RefusedError, match="does not answer: 3 questions hang") as caught:
            await workers.answer(lambda: b"x")
        assert caught.value.status == 503
        release.set()
        while workers.load().stuck:
            await asyncio.sleep(0.01)
        assert await workers.answer(lambda: b"back") == b"back"
        many = await asyncio.gather(*(workers.answer(lambda: b"y") for _ in range(6)))
        assert many == [b"y"] * 6
        assert workers.load().able

    asyncio.run(story())


def test_a_question_that_waits_too_long_is_sent_away_and_never_run():
    ran = []

    async def story() -> None:
        workers = Workers(size=1, queue=4, timeout=0.2, spare=4)
        slow = asyncio.create_task(workers.answer(lambda: time.sleep(0.19) or b"slow"))
        await asyncio.sleep(0.02)
        chain = [workers.answer(lambda: time.sleep(0.19) or b"slow") for _ in range(2)]
        last = workers.answer(lambda: ran.append(1) or b"ran")
        found = await asyncio.gather(slow, *chain, last, return_exceptions=True)
        assert found[0] == b"slow"
        assert isinstance(found[3], RefusedError)
        assert found[3].status == 429
        assert int(found[3].headers["Retry-After"]) >= 1

    asyncio.run(story())
    assert ran == []


def test_a_question_taken_back_is_not_answered(gate):
    _, explainer = gated()
    with serving(explainer, workers=1, queue=5) as client:
        gate.open.clear()
        with ThreadPoolExecutor(1) as crowd:
            first = crowd.submit(ask, client, HEAVY)
            gate.n_queries.acquire()
            with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=client.base_url) as other:
                other.post("/v1/explain", json={"instances": [HEAVY]}, timeout=0.2)
            until(lambda: client.get("/healthz").json()["waiting"] == 0)
            gate.open.set()
            assert first.result().status_code == 200
        assert not gate.n_queries.acquire(blocking=False), "the second was asked about all the same"


def test_a_broken_classifier_is_a_bad_gateway_and_its_words_stay_here(gate, caplog):
    _, explainer = gated()
    with serving(explainer) as client:
        gate.broken = True
        told = sentence(ask(client), 502)
        assert told == "The classifier did not answer as it should. The server's log says more."
        assert SECRET in caplog.text, "the log should say more"
        assert client.get("/healthz").status_code == 200
        gate.broken = False
        assert ask(client).status_code == 200


def test_a_person_the_classifier_raises_on_costs_no_other_and_tells_no_secret(gate):
    _, explainer = gated()
    instances = [LIGHT, {**LIGHT, "stamp": "cursed"}, {**LIGHT, "weight": "heavy"}]
    with serving(explainer) as client:
        answer = client.post("/v1/explain", json={"instances": instances})
        assert answer.status_code == 200
        found = answer.json()["instances"]
        assert [p["status"] for p in found] == ["answered", "malformed", "malformed"]
        assert found[1]["reason"] == "The classifier cannot judge this instance's row."
        assert found[2]["reason"] == "Column 'weight' holds 'heavy' in row 2, not a number."
        assert SECRET not in answer.text


def test_a_mistake_of_ours_is_one_sentence_too(caplog):
    explainer = worlds.post().explainer

    class Broken(Explainer):
        def explain(self, instances: Any, **_: Any) -> Any:
            raise RuntimeError(f"{SECRET} at {__file__}")

    broken = Broken(worlds.postage)
    broken.__dict__.update(explainer.__dict__)
    with serving(broken) as client:
        told = sentence(ask(client), 500)
        assert told == "Something went wrong inside the server. Its log says more."
        assert SECRET in caplog.text
        assert client.get("/healthz").status_code == 200


# --- starting and stopping -----------------------------------------------------------------------

CHILD = """
import sys
sys.path.insert(0, {tests!r})
import time, worlds
from lapace import Explainer
from lapace.server import serve
{before}
serve({explainer}, port=0, ready=lambda address: print(address, flush=True))
print("stopped", flush=True)
"""

SLOW = """
naps = [1.0]

def slow(rows):
    if naps and any(r["weight"] == 499 for r in rows):
        time.sleep(naps.pop())
    return worlds.postage(rows)

explainer = Explainer(slow, n_prototypes=1, recipe=worlds.QUICK, device="cpu")
explainer.fit([{**r, "weight": r["weight"] % 499} for r in worlds.letters(300, 0)])
"""


@contextmanager
def process(
    explainer: str = "worlds.post().explainer", before: str = ""
) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A server in a process of its own."""
    code = CHILD.format(tests=str(HERE), explainer=explainer, before=before)
    path = os.pathsep.join([str(HERE.parent / "src"), *sys.path])
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    try:
        address = child.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), "loopback, unless told otherwise"
        with httpx.Client(base_url=address, timeout=30) as client:
            until(lambda: reachable(client))
            yield child, client
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def reachable(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_an_interrupted_server_answers_first_what_it_was_asked():
    with process("explainer", before=SLOW) as (child, client), ThreadPoolExecutor(1) as crowd:
        asked = crowd.submit(ask, client, HEAVY)
        until(lambda: client.get("/healthz").json()["running"] == 1)
        child.send_signal(signal.SIGINT)
        assert asked.result().status_code == 200
        assert child.wait(20) == 0
        assert child.stdout.read() == "stopped\n"


def test_a_missing_extra_says_what_to_install():
    code = "import sys; sys.modules['fastapi'] = None; import lapace.server"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Serving needs fastapi and uvicorn: pip install 'lapace[serve]'." in done.stderr


def test_a_port_that_is_taken_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"Port {port} of 127\.0\.0\.1 cannot be opened"):
            serve(worlds.post().explainer, port=port)
    for port in (-1, 70_000, "x"):
        with pytest.raises(InputError, match=f"port is {port!r}"):
            run(create_app(worlds.post().explainer), "127.0.0.1", port)
    with pytest.raises(InputError, match="cannot be opened"):
        serve(worlds.post().explainer, host="no such host", port=0)


# --- rubbish -------------------------------------------------------------------------------------


def rubbish(count: int) -> Iterator[bytes]:
    """Bodies that are wrong in ever other ways, and the same ones every time."""
    rng = random.Random(0)
    good = json.dumps({"instances": [LIGHT, HEAVY], "target": "dear", "constraints": ["fixed speed"],
                       "costs": {"weight": 2.0}, "steps": 5, "sparse": True}).encode()  # fmt: skip
    odd = [
        None,
        True,
        -1,
        0,
        10**20,
        10**99,
        -1.5,
        1e99,
        "",
        "x" * 1_000,
        "\x00",
        "é",
        [],
        {},
        [[]],
        {"a": {}},
        [None],
        "any-other",
        "fixed",
        "`",
        "weight <= 1e400",
        "((((",
        "1 - 1",
    ]
    names = ["instances", "target", "constraints", "costs", "steps", "detail", "enforce", "sparse",
             "stable", "confidence", "progress", "self", "__class__", ""]  # fmt: skip
    for k in range(count):
        kind = k % 6
        if kind == 0:  # cut off
            yield good[: rng.randrange(len(good) - 1)]
        elif kind == 1:  # a few bytes changed into what JSON does not have
            body = bytearray(good)
            for _ in range(rng.randrange(1, 4)):
                body[rng.randrange(len(body))] = rng.choice(b'\x00\x01\xff\xc0{}[]",:\\')
            body[rng.randrange(len(body))] = 0xFF
            yield bytes(body)
        elif kind == 2:  # noise
            yield rng.randbytes(rng.randrange(1, 400))
        elif kind == 3:  # an entry that must not be there
            name = f"{rng.choice(names)}{rng.choice('_xyz')}"
            yield json.dumps({"instances": [LIGHT], name: rng.choice(odd)}).encode()
        elif kind == 4:  # instances who are none
            instances = rng.choice([v for v in odd if v not in ([], None)])
            yield json.dumps({"instances": instances, "target": rng.choice(odd)}).encode()
        else:  # settings that are none
            wrong = {
                "steps": rng.choice(["", -1, 10**20, [], {}, 1.5, False]),
                rng.choice(names[1:4]): rng.choice([{"a": []}, [[1]], [{}], {"b": "c"}]),
            }
            yield json.dumps({"instances": [LIGHT], **wrong}).encode()  # fmt: skip


def resident(pid: int) -> int:
    """Bytes of a process that are in memory."""
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_thousands_of_malformed_bodies_leave_the_server_as_it_was():
    bodies = list(rubbish(2_400))
    assert len(set(bodies)) > 1_500
    with process() as (child, client):
        for body in bodies[:400]:  # warm
            client.post("/v1/explain", content=body, headers=JSON)
        for _ in range(10):
            assert ask(client).status_code == 200
        before = resident(child.pid)
        seen: dict[int, int] = {}
        for k, body in enumerate(bodies):
            path = "/v1/why-not" if k % 7 == 0 else "/v1/explain"
            answer = client.post(path, content=body, headers=JSON)
            assert 400 <= answer.status_code < 500, (body[:200], answer.status_code, answer.text)
            sentence(answer, answer.status_code)
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
        large = [b"[" * 900_000, b'{"a":' * 180_000, big(3_000_000), b'"' + b"\\u00e9" * 150_000]
        for body in large * 5:
            assert 400 <= client.post("/v1/explain", content=body, headers=JSON).status_code < 500
        grown = resident(child.pid) - before
        assert child.poll() is None
        assert ask(client).status_code == 200
    assert min(seen.get(400, 0), seen.get(422, 0)) > 500
    assert grown < 40_000_000, f"memory grew by {grown:,} bytes"


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
NAMES = ("instances", *OPTIONS)


@settings(max_examples=150)
@given(st.one_of(st.binary(max_size=200), NESTED, st.dictionaries(st.sampled_from(NAMES), NESTED)))
def test_whatever_comes_is_a_question_or_a_sentence(body):
    schema = worlds.post().explainer.schema_
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        question = read_question(raw, schema, Limits())
    except (RefusedError, InputError) as refused:
        told = str(refused)
    else:
        told = "a question"
        assert all(set(p) <= set(schema.names) for p in question.instances)
        assert set(question.options) <= set(OPTIONS)
    assert told


CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**99), 10**99),
    st.floats(-1e99, 1e99),
    st.text(max_size=4),
    st.sampled_from(["red", "1", "1e999", "nan", "true"]),
)


@settings(max_examples=60)
@given(st.lists(st.fixed_dictionaries(dict.fromkeys(LIGHT, CELLS)), max_size=3))
def test_no_person_breaks_the_library(instances):
    """What gets past the door is answered: strange instances are malformed, never an error of ours."""
    explainer = worlds.post().explainer
    body = json.dumps({"instances": instances}).encode()
    question = read_question(body, explainer.schema_, Limits())
    answer = explainer.explain(question.instances, search=Search(steps=2, detail="picks"))
    jsonschema.validate(json.loads(json.dumps(answer.to_json(), allow_nan=False)), json_schema())


@pytest.mark.parametrize(
    ("name", "column"), [("bank", "age"), ("seasons", "rain"), ("shop", "visits")]
)
@pytest.mark.parametrize("number", [1e20, -1e20, 9.3e18, 1e99])
def test_a_number_no_integer_holds_is_shown_to_the_classifier_as_it_is(name, column, number):
    """In a column of whole numbers; pandas, polars and arrow each cast in their own way."""
    world = getattr(worlds, name)()
    instance = {**plain(world)[0], column: number}
    body = json.dumps({"instances": [instance]}).encode()
    question = read_question(body, world.explainer.schema_, Limits())
    told = world.explainer.explain(
        question.instances, target="any-other", search=Search(steps=2, detail="picks")
    )
    seen = world.explainer.schema_.frame(told.instances)[column]
    assert float(seen[0].as_py() if hasattr(seen[0], "as_py") else seen[0]) == number


CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_headers_conformance,
    schemathesis.checks.response_schema_conformance,
]


def examined(strategy: Any, count: int) -> Counter[int]:
    """The statuses of as many generated requests, each answer held to the document."""
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy, st.booleans())
    def each(case: Any, free: bool) -> None:
        if free and isinstance(case.body, dict):  # few random texts are constraints
            limits = ("constraints", "costs")
            case.body = {name: value for name, value in case.body.items() if name not in limits}
        answer = case.call()
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

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
    assert seen == 6
