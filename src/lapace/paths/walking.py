"""Walking lines: every step judged, and the steps that matter found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lapace.arrays import Bools, Floats, Ints
from lapace.paths.decoder import Decoder, Start

__all__ = ["Judge", "Lines", "Steer", "Steps", "Traced", "differ", "trace"]


SECTIONS, ROUNDS = 8, 2  # first is refined to a 64th of a grid step, in two calls


class Steps(NamedTuple):
    """Judged rows, of any leading shape: one per line, or a matrix of lines and steps.

    Attributes:
        tau: How far along each stands.
        cells: The row as it may be offered.
        valid: 1 where the label is the wanted one, 0 where not, -1 where nobody asked.
        feasible: Whether it obeys every limit.
        probability: Of the wanted label; NaN where unknown.
        before: How dense the row was, in percent, before limits moved it; NaN where none did.
    """

    tau: Floats
    cells: Floats
    valid: NDArray[np.int8]
    feasible: Bools
    probability: Floats
    before: Floats

    @classmethod
    def of(
        cls, tau: Floats, cells: Floats, valid: Bools, feasible: Bools, probability: Floats
    ) -> Steps:
        """Rows that nothing has moved."""
        unmoved = np.full(len(tau), np.nan)
        return cls(tau, cells, valid.astype(np.int8), feasible, probability, unmoved)

    @property
    def ok(self) -> Bools:
        """Valid and feasible."""
        ok: Bools = (self.valid == 1) & self.feasible
        return ok

    def at(self, *index: Any) -> Steps:
        """Some of them, as numpy indexes."""
        return Steps(*(column[index] for column in self.columns))

    def shaped(self, *shape: int) -> Steps:
        """The same rows under another leading shape."""
        lead = self.tau.ndim
        return Steps(*(c.reshape(*shape, *c.shape[lead:]) for c in self.columns))

    def write(self, index: Any, other: Steps) -> None:
        """Other rows written over some of these."""
        for column, theirs in zip(self.columns, other.columns, strict=True):
            column[index] = theirs

    @classmethod
    def join(cls, parts: Sequence[Steps], axis: int = 1) -> Steps:
        """Matrices of steps, side by side, or one under the other."""
        columns = zip(*(part.columns for part in parts), strict=True)
        return cls(*(np.concatenate(same, axis=axis) for same in columns))

    @property
    def columns(self) -> list[Any]:
        """All fields, in order: arrays of different kinds, which `Any` alone says of them."""
        return list(self)


def differ(a: Floats, b: Floats) -> Bools:
    """Whether rows are not the same, cell by cell; missing equals missing."""
    unlike: Bools = ((a != b) & ~(np.isnan(a) & np.isnan(b))).any(axis=-1)
    return unlike


Judge: TypeAlias = Callable[[Floats, Floats, Ints], Steps]  # tau, cells, lines → judged
# tau, z, rows, lines → rows decoded from near z, closer to what is allowed
Steer: TypeAlias = Callable[[Floats, Tensor, Floats, Ints], Floats]


class Lines(NamedTuple):
    """Lines to walk, one per instance and prototype, some of them twice.

    Attributes:
        instance: The instance each starts from, as a row of the `Start`.
        prototype: Where it leads, as a row of `z`.
        frozen: Whether it keeps the instance's categories; such a twin stands beside its line.
        z: Latent points of the prototypes.
        label: The label each line leads to.
        before: The instance, judged, per line.
        after: The prototype, judged, per line.
    """

    instance: Ints
    prototype: Ints
    frozen: Bools
    z: Tensor
    label: Ints
    before: Steps
    after: Steps

    def some(self, rows: Ints) -> Lines:
        """Only some of the lines."""
        return Lines(
            self.instance[rows],
            self.prototype[rows],
            self.frozen[rows],
            self.z,
            self.label[rows],
            self.before.at(rows),
            self.after.at(rows),
        )


class Traced(NamedTuple):
    """One path per instance and prototype.

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
    steer: Steer | None = None

    def latent(self, lines: Ints, tau: Floats) -> Tensor:
        """z at tau on lines: (m, h)."""
        device = self.lines.z.device
        share = torch.as_tensor(tau, dtype=torch.float32, device=device)[:, None]
        begin = self.start.z[torch.as_tensor(self.lines.instance[lines], device=device)]
        end = self.lines.z[torch.as_tensor(self.lines.prototype[lines], device=device)]
        return (1 - share) * begin + share * end

    def stand(self, lines: Ints, tau: Floats) -> Steps:
        """The judged rows at tau on lines, strictly between the ends."""
        instance, label = self.lines.instance[lines], self.lines.label[lines]
        z = self.latent(lines, tau)
        rows = self.decoder.rows(self.start, instance, tau, z, label, self.lines.frozen[lines])
        nearer = rows if self.steer is None else self.steer(tau, z, rows, lines)
        found = self.judge(tau, nearer, lines)
        moved = np.flatnonzero(differ(rows, found.cells))
        if len(moved):
            found.before[moved] = self.decoder.density(self.start.schema, rows[moved], label[moved])
        return found

    def some(self, rows: Ints) -> Walker:
        """The same, on some of the lines."""
        judge, steer = self.judge, self.steer
        return Walker(
            self.decoder,
            self.start,
            self.lines.some(rows),
            lambda tau, cells, lines: judge(tau, cells, rows[lines]),
            steer and (lambda tau, z, cells, lines: steer(tau, z, cells, rows[lines])),
        )


