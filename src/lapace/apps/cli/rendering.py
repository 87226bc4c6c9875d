"""Explanations, prototypes and reports as a terminal shows them."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from lapace.apps.batch import Summary
    from lapace.apps.cohorts import Cohort
    from lapace.constraints import Constraint
    from lapace.explainer import Prototype
    from lapace.report import Report
    from lapace.result import Counterfactuals, Explanation, InstanceExplanation
    from lapace.schema import Schema

STEPS = 5  # of a path shown, besides its first ok one
ABOUT = ("number", "label", "members", "valid", "probability", "note")  # of a prototype
ROWS = 3  # counterfactuals shown per instance; the other formats have all
CHANGES = 8  # changes shown per counterfactual, the largest first
INSTANCES = 20  # answered instances shown
REASONS = 5  # reasons in a summary
NAMED = 5  # instances named in a remark, and labels in a sentence about a classifier
STATUSES = {  # the words for each status, and their colour
    "answered": ("answered", "green"),
    "already_target": ("already there", "cyan"),
    "none_found": ("none found", "yellow"),
    "infeasible": ("infeasible", "red"),
    "malformed": ("malformed", "red"),
}
MARKS = {
    "edge": "close to where the prediction turns; a small difference could turn it back.",
    "unusual": "hardly any training row of the target looks like that.",
}
VERDICT_COLOURS = {"passes": "green", "unsure": "yellow", "fails": "bold red"}


def _table(columns: Mapping[str, Sequence[Any]], title: str | None = None, **options: Any) -> Table:
    """A plain table of columns by name; `options` are those of each column."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, **options)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, row))
    return table


# ------------------------------------------------------------------------------------------------
# Explanations


@dataclass
class Tally:
    """Counts of instances by status and reason, over several explanations.

    Attributes:
        status: Instances by status.
        reasons: Instances without a counterfactual, by status and reason.
        targets: The targets, as text.
        malformed: The names of some instances that could not be read.
        unanswered: The names of some instances without a counterfactual.
    """

    status: Counter[str] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    targets: dict[str, None] = field(default_factory=dict)
    malformed: list[Any] = field(default_factory=list)
    unanswered: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return self.status.total()

    def __str__(self) -> str:
        from lapace.result import describe_statuses

        return describe_statuses(self.status)

    def add(self, explanation: Explanation) -> None:
        """Counts the instances of one more explanation."""
        for instance in explanation:
            self.status[instance.status] += 1
            if instance.status not in ("answered", "already_target"):
                self.reasons[instance.status, instance.reason] += 1
            if instance.status == "malformed":
                self.malformed += [instance.name][: NAMED - len(self.malformed)]
                continue
            self.targets[str(instance.wanted)] = None
            if instance.status in ("none_found", "infeasible"):
                self.unanswered += [instance.name][: NAMED - len(self.unanswered)]

    def text(self) -> Text:
        """A summary: how many instances have which status, and why, frequent reasons first."""
        wanted = f" → {' or '.join(self.targets)}" if self.targets else ""
        noun = "instance" if len(self) == 1 else "instances"
        reasons = [(*key, count) for key, count in self.reasons.most_common(REASONS)]
        text = _statuses(f"{len(self):,} {noun}{wanted}: ", self.status, reasons)
        more = len(self.reasons) - REASONS
        if more > 0:
            text.append(f"\n  … and {more:,} more reasons; --all shows them.", "not bold")
        return text.append("\n")


def _statuses(
    heading: str, counts: Mapping[str, int], reasons: Iterable[tuple[str, str, int]]
) -> Text:
    """A heading, how many instances have which status, and a line for each reason."""
    text, separator = Text(heading, "bold"), ""
    for status, (words, colour) in STATUSES.items():
        if counts.get(status):
            text.append(separator).append(f"{counts[status]:,} {words}", colour)
            separator = ", "
    for status, why, count in reasons:
        text.append(f"\n  {count:,} {STATUSES[status][0]}: {why}", "not bold")
    return text


