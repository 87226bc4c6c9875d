"""Which parts of a skops file may be built, though skops itself asks before it builds them.

skops asks about scikit-learn's trees, because a tree is an array of indices that are followed
without looking: a crafted one reads memory that is not its own. Here they are looked at first. A
file is vouched for only as far as its own plan (`schema.json`) says in the plainest way what our
stock classifiers say, number by number; whatever else is in it must be trusted by name.

Nothing is built or imported from the file here but arrays of numbers.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Node", "nodes", "shadowed", "vouched"]

Node: TypeAlias = dict[str, Any]
Members: TypeAlias = Mapping[str, bytes]

TREE = "sklearn.tree._tree.Tree"
PREDICTOR = "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"
OPTIMIZERS = "sklearn.neural_network._stochastic_optimizers."
# Estimators that hand rows to trees; each must say how many columns it checks rows for.
GROVES = (
    "sklearn.tree._classes.",
    "sklearn.ensemble._forest.",
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting.",
)
# And ensembles that ask their members as anybody would. Others reach into the trees themselves.
ASKING = ("_stacking.", "_voting.", "_weight_boosting.")
PROTOCOL = 2  # the version of skops' plans that is read here


class Place(NamedTuple):
    """A node of the plan and the estimators around it, outermost first."""

    node: Node
    around: tuple[Node, ...]


def nodes(plan: Any, around: tuple[Node, ...] = ()) -> Iterator[Place]:
    """Every node of a plan, with the objects it is part of."""
    if isinstance(plan, list):
        for part in plan:
            yield from nodes(part, around)
    elif isinstance(plan, dict):
        if is_node(plan):
            yield Place(plan, around)
            around = (*around, plan) if plan["__loader__"] == "ObjectNode" else around
        for part in plan.values():
            yield from nodes(part, around)


def is_node(data: Any) -> bool:
    """Whether this part of a plan is a thing to be built."""
    return isinstance(data, dict) and all(
        isinstance(data.get(key), str) for key in ("__loader__", "__class__", "__module__")
    )


def name(node: Node) -> str:
    """The type's full name, as skops and `trust` write it."""
    return f"{node['__module__']}.{node['__class__']}"


def vouched(plan: Node, members: Members) -> set[str]:
    """The types of which every single use in the plan is harmless, as far as we know them."""
    if plan.get("protocol") != PROTOCOL:
        return set()
    fine: dict[str, bool] = {}
    for place in nodes(plan):
        kind = name(place.node)
        check = _CHECKS.get(kind) or (_plain_object if kind.startswith(OPTIMIZERS) else None)
        if check is None or fine.get(kind) is False:
            continue
        try:
            fine[kind] = check(place, members)
        except (AttributeError, IndexError, KeyError, OSError, TypeError, ValueError):
            fine[kind] = False  # not written as skops writes it
    return {kind for kind, good in fine.items() if good}


def shadowed(plan: Node) -> str | None:
    """A method some scikit-learn object in the plan would have replaced by data, if there is one.

    Such an object is of a trusted type and does something else than its type does, for example not
    check its rows.
    """
    for node, _ in nodes(plan):
        if node["__loader__"] != "ObjectNode" or not node["__module__"].startswith("sklearn."):
            continue
        kind = getattr(importlib.import_module(node["__module__"]), node["__class__"], None)
        content = node.get("content")
        attributes = content.get("content") if isinstance(content, dict) else None
        for key in attributes if isinstance(attributes, dict) else ():
            if callable(getattr(kind, key, None)):
                return f"{name(node)}.{key}"
    return None


# ------------------------------------------------------------------------------------------------
# One check for each type. Each is handed a node of that name, and says whether it is harmless.


def _dtype(place: Place, _: Members) -> bool:
    """A dtype is read off an empty array."""
    inner = place.node["content"]
    return place.node["__loader__"] == "DTypeNode" and _is_array(inner)


def _plain_object(place: Place, _: Members) -> bool:
    """Python attributes that only training would look at."""
    return bool(place.node["__loader__"] == "ObjectNode")


def _call(place: Place, _: Members) -> bool:
    """One of the three calls our pipelines make; any other method may do anything."""
    attributes = place.node["attrs"]
    if place.node["__loader__"] != "OperatorFuncNode" or name(attributes) != "builtins.tuple":
        return False
    if attributes["__loader__"] != "TupleNode":
        return False
    match [_json(part) for part in attributes["content"]]:
        case ["to_pandas"]:
            return True
        case ["to_numpy", "object", False, float(missing)]:
            return missing != missing  # noqa: PLR0124  NaN
        case ["reshape", -1, int(width)]:
            return width > 0
    return False


