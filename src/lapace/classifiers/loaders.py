"""Classifiers from outside: files, a module's objects, addresses.

```
model.skops               read without running anything; strange types are named and refused
model.onnx                run by onnxruntime
package.module:object     imported
https://host/predict      asked over HTTP
model.pkl, model.joblib   refused: opening one runs whatever is in it
```
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import io
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from lapace.classifiers.external import ExternalModel
from lapace.classifiers.onnx_files import OnnxModel
from lapace.classifiers.pipelines import TrainedKind
from lapace.classifiers.remote import HttpModel
from lapace.classifiers.skops_files import read_skops, write_skops
from lapace.errors import InputError, did_you_mean

__all__ = ["load_bytes", "load_classifier", "save_classifier"]

PICKLES = (".pkl", ".pickle", ".joblib", ".sav", ".pt", ".pth")
FILES = (".skops", ".onnx", *PICKLES)
OBJECT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
POSSIBLE = (
    "a file ending in .skops or .onnx, an object of a module written package.module:object, or an "
    "address that begins with http:// or https://"
)


def load_classifier(
    spec: str | PathLike[str],
    *,
    trust: Sequence[str] = (),
    unsafe_pickle: bool = False,
    timeout: float = 30.0,
) -> Any:
    """A classifier from outside, ready for `Explainer` or `wrap`.

    Args:
        spec: `model.skops`, `model.onnx`, `package.module:object`, or `http(s)://host/path`.
        trust: Full names of types in a skops file that may be built although they are not known to
            be harmless.
        unsafe_pickle: Open pickle and joblib files, which can run anything at all.
        timeout: Seconds one request to an address may take, retries and all.

    Returns:
        An object with `predict`, and `predict_proba` where there is one; or a callable on rows.

    Examples:
        >>> load_classifier("statistics:mode")([2, 2, 1])
        2
        >>> load_classifier("model.pkl")
        Traceback (most recent call last):
        lapace.errors.InputError: There is no file 'model.pkl'.
    """
    trusted = _names(trust)
    if not isinstance(spec, str | PathLike):
        raise InputError(f"A {type(spec).__name__} names no classifier. Say {POSSIBLE}.")
    text = str(spec)
    if re.match("https?://", text, re.IGNORECASE):
        return ExternalModel(HttpModel(text, timeout=timeout))
    path = Path(spec)
    if text and (path.suffix.lower() in FILES or _exists(path)):
        return _open_file(path, trusted, unsafe_pickle)
    if OBJECT.fullmatch(text):
        return _checked(_object(text), text)
    if text in get_args(TrainedKind):
        raise InputError(
            f"'{text}' is a classifier that is trained for you, from a table and its labels: call "
            "lapace.classifiers.train, or `lapace fit` with the label's column."
        )
    stock = get_args(TrainedKind)
    raise InputError(
        f"'{text}' names no classifier.{did_you_mean(text, stock)} Say {POSSIBLE}. `lapace fit` "
        f"also trains one: {', '.join(stock[:-1])} or {stock[-1]}."
    )


def load_bytes(data: bytes, file: str, *, trust: Sequence[str] = ()) -> Any:
    """The classifier in the content of a `.skops` or `.onnx` file, of whose name the ending counts.

    Args:
        data: What the file holds.
        file: Its name.
        trust: As in `load_classifier`.
    """
    suffix = Path(file).suffix.lower()
    if suffix == ".onnx":
        return ExternalModel(OnnxModel(data, file))
    if suffix != ".skops":
        raise InputError(f"'{file}' is not opened: a classifier's file ends in .skops or .onnx.")
    return _checked(read_skops(data, file, _names(trust)), file)


def save_classifier(model: Any, path: str | PathLike[str]) -> None:
    """Writes a scikit-learn model as a `.skops` file, whole or not at all.

    Args:
        model: What `train` made, or any model skops can hold.
        path: Ends in `.skops`; a file that is there is replaced.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> from sklearn.linear_model import LogisticRegression
        >>> model = LogisticRegression().fit([[0.0], [1.0]], ["no", "yes"])
        >>> with TemporaryDirectory() as folder:
        ...     save_classifier(model, f"{folder}/model.skops")
        ...     load_classifier(f"{folder}/model.skops").predict([[2.0]]).tolist()
        ['yes']
    """
    target = Path(path)
    if target.suffix.lower() != ".skops":
        raise InputError(f"'{target.name}' is not written: a classifier's file ends in .skops.")
    write_skops(model, target)


def _names(trust: Any) -> tuple[str, ...]:
    names = (trust,) if isinstance(trust, str) else tuple(trust)
    if not all(isinstance(name, str) for name in names):
        raise InputError("trust holds the full names of types, such as 'package.module.Type'.")
    return names


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a text no file system takes for a name
        return False


def _checked(model: Any, where: str) -> Any:
    if isinstance(model, type) or not (
        callable(model) or callable(getattr(model, "predict", None))
    ):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise InputError(
            f"'{where}' holds {what}, which is no classifier. It has to be an object with "
            "`predict`, or a callable that takes rows and returns labels."
        )
    return model


# ------------------------------------------------------------------------------------------------
# Files


def _open_file(path: Path, trust: Sequence[str], unsafe_pickle: bool) -> Any:
    if not path.is_file():
        raise InputError(f"There is no file '{path}'.")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"'{path}' could not be read: {error.strerror}.") from None
    if path.suffix.lower() in PICKLES or _is_pickle(data):
        if not unsafe_pickle:
            raise InputError(
                f"'{path.name}' is a pickle: opening it could run anything whoever made it wanted. "
                "Where it was made, write the model with "
                "lapace.classifiers.save_classifier(model, 'model.skops'), or convert it to ONNX. "
                "If you made it yourself: unsafe_pickle=True, or --unsafe-pickle."
            )
        return _checked(_unpickled(data, path.name), path.name)
    if path.suffix.lower() not in FILES:
        raise InputError(f"'{path.name}' holds no classifier that is known. Say {POSSIBLE}.")
    return load_bytes(data, path.name, trust=trust)


def _is_pickle(data: bytes) -> bool:
    """Pickles by their first bytes, under whatever name; torch hides one in a zip."""
    if data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    if not data.startswith(b"PK"):
        return False
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return any(name.endswith(".pkl") for name in archive.namelist())
    except Exception:  # no zip, or a broken one: whoever opens it will say so
        return False


def _unpickled(data: bytes, file: str) -> Any:
    import joblib

    try:
        return joblib.load(io.BytesIO(data))
    except Exception as error:  # anything at all may happen
        raise InputError(
            f"'{file}' could not be unpickled: {type(error).__name__}: {error}"
        ) from error


# ------------------------------------------------------------------------------------------------
# A module's objects


def _object(text: str) -> Any:
    """What `package.module:object` names; a module beside us is found as well."""
    home, _, inner = text.partition(":")
    with _beside_us():
        try:
            found: Any = importlib.import_module(home)
        except Exception as error:  # a module runs when it is imported
            raise InputError(_why_not_imported(home, error)) from error
    for k, name in enumerate(parts := inner.split(".")):
        if not hasattr(found, name):
            where = ".".join([home, *parts[:k]])
            hint = did_you_mean(name, [n for n in dir(found) if not n.startswith("_")])
            raise InputError(f"'{where}' has no '{name}'.{hint}")
        found = getattr(found, name)
    return found


def _why_not_imported(home: str, error: Exception) -> str:
    missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and f"{home}.".startswith(f"{missing}."):
        known = difflib.get_close_matches(missing, _modules(), n=1)
        hint = f" Did you mean '{known[0]}'?" if known else ""
        return (
            f"There is no module '{missing}'. It has to be installed, or lie in the folder you are "
            f"in.{hint}"
        )
    return f"Importing '{home}' raised {type(error).__name__}: {error}"


def _modules() -> list[str]:
    here = [path.stem for path in Path().iterdir() if path.suffix == ".py" or path.is_dir()]
    return [*here, *(name for name in sys.modules if "." not in name)]


@contextmanager
def _beside_us() -> Iterator[None]:
    """The folder we are in, last on the path: it adds modules and hides none."""
    here = str(Path.cwd())
    sys.path.append(here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.reverse()
            sys.path.remove(here)
            sys.path.reverse()
