"""Classifiers in skops files: read without running code from the file, written atomically.

A file is unpacked within bounds, audited, and packed again in memory without cross-references
between its nodes (`__id__`): they let a small file describe an exponentially large object.

skops audits files by type names. It does not trust scikit-learn's trees, because a tree is an array
of indices that prediction follows without bounds checks: a crafted one reads foreign memory. Five
kinds of types that our pipelines need are audited here by content instead. skops builds them (which
calls nothing and is bounds-checked by scikit-learn), then `_unverified_types` inspects the finished
objects, before any of their methods is called.
"""

from __future__ import annotations

import gc
import io
import json
import operator
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools
from lapace.errors import InputError, first_line, import_extra
from lapace.table import write_whole

LARGEST = 2**31  # bytes that all arrays may unpack to, each counted as often as it is used
TIGHTEST = 200  # highest compression ratio, beyond the first few megabytes
SPARE = 2**26
SCHEMA = "schema.json"
MEMBER = re.compile(r"[\w-]+\.(npy|npz|bin)")

Node: TypeAlias = dict[str, Any]
Enclosing: TypeAlias = tuple[object, ...]

TREE = "sklearn.tree._tree.Tree"
PREDICTOR = "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"
METHODCALLER = "operator.methodcaller"
TREES = frozenset({TREE, PREDICTOR})  # audited whether or not skops trusts them
PROTOCOL = 2  # the version of skops' format that is read here
# The loader that skops writes for each type; another one could build something else by that name.
LOADERS = {
    TREE: "TreeNode",
    PREDICTOR: "ObjectNode",
    METHODCALLER: "OperatorFuncNode",
    "numpy.dtype": "DTypeNode",
}
OPTIMIZERS = "sklearn.neural_network._stochastic_optimizers."  # plain attributes, for training only

# Estimators that pass rows to trees after checking the number of columns against n_features_in_.
COLUMN_CHECKING = {
    "sklearn.tree._classes",
    "sklearn.ensemble._forest",
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting",
}
# Ensembles that only call their members' predict methods. Others use the trees themselves.
DELEGATING = {f"sklearn.ensemble.{name}" for name in ("_stacking", "_voting", "_weight_boosting")}


def read_skops(data: bytes, file: str, trust: Sequence[str] = ()) -> Any:
    """The model in a skops file.

    Args:
        data: The file's content.
        file: Its name, for error messages.
        trust: Full names of types that may be built beside those known to be harmless.
    """
    skops_io = import_extra("skops.io", "skops", "A .skops file")
    try:
        packed, protocol, nodes = _repack(data, file)
        untrusted = set(skops_io.get_untrusted_types(data=packed))
        untrusted |= TREES & set(map(_type_name, nodes))
        _refuse(untrusted - _inspectable_types(protocol, nodes) - set(trust), file)
        model = skops_io.loads(packed, trusted=sorted(untrusted | set(trust)))
        _refuse(_unverified_types(model, nodes) - set(trust), file)
        if shadowed := _shadowed_method(model):
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
            "Write it again with lapace.classifiers.save_classifier or skops.io.dump."
        ) from error


def save_classifier(model: Any, path: str | PathLike[str]) -> None:
    """Writes a scikit-learn model as a `.skops` file, atomically.

    Args:
        model: What `train` returns, or any model skops supports.
        path: Ends in `.skops`; an existing file is replaced.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> from sklearn.linear_model import LogisticRegression
        >>> from lapace.classifiers import load_classifier
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


def _repack(data: bytes, file: str) -> tuple[bytes, Any, list[Node]]:
    """The file without cross-references, its format's version, and every node of its schema."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        names = [entry.filename for entry in entries]
        unexpected = [name for name in names if name != SCHEMA and not MEMBER.fullmatch(name)]
        if SCHEMA not in names or unexpected or len(set(names)) < len(names):
            raise InputError(f"'{file}' is not a skops file.")
        too_large = InputError(f"'{file}' is not loaded: unpacked it would be far too large.")
        if sum(entry.file_size for entry in entries) > min(LARGEST, SPARE + TIGHTEST * len(data)):
            raise too_large
        if any(e.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for e in entries):
            raise InputError(f"'{file}' is compressed by a method that skops does not use.")
        members = {}
        for entry in entries:
            with archive.open(entry) as part:  # never more than was declared
                members[entry.filename] = part.read(entry.file_size)
    nodes: list[Node] = []

    def without_reference(part: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(part.get("__id__"), dict):  # a user's key of that name is a node
            part.pop("__id__", None)
        if "__loader__" in part:
            nodes.append(part)
        return part

    schema = json.loads(members[SCHEMA], object_hook=without_reference)
    uses = Counter(node["file"] for node in nodes if isinstance(node.get("file"), str))
    if sum(times * len(members.get(used, b"")) for used, times in uses.items()) > LARGEST:
        raise too_large
    members[SCHEMA] = json.dumps(schema).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return buffer.getvalue(), schema["protocol"], nodes


# ------------------------------------------------------------------------------------------------
# Which of the types that skops does not trust are harmless in a given file


def _type_name(node: Node) -> str:
    """A node's type, as skops and `trust` write it."""
    return f"{node.get('__module__')}.{node.get('__class__')}"


def _inspectable_types(protocol: Any, nodes: Iterable[Node]) -> set[str]:
    """The types that may be built to be inspected: in every node with the loader skops uses.

    Args:
        protocol: The version of the file's format.
        nodes: Every node of the file's `schema.json`.
    """
    if protocol != PROTOCOL:
        return set()
    used: dict[str, set[Any]] = {}
    for node in nodes:
        used.setdefault(_type_name(node), set()).add(node["__loader__"])
    expected = {name: "ObjectNode" for name in used if name.startswith(OPTIMIZERS)} | LOADERS
    return {name for name, loader in expected.items() if used.get(name) == {loader}}


def _unverified_types(model: Any, nodes: Iterable[Node]) -> set[str]:
    """The inspected types of which some object is not known to be harmless.

    Args:
        model: What skops built.
        nodes: The nodes it was built from; each must be found in the model.
    """
    checks = {TREE: _is_safe_tree, PREDICTOR: _is_safe_predictor, METHODCALLER: _is_known_call}
    left = Counter(name for name in map(_type_name, nodes) if name in checks)
    unverified = set()
    for part, enclosing in _parts(model):
        name = f"{type(part).__module__}.{type(part).__name__}"
        if name in checks:
            left[name] -= 1
            try:
                safe = checks[name](part, enclosing)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError):
                safe = False  # not as scikit-learn makes it
            unverified |= set() if safe else {name}
    return unverified | {name for name, count in left.items() if count != 0}


