"""Metrics of sampled rows: utility, likeness to real rows, privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import ks_2samp
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from lapace.arrays import Floats
from lapace.metrics.neighbours import kneighbors, mean, median, tree_columns
from lapace.schema import Schema


@dataclass(frozen=True)
class Utility:
    """Accuracy on held-out rows of a forest trained on real and on synthetic rows (TSTR).

    Attributes:
        real: Accuracy after training on real rows.
        synthetic: Accuracy after training on synthetic rows.
        balanced_real: Balanced accuracy (mean recall of the test labels), real.
        balanced_synthetic: Balanced accuracy, synthetic.
    """

    real: float
    synthetic: float
    balanced_real: float
    balanced_synthetic: float

    @property
    def gap(self) -> float:
        """Accuracy lost by training on synthetic rows: real - synthetic."""
        return self.real - self.synthetic

    @property
    def balanced_gap(self) -> float:
        """The same in balanced accuracy."""
        return self.balanced_real - self.balanced_synthetic


def utility(
    schema: Schema,
    real: tuple[Floats, ArrayLike],
    synthetic: tuple[Floats, ArrayLike],
    test: tuple[Floats, ArrayLike],
    *,
    trees: int = 100,
    random_state: int = 0,
) -> Utility:
    """Train on synthetic, test on real (TSTR): can synthetic rows replace real ones?

    A random forest is trained on the real and one on the synthetic rows; both predict held-out
    rows that carry the classifier's labels. NaN for a side without rows.

    Args:
        schema: What the columns are.
        real: Cells and labels of real training rows.
        synthetic: Cells and labels of synthetic rows.
        test: Cells and labels of held-out rows.
        trees: Of each forest.
        random_state: Of each forest.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> rows = np.linspace(0.0, 2.5, 40)[:, None]
        >>> labels = rows[:, 0] > 1.25
        >>> utility(schema, (rows, labels), (rows, ~labels), (rows, labels), trees=5).gap
        1.0
    """
    cells, expected = test
    predicted = [
        forest_predictions(schema, train, cells, trees, random_state)
        if len(train[0]) and len(cells)
        else None
        for train in (real, synthetic)
    ]
    return accuracies(expected, *predicted)


def forest_predictions(
    schema: Schema, train: tuple[Floats, ArrayLike], cells: Floats, trees: int, random_state: int
) -> NDArray[Any]:
    """The labels that a random forest, trained on cells and their labels, predicts of others."""
    forest = RandomForestClassifier(trees, random_state=random_state)
    forest.fit(tree_columns(schema, train[0]), np.asarray(train[1]))
    predicted: NDArray[Any] = forest.predict(tree_columns(schema, cells))
    return predicted


def accuracies(expected: ArrayLike, *predicted: ArrayLike | None) -> Utility:
    """The accuracies of two forests' predictions; NaN for one that made none."""
    unknown = Agreement(math.nan, {})
    found = [unknown if side is None else agreement(expected, side) for side in predicted]
    balanced = [mean(list(side.by_label.values())) for side in found]
    return Utility(*(side.overall for side in found), *balanced)


class Agreement(NamedTuple):
    """How often the classifier says what was asked for, overall and for each label asked for."""

    overall: float
    by_label: dict[Any, float]


def agreement(expected: ArrayLike, predicted: ArrayLike) -> Agreement:
    """Share of rows with predicted = expected, and per expected label, which imbalance would hide.

    Examples:
        >>> agreement(["no", "no", "no", "yes"], ["no", "no", "no", "no"])
        Agreement(overall=0.75, by_label={'no': 1.0, 'yes': 0.0})
    """
    expected, predicted = np.asarray(expected), np.asarray(predicted)
    same = np.asarray(expected == predicted, dtype=bool)
    labels, codes = np.unique(expected, return_inverse=True)
    by_label = {label: mean(same[codes == k]) for k, label in enumerate(labels.tolist())}
    return Agreement(mean(same), by_label)


def detection(
    schema: Schema, real: Floats, synthetic: Floats, *, folds: int = 5, random_state: int = 0
) -> float:
    """Real-versus-synthetic AUC: how well boosted trees tell the two apart; 0.5 is not at all.

    A classifier two-sample test: AUC = P(score of a synthetic row > score of a real one), ties
    counting half, each row scored by a model that was not trained on it. NaN where either side
    has fewer rows than there are folds.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> rows = np.linspace(0.0, 1.0, 60)[:, None]
        >>> detection(schema, rows, rows + 1.5)
        1.0
    """
    if min(len(real), len(synthetic)) < folds:
        return math.nan
    rows = tree_columns(schema, np.concatenate([real, synthetic]))
    is_synthetic = np.repeat([0, 1], [len(real), len(synthetic)])
    model = HistGradientBoostingClassifier(early_stopping=False, random_state=random_state)
    parts = StratifiedKFold(folds, shuffle=True, random_state=random_state)
    scores = cross_val_predict(model, rows, is_synthetic, cv=parts, method="predict_proba")[:, 1]
    return float(roc_auc_score(is_synthetic, scores))


def ks(a: ArrayLike, b: ArrayLike, alternative: str = "two-sided") -> float:
    """Kolmogorov-Smirnov distance sup_t |F_a(t) - F_b(t)|, as of probabilities on two samples.

    Args:
        a: One sample.
        b: The other.
        alternative: As in `scipy.stats.ks_2samp`; "greater" gives sup_t F_a(t) - F_b(t).

    Examples:
        >>> ks([0.1, 0.2, 0.8, 0.8], [0.1, 0.2, 0.8, 0.9])
        0.25
    """
    if not len(np.atleast_1d(a)) or not len(np.atleast_1d(b)):
        return math.nan
    with np.errstate(all="ignore"):  # tiny samples, whose p-value is not used, divide by zero
        return float(ks_2samp(a, b, alternative, method="asymp").statistic)


class Privacy(NamedTuple):
    """How near rows come to training rows, against how near held-out rows come.

    Attributes:
        distance: Median distance to the nearest training row.
        held_out: The same for held-out rows.
        ratio: distance / held_out; well under 1 the rows give training rows away. NaN if both are
            0, infinite if only held_out is.
        copies: Share of rows that are exact copies of a training row.
        held_out_copies: The same for held-out rows.
    """

    distance: float
    held_out: float
    ratio: float
    copies: float
    held_out_copies: float


def privacy(schema: Schema, cells: Floats, train: Floats, held_out: Floats) -> Privacy:
    """Distance of rows to the nearest training row, against that of held-out rows.

    With D(x) = min over training rows t of d(x, t): medians of D, their ratio, shares of D = 0.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5], [5.0]]))
        >>> train, held_out = np.array([[0.0], [2.5]]), np.array([[0.0], [1.25]])
        >>> privacy(schema, np.array([[0.625]]), train, held_out)
        Privacy(distance=0.125, held_out=0.125, ratio=1.0, copies=0.0, held_out_copies=0.5)
    """
    ours, theirs = (kneighbors(schema, rows, train)[0].ravel() for rows in (cells, held_out))
    middle, usual = median(ours), median(theirs)
    ratio = middle / usual if usual else math.inf if middle > 0 else math.nan
    return Privacy(middle, usual, ratio, mean(ours == 0), mean(theirs == 0))
