"""Loads classifiers from files, modules and addresses, and saves them.

```
model.skops               read without running code from it; untrusted types are named and refused
model.onnx                run by onnxruntime
package.module:object     imported
https://host/predict      queried over HTTP
model.pkl, model.joblib   refused: unpickling runs whatever code is in the file
```
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import re
import stat
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from lapace.classifiers.addresses import HIDDEN, without_secrets
from lapace.classifiers.decisions import ThresholdClassifier
from lapace.classifiers.onnx_files import OnnxModel
from lapace.classifiers.outputs import ExternalModel, predict_method
from lapace.classifiers.pipelines import TrainedKind
from lapace.classifiers.remote import HttpModel
from lapace.classifiers.skops_files import read_skops
from lapace.errors import InputError, did_you_mean

FOLLOWED = (".skops", ".onnx")  # opened without running code
PICKLES = (".pkl", ".pickle", ".joblib", ".sav", ".pt", ".pth")
OBJECT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
# {"file", "sha256"} (and a threshold) of a file that is followed, or {"named"}.
Reference = dict[str, str]
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
    """A model from a file, a module or an address, ready for `Explainer`.

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
    trusted = _type_names(trust)
    if not isinstance(spec, str | PathLike):
        raise InputError(f"A {type(spec).__name__} names no classifier. Write {POSSIBLE}.")
    text = str(spec)
    if re.match("https?://", text, re.IGNORECASE):
        return ExternalModel(HttpModel(text, timeout))
    path = Path(spec)
    if text and (path.suffix.lower() in (*FOLLOWED, *PICKLES) or _exists(path)):
        return _load_file(path, trusted, unsafe_pickle)
    if OBJECT.fullmatch(text):
        return _checked(_import_object(text), text)
    kinds = get_args(TrainedKind)
    if text in kinds:
        raise InputError(
            f"'{text}' is a classifier that is trained for you, from a table and its labels: call "
            "lapace.classifiers.train, or `lapace fit` with the label's column."
        )
    raise InputError(
        f"'{_shown(text)}' names no classifier.{did_you_mean(text, kinds)} Write {POSSIBLE}. "
        f"`lapace fit` also trains one: {', '.join(kinds[:-1])} or {kinds[-1]}."
    )


def load_bytes(data: bytes, file: str, *, trust: Sequence[str] = ()) -> Any:
    """The model in the content of a `.skops` or `.onnx` file; the name's suffix says which.

    Args:
        data: The file's content.
        file: Its name.
        trust: As in `load_classifier`.
    """
    suffix = Path(file).suffix.lower()
    if suffix == ".onnx":
        return ExternalModel(OnnxModel(data, file))
    if suffix != ".skops":
        raise InputError(f"'{file}' is not loaded: a classifier's file ends in .skops or .onnx.")
    return _checked(read_skops(data, file, _type_names(trust)), file)


def _shown(text: str) -> str:
    """What a message may quote of a text that could be a misspelt address with a password."""
    if "://" in text:
        return without_secrets(text)
    return HIDDEN if "@" in text or "?" in text else text


def _type_names(trust: Any) -> tuple[str, ...]:
    names = (trust,) if isinstance(trust, str) else tuple(trust)
    if not all(isinstance(name, str) for name in names):
        raise InputError("trust holds the full names of types, such as 'package.module.Type'.")
    return names


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a text that no file system accepts as a name
        return False


def _checked(model: Any, where: str) -> Any:
    predict_method(model, f"'{where}' holds")
    return model


# ------------------------------------------------------------------------------------------------
# Files


def _load_file(path: Path, trust: Sequence[str], unsafe_pickle: bool) -> Any:
    if not path.is_file():
        raise InputError(f"There is no file '{_shown(str(path))}'.")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"'{path}' could not be read: {error.strerror}.") from None
    if path.suffix.lower() in PICKLES or _is_pickle(data):
        if not unsafe_pickle:
            raise InputError(
                f"'{path.name}' is a pickle: loading it could run any code its author put in. "
                "Where it was made, write the model with "
                "lapace.classifiers.save_classifier(model, 'model.skops'), or convert it to ONNX. "
                "If you made it yourself: unsafe_pickle=True, or --unsafe-pickle."
            )
        return _checked(_unpickled(data, path.name), path.name)
    if path.suffix.lower() not in FOLLOWED:
        raise InputError(f"'{path.name}' is no classifier's file. Write {POSSIBLE}.")
    return load_bytes(data, path.name, trust=trust)


def _is_pickle(data: bytes) -> bool:
    """Recognises pickles by their first bytes, whatever the file's name; torch zips one."""
    if data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    if not data.startswith(b"PK"):
        return False
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


# ------------------------------------------------------------------------------------------------
# Objects of modules


def _import_object(text: str) -> Any:
    """What `package.module:object` names; modules in the current folder are found as well."""
    home, _, inner = text.partition(":")
    try:
        with _current_folder_importable():
            module = importlib.import_module(home)
    except Exception as error:  # importing runs the module
        raise InputError(_why_not_imported(home, error)) from error
    try:
        return attrgetter(inner)(module)
    except AttributeError as error:
        names = [name for name in dir(error.obj) if not name.startswith("_")]
        hint = did_you_mean(error.name, names)
        raise InputError(f"'{text}' does not exist: {error}.{hint}") from None


def _why_not_imported(home: str, error: Exception) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is None or not f"{home}.".startswith(f"{missing}."):
        return f"Importing '{home}' raised {type(error).__name__}: {error}"
    here = [path.stem for path in Path().iterdir() if path.suffix == ".py" or path.is_dir()]
    known = [*here, *(name for name in sys.modules if "." not in name)]
    return (
        f"There is no module '{missing}'. It has to be installed, or lie in the current folder."
        f"{did_you_mean(missing, known)}"
    )


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    """The current folder as the last entry of `sys.path`, so that it shadows no module."""
    here = str(Path.cwd())
    sys.path.append(here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if here in sys.path:  # the last occurrence: the module may have added its own
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]


