r"""The gradient of the default recipe's loss, written out.

What `LGMVAE.fixed_cluster_terms` and autograd would give, at about 0.6 of the time: no graph is
recorded, every gradient is written where Adam reads it, and outputs lie column by column, where a
softmax over a few categories is twenty times faster than row by row. Letters are those of `model`;
`d_` names the derivative of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  as torch names it

from lapace.model import LGMVAE

__all__ = ["FixedClusterGradient"]

NEVER = -1e30  # the logit of a cluster of another label; minus infinity times zero is no number
LOG_SIGMA, LOG_VARIANCE = (-4.0, 2.0), (-10.0, 6.0)  # what the model clamps them to


class _Layers:
    """A network of two hidden layers, its outputs one per line: forth and back.

    Args:
        network: Linear layers with ReLU between them.
        gradient: By parameter, where its gradient is written.
    """

    def __init__(self, network: nn.Sequential, gradient: dict[Tensor, Tensor]) -> None:
        linear = [layer for layer in network if isinstance(layer, nn.Linear)]
        self.weights = [layer.weight.detach() for layer in linear]
        self.biases = [layer.bias.detach() for layer in linear]
        self.d_weights = [gradient[layer.weight] for layer in linear]
        self.d_biases = [gradient[layer.bias] for layer in linear]

    def forth(self, values: Tensor) -> Tensor:
        """The outputs, (outputs, n), of inputs, (n, inputs)."""
        self.inputs = values
        self.first = torch.addmm(self.biases[0], values, self.weights[0].T).relu_()
        self.second = torch.addmm(self.biases[1], self.first, self.weights[1].T).relu_()
        return torch.addmm(self.biases[2][:, None], self.weights[2], self.second.T)

    def back(self, d_out: Tensor) -> Tensor:
        """Writes the gradients; returns that before the first ReLU, (n, hidden)."""
        torch.mm(d_out, self.second, out=self.d_weights[2])
        torch.sum(d_out, 1, out=self.d_biases[2])
        d = _through_relu(torch.mm(d_out.T, self.weights[2]), self.second)
        torch.mm(d.T, self.first, out=self.d_weights[1])
        torch.sum(d, 0, out=self.d_biases[1])
        d = _through_relu(torch.mm(d, self.weights[1]), self.first)
        torch.mm(d.T, self.inputs, out=self.d_weights[0])
        torch.sum(d, 0, out=self.d_biases[0])
        return d


def _through_relu(d: Tensor, out: Tensor) -> Tensor:
    """The derivative before a ReLU, in place."""
    found: Tensor = torch.ops.aten.threshold_backward.grad_input(d, out, 0, grad_input=d)
    return found


def _inside(values: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Where a clamp lets derivatives pass."""
    return (values >= bounds[0]) & (values <= bounds[1])


