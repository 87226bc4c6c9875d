"""A user's model as one object that is queried with cells and returns codes of labels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lapace.arrays import Floats, Ints, batches
from lapace.budgets import spend
from lapace.classifiers.decisions import decision_thresholds
from lapace.classifiers.matrices import MatrixClassifier
from lapace.classifiers.outputs import (
    ExternalModel,
    Label,
    as_array,
    as_label,
    as_probability,
    distinct_labels,
    predict_method,
)
from lapace.errors import ClassifierError, InputError, LapaceError, RowsError, did_you_mean
from lapace.schema import Schema

ROWS_PER_CALL = 200_000  # rows of one call, so that a million instances need no million-row frame
CELLS_PER_CALL = 20_000_000  # and cells of one call, for tables as wide as images
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
    """A classifier's labels and probabilities of some rows.

    Attributes:
        codes: Positions in the classifier's labels.
        probability: One column per label, or None where the classifier offers none.
    """

    codes: Ints
    probability: Floats | None


@dataclass(frozen=True)
class _Rows:
    """Some rows for the model.

    Attributes:
        cells: As they are.
        schema: The columns, with every level the rows have.
        plain: The model takes a matrix.
    """

    cells: Floats
    schema: Schema
    plain: bool

    @cached_property
    def frame(self) -> Any:
        """What the model is called with, for labels and probabilities alike."""
        return self.cells.copy() if self.plain else self.schema.frame(self.cells)


class Classifier:
    """A user's model, queried with cells, with labels as codes.

    Thread-safe once the labels are known: a query changes nothing but `n_queries`.

    Args:
        model: An object with `predict`, or a callable that takes rows and returns labels. It gets
            frames of the type `schema` was inferred from (a matrix, if it is one of `on_arrays`),
            and is never fitted or changed.
        schema: The columns of the training table.
        labels: The labels, where they are known already; otherwise call `fit_labels`.

    Attributes:
        model: As given.
        schema: As given.
        labels: The labels the model returns, sorted; empty until they are known.

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
        self._predict = predict_method(model)
        self._lock = threading.Lock()
        self._n_queries = 0
        # Several times a query is asked which classes the model has: they are read once.
        self._read_classes: tuple[Any, Any, tuple[Label, ...] | None] = (None, None, None)

    def __reduce__(self) -> tuple[Any, ...]:  # a copy, or one in another process, counts anew
        return Classifier, (self.model, self.schema, self.labels)

    @property
    def n_queries(self) -> int:
        """Rows the model was called with; a row queried for label and probability apart is two."""
        return self._n_queries

    @property
    def has_probability(self) -> bool:
        """Whether the model has `predict_proba`; an external one may show it only when queried."""
        return callable(getattr(self.model, "predict_proba", None))

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        """For each of two labels the probability from which it is predicted, where it is known."""
        found = decision_thresholds(self.model, self.labels)
        return None if found is None else tuple(found.tolist())

    def with_fresh_count(self) -> Classifier:
        """The same classifier and labels, with its own `n_queries` that starts at zero."""
        return Classifier(self.model, self.schema, self.labels)

    def code(self, label: object) -> int:
        """A label's position; text that spells a label is accepted, as from a command line."""
        plain = label.item() if isinstance(label, np.generic) else label
        texts = {str(known): i for i, known in enumerate(self._known_labels())}
        exact = [i for i, known in enumerate(self.labels) if known == plain]
        found = exact[0] if exact else texts.get(str(plain))
        if found is None:
            hint = did_you_mean(plain, texts)
            raise InputError(
                f"The classifier never predicts {plain!r}; known labels: {_listed(self.labels)}."
                f"{hint}"
            )
        return found

    # -- queries ----------------------------------------------------------------------------------

    def fit_labels(self, cells: Floats) -> Ints:
        """Queries the training rows, keeps the labels found there, returns the rows' codes."""
        outputs = [self._predicted(part) for part in self._parts(cells, None)]
        labels = _sorted([label for distinct, _ in outputs for label in distinct])
        if not labels:
            raise InputError("There are no training rows to query the classifier with.")
        if len(labels) == 1:
            raise InputError(
                f"The classifier gives all {len(cells):,} training rows the label {labels[0]!r}: "
                "there is no other label to cross to. Check the classifier, its threshold, and "
                "that the rows look as it expects them."
            )
        # A class the model knows and predicts for no training row may still occur along a path.
        self.labels = _sorted([*labels, *(self._classes() or ())])
        codes = np.concatenate([self._codes(*output) for output in outputs])
        if self.has_probability and self._classes() is None:
            self._check_column_order(cells[:1000], codes[:1000])
        return codes

    def predict(self, cells: Floats, schema: Schema | None = None) -> Ints:
        """Each row's label, as a position in `labels`.

        Args:
            cells: The rows.
            schema: Where rows have levels unseen in training, the schema that names them.
        """
        self._known_labels()
        codes = [self._codes(*self._predicted(part)) for part in self._parts(cells, schema)]
        return np.concatenate([np.empty(0, dtype=np.int64), *codes])

    def predict_proba(self, cells: Floats, schema: Schema | None = None) -> Floats | None:
        """Each row's probability of each label, (n, labels); None where the model offers none.

        A label's column is found by the model's `classes_`; a model without them must give its
        columns in the order of the sorted labels.
        """
        self._known_labels()
        if isinstance(self.model, ExternalModel):
            return self.query(cells, schema).probability
        if not self.has_probability:
            return None
        parts = [
            self._in_label_order(self._probability(part)) for part in self._parts(cells, schema)
        ]
        return np.concatenate([np.empty((0, len(self.labels))), *parts])

    def query(self, cells: Floats, schema: Schema | None = None) -> Prediction:
        """Label and probability together, with one call of the model where one is enough.

        The label is always what `predict` returns: for models known to predict their most probable
        class it is read off the probabilities, except near ties; all others are called twice.
        """
        self._known_labels()
        parts, begin = [], 0
        for chunk in self._parts(cells, schema):
            try:
                parts.append(self._query_chunk(chunk))
            except RowsError as error:
                rows = {begin + i: why for i, why in error.rows.items()}
                raise RowsError(str(error), rows) from None
            begin += len(chunk.cells)
        codes = np.concatenate([np.empty(0, dtype=np.int64), *(part.codes for part in parts)])
        found = [part.probability for part in parts if part.probability is not None]
        # Scores that look like probabilities in some chunks only are none.
        if not self.has_probability or len(found) < len(parts):
            return Prediction(codes, None)
        return Prediction(codes, np.concatenate([np.empty((0, len(self.labels))), *found]))

    def _query_chunk(self, chunk: _Rows) -> Prediction:
        rows = len(chunk.cells)
        if isinstance(self.model, ExternalModel):
            output = self._call(self.model.query, chunk)
            codes = self._codes(*distinct_labels(output.labels, rows))
            if output.probability is None:
                return Prediction(codes, None)
            raw = as_probability(output.probability, rows, self._n_columns())
            return Prediction(codes, self._in_label_order(raw))
        if not self.has_probability:
            return Prediction(self._codes(*self._predicted(chunk)), None)
        raw = self._probability(chunk)  # (rows, classes)
        if not self._predicts_most_probable():
            codes = self._codes(*self._predicted(chunk))
        else:
            two = np.partition(raw, -2, axis=1)[:, -2:]
            clear = two[:, 1] - two[:, 0] > TIE  # and both are numbers
            codes = np.empty(rows, dtype=np.int64)
            classes = self._classes() or self.labels
            codes[clear] = self._codes(classes, raw[clear].argmax(axis=1))
            codes[~clear] = self.predict(chunk.cells[~clear], chunk.schema)
        return Prediction(codes, self._in_label_order(raw))

    # -- calls of the model -----------------------------------------------------------------------

    def _parts(self, cells: Floats, schema: Schema | None) -> Iterator[_Rows]:
        """The rows in parts of bounded size."""
        most = min(ROWS_PER_CALL, CELLS_PER_CALL // max(1, cells.shape[1]))
        plain = isinstance(self.model, MatrixClassifier)
        for part in batches(len(cells), most):
            yield _Rows(cells[part], schema or self.schema, plain)

    def _call(self, method: Callable[[Any], Any], rows: _Rows) -> Any:
        """Calls the model about some rows, and counts them."""
        count = len(rows.cells)
        spend(queries=count)
        with self._lock:
            self._n_queries += count
        frame = rows.frame
        try:
            return method(frame)
        except LapaceError:  # an external model's own error
            raise
        except (Exception, SystemExit) as error:  # a model may raise anything
            raise ClassifierError(
                f"The classifier raised {type(error).__name__} when queried with {count:,} "
                f"{'row' if count == 1 else 'rows'}: {error}"
            ) from error

    def _predicted(self, rows: _Rows) -> tuple[list[Label], Ints]:
        """What `predict` returns, as distinct labels and each row's position among them."""
        return distinct_labels(self._call(self._predict, rows), len(rows.cells))

    def _probability(self, rows: _Rows) -> Floats:
        """What `predict_proba` returns, in the model's order of columns."""
        returned = self._call(self.model.predict_proba, rows)
        hint = "" if self._classes() else " It may name its classes, in order, as `classes_`."
        name = "The classifier's predict_proba"
        return as_probability(returned, len(rows.cells), self._n_columns(), name, hint)

    # -- labels -----------------------------------------------------------------------------------

    def _known_labels(self) -> tuple[Label, ...]:
        if not self.labels:
            raise ClassifierError(
                "The classifier's labels are not known yet: call `fit_labels` first."
            )
        return self.labels

    def _codes(self, distinct: Sequence[Label], which: Ints) -> Ints:
        """Positions among `distinct` as positions in `labels`."""
        position = {label: i for i, label in enumerate(self.labels)}
        codes = np.array([position.get(label, -1) for label in distinct], dtype=np.int64)[which]
        if (codes < 0).any():
            raise ClassifierError(
                f"The classifier predicted {distinct[which[codes.argmin()]]!r}, which it predicted "
                f"for no training row; known labels: {_listed(self.labels)}."
            )
        return codes

    def _classes(self) -> tuple[Label, ...] | None:
        """The model's `classes_`, if it has them and they cover the labels."""
        classes = getattr(self.model, "classes_", None)
        if classes is None:
            return None
        before, labels, found = self._read_classes
        if before is classes and labels is self.labels:
            return found
        try:
            plain = tuple(as_label(value) for value in as_array(classes).tolist())
        except (ClassifierError, TypeError):
            return None
        found = plain if set(self.labels) <= set(plain) else None
        self._read_classes = classes, self.labels, found
        return found

    def _n_columns(self) -> int:
        return len(self._classes() or self.labels)

    def _in_label_order(self, raw: Floats) -> Floats:
        classes = self._classes()
        return raw if classes is None else raw[:, [classes.index(label) for label in self.labels]]

    def _check_column_order(self, cells: Floats, codes: Ints) -> None:
        """Without `classes_`, a label's column must be the highest, on average, on its rows."""
        probability = self.predict_proba(cells)
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
        model = self.model.model if isinstance(self.model, MatrixClassifier) else self.model
        kind = type(model)
        if (kind.__module__.split(".")[0], kind.__name__) == ("sklearn", "Pipeline"):
            kind = type(model.steps[-1][1])
        return (kind.__module__.split(".")[0], kind.__name__) in PREDICT_MOST_PROBABLE


def _sorted(labels: Sequence[Label]) -> tuple[Label, ...]:
    return tuple(sorted(set(labels), key=lambda v: (isinstance(v, str), v)))


def _listed(labels: Sequence[Label], most: int = 12) -> str:
    shown = ", ".join(repr(label) for label in labels[:most])
    return shown if len(labels) <= most else f"{shown}, and {len(labels) - most} more"
