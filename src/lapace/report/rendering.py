"""A report as text for terminals and as an HTML fragment: both show the same sections."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from lapace.report.checks import number

if TYPE_CHECKING:
    from lapace.report.document import ExplainedLabel, Report

WIDTH = 100  # characters of a line of text
MOST = 12  # labels and columns shown; JSON has all


class _Section(NamedTuple):
    """A heading, a text under it, and a table or a list."""

    title: str
    text: str = ""
    head: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    items: Sequence[str] = ()


def _sections(report: Report) -> list[_Section]:
    """Returns the sections that have something to show."""
    rules = [(f"{r.holds:,} of {r.rows:,} rows", r.text) for r in report.rules]
    sections = [
        _Section("", sentences(report.explained)),
        _Section("", _facts(report)),
        _Section("What to try", items=report.advice),
        _Section("Warnings", items=report.warnings),
        _checks(report),
        _explained(report),
        _prototypes(report),
        _columns(report),
        _Section("Rules", head=("holds on", "rule"), rows=rules),
    ]
    return [s for s in sections if s.rows or s.items or (s.text and not s.head)]


def sentences(explained: Sequence[ExplainedLabel]) -> str:
    """Describes typical counterfactuals in words, of at most the three least usual targets."""
    ranked = sorted(explained, key=lambda x: -1.0 if x.usual is None else x.usual)
    return " ".join(x.sentence for x in ranked[:3])


def _facts(report: Report) -> str:
    names = {"made_up": "made-up rows", "report": "this report"}
    counts = {names.get(name, name): n for name, n in vars(report.n_queries).items()}
    parts = ", ".join(f"{n:,} for {purpose}" for purpose, n in counts.items() if n)
    right = report.accuracy
    accuracy = "" if right is None else f" It predicts the true label of {right:.1%} of the rows."
    return (
        f"{report.rows:,} rows, {len(report.labels)} labels, recipe '{report.recipe}', fitted in "
        f"{report.seconds:.1f} s; {report.held_out:,} rows were held out for this report. The "
        f"classifier was queried about {report.n_queries.total:,} rows{': ' * bool(parts)}{parts}."
        f"{accuracy}"
    )


def _checks(report: Report) -> _Section:
    rows = [(c.verdict, c.threshold.question, c.threshold.limits, c.text) for c in report.checks]
    text = "90% intervals are in brackets. A check is unsure where the limit lies inside."
    return _Section("Checks", text, ("verdict", "check", "needed", "measured"), rows)


def _explained(report: Report) -> _Section:
    head = (
        "target", "answered", "changes", "distance", "nearest row", "LOF", "real rows", "density",
        "real rows", "survival",
    )  # fmt: skip
    rows = [
        (
            str(x.label),
            f"{x.answered} of {x.tried}",
            "-" if x.changed is None else number(x.changed, "count"),
            _decimal(x.distance),
            _decimal(x.training_distance),
            _decimal(x.lof),
            _decimal(x.lof_real),
            _decimal(x.density, 0),
            _decimal(x.density_real, 0),
            "-" if x.survival is None else f"{x.survival:.1%}",
        )
        for x in report.explained
    ]
    text = (
        "Held-out rows explained: the nearest counterfactual beside the nearest training row and "
        "beside real rows of the target. LOF: local outlier factor; density: percentile."
    )
    return _Section("Counterfactuals", text, head, rows)


def _prototypes(report: Report) -> _Section:
    head = ("number", "label", "members", "probability", "prototype")
    rows = [
        (
            str(c.number),
            str(c.label),
            f"{c.members:,}",
            _decimal(c.probability),
            c.note or c.state,
        )
        for c in report.clusters
    ]
    labels = (
        f"{x.prototypes} of {x.clusters} valid for {x.label!r} ({x.rows:,} rows)"
        for x in report.labels[:MOST]
    )
    return _Section("Prototypes", f"{', '.join(labels)}.", head, rows)


def _columns(report: Report) -> _Section:
    ranked = sorted(report.columns, key=lambda c: -c.error / c.baseline if c.baseline else 0.0)
    rows = [(c.name, c.text) for c in ranked[:MOST]]
    text = "Held-out rows, encoded and decoded; the baseline always predicts the usual value."
    if len(ranked) > MOST:
        text += f" The worst {MOST} of {len(ranked)} columns."
    return _Section("Columns", text, ("column", "reconstruction"), rows)


def _decimal(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


# ------------------------------------------------------------------------------------------------
# Text


def as_text(report: Report) -> str:
    """Returns a report for a terminal."""
    blocks = [_wrapped(report.headline)]
    for section in _sections(report):
        indent = "  " if section.title else ""
        block = [section.title, _wrapped(section.text, indent)]
        block += _aligned((section.head, *section.rows)) if section.rows else []
        block += [_wrapped(item, "  - ", "    ") for item in section.items]
        blocks.append("\n".join(line for line in block if line))
    return "\n\n".join(blocks)


def _wrapped(text: str, first: str = "", later: str | None = None) -> str:
    rest = first if later is None else later
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=rest)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Returns lines with aligned columns; the last column is wrapped."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    indent = 2 + sum(widths) + 2 * len(widths)
    lines = []
    for row in rows:
        start = "  " + "".join(f"{cell:<{w}}  " for cell, w in zip(row[:-1], widths, strict=True))
        last = textwrap.wrap(row[-1], max(24, WIDTH - indent)) or [""]
        lines += [(start + last[0]).rstrip(), *(" " * indent + more for more in last[1:])]
    return lines


# ------------------------------------------------------------------------------------------------
# HTML

_STYLE = """
.lapace-report{font:14px/1.45 system-ui,sans-serif;max-width:70em}
.lapace-report h3{font-size:1.15em;margin:.2em 0}
.lapace-report h4{font-size:1em;margin:1.2em 0 .2em}
.lapace-report p{margin:.2em 0}
.lapace-report .scroll{overflow-x:auto}
.lapace-report table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.lapace-report th,.lapace-report td{text-align:left;vertical-align:top;padding:.15em .9em .15em 0;
border-bottom:1px solid rgba(128,128,128,.3)}
.lapace-report .passes{color:#2e7d32}
.lapace-report .unsure{color:#b26a00}
.lapace-report .fails{color:#c62828}
.lapace-report .passes,.lapace-report .unsure,.lapace-report .fails{font-weight:600}
"""


def as_html(report: Report) -> str:
    """Returns a report for notebooks and pages: one `div` with its style and no script."""
    body = "".join(map(_html, _sections(report)))
    heading = f'<h3 class="{report.verdict}">{escape(report.headline)}</h3>'
    return f'<div class="lapace-report"><style>{_STYLE}</style>{heading}{body}</div>'


def _html(section: _Section) -> str:
    parts = [f"<h4>{escape(section.title)}</h4>"] if section.title else []
    parts += [f"<p>{escape(section.text)}</p>"] if section.text else []
    if section.rows:
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in section.head)
        marked = section.head[0] == "verdict"
        rows = "".join(f"<tr>{_cells(row, marked)}</tr>" for row in section.rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        parts.append(f'<div class="scroll">{table}</div>')
    items = "".join(f"<li>{escape(item)}</li>" for item in section.items)
    return "".join(parts) + (f"<ul>{items}</ul>" if items else "")


def _cells(row: Sequence[str], marked: bool) -> str:
    mark = f' class="{row[0]}"' if marked and row[0] in ("passes", "unsure", "fails") else ""
    return f"<td{mark}>{escape(row[0])}</td>" + "".join(f"<td>{escape(c)}</td>" for c in row[1:])
