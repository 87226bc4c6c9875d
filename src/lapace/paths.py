r"""LAPACE: straight latent lines, decoded, and the steps that matter on them.

Algorithm 1 of the paper, for many people at once: $z_\tau = (1 - \tau) z_x + \tau \mu_c$, decoded.
`Decoder` turns latent points into rows of the table, anchored at the person so that a path begins
where they stand. `trace` walks all lines, asks a `judge` about the rows, and finds where the last
unbroken run of good rows begins. What makes a row good, neither of them knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lapace.categories import CategoryTree
from lapace.model import LGMVAE, Mixture
from lapace.schema import Feature, Schema

__all__ = ["Decoder", "Lines", "Start", "Steps", "Traced", "Verdict", "trace"]

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

# Under this probability a category's score does not fall further: the tree, which knows what goes
# together, must be able to overrule a decoder that is too sure of one block at a time. On adult
# 0.1 gave answers a LOF of 1.1, a millionth one of 2.0.
LEAST = 0.1
LOYALTY = 1.0  # how much a person's own category is favoured at the start; fades along the path
SECTIONS, ROUNDS = 8, 2  # first is refined to a 64th of a grid step, in two calls


class Start(NamedTuple):
    """People at the beginning of their paths.

    Attributes:
        schema: The columns, widened by what only they have.
        cells: Their rows.
        z: Their latent points.
        residual: What the decoder misses of them, e(x) - Dec(z_x).
        states: Their categories as states of the blocks; beyond a block's width: unknown.
        held: States that must stay as they are; -1 where they may move.
        barred: States that may not be chosen, over all blocks.
    """

    schema: Schema
    cells: Floats
    z: Tensor
    residual: Floats
    states: Ints
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
        anchored: Whether paths begin at the person rather than at their reconstruction.
        soft: Whether the encoder is handed cluster probabilities (the paper's recipe).
    """

    schema: Schema
    model: LGMVAE
    mixtures: tuple[Mixture, ...]
    trees: tuple[CategoryTree, ...] = ()
    anchored: bool = True
    soft: bool = False

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
            return self.model.encode(x, y, soft=self.soft)

    def start(
        self,
        schema: Schema,
        cells: Floats,
        labels: Ints,
        held: Ints | None = None,
        barred: Bools | None = None,
    ) -> Start:
        """People made ready to walk."""
        encoded = schema.encode(cells)  # (n, w)
        z = self._encode(encoded, labels)
        residual = encoded - self._means(z)
        numeric = schema.numeric
        # A missing number has no residual: there is nothing the decoder could have missed.
        residual[:, : len(numeric)][np.isnan(cells[:, numeric])] = 0.0
        if not self.anchored:
            residual = np.zeros_like(residual)
        if held is None:
            held = np.full((len(cells), len(schema.blocks)), -1, dtype=np.int64)
        if barred is None:
            barred = np.zeros((len(cells), sum(self._states)), dtype=bool)
        return Start(schema, cells, z, residual, states_of(schema, cells), held, barred)

    # -- out --------------------------------------------------------------------------------------

    def _means(self, z: Tensor) -> Floats:
        with torch.inference_mode():
            means: Floats = self.model.decode(z).cpu().numpy().astype(np.float64)
        return means

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
        self, start: Start, who: Ints, tau: Floats, z: Tensor, labels: Ints, frozen: Bools
    ) -> Floats:
        """Rows along paths, anchored at the people they start from.

        Args:
            start: The people.
            who: For each row the person it starts from.
            tau: How far along it is.
            z: Its latent point.
            labels: The label it leads to.
            frozen: Whether it keeps the person's own categories.
        """
        fade = (1.0 - tau)[:, None]  # (m, 1)
        means = self._means(z) + fade * start.residual[who]  # (m, w)
        own = start.cells[who]  # (m, d)
        cells = own.copy()
        numeric = start.schema.numeric
        values = start.schema.units(means[:, : len(numeric)])
        if self.anchored:
            there = ~np.isnan(own[:, numeric])
            same = there & ~start.schema.changed(start.schema.snap(own), _put(own, numeric, values))[
                :, numeric
            ]
            values = np.where(same, own[:, numeric], values)
        values[self._still_missing(start.schema, own, means, tau)] = np.nan
        cells[:, numeric] = values
        if not start.schema.blocks:
            return cells
        states = start.states[who]  # (m, b)
        moving = np.flatnonzero(~frozen)
        states[moving] = self._moved(start, who[moving], means[moving], tau[moving], labels[moving])
        return write_states(start.schema, cells, states)

    def _still_missing(self, schema: Schema, own: Floats, means: Floats, tau: Floats) -> Bools:
        """Numbers that stay missing: the person's was, and the path has not yet filled it."""
        gone = np.isnan(own[:, schema.numeric])  # (m, numeric)
        flags = dict(schema.flags)
        for k, i in enumerate(schema.numeric):
            if gone[:, k].any():
                flag = means[:, flags[int(i)]] if int(i) in flags else 1.0 - tau
                gone[:, k] &= flag > 0.5
        return gone

    def _moved(self, start: Start, who: Ints, means: Floats, tau: Floats, labels: Ints) -> Ints:
        """The categories of rows on the way, chosen together: (m, b)."""
        schema, own = start.schema, start.states[who]
        scores = self._scores(means)  # (m, sum of states)
        evidence = start.held[who]
        for block, (feature, _, _) in enumerate(schema.blocks):
            first, end = self._ends[block] - self._states[block], self._ends[block]
            known = own[:, block] < self._states[block]
            rows = np.flatnonzero(known)
            if self.anchored:
                scores[rows, first + own[rows, block]] += LOYALTY * (1.0 - tau[rows])
            # A category training never saw cannot be decoded; it stays while it is the strongest.
            likeliest = np.exp(scores[:, first:end].max(axis=1))
            stays = ~known & (1.0 - tau > likeliest)
            evidence[stays, block] = own[stays, block]
            if schema.features[feature].missing:  # what is present never goes missing
                present = own[:, block] != self._states[block] - 1
                scores[present, end - 1] = -np.inf
        scores[start.barred[who]] = -np.inf
        return self._choose(scores, labels, evidence)

    @property
    def _states(self) -> list[int]:
        return block_states(self.schema)

    @property
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
        return np.log(np.clip(np.concatenate(parts, axis=1), LEAST, None))

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

    def sample(self, label: int, count: int, seed: int) -> Floats:
        """New rows of a label, as cells: a latent point, decoded, with the noise it was given."""
        generator = torch.Generator().manual_seed(seed)
        rng = np.random.default_rng(seed)
        z = self.mixtures[label].sample(count, generator).to(self.device)
        means = self._means(z)
        first = len(self.schema.numeric)
        if not self.soft:  # the paper decodes the mean
            sigma = self.model.log_sigma.clamp(-4.0, 2.0).exp().cpu().numpy()
            means[:, :first] += sigma * rng.standard_normal((count, first))
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


