"""Undoes changes of a counterfactual while it stays ok: the pick `sparse`.

The costliest change is undone first, as long as the row stays ok and does not become too atypical
of the target. A change that could not be undone once is not tried again, which bounds the queries.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lapace.arrays import Floats, Ints, first_of_each
from lapace.paths import Steps

__all__ = ["undo_changes"]

RARE = 5.0  # percentile below which undoing may not push a row, unless it is below already


def undo_changes(
    start: Steps,
    originals: Floats,
    costs: Callable[[Floats, Floats], Floats],
    check: Callable[[Floats, Ints], Steps],
    percentile: Callable[[Floats, Ints], Floats],
) -> Steps:
    """Rows with fewer changes that are still ok.

    Args:
        start: One row per line.
        originals: The instance of each line.
        costs: Cost of each column's change between rows; 0 where they do not differ.
        check: Evaluates rows of lines as they are.
        percentile: How typical rows of lines are of the target, in percent.
    """
    best = start.take(np.arange(len(start.tau)))
    best.tau[:] = np.nan  # the row lies on no path
    open_ = (costs(originals, best.cells) > 0) & best.ok[:, None]  # (lines, d), to be tried
    floor = np.minimum(RARE, percentile(best.cells, np.arange(len(originals))))
    while open_.any():
        lines, columns = np.nonzero(open_)
        rows = best.cells[lines]
        rows[np.arange(len(lines)), columns] = originals[lines, columns]
        found = check(rows, lines)
        ok = found.ok
        ok[ok] = percentile(rows[ok], lines[ok]) >= floor[lines[ok]]
        open_[lines[~ok], columns[~ok]] = False
        each = costs(originals[lines], best.cells[lines])[np.arange(len(lines)), columns]
        saved = np.where(ok, each, -1)
        chosen = first_of_each(lines, -saved, columns)
        chosen = chosen[ok[chosen]]
        kept = found.take(chosen)
        kept.tau[:] = np.nan
        best.write(lines[chosen], kept)
        open_[lines[chosen], columns[chosen]] = False
    return best
