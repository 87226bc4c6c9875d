"""Small networks and small forests, each fitted on its own bootstrap sample of the rows.

All networks are evaluated as one batched product, all trees as arrays in the order of a heap, so
that 20 members cost little more than one and are kept in a file as plain arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier

from lapace.arrays import Floats, Ints, batches
from lapace.explainer.networks import Float32s, Networks, Schedule, agree
from lapace.schema import Schema

__all__ = ["Ensemble"]

ROWS = 12_000  # training rows used, at most; of every label as large a share, or 50
NETWORKS = 10
# Twelve passes: longer ones follow the labels' noise, and say less of what a retrained model does.
TRAINING = Schedule(hidden=32, epochs=12, steps=(150, 900), batch=256, rate=5e-3)
FORESTS, TREES, DEPTH = 10, 4, 7
CELLS = 2_000_000  # encoded cells evaluated at once
NODES = 16_000  # nodes looked up at once, as many as a processor's cache holds


@dataclass(frozen=True, eq=False)
class Ensemble:
    """An ensemble of small networks and small forests.

    Attributes:
        networks: The networks.
        feature: What each inner node of a tree compares, (forests, trees, 2**depth - 1), in the
            order of a heap: the children of node k are 2k + 1 and 2k + 2.
        threshold: A row goes to the second child where its value is larger.
        leaf: Probabilities of the labels, (forests, trees, 2**depth, labels).

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(300, 2))
        >>> schema = Schema.infer(rows)
        >>> codes = (rows[:, 0] > 0).astype(np.int64)
        >>> ensemble = Ensemble.fit(schema, rows, codes, 2, random_state=0)
        >>> probability = ensemble.probability(schema, np.array([[-1.0, 0.0], [1.0, 0.0]]))
        >>> probability.shape, probability.mean(axis=0).round().tolist()
        ((20, 2, 2), [[1.0, 0.0], [0.0, 1.0]])
    """

    networks: Networks
    feature: NDArray[np.int32]
    threshold: Float32s
    leaf: Float32s

    @classmethod
    def fit(
        cls, schema: Schema, cells: Floats, codes: Ints, n_labels: int, *, random_state: int
    ) -> Ensemble:
        """Fits every member on its own bootstrap sample of some of the rows.

        Args:
            schema: The columns.
            cells: The rows.
            codes: Their labels, as positions.
            n_labels: How many labels there are.
            random_state: Seed of everything random.
        """
        rng = np.random.default_rng(random_state)
        chosen = _stratified(codes, n_labels, rng)
        x = schema.encode(cells[chosen]).astype(np.float32)
        samples = rng.integers(0, len(x), (NETWORKS + FORESTS, len(x)))  # (members, n)
        own = samples[:NETWORKS]
        networks = Networks.fit(
            x, codes[chosen], own, n_labels, TRAINING, random_state=random_state
        )
        others = samples[NETWORKS:]
        trees = _forests(x, others, codes[chosen][others], n_labels, random_state)
        return cls(networks, *trees)

    @property
    def n_labels(self) -> int:
        """How many labels there are."""
        return int(self.leaf.shape[-1])

    def probability(self, schema: Schema, cells: Floats) -> Floats:
        """Each member's probability of each label, (members, rows, labels).

        Args:
            schema: The columns; it may name levels unseen in training, which are then no level.
            cells: The rows.
        """
        return self.probability_of_encoded(schema.encode(cells))

    def probability_of_encoded(self, x: NDArray[np.floating[Any]]) -> Floats:
        """The same for rows as `Schema.encode` makes them, of which a search replaces columns."""
        networks, forests, labels = len(self.networks), len(self.feature), self.n_labels
        found = np.empty((networks + forests, len(x), labels))
        widest = networks * TRAINING.hidden + self.feature[..., 0].size * (DEPTH + 1)
        for part in batches(len(x), CELLS, widest):
            rows = np.ascontiguousarray(x[part], dtype=np.float32)
            found[:networks, part] = self.networks.probability(rows)
            found[networks:, part] = self._forests(rows)
        return found

    def guess(self, schema: Schema, cells: Floats) -> Floats:
        """The mean probability of each label by the networks alone, (rows, labels)."""
        x = schema.encode(cells).astype(np.float32)
        found = np.empty((len(x), self.n_labels))
        for part in batches(len(x), CELLS, len(self.networks) * TRAINING.hidden):
            found[part] = self.networks.probability(x[part]).mean(axis=0)
        return found

    def _forests(self, x: Float32s) -> Float32s:
        forests, trees, inner = self.feature.shape
        feature, threshold, leaf = self._heaps
        tree = np.arange(forests * trees)[:, None]
        found = np.empty((forests, len(x), self.n_labels), dtype=np.float32)
        for part in batches(len(x), NODES, len(tree)):
            values = np.ascontiguousarray(x[part])
            row = np.arange(len(values)) * values.shape[1]
            values = values.ravel()
            at = np.tile(tree * inner, len(row))  # (trees of all, n), places in all heaps
            for _ in range(DEPTH):
                beyond = values.take(feature.take(at) + row) > threshold.take(at)
                at *= 2
                at += 1 - tree * inner
                at += beyond
            each = leaf.take(at + (tree - inner), axis=0)
            found[:, part] = each.reshape(forests, trees, len(row), -1).mean(axis=1)
        return found

    @cached_property
    def _heaps(self) -> tuple[Ints, Float32s, Float32s]:
        """All trees one after the other: what nodes compare, and the leaves."""
        leaves = self.leaf.reshape(-1, self.n_labels)
        return self.feature.ravel().astype(np.int64), self.threshold.ravel(), leaves

    # -- as arrays --------------------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """As plain arrays by name, for a file."""
        trees = {name: getattr(self, name) for name in TREE_PARTS}
        return {**self.networks.arrays(), **trees}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], width: int, n_labels: int) -> Ensemble:
        """The inverse of `arrays`; a ValueError where they are not those of such an ensemble.

        Args:
            arrays: By name.
            width: Of an encoded row.
            n_labels: How many labels there are.
        """
        inner = 2**DEPTH - 1
        shapes = Networks.shapes(NETWORKS, width, TRAINING.hidden, n_labels) | {
            "feature": (FORESTS, TREES, inner),
            "threshold": (FORESTS, TREES, inner),
            "leaf": (FORESTS, TREES, inner + 1, n_labels),
        }
        fits = agree(arrays, shapes, whole=("feature",)) and bool(
            (arrays["feature"] >= 0).all() and (arrays["feature"] < width).all()
        )
        if not fits:
            raise ValueError("an ensemble does not fit the columns")
        return cls(Networks.from_arrays(arrays), *(arrays[name] for name in TREE_PARTS))


TREE_PARTS = ("feature", "threshold", "leaf")


def _stratified(codes: Ints, n_labels: int, rng: np.random.Generator) -> Ints:
    """Positions of at most about `ROWS` rows, no label losing its last 50."""
    share = min(1.0, ROWS / len(codes))
    parts = []
    for k in range(n_labels):
        members = rng.permutation(np.flatnonzero(codes == k))
        parts.append(members[: max(50, round(share * len(members)))])
    return np.sort(np.concatenate(parts))


# ------------------------------------------------------------------------------------------------
# Forests: scikit-learn's, written out as complete binary trees


def _forests(
    x: Float32s, samples: Ints, labels: Ints, n_labels: int, random_state: int
) -> tuple[NDArray[np.int32], Float32s, Float32s]:
    count, inner = len(samples), 2**DEPTH - 1
    feature = np.zeros((count, TREES, inner), dtype=np.int32)
    threshold = np.zeros((count, TREES, inner), dtype=np.float32)
    leaf = np.zeros((count, TREES, inner + 1, n_labels), dtype=np.float32)
    for k, (sample, label) in enumerate(zip(samples, labels, strict=True)):
        forest = RandomForestClassifier(
            TREES, max_depth=DEPTH, min_samples_leaf=2, random_state=random_state + k
        ).fit(x[sample], label)
        for t, estimator in enumerate(forest.estimators_):
            nodes = _complete(estimator.tree_, feature[k, t], threshold[k, t])
            value = estimator.tree_.value[nodes, 0]  # (leaves, known labels)
            leaf[k, t][:, forest.classes_] = value / value.sum(axis=1, keepdims=True)
    return feature, threshold, leaf


def _complete(tree: Any, feature: NDArray[np.int32], threshold: Float32s) -> Ints:
    """Writes the inner nodes out level by level; the tree's node at each place of the last level.

    Below a leaf all rows go on to the first child.
    """
    nodes, done = np.zeros(1, dtype=np.int64), 0
    while done < len(feature):
        inside, level = tree.children_left[nodes] >= 0, slice(done, done + len(nodes))
        feature[level] = np.where(inside, tree.feature[nodes], 0)
        threshold[level] = np.where(inside, tree.threshold[nodes], np.finfo(np.float32).max)
        children = np.stack([tree.children_left[nodes], tree.children_right[nodes]])
        done += len(nodes)
        nodes = np.where(inside, children, nodes).T.ravel()
    return nodes
