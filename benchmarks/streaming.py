"""Many searched rows from the shell: `python -m benchmarks.streaming --rows 20000`.

`lapace explain` reads, answers and writes a CSV part by part. Every row is searched: they are
applicants whom the forest of `loans` denies; or with `--searched 0.001` one in a thousand is, and
the others are approved already. While it runs, its memory and the rows it has written are noted;
the slope of the second half says what a million rows would take.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.serving import ROWS, Line, fitted, print_lines, resident
from lapace import datasets
from lapace.apps.loaders import save_classifier

MILLION = 1_000_000
PART = 10_000  # rows written at once


class Moment(NamedTuple):
    """Of a running command: seconds since it began, bytes in memory, rows written."""

    seconds: float
    memory: float
    rows: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="then it is ended")
    parser.add_argument("--searched", type=float, default=1.0, help="share of the rows")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_lines(measure(arguments.rows, arguments.seconds, arguments.searched))


def measure(rows: int, most: float, searched: float = 1.0) -> list[Line]:
    """Explains so many applicants in a process of its own, for so many seconds at most."""
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder), rows, searched)
        moments, code = watch(Path(folder), most)
    return lines_of(moments, rows, code)


def make_files(folder: Path, rows: int, searched: float) -> None:
    """An explainer, its classifier, and a table of applicants, so many of them denied."""
    explainer, _ = fitted(ROWS)
    model = explainer.classifier
    explainer.save(folder / "loans.lapace")
    save_classifier(model, folder / "loans.skops")
    more = datasets.load("loans", rows=10_000).train
    denied = np.flatnonzero(model.predict(more) == "denied")
    approved = np.setdiff1d(np.arange(len(more)), denied)
    rng = np.random.default_rng(0)
    for begin in range(0, rows, PART):
        count = min(PART, rows - begin)
        chosen = np.where(
            rng.random(count) < searched, rng.choice(denied, count), rng.choice(approved, count)
        )
        part = more.iloc[chosen]
        part.to_csv(folder / "rows.csv", index=False, mode="a", header=begin == 0)


def watch(folder: Path, most: float) -> tuple[list[Moment], int | None]:
    """What the command takes while it runs, and its exit code; None where it was ended."""
    command = [sys.executable, "-m", "lapace.apps.cli", "explain", "loans.lapace", "rows.csv"]
    command += ["--classifier", "loans.skops", "--target", "approved", "--pick", "best", "-q"]
    moments: list[Moment] = []
    written = folder / "out.csv"
    with (
        written.open("wb") as out,
        subprocess.Popen(
            [*command, "--format", "csv"],
            cwd=folder,
            stdout=out,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        ) as process,
    ):
        start = time.perf_counter()
        while process.poll() is None and time.perf_counter() - start < most:
            time.sleep(1.0)
            memory = resident(process.pid)
            if memory == memory:
                seconds = time.perf_counter() - start
                moments.append(Moment(seconds, memory, instances_in(written)))
        code = process.poll()
        if code is None:
            process.terminate()
    return moments, code


def instances_in(written: Path) -> int:
    """How many instances have rows so far: one more than the last position; 0 for none."""
    with written.open("rb") as file:
        head = file.readline().decode().strip().split(",")
        file.seek(0, os.SEEK_END)
        size = file.tell()
        file.seek(max(0, size - 4096))
        lines = file.read().decode(errors="replace").splitlines()[1:]
    whole = [row for row in csv.reader(lines) if len(row) == len(head)]  # the last may be cut
    if "instance" not in head or not whole:
        return 0
    return int(whole[-1][head.index("instance")]) + 1


def lines_of(moments: list[Moment], rows: int, code: int | None) -> list[Line]:
    """What was measured, and what a million rows would take at the last half's pace."""
    seconds, memory, done = (np.array(column, dtype=float) for column in zip(*moments, strict=True))
    if not done.any():
        waited = f"none after {seconds[-1]:.0f}"
        most = f"{memory.max() / 1e6:,.0f}"
        return [
            Line("first rows written after, s", waited, "60 or less", False),
            Line("most memory, MB", most, "1,500 or less", bool(memory.max() <= 1.5e9)),
        ]
    late = done >= done[-1] / 2
    slope = np.polyfit(done[late], memory[late], 1)[0] if done[late].std() else 0.0
    pace = (done[-1] - done[late][0]) / max(seconds[-1] - seconds[late][0], 1e-9)
    pace = pace or done[-1] / seconds[-1]  # nothing was written in the last half
    first = seconds[np.flatnonzero(done > 0)[0]]
    far = memory.max() + max(slope, 0.0) * (MILLION - done[-1])
    how = "all" if code == 0 else f"ended after {seconds[-1]:.0f} s"
    return [
        Line(f"instances answered, of {rows:,}", f"{done[-1]:,.0f} ({how})"),
        Line("instances a second in the second half", f"{pace:.1f}"),
        Line("first rows written after, s", f"{first:.0f}", "60 or less", bool(first <= 60)),
        Line(
            "most memory, MB",
            f"{memory.max() / 1e6:,.0f}",
            "1,500 or less",
            bool(memory.max() <= 1.5e9),
        ),
        Line(
            "memory after a quarter of the rows, MB",
            f"{memory[done >= done[-1] / 4][0] / 1e6:,.0f}",
        ),
        Line("memory at the end, MB", f"{memory[-1] / 1e6:,.0f}"),
        Line("growth in the second half, MB for 1,000 instances", f"{slope * 1e3 / 1e6:.2f}"),
        Line(
            "a million, extrapolated: MB", f"{far / 1e6:,.0f}", "1,500 or less", bool(far <= 1.5e9)
        ),
        Line("a million, extrapolated: hours", f"{MILLION / pace / 3600:.1f}"),
    ]


if __name__ == "__main__":
    main()
