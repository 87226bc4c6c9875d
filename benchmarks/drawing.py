"""Pictures of the results, from the tidy table alone: one PNG beside a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from PIL import Image

from benchmarks.comparison import METRICS, PICKS, SWEPT, Method, Metric, methods
from benchmarks.figures import Figures

__all__ = ["metrics", "paths", "save", "sweeps"]

COLOURS = {"default": "#00796b", "paper": "#8a5a00", "baselines": "#3b6ea8"}
MODELS = {"default": "lapace's default", "paper": "the paper's model"}
LEVELS = {"probability": 0.5, "lof": 1.0, "density": 5.0}  # what is drawn as a dotted line
LEVELS_FIRST = "probability"
STYLES = dict(zip(PICKS[:3], ("#3b6ea8", "#8a5a00", "#00796b"), strict=True))


def save(figure: Any, path: Path, *, dpi: int = 80, colours: int = 64) -> None:
    """Writes a picture, with few colours so that it stays small."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi, bbox_inches="tight", pad_inches=0.05)
    plt.close(figure)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(colours)
    small.save(path, optimize=True)


def metrics(figures: Figures, pairs: Sequence[str]) -> Any:
    """E2: a panel per metric, a line per method, a dot per pair and a bar at their mean."""
    found = methods(figures, pairs)
    size = (15, 1.2 + 0.75 * len(found))
    figure, axes = plt.subplots(-(-len(METRICS) // 3), 3, figsize=size, layout="constrained")
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
                if name == LEVELS_FIRST:
                    title = "sampled endpoint" if label == "-1" else f"prototype {label}"
                    ax.set(ylim=(0, 1))
                    ax.set_title(title, fontsize=8)
                ax.tick_params(labelsize=7)
    handles = [plt.Line2D([], [], color=COLOURS[r], label=t) for r, t in MODELS.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    return figure


def _curves(ax: Any, table: pd.DataFrame, level: float) -> None:
    """One curve per recipe; prototypes of the same number are not the same."""
    ax.axhline(level, color="grey", ls=":", lw=1)
    for recipe, own in table.groupby("recipe"):
        curve = own.sort_values("tau")
        spread = curve["deviation"].fillna(0)
        ax.plot(curve["tau"], curve["mean"], color=COLOURS[recipe])
        low, high = curve["mean"] - spread, curve["mean"] + spread
        ax.fill_between(curve["tau"], low, high, color=COLOURS[recipe], alpha=0.18, lw=0)


def sweeps(table: pd.DataFrame, pairs: Sequence[str]) -> Any:
    """The sweep: the picks over the number of clusters, a panel per metric and pair."""
    figures = Figures(table)
    size = (3 * len(SWEPT), 2.4 * len(pairs))
    figure, axes = plt.subplots(
        len(pairs), len(SWEPT), figsize=size, layout="constrained", squeeze=False
    )
    for row, pair in zip(axes, pairs, strict=True):
        counts = sorted(set(table.loc[table["pair"] == pair, "label"]) - {""}, key=int)
        for ax, metric in zip(row, SWEPT, strict=True):
            scale = 100 if metric.spec.endswith("p") else 1
            for recipe, dashes in (("default", "-"), ("paper", ":")):
                for pick, colour in STYLES.items():
                    lines = [figures.line(pair, recipe, pick, count) for count in counts]
                    values = [scale * line[metric.key].mean for line in lines]
                    if not all(map(math.isnan, values)):
                        label = pick if recipe == "default" else f"{pick}, paper's model"
                        style = {"color": colour, "ls": dashes, "marker": "o", "ms": 3}
                        ax.plot(list(map(int, counts)), values, label=label, **style)
            ax.set_title(f"{pair}: {metric.head}", fontsize=8)
            ax.tick_params(labelsize=7)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=8
    )
    figure.supxlabel("clusters per label", fontsize=8)
    return figure
