"""Pictures of results, for people: one path, the latent map, the prototypes, the training.

Every function draws plain results and returns the matplotlib `Axes` or `Figure`, so that it can be
changed, shown or saved. Colour stands for labels and for nothing else; the colours can be told
apart by people who see few of them, and every label is also written out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from lapace.errors import InputError
from lapace.result import Counterfactuals, Person
from lapace.schema import Feature, Schema

try:
    from matplotlib import pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap, to_rgb
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
except ModuleNotFoundError as error:
    if error.name != "matplotlib":
        raise
    raise ImportError("Pictures need matplotlib: pip install 'lapace[plots]'.") from error

__all__ = ["illustration", "latent_map", "path", "prototypes", "training_curves"]

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Latent: TypeAlias = Mapping[str, NDArray[Any]]

# Okabe and Ito's colours without the yellow, which does not show on white.
COLOURS = ("#0072B2", "#E07B00", "#009E73", "#B5508A", "#56B4E9", "#8A5A00", "#6E6E6E", "#D55E00")
INK, SOFT, PALE, FAINT = "#22303C", "#6B7785", "#A9B3BD", "#D5DAE0"
PAPER = "#F4F6F8"
ROWS = 14  # features a picture shows at most; it says how many it leaves out


class MapsLatent(Protocol):
    """What `latent_map` asks of an explainer."""

    def latent_map(self, person: Person | None = None) -> Latent:
        """Latent points, prototypes and, where asked for, a person, as plain arrays."""


class HasPrototypes(Protocol):
    """What `prototypes` asks of an explainer: three things it says about itself."""

    @property
    def schema_(self) -> Schema:
        """The columns."""

    @property
    def labels_(self) -> tuple[Any, ...]:
        """The classifier's labels."""

    @property
    def prototypes_(self) -> Sequence[Any]:
        """The prototypes, each with number, label, cells, members, valid and probability."""


def colour(label: int) -> str:
    """The colour of a label, by its position among the labels.

    Examples:
        >>> colour(0) != colour(1)
        True
    """
    return COLOURS[label % len(COLOURS)]


def _tint(base: str, share: float) -> tuple[float, float, float]:
    """A colour thinned with white: `share` of it is left."""
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(base))
    return red, green, blue


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _named(name: str) -> str:
    """A column's name as one would say it."""
    return _short(name.replace("_", " "), 24)


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _bare(ax: Axes) -> None:
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)


# ------------------------------------------------------------------------------------------------
# One person's path


@dataclass(frozen=True)
class _Walk:
    """A path as `path` draws it: steps in order, and where the decision flips."""

    person: Person
    steps: Counterfactuals
    first: int  # the step where the decision flips; -1 where none does

    @classmethod
    def of(cls, person: Person, prototype: int | None) -> _Walk:
        steps = person.path(prototype)
        answer = person.explanation
        (index,) = np.flatnonzero(
            (answer.who == person.who) & (answer.prototype == steps.prototype[0])
        )
        at = answer.picked["first"][index]
        if not answer.ok[index, at]:
            return cls(person, steps, -1)
        # The same tau may be stored twice, on the grid and as the refined first: either will do.
        return cls(person, steps, int(np.abs(steps.tau - answer.tau[index, at]).argmin()))

    @property
    def own(self) -> Floats:
        return cast(Floats, self.person.explanation.people_cells[self.person.who])

    @property
    def states(self) -> Ints:
        """Of each step: 0 not the target, 1 the target but a limit is broken, 2 good."""
        return np.where(self.steps.ok, 2, self.steps.valid.astype(np.int64))

    @property
    def colours(self) -> tuple[str, str]:
        """Of what the classifier says now, and of what is wanted."""
        answer, who = self.person.explanation, self.person.who
        now, wanted = int(answer.label[who]), int(answer.target[who])
        return colour(now), colour(wanted if wanted >= 0 else now + 1)

    @property
    def wanted(self) -> str:
        target = self.person.target
        return f"not {self.person.label}" if target is None else str(target)

    def rows(self) -> tuple[list[int], list[int]]:
        """Features that differ where the decision flips, and those that differ only later."""
        schema, flip, end = self.steps.schema, self.steps.cells[self.first], self.steps.cells[-1]
        early = schema.changed(self.own, flip)
        late = schema.changed(self.own, end) & ~early
        order = np.argsort(-schema.gaps(self.own, flip), kind="stable")
        after = np.argsort(-schema.gaps(self.own, end), kind="stable")
        return [int(i) for i in order if early[i]], [int(i) for i in after if late[i]]


