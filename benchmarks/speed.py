"""How fast lapace is, beside its targets and its peers: `make bench-speed`.

Machines are shared and noisy, so times are processor seconds of one thread where that is possible.
`python -m benchmarks.speed gpu --largest 1000000` is for a machine with a GPU.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
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
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from benchmarks.baselines import FACE, NNCE, DiCE
from benchmarks.baselines.problem import BaselineProblem, interpolate
from benchmarks.figures import grid
from lapace import Counterfactuals, Explainer, Search, datasets, metrics
from lapace.training import DEFAULT

PATHS = Search(picks=("first", "middle", "last"))
FIVE = [
    "age == original",
    "dependants == original",
    "purpose == original",
    "income >= original",
    "changes <= 6",
]
RESULTS, PAGE = Path("benchmarks/results/speed.md"), Path("docs/how-to/speed.md")
MADE = "<!-- what follows is benchmarks/results/speed.md -->\n\n"  # on the page
PEERS = ("method", "answered", "distance", "changes", "LOF", "queries", "ms")


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


class Timed:
    """Counts the processor seconds, rows and calls of a classifier, which stays what it is."""

    def __init__(self, model: Any) -> None:
        self.model, self.depth = model, 0
        for name in ("predict_proba", "predict"):
            setattr(model, name, partial(self.counted, getattr(model, name)))
        self.reset()

    def reset(self) -> None:
        """Starts counting anew."""
        self.seconds, self.rows, self.calls = 0.0, 0, 0

    def counted(self, method: Callable[[Any], Any], rows: Any) -> Any:
        """Calls a method of the classifier; a call it makes of the other is part of its own."""
        begin, self.depth = time.process_time(), self.depth + 1
        try:
            return method(rows)
        finally:
            self.depth -= 1
            if not self.depth:
                self.seconds += time.process_time() - begin
                self.rows, self.calls = self.rows + len(rows), self.calls + 1

    def timed(self, work: Callable[[], Any]) -> float:
        """Returns the processor seconds of some work; counts the classifier's anew."""
        self.reset()
        start = time.process_time()
        work()
        return time.process_time() - start


class NearestUndone(NNCE):
    """The nearest training row labelled as the target, made minimal greedily.

    Every change that can be undone is undone, the costliest first; then numbers go half of the way
    back, again and again, while the row stays ok.
    """

    def counterfactuals(self, X: Any, *, target: Any = None, constraints: Any = ()) -> Any:
        """One row per instance, where there is one."""
        problem = BaselineProblem.of(self, X, target, constraints)
        found = super().counterfactuals(X, target=target, constraints=constraints)
        cells, instance, schema = found.cells.copy(), found.instance, problem.schema
        originals, each = problem.cells[instance], np.arange(len(instance))
        for back in (1.0, 0.5, 0.5, 0.5):
            order = np.argsort(-schema.gaps(originals, cells), axis=1)
            for column in order.T:
                tried = cells.copy()
                share = np.full(len(cells), back)
                tried[each, column] = interpolate(schema, cells, originals, share)[each, column]
                rows = np.flatnonzero(schema.changed(tried, cells).any(axis=1))
                ok = problem.evaluate(tried[rows], instance[rows]).ok
                cells[rows[ok]] = schema.derive(tried[rows[ok]], originals[rows[ok]])
        return problem.accepted([(cells, instance)])


@cache
def fitted(rules: bool = False) -> tuple[Any, Timed, Explainer]:
    """Returns loans, a forest, and an explainer of it, with the rules of the table or without."""
    data = datasets.load("loans")
    model = Timed(data.classifier("forest"))
    explainer = Explainer(model.model, rules=data.rules if rules else (), random_state=0)
    return data, model, explainer.fit(data.train)


