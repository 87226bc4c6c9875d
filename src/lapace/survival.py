"""Survival: the chance that a counterfactual keeps its label when the classifier is retrained.

While fitting, a random forest learns the classifier's labels from bootstrap samples of the rows.
The rows left out of a tree's sample show at which log-odds of the classifier a model of other rows
still agrees. `agreement` is the slope of that curve. It puts the log-odds of a forest, where 0.7 is
sure, and of an overfitted network, where 0.99 is not, on one scale. The forest is not kept, and
decides about no row.

A logistic curve in the log-odds times `agreement` gives the estimate. How widely the truth lies
around it is the weight of a beta distribution. The coefficients come with the package:
`python -m benchmarks.survival` fits them on classifiers that really were retrained. Where the user
passes `fit(X, y, retrain=...)`, the retrained classifiers' votes update that distribution. Of a
classifier of labels alone nothing is known but these votes.

`Survival.estimate` is the one meaning of survival. It fills the column of a result, and
`has_margin`, which the search for `best` and its marks ask, compares it with `LIKELY`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import beta

from lapace.arrays import Bools, Floats, Ints
from lapace.classifier import Classifier, Label
from lapace.classifier.outputs import score_odds
from lapace.errors import ClassifierError, LapaceError
from lapace.schema import Schema

__all__ = ["Calibration", "Retrain", "Survival", "retrained_classifiers"]

Retrain: TypeAlias = Callable[[Any, Any, int], Any]
Estimate: TypeAlias = tuple[Floats, Floats, Floats]  # survival and both ends of its 90% interval

TREES, LEAF = 40, 3  # trees of the forest, and rows of a leaf, at least
ROWS, KEPT = 4_000, 50  # rows it learns from, at most; rows that no label loses
MATCHED = 0.9  # share of the rows whose label the highest of several scores must be
RETRAINED = 10  # classifiers made by the user's function
LEAST = 1e-4  # chance that an estimate leaves to the other side
LIKELY = 0.95  # survival that `best` asks for
STEP = 0.05  # intervals end at multiples of it: shares of 20 classifiers


@dataclass(frozen=True, eq=False)
class Survival:
    """Estimates whether rows keep their label when a classifier is retrained.

    Attributes:
        labels: The classifier's labels.
        zero: The log-odds, against the next label, from which each label is predicted: 0 unless the
            classifier decides by a threshold of its own.
        agreement: The slope of the forest's agreement with the classifier in the classifier's
            log-odds; NaN where the classifier has none.
        retrained: Classifiers that the user's function made; not saved.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(400, 2))
        >>> schema, codes = Schema.infer(rows), (rows[:, 0] > 0).astype(np.int64)
        >>> scores = lambda rows: np.stack([-2 * rows[:, 0], 2 * rows[:, 0]], axis=1)
        >>> survival = Survival.fit(("no", "yes"), schema, rows, codes, scores, random_state=0)
        >>> near_and_far, ones = np.array([[0.1, 0.0], [2.0, 0.0]]), np.array([1, 1])
        >>> estimate, low, high = survival.estimate(schema, near_and_far, ones, np.array([0.4, 8]))
        >>> bool(estimate[0] < 0.95 < estimate[1]), bool((low <= high).all())
        (True, True)
    """

    labels: tuple[Label, ...]
    zero: Floats
    agreement: float
    retrained: tuple[Classifier, ...] = ()

    @classmethod
    def fit(
        cls,
        labels: tuple[Label, ...],
        schema: Schema,
        cells: Floats,
        codes: Ints,
        scores_of: Callable[[Floats], Floats | None],
        *,
        random_state: int,
    ) -> Survival:
        """Finds where the classifier decides, and where a forest of other rows agrees with it.

        Args:
            labels: The classifier's labels.
            schema: The columns.
            cells: Rows.
            codes: The labels the classifier gives them, as positions.
            scores_of: Returns the classifier's scores of rows, (n, labels); None where it has none.
            random_state: Seed of everything random.
        """
        from sklearn.ensemble import RandomForestClassifier

        sample = _sample(codes, np.random.default_rng(random_state))
        cells, codes = cells[sample], codes[sample]
        scores, unknown = scores_of(cells), np.zeros(len(labels))
        if scores is None or not _tell_labels(scores, codes):
            return cls(labels, unknown, np.nan)
        zero = np.array([_decision(scores, codes, k) for k in range(len(labels))])
        model = RandomForestClassifier(
            TREES, min_samples_leaf=LEAF, oob_score=True, random_state=random_state
        )
        model.fit(schema.encode(cells).astype(np.float32), codes)
        left_out = np.nan_to_num(model.oob_decision_function_)
        agrees = model.classes_[left_out.argmax(axis=1)] == codes
        return cls(labels, zero, _slope(score_odds(scores, codes) - zero[codes], agrees))

    @property
    def is_known(self) -> bool:
        """Whether anything is known: not for a classifier of labels alone, without refits."""
        return bool(self.retrained) or not np.isnan(self.agreement)

    def estimate(self, schema: Schema, cells: Floats, codes: Ints, odds: Floats) -> Estimate:
        """Estimates the chance that rows keep a label; NaN where nothing is known.

        Args:
            schema: The columns; wider than the fitted ones where rows have unseen levels.
            cells: The rows.
            codes: The label of each, as a position.
            odds: The classifier's log-odds of that label against the next; NaN where unknown.

        Returns:
            The estimate and both ends of its 90% interval.
        """
        return interval(*self._votes(schema, cells, codes, odds))

    def _votes(
        self, schema: Schema, cells: Floats, codes: Ints, odds: Floats
    ) -> tuple[Floats, Floats]:
        """Returns the parameters of each row's beta distribution, given `estimate`'s arguments."""
        kept, lost = shipped()((odds - self.zero[codes]) * self.agreement)
        if self.retrained:  # without odds, half a vote for either side
            kept, lost = (np.where(np.isnan(votes), 0.5, votes) for votes in (kept, lost))
        wanted = np.array(self.labels, dtype=object)[codes]
        for classifier in self.retrained:
            label = np.array(classifier.labels, dtype=object)[classifier.predict(cells, schema)]
            kept += label == wanted
            lost += label != wanted
        return kept, lost

    def has_margin(self, schema: Schema, cells: Floats, codes: Ints, odds: Floats) -> Bools:
        """Tells whether rows are likely to keep their label; the arguments are `estimate`'s."""
        kept, lost = self._votes(schema, cells, codes, odds)
        enough: Bools = kept / (kept + lost) >= LIKELY - 1e-9  # NaN has none
        return enough

    def margin_odds(self, codes: Ints) -> Floats:
        """Returns the log-odds from which labels are likely to be kept, without refits."""
        slope, intercept = shipped().coefficients
        enough: Floats = (logit(LIKELY) - intercept) / slope / self.agreement
        return self.zero[codes] + enough

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns plain arrays by name, for a file; 0 stands for NaN."""
        return {"numbers": np.nan_to_num([*self.zero, self.agreement])}

    @classmethod
    def of_arrays(cls, labels: tuple[Label, ...], arrays: Mapping[str, NDArray[Any]]) -> Survival:
        """Restores what `arrays` returned; anything else is refused with a ValueError."""
        numbers = arrays.get("numbers", np.empty(0))
        right = numbers.shape == (len(labels) + 1,) and numbers.dtype == np.float64
        if {*arrays} != {"numbers"} or not right or not np.isfinite(numbers).all():
            raise ValueError("the numbers of survival do not fit the labels")
        *zero, agreement = numbers.tolist()
        if agreement < 0:
            raise ValueError("the numbers of survival do not fit together")
        return cls(labels, np.array(zero), agreement or np.nan)


def _tell_labels(scores: Floats, codes: Ints) -> bool:
    """Returns whether the highest of three scores or more is the label of nearly all rows.

    One-against-one values of three labels, for instance, are not scores of single labels. Of two
    labels, `_decision` finds where the classifier decides.
    """
    return scores.shape[1] == 2 or bool((scores.argmax(axis=1) == codes).mean() >= MATCHED)


def _sample(codes: Ints, rng: np.random.Generator) -> Ints:
    """Draws at most about `ROWS` rows, label by label, so that no label is lost."""
    share, parts = min(1.0, ROWS / len(codes)), []
    for label in np.unique(codes):
        rows = rng.permutation(np.flatnonzero(codes == label))
        parts.append(rows[: max(round(share * len(rows)), KEPT)])
    return np.sort(np.concatenate(parts))


def _decision(scores: Floats, codes: Ints, label: int) -> float:
    """Finds the log-odds from which a label is predicted: 0 where that explains most rows."""
    odds = score_odds(scores, np.full(len(codes), label))
    order, predicted = np.argsort(odds, kind="stable"), codes == label
    # Rows that a cut before each place of the order would get wrong.
    below, above = predicted[order].cumsum(), (~predicted[order])[::-1].cumsum()[::-1]
    wrong = below[:-1] + above[1:]
    if not len(wrong) or wrong.min() >= (predicted != (odds >= 0)).sum():
        return 0.0
    place = int(wrong.argmin())
    return float(odds[order[place : place + 2]].mean())


def _slope(odds: Floats, agrees: Bools) -> float:
    """Returns the slope of a logistic curve through the origin, from log-odds to agreement.

    It is above 0 also where the forest agrees with fewer than half of the rows.
    """
    from sklearn.linear_model import LogisticRegression

    odds = np.maximum(odds, 0.0)
    unit = float(np.median(odds)) or 1.0  # decision values may be on any scale
    x = np.append(odds / unit, [1.0, 1.0])  # one row of each kind more: all rows may agree
    model = LogisticRegression(C=1e6, fit_intercept=False)
    model.fit(x[:, None], np.append(agrees, [True, False]))
    return max(float(model.coef_[0, 0]), LEAST) / unit


class Calibration(NamedTuple):
    """A logistic curve from scaled log-odds to survival, and how closely survival follows it.

    Attributes:
        coefficients: The slope and the intercept.
        weight: The number of retrained classifiers that the estimate is worth.
    """

    coefficients: Floats
    weight: float

    def __call__(self, scaled: Floats) -> tuple[Floats, Floats]:
        """Returns both parameters of a beta distribution."""
        slope, intercept = self.coefficients
        estimate = np.clip(expit(scaled * slope + intercept), LEAST, 1 - LEAST)
        return estimate * self.weight, (1 - estimate) * self.weight


@cache
def shipped() -> Calibration:
    """Returns the calibration that comes with the package."""
    text = files(__package__).joinpath("calibration.toml").read_text(encoding="utf-8")
    entry = tomllib.loads(text)
    return Calibration(np.array(entry["coefficients"]), entry["weight"])


def interval(kept: Floats, lost: Floats) -> Estimate:
    """Returns the mean of beta distributions, and where 90% of them lie, in steps of `STEP`.

    Examples:
        >>> [round(float(value[0]), 2) for value in interval(np.array([9.5]), np.array([1.5]))]
        [0.86, 0.65, 1.0]
    """
    mean = kept / (kept + lost)
    low = np.floor(beta.ppf(0.05, kept, lost) / STEP) * STEP
    high = np.ceil(beta.ppf(0.95, kept, lost) / STEP) * STEP
    return mean, np.minimum(low, mean), np.maximum(high, mean)


def retrained_classifiers(
    retrain: Retrain,
    classifier: Classifier,
    cells: Floats,
    y: Any,
    random_state: int,
    count: int = RETRAINED,
) -> tuple[Classifier, ...]:
    """Has the user's function retrain a classifier on bootstrap samples.

    Args:
        retrain: Called as `retrain(X, y, random_state)`; returns a fitted classifier.
        classifier: The classifier that is explained.
        cells: Training rows.
        y: Their true labels.
        random_state: Seed of the samples; the function gets it and the numbers after it.
        count: How many samples.
    """
    schema, labels = classifier.schema, classifier.labels
    rng, true = np.random.default_rng(random_state), np.asarray(y).ravel()
    classifiers = []
    for k in range(count):
        sample = np.sort(rng.integers(0, len(cells), len(cells)))
        try:
            model = retrain(schema.frame(cells[sample]), true[sample], random_state + k)
        except LapaceError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise ClassifierError(
                f"retrain raised {type(error).__name__} on a sample of {len(sample):,} rows: "
                f"{error}"
            ) from error
        more = np.asarray(getattr(model, "classes_", ())).tolist()
        classifiers.append(Classifier(model, schema, (*labels, *more)))
    return tuple(classifiers)
