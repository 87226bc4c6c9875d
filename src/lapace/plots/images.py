"""Rows that are images, drawn as such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from lapace.arrays import Floats
from lapace.plots.style import INK, SOFT, bare, colour
from lapace.schema import Schema

__all__ = ["gallery", "show"]


def show(
    ax: Axes, schema: Schema, cells: Floats, x: float, y: float, shade: str, width: float = 2.0
) -> None:
    """One image, framed in a colour, in the unit square whose upper left corner is (x, y).

    Grey values run from white at the least of all pixels to black at the greatest, whatever this
    image holds: a faint digit has to look faint.
    """
    lower, upper = min(f.lower for f in schema.features), max(f.upper for f in schema.features)
    image = _channels_last(cells.reshape(cast(tuple[int, ...], schema.shape)))
    if image.ndim == 3:  # colours are shares of their range
        image = np.clip((image - lower) / ((upper - lower) or 1.0), 0.0, 1.0)
    ends = (x + 0.06, x + 0.94, y + 0.94, y + 0.06)
    ax.imshow(image, cmap="gray_r", vmin=lower, vmax=upper, extent=ends)
    frame = Rectangle((x + 0.06, y + 0.06), 0.88, 0.88, fill=False, ec=shade, lw=width)
    ax.add_patch(frame)


def _channels_last(image: Floats) -> Floats:
    """(h, w) for greys, (h, w, 3) for colours, wherever the channels stood."""
    if image.ndim == 3 and image.shape[0] in (1, 3) and image.shape[2] not in (1, 3):
        image = np.moveaxis(image, 0, 2)
    if image.ndim == 3 and image.shape[2] == 3:
        return image
    return image.reshape(image.shape[0], -1) if image.ndim != 2 else image


def gallery(
    schema: Schema,
    labels: Sequence[Any],
    prototypes: Sequence[Any],
    own: Floats | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Prototypes of images: a column for each label, the classifier's probability under each.

    Args:
        schema: Of the images.
        labels: The classifier's labels.
        prototypes: The prototypes, each with number, label, cells, valid and probability.
        own: An image to stand before them.
        ax: Where to draw; by default a figure of fitting size.
    """
    shown = [k for k in range(len(labels)) if any(p.code == k for p in prototypes)]
    columns = {k: [p for p in prototypes if p.code == k] for k in shown}
    tall = max(len(column) for column in columns.values())
    shift = 0 if own is None else 1
    if ax is None:
        size = (0.3 + 0.95 * (len(shown) + shift), 0.4 + 1.15 * tall)
        _, ax = plt.subplots(figsize=size, layout="constrained")
    style: dict[str, Any] = {"ha": "center", "va": "center", "parse_math": False}
    if own is not None:
        show(ax, schema, own, 0.0, 0.0, INK)
    for x, (k, column) in enumerate(columns.items(), start=shift):
        ax.text(x + 0.5, -0.12, str(labels[k]), color=colour(k), weight="bold", **style)
        for y, prototype in enumerate(column):
            show(ax, schema, prototype.cells, x, 1.2 * y, colour(k))
            ax.text(x + 0.5, 1.2 * y + 1.06, _caption(prototype), fontsize=7.5, color=SOFT, **style)
    bare(ax)
    ax.set_xlim(0, len(shown) + shift)
    ax.set_ylim(1.2 * tall, -0.3)
    return ax


def _caption(prototype: Any) -> str:
    if not prototype.valid:
        return f"{prototype.number}: refused"
    known = not np.isnan(prototype.probability)
    return f"{prototype.number}: {prototype.probability:.0%}" if known else str(prototype.number)
