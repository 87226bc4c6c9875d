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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import groupby
from typing import Literal, NamedTuple

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  as torch names it

__all__ = ["LGMVAE", "Gaussian", "Mixture", "Shape", "Terms", "few_threads", "gaussian"]

LOG_2PI = math.log(2 * math.pi)
WIDE = 256  # hidden units above which products gain from more than one thread


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


class Gaussian(NamedTuple):
    """A diagonal Gaussian."""

    mean: Tensor
    log_variance: Tensor

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draws one point of each Gaussian, differentiable in its parameters."""
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return self.mean + noise * (0.5 * self.log_variance).exp()

    def divergence(self, other: Gaussian) -> Tensor:
        r"""$\mathrm{KL}(\text{self} \,\|\, \text{other})$, summed over the last dimension."""
        ratio = self.log_variance - other.log_variance
        shift = (self.mean - other.mean) ** 2 / other.log_variance.exp()
        return 0.5 * (ratio.exp() + shift - 1 - ratio).sum(dim=-1)


class Terms(NamedTuple):
    r"""The terms of the loss, each a mean over the rows of a batch.

    Attributes:
        reconstruction: $-\log p(x \mid z)$.
        kl_z: The divergence of $q(z \mid x, c, y)$ from $p(z \mid c)$.
        kl_c: The divergence of $q(c \mid x, y)$ from $p(c \mid y)$, or from fixed clusters.
    """

    reconstruction: Tensor
    kl_z: Tensor
    kl_c: Tensor

    def weighted(self, kl_c: float, kl_z: float, reconstruction: float) -> Tensor:
        """Returns the loss, with weights in the paper's order."""
        return kl_c * self.kl_c + kl_z * self.kl_z + reconstruction * self.reconstruction


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, outputs),
    )


