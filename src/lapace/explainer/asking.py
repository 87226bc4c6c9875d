"""Explaining: from people to an `Explanation`, in few large calls of the classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from lapace.classifiers import Classifier, Judgement
from lapace.constraints import Constraint, System
from lapace.errors import ClassifierError, InputError
from lapace.explainer.fitting import Fitted
from lapace.explainer.sparse import put_back
from lapace.paths import Lines, Start, Steps, Traced, block_states, states_of, trace
from lapace.result import Explanation
from lapace.schema import Reading

__all__ = ["ANY_OTHER", "Question", "answer", "is_number", "whole"]

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Progress: TypeAlias = Callable[[str, int, int], None]

ANY_OTHER = "any-other"
ROWS = 50_000  # rows in work at a time, so that memory does not grow with the query
PATIENCE = 200  # rows of paths a classifier may raise on before it is taken to be broken
GATE = 0.002  # the least share of the target's rows that must be rarer for a twin to be walked


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

    def __post_init__(self) -> None:
        """Settings that cannot work are refused before any work."""
        for name in ("stable", "sparse"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} is {getattr(self, name)!r}; it is True or False.")
        object.__setattr__(self, "steps", whole("steps", self.steps, least=2))
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


class _People(NamedTuple):
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
    """

    reading: Reading
    label: Ints
    probability: Floats
    target: Ints
    there: Bools
    trouble: dict[int, str]
    system: System
    impossible: set[int]


