"""Classifiers queried over HTTP: a real server on loopback that may be slow, wrong or gone."""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from test_loaders import CELLS, HIGH, SCHEMA, TABLE, each_label, fitted, zip_members

from lapace import Explainer
from lapace.apps.loaders import addresses, load_classifier, remote
from lapace.classifier import Classifier, query_rows
from lapace.errors import ClassifierError, InputError
from tests import worlds
from tests.worlds import mixed_table


class Server:
    """A service: `reply(rows)` returns JSON values, or a status and a text.

    `handle`, where set, writes the whole response.

    Handlers that wait do so on `released`, which is set when the test is over.
    """

    def __init__(self) -> None:
        self.released = threading.Event()
        self.requests: list[dict] = []
        self.headers: list[dict] = []
        self.paths: list[str] = []
        self.reply: Callable[..., Any] = lambda rows: {"labels": [label_of(row) for row in rows]}
        self.handle: Callable[[BaseHTTPRequestHandler], Any] | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.requests.append(json.loads(body))
                outer.headers.append({k.lower(): v for k, v in self.headers.items()})
                outer.paths.append(self.path)
                if outer.handle is not None:
                    outer.handle(self)
                else:
                    reply = outer.reply(outer.requests[-1]["rows"])
                    status, body = reply if isinstance(reply, tuple) else (200, json.dumps(reply))
                    respond(self, body, status)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.block_on_close = False
        self.url = f"http://127.0.0.1:{self.http.server_port}/predict"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()


def label_of(row: dict) -> str:
    return "high" if (row["a"] or 0) + row["b"] > 4 else "low"


def respond(
    handler: BaseHTTPRequestHandler, body: str | bytes, status: int = 200, **headers: str
) -> None:
    data = body.encode() if isinstance(body, str) else body
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.delenv(addresses.TOKEN, raising=False)
    running = Server()
    yield running
    running.released.set()
    running.http.shutdown()
    running.http.server_close()


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """The pauses between attempts, none of which is waited for."""
    noted: list[float] = []
    real = asyncio.sleep
    uvicorns = 0.1  # a server that another test has started in a thread sleeps so

    async def no_sleep(seconds: float) -> None:
        if seconds == uvicorns:
            await real(seconds)
            return
        noted.append(seconds)
        await real(0)

    monkeypatch.setattr("asyncio.sleep", no_sleep)
    return noted


EXPECTED = ["high" if high else "low" for high in HIGH]


def fails(sentence: str, url: str, **settings: Any) -> None:
    """Queries a service that cannot be used."""
    with pytest.raises(ClassifierError, match=sentence):
        load_classifier(url, **settings).predict(TABLE)


@pytest.mark.parametrize(
    "convert",
    [lambda t: t, pl.from_pandas, pa.Table.from_pandas, lambda t: t.to_dict("records")],
    ids=["pandas", "polars", "pyarrow", "records"],
)
def test_rows_are_sent_as_json_and_missing_is_null(server, convert):
    model = load_classifier(server.url)
    assert model.predict(convert(TABLE)) == EXPECTED
    assert server.requests[0]["rows"][0] == {"a": TABLE["a"][0], "b": TABLE["b"][0]}
    assert type(server.requests[0]["rows"][0]["b"]) is int
    table, _ = mixed_table(60)
    server.reply = lambda rows: ["low"] * len(rows)  # a bare list is taken as well
    assert model.predict(convert(table)) == ["low"] * 60
    row = server.requests[-1]["rows"][int(table["income"].isna().argmax())]
    assert row["income"] is None
    assert isinstance(row["garden"], bool)
    assert isinstance(row["size"], str)


