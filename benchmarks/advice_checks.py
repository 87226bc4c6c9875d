"""Checks of counterfactuals in a few lines of numpy, with nothing but the classifier itself.

Nothing here comes from the explainer: whether a row is ok is asked of the model, the rules are
checked by the constraint language, an added constraint by a function of its own, and distances are
computed anew (`benchmarks.advice_distances`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from benchmarks.advice_distances import Scale, derived, differing, distances, gaps
from lapace.arrays import Bools, Floats, Ints
from lapace.constraints import System
from lapace.schema import Schema

__all__ = [
    "Added",
    "Judge",
    "Minimality",
    "added",
    "minimality",
    "simplest",
]

BACK = 1 / 20  # of a number's change
HALVINGS = 8  # of a number's change, in `simplest`
FORMS = ("bound", "direction", "fixed", "set", "changes", "relation")


# ------------------------------------------------------------------------------------------------
# Constraints


class Added(NamedTuple):
    """A constraint: as text, and as a function of rows and of their instances."""

    form: str
    text: str
    holds: Callable[[Floats, Floats], Bools]


def added(
    schema: Schema, rows: Floats, instance: Floats, rng: np.random.Generator, form: str
) -> Added | None:
    """A random constraint of a form for one instance, its constants from training rows.

    Args:
        schema: The columns.
        rows: Training rows.
        instance: Cells of the instance.
        rng: Of all that is drawn.
        form: One of `FORMS`.

    Returns:
        The constraint; None where the table has no columns for it.
    """
    free = ~np.isnan(instance) & ~derived(schema)
    numbers = [i for i, f in enumerate(schema.features) if free[i] and f.kind == "continuous"]
    several = [i for i, f in enumerate(schema.features) if free[i] and len(f.categories) > 2]
    if form == "changes":
        most = int(rng.integers(1, 7))
        return Added(
            form, f"changes <= {most}", lambda a, b: schema.changed(b, a).sum(axis=1) <= most
        )
    if form == "fixed" and free.any():
        i = int(rng.choice(np.flatnonzero(free)))
        return Added(form, f"fixed {_name(schema, i)}", lambda a, b: ~differing(a[:, i], b[:, i]))
    if form == "set" and several:
        i = int(rng.choice(several))
        categories = schema.features[i].categories
        some = rng.choice(len(categories), len(categories) // 2 + 1, replace=False)
        listed = ", ".join(_level(categories[k]) for k in some)
        text = f"{_name(schema, i)} in {{{listed}}}"
        return Added(form, text, lambda a, _: np.isin(a[:, i], some))
    if form == "relation" and len(numbers) > 1:
        return _relation(schema, rows, *rng.choice(numbers, 2, replace=False).tolist(), rng)
    if form in ("bound", "direction") and numbers:
        i, up = int(rng.choice(numbers)), bool(rng.integers(2))
        name, slack = _name(schema, i), 1e-9 * schema.features[i].span
        sign, word = (1.0, ">=") if up else (-1.0, "<=")
        if form == "direction":
            text = f"{name} {word} original"
            return Added(form, text, lambda a, b: ~(sign * (a[:, i] - b[:, i]) < -slack))
        known = rows[:, i][~np.isnan(rows[:, i])]
        value = float(schema.features[i].snap(np.quantile(known, rng.uniform(0.1, 0.9))))
        text = f"{name} {word} {value:.12g}"
        # What is unknown is no violation: a cell that is missing may stay so.
        return Added(form, text, lambda a, _: ~(sign * (a[:, i] - value) < -slack))
    return None


def _relation(
    schema: Schema, rows: Floats, i: int, j: int, rng: np.random.Generator
) -> Added | None:
    """One number at most a multiple of another and a constant, as most training rows have it."""
    both = rows[~np.isnan(rows[:, [i, j]]).any(axis=1)]
    if not len(both):
        return None
    slope = float(f"{schema.features[i].span / schema.features[j].span:.2g}")
    over = both[:, i] - slope * both[:, j]
    constant = float(f"{np.quantile(over, rng.uniform(0.5, 0.95)):.4g}")
    sign = "-" if constant < 0 else "+"
    name, other = _name(schema, i), _name(schema, j)
    text = f"{name} <= {slope:.12g}*{other} {sign} {abs(constant):.12g}"
    slack = 1e-9 * (schema.features[i].span + abs(constant))
    return Added("relation", text, lambda a, _: ~(a[:, i] - slope * a[:, j] > constant + slack))


def _name(schema: Schema, i: int) -> str:
    return f"`{schema.names[i]}`"


def _level(level: Any) -> str:
    return f'"{level}"' if isinstance(level, str) else f"{level}"


# ------------------------------------------------------------------------------------------------
# Ok, or not


@dataclass(frozen=True, eq=False)
class Judge:
    """Whether rows are ok: asked of the model, rules and added constraints checked.

    Attributes:
        model: The classifier.
        target: The label wanted.
        schema: The columns, with levels only the instances have.
        rules: Constraints of the explainer, as text.
        extra: Constraints of the query.
        confidence: The least probability of the target.
    """

    model: Any
    target: Any
    schema: Schema
    rules: Sequence[str] = ()
    extra: Sequence[Added] = ()
    confidence: float | None = None
    asked: list[int] = field(default_factory=list)

    @cached_property
    def _system(self) -> System:
        return System.of(self.rules, self.schema, check=False)

    def valid(self, cells: Floats) -> Bools:
        """Whether the model says target."""
        if not len(cells):
            return np.zeros(0, dtype=bool)
        self.asked.append(len(cells))
        frame = self.schema.frame(cells)
        valid: Bools = np.asarray(self.model.predict(frame)) == self.target
        if self.confidence is not None:
            place = list(self.model.classes_).index(self.target)
            valid &= self.model.predict_proba(frame)[:, place] >= self.confidence
        return valid

    def feasible(self, cells: Floats, originals: Floats) -> Bools:
        """Whether every rule and added constraint holds."""
        feasible = self._system.feasible(cells, originals) & self._derivable(cells, originals)
        for constraint in self.extra:
            feasible &= constraint.holds(cells, originals)
        return feasible

    def _derivable(self, cells: Floats, originals: Floats) -> Bools:
        """Whether derived cells have a value their column may take, or the instance's own."""
        found = np.ones(len(cells), dtype=bool)
        for i in np.flatnonzero(derived(self.schema)):
            feature, new, old = self.schema.features[i], cells[:, i], originals[:, i]
            found &= ~np.isnan(new) | np.isnan(old)
            if feature.kind == "continuous":
                low, high = np.fmin(feature.lower, old), np.fmax(feature.upper, old)
                found &= ~((new < low - 1e-9 * feature.span) | (new > high + 1e-9 * feature.span))
        return found

    def ok(self, cells: Floats, originals: Floats) -> Bools:
        """Whether rows are feasible and valid; only feasible ones are asked about."""
        ok = self.feasible(cells, originals)
        ok[ok] = self.valid(cells[ok])
        return ok

    def completed(self, cells: Floats, originals: Floats) -> Floats:
        """Rows with the columns that follow from others computed anew."""
        return self.schema.derive(cells, originals)


