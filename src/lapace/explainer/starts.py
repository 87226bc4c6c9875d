"""Starts: ok rows near the instances, from which the search for minimal rows sets out.

They come from four places: rows sampled from the model, steps of the paths, rows the caller gives,
and rows *grown* from the instance (`grown_starts`). To grow rows, the classifier is asked about the
instance with each change alone. The changes that raise the odds most for their effort are then put
together, one more each time, until the odds should suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from lapace.arrays import Bools, Floats, Ints, batches, distinct, first_of_each, places_in_groups
from lapace.constraints import ChangeLimit
from lapace.explainer.oracle import Oracle
from lapace.explainer.problem import InstanceRows, Problem
from lapace.paths import Steps, join_rows, rows_differ, take_rows
from lapace.schema import Feature
from lapace.schema.distance import kneighbors

__all__ = ["Paths", "Starts", "find_starts"]

SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # percentiles of a number that are tried alone
PARTS = 4  # that a stretch between two of them is cut into; odds in between are interpolated
FINE = (
    PARTS * (len(SHARES) - 1) + 1
)  # values of a column on the grid; more categories are not tried
ROUNDS = 12  # of putting one more change to a row, at most
BEYOND = 1.5  # times the odds that should suffice: no more changes are put together
STAGES = 3  # times that rows are grown, from the second on from the likeliest row so far
WIDER = 200  # sampled rows tried for an instance where no other start keeps a margin
BANNED = 3  # columns left out in turn, so that other ways are found
CELLS = 4_000_000  # cells of grids held at once

Paths: TypeAlias = dict[str, NDArray[Any]]  # fields of `Steps` and `TracedPaths`, one row a path


class Starts(NamedTuple):
    """Evaluated rows that a search for minimal rows may start from.

    Attributes:
        instance: The instance of each, by position in the query, in order.
        steps: The rows.
        effort: Their efforts.
        margin: Whether each keeps a margin.
        candidate: Whether the caller gave the row; those are always started from.
    """

    instance: Ints
    steps: Steps
    effort: Floats
    margin: Bools
    candidate: Bools

    @classmethod
    def of(cls, oracle: Oracle, steps: Steps, instance: Ints, candidate: bool = False) -> Starts:
        """Returns the ok rows among evaluated ones as starts, by instance."""
        ok = np.flatnonzero(steps.ok)
        ok = ok[np.argsort(instance[ok], kind="stable")]
        steps, instance = steps.take(ok), instance[ok]
        effort = oracle.problem.efforts(steps.cells, instance)
        margin = oracle.has_margin(steps, instance)
        return cls(instance, steps, effort, margin, np.full(len(instance), candidate))

    @classmethod
    def join(cls, parts: Sequence[Starts]) -> Starts:
        """Puts the rows of several sources together, by instance, each row once."""
        joined = join_rows(parts)
        joined = take_rows(joined, np.lexsort((~joined.candidate, joined.instance)))
        first, _ = distinct(np.c_[joined.instance, joined.steps.cells])
        return take_rows(joined, np.sort(first))

    def cheapest(self, count: int, price: Floats, *, margin: bool = False) -> InstanceRows:
        """Returns the cheapest rows of each instance and label, and all candidates.

        Args:
            count: How many for each.
            price: What each row costs.
            margin: Whether the rows that are made of them have to keep a margin.
        """
        label = self.steps.predicted
        some = take_rows(self, np.lexsort((price, self.candidate, label, self.instance)))
        group = np.c_[some.instance, some.steps.predicted]
        group = np.unique(group, axis=0, return_inverse=True)[1].ravel()
        some = take_rows(some, some.candidate | (places_in_groups(group) < count))
        return InstanceRows.of(some.steps.cells, some.instance, margin=margin)


def find_starts(
    problem: Problem, instance: Ints, paths: Paths, candidates: InstanceRows | None, oracle: Oracle
) -> Starts:
    """Collects starts of some instances.

    Args:
        problem: The problem.
        instance: Positions of the instances, in order.
        paths: Their paths.
        candidates: Rows the caller gives.
        oracle: Evaluates rows.
    """
    parts = [_starts_of_paths(paths, oracle)]
    if problem.schema.shape is None:  # of images only rows on a path are written well
        parts.append(_sampled_starts(problem, instance, problem.search.n_starts, oracle))
        for part in batches(len(instance), CELLS, FINE * len(problem.schema.features)):
            parts += grown_starts(problem, instance[part], oracle)
        if problem.asks_margin and "best" in problem.search.picks:
            sure = np.concatenate([part.instance[part.margin] for part in parts])
            rest = np.setdiff1d(instance, [*sure, *oracle.infeasible])
            parts.append(_sampled_starts(problem, rest, WIDER, oracle))
    if candidates is not None:
        some = take_rows(candidates, np.isin(candidates.instance, instance))
        steps = oracle.evaluate(some.cells, some.instance)
        parts.append(Starts.of(oracle, steps, some.instance, candidate=True))
    return Starts.join(parts)


def _sampled_starts(problem: Problem, instance: Ints, count: int, oracle: Oracle) -> Starts:
    """Finds the sampled rows of the target that are closest to instances."""
    samples, instances = problem.fitted.samples, problem.instances
    pinned = problem.system.domains(instances.cells[instance]).pinned
    alike = np.c_[instances.label_code[instance], instances.target_code[instance], pinned]
    _, group = np.unique(alike, axis=0, return_inverse=True)
    owners, chosen = [instance[:0]], [instance[:0]]
    for k in np.unique(group):  # instances that want the same and may change the same columns
        members = np.flatnonzero(group.ravel() == k)
        first = np.full(len(samples.label), instance[members[0]])
        reached = instances.reaches_target(samples.label, first)
        cells = instances.cells[instance[members]]
        # What may not change is the instance's, whatever the sample has.
        weights = np.where(pinned[members[0]], 0.0, problem.weights)
        for label in np.unique(samples.label[reached]):
            rows = np.flatnonzero(samples.label == label)
            _, near = kneighbors(problem.schema, cells, samples.cells[rows], count, weights=weights)
            owners.append(np.repeat(instance[members], near.shape[1]))
            chosen.append(rows[near].ravel())
    owner = np.concatenate(owners)
    steps = oracle.evaluate(samples.cells[np.concatenate(chosen)], owner)
    return Starts.of(oracle, steps, owner)


def _starts_of_paths(paths: Paths, oracle: Oracle) -> Starts:
    """Returns each path's first ok step, the first with a margin, the last, and the cheapest."""
    problem = oracle.problem
    path, step = np.nonzero(np.logical_and(paths["valid"] == 1, paths["feasible"]))
    rows = Steps(*(paths[name][path, step] for name in Steps._fields))
    instance = paths["instance"][path]
    sure = np.flatnonzero(oracle.has_margin(rows, instance))
    chosen = [
        first_of_each(path, rows.tau),
        sure[first_of_each(path[sure], rows.tau[sure])],
        first_of_each(path, -rows.tau),
        first_of_each(instance, problem.efforts(rows.cells, instance)),
    ]
    some = np.unique(np.concatenate(chosen))
    rows, instance = rows.take(some), instance[some]
    originals = problem.instances.cells[instance]
    same = problem.schema.same_where_unchanged(rows.cells, originals)
    moved = np.flatnonzero(rows_differ(same, rows.cells))
    rows.write(moved, oracle.evaluate(rows.cells[moved], instance[moved]))
    return Starts.of(oracle, rows, instance)


