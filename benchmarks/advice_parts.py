"""The parts of the measurement of advice: what each asks of an explainer, and what it counts.

| part | what |
|---|---|
| `minimal` | can a change of `nearest` be undone alone, can a number go back alone? |
| `added` | does adding one constraint bring a closer answer? |
| `beside` | distance, changes, LOF beside NNCE, RobXCE and the simplest method |
| `survival` | how many retrained classifiers still say target, and what was estimated |
| `queries` | rows asked per instance, and what few queries find |

`distance` is in percentiles, `range_distance` over the range of training. Where one answer is held
against another, that is in the distance the library goes by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from benchmarks import baselines
from benchmarks.advice_case import PATHS, Case
from benchmarks.advice_checks import FORMS, Added, added, minimality, simplest
from benchmarks.advice_distances import derived, differing, distances, gaps
from benchmarks.store import Measure
from benchmarks.tables import retrained
from lapace import InputError, Search
from lapace.arrays import Bools, Floats, Ints
from lapace.result import Counterfactuals, Explanation

__all__ = [
    "added_constraint",
    "beside",
    "minimal",
    "queries",
    "survival",
]

CLOSER = 1e-9
ALONE = 4  # instances that are also explained alone


# ------------------------------------------------------------------------------------------------
# What is said of rows


def _originals(found: Counterfactuals) -> Floats:
    originals: Floats = found.instances[found.instance]
    return originals


def _count(found: Counterfactuals) -> Ints:
    """Changes of each row."""
    count: Ints = (differing(found.cells, _originals(found)) & ~derived(found.schema)).sum(axis=1)
    return count


def _far(case: Case, found: Counterfactuals, name: str = "") -> Floats:
    """A distance by its name; without one that of the library."""
    scale = case.scales[name] if name else case.own
    return distances(found.schema, found.cells, _originals(found), scale)


def _distances(
    case: Case, ok: Counterfactuals, label: str = "", method: str = ""
) -> Iterator[Measure]:
    """Both distances: means over rows, and geometric ones."""
    for name in case.scales:
        far = _far(case, ok, name)
        middle = float(np.exp(np.log(np.maximum(far, CLOSER)).mean())) if len(far) else np.nan
        yield Measure.of(name, far, label, method)
        yield Measure(f"{name}_geo", middle, len(far), label, method)


def _lofs(case: Case, cells: Floats, label: str, method: str) -> Iterator[Measure]:
    for name, outliers in case.outliers.items():
        yield from _spread(name, outliers(cells), (50, 95), label, method)


def _spread(
    metric: str, values: Floats, shares: Sequence[int], label: str = "", method: str = ""
) -> Iterator[Measure]:
    """A mean, and percentiles."""
    yield Measure.of(metric, values, label, method)
    for share in shares:
        value = float(np.percentile(values, share)) if len(values) else np.nan
        yield Measure(f"{metric}_{share}", value, len(values), label, method)


def _answered(found: Counterfactuals) -> Bools:
    return np.isin(np.arange(len(found.instances)), found.instance[found.ok])


# ------------------------------------------------------------------------------------------------
# Minimality, added constraints


def minimal(case: Case) -> Iterator[Measure]:
    """Of `nearest` without further constraints."""
    found = case.free.nearest()
    ok = found.where(found.ok)
    result = minimality(case.judge(ok.schema), ok.cells, _originals(ok))
    yield Measure.of("answered", _answered(found), "free")
    yield Measure.of("minimal", result.minimal, "free")
    yield Measure.of("undone", result.undone > 0, "free")
    yield Measure.of("back", result.back > 0, "free")
    yield Measure.of("changes", result.changes, "free")
    yield from _distances(case, ok, "free")
    for k in np.flatnonzero(~result.minimal)[:10]:  # to be looked at
        yield Measure("case_not_minimal", ok.distance[k], 1, f"free, instance {ok.instance[k]}")
    some = case.frame.head(ALONE)
    rows = case.explain(some).nearest()
    alone = [case.explain(some.iloc[[i]]).nearest() for i in range(len(some))]
    only = case.explain(some, picks=("nearest",)).nearest()
    cells = np.concatenate([row.cells for row in alone])
    yield Measure.of("differs_alone", differing(rows.cells, cells).any(axis=1))
    yield Measure.of("differs_by_picks", differing(rows.cells, only.cells).any(axis=1))


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
    yield from _added_measures(case, lines)


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
    obeys = bool(constraint.holds(free.cells, _originals(free))[0])
    line = {"form": constraint.form, "answered": len(limited) > 0, "obeys": obeys}
    line["free"] = float(_far(case, free)[0])
    line |= {f"free_{name}": float(_far(case, free, name)[0]) for name in case.scales}
    if not len(limited):
        return line
    judge = case.judge(limited.schema, [constraint])
    line["limited"] = float(_far(case, limited)[0])
    line |= {f"limited_{name}": float(_far(case, limited, name)[0]) for name in case.scales}
    line["not_ok"] = not judge.ok(limited.cells, _originals(limited))[0]
    line["minimal"] = bool(minimality(judge, limited.cells, _originals(limited)).minimal[0])
    return line


def _added_measures(case: Case, lines: Sequence[Mapping[str, Any]]) -> Iterator[Measure]:
    yield Measure.of("answered", [line["answered"] for line in lines])
    answered = [line for line in lines if line["answered"]]
    free, limited = (np.array([line[n] for line in answered]) for n in ("free", "limited"))
    gain = np.where(limited < free - CLOSER, 1 - limited / np.maximum(free, CLOSER), 0.0)
    yield Measure.of("closer", gain > 0)
    yield Measure.of("closer_5", gain > 0.05)
    yield Measure("closer_most", float(gain.max(initial=0.0)), len(answered))
    for name in (f"{side}_{distance}" for side in ("free", "limited") for distance in case.scales):
        yield Measure.of(name, [line[name] for line in answered])
    for k in np.flatnonzero(gain):  # to be looked at
        yield Measure("case_closer", gain[k], 1, answered[k]["what"])
    obeying = [line for line in lines if line["obeys"]]
    # The free answer obeys the constraint already: the limited one can only be as close or closer.
    far = [not line["answered"] or line["limited"] > line["free"] + CLOSER for line in obeying]
    for line, farther in zip(obeying, far, strict=True):  # to be looked at
        if farther:
            yield Measure("case_farther", line.get("limited", np.nan), 1, line["what"])
    yield Measure.of("farther_though_obeyed", far)
    for name in ("not_ok", "minimal"):
        yield Measure.of(name, [line[name] for line in answered])


# ------------------------------------------------------------------------------------------------
# Beside other methods


def _quality(case: Case, found: Counterfactuals, method: str) -> Iterator[Measure]:
    ok = found.where(found.ok)
    numbers = [f.numeric for f in ok.schema.features]
    known = np.isfinite(ok.cells + _originals(ok))  # what is missing was not shifted
    shifts = gaps(ok.schema, ok.cells, _originals(ok), case.scales["distance"]) * known
    yield Measure.of("answered", _answered(found), method=method)
    yield from _distances(case, ok, method=method)
    yield Measure.of("changes", _count(ok), method=method)
    yield from _spread("shift", shifts[:, numbers].max(axis=1, initial=0), (50, 90), "", method)
    yield from _lofs(case, ok.cells, "", method)


def beside(case: Case) -> Iterator[Measure]:
    """Our picks and other methods, on the same instances, without rules."""
    held_out = case.data.schema.read(case.data.test)
    real = held_out.cells[np.asarray(case.model.predict(case.data.test)) == case.target]
    yield from _lofs(case, real, "", "real rows")
    ours = {"nearest": case.unruled.nearest(), "best(1)": case.unruled.best(1)}
    three = case.unruled.best(3)
    others = {
        "NNCE": _baseline(case, "NNCE"),
        "RobXCE": _baseline(case, "RobXCE"),
    }
    others["simplest"], asked = _simplest(case)
    yield Measure.of("queries", asked, method="simplest")
    for method, found in {**ours, "best(3)": three, **others}.items():
        yield from _quality(case, found, method)
    for method, found in (("best(1)", ours["best(1)"]), ("best(3)", three)):
        ok = found.where(found.ok)
        plain = np.asarray(ok.about["mark"], dtype=str) == ""
        yield Measure.of("unmarked", plain, method=method)
        yield from _lofs(case, ok.cells[plain], "unmarked", method)
    yield from _paired(case, ours, others)


def _baseline(
    case: Case, name: str, instances: int | None = None, **settings: Any
) -> Counterfactuals:
    method = getattr(baselines, name)(
        case.model, schema=case.data.schema, random_state=case.seed, **settings
    )
    frame = case.frame.head(len(case.frame) if instances is None else instances)
    found: Counterfactuals = method.fit(case.data.train).counterfactuals(frame, target=case.target)
    return found


def _simplest(case: Case) -> tuple[Counterfactuals, list[int]]:
    """The simplest method's rows, and how many rows it asked about for each instance."""
    reading, cells, asked = case.data.schema.read(case.frame), [], []
    judge = case.judge(reading.schema, ruled=False)
    for instance in reading.cells:
        judge.asked.clear()
        cells.append(simplest(judge, case.target_rows, instance, case.own))
        asked.append(sum(judge.asked))
    at = np.repeat(np.arange(len(cells)), [len(rows) for rows in cells])
    rows = np.concatenate(cells) if cells else np.zeros((0, len(reading.schema.features)))
    valid = judge.ok(rows, reading.cells[at])
    return Counterfactuals.of(reading.schema, reading.cells, rows, at, valid=valid), asked


