"""Classifiers in ONNX files, run by onnxruntime.

Rows become the graph's inputs: one matrix of all columns in the table's order, or one input per
column, found by name. Its outputs are a label with or without probabilities (as converters from
scikit-learn write them, with or without a map for each row), or a matrix with one column per class.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.apps.loaders.external import as_classes, as_output
from lapace.classifier.outputs import Label, ModelOutput, as_label
from lapace.errors import ClassifierError, InputError, did_you_mean, first_line, import_extra
from lapace.files import largest
from lapace.table import Coded, Table, Template, read

Array: TypeAlias = NDArray[Any]

# onnxruntime's names of the tensors a table can be written into.
DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(string)": object,
}


class OnnxModel:
    """A graph in an ONNX file, as a function from a frame to a `ModelOutput`.

    Args:
        data: The file's content.
        file: Its name, for error messages.
    """

    def __init__(self, data: bytes, file: str) -> None:
        self.data = data
        self.file = file
        self._session = _session(data, file)
        self._inputs = list(self._session.get_inputs())
        self._classes = self._named_classes()
        for tensor in self._inputs:
            if tensor.type not in DTYPES:
                raise InputError(
                    f"'{file}' takes a {tensor.type} as '{tensor.name}'; a table is written into "
                    f"{', '.join(DTYPES)}."
                )
            if tensor.shape and isinstance(tensor.shape[0], int):
                raise InputError(
                    f"'{file}' takes {tensor.shape[0]} rows at a time, no more and no less. Export "
                    "it with a free first dimension: dynamic_axes, or dynamic_shapes, of "
                    "torch.onnx.export."
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return OnnxModel, (self.data, self.file)

    def __repr__(self) -> str:
        return f"OnnxModel({self.file!r})"

    def __call__(self, frame: Any) -> ModelOutput:
        """Returns the graph's labels, and its probabilities if it has any."""
        table = read(frame)
        feed = self._feed(table)
        options = import_extra("onnxruntime", "onnx", "An .onnx file").RunOptions()
        options.log_severity_level = 4  # errors are raised as exceptions
        try:
            outputs = self._session.run(None, feed, options)
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise ClassifierError(
                f"'{self.file}' could not be run on {len(table):,} rows: {first_line(error)}"
            ) from error
        return self._read(outputs, len(table))

    def _named_classes(self) -> tuple[Label, ...] | None:
        """Returns the classes that the file's metadata lists under `classes`, as JSON, if any."""
        text = self._session.get_modelmeta().custom_metadata_map.get("classes")
        if text is None:
            return None
        try:
            classes = as_classes(json.loads(text))
        except ValueError:
            classes = None
        if classes is None:
            raise InputError(
                f"The classes in the metadata of '{self.file}' are not a JSON list of labels."
            )
        return classes

    # -- inputs -----------------------------------------------------------------------------------

    def _feed(self, table: Table) -> dict[str, Array]:
        if len(self._inputs) == 1:
            (only,) = self._inputs
            return {only.name: self._matrix(only, table)}
        return {tensor.name: self._column(tensor, table) for tensor in self._inputs}

    def _column(self, tensor: Any, table: Table) -> Array:
        if any(isinstance(size, int) and size != 1 for size in tensor.shape[1:]):
            raise InputError(
                f"'{self.file}' takes several inputs, and '{tensor.name}' has more than one "
                "column. Give it one matrix, or one input for each column."
            )
        # Converters write other characters than letters and digits as underscores.
        alike = [n for n in table.names if re.sub(r"\W", "_", n) == re.sub(r"\W", "_", tensor.name)]
        names = [tensor.name] if tensor.name in table.names else alike
        if len(names) != 1:
            raise InputError(
                f"'{self.file}' takes an input '{tensor.name}', and the table has no such column."
                f"{did_you_mean(tensor.name, table.names)}"
            )
        values = self._values(tensor.type, names[0], table)
        return values if len(tensor.shape) == 1 else values[:, None]

    def _matrix(self, tensor: Any, table: Table) -> Array:
        """Returns all columns as one matrix, or as images in the shape that the graph takes."""
        shape, width = tensor.shape[1:], len(table.names)
        if all(isinstance(size, int) for size in shape):
            if math.prod(shape) != width:
                raise InputError(
                    f"'{self.file}' takes {math.prod(shape)} values for each row, and the table "
                    f"has {width} columns. Give the table the columns it was trained on, in their "
                    "order."
                )
        else:  # the graph leaves some sizes open
            image = table.template.shape if len(shape) > 1 else None
            shape = [*[1] * (len(shape) - len(image)), *image] if image else [width]
        values = [self._values(tensor.type, name, table) for name in table.names]
        return np.stack(values, axis=1).reshape(len(table), *shape)

    def _values(self, kind: str, name: str, table: Table) -> Array:
        """Returns one column as the graph takes it: missing numbers NaN, missing text empty."""
        dtype, column = DTYPES[kind], table.columns[name]
        if dtype is object:
            rows = Template("records", (name,), (column.kind,)).build({name: column.values})
            texts = ["" if row[name] is None else str(row[name]) for row in rows]
            return np.array(texts, dtype=object)
        numbers = column.values
        if isinstance(numbers, Coded):
            text = next((v for v in numbers.seen if isinstance(v, str)), None)
            if text is not None:
                raise ClassifierError(
                    f"'{self.file}' takes numbers, and column '{name}' holds text such as "
                    f"{text!r}. Convert the whole pipeline, its encoders included, with an input "
                    "for each column."
                )
            levels = [np.nan if isinstance(v, str) else float(v) for v in numbers.levels]
            numbers = np.array([*levels, np.nan])[numbers.codes]
        if not np.issubdtype(dtype, np.floating) and np.isnan(numbers).any():
            raise ClassifierError(  # about these rows only: others can be queried
                f"'{self.file}' takes whole numbers, and column '{name}' has missing values."
            )
        with np.errstate(over="ignore"):
            return numbers.astype(dtype)

    # -- outputs ----------------------------------------------------------------------------------

    def _read(self, outputs: list[Any], rows: int) -> ModelOutput:
        classes, arrays = self._classes, []
        for output in outputs:
            array = output
            if isinstance(output, list) and output:  # one map for each row: {class: probability}
                classes = tuple(as_label(name) for name in output[0])
                array = [[row[name] for name in output[0]] for row in output]
            array = np.asarray(array)
            arrays.append(array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array)
        labels = next((a for a in arrays if a.ndim == 1 and a.dtype.kind in "OUSbiu"), None)
        scores = next((a for a in arrays if a.ndim == 2 and a.shape[1] > 1), None)
        if scores is None and labels is None:
            shapes = ", ".join(str(array.shape) for array in arrays)
            raise InputError(
                f"'{self.file}' gives neither a label nor one column for each class (outputs of "
                f"shape {shapes}). Let it end in at least two columns, one for each class, or in a "
                "label."
            )
        if scores is not None and labels is None:
            classes = classes or tuple(range(scores.shape[1]))
        plain: Any = labels
        if self._classes is not None and labels is not None and labels.dtype.kind in "biu":
            plain = [self._classes[number] for number in labels.tolist()]  # only numbered so far
        return as_output(plain, scores, classes, rows, f"'{self.file}'")


