"""The sparse row: as many features as possible put back to the instance's own.

Starting from a good row, the change that is dearest is undone first, as long as the row stays good
and is not pushed out of where the target's rows lie. A feature that could not be put back once is
not tried again, so the classifier is asked a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lapace.arrays import Floats, Ints
from lapace.paths import Steps

__all__ = ["put_back"]


RARE = 5.0  # percent of the target's rows; one rarer than this is pushed no further out


def put_back(
    start: Steps,
    own: Floats,
    gaps: Callable[[Floats, Floats], Floats],
    check: Callable[[Floats, Ints], Steps],
    usual: Callable[[Floats, Ints], Floats],
) -> Steps:
    """Rows with fewer changes, still good.

    Args:
        start: One row per line.
        own: The instance's row of each line.
        gaps: What each column contributes to the distance between rows, costs included; 0 where
            they do not differ.
        check: Judges rows of lines, as they are.
        usual: How usual rows of lines are for the target, in percent.
    """
    best = start.at(np.arange(len(start.tau)))
    best.tau[:] = np.nan  # it lies on no path
    open_ = (gaps(own, best.cells) > 0) & best.ok[:, None]  # (lines, d), what may be tried
    floor = np.minimum(RARE, usual(best.cells, np.arange(len(own))))
    while open_.any():
        lines, columns = np.nonzero(open_)
        rows = best.cells[lines]
        rows[np.arange(len(lines)), columns] = own[lines, columns]
        found = check(rows, lines)
        good = found.ok
        good[good] = usual(rows[good], lines[good]) >= floor[lines[good]]
        open_[lines[~good], columns[~good]] = False
        saved = np.where(
            good, gaps(own[lines], best.cells[lines])[np.arange(len(lines)), columns], -1
        )
        order = np.lexsort((columns, -saved, lines))
        _, at = np.unique(lines[order], return_index=True)
        chosen = order[at]
        chosen = chosen[good[chosen]]
        kept = found.at(chosen)
        kept.tau[:] = np.nan
        best.write(lines[chosen], kept)
        open_[lines[chosen], columns[chosen]] = False
    return best
