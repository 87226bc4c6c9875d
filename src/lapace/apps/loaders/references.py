"""References from a saved explainer to its classifier's file: made, and opened again.

A skops or ONNX file in the explainer's folder, or below it, is opened as long as its hash is the
one that was saved; anything else is only named.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lapace.apps.loaders.addresses import without_secrets
from lapace.apps.loaders.files import PICKLES, exists, read_model, shown
from lapace.classifier import Reference, threshold
from lapace.classifier.decisions import ThresholdClassifier
from lapace.classifier.references import FOLLOWED
from lapace.errors import InputError


def refer_to(path: str | Path, classifier: str | os.PathLike[str], model: Any = None) -> Reference:
    """Returns a reference to a classifier, for an explainer's file that is saved.

    Args:
        path: The file to be saved.
        classifier: The classifier's file, `package.module:object`, or address.
        model: The classifier itself: the reference keeps a threshold that `threshold` gave to the
            one in the file.
    """
    text = os.fspath(classifier)
    if re.match("https?://", text, re.IGNORECASE):
        return Reference(without_secrets(text))
    folder = Path(path).absolute().parent
    beside = folder / text
    file = beside if beside.is_file() else Path(text).absolute()
    if file.is_file():
        inside = Path(os.path.normpath(file))
        if inside.suffix.lower() in FOLLOWED and inside.is_relative_to(os.path.normpath(folder)):
            relative = inside.relative_to(os.path.normpath(folder)).as_posix()
            sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
            moved = isinstance(model, ThresholdClassifier)
            return Reference(relative, sha256, (model.threshold, model.positive) if moved else None)
        return Reference(file.name)
    if ":" in text and Path(text).suffix.lower() not in FOLLOWED:
        return Reference(shown(text))
    raise InputError(f"There is no file '{shown(text)}' to refer to as the classifier's.")


def open_referred(path: Path, reference: Reference | None, trust: Sequence[str] = ()) -> Any:
    """Opens the classifier that a saved explainer refers to, unless it has changed since.

    Args:
        path: The explainer's file.
        reference: The reference in it.
        trust: As in `load_classifier`.
    """
    pass_it = "Pass it: Explainer.load(path, classifier), or --classifier."
    if reference is None:
        raise InputError(f"'{path.name}' has no classifier beside it to open. {pass_it}")
    name = reference.name
    if reference.sha256 is None:
        pickled = name.lower().endswith(PICKLES)
        what, more = (", a pickle", " --unsafe-pickle") if pickled else ("", "")
        raise InputError(
            f"'{path.name}' was fitted with '{name}'{what}, which is not followed: name it, "
            f"--classifier {name}{more}, or in Python Explainer.load(path, classifier)."
        )
    folder = path.absolute().parent
    file = folder / name
    if exists(file) and not _lies_in(file, folder):
        raise InputError(
            f"The classifier '{name}' of '{path.name}' is not a plain file of its folder, and is "
            f"not opened. {pass_it}"
        )
    try:
        data = file.read_bytes()
    except OSError:
        raise InputError(
            f"The classifier '{name}' is not beside '{path.name}' any more. {pass_it}"
        ) from None
    if hashlib.sha256(data).hexdigest() != reference.sha256:
        raise InputError(
            f"The classifier '{name}' has changed since '{path.name}' was saved, and is not "
            "opened. Fit again with it. If it is the right one, pass it: "
            "Explainer.load(path, classifier), or --classifier."
        )
    model = read_model(data, file.name, trust)
    return model if reference.threshold is None else threshold(model, *reference.threshold)


def _lies_in(file: Path, folder: Path) -> bool:
    """Whether it is a plain file of the folder: no FIFO or device, no link that leads elsewhere."""
    try:
        real = file.resolve(strict=True)
        return stat.S_ISREG(real.stat().st_mode) and real.is_relative_to(folder.resolve())
    except OSError:
        return False
