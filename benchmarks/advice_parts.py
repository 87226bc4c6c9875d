"""The parts of the measurement of advice: what each asks of an explainer, and what it counts.

| part | what |
|---|---|
| `minimal` | can a change of `nearest` be undone alone, can a number go back alone? |
| `added` | does adding one constraint bring a closer answer? |
| `limits` | `changes <= k`: do random tries find more, is an answer lost with a larger k? |
| `beside` | distance, changes, LOF beside NNCE, NNCE made minimal, and RobXCE |
| `dice` | the same beside DiCE, random and genetic |
| `survival` | how many retrained classifiers still say target, and what was estimated |
| `queries` | rows asked for `nearest` and for `best` beyond those of `first` |
| `steps` | are all stored steps between first and last ok; do flags and distances hold? |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.advice_case import ALL, PATHS, USUAL, Case
from benchmarks.advice_checks import (
    FORMS,
    Added,
    Judge,
    added,
    derived,
    differing,
    distances,
    made_minimal,
    minimality,
)
from benchmarks.store import Measure
from benchmarks.tables import retrained
from lapace import InputError, baselines, metrics
from lapace.arrays import Bools, Floats, Ints
from lapace.result import Counterfactuals, Explanation
from lapace.schema import Schema

__all__ = [
    "added_constraint",
    "beside",
    "dice",
    "limits",
    "minimal",
    "queries",
    "steps",
    "survival",
]

CLOSER = 1e-9
ALONE = 4  # instances that are also explained alone


# ------------------------------------------------------------------------------------------------
# Minimality, added constraints


def minimal(case: Case) -> Iterator[Measure]:
    """Of `nearest` without further constraints."""
    found = case.free.nearest()
    ok = found.where(found.ok)
    yield from _minimal(case, ok, (), "free")
    some = case.frame.head(ALONE)
    rows = case.explain(some).nearest()
    alone = [case.explain(some.iloc[[i]]).nearest() for i in range(len(some))]
    only = case.explain(some, picks=("nearest",)).nearest()
    cells = np.concatenate([row.cells for row in alone])
    yield Measure.of("differs_alone", differing(rows.cells, cells).any(axis=1))
    yield Measure.of("differs_by_picks", differing(rows.cells, only.cells).any(axis=1))


def _minimal(
    case: Case, ok: Counterfactuals, extra: Sequence[Added], label: str
) -> Iterator[Measure]:
    result = minimality(case.judge(ok.schema, extra), ok.cells, ok.instances[ok.instance])
    hidden = differing(ok.cells, ok.instances[ok.instance]) & ~derived(ok.schema)
    hidden &= ~ok.schema.changed(ok.instances[ok.instance], ok.cells)
    yield Measure.of("minimal", result.minimal, label)
    yield Measure.of("undone", result.undone > 0, label)
    yield Measure.of("back", result.back > 0, label)
    yield Measure.of("beyond", result.beyond > 0, label)
    yield Measure.of("hidden", hidden.any(axis=1), label)
    yield Measure.of("negligible", _negligible(ok).any(axis=1), label)
    yield Measure.of("changes", result.changes, label)
    for k in np.flatnonzero(~result.minimal)[:10]:  # to be looked at
        yield Measure("case_not_minimal", ok.distance[k], 1, f"{label}, instance {ok.instance[k]}")


def _negligible(found: Counterfactuals) -> Bools:
    """Numbers that differ by no more than their column's tolerance."""
    limit = np.array([f.tolerance * (1 + 1e-9) for f in found.schema.features])
    apart = np.abs(found.cells - found.instances[found.instance])
    slight: Bools = (apart > 0) & (apart <= limit)
    return slight


def added_constraint(case: Case) -> Iterator[Measure]:
    """Pairs of an instance and a constraint: is the limited answer closer than the free one?"""
    rng, free = case.rng("added"), case.free
    at = _by_instance(free.nearest())
    lines: list[dict[str, Any]] = []
    for k in range(case.size.added if len(free) else 0):
        i, form = int(rng.integers(len(free))), FORMS[k % len(FORMS)]
        constraint = added(free.schema, case.train, free.instances[i], rng, form)
        if constraint is None or i not in at:
            continue
        row = at[i]
        try:
            limited = case.explain(case.frame.iloc[[i]], [constraint])
        except InputError:  # no row at all can satisfy it
            continue
        line = _compared(case, constraint, free.nearest().where(_only(free, row)), limited)
        lines.append({**line, "what": f"instance {i}: {constraint.text}"})
    yield from _added_measures(lines)


