"""E3, actionability: do answers that obey constraints exist on a path?

Every instance gets constraints of their own, drawn from the data set's list. A path's points are made
to obey them, checked exactly, and the classifier is asked about them as they then are. *Easy*: the
constraints as listed. *Hard*: their ranges narrowed to the feature's 10–90 % quantiles among
training rows, and the instance's own values of three random features held fixed; three fixed values
may contradict a range, so not everybody can be helped there, and who provably cannot is counted.

FACE's points are overwritten by the nearest values that obey, found exactly: the most that
overwriting can do for a method that knows nothing of constraints.

| metric | what, with `easy` or `hard` as its label |
|---|---|
| `satisfied` | share of instances with a point that obeys everything and is valid |
| `satisfied_path` | share of paths with such a point: explainers walk several, FACE one |
| `feasible_points`, `valid_points` | share of all points but the instance's own row |
| `lof_before` | of valid points without constraints |
| `lof_after` | of points that are valid and obey |
| `seconds_before`, `seconds` | processor time per 100 instances, LAPACE one by one, without and with |
| `impossible` | share of instances for whom no row obeys, proved; their points are not counted |
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from benchmarks.costs import Cost, spending
from benchmarks.fits import Scene, fitted, scene
from benchmarks.plan import Job
from benchmarks.settings import Act
from benchmarks.store import Found, Measure
from lapace import metrics
from lapace.arrays import Bools, Floats
from lapace.constraints import System
from lapace.errors import InputError
from lapace.explainer import Explainer, Search

__all__ = ["METHODS", "drawn", "measure", "narrowed"]


SETTINGS = ("easy", "hard")
OURS = {"LAPACE-naive": "naive", "LAPACE-latent": "latent", "LAPACE-exact": "exact"}
THEIRS = {"FACE-Interpolate": False, "FACE-Greedy": True}  # greedy hops or a straight line
METHODS = (*THEIRS, *OURS)
DRAW_SEED = 3_000  # keeps the draw of constraints apart from everything else a seed decides
RANGE = re.compile(r"^\s*(-?[\d.]+)\s*<=\s*(.+?)\s*<=\s*(-?[\d.]+)\s*$")


def measure(job: Job, before: Sequence[Measure] = ()) -> Found:
    """All figures of one pair and seed.

    Args:
        job: The pair, the seed and the settings.
        before: Figures there are already, of methods that need not be run again.
    """
    ground = scene(job)
    done = {m.method for m in before}
    found, left = list(before), {}
    asked = {
        setting: _Asked.of(ground, drawn(job, ground, hard=setting == "hard"))
        for setting in SETTINGS
    }
    if not before:
        for setting, one in asked.items():
            share = float(np.mean(one.impossible))
            found.append(Measure("impossible", share, len(one.impossible), setting))
    ours = _Ours(job, ground)
    for name in METHODS:
        if name in done:
            continue
        try:
            if name in OURS:
                found += ours.measures(name, asked)
            else:
                found += _theirs(name, job, ground, asked)
        # One method's trouble, or one that is not there, must not cost the others.
        except Exception as error:
            said = str(error).splitlines()
            left[name] = f"{type(error).__name__}: {said[0] if said else ''}"
    return Found(found, left)


# ------------------------------------------------------------------------------------------------
# Whose constraints


def drawn(job: Job, ground: Scene, *, hard: bool) -> list[tuple[str, ...]]:
    """For every instance the constraints they ask for; the same draw for every method."""
    act = job.details
    assert isinstance(act, Act)
    texts = act.constraints[job.pair.data]
    names = ground.known.schema.names
    rng = np.random.default_rng([DRAW_SEED, job.seed])
    if hard:
        texts = tuple(narrowed(text, ground, act) for text in texts)
    found = []
    for _ in ground.instances:
        # Both settings draw both, so that an instance has the same constraints in each.
        chosen = rng.permutation(len(texts))[: act.count]
        held = rng.permutation(len(names))[: act.held]
        own = [f"`{names[k]}` == original" for k in held] if hard else []
        found.append((*(texts[k] for k in sorted(chosen)), *own))
    return found


def narrowed(text: str, ground: Scene, act: Act) -> str:
    """A range cut down to the feature's quantiles among training rows; anything else as it is."""
    match = RANGE.match(text)
    if match is None:
        return text
    name = match[2]
    column = ground.known.train[:, ground.known.schema.index(name.strip("`"))]
    # Values that occur, so that every bound is one a row can have.
    low, high = np.nanquantile(column, [act.low, act.high], method="nearest")
    return f"{low:g} <= {name} <= {high:g}"


@dataclass(frozen=True)
class _Asked:
    """Everybody's constraints, and for whom no row obeys them, proved."""

    texts: list[tuple[str, ...]]
    impossible: list[bool]

    @classmethod
    def of(cls, ground: Scene, texts: list[tuple[str, ...]]) -> _Asked:
        instances = zip(texts, ground.instances, strict=True)
        return cls(texts, [_contradictory(ground, own, instance) for own, instance in instances])


def _contradictory(ground: Scene, texts: Sequence[str], instance: Floats) -> bool:
    try:
        return bool(System.of(texts, ground.known.wide).contradiction(instance))
    except InputError:  # they contradict each other whoever asks
        return True


# ------------------------------------------------------------------------------------------------
# Points


