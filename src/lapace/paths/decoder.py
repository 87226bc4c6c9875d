"""Latent points to rows of the table, anchored at the instances paths start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lapace.arrays import Bools, Floats, Ints
from lapace.categories import CategoryTree
from lapace.model import LGMVAE, Mixture
from lapace.schema import Feature, Schema

__all__ = ["Decoder", "Start", "block_states", "states_of"]


# Under this probability a category's score does not fall further: the tree, which knows what goes
# together, must be able to overrule a decoder that is too sure of one block at a time. On adult
# 0.1 gave answers a LOF of 1.1, a millionth one of 2.0.
LEAST = 0.1
LOYALTY = 1.0  # how much an instance's own category is favoured at the start; fades along the path
NOISE = 0.5  # share of the decoder's noise a sample gets; all of it crosses the boundary too often


class Start(NamedTuple):
    """Instances at the beginning of their paths.

    Attributes:
        schema: The columns, widened by what only they have.
        cells: Their rows.
        z: Their latent points.
        residual: What the decoder misses of them, e(x) - Dec(z_x).
        states: Their categories as states of the blocks; beyond a block's width: unknown.
        settled: Their numbers moved into bounds and onto the lattice, as answers would have them.
        held: States that must stay as they are; -1 where they may move.
        barred: States that may not be chosen, over all blocks.
    """

    schema: Schema
    cells: Floats
    z: Tensor
    residual: Floats
    states: Ints
    settled: Floats
    held: Ints
    barred: Bools


@dataclass(frozen=True)
class Decoder:
    """Latent points to rows of the table.

    Attributes:
        schema: The columns the model was trained on.
        model: The trained model.
        mixtures: Per label, where its rows lie in latent space.
        trees: Per label, which categories go together; empty to choose each on its own.
        anchored: Whether paths begin at the instance; otherwise all is as in the paper: at their
            reconstruction, the encoder handed cluster probabilities, samples without noise.
    """

    schema: Schema
    model: LGMVAE
    mixtures: tuple[Mixture, ...]
    trees: tuple[CategoryTree, ...] = ()
    anchored: bool = True

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return self.model.mask.device

    # -- in ---------------------------------------------------------------------------------------

    def encode(self, cells: Floats, labels: Ints) -> Tensor:
        """Latent points of rows, given their labels: (n, h)."""
        return self._encode(self.schema.encode(cells), labels)

    def _encode(self, encoded: Floats, labels: Ints) -> Tensor:
        x = torch.as_tensor(encoded, dtype=torch.float32, device=self.device)
        y = torch.as_tensor(labels, device=self.device)
        with torch.inference_mode():
            return self.model.encode(x, y, soft=not self.anchored)

    def start(
        self,
        schema: Schema,
        cells: Floats,
        labels: Ints,
        held: Ints | None = None,
        barred: Bools | None = None,
    ) -> Start:
        """Instances made ready to walk."""
        encoded = schema.encode(cells)  # (n, w)
        z = self._encode(encoded, labels)
        residual = encoded - self._means(z)
        numeric = schema.numeric
        # A number without a place has no residual: there is nothing the decoder could have missed.
        residual[:, : len(numeric)][_placeless(schema, cells)] = 0.0
        if not self.anchored:
            residual = np.zeros_like(residual)
        if held is None:
            held = np.full((len(cells), len(schema.blocks)), -1, dtype=np.int64)
        if barred is None:
            barred = np.zeros((len(cells), sum(self._states)), dtype=bool)
        settled = schema.snap(cells)[:, numeric]
        return Start(schema, cells, z, residual, states_of(schema, cells), settled, held, barred)

    # -- out --------------------------------------------------------------------------------------

    def _means(self, z: Tensor) -> Floats:
        with torch.inference_mode():
            means: Floats = self.model.decode(z).cpu().numpy().astype(np.float64)
        return means

    def rebuild(self, cells: Floats, labels: Ints) -> Floats:
        """Rows encoded and decoded, missing values included."""
        return self.schema.decode(self._means(self.encode(cells, labels)))

    def prototypes(self, z: Tensor, labels: Ints) -> Floats:
        """Rows of latent points that belong to nobody: complete, and of typical categories."""
        means = self._means(z)  # (n, w)
        cells = np.zeros((len(means), len(self.schema.features)))
        cells[:, self.schema.numeric] = self.schema.units(means[:, : len(self.schema.numeric)])
        scores = self._scores(means)
        for block, (feature, _, _) in enumerate(self.schema.blocks):
            if self.schema.features[feature].missing:
                scores[:, self._ends[block] - 1] = -np.inf
        states = self._choose(scores, labels, None)
        return write_states(self.schema, cells, states)

    def rows(
        self, start: Start, instance: Ints, tau: Floats, z: Tensor, labels: Ints, frozen: Bools
    ) -> Floats:
        """Rows along paths, anchored at the instances they start from.

        Args:
            start: The instances.
            instance: For each row the instance it starts from.
            tau: How far along it is.
            z: Its latent point.
            labels: The label it leads to.
            frozen: Whether it keeps the instance's own categories.
        """
        fade = (1.0 - tau)[:, None]  # (m, 1)
        means = self._means(z) + fade * start.residual[instance]  # (m, w)
        cells = start.cells[instance]  # (m, d), a copy
        # The end belongs to nobody: there a column of one category has that one.
        cells[(tau >= 1.0) & ~frozen] = 0.0
        cells[:, start.schema.numeric] = self._numbers(start, instance, tau, means)
        if not start.schema.blocks:
            return cells
        states = start.states[instance]  # (m, b)
        moving = np.flatnonzero(~frozen)
        states[moving] = self._moved(
            start, instance[moving], means[moving], tau[moving], labels[moving]
        )
        return write_states(start.schema, cells, states)

    def live(self, start: Start, instance: Ints, tau: Floats, z: Tensor, rows: Floats) -> Tensor:
        """The same rows as torch can follow them: (m, d), categories as `rows` has them.

        Numbers are what `rows` would give, rounded and all; their gradient is that of the rank
        map's slope, as if nothing were rounded or flat.

        Args:
            start: The instances.
            instance: For each row the instance it starts from.
            tau: How far along it is.
            z: Its latent point, whose gradient is wanted.
            rows: The rows as they were decoded before, for their categories.
        """
        numeric = start.schema.numeric
        decoded = self.model.decode(z)  # (m, w)
        fixed = decoded.detach().cpu().numpy().astype(np.float64)
        means = fixed + (1.0 - tau)[:, None] * start.residual[instance]
        cells = rows.copy()
        cells[:, numeric] = self._numbers(start, instance, tau, means)
        slopes = np.where(
            self._still_placeless(start.schema, start.cells[instance], means, tau),
            0.0,
            start.schema.slopes(means[:, : len(numeric)]),
        )
        values = torch.as_tensor(cells, device=z.device)
        rise = torch.as_tensor(slopes, device=z.device)
        scores = decoded[:, : len(numeric)].double()
        at = torch.as_tensor(numeric, device=z.device)
        return values.index_add(1, at, rise * (scores - scores.detach()))

    def _numbers(self, start: Start, instance: Ints, tau: Floats, means: Floats) -> Floats:
        """The numeric cells of rows on the way: (m, numeric)."""
        numeric = start.schema.numeric
        own = start.cells[instance]  # (m, d)
        values = start.schema.units(means[:, : len(numeric)])
        if self.anchored:  # a cell that equals the instance's is the instance's, but for the end's
            near = np.abs(values - start.settled[instance]) <= self._half_steps
            near &= (tau < 1.0)[:, None]
            values = np.where(near, own[:, numeric], values)
        still = self._still_placeless(start.schema, own, means, tau)
        return np.where(still, own[:, numeric], values)

    def _still_placeless(self, schema: Schema, own: Floats, means: Floats, tau: Floats) -> Bools:
        """Numbers that stay missing or unseen: the path has not yet put another in their place."""
        still = _placeless(schema, own)  # (m, numeric)
        flags = dict(schema.flags)
        for k, i in enumerate(schema.numeric):
            if still[:, k].any():
                share = 1.0 - tau
                if int(i) in flags:
                    share = np.where(np.isnan(own[:, i]), means[:, flags[int(i)]], share)
                still[:, k] &= (share > 0.5) & (tau < 1.0)  # the end has no gaps
        return still

    def _moved(
        self, start: Start, instance: Ints, means: Floats, tau: Floats, labels: Ints
    ) -> Ints:
        """The categories of rows on the way, chosen together: (m, b)."""
        schema, own = start.schema, start.states[instance]
        scores = self._scores(means)  # (m, sum of states)
        evidence = start.held[instance]
        for block, (feature, _, width) in enumerate(schema.blocks):
            first, end = self._ends[block] - self._states[block], self._ends[block]
            known = own[:, block] < self._states[block]
            rows, strange = np.flatnonzero(known), np.flatnonzero(~known)
            if self.anchored:
                scores[rows, first + own[rows, block]] += LOYALTY * (1.0 - tau[rows])
                if width == 1:  # it has no room for a third state: that went in as the first
                    share = np.exp(scores[strange, first]) - (1.0 - tau[strange])
                    scores[strange, first] = np.log(np.clip(share, self._least, None))
            if schema.features[feature].missing:  # what is present never goes missing
                present = own[:, block] != self._states[block] - 1
                scores[present | (tau >= 1.0), end - 1] = -np.inf  # and the end has no gaps
            # A category training never saw cannot be decoded; it stays while it is the strongest.
            likeliest = np.exp(scores[:, first:end].max(axis=1))
            stays = ~known & (1.0 - tau > likeliest)
            evidence[stays, block] = own[stays, block]
        scores[start.barred[instance]] = -np.inf
        return self._choose(scores, labels, evidence)

    @cached_property
    def _half_steps(self) -> Floats:
        return np.array([self.schema.features[i].step / 2 for i in self.schema.numeric])

    @cached_property
    def _states(self) -> list[int]:
        return block_states(self.schema)

    @cached_property
    def _ends(self) -> Ints:
        return np.cumsum(self._states)

    def _scores(self, means: Floats) -> Floats:
        """Log-probabilities of every state of every block: (n, sum of states)."""
        parts = []
        for _, start, width in self.schema.blocks:
            block = means[:, start : start + width]
            parts.append(np.concatenate([1.0 - block, block], axis=1) if width == 1 else block)
        if not parts:
            return np.empty((len(means), 0))
        scores: Floats = np.log(np.clip(np.concatenate(parts, axis=1), self._least, None))
        return scores

    @property
    def _least(self) -> float:
        """Without trees there is nobody to overrule the decoder, and ties would go to the first."""
        return LEAST if self.trees else 1e-9

    def _choose(self, scores: Floats, labels: Ints, evidence: Ints | None) -> Ints:
        chosen = np.empty((len(scores), len(self.schema.blocks)), dtype=np.int64)
        if not self.trees:
            for block, end in enumerate(self._ends):
                first = end - self._states[block]
                chosen[:, block] = scores[:, first:end].argmax(axis=1)
            return chosen if evidence is None else np.where(evidence >= 0, evidence, chosen)
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            given = None if evidence is None else evidence[rows]
            chosen[rows] = self.trees[label].choose(scores[rows], given)
        return chosen

    def percentile(self, z: Tensor, labels: Ints) -> Floats:
        """How dense latent points are for their label, in percent of its training rows: (n,)."""
        found = np.full(len(labels), np.nan)
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            points = z[torch.as_tensor(rows, device=z.device)].cpu()
            with torch.inference_mode():
                found[rows] = self.mixtures[label].percentile(points).numpy()
        return found

    def density(self, schema: Schema, cells: Floats, labels: Ints) -> Floats:
        """How dense rows are for their label, wherever they came from, in percent: (n,)."""
        return self.percentile(self._encode(schema.encode(cells), labels), labels)

    def typical(self, schema: Schema, cells: Floats, labels: Ints) -> Floats:
        """How usual rows' categories are for their label, in percent of its rows: (n,)."""
        found = np.full(len(labels), 100.0)
        if self.trees and schema.blocks:
            states = states_of(schema, cells)
            for label in np.unique(labels):
                rows = np.flatnonzero(labels == label)
                found[rows] = 100.0 * self.trees[label].quantile(states[rows])
        return found

    def sample(self, label: int, count: int, seed: int) -> Floats:
        """New rows of a label: latent points, decoded, with some of the decoder's noise."""
        generator = torch.Generator().manual_seed(seed)
        rng = np.random.default_rng(seed)
        z = self.mixtures[label].sample(count, generator).to(self.device)
        means = self._means(z)
        first = len(self.schema.numeric)
        if self.anchored:  # the paper decodes the mean
            sigma = self.model.log_sigma.clamp(-4.0, 2.0).exp().cpu().numpy()
            if self.schema.shape is None:  # what a pixel misses is no snow: neighbours miss it too
                means[:, :first] += NOISE * sigma * rng.standard_normal((count, first))
            means[:, first:] = _draw(means[:, first:], self.model.shape.widths, rng)
        return self.schema.decode(means)


