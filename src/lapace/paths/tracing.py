"""Algorithm 1: latent lines evaluated step by step, and `first`, `middle` and `last` on them."""

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

SECTIONS = 8  # a power of two: `first` is refined to an eighth of a grid step

Evaluate: TypeAlias = Callable[[Floats, Floats, Ints], Steps]  # tau, cells, lines → steps
# tau, z, cells, lines → cells decoded from corrected latent points near z
Correct: TypeAlias = Callable[[Floats, Tensor, Floats, Ints], Floats]
_RowsAt: TypeAlias = Callable[[Ints, Floats], Steps]  # lines, tau → steps


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
    weights: Floats,
    correct: Correct | None = None,
    steps: int = 20,
    stable: bool = True,
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
        weights: The cost of each column, in the distance that decides between a line and its copy.
        correct: Moves the latent points of infeasible rows, and decodes them again.
        steps: Grid steps from instance to endpoint.
        stable: Take the start of the last unbroken run of ok steps rather than the first ok step.
    """
    paper = decoder.follows_paper
    stable = stable and not paper

    def rows_at(line: Ints, tau: Floats) -> Steps:
        """Decodes z_tau = (1 - tau) z_x + tau mu_c, 0 < tau < 1, and evaluates the rows."""
        instance, label = lines.instance[line], lines.label[line]
        if lines.curve is None:
            z_x, mu_c = _rows(instances.z, instance), _rows(lines.z, lines.endpoint[line])
            share = torch.as_tensor(tau, dtype=torch.float32, device=z_x.device)[:, None]
            z_tau = (1 - share) * z_x + share * mu_c
        else:
            z_tau = _on_curve(lines.curve, line, tau)
        cells = decoder.path_rows(instances, instance, tau, z_tau, label, lines.frozen[line])
        if correct is not None:
            cells = correct(tau, z_tau, cells, line)
        return evaluate(tau, cells, line)

    # All steps of all lines, in one call of `evaluate`.
    every = np.arange(len(lines.instance))
    inner = np.tile(np.linspace(0.0, 1.0, steps + 1)[1:-1], len(every))  # (lines * (steps - 1),)
    between = rows_at(np.repeat(every, steps - 1), inner).reshape(len(every), steps - 1)
    grid = Steps.join([start.take(every[:, None]), between, end.take(every[:, None])])
    # Where each line's ok steps begin; the better of a line and its copy.
    begin = _run_start(grid.ok, stable)  # (lines,)
    first = grid.take(every, np.maximum(begin, 0))
    gaps = instances.schema.gaps(instances.cells[lines.instance], first.cells)  # (lines, d)
    cost = np.where(begin >= 0, gaps @ weights, np.inf)
    chosen = first_of_each(pairs_of(lines), cost, lines.frozen)
    grid, first, begin = grid.take(chosen), first.take(chosen), begin[chosen]
    # The picks: `first` refined by bisection, the midpoint, the last ok step.
    if not paper:
        rows = np.flatnonzero(begin > 0)
        before = grid.take(rows, begin[rows] - 1)
        first.write(rows, _bisected(rows_at, chosen[rows], before, first.take(rows)))
    first, middle = _midpoints(rows_at, chosen, grid, first, begin, stable=stable, paper=paper)
    all_steps = Steps.join([grid, first.reshape(len(chosen), 1), middle.reshape(len(chosen), 1)])
    lost = (grid.valid[:, :-1] == 1) & (grid.valid[:, 1:] == 0)
    picks = _picks(grid, all_steps, begin, paper=paper)
    return TracedPaths(chosen, all_steps, begin, *picks, lost.sum(axis=1))


def pairs_of(lines: Lines) -> Ints:
    """Returns one number per line, the same for lines of one instance and one endpoint."""
    pairs: Ints = lines.instance * (lines.endpoint.max(initial=0) + 1) + lines.endpoint
    return pairs


def _rows(points: Tensor, rows: Ints) -> Tensor:
    return points[torch.as_tensor(rows, device=points.device)]


def _on_curve(curve: Tensor, lines: Ints, tau: Floats) -> Tensor:
    """Returns points of curves at shares of their length: (m, h)."""
    pieces = curve.shape[1] - 1
    below = np.minimum((tau * pieces).astype(np.int64), pieces - 1)
    share = torch.as_tensor(tau * pieces - below, dtype=curve.dtype, device=curve.device)
    which, piece = (torch.as_tensor(part, device=curve.device) for part in (lines, below))
    return torch.lerp(curve[which, piece], curve[which, piece + 1], share[:, None])


def _last_ok(ok: Bools) -> Ints:
    """Returns the last ok step of each path; the last step where none is."""
    last: Ints = ok.shape[1] - 1 - ok[:, ::-1].argmax(axis=1)
    return last


def _run_start(ok: Bools, stable: bool) -> Ints:
    """Returns where the last unbroken run of ok steps begins, or the first ok step; -1 for none."""
    if not stable:
        return np.where(ok.any(axis=1), ok.argmax(axis=1), -1)
    position = np.arange(ok.shape[1])
    gaps = np.where(~ok & (position < _last_ok(ok)[:, None]), position, -1)
    return np.where(ok.any(axis=1), gaps.max(axis=1) + 1, -1)


def _bisected(rows_at: _RowsAt, lines: Ints, below: Steps, above: Steps) -> Steps:
    """Returns the first of `SECTIONS` equal places between two steps from which a line is ok.

    Args:
        rows_at: Evaluates rows.
        lines: The lines.
        below: A row of each line that is not ok.
        above: A row of each line, further on, that is ok.
    """
    first_ok, width = above.take(np.arange(len(lines))), above.tau - below.tau
    low, high = np.zeros(len(lines), dtype=np.int64), np.full(len(lines), SECTIONS)
    while len(lines) and high[0] - low[0] > 1:  # all lines are halved together
        middle = (low + high) // 2
        tried = rows_at(lines, below.tau + middle / SECTIONS * width)
        first_ok.write(tried.ok, tried.take(tried.ok))
        low, high = np.where(tried.ok, low, middle), np.where(tried.ok, middle, high)
    return first_ok


def _midpoints(
    rows_at: _RowsAt,
    lines: Ints,
    grid: Steps,
    first: Steps,
    begin: Ints,
    *,
    stable: bool,
    paper: bool,
) -> tuple[Steps, Steps]:
    """Returns `first` and the row half-way from it to the endpoint of each path.

    Every step evaluated between `first` and `last` is ok: where a midpoint on the way is not,
    `first` moves behind it, and there is another midpoint. A midpoint beyond the step after `last`,
    which is not ok, is not evaluated. Where `first` is the endpoint, so is the midpoint.
    """
    every, size = np.arange(len(lines)), grid.tau.shape[1]
    first, middle = first.take(every), grid.take(every, np.full(len(lines), size - 1))
    last = _last_ok(grid.ok)
    after_last = np.minimum(last + 1, size - 1)
    end = np.where(last < size - 1, grid.tau[every, after_last] - 1e-12, 1.0)
    rows = np.flatnonzero(begin >= 0)
    while len(rows):
        tau = (first.tau[rows] + 1.0) / 2
        inside = (tau < 1.0) if paper else (tau < end[rows])
        rows, tau = rows[inside], tau[inside]
        if not len(rows):
            break
        middle.write(rows, rows_at(lines[rows], tau))
        broken = ~middle.ok[rows] & (tau < grid.tau[rows, last[rows]])
        rows = rows[broken & stable]
        below = middle.take(rows)
        after = (grid.tau[rows] > below.tau[:, None]).argmax(axis=1)  # the next one, which is ok
        first.write(rows, _bisected(rows_at, lines[rows], below, grid.take(rows, after)))
    return first, middle


def _picks(grid: Steps, steps: Steps, begin: Ints, *, paper: bool) -> tuple[Ints, Ints, Ints]:
    """Returns first, middle and last as positions among the steps."""
    size = grid.tau.shape[1]
    answered, ok = begin >= 0, grid.ok
    best = _best_step(grid)
    first = np.where(answered, size, best)
    if paper:
        return first, np.where(answered, size + 1, best), np.full(len(ok), size - 1)
    last = _last_ok(ok)
    later = ok & (grid.tau > steps.tau[:, -1:])
    after = np.where(later.any(axis=1), later.argmax(axis=1), last)
    middle = np.where(steps.ok[:, -1], size + 1, after)
    beyond = steps.ok[:, -1] & (steps.tau[:, -1] > grid.tau[np.arange(len(ok)), last])
    last = np.where(beyond, size + 1, last)
    return first, np.where(answered, middle, best), np.where(answered, last, best)


def _best_step(steps: Steps) -> Ints:
    """Returns the best step of a path without an ok one: feasible, most probable, of largest tau.

    A step that still equals the instance comes last: the input is no counterfactual.
    """
    score = np.where(steps.feasible, 2.0, 0.0) + np.nan_to_num(steps.probability) + 1e-6 * steps.tau
    score -= np.where(rows_differ(steps.cells, steps.cells[:, :1]), 0.0, 4.0)
    best: Ints = np.where(steps.tau > 0, score, -np.inf).argmax(axis=1)
    return best
