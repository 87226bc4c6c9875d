"""Latent lines evaluated step by step, and the steps `first`, `middle` and `last` found on them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from lapace.arrays import Bools, Floats, Ints, distinct, first_of_each
from lapace.paths.decoder import Decoder, EncodedInstances
from lapace.paths.steps import Steps, rows_differ

__all__ = [
    "Correct",
    "Evaluate",
    "Lines",
    "TracedPaths",
    "pairs_of",
    "trace",
]

SECTIONS = 8  # `first` is refined to an eighth of a grid step
COARSE = 4  # grid steps apart at first asked of a line whose endpoint is not ok
EXTRA = 1  # calls a search guided by probabilities may take beyond those of plain bisection
MOVED = -1.0  # in `density_before`: constraints moved the row, its density is computed if returned


Evaluate: TypeAlias = Callable[[Floats, Floats, Ints], Steps]  # tau, cells, lines → steps
# tau, z, cells, lines → cells decoded from corrected latent points near z
Correct: TypeAlias = Callable[[Floats, Tensor, Floats, Ints], Floats]
Found = TypeVar("Found")
# A search asks about lines at tau, is sent their steps, and returns what it found.
Asking: TypeAlias = Generator[tuple[Ints, Floats], Steps, Found]


class Lines(NamedTuple):
    """Latent lines, one per instance and endpoint, some with a frozen-category copy.

    Attributes:
        instance: The instance each line starts from, as a row of the `EncodedInstances`.
        endpoint: The endpoint it leads to, as a row of `z`.
        frozen: Whether it keeps the instance's categories (a frozen-category line).
        z: Latent points of the endpoints.
        label: The label of each line's endpoint.
        start: Step 0 of each line, evaluated.
        end: Step 1 of each line, evaluated.
        curve: Latent points of each line at equal shares of its length, (lines, points, h); None
            where all lines are straight.
    """

    instance: Ints
    endpoint: Ints
    frozen: Bools
    z: Tensor
    label: Ints
    start: Steps
    end: Steps
    curve: Tensor | None = None


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
    correct: Correct | None
    lattice: int  # places that a line is cut into, so that the same place is always the same tau

    def latent(self, lines: Ints, tau: Floats) -> Tensor:
        """Latent points at tau on lines: (m, h)."""
        if self.lines.curve is not None:
            return _on_curve(self.lines.curve, lines, tau)
        device = self.lines.z.device
        share = torch.as_tensor(tau, dtype=torch.float32, device=device)[:, None]
        begin = self.instances.z[torch.as_tensor(self.lines.instance[lines], device=device)]
        end = self.lines.z[torch.as_tensor(self.lines.endpoint[lines], device=device)]
        return (1 - share) * begin + share * end

    def decode_at(self, lines: Ints, tau: Floats, z: Tensor | None = None) -> Floats:
        """Rows at tau on lines as decoded, before constraints: (m, d)."""
        instance, label = self.lines.instance[lines], self.lines.label[lines]
        z = self.latent(lines, tau) if z is None else z
        return self.decoder.path_rows(
            self.instances, instance, tau, z, label, self.lines.frozen[lines]
        )

    def evaluate_at(self, lines: Ints, tau: Floats) -> Steps:
        """Evaluated rows at tau on lines, for 0 < tau < 1."""
        place = np.rint(tau * self.lattice) / self.lattice
        tau = np.where(np.abs(tau - place) < 1e-9, place, tau)
        z = self.latent(lines, tau)
        decoded = self.decode_at(lines, tau, z)
        corrected = decoded if self.correct is None else self.correct(tau, z, decoded, lines)
        found = self.evaluate(tau, corrected, lines)
        if found.cells is not decoded:
            found.density_before[rows_differ(decoded, found.cells)] = MOVED
        return found

    def answer(self, *searches: Asking[Found]) -> list[Found]:
        """What searches find that go on side by side: what they ask in a round is one call."""
        found: dict[int, Found] = {}
        asked: dict[int, tuple[Ints, Floats]] = {}
        steps: dict[int, Steps | None] = dict.fromkeys(range(len(searches)))
        while steps:
            asked.clear()
            for k, answer in steps.items():
                try:
                    asked[k] = searches[k].send(answer)  # type: ignore[arg-type]  # None begins
                except StopIteration as end:
                    found[k] = end.value
            if not asked:
                break
            lines, tau = zip(*asked.values(), strict=True)
            every = self.evaluate_at(np.concatenate(lines), np.concatenate(tau))
            stops = np.cumsum([len(part) for part in lines])
            rows = np.split(np.arange(stops[-1]), stops[:-1])
            steps = {k: every.take(part) for k, part in zip(asked, rows, strict=True)}
        return [found[k] for k in range(len(searches))]

    def cost(self, lines: Ints, cells: Floats, weights: Floats | None) -> Floats:
        """Distance of rows of lines from their instances."""
        originals = self.instances.cells[self.lines.instance[lines]]
        gaps = self.instances.schema.gaps(originals, cells)  # (lines, d)
        return gaps.sum(axis=1) if weights is None else gaps @ weights


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
    level: Floats | float = 0.5,
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
        every_step: Evaluate every grid step; otherwise only those a search for `first` needs.
        weights: One per column, for the distance that decides between a line and its copy.
        refined: Refine `first` and evaluate the midpoint; otherwise both are grid steps.
        level: The probability of the target where rows are expected to become valid, of each line;
            it only guides where to look.
    """
    literal = decoder.follows_paper
    stable, every_step = stable and not literal, every_step or literal
    line = _LineEvaluator(decoder, instances, lines, evaluate, correct, steps * SECTIONS)
    every = np.arange(len(lines.instance))
    level = np.broadcast_to(np.asarray(level, dtype=np.float64), every.shape)
    if every_step:
        grid, searched = _whole_grid(line, every, steps), np.ones(len(every), dtype=bool)
    else:
        grid, searched = _brackets(line, steps, stable, weights, level, refined)
    begin = np.where(searched, _run_start(grid.ok, stable), -1)  # (lines,), -1 where nothing is ok
    first = grid.take(every, np.maximum(begin, 0))
    cost = np.where(begin >= 0, line.cost(every, first.cells, weights), np.inf)
    chosen = first_of_each(pairs_of(lines), ~searched, cost, lines.frozen)
    grid, first, begin, level = grid.take(chosen), first.take(chosen), begin[chosen], level[chosen]
    # What is asked of a whole path, and within a grid step, does not depend on probabilities.
    halved = np.full(len(chosen), np.nan)
    if refined and not literal:
        rows = np.flatnonzero(begin > 0)
        below, above = grid.take(rows, begin[rows] - 1), first.take(rows)
        sections = np.full(len(rows), SECTIONS)
        narrowed = _narrowed(chosen[rows], below, above, sections, halved[rows])
        first.write(rows, line.answer(narrowed)[0][1])
    middle = None
    if refined:
        level = halved if every_step else level
        middle = _midpoints(line, chosen, grid, first, begin, steps, stable, level)
    return _assemble(line, chosen, grid, first, middle, begin, every_step)