class FixedClusterGradient:
    """The loss with fixed clusters and its gradient, for batches of one table.

    Args:
        model: The model; its parameters may be moved in place between calls.
        parameters: Of the model, in the order of the gradient.
        data: Encoded rows, their labels, their clusters.
        weights: Of KL(c), KL(z) and reconstruction.
    """

    def __init__(
        self,
        model: LGMVAE,
        parameters: Sequence[nn.Parameter],
        data: tuple[Tensor, Tensor, Tensor],
        weights: tuple[float, float, float],
    ) -> None:
        x, y, c = data
        self.model, self.weights = model, weights
        clusters = F.one_hot(c, model.mask.shape[1]).to(x.dtype)
        self.table = torch.cat([x, model.labels[y], clusters], dim=1)  # (rows, w + L + K)
        self.parts = [x.shape[1], len(model.labels), clusters.shape[1]]
        self.forbidden = NEVER * (~model.mask).to(x.dtype).T  # (K, L)
        self.gradient = torch.zeros(sum(p.numel() for p in parameters), device=x.device)
        pieces = self.gradient.split_with_sizes([p.numel() for p in parameters])
        own: dict[Tensor, Tensor] = {
            p: piece.view_as(p) for p, piece in zip(parameters, pieces, strict=True)
        }
        self.cluster_network = _Layers(model.cluster_network, own)
        self.latent_network = _Layers(model.latent_network, own)
        self.decoder = _Layers(model.decoder, own)
        self.prior = model.prior.weight.detach(), model.prior.bias.detach()
        self.d_prior = own[model.prior.weight], own[model.prior.bias]
        self.log_sigma, self.d_log_sigma = model.log_sigma.detach(), own[model.log_sigma]

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """The loss and its terms on a batch, (4,); `gradient` then is its gradient."""
        values = self.table.index_select(0, rows)
        known = values[:, : sum(self.parts[:2])]
        x, y, c = values.T.contiguous().split_with_sizes(self.parts)  # (columns, n) each
        n, h = len(rows), self.model.shape.latent
        kl_c = self._clusters(known, y, c)
        both = self.latent_network.forth(values)
        mean, log_variance = both[:h], both[h:].clamp(*LOG_VARIANCE)
        noise = torch.empty(n, h, device=values.device).normal_(generator=generator).T
        scaled = noise * (0.5 * log_variance).exp()
        z = mean + scaled
        reconstruction, d_out = self._reconstruction(self.decoder.forth(z.T), x)
        d_z = torch.mm(self.decoder.weights[0].T, self.decoder.back(d_out).T)  # (h, n)
        kl_z, d_both = self._divergence(mean, log_variance, c)
        d_both[:h] += d_z
        d_both[h:] += d_z.mul_(scaled).mul_(0.5)
        d_both[h:] *= _inside(both[h:], LOG_VARIANCE)
        self.latent_network.back(d_both)
        terms = torch.stack([reconstruction, kl_z, kl_c]) / n
        loss = self.weights[2] * terms[0] + self.weights[1] * terms[1] + self.weights[0] * terms[2]
        return torch.cat([loss[None], terms])

    def _clusters(self, known: Tensor, y: Tensor, c: Tensor) -> Tensor:
        """-log q(c|x,y), summed over rows, and the gradient of its network."""
        logits = self.cluster_network.forth(known).addmm_(self.forbidden, y)
        log_c = logits.log_softmax(dim=0)  # (K, n)
        self.cluster_network.back((log_c.exp() - c).mul_(self.weights[0] / len(known)))
        return -(log_c * c).sum()

    def _reconstruction(self, out: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """-log p(x|z), summed over rows, and its derivative by the decoder's output."""
        n, start = out.shape[1], self.model.shape.continuous
        log_sigma = self.log_sigma.clamp(*LOG_SIGMA)[:, None]
        precision = (-2 * log_sigma).exp()
        error = out[:start] - x[:start]
        d_out = torch.empty_like(out)
        torch.mul(error, precision, out=d_out[:start])
        squares = (error * d_out[:start]).sum(dim=1)
        total = 0.5 * squares.sum() + n * log_sigma.sum()
        share = self.weights[2] / n
        torch.mul((n - squares) * share, _inside(self.log_sigma, LOG_SIGMA), out=self.d_log_sigma)
        for alone, widths in self.model._runs:
            for width in [sum(widths)] if alone else widths:
                part = slice(start, start + width)
                logits, truth = out[part], x[part]
                if alone:
                    total += (F.softplus(logits) - logits * truth).sum()
                    torch.sub(logits.sigmoid(), truth, out=d_out[part])
                else:
                    likely = logits.log_softmax(dim=0)
                    total -= (likely * truth).sum()
                    torch.sub(likely.exp_().mul_(truth.sum(dim=0)), truth, out=d_out[part])
                start += width
        return total, d_out.mul_(share)

    def _divergence(self, mean: Tensor, log_variance: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """KL(q(z)||p(z|c)), summed over rows, and its derivative by q's parameters, (2h, n)."""
        h, share = len(mean), self.weights[1] / mean.shape[1]
        prior = self.prior[0] + self.prior[1][:, None]  # (2h, K)
        inside = _inside(prior[h:], LOG_VARIANCE)
        prior[h:].clamp_(*LOG_VARIANCE)
        own = prior @ c  # (2h, n), each row's cluster
        away, ratio = mean - own[:h], log_variance - own[h:]
        pull = away * (-own[h:]).exp()
        shift, change = away * pull, ratio.exp() - 1
        d_both = torch.cat([pull, 0.5 * change]).mul_(share)
        d_own = torch.cat([pull.neg_(), (change + shift).mul_(-0.5)]).mul_(share)
        torch.mm(d_own, c.T, out=self.d_prior[0])
        self.d_prior[0][h:] *= inside
        torch.sum(self.d_prior[0], 1, out=self.d_prior[1])
        return 0.5 * (change - ratio + shift).sum(), d_both
