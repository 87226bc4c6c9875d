"""E2, the comparison of methods: eight metrics, on the same instances.

For one pair and seed, the picks of an explainer or the counterfactuals of the baselines, for the
first hundred test rows the classifier labels unfavourably. Fits, instances, perturbations and
retrained classifiers follow from the seed alone, so they are the same for every method, in whatever
process it is run. Only counterfactuals that are ok count, but for validity. What claims compare is
also kept for every instance, so that methods can be compared in pairs.

| metric | what |
|---|---|
| `validity`, `valid_counterfactuals` | share of instances with a valid one, of valid rows |
| `distance`, `percentile_distance` | proximity: by range, by percentiles as the library's own |
| `changed` | features changed |
| `lof`, `lof_median` | plausibility, among rows of the target |
| `lof_all` | LOF among all training rows, whatever their label, as RobustX measures it |
| `copies` | share of counterfactuals that are training rows |
| `diversity`, `n_counterfactuals` | distance between an instance's counterfactuals; their number |
| `model_robustness` | share of (retrained classifier, counterfactual) pairs still valid |
| `input_distance`, `input_set_distance`, `input_max_set_distance` | changes with the instance |
| `input_flipped`, `input_lost` | perturbed instances left out: label flipped, no counterfactual |
| `seconds`, `wall_seconds`, `n_queries` | per 100 instances, fitting apart |
| `paired_distance`, `paired_nnce`, `no_farther` | against NNCE, on the same instances |
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from benchmarks import baselines, paper_metrics
from benchmarks.baselines.ppcef import network_of
from benchmarks.fits import Cost, Setup, fitted, retrained_models, setup_of, spent
from benchmarks.jobs import Measure
from benchmarks.plan import Baseline, Comparison, Job
from benchmarks.tables import load
from lapace import Explainer, Search, metrics
from lapace.arrays import Bools, Ints
from lapace.result import PICKS, Counterfactuals, Explanation
from lapace.schema import Schema

__all__ = ["measure", "sweep"]

_Picks: TypeAlias = Mapping[str, str]

# What is measured of First at a required confidence.
CONFIDENT = (
    "validity", "valid_counterfactuals", "n_counterfactuals", "distance", "lof", "model_robustness",
)  # fmt: skip
# Picks by their names in tables; those of a group are computed, and paid for, together.
GROUPS: tuple[_Picks, ...] = (
    {"First": "first", "Middle": "middle", "Last": "last"},
    {"nearest": "nearest"},
    {"best": "best"},
)
PERTURBATION_SEED = 7_000  # keeps perturbations apart from everything else a seed decides


def measure(job: Job) -> Iterator[Measure]:
    """Yields all figures of one side of the comparison: an explainer's picks, or a baseline."""
    if not len(setup_of(job).instances):
        return
    if job.baseline is not None:
        yield from _of_baseline(_Judge(job, _details(job), setup_of(job)), job.baseline)
    else:
        yield from _ours(job, _details(job), GROUPS if job.recipe == "default" else GROUPS[:1])


def sweep(job: Job) -> Iterator[Measure]:
    """Yields the figures of First, Middle and Last for one number of clusters."""
    for m in _ours(job, _details(job), GROUPS[:1]):
        yield replace(m, label=str(job.protocol.n_prototypes))


def _details(job: Job) -> Comparison:
    assert isinstance(job.details, Comparison)
    return job.details


# ------------------------------------------------------------------------------------------------
# The picks of an explainer


def _ours(job: Job, details: Comparison, groups: Sequence[_Picks]) -> Iterator[Measure]:
    setup, fit = setup_of(job), fitted(job)
    explainer, count = fit.explainer, len(setup.instances)
    yield Measure("instances", count, count)
    yield Measure("fit_seconds", fit.processor, 1)
    yield Measure.of("prototypes_valid", [p.valid for p in explainer.prototypes_])
    if not explainer.fitted_.of_label(setup.target):
        return  # no prototype of the target
    judge = _Judge(job, details, setup)
    # One instance first, so that nothing is loaded for the first time inside a timed call.
    _explained(explainer, job, setup.frame.head(1), PICKS)
    picks: dict[str, Counterfactuals] = {}
    for group in groups:
        names = tuple(group.values())
        fewer = count if group is GROUPS[0] else min(details.minimal_perturbed, count)
        moved = judge.perturbed(fewer)
        explanation, cost = _explained(explainer, job, setup.frame, names)
        after, _ = _explained(explainer, job, moved.frame, names)
        for title, name in group.items():
            picks[title], later = (getattr(found, name)() for found in (explanation, after))
            yield from cost.measures(count, title)
            yield from judge.quality(title, picks[title])
            yield from judge.stability(title, picks[title], later, moved)
    yield from _against_nnce(setup, picks)
    for confidence in details.confidences:
        found, _ = _explained(explainer, job, setup.frame, ("first",), confidence=confidence)
        first = found.first()
        for m in judge.quality(f"First@{confidence:g}", first):
            if m.metric in CONFIDENT:
                yield m


