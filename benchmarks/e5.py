"""E5, the digits: pictures the paper shows, and figures it does not.

For both recipes, trained on a network's predictions and, as in the paper, on the true labels:
which prototypes the network accepts, how well digits are rebuilt, whether paths from test digits
to every other digit arrive and stay, how sure the network is along them, how near answers come to
training digits, and what all of it takes. And the pictures: all thirty prototypes, the ways from a
five to the three sevens, the same without a dash, every digit turned into every other.

    python -m benchmarks --experiment e5

Everything found is written down at once, so a run cut short leaves what it had.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from PIL import Image

from benchmarks.digits import DASH, FADED, SIDE, Digits, Network, Told, network, no_dash, read
from benchmarks.digits_page import gallery, table_of
from lapace import plots
from lapace.arrays import Floats
from lapace.errors import CentroidWarning
from lapace.explainer import Explainer, Search
from lapace.result import Counterfactuals, Explanation
from lapace.table import write_file, write_whole
from lapace.training import DEFAULT, IMAGES, PAPER, Recipe

__all__ = ["COLUMNS", "Settings", "main_e5", "run"]


log = logging.getLogger(__name__)

COLUMNS = ("labels", "recipe", "seed", "metric", "value", "count", "label")
# METHOD's reading of the paper's settings for the digits: weights 1:1:1, batches of 1,024.
RECIPES: dict[str, Recipe] = {"default": DEFAULT, "paper": replace(PAPER, weights=(1.0, 1.0, 1.0))}
RESULTS, DOCS = Path("benchmarks/results"), Path("docs")


@dataclass(frozen=True)
class Settings:
    """How much is run.

    Attributes:
        instances: Test digits whose paths to all other digits are walked, with the first seed.
        fewer: The same with the other seeds and with true labels.
        near: Answers whose nearest training digit is looked for.
        clusters: Prototypes of each digit.
        epochs: Passes of the network that is explained.
        fives: Fives whose paths to a seven are walked without a dash.
        recipes: How models are trained.
        seconds: After which nothing more is begun.
    """

    instances: int = 1000
    fewer: int = 100
    near: int = 1000
    clusters: int = 3
    epochs: int = 4
    fives: int = 100
    recipes: Mapping[str, Recipe] = field(default_factory=lambda: RECIPES)
    seconds: float = 3600.0


QUICK = Settings(
    instances=10,
    fewer=5,
    near=50,
    clusters=2,
    fives=5,
    recipes={
        "default": replace(IMAGES, hidden=128, steps=800),
        "paper": replace(RECIPES["paper"], hidden=64, epochs=10),
    },
)


class Job(NamedTuple):
    """One fit: labels as a network predicts them or as they truly are, a recipe, a seed."""

    labels: str
    recipe: str
    seed: int


@dataclass
class Sheet:
    """What has been found, written to a file line by line."""

    path: Path
    lines: list[tuple[Any, ...]] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    def add(self, job: Job, metric: str, value: float, count: int, label: str = "") -> None:
        """One figure."""
        self.lines.append((*job, metric, float(value), int(count), label))

    @property
    def table(self) -> pd.DataFrame:
        """All figures."""
        return pd.DataFrame(self.lines, columns=list(COLUMNS))

    def save(self) -> None:
        """Writes them down."""
        write_file(self.table, self.path)

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Goes on with the rest where a part fails, and says so in the end."""
        try:
            yield
        except Exception as error:
            log.exception("%s failed", what)
            self.trouble.append(f"{what}: {type(error).__name__}: {error}")
        self.save()


