"""What `nearest` and `best` promise, measured by checks that take nothing from the search.

Not of the paper. On every pair of the plan, and on public tables that no default was chosen on:
can a change of `nearest` be taken back alone; does an added constraint bring a closer answer; how
do `nearest` and `best` compare with other methods and with the simplest one there is; do they
survive retraining; and how many rows are asked. Rows are judged by `BaselineProblem.evaluate`: it
asks the classifier about exactly these rows and checks every constraint.

    python -m benchmarks --experiment advice

| metric | about |
|---|---|
| `minimal`, `undone`, `back`, `changes` | `nearest`, with label `free`, and with `added` |
| `differs_alone` | `nearest` of an instance that is explained alone |
| `closer`, `closer_5`, `farther`, `not_ok` | `nearest` under one added constraint |
| `distance`, `range_distance`, `changes`, `lof`, `lof_50`, `lof_95` | every method |
| `paired_distance`, `paired_changes`, `paired_lof` | two methods where both have an answer |
| `survives`, `estimated`, `brier` | retrained classifiers that keep the label |
| `queries` | rows asked per instance, for several settings of the search |
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks import baselines
from benchmarks.baselines.problem import BaselineProblem, TrainingIndex
from benchmarks.figures import Figures, grid, made, pairs_of
from benchmarks.jobs import Measure
from benchmarks.judging import (
    Target,
    Value,
    at_least,
    at_most,
    figure_of,
    targets_table,
    top,
)
from benchmarks.plan import AdviceSize, Job, Plan
from benchmarks.tables import load, retrained
from lapace import Explainer, InputError, Search, metrics
from lapace.arrays import Bools, Floats, Ints, first_of_each
from lapace.datasets import Dataset
from lapace.errors import CentroidWarning
from lapace.result import Counterfactuals, Explanation
from lapace.schema import Schema

__all__ = ["added", "measure", "minimality", "page", "simplest"]

FORMS = ("bound", "direction", "fixed", "set", "changes", "relation")
BACK = 1 / 20  # of a number's change
HALVINGS = 8  # of a number's change, in `simplest`
STARTS = 10  # of `simplest`
ALONE = 4  # instances that are also explained alone
SAME = 1e-9  # distances this close are the same
PAIRED = (("nearest", "NNCE"), ("nearest", "simplest"), ("best(1)", "RobXCE"))
SEARCHES = {
    "paths": Search(picks=("first", "middle", "last")),
    "nearest": Search(picks=("nearest",)),
    "default": Search(),
    "few": Search(steps=5, n_starts=3),
}


# ------------------------------------------------------------------------------------------------
# Checks


def _derived(schema: Schema) -> Bools:
    """Returns which columns follow from others."""
    return np.array([f.derived is not None for f in schema.features])


def _differing(a: Floats, b: Floats) -> Bools:
    """Returns where cells are not the same value."""
    different: Bools = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    return different


class Minimality(NamedTuple):
    """The changes of each row that can be taken back, one at a time.

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


def minimality(problem: BaselineProblem, cells: Floats, instance: Ints) -> Minimality:
    """Tries to take back every change of every row alone."""
    originals = problem.cells[instance]
    changed = _differing(cells, originals) & ~_derived(problem.schema)
    row, column = np.nonzero(changed)
    undone = _with(problem, cells, instance, row, column, originals[row, column])[1]
    moved, place, value = _steps_back(problem.schema, cells, originals)
    back = _with(problem, cells, instance, moved, place, value)[1]
    counts = [np.bincount(k, minlength=len(cells)) for k in (row[undone], moved[back])]
    return Minimality(*counts, changed.sum(axis=1))


def _with(
    problem: BaselineProblem, cells: Floats, instance: Ints, row: Ints, column: Ints, value: Floats
) -> tuple[Floats, Bools]:
    """Returns rows with one cell of each replaced, and whether they are ok."""
    changed = cells[row]
    changed[np.arange(len(row)), column] = value
    found = problem.evaluate(changed, instance[row])
    return found.cells, found.ok


