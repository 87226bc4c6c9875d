"""Computes a report from plain arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from scipy.stats import mode

from lapace import metrics
from lapace.arrays import Floats, Ints
from lapace.metrics.synthetic import accuracies, forest_predictions
from lapace.report.document import (
    Check,
    Cluster,
    ColumnFit,
    FeatureValue,
    Figure,
    LabelFit,
    Report,
)
from lapace.report.explained import bootstrapped, explained_labels
from lapace.report.inputs import RARE, ReportInputs
from lapace.report.thresholds import THRESHOLDS
from lapace.schema import Schema

TREES = 50  # of the quick forests that compare sampled with real rows
MIN_TEST, MIN_ROWS, MIN_SAMPLE = 50, 20, 30  # rows below which a value is not computed
DUPLICATE = 0.1  # prototypes this near, in mean distances between rows of their label, are the same
DISTINCTIVE = 4  # features by which a prototype is described


_Predictions: TypeAlias = tuple[Ints, Ints] | str  # by forests of real and sampled rows, or why not


def make_report(inputs: ReportInputs) -> Report:
    """Everything a report says, from plain arrays.

    Real and sampled rows are compared by quick forests of 50 trees on at most 4,000 rows each: a
    few seconds, however large the table.

    Examples:
        >>> from lapace.report import ExplainedRows, LabelledRows, Recognised
        >>> rows = np.linspace(0.0, 2.5, 200)[:, None]
        >>> codes = (rows[:, 0] > 1).astype(np.int64)
        >>> known, every = LabelledRows(rows, codes), np.ones(200, dtype=bool)
        >>> explained = ExplainedRows(
        ...     rows, 1 - codes, every, every, rows[::-1], 50.0 * every, 0.9 * every, rows[::-1],
        ...     np.arange(200), ~every, codes,
        ... )
        >>> inputs = ReportInputs(
        ...     Schema.infer(rows), (False, True), codes, 5, "default", (), known, known, rows, {},
        ...     explained, 50.0 * every, Recognised(codes, codes),
        ... )
        >>> report = make_report(inputs)
        >>> report.verdict, [c.threshold.name for c in report.checks if c.verdict == "passes"]
        ('fails', ['answered', 'recognised', 'reconstruction'])
    """
    predictions = _forests(inputs)
    labels = tuple(_label(inputs, k, predictions) for k in range(len(inputs.labels)))
    clusters, columns, expected = _clusters(inputs), _columns(inputs), inputs.held_out.codes
    explained, of_explained = explained_labels(inputs)
    checks = [
        *_prototypes(labels),
        *of_explained,
        _reconstruction(inputs, columns),
        *_of_rules(inputs),
    ]
    figures = [
        *_of_clusters(labels, clusters),
        *_of_samples(inputs, labels),
        *_of_forests(expected, predictions),
    ]
    crossings = inputs.explained.crossings
    order = list(THRESHOLDS)
    return Report(
        recipe=inputs.recipe,
        rows=len(inputs.codes),
        held_out=len(inputs.held_out.cells),
        seconds=float(inputs.seconds),
        n_queries=inputs.n_queries,
        checks=tuple(sorted(checks, key=lambda check: order.index(check.threshold.name))),
        explained=explained,
        figures=tuple(figures),
        labels=labels,
        clusters=clusters,
        columns=columns,
        rules=tuple(inputs.rules),
        utility=None if isinstance(predictions, str) else accuracies(expected, *predictions),
        paths=len(crossings),
        recrossed=int((crossings > 0).sum()),
        warnings=_warnings(inputs, labels),
    )


def _least(figures: Sequence[Figure], *, higher: bool) -> list[Figure]:
    """The worst of one figure's values; none of none."""
    sign = 1 if higher else -1
    return sorted(figures, key=lambda figure: sign * (figure.value or 0.0))[:1]


def _too_few(rows: int, least: int) -> str:
    return f"{rows} rows held out, {least} needed: hand over {10 * least:,} or more"


# ------------------------------------------------------------------------------------------------
# Clusters


