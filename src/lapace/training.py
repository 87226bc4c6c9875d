"""Fitting an L-GMVAE: recipes, fixed clusters, the training loop, the latent density.

The default recipe is simpler than the paper's. Clusters are fixed by k-means within each label;
noise is learned per column, so no weight has to be tuned per table; the density in latent space is
fitted after training, without gradients.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from lapace.gradients import FixedClusterGradient
from lapace.model import LGMVAE, Mixture, Shape, Terms, few_threads

__all__ = [
    "DEFAULT",
    "IMAGES",
    "PAPER",
    "Adam",
    "History",
    "Recipe",
    "densities",
    "fit",
    "partition",
]

Progress: TypeAlias = Callable[[str, int, int], None]

FLOOR = 0.5  # the least rows of a fixed cluster, as a share of an even split
SPREAD = 0.5  # share of the posterior's noise in the latent points the density is fitted to
PER_GAUSSIAN, GAUSSIANS = 25, 20  # rows per Gaussian of a cluster's density; Gaussians at most
# The same of a label that was topped up, where only its few real rows count, and what is added to
# the variances: held-out rows then have percentiles about as training rows have.
PER_PLAIN, PLAIN_VARIANCE = 100, 0.1
SAMPLE = 20_000  # rows k-means sees per label, a mixture per cluster; more change nothing
CLIP = 5.0  # gradient norm at most, where the number of steps is fixed
CHECKS = 50  # of the validation loss during a fit with early stopping
WARM = 3  # on a GPU, steps of a size taken as they are before one is recorded and replayed


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: `DEFAULT` or `PAPER`; on images `DEFAULT` becomes `IMAGES`.

    Attributes:
        name: `default` or `paper`.
        hidden: Width of the hidden layers.
        heads: See `Shape`.
        follows_paper: The one switch for all that the paper does otherwise: clusters are learned
            rather than fixed by k-means, numbers are standardised rather than coded by rank, and
            there is no anchoring, category tree, frozen-category line, sampled endpoint, repair of
            prototypes, refined or stable pick, made-up row.
        weights: Of KL(c), KL(z) and reconstruction, in the paper's order.
        batch: Rows per step.
        rate: Adam's learning rate.
        steps: At most this many steps where their number is fixed; with early stopping the budget.
        latent: Dimensions of the latent space at most, where `n_latent` is None.
        patience: Share of the budget without a better validation loss before stopping; 0 for a
            fixed number of steps.
        epochs: With early stopping the budget is at least this many passes over the rows.
        enough: Labels with fewer rows are topped up to this many with made-up ones; 0 for none.
            Images never are: what lies between two images is a double exposure.
        kl_c: How the paper's KL(c) is read: of the batch's mean responsibilities per label
            (`batch`), of their running mean (`running`), or of each row's (`row`, as printed).
        draw: Another reading of the paper: q(z|x,c,y) is handed a straight-through Gumbel draw of
            the cluster rather than the vector π of their probabilities.
        linear_prior: Another reading: KL(z) is measured against the prior's linear layer applied
            to π, one Gaussian, rather than against each cluster's, weighted by π.
        numbers: How a recipe that follows the paper scales numbers: `standard` to mean 0 and
            deviation 1, `range` to 0 and 1. Pixels are always scaled by their range.
    """

    name: Literal["default", "paper"] = "default"
    hidden: int = 128
    heads: Literal["softmax", "sigmoid"] = "softmax"
    follows_paper: bool = False
    weights: tuple[float, float, float] = (1.0, 0.3, 1.0)
    batch: int = 512
    rate: float = 2e-3
    steps: int = 2000
    latent: int = 16
    patience: float = 0.0
    epochs: int = 0
    enough: int = 1000
    kl_c: Literal["batch", "running", "row"] = "batch"
    draw: bool = False
    linear_prior: bool = False
    numbers: Literal["standard", "range"] = "standard"

    @classmethod
    def of(cls, recipe: str | Recipe) -> Recipe:
        """A recipe by name; a `Recipe` is returned as it is."""
        if isinstance(recipe, Recipe):
            return recipe
        for known in (DEFAULT, PAPER):
            if recipe == known.name:
                return known
        raise InputError(f"There is no recipe '{recipe}'. There are: default, paper.")

    def on(self, schema_shape: tuple[int, ...] | None) -> Recipe:
        """The recipe for rows of a shape: images need wider layers and more steps."""
        return IMAGES if self == DEFAULT and schema_shape is not None else self


