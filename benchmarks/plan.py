"""What is to be run: pairs of a table and a classifier, settings, seeds, and what names a job.

A job is one experiment's work on one pair with one seed: an explainer of one recipe, or all the
baselines. Its `settings` hold everything its figures depend on, and its `key` is their hash:
results kept under another key are results of something else. Jobs are plain frozen data and can be
sent to another process.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import lapace
from benchmarks.settings import Act, Compare, Details, Sweep, Walk
from lapace.classifiers import TrainedKind
from lapace.errors import InputError, did_you_mean

__all__ = [
    "EXPERIMENTS",
    "RECIPE_REVISION",
    "REVISIONS",
    "Job",
    "Limits",
    "Pair",
    "Plan",
    "Protocol",
    "Published",
    "Tuned",
]

Experiment: TypeAlias = Literal["e1", "extra"]
Task: TypeAlias = Literal["e1", "e2", "e3", "e4", "e6", "clusters"]
RecipeName: TypeAlias = Literal["default", "paper"]
Side: TypeAlias = Literal["default", "paper", "baselines"]
Kind = TypeVar("Kind")

# Counts the changes that move figures without moving the version: of a recipe, of how paths are
# walked, of how something is measured. Raise those it concerns with such a change; older results
# are then set aside, not mixed in.
RECIPE_REVISION: dict[str, int] = {"default": 2, "paper": 1, "baselines": 1}
# The same for what only one experiment measures.
REVISIONS: Mapping[str, int] = {"e2": 1, "e3": 1, "e4": 1, "e6": 1, "clusters": 1}
EXPERIMENTS = ("e1", "extra", "e2", "e3", "e4", "clusters", "e6")
ALONE = "illustration"  # the name of what E6 is about, which no pair is


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
        actionability: E3's shares: FACE-Interpolate, FACE-Greedy, LAPACE-naive, -constrained.

    Examples:
        >>> round(Published(accuracy=81.15, real=93.82, synthetic=81.13).gap, 2)
        12.69
    """

    accuracy: float
    real: float
    synthetic: float
    actionability: tuple[float, ...] | None = None

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
        instances: Test rows with an unfavourable label whose paths are walked.
        steps: Of a path.
        trees: Of the forests trained on real and on synthetic rows.
        rows: Training rows at most; None for all.

    Examples:
        >>> Protocol().seeds
        (1, 2, 3, 4, 5)
    """

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    clusters: int = 5
    instances: int = 100
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
    """One experiment on one pair with one seed: what is run, kept and resumed as a whole.

    Attributes:
        pair: The table and the classifier.
        recipe: Which explainer, or `baselines` for what it is compared with.
        seed: Of the split, the classifier, the fit and everything drawn.
        protocol: What is done with every pair.
        limits: What bounds the paper's recipe.
        task: What is measured.
        details: What that depends on beside the protocol.

    Examples:
        >>> job = Job(Pair("wine-RF", "wine", "forest"), "default", 1, Protocol(), Limits())
        >>> str(job), len(job.key)
        ('wine-RF, default recipe, seed 1', 12)
        >>> job.key == replace(job, limits=Limits(tries=9)).key  # the default has no tries
        True
        >>> job.key == replace(job, protocol=Protocol(instances=9)).key
        False
    """

    pair: Pair
    recipe: Side
    seed: int
    protocol: Protocol
    limits: Limits
    task: Task = "e1"
    details: Details | None = None

    def __str__(self) -> str:
        if self.task == "e6":
            return "e6: the illustration"
        side = self.recipe if self.recipe == "baselines" else f"{self.recipe} recipe"
        many = f"{self.protocol.clusters} " if self.task == "clusters" else ""
        what = "" if self.task == "e1" else f"{many}{self.task}: "
        return f"{what}{self.pair.name}, {side}, seed {self.seed}"

    @property
    def experiment(self) -> str:
        """The experiment it belongs to; tables the paper does not have are `extra` of E1."""
        return self.pair.experiment if self.task == "e1" else self.task

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
            "revision": RECIPE_REVISION[self.recipe],
            "pair": pair,
            "recipe": self.recipe,
            "seed": self.seed,
            "protocol": protocol,
            "limits": limits if paper else None,
        }
        if self.task != "e1":
            del protocol["trees"]  # of forests only E1 trains
            found |= {"task": self.task, "task_revision": REVISIONS[self.task]}
            found["details"] = self._details()
        plain: dict[str, Any] = json.loads(json.dumps(found))  # tuples become lists, as when read
        return plain

    def _details(self) -> dict[str, Any] | None:
        """The part of the details this side of the comparison depends on."""
        if self.details is None:
            return None
        known = asdict(self.details)
        known.pop("repeats", None)
        if isinstance(self.details, Act):
            known["constraints"] = known["constraints"].get(self.pair.data, ())
        if isinstance(self.details, Compare):
            ours = self.recipe != "baselines"
            for name in ("methods", "answers", "most", "perturbed") if ours else ("confidences",):
                del known[name]
        return known

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
        compare: E2's settings.
        act: E3's.
        walk: E4's.
        sweep: Those of the sweep over clusters.
        is_quick: Whether this is a short version that proves nothing but that it works.

    Examples:
        >>> pairs = (Pair("wine-RF", "wine", "forest"), Pair("codes-BT", "codes", "boosting"))
        >>> plan = Plan(pairs, Protocol(), Limits())
        >>> [str(job) for job in plan.jobs(experiments=["e1"], pairs=["wine-RF"], repeats=1)]
        ['wine-RF, default recipe, seed 1']
        >>> [str(job) for job in plan.jobs(experiments=["e2"], pairs=["wine-RF"], repeats=1)]
        ['e2: wine-RF, default recipe, seed 1', 'e2: wine-RF, baselines, seed 1']
    """

    pairs: tuple[Pair, ...]
    protocol: Protocol
    limits: Limits
    compare: Compare = field(default_factory=Compare)
    act: Act = field(default_factory=Act)
    walk: Walk = field(default_factory=Walk)
    sweep: Sweep = field(default_factory=Sweep)
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
        compare = _made(Compare, _tuples(data.get("e2", {})), "e2")
        constraints = {name: tuple(texts) for name, texts in data.get("constraints", {}).items()}
        act = _made(Act, {**data.get("e3", {}), "constraints": constraints}, "e3")
        sweep = {**_tuples(data.get("clusters", {})), "compare": compare}
        return cls(
            pairs,
            _made(Protocol, protocol, "protocol"),
            limits,
            compare,
            act,
            _made(Walk, data.get("e4", {}), "e4"),
            _made(Sweep, sweep, "clusters"),
        )

    def quick(self, data: Mapping[str, Any]) -> Plan:
        """The short version of this plan: fewer pairs, rows, instances, trees and passes."""
        repeats = data.get("repeats", 1)
        protocol = {k: data[k] for k in ("instances", "steps", "trees", "rows") if k in data}
        limits = {k: data[k] for k in ("tries", "epochs", "patience") if k in data}
        compare = _made(Compare, {**vars(self.compare), **_tuples(data.get("e2", {}))}, "quick.e2")
        sweep = {"repeats": repeats, **_tuples(data.get("clusters", {})), "compare": compare}
        return Plan(
            tuple(self[name] for name in data.get("pairs", self.names[:1])),
            replace(self.protocol, seeds=self.protocol.seeds[:repeats], **protocol),
            replace(self.limits, repeats=repeats, **limits),
            compare,
            self.act,
            self.walk,
            _made(Sweep, {**vars(self.sweep), **sweep}, "quick.clusters"),
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
        experiments: Sequence[str] = EXPERIMENTS,
        pairs: Sequence[str] = (),
        recipes: Sequence[str] = get_args(Side),
        repeats: int | None = None,
    ) -> list[Job]:
        """What to run, in order: every pair once before any pair twice.

        E1 first, the default recipe before the paper's; then the others, all that shares a fit
        side by side, so that one process makes it once.

        Args:
            experiments: Which of `EXPERIMENTS`.
            pairs: By name; all where none is named.
            recipes: Which of `default`, `paper` and `baselines`.
            repeats: At most this many of the seeds.
        """
        for name in experiments:
            if name not in EXPERIMENTS:
                hint = did_you_mean(name, EXPERIMENTS)
                known = ", ".join(EXPERIMENTS)
                raise InputError(f"There is no experiment '{name}'. There are: {known}.{hint}")
        chosen = [self[name] for name in pairs] or list(self.pairs)
        found = [
            job
            for recipe in get_args(RecipeName)
            for experiment in get_args(Experiment)
            if recipe in recipes and experiment in experiments
            for job in self._repeats(
                [pair for pair in chosen if pair.experiment == experiment], recipe, repeats
            )
        ]
        for number, seed in enumerate(self.protocol.seeds[:repeats]):
            for pair in chosen:
                found += [
                    job
                    for job in self._others(pair, seed, number)
                    if job.task in experiments and job.recipe in recipes
                ]
        if "e6" in experiments and "default" in recipes and not pairs:
            alone = Pair(ALONE, ALONE, "forest")
            protocol = Protocol(seeds=(1,), rows=self.protocol.rows)
            found.append(Job(alone, "default", 1, protocol, self.limits, "e6"))
        return found

    def _repeats(
        self, pairs: Sequence[Pair], recipe: RecipeName, repeats: int | None
    ) -> Iterator[Job]:
        seeds = self.protocol.seeds[:repeats]
        for seed in seeds[: self.limits.repeats] if recipe == "paper" else seeds:
            for pair in pairs:
                if recipe == "default" or pair.paper is not None:
                    yield Job(pair, recipe, seed, self.protocol, self.limits)

    def _others(self, pair: Pair, seed: int, number: int) -> Iterator[Job]:
        """All but E1 of one of the paper's pairs and one seed, what shares a fit side by side."""
        if pair.experiment != "e1":
            return
        job = Job(pair, "default", seed, self.protocol, self.limits)
        yield replace(job, task="e2", details=self.compare)
        if pair.data in self.act.constraints and number < self.act.repeats:
            yield replace(job, task="e3", details=self.act)
        if number < self.walk.repeats:
            yield replace(job, task="e4", details=self.walk)
        if pair.paper is not None and number < self.limits.repeats:
            yield replace(job, task="e2", details=self.compare, recipe="paper")
        yield replace(job, task="e2", details=self.compare, recipe="baselines")
        if pair.name in self.sweep.pairs and number < self.sweep.repeats:
            for clusters in self.sweep.clusters:
                protocol = replace(self.protocol, clusters=clusters)
                swept = replace(job, task="clusters", details=self.sweep.compare)
                yield replace(swept, protocol=protocol)


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """TOML's lists as tuples, which are what can be hashed and compared."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


def _pair(name: str, data: dict[str, Any]) -> Pair:
    place = f"pairs.{name}"
    if "paper" in data:
        paper = {**data["paper"], "weights": tuple(data["paper"]["weights"])}
        data["paper"] = _made(Tuned, paper, f"{place}.paper")
    if "published" in data:
        data["published"] = _made(Published, _tuples(data["published"]), f"{place}.published")
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