def _on_curve(curve: Tensor, lines: Ints, tau: Floats) -> Tensor:
    """Points of curves at shares of their length: (m, h)."""
    pieces = curve.shape[1] - 1
    below = np.minimum((tau * pieces).astype(np.int64), pieces - 1)
    share = torch.as_tensor(tau * pieces - below, dtype=curve.dtype, device=curve.device)
    which, at = (torch.as_tensor(part, device=curve.device) for part in (lines, below))
    return torch.lerp(curve[which, at], curve[which, at + 1], share[:, None])


def pairs_of(lines: Lines) -> Ints:
    """One number for each pair of instance and endpoint, by line."""
    pairs: Ints = lines.instance * (lines.endpoint.max(initial=0) + 1) + lines.endpoint
    return pairs


# ------------------------------------------------------------------------------------------------
# The grid


def _whole_grid(line: _LineEvaluator, lines: Ints, steps: int) -> Steps:
    """Every step of some lines, in one call of `evaluate`."""
    inner = np.tile(np.linspace(0.0, 1.0, steps + 1)[1:-1], len(lines))  # (lines * (steps - 1),)
    found = line.evaluate_at(np.repeat(lines, steps - 1), inner)
    start, end = (side.take(lines[:, None]) for side in (line.lines.start, line.lines.end))
    return Steps.join([start, found.reshape(len(lines), steps - 1), end])