def explanation_parts(
    explanations: Iterable[tuple[Explanation, Counterfactuals | None]],
    tally: Tally,
    *,
    everything: bool = False,
) -> list[Any]:
    """A summary, then each answered instance with its counterfactuals.

    Args:
        explanations: Each with a pick of its counterfactuals; None shows the steps of the nearest
            path instead.
        tally: Counts all of them once they have been gone through.
        everything: Also instances without a counterfactual, and all instances, however many.
    """
    parts: list[Any] = []
    shown, marks = 0, set[str]()
    for explanation, rows in explanations:
        for instance in explanation:
            answered = instance.status == "answered"
            shown += answered
            if not everything and (not answered or shown > INSTANCES):
                continue
            parts.append(_heading(instance, reason=not answered))
            if rows is None and instance.prototypes:
                parts.append(Padding(_steps(instance), (0, 0, 1, 2)))
            elif rows is not None and answered:
                mine = rows.where((rows.instance == instance.position) & rows.ok)
                parts += _counterfactuals(instance, mine)
                marks.update(word for mark in mine.mark for word in str(mark).split(", "))
    if not everything and shown > INSTANCES:
        more = f"… and {shown - INSTANCES:,} more answered"
        parts.append(Text(f"{more}; --all shows them, -o OUT.csv writes them."))
    parts += [Text(f"{mark}: {MARKS[mark]}", "italic") for mark in MARKS if mark in marks]
    return [tally.text(), *parts]


def comparison_frame(rows: Counterfactuals, start: int = 0) -> Any:
    """A frame of counterfactuals, the table's columns, and those columns as they were.

    A column `income` is followed, after all others, by `income_before`.

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
    return both.build(columns, before=about, ids=ids)


def why_not_parts(explanation: Explanation) -> list[Any]:
    """Every instance without a counterfactual, and why."""
    parts: list[Any] = []
    for instance in explanation:
        if instance.why_not is not None:
            parts.append(_heading(instance, reason=False))
            parts.append(Padding(Text(instance.why_not.text), (0, 0, 1, 2)))
        elif instance.status == "malformed":
            parts.append(_heading(instance))
    if parts:
        return parts
    already = ", or has the target already" if "already_target" in explanation.status else ""
    return [Text(f"Every instance has a counterfactual{already}.")]


def _heading(instance: InstanceExplanation, *, reason: bool = True) -> Text:
    """An instance in a line or two: label, target, status and reason."""
    label, target = ("?" if v is None else str(v) for v in (instance.label, instance.wanted))
    if instance.target is None and instance.reached:
        target += f" ({', '.join(map(str, instance.reached))})"
    text = Text(f"Instance {instance.name}: {label} → {target}", "bold")
    text.append("  ").append(instance.status, STATUSES[instance.status][1])
    return text.append(f"\n  {instance.reason}", "not bold") if reason else text


def _counterfactuals(instance: InstanceExplanation, rows: Counterfactuals) -> Iterator[Any]:
    """The nearest few of one instance's counterfactuals, a small table each."""
    import numpy as np

    for k, row in enumerate(np.argsort(rows.distance, kind="stable")[:ROWS].tolist(), 1):
        about = _about(rows, row)
        about = f"{k}. {about}" if len(rows) > 1 else about
        if instance.target is None:
            about = f"{rows.label[row]}: {about}"
        yield Padding(Text(about, "italic"), (0, 0, 0, 2))
        yield Padding(_changes(rows, row), (0, 0, 1, 4))
    if len(rows) > ROWS:
        yield Text(f"  … and {len(rows) - ROWS} more; --format csv shows all.\n")


def _about(rows: Counterfactuals, row: int) -> str:
    """Endpoint, probability, distance, density and mark of a counterfactual, where known."""
    probability, density, distance = rows.probability[row], rows.density[row], rows.distance[row]
    number = rows.prototype[row]
    end = f"prototype {number}" if number >= 0 else f"sampled endpoint {-number}"
    parts = [f"towards {end}"] if _known(rows.tau[row]) else []
    parts += [f"probability {probability:.2f}"] if _known(probability) else []
    parts += [f"distance {distance:.2f}" if distance < 1e6 else f"distance {distance:.3g}"]
    if _known(density):
        typical = f"more typical than {density:.0f} % of training rows"
        parts.append(typical if density >= 1 else "less typical than nearly all training rows")
    parts += [f"mark: {rows.mark[row]}"] if rows.mark[row] else []
    return ", ".join(parts)


def _known(number: float) -> bool:
    return number == number  # noqa: PLR0124  not NaN


def _changes(rows: Counterfactuals, row: int) -> Table:
    """The features that change, before and after, the largest changes first."""
    import numpy as np

    schema, before, after = rows.schema, rows.instances[rows.instance[row]], rows.cells[row]
    gaps = schema.gaps(before, after)
    changed = np.flatnonzero(schema.changed(before, after))
    changed = changed[np.argsort(-gaps[changed], kind="stable")]
    derived = np.flatnonzero(schema.differs(before, after) & ~schema.counted)
    table = Table(box=None, show_header=False, pad_edge=False)
    for justify in ("left", "right", "left", "left"):
        table.add_column(justify=justify)

    def add(i: int, prefix: str = "", style: str = "") -> None:
        feature = schema.features[i]
        cells = (prefix + feature.name, feature.text(before[i]), "→", feature.text(after[i]))
        table.add_row(*(Text(cell, style) for cell in cells))

    for i in changed[:CHANGES].tolist():
        add(i)
    if len(changed) > CHANGES:
        table.add_row(Text(f"and {len(changed) - CHANGES} smaller", "italic"))
    for i in derived.tolist():
        add(i, "so ", "italic")
    return table


