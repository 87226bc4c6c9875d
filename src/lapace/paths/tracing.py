"""Latent lines evaluated step by step, and the steps `first`, `middle` and `last` found on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lapace.arrays import Bools, Floats, Ints, first_of_each
from lapace.paths.decoder import Decoder, EncodedInstances

__all__ = ["Correct", "Evaluate", "Lines", "Steps", "TracedPaths", "rows_differ", "trace"]

SECTIONS, ROUNDS = 8, 2  # `first` is refined to 1/64 of a grid step, in two calls


class Steps(NamedTuple):
    """Evaluated rows, of any leading shape: one per line, or a matrix (lines, steps).

    Attributes:
        tau: Position on the line, 0 the instance, 1 the endpoint.
        cells: The row, after projection.
        predicted: The classifier's label, as a position among the labels; -1 where unknown.
        valid: 1 where the classifier predicts the target, 0 where not, -1 where it was not queried.
        feasible: Whether every constraint holds.
        probability: Of the target; NaN where unknown.
        density_before: Density percentile before constraints moved the row; NaN where they did not.
    """

    tau: Floats
    cells: Floats
    predicted: Ints
    valid: NDArray[np.int8]
    feasible: Bools
    probability: Floats
    density_before: Floats

    @classmethod
    def of(
        cls,
        tau: Floats,
        cells: Floats,
        predicted: Ints,
        valid: Bools,
        feasible: Bools,
        probability: Floats,
    ) -> Steps:
        """Rows that no constraint moved."""
        unmoved = np.full(len(tau), np.nan)
        return cls(tau, cells, predicted, valid.astype(np.int8), feasible, probability, unmoved)

    @property
    def ok(self) -> Bools:
        """Valid and feasible."""
        ok: Bools = (self.valid == 1) & self.feasible
        return ok

    def take(self, *index: Any) -> Steps:
        """A selection, indexed as numpy arrays are."""
        return Steps(*(column[index] for column in self.columns))

    def reshape(self, *shape: int) -> Steps:
        """The same rows under another leading shape."""
        lead = self.tau.ndim
        return Steps(*(c.reshape(*shape, *c.shape[lead:]) for c in self.columns))

    def write(self, index: Any, other: Steps) -> None:
        """Overwrites a selection with other rows."""
        for column, theirs in zip(self.columns, other.columns, strict=True):
            column[index] = theirs

    @classmethod
    def join(cls, parts: Sequence[Steps], axis: int = 1) -> Steps:
        """Concatenates matrices of steps along an axis."""
        columns = zip(*(part.columns for part in parts), strict=True)
        return cls(*(np.concatenate(same, axis=axis) for same in columns))

    @property
    def columns(self) -> list[Any]:
        """All fields in order; typed Any since the arrays differ in dtype."""
        return list(self)


def rows_differ(a: Floats, b: Floats) -> Bools:
    """Whether rows differ in any cell; missing equals missing."""
    unlike: Bools = ((a != b) & ~(np.isnan(a) & np.isnan(b))).any(axis=-1)
    return unlike


Evaluate: TypeAlias = Callable[[Floats, Floats, Ints], Steps]  # tau, cells, lines → steps
# tau, z, cells, lines → cells decoded from corrected latent points near z
Correct: TypeAlias = Callable[[Floats, Tensor, Floats, Ints], Floats]


class Lines(NamedTuple):
    """Straight latent lines, one per instance and endpoint, some with a frozen-category copy.

    Attributes:
        instance: The instance each line starts from, as a row of the `EncodedInstances`.
        endpoint: The endpoint it leads to, as a row of `z`.
        frozen: Whether it keeps the instance's categories (a frozen-category line).
        z: Latent points of the endpoints.
        label: The label of each line's endpoint.
        start: Step 0 of each line, evaluated.
        end: Step 1 of each line, evaluated.
    """

    instance: Ints
    endpoint: Ints
    frozen: Bools
    z: Tensor
    label: Ints
    start: Steps
    end: Steps


class TracedPaths(NamedTuple):
    """One path per instance and endpoint.

    Attributes:
        lines: The line each path was taken from.
        steps: Its rows: the grid, the refined `first`, the midpoint.
        density: Density percentile of each step.
        first: The step picked as `first`; likewise `middle` and `last`.
        crossings: How often the label leaves the target again along the grid.
    """

    lines: Ints
    steps: Steps
    density: Floats
    first: Ints
    middle: Ints
    last: Ints
    crossings: Ints


class _LineEvaluator(NamedTuple):
    """Decodes, corrects and evaluates rows anywhere on any line."""

    decoder: Decoder
    instances: EncodedInstances
    lines: Lines
    evaluate: Evaluate
    correct: Correct | None = None

    def latent(self, lines: Ints, tau: Floats) -> Tensor:
        """Latent points at tau on lines: (m, h)."""
        device = self.lines.z.device
        share = torch.as_tensor(tau, dtype=torch.float32, device=device)[:, None]
        begin = self.instances.z[torch.as_tensor(self.lines.instance[lines], device=device)]
        end = self.lines.z[torch.as_tensor(self.lines.endpoint[lines], device=device)]
        return (1 - share) * begin + share * end

    def evaluate_at(self, lines: Ints, tau: Floats) -> Steps:
        """Evaluated rows at tau on lines, for 0 < tau < 1."""
        instance, label = self.lines.instance[lines], self.lines.label[lines]
        frozen, z = self.lines.frozen[lines], self.latent(lines, tau)
        decoded = self.decoder.path_rows(self.instances, instance, tau, z, label, frozen)
        corrected = decoded if self.correct is None else self.correct(tau, z, decoded, lines)
        found = self.evaluate(tau, corrected, lines)
        moved = np.flatnonzero(rows_differ(decoded, found.cells))
        if len(moved):
            found.density_before[moved] = self.decoder.density(
                self.instances.schema, decoded[moved], label[moved]
            )
        return found


def trace(
    decoder: Decoder,
    instances: EncodedInstances,
    lines: Lines,
    evaluate: Evaluate,
    *,
    correct: Correct | None = None,
    steps: int = 20,
    stable: bool = True,
    every_step: bool = True,
    weights: Floats | None = None,
    refined: bool = True,
) -> TracedPaths:
    """Evaluates every line and finds its `first`, `middle` and `last`.

    Of a line and its frozen-category copy the one with the cheaper `first` is kept. A decoder that
    follows the paper gets the paper's picks: the first ok grid point, the plain midpoint, tau=1.

    Args:
        decoder: Turns latent points into rows.
        instances: Where the lines start.
        lines: The lines.
        evaluate: Projects rows, checks them and queries the classifier, given their lines.
        correct: Moves the latent points of infeasible rows, and decodes them again.
        steps: Grid steps from instance to endpoint.
        stable: Take the start of the last unbroken run of ok steps rather than the first ok step.
        every_step: Evaluate every grid step; otherwise only those a bisection for `first` needs.
        weights: One per column, for the distance that decides between a line and its copy.
        refined: Refine `first` and evaluate the midpoint; otherwise both are grid steps.
    """
    literal = decoder.follows_paper
    stable, every_step = stable and not literal, every_step or literal
    line = _LineEvaluator(decoder, instances, lines, evaluate, correct)
    every = np.arange(len(lines.instance))
    grid = _whole_grid(line, every, steps) if every_step else _bracket(line, steps, stable)
    begin = _run_start(grid.ok, stable)  # (lines,), -1 where nothing is ok
    first = grid.take(every, np.maximum(begin, 0))
    chosen = _cheaper_copies(line, first, begin >= 0, weights)
    grid, first, begin = grid.take(chosen), first.take(chosen), begin[chosen]
    if refined and not literal:
        rows = np.flatnonzero(begin > 0)
        low, high = (grid.tau[rows, begin[rows] - k] for k in (1, 0))
        _refine(line, chosen, rows, low, high, first, stable)
    middle = None
    if refined:
        middle = _midpoints(line, chosen, grid, first, begin, stable, bracket=not every_step)
    return _assemble(line, chosen, grid, first, middle, begin)


# ------------------------------------------------------------------------------------------------
# The grid


def _whole_grid(line: _LineEvaluator, lines: Ints, steps: int) -> Steps:
    """Every step of some lines, in one call of `evaluate`."""
    inner = np.tile(np.linspace(0.0, 1.0, steps + 1)[1:-1], len(lines))  # (lines * (steps - 1),)
    found = line.evaluate_at(np.repeat(lines, steps - 1), inner)
    start, end = (side.take(lines[:, None]) for side in (line.lines.start, line.lines.end))
    return Steps.join([start, found.reshape(len(lines), steps - 1), end])


def _bracket(line: _LineEvaluator, steps: int, stable: bool) -> Steps:
    """Only what the picks need: the last step not ok, the next, the last ok one, and both ends.

    Bisects the grid where the endpoint is ok. Where it is not, the whole grid has to be evaluated,
    and the bracket is cut out of it.
    """
    count = len(line.lines.instance)
    start, end = (side.reshape(count, 1) for side in (line.lines.start, line.lines.end))
    bracket = Steps.join([start, end, end])  # (lines, 3)
    low, high = np.zeros(count, dtype=np.int64), np.full(count, steps)
    bisected = np.flatnonzero(line.lines.end.ok)
    while len(open_ := bisected[high[bisected] - low[bisected] > 1]):
        middle = (low[open_] + high[open_]) // 2
        found = line.evaluate_at(open_, middle / steps)
        bracket.write((open_, found.ok.astype(np.int64)), found)  # an ok one is the upper bound
        high[open_] = np.where(found.ok, middle, high[open_])
        low[open_] = np.where(found.ok, low[open_], middle)
    others = np.flatnonzero(~line.lines.end.ok)
    if len(others):
        grid = _whole_grid(line, others, steps)
        begin, rows = _run_start(grid.ok, stable), np.arange(len(others))
        upper = np.where(begin < 0, _best_not_ok(grid), begin)
        last = np.where(begin < 0, upper, steps - grid.ok[:, ::-1].argmax(axis=1))
        for place, step in enumerate((np.maximum(upper - 1, 0), upper, last)):
            bracket.write((others, place), grid.take(rows, step))
    return Steps.join([start, bracket, end])


def _run_start(ok: Bools, stable: bool) -> Ints:
    """Where the last unbroken run of ok steps begins (or the first ok step); -1 for none."""
    if not stable:
        return np.where(ok.any(axis=1), ok.argmax(axis=1), -1)
    count = ok.shape[1]
    last = count - 1 - ok[:, ::-1].argmax(axis=1)  # the last ok one
    position = np.arange(count)
    gaps = np.where(~ok & (position < last[:, None]), position, -1)
    return np.where(ok.any(axis=1), gaps.max(axis=1) + 1, -1)


# ------------------------------------------------------------------------------------------------
# The picks


def _refine(
    line: _LineEvaluator,
    chosen: Ints,
    lines: Ints,
    low: Floats,
    high: Floats,
    first: Steps,
    stable: bool,
) -> None:
    """Moves `first` of some lines back towards a step that is not ok.

    Args:
        line: Evaluates rows.
        chosen: The lines of all paths.
        lines: The paths to be refined, as positions among them.
        low: Where their row is not ok.
        high: Where it is, further on.
        first: Written to; every row written was evaluated.
        stable: Go by the last run of ok steps rather than by the first ok step.
    """
    if not len(lines):
        return
    parts, rows = SECTIONS - 1, np.arange(len(lines))
    for _ in range(ROUNDS):
        tau = low[:, None] + np.arange(1, SECTIONS) / SECTIONS * (high - low)[:, None]
        found = line.evaluate_at(np.repeat(chosen[lines], parts), tau.ravel())
        found = found.reshape(len(lines), parts)
        start = _run_start(np.c_[found.ok, np.ones(len(lines), dtype=bool)], stable)
        gap = start - 1  # the step before `first`, which is not ok
        better = np.flatnonzero(gap < parts - 1)
        first.write(lines[better], found.take(better, gap[better] + 1))
        edges = np.concatenate([low[:, None], tau, high[:, None]], axis=1)
        low, high = edges[rows, gap + 1], edges[rows, gap + 2]


def _midpoints(
    line: _LineEvaluator,
    chosen: Ints,
    grid: Steps,
    first: Steps,
    begin: Ints,
    stable: bool,
    *,
    bracket: bool,
) -> Steps:
    """The row half-way from `first` to the endpoint on each path; `first` may move with it.

    Every step evaluated between `first` and `last` is ok: where a midpoint on the way is not,
    `first` begins behind it, and there is another midpoint. One beyond the step after `last`, which
    is not ok, is not evaluated.
    """
    count, size = grid.tau.shape
    rows = np.arange(count)
    # Where first is the endpoint, so is the midpoint; where there is no first, it is not used.
    middle = grid.take(rows, np.full(count, size - 1))  # a copy, to be written over
    last = size - 1 - grid.ok[:, ::-1].argmax(axis=1)
    end = np.where(last < size - 1, grid.tau[rows, np.minimum(last + 1, size - 1)], 1.0)
    literal = line.decoder.follows_paper
    open_ = np.flatnonzero(begin >= 0)
    while len(open_):
        tau = (first.tau[open_] + 1.0) / 2
        inside = (tau < 1.0) if literal else (tau < end[open_])
        open_, tau = open_[inside], tau[inside]
        if not len(open_):
            break
        middle.write(open_, line.evaluate_at(chosen[open_], tau))
        broken = ~middle.ok[open_] & (tau < grid.tau[open_, last[open_]])
        open_ = open_[broken & stable & (not literal)]
        low = middle.tau[open_]
        after = (grid.tau[open_] > low[:, None]).argmax(axis=1)  # the next grid step, which is ok
        if bracket:  # so that the step before first is one that is not ok
            grid.write((open_, after - 1), middle.take(open_))
        first.write(open_, grid.take(open_, after))
        _refine(line, chosen, open_, low, grid.tau[open_, after], first, stable)
    return middle


def _cheaper_copies(
    line: _LineEvaluator, first: Steps, found: Bools, weights: Floats | None
) -> Ints:
    """Of the lines between the same instance and endpoint, the one whose `first` is cheapest."""
    instance, endpoint = line.lines.instance, line.lines.endpoint
    gaps = line.instances.schema.gaps(line.instances.cells[instance], first.cells)  # (lines, d)
    cost = gaps.sum(axis=1) if weights is None else gaps @ weights
    cost = np.where(found, cost, np.inf)
    pair = instance * (endpoint.max(initial=0) + 1) + endpoint
    return first_of_each(pair, cost, line.lines.frozen)


def _assemble(
    line: _LineEvaluator,
    chosen: Ints,
    grid: Steps,
    first: Steps,
    middle: Steps | None,
    begin: Ints,
) -> TracedPaths:
    """Grid, first and midpoint side by side, and the picks as positions among them."""
    count, size = grid.tau.shape
    if middle is None:
        middle = grid.take(np.arange(count), np.full(count, size - 1))
    steps = Steps.join([grid, first.reshape(count, 1), middle.reshape(count, 1)])
    picks = _picks(grid, steps, begin, literal=line.decoder.follows_paper)
    left = (grid.valid[:, :-1] == 1) & (grid.valid[:, 1:] == 0)
    labels = np.repeat(line.lines.label[chosen], size + 2)
    rows = steps.cells.reshape(-1, steps.cells.shape[2])
    density = line.decoder.density(line.instances.schema, rows, labels).reshape(count, size + 2)
    return TracedPaths(chosen, steps, density, *picks, left.sum(axis=1))


def _picks(grid: Steps, steps: Steps, begin: Ints, *, literal: bool) -> tuple[Ints, Ints, Ints]:
    """First, middle and last as positions among the steps."""
    size = grid.tau.shape[1]
    found, ok = begin >= 0, grid.ok
    none, best = np.flatnonzero(~found), np.zeros(len(begin), dtype=np.int64)
    best[none] = _best_not_ok(grid.take(none))
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


def _best_not_ok(grid: Steps) -> Ints:
    """The best step of a path without an ok one: feasible, then most probable, then largest tau.

    A step that still equals the instance comes last: the input is no counterfactual.
    """
    score = np.where(grid.feasible, 2.0, 0.0) + np.nan_to_num(grid.probability) + 1e-6 * grid.tau
    score -= np.where(rows_differ(grid.cells, grid.cells[:, :1]), 0.0, 4.0)
    best: Ints = np.where(grid.tau > 0, score, -np.inf).argmax(axis=1)
    return best
