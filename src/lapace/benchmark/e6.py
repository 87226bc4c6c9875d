"""E6, the illustration: the paper's first figure, in two dimensions.

A made-up table of two numbers, six bent arms around a centre with the labels in turn; what a
classifier sees of it, the latent clusters and centroids, and the decoded paths of one person. The
picture is kept beside the figures.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.neighbors import KNeighborsClassifier

from lapace.benchmark.plan import Job
from lapace.benchmark.store import Measure
from lapace.explainer import Explainer

__all__ = ["measure", "whirl"]

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


def measure(job: Job, picture: Path) -> list[Measure]:
    """Fits, draws, and says whether everyone refused finds a way.

    Args:
        job: Its seed and rows.
        picture: Where the picture goes.
    """
    from lapace import plots

    rows, labels = whirl(min(ROWS, job.protocol.rows or ROWS))
    classifier = KNeighborsClassifier(31).fit(rows, labels)
    explainer = Explainer(classifier, clusters=3, latent=2, seed=job.seed).fit(rows)
    refused = rows[classifier.predict(rows) == "denied"]
    someone = int(np.abs(refused - [1.3, 0.3]).sum(axis=1).argmin())  # far out on an arm
    person = explainer.explain(refused[[someone]], target="approved")[0]
    decide = explainer.classifier_.predict
    latent = explainer.latent_map(person, points=700)
    drawn = plots.illustration(rows, decide(rows), decide, latent, person)
    picture.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(picture, dpi=100, pil_kwargs={"optimize": True})
    _close(drawn)
    valid = [p.valid for p in explainer.prototypes_]
    everyone = explainer.explain(refused[:100], target="approved")
    reached = np.array([status == "answered" for status in everyone.status])
    return [
        Measure("prototypes_valid", float(np.mean(valid)), len(valid)),
        Measure("validity", float(reached.mean()), len(reached), method="First"),
    ]


def _close(figure: object) -> None:
    import matplotlib.pyplot as plt

    plt.close(figure)  # type: ignore[arg-type]
