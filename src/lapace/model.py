r"""L-GMVAE: a Gaussian-mixture VAE whose clusters belong to labels.

In the paper's order and letters: x a row as the network sees it, y its label as the classifier
predicts it, c its cluster, z its latent point.

$$p(x, c, z \mid y) = p(c \mid y)\, p(z \mid c)\, p(x \mid z), \qquad
  q(z, c \mid x, y) = q(c \mid x, y)\, q(z \mid x, c, y)$$

Every cluster belongs to exactly one label, so $q(c \mid x, y)$ is masked to the label's clusters.
The network knows two facts about the data: how many continuous columns come first, and the widths
of the category blocks after them (1 is a binary column).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from threading import Lock
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  as torch names it

__all__ = ["LGMVAE", "Gaussian", "Mixture", "Shape", "Terms", "few_threads"]

LOG_2PI = math.log(2 * math.pi)
WIDE = 256  # hidden units above which products gain from more than one thread
NOISE = 0.3  # variance of the noise that `Mixture.denoised` removes, of the mean variance
WINDOW = 512  # rows of a label in a running mean of cluster usage


class _ThreadLimit:
    """How many callers hold torch at one thread, and how many threads it had before the first."""

    lock = Lock()
    holders = 0
    before = 1


@contextmanager
def few_threads(shape: Shape) -> Iterator[None]:
    """Holds torch at one thread while small networks run; calls may overlap between threads.

    Products of this size gain little from a second thread, and on a loaded machine threads that
    wait for each other at every product made training ten times slower.
    """
    if shape.hidden > WIDE:
        yield
        return
    limit = _ThreadLimit
    with limit.lock:
        if limit.holders == 0:
            limit.before = torch.get_num_threads()
        limit.holders += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with limit.lock:
            limit.holders -= 1
            if limit.holders == 0:
                torch.set_num_threads(limit.before)


@dataclass(frozen=True)
class Shape:
    """Sizes of an L-GMVAE.

    Attributes:
        continuous: Continuous columns, which come first.
        widths: Widths of the category blocks after them; 1 is a binary column.
        clusters: How many clusters each label has.
        latent: Dimensions of z.
        hidden: Width of the two hidden layers of every network.
        heads: `softmax` picks one category per block; `sigmoid` is the paper's.
    """

    continuous: int
    widths: tuple[int, ...]
    clusters: tuple[int, ...]
    latent: int
    hidden: int = 128
    heads: Literal["softmax", "sigmoid"] = "softmax"

    @property
    def columns(self) -> int:
        """Columns of x."""
        return self.continuous + sum(self.widths)

    @property
    def size(self) -> int:
        """Numbers that the networks and their buffers hold, known before they are made."""
        labels, clusters, h = len(self.clusters), sum(self.clusters), self.hidden
        known = self.columns + labels
        sides = (
            (known, clusters),
            (known + clusters, 2 * self.latent),
            (self.latent, self.columns),
        )
        networks = sum((n + 1) * h + (h + 1) * h + (h + 1) * m for n, m in sides)
        prior = (clusters + 1) * 2 * self.latent
        return networks + prior + labels * (clusters + labels) + self.continuous

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**vars(self), "widths": list(self.widths), "clusters": list(self.clusters)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Shape:
        """The inverse of `to_json`."""
        tuples = {"widths": tuple(data["widths"]), "clusters": tuple(data["clusters"])}
        return cls(**{**data, **tuples})


class Gaussian(NamedTuple):
    """A diagonal Gaussian."""

    mean: Tensor
    log_variance: Tensor

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw, differentiable in the parameters."""
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return self.mean + noise * (0.5 * self.log_variance).exp()

    def divergence(self, other: Gaussian) -> Tensor:
        r"""$\mathrm{KL}(\text{self} \,\|\, \text{other})$, summed over the last dimension."""
        ratio = self.log_variance - other.log_variance
        shift = (self.mean - other.mean) ** 2 / other.log_variance.exp()
        return 0.5 * (ratio.exp() + shift - 1 - ratio).sum(dim=-1)


