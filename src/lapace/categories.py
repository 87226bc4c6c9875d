r"""The joint choice of categories: which combination belongs together.

Choosing every category column on its own leaves the data manifold: a row is decoded as a husband
who is not married. Here the columns are chosen together. Per class a Chow-Liu tree holds the
pairwise frequencies of that class's rows,

$$\log p(x) = \sum_j \log p(x_j \mid x_{\text{parent}(j)}),$$

and gives the combination that maximises given scores, say a decoder's, plus the tree's
log-probability (`choose`: exact max-sum, with fixed columns as evidence).

A column is a number of categories, a row a tuple of codes 0 .. width - 1. A code outside that range
is a category unseen in the class. It *cuts* the tree there: it carries no information to its parent
or its children, and each child falls back on its marginal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
SMOOTHING = 0.1
DECIMALS = 10  # mutual informations that agree so far are ties, whatever the order of summation
CHUNK = 4096  # rows at a time: long enough for numpy's loops to pay, short enough for the cache
INTEGERS = ("widths", "parents", "order")  # as saved


@dataclass(frozen=True, eq=False)
class CategoryTree:
    """A Chow-Liu tree over one class's category columns (a forest where some are unrelated).

    Attributes:
        widths: How many categories each of the b columns has.
        parents: The parent of each column, -1 at a root. (b,)
        order: The columns with parents before children. (b,)
        tables: The table log p(child | parent) of each column, (parent width, width); (1, width)
            at a root.

    Examples:
        >>> import numpy as np
        >>> rows = np.array([[0, 0], [0, 0], [0, 0], [1, 1], [1, 1]])  # married, husband
        >>> tree = CategoryTree.fit(rows, widths=(2, 2))
        >>> tree.parents.tolist()
        [-1, 0]
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

    @classmethod
    def fit(cls, codes: Ints, widths: Sequence[int]) -> CategoryTree:
        """Learns the tree from one class's rows.

        The structure is the maximum spanning forest of the pairwise mutual informations, each less
        its chance value (r - 1)(s - 1) / 2n for r and s categories seen: without that, in small
        classes wide columns look related to everything. Pairs with nothing left stay apart.

        Args:
            codes: The rows. (n, b) A code outside 0 .. width - 1, such as -1 for a missing cell,
                is left out of the counts of its column.
            widths: How many categories each column has.
        """
        widths = tuple(widths)
        counts = _pair_counts(codes, widths)  # (W, W)
        parents, order = _spanning_forest(_information(counts, widths, len(codes)))
        starts = _starts(widths)
        tables = []
        for start, width, parent in zip(starts, widths, parents, strict=True):
            above = slice(starts[parent], starts[parent] + widths[parent])
            table = counts[above] if parent >= 0 else np.diag(counts)[None]
            smooth = table[:, start : start + width] + SMOOTHING
            tables.append(np.log(smooth) - np.log(smooth.sum(axis=1, keepdims=True)))
        return cls(widths, parents, order, tuple(tables))

    def choose(self, scores: Floats, evidence: Ints | None = None) -> Ints:
        r"""Returns the best combination for each row, exactly: (n, b).

        $$\arg\max_x \; \sum_j \text{scores}_j[x_j] + \log p(x)$$

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
        """
        kept = np.full((len(scores), len(self.widths)), -1) if evidence is None else evidence
        chosen = np.empty(kept.shape, dtype=np.int64)
        for part in batches(len(scores), CHUNK):
            chosen[part] = self._max_sum(scores[part], kept[part].T).T
        return chosen

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the tree as a few flat arrays, to be saved; `from_arrays` reads them back."""
        return {
            "widths": np.array(self.widths, dtype=np.int64),
            "parents": self.parents,
            "order": self.order,
            "tables": np.concatenate([np.empty(0), *(table.ravel() for table in self.tables)]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> CategoryTree:
        """Reads back, bit for bit, the tree that `to_arrays` took apart.

        Raises:
            InputError: An array is missing, or they do not fit together.
        """
        try:
            widths, parents, order = (np.array(arrays[name], np.int64) for name in INTEGERS)
            flat = np.array(arrays["tables"], np.float64)
            above = np.where(parents >= 0, widths[parents], 1)
            *parts, rest = np.split(flat, np.cumsum(above * widths))
            shapes = zip(parts, above.tolist(), widths.tolist(), strict=True)
            tables = tuple(part.reshape(rows, columns) for part, rows, columns in shapes)
            place = np.argsort(order)  # (b,)
            intact = (
                widths.min(initial=1) >= 1
                and np.array_equal(np.sort(order), np.arange(len(widths)))
                and parents.min(initial=-1) == -1
                and (place[parents] < place)[parents >= 0].all()  # parents before children
                and np.isfinite(flat).all()
                and not len(rest)
            )
        except (KeyError, IndexError, TypeError, ValueError, OverflowError):
            intact = False
        if not intact:
            raise InputError("The category tree is damaged. Fit it again or use an intact file.")
        return cls(tuple(widths.tolist()), parents, order, tables)

    @cached_property
    def _extended(self) -> tuple[Floats, ...]:
        """The tables with one more row (parent unknown) and one more column (code unknown).

        The last row is the child's marginal, the last column is constant, so that an unknown code
        says nothing about its parent. At a root there is no row to add.
        """
        marginals: dict[int, Floats] = {}
        extended: dict[int, Floats] = {}
        for j in self.order.tolist():
            parent, table = int(self.parents[j]), self.tables[j]
            if parent >= 0:
                marginal = np.logaddexp.reduce(marginals[parent][:, None] + table, axis=0)
                table = np.vstack([table, marginal])  # (parent width + 1, width)
            marginals[j] = table[-1]  # (width,)
            extended[j] = np.pad(table, ((0, 0), (0, 1)))
        return tuple(extended[j] for j in range(len(self.widths)))

    def _clip(self, codes: Ints) -> Ints:
        """Moves every unknown code to its column's width: (b, n)."""
        widths = np.array(self.widths, dtype=np.int64)[:, None]
        return np.where((codes < 0) | (codes >= widths), widths, codes)

    def _max_sum(self, scores: Floats, kept: Ints) -> Ints:
        """Chooses for one chunk of rows; `kept` and the result are (b, n)."""
        # Rows last: every step below then runs along long contiguous lines.
        lines = scores.T.astype(np.float64, order="C")  # (sum of widths, n)
        blocks = np.split(lines, _starts(self.widths)[1:])
        for j in self.order[::-1]:
            parent = self.parents[j]
            if parent >= 0 and np.any(kept[parent] < 0):
                blocks[parent] += _message(blocks[j], kept[j], self._extended[j][:-1])
        chosen = self._clip(kept)  # (b, n), free columns filled in below
        for j in self.order:
            free = kept[j] < 0
            if not free.any():
                continue
            parent = self.parents[j]
            prior = self._extended[j][:, :-1].T  # (width, parent width + 1), (width, 1) at a root
            if parent >= 0:
                prior = prior.take(chosen[parent], axis=1)  # (width, n)
            best = (blocks[j] + prior).argmax(axis=0)  # (n,), the lowest code among equals
            chosen[j] = np.where(free, best, chosen[j])
        return np.where(kept < 0, chosen, kept)


