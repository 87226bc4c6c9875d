"""E2, the benchmark: eight metrics for every method, on the same instances.

For one pair and seed, the picks of an explainer or the answers of the baselines, for the first
hundred test rows the classifier labels unfavourably. Fits, instances, perturbations and retrained
classifiers follow from the seed alone, so they are the same for every method, in whatever process
it is run. Only answers that are ok count, but for validity, which counts who has one.

| metric | what |
|---|---|
| `validity`, `valid_answers` | share of instances with a valid answer, of answers valid |
| `distance`, `changed` | proximity; features changed |
| `lof`, `lof_median`, `isolation`, `knn_distance` | plausibility |
| `copies` | share of answers that are training rows |
| `diversity`, `answers_each` | distance between an instance's answers; how many there are |
| `model_robustness` | share of (retrained classifier, answer) pairs still valid |
| `input_distance`, `input_set_distance`, `input_max_set_distance` | how answers move with instances |
| `input_flipped`, `input_lost` | perturbed instances left out: own label flipped, no answer |
| `seconds`, `wall_seconds` | per 100 instances, fitting apart: processor time, and by the clock |
| `rows_asked` | per 100 instances |
| `paired_distance`, `paired_nnce`, `no_farther` | beside NNCE, on the instances both answer |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.costs import Cost, spending
from benchmarks.fits import Scene, fitted, models, scene
from benchmarks.plan import Job
from benchmarks.settings import Compare
from benchmarks.store import Found, Measure
from lapace import metrics
from lapace.arrays import Bools
from lapace.explainer import Explainer, Search
from lapace.result import Counterfactuals, Explanation

__all__ = ["PICKS", "measure", "sweep"]

Answer: TypeAlias = Callable[[Any], Counterfactuals]

PICKS = ("First", "Middle", "Last", "nearest", "sparse")
SEVERAL = ("DiCE", "DRCE")  # baselines that can give several answers
# What is said of First at a required confidence.
SURE = ("validity", "valid_answers", "answers_each", "distance", "lof", "model_robustness")
BEFORE_SEED = 7_000  # keeps perturbations apart from everything else a seed decides


def measure(job: Job, before: Sequence[Measure] = ()) -> Found:
    """All figures of one side of the comparison.

    Args:
        job: The pair, the side, the seed and the settings.
        before: Figures there are already, of methods that need not be run again.
    """
    details = job.details
    assert isinstance(details, Compare)
    ground = scene(job)
    if not len(ground.instances):
        return Found([])
    if job.recipe == "baselines":
        return _baselines(job, details, ground, before)
    return Found(list(_ours(job, details, ground)))


def sweep(job: Job) -> Found:
    """What the number of clusters does to the picks: the same figures, without confidences."""
    details = job.details
    assert isinstance(details, Compare)
    label = str(job.protocol.clusters)
    found = _ours(job, replace(details, confidences=()), scene(job))
    return Found([replace(m, label=label) for m in found])


# ------------------------------------------------------------------------------------------------
# The picks of an explainer


def _ours(job: Job, details: Compare, ground: Scene) -> Iterator[Measure]:
    fit = fitted(job)
    explainer, instances = fit.explainer, len(ground.instances)
    yield Measure("instances", instances, instances)
    yield Measure("mixed", float(len(ground.known.schema.categorical) > 0), 1)
    yield Measure("fit_seconds", fit.processor, 1)
    valid = [p.valid for p in explainer.prototypes_]
    yield Measure("prototypes_valid", _mean(valid), len(valid))
    if not explainer.fitted_.of_label(ground.known.target):
        return  # nowhere to walk to
    judge = _Judge.of(job, details, ground)
    sparse = job.recipe == "default"
    # One instance first, so that nothing is loaded for the first time while the clock runs.
    _explained(explainer, ground, job, ground.frame.head(1), sparse=sparse)
    plain = _explained(explainer, ground, job, ground.frame)
    yield from _cost("First", plain)
    picks = _picks(plain.answer)
    moved = judge.perturbed(instances)
    again = {name: _Rounds(details.rounds, instances) for name in picks}
    walked = _explained(explainer, ground, job, moved.frame).answer
    for name, found in _picks(walked).items():
        again[name].answers = found
    if sparse:  # asked for apart: it costs rows the other picks do not
        put_back = _explained(explainer, ground, job, ground.frame, sparse=True)
        yield from _cost("sparse", put_back)
        picks["sparse"] = put_back.answer.sparse()
        again["sparse"] = _Rounds(details.rounds, instances)
        later = _explained(explainer, ground, job, moved.frame, sparse=True)
        again["sparse"].answers = later.answer.sparse()
    for name, pick in picks.items():
        yield from judge.judged(name, pick)
        yield from judge.stability(name, pick, again[name].split(), moved)
    yield from _beside_nnce(ground, picks)
    for confidence in details.confidences:
        sure = _explained(explainer, ground, job, ground.frame, confidence=confidence)
        for m in judge.judged(f"First@{confidence:g}", sure.answer.first()):
            if m.metric in SURE:
                yield m


@dataclass(frozen=True)
class _Explained:
    """An explanation and what it cost."""

    answer: Explanation
    instances: int
    spent: Cost


def _explained(
    explainer: Explainer,
    ground: Scene,
    job: Job,
    frame: Any,
    *,
    sparse: bool = False,
    confidence: float | None = None,
) -> _Explained:
    search = Search(steps=job.protocol.steps, sparse=sparse)
    with spending() as spent:
        answer = explainer.explain(
            frame, target=ground.target, confidence=confidence, search=search
        )
    spent.n_queries = answer.n_queries
    return _Explained(answer, len(answer.instances), spent)


def _picks(answer: Explanation) -> dict[str, Counterfactuals]:
    return {
        "First": answer.first(),
        "Middle": answer.middle(),
        "Last": answer.last(),
        "nearest": answer.nearest(),
    }


def _cost(name: str, explained: _Explained) -> Iterator[Measure]:
    """Seconds and rows asked per 100 instances; one explanation holds First, Middle and Last."""
    for one in PICKS[:4] if name == "First" else (name,):
        yield from explained.spent.measures(explained.instances, one)


def _beside_nnce(ground: Scene, picks: Mapping[str, Counterfactuals]) -> Iterator[Measure]:
    """The picks of one answer each beside NNCE, on the instances both answer."""
    wanted = ground.known.wanted
    if not len(wanted):
        return
    nnce = metrics.nearest(ground.known.wide, ground.instances, wanted)[:, 0]
    for name in ("nearest", "sparse"):
        if name in picks:
            good = picks[name].where(picks[name].ok)
            theirs = nnce[good.instance]
            count = len(good)
            spread = _deviation(good.distance - theirs)
            yield Measure("paired_distance", _mean(good.distance), count, method=name)
            yield Measure("paired_nnce", _mean(theirs), count, method=name)
            apart = Measure("paired_difference", _mean(good.distance - theirs), count, method=name)
            yield replace(apart, deviation=spread)
            closer = good.distance <= theirs + 1e-9
            yield Measure("no_farther", _mean(closer), count, method=name)


# ------------------------------------------------------------------------------------------------
# Baselines


def _baselines(job: Job, details: Compare, ground: Scene, before: Sequence[Measure]) -> Found:
    """Every baseline that can be run here and has not been; the others with the reason."""
    done = {m.method for m in before}
    found, left = list(before), {}
    judge = _Judge.of(job, details, ground)
    if not before:
        found.append(Measure("instances", len(ground.instances), len(ground.instances)))
    for name in details.methods:
        if name in done:
            continue
        try:
            found += _baseline(name, job, details, ground, judge)
        # One method's trouble, or an extra that is not there, must not cost the others.
        except Exception as error:
            left[name] = (
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
    return Found(found, left)


class _Count:
    """Counts the rows that pass through: a first step of a pipeline."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, rows: Any) -> Any:
        self.rows += len(rows)
        return rows


