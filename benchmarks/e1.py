"""E1, utility and centroids: is what an explainer has learned good enough to walk on?

For one pair, recipe and seed: the accuracy of the classifier M; whether rows sampled from the
model can stand in for real ones (TSTR: a forest trained on synthetic rows against one trained on
real rows, both tested on held-out rows labelled by M); whether M gives samples and centroids the
label they were made for; whether every cluster is used; whether prototypes are plausible and
differ; and whether paths lead somewhere: how plausible and near their picks are beside the nearest
training row M gives the target (NNCE).

Everything is measured in the units of one schema, the data set's, whatever the recipe.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from lapace.explainer.fitting import ranged
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from benchmarks.fits import Fit, Known, fit_of, known_of
from benchmarks.plan import Job
from benchmarks.store import Measure
from benchmarks.subjects import Subject, subject
from lapace import metrics
from lapace.arrays import Floats, Ints
from lapace.errors import InputError
from lapace.explainer import Explainer, Search
from lapace.result import Counterfactuals, Explanation
from lapace.schema import Schema

__all__ = ["measure"]


VERDICTS = {"passes": 1.0, "usable with care": 0.5, "fails": 0.0}


def measure(job: Job) -> list[Measure]:
    """All figures of one job.

    Args:
        job: The pair, the recipe, the seed and the settings.
    """
    given = subject(job.pair, job.seed, job.protocol.rows)
    fit = fit_of(job, given)
    known = known_of(given, fit.explainer)
    return [
        *_accuracy(given),
        *_costs(fit),
        *_utility(job, fit.explainer, known),
        *_centroids(fit.explainer, known),
        *_prototypes(job, fit.explainer, known),
        *_paths(job, given, fit.explainer, known),
    ]


# ------------------------------------------------------------------------------------------------
# The classifier and the fit


def _accuracy(given: Subject) -> Iterator[Measure]:
    said = np.asarray(given.model.predict(given.data.test))
    truth = np.asarray(given.data.test_labels)
    yield Measure("accuracy", float((said == truth).mean()), len(truth))
    yield Measure("rows", len(given.data.train), 1)
    yield Measure("columns", len(given.data.schema.features), 1)


def _costs(fit: Fit) -> Iterator[Measure]:
    """What the fit took; the report is part of a fit, and is also counted apart."""
    report = fit.explainer.report_
    yield Measure("fit_seconds", fit.seconds, 1)
    yield Measure("fit_processor_seconds", fit.processor, 1)
    yield Measure("fit_all_seconds", fit.all_seconds, fit.tries)
    yield Measure("fit_tries", fit.tries, 1)
    yield Measure("fit_asked", fit.n_queries, 1)
    yield Measure("report_seconds", fit.seconds - report.seconds, 1)
    yield Measure("report_asked", report.n_queries.report, 1)
    yield Measure("report_verdict", VERDICTS[report.verdict], 1)


# ------------------------------------------------------------------------------------------------
# Samples


class _Sample(NamedTuple):
    cells: Floats
    codes: Ints  # the labels they were drawn for


def _sampled(job: Job, explainer: Explainer, known: Known, verified: bool) -> _Sample:
    """Synthetic rows, as many of each label as there are real ones.

    No rows at all where M refuses to give some the label they have to be verified for.
    """
    cells, codes = [], []
    for code, label in enumerate(known.labels):
        count = int((known.codes == code).sum())
        if not explainer.fitted_.decoder.mixtures[code].means.shape[0]:
            continue  # too few rows of this label to have learned it
        seed = 100 * job.seed + code
        try:
            frame = explainer.sample(label, count, verified=verified, seed=seed)
        except InputError:
            if not verified:
                raise
            return _Sample(known.train[:0], known.codes[:0])
        cells.append(known.schema.cells(frame))
        codes.append(np.full(count, code))
    return _Sample(np.concatenate(cells), np.concatenate(codes))


def _utility(job: Job, explainer: Explainer, known: Known) -> Iterator[Measure]:
    """TSTR, raw as in the paper and verified; then how M takes the raw samples."""
    real, test = (known.train, known.codes), (known.test, known.test_codes)
    nothing = (known.train[:0], known.codes[:0])
    settings = {"trees": job.protocol.trees, "random_state": job.seed}
    raw = _sampled(job, explainer, known, verified=False)
    verified = _sampled(job, explainer, known, verified=True)
    found = metrics.utility(known.schema, real, raw, test, **settings)
    # The forest on real rows is the same, so it is not trained twice.
    other = metrics.utility(known.schema, nothing, verified, test, **settings)
    for name, one in (
        ("raw", found),
        ("verified", replace(other, real=found.real, balanced_real=found.balanced_real)),
    ):
        yield Measure(f"tstr_{name}", one.synthetic, len(known.test))
        yield Measure(f"tstr_{name}_balanced", one.balanced_synthetic, len(known.test))
        yield Measure(f"gap_{name}", one.gap, len(known.test))
        yield Measure(f"gap_{name}_balanced", one.balanced_gap, len(known.test))
    yield Measure("tstr_real", found.real, len(known.test))
    yield Measure("tstr_real_balanced", found.balanced_real, len(known.test))
    yield from _agreement(known, raw)


def _agreement(known: Known, sample: _Sample) -> Iterator[Measure]:
    """Whether M agrees with samples, and is as sure of them as of real rows."""
    judged = known.classifier.query(sample.cells)
    found = metrics.agreement(sample.codes, judged.codes)
    yield Measure("agreement", found.overall, len(sample.codes))
    for code, share in found.by_label.items():
        count = int((sample.codes == code).sum())
        yield Measure("agreement", share, count, known.named(code))
    real = known.classifier.predict_proba(known.train)
    if judged.probability is None or real is None:
        return
    target = known.target
    distance = metrics.ks(judged.probability[:, target], real[:, target])
    yield Measure("ks", distance, len(sample.codes))
    for code in np.unique(sample.codes).tolist():
        own, drawn = known.codes == code, sample.codes == code
        distance = metrics.ks(judged.probability[drawn, code], real[own, code])
        yield Measure("ks", distance, int(drawn.sum()), known.named(code))


# ------------------------------------------------------------------------------------------------
# Centroids


def _centroids(explainer: Explainer, known: Known) -> Iterator[Measure]:
    """Centroids M accepts as trained and after repair, and how evenly clusters are used."""
    prototypes = explainer.prototypes_
    count = len(prototypes)
    yield Measure("centroids_before", sum(p.valid_before for p in prototypes) / count, count)
    yield Measure("centroids_after", sum(p.valid for p in prototypes) / count, count)
    yield Measure("least_used", _least_used(explainer, known), count)


def _least_used(explainer: Explainer, known: Known) -> float:
    """The rows of the least used cluster over an even part, the least of any label.

    A row belongs to the cluster its q(c|x,y) says is likeliest.
    """
    decoder = explainer.fitted_.decoder
    model = decoder.model
    counts = model.shape.clusters
    rows = np.flatnonzero(np.array(counts)[known.codes] > 0)
    x = torch.as_tensor(decoder.schema.encode(known.train[rows]), dtype=torch.float32)
    y = torch.as_tensor(known.codes[rows])
    with torch.inference_mode():
        clusters = model.clusters(x.to(decoder.device), y.to(decoder.device)).cpu().numpy()
    used = np.bincount(clusters, minlength=sum(counts))
    ends = np.cumsum(counts)
    shares = [
        used[end - count : end].min() * count / max(1, used[end - count : end].sum())
        for end, count in zip(ends, counts, strict=True)
        if count
    ]
    return float(min(shares))


def _prototypes(job: Job, explainer: Explainer, known: Known) -> Iterator[Measure]:
    """How plausible the target's prototypes are, and how different beside k-means centroids.

    The paper's recipe walks to every centroid, accepted or not, so all of them count there.
    """
    kept = [
        p.cells
        for p in explainer.prototypes_
        if p.label == known.target and (p.valid or job.recipe == "paper")
    ]
    cells = np.array(kept).reshape(len(kept), len(known.schema.features))
    lof = known.usual.lof(cells)
    yield Measure("prototype_lof", metrics.typical(lof).mean, len(cells))
    yield Measure("prototype_lof_most", float(lof.max()) if len(lof) else math.nan, len(cells))
    own = metrics.spread(known.schema, cells)
    # Which centroids are a fair measure depends on the coding they are found in: report two.
    for name, coding in (("diversity", known.schema), ("diversity_ranged", ranged(known.schema))):
        centres = _k_means(coding, known.wanted, len(cells), job.seed)
        theirs = metrics.spread(known.schema, centres)
        yield Measure(name, own / theirs if theirs else math.nan, len(cells))


def _k_means(coding: Schema, rows: Floats, count: int, seed: int) -> Floats:
    """Centroids of k-means on the coded rows, as rows."""
    if count < 2:
        return rows[:0]
    encoded = coding.encode(rows)
    centres = KMeans(count, n_init=3, random_state=seed).fit(encoded).cluster_centers_
    return coding.decode(centres)


# ------------------------------------------------------------------------------------------------
# Paths


def _paths(job: Job, given: Subject, explainer: Explainer, known: Known) -> Iterator[Measure]:
    """Paths of instances with an unfavourable label, beside the nearest training row."""
    instances = known.test[known.test_codes != known.target][: job.protocol.instances]
    yield Measure("instances", len(instances), len(instances))
    if not explainer.fitted_.of_label(known.target) or not len(instances):
        return  # nowhere to walk to: the centroids above say so
    begin = time.perf_counter()
    frame = known.wide.frame(instances)
    answer = explainer.explain(frame, target=given.target, search=Search(steps=job.protocol.steps))
    yield Measure("explain_seconds", time.perf_counter() - begin, len(instances))
    yield Measure("explain_asked", answer.n_queries, len(instances))
    yield from _crossings(job, answer)
    picks = {
        "first": answer.first(),
        "middle": answer.middle(),
        "last": answer.last(),
        "nearest": answer.nearest(),
    }
    if job.recipe == "default":  # asked for apart: it costs rows the other picks do not
        again = explainer.explain(
            frame, target=given.target, search=Search(steps=job.protocol.steps, sparse=True)
        )
        yield Measure("sparse_asked", again.n_queries - answer.n_queries, len(instances))
        picks["sparse"] = again.sparse()
    yield from _picks(known, picks)
    yield from _beside_nnce(known, instances, picks)


def _picks(known: Known, picks: Mapping[str, Counterfactuals]) -> Iterator[Measure]:
    """How many rows of each pick are answers, how plausible those are, what they change."""
    for name, pick in picks.items():
        good = pick.where(pick.ok)
        yield Measure(f"{name}_valid", _mean(pick.ok), len(pick))
        yield Measure(f"{name}_changed", _mean(good.changed), len(good))
        yield from _lof(known, name, good.cells)


def _lof(known: Known, name: str, cells: Floats) -> Iterator[Measure]:
    found = metrics.typical(known.usual.lof(cells))
    yield Measure(f"{name}_lof", found.mean, len(cells))
    yield Measure(f"{name}_lof_median", found.median, len(cells))


def _beside_nnce(
    known: Known, instances: Floats, picks: Mapping[str, Counterfactuals]
) -> Iterator[Measure]:
    """NNCE, and how far the picks of one answer each are beside it, on the instances both answer."""
    away = known.schema.pairwise_distances(instances, known.wanted)  # (instances, rows)
    nnce = away.min(axis=1)
    yield from _lof(known, "nnce", known.wanted[away.argmin(axis=1)])
    answered = picks["nearest"].instance[picks["nearest"].ok]
    yield Measure("nnce_distance", _mean(nnce[answered]), len(answered))
    for name in ("nearest", "sparse"):
        if name in picks:
            both = picks[name].where(picks[name].ok)
            closer = both.distance <= nnce[both.instance] + 1e-9
            yield Measure(f"{name}_distance", _mean(both.distance), len(both))
            yield Measure(f"{name}_no_farther", _mean(closer), len(both))


def _crossings(job: Job, answer: Explanation) -> Iterator[Measure]:
    """Paths that leave the target again: after their first good step, and after `first`."""
    grid = slice(0, job.protocol.steps + 1)
    valid = answer.valid[:, grid]
    paths = np.arange(len(answer.instance))
    first = answer.picked["first"]
    found = answer.ok[paths, first]
    reached = int((valid == 1).any(axis=1).sum())
    yield Measure("recrossing_before", metrics.recrossing(valid), reached)
    later = answer.tau[:, grid] > answer.tau[paths, first][:, None]
    left = ((valid == 0) & later).any(axis=1)
    yield Measure("recrossing_after", _mean(left[found]), int(found.sum()))


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan
