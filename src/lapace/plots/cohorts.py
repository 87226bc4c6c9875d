"""Pictures of groups of instances: the costs and the changes of their answers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lapace.plots import style
from lapace.plots.style import FAINT, INK, SOFT, colour, readable, shorten

FEATURES = 10  # shown at most


@rc_context(style.LITERAL)
def cohort(compared: Any) -> Figure:
    """Draws groups side by side: the share with an answer, its cost, and its changes.

    The bars are 95% intervals. A dot in the panel below is the share of a group's answers that
    change a feature; the features that change most often come first.

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
        ['Has an answer', 'What it costs', 'What it changes']
    """
    costs = compared.cost_lines()
    names, features = costs["group"], _features(compared)
    heights = [1.0 + 0.42 * len(names), 0.9 + 0.42 * max(1, len(features))]
    figure, axes = plt.subplot_mosaic(
        [["share", "cost"], ["features", "features"]],
        figsize=(9.6, sum(heights) + 0.5),
        height_ratios=heights,
        layout="constrained",
    )
    _intervals(axes["share"], costs, "share")
    _intervals(axes["cost"], costs, "cost")
    axes["share"].set_xlim(0, 1.02)
    axes["share"].xaxis.set_major_formatter("{x:.0%}")
    axes["cost"].set_xlim(left=0)
    axes["cost"].locator_params(axis="x", nbins=6)
    axes["cost"].set_yticklabels([])
    _shares(axes["features"], compared, features)
    verdict = "\n".join(["share of the answers that change it", *compared.sentences[1:2]])
    _finish(axes["share"], "Has an answer", "share of those who need one; bar: 95% interval")
    _finish(axes["cost"], "What it costs", "mean distance to the nearest answer; bar: 95% interval")
    _finish(axes["features"], "What it changes", verdict)
    by = "all instances" if len(names) == 1 else f"groups by {compared.by}"
    figure.suptitle(f"Answers compared: {by}", x=0.01, ha="left", weight="bold", color=INK)
    return figure


def _features(compared: Any) -> list[str]:
    """Returns the features that answers change, the most often changed first."""
    lines, total = compared.feature_lines(), Counter[str]()
    for name, count in zip(lines["feature"], lines["changed"], strict=True):
        total[name] += count
    return sorted(total, key=lambda name: (-total[name], name))[:FEATURES]


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


def _shares(ax: Axes, compared: Any, features: list[str]) -> None:
    """Draws a dot for each feature and group: the share of answers that change it."""
    lines, names = compared.feature_lines(), list(compared.shown_groups)
    for group, name, share in zip(lines["group"], lines["feature"], lines["share"], strict=True):
        if name in features:
            k, y = names.index(group), features.index(name)
            ax.plot([share], [y], "o", color=colour(k), ms=7, alpha=0.85)
    for k, name in enumerate(names):
        ax.plot([], [], "o", color=colour(k), label=shorten(name, 24))
    ax.set_yticks(range(len(features)), [readable(name) for name in features])
    ax.set_ylim(max(1, len(features)) - 0.4, -0.6)
    ax.set_xlim(-0.02, 1.02)
    ax.xaxis.set_major_formatter("{x:.0%}")
    ax.grid(axis="y", color=FAINT, lw=0.8)
    ax.set_axisbelow(True)
    if len(names) > 1:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, labelcolor=INK)


def _finish(ax: Axes, title: str, caption: str) -> None:
    style.title(ax, title, fontsize=11)
    ax.set_xlabel(caption, color=SOFT, fontsize=9, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(axis="x", colors=SOFT, labelsize=9)
    ax.tick_params(axis="y", colors=INK, labelsize=9)