@each_label
@pytest.mark.parametrize("probable", [False, True])
def test_labels_survive_http(server, labels, probable):
    yes, no = labels

    def reply(rows: list) -> dict:
        high = [label_of(row) == "high" for row in rows]
        if not probable:
            return {"labels": [yes if h else no for h in high]}
        return {
            "classes": [yes, no],
            "probabilities": [[0.9, 0.1] if h else [0.2, 0.8] for h in high],
        }

    server.reply = reply
    classifier = Classifier(load_classifier(server.url), SCHEMA)
    codes = classifier.fit_labels(CELLS)
    assert classifier.labels == tuple(sorted(labels))
    assert {type(label) for label in classifier.labels} == {type(yes)}
    assert [classifier.labels[c] for c in codes] == [yes if h else no for h in HIGH]
    predicted = classifier.query(CELLS)
    assert (predicted.codes == codes).all()
    if probable:
        column = classifier.labels.index(yes)
        assert predicted.probability[:, column].tolist() == [0.9 if h else 0.2 for h in HIGH]
    else:
        assert predicted.probability is None
    assert len(server.requests) == 2


def test_labels_win_over_the_highest_probability(server):
    scores = {"classes": ["low", "high"], "probabilities": [[0.4, 0.6]] * len(TABLE)}
    server.reply = lambda rows: {"labels": ["low"] * len(rows), **scores}
    assert load_classifier(server.url).predict(TABLE) == ["low"] * len(TABLE)


def test_large_tables_are_sent_in_parts(server, monkeypatch):
    monkeypatch.setattr(remote, "ROWS", 64)
    model = load_classifier(server.url)
    assert model.predict(TABLE) == EXPECTED
    assert [len(body["rows"]) for body in server.requests] == [64, 64, 64, 8]
    assert model.predict(TABLE.head(0)) == []


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        ({"labels": ["low"]}, "returned 1 labels for 200 rows"),
        (["low"] * 201, "returned 201 labels for 200 rows"),
        ({"labels": [None] * 200}, "returned None as a label"),
        ({"labels": [0.5] * 200}, "returned 0.5 as a label"),
        ({"labels": [{}] * 200}, "labels that are not text"),
        ({"answer": 1}, "neither 'labels' nor 'probabilities'"),
        ("low", r"an array of shape \(\) for 200 rows"),
        (None, "neither 'labels' nor"),
        ({"probabilities": [[0.5, 0.5]] * 200}, "without 'classes'"),
        ({"classes": ["a", "a"], "probabilities": [[0.5, 0.5]] * 200}, "without 'classes'"),
        *[
            ({"classes": ["a", "b"], "probabilities": scores}, "one row per row and one column")
            for scores in ([[0.5, 0.5]], [[0.5]] * 200, [["x", 1]] * 200, [[1], [1, 0]] * 100)
        ],
        ({"classes": ["a", "b"], "probabilities": [[None, 1]] * 200}, "gives NaN for row 0"),
        (
            {"classes": ["a", "b"], "probabilities": [[0.9, 0.9]] * 200},
            "scores that are not probabilities",
        ),
        (
            {"classes": ["a", "b"], "probabilities": [[-1, 2]] * 200},
            "scores that are not probabilities",
        ),
    ],
)
def test_invalid_responses(server, reply, sentence):
    server.reply = lambda rows: reply
    fails(rf"classifier at {server.url} .*{sentence}", server.url)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("<html>Sign in</html>", ": a web page. Check"),
        ("low, high", ": low, high. Check"),
        ("", ""),
        ('{"labels": [NaN]}', ""),
        ("[" * 100_000, ""),
        (b"\xff\xfe\x00", ""),
    ],
)
def test_what_is_not_json(server, body, sentence):
    server.reply = lambda rows: (200, body)
    with pytest.raises(ClassifierError, match=f"did not respond with JSON{sentence}") as caught:
        load_classifier(server.url).predict(TABLE)
    assert len(str(caught.value)) < 400
    assert "<" not in str(caught.value)


