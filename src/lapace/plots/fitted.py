"""Pictures of a fit: prototypes as a table, or as images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from lapace.arrays import Floats, Ints
from lapace.errors import InputError
from lapace.plots import style
from lapace.plots.style import SOFT, colour, shorten, tint, write
from lapace.schema import Feature, Schema


@rc_context(style.LITERAL)
def prototypes(explainer: Any, label: Any = None, ax: Axes | None = None) -> Axes:
    """Draws prototypes side by side, a column each, and highlights their differences.

    A number is shaded by how far above or below the others it lies, in the ranks of the training
    table, and a category where it is not the most frequent one. Prototypes of images are drawn as
    images, a column for each label.

    Args:
        explainer: A fitted explainer; `schema_`, `classes_` and `prototypes_` are read.
        label: Only the prototypes of this label.
        ax: Axes to draw on; by default those of a new figure of fitting size.

    Examples:
        >>> from types import SimpleNamespace as Some
        >>> schema = Schema.infer([{"age": 20 + i % 50, "home": "ab"[i % 2]} for i in range(100)])
        >>> young, old = (Some(number=k, label=label, code=k, cells=np.array([30.0 + 20 * k, k]),
        ...     valid=True, probability=0.9) for k, label in enumerate(("no", "yes")))
        >>> bank = Some(schema_=schema, classes_=("no", "yes"), prototypes_=(young, old))
        >>> [text.get_text() for text in prototypes(bank).texts if "30" in text.get_text()]
        ['30']
    """
    classes, schema = explainer.classes_, explainer.schema_
    chosen = [p for p in explainer.prototypes_ if label is None or p.label == label]
    if not chosen:
        listed = ", ".join(map(repr, classes))
        raise InputError(f"There are no prototypes of {label!r}. The labels are {listed}.")
    if schema.shape is not None:
        return _gallery(schema, classes, chosen, ax)
    contrast = _contrast(schema, np.stack([p.cells for p in chosen]))  # (prototypes, d)
    largest = np.nan_to_num(np.abs(contrast), nan=1.0).max(axis=0)
    rows = np.sort(np.argsort(-largest, kind="stable")[: 2 * style.ROWS])
    ax = _table(schema, rows, max(3, len(chosen)), ax)  # three for the legend
    style.title(ax, "Prototypes" if label is None else f"Prototypes of {label}")
    _legend(ax, len(rows), len(schema.features) - len(rows))
    for x, p in enumerate(chosen):
        note = "" if np.isnan(p.probability) else f"{p.probability:.0%}"
        _cell(ax, x, -2.3, str(p.label), colour(p.code), color="white", weight="bold")
        write(ax, x + 0.5, -0.95, str(p.number), weight="bold", fontsize=9.5)
        write(ax, x + 0.5, -0.3, note if p.valid else "refused", color=SOFT)
        for y, i in enumerate(rows):
            _cell(ax, x, y, schema.features[i].text(p.cells[i]), _shade(float(contrast[x, i])))
    return ax


def _contrast(schema: Schema, cells: Floats) -> Floats:
    """Returns how far cells lie above or below the usual cell of their column, from -1 to 1.

    It is NaN where they differ and neither is more: another category, or a missing number.
    """
    contrast = np.zeros_like(cells)
    for i, feature in enumerate(schema.features):
        values = cells[:, i]
        if feature.numeric:
            scores = _scores(feature, values)
            contrast[:, i] = np.clip((scores - np.median(scores)) / 1.5, -1, 1)
        else:
            levels, counts = np.unique(values, return_counts=True)
            contrast[:, i] = np.where(values == levels[counts.argmax()], 0.0, np.nan)
    return contrast


def _scores(feature: Feature, values: Floats) -> Floats:
    """Returns values by rank where the ranks are known, else by their share of the range."""
    if feature.knots is None:
        return 4 * (values - feature.lower) / feature.span
    return np.where(np.isnan(values), np.nan, feature.knots.scores(np.nan_to_num(values)))


MORE, LESS, OTHER = "#5B3A8C", "#8C5A2B", "#C9A227"  # none the colour of a first label


def _shade(contrast: float) -> Any:
    """Returns the colour of a cell."""
    if abs(contrast) < 0.05:
        return style.PAPER
    if np.isnan(contrast):
        return tint(OTHER, 0.4)
    return tint(MORE if contrast > 0 else LESS, 0.08 + 0.42 * abs(contrast))


def _table(schema: Schema, rows: Ints, columns: int, ax: Axes | None) -> Axes:
    """Returns axes for a table with the names of features on the left."""
    if ax is None:
        size = (2.0 + 0.95 * columns, 1.3 + 0.3 * len(rows))
        _, ax = plt.subplots(figsize=size, layout="constrained")
    style.frame(ax, None)
    ax.set_xlim(-2.0, columns)
    ax.set_ylim(len(rows) + (1.8 if len(rows) < len(schema.features) else 1.0), -2.4)
    for y, i in enumerate(rows):
        name = style.readable(schema.features[i].name)
        write(ax, -0.1, y + 0.5, name, ha="right", fontsize=9.5)
    return ax


def _cell(ax: Axes, x: float, y: float, text: str, face: Any, **look: Any) -> None:
    ax.add_patch(Rectangle((x + 0.03, y + 0.05), 0.94, 0.9, color=face, lw=0))
    size = 8.5 if len(text) <= 12 else 6.5
    write(ax, x + 0.5, y + 0.5, shorten(text, 18), fontsize=size, **look)


def _legend(ax: Axes, rows: int, hidden: int) -> None:
    """Writes what shades and lines of the heading mean, and how many features are left out."""
    look = {"ha": "right", "color": SOFT}
    write(ax, -0.1, -0.95, "prototype", fontsize=9.5, **look)
    write(ax, -0.1, -0.3, "probability of its label", **look)
    y = rows + 0.6
    write(ax, -0.1, y, "than most here", **look)
    for x, shade, text in ((0, MORE, "more"), (1, LESS, "less"), (2, OTHER, "other")):
        ax.scatter([x + 0.15], [y], marker="s", s=60, color=tint(shade, 0.45))
        write(ax, x + 0.32, y, text, ha="left", color=SOFT)
    if hidden:
        text = f"{style.counted(hidden, 'column')} that hardly differ are not shown"
        write(ax, -0.1, y + 0.8, text, ha="left", color=SOFT)


def _gallery(
    schema: Schema, labels: Sequence[Any], prototypes: Sequence[Any], ax: Axes | None
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
            style.show_image(ax, schema, prototype.cells, x, 1.2 * y, shade)
            write(ax, x + 0.5, 1.2 * y + 1.06, _caption(prototype), fontsize=7.5, color=SOFT)
    style.frame(ax, None)
    ax.set_xlim(0, len(columns))
    ax.set_ylim(1.2 * tall, -0.3)
    return ax


def _caption(prototype: Any) -> str:
    if not prototype.valid:
        return f"{prototype.number}: refused"
    if np.isnan(prototype.probability):
        return str(prototype.number)
    return f"{prototype.number}: {prototype.probability:.0%}"