def answer(
    fitted: Fitted,
    classifier: Classifier,
    people: Any,
    question: Question,
    progress: Progress | None = None,
) -> Explanation:
    """Everything found for everyone.

    Args:
        fitted: What `fit` left behind.
        classifier: The black box, with a count of its own.
        people: A table.
        question: What they want.
        progress: Called with what is done, how far, and of how much.
    """
    if question.confidence is not None and not classifier.has_probability:
        raise InputError(
            "confidence needs a classifier with predict_proba, and this one has none. Leave it out."
        )
    known = _meet(fitted, classifier, people, question)
    tried = np.flatnonzero(_is_tried(known))
    sheet = _Sheet(fitted, known, question, int(_leading(fitted, known, tried).sum()))
    size = max(1, ROWS // (question.steps * max(1, len(fitted.prototypes))))
    for begin in range(0, len(tried), size):
        part = _walk(fitted, classifier, known, tried[begin : begin + size], question)
        if part is not None:
            sheet.add(part)
        if progress:
            progress("explaining", min(begin + size, len(tried)), len(tried))
    return _explanation(fitted, classifier, known, question, sheet.columns)


# ------------------------------------------------------------------------------------------------
# Who is asked about


def _meet(fitted: Fitted, classifier: Classifier, people: Any, question: Question) -> _People:
    reading = fitted.schema.read(people)
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
    return _People(reading, label, probability, target, there, trouble, system, set())


def _system(question: Question, reading: Reading) -> System:
    """The constraints, refused at once where nobody could obey them.

    People may have values that training never saw, and for them more may be possible: then it is
    decided person by person.
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
    found = classifier.judge(reading.cells[rows], reading.schema)
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
    """A classifier that refuses what it accepted at `fit` is at fault itself, not the people."""
    try:
        classifier.judge(fitted.prototypes[0].cells[None], fitted.schema)
    except ClassifierError:
        raise error from None


def _targets(fitted: Fitted, classifier: Classifier, target: Any, label: Ints) -> Ints:
    """The label each person wants; -1 for any other than their own."""
    count, labels = len(label), fitted.labels
    if target is None:
        if len(labels) > 2:
            raise InputError(
                f"There are {len(labels)} labels, so the target must be named: one of "
                f"{', '.join(map(repr, labels))}, one for each person, or {ANY_OTHER!r}."
            )
        return np.where(label < 0, -1, 1 - label)
    if isinstance(target, str) and target == ANY_OTHER and ANY_OTHER not in labels:
        return np.full(count, -1, dtype=np.int64)
    if isinstance(target, str) or not hasattr(target, "__len__"):
        codes = np.full(count, classifier.code(target), dtype=np.int64)
    else:
        if len(target) != count:
            raise InputError(f"There are {len(target)} targets for {count} people.")
        codes = np.array([classifier.code(t) for t in target], dtype=np.int64)
    for code in np.unique(codes):
        if not fitted.of_label(int(code)):
            raise InputError(
                f"There is no prototype of class {labels[code]!r} to walk to: too few training "
                "rows, or the classifier accepted none. The report says which."
            )
    return codes


def _is_tried(known: _People) -> Bools:
    tried: Bools = (known.label >= 0) & ~known.there
    return tried


# ------------------------------------------------------------------------------------------------
# Walking


class _Part(NamedTuple):
    who: Ints
    prototype: Ints
    traced: Traced
    steps: Steps
    density: Floats
    sparse: Ints


def _walk(
    fitted: Fitted, classifier: Classifier, known: _People, who: Ints, question: Question
) -> _Part | None:
    """Paths of some people, by their position in the query."""
    reading = known.reading
    schema = reading.schema
    held, barred = _limits(known.system, reading.cells[who])
    start = fitted.decoder.start(schema, reading.cells[who], known.label[who], held, barred)
    person, prototype = np.nonzero(_leading(fitted, known, who))
    if not len(person):
        return None
    label = np.array([fitted.prototypes[p].label for p in prototype], dtype=np.int64)
    twins = _twins(fitted, start, person, label)
    person, prototype, label = (
        np.concatenate([part, part[twins]]) for part in (person, prototype, label)
    )
    frozen = np.arange(len(person)) >= len(person) - len(twins)
    judge = _Judge(classifier, known, who[person], label, question)
    lines = Lines(
        person,
        prototype,
        frozen,
        torch.as_tensor(np.stack([p.z for p in fitted.prototypes]), device=fitted.decoder.device),
        label,
        _at_person(fitted, known, judge, start, person),
        _at_prototype(fitted, judge, prototype),
    )
    literal = not fitted.recipe.given
    traced = trace(
        fitted.decoder,
        start,
        lines,
        judge,
        steps=question.steps,
        stable=question.stable and not literal,
        literal=literal,
        every=question.every or literal,
        weights=schema.weights(question.costs),
    )
    part = _Part(
        who[person[traced.lines]],
        prototype[traced.lines],
        traced,
        traced.steps,
        traced.density,
        traced.first,
    )
    return _with_sparse(fitted, judge, part, question) if question.sparse else part


def _with_sparse(fitted: Fitted, judge: _Judge, part: _Part, question: Question) -> _Part:
    """The same paths with one more step each: their nearest row with features put back."""
    schema, lines = judge.known.reading.schema, part.traced.lines
    own = judge.known.reading.cells[part.who]
    count, size = part.steps.tau.shape
    weights = schema.weights(question.costs)
    cost = np.where(part.steps.ok, schema.gaps(own[:, None], part.steps.cells) @ weights, np.inf)
    start = np.where(part.steps.ok.any(axis=1), cost.argmin(axis=1), part.traced.first)
    nearest = part.steps.at(np.arange(count), start)

    def gaps(a: Floats, b: Floats) -> Floats:
        # A change that costs nothing is a change all the same.
        return np.where(schema.changed(a, b), np.maximum(schema.gaps(a, b) * weights, 1e-12), 0.0)

    def density(cells: Floats, rows: Ints) -> Floats:
        return fitted.decoder.density(schema, cells, judge.label[lines[rows]])

    def usual(cells: Floats, rows: Ints) -> Floats:
        # Putting back one category alone makes couples that nobody has: the tree knows.
        typical = fitted.decoder.typical(schema, cells, judge.label[lines[rows]])
        return np.minimum(density(cells, rows), typical)

    best = put_back(nearest, own, gaps, lambda c, rows: judge.as_it_is(c, lines[rows]), usual)
    dense = density(best.cells, np.arange(count))
    return part._replace(
        steps=Steps.join([part.steps, best.shaped(count, 1)]),
        density=np.concatenate([part.density, dense[:, None]], axis=1),
        sparse=np.where(nearest.ok, size, part.traced.first),
    )


def _leading(fitted: Fitted, known: _People, who: Ints) -> Bools:
    """Which prototypes people may walk to: (people, prototypes)."""
    end = np.array([p.label for p in fitted.prototypes])
    usable = np.array([fitted.leads_to(p) for p in fitted.prototypes])
    label, target = known.label[who, None], known.target[who, None]
    leads: Bools = usable & np.where(target >= 0, end == target, end != label)
    return leads


def _twins(fitted: Fitted, start: Start, person: Ints, label: Ints) -> Ints:
    """Lines that get a twin: their person's categories are typical enough of the label."""
    if not fitted.decoder.trees or not start.states.shape[1]:
        return np.empty(0, dtype=np.int64)
    typical = fitted.decoder.typical(start.schema, start.cells[person], label)
    return np.flatnonzero(typical >= 100 * GATE)


def _limits(system: System, people: Floats) -> tuple[Ints, Bools]:
    """What the constraints on single columns mean for category blocks: held and barred states."""
    schema = system.schema
    states = states_of(schema, people)
    held = np.full(states.shape, -1, dtype=np.int64)
    barred = np.zeros((len(people), sum(block_states(schema))), dtype=bool)
    if not len(system):
        return held, barred
    domains = system.domains(people)
    begin = 0
    for block, ((feature, _, _), count) in enumerate(
        zip(schema.blocks, block_states(schema), strict=True)
    ):
        pinned = domains.pinned[:, feature]
        held[pinned, block] = states[pinned, block]
        allowed = domains.allowed.get(feature)
        if allowed is not None:
            known = len(schema.features[feature].categories)
            barred[:, begin : begin + known] = ~allowed[:, :known]
            if count > known:
                barred[:, begin + known] = ~allowed[:, -2]  # missing
        begin += count
    return held, barred


class _Judge:
    """Makes rows obey, then asks the classifier: is it the label the line is for?"""

    def __init__(
        self,
        classifier: Classifier,
        known: _People,
        who: Ints,
        label: Ints,
        question: Question,
    ) -> None:
        self.classifier = classifier
        self.known = known
        self.who = who  # (lines,)
        self.any_other = known.target[who] < 0  # (lines,)
        self.own = known.label[who]
        self.label = label
        self.question = question
        self.refused = 0  # rows the classifier raised on

    def __call__(self, tau: Floats, cells: Floats, lines: Ints) -> Steps:
        """The rows as they may be offered, judged, given the line each lies on."""
        cells, feasible = self.obeying(cells, lines)
        valid, probability = self._verdict(self._ask(cells), lines)
        return Steps(tau, cells, valid.astype(np.int8), feasible, probability)

    def as_it_is(self, cells: Floats, lines: Ints) -> Steps:
        """Rows judged without moving them."""
        feasible = self.known.system.feasible(cells, self.known.reading.cells[self.who[lines]])
        valid, probability = self._verdict(self._ask(cells), lines)
        return Steps(np.zeros(len(cells)), cells, valid.astype(np.int8), feasible, probability)

    def _ask(self, cells: Floats) -> Judgement:
        """What the classifier says; a row it raises on alone is no answer, and costs no other."""
        try:
            return self.classifier.judge(cells, self.known.reading.schema)
        except ClassifierError:
            self.refused += len(cells) == 1
            if self.refused > PATIENCE:
                raise
            if len(cells) == 1:
                nothing = np.full((1, len(self.classifier.labels)), np.nan)
                known = nothing if self.classifier.has_probability else None
                return Judgement(np.array([-1]), known)
        half = len(cells) // 2
        left, right = self._ask(cells[:half]), self._ask(cells[half:])
        codes = np.concatenate([left.codes, right.codes])
        if left.probability is None or right.probability is None:
            return Judgement(codes, None)
        return Judgement(codes, np.concatenate([left.probability, right.probability]))

    def obeying(self, cells: Floats, lines: Ints) -> tuple[Floats, Bools]:
        """The rows moved to where every constraint holds; who cannot is remembered."""
        if not len(self.known.system):
            return cells, np.ones(len(cells), dtype=bool)
        who, impossible = self.who[lines], self.known.impossible
        possible = np.flatnonzero(~np.isin(who, list(impossible)))  # the others are proved already
        people = self.known.reading.cells[who[possible]]
        moved = self.known.system.project(cells[possible], people, costs=self.question.costs)
        impossible.update(who[possible][moved.proved_infeasible].tolist())
        cells, feasible = cells.copy(), np.zeros(len(cells), dtype=bool)
        cells[possible], feasible[possible] = moved.cells, moved.feasible
        return cells, feasible

    def _verdict(self, found: Judgement, lines: Ints) -> tuple[Bools, Floats]:
        """What the classifier's answer means for the lines it was asked for."""
        other, own, label = self.any_other[lines], self.own[lines], self.label[lines]
        valid = np.where(other, found.codes != own, found.codes == label) & (found.codes >= 0)
        rows, each = np.arange(len(lines)), found.probability
        if each is None:
            return valid, np.full(len(lines), np.nan)
        probability = np.where(other, 1.0 - each[rows, own], each[rows, label])
        if self.question.confidence is not None:
            valid &= probability >= self.question.confidence
        return valid, probability


def _at_person(fitted: Fitted, known: _People, judge: _Judge, start: Start, person: Ints) -> Steps:
    """Step 0: the person's row, copied; they do not have the label they want."""
    lines = np.arange(len(person))
    if not fitted.decoder.anchored:  # the paper's paths begin at the reconstruction
        z = start.z[torch.as_tensor(person, device=start.z.device)]
        frozen = np.zeros(len(person), dtype=bool)
        tau = np.zeros(len(person))
        return judge(tau, fitted.decoder.rows(start, person, tau, z, judge.label, frozen), lines)
    feasible = known.system.feasible(start.cells, start.cells)[person]
    each = known.probability[judge.who]
    own, label = each[lines, judge.own], each[lines, judge.label]
    probability = np.where(judge.any_other, 1.0 - own, label)
    no = np.zeros(len(person), dtype=np.int8)
    return Steps(np.zeros(len(person)), start.cells[person], no, feasible, probability)


def _at_prototype(fitted: Fitted, judge: _Judge, prototype: Ints) -> Steps:
    """Step 1: the prototype, judged when it was made; where limits move it, judged anew."""
    cells = np.stack([p.cells for p in fitted.prototypes])[prototype]  # (lines, d)
    probability = np.array([p.probability for p in fitted.prototypes])[prototype]
    valid = np.array([p.valid for p in fitted.prototypes])[prototype]
    if judge.question.confidence is not None:
        valid = valid & (probability >= judge.question.confidence)
    lines, tau = np.arange(len(prototype)), np.ones(len(prototype))
    moved, feasible = judge.obeying(cells, lines)
    steps = Steps(tau, moved, valid.astype(np.int8), feasible, probability)
    same = (moved == cells) | (np.isnan(moved) & np.isnan(cells))
    # What was judged at `fit` is the prototype's own label, not whether it is another's.
    anew = np.flatnonzero(~same.all(axis=1) | judge.any_other)
    if len(anew):
        steps.write(anew, judge(tau[anew], moved[anew], lines[anew]))
    return steps


# ------------------------------------------------------------------------------------------------
# Putting it together


class _Sheet:
    """All paths' columns, made once at their full size, so that no part is held twice."""

    def __init__(self, fitted: Fitted, known: _People, question: Question, paths: int) -> None:
        steps = (question.steps + 3) if (question.every or not fitted.recipe.given) else 7
        steps += question.sparse
        self.known = known
        self.weights = known.reading.schema.weights(question.costs)
        self.filled = 0
        wide, deep = (paths, steps), (paths, steps, len(known.reading.schema.features))
        self.columns: dict[str, NDArray[Any]] = {
            **{name: np.empty(paths, dtype=np.int64) for name in ("who", "prototype", "crossings")},
            **{name: np.empty(paths, dtype=np.int64) for name in ("first", "middle", "last")},
            **{name: np.empty(wide) for name in ("tau", "probability", "density", "distance")},
            "cells": np.empty(deep),
            "valid": np.empty(wide, dtype=np.int8),
            "feasible": np.empty(wide, dtype=np.bool_),
        }
        if question.sparse:
            self.columns["sparse"] = np.empty(paths, dtype=np.int64)

    def add(self, part: _Part) -> None:
        """Writes the next paths."""
        rows = slice(self.filled, self.filled + len(part.who))
        schema, people = self.known.reading.schema, self.known.reading.cells
        gaps = schema.gaps(people[part.who][:, None], part.steps.cells)
        found = {
            **part.traced._asdict(),
            **part.steps._asdict(),
            **part._asdict(),
            "distance": gaps @ self.weights,
        }
        for name, column in self.columns.items():
            column[rows] = found[name]
        self.filled = rows.stop


def _explanation(
    fitted: Fitted,
    classifier: Classifier,
    known: _People,
    question: Question,
    columns: dict[str, NDArray[Any]],
) -> Explanation:
    schema, cells, _, template = known.reading
    ok = (columns["valid"] == 1) & columns["feasible"]
    status, reason = _statuses(fitted, known, question, columns["who"], ok)
    picks = ("first", "middle", "last", "sparse")
    picked = {name: columns.pop(name) for name in picks if name in columns}
    return Explanation(
        schema=schema,
        template=template,
        labels=fitted.labels,
        people_cells=cells,
        label=known.label,
        target=known.target,
        status=status,
        reason=reason,
        constraints=tuple(map(str, known.system.constraints)),
        picked=picked,
        asked=classifier.asked,
        **columns,
    )


class _Clashes:
    """Why nobody can obey, asked once for people alike in what the constraints look at."""

    def __init__(self, system: System) -> None:
        self.system = system
        named = {c for bound in system.bounds for c in (*bound.columns, *bound.kept)}
        self.columns = np.array(sorted(named), dtype=np.int64)
        self.found: dict[bytes, tuple[Constraint, ...]] = {}

    def of(self, person: Floats) -> tuple[Constraint, ...]:
        """A smallest set of constraints that cannot hold together for this person."""
        key = person[self.columns].tobytes()
        if key not in self.found:
            self.found[key] = self.system.contradiction(person)
        return self.found[key]


def _statuses(
    fitted: Fitted, known: _People, question: Question, who: Ints, ok: Bools
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    count = len(known.label)
    sure = f" with probability {question.confidence:g}" if question.confidence else ""
    under = " and obeys the constraints" if len(known.system) else ""
    paths = np.bincount(who, minlength=count)
    good = np.bincount(who, weights=ok.any(axis=1), minlength=count).astype(np.int64)
    clashes = _Clashes(known.system)
    status, reason = [], []
    for i in range(count):
        target = known.target[i]
        wanted = f"'{fitted.labels[target]}'" if target >= 0 else "another label"
        if i in known.trouble:
            status.append("malformed")
            reason.append(known.trouble[i])
        elif known.there[i]:
            status.append("already_target")
            reason.append(f"The classifier already says {wanted}.")
        elif i in known.impossible:
            status.append("infeasible")
            clash = clashes.of(known.reading.cells[i])
            told = " and ".join(f"'{c}'" for c in clash) or "the constraints"
            both = " together" if len(clash) != 1 else ""
            reason.append(f"For this person {told} cannot hold{both}: no row obeys.")
        elif good[i]:
            status.append("answered")
            reason.append(f"{good[i]} of {paths[i]} paths lead to {wanted}.")
        else:
            status.append("none_found")
            reason.append(f"No row of {paths[i]} paths is labelled {wanted}{sure}{under}.")
    return tuple(status), tuple(reason)
