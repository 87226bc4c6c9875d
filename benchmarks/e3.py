"""E3, actionability: are there points on a path that satisfy constraints and are valid?

Every instance has its own constraints, drawn from the data set's list. The points of a path are
made to satisfy them, checked exactly, and the classifier is queried about the result. *Easy*: the
constraints as listed, which rarely bind. *Medium*: each range is one around the instance's own
value instead, so that the feature may change, but only a little; relations are as listed. How
little was set on splits with other seeds, so that FACE comes to about what the paper reports.
Constraints may contradict each other: instances for which provably no row satisfies them are
counted. In the medium setting η and N of the paper's correction and a tolerance are swept, on fewer
instances, with the first seed.

FACE has no constraints, so its points are overwritten: value by value, constraint after constraint,
as the paper seems to do, or (*projected*) by the nearest values that satisfy all of them, found
exactly, the most that overwriting can do. LAPACE-naive overwrites in the latter way.

| metric | what, with the setting as its label |
|---|---|
| `satisfied` | share of instances with a valid point that satisfies all constraints |
| `satisfied_path` | share of paths with such a point, of all paths: one path each |
| `feasible_points`, `valid_points` | share of all points but the instance itself |
| `lof_before` | of valid points without constraints |
| `lof_after` | of valid points that satisfy the constraints |
| `seconds_before`, `seconds` | processor time per 100 instances, without and with constraints |
| `infeasible` | share of instances for which no row satisfies them; they have no points |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias
from unittest.mock import patch

import numpy as np
import torch

from benchmarks import baselines
from benchmarks.baselines.face import face_path
from benchmarks.fits import Cost, Setup, fitted, setup_of, spent
from benchmarks.jobs import Measure
from benchmarks.plan import Actionability, Job
from lapace import InputError, Search
from lapace.arrays import Bools, Floats
from lapace.constraints import System
from lapace.explainer import correction
from lapace.result import Counterfactuals

__all__ = ["FACE", "LAPACE", "METHODS", "SETTINGS", "around", "drawn", "measure"]

# FACE: greedy hops or a straight line; projected exactly or overwritten one by one.
FACE = {
    "FACE-Interpolate": (False, False),
    "FACE-Greedy": (True, False),
    "FACE-Interpolate, projected": (False, True),
    "FACE-Greedy, projected": (True, True),
}
SETTINGS = ("easy", "medium")
LAPACE = {  # naive is the paper's name for what is the default here
    "LAPACE-naive": "exact",
    "LAPACE-latent": "latent",
    "LAPACE-exact": "exact",
}
METHODS = (*FACE, *LAPACE)
DRAW_SEED = 3_000  # keeps the draw of constraints apart from everything else a seed decides
RANGE = re.compile(r"^\s*(-?[\d.]+)\s*<=\s*(.+?)\s*<=\s*(-?[\d.]+)\s*$")
Texts: TypeAlias = tuple[str, ...]


class Points(NamedTuple):
    """Points of one instance's paths."""

    cells: Floats  # (paths, points, d)
    valid: Bools  # (paths, points)
    feasible: Bools  # (paths, points)

    @property
    def ok(self) -> Bools:
        """Valid and feasible."""
        both: Bools = self.valid & self.feasible
        return both


class Method(NamedTuple):
    """A method: points under an instance's constraints, and rows and cost without constraints."""

    points: Callable[[int, Texts], Points | None]
    rows: Floats
    before: Cost


def measure(job: Job) -> Iterator[Measure]:
    """Yields all figures of one pair and seed."""
    setup = _some(job)
    constraints: dict[str, list[Texts | None]] = {}
    for setting in SETTINGS:
        texts = drawn(job, setup, setting)
        known = zip(texts, setup.instances, strict=True)
        constraints[setting] = [None if infeasible(setup, *own) else own[0] for own in known]
        is_none = [texts is None for texts in constraints[setting]]
        yield Measure.of("infeasible", is_none, setting)
    for name in _methods(job.recipe):
        method = _face(name, job) if name in FACE else _lapace(name, job)
        for setting, own in constraints.items():
            yield from _constrained(name, method, setting, own, setup)
    if job.recipe == "paper" and job.seed == job.protocol.seeds[0]:
        yield from _swept(job, constraints["medium"], setup)


