"""A report: what it holds, and how it is written as text, HTML and JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from lapace.documents import plain, restore
from lapace.errors import InputError
from lapace.files import read_json, write_json
from lapace.report.checks import Check, Verdict, written
from lapace.table import Level

VERSION = 7


@dataclass(frozen=True)
class ExplainedLabel:
    """Counterfactuals of held-out instances for one target.

    Attributes:
        label: The target.
        tried: Instances explained, less those for which the rules allow no row at all.
        answered: Instances with a counterfactual.
        changed: Median number of features that a counterfactual changes.
        usual: Share of real rows of the label that are as unusual as the median counterfactual or
            more so, by their local outlier factor.
        checks: The checks of this target alone.

    Examples:
        >>> yes = ExplainedLabel("yes", 20, 20, 3.0, 0.41)
        >>> print(yes.sentence)
        A typical counterfactual to 'yes' changes 3 features and is as usual as 41% of real rows.
    """

    label: Level
    tried: int
    answered: int
    changed: float | None
    usual: float | None
    checks: tuple[Check, ...] = ()

    @property
    def sentence(self) -> str:
        """A description of a typical counterfactual in words."""
        if self.changed is None:
            return f"No counterfactual to {self.label!r} was found."
        count = written(self.changed, "count")
        usual = "" if self.usual is None else f" and is as usual as {self.usual:.0%} of real rows"
        return (
            f"A typical counterfactual to {self.label!r} changes {count} "
            f"feature{'s' * (count != '1')}{usual}."
        )


@dataclass(frozen=True)
class Rule:
    """A rule, and the number of training rows on which it holds, of those checked."""

    text: str
    holds: int
    rows: int


@dataclass(frozen=True)
class Report:
    """Checks of the counterfactuals of held-out rows, and whether to trust the explainer.

    Attributes:
        recipe: The recipe the model was trained by.
        rows: Rows of the table.
        held_out: Rows kept from training for this report.
        seconds: Seconds that fitting took, without the report.
        n_queries: Rows the classifier was queried about, for the fit and for the report.
        checks: Every check and its value, for all targets together.
        explained: Counterfactuals of held-out rows by target.
        rules: Every rule that was given.
        warnings: Labels with few rows or clusters, in words.
        accuracy: The classifier's accuracy on all rows, where `fit` was given the true labels.
        learned: The rules learned from the table, each with its support.

    Examples:
        >>> from lapace.report import THRESHOLDS
        >>> checks = Check(THRESHOLDS["answered"], 0.95), Check(THRESHOLDS["valid"], 0.5)
        >>> report = Report("default", 0, 0, 0.0, {}, checks, (), (), ())
        >>> print(report.headline)
        Report on the explanations: fails. 1 of 2 checks pass.
        >>> Report.from_json(report.to_json()) == report
        True
    """

    recipe: str
    rows: int
    held_out: int
    seconds: float
    n_queries: dict[str, int]
    checks: tuple[Check, ...]
    explained: tuple[ExplainedLabel, ...]
    rules: tuple[Rule, ...]
    warnings: tuple[str, ...]
    accuracy: float | None = None
    learned: tuple[Rule, ...] = ()

    def verdict_for(self, target: Any) -> Verdict:
        """Returns the verdict on explanations for one target; of any other, the whole report's."""
        known = any(x.label == target for x in self.explained)
        return _worst(self._judged(target)) if known else self.verdict

    def _judged(self, target: Any) -> list[Check]:
        """Returns the checks that count for a target: its own where there are any.

        Where its own are too few to tell and meet the limit, all targets together decide.
        """
        own = {c.threshold.name: c for x in self.explained if x.label == target for c in x.checks}
        judged = []
        for pooled in self.checks:
            check = own.get(pooled.threshold.name, pooled)
            together = check.verdict == "unsure" and pooled.verdict == "passes"
            judged.append(pooled if together and check.meets_limit else check)
        return judged

    @property
    def verdict(self) -> Verdict:
        """The verdict on all targets: fails if all fail, and is unsure if some do.

        A target's verdict is the worst of its checks, and unsure at best where an essential value
        is missing.
        """
        together = _worst(self.checks)
        each = {_worst(self._judged(x.label)) for x in self.explained} or {together}
        mixed = len(each) > 1 or (each == {"passes"} and together == "fails")
        return "unsure" if mixed else each.pop()

    @property
    def headline(self) -> str:
        """The verdict as a sentence; target by target where they differ."""
        total, passed = len(self.checks), sum(c.verdict == "passes" for c in self.checks)
        count = f"All {total}" if passed == total else f"{passed} of {total}"
        by_verdict: dict[str, list[str]] = {}
        for x in self.explained:
            by_verdict.setdefault(self.verdict_for(x.label), []).append(repr(x.label))
        parts = [f"{verdict} for {', '.join(by)}" for verdict, by in by_verdict.items()]
        verdict = "; ".join(parts) if len(parts) > 1 else self.verdict
        missing = sum(c.verdict == "not measured" for c in self.checks)
        more = f", {missing} not measured" if missing else ""
        return f"Report on the explanations: {verdict}. {count} checks pass{more}."

    @property
    def advice(self) -> tuple[str, ...]:
        """Every problem and a remedy in words, the worst first."""
        failing = self._failing()
        named = {c.threshold.name for c in failing}
        return _advice([*failing, *(c for c in self.checks if c.threshold.name not in named)])

    def advice_for(self, target: Any) -> tuple[str, ...]:
        """Returns the problems of one target and remedies, the worst first."""
        return _advice(self._judged(target))

    def _failing(self) -> list[Check]:
        """Returns the checks that single targets fail and all of them together do not."""
        fine = {c.threshold.name for c in self.checks if c.verdict != "fails"}
        return [
            replace(c, where=f"target {x.label!r}")
            for x in self.explained
            for c in x.checks
            if c.verdict == "fails" and c.threshold.name in fine
        ]

    def __repr__(self) -> str:
        return f"Report: {self.verdict} ({len(self.checks)} checks)"

    def __str__(self) -> str:
        blocks = [_wrapped(self.headline)]
        for section in _sections(self):
            block = [section.title, _wrapped(section.text, "  " if section.title else "")]
            if section.head:
                block += _aligned((section.head, *section.rows))
            else:
                block += [_wrapped(item, "  - ", "    ") for (item,) in section.rows]
            blocks.append("\n".join(line for line in block if line))
        return "\n\n".join(blocks)

    def to_html(self) -> str:
        """Returns the report for notebooks and pages: one `div` with its style and no script."""
        heading = f'<h3 class="{self.verdict}">{escape(self.headline)}</h3>'
        body = "".join(map(_html, _sections(self)))
        return f'<div class="lapace-report"><style>{_STYLE}</style>{heading}{body}</div>'

    _repr_html_ = to_html

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """Returns plain JSON values, and writes them to `path` where one is given."""
        values = plain(self)
        for line, check in zip(values["checks"], self.checks, strict=True):
            line["verdict"] = check.verdict
        for line, x in zip(values["explained"], self.explained, strict=True):
            line["verdict"] = self.verdict_for(x.label)
        head = {"format": "lapace/report", "version": VERSION, "verdict": self.verdict}
        data = {**head, **values}
        if path is not None:
            write_json(path, data)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str | Path) -> Report:
        """Reads back what `to_json` returned or wrote, from values or from a file."""
        if isinstance(data, str | Path):
            data = read_json(data, "a report")
        if not isinstance(data, Mapping) or data.get("format") != "lapace/report":
            raise InputError("This is not a report: its 'format' is not 'lapace/report'.")
        if data.get("version") != VERSION:
            raise InputError(
                f"This report has format version {data.get('version')}; this lapace reads "
                f"{VERSION}. Update lapace, or fit again."
            )
        return restore(cls, data, "this report")