def path(person: Person, prototype: int | None = None, ax: Axes | None = None) -> Axes:
    """One person's path: what changes, and when the decision flips.

    One line per feature that changes, in the table's own words: its value today, its course along
    the path, its value where the decision flips, and its value at the prototype. The uppermost
    lines show the decision itself and, where it is known, the probability of the target.

    Args:
        person: One person of an explanation, `answer[0]`.
        prototype: Which path; by default the one whose first answer is nearest.
        ax: Where to draw; by default a figure of fitting size.

    Examples:
        >>> from lapace import Explanation
        >>> answer = Explanation.from_json(_example())
        >>> path(answer[0]).get_title(loc="left")
        'From denied to approved'
    """
    walk = _Walk.of(person, prototype)
    if walk.steps.schema.shape is not None:
        return _film(walk, ax)
    early, late = walk.rows()
    hidden = max(0, len(early) + len(late) - ROWS)
    early, late = early[:ROWS], late[: max(0, ROWS - len(early))]
    sheet = _Sheet.new(walk, 2 + len(early) + len(late) + 0.6 * bool(late), ax)
    sheet.headings()
    sheet.decision()
    sheet.probability()
    for feature in early:
        sheet.feature(feature, SOFT)
    if late:
        sheet.divide("only further along, not needed for the answer")
    for feature in late:
        sheet.feature(feature, PALE)
    sheet.finish(len(early), hidden)
    return sheet.ax


# Where the columns of the sheet stand, in hundredths of its width.
NAME, TODAY, LEFT, RIGHT, FLIP, END = 0.0, 31.0, 34.0, 70.0, 73.0, 87.0


