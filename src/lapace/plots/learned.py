"""What was learned: prototypes as a table, and the loss as training went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Protocol

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lapace.arrays import Floats, Ints
from lapace.errors import InputError
from lapace.plots.images import gallery
from lapace.plots.style import (
    FAINT,
    INK,
    PAPER,
    ROWS,
    SOFT,
    bare,
    colour,
    counted,
    named,
    one,
    short,
    tint,
)
from lapace.result import InstanceExplanation
from lapace.schema import Feature, Schema

__all__ = ["prototypes", "training_curves"]


class HasPrototypes(Protocol):
    """What `prototypes` asks of an explainer: three things it says about itself."""

    @property
    def schema_(self) -> Schema:
        """The columns."""

    @property
    def classes_(self) -> tuple[Any, ...]:
        """The classifier's labels."""

    @property
    def prototypes_(self) -> Sequence[Any]:
        """The prototypes, each with number, label, cells, members, valid and probability."""


def prototypes(
    explainer: HasPrototypes,
    label: Any = None,
    instance: InstanceExplanation | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Prototypes side by side, a column each, what sets them apart highlighted.

    Numbers are shaded by how far above or below the others they lie, in the ranks of the training
    table; a category is shaded where it is not the usual one. With an instance, who then stands in
    the first column, everything is measured from them, and what is the same is pale. Prototypes of
    images are drawn as images, a column for each label.

    Args:
        explainer: A fitted explainer.
        label: Only the prototypes of this label.
        instance: One instance of an explanation to compare with.
        ax: Where to draw; by default a figure of fitting size.

    Examples:
        >>> from types import SimpleNamespace as Some
        >>> schema = Schema.infer([{"age": 20 + i % 50, "home": "ab"[i % 2]} for i in range(100)])
        >>> young, old = (Some(number=k, label=k, cells=np.array([30.0 + 20 * k, k]), members=50,
        ...     valid=True, probability=0.9) for k in (0, 1))
        >>> bank = Some(schema_=schema, classes_=("no", "yes"), prototypes_=(young, old))
        >>> [text.get_text() for text in prototypes(bank).texts if "30" in text.get_text()]
        ['30']
    """
    if instance is not None:
        one(instance, "prototypes")
    chosen = [p for p in explainer.prototypes_ if label is None or p.label == label]
    if not chosen:
        known = ", ".join(map(repr, explainer.classes_))
        raise InputError(f"There are no prototypes of {label!r}. The labels are {known}.")
    schema = explainer.schema_ if instance is None else instance.explanation.schema
    own = None if instance is None else instance.explanation.instances[instance.position]
    if schema.shape is not None:
        return gallery(schema, explainer.classes_, chosen, own, ax)
    cells = np.stack([p.cells for p in chosen])  # (columns, d)
    heat = _heat(schema, cells, own)
    telling = np.nan_to_num(np.abs(heat), nan=1.0).max(axis=0)
    rows = np.sort(np.argsort(-telling, kind="stable")[: 2 * ROWS])
    table = _Table.new(schema, rows, len(chosen), int(instance is not None), ax)
    for column, prototype in enumerate(chosen):
        table.heading(column, prototype, str(prototype.label))
        table.column(column, cells[column], heat[column], own)
    if instance is not None and own is not None:
        table.instance(instance, own)
    table.finish(len(schema.features) - len(rows))
    return table.ax


def _heat(schema: Schema, cells: Floats, own: Floats | None) -> Floats:
    """How far cells are above or below what they are compared with, from -1 to 1.

    NaN where they differ and neither is more: another category, or a number that was missing.
    """
    heat = np.zeros_like(cells)
    for i, feature in enumerate(schema.features):
        values = cells[:, i]
        if feature.numeric:
            scores = _scores(feature, values)
            usual = np.median(scores) if own is None else _scores(feature, own[i : i + 1])[0]
            heat[:, i] = np.clip((scores - usual) / 1.5, -1, 1)
        else:
            levels, counts = np.unique(values, return_counts=True)
            usual = levels[counts.argmax()] if own is None else own[i]
            heat[:, i] = np.where(values == usual, 0.0, np.nan)
    if own is not None:
        heat[~schema.changed(own, cells)] = 0.0
    return heat


def _scores(feature: Feature, values: Floats) -> Floats:
    """Values by rank where the ranks are known, else by their share of the range."""
    if feature.knots is None:
        return 4 * (values - feature.lower) / feature.span
    return np.where(np.isnan(values), np.nan, feature.knots.scores(np.nan_to_num(values)))


def _fitted(text: str) -> str:
    """A text as it goes into a cell: as it is, on two lines, or, the longest, cut.

    Examples:
        >>> _fitted("rent"), _fitted("month-to-month"), _fitted("Married-civ-spouse").splitlines()
        ('rent', 'month-to-month', ['Married-civ-', 'spouse'])
    """
    if len(text) <= 12:
        return text
    lines = wrap(text.replace("_", " "), 15)
    return "\n".join(lines[:2] if len(lines) < 3 else (lines[0], short(" ".join(lines[1:]), 15)))


MORE, LESS, OTHER = "#5B3A8C", "#1B7837", "#C9A227"  # none the colour of a first label


@dataclass
class _Table:
    """The drawing of prototypes: feature names on the left, a column each."""

    schema: Schema
    rows: Ints
    shift: int  # 1 where an instance stands in the first column
    ax: Axes

    @classmethod
    def new(cls, schema: Schema, rows: Ints, columns: int, shift: int, ax: Axes | None) -> _Table:
        wide = max(3, columns + shift)  # what the legend needs
        if ax is None:
            size = (2.0 + 0.95 * wide, 1.3 + 0.3 * len(rows))
            _, ax = plt.subplots(figsize=size, layout="constrained")
        bare(ax)
        ax.set_xlim(-2.0, wide)
        ax.set_ylim(len(rows) + (1.8 if len(rows) < len(schema.features) else 1.0), -2.4)
        for y, i in enumerate(rows):
            name = named(schema.features[i].name)
            style: dict[str, Any] = {"ha": "right", "va": "center", "parse_math": False}
            ax.text(-0.1, y + 0.5, name, fontsize=9.5, color=INK, **style)
        return cls(schema, rows, shift, ax)

    def cell(self, x: float, y: float, text: str, face: Any = PAPER, **style: Any) -> None:
        self.ax.add_patch(Rectangle((x + 0.03, y + 0.05), 0.94, 0.9, color=face, lw=0))
        size = 8.5 if len(text) <= 12 else 6.5  # a long category on two lines
        style = {"fontsize": size, "color": INK, "parse_math": False, "linespacing": 1.0, **style}
        self.ax.text(x + 0.5, y + 0.5, _fitted(text), ha="center", va="center", **style)

    def heading(self, column: int, prototype: Any, label: str) -> None:
        x, shade = column + self.shift, colour(prototype.code)
        self.cell(x, -2.3, label, shade, color="white", weight="bold")
        refused = "" if prototype.valid else "refused"
        known = "" if np.isnan(prototype.probability) else f"{prototype.probability:.0%}"
        style: dict[str, Any] = {"ha": "center", "va": "center"}
        self.ax.text(x + 0.5, -0.95, str(prototype.number), weight="bold", color=INK, **style)
        self.ax.text(x + 0.5, -0.3, refused or known, fontsize=8.5, color=SOFT, **style)

    def column(self, column: int, cells: Floats, heat: Floats, own: Floats | None) -> None:
        for y, i in enumerate(self.rows):
            text, share = self.schema.features[i].text(cells[i]), float(heat[i])
            if abs(share) < (0.05 if own is None else 1e-9):
                self.cell(column + self.shift, y, text, color=INK if own is None else SOFT)
            elif np.isnan(share):
                self.cell(column + self.shift, y, text, tint(OTHER, 0.4))
            else:
                face = tint(MORE if share > 0 else LESS, 0.08 + 0.42 * abs(share))
                self.cell(column + self.shift, y, text, face)

    def instance(self, instance: InstanceExplanation, own: Floats) -> None:
        label = instance.explanation.labels.index(instance.label)
        self.cell(0, -2.3, str(instance.label), colour(label), color="white", weight="bold")
        style: dict[str, Any] = {"ha": "center", "va": "center", "color": INK, "weight": "bold"}
        self.ax.text(0.5, -0.95, f"instance {instance.name}", fontsize=9.5, **style)
        for y, i in enumerate(self.rows):
            self.cell(0, y, self.schema.features[i].text(own[i]), "white", weight="bold")

    def finish(self, hidden: int) -> None:
        style: dict[str, Any] = {"ha": "right", "va": "center", "color": SOFT}
        y = len(self.rows) + 0.6
        usual = "than the instance" if self.shift else "than most here"
        self.ax.text(-0.1, y, usual, fontsize=8.5, **style)
        for x, shade, text in ((0, MORE, "more"), (1, LESS, "less"), (2, OTHER, "other")):
            self.ax.scatter([x + 0.15], [y], marker="s", s=60, color=tint(shade, 0.45))
            self.ax.text(x + 0.32, y, text, fontsize=8.5, color=SOFT, va="center")
        if hidden:
            text = f"{counted(hidden, 'column')} that hardly differ are not shown"
            self.ax.text(-0.1, y + 0.8, text, ha="left", va="center", fontsize=8.5, color=SOFT)
        self.ax.text(-0.1, -0.95, "prototype", fontsize=9.5, **style)
        self.ax.text(-0.1, -0.3, "probability of its label", fontsize=8.5, **style)


# ------------------------------------------------------------------------------------------------
# Training curves


def training_curves(history: Mapping[str, Floats]) -> Figure:
    """The loss and its parts as training went, a panel each.

    Args:
        history: The recorded values by name, `explainer.history_`: `step` and whatever was
            recorded at each.

    Examples:
        >>> step = np.arange(0, 100, 20)
        >>> figure = training_curves({"step": step, "loss": 1 / (1 + step), "kl_z": 0.01 * step})
        >>> [ax.get_title(loc="left") for ax in figure.axes]
        ['loss', 'kl z']
    """
    names = [name for name in history if name != "step"]
    if not names or not len(history.get("step", ())):
        raise InputError("A history needs 'step', and at least one value recorded at each.")
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(3.0 * columns, 2.5 * rows), layout="constrained", squeeze=False
    )
    for ax, name in zip(grid.flat, names, strict=False):
        _curve(ax, history["step"], history[name])
        weight = "bold" if name == "loss" else "normal"
        ax.set_title(name.replace("_", " "), loc="left", color=INK, weight=weight)
    for ax in grid.flat[len(names) :]:
        ax.remove()
    for ax in grid[-1]:
        ax.set_xlabel("step", color=SOFT)
    return figure


def _curve(ax: Axes, step: Floats, values: Floats) -> None:
    """A curve whose early heights do not flatten the rest: the axis ends at a high quantile."""
    ax.plot(step, values, color=colour(0), lw=1.6)
    finite = values[np.isfinite(values)]
    if len(finite):
        low, high = np.quantile(finite, [0.0, 0.97])
        margin = 0.08 * (high - low) or 0.5
        ax.set_ylim(low - margin, high + margin)
    ax.set_title(f"ends at {values[-1]:.3g}", loc="right", fontsize=8.5, color=SOFT)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(colors=SOFT, labelsize=8)
