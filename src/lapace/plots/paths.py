"""One instance's path, as a table one can read or, of images, as a film."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from lapace.arrays import Floats, Ints
from lapace.plots.images import show
from lapace.plots.style import (
    INK,
    PALE,
    ROWS,
    SOFT,
    bare,
    colour,
    counted,
    headline,
    named,
    one,
    short,
    tint,
)
from lapace.result import Counterfactuals, InstanceExplanation
from lapace.schema import Feature

__all__ = ["Walk", "path"]


@dataclass(frozen=True)
class Walk:
    """A path as `path` draws it: steps in order, and where the decision flips."""

    instance: InstanceExplanation
    steps: Counterfactuals
    first: int  # the step where the decision flips, or the best there is
    flips: bool

    @classmethod
    def of(cls, instance: InstanceExplanation, prototype: int | None) -> Walk:
        """The path of an instance to a prototype, by default the nearest."""
        steps = instance.path(prototype)
        answer = instance.explanation
        (index,) = np.flatnonzero(
            (answer.instance == instance.position) & (answer.prototype == steps.prototype[0])
        )
        at = answer.picked["first"][index]
        # The same tau may be stored twice, on the grid and as the refined first: either will do.
        first = int(np.abs(steps.tau - answer.tau[index, at]).argmin())
        return cls(instance, steps, first, bool(answer.ok[index, at]))

    @property
    def own(self) -> Floats:
        """The instance's row."""
        cells: Floats = self.instance.explanation.instances[self.instance.position]
        return cells

    @property
    def states(self) -> Ints:
        """Of each step: 0 not the target, 1 the target but a limit is broken, 2 good."""
        return np.where(self.steps.ok, 2, self.steps.valid.astype(np.int64))

    @property
    def colours(self) -> tuple[str, str]:
        """Of what the classifier says now, and of what is wanted."""
        labels, target = self.instance.explanation.labels, self.instance.target
        now = labels.index(self.instance.label)
        return colour(now), colour(now + 1 if target is None else labels.index(target))

    @property
    def wanted(self) -> str:
        """The target in words."""
        target = self.instance.target
        return f"not {self.instance.label}" if target is None else str(target)

    @property
    def title(self) -> str:
        """What a picture of the path is called."""
        if self.instance.target is None:
            return f"Away from {self.instance.label}"
        return f"From {self.instance.label} to {self.wanted}"

    @property
    def tau(self) -> float:
        """Where the decision flips; the end of the path where it does not."""
        return float(self.steps.tau[self.first]) if self.flips else 1.0

    def rows(self) -> tuple[list[int], list[int]]:
        """Features that differ where the decision flips, and those that differ only later."""
        schema, flip, end = self.steps.schema, self.steps.cells[self.first], self.steps.cells[-1]
        early = schema.changed(self.own, flip)
        late = schema.changed(self.own, end) & ~early
        order = np.argsort(-schema.gaps(self.own, flip), kind="stable")
        after = np.argsort(-schema.gaps(self.own, end), kind="stable")
        return [int(i) for i in order if early[i]], [int(i) for i in after if late[i]]