# ------------------------------------------------------------------------------------------------
# Growing


class _Grid(NamedTuple):
    """Single changes of rows: what each column may become, and what that does.

    Attributes:
        instance: The instance of each row, by position in the query, (n,).
        base: The rows, (n, d).
        score: Their scores, (n,).
        values: Values of each column, (n, FINE, d); the row's own where there are fewer.
        gain: How much each raises the score, (n, FINE, d); -inf where it is not to be tried.
        effort: The effort of each, (n, FINE, d).
    """

    instance: Ints
    base: Floats
    score: Floats
    values: Floats
    gain: Floats
    effort: Floats


def grown_starts(problem: Problem, instance: Ints, oracle: Oracle) -> list[Starts]:
    """Grows rows from instances, those changes first that raise the odds most for their effort.

    Each of the costliest columns of a row found is left out in turn, so that other ways are found.
    Where nothing is ok, or keeps a margin, growing begins again from the likeliest feasible row.
    """
    grower, base = _Grower(problem, oracle), problem.instances.cells[instance]
    asks_margin = problem.asks_margin and "best" in problem.search.picks
    for stage in range(STAGES):
        grid = grower.tried_alone(instance, base)
        row, cells, score = grower.put_together(grid)
        if not stage:
            for margin in sorted({False, asks_margin}):
                again, banned = grower.columns_to_leave_out(grid, margin)
                grower.put_together(take_rows(grid, again), banned)
        done = np.concatenate(
            [part.instance[part.margin | (not asks_margin)] for part in grower.found]
        )
        better = np.flatnonzero((score > grid.score[row]) & ~np.isin(instance[row], done))
        best = better[first_of_each(instance[row[better]], -score[better])]
        if not len(best):
            break
        base, instance = grower.with_room(cells[best], instance[row[best]])
    return grower.found