def _by_instance(found: Counterfactuals) -> dict[int, int]:
    """Positions of the ok rows by instance."""
    return {int(found.instance[k]): int(k) for k in np.flatnonzero(found.ok)}


def _only(explanation: Explanation, row: int) -> Bools:
    mask = np.zeros(len(explanation.nearest()), dtype=bool)
    mask[row] = True
    return mask


def _compared(
    case: Case, constraint: Added, free: Counterfactuals, explanation: Explanation
) -> dict[str, Any]:
    """One free answer against the one under a further constraint."""
    limited = explanation.nearest()
    limited = limited.where(limited.ok)
    originals = free.instances[free.instance]
    obeys = bool(constraint.holds(free.cells, originals)[0])
    line = {"form": constraint.form, "answered": len(limited) > 0, "obeys": obeys}
    line["free"] = float(distances(free.schema, free.cells, originals)[0])
    if not len(limited):
        return line
    originals = limited.instances[limited.instance]
    judge = case.judge(limited.schema, [constraint])
    line["limited"] = float(distances(limited.schema, limited.cells, originals)[0])
    line["not_ok"] = not judge.ok(limited.cells, originals)[0]
    result = minimality(judge, limited.cells, originals)
    line |= {"undone": bool(result.undone[0]), "back": bool(result.back[0])}
    return line


def _added_measures(lines: Sequence[Mapping[str, Any]]) -> Iterator[Measure]:
    yield Measure("pairs", len(lines), len(lines))
    answered = [line for line in lines if line["answered"]]
    for form in ("", *FORMS):
        own = [line for line in answered if form in ("", line["form"])]
        free, limited = (np.array([line[n] for line in own]) for n in ("free", "limited"))
        gain = np.where(limited < free - CLOSER, 1 - limited / np.maximum(free, CLOSER), 0.0)
        yield Measure.of("closer", gain > 0, form)
        yield Measure.of("closer_5", gain > 0.05, form)
        yield Measure("closer_most", float(gain.max(initial=0.0)), len(own), form)
        yield Measure.of("limited_distance", limited, form)
        yield Measure.of("free_distance", free, form)
    for line in answered:  # to be looked at
        if line["limited"] < line["free"] - CLOSER:
            yield Measure("case_closer", 1 - line["limited"] / line["free"], 1, line["what"])
    obeying = [line for line in lines if line["obeys"]]
    # The free answer obeys the constraint already: the limited one can only be as close or closer.
    far = [not line["answered"] or line["limited"] > line["free"] + CLOSER for line in obeying]
    for line, farther in zip(obeying, far, strict=True):  # to be looked at
        if farther:
            yield Measure("case_farther", line.get("limited", np.nan), 1, line["what"])
    yield Measure.of("farther_though_obeyed", far)
    yield Measure.of("lost_though_obeyed", [not line["answered"] for line in obeying])
    yield Measure.of("not_ok", [line["not_ok"] for line in answered])
    yield Measure.of("undone", [line["undone"] for line in answered])
    yield Measure.of("back", [line["back"] for line in answered])
    minimal_ = [not (line["undone"] or line["back"]) for line in answered]
    yield Measure.of("minimal", minimal_)


# ------------------------------------------------------------------------------------------------
# Limits on changes


def limits(case: Case) -> Iterator[Measure]:
    """`changes <= k`: instances without an answer tried at random, answers lost with a larger k."""
    frame, rng = case.frame.head(case.size.limited), case.rng("limits")
    answered, far = [], []
    for k in range(1, 7):
        most = Added("changes", f"changes <= {k}", lambda a, _: np.ones(len(a), dtype=bool))
        explanation = case.explain(frame, [most])
        status = np.array(explanation.status, dtype=object)
        answered.append(status == "answered")
        found = explanation.nearest()
        distance = np.full(len(frame), np.inf)
        distance[found.instance[found.ok]] = found.distance[found.ok]
        far.append(distance)
        unfound = np.flatnonzero(status == "none_found")
        unfound = rng.permutation(unfound)[: case.size.unfound]
        missed = [_tried(case, explanation, i, k, rng) for i in unfound]
        for i in unfound[np.array(missed, dtype=bool)]:  # to be looked at
            yield Measure("case_missed", k, 1, f"instance {i}: changes <= {k}")
        yield Measure.of("answered", answered[-1], str(k))
        yield Measure.of("missed", missed, str(k))
        proved = np.flatnonzero(status == "infeasible")[: case.size.unfound]
        disproved = [_tried(case, explanation, i, k, rng) for i in proved]
        yield Measure.of("disproved", disproved, str(k))
    # (instances,) whether an answer of some k is lost, or farther, at the next
    lost = np.any([a & ~b for a, b in pairwise(answered)], axis=0)
    farther = np.any([b > a + CLOSER for a, b in pairwise(far)], axis=0)
    yield Measure.of("lost_with_more", lost)
    yield Measure.of("farther_with_more", farther)


