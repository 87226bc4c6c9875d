"""How a saved explainer names the classifier it was fitted for."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from lapace.classifier.outputs import Label
from lapace.errors import InputError

__all__ = ["FOLLOWED", "Reference"]

FOLLOWED = (".skops", ".onnx")  # files that are opened without running code from them


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
        """Reads a reference from an untrusted file.

        Raises:
            InputError: The file it names lies outside of the explainer's folder.
            ValueError: It is no reference.
        """
        if not isinstance(data, dict) or not all(isinstance(v, str) for v in data.values()):
            raise ValueError("not a reference to a classifier")
        if set(data) == {"named"}:
            return cls("".join(c for c in data["named"][:200] if c.isprintable()))
        file = PurePosixPath(data["file"])
        inside = not file.is_absolute() and ".." not in file.parts and file.name
        if not inside or re.search(r"[\\:\0]", data["file"]) or file.suffix.lower() not in FOLLOWED:
            raise InputError(
                f"A saved explainer refers to '{file.name}' outside of its own folder."
            )
        if not re.fullmatch("[0-9a-f]{64}", data["sha256"]):
            raise ValueError("not a sha256")
        if "threshold" not in data:
            return cls(data["file"], data["sha256"])
        value, positive = json.loads(data["threshold"])
        if not (
            isinstance(value, int | float) and 0 <= value <= 1 and isinstance(positive, str | int)
        ):
            raise ValueError("not a threshold")
        return cls(data["file"], data["sha256"], (value, positive))
