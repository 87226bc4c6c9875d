"""An explanation as instances read it in a terminal: status, reason, and what changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lapace.cli.options import Pick

if TYPE_CHECKING:
    from lapace.result import Counterfactuals, Explanation, InstanceExplanation

__all__ = ["instances", "reason_of", "told"]

STEPS = 7  # of a path shown, beside the first good one
WAYS = 3  # paths shown per instance; CSV, Parquet and JSON have all
COLOURS = {
    "answered": "green",
    "already_target": "cyan",
    "none_found": "yellow",
    "infeasible": "red",
    "malformed": "red",
}


def instances(answer: Explanation, pick: Pick, offset: int = 0) -> Iterator[Any]:
    """What a terminal shows, instance by instance.

    Args:
        answer: What was found.
        pick: Which rows of it.
        offset: Added to the instances's numbers, where only part of a table was asked about.
    """
    rows = None if pick is Pick.path else getattr(answer, pick.value)()
    for instance in answer:
        yield told(instance, instance.position + offset)
        if rows is None and instance.prototypes:
            yield Padding(_steps(instance), (0, 0, 1, 2))
        elif rows is not None and instance.status == "answered":
            yield from _ways(instance, rows)


def told(instance: InstanceExplanation, number: int, *, reason: bool = True) -> Text:
    """An instance in a line or two: from which label to which, status and reason."""
    text = Text()
    text.append(f"Instance {number}: {_name(instance.label)} → {_name(instance.wanted)}", "bold")
    text.append("  ")
    text.append(instance.status, COLOURS[instance.status])
    if reason:
        text.append(f"\n  {reason_of(instance, number - instance.position)}")
    return text


def reason_of(instance: InstanceExplanation, offset: int) -> str:
    """An instance's reason, with the row it names counted as in the whole table."""
    own = rf"\bin row {instance.position}\b"
    return (
        re.sub(own, f"in row {instance.position + offset}", instance.reason)
        if offset
        else instance.reason
    )


def _name(label: Any) -> str:
    return "?" if label is None else str(label)


def _ways(instance: InstanceExplanation, rows: Counterfactuals) -> Iterator[Any]:
    """The nearest few of one instance's rows, a small table each."""
    import numpy as np

    own = np.flatnonzero((rows.instance == instance.position) & rows.ok)
    ordered = own[np.argsort(rows.distance[own], kind="stable")]
    for row in ordered[:WAYS]:
        yield Padding(Text(_heading(rows, int(row)), "italic"), (0, 0, 0, 2))
        yield Padding(_changes(rows, int(row)), (0, 0, 1, 4))
    if len(ordered) > WAYS:
        more = len(ordered) - WAYS
        yield Text(f"  … and {more} more; --format csv shows all.\n")


def _heading(rows: Counterfactuals, row: int) -> str:
    sure, density = rows.probability[row], rows.density[row]
    number = rows.prototype[row]
    nearby = "towards somebody nearby (plot --prototype -1)"
    parts = [f"towards prototype {number}" if number >= 0 else nearby]
    parts += [f"probability {sure:.2f}"] if sure == sure else []  # noqa: PLR0124  NaN
    parts += [f"distance {_distance(rows.distance[row])}"]
    if density == density:  # noqa: PLR0124  NaN
        parts += [f"more typical than {density:.0f} % of training rows"]
    return ", ".join(parts)


def _distance(distance: float) -> str:
    return f"{distance:.2f}" if distance < 1e6 else f"{distance:.3g}"


def _changes(rows: Counterfactuals, row: int) -> Table:
    import numpy as np

    before, after = rows.instances[rows.instance[row]], rows.cells[row]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_column()
    for i in np.flatnonzero(rows.schema.changed(before, after)):
        feature = rows.schema.features[i]
        cells = (feature.name, feature.text(before[i]), "→", feature.text(after[i]))
        table.add_row(*map(Text, cells))
    return table


def _steps(instance: InstanceExplanation) -> Table:
    """The nearest path: a line per feature that changes on it, a column for some of its steps."""
    import numpy as np

    path = instance.path()
    spread = np.linspace(0, len(path) - 1, min(STEPS, len(path))).round()
    shown = np.unique([*spread, *np.flatnonzero(path.ok)[:1]]).astype(int)
    moving = path.schema.changed(path.instances[path.instance], path.cells).any(axis=0)
    table = Table(box=None, pad_edge=False)
    table.add_column("τ", no_wrap=True)
    for step in shown:
        table.add_column(f"{path.tau[step]:.2f}", justify="right", overflow="fold")
    table.add_row(Text(f"{instance.target}?"), *("yes" if ok else "no" for ok in path.ok[shown]))
    for i in np.flatnonzero(moving):
        feature = path.schema.features[i]
        table.add_row(Text(feature.name), *(Text(feature.text(c)) for c in path.cells[shown, i]))
    return table
