"""The idea in one picture: `python examples/illustration.py [where.png]`.

A made-up table of two numbers: six bent arms around a centre, every other one approved. Three
panels show the classifier's regions, the latent clusters with their centroids, and the decoded
paths of one refused instance. The picture opens the README.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.neighbors import KNeighborsClassifier

from lapace import Explainer, plots

FAST = bool(os.environ.get("LAPACE_FAST"))  # fewer rows, for the tests
ROWS = 2400


def whirl(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Six bent arms, labelled in turn: rows (n, 2), and their labels."""
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
    instance: Any


def draw(rows: int, seed: int) -> Drawn:
    """Fits, explains one instance far out on an arm, and draws all of it in three panels."""
    table, labels = whirl(rows)
    classifier = KNeighborsClassifier(31).fit(table, labels)
    explainer = Explainer(classifier, n_prototypes=3, n_latent=2, random_state=seed).fit(table)
    refused = table[classifier.predict(table) == "denied"]
    far_out = int(np.abs(refused - [1.3, 0.3]).sum(axis=1).argmin())
    instance = explainer.explain(refused[[far_out]], target="approved")[0]
    decide = explainer.classifier_.predict
    latent = explainer.latent_map(instance, points=700)
    figure = plots.illustration(table, decide(table), decide, latent, instance)
    return Drawn(figure, explainer, refused, instance)


def save(figure: Any, where: Path) -> None:
    """Writes the picture, small enough to be kept in the repository."""
    where.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(where, dpi=100, pil_kwargs={"optimize": True})


def main(where: Path) -> None:
    drawn = draw(600 if FAST else ROWS, seed=1)
    save(drawn.figure, where)
    print(f"Three panels are in {where}: {drawn.instance.reason}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "illustration.png"))
