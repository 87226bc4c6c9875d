"""How fast lapace is, as ratios within one run: `python -m benchmarks.speed`.

Machines are shared and noisy, so everything is compared with something measured beside it, in
processor seconds where that is possible.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from lapace import Explainer, Search, datasets
from lapace.model import LGMVAE, Shape
from lapace.training import DEFAULT, fit


def main() -> None:
    """Runs the parts named, or all of them."""
    parts = {"explain": explain, "growth": growth, "training": training, "import": importing}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="default: all")
    parser.add_argument("--largest", type=int, default=100_000, help="instances in `growth`")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.parts or parts:
        parts[name](arguments)


def say(what: str, value: float, target: str) -> None:
    """One line of the result."""
    print(f"{what:<66}{value:>9.3f}   target {target}", flush=True)


def best(work: Callable[[], Any], repeats: int = 5) -> float:
    """Least processor seconds of a few runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


class Timed:
    """A classifier that counts its own processor seconds and rows."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.classes_ = model.classes_
        self.seconds = 0.0
        self.rows = 0

    def predict(self, rows: Any) -> Any:
        """Labels."""
        return self._timed(self.model.predict, rows)

    def _timed(self, question: Callable[[Any], Any], rows: Any) -> Any:
        start = time.process_time()
        answer = question(rows)
        self.seconds += time.process_time() - start
        self.rows += len(rows)
        return answer


@cache
def fitted() -> tuple[Any, Timed, Explainer]:
    """An explainer of the `loans` forest."""
    loans = datasets.load("loans")
    model = Timed(loans.classifier("forest"))
    return loans, model, Explainer(model, random_state=0).fit(loans.train)


def refused(loans: Any, model: Timed, count: int) -> pd.DataFrame:
    """As many refused applicants as asked for, repeating them where there are too few."""
    everyone = pd.concat([loans.test, loans.train], ignore_index=True)
    found = everyone[model.model.predict(everyone) == "denied"]
    times = -(-count // len(found))
    return pd.concat([found] * times, ignore_index=True).head(count)


def explain(_: Any) -> None:
    """Time outside the classifier over one `predict` on as many rows."""
    loans, model, explainer = fitted()
    instances = refused(loans, model, 100)
    explainer.explain(instances)
    ratios, shares = [], []
    for _ in range(7):
        model.seconds, model.rows = 0.0, 0
        start = time.process_time()
        explainer.explain(instances)
        outside = time.process_time() - start - model.seconds
        rows = pd.concat([loans.train] * (model.rows // len(loans.train) + 1)).head(model.rows)
        ratios.append(outside / best(lambda rows=rows: model.model.predict(rows), 3))
        shares.append(outside / (outside + model.seconds))
    say(
        f"explain 100 instances: outside / one predict on {model.rows:,} rows",
        float(np.median(ratios)),
        "0.5",
    )
    say("explain 100 instances: share of the whole spent outside", float(np.median(shares)), "-")


def growth(arguments: Any) -> None:
    """How time and memory grow with instances."""
    loans, model, explainer = fitted()
    counts = [n for n in (1_000, 10_000, 100_000, 1_000_000) if n <= arguments.largest]
    seconds = []
    for count in counts:
        instances = refused(loans, model, count)
        with Peak() as peak:
            start = time.process_time()
            answer = explainer.explain(instances, search=Search(detail="picks"))
            seconds.append(time.process_time() - start)
        size = sum(v.nbytes for v in vars(answer).values() if isinstance(v, np.ndarray))
        print(
            f"  {count:>9,} instances: {seconds[-1]:8.2f} s, result {size / 1e6:7.1f} MB, "
            f"working memory above it {peak.megabytes - size / 1e6:7.1f} MB",
            flush=True,
        )
    slope = np.polyfit(np.log(counts), np.log(seconds), 1)[0]
    say("explain, detail='picks': log-log slope of time over instances", float(slope), "1.05")


class Peak:
    """The most memory a block takes above what there was when it began."""

    megabytes = 0.0

    def __enter__(self) -> Peak:
        self.before = self._now()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.stop.wait(0.01):
            self.megabytes = max(self.megabytes, (self._now() - self.before) / 1e6)

    @staticmethod
    def _now() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()


def training(_: Any) -> None:
    """Training rows per second over what bare matrix products of the same shapes reach."""
    shape = Shape(continuous=11, widths=(1, 3, 5), clusters=(5, 5), latent=16)
    model = LGMVAE(shape)
    rows = 4000
    x, y = torch.rand(rows, shape.columns), torch.randint(0, 2, (rows,))
    c = y * 5 + torch.randint(0, 5, (rows,))
    steps, batch = 2000, DEFAULT.batch
    start = time.process_time()
    fit(shape, DEFAULT, x, y, c, seed=0)
    ours = time.process_time() - start
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    products = [
        (
            torch.rand(batch, m.in_features),
            torch.rand(m.in_features, m.out_features),
            torch.rand(batch, m.out_features),
        )
        for m in layers
        if m is not model.prior
    ]

    def bare() -> None:
        for a, w, g in products:
            torch.mm(a, w)
            torch.mm(a.T, g)
            torch.mm(g, w.T)

    floor = best(lambda: [bare() for _ in range(100)]) / 100 * steps
    say(f"training: {steps * batch / ours:,.0f} rows/s over bare products", floor / ours, "0.5")


def importing(_: Any) -> None:
    """Seconds `import lapace` takes above `import torch`."""

    def seconds(code: str) -> float:
        runs = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            runs.append(time.perf_counter() - start)
        return min(runs)

    bare = seconds("import torch")
    lazy = seconds("import torch, lapace")
    whole = seconds("import torch; from lapace import Explainer")
    say("import lapace, seconds over import torch", lazy - bare, "0.3")
    say("from lapace import Explainer, seconds over import torch", whole - bare, "-")


if __name__ == "__main__":
    main()