def _shadowed_method(model: Any) -> str | None:
    """A method of a scikit-learn object that an attribute of the same name replaces, if any.

    Such an object is of a trusted type and behaves otherwise, for example without checking rows.
    """
    for part, _ in _parts(model):
        kind = type(part)
        if kind.__module__.startswith("sklearn."):
            for key in getattr(part, "__dict__", ()):
                if callable(getattr(kind, key, None)):
                    return f"{kind.__module__}.{kind.__name__}.{key}"
    return None


def _parts(model: Any) -> Iterator[tuple[Any, Enclosing]]:
    """Every object reachable from the model, with the scikit-learn objects that enclose it."""
    stack: list[tuple[Any, Enclosing]] = [(model, ())]
    seen: set[int] = set()
    while stack:
        part, enclosing = stack.pop()
        if id(part) in seen or isinstance(part, type | ModuleType | FunctionType):
            continue
        seen.add(id(part))
        yield part, enclosing
        if type(part).__module__.startswith("sklearn."):
            enclosing = (*enclosing, part)
        if isinstance(part, np.ndarray):  # which the garbage collector does not look into
            inside = part.ravel().tolist() if part.dtype.hasobject else []
        else:
            inside = gc.get_referents(part)
        stack += [(child, enclosing) for child in inside]


# ------------------------------------------------------------------------------------------------
# One check per type: is this object harmless?


def _is_known_call(call: operator.methodcaller, _: Enclosing) -> bool:
    """One of the three calls our pipelines make; another method could do anything."""
    match call.__reduce__()[1]:
        case ("to_pandas",):
            return True
        case ("to_numpy", "object", False, float(missing)):
            return missing != missing  # noqa: PLR0124  NaN
        case ("reshape", -1, int(width)):
            return width > 0
    return False


def _is_safe_tree(tree: Any, enclosing: Enclosing) -> bool:
    """A decision tree whose every index points into itself, and downwards."""
    left, right = tree.children_left, tree.children_right
    columns = min(tree.n_features, _checked_columns(enclosing))
    return bool(
        tree.n_outputs > 0
        and tree.n_classes.min() > 0
        and _leads_to_leaves(left, right, tree.feature, left == -1, columns)
    )


def _is_safe_predictor(predictor: Any, enclosing: Enclosing) -> bool:
    """A tree of histogram gradient boosting, without categorical splits."""
    state = vars(predictor)
    if set(state) != {"nodes", "binned_left_cat_bitsets", "raw_left_cat_bitsets"}:
        return False
    nodes = state["nodes"]
    leaf = nodes["is_leaf"] != 0
    left, right = (nodes[side].astype(np.int64) for side in ("left", "right"))
    return bool(
        type(nodes) is np.ndarray
        and nodes.ndim == 1
        and not nodes["is_categorical"][~leaf].any()
        and vars(enclosing[-1])["_preprocessor"] is None
        and _leads_to_leaves(left, right, nodes["feature_idx"], leaf, _checked_columns(enclosing))
    )


def _leads_to_leaves(
    left: NDArray[Any], right: NDArray[Any], feature: NDArray[Any], leaf: Bools, columns: int
) -> bool:
    """Whether children come after their parent, so that every path ends at a leaf of this tree."""
    position, inner = np.arange(len(leaf)), ~leaf
    below = [(side > position) & (side < len(leaf)) for side in (left, right)]
    known = (feature >= 0) & (feature < columns)
    return len(leaf) > 0 and bool((below[0] & below[1] & known)[inner].all())


def _checked_columns(enclosing: Enclosing) -> int:
    """The fewest columns that any estimator around a tree checks rows for; 0 if none is known."""
    widths = []
    for part in enclosing:
        module = type(part).__module__
        if module in COLUMN_CHECKING:
            widths.append(vars(part)["n_features_in_"])
        elif module.startswith("sklearn.ensemble._") and module not in DELEGATING:
            return 0
    return min(widths, default=0) if all(type(width) is int for width in widths) else 0
