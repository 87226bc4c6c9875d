"""E5, the digits: the pictures the paper shows, and figures it does not.

For both recipes, trained on a network's predictions and, as in the paper, on the true labels: which
prototypes are valid, how well digits are reconstructed, whether paths from test digits to every
other digit are valid, the network's probability along them, how near counterfactuals are to
training digits, and what all of it takes. And the pictures: all thirty prototypes, the paths from a
five to the three sevens, the same without a dash, every digit turned into every other.

    python -m benchmarks --experiment e5

Every part is written when it is done, so a run cut short leaves what it had.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from benchmarks.digits import DASH, FADED, SIDE, Digits, Network, TrueLabels, network, no_dash, read
from benchmarks.digits_drawing import Strip, strips
from benchmarks.digits_page import COLUMNS, earlier, gallery, table_of
from benchmarks.drawing import save
from benchmarks.store import write
from lapace import Explainer, Search, plots
from lapace.arrays import Floats
from lapace.errors import CentroidWarning
from lapace.result import Explanation
from lapace.training import DEFAULT, IMAGES, PAPER, Recipe

__all__ = ["COLUMNS", "Settings", "main_e5"]

Say: TypeAlias = Callable[[str], None]
log = logging.getLogger(__name__)

# Our reading of the paper's settings for the digits: weights 1:1:1, batches of 1,024.
RECIPES: dict[str, Recipe] = {"default": DEFAULT, "paper": replace(PAPER, weights=(1.0, 1.0, 1.0))}
PICKS = ("first", "middle", "last")
RESULTS, DOCS = Path("benchmarks/results"), Path("docs")


@dataclass(frozen=True)
class Settings:
    """How much is run."""

    instances: int = 1000  # test digits explained for every other digit, with the first seed
    fewer: int = 100  # the same with the other seeds and with true labels
    near: int = 1000  # counterfactuals whose nearest training digit is looked for
    n_prototypes: int = 3  # of each digit
    epochs: int = 4  # of the network that is explained
    fives: int = 100  # fives explained as a seven without a dash
    recipes: Mapping[str, Recipe] = field(default_factory=lambda: RECIPES)
    seconds: float = 3600.0  # after which no further fit is begun


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


@dataclass
class Results:
    """The figures so far, and what failed."""

    path: Path
    before: pd.DataFrame  # of an earlier run; fits this one has too are dropped
    lines: list[tuple[Any, ...]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, job: Job, metric: str, value: float, count: int, label: str = "") -> None:
        """One figure."""
        self.lines.append((*job, metric, float(value), int(count), label))

    @property
    def table(self) -> pd.DataFrame:
        """All figures, those of an earlier run first."""
        new = pd.DataFrame(self.lines, columns=list(COLUMNS))
        fits = ["labels", "recipe", "seed"]
        again = pd.MultiIndex.from_frame(self.before[fits]).isin(
            pd.MultiIndex.from_frame(new[fits])
        )
        old = self.before[~again]
        return pd.concat([old, new], ignore_index=True) if len(old) else new

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Saves the figures after a part; one that fails is noted and does not cost the others."""
        try:
            yield
        except Exception as error:
            log.exception("%s failed", name)
            self.problems.append(f"{name}: {type(error).__name__}: {error}")
        write(self.path, self.table.to_csv(index=False))


@dataclass(frozen=True)
class Run:
    """What all fits share."""

    digits: Digits
    model: Network
    settings: Settings
    results: Results
    images: Path
    device: str | None

    def classifier(self, job: Job) -> Any:
        """The classifier to be explained."""
        if job.labels == "predictions":
            return self.model
        return TrueLabels(self.model, self.digits.train, self.digits.truth)

    def add_nearest(self, job: Job, name: str, rows: Floats) -> None:
        """The distance to the nearest training digit, in root mean squares of a pixel."""
        flat = self.digits.train.reshape(len(self.digits.train), -1)
        train = torch.as_tensor(flat, device=self.model.device)
        x = torch.as_tensor(rows, dtype=torch.float32, device=train.device)
        parts = [torch.cdist(part, train).amin(dim=1) for part in torch.split(x, 256)]
        away = torch.cat(parts).double().cpu().numpy() / SIDE
        self.results.add(job, "nearest training digit, mean", away.mean(), len(away), name)
        self.results.add(job, "nearest training digit, least", away.min(), len(away), name)