def _clusters(inputs: ReportInputs) -> tuple[Cluster, ...]:
    prototypes = inputs.prototypes
    if not prototypes:
        return ()
    cells = np.stack([p.cells for p in prototypes])  # (c, d)
    label = np.array([p.code for p in prototypes])
    members = np.array([p.members for p in prototypes])
    even = {k: float(members[label == k].mean()) for k in set(label)}
    near = {k: DUPLICATE * _row_distance(inputs, k) for k in set(label)}
    apart = inputs.schema.pairwise_distances(cells, cells)  # (c, c)
    apart[(label[:, None] != label) | np.eye(len(label), dtype=bool)] = np.inf
    distinctive = _distinctive(inputs, cells, label)
    found = []
    for i, p in enumerate(prototypes):
        least = float(apart[i].min())
        same = np.flatnonzero(apart[i, :i] <= near[p.code])
        found.append(
            Cluster(
                number=p.number,
                label=inputs.labels[p.code],
                members=int(p.members),
                share=float(p.members / even[p.code]) if even[p.code] else 0.0,
                valid_before=bool(p.valid_before),
                valid=bool(p.valid),
                probability=None if math.isnan(p.probability) else float(p.probability),
                note=p.note,
                distinctive=distinctive[i],
                separation=least if math.isfinite(least) else None,
                duplicate_of=prototypes[same[0]].number if len(same) else None,
            )
        )
    return tuple(found)


def _row_distance(inputs: ReportInputs, label: int) -> float:
    """Mean distance between two rows of a label; 0 where there are none to compare."""
    rows = inputs.real.cells[inputs.real.codes == label][:1000]
    rows = np.random.default_rng(inputs.random_state).permutation(rows)
    half = len(rows) // 2
    return float(inputs.schema.distance(rows[:half], rows[half : 2 * half]).mean()) if half else 0.0


def _distinctive(
    inputs: ReportInputs, cells: Floats, label: Ints
) -> list[tuple[FeatureValue, ...]]:
    """What sets each prototype apart from its label's others, or an only one from the table."""
    schema, rows = inputs.schema, inputs.real.cells
    if schema.shape or not len(rows):  # single pixels describe no image
        return [()] * len(cells)
    ranks = _ranks(schema, rows, cells)
    is_number = np.isin(np.arange(len(schema.features)), schema.numeric)
    found = []
    for i, k in enumerate(label):
        others = (label == k) & (np.arange(len(label)) != i)
        compared = ranks[others] if others.any() else _ranks(schema, rows, rows)
        usual = _usual(schema, rows[inputs.real.codes == k] if others.any() else rows)
        above = np.abs(ranks[i] - compared.mean(axis=0))
        contrast = np.where(is_number, above, (compared != ranks[i]).mean(axis=0))
        chosen = [j for j in np.argsort(-contrast, kind="stable")[:DISTINCTIVE] if contrast[j] > 0]
        features = [(schema.features[j], float(cells[i, j]), float(usual[j])) for j in chosen]
        found.append(tuple(FeatureValue(f.name, f.text(v), f.text(u)) for f, v, u in features))
    return found


def _ranks(schema: Schema, rows: Floats, cells: Floats) -> Floats:
    """Numbers as the share of rows under them, so that long tails do not hide a difference."""
    ranks = np.where(np.isnan(cells), -1.0, cells)
    for i in schema.numeric:
        present = np.sort(rows[~np.isnan(rows[:, i]), i])
        below, upto = (np.searchsorted(present, cells[:, i], side) for side in ("left", "right"))
        share = (below + upto) / max(1, 2 * len(present))
        ranks[:, i] = np.where(np.isnan(cells[:, i]), 0.5, share)
    return ranks


def _usual(schema: Schema, rows: Floats) -> Floats:
    """Each column's median or most frequent category; NaN where most values are missing."""
    usual = np.full(len(schema.features), np.nan)
    for i, feature in enumerate(schema.features):
        present = rows[~np.isnan(rows[:, i]), i]
        if len(present) > len(rows) / 2:
            middle = np.quantile(present, 0.5, method="lower")
            usual[i] = middle if feature.numeric else mode(present).mode
    return usual


