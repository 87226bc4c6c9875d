"""The contents of a report: frozen records that go to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from lapace.errors import InputError
from lapace.metrics.synthetic import Utility
from lapace.report.rendering import as_html, as_text
from lapace.report.thresholds import Threshold, Unit, Verdict, number, suffix
from lapace.table import Level, read_json, write_json

VERSION = 3


@dataclass(frozen=True)
class Check:
    """A threshold, the value found, and between which values the true one lies.

    Attributes:
        threshold: What is measured, and what is needed.
        value: The value found; None where it could not be measured.
        low: Lower end of its 90 % interval; the value itself where nothing was sampled.
        high: The upper end.
        where: The label or rule with the worst value, which is this one.
        reason: Why there is no value.

    Examples:
        >>> from lapace.report import THRESHOLDS
        >>> check = Check(THRESHOLDS["answered"], 0.89, 0.75, 0.96, where="label 'no'")
        >>> check.verdict, check.text
        ('unsure', "89 % (75 to 96 %; label 'no')")
    """

    threshold: Threshold
    value: float | None
    low: float | None = None
    high: float | None = None
    where: str = ""
    reason: str = ""

    @property
    def verdict(self) -> Verdict:
        """Passes, unsure, fails, or not measured."""
        if self.value is None:
            return "not measured"
        low, high = (self.value if end is None else end for end in (self.low, self.high))
        return self.threshold.judge(low, high)

    @property
    def text(self) -> str:
        """The value, its interval, and where it was found; or why there is none."""
        if self.value is None:
            return self.reason
        unit = self.threshold.unit
        between = ""
        if self.low is not None and self.high is not None and self.low < self.high:
            between = f"{number(self.low, unit)} to {number(self.high, unit)}{suffix(unit)}"
        notes = "; ".join(part for part in (between, self.where) if part)
        return f"{number(self.value, unit)}{suffix(unit)}" + (f" ({notes})" if notes else "")

    @property
    def advice(self) -> str:
        """What is wrong and what to try; empty for a check that passes."""
        about = f"{self.threshold.question}: "
        if self.verdict == "passes" or (self.value is None and not self.threshold.essential):
            return ""
        if self.value is None:
            return f"{about}not measured. {self.reason[:1].upper()}{self.reason[1:]}."
        found = f"{about}{self.text}; needed {self.threshold.limits}."
        if self.verdict == "unsure":
            return f"{found} Too few rows were held out to tell: more rows would."
        return f"{found} Try: {self.threshold.advice}"


@dataclass(frozen=True)
class Figure:
    """A value for information: nothing is judged by it.

    Attributes:
        name: Its name in JSON.
        question: What is measured, in a few words.
        unit: As of a `Threshold`.
        value: The value found; None where it could not be measured.
        note: Where it was found, or why there is none.

    Examples:
        >>> Figure("agreement", "sampled rows given their label", "share", 0.93, "label 'no'").text
        "93 % (label 'no')"
    """

    name: str
    question: str
    unit: Unit
    value: float | None
    note: str = ""

    @property
    def text(self) -> str:
        """The value and its note; or why there is none."""
        if self.value is None:
            return self.note
        note = f" ({self.note})" if self.note else ""
        return f"{number(self.value, self.unit)}{suffix(self.unit)}{note}"


@dataclass(frozen=True)
class ExplainedLabel:
    """What comes back for held-out instances when a label is the target.

    Attributes:
        label: The target.
        tried: Instances explained, less those for which the rules allow no row at all.
        answered: Those with a counterfactual.
        changed: Features a counterfactual changes, the median.
        distance: Of the counterfactuals from their instances, the mean.
        training_distance: Of the nearest training row of the target, the mean.
        usual: Share of real rows of the label that are as unusual as the median counterfactual or
            more so, by their local outlier factor.
        lof: Local outlier factor of the counterfactuals among real rows, the median.
        lof_real: The same of real rows, each compared with the others.
        density: Density percentile of the counterfactuals, the median.
        density_real: The same of held-out rows of the label.
        survival: Estimated chance to survive retraining, the mean; None where unknown.

    Examples:
        >>> found = ExplainedLabel("yes", 20, 20, 3.0, 0.4, 0.9, 0.41, 1.1, 1.0, 30, 50, None)
        >>> print(found.sentence)
        A typical counterfactual to 'yes' changes 3 features and is as usual as 41 % of real rows.
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
        """What a typical counterfactual is like, in words."""
        if self.changed is None:
            return f"No counterfactual to {self.label!r} was found."
        count = number(self.changed, "count")
        usual = "" if self.usual is None else f" and is as usual as {self.usual:.0%} of real rows"
        return (
            f"A typical counterfactual to {self.label!r} changes {count} "
            f"feature{'s' * (count != '1')}{usual}."
        ).replace("%", " %")