class _Grower:
    """Grows rows, and collects those that are ok.

    Attributes:
        found: The ok rows, as starts.
    """

    def __init__(self, problem: Problem, oracle: Oracle) -> None:
        self.problem = problem
        self.oracle = oracle
        self.found: list[Starts] = []

    def tried_alone(self, instance: Ints, base: Floats) -> _Grid:
        """Queries rows with each change alone."""
        problem, schema, originals = self.problem, self.problem.schema, self._originals(instance)
        values, asked = _values(problem, originals, base)
        row, place, column = np.nonzero(asked)
        cells = base[row]
        cells[np.arange(len(row)), column] = values[row, place, column]
        own = self.oracle.query(base, np.zeros(len(base), dtype=bool), instance)
        steps = self._evaluated(cells, instance[row])
        score = _scores(problem, own, instance)
        gained = _scores(problem, steps, instance[row]) - score[row]
        gain = np.full(values.shape, -np.inf)
        gain[row, place, column] = np.where(steps.feasible & ~np.isnan(gained), gained, -np.inf)
        gain = np.where(schema.metric.numeric, _interpolated(values, gain, base[:, None]), gain)
        effort = schema.change_efforts(originals[:, None], values, problem.weights)
        return _Grid(instance, base, score, values, gain, effort)

    def put_together(self, grid: _Grid, banned: Bools | None = None) -> tuple[Ints, Floats, Floats]:
        """Puts single changes together and evaluates the rows; banned columns stay, (n, d).

        Returns:
            The row of the grid that each new row was grown from, the new rows, and their scores,
            -inf where a row is not feasible.
        """
        gain = grid.gain if banned is None else np.where(banned[:, None], -np.inf, grid.gain)
        need = _needed(self.problem, grid.instance) - grid.score[:, None]
        changed = self.problem.schema.changed(self._originals(grid.instance), grid.base)
        most = _most_changes(self.problem)
        choices, row = _choices(gain, grid.effort, need, changed, most)
        if most < gain.shape[2]:  # where changes are counted, those that raise the odds most
            more, of = _choices(gain, np.ones_like(gain), need, changed, most)
            choices, row = np.concatenate([choices, more]), np.concatenate([row, of])
        columns = np.arange(gain.shape[2])
        taken = grid.values[row[:, None], np.maximum(choices, 0), columns]
        cells = np.where(choices >= 0, taken, grid.base[row])
        steps = self._evaluated(cells, grid.instance[row])
        score = _scores(self.problem, steps, grid.instance[row])
        score = np.where(steps.feasible & ~np.isnan(score), score, -np.inf)
        return row, steps.cells, score

    def with_room(self, cells: Floats, instance: Ints) -> tuple[Floats, Ints]:
        """Returns rows with room for a change: each of a full row's changes is given up in turn."""
        originals = self._originals(instance)
        changed = self.problem.schema.changed(originals, cells)
        full = changed.sum(axis=1) >= _most_changes(self.problem)
        row, column = np.nonzero(changed & full[:, None])
        fewer = cells[row]
        fewer[np.arange(len(row)), column] = originals[row, column]
        fewer = self.problem.schema.derive(fewer, originals[row])
        return np.r_[cells[~full], fewer], np.r_[instance[~full], instance[row]]

    def columns_to_leave_out(self, grid: _Grid, margin: bool) -> tuple[Ints, Bools]:
        """Returns rows of the grid to grow again, and the column that each does without, (n, d).

        They are the columns of the row found of least effort, with a margin where that is asked.
        """
        found = Starts.join(self.found)
        found = take_rows(found, found.margin | (not margin))
        best = take_rows(found, first_of_each(found.instance, found.effort))
        efforts = self.problem.change_efforts(best.steps.cells, best.instance)
        order = np.argsort(-efforts, axis=1, kind="stable")[:, :BANNED]  # (best, BANNED)
        which, place = np.nonzero(np.take_along_axis(efforts, order, axis=1) > 0)
        banned = np.zeros((len(which), efforts.shape[1]), dtype=bool)
        banned[np.arange(len(which)), order[which, place]] = True
        return np.searchsorted(grid.instance, best.instance[which]), banned

    def _originals(self, instance: Ints) -> Floats:
        return self.problem.instances.cells[instance]

    def _evaluated(self, cells: Floats, instance: Ints) -> Steps:
        """Evaluates rows, and collects those that are ok."""
        cells = self.problem.schema.derive(cells, self._originals(instance))
        steps = self.oracle.evaluate(cells, instance)
        self.found.append(Starts.of(self.oracle, steps, instance))
        return steps