class Terms(NamedTuple):
    """The terms of the loss, each a mean over rows; an unused one is zero."""

    reconstruction: Tensor
    kl_z: Tensor
    kl_c: Tensor

    def weighted(self, kl_c: float, kl_z: float, reconstruction: float) -> Tensor:
        """The loss, with weights in the paper's order."""
        return kl_c * self.kl_c + kl_z * self.kl_z + reconstruction * self.reconstruction


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, outputs),
    )


def _gaussian(both: Tensor) -> Gaussian:
    """Means and log-variances, side by side, as a Gaussian."""
    mean, log_variance = both.chunk(2, dim=1)
    return Gaussian(mean, log_variance.clamp(-10.0, 6.0))


def _gumbel_draw(log_c: Tensor, generator: torch.Generator) -> Tensor:
    """One cluster per row, drawn; its gradient is that of the softmax around it."""
    gumbel = -torch.empty_like(log_c).exponential_(generator=generator).log()
    soft = (log_c + gumbel).softmax(dim=1)
    hard = F.one_hot(soft.argmax(dim=1), soft.shape[1]).to(soft.dtype)
    return hard + (soft - soft.detach())


def _binary_cost(logits: Tensor, truth: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, truth, reduction="none").sum(dim=1)


class LGMVAE(nn.Module):
    """The networks and the loss.

    Examples:
        >>> model = LGMVAE(Shape(continuous=2, widths=(3,), clusters=(2, 2), latent=4, hidden=8))
        >>> x, y = torch.zeros(6, 5), torch.tensor([0, 0, 0, 1, 1, 1])
        >>> model.encode(x, y).shape, model.decode(model.encode(x, y)).shape
        (torch.Size([6, 4]), torch.Size([6, 5]))
        >>> model.q_c(x, y)[0, 2:].exp().tolist()  # no cluster of another label
        [0.0, 0.0]
    """

    mask: Tensor
    labels: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        labels, clusters = len(shape.clusters), sum(shape.clusters)
        owner = torch.repeat_interleave(torch.arange(labels), torch.tensor(shape.clusters))
        mask = owner[None, :] == torch.arange(labels)[:, None]  # (L, K)
        mask[~mask.any(dim=1)] = True  # rows of a label without clusters may lie in any
        self.register_buffer("mask", mask)
        self.register_buffer("labels", torch.eye(labels))
        known = shape.columns + labels
        self.cluster_network = _mlp(known, shape.hidden, clusters)
        self.latent_network = _mlp(known + clusters, shape.hidden, 2 * shape.latent)
        self.prior = nn.Linear(clusters, 2 * shape.latent)
        self.decoder = _mlp(shape.latent, shape.hidden, shape.columns)
        self.log_sigma = nn.Parameter(torch.zeros(shape.continuous))

    # -- inference --------------------------------------------------------------------------------

    def q_c(self, x: Tensor, y: Tensor) -> Tensor:
        r"""$\log q(c \mid x, y)$, minus infinity outside the label's clusters: (n, K)."""
        logits = self.cluster_network(torch.cat([x, self.labels[y]], dim=1))
        log_c: Tensor = logits.masked_fill(~self.mask[y], -torch.inf).log_softmax(dim=1)
        return log_c

    def q_z(self, x: Tensor, c: Tensor, y: Tensor) -> Gaussian:
        r"""$q(z \mid x, c, y)$, c given as cluster probabilities: (n, h) each."""
        return _gaussian(self.latent_network(torch.cat([x, self.labels[y], c], dim=1)))

    def clusters(self, x: Tensor, y: Tensor) -> Tensor:
        """The likeliest cluster of each row: (n,)."""
        return self.q_c(x, y).argmax(dim=1)

    def encode(self, x: Tensor, y: Tensor, follows_paper: bool = False) -> Tensor:
        r"""$z_x = Enc(x, y)$, the mean of $q(z \mid x, c, y)$: (n, h).

        Args:
            x: Encoded rows.
            y: Their labels.
            follows_paper: Pass the cluster probabilities on, as the paper's recipe trains, rather
                than the one-hot likeliest cluster.
        """
        log_c = self.q_c(x, y)
        c = log_c.exp()
        if not follows_paper:
            c = F.one_hot(log_c.argmax(dim=1), log_c.shape[1]).to(x.dtype)
        return self.q_z(x, c, y).mean

    # -- generation -------------------------------------------------------------------------------

    def p_z(self) -> Gaussian:
        r"""$p(z \mid c)$ of every cluster: (K, h) each."""
        return _gaussian(self.prior.weight.T + self.prior.bias)

    def centroids(self) -> Tensor:
        """The clusters' means: (K, h)."""
        return self.p_z().mean

    def logits(self, z: Tensor) -> Tensor:
        """The decoder before its heads: (n, columns)."""
        out: Tensor = self.decoder(z)
        return out

    def heads(self, out: Tensor) -> Tensor:
        """Decoder outputs as a row: numbers as they are, categories as probabilities."""
        parts, start = [out[:, : self.shape.continuous]], self.shape.continuous
        for alone, widths in self._runs:
            sizes = [sum(widths)] if alone else widths
            for width in sizes:
                block = out[:, start : start + width]
                parts.append(block.sigmoid() if alone else block.softmax(dim=1))
                start += width
        return torch.cat(parts, dim=1)

    @cached_property
    def _runs(self) -> list[tuple[bool, list[int]]]:
        """Widths of neighbouring blocks, by whether their columns stand alone, as sigmoids."""
        paper = self.shape.heads == "sigmoid"
        runs = groupby(self.shape.widths, lambda width: paper or width == 1)
        return [(alone, [*widths]) for alone, widths in runs]

    def decode(self, z: Tensor) -> Tensor:
        r"""$Dec(z)$, the mean of $p(x \mid z)$: (n, columns)."""
        return self.heads(self.logits(z))

    # -- loss -------------------------------------------------------------------------------------

    def reconstruction(self, out: Tensor, x: Tensor, learned_noise: bool) -> Tensor:
        r"""$-\log p(x \mid z)$, summed over columns: (n,).

        With `learned_noise` numbers have a Gaussian whose width is learned per column; without,
        as in the paper, they count their squared error.
        """
        first = self.shape.continuous
        error = (x[:, :first] - out[:, :first]) ** 2
        if learned_noise:
            log_sigma = self.log_sigma.clamp(-4.0, 2.0)
            error = 0.5 * error * (-2 * log_sigma).exp() + log_sigma
        total = error.sum(dim=1)
        if self.shape.heads == "sigmoid" or all(w == 1 for w in self.shape.widths):
            return total + _binary_cost(out[:, first:], x[:, first:])
        start = first
        for width in self.shape.widths:
            block, truth = out[:, start : start + width], x[:, start : start + width]
            if width == 1:
                total = total + _binary_cost(block, truth)
            else:
                total = total - (block.log_softmax(dim=1) * truth).sum(dim=1)
            start += width
        return total

    def fixed_cluster_terms(
        self, x: Tensor, y: Tensor, c: Tensor, generator: torch.Generator
    ) -> Terms:
        r"""The loss with fixed clusters: `kl_c` is the cross-entropy of $q(c \mid x, y)$."""
        one_hot = F.one_hot(c, self.mask.shape[1]).to(x.dtype)  # (n, K)
        q = self.q_z(x, one_hot, y)
        p = self.p_z()
        out = self.logits(q.sample(generator))
        # Products with one-hot rows, whose gradients are faster than those of indexing.
        own = Gaussian(one_hot @ p.mean, one_hot @ p.log_variance)
        return Terms(
            self.reconstruction(out, x, learned_noise=True).mean(),
            q.divergence(own).mean(),
            F.nll_loss(self.q_c(x, y), c),
        )

    def paper_terms(
        self,
        x: Tensor,
        y: Tensor,
        generator: torch.Generator,
        *,
        kl_c: Literal["batch", "running", "row"] = "batch",
        draw: bool = False,
        linear_prior: bool = False,
        usage: Tensor | None = None,
    ) -> Terms:
        r"""The paper's loss, in the reading its options name.

        $q(z \mid x, c, y)$ runs once, on the vector π of cluster probabilities, and
        $\mathrm{KL}(z) = \sum_c \pi_c \mathrm{KL}(q(z) \,\|\, p(z \mid c))$.

        Args:
            x: Encoded rows.
            y: Their labels.
            generator: Of the noise.
            kl_c: KL(c) of the batch's mean responsibilities per label (`batch`), of their running
                mean (`running`, for small batches), or of each row's (`row`, as printed).
            draw: Hand on a straight-through Gumbel draw of c instead of π.
            linear_prior: Measure KL(z) against the prior's layer applied to π, one Gaussian.
            usage: The running mean, (L, K), updated in place; needed for `running` alone.
        """
        log_c = self.q_c(x, y)
        c = log_c.exp()  # (n, K), the vector of cluster probabilities
        passed = _gumbel_draw(log_c, generator) if draw else c
        q = self.q_z(x, passed, y)
        if linear_prior:
            divergence = q.divergence(_gaussian(self.prior(passed)))
        else:
            each = Gaussian(q.mean[:, None], q.log_variance[:, None]).divergence(self.p_z())
            divergence = (passed * each).sum(dim=1)  # (n,)
        sizes = self.mask.sum(dim=1).to(x.dtype)  # (L,)
        if kl_c == "row":
            of_rows = (c * log_c.masked_fill(~self.mask[y], 0.0)).sum(dim=1)
            of_clusters = of_rows.add(sizes[y].log()).mean()
        else:
            of_clusters = self._usage_divergence(c, y, usage if kl_c == "running" else None)
        out = self.logits(q.sample(generator))
        return Terms(
            self.reconstruction(out, x, learned_noise=False).mean(), divergence.mean(), of_clusters
        )

    def uniform_usage(self) -> Tensor:
        r"""$p(c \mid y)$ for every label: (L, K)."""
        return self.mask / self.mask.sum(dim=1, keepdim=True)

    def _usage_divergence(self, c: Tensor, y: Tensor, usage: Tensor | None) -> Tensor:
        r"""$\sum_y s_y\, \mathrm{KL}(\bar\pi_y \,\|\, p(c \mid y))$, $s_y$ the share of label y.

        No shape depends on the rows, so that a step can be captured as a CUDA graph. With `usage`
        the value is that of the running mean, the gradient that of the batch's.
        """
        members = self.labels[y]  # (n, L)
        count = members.sum(dim=0)  # (L,); labels absent from the batch weigh nothing
        mean = members.T @ c / count.clamp(min=1)[:, None]  # (L, K)
        if usage is not None:
            weight = (count / WINDOW).clamp(max=1)[:, None]
            usage.add_(weight * (mean.detach() - usage))
            mean = mean + (usage - mean).detach()
        sizes = self.mask.sum(dim=1).to(c.dtype)
        divergence = (mean * mean.clamp(min=1e-12).log()).sum(dim=1) + sizes.log()
        return (count / len(y) * divergence).sum()