@dataclass
class _Sheet:
    """The table-like drawing of a path, filled from the top."""

    walk: _Walk
    ax: Axes
    y: float = 0.0

    @classmethod
    def new(cls, walk: _Walk, lines: float, ax: Axes | None) -> _Sheet:
        if ax is None:
            _, ax = plt.subplots(figsize=(9.6, 1.6 + 0.4 * lines), layout="constrained")
        _bare(ax)
        ax.set_xlim(0, 100)
        ax.set_ylim(lines + 1.6, -1.0)
        return cls(walk, ax)

    def x(self, tau: Any) -> Any:
        """Where a share of the path lies on the sheet."""
        return LEFT + (RIGHT - LEFT) * tau

    def write(self, x: float, text: str, **style: Any) -> None:
        style = {"va": "center", "ha": "left", "fontsize": 9.5, "color": INK, **style}
        self.ax.text(x, self.y + 0.5, text, **style)

    def headings(self) -> None:
        self.y = -1.0
        soft = {"color": SOFT, "fontsize": 8.5}
        self.write(TODAY, "today", ha="right", **soft)
        self.write((LEFT + RIGHT) / 2, "along the path  →", ha="center", **soft)
        if self.walk.first >= 0:
            self.write(FLIP, "at the flip", weight="bold", fontsize=8.5)
        else:
            self.write(FLIP, "closest found", **soft)
        self.write(END, f"at prototype {self.walk.steps.prototype[0]}", **soft)
        self.y = 0.0

    def decision(self) -> None:
        """A band in the labels' colours."""
        walk = self.walk
        now, wanted = walk.colours
        names = (str(walk.person.label), "breaks a limit", walk.wanted)
        shades = (now, _tint(wanted, 0.45), wanted)
        for begin, end, state in _runs(walk.steps.tau, walk.states):
            self.box(begin, end, shades[state])
            self.inside(begin, end, names[state], color="white", weight="bold")
        self.write(NAME, "decision", weight="bold")
        self.write(TODAY, _short(names[0], 15), ha="right", color=now, weight="bold")
        for x, step in ((FLIP, walk.first), (END, -1)):
            good = walk.steps.valid[step] and (x == END or walk.first >= 0)
            self.write(
                x,
                _short(walk.wanted if good else names[0], 13),
                color=wanted if good else now,
                weight="bold",
            )
        self.y += 1

    def probability(self) -> None:
        """The target's probability along the path, where it is known."""
        known = self.walk.steps.probability
        there = ~np.isnan(known)
        if not there.any():
            return
        wanted = self.walk.colours[1]
        self.background()
        x, level = self.x(self.walk.steps.tau[there]), self.y + 0.88 - 0.76 * known[there]
        self.ax.fill_between(x, self.y + 0.88, level, color=wanted, alpha=0.25, lw=0)
        self.ax.plot(x, level, color=wanted, lw=1.6)
        self.write(NAME, f"probability of {_short(self.walk.wanted, 12)}")
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
        self.write(NAME, _named(feature.name))
        self.write(TODAY, _short(feature.text(self.walk.own[i]), 15), ha="right")
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
        self.write(x, arrow + _short(feature.text(cell), 15 - len(arrow)), **style)

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
            self.box(begin, end, _tint(shade, 0.5))
            if begin > 0:
                x, top, foot = self.x(begin), self.y + 0.06, self.y + 0.94
                self.ax.plot([x, x], [top, foot], color="white", lw=1.5)
            self.inside(begin, end, feature.text(float(code)) if code >= 0 else "missing")

    def background(self) -> None:
        now, wanted = self.walk.colours
        flip = self.walk.steps.tau[self.walk.first] if self.walk.first >= 0 else 1.0
        self.box(0.0, float(flip), _tint(now, 0.10))
        self.box(float(flip), 1.0, _tint(wanted, 0.12))

    def box(self, begin: float, end: float, face: Any) -> None:
        width = self.x(end) - self.x(begin)
        self.ax.add_patch(Rectangle((self.x(begin), self.y + 0.06), width, 0.88, color=face, lw=0))

    def inside(self, begin: float, end: float, text: str, **style: Any) -> None:
        """Writes into a segment, beside the line of the flip, if it has room."""
        flip = float(self.walk.steps.tau[self.walk.first])
        if begin < flip < end:
            begin, end = (begin, flip) if flip - begin > end - flip else (flip, end)
        figure = self.ax.get_figure(root=True)
        width = figure.get_figwidth() * self.ax.get_position().width if figure else 0.0
        room = width * (self.x(end) - self.x(begin)) / 100
        if room >= 0.085 * len(text) + 0.1:
            style = {"fontsize": 8.5, **style}
            self.write((self.x(begin) + self.x(end)) / 2, text, ha="center", **style)

    def divide(self, text: str) -> None:
        self.y += 0.1
        self.ax.text(NAME, self.y + 0.22, text, ha="left", va="center", fontsize=8, color=SOFT)
        self.y += 0.5

    def finish(self, early: int, hidden: int) -> None:
        """The flip, across everything, and the sentences around the table."""
        walk, schema = self.walk, self.walk.steps.schema
        if walk.first >= 0:
            x = self.x(float(walk.steps.tau[walk.first]))
            self.ax.plot([x, x], [-0.12, self.y + 0.06], color=INK, lw=1.4)
            self.ax.plot([x], [-0.12], marker="v", color=INK, ms=6, clip_on=False)
        kept = [
            _named(f.name)
            for f, moved in zip(
                schema.features, schema.changed(walk.own, walk.steps.cells).any(axis=0), strict=True
            )
            if not moved
        ]
        notes = []
        if hidden:
            notes.append(f"{_counted(hidden, 'smaller change')} not shown.")
        if kept:
            notes.append("Unchanged throughout: " + _short(", ".join(kept), 110) + ".")
        self.ax.text(
            0, self.y + 0.5, "\n".join(notes), fontsize=8, color=SOFT, va="top", linespacing=1.5
        )
        self.ax.set_title(
            f"From {walk.person.label} to {walk.wanted}",
            loc="left", fontsize=13, weight="bold", color=INK, pad=22,
        )  # fmt: skip
        self.ax.text(
            0, 1.0, self.summary(early + (hidden if early == ROWS else 0)),
            transform=self.ax.transAxes, fontsize=9.5, color=SOFT, va="bottom",
        )  # fmt: skip

    def summary(self, early: int) -> str:
        walk = self.walk
        if walk.first < 0:
            return "No step of this path holds; the closest one found is shown."
        share = walk.steps.tau[walk.first]
        return (
            f"Person {walk.person.who}, on the way to prototype {walk.steps.prototype[0]}: the "
            f"decision flips after {share:.0%} of the way, with {_counted(early, 'change')}."
        )


