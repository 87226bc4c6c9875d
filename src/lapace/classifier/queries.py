"""A user's model as one object that is queried with cells and returns codes of labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, is_regressor

from lapace.arrays import Floats, Ints
from lapace.budget import spend
from lapace.classifier.decisions import inner_model
from lapace.classifier.outputs import (
    Label,
    as_array,
    as_label,
    as_probability,
    decision_scores,
    distinct_labels,
    log_scores,
    predict_method,
)
from lapace.errors import ClassifierError, InputError, LapaceError, did_you_mean, warn
from lapace.schema import Schema

__all__ = ["Classifier", "Evaluated", "Prediction", "query_rows"]

TIE = 1e-6  # `predict` decides between two probabilities closer than this

# Classifiers whose `predict` is, by their source code, the class of highest `predict_proba`: one
# call gives both. All others are called twice (a calibrated SVM, or a classifier with a tuned
# threshold, predicts something else than its most probable class).
PREDICT_MOST_PROBABLE = {
    ("sklearn", "DecisionTreeClassifier"),
    ("sklearn", "ExtraTreesClassifier"),
    ("sklearn", "GradientBoostingClassifier"),
    ("sklearn", "HistGradientBoostingClassifier"),
    ("sklearn", "LogisticRegression"),
    ("sklearn", "MLPClassifier"),
    ("sklearn", "RandomForestClassifier"),
    ("xgboost", "XGBClassifier"),
    ("lightgbm", "LGBMClassifier"),
}


class Prediction(NamedTuple):
    """A classifier's labels, probabilities and scores of some rows.

    Attributes:
        codes: Positions in the classifier's labels.
        probability: One column per label, or None where the classifier offers none.
        scores: One column per label, whose differences are odds: log-probabilities, or the values
            of a `decision_function`. None for a classifier of labels alone.
    """

    codes: Ints
    probability: Floats | None = None
    scores: Floats | None = None

    @classmethod
    def of(cls, codes: Ints, probability: Floats) -> Prediction:
        """Returns a prediction with probabilities, whose logarithms are the scores."""
        return cls(codes, probability, log_scores(probability))


class Classifier:
    """A user's model, queried with cells, with labels as codes.

    Args:
        model: An object with `predict`, or a callable that takes rows and returns labels. It gets
            frames of the type `schema` was inferred from, and is never fitted or changed. If it has
            a method `predict_both`, which returns a `ModelOutput`, one call of it gives labels and
            probabilities.
        schema: The columns of the training table.
        labels: The labels, where they are known already; otherwise call `fit_labels`.

    Attributes:
        model: As given.
        schema: As given.
        labels: The labels the model returns, sorted; empty until they are known.
        n_queries: Rows the model was called with; a row queried for label and probability apart is
            two. Threads that count apart use `with_fresh_count`.

    Examples:
        >>> instances = [{"income": 10 * i} for i in range(100)]
        >>> schema = Schema.infer(instances)
        >>> model = lambda rows: ["no" if row["income"] < 500 else "yes" for row in rows]
        >>> classifier = Classifier(model, schema)
        >>> codes = classifier.fit_labels(schema.cells(instances))
        >>> classifier.labels, codes[[0, 99]].tolist(), classifier.n_queries
        (('no', 'yes'), [0, 1], 100)
    """

    def __init__(self, model: Any, schema: Schema, labels: Sequence[Label] = ()) -> None:
        self.model = model
        self.schema = schema
        self.labels: tuple[Label, ...] = _sorted(labels)
        self.n_queries = 0
        self._predict = predict_method(model)
        kind = getattr(model, "_estimator_type", None)
        if kind == "regressor" or (isinstance(model, BaseEstimator) and is_regressor(model)):
            raise InputError(
                f"{type(model).__name__} is a regressor. lapace.classifier.binned(regressor, edges)"
                " makes a classifier of it, whose labels are ranges of predictions."
            )

    @property
    def has_probability(self) -> bool:
        """Whether the model has `predict_proba`; a service may show it only when queried."""
        return callable(getattr(self.model, "predict_proba", None))

    def with_fresh_count(self) -> Classifier:
        """Returns the same classifier and labels, with an `n_queries` that starts at zero."""
        return Classifier(self.model, self.schema, self.labels)

    def code(self, label: object) -> int:
        """Returns a label's position; text may spell a label, as on a command line."""
        plain: Any = label.item() if isinstance(label, np.generic) else label
        if plain in self.labels:
            return self.labels.index(plain)
        texts = [str(own) for own in self.labels]
        if str(plain) in texts:
            return texts.index(str(plain))
        raise InputError(
            f"The classifier never predicts {plain!r}; known labels: {_listed(self.labels)}."
            f"{did_you_mean(plain, texts)}"
        )

    # -- queries ----------------------------------------------------------------------------------

    def fit_labels(self, cells: Floats) -> Ints:
        """Queries the training rows, keeps the labels found there, returns the rows' codes."""
        if not len(cells):
            raise InputError("There are no training rows to query the classifier with.")
        frame = self._frame(cells)
        if type(frame) is not type(self.schema.frame(cells[:1])):
            warn(
                "The classifier was fitted with names of columns and the table has none, or the "
                "other way round: columns are taken by their position."
            )
        returned, position = self._labels_of(frame, len(cells))
        if len(labels := _sorted(returned)) == 1:
            raise InputError(
                f"The classifier gives all {len(cells):,} training rows the label {labels[0]!r}: "
                "there is no other label to explain. Check the classifier, its threshold, and "
                "that the rows look as it expects them."
            )
        self.labels = labels
        if classes := self._classes():  # one predicted for no training row may occur along a path
            self.labels = _sorted(classes)
        codes = self._codes(returned, position)
        if self.has_probability and self._classes() is None:
            self._check_column_order(cells[:1000], codes[:1000])
        return codes

    def predict(self, cells: Floats, schema: Schema | None = None) -> Ints:
        """Returns each row's label, as a position in `labels`.

        Args:
            cells: The rows.
            schema: Where rows have levels unseen in training, the schema that names them.
        """
        if not len(cells):
            return np.empty(0, dtype=np.int64)
        return self._codes(*self._labels_of(self._frame(cells, schema), len(cells)))

    def query(self, cells: Floats, schema: Schema | None = None) -> Prediction:
        """Returns labels and probabilities, with one call of the model where one is enough.

        The label is always what `predict` returns: for models known to predict their most probable
        class it is read off the probabilities, except near ties; all others are called twice, also
        where a `decision_function` gives the odds of a model without probabilities. A
        label's column of the probabilities is found by the model's `classes_`; a model without them
        must give its columns in the order of the sorted labels.
        """
        rows = len(cells)
        if not rows:
            none = np.empty((0, len(self.labels))) if self.has_probability else None
            return Prediction(np.empty(0, dtype=np.int64), none, none)
        frame = self._frame(cells, schema)
        if not (self.has_probability or hasattr(self.model, "predict_both")):
            codes = self._codes(*self._labels_of(frame, rows))
            return Prediction(codes, scores=self._decision(frame, rows))
        if hasattr(self.model, "predict_both"):
            output = self._call(self.model.predict_both, frame, rows)
            codes = self._codes(*distinct_labels(output.labels, rows))
            # Scores that look like probabilities in some calls only are none.
            if output.probability is None or not self.has_probability:
                return Prediction(codes)
            classes = self._classes() or self.labels  # a service may name them only when queried
            probability = as_probability(output.probability, rows, len(classes))
        else:
            returned = self._call(self.model.predict_proba, frame, rows)
            classes = self._classes() or self.labels
            name = "The classifier's predict_proba"
            probability = as_probability(returned, rows, len(classes), name)  # (rows, classes)
            if self._predicts_most_probable():
                two = np.partition(probability, -2, axis=1)[:, -2:]
                clear = two[:, 1] - two[:, 0] > TIE  # and both are numbers
                codes = np.empty(rows, dtype=np.int64)
                codes[clear] = self._codes(classes, probability[clear].argmax(axis=1))
                codes[~clear] = self.predict(cells[~clear], schema)
            else:
                codes = self._codes(*self._labels_of(frame, rows))
        return Prediction.of(codes, probability[:, [classes.index(label) for label in self.labels]])

    def _decision(self, frame: Any, rows: int) -> Floats | None:
        """Returns the scores that the model's `decision_function` gives labels, if it has one."""
        method, classes = getattr(self.model, "decision_function", None), self._classes()
        if not callable(method) or classes is None:
            return None
        scores = decision_scores(self._call(method, frame, rows), rows, len(classes))
        return None if scores is None else scores[:, [classes.index(k) for k in self.labels]]

    def _frame(self, cells: Floats, schema: Schema | None = None) -> Any:
        """Returns rows as the model was fitted: with the names of columns, or without.

        Where the two differ, scikit-learn goes by position and warns in every call.
        """
        schema = schema or self.schema
        frame, model = schema.frame(cells), inner_model(self.model)
        if type(model).__module__.split(".")[0] not in ("sklearn", "lightgbm"):
            return frame
        names = getattr(model, "feature_names_in_", None)
        if names is None and hasattr(model, "n_features_in_") and hasattr(frame, "to_numpy"):
            values = frame.to_numpy()
            return frame if values.dtype == object else values
        if names is not None and isinstance(frame, np.ndarray) and frame.shape[1:] == names.shape:
            named = schema.frame(cells, after={})  # of pandas, if that is installed
            if hasattr(named, "columns"):
                named.columns = names
                return named
        return frame

    def _call(self, method: Callable[[Any], Any], frame: Any, rows: int) -> Any:
        """Calls the model with some rows, and counts them."""
        spend(queries=rows)
        self.n_queries += rows
        try:
            return method(frame)
        except LapaceError:  # of a file or a service
            raise
        except (Exception, SystemExit) as error:  # a model may raise anything
            raise ClassifierError(
                f"The classifier raised {type(error).__name__} when queried with {rows:,} "
                f"{'row' if rows == 1 else 'rows'}: {error}"
            ) from error

    # -- labels -----------------------------------------------------------------------------------

    def _labels_of(self, frame: Any, rows: int) -> tuple[list[Label], Ints]:
        """Returns the distinct labels of rows, and each row's position among them."""
        return distinct_labels(self._call(self._predict, frame, rows), rows)

    def _codes(self, labels: Sequence[Label], position: Ints) -> Ints:
        """Returns the codes of rows, given some labels and each row's position among these."""
        code_of = {label: code for code, label in enumerate(self.labels)}
        codes = np.array([code_of.get(label, -1) for label in labels], dtype=np.int64)[position]
        if (codes < 0).any():
            raise ClassifierError(
                f"The classifier predicted {labels[position[codes.argmin()]]!r}, which it "
                f"predicted for no training row; known labels: {_listed(self.labels)}."
            )
        return codes

    def _classes(self) -> tuple[Label, ...] | None:
        """Returns the model's `classes_`, if it has them and they cover the labels."""
        classes = getattr(self.model, "classes_", None)
        if classes is None:
            return None
        try:
            plain = tuple(as_label(value) for value in as_array(classes).tolist())
        except (ClassifierError, TypeError):
            return None
        return plain if set(self.labels) <= set(plain) else None

    def _check_column_order(self, cells: Floats, codes: Ints) -> None:
        """Without `classes_`, a label's column must be the highest, on average, on its rows."""
        probability = self.query(cells).probability
        if probability is None:
            return
        for code in np.unique(codes):
            if probability[codes == code].mean(axis=0).argmax() != code:
                raise InputError(
                    "The columns of the classifier's predict_proba do not follow its sorted "
                    f"labels ({_listed(self.labels)}). Give it an attribute `classes_` that names "
                    "its columns in order."
                )

    def _predicts_most_probable(self) -> bool:
        """Whether the model, or a pipeline's last step, is exactly one of the listed classes."""
        kind = type(self.model)
        if (kind.__module__.split(".")[0], kind.__name__) == ("sklearn", "Pipeline"):
            kind = type(self.model.steps[-1][1])
        return (kind.__module__.split(".")[0], kind.__name__) in PREDICT_MOST_PROBABLE