# ------------------------------------------------------------------------------------------------
# Minimality


class Minimality(NamedTuple):
    """What could be taken back of each row, one change at a time.

    Attributes:
        undone: Changes that can be undone alone with the row staying ok.
        back: Numbers that can go back alone by a twentieth of their change, rounded to the column's
            resolution, or by one resolution if that is more.
        changes: Changes there are.
    """

    undone: Ints
    back: Ints
    changes: Ints

    @property
    def minimal(self) -> Bools:
        """Rows in which nothing can be taken back alone."""
        return (self.undone == 0) & (self.back == 0)


def minimality(judge: Judge, cells: Floats, originals: Floats) -> Minimality:
    """Tries to take back every change of every row alone.

    Examples:
        >>> schema = Schema.infer(np.linspace(0.0, 10.0, 41)[:, None] * [1.0, 1.0])
        >>> class Sum:
        ...     def predict(self, rows):
        ...         return rows.sum(axis=1) > 10
        >>> judge = Judge(Sum(), True, schema)
        >>> rows, instance = np.array([[8.0, 2.25], [10.0, 2.0]]), np.array([[0.0, 2.0]])
        >>> found = minimality(judge, rows, instance.repeat(2, axis=0))
        >>> found.undone.tolist(), found.back.tolist(), found.minimal.tolist()
        ([0, 0], [0, 1], [True, False])
    """
    open_ = differing(cells, originals) & ~derived(judge.schema)
    lines, columns = np.nonzero(open_)
    undone = _with(judge, cells, originals, lines, columns, originals[lines, columns])
    nearer, places, values = _steps_back(judge.schema, cells, originals)
    back = _with(judge, cells, originals, nearer, places, values)
    counts = [np.bincount(at, minlength=len(cells)) for at in (lines[undone], nearer[back])]
    return Minimality(*counts, open_.sum(axis=1))


def _with(
    judge: Judge, cells: Floats, originals: Floats, lines: Ints, columns: Ints, values: Floats
) -> Bools:
    """Whether rows stay ok with one cell of each replaced."""
    return judge.ok(_replaced(judge, cells, originals, lines, columns, values), originals[lines])


