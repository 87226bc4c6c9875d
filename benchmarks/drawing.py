"""Pictures: of the tidy table, one PNG beside a page, and of the digits of E5."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patches import Rectangle
from PIL import Image

from benchmarks.comparison import METRICS, Method, Metric, methods
from benchmarks.digits import DASH, SIDE
from benchmarks.figures import Figures
from lapace.result import Explanation

COLOURS = {
    "default": "#00796b", "paper": "#d98200", "printed": "#7a5195", "gumbel": "#c2568a",
    "baselines": "#3b6ea8",
}  # fmt: skip
CURVES = {"default": "lapace's default", "printed": "as printed", "paper": "as read here"}  # of E4
LEVELS = {"probability": 0.5, "lof": 1.0, "density": 0.05}  # what is drawn as a dotted line


def save(figure: Any, path: Path, *, dpi: int = 80) -> None:
    """Writes a picture, with few colours so that it stays small."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi, bbox_inches="tight", pad_inches=0.05)
    plt.close(figure)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(64)
    small.save(path, optimize=True)


def metrics(figures: Figures, pairs: Sequence[str]) -> Any:
    """E2: a panel per metric, a line per method, a dot per pair and a bar at their mean."""
    found = methods(figures, pairs)
    size = (12, 1.2 + 0.95 * len(found))
    figure, axes = plt.subplots(len(METRICS) // 2, 2, figsize=size, layout="constrained")
    for ax, metric in zip(axes.flat, METRICS, strict=True):
        _dots(ax, figures, pairs, found, metric)
    return figure


def _dots(
    ax: Any, figures: Figures, pairs: Sequence[str], found: Sequence[Method], metric: Metric
) -> None:
    scale = 100 if metric.spec.endswith("p") else 1
    for place, method in enumerate(found):
        values = [
            scale * figure.mean
            for pair in pairs
            if (figure := method.line(figures, pair)[metric.key]).repeats
        ]
        if values:
            colour = COLOURS[method.recipe]
            ax.plot(values, [place] * len(values), "o", color=colour, alpha=0.55, ms=5, mew=0)
            ax.plot(sum(values) / len(values), place, "|", color=colour, ms=14, mew=2.5)
    ax.set_yticks(range(len(found)), [method.name for method in found])
    ax.set(ylim=(len(found) - 0.5, -0.5), xscale="log" if metric.log else "linear")
    ax.set_title(f"{metric.title} {metric.head[-1]}", loc="left", fontsize=9)
    ax.grid(axis="y", alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)


def paths(table: pd.DataFrame, pairs: Sequence[str]) -> Any:
    """E4: for each pair rows of probability, LOF and density, a panel per endpoint."""
    split = table["metric"].str.partition("@")
    table = table.assign(name=split[0], tau=split[2].astype(float))
    table = table[table["label"] != "all"]
    labels = {p: sorted(set(table.loc[table["pair"] == p, "label"]), key=int) for p in pairs}
    columns, rows = max(map(len, labels.values())), len(LEVELS)
    size = (2.3 * columns, 1.3 * rows * len(pairs))
    figure, axes = plt.subplots(
        rows * len(pairs), columns, figsize=size, layout="constrained", squeeze=False, sharey="row"
    )
    for k, pair in enumerate(pairs):
        for row, name in zip(axes[rows * k :], LEVELS, strict=False):
            row[0].set_ylabel(f"{pair}\n{name.replace('lof', 'LOF')}", fontsize=8)
            for ax in row[len(labels[pair]) :]:
                ax.set_visible(False)
            for ax, label in zip(row, labels[pair], strict=False):
                own = table[(table["pair"] == pair) & (table["label"] == label)]
                _curves(ax, own[own["name"] == name], LEVELS[name])
                if name == "probability":
                    title = "sampled endpoint" if label == "-1" else f"prototype {label}"
                    ax.set(ylim=(0, 1))
                    ax.set_title(title, fontsize=8)
                ax.tick_params(labelsize=7)
    handles = [plt.Line2D([], [], color=COLOURS[r], label=t) for r, t in CURVES.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    return figure


def _curves(ax: Any, table: pd.DataFrame, level: float) -> None:
    """One curve per recipe; prototypes of the same number are not the same."""
    ax.axhline(level, color="grey", ls=":", lw=1)
    for recipe in CURVES:
        curve = table[table["recipe"] == recipe].sort_values("tau")
        spread = curve["deviation"].fillna(0)
        ax.plot(curve["tau"], curve["mean"], color=COLOURS[recipe])
        low, high = curve["mean"] - spread, curve["mean"] + spread
        ax.fill_between(curve["tau"], low, high, color=COLOURS[recipe], alpha=0.18, lw=0)


# ------------------------------------------------------------------------------------------------
# Digits

TILES = 11  # of a row, from τ = 0 to τ = 1; the instance comes before them
TARGET, OTHER, BOX = "#E07B00", "#8A9099", "#C2185B"


class Strip(NamedTuple):
    """One row: a path of the explanation's first instance."""

    found: Explanation
    prototype: int
    title: str
    instance: Any  # the image the path starts from
    boxed: bool = False  # draw the box that has to stay empty


def strips(rows: Sequence[Strip]) -> Any:
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
