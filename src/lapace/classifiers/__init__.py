"""Anything that predicts, as one object that is asked about cells.

`wrap` takes the user's own model, an object with `predict` or any callable on rows, and asks it in
the user's own columns and kind of frame. What comes back, whatever its type, becomes codes into
`Classifier.labels`; an answer that makes no sense (an error, the wrong length, a label nobody has
heard of) is reported as the classifier's fault, with its own words.

`train` (in `stock`) fits the three stock classifiers that data sets, the command line and the tests
use. `load_classifier` (in `opening`) opens one from outside: a file, a module's object, an address;
`save_classifier` writes one to a file that holds nothing that runs.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Floats, Ints
from lapace.classifiers.external import ExternalModel
from lapace.classifiers.loaders import load_bytes, load_classifier, save_classifier
from lapace.classifiers.pipelines import TrainedKind, train
from lapace.errors import ClassifierError, InputError, LapaceError, did_you_mean
from lapace.schema import Schema

__all__ = [
    "Classifier",
    "Label",
    "Prediction",
    "TrainedKind",
    "load_bytes",
    "load_classifier",
    "save_classifier",
    "train",
    "wrap",
]

Label: TypeAlias = str | int | bool

ROWS_PER_CALL = 200_000  # rows of one call, so that a million instances need no million-row frame
CELLS_PER_CALL = 20_000_000  # and cells of one call, for tables as wide as images
TIE = 1e-6  # two probabilities closer than this are left to `predict` to decide

# Classifiers whose `predict` is, in their own code, the class of highest `predict_proba`. For these
# one call answers both questions; all others are asked twice (a calibrated SVM, or a classifier
# with a tuned threshold, predicts something else than its most probable class).
_MOST_PROBABLE = {
    "sklearn": {
        "DecisionTreeClassifier",
        "ExtraTreesClassifier",
        "GradientBoostingClassifier",
        "HistGradientBoostingClassifier",
        "LogisticRegression",
        "MLPClassifier",
        "RandomForestClassifier",
    },
    "xgboost": {"XGBClassifier"},
    "lightgbm": {"LGBMClassifier"},
}


class Prediction(NamedTuple):
    """What a classifier says about some rows.

    Attributes:
        codes: Positions in the classifier's labels.
        probability: One column per label, or None where the classifier offers none.
    """

    codes: Ints
    probability: Floats | None


def wrap(model: Any, schema: Schema, labels: Sequence[Label] = ()) -> Classifier:
    """A user's model as a `Classifier`.

    Args:
        model: An object with `predict`, or a callable that takes rows and returns labels. It gets
            frames of the kind `schema` was inferred from, and is only ever asked to predict.
        schema: The columns of the training table.
        labels: The labels, where they are known from before; otherwise `fit_labels` finds them.

    Examples:
        >>> instances = [{"income": 10 * i} for i in range(100)]
        >>> schema = Schema.infer(instances)
        >>> classifier = wrap(lambda rows: ["no" if r["income"] < 500 else "yes" for r in rows],
        ...                   schema)
        >>> codes = classifier.fit_labels(schema.cells(instances))
        >>> classifier.labels, codes[[0, 99]].tolist(), classifier.n_queries
        (('no', 'yes'), [0, 1], 100)
    """
    return Classifier(model, schema, labels)


class Classifier:
    """The black box, asked about cells and answering in codes.

    Thread-safe once `fit_labels` has run: asking changes nothing but the count in `asked`.

    Attributes:
        model: What the user handed over.
        schema: The columns it is asked in.
        labels: The labels it gives, sorted; empty until they are known.
    """

    def __init__(self, model: Any, schema: Schema, labels: Sequence[Label] = ()) -> None:
        self.model = model
        self.schema = schema
        self.labels: tuple[Label, ...] = _in_order(labels)
        self._predict = _predictor(model)
        self._lock = threading.Lock()
        self._asked = 0

    def __reduce__(self) -> tuple[Any, ...]:  # a copy, or one in another process, counts anew
        return Classifier, (self.model, self.schema, self.labels)

    @property
    def n_queries(self) -> int:
        """Rows handed to the model so far; a row asked for label and probability apart is two."""
        return self._asked

    @property
    def has_probability(self) -> bool:
        """Whether the model offers `predict_proba`; one from outside may show it when asked."""
        return self._probability is not None

    @property
    def _probability(self) -> Callable[[Any], Any] | None:
        offered = getattr(self.model, "predict_proba", None)
        return offered if callable(offered) else None

    def with_fresh_count(self) -> Classifier:
        """The same classifier, labels and all, with a count of its own that starts at zero."""
        return Classifier(self.model, self.schema, self.labels)

    def code(self, label: object) -> int:
        """A label's position; text that spells a label will do, as from a command line."""
        plain = label.item() if isinstance(label, np.generic) else label
        texts = {str(known): i for i, known in enumerate(self._known())}
        exact = [i for i, known in enumerate(self.labels) if known == plain]
        found = exact[0] if exact else texts.get(str(plain))
        if found is None:
            hint = did_you_mean(plain, texts)
            raise InputError(
                f"The classifier never says {plain!r}; known labels: {_listed(self.labels)}.{hint}"
            )
        return found

    # -- asking -----------------------------------------------------------------------------------

    def fit_labels(self, cells: Floats) -> Ints:
        """Asks about the training rows, keeps the labels met there, returns their codes."""
        answers = [self._ask_labels(frame, rows) for frame, rows in self._frames(cells, None)]
        labels = _in_order([label for seen, _ in answers for label in seen])
        if not labels:
            raise InputError("There are no training rows to ask the classifier about.")
        if len(labels) == 1:
            raise InputError(
                f"The classifier gives all {len(cells):,} training rows the label {labels[0]!r}: "
                "there is no other label to cross to. Check the classifier, its threshold, and "
                "that the rows look as it expects them."
            )
        # A label the model knows and gives to no training row may still be met along a path.
        self.labels = _in_order([*labels, *(self._classes() or ())])
        codes = np.concatenate([self._codes(seen, which) for seen, which in answers])
        if self.has_probability and self._classes() is None:
            self._check_order(cells[:1000], codes[:1000])
        return codes

    def predict(self, cells: Floats, schema: Schema | None = None) -> Ints:
        """Each row's label, as a position in `labels`.

        Args:
            cells: The rows.
            schema: Where rows have levels training did not know, the schema that names them.
        """
        self._known()
        parts = [
            self._codes(*self._ask_labels(frame, rows))
            for frame, rows in self._frames(cells, schema)
        ]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def predict_proba(self, cells: Floats, schema: Schema | None = None) -> Floats | None:
        """Each row's probability of each label, (n, labels); None where none is offered.

        A label's column is found by the model's `classes_`; a model without them must give its
        columns in the order of the sorted labels.
        """
        self._known()
        if isinstance(self.model, ExternalModel):
            return self._query_external(self.model, cells, schema).probability
        question = self._probability
        if question is None:
            return None
        parts = [
            self._in_label_order(self._ask_probability(question, frame, rows))
            for frame, rows in self._frames(cells, schema)
        ]
        return np.concatenate(parts) if parts else np.empty((0, len(self.labels)))

    def query(self, cells: Floats, schema: Schema | None = None) -> Prediction:
        """Label and probability together, with one call of the model where one is enough.

        The label is always what `predict` says: for models known to predict their most probable
        class it is read off the probabilities, near ties are asked, and all others are asked both.
        """
        if isinstance(self.model, ExternalModel):
            return self._query_external(self.model, cells, schema)
        question = self._probability
        if question is None or not self._most_probable():
            return Prediction(self.predict(cells, schema), self.predict_proba(cells, schema))
        self._known()
        classes = self._classes() or self.labels
        codes, probabilities = [], []
        for frame, rows in self._frames(cells, schema):
            raw = self._ask_probability(question, frame, rows)  # (rows, classes)
            probabilities.append(self._in_label_order(raw))
            codes.append(self._codes(classes, raw.argmax(axis=1), ~_tied(raw)))
        if not codes:
            return Prediction(np.empty(0, dtype=np.int64), np.empty((0, len(self.labels))))
        code = np.concatenate(codes)
        tied = np.flatnonzero(code < 0)
        if tied.size:
            code[tied] = self.predict(cells[tied], schema)
        return Prediction(code, np.concatenate(probabilities))

    def _query_external(
        self, model: ExternalModel, cells: Floats, schema: Schema | None
    ) -> Prediction:
        """One question to a model from outside, which answers both."""
        self._known()
        codes, probabilities = [np.empty(0, dtype=np.int64)], [np.empty((0, len(self.labels)))]
        for frame, rows in self._frames(cells, schema):
            answer = self._ask(model.answer, frame, rows)
            codes.append(self._codes(*self._as_labels(_array(answer.labels), rows)))
            if answer.probability is not None:
                raw = self._as_probability(_array(answer.probability), rows)
                probabilities.append(self._in_label_order(raw))
        # Scores that happen to look like probabilities in some parts only are none.
        offered = len(probabilities) == len(codes) and self.has_probability
        return Prediction(np.concatenate(codes), np.concatenate(probabilities) if offered else None)

    # -- the model's side -------------------------------------------------------------------------

    def _frames(self, cells: Floats, schema: Schema | None) -> Iterator[tuple[Any, int]]:
        """The rows as frames of bounded size, each with its number of rows."""
        schema = schema or self.schema
        most = max(1, min(ROWS_PER_CALL, CELLS_PER_CALL // max(1, cells.shape[1])))
        for start in range(0, len(cells), most):
            part = cells[start : start + most]
            yield schema.frame(part), len(part)

    def _ask(self, question: Callable[[Any], Any], frame: Any, rows: int) -> Any:
        with self._lock:
            self._asked += rows
        try:
            return question(frame)
        except LapaceError:  # one from outside says itself what went wrong
            raise
        except Exception as error:  # the black box may raise anything at all
            raise ClassifierError(
                f"The classifier raised {type(error).__name__} when asked about {rows:,} "
                f"{'row' if rows == 1 else 'rows'}: {error}"
            ) from error

    def _ask_labels(self, frame: Any, rows: int) -> tuple[list[Label], Ints]:
        """The model's answer as distinct labels and each row's position among them."""
        return self._as_labels(_array(self._ask(self._predict, frame, rows)), rows)

    def _as_labels(self, answer: NDArray[Any], rows: int) -> tuple[list[Label], Ints]:
        if answer.ndim == 2 and answer.shape[1] == 1:
            answer = answer[:, 0]
        if answer.ndim == 2 and len(answer) == rows:
            raise ClassifierError(
                f"The classifier answered {answer.shape[1]} values for each row, as if they were "
                "probabilities. It has to return one label per row; offer probabilities through "
                "an object with `predict` and `predict_proba`."
            )
        if answer.ndim != 1 or len(answer) != rows:
            got = f"{len(answer):,}" if answer.ndim == 1 else f"an array of shape {answer.shape}"
            raise ClassifierError(
                f"The classifier answered {got} for {rows:,} rows. It has to return one label "
                "per row, in the rows' order."
            )
        return self._distinct(answer)

    def _distinct(self, answer: NDArray[Any]) -> tuple[list[Label], Ints]:
        """Distinct answers and each row's place among them; known labels are met by comparing."""
        which = np.full(len(answer), -1, dtype=np.int64)
        answer = answer.astype(object)
        for code, label in enumerate(self.labels):
            # As an object: numpy's own text would lose a trailing NUL.
            which[answer == np.array(label, dtype=object)] = code
        positions: dict[Any, int] = {label: code for code, label in enumerate(self.labels)}
        rest = np.flatnonzero(which < 0)
        try:
            which[rest] = [positions.setdefault(v, len(positions)) for v in answer[rest].tolist()]
        except TypeError:
            raise ClassifierError(
                f"The classifier answered {answer[rest[0]]!r}; a label has to be text, a whole "
                "number or a boolean."
            ) from None
        return [_label(value) for value in positions], which

    def _ask_probability(self, question: Callable[[Any], Any], frame: Any, rows: int) -> Floats:
        """What `predict_proba` says, as it says it."""
        return self._as_probability(_array(self._ask(question, frame, rows)), rows)

    def _as_probability(self, answer: NDArray[Any], rows: int) -> Floats:
        width = len(self._classes() or self.labels)
        try:
            if answer.shape == (rows, width):
                return answer.astype(np.float64)
        except (TypeError, ValueError):
            pass  # not numbers
        hint = "" if self._classes() else " It may name its classes, in order, as `classes_`."
        raise ClassifierError(
            f"The classifier's predict_proba answered an array of shape {answer.shape} and type "
            f"{answer.dtype} for {rows:,} rows and {width} classes. It has to return numbers: one "
            f"row per row, one column per class.{hint}"
        )

    # -- labels -----------------------------------------------------------------------------------

    def _known(self) -> tuple[Label, ...]:
        if not self.labels:
            raise ClassifierError(
                "The classifier's labels are not known yet: call `fit_labels` first."
            )
        return self.labels

    def _codes(
        self, seen: Sequence[Label], which: Ints, sure: NDArray[np.bool_] | None = None
    ) -> Ints:
        """Positions among `seen` as positions among `labels`; -1 where not `sure`."""
        position = {label: i for i, label in enumerate(self.labels)}
        translation = np.array([position.get(label, -1) for label in seen], dtype=np.int64)
        codes = translation[which]
        sure = np.ones(len(codes), dtype=bool) if sure is None else sure
        strange = np.flatnonzero((codes < 0) & sure)
        if strange.size:
            raise ClassifierError(
                f"The classifier answered {seen[which[strange[0]]]!r}, which it never said about "
                f"the training rows; known labels: {_listed(self.labels)}."
            )
        return np.where(sure, codes, -1)

    def _classes(self) -> tuple[Label, ...] | None:
        """The model's own order of its classes, if it has one that covers the labels."""
        classes = getattr(self.model, "classes_", None)
        if classes is None:
            return None
        try:
            plain = tuple(_label(value) for value in _array(classes).tolist())
        except (ClassifierError, TypeError):
            return None
        return plain if set(self.labels) <= set(plain) else None

    def _in_label_order(self, raw: Floats) -> Floats:
        classes = self._classes()
        return raw if classes is None else raw[:, [classes.index(label) for label in self.labels]]

    def _check_order(self, cells: Floats, codes: Ints) -> None:
        """Without `classes_`, each label's own column must be highest on the rows it is given."""
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

    def _most_probable(self) -> bool:
        """Whether the model is one that predicts its most probable class, by its own code."""
        final = self.model
        if _is_from(final, "sklearn", "Pipeline"):
            final = final.steps[-1][1]
        return any(
            _is_from(final, home, name) for home in _MOST_PROBABLE for name in _MOST_PROBABLE[home]
        )


def _predictor(model: Any) -> Callable[[Any], Any]:
    if isinstance(model, type):
        raise InputError(
            f"{model.__name__} is a class, not a classifier. Make one and fit it first."
        )
    predict = getattr(model, "predict", None)
    if callable(predict):
        question: Callable[[Any], Any] = predict
    elif callable(model):
        question = model
    else:
        raise InputError(
            f"A {type(model).__name__} is not a classifier. Hand over an object with `predict`, "
            f"or a callable that takes rows and returns labels.{_opened_hint(model)}"
        )
    return question


def _opened_hint(model: object) -> str:
    if not isinstance(model, str | PathLike):
        return ""
    return " A file or an address is opened with lapace.classifiers.load_classifier first."


def _is_from(model: object, home: str, name: str) -> bool:
    """Whether this is exactly the class of that name; a subclass may do as it likes."""
    kind = type(model)
    return kind.__name__ == name and kind.__module__.split(".")[0] == home


def _array(answer: Any) -> NDArray[Any]:
    """Lists, series, tensors and arrays of any library as a numpy array."""
    if hasattr(answer, "detach"):  # a tensor that may sit on a device or carry gradients
        answer = answer.detach().cpu()
    try:
        # A list as it is: numpy would turn [1, "a"] into text.
        return np.asarray(answer, dtype=object if isinstance(answer, list | tuple) else None)
    except Exception as error:  # ragged lists, or whatever else a callable may return
        raise ClassifierError(
            f"The classifier answered a {type(answer).__name__} that is not one label per row: "
            f"{error}"
        ) from error


def _label(value: Any) -> Label:
    """One label as a Python value; 1.0 is taken for 1, as some libraries answer it."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        if value == int(value):
            return int(value)
        raise ClassifierError(
            f"The classifier answered {value!r}, a fraction, as a label. If it returns "
            "probabilities or a score, wrap it in a callable that returns labels."
        )
    nothing = isinstance(value, float) or value is None or type(value).__name__ == "NAType"
    raise ClassifierError(
        f"The classifier answered {value!r}{', which is no label' if nothing else ''}; a label "
        "has to be text, a whole number or a boolean."
    )


def _in_order(labels: Sequence[Label]) -> tuple[Label, ...]:
    return tuple(sorted(set(labels), key=lambda v: (isinstance(v, str), v)))


def _listed(labels: Sequence[Label], most: int = 12) -> str:
    shown = ", ".join(repr(label) for label in labels[:most])
    return shown if len(labels) <= most else f"{shown}, and {len(labels) - most} more"


def _tied(probability: Floats) -> NDArray[np.bool_]:
    """Where the two highest probabilities are too close to call, or are no numbers."""
    two = np.partition(probability, -2, axis=1)[:, -2:]
    clear = two[:, 1] - two[:, 0] > TIE
    return ~clear