DEFAULT = Recipe()
IMAGES = replace(DEFAULT, hidden=256, steps=6000, enough=0)
PAPER = Recipe(
    "paper", 512, "sigmoid", True, (0.1, 0.1, 1.0), 1024, 1e-3, 4000, patience=0.2, epochs=100,
    enough=0,
)  # fmt: skip


class History(NamedTuple):
    """The loss during training: per recorded step its number, the loss and its terms."""

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
    random_state: int,
    progress: Progress | None = None,
) -> tuple[LGMVAE, History]:
    """Trains a model on rows that already lie on the device.

    Args:
        shape: Sizes of the model.
        recipe: How to train.
        x: Encoded rows, float32.
        y: The classifier's labels.
        c: The fixed clusters; unused by a recipe that follows the paper.
        random_state: Seed of the initial weights, the batches and the noise.
        progress: Called as `progress("training", done, total)`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(random_state)  # only the CPU's state is restored
        model = LGMVAE(shape).to(x.device)
    generator = torch.Generator(x.device).manual_seed(random_state)
    loop = _with_early_stopping if recipe.patience else _fixed
    with few_threads(shape), _stream(x.device):
        step = _Step(model, recipe, (x, y, c), generator)
        history = loop(step, progress or _no_progress)
        step.optimizer.release()
    return model.eval().requires_grad_(False), history


@contextmanager
def _stream(device: torch.device) -> Iterator[None]:
    """A separate CUDA stream: a step cannot be captured on the default one."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        outer = torch.cuda.current_stream()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(outer)
        with torch.cuda.stream(stream):
            yield
        outer.wait_stream(stream)


def _no_progress(what: str, done: int, total: int) -> None:
    """No-op progress callback."""


class Adam:
    """Adam on all parameters as one vector, which they become views of.

    What `torch.optim.AdamW` does, with fewer operations; and that imports torch's compiler, which
    takes two seconds of every process that fits. A step can be captured as a CUDA graph.

    Args:
        parameters: What is trained, all on one device.

    Examples:
        >>> x = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
        >>> adam = Adam([x])
        >>> for _ in range(300):
        ...     adam.step((x**2).sum(), torch.tensor(0.1))
        >>> bool(x.abs().max() < 0.01)
        True
    """

    BETA, EPSILON = 0.999, 1e-8

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self.parameters = [*parameters]
        self.values = torch.cat([p.detach().flatten() for p in self.parameters])
        begin = 0
        for p in self.parameters:
            p.data = self.values[begin : begin + p.numel()].view_as(p)
            begin += p.numel()
        self.mean, self.square = torch.zeros_like(self.values), torch.zeros_like(self.values)
        # Steps taken; in float32 powers of BETA would be off in the fourth digit at first.
        self.count = torch.zeros((), dtype=torch.float64, device=self.values.device)

    def step(
        self,
        loss: Tensor,
        rate: Tensor,
        *,
        momentum: float = 0.9,
        decay: float = 0.0,
        clip: float = math.inf,
    ) -> None:
        """One step against the gradient of a loss.

        Args:
            loss: What is to become less.
            rate: The step size.
            momentum: Share of the mean gradient that is kept.
            decay: Share of the parameters that a step of size 1 takes away.
            clip: The gradient's norm at most.
        """
        found = torch.autograd.grad(
            loss, self.parameters, allow_unused=True, materialize_grads=True
        )
        gradient = torch.cat([part.flatten() for part in found])
        self.move(gradient, rate, momentum=momentum, decay=decay, clip=clip)

    def move(
        self,
        gradient: Tensor,
        rate: Tensor,
        *,
        momentum: float = 0.9,
        decay: float = 0.0,
        clip: float = math.inf,
    ) -> None:
        """The same with a gradient that is known: one vector, which may be changed."""
        with torch.no_grad():
            if clip < math.inf:
                gradient *= (clip / (gradient.norm() + 1e-6)).clamp(max=1.0)
            self.count += 1
            self.mean.lerp_(gradient, 1 - momentum)
            self.square.mul_(self.BETA).addcmul_(gradient, gradient, value=1 - self.BETA)
            spread = self.square.sqrt().div_((1 - self.BETA**self.count).sqrt_())
            step = self.mean / spread.add_(self.EPSILON)
            if decay:
                self.values *= 1 - rate * decay
            self.values -= step.mul_(rate / (1 - momentum**self.count))

    def release(self) -> None:
        """Gives the parameters memory of their own again."""
        for p in self.parameters:
            p.data = p.data.clone()


