"""E5's table and its page of pictures, from the figures that were kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.figures import Figures, Line, grid

__all__ = ["COLUMNS", "earlier", "figures_of", "gallery", "table_of"]

COLUMNS = ("labels", "recipe", "seed", "metric", "value", "count", "label")
SIDES = (
    ("predictions", "default"),
    ("predictions", "paper"),
    ("truth", "default"),
    ("truth", "paper"),
)
HEADS = ("figure", *(f"{recipe}, {labels}" for labels, recipe in SIDES))
LINES = {
    "valid prototypes": "{prototypes valid:of}",
    "the same before any repair": "{prototypes valid before repair:of}",
    "probability of the least probable prototype": "{prototype least probability:~.3}",
    "First ok, of all paths": "{first ok, paths:~p} %",
    "Middle ok, of all paths": "{middle ok, paths:~p} %",
    "Last ok, of all paths": "{last ok, paths:~p} %",
    "First, Middle and Last ok, of all digits and targets": "{all three ok, pairs:~p} %",
    "τ of First": "{first tau:~}",
    "paths that leave the target again": "{re-crossing:~p} %",
    "reconstruction error (mean square of a pixel)": "{reconstruction error:~.4}",
    "reconstructions predicted as the digit they are of": "{reconstruction agreement:~p} %",
    "milliseconds per digit and target, three paths": "{milliseconds, per digit and target:~}",
    "steps": "{steps:~.0}",
    "seconds of training": "{training seconds:~.1}",
    "seconds of the whole fit, report included": "{fit seconds:~.1}",
}
NEAREST = "{nearest training digit, mean:~.3} / {nearest training digit, least:~.3}"
DASH = {
    "brightest pixel in the dash": "{brightest in the dash, sevens:~.3}",
    "sevens without a dash": "{sevens without a dash:~p} %",
    "fives answered": "{fives answered:~p} %",
    "density of First": "{density of first:~.1}",
    "seconds": "{seconds:~.1}",
}
ABOUT = """# E5: the digits

