"""What every experiment starts from: a pair's rows and classifier, and an explainer fitted on them.

Setups and fits are cached while a process runs, so that experiments on one pair and seed share
them; with the same seed another process makes the same ones. Everything is
measured in the units of one schema, the data set's, whatever the recipe.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np

from benchmarks.jobs import Measure
from benchmarks.losses import PaperLoss
from benchmarks.plan import PAPER_SIDES, Job, Pair
from benchmarks.provenance import environment, hashed
from benchmarks.tables import load, retrained
from lapace import Explainer, metrics
from lapace.arrays import Floats, Ints
from lapace.classifier import Classifier
from lapace.datasets import Dataset
from lapace.errors import CentroidWarning
from lapace.schema import Schema
from lapace.training import DEFAULT, PAPER, Recipe

__all__ = [
    "Cost",
    "Fit",
    "Setup",
    "fit",
    "fitted",
    "paper_split",
    "recipe_of",
    "retrained_models",
    "setup_of",
    "spent",
]

NEXT_TRY = 1000  # between the seeds of the tries of one fit
MODELS = Path(".cache/benchmark/models")


@dataclass(frozen=True, eq=False)
class Setup:
    """A pair's data set, split by a seed, its classifier, and the classifier's predictions.

    Attributes:
        data: The data set, split.
        model: The classifier, trained on its training rows.
        classifier: The same, wrapped, with its labels.
        schema: The data set's.
        wide: The same with the levels only test rows have.
        target: The favourable label, as a code.
        train: Training rows as cells.
        codes: The classifier's labels of them.
        test: Held-out rows as cells of `wide`.
        test_codes: The classifier's labels of them.
        instances: The test rows with an unfavourable label that are explained.
    """

    data: Dataset
    model: Any
    classifier: Classifier
    schema: Schema
    wide: Schema
    target: int
    train: Floats
    codes: Ints
    test: Floats
    test_codes: Ints
    instances: Floats

    @property
    def frame(self) -> Any:
        """The instances as a table."""
        return self.wide.frame(self.instances)

    @property
    def target_rows(self) -> Floats:
        """Training rows the classifier gives the target."""
        rows: Floats = self.train[self.codes == self.target]
        return rows

    @cached_property
    def plausibility(self) -> metrics.Plausibility:
        """The plausibility of rows among the training rows the classifier gives the target."""
        return metrics.Plausibility(self.schema, self.target_rows)

    @cached_property
    def plausibility_of_all(self) -> metrics.Plausibility:
        """The plausibility of rows among all training rows, whatever their label."""
        return metrics.Plausibility(self.schema, self.train)


def setup_of(job: Job) -> Setup:
    """The setup of a job's pair and seed."""
    return _setup(job.pair, job.seed, job.protocol.rows, job.protocol.instances)


@lru_cache(maxsize=2)
def _setup(pair: Pair, seed: int, rows: int | None, count: int) -> Setup:
    data = load(pair, seed, rows)
    data = replace(data, schema=data.schema.by_range())  # the paper's distance: change over range
    model = data.classifier(pair.classifier, random_state=seed)
    train, read = data.schema.cells(data.train), data.schema.read(data.test)
    classifier = Classifier(model, data.schema)
    codes = classifier.fit_labels(train)
    target = classifier.code(data.target)
    test_codes = classifier.predict(read.cells, read.schema)
    return Setup(
        data=data,
        model=model,
        classifier=classifier,
        schema=data.schema,
        wide=read.schema,
        target=target,
        train=train,
        codes=codes,
        test=read.cells,
        test_codes=test_codes,
        instances=read.cells[test_codes != target][:count],
    )


