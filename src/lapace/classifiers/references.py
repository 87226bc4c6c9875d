"""References to a classifier's own file, kept by what is saved beside it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from lapace.classifiers.loaders import PICKLES, load_bytes
from lapace.classifiers.remote import without_secrets
from lapace.errors import InputError

__all__ = ["Reference", "check_reference", "open_referred", "refer_to"]

Reference = dict[str, str]  # {"file", "sha256"} of a file that is followed, or {"named"}
FOLLOWED = (".skops", ".onnx")  # kinds of files that can be opened without running code


def refer_to(path: str | Path, classifier: str | os.PathLike[str]) -> Reference:
    """A reference to a classifier, for a file that is saved.

    A skops or ONNX file in the same folder, or below it, is referred to by its relative path and a
    hash; anything else only by its name, for the error where it is missing.

    Args:
        path: The file to be saved.
        classifier: The classifier's file, `package.module:object`, or address.
    """
    text = os.fspath(classifier)
    if re.match("https?://", text, re.IGNORECASE):
        return {"named": without_secrets(text)}
    folder = Path(path).absolute().parent
    beside = folder / text
    found = beside if beside.is_file() else Path(text).absolute()
    if found.is_file():
        inside = Path(os.path.normpath(found))
        if inside.suffix.lower() in FOLLOWED and inside.is_relative_to(os.path.normpath(folder)):
            relative = inside.relative_to(os.path.normpath(folder)).as_posix()
            return {"file": relative, "sha256": hashlib.sha256(found.read_bytes()).hexdigest()}
        return {"named": found.name}
    if ":" in text and Path(text).suffix.lower() not in FOLLOWED:
        return {"named": text}
    raise InputError(f"There is no file '{text}' to refer to as the classifier's.")


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
    return load_bytes(data, file.name, trust=trust)


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
    return {"file": text, "sha256": reference["sha256"]}