def refused(count: int) -> pd.DataFrame:
    """Returns rows of loans without the favourable label, repeated where there are too few."""
    data, model, _ = fitted()
    every = pd.concat([data.test, data.train], ignore_index=True)
    found = every[model.model.predict(every) != data.target]
    return pd.concat([found] * -(-count // len(found)), ignore_index=True).head(count)


# ------------------------------------------------------------------------------------------------
# The parts


def start(_: argparse.Namespace) -> Iterator[Line]:
    """Processor seconds and memory until `Explainer` can be used."""
    code = "import time; from pathlib import Path; from lapace import Explainer; "
    code += "peak = Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]; "
    code += "print(time.process_time(), int(peak) / 1024)"  # in kB
    runs = [subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(3)]
    seconds, megabytes = np.array([run.split() for run in runs], dtype=float).min(axis=0)
    yield Line("`from lapace import Explainer`: processor seconds", seconds, 1.5)
    yield Line("`from lapace import Explainer`: MB", megabytes, 300)


def fits(_: argparse.Namespace) -> Iterator[Line]:
    """A whole fit of loans, report included."""
    data, model, _ = fitted()
    seconds = model.timed(lambda: Explainer(model.model, random_state=0).fit(data.train))
    yield Line(f"fit of loans, {len(data.train):,} rows: processor seconds", seconds, 6)
    yield Line("fit of loans: of these in the classifier", model.seconds)


def single(_: argparse.Namespace) -> Iterator[Line]:
    """One instance with all picks, by the number of columns; twenty of 60 columns at once."""
    for columns, most in ((10, 60), (30, 80), (60, 120)):
        model, explainer, rows = columns_of(columns, LogisticRegression(max_iter=1000))
        explainer.explain(rows[:1])  # warm
        runs = []
        for k in range(20):
            work = partial(explainer.explain, rows[k : k + 1])
            runs.append((1000 * model.timed(work), 1000 * model.seconds, model.calls))
        total, inside, calls = np.median(runs, axis=0)
        yield Line(f"one instance of {columns} columns, all picks, warm: ms", total, most)
        yield Line(f"one instance of {columns} columns: of these in the classifier", inside)
        yield Line(f"one instance of {columns} columns: classifier calls", calls)
    model, explainer, rows = columns_of(60, HistGradientBoostingClassifier(random_state=0))
    each = 50 * min(model.timed(partial(explainer.explain, rows[:20])) for _ in range(3))
    yield Line("twenty instances of 60 columns, boosting: ms each", each, 30)
    yield Line("twenty instances of 60 columns: of these in the classifier", 50 * model.seconds)


def columns_of(count: int, model: Any) -> tuple[Timed, Explainer, pd.DataFrame]:
    """Returns a classifier of so many columns, an explainer of it, and rows it refuses."""
    x, y = make_classification(2000, count, n_informative=max(4, count // 3), random_state=0)
    table = pd.DataFrame(x.round(2), columns=[f"c{i}" for i in range(count)])
    timed = Timed(model.fit(table, y))
    return timed, Explainer(model, random_state=0).fit(table), table[model.predict(table) == 0]


def constraints(_: argparse.Namespace) -> Iterator[Line]:
    """Paths alone, and what five constraints add."""
    _, model, explainer = fitted()
    rows, outside = refused(1000), []
    for texts in ([], FIVE):
        work, best = partial(explainer.explain, rows, constraints=texts, search=PATHS), np.inf
        for _ in range(3):
            best = min(best, model.timed(work) - model.seconds)
        outside.append(best)
    yield Line("first, middle, last: ms an instance outside the classifier", outside[0])
    yield Line("first, middle, last: rows asked an instance, five constraints", model.rows / 1000)
    yield Line("five constraints / none, outside the classifier", outside[1] / outside[0], 1.5)


def many(chosen: argparse.Namespace) -> Iterator[Line]:
    """All picks of many instances of loans under the rules of the table."""
    _, model, explainer = fitted(rules=True)
    rows, begin = refused(chosen.instances), time.perf_counter()
    seconds = model.timed(lambda: explainer.explain(rows))
    clock, name = time.perf_counter() - begin, f"{len(rows):,} instances of loans under its rules"
    yield Line(f"{name}: seconds by the clock", clock, 60 if len(rows) == 10_000 else None)
    yield Line(f"{name}: processor seconds", seconds)
    yield Line(f"{name}: outside / in the classifier", seconds / model.seconds - 1, 1)


def gpu(chosen: argparse.Namespace) -> Iterator[Line]:
    """First, middle and last of many instances with a linear classifier on arrays, by the clock."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    rows = np.random.default_rng(0).normal(size=(3000, 10)).round(3)
    weights = torch.linspace(1.0, 0.2, 10, device=device)

    class Linear:
        classes_ = (0, 1)

        def predict_proba(self, x: Any) -> Any:
            x = torch.as_tensor(x, dtype=torch.float32, device=device)
            second = torch.sigmoid(x @ weights)
            return torch.stack([1 - second, second], dim=1)

        def predict(self, x: Any) -> Any:
            return (self.predict_proba(x)[:, 1] > 0.5).to(torch.int64)

    model, recipe = Linear(), replace(DEFAULT, steps=500)
    explainer = Explainer(model, recipe=recipe, device=device, random_state=0).fit(rows)
    rows = rows[(model.predict(rows) == 0).cpu().numpy()]
    explainer.explain(rows[:1000], search=PATHS)  # warm
    for count, most in ((100_000, 15), (1_000_000, 120)):
        if count > chosen.largest and count > 100_000:
            break
        instances = np.resize(rows, (min(count, chosen.largest), rows.shape[1]))
        begin = time.perf_counter()
        found = explainer.explain(instances, search=PATHS)
        what, seconds = f"{name}: {len(instances):,} instances", time.perf_counter() - begin
        yield Line(f"{what}: seconds", seconds, most if len(instances) == count else None)
        yield Line(f"{what}: of these in the classifier", found.seconds["classifier"])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
        yield Line(f"{what}: peak memory so far, GB", peak, 8)


PARTS: Mapping[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    "start": start, "fits": fits, "single": single, "constraints": constraints, "many": many,
    "gpu": gpu,
}  # fmt: skip


def peers(count: int = 60) -> Iterator[tuple[str, ...]]:
    """Distance, changes, LOF, queries and time of lapace and of others, on the same instances."""
    data, model, explainer = fitted()
    rows = refused(count)
    settings = {"schema": explainer.schema_, "random_state": 0}
    methods: dict[str, Callable[[], Counterfactuals]] = {
        pick: partial(_picked, explainer, rows, pick) for pick in ("nearest", "best", "middle")
    }
    for name, kind in (
        ("NNCE", NNCE),
        ("nearest real row, made minimal", NearestUndone),
        ("FACE", FACE),
        ("DiCE", partial(DiCE, count=1)),
    ):
        method = kind(model.model, **settings).fit(data.train)
        methods[name] = partial(method.counterfactuals, rows, target=data.target)
    for name, work in methods.items():
        results: list[Counterfactuals] = []
        seconds = model.timed(lambda work=work, results=results: results.append(work()))
        queries, found = model.rows, results[0].where(results[0].ok)
        figures = metrics.evaluate(found, classifier=model.model, reference=data.train)
        yield (
            name,
            f"{len(np.unique(found.instance)) / count:.0%}",
            *(f"{figures[key]:.3g}" for key in ("distance", "changed", "lof")),
            f"{queries / count:,.0f}",
            f"{1000 * seconds / count:,.3g}",
        )


def _picked(explainer: Explainer, rows: Any, pick: str) -> Counterfactuals:
    explanation = explainer.explain(rows, search=Search(picks=(pick,)))
    rows_found: Counterfactuals = getattr(explanation, pick)()
    return rows_found.where(rows_found.rank == 0) if pick == "best" else rows_found


def page(lines: list[Line], others: list[tuple[str, ...]], command: str) -> str:
    """Returns both tables, with when and where they were made."""
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    where = f"{len(os.sched_getaffinity(0))} cores of {platform.machine()}, {versions}"
    table = grid(("what", "measured", "target", "met"), [line.cells for line in lines])
    text = f"Made by `{command}` on {when}, on {where}.\n\n{table}\n"
    if others:
        text += "\nThe same 60 instances of loans with a forest; queries and processor "
        text += f"milliseconds are per instance, without the fit.\n\n{grid(PEERS, others)}\n"
    return text


def main() -> None:
    """Measures, prints, and writes the tables where that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = ", ".join((*PARTS, "peers"))
    parser.add_argument("parts", nargs="*", help=f"of {names}; default: all but gpu")
    parser.add_argument("--instances", type=int, default=10_000, help="in `many`")
    parser.add_argument("--largest", type=int, default=100_000, help="instances in `gpu`")
    parser.add_argument("--write", type=Path, help=f"the tables' file, such as {RESULTS}")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - {*PARTS, "peers"}:
        parser.error(f"There is no part {', '.join(unknown)}. There are: {names}.")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    wanted = chosen.parts or [part for part in (*PARTS, "peers") if part != "gpu"]
    lines: list[Line] = []
    for name in [part for part in wanted if part != "peers"]:
        for line in PARTS[name](chosen):
            print(" | ".join(line.cells), flush=True)
            lines.append(line)
    others: list[tuple[str, ...]] = []
    for figures in peers() if "peers" in wanted else ():
        print(" | ".join(figures), flush=True)
        others.append(figures)
    if chosen.write:
        text = page(lines, others, " ".join(["python -m benchmarks.speed", *chosen.parts]))
        chosen.write.write_text(text, encoding="utf-8")
        if chosen.write == RESULTS and PAGE.exists():
            about = PAGE.read_text(encoding="utf-8").partition(MADE)[0]
            PAGE.write_text(about + MADE + text, encoding="utf-8")


if __name__ == "__main__":
    main()