def _runs(tau: Floats, states: Ints) -> list[tuple[float, float, int]]:
    """Stretches of equal state: (from, to, state). A state holds until the next step."""
    begins = np.flatnonzero(np.concatenate([[True], states[1:] != states[:-1]]))
    ends = np.append(tau[begins[1:]], 1.0)
    return [
        (float(tau[begin]), float(end), int(states[begin]))
        for begin, end in zip(begins, ends, strict=True)
    ]


def _film(walk: _Walk, ax: Axes | None, frames: int = 9) -> Axes:
    """A path of images: frames from the person to the prototype, framed by the decision."""
    if ax is None:
        _, ax = plt.subplots(figsize=(9.6, 2.2), layout="constrained")
    shape = cast(tuple[int, ...], walk.steps.schema.shape)
    chosen = {int(i) for i in np.linspace(0, len(walk.steps) - 1, frames).round()}
    chosen |= {walk.first} if walk.first >= 0 else set()
    for place, step in enumerate(sorted(chosen)):
        image = walk.steps.cells[step].reshape(shape)
        ax.imshow(image, cmap="gray_r", extent=(place + 0.06, place + 0.94, 0.94, 0.06))
        shade = walk.colours[1] if walk.states[step] == 2 else walk.colours[0]
        flip = step == walk.first
        ax.add_patch(
            Rectangle((place + 0.06, 0.06), 0.88, 0.88, fill=False, ec=shade, lw=4 if flip else 2)
        )
        note = "the flip" if flip else f"{walk.steps.tau[step]:.0%}"
        weight = "bold" if flip else "normal"
        ax.text(place + 0.5, 1.12, note, ha="center", va="center", color=INK, weight=weight)
    _bare(ax)
    ax.set_xlim(0, len(chosen))
    ax.set_ylim(1.25, 0)
    title = f"From {walk.person.label} to {walk.wanted}"
    ax.set_title(title, loc="left", fontsize=13, weight="bold", color=INK)
    return ax


# ------------------------------------------------------------------------------------------------
# The latent map


def latent_map(
    latent: MapsLatent | Latent, person: Person | None = None, ax: Axes | None = None
) -> Axes:
    """Latent space seen from where it is widest, with the prototypes and a person's paths.

    Every dot is a latent point of the label it is coloured by; numbered discs are prototypes, a
    cross one that the classifier refused. From a person straight lines lead to the prototypes of
    the target; a ring marks where the decision flips on each, the nearest in bold.

    Args:
        latent: A fitted explainer, or the plain arrays its `latent_map` gives.
        person: Whose paths to draw, one person of an explanation; with plain arrays these must
            hold the person's `person_z`.
        ax: Where to draw; by default a new figure.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> latent = {
        ...     "labels": np.array(["no", "yes"], dtype=object),
        ...     "z": rng.normal(size=(60, 5)), "label": np.repeat([0, 1], 30),
        ...     "prototype_z": rng.normal(size=(2, 5)), "prototype_label": np.array([0, 1]),
        ...     "prototype_number": np.array([0, 1]), "prototype_valid": np.array([True, True]),
        ... }
        >>> latent_map(latent).get_title(loc="left")
        'The latent map'
    """
    record = latent if isinstance(latent, Mapping) else latent.latent_map(person)
    if ax is None:
        _, ax = plt.subplots(figsize=(7.2, 6.6), layout="constrained")
    view = _View.of(record["z"])
    _clouds(ax, record, view)
    if person is not None:
        _lines(ax, record, view, person)
    _discs(ax, record, view)
    _frame(ax)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_xlabel(view.name(0), color=SOFT)
    ax.set_ylabel(view.name(1), color=SOFT)
    ax.set_title("The latent map", loc="left", fontsize=13, weight="bold", color=INK)
    ax.scatter([], [], s=150, color=SOFT, ec="white", label="prototype")
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.05)}
    ax.legend(**below, ncols=3, frameon=False, labelcolor=INK)
    return ax


