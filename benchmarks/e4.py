"""E4, points of paths: from instances to each prototype, how probability and plausibility go.

For every prototype of the target and every step of the grid: the classifier's probability of the
target and the local outlier factor of the decoded points among the training rows labelled with the
target, mean and deviation over instances. A prototype is named by its number in the fit's report.
"""

from __future__ import annotations

import numpy as np

from benchmarks.fits import fitted, scene
from benchmarks.plan import Job
from benchmarks.store import Measure
from lapace.explainer import Search

__all__ = ["measure", "named"]


def named(metric: str, tau: float) -> str:
    """The name of a metric at a step.

    Examples:
        >>> named("lof", 0.25)
        'lof@0.25'
    """
    return f"{metric}@{tau:.4g}"


def measure(job: Job) -> list[Measure]:
    """All figures of one pair and seed.

    Args:
        job: The pair, the seed and the settings.
    """
    ground, explainer = scene(job), fitted(job).explainer
    if not len(ground.instances) or not explainer.fitted_.of_label(ground.known.target):
        return []
    answer = explainer.explain(
        ground.frame, target=ground.target, search=Search(steps=job.protocol.steps)
    )
    steps = job.protocol.steps + 1
    cells = answer.cells[:, :steps]  # (paths, steps, d)
    flat = cells.reshape(-1, cells.shape[2])
    lof = ground.known.usual.lof(flat).reshape(cells.shape[:2])
    found = []
    for prototype in np.unique(answer.prototype).tolist():
        here = answer.prototype == prototype
        for step in range(steps):
            tau = float(answer.tau[here][0, step])
            points = {
                "probability": answer.probability[here, step],
                "lof": lof[here, step],
                "valid": (answer.valid[here, step] == 1).astype(float),
            }
            for metric, values in points.items():
                spread = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
                name = named(metric, tau)
                mean = float(np.mean(values))
                found.append(Measure(name, mean, len(values), str(prototype), "", spread))
    return found
