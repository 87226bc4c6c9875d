"""Latent space as a map, and the idea of the library in three panels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lapace.arrays import Floats, Ints
from lapace.errors import InputError
from lapace.plots.paths import Walk
from lapace.plots.style import INK, SOFT, colour, frame, headline, literal, one, tint
from lapace.result import InstanceExplanation

__all__ = ["illustration", "latent_map"]

Latent: TypeAlias = Mapping[str, NDArray[Any]]

DISC = 20.0  # points two prototypes' numbers lie apart at least


class MapsLatent(Protocol):
    """What `latent_map` asks of an explainer."""

    def latent_map(self, instance: InstanceExplanation | None = None) -> Latent:
        """Latent points, prototypes and, where asked for, an instance, as plain arrays."""


def latent_map(
    latent: MapsLatent | Latent, instance: InstanceExplanation | None = None, ax: Axes | None = None
) -> Axes:
    """Latent space seen from where it is widest, with the prototypes and an instance's paths.

    Every dot is a latent point of the label it is coloured by; numbered discs are prototypes, a
    cross one that the classifier refused. From an instance straight lines lead to the prototypes of
    the target; a ring marks where the decision flips on each, the nearest in bold.

    Args:
        latent: A fitted explainer, or the plain arrays its `latent_map` gives.
        instance: Whose paths to draw, one instance of an explanation; with plain arrays these must
            hold the instance's `instance_z`.
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
    if instance is not None:
        one(instance, "latent_map")
    record = latent if isinstance(latent, Mapping) else latent.latent_map(instance)
    if ax is None:
        _, ax = plt.subplots(figsize=(7.2, 6.6), layout="constrained")
    view = _View.of(record["z"])
    _clouds(ax, record, view)
    if instance is not None:
        _lines(ax, record, view, instance, f"instance {instance.name}")
    _discs(ax, record, view)
    frame(ax)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_xlabel(view.name(0), color=SOFT)
    ax.set_ylabel(view.name(1), color=SOFT)
    headline(ax, "The latent map")
    ax.scatter([], [], s=150, color=SOFT, ec="white", label="prototype")
    if not record["prototype_valid"].all():
        ax.scatter([], [], s=90, marker="X", color=SOFT, ec="white", label="refused prototype")
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.05)}
    literal(ax.legend(**below, ncols=3, frameon=False, labelcolor=INK).get_texts())
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
        seen: Floats = (np.atleast_2d(z) - self.centre) @ self.axes.T
        return seen

    def name(self, axis: int) -> str:
        if self.shares is None:
            return f"latent dimension {axis + 1}"
        return f"principal direction {axis + 1} ({self.shares[axis]:.0%} of the spread)"


def _dots(ax: Axes, points: Floats, **style: Any) -> None:
    ax.scatter(points[:, 0], points[:, 1], **style)


def _clouds(ax: Axes, record: Latent, view: _View) -> None:
    points = view(record["z"])
    # Drawn in random order, so that no label lies on top of the others.
    order = np.random.default_rng(0).permutation(len(points))
    shades = np.array([tint(colour(int(k)), 0.55) for k in record["label"]])
    _dots(ax, points[order], s=9, c=shades[order], lw=0, alpha=0.75, rasterized=True)
    for k in np.unique(record["label"]):
        name = str(record["labels"][k])
        ax.scatter([], [], s=36, color=colour(int(k)), label=name)


def _discs(ax: Axes, record: Latent, view: _View, apart: float = DISC) -> None:
    points = view(record["prototype_z"])
    spread = np.ptp(view(record["z"]), axis=0)
    inches = ax.get_position().size * ax.get_figure(root=True).get_size_inches()  # type: ignore[union-attr]
    for place, point, label, number, valid in zip(
        _apart(points, apart / 72 * float((spread / inches).max())),
        points,
        record["prototype_label"],
        record["prototype_number"],
        record["prototype_valid"],
        strict=True,
    ):
        if not valid:
            cross: dict[str, Any] = {"marker": "X", "ec": "white", "s": 90, "zorder": 5}
            _dots(ax, point[None], color=colour(int(label)), **cross)
            continue
        if np.any(place != point):
            _dots(ax, point[None], s=12, color=colour(int(label)), zorder=4)
            ax.plot(*np.stack([point, place]).T, color=colour(int(label)), lw=1.0, zorder=4)
        _disc(ax, place, colour(int(label)), int(number))


def _apart(points: Floats, least: float) -> Floats:
    """Places near points, so moved that none lies closer to another than `least`.

    Examples:
        >>> _apart(np.array([[0.0, 0.0], [0.0, 0.0], [9.0, 0.0]]), 1.0).round(2)
        array([[ 0. , -0.5],
               [ 0. ,  0.5],
               [ 9. ,  0. ]])
    """
    places = points.copy()
    pairs = [(i, j) for j in range(len(points)) for i in range(j)]
    for _ in range(50):
        moved = False
        for i, j in pairs:
            gap = places[j] - places[i]
            length = float(np.hypot(*gap))
            if length < least * 0.999:
                way = gap / length if length else np.array([0.0, 1.0])
                places[i] -= way * (least - length) / 2
                places[j] += way * (least - length) / 2
                moved = True
        if not moved:
            break
    return places


def _disc(ax: Axes, point: Floats, shade: str, number: int) -> None:
    style: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 6}
    _dots(ax, point[None], s=240, color=shade, ec="white", lw=1.5, zorder=5)
    ax.text(point[0], point[1], str(number), color="white", weight="bold", fontsize=9, **style)


def _ring(ax: Axes, point: Floats, shade: str, name: str | None = None) -> None:
    _dots(ax, point[None], s=46, color="white", ec=shade, lw=1.6, zorder=4, label=name)