def main_e5(
    out: Path,
    *,
    quick: bool = False,
    device: str | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    settings: Settings | None = None,
    say: Say = log.info,
) -> None:
    """Runs E5 and writes `e5.csv`, `e5.md`, the pictures and the gallery page.

    Args:
        out: Where they go; the gallery and its pictures go to `docs` where `out` is the
            repository's folder of results.
        quick: On the small part of MNIST, and little of everything.
        device: As in `Explainer`.
        seeds: Of the fits; everything else is done with the first of them.
        settings: How much is run; by default what `quick` says.
        say: Called with a line on what was done.
    """
    chosen = settings or (QUICK if quick else Settings())
    docs = DOCS if out == RESULTS and not quick else out
    results, start = Results(out / "e5.csv", earlier(out / "e5.csv")), time.perf_counter()
    digits = read(quick)
    model = network(digits.train, digits.truth, epochs=chosen.epochs, device=device)
    accuracy = float((model.predict(digits.test) == digits.test_truth).mean())
    about = Job("predictions", "", 0)
    results.add(about, "test accuracy", accuracy, len(digits.test))
    results.add(about, "network seconds", time.perf_counter() - start, len(digits.train))
    say(f"The network has an accuracy of {accuracy:.2%} on {len(digits.test):,} test digits.")
    run = Run(digits, model, chosen, results, docs / "images", device)
    with results.part("neighbours of test digits"):
        test = digits.test[: chosen.near]
        run.add_nearest(about, "test digits", test.reshape(len(test), -1).astype(np.float64))
    for job in jobs(seeds):
        begin = time.perf_counter()
        if begin - start > chosen.seconds:
            results.problems.append(f"{job}: not begun, the time was up")
            continue
        with results.part(str(job)):
            _run(run, job, shown=job.seed == seeds[0])
        say(f"{job}: {time.perf_counter() - begin:.1f} s")
    with results.part("the picture of probabilities"):
        _save(_probabilities(results.table), run.images / "e5-probability.png")
    write(out / "e5.md", table_of(results.table, digits.name, results.problems))
    write(docs / "gallery.md", gallery(results.table, digits.name))


def jobs(seeds: Sequence[int]) -> list[Job]:
    """All fits, the most important first: a run may be cut short."""
    shown = [Job(labels, name, seeds[0]) for labels in ("predictions", "truth") for name in RECIPES]
    ours, paper = ([Job("predictions", name, seed) for seed in seeds[1:]] for name in RECIPES)
    return [*shown[:2], *ours, *shown[2:], *paper]


def _run(run: Run, job: Job, *, shown: bool) -> None:
    explainer = _fit(run, job)
    settings, part = run.settings, run.results.part
    with part(f"{job} reconstructions"):
        _reconstructions(run, job, explainer)
    most = settings.instances if shown and job.labels == "predictions" else settings.fewer
    with part(f"{job} paths"):
        _time(run, job, explainer)
        _paths(run, job, explainer, run.digits.test[:most])
    if shown:
        with part(f"{job} pictures"):
            _pictures(run, job, explainer)
        with part(f"{job} no dash"):
            _no_dash(run, job, explainer)


# ------------------------------------------------------------------------------------------------
# Figures


def _fit(run: Run, job: Job) -> Explainer:
    marks: list[float] = []

    def watch(what: str, _done: int, _total: int) -> None:
        if what == "training":
            marks.append(time.perf_counter())

    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CentroidWarning)  # counted below
        explainer = Explainer(
            run.classifier(job),
            n_prototypes=run.settings.n_prototypes,
            recipe=run.settings.recipes[job.recipe],
            schema=run.digits.schema,
            device=run.device,
            random_state=job.seed,
        ).fit(run.digits.train, progress=watch)
    seconds, rows = time.perf_counter() - start, len(run.digits.train)
    prototypes = explainer.prototypes_
    probability = [p.probability for p in prototypes]
    training = marks[-1] - marks[0] if marks else np.nan
    for metric, value, count in (
        ("fit seconds", seconds, rows),
        ("training seconds", training, rows),
        ("steps", explainer.history_["step"][-1], rows),
        ("prototypes valid", np.mean([p.valid for p in prototypes]), len(prototypes)),
        ("prototypes valid before repair", np.mean([p.valid_before for p in prototypes]),
         len(prototypes)),
        ("prototype probability", np.mean(probability), len(prototypes)),
        ("prototype least probability", min(probability), len(prototypes)),
    ):  # fmt: skip
        run.results.add(job, metric, value, count)
    return explainer


