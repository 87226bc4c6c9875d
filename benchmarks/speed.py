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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from lapace import Explainer, Search, datasets
from lapace.model import LGMVAE, Shape
from lapace.training import DEFAULT, fit


def say(what: str, value: float, target: str) -> None:
    """One line of the result."""
    print(f"{what:<66}{value:>9.3f}   target {target}", flush=True)


def least(work: Callable[[], Any], repeats: int = 5) -> float:
    """The fewest processor seconds of a few runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


class Timed:
    """A classifier that counts its processor seconds and rows."""

    def __init__(self, model: Any) -> None:
        self.model, self.classes_ = model, model.classes_
        self.seconds, self.rows = 0.0, 0

    def predict(self, rows: Any) -> Any:
        """Labels."""
        start = time.process_time()
        found = self.model.predict(rows)
        self.seconds += time.process_time() - start
        self.rows += len(rows)
        return found


@cache
def fitted() -> tuple[Any, Timed, Explainer]:
    """An explainer of the `loans` forest."""
    loans = datasets.load("loans")
    model = Timed(loans.classifier("forest"))
    return loans, model, Explainer(model, random_state=0).fit(loans.train)


def refused(count: int) -> pd.DataFrame:
    """Refused applicants, repeated where there are too few."""
    loans, model, _ = fitted()
    every = pd.concat([loans.test, loans.train], ignore_index=True)
    found = every[model.model.predict(every) == "denied"]
    return pd.concat([found] * -(-count // len(found)), ignore_index=True).head(count)


def explain(_: Any) -> None:
    """Time outside the classifier over one `predict` on as many rows."""
    loans, model, explainer = fitted()
    instances = refused(100)
    explainer.explain(instances)
    ratios, shares = [], []
    for _ in range(7):
        model.seconds, model.rows = 0.0, 0
        overhead = least(lambda: explainer.explain(instances), 1) - model.seconds
        rows = pd.concat([loans.train] * (model.rows // len(loans.train) + 1)).head(model.rows)
        ratios.append(overhead / least(lambda rows=rows: model.model.predict(rows), 3))
        shares.append(overhead / (overhead + model.seconds))
    what = f"explain 100 instances: overhead / one predict on {model.rows:,} rows"
    say(what, float(np.median(ratios)), "0.5")
    say("explain 100 instances: share outside the classifier", float(np.median(shares)), "-")


def growth(arguments: Any) -> None:
    """How time and memory grow with the number of instances."""
    counts = [n for n in (1_000, 10_000, 100_000, 1_000_000) if n <= arguments.largest]
    seconds = []
    for count in counts:
        instances = refused(count)
        with peak_memory() as peak:
            start = time.process_time()
            found = fitted()[2].explain(instances, search=Search(detail="picks"))
            seconds.append(time.process_time() - start)
        size = sum(v.nbytes for v in vars(found).values() if isinstance(v, np.ndarray))
        print(
            f"  {count:>9,} instances: {seconds[-1]:8.2f} s, result {size / 1e6:7.1f} MB, "
            f"working memory above it {(max(peak) - size) / 1e6:7.1f} MB",
            flush=True,
        )
    slope = np.polyfit(np.log(counts), np.log(seconds), 1)[0]
    say("explain, detail='picks': log-log slope of time over instances", float(slope), "1.05")


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Bytes a block takes above what was used when it began, read a hundred times a second."""
    statm, page = Path("/proc/self/statm"), resource.getpagesize()
    before, found, stop = int(statm.read_text().split()[1]), [0], threading.Event()

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


def training(_: Any) -> None:
    """Training rows per second over those of bare matrix products of the same shapes."""
    shape = Shape(continuous=11, widths=(1, 3, 5), clusters=(5, 5), latent=16)
    model, rows, steps, batch = LGMVAE(shape), 4000, 2000, DEFAULT.batch
    x, y = torch.rand(rows, shape.columns), torch.randint(0, 2, (rows,))
    c = y * 5 + torch.randint(0, 5, (rows,))
    ours = least(lambda: fit(shape, DEFAULT, x, y, c, random_state=0), 1)
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not model.prior]
    products = [
        (torch.rand(batch, m.in_features), torch.rand(m.in_features, m.out_features),
         torch.rand(batch, m.out_features))
        for m in layers
    ]  # fmt: skip

    def bare() -> None:
        for a, w, g in products * 100:
            torch.mm(a, w)
            torch.mm(a.T, g)
            torch.mm(g, w.T)

    floor = least(bare) / 100 * steps
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
    lazy, whole = seconds("import torch, lapace"), seconds("import torch, lapace; lapace.Explainer")
    say("import lapace, seconds over import torch", lazy - bare, "0.3")
    say("lapace.Explainer, seconds over import torch", whole - bare, "-")


PARTS = {"explain": explain, "growth": growth, "training": training, "import": importing}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--largest", type=int, default=100_000, help="instances in `growth`")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.parts or PARTS:
        PARTS[name](arguments)


if __name__ == "__main__":
    main()
