r"""Dense paths: latent lines bent towards the target's data, and a residual that fades early.

A straight line from an instance to an endpoint may cross regions where the target has no data. Let
D(z) be the mean of what z may have been before noise was added to it, under the density of the
target's rows (`denoised`): a point among the data stays, one off the data moves to it. Then

$$z_\tau = \ell_\tau + b(\tau) \big(D(\ell_\tau) - \ell_\tau\big), \qquad
  \ell_\tau = (1 - \tau) z_x + \tau \mu_c, \qquad b(\tau) \propto \tau^4 (1 - \tau)$$

with $b$ at most 1, at $\tau = 0.8$: both ends stay where they are, and what lies near the instance
stays near it. The curve is cut into pieces of equal length, so that $\tau$ is again the share of
the way. The residual fades as $(1 - \tau)^2$. Nothing is optimised, and no row is queried. Images
take dense paths, tables straight ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lapace.arrays import Ints
from lapace.model import Mixture
from lapace.paths.decoder import Decoder, EncodedInstances
from lapace.paths.tracing import Lines

__all__ = ["denoised", "dense_curves", "dense_lines"]

# Chosen on loans and on splits of heloc and compas that are not reported on.
LATE = 4  # the power of tau in b: with 1 the paths of an instance become one, and less diverse
FADING = 2.0  # the power of 1 - tau by which the residual fades
PIECES = 10  # of a curve
NOISE = 0.3  # variance of the noise that is removed, as a share of the components' mean variance


def dense_lines(
    decoder: Decoder, instances: EncodedInstances, lines: Lines
) -> tuple[EncodedInstances, Lines]:
    """Bends lines, and lets the residual of their instances fade early.

    Args:
        decoder: Holds the densities.
        instances: Where the lines start.
        lines: Straight lines.
    """
    start = instances.z[torch.as_tensor(lines.instance, device=lines.z.device)]
    end = lines.z[torch.as_tensor(lines.endpoint, device=lines.z.device)]
    curve = dense_curves(decoder, start, end, lines.label)
    return instances._replace(fading=FADING), lines._replace(curve=curve)


def dense_curves(decoder: Decoder, start: Tensor, end: Tensor, labels: Ints) -> Tensor:
    """Returns dense paths as latent points at equal shares of their length: (n, points, h).

    Args:
        decoder: Holds the densities.
        start: Latent points of instances, (n, h).
        end: Latent points of endpoints, (n, h).
        labels: The label of each endpoint.
    """
    tau = torch.linspace(0.0, 1.0, PIECES + 1)
    pull = tau**LATE * (1 - tau)
    pull = (pull / pull.max())[1:-1, None]  # (PIECES - 1, 1)
    with torch.inference_mode():
        curve = torch.lerp(start.cpu()[:, None], end.cpu()[:, None], tau[:, None])
        for label in np.unique(labels):
            own = torch.as_tensor(np.flatnonzero(labels == label))
            inner = curve[own, 1:-1]  # (m, PIECES - 1, h)
            clean = denoised(decoder.mixtures[label], inner.reshape(-1, inner.shape[2]))
            curve[own, 1:-1] = torch.lerp(inner, clean.reshape(inner.shape), pull)
        return _evenly_cut(curve).to(start.device)


def denoised(mixture: Mixture, z: Tensor) -> Tensor:
    r"""Returns the mean of what points may have been before noise was added to them: (n, h).

    With noise of variance $s^2$ in every direction and $r_k(z)$ the share of component k in the
    noisy mixture at z,

    $$D(z) = \sum_k r_k(z) \big(\mu_k + \Sigma_k (\Sigma_k + s^2 I)^{-1} (z - \mu_k)\big).$$
    """
    means, scales = mixture.means.double(), mixture.scales.double()
    covariance = scales @ scales.transpose(1, 2)
    size = covariance.diagonal(dim1=1, dim2=2).mean()
    noise = NOISE * size * torch.eye(means.shape[1], dtype=scales.dtype, device=scales.device)
    gain = torch.linalg.solve(covariance + noise, covariance).transpose(1, 2)  # (m, h, h)
    kept = means - torch.einsum("mij,mj->mi", gain, means)
    noisy = replace(mixture, scales=torch.linalg.cholesky(covariance + noise))
    share = noisy.log_parts(z).softmax(dim=1)  # (n, m)
    slope = (share @ gain.float().flatten(1)).view(-1, *gain.shape[1:])  # (n, h, h)
    clean: Tensor = share @ kept.float() + (slope @ z[:, :, None])[:, :, 0]
    return clean


def _evenly_cut(curve: Tensor) -> Tensor:
    """Moves the points of curves to equal shares of their length."""
    steps = (curve[:, 1:] - curve[:, :-1]).norm(dim=2).clamp(min=1e-9)
    length = torch.nn.functional.pad(steps.cumsum(dim=1), (1, 0))  # (n, points), from 0
    length = length / length[:, -1:]
    wanted = torch.linspace(0.0, 1.0, curve.shape[1])[1:-1].repeat(len(curve), 1)
    above = torch.searchsorted(length, wanted).clamp(1, curve.shape[1] - 1)
    low, high = length.gather(1, above - 1), length.gather(1, above)
    share = ((wanted - low) / (high - low))[:, :, None]
    rows = torch.arange(len(curve))[:, None]
    inner = torch.lerp(curve[rows, above - 1], curve[rows, above], share)
    return torch.cat([curve[:, :1], inner, curve[:, -1:]], dim=1)
