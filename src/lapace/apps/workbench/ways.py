"""One instance's explanation as cards: each way's name, and the stops of its dial.

Everything a dial shows is stored in its stops, as text and as places on scales, so that the browser
moves it alone: nothing is computed again, and the classifier is not queried.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from lapace.apps.letters.wording import RARE, usual
from lapace.apps.letters.words import Change, changes
from lapace.apps.workbench.columns import PLAIN, Json, form_value, place
from lapace.arrays import Floats
from lapace.result import Counterfactuals, Explanation
from lapace.schema import Schema

__all__ = ["cards", "chosen_way", "name_of_way"]

WAYS = 3
NAMED = 3  # changes that a name lists
STOPS = {
    "nearest": ("Closest to today", "The smallest change that is enough."),
    "best": (
        "Recommended",
        "The smallest change that is well past the line and looks like real cases.",
    ),
    "marked": ("Best found", "Nothing {} was found within your limits."),
    "middle": ("Half-way", "Half-way to a typical case with this decision."),
    "last": ("End of the way", "A typical case with this decision."),
}

# Fills in the density, survival and mark of rows: a search has them for its picks only.
Judge: TypeAlias = Callable[[Counterfactuals], Counterfactuals]


def cards(explanation: Explanation, judge: Judge) -> Json:
    """Returns everything that the page shows of one instance's explanation.

    Args:
        explanation: Of one instance.
        judge: Fills in what is not stored of the steps of a path.
    """
    one, chances = explanation[0], explanation.probability
    shown: Json = {
        "status": one.status,
        "label": None if one.label is None else str(one.label),
        "target": None if one.target is None else str(one.target),
        "reason": one.reason,
        "chance": _number(chances[0, 0]) if chances.size else None,  # as things are: at step 0
        "cards": [],
    }
    if one.status == "answered":
        best = explanation.best(WAYS)
        best = best.where(best.ok)
        owner = _owner_of_nearest(explanation, best)
        each = [
            _card(explanation, best, row, path, judge, with_nearest=row == owner)
            for row, path in enumerate(_paths(explanation, best))
        ]
        shown["cards"] = sorted(each, key=lambda card: card["stops"][card["start"]]["distance"])
    return shown


def _paths(explanation: Explanation, best: Counterfactuals) -> list[int | None]:
    """Returns, for each way, a path of its own: the nearest that no way before it has."""
    free = np.flatnonzero(explanation.ok.any(axis=1)).tolist()
    chosen: list[int | None] = []
    for cells in best.cells:
        nearest = min(free, key=lambda path: _gap(explanation, path, cells), default=None)
        chosen.append(nearest)
        if nearest is not None:
            free.remove(nearest)
    return chosen


def _gap(explanation: Explanation, path: int, cells: Floats) -> float:
    """The distance from a row to the nearest ok step of a path."""
    steps = explanation.cells[path][explanation.ok[path]]
    return float(explanation.schema.distance(cells, steps).min())


def _owner_of_nearest(explanation: Explanation, best: Counterfactuals) -> int:
    """Returns the way that the nearest row is closest to, and so belongs to; -1 without one."""
    nearest = explanation.nearest()
    if not nearest.ok.any() or not len(best):
        return -1
    return int(explanation.schema.distance(nearest.cells[0], best.cells).argmin())


def _card(
    explanation: Explanation,
    best: Counterfactuals,
    row: int,
    path: int | None,
    judge: Judge,
    *,
    with_nearest: bool,
) -> Json:
    stops, nearest = [], explanation.nearest()
    if with_nearest and not np.array_equal(nearest.cells[0], best.cells[row], equal_nan=True):
        stops.append(_stop(nearest, 0, "nearest", *STOPS["nearest"]))
    # What lies at the edge, or comes with a word of caution, is shown and not recommended.
    edge, rare = "edge" in best.mark[row], bool(best.density[row] < RARE)
    lacks = " or ".join(["safer"] * edge + ["more usual"] * rare)
    name, meaning = STOPS["marked" if lacks else "best"]
    advised = _stop(best, row, f"best{best.rank[row]}", name, meaning.format(lacks))
    stops.append(advised)
    if path is not None:
        stops += _path_stops(explanation, path, judge)
    if all(stop["chance"] is not None for stop in stops):
        stops = _worth_showing(stops, advised)
        stops[-1]["surest"] = len(stops) > 1 and not stops[-1]["edge"]
    return {"title": advised["title"], "start": stops.index(advised), "stops": stops}


def _worth_showing(stops: list[Json], advised: Json) -> list[Json]:
    """Returns the stops, from closest to surest, that no other stop beats in both."""
    kept: list[Json] = []
    for stop in sorted(stops, key=lambda stop: (stop["distance"], -stop["chance"])):
        if stop is advised or not kept or stop["chance"] > max(s["chance"] for s in kept):
            kept.append(stop)
    return sorted(kept, key=lambda stop: (stop["chance"], stop["distance"]))


def _path_stops(explanation: Explanation, path: int, judge: Judge) -> list[Json]:
    """The ok steps of a path, the picks among them by name."""
    steps = explanation.all_steps(np.array([path]))
    picked = {
        float(explanation.tau[path, explanation.picked[pick][path]]): pick
        for pick in ("first", "middle", "last")
        if pick in explanation.picked and explanation.ok[path, explanation.picked[pick][path]]
    }
    where = np.flatnonzero(steps.ok)
    rows, stops = judge(steps.where(where)), []
    for row, k in enumerate(where.tolist()):
        pick = picked.get(float(steps.tau[k]), "")
        name = STOPS.get(pick) or (f"Step {row + 1} of {len(where)}", "")
        stops.append(_stop(rows, row, f"path{path}:{k}", *name))
    return stops


def _stop(rows: Counterfactuals, row: int, key: str, name: str, meaning: str) -> Json:
    before, after = rows.instances[rows.instance[row]], rows.cells[row]
    schema = rows.schema
    stop: Json = {
        "key": key,
        "name": name,
        "meaning": meaning,
        "title": name_of_way(schema, before, after),
        "label": str(rows.label[row]),
        "chance": _number(rows.probability[row]),
        "usual": usual(rows.density[row], str(rows.mark[row])),
        "keeps": _number(rows.survival[row]),
        "keepsLow": _number(rows.survival_low[row]),
        "keepsHigh": _number(rows.survival_high[row]),
        "edge": "edge" in rows.mark[row],
        "distance": _number(rows.distance[row], 3),
    }
    changes, follows = _changes(schema, before, after)
    return stop | {"changes": changes, "follows": follows}


def _changes(schema: Schema, before: Floats, after: Floats) -> tuple[list[Json], list[Json]]:
    """Returns what differs, the largest change first, and what follows from it."""

    def described(change: Change) -> Json:
        i, feature = change.column, schema.features[change.column]
        return {
            "f": i,
            "before": change.before,
            "after": change.after,
            "value": form_value(feature, after[i]),
            "from": place(feature, before[i]),
            "to": place(feature, after[i]),
        }

    own, derived = changes(schema, before, after, PLAIN)
    return [described(change) for change in own], [described(change) for change in derived]


# ------------------------------------------------------------------------------------------------
# Words


def name_of_way(schema: Schema, before: Floats, after: Floats) -> str:
    """Names a way by what it asks for, in a few words, the largest change first.

    Examples:
        >>> schema = Schema.infer([{"income": 10 * i, "home": "ab"[i % 2]} for i in range(99)])
        >>> name_of_way(schema, np.array([100.0, 0.0]), np.array([300.0, 1.0]))
        'Home: b, higher income'
    """
    towards = {"up": "higher {}", "down": "lower {}"}
    texts = [
        towards[change.direction].format(change.name)
        if schema.features[change.column].kind == "continuous" and change.direction
        else f"{change.name}: {change.after}"
        for change in changes(schema, before, after, PLAIN)[0]
    ]
    more = len(texts) - NAMED if len(texts) > NAMED + 1 else 0
    listed = ", ".join(texts[: NAMED if more else None]) + (f" and {more} more" if more else "")
    return listed[:1].upper() + listed[1:]


def _number(value: Any, digits: int = 4) -> float | None:
    return None if np.isnan(value) else round(float(value), digits)


# ------------------------------------------------------------------------------------------------
# What is kept


def chosen_way(explanation: Explanation, key: str, judge: Judge) -> Explanation:
    """Returns the explanation with one stop of a dial as its only way, for a letter about it.

    Args:
        explanation: Of one instance, answered.
        key: Of the stop, as in its card.
        judge: Fills in what is not stored of the steps of a path.
    """
    rows: Counterfactuals | None = None
    if key == "nearest":
        rows = explanation.nearest()
    elif match := re.fullmatch(r"best(\d{1,2})", key):
        best = explanation.best()
        rows = best.where(best.rank == int(match[1]))
    elif match := re.fullmatch(r"path(\d{1,4}):(\d{1,4})", key):
        path, step = int(match[1]), int(match[2])
        if path < len(explanation.instance):
            steps = explanation.all_steps(np.array([path]))
            rows = steps.where(np.arange(len(steps)) == step)
    if rows is None or not len(rows) or not rows.ok.all():
        raise ValueError("There is no such way.")
    rows = judge(rows) if key.startswith("path") else rows
    only = replace(rows, rank=np.zeros(len(rows), dtype=np.int64))
    return replace(explanation, minimal={**explanation.minimal, "best": only})
