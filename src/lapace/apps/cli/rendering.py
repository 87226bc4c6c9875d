"""Explanations as a terminal shows them, and as rows of a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from lapace.arrays import Floats
    from lapace.result import Counterfactuals, Explanation, InstanceExplanation
    from lapace.schema import Schema

INSTANCES = 20  # shown; a file has all
COLOURS = {"answered": "green", "already_target": "cyan", "none_found": "yellow"}  # else red
MARKS = {
    "edge": "close to the decision boundary; a small difference could turn the prediction back.",
    "unusual": "hardly any training row of the target looks like that.",
}
ENDS = "before → enough … safe: the first just turns the decision, the second keeps a margin."
UNSURE = "How close these are to the decision boundary is not known: there are no odds to tell."


def grid(columns: Mapping[str, Sequence[Any]]) -> Table:
    """A plain table of columns by name."""
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(Text(name))
    for row in zip(*columns.values(), strict=True):
        table.add_row(*(Text(str(cell)) for cell in row))
    return table


# ------------------------------------------------------------------------------------------------
# Explanations


def explanation_parts(explanations: Iterable[Explanation], pick: str) -> Iterator[Any]:
    """Each instance without the target, with its counterfactuals or the reason why it has none.

    Args:
        explanations: Explanations of some instances each.
        pick: The counterfactuals that are shown: `best` with both ends, or another pick.
    """
    count, remarks = 0, set[str]()
    for explanation in explanations:
        rows = getattr(explanation, pick)()
        enough = explanation.best(end="enough") if pick == "best" else rows
        for instance in explanation:
            count += instance.status != "already_target"
            if instance.status == "already_target" or count > INSTANCES:
                continue
            yield heading(instance)
            if instance.status != "answered":
                yield Padding(Text(instance.reason), (0, 0, 1, 2))
                continue
            chosen = (rows.instance == instance.position) & rows.ok
            ok_rows, ends = rows.where(chosen), enough.where(chosen).cells
            for row in range(len(ok_rows)):
                yield Padding(Text(_about(ok_rows, row), "italic"), (0, 0, 0, 2))
                yield Padding(_changes(ok_rows, row, ends[row]), (0, 0, 1, 4))
                remarks.update(_marks(ok_rows, row))
                if rows.schema.differs(ok_rows.cells[row], ends[row]).any():
                    remarks.add(ENDS)
                if "edge" in ok_rows.mark[row] and isnan(ok_rows.survival[row]):
                    remarks.add(UNSURE)
    if count > INSTANCES:
        yield Text(f"… and {count - INSTANCES:,} more; -o OUT.csv or -o OUT.json has all.")
    said = {ENDS: ENDS, UNSURE: UNSURE, **{mark: f"{mark}: {MARKS[mark]}" for mark in MARKS}}
    yield from (Text(text, "italic") for remark, text in said.items() if remark in remarks)


def why_not_parts(explanation: Explanation, before: Sequence[str]) -> list[Any]:
    """Every instance without a counterfactual, and why; and those that have one after all.

    Args:
        explanation: With its reasons.
        before: The status of each instance before they were looked for.
    """
    parts: list[Any] = []
    for instance in explanation:
        if instance.status == "answered" != before[instance.position]:
            after_all = "No constraint has to be relaxed: the longer search found a counterfactual."
            rows = instance.nearest()
            parts += [heading(instance), Padding(Text(after_all), (0, 0, 0, 2))]
            parts += [Padding(Text(_about(rows, 0), "italic"), (0, 0, 0, 2))]
            parts += [Padding(_changes(rows, 0), (0, 0, 1, 4))]
        if instance.why_not is not None or instance.status == "malformed":
            why = instance.reason if instance.why_not is None else instance.why_not.text
            parts += [heading(instance), Padding(Text(why), (0, 0, 1, 2))]
    if not len(explanation):
        return [Text("The table has no rows: there is nothing to explain.")]
    return parts or [Text("Every instance has a counterfactual, or has the target already.")]


def heading(instance: InstanceExplanation) -> Text:
    """An instance in a line: label, target and status."""
    label, target = ("?" if v is None else str(v) for v in (instance.label, instance.wanted))
    text = Text(f"Instance {instance.name}: {label} → {target}", "bold")
    return text.append("  ").append(instance.status, COLOURS.get(instance.status, "red"))


def _about(rows: Counterfactuals, row: int) -> str:
    """Label, prototype, probability, effort, density and marks of a counterfactual, where known."""
    probability, density, marks = rows.probability[row], rows.density[row], _marks(rows, row)
    parts = [f"{rows.label[row]}"]
    parts += [] if isnan(rows.tau[row]) else [f"prototype {rows.prototype[row]}"]
    parts += [] if isnan(probability) else [f"probability {probability:.2f}"]
    parts.append(f"effort {rows.effort[row]:.2f}")
    if not isnan(density):
        parts.append(f"{density:.0%} of training rows with that label are less typical")
    parts += [f"mark: {', '.join(marks)}"] if marks else []
    return ", ".join(parts)


def _marks(rows: Counterfactuals, row: int) -> list[str]:
    """The marks of a counterfactual; for labels alone `edge` is said once, not of each row."""
    marks = [mark for mark in str(rows.mark[row]).split(", ") if mark]
    return [mark for mark in marks if mark != "edge" or not isnan(rows.survival[row])]


def _changes(rows: Counterfactuals, row: int, enough: Floats | None = None) -> Table:
    """The features that differ, before and after, the largest changes first.

    Where the value that is just enough is another one, it comes before the safe value. It may be
    the value before.
    """
    import numpy as np

    schema, before, after = rows.schema, rows.instances[rows.instance[row]], rows.cells[row]
    enough = after if enough is None else enough
    order = np.argsort(-schema.gaps(before, after), kind="stable")
    table = Table(box=None, show_header=False, pad_edge=False)
    for justify in ("left", "right", "left", "left"):
        table.add_column(justify=justify)
    for i in order[schema.differs(before, after)[order]].tolist():
        feature = schema.features[i]
        name = feature.name if schema.counted[i] else f"so {feature.name}"  # it is derived
        ends = dict.fromkeys((feature.text(enough[i]), feature.text(after[i])))
        table.add_row(*map(Text, (name, feature.text(before[i]), "→", " … ".join(ends))))
    return table


def whole_columns(schema: Schema) -> list[str]:
    """The columns of a `comparison_frame` that hold whole numbers, and may be empty."""
    whole = [f.name for f in schema.features if f.kind == "continuous" and f.integer]
    return ["prototype", *whole, *(f"{name}_before" for name in whole)]


def comparison_frame(rows: Counterfactuals, start: int = 0) -> Any:
    """A frame of counterfactuals: the table's columns, those as they were, and `about`.

    The value of `income` that the instance had is in `income_before`.

    Args:
        rows: The counterfactuals.
        start: The position of the first instance among all that are explained.
    """
    taken, names = set(rows.template.names), {}
    for name in rows.template.names:
        names[name] = f"{name}_before"
        while names[name] in taken:
            names[name] += "_"
    schema = rows.schema
    # The same type in every part, whatever its rows hold.
    template = rows.template.with_floats(
        f.name for f in schema.features if f.kind == "continuous" and not (f.integer or f.written)
    )
    both = replace(template, names=(*template.names, *names.values()), dtypes=template.dtypes * 2)
    before = schema.columns(rows.instances[rows.instance], template)
    columns = schema.columns(rows.cells, template)
    columns |= {names[name]: values for name, values in before.items()}
    ids = None if rows.ids is None else [rows.ids[i] for i in rows.instance]
    about = rows.about_columns()
    about["instance"] = about["instance"] + start
    return both.build(columns, after=about, ids=ids)
