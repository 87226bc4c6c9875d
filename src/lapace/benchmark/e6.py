"""E6, the illustration: the paper's first figure, in two dimensions.

A made-up table of two numbers, six bent arms around a centre with the labels in turn; what a
classifier sees of it, the latent clusters and centroids, and the decoded paths of one instance. The
picture is kept beside the figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.neighbors import KNeighborsClassifier

from lapace.benchmark.plan import Job
from lapace.benchmark.store import Measure
from lapace.explainer import Explainer
from lapace.result import InstanceExplanation

__all__ = ["draw", "measure", "save", "whirl"]

ROWS = 2400


def whirl(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Six bent arms, labelled in turn: rows (n, 2), and their labels.

    Examples:
        >>> table, labels = whirl(10)
        >>> table.shape, sorted(set(labels.tolist()))
        ((10, 2), ['approved', 'denied'])
    """
    rng = np.random.default_rng(seed)
    arm = rng.integers(0, 6, rows)
    out = 1.0 + 0.34 * rng.standard_normal(rows)
    aside = 0.07 * rng.standard_normal(rows)
    angle = arm * np.pi / 3 + 0.75 * np.exp(out - 1.0)
    x = out * np.cos(angle) - aside * np.sin(angle)
    y = out * np.sin(angle) + aside * np.cos(angle)
    return np.stack([x, y], axis=1).round(3), np.where(arm % 2 == 0, "approved", "denied")


class Drawn(NamedTuple):
    """The picture, and what it was made from."""

    figure: Any
    explainer: Explainer
    refused: np.ndarray
    instance: InstanceExplanation


def draw(rows: int, seed: int) -> Drawn:
    """Fits, explains somebody far out on an arm, and draws all of it in three panels."""
    from lapace import plots

    table, labels = whirl(rows)
    classifier = KNeighborsClassifier(31).fit(table, labels)
    explainer = Explainer(classifier, n_prototypes=3, n_latent=2, random_state=seed).fit(table)
    refused = table[classifier.predict(table) == "denied"]
    someone = int(np.abs(refused - [1.3, 0.3]).sum(axis=1).argmin())
    instance = explainer.explain(refused[[someone]], target="approved")[0]
    decide = explainer.classifier_.predict
    latent = explainer.latent_map(instance, points=700)
    figure = plots.illustration(table, decide(table), decide, latent, instance)
    return Drawn(figure, explainer, refused, instance)


def save(figure: Any, where: Path) -> None:
    """Writes the picture, small enough to be kept."""
    where.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(where, dpi=100, pil_kwargs={"optimize": True})


def measure(job: Job, picture: Path) -> list[Measure]:
    """Draws, and says whether everyone refused finds a way.

    Args:
        job: Its seed and rows.
        picture: Where the picture goes.
    """
    import matplotlib.pyplot as plt

    drawn = draw(min(ROWS, job.protocol.rows or ROWS), job.seed)
    save(drawn.figure, picture)
    plt.close(drawn.figure)
    valid = [p.valid for p in drawn.explainer.prototypes_]
    everyone = drawn.explainer.explain(drawn.refused[:100], target="approved")
    reached = np.array([status == "answered" for status in everyone.status])
    return [
        Measure("prototypes_valid", float(np.mean(valid)), len(valid)),
        Measure("validity", float(reached.mean()), len(reached), method="First"),
    ]
