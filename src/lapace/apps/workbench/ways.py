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

from lapace.apps.letters.wording import at_edge, usual
from lapace.apps.letters.words import Change, changes
from lapace.apps.workbench.columns import PLAIN, Json, form_value, place
from lapace.arrays import Floats
from lapace.result import Counterfactuals, Explanation
from lapace.schema import Schema

__all__ = ["cards", "chosen_way", "name_of_way"]

WAYS = 3
NAMED = 3  # changes that a name lists
STOPS = {
    "enough": ("Just enough", "The smallest change found that turns the decision."),
    "best": ("Recommended", "The smallest change found that is well past the line."),
    "edge": ("Best found", "Nothing safer was found within your limits."),
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
        best, enough = explanation.best(WAYS), explanation.best(WAYS, end="enough")
        ends = best.where(best.ok), enough.where(best.ok)
        each = [
            _card(ends, row, [] if path is None else _path_stops(explanation, path, judge))
            for row, path in enumerate(_paths(explanation, ends[0]))
        ]
        shown["cards"] = sorted(each, key=lambda card: card["stops"][card["start"]]["effort"])
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


def _card(ends: tuple[Counterfactuals, Counterfactuals], row: int, path_stops: list[Json]) -> Json:
    """Returns one way: its safe end, what is just enough before it, and its path after it.

    A stop that is less sure than the one before is left out, and one that changes the same.
    """
    safe, enough = ends
    rank, known = safe.rank[row], not np.isnan(safe.survival[row])
    # What lies at the edge is shown and not recommended; nor is it where the edge is not known.
    name = "enough" if not known else "edge" if at_edge(safe)[row] else "best"
    advised = _stop(safe, row, f"best{rank}", *STOPS[name], other_end=enough.cells[row])
    first = _stop(enough, row, f"enough{rank}", *STOPS["enough"])
    stops = [first, advised] if _goes_on(first, advised) else [advised]
    for stop in path_stops:
        if _goes_on(stops[-1], stop):
            stops.append(stop)
    stops[-1]["surest"] = len(stops) > 1 and known and not stops[-1]["edge"]
    return {"title": advised["title"], "start": stops.index(advised), "stops": stops}


def _goes_on(stop: Json, later: Json) -> bool:
    """Tells whether a later stop changes something else and is as sure or surer.

    How sure it is its survival says, or else its probability.
    """
    by = "chance" if None in (stop["keeps"], later["keeps"]) else "keeps"
    is_less_sure = None not in (stop[by], later[by]) and later[by] < stop[by]
    before, after = ([(c["f"], c["value"]) for c in s["changes"]] for s in (stop, later))
    return before != after and not is_less_sure


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


def _stop(
    rows: Counterfactuals,
    row: int,
    key: str,
    name: str,
    meaning: str,
    *,
    other_end: Floats | None = None,
) -> Json:
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
        "edge": bool(at_edge(rows)[row]),
        "effort": _number(rows.effort[row], 3),
    }
    changes, follows = _changes(schema, before, after, other_end)
    return stop | {"changes": changes, "follows": follows}


def _changes(
    schema: Schema, before: Floats, after: Floats, enough: Floats | None
) -> tuple[list[Json], list[Json]]:
    """Returns what differs, the largest change first, and what follows from it."""

    def described(change: Change) -> Json:
        i, feature = change.column, schema.features[change.column]
        return {
            "f": i,
            "before": change.before,
            "after": change.after,
            "enough": change.enough,
            "value": form_value(feature, after[i]),
            "from": place(feature, before[i]),
            "to": place(feature, after[i]),
        }

    own, derived = changes(schema, before, after, PLAIN, enough)
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

    An end of a way brings the other end with it.

    Args:
        explanation: Of one instance, answered.
        key: Of the stop, as in its card.
        judge: Fills in what is not stored of the steps of a path.
    """
    safe, enough = explanation.best(), explanation.best(end="enough")
    if match := re.fullmatch(r"(?:best|enough)(\d{1,2})", key):
        chosen = safe.rank == int(match[1])
        safe, enough = safe.where(chosen), enough.where(chosen)
    elif match := re.fullmatch(r"path(\d{1,4}):(\d{1,4})", key):
        paths = np.flatnonzero(np.arange(len(explanation.instance)) == int(match[1]))
        steps = explanation.all_steps(paths)
        safe = enough = steps.where(np.arange(len(steps)) == int(match[2]))
    if match is None or not len(safe) or not safe.ok.all():
        raise ValueError("There is no such way.")
    if key.startswith("path"):
        safe = enough = judge(safe)
    first = np.zeros(1, dtype=np.int64)
    only = {"best": replace(safe, rank=first), "enough": replace(enough, rank=first)}
    return replace(explanation, minimal={**explanation.minimal, **only})
