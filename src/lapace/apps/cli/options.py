"""Options that several commands share, each defined once, and what they mean to the library.

A command takes a group of options as one parameter, a dataclass; `app.command` makes an option of
each field and builds the dataclass from what typer parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Option

from lapace.apps.cli import inputs
from lapace.apps.cli.outputs import note, warn
from lapace.errors import InputError

if TYPE_CHECKING:
    from lapace.explainer import Explainer

CLASSIFIERS = "model.skops, model.onnx, package.module:object or https://…/predict"
LoadingOption = partial(Option, rich_help_panel="Classifier and device")

TABLES = "table: .csv, .tsv (also .gz) or .parquet, or - for standard input."
MODEL = Argument(metavar="M.lapace", help="A fitted explainer, as `fit` wrote it.")
INSTANCES = Argument(metavar="INSTANCES", help=f"The instances, a {TABLES}")
KNOWN_ID = Option(None, "--id", help="The column of ids; by default that of `fit`, or `id`.")


@dataclass(frozen=True)
class Training:
    """A training table, and what its columns are where it does not show it."""

    train: str = Argument(metavar="TRAIN", help=f"The training {TABLES}")
    label: str | None = Option(None, help="The column of true labels: not a feature.")
    id_column: str | None = Option(None, "--id", help="The column of ids; by default `id`.")
    drop: list[str] = Option([], help="A column to leave out. Repeatable.")
    kind: list[str] = Option(
        [],
        help="What a column is, if the table does not show it: postcode=categorical (or number, "
        "date, binary, id, drop), grade=ordinal:low<mid<high, start=date:31/12/2024. Repeatable.",
    )
    schema: Path | None = Option(None, help="A file of columns, as `lapace schema` writes it.")

    @cached_property
    def overrides(self) -> dict[str, Any]:
        """The declarations of columns, in the file and then by options."""
        from lapace.schema import read_overrides

        dropped = dict.fromkeys(self.drop, "drop")
        return {**read_overrides(self.schema), **inputs.parse_kinds(self.kind), **dropped}

    @cached_property
    def identifier(self) -> str | None:
        """The column of ids that an option or the file names."""
        names = [name for name, kind in self.overrides.items() if kind == "id"]
        if self.id_column is None and len(names) > 1:
            raise InputError(f"Both '{names[0]}' and '{names[1]}' are ids. Drop one of them.")
        return self.id_column or next(iter(names), None)

    @property
    def files(self) -> list[str | Path]:
        """Files that are read."""
        return [self.train, *([self.schema] if self.schema else [])]


@dataclass(frozen=True)
class Loader:
    """Options for loading a classifier, and for the device of the explainer."""

    trust: list[str] = LoadingOption([], help="A type that a .skops file may hold. Repeatable.")
    unsafe_pickle: bool = LoadingOption(
        False, "--unsafe-pickle", help="Open pickles, which can run any code: only your own."
    )
    timeout: float = LoadingOption(
        30.0, help="Seconds that a classifier behind a URL, or a request to `serve`, may take."
    )
    device: str | None = LoadingOption(None, help="cpu or cuda; by default the best available.")
    threshold: str | None = LoadingOption(
        None, help="The probability from which a label is predicted: 0.3, or approved=0.3."
    )

    def classifier(self, name: str) -> Any:
        """Loads a classifier by its file, module or URL."""
        from lapace.apps.loaders import load_classifier

        model = load_classifier(
            name, trust=self.trust, unsafe_pickle=self.unsafe_pickle, timeout=self.timeout
        )
        return self.decided(model)

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
        labels = getattr(model, "classes_", ())
        return threshold(model, value, inputs.parse_label(labels, label or None))


@dataclass(frozen=True)
class Model:
    """A saved explainer and its classifier."""

    path: Path = MODEL
    classifier: str | None = LoadingOption(
        None, help=f"The classifier, if M.lapace does not find it: {CLASSIFIERS}."
    )

    def load(self, loader: Loader) -> Explainer:
        """Loads the explainer with the classifier named, or else the one its file refers to."""
        from lapace.explainer import Explainer

        if self.classifier is not None:
            classifier = loader.classifier(self.classifier)
            return Explainer.load(self.path, classifier, device=loader.device)
        if loader.threshold is not None:
            raise InputError("--threshold goes with --classifier here: `fit` has kept its own.")
        return Explainer.load(self.path, trust=loader.trust, device=loader.device)


@dataclass(frozen=True)
class Wanted:
    """Options of `explain` that hold for every instance."""

    id_column: str | None = KNOWN_ID
    target: str | None = Option(None, help="The target label, or any-other.")
    constraints: list[Path] = Option([], help="A file of constraints (TOML). Repeatable.")
    constraint: list[str] = Option(
        [], "--constraint", "-c", help='One constraint, such as "age == original". Repeatable.'
    )
    free: str | None = Option(None, help="The only columns that may change: savings,amount.")
    cost: list[str] = Option(
        [], help="The weight of a column's changes: income=2, age=impossible. Repeatable."
    )
    confidence: float | None = Option(None, help="The least probability of the target.")
    plausibility: float | None = Option(None, help="The least density: a share from 0 to below 1.")

    def arguments(self, explainer: Explainer, model: Path) -> dict[str, Any]:
        """Returns the arguments of `Explainer.explain`, by name.

        Warns where the report of the explainer, read from `model`, fails, and says which target is
        taken where none is named.
        """
        constraints = inputs.read_constraints(self.constraints, self.constraint)
        if self.free is not None:
            constraints.append(inputs.all_fixed_but(self.free, explainer.schema_))
        target = inputs.parse_label(explainer.classes_, self.target)
        if explainer.report_.verdict_for(target) == "fails":
            warn(
                f"The report of '{model.name}' fails{'' if target is None else f' for {target!r}'}:"
                f" do not rely on what follows. See: lapace report {model}"
            )
        if self.target is None and len(explainer.classes_) == 2:
            note("Without --target the other of the two labels is the target of each instance.")
        return {
            "target": target,
            "constraints": constraints,
            "costs": inputs.parse_costs(self.cost),
            "confidence": self.confidence,
            "plausibility": self.plausibility,
        }


@dataclass(frozen=True)
class Query(Wanted):
    """The instances of a table to explain, and the arguments of `explain` for them."""

    ids: list[str] = Option([], help="Only these: 12,15. Without ids, positions from 0.")