def main_e5(
    out: Path,
    *,
    quick: bool = False,
    device: str | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    settings: Settings | None = None,
    docs: Path | None = None,
    say: Callable[[str], None] = log.info,
) -> None:
    """Runs E5 and writes `e5.csv`, `e5.md`, the pictures and the gallery page.

    Args:
        out: Where the tables go.
        quick: On the small part of MNIST, and little of everything.
        device: As in `Explainer`.
        seeds: Of the fits; all else is done with the first of them.
        settings: How much is run; by default what `quick` says.
        docs: Where `gallery.md` and its `images` go; by default `docs` where the results go to
            `benchmarks/results`, else `out`.
        say: Told what is being done.
    """
    chosen = settings or (QUICK if quick else Settings())
    if docs is None:
        docs = DOCS if out == RESULTS and DOCS.exists() and not quick else out
    (docs / "images").mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    sheet = Sheet(out / "e5.csv")
    begun = time.perf_counter()
    digits = read(quick)
    model = network(digits.train, digits.truth, epochs=chosen.epochs, device=device)
    accuracy = float((model.predict(digits.test) == digits.test_truth).mean())
    about = Job("predictions", "", 0)
    sheet.add(about, "test accuracy", accuracy, len(digits.test))
    sheet.add(about, "network seconds", time.perf_counter() - begun, len(digits.train))
    say(f"The network reads {accuracy:.2%} of {len(digits.test):,} test digits.")
    room = _Room(digits, model, chosen, sheet, docs / "images", device)
    _strangers(room, about)
    for job in _jobs(seeds):
        if time.perf_counter() - begun > chosen.seconds:
            sheet.trouble.append(f"{' '.join(map(str, job))}: not begun, the time was up")
            continue
        start = time.perf_counter()
        with sheet.trying(" ".join(map(str, job))):
            _run(room, job, first=job.seed == seeds[0])
        say(f"{' '.join(map(str, job))}: {time.perf_counter() - start:.1f} s")
    with sheet.trying("the picture of probabilities"):
        _save(_probabilities(sheet.table), room.images / "e5-probability.png")
    _write(out / "e5.md", table_of(sheet.table, digits.name, sheet.trouble))
    _write(docs / "gallery.md", gallery(sheet.table, digits.name))


def run(cache: Path, out: Path, *, quick: bool, say: Callable[[str], None] = log.info) -> None:
    """E5 as the command runs it; a quick run leaves the kept results alone."""
    main_e5(cache / "quick" if quick and out == RESULTS else out, quick=quick, say=say)


def _jobs(seeds: Sequence[int]) -> list[Job]:
    """What matters most first: a run may be cut short."""
    shown = [Job(labels, name, seeds[0]) for labels in ("predictions", "truth") for name in RECIPES]
    ours, theirs = ([Job("predictions", name, seed) for seed in seeds[1:]] for name in RECIPES)
    return [*shown[:2], *ours, *shown[2:], *theirs]


def _write(path: Path, text: str) -> None:
    write_whole(path, lambda place: place.write_text(text, encoding="utf-8"))


@dataclass(frozen=True)
class _Room:
    """What all fits share."""

    digits: Digits
    model: Network
    settings: Settings
    sheet: Sheet
    images: Path
    device: str | None

    @property
    def train(self) -> torch.Tensor:
        """The training digits as rows, where there is most room to compare with them."""
        flat = self.digits.train.reshape(len(self.digits.train), -1)
        return torch.as_tensor(flat, device=self.model.device)

    def box(self, job: Job) -> Any:
        """The classifier to be explained."""
        if job.labels == "predictions":
            return self.model
        return Told(self.model, self.digits.train, self.digits.truth)


# ------------------------------------------------------------------------------------------------
# Figures


def _run(room: _Room, job: Job, *, first: bool) -> None:
    sheet, box = room.sheet, room.box(job)
    explainer = _fit(room, job, box)
    sheet.save()
    with sheet.trying(f"{job} rebuilding"):
        _rebuilding(room, job, explainer)
    most = room.settings.instances if first and job.labels == "predictions" else room.settings.fewer
    with sheet.trying(f"{job} walking"):
        _walking(room, job, explainer, most)
    if first:
        with sheet.trying(f"{job} pictures"):
            _pictures(room, job, explainer)
        with sheet.trying(f"{job} the dash"):
            _without_dash(room, job, explainer)


