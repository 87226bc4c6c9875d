"""Who is asked about and what is asked: settings checked, rows read, labels learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from time import perf_counter
from typing import Any, Literal, NamedTuple

import numpy as np

from lapace.arrays import Bools, Floats, Ints
from lapace.classifiers import Classifier
from lapace.constraints import Constraint, System
from lapace.errors import ClassifierError, InputError, did_you_mean
from lapace.explainer.fitting import Fitted
from lapace.schema import Reading

__all__ = ["ANY_OTHER", "Instances", "Question", "Search", "is_number", "is_tried", "meet", "whole"]


ANY_OTHER = "any-other"
ENFORCE = ("exact", "naive", "latent")


@dataclass(frozen=True)
class Search:
    """How to search for counterfactuals.

    Attributes:
        steps: Steps from an instance to a prototype.
        detail: `path` queries the classifier about every step, `picks` only about what the picks
            need.
        stable: Take as first the start of the last unbroken run of ok steps; False: the first ok
            step of all, as in the paper.
        enforce: How constraints are enforced. `exact` corrects latent points, then projects rows;
            `naive` only projects rows; `latent` only corrects latent points, as in the paper, so
            that a row may violate a constraint (and says so).
        sparse: Also undo changes of the nearest row while it stays ok: the pick `sparse`.
    """

    steps: int = 20
    detail: Literal["path", "picks"] = "path"
    stable: bool = True
    enforce: Literal["exact", "naive", "latent"] = "exact"
    sparse: bool = False

    def __post_init__(self) -> None:
        """Refuses settings that cannot work."""
        object.__setattr__(self, "steps", whole("steps", self.steps, least=2))
        for name in ("stable", "sparse"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} is {getattr(self, name)!r}; it is True or False.")
        for name, options in (("detail", ("path", "picks")), ("enforce", ENFORCE)):
            value = getattr(self, name)
            if value not in options:
                listed = ", ".join(map(repr, options[:-1])) + f" or {options[-1]!r}"
                hint = did_you_mean(value, options) if isinstance(value, str) else ""
                raise InputError(f"{name} is {value!r}; it is {listed}.{hint}")


@dataclass(frozen=True)
class Question:
    """What is asked, apart from about whom."""

    target: Any = None
    steps: int = 20
    every: bool = True
    stable: bool = True
    confidence: float | None = None
    constraints: tuple[str | Constraint, ...] = ()
    costs: Mapping[str, float] | None = None
    sparse: bool = False
    enforce: Literal["exact", "naive", "latent"] = "exact"
    rules: int = 0  # how many of the constraints, from the first on, are the explainer's own

    def __post_init__(self) -> None:
        """Settings that cannot work are refused before any work."""
        sure = self.confidence
        if sure is not None and not (is_number(sure) and 0 < sure <= 1):
            raise InputError(f"confidence is {sure!r}; it is a probability, over 0 to 1.")


def is_number(value: Any) -> bool:
    """Whether a setting is a number; True is none."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def whole(name: str, value: Any, *, least: int) -> int:
    """A setting that has to be a whole number, or a sentence that says so."""
    try:
        number = None if isinstance(value, bool | np.bool_) else index(value)
    except TypeError:
        number = None
    if number is None or not least <= number < 2**31:
        raise InputError(f"{name} is {value!r}; it must be a whole number from {least} on.")
    return number