def _put(cells: Floats, columns: Ints, values: Floats) -> Floats:
    changed = cells.copy()
    changed[:, columns] = values
    return changed


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


# ------------------------------------------------------------------------------------------------
# Walking


class Verdict(NamedTuple):
    """What a judge says of rows: the rows as they may be offered, and whether each is good."""

    cells: Floats
    valid: Bools
    feasible: Bools
    probability: Floats

    @property
    def ok(self) -> Bools:
        """Valid and feasible."""
        return self.valid & self.feasible


Judge: TypeAlias = Callable[[Floats, Ints], Verdict]


class Lines(NamedTuple):
    """Lines to walk, one per person and prototype, some of them twice.

    Attributes:
        who: The person each starts from, as a row of the `Start`.
        prototype: Where it leads, as a row of `ends`.
        frozen: Whether it keeps the person's categories; such a twin stands beside its line.
        z: Latent points of the prototypes.
        label: The label each line leads to.
        before: The verdict on the person, per line.
        after: The verdict on the prototype, per line.
    """

    who: Ints
    prototype: Ints
    frozen: Bools
    z: Tensor
    label: Ints
    before: Verdict
    after: Verdict


class Steps(NamedTuple):
    """Rows along lines: everything (lines, steps, ...)."""

    tau: Floats
    cells: Floats
    valid: NDArray[np.int8]
    feasible: Bools
    probability: Floats

    @property
    def ok(self) -> Bools:
        """Valid and feasible."""
        return (self.valid == 1) & self.feasible