def _steps_back(schema: Schema, cells: Floats, originals: Floats) -> tuple[Ints, Ints, Floats]:
    """Returns where numbers go when they go back by a twentieth: rows, columns, values."""
    found = [(np.zeros(0, int), np.zeros(0, int), np.zeros(0))]
    for i, feature in enumerate(schema.features):
        if not feature.numeric or feature.derived is not None:
            continue
        old, new = originals[:, i], cells[:, i]
        change = new - old
        placed = (change != 0) & ~np.isnan(change)
        if feature.categories:  # an unseen level has no place in the order
            placed &= (old < len(feature.categories)) & (new < len(feature.categories))
        step = feature.step
        value = new - np.sign(change) * np.maximum(np.abs(change) * BACK, step)
        value = np.where(placed, feature.snap(np.nan_to_num(value)), np.nan)
        # A change within the column's tolerance is none: such a row would be undone instead.
        least = max(1e-9 * step, feature.tolerance * (1 + 1e-9))
        between = np.sign(change) * (value - old) > least
        nearer = np.sign(change) * (new - value) > step / 2
        inside = (value >= feature.lower) & (value <= feature.upper)
        row = np.flatnonzero(placed & between & nearer & inside)
        found.append((row, np.full(len(row), i), value[row]))
    row, column, value = (np.concatenate(part) for part in zip(*found, strict=True))
    return row, column, value