def _steps(instance: InstanceExplanation) -> Table:
    """The nearest path: a line per feature that changes on it, a column for some of its steps."""
    import numpy as np

    path = instance.path()
    spread = np.linspace(0, len(path) - 1, min(STEPS, len(path))).round()
    shown = np.unique([*spread, *np.flatnonzero(path.ok)[:1]]).astype(int)
    changing = path.schema.changed(path.instances[path.instance], path.cells).any(axis=0)
    table = Table(box=None, pad_edge=False)
    table.add_column("τ", no_wrap=True)
    for step in shown:
        table.add_column(f"{path.tau[step]:.2f}", justify="right", overflow="fold")
    labels = ("?" if label is None else str(label) for label in path.label[shown])
    table.add_row("label", *map(Text, labels))
    table.add_row("ok", *("yes" if ok else "no" for ok in path.ok[shown]))
    for i in np.flatnonzero(changing):
        feature = path.schema.features[i]
        table.add_row(Text(feature.name), *(Text(feature.text(c)) for c in path.cells[shown, i]))
    return table


# ------------------------------------------------------------------------------------------------
# Groups


def cohort_parts(cohort: Cohort, *, reasons: bool = True) -> Iterator[Any]:
    """Tables of costs and changes by group, and of instances without an answer if `reasons`."""
    yield Text(f"{cohort}\n")
    parts = {"What an answer costs": cohort.cost_lines(), "What changes": cohort.feature_lines()}
    if reasons:
        parts["Without an answer"] = cohort.reason_lines()
    for title, lines in parts.items():
        if lines["group"]:
            yield Padding(group_table(title, lines), (0, 0, 1, 0))


def group_table(title: str, lines: Mapping[str, Sequence[Any]]) -> Table:
    """A table of groups; the bounds of an interval stand behind its estimate, in brackets."""
    columns = {}
    for name, values in lines.items():
        if name.endswith(("_low", "_high")):
            continue
        texts = [_short(value, share=name == "share") for value in values]
        if f"{name}_low" in lines:
            bounds = zip(lines[f"{name}_low"], lines[f"{name}_high"], strict=True)
            ranges = [tuple(_short(v, share=name == "share") for v in pair) for pair in bounds]
            texts = [
                text if low == "–" else f"{text} ({low} to {high})"
                for text, (low, high) in zip(texts, ranges, strict=True)
            ]
        columns[name.replace("_", " ")] = texts
    return _table(columns, title, overflow="fold")


def _short(value: Any, *, share: bool = False) -> str:
    if value is None or (isinstance(value, float) and not _known(value)):
        return "–"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0%}" if share else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def batch_parts(summary: Summary) -> Iterator[Any]:
    """A summary of a batch: statuses, commonest reasons, and groups compared."""
    heading = f"{summary.cohort.total.size:,} instances in {summary.parts:,} parts: "
    text = _statuses(heading, summary.status, summary.reasons(REASONS))
    if summary.unreadable:
        text.append(f"\n  {len(summary.unreadable):,} files could not be read", "red not bold")
    earlier = f"; {summary.skipped:,} parts were there already" if summary.skipped else ""
    text.append(
        f"\n{summary.rows:,} explained now in {summary.seconds:,.0f} s, {summary.rate:,.1f} rows a "
        f"second{earlier}.",
        "not bold",
    )
    yield text
    yield from cohort_parts(summary.cohort, reasons=False)


# ------------------------------------------------------------------------------------------------
# Fits


def schema_parts(schema: Schema, cells: Any) -> Iterator[Any]:
    """A line per column of a table as it was read, then what might be meant otherwise."""
    from lapace.schema import column_lines, remarks

    lines = column_lines(schema.features, cells)
    table = _table(lines, no_wrap=True, overflow="ellipsis")
    table.columns[list(lines).index("values")].no_wrap = False
    yield Padding(table, (0, 0, 1, 0))
    notes = remarks(schema.features)
    if notes:
        yield Text("\n".join([*notes, ""]), no_wrap=True)


