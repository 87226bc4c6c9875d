"""Pictures of groups of instances: the costs and the changes of their answers."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lapace.plots import style
from lapace.plots.style import FAINT, INK, SOFT, colour, counted, readable, shorten, tint

FEATURES = 10  # shown at most
WIDE = 7  # groups beyond which their names are turned
COLOUR = colour(0)


@rc_context(style.LITERAL)
def cohort(compared: Any) -> Figure:
    """Draws groups side by side: what their answers change, who has one, what it costs.

    A cell of the upper panel is the share of a group's answers that change a feature; the features
    that change most often come first. The bars below are 95% intervals.

    Args:
        compared: Groups, as `lapace.apps.cohorts.cohort` returns them.

    Examples:
        >>> from lapace import Explainer
        >>> from lapace.apps.cohorts import cohort as compare
        >>> rng = np.random.default_rng(0)
        >>> table = [{"income": int(i), "home": "ab"[i % 2]} for i in rng.integers(0, 99, 200)]
        >>> bank = lambda rows: ["yes" if r["income"] > 60 else "no" for r in rows]
        >>> explainer = Explainer(bank, n_prototypes=1).fit(table)
        >>> figure = cohort(compare(explainer.explain(table[:30], target="yes"), by="home"))
        >>> [ax.get_title(loc="left") for ax in figure.axes]
        ['What changes, how often, by home', 'Who has an answer', 'What it costs']
    """
    costs, lines = compared.cost_lines(), compared.feature_lines()
    names, features = costs["group"], list(dict.fromkeys(lines["feature"]))[:FEATURES]
    heights = [1.2 + 0.36 * max(1, len(features)), 1.0 + 0.36 * len(names)]
    figure, axes = plt.subplot_mosaic(
        [["features", "features"], ["share", "cost"]],
        figsize=(9.6, sum(heights) + 0.5),
        height_ratios=heights,
        layout="constrained",
    )
    _shares(axes["features"], lines, features, dict(zip(names, costs["answered"], strict=True)))
    _intervals(axes["share"], costs, "share")
    _intervals(axes["cost"], costs, "cost")
    axes["share"].set_xlim(0, 1.02)
    axes["share"].xaxis.set_major_formatter("{x:.0%}")
    axes["cost"].set_xlim(left=0)
    axes["cost"].locator_params(axis="x", nbins=6)
    axes["cost"].set_yticklabels([])
    by = f", by {compared.by}" if len(names) > 1 else ""
    caption = "share of a group's answers that change it"
    _finish(axes["features"], f"What changes, how often{by}", caption)
    _finish(axes["share"], "Who has an answer", "share of those who need one; bar: 95% interval")
    _finish(axes["cost"], "What it costs", "mean distance to the nearest answer; bar: 95% interval")
    return figure


def _intervals(ax: Axes, costs: dict[str, list[Any]], what: str) -> None:
    """Draws a dot and an interval for each group."""
    names = costs["group"]
    for k, interval in enumerate(
        zip(costs[what], costs[f"{what}_low"], costs[f"{what}_high"], strict=True)
    ):
        value, low, high = np.array(interval, dtype=float)
        if np.isnan(value):
            ax.text(0, k, " none", va="center", color=SOFT, fontsize=9)
            continue
        ax.plot([low, high], [k, k], color=colour(k), lw=3, alpha=0.45)  # no line where it is NaN
        ax.plot([value], [k], "o", color=colour(k), ms=7)
    ax.set_yticks(range(len(names)), [shorten(n, 24) for n in names])
    ax.set_ylim(len(names) - 0.4, -0.6)


def _shares(
    ax: Axes, lines: dict[str, list[Any]], features: list[str], answered: dict[str, int]
) -> None:
    """Draws a table of features and groups: the darker, the more answers change the feature."""
    names = list(answered)
    for group, name, share in zip(lines["group"], lines["feature"], lines["share"], strict=True):
        if name in features:
            x, y = names.index(group), features.index(name)
            ax.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=tint(COLOUR, share)))
            ink = "white" if share > 0.75 else INK
            ax.text(x, y, f"{share:.0%}", ha="center", va="center", color=ink, fontsize=9)
    labels = [
        f"{shorten(name, 24)}\n{counted(count, 'answer')}" for name, count in answered.items()
    ]
    ax.xaxis.tick_top()
    ax.set_xticks(range(len(names)), labels, rotation=90 if len(names) > WIDE else 0)
    ax.set_yticks(range(len(features)), [readable(name) for name in features])
    ax.set_xlim(-0.5, len(names) - 0.5)
    ax.set_ylim(max(1, len(features)) - 0.5, -0.5)
    ax.tick_params(length=0)


def _finish(ax: Axes, title: str, caption: str) -> None:
    style.title(ax, title, fontsize=11)
    ax.set_xlabel(caption, color=SOFT, fontsize=9, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(axis="x", colors=SOFT, labelsize=9)
    ax.tick_params(axis="y", colors=INK, labelsize=9)