@dataclass(frozen=True)
class FeatureValue:
    """One feature of a prototype, beside its usual value: median or most frequent category.

    Examples:
        >>> str(FeatureValue("income", "52,300", "31,000"))
        'income 52,300 (usual 31,000)'
    """

    feature: str
    value: str
    usual: str

    def __str__(self) -> str:
        usual = f" (usual {self.usual})" if self.value != self.usual else ""
        return f"{self.feature} {self.value}{usual}"


@dataclass(frozen=True)
class Cluster:
    """A cluster and its prototype.

    Attributes:
        number: The prototype's number, as in explanations.
        label: Its label.
        members: Training rows in it.
        share: Members over the even part, rows of the label / its clusters.
        valid_before: Whether the classifier gave the centroid, before any repair, its label.
        valid: Whether it gives it to the prototype.
        probability: Of that label; None where the classifier offers none.
        note: How it was repaired, in words.
        distinctive: The features in which it differs most from the label's other prototypes, beside
            the label's usual value (where it is the only one: from, and in, the whole table).
        separation: Distance to the nearest other prototype of the label; None without one.
        duplicate_of: The number of an earlier prototype it is nearly the same as.

    Examples:
        >>> Cluster(3, "yes", 90, 0.9, False, True, 0.8, "", (), 0.4, None).state
        'repaired'
    """

    number: int
    label: Level
    members: int
    share: float
    valid_before: bool
    valid: bool
    probability: float | None
    note: str
    distinctive: tuple[FeatureValue, ...]
    separation: float | None
    duplicate_of: int | None

    @property
    def state(self) -> str:
        """Valid, repaired, or refused by the classifier."""
        if not self.valid:
            return "refused"
        return "valid" if self.valid_before else "repaired"

    @property
    def remarks(self) -> str:
        """What is unusual about it, in words."""
        dead = "" if self.members else "dead: no member"
        same = "" if self.duplicate_of is None else f"nearly the same as {self.duplicate_of}"
        return "; ".join(part for part in (self.note, dead, same) if part)


@dataclass(frozen=True)
class LabelFit:
    """A label: its rows, its prototypes, and how the classifier labels rows sampled for it.

    Attributes:
        label: The label.
        rows: Rows of the table the classifier gives it.
        held_out: Those among them kept from training.
        clusters: Clusters it got.
        prototypes: Those whose prototype is valid.
        sampled: Rows drawn for it.
        agreement: Share of them the classifier gives it.
        ks: KS distance of its probability between them and held-out rows of the label.
        overconfidence: The same counting only where the classifier is more certain of the sampled
            rows, sup_t F_real - F_sampled: agreement bought by avoiding the boundary. The other
            way round is usual for a classifier that overfits its training rows.
        recall_real: Share of its held-out rows found by a forest trained on real rows.
        recall_sampled: The same, trained on sampled rows.
    """

    label: Level
    rows: int
    held_out: int
    clusters: int
    prototypes: int
    sampled: int
    agreement: float | None
    ks: float | None
    overconfidence: float | None
    recall_real: float | None
    recall_sampled: float | None


@dataclass(frozen=True)
class ColumnFit:
    """How well a column is reconstructed, on held-out rows.

    Attributes:
        name: The column.
        kind: As in the schema.
        error: Mean |error| over the range for numbers, share of wrong ones for categories; a value
            gone missing, or found where there was none, counts 1.
        baseline: The same for always predicting the median or the most frequent category.

    Examples:
        >>> ColumnFit("home", "categorical", error=0.08, baseline=0.4).text
        'right 92.0 % (baseline 60.0 %)'
    """

    name: str
    kind: str
    error: float
    baseline: float

    @property
    def text(self) -> str:
        """Both in the unit of this kind of column."""
        error, baseline = 100 * self.error, 100 * self.baseline
        if self.kind in ("continuous", "ordinal"):
            return f"off by {error:.1f} % of the range (baseline {baseline:.1f} %)"
        return f"right {100 - error:.1f} % (baseline {100 - baseline:.1f} %)"