def _explained(
    explainer: Explainer,
    job: Job,
    frame: Any,
    picks: tuple[str, ...],
    *,
    confidence: float | None = None,
) -> tuple[Explanation, Cost]:
    search = Search(steps=job.protocol.steps, picks=picks, n_best=1)
    target = setup_of(job).data.target
    with spent() as cost:
        found = explainer.explain(frame, target=target, confidence=confidence, search=search)
    cost.n_queries = found.n_queries
    return found, cost


def _against_nnce(setup: Setup, picks: Mapping[str, Counterfactuals]) -> Iterator[Measure]:
    """Yields the picks of one counterfactual per instance against NNCE, on the same instances."""
    if not len(setup.target_rows):
        return
    nnce = metrics.kneighbors(setup.wide, setup.instances, setup.target_rows)[0][:, 0]
    for name in ("nearest", "best"):
        if name in picks:
            ok = picks[name].where(picks[name].ok)
            other = nnce[ok.instance]
            yield Measure.of("paired_distance", ok.distance, method=name)
            yield Measure.of("paired_nnce", other, method=name)
            yield Measure.of("paired_difference", ok.distance - other, method=name)
            yield Measure.of("no_farther", ok.distance <= other + 1e-9, method=name)


# ------------------------------------------------------------------------------------------------
# Baselines


def _made(baseline: Baseline, judge: _Judge, model: Any) -> Any:
    """Returns a baseline, fitted."""
    setup, options = judge.setup, dict(baseline.options)
    if "settings" in options:
        options["settings"] = dict(options["settings"])
    if baseline.name == "PPCEF" and judge.job.pair.classifier == "mlp":
        # The network's own gradients; a forest has none and gets a student.
        options["network"] = network_of(setup.model, setup.schema, setup.data.train)
    kind = getattr(baselines, baseline.kind or baseline.name)
    method = kind(model, schema=setup.schema, random_state=judge.job.seed, **options)
    return method.fit(setup.data.train)


