"""E5 on a machine with a GPU, and what it shows of training there: one command, cut short in time.

    python -m benchmarks.digits_gpu --out results/ --seconds 440

Writes `e5.csv`, `e5.md`, `gallery.md` and `images/` (see `benchmarks.e5`), and two tables of
its own: `e5-graphs.csv`, whether steps recorded as a CUDA graph learn what plain steps do, and what
each takes; `e5-recipes.csv`, other sizes of the default recipe for images. Every part is written
down when it is done, and a part that fails does not cost the others.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from lapace.explainer.fitting import ranged

from benchmarks import e5
from benchmarks.digits import Digits, Network, network, read
from lapace import Explainer, training
from lapace.model import Shape

warnings.simplefilter("ignore")
START = time.perf_counter()


def say(text: str) -> None:
    """Prints with the time, at once."""
    sys.stdout.write(f"[{time.perf_counter() - START:6.1f}] {text}\n")
    sys.stdout.flush()


def attempt(what: str, part: Callable[[], None]) -> None:
    """Goes on where a part fails."""
    say(f"{what} ...")
    try:
        part()
    except Exception:
        say(f"{what} failed:\n{traceback.format_exc()}")


def graphs(digits: Digits, device: str, out: Path, rows: int) -> None:
    """The same fits with and without recording, and how long an epoch of 60,000 rows takes."""
    schema = ranged(digits.schema)
    encoded = schema.encode(schema.cells(digits.train[:rows]))
    y = digits.truth[:rows]
    c = training.partition(encoded, y, (3,) * 10, 0)
    x, y_, c_ = (
        torch.as_tensor(encoded, dtype=torch.float32, device=device),
        torch.as_tensor(y, device=device),
        torch.as_tensor(c, device=device),
    )
    found = []
    count, passes = (600, 8) if device.startswith("cuda") else (20, 1)
    short = {
        "default": replace(training.IMAGES, steps=count),
        "paper": replace(e5.RECIPES["paper"], epochs=passes, patience=99),
    }
    for name, recipe in short.items():
        shape = Shape(encoded.shape[1], (), (3,) * 10, 16, recipe.hidden, recipe.heads)
        runs = {}
        for way, warm in (("first call", 3), ("eager", math.inf), ("recorded", 3)):
            training.WARM = warm
            _sync(device)
            start = time.perf_counter()
            _, history = training.fit(shape, recipe, x, y_, c_, seed=0)
            _sync(device)
            runs[way] = (time.perf_counter() - start, history.array)
        training.WARM = 3
        steps = count if name == "default" else passes * -(-int(0.9 * len(x)) // recipe.batch)
        plain, graph = runs["eager"][1], runs["recorded"][1]
        apart = np.abs(plain[:, 1] - graph[:, 1]) / np.abs(plain[:, 1])
        for way, (seconds, history) in runs.items():
            found.append((name, way, "seconds", seconds))
            found.append((name, way, "milliseconds a step", 1000 * seconds / steps))
            found.append((name, way, "last loss", history[-1, 1]))
        found.append((name, "both", "largest relative difference of losses", float(apart.max())))
        found.append((name, "both", "the same at the first ten lines", float(apart[:10].max())))
        table = pd.DataFrame(found, columns=["recipe", "way", "metric", "value"])
        table.to_csv(out / "e5-graphs.csv", index=False)
    say("\n" + table.to_string(index=False))


def _sync(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


SIZES = (
    {"hidden": 256, "latent": 16, "steps": 6000},
    {"hidden": 128, "latent": 16, "steps": 2000},
    {"hidden": 256, "latent": 32, "steps": 6000},
    {"hidden": 512, "latent": 16, "steps": 6000},
    {"hidden": 256, "latent": 16, "steps": 2000},
    {"hidden": 256, "latent": 24, "steps": 6000},
    {"hidden": 256, "latent": 16, "steps": 6000, "weights": (1.0, 1.0, 1.0)},
    {"hidden": 256, "latent": 32, "steps": 6000, "weights": (1.0, 1.0, 1.0)},
    {"hidden": 512, "latent": 32, "steps": 6000, "weights": (1.0, 1.0, 1.0)},
    {"hidden": 256, "latent": 16, "steps": 12000},
)


def sizes(digits: Digits, model: Network, device: str, out: Path, until: float) -> None:
    """Other sizes of the default recipe, as long as there is time."""
    found: list[dict[str, Any]] = []
    test = digits.test[:2000]
    label = model.predict(test)
    for size in SIZES:
        if time.perf_counter() - START > until:
            say("no time for more sizes")
            break
        recipe = replace(training.DEFAULT, **size)
        start = time.perf_counter()
        try:
            explainer = Explainer(
                model, n_prototypes=3, recipe=recipe, schema=digits.schema, device=device
            ).fit(digits.train)
        except Exception as error:
            say(f"{size}: {error}")
            continue
        spent = time.perf_counter() - start
        cells = explainer.schema_.cells(test)
        rebuilt = explainer.fitted_.decoder.rebuild(cells, label)
        targets = (label[:200] + 1 + np.arange(200) % 9) % 10
        answer = explainer.explain(test[:200], target=targets.tolist())
        ours = answer.prototype >= 0
        prototypes = explainer.prototypes_
        found.append(
            {
                **size,
                "fit seconds": spent,
                "valid before": sum(p.valid_before for p in prototypes),
                "valid": sum(p.valid for p in prototypes),
                "least probability": min(p.probability for p in prototypes),
                "mean probability": np.mean([p.probability for p in prototypes]),
                "reconstruction": ((rebuilt - cells) ** 2).mean(),
                "agreement": (model.predict(rebuilt) == label).mean(),
                "first ok": answer.first().ok.mean(),
                "middle ok": answer.middle().ok.mean(),
                "re-crossing": (answer.crossings[ours] > 0).mean(),
                "first tau": answer.first().tau.mean(),
                "middle probability": answer.middle().probability.mean(),
            }
        )
        pd.DataFrame(found).to_csv(out / "e5-recipes.csv", index=False)
        say(str(found[-1]))


def main() -> None:
    """Runs all parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "e5")))
    parser.add_argument("--seconds", type=float, default=440.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    torch.zeros(1, device=chosen.device)  # the GPU wakes up
    say(f"torch {torch.__version__}, {chosen.device}, {os.cpu_count()} cores")
    digits = read(chosen.quick)
    say(f"{len(digits.train):,} digits read")
    rows = min(len(digits.train), 60_000)
    attempt("graphs", lambda: graphs(digits, chosen.device, chosen.out, rows))
    plan = e5.QUICK if chosen.quick else e5.Settings()
    plan = replace(plan, seconds=0.7 * chosen.seconds - (time.perf_counter() - START))
    attempt(
        "e5",
        lambda: e5.main_e5(
            chosen.out,
            quick=chosen.quick,
            device=chosen.device,
            seeds=tuple(range(chosen.seeds)),
            settings=plan,
            say=say,
        ),
    )
    for page in ("e5.md",):
        attempt(page, lambda page=page: say("\n" + (chosen.out / page).read_text("utf-8")))  # type: ignore[misc]
    model = network(digits.train, digits.truth, device=chosen.device)
    until = chosen.seconds - 25.0
    attempt("sizes", lambda: sizes(digits, model, chosen.device, chosen.out, until))
    say("done")


if __name__ == "__main__":
    main()
