r"""The joint choice of categories: which combination belongs together.

Choosing every category column on its own leaves the data manifold: a row is decoded as a husband
who is not married. Here the columns are chosen together. Per class a Chow-Liu tree holds the
pairwise frequencies of that class's rows,

$$\log p(x) = \sum_j \log p(x_j \mid x_{\text{parent}(j)}),$$

and gives the probability of a combination (`log_probability`), how typical that is for the class
(`quantile`), and the combination that maximises given scores, say a decoder's, plus the tree's
log-probability (`choose`: exact max-sum, with fixed columns as evidence).

A column is a number of categories, a row a tuple of codes 0 .. width - 1. A code outside that range
is a category unseen in the class. It costs its column a fixed floor and *cuts* the tree there: it
carries no information to its parent or its children, and each child falls back on its marginal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lapace.arrays import Floats, Ints, batches
from lapace.errors import InputError

__all__ = ["CategoryTree"]


# Pseudo-rows per cell of a table. On the full adult table (50 to 5,000 training rows a class) 0.1
# and 0.2 explained held-out rows best, and rows drawn with 0.1 held fewer pairs that never occur. A
# whole pseudo-row per cell drowns the rare categories of a 42 x 16 table.
_SMOOTHING = 0.1
# Mutual informations that agree to this many decimals are ties, whatever the order of summation.
_DECIMALS = 10
# Two combinations whose log-probabilities differ by less than this are equally typical.
_SAME = 1e-9
_QUANTILES = 1024
# Row chunks: long enough for numpy's loops to pay, and no buffer larger than these bytes.
_CHUNK_ROWS = 4096
_CHUNK_BYTES = 16 * 2**20


@dataclass(frozen=True, eq=False)
class CategoryTree:
    """A Chow-Liu tree over one class's category columns (a forest where some are unrelated).

    Attributes:
        widths: How many categories each of the b columns has.
        parents: The parent of each column, -1 at a root. (b,)
        order: The columns with parents before children. (b,)
        tables: Per column log p(child | parent), (parent width, width); at a root (1, width).
        floors: Per column the log-probability of a code outside 0 .. width - 1. (b,)
        typical: Sorted log-probabilities of the training rows, at most 1,024 of them.

    Examples:
        >>> import numpy as np
        >>> rows = np.array([[0, 0], [0, 0], [0, 0], [1, 1], [1, 1]])  # married, husband
        >>> tree = CategoryTree.fit(rows, widths=(2, 2))
        >>> tree.parents.tolist()
        [-1, 0]
        >>> tree.quantile(np.array([[0, 0], [1, 1], [0, 1]])).tolist()
        [1.0, 0.4, 0.0]
        >>> decoder = np.log([[0.6, 0.4, 0.2, 0.8]])  # alone: 0, then 1; together: 1 and 1
        >>> tree.choose(decoder).tolist()
        [[1, 1]]
        >>> tree.choose(decoder, evidence=np.array([[0, -1]])).tolist()
        [[0, 0]]
    """

    widths: tuple[int, ...]
    parents: Ints
    order: Ints
    tables: tuple[Floats, ...]
    floors: Floats
    typical: Floats

    def __post_init__(self) -> None:
        """Refuses a tree whose parts do not fit together, such as one from a damaged file."""
        shapes = _table_shapes(self.widths, self.parents, self.order)
        if tuple(table.shape for table in self.tables) != shapes:
            raise _damaged("its tables do not have the shapes its widths and parents require")
        if self.floors.shape != (len(self.widths),) or self.typical.ndim != 1:
            raise _damaged("its floors or its typical log-probabilities have the wrong shape")
        numbers = (*self.tables, self.floors, self.typical)
        if not all(np.isfinite(part).all() for part in numbers):
            raise _damaged("some of its numbers are not finite")
        if np.any(np.diff(self.typical) < 0):
            raise _damaged("its typical log-probabilities are not sorted")

    @classmethod
    def fit(
        cls, codes: NDArray[Any], widths: Sequence[int], *, smoothing: float = _SMOOTHING
    ) -> CategoryTree:
        """Learn the tree from one class's rows.

        The structure is the maximum spanning forest of the pairwise mutual informations, each less
        its chance value (r - 1)(s - 1) / 2n for r and s categories seen: without that, in small
        classes wide columns look related to everything. Pairs with nothing left stay apart.

        Args:
            codes: The rows. (n, b) A code outside 0 .. width - 1, such as -1 for a missing cell,
                is left out of the counts of its column.
            widths: How many categories each column has.
            smoothing: Pseudo-rows added to every cell of every table (Laplace), above 0.

        Returns:
            The tree, with the log-probabilities of these rows as `typical`.

        Raises:
            InputError: If the codes do not fit the widths, or the smoothing is not above 0.

        Examples:
            >>> import numpy as np
            >>> tree = CategoryTree.fit(np.array([[0], [0], [1]]), widths=(2,), smoothing=1.0)
            >>> np.exp(tree.tables[0]).round(2).tolist()  # (2 + 1) / (3 + 2) and (1 + 1) / (3 + 2)
            [[0.6, 0.4]]
        """
        widths = tuple(int(width) for width in widths)
        if any(width < 1 for width in widths):
            raise InputError(
                f"A category column needs at least one category, but the widths are {widths}. "
                "Leave empty columns out."
            )
        if not 0.0 < smoothing < np.inf:
            raise InputError(
                f"smoothing is {smoothing}, but it has to be a number above 0, "
                f"such as {_SMOOTHING}."
            )
        codes = _as_codes(codes, len(widths), "codes")  # (n, b)
        counts = _pair_counts(codes, widths)  # (W, W)
        parents, order = _spanning_forest(_information(counts, widths, len(codes)))
        starts = _starts(widths)
        tables = []
        for start, width, parent in zip(starts, widths, parents, strict=True):
            above = slice(starts[parent], starts[parent] + widths[parent])
            table = counts[above] if parent >= 0 else np.diag(counts)[None]
            tables.append(_log_shares(table[:, start : start + width] + smoothing))
        known = np.add.reduceat(np.diag(counts), starts)  # (b,) rows with a known code
        floors = np.log(smoothing / (known + smoothing * np.array(widths, dtype=np.float64)))
        tree = cls(widths, parents, order, tuple(tables), floors, typical=np.empty(0))
        return replace(tree, typical=_compress(tree.log_probability(codes)))

    def log_probability(self, codes: NDArray[Any]) -> Floats:
        r"""The tree's $\log p$ of each row.

        A code outside 0 .. width - 1 gets its column's floor, what a known category without a
        single row would get at a root; its children get their marginal probability.

        Args:
            codes: The rows. (n, b)

        Returns:
            One number per row. (n,)

        Examples:
            >>> import numpy as np
            >>> tree = CategoryTree.fit(np.array([[0], [0], [1]]), widths=(2,), smoothing=1.0)
            >>> np.exp(tree.log_probability(np.array([[0], [1], [7]]))).round(2).tolist()
            [0.6, 0.4, 0.2]
        """
        clipped = self._clip(_as_codes(codes, len(self.widths), "codes").T)  # (b, n)
        total = np.zeros(clipped.shape[1])  # (n,)
        for j in self.order:
            parent = self.parents[j]
            above = clipped[parent] if parent >= 0 else 0
            total += self._extended[j][above, clipped[j]]
        return total

    def quantile(self, codes: NDArray[Any]) -> Floats:
        """The share of training rows that are no more typical than each row.

        `quantile(codes) >= 0.05` says that a row's log-probability reaches the 5 % quantile of the
        training rows. Ties count as reached, so the most frequent combination always has 1, even
        where nearly every training row has it.

        Args:
            codes: The rows. (n, b)

        Returns:
            Shares from 0 (rarer than every training row, or no training rows at all) to 1. (n,)

        Examples:
            >>> import numpy as np
            >>> tree = CategoryTree.fit(np.array([[0], [0], [0], [1]]), widths=(2,))
            >>> tree.quantile(np.array([[0], [1], [-1]])).tolist()
            [1.0, 0.25, 0.0]
        """
        found = self.log_probability(codes)  # (n,)
        reached = np.searchsorted(self.typical, found + _SAME, side="right")
        return reached / max(1, len(self.typical))

    def choose(
        self,
        scores: NDArray[Any],
        evidence: NDArray[Any] | None = None,
        weight: float = 1.0,
    ) -> Ints:
        r"""The best combination for each row, exactly.

        $$\arg\max_x \; \sum_j \text{scores}_j[x_j] + \text{weight} \cdot \log p(x)$$

        over all combinations that agree with the evidence, by max-sum from the leaves to the roots
        and back. Ties go to the lowest code, column by column in `order`. A row's result does not
        depend on the rows beside it.

        Args:
            scores: One block of columns per category column, in order, such as a decoder's
                log-probabilities. (n, sum of widths) -inf forbids a category; where a whole block
                is forbidden there is no best choice and its tree's free columns get any.
            evidence: Codes to keep, negative where free. (n, b) A kept column's scores do not
                count. A code unknown to the tree (width or more) stays as it is and carries no
                information to its neighbours.
            weight: How much the tree counts, 0 or more; with 0 every free column is chosen alone.

        Returns:
            One code per row and column. (n, b)

        Raises:
            InputError: If a shape does not fit, or a score is NaN or +inf.

        Examples:
            >>> import numpy as np
            >>> tree = CategoryTree.fit(np.array([[0, 1], [0, 1], [1, 0]]), widths=(2, 2))
            >>> tree.choose(np.zeros((1, 4))).tolist()
            [[0, 1]]
            >>> tree.choose(np.zeros((1, 4)), evidence=np.array([[-1, 0]])).tolist()
            [[1, 0]]
            >>> tree.choose(np.zeros((1, 4)), evidence=np.array([[9, -1]])).tolist()
            [[9, 1]]
        """
        scores = self._check_scores(np.asarray(scores))
        if not 0.0 <= weight < np.inf:
            raise InputError(f"weight is {weight}, but it has to be a number of at least 0.")
        kept = np.full((len(scores), len(self.widths)), -1, dtype=np.int64)
        if evidence is not None:
            kept = _as_codes(evidence, len(self.widths), "evidence")
            if len(kept) != len(scores):
                raise InputError(
                    f"evidence has {len(kept)} rows and scores {len(scores)}: give one for each."
                )
        weighted = tuple(weight * table for table in self._extended)
        chosen = np.empty(kept.shape, dtype=np.int64)
        widest = max(self.widths, default=1)
        for part in batches(len(scores), min(_CHUNK_ROWS, _CHUNK_BYTES // (8 * widest))):
            chosen[part] = self._max_sum(scores[part], kept[part].T, weighted).T
        return chosen

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The tree as a few flat arrays, to be saved; `from_arrays` reads them back.

        Examples:
            >>> import numpy as np
            >>> sorted(CategoryTree.fit(np.array([[0], [1]]), widths=(2,)).to_arrays())
            ['floors', 'order', 'parents', 'tables', 'typical', 'widths']
        """
        flat = [table.ravel() for table in self.tables]
        return {
            "widths": np.array(self.widths, dtype=np.int64),
            "parents": self.parents,
            "order": self.order,
            "tables": np.concatenate([np.empty(0), *flat]),
            "floors": self.floors,
            "typical": self.typical,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> CategoryTree:
        """The tree that `to_arrays` took apart, bit for bit.

        Raises:
            InputError: If an array is missing or they do not fit together.

        Examples:
            >>> import numpy as np
            >>> tree = CategoryTree.fit(np.array([[0, 1], [1, 0]]), widths=(2, 2))
            >>> again = CategoryTree.from_arrays(tree.to_arrays())
            >>> again.widths, np.array_equal(again.tables[1], tree.tables[1])
            ((2, 2), True)
        """
        kinds: dict[str, Any] = dict.fromkeys(("widths", "parents", "order"), np.int64)
        kinds |= dict.fromkeys(("tables", "floors", "typical"), np.float64)
        if absent := [name for name in kinds if name not in arrays]:
            raise _damaged(f"{', '.join(absent)} missing")
        parts: dict[str, Any]
        parts = {name: np.array(arrays[name], dtype=kind) for name, kind in kinds.items()}
        parts["widths"] = widths = tuple(parts["widths"].ravel().tolist())
        shapes = _table_shapes(widths, parts["parents"], parts["order"])
        sizes = [rows * columns for rows, columns in shapes]
        if parts["tables"].shape != (sum(sizes),):
            raise _damaged(f"its tables should hold {sum(sizes)} numbers")
        flat = np.split(parts["tables"], np.cumsum(sizes, dtype=np.int64)[:-1]) if sizes else []
        parts["tables"] = tuple(t.reshape(shape) for t, shape in zip(flat, shapes, strict=True))
        return cls(**parts)

    @cached_property
    def _extended(self) -> tuple[Floats, ...]:
        """The tables with one more row (parent unknown) and one more column (code unknown).

        The last row is the child's marginal, the last column its floor in every row: constant, so
        that an unknown code says nothing about its parent. At a root there is no row to add.
        """
        marginals: dict[int, Floats] = {}
        extended: dict[int, Floats] = {}
        for j in self.order.tolist():
            parent, table = int(self.parents[j]), self.tables[j]
            if parent >= 0:
                marginal = np.logaddexp.reduce(marginals[parent][:, None] + table, axis=0)
                table = np.vstack([table, marginal])  # (parent width + 1, width)
            marginals[j] = table[-1]  # (width,)
            extended[j] = np.pad(table, ((0, 0), (0, 1)), constant_values=self.floors[j])
        return tuple(extended[j] for j in range(len(self.widths)))

    def _clip(self, codes: Ints) -> Ints:
        """Codes (b, n) with every unknown one moved to its column's width."""
        widths = np.array(self.widths, dtype=np.int64)[:, None]
        return np.where((codes < 0) | (codes >= widths), widths, codes)

    def _check_scores(self, scores: NDArray[Any]) -> NDArray[Any]:
        """The scores, if they have a finite or -inf number for every category."""
        if scores.ndim != 2 or scores.shape[1] != sum(self.widths):
            raise InputError(
                f"scores has shape {scores.shape}, but the columns have {sum(self.widths)} "
                "categories together: give one score per row and category."
            )
        if not np.all(scores < np.inf):
            row = int(np.flatnonzero(~np.all(scores < np.inf, axis=1))[0])
            raise InputError(
                f"scores has a NaN or +inf in row {row}. Give finite scores, or -inf to forbid."
            )
        return scores

    def _max_sum(self, scores: NDArray[Any], kept: Ints, tables: tuple[Floats, ...]) -> Ints:
        """`choose` for one chunk of rows: kept and result are (b, n), tables already weighted."""
        # Rows last: every step below then runs along long contiguous lines.
        lines = scores.T.astype(np.float64, order="C")  # (sum of widths, n)
        blocks = np.split(lines, _starts(self.widths)[1:])
        for j in self.order[::-1]:
            parent = self.parents[j]
            if parent >= 0 and np.any(kept[parent] < 0):
                blocks[parent] += _message(blocks[j], kept[j], tables[j][:-1])
        chosen = self._clip(kept)  # (b, n), free columns filled in below
        for j in self.order:
            free = kept[j] < 0
            if not free.any():
                continue
            parent = self.parents[j]
            prior = tables[j][:, :-1].T  # (width, parent width + 1), (width, 1) at a root
            if parent >= 0:
                prior = prior.take(chosen[parent], axis=1)  # (width, n)
            best = (blocks[j] + prior).argmax(axis=0)  # (n,), the lowest code among equals
            chosen[j] = np.where(free, best, chosen[j])
        return np.where(kept < 0, chosen, kept)


def _message(block: Floats, kept: Ints, table: Floats) -> Floats:
    """The value of a column's best choice under each code of its parent: (parent width, n).

    A kept column has no choice: its message is its column of the table, up to a constant, and the
    table's last column, all floor, where its code is unknown.
    """
    rows = np.flatnonzero(kept >= 0)
    fixed = table.take(np.minimum(kept[rows], len(block)), axis=1)  # (parent width, rows kept)
    if len(rows) == len(kept):
        return fixed
    best = _best_child(block, table[:, :-1])
    best[:, rows] = fixed
    return best


def _best_child(block: Floats, table: Floats) -> Floats:
    """The max over c of block[c] + table[p, c], for every parent code p: (parent width, n).

    One child code at a time, so that no (n, parent width, width) cube is ever made: six times
    faster than the cube, too.
    """
    best: Floats = table[:, :1] + block[0]  # (parent width, n)
    other = np.empty_like(best)
    for code in range(1, len(block)):
        np.add(table[:, code, None], block[code], out=other)
        np.maximum(best, other, out=best)
    return best


def _starts(widths: tuple[int, ...]) -> Ints:
    """Where each column's categories start among all of them, (b,)."""
    return np.cumsum((0, *widths), dtype=np.int64)[:-1]


def _pair_counts(codes: Ints, widths: tuple[int, ...]) -> Floats:
    """Every pair's contingency table at once: H'H of the one-hot rows H, (W, W).

    Rows where a pair has an unknown code do not count for that pair.
    """
    total = sum(widths)
    counts = np.zeros((total, total))
    known = (codes >= 0) & (codes < np.array(widths, dtype=np.int64))  # (n, b)
    for rows in batches(len(codes), _CHUNK_BYTES, 4 * total):
        part, mask = codes[rows], known[rows]
        # float32 counts are exact: a chunk has fewer than 2**24 rows
        hot = np.zeros((len(part), total), dtype=np.float32)  # (rows, W)
        hot[np.nonzero(mask)[0], (part + _starts(widths))[mask]] = 1.0
        counts += hot.T @ hot
    return counts


def _information(counts: Floats, widths: tuple[int, ...], n: int) -> Floats:
    """Mutual information of every pair of columns, less its chance value: (b, b), diagonal 0."""
    from scipy.special import xlogy

    starts = _starts(widths)
    rows = np.add.reduceat(counts, starts, axis=1)  # (W, b) a column's counts in each of its pairs
    total = np.add.reduceat(rows, starts, axis=0)  # (b, b)
    joint = np.add.reduceat(xlogy(counts, counts), starts, axis=1)  # (W, b)
    single = np.add.reduceat(xlogy(rows, rows), starts, axis=0)  # (b, b)
    gain = np.add.reduceat(joint, starts, axis=0) - single - single.T + xlogy(total, total)
    seen = np.add.reduceat((rows > 0).astype(np.int64), starts, axis=0) - 1  # (b, b)
    information = (gain - seen * seen.T / 2) / max(n, 1)
    # one half is mirrored: both halves are equal but for the order of summation
    upper: Floats = np.triu(np.round(information, _DECIMALS), 1)
    return upper + upper.T


def _spanning_forest(information: Floats) -> tuple[Ints, Ints]:
    """Prim's maximum spanning forest over the positive entries: parents (b,), order (b,).

    Ties go to the lowest column, then to the parent that joined first, so the same numbers always
    give the same tree. (SciPy's routine promises neither.)
    """
    count = len(information)
    parents = np.full(count, -1, dtype=np.int64)
    order = np.empty(count, dtype=np.int64)
    nearest = np.zeros(count)  # the best link of each column to the forest so far
    waiting = np.ones(count, dtype=bool)
    for place in range(count):
        # with no link left every waiting column has 0: the lowest becomes the next root
        column = int(np.argmax(np.where(waiting, nearest, -1.0)))
        order[place] = column
        waiting[column] = False
        closer = waiting & (information[column] > nearest)
        nearest[closer] = information[column][closer]
        parents[closer] = column
    return parents, order


def _log_shares(counts: Floats) -> Floats:
    """The logarithm of each row's shares."""
    shares: Floats = np.log(counts) - np.log(counts.sum(axis=1, keepdims=True))
    return shares


def _compress(values: Floats) -> Floats:
    """The values sorted; beyond 1,024 of them evenly spread order statistics, never mixtures.

    Real values and not interpolated ones: combinations repeat, and a training row has to find
    itself among them.
    """
    ordered = np.sort(values)
    if len(ordered) <= _QUANTILES:
        return ordered
    places = (np.arange(_QUANTILES) + 0.5) * len(ordered) / _QUANTILES
    return ordered[places.astype(np.int64)]


def _as_codes(codes: NDArray[Any], columns: int, name: str) -> Ints:
    """Whole numbers (n, columns), or an error that says what came instead."""
    found = np.asarray(codes)
    if found.ndim != 2 or found.shape[1] != columns:
        raise InputError(
            f"{name} has shape {found.shape}, but the tree has {columns} category columns: "
            f"give an array of shape (rows, {columns})."
        )
    if found.dtype.kind not in "iub" and found.size:
        raise InputError(
            f"{name} has dtype {found.dtype}, but codes are whole numbers. "
            "Turn missing cells into -1 and the array into integers."
        )
    return found.astype(np.int64, copy=False)


def _table_shapes(
    widths: tuple[int, ...], parents: Ints, order: Ints
) -> tuple[tuple[int, int], ...]:
    """The shape of every table, once widths, parents and order are known to be a forest."""
    count = len(widths)
    if parents.shape != (count,) or order.shape != (count,):
        raise _damaged("its widths, parents and order do not have the same length")
    if any(width < 1 for width in widths):
        raise _damaged("a column has no categories")
    if sorted(order.tolist()) != list(range(count)):
        raise _damaged("its order does not name every column once")
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    for j, parent in enumerate(parents.tolist()):
        if not -1 <= parent < count or (parent >= 0 and place[parent] >= place[j]):
            raise _damaged(f"the parent of column {j} does not come before it")
    return tuple(
        (widths[parent] if parent >= 0 else 1, width)
        for width, parent in zip(widths, parents.tolist(), strict=True)
    )


def _damaged(what: str) -> InputError:
    return InputError(f"The category tree is damaged: {what}. Fit it again or use an intact file.")
