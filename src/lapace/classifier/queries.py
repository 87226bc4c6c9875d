"""A user's model as one object that is queried with cells and returns codes of labels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lapace.arrays import Floats, Ints, batches
from lapace.budget import spend
from lapace.classifier.decisions import MatrixClassifier, decision_thresholds
from lapace.classifier.outputs import (
    Label,
    as_array,
    as_label,
    as_probability,
    distinct_labels,
    predict_method,
)
from lapace.errors import ClassifierError, InputError, LapaceError, RowsError, did_you_mean
from lapace.schema import Schema

__all__ = ["Classifier", "Prediction"]

CELLS_PER_CALL = 4_000_000  # so that a million instances need no million-row frame
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


class _Rows(NamedTuple):
    """Some rows, as `Classifier` has them (cells and their columns) and as the model takes them."""

    cells: Floats
    schema: Schema
    frame: Any


class Classifier:
    """A user's model, queried with cells, with labels as codes.

    Thread-safe once the labels are known: a query changes nothing but `n_queries`.

    Args:
        model: An object with `predict`, or a callable that takes rows and returns labels. It gets
            frames of the type `schema` was inferred from (a matrix, if it is one of `on_arrays`),
            and is never fitted or changed. If it has a method `predict_both`, which returns a
            `ModelOutput`, one call of it gives labels and probabilities.
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

    def __reduce__(self) -> tuple[Any, ...]:  # a copy, or one in another process, counts anew
        return Classifier, (self.model, self.schema, self.labels)

    @property
    def n_queries(self) -> int:
        """Rows the model was called with; a row queried for label and probability apart is two."""
        return self._n_queries

    @property
    def has_probability(self) -> bool:
        """Whether the model has `predict_proba`; a service may show it only when queried."""
        return callable(getattr(self.model, "predict_proba", None))

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        """For each of two labels the probability from which it is predicted, where it is known."""
        return decision_thresholds(self.model, self.labels)

    def with_fresh_count(self) -> Classifier:
        """Returns the same classifier and labels, with an `n_queries` that starts at zero."""
        return Classifier(self.model, self.schema, self.labels)

    def code(self, label: object) -> int:
        """Returns a label's position; text may spell a label, as on a command line."""
        plain = label.item() if isinstance(label, np.generic) else label
        texts = {str(own): i for i, own in enumerate(self._known_labels())}
        exact = [i for i, own in enumerate(self.labels) if own == plain]
        code = exact[0] if exact else texts.get(str(plain))
        if code is None:
            hint = did_you_mean(plain, texts)
            raise InputError(
                f"The classifier never predicts {plain!r}; known labels: {_listed(self.labels)}."
                f"{hint}"
            )
        return code

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
        """Returns each row's label, as a position in `labels`.

        Args:
            cells: The rows.
            schema: Where rows have levels unseen in training, the schema that names them.
        """
        self._known_labels()
        codes = [self._codes(*self._predicted(part)) for part in self._parts(cells, schema)]
        return np.concatenate([np.empty(0, dtype=np.int64), *codes])

    def predict_proba(self, cells: Floats, schema: Schema | None = None) -> Floats | None:
        """Returns the probabilities of the labels, (n, labels); None where the model offers none.

        A label's column is found by the model's `classes_`; a model without them must give its
        columns in the order of the sorted labels.
        """
        self._known_labels()
        if hasattr(self.model, "predict_both"):
            return self.query(cells, schema).probability
        if not self.has_probability:
            return None
        parts = [
            self._in_label_order(self._probability(part)) for part in self._parts(cells, schema)
        ]
        return np.concatenate([np.empty((0, len(self.labels))), *parts])

    def query(self, cells: Floats, schema: Schema | None = None) -> Prediction:
        """Returns labels and probabilities, with one call of the model where one is enough.

        The label is always what `predict` returns: for models known to predict their most probable
        class it is read off the probabilities, except near ties; all others are called twice.
        """
        self._known_labels()
        parts: list[Prediction] = []
        n_answered = 0
        for part in self._parts(cells, schema):
            try:
                parts.append(self._query_part(part))
            except RowsError as error:
                rows = {n_answered + i: why for i, why in error.rows.items()}
                raise RowsError(str(error), rows) from None
            n_answered += len(part.cells)
        codes = np.concatenate([np.empty(0, dtype=np.int64), *(part.codes for part in parts)])
        probabilities = [part.probability for part in parts if part.probability is not None]
        # Scores that look like probabilities in some parts only are none.
        if not self.has_probability or len(probabilities) < len(parts):
            return Prediction(codes, None)
        return Prediction(codes, np.concatenate([np.empty((0, len(self.labels))), *probabilities]))

    def _query_part(self, part: _Rows) -> Prediction:
        rows = len(part.cells)
        if hasattr(self.model, "predict_both"):
            output = self._call(self.model.predict_both, part)
            codes = self._codes(*distinct_labels(output.labels, rows))
            if output.probability is None:
                return Prediction(codes, None)
            raw = as_probability(output.probability, rows, self._n_columns())
        elif not self.has_probability:
            return Prediction(self._codes(*self._predicted(part)), None)
        else:
            raw = self._probability(part)  # (rows, classes)
            if self._predicts_most_probable():
                codes = self._most_probable(raw, part)
            else:
                codes = self._codes(*self._predicted(part))
        return Prediction(codes, self._in_label_order(raw))

    def _most_probable(self, raw: Floats, part: _Rows) -> Ints:
        """Returns the codes of the highest probabilities; `predict` decides near ties."""
        two = np.partition(raw, -2, axis=1)[:, -2:]
        clear = two[:, 1] - two[:, 0] > TIE  # and both are numbers
        codes = np.empty(len(raw), dtype=np.int64)
        codes[clear] = self._codes(self._classes() or self.labels, raw[clear].argmax(axis=1))
        codes[~clear] = self.predict(part.cells[~clear], part.schema)
        return codes

    # -- calls of the model -----------------------------------------------------------------------

    def _parts(self, cells: Floats, schema: Schema | None) -> Iterator[_Rows]:
        """Yields the rows in parts of bounded size."""
        columns = schema or self.schema
        for part in batches(len(cells), CELLS_PER_CALL, cells.shape[1]):
            some = cells[part]
            is_matrix = isinstance(self.model, MatrixClassifier)
            yield _Rows(some, columns, some.copy() if is_matrix else columns.frame(some))

    def _call(self, method: Callable[[Any], Any], rows: _Rows) -> Any:
        """Calls the model with some rows, and counts them."""
        count = len(rows.cells)
        spend(queries=count)
        with self._lock:
            self._n_queries += count
        try:
            return method(rows.frame)
        except LapaceError:  # of a file or a service
            raise
        except (Exception, SystemExit) as error:  # a model may raise anything
            raise ClassifierError(
                f"The classifier raised {type(error).__name__} when queried with {count:,} "
                f"{'row' if count == 1 else 'rows'}: {error}"
            ) from error

    def _predicted(self, rows: _Rows) -> tuple[list[Label], Ints]:
        """Returns the model's labels: the distinct ones, and each row's position among them."""
        return distinct_labels(self._call(self._predict, rows), len(rows.cells))

    def _probability(self, rows: _Rows) -> Floats:
        """Returns the model's probabilities, in the model's order of columns."""
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
        """Returns positions in `labels`, given positions among `distinct`."""
        position = {label: i for i, label in enumerate(self.labels)}
        codes = np.array([position.get(label, -1) for label in distinct], dtype=np.int64)[which]
        if (codes < 0).any():
            raise ClassifierError(
                f"The classifier predicted {distinct[which[codes.argmin()]]!r}, which it predicted "
                f"for no training row; known labels: {_listed(self.labels)}."
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