class Traced(NamedTuple):
    """One path per person and prototype.

    Attributes:
        lines: The line each path was taken from.
        steps: Its rows: the grid, the refined first, the midpoint.
        density: Percentile of each step.
        first: The step chosen as first; likewise `middle` and `last`.
        crossings: How often the label leaves the target again along the grid.
    """

    lines: Ints
    steps: Steps
    density: Floats
    first: Ints
    middle: Ints
    last: Ints
    crossings: Ints


class Walker(NamedTuple):
    """What is needed to stand anywhere on any line."""

    decoder: Decoder
    start: Start
    lines: Lines
    judge: Judge

    def latent(self, lines: Ints, tau: Floats) -> Tensor:
        """z at tau on lines: (m, h)."""
        device = self.lines.z.device
        share = torch.as_tensor(tau, dtype=torch.float32, device=device)[:, None]
        begin = self.start.z[torch.as_tensor(self.lines.who[lines], device=device)]
        end = self.lines.z[torch.as_tensor(self.lines.prototype[lines], device=device)]
        return (1 - share) * begin + share * end

    def stand(self, lines: Ints, tau: Floats) -> Verdict:
        """The judged rows at tau on lines, strictly between the ends."""
        who, label = self.lines.who[lines], self.lines.label[lines]
        z = self.latent(lines, tau)
        frozen = self.lines.frozen[lines]
        return self.judge(self.decoder.rows(self.start, who, tau, z, label, frozen), lines)


def trace(
    decoder: Decoder,
    start: Start,
    lines: Lines,
    judge: Judge,
    *,
    steps: int = 20,
    stable: bool = True,
    literal: bool = False,
    every: bool = True,
    weights: Floats | None = None,
) -> Traced:
    """Walks every line, finds its first and middle, and keeps the better of each pair of twins.

    Args:
        decoder: Turns latent points into rows.
        start: The people.
        lines: The lines to walk.
        judge: Says of rows, given their lines, what may be offered and whether it is good.
        steps: Steps from the person to the prototype.
        stable: Take the start of the last unbroken run of good rows rather than the first good one.
        literal: The paper's picks: the first good grid point, the plain midpoint, the prototype.
        every: Ask about every step; otherwise only what a search for first needs.
        weights: One per column, for the distance that decides between twins.
    """
    walker = Walker(decoder, start, lines, judge)
    grid = _whole_grid(walker, steps) if every else _bracket(walker, steps)
    begin = _run_start(grid.ok, stable)  # (lines,), -1 where nothing is good
    if literal:
        first = _select(grid, np.maximum(begin, 0))
    else:
        first = _refine(walker, grid, begin)
    chosen = _better_twins(walker, first, begin >= 0, weights)
    picked = _take(first, chosen), _take(grid, chosen), begin[chosen]
    return _assemble(walker, chosen, *picked, literal=literal)


def _whole_grid(walker: Walker, steps: int) -> Steps:
    """Every step of every line, in one call of the judge."""
    count = len(walker.lines.who)
    tau = np.tile(np.linspace(0.0, 1.0, steps + 1), (count, 1))  # (lines, steps + 1)
    inner = np.repeat(np.arange(count), steps - 1)
    verdict = walker.stand(inner, tau[:, 1:-1].ravel())
    shape = (count, steps - 1)
    return _with_ends(walker, tau, *(part.reshape(*shape, *part.shape[1:]) for part in verdict))


def _with_ends(
    walker: Walker, tau: Floats, cells: Floats, valid: Bools, feasible: Bools, probability: Floats
) -> Steps:
    before, after = walker.lines.before, walker.lines.after

    def around(middle: NDArray[np.generic], name: str) -> NDArray[np.generic]:
        first, last = getattr(before, name)[:, None], getattr(after, name)[:, None]
        return np.concatenate([first, middle, last], axis=1)

    return Steps(
        tau,
        around(cells, "cells"),
        around(valid, "valid").astype(np.int8),
        around(feasible, "feasible").astype(bool),
        around(probability, "probability"),
    )


