"""Membership inference: do answers, or a saved explainer, tell who was among the training rows?

Members are training rows the classifier gives the target, non-members as many test rows it gives
the target; no instance that is explained is among them. An attacker ranks them by a score and is
measured by the area under the ROC curve (one half is guessing) and by the members found at one
false alarm in a hundred.

| label | what the attacker has | score |
|---|---|---|
| `answers` | the counterfactuals of all instances | minus the distance to the nearest one |
| `file, reconstruction` | a `.lapace` file | minus the squared error of its reconstruction |
| `file, density` | a `.lapace` file | the density of its latent point for the target |

NNCE, FACE and DRCE keep the training rows: whoever has their file knows all members.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.metrics import roc_auc_score, roc_curve

from benchmarks import baselines
from benchmarks.fits import Setup, fitted, setup_of
from benchmarks.jobs import Measure
from benchmarks.plan import Job
from lapace import Explainer, Search
from lapace.arrays import Floats
from lapace.schema.distance import kneighbors

__all__ = ["attack", "measure"]

FALSE_ALARMS = 0.01


def attack(members: ArrayLike, others: ArrayLike) -> tuple[float, float]:
    """Returns the area under the ROC curve of a score, and the members found at few false alarms.

    Examples:
        >>> attack([3.0, 4.0], [1.0, 2.0]), attack([1.0, 1.0], [1.0, 1.0])
        ((1.0, 1.0), (0.5, 0.0))
    """
    score = np.concatenate([np.asarray(members), np.asarray(others)])
    truth = np.arange(len(score)) < len(np.asarray(members))
    alarms, found, _ = roc_curve(truth, score)
    return float(roc_auc_score(truth, score)), float(found[alarms <= FALSE_ALARMS].max())


def measure(job: Job) -> Iterator[Measure]:
    """Yields how well each attack does, by method."""
    setup = setup_of(job)
    rng = np.random.default_rng(job.seed)
    inside, outside = setup.target_rows, setup.test[setup.test_codes == setup.target]
    count = min(len(inside), len(outside))
    if not count or not len(setup.instances):
        return
    both = [rows[rng.permutation(len(rows))[:count]] for rows in (inside, outside)]
    answers = _of_baselines(job, setup) if job.recipe == "baselines" else _of_picks(job, setup)
    for method, cells in answers:
        if len(cells):
            near = [-kneighbors(setup.wide, rows, cells)[0][:, 0] for rows in both]
            yield from _measures(*near, "answers", method)
    if job.recipe != "baselines":
        scores = [_file_scores(fitted(job).explainer, setup, rows) for rows in both]
        for name in scores[0]:
            yield from _measures(*(own[name] for own in scores), f"file, {name}", "")


def _measures(members: Floats, others: Floats, label: str, method: str) -> Iterator[Measure]:
    area, found = attack(members, others)
    count = len(members) + len(others)
    yield Measure("auc", area, count, label, method)
    yield Measure("found", found, count, label, method)


def _of_baselines(job: Job, setup: Setup) -> Iterator[tuple[str, Floats]]:
    for kind in (baselines.NNCE, baselines.FACE, baselines.DRCE):
        method = kind(setup.model, schema=setup.schema, random_state=job.seed)
        found = method.fit(setup.data.train).counterfactuals(setup.frame, target=setup.data.target)
        yield kind.__name__, found.cells


def _of_picks(job: Job, setup: Setup) -> Iterator[tuple[str, Floats]]:
    explainer = fitted(job).explainer
    if not explainer.fitted_.of_label(setup.target):
        return
    names = ("first", "middle", "last", *(("nearest", "best") if job.recipe == "default" else ()))
    search = Search(steps=job.protocol.steps, picks=names, n_best=1)
    found = explainer.explain(setup.frame, target=setup.data.target, search=search)
    for name in names:
        pick = getattr(found, name)()
        title = name.capitalize() if name in names[:3] else name
        yield title, pick.where(pick.ok).cells


def _file_scores(explainer: Explainer, setup: Setup, rows: Floats) -> dict[str, Floats]:
    """Scores by what a saved explainer holds: its networks and the target's density."""
    decoder = explainer.fitted_.decoder
    x = torch.as_tensor(decoder.schema.encode(rows), dtype=torch.float32)
    y = torch.full((len(rows),), setup.target)
    with torch.inference_mode():
        z = decoder.model.encode(x, y, follows_paper=decoder.follows_paper)
        error = (decoder.model.decode(z) - x).square().nan_to_num().sum(dim=1)
        density = decoder.mixtures[setup.target].log_density(z)
    return {"reconstruction": -error.double().numpy(), "density": density.double().numpy()}
