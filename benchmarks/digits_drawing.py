"""E5's pictures of paths: one row each, tiles of the same τ under one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.digits import DASH, SIDE
from lapace.result import Explanation

__all__ = ["Strip", "strips"]

TILES = 11  # of a row, from τ = 0 to τ = 1; the instance comes before them
TARGET, OTHER, BOX = "#E07B00", "#8A9099", "#C2185B"


class Strip(NamedTuple):
    """One row: a path of the explanation's first instance."""

    found: Explanation
    prototype: int
    title: str
    instance: Any  # the image the path starts from
    boxed: bool = False  # draw the box that has to stay empty


def strips(rows: Sequence[Strip]) -> Figure:
    """Draws paths of images, one under another.

    Frames are orange where the classifier predicts the target, thick at the first such tile; under
    each is the probability of the target. The dashed box is the part that has to stay empty.
    """
    size = (1.0 * (TILES + 1), 1.72 * len(rows))
    figure, axes = plt.subplots(
        2 * len(rows), TILES + 1, figsize=size, layout="constrained", squeeze=False,
        height_ratios=[0.2, 1.0] * len(rows),
    )  # fmt: skip
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.0, hspace=0.0)
    for head, line, row in zip(axes[::2], axes[1::2], rows, strict=True):
        path = int(np.flatnonzero(row.found.prototype == row.prototype)[0])
        last = row.found.tau.shape[1] - 3  # the refined first and the midpoint follow the grid
        steps = np.linspace(0, last, TILES).round().astype(int)
        valid = row.found.valid[path, steps] == 1
        first = int(valid.argmax()) if valid.any() else -1
        _tile(line[0], np.asarray(row.instance), "instance", OTHER, 0.8)
        for ax in head:  # the title reaches over the tiles below
            ax.set(xticks=[], yticks=[], frame_on=False)
        head[0].text(0.0, 0.2, row.title, fontsize=10, in_layout=False)
        for k, (ax, step) in enumerate(zip(line[1:], steps, strict=True)):
            probability = row.found.probability[path, step]
            text = f"τ = {row.found.tau[path, step]:.1f}\np = {probability:.2f}"
            colour = TARGET if valid[k] else OTHER
            image = row.found.cells[path, step].reshape(SIDE, SIDE)
            _tile(ax, image, text, colour, 3.0 if k == first else 1.2)
            if row.boxed:
                _box(ax)
    return figure


def _tile(ax: Any, image: Any, text: str, colour: str, width: float) -> None:
    ax.imshow(image, cmap="gray_r", vmin=0.0, vmax=1.0)
    ax.set(xticks=[], yticks=[])
    ax.set_xlabel(text, fontsize=9, labelpad=2)
    for spine in ax.spines.values():
        spine.set(color=colour, linewidth=width)


def _box(ax: Any) -> None:
    """The rows and columns of the dash."""
    rows, columns = np.divmod(DASH, SIDE)
    corner = (columns.min() - 0.5, rows.min() - 0.5)
    width, height = float(np.ptp(columns)) + 1, float(np.ptp(rows)) + 1
    ax.add_patch(Rectangle(corner, width, height, fill=False, ec=BOX, lw=1.0, ls="--"))
