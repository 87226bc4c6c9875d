"""Fitting an L-GMVAE: recipes, the clusters that are given, a loop one can read, the density.

The default recipe is less than the paper's, not more. Clusters are given by k-means within each
label, so they cannot die or merge; noise is learned per column, so no weight has to be tuned per
table; what lies where in latent space is measured after training, without gradients.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from lapace.arrays import Floats, Ints
from lapace.errors import InputError
from lapace.model import LGMVAE, Mixture, Shape, Terms

__all__ = ["DEFAULT", "IMAGES", "PAPER", "History", "Recipe", "densities", "fit", "partition"]

Progress: TypeAlias = Callable[[str, int, int], None]

FLOOR = 0.5  # the least a given cluster may hold, as a share of its even part
SPREAD = 0.5  # share of the posterior's noise in the latent points the density is fitted to
PER_GAUSSIAN, GAUSSIANS = 25, 20  # rows that carry one Gaussian of a cluster's density; at most
SAMPLE = 20_000  # rows k-means looks at per label, a mixture per cluster; more change nothing
CLIP = 5.0  # longest gradient of the default recipe
WARM = 3  # on a GPU, steps of a size taken as they are before one is recorded and replayed


@dataclass(frozen=True)
class Recipe:
    """How a model is trained. `DEFAULT` and `PAPER` are the two there are.

    Images are many columns and few choices, and what they are is in how the columns hang together:
    on them `DEFAULT` is `IMAGES`, the same with more room and more steps.

    Attributes:
        name: `default` or `paper`.
        hidden: Width of the hidden layers.
        heads: See `Shape`.
        given: Whether clusters are given by k-means rather than learned. All else that is ours
            goes with it: rank coding, anchoring, category trees, twins, repair and stable picks.
        weights: Of KL(c), KL(z) and reconstruction, in the paper's order.
        batch: Rows per step.
        rate: Adam's learning rate.
        epochs: At most this many passes with early stopping; 0 for a fixed number of steps.
        patience: Passes without a better validation loss before stopping.
        latent: Dimensions of the latent space at most, where nobody says how many.
        steps: At most this many steps, where their number is fixed.
    """

    name: Literal["default", "paper"] = "default"
    hidden: int = 128
    heads: Literal["softmax", "sigmoid"] = "softmax"
    given: bool = True
    weights: tuple[float, float, float] = (1.0, 0.3, 1.0)
    batch: int = 512
    rate: float = 2e-3
    epochs: int = 0
    patience: int = 15
    latent: int = 16
    steps: int = 2000

    @classmethod
    def of(cls, recipe: str | Recipe) -> Recipe:
        """A recipe by name, or as it is."""
        if isinstance(recipe, Recipe):
            return recipe
        for known in (DEFAULT, PAPER):
            if recipe == known.name:
                return known
        raise InputError(f"There is no recipe '{recipe}'. There are: default, paper.")

    def on(self, schema_shape: tuple[int, ...] | None) -> Recipe:
        """The same recipe for rows of a shape: more room for images."""
        return IMAGES if self == DEFAULT and schema_shape is not None else self


DEFAULT = Recipe()
IMAGES = replace(DEFAULT, hidden=256, steps=6000)
PAPER = Recipe("paper", 512, "sigmoid", False, (0.1, 0.1, 1.0), 1024, 1e-3, 200)


class History(NamedTuple):
    """The loss as it went: a line per recorded step of step, loss and its terms."""

    names: tuple[str, ...]
    lines: list[tuple[float, ...]]

    @property
    def array(self) -> Floats:
        """The lines as a matrix: (lines, names)."""
        return np.array(self.lines, dtype=np.float64).reshape(-1, len(self.names))


def fit(
    shape: Shape,
    recipe: Recipe,
    x: Tensor,
    y: Tensor,
    c: Tensor,
    *,
    seed: int,
    progress: Progress | None = None,
) -> tuple[LGMVAE, History]:
    """Trains a model on rows that already lie on the device.

    Args:
        shape: Sizes of the model.
        recipe: How to train.
        x: Encoded rows, float32.
        y: The classifier's labels.
        c: The given clusters; not looked at by a recipe that learns them.
        seed: Of the initial weights, the batches and the noise.
        progress: Called with what is done, how far, and of how much.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the CPU's alone: others are not put back
        model = LGMVAE(shape).to(x.device)
    generator = torch.Generator(x.device).manual_seed(seed)
    loop = _with_early_stopping if recipe.epochs else _fixed
    with _few_threads(recipe), _stream(x.device):
        history = loop(model, recipe, x, y, c, generator, progress or _silent)
    return model.eval().requires_grad_(False), history