@dataclass(frozen=True)
class Mixture:
    """The density of one label's rows in latent space: a Gaussian mixture, full covariances.

    Attributes:
        log_weights: (m,)
        means: (m, h)
        scales: Lower triangles L with covariance L Lᵀ: (m, h, h)
        typical: Sorted log-densities of the training rows, for percentiles.
    """

    log_weights: Tensor
    means: Tensor
    scales: Tensor
    typical: Tensor

    def log_density(self, z: Tensor) -> Tensor:
        r"""$\log p(z)$ under the mixture: (n,).

        $(z-\mu)^\top P (z-\mu)$ is linear in the products $z_i z_j$ and in z, so all components
        are one matrix product.
        """
        return self._log_parts(z).logsumexp(dim=1)

    def _log_parts(self, z: Tensor) -> Tensor:
        """What each component adds to the density at z, as a logarithm: (n, m)."""
        weights, constant = self._quadratic
        first, second = torch.triu_indices(z.shape[1], z.shape[1], device=z.device)
        features = torch.cat([z[:, first] * z[:, second], z], dim=1)
        return features @ weights + constant

    @cached_property
    def _quadratic(self) -> tuple[Tensor, Tensor]:
        """Per component the weights of (z_i z_j, z) and the constant of its log-density."""
        means, scales = self.means.double(), self.scales.double()
        dims = means.shape[1]
        inverse = torch.linalg.solve_triangular(
            scales, torch.eye(dims, dtype=scales.dtype, device=scales.device), upper=False
        )
        precision = inverse.transpose(1, 2) @ inverse  # (m, h, h)
        first, second = torch.triu_indices(dims, dims, device=means.device)
        twice = torch.where(first == second, 1.0, 2.0)
        pairs = -0.5 * precision[:, first, second] * twice
        pulled = torch.einsum("mij,mj->mi", precision, means)
        log_det = scales.diagonal(dim1=1, dim2=2).log().sum(dim=1)
        constant = self.log_weights.double() - log_det - 0.5 * dims * LOG_2PI
        constant = constant - 0.5 * (pulled * means).sum(dim=1)
        return torch.cat([pairs, pulled], dim=1).T.float().contiguous(), constant.float()

    def denoised(self, z: Tensor) -> Tensor:
        r"""The mean of what points may have been before noise was added to them: (n, h).

        With noise of variance $s^2$ in every direction, `NOISE` of the components' mean variance,
        and $r_k(z)$ the share of component k in the noisy mixture at z,

        $$D(z) = \sum_k r_k(z) \big(\mu_k + \Sigma_k (\Sigma_k + s^2 I)^{-1} (z - \mu_k)\big).$$

        A point among the data stays about where it is; one off the data moves to it.
        """
        noisy, gain, kept = self._noisy
        share = noisy._log_parts(z).softmax(dim=1)  # (n, m)
        slope = (share @ gain.flatten(1)).view(-1, *gain.shape[1:])  # (n, h, h)
        return share @ kept + (slope @ z[:, :, None])[:, :, 0]

    @cached_property
    def _noisy(self) -> tuple[Mixture, Tensor, Tensor]:
        """The mixture with noise, and per component the slope and the constant of `denoised`."""
        scales, dims = self.scales.double(), self.means.shape[1]
        covariance = scales @ scales.transpose(1, 2)
        size = covariance.diagonal(dim1=1, dim2=2).mean()
        noise = NOISE * size * torch.eye(dims, dtype=scales.dtype, device=scales.device)
        gain = torch.linalg.solve(covariance + noise, covariance).transpose(1, 2)  # (m, h, h)
        kept = self.means.double() - torch.einsum("mij,mj->mi", gain, self.means.double())
        noisy = Mixture(
            self.log_weights, self.means, torch.linalg.cholesky(covariance + noise), self.typical
        )
        return noisy, gain.float(), kept.float()

    def percentile(self, z: Tensor) -> Tensor:
        """The share of training rows that are less dense, in percent: (n,)."""
        place = torch.searchsorted(self.typical, self.log_density(z).contiguous())
        return 100.0 * place.to(z.dtype) / max(1, len(self.typical))

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draws latent points: (count, h)."""
        weights = self.log_weights.exp()  # multinomial refuses to draw nothing
        which = torch.multinomial(weights, max(1, count), True, generator=generator)[:count]
        noise = torch.empty(count, self.means.shape[1], device=self.means.device)
        noise.normal_(generator=generator)
        return self.means[which] + torch.einsum("nij,nj->ni", self.scales[which], noise)

    @classmethod
    def of_prior(cls, prior: Gaussian, members: Sequence[int]) -> Mixture:
        r"""A label's part of the prior $p(z \mid c)$, clusters equally likely; may be empty."""
        index = torch.tensor(list(members), dtype=torch.int64)
        scales = torch.diag_embed((0.5 * prior.log_variance[index]).exp())
        weights = torch.full((len(index),), -math.log(max(1, len(index))))
        return cls(weights, prior.mean[index], scales, torch.empty(0))