def _prototypes(labels: Sequence[LabelFit]) -> list[Check]:
    """The label with the fewest valid prototypes; none where there are no clusters."""
    tried = sorted((x for x in labels if x.clusters), key=lambda x: x.prototypes)
    return [
        Check(THRESHOLDS["prototypes"], x.prototypes, where=f"label {x.label!r}") for x in tried[:1]
    ]


def _of_clusters(labels: Sequence[LabelFit], clusters: Sequence[Cluster]) -> list[Figure]:
    rare = [repr(x.label) for x in labels if not x.clusters]
    found = [Figure("rare", "labels without enough rows", "count", len(rare), ", ".join(rare))]
    if not clusters:
        return found
    total, refused = len(clusters), [str(c.number) for c in clusters if not c.valid]
    listed = "refused: " * bool(refused) + ", ".join(refused)
    same = [f"{c.number} and {c.duplicate_of}" for c in clusters if c.duplicate_of is not None]
    valid = "prototypes valid, after repair"
    before = sum(c.valid_before for c in clusters) / total
    usage = "least used cluster, of even share"
    share = [Figure("usage", usage, "ratio", c.share, f"cluster {c.number}") for c in clusters]
    return [
        *found,
        Figure("valid_prototypes", valid, "share", 1 - len(refused) / total, listed),
        Figure("valid_before", "centroids valid, before repair", "share", before),
        *_least(share, higher=True),
        Figure("duplicates", "prototypes like another", "count", len(same), ", ".join(same)),
    ]


# ------------------------------------------------------------------------------------------------
# Sampled rows


def _forests(inputs: ReportInputs) -> _Predictions:
    """What forests of real and of sampled rows predict of the held-out rows, or why nothing."""
    real, test = inputs.real, inputs.held_out.cells
    if len(test) < MIN_TEST:
        return _too_few(len(test), MIN_TEST)
    counts = np.bincount(real.codes, minlength=len(inputs.labels))
    drawn = {k: rows.cells[: counts[k]] for k, rows in inputs.sampled.items()}
    if not sum(map(len, drawn.values())):
        return "no rows could be sampled"
    # Rows carry the label they were drawn for, whatever the classifier says: as in the paper.
    codes = np.repeat(list(drawn), [len(rows) for rows in drawn.values()])
    sides = ((real.cells, real.codes), (np.concatenate(list(drawn.values())), codes))
    schema, seed = inputs.schema, inputs.random_state
    real_side, sampled_side = (forest_predictions(schema, s, test, TREES, seed) for s in sides)
    return real_side, sampled_side


def _label(inputs: ReportInputs, k: int, predictions: _Predictions) -> LabelFit:
    test = inputs.held_out.codes == k
    prototypes = [p for p in inputs.prototypes if p.code == k]
    drawn = inputs.sampled.get(k)
    recalls: list[float | None] = [None, None]
    if not isinstance(predictions, str) and test.sum() >= MIN_ROWS:
        recalls = [float((side[test] == k).mean()) for side in predictions]
    ks, overconfidence = _certainty(inputs, k)
    return LabelFit(
        label=inputs.labels[k],
        rows=int((inputs.codes == k).sum()),
        held_out=int(test.sum()),
        clusters=len(prototypes),
        prototypes=sum(p.valid for p in prototypes),
        sampled=len(drawn.cells) if drawn else 0,
        agreement=float((drawn.codes == k).mean()) if drawn and len(drawn.cells) else None,
        ks=ks,
        overconfidence=overconfidence,
        recall_real=recalls[0],
        recall_sampled=recalls[1],
    )


def _certainty(inputs: ReportInputs, k: int) -> tuple[float | None, float | None]:
    """KS distance of a label's probability on real and sampled rows, two- and one-sided."""
    drawn, held_out = inputs.sampled.get(k), inputs.held_out
    if drawn is None or drawn.probability is None or held_out.probability is None:
        return None, None
    real, sampled = held_out.probability[held_out.codes == k, k], drawn.probability[:, k]
    if min(len(real), len(sampled)) < MIN_SAMPLE:
        return None, None
    return metrics.ks(real, sampled), metrics.ks(real, sampled, "greater")


