"""Pictures of one path: a table of its changes or, for images, a strip of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from lapace.arrays import Floats, Ints
from lapace.plots import style
from lapace.plots.style import (
    FAINT,
    INK,
    PALE,
    ROWS,
    SOFT,
    colour,
    counted,
    readable,
    shorten,
    tint,
)
from lapace.result import Counterfactuals, InstanceExplanation
from lapace.schema import Feature


class Answer(NamedTuple):
    """An end of the best counterfactual, or the nearest counterfactual.

    Attributes:
        title: Its name in the picture.
        cells: Its row.
        label: Its label.
        probability: The probability of the target; NaN where unknown.
    """

    title: str
    cells: Floats
    label: Any
    probability: float


@dataclass(frozen=True)
class DrawnPath:
    """A path to be drawn: its steps in order, the flip of the decision, the best answer."""

    instance: InstanceExplanation
    steps: Counterfactuals
    first: int  # position of the step where the decision flips, or of the closest found
    flips: bool
    ends: tuple[Answer, ...] = ()  # of the best counterfactual: just enough and safe, or one row

    @classmethod
    def of(cls, instance: InstanceExplanation, prototype: int | None) -> DrawnPath:
        """Returns the path of an instance to a prototype, by default the nearest."""
        steps = instance.path(prototype)
        explanation = instance.explanation
        (index,) = np.flatnonzero(
            (explanation.instance == instance.position)
            & (explanation.prototype == steps.prototype[0])
        )
        if "first" not in explanation.picked:
            explanation.first()  # which says that it was not computed
        step = explanation.picked["first"][index]
        # The same tau may be stored twice, on the grid and as the refined first: either will do.
        first = int(np.abs(steps.tau - explanation.tau[index, step]).argmin())
        flips = bool(explanation.ok[index, step])
        return cls(instance, steps, first, flips, _answers(instance) if flips else ())

    @property
    def original(self) -> Floats:
        """The instance's row."""
        cells: Floats = self.instance.explanation.instances[self.instance.position]
        return cells

    def code(self, label: Any) -> int:
        """Returns the position of a label; None is the instance's own."""
        return self.instance.explanation.labels.index(
            self.instance.label if label is None else label
        )

    @property
    def reached(self) -> Any:
        """The target or, for any other label, the label at the flip; None where nothing flips."""
        if self.instance.target is None and self.flips:
            return self.steps.label[self.first]
        return self.instance.target

    @property
    def colours(self) -> tuple[str, str]:
        """The colours of the instance's label and of the label reached."""
        now = self.code(self.instance.label)
        return colour(now), colour(now + 1 if self.reached is None else self.code(self.reached))

    @property
    def target(self) -> str:
        """The target in words."""
        target = self.instance.target
        return f"not {self.instance.label}" if target is None else str(target)

    @property
    def title(self) -> str:
        """The title of a picture of the path."""
        label, reached = self.instance.label, self.reached
        return f"Away from {label}" if reached is None else f"From {label} to {reached}"

    @property
    def tau(self) -> float:
        """The tau at which the decision flips; 1 where it does not."""
        return float(self.steps.tau[self.first]) if self.flips else 1.0

    def changes(self) -> tuple[list[int], list[int]]:
        """Returns features that differ at the flip, and features that differ only later."""
        schema, cells = self.steps.schema, self.steps.cells[[self.first, -1]]
        early, late = schema.changed(self.original, cells)
        order, after = np.argsort(-schema.gaps(self.original, cells), kind="stable")
        return [int(i) for i in order if early[i]], [int(i) for i in after if (late & ~early)[i]]

    def needed(self) -> dict[int, float]:
        """Returns the features that the best counterfactual changes, the largest change first.

        Each comes with its share of the whole effort, which tells hard changes from easy ones.
        """
        if not self.ends:
            return {}
        schema, answer = self.steps.schema, self.ends[-1].cells
        weights = schema.weights(self.instance.explanation.costs)
        efforts = schema.change_efforts(self.original, answer, weights)
        changed = schema.changed(self.original, answer)
        order = np.argsort(-efforts, kind="stable").tolist()
        return {i: float(efforts[i] / (efforts.sum() or 1.0)) for i in order if changed[i]}


