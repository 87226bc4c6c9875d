"""Fits a model, its latent densities, and prototypes that the classifier judges.

A centroid that the classifier does not give its label is repaired: moved to members of its
cluster whose reconstruction the classifier accepts, and judged again. If that fails it is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints
from lapace.categories import CategoryTree
from lapace.classifier import Classifier, Label, query_rows
from lapace.constraints import Constraint
from lapace.errors import CentroidWarning, InputError, warn
from lapace.explainer.top_up import MadeUpRows
from lapace.model import Shape
from lapace.paths import Decoder
from lapace.progress import Progress
from lapace.schema import Knots, Schema
from lapace.training import (
    Recipe,
    cluster_counts,
    densities,
    fit,
    nearest_clusters,
    partition,
)

if TYPE_CHECKING:
    from lapace.explainer.outer import LearnedRule, Survival

__all__ = [
    "Fitted",
    "Prototype",
    "Samples",
    "Trained",
    "fit_model",
    "judge_again",
    "judge_centroids",
]


EMPHASIS = 1.5  # weight of a category in k-means, against a standardised number
MEMBERS = 1000  # members of a cluster a repair looks at, at most
SAMPLES, SAMPLE_CELLS = 4_000, 2_000_000  # rows sampled per label, and their cells, at most


@dataclass(frozen=True)
class Prototype:
    """A centroid, decoded and judged by the classifier.

    Attributes:
        number: Its number; paths and counterfactuals name prototypes by it.
        label: The label it is a prototype of.
        code: The label's position in `classes_`.
        cells: Its row.
        z: Its latent point.
        valid: Whether the classifier gives it that label.
        probability: The classifier's probability of that label; NaN where unknown.
        members: Training rows in its cluster.
        valid_before: Whether the centroid was valid as trained, before any repair.
        note: How it was repaired, or why it was dropped; empty for most.
    """

    number: int
    label: Label
    code: int
    cells: Floats
    z: NDArray[np.float32]
    valid: bool
    probability: float
    members: int
    valid_before: bool
    note: str = ""


class Samples(NamedTuple):
    """Rows drawn from each label's density, near which searches start.

    The classifier has not been queried about them; a search does so before it uses one.

    Attributes:
        cells: The rows.
        label: The label each was drawn for, as a position.
    """

    cells: Floats
    label: Ints


@dataclass(frozen=True)
class Fitted:
    """A fitted explainer: all that `explain` and `save` read.

    `rules` are all that hold, first those declared; `learned` are those learned from the table, of
    which some are kept as derived columns of the schema.
    """

    schema: Schema
    labels: tuple[Label, ...]
    rules: tuple[Constraint, ...]
    decoder: Decoder
    prototypes: tuple[Prototype, ...]
    recipe: Recipe
    history: Floats
    history_names: tuple[str, ...]
    survival: Survival
    learned: tuple[LearnedRule, ...] = ()

    @property
    def declared(self) -> tuple[Constraint, ...]:
        """The rules that were not learned."""
        return tuple(rule for rule in self.rules if not getattr(rule, "learned", False))

    def is_endpoint(self, prototype: Prototype) -> bool:
        """Whether paths may lead to a prototype; the paper's recipe uses every centroid."""
        return prototype.valid or self.recipe.follows_paper

    def of_label(self, code: int) -> tuple[Prototype, ...]:
        """The prototypes of a label that paths may lead to."""
        return tuple(p for p in self.prototypes if p.code == code and self.is_endpoint(p))

    @cached_property
    def samples(self) -> Samples:
        """The same draw for every call; none for the paper's recipe."""
        decoder = self.decoder
        usable = [k for k in range(len(self.labels)) if self.of_label(k)]
        count = min(SAMPLES, SAMPLE_CELLS // len(self.schema.features))
        count = 0 if self.recipe.follows_paper else count
        generator = torch.Generator().manual_seed(0)
        none = torch.empty((0, decoder.model.shape.latent))
        z = torch.cat([none, *(decoder.sampler(k).sample(count, generator) for k in usable)])
        label = np.repeat(np.array(usable, dtype=np.int64), count)
        return Samples(decoder.decode(z.to(decoder.device), label), label)


class Trained(NamedTuple):
    """A trained model.

    Attributes:
        recipe: How it was trained.
        decoder: The model, its densities and category trees.
        history: The loss and its terms during training, (steps, terms).
        history_names: Their names.
        members: The cluster of each training row; -1 for rows of labels without clusters.
    """

    recipe: Recipe
    decoder: Decoder
    history: Floats
    history_names: tuple[str, ...]
    members: Ints


def fit_model(
    schema: Schema,
    cells: Floats,
    codes: Ints,
    *,
    n_labels: int,
    n_prototypes: int,
    n_latent: int | None,
    recipe: Recipe,
    device: torch.device,
    random_state: int,
    progress: Progress | None,
    made_up: MadeUpRows | None = None,
) -> Trained:
    """Trains on rows and the labels the classifier gives them.

    Args:
        schema: The columns.
        cells: Training rows.
        codes: Their labels, as positions.
        n_labels: How many labels there are.
        n_prototypes: Clusters per label; a label with few rows gets fewer.
        n_latent: Dimensions of z; None for a rule.
        recipe: How to train.
        device: Where to train.
        random_state: Seed of everything random.
        progress: Called as `progress("training", done, total)`.
        made_up: Rows that top up labels that are short.
    """
    recipe = recipe.on(schema.shape)
    follows_paper = recipe.follows_paper
    # Pixels share one scale. Coded by rank, a faint pixel that is mostly empty counts as much as a
    # stroke: on MNIST that left 24 of 30 centroids valid, the share of the range left 30.
    if schema.shape is not None:
        coded = range_coded(schema)
    else:
        coded = standardised(schema, cells) if follows_paper else schema
    encoded = coded.encode(cells)  # (n, w)
    counts = _cluster_counts(encoded, codes, n_labels, n_prototypes)
    clusters = np.zeros(len(codes), dtype=np.int64)
    if not follows_paper:
        emphasis = np.where(np.arange(coded.coding.width) < len(coded.numeric), 1.0, EMPHASIS)
        clusters = partition(encoded * emphasis, codes, counts, random_state)
    usable = np.flatnonzero(np.array(counts)[codes] > 0)
    shape = Shape(
        len(coded.numeric),
        coded.coding.widths,
        counts,
        max(2, min(coded.coding.width, recipe.latent)) if n_latent is None else n_latent,
        recipe.hidden,
        recipe.heads,
    )
    x = torch.as_tensor(encoded[usable], dtype=torch.float32, device=device)
    y = torch.as_tensor(codes[usable], device=device)
    c = torch.as_tensor(clusters[usable], device=device)
    count = len(x)
    if made_up is not None and len(made_up.cells):
        more = coded.encode(made_up.cells)
        near = nearest_clusters(
            encoded[usable] * emphasis,
            clusters[usable],
            more * emphasis,
            made_up.codes,
            counts,
        )
        x = torch.cat([x, torch.as_tensor(more, dtype=torch.float32, device=device)])
        y = torch.cat([y, torch.as_tensor(made_up.codes, device=device)])
        c = torch.cat([c, torch.as_tensor(near, device=device)])
    model, history = fit(shape, recipe, x, y, c, random_state=random_state, progress=progress)
    if follows_paper:
        with torch.inference_mode():
            c = model.clusters(x, y)
    real = torch.arange(len(x), device=device) < count
    mixtures, samplers = densities(model, recipe, x, y, c, random_state, real)
    trees: tuple[CategoryTree, ...] = ()
    if not follows_paper:
        states, widths = coded.coding.states(cells), coded.coding.block_states
        trees = tuple(CategoryTree.fit(states[codes == k], widths) for k in range(n_labels))
    decoder = Decoder(coded, model, mixtures, trees, follows_paper, samplers)
    members = np.full(len(codes), -1, dtype=np.int64)
    members[usable] = c[:count].cpu().numpy()
    return Trained(recipe, decoder, history.array, history.names, members)


def range_coded(schema: Schema) -> Schema:
    """The schema with numbers coded, and distances counted, as shares of the range."""
    return _linear(schema, [(f.lower, f.upper - f.lower) for f in schema.features])


def standardised(schema: Schema, cells: Floats) -> Schema:
    """The schema with numbers coded by their mean and standard deviation among rows.

    Distances are counted in shares of the range, as in the paper.
    """
    return _linear(schema, [_moments(column) for column in cells.T])


def _moments(column: Floats) -> tuple[float, float]:
    values = column[~np.isnan(column)]
    return (float(values.mean()), float(values.std())) if len(values) else (0.0, 1.0)


def _linear(schema: Schema, scales: Sequence[tuple[float, float]]) -> Schema:
    """The schema with every number less an origin, over a width; a constant one is coded as 0."""
    features = list(schema.features)
    for i, (feature, (origin, width)) in enumerate(zip(features, scales, strict=True)):
        if feature.numeric:
            values = np.array([feature.lower, feature.upper])
            flat = not (feature.upper > feature.lower and width > 0)
            scores = np.zeros(1) if flat else (values - origin) / width
            features[i] = replace(feature, knots=Knots(values[: len(scores)], *[scores] * 3))
    return replace(schema, features=tuple(features)).by_range()


def _cluster_counts(encoded: Floats, codes: Ints, labels: int, wanted: int) -> tuple[int, ...]:
    """Clusters of each label; distinct rows are counted among about 2,000 taken evenly."""
    by_label = (encoded[codes == k] for k in range(labels))
    some = (rows[:: max(1, len(rows) // 2000)] for rows in by_label)
    counts = cluster_counts(codes, labels, wanted, [len(np.unique(r, axis=0)) for r in some])
    enough = sum(count > 0 for count in counts)
    if enough < 2:
        sizes = np.bincount(codes, minlength=labels).tolist()
        which = "Only one label has" if enough else "No label has"
        raise InputError(
            f"{which} enough rows to learn from (rows per label: {sizes}). Give more rows of the "
            "others: at least five each, better fifty."
        )
    return counts


# ------------------------------------------------------------------------------------------------
# Prototypes


def _judge(
    classifier: Classifier, cells: Floats, codes: Ints, schema: Schema, known_row: Floats
) -> tuple[Bools, Floats]:
    """Whether the classifier gives rows their label, and its probability; NaN where unknown."""
    # A classifier may validate its input, and raise on rows that no table held: not valid.
    found, _ = query_rows(classifier, cells, schema, known_row=known_row)
    return found.codes == codes, found.probability[np.arange(len(cells)), codes]


def judge_centroids(
    trained: Trained, classifier: Classifier, cells: Floats
) -> tuple[Prototype, ...]:
    """Decodes every centroid, has the classifier judge it, and repairs those it refuses.

    Args:
        trained: The trained model.
        classifier: The classifier, its labels known.
        cells: Training rows.
    """
    decoder, paper = trained.decoder, trained.recipe.follows_paper
    labels = classifier.labels
    shape = decoder.model.shape
    codes = np.repeat(np.arange(len(shape.clusters)), shape.clusters)
    z = decoder.model.centroids()
    decoded = decoder.decode(z, codes)
    valid, probability = _judge(classifier, decoded, codes, decoder.schema, cells[:1])
    prototypes = []
    for k, code in enumerate(codes.tolist()):
        label, rows = labels[code], cells[trained.members == k]
        prototype = Prototype(
            number=k,
            label=label,
            code=code,
            cells=decoded[k],
            z=z[k].cpu().numpy(),
            valid=bool(valid[k]),
            probability=float(probability[k]),
            members=len(rows),
            valid_before=bool(valid[k]),
        )
        if not prototype.valid and not paper:
            prototype = _repaired(decoder, classifier, prototype, rows)
        prototypes.append(prototype)
    _check_every_label(prototypes, labels, paper=paper)
    return tuple(prototypes)


def _repaired(
    decoder: Decoder, classifier: Classifier, prototype: Prototype, rows: Floats
) -> Prototype:
    """Moves a prototype towards members of its cluster whose reconstruction is accepted."""
    rows = rows[:: max(1, len(rows) // MEMBERS)]
    dropped = replace(prototype, note="dropped: the classifier refuses it and every repair of it")
    if not len(rows):
        return dropped
    codes = np.full(len(rows), prototype.code)
    z = decoder.encode(rows, codes)
    accepted_row, schema = rows[:1], decoder.schema
    valid, _ = _judge(classifier, decoder.decode(z, codes), codes, schema, accepted_row)
    accepted = z[torch.as_tensor(valid, device=z.device)]
    if not len(accepted):
        return dropped
    centroid = torch.as_tensor(prototype.z, device=z.device)
    nearest = accepted[(accepted - centroid).square().sum(dim=1).argmin()]
    for point, where in (
        (accepted.mean(dim=0), "the mean of the members the classifier accepts"),
        (nearest, "the nearest member the classifier accepts"),
    ):
        row = decoder.decode(point[None], codes[:1])
        valid, probability = _judge(classifier, row, codes[:1], schema, accepted_row)
        if valid[0]:
            return replace(
                prototype,
                cells=row[0],
                z=point.cpu().numpy(),
                valid=True,
                probability=float(probability[0]),
                note=f"repaired: moved to {where}",
            )
    return dropped


def judge_again(fitted: Fitted, classifier: Classifier) -> Fitted:
    """Has a loaded classifier judge the prototypes again; warns where it judges differently."""
    before = fitted.prototypes
    cells, codes = np.stack([p.cells for p in before]), np.array([p.code for p in before])
    accepted_row = next((p.cells[None] for p in before if p.valid), cells[:1])
    judged = _judge(classifier, cells, codes, fitted.schema, accepted_row)
    after = [
        replace(p, valid=bool(valid), probability=float(probability))
        for p, valid, probability in zip(before, *judged, strict=True)
    ]
    pairs = list(zip(before, after, strict=True))
    # A probability that is not known compares as False.
    if any(p.valid != q.valid or abs(p.probability - q.probability) > 1e-6 for p, q in pairs):
        lost = [p.number for p, q in pairs if p.valid and not q.valid]
        listed = f" It no longer accepts prototypes {lost}: no path leads there." if lost else ""
        warn(
            "The classifier is not the one this explainer was fitted for: it judges the "
            f"prototypes differently.{listed} Fit again if it was retrained.",
            CentroidWarning,
        )
    return replace(fitted, prototypes=tuple(after))


def _check_every_label(
    prototypes: Sequence[Prototype], labels: Sequence[Label], *, paper: bool
) -> None:
    """Refuses a fit that leaves no target; warns of prototypes and labels that can be none."""
    reachable = {p.label for p in prototypes if p.valid or paper}
    used = "paths lead to it anyway, as in the paper" if paper else "no path leads to it"
    for p in prototypes:
        if not p.valid and p.label in reachable:
            warn(
                f"The centroid of cluster {p.number} (class {p.label!r}) is not labelled "
                f"{p.label!r} by the classifier; {used}. Fit with another random_state, fewer "
                "prototypes or more rows if too few are left.",
                CentroidWarning,
            )
    for label in labels:
        tried = sum(p.label == label for p in prototypes)
        if not tried or label in reachable:
            continue
        sentence = (
            f"No prototype of class {label!r} is labelled {label!r} by the classifier ({tried} "
            "tried, repairs included)"
        )
        help_ = (
            "Leave out a column that is blank for one class only, give more rows of that class, "
            "or fit with fewer prototypes."
        )
        if len(reachable) < 2 and len(labels) < 3:
            raise InputError(f"{sentence}. {help_}")
        warn(f"{sentence}: it cannot be a target. {help_}", CentroidWarning)
    if not reachable:
        raise InputError("No class has a prototype that the classifier labels as that class.")