class _Count:
    """Counts the rows that pass through: the first step of a pipeline."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, rows: Any) -> Any:
        self.rows += len(rows)
        return rows


def _counted(model: Any) -> tuple[Any, _Count]:
    """Returns the same pipeline, counting the rows it is queried about."""
    count = _Count()
    return Pipeline([("count", FunctionTransformer(count)), *model.steps]), count


def _of_baseline(judge: _Judge, baseline: Baseline) -> Iterator[Measure]:
    setup, name = judge.setup, baseline.name
    model, count = _counted(setup.model)
    with spent() as fitting:
        method = _made(baseline, judge, model)
    frame = setup.wide.frame(setup.instances[: baseline.instances])
    target, instances = setup.data.target, len(frame)
    method.counterfactuals(frame.head(1), target=target)  # loads what is loaded once
    before = count.rows
    with spent() as cost:
        found = method.counterfactuals(frame, target=target)
    cost.n_queries = count.rows - before
    moved = judge.perturbed(min(baseline.perturbed or instances, instances))
    after = method.counterfactuals(moved.frame, target=target)
    yield Measure("fit_seconds", fitting.processor, 1, method=name)
    yield from cost.measures(instances, name)
    yield from judge.quality(name, found)
    yield from judge.stability(name, found, after, moved)


# ------------------------------------------------------------------------------------------------
# Measuring


@dataclass(frozen=True)
class _Moved:
    """Instances perturbed, all rounds one after the other, and which of them changed label."""

    frame: Any
    flipped: Bools  # (rounds, instances)


@dataclass(frozen=True, eq=False)
class _Judge:
    """Measures the counterfactuals of one pair and seed, whatever their method."""

    job: Job
    details: Comparison
    setup: Setup

    @cached_property
    def retrained(self) -> Sequence[Any]:
        """The retrained classifiers."""
        rows, details = self.job.protocol.rows, self.details
        return retrained_models(self.job.pair, self.job.seed, rows, details.n_models, details.share)

    def perturbed(self, count: int) -> _Moved:
        """Returns the first instances perturbed, the same way for every method."""
        setup = self.setup
        rng = np.random.default_rng([PERTURBATION_SEED, self.job.seed])
        # All are perturbed, so that a method with fewer instances gets the same ones.
        rounds = [
            paper_metrics.perturb(setup.wide, setup.instances, rng, self.details.scale)[:count]
            for _ in range(self.details.n_perturbations)
        ]
        cells = np.concatenate(rounds)  # (rounds * instances, d)
        codes = setup.classifier.predict(cells, setup.wide)
        flipped = (codes == setup.target).reshape(len(rounds), count)
        return _Moved(setup.wide.frame(cells), flipped)

    def quality(self, method: str, found: Counterfactuals) -> Iterator[Measure]:
        """Yields everything but how counterfactuals change with instances."""
        instances, ok = len(found.instances), found.where(found.ok)
        by = _ByInstance(ok.instance, instances, method)
        valid = metrics.validity(found, np.arange(instances))
        each = np.bincount(ok.instance, minlength=instances)
        any_valid = Measure("validity", valid.instances, instances, method=method)
        yield replace(any_valid, values=tuple((each > 0).astype(float).tolist()))
        rows = np.bincount(found.instance, minlength=instances)
        share = Measure("valid_counterfactuals", valid.counterfactuals, len(found), method=method)
        # An instance without a row counts as 0.
        yield replace(share, values=tuple((each / np.maximum(1, rows)).tolist()))
        yield Measure.of("n_counterfactuals", each, method=method)
        yield by.measure("distance", ok.distance)
        yield Measure.of("changed", ok.changed, method=method)
        percentiles = self.percentiles.distance(found.instances[ok.instance], ok.cells)
        yield by.measure("percentile_distance", percentiles)
        several = int((each > 1).sum())
        spread = Measure("diversity", metrics.diversity(ok), several, method=method)
        yield replace(spread, values=tuple(
            metrics.diversity(ok.where(ok.instance == k)) if count > 1 else math.nan
            for k, count in enumerate(each)
        ))  # fmt: skip
        lof = self.setup.plausibility.lof(ok.cells)
        yield by.measure("lof", lof)
        yield Measure("lof_median", metrics.median(lof), len(ok), method=method)
        yield Measure.of("lof_all", self.setup.plausibility_of_all.lof(ok.cells), method=method)
        away, _ = metrics.kneighbors(ok.schema, ok.cells, self.setup.train)
        yield by.measure("copies", (away[:, :1] == 0).ravel())
        votes = metrics.votes(ok, self.setup.classifier, self.retrained)
        stays = by.measure("model_robustness", votes.mean(axis=0))
        yield replace(stays, value=metrics.mean(votes))

    @cached_property
    def percentiles(self) -> Schema:
        """The schema whose distances are the library's own, in mid-rank percentiles."""
        return load(self.job.pair, self.job.seed, self.job.protocol.rows).schema

    def stability(
        self, method: str, before: Counterfactuals, after: Counterfactuals, moved: _Moved
    ) -> Iterator[Measure]:
        """Yields how counterfactuals change with instances, and which instances are left out."""
        rounds, count = moved.flipped.shape
        first = _some(before, 0, count)
        later = [_some(after, r * count, (r + 1) * count) for r in range(rounds)]
        found = paper_metrics.input_robustness(first, later, moved.flipped)
        for name in ("distance", "set_distance", "max_set_distance"):
            own = Measure(f"input_{name}", getattr(found, name), found.compared, method=method)
            values = found.by_instance if name == "max_set_distance" else ()
            yield replace(own, values=tuple(values))
        for name in ("flipped", "lost"):
            yield Measure(f"input_{name}", getattr(found, name), rounds * count, method=method)
        yield Measure("input_instances", count, count, method=method)


@dataclass(frozen=True)
class _ByInstance:
    """Makes measures of rows that keep the mean of every instance's rows."""

    instance: Ints
    count: int
    method: str

    def measure(self, metric: str, values: Any) -> Measure:
        array = np.asarray(values, dtype=np.float64)
        rows = np.bincount(self.instance, minlength=self.count)
        sums = np.bincount(self.instance, array, minlength=self.count)
        means = np.where(rows > 0, sums / np.maximum(1, rows), np.nan)
        return replace(Measure.of(metric, array, method=self.method), values=tuple(means.tolist()))


def _some(found: Counterfactuals, begin: int, end: int) -> Counterfactuals:
    """The counterfactuals of some instances, numbered from 0."""
    own = found.where((found.instance >= begin) & (found.instance < end))
    return replace(own, instances=found.instances[begin:end], instance=own.instance - begin)