def _worst(checks: Sequence[Check]) -> Verdict:
    """Returns the worst verdict; unsure at best where an essential value is missing."""
    verdicts = {c.verdict for c in checks}
    if "fails" in verdicts:
        return "fails"
    unknown = any(c.value is None and c.threshold.essential for c in checks)
    return "unsure" if unknown or "unsure" in verdicts else "passes"


def _advice(checks: Sequence[Check]) -> tuple[str, ...]:
    order: tuple[Verdict, ...] = ("fails", "unsure", "not measured")
    ranked = (c for verdict in order for c in checks if c.verdict == verdict)
    return tuple(c.advice for c in ranked if c.advice)


# ------------------------------------------------------------------------------------------------
# Sections, which text and HTML share


class _Section(NamedTuple):
    """A heading, a text under it, and a table; without a head, rows are the items of a list."""

    title: str
    text: str = ""
    head: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()


def _sections(report: Report) -> list[_Section]:
    """Returns the sections that have something to show."""
    least_usual = sorted(report.explained, key=lambda x: -1.0 if x.usual is None else x.usual)[:3]
    sections = [
        _Section("", " ".join(x.sentence for x in least_usual)),
        _Section("", _facts(report)),
        _Section("What to try", rows=[(sentence,) for sentence in report.advice]),
        _Section("Warnings", rows=[(sentence,) for sentence in report.warnings]),
        _Section(
            "Checks",
            "90% intervals are in brackets. A check is unsure if its interval holds the limit.",
            ("verdict", "check", "needed", "measured"),
            [(c.verdict, c.threshold.question, c.threshold.limits, c.text) for c in report.checks],
        ),
        _Section(
            "Counterfactuals",
            "The nearest counterfactuals of held-out rows.",
            ("verdict", "target", "answered", "changes", "as usual as"),
            [(report.verdict_for(x.label), *_cells(x)) for x in report.explained],
        ),
        _Section(
            "Rules",
            head=("holds on", "rule"),
            rows=[(f"{r.holds:,} of {r.rows:,} rows", r.text) for r in report.rules],
        ),
        _Section(
            "Learned rules",
            "Every training row keeps these, and so does every counterfactual. To leave one out: "
            "learn_rules={'…': False}, --without-rule '…'.",
            ("support", "rule"),
            [(f"{r.rows:,} rows", r.text) for r in report.learned],
        ),
    ]
    return [s for s in sections if s.rows or (s.text and not s.head)]


