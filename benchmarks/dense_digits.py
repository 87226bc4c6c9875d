"""`python -m benchmarks.dense_digits`: do images half-way look like writing, or like two digits?

The paths of images are dense; here they are compared with straight ones, which have the same ends.

    python -m benchmarks.dense_digits --seed 11 12          # both kinds of path, on all of MNIST
    python -m benchmarks.dense_digits --render              # only the page

A small network learns to tell digits from blends, pixel by pixel, of two digits of different
labels; half of both are as the decoder draws digits, and all are as dark as each other, so that it
does not learn to tell ink from blur. It then scores the images half-way (τ = 0.5) and Middle on
paths from fives to sevens and from fours to nines; for comparison, test digits, their
reconstructions, and blends it has not seen. On all of MNIST; quick: on 5,000 digits.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from benchmarks.digits import SIDE, network, read
from benchmarks.figures import grid, insert
from benchmarks.store import Measure, append, write
from lapace import Explainer, Search
from lapace.arrays import Floats, Ints
from lapace.errors import CentroidWarning
from lapace.explainer import search
from lapace.result import Explanation
from lapace.training import IMAGES

__all__ = ["METHODS", "TURNS", "DigitCase", "blended", "main", "measured", "page", "picture"]

RESULTS, CACHE = Path("benchmarks/results"), Path(".cache/benchmark/dense")
DOCS, PICTURE = Path("docs/understand/paths.md"), Path("docs/images/paths-digits.png")
SEEDS = (11, 12, 13, 14, 15)
COLUMNS = ("seed", "method", "metric", "label", "mean", "deviation", "count")

TURNS = ((5, 7), (4, 9))
INSTANCES = 40  # of each
STEPS = np.arange(0, 21, 2)  # drawn
METHODS = ("straight", "dense")


class DigitCase:
    """The digits, the network that is explained, the one that scores, and an explainer."""

    def __init__(self, quick: bool, seed: int) -> None:
        self.digits = read(quick)
        digits, few = self.digits, quick
        self.model = network(digits.train, digits.truth, epochs=6 if few else 4)
        recipe = replace(IMAGES, hidden=128, steps=1000) if few else IMAGES
        explainer = Explainer(
            self.model, n_prototypes=3, recipe=recipe, schema=digits.schema, random_state=seed
        ).fit(digits.train)
        with TemporaryDirectory() as folder:  # trained on a GPU where there is one, then moved
            explainer.save(Path(folder) / "digits.lapace")
            self.explainer = Explainer.load(
                Path(folder) / "digits.lapace", self.model, device="cpu"
            )
        drawn = self.reconstructed(digits.train)
        parts = [
            blended(some, digits.truth, seed + k) for k, some in enumerate((digits.train, drawn))
        ]
        images, real = (np.concatenate(part) for part in zip(*parts, strict=True))
        self.judge = network(as_dark(images), real, epochs=1 if few else 4, seed=seed)

    def reconstructed(self, images: Any) -> Any:
        """Digits as the decoder draws them."""
        cells, codes = self.explainer.schema_.cells(images), self.model.predict(images)
        found = self.explainer.fitted_.decoder.reconstruct(cells, codes)
        return found.reshape(images.shape).astype(np.float32)

    def instances(self, digit: int) -> Any:
        """Test digits that the network knows as what they are."""
        test, truth = self.digits.test, self.digits.test_truth
        return test[(truth == digit) & (self.model.predict(test) == digit)][:INSTANCES]

    def explain(self, digit: int, target: int) -> Explanation:
        """Paths from some digits to another."""
        picks = Search(picks=("first", "middle", "last"))
        return self.explainer.explain(self.instances(digit), target=target, search=picks)

    def realism(self, cells: Floats) -> Floats:
        """The probability of being a digit rather than a blend."""
        images = as_dark(np.asarray(cells, dtype=np.float32).reshape(-1, SIDE, SIDE))
        found: Floats = self.judge.predict_proba(images)[:, 1]
        return found


def searched_by(method: str) -> AbstractContextManager[Any]:
    """Every search follows straight paths, or dense ones, as images do by themselves."""
    if method == "dense":
        return nullcontext()
    return patch.object(search, "dense_lines", lambda _, instances, lines: (instances, lines))


def as_dark(images: Any) -> Any:
    """Images scaled so that the darkest pixel of each is 1."""
    return images / np.maximum(images.max(axis=(1, 2), keepdims=True), 1e-6)


def blended(images: Any, labels: Ints, seed: int) -> tuple[Any, Ints]:
    """Digits and as many blends of two of different labels, and which are digits."""
    rng = np.random.default_rng(seed)
    other = rng.permutation(len(images))
    unlike = labels != labels[other]
    share = rng.uniform(0.3, 0.7, len(images))[:, None, None].astype(np.float32)
    blends = (share * images + (1 - share) * images[other])[unlike]
    return np.concatenate([images, blends]), np.repeat([1, 0], [len(images), len(blends)])


def references(case: DigitCase) -> Iterator[Measure]:
    """What the scoring network says of test digits, their reconstructions, and blends."""
    test, truth = case.digits.test, case.digits.test_truth
    images, real = blended(test, truth, 1)
    yield Measure.of("realism", case.realism(test), "test digits")
    yield Measure.of("realism", case.realism(images[real == 0]), "blends")
    drawn = case.reconstructed(test)
    yield Measure.of("realism", case.realism(drawn), "reconstructions")
    images, real = blended(drawn, truth, 1)
    yield Measure.of("realism", case.realism(images[real == 0]), "blends of reconstructions")
    cells = np.stack([p.cells for p in case.explainer.prototypes_])
    yield Measure.of("realism", case.realism(cells), "prototypes")


def measured(case: DigitCase, method: str) -> Iterator[Measure]:
    """Realism half-way and at the picks, for each turn of one digit into another."""
    for digit, target in TURNS:
        with searched_by(method):
            found = case.explain(digit, target)
        turn, own = f"{digit} → {target}", found.prototype >= 0
        for step in (5, 10, 15):
            label = f"{turn}, τ = {step / 20:g}"
            yield Measure.of("realism", case.realism(found.cells[own, step]), label)
        for pick in ("first", "middle"):
            rows = getattr(found, pick)()
            ok = rows.where(rows.ok)
            yield Measure.of("realism", case.realism(ok.cells), f"{turn}, {pick}")
            yield Measure.of(f"{pick}_distance", ok.distance, turn)
        yield Measure.of("reached", (found.valid[own] == 1).any(axis=1), turn)
        yield Measure.of("density", found.density[own, 1:20], turn)


def shown(case: DigitCase) -> dict[str, Any]:
    """One path of each turn by each method, as arrays that `picture` draws."""
    found: dict[str, Any] = {"names": [], "images": [], "realism": [], "valid": []}
    for digit, target in TURNS:
        for name in METHODS:
            with searched_by(name):
                paths = case.explain(digit, target)
            path = int(np.flatnonzero((paths.instance == 0) & (paths.prototype >= 0))[0])
            cells = paths.cells[path, STEPS]
            found["names"].append(f"{digit} → {target}\n{name}")
            found["images"].append(cells.reshape(-1, SIDE, SIDE).astype(np.float32))
            found["realism"].append(case.realism(cells))
            found["valid"].append(paths.valid[path, STEPS] == 1)
    return found


def picture(arrays: Mapping[str, Any], where: Path) -> None:
    """Draws one path a line, tau from 0 to 1.

    Args:
        arrays: What `shown` returned.
        where: The picture's file.
    """
    count = len(arrays["names"])
    size = (len(STEPS) * 0.95, count * 1.2)
    figure, axes = plt.subplots(count, len(STEPS), figsize=size, layout="constrained")
    for k, line in enumerate(axes):
        for j, (ax, step) in enumerate(zip(line, STEPS, strict=True)):
            ax.imshow(arrays["images"][k][j], cmap="gray_r", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
            ax.set_xlabel(f"{arrays['realism'][k][j]:.2f}", fontsize=8, labelpad=1)
            valid = arrays["valid"][k][j]
            for spine in ax.spines.values():
                spine.set(color="#E07B00" if valid else "#8A9099", linewidth=1.8 if valid else 0.8)
            if k == 0:
                ax.set_title(f"τ = {step / 20:g}", fontsize=9)
        line[0].set_ylabel(str(arrays["names"][k]), fontsize=9)
    where.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(where, dpi=90, pil_kwargs={"optimize": True})
    plt.close(figure)


# ------------------------------------------------------------------------------------------------
# The command


def page(table: pd.DataFrame) -> str:
    """The realism of references in a sentence, that of paths in a table."""
    real = table[table["metric"] == "realism"]
    means = real.groupby(["label", "method"], sort=False)["mean"].mean().unstack("method")
    known = means["references"].dropna()
    text = "; ".join(f"{label} {value:.2f}" for label, value in known.items())
    paths = means[[name for name in METHODS if name in means]].dropna()
    rows = [(str(label), *(f"{v:.2f}" for v in line)) for label, line in paths.iterrows()]
    return (
        "The mean probability, by a small network, of being a digit rather than a blend of two: "
        f"{text}.\n\n{grid(('images', *paths.columns), rows)}"
    )


def run(out: Path, seed: int, quick: bool) -> None:
    """Fits the digits and measures their paths; keeps some of the paths, to be drawn."""
    case = DigitCase(quick, seed)
    measures: dict[str, Iterable[Measure]] = {"references": references(case)}
    measures |= {method: measured(case, method) for method in METHODS}
    for method, found in measures.items():
        append(out, COLUMNS, ((seed, method, m.metric, m.label, *m.figures) for m in found))
    CACHE.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(CACHE / f"paths-digits-{seed}.npz", **shown(case))


def render(out: Path, seed: int) -> None:
    """Writes the page of what the table holds, and draws the paths that were kept."""
    block = page(pd.read_csv(out, dtype={"label": str}))
    write(out.with_suffix(".md"), f"# Paths of digits\n\n{block}\n")
    if out.parent != RESULTS:
        return
    write(DOCS, insert(DOCS.read_text(encoding="utf-8"), "digits", block))
    kept = CACHE / f"paths-digits-{seed}.npz"
    if kept.exists():
        with np.load(kept) as arrays:
            picture(arrays, PICTURE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is asked for, and writes the page."""
    parser = argparse.ArgumentParser("python -m benchmarks.dense_digits", description=__doc__)
    parser.add_argument("--seed", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--quick", action="store_true", help="few digits, into the cache")
    parser.add_argument("--render", action="store_true", help="run nothing, only write the page")
    parser.add_argument("-o", "--out", type=Path, help="the table; the page goes beside it")
    chosen = parser.parse_args(arguments)
    out = chosen.out or (CACHE / "quick" if chosen.quick else RESULTS) / "dense-digits.csv"
    warnings.simplefilter("ignore", CentroidWarning)
    if not chosen.render:
        for seed in chosen.seed:
            run(out, seed, chosen.quick)
    render(out, chosen.seed[0])
    print(f"Wrote {out} and {out.with_suffix('.md')}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
