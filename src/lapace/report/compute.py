"""The parts of a report, each computed from plain arrays: the split of the rows, and the checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest, mode

from lapace.arrays import Bools, Floats, Ints
from lapace.metrics import Plausibility, mean, median
from lapace.report.checks import THRESHOLDS, Check
from lapace.report.document import ExplainedLabel, Rule
from lapace.result import Counterfactuals
from lapace.schema import Schema
from lapace.schema.distance import kneighbors
from lapace.table import Level

HELD_OUT = 2000  # rows kept from training, at most
LEAST = 100  # rows kept from training, as long as that is no more than a fifth of the table
REAL = 4000  # training rows that counterfactuals are compared with, at most
INSTANCES = 30  # instances that are explained
MIN_HELD_OUT = 20  # rows held out that are enough to take those instances from
ALL_KEPT = 20  # a label of fewer rows has none held out
RARE = 50  # a label of fewer rows has uncertain values

LEVEL = 0.9  # confidence of every interval
Z = 1.645  # the normal distribution's 95% quantile
RESAMPLES = 400  # bootstrap samples
STRANGE = 0.95  # a row less usual than this share of real rows is strange
MIN_ROWS = 20  # held-out rows, or real rows of a label, below which nothing is judged by them


class Split(NamedTuple):
    """The rows that a report needs, by position, decided before training.

    Attributes:
        train: Rows to train on.
        held_out: Rows kept from training.
        real: Training rows that counterfactuals are compared with.
        instances: Rows that are explained: held-out ones, or training ones of a small table.
        targets: Target labels of the instances, as positions.
    """

    train: Ints
    held_out: Ints
    real: Ints
    instances: Ints
    targets: Ints


def split(codes: Ints, n_labels: int, *, random_state: int = 0) -> Split:
    """Splits a table's rows for a report.

    A tenth of every label's rows is held out, at most 2,000 in all. A table of fewer than 1,000
    rows gives more, up to a fifth. A label of fewer than 20 rows keeps them for training.

    Args:
        codes: Labels of all rows, as positions.
        n_labels: Number of labels.
        random_state: Seed of the choice.

    Examples:
        >>> parts = split(np.array([0] * 900 + [1] * 100), 2)
        >>> len(parts.train), len(parts.held_out), len(parts.instances)
        (900, 100, 30)
    """
    order = np.random.default_rng(random_state).permutation(len(codes))
    total = max(1, len(codes))
    share = min(HELD_OUT / total, max(0.1, min(0.2, LEAST / total)))
    by_label = [order[codes[order] == k] for k in range(n_labels)]
    kept = [rows[: int(share * len(rows))] for rows in by_label if len(rows) >= ALL_KEPT]
    held_out = np.sort(np.concatenate([*kept, np.empty(0, dtype=np.int64)])).astype(np.int64)
    train = np.setdiff1d(np.arange(len(codes)), held_out)
    rest = order[np.isin(order, train)]
    real = np.sort(rest[:REAL])
    pool = order[np.isin(order, held_out)]
    if len(pool) < MIN_HELD_OUT:
        pool = np.concatenate([pool, rest])
    instances = _alternating(pool, codes)[:INSTANCES]
    step = 1 + np.arange(len(instances)) // n_labels % max(1, n_labels - 1)  # every other label
    return Split(train, held_out, real, instances, (codes[instances] + step) % n_labels)


def _alternating(rows: Ints, codes: Ints) -> Ints:
    """Returns rows in an order in which labels alternate."""
    rank = np.empty(len(rows), dtype=np.int64)  # rank of each row among those of its label
    for k in np.unique(codes[rows]):
        mask = codes[rows] == k
        rank[mask] = np.arange(mask.sum())
    return rows[np.argsort(rank, kind="stable")]


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


def explained_parts(
    nearest: Counterfactuals,
    returned: Counterfactuals,
    targets: Ints,
    feasible: Bools,
    real: Mapping[Level, Floats],
    random_state: int,
) -> tuple[tuple[ExplainedLabel, ...], list[Check]]:
    """Returns what came back for instances: by target, and as checks.

    Args:
        nearest: The nearest counterfactual of each instance that has one.
        returned: The rows that any pick returned as valid; `valid` is what the classifier said when
            queried again.
        targets: The target of each instance, as a position among the labels.
        feasible: Whether the rules allow any row at all, for each instance.
        real: Training rows of every label, in the labels' order.
        random_state: Seed of samples.
    """
    schema, by_target = nearest.schema, []
    answered = np.isin(np.arange(len(targets)), nearest.instance)
    usual, ratio = (np.full(len(targets), np.nan) for _ in range(2))  # NaN where unknown
    for k, (label, rows) in enumerate(real.items()):
        tried = feasible & (targets == k)
        if not tried.any():
            continue
        answers = nearest.where(tried[nearest.instance])
        if len(rows):
            instances = answers.instances[answers.instance]
            closest = kneighbors(schema, instances, rows)[0][:, 0]
            apart = closest > 0
            ratio[answers.instance[apart]] = answers.distance[apart] / closest[apart]
        among = Plausibility(schema, rows, max_rows=2000, random_state=random_state)
        lof, lof_real = np.empty(0), np.empty(0)
        if len(among.rows) >= MIN_ROWS:
            lof, lof_real = among.lof(answers.cells), among.lof_of_rows()
            other = returned.where(returned.valid & np.isin(returned.instance, answers.instance))
            fine = among.lof(other.cells) <= np.quantile(lof_real, STRANGE)
            usual[answers.instance] = np.isin(answers.instance, other.instance[fine])
        values = {
            "changed": median(answers.changed),
            "usual": mean(lof_real >= median(lof)) if len(lof) else math.nan,
            "lof": median(lof),
            "lof_real": median(lof_real),
            "survival": mean(answers.survival),
        }
        known = {name: None if math.isnan(value) else value for name, value in values.items()}
        by_target.append(ExplainedLabel(label, int(tried.sum()), len(answers), **known))
    ratio, usual = ratio[~np.isnan(ratio)], usual[~np.isnan(usual)] > 0
    none = "no instance could be explained"
    closer = Check(THRESHOLDS["closer"], None, reason="no training row to compare with")
    if len(ratio):
        closer = _bootstrapped(
            "closer", lambda sample: float(np.median(ratio[sample])), len(ratio), random_state
        )
    return tuple(by_target), [
        share_check("answered", answered[feasible], none),
        share_check("valid", returned.valid, none),
        share_check("usual", usual, f"no label has {MIN_ROWS} real rows to compare with"),
        closer,
    ]


# ------------------------------------------------------------------------------------------------
# The model: labels recognised, rows reconstructed, prototypes, rules


def recognised_check(codes: Ints, likeliest: Ints) -> Check:
    r"""Returns the check of the labels that the model recognises, beyond chance.

    With $r_k$ the share recognised of label k and L labels, $(\bar r - 1/L) / (1 - 1/L)$: 0 for a
    guess, 1 where every label is recognised. Chance does not depend on how frequent labels are.

    Args:
        codes: The labels that the classifier gives rows the model was not trained on.
        likeliest: The labels under which the model finds these rows most likely.
    """
    labels = np.unique(codes)
    if len(labels) < 2:
        return Check(THRESHOLDS["recognised"], None, reason="rows of one label only")
    right = [likeliest[codes == k] == k for k in labels]
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


def reconstruction_check(
    schema: Schema, rows: Floats, reconstructed: Floats, real: Floats, random_state: int
) -> Check:
    """Returns the check of the error of reconstructing rows, over that of a baseline.

    The baseline always predicts a column's median or most frequent category.

    Args:
        schema: The columns.
        rows: Held-out rows.
        reconstructed: These rows encoded and decoded.
        real: Training rows.
        random_state: Seed of bootstrap samples.
    """
    threshold = THRESHOLDS["reconstruction"]
    if len(rows) < MIN_ROWS:
        reason = f"{len(rows)} rows held out, {MIN_ROWS} needed: hand over {10 * MIN_ROWS} or more"
        return Check(threshold, None, reason=reason)
    guesses = _usual_row(schema, real)[None], reconstructed
    baseline, error = (schema.metric.range_gaps(rows, guess).sum(axis=1) for guess in guesses)
    if not baseline.sum():
        return Check(threshold, None, reason="the held-out rows are all alike")

    def ratio(sample: Ints) -> float:
        below = baseline[sample].sum()
        return float(error[sample].sum() / below) if below else math.nan

    return _bootstrapped("reconstruction", ratio, len(rows), random_state)


def _usual_row(schema: Schema, rows: Floats) -> Floats:
    """Returns each column's median or most frequent category; NaN where most are missing."""
    usual = np.full(len(schema.features), np.nan)
    for i, feature in enumerate(schema.features):
        present = rows[~np.isnan(rows[:, i]), i]
        if len(present) > len(rows) / 2:
            middle = np.quantile(present, 0.5, method="lower")
            usual[i] = middle if feature.numeric else mode(present).mode
    return usual