def _counted(model: Any) -> tuple[Any, _Count]:
    """The same pipeline, counting the rows it is asked about."""
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer

    count = _Count()
    return Pipeline([("count", FunctionTransformer(count)), *model.steps]), count


def _baseline(name: str, job: Job, details: Compare, ground: Scene, judge: _Judge) -> list[Measure]:
    from lapace import baselines

    model, count = _counted(ground.given.model)
    kind = getattr(baselines, name)
    more = {"count": details.answers} if name in SEVERAL else {}
    method = kind(model, schema=ground.known.schema, random_state=job.seed, **more)
    with spending() as fitting:
        method.fit(ground.given.data.train)
    instances = min(details.most.get(name, len(ground.instances)), len(ground.instances))
    frame = ground.known.wide.frame(ground.instances[:instances])
    method.counterfactuals(frame.head(1), target=ground.target)  # nothing is loaded on the clock
    asked = count.rows
    with spending() as spent:
        answers = method.counterfactuals(frame, target=ground.target)
    spent.n_queries = count.rows - asked
    found = [
        Measure("fit_seconds", fitting.processor, 1, method=name),
        *spent.measures(instances, name),
        *judge.judged(name, answers),
    ]
    some = min(details.perturbed.get(name, instances), instances)
    moved = judge.perturbed(some)
    rounds = _Rounds(details.rounds, some)
    rounds.answers = method.counterfactuals(moved.frame, target=ground.target)
    found += judge.stability(name, _first_instances(answers, some), rounds.split(), moved)
    return found


