"""E5's table and its page of pictures, from the figures that were kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

__all__ = ["gallery", "table_of"]

SIDES = (
    ("predictions", "default"),
    ("predictions", "paper"),
    ("truth", "default"),
    ("truth", "paper"),
)
# Metric, how to write it, and what to call it. A share of things counted is written k of n.
LINES = (
    ("prototypes valid", "of", "prototypes the network accepts"),
    ("prototypes valid before repair", "of", "the same before any repair"),
    ("prototype least probability", ".3f", "probability of the least likely prototype"),
    ("first ok, paths", "%", "First ok, of all paths"),
    ("middle ok, paths", "%", "Middle ok, of all paths"),
    ("last ok, paths", "%", "Last ok, of all paths"),
    ("all three ok, pairs", "%", "First, Middle and Last ok, of all digits and targets"),
    ("first tau", ".2f", "where First lies (τ)"),
    ("re-crossing", "%", "paths that leave the target again"),
    ("reconstruction error", ".4f", "reconstruction error (mean square of a pixel)"),
    ("reconstruction agreement", "%", "reconstructions read as the digit they are of"),
    ("milliseconds, per digit and target", ".2f", "milliseconds per digit and target, three paths"),
    ("milliseconds, picks only", ".2f", "the same with detail='picks'"),
    ("steps or epochs", ".0f", "steps (default) or epochs (paper)"),
    ("training seconds", ".1f", "seconds of training"),
    ("fit seconds", ".1f", "seconds of the whole fit, report included"),
)
NEAR = ("first", "middle", "last", "prototypes")


class _Figures:
    """Figures by side and metric, over seeds."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table.fillna({"label": "", "recipe": ""})

    def of(self, labels: str, recipe: str, metric: str, label: str = "") -> pd.DataFrame:
        t = self.table
        return t[
            (t["labels"] == labels)
            & (t["recipe"] == recipe)
            & (t["metric"] == metric)
            & (t["label"] == label)
        ]

    def mean(self, labels: str, recipe: str, metric: str, label: str = "") -> float:
        part = self.of(labels, recipe, metric, label)
        known = part[(part["count"] > 0) & part["value"].notna()]
        return float(np.average(known["value"], weights=known["count"])) if len(known) else np.nan

    def text(self, side: tuple[str, str], metric: str, style: str, label: str = "") -> str:
        mean = self.mean(*side, metric, label)
        if np.isnan(mean):
            return "–"
        if style == "of":
            count = int(self.of(*side, metric, label)["count"].sum())
            return f"{mean * count:.0f} of {count}"
        if style == "%":
            return f"{100 * mean:.2f} %"
        return format(mean, style)


def table_of(table: pd.DataFrame, name: str, trouble: Sequence[str] = ()) -> str:
    """The figures as Markdown.

    Args:
        table: What was found, as `e5.csv` keeps it.
        name: The data set.
        trouble: What failed or was left out.
    """
    figures = _Figures(table)
    accuracy = figures.mean("predictions", "", "test accuracy")
    counts = {side: figures.of(*side, "prototypes valid") for side in SIDES}
    seeds = ", ".join(f"{len(part)} ({' '.join(side)})" for side, part in counts.items())
    instances = figures.of("predictions", "default", "all three ok, pairs")["count"]
    about = (
        f"Made by `python -m benchmarks --experiment e5` on {name}. The network that is "
        f"explained reads {100 * accuracy:.2f} % of the test digits. Seeds: {seeds}. Paths: "
        f"{', '.join(f'{n:,}' for n in instances)} pairs of a digit and a target (default recipe, "
        "seed by seed), three paths each. Means are weighted by what they count."
    )
    ways = (
        "Paths of up to 100 fives to the sevens. *free*: no constraint; *exact*: corrected, "
        "projected and checked; *latent*: the paper's gradient alone."
    )
    parts = [
        "# E5: the digits",
        "",
        about,
        "",
        _markdown(["", *(f"{recipe}, {labels}" for labels, recipe in SIDES)], _lines(figures)),
        "",
        "## Nearest training digit",
        "",
        "Distance to the nearest training digit, in root mean squares of a pixel: mean, and least.",
        "",
        _markdown(["", *(f"{recipe}, {labels}" for labels, recipe in SIDES)], _near(figures)),
        "",
        "## No dash",
        "",
        ways,
        "",
        _markdown(
            ["", "way", "brightest pixel in the dash", "sevens without a dash", "fives answered",
             "density of First", "seconds"],
            _dash(figures),
        ),
    ]  # fmt: skip
    if trouble:
        parts += ["", "## What failed or was left out", "", *(f"- {line}" for line in trouble)]
    return "\n".join(parts) + "\n"