def path(
    instance: InstanceExplanation, prototype: int | None = None, ax: Axes | None = None
) -> Axes:
    """One instance's path: what changes, and when the decision flips.

    One line per feature that changes, in the table's own words: its value today, its course along
    the path, its value where the decision flips, and its value at the prototype. The uppermost
    lines show the decision itself and, where it is known, the probability of the target.

    Args:
        instance: One instance of an explanation, `answer[0]`.
        prototype: Which path; by default the one whose first answer is nearest.
        ax: Where to draw; by default a figure of fitting size.

    Examples:
        >>> from lapace import Explainer
        >>> rng = np.random.default_rng(0)
        >>> instances = [{"income": int(i), "debt": int(d)} for i, d in rng.integers(0, 99, (200, 2))]
        >>> bank = lambda rows: ["yes" if r["income"] > r["debt"] else "no" for r in rows]
        >>> answer = Explainer(bank, n_prototypes=2).fit(instances).explain([{"income": 20, "debt": 60}])
        >>> path(answer[0]).get_title(loc="left")
        'From no to yes'
    """
    one(instance, "path")
    walk = Walk.of(instance, prototype)
    if walk.steps.schema.shape is not None:
        return _film(walk, ax)
    early, late = walk.rows()
    needed, later = early[:ROWS], late[: max(0, ROWS - len(early))]
    known = not np.isnan(walk.steps.probability).all()
    sheet = _Sheet.new(walk, 1 + known + len(needed) + len(later) + 0.6 * bool(later), ax)
    sheet.headings()
    sheet.decision()
    if known:
        sheet.probability()
    for feature in needed:
        sheet.feature(feature, SOFT)
    if later:
        sheet.divide("only further along" + ", not needed for the answer" * walk.flips)
    for feature in later:
        sheet.feature(feature, PALE)
    sheet.notes(len(early) + len(late) - len(needed) - len(later))
    sheet.title(len(early))
    return sheet.ax


# Where the columns of the sheet stand, in hundredths of its width.
NAME, TODAY, LEFT, RIGHT, FLIP, END = 0.0, 31.0, 34.0, 70.0, 73.0, 87.0