def _tried(case: Case, explanation: Explanation, i: int, k: int, rng: np.random.Generator) -> bool:
    """Whether random rows with at most k training values in place of the instance's are ok."""
    schema, instance = explanation.schema, explanation.instances[i]
    judge, tries = case.judge(schema), case.size.tries
    aim = rng.random(tries) < 0.5
    donors = case.train[rng.integers(len(case.train), size=tries)]
    if len(case.target_rows):
        donors[aim] = case.target_rows[rng.integers(len(case.target_rows), size=int(aim.sum()))]
    usable = _usable(judge, instance, donors[:200])
    if not len(usable):
        return False
    cells = np.repeat(instance[None], tries, axis=0)
    order = rng.random((tries, len(usable))).argsort(axis=1)[:, :k]
    line = np.arange(tries)[:, None]
    cells[line, usable[order]] = donors[line, usable[order]]
    originals = np.repeat(instance[None], tries, axis=0)
    kept = ~np.isnan(cells) | np.isnan(originals)  # a cell that is present stays present
    cells = judge.completed(np.where(kept, cells, originals), originals)
    few = schema.changed(originals, cells).sum(axis=1) <= k
    return bool(judge.ok(cells[few], originals[few]).any())


def _usable(judge: Judge, instance: Floats, donors: Floats) -> Ints:
    """Columns that can take another value alone without breaking a rule."""
    originals = np.repeat(instance[None], len(donors), axis=0)
    usable = []
    for j in np.flatnonzero(~derived(judge.schema)):
        rows = originals.copy()
        rows[:, j] = donors[:, j]
        rows = rows[differing(rows[:, j], originals[:, j]) & ~np.isnan(rows[:, j])]
        if len(rows):
            completed = judge.completed(rows, originals[: len(rows)])
            if judge.feasible(completed, originals[: len(rows)]).any():
                usable.append(j)
    return np.array(usable, dtype=np.int64)


# ------------------------------------------------------------------------------------------------
# Beside other methods


def _quality(case: Case, found: Counterfactuals, method: str, label: str = "") -> Iterator[Measure]:
    ok = found.where(found.ok)
    originals = ok.instances[ok.instance]
    lof = case.plausibility.lof(ok.cells)
    answered = np.isin(np.arange(len(found.instances)), ok.instance)
    yield Measure.of("answered", answered, label, method)
    yield Measure.of("distance", distances(ok.schema, ok.cells, originals), label, method)
    yield Measure.of("changes", _count(ok.schema, ok.cells, originals), label, method)
    yield Measure.of("lof", lof, label, method)
    yield Measure("lof_median", metrics.median(lof), len(lof), label, method)


def _count(schema: Schema, cells: Floats, originals: Floats) -> Ints:
    count: Ints = (differing(cells, originals) & ~derived(schema)).sum(axis=1)
    return count


def beside(case: Case) -> Iterator[Measure]:
    """Our picks, NNCE, NNCE made minimal and RobXCE, on the same instances, without rules."""
    held_out = case.data.schema.read(case.data.test)
    real = held_out.cells[np.asarray(case.model.predict(case.data.test)) == case.target]
    lof = case.plausibility.lof(real)
    yield Measure.of("lof", lof, method="real rows")
    yield Measure("lof_median", metrics.median(lof), len(lof), method="real rows")
    bests = {f"best({k})": case.unruled.best(k) for k in (1, 3)}
    ours = {"nearest": case.unruled.nearest(), **bests}
    for method, found in ours.items():
        yield from _quality(case, found, method)
    for method, found in bests.items():
        yield from _marks(found, method)
    nnce = _baseline(case, "NNCE")
    yield from _quality(case, nnce, "NNCE")
    shorter = _made_minimal(case, nnce)
    yield from _quality(case, shorter, "NNCE made minimal")
    robust = _baseline(case, "RobXCE")
    yield from _quality(case, robust, "RobXCE")
    yield from _paired(case, ours, {"NNCE": nnce, "NNCE made minimal": shorter, "RobXCE": robust})