def _methods(recipe: str) -> Sequence[str]:
    """The methods of a side: the paper's two on its own, ours on the default recipe."""
    if recipe == "baselines":
        return tuple(FACE)
    return ("LAPACE-exact",) if recipe == "default" else ("LAPACE-naive", "LAPACE-latent")


def _swept(job: Job, constraints: Sequence[Texts | None], setup: Setup) -> Iterator[Measure]:
    """Yields the share of instances satisfied by the paper's correction with other η, N, tolerance.

    A tolerance forgives violations that add up to no more than that share of the columns' ranges.
    """
    details = job.details
    assert isinstance(details, Actionability)
    some = [(k, own) for k, own in enumerate(constraints[: details.swept]) if own is not None]
    plain = {"ETA": correction.ETA, "N_CORRECT": correction.N_CORRECT}
    variants: list[dict[str, float]] = [plain]
    variants += [{**plain, "ETA": rate} for rate in details.rates]
    variants += [{**plain, "N_CORRECT": most} for most in details.max_steps]
    for own in variants:
        with patch.multiple(correction, **own):
            points = [(_explained(job, "latent", k, texts), k, texts) for k, texts in some]
        label = f"η = {own['ETA']:g}, N = {own['N_CORRECT']:g}"
        shares = [bool(found.ok.any()) for found, _, _ in points]
        yield Measure.of("swept", shares, label, "LAPACE-latent")
        for tolerance in details.tolerances if own == plain else ():
            near = [
                (found.valid & (_violation(setup, found.cells, k, texts) <= tolerance)).any()
                for found, k, texts in points
            ]
            yield Measure.of("swept", near, f"{label}, tolerance {tolerance:g}", "LAPACE-latent")


def _violation(setup: Setup, cells: Floats, number: int, texts: Texts) -> Floats:
    """Returns g of the points of an instance's paths: what is violated, in shares of ranges."""
    rows = cells.reshape(-1, cells.shape[2])
    instance = np.repeat(setup.instances[number][None], len(rows), axis=0)
    system = System.of(texts, setup.wide)
    g = system.penalty(torch.as_tensor(rows), instance).numpy()
    # A category is right or wrong: g does not count it, so such a row has to be feasible.
    wrong = ~system.feasible(rows, instance) & (g <= 0)
    return np.where(wrong, np.inf, g).reshape(cells.shape[:2])


def _some(job: Job) -> Setup:
    """The job's setup with E3's instances: the first of the protocol's."""
    assert isinstance(job.details, Actionability)
    setup = setup_of(job)
    return replace(setup, instances=setup.instances[: job.details.instances])


def drawn(job: Job, setup: Setup, setting: str) -> list[Texts]:
    """Every instance's constraints; the same for every method."""
    details = job.details
    assert isinstance(details, Actionability)
    texts = details.constraints
    rng = np.random.default_rng([DRAW_SEED, job.seed])
    orders = (rng.permutation(len(texts)) for _ in setup.instances)
    own = [tuple(texts[k] for k in sorted(order[: details.n_constraints])) for order in orders]
    if setting == "easy":
        return own
    rows = zip(own, setup.instances, strict=True)
    return [tuple(around(text, setup, row, details.change) for text in some) for some, row in rows]


def around(text: str, setup: Setup, row: Floats, share: float) -> str:
    """A range moved to around the instance's own value; other texts unchanged.

    The value may change by a share of the spread of training rows, between their 10 % and 90 %
    quantiles, and by one step at least.
    """
    match = RANGE.match(text)
    if match is None:
        return text
    place = setup.schema.index(match[2].strip("`"))
    column = setup.train[:, place]
    low, high = np.nanquantile(column, [0.1, 0.9])
    most = max(share * (high - low), np.diff(np.unique(column)).min())
    return f"{row[place] - most:g} <= {match[2]} <= {row[place] + most:g}"


def infeasible(setup: Setup, texts: Texts, instance: Floats) -> bool:
    """Returns whether provably no row satisfies an instance's constraints."""
    try:
        return bool(System.of(texts, setup.wide).contradiction(instance))
    except InputError:  # they contradict each other, whatever the instance
        return True


