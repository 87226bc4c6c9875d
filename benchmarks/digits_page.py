"""E5's table and its page of pictures, from the figures that were kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from benchmarks.figures import NONE, grid

__all__ = ["gallery", "table_of"]

SIDES = (
    ("predictions", "default"),
    ("predictions", "paper"),
    ("truth", "default"),
    ("truth", "paper"),
)
HEADS = ("", *(f"{recipe}, {labels}" for labels, recipe in SIDES))
# Metric, how to write it, and its name. A share of things counted is written k of n.
LINES = (
    ("prototypes valid", "of", "valid prototypes"),
    ("prototypes valid before repair", "of", "the same before any repair"),
    ("prototype least probability", ".3f", "probability of the least probable prototype"),
    ("first ok, paths", "%", "First ok, of all paths"),
    ("middle ok, paths", "%", "Middle ok, of all paths"),
    ("last ok, paths", "%", "Last ok, of all paths"),
    ("all three ok, pairs", "%", "First, Middle and Last ok, of all digits and targets"),
    ("first tau", ".2f", "τ of First"),
    ("re-crossing", "%", "paths that leave the target again"),
    ("reconstruction error", ".4f", "reconstruction error (mean square of a pixel)"),
    ("reconstruction agreement", "%", "reconstructions predicted as the digit they are of"),
    ("milliseconds, per digit and target", ".2f", "milliseconds per digit and target, three paths"),
    ("milliseconds, picks only", ".2f", "the same with detail='picks'"),
    ("steps or epochs", ".0f", "steps (default) or epochs (paper)"),
    ("training seconds", ".1f", "seconds of training"),
    ("fit seconds", ".1f", "seconds of the whole fit, report included"),
)
DASH = {
    "brightest pixel in the dash": ("brightest in the dash, sevens", ".3f"),
    "sevens without a dash": ("sevens without a dash", "%"),
    "fives answered": ("fives answered", "%"),
    "density of First": ("density of first", ".1f"),
    "seconds": ("seconds", ".1f"),
}
ABOUT = """# E5: the digits

Made by `python -m benchmarks --experiment e5` on {name}. The network that is explained has an \
accuracy of {accuracy:.2f} % on the test digits. Seeds: {seeds}. Paths: {pairs} pairs of a digit \
and a target (default recipe, seed by seed), three paths each. Means are weighted by counts."""
ABOUT_NEAR = (
    "Distance to the nearest training digit, in root mean squares of a pixel: mean / smallest."
)
ABOUT_DASH = (
    "Paths of up to 100 fives to the sevens. *free*: no constraint; *exact*: corrected, projected "
    "and checked; *latent*: the paper's gradient alone."
)


class _Figures:
    """Figures by side, metric and label, over seeds."""

    def __init__(self, table: pd.DataFrame) -> None:
        filled = table.fillna({"label": "", "recipe": ""})
        self.groups = dict(list(filled.groupby(["labels", "recipe", "metric", "label"])))

    def of(self, side: tuple[str, str], metric: str, label: str = "") -> pd.DataFrame:
        found = self.groups.get((*side, metric, label), pd.DataFrame({"value": [], "count": []}))
        return found[(found["count"] > 0) & found["value"].notna()]

    def mean(self, side: tuple[str, str], metric: str, label: str = "") -> float:
        found = self.of(side, metric, label)
        return float(np.average(found["value"], weights=found["count"])) if len(found) else np.nan

    def text(self, side: tuple[str, str], metric: str, style: str, label: str = "") -> str:
        mean = self.mean(side, metric, label)
        if np.isnan(mean):
            return NONE
        if style == "of":
            count = int(self.of(side, metric, label)["count"].sum())
            return f"{mean * count:.0f} of {count}"
        return f"{100 * mean:.2f} %" if style == "%" else format(mean, style)

    def nearest(self, side: tuple[str, str], name: str) -> str:
        """Mean and smallest distance to a training digit."""
        kinds = ("nearest training digit, mean", "nearest training digit, least")
        return " / ".join(self.text(side, kind, ".3f", name) for kind in kinds)


def table_of(table: pd.DataFrame, name: str, problems: Sequence[str] = ()) -> str:
    """The figures as Markdown.

    Args:
        table: As `e5.csv` keeps it.
        name: The data set.
        problems: What failed or was left out.
    """
    figures = _Figures(table)
    counts = {side: len(figures.of(side, "prototypes valid")) for side in SIDES}
    about = ABOUT.format(
        name=name,
        accuracy=100 * figures.mean(("predictions", ""), "test accuracy"),
        seeds=", ".join(f"{count} ({' '.join(side)})" for side, count in counts.items()),
        pairs=", ".join(f"{n:,}" for n in figures.of(SIDES[0], "all three ok, pairs")["count"]),
    )
    lines = [
        (words, *(figures.text(side, metric, style) for side in SIDES))
        for metric, style, words in LINES
    ]
    near = [
        (name, *(figures.nearest(side, name) for side in SIDES))
        for name in ("first", "middle", "last", "prototypes")
    ]
    test = figures.nearest(("predictions", ""), "test digits")
    near.append(("test digits, for comparison", test, *[""] * (len(SIDES) - 1)))
    dash = [
        (f"{side[1]}, {side[0]}", mode,
         *(figures.text(side, metric, style, f"dash: {mode}") for metric, style in DASH.values()))
        for side in SIDES
        for mode in ("free", "exact", "latent")
        if len(figures.of(side, "seconds", f"dash: {mode}"))
    ]  # fmt: skip
    parts = [about, grid(HEADS, lines)]
    parts += ["## Nearest training digit", ABOUT_NEAR, grid(HEADS, near)]
    parts += ["## No dash", ABOUT_DASH, grid(("", "enforce", *DASH), dash)]
    if problems:
        parts += ["## What failed or was left out", "\n".join(f"- {line}" for line in problems)]
    return "\n\n".join(parts) + "\n"


# ------------------------------------------------------------------------------------------------
# The page


def gallery(table: pd.DataFrame, name: str) -> str:
    """The page of pictures, its captions from the figures that were kept.

    Args:
        table: As `e5.csv` keeps it.
        name: The data set.
    """
    figures = _Figures(table)

    def text(metric: str, style: str, side: tuple[str, str] = SIDES[0], label: str = "") -> str:
        return figures.text(side, metric, style, label)

    accuracy = 100 * figures.mean(("predictions", ""), "test accuracy")
    ours, paper = SIDES[0], SIDES[1]
    return f"""# Gallery: digits

