"""Classifiers in ONNX files, run by onnxruntime.

Rows become what the graph asks for: one matrix of all columns in the table's order, or one input
for each column, found by name. What comes back is a label with or without probabilities (as
converters from scikit-learn write them, with or without a map for each row), or a plain network's
matrix with one column per class.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Floats
from lapace.classifiers.external import ModelOutput, python_values
from lapace.errors import ClassifierError, InputError, did_you_mean
from lapace.table import Coded, Table, read

__all__ = ["OnnxModel"]

Array: TypeAlias = NDArray[Any]
Label: TypeAlias = str | int | bool

# What onnxruntime calls the tensors a table can be written into.
DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int16)": np.int16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
    "tensor(string)": object,
}
SUM = 1e-3  # how far from one the probabilities of a row may sum up, in single precision


class OnnxModel:
    """A graph in an ONNX file, as a question about a frame.

    Args:
        data: The file's content.
        file: Its name, for the sentences.
    """

    def __init__(self, data: bytes, file: str) -> None:
        self.data = data
        self.file = file
        self._session = _session(data, file)
        self._inputs = list(self._session.get_inputs())
        self._outputs = list(self._session.get_outputs())
        self._classes = _named_classes(self._session, file)
        for wanted in self._inputs:
            if wanted.type not in DTYPES:
                raise InputError(
                    f"'{file}' takes a {wanted.type} as '{wanted.name}', which no table holds."
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return OnnxModel, (self.data, self.file)

    def __repr__(self) -> str:
        return f"OnnxModel({self.file!r})"

    def __call__(self, frame: Any) -> ModelOutput:
        """The graph's labels, and its probabilities if it has any."""
        table = read(frame)
        feed = self._feed(table)
        try:
            outputs = self._run(feed, len(table))
        except Exception as error:  # onnxruntime's own exceptions have no common root
            raise ClassifierError(
                f"'{self.file}' could not be run on {len(table):,} rows: {_first_line(error)}"
            ) from error
        return self._answer(dict(zip([o.name for o in self._outputs], outputs, strict=True)))

    # -- in ---------------------------------------------------------------------------------------

    def _feed(self, table: Table) -> dict[str, Array]:
        if len(self._inputs) == 1:
            (only,) = self._inputs
            width = _width(only.shape)
            named = width == 1 and len(table.names) > 1 and self._find(only.name, table)
            if not named:
                return {only.name: self._matrix(only, table, width)}
        strange = [i.name for i in self._inputs if _width(i.shape) not in (None, 1)]
        if strange:
            raise InputError(
                f"'{self.file}' takes several inputs, and '{strange[0]}' has more than one column: "
                "which ones cannot be told. Give it one matrix, or one input for each column."
            )
        return {i.name: self._column(i, table) for i in self._inputs}

    def _find(self, wanted: str, table: Table) -> str | None:
        """The column an input is named after; converters write other signs as underscores."""
        if wanted in table.names:
            return wanted
        alike = [n for n in table.names if re.sub(r"\W", "_", n) == re.sub(r"\W", "_", wanted)]
        return alike[0] if len(alike) == 1 else None

    def _column(self, wanted: Any, table: Table) -> Array:
        name = self._find(wanted.name, table)
        if name is None:
            raise InputError(
                f"'{self.file}' takes an input '{wanted.name}', and the table has no such column."
                f"{did_you_mean(wanted.name, table.names)}"
            )
        values = self._values(wanted.type, name, table)
        return values if len(wanted.shape) == 1 else values[:, None]

    def _matrix(self, wanted: Any, table: Table, width: int | None) -> Array:
        if width is not None and width != len(table.names):
            raise InputError(
                f"'{self.file}' takes {width} values for each row, and the table has "
                f"{len(table.names)} columns. Give the table the columns it was trained on, in "
                "their order."
            )
        parts = [self._values(wanted.type, name, table) for name in table.names]
        matrix = np.stack(parts, axis=1)  # (rows, columns)
        return matrix.reshape(len(table), *_row_shape(wanted.shape, matrix.shape[1], table))

    def _values(self, kind: str, name: str, table: Table) -> Array:
        """One column as the graph wants it; missing numbers are NaN, missing text is empty."""
        dtype, column = DTYPES[kind], table.columns[name]
        if dtype is object:
            texts = ["" if v is None else str(v) for v in python_values(column)]
            return np.array(texts, dtype=object)
        numbers = column.values
        if isinstance(numbers, Coded):
            numbers = self._numbers(name, numbers)
        if not np.issubdtype(dtype, np.floating) and np.isnan(numbers).any():
            raise ClassifierError(  # these rows' fault: others can be asked about
                f"'{self.file}' takes whole numbers, and column '{name}' has missing values."
            )
        with np.errstate(over="ignore"):
            return numbers.astype(dtype)

    def _numbers(self, name: str, column: Coded) -> Floats:
        """Booleans as 0 and 1, and levels that are numbers; text is refused."""
        words = next((v for v in column.seen if isinstance(v, str)), None)
        if words is not None:
            raise ClassifierError(
                f"'{self.file}' takes numbers, and column '{name}' holds text such as {words!r}. "
                "Convert the whole pipeline, its encoders included, with an input for each column."
            )
        levels = [np.nan if isinstance(v, str) else float(v) for v in column.levels]
        return np.array([*levels, np.nan])[column.codes]

    # -- through ----------------------------------------------------------------------------------

    def _run(self, feed: dict[str, Array], rows: int) -> list[Any]:
        """All rows at once, or as many at a time as the graph insists on."""
        fixed = {i.shape[0] for i in self._inputs if i.shape and isinstance(i.shape[0], int)}
        if not fixed or rows == 0:
            found: list[Any] = self._session.run(None, feed)
            return found
        most = min(fixed)
        parts = []
        for start in range(0, rows, most):
            some = np.minimum(np.arange(start, start + most), rows - 1)  # the last row fills up
            part = self._session.run(None, {name: array[some] for name, array in feed.items()})
            parts.append([output[: rows - start] for output in part])
        return [_joined(outputs) for outputs in zip(*parts, strict=True)]

    # -- out --------------------------------------------------------------------------------------

    def _answer(self, outputs: dict[str, Any]) -> ModelOutput:
        labels: Array | None = None
        scores: Any = None
        columns: dict[str, Array] = {}
        for name, value in outputs.items():
            if isinstance(value, list):  # one map for each row: {class: probability}
                scores = value
                continue
            array = np.asarray(value)
            if array.ndim == 2 and array.shape[1] == 1:
                array = array[:, 0]
            if array.ndim == 1 and array.dtype.kind in "OUSbiu":
                labels = array if labels is None else labels
            elif array.ndim == 2 and array.shape[1] > 1 and scores is None:
                scores = array
            elif array.ndim == 1 and array.dtype.kind == "f":
                columns[name] = array
        if scores is None and labels is not None and len(columns) > 1:
            scores = np.stack(list(columns.values()), axis=1)  # a class in each output
        if labels is None and scores is None:
            shapes = ", ".join(f"'{n}' {np.shape(v)}" for n, v in outputs.items())
            raise InputError(
                f"'{self.file}' gives neither a label nor one column for each class ({shapes}). "
                "Let it end in at least two columns, one for each class, or in a label."
            )
        return self._read(labels, scores)

    def _read(self, labels: Array | None, scores: Any) -> ModelOutput:
        if isinstance(scores, list):
            found, classes = _from_maps(scores)
        elif scores is not None:
            found, classes = np.asarray(scores, dtype=np.float64), self._classes
        else:
            found, classes = None, None
        if labels is None:
            # Without labels there are scores: `_answer` saw to it.
            labels, classes = self._most(np.asarray(found), classes)
            plain = labels.tolist()
        else:
            plain = self._named(labels)
        if found is None or not _are_probabilities(found):
            return ModelOutput(plain, None, classes)
        return ModelOutput(plain, found, classes)

    def _named(self, labels: Any) -> list[Label]:
        """Labels as the file's metadata names them, where the graph itself only counts them."""
        plain = [_plain(v) for v in labels.tolist()]
        names = self._classes
        counted = [int(v) for v in plain if not isinstance(v, str)]
        if names is None or all(type(n) is int for n in names) or len(counted) < len(plain):
            return plain
        strange = next((v for v in counted if not 0 <= v < len(names)), None)
        if strange is not None:
            raise ClassifierError(
                f"'{self.file}' names {len(names)} classes and answered number {strange}."
            )
        return [names[v] for v in counted]

    def _most(self, scores: Floats, names: tuple[Label, ...] | None) -> tuple[Array, Any]:
        """A plain network's answer: the class of the highest score."""
        if np.isnan(scores).any():
            row = int(np.flatnonzero(np.isnan(scores).any(axis=1))[0])
            raise ClassifierError(
                f"'{self.file}' gives NaN for row {row}: no class is the highest."
            )
        classes = names or tuple(range(scores.shape[1]))
        if len(classes) != scores.shape[1]:
            raise InputError(
                f"'{self.file}' names {len(classes)} classes and gives {scores.shape[1]} scores "
                "for each row."
            )
        labels = np.empty(len(classes), dtype=object)
        labels[:] = classes
        return labels[scores.argmax(axis=1)], classes


