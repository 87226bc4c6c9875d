"""Ranks among the training rows: scores that the network sees, and percentiles for distances."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.special import ndtri

from lapace.arrays import Bools, Floats, Ints

__all__ = ["NO_RANKS", "RARE", "SPIKE", "Knots", "Ranks", "mid_ranks", "usual_width"]

KNOTS = 256  # support points of a column's rank map; more do not change a decoded value
RARE = 5  # rows under which a histogram bin or category count is not shown
SPIKE = 0.01  # share of the rows from which a value gets an interval of scores
SUPPORT = 100  # support points of a column's percentiles, beside the values that are spikes
FLAT = 0.25  # least spread a column is stretched from: a nearly constant one must not dominate


class Knots(NamedTuple):
    """A column's rank map: `values` and the normal scores that each of them has.

    A value shared by many rows has the scores from `low` to `high`; others have a single one. With
    F the cumulative share and n a value's own, the score in the middle is Φ⁻¹(F − n/2), as in a
    normal distribution cut at the ranks, then standardised over the rows.

    Examples:
        >>> knots = Knots.fit(np.array([0.0] * 60 + [10.0] * 30 + [1000.0] * 10))
        >>> knots.scores(np.array([0.0, 10.0, 1000.0])).round(2)
        array([-0.76,  0.82,  2.11])
        >>> knots.units(np.array([-9.0, -0.5, 2.0, 9.0])).round(1)  # spikes cannot be missed
        array([   0.,    0., 1000., 1000.])
    """

    values: Floats
    low: Floats
    mid: Floats
    high: Floats

    @classmethod
    def fit(cls, values: Floats) -> Knots:
        """Returns the rank map of training values."""
        distinct, counts = np.unique(values, return_counts=True)
        share = counts / counts.sum()
        top = np.cumsum(share)
        mid = ndtri(top - share / 2)
        centre = float(share @ mid)
        scale = max(FLAT, float(np.sqrt(share @ (mid - centre) ** 2)))
        # A spike gets nine tenths of its mass; the rest leads on to its neighbours, so that
        # values never seen, in between, still have a score of their own.
        heavy = (share >= SPIKE) & (counts >= RARE)
        low = np.where(heavy, ndtri(top - 0.95 * share), mid)
        high = np.where(heavy, ndtri(top - 0.05 * share), mid)
        keep = heavy | _spread(np.cumsum(np.where(heavy, 0.0, share)), KNOTS)
        scores = [(s[keep] - centre) / scale for s in (low, mid, high)]
        return cls(distinct[keep], *scores)

    def scores(self, values: Floats) -> Floats:
        """Returns the scores of values; beyond the training range the score of its end."""
        clipped = np.clip(values, self.values[0], self.values[-1])
        left = self.values.searchsorted(clipped, side="right") - 1
        return self.between(clipped, left, np.minimum(left + 1, len(self.values) - 1))

    def between(self, values: Floats, left: Ints, right: Ints) -> Floats:
        """Returns the scores of values that lie at one knot or before the next.

        Args:
            values: Within the range of the knots.
            left: The last knot up to each value.
            right: The knot after it, or the same where it is the last.
        """
        gap = np.where(right > left, self.values[right] - self.values[left], 1.0)
        share = (values - self.values[left]) / gap
        between = self.high[left] + share * (self.low[right] - self.high[left])
        return np.where(values == self.values[left], self.mid[left], between)

    def units(self, scores: Floats) -> Floats:
        """Returns the values of scores: the piecewise-linear inverse, flat over a spike."""
        grid = np.stack([self.low, self.high], axis=1).ravel()
        return np.interp(scores, grid, np.repeat(self.values, 2))

    def slopes(self, scores: Floats) -> Floats:
        """Returns how fast values rise with the score, from one value's middle to the next one's.

        They are not flat at a spike or beyond the ends, where the gradient would vanish.
        """
        rise: Floats = np.diff(self.values) / np.maximum(np.diff(self.mid), 1e-9)
        if len(rise) < 2:
            return np.full_like(scores, rise.sum())
        slopes: Floats = rise[np.searchsorted(self.mid[1:-1], scores)]
        return slopes


# Values in ascending order, and the percentile of each, between 0 and 1.
Ranks: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
NO_RANKS: Ranks = ((), ())


def mid_ranks(values: Floats) -> Ranks:
    """Returns support points of the percentiles of training values: values and their mid-ranks.

    With F the cumulative share of the rows and n a value's own share, the mid-rank is F - n/2: half
    of the rows that share a value count as passed. About a hundred values are kept, evenly spread
    over F, with both ends and every value that at least a hundredth of the rows has.

    Examples:
        >>> mid_ranks(np.array([0.0] * 60 + [10.0] * 30 + [1000.0] * 10))
        ((0.0, 10.0, 1000.0), (0.3, 0.75, 0.95))
    """
    distinct, counts = np.unique(values, return_counts=True)
    rows, top = counts.sum(), np.cumsum(counts)
    keep = counts >= SPIKE * rows
    if not keep.all():
        keep |= _spread(top, SUPPORT)
    percentiles = (top - counts / 2)[keep] / rows
    return tuple((distinct[keep] + 0.0).tolist()), tuple(percentiles.tolist())


def usual_width(values: Floats) -> float:
    """Returns the width of a column's usual range; 0 for a constant column.

    It reaches from the 5th to the 95th percentile. Where a twentieth of the rows or more share one
    value (no savings), the range of the other rows, widened to that value, counts if it is wider.

    Examples:
        >>> usual_width(np.arange(101.0)), usual_width(np.array([0.0] * 97 + [10.0, 11.0, 12.0]))
        (90.0, 11.9)
    """
    distinct, counts = np.unique(values, return_counts=True)
    low, high = np.quantile(values, [0.05, 0.95])
    common, width = distinct[counts.argmax()], high - low
    others = values[values != common]
    if counts.max() >= 0.05 * len(values) and len(others):
        least, most = np.quantile(others, [0.05, 0.95])
        width = max(width, max(most, common) - min(least, common))
    return float(f"{width:.12g}")


def _spread(top: Floats | Ints, count: int) -> Bools:
    """Marks about `count` positions, evenly spread over the cumulative share, ends included."""
    keep = np.zeros(len(top), dtype=bool)
    places = np.searchsorted(top, np.linspace(0, top[-1], count))
    keep[np.minimum(places, len(top) - 1)] = True
    keep[[0, -1]] = True
    return keep