def _marks(found: Counterfactuals, method: str) -> Iterator[Measure]:
    ok = found.where(found.ok)
    marks = np.asarray(ok.about["mark"], dtype=str)
    for word in ("edge", "unusual"):
        yield Measure.of(f"marked_{word}", np.char.find(marks, word) >= 0, method=method)
    yield Measure.of("unmarked", marks == "", method=method)
    plain = ok.where(marks == "")
    yield Measure.of("distance_unmarked", plain.distance, method=method)
    each = np.bincount(ok.instance, minlength=len(ok.instances))
    yield Measure.of("ways", each[each > 0], method=method)


def _baseline(
    case: Case, name: str, instances: int | None = None, **settings: Any
) -> Counterfactuals:
    method = getattr(baselines, name)(
        case.model, schema=case.data.schema, random_state=case.seed, **settings
    )
    frame = case.frame.head(len(case.frame) if instances is None else instances)
    found: Counterfactuals = method.fit(case.data.train).counterfactuals(frame, target=case.target)
    return found


def _made_minimal(case: Case, found: Counterfactuals) -> Counterfactuals:
    judge, originals = case.judge(found.schema, ruled=False), found.instances[found.instance]
    cells = made_minimal(judge, found.cells, originals)
    return Counterfactuals.of(
        found.schema, found.instances, cells, found.instance, valid=judge.ok(cells, originals)
    )


def _paired(
    case: Case, ours: Mapping[str, Counterfactuals], others: Mapping[str, Counterfactuals]
) -> Iterator[Measure]:
    """Means of two methods on the instances both answer, the closest row of each counting."""
    for name, one in ours.items():
        if name == "best(3)":
            continue
        for other, two in others.items():
            a, b = _closest(one), _closest(two)
            both = sorted(a.keys() & b.keys())
            for metric, place in (("distance", 0), ("changes", 1)):
                label = f"{name} and {other}"
                yield Measure.of(f"paired_{metric}", [a[i][place] for i in both], label, name)
                yield Measure.of(f"paired_{metric}", [b[i][place] for i in both], label, other)
            for method, rows in ((name, a), (other, b)):
                cells = np.array([rows[i][2] for i in both]).reshape(len(both), -1)
                lof = case.plausibility.lof(cells) if both else []
                yield Measure.of("paired_lof", lof, f"{name} and {other}", method)


def _closest(found: Counterfactuals) -> dict[int, tuple[float, int, Floats]]:
    """Of each instance the closest ok row: its distance, its changes, its cells."""
    ok = found.where(found.ok)
    originals = ok.instances[ok.instance]
    far = distances(ok.schema, ok.cells, originals)
    count = _count(ok.schema, ok.cells, originals)
    order = np.argsort(-far, kind="stable")  # the closest comes last and stays
    return {int(ok.instance[k]): (float(far[k]), int(count[k]), ok.cells[k]) for k in order}


def dice(case: Case) -> Iterator[Measure]:
    """DiCE, random and genetic, of three rows the closest, and our picks, on the same instances."""
    size = case.size.dice
    both = {"nearest": case.unruled.nearest(), "best(1)": case.unruled.best(1)}
    ours = {name: _first(found, size) for name, found in both.items()}
    others = {}
    for method in ("random", "genetic"):
        name = f"DiCE {method}"
        others[name] = _baseline(case, "DiCE", size, method=method, count=3, seconds=5.0)
        yield from _quality(case, others[name], name)
    yield from _paired(case, ours, others)


def _first(found: Counterfactuals, count: int) -> Counterfactuals:
    return found.where(found.instance < count)


# ------------------------------------------------------------------------------------------------
# Queries, steps


def queries(case: Case) -> Iterator[Measure]:
    """Rows asked beyond those of first, middle and last, per answered instance."""
    frame = case.frame.head(case.size.counted)
    each = {
        name: case.explain(frame, picks=picks)
        for name, picks in (
            ("paths", PATHS),
            ("nearest", USUAL),
            ("best", ALL),
        )
    }
    found = each["nearest"].nearest()
    ok = found.where(found.ok)
    answered = max(len(ok), 1)
    base = each["paths"].n_queries
    yield Measure("paths", base / max(len(frame), 1), len(frame))
    for name in ("nearest", "best"):
        yield Measure("beyond", (each[name].n_queries - base) / answered, answered, method=name)
    allowed = 12 + 2 * _count(ok.schema, ok.cells, ok.instances[ok.instance])
    yield Measure.of("allowed", allowed, method="nearest")


