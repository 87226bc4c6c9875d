"""From the tidy table to everything that is written: CSV files, pages, pictures, blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from benchmarks import comparison, digits_page, drawing, pages
from benchmarks.claims import CLAIMS, NOT_SAID
from benchmarks.e5 import read_figures
from benchmarks.figures import OUTDATED, Results, grid, insert
from benchmarks.jobs import ORIGIN, Store, keep, kept, kept_instances, kept_runs, write
from benchmarks.judging import MODELS, NO, PARTLY, YES, Claim, Evidence, Verdict, verdict
from benchmarks.plan import Plan

# Pages that show results between markers.
SHOWN = ("docs/how-to/baselines.md", "docs/research/reproducing.md")
DOCS = Path("docs")
DIGITS = {False: "mnist", True: "mnist-5k"}  # by whether the plan is quick

# ------------------------------------------------------------------------------------------------
# The paper's findings

ABOUT = (
    "Each claim of the paper that figures can decide, tested pair by pair: for its model with the "
    "loss *as printed* (KL(c) of each row), with a Gumbel draw of the cluster, *as read here* "
    '(`recipe="paper"`, KL(c) of a batch), and for lapace\'s default recipe. A claim *holds* on a '
    "pair if every margin that it is tested as has a positive 95% interval: Student's over seeds, "
    "of methods compared on the same instances. Shares of what was counted, the eight gaps, "
    "relative deviations, ranks, means of curves and figures of digits have no interval and are "
    "compared as they are. It is *confirmed* if it holds on every pair it names, *partly "
    "confirmed* if on some, *not confirmed* if on none. A pair is *open* if the interval contains "
    "zero, which does not count as holding. The last line leaves out what the paper does not say. "
    "A margin of +1e-09 is exactly at the bound. "
    "`python -m benchmarks --render` writes this page."
)
ABOUT_BRIEF = (
    "Each cell has the verdict, the number of pairs on which the claim holds, and of those that "
    "are open. The rule, the other pairs, the margins and their intervals are in "
    "`benchmarks/results/findings.md`."
)
ABOUT_QUICK = " **These are of the quick version: its few rows and one seed decide nothing.**"


@cache
def judged(e: Evidence) -> list[tuple[Claim, list[Verdict]]]:
    """Returns every claim with its verdict on each model; judging takes seconds."""
    return [(claim, [verdict(e, claim, side) for side in MODELS]) for claim in CLAIMS]


def findings(e: Evidence, *, brief: bool = False) -> str:
    """Returns a line per claim: how it is read, and the verdict on every model.

    Args:
        e: All figures.
        brief: Grades and counts alone, without pairs, margins and intervals.
    """
    lines = [
        (
            claim.where,
            claim.text + (f" ({claim.note})" if claim.note else ""),
            *(own.brief if brief else str(own) for own in verdicts),
        )
        for claim, verdicts in judged(e)
    ]
    said = [verdicts for claim, verdicts in judged(e) if claim.where != NOT_SAID]
    columns = zip(*said, strict=True)
    counts = (Counter(own.grade for own in column) for column in columns)
    total = (f"{n[YES]} confirmed, {n[PARTLY]} partly, {n[NO]} not" for n in counts)
    return grid(
        ("where", "the paper says", *MODELS.values()),
        [*lines, ("", "**all claims of the paper**", *total)],
    )


def findings_page(e: Evidence) -> list[str]:
    """Returns the page: a verdict per finding."""
    about = ABOUT + (ABOUT_QUICK if e.plan.is_quick else "")
    return ["# The paper's findings", about, *outdated(e), findings(e)]


def outdated(e: Evidence) -> list[str]:
    """Returns a line that names the experiments whose code has changed since; none if none has."""
    kinds = (e.results(name) for name in ("e1", "e2", "e3", "e4", "privacy"))
    old = [own.experiment for own in kinds if len(own.table) and own.outdated]
    old += ["e5"] if len(e.digits) and digits_page.outdated(e.digits) else []
    named = ", ".join(name.upper() if name[1:].isdecimal() else f"*{name}*" for name in old)
    text = f"{OUTDATED}: code has changed since some figures of {named} were measured."
    return [text] if old else []


# ------------------------------------------------------------------------------------------------
# All of it

PAGES: Mapping[str, Callable[[Results], list[str]]] = {
    "grid": pages.readings, "e1": pages.e1, "e2": comparison.page, "e3": pages.e3, "e4": pages.e4,
    "privacy": pages.privacy,
}  # fmt: skip
BLOCKS: Mapping[str, Callable[[Results], str]] = {
    "e1": pages.e1_brief, "grid": pages.readings_brief, "e2": comparison.brief,
    "e2-short": comparison.short, "e3": pages.e3_brief,
}  # fmt: skip


def pages_of(e: Evidence) -> dict[str, str]:
    """Returns the pages of all experiments with results, and the verdicts, by name."""
    found = {name: page(own) for name, page in PAGES.items() if len((own := e.results(name)).table)}
    for name, page_of in (("clusters", pages.clusters), ("tuning", pages.tuning)):
        if len((own := e.results(name)).table):  # beside E2's figures
            found[name] = page_of(own, e.results("e2").table)
    if len(e.digits):
        found["e5"] = digits_page.page(e.digits, DIGITS[e.plan.is_quick])
    found["findings"] = findings_page(e)
    return {name: "\n\n".join(parts) + "\n" for name, parts in found.items()}


def blocks(e: Evidence) -> dict[str, str]:
    """Returns what other pages show between the markers `<!-- name -->` and `<!-- /name -->`."""
    found = {
        name: "\n\n".join(filter(None, (make(own), own.outdated)))
        for name, make in BLOCKS.items()
        if len((own := e.results(name.partition("-")[0])).table)
    }
    brief = [findings(e, brief=True), ABOUT_BRIEF, *outdated(e)]
    return {**found, "findings": "\n\n".join(brief)}


def read_evidence(plan: Plan, folder: Path) -> Evidence:
    """Returns all figures kept in a folder, each with where it comes from."""
    origins = kept_runs(folder).drop_duplicates("settings", keep="last").set_index("settings")
    table = kept(folder)
    named = {name: table["settings"].map(origins[name]).fillna("") for name in ORIGIN}
    digits = read_figures(folder / "e5.csv")
    return Evidence(plan, table.assign(**named), digits, kept_instances(folder))


def write_all(plan: Plan, store: Store, out: Path, *, shown: bool = False) -> None:
    """Writes the table, the pages and their pictures.

    Args:
        plan: Whose results.
        store: What has been run here.
        out: Where they go. Results in it of jobs not run here stay, where the plan still has them
            with the same settings.
        shown: Also insert the results into the pages that show them.
    """
    keep(out, plan.jobs(), store)
    evidence = read_evidence(plan, out)
    for name, text in pages_of(evidence).items():
        write(out / f"{name}.md", text)
    if len(evidence.digits):
        gallery = digits_page.gallery(evidence.digits, DIGITS[plan.is_quick])
        write((DOCS if shown else out) / "gallery.md", gallery)
    _draw(evidence, out)
    if not shown:
        return
    found = blocks(evidence)
    for page in map(Path, SHOWN):
        if page.exists():
            text = page.read_text(encoding="utf-8")
            for name, block in found.items():
                text = insert(text, name, block)
            write(page, text)


def _draw(e: Evidence, out: Path) -> None:
    e2, e4 = e.results("e2"), e.results("e4")
    if e2.pairs:
        drawing.save(drawing.metrics(e2.figures, e2.pairs), out / "e2.png")
    if e4.pairs:
        drawing.save(drawing.paths(e4.table, e4.pairs), out / "e4.png", dpi=60)
