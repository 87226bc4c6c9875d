"""How a saved explainer names the classifier it was fitted for."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from lapace.classifier.outputs import Label
from lapace.documents import Document, restore
from lapace.errors import InputError

__all__ = ["FOLLOWED", "Reference"]

FOLLOWED = (".skops", ".onnx")  # files that are opened without running code from them


class _File(Document):
    file: str
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    threshold: str | UnsetType = UNSET  # a `_Threshold` as JSON


class _Threshold(Document, array_like=True):
    value: Annotated[float, Meta(ge=0, le=1)]
    positive: Label


@dataclass(frozen=True)
class Reference:
    """The name of a classifier, in the file of the explainer that was fitted for it.

    Attributes:
        name: The path of the classifier's file, relative to the explainer's folder; or, without
            `sha256`, a name to show: of a pickle, a module's object or an address.
        sha256: The hash of the file; None for a classifier that is only named.
        threshold: The probability and label of `threshold`, where the file holds the classifier
            without it.

    Examples:
        >>> Reference.from_json({"named": "package.module:model"})
        Reference(name='package.module:model', sha256=None, threshold=None)
    """

    name: str
    sha256: str | None = None
    threshold: tuple[float, Label] | None = None

    def to_json(self) -> dict[str, str]:
        """Returns the reference as saved files hold it."""
        if self.sha256 is None:
            return {"named": self.name}
        kept = {} if self.threshold is None else {"threshold": json.dumps(self.threshold)}
        return {"file": self.name, "sha256": self.sha256, **kept}

    @classmethod
    def from_json(cls, data: Any) -> Reference:
        """Reads a reference from an untrusted file; it may name only files of its own folder."""
        what = "the reference to a classifier"
        if isinstance(data, dict) and set(data) == {"named"}:
            name = restore(str, data["named"], what)
            return cls("".join(c for c in name[:200] if c.isprintable()))
        saved = restore(_File, data, what)
        file = PurePosixPath(saved.file)
        inside = not file.is_absolute() and ".." not in file.parts and file.name
        if not inside or re.search(r"[\\:\0]", saved.file) or file.suffix.lower() not in FOLLOWED:
            raise InputError(
                f"A saved explainer refers to '{file.name}' outside of its own folder."
            )
        if saved.threshold is UNSET:
            return cls(saved.file, saved.sha256)
        threshold = restore(_Threshold, json.loads(saved.threshold), what)
        return cls(saved.file, saved.sha256, (threshold.value, threshold.positive))