def _values(problem: Problem, originals: Floats, base: Floats) -> tuple[Floats, Bools]:
    """Returns the values of each column on the grid, and which of them are asked about."""
    schema, domains = problem.schema, problem.system.domains(originals)
    values = np.repeat(base[:, None], FINE, axis=1)  # (n, FINE, d)
    asked = np.zeros(values.shape, dtype=bool)
    for j, feature in enumerate(schema.features):
        if feature.derived is not None:
            continue
        if feature.numeric:
            ends = np.clip(_anchors(feature), *(b[:, [j]] for b in (domains.lower, domains.upper)))
            share = np.arange(FINE - 1) % PARTS / PARTS
            low = np.repeat(ends[:, :-1], PARTS, axis=1)
            fine = low + share * (np.repeat(ends[:, 1:], PARTS, axis=1) - low)
            values[:, :, j] = feature.snap(np.c_[fine, ends[:, -1]])
            asked[:, ::PARTS, j] = True
        else:
            counts = np.array(feature.histogram[1] or [0] * len(feature.categories))
            levels = np.argsort(-counts, kind="stable")[:FINE]
            values[:, : len(levels), j] = levels
            asked[:, : len(levels), j] = (
                domains.allowed[j][:, levels] if j in domains.allowed else True
            )
    return values, asked & ~domains.pinned[:, None] & schema.changed(values, base[:, None])


def _anchors(feature: Feature) -> Floats:
    """Returns the values of a number that are tried alone."""
    if feature.ranks[0] and feature.kind == "continuous":
        inner = np.interp(SHARES[1:-1], feature.ranks[1], feature.ranks[0])
        return np.array([feature.lower, *inner, feature.upper])
    return np.linspace(feature.lower, feature.upper, len(SHARES))


def _interpolated(values: Floats, gain: Floats, base: Floats) -> Floats:
    """Fills in gains between the values that were asked about, and at the row's own gain 0."""
    below = np.arange(FINE - 1) // PARTS * PARTS
    full = np.where(values == base, 0.0, gain)
    low, high = values[:, below], values[:, below + PARTS]
    low_gain, high_gain = full[:, below], full[:, below + PARTS]
    here, filled = values[:, :-1], gain.copy()
    inside = (low < base) & (base < high)
    left, right = inside & (here <= base), inside & (here > base)
    low, low_gain = np.where(right, base, low), np.where(right, 0.0, low_gain)
    high, high_gain = np.where(left, base, high), np.where(left, 0.0, high_gain)
    known = np.isfinite(low_gain) & np.isfinite(high_gain) & (high > low)
    share = (here - low) / np.where(known, high - low, 1.0)
    between = np.where(known, low_gain, 0.0) * (1 - share) + share * np.where(known, high_gain, 0)
    usable = known & (here != base)
    filled[:, :-1] = np.where(usable, between, gain[:, :-1])
    return filled


def _scores(problem: Problem, steps: Steps, instance: Ints) -> Floats:
    """Returns rows' log-odds of the target; of labels alone, how much they resemble its rows."""
    if np.isnan(problem.fitted.survival.agreement):
        return _resemblance(problem, steps.cells, instance)
    other = problem.instances.target_code[instance] < 0  # the odds may be the own label's then
    return np.where(other & (steps.valid != 1), -np.abs(steps.odds), steps.odds)