def _lines(figures: _Figures) -> list[list[str]]:
    return [
        [words, *(figures.text(side, metric, style) for side in SIDES)]
        for metric, style, words in LINES
    ]


def _near(figures: _Figures) -> list[list[str]]:
    lines = []
    for what in NEAR:
        both = [
            " / ".join(
                figures.text(side, f"nearest training digit, {kind}", ".3f", what)
                for kind in ("mean", "least")
            )
            for side in SIDES
        ]
        lines.append([what, *both])
    own = [
        figures.text(("predictions", ""), f"nearest training digit, {kind}", ".3f", "test digits")
        for kind in ("mean", "least")
    ]
    lines.append(["test digits, for comparison", " / ".join(own), *[""] * (len(SIDES) - 1)])
    return lines


def _dash(figures: _Figures) -> list[list[str]]:
    lines = []
    for side in SIDES:
        for way in ("free", "exact", "latent"):
            label = f"dash: {way}"
            if not len(figures.of(*side, "seconds", label)):
                continue
            lines.append([
                f"{side[1]}, {side[0]}",
                way,
                figures.text(side, "brightest in the dash, sevens", ".3f", label),
                figures.text(side, "sevens without a dash", "%", label),
                figures.text(side, "fives answered", "%", label),
                figures.text(side, "density of first", ".1f", label),
                figures.text(side, "seconds", ".1f", label),
            ])  # fmt: skip
    return lines


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


# ------------------------------------------------------------------------------------------------
# The page


def gallery(table: pd.DataFrame, name: str) -> str:
    """The page of pictures, its captions from the figures that were kept.

    Args:
        table: What was found, as `e5.csv` keeps it.
        name: The data set.
    """
    figures = _Figures(table)

    def text(metric: str, style: str, side: tuple[str, str] = SIDES[0], label: str = "") -> str:
        return figures.text(side, metric, style, label)

    accuracy = 100 * figures.mean("predictions", "", "test accuracy")
    ours, theirs = SIDES[0], SIDES[1]
    return f"""# Gallery: digits

Images are tables whose columns have places: an array `(n, height, width)` goes in where a frame
did, and arrays come out. Everything on this page was made by one command,
`python -m benchmarks --experiment e5`, on {name}, for a small convolutional network that
reads {accuracy:.2f} % of the test digits. The table behind it is `benchmarks/results/e5.md`.

## Thirty prototypes

![Three prototypes of each digit](images/e5-prototypes-default-predictions.png)

*Three prototypes of each digit, with the network's probability. Over all seeds the network accepts
{text("prototypes valid", "of")}, {text("prototypes valid before repair", "of")} before any repair;
with the paper's recipe {text("prototypes valid", "of", theirs)}. They are no copies: the nearest
training digit is {text("nearest training digit, mean", ".3f", ours, "prototypes")} away (root mean
square of a pixel), a test digit's
{text("nearest training digit, mean", ".3f", ("predictions", ""), "test digits")}.*

![The same with the paper's recipe](images/e5-prototypes-paper-truth.png)

*The same as the paper trains it: its recipe, on the true labels.*

## From a five to the sevens

![Paths from a five to three sevens](images/e5-paths-default-predictions.png)

*A path to each prototype of the seven: how far along, and how sure the network is. From test digits
to every other digit First is ok on {text("first ok, paths", "%")} of all paths, Middle on
{text("middle ok, paths", "%")}, Last on {text("last ok, paths", "%")};
{text("re-crossing", "%")} of the paths leave the target again.*

![The same with the paper's recipe](images/e5-paths-paper-truth.png)

*The paper's recipe on the true labels. Its paths begin at the reconstruction, ours at the digit
itself.*

## No dash, please

![A path to a crossed seven, free and without a dash](images/e5-dash-default-predictions.png)

*The path to the seven with most of a dash, and the same with "nothing in rows 13 to 18, columns 8
to 14" as a function of the pixels. Of all points on such paths that the network calls a seven,
the brightest pixel there is
{text("brightest in the dash, sevens", ".3f", ours, "dash: exact")} (allowed: 0.01; without the
constraint {text("brightest in the dash, sevens", ".3f", ours, "dash: free")});
{text("fives answered", "%", ours, "dash: exact")} of the fives are still answered.*

## Every digit as every other

![A matrix of digits turned into each other](images/e5-others-default.png)

*On the diagonal a test digit of each kind; in its row what it turns into on the way to each other
digit: the middle of its shortest path.*

## How sure, how soon

![Probability of the target along the path](images/e5-probability.png)

*The network's probability of the target along τ, mean over all paths; the band spans the seeds.
First lies at τ = {text("first tau", ".2f")} on average, with the paper's recipe at
{text("first tau", ".2f", theirs)}.*
"""
