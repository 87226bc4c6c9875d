"""Kills at random moments, and folders that fail: `python -m benchmarks.kills --times 100`.

Starts `fit -o`, `explain -o`, `serve` and a download, and sends them SIGKILL, SIGTERM or SIGINT
after a random share of the time they take. Afterwards the files in place must be the old ones or
the new ones, the pair of explainer and classifier must load, a signal other than SIGKILL must leave
nothing else, and what SIGKILL left must be gone after the next run. Then the same commands write to
a full disk, to a folder that is read-only, two at a time to one file, and while the clock jumps.
"""

from __future__ import annotations

import argparse
import csv
import http.server
import multiprocessing
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.serving import Line, print_lines
from lapace import Explainer, LapaceError
from lapace.datasets import sources

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
FIT = "fit train.csv --classifier mlp --label label --n-prototypes 1 -o m.lapace -q"
EXPLAIN = "explain m.lapace train.csv --target yes --pick last --steps 3 -q -o out.csv"
SERVE = "serve m.lapace --port 0 -q"
FETCH = "data fetch wine -q"
# A fit takes ten times as long as the others: of eight commands it is one.
ORDER = (FIT, EXPLAIN, FETCH, SERVE, EXPLAIN, FETCH, EXPLAIN, SERVE)
FILES = ("winequality-red.csv", "winequality-white.csv")
# Loaded once, before any command is forked: a hundred commands would spend their time on imports.
LOADED = [
    "lapace.cli.commands",
    "lapace.explainer",
    "lapace.server",
    "lapace.datasets",
    "sklearn.neural_network",
]
SAID = "said.log"
FAKETIME = "/usr/lib/*/faketime/libfaketimeMT.so.1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    lines = [*measure_kills(arguments.times, arguments.seed), *measure_surroundings(arguments.seed)]
    print_lines(lines)
    sys.exit(0 if all(line.kept is not False for line in lines) else 1)


def measure_kills(times: int, seed: int = 0, record: Path | None = None) -> list[Line]:
    """Kills so many times.

    Args:
        times: How many kills.
        seed: Of commands, signals and moments.
        record: A file of outcomes, one is added after each kill; those that are there already are
            counted and not repeated.
    """
    record = None if record is None else record.absolute()
    with scratch_folder(), slow_site() as address:
        return kills(times, random.Random(seed), address, record)


def measure_surroundings(seed: int = 0) -> list[Line]:
    """Tries the folders that fail, two writers and the clock."""
    with scratch_folder():
        finish(FIT, "")
        finish(EXPLAIN, "")
        return surroundings(seed)


@contextmanager
def scratch_folder() -> Iterator[None]:
    """A working folder with a small table, for a while."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            make_table()
            yield
        finally:
            os.chdir(before)


def make_table() -> None:
    numbers = np.random.default_rng(0).integers(0, 99, (150, 2))
    table = pd.DataFrame(numbers, columns=["a", "b"])
    labels = np.where(table["a"] > table["b"], "yes", "no")
    table.assign(label=labels).to_csv("train.csv", index=False)


# ------------------------------------------------------------------------------------------------
# Kills


def kills(times: int, rng: random.Random, address: str, record: Path | None = None) -> list[Line]:
    """Sends signals at random moments."""
    outcomes = read_outcomes(record)
    if outcomes.total() >= times:
        return counted(outcomes)
    addresses = dict.fromkeys((FIT, EXPLAIN, SERVE), "") | ({FETCH: address} if address else {})
    seconds = {line: finish(line, addresses[line]) for line in addresses if line != SERVE}
    seconds[SERVE] = seconds[EXPLAIN]
    files, known = listing(), outcomes.total()
    for turn in range(times):
        sent, file, share = rng.choice(SIGNALS), rng.choice(FILES), rng.uniform(0.02, 1.1)
        if turn < known:
            continue
        line = ORDER[turn % len(ORDER)]
        line = line if line in addresses else EXPLAIN  # there is nothing to download
        if line == FETCH:
            Path("cache", file).unlink(missing_ok=True)
        outcome = kill(line, addresses[line], sent, share * seconds[line])
        what = f"{line.split()[0]} {sent.name}"
        outcomes[what, outcome] += 1
        if record is not None:
            with record.open("a", newline="", encoding="utf-8") as written:
                csv.writer(written, lineterminator="\n").writerow((what, outcome))
        print(f"{turn + 1}: {what}: {outcome}", flush=True)
    for line, there in addresses.items():
        if line != SERVE:
            finish(line, there)
    left = listing() - files
    return [
        *counted(outcomes),
        Line("files left after one more run of each", str(len(left)), "0", not left),
    ]


def read_outcomes(record: Path | None) -> Counter[tuple[str, str]]:
    """The outcomes in a file, counted."""
    if record is None or not record.exists():
        return Counter()
    with record.open(newline="", encoding="utf-8") as file:
        return Counter((what, outcome) for what, outcome in csv.reader(file))


def counted(outcomes: Counter[tuple[str, str]]) -> list[Line]:
    """How often each command survived each signal."""
    wrong = sum(count for (_, outcome), count in outcomes.items() if "WRONG" in outcome)
    found = [
        Line(f"kills: {what}: {outcome}", str(count))
        for (what, outcome), count in sorted(outcomes.items())
    ]
    return [*found, Line(f"of {outcomes.total()} kills went wrong", str(wrong), "0", wrong == 0)]


def listing() -> set[str]:
    """Every file here and in the cache, but for what commands said."""
    return {str(path) for path in Path().rglob("*") if path.is_file()} - {SAID}


def forked(line: str, address: str) -> Any:
    """One command, in a process that has imported what it needs, and is then as any other."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    process = context.Process(target=_command, args=(line, address, str(Path.cwd())))
    process.start()
    return process