@dataclass
class _Sheet:
    """The table-like drawing of a path, filled from the top."""

    walk: Walk
    ax: Axes
    y: float = 0.0

    @classmethod
    def new(cls, walk: Walk, lines: float, ax: Axes | None) -> _Sheet:
        if ax is None:
            _, ax = plt.subplots(figsize=(9.6, 1.6 + 0.4 * lines), layout="constrained")
        bare(ax)
        ax.set_xlim(0, 100)
        ax.set_ylim(lines + 1.6, -1.0)
        return cls(walk, ax)

    def x(self, tau: Any) -> Any:
        """Where a share of the path lies on the sheet."""
        return LEFT + (RIGHT - LEFT) * tau

    def write(self, x: float, text: str, **style: Any) -> None:
        style = {"va": "center", "ha": "left", "fontsize": 9.5, "color": INK, **style}
        self.ax.text(x, self.y + 0.5, text, parse_math=False, **style)

    def headings(self) -> None:
        self.y = -1.0
        soft = {"color": SOFT, "fontsize": 8.5}
        self.write(TODAY, "today", ha="right", **soft)
        self.write((LEFT + RIGHT) / 2, "along the path  →", ha="center", **soft)
        flip = "at the flip" if self.walk.flips else "closest found"
        self.write(FLIP, flip, weight="bold", fontsize=8.5)
        self.write(END, "at the end", **soft)
        self.y = 0.0

    def decision(self) -> None:
        """A band in the labels' colours."""
        walk = self.walk
        now, wanted = walk.colours
        names = (str(walk.instance.label), "breaks a limit", walk.wanted)
        shades = (now, tint(wanted, 0.45), wanted)
        for begin, end, state in _runs(walk.steps.tau, walk.states):
            self.box(begin, end, shades[state])
            self.inside(begin, end, names[state], color="white", weight="bold")
        self.write(NAME, "decision", weight="bold")
        self.write(TODAY, short(names[0], 15), ha="right", color=now, weight="bold")
        for x, step in ((FLIP, walk.first), (END, -1)):
            good = walk.steps.valid[step]
            self.write(
                x,
                short(walk.wanted if good else names[0], 13),
                color=wanted if good else now,
                weight="bold",
            )
        self.y += 1

    def probability(self) -> None:
        """The target's probability along the path, where it is known."""
        known = self.walk.steps.probability
        there = ~np.isnan(known)
        wanted = self.walk.colours[1]
        self.background()
        x, level = self.x(self.walk.steps.tau[there]), self.y + 0.88 - 0.76 * known[there]
        self.ax.fill_between(x, self.y + 0.88, level, color=wanted, alpha=0.25, lw=0)
        self.ax.plot(x, level, color=wanted, lw=1.6)
        self.write(NAME, f"probability of {short(self.walk.wanted, 12)}")
        for place, step in ((TODAY, 0), (FLIP, self.walk.first), (END, -1)):
            if there[step]:
                align = "right" if place == TODAY else "left"
                self.write(place, f"{known[step]:.0%}", ha=align, color=wanted)
        self.y += 1

    def feature(self, i: int, shade: str) -> None:
        """One feature: today, its course, at the flip, at the end."""
        feature, values = self.walk.steps.schema.features[i], self.walk.steps.cells[:, i]
        self.background()
        if feature.categories:
            self.segments(feature, values, shade)
        else:
            self.curve(values, self.walk.own[i], shade)
        self.write(NAME, named(feature.name))
        self.write(TODAY, short(feature.text(self.walk.own[i]), 15), ha="right")
        flip = values[self.walk.first]
        self.value(FLIP, feature, self.walk.own[i], flip, weight="bold")
        self.value(END, feature, self.walk.own[i], values[-1], color=SOFT)
        self.y += 1

    def value(self, x: float, feature: Feature, own: float, cell: float, **style: Any) -> None:
        """A value after a change, with the direction it went; a dash where nothing changed."""
        same = np.isnan(own) if np.isnan(cell) else abs(cell - own) <= feature.step / 2
        if same:
            self.write(x, "–", color=PALE)
            return
        arrow = ""
        if feature.kind == "continuous" and not np.isnan(own):
            arrow = "▲ " if cell > own else "▼ "
        self.write(x, arrow + short(feature.text(cell), 15 - len(arrow)), **style)

    def curve(self, values: Floats, own: float, shade: str) -> None:
        """A number's course: the area between what it was and what it becomes."""
        there = ~np.isnan(values)
        low, high = np.nanmin(values), np.nanmax(values)
        share = (values[there] - low) / ((high - low) or 1.0)
        base = 0.0 if np.isnan(own) else (own - low) / ((high - low) or 1.0)
        x, level, ground = (
            self.x(self.walk.steps.tau[there]),
            self.y + 0.84 - 0.68 * share,
            self.y + 0.84 - 0.68 * base,
        )
        self.ax.fill_between(x, ground, level, color=shade, alpha=0.35, lw=0)
        self.ax.plot(x, level, color=shade, lw=1.6, solid_capstyle="round")
        if not there.all():
            gone = self.walk.steps.tau[there][0]
            self.inside(0.0, float(gone), "missing", color=SOFT, style="italic")

    def segments(self, feature: Feature, values: Floats, shade: str) -> None:
        """A category's course: a segment for each, with its name where there is room."""
        codes = np.where(np.isnan(values), -1, values).astype(np.int64)
        for begin, end, code in _runs(self.walk.steps.tau, codes):
            if code == codes[0]:
                continue
            self.box(begin, end, tint(shade, 0.5))
            if begin > 0:
                x, top, foot = self.x(begin), self.y + 0.06, self.y + 0.94
                self.ax.plot([x, x], [top, foot], color="white", lw=1.5)
            self.inside(begin, end, feature.text(float(code)) if code >= 0 else "missing")

    def background(self) -> None:
        now, wanted = self.walk.colours
        self.box(0.0, self.walk.tau, tint(now, 0.10))
        self.box(self.walk.tau, 1.0, tint(wanted, 0.12))

    def box(self, begin: float, end: float, face: Any) -> None:
        width = self.x(end) - self.x(begin)
        self.ax.add_patch(Rectangle((self.x(begin), self.y + 0.06), width, 0.88, color=face, lw=0))

    def inside(self, begin: float, end: float, text: str, **style: Any) -> None:
        """Writes into a segment, beside the line of the flip, if it has room."""
        flip = self.walk.tau
        if begin < flip < end:
            begin, end = (begin, flip) if flip - begin > end - flip else (flip, end)
        inches = self.ax.get_window_extent().width / self.ax.figure.dpi
        room = inches * (self.x(end) - self.x(begin)) / 100
        if room >= 0.085 * len(text) + 0.1:
            style = {"fontsize": 8.5, **style}
            self.write((self.x(begin) + self.x(end)) / 2, text, ha="center", **style)

    def divide(self, text: str) -> None:
        self.y += 0.1
        self.ax.text(NAME, self.y + 0.22, text, ha="left", va="center", fontsize=8, color=SOFT)
        self.y += 0.5

    def notes(self, hidden: int) -> None:
        """The flip, drawn across everything, and what the table leaves out."""
        walk, schema = self.walk, self.walk.steps.schema
        if walk.flips:
            x = self.x(walk.tau)
            self.ax.plot([x, x], [-0.12, self.y + 0.06], color=INK, lw=1.4)
            self.ax.plot([x], [-0.12], marker="v", color=INK, ms=6, clip_on=False)
        moved = schema.changed(walk.own, walk.steps.cells).any(axis=0)
        kept = [named(schema.names[i]) for i in np.flatnonzero(~moved)]
        notes = [f"{counted(hidden, 'smaller change')} not shown."] if hidden else []
        if kept:
            notes.append(f"Unchanged throughout: {short(', '.join(kept), 110)}.")
        style: dict[str, Any] = {"fontsize": 8, "color": SOFT, "va": "top", "linespacing": 1.5}
        self.ax.text(0, self.y + 0.5, "\n".join(notes), parse_math=False, **style)

    def title(self, changes: int) -> None:
        """What this is a picture of, and the answer in one sentence."""
        walk = self.walk
        if walk.flips:
            number = walk.steps.prototype[0]
            end = f"prototype {number}" if number >= 0 else "somebody nearby"
            words = (
                f"Instance {walk.instance.name}, on the way to {end}: "
                f"the decision flips after {walk.tau:.0%} of the way, "
                f"with {counted(changes, 'change')}."
            )
        else:
            words = "No step of this path leads there; the closest one found is shown."
        headline(self.ax, walk.title, pad=22)
        style: dict[str, Any] = {"fontsize": 9.5, "color": SOFT, "va": "bottom"}
        self.ax.text(0, 1.0, words, transform=self.ax.transAxes, **style)


