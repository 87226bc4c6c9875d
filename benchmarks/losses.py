"""Other readings of the paper's loss: `with PaperLoss(...).in_use(): explainer.fit(X)`.

`LGMVAE.paper_terms` is the library's own reading: KL(c) of the batch's mean responsibilities per
label, q(z|x,c,y) on the vector π of cluster probabilities, KL(z) against every cluster's Gaussian.
`benchmarks.readings` has the grid of what else the paper leaves open.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  as torch names it

from lapace.model import LGMVAE, Gaussian, Terms

__all__ = ["PaperLoss", "gumbel_draw"]


@dataclass(frozen=True)
class PaperLoss:
    """The paper's loss, in the reading that the options name.

    Attributes:
        kl_c: KL(c) of the batch's mean responsibilities per label (`batch`), or of each row's
            (`row`, as printed).
        draw: Hand on a straight-through Gumbel draw of c instead of π.
    """

    kl_c: Literal["batch", "row"] = "batch"
    draw: bool = False

    def __call__(self, model: LGMVAE, x: Tensor, y: Tensor, generator: torch.Generator) -> Terms:
        """Returns the terms of the loss on a batch."""
        log_c = model.q_c(x, y)
        pi = log_c.exp()  # (n, K)
        passed = gumbel_draw(log_c, generator) if self.draw else pi
        q = model.q_z(x, passed, y)
        each = Gaussian(q.mean[:, None], q.log_variance[:, None]).divergence(model.p_z())  # (n, K)
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
        return model.usage_divergence(log_c.exp(), y)


def gumbel_draw(log_c: Tensor, generator: torch.Generator) -> Tensor:
    """Draws one cluster per row; its gradient is that of the softmax around it."""
    gumbel = -torch.empty_like(log_c).exponential_(generator=generator).log()
    soft = (log_c + gumbel).softmax(dim=1)
    hard = F.one_hot(soft.argmax(dim=1), soft.shape[1]).to(soft.dtype)
    return hard + (soft - soft.detach())