def _tree(place: Place, members: Members) -> bool:
    """A decision tree whose every index points into itself, and downwards."""
    node = place.node
    arguments = node["__reduce__"]["args"]
    state = _inside(node)
    if node["__loader__"] != "TreeNode" or arguments["__loader__"] != "TupleNode" or state is None:
        return False
    if set(state) != {"max_depth", "node_count", "nodes", "values"}:
        return False
    features, classes, outputs = arguments["content"]
    width, count = _whole(_json(features)), _whole(_json(outputs))
    sizes, table = _array(classes, members), _array(state["nodes"], members)
    values = _array(state["values"], members)
    _whole(_json(state["max_depth"]))
    return (
        sizes.dtype == np.int64
        and sizes.shape == (count,)
        and count > 0
        and bool((sizes > 0).all())
        and table.ndim == 1
        and len(table) == _whole(_json(state["node_count"])) > 0
        and values.dtype == np.float64
        and values.shape == (len(table), count, sizes.max())
        and _downwards(
            table["left_child"],
            table["right_child"],
            table["feature"],
            table["left_child"] == -1,
            min(width, _columns(place.around)),
        )
    )


def _predictor(place: Place, members: Members) -> bool:
    """A tree of histogram boosting, without categorical splits."""
    state = _inside(place.node)
    if place.node["__loader__"] != "ObjectNode" or state is None:
        return False
    if set(state) != {"nodes", "binned_left_cat_bitsets", "raw_left_cat_bitsets"}:
        return False
    table = _array(state["nodes"], members)
    leaf = table["is_leaf"] != 0
    return (
        table.ndim == 1
        and len(table) > 0
        and not table["is_categorical"][~leaf].any()
        and _downwards(
            table["left"].astype(np.int64),
            table["right"].astype(np.int64),
            table["feature_idx"],
            leaf,
            _columns(place.around),
        )
        and _json((_inside(place.around[-1]) or {})["_preprocessor"]) is None
    )


_CHECKS: dict[str, Callable[[Place, Members], bool]] = {
    "numpy.dtype": _dtype,
    "operator.methodcaller": _call,
    TREE: _tree,
    PREDICTOR: _predictor,
}


def _downwards(
    left: NDArray[Any],
    right: NDArray[Any],
    feature: NDArray[Any],
    leaf: NDArray[np.bool_],
    columns: int,
) -> bool:
    """Children come after their parent, so that every walk ends, at a leaf of this tree."""
    own, inner = np.arange(len(leaf)), ~leaf
    below = [(side > own) & (side < len(leaf)) for side in (left, right)]
    known = (feature >= 0) & (feature < columns)
    return bool((below[0] & below[1] & known)[inner].all())


def _columns(around: tuple[Node, ...]) -> int:
    """The fewest columns that any estimator around a tree makes sure of."""
    groves = [node for node in around if name(node).startswith(GROVES)]
    others = {name(node).removeprefix("sklearn.ensemble.") for node in around}
    others = {n for n in others if n.startswith("_") and not n.startswith(ASKING)}
    if not groves or others - {name(n).removeprefix("sklearn.ensemble.") for n in groves}:
        raise ValueError("a tree in a place where it is not known how it is asked")
    return min(_whole(_json((_inside(node) or {})["n_features_in_"])) for node in groves)


# ------------------------------------------------------------------------------------------------
# Reading the plan


def _inside(node: Node) -> dict[str, Any] | None:
    """An object's attributes, where they are a plain dict with text keys."""
    content = node.get("content")
    if content is None or not is_node(content) or content["__loader__"] != "DictNode":
        return None
    keys = content["key_types"]
    if name(content) != "builtins.dict" or keys["__loader__"] != "ListNode":
        return None
    kinds = [(name(key), key["__loader__"]) for key in keys["content"]]
    inside: dict[str, Any] = content["content"]
    return inside if kinds == [("builtins.str", "TypeNode")] * len(inside) else None


def _json(node: Node) -> Any:
    if node["__loader__"] != "JsonNode":
        raise ValueError("not a plain value")
    return json.loads(node["content"])


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError("not a count")
    return value


def _is_array(node: Node) -> bool:
    return (
        node["__loader__"] == "NdArrayNode"
        and node["type"] == "numpy"
        and name(node) == "numpy.ndarray"
    )


def _array(node: Node, members: Members) -> NDArray[Any]:
    if not _is_array(node):
        raise ValueError("not an array")
    found: NDArray[Any] = np.load(io.BytesIO(members[node["file"]]), allow_pickle=False)
    return found