def _brackets(
    line: _LineEvaluator,
    steps: int,
    stable: bool,
    weights: Floats | None,
    level: Floats,
    refined: bool,
) -> tuple[Steps, Bools]:
    """Only what the picks need, (lines, 5), and which lines were searched.

    Of each line the start, the last grid step that is not ok, the next, the last ok one, the
    endpoint. Of a line and its frozen-category copy the copy is searched first. The other is
    dropped where it cannot have the cheaper `first`: where both have the same rows, or where it is
    not ok at the step at which it costs as much as the first of the copy.
    """
    count = len(line.lines.instance)
    start, end = (side.reshape(count, 1) for side in (line.lines.start, line.lines.end))
    grid = Steps.join([start, end, end, end, end])  # (lines, 5)
    if not refined and stable and line.lines.end.ok.all():
        return grid, np.ones(count, dtype=bool)  # `last` alone
    pairs = pairs_of(line.lines)
    leads = first_of_each(pairs, ~line.lines.frozen)
    searched = np.zeros(count, dtype=bool)
    searched[leads] = True
    ok_end = line.lines.end.ok
    search = _GridSearch(line, grid, steps, stable, level)
    unchecked, _ = line.answer(
        search.narrow(leads[ok_end[leads]]), search.cut_out(leads[~ok_end[leads]])
    )
    others = np.flatnonzero(~searched)
    lead = leads[np.searchsorted(pairs[leads], pairs[others])]  # of each of the others
    same, top = _rivals(line, grid, others, lead, steps, weights)
    grid.write(others[same], grid.take(lead[same]))
    searched[others[same]] = True
    full, asked = others[top == steps], others[(top > 0) & (top < steps)]
    checked = unchecked if stable else leads[:0]
    failed, reached = search.ask(checked, asked, top[(top > 0) & (top < steps)] / steps)
    searched[full] = searched[reached] = True
    whole = np.concatenate([full, reached])
    line.answer(
        search.narrow(np.concatenate([failed, whole[ok_end[whole]]])),
        search.cut_out(whole[~ok_end[whole]]),
    )
    answered = line.lines.instance[grid.ok.any(axis=1)]
    left = searched & ~np.isin(line.lines.instance, answered)
    left &= ~np.isnan(line.lines.end.probability)  # all of the others was asked
    line.answer(search.cut_out(np.flatnonzero(left), whole=True))
    return grid, searched


