"""How fast lapace is, as one table: `make bench-speed`, or `python -m benchmarks.speed`.

Machines are shared and noisy, so everything is compared with something measured beside it, in
processor seconds where that is possible. `python -m benchmarks.speed gpu` is the one absolute part,
for a machine with a GPU.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

from lapace import Explainer, Search, datasets
from lapace.errors import CentroidWarning
from lapace.training import DEFAULT

PICKS = ("first", "middle", "last")
PATHS = Search(picks=PICKS)
FEW = Search(steps=5, n_starts=3)  # for slow or paid classifiers
FIVE = [
    "age == original",
    "dependants == original",
    "purpose == original",
    "income >= original",
    "changes <= 6",
]
RELATIONS = ["changes <= 3", "income >= 12 * instalment", "savings + 2 * income >= amount"]
COUNTED = ["changes == 4", "`mean radius` + `mean texture` <= 30"]
PAIRS = ("loans", "wine", "heloc", "adult", "compas")
RESULTS, PAGE = Path("benchmarks/results/speed.md"), Path("docs/how-to/speed.md")
MADE = "<!-- what follows is benchmarks/results/speed.md -->\n\n"  # on the page


class Line(NamedTuple):
    """One line of the table: what was measured, the figure, and what it should be at most.

    A target that is negative is what the figure should be at least.
    """

    what: str
    value: float
    target: float | None = None

    @property
    def text(self) -> str:
        """As a row of a Markdown table."""
        least = "" if self.target is None else f"≥ {-self.target:g}"
        target = least if self.target is None or self.target < 0 else f"≤ {self.target:g}"
        return f"| {self.what} | {self.value:,.3g} | {target} | {self.met} |"

    @property
    def met(self) -> str:
        """Whether the target is met, in a word."""
        if self.target is None:
            return ""
        reached = self.value <= self.target if self.target >= 0 else self.value >= -self.target
        return "yes" if reached else "no"


def least(work: Callable[[], Any], repeats: int = 3) -> float:
    """The fewest processor seconds of a few runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


class Timed:
    """A classifier that counts its processor seconds, rows and calls."""

    def __init__(self, model: Any) -> None:
        self.model, self.classes_ = model, model.classes_
        self.reset()

    def reset(self) -> None:
        """Starts counting anew."""
        self.seconds, self.rows, self.calls = 0.0, 0, 0

    def predict(self, rows: Any) -> Any:
        """Labels."""
        start = time.process_time()
        found = self.model.predict(rows)
        self.seconds += time.process_time() - start
        self.rows += len(rows)
        self.calls += 1
        return found


class TimedProbability(Timed):
    """The same with probabilities; `predict` reads the label off them, at no cost."""

    known: tuple[Any, Any] = (None, None)

    def predict_proba(self, rows: Any) -> Any:
        """Probabilities."""
        start = time.process_time()
        found = self.model.predict_proba(rows)
        self.seconds += time.process_time() - start
        self.rows += len(rows)
        self.calls += 1
        self.known = rows, found
        return found

    def predict(self, rows: Any) -> Any:
        """Labels."""
        if self.known[0] is rows:
            return np.asarray(self.classes_)[self.known[1].argmax(axis=1)]
        return super().predict(rows)


@cache
def fitted(name: str = "loans", kind: Any = "forest") -> tuple[Any, TimedProbability, Explainer]:
    """A data set, its classifier, and an explainer of it."""
    data = datasets.load(name)
    model = TimedProbability(data.classifier(kind))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CentroidWarning)
        return data, model, Explainer(model, random_state=0).fit(data.train)


