"""Fitting an L-GMVAE: recipes, fixed clusters, the training loop, the latent density.

The default recipe is simpler than the paper's. Clusters are fixed by k-means within each label;
noise is learned per column, so no weight has to be tuned per table; the density in latent space is
fitted after training, without gradients.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lapace.arrays import Floats, Ints
from lapace.errors import InputError
from lapace.model import LGMVAE, Gaussian, Mixture, Shape, Terms, few_threads
from lapace.progress import Progress

if TYPE_CHECKING:  # scikit-learn's parts are slow to load, and only a fit needs them
    from sklearn.mixture import GaussianMixture

__all__ = ["DEFAULT", "IMAGES", "PAPER", "History", "Recipe", "densities", "fit", "partition"]

_Rows: TypeAlias = tuple[Tensor, Tensor, Tensor]  # x, y, c

FLOOR = 0.5  # the least rows of a fixed cluster, as a share of an even split
SPREAD = 0.5  # share of the posterior's noise in the latent points the density is fitted to
PER_GAUSSIAN, GAUSSIANS = 25, 20  # rows per Gaussian of a cluster's density; Gaussians at most
# A label that was topped up has a density of its few real rows alone: rows per Gaussian, and what
# is added to variances, so that held-out rows have about the percentiles of training rows.
PER_PLAIN, PLAIN_VARIANCE = 100, 0.1
SAMPLE = 20_000  # rows k-means sees per label, a mixture per cluster; more change nothing
CLIP = 5.0  # gradient norm at most, where the number of steps is fixed
WARM_UP = 0.05  # share of a fixed number of steps in which the rate rises
CHECKS = 50  # lines of the history of a fit; with early stopping, validations


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: `DEFAULT` or `PAPER`; on images `DEFAULT` becomes `IMAGES`.

    Attributes:
        name: `default` or `paper`.
        hidden: Width of the hidden layers.
        heads: See `Shape`.
        follows_paper: The one switch for all that the paper does otherwise: clusters are learned
            rather than fixed by k-means, numbers are standardised rather than coded by rank, and
            there is no anchoring, category tree, frozen-category line, sampled start, repair of
            prototypes, refined or stable pick, made-up row.
        weights: The weights of KL(c), KL(z) and reconstruction, in the paper's order.
        batch: Rows per step.
        rate: Adam's learning rate.
        steps: At most this many steps where their number is fixed; with early stopping the budget.
        latent: Dimensions of the latent space at most, where `n_latent` is None.
        patience: Share of the budget without a better validation loss before stopping; 0 for a
            fixed number of steps.
        epochs: With early stopping the budget is at least this many passes over the rows.
        enough: Labels with fewer rows are topped up to this many with made-up ones; 0 for none.
            Images never are: what lies between two images is a double exposure.
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

    @classmethod
    def of(cls, recipe: str | Recipe) -> Recipe:
        """Returns a recipe by name; a `Recipe` is returned as it is."""
        if isinstance(recipe, Recipe):
            return recipe
        for named in (DEFAULT, PAPER):
            if recipe == named.name:
                return named
        raise InputError(f"There is no recipe '{recipe}'. There are: default, paper.")

    def on(self, schema_shape: tuple[int, ...] | None) -> Recipe:
        """Returns the recipe for rows of a shape: images need wider layers and more steps."""
        return IMAGES if self == DEFAULT and schema_shape is not None else self


DEFAULT = Recipe()
IMAGES = replace(DEFAULT, hidden=256, steps=6000, enough=0)
PAPER = Recipe(
    "paper", 512, "sigmoid", True, (0.1, 0.1, 1.0), 1024, 1e-3, 4000, patience=0.2, epochs=100,
    enough=0,
)  # fmt: skip


class History(NamedTuple):
    """The loss during training.

    Attributes:
        names: `step`, `loss`, the terms of the loss and, with early stopping, `validation`.
        lines: The number of a step, and the means of the loss and its terms since the line before.
    """

    names: tuple[str, ...]
    lines: list[tuple[float, ...]]

    @property
    def array(self) -> Floats:
        """The history as a matrix: (lines, names)."""
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
    with few_threads(shape), torch.enable_grad():
        history = _train(model, recipe, (x, y, c), generator, progress or _no_progress)
    return model.eval().requires_grad_(False), history


def _no_progress(what: str, done: int, total: int) -> None:
    """No-op progress callback."""


def _train(
    model: LGMVAE, recipe: Recipe, data: _Rows, generator: torch.Generator, progress: Progress
) -> History:
    """The training loop.

    By default the number of steps is fixed, with warm-up, cosine decay and clipped gradients. A
    recipe with patience, as the paper's, has a constant rate. It holds out a tenth of the rows,
    stops early where their loss has not fallen for long, and keeps the best weights.
    """
    early = recipe.patience > 0
    held_out = data
    if early:
        order = torch.randperm(len(data[0]), generator=generator, device=generator.device)
        held, kept = order.tensor_split([max(1, len(order) // 10)])
        held_out, data = _take(data, held), _take(data, kept)
    rows, batch = len(data[0]), min(recipe.batch, len(data[0]))
    budget = max(recipe.steps, recipe.epochs * -(-rows // batch))
    steps = budget if early else steps_for(rows, recipe.steps)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.rate, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1.0 if early else _share_of_rate(step, steps)
    )
    names = ("step", "loss", *Terms._fields, *(("validation",) if early else ()))
    history = History(names, [])
    best, best_step, best_weights = math.inf, 0, model.state_dict()
    sums, since = torch.zeros(1 + len(Terms._fields), device=generator.device), 0
    for step, which in enumerate(_batches(rows, batch, steps, generator), start=1):
        terms = _terms(model, recipe, _take(data, which), generator)
        loss = terms.weighted(*recipe.weights)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if not early:
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        sums, since = sums + torch.stack([loss, *terms]).detach(), since + 1
        if step % max(1, steps // CHECKS) and step < steps:
            continue
        history.lines.append((step, *(sums / since).tolist()))
        progress("training", step, steps)
        sums, since = torch.zeros_like(sums), 0
        if not early:
            continue
        validation = _validation(model, recipe, held_out)
        history.lines[-1] += (validation,)
        if validation < best:
            best, best_step = validation, step
            best_weights = {name: value.clone() for name, value in model.state_dict().items()}
        elif step - best_step >= recipe.patience * steps:
            progress("training", steps, steps)
            break
    if early:
        model.load_state_dict(best_weights)
    return history


def _take(data: _Rows, rows: Tensor) -> _Rows:
    x, y, c = data
    return x[rows], y[rows], c[rows]


def _terms(model: LGMVAE, recipe: Recipe, data: _Rows, generator: torch.Generator) -> Terms:
    """Returns the terms of the recipe's loss on some rows."""
    x, y, c = data
    if recipe.follows_paper:
        return model.paper_terms(x, y, generator)
    return model.fixed_cluster_terms(x, y, c, generator)


