"""Small pictures as SVG text: they need no script, no font and no file of their own.

Ink is `currentColor` and the accents are CSS variables of the page, so one picture reads in light
and in dark. Every mark carries its figures as a title.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

import pandas as pd

from benchmarks.comparing import METRICS, Line, Metric, present
from benchmarks.figures import Figures
from benchmarks.pages import SWEPT, clusters

__all__ = ["dots", "metrics", "sweeps", "walks"]

OURS, PAPERS, THEIRS = "var(--ours)", "var(--papers)", "var(--theirs)"
LINE_COLOURS = ("var(--theirs)", "var(--papers)", "var(--ours)")


def _text(x: float, y: float, words: str, anchor: str = "start", size: int = 11) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="currentColor">{escape(words)}</text>'
    )


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg role="img" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _number(value: float) -> str:
    if value == 0 or 0.01 <= abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1e}"


# ------------------------------------------------------------------------------------------------
# E2: one picture a metric


def metrics(figures: Figures, pairs: Sequence[str]) -> str:
    """One picture for each metric, all methods in each."""
    lines = present(figures, pairs)
    found = [dots(figures, pairs, lines, metric) for metric in METRICS]
    return '<div class="pictures">' + "".join(found) + "</div>"


def dots(figures: Figures, pairs: Sequence[str], lines: Sequence[Line], metric: Metric) -> str:
    """A line a method: a small dot a pair, a bar at their mean.

    Args:
        figures: E2's.
        pairs: Which.
        lines: Which methods.
        metric: What is drawn.
    """
    values = {
        line: {
            pair: figure.mean * metric.scale
            for pair in pairs
            if (figure := figures.get(pair, line.recipe, metric.key, method=line.method)).repeats
        }
        for line in lines
    }
    every = [v for known in values.values() for v in known.values()]
    width, left, row = 470.0, 150.0, 19.0
    height = 46 + row * len(lines)
    parts = [_text(0, 14, f"{metric.title} {metric.arrow}", size=12)]
    if not every:
        return _svg(width, 30, metric.title, [*parts, _text(0, 28, "nothing to show")])
    place = _Scale.of(every, left, width - 46, log=metric.log)
    for tick in place.ends():
        anchor = "start" if tick == place.low else "end"
        parts.append(_text(place(tick), height - 4, _number(tick), anchor, 10))
    for k, line in enumerate(lines):
        y = 30 + row * k
        colour = OURS if line.ours else THEIRS if line.theirs else PAPERS
        parts.append(_text(left - 8, y + 4, line.name, "end"))
        parts.append(
            f'<line x1="{left}" x2="{width - 46}" y1="{y}" y2="{y}" stroke="currentColor" '
            'stroke-opacity="0.15"/>'
        )
        parts += _dotted(values[line], place, y, colour)
    return _svg(width, height, f"{metric.title}, by method", parts)


class _Scale:
    """From values to places on a line."""

    def __init__(self, low: float, high: float, left: float, right: float, log: bool) -> None:
        self.low, self.high, self.left, self.right, self.log = low, high, left, right, log

    @classmethod
    def of(cls, values: Sequence[float], left: float, right: float, *, log: bool) -> _Scale:
        log = log and min(values) > 0
        low, high = min(values), max(values)
        if not log and 0 < low < 0.25 * high:
            low = 0.0
        if high <= low:
            low, high = low - 0.5 * abs(low or 1), high + 0.5 * abs(high or 1)
        return cls(low, high, left, right, log)

    def __call__(self, value: float) -> float:
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.left + share * (self.right - self.left)

    def ends(self) -> tuple[float, float]:
        return self.low, self.high


def _dotted(known: Mapping[str, float], place: _Scale, y: float, colour: str) -> list[str]:
    if not known:
        return [_text(place.left + 4, y + 4, "none", size=10)]
    parts = [
        f'<circle cx="{place(value):.1f}" cy="{y:.1f}" r="3.2" fill="{colour}" '
        f'fill-opacity="0.55"><title>{escape(pair)}: {_number(value)}</title></circle>'
        for pair, value in known.items()
    ]
    mean = sum(known.values()) / len(known)
    parts.append(
        f'<rect x="{place(mean) - 1.2:.1f}" y="{y - 7:.1f}" width="2.4" height="14" '
        f'fill="{colour}"><title>mean {_number(mean)}</title></rect>'
    )
    return parts


# ------------------------------------------------------------------------------------------------
# E4: curves over tau


def walks(table: pd.DataFrame, pairs: Sequence[str]) -> str:
    """Two rows of panels for each pair: probability and LOF, a panel a prototype."""
    parts = []
    for pair in pairs:
        own = table[table["pair"] == pair]
        own = own[own["repeat"] == own["repeat"].min()]
        rows = [_panels(own, pair, metric) for metric in ("probability", "lof")]
        parts.append(f"<h3>{escape(pair)}</h3>" + "".join(rows))
    return "".join(parts)


def _panels(own: pd.DataFrame, pair: str, metric: str) -> str:
    split = own["metric"].str.partition("@")
    own = own.assign(name=split[0], tau=pd.to_numeric(split[2], errors="coerce"))
    own = own[own["name"] == metric]
    labels = sorted(set(own["label"]), key=int)
    size, gap, top = 150.0, 22.0, 20.0
    width, height = 46 + len(labels) * (size + gap), top + 96
    low, high = (0.0, 1.0) if metric == "probability" else _range(own)
    word = "probability" if metric == "probability" else "LOF"
    parts = [
        _text(40, top + 6, _number(high), "end", 10),
        _text(40, top + 76, _number(low), "end", 10),
    ]
    parts.append(_text(0, 12, word, size=12))
    for k, label in enumerate(labels):
        left = 46 + k * (size + gap)
        curve = own[own["label"] == label].sort_values("tau")
        parts += _curve(curve, left, top, size, (low, high), metric)
        parts.append(_text(left + size / 2, top + 92, f"prototype {label}, τ 0 → 1", "middle", 10))
    return _svg(width, height, f"{pair}: {word} from the instance to each prototype", parts)


def _range(own: pd.DataFrame) -> tuple[float, float]:
    low = float((own["mean"] - own["deviation"].fillna(0)).min())
    high = float((own["mean"] + own["deviation"].fillna(0)).max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _curve(
    curve: pd.DataFrame,
    left: float,
    top: float,
    size: float,
    span: tuple[float, float],
    metric: str,
) -> list[str]:
    low, high = span

    def x(tau: float) -> float:
        return left + tau * size

    def y(value: float) -> float:
        return top + 76 - 76 * (min(max(value, low), high) - low) / (high - low)

    mean = curve["mean"].tolist()
    tau, spread = curve["tau"].tolist(), curve["deviation"].fillna(0).tolist()
    upper = [f"{x(t):.1f},{y(m + s):.1f}" for t, m, s in zip(tau, mean, spread, strict=True)]
    lower = [f"{x(t):.1f},{y(m - s):.1f}" for t, m, s in zip(tau, mean, spread, strict=True)]
    along = " ".join(f"{x(t):.1f},{y(m):.1f}" for t, m in zip(tau, mean, strict=True))
    level = y(0.5 if metric == "probability" else 1.0)
    box = (
        f'<rect x="{left}" y="{top}" width="{size}" height="76" fill="none" '
        'stroke="currentColor" stroke-opacity="0.25"/>'
    )
    half = (
        f'<line x1="{left}" x2="{left + size}" y1="{level:.1f}" y2="{level:.1f}" '
        'stroke="currentColor" stroke-opacity="0.4" stroke-dasharray="3 3"/>'
    )
    band = " ".join([*upper, *reversed(lower)])
    return [
        box,
        half,
        f'<polygon points="{band}" fill="{OURS}" fill-opacity="0.22"/>',
        f'<polyline points="{along}" fill="none" stroke="{OURS}" stroke-width="1.8"/>',
    ]


# ------------------------------------------------------------------------------------------------
# The sweep: one picture a metric and pair


def sweeps(table: pd.DataFrame, pairs: Sequence[str]) -> str:
    """First, Middle and Last over the number of clusters, a picture a metric."""
    figures = Figures.of(table)
    parts = []
    for pair in pairs:
        counts = clusters(table, pair)
        panels = [_swept(figures, pair, counts, metric) for metric in SWEPT]
        parts.append(f'<h3>{escape(pair)}</h3><div class="pictures">' + "".join(panels) + "</div>")
    return "".join(parts)


def _swept(
    figures: Figures, pair: str, counts: Sequence[str], metric: tuple[str, str, float, int]
) -> str:
    key, head, scale, _ = metric
    width, height, left, top = 250.0, 150.0, 44.0, 24.0
    found = {
        pick: [figures.get(pair, "default", key, count, pick).mean * scale for count in counts]
        for pick in ("First", "Middle", "Last")
    }
    known = [v for values in found.values() for v in values if not math.isnan(v)]
    parts = [_text(0, 12, head, size=12)]
    if not known:
        return _svg(width, 30, head, parts)
    low, high = min(known), max(known)
    high = high if high > low else low + 1
    across = (width - left - 54) / max(1, len(counts) - 1)
    parts += [_text(left - 6, top + 6, _number(high), "end", 10)]
    parts += [_text(left - 6, height - 26, _number(low), "end", 10)]
    for k, count in enumerate(counts):
        parts.append(_text(left + k * across, height - 8, count, "middle", 10))
    for colour, (pick, values) in zip(LINE_COLOURS, found.items(), strict=True):
        points = [
            (left + k * across, height - 28 - (height - 28 - top) * (v - low) / (high - low))
            for k, v in enumerate(values)
            if not math.isnan(v)
        ]
        if not points:
            continue
        along = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(
            f'<polyline points="{along}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        )
        parts.append(_text(points[-1][0] + 5, points[-1][1] + 4, pick, size=10))
    return _svg(width, height, f"{pair}: {head} over the number of clusters", parts)