def _resemblance(problem: Problem, cells: Floats, instance: Ints) -> Floats:
    """Returns how much more rows resemble sampled rows of the target than those of other labels.

    It stands in for the odds of a classifier that gives labels alone: the score of a linear
    discriminant that takes columns for independent.
    """
    schema, samples, score = problem.schema, problem.fitted.samples, np.zeros(len(cells))
    encoded, known = schema.encode(cells), schema.encode(samples.cells)
    for i in np.unique(instance).tolist():
        reached = problem.instances.reaches_target(samples.label, np.full(len(samples.label), i))
        if reached.any() and not reached.all():
            target, other = known[reached], known[~reached]
            spread = target.var(axis=0) + other.var(axis=0) + 1e-3
            weights = (target.mean(axis=0) - other.mean(axis=0)) / spread
            score[instance == i] = encoded[instance == i] @ weights
    return score


def _needed(problem: Problem, instance: Ints) -> Floats:
    """Returns the log-odds needed to be valid and to keep a margin, (n, 2); NaN where unknown."""
    codes = np.maximum(problem.instances.target_code[instance], 0)
    survival = problem.fitted.survival
    if problem.confidence is not None:
        enough = np.full(len(instance), logit(min(problem.confidence, 1 - 1e-6)))
        return np.stack([enough, enough], axis=1)
    zero = np.where(np.isnan(survival.agreement), np.nan, survival.zero[codes])
    return np.stack([zero, survival.margin_odds(codes)], axis=1)


def _choices(
    gain: Floats, effort: Floats, need: Floats, changed: Bools, most: int
) -> tuple[Ints, Ints]:
    """Puts single changes together, those first whose gain is largest for their effort.

    Gains are taken to add up. Each round has the changes so far, and these with the one cheapest
    change that should then suffice, for validity and for a margin.

    Args:
        gain: What each change gains, (n, FINE, d); -inf where it is not to be made.
        effort: The effort of each.
        need: How much has to be gained, (n, 2); NaN where that is not known.
        changed: The changes that rows have already, (n, d).
        most: How many changes a row may have.

    Returns:
        The place on the grid that each column takes, -1 where it stays, (rows, d); and the row of
        the grid that each is of.
    """
    n, size, d = gain.shape
    gain, effort = gain.reshape(n, size * d), effort.reshape(n, size * d)
    place, column = np.repeat(np.arange(size), d), np.tile(np.arange(d), size)
    choice, has, spent = np.full((n, d), -1), np.zeros((n, d)), np.zeros((n, d))
    total, every = np.zeros(n), np.arange(n)
    choices, rows = [choice[:0]], [every[:0]]

    def keep(row: Ints, change: Ints) -> None:
        """Keeps the changes so far of some rows, with one more."""
        more = choice[row]
        more[np.arange(len(row)), column[change]] = place[change]
        choices.append(more)
        rows.append(row)

    for _ in range(ROUNDS):
        more, price = gain - has[:, column], effort - spent[:, column]
        moved = (choice >= 0) | changed
        full = (moved.sum(axis=1) >= most)[:, None]
        more = np.where(full & ~moved[:, column], -np.inf, more)
        for wanted in need.T:
            cost = np.where(more >= (wanted - total)[:, None] - 1e-9, price, np.inf)
            cheapest = cost.argmin(axis=1)
            last = np.flatnonzero(np.isfinite(cost[every, cheapest]))
            keep(last, cheapest[last])
        worth = np.where(more > 1e-9, more / np.maximum(price, 1e-3), -np.inf)
        best, beyond = worth.argmax(axis=1), total >= BEYOND * need.max(axis=1)
        row = np.flatnonzero(np.isfinite(worth[every, best]) & ~beyond)
        if not len(row):
            break
        change = best[row]
        keep(row, change)
        choice[row, column[change]] = place[change]
        total[row] += more[row, change]
        has[row, column[change]], spent[row, column[change]] = (
            gain[row, change],
            effort[row, change],
        )
    return np.concatenate(choices), np.concatenate(rows)


def _most_changes(problem: Problem) -> int:
    """Returns how many columns may change: at least one, so that there is something to try."""
    limits = [c.most for c in problem.system.constraints if isinstance(c, ChangeLimit)]
    return max(1, min([len(problem.schema.features), *limits]))
