"""Some instances's paths: lines to their ends, limits steered towards, walked and judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lapace.arrays import Bools, Floats, Ints
from lapace.classifiers import Classifier
from lapace.constraints import System
from lapace.explainer.ends import Ends, twins
from lapace.explainer.fitting import Fitted
from lapace.explainer.judging import Judge
from lapace.explainer.problem import Instances, Question
from lapace.explainer.sparse import put_back
from lapace.explainer.steering import Steering
from lapace.paths import Lines, Start, Steer, Steps, block_states, differ, states_of, trace

__all__ = ["Part", "search"]


class Part(NamedTuple):
    """Paths of some instances, one line each."""

    instance: Ints
    prototype: Ints
    lines: Ints
    steps: Steps
    density: Floats
    first: Ints
    middle: Ints
    last: Ints
    crossings: Ints
    sparse: Ints

    def at(self, rows: Bools | Ints) -> Part:
        """Some of the paths."""
        kept = {name: column[rows] for name, column in self.columns().items()}
        return Part(steps=self.steps.at(rows), **kept)

    def replaced(self, instance: Ints, other: Part) -> Part:
        """Some instances's paths taken from elsewhere, in the order of the instances."""
        mine, theirs = (
            self.at(~np.isin(self.instance, instance)),
            other.at(np.isin(other.instance, instance)),
        )
        steps = Steps.join([mine.steps, theirs.steps], axis=0)
        columns = {
            name: np.concatenate([column, getattr(theirs, name)])
            for name, column in mine.columns().items()
        }
        return Part(steps=steps, **columns).at(np.argsort(columns["instance"], kind="stable"))

    def columns(self) -> dict[str, NDArray[Any]]:
        """All but the steps, by name."""
        return {name: getattr(self, name) for name in self._fields if name != "steps"}


def search(
    fitted: Fitted, classifier: Classifier, known: Instances, instance: Ints, question: Question
) -> Part | None:
    """Paths of some instances.

    Who finds nothing near lines corrected once looks along the plain ones, then along lines
    corrected as far as the gradient goes, so that `exact` finds what the other ways find.
    """
    part = _walk(fitted, classifier, known, instance, question)
    if part is None or question.enforce != "exact" or not len(known.system):
        return part
    for other, patient in ((replace(question, enforce="naive"), False), (question, True)):
        found = part.instance[part.steps.ok.any(axis=1)]
        lost = np.setdiff1d(part.instance, [*found.tolist(), *known.impossible])
        again = _walk(fitted, classifier, known, lost, other, patient) if len(lost) else None
        if again is not None:
            part = part.replaced(again.instance[again.steps.ok.any(axis=1)], again)
    return part


def _walk(
    fitted: Fitted,
    classifier: Classifier,
    known: Instances,
    instance: Ints,
    question: Question,
    patient: bool = False,
) -> Part | None:
    """Paths of some instances, by their position in the query.

    Args:
        fitted: What `fit` left behind.
        classifier: The black box.
        known: Everyone asked about.
        instance: Of whom.
        question: What they want.
        patient: Correct latent points as far as that goes, though a projection comes after.
    """
    reading = known.reading
    schema = reading.schema
    held, barred = _limits(known.system, reading.cells[instance])
    start = fitted.decoder.start(
        schema, reading.cells[instance], known.label[instance], held, barred
    )
    ends = Ends.of(fitted, classifier, known, instance, question)
    one, end = ends.instance, ends.end
    if not len(one):
        return None
    label = ends.label[end]
    doubled = twins(fitted, start, one, label)
    one, end, label = (np.concatenate([part, part[doubled]]) for part in (one, end, label))
    frozen = np.arange(len(one)) >= len(one) - len(doubled)
    judge = Judge(classifier, known, instance[one], label, question)
    before = _at_instance(fitted, known, judge, start, one)
    lines = Lines(one, end, frozen, ends.z, label, before, before)
    steer = None
    if len(known.system) and question.enforce != "naive":
        patient = patient or question.enforce == "latent"
        steering = Steering(fitted.decoder, known.system, start, lines, patient)

        def steer(tau: Floats, z: torch.Tensor, rows: Floats, lines: Ints) -> Floats:
            with known.timed("constraints"):
                return steering(tau, z, rows, lines)

    lines = lines._replace(after=_at_end(fitted, ends, judge, end, steer))
    literal = not fitted.recipe.given
    traced = trace(
        fitted.decoder,
        start,
        lines,
        judge,
        steer=steer,
        steps=question.steps,
        stable=question.stable and not literal,
        literal=literal,
        every=question.every or literal,
        weights=schema.weights(question.costs),
    )
    part = Part(
        instance[one[traced.lines]],
        ends.prototype[end[traced.lines]],
        *traced,
        traced.first,
    )
    return _with_sparse(fitted, judge, part, question) if question.sparse else part


