r"""Candidates for paths through dense regions, all with the same ends: what `dense` measures.

A candidate is handed the encoded instances and the lines of a search and returns both, changed,
with the curve each line follows: latent points at equal shares of its length, or None for straight
lines. `searched_by` puts one in the place of the library's own for a while.

With $p$ the latent density of the target's rows, relative to its median among them, $h$ latent
dimensions and $\lambda(z) = (p(z) + \epsilon)^{-\alpha/h}$:

- *geodesic* minimises $\sum_k \lambda(z_{k+1/2}) \lVert z_{k+1} - z_k \rVert^2$ over curves
  $z_\tau = (1-\tau) z_x + \tau \mu + \tau(1-\tau)(b + (2\tau-1) b')$, by L-BFGS for all at once;
- *graph* takes the cheapest way over the means of the mixture's components, an edge costing the
  integral of $\sqrt\lambda$ along it, and smooths the corners;
- *pull-back* minimises the length of the decoded curve, $\sum_k \lVert \mathrm{Dec}(z_{k+1}) -
  \mathrm{Dec}(z_k) \rVert^2$, plus the geodesic's energy for what the decoder does not know;
- *dense* is `lapace.paths.dense`; *denoised half-way* and *later* pull most at $\tau = 1/2$ and 8/9
  and do not let the residual fade faster;
- *fading* lets the residual fade as $(1-\tau)^\gamma$;
- *latent residual* first moves $z_x$ to where the decoder misses less of x;
- *relabelled* starts at Enc(x, y'), the latent point x would have with the target's label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from unittest.mock import patch

import numpy as np
import torch
from scipy.sparse.csgraph import shortest_path
from torch import Tensor

from lapace.arrays import Floats, Ints
from lapace.explainer import search
from lapace.model import Mixture
from lapace.paths import Decoder, EncodedInstances, Lines, dense_lines, tracing

__all__ = ["CANDIDATES", "Bent", "Candidate", "searched_by"]

NODES = 16  # pieces of a curve
SAMPLES = 8  # pieces its energy is summed over


class Bent(NamedTuple):
    """Encoded instances, lines, and the curve of each line, (lines, NODES + 1, h), or None."""

    instances: EncodedInstances
    lines: Lines
    curve: Tensor | None = None


Candidate: TypeAlias = Callable[[Decoder, EncodedInstances, Lines], Bent]


@contextmanager
def searched_by(candidate: Candidate) -> Iterator[None]:
    """Every search follows a candidate's paths, without constraints."""
    trace, evaluator = tracing.trace, tracing._LineEvaluator

    def bent(
        decoder: Decoder, instances: EncodedInstances, lines: Lines, *more: Any, **own: Any
    ) -> tracing.TracedPaths:
        new = candidate(decoder, instances, lines)

        def latent(self: Any, rows: Ints, tau: Floats) -> Tensor:
            return (
                evaluator.latent(self, rows, tau) if new.curve is None else at(new.curve, rows, tau)
            )

        curved = type("Curved", (evaluator,), {"latent": latent})
        with patch.object(tracing, "_LineEvaluator", curved):
            return trace(decoder, new.instances, new.lines, *more, **own)

    with patch.object(search, "trace", bent):
        yield


def at(curve: Tensor, rows: Ints, tau: Floats) -> Tensor:
    """Points of curves at shares of their length: (m, h)."""
    place = tau * (curve.shape[1] - 1)
    below = np.minimum(place.astype(np.int64), curve.shape[1] - 2)
    share = torch.as_tensor(place - below, dtype=curve.dtype)[:, None]
    index = torch.as_tensor(rows), torch.as_tensor(below)
    return (1 - share) * curve[index] + share * curve[index[0], index[1] + 1]


def even(points: Tensor, nodes: int = NODES) -> Tensor:
    """Polylines with their points moved to equal shares of their length: (n, nodes + 1, h)."""
    steps = (points[:, 1:] - points[:, :-1]).norm(dim=2).clamp(min=1e-9)
    length = torch.cat([torch.zeros(len(points), 1), steps.cumsum(dim=1)], dim=1)
    length = length / length[:, -1:]
    wanted = torch.linspace(0, 1, nodes + 1).repeat(len(points), 1)
    above = torch.searchsorted(length, wanted).clamp(1, points.shape[1] - 1)
    low, high = length.gather(1, above - 1), length.gather(1, above)
    share = ((wanted - low) / (high - low))[:, :, None].clamp(0, 1)
    rows = torch.arange(len(points))[:, None]
    return (1 - share) * points[rows, above - 1] + share * points[rows, above]


class _Ends(NamedTuple):
    """The ends of distinct lines, by the label of the target."""

    start: Tensor  # (n, h)
    end: Tensor
    label: Ints
    which: Ints  # the pair of each line