def _fit(room: _Room, job: Job, box: Any) -> Explainer:
    marks: list[float] = []

    def watch(what: str, _done: int, _total: int) -> None:
        if what == "training":
            marks.append(time.perf_counter())

    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CentroidWarning)  # counted below
        explainer = Explainer(
            box,
            n_prototypes=room.settings.clusters,
            recipe=room.settings.recipes[job.recipe],
            schema=room.digits.schema,
            device=room.device,
            random_state=job.seed,
        ).fit(room.digits.train, progress=watch)
    seconds = time.perf_counter() - start
    found, rows = explainer.prototypes_, len(room.digits.train)
    add = room.sheet.add
    add(job, "fit seconds", seconds, rows)
    add(job, "training seconds", marks[-1] - marks[0] if marks else np.nan, rows)
    history = explainer.history_["step"]
    add(job, "steps or epochs", float(history[-1]) + 1, rows)
    add(job, "prototypes valid", float(np.mean([p.valid for p in found])), len(found))
    before = [p.valid_before for p in found]
    add(job, "prototypes valid before repair", float(np.mean(before)), len(found))
    add(job, "prototype probability", float(np.mean([p.probability for p in found])), len(found))
    add(job, "prototype least probability", min(p.probability for p in found), len(found))
    return explainer


def _rebuilding(room: _Room, job: Job, explainer: Explainer) -> None:
    schema, test = explainer.schema_, room.digits.test[:2000]
    cells, label = schema.cells(test), room.model.predict(test)
    rebuilt = explainer.fitted_.decoder.rebuild(cells, label)
    error = float(((rebuilt - cells) ** 2).mean())
    said = room.model.predict(rebuilt)
    room.sheet.add(job, "reconstruction error", error, len(test))
    room.sheet.add(job, "reconstruction agreement", float((said == label).mean()), len(test))


def _walking(room: _Room, job: Job, explainer: Explainer, most: int) -> None:
    """From test digits to every other digit."""
    instances = room.digits.test[:most]
    _clock(room, job, explainer, instances[:100])
    rng = np.random.default_rng(job.seed)
    order = rng.permutation(len(instances) * room.settings.clusters)
    share = -(-room.settings.near // len(explainer.classes_))

    def walk(target: Any) -> tuple[_Tally, dict[str, Floats]]:
        answer = explainer.explain(instances, target=target)
        tally = _Tally()
        tally.add(answer)
        picked = {name: getattr(answer, name)().cells for name in PICKS}
        return tally, {n: c[order[order < len(c)][:share]] for n, c in picked.items()}

    # An explainer may be asked from several threads, and a target takes much memory.
    with ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 1) // 2))) as pool:
        found = list(pool.map(walk, explainer.classes_))
    tally = _Tally()
    for part, _ in found:
        tally.join(part)
    for name, value, count in tally.figures():
        room.sheet.add(job, name, value, count)
    for tau, level in tally.course():
        room.sheet.add(job, "probability at tau", level, tally.paths, f"{tau:.2f}")
    for name in PICKS:
        _near(room, job, name, np.concatenate([picked[name] for _, picked in found]))
    _near(room, job, "prototypes", np.stack([p.cells for p in explainer.prototypes_]))


def _clock(room: _Room, job: Job, explainer: Explainer, instances: Any) -> None:
    """What a digit takes, one thing at a time."""
    ways: tuple[tuple[Literal["path", "picks"], str], ...] = (
        ("path", "per digit and target"),
        ("picks", "picks only"),
    )
    for detail, name in ways:
        explainer.explain(
            instances[:5], target=explainer.classes_[7], search=Search(detail=detail)
        )  # all is loaded
        start = time.perf_counter()
        explainer.explain(instances, target=explainer.classes_[7], search=Search(detail=detail))
        spent = 1000 * (time.perf_counter() - start) / len(instances)
        room.sheet.add(job, f"milliseconds, {name}", spent, len(instances))


PICKS = ("first", "middle", "last")


