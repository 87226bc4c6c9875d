"""The latent space as a map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from matplotlib import pyplot as plt
from matplotlib import rc_context
from matplotlib.axes import Axes
from numpy.typing import NDArray

from lapace.arrays import Floats
from lapace.errors import InputError
from lapace.plots import style
from lapace.plots.paths import DrawnPath
from lapace.plots.style import INK, SOFT, colour, tint, write
from lapace.result import InstanceExplanation

Latent: TypeAlias = Mapping[str, NDArray[Any]]


@rc_context(style.LITERAL)
def latent_map(
    latent: Any, instance: InstanceExplanation | None = None, ax: Axes | None = None
) -> Axes:
    """Draws the first two principal components of latent space, prototypes and paths.

    Every dot is a latent point in the colour of its label; numbered discs are prototypes, a cross
    one that the classifier refused. From an instance lines lead to the prototypes of the
    target, as its paths do; a ring marks where the decision flips on each, the nearest in bold.

    Args:
        latent: A fitted explainer, or the plain arrays its `latent_map` gives.
        instance: One instance of an explanation, whose paths are drawn; plain arrays must have its
            `instance_z`.
        ax: Axes to draw on; by default those of a new figure.

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
        style.check_instance(instance, "latent_map")
    arrays: Latent = latent if isinstance(latent, Mapping) else latent.latent_map(instance)
    if ax is None:
        _, ax = plt.subplots(figsize=(7.2, 6.6), layout="constrained")
    project = _Projection(arrays["z"])
    _draw_points(ax, arrays, project)
    if instance is not None:
        _draw_lines(ax, arrays, project, instance)
    _draw_prototypes(ax, arrays, project)
    style.frame(ax)
    _clip(ax, project, arrays)
    ax.set_aspect("equal", adjustable="box")
    ax.set_xlabel(project.axis_name(0), color=SOFT)
    ax.set_ylabel(project.axis_name(1), color=SOFT)
    style.title(ax, "The latent map", pad=20 if project.shares is not None else 6)
    if project.shares is not None:
        text = f"These two directions show {project.shares.sum():.0%} of the spread of all codes."
        look: dict[str, Any] = {"ha": "left", "va": "bottom", "fontsize": 9, "color": SOFT}
        write(ax, 0, 1.005, text, transform=ax.transAxes, **look)
    ax.scatter([], [], s=150, color=SOFT, ec="white", label="prototype")
    if not arrays["prototype_valid"].all():
        ax.scatter([], [], s=90, marker="X", color=SOFT, ec="white", label="refused prototype")
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.05)}
    ax.legend(**below, ncols=3, frameon=False, labelcolor=INK)
    return ax


def _clip(ax: Axes, project: _Projection, arrays: Latent) -> None:
    """Sets limits that leave out the outermost hundredth of the points, but no prototype."""
    points = project(arrays["z"])
    low, high = np.quantile(points, [0.01, 0.99], axis=0)
    kept = [project(arrays[name]) for name in ("prototype_z", "instance_z") if name in arrays]
    low = np.min([low, *(p.min(axis=0) for p in kept)], axis=0)
    high = np.max([high, *(p.max(axis=0) for p in kept)], axis=0)
    margin = 0.06 * (high - low)
    ax.set_xlim(low[0] - margin[0], high[0] + margin[0])
    ax.set_ylim(low[1] - margin[1], high[1] + margin[1])


class _Projection:
    """A projection on the first two principal components; two dimensions stay as they are."""

    def __init__(self, z: Floats) -> None:
        self.centre, self.axes, self.shares = np.zeros(z.shape[1]), np.eye(2, z.shape[1]), None
        if z.shape[1] > 2:  # by hand: scikit-learn takes longer to import than this to draw
            self.centre = z.mean(axis=0)
            _, lengths, axes = np.linalg.svd(z - self.centre, full_matrices=False)
            self.axes, self.shares = axes[:2], lengths[:2] ** 2 / (lengths**2).sum()

    def __call__(self, z: Floats) -> Floats:
        """Projects latent points: (n, 2)."""
        points: Floats = (np.atleast_2d(z) - self.centre) @ self.axes.T
        return points

    def axis_name(self, axis: int) -> str:
        if self.shares is None:
            return f"latent dimension {axis + 1}"
        return f"principal component {axis + 1} ({self.shares[axis]:.0%} of the variance)"


def _dots(ax: Axes, points: Floats, **look: Any) -> None:
    ax.scatter(*np.atleast_2d(points).T, **look)


def _draw_points(ax: Axes, arrays: Latent, project: _Projection) -> None:
    points = project(arrays["z"])
    # Drawn in random order, so that no label lies on top of the others.
    order = np.random.default_rng(0).permutation(len(points))
    shades = np.array([tint(colour(int(k)), 0.55) for k in arrays["label"]])
    _dots(ax, points[order], s=9, c=shades[order], lw=0, alpha=0.75, rasterized=True)
    for k in np.unique(arrays["label"]):
        ax.scatter([], [], s=36, color=colour(int(k)), label=str(arrays["labels"][k]))


def _draw_prototypes(ax: Axes, arrays: Latent, project: _Projection) -> None:
    names = ("prototype_label", "prototype_number", "prototype_valid")
    columns = (arrays[name] for name in names)
    for point, label, number, valid in zip(project(arrays["prototype_z"]), *columns, strict=True):
        shade = colour(int(label))
        if not valid:
            _dots(ax, point, marker="X", ec="white", s=90, color=shade, zorder=5)
            continue
        _dots(ax, point, s=240, color=shade, ec="white", lw=1.5, zorder=5)
        look: dict[str, Any] = {"color": "white", "weight": "bold", "fontsize": 9, "zorder": 6}
        write(ax, point[0], point[1], str(number), **look)


def _draw_lines(
    ax: Axes, arrays: Latent, project: _Projection, instance: InstanceExplanation
) -> None:
    """Draws paths from an instance to the prototypes, with rings where the decision flips."""
    if "instance_z" not in arrays:
        raise InputError("These arrays hold no instance. Make them with latent_map(instance).")
    start, numbers = arrays["instance_z"], arrays["prototype_number"].tolist()
    for rank, prototype in enumerate(instance.prototypes):
        drawn = DrawnPath.of(instance, prototype)
        place = numbers.index(prototype)
        straight = np.stack([start, arrays["prototype_z"][place]])
        line = project(arrays["path_z"][place] if "path_z" in arrays else straight)
        width, shade = (2.4, INK) if rank == 0 else (1.2, SOFT)
        ax.plot(*line.T, color=shade, lw=width, zorder=3, solid_capstyle="round")
        if drawn.flips:
            text = "where the decision flips" if rank == 0 else None
            shares = np.linspace(0.0, 1.0, len(line))
            ring = [np.interp(drawn.tau, shares, coordinate) for coordinate in line.T]
            _dots(ax, np.array(ring), s=46, color="white", ec=shade, lw=1.6, zorder=4, label=text)
    look: dict[str, Any] = {"marker": "*", "s": 330, "color": INK, "ec": "white", "lw": 1.2}
    _dots(ax, project(start)[0], **look, zorder=7, label=f"instance {instance.name}")