def test_classes_must_not_change(server, monkeypatch):
    orders = iter([["a", "b"], ["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]])
    server.reply = lambda rows: {"classes": next(orders), "probabilities": [[1, 0]] * len(rows)}
    model = load_classifier(server.url)
    assert model.predict(TABLE)[0] == "a"
    assert model.predict_proba(TABLE)[0].tolist() == [1, 0]
    with pytest.raises(ClassifierError, match="must not change"):
        model.predict(TABLE)
    monkeypatch.setattr(remote, "ROWS", 100)
    with pytest.raises(ClassifierError, match="changes its classes between responses"):
        model.predict(TABLE)


def test_an_error_status_is_reported_with_its_text_and_not_retried(server):
    server.reply = lambda rows: (422, '{"detail": "no column \'c\'"}')
    fails(r"status 422: .*no column 'c'", server.url)
    assert len(server.requests) == 1
    server.reply = lambda rows: (500, "<h1>x</h1>")
    fails(r"responded with status 500: a web page\.$", server.url)
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_retried(server, status, pauses):
    turns = iter([True, True, False])
    server.reply = lambda rows: (status, "") if next(turns) else [label_of(row) for row in rows]
    assert load_classifier(server.url).predict(TABLE) == EXPECTED
    assert len(server.requests) == 3
    server.reply = lambda rows: (status, "later")
    fails(f"status {status}: later", server.url)
    assert len(server.requests) == 3 + remote.ATTEMPTS
    for pause, least in zip(pauses, [0.2, 0.4, 0.2, 0.4, 0.8, 1.6], strict=True):
        assert least <= pause <= least + remote.PAUSE


def test_the_number_of_rows_a_service_takes_is_found(server):
    server.reply = lambda rows: (413, "") if len(rows) > 30 else [label_of(row) for row in rows]
    model = load_classifier(server.url)
    assert model.predict(TABLE) == EXPECTED
    sizes = [len(request["rows"]) for request in server.requests]
    assert sizes[:4] == [200, 100, 50, 25]
    assert set(sizes[4:]) == {25}
    server.requests.clear()
    assert model.predict(TABLE) == EXPECTED
    assert max(len(request["rows"]) for request in server.requests) == 25, "it is remembered"
    server.reply = lambda rows: (413, "no")
    with pytest.raises(ClassifierError, match="status 413"):
        load_classifier(server.url).predict(TABLE.head(3))


def test_rows_that_a_service_refuses_are_found_and_the_others_answered(server):
    def reply(rows: list) -> Any:
        bad = any(row["b"] == 5 for row in rows)
        return (422, "too cursed") if bad else [label_of(row) for row in rows]

    server.reply = reply
    classifier = Classifier(load_classifier(server.url), SCHEMA, ["high", "low"])
    expected = np.flatnonzero(TABLE["b"][:40] == 5)
    answered = np.setdiff1d(np.arange(40), expected)
    known_row = CELLS[answered[:1]]
    found, refused = query_rows(classifier, CELLS[:40], SCHEMA, known_row=known_row)
    assert sorted(refused) == expected.tolist()
    assert all("responded with status 422: too cursed" in why for why in refused.values())
    labels = np.array(["high", "low"])[found.codes]
    assert (labels[answered] == np.array(EXPECTED)[answered]).all()


def test_a_connection_that_breaks_half_way(server, pauses):
    def half(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "5000")
        handler.end_headers()
        handler.wfile.write(b'{"labels": ["low", ')
        handler.wfile.flush()
        handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = True

    server.handle = half
    fails(r"broke off: .*Check that it runs", server.url)
    assert len(server.requests) == remote.ATTEMPTS

    def once(handler: BaseHTTPRequestHandler) -> None:
        server.handle = None
        half(handler)

    server.handle = once
    assert load_classifier(server.url).predict(TABLE) == EXPECTED


def trickle(start: bytes, piece: bytes) -> Callable[..., None]:
    """Sends piece after piece and never ends, before the test does."""

    def send(handler: BaseHTTPRequestHandler, released: threading.Event) -> None:
        try:
            handler.wfile.write(start)
            while not released.wait(0.02):
                handler.wfile.write(piece)
                handler.wfile.flush()
        except OSError:
            handler.close_connection = True

    return send


@pytest.mark.parametrize(
    "respond_slowly",
    [
        lambda _, released: released.wait(),
        trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n", b" "),
        trickle(b"HTTP/1.1 200 OK\r\n", b"X"),
    ],
    ids=["silent", "body byte by byte", "head byte by byte"],
)
def test_a_slow_server_has_a_deadline(server, respond_slowly):
    server.handle = lambda handler: respond_slowly(handler, server.released)
    fails(r"did not respond within 0\.4 s", server.url, timeout=0.4)
    assert not server.released.is_set()  # it would have gone on


def test_retries_end_at_the_deadline(server, monkeypatch):
    monkeypatch.setattr(remote, "PAUSE", 60.0)
    server.reply = lambda rows: (429, "later")
    fails(r"did not respond within 0\.3 s", server.url, timeout=0.3)


def test_an_unreachable_service(pauses):
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
    fails("could not be reached, or broke off", f"http://127.0.0.1:{port}/")
    fails(r"could not be reached|did not respond", "http://unreachable.invalid/", timeout=5)


@pytest.mark.parametrize("status", [301, 307])
def test_redirects_are_not_followed(server, status):
    server.handle = lambda handler: respond(handler, "", status, Location="/other")
    fails("redirects elsewhere, and is not followed", server.url)
    assert server.paths == ["/predict"]


def test_a_response_has_a_largest_size(server, monkeypatch):
    monkeypatch.setattr(remote, "LARGEST", 2**20)
    server.reply = lambda rows: (200, b" " * (2**20 + 1))
    fails("responded with more than 1 MiB", server.url)


def test_credentials_are_sent(server, monkeypatch):
    secret = "s3cret-and-more"
    with_name = server.url.replace("http://", f"http://me:{secret}@") + f"?key={secret}"
    model = load_classifier(with_name)
    assert model.predict(TABLE) == EXPECTED
    assert server.headers[-1]["authorization"].startswith("Basic ")
    assert server.paths[-1].endswith(f"?key={secret}")
    assert secret not in repr(model)
    monkeypatch.setenv(addresses.TOKEN, secret)
    load_classifier(server.url).predict(TABLE)
    assert server.headers[-1]["authorization"] == f"Bearer {secret}"
    for bad in ("a\nb", "é"):
        monkeypatch.setenv(addresses.TOKEN, bad)
        with pytest.raises(InputError, match=f"The token in {addresses.TOKEN} has characters"):
            load_classifier(server.url)


def test_a_service_is_queried_from_many_threads_and_from_within_a_loop(server):
    model = load_classifier(server.url)
    with ThreadPoolExecutor(8) as pool:
        assert all(p == EXPECTED for p in pool.map(lambda _: model.predict(TABLE), range(24)))

    async def notebook() -> list:
        return model.predict(TABLE)

    assert asyncio.run(notebook()) == EXPECTED
    assert pickle.loads(pickle.dumps(model)).predict(TABLE) == EXPECTED


@pytest.mark.parametrize("timeout", [0, float("nan"), "5"])
def test_a_timeout_is_a_number_of_seconds(timeout):
    with pytest.raises(InputError, match="timeout is"):
        load_classifier("http://127.0.0.1:1/", timeout=timeout)


def test_a_service_has_to_be_named_again(server, tmp_path):
    secret = server.url.replace("http://", "http://me:s3cret@")
    worlds.post().explainer.save(tmp_path / "m.lapace", classifier=secret)
    assert b"s3cret" not in b"".join(zip_members(tmp_path / "m.lapace").values())
    with pytest.raises(InputError, match=rf"fitted with '{server.url}', which is not followed"):
        Explainer.load(tmp_path / "m.lapace")


def test_a_service_is_explained(server):
    def reply(rows: list) -> dict:
        p = [1 / (1 + np.exp(4 - (row["a"] or 0) - row["b"])) for row in rows]
        return {"classes": ["low", "high"], "probabilities": [[1 - v, v] for v in p]}

    server.reply = reply
    explainer = fitted(load_classifier(server.url))
    assert explainer.explain(TABLE.head(5), confidence=0.6).nearest().probability.min() >= 0.6
    server.reply = lambda rows: (200, "<p>")
    with pytest.raises(ClassifierError, match=r"^The classifier at http.* JSON: a web page"):
        explainer.explain(TABLE.head(5))
