"""How sure a counterfactual is: the chance to keep its label when the classifier is retrained.

The classifier may be slow and is a single model. Surrogates are small models fitted to the training
rows as the classifier labels them: a search asks them for free, and where they hesitate a retrained
classifier may decide otherwise. They see labels without noise, so their own votes are too sure.
Four things close that gap, put together by a logistic curve whose coefficients were fitted on
classifiers that really were retrained (`python -m benchmarks.survival`):

- the classifier's log-odds of the label, in units of its log-odds on rows held out: 0.7 is much for
  a forest and little for boosted trees, which are rarely less sure;
- how often surrogates disagree with the classifier on rows held out: the more, the more of its
  boundary is noise that the next training draws anew;
- the surrogates' own log-odds, in the same units: smooth models tell on which side the classifier's
  boundary is likely to be found again;
- where the true labels are known, the log-odds of a second ensemble that was fitted to them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import beta

from lapace.arrays import Bools, Floats, Ints
from lapace.classifiers import Classifier, Label
from lapace.errors import ClassifierError, LapaceError
from lapace.explainer.ensemble import NETWORKS, Ensemble
from lapace.schema import Schema

__all__ = ["Calibration", "HeldOutRows", "Retrain", "Retrained", "Surrogates", "share_kept"]

Retrain: TypeAlias = Callable[[Any, Any, int], Any]

RETRAINED = 10  # classifiers made by the user's function
LEAST = 1e-4  # probabilities below it count as it
UNSEEN = 0.01  # the same for members, which may have seen no row of a label nearby
FARTHEST = 3.0  # log-odds in units of their scale count up to here
SMALLEST = 0.1  # scale of log-odds; where all are 0 nothing is learned
AIM = 0.98  # survival asked of a margin: minimal rows lie where the estimate errs upwards
LIKELY = 0.95  # the same where the classifier has no probabilities
GRID = np.linspace(0.5, 0.95, 46).round(2)  # of margins
NEAREST = 100  # reference rows a margin is judged by, those nearest to it
LEVELS = (0.0, *np.linspace(0.05, 0.95, 19).round(2).tolist(), 0.98, 1.0)  # of the intervals


class HeldOutRows(NamedTuple):
    """Rows the ensembles were not fitted on, by which their scale is judged.

    Attributes:
        cells: The rows.
        codes: The labels the classifier gives them, as positions.
        probability: Its probabilities, (n, labels); None where it has none.
    """

    cells: Floats
    codes: Ints
    probability: Floats | None


class Calibration(NamedTuple):
    """From what is known of a row to the chance that it survives.

    Attributes:
        coefficients: One per signal, and the intercept.
        low: Lower end of the 90 % interval at each of the `LEVELS` of the estimate.
        high: Upper end.
    """

    coefficients: Floats
    low: Floats
    high: Floats

    def __call__(self, signals: Floats) -> tuple[Floats, Floats, Floats]:
        """The estimate and its interval, for the signals of rows, (n, signals)."""
        *slopes, intercept = self.coefficients.tolist()
        estimate = expit(signals @ np.array(slopes) + intercept)
        low, high = (np.interp(estimate, LEVELS, end) for end in (self.low, self.high))
        return estimate, np.minimum(low, estimate), np.maximum(high, estimate)


@cache
def shipped(has_probability: bool, has_truth: bool) -> Calibration:
    """The calibration that comes with the package."""
    text = files(__package__).joinpath("calibration.toml").read_text(encoding="utf-8")
    entry = tomllib.loads(text)[key_of(has_probability, has_truth)]
    return Calibration(*(np.array(entry[name]) for name in Calibration._fields))


def key_of(has_probability: bool, has_truth: bool) -> str:
    """The name of a calibration in `calibration.toml`."""
    return ("probability" if has_probability else "labels") + ("-truth" if has_truth else "")


@dataclass(frozen=True, eq=False)
class Surrogates:
    """Ensembles that stand beside a classifier, and the scale of its log-odds and of theirs.

    Attributes:
        imitating: Fitted to the labels the classifier gives.
        learning: Fitted to the true labels; None where they were not given.
        scale: Root mean square of the log-odds on the reference rows: of the classifier (NaN where
            it has no probabilities), then of the networks and the forests of each ensemble.
        disagreement: How often the imitating ensemble labels reference rows otherwise.
        margin: The least probability of a label, against the next label, at which survival is
            estimated to be `AIM`; NaN where the classifier has no probabilities.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> rows = rng.normal(size=(400, 2))
        >>> schema, codes = Schema.infer(rows), (rows[:, 0] > 0).astype(np.int64)
        >>> reference = HeldOutRows(rows[300:], codes[300:], None)
        >>> known = schema, rows[:300], codes[:300], 2
        >>> surrogates = Surrogates.fit(*known, reference=reference, random_state=0)
        >>> near_and_far, ones = np.array([[0.02, 0.0], [2.0, 0.0]]), np.array([1, 1])
        >>> estimate, low, high = surrogates.survival(schema, near_and_far, ones, ones * np.nan)
        >>> bool(estimate[0] < 0.8 < 0.95 < estimate[1]), bool((low <= high).all())
        (True, True)
    """

    imitating: Ensemble
    learning: Ensemble | None
    scale: Floats
    disagreement: float
    margin: float = np.nan

    @classmethod
    def fit(
        cls,
        schema: Schema,
        cells: Floats,
        codes: Ints,
        n_labels: int,
        *,
        reference: HeldOutRows,
        random_state: int,
        true_codes: Ints | None = None,
    ) -> Surrogates:
        """Fits the ensembles and takes their scale.

        Args:
            schema: The columns.
            cells: Training rows.
            codes: The labels the classifier gives them, as positions.
            n_labels: How many labels there are.
            reference: Other rows, at least one.
            random_state: Seed of everything random.
            true_codes: The rows' true labels, as positions; -1 for labels the classifier does not
                know.
        """
        imitating = Ensemble.fit(schema, cells, codes, n_labels, random_state=random_state)
        learning = None
        if true_codes is not None and len(np.unique(true_codes[true_codes >= 0])) > 1:
            usable = true_codes >= 0
            learning = Ensemble.fit(
                schema, cells[usable], true_codes[usable], n_labels, random_state=random_state
            )
        x, known = schema.encode(reference.cells), reference.probability
        own = np.full(len(x), np.nan)
        if known is not None:
            best = np.sort(known, axis=1)
            own = _log_odds(best[:, -1], best[:, -2], LEAST)
        parts, disagreement = [own], 0.0
        for ensemble in (imitating, learning):
            if ensemble is not None:
                members = ensemble.probability_of_encoded(x)
                parts += [*_by_family(members, reference.codes)]
                if ensemble is imitating:
                    said = members.mean(axis=0).argmax(axis=1)
                    disagreement = float((said != reference.codes).mean())
        scale = np.array([np.sqrt((part**2).mean()) for part in parts])
        found = cls(imitating, learning, np.maximum(scale, SMALLEST), disagreement)
        return found if known is None else replace(found, margin=found._margin(schema, reference))

    def probability(self, schema: Schema, cells: Floats) -> Floats:
        """Each imitating member's probability of each label, (members, rows, labels).

        Args:
            schema: The columns; it may name levels unseen in training, which are then no level.
            cells: The rows.
        """
        return self.imitating.probability(schema, cells)

    def probability_of_encoded(self, x: NDArray[np.floating[Any]]) -> Floats:
        """The same for rows as `Schema.encode` makes them, of which a search replaces columns."""
        return self.imitating.probability_of_encoded(x)

    def guess(self, schema: Schema, cells: Floats) -> Floats:
        """The mean probability of each label by the imitating networks alone, (rows, labels).

        What a search goes by: smooth, and faster than all members.
        """
        return self.imitating.guess(schema, cells)

    # -- survival ---------------------------------------------------------------------------------

    def survival(
        self, schema: Schema, cells: Floats, codes: Ints, probability: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """The chance that rows keep a label when the classifier is retrained.

        Args:
            schema: As for `probability`.
            cells: The rows.
            codes: The label of each, as a position.
            probability: The classifier's probability of that label; NaN where it has none.

        Returns:
            The estimate and both ends of its 90 % interval.
        """
        signals = self.signals(schema, cells, codes, probability)
        known = ~np.isnan(signals[:, 0])
        found = np.empty((3, len(cells)))
        for has_probability, rows in ((True, known), (False, ~known)):
            calibration = shipped(has_probability, self.learning is not None)
            used = signals[rows] if has_probability else signals[rows, 2:]
            found[:, rows] = calibration(used)
        return found[0], found[1], found[2]

    def has_margin(
        self, schema: Schema, cells: Floats, codes: Ints, probability: Floats, share: float = 1.0
    ) -> Bools:
        """Whether rows are as sure as `margin` asks; without probabilities, likely to survive.

        The arguments are those of `survival`; of the odds asked for, a share may be enough.
        """
        enough = np.zeros(len(cells), dtype=bool)
        margin, likely = (expit(share * logit(level)) for level in (self.margin, LIKELY))
        known = ~np.isnan(probability) & (not np.isnan(self.margin))
        if self.imitating.n_labels == 2:
            enough[known] = probability[known] >= margin
        elif known.any():
            members = self.probability(schema, cells[known])
            odds = self.log_odds(members, codes[known], probability[known])
            enough[known] = odds >= logit(margin)
        if not known.all():
            rest = (cells[~known], codes[~known], np.full((~known).sum(), np.nan))
            enough[~known] = self.survival(schema, *rest)[0] >= likely
        return enough

    def _margin(self, schema: Schema, reference: HeldOutRows) -> float:
        """The least probability on a grid at which reference rows near it survive well enough."""
        cells, codes, known = reference
        assert known is not None
        own = known[np.arange(len(codes)), codes]
        signals = self.signals(schema, cells, codes, own)
        for p in GRID:
            odds = logit(p) / self.scale[0]
            near = signals[np.argsort(np.abs(signals[:, 0] - odds), kind="stable")[:NEAREST]]
            near[:, :2] = odds, odds * self._noise
            if shipped(True, self.learning is not None)(near)[0].mean() >= AIM:
                return float(p)
        return float(GRID[-1])

    @property
    def _noise(self) -> float:
        """How noisy the classifier's boundary is, by the surrogates' disagreement with it."""
        return float(np.log(0.01 + self.disagreement)) + 3

    def signals(self, schema: Schema, cells: Floats, codes: Ints, probability: Floats) -> Floats:
        """What a calibration reads, (n, 4 or 6): see the module.

        The classifier's log-odds, the same times how noisy its boundary is, then the log-odds of
        the networks and of the forests of each ensemble. The first two are NaN where the classifier
        has no probabilities, or had none in `fit`.
        """
        x = schema.encode(cells)
        members = self.imitating.probability_of_encoded(x)
        own = self.log_odds(members, codes, probability) / self.scale[0]
        own = np.clip(own, -FARTHEST, FARTHEST)
        parts = [own, own * self._noise, *_by_family(members, codes)]
        if self.learning is not None:
            parts += [*_by_family(self.learning.probability_of_encoded(x), codes)]
        scaled = [part / scale for part, scale in zip(parts[2:], self.scale[1:], strict=True)]
        return np.column_stack([*parts[:2], *(np.clip(p, -FARTHEST, FARTHEST) for p in scaled)])

    @staticmethod
    def log_odds(members: Floats, codes: Ints, probability: Floats) -> Floats:
        """The classifier's log-odds of labels against the next label, of which it gave one.

        With two labels the next has the rest of the probability; with more, the share of the rest
        that the imitating members give it.
        """
        mean = members.mean(axis=0)  # (n, labels)
        rows = np.arange(len(codes))
        own = mean[rows, codes]
        mean[rows, codes] = -1.0
        labels = mean.shape[1]
        share = mean.max(axis=1) / np.maximum(1 - own, 1e-6)
        share = np.clip(share, 1 / max(1, labels - 1), 1.0)
        return _log_odds(probability, (1 - probability) * share, LEAST)

    # -- as arrays --------------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As plain arrays by name, for a file, which has 0 where the classifier's are unknown."""
        found: dict[str, NDArray[Any]] = {
            "scale": np.nan_to_num(self.scale, nan=0.0),
            "disagreement": np.array([self.disagreement]),
            "margin": np.nan_to_num(np.array([self.margin]), nan=0.0),
        }
        for name, ensemble in (("imitating", self.imitating), ("learning", self.learning)):
            if ensemble is not None:
                found |= {f"{name}.{part}": array for part, array in ensemble.arrays().items()}
        return found

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], width: int, n_labels: int
    ) -> Surrogates:
        """The inverse of `arrays`; a ValueError where they are not those of surrogates.

        Args:
            arrays: By name.
            width: Of an encoded row.
            n_labels: How many labels there are.
        """
        ensembles = []
        for name in ("imitating.", "learning."):
            own = {k.removeprefix(name): v for k, v in arrays.items() if k.startswith(name)}
            ensembles.append(Ensemble.from_arrays(own, width, n_labels) if own else None)
        imitating, learning = ensembles
        scale, disagreement, margin = (arrays[n] for n in ("scale", "disagreement", "margin"))
        wanted = 3 if learning is None else 5
        fits = (
            imitating is not None
            and len(arrays) == sum(len(e.arrays()) for e in ensembles if e is not None) + 3
            and scale.shape == (wanted,)
            and scale.dtype == disagreement.dtype == margin.dtype == np.float64
            and bool(np.isfinite(scale).all() and (scale >= 0).all() and (scale[1:] > 0).all())
            and disagreement.shape == margin.shape == (1,)
            and 0 <= disagreement[0] <= 1
            and (0.5 <= margin[0] < 1 if scale[0] else margin[0] == 0)
        )
        if imitating is None or not fits:
            raise ValueError("the surrogates do not fit together")
        scale, margin = (np.where(part == 0, np.nan, part) for part in (scale, margin))
        return cls(imitating, learning, scale, float(disagreement[0]), float(margin[0]))


