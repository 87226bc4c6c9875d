"""Classifiers in skops files: read without running code from the file, written atomically.

A file is unpacked within bounds, audited (`skops_audit`), and packed again in memory without
cross-references between its nodes (`__id__`): they let a small file describe an exponentially large
object. The memory a file takes is bounded before anything is built: bytes unpacked, archives in it
(sparse matrices) included, and the objects that its JSON would become.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from lapace.apps.loaders.skops_audit import (
    TREES,
    Node,
    inspectable_types,
    malformed_types,
    shadowed_method,
    type_name,
    unverified_types,
)
from lapace.errors import InputError, first_line, import_extra
from lapace.files import VARIABLE, largest, unpack, write_whole

SCHEMA = "schema.json"
MEMBER = re.compile(r"[\w-]+\.(npy|npz|bin)")
NODE = 2_000  # bytes skops takes for each node of the schema, beside the JSON


def read_skops(data: bytes, file: str, trust: Sequence[str] = ()) -> Any:
    """Returns the model in a skops file.

    Args:
        data: The file's content.
        file: Its name, for error messages.
        trust: Full names of types that may be built beside those known to be harmless.
    """
    skops_io = import_extra("skops.io", "skops", "A .skops file")
    try:
        packed, members, protocol, nodes = _repack(data, file)
        untrusted = set(skops_io.get_untrusted_types(data=packed))
        untrusted |= TREES & set(map(type_name, nodes))
        _refuse(untrusted - inspectable_types(protocol, nodes) - set(trust), file)
        _refuse(malformed_types(nodes, members) - set(trust), file)
        model = skops_io.loads(packed, trusted=sorted(untrusted | set(trust)))
        _refuse(unverified_types(model, nodes) - set(trust), file)
        if shadowed := shadowed_method(model):
            raise InputError(f"'{file}' replaces {shadowed} by data, and is not loaded.")
        return model
    except InputError:
        raise
    except ImportError as error:
        raise InputError(
            f"'{file}' needs '{error.name}', which is not installed here. Install it first."
        ) from error
    except Exception as error:  # a damaged file may fail in any of the libraries that read it
        raise InputError(
            f"'{file}' is not a skops file, or it is damaged ({type(error).__name__}). "
            "Write it again with lapace.loaders.save_classifier or skops.io.dump."
        ) from error


def save_classifier(model: Any, path: str | PathLike[str]) -> None:
    """Writes a scikit-learn model as a `.skops` file, atomically.

    Args:
        model: A pipeline of `datasets.train`, or any model that skops supports.
        path: Ends in `.skops`; an existing file is replaced.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> from sklearn.linear_model import LogisticRegression
        >>> from lapace.apps.loaders import load_classifier
        >>> model = LogisticRegression().fit([[0.0], [1.0]], ["no", "yes"])
        >>> with TemporaryDirectory() as folder:
        ...     save_classifier(model, f"{folder}/model.skops")
        ...     load_classifier(f"{folder}/model.skops").predict([[2.0]]).tolist()
        ['yes']
    """
    target = Path(path)
    if target.suffix.lower() != ".skops":
        raise InputError(f"'{target.name}' is not written: a classifier's file ends in .skops.")
    skops_io = import_extra("skops.io", "skops", "A .skops file")
    try:
        data = skops_io.dumps(model, compression=zipfile.ZIP_DEFLATED)
        # Whether it can be read back; the model is in this process, so its types are trusted.
        skops_io.loads(data, trusted=skops_io.get_untrusted_types(data=data))
    except Exception as error:  # unsupported objects fail in many ways
        raise InputError(
            f"A {type(model).__name__} cannot be written as a skops file "
            f"({type(error).__name__}: {first_line(error)}). Write it as ONNX, or name it as "
            "package.module:object."
        ) from error
    write_whole(target, lambda temporary: temporary.write_bytes(data))


def _refuse(types: set[str], file: str) -> None:
    if types:
        listed = ", ".join(sorted(types))
        raise InputError(
            f"'{file}' holds types that are not known to be harmless: {listed}. If you trust its "
            f"author, name them: trust={sorted(types)!r}, or --trust for each on the command line."
        )


def _repack(data: bytes, file: str) -> tuple[bytes, dict[str, bytes], Any, list[Node]]:
    """Returns the file without cross-references, its parts, its format and its schema's nodes."""
    too_large = InputError(
        f"'{file}' is not loaded: unpacked it would be far too large. If you trust its author, set "
        f"{VARIABLE} to the bytes it may take."
    )

    def refusal(reason: str) -> InputError:
        return too_large if "large" in reason else InputError(f"'{file}' is not loaded: {reason}.")

    members = unpack(data, refusal)
    if SCHEMA not in members or any(m != SCHEMA and not MEMBER.fullmatch(m) for m in members):
        raise InputError(f"'{file}' is not a skops file.")
    if members[SCHEMA].count(b"__loader__") * NODE > largest():
        raise too_large
    nodes: list[Node] = []

    def without_reference(part: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(part.get("__id__"), dict):  # a user's key of that name is a node
            part.pop("__id__", None)
        if "__loader__" in part:
            nodes.append(part)
        return part

    schema = json.loads(members[SCHEMA], object_hook=without_reference)
    uses = Counter(node["file"] for node in nodes if isinstance(node.get("file"), str))
    if sum(times * len(members.get(used, b"")) for used, times in uses.items()) > largest():
        raise too_large
    members[SCHEMA] = json.dumps(schema).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return buffer.getvalue(), members, schema["protocol"], nodes
