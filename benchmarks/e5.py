"""E5, the digits: the pictures the paper shows, and figures it does not.

For both recipes, trained on a network's predictions and, as in the paper, on the true labels: which
prototypes are valid, how well digits are reconstructed, whether paths from test digits to every
other digit are valid, the network's probability along them, how near counterfactuals are to
training digits, and what all of it takes. And the pictures: all thirty prototypes, the paths from a
five to the three sevens, and the same without a dash.

    python -m benchmarks --experiment e5

A fit's figures are written when it is done, and one that `e5.csv` has is not run again.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from benchmarks import drawing
from benchmarks.digits import DASH, FADED, SIDE, Digits, Network, TrueLabels, network, no_dash, read
from benchmarks.drawing import Strip
from benchmarks.figures import Figures
from benchmarks.jobs import Measure, shared_out, write
from benchmarks.provenance import Origin
from lapace import Explainer, Search, plots
from lapace.arrays import Floats
from lapace.errors import CentroidWarning
from lapace.result import Explanation
from lapace.training import DEFAULT, IMAGES, PAPER, Recipe

__all__ = ["COLUMNS", "SIDES", "Settings", "figures_of", "main_e5", "read_figures"]

COLUMNS = (
    "labels", "recipe", "seed", "metric", "value", "count", "label", "code", "commit",
    "environment", "machine",
)  # fmt: skip
SIDES = (("predictions", "default"), ("truth", "paper"))  # what each model of digits learned
# Our reading of the paper's settings for the digits: weights 1:1:1, batches of 1,024.
RECIPES: dict[str, Recipe] = {"default": DEFAULT, "paper": replace(PAPER, weights=(1.0, 1.0, 1.0))}
PICKS = ("first", "middle", "last")


@dataclass(frozen=True)
class Settings:
    """How much is run."""

    instances: int = 300  # test digits explained for every other digit, with the first seed
    fewer: int = 100  # the same with the other seeds
    near: int = 1000  # counterfactuals whose nearest training digit is looked for
    n_prototypes: int = 3  # of each digit
    epochs: int = 4  # of the network that is explained
    fives: int = 100  # fives explained as a seven without a dash
    recipes: Mapping[str, Recipe] = field(default_factory=lambda: RECIPES)


QUICK = Settings(
    instances=10,
    fewer=5,
    near=50,
    n_prototypes=2,
    fives=5,
    recipes={
        "default": replace(IMAGES, hidden=128, steps=800),
        "paper": replace(RECIPES["paper"], hidden=64, steps=40, epochs=10),
    },
)


class Job(NamedTuple):
    """One fit: on predicted or true labels, with a recipe and a seed."""

    labels: str
    recipe: str
    seed: int

    def __str__(self) -> str:
        return " ".join(map(str, self))


def read_figures(path: Path) -> pd.DataFrame:
    """Returns the figures of earlier runs; empty where there were none."""
    if not path.exists():
        return pd.DataFrame({name: [] for name in COLUMNS})
    texts = {"labels": str, "recipe": str, "label": str}
    table = pd.read_csv(path, keep_default_na=False, na_values={"value": [""]}, dtype=texts)
    return table.reindex(columns=list(COLUMNS), fill_value="")


def figures_of(table: pd.DataFrame) -> Figures:
    """Returns the figures of E5: labels take the place of a pair."""
    return Figures(table.rename(columns={"labels": "pair", "value": "mean"}))


def jobs(seeds: Sequence[int]) -> list[Job]:
    """Returns all fits, seed by seed: a run may be cut short."""
    return [Job(*side, seed) for seed in seeds for side in SIDES]


@dataclass(frozen=True)
class Run:
    """The digits, the network and the settings that all fits share."""

    digits: Digits
    model: Network
    settings: Settings
    images: Path
    device: str | None
    first_seed: int

    def fit(self, job: Job, progress: Any = None) -> Explainer:
        """Fits an explainer of the network's predictions, or of the true labels."""
        classifier: Any = self.model
        if job.labels == "truth":
            classifier = TrueLabels(self.model, self.digits.train, self.digits.truth)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CentroidWarning)  # counted among the figures
            return Explainer(
                classifier,
                n_prototypes=self.settings.n_prototypes,
                recipe=self.settings.recipes[job.recipe],
                schema=self.digits.schema,
                device=self.device,
                random_state=job.seed,
            ).fit(self.digits.train, progress=progress)

    @cached_property
    def train(self) -> torch.Tensor:
        """The training digits as rows."""
        flat = self.digits.train.reshape(len(self.digits.train), -1)
        return torch.as_tensor(flat, device=self.model.device)

    def nearest(self, name: str, rows: Floats) -> Iterator[Measure]:
        """Yields the distance to the nearest training digit, in root mean squares of a pixel."""
        x = torch.as_tensor(rows, dtype=torch.float32, device=self.train.device)
        parts = [torch.cdist(part, self.train).amin(dim=1) for part in torch.split(x, 256)]
        away = torch.cat(parts).double().cpu().numpy() / SIDE
        yield Measure("nearest training digit, mean", away.mean(), len(away), name)
        yield Measure("nearest training digit, least", away.min(), len(away), name)

    def known(self, digit: int, count: int) -> Any:
        """Returns test digits that the network knows as what they are."""
        test, truth = self.digits.test, self.digits.test_truth
        return test[(truth == digit) & (self.model.predict(test) == digit)][:count]


