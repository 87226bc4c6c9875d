"""E5's page and its page of pictures, from the figures that were kept."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.e5 import SIDES, figures_of
from benchmarks.figures import OUTDATED, Line, grid, origins
from benchmarks.provenance import code_of

HEADS = ("figure", *(f"{recipe}, {labels}" for labels, recipe in SIDES))
LINES = {
    "valid prototypes": "{prototypes valid:of}",
    "the same before any repair": "{prototypes valid before repair:of}",
    "probability of the least probable prototype": "{prototype least probability:~.3}",
    "First ok, of all paths": "{first ok, paths:~p}%",
    "Middle ok, of all paths": "{middle ok, paths:~p}%",
    "Last ok, of all paths": "{last ok, paths:~p}%",
    "First, Middle and Last ok, of all digits and targets": "{all three ok, pairs:~p}%",
    "τ of First": "{first tau:~}",
    "paths that leave the target again": "{re-crossing:~p}%",
    "reconstruction error (mean square of a pixel)": "{reconstruction error:~.4}",
    "reconstructions predicted as the digit they are of": "{reconstruction agreement:~p}%",
    "steps": "{steps:~.0}",
}
DASH = {
    "brightest pixel in the dash": "{brightest in the dash, sevens:~.3}",
    "sevens without a dash": "{sevens without a dash:~p}%",
    "fives answered": "{fives answered:~p}%",
    "density of First": "{density of first:~.3}",
    "seconds": "{seconds:~.1}",
}
ABOUT = """# E5: the digits

Made by `python -m benchmarks --experiment e5` on {name}, at commit {commit}, with {environment}, \
on {machine}. The network that is explained has an \
accuracy of {accuracy:.2p}% on the test digits. Seeds: {seeds}. Paths: {pairs} pairs of a digit \
and a target (default recipe; the first seed has more digits), three paths each. Means are \
weighted by counts."""
ABOUT_NEAREST = (
    "Distance to the nearest training digit, in root mean squares of a pixel: mean / smallest of "
    "all seeds."
)
ABOUT_DASH = (
    "Paths of up to 100 fives to the sevens, with the first seed. *free*: no constraint; *exact*: "
    "projected and checked; *latent*: the paper's gradient descent alone. Other processes ran "
    "beside them: seconds compare only among themselves."
)


def page(table: pd.DataFrame, name: str) -> list[str]:
    """Returns the figures as Markdown.

    Args:
        table: As `e5.csv` keeps it.
        name: The data set.
    """
    figures = figures_of(table)
    lines = {side: figures.line(*side) for side in SIDES}
    ours = table[(table["labels"] == SIDES[0][0]) & (table["recipe"] == SIDES[0][1])]
    counts = ours.loc[ours["metric"] == "all three ok, pairs", "count"]
    seeds = (f"{line['prototypes valid'].repeats} ({' '.join(s)})" for s, line in lines.items())
    about = ABOUT.format(
        **origins(table),
        name=name,
        accuracy=figures.get("predictions", "", "test accuracy"),
        seeds=", ".join(seeds),
        pairs=", ".join(f"{count:,}" for count in counts),
    )
    rows = [
        (words, *(_text(line, text) for line in lines.values())) for words, text in LINES.items()
    ]
    near = [
        (what, *(_nearest(table, *side, what) for side in SIDES))
        for what in ("first", "middle", "last", "prototypes")
    ]
    test = _nearest(table, "predictions", "", "test digits")
    near.append(("test digits, for comparison", *[test] * len(SIDES)))
    dash = [
        (f"{side[1]}, {side[0]}", mode, *(_text(line, text) for text in DASH.values()))
        for side in SIDES
        for mode in ("free", "exact", "latent")
        if (line := figures.line(*side, label=f"dash: {mode}"))["seconds"].repeats
    ]
    parts = [about, *filter(None, [outdated(table)]), grid(HEADS, rows)]
    parts += ["## Nearest training digit", ABOUT_NEAREST, grid(HEADS, near)]
    return [*parts, "## No dash", ABOUT_DASH, grid(("model, labels", "enforce", *DASH), dash)]


def _nearest(table: pd.DataFrame, labels: str, recipe: str, what: str) -> str:
    """Returns how far the nearest training digit is: the mean, and the least over all seeds."""
    own = table[(table["labels"] == labels) & (table["recipe"] == recipe)]
    least = own[(own["label"] == what) & (own["metric"] == "nearest training digit, least")]
    mean = figures_of(own).get(labels, recipe, "nearest training digit, mean", label=what)
    return f"{mean:~.3} / {least['value'].min():.3f}"


def outdated(table: pd.DataFrame) -> str:
    """Returns a line that marks figures whose code has changed since; else nothing."""
    old = (table["code"] != code_of("e5")).any()
    return f"{OUTDATED}: code has changed since these figures were measured." if old else ""


def _text(line: Line, template: str) -> str:
    """Returns a filled template, without the percent sign of a figure that is missing."""
    return template.format_map(line).replace("–%", "–")


def gallery(table: pd.DataFrame, name: str) -> str:
    """Returns the page of pictures, its captions from the figures that were kept.

    Args:
        table: As `e5.csv` keeps it.
        name: The data set.
    """
    figures = figures_of(table)
    ours, paper = (figures.line(*side) for side in SIDES[:2])
    accuracy = figures.get("predictions", "", "test accuracy")
    near, test, exact, free = (
        figures.line("predictions", recipe, label=label)
        for recipe, label in (
            ("default", "prototypes"),
            ("", "test digits"),
            ("default", "dash: exact"),
            ("default", "dash: free"),
        )
    )
    template = Path(__file__).with_name("gallery.txt").read_text(encoding="utf-8")
    return template.format(
        name=name, accuracy=accuracy, ours=ours, paper=paper, near=near, test=test, exact=exact,
        free=free, mark=f"\n{mark}\n" if (mark := outdated(table)) else "",
    )  # fmt: skip
