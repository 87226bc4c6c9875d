"""A verdict on each finding of the paper, from the tidy table alone.

Every claim of the paper that figures can decide, with what was measured for the paper's model as
read here (`recipe="paper"`) and for lapace's default: confirmed, not confirmed, or different and
why. Verdicts are about the paper's model; they are computed, so that new figures change them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import pandas as pd

from benchmarks import claims_methods as methods
from benchmarks import claims_model as model
from benchmarks import claims_paths as paths
from benchmarks.comparison import METHODS, Method
from benchmarks.evidence import Evidence, Finding, Verdict
from benchmarks.figures import NONE, Figure, grid
from benchmarks.plan import Plan

__all__ = ["FINDINGS", "markdown", "table_of"]

FINDINGS = (
    Finding("Table 1", "Centroids are classified as their class: 100 %", model.centroids),
    Finding(
        "Table 1",
        "The gap of training on synthetic rows is at most 2.9 points on continuous-only data",
        model.small_gap,
    ),
    Finding("Table 1", "The gap is larger where there are categories", model.larger_gap),
    Finding("Table 1", "Its eight gaps", model.same_gap),
    Finding("Table 1", "Test accuracies of its eight classifiers", model.accuracies),
    Finding("Table 1", "heloc-RF, trained on real rows: 73.97 %", model.heloc),
    Finding("Section 3.1", "All clusters are used, and prototypes differ", model.used),
    Finding("Figure 4", "All methods but DiCE always find valid counterfactuals", methods.validity),
    Finding("Figure 4", "NNCE and DRCE are consistently closest", methods.closest),
    Finding("Figure 4", "DiCE is competitively close on continuous-only data", methods.dice_close),
    Finding("Figure 4", "First is comparably close", methods.first_close),
    Finding(
        "Figure 4", "LAPACE is the most plausible on all data sets and models", methods.plausible
    ),
    Finding(
        "Figure 4",
        "It is more diverse than DiCE and DRCE on mixed data, less on continuous-only data",
        methods.diverse,
    ),
    Finding("Figure 4", "Last is 100 % robust to model changes", methods.model_robust),
    Finding(
        "Abstract, Figure 4", "Last is perfectly robust to input changes", methods.input_robust
    ),
    Finding("Figure 4", "Last is as close as RobXCE, more plausible and faster", methods.robx),
    Finding(
        "Figure 4",
        "Last is more robust to input changes and more plausible than DRCE",
        methods.drce,
    ),
    Finding("Figure 4", "Robustness to model changes rises from First to Last", methods.increases),
    Finding("Abstract, Figure 4", "Paths trade proximity for plausibility", methods.spectrum),
    Finding(
        "Section 4.2", "LAPACE has the best-balanced performance over all metrics", methods.balanced
    ),
    Finding(
        "Section 5",
        "With categories the model is less useful, its counterfactuals remain competitive",
        partial(methods.balanced, mixed=True),
    ),
    Finding("Abstract, Figure 4", "LAPACE is second only to NNCE in time", methods.fast),
    Finding("Figure 4", "Counterfactuals are synthetic, not training rows", methods.private),
    Finding(
        "Table 3", "Both LAPACE variants satisfy all constraints, FACE's do not", paths.actionable
    ),
    Finding(
        "Abstract, Section 3.3",
        "Constraints are met by lightweight gradient optimisation",
        paths.light,
    ),
    Finding("Figure 5", "Along a path the target's probability grows consistently", paths.grows),
    Finding("Figure 5", "At small τ probabilities depend on the instance and vary", paths.varies),
    Finding("Figure 5", "LOF is near 1 along whole paths", paths.near_one),
    Finding("Figure 5", "Centroids often have an LOF below 1", paths.below_one),
    Finding("Figure 6", "Prototypes of digits are of the digit they are meant for", paths.digits),
    Finding("Figure 2", "Paths are plausible evolutions from digit to digit", paths.evolution),
    Finding(
        "Figure 2",
        "Points from about τ = 0.7 on are likely to be classified as the target",
        paths.late,
    ),
    Finding(
        "Figure 3",
        "Under a constraint against the dash of a seven bright pixels there are "
        "mitigated, between the ends too",
        paths.dash,
    ),
    Finding("Section 4.2", "Standard deviations over runs are very low", paths.steady),
)

# ------------------------------------------------------------------------------------------------
# Table 2: which method has which property

# The paper's marks: explicitly (✓), implicitly (✓*), not at all (–).
MARKS = {
    "NNCE": "✓ ✓ ✓ – – ✓*", "FACE": "✓ ✓* ✓ – – –", "RobXCE": "✓ ✓* ✓ – ✓ ✓*",
    "DiCE": "✓ ✓ – ✓ – –", "DRCE": "✓ ✓ ✓ ✓ – ✓", "LAPACE": "✓ ✓ ✓ ✓ ✓* ✓",
}  # fmt: skip
PROPERTIES = ("valid", "close", "plausible", "diverse", "robust: model", "robust: input")
ABOUT_PROPERTIES = (
    "The paper's table says what each method was made for; here is what it reached, mean over "
    "pairs, with the paper's mark. *Valid*: share of instances. *Close*: distance. *Plausible*: "
    "LOF. *Diverse*: distance between an instance's counterfactuals. *Robust*: share still valid "
    "under retrained classifiers; max-set-distance under perturbed instances."
)


def properties(e: Evidence) -> str:
    """The paper's table of properties, with figures."""
    lines = []
    for method in METHODS:
        if not any(method.line(e.e2, p)["validity"].repeats for p in e.pairs):
            continue
        marks = MARKS.get(method.name, "").split() or _marks_of(method)
        values = (
            f"{100 * e.mean(method.method, 'validity', method.recipe):.3g} %",
            f"{e.mean(method.method, 'distance', method.recipe):.2f}",
            f"{e.mean(method.method, 'lof', method.recipe):.2f}",
            _text(e.mean(method.method, "diversity", method.recipe), ".2f"),
            f"{Figure(e.mean(method.method, 'model_robustness', method.recipe)):.1p} %",
            f"{e.mean(method.method, 'input_max_set_distance', method.recipe):.3f}",
        )
        cells = (f"{m} {v}".strip() for m, v in zip(marks, values, strict=True))
        lines.append((method.name, *cells))
    return grid(("method", *PROPERTIES), lines)