def _constrained(
    name: str, method: Method, setting: str, constraints: Sequence[Texts | None], setup: Setup
) -> Iterator[Measure]:
    """The figures of one method in one setting."""
    with spent() as cost:
        points = [
            None if texts is None else method.points(number, texts)
            for number, texts in enumerate(constraints)
        ]
    known = [own for own in points if own is not None]
    shares = {
        "satisfied": np.array([own is not None and bool(own.ok.any()) for own in points]),
        "satisfied_path": _joined([own.ok.any(axis=1) for own in known]),
        "feasible_points": _joined([own.feasible.ravel() for own in known]),
        "valid_points": _joined([own.valid.ravel() for own in known]),
    }
    for metric, flags in shares.items():
        yield Measure.of(metric, flags, setting, name)
    after = np.concatenate([setup.train[:0], *(own.cells[own.ok] for own in known)])
    for metric, rows in (("lof_after", after), ("lof_before", method.rows)):
        yield Measure.of(metric, setup.plausibility.lof(rows), setting, name)
    before, count = method.before.processor, len(points)
    seconds = cost.processor + (before if name in FACE else 0.0)  # FACE's paths were made before
    yield Measure("seconds_before", before * 100 / count, count, setting, name)
    yield Measure("seconds", seconds * 100 / count, count, setting, name)


def _joined(parts: Sequence[Any]) -> Bools:
    return np.concatenate([np.empty(0, dtype=bool), *parts])


# ------------------------------------------------------------------------------------------------
# Methods


def _lapace(name: str, job: Job) -> Method:
    rows, before = _without_constraints(job)
    return Method(partial(_explained, job, LAPACE[name]), rows, before)


@lru_cache(maxsize=1)
def _without_constraints(job: Job) -> tuple[Floats, Cost]:
    """Valid points without constraints, one call per instance too, and what they cost."""
    fitted(job)  # not inside what is timed
    with spent() as cost:
        points = [_explained(job, "exact", k, ()) for k in range(len(_some(job).instances))]
    return np.concatenate([own.cells[own.ok] for own in points]), cost


def _explained(job: Job, enforce: Any, number: int, texts: Texts) -> Points:
    """One call per instance: constraints belong to a call, and every instance has its own."""
    setup, grid = setup_of(job), slice(1, job.protocol.steps + 1)  # all points but the instance
    found = fitted(job).explainer.explain(
        setup.wide.frame(setup.instances[number : number + 1]),
        target=setup.data.target,
        constraints=texts,
        search=Search(steps=job.protocol.steps, enforce=enforce, picks=("first",)),
    )
    return Points(found.cells[:, grid], found.valid[:, grid] == 1, found.feasible[:, grid])


def _face(name: str, job: Job) -> Method:
    setup, (greedy, projected) = _some(job), FACE[name]
    path, before = _face_path(job, greedy)

    def points(number: int, texts: Texts) -> Points | None:
        cells = path.cells[path.instance == number]
        own = partial(overwritten, setup, texts, number=number, projected=projected)
        return own(cells=cells) if len(cells) else None  # no path

    return Method(points, path.cells[path.valid], before)


@lru_cache(maxsize=2)
def _face_path(job: Job, greedy: bool) -> tuple[Counterfactuals, Cost]:
    setup, face = _some(job), _face_graph(job)
    settings = {"steps": job.protocol.steps, "greedy": greedy}
    with spent() as cost:
        return face_path(face, setup.frame, target=setup.data.target, **settings), cost


@lru_cache(maxsize=1)
def _face_graph(job: Job) -> baselines.FACE:
    setup = setup_of(job)
    face = baselines.FACE(setup.model, schema=setup.schema, random_state=job.seed)
    return face.fit(setup.data.train)


def overwritten(
    setup: Setup, texts: Texts, cells: Floats, number: int, *, projected: bool
) -> Points:
    """One instance's path, moved to where its constraints hold, as far as that succeeds.

    Not projected, each constraint in turn is satisfied alone, which may violate one before it.
    """
    instance = np.repeat(setup.instances[number][None], len(cells), axis=0)
    system = System.of(texts, setup.wide)
    moved = cells
    for part in (system,) if projected else (System.of((text,), setup.wide) for text in texts):
        moved = part.project(moved, instance).cells
    valid = setup.classifier.predict(moved, setup.wide) == setup.target
    return Points(moved[None], valid[None], system.feasible(moved, instance)[None])