def _facts(report: Report) -> str:
    words = {"fit": "the fit", "made_up": "made-up rows", "report": "this report"}
    counts = [f"{n:,} for {words.get(name, name)}" for name, n in report.n_queries.items() if n]
    total = f"{sum(report.n_queries.values()):,} rows"
    right = report.accuracy
    accuracy = "" if right is None else f" It predicts the true label of {right:.1%} of the rows."
    return (
        f"{report.rows:,} rows, recipe '{report.recipe}', fitted in {report.seconds:.1f} s; "
        f"{report.held_out:,} rows were held out for this report. The classifier was queried about "
        f"{total}{': ' * bool(counts)}{', '.join(counts)}.{accuracy}"
    )


def _cells(x: ExplainedLabel) -> tuple[str, ...]:
    """Returns the cells of one target in the table of counterfactuals."""
    changed = "-" if x.changed is None else f"{x.changed:g}"
    usual = "-" if x.usual is None else f"{x.usual:.0%} of real rows"
    return str(x.label), f"{x.answered} of {x.tried}", changed, usual


WIDTH = 100  # characters of a line of text


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


_STYLE = """
.lapace-report{font:14px/1.45 system-ui,sans-serif;max-width:70em}
.lapace-report h3{font-size:1.15em;margin:.2em 0}
.lapace-report h4{font-size:1em;margin:1.2em 0 .2em}
.lapace-report p{margin:.2em 0}
.lapace-report .scroll{overflow-x:auto}
.lapace-report table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.lapace-report th,.lapace-report td{text-align:left;vertical-align:top;padding:.15em .9em .15em 0;
border-bottom:1px solid rgba(128,128,128,.3)}
.lapace-report .passes{color:#2e7d32;font-weight:600}
.lapace-report .unsure{color:#b26a00;font-weight:600}
.lapace-report .fails{color:#c62828;font-weight:600}
"""


def _html(section: _Section) -> str:
    parts = [f"<h4>{escape(section.title)}</h4>"] if section.title else []
    parts += [f"<p>{escape(section.text)}</p>"] if section.text else []
    if section.head:
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in section.head)
        rows = "".join(_html_row(row, section.head[0] == "verdict") for row in section.rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        parts.append(f'<div class="scroll">{table}</div>')
    elif section.rows:
        items = "".join(f"<li>{escape(item)}</li>" for (item,) in section.rows)
        parts.append(f"<ul>{items}</ul>")
    return "".join(parts)


def _html_row(row: Sequence[str], starts_with_verdict: bool) -> str:
    mark = f' class="{row[0]}"' if starts_with_verdict and row[0] != "not measured" else ""
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
    return f"<tr><td{mark}>{escape(row[0])}</td>{cells}</tr>"