def _session(data: bytes, file: str) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise InputError("An .onnx file needs onnxruntime: pip install 'lapace[onnx]'.") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it has to say comes as exceptions
    try:
        # From memory: what was looked at is what runs, and no other file is read.
        return onnxruntime.InferenceSession(
            data, sess_options=options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's own exceptions have no common root
        raise InputError(
            f"'{file}' is not an ONNX file that onnxruntime can run: {_first_line(error)}"
        ) from error


def _named_classes(session: Any, file: str) -> tuple[Label, ...] | None:
    """The classes' names, where the file's metadata lists them under `classes`, as JSON."""
    text = session.get_modelmeta().custom_metadata_map.get("classes")
    if text is None:
        return None
    try:
        classes = json.loads(text)
    except ValueError:
        classes = None
    if not (
        isinstance(classes, list)
        and all(isinstance(c, str | int) for c in classes)
        and len(set(classes)) == len(classes) > 1
    ):
        raise InputError(f"The classes in the metadata of '{file}' are not a JSON list of labels.")
    return tuple(classes)


def _width(shape: Sequence[Any]) -> int | None:
    """Values for each row; None where the graph leaves it open."""
    rest = shape[1:]
    return math.prod(rest) if all(isinstance(size, int) for size in rest) else None


def _row_shape(shape: Sequence[Any], width: int, table: Table) -> tuple[int, ...]:
    """One row's shape: the graph's, or the images' own where it leaves that open."""
    rest = shape[1:]
    if all(isinstance(size, int) for size in rest):
        return tuple(rest)
    own = table.template.shape
    if own is not None and len(rest) == len(own):
        return own
    return (1, *own) if own is not None and len(rest) == len(own) + 1 else (width,)


def _joined(outputs: Sequence[Any]) -> Any:
    if isinstance(outputs[0], list):
        return [row for part in outputs for row in part]
    return np.concatenate(outputs)


def _from_maps(maps: list[dict[Any, float]]) -> tuple[Floats | None, tuple[Label, ...] | None]:
    if not maps:
        return None, None
    classes = tuple(maps[0])
    return np.array([[row[c] for c in classes] for row in maps]), tuple(map(_plain, classes))


def _are_probabilities(scores: Floats) -> bool:
    """Scores of an SVM or a network without its last step are none, and are not passed off so."""
    return bool(
        np.isfinite(scores).all()
        and (scores >= -SUM).all()
        and (np.abs(scores.sum(axis=1) - 1) < SUM).all()
    )


def _plain(value: Any) -> Label:
    plain: Label = value.item() if isinstance(value, np.generic) else value
    return plain


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
