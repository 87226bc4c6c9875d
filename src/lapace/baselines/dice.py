"""DiCE, through the real `dice-ml` package: our columns go in, its answers come back as our rows.

The adapter hands DiCE a table it can hold (codes for categories, no gaps), with ranges and
precision taken from the schema, and a classifier with two classes, "what this instance wants" and
"anything else", so that any number of labels will do. What DiCE cannot hold of an instance (a missing
number, a category training never saw) it sees as a stand-in; a cell it leaves at the stand-in is
the instance's own cell again before the classifier is asked.
"""

from __future__ import annotations

import contextlib
import io
import logging
import random
import warnings
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from importlib import import_module
from importlib.util import find_spec
from time import perf_counter
from typing import Any, Literal

import numpy as np

from lapace.arrays import Floats
from lapace.baselines.ground import Asked, Found, Ground, Kinds, ground_of, number, whole
from lapace.errors import ClassifierError, InputError, LapaceError
from lapace.result import Counterfactuals
from lapace.schema import Feature, Schema
from lapace.schema.features import decimals
from lapace.table import Coded, Template

__all__ = ["DiCE"]

OUTCOME = "outcome"
METHODS = ("random", "genetic")


@dataclass(eq=False)
class DiCE:
    """Several diverse answers, by the `dice-ml` package (Mothilal et al., 2020).

    Attributes:
        classifier: Anything that predicts.
        schema: What the columns are, where inferring is not enough; as in `Explainer`.
        seed: Of everything DiCE draws. It is set for each instance, so that company changes nobody's
            answers, and the generators are put back afterwards.
        count: Answers per instance, at most.
        method: `random` or `genetic`, as in the package.
        seconds: Time for one instance. Where it is up, DiCE is given as much again without its last
            step, the one that makes answers sparser; then nothing was found for them.
        settings: Further settings of `generate_counterfactuals`, in the package's words.

    Examples:
        >>> DiCE(lambda rows: [0] * len(rows), method="gradient")
        Traceback (most recent call last):
        lapace.errors.InputError: method is 'gradient'; it is one of random, genetic.
    """

    classifier: Any
    _: KW_ONLY
    schema: Kinds = field(default=None, repr=False)
    seed: int = 0
    count: int = 5
    method: Literal["random", "genetic"] = "random"
    seconds: float = 10.0
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole("count", self.count)
        whole("seed", self.seed, 0)
        number("seconds", self.seconds, 0)
        if self.method not in METHODS:
            raise InputError(f"method is {self.method!r}; it is one of {', '.join(METHODS)}.")

    def fit(self, train: Any) -> DiCE:
        """Asks the classifier about the training rows and hands the table to DiCE."""
        if find_spec("dice_ml") is None:
            raise LapaceError("DiCE needs the dice-ml package. Install lapace[dice].")
        self.ground_ = Ground.of(self.classifier, train, self.schema)
        self.booth_ = _Booth(self.ground_)
        return self

    def counterfactuals(self, instances: Any, *, target: Any = None) -> Counterfactuals:
        """Up to `count` different rows for everyone who can have one."""
        return self.find(instances, target=target).answers

    def find(self, instances: Any, *, target: Any = None) -> Found:
        """The same, with the reasons of those who have none."""
        asked = ground_of(self).meet(instances, target)
        cells, instance = [np.empty((0, len(asked.schema.features)))], [np.empty(0, dtype=np.int64)]
        reasons: dict[int, str] = {}
        for one in asked.tried.tolist():
            try:
                rows = self._in_time(asked, one)
            except _TimeUp:
                reasons[one] = f"DiCE found nothing within {self.seconds:g} seconds."
            except ClassifierError as error:
                reasons[one] = str(error)
            except Exception as error:  # DiCE says in exceptions of many kinds that it found none
                reasons[one] = f"DiCE found nothing: {str(error) or type(error).__name__}"
            else:
                cells.append(rows)
                instance.append(np.full(len(rows), one))
        return asked.answered(np.concatenate(cells), np.concatenate(instance), reasons)

    def _in_time(self, asked: Asked, instance: int) -> Floats:
        """DiCE's answers for one instance; where time is up, without its last step.

        That step moves numbers back to the instance's own one unit at a time, asking the classifier
        each time: for a column in dollars it takes minutes.
        """
        try:
            return self._one(asked, instance, self.settings)
        except _TimeUp:
            return self._one(asked, instance, {**self.settings, "posthoc_sparsity_param": None})

    def _one(self, asked: Asked, instance: int, settings: dict[str, Any]) -> Floats:
        """DiCE's answers for one instance, as cells."""
        visit = _Visit(self.booth_, asked, instance, perf_counter() + self.seconds)
        dice_ml = import_module("dice_ml")
        with _alone(self.seed):
            model = dice_ml.Model(model=visit, backend="sklearn")
            # A new engine for everyone: the genetic one would start from the last one's rows.
            engine = dice_ml.Dice(self.booth_.data, model, method=self.method)
            found = engine.generate_counterfactuals(
                visit.query, total_CFs=self.count, desired_class=1, **settings
            )
            example = found.cf_examples_list[0]
            frame = example.final_cfs_df_sparse
            frame = example.final_cfs_df if frame is None else frame
            if frame is None or not len(frame):
                raise LookupError("no counterfactuals")
            cells = visit.cells(frame)
        return cells[np.sort(np.unique(cells, axis=0, return_index=True)[1])]