def _reconstructions(run: Run, job: Job, explainer: Explainer) -> None:
    test = run.digits.test[:2000]
    cells, label = explainer.schema_.cells(test), run.model.predict(test)
    codes = np.searchsorted(run.model.classes_, label)
    found = explainer.fitted_.decoder.reconstruct(cells, codes)
    agreement = (run.model.predict(found) == label).mean()
    run.results.add(job, "reconstruction error", ((found - cells) ** 2).mean(), len(test))
    run.results.add(job, "reconstruction agreement", agreement, len(test))


def _time(run: Run, job: Job, explainer: Explainer) -> None:
    """What one digit and target takes, with nothing else running."""
    test = run.digits.test[:100]
    explainer.explain(test[:5], target=7)  # loads what is loaded once
    start = time.perf_counter()
    explainer.explain(test, target=7)
    spent = 1000 * (time.perf_counter() - start) / len(test)
    run.results.add(job, "milliseconds, per digit and target", spent, len(test))


def _paths(run: Run, job: Job, explainer: Explainer, instances: Any) -> None:
    """From test digits to every other digit."""
    rng = np.random.default_rng(job.seed)
    order = rng.permutation(len(instances) * run.settings.n_prototypes)
    share = -(-run.settings.near // len(explainer.classes_))

    def explained(target: Any) -> tuple[Counter[Any], dict[str, Floats]]:
        found = explainer.explain(instances, target=target)
        cells = {name: getattr(found, name)().cells for name in PICKS}
        return sums(found), {n: c[order[order < len(c)][:share]] for n, c in cells.items()}

    # An explainer may be called from several threads, and a target takes much memory.
    with ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 1) // 2))) as pool:
        parts = list(pool.map(explained, explainer.classes_))
    total: Counter[Any] = Counter()
    for part, _ in parts:
        total.update(part)
    pairs, paths = int(total.pop("pairs")), int(total.pop("paths"))
    for (metric, label), value in total.items():
        count = pairs if metric.endswith("pairs") else paths
        run.results.add(job, metric, value / max(1, count), count, label)
    for name in PICKS:
        run.add_nearest(job, name, np.concatenate([cells[name] for _, cells in parts]))
    run.add_nearest(job, "prototypes", np.stack([p.cells for p in explainer.prototypes_]))


def sums(found: Explanation) -> Counter[Any]:
    """Sums over the pairs of a digit and a target, and over the paths to prototypes."""
    tried, ours = np.unique(found.instance), np.flatnonzero(found.prototype >= 0)
    total: dict[Any, float] = {"pairs": len(tried), "paths": len(ours)}
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
    total["re-crossing", ""] = (found.crossings[ours] > 0).sum()
    total["first tau", ""] = found.first().tau.sum()
    grid = found.tau.shape[1] - 2  # the refined first and the midpoint are stored after the grid
    levels = np.nansum(found.probability[ours, :grid], axis=0)
    for tau, level in zip(found.tau[ours[:1], :grid].ravel(), levels, strict=False):
        total["probability at tau", f"{tau:.2f}"] = level  # nothing without paths
    return Counter(total)


def _no_dash(run: Run, job: Job, explainer: Explainer) -> None:
    """Paths to sevens under the constraint: points the network calls a seven have no dash."""
    fives = np.flatnonzero(run.model.predict(run.digits.test) == 5)[: run.settings.fives]
    instances = run.digits.test[fives]
    for mode in ("free", "exact", "latent"):
        search = Search(enforce="exact" if mode == "free" else mode)
        constraints = [] if mode == "free" else [no_dash()]
        start = time.perf_counter()
        found = explainer.explain(instances, target=7, constraints=constraints, search=search)
        seconds = time.perf_counter() - start
        later = (found.tau > 0) & (found.prototype >= 0)[:, None]
        dash = found.cells[..., DASH].max(axis=2)[(found.valid == 1) & later]  # (sevens,)
        answered = np.mean([status == "answered" for status in found.status])
        density = found.first().density
        for metric, value, count in (
            ("brightest in the dash, sevens", dash.max() if len(dash) else np.nan, len(dash)),
            ("sevens without a dash", np.mean(dash <= FADED) if len(dash) else np.nan, len(dash)),
            ("fives answered", answered, len(instances)),
            ("seconds", seconds, len(instances)),
            ("density of first", np.nanmean(density), len(density)),
        ):
            run.results.add(job, metric, value, count, f"dash: {mode}")


