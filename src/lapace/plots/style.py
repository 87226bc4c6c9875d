"""How every picture looks: colours, words, and frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from lapace.errors import InputError
from lapace.result import Explanation, InstanceExplanation

__all__ = [
    "FAINT",
    "INK",
    "PALE",
    "PAPER",
    "ROWS",
    "SOFT",
    "bare",
    "colour",
    "counted",
    "frame",
    "headline",
    "literal",
    "named",
    "one",
    "short",
    "tint",
]

# Okabe and Ito's colours, but for the yellow, which does not show on white, and two of Tol's.
COLOURS = (
    *("#0072B2", "#E07B00", "#009E73", "#B5508A", "#56B4E9"),
    *("#8A5A00", "#6E6E6E", "#D55E00", "#332288", "#999933"),
)
INK, SOFT, PALE, FAINT = "#22303C", "#6B7785", "#A9B3BD", "#D5DAE0"
PAPER = "#F4F6F8"
ROWS = 14  # features a picture shows at most; it says how many it leaves out


def one(instance: Any, function: str) -> None:
    """Refuses a whole explanation, or anything else, where one instance is to be drawn."""
    if isinstance(instance, Explanation):
        raise InputError(
            f"plots.{function} draws one instance, and this is an explanation of {len(instance)}: hand "
            "over one of them, such as answer[0]."
        )
    if not isinstance(instance, InstanceExplanation):
        raise InputError(
            f"plots.{function} draws one instance of an explanation, such as answer[0], not a "
            f"{type(instance).__name__}."
        )


def colour(label: int) -> str:
    """The colour of a label, by its position among the labels.

    Examples:
        >>> colour(0) != colour(1)
        True
    """
    return COLOURS[label % len(COLOURS)]


def tint(base: str, share: float) -> tuple[float, float, float]:
    """A colour thinned with white: `share` of it is left."""
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(base))
    return red, green, blue


def short(text: str, length: int) -> str:
    """A text cut to a length.

    Examples:
        >>> short("unemployed", 6)
        'unemp…'
    """
    return text if len(text) <= length else text[: length - 1] + "…"


def named(name: str) -> str:
    """A column's name as one would say it."""
    return short(name.replace("_", " "), 24)


def counted(count: int, word: str) -> str:
    """So many of something.

    Examples:
        >>> counted(1, "change"), counted(3, "change")
        ('1 change', '3 changes')
    """
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def headline(ax: Axes, text: str, **style: Any) -> None:
    """The title of a picture."""
    style = {"fontsize": 13, "weight": "bold", "color": INK, "parse_math": False, **style}
    ax.set_title(text, loc="left", **style)


def literal(texts: Iterable[Text]) -> None:
    """Has texts taken as they are: a dollar sign in them begins no formula."""
    for text in texts:
        text.set_parse_math(False)


def bare(ax: Axes) -> None:
    """No ticks and no frame: only what is drawn."""
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)


def frame(ax: Axes) -> None:
    """A pale frame without ticks, where only places matter."""
    for spine in ax.spines.values():
        spine.set_color(FAINT)
    ax.set_xticks([])
    ax.set_yticks([])
