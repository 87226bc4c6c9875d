"""From where on a report wants care or fails: one table, read by whatever shows a threshold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["passes", "usable with care", "fails", "not measured"]


@dataclass(frozen=True)
class Threshold:
    """What a check measures, from where on it wants care or fails, and what to try then.

    Attributes:
        name: The check's name in JSON.
        question: What is measured, in a few words.
        unit: `share` and `points` print as percent, `count` and `ratio` as they are.
        higher: Whether more is better.
        care: The last value that passes.
        fail: The last value that does not fail; None for a check that cannot fail alone.
        advice: What to try.
        essential: Whether a report without this value cannot simply pass.

    Examples:
        >>> THRESHOLDS["agreement"].judge(0.93), THRESHOLDS["agreement"].judge(0.6)
        ('passes', 'fails')
    """

    name: str
    question: str
    unit: Literal["share", "points", "count", "ratio"]
    higher: bool
    care: float
    fail: float | None
    advice: str
    essential: bool = False

    def judge(self, value: float | None, margin: float = 0.0) -> Verdict:
        """The verdict on a value, its margin allowed in its favour."""
        if value is None:
            return "not measured"
        best = self.favour(value, margin)
        if self.fail is not None and self._beyond(best, self.fail):
            return "fails"
        return "usable with care" if self._beyond(best, self.care) else "passes"

    def favour(self, value: float, margin: float) -> float:
        """The value at the better end of its margin."""
        return value + margin if self.higher else value - margin

    def _beyond(self, value: float, limit: float) -> bool:
        # 0.93 - 0.90 is a little over 0.03: differences that small are rounding.
        return value < limit - 1e-9 if self.higher else value > limit + 1e-9

    @property
    def limits(self) -> str:
        """From where on it wants care, and fails."""
        side = "<" if self.higher else ">"
        marks = [("care", self.care), ("fails", self.fail)]
        if self.care == self.fail:
            marks = marks[1:]
        parts = [f"{word} {side} {self.number(at)}" for word, at in marks if at is not None]
        return ", ".join(parts) + self.suffix

    @property
    def suffix(self) -> str:
        """The unit, as printed after numbers."""
        return {"share": " %", "points": " points"}.get(self.unit, "")

    def number(self, value: float) -> str:
        """A value in the check's unit, without the unit."""
        if self.unit == "count":
            return f"{value:,.0f}"
        if self.unit == "ratio":
            return f"{value:.2f}"
        return f"{100 * value:.1f}".removesuffix(".0")


_MORE_ROWS = "Hand over more rows of that label"
_CHECKS = (
    Threshold(
        "prototypes", "fewest valid prototypes of a label", "count", True, 1, 1,
        f"{_MORE_ROWS}, or fit with a smaller n_prototypes or another random_state.",
    ),
    Threshold(
        "valid", "prototypes valid, after repair", "share", True, 1.0, 0.5,
        "Fit with another random_state or a smaller n_prototypes; the default recipe repairs, the "
        "paper's does not.",
    ),
    Threshold(
        "valid_before", "centroids valid, before repair", "share", True, 0.5, None,
        "Repaired prototypes may be used; for better ones hand over more rows, or fit with a "
        "smaller n_prototypes.",
    ),
    Threshold(
        "usage", "least used cluster, of even share", "ratio", True, 1 / 3, None,
        "Fit with a smaller n_prototypes: some clusters have hardly any rows.",
    ),
    Threshold(
        "duplicates", "prototypes like another", "count", False, 0, None,
        "Fit with a smaller n_prototypes: two prototypes are nearly the same.",
    ),
    Threshold(
        "rare", "labels without enough rows", "count", False, 0, None,
        f"{_MORE_ROWS}: at least five, better fifty. Until then no path leads to it.",
    ),
    Threshold(
        "agreement", "sampled rows given their label", "share", True, 0.85, 0.7,
        f"{_MORE_ROWS}; until then draw with sample(label, n, verified=True), which redraws the "
        "rows the classifier labels otherwise.",
        essential=True,
    ),
    Threshold(
        "overconfidence", "overconfident on sampled rows (KS)", "ratio", False, 0.25, None,
        "Sampled rows keep away from the boundary: do not take them for typical of that label. "
        "More of its rows help.",
    ),
    Threshold(
        "utility", "TSTR gap: accuracy lost", "points", False, 0.03, 0.10,
        "Do not train on sampled rows in place of real ones. More rows help; so does dropping "
        "columns the classifier does not need.",
        essential=True,
    ),
    Threshold(
        "balanced", "TSTR gap: balanced accuracy lost", "points", False, 0.05, 0.15,
        "Sampled rows of a small label miss what matters of it: hand over more of its rows, and "
        "draw with verified=True.",
    ),
    Threshold(
        "reconstruction", "reconstruction error, of baseline", "ratio", False, 0.75, None,
        "Fit with a larger n_latent, and drop columns that are noise or identifiers: the model "
        "hardly sees them.",
    ),
    Threshold(
        "recrossing", "paths that leave the target again", "share", False, 0.1, None,
        "Leave stable=True as it is, so that `first` lies behind the last crossing; ask for "
        "confidence= where the classifier offers probabilities.",
    ),
    Threshold(
        "rules", "rows satisfying the worst rule", "share", True, 0.5, 0.01,
        "Check the rule's spelling and direction; if it is right, counterfactuals will be unlike "
        "most rows.",
    ),
)  # fmt: skip

THRESHOLDS: Mapping[str, Threshold] = MappingProxyType({check.name: check for check in _CHECKS})


def threshold_table() -> str:
    """All thresholds as a Markdown table, for pages that explain the report.

    Examples:
        >>> print(threshold_table().splitlines()[0])
        | check | what is measured | passes, or else | what to try |
    """
    lines = ["| check | what is measured | passes, or else | what to try |", "|---|---|---|---|"]
    lines += [f"| `{t.name}` | {t.question} | {t.limits} | {t.advice} |" for t in _CHECKS]
    return "\n".join(lines)
