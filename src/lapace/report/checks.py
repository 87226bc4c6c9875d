"""The checks of a report: one table of thresholds, and a value judged by one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["passes", "unsure", "fails", "not measured"]
Unit: TypeAlias = Literal["share", "count", "ratio"]


def written(value: float, unit: Unit) -> str:
    """Writes a value in its unit.

    Examples:
        >>> written(0.125, "share"), written(3.0, "count"), written(1 / 3, "ratio")
        ('12.5%', '3', '0.33')
    """
    forms = {"share": f"{100 * value:.3g}%", "count": f"{value:,g}", "ratio": f"{value:.2f}"}
    return forms[unit]


@dataclass(frozen=True)
class Threshold:
    """A quantity that a report measures, the value it must reach, and advice for when it does not.

    Attributes:
        name: The check's name in JSON.
        question: The quantity in a few words.
        unit: `share` prints as percent, `count` and `ratio` as they are.
        higher: Whether more is better.
        limit: The last value that passes.
        advice: A remedy where the check fails.
        essential: Whether a report without this value is unsure at best.

    Examples:
        >>> answered = THRESHOLDS["answered"]
        >>> answered.judge(0.88, 1.0), answered.judge(0.7, 0.9), answered.judge(0.1, 0.3)
        ('passes', 'unsure', 'fails')
    """

    name: str
    question: str
    unit: Unit
    higher: bool
    limit: float
    advice: str
    essential: bool = False

    def judge(self, low: float, high: float) -> Verdict:
        """Returns the verdict on a value between two ends: `unsure` where the limit is, too."""
        sign = 1 if self.higher else -1
        worst, best = sorted(sign * (end - self.limit) for end in (low, high))
        # 0.93 - 0.90 is a little over 0.03: differences that small are rounding.
        return "passes" if worst >= -1e-9 else "unsure" if best >= -1e-9 else "fails"

    @property
    def limits(self) -> str:
        """The value needed to pass, in words."""
        side = "at least" if self.higher else "at most"
        return f"{side} {written(self.limit, self.unit)}"


_CHECKS = (
    Threshold(
        "prototypes", "fewest valid prototypes of a label", "count", True, 1.0,
        "Fit with more rows of that label, a smaller n_prototypes or another "
        "random_state.",
    ),
    Threshold(
        "answered", "instances with a counterfactual", "share", True, 0.8,
        "Fit with more rows or another random_state; if there are rules, check that rows can "
        "satisfy them.",
        essential=True,
    ),
    Threshold(
        "valid", "returned rows that keep their label", "share", True, 0.95,
        "The classifier does not answer as it did during the fit: fit again with the classifier in "
        "use, and make sure that it gives a row the same label every time.",
        essential=True,
    ),
    Threshold(
        "usual", "instances with a usual counterfactual", "share", True, 0.8,
        "Counterfactuals are unlike real rows of their label: fit with more rows, or ask for "
        "plausibility= and look at density before acting on one.",
        essential=True,
    ),
    Threshold(
        "unmarked", "instances with a way that keeps a margin", "share", True, 0.5,
        "Most rows of best are so close to the decision boundary that a small difference turns the "
        "label back: fit with more rows, and look at mark before acting on one.",
    ),
    Threshold(
        "survives", "survival of best under refits", "share", True, 0.8,
        "Classifiers made by retrain, which the search does not know, often give another label: "
        "ask for confidence=.",
    ),
    Threshold(
        "possible", "instances whose rows are all possible", "share", True, 0.8,
        "Some rows break what every training row keeps: fit with learn_rules=True, or write such "
        "rules.",
    ),
    Threshold(
        "recognised", "labels recognised, beyond chance", "share", True, 0.35,
        "The model cannot tell the labels apart, so density and prototypes say little: "
        "fit with more rows, and drop columns that the classifier does not need.",
        essential=True,
    ),
    Threshold(
        "reconstruction", "reconstruction error relative to baseline", "ratio", False, 0.7,
        "Fit with a larger n_latent, and drop columns that are noise or identifiers: the model "
        "hardly sees them.",
    ),
    Threshold(
        "rules", "rows satisfying the worst rule", "share", True, 0.01,
        "Check the rule's spelling and direction; if it is right, counterfactuals will be unlike "
        "most rows.",
    ),
)  # fmt: skip

THRESHOLDS: Mapping[str, Threshold] = MappingProxyType({check.name: check for check in _CHECKS})


@dataclass(frozen=True)
class Check:
    """A value measured, with its interval, and the threshold it is judged by.

    Attributes:
        threshold: The quantity measured and the value needed.
        value: The value; None where it could not be measured.
        low: Lower end of its 90% interval; None where nothing was sampled.
        high: Upper end of its 90% interval; None where nothing was sampled.
        where: The label or rule that has this value, the worst of all.
        reason: The reason why there is no value.

    Examples:
        >>> check = Check(THRESHOLDS["answered"], 0.89, 0.75, 0.96, where="label 'no'")
        >>> check.verdict, check.text
        ('unsure', "89% (75 to 96%; label 'no')")
    """

    threshold: Threshold
    value: float | None
    low: float | None = None
    high: float | None = None
    where: str = ""
    reason: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict: passes, unsure, fails, or not measured."""
        if self.value is None:
            return "not measured"
        low, high = (self.value if end is None else end for end in (self.low, self.high))
        return self.threshold.judge(low, high)

    @property
    def meets_limit(self) -> bool:
        """Whether the value itself reaches the limit, whatever its interval."""
        return self.value is not None and self.threshold.judge(self.value, self.value) == "passes"

    @property
    def text(self) -> str:
        """The value, its interval and its place in words; or the reason why there is none."""
        if self.value is None:
            return self.reason
        unit = self.threshold.unit
        between = ""
        if self.low is not None and self.high is not None and self.low < self.high:
            between = f"{written(self.low, unit).rstrip('%')} to {written(self.high, unit)}"
        notes = "; ".join(part for part in (between, self.where) if part)
        return written(self.value, unit) + (f" ({notes})" if notes else "")

    @property
    def advice(self) -> str:
        """The problem and a remedy in words; empty for a check that passes."""
        about = f"{self.threshold.question}: "
        if self.verdict == "passes" or (self.value is None and not self.threshold.essential):
            return ""
        if self.value is None:
            return f"{about}not measured. {self.reason[:1].upper()}{self.reason[1:]}."
        measured = f"{about}{self.text}; needed {self.threshold.limits}."
        if self.verdict == "unsure":
            return (
                f"{measured} Too few rows were measured to tell: fit with another random_state, "
                "which measures others, or with more rows."
            )
        return f"{measured} Try: {self.threshold.advice}"
