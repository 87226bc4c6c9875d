"""Decodes latent points into rows of the table, anchored at the instances paths start from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lapace.arrays import Bools, Floats, Ints
from lapace.categories import CategoryTree
from lapace.model import LGMVAE, Mixture
from lapace.schema import Schema

__all__ = ["Decoder", "EncodedInstances"]


# Floor of a category's probability, so that the tree can overrule a decoder that is too sure of one
# block. On adult a floor of 0.1 gave counterfactuals a LOF of 1.1, a millionth one of 2.0.
MIN_PROBABILITY = 0.1
ORIGINAL_BONUS = 1.0  # log-score bonus of the instance's original category at tau=0; fades with tau
NOISE = 0.5  # share of the decoder's noise a sample gets; all of it crosses the boundary too often


class EncodedInstances(NamedTuple):
    """Encoded instances, the starts of paths.

    Attributes:
        schema: The columns, widened by levels that only these instances have.
        cells: The rows.
        z: The latent points.
        residual: The part of a row that the decoder misses, e(x) - Dec(z_x).
        states: Categories as states of the blocks; beyond a block's width: unseen in training.
        snapped: Numbers moved into bounds and onto the lattice, as counterfactuals have them.
        fixed: States that must stay as they are; -1 where they may change.
        excluded: States that may not be chosen, over all blocks.
        fading: The residual fades as this power of 1 - tau.
    """

    schema: Schema
    cells: Floats
    z: Tensor
    residual: Floats
    states: Ints
    snapped: Floats
    fixed: Ints
    excluded: Bools
    fading: float = 1.0

    def residual_at(self, instance: Ints, tau: Floats) -> Floats:
        """Returns the part of the residual that remains at tau on paths of instances: (m, w)."""
        faded: Floats = (1.0 - tau)[:, None] ** self.fading * self.residual[instance]
        return faded


@dataclass(frozen=True)
class Decoder:
    """Decodes latent points into rows of the table, and encodes rows.

    Attributes:
        schema: The columns the model was trained on.
        model: The trained model.
        mixtures: The density of each label's real rows in latent space.
        trees: The joint distribution of each label's categories; empty to choose each block alone.
        follows_paper: Paths start at the instance's reconstruction instead of the instance, the
            encoder is handed cluster probabilities, samples have no noise.
        samplers: The mixtures that labels topped up with made-up rows are sampled from.
    """

    schema: Schema
    model: LGMVAE
    mixtures: tuple[Mixture, ...]
    trees: tuple[CategoryTree, ...] = ()
    follows_paper: bool = False
    samplers: Mapping[int, Mixture] = field(default_factory=dict)

    def sampler(self, label: int) -> Mixture:
        """Returns the mixture that latent points of a label are drawn from."""
        return self.samplers.get(label, self.mixtures[label])

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.mask.device

    # -- encoder ----------------------------------------------------------------------------------

    def encode(self, cells: Floats, labels: Ints) -> Tensor:
        """Returns the latent points of rows, given their labels: (n, h)."""
        return self._encode(self.schema.encode(cells), labels)

    def _encode(self, encoded: Floats, labels: Ints) -> Tensor:
        x = torch.as_tensor(encoded, dtype=torch.float32, device=self.device)
        y = torch.as_tensor(labels, device=self.device)
        with torch.inference_mode():
            return self.model.encode(x, y, follows_paper=self.follows_paper)

    def encode_instances(
        self,
        schema: Schema,
        cells: Floats,
        labels: Ints,
        fixed: Ints | None = None,
        excluded: Bools | None = None,
    ) -> EncodedInstances:
        """Encodes instances.

        Args:
            schema: The columns, widened by levels that only these instances have.
            cells: The instances.
            labels: Their labels.
            fixed: States that must stay as they are, -1 where they may change; None: all may.
            excluded: States that may not be chosen; None: all may.
        """
        encoded = schema.encode(cells)  # (n, w)
        z = self._encode(encoded, labels)
        residual = encoded - self._means(z)
        numeric = schema.numeric
        # A missing number, or an unseen level, has no residual.
        residual[:, : len(numeric)][schema.coding.unplaced(cells)] = 0.0
        if self.follows_paper:
            residual = np.zeros_like(residual)
        if fixed is None:
            fixed = np.full((len(cells), len(schema.coding.blocks)), -1, dtype=np.int64)
        if excluded is None:
            excluded = np.zeros((len(cells), sum(self.schema.coding.block_states)), dtype=bool)
        snapped = schema.snap(cells)[:, numeric]
        states = schema.coding.states(cells)
        return EncodedInstances(schema, cells, z, residual, states, snapped, fixed, excluded)

    # -- decoder -----------------------------------------------------------------------------------

    def _means(self, z: Tensor) -> Floats:
        with torch.inference_mode():
            means: Floats = self.model.decode(z).cpu().numpy().astype(np.float64)
        return means

    def reconstruct(self, cells: Floats, labels: Ints) -> Floats:
        """Encodes rows and decodes them again, missing values included."""
        return self.schema.decode(self._means(self.encode(cells, labels)))

    def decode(self, z: Tensor, labels: Ints) -> Floats:
        """Decodes latent points: no missing values, categories chosen jointly for the label."""
        means = self._means(z)  # (n, w)
        cells = np.zeros((len(means), len(self.schema.features)))
        cells[:, self.schema.numeric] = self.schema.coding.units(
            means[:, : len(self.schema.numeric)]
        )
        scores = self._scores(means)
        for (feature, _, _), (_, end) in zip(self.schema.coding.blocks, self._spans, strict=True):
            if self.schema.features[feature].missing:
                scores[:, end - 1] = -np.inf
        states = self._choose(scores, labels, None)
        return self.schema.derive(self.schema.coding.with_states(cells, states))

    def path_rows(
        self,
        instances: EncodedInstances,
        instance: Ints,
        tau: Floats,
        z: Tensor,
        labels: Ints,
        frozen: Bools,
    ) -> Floats:
        """Decodes rows on paths, anchored at the instances they start from.

        Args:
            instances: The instances.
            instance: The instance from which the path of each row starts.
            tau: The position of each row on its path.
            z: The latent point of each row.
            labels: The label of the endpoint of each row's path.
            frozen: Whether a row keeps the instance's categories.
        """
        means = self._means(z) + instances.residual_at(instance, tau)  # (m, w)
        cells = instances.cells[instance]  # (m, d), a copy
        # The endpoint does not depend on the instance: a column of one category has that one.
        cells[(tau >= 1.0) & ~frozen] = 0.0
        cells[:, instances.schema.numeric] = self._numbers(instances, instance, tau, means)
        if instances.schema.coding.blocks:
            states = instances.states[instance]  # (m, b)
            moving = np.flatnonzero(~frozen)
            states[moving] = self._categories(
                instances, instance[moving], means[moving], tau[moving], labels[moving]
            )
            cells = instances.schema.coding.with_states(cells, states)
        inner, end = np.flatnonzero(tau < 1.0), np.flatnonzero(tau >= 1.0)
        cells[inner] = instances.schema.derive(cells[inner], instances.cells[instance[inner]])
        cells[end] = instances.schema.derive(cells[end])
        return cells

    def differentiable_rows(
        self,
        instances: EncodedInstances,
        instance: Ints,
        tau: Floats,
        z: Tensor,
        rows: Floats,
    ) -> Tensor:
        """Returns rows of `path_rows` with a gradient in z: (m, d).

        The gradient of a number is the slope of the rank map, as if nothing were rounded or flat.

        Args:
            instances: The instances.
            instance: The instance from which the path of each row starts.
            tau: The position of each row on its path.
            z: The latent point of each row, whose gradient is wanted.
            rows: The rows decoded from z.
        """
        schema, numeric, originals = instances.schema, instances.schema.numeric, instances.cells
        out = self.model.logits(z)  # (m, w)
        fixed = out.detach()
        if schema.coding.flags:  # whether a number is missing; numbers themselves have no head
            fixed = self.model.heads(fixed)
        means = fixed.cpu().numpy().astype(np.float64) + instances.residual_at(instance, tau)
        still = self._keeps_unplaced(schema, originals[instance], means, tau)
        slopes = np.where(still, 0.0, schema.coding.slopes(means[:, : len(numeric)]))
        slopes = np.where(schema.counted[numeric], slopes, 0.0)
        values = torch.as_tensor(rows, device=z.device)
        rise = torch.as_tensor(slopes, device=z.device)
        scores = out[:, : len(numeric)].double()
        columns = torch.as_tensor(numeric, device=z.device)
        values = values.index_add(1, columns, rise * (scores - scores.detach()))
        for column, sources in schema.derived.slopes(rows).items():
            for source, slope in sources.items():
                moved = values[:, source] - values[:, source].detach()
                gradient = torch.as_tensor(slope, device=z.device) * torch.nan_to_num(moved)
                columns = torch.as_tensor([column], device=z.device)
                values = values.index_add(1, columns, gradient[:, None])
        return values

    def _numbers(
        self, instances: EncodedInstances, instance: Ints, tau: Floats, means: Floats
    ) -> Floats:
        """Returns the numeric cells of rows on paths: (m, numeric)."""
        numeric = instances.schema.numeric
        original = instances.cells[instance]  # (m, d)
        values = instances.schema.coding.units(means[:, : len(numeric)])
        if not self.follows_paper:  # a negligible change: the instance's cell, except at tau=1
            least = instances.schema.negligible[numeric]
            near = np.abs(values - instances.snapped[instance]) <= least
            near |= np.abs(values - original[:, numeric]) <= least
            near &= (tau < 1.0)[:, None]
            values = np.where(near, original[:, numeric], values)
        still = self._keeps_unplaced(instances.schema, original, means, tau)
        return np.where(still, original[:, numeric], values)

    def _keeps_unplaced(
        self, schema: Schema, original: Floats, means: Floats, tau: Floats
    ) -> Bools:
        """Returns which numbers stay missing or unseen, not yet replaced by a decoded number."""
        still = schema.coding.unplaced(original)  # (m, numeric)
        flags = dict(schema.coding.flags)
        for k, i in enumerate(schema.numeric):
            if still[:, k].any():
                share = 1.0 - tau
                if int(i) in flags:
                    share = np.where(np.isnan(original[:, i]), means[:, flags[int(i)]], share)
                still[:, k] &= (share > 0.5) & (tau < 1.0)  # the endpoint has none missing
        return still

    def _categories(
        self, instances: EncodedInstances, instance: Ints, means: Floats, tau: Floats, labels: Ints
    ) -> Ints:
        """Chooses the categories of rows on paths, jointly: (m, b)."""
        schema, original = instances.schema, instances.states[instance]
        scores = self._scores(means)  # (m, sum of states)
        evidence = instances.fixed[instance]
        for block, ((feature, _, width), (first, end)) in enumerate(
            zip(schema.coding.blocks, self._spans, strict=True)
        ):
            state = original[:, block]
            seen = state < end - first
            rows, unseen = np.flatnonzero(seen), np.flatnonzero(~seen)
            if not self.follows_paper:
                scores[rows, first + state[rows]] += ORIGINAL_BONUS * (1.0 - tau[rows])
                if width == 1:  # a third state is encoded as the first
                    share = np.exp(scores[unseen, first]) - (1.0 - tau[unseen])
                    scores[unseen, first] = np.log(np.clip(share, self._floor, None))
            if schema.features[feature].missing:  # a present value never goes missing
                present = state != end - first - 1
                scores[present | (tau >= 1.0), end - 1] = -np.inf  # nor at the endpoint
            # An unseen category cannot be decoded; it stays while it is the most probable.
            stays = unseen[1.0 - tau[unseen] > np.exp(scores[unseen, first:end].max(axis=1))]
            evidence[stays, block] = state[stays]
        scores[instances.excluded[instance]] = -np.inf
        return self._choose(scores, labels, evidence)

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        """The places where the states of each block begin and end among the scores."""
        edges = [0, *np.cumsum(self.schema.coding.block_states).tolist()]
        return list(pairwise(edges))

    @cached_property
    def _sources(self) -> tuple[Ints, Ints]:
        """The encoded column that each state is read off, and the states that are its opposite."""
        columns: list[int] = []
        opposite: list[bool] = []
        for _, start, width in self.schema.coding.blocks:
            columns += [start, start] if width == 1 else range(start, start + width)
            opposite += [True, False] if width == 1 else [False] * width
        return np.array(columns, dtype=np.int64), np.flatnonzero(opposite)

    def _scores(self, means: Floats) -> Floats:
        """Returns log-probabilities of every state of every block: (n, sum of states)."""
        columns, opposite = self._sources
        shares = means[:, columns]
        shares[:, opposite] = 1.0 - shares[:, opposite]
        scores: Floats = np.log(np.maximum(shares, self._floor))
        return scores

    @property
    def _floor(self) -> float:
        """The least probability of a state; without trees ties would go to the first category."""
        return MIN_PROBABILITY if self.trees else 1e-9

    def _choose(self, scores: Floats, labels: Ints, evidence: Ints | None) -> Ints:
        chosen = np.empty((len(scores), len(self.schema.coding.blocks)), dtype=np.int64)
        if not self.trees:
            for block, (first, end) in enumerate(self._spans):
                chosen[:, block] = scores[:, first:end].argmax(axis=1)
            return chosen if evidence is None else np.where(evidence >= 0, evidence, chosen)
        for label, rows in _by_label(labels):
            kept = None if evidence is None else evidence[rows]
            chosen[rows] = self.trees[label].choose(scores[rows], kept)
        return chosen

    def likeliest_labels(self, cells: Floats) -> Ints:
        """Returns the label under which each row is most likely: (n,).

        By log p(z|y) + log p(x|z), z the row's latent point given that label; labels without
        clusters are left out.
        """
        x = torch.as_tensor(self.schema.encode(cells), dtype=torch.float32, device=self.device)
        scores = np.full((len(cells), len(self.mixtures)), -np.inf)
        for label, mixture in enumerate(self.mixtures):
            if len(mixture.means):
                z = self.encode(cells, np.full(len(cells), label))
                with torch.inference_mode():
                    lost = self.model.reconstruction(
                        self.model.logits(z), x, learned_noise=not self.follows_paper
                    )
                    scores[:, label] = (mixture.log_density(z.cpu()) - lost.cpu()).numpy()
        likeliest: Ints = scores.argmax(axis=1)
        return likeliest

    def latent_density(self, z: Tensor, labels: Ints) -> Floats:
        """Returns the share of their label's rows that are less dense than latent points: (n,)."""
        share = np.full(len(labels), np.nan)
        for label, rows in _by_label(labels):
            points = z[torch.as_tensor(rows, device=z.device)].cpu()
            with torch.inference_mode():
                share[rows] = self.mixtures[label].share_below(points).numpy()
        return share

    def density(self, schema: Schema, cells: Floats, labels: Ints) -> Floats:
        """Returns the share of training rows of their label that are less dense than rows: (n,)."""
        return self.latent_density(self._encode(schema.encode(cells), labels), labels)

    def sample(self, label: int, count: int, random_state: int) -> Floats:
        """Draws new rows of a label: latent points, decoded, with part of the decoder's noise."""
        generator = torch.Generator().manual_seed(random_state)
        rng = np.random.default_rng(random_state)
        z = self.sampler(label).sample(count, generator).to(self.device)
        means = self._means(z)
        first = len(self.schema.numeric)
        if not self.follows_paper:  # the paper decodes the mean
            sigma = self.model.log_sigma.clamp(-4.0, 2.0).exp().cpu().numpy()
            if self.schema.shape is None:  # pixel noise is not independent
                means[:, :first] += NOISE * sigma * rng.standard_normal((count, first))
            means[:, first:] = _draw(means[:, first:], self.model.shape.widths, rng)
        return self.schema.derive(self.schema.decode(means))


def _by_label(labels: Ints) -> Iterator[tuple[int, Ints]]:
    """Yields each label and the positions of its rows."""
    for label in np.unique(labels).tolist():
        yield label, np.flatnonzero(labels == label)


def _draw(probabilities: Floats, widths: Sequence[int], rng: np.random.Generator) -> Floats:
    """Draws one category per block, each with its probability."""
    drawn, start = np.zeros_like(probabilities), 0
    for width in widths:
        block = probabilities[:, start : start + width]
        uniform = rng.random(len(block))
        if width == 1:
            drawn[:, start] = uniform < block[:, 0]
        else:
            cumulative = np.cumsum(block, axis=1) / block.sum(axis=1, keepdims=True)
            which = (uniform[:, None] > cumulative[:, :-1]).sum(axis=1)
            drawn[np.arange(len(block)), start + which] = 1.0
        start += width
    return drawn
