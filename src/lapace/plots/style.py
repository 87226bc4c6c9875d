"""Colours, text and frames that all pictures share."""

from __future__ import annotations

from io import StringIO
from typing import Any

from matplotlib import pyplot as plt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import FigureBase

from lapace.errors import InputError
from lapace.result import Explanation, InstanceExplanation

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


def svg(figure: FigureBase) -> str:
    """Returns a picture as an element of a page, the same for the same picture, and closes it."""
    drawn, whole = StringIO(), figure.get_figure(root=True)
    with rc_context({"svg.hashsalt": "lapace"}):
        whole.savefig(drawn, format="svg", metadata={"Date": None})
    plt.close(whole)
    return drawn.getvalue()[drawn.getvalue().index("<svg") :]
