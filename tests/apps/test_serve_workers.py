"""`lapace serve --workers`: processes behind one socket, looked after by the first."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from test_cli_outputs import here as here  # noqa: PLC0414  a fixture
from test_cli_outputs import run

from tests.processes import environment, python

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="looks up processes in /proc"
)
BODY = {"instances": [{"a": 10, "b": 60}], "target": "yes", "search": {"steps": 3}}


def children(pid):
    """The workers that a process has started, without multiprocessing's own helper."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    pids = [int(word) for word in listed.read_text().split()] if listed.exists() else []
    return [pid for pid in pids if b"spawn_main" in _command_line(pid)]


def _command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""


def until(condition, seconds=60):
    """Waits for something that is bound to happen."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)
    return found


@contextmanager
def serving(line="serve m.lapace --port 0 --workers 2"):
    """A server in processes of its own, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lapace.apps.cli", *line.split()],
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    try:
        for text in process.stderr:
            if found := re.search(r"Listening at (http://\S+);", text):
                break
        else:
            pytest.fail("it ended before it listened")
        until(lambda: len(children(process.pid)) == 2)
        with httpx.Client(base_url=found[1], timeout=60) as client:
            yield process, client
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def gone(pid):
    """Whether a process has ended; one that nobody waited for has, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def statuses(client, token):
    """What fresh connections get, whichever worker each goes to."""
    url, headers = client.base_url.join("/v3/schema"), {"Authorization": f"Bearer {token}"}
    return {httpx.get(str(url), headers=headers, timeout=60).status_code for _ in range(12)}


def test_every_worker_asks_for_a_token_and_a_hangup_brings_new_ones(here):
    Path("tokens").write_text("alice:first\n")
    with serving("serve m.lapace --port 0 --workers 2 --token-file tokens") as (process, client):
        assert statuses(client, "first") == {200}
        assert statuses(client, "second") == {401}
        Path("tokens").write_text("alice:second\n")
        process.send_signal(signal.SIGHUP)
        # The workers load one after the other, however busy the machine is.
        until(lambda: statuses(client, "second") == {200}, seconds=300)


def test_a_worker_that_dies_is_started_again_and_counts_are_sums(here):
    with serving() as (process, client):
        for _ in range(3):
            client.get("/v3/report").raise_for_status()
        assert client.post("/v3/explain", json=BODY).json()["instances"][0]["status"] == "answered"
        # A response is counted once it is sent, so a moment after the client has it.
        counted = 'requests_total{route="/v3/explain",status="200"} 1.0'
        until(lambda: counted in client.get("/metrics").text)
        for victim in children(process.pid):
            others = set(children(process.pid)) - {victim}
            os.kill(victim, signal.SIGKILL)
            until(lambda victim=victim: victim not in children(process.pid))
            until(lambda: len(children(process.pid)) == 2)
            assert others < set(children(process.pid))
            until(lambda: _answers(client))
        text = client.get("/metrics").text
        assert 'requests_total{route="/v3/report",status="200"} 3.0' in text, "also of the dead"
        assert counted in text
        workers = children(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert all(map(gone, workers))
        said = process.stderr.read()
    assert said.count("A worker has ended.") == 2
    assert "Traceback" not in said


def _answers(client):
    try:
        return httpx.get(str(client.base_url.join("/healthz")), timeout=5).status_code == 200
    except httpx.HTTPError:  # the connection was in the queue of the one that died
        return False


def test_workers_end_with_the_first_process_and_at_an_interruption(here):
    with serving() as (process, client):
        workers = children(process.pid)
        process.kill()
        process.wait()
        until(lambda: all(map(gone, workers)))
        with pytest.raises(httpx.HTTPError):
            client.get("/healthz")
    with serving() as (process, _):
        workers = children(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130)
        assert all(map(gone, workers))


def test_what_cannot_start_is_said_once(here):
    Path("m.skops").unlink()
    line = "serve m.lapace --port 0 --workers 3"
    found = python("-m", "lapace.apps.cli", *line.split(), timeout=120)
    assert found.returncode == 2
    assert found.stderr.count("lapace: ") == 1
    assert "m.skops" in found.stderr
    assert "--workers 0 is not a number" in run("serve m.lapace --workers 0").stderr
