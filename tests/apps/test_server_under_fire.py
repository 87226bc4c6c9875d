"""The server under fire: budgets, turns, tokens that change, slow bodies, signals, a real proxy."""

from __future__ import annotations

import json
import logging
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from test_cli_outputs import here as here  # noqa: PLC0414  a fixture
from test_server import (
    HEAVY,
    LIGHT,
    explain,
    hanging,
    process,
    reachable,
    sentence,
    serving,
    until,
)

from lapace import InputError
from lapace.apps.server.access import Tokens, read_tokens
from lapace.apps.server.monitoring import JsonLines
from lapace.apps.server.running import listen
from lapace.budget import Budget, BudgetError, limited
from lapace.explainer.assemble import CUT_SHORT
from lapace.result import json_schema
from tests import worlds

ROOT = Path(__file__).resolve().parents[2]


# --- budgets -------------------------------------------------------------------------------------


def letters(count):
    return [dict(LIGHT, weight=20 + i) for i in range(count)]


def test_a_budget_of_queries_is_kept_and_named():
    explainer = worlds.post().explainer
    with limited(Budget()) as free:
        whole = explainer.explain(letters(20), target="dear")
    assert free.ended == ""
    assert free.spent_queries == whole.n_queries > 200
    with limited(Budget(queries=free.spent_queries // 2)) as budget:
        some = explainer.explain(letters(20), target="dear")
    assert budget.spent_queries <= budget.queries
    cut = {i for i, why in enumerate(some.reason) if why.startswith(budget.ended)}
    assert cut == {i for i, why in enumerate(some.reason) if why.endswith(CUT_SHORT)}
    assert 0 < len(cut) < 20
    assert all(some.status[i] == "none_found" for i in cut)
    assert {some.status[i] for i in range(20) if i not in cut} == {"answered"}
    assert some.nearest().ok.sum() == 20 - len(cut)


def test_seconds_and_nodes_are_kept_too(monkeypatch):
    explainer = worlds.bank().explainer
    rows, hard = worlds.bank().instances.head(3), ["income == 3*debt", "age == 2*debt"]
    with limited(Budget(nodes=3)) as budget:
        explainer.explain(rows, constraints=hard)
    assert budget.ended == "The budget of 3 solver nodes is spent."
    now = [0.0]
    monkeypatch.setattr("lapace.budget.monotonic", lambda: now[0])
    budget = Budget(seconds=5)
    now[0] = 60.0  # in the queue: seconds count from the call
    with limited(budget):
        budget.spend(queries=1)
        now[0] += 5.1
        with pytest.raises(BudgetError, match="The budget of 5 seconds is spent"):
            budget.spend(queries=1)


def test_a_cancelled_call_ends_at_its_next_query():
    explainer = worlds.post().explainer
    budget = Budget()
    budget.cancel()
    with limited(budget), pytest.raises(BudgetError, match="The caller has gone"):
        explainer.explain(letters(2))


def test_a_request_that_spends_its_budget_says_so():
    import jsonschema

    with serving(worlds.post().explainer, max_queries=400) as client:
        request = {"instances": letters(30), "target": "dear"}
        response = client.post("/v3/explain", json=request)
        assert response.status_code == 200
        assert response.headers["lapace-budget"] == "The budget of 400 queries is spent."
        jsonschema.validate(response.json(), json_schema())
        reasons = [one["reason"] for one in response.json()["instances"]]
        assert any(r.startswith("The budget of 400 queries is spent.") for r in reasons)
        assert "lapace_budgets_spent_total 1.0" in client.get("/metrics").text
        few = explain(client, search={"steps": 2, "n_starts": 1})
        assert few.status_code == 200
        assert "lapace-budget" not in few.headers


# --- access --------------------------------------------------------------------------------------


def test_tokens_come_by_name_from_a_file(tmp_path):
    file = tmp_path / "tokens"
    file.write_text("# who may\nalice:one\nbob:two:with:colons\n")
    tokens = Tokens(read_tokens(file))
    found = [tokens.find(token) for token in ("one", "two:with:colons", "two", "")]
    assert found == ["alice", "bob", None, None]
    assert tokens.secret != Tokens({"alice": "one"}).secret, "sessions end with the tokens"
    for bad in ("", "alice\n", "alice:a b\n", "a:1\na:2\n", "a b:c\n"):
        file.write_text(bad)
        with pytest.raises(InputError, match="file of tokens 'tokens'"):
            read_tokens(file)
    with pytest.raises(InputError, match="could not be read"):
        read_tokens(tmp_path / "gone")


def test_an_empty_token_does_not_open_the_server(here, monkeypatch):
    """It is refused before anything is loaded or listens."""
    from test_cli_outputs import run

    from lapace.apps.server import running

    monkeypatch.setattr(running, "listen", lambda *_: pytest.fail("a socket would listen"))
    monkeypatch.setenv("LAPACE_TOKEN", "")
    for line in ("serve m.lapace --port 0", "serve m.lapace --host 0.0.0.0 --port 0"):
        found = run(line)
        assert found.exit_code == 2
        assert "LAPACE_TOKEN is set and empty" in found.stderr
    assert "token must be" in run("serve m.lapace --token '' --port 0").stderr
    monkeypatch.delenv("LAPACE_TOKEN")
    for host in ("0.0.0.0", "''", "::"):
        assert "There is no token" in run(f"serve m.lapace --host {host} --workers 2").stderr


def test_hosts_and_origins_are_checked():
    with serving(worlds.post().explainer, hosts=["explain.example.org"], token="t") as client:
        token = {"Authorization": "Bearer t", "Host": "explain.example.org:443"}
        request = {"instances": [LIGHT]}
        assert client.get("/v3/schema", headers=token).status_code == 200
        other = {**token, "Host": "evil.example"}
        assert "Host header" in sentence(client.get("/v3/schema", headers=other), 403)
        for origin in ("https://evil.example", "null", "https://explain.example.org.evil"):
            response = client.post("/v3/explain", json=request, headers={**token, "Origin": origin})
            assert "another origin" in sentence(response, 403)
        own = {**token, "Origin": "https://explain.example.org:443"}
        assert client.post("/v3/explain", json=request, headers=own).status_code == 200


def test_every_response_has_an_id_and_closes_the_doors_of_a_browser():
    with serving(worlds.post().explainer) as client:
        for response in (explain(client), client.get("/nope"), client.get("/healthz")):
            assert "default-src 'none'" in response.headers["content-security-policy"]
            assert response.headers["x-frame-options"] == "DENY"
            assert response.headers["referrer-policy"] == "no-referrer"
            assert response.headers["cache-control"] == "no-store"
            assert response.headers["x-content-type-options"] == "nosniff"
            assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])
        own = client.get("/healthz", headers={"X-Request-Id": "abc-1.2"})
        assert own.headers["x-request-id"] == "abc-1.2"
        forged = client.get("/healthz", headers={"X-Request-Id": "a b{}" * 30})
        assert re.fullmatch("[0-9a-f]{32}", forged.headers["x-request-id"])


