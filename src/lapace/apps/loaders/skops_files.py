"""Classifiers in skops files: read without running code from the file, written atomically.

A file is unpacked within bounds, audited, and packed again in memory without cross-references
between its nodes (`__id__`): they let a small file describe an exponentially large object. The
memory a file takes is bounded before anything is built: bytes unpacked, archives in it (sparse
matrices) included, and the objects that its JSON would become.

skops audits files by type names. It does not trust scikit-learn's trees, because a tree is an array
of indices that prediction follows without bounds checks: a crafted one reads foreign memory. The
types that pipelines need are audited here by content instead. `_malformed_types` reads the arrays
that scikit-learn itself does not check while it builds a tree. Then skops builds the objects, and
`_unverified_types` inspects them before any of their methods is called. Some types that skops
trusts hand their arrays to native code all the same (`NATIVE`): they need trust.
"""

from __future__ import annotations

import gc
import io
import json
import operator
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Bools
from lapace.errors import InputError, first_line, import_extra
from lapace.files import VARIABLE, largest, unpack, write_whole

Node: TypeAlias = dict[str, Any]
Enclosing: TypeAlias = tuple[object, ...]

SCHEMA = "schema.json"
MEMBER = re.compile(r"[\w-]+\.(npy|npz|bin)")
NODE = 2_000  # bytes skops takes for each node of the schema, beside the JSON

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
# Types whose prediction or transformation runs native code on arrays it does not check.
NATIVE = (
    "sklearn.cluster.",
    "sklearn.decomposition._dict_learning",
    "sklearn.decomposition._lda",
    "sklearn.decomposition._nmf",
    "sklearn.decomposition._sparse_pca",
    "sklearn.manifold.",
    "sklearn.neighbors._classification",
    "sklearn.neighbors._graph",
    "sklearn.neighbors._lof",
    "sklearn.neighbors._regression",
    "sklearn.neighbors._unsupervised",
    *(f"sklearn.svm._classes.{name}" for name in ("NuSVC", "NuSVR", "OneClassSVM", "SVC", "SVR")),
)


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
        untrusted |= TREES & set(map(_type_name, nodes))
        _refuse(untrusted - _inspectable_types(protocol, nodes) - set(trust), file)
        _refuse(_malformed_types(nodes, members) - set(trust), file)
        model = skops_io.loads(packed, trusted=sorted(untrusted | set(trust)))
        _refuse(_unverified_types(model, nodes) - set(trust), file)
        if shadowed := _shadowed_method(model):
            raise InputError(f"'{file}' replaces {shadowed} by data, and is not loaded.")
        return model
    except InputError:
        raise
    except ImportError as error:
        raise InputError(
            f"'{file}' needs '{error.name}', which Python does not find here. Install it, or "
            "name its folder in PYTHONPATH."
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


# ------------------------------------------------------------------------------------------------
# Types that skops does not trust, and that may be harmless in a given file


def _type_name(node: Node) -> str:
    """Returns a node's type, as skops and `trust` write it."""
    return f"{node.get('__module__')}.{node.get('__class__')}"


def _inspectable_types(protocol: Any, nodes: Iterable[Node]) -> set[str]:
    """Returns the types that may be built to be inspected: each node names the loader of skops.

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


def _malformed_types(nodes: Iterable[Node], members: Mapping[str, bytes]) -> set[str]:
    """Returns the types of objects that crash scikit-learn while it builds them: trees.

    A tree takes its nodes for an array of one dimension, and as many as it says it has.

    Args:
        nodes: Every node of the file's `schema.json`.
        members: The file's other parts.
    """
    for node in nodes:
        if _type_name(node) == TREE and node["__loader__"] == "TreeNode":
            attributes = node["content"]
            rows, count = (attributes["content"][name] for name in ("nodes", "node_count"))
            loaders = [part["__loader__"] for part in (attributes, rows, count)]
            if loaders != ["DictNode", "NdArrayNode", "JsonNode"] or rows["type"] != "numpy":
                return {TREE}
            array = np.load(io.BytesIO(members[rows["file"]]), allow_pickle=False)
            if array.shape != (json.loads(count["content"]),):
                return {TREE}
    return set()


def _unverified_types(model: Any, nodes: Iterable[Node]) -> set[str]:
    """Returns the types with an object that is not known to be harmless.

    Args:
        model: The object that skops built.
        nodes: The nodes it was built from; each must be found in the model.
    """
    checks: dict[str, Any] = {
        TREE: _is_safe_tree,
        PREDICTOR: _is_safe_predictor,
        METHODCALLER: _is_known_call,
    }
    not_seen = Counter(name for name in map(_type_name, nodes) if name in checks)
    unverified = set()
    for part, enclosing in _parts(model):
        name = f"{type(part).__module__}.{type(part).__name__}"
        if name in checks:
            not_seen[name] -= 1
            try:
                safe = checks[name](part, enclosing)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError):
                safe = False  # not as scikit-learn makes it
            unverified |= set() if safe else {name}
        elif name.startswith(NATIVE):
            unverified.add(name)
    return unverified | {name for name, count in not_seen.items() if count != 0}


def _shadowed_method(model: Any) -> str | None:
    """Returns a method that some scikit-learn object replaces by an attribute, if there is one.

    Such an object has a trusted type and behaves otherwise, for example without checking rows.
    """
    for part, _ in _parts(model):
        kind = type(part)
        if kind.__module__.startswith("sklearn."):
            for key in getattr(part, "__dict__", ()):
                if callable(getattr(kind, key, None)):
                    return f"{kind.__module__}.{kind.__name__}.{key}"
    return None


def _parts(model: Any) -> Iterator[tuple[Any, Enclosing]]:
    """Yields every object reachable from the model, and the scikit-learn objects around it."""
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
# One check for each type: is this object harmless?


def _is_known_call(call: operator.methodcaller, _: Enclosing) -> bool:
    """Whether it is one of the three calls our pipelines make; others could do anything."""
    match call.__reduce__()[1]:
        case ("to_pandas",):
            return True
        case ("to_numpy", "object", False, float(missing)):
            return missing != missing  # noqa: PLR0124  NaN
        case ("reshape", -1, int(width)):
            return width > 0
    return False


def _is_safe_tree(tree: Any, enclosing: Enclosing) -> bool:
    """Whether every index of a decision tree points into the same tree, and downwards."""
    left, right = tree.children_left, tree.children_right
    columns = min(tree.n_features, _checked_columns(enclosing))
    return bool(
        tree.n_outputs > 0
        and tree.n_classes.min() > 0
        and _leads_to_leaves(left, right, tree.feature, left == -1, columns)
    )


def _is_safe_predictor(predictor: Any, enclosing: Enclosing) -> bool:
    """Whether a tree of histogram gradient boosting is safe, and has no categorical splits."""
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
    in_table = (feature >= 0) & (feature < columns)
    return len(leaf) > 0 and bool((below[0] & below[1] & in_table)[inner].all())


def _checked_columns(enclosing: Enclosing) -> int:
    """Returns the fewest columns that the estimators around a tree check rows for; else 0.

    Other ensembles use their trees themselves, past the checks of the estimators in between.
    """
    widths = []
    for part in enclosing:
        module = type(part).__module__
        if module in COLUMN_CHECKING:
            widths.append(vars(part)["n_features_in_"])
        elif module.startswith("sklearn.ensemble._"):
            return 0
    return min(widths, default=0) if all(type(width) is int for width in widths) else 0
