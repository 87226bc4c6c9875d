"""Survival: the chance that a counterfactual keeps its label when the classifier is retrained.

A random forest learns the classifier's labels from bootstrap samples of the rows. The rows left out
of a tree's sample show at which log-odds of the classifier a model of other rows still agrees.
`agreement` is the slope of that curve. It puts the log-odds of a forest, where 0.7 is sure, and of
an overfitted network, where 0.99 is not, on one scale.

A logistic curve in the log-odds times `agreement` gives the estimate; without probabilities, a
curve in the forest's own log-odds. How widely the truth lies around it is the weight of a beta
distribution. The coefficients come with the package: `python -m benchmarks.survival` fits
them on classifiers that really were retrained. Where the user passes `fit(X, y, retrain=...)`, the
retrained classifiers' votes update that distribution.

`Survival.estimate` is the one meaning of survival. It fills the column of a result, and
`has_margin`, which the search for `best` and its marks ask, compares it with `LIKELY`. Labels alone
seldom say that much; there a row has a margin if it is as likely to survive as half of the rows of
its label.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import beta

from lapace.arrays import Bools, Floats, Ints, batches
from lapace.classifier import Classifier, Label
from lapace.classifier.outputs import log_odds
from lapace.errors import ClassifierError, LapaceError
from lapace.schema import Schema

if TYPE_CHECKING:  # scikit-learn is slow to load, and only `fit` needs these
    from sklearn.ensemble import RandomForestClassifier

__all__ = ["Calibration", "Forest", "Retrain", "Survival", "retrained_classifiers"]

Retrain: TypeAlias = Callable[[Any, Any, int], Any]
Estimate: TypeAlias = tuple[Floats, Floats, Floats]  # survival and both ends of its 90% interval

TREES, LEAF = 40, 3  # trees of the forest, and rows of a leaf, at least
ROWS, RARE = 4_000, 50  # rows it learns from, at most; rows that no label loses
CELLS = 1_000_000  # nodes visited at once
RETRAINED = 10  # classifiers made by the user's function
LEAST = 1e-4  # chance that an estimate leaves to the other side
LIKELY = 0.95  # survival that `best` asks for
STEP = 0.05  # intervals end at multiples of it: shares of 20 classifiers


class Forest(NamedTuple):
    """A random forest as plain arrays, which a file can hold.

    Attributes:
        roots: The first node of each tree.
        feature: The column that a node compares.
        threshold: The number it compares with; infinite at a leaf.
        children: The next node for numbers up to the threshold, and above it; at a leaf, itself.
        share: The share of each label among the node's rows, (nodes, labels).
    """

    roots: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: Floats
    children: NDArray[np.int32]
    share: NDArray[np.float32]

    @classmethod
    def of(cls, model: RandomForestClassifier, n_labels: int) -> Forest:
        """Returns the trees of a fitted model whose classes are positions of labels."""
        trees = [each.tree_ for each in model.estimators_]
        *roots, n_nodes = np.cumsum([0, *(tree.node_count for tree in trees)])
        left, right, feature, threshold = (
            np.concatenate([getattr(tree, name) for tree in trees])
            for name in ("children_left", "children_right", "feature", "threshold")
        )
        leaf, node = feature < 0, np.arange(n_nodes)
        children = (
            np.column_stack([left, right]) + np.repeat(roots, np.diff([*roots, n_nodes]))[:, None]
        )
        children[leaf] = node[leaf, None]
        share = np.zeros((n_nodes, n_labels), dtype=np.float32)
        share[:, model.classes_] = np.concatenate([tree.value[:, 0] for tree in trees])
        return cls(
            np.array(roots, np.int32),
            np.where(leaf, 0, feature).astype(np.int32),
            np.where(leaf, np.inf, threshold),
            children.astype(np.int32),
            share,
        )

    def __call__(self, x: NDArray[np.float32]) -> Floats:
        """Returns the mean share of each label over the trees, (n, labels)."""
        found = np.empty((len(x), self.share.shape[1]))
        for part in batches(len(x), CELLS, len(self.roots)):
            rows, node = np.arange(len(x[part]))[:, None], np.tile(self.roots, (len(x[part]), 1))
            while True:
                above = x[part][rows, self.feature[node]] > self.threshold[node]
                node, before = self.children[node, above.astype(np.int8)], node
                if (node == before).all():
                    break
            found[part] = self.share[node].mean(axis=1)
        return found


@dataclass(frozen=True, eq=False)
class Survival:
    """Estimates whether rows keep their label when a classifier is retrained.

    Attributes:
        labels: The classifier's labels.
        forest: The model of the classifier's labels.
        zero: The log-odds, against the next label, from which each label is predicted: 0 unless the
            classifier decides by a threshold of its own.
        typical: The survival that half of the rows of each label reach, by the forest alone.
        agreement: The slope of the forest's agreement with the classifier in the classifier's
            log-odds; NaN where the classifier has no probabilities.
        retrained: Classifiers that the user's function made; not saved.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(400, 2))
        >>> schema, codes = Schema.infer(rows), (rows[:, 0] > 0).astype(np.int64)
        >>> survival = Survival.fit(("no", "yes"), schema, rows, codes, random_state=0)
        >>> near_and_far, ones = np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([1, 1])
        >>> estimate, low, high = survival.estimate(schema, near_and_far, ones, ones * np.nan)
        >>> bool(estimate[0] < 0.95 < estimate[1]), bool((low <= high).all())
        (True, True)
    """

    labels: tuple[Label, ...]
    forest: Forest
    zero: Floats
    typical: Floats
    agreement: float
    retrained: tuple[Classifier, ...] = ()

    @classmethod
    def fit(
        cls,
        labels: tuple[Label, ...],
        schema: Schema,
        cells: Floats,
        codes: Ints,
        predict_proba: Callable[[Floats], Floats | None] | None = None,
        *,
        random_state: int,
    ) -> Survival:
        """Fits the forest, and finds where the classifier decides and where the forest agrees.

        Args:
            labels: The classifier's labels.
            schema: The columns.
            cells: Rows.
            codes: The labels the classifier gives them, as positions.
            predict_proba: Gives the classifier's probabilities of rows, (n, labels); None where it
                has none.
            random_state: Seed of everything random.
        """
        from sklearn.ensemble import RandomForestClassifier

        sample = _sample(codes, np.random.default_rng(random_state))
        cells, codes = cells[sample], codes[sample]
        model = RandomForestClassifier(
            TREES, min_samples_leaf=LEAF, oob_score=True, random_state=random_state
        )
        x = schema.encode(cells).astype(np.float32)
        forest = Forest.of(model.fit(x, codes), len(labels))
        left_out = np.zeros((len(codes), len(labels)))
        left_out[:, model.classes_] = np.nan_to_num(model.oob_decision_function_)
        kept, lost = shipped(False)(_share_odds(left_out, codes)[:, None])
        survives = kept / (kept + lost)
        typical = [np.median(survives[codes == k]) if k in codes else 1 for k in range(len(labels))]
        zero, agreement = np.zeros(len(labels)), np.nan
        probability = None if predict_proba is None else predict_proba(cells)
        if probability is not None:
            zero = np.array([_decision(probability, codes, k) for k in range(len(labels))])
            agrees = left_out.argmax(axis=1) == codes
            agreement = _slope(log_odds(probability, codes) - zero[codes], agrees)
        return cls(labels, forest, zero, np.array(typical), agreement)

    def estimate(self, schema: Schema, cells: Floats, codes: Ints, odds: Floats) -> Estimate:
        """Estimates the chance that rows keep a label.

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
        kept, lost = shipped(True)(self.scaled(codes, odds)[:, None])
        bare = np.isnan(kept)
        if bare.any():
            by_forest = self.forest_odds(schema, cells[bare], codes[bare])
            kept[bare], lost[bare] = shipped(False)(by_forest[:, None])
        wanted = np.array(self.labels, dtype=object)[codes]
        for classifier in self.retrained:
            label = np.array(classifier.labels, dtype=object)[classifier.predict(cells, schema)]
            kept += label == wanted
            lost += label != wanted
        return kept, lost

    def has_margin(self, schema: Schema, cells: Floats, codes: Ints, odds: Floats) -> Bools:
        """Tells whether rows are likely to keep their label; the arguments are `estimate`'s."""
        labels_only = np.isnan(odds) & (not self.retrained)
        needed = np.where(labels_only, np.minimum(self.typical[codes], LIKELY), LIKELY)
        kept, lost = self._votes(schema, cells, codes, odds)
        enough: Bools = kept / (kept + lost) >= needed - 1e-9
        return enough

    def scaled(self, codes: Ints, odds: Floats) -> Floats:
        """Returns log-odds beyond the decision, times `agreement`; NaN where either is unknown."""
        scaled: Floats = (odds - self.zero[codes]) * self.agreement
        return scaled

    def forest_odds(self, schema: Schema, cells: Floats, codes: Ints) -> Floats:
        """Returns the forest's log-odds of labels; levels unseen in training count as no level."""
        return _share_odds(self.forest(schema.encode(cells).astype(np.float32)), codes)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns plain arrays by name, for a file; 0 stands for NaN."""
        numbers = np.nan_to_num([*self.zero, *self.typical, self.agreement])
        threshold = np.where(np.isinf(self.forest.threshold), 0.0, self.forest.threshold)
        return {**self.forest._asdict(), "threshold": threshold, "numbers": numbers}

    @classmethod
    def of_arrays(
        cls, labels: tuple[Label, ...], arrays: Mapping[str, NDArray[Any]], width: int
    ) -> Survival:
        """Restores what `arrays` returned; anything else is refused with a ValueError.

        Args:
            labels: The classifier's labels.
            arrays: By name.
            width: Width of an encoded row.
        """
        n, kinds = (
            len(arrays.get("feature", ())),
            {name: a.dtype.name for name, a in arrays.items()},
        )
        shapes = {
            "roots": (TREES,), "feature": (n,), "threshold": (n,), "children": (n, 2),
            "share": (n, len(labels)), "numbers": (2 * len(labels) + 1,),
        }  # fmt: skip
        types = dict.fromkeys(("roots", "feature", "children"), "int32")
        types |= {"share": "float32", "threshold": "float64", "numbers": "float64"}
        if {name: a.shape for name, a in arrays.items()} != shapes or kinds != types:
            raise ValueError("the forest does not fit the columns")
        node, children, roots = np.arange(n)[:, None], arrays["children"], arrays["roots"]
        *numbers, agreement = arrays["numbers"].tolist()
        zero, typical = np.array(numbers).reshape(2, -1)
        sound = (
            (children >= node) & (children < n),  # a walk ends
            (roots >= 0) & (roots < n),
            (arrays["feature"] >= 0) & (arrays["feature"] < width),
            (arrays["share"] >= 0) & (arrays["share"] <= 1),
            np.isfinite(arrays["threshold"]),
            np.isfinite(arrays["numbers"]),
            agreement >= 0,
        )
        if not all(np.all(each) for each in sound):
            raise ValueError("the numbers of the forest do not fit together")
        leaf = (children == node).all(axis=1)
        parts = {name: arrays[name] for name in Forest._fields}
        forest = Forest(**{**parts, "threshold": np.where(leaf, np.inf, parts["threshold"])})
        return cls(labels, forest, zero, typical, agreement or np.nan)


def _sample(codes: Ints, rng: np.random.Generator) -> Ints:
    """Draws at most about `ROWS` rows, label by label, so that no label is lost."""
    share, parts = min(1.0, ROWS / len(codes)), []
    for label in np.unique(codes):
        rows = rng.permutation(np.flatnonzero(codes == label))
        parts.append(rows[: max(round(share * len(rows)), RARE)])
    return np.sort(np.concatenate(parts))


def _share_odds(share: Floats, codes: Ints) -> Floats:
    """Returns the log-odds of labels by their share of the trees; half a tree stands for none."""
    return log_odds(np.maximum(share, 1 / (2 * TREES)), codes)


def _decision(probability: Floats, codes: Ints, label: int) -> float:
    """Finds the log-odds from which a label is predicted: 0 where that explains most rows."""
    odds = log_odds(probability, np.full(len(codes), label))
    order, predicted = np.argsort(odds, kind="stable"), codes == label
    # Rows that a cut before each place of the order would get wrong.
    below, above = predicted[order].cumsum(), (~predicted[order])[::-1].cumsum()[::-1]
    wrong = below[:-1] + above[1:]
    if not len(wrong) or wrong.min() >= (predicted != (odds >= 0)).sum():
        return 0.0
    place = int(wrong.argmin())
    return float(odds[order[place : place + 2]].mean())


def _slope(odds: Floats, agrees: Bools) -> float:
    """Returns the slope of a logistic curve through the origin, from log-odds to agreement."""
    from sklearn.linear_model import LogisticRegression

    odds = np.maximum(odds, 0.0)
    middle = max(float(np.median(odds)), LEAST)
    x = np.append(odds, [middle, middle])  # one row of each kind more: all rows may agree
    model = LogisticRegression(C=1e6, fit_intercept=False)
    return float(model.fit(x[:, None], np.append(agrees, [True, False])).coef_[0, 0])


class Calibration(NamedTuple):
    """A logistic curve from signals to survival, and how closely survival follows it.

    Attributes:
        coefficients: One per signal, and the intercept.
        weight: The number of retrained classifiers that the estimate is worth.
    """

    coefficients: Floats
    weight: float

    def __call__(self, signals: Floats) -> tuple[Floats, Floats]:
        """Returns both parameters of a beta distribution for signals, (n, slopes)."""
        *slopes, intercept = self.coefficients
        estimate = expit(signals @ slopes + intercept)
        estimate = np.clip(estimate, LEAST, 1 - LEAST)
        return estimate * self.weight, (1 - estimate) * self.weight


@cache
def shipped(has_probability: bool) -> Calibration:
    """Returns the calibration that comes with the package."""
    text = files(__package__).joinpath("calibration.toml").read_text(encoding="utf-8")
    entry = tomllib.loads(text)["probability" if has_probability else "labels"]
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