def refused(count: int, name: str = "loans", kind: str = "forest") -> pd.DataFrame:
    """Rows with another label than the favourable one, repeated where there are too few."""
    data, model, _ = fitted(name, kind)
    every = pd.concat([data.test, data.train], ignore_index=True)
    found = every[model.model.predict(every) != data.target]
    return pd.concat([found] * -(-count // len(found)), ignore_index=True).head(count)


# ------------------------------------------------------------------------------------------------
# The parts


def explain(chosen: argparse.Namespace) -> Iterator[Line]:
    """First, middle, last, then all picks: time outside the classifier, and queries."""
    data, model, explainer = fitted()
    instances = refused(chosen.instances)
    rows = pd.concat([data.train] * 20, ignore_index=True).head(len(instances) * 5 * 21)
    plain, five = [], []
    for _ in range(3):  # side by side, so that a busy minute counts for all
        once = least(lambda: model.model.predict(rows), 1)
        for found, constraints in ((plain, []), (five, FIVE)):
            model.reset()
            total = least(lambda c=constraints: _explained(explainer, instances, c), 1)
            found.append((total - model.seconds, once, model.rows, model.calls))
    outside, once, asked, calls = min(plain)
    paths = len(instances) * 6  # to five prototypes and one sampled endpoint
    yield Line(
        "outside the classifier / one `predict` on instances x 5 x 21 rows", outside / once, 0.25
    )
    yield Line("rows asked per instance and path, first, middle, last", asked / paths)
    yield Line(f"classifier calls for {len(instances)} instances", calls)
    yield Line("five constraints / none, outside the classifier", min(five)[0] / outside, 2)
    for what, search, most, calls_at_most in (
        ("first, middle, last", PATHS, 5, 15),
        ("all picks", Search(), 60, 30),
    ):
        one, few = [], []
        for k in range(20):
            model.reset()
            single = refused(20).iloc[k : k + 1]
            total = least(lambda x=single, s=search: explainer.explain(x, search=s), 1)
            one.append(1000 * (total - model.seconds))
            few.append(model.calls)
        outside = float(np.median(one))
        yield Line(f"one instance, {what}: ms outside the classifier (median)", outside, most)
        text = f"one instance, {what}: classifier calls (greatest of 20)"
        yield Line(text, max(few), calls_at_most)


def _explained(explainer: Explainer, instances: Any, constraints: list[str]) -> Any:
    return explainer.explain(instances, search=PATHS, constraints=constraints)


def queries(chosen: argparse.Namespace) -> Iterator[Line]:
    """All picks of many instances: time outside the classifier, and rows asked, by pair."""
    for name in chosen.pairs:
        for kind in ("forest", "mlp", "boosting"):
            data, model, explainer = fitted(name, kind)
            instances = refused(60, name, kind)
            for what, search, most in (("defaults", Search(), None), ("few queries", FEW, 120)):
                model.reset()
                total = least(
                    lambda e=explainer, x=instances, t=data.target, s=search: e.explain(
                        x, target=t, search=s
                    ),
                    1,
                )
                rows, outside = model.rows / len(instances), total - model.seconds
                yield Line(f"{name}, {kind}, {what}: rows asked per instance", rows, most)
                yield Line(
                    f"{name}, {kind}, {what}: ms an instance outside the classifier",
                    1000 * outside / len(instances),
                    4 if search is not FEW else None,
                )


def constraints(_: argparse.Namespace) -> Iterator[Line]:
    """The slow sets: a limit on changes with relations."""
    _, model, explainer = fitted()
    yield _seconds(model, explainer, refused(20), RELATIONS, "loans", 1)
    table = load_breast_cancer(as_frame=True)
    forest = RandomForestClassifier(random_state=0).fit(table.data, table.target)
    model = TimedProbability(forest)
    explainer = Explainer(model, random_state=0).fit(table.data)
    rows = table.data[forest.predict(table.data) == 0].head(64)
    yield _seconds(model, explainer, rows, COUNTED, "breast cancer", 5)


def _seconds(
    model: TimedProbability,
    explainer: Explainer,
    rows: Any,
    constraints: list[str],
    of: str,
    most: float,
) -> Line:
    model.reset()
    total = least(lambda: _explained(explainer, rows, constraints), 1)
    what = " and ".join(f"`{c.replace('`', '')}`" for c in constraints)
    what = f"{what}: processor seconds for {len(rows)} instances of {of}"
    return Line(what + ", the classifier's left out", total - model.seconds, most)


def growth(chosen: argparse.Namespace) -> Iterator[Line]:
    """How time and memory grow with instances, columns, clusters and steps."""
    counts = [n for n in (2_500, 5_000, 10_000, 100_000) if n <= chosen.largest]
    matrix, explainer = _synthetic(10, 5)
    times, peaks = [], []
    for count in counts:
        rows = np.tile(matrix, (-(-count // len(matrix)), 1))[:count]
        with peak_memory() as peak:
            times.append(least(lambda x=rows: explainer.explain(x, search=PATHS), 1))
        peaks.append(max(peak))
    yield Line("slope of time with instances", _slope(counts, times), 1.05)
    yield Line("slope of memory with instances", _slope(counts, peaks), 1.05)
    yield Line(f"MB for {counts[-1]:,} instances", peaks[-1] / 1e6)
    yield Line(f"processor seconds for {counts[-1]:,} instances", times[-1])
    columns = [_timed(*_synthetic(width, 5)) for width in (10, 20, 40)]
    yield Line("slope of time with columns", _slope((10, 20, 40), columns), 1.05)
    clusters = [_timed(*_synthetic(10, count)) for count in (4, 8, 16)]
    yield Line("slope of time with clusters", _slope((4, 8, 16), clusters), 1.05)
    grid = [_timed(matrix, explainer, Search(steps=n, picks=PICKS)) for n in (10, 20, 40)]
    yield Line("slope of time with steps", _slope((10, 20, 40), grid), 1.05)


def _timed(rows: Any, explainer: Explainer, search: Search = PATHS) -> float:
    return least(lambda: explainer.explain(rows, search=search))


@cache
def _synthetic(columns: int, clusters: int, device: str | None = None) -> tuple[Any, Explainer]:
    """Rows that a linear classifier on arrays refuses, and a quickly fitted explainer of it."""
    rows = np.random.default_rng(0).normal(size=(3000, columns)).round(3)
    weights = torch.linspace(1.0, 0.2, columns)

    class Linear:
        classes_ = (0, 1)

        def predict_proba(self, x: Any) -> Any:
            x = torch.as_tensor(x, dtype=torch.float32, device=device)
            second = torch.sigmoid(x @ weights.to(x.device))
            return torch.stack([1 - second, second], dim=1)

        def predict(self, x: Any) -> Any:
            return (self.predict_proba(x)[:, 1] > 0.5).to(torch.int64)

    recipe = replace(DEFAULT, steps=min(500, DEFAULT.steps))
    model = Linear()
    explainer = Explainer(
        model, n_prototypes=clusters, recipe=recipe, device=device, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explainer.fit(rows)
    return rows[(model.predict(rows) == 0).cpu().numpy()], explainer


def _slope(sizes: Any, values: Any) -> float:
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-9)), 1)[0])


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Bytes a block takes above what was used when it began, read a hundred times a second."""
    statm, page = Path("/proc/self/statm"), resource.getpagesize()
    before, found, stop = int(statm.read_text().split()[1]), [1], threading.Event()

    def watch() -> None:
        while not stop.wait(0.01):
            found.append((int(statm.read_text().split()[1]) - before) * page)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def fits(chosen: argparse.Namespace) -> Iterator[Line]:
    """Processor seconds of a whole fit, report included, of loans and of many rows."""
    data, model, _ = fitted()

    def fit_loans() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CentroidWarning)
            Explainer(model, random_state=0).fit(data.train)

    model.reset()
    seconds = least(fit_loans, 1)
    yield Line(f"fit of loans, {len(data.train):,} rows: processor seconds", seconds)
    yield Line("fit of loans: of these in the classifier", model.seconds)
    rows = np.random.default_rng(0).normal(size=(chosen.rows, 10)).round(3)
    seconds = least(lambda: Explainer(lambda x: x.sum(axis=1) > 0, random_state=0).fit(rows), 1)
    target = 45 if chosen.rows >= 300_000 else None
    yield Line(f"fit of {chosen.rows:,} rows of ten columns: processor seconds", seconds, target)


def cold(_: argparse.Namespace) -> Iterator[Line]:
    """Seconds until something can be explained, above `import torch`."""

    def seconds(code: str) -> float:
        runs = []
        for _ in range(3):
            start = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code], check=True)
            end = resource.getrusage(resource.RUSAGE_CHILDREN)
            runs.append(end.ru_utime - start.ru_utime + end.ru_stime - start.ru_stime)
        return min(runs)

    bare, what = seconds("import torch"), "processor seconds over `import torch`"
    yield Line(f"`import lapace`: {what}", seconds("import torch, lapace") - bare, 0.3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "explainer.lapace"
        _synthetic(10, 5)[1].save(path)
        load = f"Explainer.load({str(path)!r}, lambda x: x[:, 0] > 0)"
        code = f"import torch; from lapace import Explainer; {load}"
        yield Line(f"`Explainer.load`: {what}", seconds(code) - bare)


def many(_: argparse.Namespace) -> Iterator[Line]:
    """Many instances, by the clock: all picks of loans, and paths alone on arrays."""
    _, model, explainer = fitted()
    instances = refused(10_000)
    model.reset()
    start = time.perf_counter()
    found = explainer.explain(instances)
    seconds = time.perf_counter() - start
    yield Line("10,000 instances of loans, all picks: seconds", seconds)
    share = found.seconds.get("classifier", 0.0) / seconds
    yield Line("10,000 instances of loans, all picks: share in the classifier", share)
    rows, explainer = _synthetic(10, 5)
    several = np.tile(rows, (-(-100_000 // len(rows)), 1))[:100_000]
    start = time.perf_counter()
    explainer.explain(several, search=PATHS)
    what = "100,000 instances, a linear classifier on arrays, first, middle, last: seconds"
    yield Line(what, time.perf_counter() - start)


def gpu(chosen: argparse.Namespace) -> Iterator[Line]:
    """First, middle and last of many instances with a linear classifier on arrays, by the clock."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, explainer = _synthetic(10, 5, device)
    explainer.explain(rows[:1000], search=PATHS)  # warm
    for count in [n for n in (100_000, 1_000_000) if n <= chosen.largest] or [chosen.largest]:
        many = np.tile(rows, (-(-count // len(rows)), 1))[:count]
        start = time.perf_counter()
        found = explainer.explain(many, search=PATHS)
        seconds = time.perf_counter() - start
        share = found.seconds.get("classifier", 0.0)
        name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
        yield Line(
            f"{name}: seconds for {count:,} instances", seconds, 30 if count == 1_000_000 else None
        )
        yield Line(f"{name}: of these in the classifier", share)


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    "explain": explain,
    "queries": queries,
    "constraints": constraints,
    "growth": growth,
    "fits": fits,
    "cold": cold,
    "many": many,
    "gpu": gpu,
}


def page(lines: list[Line], command: str) -> str:
    """The table, with when and where it was made."""
    cores = len(os.sched_getaffinity(0))
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    where = f"{cores} cores of {platform.machine()}, {versions}"
    head = ["| what | measured | target | met |", "|---|---:|---:|---|"]
    return "\n".join(
        [
            f"Made by `{command}` on {when}, on {where}.",
            "",
            *head,
            *(line.text for line in lines),
            "",
        ]
    )


def main() -> None:
    """Measures, prints, and writes the table where one is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; default: all but gpu"
    )
    parser.add_argument("--instances", type=int, default=200, help="in `explain`")
    parser.add_argument("--largest", type=int, default=10_000, help="instances in `growth`, `gpu`")
    parser.add_argument("--rows", type=int, default=300_000, help="in `fits`")
    parser.add_argument("--pairs", nargs="*", default=list(PAIRS), help="data sets in `queries`")
    parser.add_argument("--write", type=Path, help=f"the table's file, such as {RESULTS}")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(
            f"There is no part {', '.join(sorted(unknown))}. There are: {', '.join(PARTS)}."
        )
    torch.set_num_threads(1)
    lines: list[Line] = []
    for name in chosen.parts or [part for part in PARTS if part != "gpu"]:
        for line in PARTS[name](chosen):
            print(line.text, flush=True)
            lines.append(line)
    if chosen.write:
        command = " ".join(["python -m benchmarks.speed", *chosen.parts])
        table = page(lines, command)
        chosen.write.write_text(table, encoding="utf-8")
        if chosen.write == RESULTS and PAGE.exists():
            about = PAGE.read_text(encoding="utf-8").partition(MADE)[0]
            PAGE.write_text(about + MADE + table, encoding="utf-8")


if __name__ == "__main__":
    main()
