"""Survival: the chance that a counterfactual keeps its label when the classifier is retrained.

Two signals tell how sure a row is: the classifier's log-odds of the label, and the log-odds of an
ensemble of small networks, each fitted on a bootstrap sample of the rows as the classifier labels
them. Both are divided by their root mean square on held-out rows, because 0.7 is a high probability
for a forest and a low one for boosted trees. A logistic curve turns them into an estimate. Its
coefficients come with the package: `python -m benchmarks.survival` fits them on classifiers that
really were retrained. A user who can retrain the classifier passes `fit(X, y, retrain=...)`; then
survival is the share of the retrained classifiers that keep the label.

`estimate` fills the column `survival` of a result. The search and the marks ask `has_margin` of a
row of `best`: a probability from which, on held-out rows, the ensemble's estimate reaches `AIM`,
and of the retrained classifiers a share of `LIKELY`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, softmax
from scipy.stats import beta
from sklearn.neural_network import MLPClassifier

from lapace.arrays import Bools, Floats, Ints
from lapace.classifier import Classifier, Label
from lapace.errors import ClassifierError, LapaceError
from lapace.schema import Schema

__all__ = ["Calibration", "Retrain", "Survival", "retrained_classifiers", "share_kept"]

Retrain: TypeAlias = Callable[[Any, Any, int], Any]
Estimate: TypeAlias = tuple[Floats, Floats, Floats]  # survival and both ends of its 90% interval

MEMBERS, HIDDEN = 5, 32  # networks of the ensemble, and units of their hidden layer
LAYERS = ("weight.0", "weight.1", "bias.0", "bias.1")  # their names in a file
ROWS, RARE = 4_000, 50  # rows of a bootstrap sample, at most; rows that no label loses
EPOCHS, STEPS, BATCH, RATE = 25, 150, 256, 1e-2  # of the training: more epochs for few rows
MIN_HELD_OUT, INSTEAD = 50, 1000  # where fewer rows are held out, so many of all rows scale odds
RETRAINED = 10  # classifiers made by the user's function
LEAST = 1e-4  # probabilities below it count as it
SMALLEST = 0.1  # scale of log-odds, at least
MARGIN = 0.65  # the margin where there is no ensemble
AIM = 0.98  # survival asked of a margin: minimal rows lie where the estimate errs upwards
LIKELY = 0.95  # the same without probabilities, and of the retrained classifiers
GRID = np.linspace(0.5, 0.95, 46).round(2)  # margins that are tried
NEAREST = 100  # held-out rows by which a margin is judged: those nearest to it
LEVELS = (0.0, *np.linspace(0.05, 0.95, 19).round(2).tolist(), 0.98, 1.0)  # of the intervals


@dataclass(frozen=True, eq=False)
class Survival:
    """Estimates whether rows keep their label when a classifier is retrained.

    Attributes:
        labels: The classifier's labels.
        thresholds: The probability from which each label is predicted.
        layers: The networks of the ensemble: weights of both layers, (members, in, out), then their
            biases, (members, out). None where nothing is known, as for images.
        scale: Root mean square of the log-odds on rows held out: of the classifier (NaN where it
            has no probabilities) and of the ensemble.
        next_share: The share of the rest of the probability that the classifier gives the next
            label, the mean of rows held out; 1 with two labels.
        margin: The least probability of a label, against the next label, at which survival is
            estimated to be `AIM`; NaN where the classifier has no probabilities.
        retrained: Classifiers that the user's function made; not saved.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(400, 2))
        >>> schema, codes = Schema.infer(rows), (rows[:, 0] > 0).astype(np.int64)
        >>> unknown = Survival.unknown(("no", "yes"))
        >>> train, held_out = np.split(np.arange(400), [300])
        >>> survival = unknown.fit(schema, rows, codes, train, held_out, random_state=0)
        >>> near_and_far, ones = np.array([[0.02, 0.0], [2.0, 0.0]]), np.array([1, 1])
        >>> estimate, low, high = survival.estimate(schema, near_and_far, ones, ones * np.nan)
        >>> bool(estimate[0] < 0.8 < 0.95 < estimate[1]), bool((low <= high).all())
        (True, True)
    """

    labels: tuple[Label, ...]
    thresholds: Floats
    layers: tuple[NDArray[np.float32], ...] | None = None
    scale: Floats = field(default_factory=lambda: np.ones(2))
    next_share: float = 1.0
    margin: float = MARGIN
    retrained: tuple[Classifier, ...] = ()

    @classmethod
    def unknown(
        cls, labels: tuple[Label, ...], thresholds: tuple[float, ...] | None = None
    ) -> Survival:
        """Returns a value that knows no ensemble; without thresholds, all of them are 0.5."""
        return cls(labels, np.array(thresholds or [0.5] * len(labels)))

    def fit(
        self,
        schema: Schema,
        cells: Floats,
        codes: Ints,
        train: Ints,
        held_out: Ints,
        predict_proba: Callable[[Floats], Floats | None] | None = None,
        *,
        random_state: int,
    ) -> Survival:
        """Fits the ensemble, then takes the scale of the log-odds and the margin.

        Args:
            schema: The columns.
            cells: Rows.
            codes: The labels the classifier gives them, as positions.
            train: Positions of the rows the ensemble is fitted on.
            held_out: Positions of the rows that give the log-odds their scale.
            predict_proba: Gives the classifier's probabilities of rows, (n, labels); None where it
                has none.
            random_state: Seed of everything random.
        """
        n_labels = len(self.labels)
        x = schema.encode(cells[train]).astype(np.float32)
        seeds = np.random.default_rng(random_state).integers(2**31, size=MEMBERS).tolist()
        networks = [_network(x, codes[train], n_labels, seed) for seed in seeds]
        layers = tuple(np.stack(layer) for layer in zip(*networks, strict=True))
        if len(held_out) < MIN_HELD_OUT:  # too few: rows trained on have to do
            held_out = np.random.default_rng(random_state).permutation(len(cells))[:INSTEAD]
        probability = None if predict_proba is None else predict_proba(cells[held_out])
        next_share = 1.0
        own = np.full(len(held_out), np.nan)
        if probability is not None:
            probability = centred(probability, self.thresholds)
            own, next_label = _own_and_next(probability, codes[held_out])
            share = next_label.sum() / max((1 - own).sum(), 1e-6)
            next_share = float(np.clip(share, 1 / (n_labels - 1), 1.0))
        fitted = replace(self, layers=layers, scale=np.ones(2), next_share=next_share)
        odds = fitted.signals(schema, cells[held_out], codes[held_out], own)
        fitted = replace(fitted, scale=np.maximum(np.sqrt((odds**2).mean(axis=0)), SMALLEST))
        return replace(fitted, margin=_least_margin(odds / fitted.scale, fitted.scale[0]))

    def estimate(self, schema: Schema, cells: Floats, codes: Ints, probability: Floats) -> Estimate:
        """Estimates the chance that rows keep a label; NaN where nothing is known.

        Args:
            schema: The columns; wider than the fitted ones where rows have unseen levels.
            cells: The rows.
            codes: The label of each, as a position.
            probability: The classifier's probability of that label; NaN where it has none.

        Returns:
            The estimate and both ends of its 90% interval.
        """
        if self.retrained:
            wanted, kept = np.array(self.labels, dtype=object)[codes], np.zeros(len(cells))
            for classifier in self.retrained:
                labels = np.array(classifier.labels, dtype=object)
                kept += labels[classifier.predict(cells, schema)] == wanted
            return share_kept(kept, len(self.retrained))
        return self._ensemble_estimate(schema, cells, codes, probability)

    def has_margin(self, schema: Schema, cells: Floats, codes: Ints, probability: Floats) -> Bools:
        """Tells whether rows keep a margin to the decision boundary, which `best` asks of them.

        A row needs a probability of at least `margin`, with more than two labels against the next
        label. Where the classifier has none, the row needs an estimated survival of `LIKELY`; where
        neither is known, nothing is asked. Rows for which that holds also need a survival of
        `LIKELY` under the retrained classifiers, where there are any. The arguments are
        `estimate`'s.
        """
        odds = self._classifier_odds(centred(probability, self.thresholds[codes]))
        beyond = odds - logit(self.margin)
        enough: Bools = beyond >= -1e-9
        rows = np.flatnonzero(np.isnan(beyond))
        if self.layers is None:
            enough[rows] = True
        elif len(rows):
            parts = (cells[rows], codes[rows], probability[rows])
            enough[rows] = self._ensemble_estimate(schema, *parts)[0] >= LIKELY
        if self.retrained:  # alone they would be too few: a search finds rows that please just them
            rows = np.flatnonzero(enough)
            parts = (cells[rows], codes[rows], probability[rows])
            enough[rows] = self.estimate(schema, *parts)[0] >= LIKELY
        return enough

    def signals(self, schema: Schema, cells: Floats, codes: Ints, probability: Floats) -> Floats:
        """Returns both log-odds over their scale, (n, 2), which a calibration reads.

        The arguments are those of `estimate`, with probabilities as if labels were predicted from
        0.5 on. The classifier's log-odds are NaN where these are unknown, or were in `fit`.
        """
        x = schema.encode(cells).astype(np.float32)  # levels unseen in training count as no level
        each = [
            softmax(np.maximum(x @ first + inner, 0) @ second + outer, axis=1)
            for first, second, inner, outer in zip(*(self.layers or ()), strict=True)
        ]
        ensemble = np.asarray(np.mean(each, axis=0), dtype=np.float64)  # (n, labels)
        odds = self._classifier_odds(probability), _log_odds(*_own_and_next(ensemble, codes))
        return np.column_stack(odds) / self.scale

    def _classifier_odds(self, probability: Floats) -> Floats:
        """Returns the classifier's log-odds of labels against the next label."""
        return _log_odds(probability, (1 - probability) * self.next_share)

    def _ensemble_estimate(
        self, schema: Schema, cells: Floats, codes: Ints, probability: Floats
    ) -> Estimate:
        estimate = np.full((3, len(cells)), np.nan)
        if self.layers is not None:
            probability = centred(probability, self.thresholds[codes])
            signals = self.signals(schema, cells, codes, probability)
            unknown = np.isnan(signals[:, 0])
            estimate[:, ~unknown] = shipped(True)(signals[~unknown])
            estimate[:, unknown] = shipped(False)(signals[unknown, 1:])
        return estimate[0], estimate[1], estimate[2]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns plain arrays by name, for a file; 0 stands for NaN; none without an ensemble."""
        if self.layers is None:
            return {}
        numbers = np.nan_to_num([*self.scale, self.next_share, self.margin])
        return {**dict(zip(LAYERS, self.layers, strict=True)), "numbers": numbers}

    def with_arrays(self, arrays: Mapping[str, NDArray[Any]], width: int) -> Survival:
        """Restores what `arrays` returned; anything else is refused with a ValueError.

        Args:
            arrays: By name.
            width: Width of an encoded row.
        """
        if not arrays:
            return self
        sizes = (width, HIDDEN), (HIDDEN, len(self.labels)), (HIDDEN,), (len(self.labels),)
        kinds = {n: ((MEMBERS, *size), "float32") for n, size in zip(LAYERS, sizes, strict=True)}
        kinds |= {"numbers": ((4,), "float64")}
        fits = {name: (a.shape, a.dtype.name) for name, a in arrays.items()} == kinds
        if not fits or not all(np.isfinite(array).all() for array in arrays.values()):
            raise ValueError("the ensemble does not fit the columns")
        own_scale, scale, next_share, margin = arrays["numbers"].tolist()
        if own_scale < 0 or scale <= 0 or not 0 < next_share <= 1 or not 0 <= margin < 1:
            raise ValueError("the numbers of the ensemble do not fit together")
        return replace(
            self,
            layers=tuple(arrays[name] for name in LAYERS),
            scale=np.array([own_scale or np.nan, scale]),
            next_share=next_share,
            margin=margin or np.nan,
        )


def _least_margin(signals: Floats, scale: float) -> float:
    """Finds the least probability at which the held-out rows nearest to it survive."""
    if np.isnan(signals).any():
        return np.nan
    for p in GRID:
        odds = logit(p) / scale
        near = signals[np.argsort(np.abs(signals[:, 0] - odds), kind="stable")[:NEAREST]]
        near[:, 0] = odds
        if shipped(True)(near)[0].mean() >= AIM:
            return float(p)
    return float(GRID[-1])


class Calibration(NamedTuple):
    """A logistic curve from signals to survival, and intervals around it.

    Attributes:
        coefficients: One per signal, and the intercept.
        low: Lower end of the 90% interval at each of the `LEVELS` of the estimate.
        high: Upper end.
    """

    coefficients: Floats
    low: Floats
    high: Floats

    def __call__(self, signals: Floats) -> Estimate:
        """Returns the estimate and its interval for signals, (n, signals)."""
        estimate = expit(signals @ self.coefficients[:-1] + self.coefficients[-1])
        low, high = (np.interp(estimate, LEVELS, end) for end in (self.low, self.high))
        return estimate, np.minimum(low, estimate), np.maximum(high, estimate)


@cache
def shipped(has_probability: bool) -> Calibration:
    """Returns the calibration that comes with the package."""
    text = files(__package__).joinpath("calibration.toml").read_text(encoding="utf-8")
    entry = tomllib.loads(text)["probability" if has_probability else "labels"]
    return Calibration(*(np.array(entry[name]) for name in Calibration._fields))


def _network(
    x: NDArray[np.float32], codes: Ints, n_labels: int, seed: int
) -> tuple[NDArray[np.float32], ...]:
    """Fits a network on a bootstrap sample; returns both layers' weights, then their biases."""
    random = np.random.RandomState(seed)
    rows = _bootstrap(codes, random)
    batch = min(BATCH, len(rows))
    network = MLPClassifier(
        (HIDDEN,), batch_size=batch, learning_rate_init=RATE, random_state=random
    )
    for _ in range(max(EPOCHS, STEPS * batch // len(rows))):  # each call is one epoch
        network.partial_fit(x[rows], codes[rows], classes=np.arange(n_labels))
    layers = [np.asarray(part, np.float32) for part in (*network.coefs_, *network.intercepts_)]
    if n_labels == 2:  # the network has one output, the log-odds of the second label
        layers[1::2] = (np.concatenate([0 * part, part], axis=-1) for part in layers[1::2])
    return tuple(layers)


def _bootstrap(codes: Ints, random: np.random.RandomState) -> Ints:
    """Draws rows with replacement, label by label, so that no label is missing."""
    share = min(1.0, ROWS / len(codes))
    parts = []
    for label in np.unique(codes):
        rows = np.flatnonzero(codes == label)
        parts.append(random.choice(rows, max(round(share * len(rows)), min(RARE, len(rows)))))
    return np.concatenate(parts)


def _log_odds(one: Floats, other: Floats) -> Floats:
    odds: Floats = np.log(np.maximum(one, LEAST)) - np.log(np.maximum(other, LEAST))
    return odds


def _own_and_next(probability: Floats, codes: Ints) -> tuple[Floats, Floats]:
    """Returns the probability of each row's label, and of the likeliest other one."""
    rows, others = np.arange(len(codes)), probability.copy()
    others[rows, codes] = -1.0
    return probability[rows, codes], others.max(axis=1)


def centred(probability: Floats | float, threshold: Floats) -> Floats:
    """Returns probabilities as if labels were predicted from 0.5 on, not from a threshold.

    Examples:
        >>> centred(np.array([0.2, 0.5]), np.array([0.2, 0.2])).round(2).tolist()
        [0.5, 0.8]
    """
    odds, zero = (logit(np.clip(p, 1e-6, 1 - 1e-6)) for p in (probability, threshold))
    return np.asarray(expit(odds - zero), dtype=np.float64)


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


def share_kept(kept: Floats, count: int) -> Estimate:
    """Returns the share of `count` classifiers that keep a label, and its 90% interval.

    It is Jeffreys' interval, which reaches 0 and 1 where none and all keep the label.

    Examples:
        >>> [round(float(value[0]), 2) for value in share_kept(np.array([9.0]), 10)]
        [0.9, 0.67, 0.98]
    """
    low, high = (beta.ppf(q, kept + 0.5, count - kept + 0.5) for q in (0.05, 0.95))
    return kept / count, np.where(kept == 0, 0.0, low), np.where(kept == count, 1.0, high)
