"""What is run: pairs of a table and a classifier, settings, seeds, and the jobs they make.

A job is one experiment on one pair with one seed and one side of the comparison: the explainer of
one recipe, or all baselines. Its `settings` hold everything its figures depend on, and its `key` is
their hash: results kept under another key belong to other settings. Jobs are frozen data and can be
sent to another process.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from lapace.datasets import TrainedKind
from lapace.errors import InputError, did_you_mean

__all__ = [
    "EXPERIMENTS",
    "REVISIONS",
    "Actionability",
    "Comparison",
    "Job",
    "Pair",
    "Plan",
    "Reading",
]

Recipe: TypeAlias = Literal["default", "paper", "baselines"]
Kind = TypeVar("Kind")

EXPERIMENTS = ("e1", "extra", "readings", "sources", "e2", "e3", "e4", "clusters", "e6")
UTILITY = ("e1", "extra")  # E1 on the paper's tables and on tables the paper does not have
# Raise a number when a change moves figures: of a recipe, or of what one experiment measures. Older
# results are then set aside, not mixed with new ones.
REVISIONS = {
    "default": 2, "paper": 2, "baselines": 1, "e1": 2, "readings": 1, "sources": 1, "e2": 1,
    "e3": 2, "e4": 2, "clusters": 1, "e6": 1,
}  # fmt: skip
# The default recipe's, in experiments made again since, whenever nearest and best were found in
# another way. The others measure First, Middle and Last alone.
AGAIN = {"e1": 4, "e2": 4}


@dataclass(frozen=True)
class PaperSettings:
    """The paper's settings of the L-GMVAE for one pair."""

    n_latent: int
    batch: int
    rate: float  # Adam's learning rate
    weights: tuple[float, float, float]  # of KL(c), KL(z) and reconstruction


@dataclass(frozen=True)
class Reported:
    """The paper's figures for one pair, in percent.

    Examples:
        >>> round(Reported(accuracy=81.15, real=93.82, synthetic=81.13).gap, 2)
        12.69
    """

    accuracy: float  # of the classifier, on true labels
    real: float  # of a forest trained on real rows, on the classifier's labels
    synthetic: float  # of a forest trained on synthetic rows
    deviations: tuple[float, float] = (0.0, 0.0)  # of the two over its runs
    actionability: tuple[float, ...] | None = None  # FACE-Interpolate, -Greedy, LAPACE-naive, -…

    @property
    def gap(self) -> float:
        """Points lost by training on synthetic rows."""
        return self.real - self.synthetic

    @property
    def gap_deviation(self) -> float:
        """That of the gap, as if the two varied independently."""
        return math.hypot(*self.deviations)


@dataclass(frozen=True)
class Pair:
    """A table and a classifier."""

    name: str
    data: str  # a data set of `lapace.datasets`, or a table of `benchmarks.tables`
    classifier: TrainedKind
    experiment: Literal["e1", "extra"] = "e1"  # extra: a table the paper does not have
    balanced: bool = False  # labels are made equally frequent before the split
    impute: bool = False  # missing cells are filled from the training rows
    paper: PaperSettings | None = None  # without them the paper's recipe is not run
    reported: Reported | None = None


@dataclass(frozen=True)
class Protocol:
    """What is done with every pair."""

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)  # one per repeat: of split, classifier and fit
    n_prototypes: int = 5  # per label
    instances: int = 100  # test rows with an unfavourable label that are explained
    steps: int = 20  # of a path
    trees: int = 100  # of the forests trained on real and on synthetic rows
    rows: int | None = None  # training rows at most


@dataclass(frozen=True)
class Limits:
    """What bounds fits: tries of both recipes, the training of the paper's."""

    tries: int = 3  # fits at most until every centroid is valid, after repair where there is one
    steps: int = 4000  # of the paper's recipe, early stopping apart
    epochs: int = 100  # passes over the rows, where those are more


