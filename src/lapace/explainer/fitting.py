"""From a table and a classifier to everything that explaining needs.

Labels from the classifier, clusters within each label, a trained model, where its rows lie, which
categories go together, and prototypes: centroids decoded and judged. A centroid on the wrong side
is moved to where the classifier accepts its cluster's members, and judged again; if that fails it
is dropped, and says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from lapace.arrays import Floats, Ints
from lapace.categories import CategoryTree
from lapace.classifiers import Classifier, Label
from lapace.errors import CentroidWarning, InputError
from lapace.model import Shape
from lapace.paths import Decoder, block_states, states_of
from lapace.schema import Knots, Schema
from lapace.training import Recipe, cluster_counts, densities, fit, partition

__all__ = ["Fitted", "Prototype", "learn"]

Progress: TypeAlias = Callable[[str, int, int], None]

EMPHASIS = 1.5  # how much a category counts when rows are grouped, against a standardised number
MEMBERS = 1000  # members of a cluster a repair looks at, at most
STAND_INS, CELLS = 8_000, 2_000_000  # made-up rows per label to find a near one among; their cells


@dataclass(frozen=True)
class Prototype:
    """A centroid, decoded and judged.

    Attributes:
        number: As in the report; paths and answers name prototypes by it.
        label: The class it stands for, as a position in the labels.
        cells: Its row.
        z: Its latent point.
        valid: Whether the classifier gives it its own label.
        probability: The classifier's probability of that label; NaN where unknown.
        members: Training rows in its cluster.
        valid_before: Whether the centroid as trained was valid, before any repair.
        note: What had to be done to it, in words; empty for most.
    """

    number: int
    label: int
    cells: Floats
    z: NDArray[np.float32]
    valid: bool
    probability: float
    members: int
    valid_before: bool
    note: str = ""


class StandIns(NamedTuple):
    """Made-up rows, drawn where a label's rows lie: ends for paths that need not go far.

    Five prototypes cannot be near everyone. These are not shown as prototypes and nobody has
    judged them; a path to one is judged like any other, its end too.

    Attributes:
        z: Latent points.
        cells: Their rows.
        label: The label each was drawn for.
    """

    z: torch.Tensor
    cells: Floats
    label: Ints


@dataclass(frozen=True)
class Fitted:
    """What `fit` leaves behind: frozen, and all that `explain` and `save` look at."""

    schema: Schema
    labels: tuple[Label, ...]
    decoder: Decoder
    prototypes: tuple[Prototype, ...]
    recipe: Recipe
    history: Floats
    history_names: tuple[str, ...]

    def leads_to(self, prototype: Prototype) -> bool:
        """Whether paths may end there; the paper's recipe walks to every centroid."""
        return prototype.valid or not self.recipe.given

    def of_label(self, label: int) -> tuple[Prototype, ...]:
        """The prototypes of a label that may be walked to."""
        return tuple(p for p in self.prototypes if p.label == label and self.leads_to(p))

    @cached_property
    def stand_ins(self) -> StandIns:
        """The same ones for everybody, whenever they are asked for; none for the paper's recipe."""
        decoder = self.decoder
        known = [k for k in range(len(self.labels)) if self.of_label(k)]
        count = min(STAND_INS, CELLS // len(self.schema.features)) if self.recipe.given else 0
        generator = torch.Generator().manual_seed(0)
        parts = [decoder.mixtures[k].sample(count, generator) for k in known]
        z = torch.cat(parts).to(decoder.device)
        label = np.repeat(np.array(known, dtype=np.int64), count)
        return StandIns(z, decoder.prototypes(z, label), label)


def learn(
    schema: Schema,
    classifier: Classifier,
    cells: Floats,
    codes: Ints,
    *,
    clusters: int,
    latent: int | None,
    recipe: Recipe,
    device: torch.device,
    seed: int,
    progress: Progress | None,
) -> Fitted:
    """Trains on rows and the labels the classifier gives them.

    Args:
        schema: The columns.
        classifier: The black box, which has learned its labels.
        cells: Training rows.
        codes: Their labels.
        clusters: Wanted per label; a small label gets fewer.
        latent: Dimensions of z; None for a rule.
        recipe: How to train.
        device: Where to train.
        seed: Of everything random.
        progress: Called with what is done, how far, and of how much.
    """
    recipe = recipe.on(schema.shape)
    coded = _coding(schema, recipe)
    encoded = coded.encode(cells)  # (n, w)
    counts = _counts(encoded, codes, len(classifier.labels), clusters)
    emphasis = np.where(np.arange(coded.width) < len(coded.numeric), 1.0, EMPHASIS)
    given = np.zeros(len(codes), dtype=np.int64)
    if recipe.given:
        given = partition(encoded * emphasis, codes, counts, seed)
    usable = np.flatnonzero(np.array(counts)[codes] > 0)
    shape = Shape(
        len(coded.numeric),
        coded.widths,
        counts,
        max(2, min(coded.width, recipe.latent)) if latent is None else latent,
        recipe.hidden,
        recipe.heads,
    )
    x = torch.as_tensor(encoded[usable], dtype=torch.float32, device=device)
    y = torch.as_tensor(codes[usable], device=device)
    c = torch.as_tensor(given[usable], device=device)
    model, history = fit(shape, recipe, x, y, c, seed=seed, progress=progress)
    if not recipe.given:
        with torch.inference_mode():
            c = model.clusters(x, y)
    decoder = Decoder(
        coded,
        model,
        densities(model, recipe, x, y, c, seed),
        _trees(coded, cells, codes, len(classifier.labels)) if recipe.given else (),
        anchored=recipe.given,
    )
    bare = Fitted(coded, classifier.labels, decoder, (), recipe, history.array, history.names)
    members = np.full(len(codes), -1, dtype=np.int64)
    members[usable] = c.cpu().numpy()
    return replace(bare, prototypes=_prototypes(bare, classifier, cells, members))


def _coding(schema: Schema, recipe: Recipe) -> Schema:
    """By rank; pixels, which are all of one scale, as their share of it.

    On MNIST rank coding left 24 of 30 centroids valid and this 30: most pixels are most often
    empty, and by rank a faint pixel there counts as much as a stroke.
    """
    return schema if recipe.given and schema.shape is None else ranged(schema)


def ranged(schema: Schema) -> Schema:
    """The schema with numbers coded as their share of the range, as the paper does."""
    features = tuple(
        replace(f, knots=_linear(f.lower, f.upper)) if f.numeric else f for f in schema.features
    )
    return replace(schema, features=features)


def _linear(lower: float, upper: float) -> Knots:
    scores = np.array([0.0, 1.0]) if upper > lower else np.array([0.0])
    values = np.array([lower, upper]) if upper > lower else np.array([lower])
    return Knots(values, scores, scores, scores)


def _counts(encoded: Floats, codes: Ints, labels: int, wanted: int) -> tuple[int, ...]:
    distinct = [_distinct(encoded[codes == k]) for k in range(labels)]
    counts = cluster_counts(codes, labels, wanted, distinct)
    if sum(count > 0 for count in counts) < 2:
        sizes = np.bincount(codes, minlength=labels).tolist()
        raise InputError(
            f"Only one label has enough rows to learn from (rows per label: {sizes}). "
            "Hand over more rows of the others: at least five each, better fifty."
        )
    return counts


def _distinct(rows: Floats, most: int = 2000) -> int:
    """How many different rows there are, looked for evenly over the table."""
    return len(np.unique(rows[:: max(1, len(rows) // most)], axis=0))


def _trees(schema: Schema, cells: Floats, codes: Ints, labels: int) -> tuple[CategoryTree, ...]:
    states = states_of(schema, cells)
    widths = block_states(schema)
    return tuple(CategoryTree.fit(states[codes == k], widths) for k in range(labels))


# ------------------------------------------------------------------------------------------------
# Prototypes


class _Judged(NamedTuple):
    cells: Floats
    valid: NDArray[np.bool_]
    probability: Floats


def _judge(fitted: Fitted, classifier: Classifier, z: torch.Tensor, label: Ints) -> _Judged:
    """Latent points decoded and shown to the classifier."""
    cells = fitted.decoder.prototypes(z, label)
    found = classifier.query(cells)
    if found.probability is None:
        probability = np.full(len(cells), np.nan)
    else:
        probability = found.probability[np.arange(len(cells)), label]
    return _Judged(cells, found.codes == label, probability)


def _prototypes(
    fitted: Fitted, classifier: Classifier, cells: Floats, members: Ints
) -> tuple[Prototype, ...]:
    """Every centroid decoded and judged, and repaired where the classifier refuses it."""
    shape = fitted.decoder.model.shape
    labels = np.repeat(np.arange(len(shape.clusters)), shape.clusters)
    z = fitted.decoder.model.centroids()
    judged = _judge(fitted, classifier, z, labels)
    found = []
    for k, label in enumerate(labels):
        prototype = Prototype(
            number=k,
            label=int(label),
            cells=judged.cells[k],
            z=z[k].cpu().numpy(),
            valid=bool(judged.valid[k]),
            probability=float(judged.probability[k]),
            members=int((members == k).sum()),
            valid_before=bool(judged.valid[k]),
        )
        if not prototype.valid and fitted.recipe.given:
            own = cells[members == k]
            prototype = _repaired(fitted, classifier, prototype, own)
        if not prototype.valid:
            _warn(fitted, prototype)
        found.append(prototype)
    _check_labels(fitted, found)
    return tuple(found)


def _repaired(
    fitted: Fitted, classifier: Classifier, prototype: Prototype, own: Floats
) -> Prototype:
    """Moved towards those members of its cluster whose reconstruction the classifier accepts."""
    own = own[:: max(1, len(own) // MEMBERS)]
    refused = replace(prototype, note="dropped: the classifier refuses it wherever it was moved")
    if not len(own):
        return refused
    label = np.full(len(own), prototype.label)
    z = fitted.decoder.encode(own, label)
    accepted = z[torch.as_tensor(_judge(fitted, classifier, z, label).valid, device=z.device)]
    if not len(accepted):
        return refused
    centroid = torch.as_tensor(prototype.z, device=z.device)
    nearest = accepted[(accepted - centroid).square().sum(dim=1).argmin()]
    for place, word in (
        (accepted.mean(dim=0), "the mean of the members the classifier accepts"),
        (nearest, "the nearest member the classifier accepts"),
    ):
        judged = _judge(fitted, classifier, place[None], label[:1])
        if judged.valid[0]:
            return replace(
                prototype,
                cells=judged.cells[0],
                z=place.cpu().numpy(),
                valid=True,
                probability=float(judged.probability[0]),
                note=f"repaired: moved to {word}",
            )
    return refused


def judged_again(fitted: Fitted, classifier: Classifier) -> Fitted:
    """Prototypes shown to a classifier that may not be the one they were made for."""
    cells = np.stack([p.cells for p in fitted.prototypes])
    label = np.array([p.label for p in fitted.prototypes])
    found = classifier.query(cells)
    valid = found.codes == label
    probability = np.full(len(cells), np.nan)
    if found.probability is not None:
        probability = found.probability[np.arange(len(cells)), label]
    before = np.array([p.probability for p in fitted.prototypes])
    moved = np.abs(np.nan_to_num(probability - before)).max() > 1e-6
    moved |= any(p.valid != v for p, v in zip(fitted.prototypes, valid, strict=True))
    lost = [p.number for p, v in zip(fitted.prototypes, valid, strict=True) if p.valid and not v]
    if moved or lost:
        told = f" It no longer accepts prototypes {lost}: no path leads there." if lost else ""
        warnings.warn(
            "The classifier is not the one this explainer was fitted for: it judges the "
            f"prototypes differently.{told} Fit again if it was retrained.",
            CentroidWarning,
            stacklevel=3,
        )
    prototypes = tuple(
        replace(p, valid=bool(v), probability=float(q))
        for p, v, q in zip(fitted.prototypes, valid, probability, strict=True)
    )
    return replace(fitted, prototypes=prototypes)


def _warn(fitted: Fitted, prototype: Prototype) -> None:
    label = fitted.labels[prototype.label]
    used = "so no path leads to it" if fitted.recipe.given else "though the paper walks there"
    warnings.warn(
        f"The centroid of cluster {prototype.number} (class {label!r}) is not labelled {label!r} "
        f"by the classifier, {used}. Fit with another seed, fewer clusters or more rows if too few "
        "are left.",
        CentroidWarning,
        stacklevel=2,
    )


def _check_labels(fitted: Fitted, prototypes: Sequence[Prototype]) -> None:
    """A label whose prototypes are all refused cannot be a target: better said now than later."""
    for k, label in enumerate(fitted.labels):
        own = [p for p in prototypes if p.label == k]
        if own and not any(p.valid for p in own) and fitted.recipe.given:
            raise InputError(
                f"No prototype of class {label!r} is labelled {label!r} by the classifier "
                f"({len(own)} tried, repairs included). Hand over more rows of that class, or fit "
                "with fewer clusters."
            )