@dataclass
class _Points:
    """Points of everybody's paths, as they are met.

    Attributes:
        valid: What the classifier said of each point.
        feasible: Whether each obeys its instance's constraints.
        answered: Per instance, whether one of the points is both.
        paths: Per path, the same.
        good: Rows that are both.
    """

    valid: list[Bools] = field(default_factory=list)
    feasible: list[Bools] = field(default_factory=list)
    answered: list[bool] = field(default_factory=list)
    paths: list[Bools] = field(default_factory=list)
    good: list[Floats] = field(default_factory=list)

    def add(self, cells: Floats, valid: Bools, feasible: Bools) -> None:
        """One instance's paths: (paths, points, d), and flags (paths, points)."""
        both: Bools = valid & feasible
        self.valid.append(valid.ravel())
        self.feasible.append(feasible.ravel())
        self.answered.append(bool(both.any()))
        self.paths.append(np.asarray(both.any(axis=1)))
        self.good.append(cells[both])

    def measures(self, name: str, setting: str, ground: Scene) -> Iterator[Measure]:
        """What they come to."""
        nothing = np.empty(0, dtype=bool)
        shares = {
            "satisfied": np.array(self.answered),
            "satisfied_path": np.concatenate([nothing, *self.paths]),
            "feasible_points": np.concatenate([nothing, *self.feasible]),
            "valid_points": np.concatenate([nothing, *self.valid]),
        }
        for metric, flags in shares.items():
            share = float(flags.mean()) if len(flags) else math.nan
            yield Measure(metric, share, len(flags), setting, name)
        none = np.empty((0, ground.instances.shape[1]))
        yield _lof("lof_after", np.concatenate([none, *self.good]), setting, name, ground)


def _lof(metric: str, rows: Floats, setting: str, name: str, ground: Scene) -> Measure:
    scores = ground.known.usual.lof(rows)
    spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else float("nan")
    return Measure(metric, metrics.typical(scores).mean, len(rows), setting, name, spread)


def _seconds(metric: str, spent: Cost, instances: int, setting: str, name: str) -> Measure:
    return Measure(metric, spent.processor * 100 / instances, instances, setting, name)


# ------------------------------------------------------------------------------------------------
# Methods


@dataclass(frozen=True, eq=False)
class _Ours:
    """The explainer of a job, and its paths where nobody asks for anything."""

    job: Job
    ground: Scene

    @cached_property
    def plain(self) -> tuple[Floats, Cost]:
        """Valid points without constraints, and what they cost."""
        instances, points = len(self.ground.instances), _Points()
        nobody = _Asked([()] * instances, [False] * instances)
        explainer = fitted(self.job).explainer
        with spending() as spent:
            _walk(explainer, self.job, self.ground, nobody, "exact", points)
        return np.concatenate(points.good), spent

    def measures(self, name: str, asked: Mapping[str, _Asked]) -> list[Measure]:
        """What one way of enforcing constraints comes to."""
        ground, instances, explainer = (
            self.ground,
            len(self.ground.instances),
            fitted(self.job).explainer,
        )
        rows, before = self.plain
        usual = _lof("lof_before", rows, "", name, ground)
        found: list[Measure] = []
        for setting, own in asked.items():
            points = _Points()
            with spending() as spent:
                _walk(explainer, self.job, ground, own, OURS[name], points)
            found += points.measures(name, setting, ground)
            found.append(replace(usual, label=setting))
            found.append(_seconds("seconds_before", before, instances, setting, name))
            found.append(_seconds("seconds", spent, instances, setting, name))
        return found


def _walk(
    explainer: Explainer,
    job: Job,
    ground: Scene,
    asked: _Asked,
    enforce: str,
    points: _Points,
) -> None:
    """One call an instance: constraints belong to a call, and everybody has their own."""
    grid = slice(1, job.protocol.steps + 1)  # not the instance's own row, which nothing is done to
    for number, texts in enumerate(asked.texts):
        if asked.impossible[number]:
            points.answered.append(False)
            continue
        frame = ground.known.wide.frame(ground.instances[number : number + 1])
        search = Search(steps=job.protocol.steps, enforce=cast(Any, enforce))
        answer = explainer.explain(frame, target=ground.target, constraints=texts, search=search)
        cells = answer.cells[:, grid]
        points.add(cells, answer.valid[:, grid] == 1, answer.feasible[:, grid])


def _theirs(name: str, job: Job, ground: Scene, asked: Mapping[str, _Asked]) -> list[Measure]:
    from lapace import baselines

    face = baselines.FACE(ground.given.model, schema=ground.known.schema, random_state=job.seed)
    face.fit(ground.given.data.train)
    instances, steps = len(ground.instances), job.protocol.steps
    with spending() as before:
        line = baselines.face_path(
            face, ground.frame, target=ground.target, steps=steps, greedy=THEIRS[name]
        )
    found: list[Measure] = []
    usual = _lof("lof_before", line.cells[line.valid], "", name, ground)
    for setting, own in asked.items():
        points = _Points()
        with spending() as spent:
            for number, texts in enumerate(own.texts):
                cells = line.cells[line.instance == number]
                if own.impossible[number] or not len(cells):  # or no path at all
                    points.answered.append(False)
                else:
                    _overwritten(ground, texts, cells, number, points)
        spent.processor += before.processor
        found += points.measures(name, setting, ground)
        found.append(replace(usual, label=setting))
        found.append(_seconds("seconds_before", before, instances, setting, name))
        found.append(_seconds("seconds", spent, instances, setting, name))
    return found


def _overwritten(
    ground: Scene, texts: Sequence[str], cells: Floats, number: int, points: _Points
) -> None:
    """One instance's path, overwritten to obey; points nothing could be done for stay as they are."""
    known, instance = ground.known, np.repeat(ground.instances[number][None], len(cells), axis=0)
    system = System.of(texts, known.wide)
    moved = system.project(cells, instance).cells
    valid = known.classifier.predict(moved, known.wide) == known.target
    points.add(moved[None], valid[None], system.feasible(moved, instance)[None])