def trace(
    decoder: Decoder,
    start: Start,
    lines: Lines,
    judge: Judge,
    *,
    steer: Steer | None = None,
    steps: int = 20,
    stable: bool = True,
    literal: bool = False,
    every: bool = True,
    weights: Floats | None = None,
) -> Traced:
    """Walks every line, finds its first and middle, and keeps the better of each pair of twins.

    Args:
        decoder: Turns latent points into rows.
        start: The instances.
        lines: The lines to walk.
        judge: Says of rows, given their lines, what may be offered and whether it is good.
        steer: Moves latent points of rows that may not be offered, and decodes them again.
        steps: Steps from the instance to the prototype.
        stable: Take the start of the last unbroken run of good rows rather than the first good one.
        literal: The paper's picks: the first good grid point, the plain midpoint, the prototype.
        every: Ask about every step; otherwise only what a search for first needs.
        weights: One per column, for the distance that decides between twins.
    """
    walker = Walker(decoder, start, lines, judge, steer)
    grid = _whole_grid(walker, steps) if every else _bracket(walker, steps, stable)
    begin = _run_start(grid.ok, stable)  # (lines,), -1 where nothing is good
    first = grid.at(np.arange(len(begin)), np.maximum(begin, 0))
    chosen = _better_twins(walker, first, begin >= 0, weights)
    walker, grid, first, begin = (
        walker.some(chosen),
        grid.at(chosen),
        first.at(chosen),
        begin[chosen],
    )
    if not literal:
        _refine(walker, grid, begin, first, stable)
    return _assemble(walker, chosen, grid, first, begin, literal=literal)


# ------------------------------------------------------------------------------------------------
# The grid


def _whole_grid(walker: Walker, steps: int) -> Steps:
    """Every step of every line, in one call of the judge."""
    count = len(walker.lines.instance)
    inner = np.tile(np.linspace(0.0, 1.0, steps + 1)[1:-1], (count, 1))  # (lines, steps - 1)
    lines = np.repeat(np.arange(count), steps - 1)
    return _between_ends(walker, walker.stand(lines, inner.ravel()).shaped(count, steps - 1))


def _between_ends(walker: Walker, inner: Steps) -> Steps:
    count = len(walker.lines.instance)
    before, after = walker.lines.before.shaped(count, 1), walker.lines.after.shaped(count, 1)
    return Steps.join([before, inner, after])


def _bracket(walker: Walker, steps: int, stable: bool) -> Steps:
    """Only what a search needs: the last step not good, the next, the last good, and both ends.

    Halves the grid where the prototype is good. Where it is not, the whole grid has to be looked
    at, and the bracket is cut out of it.
    """
    count = len(walker.lines.instance)
    before, after = walker.lines.before.shaped(count, 1), walker.lines.after.shaped(count, 1)
    bracket = Steps.join([before, after, after])  # (lines, 3)
    low, high = np.zeros(count, dtype=np.int64), np.full(count, steps)
    searched = np.flatnonzero(walker.lines.after.ok)
    while len(open_ := searched[high[searched] - low[searched] > 1]):
        middle = (low[open_] + high[open_]) // 2
        found = walker.stand(open_, middle / steps)
        bracket.write((open_, found.ok.astype(np.int64)), found)  # a good one is the upper end
        high[open_] = np.where(found.ok, middle, high[open_])
        low[open_] = np.where(found.ok, low[open_], middle)
    hard = np.flatnonzero(~walker.lines.after.ok)
    if len(hard):
        grid = _whole_grid(walker.some(hard), steps)
        begin, rows = _run_start(grid.ok, stable), np.arange(len(hard))
        upper = np.where(begin < 0, _most_hopeful(grid), begin)
        farthest = np.where(begin < 0, upper, steps - grid.ok[:, ::-1].argmax(axis=1))
        for place, step in enumerate((np.maximum(upper - 1, 0), upper, farthest)):
            bracket.write((hard, place), grid.at(rows, step))
    return _between_ends(walker, bracket)


def _run_start(ok: Bools, stable: bool) -> Ints:
    """Where the last unbroken run of good steps begins (or the first good step); -1 for none."""
    if not stable:
        return np.where(ok.any(axis=1), ok.argmax(axis=1), -1)
    count = ok.shape[1]
    last = count - 1 - ok[:, ::-1].argmax(axis=1)  # the last good one
    position = np.arange(count)
    gaps = np.where(~ok & (position < last[:, None]), position, -1)
    return np.where(ok.any(axis=1), gaps.max(axis=1) + 1, -1)


