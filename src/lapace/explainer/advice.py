"""The picks `nearest` and `best`: minimal rows, found from the paths and from proposals.

For each instance the closest row known to be acceptable is made minimal. Known are the steps of its
paths; closer rows are proposed by a student of the classifier and confirmed by the classifier.
Acceptable is for `nearest` a row that is ok, for `best` one that also keeps a margin and is not too
unusual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints, first_of_each, matches
from lapace.explainer.lockstep import in_lockstep
from lapace.explainer.minimal import Accept, minimise
from lapace.explainer.oracle import Ask, Oracle, Verdicts
from lapace.explainer.problem import Problem
from lapace.explainer.proposals import Guide, Proposals, closest
from lapace.paths import Steps

__all__ = ["Advice", "find_advice", "stored_advice"]

ROUND, ROUNDS = 4, 3  # proposals queried at a time for each instance, and how often
RAISES = 2  # how often the score required of proposals is raised where all were refused
SLACK = 0.01  # of a score, by which rows that may replace one may be less sure
HOPE = 0.15  # the same for rows looked for within a distance: about what the student errs by
IMPROVEMENTS = 3  # how often a row closer than the one found is looked for
SHARE = 0.93  # of the distance that a row is then looked for within
CLOSER = 0.99  # share of the distance that such a row has to be within
LEVEL, MARGIN_LEVEL = 0.5, 0.8  # scores required where no path tells what is accepted
RANDOM, RANDOM_ROUND = 2, 30  # rounds and queries of random rows where nothing else was found
VARIATIONS = 2  # how often the likeliest of them are varied
HALF = 0.5  # of the margin's odds: what `best` is content with where no row has all of it
SPARE = 2  # starts of further ways beyond those that are wanted
RARE = 5.0  # the floor of `best`: a percentile among training rows of the target


class Advice(NamedTuple):
    """Minimal rows of some instances.

    Attributes:
        instance: The instance of each row, by position in the query.
        rank: Which of its best rows it is.
        prototype: The prototype of the path that comes closest to it.
        steps: The row, evaluated.
        density: Its density percentile.
        mark: What a best row lacks.
    """

    instance: Ints
    rank: Ints
    prototype: Ints
    steps: Steps
    density: Floats
    mark: NDArray[np.object_]

    def take(self, rows: Bools | Ints) -> Advice:
        """A selection of the rows."""
        parts: list[Any] = [p.take(rows) if isinstance(p, Steps) else p[rows] for p in self]
        return Advice(*parts)

    @classmethod
    def join(cls, *parts: Advice) -> Advice:
        """All rows, by instance and rank."""
        columns: list[Any] = [
            Steps.join(same, axis=0) if isinstance(same[0], Steps) else np.concatenate(same)
            for same in zip(*parts, strict=True)
        ]
        joined = cls(*columns)
        return joined.take(np.lexsort((joined.rank, joined.instance)))


def find_advice(
    problem: Problem,
    instance: Ints,
    paths: Mapping[str, NDArray[Any]],
    infeasible: set[int],
    seconds: dict[str, float],
) -> dict[str, Advice]:
    """The rows of `nearest` and `best` of some instances, whichever the search computes.

    Args:
        problem: The problem.
        instance: The instances, by position, in order.
        paths: Their paths.
        infeasible: Instances proved to have no feasible row.
        seconds: Time spent; grows with every call.
    """
    advisor = _Advisor(problem, instance, paths, infeasible, seconds)
    rows, found = advisor.picks("best" in problem.search.picks)
    nearest = advisor.advice(rows, advisor.lines)
    lacking = ~nearest.steps.ok
    if lacking.any():  # what is best is near enough where nothing nearer was found
        # Of these alone, so that `nearest` is the same whichever picks are computed.
        best = found["best"] if found else advisor.only(lacking).best(rows[lacking])
        mine = np.isin(best.instance, instance[lacking])
        best = best.take(mine & (best.rank == 0) & best.steps.ok)
        if len(best.instance):
            nearer = np.isin(instance, best.instance)
            nearest = Advice.join(nearest.take(~nearer), advisor.nearer(best))
    found["nearest"] = nearest
    return {pick: found[pick] for pick in found if pick in problem.search.picks}


def stored_advice(problem: Problem, instance: Ints, cells: Floats) -> dict[str, Advice]:
    """Rows found elsewhere as those of `nearest` and `best`, one for each of some instances."""
    none = np.empty((0, 1))
    codes = none.astype(np.int64)
    steps = Steps(
        none, none[..., None] + cells[:0, None], codes, codes.astype(np.int8), none > 0, none, none
    )
    paths = {**steps._asdict(), "instance": codes[:, 0], "prototype": codes[:, 0]}
    advisor = _Advisor(problem, instance, paths, set(), {})
    advice = advisor.advice(cells, advisor.lines)
    marked = advice._replace(mark=advisor._marks(advice, cells, advisor.lines))
    return {"nearest": advice, "best": marked}


class _Begin(NamedTuple):
    """Where a search for acceptable rows begins.

    Attributes:
        known: Which of the known rows are acceptable.
        levels: The score required of proposals, one for each line.
        starts: Rows the student starts from.
        proposals: What it proposes; empty where there is no student.
    """

    known: Bools
    levels: Floats
    starts: Proposals
    proposals: Proposals


class _Advisor:
    """Searches for minimal rows of a chunk of instances, its *lines*."""

    def __init__(
        self,
        problem: Problem,
        instance: Ints,
        paths: Mapping[str, NDArray[Any]],
        infeasible: set[int],
        seconds: dict[str, float],
    ) -> None:
        self.problem, self.instance, self.paths = problem, instance, paths
        self.infeasible, self.seconds = infeasible, seconds
        self.schema, self.lines = problem.schema, np.arange(len(instance))
        self.target = problem.instances.target_code[instance]
        oracle = Oracle(problem, instance, np.maximum(self.target, 0), infeasible, seconds)
        self.verdicts = Verdicts(oracle)
        self.guide = Guide(problem, instance)
        self.originals = self.guide.originals
        self.possible = ~np.isin(instance, list(infeasible))
        # Every step of every path that differs from the instance, as rows of lines.
        count, size = paths["tau"].shape
        steps = Steps(*(paths[name] for name in Steps._fields)).reshape(count * size)
        line = np.repeat(np.searchsorted(instance, paths["instance"]), size)
        moved = self.schema.changed(self.originals[line], steps.cells).any(axis=1)
        self.known, self.line = steps.take(moved), line[moved]
        self.known.tau[:] = np.nan
        self.path = np.repeat(np.arange(count), size)[moved]
        self.distance = self.guide.distance(self.known.cells, self.line)
        self.verdicts.remember(self.known, self.line)

    def only(self, lines: Bools) -> _Advisor:
        """The same search for some lines alone."""
        mine = np.isin(self.paths["instance"], self.instance[lines])
        paths = {name: values[mine] for name, values in self.paths.items()}
        return _Advisor(self.problem, self.instance[lines], paths, self.infeasible, self.seconds)

    @property
    def minimises(self) -> bool:
        """Pixels are not undone one by one: that would leave noise, not an image."""
        return self.schema.shape is None

    @property
    def _proposes(self) -> bool:
        return False

    # -- picks ------------------------------------------------------------------------------------

    def picks(self, with_best: bool) -> tuple[Floats, dict[str, Advice]]:
        """Of each line the row of `nearest`, and if wanted what is advised as `best`."""
        if not with_best:
            return self.nearest(self.verdicts), {}
        begin = self._begin_with_margin()
        searches: list[Callable[[Ask], tuple[Floats, Ints]]] = [
            lambda ask: (self.nearest(ask), self.lines),
            lambda ask: self._closest_with_margin(ask, begin),
            lambda ask: self._alternatives(ask, begin),
        ]
        (rows, _), surest, others = in_lockstep(self.verdicts, searches)
        return rows, {"best": self._marked(self._ways(begin, surest, others), rows)}

    def nearest(self, ask: Ask) -> Floats:
        """Of each line the closest ok row found, minimal; where there is none, the best row."""
        begin = self._begin(self.known.ok, LEVEL)
        rows, _ = self._closest(self._ok(ask), begin, IMPROVEMENTS)
        return rows

    def _ok(self, ask: Ask) -> Accept:
        """Accepts ok rows."""

        def accept(cells: Floats, line: Ints) -> tuple[Floats, Bools]:
            steps = ask(cells, line)
            return steps.cells, steps.ok

        return accept

    def nearer(self, best: Advice) -> Advice:
        """The rows of `best` of some lines made minimal among all ok rows."""
        lines = np.searchsorted(self.instance, best.instance)
        return self.advice(self._minimal(best.steps.cells, lines, self._ok(self.verdicts)), lines)

    def best(self, nearest: Floats) -> Advice:
        """Of each line up to `n_best` different ways; where there is none, `nearest`, marked."""
        begin, ask = self._begin_with_margin(), self.verdicts
        ways = self._ways(
            begin, self._closest_with_margin(ask, begin), self._alternatives(ask, begin)
        )
        return self._marked(ways, nearest)

    def _begin_with_margin(self) -> _Begin:
        """Where the search for `best` begins."""
        known = self.known.ok.copy()
        cells, line = self.known.cells[known], self.line[known]
        known[known] = self._margin(self.verdicts)(cells, line)[1]
        return self._begin(known, MARGIN_LEVEL)

    def _closest_with_margin(self, ask: Ask, begin: _Begin) -> tuple[Floats, Ints]:
        """The closest acceptable row of each line that has one, minimal, and its line."""
        rows, ok = self._closest(self._margin(ask), begin, 1, at_random=False)
        return rows[ok], self.lines[ok]

    def _alternatives(self, ask: Ask, begin: _Begin) -> tuple[Floats, Ints]:
        """Minimal rows among which further ways are chosen, and their lines.

        They start from steps of the paths and from proposals that are unlike each other.
        """
        accept, count = self._margin(ask), self.problem.search.n_best
        lines = self.lines[self.possible]
        if count < 2 or not len(lines):
            return self.originals[:0], self.lines[:0]
        rows = self._of_paths(begin.known)
        starts = [Proposals(self.known.cells[rows], self.line[rows], self.distance[rows])]
        if self._proposes:
            starts += [begin.proposals, self.guide.at_random(begin.levels, lines)]
        left, chosen = self.guide.joined(starts), []
        for _ in range(count + SPARE):
            some = closest(left, 1)
            chosen.append((some.cells, some.line))
            left = left.take(self._unlike(left.cells, left.line, chosen[-1:]))
        cells = np.concatenate([rows for rows, _ in chosen])
        line = np.concatenate([lines for _, lines in chosen])
        cells, ok = accept(cells, line)
        return self._minimal(cells[ok], line[ok], accept), line[ok]

    def _ways(
        self, begin: _Begin, surest: tuple[Floats, Ints], others: tuple[Floats, Ints]
    ) -> list[tuple[Floats, Ints]]:
        """Up to `n_best` different ways: the rows of each, and their lines."""
        cells, line = others
        pool = self.guide.joined([Proposals(cells, line, self.guide.distance(cells, line))])
        lacking = closest(pool.take(~np.isin(pool.line, surest[1])), 1)
        first = np.concatenate([surest[1], lacking.line])
        order = np.argsort(first)
        ways = [(np.concatenate([surest[0], lacking.cells])[order], first[order])]
        for _ in range(1, self.problem.search.n_best):
            pool = pool.take(np.isin(pool.line, ways[-1][1]))
            pool = pool.take(self._unlike(pool.cells, pool.line, ways))
            some = closest(pool, 1)
            ways.append(self._with_another(begin, ways, (some.cells, some.line)))
        return ways

    def _marked(self, ways: list[tuple[Floats, Ints]], nearest: Floats) -> Advice:
        """The ways of all lines, closest first, and what they lack; `nearest` where none is."""
        left = ~np.isin(self.lines, ways[0][1])
        marked, lines = self._fallback(nearest[left], self.lines[left])
        cells = np.concatenate([marked, *(rows for rows, _ in ways)])
        line = np.concatenate([lines, *(some for _, some in ways)])
        order = np.lexsort((self.guide.distance(cells, line), line))
        cells, line = cells[order], line[order]
        advice = self.advice(cells, line)
        return advice._replace(
            rank=np.arange(len(line)) - np.searchsorted(line, line),
            mark=self._marks(advice, cells, line),
        )

    def _margin(self, ask: Ask, *, usual: bool = True, share: float = 1.0) -> Accept:  # noqa: ARG002
        """Accepts ok rows that keep a share of the margin and are not rarer than the floor."""
        fitted, confidence = self.problem.fitted, self.problem.confidence

        def accept(cells: Floats, line: Ints) -> tuple[Floats, Bools]:
            ok = np.ones(len(cells), dtype=bool)
            any_other = self.target[line] < 0
            if usual and not any_other.all():  # known without a query, but for any-other targets
                ok = any_other | ~self._unusual(self.densities(cells, line), line)
            steps = ask(cells[ok], line[ok])
            checked, accepted = cells.copy(), np.zeros(len(cells), dtype=bool)
            checked[ok], accepted[ok] = steps.cells, steps.ok
            if usual and any_other.any():
                density = self.densities(steps.cells, line[ok], steps.predicted)
                accepted[ok] &= ~self._unusual(density, line[ok], steps.predicted)
            rows = np.flatnonzero(accepted)
            if confidence is None and len(rows):
                at = np.searchsorted(np.flatnonzero(ok), rows)
                label = self._labels(steps.predicted[at], line[rows])
                accepted[rows] = fitted.has_margin(
                    self.schema, checked[rows], label, steps.probability[at]
                )
            return checked, accepted

        return accept

    def _labels(self, predicted: Ints, line: Ints) -> Ints:
        """The label whose rows a row is compared with: the target, or for any-other its own."""
        return np.where(self.target[line] < 0, np.maximum(predicted, 0), self.target[line])

    def densities(self, cells: Floats, line: Ints, predicted: Ints | None = None) -> Floats:
        """Density percentiles of rows among training rows of the target."""
        label = self._labels(np.zeros_like(line) if predicted is None else predicted, line)
        return self.problem.fitted.decoder.density(self.schema, cells, label)

    def _unusual(self, density: Floats, line: Ints, predicted: Ints | None = None) -> Bools:
        """Rows rarer than the floor: the 5th percentile, or the instance's own if that is lower."""
        unusual: Bools = density < RARE
        rows = np.flatnonzero(unusual)
        own = self._own_density[line[rows]]
        other = np.flatnonzero(self.target[line[rows]] < 0)
        if len(other) and predicted is not None:  # any other label: the one that was reached
            at = rows[other]
            own[other] = self.densities(self.originals[line[at]], line[at], predicted[at])
        unusual[rows] = density[rows] < np.nan_to_num(own, nan=0.0)
        return unusual

    @cached_property
    def _own_density(self) -> Floats:
        """Density percentiles of the instances among training rows of the target."""
        return self.densities(self.originals, self.lines)

    def _fallback(self, nearest: Floats, line: Ints) -> tuple[Floats, Ints]:
        """For lines without an acceptable row: a surer one than `nearest`, if there is one.

        That is a row with a margin, however unusual, or one that keeps half of it.
        """
        rows, accept = nearest.copy(), self._margin(self.verdicts, usual=False)
        known = self.known.ok & np.isin(self.line, line)
        known[known] = accept(self.known.cells[known], self.line[known])[1]
        chosen = np.flatnonzero(known)
        chosen = chosen[first_of_each(self.line[chosen], self.distance[chosen])]
        at = np.searchsorted(line, self.line[chosen])
        rows[at] = self._minimal(self.known.cells[chosen], self.line[chosen], accept)
        left = np.setdiff1d(np.arange(len(line)), at)
        if len(left) and self.problem.confidence is None:
            other = self.only(np.isin(self.lines, line[left]))
            accept, known = other._margin(other.verdicts, share=HALF), other.known.ok.copy()
            known[known] = accept(other.known.cells[known], other.line[known])[1]
            begin = other._begin(known, MARGIN_LEVEL)
            surer, found = other._closest(accept, begin, 1, at_random=False)
            rows[left[found]] = surer[found]
        return rows, line

    def _marks(self, advice: Advice, cells: Floats, line: Ints) -> NDArray[np.object_]:
        """What each row lacks, in words."""
        steps, fitted = advice.steps, self.problem.fitted
        sure = np.ones(len(cells), dtype=bool)
        if self.problem.confidence is None:
            label = self._labels(steps.predicted, line)
            sure = fitted.has_margin(self.schema, cells, label, steps.probability)
        unusual = self._unusual(advice.density, line, steps.predicted)
        words = np.array([["", "unusual"], ["edge", "edge, unusual"]], dtype=object)
        return words[(~sure).astype(np.int64), unusual.astype(np.int64)]

    # -- the search -------------------------------------------------------------------------------

    def _closest(
        self,
        accept: Accept,
        begin: _Begin,
        improvements: int,
        *,
        at_random: bool = True,
    ) -> tuple[Floats, Bools]:
        """Of each line the closest acceptable row found, minimal, or the best row known.

        Args:
            accept: Whether rows are acceptable.
            begin: Where the search begins.
            improvements: How often a closer row is looked for.
            at_random: Try random rows where nothing else is found.
        """
        rows, found = self._closest_known(begin.known)
        if not self._proposes:
            rows[found] = self._minimal(rows[found], self.lines[found], accept)
            return rows, found
        levels, starts = begin.levels.copy(), begin.starts
        open_ = self._propose(accept, rows, found, levels, begin)
        if at_random:
            self._try_at_random(accept, rows, found, open_)
        rows[found] = self._minimal(rows[found], self.lines[found], accept)
        lines = self.lines[found]
        for _ in range(improvements):
            if not len(lines):
                break
            here = Proposals(rows[lines], lines, self.guide.distance(rows[lines], lines))
            levels[lines] = self.guide.score(rows[lines], lines) - SLACK
            proposals = self.guide.propose(levels, starts, lines, here=here)
            better, lines = self._confirm(self._closer(proposals, rows, found), accept, 2)
            rows[lines] = self._minimal(better, lines, accept)
        lines = self.lines[found]
        for _ in range(improvements):
            if not len(lines):
                break
            budget = SHARE * self.guide.distance(rows[lines], lines)
            levels[lines] = self.guide.score(rows[lines], lines) - HOPE
            proposals = self.guide.within(budget, levels[lines], lines)
            better, lines = self._confirm(proposals, accept, 2)
            rows[lines] = self._minimal(better, lines, accept)
        return rows, found

    def _propose(
        self, accept: Accept, rows: Floats, found: Bools, levels: Floats, begin: _Begin
    ) -> Ints:
        """Writes the closest proposal that is confirmed, of each line that has one.

        Returns:
            The lines that have no acceptable row yet.
        """
        open_, known, proposals = self.lines[self.possible], found.copy(), begin.proposals
        for attempt in range(RAISES + 1):
            if not len(open_):
                break
            if attempt:
                proposals = self.guide.propose(levels, begin.starts, open_)
            better, line = self._confirm(self._closer(proposals, rows, found), accept, ROUNDS)
            rows[line], found[line] = better, True
            open_ = np.setdiff1d(open_, line)
            if attempt:  # one more try is enough where a known row can be started from
                open_ = open_[~known[open_]]
            levels[open_] += (1.0 - levels[open_]) / 2
        return open_

    def _try_at_random(self, accept: Accept, rows: Floats, found: Bools, open_: Ints) -> None:
        """Writes the closest row found at random of lines that have none, if there is one.

        The student chooses which rows the classifier is queried about; then those it is surest of
        are varied.
        """
        parents: Floats | None = None
        for _ in range(VARIATIONS + 1):
            if not len(open_):
                break
            proposals = self.guide.pool(open_, parents)
            better, line = self._confirm(proposals, accept, RANDOM, RANDOM_ROUND)
            rows[line], found[line] = better, True
            open_ = np.setdiff1d(open_, line)
            likeliest, some = self._likeliest(proposals.take(np.isin(proposals.line, open_)))
            parents, open_ = likeliest, some

    def _likeliest(self, proposals: Proposals) -> tuple[Floats, Ints]:
        """Of each line the row whose probability of the target is highest, where there are any."""
        steps = self.verdicts(proposals.cells, proposals.line)
        rows = np.flatnonzero(~np.isnan(steps.probability))
        rows = rows[first_of_each(proposals.line[rows], -steps.probability[rows])]
        rows = rows[np.argsort(proposals.line[rows])]
        return steps.cells[rows], proposals.line[rows]

    def _closer(self, proposals: Proposals, rows: Floats, found: Bools) -> Proposals:
        """The proposals that are closer than the row a line has."""
        most = np.where(found, CLOSER * self.guide.distance(rows, self.lines), np.inf)
        return proposals.take(proposals.distance < most[proposals.line])

    def _confirm(
        self, proposals: Proposals, accept: Accept, rounds: int, size: int = ROUND
    ) -> tuple[Floats, Ints]:
        """Of each line the first proposal that is acceptable; queried a few at a time."""
        cells, line = [self.originals[:0]], [self.lines[:0]]
        for _ in range(rounds):
            if not len(proposals.line):
                break
            some = closest(proposals, size)
            checked, ok = accept(some.cells, some.line)
            chosen = np.flatnonzero(ok)
            chosen = chosen[first_of_each(some.line[chosen], some.distance[chosen])]
            cells.append(checked[chosen])
            line.append(some.line[chosen])
            rest = np.arange(len(proposals.line)) - np.searchsorted(proposals.line, proposals.line)
            proposals = proposals.take((rest >= size) & ~np.isin(proposals.line, line[-1]))
        lines = np.concatenate(line)
        order = np.argsort(lines)
        return np.concatenate(cells)[order], lines[order]

    def _minimal(self, cells: Floats, line: Ints, accept: Accept) -> Floats:
        if not self.minimises or not len(cells):
            return cells
        originals, weights = self.originals[line], self.problem.weights
        return minimise(
            cells, originals, lambda rows, at: accept(rows, line[at]), self.schema, weights
        )

    # -- where it starts --------------------------------------------------------------------------

    def _begin(self, known: Bools, level: float) -> _Begin:
        """Where a search begins.

        Args:
            known: The known rows that are acceptable.
            level: The score required of proposals where none of them tells.
        """
        levels = np.full(len(self.lines), level)
        starts = proposals = Proposals(self.originals[:0], self.lines[:0], np.empty(0))
        if self._proposes:
            levels, starts = self._levels(known, level), self._starts(known)
            proposals = self.guide.propose(levels, starts, self.lines[self.possible])
        return _Begin(known, levels, starts, proposals)

    def _closest_known(self, acceptable: Bools) -> tuple[Floats, Bools]:
        """Of each line the closest acceptable known row; or the best known, which is not."""
        rows = self.originals.copy()
        likely = np.nan_to_num(self.known.probability, nan=0.0)
        cost = np.where(acceptable, self.distance, np.inf)
        # Of rows that are not acceptable, a feasible one is better than one that is not.
        chosen = first_of_each(self.line, cost, ~self.known.feasible, -likely)
        rows[self.line[chosen]] = self.known.cells[chosen]
        found = np.zeros(len(rows), dtype=bool)
        found[self.line[chosen]] = acceptable[chosen]
        return rows, found

    def _of_paths(self, acceptable: Bools) -> Ints:
        """On each path the closest acceptable step, as a position among the known rows."""
        rows = np.flatnonzero(acceptable)
        return rows[first_of_each(self.path[rows], self.distance[rows])]

    def _levels(self, acceptable: Bools, default: float) -> Floats:
        """What the student scores where paths become acceptable: the median of each line."""
        rows = self._of_paths(acceptable)
        score, line = self.guide.score(self.known.cells[rows], self.line[rows]), self.line[rows]
        order = np.lexsort((score, line))
        lines, begin, count = np.unique(line[order], return_index=True, return_counts=True)
        levels = np.full(len(self.lines), default)
        levels[lines] = np.clip(score[order][begin + count // 2], 0.1, 0.95)
        return levels

    @cached_property
    def _samples(self) -> Proposals:
        return self.guide.samples()

    def _starts(self, acceptable: Bools) -> Proposals:
        """Rows the student starts from: the closest of each path, and sampled ones."""
        rows = self._of_paths(acceptable)
        near = Proposals(self.known.cells[rows], self.line[rows], self.distance[rows])
        return Proposals(*(np.concatenate(same) for same in zip(near, self._samples, strict=True)))

    # -- different ways ---------------------------------------------------------------------------

    def _with_another(
        self, begin: _Begin, ways: list[tuple[Floats, Ints]], found: tuple[Floats, Ints]
    ) -> tuple[Floats, Ints]:
        """One more way for each line: the row found, or a minimal row unlike those it has."""
        accept = self._margin(self.verdicts)
        left = np.setdiff1d(ways[-1][1], found[1])  # a line without another has no third either
        proposals = begin.proposals.take(np.isin(begin.proposals.line, left))
        proposals = proposals.take(self._unlike(proposals.cells, proposals.line, ways))
        better, at = self._confirm(proposals, accept, ROUNDS - 1)
        better = self._minimal(better, at, accept)
        new = self._unlike(better, at, ways)
        rows, line = [found[0], better[new]], [found[1], at[new]]
        joined = np.concatenate(line)
        order = np.argsort(joined)
        return np.concatenate(rows)[order], joined[order]

    def _unlike(self, cells: Floats, line: Ints, ways: list[tuple[Floats, Ints]]) -> Bools:
        """Rows that are another way than each that their line has.

        Neither changes all the features the other changes, or they differ in a category.
        """
        unlike = np.ones(len(cells), dtype=bool)
        categories = self.schema.categorical
        for rows, lines in ways:
            at = np.minimum(np.searchsorted(lines, line), max(len(lines) - 1, 0))
            has = np.flatnonzero(lines[at] == line) if len(lines) else lines
            mine, theirs = cells[has], rows[at[has]]
            original = self.originals[line[has]]
            a, b = self.schema.changed(original, mine), self.schema.changed(original, theirs)
            apart = (a & ~b).any(axis=1) & (b & ~a).any(axis=1)
            differ = self.schema.changed(mine, theirs)[:, categories].any(axis=1)
            unlike[has] &= apart | differ
        return unlike

    # -- the result -------------------------------------------------------------------------------

    def advice(self, cells: Floats, line: Ints) -> Advice:
        """Rows of lines as the search's result."""
        steps = self.verdicts(cells, line)
        density = self.densities(steps.cells, line, steps.predicted)
        paths = self._of_paths(self.known.ok | ~np.isin(self.line, self.line[self.known.ok]))
        count = len(line)
        at, near = matches(line, self.line[paths])
        apart = self.schema.gaps(cells[at], self.known.cells[paths[near]]) @ self.problem.weights
        chosen = first_of_each(at, apart)
        prototype = np.full(count, -1, dtype=np.int64)
        endpoints = self.paths["prototype"][self.path[paths[near[chosen]]]]
        prototype[at[chosen]] = np.maximum(endpoints, -1)
        blank = np.full(count, "", dtype=object)
        rank = np.zeros(count, dtype=np.int64)
        return Advice(self.instance[line], rank, prototype, steps, density, blank)