# ------------------------------------------------------------------------------------------------
# References to a classifier's file, kept by what is saved beside it


def refer_to(path: str | Path, classifier: str | os.PathLike[str], model: Any = None) -> Reference:
    """A reference to a classifier, for a file that is saved.

    A skops or ONNX file in the same folder, or below it, is referred to by its relative path and a
    hash; anything else only by its name, for the error where it is missing.

    Args:
        path: The file to be saved.
        classifier: The classifier's file, `package.module:object`, or address.
        model: The classifier itself: a threshold that `decisions.threshold` gave to the one in the
            file is kept.
    """
    text = os.fspath(classifier)
    kept = {}
    if isinstance(model, ThresholdClassifier):
        kept["threshold"] = json.dumps([model.threshold, model.positive])
    if re.match("https?://", text, re.IGNORECASE):
        return {"named": without_secrets(text)}
    folder = Path(path).absolute().parent
    beside = folder / text
    found = beside if beside.is_file() else Path(text).absolute()
    if found.is_file():
        inside = Path(os.path.normpath(found))
        if inside.suffix.lower() in FOLLOWED and inside.is_relative_to(os.path.normpath(folder)):
            relative = inside.relative_to(os.path.normpath(folder)).as_posix()
            sha256 = hashlib.sha256(found.read_bytes()).hexdigest()
            return {"file": relative, "sha256": sha256, **kept}
        return {"named": found.name}
    if ":" in text and Path(text).suffix.lower() not in FOLLOWED:
        return {"named": _shown(text)}
    raise InputError(f"There is no file '{_shown(text)}' to refer to as the classifier's.")


def open_referred(path: Path, reference: Reference | None, trust: Sequence[str] = ()) -> Any:
    """Opens the classifier a saved file refers to, unless it has changed since.

    Args:
        path: The file with the reference.
        reference: What `refer_to` returned, read back.
        trust: As in `load_classifier`.
    """
    pass_it = "Pass it: Explainer.load(path, classifier), or --classifier."
    if reference is None:
        raise InputError(f"'{path.name}' has no classifier beside it to open. {pass_it}")
    if "named" in reference:
        name = reference["named"]
        pickled = name.lower().endswith(PICKLES)
        what, more = (", a pickle", " --unsafe-pickle") if pickled else ("", "")
        raise InputError(
            f"'{path.name}' was fitted with '{name}'{what}, which is not followed: name it, "
            f"--classifier {name}{more}, or in Python Explainer.load(path, classifier)."
        )
    file = path.absolute().parent / reference["file"]
    finish_move(file, reference["sha256"])
    if _exists(file) and not _lies_in(file, path.absolute().parent):
        raise InputError(
            f"The classifier '{reference['file']}' of '{path.name}' is not a plain file of its "
            f"folder, and is not opened. {pass_it}"
        )
    try:
        data = file.read_bytes()
    except OSError:
        raise InputError(
            f"The classifier '{reference['file']}' is not beside '{path.name}' any more. {pass_it}"
        ) from None
    if hashlib.sha256(data).hexdigest() != reference["sha256"]:
        raise InputError(
            f"The classifier '{reference['file']}' has changed since '{path.name}' was saved, and "
            f"is not opened. Fit again with it. Or, if it is the right one: {pass_it}"
        )
    model = load_bytes(data, file.name, trust=trust)
    if "threshold" in reference:
        return ThresholdClassifier(model, *json.loads(reference["threshold"]))
    return model


def _lies_in(file: Path, folder: Path) -> bool:
    """Whether it is a plain file of the folder: no FIFO or device, no link that leads elsewhere."""
    try:
        real = file.resolve(strict=True)
        return stat.S_ISREG(real.stat().st_mode) and real.is_relative_to(folder.resolve())
    except OSError:
        return False


def staged_file(file: Path, sha256: str) -> Path:
    """Where a classifier lies while the explainer that refers to it is put into place."""
    return file.with_name(f".{file.name}.{sha256[:16]}")


def finish_move(file: Path, sha256: str) -> None:
    """Puts a staged classifier into place, where whoever wrote the pair was killed before that."""
    staged = staged_file(file, sha256)
    if _lies_in(staged, file.parent) and hashlib.sha256(staged.read_bytes()).hexdigest() == sha256:
        staged.replace(file)


def check_reference(reference: Any) -> Reference | None:
    """A reference as read from an untrusted file; raises where it is none, or leaves the folder."""
    if reference is None:
        return None
    if not isinstance(reference, dict) or not all(isinstance(v, str) for v in reference.values()):
        raise ValueError("not a reference to a classifier")
    if set(reference) == {"named"}:
        return {"named": "".join(c for c in reference["named"][:200] if c.isprintable())}
    text, file = reference["file"], PurePosixPath(reference["file"])
    inside = not file.is_absolute() and ".." not in file.parts and file.name
    if not inside or re.search(r"[\\:\0]", text) or file.suffix.lower() not in FOLLOWED:
        raise InputError(f"A saved explainer refers to '{file.name}' outside of its own folder.")
    if not re.fullmatch("[0-9a-f]{64}", reference["sha256"]):
        raise ValueError("not a sha256")
    found = {"file": text, "sha256": reference["sha256"]}
    if "threshold" in reference:
        value, positive = json.loads(reference["threshold"])
        if not (
            isinstance(value, int | float) and 0 <= value <= 1 and isinstance(positive, str | int)
        ):
            raise ValueError("not a threshold")
        found["threshold"] = reference["threshold"]
    return found