def _replaced(
    judge: Judge, cells: Floats, originals: Floats, lines: Ints, columns: Ints, values: Floats
) -> Floats:
    rows = cells[lines]
    rows[np.arange(len(lines)), columns] = values
    return judge.completed(rows, originals[lines])


def _steps_back(schema: Schema, cells: Floats, originals: Floats) -> tuple[Ints, Ints, Floats]:
    """Where numbers go when they go back by a twentieth: lines, columns, values."""
    lines, columns, values = [], [], []
    for i, feature in enumerate(schema.features):
        if not feature.numeric or derived(schema)[i]:
            continue
        old, new = originals[:, i], cells[:, i]
        change = new - old
        placed = (change != 0) & ~np.isnan(change)
        if feature.categories:  # a level nobody has seen has no place in the order
            placed &= (old < len(feature.categories)) & (new < len(feature.categories))
        step = feature.step
        size = np.maximum(np.abs(change) * BACK, step)
        value = new - np.sign(change) * size
        value = np.where(placed, feature.snap(np.nan_to_num(value)), np.nan)
        # A change within the column's tolerance is none: such a row would be undone instead.
        least = max(1e-9 * step, feature.tolerance * (1 + 1e-9))
        between = np.sign(change) * (value - old) > least
        moved = np.abs(new - value) > step / 2
        inside = (value >= feature.lower) & (value <= feature.upper)
        at = np.flatnonzero(
            placed & between & moved & inside & (np.sign(change) * (new - value) > 0)
        )
        lines.append(at)
        columns.append(np.full(len(at), i))
        values.append(value[at])
    if not lines:
        return np.zeros(0, int), np.zeros(0, int), np.zeros(0)
    return np.concatenate(lines), np.concatenate(columns), np.concatenate(values)


# ------------------------------------------------------------------------------------------------
# The simplest method


def simplest(
    judge: Judge, rows: Floats, instance: Floats, scale: Scale | None = None, starts: int = 10
) -> Floats:
    """The closest of what becomes of real rows of the target when changes are undone, (1, d).

    Of the closest rows each change is undone where that keeps the row ok, the costliest first;
    then each number is moved back as far as bisection finds it can be. (0, d) where no row is ok.

    Args:
        judge: Says what is ok, and counts the rows it asks about.
        rows: Training rows the classifier gives the target.
        instance: Cells of one instance.
        scale: Of the distance.
        starts: How many of the closest rows.

    Examples:
        >>> schema = Schema.infer(np.linspace(0.0, 10.0, 41)[:, None] * [1.0, 1.0])
        >>> class Sum:
        ...     def predict(self, rows):
        ...         return rows.sum(axis=1) > 10
        >>> judge = Judge(Sum(), True, schema)
        >>> simplest(judge, np.array([[9.0, 4.0], [10.0, 9.0]]), np.array([2.0, 2.0]))
        array([[8.25, 2.  ]])
    """
    order = np.argsort(distances(judge.schema, rows, instance[None], scale), kind="stable")
    found = rows[order[:starts]]
    originals = np.repeat(instance[None], len(found), axis=0)
    found = judge.completed(found, originals)
    kept = judge.feasible(found, originals)
    found, originals = found[kept], originals[kept]
    if not len(found):
        return found
    numeric = np.array([f.numeric for f in judge.schema.features])
    every = np.arange(len(found))

    def tried(lines: Ints, columns: Ints, values: Floats) -> Bools:
        if not len(lines):
            return np.zeros(0, dtype=bool)
        changed = _replaced(judge, found, originals, lines, columns, values)
        ok = judge.ok(changed, originals[lines])
        found[lines[ok]] = changed[ok]
        return ok

    costliest = np.argsort(-gaps(judge.schema, found, originals, scale), axis=1, kind="stable")
    for column in costliest.T:
        own = differing(found, originals)[every, column] & ~derived(judge.schema)[column]
        tried(every[own], column[own], originals[every, column][own])
    for column in costliest.T:
        goal = originals[every, column]
        own = numeric[column] & ~derived(judge.schema)[column]
        own &= differing(found, originals)[every, column]
        own &= ~np.isnan(goal) & ~np.isnan(found[every, column])
        lines, columns, low = every[own], column[own], goal[own]
        for _ in range(HALVINGS):  # between what is not ok and what is
            middle = (low + found[lines, columns]) / 2
            for i in np.unique(columns):
                middle[columns == i] = judge.schema.features[i].snap(middle[columns == i])
            open_ = (middle != low) & (middle != found[lines, columns])
            lines, columns, low, middle = (x[open_] for x in (lines, columns, low, middle))
            low = np.where(tried(lines, columns, middle), low, middle)
    return found[np.argmin(distances(judge.schema, found, originals, scale))][None]