# ------------------------------------------------------------------------------------------------
# The steps that matter


def _refine(walker: Walker, grid: Steps, begin: Ints, first: Steps, stable: bool) -> None:
    """Moves `first` back into the interval before it; every row written was asked about."""
    lines = np.flatnonzero(begin > 0)
    if not len(lines):
        return
    low, high = grid.tau[lines, begin[lines] - 1], grid.tau[lines, begin[lines]]
    parts = SECTIONS - 1
    rows = np.arange(len(lines))
    for _ in range(ROUNDS):
        tau = low[:, None] + np.arange(1, SECTIONS) / SECTIONS * (high - low)[:, None]
        found = walker.stand(np.repeat(lines, parts), tau.ravel()).shaped(len(lines), parts)
        start = _run_start(np.c_[found.ok, np.ones(len(lines), dtype=bool)], stable)
        gap = start - 1  # the step before first, which is not good
        better = np.flatnonzero(gap < parts - 1)
        first.write(lines[better], found.at(better, gap[better] + 1))
        edges = np.concatenate([low[:, None], tau, high[:, None]], axis=1)
        low, high = edges[rows, gap + 1], edges[rows, gap + 2]


def _better_twins(walker: Walker, first: Steps, found: Bools, weights: Floats | None) -> Ints:
    """Of the lines between the same instance and prototype, the one whose first is cheapest."""
    instance, prototype = walker.lines.instance, walker.lines.prototype
    gaps = walker.start.schema.gaps(walker.start.cells[instance], first.cells)  # (lines, d)
    cost = gaps.sum(axis=1) if weights is None else gaps @ weights
    cost = np.where(found, cost, np.inf)
    pair = instance * (prototype.max(initial=0) + 1) + prototype
    order = np.lexsort((walker.lines.frozen, cost, pair))
    _, where = np.unique(pair[order], return_index=True)
    chosen: Ints = order[where]
    return chosen


def _assemble(
    walker: Walker, chosen: Ints, grid: Steps, first: Steps, begin: Ints, *, literal: bool
) -> Traced:
    """Grid, first and midpoint side by side, and the picks as positions among them."""
    count, size = grid.tau.shape
    tau = (first.tau + 1.0) / 2
    inside = np.flatnonzero((tau < 1.0) & (begin >= 0))
    # Where first is the prototype, so is the midpoint; where there is no first, it is not used.
    middle = grid.at(np.arange(count), np.full(count, size - 1))  # a copy, to be written over
    if len(inside):
        middle.write(inside, walker.stand(inside, tau[inside]))
    steps = Steps.join([grid, first.shaped(count, 1), middle.shaped(count, 1)])
    picks = _picks(grid, steps, begin, literal)
    left = (grid.valid[:, :-1] == 1) & (grid.valid[:, 1:] == 0)
    labels = np.repeat(walker.lines.label, size + 2)
    rows = steps.cells.reshape(-1, steps.cells.shape[2])
    density = walker.decoder.density(walker.start.schema, rows, labels).reshape(count, size + 2)
    return Traced(chosen, steps, density, *picks, left.sum(axis=1))


def _picks(grid: Steps, steps: Steps, begin: Ints, literal: bool) -> tuple[Ints, Ints, Ints]:
    """First, middle and last as positions among the steps."""
    size = grid.tau.shape[1]
    found, ok = begin >= 0, grid.ok
    lost, best = np.flatnonzero(~found), np.zeros(len(begin), dtype=np.int64)
    best[lost] = _most_hopeful(grid.at(lost))
    last = np.where(found, size - 1 - ok[:, ::-1].argmax(axis=1), size - 1)
    first = np.where(found, size, best)
    if literal:
        return first, np.where(found, size + 1, best), np.full(len(ok), size - 1)
    later = ok & (grid.tau > steps.tau[:, -1:])
    after = np.where(later.any(axis=1), later.argmax(axis=1), last)
    middle = np.where(steps.ok[:, -1], size + 1, after)
    beyond = steps.ok[:, -1] & (steps.tau[:, -1] > grid.tau[np.arange(len(ok)), last])
    last = np.where(beyond, size + 1, last)
    return first, np.where(found, middle, best), np.where(found, last, best)


def _most_hopeful(grid: Steps) -> Ints:
    """Without a good step, the best there is: feasible, then most probable, then farthest.

    The input is no answer, so a step that is still the instance's own row is the last resort.
    """
    hope = np.where(grid.feasible, 2.0, 0.0) + np.nan_to_num(grid.probability) + 1e-6 * grid.tau
    hope -= np.where(differ(grid.cells, grid.cells[:, :1]), 0.0, 4.0)
    best: Ints = np.where(grid.tau > 0, hope, -np.inf).argmax(axis=1)
    return best
