"""E1, utility and centroids: has an explainer learned enough for its paths to be of use?

For one pair, recipe and seed: the accuracy of the classifier M; whether rows sampled from the model
can replace real ones (TSTR: a forest trained on synthetic rows against one trained on real rows,
both tested on held-out rows labelled by M); whether M gives samples and centroids the label they
were made for; whether every cluster is used; whether prototypes are plausible and differ; and how
plausible and near the picks of paths are, compared with the nearest training row M gives the target
(NNCE). `readings` has the utility on the paper's split, where test rows are cut from those M was
trained on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from sklearn.cluster import KMeans

from benchmarks import paper_metrics
from benchmarks.fits import Fit, Setup, fitted, setup_of, spent
from benchmarks.jobs import Measure
from benchmarks.plan import PAPER_SIDES, Job
from lapace import Explainer, Search, metrics
from lapace.arrays import Floats, Ints
from lapace.explainer.fit import range_coded
from lapace.result import Explanation
from lapace.schema import Schema

__all__ = ["measure"]

VERDICTS = {"passes": 1.0, "unsure": 0.5, "fails": 0.0}


def measure(job: Job) -> Iterator[Measure]:
    """Yields all figures of one job."""
    setup, found = setup_of(job), fitted(job)
    predicted = np.asarray(setup.model.predict(setup.data.test))
    yield Measure.of("accuracy", predicted == np.asarray(setup.data.test_labels))
    yield Measure("rows", len(setup.train), 1)
    yield Measure("columns", len(setup.schema.features), 1)
    yield from _costs(found)
    yield from _utility(job, found.explainer, setup)
    yield from _centroids(found, setup)
    yield from _prototypes(job, found.explainer, setup)
    yield from _paths(job, found.explainer, setup)


def _costs(fit: Fit) -> Iterator[Measure]:
    """Yields what the fit took; the report is part of a fit, and is also counted apart."""
    report = fit.explainer.report_
    yield Measure("fit_seconds", fit.seconds, 1)
    yield Measure("fit_processor_seconds", fit.processor, 1)
    yield Measure("fit_all_seconds", fit.all_seconds, fit.tries)
    yield Measure("fit_tries", fit.tries, 1)
    yield Measure("fit_queries", fit.n_queries, 1)
    yield Measure("report_seconds", fit.seconds - report.seconds, 1)
    yield Measure("report_queries", report.n_queries["report"], 1)
    yield Measure("report_verdict", VERDICTS[report.verdict], 1)


# ------------------------------------------------------------------------------------------------
# Samples


class _Sample(NamedTuple):
    cells: Floats
    codes: Ints  # the labels they were drawn for


def _sampled(job: Job, explainer: Explainer, setup: Setup, verified: bool) -> _Sample:
    """Synthetic rows, as many of each label as there are real ones.

    No rows at all where M does not give a label to all samples that have to be verified for it.
    """
    cells, codes = [], []
    for code, label in enumerate(setup.classifier.labels):
        count = int((setup.codes == code).sum())
        if not explainer.fitted_.decoder.mixtures[code].means.shape[0]:
            continue  # too few rows of this label to have learned it
        state = 100 * job.seed + code
        frame = explainer.sample(label, count, verified=verified, random_state=state)
        if len(frame) < count:
            return _Sample(setup.train[:0], setup.codes[:0])
        cells.append(setup.schema.cells(frame))
        codes.append(np.full(count, code))
    return _Sample(np.concatenate(cells), np.concatenate(codes))


def _utility(job: Job, explainer: Explainer, setup: Setup) -> Iterator[Measure]:
    """TSTR, raw as in the paper and verified; then how M labels the raw samples."""
    test, count = (setup.test, setup.test_codes), len(setup.test)
    raw, verified = (_sampled(job, explainer, setup, verified=flag) for flag in (False, True))
    settings = {"trees": job.protocol.trees, "random_state": job.seed}
    found = paper_metrics.utility(setup.schema, (setup.train, setup.codes), raw, test, **settings)
    # The forest on real rows is the same, so it is not trained twice.
    nothing = (setup.train[:0], setup.codes[:0])
    other = paper_metrics.utility(setup.schema, nothing, verified, test, **settings)
    other = replace(other, real=found.real, balanced_real=found.balanced_real)
    for name, one in (("raw", found), ("verified", other)):
        yield Measure(f"tstr_{name}", one.synthetic, count)
        yield Measure(f"tstr_{name}_balanced", one.balanced_synthetic, count)
        yield Measure(f"gap_{name}", one.gap, count)
        yield Measure(f"gap_{name}_balanced", one.balanced_gap, count)
    yield Measure("tstr_real", found.real, count)
    yield Measure("tstr_real_balanced", found.balanced_real, count)
    yield from _agreement(setup, raw)


def _agreement(setup: Setup, sample: _Sample) -> Iterator[Measure]:
    """Yields how often M gives samples the labels they were drawn for."""
    found = paper_metrics.agreement(sample.codes, setup.classifier.predict(sample.cells))
    labels = [str(label) for label in setup.classifier.labels]
    yield Measure("agreement", found.overall, len(sample.codes))
    for code, share in found.by_label.items():
        yield Measure("agreement", share, int((sample.codes == code).sum()), labels[code])


# ------------------------------------------------------------------------------------------------
# Centroids


def _centroids(found: Fit, setup: Setup) -> Iterator[Measure]:
    """Centroids valid as trained and after repair, and how evenly clusters are used."""
    explainer, prototypes = found.explainer, found.explainer.prototypes_
    count = len(prototypes)
    yield Measure("centroids_first_try", found.first_valid / count, count)
    yield Measure.of("centroids_before", [p.valid_before for p in prototypes])
    yield Measure.of("centroids_after", [p.valid for p in prototypes])
    for metric, value in _usage(explainer, setup).items():
        yield Measure(metric, value, count)


def _usage(explainer: Explainer, setup: Setup) -> dict[str, float]:
    """Returns how clusters are used on the label on which they are used worst.

    `least_used`: the rows of the least used cluster over an even share, a row in the cluster of
    largest q(c|x,y). `least_used_soft`: the same by the sum of q(c|x,y). `entropy`: of q(c|x,y),
    its mean over rows, over the logarithm of the number of clusters: 1 where every row belongs to
    all clusters alike. It is largest on the worst label.
    """
    decoder = explainer.fitted_.decoder
    counts = decoder.model.shape.clusters
    rows = np.flatnonzero(np.array(counts)[setup.codes] > 0)
    x = torch.as_tensor(decoder.schema.encode(setup.train[rows]), dtype=torch.float32)
    y = torch.as_tensor(setup.codes[rows])
    with torch.inference_mode():
        log_c = decoder.model.q_c(x.to(decoder.device), y.to(decoder.device)).cpu()
    pi, places = log_c.exp().numpy(), np.cumsum(counts)[:-1]
    hard = np.bincount(pi.argmax(axis=1), minlength=sum(counts))
    entropy = -(pi * np.log(np.maximum(pi, 1e-12))).sum(axis=1)
    labels = [k for k, count in enumerate(counts) if count > 1]
    shares = {
        name: float(min(own.min() * len(own) / max(1e-9, own.sum()) for own in parts if len(own)))
        for name, parts in (
            ("least_used", np.split(hard, places)),
            ("least_used_soft", np.split(pi.sum(axis=0), places)),
        )
    }
    worst = [entropy[setup.codes[rows] == k].mean() / np.log(counts[k]) for k in labels]
    return {**shares, "entropy": float(max(worst, default=math.nan))}


def _prototypes(job: Job, explainer: Explainer, setup: Setup) -> Iterator[Measure]:
    """Yields how plausible the target's prototypes are, and how different beside k-means centroids.

    Paths of the paper's recipe lead to every centroid, valid or not, so all of them count there.
    """
    kept = [
        p.cells
        for p in explainer.prototypes_
        if p.code == setup.target and (p.valid or job.recipe in PAPER_SIDES)
    ]
    cells = np.array(kept).reshape(len(kept), len(setup.schema.features))
    lof = setup.plausibility.lof(cells)
    yield Measure.of("prototype_lof", lof)
    yield Measure("prototype_spread", paper_metrics.spread(setup.schema, cells), len(cells))
    yield Measure("prototype_lof_max", float(lof.max()) if len(lof) else math.nan, len(cells))
    own = paper_metrics.spread(setup.schema, cells)
    # Which centroids are a fair comparison depends on the coding they are found in: report two.
    for name, coding in (
        ("diversity", setup.schema),
        ("diversity_ranged", range_coded(setup.schema)),
    ):
        centroids = _k_means(coding, setup.target_rows, len(cells), job.seed)
        other = paper_metrics.spread(setup.schema, centroids)
        yield Measure(name, own / other if other else math.nan, len(cells))


def _k_means(coding: Schema, rows: Floats, count: int, seed: int) -> Floats:
    """Centroids of k-means on the encoded rows, as rows."""
    if count < 2:
        return rows[:0]
    found = KMeans(count, n_init=3, random_state=seed).fit(coding.encode(rows))
    return coding.decode(found.cluster_centers_)


# ------------------------------------------------------------------------------------------------
# Paths


def _paths(job: Job, explainer: Explainer, setup: Setup) -> Iterator[Measure]:
    """Paths of instances with an unfavourable label, compared with the nearest training row."""
    count = len(setup.instances)
    yield Measure("instances", count, count)
    if not explainer.fitted_.of_label(setup.target) or not count:
        return  # no prototype of the target: the centroids above show it
    names = ("first", "middle", "last")
    search = Search(steps=job.protocol.steps, picks=names)
    with spent() as cost:
        explanation = explainer.explain(setup.frame, target=setup.data.target, search=search)
    yield Measure("explain_seconds", cost.wall, count)
    yield Measure("explain_queries", explanation.n_queries, count)
    yield from _crossings(job, explanation)
    for name in names:
        pick = getattr(explanation, name)()
        ok = pick.where(pick.ok)
        yield Measure.of(f"{name}_valid", pick.ok)
        yield Measure.of(f"{name}_changed", ok.changed)
        yield from _lof(setup, name, ok.cells)
    away = setup.schema.metric.pairwise(setup.instances, setup.target_rows)  # (instances, rows)
    yield from _lof(setup, "nnce", setup.target_rows[away.argmin(axis=1)])


def _lof(setup: Setup, name: str, cells: Floats) -> Iterator[Measure]:
    lof = setup.plausibility.lof(cells)
    yield Measure.of(f"{name}_lof", lof)
    yield Measure(f"{name}_lof_median", metrics.median(lof), len(cells))


def _crossings(job: Job, explanation: Explanation) -> Iterator[Measure]:
    """Paths that leave the target again: after their first ok step, and after `first`."""
    grid = slice(0, job.protocol.steps + 1)
    valid, tau = explanation.valid[:, grid], explanation.tau[:, grid]
    paths, first = np.arange(len(valid)), explanation.picked["first"]
    reached = int((valid == 1).any(axis=1).sum())
    yield Measure("recrossing_before", paper_metrics.recrossing(valid), reached)
    later = tau > explanation.tau[paths, first][:, None]
    left = ((valid == 0) & later).any(axis=1)
    yield Measure.of("recrossing_after", left[explanation.ok[paths, first]])