@dataclass(frozen=True)
class _View:
    """The two directions in which latent points spread the most."""

    centre: Floats
    axes: Floats  # (2, h)
    shares: Floats | None  # of the spread that each shows; None where nothing is left out

    @classmethod
    def of(cls, z: Floats) -> _View:
        centre = z.mean(axis=0)
        if z.shape[1] <= 2:
            return cls(np.zeros(z.shape[1]), np.eye(2, z.shape[1]), None)
        _, lengths, axes = np.linalg.svd(z - centre, full_matrices=False)
        return cls(centre, axes[:2], lengths[:2] ** 2 / (lengths**2).sum())

    def __call__(self, z: Floats) -> Floats:
        """Latent points as seen: (n, 2)."""
        return cast(Floats, (np.atleast_2d(z) - self.centre) @ self.axes.T)

    def name(self, axis: int) -> str:
        if self.shares is None:
            return f"latent dimension {axis + 1}"
        return f"principal direction {axis + 1} ({self.shares[axis]:.0%} of the spread)"


def _clouds(ax: Axes, record: Latent, view: _View) -> None:
    points = view(record["z"])
    # Drawn in random order, so that no label lies on top of the others.
    order = np.random.default_rng(0).permutation(len(points))
    shades = np.array([_tint(colour(int(k)), 0.55) for k in record["label"]])
    ax.scatter(*points[order].T, s=9, c=shades[order], lw=0, alpha=0.75, rasterized=True)
    for k in np.unique(record["label"]):
        name = str(record["labels"][k])
        ax.scatter([], [], s=36, color=colour(int(k)), label=name)


def _discs(ax: Axes, record: Latent, view: _View) -> None:
    points = view(record["prototype_z"])
    for (x, y), label, number, valid in zip(
        points,
        record["prototype_label"],
        record["prototype_number"],
        record["prototype_valid"],
        strict=True,
    ):
        if not valid:
            ax.scatter([x], [y], s=90, marker="X", color=colour(int(label)), ec="white", zorder=5)
            continue
        _disc(ax, x, y, colour(int(label)), int(number))


def _disc(ax: Axes, x: float, y: float, shade: str, number: int) -> None:
    style: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 6}
    ax.scatter([x], [y], s=240, color=shade, ec="white", lw=1.5, zorder=5)
    ax.text(x, y, str(number), color="white", weight="bold", fontsize=9, **style)


def _star(ax: Axes, point: Floats, name: str | None = None) -> None:
    style: dict[str, Any] = {"marker": "*", "color": INK, "ec": "white", "lw": 1.2}
    ax.scatter(*point, s=330, zorder=7, label=name, **style)


def _lines(ax: Axes, record: Latent, view: _View, person: Person) -> None:
    """Straight lines from a person to the prototypes, with rings where the decision flips."""
    if "person_z" not in record:
        raise InputError("These arrays hold no person. Make them with latent_map(person).")
    begin, numbers = record["person_z"], record["prototype_number"].tolist()
    for rank, prototype in enumerate(person.prototypes):
        walk, end = _Walk.of(person, prototype), record["prototype_z"][numbers.index(prototype)]
        line = view(np.stack([begin, end]))
        width, shade = (2.4, INK) if rank == 0 else (1.2, SOFT)
        ax.plot(*line.T, color=shade, lw=width, zorder=3, solid_capstyle="round")
        if walk.first < 0:
            continue
        share = walk.steps.tau[walk.first]
        ring = view((1 - share) * begin + share * end)
        text = "where the decision flips" if rank == 0 else None
        ax.scatter(*ring.T, s=46, color="white", ec=shade, lw=1.6, zorder=4, label=text)
    _star(ax, view(begin)[0], f"person {person.who}")


