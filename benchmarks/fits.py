"""A fitted explainer of a pair, and what the classifier says of the pair's rows.

Every experiment begins here. Fits and retrained classifiers are remembered while a process runs,
so that experiments on one pair and seed share them; with the same seed another process makes the
same ones.

Everything is measured in the units of one schema, the data set's, whatever the recipe.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from benchmarks.plan import Job, Pair
from benchmarks.subjects import Subject, retrained, subject
from lapace import metrics
from lapace.arrays import Floats, Ints
from lapace.classifiers import Classifier, TrainedKind
from lapace.errors import CentroidWarning
from lapace.explainer import Explainer
from lapace.schema import Schema
from lapace.training import DEFAULT, PAPER, Recipe

__all__ = ["Fit", "Known", "Scene", "fit_of", "fitted", "known_of", "models", "recipe_of", "scene"]


OTHER_SEED = 1000  # between the seeds of the tries of one fit


class Fit(NamedTuple):
    """An explainer and what it cost.

    The classifier's rows, seconds and processor seconds are those of the fit that was kept;
    `all_seconds` are those of all tries.
    """

    explainer: Explainer
    tries: int
    n_queries: int
    seconds: float
    processor: float
    all_seconds: float


def recipe_of(job: Job) -> tuple[Recipe, int | None]:
    """How to train, and the dimensions of z (None for the rule)."""
    tuned = job.pair.paper
    if job.recipe == "default" or tuned is None:
        return DEFAULT, None
    recipe = replace(
        PAPER,
        weights=tuned.weights,
        batch=tuned.batch,
        rate=tuned.rate,
        epochs=job.limits.epochs,
        patience=job.limits.patience,
    )
    return recipe, tuned.latent


def fit_of(job: Job, given: Subject) -> Fit:
    """A fitted explainer: of several tries, the first whose centroids pass, or the best."""
    recipe, latent = recipe_of(job)
    most = job.limits.tries if job.recipe == "paper" else 1
    best, best_valid, spent, tries = None, -1, 0.0, 0
    for again in range(most):
        explainer = Explainer(
            given.model,
            n_prototypes=job.protocol.clusters,
            n_latent=latent,
            recipe=recipe,
            schema=given.data.schema,
            random_state=job.seed + OTHER_SEED * again,
        )
        begin, begin_processor = time.perf_counter(), time.process_time()
        with warnings.catch_warnings():  # refused centroids are counted below
            warnings.simplefilter("ignore", CentroidWarning)
            explainer.fit(given.data.train)
        seconds, processor = time.perf_counter() - begin, time.process_time() - begin_processor
        spent, tries = spent + seconds, tries + 1
        valid = sum(p.valid for p in explainer.prototypes_)
        if valid > best_valid:
            best_valid = valid
            best = Fit(explainer, 0, explainer.classifier_.n_queries, seconds, processor, 0.0)
        if valid == len(explainer.prototypes_):
            break
    assert best is not None  # there is at least one try
    return best._replace(tries=tries, all_seconds=spent)


# ------------------------------------------------------------------------------------------------
# Rows and what the classifier says of them


@dataclass(frozen=True)
class Known:
    """Rows as cells of one schema, with M's labels as codes.

    Attributes:
        schema: The data set's.
        wide: The same with the levels only test rows have.
        classifier: M, with a count of its own.
        labels: Its labels.
        target: The favourable one, as a code.
        train: Training rows.
        codes: What M says of them.
        test: Held-out rows.
        test_codes: What M says of them.
        usual: How plausible rows are, among the distinct training rows M gives the target.
    """

    schema: Schema
    wide: Schema
    classifier: Classifier
    labels: tuple[Any, ...]
    target: int
    train: Floats
    codes: Ints
    test: Floats
    test_codes: Ints
    usual: metrics.Plausibility

    def named(self, code: int) -> str:
        """A class in words."""
        return str(self.labels[code])

    @property
    def wanted(self) -> Floats:
        """Training rows M gives the target."""
        rows: Floats = self.train[self.codes == self.target]
        return rows


def known_of(given: Subject, explainer: Explainer | None = None) -> Known:
    """Asks the classifier about all rows there are.

    Args:
        given: The data set and the classifier.
        explainer: Whose labels and their order to take; without one the classifier's are learned.
    """
    schema = given.data.schema
    train, test = schema.cells(given.data.train), schema.read(given.data.test)
    if explainer is None:
        classifier = Classifier(given.model, schema)
        codes = classifier.fit_labels(train)
    else:
        classifier = explainer.classifier_.with_fresh_count()
        codes = classifier.predict(train)
    target = classifier.code(given.target)
    return Known(
        schema=schema,
        wide=test.schema,
        classifier=classifier,
        labels=tuple(classifier.labels),
        target=target,
        train=train,
        codes=codes,
        test=test.cells,
        test_codes=classifier.predict(test.cells, test.schema),
        usual=metrics.Plausibility(schema, train[codes == target]),
    )


# ------------------------------------------------------------------------------------------------
# Shared by the experiments of one process


@dataclass(frozen=True, eq=False)
class Scene:
    """What the answers of every method are made for and measured against.

    Attributes:
        given: The data set and the classifier.
        known: What the classifier says of all rows.
        reference: The training rows as metrics compare with them.
        instances: Test rows with an unfavourable label, as cells of `known.wide`.
        frame: The same as a table.
    """

    given: Subject
    known: Known
    reference: metrics.Reference
    instances: Floats
    frame: Any

    @property
    def target(self) -> Any:
        """The favourable label."""
        return self.given.target


def scene(job: Job) -> Scene:
    """The pair of a job, its first instances, and what is known of the rows."""
    return _scene(job.pair, job.seed, job.protocol.rows, job.protocol.instances)


@lru_cache(maxsize=2)
def _scene(pair: Pair, seed: int, rows: int | None, count: int) -> Scene:
    given = subject(pair, seed, rows)
    known = known_of(given)
    instances = known.test[known.test_codes != known.target][:count]
    reference = metrics.Reference(
        known.schema, known.classifier.with_fresh_count(), known.train, known.codes
    )
    return Scene(given, known, reference, instances, known.wide.frame(instances))


def fitted(job: Job) -> Fit:
    """The explainer of a job's pair, recipe, seed and number of clusters."""
    protocol = replace(job.protocol, instances=0, steps=0, trees=0)  # nothing a fit depends on
    return _fitted(replace(job, protocol=protocol, task="e1", details=None), job.protocol.instances)


@lru_cache(maxsize=2)
def _fitted(job: Job, instances: int) -> Fit:
    return fit_of(job, _scene(job.pair, job.seed, job.protocol.rows, instances).given)


@lru_cache(maxsize=1)
def models(
    given: Subject, kind: TrainedKind, count: int, share: float, seed: int
) -> tuple[Any, ...]:
    """Classifiers of the same kind, each trained on its own selection of the data set."""
    return tuple(
        retrained(given.data, kind, seed=100 * seed + k, share=share) for k in range(count)
    )
