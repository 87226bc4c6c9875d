"""Kills at random moments: `python -m benchmarks.kills --times 100`.

Starts `fit -o`, `explain -o` and `serve` and sends them SIGKILL, SIGTERM or SIGINT after a random
share of the time they take. Afterwards the files in place must be the old ones or the new ones, the
pair of explainer and classifier must load, a signal other than SIGKILL must leave nothing else, and
what SIGKILL left must be gone after the next run.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from lapace import Explainer

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
FIT = "fit train.csv --classifier mlp --label label --n-prototypes 1 -o m.lapace -q"
EXPLAIN = "explain m.lapace train.csv --target yes --pick last --steps 3 -q -o out.csv"
SERVE = "serve m.lapace --port 0 -q"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        numbers = np.random.default_rng(0).integers(0, 99, (150, 2))
        table = pd.DataFrame(numbers, columns=["a", "b"])
        labels = np.where(table["a"] > table["b"], "yes", "no")
        table.assign(label=labels).to_csv("train.csv", index=False)
        seconds = {line: finish(line) for line in (FIT, EXPLAIN)}
        seconds[SERVE] = seconds[EXPLAIN]
        files = {path.name for path in Path().iterdir()}
        outcomes: Counter[str] = Counter()
        for turn in range(arguments.times):
            line = (FIT, EXPLAIN, SERVE)[turn % 3]
            sent = rng.choice(SIGNALS)
            outcome = kill(line, sent, rng.uniform(0.05, 1.1) * seconds[line])
            outcomes[f"{line.split()[0]:<8}{sent.name:<8}{outcome}"] += 1
            print(f"{turn + 1}: {line.split()[0]} {sent.name}: {outcome}", flush=True)
        finish(FIT)
        finish(EXPLAIN)
        left = {path.name for path in Path().iterdir()} - files
    print()
    for outcome, count in sorted(outcomes.items()):
        print(f"{outcome:<40}{count:>5}")
    bad = sum(count for outcome, count in outcomes.items() if "WRONG" in outcome)
    print(
        f"{arguments.times} kills, {bad} went wrong; left after one more run of each: {left or 0}"
    )
    sys.exit(1 if bad or left else 0)


def start(line: str) -> subprocess.Popen[bytes]:
    """One command, which can be interrupted however this one was started."""
    return subprocess.Popen(
        [sys.executable, "-m", "lapace.cli", *line.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


def finish(line: str) -> float:
    """Runs a command to its end; the seconds it took."""
    begin = time.perf_counter()
    with start(line) as process:
        if process.wait():
            sys.exit(f"lapace {line} failed")
    return time.perf_counter() - begin


def kill(line: str, sent: signal.Signals, seconds: float) -> str:
    """Sends a signal to a command after some seconds, and says how things are then."""
    rows, files = len(pd.read_csv("out.csv")), set(Path().iterdir())
    with start(line) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(sent)
        assert process.stderr is not None
        said = process.stderr.read()
        code = process.wait(60)
    if b"Traceback" in said and sent != signal.SIGINT:
        return "WRONG: a traceback"
    extra = {path.name for path in set(Path().iterdir()) - files}
    if extra and (sent != signal.SIGKILL or any(not name.startswith(".") for name in extra)):
        return f"WRONG: left {sorted(extra)}"
    if len(pd.read_csv("out.csv")) != rows:
        return "WRONG: a result cut short"
    try:
        Explainer.load("m.lapace")
    except Exception as error:
        return f"WRONG: {error}"
    return "finished before" if code == 0 else "whole"


if __name__ == "__main__":
    main()
