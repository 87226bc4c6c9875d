r"""Other ends for paths: each instance's own, and fewer of them.

*Own ends*: the optimal map between two Gaussians (Bures and Wasserstein) sends an instance from the
cluster it is in to its own counterpart in each cluster of the target, instead of everyone to one
centroid. The clusters' p(z|c) have diagonal covariances, so with $\sigma_c$ their widths

$$T(z) = \mu_{c'} + s \, \frac{\sigma_{c'}}{\sigma_c} (z - \mu_c),$$

s = 1 the map itself. An end that the classifier does not give the target gets a smaller s, down to
0, the prototype. *Fewer ends*: the endpoints of an instance ordered by what their paths cost,
before the classifier is asked about any step, and only the cheapest followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.fits import Setup
from benchmarks.store import Measure
from lapace import metrics
from lapace.arrays import Ints
from lapace.explainer import search
from lapace.explainer.endpoints import Endpoints, find_endpoints
from lapace.explainer.oracle import Oracle
from lapace.explainer.problem import Problem
from lapace.result import Explanation

__all__ = ["ENDS", "chosen_ends", "ended_by", "ranks"]

Finder: TypeAlias = Callable[[Problem, Ints, Oracle], Endpoints]
SHARES = (1.0, 0.5, 0.25, 0.0)  # of the map, tried in turn


@contextmanager
def ended_by(find: Finder) -> Iterator[None]:
    """Every search leads to these ends."""
    with patch.object(search, "find_endpoints", find):
        yield


def own_ends(problem: Problem, instance: Ints, oracle: Oracle, shrink: float = 1.0) -> Endpoints:
    """Every instance's own counterpart in each cluster of the target."""
    found = find_endpoints(problem, instance, oracle)
    decoder, known = problem.fitted.decoder, problem.instances
    lines = np.flatnonzero(found.prototype[found.endpoint] >= 0)
    prototype = found.prototype[found.endpoint[lines]]
    row = instance[found.instance[lines]]
    x = torch.as_tensor(problem.schema.encode(known.cells[row]), dtype=torch.float32)
    y = torch.as_tensor(known.label_code[row])
    with torch.inference_mode():
        prior, z = decoder.model.p_z(), decoder.model.encode(x, y)
        here = decoder.model.clusters(x, y)
        there = torch.as_tensor(prototype)  # prototypes are numbered as clusters are
        ratio = (0.5 * (prior.log_variance[there] - prior.log_variance[here])).exp()
        away = ratio * (z - prior.mean[here])
        centre = found.z[torch.as_tensor(found.endpoint[lines])]
    label = found.label[found.endpoint[lines]]
    best_z, cells = centre.clone(), found.cells[found.endpoint[lines]].copy()
    probability = found.probability[found.endpoint[lines]].copy()
    open_ = np.arange(len(lines))
    ask = Oracle(problem, row, label, oracle.infeasible, oracle.seconds)
    for share in SHARES[:-1]:
        points = centre[open_] + shrink * share * away[open_]
        rows = decoder.decode(points, label[open_])
        steps = ask(np.ones(len(open_)), rows, open_)
        ok = steps.ok
        best_z[open_[ok]] = points[torch.as_tensor(ok)]
        cells[open_[ok]], probability[open_[ok]] = steps.cells[ok], steps.probability[ok]
        open_ = open_[~ok]
        if not len(open_):
            break
    endpoint = found.endpoint.copy()
    endpoint[lines] = len(found.prototype) + np.arange(len(lines))
    return Endpoints(
        np.concatenate([found.prototype, prototype]),
        torch.cat([found.z, best_z]),
        np.concatenate([found.cells, cells]),
        np.concatenate([found.label, label]),
        np.concatenate([found.valid, np.ones(len(lines), dtype=bool)]),
        np.concatenate([found.probability, probability]),
        found.instance,
        endpoint,
    )


ENDS: Mapping[str, Finder] = {
    "own ends": own_ends,
    "own ends, half-way": partial(own_ends, shrink=0.5),
}


def chosen_ends(setup: Setup, found: Explanation) -> Iterator[Measure]:
    """What is lost where only the cheapest k endpoints of each instance are followed.

    `by distance` orders them by the distance of their rows from the instance, `by density` by the
    mean density of the steps on the way, `by probability` by the target's at their end, `by all` by
    the sum of the three ranks; `number` is the order as it is.
    """
    own = np.flatnonzero(found.prototype >= 0)
    first, instance = found.first(), found.instance[own]
    orders = {
        "number": found.prototype[own].astype(float),
        "distance": found.distance[own, 20],
        "density": -found.density[own, 1:20].mean(axis=1),
        "probability": -found.probability[own, 20],
    }
    orders["all"] = sum(ranks(instance, orders[n]) for n in ("distance", "density", "probability"))
    for name, cost in orders.items():
        rank = ranks(instance, cost)
        for k in (1, 2, 3, 5):
            some = first.where((rank < k) & first.ok)  # one First for each path to a prototype
            label = f"{name}, {k}"
            least = [some.distance[some.instance == i].min() for i in np.unique(some.instance)]
            yield Measure.of("ends_first_distance", least, label)
            yield Measure("ends_diversity", metrics.diversity(some), len(least), label)
            yield Measure.of("ends_lof", setup.plausibility.lof(some.cells), label)


def ranks(group: Ints, values: object) -> Ints:
    """The place of each value within its group."""
    order = np.lexsort((np.asarray(values), group))
    size = np.unique(group, return_counts=True)[1]
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = np.concatenate([np.arange(n) for n in size])
    return rank
