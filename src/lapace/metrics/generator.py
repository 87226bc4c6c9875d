"""Are sampled rows as useful as real ones, are they like them, and do they give anybody away?"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from lapace.arrays import Floats
from lapace.metrics.space import mean, median, nearest, tree_columns
from lapace.schema import Schema


class Utility(NamedTuple):
    """Accuracy on held-out rows of a forest trained on real and on synthetic rows (TSTR).

    Attributes:
        real: Accuracy after training on real rows.
        synthetic: Accuracy after training on synthetic rows.
        balanced_real: Balanced accuracy (mean recall of the test labels), real.
        balanced_synthetic: Balanced accuracy, synthetic.

    Examples:
        >>> round(Utility(0.90, 0.88, 0.85, 0.80).gap, 3)
        0.02
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
    seed: int = 0,
) -> Utility:
    """Train on synthetic, test on real: can the synthetic rows stand in for the real ones?

    A random forest is trained on the real and one on the synthetic rows; both are asked about
    held-out rows that carry the classifier's labels. NaN for a side without rows.

    Args:
        schema: What the columns are.
        real: Cells and labels of real training rows.
        synthetic: Cells and labels of synthetic rows.
        test: Cells and labels of held-out rows.
        trees: Of each forest.
        seed: Of each forest.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> rows = np.linspace(0.0, 2.5, 40)[:, None]
        >>> labels = rows[:, 0] > 1.25
        >>> utility(schema, (rows, labels), (rows, ~labels), (rows, labels), trees=5).gap
        1.0
    """
    rows, wanted = tree_columns(schema, test[0]), np.asarray(test[1])
    scores = []
    for cells, labels in (real, synthetic):
        if not len(cells) or not len(rows):
            scores.append((math.nan, math.nan))
            continue
        forest = RandomForestClassifier(trees, random_state=seed)
        said = forest.fit(tree_columns(schema, cells), np.asarray(labels)).predict(rows)
        found = agreement(wanted, said)
        scores.append((found.overall, mean(list(found.by_label.values()))))
    (plain, balanced), (plain_synthetic, balanced_synthetic) = scores
    return Utility(plain, plain_synthetic, balanced, balanced_synthetic)


class Agreement(NamedTuple):
    """How often the classifier says what was wanted, overall and for each wanted label.

    Examples:
        >>> Agreement(overall=0.99, by_label={"yes": 1.0, "no": 0.2}).by_label["no"]
        0.2
    """

    overall: float
    by_label: dict[Any, float]


def agreement(wanted: ArrayLike, said: ArrayLike) -> Agreement:
    """Share of rows with said = wanted; per wanted label too, which imbalance would hide.

    Examples:
        >>> agreement(["no", "no", "no", "yes"], ["no", "no", "no", "no"])
        Agreement(overall=0.75, by_label={'no': 1.0, 'yes': 0.0})
    """
    wanted, said = np.asarray(wanted), np.asarray(said)
    same = np.asarray(wanted == said, dtype=bool)
    labels, codes = np.unique(wanted, return_inverse=True)
    by_label = {label: mean(same[codes == k]) for k, label in enumerate(labels.tolist())}
    return Agreement(mean(same), by_label)


def detection(
    schema: Schema, real: Floats, synthetic: Floats, *, folds: int = 5, seed: int = 0
) -> float:
    """Real-versus-synthetic AUC: how well boosted trees tell the two apart; 0.5 is not at all.

    A classifier two-sample test: AUC = P(score of a synthetic row > score of a real one), ties
    counting half, on scores each given by a model that has not seen the row. NaN where either
    side has fewer rows than there are folds.

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
    model = HistGradientBoostingClassifier(early_stopping=False, random_state=seed)
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed)
    scores = cross_val_predict(model, rows, is_synthetic, cv=parts, method="predict_proba")[:, 1]
    return float(roc_auc_score(is_synthetic, scores))


def ks(a: ArrayLike, b: ArrayLike) -> float:
    """Kolmogorov-Smirnov distance sup_t |F_a(t) - F_b(t)|, as of probabilities on two samples.

    Examples:
        >>> ks([0.1, 0.2, 0.8, 0.8], [0.1, 0.2, 0.8, 0.9])
        0.25
    """
    left, right = (np.sort(np.asarray(values, dtype=np.float64).ravel()) for values in (a, b))
    if not left.size or not right.size:
        return math.nan
    at = np.concatenate([left, right])
    below = [np.searchsorted(values, at, side="right") for values in (left, right)]
    gap = np.abs(below[0] * right.size - below[1] * left.size).max()
    return float(gap / (left.size * right.size))


class Privacy(NamedTuple):
    """How near rows come to training rows, against how near fresh rows come anyway.

    Attributes:
        distance: Median distance to the nearest training row.
        held_out: The same for held-out rows.
        ratio: distance / held_out; well under 1 the rows give training rows away. NaN if both are
            0, infinite if only held_out is.
        copies: Share of rows that are exact copies of a training row.
        held_out_copies: The same for held-out rows.

    Examples:
        >>> Privacy(0.2, 0.1, 2.0, copies=0.0, held_out_copies=0.05).ratio
        2.0
    """

    distance: float
    held_out: float
    ratio: float
    copies: float
    held_out_copies: float


def privacy(schema: Schema, cells: Floats, train: Floats, held_out: Floats) -> Privacy:
    """Distance of answers or prototypes to the nearest training row against held-out rows'.

    With D(x) = min over training rows t of d(x, t): medians of D, their ratio, shares of D = 0.

    Examples:
        >>> schema = Schema.infer(np.array([[0.0], [1.25], [2.5]]))
        >>> train, fresh = np.array([[0.0], [2.5]]), np.array([[0.0], [1.25]])
        >>> privacy(schema, np.array([[0.625]]), train, fresh)
        Privacy(distance=0.25, held_out=0.25, ratio=1.0, copies=0.0, held_out_copies=0.5)
    """
    ours, theirs = (nearest(schema, rows, train).ravel() for rows in (cells, held_out))
    middle, usual = median(ours), median(theirs)
    ratio = middle / usual if usual else math.inf if middle > 0 else math.nan
    return Privacy(middle, usual, ratio, mean(ours == 0), mean(theirs == 0))
