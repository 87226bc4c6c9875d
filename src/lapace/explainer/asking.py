"""Explaining: from people to an `Explanation`, in few large calls of the classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

__all__ = ["ANY_OTHER", "Question", "answer"]

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Progress: TypeAlias = Callable[[str, int, int], None]

ANY_OTHER = "any-other"
ROWS = 50_000  # rows in work at a time, so that memory does not grow with the query
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
        if not (isinstance(self.steps, int) and self.steps >= 2):
            raise InputError(f"steps is {self.steps!r}; it must be a whole number of at least 2.")
        if self.confidence is not None and not 0 < self.confidence <= 1:
            raise InputError(f"confidence is {self.confidence}; it is a probability, over 0 to 1.")


class _People(NamedTuple):
    """Who is asked about, and what is known before any path is walked.

    Attributes:
        reading: Their rows.
        label: What the classifier says of them; -1 where it cannot say.
        probability: Of each label, (n, labels); NaN where unknown.
        target: What they want; -1 for any other label.
        trouble: Why some cannot be explained.
        system: What every answer has to obey.
        impossible: Who has been proved to have no feasible row at all; filled while walking.
    """

    reading: Reading
    label: Ints
    probability: Floats
    target: Ints
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
    parts: list[_Part] = []
    size = max(1, ROWS // (question.steps * max(1, len(fitted.prototypes))))
    for begin in range(0, len(tried), size):
        who = tried[begin : begin + size]
        part = _walk(fitted, classifier, known, who, question)
        if part is not None:
            parts.append(part)
        if progress:
            progress("explaining", min(begin + size, len(tried)), len(tried))
    return _explanation(fitted, classifier, known, question, parts)


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
    system = System.of(question.constraints, reading.schema)
    return _People(reading, label, probability, target, trouble, system, set())


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
    tried: Bools = (known.label >= 0) & (known.label != known.target)
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
    pairs = [
        (row, p)
        for row, person in enumerate(who)
        for p in range(len(fitted.prototypes))
        if _leads(fitted, p, known.label[person], known.target[person])
    ]
    if not pairs:
        return None
    person, prototype = (np.array(side, dtype=np.int64) for side in zip(*pairs, strict=True))
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
        labels = judge.label[lines[rows]]
        return fitted.decoder.percentile(fitted.decoder.encode(cells, labels), labels)

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


def _leads(fitted: Fitted, prototype: int, label: int, target: int) -> bool:
    """Whether a person of `label` who wants `target` may walk to a prototype."""
    end = fitted.prototypes[prototype]
    wanted = end.label == target if target >= 0 else end.label != label
    return wanted and (end.valid or not fitted.recipe.given)


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

    def __call__(self, tau: Floats, cells: Floats, lines: Ints) -> Steps:
        """The rows as they may be offered, judged, given the line each lies on."""
        cells, feasible = self.obeying(cells, lines)
        found = self.classifier.judge(cells, self.known.reading.schema)
        valid, probability = self._verdict(found, lines)
        return Steps(tau, cells, valid.astype(np.int8), feasible, probability)

    def as_it_is(self, cells: Floats, lines: Ints) -> Steps:
        """Rows judged without moving them."""
        schema, people = self.known.reading.schema, self.known.reading.cells[self.who[lines]]
        feasible = self.known.system.feasible(cells, people)
        valid, probability = self._verdict(self.classifier.judge(cells, schema), lines)
        return Steps(np.zeros(len(cells)), cells, valid.astype(np.int8), feasible, probability)

    def obeying(self, cells: Floats, lines: Ints) -> tuple[Floats, Bools]:
        """The rows moved to where every constraint holds; who cannot is remembered."""
        if not len(self.known.system):
            return cells, np.ones(len(cells), dtype=bool)
        people = self.known.reading.cells[self.who[lines]]
        moved = self.known.system.project(cells, people, costs=self.question.costs)
        self.known.impossible.update(self.who[lines][moved.proved_infeasible].tolist())
        return moved.cells, moved.feasible

    def _verdict(self, found: Judgement, lines: Ints) -> tuple[Bools, Floats]:
        """What the classifier's answer means for the lines it was asked for."""
        other, own, label = self.any_other[lines], self.own[lines], self.label[lines]
        valid = np.where(other, found.codes != own, found.codes == label)
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


def _explanation(
    fitted: Fitted,
    classifier: Classifier,
    known: _People,
    question: Question,
    parts: Sequence[_Part],
) -> Explanation:
    schema, cells, _, template = known.reading
    columns = len(schema.features)
    size = (question.steps + 3) if (question.every or not fitted.recipe.given) else 7
    size += question.sparse
    who = _joined([p.who for p in parts], (0,), np.int64)
    steps = [p.steps for p in parts]
    points = _joined([s.cells for s in steps], (0, size, columns), np.float64)
    ok = _joined([s.ok for s in steps], (0, size), np.bool_)
    status, reason = _statuses(fitted, known, question, who, ok)
    empty = (0, size)
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
        who=who,
        prototype=_joined([p.prototype for p in parts], (0,), np.int64),
        tau=_joined([s.tau for s in steps], empty, np.float64),
        cells=points,
        valid=_joined([s.valid for s in steps], empty, np.int8),
        feasible=_joined([s.feasible for s in steps], empty, np.bool_),
        probability=_joined([s.probability for s in steps], empty, np.float64),
        density=_joined([p.density for p in parts], empty, np.float64),
        distance=schema.gaps(cells[who][:, None], points) @ schema.weights(question.costs),
        picked=_picked(parts, question.sparse),
        crossings=_joined([p.traced.crossings for p in parts], (0,), np.int64),
        asked=classifier.asked,
    )


def _picked(parts: Sequence[_Part], sparse: bool) -> dict[str, Ints]:
    picks = {
        name: _joined([getattr(p.traced, name) for p in parts], (0,), np.int64)
        for name in ("first", "middle", "last")
    }
    if sparse:
        picks["sparse"] = _joined([p.sparse for p in parts], (0,), np.int64)
    return picks


def _joined(parts: Sequence[NDArray[Any]], empty: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(empty, dtype=dtype)


def _statuses(
    fitted: Fitted, known: _People, question: Question, who: Ints, ok: Bools
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    count = len(known.label)
    sure = f" with probability {question.confidence:g}" if question.confidence else ""
    under = " and obeys the constraints" if len(known.system) else ""
    paths = np.bincount(who, minlength=count)
    good = np.bincount(who, weights=ok.any(axis=1), minlength=count).astype(np.int64)
    status, reason = [], []
    for i in range(count):
        target = known.target[i]
        wanted = f"'{fitted.labels[target]}'" if target >= 0 else "another label"
        if i in known.trouble:
            status.append("malformed")
            reason.append(known.trouble[i])
        elif known.label[i] == target:
            status.append("already_target")
            reason.append(f"The classifier already says {wanted}.")
        elif i in known.impossible:
            status.append("infeasible")
            clash = known.system.contradiction(known.reading.cells[i])
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
