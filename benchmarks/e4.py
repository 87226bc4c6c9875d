"""E4, points along paths: probability and plausibility from instances to each endpoint.

For every step of the grid, over all prototypes of the target (`all`), and with the first seed for
every prototype alone, since those of different fits do not compare: the classifier's probability of
the target, the local outlier factor of the decoded points among the training rows labelled with the
target (`lof`) and among all (`lof_all`), and their density (the share of rows of the target that
are less dense, by the explainer's own model), mean and deviation over instances.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.fits import fitted, setup_of
from benchmarks.jobs import Measure
from benchmarks.plan import Job
from lapace import Search

__all__ = ["measure"]


def measure(job: Job) -> Iterator[Measure]:
    """All figures of one pair and seed; a metric's name ends with τ, as in `lof@0.25`."""
    setup, explainer = setup_of(job), fitted(job).explainer
    if not len(setup.instances) or not explainer.fitted_.of_label(setup.target):
        return
    search = Search(steps=job.protocol.steps, picks=("first", "middle", "last"))
    found = explainer.explain(setup.frame, target=setup.data.target, search=search)
    steps = job.protocol.steps + 1
    cells = found.cells[:, :steps]  # (paths, steps, d)
    rows = cells.reshape(-1, cells.shape[2])
    decoder, label = explainer.fitted_.decoder, np.full(len(rows), setup.target)
    points = {
        "probability": found.probability,
        "lof": setup.plausibility.lof(rows).reshape(cells.shape[:2]),
        "lof_all": setup.plausibility_of_all.lof(rows).reshape(cells.shape[:2]),
        "density": decoder.density(found.schema, rows, label).reshape(cells.shape[:2]),
        "valid": found.valid == 1,
    }
    shown = job.seed == job.protocol.seeds[0]
    parts = {"all": np.ones(len(found.prototype), dtype=bool)}
    for prototype in np.unique(found.prototype).tolist() if shown else ():
        parts[str(prototype)] = found.prototype == prototype
    for label, own in parts.items():
        for step, tau in enumerate(found.tau[own][0, :steps]):
            for metric, values in points.items():
                if metric == "lof_all" and label != "all":
                    continue
                yield Measure.of(f"{metric}@{tau:.4g}", values[own, step], label)