def paper_split(setup: Setup, seed: int) -> Setup:
    """The paper's split: the explainer's test rows are cut from the classifier's training rows.

    A fifth of them is held out; the classifier is the same, and has seen all of them.
    """
    held = np.zeros(len(setup.train), dtype=bool)
    held[np.random.default_rng(seed).permutation(len(held))[: len(held) // 5]] = True
    rows = setup.data.train
    data = replace(
        setup.data,
        train=rows[~held].reset_index(drop=True),
        test=rows[held].reset_index(drop=True),
        train_labels=np.asarray(setup.data.train_labels)[~held],
        test_labels=np.asarray(setup.data.train_labels)[held],
    )
    return replace(
        setup,
        data=data,
        train=setup.train[~held],
        codes=setup.codes[~held],
        test=setup.train[held],
        test_codes=setup.codes[held],
    )


@lru_cache(maxsize=1)
def retrained_models(
    pair: Pair, seed: int, rows: int | None, count: int, share: float
) -> list[Any]:
    """Classifiers of the same kind, each trained on its own selection of the data set.

    All sides of a pair and seed are measured with them, in processes of their own, so they are kept
    as a file: training them took a sixth of a whole run.
    """
    made_by = environment(), hashed("benchmarks.tables.retrained")
    key = repr((pair, seed, rows, count, share, *made_by))
    path = MODELS / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.joblib"
    if not path.exists():
        data = load(pair, seed, rows)
        kind, seeds = pair.classifier, range(100 * seed, 100 * seed + count)
        part = path.with_suffix(f".{os.getpid()}.tmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        joblib.dump([retrained(data, kind, seed=own, share=share) for own in seeds], part)
        part.replace(path)
    models: list[Any] = joblib.load(path)
    return models


# ------------------------------------------------------------------------------------------------
# Fits


class Fit(NamedTuple):
    """An explainer and what it cost: the fit that was kept, and `all_seconds` of all tries.

    `first_valid` are the centroids valid as trained at the first try. The queries are those of the
    fit without its report, which counts its own.
    """

    explainer: Explainer
    tries: int
    first_valid: int
    n_queries: int
    seconds: float
    processor: float
    all_seconds: float


def recipe_of(job: Job) -> tuple[Recipe, int | None]:
    """Returns the recipe, and the number of latent dimensions (None for the rule)."""
    paper = job.pair.paper
    if job.recipe == "default" or paper is None:
        return DEFAULT, None
    recipe = replace(
        PAPER,
        weights=paper.weights,
        batch=paper.batch,
        rate=paper.rate,
        steps=job.limits.steps,
        epochs=job.limits.epochs,
    )
    return recipe, paper.n_latent


def fit(job: Job, data: Dataset, model: Any) -> Fit:
    """A fitted explainer: of several tries, the first with valid centroids only, or the best."""
    recipe, n_latent = recipe_of(job)
    reading = PAPER_SIDES.get(job.recipe)
    found, most_valid, all_seconds, tries, first_valid = None, -1, 0.0, 0, 0
    for again in range(job.limits.tries):
        explainer = Explainer(
            model,
            n_prototypes=job.protocol.n_prototypes,
            n_latent=n_latent,
            recipe=recipe,
            schema=data.schema,
            # The default recipe's small network trains faster on a core than on a shared GPU.
            device="cpu" if job.recipe == "default" else None,
            random_state=job.seed + NEXT_TRY * again,
        )
        loss = PaperLoss(**reading).in_use() if reading else nullcontext()
        with warnings.catch_warnings(), loss, spent() as cost:
            warnings.simplefilter("ignore", CentroidWarning)  # invalid centroids are counted below
            explainer.fit(data.train)
        all_seconds, tries = all_seconds + cost.wall, tries + 1
        valid = sum(p.valid for p in explainer.prototypes_)
        if again == 0:
            first_valid = sum(p.valid_before for p in explainer.prototypes_)
        if valid > most_valid:
            queries = explainer.report_.n_queries
            count = sum(queries.values()) - queries["report"]
            found = Fit(explainer, 0, 0, count, cost.wall, cost.processor, 0.0)
            most_valid = valid
        if valid == len(explainer.prototypes_):
            break
    assert found is not None  # there is at least one try
    return found._replace(tries=tries, first_valid=first_valid, all_seconds=all_seconds)


def fitted(job: Job) -> Fit:
    """The explainer of a job's pair, recipe, seed and number of prototypes."""
    protocol = replace(job.protocol, steps=0, trees=0)  # a fit does not depend on these
    return _fitted(replace(job, protocol=protocol, experiment="e1", details=None))


@lru_cache(maxsize=2)
def _fitted(job: Job) -> Fit:
    found = fit(job, setup_of(job).data, setup_of(job).model)
    # Trained where there is a GPU, used on the CPU: methods are compared by processor time.
    found.explainer.fitted_.decoder.model.to("cpu")
    vars(found.explainer.fitted_).pop("samples", None)  # drawn again there
    return found


# ------------------------------------------------------------------------------------------------
# Cost


@dataclass
class Cost:
    """The cost of a block of code.

    With one thread processor time is what the clock shows on an idle machine, and the same on a
    busy one, so methods are compared by it.

    Attributes:
        processor: Processor seconds.
        wall: Wall-clock seconds.
        n_queries: Rows the classifier was queried about.

    Examples:
        >>> [m.value for m in Cost(1.0, 2.0, 300).measures(50, "NNCE")]
        [2.0, 4.0, 600.0]
    """

    processor: float = 0.0
    wall: float = 0.0
    n_queries: float = 0

    def measures(self, instances: int, method: str) -> Iterator[Measure]:
        """Yields the cost per 100 instances."""
        each = 100 / instances
        yield Measure("seconds", self.processor * each, instances, method=method)
        yield Measure("wall_seconds", self.wall * each, instances, method=method)
        yield Measure("n_queries", self.n_queries * each, instances, method=method)


@contextmanager
def spent() -> Iterator[Cost]:
    """Times a block.

    Examples:
        >>> with spent() as cost:
        ...     _ = sum(range(100_000))
        >>> cost.processor > 0, cost.wall > 0
        (True, True)
    """
    cost = Cost()
    processor, wall = time.process_time(), time.perf_counter()
    try:
        yield cost
    finally:
        cost.processor = time.process_time() - processor
        cost.wall = time.perf_counter() - wall