def _marks_of(method: Method) -> Sequence[str]:
    """The paper's marks of LAPACE are for its three picks together."""
    theirs = method.recipe == "paper"
    return MARKS["LAPACE"].split() if theirs else [""] * len(PROPERTIES)


def _text(value: float, spec: str) -> str:
    return NONE if math.isnan(value) else f"{value:{spec}}"


ABOUT = (
    "Each claim of the paper that figures can decide, measured for its model as read here "
    '(`recipe="paper"`, its settings) and for lapace\'s default recipe; the verdict is about the '
    "paper's model. All figures are on the pages beside this one, and `{command}` writes this page "
    "from them."
)
ABOUT_QUICK = " **These are of the quick version: its few rows and one seed decide nothing.**"


def markdown(plan: Plan, table: pd.DataFrame, digits: pd.DataFrame | None = None) -> str:
    """The page: a verdict per finding, and the table of properties."""
    about = ABOUT.format(command="python -m benchmarks --render")
    about += ABOUT_QUICK if plan.is_quick else ""
    verdicts = table_of(plan, table, digits)
    parts = ["# The paper's findings", about, verdicts, "## Which method has what"]
    text = "\n\n".join([*parts, ABOUT_PROPERTIES, properties(Evidence(plan, table))]) + "\n"
    return text.replace("nan", NONE)  # a figure that was not measured


def table_of(plan: Plan, table: pd.DataFrame, digits: pd.DataFrame | None = None) -> str:
    """A line per finding: the claim, what was measured, the verdict and why.

    Args:
        plan: Whose results.
        table: The tidy table, all of it.
        digits: The table of E5, where there is one.
    """
    e = Evidence(plan, table, pd.DataFrame() if digits is None else digits)
    lines = []
    for finding in FINDINGS:
        own = finding.judge(e) if e.pairs else Verdict(NONE, NONE, "not run")
        verdict, because = (own.verdict, own.because) if "nan" not in own.its else ("not run", "")
        texts = (finding.where, finding.claim, own.its, own.ours, verdict, because)
        lines.append([text.replace("|", "\\|") for text in texts])  # as in q(z|x,y)
    head = ("where", "the paper says", "its model, here", "lapace's default", "verdict", "because")
    return grid(head, lines).replace("nan", NONE)