class _GridSearch(NamedTuple):
    """Brackets of lines, narrowed to one grid step; `grid` is written to."""

    line: _LineEvaluator
    grid: Steps
    steps: int
    stable: bool
    level: Floats

    def narrow(self, lines: Ints) -> Asking[Ints]:
        """Narrows what lies between the second and the third step of some brackets.

        Their endpoint is ok.

        Returns:
            The lines of which it is not known whether the next grid step is ok.
        """
        if not len(lines):
            return lines
        below, above = self.grid.take(lines, 1), self.grid.take(lines, 2)
        below.write(
            whole := np.flatnonzero(below.tau >= above.tau), self.grid.take(lines[whole], 0)
        )
        sections = np.rint((above.tau - below.tau) * self.steps).astype(np.int64)
        level = self.level[lines]
        below, above, known = yield from _narrowed(lines, below, above, sections, level)
        self.grid.write((lines, 1), below)
        self.grid.write((lines, 2), above)
        return lines[~known]

    def cut_out(self, lines: Ints, *, whole: bool = False) -> Asking[Ints]:
        """Writes the brackets of lines whose endpoint is not ok, cut out of their grid.

        Asked at first are few steps, then those that `_next_steps` names. Without probabilities to
        go by, or for the `whole` grid, every step is.
        """
        if not len(lines):
            return lines
        sides = self.line.lines.start, self.line.lines.end
        start, end = (side.take(lines[:, None]) for side in sides)
        found = Steps.join([start] * self.steps + [end])  # (lines, steps + 1)
        ask = np.zeros(found.tau.shape, dtype=bool)
        ask[:, COARSE : self.steps : COARSE] = ask[:, self.steps - 1] = True
        ask |= whole | np.isnan(found.probability[:, -1:])
        ask[:, [0, -1]] = False
        asked = np.zeros_like(ask)
        asked[:, [0, -1]] = True
        while ask.any():
            row, step = np.nonzero(ask)
            found.write((row, step), (yield lines[row], step / self.steps))
            asked |= ask
            ask = _next_steps(found, asked, self.stable)
        none, best = ~found.ok.any(axis=1), _best_not_ok(found)
        below, begin, last, _ = _run_ends(found.ok, asked, self.stable)
        for place, step in enumerate((below, begin, last), start=1):
            chosen = found.take(np.arange(len(lines)), np.where(none, best, step))
            self.grid.write((lines, place), chosen)
        return lines

    def ask(self, checked: Ints, others: Ints, tau: Floats) -> tuple[Ints, Ints]:
        """Evaluates the step after the first ok one of some lines, and other lines at tau.

        Returns:
            Lines whose next step is not ok, and other lines that are ok there. Their brackets
            begin, or end, at these steps.
        """
        lines = np.concatenate([checked, others])
        after = self.grid.tau[checked, 2] + 1.0 / self.steps
        if not len(lines):
            return lines, lines
        found = self.line.evaluate_at(lines, np.concatenate([after, tau]))
        next_, theirs = (found.take(part) for part in np.split(np.arange(len(lines)), [len(after)]))
        failed, reached = ~next_.ok, theirs.ok
        self.grid.write((checked[failed], 1), next_.take(failed))
        self.grid.write((checked[failed], 2), self.grid.take(checked[failed], 4))
        self.grid.write((others[reached], 2), theirs.take(reached))
        self.grid.write((others[reached], 1), self.grid.take(others[reached], 0))
        return checked[failed], others[reached]


def _rivals(
    line: _LineEvaluator,
    grid: Steps,
    lines: Ints,
    lead: Ints,
    steps: int,
    weights: Floats | None,
) -> tuple[Ints, Ints]:
    """Lines whose bracket is that of their frozen copy, and where to evaluate the others first.

    Costs decoded rows alone; nothing is queried.

    Returns:
        Positions of lines with the same rows, and for each line the grid step at which it costs
        about as much as its copy's first: 0 to drop it, `steps` to search all of it.
    """
    place = np.full(len(lines), steps)
    first = grid.take(lead, 2)
    inside = np.flatnonzero(first.ok & (first.tau < 1.0))
    if not len(inside):
        return inside, place
    some, own = lines[inside], lead[inside]
    high, low = first.tau[inside], grid.tau[own, 1]
    rows, own_rows = line.decode_at(some, high), line.decode_at(own, high)
    mine, theirs = line.cost(some, rows, weights), line.cost(own, own_rows, weights)
    equal = ~rows_differ(rows, own_rows)
    step = np.rint(high * steps)
    share = np.divide(theirs, mine, out=np.ones(len(mine)), where=mine > theirs)
    guess = np.where(equal, 0, np.floor(share * step)).astype(np.int64)
    low = np.where(equal, low, guess / steps)
    alike = ~rows_differ(line.decode_at(some, low), line.decode_at(own, low))
    place[inside] = np.where(equal | (alike & (guess < step)), 0, guess)
    return inside[equal & alike], place