# ------------------------------------------------------------------------------------------------
# Classifiers that really were retrained, by the user's own function


@dataclass(frozen=True, eq=False)
class Retrained:
    """Classifiers the user's function made of bootstrap samples of the training rows.

    Attributes:
        labels: Of the classifier that is explained.
        classifiers: The retrained ones, each with its own labels.
    """

    labels: tuple[Label, ...]
    classifiers: tuple[Classifier, ...]

    @classmethod
    def fit(
        cls, retrain: Retrain, classifier: Classifier, cells: Floats, y: Any, random_state: int
    ) -> Retrained:
        """Calls the function `RETRAINED` times.

        Args:
            retrain: Called as `retrain(X, y, random_state)`; returns a fitted classifier.
            classifier: The classifier that is explained.
            cells: Training rows.
            y: Their true labels.
            random_state: Seed of the samples; the function gets it and the numbers after it.
        """
        schema, known = classifier.schema, classifier.labels
        rng, true = np.random.default_rng(random_state), np.asarray(y).ravel()
        found = []
        for k in range(RETRAINED):
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
            own = np.asarray(getattr(model, "classes_", ())).tolist()
            found.append(Classifier(model, schema, (*known, *own)))
        return cls(known, tuple(found))

    def survival(self, schema: Schema, cells: Floats, codes: Ints) -> tuple[Floats, Floats, Floats]:
        """The share of the classifiers that give rows their label, and its 90 % interval.

        Args:
            schema: The columns; wider than the fitted ones where rows have unseen levels.
            cells: The rows.
            codes: The label of each, as a position.
        """
        wanted = np.array(self.labels, dtype=object)[codes]
        kept = np.zeros(len(cells))
        for classifier in self.classifiers:
            said = np.array(classifier.labels, dtype=object)[classifier.predict(cells, schema)]
            kept += said == wanted
        return share_kept(kept, len(self.classifiers))