class _Step:
    """One step of training: loss, gradients, Adam.

    A step launches dozens of small kernels, so on a GPU launching dominates. There a step is
    captured as a CUDA graph, once for each batch size after a few eager steps, and replayed: the
    same kernels on the same memory, in the same order.
    """

    def __init__(
        self,
        model: LGMVAE,
        recipe: Recipe,
        data: tuple[Tensor, Tensor, Tensor],
        generator: torch.Generator,
    ) -> None:
        self.model, self.recipe, self.data, self.generator = model, recipe, data, generator
        self.on_gpu = data[0].device.type == "cuda"
        # A captured graph is fixed, so the learning rate has to be a tensor.
        self.rate = torch.tensor(recipe.rate, device=data[0].device)
        self.optimizer = Adam(model.parameters())
        self.known: FixedClusterGradient | None = None
        if not recipe.follows_paper and model.shape.heads == "softmax":
            parameters = self.optimizer.parameters
            self.known = FixedClusterGradient(model, parameters, data, recipe.weights)
        self.usage = model.uniform_usage()  # the running mean of cluster usage, where one is kept
        self.taken: dict[int, int] = {}  # steps of each size
        self.recorded: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    def __call__(self, rows: Tensor, rate: float | None = None) -> Tensor:
        """Takes a step on a batch; returns the loss and its terms, (4,), valid until the next."""
        if rate is not None:
            self.rate.fill_(rate)
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

    def _take(self, rows: Tensor) -> Tensor:
        clip = math.inf if self.recipe.patience else CLIP
        if self.known is not None:
            losses = self.known(rows, self.generator)
            self.optimizer.move(self.known.gradient, self.rate, clip=clip)
            return losses
        x, y, c = (part[rows] for part in self.data)
        terms = _terms(self.model, self.recipe, x, y, c, self.generator, self.usage)
        loss = terms.weighted(*self.recipe.weights)
        self.optimizer.step(loss, self.rate, clip=clip)
        return torch.stack([loss.detach(), *(term.detach() for term in terms)])

    def _record(self, rows: Tensor) -> None:
        """Captures a step without running it."""
        graph, static = torch.cuda.CUDAGraph(), rows.clone()
        graph.register_generator_state(self.generator)
        stream = torch.cuda.current_stream()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            found = self._take(static)
        self.recorded[len(rows)] = (graph, static, found)


def _terms(
    model: LGMVAE,
    recipe: Recipe,
    x: Tensor,
    y: Tensor,
    c: Tensor,
    generator: torch.Generator,
    usage: Tensor | None = None,
) -> Terms:
    if not recipe.follows_paper:
        return model.fixed_cluster_terms(x, y, c, generator)
    # A running mean is only kept while training: held-out rows are one batch.
    kl_c = "batch" if recipe.kl_c == "running" and usage is None else recipe.kl_c
    return model.paper_terms(
        x, y, generator, kl_c=kl_c, draw=recipe.draw, linear_prior=recipe.linear_prior, usage=usage
    )