def _narrowed(
    lines: Ints, below: Steps, above: Steps, sections: Ints, level: Floats
) -> Asking[tuple[Steps, Steps, Bools]]:
    """The last step that is not ok and the next, which is, by root finding on the probability.

    The Illinois variant of regula falsi on the probability of the target less `level`, kept from
    needing more than `EXTRA` calls beyond bisection; plain bisection where there are no
    probabilities, or where they do not change sign.

    Args:
        lines: Lines.
        below: A row of each that is not ok; written over.
        above: A row further on that is; written over.
        sections: Into how many equal parts what lies between is cut.
        level: The probability at which rows are expected to become valid.

    Returns:
        Both steps, and whether the step after them is known to be ok.
    """
    base, width = below.tau.copy(), above.tau - below.tau
    low, high = np.zeros(len(lines), dtype=np.int64), sections.copy()
    minus, plus = below.probability - level, above.probability - level
    beyond = high + (above.tau >= 1.0)  # the next place known to be ok; nothing is behind the end
    side = np.zeros(len(lines), dtype=np.int64)  # the end moved last: 1 the upper, -1 the lower
    left = np.ceil(np.log2(np.maximum(sections, 1))).astype(np.int64)
    left += np.where(np.isnan(level), 0, EXTRA)
    while len(open_ := np.flatnonzero(high - low > 1)):
        size, under, over = (high - low)[open_], minus[open_], plus[open_]
        guided = (under < 0) & (over >= 0)
        share = np.divide(-under, over - under, out=np.full(len(open_), 0.5), where=guided)
        most = np.exp2(left[open_] - 1.0)  # what may be left over
        guess = np.floor(share * size + 0.5)
        guess = np.clip(guess, np.maximum(1, size - most), np.minimum(size - 1, most))
        place = low[open_] + guess.astype(np.int64)
        found = yield lines[open_], base[open_] + place / sections[open_] * width[open_]
        ok, margin = found.ok, found.probability - level[open_]
        yes, no = open_[ok], open_[~ok]
        above.write(yes, found.take(ok))
        below.write(no, found.take(~ok))
        minus[yes] = np.where(side[yes] == 1, minus[yes] / 2, minus[yes])
        plus[no] = np.where(side[no] == -1, plus[no] / 2, plus[no])
        beyond[yes] = high[yes]
        high[yes], plus[yes], side[yes] = place[ok], margin[ok], 1
        low[no], minus[no], side[no] = place[~ok], margin[~ok], -1
        left[open_] -= 1
    return below, above, beyond == high + 1