@dataclass(frozen=True)
class Comparison:
    """E2, the comparison of methods; also how the sweep over clusters measures."""

    n_models: int = 20  # classifiers retrained, each on its own selection of the data set
    share: float = 0.8  # of the data set's rows in a selection
    n_perturbations: int = 10  # of every instance
    scale: float = 0.02  # their max-norm, in units of each column's range
    confidences: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9)  # required of First, on the same fit
    methods: tuple[str, ...] = ("NNCE", "FACE", "RobXCE", "DiCE", "DRCE", "CCHVAE")
    n_counterfactuals: int = 5  # of a baseline that can return several
    max_instances: Mapping[str, int] = field(default_factory=dict, hash=False)
    max_perturbed: Mapping[str, int] = field(default_factory=dict, hash=False)
    minimal_perturbed: int = 25  # instances perturbed for nearest and best, which take longer
    again: tuple[str, ...] = ()  # methods run before, of which only later metrics are measured


@dataclass(frozen=True)
class Actionability:
    """E3, the comparison under constraints."""

    instances: int = 20  # of the protocol's; every one has its own constraints and calls
    n_constraints: int = 5  # drawn for each instance
    n_fixed: int = 3  # features that keep the instance's value in the hard setting
    low: float = 0.1  # quantiles the hard setting's ranges are narrowed to
    high: float = 0.9
    repeats: int = 5  # of the protocol's seeds
    constraints: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class PathPoints:
    """E4, points along paths. Prototypes of different fits are not comparable: one is drawn."""

    repeats: int = 5


