"""DiCE, through the `dice-ml` package: our columns go in, its rows come back as ours.

The adapter hands DiCE a table it can hold (codes for categories, nothing missing), with ranges and
precision taken from the schema, and a classifier of two classes, "counterfactual of this instance"
and "anything else", so that any number of labels will do. Cells of an instance that DiCE cannot
hold (a missing number, a category unseen in training) are imputed; a cell that DiCE leaves at the
imputed value is the instance's original cell again before the classifier is queried.
"""

from __future__ import annotations

import contextlib
import io
import logging
import random
import warnings
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from time import perf_counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.problem import (
    BaselineProblem,
    Constraints,
    SchemaLike,
    TrainingIndex,
    number_bounds,
)
from lapace.arrays import Floats, Ints
from lapace.errors import import_extra
from lapace.metrics import distinct_rows
from lapace.result import Counterfactuals
from lapace.schema import Feature
from lapace.schema.features import decimals
from lapace.table import plain_frame


@dataclass(eq=False)
class DiCE:
    """Several diverse counterfactuals, by the `dice-ml` package (Mothilal et al., 2020).

    Attributes:
        classifier: Anything that predicts.
        schema: What the columns are, where inferring is not enough; as in `Explainer`.
        random_state: Of everything DiCE draws. It is set anew for each instance, so that none
            depends on the others, and the global generators are restored afterwards.
        count: Counterfactuals per instance, at most.
        method: The package's search: `random` or `genetic`.
        seconds: Time for one instance. When it is over, DiCE gets as much again without its last
            step, which makes counterfactuals sparser; then nothing was found.
        settings: Further arguments of the package's `generate_counterfactuals`.
    """

    classifier: Any
    _: KW_ONLY
    schema: SchemaLike = field(default=None, repr=False)
    random_state: int = 0
    count: int = 5
    method: Literal["random", "genetic"] = "random"
    seconds: float = 10.0
    settings: dict[str, Any] = field(default_factory=dict)

    def fit(self, X: Any) -> DiCE:
        """Queries the classifier about the training rows and hands the table to DiCE."""
        self.training_ = TrainingIndex.of(self.classifier, X, self.schema)
        self.table_ = _DiceTable(self.training_)
        return self

    def counterfactuals(
        self, X: Any, *, target: Any = None, constraints: Constraints = ()
    ) -> Counterfactuals:
        """Up to `count` different rows per instance; `reasons` has those without."""
        problem = BaselineProblem.of(self, X, target, constraints)
        proposed: list[tuple[Floats, Ints]] = []
        reasons: dict[int, str] = {}
        for instance in problem.tried.tolist():
            try:
                cells = self._search(problem, instance)
            except _TimeUpError:
                reasons[instance] = f"DiCE found nothing within {self.seconds:g} seconds."
            except Exception as error:  # of many kinds, all meaning that DiCE found none
                reasons[instance] = f"DiCE found nothing: {str(error) or type(error).__name__}"
            else:
                proposed.append((cells, np.full(len(cells), instance)))
        return problem.accepted(proposed, reasons=reasons)

    def _search(self, problem: BaselineProblem, instance: int) -> Floats:
        """DiCE's counterfactuals of one instance; when time is up, without its last step.

        That step moves numbers back to the original one unit at a time, with a query each time:
        for a column in dollars it takes minutes.
        """
        try:
            return self._generate(problem, instance, self.settings)
        except _TimeUpError:
            settings = {**self.settings, "posthoc_sparsity_param": None}
            return self._generate(problem, instance, settings)

    def _generate(
        self, problem: BaselineProblem, instance: int, settings: dict[str, Any]
    ) -> Floats:
        """DiCE's counterfactuals of one instance, as cells."""
        model = _DiceModel(self.table_, problem, instance, perf_counter() + self.seconds)
        with _isolated(self.random_state):
            dice_ml = _dice_ml()
            wrapped = dice_ml.Model(model=model, backend="sklearn")
            engine = dice_ml.Dice(self.table_.data, wrapped, method=self.method)
            found = engine.generate_counterfactuals(
                model.query, total_CFs=self.count, desired_class=1, **settings
            ).cf_examples_list[0]
            sparse = found.final_cfs_df_sparse
            frame = found.final_cfs_df if sparse is None else sparse
            if frame is None or not len(frame):
                raise LookupError("no counterfactuals")
            cells = model.cells(frame)
        return cells[distinct_rows(cells)[0]]


class _TimeUpError(Exception):
    """The time for one instance is over; interrupts DiCE."""


@contextlib.contextmanager
def _isolated(random_state: int) -> Iterator[None]:
    """DiCE without its prints, bars, warnings and log lines, global generators restored after.

    It draws from numpy's and Python's global generators. Its own `random_seed` starts numpy's anew
    for every column, so that all columns draw alike; here they are started once.
    """
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    level = logging.root.manager.disable
    quiet = io.StringIO()
    try:
        np.random.seed(random_state)  # noqa: NPY002
        random.seed(random_state)
        logging.disable(logging.WARNING)
        with (
            contextlib.redirect_stdout(quiet),
            contextlib.redirect_stderr(quiet),
            warnings.catch_warnings(action="ignore"),
        ):
            yield
    finally:
        logging.disable(level)
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)