def _with_sparse(fitted: Fitted, judge: Judge, part: Part, question: Question) -> Part:
    """The same paths with one more step each: their nearest row with features put back."""
    schema, lines = judge.known.reading.schema, part.lines
    own = judge.known.reading.cells[part.instance]
    count, size = part.steps.tau.shape
    weights = schema.weights(question.costs)
    cost = np.where(part.steps.ok, schema.gaps(own[:, None], part.steps.cells) @ weights, np.inf)
    start = np.where(part.steps.ok.any(axis=1), cost.argmin(axis=1), part.first)
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
        sparse=np.where(nearest.ok, size, part.first),
    )


def _limits(system: System, instances: Floats) -> tuple[Ints, Bools]:
    """What the constraints on single columns mean for category blocks: held and barred states."""
    schema = system.schema
    states = states_of(schema, instances)
    held = np.full(states.shape, -1, dtype=np.int64)
    barred = np.zeros((len(instances), sum(block_states(schema))), dtype=bool)
    if not len(system):
        return held, barred
    domains = system.domains(instances)
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


def _at_instance(
    fitted: Fitted, known: Instances, judge: Judge, start: Start, instance: Ints
) -> Steps:
    """Step 0: the instance's row, copied; they do not have the label they want."""
    lines = np.arange(len(instance))
    if not fitted.decoder.anchored:  # the paper's paths begin at the reconstruction
        z = start.z[torch.as_tensor(instance, device=start.z.device)]
        frozen = np.zeros(len(instance), dtype=bool)
        tau = np.zeros(len(instance))
        return judge(tau, fitted.decoder.rows(start, instance, tau, z, judge.label, frozen), lines)
    feasible = known.system.feasible(start.cells, start.cells)[instance]
    each = known.probability[judge.instance]
    own, label = each[lines, judge.own], each[lines, judge.label]
    probability = np.where(judge.any_other, 1.0 - own, label)
    no = np.zeros(len(instance), dtype=bool)
    return Steps.of(np.zeros(len(instance)), start.cells[instance], no, feasible, probability)


def _at_end(fitted: Fitted, ends: Ends, judge: Judge, end: Ints, steer: Steer | None) -> Steps:
    """Step 1: a prototype, judged when it was made; where limits move it, judged anew."""
    cells, probability, valid = ends.cells[end], ends.probability[end], ends.valid[end]
    if judge.question.confidence is not None:
        valid = valid & (probability >= judge.question.confidence)
    lines, tau = np.arange(len(end)), np.ones(len(end))
    at = torch.as_tensor(end, device=ends.z.device)
    nearer = cells if steer is None else steer(tau, ends.z[at], cells, lines)
    moved, feasible = judge.obeying(nearer, lines)
    steps = Steps.of(tau, moved, valid, feasible, probability)
    limited = np.flatnonzero(differ(moved, cells))
    # What was judged at `fit` is the prototype's own label, not whether it is another's.
    anew = np.union1d(limited, np.flatnonzero(judge.any_other))
    if len(anew):
        steps.write(anew, judge(tau[anew], moved[anew], lines[anew]))
    if len(limited):
        label, schema = judge.label[limited], judge.known.reading.schema
        steps.before[limited] = fitted.decoder.density(schema, cells[limited], label)
    return steps