# --- what is seen from outside -------------------------------------------------------------------


def test_metrics_count_what_happened():
    with serving(worlds.post().explainer) as client:
        for _ in range(3):
            explain(client)
        client.get("/nope")
        text = client.get("/metrics").text
        found = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        assert found['lapace_requests_total{route="/v3/explain",status="200"}'] == "3.0"
        assert found['lapace_requests_total{route="other",status="404"}'] == "1.0"
        assert found["lapace_request_seconds_count"] == "4.0"
        assert found['lapace_request_seconds_bucket{le="+Inf"}'] == "4.0"
        assert float(found["lapace_queries_total"]) > 0
        assert float(found["process_resident_memory_bytes"]) > 10**7


def test_requests_are_logged_without_data(caplog):
    with (
        caplog.at_level(logging.INFO, "lapace.apps.server.requests"),
        serving(worlds.post().explainer, token={"alice": "t"}, log_requests=True) as client,
    ):
        client.post(
            "/v3/explain?name=Ms-Secret",
            json={"instances": [dict(LIGHT, stamp="Ms-Secret")]},
            headers={"Authorization": "Bearer t", "X-Request-Id": "r-1"},
        )
        until(lambda: caplog.records)
    (record,) = caplog.records
    line = json.loads(JsonLines().format(record))
    assert {k: line[k] for k in ("method", "route", "status", "client")} == {
        "method": "POST", "route": "/v3/explain", "status": 200, "client": "alice"
    }  # fmt: skip
    assert "Secret" not in JsonLines().format(record)