def _bracket(walker: Walker, steps: int) -> Steps:
    """Only what a search needs: the person, the last step not good, the next, the prototype.

    Halves the grid where the prototype is good. Where it is not, the whole grid has to be looked
    at, and the bracket is cut out of it.
    """
    count = len(walker.lines.who)
    low, high = np.zeros(count, dtype=np.int64), np.full(count, steps)
    cells = np.stack([walker.lines.before.cells, walker.lines.after.cells], axis=1)
    state = Steps(
        np.stack([low, high], axis=1) / steps,
        cells,
        np.stack([walker.lines.before.valid, walker.lines.after.valid], axis=1).astype(np.int8),
        np.stack([walker.lines.before.feasible, walker.lines.after.feasible], axis=1),
        np.stack([walker.lines.before.probability, walker.lines.after.probability], axis=1),
    )
    searched = np.flatnonzero(walker.lines.after.ok)
    while True:
        open_ = searched[high[searched] - low[searched] > 1]
        if not len(open_):
            break
        middle = (low[open_] + high[open_]) // 2
        verdict = walker.stand(open_, middle / steps)
        side = verdict.ok.astype(np.int64)  # 1: the upper end moves down
        _write(state, open_, side, middle / steps, verdict)
        high[open_] = np.where(verdict.ok, middle, high[open_])
        low[open_] = np.where(verdict.ok, low[open_], middle)
    hard = np.flatnonzero(~walker.lines.after.ok)
    if len(hard):
        part = Walker(walker.decoder, walker.start, _sub(walker.lines, hard), _moved(walker, hard))
        grid = _whole_grid(part, steps)
        begin = _run_start(grid.ok, stable=True)
        upper = np.where(begin < 0, steps, begin)
        for side, at in enumerate((np.maximum(upper - 1, 0), upper)):
            _write(state, hard, np.full(len(hard), side), *_split(_select(grid, at)))
    return _outer(walker, state)


def _outer(walker: Walker, inner: Steps) -> Steps:
    """Person, bracket, prototype."""
    tau = np.concatenate(
        [np.zeros((len(inner.tau), 1)), inner.tau, np.ones((len(inner.tau), 1))], axis=1
    )
    return _with_ends(
        walker, tau, inner.cells, inner.valid == 1, inner.feasible, inner.probability
    )


def _split(steps: Steps) -> tuple[Floats, Verdict]:
    verdict = Verdict(steps.cells[:, 0], steps.valid[:, 0] == 1, steps.feasible[:, 0],
                      steps.probability[:, 0])
    return steps.tau[:, 0], verdict


def _sub(lines: Lines, rows: Ints) -> Lines:
    before, after = (Verdict(*(part[rows] for part in v)) for v in (lines.before, lines.after))
    return Lines(
        lines.who[rows], lines.prototype[rows], lines.frozen[rows], lines.z, lines.label[rows],
        before, after,
    )


def _moved(walker: Walker, rows: Ints) -> Judge:
    return lambda cells, lines: walker.judge(cells, rows[lines])


def _run_start(ok: Bools, stable: bool) -> Ints:
    """Where the last unbroken run of good steps begins (or the first good step); -1 for none."""
    if not stable:
        return np.where(ok.any(axis=1), ok.argmax(axis=1), -1)
    count = ok.shape[1]
    last = count - 1 - ok[:, ::-1].argmax(axis=1)  # the last good one
    position = np.arange(count)
    gaps = np.where(~ok & (position < last[:, None]), position, -1)
    return np.where(ok.any(axis=1), gaps.max(axis=1) + 1, -1)


def _refine(walker: Walker, grid: Steps, begin: Ints) -> Steps:
    """Cuts the interval before `begin` into ever smaller parts; the row returned was asked about."""
    first = _select(grid, np.maximum(begin, 0))
    lines = np.flatnonzero(begin > 0)
    if not len(lines):
        return first
    low, high = grid.tau[lines, begin[lines] - 1], grid.tau[lines, begin[lines]]
    inner = np.arange(1, SECTIONS) / SECTIONS
    for _ in range(ROUNDS):
        tau = low[:, None] + inner * (high - low)[:, None]  # (lines, sections - 1)
        verdict = walker.stand(np.repeat(lines, SECTIONS - 1), tau.ravel())
        ok = verdict.ok.reshape(tau.shape)
        gaps = np.where(~ok, np.arange(SECTIONS - 1), -1).max(axis=1)  # the last one not good
        better = np.flatnonzero(gaps < SECTIONS - 2)
        where = better * (SECTIONS - 1) + gaps[better] + 1
        part = Verdict(*(values[where] for values in verdict))
        _write(first, lines[better], np.zeros(len(better), dtype=np.int64), tau.ravel()[where], part)
        edges = np.concatenate([low[:, None], tau, high[:, None]], axis=1)
        rows = np.arange(len(lines))
        low, high = edges[rows, gaps + 1], edges[rows, gaps + 2]
    return first


