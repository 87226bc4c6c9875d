"""A report as text for terminals and as an HTML fragment: the same tables, drawn twice."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from lapace.report.record import Report

WIDTH = 100  # characters of a line of text
WORST = 12  # columns shown, worst first; JSON has all


class _Part(NamedTuple):
    """A heading, sentences under it, and a table or list."""

    title: str
    says: str = ""
    head: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    lines: Sequence[str] = ()


def as_text(report: Report) -> str:
    """A report for instances at a terminal."""
    blocks = [_wrapped(report.headline)]
    for part in _parts(report):
        block = [part.title] if part.title else []
        block += [_wrapped(part.says, "  " if part.title else "")] * bool(part.says)
        block += _aligned((part.head, *part.rows)) if part.rows else []
        block += [_wrapped(line, "  - ", "    ") for line in part.lines]
        blocks.append("\n".join(block))
    return "\n\n".join(blocks)


def _wrapped(text: str, first: str = "", later: str | None = None) -> str:
    rest = first if later is None else later
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=rest)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns under each other; the last one is wrapped inside its own."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    indent = 2 + sum(widths) + 2 * len(widths)
    lines = []
    for row in rows:
        start = "  " + "".join(f"{cell:<{w}}  " for cell, w in zip(row[:-1], widths, strict=True))
        room = max(24, WIDTH - indent)
        last = textwrap.wrap(row[-1], room) or [""]
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
.lapace-report .care{color:#b26a00}
.lapace-report .fails{color:#c62828}
.lapace-report .passes,.lapace-report .care,.lapace-report .fails{font-weight:600}
"""
_MARKS = ("passes", "care", "fails")


def as_html(report: Report) -> str:
    """A report for notebooks and pages: one `div` that brings its own style and runs nothing."""
    body = "".join(_section(part) for part in _parts(report))
    return (
        f'<div class="lapace-report"><style>{_STYLE}</style>'
        f'<h3 class="{_mark(report.verdict)}">{escape(report.headline)}</h3>{body}</div>'
    )


def _section(part: _Part) -> str:
    title = f"<h4>{escape(part.title)}</h4>" if part.title else ""
    says = f"<p>{escape(part.says)}</p>" if part.says else ""
    table = ""
    if part.rows:
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in part.head)
        judged = part.head[0] == "verdict"
        rows = "".join(f"<tr>{_cells(row, judged)}</tr>" for row in part.rows)
        table = (
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>"
        )
    items = "".join(f"<li>{escape(line)}</li>" for line in part.lines)
    return title + says + table + (f"<ul>{items}</ul>" if items else "")


def _cells(row: Sequence[str], judged: bool) -> str:
    mark = f' class="{row[0]}"' if judged and row[0] in _MARKS else ""
    rest = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
    return f"<td{mark}>{escape(row[0])}</td>{rest}"


# ------------------------------------------------------------------------------------------------
# What both show


def _parts(report: Report) -> list[_Part]:
    parts = [
        _Part("", _facts(report)),
        _Part("What to try", lines=report.advice),
        _Part("To know", lines=report.warnings),
        _checks(report),
        _labels(report),
        _clusters(report),
        _columns(report),
        _Part(
            "Rules",
            head=("holds on", "rule"),
            rows=[(f"{r.holds:,} of {r.rows:,} rows", r.text) for r in report.rules],
        ),
    ]
    return [part for part in parts if part.says or part.rows or part.lines]


def _facts(report: Report) -> str:
    asked = report.n_queries
    purposes = (
        (asked.labels, "labels"),
        (asked.centroids, "centroids"),
        (asked.repair, "repair"),
        (asked.report, "this report"),
    )
    told = ", ".join(f"{n:,} for {what}" for n, what in purposes if n)
    return (
        f"{report.rows:,} rows, {len(report.labels)} labels, recipe '{report.recipe}', fitted in "
        f"{report.seconds:.1f} s; {report.held_out:,} rows were held out for this report. "
        f"The classifier was asked about {asked.total:,} rows{': ' * bool(told)}{told}."
    )


def _checks(report: Report) -> _Part:
    rows = [
        (_mark(c.verdict), c.threshold.question, c.threshold.limits, c.text) for c in report.checks
    ]
    says = "A value is judged after its margin (±) is allowed in its favour."
    return _Part("Checks", says, ("verdict", "what", "limits", "found"), rows)


def _mark(verdict: str) -> str:
    """A verdict in a word, where there is no room for three."""
    return "care" if verdict == "usable with care" else verdict


def _labels(report: Report) -> _Part:
    head = ("label", "rows", "prototypes", "agreement", "KS", "recall: real rows", "sampled rows")
    rows = [
        (
            str(x.label),
            f"{x.rows:,}",
            f"{x.prototypes} of {x.clusters}",
            _percent(x.agreement),
            "-" if x.ks is None else f"{x.ks:.2f}",
            _percent(x.recall_real),
            _percent(x.recall_sampled),
        )
        for x in report.labels
    ]
    says = "Agreement: rows sampled for a label that the classifier gives it."
    if report.utility:
        u = report.utility
        says += (
            f" Quick forests of real and of sampled rows are right on {_percent(u.real)} and "
            f"{_percent(u.synthetic)} of the held-out rows (balanced {_percent(u.balanced_real)} "
            f"and {_percent(u.balanced_synthetic)})."
        )
    return _Part("Labels", says if rows else "", head, rows)


def _clusters(report: Report) -> _Part:
    head = ("no.", "label", "members", "of even", "prototype", "probability", "looks like")
    rows = [
        (
            str(c.number),
            str(c.label),
            f"{c.members:,}",
            f"{c.share:.2f}",
            c.state,
            "-" if c.probability is None else f"{c.probability:.2f}",
            ", ".join(map(str, c.looks)) + (f" [{c.remarks}]" * bool(c.remarks)),
        )
        for c in report.clusters
    ]
    return _Part("Clusters", "", head, rows)


def _columns(report: Report) -> _Part:
    ranked = sorted(report.columns, key=lambda c: -c.error / c.guess if c.guess else 0.0)
    rows = [(c.name, c.text) for c in ranked[:WORST]]
    says = "Held-out rows, encoded and decoded; beside it, always saying the usual value."
    if len(ranked) > WORST:
        says += f" The worst {WORST} of {len(ranked)} columns."
    return _Part("Columns", says if rows else "", ("column", "reconstruction"), rows)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