class Evaluated(NamedTuple):
    """Predictions of a classifier that may raise on some rows or know no probabilities.

    Attributes:
        codes: Labels as positions, -1 for a row that the classifier raises on.
        probability: Of each label, (n, labels); NaN where unknown.
        scores: Log-probabilities or decision values of each label, (n, labels); NaN where unknown.
    """

    codes: Ints
    probability: Floats
    scores: Floats


def query_rows(
    classifier: Classifier,
    cells: Floats,
    schema: Schema,
    *,
    known_row: Floats,
    max_refused: int | None = None,
) -> tuple[Evaluated, dict[int, str]]:
    """Queries the classifier in one call; where it raises, halves find the rows it raises on.

    A row is refused once the classifier has raised twice on it alone, and answered in between: a
    service that fails for a moment and recovers has nothing against the row.

    Args:
        classifier: The classifier, its labels known.
        cells: The rows, (n, d).
        schema: The columns, with every level the rows have.
        known_row: Cells of a row, (1, d), that the classifier is known to accept. If it raises on
            this row too, the classifier itself is broken and its error is passed on.
        max_refused: Rows the classifier may raise on before its error is passed on.

    Returns:
        The predictions, and the errors by row.
    """
    codes = np.full(len(cells), -1)
    probability, scores = np.full((2, len(cells), len(classifier.labels)), np.nan)
    refused: dict[int, str] = {}
    parts, tried_alone = [np.arange(len(cells))] if len(cells) else [], -1
    while parts:
        part = parts.pop()
        try:
            reply = classifier.query(cells[part], schema)
            codes[part] = reply.codes
            probability[part] = np.nan if reply.probability is None else reply.probability
            scores[part] = np.nan if reply.scores is None else reply.scores
        except ClassifierError as error:
            try:
                classifier.query(known_row, schema)
            except ClassifierError:
                raise error from None
            if len(part) > 1:
                parts += reversed(np.array_split(part, 2))
            elif tried_alone != part[0]:
                tried_alone = part[0]
                parts.append(part)
            else:
                refused[int(part[0])] = str(error)
                if max_refused is not None and len(refused) > max_refused:
                    raise
    return Evaluated(codes, probability, scores), refused


def _sorted(labels: Sequence[Label]) -> tuple[Label, ...]:
    return tuple(sorted(set(labels), key=lambda v: (isinstance(v, str), v)))


def _listed(labels: Sequence[Label], most: int = 12) -> str:
    shown = ", ".join(repr(label) for label in labels[:most])
    return shown if len(labels) <= most else f"{shown}, and {len(labels) - most} more"
