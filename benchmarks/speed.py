"""How fast lapace is, as one table: `make bench-speed`, or `python -m benchmarks.speed`.

Machines are shared and noisy, so times are processor seconds where that is possible, and compared
with something measured beside them. `python -m benchmarks.speed gpu` is for a machine with a GPU.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier

from benchmarks.figures import grid
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
COUNTED = ["changes <= 4", "`mean radius` + `mean texture` <= 30"]
PAIRS = ("loans", "wine", "heloc", "adult", "compas")
RESULTS, PAGE = Path("benchmarks/results/speed.md"), Path("docs/how-to/speed.md")
MADE = "<!-- what follows is benchmarks/results/speed.md -->\n\n"  # on the page


class Line(NamedTuple):
    """One line of the table: what was measured, the figure, and what it should be at most."""

    what: str
    value: float
    most: float | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """Its cells; the last says whether the target is met."""
        if self.most is None:
            return self.what, f"{self.value:,.3g}", "", ""
        met = "yes" if self.value <= self.most else "no"
        return self.what, f"{self.value:,.3g}", f"≤ {self.most:g}", met


def seconds_of(work: Callable[[], Any], repeats: int = 1) -> float:
    """Returns the fewest processor seconds of a few runs."""
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
        self.known: tuple[Any, Any] = (None, None)
        self.reset()

    def reset(self) -> None:
        """Starts counting anew."""
        self.seconds, self.rows, self.calls = 0.0, 0, 0

    def predict_proba(self, rows: Any) -> Any:
        """Returns probabilities."""
        start = time.process_time()
        found = self.model.predict_proba(rows)
        self.seconds += time.process_time() - start
        self.rows, self.calls, self.known = self.rows + len(rows), self.calls + 1, (rows, found)
        return found

    def predict(self, rows: Any) -> Any:
        """Returns labels; those of rows just asked about cost nothing."""
        probability = self.known[1] if self.known[0] is rows else self.predict_proba(rows)
        return np.asarray(self.classes_)[probability.argmax(axis=1)]

    def outside(self, work: Callable[[], Any]) -> float:
        """Returns the processor seconds of some work outside the classifier; counts it anew."""
        self.reset()
        return seconds_of(work) - self.seconds


@cache
def fitted(name: str = "loans", kind: Any = "forest") -> tuple[Any, Timed, Explainer]:
    """Returns a data set, its classifier, and an explainer of it."""
    data = datasets.load(name)
    model = Timed(data.classifier(kind))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CentroidWarning)
        return data, model, Explainer(model, random_state=0).fit(data.train)


def refused(count: int, name: str = "loans", kind: str = "forest") -> pd.DataFrame:
    """Returns rows without the favourable label, repeated where there are too few."""
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
    limited = partial(explainer.explain, instances, constraints=FIVE, search=PATHS)
    once, plain, five = [], [], []
    for _ in range(3):  # side by side, so that a busy minute counts for all
        once.append(seconds_of(lambda: model.model.predict(rows)))
        five.append(model.outside(limited))
        plain.append(model.outside(partial(explainer.explain, instances, search=PATHS)))
    ratio = min(plain) / min(once)
    yield Line("outside the classifier / one `predict` on instances x 5 x 21 rows", ratio, 0.25)
    paths = len(instances) * 6  # to five prototypes and one sampled endpoint
    yield Line("rows asked per instance and path, first, middle, last", model.rows / paths)
    yield Line(f"classifier calls for {len(instances)} instances", model.calls)
    ratio = min(five) / min(plain)
    yield Line("five constraints / none, outside the classifier", ratio, 2)
    for what, search, most, calls_at_most in (
        ("first, middle, last", PATHS, 5, 15),
        ("all picks", Search(), 60, 30),
    ):
        outside, calls = [], []
        for k in range(20):
            single = instances.iloc[k : k + 1]
            outside.append(1000 * model.outside(partial(explainer.explain, single, search=search)))
            calls.append(model.calls)
        median = float(np.median(outside))
        yield Line(f"one instance, {what}: ms outside the classifier (median)", median, most)
        text = f"one instance, {what}: classifier calls (greatest of 20)"
        yield Line(text, max(calls), calls_at_most)


def queries(chosen: argparse.Namespace) -> Iterator[Line]:
    """All picks of many instances: time outside the classifier, and rows asked, by pair."""
    for name in chosen.pairs:
        for kind in ("forest", "mlp", "boosting"):
            data, model, explainer = fitted(name, kind)
            frame = refused(60, name, kind)
            for what, search, rows, most in (
                ("defaults", Search(), None, 4),
                ("few queries", FEW, 120, None),
            ):
                work = partial(explainer.explain, frame, target=data.target, search=search)
                outside, text = 1000 * model.outside(work) / len(frame), f"{name}, {kind}, {what}"
                yield Line(f"{text}: rows asked per instance", model.rows / len(frame), rows)
                yield Line(f"{text}: ms an instance outside the classifier", outside, most)


def constraints(_: argparse.Namespace) -> Iterator[Line]:
    """The slow sets: a limit on changes with relations."""
    _, model, explainer = fitted()
    table = load_breast_cancer(as_frame=True)
    forest = Timed(RandomForestClassifier(random_state=0).fit(table.data, table.target))
    other = Explainer(forest, random_state=0).fit(table.data)
    malignant = table.data[forest.predict(table.data) == 0].head(64)
    for name, timed, one, rows, texts, most in (
        ("loans", model, explainer, refused(20), RELATIONS, 1),
        ("breast cancer", forest, other, malignant, COUNTED, 5),
    ):
        work = partial(one.explain, rows, constraints=texts, search=PATHS)
        listed = " and ".join(f"`{c.replace('`', '')}`" for c in texts)
        what = f"{listed}: processor seconds for {len(rows)} instances of {name}"
        yield Line(f"{what}, the classifier's left out", timed.outside(work), most)


def growth(chosen: argparse.Namespace) -> Iterator[Line]:
    """Measures how time grows with instances, columns, clusters and steps."""

    def seconds(rows: Any, explainer: Explainer, search: Search = PATHS) -> float:
        return seconds_of(lambda: explainer.explain(rows, search=search), 3)

    counts = [n for n in (2_500, 5_000, 10_000, 100_000) if n <= chosen.largest]
    rows, explainer = linear(10, 5)
    times = [seconds(np.resize(rows, (n, rows.shape[1])), explainer) for n in counts]
    yield Line(f"processor seconds for {counts[-1]:,} instances", times[-1])
    for name, sizes, found in (
        ("instances", counts, times),
        ("columns", (10, 20, 40), [seconds(*linear(n, 5)) for n in (10, 20, 40)]),
        ("clusters", (4, 8, 16), [seconds(*linear(10, n)) for n in (4, 8, 16)]),
        ("steps", (10, 20, 40),
         [seconds(rows, explainer, Search(steps=n, picks=PICKS)) for n in (10, 20, 40)]),
    ):  # fmt: skip
        slope = np.polyfit(np.log(sizes), np.log(np.maximum(found, 1e-9)), 1)[0]
        yield Line(f"slope of time with {name}", float(slope), 1.05)


@cache
def linear(columns: int, clusters: int, device: str | None = None) -> tuple[Any, Explainer]:
    """Returns rows that a linear classifier on arrays refuses, and a quickly fitted explainer."""
    rows = np.random.default_rng(0).normal(size=(3000, columns)).round(3)
    weights = torch.linspace(1.0, 0.2, columns, device=device)

    class Linear:
        classes_ = (0, 1)

        def predict_proba(self, x: Any) -> Any:
            x = torch.as_tensor(x, dtype=torch.float32, device=device)
            second = torch.sigmoid(x @ weights)
            return torch.stack([1 - second, second], dim=1)

        def predict(self, x: Any) -> Any:
            return (self.predict_proba(x)[:, 1] > 0.5).to(torch.int64)

    recipe = replace(DEFAULT, steps=min(500, DEFAULT.steps))
    settings = {"n_prototypes": clusters, "recipe": recipe, "device": device, "random_state": 0}
    model = Linear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explainer = Explainer(model, **settings).fit(rows)
    return rows[(model.predict(rows) == 0).cpu().numpy()], explainer


def fits(chosen: argparse.Namespace) -> Iterator[Line]:
    """Processor seconds of a whole fit, report included, of loans and of many rows."""
    data, model, _ = fitted()

    def fit() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CentroidWarning)
            Explainer(model, random_state=0).fit(data.train)

    outside = model.outside(fit)
    rows = f"fit of loans, {len(data.train):,} rows: processor seconds"
    yield Line(rows, outside + model.seconds)
    yield Line("fit of loans: of these in the classifier", model.seconds)
    table = np.random.default_rng(0).normal(size=(chosen.rows, 10)).round(3)
    plain = Explainer(lambda x: x.sum(axis=1) > 0, random_state=0)
    what = f"fit of {chosen.rows:,} rows of ten columns: processor seconds"
    yield Line(what, seconds_of(lambda: plain.fit(table)), 45 if chosen.rows >= 300_000 else None)


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
        linear(10, 5)[1].save(path)
        load = f"Explainer.load({str(path)!r}, lambda x: x[:, 0] > 0)"
        code = f"import torch; from lapace import Explainer; {load}"
        yield Line(f"`Explainer.load`: {what}", seconds(code) - bare)


def many(_: argparse.Namespace) -> Iterator[Line]:
    """Many instances, by the clock: all picks of loans."""
    _, _, explainer = fitted()
    yield from _by_the_clock("loans, all picks", explainer, refused(10_000), Search())


def gpu(chosen: argparse.Namespace) -> Iterator[Line]:
    """First, middle and last of many instances with a linear classifier on arrays, by the clock."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    rows, explainer = linear(10, 5, device)
    explainer.explain(rows[:1000], search=PATHS)  # warm
    for count in sorted({min(n, chosen.largest) for n in (100_000, 1_000_000)}):
        instances = np.resize(rows, (count, rows.shape[1]))
        most = 30 if count == 1_000_000 else None
        yield from _by_the_clock(name, explainer, instances, PATHS, most)


