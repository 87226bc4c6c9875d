"""From the tidy table to everything that is written: text kept with the code, and the page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from benchmarks import comparing, drawing, pages, summary, verdicts
from benchmarks.figures import Figures, into
from benchmarks.page import image, page
from benchmarks.plan import Plan
from benchmarks.store import Store, keep
from lapace.table import write_file, write_whole

__all__ = ["blocks", "pages_of", "report", "write"]

# Pages that show results between marks, where the run is the one kept with the code.
SHOWN = ("README.md", "docs/reproducing.md")


def write(plan: Plan, store: Store, out: Path, *, shown: bool = False) -> None:
    """Writes all there is to write.

    Args:
        plan: Whose results.
        store: What has been run here.
        out: Where the text goes. What it holds of jobs not run here stays, where the plan still
            has them with the same settings.
        shown: Also put the figures into the pages that show them.
    """
    table = keep(out, plan.jobs(), store)
    store.folder.mkdir(parents=True, exist_ok=True)
    write_file(table, store.folder / "results.parquet")
    for name, text in pages_of(plan, table).items():
        if len(_part(table, name)) or name == "targets":
            _save(out / f"{name}.md", text)
    digits = out / "e5.md"  # written by E5 itself, which stands apart
    more = {"e5": digits.read_text(encoding="utf-8")} if digits.exists() else {}
    _save(out / "report.html", report(plan, table, _illustration(plan, store), more))
    for place in map(Path, SHOWN if shown else ()):
        if place.exists():
            old = place.read_text(encoding="utf-8")
            new = old
            for name, text in blocks(plan, table).items():
                new = into(new, name, text)
            if new != old:
                _save(place, new)


def pages_of(plan: Plan, table: pd.DataFrame) -> dict[str, str]:
    """Every experiment's page as Markdown, by its name.

    Args:
        plan: Whose results.
        table: The tidy table, all of it.
    """
    return {
        "targets": f"# Targets\n\n{ABOUT_TARGETS}\n\n{verdicts.markdown(plan, table)}\n",
        "e1": summary.markdown(plan, _part(table, "e1")),
        "e2": comparing.markdown(plan, _part(table, "e2")),
        "e3": pages.actions(plan, _part(table, "e3")),
        "e4": pages.walks(plan, _part(table, "e4")),
        "clusters": pages.sweep(plan, _part(table, "clusters")),
    }


ABOUT_TARGETS = (
    "Of E2 and E3, default recipe, held to on every pair; E1's are on its own page. Shown is the "
    "pair that comes off worst."
)


def blocks(plan: Plan, table: pd.DataFrame) -> dict[str, str]:
    """What other pages show between the marks `<!-- name -->` and `<!-- /name -->`.

    Args:
        plan: Whose results.
        table: The tidy table, all of it.
    """
    makers = {
        "e1": summary.brief,
        "e2": comparing.brief,
        "e2-words": comparing.upshot,
        "e3": pages.actions_brief,
        "clusters": pages.sweep_brief,
    }
    found = {}
    for name, make in makers.items():
        part = _part(table, name.partition("-")[0])
        if len(part):
            found[name] = make(plan, part)
    if len(_part(table, "e2")) or len(_part(table, "e3")):
        found["targets"] = verdicts.markdown(plan, table)
    return found


def report(
    plan: Plan,
    table: pd.DataFrame,
    illustration: bytes | None = None,
    more: Mapping[str, str] | None = None,
) -> str:
    """All results as one HTML page.

    Args:
        plan: Whose results.
        table: The tidy table, all of it.
        illustration: E6's picture, a PNG.
        more: Further pages as Markdown, by name.
    """
    parts = {"top": f"# The paper's experiments, reproduced\n\n{ABOUT_REPORT}"}
    parts |= {
        name: text
        for name, text in pages_of(plan, table).items()
        if len(_part(table, name)) or name == "targets"
    }
    parts |= more or {}
    if illustration is not None:
        parts["e6"] = f"# E6: the idea in one picture\n\n{ABOUT_E6}\n\n<!-- picture: e6 -->"
    return page("lapace: results", parts, _pictures(plan, table, illustration))


ABOUT_REPORT = (
    "Made by `python -m benchmarks --render` from one table of results, nothing typed in by "
    "hand. Green are lapace's picks with its default recipe, brown the same picks with the paper's "
    "recipe, blue other instances's methods."
)
ABOUT_E6 = (
    "A made-up table of two numbers: what the classifier sees, the latent clusters with their "
    "centroids, and one instance's decoded paths."
)


def _pictures(plan: Plan, table: pd.DataFrame, illustration: bytes | None) -> Mapping[str, str]:
    found = {}
    parts = {name: _part(table, name) for name in ("e2", "e4", "clusters")}
    pairs = {
        name: [pair for pair in plan.names if pair in set(part["pair"])]
        for name, part in parts.items()
    }
    if len(parts["e2"]):
        found["metrics"] = drawing.metrics(Figures.of(parts["e2"]), pairs["e2"])
    if len(parts["e4"]):
        found["walks"] = drawing.walks(parts["e4"], pairs["e4"])
    if len(parts["clusters"]):
        found["sweep"] = drawing.sweeps(parts["clusters"], pairs["clusters"])
    if illustration is not None:
        words = "Rows and regions, the latent map, and decoded paths of one instance"
        found["e6"] = image(illustration, words)
    return found


def _illustration(plan: Plan, store: Store) -> bytes | None:
    for job in plan.jobs(experiments=["e6"]):
        picture = store.path(job).with_suffix(".png")
        if job in store and picture.exists():
            return picture.read_bytes()
    return None


def _part(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """One experiment's lines; E1's with those of the tables the paper does not have."""
    names = ("e1", "extra") if name == "e1" else (name,)
    return table[table["experiment"].isin(names)]


def _save(path: Path, text: str) -> None:
    write_whole(path, lambda p: p.write_text(text, encoding="utf-8"))