def added(
    schema: Schema, rows: Floats, instance: Floats, rng: np.random.Generator, form: str
) -> str | None:
    """Draws a constraint of a form for one instance, its constants from training rows.

    Args:
        schema: The columns.
        rows: Training rows.
        instance: Cells of the instance.
        rng: Of all that is drawn.
        form: One of `FORMS`.

    Returns:
        The constraint; None where the table has no columns for it.
    """
    free = ~np.isnan(instance) & ~_derived(schema)
    numbers = [i for i, f in enumerate(schema.features) if free[i] and f.kind == "continuous"]
    several = [i for i, f in enumerate(schema.features) if free[i] and len(f.categories) > 2]
    if form == "changes":
        return f"changes <= {rng.integers(1, 7)}"
    if form == "fixed" and free.any():
        return f"fixed `{schema.names[int(rng.choice(np.flatnonzero(free)))]}`"
    if form == "set" and several:
        i = int(rng.choice(several))
        levels = schema.features[i].categories
        some = rng.choice(len(levels), len(levels) // 2 + 1, replace=False)
        texts = (f'"{levels[k]}"' if isinstance(levels[k], str) else f"{levels[k]}" for k in some)
        return f"`{schema.names[i]}` in {{{', '.join(texts)}}}"
    if form == "relation" and len(numbers) > 1:
        i, j = rng.choice(numbers, 2, replace=False).tolist()
        slope = float(f"{schema.features[i].span / schema.features[j].span:.2g}")
        over = rows[:, i] - slope * rows[:, j]
        constant = float(f"{np.nanquantile(over, rng.uniform(0.5, 0.95)):.4g}")
        sign = "-" if constant < 0 else "+"
        other = f"{slope:.12g}*`{schema.names[j]}`"
        return f"`{schema.names[i]}` <= {other} {sign} {abs(constant):.12g}"
    if form in ("bound", "direction") and numbers:
        i, sign = int(rng.choice(numbers)), ("<=", ">=")[rng.integers(2)]
        if form == "direction":
            return f"`{schema.names[i]}` {sign} original"
        value = schema.features[i].snap(np.nanquantile(rows[:, i], rng.uniform(0.1, 0.9)))
        return f"`{schema.names[i]}` {sign} {float(value):.12g}"
    return None


def simplest(problem: BaselineProblem) -> tuple[Counterfactuals, int]:
    """The simplest method: the closest of a few real rows of the target, each made minimal.

    Each change of the closest rows is undone where that keeps the row ok, the costliest first; then
    each number is moved back as far as bisection finds it can be.

    Returns:
        One row per instance that has one, and how many rows were asked about.
    """
    cells, instance = [np.zeros((0, problem.cells.shape[1]))], [np.zeros(0, int)]
    for group, rows, _, near in problem.nearest(STARTS):
        cells.append(rows[near.ravel()])
        instance.append(np.repeat(group, near.shape[1]))
    found, owner, schema = np.concatenate(cells), np.concatenate(instance), problem.schema
    originals, every, asked = problem.cells[owner], np.arange(len(found)), 0
    found = schema.derive(found, originals)
    numeric = np.array([f.numeric for f in schema.features])

    def tried(row: Ints, column: Ints, value: Floats) -> Bools:
        nonlocal asked
        changed, ok = _with(problem, found, owner, row, column, value)
        found[row[ok]], asked = changed[ok], asked + len(row)
        return ok

    costliest = np.argsort(-schema.gaps(found, originals), axis=1, kind="stable")
    free = ~_derived(schema)
    for column in costliest.T:
        own = _differing(found, originals)[every, column] & free[column]
        tried(every[own], column[own], originals[every, column][own])
    for column in costliest.T:
        goal, here = originals[every, column], found[every, column]
        own = _differing(found, originals)[every, column] & free[column] & numeric[column]
        own &= ~np.isnan(goal + here)
        row, place, low = every[own], column[own], goal[own]
        for _ in range(HALVINGS):  # between what is not ok and what is
            middle = (low + found[row, place]) / 2
            for i in np.unique(place):
                middle[place == i] = schema.features[i].snap(middle[place == i])
            apart = (middle != low) & (middle != found[row, place])
            row, place, low, middle = (x[apart] for x in (row, place, low, middle))
            low = np.where(tried(row, place, middle), low, middle)
    first = first_of_each(owner, schema.gaps(found, originals).sum(axis=1))
    return problem.accepted([(found[first], owner[first])]), asked


# ------------------------------------------------------------------------------------------------
# Measuring


@dataclass(frozen=True, eq=False)
class Case:
    """A data set, its classifier, an explainer of it, and the instances."""

    data: Dataset
    model: Any
    explainer: Explainer
    frame: Any
    training: TrainingIndex

    @classmethod
    def of(cls, job: Job, instances: int) -> Case:
        """Trains the classifier and fits the explainer."""
        data = load(job.pair, job.seed, job.protocol.rows)
        model = data.classifier(job.pair.classifier, random_state=job.seed)
        explainer = Explainer(model, schema=data.schema, random_state=job.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CentroidWarning)
            explainer.fit(data.train)
        other = np.asarray(model.predict(data.test)) != data.target
        frame = data.test[other].head(instances).reset_index(drop=True)
        return cls(data, model, explainer, frame, TrainingIndex.of(model, data.train, data.schema))

    def explain(
        self, frame: Any, constraints: Sequence[str] = (), search: Search | None = None
    ) -> Explanation:
        """Returns what the explainer finds under some constraints."""
        return self.explainer.explain(
            frame, target=self.data.target, constraints=constraints, search=search
        )

    def problem(self, frame: Any, constraints: Sequence[str] = ()) -> BaselineProblem:
        """Returns what rows are judged by."""
        fitted = type("Fitted", (), {"training_": self.training})
        return BaselineProblem.of(fitted, frame, self.data.target, constraints)


def measure(job: Job) -> Iterator[Measure]:
    """Yields all figures of one pair and seed."""
    assert isinstance(job.details, AdviceSize)
    case = Case.of(job, job.details.instances)
    if not len(case.frame):
        return
    yield from _minimal(case)
    yield from _added(case, job.details.added, np.random.default_rng([job.seed, 1]))
    free = case.explain(case.frame)
    yield from _beside(case, free, job.seed)
    yield from _survival(case, free, job)
    some = case.frame.head(job.details.counted)
    for name, search in SEARCHES.items():
        count = case.explain(some, search=search).n_queries / len(some)
        yield Measure("queries", count, len(some), method=name)


def _minimal(case: Case) -> Iterator[Measure]:
    """Yields the minimality of `nearest` under the rules; also of instances explained alone."""
    rules = tuple(case.data.rules)
    found = case.explain(case.frame, rules).nearest()
    ok = found.where(found.ok)
    result = minimality(case.problem(case.frame, rules), ok.cells, ok.instance)
    for metric, values in (
        ("minimal", result.minimal),
        ("undone", result.undone > 0),
        ("back", result.back > 0),
        ("changes", result.changes),
    ):
        yield Measure.of(metric, values, "free", "nearest")
    some = case.frame.head(ALONE)
    rows = case.explain(some, rules).nearest().cells
    alone = [case.explain(some.iloc[[i]], rules).nearest().cells for i in range(len(some))]
    differs = _differing(rows, np.concatenate(alone)).any(axis=1)
    yield Measure.of("differs_alone", differs, method="nearest")


def _added(case: Case, count: int, rng: np.random.Generator) -> Iterator[Measure]:
    """Yields how often a constraint brings a closer answer, for pairs of an instance and one."""
    rules = tuple(case.data.rules)
    free = case.explain(case.frame, rules).nearest()
    free = free.where(free.ok)
    train = case.data.schema.cells(case.data.train)
    gains, minimal, wrong, farther = [], [], [], []
    for k in range(count if len(free) else 0):
        at = int(rng.integers(len(free)))
        instance = int(free.instance[at])
        text = added(free.schema, train, free.instances[instance], rng, FORMS[k % len(FORMS)])
        if text is None:
            continue
        frame, texts = case.frame.iloc[[instance]], (*rules, text)
        try:
            limited = case.explain(frame, texts).nearest()
        except InputError:  # no row at all can satisfy it
            continue
        limited, problem = limited.where(limited.ok), case.problem(frame, texts)
        before = float(free.distance[at])
        after = float(limited.distance[0]) if len(limited) else math.inf
        if problem.evaluate(free.cells[[at]], np.zeros(1, int)).ok[0]:
            farther.append(after > before + SAME)  # the free answer obeys: it could be given again
        if len(limited):
            gains.append(1 - after / max(before, SAME) if after < before - SAME else 0.0)
            minimal.append(minimality(problem, limited.cells, limited.instance).minimal[0])
            wrong.append(not problem.evaluate(limited.cells, limited.instance).ok[0])
    gain = np.array(gains)
    for metric, values in (
        ("closer", gain > 0),
        ("closer_5", gain > 0.05),
        ("farther", farther),
        ("minimal", minimal),
        ("not_ok", wrong),
    ):
        yield Measure.of(metric, values, "added", "nearest")


def _beside(case: Case, free: Explanation, seed: int) -> Iterator[Measure]:
    """Yields our picks and other methods, on the same instances, without rules."""
    schema = case.data.schema
    train = schema.cells(case.data.train)
    target = np.asarray(case.model.predict(case.data.train)) == case.data.target
    usual = metrics.Plausibility(schema, train[target])
    held_out = schema.read(case.data.test).cells
    real = held_out[np.asarray(case.model.predict(case.data.test)) == case.data.target]
    yield from _lof(usual, real, "real rows")
    found = {"nearest": free.nearest(), "best(1)": free.best(1), "best(3)": free.best(3)}
    for name in ("NNCE", "RobXCE"):
        method = getattr(baselines, name)(case.model, schema=schema, random_state=seed)
        method.fit(case.data.train)
        found[name] = method.counterfactuals(case.frame, target=case.data.target)
    found["simplest"], asked = simplest(case.problem(case.frame))
    yield Measure("queries", asked / len(case.frame), len(case.frame), method="simplest")
    for name, rows in found.items():
        ok = rows.where(rows.ok)
        ranged = ok.schema.by_range().distance(ok.cells, ok.instances[ok.instance])
        yield Measure.of("distance", ok.distance, method=name)
        yield Measure.of("range_distance", ranged, method=name)
        yield Measure.of("changes", ok.changed, method=name)
        yield from _lof(usual, ok.cells, name)
    for one, other in PAIRED:
        sides = [_closest(found[name]) for name in (one, other)]
        both = np.intersect1d(*(side.instance for side in sides))
        for name, side in zip((one, other), sides, strict=True):
            own = side.where(np.isin(side.instance, both))
            label = f"{one} and {other}"
            yield Measure.of("paired_distance", own.distance, label, name)
            yield Measure.of("paired_changes", own.changed, label, name)
            yield Measure.of("paired_lof", usual.lof(own.cells), label, name)


def _lof(usual: metrics.Plausibility, cells: Floats, method: str) -> Iterator[Measure]:
    lof = usual.lof(cells)
    yield Measure.of("lof", lof, method=method)
    for share in (50, 95):
        value = float(np.percentile(lof, share)) if len(lof) else math.nan
        yield Measure(f"lof_{share}", value, len(lof), method=method)


def _closest(found: Counterfactuals) -> Counterfactuals:
    """Returns the closest ok row of each instance."""
    ok = found.where(found.ok)
    chosen = np.zeros(len(ok), dtype=bool)
    chosen[first_of_each(ok.instance, ok.distance)] = True
    return ok.where(chosen)


def _survival(case: Case, free: Explanation, job: Job) -> Iterator[Measure]:
    """Yields how many retrained classifiers keep the target, and the estimates of it."""
    assert isinstance(job.details, AdviceSize)
    kind, target = job.pair.classifier, case.data.target
    seeds = [100 * job.seed + k for k in range(job.details.models)]
    models = [retrained(case.data, kind, seed=seed) for seed in seeds]
    for method, found in (("nearest", free.nearest()), ("best(1)", free.best(1))):
        ok = found.where(found.ok)
        if not len(ok):
            continue
        frame = ok.schema.frame(ok.cells)
        votes = np.array([np.asarray(m.predict(frame)) == target for m in models], dtype=float)
        estimate = np.asarray(ok.about["survival"], dtype=float)
        yield Measure.of("survives", votes.mean(axis=0), method=method)
        yield Measure.of("estimated", estimate, method=method)
        yield Measure.of("brier", ((votes - estimate) ** 2).mean(axis=0), method=method)


# ------------------------------------------------------------------------------------------------
# The page


def _none(metric: str, label: str = "") -> Value:
    """None of the cases counted may have the property."""
    return at_most(figure_of("nearest", metric, label, spec="of"), 0.0)


def _closer(one: str, *others: str, metric: str = "paired_distance") -> Value:
    """One method has less than each of some others, where both have an answer."""

    def judge(figures: Figures, pair: str) -> tuple[float, str]:
        labels = {other: f"{one} and {other}" for other in others}
        each = [
            at_most(figure_of(one, metric, label), figure_of(other, metric, label))
            for other, label in labels.items()
        ]
        return top(min, *each)(figures, pair)

    return judge


LOF = figure_of("real rows", "lof_95", spec=".2")
TARGETS = (
    Target("a change of `nearest` can be undone alone", "none", _none("undone", "free")),
    Target("… a number can go back alone", "none", _none("back", "free")),
    Target("… another row when an instance is explained alone", "none", _none("differs_alone")),
    Target("an added constraint brings a closer answer", "none", _none("closer", "added")),
    Target("… closer by more than 5 %", "none", _none("closer_5", "added")),
    Target("… a farther one, or none, though the free answer obeys it", "none",
           _none("farther", "added")),
    Target("distance", "`nearest` closer than NNCE and the simplest method",
           _closer("nearest", "NNCE", "simplest")),
    Target("LOF", "`nearest` no worse than NNCE", _closer("nearest", "NNCE", metric="paired_lof")),
    Target("distance", "`best(1)` closer than RobXCE", _closer("best(1)", "RobXCE")),
    *(Target("LOF", f"{words} of `best(1)` at most 1.2 x real rows' 95th percentile",
             at_most(figure_of("best(1)", f"lof_{share}", spec=".2"), LOF, times=1 / 1.2))
      for words, share in (("the median", 50), ("the 95th percentile", 95))),
    Target("survives retraining", "`best(1)` at least 90 %",
           at_least(figure_of("best(1)", "survives", spec=".0p"), 0.9)),
)  # fmt: skip
METHODS = ("nearest", "best(1)", "best(3)", "NNCE", "simplest", "RobXCE", "real rows")
BESIDE = "{distance:~} / {range_distance:~} / {changes:~} / {lof:~}"
ABOUT = (
    "What `nearest` and `best` promise, by checks of their own, which ask the classifier and take "
    "nothing from the search. *Simplest*: the ten closest real rows of the target, each made "
    "minimal. Shown is the pair that is worst."
)


def page(plan: Plan, table: pd.DataFrame) -> list[str]:
    """Returns the page: the targets with the figures reached, then every pair."""
    figures, pairs = Figures(table), pairs_of(plan, table)

    def lines(templates: Mapping[str, str], method: str, label: str = "") -> list[Sequence[str]]:
        known = ((p, figures.line(p, "default", method, label)) for p in pairs)
        return [(p, *(t.format_map(line) for t in templates.values())) for p, line in known]

    minimal = {"minimal": "{minimal:of}", "a change can be undone": "{undone:of}",
               "a number can go back": "{back:of}", "changes": "{changes:~}"}  # fmt: skip
    limited = {"minimal": "{minimal:of}", "closer than the free answer": "{closer:of}",
               "by more than 5 %": "{closer_5:of}",
               "farther though the free answer obeys it": "{farther:of}"}  # fmt: skip
    survival = {"survives": "{survives:~}", "estimated": "{estimated:~}", "Brier": "{brier:~}"}
    beside = [
        (p, *(BESIDE.format_map(figures.line(p, "default", m)).replace("– / ", "")
              for m in METHODS))
        for p in pairs
    ]  # fmt: skip
    names = {"paths": "first, middle, last", "nearest": "`nearest` alone", "default": "by default",
             "few": "few", "simplest": "the simplest method"}  # fmt: skip
    asked = [(p, *(f"{figures.get(p, 'default', 'queries', m):~.1}" for m in names)) for p in pairs]
    return [
        "# How far the advice can be followed",
        f"{made(plan, table, 'advice')} {ABOUT}",
        targets_table(TARGETS, figures, pairs, len(plan.pairs)),
        "## Minimality of `nearest`",
        grid(("pair", *minimal), lines(minimal, "nearest", "free")),
        "## One added constraint",
        grid(("pair", *limited), lines(limited, "nearest", "added")),
        "## Beside other methods: distance / over range / changes / LOF",
        grid(("pair", *METHODS), beside),
        "## `best(1)` under retrained classifiers",
        grid(("pair", *survival), lines(survival, "best(1)")),
        "## Rows asked per instance",
        grid(("pair", *names.values()), asked),
    ]