def _runs(tau: Floats, states: Ints) -> list[tuple[float, float, int]]:
    """Stretches of equal state: (from, to, state). A state holds until the next step.

    What is new at the very end gets the half of its step before it, or nobody would see it.
    """
    begins = np.flatnonzero(np.concatenate([[True], states[1:] != states[:-1]]))
    starts = tau[begins].astype(np.float64)
    if len(tau) > 1 and begins[-1] == len(tau) - 1:
        starts[-1] = (tau[-2] + tau[-1]) / 2
    ends = np.append(starts[1:], 1.0)
    return [
        (float(start), float(end), int(states[begin]))
        for start, end, begin in zip(starts, ends, begins, strict=True)
    ]


def _film(walk: Walk, ax: Axes | None, frames: int = 11) -> Axes:
    """A path of images: frames from the instance to the prototype, framed by the decision.

    Under each stand how far along it is and, where it is known, the probability of the target.
    """
    if ax is None:
        _, ax = plt.subplots(figsize=(11.0, 1.9), layout="constrained")
    chosen = {int(i) for i in np.linspace(0, len(walk.steps) - 1, frames).round()}
    chosen |= {walk.first} if walk.flips else set()
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9}
    for place, step in enumerate(sorted(chosen)):
        shade = walk.colours[1] if walk.states[step] == 2 else walk.colours[0]
        flip = walk.flips and step == walk.first
        show(ax, walk.steps.schema, walk.steps.cells[step], place, 0.0, shade, 4 if flip else 2)
        note = "the flip" if flip else f"{walk.steps.tau[step]:.0%}"
        weight = "bold" if flip else "normal"
        ax.text(place + 0.5, 1.1, note, color=INK, weight=weight, **style)
        known = walk.steps.probability[step]
        if not np.isnan(known):
            ax.text(place + 0.5, 1.3, f"p = {known:.2f}", color=SOFT, **{**style, "fontsize": 8})
    bare(ax)
    ax.set_xlim(0, len(chosen))
    ax.set_ylim(1.4, 0)
    headline(ax, walk.title)
    return ax