def _paired(
    case: Case, ours: Mapping[str, Counterfactuals], others: Mapping[str, Counterfactuals]
) -> Iterator[Measure]:
    """Means of two methods on the instances both answer, the closest row of each counting."""
    for (name, one), (other, two) in product(ours.items(), others.items()):
        a, b = _closest(case, one), _closest(case, two)
        for method, own, against in ((name, a, b), (other, b, a)):
            both = own.where(np.isin(own.instance, against.instance))
            found = {scale: _far(case, both, scale) for scale in case.scales}
            found |= {"changes": _count(both), "lof": case.outliers["lof"](both.cells)}
            for metric, values in found.items():
                yield Measure.of(f"paired_{metric}", values, f"{name} and {other}", method)


def _closest(case: Case, found: Counterfactuals) -> Counterfactuals:
    """Of each instance the closest ok row."""
    ok = found.where(found.ok)
    order = np.argsort(_far(case, ok), kind="stable")
    first = np.zeros(len(ok), dtype=bool)
    first[order[np.unique(ok.instance[order], return_index=True)[1]]] = True
    return ok.where(first)


# ------------------------------------------------------------------------------------------------
# Queries


def queries(case: Case) -> Iterator[Measure]:
    """Rows asked per instance: for some picks, by default, and with few."""
    frame = case.frame.head(case.size.counted)
    searches = {"paths": Search(picks=PATHS), "nearest": Search(picks=("nearest",))}
    searches |= {"default": Search(), "few": Search(steps=5, n_starts=3)}
    for name, search in searches.items():
        explanation = case.explain(frame, search=search)
        yield Measure("rows", explanation.n_queries / max(len(frame), 1), len(frame), "", name)
        if "nearest" in search.picks:
            found = explanation.nearest()
            yield Measure.of("answered", _answered(found), method=name)
            yield from _distances(case, found.where(found.ok), method=name)


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
        share, estimate = votes.mean(axis=0), np.asarray(ok.about["survival"], dtype=float)
        yield Measure.of("survives", share, method=method)
        yield Measure.of("estimated", estimate, method=method)
        yield Measure.of("brier", ((votes - estimate) ** 2).mean(axis=0), method=method)
        plain = np.asarray(ok.about["mark"], dtype=str) == ""
        yield Measure.of("survives", share[plain], "unmarked", method)