def steps(case: Case) -> Iterator[Measure]:
    """Stored steps between first and last that are not ok, with confidence and constraints too."""
    rng = case.rng("steps")
    schema = case.data.schema
    drawn = []
    for form in ("bound", "direction", "fixed", "set", "relation"):
        instance = case.train[int(rng.integers(len(case.train)))]
        if (constraint := added(schema, case.train, instance, rng, form)) is not None:
            drawn.append(constraint)
    settings: dict[str, tuple[tuple[Added, ...], float | None]] = {"free": ((), None)}
    settings["confidence"] = ((), 0.7)
    for constraint in drawn:
        settings[constraint.form] = ((constraint,), None)
    if drawn:
        settings["both"] = ((drawn[int(rng.integers(len(drawn)))],), 0.7)
    frame = case.frame.head(case.size.stepped)
    for label, (constraints, confidence) in settings.items():
        # `best` costs most, and is looked at where it is asked for most.
        picks = ALL if label in ("free", "both") else USUAL
        try:
            explanation = case.explain(frame, constraints, picks=picks, confidence=confidence)
        except InputError:
            continue
        yield from _between(explanation, label)
        found = [getattr(explanation, pick)() for pick in picks]
        yield from _flags(case, found, constraints, confidence, label)


def _between(explanation: Explanation, label: str) -> Iterator[Measure]:
    """Steps asked about between a path's first and its last, and paths with one that is not ok."""
    path = np.arange(len(explanation.instance))
    first, last = explanation.picked["first"], explanation.picked["last"]
    ok = (explanation.valid == 1) & explanation.feasible
    low, high = explanation.tau[path, first], explanation.tau[path, last]
    with np.errstate(invalid="ignore"):
        between = (explanation.tau >= low[:, None]) & (explanation.tau <= high[:, None])
    between &= ok[path, first][:, None] & (explanation.valid >= 0)
    wrong = between & ~ok
    reached = ok[path, first]
    yield Measure.of("not_ok_between", wrong[between], label)
    yield Measure.of("paths_with_one", wrong.any(axis=1)[reached], label)
    middle = explanation.picked["middle"]
    yield Measure.of("middle_not_ok", ~ok[path, middle][reached], label)
    yield Measure.of("last_not_ok", ~ok[path, last][reached], label)


def _flags(
    case: Case,
    picks: Sequence[Counterfactuals],
    constraints: Sequence[Added],
    confidence: float | None,
    label: str,
) -> Iterator[Measure]:
    """Rows of the picks whose flags or distance are not what a check of their own says."""
    wrong: dict[str, list[Bools]] = {n: [] for n in ("flag", "distance", "instance")}
    for found in picks:
        judge = case.judge(found.schema, constraints, confidence)
        originals = found.instances[found.instance]
        wrong["flag"].append(judge.ok(found.cells, originals) != found.ok)
        away = distances(found.schema, found.cells, originals)
        wrong["distance"].append(np.abs(away - found.distance) > 1e-6)
        wrong["instance"].append(found.ok & ~differing(found.cells, originals).any(axis=1))
    yield Measure.of("flag_wrong", np.concatenate(wrong["flag"]), label)
    yield Measure.of("distance_wrong", np.concatenate(wrong["distance"]), label)
    yield Measure.of("instance_returned", np.concatenate(wrong["instance"]), label)


# ------------------------------------------------------------------------------------------------
# Survival


def survival(case: Case) -> Iterator[Measure]:
    """Retrained classifiers that still give counterfactuals the target, and the estimates of it."""
    models = [
        retrained(case.data, case.kind, seed=100 * case.seed + k) for k in range(case.size.models)
    ]
    picks = {"nearest": case.unruled.nearest(), "best(1)": case.unruled.best(1)}
    for method, found in picks.items():
        ok = found.where(found.ok)
        frame = ok.schema.frame(ok.cells)
        said = [np.asarray(model.predict(frame)) == case.target for model in models if len(ok)]
        votes = np.array(said, dtype=float).reshape(len(models), len(ok))
        yield Measure.of("survives", votes.mean(axis=0), method=method)
        about = ok.about
        estimate, low, high = (
            np.asarray(about[name], dtype=float)
            for name in ("survival", "survival_low", "survival_high")
        )
        share = votes.mean(axis=0)
        yield Measure.of("estimated", estimate, method=method)
        yield Measure.of("brier", ((votes - estimate) ** 2).mean(axis=0), method=method)
        yield Measure.of("covered", (low <= share) & (share <= high), method=method)
        yield Measure.of("width", high - low, method=method)
        plain = np.asarray(about["mark"], dtype=str) == ""
        yield Measure.of("survives", share[plain], "unmarked", method)