def _answers(instance: InstanceExplanation) -> tuple[Answer, ...]:
    """Returns both ends of the best counterfactual, or the nearest; none where none was computed.

    The ends are one answer where they are the same.
    """
    found = {
        name: rows.where((rows.instance == instance.position) & (rows.rank == 0) & rows.ok)
        for name, rows in instance.explanation.minimal.items()
    }
    found = {name: rows for name, rows in found.items() if len(rows)}
    titles = {"best" if "best" in found else "nearest": "best answer"}
    if {"enough", "best"} <= found.keys():
        ends = found["enough"].cells, found["best"].cells
        if instance.explanation.schema.differs(*ends).any():
            titles = {"enough": "just enough", "best": "safe"}
    return tuple(
        Answer(
            title,
            rows.cells[0],
            rows.label[0] if instance.target is None else instance.target,
            float(rows.probability[0]),
        )
        for title, rows in ((titles[name], found[name]) for name in titles if name in found)
    )


@rc_context(style.LITERAL)
def path(
    instance: InstanceExplanation,
    prototype: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws one instance's path: its changes, and the flip of the decision.

    Each feature that changes has a line: its value in the instance, along the path, at both ends of
    the best counterfactual, at the flip, and at the endpoint. The changes of that counterfactual
    come first, each with a bar for its share of the whole effort, which tells hard ones from easy
    ones. The others, which need not change, are pale. The uppermost lines show the decision itself
    and, where it is known, the probability of the target. A path of images is a strip of images.

    Args:
        instance: One instance of an explanation, `explanation[0]`.
        prototype: The prototype of the path; by default that whose first counterfactual is nearest.
        ax: Axes to draw on; by default those of a new figure of fitting size.

    Examples:
        >>> from lapace import Explainer
        >>> numbers = np.random.default_rng(0).integers(0, 99, (200, 2)).tolist()
        >>> table = [{"income": income, "debt": debt} for income, debt in numbers]
        >>> bank = lambda rows: ["yes" if r["income"] > r["debt"] else "no" for r in rows]
        >>> explainer = Explainer(bank, n_prototypes=2).fit(table)
        >>> path(explainer.explain([{"income": 20, "debt": 60}])[0]).get_title(loc="left")
        'From no to yes'
    """
    style.check_instance(instance, "path")
    drawn = DrawnPath.of(instance, prototype)
    if drawn.steps.schema.shape is not None:
        return _strip(drawn, ax)
    needed, (early, late) = drawn.needed(), drawn.changes()
    later = "changed only after the flip" if drawn.flips else "changed only later"
    later += ", not needed" if needed else ""
    also = ("also changed at the flip, not needed", PALE) if needed else ("", SOFT)
    changed = [("", SOFT, i) for i in needed]
    changed += [(*also, i) for i in early if i not in needed]
    changed += [(later, PALE, i) for i in late if i not in needed]
    shown = changed[:ROWS]
    has_probability = not np.isnan(drawn.steps.probability).all()
    notes = _notes(drawn, len(changed) - len(shown), needed)
    titles = {title for title, _, _ in shown if title}
    lines = 1 + has_probability + len(shown) + DIVIDER * len(titles)
    lines += ABOVE_NOTES + NOTE * len(notes)
    if ax is None:
        size = (0.096 * _width(drawn), 0.95 + 0.4 * lines)
        _, ax = plt.subplots(figsize=size, layout="constrained")
    style.frame(ax, None)
    ax.set_xlim(0, _width(drawn))
    ax.set_ylim(lines, -1.0)
    table = _PathTable(drawn, ax, _columns(drawn))
    table.headings()
    table.decision()
    if has_probability:
        table.probability()
    for title, features in groupby(shown, key=itemgetter(0)):
        if title:
            table.divide(title)
        for _, shade, feature in features:
            table.feature(feature, shade, needed.get(feature))
    table.notes(notes)
    table.title(len(early), len(needed))
    return ax


# Left ends of the columns of the table; BEFORE is aligned right. Values follow the path, each a
# column of width VALUE: the ends of the answer, at the flip, at the end.
NAME, BEFORE, LEFT, ANSWER, FLIP, VALUE = 0.0, 30.0, 32.5, 60.0, 73.75, 13.75
GAP = 2.5  # between the path and the column after it
ABOVE_NOTES, NOTE = 0.6, 0.5  # lines of the table above notes, and that a note takes
DIVIDER = 0.6  # lines that a heading between groups takes
IMAGES = 11  # of a strip, beside that of the flip


class _Column(NamedTuple):
    """A column of values: a row of the path, or an answer."""

    x: float
    title: str
    cells: Floats
    code: int  # of the label
    probability: float
    look: dict[str, Any]


def _width(drawn: DrawnPath) -> float:
    """Returns the width of the table: 100 with one answer or none."""
    return FLIP + VALUE * (1 + max(1, len(drawn.ends))) - 1.25


def _columns(drawn: DrawnPath) -> list[_Column]:
    """Returns the columns of values; those of the answer, or else of the flip, are bold."""
    steps, bold = drawn.steps, {"weight": "bold"}
    rows = [
        (end.title, end.cells, drawn.code(end.label), end.probability, bold) for end in drawn.ends
    ]
    flip = "at the flip" if drawn.flips else "closest found"
    for title, step, look in (
        (flip, drawn.first, {"color": SOFT} if rows else bold),
        ("at the end", -1, {"color": SOFT}),
    ):
        code = drawn.code(steps.label[step] if steps.valid[step] else None)
        rows.append((title, steps.cells[step], code, float(steps.probability[step]), look))
    first = ANSWER if drawn.ends else FLIP
    return [_Column(first + VALUE * k, *row) for k, row in enumerate(rows)]


@dataclass
class _PathTable:
    """The drawing of a path, filled from the top."""

    drawn: DrawnPath
    ax: Axes
    columns: list[_Column]
    y: float = -1.0

    @property
    def right(self) -> float:
        """The place of the end of the path on the table."""
        return self.columns[0].x - GAP

    def x(self, tau: Any) -> Any:
        """Returns the place of a share of the path on the table."""
        return LEFT + (self.right - LEFT) * tau

    def write(self, x: float, text: str, **look: Any) -> None:
        look = {"ha": "right" if x == BEFORE else "left", "fontsize": 9.5, **look}
        style.write(self.ax, x, self.y + 0.5, text, **look)

    def headings(self) -> None:
        soft = {"color": SOFT, "fontsize": 8.5}
        self.write(BEFORE, "instance", **soft)
        self.write((LEFT + self.right) / 2, "along the path  →", ha="center", **soft)
        for column in self.columns:
            self.write(column.x, column.title, **column.look, fontsize=8.5)
        self.y += 1

    def decision(self) -> None:
        """Draws the decision along the path as a band in the labels' colours."""
        drawn, steps = self.drawn, self.drawn.steps
        labels = drawn.instance.explanation.labels
        each = zip(steps.label, steps.valid, strict=True)
        codes = np.array([drawn.code(label if valid else None) for label, valid in each])
        for begin, end, state in _runs(steps.tau, 2 * codes + (steps.valid & ~steps.feasible)):
            code, is_infeasible = divmod(state, 2)
            self.box(begin, end, tint(colour(code), 0.45) if is_infeasible else colour(code))
            name = "infeasible" if is_infeasible else str(labels[code])
            self.inside(begin, end, name, color="white", weight="bold")
        self.write(NAME, "decision", weight="bold")
        for x, code in ((BEFORE, drawn.code(None)), *((c.x, c.code) for c in self.columns)):
            name = shorten(str(labels[code]), 15 if x == BEFORE else 13)
            self.write(x, name, color=colour(code), weight="bold")
        self.y += 1

    def probability(self) -> None:
        """Draws the target's probability along the path, where it is known."""
        values, shade = self.drawn.steps.probability, self.drawn.colours[1]
        known = ~np.isnan(values)
        self.background()
        self.area(known, 0.88 - 0.76 * values, 0.88, shade, 0.25)
        self.write(NAME, f"probability of {shorten(self.drawn.target, 12)}")
        for x, value, look in (
            (BEFORE, values[0], {}),
            *((column.x, column.probability, column.look) for column in self.columns),
        ):
            if not np.isnan(value):
                self.write(x, f"{value:.0%}", **{**look, "color": shade})
        self.y += 1

    def feature(self, i: int, shade: str, effort: float | None = None) -> None:
        """Draws a feature in the instance, along the path, and in each column."""
        feature, values = self.drawn.steps.schema.features[i], self.drawn.steps.cells[:, i]
        original = self.drawn.original[i]
        self.background()
        if feature.categories:
            self.segments(feature, values, shade)
        else:
            self.curve(values, original, shade)
        self.write(NAME, readable(feature.name))
        self.write(BEFORE, shorten(feature.text(original), 15))
        for column in self.columns:
            self.value(column.x, feature, original, column.cells[i], **column.look)
        if effort is not None:
            self.effort(effort)
        self.y += 1

    def value(self, x: float, feature: Feature, original: float, cell: float, **look: Any) -> None:
        """Writes a value after a change, with an arrow for its direction; a dash without one."""
        same = np.isnan(original) if np.isnan(cell) else abs(cell - original) <= feature.step / 2
        if same:
            self.write(x, "–", color=PALE)
            return
        arrow = ""
        if feature.kind == "continuous" and not np.isnan(original):
            arrow = "▲ " if cell > original else "▼ "
        self.write(x, arrow + shorten(feature.text(cell), 13 - len(arrow)), **look)

    def effort(self, share: float) -> None:
        """Draws a bar under the answer's safe value, as long as its share of the effort."""
        width = VALUE - GAP
        for part, face in ((1.0, FAINT), (share, self.drawn.colours[1])):
            place = (self.columns[len(self.drawn.ends) - 1].x, self.y + 0.86)
            self.ax.add_patch(Rectangle(place, part * width, 0.08, color=face, lw=0))

    def curve(self, values: Floats, original: float, shade: str) -> None:
        """Draws a number along the path: the area between the instance's value and the others."""
        low = np.nanmin(values)
        scale = 0.68 / ((np.nanmax(values) - low) or 1.0)
        known, base = ~np.isnan(values), low if np.isnan(original) else original
        self.area(known, 0.84 - scale * (values - low), 0.84 - scale * (base - low), shade, 0.35)
        if not known.all():
            until = float(self.drawn.steps.tau[known][0])
            self.inside(0.0, until, "missing", color=SOFT, style="italic")

    def area(self, known: Any, height: Floats, base: float, shade: str, alpha: float) -> None:
        """Draws the area between a curve and a base, measured down from the top of the line."""
        x, y = self.x(self.drawn.steps.tau[known]), self.y + height[known]
        self.ax.fill_between(x, self.y + base, y, color=shade, alpha=alpha, lw=0)
        self.ax.plot(x, y, color=shade, lw=1.6, solid_capstyle="round")

    def segments(self, feature: Feature, values: Floats, shade: str) -> None:
        """Draws a category along the path: a segment each, with its name where there is room."""
        codes = np.where(np.isnan(values), -1, values).astype(np.int64)
        for begin, end, code in _runs(self.drawn.steps.tau, codes):
            if code == codes[0]:
                continue
            self.box(begin, end, tint(shade, 0.5))
            if begin > 0:
                x, top, foot = self.x(begin), self.y + 0.06, self.y + 0.94
                self.ax.plot([x, x], [top, foot], color="white", lw=1.5)
            self.inside(begin, end, feature.text(float(code)) if code >= 0 else "missing")

    def background(self) -> None:
        now, target = self.drawn.colours
        self.box(0.0, self.drawn.tau, tint(now, 0.10))
        self.box(self.drawn.tau, 1.0, tint(target, 0.12))

    def box(self, begin: float, end: float, face: Any) -> None:
        width = self.x(end) - self.x(begin)
        self.ax.add_patch(Rectangle((self.x(begin), self.y + 0.06), width, 0.88, color=face, lw=0))

    def inside(self, begin: float, end: float, text: str, **look: Any) -> None:
        """Writes into a segment, beside the line of the flip, if it has room."""
        flip = self.drawn.tau
        if begin < flip < end:
            begin, end = (begin, flip) if flip - begin > end - flip else (flip, end)
        inches = self.ax.get_window_extent().width / self.ax.figure.dpi
        room = inches * (self.x(end) - self.x(begin)) / _width(self.drawn)
        if room >= 0.085 * len(text) + 0.1:
            look = {"ha": "center", "fontsize": 8.5, **look}
            self.write((self.x(begin) + self.x(end)) / 2, text, **look)

    def divide(self, text: str) -> None:
        style.write(self.ax, NAME, self.y + 0.32, text, ha="left", fontsize=8, color=SOFT)
        self.y += DIVIDER

    def notes(self, notes: list[str]) -> None:
        """Draws the flip across all lines, and writes notes under the table."""
        if self.drawn.flips:
            x = self.x(self.drawn.tau)
            self.ax.plot([x, x], [-0.12, self.y + 0.06], color=INK, lw=1.4)
            self.ax.plot([x], [-0.12], marker="v", color=INK, ms=6, clip_on=False)
        look = {"ha": "left", "va": "top", "fontsize": 8, "color": SOFT, "linespacing": 1.5}
        style.write(self.ax, 0, self.y + ABOVE_NOTES - 0.1, "\n".join(notes), **look)

    def title(self, changes: int, needed: int) -> None:
        """Writes the labels, and one sentence about the flip."""
        drawn = self.drawn
        text = "No step of this path is valid and feasible; the closest one found is shown."
        if drawn.flips:
            text = (
                f"Instance {shorten(str(drawn.instance.name), 24)}, on the path to prototype "
                f"{drawn.steps.prototype[0]}: the decision flips after {drawn.tau:.0%} of it, with "
                f"{counted(changes, 'change')}"
            )
            text += f". The best answer has {needed}." if needed else "."
        style.title(self.ax, drawn.title, pad=22)
        look: dict[str, Any] = {"ha": "left", "va": "bottom", "fontsize": 9.5, "color": SOFT}
        style.write(self.ax, 0, 1.0, text, transform=self.ax.transAxes, **look)


def _notes(drawn: DrawnPath, hidden: int, needed: Mapping[int, float]) -> list[str]:
    """Returns the notes under the table, a line each."""
    schema, notes = drawn.steps.schema, []
    if len(needed) > 1:
        notes.append("The bar under a change is its share of the effort.")
    if hidden:
        notes.append(f"{counted(hidden, 'smaller change')} not shown.")
    meant = [schema.features[i] for i in needed if schema.features[i].description]
    notes += [shorten(f"{readable(f.name)}: {f.description}", 130) for f in meant[:3]]
    moved = schema.differs(drawn.original, drawn.steps.cells).any(axis=0)
    for end in drawn.ends:
        moved |= schema.differs(drawn.original, end.cells)
    derived, kept = np.flatnonzero(moved & ~schema.counted), np.flatnonzero(~moved)
    for words, columns in (("Follows from the others", derived), ("Unchanged throughout", kept)):
        names = ", ".join(readable(schema.names[i]) for i in columns)
        notes += [f"{words}: {shorten(names, 110)}."] if names else []
    return notes


def _runs(tau: Floats, states: Ints) -> list[tuple[float, float, int]]:
    """Returns runs of equal state: (from, to, state). A state holds until the next step.

    A state that begins at the very last step gets the half of its step before it, to be visible.
    """
    begins = np.flatnonzero(np.concatenate([[True], states[1:] != states[:-1]]))
    starts = tau[begins].astype(np.float64)
    if len(tau) > 1 and begins[-1] == len(tau) - 1:
        starts[-1] = (tau[-2] + tau[-1]) / 2
    stops = np.append(starts[1:], 1.0)
    return list(zip(starts.tolist(), stops.tolist(), states[begins].tolist(), strict=True))


def _strip(drawn: DrawnPath, ax: Axes | None) -> Axes:
    """Draws a path of images, each framed in the colour of its decision.

    The text under an image is its share of the path and, where it is known, the probability of the
    target.
    """
    if ax is None:
        _, ax = plt.subplots(figsize=(11.0, 1.9), layout="constrained")
    steps = drawn.steps
    chosen = {int(i) for i in np.linspace(0, len(steps) - 1, IMAGES).round()}
    chosen |= {drawn.first} if drawn.flips else set()
    for place, step in enumerate(sorted(chosen)):
        shade = drawn.colours[1] if steps.ok[step] else drawn.colours[0]
        flip = drawn.flips and step == drawn.first
        style.show_image(ax, steps.schema, steps.cells[step], place, 0.0, shade, 4 if flip else 2)
        note, weight = ("the flip", "bold") if flip else (f"{steps.tau[step]:.0%}", "normal")
        style.write(ax, place + 0.5, 1.1, note, weight=weight, fontsize=9)
        if not np.isnan(steps.probability[step]):
            text = f"p = {steps.probability[step]:.2f}"
            style.write(ax, place + 0.5, 1.3, text, color=SOFT, fontsize=8)
    style.frame(ax, None)
    ax.set_xlim(0, len(chosen))
    ax.set_ylim(1.4, 0)
    style.title(ax, drawn.title)
    return ax