Images are tables whose columns are pixels: an array `(n, height, width)` replaces the frame, and
arrays come out. Everything on this page was made by one command,
`python -m benchmarks --experiment e5`, on {name}, for a small convolutional network with an
accuracy of {accuracy:.2f} % on the test digits. The table behind it is `benchmarks/results/e5.md`.

## Thirty prototypes

![Three prototypes of each digit](images/e5-prototypes-default-predictions.png)

*Three prototypes of each digit, with the network's probability. Over all seeds
{text("prototypes valid", "of")} are valid, {text("prototypes valid before repair", "of")} before
any repair; with the paper's recipe {text("prototypes valid", "of", paper)}. They are no copies: the
nearest training digit is {text("nearest training digit, mean", ".3f", ours, "prototypes")} away
(root mean square of a pixel), a test digit's
{text("nearest training digit, mean", ".3f", ("predictions", ""), "test digits")}.*

![The same with the paper's recipe](images/e5-prototypes-paper-truth.png)

*The same as the paper trains it: its recipe, on the true labels.*

## From a five to the sevens

![Paths from a five to three sevens](images/e5-paths-default-predictions.png)

*A path to each prototype of the seven: τ, and the network's probability of a seven. From test
digits to every other digit First is ok on {text("first ok, paths", "%")} of all paths, Middle on
{text("middle ok, paths", "%")}, Last on {text("last ok, paths", "%")};
{text("re-crossing", "%")} of the paths leave the target again.*

![The same with the paper's recipe](images/e5-paths-paper-truth.png)

*The paper's recipe on the true labels. Its paths begin at the reconstruction, ours at the digit
itself.*

## Without a dash

![A path to a crossed seven, free and without a dash](images/e5-dash-default-predictions.png)

*The path to the seven with most of a dash, and the same with "nothing in rows 13 to 18, columns 8
to 14" as a function of the pixels. Of all points on such paths that the network calls a seven,
the brightest pixel there is
{text("brightest in the dash, sevens", ".3f", ours, "dash: exact")} (allowed: 0.01; without the
constraint {text("brightest in the dash, sevens", ".3f", ours, "dash: free")});
{text("fives answered", "%", ours, "dash: exact")} of the fives still have a counterfactual.*

## Every digit as every other

![A matrix of digits turned into each other](images/e5-others-default.png)

*On the diagonal a test digit of each kind; in its row the middle of its shortest path to each
other digit.*

## Probability along the path

![Probability of the target along the path](images/e5-probability.png)

*The network's probability of the target along τ, mean over all paths; the band spans the seeds.
First lies at τ = {text("first tau", ".2f")} on average, with the paper's recipe at
{text("first tau", ".2f", paper)}.*
"""