# ------------------------------------------------------------------------------------------------
# Pictures


def _save(figure: Any, path: Path) -> None:
    save(figure, path, dpi=120, colours=64)


def _pictures(run: Run, job: Job, explainer: Explainer) -> None:
    name = f"{job.recipe}-{job.labels}"
    _save(plots.prototypes(explainer).figure, run.images / f"e5-prototypes-{name}.png")
    fives = (run.digits.test_truth == 5) & (run.model.predict(run.digits.test) == 5)
    instance = run.digits.test[np.flatnonzero(fives)[:1]]
    found = explainer.explain(instance, target=7)
    sevens = sorted(found[0].prototypes)
    rows = [Strip(found, number, f"to prototype {number}", instance[0]) for number in sevens]
    _save(strips(rows), run.images / f"e5-paths-{name}.png")
    ink = {p.number: float(p.cells[DASH].mean()) for p in explainer.prototypes_}
    crossed = max(sevens, key=lambda number: ink[number])  # the seven with most of a dash
    rows = [Strip(found, crossed, f"to prototype {crossed}, free", instance[0], True)]
    for mode, title in (
        ("exact", "nothing in the box: corrected, projected, checked"),
        ("latent", "nothing in the box: the paper's gradient descent alone"),
    ):
        search = Search(enforce=mode)
        held = explainer.explain(instance, target=7, constraints=[no_dash()], search=search)
        rows.append(Strip(held, crossed, title, instance[0], True))
    _save(strips(rows), run.images / f"e5-dash-{name}.png")
    if job.labels == "predictions":
        _save(_every_other(run, explainer), run.images / f"e5-others-{job.recipe}.png")


def _every_other(run: Run, explainer: Explainer) -> Figure:
    """Every digit turned into every other: the middle of its shortest path."""
    predicted, truth = run.model.predict(run.digits.test), run.digits.test_truth
    labels = explainer.classes_
    chosen = [int(np.flatnonzero((predicted == k) & (truth == k))[0]) for k in labels]
    instances = run.digits.test[chosen]
    figure, axes = plt.subplots(
        len(labels), len(labels), figsize=(5.6, 5.6), gridspec_kw={"wspace": 0.04, "hspace": 0.04}
    )
    for column, target in enumerate(labels):
        found = explainer.explain(instances, target=target)
        first, middle = found.first(), found.middle()
        for row, ax in enumerate(axes[:, column]):
            own = np.flatnonzero(middle.instance == row)
            image, colour, width = instances[row], "#E07B00", 2.0
            if len(own):
                near = own[np.where(first.ok[own], first.distance[own], np.inf).argmin()]
                image, colour, width = middle.cells[near].reshape(SIDE, SIDE), "#D5DAE0", 0.6
            ax.imshow(image, cmap="gray_r", vmin=0.0, vmax=1.0)
            ax.set(xticks=[], yticks=[])
            for spine in ax.spines.values():
                spine.set(color=colour, linewidth=width)
    return figure


def _probabilities(table: pd.DataFrame) -> Figure:
    """The network's probability of the target along the path, recipe by recipe."""
    part = table[(table["metric"] == "probability at tau") & (table["labels"] == "predictions")]
    figure, ax = plt.subplots(figsize=(5.6, 2.8), layout="constrained")
    for name, own in part.groupby("recipe"):
        course = own.assign(tau=own["label"].astype(float)).groupby("tau")["value"]
        mean, least, most = course.mean(), course.min(), course.max()
        (line,) = ax.plot(mean.index, mean, label=f"{name} recipe", lw=2)
        ax.fill_between(mean.index, least, most, color=line.get_color(), alpha=0.2, lw=0)
    ax.set(xlabel="τ", ylabel="probability of the target", ylim=(0, 1.02), xlim=(0, 1))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    return figure
