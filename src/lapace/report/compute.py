"""Computes a report from plain arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import binomtest, mode

from lapace.arrays import Bools, Floats, Ints
from lapace.metrics import Plausibility, mean, median
from lapace.report.checks import THRESHOLDS, Check
from lapace.report.document import Cluster, ColumnFit, ExplainedLabel, LabelFit, Report
from lapace.report.inputs import RARE, Recognised, ReportInputs
from lapace.schema import Schema
from lapace.schema.distance import kneighbors

LEVEL = 0.9  # confidence of every interval
Z = 1.645  # the normal distribution's 95% quantile
RESAMPLES = 400  # bootstrap samples
STRANGE = 0.95  # a row less usual than this share of real rows is strange
MIN_ROWS = 20  # held-out rows below which columns are not judged
MIN_REAL = 20  # real rows of a label below which nothing is called usual
MIN_PATHS = 20  # paths below which re-crossing is not judged


def make_report(inputs: ReportInputs) -> Report:
    """Makes the report from plain arrays.

    Examples:
        >>> from lapace.report import ExplainedRows, LabelledRows
        >>> rows = np.linspace(0.0, 2.5, 200)[:, None]
        >>> codes = (rows[:, 0] > 1).astype(np.int64)
        >>> labelled, every = LabelledRows(rows, codes), np.ones(200, dtype=bool)
        >>> explained = ExplainedRows(
        ...     rows, 1 - codes, every, every, rows[::-1], 50.0 * every, 0.9 * every, rows[::-1],
        ...     np.arange(200), ~every, codes,
        ... )
        >>> inputs = ReportInputs(
        ...     Schema.infer(rows), (False, True), codes, 5, "default", (), labelled, labelled,
        ...     rows, explained, 50.0 * every, Recognised(codes, codes),
        ... )
        >>> report = make_report(inputs)
        >>> report.verdict, [c.threshold.name for c in report.checks if c.verdict == "passes"]
        ('fails', ['answered', 'recognised', 'reconstruction'])
    """
    labels = tuple(_label(inputs, k) for k in range(len(inputs.labels)))
    explained, usual, ratio = _explained(inputs)
    checks = [
        *_prototypes(labels),
        *_explained_checks(inputs, usual, ratio),
        recognised(inputs.recognised),
        _reconstruction(inputs),
        *_rules(inputs),
    ]
    order = list(THRESHOLDS)
    return Report(
        recipe=inputs.recipe,
        rows=len(inputs.codes),
        held_out=len(inputs.held_out.cells),
        seconds=float(inputs.seconds),
        n_queries=inputs.n_queries,
        checks=tuple(sorted(checks, key=lambda check: order.index(check.threshold.name))),
        explained=explained,
        labels=labels,
        clusters=_clusters(inputs),
        columns=_columns(inputs),
        rules=tuple(inputs.rules),
        warnings=_warnings(inputs, labels),
    )


# ------------------------------------------------------------------------------------------------
# Values with intervals


def share_check(name: str, flags: Bools, reason: str) -> Check:
    """Returns the check of a share of rows, with Wilson's interval.

    Args:
        name: The threshold's name.
        flags: One flag per row.
        reason: The reason why there is no value, where there are no rows.
    """
    if not len(flags):
        return Check(THRESHOLDS[name], None, reason=reason)
    interval = binomtest(int(flags.sum()), len(flags)).proportion_ci(LEVEL, "wilson")
    return Check(THRESHOLDS[name], float(flags.mean()), interval.low, interval.high)


def _bootstrapped(
    name: str, statistic: Callable[[Ints], float], count: int, random_state: int
) -> Check:
    """Returns the check of a statistic of `count` rows, given by position, with its interval."""
    rng = np.random.default_rng(random_state)
    drawn = [statistic(rng.integers(count, size=count)) for _ in range(RESAMPLES)]
    low, high = np.nanquantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = statistic(np.arange(count))
    return Check(THRESHOLDS[name], value, min(float(low), value), max(float(high), value))


# ------------------------------------------------------------------------------------------------
# Counterfactuals of held-out rows


def _explained(inputs: ReportInputs) -> tuple[tuple[ExplainedLabel, ...], Floats, Floats]:
    """Returns the counterfactuals by target, and two values per instance, NaN where unknown.

    The first is 1 where an instance has a usual counterfactual, else 0. The second is the distance
    of its nearest counterfactual over that of its nearest training row of the target.
    """
    explained = inputs.explained
    usual, ratio = (np.full(len(explained.targets), np.nan) for _ in range(2))
    labels = []
    for k in np.unique(explained.targets[explained.feasible]).tolist():
        tried = explained.feasible & (explained.targets == k)
        answered = np.flatnonzero(tried & explained.answered)
        before, after = explained.instances[answered], explained.nearest[answered]
        distance = inputs.schema.distance(before, after)
        real = inputs.real.cells[inputs.real.codes == k]
        to_real = np.full(len(answered), np.nan)
        if len(real):
            to_real = kneighbors(inputs.schema, before, real)[0][:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio[answered] = np.where(to_real > 0, distance / to_real, np.nan)
        among = Plausibility(inputs.schema, real, max_rows=2000, random_state=inputs.random_state)
        lof, lof_real = np.full(len(answered), np.nan), np.empty(0)
        if len(among.rows) >= MIN_REAL:
            lof, lof_real = among.lof(after), among.lof_of_rows()
            returned = np.flatnonzero(explained.valid & np.isin(explained.instance, answered))
            fine = among.lof(explained.returned[returned]) <= np.quantile(lof_real, STRANGE)
            usual[answered] = np.isin(answered, explained.instance[returned[fine]])
        less_usual = mean(lof_real >= median(lof)) if len(answered) else math.nan
        labels.append(
            ExplainedLabel(
                label=inputs.labels[k],
                tried=int(tried.sum()),
                answered=len(answered),
                changed=_or_none(median(inputs.schema.changed(before, after).sum(axis=1))),
                distance=_or_none(mean(distance)),
                training_distance=_or_none(mean(to_real)),
                usual=_or_none(less_usual),
                lof=_or_none(median(lof)),
                lof_real=_or_none(median(lof_real)),
                density=_or_none(median(explained.density[answered])),
                density_real=_or_none(median(inputs.density[inputs.held_out.codes == k])),
                survival=_or_none(mean(explained.survival[answered])),
            )
        )
    return tuple(labels), usual, ratio


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _explained_checks(inputs: ReportInputs, usual: Floats, ratio: Floats) -> list[Check]:
    explained = inputs.explained
    usual, ratio = usual[~np.isnan(usual)], ratio[~np.isnan(ratio)]
    closer = Check(THRESHOLDS["closer"], None, reason="no training row to compare with")
    if len(ratio):
        closer = _bootstrapped(
            "closer", lambda rows: float(np.median(ratio[rows])), len(ratio), inputs.random_state
        )
    none = "no instance could be explained"
    crossed = explained.crossings > 0
    few = f"{len(crossed)} paths computed, {MIN_PATHS} needed"
    return [
        share_check("answered", explained.answered[explained.feasible], none),
        share_check("valid", explained.valid, none),
        share_check("usual", usual > 0, f"no label has {MIN_REAL} real rows to compare with"),
        closer,
        share_check("recrossing", crossed if len(crossed) >= MIN_PATHS else crossed[:0], few),
    ]


def recognised(rows: Recognised) -> Check:
    r"""Returns the check of the labels that the model recognises, beyond chance.

    With $r_k$ the share recognised of label k and L labels, $(\bar r - 1/L) / (1 - 1/L)$: 0 for a
    guess, 1 where every label is recognised. Chance does not depend on how frequent labels are.
    """
    labels = np.unique(rows.codes)
    if len(labels) < 2:
        return Check(THRESHOLDS["recognised"], None, reason="rows of one label only")
    right = [rows.recognised[rows.codes == k] == k for k in labels]
    chance = 1 / len(labels)
    # Two rows added, one right and one wrong, so that a share of 1 has a spread too.
    guessed = [(flags.sum() + 1) / (len(flags) + 2) for flags in right]
    spread = math.sqrt(
        sum(p * (1 - p) / (len(flags) + 2) for p, flags in zip(guessed, right, strict=True))
    )
    value = float(np.mean([flags.mean() for flags in right]))
    margin = Z * spread / len(labels)
    low, middle, high = (
        (v - chance) / (1 - chance) for v in (value - margin, value, min(1.0, value + margin))
    )
    return Check(THRESHOLDS["recognised"], middle, low, high)


# ------------------------------------------------------------------------------------------------
# Labels, clusters, columns, rules


def _label(inputs: ReportInputs, k: int) -> LabelFit:
    prototypes = [p for p in inputs.prototypes if p.code == k]
    return LabelFit(
        label=inputs.labels[k],
        rows=int((inputs.codes == k).sum()),
        held_out=int((inputs.held_out.codes == k).sum()),
        clusters=len(prototypes),
        prototypes=sum(bool(p.valid) for p in prototypes),
    )


def _clusters(inputs: ReportInputs) -> tuple[Cluster, ...]:
    return tuple(
        Cluster(
            number=p.number,
            label=inputs.labels[p.code],
            members=int(p.members),
            valid_before=bool(p.valid_before),
            valid=bool(p.valid),
            probability=_or_none(p.probability),
            note=p.note,
        )
        for p in inputs.prototypes
    )


def _prototypes(labels: Sequence[LabelFit]) -> list[Check]:
    """Returns the check of the label with the fewest valid prototypes; none without clusters."""
    tried = sorted((x for x in labels if x.clusters), key=lambda x: x.prototypes)
    return [
        Check(THRESHOLDS["prototypes"], float(x.prototypes), where=f"label {x.label!r}")
        for x in tried[:1]
    ]


def _columns(inputs: ReportInputs) -> tuple[ColumnFit, ...]:
    if len(inputs.held_out.cells) < MIN_ROWS:
        return ()
    error, baseline = (gaps.mean(axis=0) for gaps in _errors(inputs))
    each = zip(inputs.schema.features, error.tolist(), baseline.tolist(), strict=True)
    return tuple(ColumnFit(f.name, f.kind, wrong, base) for f, wrong, base in each)


def _reconstruction(inputs: ReportInputs) -> Check:
    threshold, count = THRESHOLDS["reconstruction"], len(inputs.held_out.cells)
    if count < MIN_ROWS:
        reason = f"{count} rows held out, {MIN_ROWS} needed: hand over {10 * MIN_ROWS} or more"
        return Check(threshold, None, reason=reason)
    error, baseline = (gaps.sum(axis=1) for gaps in _errors(inputs))
    if not baseline.sum():
        return Check(threshold, None, reason="the held-out rows are all alike")

    def ratio(rows: Ints) -> float:
        below = baseline[rows].sum()
        return float(error[rows].sum() / below) if below else math.nan

    return _bootstrapped("reconstruction", ratio, count, inputs.random_state)


def _errors(inputs: ReportInputs) -> tuple[Floats, Floats]:
    """Returns the errors of reconstructing each held-out cell, and of predicting the usual one."""
    schema, rows = inputs.schema, inputs.held_out.cells
    usual = _usual(schema, inputs.real.cells)[None]
    return schema.range_gaps(rows, inputs.reconstructed), schema.range_gaps(rows, usual)


def _usual(schema: Schema, rows: Floats) -> Floats:
    """Returns each column's median or most frequent category; NaN where most are missing."""
    usual = np.full(len(schema.features), np.nan)
    for i, feature in enumerate(schema.features):
        present = rows[~np.isnan(rows[:, i]), i]
        if len(present) > len(rows) / 2:
            middle = np.quantile(present, 0.5, method="lower")
            usual[i] = middle if feature.numeric else mode(present).mode
    return usual


def _rules(inputs: ReportInputs) -> list[Check]:
    """Returns the check of the rule that holds on the fewest rows; none without rules."""
    shares = sorted((r.share, r.text) for r in inputs.rules if r.share is not None)
    return [Check(THRESHOLDS["rules"], share, where=f"'{text}'") for share, text in shares[:1]]


def _warnings(inputs: ReportInputs, labels: Sequence[LabelFit]) -> tuple[str, ...]:
    """Returns a sentence for every label with few rows or clusters."""
    sentences = []
    for x in labels if inputs.prototypes else ():
        rows = f"Label {x.label!r} has {x.rows:,} row{'s' * (x.rows != 1)}"
        if not x.clusters:
            sentences.append(f"{rows}: too few for a prototype, so no path leads to it.")
        elif x.clusters < inputs.n_prototypes:
            wanted = f"{inputs.n_prototypes} clusters asked for"
            sentences.append(f"{rows} and got {x.clusters} of the {wanted}.")
        elif x.rows < RARE:
            sentences.append(f"{rows}: its values are uncertain.")
    return tuple(sentences)