def _of_samples(inputs: ReportInputs, labels: Sequence[LabelFit]) -> list[Figure]:
    agreement, certainty = "sampled rows given their label", "overconfident on sampled rows (KS)"
    agree = [
        Figure("agreement", agreement, "share", x.agreement, f"label {x.label!r}")
        for x in labels
        if x.agreement is not None
    ]
    sure = [
        Figure("overconfidence", certainty, "ratio", x.overconfidence, f"label {x.label!r}")
        for x in labels
        if x.overconfidence is not None
    ]
    reason = f"no label has {MIN_SAMPLE} rows held out"
    if inputs.held_out.probability is None:
        reason = "the classifier offers no probabilities"
    unsampled = Figure("agreement", agreement, "share", None, "no rows could be sampled")
    return [
        *(_least(agree, higher=True) or [unsampled]),
        *(
            _least(sure, higher=False)
            or [Figure("overconfidence", certainty, "ratio", None, reason)]
        ),
    ]


def _of_forests(expected: Ints, predictions: _Predictions) -> list[Figure]:
    names = {
        "utility": "TSTR gap: accuracy lost",
        "balanced": "TSTR gap: balanced accuracy lost",
    }
    if isinstance(predictions, str):
        return [Figure(name, text, "points", None, predictions) for name, text in names.items()]
    utility = accuracies(expected, *predictions)
    gaps = (utility.gap, utility.balanced_gap)
    return [
        Figure(name, text, "points", float(gap))
        for (name, text), gap in zip(names.items(), gaps, strict=True)
    ]


# ------------------------------------------------------------------------------------------------
# Columns, paths, rules


def _columns(inputs: ReportInputs) -> tuple[ColumnFit, ...]:
    schema, rows = inputs.schema, inputs.held_out.cells
    if len(rows) < MIN_ROWS:
        return ()
    errors = schema.range_gaps(rows, inputs.reconstructed).mean(axis=0)
    baselines = schema.range_gaps(rows, _usual(schema, inputs.real.cells)[None]).mean(axis=0)
    each = zip(schema.features, errors, baselines, strict=True)
    return tuple(ColumnFit(f.name, f.kind, float(error), float(base)) for f, error, base in each)


def _reconstruction(inputs: ReportInputs, columns: Sequence[ColumnFit]) -> Check:
    threshold, rows = THRESHOLDS["reconstruction"], inputs.held_out.cells
    if not columns:
        return Check(threshold, None, reason=_too_few(len(rows), MIN_ROWS))
    schema = inputs.schema
    error = schema.range_gaps(rows, inputs.reconstructed).sum(axis=1)
    baseline = schema.range_gaps(rows, _usual(schema, inputs.real.cells)[None]).sum(axis=1)
    if not baseline.sum():
        return Check(threshold, None, reason="the held-out rows are all alike")

    def ratio(some: Ints) -> float:
        below = baseline[some].sum()
        return float(error[some].sum() / below) if below else math.nan

    return bootstrapped("reconstruction", ratio, len(rows), inputs.random_state)


def _of_rules(inputs: ReportInputs) -> list[Check]:
    shares = sorted((r.share, r.text) for r in inputs.rules if r.share is not None)
    return [Check(THRESHOLDS["rules"], share, where=f"'{text}'") for share, text in shares[:1]]


def _warnings(inputs: ReportInputs, labels: Sequence[LabelFit]) -> tuple[str, ...]:
    """What is scarce, label by label."""
    found = []
    for x in labels if inputs.prototypes else ():
        rows = f"Label {x.label!r} has {x.rows:,} row{'s' * (x.rows != 1)}"
        if not x.clusters:
            found.append(f"{rows}: too few for a prototype, so no path leads to it.")
        elif x.clusters < inputs.n_prototypes:
            wanted = f"{inputs.n_prototypes} clusters asked for"
            found.append(f"{rows} and got {x.clusters} of the {wanted}.")
        elif x.rows < RARE:
            found.append(f"{rows}: its values are uncertain.")
    return tuple(found)
