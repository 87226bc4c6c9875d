"""E4, points along paths: probability and plausibility from instances to each endpoint.

For every prototype of the target, the sampled endpoint (-1), and every step of the grid: the
classifier's probability of the target and the local outlier factor of the decoded points among the
training rows labelled with the target, mean and deviation over instances.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.fits import fitted, setup_of
from benchmarks.plan import Job
from benchmarks.store import Measure
from lapace import Search

__all__ = ["measure"]


def measure(job: Job) -> Iterator[Measure]:
    """All figures of one pair and seed; a metric's name ends with τ, as in `lof@0.25`."""
    setup, explainer = setup_of(job), fitted(job).explainer
    if not len(setup.instances) or not explainer.fitted_.of_label(setup.target):
        return
    search = Search(steps=job.protocol.steps)
    found = explainer.explain(setup.frame, target=setup.data.target, search=search)
    steps = job.protocol.steps + 1
    cells = found.cells[:, :steps]  # (paths, steps, d)
    lof = setup.plausibility.lof(cells.reshape(-1, cells.shape[2])).reshape(cells.shape[:2])
    points = {"probability": found.probability, "lof": lof, "valid": found.valid == 1}
    for prototype in np.unique(found.prototype).tolist():
        own = found.prototype == prototype
        for step, tau in enumerate(found.tau[own][0, :steps]):
            for metric, values in points.items():
                yield Measure.of(f"{metric}@{tau:.4g}", values[own, step], str(prototype))