def _next_steps(found: Steps, asked: Bools, stable: bool) -> Bools:
    """Which steps to ask next of lines whose endpoint is not ok: (lines, steps).

    Half-way to where the last run of ok steps begins and ends. Where none is ok, half-way from the
    best step found to those asked beside it: near it the probability is greatest.
    """
    rows, none = np.arange(len(asked)), ~found.ok.any(axis=1)
    below, begin, last, after = _run_ends(found.ok, asked, stable)
    best = _best_not_ok(found)
    beside = _asked_beside(asked, best, best)
    ask = np.zeros_like(asked)
    for low, high in (
        (np.where(none, beside[0], below), np.where(none, best, begin)),
        (np.where(none, best, last), np.where(none, beside[1], after)),
    ):
        apart = high - low > 1
        ask[rows[apart], (low + high)[apart] // 2] = True
    return ask


def _run_ends(ok: Bools, asked: Bools, stable: bool) -> tuple[Ints, Ints, Ints, Ints]:
    """The last run of ok steps (or all from the first ok one), as far as steps were asked.

    Returns:
        Of each line the step asked before the run, its first, its last, the step asked after it.
    """
    position = np.arange(ok.shape[1])
    last = len(position) - 1 - ok[:, ::-1].argmax(axis=1)
    begin = ok.argmax(axis=1)
    if stable:
        gaps = np.where(asked & ~ok & (position < last[:, None]), position, -1).max(axis=1)
        begin = (ok & (position > gaps[:, None])).argmax(axis=1)
    below, after = _asked_beside(asked, begin, last)
    return below, begin, last, after


def _asked_beside(asked: Bools, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """The step asked before one and that after another; the step itself where there is none."""
    position = np.arange(asked.shape[1])
    before, after = asked & (position < first[:, None]), asked & (position > last[:, None])
    below = np.where(before, position, -1).max(axis=1)
    above = np.where(after.any(axis=1), after.argmax(axis=1), last)
    return np.where(below < 0, first, below), above


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


def _midpoints(
    line: _LineEvaluator,
    chosen: Ints,
    grid: Steps,
    first: Steps,
    begin: Ints,
    steps: int,
    stable: bool,
    level: Floats,
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
    # Behind `last` comes a step that is not ok, which a bracket does not hold.
    end = np.where(last < size - 1, grid.tau[rows, last] + 1.0 / steps - 1e-12, 1.0)
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
        below = middle.take(open_)
        after = (grid.tau[open_] > below.tau[:, None]).argmax(axis=1)  # the next one, which is ok
        if size < steps + 1:  # of a bracket: so that the step before first is one that is not ok
            grid.write((open_, after - 1), below)
        above = grid.take(open_, after)
        parts = np.ceil((above.tau - below.tau) * steps - 1e-9).astype(np.int64)
        sections = SECTIONS * np.maximum(parts, 1)
        narrowed = _narrowed(chosen[open_], below, above, sections, level[open_])
        first.write(open_, line.answer(narrowed)[0][1])
    return middle


def _assemble(
    line: _LineEvaluator,
    chosen: Ints,
    grid: Steps,
    first: Steps,
    middle: Steps | None,
    begin: Ints,
    every_step: bool,
) -> TracedPaths:
    """Grid, first and midpoint side by side, and the picks as positions among them."""
    count, size = grid.tau.shape
    if middle is None:
        middle = grid.take(np.arange(count), np.full(count, size - 1))
    steps = Steps.join([grid, first.reshape(count, 1), middle.reshape(count, 1)])
    picks = _picks(grid, steps, begin, literal=line.decoder.follows_paper)
    left = (grid.valid[:, :-1] == 1) & (grid.valid[:, 1:] == 0)
    shown = np.ones(steps.tau.shape, dtype=bool)
    if not every_step:
        shown[:] = False
        for pick in picks:
            shown[np.arange(count), pick] = True
    density = _densities(line, chosen, steps, shown)
    return TracedPaths(chosen, steps, density, *picks, left.sum(axis=1))


def _densities(line: _LineEvaluator, chosen: Ints, steps: Steps, shown: Bools) -> Floats:
    """Density percentiles of the steps shown, NaN elsewhere; `density_before` is written to."""
    schema, density = line.instances.schema, np.full(steps.tau.shape, np.nan)
    label = np.broadcast_to(line.lines.label[chosen, None], shown.shape)
    path, step = np.nonzero(shown)
    cells, labels, tau = steps.cells[path, step], label[path, step], steps.tau[path, step]
    # Paths of an instance share their start, paths to an endpoint their end.
    shared = (tau == 0.0) | (tau == 1.0)
    once, which = distinct(np.c_[labels, cells][shared])
    order = np.concatenate([np.flatnonzero(~shared), np.flatnonzero(shared)[once]])
    found = line.decoder.density(schema, cells[order], labels[order])
    alone = len(order) - len(once)
    each = np.empty(len(path))
    each[~shared], each[shared] = found[:alone], found[alone:][which]
    density[path, step] = each
    moved = steps.density_before == MOVED
    steps.density_before[moved & ~shown] = np.nan
    path, step = np.nonzero(moved & shown)
    if len(path):
        before = line.decode_at(chosen[path], steps.tau[path, step])
        steps.density_before[path, step] = line.decoder.density(schema, before, label[path, step])
    return density


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
