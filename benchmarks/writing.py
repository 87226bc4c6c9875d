"""From the tidy table to everything that is written: CSV files, pages, pictures, blocks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd

from benchmarks import drawing, findings, targets
from benchmarks.digits_page import earlier
from benchmarks.figures import Figures, insert
from benchmarks.pages import PAGES, blocks
from benchmarks.plan import Plan
from benchmarks.provenance import pairs_of, part
from benchmarks.store import Store, keep, write

__all__ = ["pages_of", "write_all"]

SHOWN = ("README.md", "docs/research/reproducing.md")  # pages that show results between markers
ABOUT_TARGETS = (
    "Of E2 and E3, default recipe, on every pair; E1's are on its own page. Shown is the pair that "
    "is worst."
)
ABOUT_MODEL = (
    "The paper's model as read here, in E1: how near it comes to the paper's own figures. Nothing "
    "was tuned to come nearer."
)


def pages_of(plan: Plan, table: pd.DataFrame, digits: pd.DataFrame | None = None) -> dict[str, str]:
    """The pages of all experiments with results, and of the targets, as Markdown, by name.

    Args:
        plan: Whose results.
        table: The tidy table, all of it.
        digits: The table of E5, where there is one.
    """
    found = {
        name: "\n\n".join(page(plan, own)) + "\n"
        for name, page in PAGES.items()
        if len(own := part(table, name))
    }
    if len(table):
        found["findings"] = findings.markdown(plan, table, digits)
    model = targets.paper_model(plan, Figures(part(table, "e1")))
    parts = ("# Targets", ABOUT_TARGETS, targets.markdown(plan, table))
    found["targets"] = "\n\n".join((*parts, "## The paper's model", ABOUT_MODEL, model)) + "\n"
    return found


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
    digits = earlier(out / "e5.csv")
    for name, text in pages_of(plan, table, digits).items():
        write(out / f"{name}.md", text)
    _draw(plan, table, out)
    for job in plan.jobs(experiments=["e6"]):
        picture = store.path(job).with_suffix(".png")
        if job in store and picture.exists():
            shutil.copy(picture, out / "e6.png")
    for page in map(Path, SHOWN if shown else ()):
        if page.exists():
            text = page.read_text(encoding="utf-8")
            for name, block in blocks(plan, table, digits).items():
                text = insert(text, name, block)
            write(page, text)


def _draw(plan: Plan, table: pd.DataFrame, out: Path) -> None:
    own = {name: part(table, name) for name in ("e2", "e4", "clusters")}
    pairs = {name: pairs_of(plan, lines) for name, lines in own.items()}
    if pairs["e2"]:
        drawing.save(drawing.metrics(Figures(own["e2"]), pairs["e2"]), out / "e2.png")
    if pairs["e4"]:
        drawing.save(drawing.paths(own["e4"], pairs["e4"]), out / "e4.png", dpi=60)
    if pairs["clusters"]:
        drawing.save(drawing.sweeps(own["clusters"], pairs["clusters"]), out / "clusters.png")