def prototype_checks(labels: Sequence[Level], codes: Ints, valid: Bools) -> list[Check]:
    """Returns the check of the label with the fewest valid prototypes; none without clusters.

    Args:
        labels: The labels.
        codes: The label of each prototype, as a position.
        valid: Whether the classifier, queried again, gives each prototype its label.
    """
    counts = {k: float(valid[codes == k].sum()) for k in np.unique(codes).tolist()}
    worst = sorted(counts, key=lambda k: counts[k])[:1]
    threshold = THRESHOLDS["prototypes"]
    return [Check(threshold, counts[k], where=f"label {labels[k]!r}") for k in worst]


def rule_checks(rules: Sequence[Rule]) -> list[Check]:
    """Returns the check of the rule that holds on the fewest rows; none without rules."""
    shares = sorted((rule.holds / rule.rows, rule.text) for rule in rules if rule.rows)
    return [Check(THRESHOLDS["rules"], share, where=f"'{text}'") for share, text in shares[:1]]


def label_warnings(
    labels: Sequence[Level], counts: Ints, clusters: Ints, n_prototypes: int
) -> tuple[str, ...]:
    """Returns a sentence for every label with few rows or clusters.

    Args:
        labels: The labels.
        counts: Rows of the table with each label.
        clusters: Clusters of each label.
        n_prototypes: Clusters asked for per label.

    Examples:
        >>> label_warnings(["yes", "no"], np.array([900, 30]), np.array([5, 5]), 5)
        ("Label 'no' has 30 rows: its values are uncertain.",)
    """
    sentences = []
    for label, count, found in zip(labels, counts.tolist(), clusters.tolist(), strict=True):
        rows = f"Label {label!r} has {count:,} row{'s' * (count != 1)}"
        if not found:
            sentences.append(f"{rows}: too few for a prototype, so no path leads to it.")
        elif found < n_prototypes:
            sentences.append(f"{rows} and got {found} of the {n_prototypes} clusters asked for.")
        elif count < RARE:
            sentences.append(f"{rows}: its values are uncertain.")
    return tuple(sentences)
