"""Classifiers in skops files: read without running anything, written whole.

A file is unpacked within bounds, its plan is read, and it is packed again in memory: what was
looked at is what skops then builds, whatever tricks the zip had in store.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lapace.classifiers.skops_audit import (
    PREDICTOR,
    TREE,
    Node,
    is_node,
    name,
    nodes,
    shadowed,
    vouched,
)
from lapace.errors import InputError
from lapace.table import write_whole

__all__ = ["read_skops", "write_skops"]

LARGEST = 2**31  # bytes everything in a file may unpack to, together, each time it is used
TIGHTEST = 200  # times a file may be larger unpacked, beyond the first few megabytes
SPARE = 2**26
PLAN = "schema.json"
MEMBER = re.compile(r"[\w-]+\.(npy|npz|bin)")


def read_skops(data: bytes, file: str, trust: Sequence[str] = ()) -> Any:
    """The model in a skops file.

    Args:
        data: The file's content.
        file: Its name, for the sentences.
        trust: Full names of types that may be built beside those known to be harmless.
    """
    io_ = _skops()
    try:
        plan, members = _unpack(data, file)
        known = vouched(plan, members)
        packed = _pack(plan, members)
        asked = set(io_.get_untrusted_types(data=packed))
        # Whatever a version of skops thinks of trees, one that leads astray is not walked.
        asked |= {TREE, PREDICTOR} & {name(node) for node, _ in nodes(plan)}
        _refuse(asked - known - set(trust), file)
        if wrong := shadowed(plan):
            raise InputError(f"'{file}' replaces {wrong} by data, and is not opened.")
        return io_.loads(packed, trusted=sorted(asked | set(trust)))
    except InputError:
        raise
    except ImportError as error:
        raise InputError(
            f"'{file}' needs '{error.name}', which is not installed here. Install it first."
        ) from error
    except Exception as error:  # a damaged file may trip up any of the libraries that read it
        raise InputError(
            f"'{file}' is not a skops file, or it is damaged ({type(error).__name__}). "
            "Write it again with lapace.classifiers.save_classifier or skops.io.dump."
        ) from error


def write_skops(model: Any, path: Path) -> None:
    """Writes a model, whole or not at all, after making sure that it can be read back."""
    io_ = _skops()
    try:
        data = io_.dumps(model, compression=zipfile.ZIP_DEFLATED)
        # The model is in our hands already: all that is asked is whether the file holds it.
        io_.loads(data, trusted=io_.get_untrusted_types(data=data))
    except Exception as error:  # every kind of object has its own way not to fit
        raise InputError(
            f"A {type(model).__name__} cannot be written as a skops file "
            f"({type(error).__name__}: {_first_line(error)}). Write it as ONNX, or name it as "
            "package.module:object."
        ) from error
    write_whole(path, lambda temporary: temporary.write_bytes(data))


def _skops() -> Any:
    try:
        import skops.io
    except ImportError:
        raise InputError("A .skops file needs skops: pip install 'lapace[skops]'.") from None
    return skops.io


def _refuse(types: set[str], file: str) -> None:
    if not types:
        return
    listed = ", ".join(sorted(types))
    raise InputError(
        f"'{file}' holds types that are not known to be harmless: {listed}. If you trust whoever "
        f"wrote it, name them: trust={sorted(types)!r}, or --trust for each on the command line."
    )


# ------------------------------------------------------------------------------------------------
# The zip


def _unpack(data: bytes, file: str) -> tuple[Node, dict[str, bytes]]:
    """The plan without its cross-references, and the arrays it uses."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        names = [entry.filename for entry in entries]
        strange = [n for n in names if n != PLAN and not MEMBER.fullmatch(n)]
        if PLAN not in names or strange or len(set(names)) < len(names):
            raise InputError(f"'{file}' is not a skops file.")
        size = sum(entry.file_size for entry in entries)
        if size > min(LARGEST, SPARE + TIGHTEST * len(data)):
            raise InputError(f"'{file}' is not opened: unpacked it would be far too large.")
        if any(e.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for e in entries):
            raise InputError(f"'{file}' is packed in a way skops does not pack.")
        members = {}
        for entry in entries:
            with archive.open(entry) as part:  # never more than was declared
                members[entry.filename] = part.read(entry.file_size)
    plan = _alone(json.loads(members.pop(PLAN)))
    if not is_node(plan):
        raise InputError(f"'{file}' is not a skops file.")
    uses = Counter(node["file"] for node, _ in nodes(plan) if isinstance(node.get("file"), str))
    # Without cross-references an array is read once for each use.
    if sum(times * len(members.get(used, b"")) for used, times in uses.items()) > LARGEST:
        raise InputError(f"'{file}' is not opened: unpacked it would be far too large.")
    return plan, members


def _alone(data: Any) -> Any:
    """The plan with every node on its own: an id could put one node in another's place."""
    if isinstance(data, list):
        return [_alone(part) for part in data]
    if not isinstance(data, dict):
        return data
    return {
        key: _alone(part)
        for key, part in data.items()
        if key != "__id__" or isinstance(part, dict)  # a user's own key of that name is a node
    }


def _pack(plan: Node, members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(PLAN, json.dumps(plan))
    return buffer.getvalue()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