@contextmanager
def _few_threads(recipe: Recipe) -> Iterator[None]:
    """One thread for small layers.

    Products of this size gain little from a second thread, and on a shared machine threads that
    wait for each other at every product made training ten times slower.
    """
    before = torch.get_num_threads()
    if recipe.hidden <= 256:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _stream(device: torch.device) -> Iterator[None]:
    """A stream of its own on a GPU: a step cannot be recorded on the one everybody uses."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        outer = torch.cuda.current_stream()
        own = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        own.wait_stream(outer)
        with torch.cuda.stream(own):
            yield
        outer.wait_stream(own)


def _silent(what: str, done: int, total: int) -> None:
    """Nobody is watching."""


class _Step:
    """One step of training: loss, gradients, Adam.

    A step of these networks is some hundred small pieces of work, and a GPU waits for each to be
    handed over far longer than it works on it. So there a step is recorded once for each size of
    batch, after a few taken as they are, and from then on handed over whole (a CUDA graph): the
    same work on the same memory, in the same order.
    """

    def __init__(
        self,
        model: LGMVAE,
        recipe: Recipe,
        data: tuple[Tensor, Tensor, Tensor],
        generator: torch.Generator,
        clip: float | None = None,
    ) -> None:
        self.model, self.recipe, self.data = model, recipe, data
        self.generator, self.clip = generator, clip
        self.on_gpu = data[0].device.type == "cuda"
        # What is recorded is fixed, so there the rate has to be a number in the GPU's memory.
        rate = torch.tensor(recipe.rate, device=data[0].device) if self.on_gpu else recipe.rate
        self.optimizer = torch.optim.Adam(
            model.parameters(), lr=rate, fused=True, capturable=self.on_gpu
        )
        self.taken: dict[int, int] = {}  # steps of each size
        self.recorded: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    def __call__(self, rows: Tensor, rate: float | None = None) -> Tensor:
        """Takes a step on some rows; gives the loss and its terms, (4,), until the next step."""
        if rate is not None:
            self._set(rate)
        size = len(rows)
        if size in self.recorded:
            graph, static, found = self.recorded[size]
            static.copy_(rows)
            graph.replay()
            return found
        self.taken[size] = self.taken.get(size, 0) + 1
        if self.on_gpu and self.taken[size] > WARM:
            self._record(rows)
            return self(rows)
        return self._take(rows)

    def _set(self, rate: float) -> None:
        group = self.optimizer.param_groups[0]
        if self.on_gpu:
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate

    def _take(self, rows: Tensor) -> Tensor:
        x, y, c = (part[rows] for part in self.data)
        terms = _terms(self.model, self.recipe, x, y, c, self.generator)
        loss = terms.weighted(*self.recipe.weights)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return torch.stack([loss.detach(), *(term.detach() for term in terms)])

    def _record(self, rows: Tensor) -> None:
        """Records a step without taking it."""
        graph, static = torch.cuda.CUDAGraph(), rows.clone()
        graph.register_generator_state(self.generator)
        self.optimizer.zero_grad()  # gradients have to be made anew, in the graph's own memory
        own = torch.cuda.current_stream()
        # Other threads may go on using the GPU meanwhile.
        with torch.cuda.graph(graph, stream=own, capture_error_mode="thread_local"):
            found = self._take(static)
        self.recorded[len(rows)] = (graph, static, found)


def _terms(model: LGMVAE, recipe: Recipe, x: Tensor, y: Tensor, c: Tensor, g: Any) -> Terms:
    return model.given_terms(x, y, c, g) if recipe.given else model.paper_terms(x, y, g)


def steps_for(rows: int, most: int = 2000) -> int:
    """Steps of the default recipe: 500 for a few hundred rows, 2,000 from four thousand on."""
    return int(np.clip(rows // 2, 500, most))


def _fixed(
    model: LGMVAE,
    recipe: Recipe,
    x: Tensor,
    y: Tensor,
    c: Tensor,
    generator: torch.Generator,
    progress: Progress,
) -> History:
    """A fixed number of steps, warmed up and cooled down; no early stopping, nothing to tune."""
    history = History(("step", "loss", *Terms._fields), [])
    take = _Step(model, recipe, (x, y, c), generator, clip=CLIP)
    steps, batch = steps_for(len(x), recipe.steps), min(recipe.batch, len(x))
    for step, rows in enumerate(_batches(len(x), batch, steps, generator)):
        warm = min(1.0, (step + 1) / (0.05 * steps))
        losses = take(rows, recipe.rate * warm * _cosine(step / steps))
        if step % 20 == 0 or step == steps - 1:
            history.lines.append((step, *losses.tolist()))
            progress("training", step + 1, steps)
    return history


def _cosine(share: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * share))


def _batches(rows: int, batch: int, steps: int, generator: torch.Generator) -> Any:
    """Row numbers of each step: the whole table in a new order, again and again."""
    order = torch.empty(0, dtype=torch.int64, device=generator.device)
    for _ in range(steps):
        if len(order) < batch:
            order = torch.randperm(rows, generator=generator, device=generator.device)
        yield order[:batch]
        order = order[batch:]


def _with_early_stopping(
    model: LGMVAE,
    recipe: Recipe,
    x: Tensor,
    y: Tensor,
    c: Tensor,
    generator: torch.Generator,
    progress: Progress,
) -> History:
    """The paper's loop: passes over the table until the validation loss stops falling."""
    names = ("step", "loss", *Terms._fields, "validation")
    history = History(names, [])
    take = _Step(model, recipe, (x, y, c), generator)
    order = torch.randperm(len(x), generator=generator, device=x.device)
    held, kept = order[: max(1, len(x) // 10)], order[max(1, len(x) // 10) :]
    best, best_weights, waited = math.inf, model.state_dict(), 0
    for epoch in range(recipe.epochs):
        shuffled = kept[torch.randperm(len(kept), generator=generator, device=x.device)]
        sums = torch.zeros(1 + len(Terms._fields), device=x.device)
        for rows in torch.split(shuffled, recipe.batch):
            sums += take(rows) * len(rows)
        validation = _validation(model, recipe, x[held], y[held], c[held])
        history.lines.append((epoch, *(sums / len(kept)).tolist(), validation))
        progress("training", epoch + 1, recipe.epochs)
        if validation < best:
            best, waited = validation, 0
            best_weights = {k: v.clone() for k, v in model.state_dict().items()}
        else:
            waited += 1
            if waited >= recipe.patience:
                break
    model.load_state_dict(best_weights)
    progress("training", recipe.epochs, recipe.epochs)
    return history


def _validation(model: LGMVAE, recipe: Recipe, x: Tensor, y: Tensor, c: Tensor) -> float:
    """The loss on held rows, with the same noise every time so that passes compare."""
    fixed = torch.Generator(x.device).manual_seed(0)
    with torch.no_grad():
        return _terms(model, recipe, x, y, c, fixed).weighted(*recipe.weights).item()


# ------------------------------------------------------------------------------------------------
# Clusters that are given


def cluster_counts(y: Ints, labels: int, wanted: int, distinct: Sequence[int]) -> tuple[int, ...]:
    """How many clusters each label can carry: one per ten rows, no more than distinct rows.

    A label with fewer than five rows gets none.
    """
    sizes = np.bincount(y, minlength=labels)
    return tuple(
        0 if n < 5 else max(1, min(wanted, d, n // 10))
        for n, d in zip(sizes.tolist(), distinct, strict=True)
    )


def partition(x: Floats, y: Ints, counts: Sequence[int], seed: int) -> Ints:
    """A cluster for every row: k-means within each label, none left with too few rows.

    Args:
        x: Encoded rows.
        y: Labels.
        counts: Clusters of each label, numbered through from the first label on.
        seed: Of the starting centres.

    Examples:
        >>> x = np.array([[0.0], [0.1], [5.0], [5.1], [9.0], [9.1]])
        >>> partition(x, np.array([0, 0, 0, 0, 1, 1]), (2, 1), seed=0)[4:].tolist()
        [2, 2]
    """
    c = np.zeros(len(x), dtype=np.int64)
    start = 0
    for label, count in enumerate(counts):
        rows = np.flatnonzero(y == label)
        if count:
            c[rows] = start + _even_k_means(x[rows], count, seed)
        start += count
    return c


def _even_k_means(x: Floats, count: int, seed: int) -> Ints:
    """k-means, after which every cluster short of its floor takes the rows it can get cheapest.

    A row's price is how much farther it is from the new centre than from its own.
    """
    rng = np.random.default_rng(seed)
    part = x if len(x) <= SAMPLE else x[rng.choice(len(x), SAMPLE, replace=False)]
    centres = KMeans(count, n_init=3, random_state=seed).fit(part).cluster_centers_
    away = _squared(x, centres)  # (n, count)
    c: Ints = away.argmin(axis=1)
    floor = int(FLOOR * len(x) / count)
    for k in np.argsort(np.bincount(c, minlength=count)):
        sizes = np.bincount(c, minlength=count)
        short = floor - sizes[k]
        if short <= 0:
            continue
        donors = np.flatnonzero(sizes[c] > sizes.mean())
        price = away[donors, k] - away[donors, c[donors]]
        c[donors[np.argsort(price, kind="stable")[:short]]] = k
    return c


def _squared(x: Floats, centres: Floats) -> Floats:
    away: Floats = (x**2).sum(axis=1)[:, None] - 2 * x @ centres.T + (centres**2).sum(axis=1)
    return away


# ------------------------------------------------------------------------------------------------
# Density, after training


def densities(
    model: LGMVAE, recipe: Recipe, x: Tensor, y: Tensor, c: Tensor, seed: int
) -> tuple[Mixture, ...]:
    """Where each label's rows lie in latent space.

    The default recipe fits a mixture with full covariances to one draw of z per row, cluster by
    cluster: the prior's diagonal Gaussians do not match where the data went. The paper's recipe
    keeps the prior.
    """
    found = []
    start = 0
    for label, count in enumerate(model.shape.clusters):
        members = range(start, start + count)
        start += count
        rows = torch.nonzero(y == label)[:, 0]
        if not count:
            found.append(_nowhere(model.shape.latent))
            continue
        if recipe.given:
            mixture = _refit(model, x[rows], y[rows], c[rows], members, seed)
        else:
            prior = model.p_z()
            mixture = Mixture.of_prior(type(prior)(*(t.cpu() for t in prior)), members)
        mean = model.encode(x[rows], y[rows], soft=not recipe.given).cpu()
        typical = mixture.log_density(mean).sort().values
        places = torch.linspace(0, len(typical) - 1, min(1024, len(typical))).round().long()
        found.append(replace(mixture, typical=typical[places]))
    return tuple(found)


def _nowhere(latent: int) -> Mixture:
    return Mixture(
        torch.empty(0), torch.empty(0, latent), torch.empty(0, latent, latent), torch.empty(0)
    )


def _refit(
    model: LGMVAE, x: Tensor, y: Tensor, c: Tensor, members: Sequence[int], seed: int
) -> Mixture:
    """One label's mixture, as the union of its clusters' own mixtures."""
    generator = torch.Generator(x.device).manual_seed(seed)
    one_hot = torch.nn.functional.one_hot(c, model.mask.shape[1]).to(x.dtype)
    q = model.q_z(x, one_hot, y)
    drawn = q.mean + SPREAD * (q.sample(generator) - q.mean)
    z = drawn.cpu().double().numpy()
    clusters = c.cpu().numpy()
    weights, means, scales = [], [], []
    for k in members:
        own = z[clusters == k]
        if not len(own):
            continue
        share = len(own) / len(z)
        mixture = _gaussians(own[:: max(1, len(own) // SAMPLE)], seed)
        weights.append(np.log(share * mixture.weights_))
        means.append(mixture.means_)
        scales.append(np.linalg.cholesky(mixture.covariances_))
    return Mixture(
        torch.tensor(np.concatenate(weights), dtype=torch.float32),
        torch.tensor(np.concatenate(means), dtype=torch.float32),
        torch.tensor(np.concatenate(scales), dtype=torch.float32),
        torch.empty(0),
    )


def _gaussians(z: Floats, seed: int) -> GaussianMixture:
    """A mixture of a size the rows can carry; steadied where they are few."""
    if len(z) < 2 * z.shape[1]:
        around = np.concatenate([np.eye(z.shape[1]), -np.eye(z.shape[1])])
        z = np.concatenate([z, z.mean(axis=0) + around])
    count = int(np.clip(len(z) // PER_GAUSSIAN, 1, GAUSSIANS))
    mixture = GaussianMixture(count, reg_covar=1e-4, tol=1e-2, max_iter=60, random_state=seed)
    with warnings.catch_warnings():  # a mixture stopped early serves as well
        warnings.simplefilter("ignore", ConvergenceWarning)
        return mixture.fit(z)
