"""Rows worth asking the classifier about, found by asking a student of it, which is free.

Two sources: rows near the instance that the search has already (steps of its paths, sampled rows of
the target), and a beam search that changes one feature after another. All of them are made minimal
for a score that the student has to give them; then changes are exchanged for cheaper ones as long
as that is possible. The closest are proposed. The classifier has the last word.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from lapace.arrays import Bools, Floats, Ints, batches, distinct, first_of_each, places_in_groups
from lapace.constraints import ChangeLimit, System
from lapace.constraints.projection import Domains
from lapace.explainer.minimal import minimise
from lapace.explainer.problem import Problem
from lapace.metrics.neighbours import kneighbors
from lapace.schema import Feature

__all__ = ["Guide", "Proposals", "closest"]

VALUES = 9  # values of a number that a move may set, evenly spread over its scores
SCORES, EXTREME = 1.8, 3.0  # standardised scores within which they lie, and two beyond
WIDTH, DEPTH = 6, 4  # rows a beam keeps for each instance, and the features it may change
FURTHER = 40  # moves of an instance that are combined beyond the first
HITS = 3  # rows of each depth that are proposed
COST = 0.5  # score that a distance of 1 has to bring for a row to stay in the beam
SAMPLES = 10  # sampled rows of the target nearest to an instance
CELLS = 4_000_000  # cells of rows scored at once
PARTS = np.array([1.0, 2 / 3, 0.5, 1 / 3, 1 / 6])  # of a distance that a move takes up
FEW = 8  # rows within a distance that are proposed for each number of changes
EXCHANGES, EXCHANGED = 4, 3  # rounds of exchanging changes, and rows of each line in a round
BACK = (1.0, 0.5, 0.25)  # shares of a change that are taken back for another
TAKEN_BACK = 6  # changes of a row that are taken back, the costliest
MOVING, TRIED = 16, 400  # numbers that they are exchanged for, and rows by which those are chosen
POOL, POOLED = 2_000, 60  # random rows of an instance, and how many of them are proposed
LESS = (0.9, 0.98)  # shares of the distance that is then left


class Proposals(NamedTuple):
    """Rows, of each instance the closest first.

    Attributes:
        cells: The rows.
        line: The line (instance of the chunk) of each.
        distance: From the instance.
    """

    cells: Floats
    line: Ints
    distance: Floats

    def take(self, rows: Ints | Bools) -> Proposals:
        """A selection of the rows."""
        return Proposals(self.cells[rows], self.line[rows], self.distance[rows])


class Moves(NamedTuple):
    """Changes of one feature.

    Attributes:
        column: The column that is changed, (moves,).
        value: What it is set to, (lines, moves), or (1, moves) for the same on every line.
    """

    column: Ints
    value: Floats


class _Scored(NamedTuple):
    """Rows with their score, and whether they satisfy the constraints."""

    rows: Proposals
    score: Floats
    feasible: Bools


@dataclass(frozen=True)
class Guide:
    """Scores rows of a chunk of instances by the student.

    Attributes:
        problem: The problem.
        instance: The instances of the chunk, by position; a *line* is a position among them.
    """

    problem: Problem
    instance: Ints

    @cached_property
    def originals(self) -> Floats:
        """The instances' rows."""
        return self.problem.instances.cells[self.instance]

    @cached_property
    def system(self) -> System:
        """The constraints without limits on the number of changes, which undoing works towards."""
        system = self.problem.system
        limits = [c for c in system.constraints if isinstance(c, ChangeLimit)]
        return system.without(limits) if limits else system

    def score(self, cells: Floats, line: Ints) -> Floats:
        """How sure the student is of the target, (rows,); from 0.5 on it predicts it.

        That is its probability against the next label; for any other label, of the likeliest
        against the instance's own.
        """
        fitted, known, rows = self.problem.fitted, self.problem.instances, np.arange(len(cells))
        assert fitted.student is not None
        found = fitted.student.guess(self.problem.schema, cells)
        if fitted.surrogates is not None and np.isnan(fitted.surrogates.margin):
            # Of labels alone a student learns where they end; surrogates tell how far that is.
            found = (found + fitted.surrogates.guess(self.problem.schema, cells)) / 2
        target, original = (
            codes[self.instance[line]] for codes in (known.target_code, known.label_code)
        )
        label = np.where(target < 0, original, target)
        own = found[rows, label]
        found[rows, label] = -1.0
        share = own / np.maximum(own + found.max(axis=1), 1e-12)
        return np.asarray(np.where(target < 0, 1.0 - share, share))

    def distance(self, cells: Floats, line: Ints) -> Floats:
        """How far rows are from their instances."""
        gaps = self.problem.schema.gaps(self.originals[line], cells)
        distance: Floats = gaps @ self.problem.weights
        return distance

    # -- proposals --------------------------------------------------------------------------------

    def propose(
        self,
        level: Floats,
        starts: Proposals,
        lines: Ints,
        *,
        width: int = WIDTH,
        here: Proposals | None = None,
    ) -> Proposals:
        """Minimal rows that score at least `level`, closest first.

        Args:
            level: The score required, one for each line of the chunk.
            starts: Rows to start from, beside those of the beam search.
            lines: The lines to propose for.
            width: Rows the beam search keeps for each line.
            here: Rows whose changes are to be exchanged, one of a line.
        """
        found = self.joined(
            [self._beam(level, lines, width), starts.take(np.isin(starts.line, lines))]
        )

        found = self._made_minimal(found, level)
        more = found if here is None else self.joined([found, here])
        return self.joined([found, self.exchanged(more, level)])

    def _made_minimal(self, found: Proposals, level: Floats) -> Proposals:
        """Rows that score enough, made minimal; those that satisfy every constraint."""

        def accept(cells: Floats, at: Ints) -> tuple[Floats, Bools]:
            line = found.line[at]
            cells, ok = self._checked(cells, line, self.system)
            ok[ok] = self.score(cells[ok], line[ok]) >= level[line[ok]]
            return cells, ok

        _, ok = accept(found.cells, np.arange(len(found.line)))
        found = found.take(ok)
        cells = minimise(
            found.cells,
            self.originals[found.line],
            accept,
            self.problem.schema,
            self.problem.weights,
            free=True,
        )
        cells, feasible = self._checked(cells, found.line, self.problem.system)
        return self.joined([self._of(cells[feasible], found.line[feasible])])

    def exchanged(self, rows: Proposals, level: Floats) -> Proposals:
        """Closer rows than the closest of each line, minimal: changes exchanged for cheaper ones.

        Args:
            rows: Rows that satisfy the constraints, closest first within each line.
            level: The score required, one for each line of the chunk.
        """
        parts, rows = [], closest(rows, EXCHANGED)
        for _ in range(EXCHANGES):
            if not len(rows.line):
                break
            tried = self._exchanges(rows)
            score = self.score(tried.cells, tried.line)
            enough = np.flatnonzero(score >= level[tried.line])
            enough = enough[self._one_of_each(tried.take(enough), score[enough])]
            tried = _first(tried, enough, -score, EXCHANGED)
            rows = self._made_minimal(tried, level)
            parts.append(rows)
        return self.joined(parts)

    def _exchanges(self, rows: Proposals) -> Proposals:
        """Rows with one change taken back, in part or whole, and one number moved on instead."""
        schema, weights = self.problem.schema, self.problem.weights
        costs = schema.gaps(self.originals[rows.line], rows.cells) * weights  # (rows, d)
        costs[np.argsort(np.argsort(-costs, axis=1), axis=1) >= TAKEN_BACK] = 0.0
        at, column, back, room = (
            np.concatenate(same)
            for same in zip(
                *(self._room(rows, costs, back, less) for back in BACK for less in LESS),
                strict=True,
            )
        )
        cells, original = rows.cells[at], self.originals[rows.line[at]]
        every = np.arange(len(at))
        kept = cells.copy()
        kept[every, column] -= back * (cells - original)[every, column]
        kept = self._in_place(kept)[every, column]
        cells[every, column] = np.where(back == 1.0, original[every, column], kept)
        tried = self.joined([self._moved_on(cells, original, rows.line[at], column, room)])
        cells, feasible = self._checked(tried.cells, tried.line, self.problem.system)
        return self._of(cells[feasible], tried.line[feasible])

    def _room(
        self, rows: Proposals, costs: Floats, back: float, less: float
    ) -> tuple[Ints, Ints, Floats, Floats]:
        """Changes that leave room for another where a share of them is taken back.

        Args:
            rows: The rows.
            costs: Of their changes.
            back: The share that is taken back of a number; a category's is taken back whole.
            less: The share of the distance that is left.

        Returns:
            The row and the column of each change, the share taken back, and the room it leaves.
        """
        at, column = np.nonzero(costs > (1 - less) * rows.distance[:, None] / back)
        share = np.where(self._numbers[column], back, 1.0)
        return at, column, share, share * costs[at, column] - (1 - less) * rows.distance[at]

    def _moved_on(
        self, cells: Floats, original: Floats, line: Ints, taken: Ints, room: Floats
    ) -> Proposals:
        """Rows with each number in turn, but the one taken back, moved away from the instance."""
        columns = self._moving
        spans = np.array([self.problem.schema.features[j].span for j in columns])
        move = room[:, None] / self.problem.weights[columns] * spans
        change = (cells - original)[:, columns]
        found, lines = [cells[:0]], [line[:0]]
        for sign in (-1.0, 1.0):
            moved = cells.copy()
            moved[:, columns] += sign * move
            moved = self._in_place(moved)
            fits = (taken[:, None] != columns) & (room > 0)[:, None] & (sign * change >= 0)
            at, k = np.nonzero(fits)
            some, every = cells[at], np.arange(len(at))
            some[every, columns[k]] = moved[at, columns[k]]
            found.append(some)
            lines.append(line[at])
        rows, owner = np.concatenate(found), np.concatenate(lines)
        if len(self.problem.system):
            allowed = self._allowed(rows, owner) | ~self.problem.schema.changed(
                self.originals[owner], rows
            )
            rows, owner = rows[allowed.all(axis=1)], owner[allowed.all(axis=1)]
        return self._of(rows, owner)

    @cached_property
    def _numbers(self) -> Bools:
        return np.array([feature.numeric for feature in self.problem.schema.features])

    def _in_place(self, cells: Floats) -> Floats:
        """Numbers moved into their bounds and onto their lattice, never an unseen level."""
        features = self.problem.schema.features
        low = np.array([f.lower if f.numeric else -np.inf for f in features])
        high = np.array([f.upper if f.numeric else np.inf for f in features])
        return self.problem.schema.snap(np.clip(cells, low, high))

    @cached_property
    def _moving(self) -> Ints:
        """Numbers that others are exchanged for; of many those that move the student most."""
        schema, fitted = self.problem.schema, self.problem.fitted
        free = np.array([f.numeric and f.derived is None for f in schema.features])
        numbers = np.flatnonzero(free & (self.problem.weights > 0))
        rows = fitted.sampled_endpoints.cells[:TRIED]
        if len(numbers) <= MOVING or not len(rows):
            return numbers
        assert fitted.student is not None
        before, effect = fitted.student.guess(schema, rows), []
        for j in numbers:
            other = rows.copy()
            other[:, j] = np.roll(rows[:, j], 1)
            effect.append(np.abs(fitted.student.guess(schema, other) - before).sum())
        return np.sort(numbers[np.argsort(-np.array(effect), kind="stable")[:MOVING]])

    def _checked(self, cells: Floats, line: Ints, system: System) -> tuple[Floats, Bools]:
        """Rows with their derived columns computed, and whether the constraints hold.

        What differs by less than a column's tolerance is no change: it is taken back.
        """
        schema, originals = self.problem.schema, self.originals[line]
        cells = np.where(schema.changed(originals, cells), cells, originals)
        cells = schema.derive(cells, originals)
        return cells, system.feasible(cells, originals) & schema.derivable(cells, originals)

    def samples(self) -> Proposals:
        """The sampled rows of the target nearest to each instance, within simple constraints."""
        problem, known = self.problem, self.problem.instances
        sampled = problem.fitted.sampled_endpoints
        codes = np.c_[known.label_code[self.instance], known.target_code[self.instance]]
        pairs, group = np.unique(codes, axis=0, return_inverse=True)
        parts = []
        for k in range(len(pairs)):  # instances with the same label and target share their rows
            members = np.flatnonzero(group.ravel() == k)
            rows = np.flatnonzero(problem.wants(self.instance[members[:1]], sampled.label)[0])
            if not len(rows):
                continue
            _, index = kneighbors(
                problem.schema,
                self.originals[members],
                sampled.cells[rows],
                SAMPLES,
                weights=problem.weights,
            )
            line = np.repeat(members, index.shape[1])
            parts.append(self._of(self._clipped(sampled.cells[rows[index.ravel()]], line), line))
        return self.joined(parts)

    def at_random(self, level: Floats, lines: Ints) -> Proposals:
        """Random rows that score enough, made minimal: more sets of features than a beam tries."""
        return self._made_minimal(self.pool(lines), level)

    def pool(self, lines: Ints, parents: Floats | None = None) -> Proposals:
        """Random rows near the instances, those the student is surest of first.

        Each has cells of a sampled row, as many as may change. Of rows that change the same
        features one is proposed.

        Args:
            lines: The lines, in order.
            parents: Rows to vary, one of each line: one cell of a sampled row each, and every
                other one with one of the parent's changes undone.
        """
        schema, sampled = self.problem.schema, self.problem.fitted.sampled_endpoints
        if not len(sampled.cells):
            return self.joined([])
        rng, size = np.random.default_rng(0), self.originals.shape[1]
        donors = sampled.cells[rng.integers(len(sampled.cells), size=POOL)]
        most = self._most_changes if parents is None else 1
        order = rng.random((POOL, size)).argsort(axis=1).argsort(axis=1)
        taken = order < rng.integers(1, most + 1, size=POOL)[:, None]
        rank = rng.random((POOL, size))
        parts = []
        for k, line in enumerate(lines.tolist()):
            original, owner = self.originals[line], np.full(POOL, line)
            base = np.tile(original if parents is None else parents[k], (POOL, 1))
            if parents is not None:
                changed = schema.changed(original, parents[k])
                undone = np.where(changed, rank, -1.0).argmax(axis=1)
                every = np.arange(0, POOL, 2)
                base[every, undone[every]] = original[undone[every]]
            fits = taken & ~np.isnan(donors) & ~np.isnan(original) & schema.counted
            fits &= self._allowed(donors, owner) if len(self.problem.system) else True
            cells, ok = self._checked(np.where(fits, donors, base), owner, self.problem.system)
            rows = self._of(cells[ok], owner[ok])
            score = self.score(rows.cells, rows.line)
            one = self._one_of_each(rows, score)
            parts.append(_first(rows, one, -score, POOLED))
        return Proposals(*(np.concatenate(same) for same in zip(*parts, strict=True)))

    def _clipped(self, cells: Floats, line: Ints) -> Floats:
        """Rows with the instance's value where the constraints on a column exclude another."""
        if not len(self.problem.system):
            return cells
        keeps = ~self._allowed(cells, line)
        return np.where(keeps, self.originals[line], cells)

    def _allowed(self, cells: Floats, line: Ints) -> Bools:
        """Cells that the constraints on their column alone allow."""
        domains = self._domains
        allowed: Bools = (
            (cells >= domains.lower[line]) & (cells <= domains.upper[line])
        ) & ~domains.pinned[line]
        for column, levels in domains.allowed.items():
            codes = np.nan_to_num(cells[:, column]).astype(np.int64)
            allowed[:, column] = levels[line, codes] & ~domains.pinned[line, column]
        return allowed

    @cached_property
    def _domains(self) -> Domains:
        return self.problem.system.domains(self.originals)

    def _of(self, cells: Floats, line: Ints) -> Proposals:
        return Proposals(cells, line, self.distance(cells, line))

    def joined(self, parts: list[Proposals]) -> Proposals:
        """All rows of all parts, each once, closest first within each line."""
        none = self._of(self.originals[:0], np.empty(0, dtype=np.int64))
        whole = Proposals(*(np.concatenate(same) for same in zip(none, *parts, strict=True)))
        once, _ = distinct(np.c_[whole.line, whole.cells])
        whole = whole.take(np.sort(once))
        return whole.take(np.lexsort((whole.distance, whole.line)))

    # -- beam search ------------------------------------------------------------------------------

    @cached_property
    def _moves(self) -> Moves:
        """Each category, and numbers all over their range: the same for every line."""
        columns, values = [], []
        for i, feature in enumerate(self.problem.schema.features):
            if feature.derived is not None:
                continue
            if feature.numeric and feature.knots is not None:
                scores = np.r_[-EXTREME, np.linspace(-SCORES, SCORES, VALUES), EXTREME]
                some = np.unique(feature.snap(feature.knots.units(scores)))
            else:
                some = np.arange(len(feature.categories), dtype=np.float64)
            columns.append(np.full(len(some), i))
            values.append(some)
        return Moves(np.concatenate(columns), np.concatenate(values)[None])

    def _moves_within(self, budget: Floats, lines: Ints) -> Moves:
        """Each category, and numbers moved either way by parts of a distance."""
        features, weights = self.problem.schema.features, self.problem.weights
        columns, values = [], []
        for i, feature in enumerate(features):
            if feature.derived is not None:
                continue
            if feature.numeric:
                reach = (budget / max(weights[i], 1e-3) * feature.span)[:, None] * PARTS
                some = _placed(feature, self.originals[lines, i][:, None] + np.c_[-reach, reach])
            else:
                codes = np.arange(len(feature.categories), dtype=np.float64)
                some = np.tile(codes, (len(lines), 1))
            columns.append(np.full(some.shape[1], i))
            values.append(some)
        return Moves(np.concatenate(columns), np.concatenate(values, axis=1))

    def _beam(self, level: Floats, lines: Ints, width: int) -> Proposals:
        """Rows that score enough, found by changing one feature after another."""
        parts = []
        for part in batches(len(lines), CELLS, len(self._moves.column) * self.originals.shape[1]):
            for scored in self._widen(lines[part], self._moves, width, level):
                rows = scored.rows
                hits = np.flatnonzero(scored.feasible & (scored.score >= level[rows.line]))
                parts.append(_first(rows, hits, rows.distance, HITS))
        return self.joined(parts)

    def within(self, budget: Floats, least: Floats, lines: Ints) -> Proposals:
        """Rows closer than a distance, those of the highest score first.

        Of rows that change the same features only one is proposed.

        Args:
            budget: The distance, one for each of `lines`.
            least: The score required, the same.
            lines: The lines to propose for, in order.
        """
        found, scores = [], []
        most = np.full(len(self.originals), -np.inf)
        most[lines] = budget
        level = np.full(len(self.originals), np.inf)
        level[lines] = least
        size = 2 * len(PARTS) * self.originals.shape[1] ** 2
        for part in batches(len(lines), CELLS, size):
            moves = self._moves_within(budget[part], lines[part])
            for scored in self._widen(lines[part], moves, WIDTH, None, most):
                keep = np.flatnonzero(scored.feasible & (scored.score >= level[scored.rows.line]))
                keep = keep[self._one_of_each(scored.rows.take(keep), scored.score[keep])]
                order = np.lexsort((-scored.score[keep], scored.rows.line[keep]))
                kept = keep[order][places_in_groups(scored.rows.line[keep][order]) < FEW]
                found.append(scored.rows.take(kept))
                scores.append(scored.score[kept])
        if not found:
            return self.joined([])
        whole = Proposals(*(np.concatenate(same) for same in zip(*found, strict=True)))
        score = np.concatenate(scores)
        return whole.take(np.lexsort((-score, whole.line)))

    def _one_of_each(self, rows: Proposals, score: Floats) -> Ints:
        """Of rows of a line that change the same features the one of the highest score."""
        changed = self.problem.schema.changed(self.originals[rows.line], rows.cells)
        _, group = distinct(np.c_[rows.line, changed].astype(np.float64))
        return first_of_each(group, -score)

    def _widen(
        self,
        lines: Ints,
        moves: Moves,
        width: int,
        level: Floats | None,
        most: Floats | None = None,
    ) -> Iterator[_Scored]:
        """Changes one feature after another, keeping the best rows of each line.

        Args:
            lines: The lines, in order.
            moves: The changes of one feature, of each line or of all.
            width: Rows kept for each line.
            level: Rows that score as much need no further change.
            most: The largest distance of each line; without it distance counts against a row.

        Yields:
            Of each number of changes all rows, scored.
        """
        column = moves.column
        value = np.broadcast_to(moves.value, (len(lines), len(column)))
        rows, line = self.originals[lines], lines
        candidates = np.tile(np.arange(len(column)), (len(lines), 1))  # (rows, moves)
        further = candidates
        for depth in range(self._most_changes):
            at = np.searchsorted(lines, line)
            beam, move = np.repeat(np.arange(len(rows)), candidates.shape[1]), candidates.ravel()
            cells, owner, set_to = rows[beam], line[beam], value[at[beam], move]
            every = np.arange(len(cells))
            original = self.originals[owner, column[move]]
            # Only a column that is still the instance's is changed, and missing ones stay.
            new = (cells[every, column[move]] == original) & (np.abs(set_to - original) > 0)
            cells[every, column[move]] = set_to
            if len(self.problem.system):
                allowed = self._allowed(cells[new], owner[new])
                new[new] = allowed[np.arange(len(allowed)), column[move[new]]]
            found = self._of(cells[new], owner[new])
            move = move[new]
            if most is not None:
                near = found.distance <= most[found.line]
                found, move = found.take(near), move[near]
            if not len(found.line):
                break
            cells, feasible = self._checked(found.cells, found.line, self.system)
            found = found._replace(cells=cells)
            score = self.score(cells, found.line)
            yield _Scored(found, score, feasible)
            worth = score - (COST * found.distance if most is None else 0.0)
            if level is not None:
                worth[score >= level[found.line]] = -np.inf
            if depth == 0:
                order = np.lexsort((-worth, found.line))
                rank = places_in_groups(found.line[order])
                kept = order[rank < FURTHER]
                further = np.zeros((len(lines), FURTHER), dtype=np.int64)
                further[np.searchsorted(lines, found.line[kept]), rank[rank < FURTHER]] = move[kept]
            best = _first(found, np.flatnonzero(np.isfinite(worth)), -worth, width)
            rows, line = best.cells, best.line
            candidates = further[np.searchsorted(lines, line)]

    @cached_property
    def _most_changes(self) -> int:
        """The largest number of changes that the constraints allow, roughly."""
        limits = [
            c.count
            for c in self.problem.system.constraints
            if isinstance(c, ChangeLimit) and c.relation in ("<=", "<", "==")
        ]
        return max(1, min([*limits, DEPTH]))


def _placed(feature: Feature, values: Floats) -> Floats:
    """Values of a column moved into its bounds and onto its lattice, never an unseen level."""
    return feature.snap(np.clip(values, feature.lower, feature.upper))


def _first(rows: Proposals, some: Ints, key: Floats, most: int) -> Proposals:
    """Of some rows, for each line the first few by a key."""
    order = some[np.lexsort((key[some], rows.line[some]))]
    return rows.take(order[places_in_groups(rows.line[order]) < most])


def closest(proposals: Proposals, most: int) -> Proposals:
    """The first few rows of each line."""
    return proposals.take(places_in_groups(proposals.line) < most)