def steps_for(rows: int, most: int = 2000) -> int:
    """Steps of the default recipe: 500 for a few hundred rows, 2,000 from four thousand on."""
    return int(np.clip(rows // 2, 500, most))


def _fixed(take: _Step, progress: Progress) -> History:
    """A fixed number of steps with warm-up and cosine decay; no early stopping."""
    history = History(("step", "loss", *Terms._fields), [])
    recipe, total = take.recipe, len(take.data[0])
    steps, batch = steps_for(total, recipe.steps), min(recipe.batch, total)
    for step, rows in enumerate(_batches(total, batch, steps, take.generator)):
        warm = min(1.0, (step + 1) / (0.05 * steps))
        cosine = 0.5 * (1 + math.cos(math.pi * (step / steps)))
        losses = take(rows, recipe.rate * warm * cosine)
        if step % 20 == 0 or step == steps - 1:
            history.lines.append((step, *losses.tolist()))
            progress("training", step + 1, steps)
    return history


def _batches(rows: int, batch: int, steps: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Row numbers of each step: the whole table in a new order, over and over."""
    order = torch.empty(0, dtype=torch.int64, device=generator.device)
    for _ in range(steps):
        if len(order) < batch:
            order = torch.randperm(rows, generator=generator, device=generator.device)
        yield order[:batch]
        order = order[batch:]


def _with_early_stopping(take: _Step, progress: Progress) -> History:
    """The paper's loop: a budget of steps, ended early where the validation loss stops falling."""
    history = History(("step", "loss", *Terms._fields, "validation"), [])
    model, recipe, total = take.model, take.recipe, len(take.data[0])
    random: dict[str, Any] = {"generator": take.generator, "device": take.generator.device}
    held, kept = torch.randperm(total, **random).tensor_split([max(1, total // 10)])
    validation_rows = [part[held] for part in take.data]
    batch = min(recipe.batch, len(kept))
    steps = max(recipe.steps, recipe.epochs * -(-len(kept) // batch))
    best, best_step, best_weights = math.inf, 0, model.state_dict()
    sums, since = torch.zeros(1 + len(Terms._fields), device=kept.device), 0
    for step, rows in enumerate(_batches(len(kept), batch, steps, take.generator), start=1):
        sums += take(kept[rows])
        since += 1
        if step % max(1, steps // CHECKS) and step < steps:
            continue
        validation = _validation(model, recipe, *validation_rows)
        history.lines.append((step, *(sums / since).tolist(), validation))
        progress("training", step, steps)
        sums.zero_()
        since = 0
        if validation < best:
            best, best_step = validation, step
            best_weights = {k: v.clone() for k, v in model.state_dict().items()}
        elif step - best_step >= recipe.patience * steps:
            break
    model.load_state_dict(best_weights)
    progress("training", steps, steps)
    return history


def _validation(model: LGMVAE, recipe: Recipe, x: Tensor, y: Tensor, c: Tensor) -> float:
    """The loss on held-out rows, with the same noise every time so that steps compare."""
    fixed = torch.Generator(x.device).manual_seed(0)
    with torch.no_grad():
        return _terms(model, recipe, x, y, c, fixed).weighted(*recipe.weights).item()


# ------------------------------------------------------------------------------------------------
# Fixed clusters


def cluster_counts(y: Ints, labels: int, wanted: int, distinct: Sequence[int]) -> tuple[int, ...]:
    """How many clusters each label gets: at most one per ten rows, and one per distinct row.

    A label with fewer than five rows gets none.
    """
    sizes = np.bincount(y, minlength=labels)
    return tuple(
        0 if n < 5 else max(1, min(wanted, d, n // 10))
        for n, d in zip(sizes.tolist(), distinct, strict=True)
    )


def partition(x: Floats, y: Ints, counts: Sequence[int], random_state: int) -> Ints:
    """A cluster for every row: k-means within each label, with a floor on cluster sizes.

    Args:
        x: Encoded rows.
        y: Labels.
        counts: Clusters of each label, numbered through from the first label on.
        random_state: Seed of the starting centres.

    Examples:
        >>> x = np.array([[0.0], [0.1], [5.0], [5.1], [9.0], [9.1]])
        >>> partition(x, np.array([0, 0, 0, 0, 1, 1]), (2, 1), random_state=0)[4:].tolist()
        [2, 2]
    """
    c = np.zeros(len(x), dtype=np.int64)
    start = 0
    for label, count in enumerate(counts):
        rows = np.flatnonzero(y == label)
        if count:
            c[rows] = start + _even_k_means(x[rows], count, random_state)
        start += count
    return c


def _even_k_means(x: Floats, count: int, random_state: int) -> Ints:
    """k-means; then every cluster below the floor takes the rows that cost least to reassign.

    The cost of a row is how much farther it is from the new centre than from its present one.
    """
    rng = np.random.default_rng(random_state)
    part = x if len(x) <= SAMPLE else x[rng.choice(len(x), SAMPLE, replace=False)]
    centres = KMeans(count, n_init=3, random_state=random_state).fit(part).cluster_centers_
    away = (x**2).sum(axis=1)[:, None] - 2 * x @ centres.T + (centres**2).sum(axis=1)  # (n, count)
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


def nearest_clusters(
    x: Floats, clusters: Ints, others: Floats, y: Ints, counts: Sequence[int]
) -> Ints:
    """The cluster of the rows' own label whose mean is nearest, for rows that made no cluster.

    Args:
        x: Encoded rows.
        clusters: Their clusters, as from `partition`.
        others: Encoded rows to be assigned.
        y: Their labels.
        counts: Clusters of each label.

    Examples:
        >>> x, clusters = np.array([[0.0], [5.0], [9.0]]), np.array([0, 1, 2])
        >>> nearest_clusters(x, clusters, np.array([[4.0], [4.0]]), np.array([0, 1]), (2, 1))
        array([1, 2])
    """
    label = np.repeat(np.arange(len(counts)), counts)
    centres = np.stack([x[clusters == k].mean(axis=0) for k in range(len(label))])  # (K, w)
    away = (centres**2).sum(axis=1) - 2 * others @ centres.T  # (m, K), up to a constant of each row
    away[y[:, None] != label] = np.inf
    nearest: Ints = away.argmin(axis=1)
    return nearest


# ------------------------------------------------------------------------------------------------
# Density, after training


def densities(
    model: LGMVAE,
    recipe: Recipe,
    x: Tensor,
    y: Tensor,
    c: Tensor,
    random_state: int,
    real: Tensor | None = None,
) -> tuple[tuple[Mixture, ...], dict[int, Mixture]]:
    """The density of each label's real rows in latent space, and samplers of labels topped up.

    The default recipe fits a mixture with full covariances to one draw of z per row, cluster by
    cluster: the prior's diagonal Gaussians do not match the aggregated posterior. The paper's
    recipe keeps the prior. Of a label that was topped up this mixture only samples; its density is
    a plain one of its real rows.

    Args:
        model: The trained model.
        recipe: How it was trained.
        x: Encoded rows.
        y: Their labels.
        c: Their clusters.
        random_state: Seed of the draw.
        real: Which rows are real, not made up; None for all.
    """
    found, samplers = [], {}
    start = 0
    for label, count in enumerate(model.shape.clusters):
        members = range(start, start + count)
        start += count
        rows = torch.nonzero(y == label)[:, 0]
        if recipe.follows_paper or not count:
            prior = model.p_z()
            mixture = Mixture.of_prior(type(prior)(*(t.cpu() for t in prior)), members)
        else:
            mixture = _refit(model, x[rows], y[rows], c[rows], members, random_state)
        if count:
            genuine = rows if real is None else rows[real[rows]]
            if len(genuine) < len(rows):
                samplers[label], rows = mixture, genuine
                mixture = _plain(model.encode(x[rows], y[rows]), random_state)
            mean = model.encode(x[rows], y[rows], follows_paper=recipe.follows_paper).cpu()
            typical = mixture.log_density(mean).sort().values
            places = torch.linspace(0, len(typical) - 1, min(1024, len(typical))).round().long()
            mixture = replace(mixture, typical=typical[places])
        found.append(mixture)
    return tuple(found), samplers


def _plain(z: Tensor, random_state: int) -> Mixture:
    """A smooth density of few rows."""
    points = z.cpu().double().numpy()
    count = int(np.clip(len(points) // PER_PLAIN, 1, GAUSSIANS))
    fitted = GaussianMixture(count, reg_covar=PLAIN_VARIANCE, random_state=random_state).fit(points)
    return _mixture(np.log(fitted.weights_), fitted.means_, np.linalg.cholesky(fitted.covariances_))


def _mixture(log_weights: Floats, means: Floats, scales: Floats) -> Mixture:
    a, b, c = (torch.tensor(part, dtype=torch.float32) for part in (log_weights, means, scales))
    return Mixture(a, b, c, typical=torch.empty(0))


def _refit(
    model: LGMVAE, x: Tensor, y: Tensor, c: Tensor, members: Sequence[int], random_state: int
) -> Mixture:
    """One label's mixture: the union of a mixture per cluster."""
    generator = torch.Generator(x.device).manual_seed(random_state)
    one_hot = torch.nn.functional.one_hot(c, model.mask.shape[1]).to(x.dtype)
    q = model.q_z(x, one_hot, y)
    drawn = q.mean + SPREAD * (q.sample(generator) - q.mean)
    z, clusters = drawn.cpu().double().numpy(), c.cpu().numpy()
    parts = []  # of each cluster: log-weights, means, scales
    for k in members:
        rows = z[clusters == k]
        if len(rows):
            fitted = _gaussians(rows[:: max(1, len(rows) // SAMPLE)], random_state)
            weights = np.log(len(rows) / len(z) * fitted.weights_)
            parts.append((weights, fitted.means_, np.linalg.cholesky(fitted.covariances_)))
    return _mixture(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _gaussians(z: Floats, random_state: int) -> GaussianMixture:
    """A mixture sized by the number of rows; pseudo-observations are added where they are few."""
    if len(z) < 2 * z.shape[1]:
        around = np.concatenate([np.eye(z.shape[1]), -np.eye(z.shape[1])])
        z = np.concatenate([z, z.mean(axis=0) + around])
    count = int(np.clip(len(z) // PER_GAUSSIAN, 1, GAUSSIANS))
    mixture = GaussianMixture(
        count, reg_covar=1e-4, tol=1e-2, max_iter=60, random_state=random_state
    )
    with warnings.catch_warnings():  # convergence is not needed
        warnings.simplefilter("ignore", ConvergenceWarning)
        return mixture.fit(z)
