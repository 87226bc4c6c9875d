"""The idea in one picture: `python examples/illustration.py [where.png]`.

A made-up table of two numbers: six arms of a whirl, every other one approved. A classifier, and
what lapace makes of both, in three panels. The picture opens the README.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from sklearn.neighbors import KNeighborsClassifier

from lapace import Explainer, plots

FAST = bool(os.environ.get("LAPACE_FAST"))  # fewer rows, for the tests


def whirl(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Six bent arms around a centre, labelled in turn: rows (n, 2), and their labels."""
    rng = np.random.default_rng(seed)
    arm = rng.integers(0, 6, rows)
    out = 1.0 + 0.34 * rng.standard_normal(rows)
    aside = 0.07 * rng.standard_normal(rows)
    angle = arm * np.pi / 3 + 0.75 * np.exp(out - 1.0)
    x = out * np.cos(angle) - aside * np.sin(angle)
    y = out * np.sin(angle) + aside * np.cos(angle)
    return np.stack([x, y], axis=1).round(3), np.where(arm % 2 == 0, "approved", "denied")


def main(where: Path) -> None:
    rows, labels = whirl(600 if FAST else 2400)
    classifier = KNeighborsClassifier(31).fit(rows, labels)
    explainer = Explainer(classifier, clusters=3, latent=2, seed=1).fit(rows)

    refused = rows[classifier.predict(rows) == "denied"]
    someone = np.abs(refused - [1.3, 0.3]).sum(axis=1).argmin()  # far out on an arm
    person = explainer.explain(refused[[someone]], target="approved")[0]

    decide = explainer.classifier_.predict
    latent = explainer.latent_map(person, points=700)
    picture = plots.illustration(rows, decide(rows), decide, latent, person)
    where.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(where, dpi=100, pil_kwargs={"optimize": True})
    print(f"Three panels are in {where}: {person.reason}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "illustration.png"))