def test_a_logged_error_has_a_place_and_no_text():
    try:
        raise ValueError("the row of Ms Secret")
    except ValueError:
        record = logging.LogRecord("lapace", 40, "", 1, "It failed.", None, sys.exc_info())
    line = json.loads(JsonLines().format(record))
    assert line["error"].startswith("ValueError in test_a_logged_error")
    assert "Secret" not in json.dumps(line)


# --- slow bodies, no descriptors, signals --------------------------------------------------------


def test_sigterm_with_more_work_than_the_grace_period(tmp_path):
    with process(tmp_path) as (child, client), ThreadPoolExecutor(6) as pool:
        calls = [pool.submit(explain, client, HEAVY) for _ in range(6)]
        until(lambda: client.get("/healthz").json()["waiting"] == 2)
        with hanging(client) as connection:
            child.send_signal(signal.SIGTERM)
            for call in calls:
                assert "The server is stopping." in sentence(call.result(), 503)
            response = connection.makefile("rb").read()
            assert response.startswith(b"HTTP/1.1 503")
            assert response.endswith(b'or another one."}')
        assert child.wait(60) == -signal.SIGTERM
        assert "Traceback" not in (tmp_path / "log").read_text()


# --- a real reverse proxy ------------------------------------------------------------------------


@contextmanager
def nginx(folder: Path, page: str, replaced: dict[str, str], around: str = "{}") -> Iterator[None]:
    """Runs nginx with the configuration on a page, with a test's ports and certificate."""
    text = (ROOT / "docs" / "how-to" / page).read_text(encoding="utf-8")
    block = re.search(r"```nginx\n(.+?)```", text, re.DOTALL)[1]
    for name, value in replaced.items():
        assert name in block
        block = block.replace(name, value)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    block = around.replace("{}", block)
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{ access_log off; {paths}\n{block}\n}}\n"
    )
    process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def free_port() -> int:
    with closing(listen("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.mark.needs("nginx")
def test_the_reverse_proxy_on_the_page_works(tmp_path):
    key, certificate = tmp_path / "explain.key", tmp_path / "explain.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout",
            str(key), "-out", str(certificate), "-subj", "/CN=explain.example.org", "-addext",
            "subjectAltName=DNS:explain.example.org"]  # fmt: skip
    subprocess.run(made, check=True, capture_output=True)
    port = free_port()
    settings = {"token": {"alice": "open-sesame"}, "hosts": ["explain.example.org"]}
    with serving(worlds.post().explainer, **settings) as behind:
        replaced = {
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "127.0.0.1:8000": f"127.0.0.1:{behind.base_url.port}",
            "/etc/ssl/explain.pem": str(certificate),
            "/etc/ssl/explain.key": str(key),
        }
        with nginx(tmp_path, "serving.md", replaced):
            check_proxy(certificate, port)


def check_proxy(certificate: Path, port: int) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    name = "explain.example.org"
    with httpx.Client(verify=context, base_url=f"https://127.0.0.1:{port}", timeout=60) as client:
        more = {"extensions": {"sni_hostname": name}, "headers": {"Host": name}}
        until(lambda: reachable(client, **more))
        assert client.get("/v3/schema", **more).status_code == 401
        with_token = more | {"headers": {"Host": name, "Authorization": "Bearer open-sesame"}}
        found = client.post("/v3/explain", json={"instances": [LIGHT]}, **with_token)
        assert found.status_code == 200
        assert found.headers["strict-transport-security"] == "max-age=31536000"
        assert re.fullmatch("[0-9a-f]{32}", found.headers["x-request-id"])
        assert client.get("/metrics", **with_token).status_code == 403
        large = client.post("/v3/explain", content=b" " * 2_000_000, **with_token)
        assert large.status_code == 413
        statuses = [client.get("/readyz", **with_token).status_code for _ in range(120)]
        assert set(statuses) == {200, 429}, "a client that sends too fast is slowed down"


def test_every_test_on_the_page_of_security_exists():
    page = (ROOT / "docs" / "how-to" / "security.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 25
    rows = re.findall(r"(?m)^\| .*", page.partition("## What holds them off")[2])[1:]
    assert len(rows) > 25
    assert not [row for row in rows if "`test_" not in row]
    assert not {name for name in named if f"def {name}(" not in code}
