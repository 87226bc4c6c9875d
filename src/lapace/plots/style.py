"""Colours, text, frames and images that all pictures share."""

from __future__ import annotations

from io import StringIO
from typing import Any, cast

import numpy as np
from matplotlib import pyplot as plt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import FigureBase
from matplotlib.patches import Rectangle

from lapace.arrays import Floats
from lapace.errors import InputError
from lapace.result import Explanation, InstanceExplanation
from lapace.schema import Schema

# Okabe and Ito's colours, but for the yellow, which does not show on white, and two of Tol's.
COLOURS = (
    *("#0072B2", "#E07B00", "#009E73", "#B5508A", "#56B4E9"),
    *("#8A5A00", "#6E6E6E", "#D55E00", "#332288", "#999933"),
)
INK, SOFT, PALE, FAINT = "#22303C", "#6B7785", "#A9B3BD", "#D5DAE0"
PAPER = "#F4F6F8"
LITERAL: dict[Any, Any] = {"text.parse_math": False}  # a dollar sign begins no formula
ROWS = 14  # features a picture shows at most; it says how many it leaves out


def check_instance(instance: Any, function: str) -> None:
    """Refuses a whole explanation, or anything else, where one instance is to be drawn."""
    if not isinstance(instance, InstanceExplanation):
        whole = isinstance(instance, Explanation)
        kind = f"all {len(instance)}" if whole else f"a {type(instance).__name__}"
        raise InputError(
            f"plots.{function} draws one instance of an explanation, such as explanation[0], not "
            f"{kind}."
        )


def colour(label: int) -> str:
    """Returns the colour of a label, given its position among the labels.

    Examples:
        >>> colour(0) != colour(1)
        True
    """
    return COLOURS[label % len(COLOURS)]


def tint(base: str, share: float) -> tuple[float, float, float]:
    """Returns a colour mixed with white, of which it keeps a share."""
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(base))
    return red, green, blue


def shorten(text: str, length: int) -> str:
    """Returns a text cut to a length.

    Examples:
        >>> shorten("unemployed", 6)
        'unemp…'
    """
    return text if len(text) <= length else text[: length - 1] + "…"


def readable(name: str) -> str:
    """Returns a column's name without underscores, cut to 24 letters."""
    return shorten(name.replace("_", " "), 24)


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun.

    Examples:
        >>> counted(1, "change"), counted(3, "change")
        ('1 change', '3 changes')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def write(ax: Axes, x: float, y: float, text: str, **style: Any) -> None:
    """Writes a text, by default centred on a point."""
    style = {"ha": "center", "va": "center", "color": INK, "fontsize": 8.5, **style}
    ax.text(x, y, text, **style)


def title(ax: Axes, text: str, **style: Any) -> None:
    """Writes the title of a picture."""
    style = {"fontsize": 13, "weight": "bold", "color": INK, **style}
    ax.set_title(text, loc="left", **style)


def frame(ax: Axes, colour: str | None = FAINT) -> None:
    """Removes ticks and draws a pale frame; with None no frame either."""
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(colour is not None)
        spine.set_color(colour or FAINT)


def show_image(
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


def svg(figure: FigureBase) -> str:
    """Returns a picture as an element of a page, the same for the same picture, and closes it."""
    drawn, whole = StringIO(), figure.get_figure(root=True)
    with rc_context({"svg.hashsalt": "lapace"}):
        whole.savefig(drawn, format="svg", metadata={"Date": None})
    plt.close(whole)
    return drawn.getvalue()[drawn.getvalue().index("<svg") :]
