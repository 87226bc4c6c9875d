"""Pictures of rows that are images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from lapace.arrays import Floats
from lapace.plots.style import SOFT, colour, frame, write
from lapace.schema import Schema


def show(
    ax: Axes, schema: Schema, cells: Floats, x: float, y: float, shade: str, width: float = 2.0
) -> None:
    """Draws one image, framed in a colour, in the unit square whose upper left corner is (x, y).

    Grey values run from white at the least of all pixels to black at the greatest, whatever this
    image holds: a faint digit has to look faint.
    """
    lower, upper = min(f.lower for f in schema.features), max(f.upper for f in schema.features)
    image = _channels_last(cells.reshape(cast(tuple[int, ...], schema.shape)))
    if image.ndim == 3:  # colours are shares of their range
        image = np.clip((image - lower) / ((upper - lower) or 1.0), 0.0, 1.0)
    extent = (x + 0.06, x + 0.94, y + 0.94, y + 0.06)
    ax.imshow(image, cmap="gray_r", vmin=lower, vmax=upper, extent=extent)
    ax.add_patch(Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, fill=False, ec=shade, lw=width))


def _channels_last(image: Floats) -> Floats:
    """Returns (h, w) for greys, (h, w, 3) for colours, whether channels come first or last."""
    if image.ndim == 3 and image.shape[0] in (1, 3) and image.shape[2] not in (1, 3):
        image = np.moveaxis(image, 0, 2)
    if image.ndim == 3 and image.shape[2] == 3:
        return image
    return image.reshape(image.shape[0], -1) if image.ndim != 2 else image


def gallery(
    schema: Schema, labels: Sequence[Any], prototypes: Sequence[Any], ax: Axes | None = None
) -> Axes:
    """Draws prototypes of images: a column for each label, the probability under each.

    Args:
        schema: The columns of the images.
        labels: The classifier's labels.
        prototypes: The prototypes, each with number, code, cells, valid and probability.
        ax: Axes to draw on; by default those of a new figure of fitting size.
    """
    columns = [[p for p in prototypes if p.code == k] for k in range(len(labels))]
    columns = [column for column in columns if column]
    tall = max(map(len, columns))
    if ax is None:
        size = (0.3 + 0.95 * len(columns), 0.4 + 1.15 * tall)
        _, ax = plt.subplots(figsize=size, layout="constrained")
    for x, column in enumerate(columns):
        shade, label = colour(column[0].code), str(labels[column[0].code])
        write(ax, x + 0.5, -0.12, label, color=shade, weight="bold", fontsize=10)
        for y, prototype in enumerate(column):
            show(ax, schema, prototype.cells, x, 1.2 * y, shade)
            write(ax, x + 0.5, 1.2 * y + 1.06, _caption(prototype), fontsize=7.5, color=SOFT)
    frame(ax, None)
    ax.set_xlim(0, len(columns))
    ax.set_ylim(1.2 * tall, -0.3)
    return ax


def _caption(prototype: Any) -> str:
    if not prototype.valid:
        return f"{prototype.number}: refused"
    if np.isnan(prototype.probability):
        return str(prototype.number)
    return f"{prototype.number}: {prototype.probability:.0%}"