def main_e5(
    out: Path,
    docs: Path,
    *,
    quick: bool = False,
    device: str | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    settings: Settings | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Runs the fits that are not done, and writes `e5.csv` and the pictures.

    Args:
        out: Where the table goes.
        docs: Where the pictures go, into `images`.
        quick: On the small part of MNIST, and little of everything.
        device: As in `Explainer`.
        seeds: Of the fits; everything else is done with the first of them.
        settings: How much is run; by default what `quick` says.
        say: Called with a line on what was done.

    Returns:
        How many fits failed.
    """
    chosen, path = settings or (QUICK if quick else Settings()), out / "e5.csv"
    table, origin = read_figures(path), Origin.here("e5")
    table = table[table["code"] == origin.code]  # what other code measured is measured again
    lines = list(table.itertuples(index=False, name=None))
    done = {line[:3] for line in lines}
    left = [job for job in jobs(seeds) if tuple(job) not in done]
    digits = read(quick)
    model = network(digits.train, digits.truth, epochs=chosen.epochs, device=device)
    run = Run(digits, model, chosen, docs / "images", device, seeds[0])
    about, failed = Job("predictions", "", 0), 0
    works = [*([about] if tuple(about) not in done else []), *left]
    for job, measures, error in shared_out(partial(_measured, run), works, 1):
        failed += bool(error)
        say(error or f"{job} done")
        known = ((m.metric, float(m.value), m.count, m.label) for m in measures or ())
        lines += [(*job, *own, *astuple(origin)) for own in known]
        write(path, pd.DataFrame(lines, columns=list(COLUMNS)).to_csv(index=False))
    return failed


def _measured(run: Run, job: Job) -> list[Measure]:
    """Returns the figures of one fit, or of the network; draws the pictures of the first seed."""
    test, shown = run.digits.test, job.seed == run.first_seed
    if not job.recipe:
        accuracy = (run.model.predict(test) == run.digits.test_truth).mean()
        some = test[: run.settings.near]
        rows = some.reshape(len(some), -1).astype(np.float64)
        return [
            Measure("test accuracy", accuracy, len(test)),
            *run.nearest("test digits", rows),
        ]
    marks: list[float] = []

    def watch(what: str, _done: int, _total: int) -> None:
        if what == "training":
            marks.append(time.perf_counter())

    start = time.perf_counter()
    explainer = run.fit(job, watch)
    seconds, rows = time.perf_counter() - start, len(run.digits.train)
    training = marks[-1] - marks[0] if marks else np.nan
    most = run.settings.instances if shown else run.settings.fewer
    found = [
        Measure("fit seconds", seconds, rows),
        Measure("training seconds", training, rows),
        Measure("steps", explainer.history_["step"][-1], rows),
        *_prototypes(explainer),
        *_reconstructions(run, explainer),
        *_time(run, explainer),
        *_paths(run, job, explainer, test[:most]),
    ]
    if shown:
        found += _no_dash(run, explainer)
        _draw(run, job, explainer)
    return found


# ------------------------------------------------------------------------------------------------
# Figures


def _prototypes(explainer: Explainer) -> Iterator[Measure]:
    prototypes = explainer.prototypes_
    probability = [p.probability for p in prototypes]
    yield Measure.of("prototypes valid", [p.valid for p in prototypes])
    yield Measure.of("prototypes valid before repair", [p.valid_before for p in prototypes])
    yield Measure.of("prototype probability", probability)
    yield Measure("prototype least probability", min(probability), len(prototypes))


def _reconstructions(run: Run, explainer: Explainer) -> Iterator[Measure]:
    test = run.digits.test[:2000]
    cells, label = explainer.schema_.cells(test), run.model.predict(test)
    codes = np.searchsorted(run.model.classes_, label)
    found = explainer.fitted_.decoder.reconstruct(cells, codes)
    agreement = run.model.predict(found) == label
    yield Measure("reconstruction error", ((found - cells) ** 2).mean(), len(test))
    yield Measure.of("reconstruction agreement", agreement)


def _time(run: Run, explainer: Explainer) -> Iterator[Measure]:
    """Yields the time of one digit and target, with nothing else running."""
    test = run.digits.test[:100]
    explainer.explain(test[:5], target=7)  # loads what is loaded once
    start = time.perf_counter()
    explainer.explain(test, target=7)
    spent = 1000 * (time.perf_counter() - start) / len(test)
    yield Measure("milliseconds, per digit and target", spent, len(test))


def _paths(run: Run, job: Job, explainer: Explainer, instances: Any) -> Iterator[Measure]:
    """Yields the figures of paths from test digits to every other digit."""
    rng = np.random.default_rng(job.seed)
    order = rng.permutation(len(instances) * run.settings.n_prototypes)
    share = -(-run.settings.near // len(explainer.classes_))

    def explained(target: Any) -> tuple[Counter[Any], dict[str, Floats]]:
        found = explainer.explain(instances, target=target)
        cells = {name: getattr(found, name)().cells for name in PICKS}
        return _sums(found), {n: c[order[order < len(c)][:share]] for n, c in cells.items()}

    # An explainer may be called from several threads, and a target takes much memory.
    with ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 1) // 2))) as pool:
        parts = list(pool.map(explained, explainer.classes_))
    total: Counter[Any] = Counter()
    for part, _ in parts:
        total.update(part)
    pairs, paths = int(total.pop("pairs")), int(total.pop("paths"))
    for (metric, label), value in total.items():
        count = pairs if metric.endswith("pairs") else paths
        yield Measure(metric, value / max(1, count), count, label)
    for name in PICKS:
        yield from run.nearest(name, np.concatenate([cells[name] for _, cells in parts]))
    yield from run.nearest("prototypes", np.stack([p.cells for p in explainer.prototypes_]))


def _sums(found: Explanation) -> Counter[Any]:
    """Returns sums over the pairs of a digit and a target, and over the paths to prototypes."""
    tried = np.unique(found.instance)
    total: dict[Any, float] = {"pairs": len(tried), "paths": len(found.instance)}
    every = np.ones(len(found), dtype=bool)
    for name in PICKS:
        pick = getattr(found, name)()
        some = np.isin(np.arange(len(found)), pick.instance[pick.ok])
        every &= some
        total[f"{name} ok, pairs", ""] = some[tried].sum()
        total[f"{name} ok, paths", ""] = pick.ok.sum()
        total[f"{name} distance", ""] = pick.distance.sum()
        total[f"{name} density", ""] = np.nan_to_num(pick.density).sum()
    total["all three ok, pairs", ""] = every[tried].sum()
    total["re-crossing", ""] = (found.crossings > 0).sum()
    total["first tau", ""] = found.first().tau.sum()
    grid = found.tau.shape[1] - 2  # the refined first and the midpoint are stored after the grid
    levels = np.nansum(found.probability[:, :grid], axis=0)
    for tau, level in zip(found.tau[:1, :grid].ravel(), levels, strict=False):
        total["probability at tau", f"{tau:.2f}"] = level  # nothing without paths
    return Counter(total)


def _no_dash(run: Run, explainer: Explainer) -> Iterator[Measure]:
    """Yields whether points that the network calls a seven have no dash, under the constraint."""
    fives = np.flatnonzero(run.model.predict(run.digits.test) == 5)[: run.settings.fives]
    instances = run.digits.test[fives]
    for mode in ("free", "exact", "latent"):
        how = Search(enforce="exact" if mode == "free" else mode)
        constraints = [] if mode == "free" else no_dash(run.digits.schema)
        start = time.perf_counter()
        found = explainer.explain(instances, target=7, constraints=constraints, search=how)
        seconds, label = time.perf_counter() - start, f"dash: {mode}"
        sevens = (found.valid == 1) & (found.tau > 0)
        dash = found.cells[..., DASH].max(axis=2)[sevens]  # (sevens,)
        brightest, density = dash.max() if len(dash) else np.nan, found.first().density
        yield Measure("brightest in the dash, sevens", brightest, len(dash), label)
        yield Measure.of("sevens without a dash", dash <= FADED, label)
        yield Measure.of("fives answered", [s == "answered" for s in found.status], label)
        yield Measure("seconds", seconds, len(instances), label)
        yield Measure("density of first", float(np.nanmean(density)), len(density), label)


# ------------------------------------------------------------------------------------------------
# Pictures


def _draw(run: Run, job: Job, explainer: Explainer) -> None:
    """Draws the prototypes, the paths from a five to the sevens, and the same without a dash."""
    name, save = f"{job.recipe}-{job.labels}", partial(drawing.save, dpi=120)
    save(plots.prototypes(explainer).figure, run.images / f"e5-prototypes-{name}.png")
    instance = run.known(5, 1)
    found = explainer.explain(instance, target=7)
    sevens = sorted(found[0].prototypes)
    rows = [Strip(found, number, f"to prototype {number}", instance[0]) for number in sevens]
    save(drawing.strips(rows), run.images / f"e5-paths-{name}.png")
    ink = {p.number: float(p.cells[DASH].mean()) for p in explainer.prototypes_}
    crossed = max(sevens, key=lambda number: ink[number])  # the seven with most of a dash
    rows = [Strip(found, crossed, f"to prototype {crossed}, free", instance[0], True)]
    for mode, title in (
        ("exact", "nothing in the box: projected and checked"),
        ("latent", "nothing in the box: the paper's gradient descent alone"),
    ):
        how = Search(enforce=mode)
        constraints = no_dash(run.digits.schema)
        held = explainer.explain(instance, target=7, constraints=constraints, search=how)
        rows.append(Strip(held, crossed, title, instance[0], True))
    save(drawing.strips(rows), run.images / f"e5-dash-{name}.png")