class _TimeUp(Exception):  # noqa: N818  not an error: DiCE is interrupted with it
    """An instance has had their time."""


@contextlib.contextmanager
def _alone(seed: int) -> Iterator[None]:
    """DiCE without its prints, bars, warnings and log lines, and with generators it cannot keep.

    It draws from numpy's and Python's global generators. Its own `random_seed` starts numpy's anew
    for every column, so that all columns draw alike; here they are started once.
    """
    ours, theirs = np.random.get_state(), random.getstate()  # noqa: NPY002
    level = logging.root.manager.disable
    quiet = io.StringIO()
    try:
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        logging.disable(logging.WARNING)
        with (
            contextlib.redirect_stdout(quiet),
            contextlib.redirect_stderr(quiet),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        np.random.set_state(ours)  # noqa: NPY002
        random.setstate(theirs)


class _Booth:
    """The training table as DiCE can hold it."""

    def __init__(self, ground: Ground) -> None:
        self.schema = schema = ground.schema
        # Constant columns have nothing to vary, and DiCE divides by their range.
        self.columns = [i for i, f in enumerate(schema.features) if _varies(f)]
        self.names = tuple(f"c{i}" for i in self.columns)
        self.fill = _usual(schema, ground.rows)
        self.rows = self.stand_in(ground.rows)
        self.data = self._data(ground.codes == ground.codes[0])

    def stand_in(self, cells: Floats) -> Floats:
        """Rows with something DiCE can hold where they have something it cannot."""
        held = cells.copy()
        for i, feature in enumerate(self.schema.features):
            column = held[:, i]
            odd = np.isnan(column)
            if feature.categories:
                odd &= not (feature.missing and not feature.numeric)  # a category of its own
                odd |= column >= len(feature.categories)
            column[odd] = self.fill[i]
            if feature.numeric:
                held[:, i] = np.clip(column, feature.lower, feature.upper)
        return held

    def frame(self, held: Floats, outcome: Any = None) -> Any:
        """Rows as the pandas frame DiCE gets: numbers as they are, categories as codes in text."""
        columns: dict[str, Any] = {}
        for i, name in zip(self.columns, self.names, strict=True):
            if self.schema.features[i].numeric:
                columns[name] = held[:, i]
            else:
                codes = np.where(np.isnan(held[:, i]), -1, held[:, i]).astype(np.int64)
                most = len(self.schema.features[i].categories)
                columns[name] = Coded(
                    np.where(codes < 0, most, codes), tuple(map(str, range(most + 1)))
                )
        dtypes = ["float64" if self.schema.features[i].numeric else "object" for i in self.columns]
        names = list(self.names)
        if outcome is not None:
            columns[OUTCOME] = np.asarray(outcome, dtype=np.float64)
            names, dtypes = [*names, OUTCOME], [*dtypes, "int64"]
        return Template("pandas", tuple(names), tuple(dtypes)).build(columns)

    def _data(self, outcome: Any) -> Any:
        """What DiCE knows of the table."""
        features = [self.schema.features[i] for i in self.columns]
        numbers = {n: f for n, f in zip(self.names, features, strict=True) if f.numeric}
        with _alone(0):
            return import_module("dice_ml").Data(
                dataframe=self.frame(self.rows, outcome),
                continuous_features=list(numbers),
                continuous_features_precision={n: _places(f) for n, f in numbers.items()},
                outcome_name=OUTCOME,
            )


def _varies(feature: Feature) -> bool:
    if feature.numeric:
        return feature.upper > feature.lower
    return len(feature.categories) + feature.missing > 1


def _usual(schema: Schema, rows: Floats) -> Floats:
    """For each column a value everybody would believe: the median, the most frequent category."""
    fill = np.zeros(len(schema.features))
    for i, feature in enumerate(schema.features):
        there = rows[~np.isnan(rows[:, i]), i]
        if not len(there):
            fill[i] = feature.lower if feature.numeric else 0.0
        elif feature.numeric:
            fill[i] = np.sort(there)[(len(there) - 1) // 2]  # one that occurs
        else:
            fill[i] = np.bincount(there.astype(np.int64)).argmax()
    return fill


def _places(feature: Feature) -> int:
    """Digits after the point DiCE draws a number with."""
    if feature.resolution:
        return decimals(feature.resolution)
    return int(np.clip(4 - np.floor(np.log10(feature.span)), 0, 9))


class _Visit:
    """One instance at DiCE's: the classifier it asks, and the way back to our rows."""

    def __init__(self, booth: _Booth, asked: Asked, instance: int, until: float) -> None:
        self.booth, self.asked, self.instance, self.until = booth, asked, instance, until
        self.own = asked.instances[instance]
        self.held = booth.stand_in(self.own[None])[0]
        self.query = booth.frame(self.held[None])

    def cells(self, frame: Any) -> Floats:
        """DiCE's rows as ours, on the lattice; what it left alone is the instance's own."""
        schema = self.asked.schema
        cells = np.repeat(self.own[None], len(frame), axis=0)  # (n, d)
        alone = np.ones(cells.shape, dtype=bool)
        for i, name in zip(self.booth.columns, self.booth.names, strict=True):
            feature = schema.features[i]
            # Codes are text. Whatever DiCE made of the types, they all read as numbers.
            column = np.asarray(frame[name], dtype=object).astype(np.float64)
            # DiCE keeps numbers in 32 bits.
            alone[:, i] = column.astype(np.float32) == np.float32(self.held[i])
            if feature.numeric:
                column = np.clip(column, feature.lower, feature.upper)
            else:
                column = np.where(column >= len(feature.categories), np.nan, column)
            cells[:, i] = column
        snapped = schema.snap(cells)
        return np.where(alone | ~schema.changed(self.own, snapped), self.own, snapped)

    def predict_proba(self, frame: Any) -> Floats:
        """Of anything else, and of what this instance wants."""
        if perf_counter() > self.until:
            raise _TimeUp
        cells = self.cells(frame)
        instance = np.full(len(cells), self.instance)
        found = self.asked.classifier.query(cells, self.asked.schema)
        good = self.asked.wanted(found.codes, instance)
        score = good.astype(np.float64)
        if found.probability is not None:
            # The label decides on which side of a half: with many labels the target may win
            # with less.
            score = self.asked.score(found.probability, instance)
            score = np.where(good, np.maximum(score, 0.501), np.minimum(score, 0.499))
        return np.stack([1.0 - score, score], axis=1)

    def predict(self, frame: Any) -> Any:
        """Whether each row is what this instance wants, as 0 and 1."""
        return (self.predict_proba(frame)[:, 1] > 0.5).astype(np.int64)