def _message(block: Floats, kept: Ints, table: Floats) -> Floats:
    """Returns the value of a column's best choice under each code of its parent: (parent width, n).

    The best choice is the max over c of block[c] + table[p, c], taken one child code at a time: no
    (n, parent width, width) cube is made, and it is six times faster. A kept column has no choice:
    its message is its column of the table, up to a constant, and the table's last column, all
    zero, where its code is unknown.
    """
    rows = np.flatnonzero(kept >= 0)
    fixed = table.take(np.minimum(kept[rows], len(block)), axis=1)  # (parent width, rows kept)
    if len(rows) == len(kept):
        return fixed
    best: Floats = table[:, :1] + block[0]  # (parent width, n)
    other = np.empty_like(best)
    for code in range(1, len(block)):
        np.add(table[:, code, None], block[code], out=other)
        np.maximum(best, other, out=best)
    best[:, rows] = fixed
    return best


def _starts(widths: tuple[int, ...]) -> Ints:
    """Returns where each column's categories start among all of them: (b,)."""
    return np.cumsum((0, *widths), dtype=np.int64)[:-1]


def _pair_counts(codes: Ints, widths: tuple[int, ...]) -> Floats:
    """Returns every pair's contingency table at once: H'H of the one-hot rows H, (W, W).

    Rows where a pair has an unknown code do not count for that pair.
    """
    total = sum(widths)
    counts = np.zeros((total, total))
    seen = (codes >= 0) & (codes < np.array(widths, dtype=np.int64))  # (n, b)
    for rows in batches(len(codes), CHUNK):
        part, mask = codes[rows], seen[rows]
        hot = np.zeros((len(part), total), dtype=np.float32)  # exact: counts stay below 2**24
        hot[np.nonzero(mask)[0], (part + _starts(widths))[mask]] = 1.0
        counts += hot.T @ hot
    return counts


def _information(counts: Floats, widths: tuple[int, ...], n: int) -> Floats:
    """Returns the mutual information of every pair of columns, less its chance value: (b, b)."""
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
    upper: Floats = np.triu(np.round(information, DECIMALS), 1)
    return upper + upper.T


def _spanning_forest(information: Floats) -> tuple[Ints, Ints]:
    """Returns Prim's maximum spanning forest over the positive entries: parents (b,), order (b,).

    Ties go to the lowest column, then to the parent that joined first, so the same numbers always
    give the same tree. (SciPy's routine promises neither.)
    """
    count = len(information)
    parents = np.full(count, -1, dtype=np.int64)
    order = np.empty(count, dtype=np.int64)
    strongest = np.zeros(count)  # the best link of each column to the forest so far
    waiting = np.ones(count, dtype=bool)
    for place in range(count):
        # with no link left every waiting column has 0: the lowest becomes the next root
        column = int(np.argmax(np.where(waiting, strongest, -1.0)))
        order[place] = column
        waiting[column] = False
        closer = waiting & (information[column] > strongest)
        strongest[closer] = information[column][closer]
        parents[closer] = column
    return parents, order