def _frame(ax: Axes) -> None:
    for spine in ax.spines.values():
        spine.set_color(FAINT)
    ax.set_xticks([])
    ax.set_yticks([])


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
    if "step" not in history or not names:
        raise InputError("A history needs 'step' and at least one value recorded at each step.")
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
    ax.plot(step, values, color=COLOURS[0], lw=1.6)
    finite = values[np.isfinite(values)]
    if len(finite):
        low, high = np.quantile(finite, [0.0, 0.97])
        margin = 0.08 * (high - low) or 0.5
        ax.set_ylim(low - margin, high + margin)
    ax.set_title(f"ends at {values[-1]:.3g}", loc="right", fontsize=8.5, color=SOFT)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(colors=SOFT, labelsize=8)


# ------------------------------------------------------------------------------------------------
# Prototypes as a table


def prototypes(
    explainer: HasPrototypes,
    label: Any = None,
    person: Person | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Prototypes side by side, a column each, what sets them apart highlighted.

    Numbers are shaded by how far above or below the others they lie, in the ranks of the training
    table; a category is shaded where it is not the usual one. With a person, who then stands in
    the first column, everything is measured from them, and what is the same is pale.

    Args:
        explainer: A fitted explainer.
        label: Only the prototypes of this label.
        person: One person of an explanation to compare with.
        ax: Where to draw; by default a figure of fitting size.

    Examples:
        >>> from types import SimpleNamespace as Some
        >>> schema = Schema.infer([{"age": 20 + i % 50, "home": "ab"[i % 2]} for i in range(100)])
        >>> young, old = (Some(number=k, label=k, cells=np.array([30.0 + 20 * k, k]), members=50,
        ...     valid=True, probability=0.9) for k in (0, 1))
        >>> bank = Some(schema_=schema, labels_=("no", "yes"), prototypes_=(young, old))
        >>> [text.get_text() for text in prototypes(bank).texts if "30" in text.get_text()]
        ['30']
    """
    chosen = [p for p in explainer.prototypes_ if label is None or explainer.labels_[p.label] == label]
    if not chosen:
        known = ", ".join(map(repr, explainer.labels_))
        raise InputError(f"There are no prototypes of {label!r}. The labels are {known}.")
    schema = explainer.schema_ if person is None else person.explanation.schema
    if schema.shape is not None:
        raise InputError("Prototypes of images are not a table: draw their cells with imshow.")
    cells = np.stack([p.cells for p in chosen])  # (columns, d)
    own = None if person is None else person.explanation.people_cells[person.who]
    heat = _heat(schema, cells, own)
    rows = np.argsort(-np.abs(heat).max(axis=0), kind="stable")[: 2 * ROWS]
    rows = np.sort(rows)
    table = _Table.new(schema, rows, len(chosen), person is not None, ax)
    for column, prototype in enumerate(chosen):
        table.heading(column, prototype, str(explainer.labels_[prototype.label]))
        table.column(column, cells[column], heat[column], own)
    if person is not None and own is not None:
        table.person(person, own)
    table.finish(len(schema.features) - len(rows))
    return table.ax


def _heat(schema: Schema, cells: Floats, own: Floats | None) -> Floats:
    """How far cells are above or below what they are compared with, from -1 to 1."""
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
            heat[:, i] = np.where(values == usual, 0.0, 0.35)
    if own is not None:
        heat[~schema.changed(own, cells)] = 0.0
    return np.nan_to_num(heat)


def _scores(feature: Feature, values: Floats) -> Floats:
    """Values by rank where the ranks are known, else by their share of the range."""
    if feature.knots is None:
        return 4 * (values - feature.lower) / feature.span
    return np.where(np.isnan(values), np.nan, feature.knots.scores(np.nan_to_num(values)))


MORE, LESS, OTHER = "#5B3A8C", "#1B7837", "#C9A227"  # none the colour of a first label


@dataclass
class _Table:
    """The drawing of prototypes: feature names on the left, a column each."""

    schema: Schema
    rows: Ints
    columns: int
    shift: int  # 1 where a person stands in the first column
    ax: Axes

    @classmethod
    def new(
        cls, schema: Schema, rows: Ints, columns: int, with_person: bool, ax: Axes | None
    ) -> _Table:
        wide = columns + with_person
        if ax is None:
            size = (2.0 + 0.95 * wide, 1.3 + 0.3 * len(rows))
            _, ax = plt.subplots(figsize=size, layout="constrained")
        _bare(ax)
        ax.set_xlim(-2.0, wide)
        ax.set_ylim(len(rows) + (1.8 if len(rows) < len(schema.features) else 1.0), -2.4)
        for y, i in enumerate(rows):
            name = _named(schema.features[i].name)
            ax.text(-0.1, y + 0.5, name, ha="right", va="center", fontsize=9.5, color=INK)
        return cls(schema, rows, columns, int(with_person), ax)

    def cell(self, x: float, y: float, text: str, face: Any = PAPER, **style: Any) -> None:
        self.ax.add_patch(Rectangle((x + 0.03, y + 0.05), 0.94, 0.9, color=face, lw=0))
        style = {"fontsize": 8.5, "color": INK, **style}
        self.ax.text(x + 0.5, y + 0.5, _short(text, 12), ha="center", va="center", **style)

    def heading(self, column: int, prototype: Any, label: str) -> None:
        x, shade = column + self.shift, colour(prototype.label)
        self.cell(x, -2.3, label, shade, color="white", weight="bold")
        refused = "" if prototype.valid else "refused"
        known = "" if np.isnan(prototype.probability) else f"{prototype.probability:.0%}"
        style: dict[str, Any] = {"ha": "center", "va": "center"}
        self.ax.text(x + 0.5, -0.95, str(prototype.number), weight="bold", color=INK, **style)
        self.ax.text(x + 0.5, -0.3, refused or known, fontsize=8.5, color=SOFT, **style)

    def column(self, column: int, cells: Floats, heat: Floats, own: Floats | None) -> None:
        for y, i in enumerate(self.rows):
            text, share = self.schema.features[i].text(cells[i]), float(heat[i])
            face = _tint(MORE if share > 0 else LESS, 0.08 + 0.42 * abs(share))
            if not self.schema.features[i].numeric:
                face = _tint(OTHER, 0.4)
            if abs(share) < (0.05 if own is None else 1e-9):
                self.cell(column + self.shift, y, text, color=INK if own is None else SOFT)
            else:
                self.cell(column + self.shift, y, text, face)

    def person(self, person: Person, own: Floats) -> None:
        label = int(person.explanation.label[person.who])
        self.cell(0, -2.3, str(person.label), colour(label), color="white", weight="bold")
        style: dict[str, Any] = {"ha": "center", "va": "center", "color": INK, "weight": "bold"}
        self.ax.text(0.5, -0.95, f"person {person.who}", fontsize=9.5, **style)
        for y, i in enumerate(self.rows):
            self.cell(0, y, self.schema.features[i].text(own[i]), "white", weight="bold")

    def finish(self, hidden: int) -> None:
        style: dict[str, Any] = {"ha": "right", "va": "center", "color": SOFT}
        y = len(self.rows) + 0.6
        usual = "than the person" if self.shift else "than most here"
        self.ax.text(-0.1, y, usual, fontsize=8.5, **style)
        for x, shade, text in ((0, MORE, "more"), (1, LESS, "less"), (2, OTHER, "other")):
            self.ax.scatter([x + 0.15], [y], marker="s", s=60, color=_tint(shade, 0.45))
            self.ax.text(x + 0.32, y, text, fontsize=8.5, color=SOFT, va="center")
        if hidden:
            text = f"{_counted(hidden, 'column')} that hardly differ are not shown"
            self.ax.text(-0.1, y + 0.8, text, ha="left", va="center", fontsize=8.5, color=SOFT)
        self.ax.text(-0.1, -0.95, "prototype", fontsize=9.5, **style)
        self.ax.text(-0.1, -0.3, "probability of its label", fontsize=8.5, **style)


# ------------------------------------------------------------------------------------------------
# The two-dimensional illustration


def illustration(
    points: Floats,
    labels: Ints,
    decide: Callable[[Floats], Ints],
    latent: Latent,
    person: Person,
) -> Figure:
    """The idea in three panels: what the classifier sees, what was learned, the paths.

    For a table of two numbers: its rows on the classifier's regions; the latent clusters with
    their centroids and straight lines from a person to those of the target; the same lines,
    decoded.

    Args:
        points: Rows of the table, as cells: (n, 2).
        labels: What the classifier says of them, as positions among the labels.
        decide: The classifier on cells: (m, 2) in, m positions among the labels out.
        latent: What `latent_map(person)` of the explainer gives; two latent dimensions show best.
        person: Whose paths to draw.

    Examples:
        See `examples/illustration.py`, which makes the picture that opens the README.
    """
    if points.shape[1] != 2:
        raise InputError(f"The illustration is of two columns; these are {points.shape[1]}.")
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13.2, 5.1), layout="constrained")
    figure.get_layout_engine().set(wspace=0.05)  # type: ignore[union-attr]
    for ax in (left, right):
        _regions(ax, points, decide, 0.17 if ax is left else 0.13)
    shades = [colour(int(k)) for k in labels]
    left.scatter(*points.T, s=7, c=shades, lw=0, alpha=0.65, rasterized=True)
    right.scatter(*points.T, s=4, c=shades, lw=0, alpha=0.18, rasterized=True)
    _star(left, person.explanation.people_cells[person.who])
    view = _View.of(latent["z"])
    _clouds(middle, latent, view)
    _lines(middle, latent, view, person)
    _discs(middle, latent, view)
    _decoded(right, person)
    titles = (
        ("1   The classifier", "and the people it was asked about"),
        ("2   What is learned", "latent clusters, each with a centroid"),
        ("3   The answer", "straight latent lines, decoded: paths"),
    )
    for ax, (title, words) in zip((left, middle, right), titles, strict=True):
        _frame(ax)
        ax.set_title(title, loc="left", fontsize=14, weight="bold", color=INK, pad=22)
        ax.text(0, 1.015, words, transform=ax.transAxes, color=SOFT, fontsize=11, va="bottom")
    middle.scatter([], [], s=150, color=SOFT, ec="white", label="centroid; decoded, a prototype")
    handles, texts = middle.get_legend_handles_labels()
    figure.legend(
        handles, texts, loc="outside lower center", ncols=len(texts), frameon=False,
        labelcolor=INK, fontsize=11, handletextpad=0.3,
    )  # fmt: skip
    return figure


def _regions(ax: Axes, points: Floats, decide: Callable[[Floats], Ints], share: float) -> None:
    """The classifier's regions: tinted areas, with their borders drawn."""
    low, high = points.min(axis=0), points.max(axis=0)
    low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
    x, y = (np.linspace(low[k], high[k], 240) for k in (0, 1))
    across, up = np.meshgrid(x, y)
    codes = decide(np.stack([across.ravel(), up.ravel()], axis=1)).reshape(across.shape)
    tints = ListedColormap([_tint(colour(k), share) for k in range(int(codes.max()) + 1)])
    ax.pcolormesh(x, y, codes, cmap=tints, vmin=-0.5, vmax=codes.max() + 0.5, rasterized=True)
    for k in range(int(codes.max())):
        ax.contour(x, y, codes, levels=[k + 0.5], colors="white", linewidths=2.0)
    ax.set_xlim(x[0], x[-1])
    ax.set_ylim(y[0], y[-1])


def _decoded(ax: Axes, person: Person) -> None:
    """A person's paths in the table's own two columns."""
    for rank, prototype in enumerate(person.prototypes):
        walk = _Walk.of(person, prototype)
        cells = walk.steps.cells
        shade = INK if rank == 0 else SOFT
        ax.plot(*cells.T, color=shade, lw=2.6 if rank == 0 else 1.6, zorder=3, alpha=0.95)
        ax.scatter(*cells.T, s=9, color=shade, lw=0, zorder=3)
        _disc(ax, *cells[-1], walk.colours[1], prototype)
        if walk.first >= 0:
            ax.scatter(*cells[walk.first], s=46, color="white", ec=shade, lw=1.6, zorder=4)
    _star(ax, person.explanation.people_cells[person.who])