def share_kept(kept: Floats, count: int) -> tuple[Floats, Floats, Floats]:
    """A share of `count` classifiers and its 90 % interval.

    Jeffreys' interval, which reaches 0 and 1 where none and all keep the label.

    Examples:
        >>> [round(float(value[0]), 2) for value in share_kept(np.array([9.0]), 10)]
        [0.9, 0.67, 0.98]
    """
    low, high = (beta.ppf(q, kept + 0.5, count - kept + 0.5) for q in (0.05, 0.95))
    return kept / count, np.where(kept == 0, 0.0, low), np.where(kept == count, 1.0, high)


def _log_odds(one: Floats, other: Floats, least: float) -> Floats:
    odds: Floats = np.log(np.maximum(one, least)) - np.log(np.maximum(other, least))
    return odds


def _by_family(members: Floats, codes: Ints) -> tuple[Floats, Floats]:
    """Mean log-odds of rows' labels against the next: of the networks, and of the forests."""
    own = members[:, np.arange(len(codes)), codes]  # (members, n)
    others = members.copy()
    others[:, np.arange(len(codes)), codes] = -1.0
    odds = _log_odds(own, others.max(axis=2), UNSEEN)
    return odds[:NETWORKS].mean(axis=0), odds[NETWORKS:].mean(axis=0)
