"""The picture of both kinds of path on the two-dimensional illustration."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from sklearn.neighbors import KNeighborsClassifier

from benchmarks.e6 import EXAMPLE
from lapace import Explainer, Search
from lapace.plots.style import INK, SOFT, colour, tint

__all__ = ["both_paths"]

NEAR = ((1.3, 0.3), (-0.9, 1.1), (-0.6, -1.2))  # instances are those nearest to these


def both_paths(where: Path, rows: int = 2400, random_state: int = 1) -> Any:
    """Draws latent points and decoded paths, straight above and dense below.

    Args:
        where: The picture's file.
        rows: Of the table.
        random_state: Of the fit.
    """
    table, labels = runpy.run_path(str(EXAMPLE))["bent_arms"](rows)
    classifier = KNeighborsClassifier(31).fit(table, labels)
    explainer = Explainer(classifier, n_prototypes=3, n_latent=2, random_state=random_state)
    explainer.fit(table)
    denied = table[classifier.predict(table) == "denied"]
    near = [int(np.abs(denied - place).sum(axis=1).argmin()) for place in NEAR]
    figure, axes = plt.subplots(2, 2, figsize=(10.4, 10.0), layout="constrained")
    for path, (latent, decoded) in zip(("straight", "dense"), axes, strict=True):
        search = Search(steps=40, path=path, picks=("first", "middle", "last"))
        found = explainer.explain(denied[near], target="approved", search=search)
        _draw_latent(latent, explainer, found, path)
        _draw_decoded(decoded, explainer, table, found, path)
    where.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(where, dpi=80, pil_kwargs={"optimize": True})
    plt.close(figure)
    return found


def _draw_latent(ax: Any, explainer: Explainer, found: Any, path: str) -> None:
    known = explainer.latent_map(points=900)
    ax.scatter(*known["z"].T, s=5, c=[colour(int(k)) for k in known["label"]], alpha=0.35, lw=0)
    for k in range(len(found)):
        place = explainer.latent_map(found[k], points=1)
        for prototype in found[k].prototypes:
            at = place["prototype_number"].tolist().index(prototype)
            end = place["prototype_z"][at]
            line = place["path_z"][at] if "path_z" in place else [place["instance_z"], end]
            ax.plot(*np.stack(line).T, color=INK, lw=1.4)
            ax.plot(*end, "o", ms=9, color=INK, mec="white")
        ax.plot(*place["instance_z"], "*", ms=16, color=INK, mec="white")
    ax.set_title(f"{path}: latent", loc="left", color=INK)
    ax.set(xticks=[], yticks=[])


def _draw_decoded(ax: Any, explainer: Explainer, table: Any, found: Any, path: str) -> None:
    predict = explainer.classifier_.predict
    low, high = table.min(axis=0) - 0.1, table.max(axis=0) + 0.1
    across, up = np.meshgrid(*(np.linspace(low[k], high[k], 200) for k in (0, 1)))
    codes = predict(np.stack([across.ravel(), up.ravel()], axis=1)).reshape(across.shape)
    shades = [tint(colour(k), 0.15) for k in (0, 1)]
    ax.contourf(across, up, codes, levels=[-0.5, 0.5, 1.5], colors=shades)
    ax.scatter(*table.T, s=5, c=[colour(int(k)) for k in predict(table)], alpha=0.35, lw=0)
    first = found.first().cells
    for rank, k in enumerate(np.flatnonzero(found.prototype >= 0).tolist()):
        cells = found.cells[k, :41]
        ax.plot(*cells.T, color=INK, lw=1.4)
        ax.plot(*cells[-1], "o", ms=9, color=INK, mec="white")
        ax.plot(*cells[0], "*", ms=16, color=INK, mec="white")
        ax.plot(*first[rank], "o", ms=8, mfc="none", mec=SOFT, mew=1.8)
    ax.set_title(f"{path}: decoded", loc="left", color=INK)
    ax.set(xticks=[], yticks=[])
