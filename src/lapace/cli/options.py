"""Options that several commands share, said once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

Model: TypeAlias = Annotated[
    Path, typer.Argument(metavar="M.lapace", help="A fitted explainer, as `fit` wrote it.")
]
Instances: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PEOPLE", help="The rows asked about: .csv or .parquet, or - for standard input."
    ),
]
Named: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--classifier",
        help="The classifier, where the file does not know it or another is meant: model.skops, "
        "model.onnx, package.module:object or https://…/predict.",
    ),
]
Trust: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help="A type a .skops file may hold though it is not a known one; repeatable."),
]
UnsafePickle: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--unsafe-pickle",
        help="Open pickle and joblib files too. They can run any code: only your own.",
    ),
]
Timeout: TypeAlias = Annotated[
    float, typer.Option(help="Seconds a classifier at an address may take for one answer.")
]
Target: TypeAlias = Annotated[
    str | None,
    typer.Option(help="The label wanted, or any-other; with two labels it may be left out."),
]
ConstraintFiles: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--constraints", help="A file of constraints (TOML); repeatable."),
]
ConstraintTexts: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--constraint", "-c", help='One constraint, such as "age == original"; repeatable.'
    ),
]
Costs: TypeAlias = Annotated[
    str | None,
    typer.Option(help='How hard changes are: "income=2,age=impossible"; 1 where nothing is said.'),
]
Cost: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help='The cost of one column, such as "income=2"; repeatable.'),
]
Confidence: TypeAlias = Annotated[
    float | None, typer.Option(help="The least probability of the target an answer must have.")
]
Steps: TypeAlias = Annotated[int, typer.Option(help="Steps from an instance to a prototype.")]
InstanceExplanation: TypeAlias = Annotated[
    int | None, typer.Option(help="Only this row of PEOPLE, counted from 0.")
]
Device: TypeAlias = Annotated[
    str | None, typer.Option(help="cpu or cuda; by default the best there is.")
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say nothing but the result, and errors.")
]


class Pick(StrEnum):
    """Which rows of the paths are shown."""

    first = "first"
    middle = "middle"
    last = "last"
    nearest = "nearest"
    sparse = "sparse"
    path = "path"


class Format(StrEnum):
    """How a result is written."""

    table = "table"
    csv = "csv"
    parquet = "parquet"
    json = "json"


class Detail(StrEnum):
    """How much the classifier is asked about."""

    path = "path"
    picks = "picks"


class Enforce(StrEnum):
    """How constraints are made to hold."""

    exact = "exact"
    naive = "naive"
    latent = "latent"


class Recipe(StrEnum):
    """How the model is trained."""

    default = "default"
    paper = "paper"


class Picture(StrEnum):
    """What is drawn."""

    path = "path"
    latent = "latent"
    prototypes = "prototypes"
    training = "training"


class Part(StrEnum):
    """Which rows of a data set."""

    train = "train"
    test = "test"
    all = "all"