def quality(classifier: str, true: Sequence[Any], predicted: Sequence[Any]) -> str:
    """Says how good a classifier trained here is on rows it was not trained on.

    Examples:
        >>> print(quality("forest", ["no", "no", "yes", "yes"], ["no", "no", "no", "yes"]))
        The forest itself: trained on four fifths of the rows, it is right on 75.0 % of the others
        (always saying 'no' is right on 50.0 %); it finds 100 % of 'no', 50 % of 'yes'.
        The report is about explanations of the forest, not about whether it is right.
    """
    counts = Counter(true)
    right = Counter(a for a, b in zip(true, predicted, strict=True) if a == b)
    usual, most = counts.most_common(1)[0]
    shown = sorted(counts, key=lambda label: (-counts[label], str(label)))[:NAMED]
    shares = ", ".join(f"{100 * right[v] / counts[v]:.0f} % of {v!r}" for v in shown)
    return (
        f"The {classifier} itself: trained on four fifths of the rows, it is right on "
        f"{100 * right.total() / len(true):.1f} % of the others\n(always saying {usual!r} is right "
        f"on {100 * most / len(true):.1f} %); it finds {shares}.\n"
        f"The report is about explanations of the {classifier}, not about whether it is right."
    )


def rule_notes(rules: Sequence[Constraint], schema: Schema, declared: int) -> str:
    """Rules that the table showed by itself, and columns that no rule is about.

    Args:
        rules: The rules of a fit.
        schema: Its columns.
        declared: How many rules it was fitted with; they come first.
    """
    from lapace.constraints import Shorthand, System

    named = {i for bound in System.of(rules, schema).bound for i in bound.columns}
    features = enumerate(schema.features)
    free = [f.name for i, f in features if i not in named and f.derived is None]
    lines = [f"{rule.note} Kept as a rule: {rule}" for rule in rules[declared:]]
    if free:
        keep = shlex.quote(str(Shorthand("fixed", (free[0],))))
        lines.append(
            f"Under no rule, so that answers may change them in any way: {', '.join(free)}.\n"
            f"To keep one: --rule {keep}; for one question `explain --constraint`, or `--free` "
            "with all that may change."
        )
    return "\n".join(lines) or "Every column is under a rule."


def report_text(report: Report) -> Text:
    """A report with its verdicts in colour."""
    text = Text(str(report), no_wrap=True)
    for found in re.finditer(r"^  (passes|unsure|fails)\b", text.plain, flags=re.MULTILINE):
        text.stylize(VERDICT_COLOURS[found[1]], *found.span(1))
    text.stylize("bold", 0, text.plain.find("\n"))
    return text


def prototype_tables(schema: Schema, prototypes: Sequence[Prototype]) -> Iterator[Table]:
    """A table for each label: a line per feature, a column per prototype."""
    for label in dict.fromkeys(p.label for p in prototypes):
        group = [p for p in prototypes if p.label == label]
        table = Table(title=Text(f"{label}: {len(group)} prototypes"), title_justify="left")
        table.add_column("prototype", no_wrap=True)
        for p in group:
            table.add_column(Text(str(p.number)), justify="right", overflow="fold")
        table.add_row("members", *(f"{p.members:,}" for p in group))
        probabilities = (p.probability for p in group)
        table.add_row("probability", *(f"{v:.2f}" if _known(v) else "-" for v in probabilities))
        table.add_row("valid", *("yes" if p.valid else "no" for p in group))
        table.add_section()
        for i, feature in enumerate(schema.features):
            table.add_row(Text(feature.name), *(Text(feature.text(p.cells[i])) for p in group))
        yield table


def prototype_frame(schema: Schema, prototypes: Sequence[Prototype]) -> Any:
    """A frame with a line per prototype: facts about it, then its row."""
    import numpy as np

    from lapace.table import Template

    template = schema.template
    if template.kind in ("array", "records"):  # no frames
        kinds = {True: "int64", False: "float64"}
        dtypes = ("object" if f.categories else kinds[f.integer] for f in schema.features)
        template = Template("pandas", schema.names, tuple(dtypes))
    about = {name: np.array([getattr(p, name) for p in prototypes]) for name in ABOUT}
    return schema.frame(np.stack([p.cells for p in prototypes]), template, before=about)


def prototype_values(schema: Schema, prototype: Prototype) -> dict[str, Any]:
    """A prototype as plain JSON values."""
    from lapace.result import record

    values = {name: getattr(prototype, name) for name in ABOUT}
    values["probability"] = values["probability"] if _known(values["probability"]) else None
    return {**values, "row": record(schema, prototype.cells)}


def data_set_table() -> Table:
    """The data sets of `lapace.datasets`, one line each."""
    from lapace.datasets.catalog import CATALOG

    columns = {
        "name": list(CATALOG),
        "target": [str(facts.get("target", "-")) for facts in CATALOG.values()],
        "licence": [facts["licence"] for facts in CATALOG.values()],
        "description": [facts["description"] for facts in CATALOG.values()],
    }
    table = _table(columns)
    table.columns[0].no_wrap = True
    return table
