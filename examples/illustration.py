"""The idea in one picture: `python examples/illustration.py [where.png]`.

A generated table of two numbers: six bent arms around a centre, every other one approved. Three
panels show the classifier's regions, the latent clusters with their centroids, and the decoded
paths of one denied instance. It is the README's first picture.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.neighbors import KNeighborsClassifier

from lapace import Explainer, plots
from lapace.result import InstanceExplanation

FAST = bool(os.environ.get("LAPACE_FAST"))  # fewer rows, for the tests
ROWS = 2400


def bent_arms(rows: int, random_state: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Six bent arms, labelled in turn: rows (n, 2), and their labels."""
    rng = np.random.default_rng(random_state)
    arm = rng.integers(0, 6, rows)
    out = 1.0 + 0.34 * rng.standard_normal(rows)
    aside = 0.07 * rng.standard_normal(rows)
    angle = arm * np.pi / 3 + 0.75 * np.exp(out - 1.0)
    x = out * np.cos(angle) - aside * np.sin(angle)
    y = out * np.sin(angle) + aside * np.cos(angle)
    return np.stack([x, y], axis=1).round(3), np.where(arm % 2 == 0, "approved", "denied")


class Illustration(NamedTuple):
    """The picture, and what it was made from."""

    figure: Any
    explainer: Explainer
    denied: np.ndarray
    instance: InstanceExplanation


def draw(rows: int, random_state: int) -> Illustration:
    """Fits, explains one instance far out on an arm, and draws all of it in three panels."""
    table, labels = bent_arms(rows)
    classifier = KNeighborsClassifier(31).fit(table, labels)
    explainer = Explainer(classifier, n_prototypes=3, n_latent=2, random_state=random_state).fit(
        table
    )
    denied = table[classifier.predict(table) == "denied"]
    far_out = int(np.abs(denied - [1.3, 0.3]).sum(axis=1).argmin())
    instance = explainer.explain(denied[[far_out]], target="approved")[0]
    predict = explainer.classifier_.predict  # labels as positions
    latent = explainer.latent_map(instance, points=700)
    figure = plots.illustration(table, predict(table), predict, latent, instance)
    return Illustration(figure, explainer, denied, instance)


def save(figure: Any, where: Path) -> None:
    """Writes the picture, small enough to be kept in the repository."""
    where.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(where, dpi=100, pil_kwargs={"optimize": True})


def main(where: Path) -> None:
    illustration = draw(600 if FAST else ROWS, random_state=1)
    save(illustration.figure, where)
    save(plots.dark(illustration.figure), where.with_stem(f"{where.stem}-dark"))  # for dark pages
    print(f"Three panels are in {where}: {illustration.instance.reason}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "illustration.png"))