class _Tally:
    """Sums over explanations, so that none has to be kept."""

    def __init__(self) -> None:
        self.pairs = self.paths = 0
        self.sums: dict[str, float] = {}
        self.levels: list[tuple[Floats, Floats]] = []

    def add(self, answer: Explanation) -> None:
        """Counts one explanation in; only paths to prototypes."""
        tried, ours = np.unique(answer.instance), np.flatnonzero(answer.prototype >= 0)
        self.pairs += len(tried)
        self.paths += len(ours)
        every = np.ones(len(answer), dtype=bool)
        for name in PICKS:
            pick: Counterfactuals = getattr(answer, name)()
            some = np.zeros(len(answer), dtype=bool)
            some[pick.instance[pick.ok]] = True
            every &= some
            self._count(f"{name} ok, pairs", some[tried].sum())
            self._count(f"{name} ok, paths", pick.ok.sum())
            self._count(f"{name} distance", pick.distance.sum())
            self._count(f"{name} density", np.nan_to_num(pick.density).sum())
        self._count("all three ok, pairs", every[tried].sum())
        self._count("re-crossing", (answer.crossings[ours] > 0).sum())
        self._count("first tau", answer.first().tau.sum())
        # Grid steps only: the refined first and the midpoint stand behind them.
        grid = answer.tau.shape[1] - 2
        level = answer.probability[ours, :grid]
        self.levels.append((answer.tau[ours[:1], :grid], np.nansum(level, axis=0)))

    def join(self, other: _Tally) -> None:
        """Counts another tally in."""
        self.pairs += other.pairs
        self.paths += other.paths
        for name, total in other.sums.items():
            self._count(name, total)
        self.levels += other.levels

    def _count(self, name: str, value: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def figures(self) -> Iterator[tuple[str, float, int]]:
        """Shares and means."""
        for name, total in self.sums.items():
            count = self.pairs if name.endswith("pairs") else self.paths
            yield name, total / max(1, count), count

    def course(self) -> Iterator[tuple[float, float]]:
        """The mean probability of the target at each step of the grid."""
        level = np.sum([total for _, total in self.levels], axis=0) / max(1, self.paths)
        yield from zip(self.levels[0][0][0].tolist(), level.tolist(), strict=True)


def _near(room: _Room, job: Job, what: str, rows: Floats) -> None:
    """How far rows are from the nearest training digit, in root mean squares of a pixel."""
    away = _nearest(room, rows)
    room.sheet.add(job, "nearest training digit, mean", float(away.mean()), len(away), what)
    room.sheet.add(job, "nearest training digit, least", float(away.min()), len(away), what)


def _nearest(room: _Room, rows: Floats) -> Floats:
    train = room.train
    x = torch.as_tensor(rows, dtype=torch.float32, device=train.device)
    parts = [torch.cdist(part, train).amin(dim=1) for part in torch.split(x, 256)]
    found: Floats = torch.cat(parts).double().cpu().numpy() / SIDE
    return found


def _strangers(room: _Room, about: Job) -> None:
    """The same for test digits: as near as a digit is that nobody trained on."""
    test = room.digits.test[: room.settings.near]
    with room.sheet.trying("test digits' neighbours"):
        _near(room, about, "test digits", test.reshape(len(test), -1).astype(np.float64))


# ------------------------------------------------------------------------------------------------
# The dash


def _five(room: _Room) -> int:
    """The first test digit that is a five and read as one."""
    fives = room.digits.test_truth == 5
    return int(np.flatnonzero(fives & (room.model.predict(room.digits.test) == 5))[0])


def _without_dash(room: _Room, job: Job, explainer: Explainer) -> None:
    """Paths to sevens under the constraint: what the network calls a seven has no dash."""
    fives = np.flatnonzero(room.model.predict(room.digits.test) == 5)[: room.settings.fives]
    instances = room.digits.test[fives]
    for way in ("free", "exact", "latent"):
        settings: dict[str, Any] = {} if way == "free" else {"constraints": [no_dash()]}
        if way == "latent":
            settings["search"] = Search(enforce="latent")
        start = time.perf_counter()
        answer = explainer.explain(instances, target=7, **settings)
        seconds = time.perf_counter() - start
        walked = (answer.tau > 0) & (answer.prototype >= 0)[:, None]
        seven = (answer.valid == 1) & walked
        dash = answer.cells[..., DASH].max(axis=2)  # (paths, steps)
        count, label = int(seven.sum()), f"dash: {way}"
        add = room.sheet.add
        add(
            job,
            "brightest in the dash, sevens",
            dash[seven].max() if count else np.nan,
            count,
            label,
        )
        share = float((dash[seven] <= FADED).mean()) if count else np.nan
        add(job, "sevens without a dash", share, count, label)
        answered = np.mean([status == "answered" for status in answer.status])
        add(job, "fives answered", float(answered), len(instances), label)
        add(job, "seconds", seconds, len(instances), label)
        dense = answer.first().density
        add(job, "density of first", float(np.nanmean(dense)), len(dense), label)


# ------------------------------------------------------------------------------------------------
# Pictures


def _pictures(room: _Room, job: Job, explainer: Explainer) -> None:
    name = f"{job.recipe}-{job.labels}"
    axes = plots.prototypes(explainer)
    _save(axes.figure, room.images / f"e5-prototypes-{name}.png")
    instance = room.digits.test[_five(room)][None]
    answer = explainer.explain(instance, target=7)
    sevens = sorted(answer[0].prototypes)
    figure = _films([(answer, p, f"prototype {p}") for p in sevens])
    _save(figure, room.images / f"e5-paths-{name}.png")
    crossed = _crossed(explainer, sevens)
    films = [(answer, crossed, f"to prototype {crossed}, free")]
    for way, title in (("exact", "the same, no dash"), ("latent", "by gradients alone")):
        search = Search(enforce=way)
        held = explainer.explain(instance, target=7, constraints=[no_dash()], search=search)
        films.append((held, crossed, title))
    _save(_films(films), room.images / f"e5-dash-{name}.png")
    if job.labels == "predictions":
        _save(_every_other(room, explainer), room.images / f"e5-others-{job.recipe}.png")


def _crossed(explainer: Explainer, sevens: Sequence[int]) -> int:
    """The seven with most of a dash."""
    ink = {p.number: float(p.cells[DASH].mean()) for p in explainer.prototypes_}
    return max(sevens, key=lambda number: ink[number])


def _films(films: Sequence[tuple[Explanation, int, str]]) -> Figure:
    """Paths of one digit, one under another."""
    figure, grid = plt.subplots(
        len(films), 1, figsize=(9.6, 1.5 * len(films)), layout="constrained", squeeze=False
    )
    for ax, (answer, prototype, title) in zip(grid[:, 0], films, strict=True):
        plots.path(answer[0], prototype, ax=ax)
        ax.set_title(title, loc="left", fontsize=9)
    return figure


def _every_other(room: _Room, explainer: Explainer) -> Figure:
    """Every digit turned into every other: the middles nearest to it; on the diagonal itself."""
    said, truth = room.model.predict(room.digits.test), room.digits.test_truth
    labels = explainer.classes_
    ours = [int(np.flatnonzero((said == k) & (truth == k))[0]) for k in labels]
    instances = room.digits.test[ours]
    figure, grid = plt.subplots(
        len(labels), len(labels), figsize=(5.6, 5.6), gridspec_kw={"wspace": 0.04, "hspace": 0.04}
    )
    for column, target in enumerate(labels):
        answer = explainer.explain(instances, target=target)
        first, middle = answer.first(), answer.middle()
        for row, instance in enumerate(instances):
            ax = grid[row, column]
            own = np.flatnonzero(middle.instance == row)
            cells = instance.reshape(-1).astype(np.float64)
            if len(own):
                near = own[np.where(first.ok[own], first.distance[own], np.inf).argmin()]
                cells = middle.cells[near]
            ax.imshow(cells.reshape(SIDE, SIDE), cmap="gray_r", vmin=0.0, vmax=1.0)
            ax.set(xticks=[], yticks=[])
            shade = "#E07B00" if not len(own) else "#D5DAE0"
            for spine in ax.spines.values():
                spine.set(color=shade, linewidth=2.0 if not len(own) else 0.6)
    return figure


def _probabilities(table: pd.DataFrame) -> Figure:
    """The network's probability of the target along the way, recipe by recipe."""
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


def _save(figure: Any, path: Path) -> None:
    # Few colours are enough for greys, and the pages have to stay small.
    figure.savefig(path, dpi=60, bbox_inches="tight", pad_inches=0.05)
    picture = Image.open(path).convert("RGB").quantize(32)
    picture.save(path, optimize=True)
    plt.close(figure)