def _ends(instances: EncodedInstances, lines: Lines) -> _Ends:
    pairs = tracing.pairs_of(lines)
    _, first, which = np.unique(pairs, return_index=True, return_inverse=True)
    start = instances.z[torch.as_tensor(lines.instance[first])]
    end = lines.z[torch.as_tensor(lines.endpoint[first])]
    return _Ends(start.clone(), end.clone(), lines.label[first], which.ravel())


def _density(decoder: Decoder, label: int) -> Callable[[Tensor], Tensor]:
    """Log of the target's density, relative to the median of its training rows."""
    found = decoder.mixtures[label]
    with torch.inference_mode(False):  # gradients are wanted, whatever mode it was made in
        target = Mixture(*(getattr(found, part.name).clone() for part in fields(found)))
        target.log_density(target.means)
    middle = target.typical[len(target.typical) // 2]
    return lambda z: target.log_density(z) - middle


def _line(start: Tensor, end: Tensor, tau: Tensor) -> Tensor:
    return start[:, None] + tau[:, None] * (end - start)[:, None]  # (n, steps, h)


def _optimised(
    start: Tensor, end: Tensor, energy: Callable[[Tensor], Tensor], iterations: int
) -> Tensor:
    """Curves of least energy between ends, (n, 33, h)."""
    tau = torch.linspace(0, 1, SAMPLES + 1)
    bumps = torch.stack([tau * (1 - tau), tau * (1 - tau) * (2 * tau - 1)])  # (2, steps)
    line = _line(start, end, tau)
    with torch.no_grad():
        scale = energy(line).clamp(min=1e-9)
    with torch.inference_mode(False), torch.enable_grad():
        line, scale, bow = line.clone(), scale.clone(), torch.zeros(2, *start.shape)
        bow.requires_grad_()
        optimiser = torch.optim.LBFGS([bow], max_iter=iterations, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            curve = line + torch.einsum("ks,knh->nsh", bumps, bow)
            loss = (energy(curve) / scale).sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        bow = bow.detach()
    fine = torch.linspace(0, 1, 33)
    bumps = torch.stack([fine * (1 - fine), fine * (1 - fine) * (2 * fine - 1)])
    return _line(start, end, fine) + torch.einsum("ks,knh->nsh", bumps, bow)


def _conformal(
    density: Callable[[Tensor], Tensor], alpha: float, floor: float, z: Tensor
) -> Tensor:
    """The factor: (n, steps) for points (n, steps, h)."""
    flat = density(z.reshape(-1, z.shape[-1])).reshape(z.shape[:-1])
    capped = torch.logaddexp(flat, torch.full_like(flat, -floor))
    return (-alpha / z.shape[-1] * capped).clamp(-20, 20).exp()


def geodesic(
    decoder: Decoder,
    instances: EncodedInstances,
    lines: Lines,
    *,
    alpha: float = 4.0,
    floor: float = 60.0,
    iterations: int = 10,
    decoded: float = 0.0,
) -> Bent:
    """Curves of least energy under the density metric, or the decoder's with `decoded`."""
    ends = _ends(instances, lines)
    curve = torch.empty(len(ends.label), NODES + 1, ends.start.shape[1])
    for label in np.unique(ends.label):
        own = torch.as_tensor(np.flatnonzero(ends.label == label))
        density = _density(decoder, int(label))

        def energy(points: Tensor, density: Callable[[Tensor], Tensor] = density) -> Tensor:
            factor = _conformal(density, alpha, floor, (points[:, 1:] + points[:, :-1]) / 2)
            total = (factor * (points[:, 1:] - points[:, :-1]).square().sum(dim=2)).sum(dim=1)
            if decoded:
                rows = decoder.model.decode(points.reshape(-1, points.shape[-1]))
                rows = rows.reshape(*points.shape[:2], -1)
                total = total + decoded * (rows[:, 1:] - rows[:, :-1]).square().sum(dim=(1, 2))
            return total

        found = _optimised(ends.start[own], ends.end[own], energy, iterations)
        curve[own] = even(found)
    return Bent(instances, lines, curve[torch.as_tensor(ends.which)])


def graph(
    decoder: Decoder,
    instances: EncodedInstances,
    lines: Lines,
    *,
    alpha: float = 4.0,
    floor: float = 60.0,
) -> Bent:
    """Cheapest ways over the means of the mixture's components, smoothed."""
    ends = _ends(instances, lines)
    shares = torch.linspace(0, 1, 8)
    curve = torch.empty(len(ends.label), NODES + 1, ends.start.shape[1])
    for label in np.unique(ends.label):
        own, nodes = np.flatnonzero(ends.label == label), decoder.mixtures[label].means
        density = _density(decoder, int(label))

        def cost(a: Tensor, b: Tensor, density: Callable[[Tensor], Tensor] = density) -> Floats:
            points = _line(a, b, shares)
            factor = _conformal(density, alpha, floor, points).sqrt().mean(dim=1)
            found: Floats = (factor * (b - a).norm(dim=1)).double().numpy()
            return found

        m = len(nodes)
        i, j = np.triu_indices(m, 1)
        between = np.zeros((m, m))
        between[i, j] = cost(nodes[i], nodes[j])
        between, before = shortest_path(between, directed=False, return_predecessors=True)
        start, end = ends.start[own], ends.end[own]
        many = nodes.repeat(len(own), 1)
        out = cost(start.repeat_interleave(m, 0), many).reshape(len(own), m)
        back = cost(many, end.repeat_interleave(m, 0)).reshape(len(own), m)
        direct = cost(start, end)
        for k in range(len(own)):
            total = out[k][:, None] + between + back[k][None]
            first, last = np.unravel_index(total.argmin(), total.shape)
            way = []
            if total[first, last] < direct[k]:
                way = [int(last)]
                while way[-1] != first:
                    way.append(int(before[first, way[-1]]))
            corners = torch.stack([start[k], *(nodes[n] for n in way[::-1]), end[k]])[None]
            points = even(corners, 32)
            for _ in range(24):  # corners are rounded, the ends stay
                inner = (points[:, :-2] + 2 * points[:, 1:-1] + points[:, 2:]) / 4
                points = torch.cat([points[:, :1], inner, points[:, -1:]], dim=1)
            curve[own[k]] = even(points)[0]
    return Bent(instances, lines, curve[torch.as_tensor(ends.which)])


def denoised(decoder: Decoder, instances: EncodedInstances, lines: Lines, *, late: float) -> Bent:
    """Lines pulled to the data as dense paths are, most at another place."""
    ends, tau = _ends(instances, lines), torch.linspace(0, 1, NODES + 1)
    curve, pull = _line(ends.start, ends.end, tau), tau**late * (1 - tau)
    for label in np.unique(ends.label):
        own = torch.as_tensor(np.flatnonzero(ends.label == label))
        points = curve[own].reshape(-1, curve.shape[2])
        clean = decoder.mixtures[label].denoised(points).reshape(len(own), len(tau), -1)
        curve[own] = torch.lerp(curve[own], clean, (pull / pull.max())[:, None])
    return Bent(instances, lines, even(curve)[torch.as_tensor(ends.which)])


def dense(decoder: Decoder, instances: EncodedInstances, lines: Lines) -> Bent:
    """What `Search(path="dense")` does."""
    found, bent = dense_lines(decoder, instances, lines)
    return Bent(found, bent._replace(curve=None), bent.curve)


def straight(_: Decoder, instances: EncodedInstances, lines: Lines) -> Bent:
    """The line itself."""
    return Bent(instances, lines)


def fading(
    decoder: Decoder,
    instances: EncodedInstances,
    lines: Lines,
    *,
    power: float,
    then: Candidate = straight,
) -> Bent:
    """The residual fades as a power of 1 - tau."""
    bent = then(decoder, instances, lines)
    return bent._replace(instances=bent.instances._replace(fading=power))


def latent_residual(
    decoder: Decoder, instances: EncodedInstances, lines: Lines, *, iterations: int = 20
) -> Bent:
    """Paths start where the decoder misses less of the instance."""
    x = torch.as_tensor(instances.schema.encode(instances.cells), dtype=torch.float32)
    with torch.inference_mode(False), torch.enable_grad():
        begin = instances.z.clone()
        z = begin.clone().requires_grad_()
        optimiser = torch.optim.LBFGS([z], max_iter=iterations)

        def closure() -> Tensor:
            optimiser.zero_grad()
            lost = decoder.model.reconstruction(decoder.model.logits(z), x, learned_noise=True)
            loss = (lost + 0.5 * (z - begin).square().sum(dim=1)).sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        z = z.detach()
    residual = instances.schema.encode(instances.cells) - decoder._means(z)
    residual[:, : len(instances.schema.numeric)][instances.schema.unplaced(instances.cells)] = 0.0
    return Bent(instances._replace(z=z, residual=residual), lines)


def relabelled(
    decoder: Decoder, instances: EncodedInstances, lines: Lines, *, then: Candidate = straight
) -> Bent:
    """Paths start where the instance would lie with the target's label."""
    pairs, which = np.unique(np.c_[lines.instance, lines.label], axis=0, return_inverse=True)
    row, label = pairs.T
    encoded = decoder.encode_instances(
        instances.schema, instances.cells[row], label, instances.fixed[row], instances.excluded[row]
    )
    return then(decoder, encoded, lines._replace(instance=which.ravel()))


CANDIDATES: Mapping[str, Candidate] = {
    "straight": straight,
    "dense": dense,
    "denoised half-way": partial(denoised, late=1.0),
    "denoised later": partial(denoised, late=8.0),
    "geodesic": geodesic,
    "graph": graph,
    "pull-back": partial(geodesic, decoded=1.0),
    "fading": partial(fading, power=2.0),
    "latent residual": latent_residual,
    "relabelled": relabelled,
}