def _star(ax: Axes, point: Floats, name: str | None = None) -> None:
    style: dict[str, Any] = {"marker": "*", "color": INK, "ec": "white", "lw": 1.2}
    _dots(ax, point[None], s=330, zorder=7, label=name, **style)


def _lines(ax: Axes, record: Latent, view: _View, instance: InstanceExplanation, name: str) -> None:
    """Straight lines from an instance to the prototypes, with rings where the decision flips."""
    if "instance_z" not in record:
        raise InputError("These arrays hold no instance. Make them with latent_map(instance).")
    begin, numbers = record["instance_z"], record["prototype_number"].tolist()
    for rank, prototype in enumerate(instance.prototypes):
        walk, end = Walk.of(instance, prototype), record["prototype_z"][numbers.index(prototype)]
        line = view(np.stack([begin, end]))
        width, shade = (2.4, INK) if rank == 0 else (1.2, SOFT)
        ax.plot(line[:, 0], line[:, 1], color=shade, lw=width, zorder=3, solid_capstyle="round")
        if not walk.flips:
            continue
        text = "where the decision flips" if rank == 0 else None
        _ring(ax, (1 - walk.tau) * line[0] + walk.tau * line[1], shade, text)
    _star(ax, view(begin)[0], name)


# ------------------------------------------------------------------------------------------------
# The two-dimensional illustration


def illustration(
    points: Floats,
    labels: Ints,
    decide: Callable[[Floats], Ints],
    latent: Latent,
    instance: InstanceExplanation,
) -> Figure:
    """The idea in three panels: what the classifier sees, what was learned, the paths.

    For a table of two numbers: its rows on the classifier's regions; the latent clusters with
    their centroids and straight lines from an instance to those of the target; the same lines,
    decoded.

    Args:
        points: Rows of the table, as cells: (n, 2).
        labels: What the classifier says of them, as positions among the labels.
        decide: The classifier on cells: (m, 2) in, m positions among the labels out.
        latent: What `latent_map(instance)` of the explainer gives; two latent dimensions show best.
        instance: Whose paths to draw.

    Examples:
        See `examples/illustration.py`, which makes the picture that opens the README.
    """
    one(instance, "illustration")
    if points.shape[1] != 2:
        raise InputError(f"The illustration is of two columns; these are {points.shape[1]}.")
    spaced = {"wspace": 0.05}
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(13.2, 5.1), layout="constrained", gridspec_kw=spaced
    )
    for ax in (left, right):
        _regions(ax, points, decide, 0.17 if ax is left else 0.13)
    shades = [colour(int(k)) for k in labels]
    _dots(left, points, s=7, c=shades, lw=0, alpha=0.65, rasterized=True)
    _dots(right, points, s=4, c=shades, lw=0, alpha=0.18, rasterized=True)
    _star(left, instance.explanation.instances[instance.position])
    view = _View.of(latent["z"])
    _clouds(middle, latent, view)
    _lines(middle, latent, view, instance, "someone refused")
    _discs(middle, latent, view, apart=0.0)  # where the lines end, exactly
    _decoded(right, instance)
    titles = (
        ("1   The classifier", "and the instances it was asked about"),
        ("2   What is learned", "latent clusters, each with a centroid"),
        ("3   The answer", "straight latent lines, decoded: paths"),
    )
    for ax, (name, words) in zip((left, middle, right), titles, strict=True):
        frame(ax)
        headline(ax, name, fontsize=14, pad=22)
        ax.text(0, 1.015, words, transform=ax.transAxes, color=SOFT, fontsize=11, va="bottom")
    middle.scatter([], [], s=150, color=SOFT, ec="white", label="centroid; decoded, a prototype")
    handles, texts = middle.get_legend_handles_labels()
    below: dict[str, Any] = {"loc": "outside lower center", "ncols": len(texts), "frameon": False}
    legend = figure.legend(handles, texts, **below, labelcolor=INK, fontsize=11, handletextpad=0.3)
    literal(legend.get_texts())
    return figure


def _regions(ax: Axes, points: Floats, decide: Callable[[Floats], Ints], share: float) -> None:
    """The classifier's regions: tinted areas, with their borders drawn."""
    low, high = points.min(axis=0), points.max(axis=0)
    low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
    x, y = (np.linspace(low[k], high[k], 240) for k in (0, 1))
    across, up = np.meshgrid(x, y)
    codes = decide(np.stack([across.ravel(), up.ravel()], axis=1)).reshape(across.shape)
    tints = ListedColormap([tint(colour(k), share) for k in range(int(codes.max()) + 1)])
    ax.pcolormesh(x, y, codes, cmap=tints, vmin=-0.5, vmax=codes.max() + 0.5, rasterized=True)
    for k in range(int(codes.max())):
        ax.contour(x, y, codes, levels=[k + 0.5], colors="white", linewidths=2.0)
    ax.set_xlim(x[0], x[-1])
    ax.set_ylim(y[0], y[-1])


def _decoded(ax: Axes, instance: InstanceExplanation) -> None:
    """An instance's paths in the table's own two columns."""
    for rank, prototype in enumerate(instance.prototypes):
        walk = Walk.of(instance, prototype)
        cells = walk.steps.cells
        width, shade = (2.6, INK) if rank == 0 else (1.6, SOFT)
        ax.plot(cells[:, 0], cells[:, 1], color=shade, lw=width, zorder=3)
        _dots(ax, cells, s=9, color=shade, lw=0, zorder=3)
        _disc(ax, cells[-1], walk.colours[1], prototype)
        if walk.flips:
            _ring(ax, cells[walk.first], shade)
    _star(ax, instance.explanation.instances[instance.position])