def _first_instances(answers: Counterfactuals, count: int) -> Counterfactuals:
    kept = answers.where(answers.instance < count)
    return replace(kept, instances=answers.instances[:count])


# ------------------------------------------------------------------------------------------------
# Judging


@dataclass(frozen=True)
class _Moved:
    """Instances perturbed, all rounds one after the other, and whose own label flipped."""

    frame: Any
    flipped: Bools  # (rounds, instances)


class _Rounds:
    """Answers for perturbed instances, to be taken apart by round again."""

    answers: Counterfactuals

    def __init__(self, rounds: int, instances: int) -> None:
        self.rounds, self.instances = rounds, instances

    def split(self) -> list[Counterfactuals]:
        found = []
        for number in range(self.rounds):
            begin = number * self.instances
            here = (self.answers.instance >= begin) & (
                self.answers.instance < begin + self.instances
            )
            part = self.answers.where(here)
            rows = self.answers.instances[begin : begin + self.instances]
            found.append(replace(part, instances=rows, instance=part.instance - begin))
        return found


@dataclass(frozen=True, eq=False)
class _Judge:
    """What all answers of one pair and seed are measured with."""

    job: Job
    details: Compare
    ground: Scene
    retrained: tuple[Any, ...]

    @classmethod
    def of(cls, job: Job, details: Compare, ground: Scene) -> _Judge:
        kind = job.pair.classifier
        known = models(ground.given, kind, details.models, details.share, job.seed)
        return cls(job, details, ground, known)

    def perturbed(self, instances: int) -> _Moved:
        """The first instances moved a little, the same way for every method."""
        known = self.ground.known
        rng = np.random.default_rng([BEFORE_SEED, self.job.seed])
        # All are moved whoever is asked for, so that a method with fewer gets the same ones.
        rounds = [
            metrics.perturb(known.wide, self.ground.instances, rng, self.details.scale)[:instances]
            for _ in range(self.details.rounds)
        ]
        cells = np.concatenate(rounds)  # (rounds * instances, d)
        codes = known.classifier.predict(cells, known.wide)
        flipped = (codes == known.target).reshape(len(rounds), instances)
        return _Moved(known.wide.frame(cells), flipped)

    def judged(self, method: str, answers: Counterfactuals) -> Iterator[Measure]:
        """Everything but how answers move with instances."""
        valid = metrics.validity(answers, np.arange(len(answers.instances)))
        instances, good = len(answers.instances), answers.where(answers.ok)
        yield Measure("validity", valid.instances, instances, method=method)
        yield Measure("valid_answers", valid.counterfactuals, len(answers), method=method)
        each = np.bincount(good.instance, minlength=instances)
        yield _spread("answers_each", each, method)
        yield _spread("distance", good.distance, method)
        yield _spread("changed", good.changed, method)
        several = int((each > 1).sum())
        yield Measure("diversity", metrics.diversity(good), several, method=method)
        yield from self._plausibility(method, good)
        votes = metrics.votes(good, self.ground.known.classifier, self.retrained)
        lasting = metrics.model_robustness(votes)
        yield replace(
            _spread("model_robustness", lasting.by_counterfactual, method), value=lasting.mean
        )

    def _plausibility(self, method: str, good: Counterfactuals) -> Iterator[Measure]:
        usual = self.ground.known.usual
        lof = usual.lof(good.cells)
        typical = metrics.typical(lof)
        yield replace(_spread("lof", lof, method), value=typical.mean)
        yield Measure("lof_median", typical.median, len(good), method=method)
        yield _spread("isolation", usual.isolation(good.cells), method)
        yield _spread("knn_distance", usual.knn(good.cells), method)
        away = metrics.nearest(good.schema, good.cells, self.ground.known.train)
        yield Measure("copies", _mean(away[:, :1] == 0), len(good), method=method)

    def stability(
        self,
        method: str,
        before: Counterfactuals,
        after: Sequence[Counterfactuals],
        moved: _Moved,
    ) -> Iterator[Measure]:
        """How answers move with instances, and who had to be left out."""
        found = metrics.input_robustness(before, after, moved.flipped)
        for name in ("distance", "set_distance", "max_set_distance"):
            yield Measure(f"input_{name}", getattr(found, name), found.compared, method=method)
        for name in ("flipped", "lost"):
            yield Measure(f"input_{name}", getattr(found, name), moved.flipped.size, method=method)
        yield Measure(
            "input_instances", len(before.instances), len(before.instances), method=method
        )


def _spread(metric: str, values: NDArray[Any], method: str) -> Measure:
    return Measure(metric, _mean(values), len(values), method=method, deviation=_deviation(values))


def _mean(values: Any) -> float:
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()) if array.size else math.nan


def _deviation(values: NDArray[Any]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
