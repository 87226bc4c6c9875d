"""What is to be run: pairs of a table and a classifier, settings, seeds, and what names a job.

A job is one pair, one recipe, one seed. Its `settings` hold everything its figures depend on, and
its `key` is their hash: results kept under another key are results of something else.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import lapace
from lapace.classifiers import TrainedKind
from lapace.errors import InputError, did_you_mean

__all__ = ["RECIPE_REVISION", "Job", "Limits", "Pair", "Plan", "Protocol", "Published", "Tuned"]

Experiment: TypeAlias = Literal["e1", "extra"]
RecipeName: TypeAlias = Literal["default", "paper"]
Kind = TypeVar("Kind")

# Counts the changes that move figures without moving the version: of a recipe, of how paths are
# walked, of how something is measured. Raise it with such a change; older results are then set
# aside, not mixed in.
RECIPE_REVISION = 1


@dataclass(frozen=True)
class Tuned:
    """The paper's settings of the L-GMVAE for one pair.

    Attributes:
        latent: Dimensions of z.
        batch: Rows per step.
        rate: Adam's learning rate.
        weights: Of KL(c), KL(z) and reconstruction.

    Examples:
        >>> Tuned(latent=8, batch=64, rate=1e-3, weights=(0.1, 0.05, 1.0)).latent
        8
    """

    latent: int
    batch: int
    rate: float
    weights: tuple[float, float, float]


@dataclass(frozen=True)
class Published:
    """What the paper reports for one pair, in percent.

    Attributes:
        accuracy: Of the classifier, on true labels.
        real: Of a forest trained on real rows, on the classifier's labels.
        synthetic: The same, trained on synthetic rows.

    Examples:
        >>> round(Published(accuracy=81.15, real=93.82, synthetic=81.13).gap, 2)
        12.69
    """

    accuracy: float
    real: float
    synthetic: float

    @property
    def gap(self) -> float:
        """Points lost by training on synthetic rows."""
        return self.real - self.synthetic


@dataclass(frozen=True)
class Pair:
    """A table and a classifier.

    Attributes:
        name: Such as `wine-RF`.
        data: A data set of `lapace.datasets`, or one of the benchmark's own tables.
        classifier: `forest`, `mlp` or `boosting`.
        experiment: `e1` for the paper's pairs, `extra` for tables it does not have.
        balanced: Whether labels are made equally frequent before the split.
        impute: Whether missing cells are filled from the training rows.
        paper: The paper's settings; without them its recipe is not run.
        published: The paper's figures.

    Examples:
        >>> Pair("wine-RF", "wine", "forest").experiment
        'e1'
    """

    name: str
    data: str
    classifier: TrainedKind
    experiment: Experiment = "e1"
    balanced: bool = False
    impute: bool = False
    paper: Tuned | None = None
    published: Published | None = None


@dataclass(frozen=True)
class Protocol:
    """What is done with every pair.

    Attributes:
        seeds: One per repeat: of the split, the classifier and the fit.
        clusters: Per label.
        people: Test rows with an unfavourable label whose paths are walked.
        steps: Of a path.
        trees: Of the forests trained on real and on synthetic rows.
        rows: Training rows at most; None for all.

    Examples:
        >>> Protocol().seeds
        (1, 2, 3, 4, 5)
    """

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    clusters: int = 5
    people: int = 100
    steps: int = 20
    trees: int = 100
    rows: int | None = None


@dataclass(frozen=True)
class Limits:
    """What bounds the time the paper's recipe takes.

    Attributes:
        repeats: Of the protocol's seeds, how many.
        tries: Fits at most until every centroid is accepted.
        epochs: Of a fit, at most.
        patience: Epochs without a better validation loss before stopping.

    Examples:
        >>> Limits().tries
        3
    """

    repeats: int = 2
    tries: int = 3
    epochs: int = 100
    patience: int = 10


@dataclass(frozen=True)
class Job:
    """One pair, one recipe, one seed: what is run, kept and resumed as a whole.

    Examples:
        >>> job = Job(Pair("wine-RF", "wine", "forest"), "default", 1, Protocol(), Limits())
        >>> str(job), len(job.key)
        ('wine-RF, default recipe, seed 1', 12)
        >>> job.key == replace(job, limits=Limits(tries=9)).key  # the default has no tries
        True
        >>> job.key == replace(job, protocol=Protocol(people=9)).key
        False
    """

    pair: Pair
    recipe: RecipeName
    seed: int
    protocol: Protocol
    limits: Limits

    def __str__(self) -> str:
        return f"{self.pair.name}, {self.recipe} recipe, seed {self.seed}"

    @property
    def settings(self) -> dict[str, Any]:
        """All its figures depend on, as JSON values."""
        paper = self.recipe == "paper"
        pair, protocol, limits = asdict(self.pair), asdict(self.protocol), asdict(self.limits)
        del pair["published"], protocol["seeds"], limits["repeats"]
        if not paper:
            del pair["paper"]
        found = {
            "lapace": lapace.__version__,
            "revision": RECIPE_REVISION,
            "pair": pair,
            "recipe": self.recipe,
            "seed": self.seed,
            "protocol": protocol,
            "limits": limits if paper else None,
        }
        plain: dict[str, Any] = json.loads(json.dumps(found))  # tuples become lists, as when read
        return plain

    @property
    def key(self) -> str:
        """A short hash of the settings."""
        text = json.dumps(self.settings, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Plan:
    """Everything that could be run.

    Attributes:
        pairs: In the order of the tables.
        protocol: What is done with each.
        limits: What bounds the paper's recipe.
        is_quick: Whether this is a short version that proves nothing but that it works.

    Examples:
        >>> pairs = (Pair("wine-RF", "wine", "forest"), Pair("codes-BT", "codes", "boosting"))
        >>> plan = Plan(pairs, Protocol(), Limits())
        >>> [str(job) for job in plan.jobs(pairs=["wine-RF"], repeats=1)]
        ['wine-RF, default recipe, seed 1']
    """

    pairs: tuple[Pair, ...]
    protocol: Protocol
    limits: Limits
    is_quick: bool = False

    @classmethod
    def read(cls, path: str | Path, *, quick: bool = False) -> Plan:
        """A plan from a TOML file.

        Args:
            path: Such as `benchmarks/paper.toml`.
            quick: Take the file's `[quick]` version.
        """
        path = Path(path)
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError:
            raise InputError(
                f"There is no plan '{path}'. Run this in the project's folder, or name the plan."
            ) from None
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"'{path}' is not TOML: {error}.") from None
        try:
            plan = cls.parse(data)
            return plan.quick(data.get("quick", {})) if quick else plan
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"'{path}' is not a plan: {error}") from None

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Plan:
        """A plan from what a TOML file says."""
        pairs = tuple(_pair(name, dict(known)) for name, known in data["pairs"].items())
        protocol = dict(data.get("protocol", {}))
        if "seeds" in protocol:
            protocol["seeds"] = tuple(protocol["seeds"])
        limits = _made(Limits, data.get("paper", {}), "paper")
        return cls(pairs, _made(Protocol, protocol, "protocol"), limits)

    def quick(self, data: Mapping[str, Any]) -> Plan:
        """The short version of this plan: fewer pairs, rows, people, trees and passes."""
        repeats = data.get("repeats", 1)
        protocol = {k: data[k] for k in ("people", "steps", "trees", "rows") if k in data}
        limits = {k: data[k] for k in ("tries", "epochs", "patience") if k in data}
        return Plan(
            tuple(self[name] for name in data.get("pairs", self.names[:1])),
            replace(self.protocol, seeds=self.protocol.seeds[:repeats], **protocol),
            replace(self.limits, repeats=repeats, **limits),
            is_quick=True,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The pairs' names."""
        return tuple(pair.name for pair in self.pairs)

    def __getitem__(self, name: str) -> Pair:
        for pair in self.pairs:
            if pair.name == name:
                return pair
        hint = did_you_mean(name, self.names)
        raise InputError(f"There is no pair '{name}'. There are: {', '.join(self.names)}.{hint}")

    def jobs(
        self,
        *,
        experiments: Sequence[str] = get_args(Experiment),
        pairs: Sequence[str] = (),
        recipes: Sequence[str] = get_args(RecipeName),
        repeats: int | None = None,
    ) -> list[Job]:
        """What to run, in order: every pair once before any pair twice.

        Args:
            experiments: Which of `e1` and `extra`.
            pairs: By name; all where none is named.
            recipes: Which of `default` and `paper`; the default goes first.
            repeats: At most this many of the seeds.
        """
        chosen = [self[name] for name in pairs] or self.pairs
        return [
            job
            for recipe in get_args(RecipeName)
            for experiment in get_args(Experiment)
            if recipe in recipes and experiment in experiments
            for job in self._repeats(
                [pair for pair in chosen if pair.experiment == experiment], recipe, repeats
            )
        ]

    def _repeats(
        self, pairs: Sequence[Pair], recipe: RecipeName, repeats: int | None
    ) -> Iterator[Job]:
        seeds = self.protocol.seeds[:repeats]
        for seed in seeds[: self.limits.repeats] if recipe == "paper" else seeds:
            for pair in pairs:
                if recipe == "default" or pair.paper is not None:
                    yield Job(pair, recipe, seed, self.protocol, self.limits)


def _pair(name: str, data: dict[str, Any]) -> Pair:
    place = f"pairs.{name}"
    if "paper" in data:
        paper = {**data["paper"], "weights": tuple(data["paper"]["weights"])}
        data["paper"] = _made(Tuned, paper, f"{place}.paper")
    if "published" in data:
        data["published"] = _made(Published, data["published"], f"{place}.published")
    pair = _made(Pair, {"name": name, **data}, place)
    for value, options in ((pair.classifier, TrainedKind), (pair.experiment, Experiment)):
        if value not in get_args(options):
            raise ValueError(f"[{place}] says {value!r}, which is none of {get_args(options)}.")
    return pair


def _made(kind: type[Kind], data: Mapping[str, Any], place: str) -> Kind:
    """A record from a TOML table; what it does not know is refused, not dropped."""
    try:
        return kind(**data)
    except TypeError as error:
        raise ValueError(f"[{place}] {str(error).partition(' ')[2]}.") from None