def _session(data: bytes, file: str) -> Any:
    """Loads a graph whose weights are all in the file.

    onnxruntime would read the others from the working folder, although the graph came from memory:
    a file that was not hashed, and perhaps a secret one.
    """
    onnxruntime = import_extra("onnxruntime", "onnx", "An .onnx file")
    onnx = import_extra("onnx", "onnx", "An .onnx file")
    if len(data) > largest():
        raise InputError(f"'{file}' is not loaded: it is far too large.")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised as exceptions
    options.add_session_config_entry("session.load_model_format", "ONNX")  # the one checked here
    try:
        model = onnx.load_model_from_string(data)
        model.DiscardUnknownFields()
        tensors = (part for part in _messages(model) if isinstance(part, onnx.TensorProto))
        if any(t.external_data or t.data_location == onnx.TensorProto.EXTERNAL for t in tensors):
            raise InputError(
                f"'{file}' keeps weights in another file, which is not read: it could be any file, "
                "and is not covered by the hash. Save it as one: onnx.save(model, path, "
                "save_as_external_data=False)."
            )
        return onnxruntime.InferenceSession(
            model.SerializeToString(),
            sess_options=options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["ConstantFolding"],  # it makes constants of any size at once
        )
    except InputError:
        raise
    except Exception as error:  # the exceptions of both libraries have no common base class
        raise InputError(
            f"'{file}' is not an ONNX file that onnxruntime can run: {first_line(error)}"
        ) from error


def _messages(message: Any) -> Iterator[Any]:
    """Yields a message of protocol buffers, and every message in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from _messages(inner)
