"""The parts of a report, each computed from plain arrays: the split of the rows, and the checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binomtest, mode

from lapace.arrays import Bools, Floats, Ints
from lapace.metrics import Plausibility, mean, median
from lapace.report.checks import THRESHOLDS, Check
from lapace.report.document import ExplainedLabel, Rule
from lapace.result import Counterfactuals
from lapace.schema import Schema
from lapace.table import Level

HELD_OUT = 2000  # rows kept from training, at most
LEAST = 100  # rows kept from training, as long as that is no more than a fifth of the table
REAL = 4000  # training rows that counterfactuals are compared with, at most
INSTANCES = 30  # held-out rows that are explained
ALL_KEPT = 20  # a label of fewer rows has none held out
RARE = 50  # a label of fewer rows has uncertain values

LEVEL = 0.9  # confidence of every interval
Z = 1.645  # the normal distribution's 95% quantile
RESAMPLES = 400  # bootstrap samples
STRANGE = 0.95  # a row less usual than this share of real rows is strange
NO_MARGIN = "the classifier gives no odds, so no margin is known"
MIN_ROWS = 20  # held-out rows, or real rows of a label, below which nothing is judged by them


class Split(NamedTuple):
    """The rows that a report needs, by position, decided before training.

    Attributes:
        train: Rows to train on.
        held_out: Rows kept from training.
        real: Training rows that counterfactuals are compared with.
        instances: Held-out rows that are explained.
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
    instances = _alternating(order[np.isin(order, held_out)], codes)[:INSTANCES]
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


class Judged(NamedTuple):
    """The values of every instance that checks are made of; NaN where a value is unknown.

    Attributes:
        feasible: Whether the rules allow any row at all.
        answered: Whether it has a counterfactual.
        unmarked: Whether one of its best rows keeps a margin; None where no margin is known.
        survives: The share of held-out refits that keep the label of its first such row.
        possible: Whether every row of nearest and best keeps what every training row does.
        usual: Whether one of its rows is as usual as real rows of the target.
    """

    feasible: Bools
    answered: Bools
    unmarked: Bools | None
    survives: Floats
    possible: Floats
    usual: Floats

    def checks(self, valid: Bools, own: Bools, random_state: int) -> list[Check]:
        """Returns the checks of some instances.

        Args:
            valid: For their returned rows, whether the classifier, queried again, says the target.
            own: The instances.
            random_state: Seed of bootstrap samples.
        """
        none, some = "no instance could be explained", own & self.feasible
        usual, possible, survives = (
            values[own & ~np.isnan(values)] for values in (self.usual, self.possible, self.survives)
        )
        checks = [
            share_check("answered", self.answered[some], none),
            share_check("valid", valid, none),
            share_check("usual", usual > 0, f"no label has {MIN_ROWS} real rows to compare with"),
            share_check("unmarked", self.unmarked[some], none)
            if self.unmarked is not None
            else Check(THRESHOLDS["unmarked"], None, reason=NO_MARGIN),
        ]
        if len(survives):
            count, mean_of = len(survives), lambda rows: float(survives[rows].mean())
            checks.append(_bootstrapped("survives", mean_of, count, random_state))
        return checks + ([share_check("possible", possible > 0, none)] if len(possible) else [])


def explained_parts(
    nearest: Counterfactuals,
    best: Counterfactuals,
    returned: Counterfactuals,
    targets: Ints,
    feasible: Bools,
    real: Mapping[Level, Floats],
    random_state: int,
    *,
    has_margins: bool = True,
    kept: Callable[[Counterfactuals], Floats] | None = None,
    possible: Callable[[Floats], Bools] | None = None,
) -> tuple[tuple[ExplainedLabel, ...], list[Check]]:
    """Returns what came back for instances: by target, and as checks of all together.

    Args:
        nearest: The nearest counterfactual of each instance that has one.
        best: The best ways of each that has some.
        returned: The rows that any pick returned as valid; `valid` is what the classifier said when
            queried again.
        targets: The target of each instance, as a position among the labels.
        feasible: Whether the rules allow any row at all, for each instance.
        real: Training rows of every label, in the labels' order.
        random_state: Seed of samples.
        has_margins: Whether the margin of rows is known: not of a classifier of labels alone.
        kept: Returns, for rows of `best`, the share of held-out refits that keep their label.
        possible: Returns whether rows keep what every training row does, rule or not.
    """
    schema, by_target = nearest.schema, []
    count = len(targets)
    keeps_margin = np.array(["edge" not in str(mark) for mark in best.mark], dtype=bool)
    unmarked = best.where(best.ok & keeps_margin)
    survives, keeps, usual = np.full((3, count), np.nan)
    if kept is not None:
        first = unmarked.where(unmarked.rank == 0)
        survives[first.instance] = kept(first)
    if possible is not None:
        both = nearest.joined(best.where(best.ok))
        keeps[both.instance] = 1.0
        keeps[both.instance[~possible(both.cells)]] = 0.0
    answered, has_way = (np.isin(np.arange(count), rows.instance) for rows in (nearest, unmarked))
    margin = has_way if has_margins else None
    judged = Judged(feasible, answered, margin, survives, keeps, usual)
    for k, (label, rows) in enumerate(real.items()):
        own = targets == k
        tried = feasible & own
        if not tried.any():
            continue
        answers = nearest.where(tried[nearest.instance])
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
        }
        measured: dict[str, Any] = {n: None if math.isnan(v) else v for n, v in values.items()}
        checks = tuple(judged.checks(returned.valid[own[returned.instance]], own, random_state))
        counts = int(tried.sum()), len(answers)
        by_target.append(ExplainedLabel(label, *counts, **measured, checks=checks))
    whole = judged.checks(returned.valid, np.ones(count, dtype=bool), random_state)
    return tuple(by_target), whole


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
        reason = f"{len(rows)} rows held out, {MIN_ROWS} needed: fit with {10 * MIN_ROWS} or more"
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


def prototype_checks(codes: Ints, valid: Bools) -> dict[int, Check]:
    """Returns the check of the valid prototypes of each label that has any, by its position.

    Args:
        codes: The label of each prototype, as a position.
        valid: Whether the classifier, queried again, gives each prototype its label.
    """
    threshold = THRESHOLDS["prototypes"]
    return {k: Check(threshold, float(valid[codes == k].sum())) for k in np.unique(codes).tolist()}


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