def _by_the_clock(
    name: str, explainer: Explainer, instances: Any, search: Search, most: float | None = None
) -> Iterator[Line]:
    start = time.perf_counter()
    found = explainer.explain(instances, search=search)
    seconds = time.perf_counter() - start
    yield Line(f"{name}: seconds for {len(instances):,} instances", seconds, most)
    yield Line(f"{name}: of these in the classifier", found.seconds.get("classifier", 0.0))


PARTS: Mapping[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    "explain": explain, "queries": queries, "constraints": constraints, "growth": growth,
    "fits": fits, "cold": cold, "many": many, "gpu": gpu,
}  # fmt: skip


def page(lines: list[Line], command: str) -> str:
    """Returns the table, with when and where it was made."""
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    where = f"{len(os.sched_getaffinity(0))} cores of {platform.machine()}, {versions}"
    table = grid(("what", "measured", "target", "met"), [line.cells for line in lines])
    return f"Made by `{command}` on {when}, on {where}.\n\n{table}\n"


def main() -> None:
    """Measures, prints, and writes the table where one is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all but gpu")
    parser.add_argument("--instances", type=int, default=200, help="in `explain`")
    parser.add_argument("--largest", type=int, default=10_000, help="instances in `growth`, `gpu`")
    parser.add_argument("--rows", type=int, default=300_000, help="in `fits`")
    parser.add_argument("--pairs", nargs="*", default=list(PAIRS), help="data sets in `queries`")
    parser.add_argument("--write", type=Path, help=f"the table's file, such as {RESULTS}")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"There is no part {', '.join(unknown)}. There are: {', '.join(PARTS)}.")
    torch.set_num_threads(1)
    lines: list[Line] = []
    for name in chosen.parts or [part for part in PARTS if part != "gpu"]:
        for line in PARTS[name](chosen):
            print(" | ".join(line.cells), flush=True)
            lines.append(line)
    if chosen.write:
        table = page(lines, " ".join(["python -m benchmarks.speed", *chosen.parts]))
        chosen.write.write_text(table, encoding="utf-8")
        if chosen.write == RESULTS and PAGE.exists():
            about = PAGE.read_text(encoding="utf-8").partition(MADE)[0]
            PAGE.write_text(about + MADE + table, encoding="utf-8")


if __name__ == "__main__":
    main()
