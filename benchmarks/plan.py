"""The plan: pairs of a table and a classifier, settings, seeds, and the jobs they make.

A job is one experiment on one pair with one seed and one side of the comparison: the explainer of
one recipe, or a baseline. Its `settings` hold everything its figures depend on, and its `key` is
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
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from lapace.datasets import TrainedKind
from lapace.errors import InputError, did_you_mean

Recipe: TypeAlias = Literal["default", "paper", "printed", "gumbel", "baselines"]
PairKind: TypeAlias = Literal["e1", "extra"]
Kind = TypeVar("Kind")

EXPERIMENTS = ("grid", "e1", "e2", "e3", "e4", "clusters", "tuning", "privacy", "extra")
# Sides with the paper's architecture and settings. They differ in the reading of the loss: KL(c) of
# a batch's mean responsibilities (`paper`, `recipe="paper"`), or as printed, of each row, with the
# probabilities of clusters handed on (`printed`) or a straight-through Gumbel draw (`gumbel`).
PAPER_SIDES: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "printed": {"kl_c": "row"},
    "gumbel": {"kl_c": "row", "draw": True},
}


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
        """The deviation of the gap, as if the two varied independently."""
        return math.hypot(*self.deviations)


@dataclass(frozen=True)
class Pair:
    """A table and a classifier."""

    name: str
    data: str  # a data set of `lapace.datasets`, or a table of `benchmarks.tables`
    classifier: TrainedKind
    experiment: PairKind = "e1"  # extra: a table the paper does not have
    balanced: bool = False  # labels are made equally frequent before the split
    impute: bool = False  # missing cells are filled from the training rows
    compared: bool = False  # an extra table that E2 has, too
    matched: str = ""  # the classifier of the grid of readings, among `readings.CANDIDATES`
    paper: PaperSettings | None = None  # without them the paper's recipe is not run
    reported: Reported | None = None


@dataclass(frozen=True)
class Protocol:
    """The settings that all pairs share."""

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)  # one per repeat: of split, classifier and fit
    n_prototypes: int = 5  # per label
    instances: int = 100  # test rows with an unfavourable label that are explained
    steps: int = 20  # of a path
    trees: int = 100  # of the forests trained on real and on synthetic rows
    rows: int | None = None  # training rows at most


@dataclass(frozen=True)
class Limits:
    """Bounds on fits: tries of both recipes, the training of the paper's."""

    tries: int = 3  # fits at most until every centroid is valid, after repair where there is one
    steps: int = 4000  # of the paper's recipe, early stopping apart
    epochs: int = 100  # passes over the rows, where those are more


@dataclass(frozen=True)
class Baseline:
    """A baseline of E2: a class of `benchmarks.baselines` with options."""

    name: str  # in the tables
    kind: str = ""  # the class, where its name is another
    instances: int | None = None  # explained at most; slow methods get fewer
    perturbed: int | None = None  # of them perturbed at most
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Comparison:
    """E2, the comparison of methods; also how the sweep over clusters measures."""

    n_models: int = 20  # classifiers retrained, each on its own selection of the data set
    share: float = 0.8  # of the data set's rows in a selection
    n_perturbations: int = 10  # of every instance
    scale: float = 0.02  # their max-norm, in units of each column's range
    confidences: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9)  # required of First, on the same fit
    minimal_perturbed: int = 25  # instances perturbed for nearest and best, which take longer
    baseline: Baseline | None = None  # of one job


@dataclass(frozen=True)
class Actionability:
    """E3, the comparison under constraints."""

    instances: int = 100  # of the protocol's; every one has its own constraints and calls
    n_constraints: int = 5  # drawn for each instance
    change: float = 0.05  # of a limited feature in the medium setting, as a share of its spread
    rates: tuple[float, ...] = ()  # η of the paper's correction, swept in the medium setting
    max_steps: tuple[int, ...] = ()  # its N, swept
    tolerances: tuple[float, ...] = ()  # violations forgiven when points are counted, swept
    swept: int = 20  # instances of the sweeps
    constraints: tuple[str, ...] = ()  # the list of one job's data set


@dataclass(frozen=True)
class Readings:
    """The grid of readings of what the paper leaves open, and what tells them apart.

    Every combination of scaling numbers, summing or averaging the reconstruction over columns and
    KL(z) over dimensions, and KL(c) per row or per batch is one reading.
    """

    numbers: tuple[str, ...] = ("standardised", "min-max")
    error: tuple[str, ...] = ("summed", "averaged")
    kl_z: tuple[str, ...] = ("summed", "averaged")
    kl_c: tuple[str, ...] = ("row", "batch")
    depths: tuple[int, ...] = (3, 5, 0)  # of the forests of the utility test; 0: full
    trees: int = 100
    max_steps: int = 0  # of training; 0: those of the paper's recipe


