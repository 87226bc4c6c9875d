"""Latent lines evaluated step by step, and the steps `first`, `middle` and `last` found on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lapace.arrays import Bools, Floats, Ints, first_of_each
from lapace.paths.decoder import Decoder, EncodedInstances
from lapace.paths.steps import Steps, rows_differ

__all__ = ["Correct", "Evaluate", "Lines", "TracedPaths", "pairs_of", "trace"]

SECTIONS = 8  # `first` is refined to an eighth of a grid step

Evaluate: TypeAlias = Callable[[Floats, Floats, Ints], Steps]  # tau, cells, lines → steps
# tau, z, cells, lines → cells decoded from corrected latent points near z
Correct: TypeAlias = Callable[[Floats, Tensor, Floats, Ints], Floats]


class Lines(NamedTuple):
    """Latent lines, one per instance and endpoint, some with a frozen-category copy.

    Attributes:
        instance: The instance each line starts from, as a row of the `EncodedInstances`.
        endpoint: The endpoint it leads to, as a row of `z`.
        frozen: Whether it keeps the instance's categories (a frozen-category line).
        z: Latent points of the endpoints.
        label: The label of each line's endpoint.
        curve: Latent points of each line at equal shares of its length, (lines, points, h); None
            where all lines are straight.
    """

    instance: Ints
    endpoint: Ints
    frozen: Bools
    z: Tensor
    label: Ints
    curve: Tensor | None = None


class TracedPaths(NamedTuple):
    """One path per instance and endpoint.

    Attributes:
        lines: The line each path was taken from.
        steps: Its rows: the grid, the refined `first`, the midpoint.
        begin: The grid step at which the run of ok steps begins; -1 where no step is ok.
        first: The step picked as `first`; likewise `middle` and `last`.
        crossings: How often the label leaves the target again along the grid.
    """

    lines: Ints
    steps: Steps
    begin: Ints
    first: Ints
    middle: Ints
    last: Ints
    crossings: Ints


def trace(
    decoder: Decoder,
    instances: EncodedInstances,
    lines: Lines,
    start: Steps,
    end: Steps,
    evaluate: Evaluate,
    *,
    correct: Correct | None = None,
    steps: int = 20,
    stable: bool = True,
    refined: bool = True,
    weights: Floats | None = None,
) -> TracedPaths:
    """Algorithm 1: evaluates every grid step of every line; finds `first`, `middle` and `last`.

    The cheaper `first` decides between a line and its frozen-category copy. A decoder that follows
    the paper gets the paper's picks: the first ok grid point, the plain midpoint, tau=1.

    Args:
        decoder: Turns latent points into rows.
        instances: Where the lines start.
        lines: The lines.
        start: Step 0 of each line, evaluated.
        end: Step 1 of each line, evaluated.
        evaluate: Projects rows, checks them and queries the classifier, given their lines.
        correct: Moves the latent points of infeasible rows, and decodes them again.
        steps: Grid steps from instance to endpoint.
        stable: Take the start of the last unbroken run of ok steps rather than the first ok step.
        refined: Refine `first` and evaluate the midpoint; otherwise both are grid steps.
        weights: One per column, for the distance that decides between a line and its copy.
    """
    literal = decoder.follows_paper
    stable = stable and not literal
    line = _LineEvaluator(decoder, instances, lines, evaluate, correct)
    every = np.arange(len(lines.instance))
    inner = np.tile(np.linspace(0.0, 1.0, steps + 1)[1:-1], len(every))  # (lines * (steps - 1),)
    between = line.at(np.repeat(every, steps - 1), inner).reshape(len(every), steps - 1)
    grid = Steps.join([start.take(every[:, None]), between, end.take(every[:, None])])
    begin = _run_start(grid.ok, stable)  # (lines,)
    first = grid.take(every, np.maximum(begin, 0))
    cost = np.where(begin >= 0, line.cost(every, first.cells, weights), np.inf)
    chosen = first_of_each(pairs_of(lines), cost, lines.frozen)
    grid, first, begin = grid.take(chosen), first.take(chosen), begin[chosen]
    middle = grid.take(np.arange(len(chosen)), np.full(len(chosen), steps))  # the endpoint
    if refined:
        if not literal:
            rows = np.flatnonzero(begin > 0)
            before = grid.take(rows, begin[rows] - 1)
            first.write(rows, _bisected(line, chosen[rows], before, first.take(rows), SECTIONS))
        _find_midpoints(line, chosen, grid, first, middle, begin, stable)
    all_steps = Steps.join([grid, first.reshape(len(chosen), 1), middle.reshape(len(chosen), 1)])
    left = (grid.valid[:, :-1] == 1) & (grid.valid[:, 1:] == 0)
    picks = _picks(grid, all_steps, begin, literal=literal)
    return TracedPaths(chosen, all_steps, begin, *picks, left.sum(axis=1))


def pairs_of(lines: Lines) -> Ints:
    """One number for each pair of instance and endpoint, by line."""
    pairs: Ints = lines.instance * (lines.endpoint.max(initial=0) + 1) + lines.endpoint
    return pairs


class _LineEvaluator(NamedTuple):
    """Decodes, corrects and evaluates rows anywhere on any line."""

    decoder: Decoder
    instances: EncodedInstances
    lines: Lines
    evaluate: Evaluate
    correct: Correct | None

    def latent(self, lines: Ints, tau: Floats) -> Tensor:
        """Latent points at tau on lines: (m, h)."""
        if self.lines.curve is not None:
            return _on_curve(self.lines.curve, lines, tau)
        device = self.lines.z.device
        share = torch.as_tensor(tau, dtype=torch.float32, device=device)[:, None]
        begin = self.instances.z[torch.as_tensor(self.lines.instance[lines], device=device)]
        end = self.lines.z[torch.as_tensor(self.lines.endpoint[lines], device=device)]
        return (1 - share) * begin + share * end

    def at(self, lines: Ints, tau: Floats) -> Steps:
        """Evaluated rows at tau on lines, for 0 < tau < 1."""
        z = self.latent(lines, tau)
        instance, label = self.lines.instance[lines], self.lines.label[lines]
        cells = self.decoder.path_rows(
            self.instances, instance, tau, z, label, self.lines.frozen[lines]
        )
        if self.correct is not None:
            cells = self.correct(tau, z, cells, lines)
        return self.evaluate(tau, cells, lines)

    def cost(self, lines: Ints, cells: Floats, weights: Floats | None) -> Floats:
        """Distance of rows of lines from their instances."""
        originals = self.instances.cells[self.lines.instance[lines]]
        gaps = self.instances.schema.gaps(originals, cells)  # (lines, d)
        return gaps.sum(axis=1) if weights is None else gaps @ weights


def _on_curve(curve: Tensor, lines: Ints, tau: Floats) -> Tensor:
    """Points of curves at shares of their length: (m, h)."""
    pieces = curve.shape[1] - 1
    below = np.minimum((tau * pieces).astype(np.int64), pieces - 1)
    share = torch.as_tensor(tau * pieces - below, dtype=curve.dtype, device=curve.device)
    which, piece = (torch.as_tensor(part, device=curve.device) for part in (lines, below))
    return torch.lerp(curve[which, piece], curve[which, piece + 1], share[:, None])


def _run_start(ok: Bools, stable: bool) -> Ints:
    """Where the last unbroken run of ok steps begins (or the first ok step); -1 for none."""
    if not stable:
        return np.where(ok.any(axis=1), ok.argmax(axis=1), -1)
    count = ok.shape[1]
    last = count - 1 - ok[:, ::-1].argmax(axis=1)  # the last ok one
    position = np.arange(count)
    gaps = np.where(~ok & (position < last[:, None]), position, -1)
    return np.where(ok.any(axis=1), gaps.max(axis=1) + 1, -1)


def _bisected(
    line: _LineEvaluator, lines: Ints, below: Steps, above: Steps, sections: int | Ints
) -> Steps:
    """The first of `sections` equal places between two steps from which a line is ok.

    Args:
        line: Evaluates rows.
        lines: The lines.
        below: A row of each that is not ok.
        above: A row further on that is; written over.
        sections: Into how many parts what lies between is cut.
    """
    base, width = below.tau, above.tau - below.tau
    low, high = np.zeros(len(lines), dtype=np.int64), np.broadcast_to(sections, len(lines)).copy()
    count = high.copy()
    while len(rows := np.flatnonzero(high - low > 1)):
        middle = (low[rows] + high[rows]) // 2
        tried = line.at(lines[rows], base[rows] + middle / count[rows] * width[rows])
        ok = tried.ok
        above.write(rows[ok], tried.take(ok))
        high[rows[ok]], low[rows[~ok]] = middle[ok], middle[~ok]
    return above


def _find_midpoints(
    line: _LineEvaluator,
    chosen: Ints,
    grid: Steps,
    first: Steps,
    middle: Steps,
    begin: Ints,
    stable: bool,
) -> None:
    """Writes the row half-way from `first` to the endpoint of each path into `middle`.

    Every step evaluated between `first` and `last` is ok: where a midpoint on the way is not,
    `first` moves behind it, and there is another midpoint. A midpoint beyond the step after `last`,
    which is not ok, is not evaluated. Where `first` is the endpoint, so is the midpoint.
    """
    size = grid.tau.shape[1]
    last = size - 1 - grid.ok[:, ::-1].argmax(axis=1)
    literal, step = line.decoder.follows_paper, 1.0 / (size - 1)
    after_last = np.minimum(last + 1, size - 1)
    end = np.where(last < size - 1, grid.tau[np.arange(len(last)), after_last] - 1e-12, 1.0)
    rows = np.flatnonzero(begin >= 0)
    while len(rows):
        tau = (first.tau[rows] + 1.0) / 2
        inside = (tau < 1.0) if literal else (tau < end[rows])
        rows, tau = rows[inside], tau[inside]
        if not len(rows):
            return
        middle.write(rows, line.at(chosen[rows], tau))
        broken = ~middle.ok[rows] & (tau < grid.tau[rows, last[rows]])
        rows = rows[broken & stable & (not literal)]
        below = middle.take(rows)
        after = (grid.tau[rows] > below.tau[:, None]).argmax(axis=1)  # the next one, which is ok
        above = grid.take(rows, after)
        sections = SECTIONS * np.maximum(np.ceil((above.tau - below.tau) / step - 1e-9), 1)
        first.write(rows, _bisected(line, chosen[rows], below, above, sections.astype(np.int64)))


def _picks(grid: Steps, steps: Steps, begin: Ints, *, literal: bool) -> tuple[Ints, Ints, Ints]:
    """First, middle and last as positions among the steps."""
    size = grid.tau.shape[1]
    found, ok = begin >= 0, grid.ok
    best = best_step(grid)
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


def best_step(steps: Steps) -> Ints:
    """The best step of each path without an ok one: feasible, most probable, of largest tau.

    A step that still equals the instance comes last: the input is no counterfactual.
    """
    score = np.where(steps.feasible, 2.0, 0.0) + np.nan_to_num(steps.probability) + 1e-6 * steps.tau
    score -= np.where(rows_differ(steps.cells, steps.cells[:, :1]), 0.0, 4.0)
    best: Ints = np.where(steps.tau > 0, score, -np.inf).argmax(axis=1)
    return best