@dataclass(frozen=True)
class Rule:
    """A rule, and on how many of the training rows checked it holds."""

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
        repair: Repairs of those refused.
        survival: Rows held out, by which the estimate of survival is scaled.
        report: What the report needs.
    """

    labels: int = 0
    made_up: int = 0
    centroids: int = 0
    repair: int = 0
    survival: int = 0
    report: int = 0

    @property
    def total(self) -> int:
        """All together."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class Report:
    """What comes back for held-out rows, what was learned, and whether to trust it.

    Attributes:
        recipe: How the model was trained.
        rows: Rows of the table.
        held_out: Those kept from training, for this report.
        seconds: What fitting took, the report not counted.
        n_queries: Rows the classifier was queried about.
        checks: Every check and the value found.
        explained: What came back for held-out rows, target by target.
        figures: Values for information, by which nothing is judged.
        labels: Label by label.
        clusters: Cluster by cluster.
        columns: Column by column.
        rules: Rule by rule.
        utility: Accuracies of quick forests trained on real and on sampled rows; None where there
            were too few rows.
        paths: Paths computed for the re-crossing rate.
        recrossed: Those that left the target again.
        warnings: What else to know, in words.
        accuracy: Of the classifier on all rows, where `fit` was given the true labels.

    Examples:
        >>> from lapace.report import THRESHOLDS
        >>> check = Check(THRESHOLDS["answered"], 0.95)
        >>> none = ((), (), (), (), (), ())
        >>> report = Report("default", 0, 0, 0.0, Queries(), (check,), *none, None, 0, 0, ())
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
    figures: tuple[Figure, ...]
    labels: tuple[LabelFit, ...]
    clusters: tuple[Cluster, ...]
    columns: tuple[ColumnFit, ...]
    rules: tuple[Rule, ...]
    utility: Utility | None
    paths: int
    recrossed: int
    warnings: tuple[str, ...]
    accuracy: float | None = None

    @property
    def verdict(self) -> Verdict:
        """The worst of the checks; without an essential one, unsure at best."""
        found = {c.verdict for c in self.checks}
        if "fails" in found:
            return "fails"
        unknown = any(c.value is None and c.threshold.essential for c in self.checks)
        return "unsure" if unknown or "unsure" in found else "passes"

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
        """What is wrong and what to try, the worst first."""
        order: tuple[Verdict, ...] = ("fails", "unsure", "not measured")
        ranked = (c for verdict in order for c in self.checks if c.verdict == verdict)
        return tuple(c.advice for c in ranked if c.advice)

    def __repr__(self) -> str:
        return f"Report: {self.verdict} ({len(self.checks)} checks, {len(self.clusters)} clusters)"

    __str__ = as_text
    to_html = _repr_html_ = as_html

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """As plain JSON values; written to `path` where one is given."""
        plain = json.loads(json.dumps(asdict(self)))  # tuples become lists
        for line, check in zip(plain["checks"], self.checks, strict=True):
            line["verdict"] = check.verdict
        head = {"format": "lapace/report", "version": VERSION, "verdict": self.verdict}
        data = {**head, **plain}
        if path is not None:
            write_json(path, data)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str | Path) -> Report:
        """Reads back what `to_json` gave, as values or as a file."""
        if isinstance(data, str | Path):
            data = read_json(data, "a report")
        if not isinstance(data, Mapping) or data.get("format") != "lapace/report":
            raise InputError("This is not a report: its 'format' is not 'lapace/report'.")
        if data.get("version") != VERSION:
            raise InputError(
                f"This report has format version {data.get('version')}; this lapace reads "
                f"{VERSION}. Update lapace, or fit again."
            )
        try:
            report: Report = _restore(cls, data)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"This report is damaged: {error!r}.") from None
        return report


def _restore(kind: Any, value: Any) -> Any:
    """JSON values as the dataclasses and tuples they were made from."""
    if isinstance(kind, type) and is_dataclass(kind):
        types = get_type_hints(kind)
        return kind(**{f.name: _restore(types[f.name], value[f.name]) for f in fields(kind)})
    if get_origin(kind) is tuple:
        return tuple(_restore(get_args(kind)[0], one) for one in value)
    if NoneType in get_args(kind) and value is not None:
        return _restore(get_args(kind)[0], value)
    return value
