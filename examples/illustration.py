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
from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap
from sklearn.neighbors import KNeighborsClassifier

from lapace import Explainer, plots
from lapace.plots.style import INK, SOFT, colour, tint
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
    return Illustration(panels(table, explainer, instance), explainer, denied, instance)


TITLES = (
    ("1   The classifier", "its regions, and rows of the table"),
    ("2   What is learned", "latent clusters, each with a centroid"),
    ("3   Counterfactuals", "straight latent lines, decoded: paths"),
)


def panels(table: np.ndarray, explainer: Explainer, instance: InstanceExplanation) -> Any:
    """Draws the classifier's regions, the latent map, and the paths of one instance."""
    figure = plt.figure(figsize=(13.2, 5.1), layout="constrained")
    left, middle, right = figure.subplots(1, 3, gridspec_kw={"wspace": 0.05})
    shades = [colour(int(k)) for k in explainer.classifier_.predict(table)]
    for ax, share, dots in (
        (left, 0.17, {"s": 7, "alpha": 0.65}),
        (right, 0.13, {"s": 4, "alpha": 0.18}),
    ):
        draw_regions(ax, table, explainer, share)
        ax.scatter(*table.T, c=shades, lw=0, rasterized=True, **dots)
        start = instance.explanation.instances[instance.position]
        ax.scatter(*start, marker="*", s=330, color=INK, ec="white", lw=1.2, zorder=7)
    draw_paths(right, instance)
    plots.latent_map(explainer.latent_map(instance, points=700), instance, ax=middle)
    middle.get_legend().remove()
    middle.set(xlabel="", ylabel="", aspect="auto")
    for ax, (name, text) in zip((left, middle, right), TITLES, strict=True):
        ax.set(xticks=[], yticks=[])
        for spine in ax.spines.values():
            spine.set_color("#D5DAE0")
        ax.set_title(name, loc="left", fontsize=14, weight="bold", color=INK, pad=22)
        ax.text(0, 1.015, text, transform=ax.transAxes, va="bottom", color=SOFT, fontsize=11)
    handles, names = middle.get_legend_handles_labels()
    words = {
        "prototype": "centroid; decoded, a prototype",
        f"instance {instance.name}": "an instance",
    }
    names = [words.get(name, name) for name in names]
    below = {"loc": "outside lower center", "ncols": len(names), "frameon": False}
    figure.legend(handles, names, **below, labelcolor=INK, fontsize=11, handletextpad=0.3)
    return figure


def draw_regions(ax: Any, table: np.ndarray, explainer: Explainer, share: float) -> None:
    """Draws the classifier's two regions: tinted areas with a white border."""
    low, high = table.min(axis=0), table.max(axis=0)
    low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
    x, y = (np.linspace(low[k], high[k], 240) for k in (0, 1))
    grid = np.stack([part.ravel() for part in np.meshgrid(x, y)], axis=1)
    codes = explainer.classifier_.predict(grid).reshape(240, 240)
    tints = ListedColormap([tint(colour(k), share) for k in (0, 1)])
    ax.pcolormesh(x, y, codes, cmap=tints, vmin=-0.5, vmax=1.5, rasterized=True)
    ax.contour(x, y, codes, levels=[0.5], colors="white", linewidths=2.0)
    ax.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))


def draw_paths(ax: Any, instance: InstanceExplanation) -> None:
    """Draws the instance's paths; a ring marks the first counterfactual of each."""
    first = instance.explanation[[instance.position]].first()
    target = colour(instance.explanation.labels.index(instance.target))
    for rank, prototype in enumerate(instance.prototypes):
        cells = instance.path(prototype).cells
        width, shade = (2.6, INK) if rank == 0 else (1.6, SOFT)
        ax.plot(*cells.T, color=shade, lw=width, zorder=3)
        ax.scatter(*cells.T, s=9, color=shade, lw=0, zorder=3)
        ax.scatter(*cells[-1], s=240, color=target, ec="white", lw=1.5, zorder=5)
        look = {"ha": "center", "va": "center", "fontsize": 9, "weight": "bold", "zorder": 6}
        ax.text(*cells[-1], str(prototype), color="white", **look)
        flip = first.cells[(first.prototype == prototype) & first.ok]
        ax.scatter(*flip.T, s=46, color="white", ec=shade, lw=1.6, zorder=4)


def main(where: Path) -> None:
    illustration = draw(600 if FAST else ROWS, random_state=1)
    where.parent.mkdir(parents=True, exist_ok=True)
    # Small enough to be kept in the repository.
    illustration.figure.savefig(where, dpi=100, pil_kwargs={"optimize": True})
    print(f"Three panels are in {where}: {illustration.instance.reason}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "illustration.png"))