class Instances(NamedTuple):
    """Who is asked about, and what is known before any path is walked.

    Attributes:
        reading: Their rows.
        label: What the classifier says of them; -1 where it cannot say.
        probability: Of each label, (n, labels); NaN where unknown.
        target: What they want; -1 for any other label.
        there: Who has it already, with the confidence asked for.
        trouble: Why some cannot be explained.
        system: What every answer has to obey.
        impossible: Who has been proved to have no feasible row at all; filled while walking.
        spent: Seconds spent on what, by name; filled while walking.
    """

    reading: Reading
    label: Ints
    probability: Floats
    target: Ints
    there: Bools
    trouble: dict[int, str]
    system: System
    impossible: set[int]
    spent: dict[str, float]

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds what is done inside to what was spent."""
        start = perf_counter()
        try:
            yield
        finally:
            self.spent[name] = self.spent.get(name, 0.0) + perf_counter() - start


def meet(fitted: Fitted, classifier: Classifier, instances: Any, question: Question) -> Instances:
    """Reads the instances and asks the classifier about them; some may have to stay outside."""
    reading = fitted.schema.read(instances)
    trouble = dict(reading.problems)
    count = len(reading.cells)
    label = np.full(count, -1, dtype=np.int64)
    good = np.array([i for i in range(count) if i not in trouble], dtype=np.int64)
    probability = np.full((count, len(fitted.labels)), np.nan)
    try:
        _ask(classifier, reading, good, label, probability)
    except ClassifierError as error:
        _ask_prototype(fitted, classifier, error)
        _ask_each(classifier, reading, good, label, probability, trouble)
    target = _targets(fitted, classifier, question.target, label)
    there: Bools = (label == target) & (label >= 0)
    if question.confidence is not None:
        sure = probability[np.arange(count), np.maximum(target, 0)] >= question.confidence
        there &= sure
    system = _system(question, reading)
    return Instances(reading, label, probability, target, there, trouble, system, set(), {})


def _system(question: Question, reading: Reading) -> System:
    """The constraints, refused at once where nobody could obey them.

    Instances may have values that training never saw, and for them more may be possible: then it is
    decided instance by instance.
    """
    schema, cells = reading.schema, reading.cells
    odd = any(
        f.extra
        if f.categories
        else bool((np.nan_to_num(cells[:, i] - f.lower, nan=0.0) < 0).any())
        or bool((np.nan_to_num(cells[:, i] - f.upper, nan=0.0) > 0).any())
        for i, f in enumerate(schema.features)
    )
    return System.of(question.constraints, schema, check=not odd)


def _ask(
    classifier: Classifier, reading: Reading, rows: Ints, label: Ints, probability: Floats
) -> None:
    found = classifier.query(reading.cells[rows], reading.schema)
    label[rows] = found.codes
    if found.probability is not None:
        probability[rows] = found.probability


def _ask_each(
    classifier: Classifier,
    reading: Reading,
    rows: Ints,
    label: Ints,
    probability: Floats,
    trouble: dict[int, str],
) -> None:
    """Labels of rows; where the classifier raises, halves find the rows it raises on."""
    try:
        _ask(classifier, reading, rows, label, probability)
    except ClassifierError as error:
        if len(rows) == 1:
            trouble[int(rows[0])] = str(error)
            return
        for part in np.array_split(rows, 2):
            _ask_each(classifier, reading, part, label, probability, trouble)


def _ask_prototype(fitted: Fitted, classifier: Classifier, error: ClassifierError) -> None:
    """A classifier that refuses what it accepted at `fit` is at fault itself, not the instances."""
    try:
        classifier.query(fitted.prototypes[0].cells[None], fitted.schema)
    except ClassifierError:
        raise error from None


def _targets(fitted: Fitted, classifier: Classifier, target: Any, label: Ints) -> Ints:
    """The label each instance wants; -1 for any other than their own."""
    count, labels = len(label), fitted.labels
    if target is None:
        if len(labels) > 2:
            raise InputError(
                f"There are {len(labels)} labels, so the target must be named: one of "
                f"{', '.join(map(repr, labels))}, one for each instance, or {ANY_OTHER!r}."
            )
        return np.where(label < 0, -1, 1 - label)
    if isinstance(target, str) and target == ANY_OTHER and ANY_OTHER not in labels:
        return np.full(count, -1, dtype=np.int64)
    if isinstance(target, str) or not hasattr(target, "__len__"):
        codes = np.full(count, classifier.code(target), dtype=np.int64)
    else:
        if len(target) != count:
            raise InputError(f"There are {len(target)} targets for {count} instances.")
        codes = np.array([classifier.code(t) for t in target], dtype=np.int64)
    for code in np.unique(codes):
        if not fitted.of_label(int(code)):
            raise InputError(
                f"There is no prototype of label {labels[code]!r} to walk to: too few training "
                "rows, or the classifier accepted none. The report says which."
            )
    return codes


def is_tried(known: Instances) -> Bools:
    """Who is walked for: everyone with a label who is not there yet."""
    tried: Bools = (known.label >= 0) & ~known.there
    return tried