def _draw(probabilities: Floats, widths: Sequence[int], rng: np.random.Generator) -> Floats:
    """One category per block, drawn with its probability."""
    drawn, start = np.zeros_like(probabilities), 0
    for width in widths:
        block = probabilities[:, start : start + width]
        luck = rng.random(len(block))
        if width == 1:
            drawn[:, start] = luck < block[:, 0]
        else:
            ladder = np.cumsum(block, axis=1) / block.sum(axis=1, keepdims=True)
            which = (luck[:, None] > ladder[:, :-1]).sum(axis=1)
            drawn[np.arange(len(block)), start + which] = 1.0
        start += width
    return drawn


def _placeless(schema: Schema, cells: Floats) -> Bools:
    """Numbers with no place on their scale: missing, or an ordinal's level training never saw."""
    columns = [schema.features[i] for i in schema.numeric]
    known = np.array([len(f.categories) if f.extra else np.inf for f in columns])
    placeless: Bools = ~(cells[:, schema.numeric] < known)  # (n, numeric)
    return placeless


def block_states(schema: Schema) -> list[int]:
    """How many states each block has: its categories, and missing where that was seen."""
    return [max(2, width) for _, _, width in schema.blocks]


def states_of(schema: Schema, cells: Floats) -> Ints:
    """Categories as states of the encoded blocks: codes, then missing, then unknown ones."""
    states = np.zeros((len(cells), len(schema.blocks)), dtype=np.int64)
    for block, (feature, _, _) in enumerate(schema.blocks):
        column = schema.features[feature]
        codes, known = cells[:, feature], len(column.categories)
        shifted = np.where(codes >= known, codes + column.missing, codes)
        # A missing cell where training never saw one is as unknown as a new category.
        states[:, block] = np.where(np.isnan(codes), _missing_state(column), shifted)
    return states


def write_states(schema: Schema, cells: Floats, states: Ints) -> Floats:
    """The inverse of `states_of`, written into cells."""
    for block, (feature, _, _) in enumerate(schema.blocks):
        column = schema.features[feature]
        state, known = states[:, block].astype(np.float64), len(column.categories)
        codes = np.where(state > known, state - column.missing, state)
        cells[:, feature] = np.where(state == _missing_state(column), np.nan, codes)
    return cells


def _missing_state(column: Feature) -> int:
    return len(column.categories) if column.missing else len(column.levels) + 1
