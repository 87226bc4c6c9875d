"""Loads a classifier that is named by a file, a module's object or an address."""

from __future__ import annotations

import importlib
import io
import re
import sys
import zipfile
from collections.abc import Sequence
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from lapace.apps.loaders.addresses import HIDDEN, without_secrets
from lapace.apps.loaders.external import ExternalModel
from lapace.apps.loaders.onnx_files import OnnxModel
from lapace.apps.loaders.remote import HttpModel
from lapace.apps.loaders.skops_files import read_skops
from lapace.classifier.outputs import predict_method
from lapace.classifier.references import FOLLOWED
from lapace.datasets import TrainedKind
from lapace.errors import InputError, did_you_mean

PICKLES = (".pkl", ".pickle", ".joblib", ".sav", ".pt", ".pth")
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
    """Loads a model from a file, a module or an address, ready for `Explainer`.

    Args:
        spec: `model.skops`, `model.onnx`, `package.module:object`, or `http(s)://host/path`.
        trust: Full names of types in a skops file that may be built although they are not known to
            be harmless.
        unsafe_pickle: Load pickle and joblib files, which can run any code.
        timeout: Seconds one request to an address may take, retries included.

    Returns:
        An object with `predict`, and `predict_proba` where there is one; or a callable on rows.

    Examples:
        >>> load_classifier("statistics:mode")([2, 2, 1])
        2
        >>> load_classifier("model.pkl")
        Traceback (most recent call last):
        lapace.errors.InputError: There is no file 'model.pkl'.
    """
    text = str(spec)
    if re.match("https?://", text, re.IGNORECASE):
        return ExternalModel(HttpModel(text, timeout))
    path = Path(text)
    if text and (path.suffix.lower() in (*FOLLOWED, *PICKLES) or exists(path)):
        return _load_file(path, trust, unsafe_pickle)
    if OBJECT.fullmatch(text):
        return _checked(_import_object(text), text)
    kinds = get_args(TrainedKind)
    raise InputError(
        f"'{shown(text)}' names no classifier.{did_you_mean(text, kinds)} Write {POSSIBLE}. From a "
        "table and its labels `lapace fit` and lapace.datasets.train also train one: "
        f"{', '.join(kinds)}."
    )


def read_model(data: bytes, file: str, trust: Sequence[str] = ()) -> Any:
    """Returns the model in the content of a `.skops` or `.onnx` file.

    Args:
        data: The file's content.
        file: Its name, whose suffix says which it is.
        trust: As in `load_classifier`.
    """
    if file.lower().endswith(".onnx"):
        return ExternalModel(OnnxModel(data, file))
    return _checked(read_skops(data, file, (trust,) if isinstance(trust, str) else trust), file)


def shown(text: str) -> str:
    """Returns a text as messages may quote it: it could be a misspelt address with a password."""
    if "://" in text:
        return without_secrets(text)
    return HIDDEN if "@" in text or "?" in text else text


def exists(path: Path) -> bool:
    """Whether there is such a file or folder."""
    try:
        return path.exists()
    except (OSError, ValueError):  # a text that no file system accepts as a name
        return False


def _checked(model: Any, where: str) -> Any:
    predict_method(model, f"'{where}' holds")
    return model


def _load_file(path: Path, trust: Sequence[str], unsafe_pickle: bool) -> Any:
    if not path.is_file():
        raise InputError(f"There is no file '{shown(str(path))}'.")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"'{path}' could not be read: {error.strerror}.") from None
    if path.suffix.lower() in PICKLES or _is_pickle(data):
        if not unsafe_pickle:
            raise InputError(
                f"'{path.name}' is a pickle: loading it could run any code its author put in. "
                "Where it was made, write the model with "
                "lapace.loaders.save_classifier(model, 'model.skops'), or convert it to ONNX. "
                "If you made it yourself: unsafe_pickle=True, or --unsafe-pickle."
            )
        return _checked(_unpickled(data, path.name), path.name)
    if path.suffix.lower() not in FOLLOWED:
        raise InputError(f"'{path.name}' is not a classifier's file. Write {POSSIBLE}.")
    return read_model(data, path.name, trust)


def _is_pickle(data: bytes) -> bool:
    """Whether a file is a pickle, by its first bytes and not its name; torch zips one."""
    if data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return any(name.endswith(".pkl") for name in archive.namelist())
    except Exception:  # no zip, or a broken one: reading it as skops will raise
        return False


def _unpickled(data: bytes, file: str) -> Any:
    import joblib

    try:
        return joblib.load(io.BytesIO(data))
    except Exception as error:  # unpickling may raise anything
        raise InputError(
            f"'{file}' could not be unpickled: {type(error).__name__}: {error}"
        ) from error


def _import_object(text: str) -> Any:
    """Returns the object that `package.module:object` names, also from the current folder."""
    home, _, inner = text.partition(":")
    here = str(Path.cwd())
    sys.path.append(here)  # last, so that it shadows no module
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(home)
    except Exception as error:  # importing runs the module
        if isinstance(error, ModuleNotFoundError) and f"{home}.".startswith(f"{error.name}."):
            raise InputError(
                f"There is no module '{error.name}'. It has to be installed, or lie in the current "
                "folder."
            ) from None
        raise InputError(f"Importing '{home}' raised {type(error).__name__}: {error}") from error
    finally:
        if sys.path[-1:] == [here]:
            sys.path.pop()
    try:
        return attrgetter(inner)(module)
    except AttributeError as error:
        names = [name for name in dir(error.obj) if not name.startswith("_")]
        hint = did_you_mean(error.name, names)
        raise InputError(f"'{text}' does not exist: {error}.{hint}") from None
