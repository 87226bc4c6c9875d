"""Other readings of the paper's loss: `with PaperLoss(...).in_use(): explainer.fit(X)`.

`LGMVAE.paper_terms` is the library's own reading: KL(c) of the batch's mean responsibilities per
label, q(z|x,c,y) on the vector π of cluster probabilities, KL(z) against every cluster's Gaussian.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  as torch names it

from lapace.model import LGMVAE, Gaussian, Terms, gaussian

__all__ = ["PaperLoss", "gumbel_draw"]

WINDOW = 512  # rows of a label in a running mean of cluster usage


@dataclass(frozen=True)
class PaperLoss:
    """The paper's loss, in the reading that the options name.

    Attributes:
        kl_c: KL(c) of the batch's mean responsibilities per label (`batch`), of their running mean
            (`running`, for small batches), or of each row's (`row`, as printed).
        draw: Hand on a straight-through Gumbel draw of c instead of π.
        linear_prior: Measure KL(z) against the prior's layer applied to π, one Gaussian.
    """

    kl_c: Literal["batch", "running", "row"] = "batch"
    draw: bool = False
    linear_prior: bool = False
    _usage: WeakKeyDictionary[LGMVAE, Tensor] = field(
        default_factory=WeakKeyDictionary, repr=False, compare=False
    )

    def __call__(self, model: LGMVAE, x: Tensor, y: Tensor, generator: torch.Generator) -> Terms:
        """Returns the terms of the loss on a batch."""
        log_c = model.q_c(x, y)
        pi = log_c.exp()  # (n, K)
        passed = gumbel_draw(log_c, generator) if self.draw else pi
        q = model.q_z(x, passed, y)
        if self.linear_prior:
            divergence = q.divergence(gaussian(model.prior(passed)))
        else:
            each = Gaussian(q.mean[:, None], q.log_variance[:, None]).divergence(model.p_z())
            divergence = (passed * each).sum(dim=1)  # (n,)
        out = model.logits(q.sample(generator))
        return Terms(
            model.reconstruction(out, x, learned_noise=False).mean(),
            divergence.mean(),
            self._of_clusters(model, log_c, y),
        )

    def in_use(self) -> AbstractContextManager[Any]:
        """Returns a context in which the paper's recipe is trained with this loss."""

        def terms(model: LGMVAE, x: Tensor, y: Tensor, generator: torch.Generator) -> Terms:
            return self(model, x, y, generator)

        return patch.object(LGMVAE, "paper_terms", terms)

    def _of_clusters(self, model: LGMVAE, log_c: Tensor, y: Tensor) -> Tensor:
        if self.kl_c == "row":
            of_rows = (log_c.exp() * log_c.masked_fill(~model.mask[y], 0.0)).sum(dim=1)
            return of_rows.add(model.mask.sum(dim=1).to(log_c.dtype)[y].log()).mean()
        # A running mean is only kept while training: held-out rows are one batch.
        if self.kl_c == "running" and torch.is_grad_enabled():
            return self._running(model, log_c.exp(), y)
        return model.usage_divergence(log_c.exp(), y)

    def _running(self, model: LGMVAE, pi: Tensor, y: Tensor) -> Tensor:
        """Returns KL(c) with the value of the running mean and the gradient of the batch's."""
        uniform = model.mask / model.mask.sum(dim=1, keepdim=True)
        usage = self._usage.setdefault(model, uniform.to(pi.dtype))  # (L, K)
        members = model.labels[y]
        count = members.sum(dim=0)  # (L,)
        mean = members.T @ pi / count.clamp(min=1)[:, None]
        usage += (count / WINDOW).clamp(max=1)[:, None] * (mean.detach() - usage)
        mean = mean + (usage - mean).detach()
        sizes = model.mask.sum(dim=1).to(pi.dtype)
        divergence = (mean * mean.clamp(min=1e-12).log()).sum(dim=1) + sizes.log()
        return (count / len(y) * divergence).sum()


def gumbel_draw(log_c: Tensor, generator: torch.Generator) -> Tensor:
    """Draws one cluster per row; its gradient is that of the softmax around it."""
    gumbel = -torch.empty_like(log_c).exponential_(generator=generator).log()
    soft = (log_c + gumbel).softmax(dim=1)
    hard = F.one_hot(soft.argmax(dim=1), soft.shape[1]).to(soft.dtype)
    return hard + (soft - soft.detach())