Made by `python -m benchmarks --experiment e5` on {name}. The network that is explained has an \
accuracy of {accuracy:.2p} % on the test digits. Seeds: {seeds}. Paths: {pairs} pairs of a digit \
and a target (default recipe, seed by seed), three paths each. Means are weighted by counts."""
ABOUT_NEAREST = (
    "Distance to the nearest training digit, in root mean squares of a pixel: mean / smallest."
)
ABOUT_DASH = (
    "Paths of up to 100 fives to the sevens. *free*: no constraint; *exact*: corrected, projected "
    "and checked; *latent*: the paper's gradient descent alone. "
    "The default recipe's were made beside 16 other processes: their seconds compare only among "
    "themselves."
)


def earlier(path: Path) -> pd.DataFrame:
    """The figures of an earlier run; empty where there was none."""
    if not path.exists():
        return pd.DataFrame({name: [] for name in COLUMNS})
    texts = {"labels": str, "recipe": str, "label": str}
    return pd.read_csv(path, keep_default_na=False, na_values={"value": [""]}, dtype=texts)


def figures_of(table: pd.DataFrame) -> Figures:
    """The figures of E5: labels take the place of a pair."""
    names = {"labels": "pair", "value": "mean"}
    return Figures(table.rename(columns=names).fillna({"recipe": ""}))


def table_of(table: pd.DataFrame, name: str, problems: Sequence[str] = ()) -> str:
    """The figures as Markdown.

    Args:
        table: As `e5.csv` keeps it.
        name: The data set.
        problems: What failed or was left out.
    """
    figures = figures_of(table)
    lines = {side: figures.line(*side) for side in SIDES}
    ours = table[(table["labels"] == SIDES[0][0]) & (table["recipe"] == SIDES[0][1])]
    counts = ours.loc[ours["metric"] == "all three ok, pairs", "count"]
    seeds = (f"{line['prototypes valid'].repeats} ({' '.join(s)})" for s, line in lines.items())
    about = ABOUT.format(
        name=name,
        accuracy=figures.get("predictions", "", "test accuracy"),
        seeds=", ".join(seeds),
        pairs=", ".join(f"{count:,}" for count in counts),
    )
    rows = [
        (words, *(_text(line, text) for line in lines.values())) for words, text in LINES.items()
    ]
    near = [
        (what, *(NEAREST.format_map(figures.line(*side, label=what)) for side in SIDES))
        for what in ("first", "middle", "last", "prototypes")
    ]
    test = NEAREST.format_map(figures.line("predictions", "", label="test digits"))
    near.append(("test digits, for comparison", test, "", "", ""))
    dash = [
        (f"{side[1]}, {side[0]}", mode, *(_text(line, text) for text in DASH.values()))
        for side in SIDES
        for mode in ("free", "exact", "latent")
        if (line := figures.line(*side, label=f"dash: {mode}"))["seconds"].repeats
    ]
    parts = [about, grid(HEADS, rows)]
    parts += ["## Nearest training digit", ABOUT_NEAREST, grid(HEADS, near)]
    parts += ["## No dash", ABOUT_DASH, grid(("model, labels", "enforce", *DASH), dash)]
    if problems:
        parts += ["## What failed or was left out", "\n".join(f"- {line}" for line in problems)]
    return "\n\n".join(parts) + "\n"


def _text(line: Line, template: str) -> str:
    """A filled template, without the percent sign of a figure that is missing."""
    return template.format_map(line).replace("– %", "–")


def gallery(table: pd.DataFrame, name: str) -> str:
    """The page of pictures, its captions from the figures that were kept.

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
    return f"""# Digits

Images are tables whose columns are pixels: an array `(n, height, width)` replaces the frame, and
arrays come out. Everything on this page was made by one command,
`python -m benchmarks --experiment e5`, on {name}, for a small convolutional network with an
accuracy of {accuracy:p} % on the test digits. The table behind it is `benchmarks/results/e5.md`.

## Thirty prototypes

![Three prototypes of each digit](images/e5-prototypes-default-predictions.png)

*Three prototypes of each digit; below each its number and the network's probability of that digit.
Over all seeds
{ours["prototypes valid"]:of} are valid, {ours["prototypes valid before repair"]:of} before
any repair; with the paper's recipe {paper["prototypes valid"]:of}. They are no copies: the
nearest training digit is {near["nearest training digit, mean"]:~.3} away
(root mean square of a pixel), a test digit's
{test["nearest training digit, mean"]:~.3}.*

![The same with the paper's recipe](images/e5-prototypes-paper-truth.png)

*The same with the paper's recipe as read here, on the true labels, as in the paper's appendix.*

## From a five to the sevens

![Paths from a five to three sevens](images/e5-paths-default-predictions.png)

*A path to each prototype of the seven: τ, and p, the network's probability of a seven. Orange
frames are images it calls a seven, the thick one is the first of a path. From test digits
to every other digit First is ok on {ours["first ok, paths"]:~p} % of all paths, Middle on
{ours["middle ok, paths"]:~p} %, Last on {ours["last ok, paths"]:~p} %;
{ours["re-crossing"]:~p} % of the paths leave the target again.*

![The same with the paper's recipe](images/e5-paths-paper-truth.png)

*The paper's recipe on the true labels. Its paths begin at the reconstruction, ours at the digit
itself.*

## Without a dash

![A path to a seven, free and with an empty box](images/e5-dash-default-predictions.png)

*The path to the seven with most of a dash, and the same with "nothing in rows 13 to 18, columns 8
to 14", the dashed box, as a function of the pixels. Of all points on such paths that the network
calls a seven, the brightest pixel there is
{exact["brightest in the dash, sevens"]:~.3} (allowed: 0.01; without the
constraint {free["brightest in the dash, sevens"]:~.3});
{exact["fives answered"]:~p} % of the fives still have a counterfactual.*

![The same with the paper's recipe](images/e5-dash-paper-truth.png)

*The paper's recipe on the true labels. Below, its own procedure: gradient descent in latent space
while a pixel in the box is too bright, and nothing after it. The paper's second seven is crossed;
of these none is, so it is the five's own stroke that has to leave the box.*

## Every digit as every other

![A matrix of digits turned into each other](images/e5-others-default.png)

*On the diagonal a test digit of each kind; in its row the middle of its shortest path to each
other digit.*

## Probability along the path

![Probability of the target along the path](images/e5-probability.png)

*The network's probability of the target along τ, mean over all paths; the band spans the seeds.
First lies at τ = {ours["first tau"]:~} on average, with the paper's recipe at
{paper["first tau"]:~}.*
"""
