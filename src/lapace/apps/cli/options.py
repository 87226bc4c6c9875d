"""Options that several commands share, each defined once.

A command takes a group of options as one parameter, a dataclass; `app.command` makes an option of
each field and builds the dataclass from what typer parsed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typer import Argument, Option

from lapace.errors import InputError

if TYPE_CHECKING:
    from lapace.apps.cli.outputs import Terminal
    from lapace.explainer import Explainer

CLASSIFIERS = "model.skops, model.onnx, package.module:object or https://…/predict"
LoadingOption = partial(Option, rich_help_panel="Classifier and device")

MODEL = Argument(metavar="M.lapace", help="A fitted explainer, as `fit` wrote it.")
INSTANCES = Argument(
    metavar="INSTANCES",
    help="The table of instances: .csv, .tsv (also .gz) or .parquet, or - for standard input.",
)
_IDENTIFIES = "The column that identifies the rows: not a feature, written as `id`. By default"
IdOption = partial(Option, None, "--id", metavar="COLUMN")
ID_COLUMN = IdOption(help=f"{_IDENTIFIES} `id`, if that is not a feature.")
KNOWN_ID = IdOption(
    help=f"{_IDENTIFIES} the one that `fit` was given, or `id`, if that is not a feature."
)
TRAIN = Argument(
    metavar="TRAIN",
    help="The training table: .csv, .tsv (also .gz) or .parquet, or - for standard input.",
)
LABEL = Option(None, help="Only the prototypes of this label.")


@dataclass(frozen=True)
class Columns:
    """Options that say what the columns of a training table are, where it does not show it."""

    drop: list[str] = Option(
        [], metavar="COLUMN,…", help="Columns to leave out, with commas between. Repeatable."
    )
    kind: list[str] = Option(
        [],
        metavar="TEXT",
        help="What a column is, where the table does not show it: postcode=categorical (or number, "
        "date, binary, drop), grade=ordinal:low<mid<high, start=date:31/12/2024. Repeatable.",
    )
    schema: Path | None = Option(
        None, metavar="FILE", help="A file of columns, as `lapace schema` writes it (TOML)."
    )


@dataclass(frozen=True)
class Loader:
    """Options for loading a classifier, and for the device of the explainer."""

    trust: list[str] = LoadingOption(
        [],
        metavar="TYPE",
        help="A type that a .skops file may hold besides known ones. Repeatable.",
    )
    unsafe_pickle: bool = LoadingOption(
        False,
        "--unsafe-pickle",
        help="Open pickle and joblib files too. They can run any code: only your own.",
    )
    timeout: float = LoadingOption(
        30.0, help="Seconds a call of a classifier by URL may take, and for `serve` a request."
    )
    device: str | None = LoadingOption(None, help="cpu or cuda; by default the best available.")
    threshold: str | None = LoadingOption(
        None,
        metavar="NUMBER",
        help="The probability from which the second of two labels is predicted, else 0.5; "
        "approved=0.3 names the label. `fit` keeps it with a classifier's file.",
    )

    def classifier(self, name: str) -> Any:
        """Loads a classifier by its file, module or URL."""
        from lapace.apps.loaders import load_classifier

        return self.decided(load_classifier(name, **self.settings))

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `load_classifier`, by name."""
        names = {"trust": tuple(self.trust), "unsafe_pickle": self.unsafe_pickle}
        return {**names, "timeout": self.timeout}

    def decided(self, model: Any) -> Any:
        """The classifier with the threshold of the options, if there is one."""
        from lapace.classifier import threshold

        if self.threshold is None:
            return model
        label, _, number = self.threshold.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            raise InputError(
                f"--threshold '{self.threshold}' is not understood. Write 0.3, or approved=0.3."
            ) from None
        labels = {str(v): v for v in getattr(model, "classes_", ())}
        return threshold(model, value, labels.get(label, label) if label else None)


@dataclass(frozen=True)
class Model:
    """A saved explainer and its classifier."""

    path: Path = MODEL
    classifier: str | None = LoadingOption(
        None,
        help=f"The classifier, where M.lapace does not refer to it, or another: {CLASSIFIERS}.",
    )

    def load(self, loader: Loader) -> Explainer:
        """Loads the explainer with the classifier named, or else the one its file refers to."""
        from lapace.explainer import Explainer

        self.check_threshold(loader)
        if self.classifier is None:
            return Explainer.load(self.path, trust=loader.trust, device=loader.device)
        classifier = loader.classifier(self.classifier)
        return Explainer.load(self.path, classifier, device=loader.device)

    def check_threshold(self, loader: Loader) -> None:
        """Refuses a threshold for the classifier that the file refers to."""
        if self.classifier is None and loader.threshold is not None:
            raise InputError("--threshold goes with --classifier here: `fit` has kept its own.")

    def note_limits(self, explainer: Explainer, target: str | None, terminal: Terminal) -> None:
        """Warns of a report that fails, and says which target is taken where none is named."""
        if explainer.report_.verdict == "fails":
            terminal.warn(
                f"The report of '{self.path.name}' fails: do not rely on what follows. See: lapace "
                f"report {self.path}"
            )
        if target is None and len(explainer.classes_) == 2:
            terminal.note(
                "Without --target the other of the two labels is the target of each instance."
            )


