"""Attacks, load, kills and long streams: `python -m benchmarks.under_fire attacks load kills rows`.

Runs the parts named, keeps their figures in `under-fire.csv` and writes `under-fire.md` from all
that are there; without a part it only writes the page. Parts are run apart, at any time: what a
part measures replaces what it measured before, and nothing else.
"""

from __future__ import annotations

import argparse
import csv
import platform
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch

from benchmarks import attacks, kills, leaks, serving, streaming
from benchmarks.serving import Line, print_lines
from lapace import Search

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("part", "what", "value", "target", "kept")
TITLES = {
    "attacks": ("Attacks on a server", "python -m benchmarks.under_fire attacks"),
    "large": ("Requests that cost much", "python -m benchmarks.under_fire large"),
    "load": ("Load, one process", "python -m benchmarks.serving --seconds {seconds:g}"),
    "load-2": ("Two processes", "python -m benchmarks.under_fire load-2 --seconds {seconds:g}"),
    "kills": ("Kills", "python -m benchmarks.under_fire kills --times {times} --seed {seed}"),
    "surroundings": (
        "Full disks, two writers, a jumping clock",
        "python -m benchmarks.under_fire surroundings",
    ),
    "leaks": (
        "Random constraints against an independent checker",
        "python -m benchmarks.leaks --seconds {seconds:g} --seed {seed}",
    ),
    "rows": (
        "Many searched rows from the shell",
        "python -m benchmarks.streaming --rows {rows} --seconds {most:g}",
    ),
    "million": (
        "Very many rows from the shell, one in a thousand searched",
        "python -m benchmarks.streaming --rows {rows} --seconds {most:g} --searched 0.001",
    ),
}
INTRODUCTION = """\
# Under fire

Made by `python -m benchmarks.under_fire`. Each part was run as the command under its title says.
Seconds and rates are of the machine they were measured on, which others used at the same time: look
at the ratios. What was missed stands beside its target; a part that is not here was not run.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of: {', '.join(TITLES)}")
    parser.add_argument("--seconds", type=float, default=120.0, help="of load, of leaks")
    parser.add_argument("--most", type=float, default=600.0, help="seconds for rows; then it ends")
    parser.add_argument("--times", type=int, default=100, help="kills")
    parser.add_argument("--seed", type=int, default=0, help="of kills and leaks")
    parser.add_argument("--resume", action="store_true", help="kills after those of the last run")
    parser.add_argument("--rows", type=int, default=20_000, help="in the table")
    parser.add_argument("--page", type=Path, default=RESULTS / "under-fire.csv")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = read(arguments.page)
    for part in arguments.parts:
        command = TITLES[part][1].format(**vars(arguments))
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        lines[part] = [Line("", f"`{command}`, {time.strftime('%Y-%m-%d')}, {machine}")]
        for found in PARTS[part](arguments):
            print_lines(found)
            lines[part] += found
            write(arguments.page, lines)
    arguments.page.with_suffix(".md").write_text(page(lines), encoding="utf-8")


def load(arguments: Namespace, workers: int = 1) -> Iterator[list[Line]]:
    """The load of many connections on a server."""
    picks = ",".join(Search().picks)
    settings = {"seconds": arguments.seconds, "connections": 50, "workers": workers, "queue": 64}
    yield serving.measure(Namespace(**settings, picks=picks), *serving.fitted(serving.ROWS))


def kill(arguments: Namespace) -> Iterator[list[Line]]:
    """Kills, whose outcomes are kept one by one: a run that was interrupted can go on."""
    record = arguments.page.with_name(f"{arguments.page.stem}-kills.csv")
    if not arguments.resume:
        record.unlink(missing_ok=True)
    yield kills.measure_kills(arguments.times, arguments.seed, record)


def two_processes(arguments: Namespace) -> Iterator[list[Line]]:
    """How two workers end, and the load on them."""
    yield attacks.measure([TWO_WORKERS])
    yield from load(arguments, 2)


LARGE = ("twelve large requests", "costly constraints")
TWO_WORKERS = "SIGTERM with work waiting, two workers"
ELSEWHERE = (*LARGE, TWO_WORKERS)

# What each measures, part by part, so that what was measured is kept if it is interrupted.
PARTS: dict[str, Callable[[Namespace], Iterable[list[Line]]]] = {
    "attacks": lambda _: (attacks.measure([n]) for n in attacks.ATTACKS if n not in ELSEWHERE),
    "large": lambda _: (attacks.measure([name]) for name in LARGE),
    "load": load,
    "load-2": two_processes,
    "kills": kill,
    "surroundings": lambda _: [kills.measure_surroundings()],
    "leaks": lambda arguments: [leaks.measure(arguments.seconds, arguments.seed)],
    "rows": lambda arguments: [streaming.measure(arguments.rows, arguments.most)],
    "million": lambda arguments: [streaming.measure(arguments.rows, arguments.most, 0.001)],
}


def read(path: Path) -> dict[str, list[Line]]:
    """The lines of each part that was run; the first of each says how."""
    found: dict[str, list[Line]] = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                kept = {"yes": True, "no": False}.get(row["kept"])
                line = Line(row["what"], row["value"], row["target"], kept)
                found.setdefault(row["part"], []).append(line)
    return found


def write(path: Path, parts: dict[str, list[Line]]) -> None:
    """The inverse of `read`."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for part in TITLES:
            for what, value, target, kept in parts.get(part, []):
                rows.writerow((part, what, value, target, {True: "yes", False: "no"}.get(kept, "")))


def page(parts: dict[str, list[Line]]) -> str:
    """The page of all parts."""
    sections = [INTRODUCTION, summary(parts)]
    for part, (title, _) in TITLES.items():
        if part in parts:
            how, *lines = parts[part]
            rows = [f"| {line.what} | {line.value} | {verdict(line)} |" for line in lines]
            head = ["| | measured | target |", "|---|---:|---|"]
            sections.append("\n".join([f"## {title}", "", how.value, "", *head, *rows, ""]))
    return "\n".join(sections)


def summary(parts: dict[str, list[Line]]) -> str:
    """How many targets were met."""
    judged: Sequence[Line] = [line for lines in parts.values() for line in lines if line.target]
    missed = [line for line in judged if line.kept is False]
    named = "".join(f"\n- {line.what}: {line.value} (target {line.target})" for line in missed)
    met = f"{len(judged) - len(missed)} of {len(judged)} targets met"
    return f"{met}, missed are:\n{named}\n" if missed else f"{met}.\n"


def verdict(line: Line) -> str:
    """A target, and whether it was met."""
    return f"{line.target}{'' if line.kept is not False else ': **missed**'}"


if __name__ == "__main__":
    main()
