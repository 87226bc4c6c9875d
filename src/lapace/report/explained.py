"""What a report says of the counterfactuals that came back for held-out rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.stats import binomtest

from lapace.arrays import Bools, Floats, Ints
from lapace.metrics import Plausibility
from lapace.metrics.neighbours import kneighbors, mean, median
from lapace.report.document import Check, ExplainedLabel
from lapace.report.inputs import Recognised, ReportInputs
from lapace.report.thresholds import THRESHOLDS

LEVEL = 0.9  # of every interval
Z = 1.645  # the normal distribution's 95 % quantile
RESAMPLES = 400  # bootstrap samples
STRANGE = 0.95  # rows less usual than this share of real rows are strange
MIN_REAL = 20  # real rows of a label needed to say what is usual
MIN_PATHS = 20


def share_check(name: str, flags: Bools, where: str = "", reason: str = "") -> Check:
    """A share of rows, with Wilson's interval."""
    if not len(flags):
        return Check(THRESHOLDS[name], None, reason=reason)
    interval = binomtest(int(flags.sum()), len(flags)).proportion_ci(LEVEL, "wilson")
    return Check(THRESHOLDS[name], float(flags.mean()), interval.low, interval.high, where)


def bootstrapped(
    name: str, statistic: Callable[[Ints], float], count: int, random_state: int, where: str = ""
) -> Check:
    """A statistic of some rows, given by position, with its bootstrap interval."""
    rng = np.random.default_rng(random_state)
    drawn = [statistic(rng.integers(count, size=count)) for _ in range(RESAMPLES)]
    low, high = np.nanquantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = statistic(np.arange(count))
    return Check(THRESHOLDS[name], value, min(float(low), value), max(float(high), value), where)


def explained_labels(inputs: ReportInputs) -> tuple[tuple[ExplainedLabel, ...], list[Check]]:
    """What came back, target by target, and the checks of it."""
    found = inputs.explained
    usual, ratio = (np.full(len(found.targets), np.nan) for _ in range(2))
    labels = []
    for k in np.unique(found.targets[found.feasible]).tolist():
        mine = found.feasible & (found.targets == k)
        rows = np.flatnonzero(mine & found.answered)
        real = inputs.real.cells[inputs.real.codes == k]
        near = np.full(len(rows), np.nan)
        if len(real):
            near = kneighbors(inputs.schema, found.instances[rows], real)[0][:, 0]
        away = inputs.schema.distance(found.instances[rows], found.nearest[rows])
        known = Plausibility(inputs.schema, real, max_rows=2000, random_state=inputs.random_state)
        factor, of_real = np.full(len(rows), np.nan), np.empty(0)
        if len(known.rows) >= MIN_REAL:
            factor, of_real = known.lof(found.nearest[rows]), known.lof_of_rows()
            own = np.flatnonzero(found.valid & np.isin(found.instance, rows))
            fine = known.lof(found.returned[own]) <= np.quantile(of_real, STRANGE)
            usual[rows] = np.isin(rows, found.instance[own[fine]])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio[rows] = np.where(near > 0, away / near, np.nan)
        held_out = inputs.density[inputs.held_out.codes == k]
        less_usual = (of_real >= median(factor)).mean() if len(of_real) and len(rows) else None
        changed = inputs.schema.changed(found.instances[rows], found.nearest[rows]).sum(axis=1)
        labels.append(
            ExplainedLabel(
                label=inputs.labels[k],
                tried=int(mine.sum()),
                answered=len(rows),
                changed=_known(median(changed)),
                distance=_known(mean(away)),
                training_distance=_known(mean(near)),
                usual=None if less_usual is None else float(less_usual),
                lof=_known(median(factor)),
                lof_real=_known(median(of_real)),
                density=_known(median(found.density[rows])),
                density_real=_known(median(held_out)),
                survival=_known(mean(found.survival[rows])),
            )
        )
    return tuple(labels), _checks(inputs, usual, ratio)


def _checks(inputs: ReportInputs, usual: Floats, ratio: Floats) -> list[Check]:
    found = inputs.explained
    none = "no instance could be explained"
    plausible = usual[~np.isnan(usual)] > 0
    known = ratio[~np.isnan(ratio)]
    closer = Check(THRESHOLDS["closer"], None, reason="no training row to compare with")
    if len(known):
        closer = bootstrapped(
            "closer", lambda rows: float(np.median(known[rows])), len(known), inputs.random_state
        )
    crossed = found.crossings > 0
    few = f"{len(crossed)} paths computed, {MIN_PATHS} needed"
    return [
        share_check("answered", found.answered[found.feasible], reason=none),
        share_check("valid", found.valid, reason=none),
        share_check("usual", plausible, "", f"no label has {MIN_REAL} real rows to compare with"),
        closer,
        recognised(inputs.recognised),
        share_check("recrossing", crossed if len(crossed) >= MIN_PATHS else crossed[:0], "", few),
    ]


def recognised(found: Recognised) -> Check:
    r"""Labels the model recognises as the classifier does, beyond chance.

    With $r_k$ the share recognised of label k and L labels, $(\bar r - 1/L) / (1 - 1/L)$: 0 for a
    guess, 1 where every label is recognised. Chance does not depend on how frequent labels are.
    """
    labels = np.unique(found.codes)
    if len(labels) < 2:
        return Check(THRESHOLDS["recognised"], None, reason="rows of one label only")
    right = [found.recognised[found.codes == k] == k for k in labels]
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


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