def _command(line: str, address: str, folder: str) -> None:
    """In its own process: what a shell would run, with files of data sets at another address."""
    from lapace.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)  # however the benchmark was started
    os.chdir(folder)
    os.environ["LAPACE_DATA"] = "cache"
    said = os.open(SAID, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    if address:
        sources.SOURCES = {n: replace(s, places=(address,)) for n, s in sources.SOURCES.items()}
    main(line.split())


def finish(line: str, address: str) -> float:
    """Runs a command to its end; the seconds it took."""
    warm = forked("--version", "")  # the first one loads everything
    warm.join()
    begin = time.perf_counter()
    process = forked(line, address)
    process.join()
    if process.exitcode:
        sys.exit(f"lapace {line} failed: {Path(SAID).read_text(encoding='utf-8')}")
    return time.perf_counter() - begin


def kill(line: str, address: str, sent: signal.Signals, seconds: float) -> str:
    """Sends a signal to a command after some seconds, and says how things are then."""
    rows, files = len(pd.read_csv("out.csv")), listing()
    process = forked(line, address)
    process.join(seconds)
    if process.exitcode is None:
        os.kill(process.pid, sent)
    process.join(60)
    said = Path(SAID).read_text(encoding="utf-8") if Path(SAID).exists() else ""
    if process.exitcode is None:
        process.kill()
        return "WRONG: it did not end"
    if "Traceback" in said and sent != signal.SIGINT:
        return f"WRONG: a traceback: {said[-300:]}"
    extra = {name for name in listing() - files if Path(name).name not in FILES}
    if extra and (sent != signal.SIGKILL or any(Path(n).name[0] != "." for n in extra)):
        return f"WRONG: left {sorted(extra)}"
    if len(pd.read_csv("out.csv")) != rows:
        return "WRONG: a result cut short"
    for file in FILES:
        path = Path("cache", file)
        if path.exists() and sha256(path.read_bytes()).hexdigest() != sources.SOURCES[file].sha256:
            return "WRONG: a download cut short"
    try:
        Explainer.load("m.lapace")
    except Exception as error:
        return f"WRONG: {error}"
    return "finished before" if process.exitcode == 0 else "whole"


@contextmanager
def slow_site() -> Iterator[str]:
    """The address of a site that sends the files of a data set a little at a time; else empty."""
    try:
        paths = {path.name: path.read_bytes() for path in sources.fetch(FILES)}
    except LapaceError:
        yield ""
        return

    class Slow(http.server.BaseHTTPRequestHandler):
        """Takes a second for each file."""

        def do_GET(self) -> None:
            content = paths[self.path.strip("/")]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(OSError):  # who asked for it was killed
                for part in range(20):
                    begin, end = (k * len(content) // 20 for k in (part, part + 1))
                    self.wfile.write(content[begin:end])
                    time.sleep(0.05)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


# ------------------------------------------------------------------------------------------------
# Folders that fail, two writers, a clock that jumps


def surroundings(seed: int) -> list[Line]:
    """What becomes of the files where something else goes wrong than a kill."""
    found = []
    for what, mount in {
        "a full disk (tmpfs of 8 kB)": "mount -t tmpfs -o size=8k none there",
        "a read-only folder": "mount --bind there there && mount -o remount,ro,bind there",
    }.items():
        for line in (FIT, EXPLAIN):
            outcome = mounted(mount, line)
            found.append(
                Line(
                    f"{what}: {line.split()[0]}",
                    outcome,
                    "refused, the old file intact",
                    outcome == "refused, the old file intact",
                )
            )
    for line in (FIT, EXPLAIN):
        outcome = two_writers(line)
        found.append(
            Line(f"two writers: {line.split()[0]}, 3 times", outcome, "whole", outcome == "whole")
        )
    outcome = jumping_clock(seed)
    kept = None if outcome.startswith("not tried") else outcome.endswith("whole")
    found.append(Line("a clock that jumps by years: fit, explain, serve", outcome, "whole", kept))
    return found


def mounted(mount: str, line: str) -> str:
    """Writes over an old file in a folder with a mount of its own; how that ends."""
    shutil.rmtree("there", ignore_errors=True)
    Path("there").mkdir()
    name = line.split("-o ")[1].split(maxsplit=1)[0]
    Path("there", name).write_text("old\n", encoding="ascii")
    after_mount = f"test -e there/{name} || echo old > there/{name}"
    fill = "{ dd if=/dev/zero of=there/full bs=1k count=9 2>/dev/null; true; }"
    if "tmpfs" not in mount:
        fill = "true"
    command = shlex.join(
        [sys.executable, "-m", "lapace.cli", *line.replace("-o ", "-o there/").split()]
    )
    after = f"{{ {command}; echo code $?; cat there/{name}; ls -A there; }}"
    script = f"{mount} && {after_mount} && {fill} && {after}"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    said, err = done.stdout, done.stderr
    if "code" not in said:
        return f"not tried: {err.strip()[-60:]}"
    names = {n for n in said.splitlines()[2:] if n}
    refused = "code 2" in said and err.startswith("lapace: ") and "Traceback" not in err
    if refused and said.splitlines()[1].startswith("old") and names <= {name, "full"}:
        return "refused, the old file intact"
    return f"WRONG: {said.strip()[-80:]} {err.strip()[-120:]}"


def start(line: str, **more: str) -> subprocess.Popen[bytes]:
    """One command, as a shell starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "lapace.cli", *line.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **more},
    )


def two_writers(line: str) -> str:
    """Two of the same command at once."""
    for _ in range(3):
        files = listing()
        both = [start(line), start(line)]
        said = [process.communicate()[1] for process in both]
        if any(process.returncode for process in both):
            return f"WRONG: {said}"
        if listing() - files:
            return f"WRONG: left {listing() - files}"
        Explainer.load("m.lapace")
        if len(pd.read_csv("out.csv")) == 0:
            return "WRONG: an empty result"
    return "whole"


def jumping_clock(seed: int) -> str:
    """Runs the commands while the time of day jumps by up to ten years every tenth of a second."""
    found = sorted(Path("/").glob(FAKETIME.lstrip("/")))
    if not found:
        return "not tried: libfaketime is not installed"
    rng, over, jumps = random.Random(seed), threading.Event(), Path("jumps").absolute()
    jumps.write_text("+0", encoding="ascii")

    def jump() -> None:
        while not over.wait(0.1):
            jumps.write_text(f"{rng.uniform(-3650, 3650):+.1f}d", encoding="ascii")

    thread = threading.Thread(target=jump)
    thread.start()
    clock = {
        "LD_PRELOAD": str(found[-1]),
        "FAKETIME_TIMESTAMP_FILE": str(jumps),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    files = listing()
    try:
        for line in (FIT, EXPLAIN):
            process = start(line, **clock)
            said = process.communicate()[1].decode()
            if process.returncode:
                return f"WRONG: {line.split()[0]}: {said[-200:]}"
        with start(SERVE, **clock) as process:
            time.sleep(10)
            alive = process.poll() is None
            process.terminate()
            said = process.stderr.read().decode()
        if not alive or "Traceback" in said:
            return f"WRONG: serve: {said[-200:]}"
    finally:
        over.set()
        thread.join()
        jumps.unlink()
    Explainer.load("m.lapace")
    left = listing() - files - {"jumps"}
    return f"WRONG: left {left}" if left else "whole"


if __name__ == "__main__":
    main()
