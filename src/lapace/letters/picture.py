"""The whole path of an instance as an image for a letter, and the same in words."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from lapace.arrays import Floats
from lapace.letters.words import Words
from lapace.result import Counterfactuals, InstanceExplanation
from lapace.schema import Feature

__all__ = ["path_picture"]

HIGH, WIDE = 40, 1000  # of a line's drawing, which is stretched to the page
BEFORE, AFTER, INK = "#f7e6d8", "#d9ebf5", "#22303c"
VALUE = "flex:0 0 5.5rem;font-size:.85rem;overflow-wrap:anywhere"
STILL = 'vector-effect="non-scaling-stroke"'


def path_picture(
    instance: InstanceExplanation, columns: Sequence[int], words: Words
) -> tuple[str, str]:
    """The path as HTML and a sentence; both empty where no path leads to the target.

    Args:
        instance: One instance of an explanation.
        columns: The columns to draw, in order; those that the path leaves as they are are left out.
        words: What they are called.
    """
    if instance.status != "answered" or not instance.prototypes:
        return "", ""
    steps = instance.path()
    if not steps.ok.any():
        return "", ""
    target = "another answer" if instance.target is None else f"“{words.label(instance.target)}”"
    sentence = (
        "How each value moves, step by step, from your case (left) to a typical case with "
        f"{target} (right). From the upright line on the answer is {target} and every limit is "
        "kept. Small ups and downs on the way are left out, and nothing has to go as far as the "
        "right end."
    )
    if steps.schema.shape is not None:
        from lapace import plots

        drawn = plots.path(instance)
        for text in drawn.texts:
            said = text.get_text().replace("the flip", "the turn")
            text.set_text(f"{100 * float(said[4:]):.0f} %" if said.startswith("p = ") else said)
        sentence = f"From your case (left) to a typical case with {target} (right)."
        return plots.svg(drawn), sentence
    original = instance.explanation.instances[instance.position]
    moved = steps.schema.changed(original, steps.cells[-1])
    lines = [_line(steps, i, float(original[i]), words) for i in columns if moved[i]]
    return ("".join(lines), sentence) if lines else ("", "")


def _line(steps: Counterfactuals, column: int, original: float, words: Words) -> str:
    """One column: its value now, how it moves, its value at the end."""
    feature, values = steps.schema.features[column], steps.cells[:, column]
    places = WIDE * steps.tau / (steps.tau[-1] or 1.0)
    turn = float(places[_turn(steps)])
    heights = HIGH - 6 - (HIGH - 12) * _trend(feature, values)
    points = " ".join(f"{x:.0f},{y:.1f}" for x, y in zip(places, heights, strict=True))
    name = escape(words.column(feature.name))
    now, end = escape(feature.text(original)), escape(feature.text(float(values[-1])))
    drawing = (
        f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" aria-hidden="true" '
        'style="flex:1 1 auto;min-width:0;width:100%;height:2.2rem">'
        f'<rect width="{turn:.0f}" height="{HIGH}" fill="{BEFORE}"/>'
        f'<rect x="{turn:.0f}" width="{WIDE - turn:.0f}" height="{HIGH}" fill="{AFTER}"/>'
        f'<polyline points="{points}" fill="none" stroke="{INK}" stroke-width="2" {STILL}/>'
        f'<path d="M{turn:.0f} 0V{HIGH}" stroke="{INK}" stroke-width="1.5" {STILL}/></svg>'
    )
    return (
        f'<div style="margin:.5rem 0 0;break-inside:avoid"><strong>{name}</strong>'
        '<div style="display:flex;gap:.5rem;align-items:center">'
        f'<span style="{VALUE};text-align:right">{now}</span>{drawing}'
        f'<span style="{VALUE}">{end}</span></div></div>'
    )


def _turn(steps: Counterfactuals) -> int:
    """Where the last unbroken run of ok steps begins."""
    last = int(np.flatnonzero(steps.ok)[-1])
    failing = np.flatnonzero(~steps.ok[:last])
    return int(failing[-1]) + 1 if len(failing) else 0


def _trend(feature: Feature, values: Floats) -> Floats:
    """How a column moves from its first value to its last, without ups and downs, from 0 to 1.

    A number that ends higher than it begins goes up, by a curve between the highest value so far
    and the lowest still to come; a category changes where it changes for good.
    """
    first, last = float(values[0]), float(values[-1])
    if first == last or (np.isnan(first) and np.isnan(last)):
        return np.full(len(values), 0.5)
    if not feature.numeric or np.isnan(first + last):
        other = np.flatnonzero(~((values == last) | (np.isnan(values) & np.isnan(last))))
        changed: Floats = (np.arange(len(values)) > other[-1]).astype(np.float64)
        return changed
    share = np.clip((np.nan_to_num(values, nan=first) - first) / (last - first), 0.0, 1.0)
    rising = np.maximum.accumulate(share)
    falling = np.minimum.accumulate(share[::-1])[::-1]
    found: Floats = (rising + falling) / 2
    return found if last > first else 1.0 - found