@dataclass(frozen=True)
class Wanted:
    """Options of `explain` that hold for every instance."""

    id_column: str | None = KNOWN_ID
    target: str | None = Option(
        None, metavar="LABEL", help="The target label, or any-other; optional with two labels."
    )
    constraints: list[Path] = Option(
        [], metavar="FILE", help="A file of constraints (TOML). Repeatable."
    )
    constraint: list[str] = Option(
        [],
        "--constraint",
        "-c",
        metavar="TEXT",
        help='One constraint, such as "age == original". Repeatable.',
    )
    costs: list[str] = Option(
        [],
        metavar="TEXT",
        help='Weights of changes, else 1: "income=2,age=impossible". Repeatable. Unweighted, a '
        "number counts the share of the training rows that it passes, a category 1.",
    )
    confidence: float | None = Option(None, help="The least probability of the target.")
    plausibility: float | None = Option(
        None, help="The least density percentile among training rows of the target, below 100."
    )
    steps: int = Option(20, help="Steps from an instance to a prototype.")
    n_starts: int = Option(
        10, "--starts", help="Rows each search for nearest and for best starts from, 1 to 100."
    )


@dataclass(frozen=True)
class Query(Wanted):
    """The instances of a table to explain, and the arguments of `explain` for them."""

    ids: list[str] = Option(
        [],
        metavar="ID,…",
        help="Only these instances, by id; where there are no ids by position, 0, 1, … Repeatable.",
    )
    only: str | None = Option(
        None, metavar="LABEL", help="Only instances that the classifier predicts this label for."
    )
    first: int | None = Option(None, metavar="N", help="Only the first N of the instances.")
    free: str | None = Option(
        None, metavar="COLUMN,…", help="Only these columns may change; all others are fixed."
    )


@dataclass(frozen=True)
class Training:
    """Parameters of `Explainer`, and how many rows it learns from."""

    n_prototypes: int = Option(5, help="Prototypes per label.")
    n_latent: int | None = Option(
        None, help="Dimensions of the latent space; by default by a rule."
    )
    recipe: Literal["default", "paper"] = Option(
        "default", help="How to train; paper: as in the paper."
    )
    random_state: int = Option(0, help="Seed of everything random.")
    sample: int | None = Option(
        None,
        metavar="ROWS",
        help="Fit on at most so many rows, drawn from the table, which is never held whole.",
    )

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of `Explainer`, by name."""
        return {name: value for name, value in asdict(self).items() if name != "sample"}


@dataclass(frozen=True)
class WorkbenchSettings:
    """Options of the page that `serve` may show."""

    instances: str | None = Option(
        None,
        metavar="FILE",
        help="Rows to choose from on a page for visitors: .csv or .parquet. Everyone who may open "
        "the page can see them.",
    )
    target: str | None = Option(
        None, help="The label that visitors of the page want, as a rule; each may choose another."
    )
    id_column: str | None = KNOWN_ID


@dataclass(frozen=True)
class ServerSettings:
    """Parameters of `server.serve` that `serve` passes on, by name."""

    host: str = Option(
        "127.0.0.1", help="The address to listen on; any but loopback needs a token."
    )
    port: int = Option(8000, help="The port; 0 for any that is free.")
    open_: bool = Option(
        False, "--open", help="Listen on other addresses without a token: everyone may query."
    )
    token: str | None = Option(
        None, help="The bearer token that requests must carry.", envvar="LAPACE_TOKEN"
    )
    token_file: Path | None = Option(
        None,
        metavar="FILE",
        help="A file of tokens, a line name:token each.",
        envvar="LAPACE_TOKEN_FILE",
    )
    hosts: list[str] = Option(
        [], "--allowed-host", metavar="NAME", help="A name the Host header may have. Repeatable."
    )
    max_body: int = Option(1_000_000, help="Bytes a request may have.")
    max_instances: int = Option(100, help="Instances a request may have.")
    max_queries: int = Option(
        500_000, help="Rows the classifier may be queried about for a request."
    )
    queue: int = Option(64, help="Requests that may wait; further ones get 503.")
    log_requests: bool = Option(
        False, "--log-requests", help="Log a line of JSON for every request, without its data."
    )