@dataclass(frozen=True)
class Reading:
    """One reading of what the paper leaves open: fields of its recipe, by name."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Readings:
    """The readings compared, on splits no other experiment uses."""

    seeds: tuple[int, ...] = (1, 2)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    @property
    def each(self) -> tuple[Reading, ...]:
        """The readings, in order."""
        return tuple(Reading(name, tuple(own.items())) for name, own in self.options.items())


@dataclass(frozen=True)
class Sweep:
    """The number of clusters, swept."""

    n_prototypes: tuple[int, ...] = (2, 3, 5, 8, 12)
    pairs: tuple[str, ...] = ()
    repeats: int = 2


@dataclass(frozen=True)
class Job:
    """One experiment on one pair with one seed: what is run, kept and resumed as a whole.

    Attributes:
        pair: The table and the classifier.
        recipe: Which explainer, or `baselines`.
        seed: Of the split, the classifier, the fit and everything drawn.
        protocol: What is done with every pair.
        limits: What bounds the paper's recipe.
        experiment: What is measured.
        details: What that depends on beside the protocol.

    Examples:
        >>> job = Job(Pair("wine-RF", "wine", "forest"), "default", 1, Protocol(), Limits())
        >>> str(job), len(job.key)
        ('wine-RF, default recipe, seed 1', 12)
        >>> job.key == replace(job, limits=Limits(tries=9)).key  # the default recipe has no tries
        True
    """

    pair: Pair
    recipe: Recipe
    seed: int
    protocol: Protocol
    limits: Limits
    experiment: str = "e1"
    details: Comparison | Actionability | PathPoints | Reading | None = None

    def __str__(self) -> str:
        if self.experiment == "e6":
            return "e6: the illustration"
        side = self.recipe if self.recipe == "baselines" else f"{self.recipe} recipe"
        count = f"{self.protocol.n_prototypes} " if self.experiment == "clusters" else ""
        if isinstance(self.details, Reading):
            side = self.details.name
        what = "" if self.experiment in UTILITY else f"{count}{self.experiment}: "
        return f"{what}{self.pair.name}, {side}, seed {self.seed}"

    @property
    def revision(self) -> int:
        """Of the recipe, in this experiment."""
        again = AGAIN.get(self.experiment, 0) if self.recipe == "default" else 0
        return max(REVISIONS[self.recipe], again)

    @property
    def settings(self) -> dict[str, Any]:
        """Everything its figures depend on, as JSON values."""
        paper, utility = self.recipe == "paper", self.experiment in UTILITY
        pair, protocol, limits = asdict(self.pair), asdict(self.protocol), asdict(self.limits)
        del pair["reported"], protocol["seeds"]
        if not paper:
            del pair["paper"]
        if not utility:
            del protocol["trees"]  # of forests only E1 trains
        found = {
            "revision": [self.revision, REVISIONS.get(self.experiment, 1)],
            "experiment": self.experiment,
            "pair": pair,
            "recipe": self.recipe,
            "seed": self.seed,
            "protocol": protocol,
            "limits": limits if paper else None,
            "details": self._details(),
        }
        plain: dict[str, Any] = json.loads(json.dumps(found))  # tuples become lists, as when read
        return plain

    def _details(self) -> dict[str, Any]:
        """The details this side of the comparison depends on."""
        found = {} if self.details is None else asdict(self.details)
        found.pop("repeats", None)
        if isinstance(self.details, Actionability):
            found["constraints"] = found["constraints"].get(self.pair.data, ())
        elif isinstance(self.details, Comparison):
            only_baselines = ("methods", "n_counterfactuals", "max_instances", "max_perturbed")
            only_ours = ("confidences", "minimal_perturbed")
            for name in only_ours if self.recipe == "baselines" else only_baselines:
                del found[name]
            if self.recipe == "paper" or self.experiment == "clusters":
                found.pop("minimal_perturbed", None)  # they have neither nearest nor best
            if not found["again"]:
                del found["again"]
        return found

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
        e2: Settings of the comparison.
        more: The same with methods that were added later, so that each is a job of its own.
        e3: Settings of the comparison under constraints.
        e4: Settings of the points along paths.
        readings: What the paper leaves open.
        sweep: Settings of the sweep over clusters.
        is_quick: Whether this is the short version, which only shows that everything runs.

    Examples:
        >>> plan = Plan((Pair("wine-RF", "wine", "forest"),))
        >>> [str(job) for job in plan.jobs(experiments=["e2"], repeats=1)]
        ['e2: wine-RF, default recipe, seed 1', 'e2: wine-RF, baselines, seed 1']
    """

    pairs: tuple[Pair, ...] = ()
    protocol: Protocol = Protocol()
    limits: Limits = Limits()
    e2: Comparison = Comparison()
    more: tuple[Comparison, ...] = ()
    e3: Actionability = Actionability()
    e4: PathPoints = PathPoints()
    readings: Readings = Readings()
    sweep: Sweep = Sweep()
    is_quick: bool = False

    @classmethod
    def read(cls, path: str | Path, *, quick: bool = False) -> Plan:
        """A plan from a TOML file.

        Args:
            path: Such as `benchmarks/paper.toml`.
            quick: Use the file's `[quick]` version.
        """
        path = Path(path)
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
            short = data.pop("quick", {})
            if quick:
                names = short.pop("pairs", list(data["pairs"])[:1])
                data["pairs"] = {name: data["pairs"][name] for name in names}
                for part, own in short.items():  # a list replaces the whole list
                    data[part] = own if isinstance(own, list) else {**data.get(part, {}), **own}
            return replace(cls.parse(data), is_quick=quick)
        except OSError:
            raise InputError(
                f"There is no plan '{path}'. Run this in the project's folder, or name the plan."
            ) from None
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"'{path}' is not TOML: {error}.") from None
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"'{path}' is not a plan: {error}") from None

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Plan:
        """A plan from the tables of a TOML file."""

        def made(kind: type[Kind], name: str, **more: Any) -> Kind:
            return _record(kind, {**data.get(name, {}), **more}, name)

        later = data.get("more", [])
        constraints = {name: tuple(texts) for name, texts in data.get("constraints", {}).items()}
        return cls(
            tuple(_pair(name, dict(known)) for name, known in data["pairs"].items()),
            made(Protocol, "protocol"),
            made(Limits, "paper"),
            made(Comparison, "e2"),
            tuple(_record(Comparison, {**data["e2"], **own}, "more") for own in later),
            made(Actionability, "e3", constraints=constraints),
            made(PathPoints, "e4"),
            made(Readings, "readings"),
            made(Sweep, "clusters"),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The pairs' names."""
        return tuple(pair.name for pair in self.pairs)

    def __getitem__(self, name: str) -> Pair:
        for pair in self.pairs:
            if pair.name == name:
                return pair
        raise InputError(_unknown("pair", name, self.names))

    def jobs(
        self,
        *,
        experiments: Sequence[str] = EXPERIMENTS,
        pairs: Sequence[str] = (),
        recipes: Sequence[str] = get_args(Recipe),
        repeats: int | None = None,
    ) -> list[Job]:
        """The jobs to run, in order: every pair once before any pair twice.

        E1 first, the default recipe before the paper's; then the others, those that share a fit
        side by side, so that one process fits it once.

        Args:
            experiments: Which of `EXPERIMENTS`.
            pairs: By name; all where none is named.
            recipes: Which of `default`, `paper` and `baselines`.
            repeats: At most this many of the seeds.
        """
        for name in experiments:
            if name not in EXPERIMENTS:
                raise InputError(_unknown("experiment", name, EXPERIMENTS))
        names = {self[name].name for name in pairs}
        seeds = self.protocol.seeds[:repeats]
        return [
            job
            for job in self._all()
            if job.experiment in experiments
            and job.recipe in recipes
            and (not names or job.pair.name in names)
            and (job.seed in seeds or job.experiment in ("e6", "readings", "sources"))
        ]

    def _all(self) -> Iterator[Job]:
        """All jobs, in order."""
        seeds = self.protocol.seeds
        for recipe in ("default", "paper"):
            for experiment in UTILITY:
                for seed in seeds:
                    for pair in self.pairs:
                        if pair.experiment == experiment and (pair.paper or recipe == "default"):
                            yield Job(pair, recipe, seed, self.protocol, self.limits, experiment)
        yield from self._readings()
        for repeat, seed in enumerate(seeds):
            for pair in self.pairs:
                if pair.experiment == "e1":
                    yield from self._others(pair, seed, repeat)
        alone, once = Pair("illustration", "illustration", "forest"), Protocol((1,))
        yield Job(alone, "default", 1, replace(once, rows=self.protocol.rows), self.limits, "e6")

    def _readings(self) -> Iterator[Job]:
        """Every reading of what the paper leaves open, on every pair of the paper."""
        protocol = replace(self.protocol, seeds=self.readings.seeds)
        for seed in self.readings.seeds:
            for pair in self.pairs:
                for reading in self.readings.each if pair.paper is not None else ():
                    job = Job(pair, "paper", seed, protocol, self.limits, "readings", reading)
                    # One try: what a reading does to centroids is what is asked.
                    job = replace(job, limits=replace(self.limits, tries=1))
                    yield job
                    if not reading.options:
                        yield replace(job, experiment="sources")

    def _others(self, pair: Pair, seed: int, repeat: int) -> Iterator[Job]:
        """All but E1 of one pair and seed; jobs that share a fit are side by side."""
        constrained = pair.data in self.e3.constraints and repeat < self.e3.repeats
        swept = pair.name in self.sweep.pairs and repeat < self.sweep.repeats
        for recipe in ("default", "paper") if pair.paper is not None else ("default",):
            job = Job(pair, recipe, seed, self.protocol, self.limits, "e2", self.e2)
            yield job
            if constrained:
                yield replace(job, experiment="e3", details=self.e3)
            if repeat < self.e4.repeats:
                yield replace(job, experiment="e4", details=self.e4)
            for count in self.sweep.n_prototypes if swept else ():
                protocol = replace(self.protocol, n_prototypes=count)
                yield replace(job, experiment="clusters", protocol=protocol)
        job = Job(pair, "baselines", seed, self.protocol, self.limits, "e2", self.e2)
        yield job
        for later in self.more:
            yield replace(job, details=later)
        if constrained:
            yield replace(job, experiment="e3", details=self.e3)


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    hint = did_you_mean(name, known)
    return f"There is no {kind} '{name}'. There are: {', '.join(known)}.{hint}"


def _pair(name: str, data: dict[str, Any]) -> Pair:
    place = f"pairs.{name}"
    for part, kind in (("paper", PaperSettings), ("reported", Reported)):
        if part in data:
            data[part] = _record(kind, data[part], f"{place}.{part}")
    pair = _record(Pair, {"name": name, **data}, place)
    for value, options in ((pair.classifier, get_args(TrainedKind)), (pair.experiment, UTILITY)):
        if value not in options:
            raise ValueError(f"[{place}] says {value!r}, which is none of {options}.")
    return pair


def _record(kind: type[Kind], data: Mapping[str, Any], place: str) -> Kind:
    """A dataclass from a TOML table; an unknown key is refused, not dropped."""
    try:
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items()})
    except TypeError as error:
        raise ValueError(f"[{place}] {str(error).partition(' ')[2]}.") from None