def _write(steps: Steps, lines: Ints, at: Ints, tau: Floats, verdict: Verdict) -> None:
    steps.tau[lines, at] = tau
    steps.cells[lines, at] = verdict.cells
    steps.valid[lines, at] = verdict.valid
    steps.feasible[lines, at] = verdict.feasible
    steps.probability[lines, at] = verdict.probability


def _select(steps: Steps, at: Ints) -> Steps:
    rows = np.arange(len(at))
    return Steps(*(part[rows, at][:, None].copy() for part in steps))


def _take(steps: Steps, lines: Ints) -> Steps:
    return Steps(*(part[lines] for part in steps))


def _better_twins(walker: Walker, first: Steps, found: Bools, weights: Floats | None) -> Ints:
    """Of the lines between the same person and prototype, the one whose first is cheapest."""
    own = walker.start.cells[walker.lines.who]
    gaps = walker.start.schema.gaps(own, first.cells[:, 0])  # (lines, d)
    cost = gaps @ (np.ones(gaps.shape[1]) if weights is None else weights)
    cost = np.where(found & first.ok[:, 0], cost, np.inf)
    pair = walker.lines.who * (walker.lines.prototype.max(initial=0) + 1) + walker.lines.prototype
    order = np.lexsort((walker.lines.frozen, cost, pair))
    _, where = np.unique(pair[order], return_index=True)
    return order[where]


def _assemble(
    walker: Walker, lines: Ints, first: Steps, grid: Steps, begin: Ints, *, literal: bool
) -> Traced:
    """Grid, first and midpoint side by side, and the picks as positions among them."""
    count, size = grid.tau.shape
    tau = (first.tau[:, 0] + 1.0) / 2
    inside = np.flatnonzero((tau < 1.0) & (begin >= 0))
    middle = _select(grid, np.full(count, size - 1))  # where first is the prototype, so is middle
    if len(inside):
        verdict = walker.stand(lines[inside], tau[inside])
        _write(middle, inside, np.zeros(len(inside), dtype=np.int64), tau[inside], verdict)
    steps = Steps(*(np.concatenate(p, axis=1) for p in zip(grid, first, middle, strict=True)))
    picks = _picks(grid, steps, begin, literal)
    left = (grid.valid[:, :-1] == 1) & (grid.valid[:, 1:] == 0)
    z = walker.latent(np.repeat(lines, size + 2), steps.tau.ravel())
    labels = np.repeat(walker.lines.label[lines], size + 2)
    density = walker.decoder.percentile(z, labels).reshape(count, size + 2)
    return Traced(lines, steps, density, *picks, left.sum(axis=1))


def _picks(grid: Steps, steps: Steps, begin: Ints, literal: bool) -> tuple[Ints, Ints, Ints]:
    size = grid.tau.shape[1]
    ok = grid.ok
    found = begin >= 0
    last = np.where(found, size - 1 - ok[:, ::-1].argmax(axis=1), size - 1)
    # Without a good step the best there is: feasible, then most probable, then farthest.
    hope = np.where(grid.feasible, 2.0, 0.0) + np.nan_to_num(grid.probability) + 1e-6 * grid.tau
    best = hope[:, 1:].argmax(axis=1) + 1
    if literal:
        return np.where(found, size, best), np.full(len(ok), size + 1), np.full(len(ok), size - 1)
    later = ok & (grid.tau > steps.tau[:, -1:])
    after = np.where(later.any(axis=1), later.argmax(axis=1), last)
    middle = np.where(steps.ok[:, -1], size + 1, after)
    return (
        np.where(found, size, best),
        np.where(found, middle, best),
        np.where(found, last, best),
    )