def _validation(model: LGMVAE, recipe: Recipe, held_out: _Rows) -> float:
    """Returns the loss on held-out rows, with the same noise every time so that steps compare."""
    fixed = torch.Generator(held_out[0].device).manual_seed(0)
    with torch.no_grad():
        return _terms(model, recipe, held_out, fixed).weighted(*recipe.weights).item()


def steps_for(rows: int, most: int = 2000) -> int:
    """Returns the default recipe's steps: 500 for a few hundred rows, 2,000 from 4,000 rows on."""
    return int(np.clip(rows // 2, 500, most))


def _share_of_rate(step: int, steps: int) -> float:
    """Returns the share of the rate at a step: linear warm-up, cosine decay."""
    return min(1.0, (step + 1) / (WARM_UP * steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))


def _batches(rows: int, batch: int, steps: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields the row numbers of each step: the whole table in a new order, over and over."""
    order = torch.empty(0, dtype=torch.int64, device=generator.device)
    for _ in range(steps):
        if len(order) < batch:
            order = torch.randperm(rows, generator=generator, device=generator.device)
        yield order[:batch]
        order = order[batch:]


# ------------------------------------------------------------------------------------------------
# Fixed clusters


def cluster_counts(y: Ints, labels: int, wanted: int, distinct: Sequence[int]) -> tuple[int, ...]:
    """Returns how many clusters each label gets: at most one per ten rows and per distinct row.

    A label with fewer than five rows gets none.
    """
    sizes = np.bincount(y, minlength=labels)
    return tuple(
        0 if n < 5 else max(1, min(wanted, d, n // 10))
        for n, d in zip(sizes.tolist(), distinct, strict=True)
    )


def partition(x: Floats, y: Ints, counts: Sequence[int], random_state: int) -> Ints:
    """Assigns a cluster to every row: k-means within each label, no cluster much too small.

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
    """Runs k-means; then each cluster below the floor takes the rows cheapest to reassign.

    The cost of a row is how much farther it is from the new centre than from its present one.
    """
    from sklearn.cluster import KMeans

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
    """Assigns further rows to the cluster of their own label whose mean is nearest.

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
    """Fits the density of each label's real rows in latent space.

    The default recipe fits a mixture with full covariances to one draw of z per row, cluster by
    cluster: the prior's diagonal Gaussians do not match the aggregated posterior. The paper's
    recipe keeps the prior. A label that was topped up is sampled from such a mixture of all its
    rows, but its density is a plain one of its real rows.

    Args:
        model: The trained model.
        recipe: How it was trained.
        x: Encoded rows.
        y: Their labels.
        c: Their clusters.
        random_state: Seed of the draw.
        real: Which rows are real, not made up; None for all.

    Returns:
        The density of every label, and the mixtures that labels topped up are sampled from.
    """
    mixtures, samplers = [], {}
    start = 0
    for label, count in enumerate(model.shape.clusters):
        members = range(start, start + count)
        start += count
        rows = torch.nonzero(y == label)[:, 0]
        if recipe.follows_paper or not count:
            prior = model.p_z()
            mixture = Mixture.of_prior(Gaussian(*(part.cpu() for part in prior)), members)
        else:
            mixture = _refit(model, x[rows], y[rows], c[rows], members, random_state)
        if count:
            genuine = rows if real is None else rows[real[rows]]
            if len(genuine) < len(rows):
                samplers[label], rows = mixture, genuine
                points = model.encode(x[rows], y[rows]).cpu().double().numpy()
                fitted = _gaussians(points, PER_PLAIN, PLAIN_VARIANCE, random_state)
                mixture = _mixture([(1.0, fitted)])
            mean = model.encode(x[rows], y[rows], follows_paper=recipe.follows_paper).cpu()
            typical = mixture.log_density(mean).sort().values
            places = torch.linspace(0, len(typical) - 1, min(1024, len(typical))).round().long()
            mixture = replace(mixture, typical=typical[places])
        mixtures.append(mixture)
    return tuple(mixtures), samplers


def _refit(
    model: LGMVAE, x: Tensor, y: Tensor, c: Tensor, members: Sequence[int], random_state: int
) -> Mixture:
    """Fits one label's mixture: the union of a mixture per cluster."""
    generator = torch.Generator(x.device).manual_seed(random_state)
    one_hot = torch.nn.functional.one_hot(c, model.mask.shape[1]).to(x.dtype)
    q = model.q_z(x, one_hot, y)
    drawn = q.mean + SPREAD * (q.sample(generator) - q.mean)
    z, clusters = drawn.cpu().double().numpy(), c.cpu().numpy()
    parts = []
    for k in members:
        rows = z[clusters == k]
        if len(rows):
            some = _padded(rows[:: max(1, len(rows) // SAMPLE)])
            parts.append((len(rows) / len(z), _gaussians(some, PER_GAUSSIAN, 1e-4, random_state)))
    return _mixture(parts)


def _padded(z: Floats) -> Floats:
    """Adds pseudo-observations around the mean of very few rows."""
    if len(z) >= 2 * z.shape[1]:
        return z
    around = np.concatenate([np.eye(z.shape[1]), -np.eye(z.shape[1])])
    return np.concatenate([z, z.mean(axis=0) + around])


def _mixture(parts: Sequence[tuple[float, GaussianMixture]]) -> Mixture:
    """Joins weighted mixtures into one."""
    arrays = (
        np.concatenate([np.log(share * part.weights_) for share, part in parts]),
        np.concatenate([part.means_ for _, part in parts]),
        np.concatenate([np.linalg.cholesky(part.covariances_) for _, part in parts]),
    )
    weights, means, scales = (torch.tensor(array, dtype=torch.float32) for array in arrays)
    return Mixture(weights, means, scales, typical=torch.empty(0))


def _gaussians(z: Floats, rows: int, variance: float, random_state: int) -> GaussianMixture:
    """Fits a mixture of one Gaussian per so many rows, with something added to the variances."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    count = int(np.clip(len(z) // rows, 1, GAUSSIANS))
    mixture = GaussianMixture(
        count, reg_covar=variance, tol=1e-2, max_iter=60, random_state=random_state
    )
    with warnings.catch_warnings():  # convergence is not needed
        warnings.simplefilter("ignore", ConvergenceWarning)
        return mixture.fit(z)
