"""E5 on a machine with a GPU, and what it shows of training there; stops before its time is up.

    python -m benchmarks.digits_gpu -o results/ --seconds 440

Writes `e5.csv`, `e5.md`, `gallery.md` and `images/` (see `benchmarks.e5`), and `e5-graphs.csv`:
whether steps recorded as a CUDA graph learn what plain steps do, and what each takes. A part that
fails does not cost the other.
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
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks import e5
from benchmarks.digits import Digits, read
from lapace import training
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
        "paper": replace(e5.RECIPES["paper"], steps=1, epochs=epochs, patience=1.0),
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
    settings = replace(settings, seconds=chosen.seconds - (time.perf_counter() - START))
    shared = {"quick": chosen.quick, "device": device, "settings": settings, "say": say}
    attempt("e5", lambda: e5.main_e5(out, seeds=range(chosen.seeds), **shared))


if __name__ == "__main__":
    main()