def gaussian(both: Tensor) -> Gaussian:
    """Splits a network's output, means beside log-variances, into a Gaussian."""
    mean, log_variance = both.chunk(2, dim=1)
    return Gaussian(mean, log_variance.clamp(-10.0, 6.0))


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
        sizes = torch.tensor(shape.clusters)
        owner = [label for label, size in enumerate(shape.clusters) for _ in range(size)]
        mask = torch.tensor(owner) == torch.arange(labels)[:, None]  # (L, K)
        # Rows of a label without clusters may lie in any.
        self.register_buffer("mask", mask | (sizes == 0)[:, None])
        self.register_buffer("labels", torch.eye(labels))
        row = shape.columns + labels  # x and the one-hot y
        self.cluster_network = _mlp(row, shape.hidden, clusters)
        self.latent_network = _mlp(row + clusters, shape.hidden, 2 * shape.latent)
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
        return gaussian(self.latent_network(torch.cat([x, self.labels[y], c], dim=1)))

    def clusters(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns the likeliest cluster of each row: (n,)."""
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
        return gaussian(self.prior.weight.T + self.prior.bias)

    def centroids(self) -> Tensor:
        """The clusters' means: (K, h)."""
        return self.p_z().mean

    def logits(self, z: Tensor) -> Tensor:
        """The decoder before its heads: (n, columns)."""
        out: Tensor = self.decoder(z)
        return out

    def heads(self, out: Tensor) -> Tensor:
        """Turns decoder outputs into a row: numbers as they are, categories as probabilities."""
        sizes, binary = self._blocks
        numbers, *blocks = out.split_with_sizes(sizes, dim=1)
        pairs = zip(blocks, binary, strict=True)
        return torch.cat([numbers, *(b.sigmoid() if one else b.softmax(1) for b, one in pairs)], 1)

    @cached_property
    def _blocks(self) -> tuple[list[int], list[bool]]:
        """Sizes of the parts of a row, numbers first, and whether each category part is binary.

        Neighbouring binary columns are one part; so are all category columns of the paper's.
        """
        paper = self.shape.heads == "sigmoid"
        runs = groupby(self.shape.widths, lambda width: paper or width == 1)
        parts = [
            (width, binary)
            for binary, widths in runs
            for width in ([sum(widths)] if binary else widths)
        ]
        return [self.shape.continuous, *(w for w, _ in parts)], [binary for _, binary in parts]

    def decode(self, z: Tensor) -> Tensor:
        r"""$Dec(z)$, the mean of $p(x \mid z)$: (n, columns)."""
        return self.heads(self.logits(z))

    # -- loss -------------------------------------------------------------------------------------

    def reconstruction(self, out: Tensor, x: Tensor, learned_noise: bool) -> Tensor:
        r"""$-\log p(x \mid z)$, summed over columns: (n,).

        With `learned_noise` numbers have a Gaussian whose width is learned per column; without,
        as in the paper, they count their squared error.
        """
        sizes, binary = self._blocks
        numbers, *blocks = out.split_with_sizes(sizes, dim=1)
        true_numbers, *true_blocks = x.split_with_sizes(sizes, dim=1)
        error = (true_numbers - numbers) ** 2
        if learned_noise:
            log_sigma = self.log_sigma.clamp(-4.0, 2.0)
            error = 0.5 * error * (-2 * log_sigma).exp() + log_sigma
        total = error.sum(dim=1)
        for logits, truth, one in zip(blocks, true_blocks, binary, strict=True):
            if one:
                cost = F.binary_cross_entropy_with_logits(logits, truth, reduction="none")
                total = total + cost.sum(dim=1)
            else:
                total = total - (logits.log_softmax(dim=1) * truth).sum(dim=1)
        return total

    def fixed_cluster_terms(
        self, x: Tensor, y: Tensor, c: Tensor, generator: torch.Generator
    ) -> Terms:
        r"""Returns the default loss: `kl_c` is the cross-entropy of $q(c \mid x, y)$ with c."""
        one_hot = F.one_hot(c, self.mask.shape[1]).to(x.dtype)  # (n, K)
        q = self.q_z(x, one_hot, y)
        out = self.logits(q.sample(generator))
        return Terms(
            self.reconstruction(out, x, learned_noise=True).mean(),
            q.divergence(gaussian(self.prior(one_hot))).mean(),
            F.nll_loss(self.q_c(x, y), c),
        )

    def paper_terms(self, x: Tensor, y: Tensor, generator: torch.Generator) -> Terms:
        r"""Returns the paper's loss, as `recipe="paper"` reads it.

        $q(z \mid x, c, y)$ runs once, on the vector π of cluster probabilities, and
        $\mathrm{KL}(z) = \sum_c \pi_c \mathrm{KL}(q(z) \,\|\, p(z \mid c))$. KL(c) is that of the
        batch's mean responsibilities, per label.
        """
        pi = self.q_c(x, y).exp()  # (n, K)
        q = self.q_z(x, pi, y)
        each = Gaussian(q.mean[:, None], q.log_variance[:, None]).divergence(self.p_z())  # (n, K)
        out = self.logits(q.sample(generator))
        return Terms(
            self.reconstruction(out, x, learned_noise=False).mean(),
            (pi * each).sum(dim=1).mean(),
            self.usage_divergence(pi, y),
        )

    def usage_divergence(self, pi: Tensor, y: Tensor) -> Tensor:
        r"""$\sum_y s_y\, \mathrm{KL}(\bar\pi_y \,\|\, p(c \mid y))$, $s_y$ the share of label y."""
        members = self.labels[y]  # (n, L)
        count = members.sum(dim=0)  # (L,); labels absent from the batch weigh nothing
        mean = members.T @ pi / count.clamp(min=1)[:, None]  # (L, K)
        sizes = self.mask.sum(dim=1).to(pi.dtype)
        divergence = (mean * mean.clamp(min=1e-12).log()).sum(dim=1) + sizes.log()
        return (count / len(y) * divergence).sum()


@dataclass(frozen=True)
class Mixture:
    """The density of one label's rows in latent space: a Gaussian mixture, full covariances.

    Attributes:
        log_weights: (m,)
        means: (m, h)
        scales: Lower triangles L with covariance L Lᵀ: (m, h, h)
        typical: Sorted log-densities of the training rows, for shares among them.
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
        return self.log_parts(z).logsumexp(dim=1)

    def log_parts(self, z: Tensor) -> Tensor:
        """Returns the logarithm of each component's part of the density at z: (n, m)."""
        weights, constant = self._quadratic
        first, second = torch.triu_indices(z.shape[1], z.shape[1], device=z.device)
        features = torch.cat([z[:, first] * z[:, second], z], dim=1)
        return features @ weights + constant

    @cached_property
    def _quadratic(self) -> tuple[Tensor, Tensor]:
        """The weights of (z_i z_j, z) and the constant in each component's log-density."""
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

    def share_below(self, z: Tensor) -> Tensor:
        """Returns the share of training rows that are less dense, 0 to 1: (n,)."""
        place = torch.searchsorted(self.typical, self.log_density(z).contiguous())
        return place.double() / max(1, len(self.typical))

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draws latent points: (count, h)."""
        weights = self.log_weights.exp()  # multinomial refuses to draw nothing
        which = torch.multinomial(weights, max(1, count), True, generator=generator)[:count]
        noise = torch.empty(count, self.means.shape[1], device=self.means.device)
        noise.normal_(generator=generator)
        return self.means[which] + torch.einsum("nij,nj->ni", self.scales[which], noise)

    @classmethod
    def of_prior(cls, prior: Gaussian, members: Sequence[int]) -> Mixture:
        r"""Returns a label's part of the prior $p(z \mid c)$, clusters equally likely."""
        index = torch.tensor(list(members), dtype=torch.int64)
        scales = torch.diag_embed((0.5 * prior.log_variance[index]).exp())
        weights = torch.full((len(index),), -math.log(max(1, len(index))))
        return cls(weights, prior.mean[index], scales, torch.empty(0))


@contextmanager
def few_threads(shape: Shape) -> Iterator[None]:
    """Lets torch use one thread, in the calling thread alone, while a small network runs.

    Products of this size gain little from a second thread, and on a loaded machine threads that
    wait for each other at every product made training ten times slower and explaining five times.
    """
    torch.get_num_threads()  # torch sets up a new thread at its first use, limits included
    with _thread_pools().limit(limits=None if shape.hidden > WIDE else 1, user_api="openmp"):
        yield


@cache
def _thread_pools() -> ThreadpoolController:
    """Returns the libraries with threads; looking for them takes longer than a small search."""
    return ThreadpoolController()
