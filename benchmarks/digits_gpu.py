"""E5 on a machine with a GPU, and what it shows of training there; stops before its time is up.

    python -m benchmarks.digits_gpu -o results/ --seconds 440

Writes `e5.csv`, `e5.md`, `gallery.md` and `images/` (see `benchmarks.e5`), and two tables of its
own: `e5-graphs.csv`, whether steps recorded as a CUDA graph learn what plain steps do, and what
each takes; `e5-recipes.csv`, other sizes of the default recipe for images. Every part is written
when it is done, and a part that fails does not cost the others.
"""

from __future__ import annotations

import argparse
import math
import os
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks import e5
from benchmarks.digits import Digits, Network, network, read
from lapace import Explainer, training
from lapace.explainer.fit import range_coded
from lapace.model import Shape

START = time.perf_counter()


def say(text: str) -> None:
    """Prints with the time, at once."""
    print(f"[{time.perf_counter() - START:6.1f}] {text}", flush=True)


def attempt(name: str, part: Callable[[], None]) -> None:
    """Runs a part; the next one runs too where it fails."""
    say(f"{name} ...")
    try:
        part()
    except Exception:
        say(f"{name} failed:\n{traceback.format_exc()}")


def graphs(digits: Digits, device: str, out: Path) -> None:
    """The same fits with and without recording, and what a step takes."""
    schema = range_coded(digits.schema)
    encoded = schema.encode(schema.cells(digits.train))
    clusters = training.partition(encoded, digits.truth, (3,) * 10, 0)
    x = torch.as_tensor(encoded, dtype=torch.float32, device=device)
    y, c = (torch.as_tensor(codes, device=device) for codes in (digits.truth, clusters))
    count, epochs = (600, 8) if device.startswith("cuda") else (20, 1)
    recipes = {
        "default": replace(training.IMAGES, steps=count),
        "paper": replace(e5.RECIPES["paper"], epochs=epochs, patience=99),
    }
    found = []
    for name, recipe in recipes.items():
        shape = Shape(encoded.shape[1], (), (3,) * 10, 16, recipe.hidden, recipe.heads)
        steps = count if name == "default" else epochs * -(-int(0.9 * len(x)) // recipe.batch)
        loss = {}
        for mode, warm in (("first call", 3), ("eager", math.inf), ("recorded", 3)):
            training.WARM = warm  # type: ignore[assignment]
            _synchronize(device)
            start = time.perf_counter()
            _, history = training.fit(shape, recipe, x, y, c, random_state=0)
            _synchronize(device)
            seconds, loss[mode] = time.perf_counter() - start, history.array[:, 1]
            found.append((name, mode, "seconds", seconds))
            found.append((name, mode, "milliseconds a step", 1000 * seconds / steps))
            found.append((name, mode, "last loss", loss[mode][-1]))
        training.WARM = 3
        apart = np.abs(loss["eager"] - loss["recorded"]) / np.abs(loss["eager"])
        found.append((name, "both", "largest relative difference of losses", apart.max()))
        found.append((name, "both", "the same over the first ten steps", apart[:10].max()))
        table = pd.DataFrame(found, columns=["recipe", "mode", "metric", "value"])
        table.to_csv(out / "e5-graphs.csv", index=False)
    say(f"\n{table.to_string(index=False)}")


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


EVEN = (1.0, 1.0, 1.0)
SIZES: tuple[dict[str, Any], ...] = (
    {"hidden": 256, "latent": 16, "steps": 6000},
    {"hidden": 128, "latent": 16, "steps": 2000},
    {"hidden": 256, "latent": 32, "steps": 6000},
    {"hidden": 512, "latent": 16, "steps": 6000},
    {"hidden": 256, "latent": 16, "steps": 2000},
    {"hidden": 256, "latent": 24, "steps": 6000},
    {"hidden": 256, "latent": 16, "steps": 6000, "weights": EVEN},
    {"hidden": 256, "latent": 32, "steps": 6000, "weights": EVEN},
    {"hidden": 512, "latent": 32, "steps": 6000, "weights": EVEN},
    {"hidden": 256, "latent": 16, "steps": 12000},
)


def sizes(digits: Digits, model: Network, device: str, out: Path, until: float) -> None:
    """Other sizes of the default recipe, as long as there is time."""
    found: list[dict[str, Any]] = []
    for size in SIZES:
        if time.perf_counter() - START > until:
            say("no time for more sizes")
            break
        measured = partial(measure, digits, model, device, size)
        attempt(f"size {size}", lambda measured=measured: found.append(measured()))
        pd.DataFrame(found).to_csv(out / "e5-recipes.csv", index=False)


def measure(digits: Digits, model: Network, device: str, size: dict[str, Any]) -> dict[str, Any]:
    """One size of the default recipe."""
    recipe = replace(training.DEFAULT, **size)
    start = time.perf_counter()
    explainer = Explainer(
        model, n_prototypes=3, recipe=recipe, schema=digits.schema, device=device
    ).fit(digits.train)
    seconds = time.perf_counter() - start
    test, prototypes = digits.test[:2000], explainer.prototypes_
    label, cells = model.predict(test), explainer.schema_.cells(test)
    again = explainer.fitted_.decoder.reconstruct(cells, label)
    targets = (label[:200] + 1 + np.arange(200) % 9) % 10
    explanation = explainer.explain(test[:200], target=targets.tolist())
    first, middle = explanation.first(), explanation.middle()
    found = {
        **size,
        "fit seconds": seconds,
        "valid before": sum(p.valid_before for p in prototypes),
        "valid": sum(p.valid for p in prototypes),
        "least probability": min(p.probability for p in prototypes),
        "mean probability": np.mean([p.probability for p in prototypes]),
        "reconstruction": ((again - cells) ** 2).mean(),
        "agreement": (model.predict(again) == label).mean(),
        "first ok": first.ok.mean(),
        "middle ok": middle.ok.mean(),
        "re-crossing": (explanation.crossings[explanation.prototype >= 0] > 0).mean(),
        "first tau": first.tau.mean(),
        "middle probability": middle.probability.mean(),
    }
    say(str(found))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, default=Path(os.environ.get("OUT", "e5")))
    parser.add_argument("--seconds", type=float, default=440.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    out, device = chosen.out, chosen.device
    out.mkdir(parents=True, exist_ok=True)
    say(f"torch {torch.__version__}, {device}, {os.cpu_count()} cores")
    digits = read(chosen.quick)
    attempt("graphs", lambda: graphs(digits, device, out))
    settings = e5.QUICK if chosen.quick else e5.Settings()
    settings = replace(settings, seconds=0.7 * chosen.seconds - (time.perf_counter() - START))
    shared = {"quick": chosen.quick, "device": device, "settings": settings, "say": say}
    attempt("e5", lambda: e5.main_e5(out, seeds=range(chosen.seeds), **shared))
    model = network(digits.train, digits.truth, device=device)
    attempt("sizes", lambda: sizes(digits, model, device, out, chosen.seconds - 25.0))


if __name__ == "__main__":
    main()
