"""From the tidy table to everything that is written: CSV files, pages, pictures, blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from benchmarks import (
    advice,
    comparison,
    digits_page,
    drawing,
    pages,
    targets,
)
from benchmarks.claims import FINDINGS
from benchmarks.e5 import figures_of, read_figures
from benchmarks.figures import NONE, Figures, grid, insert, pairs_of, part
from benchmarks.jobs import Store, keep, write
from benchmarks.judging import NOT_RUN, Evidence
from benchmarks.plan import Plan

__all__ = ["blocks", "findings", "pages_of", "write_all"]

SHOWN = ("README.md", "docs/research/reproducing.md")  # pages that show results between markers
GALLERY = Path("docs")

# ------------------------------------------------------------------------------------------------
# The paper's findings

ABOUT = (
    "Each claim of the paper that figures can decide, measured for its model as read here "
    '(`recipe="paper"`, its settings) and for lapace\'s default recipe; the verdict is about the '
    "paper's model. All figures are on the pages beside this one, and `{command}` writes this page "
    "from them."
)
ABOUT_QUICK = " **These are of the quick version: its few rows and one seed decide nothing.**"


def findings(e: Evidence) -> str:
    """Returns a line per finding: the claim, what was measured, the verdict and why."""
    lines = []
    for where, claim, judge in FINDINGS:
        its, ours, verdict, because = judge(e) if e.pairs else NOT_RUN
        if "nan" in its:
            verdict, because = "not run", ""
        texts = (where, claim, its, ours, verdict, because)
        lines.append([text.replace("|", "\\|") for text in texts])  # as in q(z|x,y)
    head = ("where", "the paper says", "its model, here", "lapace's default", "verdict", "because")
    return grid(head, lines).replace("nan", NONE)  # a figure that was not measured


def findings_page(e: Evidence) -> list[str]:
    """Returns the page: a verdict per finding."""
    about = ABOUT.format(command="python -m benchmarks --render")
    about += ABOUT_QUICK if e.plan.is_quick else ""
    return ["# The paper's findings", about, findings(e)]


# ------------------------------------------------------------------------------------------------
# All of it

Page = Callable[[Plan, pd.DataFrame], list[str]]
Block = Callable[[Plan, pd.DataFrame], str]
PAGES: Mapping[str, Page] = {
    "e1": pages.e1, "readings": pages.readings, "sources": pages.sources, "e2": comparison.page,
    "e3": pages.e3, "e4": pages.e4, "clusters": pages.clusters, "advice": advice.page,
}  # fmt: skip
BLOCKS: Mapping[str, Block] = {
    "e1": pages.e1_brief,
    "readings": pages.readings_brief,
    "sources": pages.sources_brief,
    "e2": lambda plan, table: comparison.brief(Figures(table), pairs_of(plan, table)),
    "e2-short": lambda plan, table: comparison.short(Figures(table), pairs_of(plan, table)),
    "e3": pages.e3_brief,
    "clusters": pages.clusters_brief,
}


def pages_of(e: Evidence) -> dict[str, str]:
    """Returns the pages of all experiments with results, and the verdicts, by name."""
    found = {
        name: page(e.plan, own) for name, page in PAGES.items() if len(own := part(e.table, name))
    }
    found["findings"] = findings_page(e)
    found["targets"] = ["# Targets", targets.ABOUT, targets.markdown(e.plan, e.table)]
    return {name: "\n\n".join(parts) + "\n" for name, parts in found.items()}


def blocks(e: Evidence) -> dict[str, str]:
    """Returns what other pages show between the markers `<!-- name -->` and `<!-- /name -->`."""
    found = {
        name: make(e.plan, own)
        for name, make in BLOCKS.items()
        if len(own := part(e.table, name.partition("-")[0]))
    }
    return {**found, "findings": findings(e), "targets": targets.markdown(e.plan, e.table)}


def write_all(plan: Plan, store: Store, out: Path, *, shown: bool = False) -> None:
    """Writes the table, the pages and their pictures.

    Args:
        plan: Whose results.
        store: What has been run here.
        out: Where they go. Results in it of jobs not run here stay, where the plan still has them
            with the same settings.
        shown: Also insert the results into the pages that show them.
    """
    table = keep(out, plan.jobs(), store)
    digits = read_figures(out / "e5.csv")
    evidence = Evidence(plan, table, figures_of(digits))
    found = pages_of(evidence)
    if len(digits):
        name = "mnist-5k" if plan.is_quick else "mnist"
        found["e5"] = digits_page.page(digits, name)
        write((GALLERY if shown else out) / "gallery.md", digits_page.gallery(digits, name))
    for name, text in found.items():
        write(out / f"{name}.md", text)
    _draw(plan, table, out)
    for page in map(Path, SHOWN if shown else ()):
        if page.exists():
            text = page.read_text(encoding="utf-8")
            for name, block in blocks(evidence).items():
                text = insert(text, name, block)
            write(page, text)


def _draw(plan: Plan, table: pd.DataFrame, out: Path) -> None:
    own = {name: part(table, name) for name in ("e2", "e4")}
    pairs = {name: pairs_of(plan, lines) for name, lines in own.items()}
    if pairs["e2"]:
        drawing.save(drawing.metrics(Figures(own["e2"]), pairs["e2"]), out / "e2.png")
    if pairs["e4"]:
        drawing.save(drawing.paths(own["e4"], pairs["e4"]), out / "e4.png", dpi=60)