@dataclass(frozen=True)
class Sweep:
    """The number of clusters, swept."""

    n_prototypes: tuple[int, ...] = (2, 3, 5, 8, 12)
    sides: tuple[str, ...] = ("default", "paper")


@dataclass(frozen=True)
class Job:
    """One experiment on one pair with one seed: what is run, kept and resumed as a whole.

    Attributes:
        pair: The table and the classifier.
        recipe: Which explainer, or `baselines`.
        seed: Of the split, the classifier, the fit and everything drawn.
        protocol: The settings that all pairs share.
        limits: Bounds on fits.
        experiment: What is measured.
        details: The settings of that experiment.

    Examples:
        >>> job = Job(Pair("wine-RF", "wine", "forest"), "default", 1, Protocol(), Limits())
        >>> str(job), len(job.key)
        ('wine-RF, default recipe, seed 1', 12)
        >>> job.key == replace(job, limits=Limits(tries=9)).key
        False
    """

    pair: Pair
    recipe: Recipe
    seed: int
    protocol: Protocol
    limits: Limits
    experiment: str = "e1"
    details: Comparison | Actionability | Readings | None = None

    def __str__(self) -> str:
        side = self.recipe if self.recipe == "baselines" else f"{self.recipe} recipe"
        if self.baseline is not None:
            side = self.baseline.name
        count = f"{self.protocol.n_prototypes} " if self.experiment == "clusters" else ""
        what = "" if self.experiment in ("e1", "extra") else f"{count}{self.experiment}: "
        return f"{what}{self.pair.name}, {side}, seed {self.seed}"

    @property
    def baseline(self) -> Baseline | None:
        """The baseline of E2 that is measured."""
        return self.details.baseline if isinstance(self.details, Comparison) else None

    @property
    def settings(self) -> dict[str, Any]:
        """Everything its figures depend on, as JSON values."""
        found = asdict(self)
        del found["pair"]["reported"], found["protocol"]["seeds"]
        if self.recipe not in PAPER_SIDES:
            del found["pair"]["paper"]
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
        protocol: The settings that all pairs share.
        limits: Bounds on fits.
        e2: Settings of the comparison.
        baselines: The baselines of E2, each a job of its own.
        e3: Settings of the comparison under constraints.
        constraints: The constraints that E3 draws from, by data set.
        readings: The grid of readings of what the paper leaves open.
        tuning: Variants of the baselines, one option of each swept.
        sweep: Settings of the sweep over clusters.
        repeats: How many of the seeds an experiment has, by name; all of them where it has none.
        is_quick: Whether this is the short version, which only shows that everything runs.

    Examples:
        >>> plan = Plan((Pair("wine-RF", "wine", "forest"),), baselines=(Baseline("NNCE"),))
        >>> [str(job) for job in plan.jobs(experiments=["e2"], repeats=1)]
        ['e2: wine-RF, default recipe, seed 1', 'e2: wine-RF, NNCE, seed 1']
    """

    pairs: tuple[Pair, ...] = ()
    protocol: Protocol = Protocol()
    limits: Limits = Limits()
    e2: Comparison = Comparison()
    baselines: tuple[Baseline, ...] = ()
    e3: Actionability = Actionability()
    constraints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    readings: Readings = Readings()
    tuning: tuple[Baseline, ...] = ()
    sweep: Sweep = Sweep()
    repeats: Mapping[str, int] = field(default_factory=dict)
    is_quick: bool = False

    @classmethod
    def read(cls, path: str | Path, *, quick: bool = False) -> Plan:
        """Reads a plan from a TOML file.

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
                for part, own in short.items():
                    replaced = part in ("baselines", "tuning")  # whole, not key by key
                    data[part] = own if replaced else {**data.get(part, {}), **own}
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
        """Makes a plan of the tables of a TOML file."""

        def made(kind: type[Kind], name: str) -> Kind:
            return _record(kind, data.get(name, {}), name)

        def methods(name: str) -> tuple[Baseline, ...]:
            known = data.get(name, {})
            return tuple(_record(Baseline, {"name": k, **v}, name) for k, v in known.items())

        constraints = {name: tuple(texts) for name, texts in data.get("constraints", {}).items()}
        return cls(
            tuple(_pair(name, dict(known)) for name, known in data["pairs"].items()),
            made(Protocol, "protocol"),
            made(Limits, "paper"),
            made(Comparison, "e2"),
            methods("baselines"),
            made(Actionability, "e3"),
            constraints,
            made(Readings, "grid"),
            methods("tuning"),
            made(Sweep, "clusters"),
            dict(data.get("repeats", {})),
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
        """Returns the jobs to run, in order: every pair once before any pair twice.

        Args:
            experiments: Which of `EXPERIMENTS`.
            pairs: By name; all where none is named.
            recipes: Which sides.
            repeats: At most this many of the seeds.
        """
        for name in experiments:
            if name not in EXPERIMENTS:
                raise InputError(_unknown("experiment", name, EXPERIMENTS))
        names = {self[name].name for name in pairs}
        seeds = self.protocol.seeds[:repeats]

        def is_repeated(job: Job) -> bool:
            kind = "extra" if job.pair.experiment == "extra" else job.experiment
            return job.seed in self.protocol.seeds[: self.repeats.get(kind)]

        return [
            job
            for job in self._all()
            if job.experiment in experiments
            and job.recipe in recipes
            and (not names or job.pair.name in names)
            and job.seed in seeds
            and is_repeated(job)
        ]

    def _all(self) -> Iterator[Job]:
        """Yields all jobs, in order; those that share a fit are side by side."""
        # Small batches first: those fits take the most steps, and a run should not end with one.
        batches = {p.name: math.inf if p.paper is None else p.paper.batch for p in self.pairs}
        pairs = sorted(self.pairs, key=lambda pair: batches[pair.name])
        all_ = list(product(self.protocol.seeds, pairs))
        for seed, pair in all_:
            if pair.paper is not None:
                yield Job(pair, "paper", seed, self.protocol, self.limits, "grid", self.readings)
        for seed, pair in all_:
            if pair.experiment == "e1":
                yield from self._of_pair(pair, seed)
        for seed, pair in all_:
            if pair.experiment == "extra":
                job = Job(pair, "default", seed, self.protocol, self.limits, "extra")
                yield job
                yield from self._compared(replace(job, experiment="e2")) if pair.compared else ()

    def _of_pair(self, pair: Pair, seed: int) -> Iterator[Job]:
        """Yields E1 to E4, the sweeps and the attacks of one pair of the paper and one seed."""
        texts = self.constraints.get(pair.data, ())
        constrained = replace(self.e3, constraints=texts)
        for recipe in (*PAPER_SIDES, "default") if pair.paper is not None else ("default",):
            job = Job(pair, recipe, seed, self.protocol, self.limits)
            yield job
            yield replace(job, experiment="e2", details=self.e2)
            yield replace(job, experiment="e4")
            yield replace(job, experiment="privacy")
            if texts and recipe != "gumbel":  # descent takes long: one reading as printed
                yield replace(job, experiment="e3", details=constrained)
            swept = replace(job, experiment="clusters", details=replace(self.e2, confidences=()))
            for count in self.sweep.n_prototypes if recipe in self.sweep.sides else ():
                yield replace(swept, protocol=replace(self.protocol, n_prototypes=count))
        job = Job(pair, "baselines", seed, self.protocol, self.limits, "e2")
        yield from self._compared(job)
        yield replace(job, experiment="privacy")
        for baseline in self.tuning:
            yield replace(job, experiment="tuning", details=self._of_baseline(baseline))
        if texts:
            yield replace(job, experiment="e3", details=constrained)

    def _compared(self, job: Job) -> Iterator[Job]:
        """Yields E2 of the explainer of a table of our own, and of every baseline."""
        if job.recipe == "default":
            yield replace(job, details=self.e2)
        for baseline in self.baselines:
            if job.pair.experiment == "e1" or baseline.instances is None:  # not the slowest
                yield replace(job, recipe="baselines", details=self._of_baseline(baseline))

    def _of_baseline(self, baseline: Baseline) -> Comparison:
        return replace(self.e2, confidences=(), minimal_perturbed=0, baseline=baseline)


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    hint = did_you_mean(name, known)
    return f"There is no {kind} '{name}'. There are: {', '.join(known)}.{hint}"


def _pair(name: str, data: dict[str, Any]) -> Pair:
    place = f"pairs.{name}"
    for part, kind in (("paper", PaperSettings), ("reported", Reported)):
        if part in data:
            data[part] = _record(kind, data[part], f"{place}.{part}")
    pair = _record(Pair, {"name": name, **data}, place)
    for value, options in ((pair.classifier, TrainedKind), (pair.experiment, PairKind)):
        if value not in get_args(options):
            raise ValueError(f"[{place}] says {value!r}, which is none of {get_args(options)}.")
    return pair


def _record(kind: type[Kind], data: Mapping[str, Any], place: str) -> Kind:
    """Makes a dataclass of a TOML table; an unknown key is refused, not dropped."""
    try:
        return kind(**{k: _frozen(v) for k, v in data.items()})
    except TypeError as error:
        raise ValueError(f"[{place}] {str(error).partition(' ')[2]}.") from None


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return tuple(value.items()) if isinstance(value, dict) else value
