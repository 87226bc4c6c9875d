"""The contents of a report: frozen records that go to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapace.documents import plain, restore
from lapace.errors import InputError
from lapace.files import read_json, write_json
from lapace.report.checks import Check, Verdict, number
from lapace.report.rendering import as_html, as_text
from lapace.table import Level

VERSION = 4
READABLE = (3, VERSION)  # version 3 also held figures that nothing was judged by


@dataclass(frozen=True)
class ExplainedLabel:
    """Counterfactuals of held-out instances for one target.

    Attributes:
        label: The target.
        tried: Instances explained, less those for which the rules allow no row at all.
        answered: Instances with a counterfactual.
        changed: Median number of features that a counterfactual changes.
        distance: Mean distance of the counterfactuals from their instances.
        training_distance: Mean distance of the nearest training row of the target.
        usual: Share of real rows of the label that are as unusual as the median counterfactual or
            more so, by their local outlier factor.
        lof: Median local outlier factor of the counterfactuals among real rows.
        lof_real: Median local outlier factor of real rows, each among the others.
        density: Median density percentile of the counterfactuals.
        density_real: Median density percentile of held-out rows of the label.
        survival: Mean estimated chance to survive retraining; None where unknown.

    Examples:
        >>> yes = ExplainedLabel("yes", 20, 20, 3.0, 0.4, 0.9, 0.41, 1.1, 1.0, 30, 50, None)
        >>> print(yes.sentence)
        A typical counterfactual to 'yes' changes 3 features and is as usual as 41% of real rows.
    """

    label: Level
    tried: int
    answered: int
    changed: float | None
    distance: float | None
    training_distance: float | None
    usual: float | None
    lof: float | None
    lof_real: float | None
    density: float | None
    density_real: float | None
    survival: float | None

    @property
    def sentence(self) -> str:
        """A description of a typical counterfactual in words."""
        if self.changed is None:
            return f"No counterfactual to {self.label!r} was found."
        count = number(self.changed, "count")
        usual = "" if self.usual is None else f" and is as usual as {self.usual:.0%} of real rows"
        return (
            f"A typical counterfactual to {self.label!r} changes {count} "
            f"feature{'s' * (count != '1')}{usual}."
        )


@dataclass(frozen=True)
class Cluster:
    """A cluster and its prototype.

    Attributes:
        number: The prototype's number, as in explanations.
        label: Its label.
        members: Training rows in it.
        valid_before: Whether the classifier gave the centroid, before any repair, its label.
        valid: Whether the classifier gives the prototype its label.
        probability: Probability of that label; None where the classifier offers none.
        note: The repair in words; empty where there was none.

    Examples:
        >>> Cluster(3, "yes", 90, False, True, 0.8, "").state
        'repaired'
    """

    number: int
    label: Level
    members: int
    valid_before: bool
    valid: bool
    probability: float | None
    note: str

    @property
    def state(self) -> str:
        """Whether the prototype is valid, repaired, or refused by the classifier."""
        if not self.valid:
            return "refused"
        return "valid" if self.valid_before else "repaired"


@dataclass(frozen=True)
class LabelFit:
    """A label, its rows and its prototypes.

    Attributes:
        label: The label.
        rows: Rows of the table to which the classifier gives it.
        held_out: Those of these rows that were kept from training.
        clusters: Clusters it got.
        prototypes: Clusters whose prototype is valid.
    """

    label: Level
    rows: int
    held_out: int
    clusters: int
    prototypes: int


@dataclass(frozen=True)
class ColumnFit:
    """The reconstruction of a column on held-out rows.

    Attributes:
        name: The column.
        kind: Its kind, as in the schema.
        error: Mean absolute error over the range for numbers, share of wrong values for categories;
            a value gone missing, or present where it was missing, counts 1.
        baseline: The error of always predicting the median or the most frequent category.

    Examples:
        >>> ColumnFit("home", "categorical", error=0.08, baseline=0.4).text
        'right 92.0% (baseline 60.0%)'
    """

    name: str
    kind: str
    error: float
    baseline: float

    @property
    def text(self) -> str:
        """Error and baseline in the unit of this kind of column."""
        error, baseline = self.error, self.baseline
        if self.kind in ("continuous", "ordinal"):
            return f"off by {error:.1%} of the range (baseline {baseline:.1%})"
        return f"right {1 - error:.1%} (baseline {1 - baseline:.1%})"


@dataclass(frozen=True)
class Rule:
    """A rule, and the number of training rows on which it holds, of those checked."""

    text: str
    holds: int
    rows: int

    @property
    def share(self) -> float | None:
        """Share of the rows on which it holds; None where none was checked."""
        return self.holds / self.rows if self.rows else None


@dataclass(frozen=True)
class Queries:
    """Rows the classifier was queried about, by purpose.

    Attributes:
        labels: The rows of the table.
        made_up: Rows proposed to top up labels that are short.
        centroids: Centroids judged.
        repair: Repairs of refused centroids.
        survival: Held-out rows that scale the estimate of survival.
        report: Rows of the report.
    """

    labels: int = 0
    made_up: int = 0
    centroids: int = 0
    repair: int = 0
    survival: int = 0
    report: int = 0

    @property
    def total(self) -> int:
        """The sum over all purposes."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class Report:
    """Checks of the counterfactuals of held-out rows, and whether to trust the explainer.

    Attributes:
        recipe: The recipe the model was trained by.
        rows: Rows of the table.
        held_out: Rows kept from training for this report.
        seconds: Seconds that fitting took, without the report.
        n_queries: Rows the classifier was queried about.
        checks: Every check and its value.
        explained: Counterfactuals of held-out rows by target.
        labels: Every label.
        clusters: Every cluster.
        columns: Every column.
        rules: Every rule.
        warnings: Scarce labels, in words.
        accuracy: The classifier's accuracy on all rows, where `fit` was given the true labels.

    Examples:
        >>> from lapace.report import THRESHOLDS
        >>> check = Check(THRESHOLDS["answered"], 0.95)
        >>> report = Report("default", 0, 0, 0.0, Queries(), (check,), (), (), (), (), (), ())
        >>> print(report.headline)
        Report on the explanations: passes. The one check passes.
        >>> Report.from_json(report.to_json()) == report
        True
    """

    recipe: str
    rows: int
    held_out: int
    seconds: float
    n_queries: Queries
    checks: tuple[Check, ...]
    explained: tuple[ExplainedLabel, ...]
    labels: tuple[LabelFit, ...]
    clusters: tuple[Cluster, ...]
    columns: tuple[ColumnFit, ...]
    rules: tuple[Rule, ...]
    warnings: tuple[str, ...]
    accuracy: float | None = None

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the checks; unsure at best where an essential value is missing."""
        verdicts = {c.verdict for c in self.checks}
        if "fails" in verdicts:
            return "fails"
        unknown = any(c.value is None and c.threshold.essential for c in self.checks)
        return "unsure" if unknown or "unsure" in verdicts else "passes"

    @property
    def headline(self) -> str:
        """The verdict as a sentence."""
        verdicts, total = [c.verdict for c in self.checks], len(self.checks)
        parts = [
            f"{n} {one if n == 1 else many}"
            for n, one, many in (
                (verdicts.count("fails"), "fails", "fail"),
                (verdicts.count("unsure"), "is unsure", "are unsure"),
                (verdicts.count("not measured"), *["could not be measured"] * 2),
            )
            if n
        ]
        rest = "The one check passes" if total == 1 else f"All {total} checks pass"
        rest = f"Of {total} checks {', '.join(parts)}" if parts else rest
        return f"Report on the explanations: {self.verdict}. {rest}."

    @property
    def advice(self) -> tuple[str, ...]:
        """Every problem and a remedy in words, the worst first."""
        order: tuple[Verdict, ...] = ("fails", "unsure", "not measured")
        ranked = (c for verdict in order for c in self.checks if c.verdict == verdict)
        return tuple(c.advice for c in ranked if c.advice)

    def __repr__(self) -> str:
        return f"Report: {self.verdict} ({len(self.checks)} checks, {len(self.clusters)} clusters)"

    __str__ = as_text
    to_html = _repr_html_ = as_html

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """Returns plain JSON values, and writes them to `path` where one is given."""
        values = plain(self)
        for line, check in zip(values["checks"], self.checks, strict=True):
            line["verdict"] = check.verdict
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
        if data.get("version") not in READABLE:
            raise InputError(
                f"This report has format version {data.get('version')}; this lapace reads "
                f"{' and '.join(map(str, READABLE))}. Update lapace, or fit again."
            )
        return restore(cls, data, "this report")