def _dice_ml() -> Any:
    return import_extra("dice_ml", "dice", "DiCE")


class _DiceTable:
    """The training table as DiCE can hold it."""

    def __init__(self, training: TrainingIndex) -> None:
        self.features = training.schema.features
        # Constant columns have nothing to vary, and DiCE divides by their range.
        self.columns = {f"c{i}": i for i, f in enumerate(self.features) if _varies(f)}
        self.fill = [_typical(f, training.rows[:, i]) for i, f in enumerate(self.features)]
        numbers = {n: self.features[i] for n, i in self.columns.items() if self.features[i].numeric}
        outcome = (training.codes == training.codes[0]).astype(np.int64)
        frame = self.frame(self.imputed(training.rows), outcome=outcome)
        with _isolated(0):
            self.data = _dice_ml().Data(
                dataframe=frame,
                continuous_features=list(numbers),
                continuous_features_precision={n: _digits(f) for n, f in numbers.items()},
                outcome_name="outcome",
            )

    def imputed(self, cells: Floats) -> Floats:
        """Rows with typical values in the cells that DiCE cannot hold."""
        levels = np.array([len(f.categories) or np.inf for f in self.features])
        held = np.array([f.missing and not f.numeric for f in self.features])  # as a category
        unusable = (np.isnan(cells) & ~held) | (cells >= levels)
        return np.clip(np.where(unusable, self.fill, cells), *number_bounds(self.features))

    def frame(self, imputed: Floats, **more: NDArray[Any]) -> Any:
        """Rows as the pandas frame DiCE gets: numbers as they are, categories as codes in text."""
        columns = {name: imputed[:, i] for name, i in self.columns.items()}
        for name, i in self.columns.items():
            if not self.features[i].numeric:
                codes = np.nan_to_num(columns[name], nan=len(self.features[i].categories))
                columns[name] = codes.astype(np.int64).astype(str).astype(object)
        return plain_frame("pandas", {**columns, **more})


def _varies(feature: Feature) -> bool:
    if feature.numeric:
        return feature.upper > feature.lower
    return len(feature.categories) + feature.missing > 1


def _typical(feature: Feature, column: Floats) -> float:
    """A column's median, as a value that occurs, or its most frequent category."""
    known = column[~np.isnan(column)]
    if not len(known):
        return feature.lower if feature.numeric else 0.0
    if feature.numeric:
        return float(np.quantile(known, 0.5, method="lower"))
    return float(np.bincount(known.astype(np.int64)).argmax())


def _digits(feature: Feature) -> int:
    """Digits after the point DiCE draws a number with."""
    if feature.resolution:
        return decimals(feature.resolution)
    return int(np.clip(4 - np.floor(np.log10(feature.span)), 0, 9))


class _DiceModel:
    """The classifier DiCE queries for one instance: is a row a counterfactual of it, or not?"""

    def __init__(
        self, table: _DiceTable, problem: BaselineProblem, instance: int, deadline: float
    ) -> None:
        self.table, self.problem, self.instance, self.deadline = table, problem, instance, deadline
        self.original = problem.cells[instance]
        self.imputed = table.imputed(self.original[None])[0]
        self.query = table.frame(self.imputed[None])

    def cells(self, frame: Any) -> Floats:
        """DiCE's rows as ours, on the lattice; unchanged cells are the instance's original ones."""
        schema = self.problem.schema
        cells = np.repeat(self.original[None], len(frame), axis=0)  # (n, d)
        same = np.ones(cells.shape, dtype=bool)
        for name, i in self.table.columns.items():
            feature = schema.features[i]
            # Codes are text. Whatever DiCE made of the types, they all read as numbers.
            column = np.asarray(frame[name], dtype=object).astype(np.float64)
            # DiCE keeps numbers in 32 bits.
            same[:, i] = column.astype(np.float32) == np.float32(self.imputed[i])
            missing = not feature.numeric and column >= len(feature.categories)
            cells[:, i] = np.where(missing, np.nan, column)
        snapped = schema.snap(np.clip(cells, *number_bounds(schema.features)))
        return np.where(same | ~schema.changed(self.original, snapped), self.original, snapped)

    def predict_proba(self, frame: Any) -> Floats:
        """Returns the probability of anything else, and of a counterfactual of this instance."""
        if perf_counter() > self.deadline:
            raise _TimeUpError
        cells = self.cells(frame)
        rows = self.problem.evaluate(cells, np.full(len(cells), self.instance))
        score = np.where(np.isnan(rows.probability), rows.ok, rows.probability)
        # Whether a row is ok decides on which side of one half: of many labels the target may be
        # predicted with less.
        score = np.where(rows.ok, np.maximum(score, 0.501), np.minimum(score, 0.499))
        return np.stack([1.0 - score, score], axis=1)

    def predict(self, frame: Any) -> Any:
        """Returns whether each row is a counterfactual of this instance, as 0 and 1."""
        return (self.predict_proba(frame)[:, 1] > 0.5).astype(np.int64)
